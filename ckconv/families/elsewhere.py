"""Which other programs know an architecture: for sentences about one that ckconv does not, and read for those only."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import cache

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


def is_projector(name: str) -> bool:
    """llama.cpp has towers of this ``clip.projector_type``."""
    return name in _names()["projectors"]
