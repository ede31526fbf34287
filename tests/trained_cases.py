"""Models trained in the engine whose logits are recorded, and the transformers class that computes each.

``scripts/record_trained.py`` builds the class from the entries by hand and writes ``fixtures/logits/trained.npz``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from conftest import FIXTURES
from trained_builder import Trained

#: Shorter than the context, and within the vocabulary.
PROMPT = tuple((7 * i * i + 3 * i + 5) % 64 for i in range(24))

_MLP, _BUT_QKV = (".b1", ".b2"), (".bo", ".b1", ".b2")


class Case(NamedTuple):
    """``made``: from a seed, ``None`` for a model among the fixtures; ``drop``: endings of entries taken for zeros."""

    name: str
    made: Trained | None
    drop: tuple[str, ...] = ()

    def source(self, folder: Path) -> Path:
        """The file, written into ``folder`` if it is made."""
        kept = FIXTURES / "trained" / self.name.partition(" ")[0] / "weights.bump"
        return self.made.write(folder) if self.made else kept


CASES = {
    case.name: case
    for case in (
        Case("llama-step16", None),
        Case("qwen2-step16", None),
        Case("qwen3-step16", None),
        Case("llama-init", None),
        Case("qwen3-step16 without biases of the MLP", None, _MLP),
        Case("llama", Trained("llama")),
        Case("llama with norms", Trained("llama", initialized=True)),
        Case("llama without biases", Trained("llama", zero=(".bq", ".bk", ".bv", *_BUT_QKV))),
        Case("qwen2", Trained("qwen2")),
        Case("qwen2 without other biases", Trained("qwen2", zero=_BUT_QKV)),
        Case("qwen3", Trained("qwen3")),
        Case("qwen3 without biases of the MLP", Trained("qwen3", zero=_MLP)),
        Case("qwen3 without biases", Trained("qwen3", zero=(".bq", ".bk", ".bv", *_BUT_QKV), initialized=True)),
    )
}  # fmt: skip


def recorded(name: str) -> np.ndarray:
    """``[positions, vocabulary]``."""
    with np.load(FIXTURES / "logits" / "trained.npz") as arrays:
        return np.asarray(arrays[name])


def inputs() -> dict[str, str]:
    """Name -> SHA-256 of the file that was recorded."""
    return dict(json.loads((FIXTURES / "logits" / "trained.json").read_text())["inputs"])
