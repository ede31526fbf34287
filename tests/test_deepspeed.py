"""Checkpoints of DeepSpeed: what its processes hold is one model; and state dicts within that of a training run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import FIXTURES, Result
from deepspeed_builder import GROUPS, deepspeed, parameters, saved
from safetensors.numpy import load_file, save_file

Run = Callable[..., Result]
FOLDER = FIXTURES / "pytorch"
RECORDED = sorted(path for path in FOLDER.glob("deepspeed-*") if path.is_dir())


@pytest.mark.parametrize("source", RECORDED, ids=lambda path: path.name)
def test_what_two_processes_saved_is_what_deepspeed_joins(source: Path, tmp_path: Path, ckconv: Run) -> None:
    done = ckconv("convert", source, f"{tmp_path}/out/", "--to", "hf")
    assert done.code == 0, done.err
    made, wanted = load_file(tmp_path / "out" / "model.safetensors"), load_file(f"{source}.safetensors")
    wanted.setdefault(
        "model.norm.weight", np.ones(32, np.float32)
    )  # frozen: of ZeRO 1 DeepSpeed leaves it in the module
    assert {name: array.tobytes() for name, array in made.items()} == {n: a.tobytes() for n, a in wanted.items()}
    assert ckconv("verify", tmp_path / "out", source).code == 0
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 0
    assert ckconv("diff", source, tmp_path / "m.gguf").code == 0


@pytest.mark.parametrize("of", [1, 2, 4])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_shares_of_any_number_of_processes(stage: int, of: int, tmp_path: Path, ckconv: Run) -> None:
    done = ckconv("convert", deepspeed(tmp_path / "in", stage, of), tmp_path / "m.safetensors")
    assert done.code == 0, done.err
    found, wanted = load_file(tmp_path / "m.safetensors"), parameters()
    wanted |= {"head.weight": wanted["a.weight"], "rope.inv_freq": np.arange(3, dtype=np.float32)}
    assert {n: (a.shape, a.tobytes()) for n, a in found.items()} == {
        n: (a.shape, a.tobytes()) for n, a in wanted.items()
    }


@pytest.mark.parametrize("of", [1, 2])
def test_gaps_between_parameters_are_left_out(tmp_path: Path, ckconv: Run, of: int) -> None:
    """DeepSpeed 0.19 may begin each parameter of ZeRO 1 and 2 at a multiple of some elements, and says so."""
    root = deepspeed(tmp_path / "in", 2, of, gaps=[[1, 5], [2]])
    done = ckconv("convert", root, tmp_path / "m.safetensors")
    assert done.code == 0, done.err
    found = load_file(tmp_path / "m.safetensors")
    assert {name: found[name].tolist() for name in parameters()} == {n: a.tolist() for n, a in parameters().items()}


def test_without_shares_the_module_is_the_model(tmp_path: Path, ckconv: Run) -> None:
    root = deepspeed(tmp_path / "in", 2)
    for path in root.glob("*_optim_states.pt"):
        path.unlink()
    assert ckconv("convert", root, tmp_path / "m.safetensors").code == 0
    found = load_file(tmp_path / "m.safetensors")
    assert {name: found[name].tobytes() for name in parameters()} == {
        name: array.astype(np.float16).tobytes() for name, array in parameters().items()
    }


def test_the_directory_of_a_trainer_is_read_with_all_that_lies_in_it(tmp_path: Path, ckconv: Run) -> None:
    root = shutil.copytree(FOLDER / "deepspeed-3", tmp_path / "checkpoint-500")
    for name in ("training_args.bin", "zero_to_fp32.py", "rng_state_0.pth", "scheduler.pt", "trainer_state.json"):
        (root / name).write_bytes(b"x")
    assert ckconv("convert", root, tmp_path / "m.safetensors").code == 0
    found, wanted = load_file(tmp_path / "m.safetensors"), load_file(FOLDER / "deepspeed-3.safetensors")
    assert {name: found[name].tobytes() for name in wanted} == {name: a.tobytes() for name, a in wanted.items()}


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_weights_go_before_the_state_of_a_training_run(tmp_path: Path, ckconv: Run, name: str) -> None:
    root = shutil.copytree(FOLDER / "deepspeed-3", tmp_path / "checkpoint-500")
    values = {"only.here": np.ones(3, np.float32)}
    if name.endswith(".bin"):
        saved(root / name, values)
    else:
        save_file(values, root / name)
    assert ckconv("convert", root, tmp_path / "m.safetensors").code == 0
    assert [*load_file(tmp_path / "m.safetensors")] == ["only.here"]


@pytest.mark.parametrize(
    "kind", ["directory", "link to a directory", "link to nothing", "FIFO", "long", "above", "NUL"]
)
def test_what_is_called_latest_and_names_no_directory_hides_no_model(tmp_path: Path, ckconv: Run, kind: str) -> None:
    root = deepspeed(tmp_path / "in", 1) / "models"
    root.mkdir()
    saved(root / "model.pth", {"only.here": np.ones(3, np.float32)})
    latest = root / "latest"
    if kind == "directory":
        latest.mkdir()
    elif kind.startswith("link"):
        latest.symlink_to(tmp_path / ("in" if "directory" in kind else "nothing"), target_is_directory=True)
    elif kind == "FIFO":
        os.mkfifo(latest)
    else:
        latest.write_text({"long": "x" * 999, "above": "..", "NUL": "a\0b"}[kind])
    done = ckconv("convert", root, tmp_path / "m.safetensors")
    assert done.code == 0, done.err
    assert [*load_file(tmp_path / "m.safetensors")] == ["only.here"]


class Program:
    """Runs a command where it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


