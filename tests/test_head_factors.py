"""Heads that are the embedding in a class that multiplies what goes in otherwise than what comes out."""

from __future__ import annotations

import json
from pathlib import Path

import consumers
import family_cases
import gguf
import numpy as np
import pytest
from family_directions import close
from safetensors.numpy import load_file

import ckconv
from ckconv.errors import UnsupportedError


@pytest.fixture
def falcon(tmp_path: Path) -> tuple[family_cases.Case, Path]:
    """A Falcon-H1 whose head is its embedding: 5 times that goes in, and 0.5 times what comes out of it counts."""
    case = next(case for case in family_cases.cases("falcon_h1") if case.name == "tied")
    return case, family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)


@pytest.mark.parametrize("to", ["gguf", "mlx", "safetensors"])
def test_a_head_that_is_written_for_the_embedding_has_the_factor_of_the_head(falcon, tmp_path: Path, to: str) -> None:
    _, source = falcon
    out = tmp_path / ("m.gguf" if to == "gguf" else "out")
    options = ckconv.Options(tie="untie", allow_lossy=True)
    ckconv.convert(source, out if to == "gguf" else f"{out}/", to=to, options=options)

    stored = load_file(source / "model.safetensors")["model.embed_tokens.weight"]
    if to == "gguf":
        found = {tensor.name: tensor.data for tensor in gguf.GGUFReader(out).tensors}
        head, embedding = found["output.weight"], found["token_embd.weight"]
    else:
        made = load_file(out / "model.safetensors")
        head, embedding = made["lm_head.weight"], made["model.embed_tokens.weight"]
    factors = (1, 1) if to == "safetensors" else (0.5, 5)  # whose class multiplies, and config.json says with what
    assert np.array_equal(head, stored * np.float32(factors[0]))
    assert np.array_equal(embedding, stored * np.float32(factors[1]))
    assert ckconv.verify(out, source).compared


def test_llama_cpp_computes_the_head_that_is_written(falcon, tmp_path: Path, llama_cpp: consumers.Consumer) -> None:
    case, source = falcon
    with pytest.raises(UnsupportedError, match=r"llama\.cpp has one matrix for both") as info:
        ckconv.convert(source, tmp_path / "m.gguf", options=ckconv.Options(allow_lossy=True))
    assert info.value.hint == "--untie writes the head with its factor"
    ckconv.convert(source, tmp_path / "m.gguf", options=ckconv.Options(tie="untie", allow_lossy=True))
    rows = llama_cpp.logits(tmp_path / "m.gguf", case.tokens)
    assert close(case, "llama_cpp", rows, case.recorded).startswith("right")


def test_what_mlx_has_in_its_matrices_is_multiplied_once(tmp_path: Path) -> None:
    case = next(case for case in family_cases.cases("falcon_h1") if case.name == "factors")
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    options = ckconv.Options(**case.options)
    ckconv.convert(source, f"{tmp_path / 'mlx'}/", to="mlx", options=options)
    ckconv.convert(tmp_path / "mlx", f"{tmp_path / 'back'}/", to="safetensors")

    said = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (said["attention_in_multiplier"], said["mlp_multipliers"]) == (1.0, [1.0, 1.0])
    gguf_of = [tmp_path / f"{name}.gguf" for name in ("hf", "back")]
    for name, made in zip(("hf", "back"), gguf_of, strict=True):
        ckconv.convert(tmp_path / name, made, options=options)
    first, second = ({tensor.name: tensor.data for tensor in gguf.GGUFReader(one).tensors} for one in gguf_of)
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)
