"""The rules that turn a Hugging Face or MLX checkpoint's tensors into canonical ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ckconv.core.config import ModelConfig
from ckconv.core.dtypes import Kind
from ckconv.core.layouts import plain, transposed
from ckconv.core.names import SHAPES, Name, parse, with_layer
from ckconv.core.tensors import Dropped, Extent, StoredTensor, Tensor, matrix_of, plain_tensor
from ckconv.errors import Faults, counted, quoted
from ckconv.families.architectures import FIELDS, Canonical, Family, dimensions
from ckconv.families.huggingface_names import FOREIGN_QUANTIZERS, NESTED, Naming, naming_of
from ckconv.families.key_tables.fields import said


@dataclass(frozen=True, slots=True)
class Item:
    """One tensor to be named: a stored one, or several stored arrays that are one (an MLX triple).

    ``tensor`` is in stored order under its stored name; its shape is ``[out, in]`` in elements of the model.
    """

    tensor: Tensor
    stored: tuple[StoredTensor, ...]


def plain_item(stored: StoredTensor) -> Item:
    """A stored tensor that stands for itself."""
    return Item(plain_tensor(stored.name, stored), (stored,))


def canonicalise(
    items: Sequence[Item], family: Family, config: ModelConfig, path: Path, *, mlx: bool, dialect: str = "hf"
) -> Canonical:
    """Apply a family's rules.

    Args:
        path: the checkpoint, for errors.
        mlx: matrices are never stored transposed.
        dialect: under which names the tensors are (:func:`ckconv.families.huggingface_names.naming_of`).

    Raises:
        InputError: ``model.config`` where a tensor's shape, layer or expert contradicts the configuration, or two
            tensors are one.
    """
    rules = _Rules(naming_of(family.name, dialect), config, path, mlx)
    for item in items:
        rules.add(item)
    return rules.finish()


class _Rules:
    def __init__(self, naming: Naming, config: ModelConfig, path: Path, mlx: bool) -> None:
        self.config = config
        self.naming = naming
        self.transposed = frozenset() if mlx else naming.transposed
        self.dims = dimensions(config)
        self.tensors: dict[str, Tensor] = {}
        self.canonical_of: dict[str, tuple[str, ...]] = {}
        self.dropped: list[Dropped] = []
        self.unknown: list[StoredTensor] = []
        self.faults = Faults(path)
        self.experts: dict[str, dict[int, Item]] = {}

    def add(self, item: Item) -> None:
        """Name one tensor, drop it by a rule, or leave it unknown."""
        name, pattern = self._look_up(item.tensor.source)
        if name.pattern in self.naming.dropped:
            self.dropped += [Dropped(stored, self.naming.dropped[name.pattern]) for stored in item.stored]
        elif pattern is None:
            self.unknown += item.stored
        elif name.layer is not None and name.layer >= self._layers(pattern):
            source = item.tensor.source
            self._fault(
                f"the number of layers{said(self.config, 'num_layers')} is {self._layers(pattern)}, "
                f"{quoted(source)} names layer {name.layer}",
                source,
            )
        elif name.expert is not None:
            self.experts.setdefault(with_layer(pattern, name.layer), {})[name.expert] = item
        else:
            self._place(item, Name(pattern, name.layer))

    def finish(self) -> Canonical:
        """Stack the experts; report every fault found."""
        for name, members in self.experts.items():
            self._stack(name, members)
        self.faults.check()
        return Canonical(self.tensors, self.canonical_of, tuple(self.dropped), tuple(self.unknown))

    def _fault(self, message: str, tensor: str) -> None:
        self.faults.add("model.config", message, tensor=tensor)

    def _look_up(self, stored: str) -> tuple[Name, str | None]:
        nested = NESTED if isinstance(self.config.raw.get("text_config"), dict) else ()
        for prefix, instead in (("", ""), *nested, *self.naming.prefixes):
            if stored.startswith(prefix):
                name = parse(instead + stored[len(prefix) :])
                pattern = self.naming.names.get(name.pattern)
                if pattern is not None or name.pattern in self.naming.dropped:
                    return name, pattern
        return parse(stored), None

    def _layers(self, pattern: str) -> int:
        if pattern.startswith("enc."):
            return int(self.config.raw.get("encoder_layers") or self.config.num_layers)
        return self.config.num_layers

    def _put(self, tensor: Tensor) -> None:
        if tensor.name in self.tensors:
            other = self.tensors[tensor.name].source
            self._fault(f"{quoted(other)} and {quoted(tensor.source)} are both {tensor.name}", tensor.source)
        self.tensors[tensor.name] = tensor

    def _place(self, item: Item, name: Name) -> None:
        """A tensor, or the parts of a fused one."""
        stem, _, kind = name.pattern.rpartition(".")
        fused = self.naming.fused.get(stem)
        patterns = [f"{part}.{kind}" for part in fused] if fused else [name.pattern]
        turned = name.pattern in self.transposed
        shapes = self._shapes(patterns, item, turned)
        if shapes is None:
            return
        first = 0
        for pattern, shape in zip(patterns, shapes, strict=True):
            part = _cut(item.tensor, shape, first, turned) if fused or turned else replace(item.tensor, shape=shape)
            self._put(replace(part, name=with_layer(pattern, name.layer)))
            first += shape[0]
        for stored in item.stored:
            self.canonical_of[stored.name] = tuple(with_layer(pattern, name.layer) for pattern in patterns)

    def _shapes(self, patterns: list[str], item: Item, turned: bool) -> list[tuple[int, ...]] | None:
        """The canonical shapes that the configuration gives, checked against the stored one."""
        shape = item.tensor.shape
        if patterns[0] not in SHAPES:
            return [shape]
        expected = [tuple(self.dims[letter] for letter in SHAPES[pattern]) for pattern in patterns]
        whole = (sum(part[0] for part in expected), *expected[0][1:])
        stored = whole[::-1] if turned else whole
        if shape != stored:
            source = item.tensor.source
            self._fault(
                f"tensor {quoted(source)} has shape {list(shape)}, the configuration makes it {list(stored)}"
                f"{self._said(patterns)}",
                source,
            )
            return None
        return expected

    def _said(self, patterns: Sequence[str]) -> str:
        """The keys that a shape follows from."""
        letters = dict.fromkeys(letter for pattern in patterns for letter in SHAPES[pattern])
        return said(self.config, *(field for letter in letters for field in FIELDS[letter]), "family")

    def _stack(self, name: str, members: Mapping[int, Item]) -> None:
        """Experts stored one by one become one tensor of several extents."""
        count = self.config.num_experts
        beyond = [n for n in sorted(members) if n >= count]
        if beyond:
            source = members[beyond[0]].tensor.source
            what = f"the number of experts{said(self.config, 'num_experts')}"
            self._fault(f"{what} is {count:,}, {quoted(source)} names expert {beyond[0]:,}", source)
            return
        if len(members) < count:
            missing = next(n for n in range(count) if n not in members)
            there = f"{len(members):,} of {count:,} experts{said(self.config, 'num_experts')} are there"
            self._fault(f"{name}: {there}, expert {missing:,} is missing", next(iter(members.values())).tensor.source)
            return
        ordered = [members[n] for n in range(count)]
        one = ordered[0].tensor
        rows, cols = self.dims["M"], self.dims["E"]
        shape = (cols, rows) if name.endswith("down.weight") else (rows, cols)
        for item in ordered:
            if item.tensor.shape != shape or item.tensor.dtype is not one.dtype:
                self._fault(
                    f"tensor {quoted(item.tensor.source)} is {item.tensor.dtype} {list(item.tensor.shape)}, "
                    f"the configuration and its fellows make it {one.dtype} {list(shape)}"
                    f"{said(self.config, 'expert_ffn_size', 'ffn_size')}",
                    item.tensor.source,
                )
                return
        self._put(
            Tensor(
                name,
                one.source,
                one.dtype,
                (count, *shape),
                tuple(extent for item in ordered for extent in item.tensor.extents),
                plain(count * shape[0], shape[1]),
                tuple(_serial([item.tensor.planes[i] for item in ordered]) for i in range(len(one.planes))),
            )
        )
        for item in ordered:
            for stored in item.stored:
                self.canonical_of[stored.name] = (name,)


def _serial(planes: list[Tensor]) -> Tensor:
    """Planes of several tensors, one after the other."""
    rows = sum(plane.layout.rows for plane in planes)
    cols = planes[0].layout.cols
    return replace(
        planes[0],
        shape=(rows, cols),
        extents=tuple(e for plane in planes for e in plane.extents),
        layout=plain(rows, cols),
    )


def _cut(tensor: Tensor, shape: tuple[int, ...], first: int, turned: bool) -> Tensor:
    """Rows ``first`` and on of a fused tensor, as many as ``shape`` has; of a transposed one, columns."""
    rows, cols = matrix_of(shape, tensor.dtype)
    if turned:
        return replace(
            tensor, shape=shape, layout=transposed(rows, cols, stored_cols=tensor.shape[1], column_offset=first)
        )
    return replace(
        tensor,
        shape=shape,
        extents=tuple(_rows_of(extent, tensor.dtype.nbytes(cols), first, rows) for extent in tensor.extents),
        layout=plain(rows, cols),
        planes=tuple(_cut(plane, (rows, plane.shape[1]), first, False) for plane in tensor.planes),
    )


def _rows_of(extent: Extent, row_bytes: int, first: int, rows: int) -> Extent:
    return Extent(extent.path, extent.offset + first * row_bytes, rows * row_bytes)


def foreign_quantizer(tensors: Sequence[StoredTensor], config: Mapping[str, Any] | None) -> str:
    """What another quantiser made of these tensors, for people; empty where none is recognised.

    It is known by its names, or by its own word, ``quantization_config.quant_method``, beside numbers that are no
    floats: with that word alone the loader quantises, and the checkpoint holds plain matrices.
    """
    settings = (config or {}).get("quantization_config")
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    method = method if isinstance(method, str) else ""
    found = Counter(what for tensor in tensors for ending, what in FOREIGN_QUANTIZERS if tensor.name.endswith(ending))
    if not found and method:
        found["quantised numbers"] = sum(tensor.dtype.kind is not Kind.FLOAT for tensor in tensors)
    what, count = next(iter(found.most_common(1)), ("", 0))
    if not count:
        return ""
    return f"{counted(count, 'tensor')} of {what}" + (f" (quant_method {quoted(method)})" if method else "")
