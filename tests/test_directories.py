"""A directory that holds one model, of whatever kind, is that model; one that holds several is not guessed at."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from models import Model

Run = Callable[..., Any]

SMALL = Model(vocab=40, context=6)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def described(ckconv: Run, path: Path) -> tuple[str, int]:
    document = ckconv("inspect", path, "--json").json
    return document["format"], len(document["tensors"])


def test_the_one_gguf_of_a_directory(place: Path, ckconv: Run) -> None:
    (place / "README.md").write_text("words")
    SMALL.write(place / "m.gguf")
    assert described(ckconv, place) == ("gguf", 20)
    assert ckconv("convert", place, place.parent / "out.bump").code == 0
    assert ckconv("verify", place.parent / "out.bump", place).code == 0


def test_the_one_split_set_of_a_directory(place: Path, ckconv: Run, fixtures: Path) -> None:
    for path in sorted(fixtures.glob("gguf-split/*.gguf")):
        shutil.copy(path, place)
    assert len(list(place.iterdir())) > 1
    assert described(ckconv, place)[0] == "gguf"
    first = min(place.iterdir())
    first.unlink()
    found = ckconv("inspect", place)
    assert found.code == 3
    assert "error[gguf.split]" in found.err
    assert f"expected {first.name}" in found.err


def test_the_one_bump_of_a_directory(place: Path, ckconv: Run) -> None:
    source = SMALL.write(place.parent / "m.gguf")
    assert ckconv("convert", source, place / "a.bump").code == 0
    assert described(ckconv, place)[0] == "bump"


def test_a_checkpoint_is_the_model_whatever_lies_beside_it(place: Path, ckconv: Run) -> None:
    source = SMALL.write(place.parent / "m.gguf")
    assert ckconv("convert", source, f"{place}/", "--to", "safetensors").code == 0
    shutil.copy(source, place)
    assert described(ckconv, place) == ("safetensors", 20)
    assert ckconv("inspect", place, "--from", "gguf", "--json").json["format"] == "gguf"


def test_several_models_are_named_and_none_is_chosen(place: Path, ckconv: Run) -> None:
    SMALL.write(place / "b.gguf")
    SMALL.write(place / "a.gguf")
    (place / "c.bump").write_bytes(b"")
    found = ckconv("inspect", place)
    assert found.code == 3
    assert found.err.splitlines() == [
        f"ckconv: error[input.format]: {place}: holds 3 models: 'a.gguf', 'b.gguf', 'c.bump'",
        "hint: name one of them",
    ]
    assert ckconv("inspect", place, "--from", "gguf").err.startswith(
        f"ckconv: error[input.format]: {place}: holds 2 models: 'a.gguf', 'b.gguf'"
    )


@pytest.mark.parametrize("format", ["gguf", "bump"])
def test_a_directory_without_a_file_of_the_format_asked_for(place: Path, ckconv: Run, format: str) -> None:
    found = ckconv("inspect", place, "--from", format)
    assert found.code == 3
    assert f"error[input.directory]: {place}: is a directory without a {format} file" in found.err


def test_the_index_of_shards_is_called_after_them(place: Path, ckconv: Run) -> None:
    for number in (1, 2):
        (place / f"diffusion_pytorch_model-0000{number}-of-00002.safetensors").write_bytes(b"")
    found = ckconv("inspect", place)
    assert "the file is empty\nhint: the file looks like a partial download" in found.err
    (place / "diffusion_pytorch_model-00001-of-00002.safetensors").unlink()
    found = ckconv("inspect", place)
    assert "1 of 2 shards is there, and no index" in found.err
    assert "incomplete: fetch 'diffusion_pytorch_model-00001-of-00002.safetensors'" in found.err
