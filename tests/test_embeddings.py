"""Embedding models in llama.cpp, with the file's own tokenizer and pooling, against what transformers computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from consumers import LIBRARY
from embedding_cases import COUNT, EMBEDDINGS, TEXTS, TOGETHER, Embedding, by_llama_cpp, cosines, in_float32


@pytest.mark.parametrize("one", EMBEDDINGS, ids=str)
@pytest.mark.skipif(not LIBRARY, reason="LLAMA_CPP_LIBRARY names no folder of llama.cpp's libraries")
def test_llama_cpp_embeds_texts_as_transformers_does(one: Embedding, tmp_path: Path) -> None:
    said = one.recorded
    assert said, "scripts/record_embeddings.py records it"
    texts, wanted = [TEXTS[n] for n in said["texts"]], np.array(said["rows"], np.float32)
    model = in_float32(one.source(tmp_path / "hf"), tmp_path / "model.gguf")

    ids, alone = by_llama_cpp(model, texts, 1)
    _, together = by_llama_cpp(model, texts, TOGETHER)

    otherwise = [n for n, prompt in enumerate(said["ids"]) if prompt != ids[n]]
    assert otherwise == said["otherwise"]
    same = [n for n in range(len(texts)) if n not in otherwise]
    assert (len(texts), len(same) >= 0.8 * COUNT) == (COUNT, True)
    for rows in (alone, together):
        assert np.abs(rows[same] - wanted[same]).max() < one.case.limit("llama_cpp")
        assert cosines(rows[same], wanted[same]).min() > 0.99999
