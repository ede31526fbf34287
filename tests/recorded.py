"""What transformers and peft computed from the fixtures: ``scripts/record_logits.py`` wrote it down."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from conftest import FIXTURES

FACTS: dict[str, Any] = json.loads((FIXTURES / "logits" / "transformers.json").read_text())
PROMPT: tuple[int, ...] = tuple(FACTS["prompt"])

#: llama.cpp looks GELU up in a table of 16 bits; so far it agrees with torch in float32 otherwise.
EXACT, GELU = 1e-5, 2e-3


def recorded(name: str) -> np.ndarray:
    """``[kept positions, vocabulary]``."""
    with np.load(FIXTURES / "logits" / "transformers.npz") as arrays:
        return np.asarray(arrays[name])


def off(rows: np.ndarray, name: str) -> float:
    """The largest difference of all rows from those that are recorded."""
    wanted = recorded(name)
    kept = rows[FACTS["rows"]]
    assert kept.shape == wanted.shape
    return float(np.abs(kept - wanted).max())


def limit(name: str) -> float:
    """How far llama.cpp may be off for a model whose name says the family."""
    family = name.rpartition("/")[2]
    return GELU if family.startswith(("gemma", "gpt2")) else EXACT


def stale(name: str) -> list[str]:
    """Files of the fixtures that are no longer those from which a record was made."""
    made = []
    for file, digest in FACTS["inputs"][name].items():
        found = [FIXTURES / kind / file for kind in ("hf", "experts", "lora", "adapters")]
        there = [path for path in found if path.exists()]
        if there and not any(hashlib.sha256(path.read_bytes()).hexdigest() == digest for path in there):
            made.append(file)
    return made
