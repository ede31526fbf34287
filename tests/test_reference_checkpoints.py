"""Mistral's own checkpoints: what transformers saves of the same model is what comes out, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import Decoder, save, save_file

DECODER = Decoder(layers=2, hidden=64, ffn=128)

#: Source: ``STATE_DICT_MAPPING`` of transformers' ``convert_mistral_weights_to_hf.py``, the other way round.
NAMES = {
    "model.embed_tokens": "tok_embeddings", "lm_head": "output", "model.norm": "norm", "model.layers": "layers",
    "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3", "post_attention_layernorm": "ffn_norm", "input_layernorm": "attention_norm",
}  # fmt: skip
PARAMS = {
    "dim": 64, "n_layers": 2, "head_dim": 16, "hidden_dim": 128, "n_heads": 4, "n_kv_heads": 2, "norm_eps": 1e-5,
    "vocab_size": 40, "rope_theta": 10000.0, "max_seq_len": 128, "sliding_window": None, "use_biases": False,
}  # fmt: skip


def reference_name(name: str) -> str:
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


def neighbours(matrix: np.ndarray, heads: int) -> np.ndarray:
    """The inverse of ``permute_for_rope`` of the same script: halves of a head become pairs."""
    rows, columns = matrix.shape
    moved = matrix.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2)
    return np.ascontiguousarray(moved).reshape(rows, columns)


def written(root: Path, **params: Any) -> tuple[Path, Path]:
    """The same model as transformers saves it, and as Mistral does."""
    tensors = {name: array.astype(np.float32) for name, array in DECODER.tensors().items()}
    theirs = save(root / "transformers", DECODER.config("mistral", sliding_window=None), tensors)
    own = root / "own"
    own.mkdir()
    heads = {"q_proj": 4, "k_proj": 2}
    moved = {
        reference_name(name): next((neighbours(a, n) for part, n in heads.items() if part in name), a)
        for name, a in tensors.items()
    }
    save_file(own / "consolidated.safetensors", moved)
    (own / "params.json").write_text(json.dumps({**PARAMS, **params}))
    return theirs, own


@pytest.mark.parametrize("target", ["hf", "gguf", "mlx"])
def test_the_tensors_are_those_of_the_model_that_transformers_saves(tmp_path: Path, ckconv, target: str) -> None:
    theirs, own = written(tmp_path)
    made = []
    for source in (theirs, own):
        out = tmp_path / (f"{source.name}.gguf" if target == "gguf" else f"{source.name}-{target}")
        result = ckconv("convert", source, f"{out}{'' if target == 'gguf' else '/'}", "--to", target)
        assert result.code == 0, result.err
        assert ckconv("verify", out, source).code == 0
        if target == "gguf":
            made.append({tensor.name: tensor.data.tobytes() for tensor in gguf.GGUFReader(out).tensors})
        else:
            made.append({"": (out / "model.safetensors").read_bytes()})
            config = json.loads((out / "config.json").read_text())
            assert (config["model_type"], config["hidden_size"]) == ("mistral", 64)
            assert (config["max_position_embeddings"], config["rope_theta"]) == (128, 10000.0)
            assert not (out / "params.json").exists()
            assert (source is own) == ("params.json is left out" in result.out)
    if target == "hf":  # a copy of what transformers saved keeps the order of its file
        made[0] = {"": (tmp_path / "own-hf" / "model.safetensors").read_bytes()}
        assert ckconv("diff", "--weights", theirs, tmp_path / "own-hf").code == 0
    assert made[0] == made[1]
    assert ckconv("diff", "--weights", theirs, own).code == 0


def test_a_context_that_nothing_says_is_noted(tmp_path: Path, ckconv) -> None:
    _, own = written(tmp_path, max_seq_len=None)
    result = ckconv("convert", own, tmp_path / "m.gguf")
    assert "params.json names no context length: 32,768" in result.out
    field = gguf.GGUFReader(tmp_path / "m.gguf").fields["llama.context_length"]
    assert field.contents() == 32768


def test_a_base_of_rope_that_two_readers_take_for_two_numbers_is_asked_for(tmp_path: Path, ckconv) -> None:
    """mistral-inference: 1,000,000; transformers' converter: 10,000. Beside a window both had 10,000."""
    _, own = written(tmp_path, rope_theta=None)
    assert "params.json has no rope_theta" in ckconv("inspect", own).out
    assert ckconv("convert", own, tmp_path / "m.gguf").code == 4
    (own / "params.json").write_text(json.dumps({**PARAMS, "rope_theta": None, "sliding_window": 32}))
    assert ckconv("convert", own, tmp_path / "m.gguf", "--context", "32").code == 0
    assert gguf.GGUFReader(tmp_path / "m.gguf").fields["llama.rope.freq_base"].contents() == 10000.0


@pytest.mark.parametrize(
    "more", [{"moe": {"num_experts": 8}}, {"vision_encoder": {"hidden_size": 32}}, {"yarn": {"factor": 2}}]
)
def test_params_that_say_more_than_a_dense_decoder_are_named_and_not_converted(
    tmp_path: Path, ckconv, more: dict[str, Any]
) -> None:
    _, own = written(tmp_path, **more)
    assert f"params.json says {next(iter(more))}, which is no part of a dense decoder" in ckconv("inspect", own).out
    assert ckconv("convert", own, tmp_path / "m.gguf").code == 4


def test_a_bump_file_of_it_has_no_source_record(tmp_path: Path, ckconv) -> None:
    _, own = written(tmp_path)
    result = ckconv("convert", own, f"{tmp_path}/b/", "--to", "bump")
    assert result.code == 0, result.err
    assert "no source record is written: the source has no config.json" in result.out
    result = ckconv("convert", tmp_path / "b", f"{tmp_path}/back/", "--to", "hf")
    assert result.code == 0, result.err
    assert ckconv("diff", "--weights", own, tmp_path / "back").code == 0
