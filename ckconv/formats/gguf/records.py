"""The tensor records of a GGUF header: name, shape, type and place of each tensor, checked one by one and together."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from struct import Struct, error
from typing import NamedTuple

from ckconv.core.dtypes import BY_GGML, RETIRED_GGML, DType, ik_type, of_ggml
from ckconv.core.metadata import U32, U64
from ckconv.core.non_utf8 import is_text
from ckconv.core.tensors import MAX_BYTES, Form, StoredTensor, stored_tensors
from ckconv.errors import Faults, InputError, quoted
from ckconv.formats.gguf.cursor import TRUNCATED, Cursor
from ckconv.formats.gguf.spec import MAX_DIMS, MAX_NAME_BYTES, TENSOR_TAIL, align_up
from ckconv.formats.gguf.values import read_string

# What is no part of a name: C0 and C1 controls, line separators, and marks that reorder or hide text.
_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff]")

#: Forms that are kept: a model has a few dozen.
_MAX_FORMS = 4096


class Records:
    """The records of a header, in file order: columns, because a header may list a million tensors.

    Attributes:
        names, forms: of each tensor.
        offsets: in the data section, in bytes.
        at: absolute offset of each record itself, in bytes.
    """

    __slots__ = ("at", "forms", "names", "offsets")

    def __init__(self) -> None:
        self.names: list[str] = []
        self.forms: list[Form] = []
        self.offsets, self.at = array("Q"), array("Q")

    def add(self, name: str, form: Form, offset: int, at: int) -> None:
        """One more tensor."""
        self.names.append(name)
        self.forms.append(form)
        self.offsets.append(offset)
        self.at.append(at)

    def stored(self, path: Path, data_offset: int) -> Sequence[StoredTensor]:
        """The tensors, once it is known where the data section starts."""
        return stored_tensors(path, self.names, self.forms, self.offsets, data_offset)


def checked_name(faults: Faults, raw: bytes, what: str, offset: int) -> str:
    """Decode a key or tensor name; one that is empty, not UTF-8 or not printable is a fault (``gguf.name``)."""
    name = raw.decode("utf-8", "surrogateescape")
    fault = ""
    if not name:
        fault = f"{what} is empty"
    elif _CONTROL.search(name):
        fault = f"{what} holds control characters: {quoted(name)}"
    elif not name.isascii() and not is_text(name):
        fault = f"{what} is not UTF-8: {quoted(name)}"
    if fault:
        faults.add("gguf.name", fault, offset=offset, found=name)
    return name


class _Fault(NamedTuple):
    """What is wrong with one record; ``sentence`` follows the tensor's name."""

    code: str
    sentence: str
    found: object
    allowed: object
    hint: str | None = None


def read_records(cursor: Cursor, count: int, length: Struct) -> Records:
    """Read ``count`` records. A fault of one tensor does not stop the search for the same fault in others.

    Raises:
        InputError: ``gguf.string``, ``gguf.name``, ``gguf.duplicate-tensor``, ``gguf.dims``, ``gguf.type``,
            ``gguf.block``, ``gguf.size``, ``gguf.truncated``.
    """
    faults = Faults(cursor.path)
    reader = _Reader(cursor, length, faults)
    try:
        for number in range(1, count + 1):
            if not reader.read_alike() and not reader.read(number):
                break
    except InputError:
        faults.check()
        raise
    _check_names(reader.records, faults)
    faults.check()
    return reader.records


