"""What the modules of an adapter are called: paths of Hugging Face and MLX, GGUF names, canonical names."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from ckconv.adapters.places import Outputs, outputs_of
from ckconv.core.config import ModelConfig
from ckconv.core.names import PARTS, Name, parse, with_layer
from ckconv.errors import quoted
from ckconv.families.catalogue import FAMILIES, family_of_gguf
from ckconv.families.names import GGUF, HF, MLX, Stored, names_of
from ckconv.families.naming_schemes import NESTED, decoder, fusion_names
from ckconv.families.schema import FAMILIES_KEPT, Family
from ckconv.families.sizes import Sizes

_WEIGHT = ".weight"

#: What stands before the paths of a class in memory, where its files have another prefix.
_MEMORY = "memory"


def module_of(path: str, families: Iterable[str] | None = None) -> str | None:
    """The canonical name of the module at a path; ``None`` where the families have no rule, or differ.

    ``model.layers.3.self_attn.q_proj`` -> ``layers.3.attention.q``. One of many experts keeps its number:
    ``layers.3.ffn.experts.5.up``.
    """
    asked = FAMILIES if families is None else families
    found = {module for family in asked if (module := _module_of(path, family))}
    return found.pop() if len(found) == 1 else None


def _module_of(path: str, family: str) -> str | None:
    name, found = stored_at(path, FAMILIES[family])
    if found is None or not _has_module(found) or (name.expert is None and found.parts[0].stack):
        return None
    module = with_layer(found.canonical.removesuffix(_WEIGHT), name.layer)
    return module if name.expert is None else module.replace(".experts.", f".experts.{name.expert}.")


def stored_at(path: str, family: Family) -> tuple[Name, Stored | None]:
    """What a family stores for the module at a path, of Hugging Face or of MLX."""
    for format in (HF, MLX):
        stored = names_of(family, format).stored
        for prefix, instead in (("", ""), *NESTED):
            name = parse(f"{instead}{path.removeprefix(prefix)}{_WEIGHT}")
            if path.startswith(prefix) and name.pattern in stored:
                return name, stored[name.pattern]
    return parse(path), None


def _has_module(found: Stored) -> bool:
    """An adapter changes it as one: it is one matrix, or several side by side, or those of a head after one another."""
    modules = tuple(name.removesuffix(_WEIGHT) for name in found.names)
    return found.side_by_side or modules == PARTS.get(found.canonical.removesuffix(_WEIGHT))


def placed(path: str, families: Iterable[str], model: ModelConfig | None) -> tuple[Outputs | None, str]:
    """Where the rows of the matrix at a path lie, ``None`` for in canonical order; or why that is not known."""
    if model is not None:
        family = FAMILIES[model.family]
        name, found = stored_at(path, family)
        if found is None:
            return None, ""
        if not _has_module(found):
            return None, f"{quoted(path)} holds matrices of which GGUF and MLX make others, and its adapter has no rule"
        return outputs_of(found, Sizes(family, model.scope), name.layer), ""
    stored = [found for family in families if (found := stored_at(path, FAMILIES[family])[1])]
    if all(found.side_by_side for found in stored):
        return None, ""
    return None, f"rows of {quoted(path)} are in the order of the base's heads: --base names the base model"


def families_of(paths: Iterable[str]) -> tuple[str, ...]:
    """The families that have a rule for every path that any family has one for."""
    one_a_layer = {parse(path).pattern: path for path in paths}.values()  # numbers of layers make no difference
    ruled = [{family for family in FAMILIES if _module_of(path, family)} for path in one_a_layer]
    return tuple(family for family in FAMILIES if all(family in families for families in ruled if families))


def path_of(module: str, families: Iterable[str], scheme: str) -> str | None:
    """The path of a module, in the names of a :mod:`naming scheme <ckconv.families.naming_schemes>`.

    Returns:
        ``None`` where families differ, or have no rule.
    """
    name = parse(module)
    found = set()
    for family in families:
        pattern = _paths(FAMILIES[family], scheme).get(name.pattern)
        if pattern is not None:
            found.add(with_layer(pattern, name.layer))
    return found.pop() if len(found) == 1 else None


@lru_cache(maxsize=FAMILIES_KEPT)
def _paths(family: Family, format: str) -> dict[str, str]:
    """Canonical module -> path, patterns both: of tensors that are written, and of those that are stored as one."""
    names = names_of(family, format)
    wholes = {name: found for whole in PARTS for name, found in fusion_names(family, format, whole).items()}
    paths = {name: found.pattern for name, found in names.written.items() if len(found.parts) == 1}
    fused = (*names.always_fused, *wholes.values())
    paths |= {found.canonical: found.pattern for found in fused if _has_module(found)}
    for root, _ in family.prefixes.get(_MEMORY, ()) if format == HF else ():
        own = family.prefixes[HF][0][0]
        paths = {ours: root + theirs.removeprefix(own) for ours, theirs in paths.items() if theirs.startswith(own)}
    return {
        ours.removesuffix(_WEIGHT): theirs.removesuffix(_WEIGHT)
        for ours, theirs in paths.items()
        if theirs.endswith(_WEIGHT)
    }


def gguf_module_of(name: str, family: Family | None) -> str | None:
    """The canonical module of a GGUF tensor (``blk.3.attn_q.weight``), of a fused one included."""
    parsed = parse(name)
    found = names_of(family or decoder(), GGUF).stored.get(parsed.pattern)
    if found is None or not parsed.pattern.endswith(_WEIGHT):
        return None
    return with_layer(found.canonical.removesuffix(_WEIGHT), parsed.layer)


def gguf_name_of(module: str, family: Family) -> str | None:
    """The GGUF tensor that a module's matrix is in llama.cpp, ``None`` where there is none of its own."""
    parsed = parse(module)
    names = names_of(family, GGUF)
    whole = f"{parsed.pattern}{_WEIGHT}"
    fused = next((found for found in names.always_fused if found.canonical == whole), None)
    found = fused or names.written.get(whole) or names.written.get(parsed.pattern)
    if found is None or (fused is None and len(found.parts) > 1):
        return None
    return with_layer(found.pattern, parsed.layer)


def placed_in_gguf(name: str, family: Family, model: ModelConfig) -> Outputs | None:
    """Where the rows of a GGUF's matrix lie, and its columns; ``None`` for in canonical order."""
    parsed = parse(name)
    found = names_of(family, GGUF).stored.get(parsed.pattern)
    return None if found is None else outputs_of(found, Sizes(family, model.scope), parsed.layer)


def weight_pattern(module: str) -> str:
    """The canonical pattern of a module's matrix."""
    return f"{parse(module).pattern}{_WEIGHT}"


def family_named(architecture: str) -> Family | None:
    """The family of a ``general.architecture``; where several share it the dense one, of which nothing more is said."""
    return family_of_gguf(architecture, lambda key: False) or family_of_gguf(architecture, lambda key: True)


def local_path(module: str) -> str | None:
    """A module's path from its layer on (``self_attn.q_proj``), ``None`` outside of the layers."""
    name = parse(module)
    return name.pattern.partition(".{n}.")[2] if name.layer is not None else None
