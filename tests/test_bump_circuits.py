"""Families with a template of the engine's own: entries, configuration, logits, and the way back.

Entries are expected from the GGUF, which the gguf package reads; logits are :mod:`bump_engine`'s against recorded ones
of transformers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bump_engine
import family_cases
import gguf
import numpy as np
import pytest
from family_directions import differing, other_tensors, read_gguf

import ckconv
from ckconv import Options
from ckconv.errors import CkconvError

CASES = {str(case): case for case in family_cases.cases("glm4", "qwen3_5", "qwen3_vl")}

#: Model -> entries behind the embedding and the head, of a layer, and behind the layers: name -> tensors of the GGUF.
GLM4 = {
    "ln1_gamma": "attn_norm.weight",
    "ln2_gamma": "ffn_norm.weight",
    "post_attention_norm": "post_attention_norm.weight",
    "post_ffn_norm": "post_ffw_norm.weight",
    "wq": "attn_q.weight",
    "bq": 64,
    "wk": "attn_k.weight",
    "bk": 32,
    "wv": "attn_v.weight",
    "bv": 32,
    "wo": "attn_output.weight",
    "bo": 24,
    "w1": "ffn_up.weight",
    "b1": 80,
    "w2": "ffn_down.weight",
    "b2": 24,
}

#: Entry -> the tensors of the GGUF in it; none for a bias, which is zeros.
QWEN3VL = {
    "ln1_gamma": "attn_norm",
    "ln2_gamma": "ffn_norm",
    "wq": "attn_q",
    "bq": "",
    "q_norm": "attn_q_norm",
    "wk": "attn_k",
    "bk": "",
    "k_norm": "attn_k_norm",
    "wv": "attn_v",
    "bv": "",
    "wo": "attn_output",
    "bo": "",
    "w1": "ffn_gate ffn_up",
    "b1": "",
    "w2": "ffn_down",
    "b2": "",
}


def checkpoint(name: str, folder: Path) -> Path:
    return family_cases.checkpoint(CASES[name].recorded, folder)


def dropped(source: Path) -> dict[str, Any]:
    """The tower, of a checkpoint that has one."""
    config = source / "config.json"
    pictures = config.exists() and "vision_config" in config.read_text()
    return {"drop": ("model.visual.*",)} if pictures else {}


def bump_of(source: Path, folder: Path, release: str = "july", **options: Any) -> Path:
    options = dropped(source) | options
    asked = Options(**{"bump_version": 5, "source_record": False, "engine": release, **options})
    ckconv.convert(source, f"{folder}/bump/", to="bump", options=asked)
    return folder / "bump" / "weights.bump"


def manifest(path: Path) -> Any:
    return json.loads((path.parent / "weights_manifest.json").read_text())


def off(name: str, rows: np.ndarray) -> float:
    """The largest difference from transformers' logits."""
    return float(np.abs(family_cases.kept(CASES[name], rows) - np.array(CASES[name].recorded["logits"])).max())


def through(format: str, source: Path, folder: Path) -> Path:
    if format != "hf":
        ckconv.convert(source, folder / f"between.{format}", to=format, options=Options(**dropped(source)))
        return folder / f"between.{format}"
    return source


RIGHT = ["glm4-tied", "qwen3_5-tied", "qwen3_5-listed_kinds"]
HERE = [(name, format) for name in RIGHT for format in ("hf", "gguf", "mlx") if (name, format) != (RIGHT[2], "mlx")]
#: The text part of a checkpoint, which comes back as GGUF and MLX.
OF_PICTURES = [(f"qwen3_vl-{case}", format) for case in ("tied", "untied") for format in ("hf", "gguf", "mlx")]


@pytest.mark.parametrize(("name", "format"), HERE + OF_PICTURES)
def test_the_engine_computes_what_transformers_does(name: str, format: str, tmp_path: Path) -> None:
    source = through(format, checkpoint(name, tmp_path / "source"), tmp_path)
    made = bump_of(source, tmp_path)
    assert off(name, bump_engine.logits(made, CASES[name].tokens, "july")) < 1e-4
    assert manifest(made)["config"]["ckconv_engines"] == ["july"]
    ckconv.verify(made, source, options=Options(**dropped(source)))


