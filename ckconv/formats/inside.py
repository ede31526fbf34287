"""Stand-ins of models that lie in other files (:mod:`ckconv.io.standins`).

=============================================  =========================================================
``.metadata`` and ``*.distcp``                 tensors of torch.distributed, put together as a checkpoint
``*_model_states.pt`` and ``*_optim_states.pt``  tensors of DeepSpeed, put together likewise
a tar archive                                  the files in it
a llamafile                                    its GGUF
``*.npz``                                      the arrays in it, as a checkpoint
a big-endian GGUF, or a split set              the little-endian files
=============================================  =========================================================

What lies beside the tensors of a training run (``config.json``, the tokenizer), or in the directory above, goes along.
Sources: POSIX ``pax`` (ustar headers), by Python's ``tarfile``; ``llamafile/zip.h`` (members of a zip at the end of a
program); NumPy's ``lib/format.py``.
"""

from __future__ import annotations

import ast
import math
import tarfile
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from ckconv.core.layouts import DTYPES, DType, Kind, of_ggml
from ckconv.core.lazy import replace
from ckconv.core.metadata import ARRAY, CONFIG_NAME, STRING, VALUE_TYPES
from ckconv.core.tensors import Extent
from ckconv.errors import InputError, UnsupportedError, quoted
from ckconv.formats.gguf import values
from ckconv.formats.locate import standing
from ckconv.formats.pytorch.distributed import is_deepspeed, is_distributed, read_deepspeed, read_distributed
from ckconv.formats.pytorch.read import Malformed, member_extent, members_of
from ckconv.formats.safetensors.container import PICKLE_METADATA, SINGLE_NAME, encode_header
from ckconv.formats.safetensors.files import SIDE_FILES
from ckconv.io.files import ByteSource, Cursor, FileSource, open_source, opened_regular
from ckconv.io.standins import Part, Pieces, SwappedRun

#: Bytes of an extended header of a tar archive: of a long name, for instance.
_MAX_HEADER = 1 << 20
#: Files of an archive: a model has hundreds at most.
_MEMBERS = 10_000

#: Name, type, shape, and where the values are, one part behind the other.
_Tensor = tuple[str, DType, tuple[int, ...], Sequence[Part]]

#: What accelerate and transformers call the directory of a model in that of a training run.
_FSDP = "pytorch_model_fsdp_*"

#: Files of weights, which go before the state of a training run. Such a run leaves others of the ending .bin:
#: ``training_args.bin`` (transformers), ``scheduler.bin``, ``sampler.bin`` (accelerate).
_WEIGHTS = (
    "*.safetensors", "*.gguf", "pytorch_model*.bin", "model*.bin", "adapter_model*.bin", "consolidated*.bin",
    "ggml*.bin",
)  # fmt: skip


def inside(path: Path, kind: str) -> Path:
    """Stand-in of a model in a file or directory; else the path itself.

    Args:
        kind: ``directory``, or a file's (:mod:`ckconv.formats.detect`).

    Raises:
        InputError: what it is in is malformed; ``input.missing``.
        UnsupportedError: nothing of it is a model.
    """
    if kind == "directory":
        return _in_directory(path)
    source = open_source(path)
    try:
        return _READERS[kind](path, source)
    finally:
        source.close()


def _in_directory(path: Path) -> Path:
    names = {entry.name for entry in path.iterdir()}
    if is_distributed(names):
        return _distributed(path, (path, path.parent))
    if any(fnmatchcase(name, glob) for name in names for glob in _WEIGHTS):
        return path
    if is_deepspeed(names):
        return _deepspeed(path, (path, path.parent))
    if "latest" in names and (tag := _tag(path, names)) and is_deepspeed({each.name for each in tag.iterdir()}):
        return _deepspeed(tag, (tag, path))
    run = sorted(name for name in names if fnmatchcase(name, _FSDP) and (path / name / ".metadata").is_file())
    if run:
        return _distributed(path / run[0], (path / run[0], path))
    if "weights.npz" in names:
        source = open_source(path / "weights.npz")
        try:
            return _checkpoint(path, _arrays(path / "weights.npz", source), _beside((path,)))
        finally:
            source.close()
    return path


def _tag(path: Path, names: Collection[str]) -> Path | None:
    """The directory among ``names`` that a file ``latest`` names."""
    try:
        with opened_regular(path / "latest") as fd, open(fd, "rb", closefd=False) as file:
            name = file.read(256).decode("utf-8", "replace").strip()
    except InputError:  # a directory, a link to one or to nothing, a FIFO
        return None
    return path / name if name in names and (path / name).is_dir() else None


def _deepspeed(path: Path, folders: tuple[Path, ...]) -> Path:
    """A checkpoint of what DeepSpeed saved."""
    found = [(each.name, each.dtype, each.shape, each.runs) for each in read_deepspeed(path)]
    return _checkpoint(path, found, _beside(folders))


