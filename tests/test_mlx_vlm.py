"""A directory of mlx-vlm: its text model and its tower are those of the checkpoint that it was made of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from checkpoints import Raw, save
from conftest import Result
from family_directions import differing, read_gguf
from safetensors import deserialize
from test_towers_back import seen
from tower_cases import MLX_VLM, recordings, with_tokens

from ckconv.api import convert, diff
from ckconv.conversion.towers import convert_tower
from ckconv.errors import CkconvError

RECORDED = recordings()
MADE: dict[str, dict[str, tuple[str, list[int]]]] = json.loads(MLX_VLM.read_text())["tensors"]

#: Those whose text part is known.
WHOLE = [name for name in MADE if not name.startswith("qwen2_5_vl")]


def mlx_vlm(name: str, source: Path, root: Path) -> Path:
    """The directory that mlx-vlm makes of a checkpoint."""
    stored = dict(deserialize((source / "model.safetensors").read_bytes()))
    tensors = {}
    for called, (old, axes) in MADE[name].items():
        one = stored[old]
        kind = {"BF16": "<u2", "F16": "<f2", "F32": "<f4"}[one["dtype"]]
        array = np.frombuffer(one["data"], kind).reshape(one["shape"]).transpose(axes)
        tensors[called] = Raw(one["dtype"], array.shape, np.ascontiguousarray(array).tobytes())
    save(root, json.loads((source / "config.json").read_text()), tensors, metadata={"format": "mlx"})
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, root)
    return root


def both(name: str, root: Path) -> tuple[Path, Path]:
    source = with_tokens(RECORDED[name], root / "hf" / "model")
    return source, mlx_vlm(name, source, root / "mlx" / "model")


@pytest.mark.parametrize("name", MADE)
def test_its_tower_is_the_mmproj_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    source, made = both(name, tmp_path)

    convert_tower(source, tmp_path / "hf.gguf")
    convert_tower(made, tmp_path / "mlx.gguf")

    assert (tmp_path / "mlx.gguf").read_bytes() == (tmp_path / "hf.gguf").read_bytes()
    assert diff(tmp_path / "hf.gguf", made).same


@pytest.mark.parametrize("name", WHOLE)
def test_its_text_model_is_that_of_the_checkpoint(name: str, ckconv: Callable[..., Result], tmp_path: Path) -> None:
    source, made = both(name, tmp_path)

    assert ckconv("convert", source, tmp_path / "hf.gguf").code == 0
    done = ckconv("convert", made, tmp_path / "mlx.gguf", "--mmproj", tmp_path / "mmproj.gguf")

    assert done.code == 0, done.err
    wanted, found = read_gguf(tmp_path / "hf.gguf"), read_gguf(tmp_path / "mlx.gguf")
    if name.startswith("gemma3"):  # mlx-vlm stores the embedding twice
        del found["tensors"]["output.weight"]
    assert (differing(wanted["tensors"], found["tensors"]), differing(wanted["keys"], found["keys"])) == ("", "")
    assert "only the text part is written" in done.out
    assert ckconv("verify", tmp_path / "mmproj.gguf", made).code == 0


@pytest.mark.parametrize("name", WHOLE)
def test_it_becomes_a_checkpoint_of_transformers(name: str, ckconv: Callable[..., Result], tmp_path: Path) -> None:
    source, made = both(name, tmp_path)

    done = ckconv("convert", made, f"{tmp_path}/out/", "--to", "hf")

    assert done.code == 0, done.err
    assert diff(source, tmp_path / "out").same
    wanted, said = (json.loads((root / "config.json").read_text()) for root in (source, tmp_path / "out"))
    assert {**said, "tie_word_embeddings": None} == {**wanted, "tie_word_embeddings": None}
    assert ckconv("verify", tmp_path / "out", made).code == 0
    names = {name for name, _ in deserialize((tmp_path / "out" / "model.safetensors").read_bytes())}
    assert names - {"language_model.lm_head.weight"} == {*RECORDED[name]["tensors"]}


def test_a_copy_keeps_the_tower(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    _, made = both("gemma3-f16", tmp_path)

    assert ckconv("convert", made, f"{tmp_path}/copy/", "--to", "mlx").code == 0
    assert diff(made, tmp_path / "copy").same


@pytest.mark.live
@pytest.mark.parametrize("name", ["gemma3-f16", "gemma3-bf16", "qwen3_vl-f16"])
def test_transformers_sees_with_it(name: str, tmp_path: Path) -> None:
    source, made = both(name, tmp_path)
    convert(made, f"{tmp_path}/out/", to="safetensors")

    assert np.abs(seen(source) - seen(tmp_path / "out")).max() == 0


@pytest.mark.parametrize("name", WHOLE)
def test_its_two_files_become_the_checkpoint_again(name: str, tmp_path: Path) -> None:
    source, made = both(name, tmp_path)

    convert(made, tmp_path / "text.gguf")
    convert_tower(made, tmp_path / "mmproj.gguf")
    convert(tmp_path / "text.gguf", f"{tmp_path}/out/", mmproj=tmp_path / "mmproj.gguf")

    assert diff(source, tmp_path / "out", weights=True).same


def test_a_tower_that_is_quantized_is_refused(tmp_path: Path) -> None:
    _, made = both("qwen3_vl-f16", tmp_path)
    stored = {
        name: Raw(one["dtype"], tuple(one["shape"]), bytes(one["data"]))
        for name, one in deserialize((made / "model.safetensors").read_bytes())
    }
    module = "vision_tower.blocks.0.mlp.linear_fc1"
    stored[f"{module}.weight"] = Raw("U32", (20, 2), bytes(160))
    stored |= {f"{module}.{kind}": Raw("F16", (20, 1), bytes(40)) for kind in ("scales", "biases")}
    config = json.loads((made / "config.json").read_text()) | {"quantization": {"group_size": 16, "bits": 4}}
    save(made, config, stored, metadata={"format": "mlx"})

    with pytest.raises(CkconvError) as caught:
        convert_tower(made, tmp_path / "mmproj.gguf")
    assert (caught.value.code, caught.value.exit_code) == ("tower.quantized", 4)
    assert "vision_tower.blocks.0.mlp.linear_fc1.weight of the tower is quantized" in caught.value.message
