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
from family_directions import other_tensors

import ckconv
from ckconv import Options
from ckconv.errors import CkconvError

CASES = {str(case): case for case in family_cases.cases("glm4")}

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


def checkpoint(name: str, folder: Path) -> Path:
    return family_cases.checkpoint(CASES[name].recorded, folder)


def bump_of(source: Path, folder: Path, age: str = "july", **options: Any) -> Path:
    asked = Options(bump_version=5, source_record=False, engine=age, **options)
    ckconv.convert(source, f"{folder}/bump/", to="bump", options=asked)
    return folder / "bump" / "weights.bump"


def manifest(path: Path) -> Any:
    return json.loads((path.parent / "weights_manifest.json").read_text())


def off(name: str, rows: np.ndarray) -> float:
    """The largest difference from transformers' logits."""
    return float(np.abs(family_cases.kept(CASES[name], rows) - np.array(CASES[name].recorded["logits"])).max())


def through(format: str, source: Path, folder: Path) -> Path:
    if format != "hf":
        ckconv.convert(source, folder / f"between.{format}", to=format)
        return folder / f"between.{format}"
    return source


@pytest.mark.parametrize("format", ["hf", "gguf", "mlx"])
def test_the_engine_computes_what_transformers_does(format: str, tmp_path: Path) -> None:
    source = through(format, checkpoint("glm4-tied", tmp_path / "source"), tmp_path)
    made = bump_of(source, tmp_path)
    assert off("glm4-tied", bump_engine.logits(made, CASES["glm4-tied"].tokens, "july")) < 2e-5
    assert manifest(made)["config"]["ckconv_engines"] == ["july"]


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


@pytest.mark.parametrize("format", ["hf", "mlx", "gguf"])
def test_the_way_back(format: str, tmp_path: Path) -> None:
    source = checkpoint("glm4-tied", tmp_path / "source")
    made = bump_of(source, tmp_path)
    back = tmp_path / f"back.{format}"
    ckconv.convert(made, back, to={"hf": "safetensors"}.get(format, format))
    if format != "hf":
        ckconv.convert(back, tmp_path / "again", to="safetensors")
        back = tmp_path / "again"
    assert other_tensors(back, source) == ""
    config = json.loads((back / "config.json").read_text())
    assert (config["partial_rotary_factor"], config["rope_theta"]) == (0.25, 5000.0)


def test_biases_beside_floats_are_refused_without_a_hint_at_an_age_that_has_no_template(tmp_path: Path) -> None:
    source = checkpoint("glm4-biases", tmp_path / "source")
    with pytest.raises(CkconvError, match="adds a bias beside a float matrix twice") as caught:
        bump_of(source, tmp_path)
    assert (caught.value.exit_code, caught.value.hint) == (4, None)


def test_april_has_no_template_for_glm4(tmp_path: Path) -> None:
    with pytest.raises(CkconvError, match="the engine of April 2026 has no template for glm4") as caught:
        bump_of(checkpoint("glm4-tied", tmp_path / "source"), tmp_path, "april")
    assert (caught.value.exit_code, caught.value.hint) == (4, "--engine july computes it")
