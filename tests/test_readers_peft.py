"""Adapters as they are read: against what peft computed from the same files, and every way they can be wrong."""

from __future__ import annotations

import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

import adapter_builder as build
import numpy as np
import pytest
from adapter_builder import DOWN, Q, pair, random
from conftest import FIXTURES
from deepspeed_builder import saved
from safetensors.numpy import load_file, save_file

from ckconv.api import open_model
from ckconv.core.tensors import Role
from ckconv.errors import CkconvError, InputError, UnsupportedError
from ckconv.families.adapters import (
    changes_of,
    families_of,
    family_named,
    gguf_module_of,
    gguf_name_of,
    module_of,
    path_of,
)
from ckconv.families.catalog import FAMILIES
from ckconv.formats.detect import open_index
from ckconv.io.files import Files
from ckconv.io.json import MAX_SECONDS
from ckconv.io.rows import RowReader

ADAPTERS = FIXTURES / "adapters"
LORA = FIXTURES / "lora"
BASES = {
    "llama-untied-f32": FIXTURES / "gguf-split" / "llama-untied-f32-00001-of-00003.gguf",
    "llama-bias-f32": FIXTURES / "hf" / "llama-bias-f32",
    "gpt2-f32": FIXTURES / "gguf" / "gpt2-f32.f32.gguf",
    "phi3-bf16": FIXTURES / "gguf" / "phi3-bf16.auto.gguf",
}
LLAMA = BASES["llama-untied-f32"]
PEFT_MADE = sorted(path.name for path in ADAPTERS.iterdir() if path.is_dir())
LOW_RANK = [name for name in PEFT_MADE if name not in ("llama-dora", "llama-ia3", "llama-lora-bias")]


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ADAPTERS / name / "expected.json").read_text())
    return found


def values(tensor: Any) -> np.ndarray:
    with Files() as files:
        rows = RowReader(tensor, files).rows(0, tensor.layout.rows)
    return rows.view(np.float32).reshape(tensor.layout.rows, tensor.layout.cols).astype(np.float64)


@pytest.mark.parametrize("name", PEFT_MADE)
def test_scales_are_those_that_peft_computes(name: str) -> None:
    adapter = open_index(ADAPTERS / name).adapter
    assert adapter is not None
    assert not adapter.unsupported
    ours = {module.path: module.scale for module in adapter.modules.values() if module.rank}
    theirs = {path: float(np.float32(scale)) for path, scale in expected(name)["scaling"].items()}
    assert ours == theirs


@pytest.mark.parametrize("name", LOW_RANK)
def test_matrices_change_as_peft_merges_them(name: str) -> None:
    base = open_model(BASES[expected(name)["base"]])
    index = open_index(ADAPTERS / name, base=BASES[expected(name)["base"]])
    merged = load_file(ADAPTERS / name / "merged.safetensors")
    compared = 0
    for path, theirs in merged.items():
        stem = module_of(path.removesuffix(".weight"), [base.index.config.family])  # type: ignore[union-attr]
        module = index.adapter.modules.get(stem or "")  # type: ignore[union-attr]
        if not path.endswith(".weight") or module is None or Role.B not in module.roles:
            continue
        ours = []
        for part in parts_of(stem or "", base.index.tensors):
            change = changes_of(index, part, base.index.config)[0]  # type: ignore[arg-type]
            a, b = values(change.tensors[Role.A]), values(change.tensors[Role.B])
            ours.append(base.tensors[part].values() + module.scale * b @ a)
        theirs = theirs.T if "gpt2" in name else theirs
        assert np.abs(np.concatenate(ours) - theirs).max() < 1e-6
        compared += 1
    assert compared


def parts_of(stem: str, tensors: Any) -> list[str]:
    if f"{stem}.weight" in tensors:
        return [f"{stem}.weight"]
    head = stem.rpartition(".")[0]
    letters = ("q", "k", "v") if stem.endswith("qkv") else ("gate", "up")
    return [f"{head}.{letter}.weight" for letter in letters]


