"""What the modules of an adapter are called: paths of Hugging Face and MLX, GGUF names, canonical names."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from ckconv.core.names import PARTS, parse, with_layer
from ckconv.families.catalogue import FAMILIES, family_of_gguf
from ckconv.families.names import GGUF, HF, MLX, names_of
from ckconv.families.naming_schemes import NESTED, decoder, fusion_names
from ckconv.families.schema import FAMILIES_KEPT, Family

_WEIGHT = ".weight"


def module_of(path: str, families: Iterable[str] | None = None) -> str | None:
    """The canonical name of the module at a path; ``None`` where the families have no rule, or differ.

    ``model.layers.3.self_attn.q_proj`` -> ``layers.3.attention.q``. One of many experts keeps its number:
    ``layers.3.ffn.experts.5.up``.
    """
    asked = FAMILIES if families is None else families
    found = {module for family in asked if (module := _module_of(path, family))}
    return found.pop() if len(found) == 1 else None


def mixed(path: str, families: Iterable[str]) -> bool:
    """The matrix at a path holds Q, K and V of one head after those of another."""
    patterns = [(names_of(FAMILIES[family], HF).stored, parse(f"{path}{_WEIGHT}").pattern) for family in families]
    return any(pattern in stored and not stored[pattern].side_by_side for stored, pattern in patterns)


def _module_of(path: str, family: str) -> str | None:
    spelled = [
        parse(f"{instead}{path[len(prefix) :]}{_WEIGHT}")
        for prefix, instead in (("", ""), *NESTED)
        if path.startswith(prefix)
    ]
    for format in (HF, MLX):
        stored = names_of(FAMILIES[family], format).stored
        for name in spelled:
            found = stored.get(name.pattern)
            if found is not None and found.side_by_side and (name.expert is not None or not found.parts[0].stack):
                module = with_layer(found.canonical.removesuffix(_WEIGHT), name.layer)
                return module if name.expert is None else module.replace(".experts.", f".experts.{name.expert}.")
    return None


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
    paths |= {found.canonical: found.pattern for found in fused if found.side_by_side}
    return {
        ours.removesuffix(_WEIGHT): theirs.removesuffix(_WEIGHT)
        for ours, theirs in paths.items()
        if theirs.endswith(_WEIGHT)
    }


def gguf_module_of(name: str, family: Family | None) -> str | None:
    """The canonical module of a GGUF tensor (``blk.3.attn_q.weight``), of a fused one included."""
    parsed = parse(name)
    found = names_of(family or decoder(), GGUF).stored.get(parsed.pattern)
    if found is None or not found.canonical.endswith(_WEIGHT):
        return None
    return with_layer(found.canonical.removesuffix(_WEIGHT), parsed.layer)


def gguf_name_of(module: str, family: Family) -> str | None:
    """The GGUF tensor that a module's matrix is in llama.cpp, ``None`` where there is none of its own."""
    parsed = parse(module)
    names = names_of(family, GGUF)
    whole = f"{parsed.pattern}{_WEIGHT}"
    fused = next((found for found in names.always_fused if found.canonical == whole), None)
    found = fused or names.written.get(whole)
    if found is None or (fused is None and len(found.parts) > 1):
        return None
    return with_layer(found.pattern, parsed.layer)


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
