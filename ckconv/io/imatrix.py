"""Importance matrices of llama-imatrix: how much the error of each column of a matrix counts, by the matrix's name.

A GGUF holds sums of squares and counts, of each expert apart; the older ``.dat`` one sum, already over the count, times
the number of calls. Sources: ``common/imatrix-loader.cpp`` and ``load_imatrix`` of ``tools/quantize/quantize.cpp``.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ckconv.errors import InputError, quoted
from ckconv.io.files import readable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

_SUMS, _COUNTS = ".in_sum2", ".counts"
_KEYS = ("imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size")

#: More is no importance matrix of any model.
_MOST_BYTES = 4 << 30


class Imatrix(NamedTuple):
    """What a file holds.

    Attributes:
        matrices: name in GGUF -> numbers, those of several experts one after the other.
        dataset: the first of those that it was made of; empty where none is named.
        chunks: of that; 0 where it is not said.
    """

    matrices: dict[str, Floats]
    dataset: str = ""
    chunks: int = 0


def read_imatrix(path: Path) -> Imatrix:
    """What the file holds.

    Raises:
        InputError: ``quantize.imatrix``.
    """
    import numpy as np

    with readable(path):
        if path.stat().st_size > _MOST_BYTES:
            raise _fault(path, "is too large")
        with path.open("rb") as file:
            whole = file.read(4) == b"GGUF"
    try:
        found = _of_gguf(path) if whole else _of_dat(path)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, struct.error) as error:
        raise _fault(path, f"is not as llama-imatrix writes it: {error}") from error
    if not found.matrices:
        raise _fault(path, "holds no entries")
    for name, numbers in found.matrices.items():
        if not np.isfinite(numbers).all():
            raise _fault(path, f"{quoted(name)} holds a number that is not finite")
    return found


def _fault(path: Path, message: str) -> InputError:
    return InputError("quantize.imatrix", message, path=path, hint="llama-imatrix writes such files")


def _of_gguf(path: Path) -> Imatrix:
    import gguf
    import numpy as np

    reader: Any = gguf.GGUFReader(path)
    missing = [key for key in _KEYS if key not in reader.fields]
    if missing:
        raise ValueError(f"there is no key {missing[0]}")
    arrays = {tensor.name: np.array(tensor.data, np.float32).reshape(-1) for tensor in reader.tensors}
    found: dict[str, Floats] = {}
    for name, sums in arrays.items():
        if name.endswith(_SUMS):
            counts = np.rint(arrays[name.removesuffix(_SUMS) + _COUNTS])
            each = sums.reshape(len(counts), -1)
            mean = each / np.where(counts > 0, counts, 1).astype(np.float32)[:, None]
            found[name.removesuffix(_SUMS)] = np.where(counts[:, None] > 0, mean, np.float32(1)).reshape(-1)
    datasets, chunks, _ = (reader.fields[key].contents() for key in _KEYS)
    return Imatrix(found, str(datasets[0]) if datasets else "", int(chunks))


def _of_dat(path: Path) -> Imatrix:
    import numpy as np

    data, at = path.read_bytes(), 0
    found: dict[str, Floats] = {}

    def number() -> int:
        nonlocal at
        at += 4
        return int(struct.unpack_from("<i", data, at - 4)[0])

    for _ in range(number()):
        length = number()
        name = data[at : at + length].decode()
        at += length
        calls, count = number(), number()
        if length < 0 or count < 1 or at + 4 * count > len(data):
            raise ValueError(f"{quoted(name)} has {count:,} numbers and ends beyond the end of the file")
        sums = np.frombuffer(data, "<f4", count, at).astype(np.float32)
        at += 4 * count
        found[name] = sums / np.float32(calls) if calls > 0 else sums
    if at == len(data):  # older ones end here
        return Imatrix(found)
    chunks = number()
    length = number() if at < len(data) else 0
    return Imatrix(found, data[at : at + max(length, 0)].decode("utf-8", "replace"), max(chunks, 0))
