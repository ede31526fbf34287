"""Links out of a model directory: refused, or read where the user says so; what an index names is inside either way."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import FIXTURES, Result

import ckconv
from ckconv import Options
from ckconv.errors import InputError

Run = Callable[..., Result]

SHARDED = FIXTURES / "hf" / "llama-untied-f16-sharded"
INDEX = "model.safetensors.index.json"


def linked(source: Path, place: Path) -> Path:
    """A directory of links to every file of ``source``, which lies elsewhere."""
    place.mkdir(exist_ok=True)
    away = place / "away"
    shutil.copytree(source, away)
    root = place / "model"
    root.mkdir()
    for path in away.iterdir():
        (root / path.name).symlink_to(path)
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return linked(SHARDED, tmp_path)


@pytest.mark.parametrize("command", [("inspect",), ("inspect", "--hash"), ("verify",), ("diff", SHARDED)])
def test_every_command_names_the_flag_and_takes_it(command: tuple[object, ...], root: Path, ckconv: Run) -> None:
    name, *more = command
    result = ckconv(name, root, *more)
    assert (result.code, "[index.path]" in result.err) == (3, True)
    assert "hint: --follow-links reads what it links to" in result.err
    assert ckconv(name, root, *more, "--follow-links").code == 0


@pytest.mark.parametrize("to", ["gguf", "safetensors", "mlx", "bump"])
def test_a_conversion_is_that_of_the_files_themselves(to: str, root: Path, tmp_path: Path, ckconv: Run) -> None:
    out, meant = tmp_path / "out", tmp_path / "meant"
    assert ckconv("convert", root, f"{out}/", "--to", to).code == 3
    assert not out.exists()
    copied = tmp_path / "copied" / "model"  # its name is that of the model
    shutil.copytree(SHARDED, copied)
    assert ckconv("convert", copied, f"{meant}/", "--to", to, "--record", "-q").code == 0
    assert ckconv("convert", root, f"{out}/", "--to", to, "--record", "--follow-links", "-q").code == 0
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in meant.iterdir())
    for path in out.iterdir():
        assert not path.is_symlink()
        assert path.read_bytes() == (meant / path.name).read_bytes(), path.name
    assert ckconv("verify", out, root).code == 3
    assert ckconv("verify", out, root, "--follow-links").code == 0


def test_a_program_says_so_with_an_option(root: Path, tmp_path: Path) -> None:
    out, links = f"{tmp_path / 'out'}/", Options(follow_links=True)
    with pytest.raises(InputError) as caught:
        ckconv.open_model(root)
    assert caught.value.code == "index.path"
    assert len(ckconv.open_model(root, follow_links=True).tensors) == len(ckconv.open_model(SHARDED).tensors)
    ckconv.convert(root, out, to="safetensors", options=links)
    ckconv.verify(out, root, options=links)
    assert ckconv.diff(out, root, follow_links=True).same


@pytest.mark.parametrize("to", ["peft", "gguf"])
def test_an_adapter_of_links_and_its_base(to: str, tmp_path: Path, ckconv: Run) -> None:
    adapter = linked(FIXTURES / "lora" / "qwen2-r4-all", tmp_path / "a")
    base = linked(FIXTURES / "hf" / "qwen2-tied-bf16", tmp_path / "b")
    command = ("convert", adapter, f"{tmp_path / 'out'}/", "--to", to, "--base", base)
    assert ckconv(*command).code == 3
    assert ckconv(*command, "--follow-links").code == 0


@pytest.mark.parametrize("name", ["/etc/hostname", "../away/model-00001-of-00003.safetensors", "a/b.safetensors"])
@pytest.mark.parametrize("flags", [(), ("--follow-links",)])
def test_an_index_names_files_of_its_directory_whatever_is_followed(
    name: str, flags: tuple[str, ...], root: Path, ckconv: Run
) -> None:
    document = json.loads((root / INDEX).read_text())
    document["weight_map"] = dict.fromkeys(document["weight_map"], name)
    (root / INDEX).unlink()
    (root / INDEX).write_text(json.dumps(document))
    result = ckconv("inspect", root, *flags)
    assert (result.code, "[index.path]" in result.err) == (3, True)
    assert f"index names '{name}'" in result.err


@pytest.mark.parametrize("kind", ["fifo", "device", "directory", "nothing"])
def test_only_regular_files_are_read_through_links(kind: str, root: Path, tmp_path: Path, ckconv: Run) -> None:
    target = Path("/dev/zero") if kind == "device" else tmp_path / kind
    if kind == "fifo":
        os.mkfifo(target)
    elif kind == "directory":
        target.mkdir()
    path = root / "model-00002-of-00003.safetensors"
    path.unlink()
    path.symlink_to(target)
    result = ckconv("inspect", root, "--follow-links")
    assert result.code == 3
    assert f"error[{'index.missing' if kind == 'nothing' else 'index.path'}]" in result.err


def test_a_file_that_goes_to_another_directory_is_read_back_there(tmp_path: Path, ckconv: Run) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    source = FIXTURES / "hf" / "qwen2-tied-bf16"
    command = ("convert", source, f"{tmp_path / 'out'}/", "--to", "safetensors", "--config-out", elsewhere / "c.json")
    assert ckconv(*command).code == 0
    assert json.loads((elsewhere / "c.json").read_text())["model_type"] == "qwen2"
    assert not (tmp_path / "out" / "config.json").exists()
