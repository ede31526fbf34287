"""Which other programs know an architecture: for sentences about one that ckconv does not, and read for those only."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from ckconv.families.merge import FOLDER


@cache
def _names() -> dict[str, frozenset[str]]:
    """Table of ``other_programs/architectures.toml`` -> its words."""
    text = (FOLDER / "other_programs" / "architectures.toml").read_text(encoding="utf-8")
    return {name: frozenset(words.split()) for name, words in tomllib.loads(text).items()}


def known_by(architecture: str, classes: Iterable[str] = ()) -> str:
    """Who knows an architecture, as a clause: ``llama.cpp and transformers know it``.

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
    """What ``config.json`` calls the model's classes."""
    named = document.get("architectures")
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []


def tower_known_by(classes: Iterable[str]) -> str:
    """Whether llama.cpp's converter has the tower of a model of these classes, as the end of a sentence."""
    return "; llama.cpp does" if not _names()["towers"].isdisjoint(classes) else ""


def projector_known_by(name: str) -> str:
    """Whether llama.cpp has towers of this ``clip.projector_type``, as the end of a sentence."""
    return "; llama.cpp does" if name in _names()["projectors"] else ""
