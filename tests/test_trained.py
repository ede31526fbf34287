"""Models trained in the engine: what they compute goes with them, and comes back.

:mod:`trained_cases` has their logits, computed by transformers of classes that were filled by hand; :mod:`bump_engine`
computes a bump file by the engine's rules, llama.cpp and mlx-lm what they load.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import bump_engine
import consumers
import numpy as np
import pytest
from conftest import FIXTURES
from recorded import EXACT
from safetensors import safe_open
from trained_builder import Trained, read_manifest
from trained_cases import CASES, PROMPT, inputs, recorded

import ckconv
from ckconv import Options

#: Two programs in float32, with biases and norms that are large.
LIMIT = 3e-5

STEP16 = [FIXTURES / "trained" / f"{name}-step16" / "weights.bump" for name in ("llama", "qwen2", "qwen3")]

#: Biases that no class of a qwen3 has, besides those that transformers' class has and the two others have not.
MLP, OUTPUT, QKV = "layers.*.ffn.*.bias", "layers.*.attention.output.bias", "layers.*.attention.[qkv].bias"

#: Cases that a program's class holds, and what is dropped for it.
HELD = {
    name: (MLP,) if case.drop else ()
    for name, case in CASES.items()
    if name not in ("qwen3-step16", "qwen3")
}  # fmt: skip
HELD_BY_ALL = [name for name in HELD if not name.startswith("qwen3") or name == "qwen3 without biases"]


def converted(source: Path, folder: Path, to: str, **options: Any) -> Path:
    folder.mkdir(exist_ok=True)
    asked = Options(**{"source_record": False, "bump_version": 5 if to == "bump" else 0, **options})
    ckconv.convert(source, f"{folder}/{to}/", to=to, options=asked)
    return folder / to


def off(rows: np.ndarray, name: str) -> float:
    return float(np.abs(rows - recorded(name)).max())


@pytest.mark.parametrize("name", CASES)
def test_what_is_recorded_was_computed_from_these_files(name: str, tmp_path: Path) -> None:
    assert hashlib.sha256(CASES[name].source(tmp_path).read_bytes()).hexdigest() == inputs()[name]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.drop])
def test_the_rules_of_the_engine_compute_what_transformers_does(name: str, tmp_path: Path) -> None:
    bump = bump_engine.read_trained(CASES[name].source(tmp_path))

    assert off(bump_engine.computed(bump, PROMPT), name) < EXACT


# What it computes, elsewhere


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.drop])
def test_bump_5_computes_what_was_trained_with_every_bias(name: str, tmp_path: Path) -> None:
    made = converted(CASES[name].source(tmp_path), tmp_path, "bump") / "weights.bump"

    assert off(bump_engine.logits(made, PROMPT), name) < EXACT


@pytest.mark.parametrize("name", HELD_BY_ALL)
def test_llama_cpp_computes_what_was_trained(name: str, llama_cpp: consumers.Consumer, tmp_path: Path) -> None:
    made = converted(CASES[name].source(tmp_path), tmp_path, "gguf")

    assert off(llama_cpp.logits(next(made.glob("*.gguf")), PROMPT), name) < LIMIT


@pytest.mark.product("values")
@pytest.mark.parametrize("to", ["mlx", "safetensors"])
@pytest.mark.parametrize("name", HELD_BY_ALL)
def test_mlx_lm_computes_what_was_trained(name: str, to: str, mlx_lm: consumers.Consumer, tmp_path: Path) -> None:
    made = converted(CASES[name].source(tmp_path), tmp_path, to)

    assert off(mlx_lm.logits(made, PROMPT), name) < LIMIT


@pytest.mark.live
@pytest.mark.parametrize("name", HELD)
def test_transformers_computes_what_was_trained(name: str, tmp_path: Path) -> None:
    made = converted(CASES[name].source(tmp_path), tmp_path, "safetensors", drop=HELD[name])
    with consumers.transformers() as program:
        assert off(program.logits(made, PROMPT, strict=True), name) < EXACT


@pytest.mark.parametrize(
    ("name", "model_class", "biases"),
    [
        ("llama", "LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
        ("llama without biases", "LlamaForCausalLM", {"attention_bias": False, "mlp_bias": False}),
        ("qwen2", "LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
        ("qwen2 without other biases", "Qwen2ForCausalLM", {}),
        ("qwen3 without biases of the MLP", "Qwen3ForCausalLM", {"attention_bias": True}),
    ],
)
def test_the_biases_decide_the_class(name: str, model_class: str, biases: dict[str, bool], tmp_path: Path) -> None:
    made = converted(CASES[name].source(tmp_path), tmp_path, "safetensors")

    config = json.loads((made / "config.json").read_text())
    facts = {"rms_norm_eps": 1e-6, "max_position_embeddings": 32, "tie_word_embeddings": False, **biases}
    assert config["architectures"] == [model_class]
    assert {key: config.get(key) for key in facts} == facts
    assert config.get("rope_parameters", config)["rope_theta"] == 1e6


@pytest.mark.parametrize(
    ("to", "refused"),
    [
        ("safetensors", {MLP}),
        ("gguf", {MLP, OUTPUT}),
        ("mlx", {MLP, OUTPUT, QKV}),
    ],
)
def test_what_a_class_has_no_place_for_is_refused_and_dropped_with_the_flag(
    to: str, refused: set[str], tmp_path: Path, ckconv: Any
) -> None:
    source = CASES["qwen3"].source(tmp_path)

    found = ckconv("convert", source, f"{tmp_path}/out/", "--to", to)
    assert found.code == 4
    assert "ffn.gate.bias" in found.err
    assert ("attention.output.bias" in found.err) == (OUTPUT in refused)
    assert ("attention.q.bias" in found.err) == (QKV in refused)
    drops = [argument for glob in refused for argument in ("--drop", glob)]
    assert ckconv("convert", source, f"{tmp_path}/out/", "--to", to, *drops).code == 0


# What it is


@pytest.mark.parametrize("path", STEP16, ids=[path.parent.name for path in STEP16])
def test_a_checkpoint_of_the_engine_is_inspected_hashed_and_verified(path: Path, ckconv: Any) -> None:
    shown = ckconv("inspect", "--json", "--hash", path.parent).json

    assert (shown["format"], shown["version"]) == ("bump", None)
    assert shown["architecture"] == path.parent.name.partition("-")[0]
    assert (shown["config"]["norm_eps"], shown["config"]["rope_theta"]) == (1e-6, 1e6)
    assert (shown["container"]["layout"], shown["metadata"]["step"]) == ("headerless", 16)
    checked = ckconv("verify", path)
    assert checked.code == 0
    assert "structure and padding are valid" in checked.out


def test_a_checkpoint_lies_beside_the_manifest_that_is_called_after_it(tmp_path: Path, ckconv: Any) -> None:
    one = Trained("llama", seed=1).write(tmp_path / "checkpoints", stem="weights_step_00000008")
    other = Trained("qwen3", seed=2).write(tmp_path / "checkpoints", stem="weights_step_00000016")

    assert [ckconv("inspect", "--json", path).json["architecture"] for path in (one, other)] == ["llama", "qwen3"]
    assert ckconv("diff", one, one).code == 0
    assert ckconv("inspect", tmp_path / "checkpoints").code == 3  # two models: one has to be named


@pytest.mark.product("values")
@pytest.mark.parametrize("wrapped", ["april", "july"])
@pytest.mark.parametrize("model", ["llama", "qwen2", "qwen3"])
def test_a_wrapped_file_is_the_same_model(model: str, wrapped: str, tmp_path: Path, ckconv: Any) -> None:
    plain = Trained(model).write(tmp_path / "plain")
    other = Trained(model).write(tmp_path / "wrapped", wrapped=wrapped)

    assert ckconv("inspect", "--json", other).json["container"]["layout"] == "wrapped"
    assert ckconv("diff", plain, other, "--values").code in (0, 2)
    hashes = [ckconv("inspect", "--json", "--hash", path).json["hash"] for path in (plain, other)]
    assert hashes[0] == hashes[1]


def test_the_harness_and_norms_that_a_family_does_not_use_are_left_out(tmp_path: Path, ckconv: Any) -> None:
    for model, left in (("llama", 10), ("qwen3", 6)):
        path = Trained(model, initialized=True).write(tmp_path / model)
        shown = ckconv("convert", path, f"{tmp_path}/{model}.bump", "--bump-version", "5", "--dry-run", "--json").json
        names = [
            item["name"] for item in shown["left_out"] if "." in item["name"] and not item["name"].startswith("layers.")
        ]
        assert len(names) == left
        assert all(name.startswith("tiny.") or name.endswith(("q_norm", "k_norm")) for name in names)


def test_numbers_that_look_like_another_format_do_not_mislead(tmp_path: Path, ckconv: Any) -> None:
    """The ninth byte of a safetensors file is a brace, the first four of a GGUF its magic number."""
    for number, start in enumerate((b"GGUF\3\0\0\0", bytes(8) + b"{")):
        path = Trained("llama").write(tmp_path / str(number))
        data = path.read_bytes()
        path.write_bytes(start + data[len(start) :])

        assert ckconv("inspect", "--json", path).json["container"]["layout"] == "headerless"


def test_values_and_their_order(tmp_path: Path) -> None:
    """Rows of a llama are neighbors in the file, and halves in transformers."""
    trained = Trained("llama")
    made = converted(trained.write(tmp_path), tmp_path, "safetensors")
    arrays = trained.arrays()

    with safe_open(made / "model.safetensors", "numpy") as file:
        q = file.get_tensor("model.layers.0.self_attn.q_proj.weight")
        up = file.get_tensor("model.layers.1.mlp.up_proj.bias")
    heads = arrays["layer.0.wq"].reshape(4, 4, 2, 32)
    assert np.array_equal(q, heads.swapaxes(1, 2).reshape(32, 32))
    assert np.array_equal(up, arrays["layer.1.b1"][48:])


# The way in


@pytest.mark.product("values")
@pytest.mark.parametrize("through", ["safetensors", "gguf", "mlx", "bump"])
@pytest.mark.parametrize("name", ["llama", "qwen2 without other biases", "qwen3 without biases", "llama-step16"])
def test_trainable_is_byte_for_byte_what_the_engine_wrote(name: str, through: str, tmp_path: Path) -> None:
    source = CASES[name].source(tmp_path / "source")
    if CASES[name].made and CASES[name].made.initialized:  # type: ignore[union-attr]
        source = Trained("qwen3", zero=(".bq", ".bk", ".bv", ".bo", ".b1", ".b2")).write(tmp_path / "checkpoint")
    middle = converted(source, tmp_path, through)
    made = converted(middle, tmp_path / "back", "bump", bump_version=0, trainable="headerless") / "weights.bump"

    assert made.read_bytes() == source.read_bytes()
    ours, theirs = read_manifest(made), read_manifest(source)
    assert ours["entries"] == theirs["entries"]
    assert ours["format"] == theirs["format"]
    assert {**ours["config"], "training": None} == {**theirs["config"], "training": None}


@pytest.mark.product("values")
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "llama-step16", "qwen2-step16", "qwen3-step16"])
@pytest.mark.parametrize("wrapped", ["", "april", "july"])
def test_a_trained_model_is_written_again_with_all_that_its_manifest_says(
    name: str, wrapped: str, tmp_path: Path
) -> None:
    case = CASES[name]
    source = case.source(tmp_path / "plain")
    read = case.made.write(tmp_path / "wrapped", wrapped=wrapped) if case.made and wrapped else source
    made = converted(read, tmp_path / "back", "bump", bump_version=0, trainable="headerless") / "weights.bump"

    assert made.read_bytes() == source.read_bytes()
    assert read_manifest(made) == read_manifest(source)
    assert list(read_manifest(made)) == list(read_manifest(source))


@pytest.mark.parametrize("to", ["gguf", "safetensors", "mlx", "bump"])
def test_what_a_manifest_says_of_training_is_named_where_it_is_lost(to: str, tmp_path: Path, ckconv: Any) -> None:
    source = CASES["llama-step16"].source(tmp_path / "plain")
    result = ckconv("convert", source, tmp_path / f"out.{to}", "--to", to)
    assert result.code == 0
    note = "left out, and kept by --to bump --trainable only: source, step, reason, config.training of the manifest"
    assert f"  note: {note}\n" in result.out
    assert "no source record beside it" not in result.out


@pytest.mark.parametrize("model", ["llama", "qwen2", "qwen3"])
def test_wrapped_is_what_the_engine_wraps(model: str, tmp_path: Path) -> None:
    trained = Trained(model)
    made = converted(trained.write(tmp_path), tmp_path, "bump", bump_version=0, trainable="wrapped") / "weights.bump"

    theirs = trained.write(tmp_path / "wrapped", wrapped="april")
    assert made.read_bytes() == theirs.read_bytes()
    assert read_manifest(made)["entries"] == read_manifest(theirs)["entries"]


@pytest.mark.parametrize("name", ["llama-tied-bf16", "llama-bias-f32", "qwen2-tied-bf16"])
def test_training_starts_with_what_a_checkpoint_computes(name: str, tmp_path: Path) -> None:
    from recorded import PROMPT as LONG, off as off_long

    asked = {"bump_version": 0, "trainable": "headerless", "allow_lossy": True}
    made = converted(FIXTURES / "hf" / name, tmp_path, "bump", **asked) / "weights.bump"

    limit = EXACT if json.loads((FIXTURES / "hf" / name / "config.json").read_text())["rms_norm_eps"] == 1e-6 else 1e-3
    assert off_long(bump_engine.computed(bump_engine.read_trained(made), LONG), name) < limit


def test_what_cannot_be_trained_is_refused(tmp_path: Path, ckconv: Any) -> None:
    def said(name: str, *flags: str) -> str:
        found = ckconv("convert", FIXTURES / name, f"{tmp_path}/x/", "--to", "bump", "--trainable", *flags)
        assert found.code in (2, 4), found.err
        return str(found.err)

    assert "4 heads of 32 are not the hidden size 64" in said("hf/qwen3-tied-bf16")
    assert "ckconv does not know how the engine trains a gpt2" in said("hf/gpt2-hub-f32")
    assert "it knows llama, qwen2, qwen3" in said("hf/phi3-bf16")
    assert "the engine trains FP32 only" in said("kquants/llama64.Q4_K_M.gguf")
    assert "the engine trains FP32 only" in said("hf/llama-tied-bf16", "--dtype", "keep")
    assert "--trainable and --wrapped exclude each other" in said("hf/llama-tied-bf16", "--wrapped")
    assert "--bump-version is for" in said("hf/llama-tied-bf16", "--bump-version", "5")
    assert "--rope-layout is for" in said("hf/llama-tied-bf16", "--rope-layout", "split")


def test_what_has_no_header_needs_a_name_that_is_known(tmp_path: Path, ckconv: Any) -> None:
    source = converted(Trained("llama").write(tmp_path), tmp_path, "safetensors")

    def made(name: str, flag: str = "--trainable") -> Any:
        return ckconv("convert", source, f"{tmp_path}/{name}", "--to", "bump", flag)

    refused = made("x")
    assert (refused.code, "'x' does not end in .bump" in refused.err) == (2, True)
    assert f"hint: {tmp_path}/x.bump makes a file, {tmp_path}/x/ makes a directory" in refused.err
    assert [made(name).code for name in ("x.bump", "x/")] == [0, 0]
    assert made("wrapped", "--wrapped").code == 0
    assert ckconv("verify", tmp_path / "x.bump", source).code == 0


def test_another_epsilon_has_to_be_allowed(tmp_path: Path, ckconv: Any) -> None:
    source = converted(Trained("llama").write(tmp_path), tmp_path, "safetensors")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))

    refused = ckconv("convert", source, f"{tmp_path}/x/", "--to", "bump", "--trainable")
    assert refused.code == 4
    assert "the epsilon of its norms is 1e-05, the engine trains with 1e-06 only" in refused.err
    allowed = ckconv("convert", source, f"{tmp_path}/x/", "--to", "bump", "--trainable", "--allow-lossy")
    assert allowed.code == 0
    assert "an epsilon of 1e-06, the source's is 1e-05" in allowed.out


@pytest.mark.parametrize("flag", ["--trainable", "--wrapped"])
def test_verify_against_the_source_knows_the_flag(flag: str, tmp_path: Path, ckconv: Any) -> None:
    source = FIXTURES / "hf" / "llama-tied-bf16"
    assert ckconv("convert", source, f"{tmp_path}/x/", "--to", "bump", flag, "--record").code == 0

    assert ckconv("verify", tmp_path / "x", source).code == 0
    (tmp_path / "x" / "ckconv.json").unlink()
    assert ckconv("verify", tmp_path / "x", source).code == 0
