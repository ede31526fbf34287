"""Reads a safetensors header, as strictly as its specification and stricter than its parsers.

Every rule is proved once, here: fields, types, sizes by checked arithmetic, and that the tensors cover the
data section without overlap, hole or trailing byte. After that, extents can be trusted.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ckconv.core.dtypes import BY_SAFETENSORS, DType
from ckconv.core.metadata import METADATA
from ckconv.core.tensors import Extent, StoredTensor, made
from ckconv.errors import CkconvError, Faults, InputError, UnsupportedError, counted, quoted
from ckconv.formats.safetensors.extents import PARTIAL, check_extents
from ckconv.formats.safetensors.header import Alike, Header
from ckconv.formats.safetensors.spec import FIELDS, LENGTH_BYTES, MAX_DIMS, MAX_HEADER, MAX_NAME, MAX_TENSORS, TOO_LARGE
from ckconv.io.bytesource import lfs_pointer, open_source
from ckconv.io.json import kind, shown

if TYPE_CHECKING:
    from ckconv.io.bytesource import ByteSource

_FOREIGN = (
    (b"GGUF", "it is a GGUF file"),
    (b"BUMPWGT", "it is a bump file"),
    (b"<", "it looks like a web page saved by the downloader"),
    (b"{", "it looks like JSON text"),
)


#: Type and shape.
_Form = tuple[DType, tuple[int, ...]]


class SafetensorsFile(NamedTuple):
    """One safetensors file, proved sound.

    Attributes:
        path: the file.
        metadata: the strings of ``__metadata__``, empty where the file has none.
        tensors: in the order of their data; extents are absolute.
        header_bytes: bytes of the JSON header, padding included.
        data_offset: where the data begins, in bytes: 8 + ``header_bytes``.
        size: bytes of the file; ``None`` for a pipe.
    """

    path: Path
    metadata: Mapping[str, str]
    tensors: Sequence[StoredTensor]
    header_bytes: int
    data_offset: int
    size: int | None


def read_safetensors(path: Path, *, source: ByteSource | None = None) -> SafetensorsFile:
    """Read and validate one file's header. No tensor data is read.

    Args:
        path: the file, also where ``source`` is given.
        source: what to read from; left open. Without a size (a pipe), the end of the data is not checked.

    Raises:
        InputError: ``st.header-length``, ``st.header-json``, ``st.duplicate-key``, ``st.fields``, ``st.dtype``,
            ``st.size``, ``st.offsets``, ``st.metadata``, ``st.empty``, ``st.count``, ``st.lfs-pointer``, and
            those of ``open_source``.
        UnsupportedError: ``hf.pickle``, for a PyTorch checkpoint.
    """
    path = Path(path)
    opened = open_source(path) if source is None else source
    try:
        return _read(path, opened)
    finally:
        if source is None:
            opened.close()


def _read(path: Path, source: ByteSource) -> SafetensorsFile:
    length = _header_length(path, source)
    first = source.read_at(LENGTH_BYTES, 1)
    if source.size is None:  # a pipe: only now it is known how long it is
        source.read_at(LENGTH_BYTES + length - 1, 1)
        if source.size is not None and source.size < LENGTH_BYTES + length:
            raise _too_long(path, length, source.size)
    if first != b"{":
        start = quoted(first.decode("latin-1"))
        message = f"header is not a JSON object: column 1: it must begin with '{{', not with {start}"
        raise InputError("st.header-json", message, path=path, offset=LENGTH_BYTES)

    data_offset = LENGTH_BYTES + length
    header = Header(source, length, path, MAX_TENSORS + 1)
    metadata: object = {}
    seen_metadata = 0
    faults = Faults(path)
    # Columns, because a header may list a million tensors.
    names, begins, ends = list[str](), array("Q"), array("Q")
    forms, known = list[_Form](), dict[_Form, _Form]()
    for name, value in header.entries():
        if name == METADATA:
            metadata, seen_metadata = value, 1
            continue
        entry = value if isinstance(value, Alike) else _checked(name, value, faults)
        if entry and header.count <= MAX_TENSORS + 1:
            form = entry.dtype, entry.shape
            names.append(name)
            forms.append(known.setdefault(form, form))
            begins.append(entry.begin)
            ends.append(entry.end)
    strings = _metadata(path, metadata)
    count = header.count - seen_metadata
    if not count:
        raise InputError("st.empty", "the header lists no tensors", path=path)
    if count > MAX_TENSORS:
        message = f"the header lists {count:,} tensors; {MAX_TENSORS:,} are allowed"
        raise InputError("st.count", message, path=path, found=count, allowed=MAX_TENSORS)
    faults.check()

    def tensor(at: int) -> StoredTensor:
        return StoredTensor(names[at], *forms[at], Extent(path, data_offset + begins[at], ends[at] - begins[at]))

    tensors = check_extents(made(len(names), tensor), data_offset, source, faults)
    return SafetensorsFile(path, strings, tensors, length, data_offset, source.size)


def _too_long(path: Path, length: int, size: int) -> InputError:
    message = f"header declares {length:,} bytes, the file has {size:,}"
    left = size - LENGTH_BYTES
    return InputError("st.header-length", message, path=path, offset=0, found=length, allowed=left, hint=PARTIAL)


def _checked(name: str, value: Any, faults: Faults) -> Alike | None:
    """An entry of any form; ``None`` with a fault noted for one that is wrong."""
    if wrong := _fields_fault(name, value):
        faults.add("st.fields", f"tensor {quoted(name)}{wrong}", tensor=name)
        return None
    dtype = BY_SAFETENSORS.get(value["dtype"])
    if dtype is None:
        found = value["dtype"]
        message = f"tensor {quoted(name)} has dtype {quoted(found)}"
        faults.add("st.dtype", message, tensor=name, found=found, allowed=sorted(BY_SAFETENSORS))
        return None
    return Alike(dtype, tuple(value["shape"]), *value["data_offsets"])


def _header_length(path: Path, source: ByteSource) -> int:
    """The header's length N in bytes: 2 to 100,000,000 and within the file."""
    start = source.read_at(0, LENGTH_BYTES)
    pointer = lfs_pointer(source.read_at(0, 1024)) if start == b"version " else None
    if pointer:
        raise InputError("st.lfs-pointer", pointer, path=path, hint="run `git lfs pull`")
    if len(start) < LENGTH_BYTES:
        there = counted(len(start), "byte")
        reason = f"the file has {there}; a safetensors file starts with {LENGTH_BYTES} of header length"
        reason = reason if start else "the file is empty"
        raise InputError("st.header-length", reason, path=path, offset=0, found=len(start), hint=PARTIAL)
    length = int.from_bytes(start, "little")
    if length > MAX_HEADER:
        _refuse_foreign(path, start, length)
    if length < len("{}"):
        message = f"header declares {counted(length, 'byte')}, too few for a JSON object"
        raise InputError("st.header-length", message, path=path, offset=0, found=length)
    if source.size is not None and length > source.size - LENGTH_BYTES:
        raise _too_long(path, length, source.size)
    return length