@pytest.mark.parametrize("format", ["hf", "gguf", "mlx", "text"])
def test_qwen3vl_has_a_layer_for_pictures_whatever_the_source_says_of_them(format: str, tmp_path: Path) -> None:
    """MLX's document, and one of the text part alone, know none; the library of a model without does not load."""
    source = checkpoint("qwen3_vl-untied", tmp_path / "source")
    if format == "text":
        path = source / "config.json"
        document = json.loads(path.read_text())
        del document["vision_config"]
        path.write_text(json.dumps(document))
    made = bump_of(through("hf" if format == "text" else format, source, tmp_path), tmp_path)
    assert manifest(made)["config"]["num_deepstack_layers"] == 1
    assert json.loads(made.with_name("config.json").read_text())["num_deepstack_layers"] == 1


def test_entries_and_configuration_of_glm4(tmp_path: Path) -> None:
    source = through("gguf", checkpoint("glm4-tied", tmp_path / "source"), tmp_path)
    made = bump_of(source, tmp_path)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(source).tensors}
    said, data = manifest(made), made.read_bytes()
    wanted = {"token_emb": "token_embd.weight"}
    wanted |= {f"layer.{n}.{name}": (n, of) for n in range(2) for name, of in GLM4.items()}
    wanted |= {"final_ln_weight": "output_norm.weight", "final_ln_bias": 24}
    entries = [entry for entry in said["entries"] if not entry["name"].startswith("vocab_")]
    assert [entry["name"] for entry in entries] == list(wanted)
    for entry, of in zip(entries, wanted.values(), strict=True):
        name = f"blk.{of[0]}.{of[1]}" if isinstance(of, tuple) else of
        zeros = of[1] if isinstance(of, tuple) else of
        raw = bytes(4 * zeros) if isinstance(zeros, int) else tensors[name].data.tobytes()
        word = "bf16" if not isinstance(zeros, int) and len(tensors[name].shape) > 1 else "fp32"
        at = entry["file_offset"]
        assert (entry["dtype"], data[at : at + entry["size"]]) == (word, raw), entry["name"]
    assert {key: said["config"][key] for key in ("model", "rotary_dim", "head_dim", "rope_layout", "rope_theta")} == {
        "model": "glm4",
        "rotary_dim": 4,
        "head_dim": 16,
        "rope_layout": "pairwise",
        "rope_theta": 5000.0,
    }
    contract = said["template"]["required_contracts"]["decoder.attention"]
    assert {phase["requires"]["numerics.attention_reduction"] for phase in contract["phases"].values()} == {
        "fp32_online"
    }


@pytest.mark.parametrize(("name", "format"), HERE)
def test_the_way_back(name: str, format: str, tmp_path: Path) -> None:
    source = checkpoint(name, tmp_path / "source")
    made = bump_of(source, tmp_path)
    back = tmp_path / f"back.{format}"
    ckconv.convert(made, back, to={"hf": "safetensors"}.get(format, format))
    if format != "hf":
        ckconv.convert(back, tmp_path / "again", to="safetensors")
        back = tmp_path / "again"
    assert other_tensors(back, source) == ""
    wanted, found = (json.loads((folder / "config.json").read_text()) for folder in (source, back))
    keys = {"rope_theta", "partial_rotary_factor", "mrope_section"} & wanted["rope_parameters"].keys()
    assert {key: {**found, **found["rope_parameters"]}[key] for key in keys} == {
        key: wanted["rope_parameters"][key] for key in keys
    }
    own = [key for key in wanted if key.startswith(("linear_", "layer_types", "num_", "head_dim"))]
    assert [found[key] for key in own] == [wanted[key] for key in own]


@pytest.mark.parametrize("name", ["qwen3_vl-tied", "qwen3_vl-untied"])
def test_the_text_part_comes_back_as_gguf_and_mlx(name: str, tmp_path: Path) -> None:
    source = checkpoint(name, tmp_path / "source")
    made, theirs = bump_of(source, tmp_path), through("mlx", source, tmp_path)
    ckconv.convert(made, tmp_path / "back.gguf")
    ckconv.convert(made, f"{tmp_path}/mlx/", to="mlx")
    wanted, found = CASES[name].recorded["converter"], read_gguf(tmp_path / "back.gguf")
    assert differing(wanted["tensors"], found["tensors"]) == ""
    own = {key: value for key, value in wanted["keys"].items() if not key.endswith("_length")}
    assert differing(own, {key: found["keys"][key] for key in found["keys"].keys() & own.keys()}) == ""
    assert other_tensors(tmp_path / "mlx", theirs) == ""
    with pytest.raises(CkconvError, match="its class is of text and pictures") as caught:
        ckconv.convert(made, f"{tmp_path}/hf/", to="safetensors")
    assert caught.value.exit_code == 4


