"""Matrices that another quantizer packed become blocks and triples of the same numbers, or are refused."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import consumers
import gguf
import gguf.quants
import numpy as np
import pytest
from checkpoints import Decoder
from gguf_copies import gguf_copy
from packed_checkpoints import (
    awq_model,
    bitsandbytes_model,
    comfyui_model,
    compressed_model,
    drawn,
    fp8_model,
    fp8_values,
    gptq_model,
    planes,
    quark_model,
    torchao_model,
    torchao_offsets_model,
)
from safetensors import safe_open

import ckconv
from ckconv.core.layouts import DTYPES, F16, F32
from ckconv.core.options import Options
from ckconv.quant.affine import Affine, to_blocks, to_triple, unfit
from ckconv.quant.mlx import Quantization, Triple
from ckconv.quant.packed import MAPS, Scheme, nearest, packed_type

#: Rows are whole blocks and whole groups of every model here.
DECODER = Decoder(layers=1, hidden=128, ffn=256, head_dim=32, kv_heads=4)
DOWN = "model.layers.0.mlp.down_proj"

fp8_powers = partial(fp8_model, block=(128, 128), powers=True)

#: A model, what its matrices are in a GGUF, and bits and group of the MLX triples.
EXACT = {
    "4 bits, symmetric": (partial(gptq_model, symmetric=True), "Q4_0", (4, 32)),
    "4 bits, symmetric, groups of 128": (partial(gptq_model, symmetric=True, group=128), "Q4_0", (4, 128)),
    "4 bits, zero points": (gptq_model, "Q8_0", (4, 32)),
    "4 bits, zero points of whole rows": (partial(gptq_model, group=-1, version=2), "Q8_0", (4, 128)),
    "2 bits, zero points": (partial(gptq_model, bits=2), "Q4_0", (2, 32)),
    "3 bits, zero points": (partial(gptq_model, bits=3), "Q4_0", (3, 32)),
    "5 bits, symmetric, auto-round": (
        partial(gptq_model, bits=5, symmetric=True, auto_round="auto_round:auto_gptq"), "Q8_0", (5, 32),
    ),
    "7 bits in planes": (partial(gptq_model, bits=7, version=2, pack=planes), "Q8_0", (8, 32)),
    "compressed-tensors, 6 bits, zero points": (
        partial(compressed_model, bits=6, symmetric=False), "Q8_0", (6, 32),
    ),
    "compressed-tensors, 3 bits": (partial(compressed_model, bits=3), "Q4_0", (3, 32)),
    "torchao int4": (partial(torchao_model, bits=4, group=32), "Q4_0", (4, 32)),
    "torchao int8": (torchao_model, "Q8_0", (8, 128)),
    "torchao int4 with offsets": (torchao_offsets_model, "Q4_1", (4, 32)),
    "torchao int4 with offsets of 0": (partial(torchao_offsets_model, symmetric=True), "Q4_0", (4, 32)),
    "torchao int4 in tiles": (partial(torchao_offsets_model, tiles=True), "Q4_1", (4, 32)),
    "Quark int4": (quark_model, "Q8_0", (4, 32)),
    "AWQ": (partial(awq_model, group=128), "Q8_0", (4, 128)),
    "compressed-tensors, 4 bits": (compressed_model, "Q4_0", (4, 32)),
    "compressed-tensors, zero points": (partial(compressed_model, symmetric=False), "Q8_0", (4, 32)),
    "compressed-tensors, zero points, few digits": (
        partial(compressed_model, symmetric=False, coarse=True), "Q4_1", (4, 32),
    ),
    "8 bits of whole rows": (partial(compressed_model, form="int-quantized", bits=8, group=-1), "Q8_0", (8, 128)),
    "8 bits, symmetric": (partial(gptq_model, bits=8, symmetric=True, group=64), "Q8_0", (8, 64)),
}  # fmt: skip


def blocks_of(path: Path) -> dict[str, tuple[str, np.ndarray]]:
    """Type and values of every tensor of a GGUF, by the gguf package."""
    found = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        found[tensor.name] = (tensor.tensor_type.name, values.reshape(tensor.shape[::-1]))
    return found


def arrays_of(folder: Path, module: str) -> dict[str, np.ndarray]:
    with safe_open(next(folder.glob("*.safetensors")), "numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys() if name.startswith(module)}  # noqa: SIM118


def triple_values(folder: Path, module: str, bits: int, group: int) -> np.ndarray:
    """scale * code + bias, written down from mlx.core.quantize's documentation, in float64."""
    arrays = arrays_of(folder, module)
    words = arrays[f"{module}.weight"]
    stream = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").reshape(len(words), -1, group, bits)
    codes = (stream @ (1 << np.arange(bits))).astype(np.float64)
    scales, biases = (arrays[f"{module}.{kind}"].astype(np.float64)[..., None] for kind in ("scales", "biases"))
    assert arrays[f"{module}.scales"].dtype == np.float32
    return (codes * scales + biases).reshape(len(words), -1)


