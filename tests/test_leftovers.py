"""An output is never written where files of an earlier one would be loaded along with it, or instead of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import FIXTURES, Result

Ckconv = Callable[..., Result]

LLAMA = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
SHARDS = ("--max-shard-size", "50kB")


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("--to", "safetensors"), ("--to", "safetensors", *SHARDS)),
        (("--to", "safetensors", *SHARDS), ("--to", "safetensors")),
        (("--to", "safetensors", *SHARDS), ("--to", "safetensors", "--max-shard-size", "100kB")),
        (("--to", "mlx", *SHARDS), ("--to", "mlx")),
        (("--to", "bump", "--bump-version", "5", "--map"), ("--to", "bump", "--bump-version", "5")),
    ],
    ids=lambda flags: " ".join(flags),
)
def test_what_loaders_would_read_along_is_refused(
    first: tuple[str, ...], second: tuple[str, ...], tmp_path: Path, ckconv: Ckconv
) -> None:
    out = tmp_path / "out"
    assert ckconv("convert", LLAMA, f"{out}/", *first).code == 0
    before = content(out)

    refused = ckconv("convert", LLAMA, f"{out}/", *second, "--force")

    assert refused.code == 6
    assert "error[output.exists]" in refused.err
    assert "loaders would take it for part of the output" in refused.err
    assert content(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("flags", [("--to", "safetensors"), ("--to", "safetensors", *SHARDS), ("--to", "mlx")])
def test_what_is_replaced_is_not_left_over(flags: tuple[str, ...], tmp_path: Path, ckconv: Ckconv) -> None:
    out = tmp_path / "out"
    for _ in range(2):
        done = ckconv("convert", LLAMA, f"{out}/", *flags, "--force")
        assert done.code == 0, done.err
        (out / "notes.txt").write_text("mine")
    assert (out / "notes.txt").is_file()


def test_a_map_that_is_written_anew_is_not_left_over(tmp_path: Path, ckconv: Ckconv) -> None:
    for source in (LLAMA, FIXTURES / "gguf" / "qwen3-tied-bf16.auto.gguf"):
        done = ckconv("convert", source, f"{tmp_path}/out/", "--to", "bump", "--bump-version", "5", "--map", "--force")
        assert done.code == 0, done.err
    assert ckconv("verify", tmp_path / "out").code == 0


def test_a_file_of_another_name_is_nobodys_part(tmp_path: Path, ckconv: Ckconv) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"another")
    assert ckconv("convert", LLAMA, tmp_path / "mine.safetensors").code == 0
