"""Every byte of a BUMPWGT3 file, against a file computed without ckconv (bump3_expected.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from bump3_expected import expected_bump3
from gguf import GGMLQuantizationType as Q
from models import Model

K = {"hidden": 256, "ffn": 512, "heads": 4, "kv_heads": 2}

MODELS = {
    "f32": Model(),
    "f32-padded": Model(hidden=48, heads=4, kv_heads=2, ffn=72),
    "f32-padded-mha": Model(hidden=36, heads=3, kv_heads=3, ffn=50, vocab=33),
    "f32-one-head": Model(hidden=32, heads=1, kv_heads=1),
    "f32-mqa": Model(hidden=96, heads=6, kv_heads=1, ffn=40),
    "f16": Model(matrix=Q.F16, norm=Q.F16),
    "f16-padded": Model(hidden=48, ffn=72, matrix=Q.F16),
    "bf16": Model(matrix=Q.BF16, norm=Q.BF16),
    "bf16-padded": Model(hidden=48, ffn=72, matrix=Q.BF16, norm=Q.F16),
    "mixed-floats": Model(matrix=Q.F16, types={"ffn_up.weight": Q.BF16, "attn_k.weight": Q.F32}),
    "all-biases": Model(all_bias=True),
    "all-biases-padded": Model(hidden=48, ffn=72, all_bias=True),
    "qwen2": Model(arch="qwen2", qkv_bias=True),
    "qwen2-padded": Model(arch="qwen2", qkv_bias=True, hidden=48, ffn=72, matrix=Q.BF16),
    "q4_k": Model(**K, matrix=Q.Q4_K),
    "q6_k": Model(**K, matrix=Q.Q6_K),
    "q4_k_m": Model(
        **K,
        matrix=Q.Q4_K,
        types={"token_embd.weight": Q.Q6_K, "blk.1.attn_v.weight": Q.Q6_K, "ffn_down.weight": Q.Q6_K},
    ),
    "q4_k-f32-wo": Model(**K, matrix=Q.Q4_K, types={"attn_output.weight": Q.F32, "token_embd.weight": Q.F16}),
    "q4_k-qwen2": Model(**K, arch="qwen2", matrix=Q.Q4_K, qkv_bias=True),
    "q4_k-bias": Model(**K, matrix=Q.Q4_K, all_bias=True),
    "many-layers": Model(layers=7, hidden=32, heads=2, kv_heads=2, ffn=16),
}


@pytest.mark.parametrize("name", MODELS)
def test_file_is_the_computed_one(name: str, tmp_path: Path, ckconv) -> None:
    source = MODELS[name].write(tmp_path / "m.gguf")
    assert ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 3).code == 0
    assert (tmp_path / "m.bump").read_bytes() == expected_bump3(source)


@pytest.mark.parametrize("name", ["f32-padded", "q4_k_m"])
@pytest.mark.parametrize("context", [1, 7, 64, 3000])
def test_context_sets_the_position_table(name: str, context: int, tmp_path: Path, ckconv) -> None:
    source = MODELS[name].write(tmp_path / "m.gguf")
    assert ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 3, "--context", context).code == 0
    assert (tmp_path / "m.bump").read_bytes() == expected_bump3(source, context=context)


def test_dtype_codes_v4_are_7_and_8(tmp_path: Path, ckconv) -> None:
    source = MODELS["q4_k_m"].write(tmp_path / "m.gguf")
    assert ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 3, "--dtype-codes", "v4").code == 0
    assert (tmp_path / "m.bump").read_bytes() == expected_bump3(source, codes="v4")


@pytest.mark.parametrize("asked", ["source", "interleaved"])
def test_rope_rows_can_stay_as_they_are(asked: str, tmp_path: Path, ckconv) -> None:
    source = MODELS["q4_k_m"].write(tmp_path / "m.gguf")
    assert ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 3, "--rope-layout", asked).code == 0
    assert (tmp_path / "m.bump").read_bytes() == expected_bump3(source, interleaved_kept=True)
    assert '"rope_layout": "interleaved"' in (tmp_path / "config.json").read_text()


def test_stdout_gets_the_same_bytes(tmp_path: Path) -> None:
    source = MODELS["f32-padded"].write(tmp_path / "m.gguf")
    command = [sys.executable, "-m", "ckconv", "convert", "--to", "bump", str(source), "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stdout == expected_bump3(source)
    assert b"bump v3" in done.stderr
