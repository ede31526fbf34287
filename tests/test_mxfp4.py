"""gpt-oss as it is released: experts in MXFP4 go from format to format block for block, and decode as everywhere."""

from __future__ import annotations

import json
import shutil
from hashlib import sha256
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_copies import bytes_of
from safetensors.numpy import save_file
from safetensors_builder import tensors_of

NAME = "gptoss-mxfp4"
EXPERTS = "model.layers.{}.mlp.experts."


@pytest.fixture(scope="module")
def expected(fixtures: Path) -> dict[str, dict[str, str]]:
    """What transformers and llama.cpp's converter make of the experts, by library."""
    document: dict[str, dict[str, str]] = json.loads((fixtures / "quantised" / f"{NAME}.json").read_text())
    return document


@pytest.fixture
def released(fixtures: Path) -> Path:
    return fixtures / "quantised" / NAME


def codes(directory: Path) -> dict[str, np.ndarray]:
    """The arrays of unsigned numbers."""
    types = {"U8": np.uint8, "U32": np.uint32}
    return {
        name: np.frombuffer(data, types[dtype]).reshape(shape)
        for name, (dtype, shape, data) in tensors_of(directory).items()
        if dtype in types
    }


def stored_experts(directory: Path) -> dict[str, tuple[str, list[int], bytes]]:
    return {name: entry for name, entry in tensors_of(directory).items() if name.endswith(("_blocks", "_scales"))}


def edited(released: Path, out: Path, ending: str, change) -> Path:
    """The checkpoint with every array of this name changed."""
    shutil.copytree(released, out)
    tensors = tensors_of(released)
    made = {}
    for name, (dtype, shape, data) in tensors.items():
        array = np.frombuffer(data, np.uint16 if dtype == "BF16" else np.uint8).reshape(shape).copy()
        array = change(array) if name.endswith(ending) else array
        made[name] = array.view(np.float16) if dtype == "BF16" else array
    save_file({name: array for name, array in made.items() if array is not None}, out / "model.safetensors")
    data = (out / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].replace(b'"F16"', b'"BF16"')
    (out / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
    return out


def test_inspect_says_who_quantized_it_and_how(ckconv, released: Path) -> None:
    found = ckconv("inspect", released)
    assert "MXFP4, mxfp4 4-bit group 32: 4 matrices" in found.out
    assert "layers.0.ffn.experts.gate + layers.0.ffn.experts.up" in found.out


def test_a_gguf_has_the_blocks_that_llama_cpps_converter_writes(
    ckconv, tmp_path: Path, released: Path, expected: dict[str, dict[str, str]]
) -> None:
    assert ckconv("convert", released, tmp_path / "m.gguf").code == 0
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    for name, digest in expected["llama.cpp"].items():
        assert tensors[name].tensor_type is gguf.GGMLQuantizationType.MXFP4
        assert sha256(tensors[name].data.tobytes()).hexdigest() == digest, name


def test_mlx_has_the_codes_as_words_of_32_bits(ckconv, tmp_path: Path, released: Path) -> None:
    assert ckconv("convert", released, f"{tmp_path}/mlx/", "--to", "mlx").code == 0
    source, made = codes(released), codes(tmp_path / "mlx")
    for layer in range(2):
        blocks = source[EXPERTS.format(layer) + "gate_up_proj_blocks"].reshape(4, 64, 2, 32)
        scales = source[EXPERTS.format(layer) + "gate_up_proj_scales"].reshape(4, 64, 2, 2)
        for number, part in enumerate(("gate_proj", "up_proj")):
            weight = made[f"{EXPERTS.format(layer)}{part}.weight"]
            assert weight.shape == (4, 64, 8)
            assert np.array_equal(weight.view(np.uint8), blocks[:, :, number])
            assert np.array_equal(made[f"{EXPERTS.format(layer)}{part}.scales"], scales[:, :, number])
    config = json.loads((tmp_path / "mlx" / "config.json").read_text())
    assert config["quantization"] == config["quantization_config"] == {"group_size": 32, "bits": 4, "mode": "mxfp4"}


@pytest.mark.parametrize("through", ["m.gguf", "mlx/"])
def test_it_comes_back_as_it_was_released(ckconv, tmp_path: Path, released: Path, through: str) -> None:
    to = ("--to", "mlx") if through == "mlx/" else ()
    assert ckconv("convert", released, f"{tmp_path}/{through}", *to).code == 0
    result = ckconv("convert", f"{tmp_path}/{through}", f"{tmp_path}/back/", "--to", "safetensors")
    assert result.code == 0, result.err

    assert stored_experts(tmp_path / "back") == stored_experts(released)
    settings = json.loads((tmp_path / "back" / "config.json").read_text())["quantization_config"]
    own = json.loads((released / "config.json").read_text())["quantization_config"]
    assert {**settings, "modules_to_not_convert": sorted(settings["modules_to_not_convert"])} == {
        **own,
        "modules_to_not_convert": sorted(own["modules_to_not_convert"]),
    }
    assert "experts" not in ckconv("diff", released, tmp_path / "back").out


def test_a_gguf_by_way_of_mlx_has_the_same_tensors(ckconv, tmp_path: Path, released: Path) -> None:
    assert ckconv("convert", released, f"{tmp_path}/mlx/", "--to", "mlx").code == 0
    assert ckconv("convert", released, tmp_path / "one.gguf").code == 0
    assert ckconv("convert", tmp_path / "mlx", tmp_path / "other.gguf").code == 0
    one, other = (bytes_of(tmp_path / f"{n}.gguf")
                  for n in ("one", "other"))  # fmt: skip
    assert one == other


def test_dequantize_writes_what_transformers_decodes(
    ckconv, tmp_path: Path, released: Path, expected: dict[str, dict[str, str]]
) -> None:
    assert ckconv("convert", released, f"{tmp_path}/dense/", "--to", "safetensors", "--dequantize").code == 0
    made = tensors_of(tmp_path / "dense")
    for name, digest in expected["transformers"].items():
        assert made[name][0] == "F32"
        assert sha256(made[name][2]).hexdigest() == digest, name
    assert "quantization_config" not in json.loads((tmp_path / "dense" / "config.json").read_text())


def test_a_copy_is_byte_for_byte(ckconv, tmp_path: Path, released: Path) -> None:
    assert ckconv("convert", released, f"{tmp_path}/copy/", "--to", "safetensors", "--max-shard-size", "50kB").code == 0
    assert (tmp_path / "copy" / "config.json").read_bytes() == (released / "config.json").read_bytes()
    assert ckconv("diff", released, tmp_path / "copy").code == 0


def test_only_some_experts_decoded_are_refused_where_they_share_a_tensor(
    ckconv, tmp_path: Path, released: Path
) -> None:
    assert ckconv("convert", released, tmp_path / "m.gguf").code == 0
    result = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/o/", "--to", "safetensors",
                    "--decode", "*ffn_gate_exps*")  # fmt: skip
    assert result.code == 4
    assert "the parts of a fused tensor share one type" in result.err


