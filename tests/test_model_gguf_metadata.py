"""The hyper-parameter keys of a GGUF, and the words at its head."""

from __future__ import annotations

import gguf.utility
import pytest
from conftest import FIXTURES

from ckconv.core.layouts import DTYPES
from ckconv.core.metadata import scalar
from ckconv.families.catalog import FAMILIES
from ckconv.families.parameters import display_name, model_keys, size_label
from ckconv.formats.detect import open_index


@pytest.mark.parametrize("parameters", [297, 99_328, 999_999, 1_000_000, 134_515_008, 7_241_732_096, 1_400_000_000_000])
def test_a_size_is_said_as_the_gguf_package_says_it(parameters: int) -> None:
    assert size_label(parameters, 0, 0) == gguf.utility.size_label(parameters, parameters, 0, 0)


def test_a_size_with_experts() -> None:
    in_experts, rest = 45_097_156_608, 1_605_636_096

    expected = gguf.utility.size_label(in_experts + rest, rest, in_experts // 8, 8)
    assert size_label(in_experts + rest, 8, in_experts) == expected


@pytest.mark.parametrize(
    ("text", "name"), [("llama-tied-bf16", "Llama Tied Bf16"), ("Qwen2.5_7B", "Qwen2.5 7B"), ("", "")]
)
def test_a_name_out_of_a_directory(text: str, name: str) -> None:
    assert display_name(text) == name


def test_file_types_are_llama_cpps() -> None:
    for dtype in DTYPES.values():
        if dtype.file_type is not None:
            assert dtype.name in gguf.LlamaFileType(dtype.file_type).name


def test_gemmas_local_base_and_window() -> None:
    config = open_index(FIXTURES / "hf" / "gemma3-text-bf16").config
    assert config is not None

    made = model_keys(config, FAMILIES["gemma3"], 256)

    assert made["gemma3.rope.freq_base"] == scalar("f32", 1_000_000.0)
    assert made["gemma3.rope.freq_base_swa"] == scalar("f32", 10_000.0)
    assert made["gemma3.attention.sliding_window"] == scalar("u32", 32)