@pytest.mark.parametrize("name", EXACT)
def test_a_gguf_holds_the_numbers_that_the_arrays_stand_for(tmp_path: Path, name: str) -> None:
    make, block, (bits, _) = EXACT[name]
    expected = make(tmp_path / "packed", DECODER)
    report = ckconv.convert(tmp_path / "packed", tmp_path / "m.gguf")

    found = blocks_of(tmp_path / "m.gguf")
    assert {found[f"blk.0.{kind}.weight"][0] for kind in ("attn_q", "attn_output", "ffn_up", "ffn_down")} == {block}
    assert np.array_equal(found["blk.0.ffn_down.weight"][1], expected[f"{DOWN}.weight"])
    q = expected["model.layers.0.self_attn.q_proj.weight"]
    permuted = q.reshape(DECODER.heads, 2, -1, q.shape[1]).swapaxes(1, 2).reshape(q.shape)
    assert np.array_equal(found["blk.0.attn_q.weight"][1], permuted)
    grown = [note for note in report.plan.notes if "no smaller type holds them exactly" in note]
    assert bool(grown) == (int(block[1]) > (7 if name.startswith("7") else bits))


@pytest.mark.parametrize("name", EXACT)
def test_an_mlx_model_holds_the_numbers_that_the_arrays_stand_for(tmp_path: Path, name: str) -> None:
    make, _, (bits, group) = EXACT[name]
    expected = make(tmp_path / "packed", DECODER)
    ckconv.convert(tmp_path / "packed", tmp_path / "mlx", to="mlx")

    config = json.loads((tmp_path / "mlx" / "config.json").read_text())
    said = {**config["quantization"], **config["quantization"].get(DOWN, {})}
    # The groups of whole rows are the largest that MLX has.
    assert (said["bits"], said["group_size"]) == (bits, group)
    assert "quant_method" not in config["quantization_config"]
    assert np.array_equal(triple_values(tmp_path / "mlx", DOWN, bits, group), expected[f"{DOWN}.weight"])


@pytest.mark.parametrize("name", ["4 bits, zero points", "8 bits, symmetric"])
def test_mlx_lm_computes_the_same_of_triples_and_of_decoded_matrices(
    tmp_path: Path, mlx_lm: consumers.Consumer, name: str
) -> None:
    EXACT[name][0](tmp_path / "packed", DECODER)
    ckconv.convert(tmp_path / "packed", tmp_path / "triples", to="mlx")
    ckconv.convert(tmp_path / "packed", tmp_path / "floats", to="mlx", options=Options(dequantize=True))

    made, wanted = (mlx_lm.logits(tmp_path / kind, [1, 5, 17, 9]) for kind in ("triples", "floats"))
    assert np.isfinite(made).all()
    assert np.abs(made - wanted).max() < 1e-5 * np.abs(wanted).max()