@pytest.mark.parametrize("names", ["canonical", "gguf"])
def test_other_names_have_no_form_for_blocks(ckconv, tmp_path: Path, released: Path, names: str) -> None:
    result = ckconv("convert", released, f"{tmp_path}/o/", "--to", "safetensors", "--names", names)
    assert (result.code, "--dequantize" in result.err) == (4, True)


def test_a_scale_that_is_no_number_is_counted_and_refused(ckconv, tmp_path: Path, released: Path) -> None:
    def broken(scales: np.ndarray) -> np.ndarray:
        scales[0, 0, 0] = 255
        return scales

    source = edited(released, tmp_path / "nan", "down_proj_scales", broken)
    result = ckconv("convert", source, tmp_path / "m.gguf")
    assert result.code == 4
    assert "the scale of 1 group is not a finite number: " in result.err
    result = ckconv("convert", source, f"{tmp_path}/mlx/", "--to", "mlx")
    assert result.code == 4
    assert "the scale of 1 group is not a finite number: " in result.err
    result = ckconv("convert", source, f"{tmp_path}/dense/", "--to", "safetensors", "--dequantize")
    assert result.code == 4
    assert "the scale of 1 group is not a finite number: " in result.err


@pytest.mark.parametrize(
    ("ending", "change", "said"),
    [
        ("down_proj_scales", lambda a: a[..., :1], "has shape [4, 64, 1], the other arrays make it [4, 64, 2]"),
        ("down_proj_blocks", lambda a: a.reshape(4, 64, 4, 8), "has shape [4, 64, 4, 8]"),
        ("gate_up_proj_blocks", lambda a: a[:, :64], "has shape"),
    ],
)
def test_arrays_that_do_not_fit_together_are_one_sentence(
    ckconv, tmp_path: Path, released: Path, ending: str, change, said: str
) -> None:
    source = edited(released, tmp_path / "bad", ending, change)
    result = ckconv("inspect", source)
    assert result.code == 3
    assert said in result.err


def test_blocks_without_scales_are_said(ckconv, tmp_path: Path, released: Path) -> None:
    source = edited(released, tmp_path / "bad", "down_proj_scales", lambda a: None)
    assert ckconv("convert", source, tmp_path / "m.gguf").code in (3, 4)


def test_a_configuration_of_another_quantizer_contradicts_the_arrays(ckconv, tmp_path: Path, released: Path) -> None:
    shutil.copytree(released, tmp_path / "bad")
    config = json.loads((released / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (tmp_path / "bad" / "config.json").write_text(json.dumps(config))
    result = ckconv("inspect", tmp_path / "bad")
    assert result.code == 3
    assert "quant_method 'gptq'" in result.err


def test_of_an_unknown_family_nobody_knows_how_experts_lie_without_blocks(
    ckconv, tmp_path: Path, released: Path
) -> None:
    shutil.copytree(released, tmp_path / "other")
    config = json.loads((released / "config.json").read_text())
    (tmp_path / "other" / "config.json").write_text(
        json.dumps({**config, "model_type": "unheard-of", "architectures": ["UnheardOfModel"]})
    )
    assert ckconv("convert", tmp_path / "other", f"{tmp_path}/copy/", "--to", "safetensors").code == 0
    result = ckconv("convert", tmp_path / "other", f"{tmp_path}/dense/", "--to", "safetensors", "--dequantize")
    assert result.code == 4
    assert "no rule says how model.layers.0.mlp.experts.down_proj_blocks is stored once it is decoded" in result.err
