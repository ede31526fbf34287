"""What multiplies cosines and sines where RoPE is scaled, and families that said nothing of a scaling."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import consumers
import family_cases
import gguf
import numpy as np
import pytest
from checkpoints import Decoder, save
from family_cases import checkpoint, recording
from gguf_copies import gguf_copy

import ckconv
from ckconv.core.config import config_differences
from ckconv.errors import UnsupportedError

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
GROWTH = 1 + 0.1 * math.log(4)

#: What a configuration says -> what transformers multiplies by (``_compute_yarn_parameters``).
FACTORS = [
    ({"attention_factor": 0.9}, 0.9),
    ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
    ({"mscale": 0.8, "mscale_all_dim": 0.5}, (1 + 0.08 * math.log(4)) / (1 + 0.05 * math.log(4))),
    ({"attention_factor": 0.9, "mscale": 0.8, "mscale_all_dim": 0.5}, 0.9),
]


def scaled(family: str, root: Path, scaling: dict[str, Any]) -> Path:
    """The first recorded case of a family, its RoPE scaled."""
    recorded = next(case for case in recording(family).values() if case.get("converter"))
    config = json.loads(json.dumps(recorded["config"]))
    table = config.get("rope_parameters") or {}
    inner = table.get("full_attention", table)
    kept = {key: inner[key] for key in ("rope_theta", "partial_rotary_factor") if key in inner}
    if "full_attention" in table:
        table["full_attention"] = {**kept, **scaling}
    else:
        config["rope_parameters"] = {**kept, **scaling}
    config.pop("rope_scaling", None)
    return checkpoint({**recorded, "config": config}, root)


def field(path: Path, key: str) -> Any:
    found = gguf.GGUFReader(path).fields.get(key)
    return found.contents() if found else None


@pytest.mark.parametrize(("more", "factor"), FACTORS)
def test_a_factor_of_yarn_is_a_key_of_gguf_and_comes_back(tmp_path: Path, more: dict[str, Any], factor: float) -> None:
    source = save(tmp_path / "hf", Decoder().config(rope_scaling={**YARN, **more}), Decoder().tensors())
    ckconv.convert(source, tmp_path / "m.gguf")
    ckconv.convert(tmp_path / "m.gguf", tmp_path / "back", to="safetensors")

    assert field(tmp_path / "m.gguf", "llama.rope.scaling.attn_factor") == pytest.approx(factor / GROWTH)
    said = json.loads((tmp_path / "back" / "config.json").read_text())["rope_scaling"]
    assert said["attention_factor"] == pytest.approx(factor, rel=1e-7)
    assert "mscale" not in said


@pytest.mark.parametrize("more", [{"attention_factor": GROWTH}, {"mscale": 0, "mscale_all_dim": 0}])
def test_the_factor_that_yarn_computes_anyway_is_no_key(more: dict[str, float], tmp_path: Path) -> None:
    config = Decoder().config(rope_scaling={**YARN, **more})
    ckconv.convert(save(tmp_path / "hf", config, Decoder().tensors()), tmp_path / "m.gguf")

    assert field(tmp_path / "m.gguf", "llama.rope.scaling.attn_factor") is None


#: Scalings by which no angle changes (factor 1), whatever else they say.
BY_ONE = [
    {"rope_type": "linear"},
    {"rope_type": "linear", "attention_factor": 0.5},
    {"rope_type": "yarn", "original_max_position_embeddings": 32},
    {"rope_type": "yarn", "mscale": 0.7, "mscale_all_dim": 0.5},
    {"rope_type": "yarn", "attention_factor": 1.0},
    {"rope_type": "yarn", "beta_fast": 16.0, "beta_slow": 2.0},
    {
        "rope_type": "llama3",
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    {"rope_type": "dynamic"},
]


@pytest.mark.parametrize("scaling", BY_ONE, ids=lambda scaling: "-".join(map(str, scaling.values())))
def test_a_scaling_by_one_goes_to_every_format(tmp_path: Path, scaling: dict[str, Any]) -> None:
    source = save(tmp_path / "hf", Decoder().config(rope_scaling={"factor": 1.0, **scaling}), Decoder().tensors())
    ckconv.convert(source, tmp_path / "m.gguf")
    ckconv.convert(source, tmp_path / "bump", to="bump")
    ckconv.convert(source, tmp_path / "mlx", to="mlx")
    ckconv.convert(tmp_path / "mlx", tmp_path / "of-mlx.gguf")
    ckconv.convert(tmp_path / "m.gguf", tmp_path / "back", to="safetensors")

    said = json.loads((tmp_path / "back" / "config.json").read_text())
    assert said.get("rope_scaling") is None
    assert said["rope_parameters"]["rope_type"] == "default"


@pytest.mark.product("values")
@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3"])
@pytest.mark.parametrize(
    ("family", "to"),
    [
        *(("gemma2", "mlx"), ("qwen3moe", "mlx"), ("dbrx", "mlx"), ("falcon_h1", "mlx"), ("exaone4", "mlx")),
        *(("deepseek_v2", "mlx"), ("deepseek_v2", "gguf"), ("eurobert", "gguf"), ("youtu", "gguf")),
    ],
)
def test_a_scaling_by_one_is_none_where_the_engine_knows_no_such_type(
    family: str, to: str, kind: str, tmp_path: Path
) -> None:
    numbers = {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {}
    said = {"rope_type": kind, "factor": 1.0, "original_max_position_embeddings": 32, **numbers}
    made = []
    for name, scaling in (("scaled", said), ("plain", {"rope_type": "default"})):
        source = scaled(family, tmp_path / name, scaling)
        ckconv.convert(source, tmp_path / f"{name}.out", to=to)
        made.append(ckconv.open_model(tmp_path / f"{name}.out").config)
    assert made[0] is not None
    assert made[0] == made[1]


@pytest.mark.parametrize("to", ["mlx", "gguf"])
def test_yarn_of_no_factor_and_one_context_is_none(to: str, tmp_path: Path) -> None:
    """transformers divides the context by the original one where a factor is null."""
    said = {"rope_type": "yarn", "factor": None}
    assert ckconv.convert(scaled("exaone4", tmp_path / "hf", said), tmp_path / "out", to=to).verified


def test_mlx_lm_is_told_that_nothing_is_scaled_where_its_class_wants_to_know(tmp_path: Path) -> None:
    source = scaled("exaone4", tmp_path / "hf", {})
    document = json.loads((source / "config.json").read_text())
    document |= {"rope_theta": document.pop("rope_parameters")["rope_theta"], "rope_scaling": {"type": "default"}}
    (source / "config.json").write_text(json.dumps(document))
    ckconv.convert(source, tmp_path / "mlx", to="mlx")

    assert json.loads((tmp_path / "mlx" / "config.json").read_text())["rope_scaling"] is None


@pytest.mark.parametrize(
    ("family", "kind"), [("internlm2", "dynamic"), ("internlm2", "linear"), ("deepseek", "linear")]
)
@pytest.mark.parametrize("table", ["rope_parameters", "rope_scaling"])
def test_classes_of_mlx_lm_that_know_the_older_word_are_told_the_type(
    mlx_lm: consumers.Consumer, tmp_path: Path, family: str, kind: str, table: str
) -> None:
    source = scaled(family, tmp_path / "hf", {"rope_type": kind, "factor": 4.0})
    document = json.loads((source / "config.json").read_text())
    document[table] = document.pop("rope_parameters")
    (source / "config.json").write_text(json.dumps(document))
    ckconv.convert(source, tmp_path / "mlx", to="mlx")

    assert json.loads((tmp_path / "mlx" / "config.json").read_text())["rope_scaling"]["type"] == kind
    assert np.isfinite(mlx_lm.logits(tmp_path / "mlx", tuple(range(40)))).all()


def test_a_class_of_mlx_lm_that_is_not_told_the_context_has_no_scaling_that_follows_from_it(tmp_path: Path) -> None:
    source = scaled("gpt_oss", tmp_path / "hf", {"rope_type": "dynamic", "factor": 4.0})
    with pytest.raises(UnsupportedError, match=r"rope_type dynamic .* which mlx-lm's gpt_oss does not do"):
        ckconv.convert(source, tmp_path / "mlx", to="mlx")


@pytest.mark.parametrize("family", ["qwen2", "cohere", "falcon_h1", "minimax_m2", "granite_switch"])
def test_llama3_by_one_is_no_tensor_where_llama_cpp_has_none(
    llama_cpp: consumers.Consumer, tmp_path: Path, family: str
) -> None:
    numbers = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    source = scaled(family, tmp_path / "hf", {"rope_type": "llama3", "factor": 1.0, **numbers})
    plain = scaled(family, tmp_path / "plain", {"rope_type": "default"})

    made = []
    for place in (source, plain):
        ckconv.convert(place, place.with_suffix(".gguf"), options=ckconv.Options(dtype="f32"))
        made.append(llama_cpp.logits(place.with_suffix(".gguf"), tuple(range(40))))
    assert np.array_equal(*made)


def test_llama3_of_a_granite_switch_is_refused(tmp_path: Path) -> None:
    """``load_arch_tensors`` of granite-switch.cpp makes no ``rope_freqs``: llama.cpp loads no such file."""
    numbers = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    source = scaled("granite_switch", tmp_path / "hf", {"rope_type": "llama3", "factor": 4.0, **numbers})
    with pytest.raises(UnsupportedError, match=r"which llama\.cpp does not do for graniteswitch"):
        ckconv.convert(source, tmp_path / "m.gguf")


def test_a_factor_of_one_does_not_hide_what_weighs_attention(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 1.0, "attention_factor": 0.9}
    source = save(tmp_path / "hf", Decoder().config(rope_scaling=scaling), Decoder().tensors())
    ckconv.convert(source, tmp_path / "m.gguf")

    assert field(tmp_path / "m.gguf", "llama.rope.scaling.attn_factor") == pytest.approx(0.9)
    with pytest.raises(UnsupportedError, match="RoPE is scaled"):
        ckconv.convert(source, tmp_path / "bump", to="bump")


@pytest.mark.live
@pytest.mark.product("values")
@pytest.mark.parametrize("family", ["llama", "phi", "nomic_bert", "olmo3", "cohere"])
@pytest.mark.parametrize("more", [{"attention_factor": 0.9}, {"mscale": 0.8, "mscale_all_dim": 0.5}])
def test_llama_cpp_computes_with_the_factor_what_transformers_does(
    llama_cpp: consumers.Consumer,
    tmp_path: Path,
    family: str,
    more: dict[str, Any],
) -> None:
    pytest.importorskip("transformers")
    source = scaled(family, tmp_path / "hf", {**YARN, **more})
    ckconv.convert(source, tmp_path / "m.gguf", options=ckconv.Options(dtype="f32"))

    prompt = tuple((7 * i * i + 3 * i + 5) % 384 for i in range(48))
    with consumers.transformers() as transformers:
        wanted = transformers.logits(source, prompt)
    made = llama_cpp.logits(tmp_path / "m.gguf", prompt)
    assert np.abs(wanted - made[:, : wanted.shape[1]]).max() < 3e-3 * max(1.0, float(wanted.std()))  # a table of GELU


#: Key of a latent family's GGUF -> mscale and mscale_all_dim with which transformers computes what llama.cpp does.
LATENT = [
    ("deepseek_v3", 0.1, 1.0, 1.0),
    ("deepseek_v3", 0.0707, 0.707, 0.707),
    ("deepseek_v3", 0.0, 1 + GROWTH, 1.0),
    ("deepseek_v3", None, 1 + GROWTH, 1.0),
    ("deepseek_v2", None, 1 + GROWTH, 1.0),
    ("deepseek_v32", 0.1, 1.0, 1.0),
    ("deepseek_v32", 0.0707, (GROWTH**2 / (1 + 0.707 * (GROWTH - 1)) - 1) / (GROWTH - 1), 1.0),
    ("deepseek_v32", None, 1 + GROWTH, 1.0),
    ("deepseek_v32", 0.5, (GROWTH**2 / (1 + 5 * (GROWTH - 1)) - 1) / (GROWTH - 1), 1.0),  # below 0
    ("glm_moe_dsa", None, 1 + GROWTH, 1.0),
]


def close_of(family: str) -> float:
    """How near logits are; llama.cpp has another epsilon for norms of low rank, as a note says of GLM 5."""
    return 3e-4 if family == "glm_moe_dsa" else 1e-4


def latent(family: str, number: float | None, folder: Path) -> Path:
    """A GGUF whose YaRN has this number, and betas that llama.cpp does not read there."""
    case = next(family_cases.cases(family))
    source = family_cases.checkpoint(case.recorded, folder / "hf", case.tokenizer)
    made = ckconv.convert(source, folder / "plain.gguf", options=ckconv.Options(dtype="f32")).plan
    prefix = f"{field(folder / 'plain.gguf', 'general.architecture')}.rope.scaling"
    assert not made.refusals
    keys: dict[str, Any] = {
        f"{prefix}.type": "yarn", f"{prefix}.factor": 4.0, f"{prefix}.original_context_length": 16,
        f"{prefix}.yarn_beta_fast": 16.0, f"{prefix}.yarn_beta_slow": 2.0,
    }  # fmt: skip
    keys |= {} if number is None else {f"{prefix}.yarn_log_multiplier": number}
    return gguf_copy(folder / "plain.gguf", folder / "m.gguf", keys=keys)


@pytest.mark.parametrize(("family", "number", "one", "both"), LATENT)
def test_the_one_number_of_latent_attention_comes_back_as_two(
    family: str, number: float | None, one: float, both: float, tmp_path: Path
) -> None:
    """Without it llama.cpp weighs scores as by 1 and turns by more; what was written differed by 340 %."""
    ckconv.convert(latent(family, number, tmp_path), tmp_path / "back", to="safetensors")
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    said = config.get("rope_parameters") or config["rope_scaling"]
    assert (said["mscale"], said["mscale_all_dim"]) == pytest.approx((one, both), rel=1e-6)
    assert said.keys().isdisjoint({"beta_fast", "beta_slow", "attention_factor"})


def assert_near(wanted: np.ndarray, made: np.ndarray, family: str) -> None:
    """Logits of latent attention are as near as two engines come to each other."""
    allowed = (3e-4 if family == "glm_moe_dsa" else 1e-4) * max(1.0, float(wanted.std()))
    assert np.abs(wanted - made[:, : wanted.shape[1]]).max() < allowed


@pytest.mark.live
@pytest.mark.parametrize(("family", "number"), [row[:2] for row in LATENT])
def test_llama_cpp_and_transformers_compute_the_same_of_latent_attention(
    llama_cpp: consumers.Consumer, family: str, number: float | None, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    source = latent(family, number, tmp_path)
    ckconv.convert(source, tmp_path / "back", to="safetensors")
    prompt = tuple((7 * i * i + 3 * i + 5) % 90 for i in range(24))
    with consumers.transformers() as transformers:
        wanted = transformers.logits(tmp_path / "back", prompt)
    made = llama_cpp.logits(source, prompt)
    assert_near(wanted, made, family)


@pytest.mark.live
@pytest.mark.parametrize(("family", "number"), [row[:2] for row in LATENT])
def test_llama_cpp_and_mlx_lm_compute_the_same_of_latent_attention(
    llama_cpp: consumers.Consumer, mlx_lm: consumers.Consumer, family: str, number: float | None, tmp_path: Path
) -> None:
    source = latent(family, number, tmp_path)
    ckconv.convert(source, tmp_path / "mlx", to="mlx")
    prompt = tuple((7 * i * i + 3 * i + 5) % 90 for i in range(24))
    wanted, made = mlx_lm.logits(tmp_path / "mlx", prompt), llama_cpp.logits(source, prompt)
    assert_near(wanted, made, family)


#: What llama.cpp's converter writes of these two numbers is computed otherwise.
REFUSED = [("deepseek_v32", 0.0707), ("deepseek_v32", 0.5)]


@pytest.mark.parametrize(("family", "number"), [row[:2] for row in LATENT])
def test_the_two_numbers_go_back_to_the_gguf_that_they_came_out_of(
    family: str, number: float | None, tmp_path: Path
) -> None:
    source = latent(family, number, tmp_path)
    ckconv.convert(source, tmp_path / "back", to="safetensors")
    if (family, number) in REFUSED:
        with pytest.raises(UnsupportedError, match="deepseek32 knows YaRN with 1 for mscale and mscale_all_dim only"):
            ckconv.convert(tmp_path / "back", tmp_path / "again.gguf")
        return
    ckconv.convert(tmp_path / "back", tmp_path / "again.gguf", options=ckconv.Options(dtype="f32"))
    key = f"{field(source, 'general.architecture')}.rope.scaling.yarn_log_multiplier"
    assert field(tmp_path / "again.gguf", key) == (pytest.approx(number) if number else None)


@pytest.mark.live
@pytest.mark.parametrize(("family", "number"), [row[:2] for row in LATENT if row[:2] not in REFUSED])
def test_what_goes_back_is_computed_as_before(
    llama_cpp: consumers.Consumer, family: str, number: float | None, tmp_path: Path
) -> None:
    source = latent(family, number, tmp_path)
    ckconv.convert(source, tmp_path / "back", to="safetensors")
    ckconv.convert(tmp_path / "back", tmp_path / "again.gguf", options=ckconv.Options(dtype="f32"))
    prompt = tuple((7 * i * i + 3 * i + 5) % 90 for i in range(24))
    before, after = (llama_cpp.logits(path, prompt) for path in (source, tmp_path / "again.gguf"))
    assert np.abs(before - after).max() < 1e-5


#: Families whose class is code of a repository, which scales nothing (``[engines]``).
UNSCALED = ["arctic", "qwen", "plamo", "plamo2", "plamo3", "llada"]


@pytest.mark.parametrize("kind", ["yarn", "linear"])
@pytest.mark.parametrize("family", UNSCALED)
def test_a_scaling_that_no_class_knows_is_refused(family: str, kind: str, tmp_path: Path) -> None:
    """Of a class that nobody measured, too: the proof ended in an internal error."""
    case = next(family_cases.cases(family))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    ckconv.convert(source, tmp_path / "plain.gguf")
    prefix = f"{field(tmp_path / 'plain.gguf', 'general.architecture')}.rope.scaling"
    keys = {f"{prefix}.type": kind, f"{prefix}.factor": 4.0, f"{prefix}.original_context_length": 16}
    gguf_copy(tmp_path / "plain.gguf", tmp_path / "m.gguf", keys=keys)
    with pytest.raises(UnsupportedError, match=rf"RoPE is scaled .*{kind}.*; transformers' {family} scales nothing"):
        ckconv.convert(tmp_path / "m.gguf", tmp_path / "back", to="safetensors")


def test_another_mscale_of_a_deepseek_v32_is_refused(tmp_path: Path) -> None:
    """llama.cpp takes the exception that it makes for a deepseek2 for no other architecture."""
    case = next(case for case in family_cases.cases("deepseek_v32") if case.name == "yarn")
    table = {**case.recorded["config"]["rope_parameters"], "mscale": 0.707, "mscale_all_dim": 0.707}
    config = {**case.recorded["config"], "rope_parameters": table}
    source = family_cases.checkpoint({**case.recorded, "config": config}, tmp_path / "hf", case.tokenizer)
    with pytest.raises(UnsupportedError, match="deepseek32 knows YaRN with 1 for mscale and mscale_all_dim only"):
        ckconv.convert(source, tmp_path / "m.gguf")


@pytest.mark.parametrize("family", ["gemma3", "modernbert"])
def test_a_factor_that_llama_cpp_would_take_for_layers_that_slide_is_refused_by_its_key(
    tmp_path: Path, family: str
) -> None:
    source = scaled(family, tmp_path / "hf", {**YARN, "attention_factor": 0.9})

    with pytest.raises(UnsupportedError, match=r"with attention_factor = 0\.9, for which llama\.cpp's"):
        ckconv.convert(source, tmp_path / "m.gguf")


def test_a_factor_of_a_scaling_that_has_none_is_refused_by_its_key(tmp_path: Path) -> None:
    ckconv.convert(save(tmp_path / "hf", Decoder().config(), Decoder().tensors()), tmp_path / "m.gguf")
    ckconv.convert(
        tmp_path / "m.gguf",
        tmp_path / "other.gguf",
        options=ckconv.Options(set_meta=(("llama.rope.scaling.attn_factor", "f32:1.5"),)),
    )

    with pytest.raises(UnsupportedError, match=r"llama\.rope\.scaling\.attn_factor = 1\.5"):
        ckconv.convert(tmp_path / "other.gguf", tmp_path / "back", to="safetensors")


@pytest.mark.parametrize("scaling", [YARN, {"rope_type": "linear", "factor": 4.0}])
def test_a_scaling_of_nomic_bert_is_written(tmp_path: Path, scaling: dict[str, Any]) -> None:
    ckconv.convert(scaled("nomic_bert", tmp_path / "hf", scaling), tmp_path / "m.gguf")

    assert field(tmp_path / "m.gguf", "nomic-bert.rope.scaling.type") == scaling["rope_type"]
    assert field(tmp_path / "m.gguf", "nomic-bert.rope.scaling.factor") == 4.0


@pytest.mark.parametrize(("said", "original"), [({}, 4096), ({"original_max_position_embeddings": 32}, 32)])
def test_phi3_takes_the_context_of_its_class_whatever_its_table_says(
    tmp_path: Path, said: dict[str, int], original: int
) -> None:
    """``standardize_rope_params`` puts the class's number, 4096 where none is said, over that of rope_parameters."""
    recorded = recording("phi3")["longrope_with_one_set"]
    config = {key: value for key, value in recorded["config"].items() if key != "original_max_position_embeddings"}
    source = checkpoint({**recorded, "config": config | said}, tmp_path / "hf")
    for place in ("m.gguf", "mlx/"):
        ckconv.convert(source, f"{tmp_path}/{place}", to="mlx" if place == "mlx/" else "gguf")

    assert field(tmp_path / "m.gguf", "phi3.rope.scaling.original_context_length") == original
    document = json.loads((tmp_path / "mlx/config.json").read_text())
    assert document["original_max_position_embeddings"] == original


