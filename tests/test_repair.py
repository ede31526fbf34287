"""A GGUF whose header is broken or names another architecture is still a container; towers in it are no text model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from conftest import FIXTURES
from gguf_copies import gguf_copy

LLAMA = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
GEMMA3 = FIXTURES / "gguf" / "gemma3-text-bf16.auto.gguf"
TOWER = {
    name: np.full((32, 32), 0.5, np.float32) for name in ("v.patch_embd.weight", "v.blk.0.attn_q.weight", "mm.0.w")
}


def names(path: Path) -> list[str]:
    return [tensor.name for tensor in gguf.GGUFReader(path).tensors]


@pytest.mark.parametrize(("to", "suffix"), [("hf", "/"), ("mlx", "/")])
def test_of_a_file_with_towers_the_text_part_converts_and_a_note_names_the_rest(
    to: str, suffix: str, tmp_path: Path, ckconv
) -> None:
    both = gguf_copy(GEMMA3, tmp_path / "both.gguf", tensors=TOWER)
    found = ckconv("convert", both, f"{tmp_path}/text{suffix}", "--to", to)
    assert found.code == 0, found.err
    note = "only the text part is written, without v.* (2 tensors), mm.* (1 tensor); --to gguf keeps everything"
    assert note in found.out
    alone = ckconv("convert", GEMMA3, f"{tmp_path}/alone{suffix}", "--to", to)
    assert alone.code == 0, alone.err
    same = [tmp_path / which / "model.safetensors" for which in ("text", "alone")]
    assert same[0].read_bytes() == same[1].read_bytes()
    assert ckconv("verify", f"{tmp_path}/text", both).code == 0


def test_a_copy_keeps_towers_and_drop_leaves_them_out(tmp_path: Path, ckconv) -> None:
    both = gguf_copy(GEMMA3, tmp_path / "both.gguf", tensors=TOWER)
    found = ckconv("convert", both, tmp_path / "copy.gguf")
    assert (found.code, names(tmp_path / "copy.gguf")) == (0, names(both))
    note = "does not load a text model's file with mm.*, v.*; convert --drop 'mm.*' --drop 'v.*' leaves them out"
    assert f"note: llama.cpp {note}" in found.out
    found = ckconv("convert", both, tmp_path / "text.gguf", "--drop", "v.*", "--drop", "mm.*")
    assert "does not load" not in found.out
    assert (found.code, names(tmp_path / "text.gguf")) == (0, names(GEMMA3))
    assert ckconv("diff", tmp_path / "text.gguf", GEMMA3).code == 0
    assert "3 only in" in ckconv("diff", both, GEMMA3).out


@pytest.mark.parametrize("architecture", ["nobody", "qwen2", "bert"])
def test_the_architecture_is_set_and_set_back(architecture: str, tmp_path: Path, ckconv) -> None:
    """Of one that nothing knows, and of one whose rules the tensors do not fit."""
    other, back = tmp_path / "other.gguf", tmp_path / "back.gguf"
    found = ckconv("edit", LLAMA, other, "--set-meta", f"general.architecture={architecture}")
    assert found.code == 0, found.err
    assert "verified 20/20" in found.out
    assert "keys of llama stay as they are: llama.block_count and 11 more" in found.out
    assert gguf.GGUFReader(other).fields["general.architecture"].contents() == architecture
    assert ckconv("verify", other).code == 0
    assert ckconv("verify", other, LLAMA, "--set-meta", f"general.architecture={architecture}").code == 0
    assert f"architecture: {architecture} | llama" in ckconv("diff", other, LLAMA).out
    assert ckconv("edit", other, back, "--set-meta", "general.architecture=llama").code == 0
    assert back.read_bytes() == LLAMA.read_bytes()


@pytest.mark.parametrize(
    ("key", "value"), [("llama.block_count", "2"), ("llama.embedding_length", "64"), ("general.architecture", "llama")]
)
def test_a_key_that_is_missing_is_set(key: str, value: str, tmp_path: Path, ckconv) -> None:
    if key == "general.architecture":
        broken = tmp_path / "broken.gguf"
        assert ckconv("edit", LLAMA, broken, "--set-meta", f"{key}=").code == 0
    else:
        broken = gguf_copy(LLAMA, tmp_path / "broken.gguf", without=[key])
    assert ckconv("convert", broken, f"{tmp_path}/no/", "--to", "hf").code in (3, 4)
    mended = tmp_path / "mended.gguf"
    found = ckconv("edit", broken, mended, "--set-meta", f"{key}={value}")
    assert (found.code, "verified 20/20" in found.out) == (0, True), found.err
    assert ckconv("diff", broken, mended, "--weights").code == 0
    assert ckconv("diff", mended, LLAMA).code == 0
    assert ckconv("convert", mended, f"{tmp_path}/hf/", "--to", "hf").code == 0


def test_a_key_that_is_wrong_is_set_right_and_one_that_is_right_is_kept(tmp_path: Path, ckconv) -> None:
    found = ckconv("edit", LLAMA, tmp_path / "m.gguf", "--set-meta", "llama.block_count=3")
    assert (found.code, "llama.block_count: the tensors decide it" in found.err) == (2, True)
    broken = gguf_copy(LLAMA, tmp_path / "broken.gguf", without=["llama.embedding_length"])
    wrong = tmp_path / "wrong.gguf"
    assert ckconv("edit", broken, wrong, "--set-meta", "llama.embedding_length=48").code == 0
    assert ckconv("edit", wrong, tmp_path / "right.gguf", "--set-meta", "llama.embedding_length=64").code == 0
    assert ckconv("diff", tmp_path / "right.gguf", LLAMA).code == 0


def test_a_gguf_that_is_made_is_of_its_own_architecture(tmp_path: Path, ckconv) -> None:
    source = FIXTURES / "hf" / "llama-tied-bf16"
    found = ckconv("convert", source, tmp_path / "m.gguf", "--set-meta", "general.architecture=qwen2")
    assert (found.code, "general.architecture: the tensors decide it" in found.err) == (2, True)


def test_an_mlx_directory_against_its_rules_is_copied_and_made_into_no_checkpoint(tmp_path: Path, ckconv) -> None:
    """A file may contradict its family; transformers would not load what is made of it."""
    source = tmp_path / "m"
    shutil.copytree(FIXTURES / "mlx" / "qwen3-tied-bf16.q4g64", source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "rope_scaling": {"type": "dynamic"}}))

    assert ckconv("convert", source, f"{tmp_path}/copy/", "--to", "mlx").code == 0
    refused = ckconv("convert", source, f"{tmp_path}/hf/", "--to", "safetensors", "--dequantize")
    assert refused.code == 3
    assert "rope_scaling" in refused.err
    assert "factor" in refused.err