def test_every_kind_of_tensor_has_its_role() -> None:
    roles = {
        name: {role for module in open_index(ADAPTERS / name).adapter.modules.values() for role in module.roles}  # type: ignore[union-attr]
        for name in PEFT_MADE
    }
    assert roles["llama-embed-head"] == {Role.A, Role.B, Role.SAVED_WEIGHT}
    assert roles["llama-dora"] == {Role.A, Role.B, Role.MAGNITUDE}
    assert roles["llama-save-bias"] == {Role.A, Role.B, Role.SAVED_WEIGHT, Role.SAVED_BIAS}
    assert roles["llama-lora-bias"] == {Role.A, Role.B, Role.BIAS}
    assert roles["llama-ia3"] == {Role.IA3}
    ia3 = open_index(ADAPTERS / "llama-ia3").adapter
    assert {m.name.rpartition(".")[2]: m.feedforward for m in ia3.modules.values()} == {  # type: ignore[union-attr]
        "down": True,
        "k": False,
        "v": False,
    }


def test_an_embedding_is_a_matrix_of_vocabulary_rows(tmp_path: Path) -> None:
    tensors = {
        "model.embed_tokens.lora_embedding_A": random(4, 384),
        "model.embed_tokens.lora_embedding_B": random(64, 4),
    }
    index = open_index(build.peft(tmp_path / "a", tensors, target_modules=["embed_tokens"]))
    assert index.tensors["token_embedding.lora_b"].shape == (384, 4)
    assert index.tensors["token_embedding.lora_a"].shape == (4, 64)
    ours = values(index.tensors["token_embedding.lora_b"]) @ values(index.tensors["token_embedding.lora_a"])
    theirs = tensors["model.embed_tokens.lora_embedding_B"] @ tensors["model.embed_tokens.lora_embedding_A"]
    assert np.allclose(ours, theirs.T, atol=1e-6)


def test_mlx_and_gguf_adapters_of_other_libraries() -> None:
    mlx = open_index(LORA / "mlx-lora")
    assert mlx.adapter is not None
    assert {(m.rank, m.scale) for m in mlx.adapter.modules.values()} == {(4, 20.0)}
    peft, other = LORA / "llama-r4-attn-mlp", FIXTURES / "gguf-lora" / "llama-r4-attn-mlp.f32.gguf"
    ours, theirs = open_index(peft), open_index(other, base=LLAMA)
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, tensor in ours.tensors.items():
        assert np.array_equal(values(tensor), values(theirs.tensors[name])), name


# ``rank_pattern`` as peft's get_pattern_key matches it: the first key that is a regular expression for the end of the
# path, from the start of one of its parts on.
@pytest.mark.parametrize(
    ("pattern", "rank"),
    [
        ({"q_proj": 2}, 2),
        ({"self_attn.q_proj": 2}, 2),
        ({"proj": 2}, 4),
        ({"attn.q_proj": 2}, 4),
        ({"q_proj": 2, "self_attn.q_proj": 3}, 2),
        ({"self_attn.q_proj": 3, "q_proj": 2}, 3),
        ({r"layers\.0\.self_attn\.q_proj": 2}, 2),
        ({r"layers\.1\.self_attn\.q_proj": 2}, 4),
        ({"^model.layers.0.self_attn.q_proj": 2}, 2),
        ({"^layers.0.self_attn.q_proj": 2}, 4),
        ({".*": 2}, 2),
        ({"q_pro": 2}, 4),
        ({"k_proj|q_proj": 2}, 2),
        ({"q_proj.weight": 2}, 4),
    ],
)
def test_patterns_name_the_end_of_a_path(pattern: dict[str, int], rank: int, tmp_path: Path) -> None:
    path = build.peft(tmp_path / "a", pair(rank=rank), rank_pattern=pattern, alpha_pattern=dict.fromkeys(pattern, 16))
    module = open_index(path).adapter.modules["layers.0.attention.q"]  # type: ignore[union-attr]
    assert module.rank == rank
    assert module.scale == np.float32(16 / rank if rank != 4 else 2)


