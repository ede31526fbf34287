"""What the modules of an adapter are called: paths of Hugging Face and MLX, GGUF names, canonical names."""

from __future__ import annotations

from collections.abc import Iterable

from ckconv.adapters.places import Outputs, outputs_of
from ckconv.core.config import ModelConfig
from ckconv.core.tensors import BY_BASE, Name, parse, with_layer
from ckconv.errors import quoted
from ckconv.families.catalogue import FAMILIES, family_of_gguf
from ckconv.families.modules import Rule, has_module, paths_of, rules_at
from ckconv.families.names import GGUF, HF, MLX, Stored, names_of
from ckconv.families.naming_schemes import NESTED, decoder
from ckconv.families.schema import Family
from ckconv.families.sizes import Sizes

_WEIGHT = ".weight"


def module_of(path: str, families: Iterable[str] | None = None) -> str | None:
    """The canonical name of the module at a path; ``None`` where the families have no rule, or differ.

    ``model.layers.3.self_attn.q_proj`` -> ``layers.3.attention.q``. One of many experts keeps its number:
    ``layers.3.ffn.experts.5.up``.
    """
    rules = rules_at(path)
    found = {_module(*rules[family]) for family in (rules if families is None else families) if family in rules}
    found.discard(None)
    return found.pop() if len(found) == 1 else None


def _module(name: Name, rule: Rule) -> str | None:
    if not rule.whole or (name.expert is None and rule.stacked):
        return None
    module = with_layer(rule.module, name.layer)
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


def placed(path: str, families: Iterable[str], model: ModelConfig | None) -> tuple[Outputs | None, str]:
    """Where the rows of the matrix at a path lie, ``None`` for in canonical order; or why that is not known."""
    if model is not None:
        family = FAMILIES[model.family]
        name, found = stored_at(path, family)
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
    """The families that have a rule for every path that any family has one for."""
    one_a_layer = {parse(path).pattern: path for path in paths}.values()  # numbers of layers make no difference
    ruled = [{family for family, found in rules_at(path).items() if _module(*found)} for path in one_a_layer]
    return tuple(family for family in FAMILIES if all(family in families for families in ruled if families))


def path_of(module: str, families: Iterable[str], scheme: str) -> str | None:
    """The path of a module, in the names of a :mod:`naming scheme <ckconv.families.naming_schemes>`.

    Returns:
        ``None`` where families differ, or have no rule.
    """
    name = parse(module)
    paths = paths_of(name.pattern, scheme)
    found = {with_layer(paths[family], name.layer) for family in families if family in paths}
    return found.pop() if len(found) == 1 else None


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
