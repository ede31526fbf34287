"""What a bump file's manifest and entries say of a tokenizer is the same, whatever the source is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import pytest
from conftest import FIXTURES
from gguf_copies import gguf_copy

import ckconv
from ckconv import Options

#: File of a tokenizer, of the fixtures, and its name beside a checkpoint -> its kind.
KINDS = {
    ("hf/llama-tied-bf16/tokenizer.json", "tokenizer.json"): "gpt2",
    ("tokenizers/sentencepiece-bpe.model", "tokenizer.model"): "llama",
}
MODELS = ["llama-tied-bf16", "qwen2-tied-bf16", "qwen3-tied-bf16"]


def said(source: Path, folder: Path) -> tuple[Any, dict[str, bytes]]:
    """Special tokens of the manifest, and the entries of the tokenizer."""
    ckconv.convert(source, f"{folder}/", to="bump", options=Options(bump_version=5, source_record=False))
    manifest = json.loads((folder / "weights_manifest.json").read_text())
    data = (folder / "weights.bump").read_bytes()
    entries = [entry for entry in manifest["entries"] if entry["name"].startswith("vocab_")]
    content = {e["name"]: data[e["file_offset"] : e["file_offset"] + e["size"]] for e in entries}
    return manifest["special_tokens"], content


@pytest.mark.product("values")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_every_source_says_the_same(name: str, kind: tuple[str, str], tmp_path: Path) -> None:
    source = tmp_path / "hf"
    shutil.copytree(FIXTURES / "hf" / name, source, ignore=shutil.ignore_patterns("tokenizer*"))
    shutil.copy(FIXTURES / kind[0], source / kind[1])
    ckconv.convert(source, tmp_path / "m.gguf")
    ckconv.convert(source, tmp_path / "mlx-model", to="mlx")
    special, entries = said(tmp_path / "m.gguf", tmp_path / "gguf")
    assert special["tokenizer_model"] == KINDS[kind]
    assert len(entries["vocab_strings"]) > 1000
    for other in (source, tmp_path / "mlx-model"):
        assert said(other, tmp_path / f"bump of {other.name}") == (special, entries)


def test_llama_cpps_own_gguf_of_the_checkpoint_has_the_same_words(tmp_path: Path) -> None:
    """It leaves switches out that are off."""
    special, entries = said(FIXTURES / "hf" / "qwen2-tied-bf16", tmp_path / "hf")
    theirs, wanted = said(FIXTURES / "gguf" / "qwen2-tied-bf16.auto.gguf", tmp_path / "gguf")
    assert entries == wanted
    assert special == {**theirs, "add_bos_token": False, "add_eos_token": False}


def test_a_tokenizer_that_no_gguf_holds_says_that_its_letters_are_bytes(tmp_path: Path) -> None:
    """The engine's runner writes a blank as it stands in the words only where the manifest says so."""
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "hf" / "llama-tied-bf16", source)
    path = source / "tokenizer.json"
    document = json.loads(path.read_text())
    split = {"type": "Split", "pattern": {"Regex": "x+y"}, "behavior": "Isolated", "invert": False}
    document["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [split, {"type": "ByteLevel", "use_regex": False}],
    }
    path.write_text(json.dumps(document))
    special, entries = said(source, tmp_path / "bump")
    assert special["tokenizer_model"] == "gpt2"
    assert {"vocab_offsets", "vocab_strings", "vocab_merges"} <= entries.keys()


def test_two_equal_tokens_are_noted(tmp_path: Path) -> None:
    source = tmp_path / "hf"
    shutil.copytree(FIXTURES / "hf" / MODELS[0], source, ignore=shutil.ignore_patterns("tokenizer*"))
    shutil.copy(FIXTURES / "hf/llama-tied-bf16/tokenizer.json", source / "tokenizer.json")
    ckconv.convert(source, tmp_path / "m.gguf")
    tokens = gguf.GGUFReader(tmp_path / "m.gguf").fields["tokenizer.ggml.tokens"].contents()
    keys = {"tokenizer.ggml.tokens": [*tokens[:-1], tokens[-2]]}
    made = gguf_copy(tmp_path / "m.gguf", tmp_path / "n.gguf", keys=keys)
    report = ckconv.convert(made, f"{tmp_path / 'bump'}/", to="bump", options=Options(bump_version=5))
    last = len(tokens) - 1
    said = f"tokens {last - 1:,} and {last:,} are both {tokens[-2]!r}: a text has the one or the other"
    assert said in report.plan.notes
