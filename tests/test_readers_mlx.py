"""MLX directories: which arrays are one quantized matrix, and every way in which they can fail to be one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import Decoder, Raw, Tensors, bf16, quantized, save
from mlx_vectors import CASES, COLUMNS, Case, stored
from packing import packed

from ckconv.api import convert
from ckconv.comparison.compare import diff, hash_index
from ckconv.core.layouts import BF16, F16, F32, DType
from ckconv.core.options import Options
from ckconv.core.tensors import TensorIndex
from ckconv.errors import InputError
from ckconv.formats.detect import open_index
from ckconv.io.files import Files
from ckconv.io.rows import RowReader
from ckconv.quant.convert import decode

SMALL = Decoder(layers=1)
MODULE = "model.layers.0.mlp.up_proj"
SOUND = dict(zip(("weight", "scales", "biases"), quantized(SMALL.tensors()[f"{MODULE}.weight"]), strict=True))
SETTINGS = {"group_size": 32, "bits": 4, "mode": "affine"}


def directory(root: Path, parts: dict[str, Any], settings: object, **also: Any) -> Path:
    """One decoder whose ``up_proj`` [96, 64] is stored as ``parts``."""
    tensors: Tensors = dict(SMALL.tensors())
    del tensors[f"{MODULE}.weight"]
    tensors |= {f"{MODULE}.{kind}": array for kind, array in parts.items()} | also.get("tensors", {})
    config = SMALL.config() if settings is None else SMALL.config(quantization=settings)
    return save(root, config, tensors, metadata={"format": "mlx"})


def refused(root: Path, parts: dict[str, Any], settings: object = SETTINGS, **also: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        open_index(directory(root, parts, settings, **also))
    error = caught.value
    assert (error.code, error.exit_code, error.path) == ("mlx.quant", 3, str(root))
    return error


def test_the_sound_triple_is_one_tensor(tmp_path: Path) -> None:
    index = open_index(directory(tmp_path, SOUND, SETTINGS))

    tensor = index.tensors["layers.0.ffn.up.weight"]
    assert (index.format, tensor.shape, tensor.dtype.name) == ("mlx", (96, 64), "MLX 4-bit group 32 F32")
    assert tensor.nbytes == 96 * 64 // 2 + 2 * 96 * 2 * 4
    assert [plane.source.removeprefix(f"{MODULE}.") for plane in tensor.planes] == ["weight", "scales", "biases"]
    assert all(index.canonical_of[f"{MODULE}.{kind}"] == ("layers.0.ffn.up.weight",) for kind in SOUND)
    assert index.tensors["layers.0.ffn.gate.weight"].dtype is F32
    assert not index.unknown


def changed(**parts: Any) -> dict[str, Any]:
    return {kind: array for kind, array in {**SOUND, **parts}.items() if array is not None}


def cast(kind: str, dtype: type) -> np.ndarray:
    return SOUND[kind].astype(dtype)


SHAPES = "'model.layers.0.mlp.up_proj.weight': weight [96, 8] U32 with scales [96, 2] F32 is not affine"

BROKEN: list[tuple[str, dict[str, Any], object, str]] = [
    ("no weight", changed(weight=None), SETTINGS, "'model.layers.0.mlp.up_proj' has scales and no weight"),
    ("no biases", changed(biases=None), SETTINGS, "has no biases, which affine 4-bit group 32 needs"),
    ("7 bits", SOUND, {**SETTINGS, "bits": 7}, "affine quantization has 7 bits; 1, 2, 3, 4, 5, 6, 8 is allowed"),
    ("0 bits", SOUND, {**SETTINGS, "bits": 0}, "affine quantization has 0 bits"),
    ("bits of text", SOUND, {**SETTINGS, "bits": "4"}, "affine quantization has '4' bits"),
    ("true bits", SOUND, {**SETTINGS, "bits": True}, "affine quantization has True bits"),
    ("group 0", SOUND, {**SETTINGS, "group_size": 0}, "has group size 0; a whole number from 1 to 2,147,483,647"),
    ("huge group", SOUND, {**SETTINGS, "group_size": 10**30}, "has group size a number beyond 10^18"),
    ("mode", SOUND, {**SETTINGS, "mode": "q4"}, "mode is 'q4'; affine, mxfp4, mxfp8, nvfp4 exist"),
    ("escape", SOUND, {**SETTINGS, "mode": "\x1b[31m"}, r"mode is '\x1b[31m'; affine"),
    ("mxfp4 of floats", changed(biases=None), {"group_size": 32, "bits": 4, "mode": "mxfp4"},
     "weight [96, 8] U32 with scales [96, 2] F32 is not mxfp4 4-bit group 32"),
    ("mxfp4 group", SOUND, {"group_size": 64, "bits": 4, "mode": "mxfp4"}, "mxfp4 quantization has group size 64; 32"),
    ("mxfp4 bits", SOUND, {"bits": 8, "mode": "mxfp4"}, "mxfp4 quantization has 8 bits; 4 is allowed"),
    ("weight of bytes", changed(weight=cast("weight", np.uint8)), SETTINGS, "weight [96, 8] U8 with scales"),
    ("weight of I32", changed(weight=SOUND["weight"].view(np.int32)), SETTINGS, "weight [96, 8] I32 with scales"),
    ("dense weight", changed(weight=SMALL.tensors()[f"{MODULE}.weight"]), SETTINGS, "weight [96, 64] F32 with scales"),
    ("scales of I32", changed(scales=cast("scales", np.int32), biases=cast("biases", np.int32)), SETTINGS,
     "with scales [96, 2] I32 is not affine"),
    ("scales of F64", changed(scales=cast("scales", np.float64), biases=cast("biases", np.float64)), SETTINGS,
     "with scales [96, 2] F64 is not affine"),
    ("biases of F16", changed(biases=cast("biases", np.float16)), SETTINGS, "with scales [96, 2] F32 is not affine"),
    ("biases too few", changed(biases=SOUND["biases"][:, :1].copy()), SETTINGS, "is not affine 4-bit group 32"),
    ("rows too few", changed(scales=SOUND["scales"][:48].copy(), biases=SOUND["biases"][:48].copy()), SETTINGS,
     "weight [96, 8] U32 with scales [48, 2] F32"),
    ("vector", changed(weight=SOUND["weight"][0].copy()), SETTINGS, "weight [8] U32 with scales [96, 2]"),
    ("flat scales", changed(scales=SOUND["scales"].reshape(-1)), SETTINGS, "with scales [192] F32"),
    ("all flat", {kind: array.reshape(-1) for kind, array in SOUND.items()}, SETTINGS,
     "weight [768] U32 with scales [192] F32"),
    ("number", changed(weight=np.array(1, np.uint32)), SETTINGS, "weight [] U32 with scales"),
    ("empty rows", changed(weight=np.zeros((96, 0), np.uint32)), SETTINGS, "weight [96, 0] U32 with scales"),
    ("nothing said", SOUND, None, "has scales, config.json has no quantization"),
    ("not an object", SOUND, "4-bit", "has scales, config.json has no quantization"),
    ("empty object", SOUND, {}, "has scales, config.json has no quantization"),
    ("false entry", SOUND, {**SETTINGS, MODULE: False}, "has scales, its quantization entry is false"),
    ("entry of another group", SOUND, {**SETTINGS, MODULE: {"group_size": 64, "bits": 4}}, f"{SHAPES} 4-bit group 64"),
    ("entry of no bits", SOUND, {**SETTINGS, MODULE: {"bits": 9}}, "affine quantization has 9 bits"),
    ("entry without scales", SOUND, {**SETTINGS, "model.layers.0.mlp.gate_proj": {"group_size": 32, "bits": 4}},
     "'model.layers.0.mlp.gate_proj' has a quantization entry and no scales"),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "settings", "message"), [case[1:] for case in BROKEN], ids=[c[0] for c in BROKEN])
def test_arrays_that_are_no_triple_are_refused(
    tmp_path: Path, parts: dict[str, Any], settings: object, message: str
) -> None:
    error = refused(tmp_path, parts, settings)
    assert message in error.message
    assert error.tensor is not None
    assert error.tensor.startswith("model.layers.0.mlp.")


def test_every_broken_module_is_named(tmp_path: Path) -> None:
    other = {f"model.layers.0.mlp.gate_proj.{kind}": SOUND[kind] for kind in ("weight", "scales")}
    error = refused(tmp_path, changed(biases=None), tensors=other)

    assert len(error.details) == 1
    assert "'model.layers.0.mlp.gate_proj' has no biases" in str(error)
    assert "'model.layers.0.mlp.up_proj' has no biases" in str(error)


@pytest.mark.parametrize(
    "settings",
    [
        {"group_size": 64, "bits": 8, MODULE: {"group_size": 32, "bits": 4}},
        {"group_size": 64, "bits": 8, MODULE: {"group_size": 32, "bits": 4, "mode": "affine"}},
        {"group_size": 32, "bits": 4, "mode": "mxfp4", MODULE: {"group_size": 32, "bits": 4}},
        {"group_size": 32, MODULE: {"group_size": 32}},
        {**SETTINGS, "model.layers.0.mlp.gate_proj": False, "lm_head": False},
        {**SETTINGS, "model.embed_tokens": False, "no.such.module": {"bits": 2}},
        {"group_size": 32},
        {**SETTINGS, "mode": None, "bits": None},
        # without an entry
        {**SETTINGS, "group_size": 64},
        {"bits": 4},
        {**SETTINGS, "bits": 2},
        {**SETTINGS, "bits": 8},
        {**SETTINGS, "bits": 3},
        {"group_size": 32, "bits": 4, "mode": "mxfp4"},
        {"group_size": 64, "bits": 4, f"language_model.{MODULE}": {"group_size": 32, "bits": 4}},
    ],
)
def test_a_module_is_what_its_entry_or_its_arrays_say(tmp_path: Path, settings: dict[str, Any]) -> None:
    """An entry without a mode is affine whatever the general mode is, as mlx-lm's loader has it.

    Arrays are as its ``infer_quant_config`` has them: entries may name modules as files do, and not as the class does.
    """
    index = open_index(directory(tmp_path, SOUND, settings))
    assert index.tensors["layers.0.ffn.up.weight"].dtype.name == "MLX 4-bit group 32 F32"


@pytest.mark.parametrize("asked", ["affine:4:64", "affine:2:128"])
def test_rows_of_twice_a_size_of_the_configuration_are_of_the_general_type(asked: str, tmp_path: Path) -> None:
    """As ``o_proj`` of Qwen 3: half as many columns of twice as many bits would be stored alike."""
    decoder = Decoder(layers=1, hidden=128, heads=4, kv_heads=2, head_dim=64, ffn=384)
    source = save(tmp_path / "hf", decoder.config(), decoder.tensors(), metadata={"format": "pt"})

    convert(source, f"{tmp_path}/mlx/", to="mlx", options=Options(quantize=asked))

    assert open_index(tmp_path / "mlx").tensors["layers.0.attention.output.weight"].shape == (128, 256)
    convert(tmp_path / "mlx", f"{tmp_path}/back/", to="hf", options=Options(dequantize=True))


@pytest.mark.parametrize("other", [(8, 32), (2, 128), (8, 64), (4, 32), (3, 64)])
@pytest.mark.parametrize("general", [(4, 64), (4, 128), (8, 32), (2, 128)])
def test_arrays_without_an_entry_are_what_the_familys_shape_says(
    general: tuple[int, int], other: tuple[int, int], tmp_path: Path
) -> None:
    """As mlx-lm's loader has it: two of these pairs are stored alike, and the columns alone tell them apart."""
    decoder = Decoder(layers=1, hidden=128, heads=4, kv_heads=2, head_dim=64, ffn=384)
    tensors, (bits, group) = decoder.tensors(), other
    named = {
        "layers.0.attention.output": "model.layers.0.self_attn.o_proj",
        "token_embedding": "model.embed_tokens",
        "layers.0.ffn.up": "model.layers.0.mlp.up_proj",
    }
    for module in named.values():
        arrays = quantized(np.asarray(tensors.pop(f"{module}.weight"), np.float32), bits, group)
        tensors |= {f"{module}.{kind}": one for kind, one in zip(("weight", "scales", "biases"), arrays, strict=True)}
    config = {**decoder.config(), "quantization": {"group_size": general[1], "bits": general[0]}}
    index = open_index(save(tmp_path / "mlx", config, tensors, metadata={"format": "mlx"}))

    for canonical in named:
        assert index.tensors[f"{canonical}.weight"].dtype.name == f"MLX {bits}-bit group {group} F32"


