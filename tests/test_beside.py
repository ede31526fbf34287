"""Two bump files in one directory: each is read with its own documents, and neither takes the other's away."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from models import Model

Run = Callable[..., Any]

LLAMA = Model(vocab=40, context=6)
QWEN = Model(arch="qwen2", vocab=48, context=6, qkv_bias=True)


@pytest.fixture
def sources(tmp_path: Path) -> tuple[Path, Path]:
    return LLAMA.write(tmp_path / "llama.gguf"), QWEN.write(tmp_path / "qwen.gguf")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def families(ckconv: Run, place: Path) -> dict[str, str]:
    return {path.name: ckconv("inspect", path, "--json").json["architecture"] for path in sorted(place.glob("*.bump"))}


def convert(ckconv: Run, *arguments: object) -> str:
    found = ckconv("convert", *arguments)
    assert (found.code, found.err) == (0, "")
    return str(found.out)


@pytest.mark.parametrize("version", ["3", "4", "5"])
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_the_second_bump_of_a_directory_has_its_documents_under_its_own_name(
    sources: tuple[Path, Path], place: Path, ckconv: Run, version: str, force: list[str]
) -> None:
    llama, qwen = sources
    first = convert(ckconv, llama, place / "a.bump", "--bump-version", version)
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    second = convert(ckconv, qwen, place / "b.bump", "--bump-version", version, *force)
    documents = ["config.json"] if version == "3" else ["config.json", "weights_manifest.json"]
    own = [f"b.bump.{name}" for name in documents]
    note = f"what belongs to this one is {', '.join(own)}; the engine reads {', '.join(documents)}, so a directory of"
    assert note not in first
    assert note in second
    assert {path.name for path in place.iterdir()} == {*before, "b.bump", "b.bump.source.zip", *own}
    assert {name: (place / name).read_bytes() for name in before} == before
    assert families(ckconv, place) == {"a.bump": "llama", "b.bump": "qwen2"}
    for name, source in (("a.bump", llama), ("b.bump", qwen)):
        assert ckconv("verify", place / name, source).code == 0
        back = place.parent / f"{name}.gguf"
        convert(ckconv, place / name, back)
        assert back.read_bytes() == source.read_bytes()


def test_what_two_bumps_say_alike_is_shared(sources: tuple[Path, Path], place: Path, ckconv: Run) -> None:
    for name in ("a", "b"):
        convert(ckconv, sources[0], place / f"{name}.bump", "--bump-version", "3")
    assert sorted(path.name for path in place.glob("*config*")) == ["config.json"]
    shared = (place / "config.json").read_bytes()
    convert(ckconv, sources[1], place / "a.bump", "--bump-version", "3", "--force")
    assert sorted(path.name for path in place.glob("*config*")) == ["a.bump.config.json", "config.json"]
    assert (place / "config.json").read_bytes() == shared
    assert families(ckconv, place) == {"a.bump": "qwen2", "b.bump": "llama"}


def test_a_document_under_its_own_name_is_replaced_there(
    sources: tuple[Path, Path], place: Path, ckconv: Run
) -> None:  # it would be found before a new config.json
    convert(ckconv, sources[0], place / "a.bump", "--bump-version", "3")
    convert(ckconv, sources[1], place / "b.bump", "--bump-version", "3")
    for path in place.glob("*"):
        if not path.name.startswith("b.bump"):
            path.unlink()
    convert(ckconv, sources[0], place / "b.bump", "--bump-version", "3", "--force")
    assert json.loads((place / "b.bump.config.json").read_bytes())["model_type"] == "llama"
    assert not (place / "config.json").exists()
    assert families(ckconv, place) == {"b.bump": "llama"}


def test_a_map_beside_another_bump_is_not_taken_for_its_own(
    sources: tuple[Path, Path], place: Path, ckconv: Run
) -> None:
    convert(ckconv, sources[0], place / "a.bump", "--bump-version", "5", "--map")
    convert(ckconv, sources[1], place / "b.bump", "--bump-version", "5", "--map")
    assert sorted(path.name for path in place.glob("*.map")) == ["b.bump.weights_manifest.map", "weights_manifest.map"]
    for name in ("a", "b"):
        assert ckconv("verify", place / f"{name}.bump", "--json").json["map"] is True


def test_a_foreign_document_is_not_replaced_and_the_hint_names_the_directory_first(
    sources: tuple[Path, Path], place: Path, ckconv: Run
) -> None:
    (place / "config.json").write_text("{}")
    found = ckconv("convert", sources[0], place / "a.bump", "--bump-version", "3")
    assert found.code == 6
    assert found.err.splitlines() == [
        f"ckconv: error[output.exists]: {place}/config.json: exists already",
        "hint: name a directory for the output (DST/), or another place for it (--config-out); --force replaces it",
    ]
    (place / "config.json").unlink()
    (place / "weights_manifest.json").write_text("{}")
    found = ckconv("convert", sources[0], place / "a.bump", "--bump-version", "5")
    assert "or another place for it (--manifest);" in found.err


@pytest.mark.parametrize("target", ["no/such/out.bump", "no/such/out.gguf", "no/such/out/"])
def test_a_directory_that_is_missing_is_named_with_what_the_user_wrote(
    sources: tuple[Path, Path], place: Path, ckconv: Run, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    found = ckconv("convert", sources[0], target, *(["--to", "mlx"] if target.endswith("/") else []))
    assert found.code == 6
    assert found.err.splitlines() == [
        f"ckconv: error[output.parent]: {target.rstrip('/')}: the directory no/such does not exist",
        "hint: mkdir -p no/such",
    ]
