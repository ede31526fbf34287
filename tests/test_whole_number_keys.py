"""Keys of a GGUF that are whole numbers of a checkpoint: what Qwen 4 looks up its n-grams by."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import save_file
from family_cases import cases, checkpoint
from safetensors.numpy import load_file

import ckconv
from ckconv.errors import InputError, UnsupportedError, UsageError, VerifyError
from ckconv.formats.detect import open_index

KEYS = {"layer_multipliers": "layer_multipliers", "head_offsets": "ngram_heads_offsets"}
KEYS |= {"head_vocab_sizes": "ngram_heads_vocab_sizes"}
PLACE = "model.layers.1.ple.ple_embedding"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    one = next(one for one in cases("qwen4_exp") if one.name == "parts")
    return checkpoint(one.recorded, tmp_path / "hf", one.tokenizer)


def converted(source: Path, out: Path) -> Path:
    ckconv.convert(source, out)
    return out


def with_last(path: Path, key: str, number: int) -> Path:
    """The file with another last number in a list of 64-bit ones."""
    numbers = gguf.GGUFReader(path).fields[f"qwen4exp.ple.{key}"].contents()
    before, after = (struct.pack(f"<{len(numbers)}Q", *numbers[:-1], last) for last in (numbers[-1], number))
    made = path.with_name("changed.gguf")
    made.write_bytes(path.read_bytes().replace(before, after))
    return made


def test_numbers_of_a_checkpoint_are_keys_of_64_bits_and_come_back(source: Path, tmp_path: Path) -> None:
    made = converted(source, tmp_path / "out.gguf")
    fields, own = gguf.GGUFReader(made).fields, load_file(source / "model.safetensors")
    for key, name in KEYS.items():
        assert fields[f"qwen4exp.ple.{key}"].types[-1] is gguf.GGUFValueType.UINT64
        assert fields[f"qwen4exp.ple.{key}"].contents() == own[f"{PLACE}.{name}"].tolist()
    back = load_file(converted(made, tmp_path / "back.safetensors"))
    for name in KEYS.values():
        assert back[f"{PLACE}.{name}"].dtype == np.int64
        assert back[f"{PLACE}.{name}"].tolist() == own[f"{PLACE}.{name}"].tolist()


def test_a_table_of_parts_is_one_tensor_in_a_gguf_and_one_part_on_the_way_back(source: Path, tmp_path: Path) -> None:
    made, own = converted(source, tmp_path / "out.gguf"), load_file(source / "model.safetensors")
    parts = [own[f"{PLACE}.ngram_embedding.shard_{n}.weight"] for n in range(4)]
    table = next(one for one in gguf.GGUFReader(made).tensors if one.name == "per_layer_token_embd.weight")
    assert np.array_equal(table.data, np.concatenate(parts))
    back = load_file(converted(made, tmp_path / "back.safetensors"))
    assert np.array_equal(back[f"{PLACE}.ngram_embedding.shard_0.weight"], table.data)


@pytest.mark.parametrize("key", KEYS)
def test_another_number_in_a_key_is_found(source: Path, tmp_path: Path, key: str) -> None:
    changed = with_last(converted(source, tmp_path / "out.gguf"), key, 7)
    with pytest.raises(VerifyError, match=rf"qwen4exp\.ple\.{key} .* differs from {PLACE}\.{KEYS[key]}"):
        ckconv.verify(changed, source)


def test_numbers_that_no_tensor_has_are_a_fault_of_the_file(source: Path, tmp_path: Path) -> None:
    changed = with_last(converted(source, tmp_path / "out.gguf"), "head_offsets", 2**63)
    assert "must be a list of 4 numbers below 2^63" in open_index(changed).notes[0]


@pytest.mark.parametrize("numbers", [np.array([0, 1, -2]), np.array([0, 1, 2], np.float32)])
def test_numbers_below_0_or_of_another_type_are_refused(source: Path, tmp_path: Path, numbers: np.ndarray) -> None:
    own = load_file(source / "model.safetensors")
    save_file(source / "model.safetensors", {**own, f"{PLACE}.layer_multipliers": numbers})
    with pytest.raises(UnsupportedError, match=r"other numbers than whole ones from 0 on \(I64\)"):
        ckconv.convert(source, tmp_path / "out.gguf")


def test_a_part_that_is_not_there_is_named(source: Path, tmp_path: Path) -> None:
    own = load_file(source / "model.safetensors")
    del own[f"{PLACE}.ngram_embedding.shard_2.weight"]
    save_file(source / "model.safetensors", own)
    with pytest.raises(InputError, match=r"3 of 4 parts \(split_ngram_parts\) are there, part 2 is missing"):
        ckconv.convert(source, tmp_path / "out.gguf")


@pytest.mark.parametrize("names", ["gguf", "canonical"])
def test_a_table_under_other_names_is_found_again(source: Path, tmp_path: Path, names: str) -> None:
    ckconv.convert(source, tmp_path / "other", to="safetensors", options=ckconv.Options(names=names))
    made, same = converted(tmp_path / "other", tmp_path / "out.gguf"), converted(source, tmp_path / "same.gguf")
    both = [{one.name: one.data.tobytes() for one in gguf.GGUFReader(path).tensors} for path in (made, same)]
    assert both[0] == both[1]


@pytest.mark.parametrize(
    "flag",
    [
        {"drop_meta": ("qwen4exp.ple.head_offsets",)},
        {"set_meta": (("qwen4exp.ple.head_offsets", "arr[u64]:[1,2,3,4]"),)},
    ],
)
def test_a_key_that_is_a_tensor_is_not_edited(source: Path, tmp_path: Path, flag: dict[str, Any]) -> None:
    made = converted(source, tmp_path / "out.gguf")
    with pytest.raises(UsageError, match="head_offsets"):
        ckconv.convert(made, tmp_path / "edited.gguf", options=ckconv.Options(**flag))
