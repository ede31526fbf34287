"""Importance matrices of llama-imatrix: weights of columns, by matrix.

A GGUF holds sums of squares and counts, of each expert apart; the older ``.dat`` one sum, already over the count, times
the number of calls. Sources: ``common/imatrix-loader.cpp`` and ``load_imatrix`` of ``tools/quantize/quantize.cpp``.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from ckconv.core.lazy import Floats, NamedTuple, np
from ckconv.errors import InputError, quoted
from ckconv.io.files import ByteSource, open_source, readable

_SUMS, _COUNTS = ".in_sum2", ".counts"
_KEYS = ("imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size")

#: More is no importance matrix of any model.
_MOST_BYTES = 4 << 30


class Imatrix(NamedTuple):
    """The content of a file.

    Attributes:
        matrices: name in GGUF -> numbers, those of several experts one after the other.
        dataset: the first of those that it was made of; empty where none is named.
        chunks: of that; 0 where it is not stated.
    """

    matrices: dict[str, Floats]
    dataset: str = ""
    chunks: int = 0


def read_imatrix(path: Path) -> Imatrix:
    """Read a file of either format.

    Raises:
        InputError: ``quantize.imatrix``; as :func:`open_source`.
    """
    try:
        with readable(path), open_source(path) as source:
            if source.size is None or source.size > _MOST_BYTES:
                raise _fault(path, "is too large")
            found = _of_gguf(path) if source.read_at(0, 4) == b"GGUF" else _of_dat(source, source.size)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, struct.error) as error:
        raise _fault(path, f"is not as llama-imatrix writes it: {error}") from error
    if not found.matrices:
        raise _fault(path, "holds no entries")
    for name, numbers in found.matrices.items():
        if not (np.isfinite(numbers) & (numbers >= 0)).all():
            raise _fault(path, f"{quoted(name)} holds a number that is no mean of squares")
    return found


def _fault(path: Path, message: str) -> InputError:
    return InputError("quantize.imatrix", message, path=path, hint="llama-imatrix writes such files")


def _of_gguf(path: Path) -> Imatrix:
    import gguf

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


def _of_dat(source: ByteSource, size: int) -> Imatrix:
    """Read the older format; each number is checked against the size."""
    at = 0
    found: dict[str, Floats] = {}

    def taken(nbytes: int) -> bytes:
        nonlocal at
        if not 0 <= nbytes <= size - at:
            raise ValueError(f"a field of {nbytes:,} bytes at byte {at:,} ends beyond the end of the file")
        data = source.read_at(at, nbytes)
        at += nbytes
        return data

    def number() -> int:
        return int(struct.unpack("<i", taken(4))[0])

    for _ in range(number()):
        name = taken(number()).decode()
        calls, count = number(), number()
        if count < 1 or at + 4 * count > size:
            raise ValueError(f"{quoted(name)} has {count:,} numbers and ends beyond the end of the file")
        sums = np.frombuffer(taken(4 * count), "<f4", count).astype(np.float32)
        found[name] = sums / np.float32(calls) if calls > 0 else sums
    if at == size:  # older ones end here
        return Imatrix(found)
    chunks = number()
    length = number() if at < size else 0
    dataset = taken(min(max(length, 0), size - at)).decode("utf-8", "replace")
    return Imatrix(found, dataset, max(chunks, 0))
