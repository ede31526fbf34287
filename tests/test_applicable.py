"""A flag that has no say in the output is an error, with the outputs that it is for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import FIXTURES

from ckconv.api import convert
from ckconv.core.options import Options
from ckconv.errors import UsageError

MODEL = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
ADAPTER = FIXTURES / "gguf-lora" / "llama-r4-attn-mlp.f32.gguf"
BASE = FIXTURES / "hf" / "llama-tied-bf16"


@pytest.mark.parametrize(
    ("to", "options", "message"),
    [
        ("bump", {"fuse": ("qkv",)}, "--fuse is for safetensors and mlx, and the output is bump"),
        ("bump", {"names": "canonical"}, "--names is for safetensors and mlx, and the output is bump"),
        ("bump", {"tie": "untie"}, "--untie is for gguf, safetensors and mlx, and the output is bump"),
        ("bump", {"max_shard_bytes": 9}, "--max-shard-size is for gguf, safetensors and mlx, and the output is bump"),
        ("bump", {"set_meta": (("a", "b"),)}, "--set-meta is for .* and the output is bump"),
        ("bump", {"drop_meta": ("*",)}, "--drop-meta is for .* and the output is bump"),
        ("bump", {"bump_version": 5, "dtype_codes": "v4"}, "--dtype-codes is for bump 3, and the output is bump 5"),
        ("gguf", {"bump_version": 5}, "--bump-version is for bump, and the output is gguf"),
        ("gguf", {"dtype_codes": "v4"}, "--dtype-codes is for bump, and the output is gguf"),
        ("gguf", {"template": Path()}, "--template is for bump, and the output is gguf"),
        ("gguf", {"fuse": ("qkv",)}, "--fuse is for safetensors and mlx, and the output is gguf"),
        ("gguf", {"base": BASE}, "--base is for an adapter or a drafter .*, and llama-tied-bf16.* is a model"),
        ("safetensors", {"bump_version": 3}, "--bump-version is for bump, and the output is safetensors"),
        ("mlx", {"dtype_codes": "v4"}, "--dtype-codes is for bump, and the output is mlx"),
    ],
)
def test_of_a_model(tmp_path: Path, to: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as info:
        convert(MODEL, f"{tmp_path / 'out'}/", to=to, options=Options(**options))

    assert (info.value.code, info.value.exit_code) == ("usage.flag", 2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("to", "options", "message"),
    [
        ("peft", {"tie": "tie"}, "--tie is for gguf, safetensors and mlx, and the source is an adapter"),
        ("peft", {"set_meta": (("a", "b"),)}, "--set-meta is for .* and the source is an adapter"),
        ("mlx", {"context": 64}, "--context is for .* and the source is an adapter"),
        ("gguf", {"rope_layout": "split"}, "--rope-layout is for .* and the source is an adapter"),
        ("gguf", {"max_shard_bytes": 9}, "--max-shard-size is for .* and the source is an adapter"),
    ],
)
def test_of_an_adapter(tmp_path: Path, to: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        convert(ADAPTER, f"{tmp_path / 'out'}/", to=to, options=Options(base=BASE, **options))


def test_where_the_version_is_chosen_it_is_what_was_chosen(tmp_path: Path) -> None:
    untied = FIXTURES / "gguf" / "llama-bias-f32.f32.gguf"

    with pytest.raises(UsageError, match="the output is bump 5"):
        convert(untied, tmp_path / "out.bump", options=Options(dtype_codes="v4"))

    convert(MODEL, tmp_path / "out.bump", options=Options(dtype_codes="v4"))


@pytest.mark.parametrize("flag", ["drop", "decode"])
@pytest.mark.parametrize("name", ["output_norm", "blk.2.*", "lm_head.weight"])
def test_a_name_that_names_nothing(tmp_path: Path, flag: str, name: str) -> None:
    options = Options(**{flag: ("output_norm.weigh?", name) if flag == "decode" else (name,)})
    with pytest.raises(UsageError, match=f"--{flag} .* names no tensor of {MODEL.name}") as info:
        convert(MODEL, tmp_path / "out.gguf", options=options)
    assert info.value.code == "usage.flag"
    assert not list(tmp_path.iterdir())
