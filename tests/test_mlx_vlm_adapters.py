"""Adapters of the text model within one that sees: merged beside the tower, and under mlx-vlm's names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Result
from safetensors.numpy import load_file, save_file
from test_mlx_vlm import MADE, both
from test_towers_back import arrays, pictured

from ckconv.api import convert

#: Where peft finds the text model's layers in a checkpoint's class.
LAYERS = {"smolvlm-f16": "model.text_model.layers.", "qwen2_5_vl-f32": "model.layers."}
RANK, ALPHA = 2, 4


def adapter(name: str, root: Path) -> Path:
    """A LoRA of peft's of two projections in every layer."""
    tensors, numbers = {}, np.random.default_rng(7)
    for layer in range(2):
        for module, rows in (("self_attn.q_proj", 24), ("mlp.down_proj", 24)):
            columns = 40 if module.startswith("mlp") else 24
            start = f"base_model.model.{LAYERS[name]}{layer}.{module}"
            tensors[f"{start}.lora_A.weight"] = numbers.integers(-4, 5, (RANK, columns)).astype("f4") / 16
            tensors[f"{start}.lora_B.weight"] = numbers.integers(-4, 5, (rows, RANK)).astype("f4") / 16
    root.mkdir()
    save_file(tensors, root / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": ["q_proj", "down_proj"]}
    (root / "adapter_config.json").write_text(json.dumps({**said, "base_model_name_or_path": "model"}))
    return root


def changes(folder: Path) -> dict[str, np.ndarray]:
    """Module of the class -> what its matrix grows by."""
    found = load_file(folder / "adapter_model.safetensors")
    modules = [name.removesuffix(".lora_A.weight") for name in found if name.endswith(".lora_A.weight")]
    return {
        module.removeprefix("base_model.model."): ALPHA
        / RANK
        * found[f"{module}.lora_B.weight"]
        @ found[f"{module}.lora_A.weight"]
        for module in modules
    }


@pytest.mark.parametrize("name", LAYERS)
def test_an_adapter_is_merged_beside_the_tower(name: str, ckconv: Callable[..., Result], tmp_path: Path) -> None:
    source, directory = both(name, tmp_path)
    lora = adapter(name, tmp_path / "lora")

    flags = ("--to", "hf", "--adapter", lora)
    done = ckconv("convert", source, f"{tmp_path}/merged/", *flags)

    assert (done.code, "only the text part" in done.out) == (0, False), done.err
    before, after, grown = arrays(source), arrays(tmp_path / "merged"), changes(lora)
    assert after.keys() == before.keys()
    for key, array in before.items():
        wanted = array + grown.get(key.removesuffix(".weight"), 0)
        assert np.allclose(wanted, after[key], atol=1e-2), key
    assert {key for key in before if not np.array_equal(before[key], after[key])} == {f"{key}.weight" for key in grown}
    assert ckconv("verify", tmp_path / "merged", source, "--adapter", lora).code == 0
    ways = {"hf": tmp_path / "merged", "mlx": directory}
    for made_of, flags in (("hf", ("--to", "mlx")), ("mlx", ("--to", "mlx", "--adapter", lora))):
        assert ckconv("convert", ways[made_of], f"{tmp_path}/of-{made_of}/", *flags).code == 0
    one, other = arrays(tmp_path / "of-hf"), arrays(tmp_path / "of-mlx")
    assert one.keys() == other.keys()
    assert [key for key in one if not np.array_equal(one[key], other[key])] == []


@pytest.mark.product("values")
@pytest.mark.parametrize("base", ["hf", "mlx"])
@pytest.mark.parametrize("name", LAYERS)
def test_an_adapter_of_a_model_that_sees_has_mlx_vlms_names(
    name: str, base: str, ckconv: Callable[..., Result], tmp_path: Path
) -> None:
    source, directory = both(name, tmp_path)
    lora = adapter(name, tmp_path / "lora")

    place = {"hf": source, "mlx": directory}[base]
    done = ckconv("convert", lora, f"{tmp_path}/out/", "--to", "mlx", "--base", place)

    assert done.code == 0, done.err
    paths = {path.rpartition(".")[0] for path in load_file(tmp_path / "out" / "adapters.safetensors")}
    known = {key.replace("{n}", str(layer)) for key in MADE[name] for layer in range(2)}
    assert len(paths) == 4
    assert {f"{path}.weight" for path in paths} <= known
    asked = json.loads((tmp_path / "out" / "adapter_config.json").read_text())["lora_parameters"]
    assert (set(asked["keys"]), asked["rank"], asked["scale"]) == (paths, RANK, ALPHA / RANK)
    assert ckconv("convert", tmp_path / "out", f"{tmp_path}/back/", "--to", "peft", "--base", source).code == 0
    wanted, found = changes(lora), changes(tmp_path / "back")
    assert len(found) == 4
    ends = {key.rpartition("layers.")[2]: value for key, value in found.items()}
    assert all(np.array_equal(value, ends[key.rpartition("layers.")[2]]) for key, value in wanted.items())


@pytest.mark.live
@pytest.mark.parametrize("name", LAYERS)
def test_mlx_vlm_computes_with_the_adapter_what_it_computes_with_it_merged(name: str, tmp_path: Path) -> None:
    mx, utils = pytest.importorskip("mlx.core"), pytest.importorskip("mlx_vlm.utils")
    peft = pytest.importorskip("mlx_vlm.trainer.peft")
    source, _ = both(name, tmp_path)
    lora = adapter(name, tmp_path / "lora")
    convert(source, f"{tmp_path}/merged/", to="mlx", adapters=[(lora, 1.0)])
    convert(source, f"{tmp_path}/plain/", to="mlx")
    from ckconv.core.options import Options

    convert(lora, f"{tmp_path}/out/", to="mlx", options=Options(base=tmp_path / "plain"))
    inputs = {key: mx.array(value.numpy()) for key, value in pictured(source).items()}

    found = []
    for place in ("plain", "merged"):
        model = utils.load_model(tmp_path / place)
        found.append(np.array(model.language_model(inputs["input_ids"]).logits.astype(mx.float32)))
        if place == "plain":
            model = peft.apply_lora_layers(model, tmp_path / "out")
            found.append(np.array(model.language_model(inputs["input_ids"]).logits.astype(mx.float32)))

    plain, adapted, merged = found
    assert np.abs(adapted - merged).max() < 0.05 * np.abs(adapted - plain).max()
