"""What the modules of an adapter are called: paths of Hugging Face and MLX, stems of GGUF names, canonical stems."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from ckconv.core.names import GGUF_NAMES, parse, with_layer
from ckconv.families.architectures import FAMILIES, Family
from ckconv.families.huggingface_names import NAMINGS, NESTED, PARTS

_WEIGHT = ".weight"

#: Where transformers and MLX keep all modules but the output head, if not where the table says.
_ROOTS: dict[tuple[str, str], str] = {("gpt2", "peft"): "transformer.", ("gpt2", "mlx"): "model."}
_HEAD = "output"


def stem_of(path: str, families: Iterable[str] = NAMINGS) -> str | None:
    """The canonical stem of a module's path; ``None`` where the families have no rule, or differ.

    ``model.layers.3.self_attn.q_proj`` -> ``layers.3.attention.q``. One of many experts keeps its number:
    ``layers.3.ffn.experts.5.up``.
    """
    found = {stem for family in families if (stem := _stem(path, family))}
    return found.pop() if len(found) == 1 else None


def _stem(path: str, family: str) -> str | None:
    naming = NAMINGS[family]
    for prefix, instead in (("", ""), *NESTED, *naming.prefixes):
        if path.startswith(prefix):
            name = parse(f"{instead}{path[len(prefix) :]}{_WEIGHT}")
            pattern = naming.names.get(name.pattern)
            if pattern is not None:
                stem = with_layer(pattern.removesuffix(_WEIGHT), name.layer)
                return stem if name.expert is None else stem.replace(".experts.", f".experts.{name.expert}.")
    return None


def families_of(paths: Iterable[str]) -> tuple[str, ...]:
    """The families that have a rule for every path that any family has one for."""
    known = [path for path in paths if any(_stem(path, family) for family in NAMINGS)]
    return tuple(family for family in NAMINGS if all(_stem(path, family) for path in known))


def path_of(stem: str, families: Iterable[str], dialect: str) -> str | None:
    """The path of a module in ``dialect`` (``peft``, ``mlx``); ``None`` where families differ, or have no rule."""
    name = parse(stem)
    found = set()
    for family in families:
        pattern = _paths(family).get(name.pattern)
        if pattern is not None:
            root = "" if stem == _HEAD else _ROOTS.get((family, dialect), "")
            found.add(root + with_layer(pattern, name.layer))
    return found.pop() if len(found) == 1 else None


@cache
def _paths(family: str) -> dict[str, str]:
    """Canonical stem -> path, patterns both; of several spellings the first."""
    paths: dict[str, str] = {}
    for theirs, ours in NAMINGS[family].names.items():
        if theirs.endswith(_WEIGHT):
            paths.setdefault(ours.removesuffix(_WEIGHT), theirs.removesuffix(_WEIGHT))
    return paths


def gguf_stem_of(name: str, family: Family | None) -> str | None:
    """The canonical stem of a GGUF tensor (``blk.3.attn_q.weight``), of a fused one included."""
    parsed = parse(name)
    pattern = GGUF_NAMES.get(parsed.pattern)
    if pattern is None or not pattern.endswith(_WEIGHT):
        return None
    stem = pattern.removesuffix(_WEIGHT)
    for fused in family.gguf_fused if family else ():
        if fused.stem == stem:
            stem = next(whole for whole, parts in PARTS.items() if parts == fused.parts)
    return with_layer(stem, parsed.layer)


def gguf_name_of(stem: str, family: Family) -> str | None:
    """The GGUF tensor that a module's matrix is in llama.cpp, ``None`` where there is none of its own."""
    parsed = parse(stem)
    fused = {
        next(whole for whole, parts in PARTS.items() if parts == item.parts): item.stem for item in family.gguf_fused
    }
    if any(parsed.pattern in PARTS[whole] for whole in fused):
        return None
    pattern = _gguf_names().get(fused.get(parsed.pattern, parsed.pattern))
    if pattern is None or (parsed.pattern in PARTS and parsed.pattern not in fused):
        return None
    return with_layer(pattern, parsed.layer)


@cache
def _gguf_names() -> dict[str, str]:
    return {ours.removesuffix(_WEIGHT): theirs for theirs, ours in GGUF_NAMES.items() if theirs.endswith(_WEIGHT)}


def family_named(architecture: str) -> Family | None:
    """The family of a ``general.architecture``; where two share it the first, which is the dense one."""
    return next((f for f in FAMILIES.values() if f.gguf and f.gguf == architecture), None)


def local_path(module: str) -> str | None:
    """A module's path from its layer on (``self_attn.q_proj``), ``None`` outside of the layers."""
    name = parse(module)
    return name.pattern.partition(".{n}.")[2] if name.layer is not None else None
