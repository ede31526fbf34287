"""The tables of GGUF's keys, held against what llama.cpp computes of files that have such keys."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import consumers
import gguf_builder as hand
import numpy as np
import pytest
from conftest import FIXTURES
from recorded import PROMPT

import ckconv
from ckconv import Options
from ckconv.families.catalog import families_of_gguf
from ckconv.families.keys import Kind

pytestmark = pytest.mark.skipif(
    not consumers.LIBRARY, reason="LLAMA_CPP_LIBRARY names no folder of llama.cpp's libraries"
)

NAMES: list[str] = json.loads((Path(__file__).parent / "gguf_keys.json").read_text())["names"]

SOURCES = {
    "llama": "hf/llama-tied-bf16",
    "qwen2": "hf/qwen2-tied-bf16",
    "qwen3": "hf/qwen3-tied-bf16",
    "qwen3moe": "experts/qwen3_moe",
    "gemma3": "hf/gemma3-text-bf16",
    "phi3": "hf/phi3-bf16",
    "gpt2": "hf/gpt2-hub-f32",
}

#: Keys whose type is another than that of most, a u32 of 2.
VALUES: dict[str, tuple[str, object]] = {
    "attention.causal": ("bool", False),
    "classifier.output_labels": ("arr[str]", ["a", "b"]),
    "final_logit_softcapping": ("f32", 3.0),
    "rope.freq_base": ("f32", 3.0),
    "rope.freq_base_swa": ("f32", 3.0),
    "rope.scale_linear": ("f32", 3.0),
    "rope.scaling.alpha": ("f32", 3.0),
    "rope.scaling.attn_factor": ("f32", 3.0),
    "rope.scaling.factor": ("f32", 3.0),
    "rope.scaling.finetuned": ("bool", True),
    "rope.scaling.type": ("str", "yarn"),
}


def made(architecture: str, path: Path) -> Path:
    ckconv.convert(FIXTURES / SOURCES[architecture], path, options=Options(dtype="f32"))
    return path


def with_keys(source: Path, out: Path, keys: list[tuple[str, str, object]]) -> Path:
    """A copy with further keys; one that is there already gets another name. Everything behind moves by 32 n bytes."""
    data = source.read_bytes()
    for key, _, _ in keys:
        data = data.replace(hand.string(key), hand.string("_" * len(key)))
    added = b"".join(hand.pair(*key) for key in keys)
    added += hand.pair("general.filler", "str", " " * (-len(added + hand.pair("general.filler", "str", "")) % 32))
    count = struct.unpack_from("<Q", data, 16)[0] + len(keys) + 1
    out.write_bytes(data[:16] + struct.pack("<Q", count) + added + data[24:])
    return out


@pytest.mark.parametrize("architecture", SOURCES)
def test_keys_that_no_table_has_or_that_are_harmless_change_nothing(
    architecture: str, llama_cpp: consumers.Consumer, tmp_path: Path
) -> None:
    source, table = made(architecture, tmp_path / "m.gguf"), families_of_gguf(architecture)[0].metadata.keys
    idle = [name for name in NAMES if name not in table or table[name].kind is Kind.HARMLESS]
    keys = [(f"{architecture}.{name}", *VALUES.get(name, ("u32", 2))) for name in idle]
    changed = with_keys(source, tmp_path / "k.gguf", keys)

    np.testing.assert_array_equal(llama_cpp.logits(changed, PROMPT), llama_cpp.logits(source, PROMPT))


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("llama", "attention.causal"),
        ("llama", "rope.scaling.attn_factor"),
        ("llama", "rope.scaling.factor"),
        ("llama", "rope.scale_linear"),
        ("gemma3", "attention.sliding_window"),
        ("gemma3", "attention.sliding_window_pattern"),
        ("gemma3", "rope.freq_base_swa"),
        ("gemma3", "final_logit_softcapping"),
    ],
)
def test_keys_that_are_carried_or_refused_change_something(
    architecture: str, name: str, llama_cpp: consumers.Consumer, tmp_path: Path
) -> None:
    source = made(architecture, tmp_path / "m.gguf")
    key = (f"{architecture}.{name}", *VALUES.get(name, ("u32", 2)))
    changed = with_keys(source, tmp_path / "k.gguf", [key])

    assert np.abs(llama_cpp.logits(changed, PROMPT) - llama_cpp.logits(source, PROMPT)).max() > 0.1


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_a_scaling_computes_the_same_after_a_way_through_hugging_face(
    architecture: str, kind: str, llama_cpp: consumers.Consumer, tmp_path: Path
) -> None:
    scaling: dict[str, tuple[str, object]] = {
        "type": ("str", kind), "factor": ("f32", 4.0), "original_context_length": ("u32", 32)
    }  # fmt: skip
    keys = [(f"{architecture}.rope.scaling.{key}", *value) for key, value in scaling.items()]
    scaled = with_keys(made(architecture, tmp_path / "m.gguf"), tmp_path / "k.gguf", keys)
    ckconv.convert(scaled, f"{tmp_path}/hf/", to="safetensors")
    ckconv.convert(tmp_path / "hf", tmp_path / "back.gguf")

    np.testing.assert_array_equal(llama_cpp.logits(tmp_path / "back.gguf", PROMPT), llama_cpp.logits(scaled, PROMPT))
