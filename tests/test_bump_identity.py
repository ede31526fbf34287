"""A source that went into a bump file comes back: byte for byte with its record, with every value without it.

Random models of the families that bump holds as their own, in random sizes and types; what comes back is read with the
safetensors and gguf packages.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from checkpoints import Decoder, bf16, save
from gguf import GGMLQuantizationType as Q
from gguf.quants import dequantize
from hypothesis import HealthCheck, given, settings, strategies as st
from models import Model
from safetensors import safe_open

import ckconv
from ckconv import Options

PATIENT = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])

#: Conversion to a bump file: the version that holds the model, or one of those that hold each.
VERSIONS = st.sampled_from([0, 4, 5])


@st.composite
def checkpoints(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Configuration and float32 values of a checkpoint."""
    family = draw(st.sampled_from(["llama", "qwen2", "qwen3"]))
    heads = draw(st.sampled_from([1, 2, 4]))
    head = 2 * draw(st.integers(1, 12))
    decoder = Decoder(
        layers=draw(st.integers(1, 3)), hidden=heads * head, heads=heads, head_dim=head,
        kv_heads=draw(st.sampled_from([n for n in (1, 2, 4) if heads % n == 0])), ffn=draw(st.integers(1, 40)),
        vocab=draw(st.integers(2, 50)), qk_norm=family == "qwen3", seed=draw(st.integers(0, 99)),
    )  # fmt: skip
    tensors = decoder.tensors()
    tied = draw(st.booleans())
    if tied:
        del tensors["lm_head.weight"]
    if family == "qwen2":
        for name in [name for name in tensors if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]:
            tensors[name.replace("weight", "bias")] = tensors[name][:, 0].copy()
    theta = draw(st.sampled_from([10_000.0, 500_000.0, 1e6]))
    eps = draw(st.sampled_from([1e-5, 1e-6]))
    return decoder.config(family, tie_word_embeddings=tied, rope_theta=theta, rms_norm_eps=eps), tensors


def truncated(array: np.ndarray) -> np.ndarray:
    """What BF16 holds of it."""
    return (np.ascontiguousarray(array).view(np.uint32) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def stored(tensors: dict[str, np.ndarray], dtype: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The tensors as they are stored in a type, and the values that they then have."""
    if dtype == "bf16":
        return {name: bf16(array) for name, array in tensors.items()}, {k: truncated(v) for k, v in tensors.items()}
    kind = np.float16 if dtype == "f16" else np.float32
    made = {name: array.astype(kind) for name, array in tensors.items()}
    return made, {name: array.astype(np.float32) for name, array in made.items()}


def there_and_back(source: Path, folder: Path, to: str, version: int, *, record: bool) -> Path:
    asked = Options(bump_version=version, source_record=record)
    ckconv.convert(source, f"{folder}/b/", to="bump", options=asked)
    ckconv.convert(folder / "b" / "weights.bump", f"{folder}/back/", to=to, options=Options(source_record=record))
    return folder / "back"


@given(checkpoints(), st.sampled_from(["f32", "f16", "bf16"]), VERSIONS, st.booleans())
@PATIENT
def test_a_checkpoint(
    made: tuple[dict[str, Any], dict[str, np.ndarray]], dtype: str, version: int, record: bool
) -> None:
    config, tensors = made
    arrays, values = stored(tensors, dtype)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = save(folder / "hf", config, arrays)
        back = there_and_back(source, folder, "safetensors", version, record=record)
        if record:
            assert {f.name: f.read_bytes() for f in back.iterdir()} == {
                f.name: f.read_bytes() for f in source.iterdir()
            }
            return
        with safe_open(back / "model.safetensors", "numpy") as file:
            found = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no mapping
        assert found.keys() == values.keys()
        assert all(np.array_equal(found[key], value) for key, value in values.items())
        said = json.loads((back / "config.json").read_text())
        said |= said.get("rope_parameters") or {}
        keys = ("num_hidden_layers", "hidden_size", "rms_norm_eps", "intermediate_size", "num_key_value_heads",
                "rope_theta", "tie_word_embeddings", "model_type")  # fmt: skip
        assert {key: said.get(key, False) for key in keys} == {key: config[key] for key in keys}


@st.composite
def ggufs(draw: st.DrawFn) -> Model:
    arch = draw(st.sampled_from(["llama", "qwen2", "qwen3"]))
    wide = draw(st.sampled_from([32, 64, 256]))
    matrix = draw(st.sampled_from([Q.F32, Q.F16, Q.BF16, Q.Q8_0] + [Q.Q4_K, Q.Q6_K] * (wide == 256)))
    heads = draw(st.sampled_from([2, 4]))
    return Model(
        arch=arch, layers=draw(st.integers(1, 2)), hidden=wide, ffn=wide * draw(st.integers(1, 2)), heads=heads,
        kv_heads=draw(st.sampled_from([1, 2])), vocab=draw(st.integers(2, 40)), matrix=matrix,
        qkv_bias=arch == "qwen2", qk_norm=arch == "qwen3", head=draw(st.sampled_from(["tied", "own"])),
        head_dim=wide // heads if arch == "qwen3" else 0, seed=draw(st.integers(0, 99)),
    )  # fmt: skip


def data_of(path: Path) -> dict[str, tuple[str, bytes]]:
    """Name -> type and bytes of blocks, and the values of floats."""
    found = {}
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.tensor_type in (Q.F32, Q.F16, Q.BF16):
            values = dequantize(np.ascontiguousarray(tensor.data), tensor.tensor_type)
            found[tensor.name] = ("floats", values.astype(np.float32).tobytes())
        else:
            found[tensor.name] = (tensor.tensor_type.name, tensor.data.tobytes())
    return found


@given(ggufs(), st.sampled_from([4, 5]), st.booleans())
@PATIENT
def test_a_gguf(model: Model, version: int, record: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = model.write(folder / "m.gguf")
        back = next(there_and_back(source, folder, "gguf", version, record=record).glob("*.gguf"))
        if record:
            assert back.read_bytes() == source.read_bytes()
        assert data_of(back) == data_of(source)
