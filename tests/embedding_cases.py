"""Embedding models: checkpoints with the modules of sentence-transformers, and what is recorded of their texts."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from consumers import LIBRARY, Consumer, ending_here
from family_cases import ROOT, Case, cases, checkpoint

RECORD = ROOT / "fixtures" / "logits" / "embeddings.json"
TEXTS: list[str] = json.loads((ROOT / "fixtures" / "tokenizers" / "texts.json").read_bytes())
#: How many texts a model is tried with, the most tokens of one, and how many are computed together.
COUNT, LONGEST, TOGETHER = 60, 36, 8

#: Pieces that have the rules for characters which the published ones have, where cases have none.
PIECES = {
    "xlm_roberta": {"sentencepiece.bpe.model": "tokenizers/sentencepiece-rules.model"},
    "t5_encoder": {"spiece.model": "tokenizers/sentencepiece-t5.model"},
    "umt5_encoder": {"spiece.model": "tokenizers/sentencepiece-t5.model"},
}

#: Of the embeddings of all these models.
WIDTH = 24

PACKAGE = "sentence_transformers.models."


@dataclass(frozen=True)
class Embedding:
    """A case of a family, and how its embeddings are pooled."""

    family: str
    case_name: str
    pooling: str

    def __str__(self) -> str:
        return f"{self.family}-{self.case_name}-{self.pooling}"

    @property
    def case(self) -> Case:
        return next(case for case in cases(self.family) if case.name == self.case_name)

    @property
    def recorded(self) -> Mapping[str, Any]:
        found: dict[str, Any] = json.loads(RECORD.read_text()).get(str(self), {})
        return found if found.get("case") == self.case.digest else {}

    def source(self, root: Path) -> Path:
        """Its checkpoint."""
        tokenizer = PIECES.get(self.family, self.case.tokenizer)
        return with_modules(checkpoint(self.case.recorded, root, tokenizer), {"pooling_mode": self.pooling})


#: The beginning of the text, its end, or the mean of all tokens; two configurations of each encoder.
EMBEDDINGS = [
    Embedding("bert", "plain", "mean"),
    Embedding("bert", "pooled", "cls"),
    Embedding("roberta", "plain", "cls"),
    Embedding("roberta", "one_type", "mean"),
    Embedding("xlm_roberta", "plain", "mean"),
    Embedding("xlm_roberta", "one_type", "cls"),
    Embedding("nomic_bert", "plain", "mean"),
    Embedding("nomic_bert", "another_base", "cls"),
    Embedding("modernbert", "plain", "cls"),
    Embedding("modernbert", "silu", "mean"),
    Embedding("t5_encoder", "relu", "mean"),
    Embedding("t5_encoder", "gated", "mean"),
    Embedding("umt5_encoder", "gated", "mean"),
    Embedding("umt5_encoder", "relu", "mean"),
    Embedding("distilbert", "plain", "mean"),
    Embedding("distilbert", "deeper", "cls"),
    Embedding("qwen3", "tied", "lasttoken"),
]


def with_modules(root: Path, pooling: Mapping[str, Any] | None, *more: str) -> Path:
    """Add the files of sentence-transformers to a checkpoint."""
    names = ["Transformer", *(["Pooling"] if pooling is not None else []), *more]
    modules = [
        {"idx": n, "name": str(n), "path": f"{n}_{name}" if n else "", "type": PACKAGE + name}
        for n, name in enumerate(names)
    ]
    (root / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (root / "1_Pooling").mkdir()
        (root / "1_Pooling" / "config.json").write_text(json.dumps({"embedding_dimension": WIDTH, **pooling}))
    return root


def by_llama_cpp(path: Path, texts: Sequence[str], together: int) -> tuple[list[list[int]], np.ndarray]:
    """Ids and embeddings."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        request = {"model": str(path), "texts": list(texts), "together": together, "found": str(found)}
        said = _llama_cpp().ask(request)
        assert not said, said
        made = json.loads(found.read_text())
    return made["ids"], np.array(made["rows"], np.float32)


@cache
def _llama_cpp() -> Consumer:
    """One process for all models."""
    return ending_here(Consumer("llama_cpp_embeddings.py", LIBRARY))


def cosines(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Of every pair of rows."""
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    found: np.ndarray = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    return found
