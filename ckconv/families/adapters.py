"""Modules that an adapter changes, by its tensors and by family paths."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from ckconv.core.config import ModelConfig
from ckconv.core.layouts import Axis, Kind as ElementKind, Layout, Strip, merged, plain, transposed
from ckconv.core.lazy import NamedTuple, replace
from ckconv.core.tensors import (
    BY_BASE,
    PARTS,
    Adapter,
    AdapterModule,
    MetadataKind,
    Name,
    Role,
    StoredTensor,
    Tensor,
    TensorIndex,
    cut,
    parse,
    plain_tensor,
    spellings,
    with_layer,
)
from ckconv.errors import Faults, quoted
from ckconv.families.catalog import FAMILIES, INDEX, checksum_of_files, family_of_gguf, own_files
from ckconv.families.names import GGUF, HF, MLX, NESTED_PATHS, NameRule, Names, decoder, fusion_names, names_of
from ckconv.families.schema import MAX_FAMILIES, MEMORY, Family
from ckconv.families.sizes import Kind, Sizes, canonical_shape, has_transposed

# -- Paths of the modules of every family, for Hugging Face and MLX ----------------------------------------------------

# An adapter that is given without its base names no family: every one is asked for its paths. So that this does not
# take as long as reading them all, :data:`PATHS` has the answers of the shipped ones (``scripts/record_modules.py``).

PATHS = INDEX.with_name("modules.json")

_WEIGHT = ".weight"


class Rule(NamedTuple):
    """Canonical module of a family at a path.

    Attributes:
        module: canonical pattern.
        whole: an adapter changes it as one: it is one matrix, several side by side, or those of a head after one
            another.
        stacked: the path is that of one of many, as an expert's.
        in_order: rows of an adapter are those of one part after the other.
    """

    module: str
    whole: bool
    stacked: bool
    in_order: bool


class Modules(NamedTuple):
    """All paths of some families.

    Attributes:
        stored: format -> pattern of a path -> the rules there, and the families that have each.
        written: format -> pattern of a module -> its paths, and the families that call it so.
        transposed: the families whose matrices are stored ``[in, out]``.
    """

    stored: Mapping[str, Mapping[str, list[tuple[Rule, frozenset[str]]]]]
    written: Mapping[str, Mapping[str, list[tuple[str, frozenset[str]]]]]
    transposed: frozenset[str]


def rules_at(path: str) -> dict[str, tuple[Name, Rule]]:
    """Family -> rule for a module's path, and the parts of the path."""
    found: dict[str, tuple[Name, Rule]] = {}
    for modules in _in_force():
        for format in (HF, MLX):
            for prefix, instead in (("", ""), *NESTED_PATHS):
                spelled = f"{instead}{path.removeprefix(prefix)}{_WEIGHT}"
                for name in spellings(spelled) if path.startswith(prefix) else ():
                    for rule, families in modules.stored[format].get(name.pattern.removesuffix(_WEIGHT), ()):
                        for family in families - found.keys():
                            found[family] = name, rule
    return found


def paths_of(module: str, format: str) -> dict[str, str]:
    """Family -> the path of a module, patterns both, in a format."""
    return {
        family: path
        for modules in _in_force()
        for path, families in modules.written[format].get(module, ())
        for family in families
    }


def transposing() -> frozenset[str]:
    """The families whose matrices Hugging Face stores ``[in, out]``."""
    return frozenset().union(*(modules.transposed for modules in _in_force()))


def _in_force() -> list[Modules]:
    own = own_files().families
    if not own:
        return [_shipped()]
    return [_without(_shipped(), own.keys()), modules_of(own.values())]


def _without(modules: Modules, names: Iterable[str]) -> Modules:
    gone = frozenset(names)
    stored, written = (
        {
            format: {key: [(one, families - gone) for one, families in rows] for key, rows in table.items()}
            for format, table in tables.items()
        }
        for tables in (modules.stored, modules.written)
    )
    return Modules(stored, written, modules.transposed - gone)  # type: ignore[arg-type]


@cache
def _shipped() -> Modules:
    document = json.loads(PATHS.read_bytes())
    if document["checksum"] != checksum_of_files():  # a family file was changed since
        return modules_of(FAMILIES[name] for name in FAMILIES)
    groups = [frozenset(group) for group in document["groups"]]
    stored = {
        format: {
            path: [(Rule(module, *map(bool, flags)), groups[group]) for module, *flags, group in rows]
            for path, rows in table.items()
        }
        for format, table in document["stored"].items()
    }
    written = {
        format: {module: [(path, groups[group]) for path, group in rows] for module, rows in table.items()}
        for format, table in document["written"].items()
    }
    return Modules(stored, written, groups[document["transposed"]])


