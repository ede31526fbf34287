"""Content hashes: fixed for all time, the same for the same numbers, another for any other bit."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import Decoder, Tensors, bf16, save, save_gguf
from conftest import FIXTURES

import ckconv
from ckconv.comparison.compare import Hashes, hash_index
from ckconv.core.tensors import TensorIndex
from ckconv.formats.detect import open_index

SMALL = Decoder(layers=1)

#: These are part of the interface: whoever stored one must find it again in every later version.
GOLDEN = {
    "gguf/gemma3-text-bf16.auto.gguf": "cd5e5d4579e52c2ff80a6f6a43ea29ecf30d48b54392f5a8a9e0f17b0a9a4e50",
    "hf/gpt2-hub-f32": "4697f51eb86428088efe1c13725d3bb5121317f477db271810617e2e7834e71f",
    "hf/llama-untied-f16-sharded": "c3d90eb9d7242bb9ddaa971a20cbb76180c804c0eab35eaf8e1f1caebae6e1b9",
    "hf/phi3-bf16": "3ecd3f960e175c698d97edcfec892fd83def819abb91f0b159310f029cd590e3",
    "kquants/llama64.Q4_K_M.gguf": "d8d8d5733c887c6ed0c31e2c67b3dc05df8c1550c35c0caa627ebc49376e5619",
    "mlx/llama-tied-bf16.q4g64": "c88836a19d15ff7975ac280657aa52037f08da7a2ca87504a7ffe375da7599ea",
}


@pytest.mark.parametrize("path", GOLDEN)
def test_model_hashes_are_what_they_were(path: str) -> None:
    assert hash_index(open_index(FIXTURES / path)).model == GOLDEN[path]


def small(folder: Path, tensors: Tensors | dict[str, np.ndarray] | None = None, **how: Any) -> TensorIndex:
    return open_index(save(folder, SMALL.config(), SMALL.tensors() if tensors is None else tensors, **how))


def test_a_hash_is_sha256_of_name_shape_type_and_float32_values(tmp_path: Path) -> None:
    tensors = SMALL.tensors()
    hashes = hash_index(small(tmp_path))
    lines = []
    for name, stored in (
        ("layers.0.ffn.up.weight", "model.layers.0.mlp.up_proj.weight"),
        ("output_norm.weight", "model.norm.weight"),
    ):
        shape = "x".join(map(str, tensors[stored].shape))
        expected = hashlib.sha256(f"{name}\n{shape}\nF32\n".encode() + tensors[stored].tobytes()).hexdigest()
        assert hashes.tensors[name] == expected
    lines = [f"{digest}  {name}\n" for name, digest in sorted(hashes.tensors.items())]
    assert hashes.model == hashlib.sha256("".join(lines).encode()).hexdigest()


def test_a_quantized_hash_is_over_the_values_of_the_blocks() -> None:
    path = FIXTURES / "kquants" / "llama64.Q4_K_M.gguf"
    stored = next(it for it in gguf.GGUFReader(path).tensors if it.name == "blk.0.ffn_down.weight")
    values = gguf.quants.dequantize(stored.data, stored.tensor_type)
    head = f"layers.0.ffn.down.weight\n{'x'.join(map(str, values.shape))}\nF32\n".encode()

    values = values.astype("<f4") + np.float32(0)  # no negative zeros
    found = hash_index(open_index(path)).tensors["layers.0.ffn.down.weight"]
    assert found == hashlib.sha256(head + values.tobytes()).hexdigest()


@pytest.mark.parametrize(
    ("source", "to", "options"),
    [
        ("kquants/llama64.Q4_K_M.gguf", "hf", {"dequantize": True}),
        ("kquants/llama64.Q4_K_M.gguf", "mlx", {}),
        ("kquants/llama64.Q4_K_M.gguf", "gguf", {"decode": ("blk.*",)}),
        ("mlx/llama-tied-bf16.q4g64", "hf", {"dequantize": True}),
        ("mlx/llama-tied-bf16.q4g64", "bump", {"dequantize": True}),
    ],
)
def test_a_model_has_one_hash_in_every_format(source: str, to: str, options: dict[str, Any], tmp_path: Path) -> None:
    target = tmp_path / ("out.gguf" if to == "gguf" else "out")
    ckconv.convert(FIXTURES / source, target, to=to, options=ckconv.Options(**options))
    assert hash_index(open_index(target)).model == hash_index(open_index(FIXTURES / source)).model


@pytest.mark.parametrize("type", ["q4_0", "q4_1", "q8_0"])
def test_a_gguf_and_its_mlx_have_one_hash_where_mlx_rounds_nothing(type: str, tmp_path: Path) -> None:
    blocks, mlx = tmp_path / "m.gguf", tmp_path / "mlx"
    ckconv.convert(FIXTURES / "hf" / "llama-bias-f32", blocks, options=ckconv.Options(quantize=type))
    ckconv.convert(blocks, mlx, to="mlx")
    assert hash_index(open_index(mlx)).model == hash_index(open_index(blocks)).model


def test_order_and_sharding_make_no_difference(tmp_path: Path) -> None:
    tensors = SMALL.tensors()
    found = [
        hash_index(small(tmp_path / "a")),
        hash_index(small(tmp_path / "b", dict(reversed(tensors.items())))),
        hash_index(small(tmp_path / "c", shards=3)),
        hash_index(small(tmp_path / "d", metadata={"format": "mlx"})),
    ]
    assert all(other == found[0] for other in found)


def test_the_format_makes_no_difference(tmp_path: Path) -> None:
    hf = hash_index(small(tmp_path / "hf"))
    gguf = hash_index(open_index(save_gguf(tmp_path / "m.gguf", SMALL, "llama", permuted=True)))
    wrong = hash_index(open_index(save_gguf(tmp_path / "w.gguf", SMALL, "llama", permuted=False)))

    assert gguf == hf
    assert {name for name in hf.tensors if wrong.tensors[name] != hf.tensors[name]} == {
        "layers.0.attention.q.weight",
        "layers.0.attention.k.weight",
    }


def test_a_bias_of_zeros_is_no_bias(tmp_path: Path) -> None:
    """A format with placeholders cannot tell the two apart, and the model computes the same."""
    stored = "model.layers.0.self_attn.q_proj.bias"
    without = hash_index(small(tmp_path / "a"))
    zeros = hash_index(small(tmp_path / "b", {**SMALL.tensors(), stored: np.zeros(64, np.float32)}))
    ones = hash_index(small(tmp_path / "c", {**SMALL.tensors(), stored: np.ones(64, np.float32)}))

    assert zeros.model == without.model != ones.model
    assert "layers.0.attention.q.bias" in zeros.tensors


def test_exact_widening_makes_no_difference_and_rounding_does(tmp_path: Path) -> None:
    wide = {name: np.ascontiguousarray(a.view(np.uint32) >> 16 << 16).view(np.float32) for name, a in
            SMALL.tensors().items()}  # fmt: skip
    narrow = {name: bf16(array) for name, array in wide.items()}
    assert hash_index(small(tmp_path / "a", wide)) == hash_index(small(tmp_path / "b", narrow))

    rounded = {name: array.astype(np.float16) for name, array in SMALL.tensors().items()}
    whole = hash_index(small(tmp_path / "c"))
    assert not set(hash_index(small(tmp_path / "d", rounded)).tensors.values()) & set(whole.tensors.values())


@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize("bit", [0, 31])
@pytest.mark.parametrize(
    "name", ["model.embed_tokens.weight", "model.layers.0.self_attn.k_proj.weight", "model.norm.weight"]
)
def test_one_bit_changes_one_tensor_and_the_model(tmp_path: Path, name: str, bit: int, at: int) -> None:
    tensors = SMALL.tensors()
    flipped = tensors[name].copy()
    flipped.reshape(-1).view(np.uint32)[at] ^= np.uint32(1 << bit)
    before = hash_index(small(tmp_path / "a"))
    after = hash_index(small(tmp_path / "b", {**tensors, name: flipped}))

    (canonical,) = open_index(tmp_path / "a").canonical_of[name]
    assert {key for key in before.tensors if before.tensors[key] != after.tensors[key]} == {canonical}
    assert before.model != after.model


def test_a_shape_is_part_of_the_hash(tmp_path: Path) -> None:
    def alone(folder: str, array: np.ndarray) -> Hashes:
        return hash_index(open_index(save(tmp_path / folder, None, {"w": array})))

    values = np.arange(6, dtype=np.float32)
    assert (
        len({alone(f"{i}", a).model for i, a in enumerate((values, values.reshape(2, 3), values.reshape(3, 2)))}) == 3
    )
    assert alone("f", values) == alone("g", values)


def test_a_tied_head_and_its_copy_have_one_model_hash(tmp_path: Path) -> None:
    tensors = SMALL.tensors()
    tied = {name: array for name, array in tensors.items() if name != "lm_head.weight"}
    copied = {**tied, "lm_head.weight": tensors["model.embed_tokens.weight"]}
    one, other = hash_index(small(tmp_path / "a", tied)), hash_index(small(tmp_path / "b", copied))

    assert one.model == other.model
    assert set(other.tensors) - set(one.tensors) == {"output.weight"}
    assert one.model != hash_index(small(tmp_path / "c")).model


def test_placeholders_and_rope_frequencies_are_no_part_of_the_model(tmp_path: Path) -> None:
    plain = hash_index(small(tmp_path / "a"))
    extra = {"rope_freqs.weight": np.ones(8, np.float32)}
    scaled = hash_index(open_index(save_gguf(tmp_path / "m.gguf", SMALL, "llama", permuted=True, extra=extra)))
    assert (scaled.model, "rope_frequencies" in scaled.tensors) == (plain.model, True)

    zeros = {**SMALL.tensors(), "model.norm.weight": np.zeros(64, np.float32)}
    index = small(tmp_path / "b", zeros)
    name = "output_norm.weight"
    blank = replace(index, tensors={**index.tensors, name: replace(index.tensors[name], may_be_absent=True)})
    without = replace(index, tensors={n: t for n, t in index.tensors.items() if n != name})
    assert hash_index(index).model != hash_index(without).model
    assert hash_index(blank).model == hash_index(without).model


def test_unknown_tensors_are_part_of_the_model(tmp_path: Path) -> None:
    more = {**SMALL.tensors(), "extra": np.array(1, np.float32), "output_norm.weight": np.ones(3, np.float32)}
    plain, found = hash_index(small(tmp_path / "a")), hash_index(small(tmp_path / "b", more))

    assert plain.model != found.model
    assert found.tensors["output_norm.weight"] == plain.tensors["output_norm.weight"]
    assert set(found.tensors) - set(plain.tensors) == {"extra", "output_norm.weight (no rule)"}


def test_progress_adds_up_to_the_bytes_read(tmp_path: Path) -> None:
    calls: list[int] = []
    index = small(tmp_path)
    hash_index(index, lambda nbytes, name: calls.append(nbytes))
    assert sum(calls) == index.nbytes
