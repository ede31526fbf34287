"""``model.safetensors.index.json``: which shard holds which tensor.

An index is ``{"metadata": {"total_size": BYTES, ...}, "weight_map": {TENSOR: FILE NAME}}``. Loaders take from it which
files there are, and read those whole (``get_checkpoint_shard_files`` of transformers); mlx-lm reads every
``model*.safetensors`` without it. No loader reads ``metadata``: the ``total_size`` of DeepSeek V3 is that of the same
model in 16 bits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ckconv.errors import Faults, InputError, counted, listed, quoted
from ckconv.formats.safetensors.spec import MAX_JSON, SUFFIX, is_pickle
from ckconv.io.json import Document, kind, read_object

if TYPE_CHECKING:
    from ckconv.formats.safetensors.read import SafetensorsFile

_INDEX = Document("index", "index.json", "index.json", MAX_JSON)


class ShardIndex(NamedTuple):
    """An index file, whose file names are plain names of files.

    Attributes:
        path: the index file.
        weight_map: tensor -> the name of its shard, in the index's order.
    """

    path: Path
    weight_map: Mapping[str, str]

    @property
    def tensor_counts(self) -> dict[str, int]:
        """Shard -> how many tensors it should hold, by the shard's name."""
        return dict(sorted(Counter(self.weight_map.values()).items()))


def read_shard_index(path: Path) -> ShardIndex:
    """Read an index; the shards are not looked at.

    Raises:
        InputError: ``index.json`` (not such a document), ``index.path`` (a shard that is not a plain file name), and
            those of ``open_source``.
    """
    document = read_object(path, _INDEX)
    weight_map = document.get("weight_map")
    if not isinstance(weight_map, dict):
        found = f"is {kind(weight_map)}" if "weight_map" in document else "is missing"
        raise InputError("index.json", f"weight_map {found}; an object of file names is required", path=path)
    if not weight_map:
        raise InputError("index.json", "weight_map is empty", path=path)
    faults = Faults(path)
    for tensor, name in weight_map.items():
        if not isinstance(name, str):
            faults.add(
                "index.json", f"weight_map has {kind(name)} for {quoted(tensor)}; file names only", tensor=tensor
            )
    faults.check()
    shards = sorted(set(weight_map.values()))
    for name in shards:
        reason = _path_fault(name)
        if reason:
            faults.add("index.path", f"index names {quoted(name)}, {reason}", found=name)
    faults.check()
    return ShardIndex(path, weight_map)


def _path_fault(name: str) -> str | None:
    """Why a shard's name is no plain name of a file in the model directory."""
    if "\0" in name:
        return "which holds a NUL character"
    if name in ("", ".", "..") or "/" in name or "\\" in name:
        parts = name.replace("\\", "/").split("/")
        if name.startswith(("/", "\\")) or ".." in parts:
            return "outside the model directory"
        return "which is not a plain file name"
    if not name.lower().endswith(SUFFIX) and not is_pickle(name):
        return "which is not a safetensors file"
    return None


def check_against_shards(index: ShardIndex, shards: Iterable[SafetensorsFile]) -> tuple[str, ...]:
    """Notes about tensors that are not where the index lists them: loaders read the shards whole.

    Raises:
        InputError: ``index.mismatch``, two shards hold a tensor of one name.
    """
    holders: dict[str, list[str]] = defaultdict(list)
    for shard in shards:
        for stored in shard.tensors:
            holders[stored.name].append(shard.path.name)

    unlisted: dict[str, list[str]] = defaultdict(list)
    elsewhere: dict[tuple[str, str], list[str]] = defaultdict(list)
    twice: dict[tuple[str, ...], list[str]] = defaultdict(list)
    absent: dict[str, list[str]] = defaultdict(list)
    for tensor, names in holders.items():
        listed_in = index.weight_map.get(tensor)
        if len(names) > 1:
            twice[tuple(names)].append(tensor)
        elif listed_in is None:
            unlisted[names[0]].append(tensor)
        elif names[0] != listed_in:
            elsewhere[names[0], listed_in].append(tensor)
    for tensor, name in index.weight_map.items():
        if tensor not in holders:
            absent[name].append(tensor)

    faults = Faults(index.path)
    for where, n in twice.items():
        hint = f"remove {'it' if len(n) == 1 else 'them'} from all but one of these files"
        faults.add("index.mismatch", f"{' and '.join(where)} both hold {_tensors(n)}: {_some(n)}", hint=hint)
    faults.check()
    notes = [f"{s} holds {_tensors(n)} that the index does not list: {_some(n)}" for s, n in unlisted.items()]
    notes += [f"{s} lacks {_tensors(n)} that the index lists there: {_some(n)}" for s, n in absent.items()]
    notes += [f"{s} holds {_tensors(n)} that the index lists in {at}: {_some(n)}" for (s, at), n in elsewhere.items()]
    return listed(notes)


def _tensors(names: list[str]) -> str:
    return counted(len(names), "tensor")


def _some(names: list[str]) -> str:
    return ", ".join([quoted(name) for name in names[:3]] + ["..."] * (len(names) > 3))
