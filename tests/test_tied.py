"""Whether the head is the embedding: by its bytes, and by nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from family_cases import checkpoint as family_checkpoint
from family_cases import recording
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
