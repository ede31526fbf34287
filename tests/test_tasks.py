"""Adapters of tasks within a checkpoint: each is a GGUF beside the model's, as llama.cpp's converter has it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import consumers
import numpy as np
import pytest
from family_cases import Case, cases, checkpoint
from family_directions import read_gguf
from safetensors.numpy import load_file, save_file

import ckconv

CASES = {case.name: case for case in cases("jina_bert_v3")}
PLAIN = CASES["plain"]
TASKS = PLAIN.overrides["lora_adaptations"]

#: Texts by their ids, each of another length.
TEXTS = [[(31 * n + 7 * i * i + 3 * i + 5) % 381 for i in range(3 + n % 20)] for n in range(60)]


def source(root: Path, case: Case = PLAIN) -> Path:
    return checkpoint(case.recorded, root, case.tokenizer)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("case", CASES.values(), ids=str)
def test_the_adapter_of_a_task_is_the_converters(case: Case, task: str, tmp_path: Path, ckconv) -> None:
    root = source(tmp_path / "hf", case)
    done = ckconv("convert", root, tmp_path / "lora.gguf", "--task", task)

    assert done.code == 0, done.err
    assert "computes type_embedding of a jina-bert-v3 without its adapter" in done.out
    assert read_gguf(tmp_path / "lora.gguf") == case.recorded["tasks"][task]
    assert ckconv("verify", tmp_path / "lora.gguf", root, "--task", task).code == 0
    another = next(one for one in TASKS if one != task)
    assert ckconv("verify", tmp_path / "lora.gguf", root, "--task", another).code == 5


def test_an_unknown_task_is_an_error_of_usage_with_the_names(tmp_path: Path, ckconv) -> None:
    root = source(tmp_path / "hf")

    done = ckconv("convert", root, tmp_path / "lora.gguf", "--task", "nothing")
    assert (done.code, f"its tasks are {', '.join(TASKS)}" in done.err) == (2, True), done.err
    done = ckconv("convert", root, f"{tmp_path}/peft/", "--to", "peft", "--task", TASKS[0])
    assert (done.code, "the adapter of a task goes to GGUF" in done.err) == (4, True), done.err
    ckconv("convert", root, tmp_path / "base.gguf")
    done = ckconv("convert", tmp_path / "base.gguf", tmp_path / "lora.gguf", "--task", TASKS[0])
    assert (done.code, "it has no adapters of tasks" in done.err) == (2, True), done.err


def test_a_model_without_adapters_is_the_one_beside_which_they_were(tmp_path: Path, ckconv) -> None:
    """Its pooler has the plain name then, and is no part of the embeddings."""
    root = source(tmp_path / "hf")
    ckconv("convert", root, tmp_path / "with.gguf")
    tensors = load_file(root / "model.safetensors")
    plain = {name.replace(".parametrizations.weight.original", ".weight"): one for name, one in tensors.items()}
    kept = {name: one for name, one in plain.items() if ".lora_" not in name}
    save_file(kept, root / "model.safetensors", {"format": "pt"})
    config = json.loads((root / "config.json").read_text())
    (root / "config.json").write_text(json.dumps({k: v for k, v in config.items() if not k.startswith("lora_")}))

    done = ckconv("convert", root, tmp_path / "without.gguf")

    assert (done.code, "left out roberta.pooler.dense.weight: no part of" in done.out) == (0, True), done.err
    assert read_gguf(tmp_path / "without.gguf") == read_gguf(tmp_path / "with.gguf")
    assert ckconv("verify", tmp_path / "without.gguf", root).code == 0


def test_adapters_of_another_number_of_tasks_are_malformed(tmp_path: Path, ckconv) -> None:
    root = source(tmp_path / "hf")
    name = "roberta.encoder.layers.0.mixer.Wqkv.parametrizations.weight.0.lora_A"
    tensors = load_file(root / "model.safetensors")
    save_file(tensors | {name: tensors[name][:2]}, root / "model.safetensors", {"format": "pt"})

    done = ckconv("convert", root, tmp_path / "lora.gguf", "--task", TASKS[0])
    assert (done.code, "is [2, 4, 24], and there are 3 tasks" in done.err) == (3, True), done.err


@pytest.mark.skipif(not consumers.LIBRARY, reason="LLAMA_CPP_LIBRARY names no folder of llama.cpp's libraries")
def test_llama_cpp_embeds_by_the_task(tmp_path: Path) -> None:
    """With the adapter beside the model but for the types' part, and of the merged model with all of it."""
    root = source(tmp_path / "hf")
    ckconv.convert(root, tmp_path / "base.gguf")
    own = load_file(root / "model.safetensors")
    plain = [embedded(own, text, None) for text in TEXTS]
    with consumers.llama_cpp() as llama_cpp:
        for number, task in enumerate(TASKS):
            lora, merged = tmp_path / f"{number}.gguf", tmp_path / f"merged-{number}.gguf"
            ckconv.convert(root, lora, options=ckconv.Options(task=task))
            ckconv.convert(root, merged, adapters=[(lora, 1.0)], options=ckconv.Options(allow_lossy=True))
            for at in range(number, len(TEXTS), len(TASKS)):
                text = tuple(TEXTS[at])
                beside = llama_cpp.logits(tmp_path / "base.gguf", text, adapter=lora)
                assert np.abs(beside - embedded(own, text, number, types=False)).max() < 3e-3
                whole = llama_cpp.logits(merged, text)
                wanted = embedded(own, text, number)
                assert np.abs(whole - wanted).max() < 3e-3
                assert np.abs(wanted - plain[at]).max() > 0.05


