"""Safetensors containers in bytes: names of files, headers, their checks."""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from ckconv.core.layouts import BY_SAFETENSORS, DType
from ckconv.core.lazy import NamedTuple, pattern
from ckconv.core.metadata import METADATA
from ckconv.core.tensors import MAX_BYTES, Extent, StoredTensor, made, reordered
from ckconv.errors import CkconvError, Faults, InputError, UnsupportedError, counted, listed, quoted
from ckconv.io.files import ByteSource, Cursor, lfs_pointer, open_source
from ckconv.io.json import Document, kind, parse_object, repeated, shown

# -- Safetensors containers in bytes; file names of checkpoints --------------------------------------------------------

# The safetensors container at byte level, and the file names of a checkpoint directory.
#
# A file is an 8-byte little-endian length N, a JSON object of N bytes, then the tensors' bytes::
#
#     0      u64   N, at most 100,000,000
#     8      {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {"K": "V"}}
#     8 + N  data; data_offsets are relative to here
#
# Source: README.md and ``safetensors/src/tensor.rs`` of safetensors 0.8. The README promises more than its
# parser keeps (a header that begins with ``{``, no duplicate keys); ckconv holds files to the README.

#: Bytes of the length field in front of the header.
LENGTH_BYTES = 8
#: ``MAX_HEADER_SIZE`` of tensor.rs, in bytes.
MAX_HEADER = 100_000_000
#: Bytes that a header's writer aligns the data to, by trailing spaces (``N_LEN`` of tensor.rs).
ALIGNMENT = 8
MAX_TENSORS = 1_000_000
#: Dimensions of a tensor; numpy and torch know no more either.
MAX_DIMS = 64
#: Bytes of a tensor's name in UTF-8.
MAX_NAME = 1024
#: No count, offset or size reaches this one.
TOO_LARGE = MAX_BYTES + 1

#: The fields of a tensor; all are required and no others exist.
FIELDS = ("dtype", "shape", "data_offsets")

SUFFIX = ".safetensors"
#: The configuration of an adapter, beside its tensors.
ADAPTER_CONFIG = "adapter_config.json"
SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
INDEX_SUFFIX = ".index.json"
#: What ``torch.save`` wrote, in older checkpoints: endings of names, and the index of several.
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
PICKLE_INDEX = "pytorch_model.bin.index.json"
#: What a file of torch's says of itself as one of safetensors.
PICKLE_METADATA = {"format": "pt"}
#: Bytes of an index or of a config.json.
MAX_JSON = 64_000_000

_SHARD = r"(?s)(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.(?:safetensors|bin)"


def shard_name(stem: str, number: int, count: int, suffix: str = SUFFIX) -> str:
    """File name of shard ``number`` (from 1) of ``count``."""
    return f"{stem}-{number:05d}-of-{count:05d}{suffix}"


def is_pickle(name: str) -> bool:
    """Whether a file of this name is one of ``torch.save``."""
    return name.lower().endswith(PICKLE_SUFFIXES)


def parse_shard_name(name: str) -> tuple[str, int, int] | None:
    """``(stem, number, count)`` of a shard's name; else ``None``."""
    match = re.fullmatch(_SHARD, name)
    return (match["stem"], int(match["number"]), int(match["count"])) if match else None


def encode_header(tensors: Iterable[tuple[str, str, tuple[int, ...], int]], metadata: Mapping[str, str]) -> bytes:
    """Header bytes with their length, padded to a multiple of 8.

    Args:
        tensors: name, safetensors' name of the type, shape, bytes; one after the other in the file.
        metadata: ``__metadata__``, which stands first and sorted, so that the same model gives the same bytes.
    """
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    made = BytesIO(bytes(LENGTH_BYTES))  # of a million tensors it has 100 MB
    made.seek(LENGTH_BYTES)
    made.write(encode({METADATA: dict(sorted(metadata.items()))} if metadata else {})[:-1].encode())
    at = 0
    for name, dtype, shape, nbytes in tensors:
        entry = {name: dict(zip(FIELDS, (dtype, list(shape), [at, at + nbytes]), strict=True))}
        made.write(b"," if made.tell() > LENGTH_BYTES + 1 else b"")
        made.write(encode(entry)[1:-1].encode())
        at += nbytes
    made.write(b"}")
    made.write(b" " * (-made.tell() % ALIGNMENT))
    length = made.tell() - LENGTH_BYTES
    made.seek(0)
    made.write(length.to_bytes(LENGTH_BYTES, "little"))
    return made.getvalue()


