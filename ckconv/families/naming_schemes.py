"""Naming schemes of checkpoints: the family's own and alternatives.

``max``: GPT-2 with linear layers, its matrices ``[out, in]``. ``canonical`` and ``gguf``: other names only, rows and
values as Hugging Face stores them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Any

from ckconv.core.tensors import GATE_UP, PARTS, QKV
from ckconv.families import axes as shapes
from ckconv.families.merge import FOLDER
from ckconv.families.names import GGUF, HF, MLX, REFERENCE, Names, Part, Stored, names_of, reference_names
from ckconv.families.schema import FAMILIES_KEPT, Family, load

#: The key of a file's ``__metadata__`` that says under which names its tensors are, where not under the family's own.
NAMES_KEY = "ckconv.names"

#: How the ``model_type`` of a text part ends. Saved alone it may keep the names that it has in the whole model, which
#: transformers 5 (conversion_mapping.py, ``PrefixChange``), llama.cpp's converter and vLLM take off.
TEXT_PART = "_text"

#: Where a configuration has a ``text_config``, or is one, the decoder's tensors are under one of these: transformers 5
#: and 4.
NESTED = (("model.language_model.", "model."), ("model.text_model.", "model."), ("language_model.", ""))

#: What ``--fuse`` calls them -> canonical module of the fused tensor.
FUSIONS: dict[str, str] = {"qkv": QKV, "gate-up": GATE_UP}

#: What names a checkpoint may have besides its family's own.
OTHER_SCHEMES = ("max", "canonical", GGUF)


#: What the classes of transformers, and llama.cpp's ``conversion/``, call parts beside the text part: towers that see
#: or hear, and what projects their output to the text part's embeddings.
_BESIDE = frozenset(
    {
        "aligner", "audio_tower", "connector", "embed_audio", "embed_vision", "image_newline", "merger", "mlp1",
        "mlp_AR", "mm_projector", "multi_modal_projector", "multimodal_projector", "patch_merger",
        "pre_mm_projector_norm", "vision", "vision_encoder", "vision_language_adapter", "vision_model",
        "vision_projection", "vision_tower", "visual",
    }
)  # fmt: skip

#: What they are called in a GGUF that has all of a model in one file, as ollama's: the names of llama.cpp's mmproj.
_BESIDE_IN_GGUF = frozenset({"a", "mm", "resampler", "v"})

#: Why the tensors of those parts are left out where a target holds text models.
BESIDE_TEXT = "not part of the text model"


def is_beside_text(config: Mapping[str, Any], name: str) -> bool:
    """A tensor is of a part that the text model does not have."""
    return beside_text(config, name).removesuffix(".*").removeprefix("model.") in _BESIDE


def beside_text(config: Mapping[str, Any], name: str) -> str:
    """Glob of the multimodal part that a tensor belongs to; "" for text."""
    head, _, rest = name.partition(".")
    if not any(isinstance(config.get(key), dict) for key in ("text_config", "vision_config")):
        return f"{head}.*" if rest and head in _BESIDE_IN_GGUF else ""
    if name.startswith(tuple(prefix for prefix, _ in NESTED)):
        return ""
    part = f"{head}.{rest.partition('.')[0]}" if head == "model" else head
    return f"{part}.*" if name.startswith(f"{part}.") else ""


def part_hint(family: Family | None, pattern: str) -> str:
    """Flag that drops the part of :func:`beside_text`, or empty."""
    if family is None or not pattern.endswith(".*"):
        return ""
    return f"--drop '{pattern}' leaves out what {family.name} does not have"


@lru_cache(maxsize=FAMILIES_KEPT)
def scheme_names(family: Family, scheme: str) -> Names:
    """Names of a family in ``hf``, ``mlx`` or an alternative scheme."""
    if scheme in (HF, MLX):
        return names_of(family, scheme)
    if scheme == REFERENCE:
        return reference_names(family)
    own = names_of(family, HF)
    if scheme == "max":
        return Names(
            {pattern: _in_order(found) for pattern, found in own.stored.items()},
            {name: _in_order(found) for name, found in own.written.items()},
            own.dropped,
        )
    names = {**{name: name for name in own.written}, **(_gguf_names(family) if scheme == GGUF else {})}
    single = {
        name: Stored(names[name], name, (_canonical(part),))
        for found in own.written.values()
        for part in found.parts
        if (name := part.canonical) in names
    }
    wholes = []
    for whole, modules in PARTS.items():
        for kind in ("weight", "bias"):
            parts = [single[f"{module}.{kind}"].parts[0] for module in modules if f"{module}.{kind}" in single]
            if len(parts) == len(modules):
                called = f"{whole}.{kind}" if scheme == "canonical" else _gguf_whole(f"{whole}.{kind}")
                wholes.append(Stored(called, f"{whole}.{kind}", _side_by_side(parts)))
    return Names({found.pattern: found for found in (*single.values(), *wholes)}, single, {})


def fusion_names(family: Family, scheme: str, whole: str) -> dict[str, Stored]:
    """Canonical pattern -> stored name, where ``whole`` is fused."""
    names = scheme_names(family, scheme)
    found: dict[str, Stored] = {}
    for stored in names.stored.values():
        if stored.canonical.rpartition(".")[0] == whole:
            for name in stored.names:
                found.setdefault(name, stored)
    return found


def fuses_otherwise(family: Family, scheme: str, wholes: Iterable[str]) -> bool:
    """Whether fusing ``wholes`` differs from the family's own storage."""
    written = scheme_names(family, scheme).written
    return any(
        name not in written or written[name].pattern != stored.pattern
        for whole in wholes
        for name, stored in fusion_names(family, scheme, whole).items()
    )


def _in_order(found: Stored) -> Stored:
    return found._replace(parts=_side_by_side([_canonical(part) for part in found.parts]))


def _canonical(part: Part) -> Part:
    """The part by itself, its values in canonical order."""
    axes = part.row.axes[: len(part.axes) + 1] if part.stack else part.axes
    return part._replace(axes=axes, stored=axes, number=0, value="", stack="")


def _side_by_side(parts: list[Part]) -> tuple[Part, ...]:
    """Parts stored one after the other, by rows."""
    if len(parts) == 1:
        return tuple(parts)
    rows: shapes.Product = (shapes.Segments(tuple(part.axes[0] for part in parts)),)
    return tuple(part._replace(stored=(rows, *part.axes[1:]), number=n) for n, part in enumerate(parts))


@lru_cache(maxsize=FAMILIES_KEPT)
def _gguf_names(family: Family) -> Mapping[str, str]:
    """Canonical pattern -> GGUF's name of the tensor that alone has it."""
    own, common = names_of(family, GGUF).written, names_of(decoder(), GGUF).written
    alone = {name: found.pattern for name, found in own.items() if len(found.parts) == 1}
    names = {name: found.pattern for name, found in common.items()} | alone
    first = {pattern: name for name, pattern in reversed(names.items()) if name in names_of(family, HF).written}
    return {name: pattern for name, pattern in names.items() if pattern != _FACTORS and first.get(pattern) == name}


_FACTORS = "rope_freqs.weight"


@cache
def decoder() -> Family:
    """Rows of the decoder fragment."""
    return load(FOLDER / "decoder.toml")


def _gguf_whole(canonical: str) -> str:
    stored = names_of(decoder(), GGUF).stored
    return next((pattern for pattern, found in stored.items() if found.canonical == canonical), canonical)
