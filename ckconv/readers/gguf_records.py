"""The tensor records of a GGUF header: name, shape, type and place of each tensor, checked one by one and together."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from ckconv.dtypes import BY_GGML, RETIRED_GGML, DType
from ckconv.errors import Faults, InputError, quoted
from ckconv.formats.gguf import MAX_BYTES, MAX_DIMS, MAX_NAME_BYTES, TENSOR_TAIL, U32, align_up
from ckconv.readers.gguf_cursor import TRUNCATED, Cursor
from ckconv.readers.gguf_values import read_string

# What is no part of a name: C0 and C1 controls, line separators, and marks that reorder or hide text.
_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff]")


@dataclass(frozen=True, slots=True)
class Record:
    """One tensor as its record has it.

    Attributes:
        name: its name.
        dtype: its type.
        shape: in elements, outermost first: the file's dimensions reversed.
        nbytes: stored bytes, without padding.
        offset: in the data section, in bytes.
        at: absolute offset of the record itself, in bytes.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    nbytes: int
    offset: int
    at: int


def checked_name(faults: Faults, raw: bytes, what: str, offset: int) -> str:
    """Decode a key or tensor name; one that is empty, not UTF-8 or not printable is a fault (``gguf.name``)."""
    name = raw.decode("utf-8", "surrogateescape")
    fault = ""
    if not name:
        fault = f"{what} is empty"
    elif _CONTROL.search(name):
        fault = f"{what} holds control characters: {quoted(name)}"
    elif not name.isascii() and not _encodable(name):
        fault = f"{what} is not UTF-8: {quoted(name)}"
    if fault:
        faults.add("gguf.name", fault, offset=offset, found=name)
    return name


def _encodable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Fault(NamedTuple):
    """What is wrong with one record; ``sentence`` follows the tensor's name."""

    code: str
    sentence: str
    found: object
    allowed: object
    hint: str | None = None


def read_records(cursor: Cursor, count: int, length: Struct) -> list[Record]:
    """Read ``count`` records. A fault of one tensor does not stop the search for the same fault in others.

    Raises:
        InputError: ``gguf.string``, ``gguf.name``, ``gguf.duplicate-tensor``, ``gguf.dims``, ``gguf.type``,
            ``gguf.block``, ``gguf.size``, ``gguf.truncated``.
    """
    faults = Faults(cursor.path)
    dimensions = [Struct(f"<{n}{length.format[-1]}") for n in range(MAX_DIMS + 1)]
    records: list[Record] = []
    seen: set[str] = set()
    try:
        for number in range(1, count + 1):
            at = cursor.offset
            what = f"tensor name #{number}"
            name = checked_name(faults, read_string(cursor, length, MAX_NAME_BYTES, what), what, at)
            what = f"tensor record #{number}"
            n_dims = U32.unpack(cursor.need(U32.size, what))[0]
            fault = None
            if n_dims <= MAX_DIMS:
                shape = dimensions[n_dims].unpack(cursor.need(dimensions[n_dims].size, what))[::-1]
                type_id, offset = TENSOR_TAIL.unpack(cursor.need(TENSOR_TAIL.size, what))
                dtype = BY_GGML.get(type_id)
                fault = _type_fault(type_id) if dtype is None else _shape_fault(dtype, shape)
                if dtype and not fault:
                    records.append(Record(name, dtype, shape, dtype.nbytes(math.prod(shape)), offset, at))
            else:
                fault = _Fault("gguf.dims", f"has {n_dims} dimensions; GGUF allows {MAX_DIMS}", n_dims, MAX_DIMS)
            if name in seen:
                message = f"{quoted(name)} is listed twice"
                faults.add("gguf.duplicate-tensor", message, tensor=name, offset=at, found=name)
            seen.add(name)
            if fault:
                code, sentence, found, allowed, hint = fault
                message = f"tensor {quoted(name)} {sentence}"
                faults.add(code, message, tensor=name, offset=at, found=found, allowed=allowed, hint=hint)
            if n_dims > MAX_DIMS:
                break  # where its record ends is not known
    except InputError:
        faults.check()
        raise
    faults.check()
    return records


def _type_fault(type_id: int) -> _Fault:
    newest = max(BY_GGML)
    known = RETIRED_GGML.get(type_id, f"ckconv knows 0 to {newest}")
    # Ids are given out one by one: a far higher one is no type of the future.
    hint = "a newer ckconv may know it" if newest < type_id < 2 * newest else None
    return _Fault("gguf.type", f"has type {type_id} ({known})", type_id, newest, hint)


def _shape_fault(dtype: DType, shape: tuple[int, ...]) -> _Fault | None:
    """What is wrong with a shape (outermost first), as the end of a sentence about its tensor."""
    if not shape:
        return _Fault("gguf.dims", "has 0 dimensions; GGUF needs at least 1", 0, 1)
    if 0 in shape:
        sentence = f"has shape {list(shape)}; every dimension must be at least 1"
        return _Fault("gguf.dims", sentence, list(shape), 1)
    if shape[-1] % dtype.block:
        sentence = f"is {dtype} with rows of {shape[-1]}; blocks hold {dtype.block}"
        return _Fault("gguf.block", sentence, shape[-1], dtype.block)
    elements = math.prod(shape)
    if max(elements, dtype.nbytes(elements)) > MAX_BYTES:
        return _Fault("gguf.size", f"{list(shape)} is larger than any file", list(shape), MAX_BYTES)
    return None


def check_offsets(path: Path, records: list[Record], alignment: int) -> None:
    """Check that each tensor starts where the padded one before it ends: no hole, no overlap, as in gguf.cpp.

    Raises:
        InputError: ``gguf.offset``.
    """
    faults = Faults(path)
    expected = 0
    for record in records:
        if record.offset != expected:
            faults.add(
                "gguf.offset",
                f"tensor {quoted(record.name)} starts at {record.offset:,}, expected {expected:,} in the data section",
                tensor=record.name,
                offset=record.at,
                found=record.offset,
                allowed=expected,
            )
        expected = align_up(max(expected, record.offset) + record.nbytes, alignment)
    faults.check()


def check_extents(path: Path, records: list[Record], data_offset: int, size: int | None) -> int:
    """Check that the file holds every tensor; returns where the last one ends, in bytes, 0 without tensors.

    Raises:
        InputError: ``gguf.extent``.
    """
    faults = Faults(path)
    end = 0
    limit = MAX_BYTES if size is None else size
    for record in records:
        end = data_offset + record.offset + record.nbytes
        if end > limit:
            bound = "no file is that long" if size is None else f"the file has {size:,}"
            faults.add(
                "gguf.extent",
                f"tensor {quoted(record.name)} ends at {end:,}; {bound}",
                tensor=record.name,
                offset=data_offset + record.offset,
                found=end,
                allowed=limit,
                hint=TRUNCATED,
            )
    faults.check()
    return end
