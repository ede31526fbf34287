"""Directories of ``torch.distributed.checkpoint`` (DCP, FSDP).

``.metadata`` and ``__RANK_N.distcp``.

``.metadata`` is a pickle of :class:`Metadata`: for every tensor its type, its size and the chunks it is cut into, and
for every chunk the file, the byte and the length of what ``torch.save`` wrote of it there. Nothing of either pickle is
executed. Source: ``distributed/checkpoint/metadata.py``, ``filesystem.py`` and ``planner.py`` of torch 2.14.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from ckconv.core.dtypes import DType
from ckconv.errors import InputError, UnsupportedError, quoted
from ckconv.formats.pytorch.archive import read_saved
from ckconv.formats.pytorch.read import extent_of
from ckconv.formats.pytorch.spec import CONTAINERS, DCP_NAMES, MAX_PICKLE, MAX_TENSORS, TYPES
from ckconv.formats.pytorch.unpickle import Malformed, View, unpickle
from ckconv.io.files import FileSource, open_source
from ckconv.io.pieces import Box, Whole, Window

METADATA_NAME = ".metadata"

#: What a training run keeps besides its model: the first word of a name, or of the place in the state that was saved.
_TRAINING = ("optim", "lr_sched", "sched", "scaler", "rng", "dataloader", "train_state", "ema", "step", "extra_state")

_Numbers = tuple[int, ...]


class Gathered(NamedTuple):
    """One tensor, whole."""

    name: str
    dtype: DType
    whole: Whole


def read_distributed(directory: Path) -> list[Gathered]:
    """Read the model's tensors in the order of their names; headers only.

    Raises:
        InputError: ``dcp.metadata``, it is malformed, or names what describes no tensor; ``dcp.chunks``, chunks do not
            fill a tensor, or a file does not hold one; those of ``open_source``.
        UnsupportedError: ``dcp.content``, it holds no model, or chunks that are not read.
    """
    path = directory / METADATA_NAME
    with open_source(path) as source:
        assert source.size is not None
        if source.size > MAX_PICKLE:
            raise InputError("dcp.metadata", f"has {source.size:,} bytes; {MAX_PICKLE:,} are allowed", path=path)
        try:
            said = unpickle(source.read_whole(0, source.size), DCP_NAMES).value
            tensors, places, paths = _described(said)
        except EOFError:
            raise InputError("dcp.metadata", "ends early; the download looks incomplete", path=path) from None
        except (Malformed, KeyError, TypeError, ValueError, AttributeError) as error:
            what = str(error) if isinstance(error, Malformed) else "does not describe a checkpoint"
            raise InputError("dcp.metadata", what, path=path) from None
    chosen = _model(paths, tensors.keys())
    if not chosen:
        raise UnsupportedError("dcp.content", f"lists {len(tensors):,} tensors, and none of a model", path=path)
    found = []
    with _Chunks(directory) as chunks:
        for key, name in sorted(chosen.items(), key=lambda item: item[1]):
            dtype, shape, boxes = tensors[key]
            wanted = [chunks.box(key, dtype, start, own, places.get((key, start))) for start, own in boxes]
            if why := _untiled(shape, boxes):
                raise InputError("dcp.chunks", f"{why} {list(shape)}", path=path, tensor=key)
            found.append(Gathered(name, dtype, Whole(shape, dtype.size, wanted)))
    return found


_Tensors = dict[str, tuple[DType, _Numbers, list[tuple[_Numbers, _Numbers]]]]
_Places = dict[tuple[str, _Numbers], tuple[str, int, int]]


def _described(said: Any) -> tuple[_Tensors, _Places, Mapping[str, Any]]:
    """Types, sizes and chunks of the tensors, and their places in the state."""
    tensors: _Tensors = {}
    for key, item in said.state["state_dict_metadata"].items():
        if not isinstance(key, str) or item.named.name != "TensorStorageMetadata":
            continue
        state = item.state
        properties = state["properties"].state
        dtype = TYPES[(properties["dtype"] if isinstance(properties, dict) else properties[0]).name]
        chunks = [(_numbers(one.state["offsets"]), _numbers(one.state["sizes"])) for one in state["chunks"]]
        tensors[key] = dtype, _numbers(state["size"]), chunks
    if len(tensors) > MAX_TENSORS:
        raise Malformed(f"lists {len(tensors):,} tensors; {MAX_TENSORS:,} are allowed")
    places: _Places = {}
    for index, info in said.state["storage_data"].items():
        where, place = index.state, info.state
        if where["fqn"] in tensors:
            start = where["offset"]
            start = _numbers(start) if start is not None else (0,) * len(tensors[where["fqn"]][1])
            if place.get("transform_descriptors"):
                raise Malformed("holds chunks that were compressed or encrypted")
            path, offset, nbytes = place["relative_path"], *_numbers((place["offset"], place["length"]))
            if not isinstance(path, str):
                raise TypeError
            places[where["fqn"], start] = path, offset, nbytes
    paths = said.state.get("planner_data")
    return tensors, places, paths if isinstance(paths, dict) else {}


def _numbers(values: Any) -> _Numbers:
    found = tuple(values)
    if any(type(value) is not int or not 0 <= value < 1 << 62 for value in found):
        raise TypeError
    return found


def _model(paths: Mapping[str, Any], keys: Collection[str]) -> dict[str, str]:
    """Names of the model's tensors by key, without the state of the training."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for key in keys:
        path = paths.get(key, (key,))
        if not isinstance(path, tuple) or not all(isinstance(part, (str, int)) for part in path) or not path:
            path = (key,)
        *place, _ = words = [str(part) for part in path]
        if not any(word.lower().startswith(_TRAINING) for word in (*place, key.partition(".")[0])):
            # A state dict has names with dots; deeper places are dicts of dicts that make up a name.
            top = next((n + 1 for n, word in enumerate(place) if word in CONTAINERS), 0)
            found.setdefault(tuple(words[:top]), {})[key] = ".".join(words[top:])
    return max(found.values(), key=len, default={})