def _distributed(path: Path, folders: tuple[Path, ...]) -> Path:
    """A checkpoint of what several processes saved."""
    found = [(each.name, each.dtype, each.whole.shape, [each.whole]) for each in read_distributed(path)]
    return _checkpoint(path, found, _beside(folders))


def _beside(folders: tuple[Path, ...]) -> dict[str, Path]:
    """Name -> place of side files; the nearest directory goes first."""
    near = (folders[0] / CONFIG_NAME).is_file()
    return {
        entry.name: entry
        for place in (folders[:1] if near else folders[::-1])
        for entry in place.iterdir()
        if any(fnmatchcase(entry.name, glob) for glob in SIDE_FILES) and entry.is_file() and entry.suffix != ".py"
    }


def _checkpoint(url: Path, tensors: Sequence[_Tensor], beside: Mapping[str, Path]) -> Path:
    """Directory with a file of these tensors, wide types first."""
    tensors = sorted(tensors, key=lambda one: (-one[1].size, one[0]))
    sizes = [
        (name, dtype.safetensors or "", shape, dtype.nbytes(_elements(shape))) for name, dtype, shape, _ in tensors
    ]
    header = encode_header(sizes, PICKLE_METADATA)
    files = {SINGLE_NAME: Pieces([header, *(part for *_, parts in tensors for part in parts)])}
    files |= {name: Pieces([Extent(place, 0, place.stat().st_size)]) for name, place in beside.items()}
    return standing(str(url), url.name or "model", files)


def _elements(shape: tuple[int, ...]) -> int:
    elements = 1
    for length in shape:
        elements *= length
    return elements


