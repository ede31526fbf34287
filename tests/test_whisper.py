"""Files of whisper.cpp: byte for byte its own converter's, and back; what is malformed, and what is not computed."""

from __future__ import annotations

import json
import shutil
import struct
from hashlib import sha256
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from whisper_cases import BLOCKS, CASES, WHOLE, document, in_blocks, save, tensors, vocabulary

HERE = Path(__file__).parent
RECORDED = json.loads((HERE / "whisper_files.json").read_text())["files"]
QUANTIZED = json.loads((HERE / "whisper_files.json").read_text())["quantised"]
SMALL = "english-80-f16"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("whisper") / "model", SMALL)


@pytest.fixture(scope="module")
def made(model: Path) -> bytes:
    from ckconv.api import convert

    path = model.parent / "model.bin"
    convert(model, path, to="whisper-ggml")
    return path.read_bytes()


def edited(model: Path, folder: Path, **changed: Any) -> Path:
    """The same tensors with another configuration."""
    folder.mkdir()
    for name in ("vocab.json", "model.safetensors"):
        shutil.copy(model / name, folder)
    (folder / "config.json").write_text(json.dumps(document(*CASES[SMALL], **changed)))
    return folder


@pytest.mark.parametrize("case", CASES)
def test_the_file_is_that_of_its_own_converter(case: str, tmp_path: Path, ckconv) -> None:
    source, out = save(tmp_path / "model", case), tmp_path / "out.bin"
    flags = ["--dtype", "f32"] if case.endswith("f32") else []

    assert ckconv("convert", source, out, "--to", "whisper-ggml", *flags).code == 0

    data = out.read_bytes()
    assert (len(data), sha256(data).hexdigest()) == (RECORDED[case]["bytes"], RECORDED[case]["sha256"])
    assert ckconv("verify", out, source).code == 0


