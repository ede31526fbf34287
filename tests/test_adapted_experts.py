"""LoRA of experts that are modules one by one, as transformers 4 has them."""

from __future__ import annotations

import json
from pathlib import Path

import adapter_builder
import gguf
import numpy as np
import pytest
from adapter_builder import random
from safetensors.numpy import load_file

RANK, ALPHA, EXPERTS, LAYERS = 3, 12, 4, 2

#: Of Mixtral: name in its checkpoints, in GGUF, in mlx-lm, `[out, in]`.
MATRICES = {
    "w1": ("ffn_gate_exps", "gate_proj", 24, 32),
    "w2": ("ffn_down_exps", "down_proj", 32, 24),
    "w3": ("ffn_up_exps", "up_proj", 24, 32),
}


def path(layer: int, expert: int, matrix: str) -> str:
    return f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{matrix}"


@pytest.fixture
def tensors() -> dict[str, np.ndarray]:
    found = {}
    for layer in range(LAYERS):
        for expert in range(EXPERTS):
            for seed, (matrix, (_, _, rows, cols)) in enumerate(MATRICES.items()):
                seed += 10 * expert + 100 * layer
                found[f"{path(layer, expert, matrix)}.lora_A.weight"] = random(RANK, cols, seed=seed)
                found[f"{path(layer, expert, matrix)}.lora_B.weight"] = random(rows, RANK, seed=seed + 1)
    return found


@pytest.fixture
def base(fixtures: Path) -> Path:
    return fixtures / "experts" / "mixtral"


def adapter(place: Path, tensors: dict[str, np.ndarray], **config: object) -> Path:
    said = {"r": RANK, "lora_alpha": ALPHA, "target_modules": [*MATRICES]} | config
    return adapter_builder.peft(place / "adapter", tensors, **said)


def stack(tensors: dict[str, np.ndarray], layer: int, matrix: str, role: str) -> np.ndarray:
    return np.stack([tensors[f"{path(layer, expert, matrix)}.lora_{role}.weight"] for expert in range(EXPERTS)])


def test_they_are_stacked_in_a_gguf(tensors, base: Path, tmp_path: Path, ckconv) -> None:
    out = tmp_path / "a.gguf"
    assert ckconv("convert", adapter(tmp_path, tensors), out, "--base", base).code == 0
    reader = gguf.GGUFReader(out)
    assert reader.fields["adapter.lora.alpha"].contents() == ALPHA
    found = {tensor.name: tensor.data for tensor in reader.tensors}
    assert len(found) == 2 * LAYERS * len(MATRICES)
    for layer in range(LAYERS):
        for matrix, (name, _, _, _) in MATRICES.items():
            for role in "AB":
                made = found[f"blk.{layer}.{name}.weight.lora_{role.lower()}"]
                assert np.array_equal(made, stack(tensors, layer, matrix, role))


def test_they_are_stacked_in_mlx(tensors, base: Path, tmp_path: Path, ckconv) -> None:
    """``[experts, rank, in]`` and ``[experts, out, rank]`` (LoRASwitchLinear of mlx-lm)."""
    out = tmp_path / "mlx"
    assert ckconv("convert", adapter(tmp_path, tensors), out, "--to", "mlx", "--base", base).code == 0
    found = load_file(out / "adapters.safetensors")
    assert json.loads((out / "adapter_config.json").read_text())["lora_parameters"]["scale"] == ALPHA / RANK
    for layer in range(LAYERS):
        for matrix, (_, name, _, _) in MATRICES.items():
            for role in "AB":
                made = found[f"model.layers.{layer}.block_sparse_moe.switch_mlp.{name}.lora_{role.lower()}"]
                assert np.array_equal(made, stack(tensors, layer, matrix, role))


def test_they_are_merged_into_the_matrices_of_their_experts(tensors, base: Path, tmp_path: Path, ckconv) -> None:
    out = tmp_path / "merged"
    folder = adapter(tmp_path, tensors)
    assert ckconv("convert", base, f"{out}/", "--to", "safetensors", "--adapter", folder).code == 0
    before, after = load_file(base / "model.safetensors"), load_file(out / "model.safetensors")
    for layer in range(LAYERS):
        for expert in range(EXPERTS):
            for matrix in MATRICES:
                name = path(layer, expert, matrix)
                a, b = (tensors[f"{name}.lora_{role}.weight"].astype("f8") for role in "AB")
                assert np.abs(after[f"{name}.weight"] - before[f"{name}.weight"] - ALPHA / RANK * b @ a).max() < 1e-6


def test_as_an_adapter_of_peft_they_stay_what_they_are(tensors, base: Path, tmp_path: Path, ckconv) -> None:
    out = tmp_path / "again"
    assert ckconv("convert", adapter(tmp_path, tensors), f"{out}/", "--to", "peft", "--base", base).code == 0
    found = load_file(out / "adapter_model.safetensors")
    assert found.keys() == {f"base_model.model.{name}" for name in tensors}
    assert all(np.array_equal(found[f"base_model.model.{name}"], tensor) for name, tensor in tensors.items())


def test_an_expert_without_a_lora_is_a_reason(tensors, base: Path, tmp_path: Path, ckconv) -> None:
    some = {name: tensor for name, tensor in tensors.items() if ".experts.2.w3." not in name}
    result = ckconv("convert", adapter(tmp_path, some), tmp_path / "a.gguf", "--base", base)
    assert (result.code, "not all of its layer have a LoRA of one rank and scale" in result.err) == (4, True)


def test_experts_of_several_ranks_are_a_reason(tensors, base: Path, tmp_path: Path, ckconv) -> None:
    name = path(0, 1, "w1")
    tensors |= {f"{name}.lora_A.weight": random(5, 32), f"{name}.lora_B.weight": random(24, 5)}
    folder = adapter(tmp_path, tensors, rank_pattern={name: 5})
    result = ckconv("convert", folder, tmp_path / "a.gguf", "--base", base)
    assert (result.code, "not all of its layer have a LoRA of one rank and scale" in result.err) == (4, True)


def test_without_the_base_their_number_is_not_known(tensors, tmp_path: Path, ckconv) -> None:
    result = ckconv("convert", adapter(tmp_path, tensors), f"{tmp_path}/mlx/", "--to", "mlx")
    assert (result.code, "whose number follows from the base" in result.err) == (4, True)


def test_gate_and_up_are_one_parameter_of_transformers_with_one_lora_a(
    tensors, base: Path, tmp_path: Path, ckconv
) -> None:
    """``experts.gate_up_proj`` of transformers 5: the GGUF has a ``lora_a`` of each, which are two."""
    assert ckconv("convert", adapter(tmp_path, tensors), tmp_path / "a.gguf", "--base", base).code == 0
    result = ckconv("convert", tmp_path / "a.gguf", f"{tmp_path}/peft/", "--to", "peft", "--base", base)
    assert (result.code, "as one parameter with one lora_A, and these have two" in result.err) == (4, True)
    assert "--adapter ADAPTER merges it into the base model" in result.err


def test_of_one_lora_a_they_are_that_parameter(tensors, base: Path, tmp_path: Path, ckconv) -> None:
    same = {name: tensors[name.replace(".w3.lora_A", ".w1.lora_A")] for name in tensors}
    assert ckconv("convert", adapter(tmp_path, same), tmp_path / "a.gguf", "--base", base).code == 0
    result = ckconv("convert", tmp_path / "a.gguf", f"{tmp_path}/peft/", "--to", "peft", "--base", base)
    assert result.code == 0, result.err
    assert ckconv("verify", tmp_path / "peft", tmp_path / "a.gguf", "--base", base).code == 0
