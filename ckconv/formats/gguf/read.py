"""A GGUF or split set: header parsed once, all records checked."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from struct import Struct, error, unpack
from typing import Any

from ckconv.core.layouts import BY_GGML, F32, RETIRED_GGML, DType, ik_type, of_ggml
from ckconv.core.lazy import NamedTuple
from ckconv.core.metadata import U32, U64, VALUE_TYPES_BY_NAME
from ckconv.core.tensors import MAX_BYTES, Form, MetadataKind, StoredTensor, TensorIndex, chained, stored_tensors
from ckconv.errors import Faults, InputError, counted, is_text, quoted
from ckconv.families.towers import diffuses
from ckconv.formats.gguf.values import (
    ALIGNMENT_KEY,
    COUNTS,
    COUNTS_OFFSET,
    DEFAULT_ALIGNMENT,
    LENGTH,
    MAGIC,
    MAX_ALIGNMENT,
    MAX_DIMS,
    MAX_KEY_BYTES,
    MAX_KEYS,
    MAX_NAME_BYTES,
    MAX_SHARDS,
    MAX_TENSORS,
    MAX_TRAILING_ZEROS,
    SPLIT_COUNT,
    SPLIT_NO,
    SPLIT_TENSORS,
    TENSOR_TAIL,
    TRUNCATED_CODE,
    VERSIONS,
    ArrayRef,
    MetaValue,
    ShardName,
    align_up,
    parse_shard_name,
    read_string,
    read_value,
)
from ckconv.io.files import TRUNCATED, ByteSource, Cursor, lfs_pointer, open_source, readable

# The tensor records of a GGUF header: name, shape, type and place of each tensor, checked one by one and together.

# What is no part of a name: C0 and C1 controls, line separators, and marks that reorder or hide text.
_CONTROL = "[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff]"

#: Forms that are cached: a model has a few dozen.
_MAX_FORMS = 4096


class Records:
    """The records of a header, in file order, as columns.

    A header may list a million tensors.

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
        """Add a tensor."""
        self.names.append(name)
        self.forms.append(form)
        self.offsets.append(offset)
        self.at.append(at)

    def stored(self, path: Path, data_offset: int) -> Sequence[StoredTensor]:
        """The tensors, once it is known where the data section starts."""
        return stored_tensors(path, self.names, self.forms, self.offsets, data_offset)


def checked_name(faults: Faults, raw: bytes, what: str, offset: int) -> str:
    """Decode a key or tensor name, or note a fault (``gguf.name``).

    An empty name, one that is not UTF-8 and one that is not printable are faults.
    """
    name = raw.decode("utf-8", "surrogateescape")
    fault = ""
    if not name:
        fault = f"{what} is empty"
    elif not (name.isascii() and name.isprintable()) and re.search(_CONTROL, name):
        fault = f"{what} holds control characters: {quoted(name)}"
    elif not name.isascii() and not is_text(name):
        fault = f"{what} is not UTF-8: {quoted(name)}"
    if fault:
        faults.add("gguf.name", fault, offset=offset, found=name)
    return name


class _Fault(NamedTuple):
    """Fault of one record; ``sentence`` follows the tensor's name."""

    code: str
    sentence: str
    found: object
    allowed: object
    hint: str | None = None


