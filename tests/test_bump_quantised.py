"""Quantised models of templates of the engine's own: their blocks are the source's, and compute what transformers does.

Entries are expected from the GGUF, which the gguf package wrote; logits are transformers', of the decoded weights.
"""

from __future__ import annotations

import json
from pathlib import Path

import bump_engine
import gguf
import numpy as np
import pytest
from quantised_models import MODELS, PROMPT, recorded
from test_bump_circuits import FULL, GLM4, RECURRENT

import ckconv
from ckconv import Options
from ckconv.errors import CkconvError

PINS = "required_numerical_contracts"


def bump_of(name: str, folder: Path, age: str = "july") -> Path:
    source = MODELS[name].write(folder / "m.gguf")
    asked = Options(bump_version=5, source_record=False, engine=age)
    ckconv.convert(source, f"{folder}/bump/", to="bump", options=asked)
    return folder / "bump" / "weights.bump"


def tensors_of(name: str) -> dict[str, str | int]:
    """Entry -> its tensor of the GGUF, or the length of a bias of zeros."""
    made: dict[str, str | int] = {"token_emb": "token_embd.weight", "output.weight": "output.weight"}
    wide = MODELS[name].wide
    for n, kind in enumerate(MODELS[name].layers):
        if MODELS[name].arch == "glm4":
            biases = {f"b{part}": f"attn_{part}.bias" for part in "qkv"} | {"bo": wide, "b1": 2 * wide, "b2": wide}
            layer = {entry: biases.get(entry, tensor) for entry, tensor in GLM4.items()}
        else:
            layer = dict(FULL if kind == "full_attention" else RECURRENT)
            layer |= {f"ffn_{part}": f"ffn_{part}.weight" for part in ("gate", "up", "down")}
        made |= {f"layer.{n}.{e}": f"blk.{n}.{t}" if isinstance(t, str) else t for e, t in layer.items()}
    last: dict[str, str | int] = {"final_ln_weight": "output_norm.weight"}
    return made | last | ({"final_ln_bias": wide} if MODELS[name].arch == "glm4" else {})


@pytest.mark.parametrize("name", MODELS)
def test_every_entry_is_the_sources_tensor_block_by_block(name: str, tmp_path: Path) -> None:
    made = bump_of(name, tmp_path)
    said, data = json.loads(made.with_name("weights_manifest.json").read_text()), made.read_bytes()
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    wanted = []
    for entry, of in tensors_of(name).items():
        kind = "F32" if isinstance(of, int) else tensors[of].tensor_type.name
        raw = bytes(4 * of) if isinstance(of, int) else tensors[of].data.tobytes()
        wanted.append((entry, kind.lower().replace("f32", "fp32"), raw))
    found = [(e["name"], e["dtype"], data[e["file_offset"] : e["file_offset"] + e["size"]]) for e in said["entries"]]
    assert found == wanted
    assert {word for _, word, _ in found} == {"fp32", *(kind.name.lower() for kind in MODELS[name].types.values())}


@pytest.mark.parametrize("name", MODELS)
def test_the_engine_computes_what_transformers_does_of_the_decoded_weights(name: str, tmp_path: Path) -> None:
    rows, wanted = bump_engine.logits(bump_of(name, tmp_path), PROMPT, "july"), recorded(name)
    assert wanted.std() > 0.1
    assert np.abs(rows - wanted).max() < 1e-4 * wanted.std()


@pytest.mark.parametrize(("name", "pinned"), [("qwen35-q8_0", True), ("qwen35-q4_k", True), ("qwen35-q5_k", False)])
def test_the_kernel_of_q5_k_is_unpinned_where_the_projection_has_another_type(
    name: str, pinned: bool, tmp_path: Path
) -> None:
    said = json.loads(bump_of(name, tmp_path).with_name("weights_manifest.json").read_text())
    assert (PINS in said.get("template", {})) == pinned


@pytest.mark.parametrize("name", MODELS)
def test_the_blocks_come_back(name: str, tmp_path: Path) -> None:
    made = bump_of(name, tmp_path)
    ckconv.convert(made, tmp_path / "back.gguf")
    found, wanted = (
        {tensor.name: (tensor.tensor_type, tensor.data.tobytes()) for tensor in gguf.GGUFReader(path).tensors}
        for path in (tmp_path / "back.gguf", tmp_path / "m.gguf")
    )
    assert found == wanted


def test_april_has_no_template_for_a_quantised_glm4(tmp_path: Path) -> None:
    with pytest.raises(CkconvError, match="the engine of April 2026 has no template for glm4"):
        bump_of("glm4-q8_0", tmp_path, "april")


def test_a_qwen35_without_linear_layers_is_refused(tmp_path: Path) -> None:
    source = MODELS["qwen35-q8_0"]._replace(layers=("full_attention",)).write(tmp_path / "m.gguf")
    with pytest.raises(CkconvError, match="a qwen35 without linear layers") as caught:
        ckconv.convert(source, tmp_path / "m.bump", options=Options(bump_version=5, engine="july"))
    assert (caught.value.code, caught.value.exit_code) == ("plan.refused", 4)
