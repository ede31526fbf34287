"""Directories of several processes: torch's DCP and FSDP, DeepSpeed."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from ckconv.core.layouts import F32, DType
from ckconv.core.metadata import table_within
from ckconv.core.tensors import Extent, cut
from ckconv.errors import InputError, UnsupportedError, counted, quoted
from ckconv.formats.pytorch.read import (
    CONTAINERS,
    DCP_NAMES,
    MAX_PICKLE,
    MAX_TENSORS,
    TRAINING,
    TYPES,
    Malformed,
    Record,
    View,
    extent_of,
    read_saved,
    unpickle,
)
from ckconv.io.files import FileSource, open_source
from ckconv.io.standins import Assembly, Box, Window

# -- Directories of ``torch.distributed.checkpoint`` (DCP, FSDP) -------------------------------------------------------
# ``.metadata`` and ``__RANK_N.distcp``.
#
# ``.metadata`` is a pickle of :class:`Metadata`: for every tensor its type, its size and the chunks it is cut into, and
# for every chunk the file, the byte and the length of what ``torch.save`` wrote of it there. Nothing of either pickle
# is executed. Source: ``distributed/checkpoint/metadata.py``, ``filesystem.py`` and ``planner.py`` of torch 2.14.

METADATA_NAME = ".metadata"

#: What a training run keeps besides its model: the first word of a name, or of the place in the state that was saved.
_TRAINING = ("optim", "lr_sched", "sched", "scaler", "rng", "dataloader", "train_state", "ema", "step", "extra_state")

_Numbers = tuple[int, ...]


class GatheredTensor(NamedTuple):
    """One tensor, whole."""

    name: str
    dtype: DType
    whole: Assembly


def read_distributed(directory: Path) -> list[GatheredTensor]:
    """Read the model's tensors in the order of their names; headers only."""
    path = directory / METADATA_NAME
    with open_source(path) as source:
        assert source.size is not None
        if source.size > MAX_PICKLE:
            raise InputError("dcp.metadata", f"has {source.size:,} bytes; {MAX_PICKLE:,} are allowed", path=path)
        try:
            saved = unpickle(source.read_whole(0, source.size), DCP_NAMES).value
            tensors, positions, paths = _described(saved)
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
            wanted = [chunks.box(key, dtype, start, own, positions.get((key, start))) for start, own in boxes]
            if why := _untiled(shape, boxes):
                raise InputError("dcp.chunks", f"{why} {list(shape)}", path=path, tensor=key)
            found.append(GatheredTensor(name, dtype, Assembly(shape, dtype.size, wanted)))
    return found


_Tensors = dict[str, tuple[DType, _Numbers, list[tuple[_Numbers, _Numbers]]]]
_Positions = dict[tuple[str, _Numbers], tuple[str, int, int]]