def test_what_two_quantizations_fit_is_not_guessed_without_a_family(tmp_path: Path) -> None:
    root = directory(tmp_path, SOUND, {**SETTINGS, "bits": 8})
    config = json.loads((root / "config.json").read_text())
    (root / "config.json").write_text(json.dumps({**config, "model_type": "unheard", "architectures": ["Unheard"]}))

    with pytest.raises(InputError, match=r"scales \[96, 2\] F32 is not affine 8-bit group 32"):
        open_index(root)


def test_a_bias_of_the_layer_is_not_the_biases_of_its_quantization(tmp_path: Path) -> None:
    bias = {f"{MODULE}.bias": np.arange(96, dtype=np.float32)}
    index = open_index(directory(tmp_path, SOUND, SETTINGS, tensors=bias))

    assert index.tensors["layers.0.ffn.up.bias"].shape == (96,)
    assert len(index.tensors["layers.0.ffn.up.weight"].planes) == 3


def planes_of(case: Case, planes: list[np.ndarray]) -> dict[str, Any]:
    """A triple's raw bytes as arrays to store."""
    numbers = {F32: "F32", F16: "F16", BF16: "BF16"}
    parts: dict[str, Any] = {"weight": planes[0].view(np.uint32)}
    for kind, plane in zip(("scales", "biases"), planes[1:], strict=False):
        size = case.dtype.size
        parts[kind] = (
            Raw(numbers[case.dtype], (len(plane), plane.shape[1] // size), plane.tobytes())
            if case.quantization.has_biases
            else plane
        )
    return parts


def whole(index: TensorIndex, name: str) -> np.ndarray:
    tensor = index.tensors[name]
    with Files() as files:
        return decode(RowReader(tensor, files).rows(0, tensor.layout.rows), tensor.dtype)


def sizes() -> Decoder:
    return Decoder(layers=1, hidden=COLUMNS, heads=2, kv_heads=2, head_dim=128, ffn=2)


#: Without biases no array says the model's type; MLX takes bfloat16.
TYPED = [case.key for case in CASES if case.quantization.has_biases or case.dtype is BF16]


@pytest.mark.parametrize("key", TYPED)
def test_every_mode_width_and_group_is_read_as_mlx_decodes_it(tmp_path: Path, key: str) -> None:
    case, planes, expected = next(item for item in stored() if item[0].key == key)
    q = case.quantization
    tensors: Tensors = dict(sizes().tensors())
    del tensors[f"{MODULE}.weight"]
    tensors |= {f"{MODULE}.{kind}": array for kind, array in planes_of(case, planes).items()}
    settings = {"group_size": q.group_size, "bits": q.bits, "mode": q.mode}
    opened = open_index(save(tmp_path, sizes().config(quantization=settings), tensors))

    made = whole(opened, "layers.0.ffn.up.weight")
    assert made.shape == (2, COLUMNS)
    assert np.array_equal(made, expected, equal_nan=True)


@pytest.mark.product("pairs")
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_a_packed_matrix_equals_its_dense_twin(tmp_path: Path, bits: int, group: int, dtype: DType) -> None:
    """Scales are powers of two and biases small whole numbers, so that every type computes the same values."""
    decoder = Decoder(layers=1, hidden=128, heads=4, kv_heads=2, head_dim=32, ffn=96)
    rng = np.random.default_rng(bits * group)
    codes = rng.integers(0, 1 << bits, (96, 128), dtype=np.uint8)
    scales = np.ldexp(np.float32(1), rng.integers(-4, 3, (96, 128 // group))).astype(np.float32)
    biases = np.zeros_like(scales)
    dense = codes * np.repeat(scales, group, axis=1)

    def number(array: np.ndarray) -> Any:
        return bf16(array) if dtype is BF16 else array.astype({F32: np.float32, F16: np.float16}[dtype])

    tensors: Tensors = dict(decoder.tensors())
    twin = {**tensors, f"{MODULE}.weight": dense.astype(np.float32)}
    tensors |= {
        f"{MODULE}.weight": packed(codes, bits).view(np.uint32),
        f"{MODULE}.scales": number(scales),
        f"{MODULE}.biases": number(biases),
    }
    config = decoder.config(quantization={"group_size": group, "bits": bits})
    one = open_index(save(tmp_path / "mlx", config, tensors))
    other = open_index(save(tmp_path / "dense", decoder.config(), twin))

    found = diff(one, other)
    assert found.same
    assert found.retyped == (("layers.0.ffn.up.weight", f"MLX {bits}-bit group {group} {dtype}", "F32"),)


def test_other_codes_or_scales_make_another_hash(tmp_path: Path) -> None:
    def hashes(folder: str, parts: dict[str, Any]) -> dict[str, str]:
        return hash_index(open_index(directory(tmp_path / folder, parts, SETTINGS))).tensors

    sound = hashes("sound", SOUND)
    for kind, array in SOUND.items():
        flipped = array.copy()
        flipped.view(np.uint32)[-1, -1] ^= 1
        found = hashes(kind, changed(**{kind: flipped}))
        assert {name for name in sound if sound[name] != found[name]} == {"layers.0.ffn.up.weight"}


MODES: list[tuple[str, int, int]] = [
    *(("affine", bits, group) for bits, group in ((2, 32), (3, 64), (4, 128), (5, 32), (6, 64), (8, 128))),
    ("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "bits", "group"), MODES)
def test_mlx_itself_decodes_to_the_same_values(tmp_path: Path, mode: str, bits: int, group: int) -> None:
    mx = pytest.importorskip("mlx.core")
    decoder = Decoder(layers=1, hidden=128, heads=4, kv_heads=2, head_dim=32, ffn=128)
    settings = {"group_size": group, "bits": bits, "mode": mode}
    save(tmp_path / "packed", decoder.config(quantization=settings), decoder.tensors())
    source = save(tmp_path / "dense", decoder.config(), decoder.tensors())
    dense = mx.load(str(source / "model.safetensors"))
    packed = dict(dense)
    for name in [name for name in dense if dense[name].ndim == 2]:
        made = mx.quantize(dense[name].astype(mx.bfloat16), **settings)
        module = name.removesuffix(".weight")
        packed |= dict(zip((name, f"{module}.scales", f"{module}.biases"), made, strict=False))
        dense[name] = mx.dequantize(*made, **settings)
    for folder, arrays in (("packed", packed), ("dense", dense)):
        mx.save_safetensors(str(tmp_path / folder / "model.safetensors"), arrays, metadata={"format": "mlx"})

    found = diff(open_index(tmp_path / "packed"), open_index(tmp_path / "dense"))
    assert found.same
    assert len(found.retyped) == 9, "all matrices"
    assert all(ours.startswith("MLX") and theirs == "BF16" for _, ours, theirs in found.retyped)


def test_what_does_not_say_that_it_is_mlx_can_be_read_as_mlx(tmp_path: Path, ckconv) -> None:
    """A matrix of GPT-2 that is square looks the same either way round: only the format tells."""
    decoder = Decoder(layers=1)
    path = save(tmp_path / "m", decoder.config(), decoder.tensors())
    for flags, expected in (
        ((), "safetensors"),
        (("--from", "safetensors"), "safetensors"),
        (("--from", "mlx"), "mlx"),
    ):
        assert ckconv("inspect", *flags, path).out.splitlines()[0].split("\t")[2] == expected
