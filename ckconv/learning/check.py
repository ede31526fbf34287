"""Both directions of a learned file, compared with its pair."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ckconv.conversion import planning, write
from ckconv.core.config import FIELD_OF
from ckconv.core.layouts import F32, DType
from ckconv.core.metadata import CONFIG_NAME, as_read, document_of
from ckconv.core.options import Options
from ckconv.core.tensors import MetadataKind, StoredTensor, TensorIndex
from ckconv.errors import CkconvError
from ckconv.families.catalog import FAMILIES, own_families
from ckconv.families.huggingface_config import flat, text_config
from ckconv.families.keys import Kind
from ckconv.families.towers import parameter_differences
from ckconv.formats.detect import open_index
from ckconv.io.files import Files
from ckconv.learning.keys import same
from ckconv.learning.pair import FLOATS, MAX_DISTANCE, NEAR, Pair, distances, squeezed, value_of
from ckconv.plan.steps import Plan, Step
from ckconv.quant.convert import NEEDS_IMPORTANCE, decode, missing_quantizer, quantize

#: Twice the distance, of squares: importance moves values, and libraries round in ways of their own.
_TWICE = 4.0

#: How many faults are shown.
_SHOWN = 3

#: Keys of config.json that say who wrote it, not what the model is.
_WRITER = frozenset({"transformers_version", "torch_dtype", "dtype"})


@dataclass
class Direction:
    """Conversion of half of a pair, compared with the other half.

    Attributes:
        error: why nothing is made.
        tensors, total: equal ones of all.
        different: names of others, with what is wrong.
        distance: the largest part of a row's square that quantizing took, of tensors that are quantized on either side.
        near: equal ones that are computed (1 + w, exponentials), and differ in the last bits, as libraries round.
        keys, of: equal ones of all.
        left_out: tensors of the source for which the other format has no place -> why.
        other: key -> (there, made), ``None`` for nothing.
        more: keys of config.json itself that are made, and are not there.
    """

    error: str = ""
    tensors: int = 0
    total: int = 0
    different: list[str] = field(default_factory=list)
    distance: float = 0.0
    near: set[str] = field(default_factory=set)
    keys: int = 0
    of: int = 0
    left_out: dict[str, str] = field(default_factory=dict)
    other: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        """Whether nothing is different."""
        return not (self.error or self.different or self.other)

    @property
    def faults(self) -> list[str]:
        """Differences as sentences: tensors, then keys."""
        keys = (f"{key} is {short(there)}, and {short(made)} is made" for key, (there, made) in self.other.items())
        return [*self.different, *keys]

    @property
    def fault(self) -> str:
        """The error, or the first of :attr:`faults`."""
        return self.error or "; ".join(self.faults[:_SHOWN])


@dataclass
class BothWays:
    """Both directions of a pair.

    Attributes:
        parameters: name -> what the checkpoint and the GGUF are read to say, where that differs.
    """

    forth: Direction
    back: Direction
    parameters: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        """Whether both make what is there."""
        return self.forth.right and self.back.right and not self.parameters


def check(family: Path, pair: Pair, *, values: bool = True) -> BothWays:
    """Convert both ways with a family file, into nothing.

    Args:
        values: bytes of tensors are made and compared; names and keys alone otherwise.
    """
    try:
        with own_families([family]):
            checkpoint = open_index(pair.checkpoint.path)
            model = open_index(pair.model.path)
            forth = _made(checkpoint, model, "gguf", family, values, {}, near=pair.near)
            lost = forth.left_out
            back = Direction()
            if not forth.error:
                back = _made(model, checkpoint, "safetensors", family, values, lost, near=pair.near)
            names = {field: name for name, field in FIELD_OF.items()}
            pairs = {names.get(name, name): pair for name, pair in parameter_differences(checkpoint, model).items()}
    except CkconvError as error:
        return BothWays(Direction(in_one_line(error)), Direction())
    return BothWays(forth, back, pairs)


def keys_of_mlx(family: Path, checkpoint: Path) -> dict[str, Any]:
    """Keys of the config.json of an MLX directory, by dotted path."""
    with own_families([family]):
        plan = planning.make_plan(open_index(checkpoint), "mlx", Options(families=(family,)))
        plan.check()
        files = plan.contents().side_files
    content: Any = files[next(name for name in files if Path(name).name == CONFIG_NAME)]
    return _document(json.loads(bytes(content)))


def check_names(family: Path, checkpoint: Path, directory: Path) -> BothWays:
    """Convert a checkpoint to an MLX directory and back, into nothing."""
    try:
        with own_families([family]):
            ours, mlx = open_index(checkpoint), open_index(directory)
            forth = _made(ours, mlx, "mlx", family, True, {})
            return BothWays(forth, Direction() if forth.error else _made(mlx, ours, "safetensors", family, True, {}))
    except CkconvError as error:
        return BothWays(Direction(in_one_line(error)), Direction())


def _made(
    source: TensorIndex,
    there: TensorIndex,
    to: str,
    family: Path,
    values: bool,
    lost: Mapping[str, str],
    *,
    near: bool = False,
) -> Direction:
    """Make one direction without tensors ``lost`` on the way to the source.

    Args:
        near: either side may be rounded.
    """
    found = Direction()
    try:
        options = Options(families=(family,), dtype=_dtype(there, source), dequantize=near and to != "gguf")
        plan = planning.make_plan(source, to, options)
        plan.check()
        container = plan.contents()
    except CkconvError as error:
        found.error = in_one_line(error)
        return found
    found.left_out = {item.name: item.reason for item in plan.left_out}
    meant = {tensor.name: tensor for tensor in there.stored if tensor.name not in lost}
    _compare(plan, source, there, meant, values, near, found)
    if to == "gguf":
        prefix = f"{there.architecture}."
        typed = as_read({key: value for key, value in container.keys.items() if key.startswith(prefix)})
        made = {key: value_of(value) for key, value in typed.items()}
        stated = {key: value_of(value) for key, value in there.metadata.items() if key.startswith(prefix)}
        pairs = {key: (stated.get(key), made.get(key)) for key in {*stated, *made} if key.startswith(prefix)}
        kinds = {key: (there.metadata[key].type, container.keys[key].type) for key in stated.keys() & made.keys()}
    else:
        name = next(name for name in container.side_files if Path(name).name == CONFIG_NAME)
        content: Any = container.side_files[name]
        made, keys = _document(json.loads(bytes(content))), FAMILIES[family.stem].document.keys.keys
        stated = _document(there.metadata)
        pairs, kinds = {}, {}
        found.more = {key: made[key] for key in sorted(made.keys() - stated.keys() - _WRITER) if "." not in key}
        for key in {*stated, *made} - _WRITER:
            row = keys.get(key, keys.get(key.partition(".")[0]))
            if key in stated and (key in made or row is None or row.kind is not Kind.HARMLESS):
                pairs[key] = (stated[key], made.get(key))
    found.of = sum(one is not None for one, _ in pairs.values())
    for key, (one, other) in sorted(pairs.items()):
        row = None if to == "gguf" else keys.get(key, keys.get(key.partition(".")[0]))
        alike = same(one, other) and len(set(kinds.get(key, ("", "")))) == 1
        if alike or (row is not None and row.kind is Kind.HARMLESS):
            found.keys += 1
        else:
            found.other[key] = (one, other)
    return found


def _document(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in flat(text_config(document_of(config))).items() if value is not None}


def _compare(
    plan: Plan,
    source: TensorIndex,
    there: TensorIndex,
    meant: Mapping[str, StoredTensor],
    values: bool,
    near: bool,
    found: Direction,
) -> None:
    steps = {step.target.name if step.target.source == "" else step.target.source: step for step in plan.steps}
    found.total = len(meant)
    bad = dict.fromkeys(meant.keys() - steps.keys(), "is there")
    bad |= dict.fromkeys(steps.keys() - meant.keys(), "is made")
    for name in meant.keys() & steps.keys():
        one, other = meant[name], steps[name].target
        if math.prod(one.shape) != math.prod(other.shape):
            bad[name] = f"has the shape {list(one.shape)}, and {list(other.shape)} is made"
    if values and not bad:
        bad |= _bytes(plan, source, there, meant, steps, near, found)
    found.different = [f"{name} {why}" for name, why in sorted(bad.items())]
    found.tensors = found.total - len(bad.keys() & meant.keys())


def _bytes(
    plan: Plan,
    source: TensorIndex,
    there: TensorIndex,
    meant: Mapping[str, StoredTensor],
    steps: Mapping[str, Any],
    rounded: bool,
    found: Direction,
) -> dict[str, str]:
    """Tensors of which some byte is another one."""
    bad: dict[str, str] = {}
    near = {name for name, step in steps.items() if _computed(step)}
    owners = {(step.offset, id(file)): name for file in plan.files for step in file.steps
              for name in [next(n for n, one in steps.items() if one is step)]}  # fmt: skip
    with Files(source.identities) as inputs, Files(there.identities) as outputs:
        for file in plan.files:
            starts = {offset: name for (offset, of), name in owners.items() if of == id(file)}
            begin, name, rows = 0, "", Rows()
            for offset, data, _ in write.chunks(file, inputs, write.Losses(plan)):
                if offset in starts:
                    begin, name, rows = offset, starts[offset], Rows()
                tensor, view = meant[name], memoryview(data).cast("B")
                if rounded and not _is_exact(steps[name], tensor, there):
                    found.distance = max(found.distance, rows.distance(view, steps[name].target.dtype, tensor, outputs))
                    if rows.are_other:
                        bad[name] = "has other values"
                    continue
                if steps[name].target.dtype.name != tensor.dtype.name:
                    bad.setdefault(name, f"is {tensor.dtype}, and {steps[name].target.dtype} is made")
                    continue
                at = tensor.extent.offset + offset - begin
                there_is = bytearray(len(view))
                outputs.read_into(tensor.extent.path, at, there_is)
                if name not in bad and there_is != view:
                    if name not in near or not _alike(there_is, bytes(view), tensor.dtype):
                        bad[name] = "has other values"
                    else:
                        found.near.add(name)
    return bad


class Rows:
    """Compares a tensor with one that is rounded, or was, row by row.

    Attributes:
        most: how far the farthest row is, as a part of its square.
        are_other: a row is farther than rounding to its type takes it.
    """

    def __init__(self) -> None:
        self.most, self.are_other = 0.0, False
        self._done, self._rest, self._usual = 0, b"", 0.0

    def distance(self, made: memoryview, dtype: DType, there: StoredTensor, files: Files) -> float:
        """Take the next bytes of what is made, and return ``most``."""
        data, columns = self._rest + bytes(made), there.shape[-1]
        count = len(data) // (columns * dtype.size)
        self._rest = data[count * columns * dtype.size :]
        if count:
            width = there.dtype.nbytes(columns)
            raw = bytearray(count * width)
            files.read_into(there.extent.path, there.extent.offset + self._done * width, raw)
            rows = np.frombuffer(data, np.uint8, count * columns * dtype.size).reshape(count, -1)
            ours, decoded = decode(rows, dtype), decode(np.frombuffer(raw, np.uint8).reshape(count, -1), there.dtype)
            far = distances(decoded, ours)
            self.most = max(self.most, float(far.max()))
            self.are_other |= bool((far > MAX_DISTANCE).any()) or self._too_far(ours, far, there.dtype)
            self._done += count
        return self.most

    def _too_far(self, ours: np.ndarray, far: np.ndarray, dtype: DType) -> bool:
        """Whether rows are farther than twice what their type takes off them."""
        if dtype.block == 1 or missing_quantizer(dtype) or dtype.name in NEEDS_IMPORTANCE:
            return False
        doubtful = far > _TWICE * self._usual
        if not doubtful.any():
            return False
        rows = np.ascontiguousarray(ours[doubtful])
        own = distances(decode(quantize(rows, dtype), dtype), rows)
        self._usual = self._usual or float(np.median(own))
        return bool((far[doubtful] > _TWICE * np.maximum(own, self._usual)).any())


def _is_exact(step: Step, tensor: StoredTensor, there: TensorIndex) -> bool:
    """Whether no value was rounded: types are equal, or the GGUF has FP32."""
    if all(one.dtype is tensor.dtype for one in step.sources):
        return True
    of_gguf = (tensor,) if there.metadata_kind is MetadataKind.TYPED else step.sources
    plain = all(one.dtype.block == 1 for one in step.sources) and step.target.dtype is tensor.dtype
    return plain and all(one.dtype is F32 for one in of_gguf)


def _computed(step: Step) -> bool:
    """Whether the values are no copies."""
    return any(tensor.layout.shift != step.target.layout.shift for tensor in step.sources)


def _alike(one: bytes | bytearray, other: bytes, dtype: DType) -> bool:
    there, made = (decode(np.frombuffer(raw, np.uint8), dtype) for raw in (one, other))
    return bool(np.allclose(there, made, rtol=NEAR, atol=NEAR))


def _dtype(there: TensorIndex, source: TensorIndex) -> str:
    """The type of most matrices; the source's, where they are quantized."""
    for index in (there, source):
        kinds = Counter(tensor.dtype.name for tensor in index.stored if len(squeezed(tensor.shape)) > 1)
        found = kinds.most_common(1)[0][0] if kinds else "F32"
        if found in FLOATS:
            return found.lower()
    return "source"


def in_one_line(error: CkconvError) -> str:
    """Message of an error and its details, in one line."""
    return "; ".join([error.message, *error.details])


def short(value: Any) -> str:
    """Beginning of a value, for a fault."""
    shown = repr(value)
    return "nothing" if value is None else shown if len(shown) < 60 else f"{shown[:57]}..."
