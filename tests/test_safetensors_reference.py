"""The safetensors package opens every safetensors output before it is published."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import FIXTURES

import ckconv
from ckconv import Options
from ckconv.errors import VerifyError
from ckconv.formats.safetensors import write as safetensors_reference

HF = FIXTURES / "hf" / "qwen2-tied-bf16"

#: Source and target of each kind of output whose tensors lie in safetensors files.
OUTPUTS = {
    "a checkpoint": ("gguf/qwen2-tied-bf16.auto.gguf", "safetensors"),
    "MLX": ("hf/qwen2-tied-bf16", "mlx"),
    "peft": ("gguf-lora/qwen2-r4-all.f32.gguf", "peft"),
    "an adapter of MLX": ("lora/qwen2-r4-all", "mlx"),
}


def converted(source: str, to: str, place: Path, *, verify: bool = True) -> None:
    ckconv.convert(
        FIXTURES / source, f"{place}/", to=to, options=Options(base=HF if "r4" in source else None), verify=verify
    )


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The files that the package has opened."""
    import safetensors

    paths: list[Path] = []
    original = safetensors.safe_open

    def noting(path: Path, framework: str) -> object:
        paths.append(path)
        return original(path, framework)

    monkeypatch.setattr(safetensors, "safe_open", noting)
    return paths


@pytest.mark.parametrize(("source", "to"), OUTPUTS.values(), ids=OUTPUTS)
def test_every_kind_of_output_is_opened(source: str, to: str, tmp_path: Path, opened: list[Path]) -> None:
    converted(source, to, tmp_path / "out")

    assert {path.name for path in opened} == {path.name for path in (tmp_path / "out").glob("*.safetensors")} != set()


def test_every_shard_is_opened_and_so_is_a_source_that_is_made_again(tmp_path: Path, opened: list[Path]) -> None:
    options = Options(max_shard_bytes=100_000)
    ckconv.convert(HF, f"{tmp_path}/sharded/", to="safetensors", options=options)
    shards = sorted(path.name for path in (tmp_path / "sharded").glob("*.safetensors"))
    assert sorted(path.name for path in opened) == shards
    assert len(shards) > 1

    opened.clear()
    ckconv.convert(tmp_path / "sharded", f"{tmp_path}/bump/", to="bump")
    assert not opened
    ckconv.convert(tmp_path / "bump", f"{tmp_path}/again/")
    assert sorted(path.name for path in opened) == shards


@pytest.mark.product("values")
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(("source", "to"), OUTPUTS.values(), ids=OUTPUTS)
def test_a_header_that_it_refuses_is_not_published(
    source: str, to: str, verify: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckconv.formats.safetensors import write as shards

    whole = shards.Frame  # type: ignore[attr-defined]
    broken = lambda header: whole(header.replace(b'"BF16"', b'"BF17"').replace(b'"F32"', b'"F33"'))  # noqa: E731
    monkeypatch.setattr(shards, "Frame", broken)
    refused = r"^\[st.dtype\] .*out/: the output cannot be read back: "
    unverified = r"^\[verify.file\] .*out/: safetensors [\d.]+ does not open it: .*unknown variant"
    with pytest.raises(VerifyError, match=refused if verify else unverified):
        converted(source, to, tmp_path / "out", verify=verify)

    assert not list(tmp_path.iterdir())


def test_where_it_is_not_installed_outputs_are_published_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)

    converted("hf/qwen2-tied-bf16", "mlx", tmp_path / "out")

    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_a_file_that_the_system_cannot_map_is_not_judged(tmp_path: Path) -> None:
    safetensors_reference.check_opens(tmp_path / "not there")
