"""Nothing is published of which a byte on the disk is not the byte that was meant."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckconv.conversion import pipeline
from ckconv.core.tensors import TensorIndex

#: What is converted -> source below the fixtures, arguments. Together every writer and every kind of side file.
RUNS = {
    "bump 3": ("gguf/llama-tied-bf16.auto.gguf", ("--to", "bump", "--bump-version", "3", "--checksums")),
    "bump 4": ("hf/qwen2-tied-bf16", ("--to", "bump", "--bump-version", "4", "--map")),
    "bump 5": ("gguf/qwen3-tied-bf16.auto.gguf", ("--to", "bump", "--bump-version", "5", "--map")),
    "gguf": ("gguf/llama-tied-bf16.auto.gguf", ("--to", "gguf")),
    "gguf of a checkpoint": ("hf/gpt2-hub-f32", ("--to", "gguf", "--max-shard-size", "200KB")),
    "safetensors": ("gguf/gemma3-text-bf16.auto.gguf", ("--to", "safetensors", "--checksums")),
    "mlx": ("hf/llama-tied-bf16", ("--to", "mlx", "--fuse", "qkv")),
    "mlx triples": ("kquants/llama64.Q4_K_M.gguf", ("--to", "mlx", "--dequantize", "--max-shard-size", "100KB")),
    "peft": ("lora/mlx-lora", ("--to", "peft")),
    "restored": ("", ("--to", "safetensors")),
}


class Disk:
    """``os.write`` and ``os.pwrite`` with one bit of one call changed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.wrong: int | None = None
        self.random = random.Random(7)
        self._write, self._pwrite = os.write, os.pwrite
        monkeypatch.setattr(os, "write", self.write)
        monkeypatch.setattr(os, "pwrite", self.pwrite)

    def write(self, fd: int, data: bytes) -> int:
        return self._write(fd, self._through(data) if fd > 2 else data)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        return self._pwrite(fd, self._through(data), offset)

    def _through(self, data: bytes) -> bytes:
        self.calls += 1
        if self.calls != self.wrong or not len(data):
            return data
        changed = bytearray(data)
        changed[self.random.randrange(len(changed))] ^= 1 << self.random.randrange(8)
        return bytes(changed)


@pytest.fixture
def source(what: str, fixtures: Path, tmp_path: Path, ckconv: Callable[..., object]) -> Path:
    if RUNS[what][0]:
        return fixtures / RUNS[what][0]
    (tmp_path / "bumped").mkdir()
    bump = tmp_path / "bumped" / "m.bump"
    ckconv("convert", fixtures / "hf" / "qwen2-tied-bf16", bump, "-q")
    return bump


@pytest.mark.parametrize("what", RUNS)
def test_a_bit_that_changes_on_its_way_to_the_disk_is_found_before_anything_has_its_name(
    what: str, source: Path, tmp_path: Path, ckconv, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    call = ("convert", source, f"{place}/out/", *RUNS[what][1], "-q")
    disk = Disk(monkeypatch)
    assert ckconv(*call).code == 0
    names = sorted(path.name for path in (place / "out").iterdir())
    calls = disk.calls
    assert calls >= len(names)
    for number in range(1, calls + 1):
        disk.calls, disk.wrong = 0, number
        place = tmp_path / f"wrong {number}"
        place.mkdir()
        result = ckconv("convert", source, f"{place}/out/", *RUNS[what][1], "-q")
        assert result.code in (5, 6), f"write {number} of {calls}: {result}"
        assert list(place.iterdir()) == [], f"write {number} of {calls}"


def test_the_sha256_of_a_file_is_what_sha256sum_prints(fixtures: Path, tmp_path: Path, ckconv) -> None:
    for version in ("3", "4", "5"):
        bump = tmp_path / version / "m.bump"
        bump.parent.mkdir()
        done = ckconv("convert", fixtures / "gguf/llama-tied-bf16.auto.gguf", bump, "--bump-version", version, "--json")
        data = bump.read_bytes()
        (file,) = done.json["files"]
        assert file["sha256"] == done.json["sha256"] == hashlib.sha256(data).hexdigest()
        payload = file["payload_sha256"]
        assert bytes.fromhex(payload) in data[:0x80]
        assert payload == done.json["payload_sha256"] == ckconv("verify", bump, "--json").json["payload_sha256"]
    done = ckconv("convert", fixtures / "gguf/llama-tied-bf16.auto.gguf", tmp_path / "m.gguf", "--json")
    (file,) = done.json["files"]
    assert (file["sha256"], file["payload_sha256"]) == (
        hashlib.sha256((tmp_path / "m.gguf").read_bytes()).hexdigest(), None
    )  # fmt: skip


def test_checksums_cover_every_file_of_the_output(fixtures: Path, tmp_path: Path, ckconv) -> None:
    out = tmp_path / "out"
    assert ckconv("convert", fixtures / "hf/qwen2-tied-bf16", f"{out}/", "--to", "bump", "--checksums", "-q").code == 0
    sums = dict(reversed(line.split("  ")) for line in (out / "SHA256SUMS").read_text().splitlines())
    others = {path.name: path.read_bytes() for path in out.iterdir() if path.name != "SHA256SUMS"}
    assert sums == {name: hashlib.sha256(content).hexdigest() for name, content in others.items()}
    assert json.loads(others["config.json"])


def test_a_document_that_changes_while_tensors_are_written_is_what_is_compared(
    fixtures: Path, tmp_path: Path, ckconv, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compared(out: TensorIndex, *arguments: Any, **named: Any) -> Any:
        found = pipeline_compare(out, *arguments, **named)
        document = next(path for path in out.path.iterdir() if path.name == "config.json")
        document.write_text(json.dumps({**json.loads(document.read_text()), "bos_token_id": 7}))
        return found

    pipeline_compare = pipeline.compare
    monkeypatch.setattr(pipeline, "compare", compared)

    done = ckconv("convert", fixtures / "hf/llama-tied-bf16", f"{tmp_path}/out/", "--to", "mlx", "-q")

    assert (done.code, "'bos_token_id' is 7; expected 1" in done.err) == (5, True), done.err
    assert not (tmp_path / "out").exists()


def test_a_gguf_that_lost_its_epsilon_and_its_theta_is_not_what_its_source_is(
    fixtures: Path, tmp_path: Path, ckconv
) -> None:
    source = fixtures / "gguf/llama-tied-bf16.auto.gguf"
    data = source.read_bytes()
    for key in (b"llama.attention.layer_norm_rms_epsilon", b"llama.rope.freq_base"):
        data = data.replace(key, key[:-1] + b"x")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(data)
    result = ckconv("verify", broken, source)
    assert (result.code, result.out) == (5, "")
    assert "norm_eps" in result.err
