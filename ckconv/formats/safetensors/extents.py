"""What the tensors of a safetensors header say together: each as large as its shape, no hole, no overlap."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from ckconv.core.dtypes import DType
from ckconv.core.tensors import StoredTensor, made
from ckconv.errors import Faults, counted, quoted
from ckconv.formats.safetensors.spec import TOO_LARGE

if TYPE_CHECKING:
    from ckconv.io.bytesource import ByteSource

#: The next step for a file that ends too early.
PARTIAL = "the file looks like a partial download; fetch it again and compare its size or sha256"


def check_extents(
    tensors: Sequence[StoredTensor], data_offset: int, source: ByteSource, faults: Faults
) -> Sequence[StoredTensor]:
    """Check sizes and places; returns the tensors in the order of their data. A size below 0 ends before it begins.

    Raises:
        InputError: ``st.size`` or ``st.offsets``.
    """
    needs: dict[tuple[DType, tuple[int, ...]], int | None] = {}
    for tensor in tensors:
        _check_size(tensor, needs, faults)
    faults.check()
    if any(one.extent.offset >= other.extent.offset for one, other in pairwise(tensors)):
        order = sorted(range(len(tensors)), key=lambda at: tensors[at].extent[1:])
        tensors = made(len(order), partial(_placed, tensors, array("I", order)))
    _check_cover(tensors, data_offset, source, faults)
    faults.check()
    return tensors


def _placed(tensors: Sequence[StoredTensor], order: Sequence[int], at: int) -> StoredTensor:
    return tensors[order[at]]


def _check_size(tensor: StoredTensor, needs: dict[tuple[DType, tuple[int, ...]], int | None], faults: Faults) -> None:
    """The offsets span exactly the bytes that shape and type need.

    Args:
        needs: type and shape -> bytes, of those that were looked at already.
    """
    given, form = tensor.extent.nbytes, (tensor.dtype, tensor.shape)
    needed = needs.get(form)
    if needed is None:
        needed = _needed(tensor, faults)
        if needed is None:
            return
        needs[form] = needed
    if 0 <= given != needed:
        message = f"{_label(tensor)} needs {needed:,} bytes, offsets give {given:,}"
        faults.add("st.size", message, tensor=tensor.name, found=given, allowed=needed)


def _needed(tensor: StoredTensor, faults: Faults) -> int | None:
    """Bytes of a tensor; ``None`` with a fault noted where no file holds it."""
    dtype, elements = tensor.dtype, 1
    for extent in tensor.shape:
        elements *= extent
        if elements >= TOO_LARGE:
            break
    needed = dtype.nbytes(elements)
    if elements >= TOO_LARGE or needed >= TOO_LARGE:
        faults.add("st.size", f"{_label(tensor)} is larger than any file", tensor=tensor.name)
        return None
    if elements % dtype.block:
        # F4 and F6: the reference refuses a tensor that does not end on a byte (MisalignedSlice in tensor.rs).
        bits = elements * dtype.size * 8 // dtype.block
        message = f"{_label(tensor)} is {bits:,} bits and does not end on a byte"
        faults.add("st.size", message, tensor=tensor.name, found=bits)
        return None
    return needed


def _label(tensor: StoredTensor) -> str:
    return f"{quoted(tensor.name)} {_shape(tensor.shape)} {tensor.dtype}"


def _check_cover(tensors: Sequence[StoredTensor], data_offset: int, source: ByteSource, faults: Faults) -> None:
    """The tensors, sorted by their offsets, cover the data section exactly."""
    expected = 0
    for tensor in tensors:
        at = tensor.extent.offset
        begin = at - data_offset
        end = begin + tensor.extent.nbytes
        if begin > end:
            message = f"{quoted(tensor.name)} begins at {begin:,} and ends before it, at {end:,}"
            faults.add("st.offsets", message, tensor=tensor.name, offset=at, found=end, allowed=begin)
            continue
        if begin != expected:
            wrong = "overlaps the tensor before it" if begin < expected else "leaves a hole"
            message = f"{quoted(tensor.name)} begins at {begin:,}, expected {expected:,}: it {wrong}"
            faults.add("st.offsets", message, tensor=tensor.name, offset=at, found=begin, allowed=expected)
        if source.size is not None and data_offset + end > source.size:
            message = f"{quoted(tensor.name)} ends at {data_offset + end:,}; the file has {source.size:,}"
            faults.add("st.offsets", message, tensor=tensor.name, offset=at,
                       found=data_offset + end, allowed=source.size, hint=PARTIAL)  # fmt: skip
        expected = max(expected, end)
    end = data_offset + expected
    if source.size is not None and end < source.size:
        start = quoted(source.read_at(end, 4).decode("latin-1"))
        message = f"{counted(source.size - end, 'byte')} after the last tensor (start {start})"
        faults.add("st.offsets", message, offset=end, found=source.size, allowed=end)


def _shape(shape: tuple[int, ...]) -> str:
    extents = [f"{extent}" for extent in shape[:8]] + ["..."] * (len(shape) > 8)
    return f"[{', '.join(extents)}]"