def modules_of(families: Iterable[Family]) -> Modules:
    """The modules of these families, from their files."""
    stored: dict[str, dict[str, dict[Rule, set[str]]]] = {}
    written: dict[str, dict[str, dict[str, set[str]]]] = {}
    turned = set()
    for family in families:
        turned |= {family.name} if has_transposed(family) else set()
        for format in (HF, MLX):
            rules, paths = (tables.setdefault(format, {}) for tables in (stored, written))
            names = names_of(family, format)
            for pattern, found in names.stored.items():
                if pattern.endswith(_WEIGHT):
                    rule = rule_of(found)
                    if len({one.canonical for one in names.choices.get(pattern, ())}) > 1:  # a base says which
                        rule = rule._replace(whole=False)
                    path = pattern.removesuffix(_WEIGHT)
                    rules.setdefault(path, defaultdict(set))[rule].add(family.name)  # type: ignore[index]
            for module, path in _paths(family, format).items():
                paths.setdefault(module, defaultdict(set))[path].add(family.name)  # type: ignore[index]
    return Modules(_frozen(stored), _frozen(written), frozenset(turned))


def _frozen(tables: Mapping[str, Mapping[str, Mapping[Any, set[str]]]]) -> dict[str, dict[str, list[Any]]]:
    return {
        format: {key: [(one, frozenset(families)) for one, families in rows.items()] for key, rows in table.items()}
        for format, table in tables.items()
    }


def has_module(found: NameRule) -> bool:
    """Whether an adapter can change the module as a single matrix.

    And its class does not multiply what comes out of it, which other formats have in the matrix.
    """
    if any(part.by is not None for part in found.parts):
        return False
    modules = tuple(name.removesuffix(_WEIGHT) for name in found.names)
    return found.side_by_side or modules == PARTS.get(found.canonical.removesuffix(_WEIGHT))


def rule_of(found: NameRule) -> Rule:
    """The rule for a stored matrix."""
    stacked = bool(found.parts[0].stack)
    return Rule(found.canonical.removesuffix(_WEIGHT), has_module(found), stacked, found.side_by_side)


@lru_cache(maxsize=MAX_FAMILIES)
def _paths(family: Family, format: str) -> dict[str, str]:
    """Canonical module -> path, as patterns, fused modules included."""
    names = names_of(family, format)
    wholes = {name: found for whole in PARTS for name, found in fusion_names(family, format, whole).items()}
    paths = {name: found.pattern for name, found in names.written.items() if len(found.parts) == 1}
    fused = (*names.always_fused, *wholes.values())
    paths |= {found.canonical: found.pattern for found in fused if has_module(found)}
    in_memory = {
        found.canonical: found.pattern
        # of several prefixes the first is written
        for found in reversed([*names.stored.values(), *itertools.chain(*names.choices.values())])
        for cell in found.parts[0].row.cells[format]
        if cell.memory and found.pattern.endswith(f"{cell.name[1:]}{_WEIGHT}")
    }
    paths |= in_memory if format == HF else {}
    for root, layer in family.prefixes.get(MEMORY, ()) if format == HF else ():
        stored_root, stored_layer = family.prefixes[HF][0]
        paths = {
            ours: layer + path.removeprefix(stored_layer)
            if path.startswith(stored_layer)
            else root + path.removeprefix(stored_root)
            for ours, path in paths.items()
            if path.startswith((stored_layer, stored_root))
        }
    return {
        ours.removesuffix(_WEIGHT): path.removesuffix(_WEIGHT) for ours, path in paths.items() if path.endswith(_WEIGHT)
    }


def recorded_paths(modules: Modules) -> dict[str, Any]:
    """Contents of ``modules.json`` for these modules."""
    groups: dict[frozenset[str], int] = {}

    def number(families: frozenset[str]) -> int:
        return groups.setdefault(families, len(groups))

    stored = {
        format: {
            path: [[rule.module, *map(int, rule[1:]), number(families)] for rule, families in table[path]]
            for path in sorted(table)
        }
        for format, table in modules.stored.items()
    }
    written = {
        format: {module: [[path, number(families)] for path, families in table[module]] for module in sorted(table)}
        for format, table in modules.written.items()
    }
    transposed = number(modules.transposed)
    return {
        "checksum": checksum_of_files(),
        "groups": [sorted(group) for group in groups],
        "transposed": transposed,
        "stored": stored,
        "written": written,
    }