def _described(saved: Any) -> tuple[_Tensors, _Positions, Mapping[str, Any]]:
    """Types, sizes and chunks of the tensors, and their extents in the state."""
    tensors: _Tensors = {}
    for key, item in saved.state["state_dict_metadata"].items():
        if not isinstance(key, str) or item.named.name != "TensorStorageMetadata":
            continue
        state = item.state
        properties = state["properties"].state
        dtype = TYPES[(properties["dtype"] if isinstance(properties, dict) else properties[0]).name]
        chunks = [(_numbers(one.state["offsets"]), _numbers(one.state["sizes"])) for one in state["chunks"]]
        tensors[key] = dtype, _numbers(state["size"]), chunks
    if len(tensors) > MAX_TENSORS:
        raise Malformed(f"lists {len(tensors):,} tensors; {MAX_TENSORS:,} are allowed")
    positions: _Positions = {}
    for index, info in saved.state["storage_data"].items():
        where, place = index.state, info.state
        if where["fqn"] in tensors:
            start = where["offset"]
            start = _numbers(start) if start is not None else (0,) * len(tensors[where["fqn"]][1])
            if place.get("transform_descriptors"):
                raise Malformed("holds chunks that were compressed or encrypted")
            path, offset, nbytes = place["relative_path"], *_numbers((place["offset"], place["length"]))
            if not isinstance(path, str):
                raise TypeError
            positions[where["fqn"], start] = path, offset, nbytes
    return tensors, positions, table_within(saved.state, "planner_data")


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
    """Extents of chunks' values: each is a ``torch.save`` file in another."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._open: dict[str, FileSource] = {}

    def box(self, key: str, dtype: DType, start: _Numbers, own: _Numbers, place: tuple[str, int, int] | None) -> Box:
        """A chunk."""
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
        extent = extent_of(key, view, saved.storages.get(view.storage.key), source.path)
        return Box(extent._replace(offset=extent.offset + offset), start, own)


def is_distributed(names: Collection[str]) -> bool:
    """Whether a directory with these names is a distributed checkpoint."""
    return METADATA_NAME in names and any(name.endswith(".distcp") for name in names)


# -- Directories of DeepSpeed: what its processes hold is put together -------------------------------------------------
# ``mp_rank_00_model_states.pt``                     ZeRO 1 and 2: ``module``, the model in the type that it computes in
# ``zero_pp_rank_N_mp_rank_00_model_states.pt``      ZeRO 3: ``module`` without values
# ``[bf16_]zero_pp_rank_N_mp_rank_00_optim_states.pt``  in FP32, the share of process N
#
# ``param_shapes`` lists names and sizes by group of parameters. ZeRO 1 and 2 cut the parameters of a group, one behind
# the other, into a run for each process (``single_partition_of_fp32_groups``). ZeRO 3 cuts each parameter by itself,
# with padding, and a process has its parts of all groups one behind the other (``fp32_flat_groups``). Parameters that
# are not trained are in ``frozen_param_fragments``, whole or cut likewise. Nothing of the pickles is executed. Source:
# ``utils/zero_to_fp32.py``, ``runtime/engine.py`` and ``runtime/zero`` of DeepSpeed 0.16.

_FILE = re.compile(r"(?:bf16_)?(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_(model|optim)_states\.pt")

#: States of processes under any name: of experts, ``layer_3_expert_0_mp_rank_00_model_states.pt``, or of a pipeline's
#: layers, ``layer_00-model_00-model_states.pt`` (``runtime/engine.py``, ``runtime/pipe/module.py``).
_STATES = re.compile(r".*[_-](model|optim)_states\.pt", re.DOTALL)

#: Numbers of a run are a multiple of so many for each process (``zero2_align``).
_ALIGNED = 2


class JoinedTensor(NamedTuple):
    """Tensor of several runs of bytes, one behind the other."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    runs: Sequence[Extent]


def is_deepspeed(names: Collection[str]) -> bool:
    """Whether a directory with these names is a checkpoint of DeepSpeed."""
    return any(found[1] == "model" for found in map(_STATES.fullmatch, names) if found)