def read_records(cursor: Cursor, count: int, length: Struct, most: Callable[[], int]) -> Records:
    """Read ``count`` records.

    A fault of one tensor does not stop the search for the same fault in others.

    Args:
        most: axes that a tensor may have, asked for where one has more than ggml's.

    Raises:
        InputError: ``gguf.string``, ``gguf.name``, ``gguf.duplicate-tensor``, ``gguf.dims``, ``gguf.type``,
            ``gguf.block``, ``gguf.size``, ``gguf.truncated``.
    """
    faults = Faults(cursor.path)
    reader = _Reader(cursor, length, faults, most)
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
    def __init__(self, cursor: Cursor, length: Struct, faults: Faults, most: Callable[[], int]) -> None:
        self.records = Records()
        self._cursor, self._length, self._faults, self._most = cursor, length, faults, most
        self._dimensions = [Struct(f"<{n}{length.format[-1]}") for n in range(MAX_DIMS + 2)]
        #: What stands between name and offset -> its meaning.
        self._forms: dict[bytes, Form] = {}

    def read_alike(self) -> bool:
        """Read a record with a known form and plain name, else ``False``."""
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
        """Read any record; false where the next one cannot be found."""
        cursor, faults = self._cursor, self._faults
        at = cursor.offset
        what = f"tensor name #{number}"
        name = checked_name(faults, read_string(cursor, self._length, MAX_NAME_BYTES, what), what, at)
        what = f"tensor record #{number}"
        key = cursor.need(U32.size, what)
        n_dims = U32.unpack(key)[0]
        if n_dims > MAX_DIMS and n_dims > (most := self._most()):
            message = f"tensor {quoted(name)} has {n_dims} dimensions; GGUF allows {most}"
            faults.add("gguf.dims", message, tensor=name, offset=at, found=n_dims, allowed=most)
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
    """Fault of a shape (outermost first), as the end of a sentence."""
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
    """Check that each tensor starts at the padded end of the previous one."""
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
    """Check that a file holds all tensors; return the last end in bytes."""
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


# The header of one GGUF file: parsed once, proved sound, and trusted from then on.

#: First bytes of what people take for a GGUF -> what it is.
_FOREIGN = (
    (b"<", "looks like a web page saved by the downloader"),
    (b"{", "looks like JSON text, perhaps an error message saved by the downloader"),
    (b"PK\3\4", "looks like a zip archive, as PyTorch checkpoints are"),
    (b"BUMPWGT", "looks like a bump file"),
    # The u32 magics "ggml", "ggmf", "ggjt" and "ggla", little-endian.
    *((magic, "looks like a GGML file from before GGUF") for magic in (b"lmgg", b"fmgg", b"tjgg", b"algg")),
)


class GgufShard(NamedTuple):
    """One GGUF file.

    Attributes:
        path: the file.
        version: 1, 2 or 3.
        alignment: of the data section and of every tensor in it, in bytes.
        metadata: key -> value, in file order.
        tensors: in file order; absolute offsets in bytes, shapes outermost first.
        header_bytes: bytes of everything before the padding that precedes the data section.
        data_offset: where the data section starts, in bytes.
        size: of the file, in bytes; ``None`` for a pipe.
        source: where its bytes are; a file is opened again for each use.
    """

    path: Path
    version: int
    alignment: int
    metadata: Mapping[str, MetaValue]
    tensors: Sequence[StoredTensor]
    header_bytes: int
    data_offset: int
    size: int | None
    source: ByteSource

    def astray(self, message: str, **facts: Any) -> InputError:
        """Error of a file that is no shard of its set."""
        return InputError("gguf.split", message, path=self.path, **facts)


def read_header(source: ByteSource) -> GgufShard:
    """Read and check the header of one file.

    Of a pipe, nothing is checked that needs its length.

    Raises:
        InputError: any ``gguf.*`` code but ``gguf.split``; all faults of the first kind found, up to ten.
    """
    size = source.size
    cursor = Cursor(source, TRUNCATED_CODE)
    _check_magic(cursor)
    version = _read_version(cursor)
    tensor_count, pair_count = _read_counts(cursor, version)
    metadata, alignment = _read_metadata(cursor, pair_count, LENGTH[version])
    records = read_records(cursor, tensor_count, LENGTH[version], partial(_most_axes, metadata))
    header_bytes = cursor.offset
    data_offset = align_up(header_bytes, alignment)
    check_offsets(source.path, records, alignment)
    end = check_extents(source.path, records, data_offset, size)
    if size is not None:
        _check_trailing(source, max(end, header_bytes))
    tensors = records.stored(source.path, data_offset)
    return GgufShard(source.path, version, alignment, metadata, tensors, header_bytes, data_offset, size, source)


def _most_axes(metadata: Mapping[str, MetaValue]) -> int:
    """Axes that a tensor may have.

    ggml's, and one more of models of videos (``SD_MAX_DIMS`` of stable-diffusion.cpp).
    """
    named = metadata.get("general.architecture")
    return MAX_DIMS + (named is not None and diffuses(str(named.value)))