class _Reader:
    def __init__(self, cursor: Cursor, length: Struct, faults: Faults) -> None:
        self.records = Records()
        self._cursor, self._length, self._faults = cursor, length, faults
        self._dimensions = [Struct(f"<{n}{length.format[-1]}") for n in range(MAX_DIMS + 1)]
        #: What stands between name and offset -> its meaning.
        self._forms: dict[bytes, Form] = {}

    def read_alike(self) -> bool:
        """Read a record that is in the window, with a plain name and of a form that was seen; else nothing is read."""
        cursor, width = self._cursor, self._length.size
        buffer, at = cursor.buffer, cursor.at
        try:
            dims_at = at + width + self._length.unpack_from(buffer, at)[0]
            offset_at = dims_at + U32.size + U32.unpack_from(buffer, dims_at)[0] * width + U32.size
            offset = U64.unpack_from(buffer, offset_at)[0]
        except (error, OverflowError):
            return False
        form = self._forms.get(buffer[dims_at:offset_at])
        raw = buffer[at + width : dims_at]
        if form is None or not 0 < len(raw) <= MAX_NAME_BYTES or not raw.isascii():
            return False
        name = raw.decode("ascii")
        if not name.isprintable():
            return False
        self.records.add(name, form, offset, cursor.base + at)
        cursor.at = offset_at + U64.size
        return True

    def read(self, number: int) -> bool:
        """Read any record; false where it cannot be told where the next one begins."""
        cursor, faults = self._cursor, self._faults
        at = cursor.offset
        what = f"tensor name #{number}"
        name = checked_name(faults, read_string(cursor, self._length, MAX_NAME_BYTES, what), what, at)
        what = f"tensor record #{number}"
        key = cursor.need(U32.size, what)
        n_dims = U32.unpack(key)[0]
        if n_dims > MAX_DIMS:
            message = f"tensor {quoted(name)} has {n_dims} dimensions; GGUF allows {MAX_DIMS}"
            faults.add("gguf.dims", message, tensor=name, offset=at, found=n_dims, allowed=MAX_DIMS)
            return False
        raw = cursor.need(self._dimensions[n_dims].size, what)
        shape = self._dimensions[n_dims].unpack(raw)[::-1]
        tail = cursor.need(TENSOR_TAIL.size, what)
        type_id, offset = TENSOR_TAIL.unpack(tail)
        dtype = of_ggml(type_id, shape[-1] if shape else 0)
        fault = _type_fault(type_id) if dtype is None else _shape_fault(dtype, shape)
        if fault:
            code, sentence, found, allowed, hint = fault
            message = f"tensor {quoted(name)} {sentence}"
            faults.add(code, message, tensor=name, offset=at, found=found, allowed=allowed, hint=hint)
        elif dtype:
            form = Form(dtype, shape, dtype.nbytes(math.prod(shape)))
            if len(self._forms) < _MAX_FORMS:
                self._forms[key + raw + tail[: U32.size]] = form
            self.records.add(name, form, offset, at)
        return True


def _check_names(records: Records, faults: Faults) -> None:
    if all(one != other for one, other in pairwise(sorted(records.names))):  # a set takes eight times as much memory
        return
    seen: set[str] = set()
    for name, at in zip(records.names, records.at, strict=True):
        if name in seen:
            message = f"{quoted(name)} is listed twice"
            faults.add("gguf.duplicate-tensor", message, tensor=name, offset=at, found=name)
        seen.add(name)


def _type_fault(type_id: int) -> _Fault:
    newest = max(BY_GGML)
    known = RETIRED_GGML.get(type_id) or ik_type(type_id) or f"ckconv knows 0 to {newest}"
    # Ids are given out one by one: a far higher one is no type of the future.
    hint = "a newer ckconv may know it" if newest < type_id < 2 * newest else None
    hint = "ik_llama.cpp reads it; take a GGUF of the model with types of ggml" if ik_type(type_id) else hint
    return _Fault("gguf.type", f"has type {type_id} ({known})", type_id, newest, hint)


def _shape_fault(dtype: DType, shape: tuple[int, ...]) -> _Fault | None:
    """What is wrong with a shape (outermost first), as the end of a sentence about its tensor."""
    if not shape:
        return _Fault("gguf.dims", "has 0 dimensions; GGUF needs at least 1", 0, 1)
    if shape[-1] % dtype.block:
        sentence = f"is {dtype} with rows of {shape[-1]}; blocks hold {dtype.block}"
        return _Fault("gguf.block", sentence, shape[-1], dtype.block)
    elements = math.prod(shape)
    if max(elements, dtype.nbytes(elements)) > MAX_BYTES:
        return _Fault("gguf.size", f"{list(shape)} is larger than any file", list(shape), MAX_BYTES)
    return None


def check_offsets(path: Path, records: Records, alignment: int) -> None:
    """Check that each tensor starts where the padded one before it ends: no hole, no overlap, as in gguf.cpp.

    Raises:
        InputError: ``gguf.offset``.
    """
    faults = Faults(path)
    expected = 0
    for n, (offset, form) in enumerate(zip(records.offsets, records.forms, strict=True)):
        if offset != expected:
            name = records.names[n]
            faults.add(
                "gguf.offset",
                f"tensor {quoted(name)} starts at {offset:,}, expected {expected:,} in the data section",
                tensor=name,
                offset=records.at[n],
                found=offset,
                allowed=expected,
            )
        expected = align_up(max(expected, offset) + form.nbytes, alignment)
    faults.check()


def check_extents(path: Path, records: Records, data_offset: int, size: int | None) -> int:
    """Check that the file holds every tensor; returns where the last one ends, in bytes, 0 without tensors.

    Raises:
        InputError: ``gguf.extent``.
    """
    faults = Faults(path)
    end = 0
    limit = MAX_BYTES if size is None else size
    for n, (offset, form) in enumerate(zip(records.offsets, records.forms, strict=True)):
        end = data_offset + offset + form.nbytes
        if end > limit:
            bound = "no file is that long" if size is None else f"the file has {size:,}"
            faults.add(
                "gguf.extent",
                f"tensor {quoted(records.names[n])} ends at {end:,}; {bound}",
                tensor=records.names[n],
                offset=data_offset + offset,
                found=end,
                allowed=limit,
                hint=TRUNCATED,
            )
    faults.check()
    return end