def read_deepspeed(directory: Path) -> list[JoinedTensor]:
    """Read the model's tensors; headers only.

    Raises:
        InputError: ``deepspeed.state``, a file is malformed or missing, or they contradict each other; ``pt.tensor``;
            those of ``open_source``.
        UnsupportedError: ``deepspeed.shares``, matrices are cut by what several processes compute of them, or files
            hold parts of a model that are not read.
    """
    names = sorted(each.name for each in directory.iterdir() if _STATES.fullmatch(each.name))
    files = [found for found in map(_FILE.fullmatch, names) if found]
    if len(files) < len(names):
        foreign = next(name for name in names if not _FILE.fullmatch(name))
        message = f"holds {quoted(foreign)}; experts and layers of a pipeline that DeepSpeed saves apart are not read"
        hint = "load it in the program that trained it, and save the model with save_pretrained"
        raise UnsupportedError("deepspeed.shares", message, path=directory, hint=hint)
    if any(int(found[2]) for found in files):
        message = "holds shares of matrices that several processes compute together (mp_rank_01)"
        hint = "save it with a degree of model parallelism of 1"
        raise UnsupportedError("deepspeed.shares", message, path=directory, hint=hint)
    files.sort(key=lambda found: int(found[1] or 0))
    models = [_State(directory / found[0]) for found in files if found[3] == "model"]
    path = models[0].path
    try:
        state = models[0].value
        shapes = state.get("param_shapes")
        optimizers = [_State(directory / found[0]) for found in files if found[3] == "optim"] if shapes else []
        stage = _stage(optimizers)
        if not stage:
            return list(_module(models[0]))
        return list(_parts(models, optimizers, [*map(_shapes, shapes or ())], stage))
    except (Malformed, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        what = str(error) if isinstance(error, Malformed) else "does not describe a model"
        raise InputError("deepspeed.state", what, path=path) from None


class _State:
    """State of one process: the values of a pickle, and extents of tensors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_source(path) as source:
            try:
                saved = read_saved(source, TRAINING)
                if not isinstance(saved.value, dict):
                    raise Malformed("does not hold a dict")
            except Malformed as error:
                raise InputError("deepspeed.state", str(error), path=path) from None
        self.value: dict[Any, Any] = saved.value
        self._storages = saved.storages

    def run(self, name: str, view: Any) -> Extent:
        """Where the values of a tensor are."""
        if not isinstance(view, View):
            raise Malformed(f"has no tensor for {quoted(name)}")
        return extent_of(name, view, self._storages.get(view.storage.key), self.path)


def _stage(optimizers: Sequence[_State]) -> int:
    """The stage of ZeRO; 0 where the model is whole elsewhere."""
    if not optimizers:
        return 0
    state = optimizers[0].value["optimizer_state_dict"]
    stage, count = state.get("zero_stage"), state.get("partition_count")
    if isinstance(stage, Record):  # an enumeration of numbers
        (stage,) = stage.made_of
    if stage is None:  # BF16_Optimizer
        return 0
    if stage not in (1, 2, 3):
        raise Malformed(f"says zero_stage {stage!r}")
    count = max(count) if isinstance(count, list) else count
    if count != len(optimizers):
        raise Malformed(f"is of {count} processes, and {len(optimizers)} optim_states.pt are there")
    return int(stage)


def _shapes(declared: Any) -> dict[str, tuple[int, ...]]:
    """Names and sizes of one group."""
    for name, shape in declared.items():
        if not isinstance(name, str) or not isinstance(shape, tuple):
            raise TypeError
        if any(type(length) is not int or not 0 <= length < 1 << 40 for length in shape):
            raise TypeError
    return dict(declared)


def _module(state: _State, only: Collection[Any] | None = None) -> Iterator[JoinedTensor]:
    """Tensors that are whole: all of ``module``, or some."""
    module = state.value["module"]
    if not isinstance(module, dict) or not module:
        raise Malformed("has no tensors in its module")
    for name, view in module.items():
        if only is None or name in only:
            run = state.run(name, view)
            if only is None and not run.nbytes and not math.prod(view.shape):
                raise Malformed(f"has {quoted(name)} without values, and no optim_states.pt beside it")
            yield JoinedTensor(name, view.dtype, view.shape, [run])


def _parts(
    models: Sequence[_State], optimizers: Sequence[_State], groups: Sequence[Mapping[str, tuple[int, ...]]], stage: int
) -> Iterator[JoinedTensor]:
    """Buffers, frozen and trained parameters, and those that are others."""
    _check_processes("model", models, len(optimizers) if stage == 3 else 1)
    _check_processes("optim", optimizers, len(optimizers))
    saved = models[0].value
    buffers = None if stage < 3 else saved.get("buffer_names") or ()  # in ZeRO 1 and 2 what is not trained is whole
    found = {each.name: each for each in _module(models[0], buffers)}
    frozen = _shapes(saved.get("frozen_param_shapes") or {})
    for name, shape in frozen.items():
        states = models if stage == 3 else models[:1]
        views = [(state, state.value["frozen_param_fragments"][name]) for state in states]
        runs, dtype = [state.run(name, view) for state, view in views], views[0][1].dtype
        if any(view.dtype is not dtype for _, view in views) or len({run.nbytes for run in runs}) > 1:
            raise Malformed(f"has {quoted(name)} in parts whose types or sizes differ between the processes")
        each, there = -(-math.prod(shape) // len(runs)), runs[0].nbytes // dtype.size
        if each != there:
            parts = f"each of {len(runs)} parts of it" if len(runs) > 1 else "what is frozen of it"
            raise Malformed(f"says {quoted(name)} is {list(shape)}, and {parts} has {there:,} values, not {each:,}")
        found[name] = JoinedTensor(name, dtype, shape, _cut(name, runs, 0, dtype.nbytes(math.prod(shape))))
    key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
    flat = []
    for state in optimizers:
        views = state.value["optimizer_state_dict"][key]
        if any(isinstance(view, View) and view.dtype is not F32 for view in views):
            raise Malformed(f"has {key} of another type than FP32")
        flat.append([state.run(key, view) for view in views])
    gaps = optimizers[0].value["optimizer_state_dict"].get("param_alignment_paddings") if stage < 3 else None
    trained: dict[str, JoinedTensor] = {}
    for one in _by_parameter(flat, groups) if stage == 3 else _by_group(flat, groups, gaps):
        if one.name in trained or one.name in frozen:
            before = trained[one.name].shape if one.name in trained else frozen[one.name]
            raise Malformed(f"lists {quoted(one.name)} twice, as {list(before)} and as {list(one.shape)}")
        trained[one.name] = one
    found |= trained
    for other, name in (saved.get("shared_params") or {}).items():
        if not isinstance(other, str) or not isinstance(name, str):
            raise Malformed("has a name in shared_params that is no text")
        if name not in found:
            continue
        whole = found.get(other)
        if whole is not None and (other in trained or other in frozen or whole.shape != found[name].shape):
            what = f"{list(found[name].shape)}, and has {list(whole.shape)} of its own under that name"
            raise Malformed(f"says {quoted(other)} is {quoted(name)} in shared_params, {what}")
        found[other] = found[name]._replace(name=other)
    yield from found.values()


def _check_processes(kind: str, states: Sequence[_State], count: int) -> None:
    """Require one state of each process, 0 and up."""
    ranks = [int(found[1] or 0) for found in (_FILE.fullmatch(state.path.name) for state in states) if found]
    if ranks != [*range(count)]:
        some = ", ".join([*map(str, ranks[:8])] + ["..."] * (len(ranks) > 8))
        wanted = f"of processes 0 to {count - 1}" if count > 1 else "of process 0 alone"
        raise Malformed(f"needs {kind}_states.pt {wanted}, and those of {some} are there")


def _by_group(
    flat: Sequence[Sequence[Extent]], groups: Sequence[Mapping[str, tuple[int, ...]]], gaps: Any
) -> Iterator[JoinedTensor]:
    """Tensors of ZeRO 1 and 2.

    Args:
        gaps: elements behind each parameter of each group that are of none; ``None`` in older versions.
    """
    gaps = [[0] * len(shapes) for shapes in groups] if gaps is None else gaps
    if [len(of_group) for of_group in gaps] != [len(shapes) for shapes in groups]:
        raise Malformed("has param_alignment_paddings for another number of parameters than it lists")
    if any(type(gap) is not int or not 0 <= gap < 1 << 40 for of_group in gaps for gap in of_group):
        raise Malformed("has param_alignment_paddings that are no numbers of elements")
    if any(len(of_process) != len(groups) for of_process in flat):
        count = next(len(of_process) for of_process in flat if len(of_process) != len(groups))
        raise Malformed(f"lists {counted(len(groups), 'group')} of parameters, and a process holds {count}")
    for number, shapes in enumerate(groups):
        runs, at = [of_process[number] for of_process in flat], 0
        for (name, shape), gap in zip(shapes.items(), gaps[number], strict=True):
            nbytes = F32.nbytes(math.prod(shape))
            yield JoinedTensor(name, F32, shape, _cut(name, runs, at, at + nbytes))
            at += nbytes + F32.nbytes(gap)
        aligned = F32.nbytes(_ALIGNED * len(flat))
        if -(-at // aligned) != -(-sum(run.nbytes for run in runs) // aligned):
            raise Malformed(f"lists {at:,} bytes of parameters, and the processes have another number")


def _by_parameter(
    flat: Sequence[Sequence[Extent]], groups: Sequence[Mapping[str, tuple[int, ...]]]
) -> Iterator[JoinedTensor]:
    """Tensors of ZeRO 3."""
    at = 0
    for shapes in groups:
        for name, shape in shapes.items():
            elements = math.prod(shape)
            each = F32.nbytes(-(-elements // len(flat)))
            parts = [part for of_process in flat for part in _cut(name, of_process, at, at + each)]
            yield JoinedTensor(name, F32, shape, _cut(name, parts, 0, F32.nbytes(elements)))
            at += each
    if any(sum(run.nbytes for run in of_process) != at for of_process in flat):
        raise Malformed(f"lists {at:,} bytes of parameters for a process, and one has another number")


def _cut(name: str, runs: Sequence[Extent], begin: int, end: int) -> list[Extent]:
    """The bytes ``begin`` to ``end`` of runs that are one behind the other."""
    if end > sum(run.nbytes for run in runs):
        raise Malformed(f"lists {quoted(name)}, whose values are not there")
    return cut(runs, begin, end)
