"""Embedding models in llama.cpp, with the file's own tokenizer and pooling, against what transformers computes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checkpoints import save_file
from consumers import LIBRARY
from embedding_cases import COUNT, EMBEDDINGS, TEXTS, TOGETHER, Embedding, by_llama_cpp, cosines
from family_cases import cases, checkpoint
from safetensors.numpy import load_file

import ckconv


@pytest.mark.parametrize("one", EMBEDDINGS, ids=str)
@pytest.mark.skipif(not LIBRARY, reason="LLAMA_CPP_LIBRARY names no folder of llama.cpp's libraries")
def test_llama_cpp_embeds_texts_as_transformers_does(one: Embedding, tmp_path: Path) -> None:
    said = one.recorded
    assert said, "scripts/record_embeddings.py records it"
    texts, wanted = [TEXTS[n] for n in said["texts"]], np.array(said["rows"], np.float32)
    model = tmp_path / "model.gguf"  # llama.cpp rounds what it multiplies BF16 and F16 by
    ckconv.convert(one.source(tmp_path / "hf"), model, options=ckconv.Options(dtype="f32"))

    ids, alone = by_llama_cpp(model, texts, 1)
    _, together = by_llama_cpp(model, texts, TOGETHER)

    otherwise = [n for n, prompt in enumerate(said["ids"]) if prompt != ids[n]]
    assert otherwise == said["otherwise"]
    same = [n for n in range(len(texts)) if n not in otherwise]
    assert (len(texts), len(same) >= 0.8 * COUNT) == (COUNT, True)
    for rows in (alone, together):
        assert np.abs(rows[same] - wanted[same]).max() < one.case.limit("llama_cpp")
        assert cosines(rows[same], wanted[same]).min() > 0.99999


IN_MLX = [one for one in EMBEDDINGS if one.family in ("bert", "xlm_roberta")]


@pytest.mark.live
@pytest.mark.parametrize("one", IN_MLX, ids=str)
@pytest.mark.skipif(not importlib.util.find_spec("mlx_embeddings"), reason="mlx-embeddings is not installed")
def test_mlx_embeddings_computes_what_transformers_does(one: Embedding, tmp_path: Path, ckconv) -> None:
    """Of a checkpoint, and of its GGUF, which has no pooler."""
    said, source = one.recorded, one.source(tmp_path / "hf")
    ckconv("convert", source, tmp_path / "model.gguf")
    for n, (given, together) in enumerate([(source, 1), (tmp_path / "model.gguf", TOGETHER)]):
        made = tmp_path / f"mlx-{n}"
        result = ckconv("convert", given, f"{made}/", "--to", "mlx")
        assert (result.code, "mlx-embeddings loads it" in result.out) == (0, True), result.err
        assert ckconv("verify", made, given).code == 0

        script = Path(__file__).parent / "mlx_embeddings_rows.py"
        command = [sys.executable, str(script), str(made), str(together)]
        done = subprocess.run(command, input=json.dumps(said["ids"]), capture_output=True, text=True, check=True)
        hidden = [np.array(rows, np.float32) for rows in json.loads(done.stdout)]
        found = np.array([rows.mean(0) if one.pooling == "mean" else rows[0] for rows in hidden])

        wanted = np.array(said["rows"], np.float32)
        assert np.abs(found - wanted).max() < 1e-5
        assert cosines(found, wanted).min() > 0.99999


@pytest.mark.live
@pytest.mark.skipif(not importlib.util.find_spec("mlx_embeddings"), reason="mlx-embeddings is not installed")
def test_mlx_embeddings_has_an_embedding_gemma_without_windows(tmp_path: Path) -> None:
    """What the refusal says: the same up to half a window, something else behind it."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    case = next(case for case in cases("gemma_embedding") if case.name == "plain")
    root = checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    said = json.loads((root / "config.json").read_text())
    half, width = said["sliding_window"] // 2, said["hidden_size"]
    prompts = [[*range(3, 4 + half)], [*range(3, 4 + 4 * half)]]
    model = transformers.Gemma3TextModel.from_pretrained(root, dtype=torch.float32).eval()
    with torch.no_grad():
        wanted = [model(torch.tensor([prompt])).last_hidden_state[0].numpy() for prompt in prompts]
    stored = load_file(root / "model.safetensors")
    for at, shape in (("2", (4 * width, width)), ("3", (width, 4 * width))):
        stored[f"{at}_Dense.linear.weight"] = np.ones(shape, np.float32)
    save_file(root / "model.safetensors", stored, {"format": "pt"})
    kinds = said["rope_parameters"]
    bases = {"rope_theta": kinds["full_attention"], "rope_local_base_freq": kinds["sliding_attention"]}
    said |= {key: kind["rope_theta"] for key, kind in bases.items()}
    (root / "config.json").write_text(json.dumps(said))

    command = [sys.executable, str(Path(__file__).parent / "mlx_embeddings_rows.py"), str(root), "1"]
    done = subprocess.run(command, input=json.dumps(prompts), capture_output=True, text=True, check=True)
    short, long = (
        np.abs(np.array(ours) - own).max() for ours, own in zip(json.loads(done.stdout), wanted, strict=True)
    )

    assert short < 1e-5
    assert long > 0.1


def test_a_pooler_goes_along_to_mlx(tmp_path: Path, ckconv) -> None:
    source = next(one for one in EMBEDDINGS if str(one) == "bert-pooled-cls").source(tmp_path / "hf")
    assert ckconv("convert", source, f"{tmp_path}/mlx/", "--to", "mlx").code == 0

    found, own = load_file(tmp_path / "mlx" / "model.safetensors"), load_file(source / "model.safetensors")
    assert {name for name in own if name.startswith("pooler.")} == {"pooler.dense.weight", "pooler.dense.bias"}
    assert all(np.array_equal(found[name], own[name]) for name in own)
    assert ckconv("verify", tmp_path / "mlx", source).code == 0

    assert ckconv("convert", tmp_path / "mlx", f"{tmp_path}/hf32/", "--to", "hf", "--dtype", "f32").code == 0
    wide = load_file(tmp_path / "hf32" / "model.safetensors")
    assert wide.keys() == own.keys()
    assert all(np.array_equal(wide[name], own[name].astype(np.float32)) for name in own)
    assert {array.dtype.name for array in wide.values()} == {"float32"}