# -- Modules that an adapter changes, and where LoRA matrices lie ------------------------------------------------------


class Change(NamedTuple):
    """Change of one matrix of the base: its tensors by role."""

    module: AdapterModule
    tensors: Mapping[Role, Tensor]


#: The modules whose rows are as many as there are tokens.
EMBEDDING_MODULE, HEAD_MODULE = "token_embedding", "output"


#: Way out where the base at hand is another model.
OTHER_BASE = "--base BASE names the model it was made for"


def resized_first(module: str, shape: tuple[int, ...], there: tuple[int, ...], base: TensorIndex | None) -> str | None:
    """Way out of a vocabulary of another size, else ``None``.

    Args:
        there: shape of the base's matrix.
        base: with its tensors, which transformers resizes as floats of a checkpoint.
    """
    if module not in (EMBEDDING_MODULE, HEAD_MODULE) or len(shape) != 2 or shape[1:] != there[1:]:
        return None
    blocks = base is not None and any(tensor.dtype.kind is ElementKind.BLOCK for tensor in base.tensors.values())
    plain = base is None or not (blocks or base.metadata_kind is MetadataKind.TYPED)
    first = (
        ""
        if plain
        else f"ckconv convert BASE DST/ --to hf{' --dequantize' if blocks else ''} makes a base for transformers; "
    )
    return f"{first}resize the base first: resize_token_embeddings({shape[0]}) of transformers, and save_pretrained()"


def family_of(adapter: Adapter) -> Family | None:
    """The family of the base, where it is known."""
    return FAMILIES[adapter.base.family] if adapter.base else None


def matrix_shape(module_name: str, config: ModelConfig) -> tuple[int, ...] | None:
    """Shape ``[out, in]`` of a module of the base, or ``None``."""
    name = parse(module_name)
    if name.layer is not None and name.layer >= config.num_layers:
        return None
    family = FAMILIES[config.family]
    parts = [with_layer(part, name.layer) for part in PARTS.get(name.pattern, (name.pattern,))]
    shapes = [
        canonical_shape(family, config.scope, f"{part}.weight") or canonical_shape(family, config.scope, part)
        for part in parts
    ]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    if len(known) == 1:
        return known[0]
    return (sum(math.prod(shape[:-1]) for shape in known), known[0][-1])


def changes_of(index: TensorIndex, name: str, config: ModelConfig) -> tuple[Change, ...]:
    """Changes of a canonical tensor (``layers.0.attention.q.weight``).

    Args:
        config: the base model's, for the rows of fused modules.
    """
    assert index.adapter is not None
    module_name = name.removesuffix(".weight").removesuffix(".bias")
    named = parse(module_name)
    found = []
    own = index.adapter.modules.get(module_name)
    if own is not None:
        found.append(Change(own, {role: index.tensors[f"{module_name}.{role.value}"] for role in own.roles}))
    for fused, parts in PARTS.items():
        whole = with_layer(fused, named.layer)
        module = index.adapter.modules.get(whole)
        if module is None or named.pattern not in parts:
            continue
        shapes = [matrix_shape(with_layer(part, named.layer), config) or (0, 0) for part in parts]
        heights = [math.prod(shape[:-1]) for shape in shapes]  # of heads, too
        at = parts.index(named.pattern)
        first = sum(heights[:at])
        tensors = {}
        for role in module.roles:
            tensor = index.tensors[f"{whole}.{role.value}"]
            by_rows = role is not Role.A and not (role is Role.IA3 and module.feedforward)
            tensors[role] = rows_of(tensor, first, heights[at]) if by_rows else tensor
        found.append(Change(module, tensors))
    return tuple(found)


def rows_of(tensor: Tensor, first: int, rows: int) -> Tensor:
    """Canonical rows of a tensor stored in order or transposed."""
    layout, shape = tensor.layout, (rows, *tensor.shape[1:])
    if not layout.whole_rows or len(layout.strips) > 1:
        return replace(tensor, shape=shape, layout=layout.part(first, rows))
    row_bytes = tensor.dtype.nbytes(layout.cols)
    extents = tuple(cut(tensor.extents, first * row_bytes, (first + rows) * row_bytes))
    layout = replace(layout.part(0, rows), stored_rows=rows, shared=layout.shared)
    return replace(tensor, shape=shape, extents=extents, layout=layout)