A = "zero_pp_rank_1_mp_rank_00_"
BROKEN: dict[str, tuple[int, dict[str, Any], str]] = {
    "a share that is not there": (3, {"without": [A + "optim_states.pt"]}, "is of 2 processes, and 1 optim_states.pt"),
    "shares, and none there": (
        3, {"without": [A + "optim_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"]}, "without values"
    ),
    "a parameter too many": (3, {"param_shapes": [{"x": (99,)}]}, "lists 'x', whose values are not there"),
    "a parameter too few": (3, {"param_shapes": [{"a.weight": (3, 5)}]}, "one has another number"),
    "another size": (1, {"param_shapes": [{"a.weight": (3, 5)}, {"b.weight": (2, 7)}]}, "have another number"),
    "a negative size": (3, {"param_shapes": [{"a.weight": (-3, 5)}]}, "does not describe a model"),
    "a size that is a text": (3, {"param_shapes": [{"a.weight": "ab"}]}, "does not describe a model"),
    "a huge size": (2, {"param_shapes": [{"a.weight": (1 << 39, 1 << 39)}, {}]}, "whose values are not there"),
    "no list of sizes": (3, {"param_shapes": 5}, "does not describe a model"),
    "a stage that is none": (3, {"optimizer": {"zero_stage": 7}}, "says zero_stage 7"),
    "no shares": (3, {"optimizer": {"fp32_flat_groups": None}}, "does not describe a model"),
    "shares that are no tensors": (3, {"optimizer": {"fp32_flat_groups": [1]}}, "has no tensor for"),
    "shares of 16 bits": (
        3, {"optimizer": {"fp32_flat_groups": [np.zeros(25, np.float16)]}}, "of another type than FP32"
    ),
    "no frozen values": (2, {"frozen_param_fragments": None}, "does not describe a model"),
    "no module": (3, {"module": None, "param_shapes": None}, "has no tensors in its module"),
    "a frozen part of another type": (
        3, {"frozen_param_fragments": {"c.weight": np.zeros(3, np.float16)}}, "types or sizes differ"
    ),
    "a frozen part of another size": (
        3, {"frozen_param_fragments": {"c.weight": np.zeros(4, np.float32)}}, "types or sizes differ"
    ),
    "a frozen shape of another size": (
        2, {"frozen_param_shapes": {"c.weight": (7,)}}, "is [7], and what is frozen of it has 5 values, not 7"
    ),
    "a frozen shape that is smaller": (
        1, {"frozen_param_shapes": {"c.weight": (4,)}}, "is [4], and what is frozen of it has 5 values, not 4"
    ),
    "frozen parts of a smaller shape": (
        3, {"frozen_param_shapes": {"c.weight": (4,)}}, "is [4], and each of 2 parts of it has 3 values, not 2"
    ),
    "a name in two groups": (
        1, {"param_shapes": [GROUPS[0], {"a.weight": (2, 7)}]}, "lists 'a.weight' twice, as [3, 5] and as [2, 7]"
    ),
    "a name in two groups of ZeRO 3": (
        3, {"param_shapes": [GROUPS[0], {"a.bias": (2, 7)}]}, "lists 'a.bias' twice, as [3] and as [2, 7]"
    ),
    "a name that is frozen, too": (
        2, {"param_shapes": [GROUPS[0], {"c.weight": (2, 7)}]}, "lists 'c.weight' twice, as [5] and as [2, 7]"
    ),
    "a share in the place of a parameter": (
        3, {"shared_params": {"b.weight": "a.weight"}},
        "says 'b.weight' is 'a.weight' in shared_params, [3, 5], and has [2, 7] of its own under that name",
    ),
    "a share in the place of what is frozen": (
        1, {"shared_params": {"c.weight": "a.bias"}}, "[3], and has [5] of its own under that name"
    ),
    "a share in the place of a buffer": (
        2, {"shared_params": {"rope.inv_freq": "a.weight"}}, "[3, 5], and has [3] of its own under that name"
    ),
    "gaps of other parameters": (
        1, {"optimizer": {"param_alignment_paddings": [[0, 0]]}}, "for another number of parameters than it lists"
    ),
    "gaps that are no numbers": (
        2, {"optimizer": {"param_alignment_paddings": [[0, "1"], [0]]}}, "that are no numbers of elements"
    ),
    "gaps beyond the values": (
        2, {"optimizer": {"param_alignment_paddings": [[9, 0], [0]]}}, "whose values are not there"
    ),
    "a group too few": (1, {"param_shapes": [GROUPS[0]]}, "lists 1 group of parameters, and a process holds 2"),
    "a group too many": (2, {"param_shapes": [*GROUPS, {}]}, "lists 3 groups of parameters, and a process holds 2"),
    "a model's state of one process": (
        3, {"without": [A + "model_states.pt"]}, "needs model_states.pt of processes 0 to 1, and those of 0 are there"
    ),
    "a share without a name": (3, {"shared_params": {1: "a.weight"}}, "a name in shared_params that is no text"),
    "a share of no name": (2, {"shared_params": {"x": 1}}, "a name in shared_params that is no text"),
    "shares by no name": (1, {"shared_params": ["a.weight"]}, "does not describe a model"),
    "a program": (3, {"x": Program()}, "names posix.system; only tensors are read, nothing is executed"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_directory_that_contradicts_itself(tmp_path: Path, ckconv: Run, name: str) -> None:
    stage, changes, sentence = BROKEN[name]
    done = ckconv("convert", deepspeed(tmp_path / "in", stage, **changes), tmp_path / "out.safetensors")
    assert (done.code, "error[deepspeed.state]" in done.err, sentence in done.err) == (3, True, True), done.err
    assert not (tmp_path / "out.safetensors").exists()
    assert not Path("ran").exists()


@pytest.mark.parametrize("kind", ["model", "optim"])
def test_processes_are_those_from_0_on(tmp_path: Path, ckconv: Run, kind: str) -> None:
    root = deepspeed(tmp_path / "in", 3)
    (root / f"{A}{kind}_states.pt").rename(root / f"zero_pp_rank_7_mp_rank_00_{kind}_states.pt")
    done = ckconv("inspect", root)
    sentence = f"needs {kind}_states.pt of processes 0 to 1, and those of 0, 7 are there"
    assert (done.code, sentence in done.err) == (3, True), done.err


def test_two_states_of_one_process(tmp_path: Path, ckconv: Run) -> None:
    root = deepspeed(tmp_path / "in", 1)
    shutil.copy(root / "mp_rank_00_model_states.pt", root / "zero_pp_rank_0_mp_rank_00_model_states.pt")
    done = ckconv("inspect", root)
    sentence = "needs model_states.pt of process 0 alone, and those of 0, 0 are there"
    assert (done.code, sentence in done.err) == (3, True), done.err


def test_shares_of_matrices_are_refused(tmp_path: Path, ckconv: Run) -> None:
    root = deepspeed(tmp_path / "in", 1)
    shutil.copy(root / "mp_rank_00_model_states.pt", root / "mp_rank_01_model_states.pt")
    done = ckconv("inspect", root)
    assert (done.code, "deepspeed.shares" in done.err) == (4, True), done.err


@pytest.mark.parametrize(
    "name",
    [
        "layer_3_expert_0_mp_rank_00_model_states.pt",
        "expp_rank_0_mp_rank_00_optim_states.pt",
        "layer_00-model_00-model_states.pt",
    ],
)
@pytest.mark.parametrize("alone", [False, True])
def test_states_under_other_names_are_refused(tmp_path: Path, ckconv: Run, name: str, alone: bool) -> None:
    root = deepspeed(tmp_path / "in", 1)
    model = root / "mp_rank_00_model_states.pt"
    shutil.copy(model, root / name)
    if alone and "model_states" in name:
        model.unlink()
    (tmp_path / "latest").write_text("in")
    for place in (root, tmp_path):
        done = ckconv("inspect", place)
        assert (done.code, "error[deepspeed.shares]" in done.err, name in done.err) == (4, True, True), done.err


def test_a_file_of_a_cut_model_names_its_directory(tmp_path: Path, ckconv: Run) -> None:
    done = ckconv("inspect", FOLDER / "deepspeed-3" / "step" / "zero_pp_rank_0_mp_rank_00_model_states.pt")
    assert (done.code, "name the directory that it is in" in done.err) == (4, True), done.err


@pytest.mark.parametrize("key", ["model", "module", "state_dict", "model_state_dict"])
def test_the_model_within_the_state_of_a_training_run(tmp_path: Path, ckconv: Run, key: str) -> None:
    values = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3)}
    state = {"epoch": 3, key: values, "optimizer": {"state": {0: {"exp_avg": values["a.weight"] * 2}}, "lr": 0.1}}
    assert ckconv("convert", saved(tmp_path / "last.pt", state), tmp_path / "m.safetensors").code == 0
    found = load_file(tmp_path / "m.safetensors")
    assert {name: array.tolist() for name, array in found.items()} == {"a.weight": values["a.weight"].tolist()}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (("model", "state_dict"), "under 'model', under 'state_dict'"),
        (("state_dict", "model_ema"), "under 'state_dict', under 'model_ema'"),
        (("a.weight", "model"), "under 'model', tensors beside it"),
    ],
)
def test_a_file_of_several_models_is_refused(tmp_path: Path, ckconv: Run, keys: tuple[str, str], said: str) -> None:
    one = np.ones(2, np.float32)
    state = {"epoch": 3} | {key: one if "." in key else {"a.weight": one * n} for n, key in enumerate(keys)}
    done = ckconv("convert", saved(tmp_path / "last.pt", state), tmp_path / "m.safetensors")
    assert (done.code, f"holds several models: {said}" in done.err) == (4, True), done.err
    assert not (tmp_path / "m.safetensors").exists()
