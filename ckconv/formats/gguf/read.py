"""A GGUF model: one file, or a split set opened by any of its shards. Headers, and vectors that somebody asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from struct import unpack
from typing import NamedTuple

from ckconv.core.dtypes import F32
from ckconv.core.metadata import VALUE_TYPES_BY_NAME
from ckconv.core.tensors import StoredTensor, chained
from ckconv.errors import Faults, InputError, quoted
from ckconv.formats.gguf.read_header import GgufShard, read_header
from ckconv.formats.gguf.spec import MAX_SHARDS, SPLIT_COUNT, SPLIT_NO, SPLIT_TENSORS, ShardName, parse_shard_name
from ckconv.formats.gguf.values import ArrayRef, MetaValue
from ckconv.io.bytesource import ByteSource, open_source
from ckconv.io.files import readable

#: Bytes of a vector of hyper-parameters; none has as many.
_LONGEST_VECTOR = 1 << 20

__all__ = ["ArrayRef", "GgufFile", "GgufShard", "MetaValue", "read_gguf"]


class GgufFile(NamedTuple):
    """What the headers of a model say.

    Attributes:
        path: what the user named.
        shards: every file, in order; one where the model is not split.
        split_count: shards that the header declares; 1 where it declares none. Of a pipe only one is in ``shards``.
    """

    path: Path
    shards: tuple[GgufShard, ...]
    split_count: int

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
        """The first file's key/value pairs, in file order: only that one carries the model's."""
        return self.shards[0].metadata

    @property
    def tensors(self) -> Sequence[StoredTensor]:
        """All tensors in file order; absolute offsets in bytes, shapes outermost first."""
        return chained([shard.tensors for shard in self.shards])

    def vector(self, name: str) -> list[float] | None:
        """The numbers of a float32 vector; ``None`` where there is none, or in a pipe, which has passed.

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
        return GgufFile(path, (shard,), _split_count(shard))
    shard = _read_file(path)
    count = _split_count(shard)
    if count == 1:
        return GgufFile(path, (shard,), 1)
    return join_shards(path, _read_set(shard, _shard_name(shard, count)))


def join_shards(path: Path, shards: tuple[GgufShard, ...]) -> GgufFile:
    """The model of all shards of a set, or of its only file.

    Raises:
        InputError: ``gguf.split`` or ``gguf.duplicate-tensor``, they do not belong together.
    """
    if len(shards) > 1:
        _check_set(shards)
    return GgufFile(path, shards, len(shards))


def _read_file(path: Path) -> GgufShard:
    with open_source(path) as source:
        return read_header(source)


def _split_count(shard: GgufShard) -> int:
    """Shards in the set, 1 for a file that is complete. gguf-split leaves ``split.count = 0`` in a merged file."""
    if SPLIT_COUNT not in shard.metadata:
        return 1
    count = _split_number(shard, SPLIT_COUNT)
    if count > MAX_SHARDS:
        message = f"{SPLIT_COUNT} is {count}; at most {MAX_SHARDS:,} shards are possible"
        raise InputError("gguf.split", message, path=shard.path, found=count, allowed=MAX_SHARDS)
    return max(count, 1)


def _split_number(shard: GgufShard, key: str) -> int:
    """A split key. Writers disagree about its type (u16, i32): every integer type will do."""
    value = shard.metadata.get(key)
    if value is None:
        raise InputError("gguf.split", f"{key} is absent from a shard", path=shard.path)
    kind = VALUE_TYPES_BY_NAME.get(value.type)
    if kind is None or not kind.integer or not isinstance(value.value, int):
        message = f"{key} has type {value.type}; it must be a whole number"
        raise InputError("gguf.split", message, path=shard.path, found=value.type)
    if value.value < 0:
        raise InputError("gguf.split", f"{key} is {value.value}", path=shard.path, found=value.value, allowed=0)
    return value.value


def _shard_name(shard: GgufShard, count: int) -> ShardName:
    """The file's name taken apart; it must say what the header says, because the others are found by it."""
    number = _split_number(shard, SPLIT_NO) + 1
    name = parse_shard_name(shard.path.name)
    if name is None:
        raise InputError(
            "gguf.split",
            f"is shard {number} of {count}, its name does not say so: expected {ShardName('NAME', number, count)}",
            path=shard.path,
            hint="give every shard of the set its original name again",
        )
    expected = ShardName(name.stem, number, count)
    if name != expected:
        raise InputError(
            "gguf.split",
            f"is shard {number} of {count}, its name says {name.number} of {name.count}: expected {expected}",
            path=shard.path,
            found=str(name),
            allowed=str(expected),
            hint="give every shard of the set its original name again",
        )
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
    """The shards hold as many tensors as each of them declares for the whole set, and none twice."""
    total = sum(len(shard.tensors) for shard in shards)
    for shard in shards:
        declared = _split_number(shard, SPLIT_TENSORS)
        if declared != total:
            raise InputError(
                "gguf.split",
                f"{SPLIT_TENSORS} is {declared:,}, the {len(shards)} shards hold {total:,} tensors",
                path=shard.path,
                found=declared,
                allowed=total,
            )
    faults = Faults(shards[0].path)
    first: dict[str, Path] = {}
    for shard in shards:
        for tensor in shard.tensors:
            other = first.setdefault(tensor.name, shard.path)
            if other is not shard.path:
                message = f"{quoted(tensor.name)} is listed twice, in {other.name} and {shard.path.name}"
                faults.add("gguf.duplicate-tensor", message, tensor=tensor.name, found=tensor.name)
    faults.check()