def _check_magic(cursor: Cursor) -> None:
    start = cursor.source.read_at(0, 1024)
    if start.startswith(MAGIC):
        return
    if not start:
        raise cursor.fault("gguf.empty", "the file is empty", offset=None, found=0)
    if pointer := lfs_pointer(start):
        raise cursor.fault("gguf.lfs-pointer", pointer, offset=None, hint="run `git lfs pull`")
    hint = next((words for magic, words in _FOREIGN if start.startswith(magic)), None)
    if hint is None and start[8:9] == b"{":
        hint = "looks like a safetensors file"
    found = _printable(start[: len(MAGIC)])
    message = f"starts with `{found}`, not `{MAGIC.decode()}`"
    raise cursor.fault("gguf.magic", message, offset=0, found=found, allowed=MAGIC.decode(), hint=hint)


def _read_version(cursor: Cursor) -> int:
    cursor.at = len(MAGIC)
    version: int = U32.unpack(cursor.need(U32.size, "the version"))[0]
    if version in VERSIONS:
        return version
    facts = {"offset": len(MAGIC), "found": version, "allowed": VERSIONS}
    # A number whose low half is zero is a small one with its bytes swapped; gguf.cpp decides it the same way.
    if version and version & 0xFFFF == 0:
        hint = "convert its byte order first (`gguf-convert-endian FILE little`, of the gguf package)"
        raise cursor.fault("gguf.endian", f"big-endian GGUF (version reads {version})", **facts, hint=hint)
    raise cursor.fault("gguf.version", f"GGUF version {version}; ckconv reads 1, 2 and 3", **facts)


def _read_counts(cursor: Cursor, version: int) -> tuple[int, int]:
    """Read the numbers of tensors and metadata pairs.

    Together they fit into what is left of the input, as far as its end is known.
    """
    layout = COUNTS[version]
    tensors, pairs = layout.unpack(cursor.need(layout.size, "the tensor and metadata counts"))
    left, head = cursor.left, LENGTH[version].size + U32.size  # an empty name, and its type or no dimensions
    for position, (count, noun, cap, each) in enumerate(
        (
            (tensors, "tensors", MAX_TENSORS, head + TENSOR_TAIL.size),
            (pairs, "metadata keys", MAX_KEYS, head + 1),
        )
    ):
        too_long = left is not None and count * each > left
        if not too_long and count <= cap:
            continue
        limit = f"but {left:,} bytes remain" if too_long else f"at most {cap:,} are allowed"
        raise cursor.fault(
            "gguf.count",
            f"header declares {count} {noun}{' ' if too_long else '; '}{limit}",
            offset=COUNTS_OFFSET + position * LENGTH[version].size,
            found=count,
            allowed=left // each if too_long and left is not None else cap,
            hint=TRUNCATED if count <= cap else None,
        )
    return tensors, pairs


def _read_metadata(cursor: Cursor, count: int, length: Struct) -> tuple[dict[str, MetaValue], int]:
    faults = Faults(cursor.path)
    metadata: dict[str, MetaValue] = {}
    seen: dict[str, int] = {}
    try:
        for number in range(1, count + 1):
            at = cursor.offset
            what = f"key #{number}"
            key = checked_name(faults, read_string(cursor, length, MAX_KEY_BYTES, f"metadata {what}"), what, at)
            if key in seen:
                faults.add(
                    "gguf.duplicate-key",
                    f"{quoted(key)} appears twice, at {seen[key]} and {at}",
                    offset=at,
                    found=key,
                )
            seen.setdefault(key, at)
            metadata.setdefault(key, read_value(cursor, key, length))
    except InputError:
        # An earlier fault of a name is the likelier cause of what cannot be read now.
        faults.check()
        raise
    faults.check()
    return metadata, _alignment(cursor.path, metadata.get(ALIGNMENT_KEY), seen.get(ALIGNMENT_KEY))


def _alignment(path: Path, value: MetaValue | None, offset: int | None) -> int:
    if value is None:
        return DEFAULT_ALIGNMENT
    found = value.value
    rule = f"it must be a power of two, at most {MAX_ALIGNMENT:,}"
    # gguf.cpp takes no other type either.
    if value.type != "u32" or not isinstance(found, int):
        message = f"{ALIGNMENT_KEY} has type {value.type}; it must be u32"
        raise InputError("gguf.alignment", message, path=path, offset=offset, found=value.type, allowed="u32")
    if not 1 <= found <= MAX_ALIGNMENT or found & (found - 1):
        message = f"{ALIGNMENT_KEY} is {found}; {rule}"
        raise InputError("gguf.alignment", message, path=path, offset=offset, found=found, allowed=MAX_ALIGNMENT)
    return found