class _Headers:
    """File that is read in short pieces: a tar header may claim any size."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw, self.seek, self.tell = raw, raw.seek, raw.tell

    def read(self, nbytes: int) -> bytes:
        if nbytes > _MAX_HEADER:
            raise tarfile.ReadError(f"a header of {nbytes:,} bytes; {_MAX_HEADER:,} are allowed")
        return self._raw.read(nbytes)


def _tar(path: Path, source: FileSource) -> Path:
    """The files of an archive, without the directory that all of them are in."""
    extents: dict[str, Extent] = {}
    with opened_regular(path) as fd, open(fd, "rb", closefd=False) as raw:
        try:
            with tarfile.open(fileobj=_Headers(raw), mode="r:") as archive:  # type: ignore[call-overload]
                for number, member in enumerate(archive):
                    if number >= _MEMBERS:
                        message = f"holds more than {_MEMBERS:,} files, which is not a model"
                        raise InputError("tar.members", message, path=path, allowed=_MEMBERS)
                    if not member.isfile() or member.issparse():
                        if member.isdir():
                            continue
                        message = f"holds {quoted(member.name)}, which is a link or no regular file"
                        raise InputError("tar.members", message, path=path, hint="pack the files that links lead to")
                    name = _member_name(member.name, path)
                    if name in extents:
                        raise InputError("tar.members", f"holds {quoted(name)} twice", path=path)
                    if not 0 <= member.size <= source.size - member.offset_data:
                        message = f"ends within {quoted(name)}; the download looks truncated"
                        raise InputError("tar.members", message, path=path)
                    extents[name] = Extent(path, member.offset_data, member.size)
        except (tarfile.TarError, ValueError) as error:  # ValueError: a size that no file has
            raise InputError("tar.members", f"is no sound tar archive ({error})", path=path) from None
    if not extents:
        raise InputError("tar.members", "holds no file", path=path)
    directory = standing(str(path), path.stem or "model", {name: Pieces([part]) for name, part in extents.items()})
    tops = {PurePosixPath(name).parts[0] for name in extents}
    return directory / tops.pop() if len(tops) == 1 else directory


def _member_name(name: str, path: Path) -> str:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if not parts or ".." in parts or parts[0] == "/" or any(not part.isprintable() for part in parts):
        raise InputError("tar.members", f"holds {quoted(name)}, which is outside of it", path=path)
    return "/".join(part for part in parts if part != ".")


def _llamafile(path: Path, source: FileSource) -> Path:
    """The GGUF in a program of llamafile."""
    try:
        members = {name: member for name, member in members_of(source).items() if name.endswith(".gguf")}
        extents = {PurePosixPath(name).name: member_extent(source, member) for name, member in members.items()}
    except (Malformed, EOFError) as error:
        raise InputError("llamafile.zip", f"is a llamafile that {str(error) or 'ends early'}", path=path) from None
    text = {name: extent for name, extent in extents.items() if "mmproj" not in name}
    if len(text) != 1:
        some = ", ".join(map(quoted, [*text][:4])) or "none"
        hint = "llamafile runs it with -m MODEL.gguf: convert that" if not text else "unzip FILE NAME takes one out"
        raise UnsupportedError("llamafile.model", f"holds {len(text)} models: {some}", path=path, hint=hint)
    name = next(iter(text))
    return standing(str(path), path.stem, {each: Pieces([part]) for each, part in extents.items()}) / name


def _npz(path: Path, source: FileSource) -> Path:
    return _checkpoint(path, _arrays(path, source), {}) / SINGLE_NAME


#: What NumPy calls types.
_TYPES = {
    "f4": "F32", "f8": "F64", "f2": "F16", "i8": "I64", "i4": "I32", "i2": "I16", "i1": "I8", "u1": "U8", "u2": "U16",
    "u4": "U32", "u8": "U64", "b1": "BOOL",
}  # fmt: skip


def _arrays(path: Path, source: FileSource) -> list[_Tensor]:
    """The arrays of a file of NumPy or MLX."""
    found: list[_Tensor] = []
    try:
        for name, member in members_of(source).items():
            if name.endswith(".npy"):
                extent = member_extent(source, member)
                dtype, shape, skip = _array(source.read_at(extent.offset, min(extent.nbytes, 1 << 16)))
                if skip + dtype.nbytes(_elements(shape)) != extent.nbytes:
                    raise Malformed(
                        f"has {quoted(name)} of {extent.nbytes:,} bytes, which is not {dtype} {list(shape)}"
                    )
                own = Extent(path, extent.offset + skip, extent.nbytes - skip)
                found.append((name.removesuffix(".npy"), dtype, shape, [own]))
    except (Malformed, EOFError) as error:
        raise InputError("npz.array", str(error) or "ends early", path=path) from None
    if not found:
        raise UnsupportedError("npz.array", "holds no array", path=path)
    return found


def _array(head: bytes) -> tuple[DType, tuple[int, ...], int]:
    """Type, shape and the bytes of the header of a ``.npy``."""
    wide = 2 if head[6:7] == b"\1" else 4
    skip = 8 + wide + int.from_bytes(head[8 : 8 + wide], "little")
    try:
        if not head.startswith(b"\x93NUMPY") or skip > len(head):
            raise ValueError
        header: Any = ast.literal_eval(head[8 + wide : skip].decode("latin-1").strip())
        order, kind, shape = header["fortran_order"], header["descr"], header["shape"]
        if not isinstance(order, bool) or kind[0] not in "<|" or not isinstance(shape, tuple):
            raise ValueError
        dtype = DTYPES[_TYPES[kind[1:]]]
        if any(type(length) is not int or not 0 <= length < 1 << 40 for length in shape):
            raise ValueError
        if order and sum(length != 1 for length in shape) > 1:  # of one axis, as MLX says, both orders are the same
            raise ValueError
    except (ValueError, KeyError, TypeError, SyntaxError, IndexError, MemoryError, RecursionError):
        raise Malformed("has an array that is no plain one of numbers, little-endian and row by row") from None
    return dtype, shape, skip


def _big_endian(path: Path, source: FileSource) -> Path:
    shard, names = values.parse_shard_name(path.name), [path.name]
    if shard:
        names = [str(replace(shard, number=number)) for number in range(1, shard.count + 1)]
        names = [name for name in names if (path.parent / name).is_file()]
    files = {}
    for name in names:
        opened = open_source(path.parent / name)
        try:
            files[name] = Pieces(little_endian(opened))
        finally:
            opened.close()
    return standing(str(path.parent), path.parent.name or "model", files) / path.name


#: Kind of a file -> what finds the model in it.
_READERS: Mapping[str, Callable[[Path, FileSource], Path]] = {
    "tar": _tar, "llamafile": _llamafile, "npz": _npz, "big-endian": _big_endian,
}  # fmt: skip


# -- Big-endian GGUF files as the little-endian ones of the same sizes -------------------------------------------------
# Every number of the header is turned around, and in the data the numbers of floats and the scales of blocks. Counts
# and lengths that are malformed end that: what follows is left as it is, and the reader of headers finds the fault.
# Sources: ``gguf/scripts/gguf_convert_endian.py`` of gguf 0.19, and the structs of halves and bytes of
# ``ggml-common.h``; types that are read from bytes as wider numbers there have no order that is sure.

#: Type of blocks -> where in a block a half begins.
_HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "IQ4_NL": (0,), "TQ2_0": (64,), "MXFP4": (), "NVFP4": (),
}  # fmt: skip


def little_endian(source: ByteSource) -> list[Part]:
    """The parts of the file that has the same numbers.

    Raises:
        UnsupportedError: ``gguf.endian``, a type whose bytes have no sure order.
    """
    assert source.size is not None
    if source.read_at(4, 2) != b"\0\0":  # another shard may be of another order
        return [Extent(source.path, 0, source.size)]
    header, tensors = _Header(source), list[tuple[str, DType, int, int]]()
    try:
        data, tensors = header.turned()
    except _Malformed:
        data = source.size
    made: list[Part] = [bytes(header.made)]
    at = len(header.made)
    for name, dtype, offset, nbytes in tensors:
        if data + offset < at or data + offset + nbytes > source.size:
            break
        made += [Extent(source.path, at, data + offset - at), _turned(source.path, name, dtype, data + offset, nbytes)]
        at = data + offset + nbytes
    return [*made, Extent(source.path, at, source.size - at)]


def _turned(path: Path, name: str, dtype: DType, offset: int, nbytes: int) -> SwappedRun:
    halves = _HALVES.get(dtype.name)
    if dtype.kind is Kind.BLOCK and halves is None:
        message = f"is big-endian, and {dtype} blocks, as of {quoted(name)}, have no order of bytes that is sure"
        hint = "convert the checkpoint that it was made from"
        raise UnsupportedError("gguf.endian", message, path=path, tensor=name, hint=hint)
    runs = ((0, dtype.size),) if halves is None else tuple((at, 2) for at in halves)
    return SwappedRun(Extent(path, offset, nbytes), dtype.size, runs)


class _Malformed(Exception):
    """Number that no sound header has, or the end of the file."""


class _Header:
    """Walks along a header, and makes the little-endian one."""

    def __init__(self, source: ByteSource) -> None:
        self._cursor = Cursor(source, values.TRUNCATED_CODE)
        self.made = bytearray()

    def turned(self) -> tuple[int, list[tuple[str, DType, int, int]]]:
        """Offset of the data; name, type, offset and bytes of every tensor."""
        self._bytes(len(values.MAGIC))
        version = self._number(4)
        if version not in values.VERSIONS:
            raise _Malformed
        length = values.LENGTH[version].size
        count, pairs = self._number(length, values.MAX_TENSORS), self._number(length, values.MAX_KEYS)
        alignment = values.DEFAULT_ALIGNMENT
        for _ in range(pairs):
            key = self._string(length)
            value = self._value(self._number(4), length)
            if key == values.ALIGNMENT_KEY.encode() and value:
                alignment = value
        if not 1 <= alignment <= values.MAX_ALIGNMENT or alignment & (alignment - 1):
            raise _Malformed
        tensors = list(self._tensors(count, length))
        return values.align_up(len(self.made), alignment), tensors

    def _tensors(self, count: int, length: int) -> Iterator[tuple[str, DType, int, int]]:
        for _ in range(count):
            name = self._string(length).decode("utf-8", "replace")
            shape = [self._number(length, 1 << 62) for _ in range(self._number(4, values.MAX_DIMS))]
            dtype, offset = of_ggml(self._number(4), shape[0] if shape else 0), self._number(8, 1 << 62)
            if dtype is None:
                raise _Malformed
            yield name, dtype, offset, dtype.nbytes(math.prod(shape))

    def _bytes(self, nbytes: int) -> bytes:
        if not self._cursor.has(nbytes):
            raise _Malformed
        data = self._cursor.take(nbytes)
        self.made += data
        return data

    def _number(self, nbytes: int, most: int = 1 << 64) -> int:
        if not self._cursor.has(nbytes):
            raise _Malformed
        data = self._cursor.take(nbytes)
        self.made += data[::-1]
        number = int.from_bytes(data, "big")
        if number > most:
            raise _Malformed
        return number

    def _string(self, length: int) -> bytes:
        return self._bytes(self._number(length, values.MAX_STRING_BYTES))

    def _value(self, type_id: int, length: int) -> int:
        """A value of 32 bits; zero for any other."""
        if type_id == STRING.id:
            self._string(length)
            return 0
        if type_id != ARRAY.id:
            size = self._size(type_id)
            number = self._number(size)
            return number if size == 4 else 0
        of, count = self._number(4), self._number(length, values.MAX_ARRAY_ELEMENTS)
        size = length if of == STRING.id else self._size(of)
        if not self._cursor.reaches(self._cursor.offset + count * size):
            raise _Malformed
        if of == STRING.id:
            for _ in range(count):
                self._string(length)
            return 0
        while count:  # a piece at a time: what is declared may not be there
            some = min(count, 1 << 16)
            numbers = array({1: "B", 2: "H", 4: "I", 8: "Q"}[size], self._bytes(some * size))
            numbers.byteswap()
            self.made[-some * size :] = numbers.tobytes()
            count -= some
        return 0

    @staticmethod
    def _size(type_id: int) -> int:
        kind = VALUE_TYPES.get(type_id)
        if kind is None or not kind.size:
            raise _Malformed
        return kind.size