@pytest.mark.live
@pytest.mark.parametrize("more", [{"attention_factor": 0.9}, {"attention_factor": 3.5}])
def test_mlx_lm_gets_a_factor_by_the_two_numbers_that_it_makes_one_of(
    mlx_lm: consumers.Consumer, tmp_path: Path, more: dict[str, Any]
) -> None:
    pytest.importorskip("transformers")
    source = scaled("llama", tmp_path / "hf", {**YARN, **more})
    ckconv.convert(source, tmp_path / "mlx", to="mlx")
    ckconv.convert(source, tmp_path / "m.gguf")
    ckconv.convert(tmp_path / "m.gguf", tmp_path / "again", to="mlx")

    prompt = tuple((7 * i * i + 3 * i + 5) % 384 for i in range(48))
    with consumers.transformers() as transformers:
        wanted = transformers.logits(source, prompt)
    for made in ("mlx", "again"):
        assert np.abs(wanted - mlx_lm.logits(tmp_path / made, prompt)).max() < 1e-3


def test_a_factor_that_mlx_lm_does_not_compute_is_refused_with_both_numbers(tmp_path: Path) -> None:
    config = Decoder().config(rope_scaling={**YARN, "attention_factor": 0.9})
    source = save(tmp_path / "mlx", config, Decoder().tensors(), metadata={"format": "mlx"})

    with pytest.raises(UnsupportedError, match=r"attention_factor = 0\.9 beside 1\.13863, which mlx-lm takes"):
        ckconv.convert(source, tmp_path / "m.gguf")