@pytest.mark.parametrize(
    ("settings", "selected"),
    [
        ({"target_modules": ["q_proj"]}, True),
        ({"target_modules": ["self_attn.q_proj"]}, True),
        ({"target_modules": [Q]}, True),
        ({"target_modules": ["proj"]}, False),
        ({"target_modules": r".*\.self_attn\..*"}, True),
        ({"target_modules": r"self_attn\..*"}, False),
        ({"target_modules": "all-linear"}, True),
        ({"target_modules": ["q_proj"], "exclude_modules": ["layers.0.self_attn.q_proj"]}, False),
        ({"target_modules": ["q_proj"], "exclude_modules": r".*\.1\..*"}, True),
        ({"target_modules": ["q_proj"], "layers_to_transform": [0, 3]}, True),
        ({"target_modules": ["q_proj"], "layers_to_transform": 1}, False),
        ({"target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": "layers"}, False),
        ({"target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": ["h", "layers"]}, True),
        ({"target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": "h"}, False),
        ({"target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": "(?:h|layers)"}, True),
        ({"target_modules": r"^(?!.*vision).*(q_proj|v_proj)$"}, True),
        ({"target_modules": r"^(?!.*layers).*(q_proj|v_proj)$"}, False),
        ({"target_modules": ["q_proj"], "modules_to_save": ["q_proj"]}, False),
        ({"target_modules": [Q], "layers_to_transform": [1]}, True),
    ],
)
def test_what_the_configuration_does_not_select_is_not_used(
    settings: dict[str, Any], selected: bool, tmp_path: Path
) -> None:
    adapter = open_index(build.peft(tmp_path / "a", pair(), **settings)).adapter
    assert adapter is not None
    assert bool(adapter.unsupported) is not selected
    assert selected or "does not select" in adapter.unsupported[0]


@pytest.mark.parametrize(
    ("start", "held"),
    [
        ("base_model.model.", "base_model.model.base_model.model."),  # llama.cpp's issue 5610
        ("_orig_mod.", "_orig_mod."),
        ("model._orig_mod.", "_orig_mod."),
        ("_fsdp_wrapped_module.", "_fsdp_wrapped_module."),
    ],
)
def test_names_within_other_modules_are_one_reason(start: str, held: str, tmp_path: Path, ckconv: Any) -> None:
    named = RANK.replace("model.", start) if start.startswith("model.") else start + RANK
    path = build.peft(tmp_path / "a", pair(named))
    file = path / "adapter_model.safetensors"

    refused = ckconv("convert", LLAMA, tmp_path / "m.gguf", "--adapter", path)

    assert (refused.code, refused.err.count("\n")) == (4, 2)
    assert f"names hold {held!r}, and peft ignores tensors of such names" in refused.err
    found = re.search(r"tensors under name\.replace\('(.*)', '(.*)'\)", refused.err)
    save_file({name.replace(found[1], found[2]): it for name, it in load_file(file).items()}, file)
    assert ckconv("convert", LLAMA, tmp_path / "m.gguf", "--adapter", path).code == 0