def _check_trailing(source: ByteSource, end: int) -> None:
    """Check that only zeros follow the tensors; some writers pad a page."""
    size = source.size or 0
    zeros = source.read_at(end, min(size - end, MAX_TRAILING_ZEROS))
    start = end + len(zeros) - len(zeros.lstrip(b"\0"))
    if start == size:
        return
    shown = _printable(source.read_at(start, 4))
    raise InputError(
        "gguf.trailing",
        f"{counted(size - start, 'byte')} after the last tensor (start `{shown}`)",
        path=source.path,
        offset=start,
        found=size,
        allowed=start,
    )


def _printable(data: bytes) -> str:
    """Bytes as ASCII, the others as hexadecimal escapes."""
    return repr(data)[2:-1]


# A GGUF model: one file, or a split set opened by any of its shards. Headers, and vectors that somebody asks for.

#: Bytes of a vector of hyper-parameters; none has as many.
_LONGEST_VECTOR = 1 << 20

__all__ = ["ArrayRef", "GgufFile", "GgufShard", "MetaValue", "read_gguf"]


class GgufFile(NamedTuple):
    """Headers of a GGUF model.

    Attributes:
        path: what the user named.
        shards: every file, in order; one where the model is not split, or comes from a pipe.
    """

    path: Path
    shards: tuple[GgufShard, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file, in order."""
        return tuple(shard.path for shard in self.shards)

    @property
    def version(self) -> int:
        """The first file's version."""
        return self.shards[0].version

    @property
    def alignment(self) -> int:
        """The first file's alignment, in bytes."""
        return self.shards[0].alignment

    @property
    def data_offset(self) -> int:
        """Where the data section of the first file starts, in bytes."""
        return self.shards[0].data_offset

    @property
    def metadata(self) -> Mapping[str, MetaValue]:
        """Key/value pairs, in order, of the first file, which has the model's."""
        return self.shards[0].metadata

    def value(self, key: str) -> object:
        """The value under a key, ``None`` where there is none."""
        found = self.shards[0].metadata.get(key)
        return found.value if found else None

    @property
    def tensors(self) -> Sequence[StoredTensor]:
        """Tensors in order: absolute byte offsets, shapes outermost first."""
        return chained([shard.tensors for shard in self.shards])

    def indexed(self, path: Path, **found: Any) -> TensorIndex:
        """The index of these headers, with what a caller found in them."""
        return TensorIndex(
            "gguf",
            self.version,
            path,
            self.files,
            stored=self.tensors,
            metadata_kind=MetadataKind.TYPED,
            metadata=self.metadata,
            **found,
        )

    def vector(self, name: str) -> list[float] | None:
        """The numbers of a float32 vector, else ``None``.

        ``None`` where there is none, or in a pipe, which has passed.

        Raises:
            OutputError: ``input.changed``, the file is not the one that was read before.
        """
        for shard in self.shards:
            for tensor in shard.tensors:
                if tensor.name == name and shard.size is not None and tensor.dtype is F32 and len(tensor.shape) == 1:
                    data = shard.source.read_whole(tensor.extent.offset, min(tensor.extent.nbytes, _LONGEST_VECTOR))
                    return list(unpack(f"<{len(data) // F32.size}f", data))
        return None


def read_gguf(path: Path, *, source: ByteSource | None = None) -> GgufFile:
    """Read the headers of a model and check them.

    Args:
        path: the file, or any shard of a split set; the others are looked for beside it.
        source: bytes to read instead, for a pipe: other shards are not looked for, and what needs the input's
            length is checked only where the source knows it.

    Raises:
        InputError: ``gguf.*``, the file is malformed or its set is not complete; ``input.*``, it cannot be read.
    """
    if source is not None:
        shard = read_header(source)
        _split_count(shard)  # of a pipe the others are not looked for
        return GgufFile(path, (shard,))
    shard = _read_file(path)
    count = _split_count(shard)
    if count == 1:
        return GgufFile(path, (shard,))
    return join_shards(path, _read_set(shard, _shard_name(shard, count)))


def join_shards(path: Path, shards: tuple[GgufShard, ...]) -> GgufFile:
    """The model of all shards of a set, or of its only file.

    Raises:
        InputError: ``gguf.split`` or ``gguf.duplicate-tensor``, they do not belong together.
    """
    if len(shards) > 1:
        _check_set(shards)
    return GgufFile(path, shards)


def _read_file(path: Path) -> GgufShard:
    with open_source(path) as source:
        return read_header(source)


def _split_count(shard: GgufShard) -> int:
    """Number of shards; 1 for a whole file, also if ``split.count`` is 0."""
    if SPLIT_COUNT not in shard.metadata:
        return 1
    count = _split_number(shard, SPLIT_COUNT)
    if count > MAX_SHARDS:
        message = f"{SPLIT_COUNT} is {count}; at most {MAX_SHARDS:,} shards are possible"
        raise shard.astray(message, found=count, allowed=MAX_SHARDS)
    return max(count, 1)


def _split_number(shard: GgufShard, key: str) -> int:
    """A split key, of any integer type: writers disagree (u16, i32)."""
    value = shard.metadata.get(key)
    if value is None:
        raise shard.astray(f"{key} is absent from a shard")
    kind = VALUE_TYPES_BY_NAME.get(value.type)
    if kind is None or not kind.integer or not isinstance(value.value, int):
        raise shard.astray(f"{key} has type {value.type}; it must be a whole number", found=value.type)
    if value.value < 0:
        raise shard.astray(f"{key} is {value.value}", found=value.value, allowed=0)
    return value.value


def _shard_name(shard: GgufShard, count: int) -> ShardName:
    """Parse a shard's name, which locates the rest, and check the header."""
    number = _split_number(shard, SPLIT_NO) + 1
    name = parse_shard_name(shard.path.name)
    hint = "give every shard of the set its original name again"
    expected = ShardName(name.stem if name else "NAME", number, count)
    if name is None:
        lower = parse_shard_name(str(Path(shard.path.name).with_suffix(".gguf")))  # as llama_split_path spells it
        message = f"is shard {number} of {count}, its name does not say so: expected {expected}"
        raise shard.astray(message, hint=f"rename every shard: this one {lower}" if lower else hint)
    if name != expected:
        message = f"is shard {number} of {count}, its name says {name.number} of {name.count}: expected {expected}"
        raise shard.astray(message, found=str(name), allowed=str(expected), hint=hint)
    return name


def _read_set(given: GgufShard, name: ShardName) -> tuple[GgufShard, ...]:
    """All shards in order. Each one's own header must agree with its name."""
    paths = [given.path.with_name(str(ShardName(name.stem, n, name.count))) for n in range(1, name.count + 1)]
    with readable(given.path.parent):
        there = {entry.name for entry in given.path.parent.iterdir()}
    faults = Faults(given.path)
    for number, path in enumerate(paths, 1):
        if path.name not in there:
            message = f"shard {number} of {name.count} is missing: expected {path.name}"
            faults.add("gguf.split", message, found=None, allowed=path.name, hint="fetch all shards into one directory")
    faults.check()
    return tuple(given if number == name.number else _shard(path) for number, path in enumerate(paths, 1))


def _shard(path: Path) -> GgufShard:
    shard = _read_file(path)
    _shard_name(shard, _split_count(shard))
    return shard


def _check_set(shards: tuple[GgufShard, ...]) -> None:
    """Check that the shards hold all declared tensors, none twice."""
    total = sum(len(shard.tensors) for shard in shards)
    for shard in shards:
        declared = _split_number(shard, SPLIT_TENSORS)
        if declared != total:
            message = f"{SPLIT_TENSORS} is {declared:,}, the {len(shards)} shards hold {total:,} tensors"
            raise shard.astray(message, found=declared, allowed=total)
    faults = Faults(shards[0].path)
    first: dict[str, Path] = {}
    for shard in shards:
        for tensor in shard.tensors:
            other = first.setdefault(tensor.name, shard.path)
            if other is not shard.path:
                message = f"{quoted(tensor.name)} is listed twice, in {other.name} and {shard.path.name}"
                faults.add("gguf.duplicate-tensor", message, tensor=tensor.name, found=tensor.name)
    faults.check()