# LoRA of a matrix that is several in the target: each gets its rows of ``lora_b``, and all of them ``lora_a``.
#
# Granite 4 has gate and up in one matrix, Qwen 3 Next what its linear layers begin with; GGUF and MLX do not.


def parted(index: TensorIndex, has_place: Callable[[str, ModelConfig], bool]) -> TensorIndex:
    """Adapter with fused modules in parts, where a target wants them.

    Args:
        has_place: the target has one matrix for a module.
    """
    adapter = index.adapter
    if adapter is None or adapter.base is None:
        return index
    base, modules = adapter.base, {}
    tensors, canonical_of = dict(index.tensors), dict(index.canonical_of)
    for module in adapter.modules.values():
        parts = [] if has_place(module.name, base) else _parts(module, base, has_place)
        if not parts:
            modules[module.name] = module
            continue
        made: dict[Role, list[str]] = {role: [] for role in module.roles}
        pair = {role: tensors.pop(f"{module.name}.{role.value}") for role in module.roles}
        first = 0
        for name, rows in parts:
            modules[name] = module._replace(name=name)
            for role, whole in pair.items():
                own = replace(rows_of(whole, first, rows) if role is Role.B else whole, name=f"{name}.{role.value}")
                tensors[own.name] = own
                made[role].append(own.name)
            first += rows
        canonical_of |= {whole.source: tuple(made[role]) for role, whole in pair.items()}
    return replace(index, adapter=replace(adapter, modules=modules), tensors=tensors, canonical_of=canonical_of)


def parted_alike(index: TensorIndex, other: TensorIndex) -> TensorIndex:
    """Adapter with a fused module in parts, as another adapter has these."""
    adapter = other.adapter
    return index if adapter is None else parted(index, lambda module, _: module in adapter.modules)


def _parts(
    module: AdapterModule, base: ModelConfig, has_place: Callable[[str, ModelConfig], bool]
) -> list[tuple[str, int]]:
    """Names and rows of a module's matrices in the target."""
    named = parse(module.name)
    left, found = PARTS.get(named.pattern, ()), []
    while left and module.roles == (Role.A, Role.B):
        for name, many in _beginnings(left):
            own, shape = with_layer(name, named.layer), matrix_shape(with_layer(name, named.layer), base)
            if shape is not None and len(shape) == 2 and has_place(own, base):
                found.append((own, math.prod(shape[:-1])))
                left = left[many:]
                break
        else:
            return []
    return found