def in_q8_0(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Numbers that are whole multiples of their blocks' scales, as ``block_q8_0`` of ggml-common.h has them."""
    codes = values.reshape(len(values), -1, 32).astype(np.float64) / scales.astype(np.float64)[..., None]
    assert np.array_equal(codes, codes.astype(np.int8))
    rows = np.concatenate([scales.astype("<f2")[..., None].view(np.uint8), codes.astype(np.int8).view(np.uint8)], -1)
    return rows.reshape(len(values), -1)


@pytest.mark.parametrize(
    ("name", "block", "size", "within"),
    [
        ("4 bits, symmetric", "Q4_0", 18, 1e-5),
        ("4 bits, symmetric, groups of 128", "Q4_0", 18, 1e-5),
        ("compressed-tensors, 4 bits", "Q4_0", 18, 1e-5),
        # The sum of 32 activations, which a minimum is multiplied with, is rounded to a float16 (block_q8_1).
        ("compressed-tensors, zero points, few digits", "Q4_1", 20, 2.0**-7),
    ],
)
def test_llama_cpp_computes_what_blocks_of_the_decoded_matrices_say(
    tmp_path: Path, llama_cpp: consumers.Consumer, name: str, block: str, size: int, within: float
) -> None:
    """Beside blocks it rounds activations to eight bits, so that the decoded matrices stand in blocks, too: Q8_0."""
    EXACT[name][0](tmp_path / "packed", DECODER)
    ckconv.convert(tmp_path / "packed", tmp_path / "blocks.gguf")
    ckconv.convert(tmp_path / "packed", tmp_path / "floats.gguf", options=Options(dequantize=True))
    blocks = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "blocks.gguf").tensors}
    decoded: dict[str, tuple[np.ndarray, Any]] = {}
    for key, (_, values) in blocks_of(tmp_path / "floats.gguf").items():
        if blocks[key].tensor_type.name == block:
            scales = blocks[key].data.reshape(len(values), -1, size)[..., :2].copy().view("<f2")[..., 0]
            decoded[key] = in_q8_0(values, scales), gguf.GGMLQuantizationType.Q8_0
        else:
            decoded[key] = blocks[key].data, blocks[key].tensor_type
    gguf_copy(tmp_path / "floats.gguf", tmp_path / "decoded.gguf", tensors=decoded)

    prompt = (1, 5, 17, 9)
    made, same, floats = (
        llama_cpp.logits(tmp_path / f"{kind}.gguf", prompt) for kind in ("blocks", "decoded", "floats")
    )
    assert block in {tensor.tensor_type.name for tensor in blocks.values()}
    assert np.abs(made - same).max() < within * np.abs(same).max()
    assert np.linalg.norm(made - floats) < 0.1 * np.linalg.norm(floats)


@pytest.mark.parametrize("name", ["AWQ", "8 bits of whole rows", "8 bits, symmetric"])
def test_llama_cpp_computes_nearly_the_same_of_blocks_and_of_decoded_matrices(
    tmp_path: Path, llama_cpp: consumers.Consumer, name: str
) -> None:
    EXACT[name][0](tmp_path / "packed", DECODER)
    ckconv.convert(tmp_path / "packed", tmp_path / "blocks.gguf")
    ckconv.convert(tmp_path / "packed", tmp_path / "floats.gguf", options=Options(dequantize=True))

    made, floats = (llama_cpp.logits(tmp_path / f"{kind}.gguf", (1, 5, 17, 9)) for kind in ("blocks", "floats"))
    assert np.linalg.norm(made - floats) < 0.1 * np.linalg.norm(floats)


@pytest.mark.parametrize("name", ["4 bits, symmetric", "4 bits, zero points"])
def test_the_checkpoint_comes_back_out_of_a_bump_file_of_blocks(tmp_path: Path, ckconv, name: str) -> None:
    source, bump, back = tmp_path / "packed", tmp_path / "bump", tmp_path / "back"
    EXACT[name][0](source, DECODER)
    result = ckconv("convert", source, f"{bump}/", "--to", "bump")
    assert (result.code, "-> Q8_0" in result.out) == (0, True), result.err
    assert ckconv("convert", bump, f"{back}/", "--to", "safetensors").code == 0
    assert ckconv("verify", bump, source).code == 0

    for path in source.iterdir():
        assert (back / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize(
    ("make", "target", "sentence"),
    [
        (
            partial(gptq_model, scattered=True),
            "gguf",
            "columns that share a scale are scattered over the row (desc_act)",
        ),
        (
            partial(gptq_model, scattered=True),
            "mlx",
            "columns that share a scale are scattered over the row (desc_act)",
        ),
        (partial(compressed_model, scattered=True), "gguf", "columns that share a scale are scattered over the row"),
        (partial(gptq_model, bits=8), "gguf", "groups have numbers that no Q8_0 block holds"),
        (partial(gptq_model, group=16), "gguf", "no GGUF block holds int4 group 16 F16 zeros"),
        (bitsandbytes_model, "gguf", "nearest, --dequantize --quantize q8_0, moves values by 0.5 %"),
        (bitsandbytes_model, "mlx", "nearest, --dequantize --quantize affine:8:32, moves values by 0.4 %"),
        (partial(fp8_model, block=(64, 64)), "gguf", "groups have a scale that is not a power of two"),
        (partial(fp8_model, block=(64, 64)), "mlx", "scales are not powers of two, as MLX's mxfp8 wants them"),
    ],
)
def test_what_no_type_holds_is_refused_and_decoded_when_asked_to(
    tmp_path: Path, ckconv, make, target, sentence
) -> None:
    expected = make(tmp_path / "packed", DECODER)
    out = tmp_path / ("m.gguf" if target == "gguf" else "m")
    refused = ckconv("convert", tmp_path / "packed", out, "--to", target)
    assert (refused.code, sentence in refused.err, "--dequantize" in refused.err) == (4, True, True), refused.err

    assert ckconv("convert", tmp_path / "packed", out, "--to", target, "--dequantize").code == 0
    if target == "gguf":
        kind, values = blocks_of(out)["blk.0.ffn_down.weight"]
        assert (kind, np.array_equal(values, expected[f"{DOWN}.weight"].astype(np.float32))) == ("F32", True)


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ({"said": "nothing"}, "BF16"),
        ({"said": "nothing", "kind": "float8_e5m2"}, "BF16"),
        ({"kind": "mxfp8"}, "BF16"),
        ({"kind": "nvfp4"}, "NVFP4"),
    ],
)
def test_what_comfyui_stores_is_exact_in_a_gguf_where_a_type_holds_it(
    tmp_path: Path, ckconv, how: dict[str, Any], kind: str
) -> None:
    comfyui_model(tmp_path / "packed", DECODER, **how)
    done = ckconv("convert", tmp_path / "packed", tmp_path / "m.gguf", "--tensor-scales")
    assert done.code == 0, done.err
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    assert types["blk.0.ffn_down.weight"] == kind
    assert ckconv("diff", "--weights", tmp_path / "packed", tmp_path / "m.gguf").code == 0


