"""Whether the head is the embedding: by its bytes, and by nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from family_cases import checkpoint as family_checkpoint, recording
from gguf import GGMLQuantizationType as Q
from models import Model

import ckconv
from ckconv.errors import UnsupportedError
from ckconv.formats.detect import open_index
from ckconv.io.files import Files, head_is_embedding

SMALL = Model(layers=1, hidden=32, ffn=32, vocab=40)


@pytest.mark.parametrize(
    ("model", "tied"),
    [
        (SMALL, False),
        (replace(SMALL, head="copy"), True),
        (replace(SMALL, head="own"), False),
        (replace(SMALL, head="copy", types={"token_embd.weight": Q.Q8_0, "output.weight": Q.Q8_0}), True),
        (replace(SMALL, head="own", types={"output.weight": Q.F16}), False),
    ],
    ids=["no head", "copy", "own", "copy of blocks", "own of another type"],
)
def test_head(model: Model, tied: bool, tmp_path: Path) -> None:
    assert head_is_embedding(open_index(model.write(tmp_path / "m.gguf"))) is tied


@pytest.mark.parametrize("byte", [0, 1, 2500, 5119])
def test_one_bit_makes_it_a_head_of_its_own(byte: int, tmp_path: Path) -> None:
    path = replace(SMALL, head="copy").write(tmp_path / "m.gguf")
    tensor = open_index(path).tensors["output.weight"]
    data = bytearray(path.read_bytes())
    data[tensor.extents[0].offset + byte] ^= 1
    path.write_bytes(data)
    with Files() as files:
        assert not head_is_embedding(open_index(path), files)


@pytest.mark.parametrize("target", ["gguf", "mlx"])
def test_a_head_that_a_family_unties_by_a_key_of_its_own_has_to_be_there(target: str, tmp_path: Path) -> None:
    source = family_checkpoint(recording("openelm")["widths"], tmp_path / "source")
    path = source / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"share_input_output_layers": False}))

    with pytest.raises(UnsupportedError, match=r"\(share_input_output_layers\)") as info:
        ckconv.convert(source, f"{tmp_path}/out/", to=target)

    assert info.value.hint == '"share_input_output_layers": true in config.json says that it is'


@pytest.mark.parametrize(
    ("family", "head"),
    [("plamo", "lm_head.weight"), ("longcat_flash", "lm_head.weight"), ("phixtral", "lm_head.linear.weight"),
     ("talkie", "lm_head")],
)  # fmt: skip
def test_a_head_that_was_lost_is_not_made_of_the_embedding(family: str, head: str, tmp_path: Path) -> None:
    """mlx-lm's class has a head whether the model is tied or not, and gets a copy of the embedding where it is."""
    recorded = recording(family)["plain"]
    tensors = {name: row for name, row in recorded["tensors"].items() if name != head}
    source = family_checkpoint({**recorded, "tensors": tensors}, tmp_path / "source")

    with pytest.raises(UnsupportedError, match="there is no output head"):
        ckconv.convert(source, f"{tmp_path}/out/", to="mlx")


@pytest.mark.parametrize(
    "lost", ["mlp.down_proj", "mlp.gate", "mlp.shared_experts.up_proj", "self_attn.q_a_proj", "self_attn.q_a_layernorm"]
)
def test_matrices_that_layers_of_deepseek_have_are_missed(lost: str, tmp_path: Path) -> None:
    recorded = recording("deepseek_v2")["plain"]
    name = f"model.layers.{int(lost != 'mlp.down_proj')}.{lost}.weight"
    assert name in recorded["tensors"]
    tensors = {key: row for key, row in recorded["tensors"].items() if key != name}
    source = family_checkpoint({**recorded, "tensors": tensors}, tmp_path / "source")

    with pytest.raises(UnsupportedError, match="no tensor for layers"):
        ckconv.convert(source, tmp_path / "m.gguf")