@pytest.mark.parametrize("weight", [1.0458511789951483, 0.6502940611500007, 1.1109035])
def test_a_factor_of_more_digits_than_float32_has_is_written(tmp_path: Path, weight: float) -> None:
    config = Decoder().config(rope_scaling={**YARN, "attention_factor": weight})
    ckconv.convert(save(tmp_path / "hf", config, Decoder().tensors()), tmp_path / "m.gguf")

    assert field(tmp_path / "m.gguf", "llama.rope.scaling.attn_factor") == pytest.approx(weight / GROWTH, rel=1e-7)


@pytest.mark.product("values")
@pytest.mark.parametrize("more", [{"attention_factor": 0.9}, {"mscale_all_dim": 1.0}, {"attention_factor": 1.0}])
@pytest.mark.parametrize("kept", [{}, {"mscale": 0.5, "mscale_all_dim": 0.7}], ids=["alone", "both"])
def test_mlx_lm_multiplies_by_any_factor_of_yarn_beside_one_of_scores(
    more: dict[str, Any], kept: dict[str, Any], tmp_path: Path
) -> None:
    """``YarnRoPE`` of mlx-lm's rope_utils.py, of an ``mscale`` that may be 0 or less."""
    said = {**YARN, **kept, **more}
    ckconv.convert(scaled("deepseek_v3", tmp_path / "hf", said), tmp_path / "mlx", to="mlx")
    ckconv.convert(tmp_path / "mlx", tmp_path / "back", to="safetensors")

    table = json.loads((tmp_path / "mlx" / "config.json").read_text())["rope_scaling"]
    one, whole = ((GROWTH - 1) * table.get(*pair) + 1 for pair in (("mscale", 1), ("mscale_all_dim", 0)))
    pair = (said.get("mscale"), said.get("mscale_all_dim"))
    both = ((GROWTH - 1) * pair[0] + 1) / ((GROWTH - 1) * pair[1] + 1) if all(pair) else GROWTH
    assert one / whole == pytest.approx(said.get("attention_factor", both))
    before, after = (ckconv.open_model(tmp_path / name).config for name in ("hf", "back"))
    assert before is not None
    assert after is not None
    assert config_differences(before, after, same_words=True) == {}