def _refuse_foreign(path: Path, start: bytes, length: int) -> NoReturn:
    """Name the file type that a header length beyond the limit really is, where that can be seen."""
    # A zip (torch.save since 1.6) or a bare pickle of protocol 2 to 5.
    if start.startswith(b"PK\3\4") or (start[0] == 0x80 and 2 <= start[1] <= 5):
        raise pickle_refusal(path, "the file is a pickle checkpoint, and no safetensors file")
    hint = next((words for magic, words in _FOREIGN if start.startswith(magic)), "it is not a safetensors file")
    message = f"header declares {length:,} bytes; safetensors allows {MAX_HEADER:,}"
    raise InputError("st.header-length", message, path=path, offset=0, found=length, allowed=MAX_HEADER, hint=hint)


def pickle_refusal(path: Path, what: str) -> CkconvError:
    """The refusal of a pickle where none is read."""
    hint = "a pickle of a model is read, without executing it, out of a file whose name ends in .bin, .pt or .pth"
    return UnsupportedError("hf.pickle", what, path=path, hint=hint)


def _metadata(path: Path, value: object) -> dict[str, str]:
    # mx.save_safetensors without metadata writes null, and the reference reads that as none.
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError("st.metadata", f"{METADATA} is {kind(value)}; an object of strings is required", path=path)
    faults = Faults(path)
    for key, item in value.items():
        if not isinstance(item, str):
            faults.add("st.metadata", f"metadata {quoted(key)} is {kind(item)}; strings only")
    faults.check()
    return value


def _fields_fault(name: str, value: Any) -> str | None:
    """What is wrong with a tensor's fields, to follow its name in a sentence."""
    if len(name.encode()) > MAX_NAME:
        return f" has a name of {len(name.encode()):,} bytes; {MAX_NAME:,} are allowed"
    if not isinstance(value, dict):
        return f" is {kind(value)}; an object is required"
    if value.keys() != set(FIELDS):
        missing = [f"{field} is missing" for field in FIELDS if field not in value]
        unknown = [f"{quoted(field)} is not a field of safetensors" for field in value if field not in FIELDS]
        return f": {', '.join((missing + unknown)[:4])}"
    dtype, shape, offsets = (value[field] for field in FIELDS)
    if not isinstance(dtype, str):
        return f": dtype must be a string, got {shown(dtype)}"
    if not isinstance(shape, list):
        return f": shape must be a list, got {shown(shape)}"
    if not isinstance(offsets, list) or len(offsets) != 2:
        got = f"{len(offsets):,} values" if isinstance(offsets, list) else shown(offsets)
        return f": data_offsets must be a list of 2 whole numbers, got {got}"
    if len(shape) > MAX_DIMS:
        return f": shape has {len(shape):,} dimensions; {MAX_DIMS} are allowed"
    for field, numbers in (("shape", shape), ("data_offsets", offsets)):
        for number in numbers:
            if type(number) is not int or number < 0:
                return f": {field} must be whole numbers >= 0, got {shown(number)}"
            if number >= TOO_LARGE:
                return f": {field} holds {shown(number)}, larger than any file"
    return None