@pytest.mark.parametrize("codes", ["NF4", "bitsandbytes FP4"])
def test_the_nearest_types_move_values_by_as_much_as_is_said(codes: str) -> None:
    table = np.array(MAPS[codes], np.float32)
    drawn = np.random.default_rng(0).standard_normal((4096, 64), np.float32)
    scales = np.abs(drawn).max(1, keepdims=True)
    values = table[np.abs((drawn / scales)[..., None] - table).argmin(-1)] * scales

    kind = gguf.GGMLQuantizationType.Q8_0
    blocks = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
    groups = values.reshape(-1, 32)
    low, step = groups.min(1, keepdims=True), np.ptp(groups, axis=1, keepdims=True) / 255
    triples = (np.round((groups - low) / step) * step + low).reshape(values.shape)

    dtype = packed_type(Scheme(codes, 4, 64, F32, library=F32), 64)
    for made, mlx in ((blocks, False), (triples, True)):
        lost = 100 * np.sqrt(np.mean((made - values) ** 2) / np.mean(values**2))
        assert f"moves values by {lost:.1f} %" in nearest(dtype, mlx=mlx)


@pytest.mark.parametrize("make", [gptq_model, awq_model, partial(gptq_model, bits=8)])
def test_dtype_source_decodes_to_what_the_library_computes(tmp_path: Path, ckconv, make) -> None:
    """Products rounded once to the type of the scales, which is float16 here."""
    expected = make(tmp_path / "packed", DECODER)
    flags = ("--to", "safetensors", "--dequantize", "--dtype", "source")
    result = ckconv("convert", tmp_path / "packed", f"{tmp_path}/out/", *flags)
    assert (result.code, "what the quantizer's library computes" in result.out) == (0, True), result.err
    values = arrays_of(tmp_path / "out", DOWN)[f"{DOWN}.weight"]
    assert (values.dtype, np.array_equal(values, expected[f"{DOWN}.weight"].astype(np.float16))) == (np.float16, True)
    assert ckconv("verify", tmp_path / "out", tmp_path / "packed", *flags[2:]).code == 0

    exact = ckconv("convert", tmp_path / "packed", f"{tmp_path}/exact/", *flags[:3])
    assert "hold codes times scales exactly" in exact.out


def test_dtype_source_is_about_decoded_matrices(tmp_path: Path, ckconv) -> None:
    gptq_model(tmp_path / "packed", DECODER)
    result = ckconv("convert", tmp_path / "packed", tmp_path / "m.gguf", "--dtype", "source")
    assert (result.code, "is the type of matrices that are decoded" in result.err) == (4, True)


def test_fp8_with_scales_that_are_powers_of_two_is_bf16_in_a_gguf(tmp_path: Path) -> None:
    expected = fp8_powers(tmp_path / "packed", DECODER)
    ckconv.convert(tmp_path / "packed", tmp_path / "m.gguf")
    kind, values = blocks_of(tmp_path / "m.gguf")["blk.0.ffn_down.weight"]
    assert (kind, np.array_equal(values, expected[f"{DOWN}.weight"])) == ("BF16", True)


