"""What verify finds in the documents beside a bump file, without its source and with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import change_document
from conftest import FIXTURES

SOURCE = FIXTURES / "hf/qwen3-tied-bf16"
LLAMA = FIXTURES / "hf/llama-tied-bf16"

Change = Callable[[dict[str, Any]], object]


def made(folder: Path, ckconv: Callable[..., Any], version: int, source: Path = SOURCE) -> Path:
    flags = ("--bump-version", version, *(("--map",) if version > 3 else ()))
    assert ckconv("convert", source, f"{folder}/b/", "--to", "bump", *flags).code == 0
    return folder / "b/weights.bump"


def rename(old: str, new: str) -> Change:
    return lambda document: document.update({new: document.pop(old)})


MANIFESTS: dict[str, tuple[Change, str]] = {
    "vocab_size": (lambda m: m.update(vocab_size=385), "vocab_size is 385, the file's header says 384"),
    "vocab_size of its config": (
        lambda m: m["config"].update(vocab_size=385),
        "config.vocab_size is 385, the file's header says 384",
    ),
    "version": (lambda m: m.update(version=6), "version is 6, the file's is"),
    "head size of its config": (lambda m: m["config"].update(head_dim=8), "config.head_dim is 8, the file's header"),
    "data_start": (lambda m: m["bump_layout"].update(data_start=128), "bump_layout.data_start is 128"),
}

#: What only the metadata at the end of version 5 tells.
SEALED: dict[str, tuple[Change, str]] = {
    "a key of its config": (
        lambda m: rename("tie_word_embeddings", "tie_word_embeddinge")(m["config"]),
        "config has no tie_word_embeddings",
    ),
    "special tokens": (
        lambda m: m.update(special_tokens={"eos_token_id": 7}),
        "it is not the one that the file was written",
    ),
    "biases": (lambda m: m.update(has_attention_biases=True), "it is not the one that the file was written with"),
    "the rotation": (lambda m: m["config"].update(rotary_dim=4), "config.rotary_dim is not what the file's metadata"),
}


@pytest.mark.product("values")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_says_otherwise(name: str, version: int, tmp_path: Path, ckconv) -> None:
    how, sentence = MANIFESTS[name]
    path = made(tmp_path, ckconv, version)
    change_document(path.with_name("weights_manifest.json"), how)
    alone = ckconv("verify", path)
    assert (alone.code, "error[verify.document]" in alone.err, sentence in alone.err) == (5, True, True), alone.err
    assert ckconv("verify", path, SOURCE).code == 5


@pytest.mark.parametrize("name", SEALED)
def test_a_manifest_that_is_not_the_one_of_the_file(name: str, tmp_path: Path, ckconv) -> None:
    how, sentence = SEALED[name]
    path = made(tmp_path, ckconv, 5)
    change_document(path.with_name("weights_manifest.json"), how)
    alone = ckconv("verify", path)
    assert (alone.code, sentence in alone.err) == (5, True), alone.err


@pytest.mark.parametrize("version", [4, 5])
def test_a_manifest_of_nothing(version: int, tmp_path: Path, ckconv) -> None:
    path = made(tmp_path, ckconv, version)
    path.with_name("weights_manifest.json").write_text("{}")
    result = ckconv("verify", path)
    assert (result.code, "weights_manifest.json has no list of entries" in result.err) == (3, True)
    assert ckconv("verify", path, SOURCE).code == 5


def test_what_the_engines_runner_adds_is_no_fault(tmp_path: Path, ckconv) -> None:
    path = made(tmp_path, ckconv, 5)

    def added(manifest: dict[str, Any]) -> None:
        manifest["generated"] = "by the runner"
        manifest["config"]["prefer_q8_activation"] = False
        manifest["chat_contract"] = {"turns": 2}
        for entry in manifest["entries"]:
            entry["offset"], entry["size_bytes"] = entry["file_offset"], entry["size"]

    change_document(path.with_name("weights_manifest.json"), added)
    assert ckconv("verify", path).code == 0


BUMP3_KEYS = ("num_hidden_layers", "hidden_size", "rope_theta", "rms_norm_eps", "rope_layout", "architectures")
KEYS = ("hidden_size", "head_dim", "attn_out_dim", "rope_theta", "tie_word_embeddings", "num_merges", "architectures")
CONFIGS = {3: BUMP3_KEYS, 4: KEYS, 5: KEYS}


@pytest.mark.parametrize(("version", "key"), [(version, key) for version, keys in CONFIGS.items() for key in keys])
def test_a_misspelt_key_of_the_configuration(version: int, key: str, tmp_path: Path, ckconv) -> None:
    source = LLAMA if version == 3 else SOURCE
    path = made(tmp_path, ckconv, version, source)
    change_document(path.with_name("config.json"), rename(key, key[:2] + "~" + key[3:]))
    alone = ckconv("verify", path)
    assert (alone.code, f"it has no {key}" in alone.err) == (5, True), alone.err
    assert ckconv("verify", path, source).code == 5


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(("key", "value"), [("attn_out_dim", 1), ("tie_word_embeddings", False), ("num_merges", 9)])
def test_a_configuration_that_says_otherwise(key: str, value: object, version: int, tmp_path: Path, ckconv) -> None:
    path = made(tmp_path, ckconv, version)
    change_document(path.with_name("config.json"), lambda document: document.update({key: value}))
    alone = ckconv("verify", path)
    assert (alone.code, f"{key} is {value!r}, " in alone.err) == (5, True), alone.err


@pytest.mark.parametrize("version", [3, 4, 5])
def test_documents_as_they_are_written_are_right(version: int, tmp_path: Path, ckconv) -> None:
    path = made(tmp_path, ckconv, version, LLAMA)
    assert ckconv("verify", path).code == 0
    assert ckconv("verify", path, LLAMA).code == 0


@pytest.mark.parametrize("version", [4, 5])
def test_where_the_loader_copies_an_entry_to(version: int, tmp_path: Path, ckconv) -> None:
    path = made(tmp_path, ckconv, version)
    beside = path.with_name("weights_manifest.map")
    lines = beside.read_text().splitlines()
    cells = lines[5].split("|")
    wrong = {
        "0x0000000000000010": f"{cells[0]} has another place in memory than in the file, unlike the others",
        "0y00": "is not name|dtype|file_offset|size|runtime_offset",
    }
    for number, sentence in wrong.items():
        beside.write_text("\n".join([*lines[:5], "|".join([*cells[:4], number]), *lines[6:], ""]))
        result = ckconv("verify", path)
        assert (result.code, sentence in result.err) == (5, True), result.err


def test_another_layout_in_memory_is_the_engines_choice(tmp_path: Path, ckconv) -> None:
    path = made(tmp_path, ckconv, 5)
    beside = path.with_name("weights_manifest.map")
    rows = [line.split("|") for line in beside.read_text().splitlines()]
    moved = [
        [*row[:4], f"0x{int(row[4], 0) + 4096:016X}"] if len(row) == 5 and row[0][0] != "#" else row for row in rows
    ]
    beside.write_text("\n".join("|".join(row) for row in moved) + "\n")
    assert ckconv("verify", path).code == 0
    moved[-1][4] = moved[-2][4]
    beside.write_text("\n".join("|".join(row) for row in moved) + "\n")
    result = ckconv("verify", path)
    assert (result.code, "inside another" in result.err) == (5, True), result.err