# What mlx-lm calls the files of an adapter. Source: ``mlx_lm/tuner`` of mlx-lm 0.32.

MLX_NAME = "adapters.safetensors"


# What peft calls the files and tensors of an adapter.
#
# Sources: ``peft/utils/save_and_load.py`` and ``peft/tuners/lora`` of peft 0.21.

PEFT_NAME = "adapter_model.safetensors"
PEFT_PICKLE = "adapter_model.bin"

#: What every tensor's name begins with: the base model inside of a PeftModel.
PEFT_PREFIX = "base_model.model."

#: What torch's wrappers put between names of modules (FSDP, activation checkpointing, compile).
WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")


# -- Headers of safetensors files, read entry by entry, and their checks -----------------------------------------------

# The JSON header of a safetensors file, read entry by entry: a header may have 100 MB and a million tensors.
#
# Only a window of it is in memory. An entry as writers make it (:data:`_ALIKE`) is read as it stands; any other one is
# cut out and goes through the strict parser for itself.

HEADER = Document("header", "st.header-json", "st.duplicate-key", MAX_HEADER, entry="tensor")

_WINDOW = 1 << 20
#: Bytes of one tensor's entry: a name may have 1,024, each escaped as 6, and a shape 64 numbers.
_MAX_ENTRY = 64 << 10
#: Bytes of ``__metadata__``: the settings of a training run have some hundred thousand.
_MAX_METADATA = 16 << 20
#: Pairs of type and shape that are cached: a model has a few dozen.
_MAX_FORMS = 4096

_SPACE = b" \t\n\r"
_S = rb"[ \t\n\r]*"
_NUMBER = rb"(?:0|[1-9][0-9]{0,18})"
_ALIKE = (
    rb'S"([^"\\\x00-\x1f]+)"S:S\{S"dtype"S:S"([A-Z0-9_]+)"S,S"shape"S:S\[S((?:N(?:S,SN){0,63})?)S\]'
    rb'S,S"data_offsets"S:S\[S(N)S,S(N)S\]S\}S([,}])'.replace(b"S", _S).replace(b"N", _NUMBER)
)
_KEY = pattern(rb'S"([^"\\\x00-\x1f]*)"S:'.replace(b"S", _S))
_TOKEN = pattern(rb'["\[\]{},]')
_LEVELS = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}


class HeaderEntry(NamedTuple):
    """Tensor with a sound entry; ``begin`` and ``end`` in bytes of data."""

    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int


