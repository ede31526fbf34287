"""Content hashes: the same numbers give the same hash in every format.

A tensor's hash is the SHA-256 of its canonical name, its shape and its canonical rows as exact float32 values: blocks
are decoded, and zeros are positive. Blocks without a decoder count as type and bytes. The model's hash covers the
hashes of all tensors, by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ckconv.core.dtypes import F32, WIDENS_TO_F32
from ckconv.core.tensors import Tensor, TensorIndex, is_bias, require_tensors
from ckconv.families.catalog import FAMILIES
from ckconv.families.names import shift_of
from ckconv.io.files import Files, head_is_embedding
from ckconv.io.rows import RowReader, canonical_pieces
from ckconv.quant.convert import Conversion, decodable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NEGATIVE_ZERO = 0x80000000


class Hashes(NamedTuple):
    """Hex digests of tensors by name, canonical if possible, and of the model."""

    tensors: dict[str, str]
    model: str


def hash_index(index: TensorIndex, progress: Callable[[int, str], None] | None = None) -> Hashes:
    """Hash every tensor of a model.

    Left out of the model's hash is what a format may leave out without changing the model: a head that is the
    embedding, RoPE frequencies (they follow from the configuration), and all-zero placeholders and biases.

    Raises:
        InputError, UnsupportedError: there is nothing to hash, see :func:`ckconv.core.tensors.require_tensors`.
    """
    require_tensors(index)
    hashes: dict[str, str] = {}
    counted: dict[str, str] = {}
    with Files(index.identities) as files:
        tied = head_is_embedding(index, files)
        for tensor in index.everything.values():
            digest, zero_filled = _hash_tensor(tensor, index, files, progress)
            hashes[tensor.name] = digest
            derived = tensor.name == "rope_frequencies" or (tied and tensor.name == "output.weight")
            # Some formats store zeros for a bias that is not there, so everywhere they stand for none.
            nothing = zero_filled and (tensor.may_be_absent or is_bias(tensor.name))
            if not derived and not nothing:
                counted[tensor.name] = digest
        files.check_unchanged()
    model = hashlib.sha256()
    for name in sorted(counted):
        model.update(f"{counted[name]}  {name}\n".encode("utf-8", "surrogateescape"))
    return Hashes(hashes, model.hexdigest())


def _without_signs_of_zeros(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Float32 values whose zeros are positive."""
    import numpy as np

    bits = np.ascontiguousarray(data).view(np.uint32)
    return np.where(bits == _NEGATIVE_ZERO, np.uint32(0), bits).view(np.uint8)


def _hash_tensor(
    tensor: Tensor, index: TensorIndex, files: Files, progress: Callable[[int, str], None] | None
) -> tuple[str, bool]:
    """The digest, and whether every byte that went into it was zero."""
    reader = RowReader(tensor, files)
    exact = reader.dtype in WIDENS_TO_F32 or decodable(reader.dtype)
    shift = 0
    if index.config is not None:
        shift = shift_of(FAMILIES[index.config.family], tensor.name) - tensor.layout.shift
    factor = tensor.layout.scale if exact else 1.0
    conversion = Conversion(reader.dtype, F32 if exact else reader.dtype, shift if exact else 0, factor=factor)
    shape = "x".join(map(str, tensor.shape))
    digest = hashlib.sha256(f"{tensor.name}\n{shape}\n{conversion.target}\n".encode("utf-8", "surrogateescape"))
    if index.adapter is not None:  # what an adapter's rows are depends on where they go
        digest.update(
            "".join(f"{row}\n" for row in index.adapter.replaced.get(tensor.name.rpartition(".")[0], ())).encode()
        )
    zero_filled = True
    for _, rows in canonical_pieces(reader):
        data, _ = conversion.apply(rows)
        data = _without_signs_of_zeros(data) if exact else data
        digest.update(data)
        zero_filled = zero_filled and not data.any()
        if progress:
            progress(rows.nbytes, tensor.name)
    return digest.hexdigest(), zero_filled
