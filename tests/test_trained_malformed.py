"""Models trained in the engine that cannot be read: one sentence each, and a status that says whose fault it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trained_builder import Trained, read_manifest, write_manifest


def _entry(manifest: Any, called: str, **fields: Any) -> None:
    next(entry for entry in manifest["entries"] if entry["name"] == called).update(fields)


def _without(manifest: Any, name: str) -> None:
    manifest["entries"] = [entry for entry in manifest["entries"] if entry["name"] != name]


BROKEN: dict[str, tuple[Callable[[Any], object], int, str]] = {
    "no entries": (lambda m: m.update(entries=[]), 3, "has no list of entries"),
    "an entry is malformed": (lambda m: _entry(m, "token_emb", offset="0"), 3, "lacks name, dtype, file_offset"),
    "an entry twice": (lambda m: m["entries"].append(dict(m["entries"][0])), 3, "is listed twice"),
    "an entry behind the end": (lambda m: _entry(m, "token_emb", offset=1 << 30), 3, "'token_emb' is at 1,073,741,824"),
    "two in one place": (lambda m: _entry(m, "token_emb", offset=64), 3, "inside"),
    "another type": (lambda m: _entry(m, "token_emb", dtype="bf16"), 3, "token_emb is 'bf16', the file's dtype table"),
    "another size": (lambda m: _entry(m, "token_emb", size=4), 3, "token_emb has 4 bytes, its shape and type make it"),
    "another shape": (lambda m: _entry(m, "layer.0.w2", shape=[48, 32]), 3, "layer.0.w2 is [48, 32], the model's"),
    "a matrix is missing": (lambda m: _without(m, "layer.1.w2"), 3, "has no entry layer.1.w2"),
    "the head is missing": (lambda m: _without(m, "output.weight"), 3, "has no entry output.weight"),
    "an entry of no slot": (lambda m: _entry(m, "layer.0.bo", name="layer.0.w3"), 3, "'layer.0.w3' is not a slot"),
    "no configuration": (lambda m: m.pop("config"), 3, "config.model is null, a name expected"),
    "no family": (lambda m: m["config"].pop("model"), 3, "config.model is null, a name expected"),
    "another family": (
        lambda m: m["config"].update(model="qwen35"), 4, "was trained in the engine as 'qwen35'; ckconv knows what",
    ),
    "no size": (lambda m: m["config"].pop("embed_dim"), 3, "config.embed_dim is missing"),
    "a size that is none": (lambda m: m["config"].update(num_heads=0), 3, "config.num_heads is 0"),
    "a size in words": (lambda m: m["config"].update(num_heads="4"), 3, "config.num_heads must be a whole number"),
    "layers without end": (lambda m: m["config"].update(num_layers=1 << 40), 3, "config.num_layers is 1,099,511"),
    "more layers": (lambda m: m["config"].update(num_layers=3), 3, "has no entry layer.2.ln1_gamma"),
    "heads that do not divide": (lambda m: m["config"].update(num_kv_heads=3), 3, "num_heads is 4, not a multiple of"),
    "no base of RoPE": (lambda m: m["config"].pop("rope_theta"), 3, "config.rope_theta must be a finite number"),
    "rows in a third order": (lambda m: m["config"].update(rope_layout="spiral"), 3, "rope_layout is 'spiral'"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_manifest_that_does_not_fit_is_one_sentence(what: str, tmp_path: Path, ckconv: Any) -> None:
    change, code, sentence = BROKEN[what]
    path = Trained("llama").write(tmp_path)
    manifest = read_manifest(path)
    change(manifest)
    write_manifest(path, manifest)

    found = ckconv("inspect", path)
    assert (found.code, found.out) == (code, "")
    assert sentence in found.err
    assert "Traceback" not in found.err


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda data: data[:-4], "'token_emb' is at"),
        (lambda data: data + b"\0", "1 byte after the last entry"),
        (lambda data: data[:-4160] + b"\1" + data[-4159:], ""),
    ],
    ids=["cut", "longer", "a value"],
)
def test_a_file_that_does_not_fit(edit: Callable[[bytes], bytes], sentence: str, tmp_path: Path, ckconv: Any) -> None:
    path = Trained("llama").write(tmp_path)
    path.write_bytes(edit(path.read_bytes()))

    found = ckconv("verify", path)
    assert (found.code, sentence in found.err) == ((3, True) if sentence else (0, True))


def test_bytes_between_entries_are_zeros(tmp_path: Path, ckconv: Any) -> None:
    trained = Trained("llama", hidden=20, ffn=12, heads=2, kv=1)
    path = trained.write(tmp_path)
    data = bytearray(path.read_bytes())
    end = next(entry for entry in read_manifest(path)["entries"] if entry["name"] == "final_ln_weight")["size"]
    data[end] = 1
    path.write_bytes(data)

    found = ckconv("inspect", path)
    assert found.code == 3
    assert "other bytes than zeros before 'layer.0.b1' belong to no entry of weights_manifest.json" in found.err


@pytest.mark.parametrize("layout", ["split", "pairwise"])
def test_a_manifest_may_say_how_rows_are_rotated(layout: str, tmp_path: Path, ckconv: Any) -> None:
    path = Trained("llama").write(tmp_path)
    manifest = read_manifest(path)
    manifest["config"]["rope_layout"] = layout
    write_manifest(path, manifest)

    said = ckconv("inspect", "--json", path).json["container"]["rope_layout"]
    assert said == {"split": "split", "pairwise": "interleaved"}[layout]


@pytest.mark.parametrize("cut", [0, 1, 7, 40, 200, -1])
def test_a_manifest_that_is_cut(cut: int, tmp_path: Path, ckconv: Any) -> None:
    path = Trained("llama").write(tmp_path)
    manifest = path.with_name("weights_manifest.json")
    manifest.write_bytes(manifest.read_bytes()[:cut])

    assert ckconv("inspect", path).code == 3