RANK = "model.layers.0.self_attn.q_proj"
WRONG: list[tuple[str, str, dict[str, Any], dict[str, np.ndarray]]] = [
    ("adapter.rank", "has no B beside it", {}, {f"{Q}.lora_A.weight": random(4, 64)}),
    ("adapter.rank", "has no A beside it", {}, {f"{Q}.lora_B.weight": random(64, 4)}),
    (
        "adapter.rank",
        f"{RANK}: lora_A has rank 8, lora_B 16",
        {"r": 8},
        {f"{Q}.lora_A.weight": random(8, 64), f"{Q}.lora_B.weight": random(64, 16)},
    ),
    ("adapter.rank", f"{RANK}: lora_A and lora_B have rank 4, r makes it 8", {"r": 8}, pair()),
    ("adapter.rank", "have rank 4, rank_pattern makes it 2", {"rank_pattern": {"q_proj": 2}}, pair()),
    ("adapter.rank", "not a matrix of numbers", {}, {**pair(), f"{Q}.lora_A.weight": random(4, 64, 1)}),
    ("adapter.rank", "not a matrix of numbers", {}, {**pair(), f"{Q}.lora_A.weight": np.ones((4, 64), "i4")}),
    (
        "adapter.scale",
        "lora_alpha is 0; it must be a number above 0: what has it changes nothing, so leave out its tensors, or the",
        {"lora_alpha": 0},
        pair(),
    ),
    ("adapter.scale", "lora_alpha is -8", {"lora_alpha": -8}, pair()),
    ("adapter.scale", "lora_alpha is NaN", {"lora_alpha": float("nan")}, pair()),
    ("adapter.scale", "lora_alpha is Infinity", {"lora_alpha": float("inf")}, pair()),
    ("adapter.scale", "lora_alpha is '8'", {"lora_alpha": "8"}, pair()),
    ("adapter.scale", "lora_alpha is true", {"lora_alpha": True}, pair()),
    ("adapter.scale", "r is 0", {"r": 0}, pair()),
    ("adapter.scale", "r is 4.0", {"r": 4.0}, pair()),
    ("adapter.scale", "rank_pattern of 'q_proj' is -2", {"rank_pattern": {"q_proj": -2}}, pair()),
    ("adapter.scale", "alpha_pattern of 'q_proj' is 0", {"alpha_pattern": {"q_proj": 0}}, pair()),
    ("adapter.scale", "a scale that float32 cannot hold", {"lora_alpha": 1e60}, pair()),
    ("adapter.config", "rank_pattern is a list", {"rank_pattern": [1]}, pair()),
    ("adapter.config", "target_modules is", {"target_modules": 3}, pair()),
    ("adapter.config", "is not a regular expression", {"rank_pattern": {"(": 2}}, pair()),
    ("adapter.config", "is not a regular expression", {"alpha_pattern": {"a)(b": 2}}, pair()),
    ("adapter.config", "use_rslora is 'yes'", {"use_rslora": "yes"}, pair()),
    ("adapter.config", "layers_to_transform is", {"layers_to_transform": "0"}, pair()),
    ("adapter.config", "modules_to_save is 'lm_head'", {"modules_to_save": "lm_head"}, pair()),
    ("adapter.unsupported", "ckconv does not match", {"target_modules": "a{e}"}, pair()),
    ("adapter.rank", "have rank 4, rank_pattern makes it 2", {"rank_pattern": {"(?=q)q_proj": 2}}, pair()),
    (
        "adapter.config",
        "'(?P<idx>layers)' of layers_pattern is not a regular expression",
        {"layers_pattern": "(?P<idx>layers)", "layers_to_transform": [0]},
        pair(),
    ),
    ("adapter.unsupported", "peft_type is 'LOHA'", {"peft_type": "LOHA"}, pair()),
    ("adapter.unsupported", "peft_type is null", {"peft_type": None}, pair()),
    ("adapter.unsupported", "peft_type is null", {"peft_type": ...}, pair()),
]


@pytest.mark.parametrize(("code", "message", "config", "tensors"), WRONG)
def test_malformed_adapters(
    code: str, message: str, config: dict[str, Any], tensors: dict[str, np.ndarray], tmp_path: Path, ckconv: Any
) -> None:
    result = ckconv("inspect", build.peft(tmp_path / "a", tensors, **config))
    assert result.code == (4 if code == "adapter.unsupported" else 3)
    assert f"error[{code}]" in result.err
    assert message in result.err


