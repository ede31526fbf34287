"""Bump files whose dtype table is of other slots: no engine reads it, and the manifest names every entry's type.

``convert_safetensors_to_bump_v8.py`` of July 2026 gives every entry a byte, with those of the tokenizer, and counts no
tokens in the header; ``convert_hf_to_bump_v7.py`` of April 2026 follows the list of weights of an older engine.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from conftest import FIXTURES

import ckconv as library
from ckconv import Options

TABLE_AT, COUNTS_AT, SHA_AT, FOOTER = 0x98, 0x50, 0x58, 48
MODELS = ["llama-tied-bf16", "llama-untied-f16-sharded", "qwen2-tied-bf16", "qwen3-tied-bf16"]


def by_entry(name: str, folder: Path, *, tokens: bool = False, coded: int = 0) -> Path:
    """A bump 5 file of a checkpoint, laid out anew: a byte of the table for each entry, the header without counts."""
    library.convert(
        FIXTURES / "hf" / name, f"{folder}/", to="bump", options=Options(bump_version=5, source_record=False)
    )
    path, described = folder / "weights.bump", folder / "weights_manifest.json"
    data, manifest = path.read_bytes(), json.loads(described.read_text())
    (length,) = struct.unpack_from("<I", data, TABLE_AT)
    start, end = TABLE_AT + 4 + length, len(data) - FOOTER - struct.unpack_from("<Q", data, len(data) - 40)[0]
    entries = [entry for entry in manifest["entries"] if tokens or not entry["name"].startswith("vocab_")]
    table = bytes(coded or len(entries))
    moved, payload = [], b""
    for entry in sorted(entries, key=lambda entry: str(entry["name"])):
        at = entry["file_offset"]
        moved.append({**entry, "file_offset": TABLE_AT + 4 + len(table) + len(payload)})
        payload += data[at : at + entry["size"]]
    assert start < end
    body = struct.pack("<I", len(table)) + table + payload
    metadata = json.dumps({"format": "BUMPWGT5", "config": manifest["config"]}).encode()
    header = data[:COUNTS_AT] + bytes(8) + hashlib.sha256(body).digest() + data[SHA_AT + 32 : 128]
    footer = struct.pack("<8sQ32s", b"BUMPV5MD", len(metadata), hashlib.sha256(metadata).digest())
    path.write_bytes(header + bytes(24) + body + metadata + footer)
    del manifest["num_merges"], manifest["total_vocab_bytes"]
    described.write_text(json.dumps({**manifest, "entries": moved}))
    return path


@pytest.mark.product("values")
@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_byte_for_every_entry_is_read_by_the_manifest(name: str, tokens: bool, tmp_path: Path, ckconv: Any) -> None:
    path = by_entry(name, tmp_path / "b", tokens=tokens)
    assert "container\tlayout\t5-D\n" in ckconv("inspect", path).out
    assert ckconv("verify", path).code == 0
    assert ckconv("convert", path, f"{tmp_path}/hf/", "--to", "safetensors").code == 0
    found = ckconv("diff", "--weights", tmp_path / "hf", FIXTURES / "hf" / name)
    assert (found.code, found.out.splitlines()[-2]) == (0, "the same tensors")
    assert ckconv("convert", path, tmp_path / "m.gguf").code == 0


@pytest.mark.parametrize("coded", [1, 7, 100])
def test_a_table_of_any_length_is_none_of_the_engines_business(coded: int, tmp_path: Path, ckconv: Any) -> None:
    path = by_entry("qwen3-tied-bf16", tmp_path / "b", coded=coded)
    assert ckconv("verify", path).code == 0
    assert ckconv("diff", path, FIXTURES / "gguf" / "qwen3-tied-bf16.auto.gguf", "--weights").code == 0


def test_without_the_manifest_it_is_not_known_what_the_bytes_are_of(tmp_path: Path, ckconv: Any) -> None:
    path = by_entry("qwen2-tied-bf16", tmp_path / "b")
    path.with_name("weights_manifest.json").unlink()
    found = ckconv("inspect", path)
    assert (found.code, "error[bump.dtype-table]" in found.err) == (3, True)
    assert "hint: weights_manifest.json, which names every entry, has to lie beside a file of the engine's" in found.err


def test_a_type_that_the_manifest_does_not_know_is_an_error(tmp_path: Path, ckconv: Any) -> None:
    path = by_entry("qwen2-tied-bf16", tmp_path / "b")
    described = path.with_name("weights_manifest.json")
    described.write_text(described.read_text().replace('"layer.0.wq", "dtype": "fp32"', '"layer.0.wq", "dtype": "fp4"'))
    found = ckconv("inspect", path)
    assert (found.code, "the manifest's slots" in found.err) == (3, True)


def test_the_engines_own_names_in_config_json_are_names(tmp_path: Path, ckconv: Any) -> None:
    """Its builder takes both: a nemotron_h of its converter says num_layers."""
    path = by_entry("qwen3-tied-bf16", tmp_path / "b")
    beside = path.with_name("config.json")
    document = json.loads(beside.read_text())
    document["num_layers"] = document.pop("num_hidden_layers")
    beside.write_text(json.dumps(document))
    assert ckconv("verify", path).code == 0
    del document["num_layers"]
    beside.write_text(json.dumps(document))
    assert "it has no num_hidden_layers" in ckconv("verify", path).err
