"""``convert --side-files-only``: what a whole conversion has beside its weights, byte for byte, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Result
from outputs import contents

Run = Callable[..., Result]

DENSE = "gguf/llama-tied-bf16.auto.gguf"
QUANTIZED = "kquants/llama64.Q4_K_M.gguf"


@pytest.mark.parametrize(
    ("source", "flags"),
    [
        (DENSE, []),
        (QUANTIZED, ["--dequantize"]),
        ("hf/qwen2-tied-bf16", []),
        ("hf/gpt2-hub-f32", ["--max-shard-size", "100KB"]),
    ],
)
def test_the_files_are_those_of_a_whole_conversion(
    fixtures: Path, tmp_path: Path, ckconv: Run, source: str, flags: list[str]
) -> None:
    assert ckconv("convert", fixtures / source, tmp_path / "whole", "--to", "hf", *flags).code == 0
    whole = {name: data for name, data in contents(tmp_path / "whole").items() if ".safetensors" not in name}
    result = ckconv("convert", fixtures / source, tmp_path / "alone", "--to", "hf", "--side-files-only")
    assert (result.code, result.err) == (0, "")
    assert "no weights" in result.out
    assert contents(tmp_path / "alone") == whole
    assert {"config.json", "tokenizer.json"} <= set(whole)


def test_a_bump_file_has_them_too(fixtures: Path, tmp_path: Path, ckconv: Run) -> None:
    assert ckconv("convert", fixtures / "hf/llama-tied-bf16", tmp_path / "model.bump").code == 0
    arguments = (tmp_path / "model.bump", tmp_path / "out/", "--to", "hf", "--side-files-only")
    assert ckconv("convert", *arguments, "--no-source-record").code == 0
    assert "config.json" in contents(tmp_path / "out")


def test_the_document_is_that_of_a_conversion_without_tensors(fixtures: Path, tmp_path: Path, ckconv: Run) -> None:
    result = ckconv("convert", fixtures / DENSE, tmp_path / "out", "--to", "hf", "--side-files-only", "--json").json
    assert (result["files"], result["bytes"], result["verified"]) == ([], 0, None)
    assert {Path(name).name for name in result["side_files"]} == set(contents(tmp_path / "out"))


def test_nothing_is_written_for_show_nor_over_what_is_there(fixtures: Path, tmp_path: Path, ckconv: Run) -> None:
    out = tmp_path / "out"
    assert "nothing written" in ckconv("convert", fixtures / DENSE, out, "--to", "hf", "--side-files-only", "-n").out
    assert not out.exists()
    out.mkdir()
    (out / "mine").write_text("mine")
    result = ckconv("convert", fixtures / DENSE, out, "--to", "hf", "--side-files-only")
    assert (result.code, contents(out)) == (6, {"mine": b"mine"})


@pytest.mark.parametrize(
    ("target", "flags", "code"),
    [
        ("out.gguf", [], "usage.target"),
        ("out/", ["--to", "gguf"], "usage.side-file"),
        ("out.bump", [], "usage.target"),
        ("out/", ["--to", "mlx"], "usage.side-file"),
        ("out.safetensors", [], "usage.side-file"),
        ("out/", ["--to", "hf", "--record"], "usage.flag"),
        ("out/", ["--to", "hf", "--dequantize"], "usage.flag"),
        ("out/", ["--to", "hf", "--pack", "modelopt"], "usage.flag"),
        ("out/", ["--to", "hf", "--resume"], "usage.flag"),
        ("out/", ["--to", "hf", "--cluster", "dask://127.0.0.1:1"], "usage.flag"),
        ("out/", ["--to", "hf", "--attest", "statement.json"], "usage.flag"),
        ("out/", ["--to", "hf", "--html", "page.html"], "usage.flag"),
        ("out/", ["--to", "hf", "--jobs", "2"], "usage.flag"),
        ("out/", ["--to", "hf", "--names", "gguf"], "usage.flag"),
        ("out/", ["--to", "hf", "--fuse", "qkv"], "usage.flag"),
        ("out/", ["--to", "hf", "--rope-layout", "split"], "usage.flag"),
        ("out/", ["--to", "hf", "--set-meta", "a=b"], "usage.flag"),
        ("out/", ["--to", "hf", "--bump-version", "3"], "usage.flag"),
    ],
)
def test_where_they_are_of_no_use_it_says_so(
    fixtures: Path, tmp_path: Path, ckconv: Run, target: str, flags: list[str], code: str
) -> None:
    result = ckconv("convert", fixtures / DENSE, f"{tmp_path}/{target}", "--side-files-only", *flags)
    assert (result.code, f"error[{code}]" in result.err) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_a_flag_about_what_lies_beside_weights_has_a_say(fixtures: Path, tmp_path: Path, ckconv: Run) -> None:
    flags = ("--to", "hf", "--context", "64", "--dtype", "f32")
    assert ckconv("convert", fixtures / "hf/qwen2-tied-bf16", tmp_path / "whole", *flags).code == 0
    assert ckconv("convert", fixtures / "hf/qwen2-tied-bf16", tmp_path / "alone", *flags, "--side-files-only").code == 0
    config = json.loads((tmp_path / "alone/config.json").read_text())
    assert config["max_position_embeddings"] == 64
    assert config == json.loads((tmp_path / "whole/config.json").read_text())


def test_an_adapter_has_none(fixtures: Path, tmp_path: Path, ckconv: Run) -> None:
    result = ckconv("convert", fixtures / "lora/gpt2-r4", tmp_path / "out", "--to", "peft", "--side-files-only")
    assert (result.code, "usage.side-file" in result.err, "hint:" in result.err) == (2, True, False)
