"""``model.safetensors.index.json``: which shard holds which tensor, checked against the shards.

An index is ``{"metadata": {"total_size": BYTES, ...}, "weight_map": {TENSOR: FILE NAME}}``. ``total_size`` is the
sum of the tensors' bytes, headers not counted: transformers and mlx-lm both write it so
(``huggingface_hub/serialization``, ``mlx_lm.utils.save_model``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ckconv.errors import Faults, InputError, counted, quoted
from ckconv.formats.safetensors.spec import MAX_JSON, SUFFIX, is_pickle
from ckconv.io.json import Document, kind, read_object, shown

if TYPE_CHECKING:
    from ckconv.formats.safetensors.read import SafetensorsFile

_INDEX = Document("index", "index.json", "index.json", MAX_JSON)


class ShardIndex(NamedTuple):
    """An index file, whose file names are plain names of files.

    Attributes:
        path: the index file.
        weight_map: tensor -> the name of its shard, in the index's order.
        total_size: bytes of all tensors; ``None`` where the index does not say.
    """

    path: Path
    weight_map: Mapping[str, str]
    total_size: float | None

    @property
    def tensor_counts(self) -> dict[str, int]:
        """Shard -> how many tensors it should hold, by the shard's name."""
        return dict(sorted(Counter(self.weight_map.values()).items()))


def read_shard_index(path: Path) -> ShardIndex:
    """Read an index; the shards are not looked at.

    Raises:
        InputError: ``index.json`` (not such a document), ``index.path`` (a shard that is not a plain file name),
            ``index.mismatch`` (a total that is no number), and those of ``open_source``.
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
    return ShardIndex(path, weight_map, _total_size(path, document))


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


def _total_size(path: Path, document: dict[str, Any]) -> float | None:
    metadata = document.get("metadata", {})
    if not isinstance(metadata, dict):
        raise InputError("index.json", f"metadata is {kind(metadata)}; an object is required", path=path)
    total = metadata.get("total_size")
    # A sum kept as a float, 246400.0, is the same number in JSON; with truth values in it, it is no whole one.
    if total is None or (isinstance(total, float) and isfinite(total)) or type(total) is int:
        return int(total) if isinstance(total, float) and total.is_integer() else total
    raise InputError("index.mismatch", f"metadata.total_size is {shown(total)}, not a number of bytes", path=path)


def check_against_shards(index: ShardIndex, shards: Iterable[SafetensorsFile]) -> None:
    """The shards hold exactly the tensors that the index lists, each where it says, of ``total_size`` bytes together.

    Raises:
        InputError: ``index.mismatch``, with the tensors grouped by shard and counted.
    """
    shards = tuple(shards)
    holders: dict[str, list[str]] = defaultdict(list)
    for shard in shards:
        for stored in shard.tensors:
            holders[stored.name].append(shard.path.name)

    unlisted: dict[str, list[str]] = defaultdict(list)
    elsewhere: dict[tuple[str, str], list[str]] = defaultdict(list)
    twice: dict[tuple[str, str], list[str]] = defaultdict(list)
    absent: dict[str, list[str]] = defaultdict(list)
    for tensor, names in holders.items():
        listed_in = index.weight_map.get(tensor)
        for name in names:
            if listed_in is None:
                unlisted[name].append(tensor)
            elif name != listed_in:
                (twice if listed_in in names else elsewhere)[name, listed_in].append(tensor)
    for tensor, name in index.weight_map.items():
        if tensor not in holders:
            absent[name].append(tensor)

    sentences = [f"{s} holds {_tensors(n)} that the index does not list: {_some(n)}" for s, n in unlisted.items()]
    sentences += [f"{s} lacks {_tensors(n)} that the index lists there: {_some(n)}" for s, n in absent.items()]
    sentences += [
        f"{s} holds {_tensors(n)} that the index lists in {at}: {_some(n)}" for (s, at), n in elsewhere.items()
    ]
    sentences += [f"{s} and {at} both hold {_tensors(n)}: {_some(n)}" for (s, at), n in twice.items()]
    faults = Faults(index.path)
    for sentence in sentences:
        faults.add("index.mismatch", sentence)
    faults.check()

    # Tensors of a pickle may share their values, which transformers counted once.
    total = sum(extent.nbytes for extent in {stored.extent for shard in shards for stored in shard.tensors})
    # transformers counted a bool as an eighth of a byte (``dtype_byte_size``, until 4.54).
    bools = sum(s.extent.nbytes for shard in shards for s in shard.tensors if s.dtype.name == "BOOL")
    if index.total_size is not None and index.total_size not in (total, total - bools + bools / 8):
        message = f"metadata.total_size is {index.total_size:,}; the tensors have {total:,} bytes"
        raise InputError("index.mismatch", message, path=index.path, found=index.total_size, allowed=total)


def _tensors(names: list[str]) -> str:
    return counted(len(names), "tensor")


def _some(names: list[str]) -> str:
    return ", ".join([quoted(name) for name in names[:3]] + ["..."] * (len(names) > 3))
