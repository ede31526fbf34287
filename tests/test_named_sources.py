"""Models by their names: in the download cache of the hub, of Ollama, and directories with one model of any kind."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest
from conftest import FIXTURES

LLAMA, QWEN2 = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf", FIXTURES / "hf" / "qwen2-tied-bf16"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As huggingface_hub lays it out: links of a snapshot to blobs."""
    repository = tmp_path / "hub" / "models--org--Qwen2.5-tiny"
    snapshot = repository / "snapshots" / COMMIT
    for folder in (repository / "blobs", repository / "refs", snapshot):
        folder.mkdir(parents=True)
    for number, path in enumerate(QWEN2.iterdir()):
        (repository / "blobs" / f"{number:040}").write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to(f"../../blobs/{number:040}")
    (repository / "refs" / "main").write_text(COMMIT)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return snapshot


@pytest.mark.parametrize("name", ["org/Qwen2.5-tiny", "org/Qwen2.5-tiny@main", f"org/Qwen2.5-tiny@{COMMIT}"])
def test_a_repository_in_the_cache(name: str, cache: Path, tmp_path: Path, ckconv) -> None:
    assert ckconv("diff", name, QWEN2).code == 0
    assert ckconv("inspect", "--json", name).json["path"] == str(cache)
    done = ckconv("batch", name, "--to", "gguf", "--into", tmp_path / "all")
    assert (done.code, json.loads(done.out)["target"]) == (0, f"{tmp_path}/all/Qwen2.5-tiny/")


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", ["org/other", "org/Qwen2.5-tiny@v9", "org/Qwen2.5-tiny@../.."])
def test_a_repository_that_is_not_in_the_cache(name: str, ckconv) -> None:
    done = ckconv("inspect", name)
    assert (done.code, "error[input.missing]" in done.err) == (3, True)


def test_what_is_there_as_it_stands_is_a_path(
    cache: Path, tmp_path: Path, ckconv, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "Qwen2.5-tiny").write_bytes(LLAMA.read_bytes())
    (tmp_path / "ollama:x").write_bytes(LLAMA.read_bytes())
    monkeypatch.chdir(tmp_path)
    for name in ("org/Qwen2.5-tiny", "ollama:x"):
        assert ckconv("inspect", "--json", name).json["format"] == "gguf"


def ollama(home: Path, place: str, layers: list[tuple[str, bytes]]) -> None:
    """As Ollama lays it out: a manifest that lists blobs."""
    listed = []
    (home / "blobs").mkdir(parents=True, exist_ok=True)
    for kind, data in layers:
        digest = sha256(data).hexdigest()
        (home / "blobs" / f"sha256-{digest}").write_bytes(data)
        listed.append({"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}"})
    manifest = home / "manifests" / place
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": listed}))


@pytest.mark.parametrize(
    ("name", "place", "called"),
    [
        ("ollama:tiny", "example.org/library/tiny/latest", "tiny"),
        ("ollama:tiny:8b", "example.org/library/tiny/8b", "tiny-8b"),
        ("ollama:me/tiny:8b", "example.org/me/tiny/8b", "tiny-8b"),
        ("ollama:example.org/me/tiny:8b", "example.org/me/tiny/8b", "tiny-8b"),
    ],
)
def test_a_model_of_ollama(
    name: str, place: str, called: str, tmp_path: Path, ckconv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    ollama(tmp_path / "models", place, [("model", LLAMA.read_bytes()), ("template", b"x"), ("params", b"{}")])
    assert ckconv("diff", name, LLAMA).code == 0
    done = ckconv("batch", name, "--to", "bump", "--into", tmp_path / "all")
    assert (done.code, json.loads(done.out)["target"]) == (0, f"{tmp_path}/all/{called}/")


def test_a_model_of_ollama_that_is_not_there_or_has_an_adapter(
    tmp_path: Path, ckconv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    assert "error[input.missing]: ollama:none: the model is not in" in ckconv("inspect", "ollama:none").err
    ollama(tmp_path, "example.org/library/a/latest", [("model", LLAMA.read_bytes()), ("adapter", b"x")])
    done = ckconv("inspect", "ollama:a")
    assert (done.code, "the model has an adapter" in done.err, "--adapter" in done.err) == (3, True, True)


@pytest.mark.parametrize("source", [LLAMA, QWEN2 / "model.safetensors"], ids=["a GGUF", "a safetensors file"])
def test_a_directory_with_one_model(source: Path, tmp_path: Path, ckconv) -> None:
    for path in source.parent.iterdir() if source.parent == QWEN2 else ():
        if path != source:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / f"own-name{source.suffix}").write_bytes(source.read_bytes())
    assert ckconv("diff", tmp_path, source).code == 0
