"""Keys of a GGUF whose type is not the one that llama.cpp reads."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import consumers
import gguf
import numpy as np
import pytest
import tower_cases
from conftest import FIXTURES
from gguf import GGUFValueType as Type
from gguf_copies import gguf_copy

LLAMA = FIXTURES / "gguf" / "llama-bias-f32.f32.gguf"
PROMPT = (1, 5, 9, 33, 77)

#: Types that files of other programs were seen to have (llama.cpp's issue 14197), and floats for whole numbers.
OTHERS = {
    "llama.block_count": Type.UINT64,
    "llama.embedding_length": Type.INT32,
    "llama.attention.head_count": Type.UINT64,
    "llama.context_length": Type.FLOAT32,
    "llama.attention.layer_norm_rms_epsilon": Type.FLOAT64,
    "llama.rope.freq_base": Type.UINT32,
    "general.file_type": Type.INT32,
    "tokenizer.ggml.bos_token_id": Type.INT32,
}


def retyped(target: Path, types: dict[str, Type]) -> Path:
    whole = {key: int(gguf.GGUFReader(LLAMA).fields[key].contents()) for key, kind in types.items() if kind < 6}
    return gguf_copy(LLAMA, target, types=types, keys=whole)


def edited(found, source: Path, target: Path, ckconv) -> None:
    """Run the command of the one note."""
    (note,) = (line for line in found.out.splitlines() if "llama.cpp does not load a key of another type" in line)
    (command,) = re.findall(r"ckconv (edit SRC DST .*) gives it", note)
    made = {"SRC": str(source), "DST": str(target)}
    assert ckconv(*(made.get(word, word) for word in shlex.split(command))).code == 0


@pytest.mark.parametrize("key", OTHERS)
def test_a_copy_names_the_key_and_the_command_that_mends_it(key: str, tmp_path: Path, ckconv) -> None:
    source = retyped(tmp_path / "source.gguf", {key: OTHERS[key]})
    found = ckconv("convert", source, tmp_path / "copy.gguf")

    kind = gguf.GGUFReader(LLAMA).fields[key].types[0]
    assert found.code == 0
    assert f"({key} is " in found.out
    assert f"not {'u32' if kind == Type.UINT32 else 'f32'})" in found.out
    edited(found, source, tmp_path / "edited.gguf", ckconv)
    assert (tmp_path / "edited.gguf").read_bytes() == retyped(tmp_path / "same.gguf", {}).read_bytes()
    assert "another type" not in ckconv("convert", tmp_path / "edited.gguf", tmp_path / "again.gguf").out


@pytest.mark.parametrize("key", OTHERS)
def test_llama_cpp_does_not_load_it_and_loads_what_the_command_writes(
    key: str, llama_cpp: consumers.Consumer, tmp_path: Path, ckconv
) -> None:
    source = retyped(tmp_path / "source.gguf", {key: OTHERS[key]})
    with pytest.raises(consumers.DoesNotRun):
        llama_cpp.logits(source, PROMPT)
    edited(ckconv("convert", source, tmp_path / "copy.gguf"), source, tmp_path / "edited.gguf", ckconv)
    np.testing.assert_array_equal(llama_cpp.logits(tmp_path / "edited.gguf", PROMPT), llama_cpp.logits(LLAMA, PROMPT))


def test_several_keys_have_one_command(tmp_path: Path, ckconv) -> None:
    source = retyped(tmp_path / "source.gguf", OTHERS)
    found = ckconv("convert", source, tmp_path / "copy.gguf")
    assert f"and {len(OTHERS) - 1} more)" in found.out
    edited(found, source, tmp_path / "edited.gguf", ckconv)
    assert (tmp_path / "edited.gguf").read_bytes() == retyped(tmp_path / "same.gguf", {}).read_bytes()


def test_a_size_keeps_its_value_when_its_type_is_mended(tmp_path: Path, ckconv) -> None:
    source = retyped(tmp_path / "source.gguf", {"llama.block_count": Type.UINT64})
    found = ckconv("edit", source, tmp_path / "edited.gguf", "--set-meta", "llama.block_count=7")
    assert found.code == 2
    assert "the tensors decide it" in found.err


def test_a_converted_model_has_the_right_types(tmp_path: Path, ckconv) -> None:
    types = {key: kind for key, kind in OTHERS.items() if key != "llama.context_length"}  # 256.0 is refused
    source = retyped(tmp_path / "source.gguf", types)
    assert ckconv("convert", source, tmp_path / "hf", "--to", "hf").code == 0
    assert ckconv("convert", tmp_path / "hf", tmp_path / "made.gguf").code == 0
    kinds, right = (
        {key: field.types[0] for key, field in gguf.GGUFReader(path).fields.items() if key in OTHERS}
        for path in (tmp_path / "made.gguf", LLAMA)
    )
    assert kinds == {key: kind for key, kind in right.items() if key in kinds}


@pytest.mark.parametrize("path", sorted(FIXTURES.rglob("*.gguf")), ids=lambda path: path.name)
def test_files_of_llama_cpps_converter_have_no_such_note(path: Path, tmp_path: Path, ckconv) -> None:
    found = ckconv("convert", path, tmp_path / "copy.gguf", "--dry-run")
    assert "another type" not in found.out + found.err


@pytest.mark.parametrize(
    ("key", "kind", "right"),
    [
        ("clip.vision.image_size", Type.INT32, "u32"),
        ("clip.vision.attention.layer_norm_epsilon", Type.FLOAT64, "f32"),
        ("clip.vision.block_count", Type.UINT64, "u32"),
    ],
)
def test_a_key_of_a_tower_is_named_too(key: str, kind: Type, right: str, tmp_path: Path, ckconv) -> None:
    """``gguf_get_val_u32`` of clip.cpp's loader ends the program at another type."""
    case = tower_cases.checkpoint(tower_cases.recorded_tower("gemma3-f16"), tmp_path / "hf")
    tower = tmp_path / "mmproj.gguf"
    made = ckconv("convert", case, tmp_path / "text.gguf", "--mmproj", tower)
    assert (made.code, "another type" in made.out) == (0, False), made.err
    assert "another type" not in ckconv("convert", tower, tmp_path / "same.gguf").out
    source = gguf_copy(tower, tmp_path / "source.gguf", types={key: kind})
    for target, *flags in (("copy", "convert"), ("named", "edit", "--set-meta", "general.name=x")):
        found = ckconv(flags[0], source, tmp_path / f"{target}.gguf", *flags[1:])
        assert (found.code, f"({key} is " in found.out, f"not {right})" in found.out) == (0, True, True), found.out
    edited(ckconv("convert", source, tmp_path / "again.gguf"), source, tmp_path / "edited.gguf", ckconv)
    assert gguf.GGUFReader(tmp_path / "edited.gguf").fields[key].types == gguf.GGUFReader(tower).fields[key].types


def test_the_alpha_of_an_adapter_is_a_number_of_any_type_and_named(tmp_path: Path, ckconv) -> None:
    """``get_kv_f32`` of llama-adapter.cpp reads an f32 alone; a file that says 8 was refused whatever was asked."""
    base = FIXTURES / "hf" / "llama-untied-f16-sharded"
    adapter = FIXTURES / "gguf-lora" / "llama-r4-attn-mlp.f32.gguf"
    assert "another type" not in ckconv("convert", adapter, tmp_path / "same.gguf", "--base", base).out
    whole = {"adapter.lora.alpha": 8}
    source = gguf_copy(adapter, tmp_path / "source.gguf", types={"adapter.lora.alpha": Type.UINT32}, keys=whole)
    found = ckconv("convert", source, tmp_path / "copy.gguf", "--base", base)
    assert (found.code, "(adapter.lora.alpha is u32, not f32)" in found.out) == (0, True), found.err
    assert ckconv("convert", source, tmp_path / "peft", "--to", "peft", "--base", base).code == 0
    assert ckconv("convert", adapter, tmp_path / "other", "--to", "peft", "--base", base).code == 0
    assert ckconv("diff", tmp_path / "peft", tmp_path / "other").code == 0