def _beginnings(parts: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Name of the first parts together and their number, longest first."""
    yield from ((whole, len(of)) for whole, of in PARTS.items() if of == parts[: len(of)] and len(of) < len(parts))
    yield parts[0], 1


# Where the matrices of a LoRA lie: as the outputs and the inputs of a stored matrix lie along its two axes.
#
# A format that stores rows of heads in another order, or Q, K and V head by head, has the rows of ``lora_b`` in that
# order; ``lora_a`` knows nothing of it. So a LoRA of such a matrix is as exact as one of any other.


class Side(NamedTuple):
    """Outputs or inputs of a matrix along one stored axis."""

    first: int
    axes: tuple[Axis, ...]

    def spread(self, step: int) -> tuple[Axis, ...]:
        """The axes where the stored elements are so far apart."""
        return tuple((count, stride * step) for count, stride in self.axes)


class Sides(NamedTuple):
    """Outputs and inputs of a canonical matrix, in either order."""

    outputs: Side
    inputs: Side
    turned: bool


class Outputs(NamedTuple):
    """Outputs of a stored matrix, and moved inputs."""

    sides: tuple[Side, ...]
    rows: int
    inputs: Side | None = None

    def layout(self, rank: int, *, turned: bool = False, stored_rank: int = 0) -> Layout:
        """Layout of ``lora_b`` ``[out, rank]``.

        Args:
            turned: stored as ``[rank, out]``.
            stored_rank: rank of the stored matrix, filled with zeros; 0 for ``rank``.
        """
        width = stored_rank or rank
        step, along = (1, self.rows) if turned else (width, 1)
        strips = tuple(
            Strip(side.first * step, merged(side.spread(step)), merged([(rank, along)])) for side in self.sides
        )
        stored = (width, self.rows) if turned else (self.rows, width)
        return Layout(self.rows, rank, *stored, strips)

    def layout_of_a(self, rank: int, cols: int) -> Layout:
        """Layout of ``lora_a``, stored ``[rank, in]``."""
        moved = self.inputs or Side(0, ((cols, 1),))
        strips = (Strip(moved.first, merged([(rank, cols)]), merged(moved.axes)),)
        return Layout(rank, cols, rank, cols, strips)


def sides_of(kind: Kind) -> Sides | None:
    """Two sides of a matrix or stack; ``None`` if axes mix them."""
    rows, _ = _matrix(kind)
    if len(kind.whole) < 2 or len(kind.shape) < len(kind.whole):
        return None
    across = kind.whole[-1]
    axes = kind.axes[1:] if len(kind.whole) == 3 else kind.axes
    split = next((n for n in range(len(axes) + 1) if math.prod(a for a, _ in axes[:n]) == rows), None)
    if split is None:
        return None
    found = []
    for own in (axes[:split], axes[split:]):
        second = {stride < across for count, stride in own if count > 1}
        if len(second) > 1:
            return None
        found.append((own, second.pop() if second else None))
    (own_rows, rows_second), (own_columns, columns_second) = found
    turned = bool(rows_second) if rows_second is not None else columns_second is False
    if columns_second is turned:
        return None
    down, right = divmod(kind.first, across)
    outputs = Side(right if turned else down, own_rows if turned else _divided(own_rows, across))
    inputs = Side(down if turned else right, _divided(own_columns, across) if turned else own_columns)
    return Sides(outputs, inputs, turned)


def _matrix(kind: Kind) -> tuple[int, int]:
    """Rows and columns of a matrix, or of each one of a stack."""
    stacked = len(kind.whole) == 3
    return math.prod(kind.shape[stacked:-1]), kind.shape[-1]


def _divided(axes: Sequence[Axis], by: int) -> tuple[Axis, ...]:
    return tuple((count, stride // by) for count, stride in axes)


def outputs_of(stored: NameRule, sizes: Sizes, layer: int | None) -> Outputs | None:
    """Positions of outputs and inputs; ``None`` for canonical order."""
    kinds = [sizes.kind(part, layer) for part in stored.parts]
    sides = [sides_of(kind) for kind in kinds]
    known = [side for side in sides if side is not None]
    if len(known) < len(sides):
        return None
    first, in_order = 0, True
    for kind, side in zip(kinds, known, strict=True):
        rows, _ = _matrix(kind)
        in_order &= side.outputs.first == first and merged(side.outputs.axes) in ((), ((rows, 1),))
        first += rows
    height, inputs = kinds[0].whole[-1 if known[0].turned else -2], known[0].inputs
    same = merged(inputs.axes) in ((), ((kinds[0].shape[-1], 1),))
    if in_order and same:
        return None
    return Outputs(tuple(side.outputs for side in known), height, None if same else inputs)


# What the modules of an adapter are called: paths of Hugging Face and MLX, GGUF names, canonical names.


def module_of(path: str, families: Iterable[str] | None = None, model: ModelConfig | None = None) -> str | None:
    """Canonical module at a path; ``None`` if families differ.

    ``model.layers.3.self_attn.q_proj`` -> ``layers.3.attention.q``. One of many experts keeps its number:
    ``layers.3.ffn.experts.5.up``.

    Args:
        model: the base, which says of what kind a layer is.
    """
    if model is not None:
        name, stored = stored_at(path, model)
        return None if stored is None else _module(name, rule_of(stored))
    rules = rules_at(path)
    found = {_module(*rules[family]) for family in (rules if families is None else families) if family in rules}
    found.discard(None)
    return found.pop() if len(found) == 1 else None


def _module(name: Name, rule: Rule) -> str | None:
    if not rule.whole or (name.expert is None and rule.stacked):
        return None
    module = with_layer(rule.module, name.layer)
    return module if name.expert is None else module.replace(".experts.", f".experts.{name.expert}.")


def stored_at(path: str, model: ModelConfig) -> tuple[Name, NameRule | None]:
    """Stored names of the module at a Hugging Face or MLX path, of its layer."""
    family = FAMILIES[model.family]
    for format in (HF, MLX):
        names = names_of(family, format)
        stored = names.stored
        prefixes = (pair for pair in (("", ""), *NESTED_PATHS) if path.startswith(pair[0]))
        for name in (name for old, new in prefixes for name in spellings(f"{new}{path.removeprefix(old)}{_WEIGHT}")):
            if name.pattern in stored:
                choices = names.choices.get(name.pattern, ())
                here = (one for one in choices if Sizes(family, model.scope).has(one.parts[0].row, name.layer))
                return name, next(here, stored[name.pattern])
    return parse(path), None


def placed(path: str, families: Iterable[str], model: ModelConfig | None) -> tuple[Outputs | None, str]:
    """Positions of the rows at a path, ``None`` for canonical order."""
    if model is not None:
        family = FAMILIES[model.family]
        name, found = stored_at(path, model)
        if found is None:
            return None, ""
        if not has_module(found):
            return (
                None,
                f"{quoted(path)} holds matrices that GGUF and MLX store in another form; its adapter has no rule",
            )
        return outputs_of(found, Sizes(family, model.scope), name.layer), ""
    rules = rules_at(path)
    if all(rules[family][1].in_order for family in families if family in rules):
        return None, ""
    return None, f"rows of {quoted(path)} are in the order of heads, {BY_BASE}"


def families_of(paths: Iterable[str]) -> tuple[str, ...]:
    """Families that have a rule for every known path."""
    one_a_layer = {parse(path).pattern: path for path in paths}.values()  # numbers of layers make no difference
    ruled = [{family for family, found in rules_at(path).items() if _module(*found)} for path in one_a_layer]
    return tuple(family for family in FAMILIES if all(family in families for families in ruled if families))


def path_of(module: str, families: Iterable[str], scheme: str) -> str | None:
    """Path of a module in a naming scheme.

    Returns:
        ``None`` where families differ, or have no rule.
    """
    name = parse(module)
    paths = paths_of(name.pattern, scheme)
    found = {with_layer(paths[family], name.layer) for family in families if family in paths}
    return found.pop() if len(found) == 1 else None


def _by_layer(names: Names, pattern: str) -> bool:
    """Whether tensors of several kinds of layers have this name."""
    return any(one.numbers is not None or one.parts[0].row.layers for one in names.choices.get(pattern, ()))


def gguf_module_of(name: str, family: Family | None) -> str | None:
    """Canonical module of a GGUF tensor (``blk.3.attn_q.weight``)."""
    parsed = parse(name)
    names = names_of(family or decoder(), GGUF)
    found = names.stored.get(parsed.pattern)
    if found is None or _by_layer(names, parsed.pattern) or not parsed.pattern.endswith(_WEIGHT):
        return None
    return with_layer(found.canonical.removesuffix(_WEIGHT), parsed.layer)


def gguf_name_of(module: str, family: Family) -> str | None:
    """GGUF tensor of a module's matrix.

    ``None`` without one, or where another kind of layer calls one so, too.
    """
    parsed = parse(module)
    names = names_of(family, GGUF)
    whole = f"{parsed.pattern}{_WEIGHT}"
    fused = next((found for found in names.always_fused if found.canonical == whole), None)
    found = fused or names.written.get(whole) or names.written.get(parsed.pattern)
    if found is None or _by_layer(names, found.pattern) or (fused is None and len(found.parts) > 1):
        return None
    return with_layer(found.pattern, parsed.layer)


def placed_in_gguf(name: str, family: Family, model: ModelConfig) -> Outputs | None:
    """Positions of a GGUF matrix's rows, and its columns."""
    parsed = parse(name)
    found = names_of(family, GGUF).stored.get(parsed.pattern)
    return None if found is None else outputs_of(found, Sizes(family, model.scope), parsed.layer)


def weight_pattern(module: str) -> str:
    """The canonical pattern of a module's matrix."""
    return f"{parse(module).pattern}{_WEIGHT}"


def family_named(architecture: str) -> Family | None:
    """Family of a ``general.architecture``, the dense one of several."""
    return family_of_gguf(architecture, lambda key: False) or family_of_gguf(architecture, lambda key: True)


def local_path(module: str) -> str | None:
    """Module path within its layer (``self_attn.q_proj``)."""
    name = parse(module)
    return module.partition(f".{name.layer}.")[2] if name.layer is not None else None


# -- Modules of an adapter out of its stored tensors -------------------------------------------------------------------


class Part(NamedTuple):
    """Stored tensor of a module and its role, transposed or not."""

    stored: StoredTensor
    transposed: bool = False


class Shape(NamedTuple):
    """Configuration of one module's LoRA: rank, alpha, scale.

    Attributes:
        given: how the file says its rank (``r``), for errors.
    """

    scale: float
    rank: int | None = None
    alpha: float | None = None
    given: str = "r"


class AdapterModules(NamedTuple):
    """The modules of an adapter and their tensors, by canonical name."""

    modules: Mapping[str, AdapterModule]
    tensors: Mapping[str, Tensor]
    canonical_of: Mapping[str, tuple[str, ...]]


class Collector:
    """Gathers the modules of one adapter, and every fault of them."""

    def __init__(self, path: Path) -> None:
        self.faults = Faults(path)
        self._modules: dict[str, AdapterModule] = {}
        self._tensors: dict[str, Tensor] = {}
        self._canonical_of: dict[str, tuple[str, ...]] = {}

    def add(
        self,
        name: str,
        path: str,
        parts: Mapping[Role, Part],
        shape: Shape,
        *,
        embedding: bool = False,
        feedforward: bool = False,
        replaced: tuple[int, ...] = (),
        outputs: Outputs | None = None,
    ) -> None:
        """Add one module.

        Args:
            name: canonical, or the file's own where there is no rule.
            replaced: which rows of the base its own replace.
            outputs: where the rows of ``lora_b`` are, if not in canonical order.
            shape: of its LoRA; not looked at where it has none.
        """
        other = self._modules.get(name)
        if other is not None:
            self.faults.add("adapter.base", f"{quoted(other.path)} and {quoted(path)} are both {name}", tensor=path)
            return
        rank = 0
        if Role.A in parts or Role.B in parts:
            found = self._rank(name, path, parts, shape)
            if found is None:
                return
            rank = found
        for role, part in parts.items():
            tensor = _tensor(f"{name}.{role.value}", part)
            if role is Role.B and outputs is not None:
                if tensor.shape[0] != outputs.rows:
                    message = f"{quoted(part.stored.name)} has {tensor.shape[0]:,} rows, the base has {outputs.rows:,}"
                    self.faults.add("adapter.base", message, tensor=path)
                    return
                tensor = replace(tensor, layout=outputs.layout(rank, turned=part.transposed))
            if role is Role.B or role is Role.BIAS:
                tensor = replace(tensor, layout=replace(tensor.layout, scale=shape.scale))
            self._tensors[tensor.name] = tensor
            self._canonical_of[part.stored.name] = (tensor.name,)
        roles = tuple(role for role in Role if role in parts)
        self._modules[name] = AdapterModule(
            name,
            path,
            roles,
            rank,
            shape.alpha if rank else None,
            shape.scale if rank else 1.0,
            embedding,
            feedforward,
            replaced,
        )

    def add_made(self, module: AdapterModule, tensors: Mapping[Role, Tensor]) -> None:
        """Add a module of canonical tensors, or of parts of stored ones."""
        self._modules[module.name] = module
        for tensor in tensors.values():
            self._tensors[tensor.name] = tensor
            self._canonical_of[tensor.source] = (*self._canonical_of.get(tensor.source, ()), tensor.name)

    def finish(self) -> AdapterModules:
        """Everything gathered.

        Raises:
            InputError: ``adapter.rank``, ``adapter.scale``, ``adapter.base``: every fault of the first kind found.
        """
        self.faults.check()
        return AdapterModules(self._modules, self._tensors, self._canonical_of)

    def _rank(self, name: str, path: str, parts: Mapping[Role, Part], shape: Shape) -> int | None:
        """The rank that both matrices and the configuration agree on."""
        for role, other in ((Role.A, Role.B), (Role.B, Role.A)):
            if role in parts and other not in parts:
                there = parts[role].stored.name
                self.faults.add("adapter.rank", f"{quoted(there)} has no {_ROLE_NAMES[other]} beside it", tensor=there)
                return None
        a, b = (_tensor("", parts[role]) for role in (Role.A, Role.B))
        axes = 3 if ".experts." in name and len(a.shape) == 3 else 2
        for role, tensor in ((Role.A, a), (Role.B, b)):
            wrong = len(tensor.shape) != axes or 0 in tensor.shape or tensor.shape[:-2] != a.shape[:-2]
            if wrong or tensor.dtype.kind not in (ElementKind.FLOAT, ElementKind.BLOCK):
                stored = parts[role].stored
                message = f"{quoted(stored.name)} is {stored.dtype} {list(stored.shape)}, not a matrix of numbers"
                self.faults.add("adapter.rank", message, tensor=stored.name)
                return None
        ranks = a.shape[-2], b.shape[-1]
        if ranks[0] != ranks[1]:
            message = f"{path}: lora_A has rank {ranks[0]}, lora_B {ranks[1]}"
            self.faults.add("adapter.rank", message, tensor=path, found=ranks[1], allowed=ranks[0])
            return None
        if shape.rank is not None and shape.rank != ranks[0]:
            message = f"{path}: lora_A and lora_B have rank {ranks[0]}, {shape.given} makes it {shape.rank}"
            self.faults.add("adapter.rank", message, tensor=path, found=ranks[0], allowed=shape.rank)
            return None
        return ranks[0]


_ROLE_NAMES = {Role.A: "A", Role.B: "B"}


def _tensor(name: str, part: Part) -> Tensor:
    """The canonical tensor of a stored one."""
    tensor = plain_tensor(name, part.stored)
    if not part.transposed or len(part.stored.shape) != 2:
        return tensor
    cols, rows = part.stored.shape
    return replace(tensor, shape=(rows, cols), layout=transposed(rows, cols))


def vector(part: Part) -> Part:
    """A vector that its file stores as a matrix of one row or column."""
    stored = part.stored
    shape = tuple(size for size in stored.shape if size != 1) or (1,)
    return Part(stored._replace(shape=shape)) if len(shape) == 1 else part


# LoRA of experts whose modules are one by one in a file: all of a layer become one module, as where they are stacked.
#
# transformers 4 has a module for each expert, and adapters that were trained with it have two matrices for each. GGUF
# and MLX have stacks of them.

#: What stands for the number of an expert in the path of all of them.
NUMBER = "{e}"

_PAIR = (Role.A, Role.B)


def experts_together(collected: AdapterModules, model: ModelConfig) -> AdapterModules:
    """Modules with single experts stacked, where all are alike.

    The path of such a module has :data:`NUMBER` for the number of the expert.
    """
    groups: dict[str, dict[int, AdapterModule]] = defaultdict(dict)
    for module in collected.modules.values():
        name = parse(module.name)
        if name.expert is not None and module.roles == _PAIR:
            groups[with_layer(name.pattern.replace(f".{NUMBER}", ""), name.layer)][name.expert] = module
    modules, tensors = dict(collected.modules), dict(collected.tensors)
    canonical_of = dict(collected.canonical_of)
    for whole, members in groups.items():
        shape = matrix_shape(whole, model)
        ordered = [members[number] for number in sorted(members)]
        found = {role: [tensors[f"{module.name}.{role.value}"] for module in ordered] for role in _PAIR}
        alike = all(_alike(each) for each in found.values())
        if shape is None or sorted(members) != list(range(shape[0])) or not alike:
            continue
        for module in ordered:
            del modules[module.name]
        number = f".{parse(ordered[0].name).expert}."
        before, _, after = ordered[0].path.rpartition(number)
        modules[whole] = ordered[0]._replace(name=whole, path=f"{before}.{NUMBER}.{after}")
        for role, each in found.items():
            made = _stacked(f"{whole}.{role.value}", each)
            for tensor in each:
                del tensors[tensor.name]
                canonical_of[tensor.source] = (made.name,)
            tensors[made.name] = made
    return AdapterModules(modules, tensors, canonical_of)


def _alike(tensors: list[Tensor]) -> bool:
    first = tensors[0]
    return all(
        (one.shape, one.dtype, one.layout) == (first.shape, first.dtype, first.layout) and one.layout.whole_rows
        for one in tensors
    )


def _stacked(name: str, tensors: list[Tensor]) -> Tensor:
    first, count = tensors[0], len(tensors)
    layout = replace(plain(count * first.layout.rows, first.layout.cols), scale=first.layout.scale)
    extents = tuple(extent for tensor in tensors for extent in tensor.extents)
    return replace(first, name=name, shape=(count, *first.shape), extents=extents, layout=layout)


def one_by_one(tensor: Tensor) -> list[Tensor]:
    """The matrices of a stack that :func:`experts_together` made."""
    count, rows, columns = tensor.shape
    flat = replace(tensor, shape=(count * rows, columns))
    return [rows_of(flat, number * rows, rows) for number in range(count)]
