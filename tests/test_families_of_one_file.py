"""OLMo 2 and Granite are one family file each: converted there and back, held against what other tools wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import consumers
import gguf
import numpy as np
import pytest
from conftest import FIXTURES
from safetensors.numpy import load_file

import ckconv
from ckconv.errors import UnsupportedError

NAMES = ("olmo2", "granite")
#: Limit for logits in float32.
CLOSE = 1e-5


def checkpoint(name: str) -> Path:
    return FIXTURES / "zoo" / name


def stored(path: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Tensors and the architecture's keys of a GGUF, read by the gguf package."""
    reader = gguf.GGUFReader(path)
    keys = {key: field.contents() for key, field in reader.fields.items()}
    architecture = keys["general.architecture"]
    own = {key: value for key, value in keys.items() if key.startswith(f"{architecture}.")}
    return {tensor.name: tensor.data.tobytes() for tensor in reader.tensors}, own


def reference(name: str) -> tuple[tuple[int, ...], np.ndarray]:
    said = json.loads((checkpoint(name) / "ref_logits.json").read_text())
    return tuple(said["prompt_ids"]), np.array(said["last_row"], np.float32)


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_becomes_the_gguf_that_llama_cpp_makes_of_it(name: str, tmp_path: Path) -> None:
    ckconv.convert(checkpoint(name), tmp_path / "m.gguf")

    assert stored(tmp_path / "m.gguf") == stored(FIXTURES / "zoo" / f"{name}.f32.gguf")


@pytest.mark.parametrize("name", NAMES)
def test_llama_cpps_gguf_becomes_the_checkpoint(name: str, tmp_path: Path) -> None:
    ckconv.convert(FIXTURES / "zoo" / f"{name}.f32.gguf", f"{tmp_path}/hf/", to="safetensors")

    wanted, made = load_file(checkpoint(name) / "model.safetensors"), load_file(tmp_path / "hf" / "model.safetensors")
    assert {key: array.tobytes() for key, array in made.items()} == {k: a.tobytes() for k, a in wanted.items()}
    document = json.loads((tmp_path / "hf" / "config.json").read_text())
    own = json.loads((checkpoint(name) / "config.json").read_text())
    computing = own.keys() - {"initializer_range", "transformers_version", "pad_token_id"}
    assert {key: document[key] for key in computing} == {key: own[key] for key in computing}


@pytest.mark.parametrize("name", NAMES)
def test_mlx_and_back_is_the_same_model(name: str, tmp_path: Path) -> None:
    ckconv.convert(checkpoint(name), f"{tmp_path}/mlx/", to="mlx")
    ckconv.convert(tmp_path / "mlx", f"{tmp_path}/hf/", to="safetensors")
    ckconv.convert(FIXTURES / "zoo" / f"{name}.f32.gguf", f"{tmp_path}/direct/", to="mlx")

    assert ckconv.diff(tmp_path / "hf", checkpoint(name)).same
    assert ckconv.diff(tmp_path / "direct", tmp_path / "mlx", weights=True).same
    assert ckconv.verify(tmp_path / "mlx", checkpoint(name)).compared


@pytest.mark.product("values")
@pytest.mark.parametrize("source", ["hf", "gguf"])
@pytest.mark.parametrize("name", NAMES)
def test_mlx_lm_computes_what_transformers_does(
    name: str, source: str, mlx_lm: consumers.Consumer, tmp_path: Path
) -> None:
    path = checkpoint(name) if source == "hf" else FIXTURES / "zoo" / f"{name}.f32.gguf"
    ckconv.convert(path, f"{tmp_path}/mlx/", to="mlx")

    prompt, wanted = reference(name)
    assert np.abs(mlx_lm.logits(tmp_path / "mlx", prompt)[-1] - wanted).max() < CLOSE


@pytest.mark.parametrize("name", NAMES)
def test_llama_cpp_computes_what_transformers_does(name: str, llama_cpp: consumers.Consumer, tmp_path: Path) -> None:
    ckconv.convert(checkpoint(name), tmp_path / "m.gguf")

    prompt, wanted = reference(name)
    assert np.abs(llama_cpp.logits(tmp_path / "m.gguf", prompt)[-1] - wanted).max() < CLOSE


def changed(name: str, out: Path, **keys: object) -> Path:
    """The checkpoint with another configuration."""
    out.mkdir()
    (out / "model.safetensors").write_bytes((checkpoint(name) / "model.safetensors").read_bytes())
    document = {**json.loads((checkpoint(name) / "config.json").read_text()), **keys}
    (out / "config.json").write_text(json.dumps(document))
    return out


def test_a_multiplier_that_is_no_number_is_named(tmp_path: Path) -> None:
    with pytest.raises(ckconv.CkconvError, match="embedding_multiplier must be a finite number, got 'much'"):
        ckconv.convert(changed("granite", tmp_path / "hf", embedding_multiplier="much"), tmp_path / "m.gguf")


def test_two_multipliers_are_two_models(tmp_path: Path) -> None:
    other = changed("granite", tmp_path / "hf", logits_scaling=4.0)

    found = ckconv.diff(checkpoint("granite"), other)
    assert (found.same, dict(found.config)) == (False, {"logit_scale": (2.0, 4.0)})


def test_a_scaling_that_llama_cpp_does_not_do_for_the_family_is_refused(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64, "rope_theta": 10000.0,
    }  # fmt: skip
    source = changed("olmo2", tmp_path / "hf", rope_parameters=scaling)
    with pytest.raises(UnsupportedError, match=r"which llama\.cpp does not do for olmo2"):
        ckconv.convert(source, tmp_path / "m.gguf")