@pytest.mark.parametrize("case", ["multilingual-128-f16", "english-80-f16"])
def test_and_back(case: str, tmp_path: Path, ckconv) -> None:
    source, out, back = save(tmp_path / "model", case), tmp_path / "out.bin", tmp_path / "back"
    assert ckconv("convert", source, out, "--to", "whisper-ggml").code == 0

    assert ckconv("convert", out, f"{back}/", "--to", "hf").code == 0

    found, values = load_file(back / "model.safetensors"), load_file(source / "model.safetensors")
    assert found.keys() == values.keys()
    assert all(np.array_equal(found[name].astype(np.float32), values[name].astype(np.float32)) for name in values)
    said, meant = json.loads((back / "config.json").read_text()), document(*CASES[case])
    assert said.items() >= {(key, value) for key, value in meant.items() if isinstance(value, int | str)} - {
        ("max_length", 12), ("dtype", "float16"),
    }  # fmt: skip
    assert said["eos_token_id"] == (50256 if case == SMALL else 50257)
    settings = json.loads((back / "preprocessor_config.json").read_text())
    assert (settings["feature_size"], settings["feature_extractor_type"]) == (CASES[case][1], "WhisperFeatureExtractor")
    assert ckconv("verify", back, out).code == 0
    assert ckconv("diff", "--weights", back, source).code == 0
    (back / "vocab.json").write_text(json.dumps(vocabulary(said["vocab_size"])))
    assert ckconv("convert", back, tmp_path / "again.bin", "--to", "whisper-ggml").code == 0
    assert (tmp_path / "again.bin").read_bytes() == out.read_bytes()


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model whose rows are whole blocks, as F16 and as every type of blocks."""
    from ckconv.api import convert

    folder = tmp_path_factory.mktemp("blocks")
    convert(save(folder / "model", SMALL, **WHOLE), folder / "f16.bin", to="whisper-ggml")
    for kind in BLOCKS:
        (folder / f"{kind}.bin").write_bytes(in_blocks((folder / "f16.bin").read_bytes(), kind))
    return folder


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_are_those_of_whisper_cpps_quantize_and_stay_in_a_copy(
    kind: str, blocks: Path, tmp_path: Path, ckconv
) -> None:
    source, data = blocks / f"{kind}.bin", (blocks / f"{kind}.bin").read_bytes()
    assert sha256(data).hexdigest() == QUANTIZED[kind]
    said = ckconv("inspect", source).out
    assert f"file_type\t{BLOCKS[kind][1]}\n" in said
    assert f"types\t{kind.upper()}\n" in said
    assert ckconv("verify", source).code == 0

    assert ckconv("convert", source, tmp_path / "out.bin", "--to", "whisper-ggml").code == 0

    assert (tmp_path / "out.bin").read_bytes() == data
    assert ckconv("verify", tmp_path / "out.bin", source).code == 0


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_are_decoded_where_a_flag_says_so(kind: str, blocks: Path, tmp_path: Path, ckconv) -> None:
    source, back = blocks / f"{kind}.bin", f"{tmp_path}/back/"
    result = ckconv("convert", source, back, "--to", "hf")
    assert (result.code, "--dequantize decodes them" in result.err) == (4, True)

    assert ckconv("convert", source, back, "--to", "hf", "--dequantize").code == 0

    found, values = load_file(tmp_path / "back" / "model.safetensors"), tensors(document(*CASES[SMALL], **WHOLE))
    name = "model.decoder.layers.1.fc2.weight"
    decoded = gguf.dequantize(gguf.quantize(values[name].astype(np.float32), BLOCKS[kind][0]), BLOCKS[kind][0])
    assert np.array_equal(found[name], decoded)
    exact = [name for name in values if values[name].ndim != 2 or "embed_positions" in name]
    assert all(np.array_equal(found[name], values[name].astype(found[name].dtype)) for name in exact)
    assert ckconv("verify", tmp_path / "back", source, "--dequantize").code == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--dtype", "f32"], "kernels of convolutions beside blocks as F16"),
        (["--decode", "*key*"], "whisper.cpp loads matrices of one type"),
        (["--dequantize"], "on kernels of convolutions that are FP32"),
        (["--dequantize", "--dtype", "f16"], "f16 cannot hold"),
    ],
)
def test_what_whisper_cpp_would_not_load_of_blocks_is_refused(
    flags: list[str], said: str, blocks: Path, tmp_path: Path, ckconv
) -> None:
    result = ckconv("convert", blocks / "q8_0.bin", tmp_path / "out.bin", "--to", "whisper-ggml", *flags)
    assert (result.code, said in result.err) == (4, True), result.err


def test_a_copy_is_the_same_file(model: Path, made: bytes, tmp_path: Path, ckconv) -> None:
    assert ckconv("convert", model.parent / "model.bin", f"{tmp_path}/", "--to", "whisper-ggml").code == 0
    assert (tmp_path / "ggml-model.bin").read_bytes() == made
    assert ckconv("inspect", tmp_path, "--json").json["format"] == "whisper-ggml"
    assert ckconv("verify", tmp_path, model).code == 0


def test_words_of_a_tokenizer_json_do_as_well(model: Path, made: bytes, tmp_path: Path, ckconv) -> None:
    source = edited(model, tmp_path / "model")
    words = json.loads((source / "vocab.json").read_text())
    (source / "vocab.json").unlink()
    (source / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": words}}))

    assert ckconv("convert", source, tmp_path / "out.bin", "--to", "whisper-ggml").code == 0
    assert (tmp_path / "out.bin").read_bytes() == made


def test_a_flipped_bit_is_found(made: bytes, model: Path, tmp_path: Path, ckconv) -> None:
    for at in (-5, 60):  # of the last tensor, of the filters
        data = bytearray(made)
        data[at] ^= 1
        (tmp_path / "out.bin").write_bytes(data)
        assert ckconv("verify", tmp_path / "out.bin", model).code == 5


def test_fp32_is_written_where_it_is_asked_for(tmp_path: Path, ckconv) -> None:
    """Without a flag it would be a file on which whisper.cpp ends, and with F16 every value has to fit."""
    source = save(tmp_path / "model", "multilingual-128-f32")
    out = tmp_path / "out.bin"

    result = ckconv("convert", source, out, "--to", "whisper-ggml")
    assert (result.code, "matrices are F32" in result.err, "--dtype f16" in result.err) == (4, True, True)
    assert ckconv("convert", source, out, "--to", "whisper-ggml", "--dtype", "f16").code == 0
    assert sha256(out.read_bytes()).hexdigest() == RECORDED["multilingual-128-f16"]["sha256"]

    values = tensors(document(*CASES["multilingual-128-f32"]))
    values["model.encoder.layers.0.fc1.weight"][0, 0] = 1 / 3
    save_file(values, source / "model.safetensors")
    result = ckconv("convert", source, out, "--to", "whisper-ggml", "--dtype", "f16", "--force")
    assert (result.code, "--allow-lossy" in result.err) == (4, True)
    flags = ("--dtype", "f16", "--allow-lossy", "--force")
    assert ckconv("convert", source, out, "--to", "whisper-ggml", *flags).code == 0


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"activation_function": "relu"}, "activation_function = 'relu' changes the computation"),
        ({"encoder_attention_heads": 3}, "encoder_attention_heads is 3, which does not divide d_model, 8"),
        ({"scale_embedding": True}, "scale_embedding = True changes the computation"),
    ],
)
def test_what_whisper_cpp_does_not_compute_is_refused(
    changed: dict[str, Any], said: str, model: Path, tmp_path: Path, ckconv
) -> None:
    result = ckconv("convert", edited(model, tmp_path / "model", **changed), tmp_path / "o.bin", "--to", "whisper-ggml")
    assert (result.code, said in result.err) == (4, True), result.err


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"vocab_size": 51867}, "vocab_size is 51,867, by which whisper.cpp finds its special tokens"),
        ({"encoder_ffn_dim": 16}, "encoder_ffn_dim is 16, and whisper.cpp makes it 4 times d_model, 8"),
        ({"num_mel_bins": 64}, "num_mel_bins is 64, and openai-whisper has filters for 80 or 128"),
    ],
)
def test_sizes_that_it_does_not_load_are_refused(changed: dict[str, Any], said: str, tmp_path: Path, ckconv) -> None:
    source = save(tmp_path / "model", SMALL, **changed)
    result = ckconv("convert", source, tmp_path / "out.bin", "--to", "whisper-ggml")
    assert (result.code, said in result.err) == (4, True), result.err


def test_a_head_of_its_own_is_refused(tmp_path: Path, ckconv) -> None:
    source = save(tmp_path / "model", SMALL, tie_word_embeddings=False)
    values = load_file(source / "model.safetensors")
    embedding = values["model.decoder.embed_tokens.weight"]
    for head, code in ((embedding + np.float16(1), 4), (embedding, 0)):
        save_file({**values, "proj_out.weight": head}, source / "model.safetensors")
        assert ckconv("convert", source, tmp_path / "out.bin", "--to", "whisper-ggml").code == code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (None, "there is no vocabulary beside it"),
        ({"a": 0, "<|endoftext|>": 50256}, "the vocabulary has no word 1"),
        ({**{f"{n}": n for n in range(50256)}, "\u4e00": 7}, "is not spelled in the letters of byte-level BPE"),
    ],
)
def test_words_that_are_not_there_are_refused(words: Any, said: str, model: Path, tmp_path: Path, ckconv) -> None:
    source = edited(model, tmp_path / "model")
    (source / "vocab.json").unlink()
    if words is not None:
        (source / "vocab.json").write_text(json.dumps(words))
    result = ckconv("convert", source, tmp_path / "out.bin", "--to", "whisper-ggml")
    assert (result.code, said in result.err) == (4, True), result.err


def test_filters_of_its_own_are_refused_for_transformers(made: bytes, tmp_path: Path, ckconv) -> None:
    data = bytearray(made)
    struct.pack_into("<f", data, 56, 0.5)
    (tmp_path / "out.bin").write_bytes(data)
    result = ckconv("convert", tmp_path / "out.bin", f"{tmp_path}/back/", "--to", "hf")
    assert (result.code, "the filters are not those of openai-whisper" in result.err) == (4, True)


# Malformed files. The header ends at byte 48, filters of 80 by 201 at 64,376, words behind that.

WORDS = 56 + 80 * 201 * 4


def first_tensor(data: bytes) -> int:
    """Where the first tensor is described."""
    at = WORDS + 4
    for _ in range(struct.unpack_from("<i", data, WORDS)[0]):
        at += 4 + struct.unpack_from("<i", data, at)[0]
    return at


def put(data: bytes, at: int, *numbers: int) -> bytes:
    return data[:at] + struct.pack(f"<{len(numbers)}i", *numbers) + data[at + 4 * len(numbers) :]


BROKEN = {
    "magic": (lambda d, t: b"GGJT" + d[4:], "whisper.magic", "starts with 'GGJT', not with 'lmgg'"),
    "cut in the header": (lambda d, t: d[:20], "whisper.truncated", "the file ends at byte 20, inside the header"),
    "no rows": (lambda d, t: put(d, 4, 0), "whisper.header", "n_vocab is 0, outside 1 to 1,048,576"),
    "two widths": (lambda d, t: put(d, 28, 16), "whisper.header", "n_audio_state is 8, n_text_state is 16"),
    "bins": (lambda d, t: put(d, 52, 200), "whisper.header", "there are 80 filters of 200 bins, and n_mels is 80"),
    "cut in the filters": (lambda d, t: d[:999], "whisper.truncated", "the file ends at byte 999, inside the filters"),
    "too many words": (
        lambda d, t: put(d, WORDS, 60000),
        "whisper.words",
        "there are 60,000 words, and n_vocab is 51,864",
    ),
    "a word of less than no bytes": (lambda d, t: put(d, WORDS + 4, -1), "whisper.words", "word 0 has -1 bytes"),
    "a word beyond the end": (lambda d, t: put(d, WORDS + 4, 1 << 30), "whisper.truncated", "inside word 0"),
    "axes": (lambda d, t: put(d, t, 5), "whisper.tensor", "tensor 0 has 5 axes, outside 1 to 4"),
    "name": (lambda d, t: put(d, t + 4, 0), "whisper.tensor", "the name of tensor 0 has 0 bytes"),
    "not UTF-8": (
        lambda d, t: d[: t + 24] + b"\xff" + d[t + 25 :],
        "whisper.tensor",
        "the name of tensor 0 is not UTF-8",
    ),
    "type": (lambda d, t: put(d, t + 8, 4), "whisper.tensor", "'encoder.conv1.weight' has type 4, which ggml does not"),
    "shape": (lambda d, t: put(d, t + 12, -3), "whisper.tensor", "'encoder.conv1.weight' of F16 has shape [8, 80, -3]"),
    "contradicted": (
        lambda d, t: put(d, t + 12, 1, 240),
        "model.config",
        "has shape [8, 240, 1], the configuration makes",
    ),
    "cut in a tensor": (lambda d, t: d[:-1], "whisper.truncated", "inside 'decoder.ln.bias'"),
    "cut in what describes one": (lambda d, t: d + b"\1\0", "whisper.truncated", "inside the header of tensor 74"),
    "twice": (
        lambda d, t: d + d[t : t + 44 + 8 * 80 * 3 * 2],
        "whisper.tensor",
        "'encoder.conv1.weight' is there twice",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_malformed_is_said(case: str, made: bytes, tmp_path: Path, ckconv) -> None:
    edit, code, said = BROKEN[case]
    (tmp_path / "out.bin").write_bytes(edit(made, first_tensor(made)))

    result = ckconv("inspect", "--from", "whisper-ggml", tmp_path / "out.bin")

    assert (result.code, f"error[{code}]" in result.err, said in result.err) == (3, True, True), result.err


def test_a_file_without_a_tensor_is_refused(made: bytes, tmp_path: Path, ckconv) -> None:
    (tmp_path / "out.bin").write_bytes(made[:-63])
    for to in ("hf", "whisper-ggml"):
        result = ckconv("convert", tmp_path / "out.bin", f"{tmp_path}/{to}/", "--to", to)
        assert (result.code, "no tensor for output_norm.bias" in result.err) == (4, True), result.err


def test_others_have_no_place_for_it(model: Path, made: bytes, tmp_path: Path, ckconv, fixtures: Path) -> None:
    assert made
    for to, said in (
        ("gguf", "llama.cpp has no architecture for whisper"),
        ("mlx", "what mlx-lm computes of a whisper"),
    ):
        result = ckconv("convert", model.parent / "model.bin", f"{tmp_path}/{to}/", "--to", to)
        assert (result.code, said in result.err) == (4, True)
    llama = fixtures / "gguf" / "llama-tied-bf16.auto.gguf"
    result = ckconv("convert", llama, tmp_path / "out.bin", "--to", "whisper-ggml")
    assert (result.code, "whisper.cpp computes no llama" in result.err) == (4, True)


def test_mlx_lm_has_no_epsilon_for_what_it_does_not_know(tmp_path: Path, ckconv) -> None:
    result = ckconv("convert", save(tmp_path / "model", SMALL), f"{tmp_path}/out/", "--to", "mlx", "--json")
    error = json.loads(result.err)["error"]
    assert error["message"].endswith(": ckconv does not know what mlx-lm computes of a whisper (model_type)")