def _untiled(shape: _Numbers, boxes: list[tuple[_Numbers, _Numbers]]) -> str:
    """Reason why chunks do not fill a tensor, before its size; or empty."""
    if any(len(start) != len(shape) or len(own) != len(shape) for start, own in boxes):
        return "has chunks of other axes than a tensor"
    if sum(math.prod(own) for _, own in boxes) != math.prod(shape) or len(set(boxes)) != len(boxes):
        return "has chunks that do not fill a tensor"
    cut = [axis for axis in range(len(shape)) if any(own[axis] != shape[axis] for _, own in boxes)]
    if len(cut) > 1 + (0 in cut):
        return "has chunks cut along more axes than the first and another of a tensor"
    parts = [sorted({(start[axis], own[axis]) for start, own in boxes}) for axis in range(len(shape))]
    for axis, runs in enumerate(parts):
        ends = [0, *(begin + own for begin, own in runs)]
        if [begin for begin, _ in runs] != ends[:-1] or ends[-1] != shape[axis]:
            return "has chunks that overlap, or leave out a part of, a tensor"
    whole = math.prod(len(runs) for runs in parts) == len(boxes)
    return "" if whole else "has chunks that overlap, or leave out a part of, a tensor"


class _Chunks(ExitStack):
    """Places of chunks' values: each is a ``torch.save`` file in another."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._open: dict[str, FileSource] = {}

    def box(self, key: str, dtype: DType, start: _Numbers, own: _Numbers, place: tuple[str, int, int] | None) -> Box:
        """A chunk.

        Raises:
            InputError: ``dcp.chunks``.
        """
        path = self._directory / METADATA_NAME
        if place is None or place[0] in (".", "..") or Path(place[0]).name != place[0] or "\\" in place[0]:
            message = f"a chunk of {quoted(key)} is in {quoted(place[0]) if place else 'no file'}, not in one beside it"
            raise InputError("dcp.chunks", message, path=path, tensor=key)
        name, offset, nbytes = place
        if name not in self._open:
            self._open[name] = open_source(self._directory / name)
            self._open[name].close()  # thousands of shards need no descriptors
        source = self._open[name]
        if offset + nbytes > source.size:
            message = f"a chunk of {quoted(key)} ends at byte {offset + nbytes:,}, the file has {source.size:,}"
            hint = "the download looks truncated"
            raise InputError("dcp.chunks", message, path=source.path, tensor=key, hint=hint)
        try:
            saved = read_saved(Window(source, offset, nbytes))
        except Malformed as error:
            raise InputError("dcp.chunks", f"a chunk of {quoted(key)} {error}", path=source.path, tensor=key) from None
        view = saved.value
        if not isinstance(view, View) or view.dtype is not dtype or view.shape != own:
            message = f"a chunk of {quoted(key)} is not {dtype} {list(own)}, as .metadata says"
            raise InputError("dcp.chunks", message, path=source.path, tensor=key)
        held = extent_of(key, view, saved.storages.get(view.storage.key), source.path)
        return Box(held._replace(offset=held.offset + offset), start, own)


def is_distributed(names: Collection[str]) -> bool:
    """A directory with these names holds such a checkpoint."""
    return METADATA_NAME in names and any(name.endswith(".distcp") for name in names)