class Header(Cursor):
    """The header's window, moved forward.

    Attributes:
        names: every key so far, up to ``limit``.
        count: the keys so far.
    """

    def __init__(self, source: ByteSource, length: int, path: Path, limit: int) -> None:
        super().__init__(source, HEADER.code, LENGTH_BYTES, first=min(_WINDOW, length), window=_WINDOW)
        self.names: list[str] = []
        self.count = 0
        self._path, self._limit, self._end = path, limit, LENGTH_BYTES + length
        self._forms: dict[tuple[bytes, bytes], tuple[DType, tuple[int, ...]]] = {}

    def entries(self) -> Iterator[tuple[str, HeaderEntry | Any]]:
        """Keys with values: ``Alike`` for sound fields, else as parsed.

        Raises:
            InputError: ``st.header-json``, ``st.duplicate-key``, ``st.fields`` or ``st.metadata``.
        """
        self.at = 1  # behind the opening brace
        more, alike_at = True, re.compile(_ALIKE).match
        while more:
            found = alike_at(self.buffer, self.at)
            alike = self._alike(found) if found else None
            if found and alike:
                self.at = found.end()
                more = found[6] == b","
                name, value = alike
            else:
                item, more = self._any()
                if item is None:
                    break
                name, value = item
            self.count += 1
            if self.count <= self._limit:
                self.names.append(name)
            yield name, value
        self._check_end()
        self._check_names()

    def _alike(self, found: re.Match[bytes]) -> tuple[str, HeaderEntry] | None:
        raw, dtype, shape, begin, end, _ = found.groups()
        form = self._forms.get((dtype, shape)) or self._form(dtype, shape)
        if form is None or len(raw) > MAX_NAME or raw == METADATA.encode():
            return None
        first, last = int(begin), int(end)
        if max(first, last) >= TOO_LARGE:
            return None
        try:
            return raw.decode(), HeaderEntry(form[0], form[1], first, last)
        except UnicodeDecodeError:
            return None

    def _form(self, dtype: bytes, shape: bytes) -> tuple[DType, tuple[int, ...]] | None:
        kind = BY_SAFETENSORS.get(dtype.decode())
        extents = tuple(map(int, shape.split(b","))) if shape else ()
        if kind is None or max(extents, default=0) >= TOO_LARGE:
            return None
        if len(self._forms) < _MAX_FORMS:
            self._forms[dtype, shape] = kind, extents
        return kind, extents

    def _any(self) -> tuple[tuple[str, Any] | None, bool]:
        """Value at the position, and whether a comma follows.

        No entry at the end of an empty object.
        """
        self.buffer = self.buffer[self.at :]
        self.base, self.at = self.base + self.at, 0
        end = self._find_end()
        text, mark = self.buffer[:end], self.buffer[end : end + 1]
        if not text.strip(_SPACE) and mark:
            if mark == b"}" and not self.count:
                self.at = end + 1
                return None, False
            self._parse(b'{"":0,', text + mark)
        value = self._parse(b"{", text + (b"}" if mark else b""))
        self.at = end + 1
        return next(iter(value.items())), mark == b","

    def _parse(self, opening: bytes, text: bytes) -> dict[str, Any]:
        before = self.base - LENGTH_BYTES - len(opening)
        return parse_object(opening + text, HEADER, self._path, offset=LENGTH_BYTES + before, before=before)

    def _find_end(self) -> int:
        """End of the entry at the window's start, or of the header."""
        key = _KEY.match(self.buffer)
        is_metadata = key is not None and key[1] == METADATA.encode()
        most = _MAX_METADATA if is_metadata else _MAX_ENTRY
        at = depth = 0
        while at <= most:
            found = _TOKEN.search(self.buffer, at)
            if found is None:
                at = len(self.buffer)
                if not self.extend(self._end):
                    return at
                continue
            token = found[0]
            if token == b'"':
                behind = self._behind_string(found.end())
                if behind < 0:
                    return len(self.buffer)
                at = behind
                continue
            if not depth and token in (b",", b"}"):
                return found.start()
            depth += _LEVELS.get(token, 0)
            at = found.end()
        what, code = (METADATA, "st.metadata") if is_metadata else ("the entry of a tensor", "st.fields")
        raise InputError(code, f"{what} has more than {most:,} bytes", path=self._path, offset=self.base, allowed=most)

    def _behind_string(self, at: int) -> int:
        """Position behind a string from ``at`` on; -1 at the header's end."""
        looked = at
        while True:
            quote = self.buffer.find(b'"', looked)
            if quote < 0:
                looked = len(self.buffer)
                # A backslash before what is not there yet counts with it.
                while looked > at and self.buffer[looked - 1] == ord("\\"):
                    looked -= 1
                if not self.extend(self._end):
                    return -1
                continue
            first = quote
            while first > looked and self.buffer[first - 1] == ord("\\"):
                first -= 1
            looked = quote + 1
            if (quote - first) % 2 == 0:
                return looked

    def _check_end(self) -> None:
        """Nothing but space follows the object: writers align the data with it."""
        while True:
            rest = self.buffer[self.at :]
            if rest.strip(_SPACE):
                column = self.base - LENGTH_BYTES + self.at + len(rest) - len(rest.lstrip(_SPACE)) + 1
                message = f"header is not a JSON object: column {column:,}: extra data"
                raise InputError("st.header-json", message, path=self._path, offset=LENGTH_BYTES + column - 1)
            self.base, self.buffer, self.at = self.base + len(self.buffer), b"", 0
            if not self.extend(self._end):
                return

    def _check_names(self) -> None:
        if all(one != other for one, other in pairwise(sorted(self.names))):  # a set takes eight times as much memory
            return
        faults = repeated(Counter(self.names), HEADER)
        raise InputError(
            HEADER.duplicate_code, faults[0], path=self._path, offset=LENGTH_BYTES, details=listed(faults[1:])
        )


