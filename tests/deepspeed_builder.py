"""Directories of DeepSpeed without it or torch: pickles of stubs for their classes, and values beside them."""

from __future__ import annotations

import io
import math
import pickle
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
from distributed_builder import Size

_STUBS = {"torch": ("FloatStorage", "HalfStorage"), "deepspeed.runtime.zero.config": ("ZeroStageEnum",)}


class Stage:
    """``ZeroStageEnum(3)``."""

    def __init__(self, number: int) -> None:
        self.number = number


def saved(path: Path, value: Any) -> Path:
    """What ``torch.save`` writes of a value; arrays of NumPy are its tensors."""
    parents = ("torch._utils", "deepspeed", "deepspeed.runtime", "deepspeed.runtime.zero")
    modules = {name: ModuleType(name) for name in (*_STUBS, *parents)}
    for module, names in _STUBS.items():
        for name in names:
            setattr(modules[module], name, type(name, (), {"__module__": module, "__qualname__": name}))

    def rebuilt() -> None:
        raise NotImplementedError

    rebuilt.__module__, rebuilt.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    modules["torch._utils"]._rebuild_tensor_v2 = rebuilt  # type: ignore[attr-defined]
    modules["torch"].Size = Size  # type: ignore[attr-defined]
    arrays: list[np.ndarray] = []

    class Storage:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            if not isinstance(obj, Storage):
                return None
            arrays.append(obj.array)
            kind = {4: "FloatStorage", 2: "HalfStorage"}[obj.array.itemsize]
            return "storage", getattr(modules["torch"], kind), str(len(arrays) - 1), "cpu", obj.array.size

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, np.ndarray):
                strides = tuple(math.prod(obj.shape[n + 1 :]) for n in range(obj.ndim))
                return rebuilt, (Storage(obj), 0, obj.shape, strides, False, OrderedDict())
            if isinstance(obj, Stage):
                return modules["deepspeed.runtime.zero.config"].ZeroStageEnum, (obj.number,)
            return NotImplemented

    body = io.BytesIO()
    with patch.dict(sys.modules, modules):
        Pickler(body, protocol=2).dump(value)
    with zipfile.ZipFile(path, "w") as opened:
        opened.writestr("archive/data.pkl", body.getvalue())
        for number, array in enumerate(arrays):
            opened.writestr(f"archive/data/{number}", np.ascontiguousarray(array).tobytes())
    return path


#: Names and sizes of parameters, in two groups.
GROUPS = ({"a.weight": (3, 5), "a.bias": (3,)}, {"b.weight": (2, 7)})
FROZEN = {"c.weight": (5,)}


def parameters() -> dict[str, np.ndarray]:
    """Their values."""
    random = np.random.default_rng(8)
    shapes = GROUPS[0] | GROUPS[1] | FROZEN
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def _share(array: np.ndarray, rank: int, of: int) -> np.ndarray:
    """A process's part of one parameter, padded."""
    each = -(-array.size // of)
    return np.pad(array.reshape(-1), (0, each * of - array.size))[rank * each : (rank + 1) * each]


def deepspeed(root: Path, stage: int, of: int = 2, gaps: Any = None, **changes: Any) -> Path:
    """A directory of ``of`` processes.

    Args:
        gaps: elements behind each parameter of each group that are of none, in ZeRO 1 and 2.
        changes: of the first process's states, by key; ``optimizer`` of its ``optimizer_state_dict``; ``without`` names
            of files that are not written.
    """
    root.mkdir()
    values = parameters()
    buffer = np.arange(3, dtype=np.float32)
    behind = gaps or [[0] * len(group) for group in GROUPS]
    flat = [
        np.concatenate([np.pad(values[name].reshape(-1), (0, gap)) for name, gap in zip(group, own, strict=True)])
        for group, own in zip(GROUPS, behind, strict=True)
    ]
    flat = [np.pad(one, (0, -one.size % (2 * of))) for one in flat]
    for rank in range(of):
        whole = {name: value.astype(np.float16) for name, value in values.items()}
        empty = {name: np.zeros(0, np.float16) for name in values}
        frozen = {name: _share(values[name], rank, of) if stage == 3 else values[name] for name in FROZEN}
        model = {
            "module": {**(empty if stage == 3 else whole), "rope.inv_freq": buffer},
            "buffer_names": ["rope.inv_freq"],
            "param_shapes": [OrderedDict((name, Size(shape)) for name, shape in group.items()) for group in GROUPS],
            "frozen_param_shapes": {name: Size(shape) for name, shape in FROZEN.items()},
            "frozen_param_fragments": frozen,
            "shared_params": {"head.weight": "a.weight"},
            "sparse_tensor_module_names": set(),
        }
        key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
        shares = (
            [np.concatenate([_share(values[name], rank, of) for name in group]) for group in GROUPS]
            if stage == 3
            else [one.reshape(of, -1)[rank] for one in flat]
        )
        state = {
            "zero_stage": Stage(stage),
            "partition_count": of if stage == 3 else [of, of],
            key: shares,
            "overflow": False,
        } | ({"param_alignment_paddings": gaps} if gaps else {})
        if not rank:
            model |= {name: value for name, value in changes.items() if name not in ("optimizer", "without")}
            state |= changes.get("optimizer", {})
        if stage == 3 or not rank:
            saved(root / f"{f'zero_pp_rank_{rank}_' if stage == 3 else ''}mp_rank_00_model_states.pt", model)
        saved(root / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", {"optimizer_state_dict": state})
    for name in changes.get("without", ()):
        (root / name).unlink()
    return root