def test_fp8_with_scales_that_are_powers_of_two_is_mxfp8_in_mlx(tmp_path: Path) -> None:
    expected = fp8_powers(tmp_path / "packed", DECODER)
    ckconv.convert(tmp_path / "packed", tmp_path / "m", to="mlx")
    arrays = arrays_of(tmp_path / "m", DOWN)
    codes, scales = arrays[f"{DOWN}.weight"].view(np.uint8), arrays[f"{DOWN}.scales"]
    values = fp8_values()[codes].reshape(*scales.shape, 32) * 2.0 ** (scales.astype(int) - 127)[..., None]
    assert np.array_equal(values.reshape(codes.shape), expected[f"{DOWN}.weight"])
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["quantization"] == {"group_size": 32, "bits": 8, "mode": "mxfp8"}


def parts(bits: int, *, zero: int | None = None, group: int = 32, scale: float = 0.0) -> Affine:
    """Drawn rows; ``zero`` and ``scale`` make all numbers the same."""
    matrix = drawn((4, 128), bits, group, seed=1, lowest=0)
    scales = matrix.scales.astype(np.float32) if not scale else np.full(matrix.scales.shape, scale, np.float32)
    zeros = matrix.zeros.astype(np.int16) if zero is None else np.full(matrix.zeros.shape, zero, np.int16)
    return Affine(bits, group, matrix.codes.astype(np.uint8), scales, zero=zeros)


def values_of(given: Affine) -> np.ndarray:
    assert given.zero is not None
    numbers = given.codes.reshape(*given.scale.shape, -1).astype(np.float64) - given.zero[..., None]
    return (numbers * given.scale[..., None].astype(np.float64)).reshape(given.codes.shape)


@pytest.mark.parametrize(
    ("given", "fitting"),
    [
        (parts(4, zero=8), ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]),
        (parts(4, zero=4), ["Q4_1", "Q5_0", "Q5_1", "Q8_0"]),
        (parts(4, zero=11), ["Q5_0", "Q8_0"]),  # 11 times a scale of eight bits is no float16
        (parts(4, zero=0), ["Q4_1", "Q5_0", "Q5_1", "Q8_0"]),
        (parts(4), ["Q5_0", "Q8_0"]),
        (parts(3, zero=3), ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]),
        (parts(8, zero=128), ["Q8_0"]),
        (parts(4, zero=8, scale=2.0**-24 * 1.5), []),
        (parts(4, zero=8, scale=65536.0), []),
    ],
)
def test_blocks_hold_all_groups_of_a_matrix_or_none_is_written(given: Affine, fitting: list[str]) -> None:
    for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"):
        made = to_blocks(given, DTYPES[name])
        assert (made.inexact == 0) == (name in fitting), name
        assert int(unfit(given, DTYPES[name]).sum()) == made.inexact, "told without the codes"
        if not made.inexact:
            decoded = gguf.quants.dequantize(made.planes[0], gguf.GGMLQuantizationType[name])
            assert np.array_equal(decoded, values_of(given))


def test_128_is_a_signed_byte_with_the_other_sign() -> None:
    """All codes of a group less its zero point are -127 to 128: the scale changes its sign with them."""
    codes = np.arange(1, 257, 8, dtype=np.int16).clip(max=255).astype(np.uint8)[None]
    given = Affine(8, 32, codes, np.full((1, 1), 0.5, np.float32), zero=np.full((1, 1), 127, np.int16))
    made = to_blocks(given, DTYPES["Q8_0"])
    assert (codes.max(), made.inexact) == (249, 0)
    given = given._replace(codes=np.where(codes == 249, 255, codes).astype(np.uint8))
    made = to_blocks(given, DTYPES["Q8_0"])
    decoded = gguf.quants.dequantize(made.planes[0], gguf.GGMLQuantizationType.Q8_0)
    assert (made.inexact, np.array_equal(decoded, values_of(given))) == (0, True)
    given = given._replace(codes=np.where(codes == 1, 0, given.codes).astype(np.uint8), zero=given.zero + np.int16(1))
    assert to_blocks(given, DTYPES["Q8_0"]).inexact == 0
    assert to_blocks(given._replace(zero=np.full((1, 1), 120, np.int16)), DTYPES["Q8_0"]).inexact == 1


def test_triples_of_float16_hold_only_biases_that_are_float16_numbers() -> None:
    quantization = Quantization("affine", 4, 32)
    assert to_triple(parts(4, zero=8), Triple(quantization, F16)).inexact == 0
    assert to_triple(parts(4, zero=11), Triple(quantization, F32)).inexact == 0
    assert to_triple(parts(4, zero=11), Triple(quantization, F16)).inexact > 0
