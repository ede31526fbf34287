"""What is another program's is named, with what reads it, whatever it is called."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path

import family_cases
import numpy as np
import pytest
from checkpoints import Raw, save_file as save_raw
from conftest import FIXTURES, Result
from gguf_builder import Tensor, gguf
from safetensors.numpy import load_file, save_file

from ckconv.core.layouts import BY_GGML, DTYPES, IK, ik_type, of_ggml
from ckconv.families.catalog import known_by
from ckconv.formats.detect import FOREIGN
from ckconv.plan.steps import DECODE, decode_hint


def _npz() -> bytes:
    made = io.BytesIO()
    np.savez(made, weight=np.zeros(3))
    return made.getvalue()


#: Name and first bytes -> what it is, and what reads it.
FILES = {
    ("ggml-model-q4_0.bin", b"tjgg\3\0\0\0" + bytes(64)): ("GGML file of version ggjt", "llama.cpp up to August 2023"),
    ("model.gguf", b"tjgg\3\0\0\0" + bytes(64)): ("GGML file of version ggjt", "llama.cpp up to August 2023"),
    ("x.bin", b"fmgg\1\0\0\0" + bytes(64)): ("GGML file of version ggmf", "llama.cpp"),
    ("m", b"\x1c\0\0\0TFL3" + bytes(64)): ("TFLite model", "LiteRT"),
    ("m.pte", b"\x1c\0\0\0ET12" + bytes(64)): ("ExecuTorch program", "ExecuTorch"),
    ("tf_model.h5", b"\x89HDF\r\n\x1a\n" + bytes(64)): ("HDF5 file", "Keras"),
    ("a.npy", b"\x93NUMPY\1\0" + bytes(64)): ("NumPy array", "NumPy"),
    ("m.tar.gz", b"\x1f\x8b\x08" + bytes(64)): ("gzip archive", "gzip"),
    ("m.bz2", b"BZh91AY&SY" + bytes(64)): ("bzip2 archive", "bzip2"),
    ("m.zip", b"PK\x03\x04" + bytes(64)): ("zip archive", "unzip"),
    ("m.7z", b"7z\xbc\xaf\x27\x1c" + bytes(64)): ("7-Zip archive", "7-Zip"),
    ("m.rar", b"Rar!\x1a\x07" + bytes(64)): ("RAR archive", "unrar"),
    ("m.zipped", b"PK\x03\x04" + bytes(26) + b"archive/data.pkl" + bytes(9)): ("archive of torch.save", "PyTorch"),
    ("m", b"\x28\xb5\x2f\xfd" + bytes(64)): ("Zstandard archive", "zstd"),
    ("__0_0.distcp", bytes(64)): ("checkpoint of torch.distributed", "torch.distributed.checkpoint"),
    ("a.bin", _npz()): ("NumPy archive", "NumPy"),
    ("rank0.engine", b"ptrt" + bytes(64)): ("TensorRT engine", "TensorRT"),
    ("m", b"ftrt" + bytes(64)): ("TensorRT engine", "TensorRT"),
    ("m.nemo", bytes(600)): ("NeMo archive", "NeMo"),
    ("m", b"\x08\x08\x12\x07pytorch" + bytes(64)): ("ONNX model", "ONNX Runtime"),
    ("model", b"\x08\x0e:\x8d\x01\n\x11\n\x01x" + bytes(64)): ("ONNX model", "ONNX Runtime"),
    ("openvino_model.xml", b'<?xml version="1.0"?>\n<net name="m">'): ("OpenVINO model", "OpenVINO"),
    ("openvino_model.bin", bytes(600)): ("OpenVINO model", "OpenVINO"),
    ("m.mlmodel", b"\x08\x07" + bytes(64)): ("Core ML model", "Core ML"),
    ("m.keras", b"PK\3\4" + bytes(64)): ("Keras archive", "Keras"),
    ("flax_model.msgpack", b"\x84" + bytes(64)): ("Flax checkpoint", "Flax"),
    ("llm.mnn.weight", bytes(64)): ("MNN model", "MNN"),
    ("model_state.pdparams", b"\x80\x04}q\x00."): ("PaddlePaddle model", "PaddlePaddle"),
}


@pytest.mark.parametrize(("name", "content"), FILES, ids=lambda it: it if isinstance(it, str) else "")
def test_files_of_other_programs(name: str, content: bytes, tmp_path: Path, ckconv: Callable[..., Result]) -> None:
    (tmp_path / name).write_bytes(content)
    what, reader = FILES[name, content]

    done = ckconv("inspect", tmp_path / name)

    assert (done.code, "error[input.foreign]" in done.err) == (4, True)
    assert what in done.err
    assert reader in done.err
    assert "hint: " in done.err


DIRECTORIES = {
    ("__0_0.distcp", "__1_0.distcp"): "torch.distributed",
    ("_CHECKPOINT_METADATA", "manifest.ocdbt"): "Orbax",
    ("mp_rank_00/model_optim_rng.pt",): "Megatron",
    ("latest_checkpointed_iteration.txt", "iter_0000010/x"): "Megatron",
    ("openvino_model.xml", "openvino_model.bin", "config.json"): "OpenVINO",
    ("openvino_tokenizer.bin", "other.bin.txt"): "OpenVINO",
    ("context/io.json", "context/model.yaml", "weights/__0_0.distcp", "weights/.metadata"): "NeMo 2",
    ("zero_to_fp32.py", "latest"): "DeepSpeed",
    ("qmodel.pt", "config.json"): "HQQ",
    ("onnx/model.onnx", "config.json"): "ONNX",
    ("model.onnx", "config.json"): "ONNX",
    ("flax_model.msgpack", "config.json"): "Flax",
    ("saved_model.pb", "variables/x"): "TensorFlow",
    ("tf_model.h5", "config.json"): "HDF5",
    ("m.mlpackage/Manifest.json",): "Core ML",
    ("coremldata.bin",): "Core ML",
    ("rank0.engine", "config.json"): "TensorRT",
}


@pytest.mark.parametrize("files", DIRECTORIES, ids=" ".join)
def test_directories_of_other_programs(files: tuple[str, ...], tmp_path: Path, ckconv: Callable[..., Result]) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("{}")

    done = ckconv("inspect", tmp_path)

    assert (done.code, "error[input.foreign]" in done.err) == (4, True)
    assert f"{DIRECTORIES[files]}" in done.err


def test_a_package_of_core_ml_is_told_by_its_own_name(tmp_path: Path, ckconv: Callable[..., Result]) -> None:
    (tmp_path / "m.mlpackage" / "Data").mkdir(parents=True)
    (tmp_path / "m.mlpackage" / "Manifest.json").write_text("{}")

    done = ckconv("inspect", tmp_path / "m.mlpackage")

    assert (done.code, "is a Core ML model" in done.err) == (4, True)


def test_ggml_files_without_a_version_are_not_whispers(tmp_path: Path, ckconv: Callable[..., Result]) -> None:
    llama = np.array([32000, 4096, 256, 32, 32, 128, 2, 1, 0, 0, 0], "<i4")
    (tmp_path / "ggml-model-q4_0.bin").write_bytes(b"lmgg" + llama.tobytes())

    done = ckconv("inspect", tmp_path / "ggml-model-q4_0.bin")

    assert (done.code, "hint: not of whisper.cpp? llama.cpp of March 2023" in done.err) == (3, True)


@pytest.mark.parametrize("scaled", [False, True])
def test_fp8_that_an_unknown_scale_may_belong_to_is_refused_with_a_way_out(
    scaled: bool, tmp_path: Path, ckconv: Callable[..., Result]
) -> None:
    linear = {"double_blocks.0.img_attn.proj.weight": Raw("F8_E4M3", (64, 64), b"\x38" * 4096)}
    marks = {"double_blocks.0.img_attn.proj.factor_scale": Raw("F32", (), struct.pack("<f", 0.5))}
    save_raw(tmp_path / "flux.safetensors", linear | (marks if scaled else {}))

    done = ckconv("convert", tmp_path / "flux.safetensors", tmp_path / "flux.gguf", "--dequantize")

    assert (done.code, "llama.cpp loads no F8_E4M3 here" in done.err) == ((4, True) if scaled else (0, False)), done.err
    assert ("in BF16 or F16, that it was rounded from" in done.err) == scaled


def test_weights_beside_a_model_of_openvino(tmp_path: Path, ckconv: Callable[..., Result]) -> None:
    (tmp_path / "model.bin").write_bytes(b"\1" + bytes(99))
    assert "no sound pickle" in ckconv("inspect", tmp_path / "model.bin").err
    (tmp_path / "model.xml").write_text('<?xml version="1.0"?>\n<net name="m">')

    done = ckconv("inspect", tmp_path / "model.bin")

    assert (done.code, "is an OpenVINO model, which ckconv does not read (for OpenVINO)" in done.err) == (4, True)


def test_a_checkpoint_with_exports_beside_it_is_a_checkpoint(tmp_path: Path, ckconv: Callable[..., Result]) -> None:
    for file in (FIXTURES / "hf" / "llama-bias-f32").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "onnx").mkdir()
    for file in ("flax_model.msgpack", "tf_model.h5", "zero_to_fp32.py", "openvino_model.xml"):
        (tmp_path / file).write_text("x")

    assert ckconv("inspect", tmp_path).code == 0


def test_pointers_of_git_lfs(tmp_path: Path, ckconv: Callable[..., Result]) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 5000\n"
    for name in ("pytorch_model.bin", "m.gguf", "m.safetensors", "m.onnx", "m"):
        (tmp_path / name).write_text(pointer)
        done = ckconv("inspect", tmp_path / name)
        assert (done.code, "lfs-pointer]" in done.err, "hint: run `git lfs pull`" in done.err) == (3, True, True)
    for file in (FIXTURES / "hf" / "llama-bias-f32").iterdir():
        (tmp_path / "hf").mkdir(exist_ok=True)
        (tmp_path / "hf" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "hf" / "config.json").write_text(pointer)
    done = ckconv("inspect", tmp_path / "hf")
    assert (done.code, "git-lfs pointer" in done.err, "hint: run `git lfs pull`" in done.err) == (3, True, True)


def test_types_of_ik_llama_cpp_are_named() -> None:
    assert [ik_type(number) for number in (99, 139, 398)] == [
        "Q8_2_X4 of ik_llama.cpp, which no matrix is of", "", "Q8_KV_R8 of ik_llama.cpp, which no matrix is of",
    ]  # fmt: skip
    found = [of_ggml(number, 512) for number in (139, 152, 339, 12)]
    assert [(str(dtype), dtype.nbytes(512)) for dtype in found if dtype] == [
        ("IQ4_K", 288), ("IQ5_KS", 340), ("IQ4_K_R4", 288), ("Q4_K", 288),
    ]  # fmt: skip
    assert not any(ik_type(number) or number in IK for number in BY_GGML)


def test_every_row_has_a_way_out() -> None:
    assert all(row.hint and (row.head or row.names) for row in FOREIGN)


@pytest.mark.parametrize(
    ("architecture", "classes", "said"),
    [
        ("afmoe", ["AfmoeForCausalLM"], "llama.cpp, mlx-lm and transformers know it"),
        ("bart", ["BartModel"], "no engine here knows it, transformers does"),
        ("rwkv6", [], "llama.cpp knows it"),
        ("unheard_of", [], "no engine here knows it, nor does transformers"),
        ("unheard_of", ["ChatGLMModel"], "llama.cpp knows it"),
    ],
)
def test_who_knows_an_architecture(architecture: str, classes: list[str], said: str) -> None:
    assert known_by(architecture, classes) == said


@pytest.mark.parametrize(
    ("model_type", "said"), [("bitnet", "llama.cpp, mlx-lm and"), ("bart", "no engine here knows")]
)
def test_refusals_and_inspect_say_who_knows_it(
    model_type: str, said: str, tmp_path: Path, ckconv: Callable[..., Result]
) -> None:
    save_file({"model.shared.weight": np.zeros((4, 4), np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))

    assert said in ckconv("convert", tmp_path, tmp_path / "m.gguf").err
    reasons = [
        reason for target in ckconv("inspect", tmp_path, "--json").json["targets"] for reason in target["reasons"]
    ]
    assert any(said in reason["text"] for reason in reasons)


NAMES = [
    *("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"),
    *(f"model.layers.0.{name}_layernorm.weight" for name in ("input", "post_attention")),
    *(f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkvo"),
    *(f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
]


@pytest.mark.parametrize("method", ["quanto", "fp_quant", "exl2", "hqq"])
def test_another_quantizer_is_called_as_it_calls_itself(
    method: str, tmp_path: Path, ckconv: Callable[..., Result]
) -> None:
    names = [*NAMES, "model.layers.0.mlp.up_proj.input_scale", "model.layers.0.mlp.up_proj.qweight"]
    save_file({name: np.zeros((4, 4), np.int32) for name in names}, tmp_path / "model.safetensors")
    config = json.loads((FIXTURES / "hf" / "llama-bias-f32" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": method}}))

    done = ckconv("convert", tmp_path, tmp_path / "m.gguf")

    assert f"quant_method '{method}'" in done.err
    assert not any(word in done.err for word in ("of FP8", "of GPTQ"))


def test_a_state_of_quanto_is_called_so_without_a_configuration(tmp_path: Path, ckconv: Callable[..., Result]) -> None:
    codes = {f"{name}._{part}": np.zeros((4, 4), np.int8) for name in NAMES for part in ("data", "scale")}
    save_file(codes | {f"{name[:-6]}input_scale": np.ones((), "f4") for name in NAMES}, tmp_path / "model.safetensors")
    config = FIXTURES / "hf" / "llama-bias-f32" / "config.json"
    (tmp_path / "config.json").write_bytes(config.read_bytes())

    assert "of a quanto format" in ckconv("convert", tmp_path, tmp_path / "m.gguf").err


@pytest.mark.parametrize("to", ["gguf", "bump"])
def test_codes_whose_scales_are_lost_have_a_way_out(to: str, tmp_path: Path, ckconv: Callable[..., Result]) -> None:
    source = family_cases.checkpoint(next(iter(family_cases.cases("llama"))).recorded, tmp_path / "hf")
    tensors = load_file(source / "model.safetensors")
    codes = {name: np.ones(array.shape, np.int8) for name, array in tensors.items() if name.endswith("proj.weight")}
    save_file(tensors | codes, source / "model.safetensors", {"format": "pt"})

    done = ckconv("convert", source, tmp_path / "out", "--to", to)

    assert (done.code, "21 tensors of codes without what decodes them" in done.err) == (4, True), done.err
    assert "convert the original, unquantized checkpoint" in done.err


@pytest.mark.parametrize("start", ["", "base_model.model."])
@pytest.mark.parametrize("to", ["gguf", "mlx", "bump"])
def test_a_model_with_an_adapter_in_it_is_not_one_without(
    start: str, to: str, tmp_path: Path, ckconv: Callable[..., Result]
) -> None:
    """A hint dropped what had been learned."""
    source = family_cases.checkpoint(next(iter(family_cases.cases("llama"))).recorded, tmp_path / "hf")
    tensors = {start + name: array for name, array in load_file(source / "model.safetensors").items()}
    module = f"{start}model.layers.0.self_attn.q_proj"
    tensors |= {f"{module}.lora_{side}.default.weight": np.ones((4, 24), "f4") for side in "AB"}
    tensors[f"{module}.base_layer.weight"] = tensors.pop(f"{module}.weight")
    save_file(tensors, source / "model.safetensors", {"format": "pt"})

    done = ckconv("convert", source, f"{tmp_path}/out/", "--to", to)

    assert (done.code, "an adapter are in it, which was not merged: 3 tensors" in done.err) == (4, True), done.err
    assert ("merge_and_unload()" in done.err, "--drop" in done.err) == (True, False)
    assert ckconv("convert", source, f"{tmp_path}/out/", "--to", "safetensors").code == 0


@pytest.mark.parametrize(
    ("dtype", "hint"),
    [("Q8_1", ""), ("Q8_K", ""), ("Q1_0", DECODE), ("Q2_0", DECODE), ("Q4_K", DECODE), ("IQ4_XS", DECODE)],
)
def test_blocks_without_a_decoder_have_no_hint_to_decode_them(dtype: str, hint: str) -> None:
    assert decode_hint(DTYPES[dtype]) == hint


def test_a_tower_of_another_type_is_a_tower(tmp_path: Path, ckconv: Callable[..., Result]) -> None:
    fields = [("general.architecture", "str", "clip"), ("clip.projector_type", "str", "deepseekocr2")]
    (tmp_path / "mm.gguf").write_bytes(gguf(fields, [Tensor("mm.0.weight", (4, 4))]))
    text = FIXTURES / "gguf" / "llama-bias-f32.f32.gguf"

    done = ckconv("convert", text, tmp_path / "mm.gguf", f"{tmp_path}/out/", "--to", "hf")

    assert "mm.gguf is a tower that is not known" in done.err
    assert "ckconv does not know clip.projector_type 'deepseekocr2'; llama.cpp does" in done.err
