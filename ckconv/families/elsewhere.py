"""Architectures without a family file, and programs that know them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from ckconv.errors import quoted
from ckconv.families.merge import FOLDER

# -- Programs that know an architecture which ckconv does not know -----------------------------------------------------


@cache
def _names() -> dict[str, frozenset[str]]:
    """Table of ``other_programs/architectures.toml`` -> its words."""
    text = (FOLDER / "other_programs" / "architectures.toml").read_text(encoding="utf-8")
    return {name: frozenset(words.split()) for name, words in tomllib.loads(text).items()}


def known_by(architecture: str, classes: Iterable[str] = ()) -> str:
    """Clause on programs: ``llama.cpp and transformers know it``.

    Args:
        architecture: ``general.architecture`` or ``model_type``.
        classes: ``architectures`` of ``config.json``.
    """
    names = _names()
    engines = [
        *(["llama.cpp"] if architecture in names["gguf"] or not names["classes"].isdisjoint(classes) else []),
        *(["mlx-lm"] if architecture in names["mlx_lm"] else []),
    ]
    transformers = architecture in names["transformers"]
    if not engines:
        return f"no engine here knows it, {'transformers does' if transformers else 'nor does transformers'}"
    knowing = [*engines, *(["transformers"] if transformers else [])]
    *others, last = knowing
    return f"{', '.join(others)} and {last} know it" if others else f"{last} knows it"


def classes_of(document: Mapping[str, Any]) -> list[str]:
    """Class names in ``config.json``."""
    named = document.get("architectures")
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []


#: Classes that draft tokens for another model: those of llama.cpp's ``conversion/``, and its architectures of GGUFs.
_DRAFTERS = re.compile(r"Eagle3|DFlash|DSpark|Assistant(ForCausalLM|Model)$|^(eagle3|dflash|dspark|.*-assistant)$")

#: Keys that say of what size the hidden states are which a drafter takes from its model.
TAKEN = ("target_hidden_size", "backbone_hidden_size")


#: Part of the name of a drafter that llama.cpp's converter knows -> why ckconv has no rules for it.
_WITHOUT_RULES = {
    "eagle3": "the converter adds up its ids of tokens (d2t), and no word of a family file says that",
    "deepseekv4": "its layers are those of DeepSeek V4, which ckconv does not know",
    "gemma4dspark": "nobody has written its file yet",
}


def without_rules(drafter: str) -> str:
    """Clause on why a drafter has no rules; empty where nothing is known."""
    found = (why for part, why in _WITHOUT_RULES.items() if part in drafter.lower())
    return next((f": {why}" for why in found), "")


def drafter_of(document: Mapping[str, Any], architecture: str = "") -> str:
    """Class, or architecture, of a speculative drafter; empty for a model."""
    return next((name for name in (*classes_of(document), architecture) if _DRAFTERS.search(name)), "")


def drafts_for(document: Mapping[str, Any], architecture: str = "") -> str:
    """Words about a speculative drafter and its model; empty for a model."""
    drafter = drafter_of(document, architecture)
    said = document.get("speculators_config")
    verifier = said.get("verifier") if isinstance(said, dict) else None
    target = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    size = next((document[key] for key in TAKEN if isinstance(document.get(key), int)), None)
    layers = document.get("num_target_layers")
    whose = f"a model of {layers:,} layers" if isinstance(layers, int) else "another model"
    whose = f"a model whose hidden size is {size:,}" if size else whose
    whose = quoted(target) if isinstance(target, str) else whose
    return f"it drafts tokens for {whose} ({drafter})" if drafter else ""


def tower_known_by(classes: Iterable[str]) -> str:
    """Clause on whether llama.cpp's converter has the tower of these classes."""
    return "; llama.cpp does" if not _names()["towers"].isdisjoint(classes) else ""


def projector_known_by(name: str) -> str:
    """Clause on whether llama.cpp has this ``clip.projector_type``."""
    return "; llama.cpp does" if name in _names()["projectors"] else ""
