"""Record what transformers embeds texts as, for tests that run without torch: fixtures/logits/embeddings.json.

    LLAMA_CPP_LIBRARY=... python scripts/record_embeddings.py [--check]

Of every model of tests/embedding_cases.py: sixty texts, their ids by transformers' tokenizer, and their embeddings,
computed one by one; in padded batches they must be the same. The largest difference to llama.cpp's is printed, and
kept is which texts it cuts otherwise.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import numpy as np  # noqa: E402
from embedding_cases import (  # noqa: E402
    COUNT,
    EMBEDDINGS,
    LONGEST,
    RECORD,
    TEXTS,
    TOGETHER,
    Embedding,
    by_llama_cpp,
    cosines,
)

import ckconv  # noqa: E402

#: What padding may change, and another machine.
TOLERANCE = 1e-5


def embedded(model: Any, prompts: list[list[int]], pooling: str) -> np.ndarray:
    """``[prompts, width]``, padded to the longest."""
    import torch

    width = max(map(len, prompts))
    ids = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in prompts])
    mask = torch.tensor([[1] * len(prompt) + [0] * (width - len(prompt)) for prompt in prompts])
    with torch.no_grad():
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    if pooling == "mean":
        rows = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    else:
        rows = hidden[:, 0] if pooling == "cls" else hidden[range(len(prompts)), mask.sum(1) - 1]
    return np.asarray(rows.numpy())


def record(one: Embedding, place: Path) -> dict[str, Any]:
    """What the test holds a model against."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    root = one.source(place / "hf")
    own = one.family == "umt5_encoder"  # whose tokenizer_config.json names it
    tokenizer = (transformers.T5Tokenizer if own else transformers.AutoTokenizer).from_pretrained(root)
    encoder = "Encoder" in one.case.model_class
    loader = transformers.AutoModelForTextEncoding if encoder else transformers.AutoModel
    model = loader.from_pretrained(root, dtype=torch.float32, attn_implementation="eager").eval()
    lengths = {n: len(tokenizer(text)["input_ids"]) for n, text in enumerate(TEXTS) if any(map(str.isalpha, text))}
    fitting = [n for n, length in lengths.items() if 3 < length <= LONGEST]
    chosen = fitting[:: len(fitting) // COUNT][:COUNT]
    texts = [TEXTS[n] for n in chosen]
    prompts = [list(tokenizer(text)["input_ids"]) for text in texts]
    alone = np.concatenate([embedded(model, [prompt], one.pooling) for prompt in prompts])
    parts = [prompts[at : at + TOGETHER] for at in range(0, len(prompts), TOGETHER)]
    padded = np.concatenate([embedded(model, part, one.pooling) for part in parts])
    assert np.abs(alone - padded).max() < TOLERANCE, one
    ckconv.convert(root, place / "model.gguf", options=ckconv.Options(dtype="f32"))
    ids, rows = by_llama_cpp(place / "model.gguf", texts, 1)
    same = [n for n, prompt in enumerate(prompts) if prompt == ids[n]]
    off, least = float(np.abs(rows[same] - alone[same]).max()), float(cosines(rows[same], alone[same]).min())
    print(
        f"{one}: {len(same)} of {len(texts)} texts have the same ids; largest difference {off:.2g}, cosine {least:.7f}"
    )
    made: dict[str, Any] = {"case": one.case.digest, "texts": chosen, "ids": prompts}
    made["otherwise"] = [n for n in range(len(texts)) if n not in same]
    made["rows"] = [[float(f"{value:.7g}") for value in row] for row in alone]
    return made


def main() -> int:
    """Run from the command line; 1 if a number moved."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    warnings.simplefilter("ignore")
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "torch")}
    made: dict[str, Any] = {"versions": versions}
    for one in EMBEDDINGS:
        with tempfile.TemporaryDirectory() as folder:
            made[str(one)] = record(one, Path(folder))
    if "--check" not in sys.argv[1:]:
        lines = (f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in made.items())
        RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return 0
    before = json.loads(RECORD.read_text())
    moved = [
        key
        for key, value in made.items()
        if key != "versions"
        and (
            any(value[part] != before[key][part] for part in ("texts", "ids", "otherwise"))
            or not np.allclose(value["rows"], before[key]["rows"], rtol=0, atol=TOLERANCE)
        )
    ]
    print("\n".join(f"{key} moved" for key in moved))
    return int(bool(moved))


if __name__ == "__main__":
    raise SystemExit(main())