def embedded(
    tensors: dict[str, np.ndarray], text: tuple[int, ...] | list[int], task: int | None, *, types: bool = True
) -> np.ndarray:
    """What modeling_xlm_roberta.py and modeling_lora.py of the model's repository compute, a row a token."""

    def matrix(name: str, *, table: bool = False) -> np.ndarray:
        made = tensors[f"roberta.{name}.parametrizations.weight.original"].astype(np.float64)
        if task is None or (not types and "token_type" in name):
            return made
        a, b = (tensors[f"roberta.{name}.parametrizations.weight.0.lora_{side}"][task] for side in "AB")
        return made + (a @ b if table else b @ a).astype(np.float64) / 4

    def normed(name: str, rows: np.ndarray) -> np.ndarray:
        rows = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
        return rows * tensors[f"roberta.{name}.weight"] + tensors[f"roberta.{name}.bias"]

    def linear(name: str, rows: np.ndarray) -> np.ndarray:
        return rows @ matrix(name).T + tensors[f"roberta.{name}.bias"]

    count, heads, size = len(text), 3, 8
    turns = np.outer(np.arange(count), 20000.0 ** -(np.arange(0, size, 2) / size))
    cosine, sine = np.cos(turns)[:, None], np.sin(turns)[:, None]

    def turned(rows: np.ndarray) -> np.ndarray:
        first, second = rows[..., : size // 2], rows[..., size // 2 :]
        return np.concatenate((first * cosine - second * sine, second * cosine + first * sine), -1)

    words = matrix("embeddings.word_embeddings", table=True)[list(text)]
    rows = normed("emb_ln", words + matrix("embeddings.token_type_embeddings", table=True)[0])
    for layer in range(2):
        at = f"encoder.layers.{layer}."
        q, k, v = linear(f"{at}mixer.Wqkv", rows).reshape(count, 3, heads, size).transpose(1, 0, 2, 3)
        scores = np.einsum("qhd,khd->hqk", turned(q), turned(k)) / math.sqrt(size)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v).reshape(count, -1)
        rows = normed(f"{at}norm1", rows + linear(f"{at}mixer.out_proj", mixed))
        up = linear(f"{at}mlp.fc1", rows)
        gelu = up * (1 + np.vectorize(math.erf)(up / math.sqrt(2))) / 2
        rows = normed(f"{at}norm2", rows + linear(f"{at}mlp.fc2", gelu))
    return rows