def test_entries_and_configuration_of_qwen3vl(tmp_path: Path) -> None:
    source = through("gguf", checkpoint("qwen3_vl-untied", tmp_path / "source"), tmp_path)
    made = bump_of(source, tmp_path)
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(source).tensors}
    said, data = manifest(made), made.read_bytes()
    entries = [entry for entry in said["entries"] if not entry["name"].startswith("vocab_")]
    wanted = {"token_emb": "token_embd", "output.weight": "output"}
    for n in range(3):
        wanted |= {f"layer.{n}.{name}": tensor for name, tensor in QWEN3VL.items()}
    wanted |= {"final_ln_weight": "output_norm", "final_ln_bias": ""}
    assert [entry["name"] for entry in entries] == list(wanted)
    for entry, names in zip(entries, wanted.values(), strict=True):
        layer = f"blk.{entry['name'].split('.')[1]}." if entry["name"].startswith("layer.") else ""
        raw = b"".join(tensors[f"{layer}{name}.weight"].tobytes() for name in names.split())
        at, size = entry["file_offset"], entry["size"]
        assert (entry["dtype"], data[at : at + size]) == ("fp32", raw or bytes(size)), entry["name"]
        assert raw or entry["name"].rpartition(".")[2] in ("bq", "bk", "bv", "bo", "b1", "b2", "final_ln_bias")
    config = {
        "model": "qwen3vl",
        "embed_dim": 24,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 12,
        "rotary_dim": 12,
        "mrope_n_dims": 12,
        "mrope_sections": [2, 2, 2, 0],
        "rope_layout": "multi_section_1d",
        "num_deepstack_layers": 1,
        "ckconv_engines": ["july"],
    }
    assert {key: said["config"][key] for key in config} == config
    assert not [key for key in said["config"] if key.startswith("decoder_") or key == "decode_kv_cache_dtype"]
    assert "template" not in said


@pytest.mark.parametrize(
    ("case", "said", "hint"),
    [
        (
            "qwen3_vl-tied",
            "April 2026 computes qwen3vl wrong: from the second token on",
            "--engine july computes it",
        ),
        ("glm4-tied", "the engine of April 2026 has no template for glm4", "--engine july computes it"),
        # one that refuses the model itself is no way out
        ("qwen3_5-grouped_value_heads", "the engine of April 2026 computes qwen35 wrong", None),
    ],
)
def test_what_april_has_no_right_template_for_is_refused(
    case: str, said: str, hint: str | None, tmp_path: Path
) -> None:
    with pytest.raises(CkconvError, match=said) as caught:
        bump_of(checkpoint(case, tmp_path / "source"), tmp_path, "april")
    assert (caught.value.exit_code, caught.value.hint) == (4, hint)


def test_biases_beside_floats_are_refused_without_a_hint_at_an_release_that_has_no_template(tmp_path: Path) -> None:
    source = checkpoint("glm4-biases", tmp_path / "source")
    with pytest.raises(CkconvError, match="adds a bias beside a float matrix twice") as caught:
        bump_of(source, tmp_path)
    assert (caught.value.exit_code, caught.value.hint) == (4, None)


RECURRENT = {
    "attn_norm": "attn_norm.weight",
    "post_attention_norm": "post_attention_norm.weight",
    "attn_qkv": "attn_qkv.weight",
    "attn_gate": "attn_gate.weight",
    "ssm_alpha": "ssm_alpha.weight",
    "ssm_beta": "ssm_beta.weight",
    "ssm_conv1d": "ssm_conv1d.weight",
    "ssm_dt_bias": "ssm_dt.bias",
    "ssm_a": "ssm_a",
    "ssm_norm": "ssm_norm.weight",
    "ssm_out": "ssm_out.weight",
}
FULL = {
    "attn_norm": "attn_norm.weight",
    "post_attention_norm": "post_attention_norm.weight",
    "attn_q_gate": "attn_q.weight",
    "attn_k": "attn_k.weight",
    "attn_v": "attn_v.weight",
    "attn_output": "attn_output.weight",
    "attn_q_norm": "attn_q_norm.weight",
    "attn_k_norm": "attn_k_norm.weight",
}