@pytest.mark.parametrize(
    ("field", "seconds"),
    [("rank_pattern", MAX_SECONDS), ("alpha_pattern", 0.2), ("target_modules", 0.2), ("exclude_modules", 0.2)],
)
def test_patterns_over_which_backtracking_takes_hours_are_refused(
    field: str, seconds: float, tmp_path: Path, ckconv: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckconv.io.json.MAX_SECONDS", seconds)
    pattern = "(a|a)" * 30 + "b"
    path = build.peft(tmp_path / "a", pair("a" * 40), **{field: {pattern: 4} if "_pattern" in field else pattern})
    result = ckconv("inspect", path)
    assert (result.code, f"patterns take more than {seconds:g} seconds" in result.err) == (4, True)


def test_a_class_with_a_bracket_in_it_warns_of_nothing(tmp_path: Path, ckconv: Any) -> None:
    path = build.peft(tmp_path / "a", pair(), target_modules=".*[[a-z]_proj")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ckconv("inspect", path).err == ""


def test_every_fault_is_named_at_once(tmp_path: Path) -> None:
    tensors = {f"model.layers.{n}.self_attn.q_proj.lora_A.weight": random(4, 64) for n in range(14)}
    with pytest.raises(InputError) as caught:
        open_index(build.peft(tmp_path / "a", tensors))
    assert caught.value.code == "adapter.rank"
    assert len(caught.value.details) == 11
    assert caught.value.details[-1] == "... and 3 more"


def test_base_model_has_no_such_matrix(tmp_path: Path, ckconv: Any) -> None:
    far = pair("model.layers.40.mlp.up_proj", rows=128)
    wide = pair(DOWN, rows=64, cols=512)
    path = build.peft(tmp_path / "a", {**far, **wide})
    assert ckconv("inspect", path).code == 0
    result = ckconv("inspect", path, "--base", LLAMA)
    assert result.code == 3
    assert "error[adapter.base]" in result.err
    assert "no base tensor for 'model.layers.40.mlp.up_proj'" in result.err
    assert f"'{DOWN}' changes a matrix of [64, 512], the base has [64, 128]" in result.err
    gpt2 = ckconv("inspect", build.peft(tmp_path / "b", pair()), "--base", FIXTURES / "hf" / "gpt2-f32" / "config.json")
    assert f"no base tensor for '{Q}'" in gpt2.err


def test_without_what_belongs_to_it(tmp_path: Path, ckconv: Any) -> None:
    path = build.peft(tmp_path / "a", pair())
    (path / "adapter_config.json").unlink()
    result = ckconv("inspect", path)
    assert result.code == 4
    assert "error[adapter.unsupported]" in result.err
    assert "there is no adapter_config.json" in result.err
    path = build.peft(tmp_path / "b", pair())
    (path / "adapter_model.safetensors").rename(path / "adapter_model.bin")
    assert "error[pt." in ckconv("inspect", path).err  # no file of torch.save
    (path / "adapter_model.bin").unlink()
    assert "there is no adapter_model.safetensors" in ckconv("inspect", path).err


class Program:
    """Runs a command where it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


ONE = {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": np.ones((2, 4), np.float32)}
PICKLES: dict[str, tuple[Any, str]] = {
    "nothing": (b"", "adapter_model.bin"),
    "a text": (b"hello, world" * 9, "error[pt."),
    "a web page": (b"<!DOCTYPE html>", "error[pt."),
    "an archive of something else": (b"PK\5\6" + bytes(18), "error[pt."),
    "a program": ({"x": Program()}, "names posix.system; only tensors are read, nothing is executed"),
    "a list": ([*ONE.values()], "holds a list, not a dict of tensors"),
    "no tensors": ({}, "holds no tensors"),
    "numbers by name": ({"a": 1}, "holds a int under 'a'"),
    "a tensor without a name": ({1: np.ones(2, np.float32)}, "under '1'"),
    "several models": ({"model": ONE, "state_dict": ONE}, "holds several models"),
}


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_that_is_no_adapter(tmp_path: Path, ckconv: Any, name: str) -> None:
    value, sentence = PICKLES[name]
    path = build.peft(tmp_path / "a", pair())
    (path / "adapter_model.safetensors").unlink()
    if isinstance(value, bytes):
        (path / "adapter_model.bin").write_bytes(value)
    else:
        saved(path / "adapter_model.bin", value)
    result = ckconv("convert", path, tmp_path / "out.gguf", "--base", LLAMA)
    assert (result.code in (3, 4), sentence in result.err) == (True, True), result.err
    assert not (tmp_path / "out.gguf").exists()
    assert not Path("ran").exists()


def test_named_adapters_lie_in_directories(tmp_path: Path, ckconv: Any) -> None:
    build.peft(tmp_path / "run" / "first", pair())
    assert "\nmodule\tlayers.0.attention.q" in ckconv("inspect", tmp_path / "run").out
    build.peft(tmp_path / "run" / "second", pair())
    result = ckconv("inspect", tmp_path / "run")
    assert result.code == 3
    assert "holds 2 adapters: 'first', 'second'" in result.err
    assert ckconv("inspect", tmp_path / "run" / "second").code == 0
    assert ckconv("inspect", tmp_path / "run" / "second" / "adapter_model.safetensors").code == 0


UNSUPPORTED = [
    ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication is a list"),
    ({"init_lora_weights": "pissa_niter_16"}, "it belongs to a base that peft changes first"),
    ({"init_lora_weights": "olora"}, "it belongs to a base that peft changes first"),
    ({"use_qalora": True}, "use_qalora is true"),
    ({"alora_invocation_tokens": [1, 2]}, "only after certain tokens"),
    ({"use_dora": True}, "tensors of another method"),
]


@pytest.mark.parametrize(("config", "message"), UNSUPPORTED)
def test_other_methods_are_inspected_and_not_converted(
    config: dict[str, Any], message: str, tmp_path: Path, ckconv: Any
) -> None:
    path = build.peft(tmp_path / "a", pair(), **config)
    assert message in ckconv("inspect", path).out
    result = ckconv("convert", path, tmp_path / "out", "--to", "mlx")
    assert result.code == 4
    assert "error[adapter.unsupported]" in result.err
    assert message in result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("parameters", "code", "message"),
    [
        ({"rank": 4}, "adapter.scale", "lora_parameters.scale is null"),
        ({"rank": 4, "scale": 0}, "adapter.scale", "lora_parameters.scale is 0"),
        ({"rank": 4, "scale": float("nan")}, "adapter.scale", "scale is NaN"),
        ({"rank": 0, "scale": 2}, "adapter.scale", "lora_parameters.rank is 0"),
        ({"rank": 8, "scale": 2}, "adapter.rank", "lora_parameters.rank makes it 8"),
        (None, "adapter.config", "lora_parameters is missing"),
    ],
)
def test_malformed_mlx_adapters(parameters: Any, code: str, message: str, tmp_path: Path) -> None:
    tensors = {f"{Q}.lora_a": random(64, 4), f"{Q}.lora_b": random(4, 64)}
    with pytest.raises(CkconvError) as caught:
        open_index(build.mlx(tmp_path / "a", tensors, lora_parameters=parameters))
    assert caught.value.code == code
    assert message in str(caught.value)


def test_mlx_methods(tmp_path: Path) -> None:
    tensors = {f"{Q}.lora_a": random(64, 4), f"{Q}.lora_b": random(4, 64)}
    with pytest.raises(UnsupportedError, match="fine_tune_type is 'qat'"):
        open_index(build.mlx(tmp_path / "a", tensors, fine_tune_type="qat"))
    index = open_index(build.mlx(tmp_path / "b", {**tensors, f"{Q}.m": random(64)}, fine_tune_type="dora"))
    assert index.adapter is not None
    assert index.adapter.method == "DoRA"
    assert not index.adapter.unsupported
    keys = {"rank": 4, "scale": 1.0, "keys": ["self_attn.k_proj"]}
    unnamed = open_index(build.mlx(tmp_path / "c", tensors, lora_parameters=keys))
    assert "does not select" in unnamed.adapter.unsupported[0]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("alpha", "scale"), [(8.0, 2.0), (3.0, 0.75), (None, 1.0), (float("nan"), 0), (0.0, 0), (-1.0, 0)]
)
def test_alpha_of_a_gguf(alpha: float | None, scale: float, tmp_path: Path) -> None:
    tensors = {"blk.0.ffn_up.weight.lora_a": random(4, 64), "blk.0.ffn_up.weight.lora_b": random(128, 4)}
    path = build.gguf_adapter(tmp_path / "a.gguf", tensors, alpha=alpha)
    if scale:
        assert open_index(path).adapter.modules["layers.0.ffn.up"].scale == scale  # type: ignore[union-attr]
        return
    with pytest.raises(InputError) as caught:
        open_index(path)
    assert caught.value.code == "adapter.scale"


def test_rows_of_a_llama_gguf_need_the_number_of_heads(ckconv: Any, tmp_path: Path) -> None:
    path = FIXTURES / "gguf-lora" / "llama-r4-attn-mlp.f32.gguf"
    result = ckconv("convert", path, tmp_path / "out", "--to", "peft")
    assert result.code == 4
    assert "--base BASE names the base model" in result.err
    assert ckconv("convert", path, tmp_path / "out", "--to", "peft", "--base", LLAMA).code == 0
    assert ckconv("diff", tmp_path / "out", LORA / "llama-r4-attn-mlp").code == 0
    other = ckconv("inspect", path, "--base", FIXTURES / "hf" / "qwen2-tied-bf16")
    assert other.code == 3
    assert "is made for 'llama', the base is 'qwen2'" in other.err


def test_what_inspect_prints(ckconv: Any) -> None:
    out = ckconv("inspect", ADAPTERS / "llama-patterns-rslora").out
    assert "container\tkind\tadapter\n" in out
    assert "module\tlayers.0.attention.q\tmodel.layers.0.self_attn.q_proj\tlora\t2\t8\t5.656854152679443\n" in out
    assert "target\tpeft\tyes\n" in out
    assert "target\tgguf\tno\n" in out
    document = ckconv("inspect", "--json", ADAPTERS / "llama-dora").json["adapter"]
    assert document["method"] == "DoRA"
    assert document["base"] == "llama-untied-f32"
    assert document["modules"][0] == {
        "module": "layers.0.ffn.down",
        "path": "model.layers.0.mlp.down_proj",
        "method": "dora",
        "tensors": ["lora_a", "lora_b", "magnitude"],
        "rank": 4,
        "alpha": 8.0,
        "scale": 2.0,
    }


@pytest.mark.parametrize(
    ("path", "stem"),
    [
        ("model.layers.3.self_attn.q_proj", "layers.3.attention.q"),
        ("transformer.h.1.attn.c_attn", "layers.1.attention.qkv"),
        ("model.h.1.mlp.c_fc", "layers.1.ffn.up"),
        ("lm_head", "output"),
        ("model.embed_tokens", "token_embedding"),
        ("model.layers.0.mlp.experts.5.up_proj", "layers.0.ffn.experts.5.up"),
        ("model.layers.0.post_attention_layernorm", None),
        ("vision_tower.layers.0.q", None),
    ],
)
def test_paths_of_modules(path: str, stem: str | None) -> None:
    assert module_of(path) == stem


UNREAD = ("t5", "t5_encoder", "umt5_encoder", "falcon_h1", "jais", "eagle3")


def test_names_there_and_back() -> None:
    for family in FAMILIES.values():
        # Of T5 the name of a module has a second number, of EAGLE 3's one layer none, and Falcon-H1 and Jais multiply
        # what their matrices give: no adapter of theirs is read.
        if not family.gguf or family.experts or family.name in UNREAD:
            continue
        for stem in ("layers.2.attention.q", "layers.2.attention.qkv", "layers.2.ffn.gate_up", "output"):
            name = gguf_name_of(stem, family)
            assert name is None or gguf_module_of(name, family) == stem
            for scheme in ("hf", "mlx"):
                path = path_of(stem, [family.name], scheme)
                assert path is None or module_of(path, [family.name]) == stem
    assert families_of(["transformer.h.0.attn.c_attn"]) == ("codeshell", "gpt2", "gpt_bigcode", "jais", "qwen")
    assert families_of(["model.h.0.attn.c_attn"]) == ("gpt2", "jais")
    assert path_of("layers.0.attention.qkv", ["gpt2"], "mlx") == "model.h.0.attn.c_attn"


@pytest.mark.parametrize("named", ["x" * 5000, f"/{'y' * 300}/z", "a\0b", "."])
def test_a_base_that_cannot_be_looked_at_is_no_fault_of_the_adapter(named: str, tmp_path: Path, ckconv: Any) -> None:
    path = build.peft(tmp_path / "a", pair(), base_model_name_or_path=named)
    result = ckconv("inspect", path)
    assert (result.code, result.err) == (0, "")


def test_a_base_that_this_user_may_not_read_is_no_fault_of_the_adapter(
    tmp_path: Path, ckconv: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build.peft(tmp_path / "a", pair(), base_model_name_or_path="/root/base")
    is_dir = Path.is_dir

    def denied(self: Path, **more: Any) -> bool:
        if "root" in self.parts:
            raise PermissionError(13, "Permission denied", str(self))
        return is_dir(self, **more)

    monkeypatch.setattr(Path, "is_dir", denied)
    result = ckconv("inspect", path)
    assert (result.code, result.err) == (0, "")


def test_an_adapter_that_names_itself_as_its_base_has_none(tmp_path: Path, ckconv: Any) -> None:
    path = build.peft(tmp_path / "a", pair(), base_model_name_or_path=str(tmp_path / "a"))
    assert ckconv("inspect", path).code == 0
    assert "is an adapter, not the model that an adapter changes" in ckconv("inspect", path, "--base", path).err


@pytest.mark.parametrize(("architecture", "family"), [("llama", "llama"), ("qwen2", "qwen2"), ("qwen3moe", "qwen3moe")])
def test_an_adapter_that_names_an_architecture_is_one_of_its_dense_family(architecture: str, family: str) -> None:
    found = family_named(architecture)
    assert found is not None
    assert found.name == family