# What the tensors of a safetensors header say together: each as large as its shape, no hole, no overlap.

#: The next step for a file that ends too early.
PARTIAL = "the file looks like a partial download; fetch it again and compare its size or sha256"


def check_extents(
    tensors: Sequence[StoredTensor], data_offset: int, source: ByteSource, faults: Faults
) -> Sequence[StoredTensor]:
    """Check sizes and offsets; return the tensors in the order of data.

    A size below 0 ends before it begins.

    Raises:
        InputError: ``st.size`` or ``st.offsets``.
    """
    needs: dict[tuple[DType, tuple[int, ...]], int | None] = {}
    ordered, before = True, -1
    for tensor in tensors:
        _check_size(tensor, needs, faults)
        ordered, before = ordered and before < tensor.extent.offset, tensor.extent.offset
    faults.check()
    if not ordered:
        tensors = reordered(tensors, sorted(range(len(tensors)), key=lambda at: tensors[at].extent[1:]))
    _check_cover(tensors, data_offset, source, faults)
    faults.check()
    return tensors


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


# Reads a safetensors header, as strictly as its specification and stricter than its parsers.
#
# Every rule is proved once, here: fields, types, sizes by checked arithmetic, and that the tensors cover the
# data section without overlap, hole or trailing byte. After that, extents can be trusted.

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


def read_metadata(path: Path) -> Mapping[str, str]:
    """Metadata of a header that was checked before; no tensor is kept.

    Raises:
        InputError: ``st.header-length``, ``st.header-json``, ``st.metadata``, and those of ``open_source``.
    """
    with open_source(path) as source:
        header = Header(source, _header_length(path, source), path, 0)
        return _metadata(path, next((value for name, value in header.entries() if name == METADATA), {}))


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
        entry = value if isinstance(value, HeaderEntry) else _checked(name, value, faults)
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
        begin, new = begins[at], tuple.__new__  # a constructor's own call takes as long as the rest
        return new(StoredTensor, (names[at], *forms[at], new(Extent, (path, data_offset + begin, ends[at] - begin))))

    tensors = check_extents(made(len(names), tensor), data_offset, source, faults)
    return SafetensorsFile(path, strings, tensors, length, data_offset, source.size)


def _too_long(path: Path, length: int, size: int) -> InputError:
    message = f"header declares {length:,} bytes, the file has {size:,}"
    left = size - LENGTH_BYTES
    return InputError("st.header-length", message, path=path, offset=0, found=length, allowed=left, hint=PARTIAL)


def _checked(name: str, value: Any, faults: Faults) -> HeaderEntry | None:
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
    return HeaderEntry(dtype, tuple(value["shape"]), *value["data_offsets"])


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
    """Name the file type that a header length beyond the limit is."""
    # A zip (torch.save since 1.6) or a bare pickle of protocol 2 to 5.
    if start.startswith(b"PK\3\4") or (start[0] == 0x80 and 2 <= start[1] <= 5):
        what = "pickle checkpoint" if start[0] == 0x80 else "zip archive, as torch.save writes them"
        raise pickle_refusal(path, f"the file is a {what}, and no safetensors file")
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
    """Fault of a tensor's fields, to follow its name in a sentence."""
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