#: Nemotron-H: the entries of a layer by its kind.
BLOCKS = {
    "mamba": {
        "block_norm": "attn_norm.weight",
        "mamba_in_proj": "ssm_in.weight",
        "mamba_conv1d": "ssm_conv1d.weight",
        "mamba_conv1d_bias": "ssm_conv1d.bias",
        "mamba_dt_bias": "ssm_dt.bias",
        "mamba_a": "ssm_a",
        "mamba_d": "ssm_d",
        "mamba_norm": "ssm_norm.weight",
        "mamba_out_proj": "ssm_out.weight",
    },
    "mlp": {"block_norm": "attn_norm.weight", "mlp_up": "ffn_up.weight", "mlp_down": "ffn_down.weight"},
    "attention": {
        "block_norm": "attn_norm.weight",
        "attn_q": "attn_q.weight",
        "attn_k": "attn_k.weight",
        "attn_v": "attn_v.weight",
        "attn_o": "attn_output.weight",
    },
}


def test_entries_and_configuration_of_qwen35(tmp_path: Path) -> None:
    """Every entry is the GGUF's tensor, byte for byte; the tokenizer stands behind them."""
    source = through("gguf", checkpoint("qwen3_5-listed_kinds", tmp_path / "source"), tmp_path)
    made = bump_of(source, tmp_path)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(source).tensors}
    said, data = manifest(made), made.read_bytes()
    wanted = {"token_emb": "token_embd.weight", "output.weight": "output.weight"}
    for n, kind in enumerate((FULL, RECURRENT, RECURRENT, FULL)):
        wanted |= {f"layer.{n}.{name}": f"blk.{n}.{tensor}" for name, tensor in kind.items()}
        wanted |= {f"layer.{n}.ffn_{part}": f"blk.{n}.ffn_{part}.weight" for part in ("gate", "up", "down")}
    wanted |= {"final_ln_weight": "output_norm.weight"}
    vocabulary = ["vocab_offsets", "vocab_strings", "vocab_scores", "vocab_types", "vocab_merges"]
    assert [entry["name"] for entry in said["entries"]] == [*wanted, *vocabulary]
    at = said["entries"][0]["file_offset"]
    assert at == 152 + 4 + len(wanted)
    for entry, tensor in zip(said["entries"], wanted.values(), strict=False):
        assert (entry["file_offset"], entry["dtype"]) == (at, "fp32")
        assert data[at : at + entry["size"]] == tensors[tensor].data.tobytes()
        at += entry["size"]
    config = {
        "model": "qwen35",
        "embed_dim": 24,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "rotary_dim": 8,
        "mrope_n_dims": 8,
        "mrope_sections": [2, 1, 1, 0],
        "layer_kinds": ["full_attention", "recurrent", "recurrent", "full_attention"],
        "ssm_conv_kernel": 4,
        "ssm_state_size": 8,
        "ssm_group_count": 2,
        "ssm_time_step_rank": 2,
        "ssm_inner_size": 16,
    }
    assert {key: said["config"][key] for key in config} == config
    assert said["quant_summary"]["layer.1"] == dict.fromkeys([*RECURRENT, "ffn_gate", "ffn_up", "ffn_down"], "fp32")
    pins = said["template"]["required_numerical_contracts"]
    assert pins == {
        f"decoder.recurrent_qkv_projection.{phase}": {"selector": {"config_equals": {"recurrent_qkv_weight": "q5_k"}}}
        for phase in ("prefill", "decode")
    }


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("qwen3_5-grouped_value_heads", {}, "takes heads of keys for those of values"),
        ("qwen3_5-tied", {"release": "april"}, "April 2026 computes qwen35 wrong: only token by token"),
        ("qwen3_5-tied", {"bump_version": 4}, "bump 4 has no place for the layers"),
    ],
)
def test_what_is_refused_of_qwen35(name: str, options: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(CkconvError, match=why) as caught:
        bump_of(checkpoint(name, tmp_path / "source"), tmp_path, **options)
    assert caught.value.exit_code == 4


def test_without_a_manifest_layers_of_several_kinds_are_not_looked_for(tmp_path: Path) -> None:
    made = bump_of(checkpoint("qwen3_5-tied", tmp_path / "source"), tmp_path)
    made.with_name("weights_manifest.json").unlink()
    with pytest.raises(CkconvError, match="layers are of several kinds"):
        ckconv.open_model(made)
