"""Tiny models that hear, as transformers names them, and what makes files of them: values that float16 holds."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

#: Case -> rows of the embedding, filters, type of the values.
CASES: dict[str, tuple[int, int, str]] = {
    "multilingual-80-f16": (51865, 80, "float16"),
    "multilingual-128-f16": (51866, 128, "float16"),
    "multilingual-128-f32": (51866, 128, "float32"),
    "english-80-f16": (51864, 80, "float16"),
}

#: Types that whisper.cpp's quantize knows by name -> ggml's, and the number of a file whose matrices are of them.
BLOCKS = {"q5_0": (gguf.GGMLQuantizationType.Q5_0, 8), "q8_0": (gguf.GGMLQuantizationType.Q8_0, 7)}
#: Sizes that whole blocks fit into.
WHOLE = {"d_model": 32, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
_STAY = {
    f"{side}.{name}" for side in ("encoder", "decoder") for name in ("conv1.bias", "conv2.bias", "positional_embedding")
}

_PLAIN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PLAIN]
_LETTERS = {byte: chr(byte) for byte in _PLAIN} | {byte: chr(256 + n) for n, byte in enumerate(_OTHERS)}


def document(rows: int, mels: int, dtype: str, **changed: Any) -> dict[str, Any]:
    """``config.json``."""
    return {
        "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "dtype": dtype,
        "vocab_size": rows, "num_mel_bins": mels, "d_model": 8, "encoder_layers": 1, "decoder_layers": 2,
        "encoder_attention_heads": 2, "decoder_attention_heads": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
        "max_source_positions": 16, "max_target_positions": 12, "max_length": 12,
        **changed,
    }  # fmt: skip


def shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names of transformers, and shapes."""
    wide = config["d_model"]

    def linear(name: str, out: int, into: int, *, bias: bool = True) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.weight", (out, into)
        if bias:
            yield f"{name}.bias", (out,)

    def norm(name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.weight", (wide,)
        yield f"{name}.bias", (wide,)

    def attention(name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        for part in ("q", "k", "v", "out"):
            yield from linear(f"{name}.{part}_proj", wide, wide, bias=part != "k")

    for side, kinds in (("encoder", ("self_attn",)), ("decoder", ("self_attn", "encoder_attn"))):
        for layer in range(config[f"{side}_layers"]):
            at = f"model.{side}.layers.{layer}"
            for kind in kinds:
                yield from attention(f"{at}.{kind}")
                yield from norm(f"{at}.{kind}_layer_norm")
            yield from linear(f"{at}.fc1", config[f"{side}_ffn_dim"], wide)
            yield from linear(f"{at}.fc2", wide, config[f"{side}_ffn_dim"])
            yield from norm(f"{at}.final_layer_norm")
        yield from norm(f"model.{side}.layer_norm")
    yield "model.encoder.conv1.weight", (wide, config["num_mel_bins"], 3)
    yield "model.encoder.conv1.bias", (wide,)
    yield "model.encoder.conv2.weight", (wide, wide, 3)
    yield "model.encoder.conv2.bias", (wide,)
    yield "model.encoder.embed_positions.weight", (config["max_source_positions"], wide)
    yield "model.decoder.embed_tokens.weight", (config["vocab_size"], wide)
    yield "model.decoder.embed_positions.weight", (config["max_target_positions"], wide)


def tensors(config: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Values between -1/4 and 1/4, steps of 1/512; another sequence for every tensor."""
    made = {}
    for number, (name, shape) in enumerate(shapes(config)):
        counted = np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(number * 7919)
        mixed = (counted * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)) >> np.uint64(40)
        values = (mixed % np.uint64(257)).astype(np.float32) / 512 - 0.25
        made[name] = values.reshape(shape).astype(config["dtype"])
    return made


def vocabulary(rows: int) -> dict[str, int]:
    """As many words as the real one has, one of them empty where the model knows languages; then the end of a text."""
    end = 50256 if rows == 51864 else 50257
    spelled = (bytes([n]) if n < 256 else bytes([n // 256, n % 256]) for n in range(end))
    words = {"".join(map(_LETTERS.__getitem__, word)): number for number, word in enumerate(spelled)}
    if rows != 51864:
        words = {word if number != 50256 else "": number for word, number in words.items()}
    return {**words, "<|endoftext|>": end}


def save(folder: Path, case: str, **changed: Any) -> Path:
    """The directory of one."""
    config = document(*CASES[case], **changed)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.json").write_text(json.dumps(vocabulary(config["vocab_size"])))
    (folder / "added_tokens.json").write_text("{}")
    save_file(tensors(config), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def in_blocks(data: bytes, kind: str) -> bytes:
    """A file of F16 as whisper.cpp's quantize writes it: matrices are blocks, but for a few (quantize.cpp)."""
    blocks, number = BLOCKS[kind]
    filters = struct.unpack_from("<2i", data, 48)
    at = 56 + 4 * filters[0] * filters[1]
    (count,) = struct.unpack_from("<i", data, at)
    at += 4
    for _ in range(count):
        at += 4 + struct.unpack_from("<i", data, at)[0]
    made = bytearray(data[:44] + struct.pack("<i", 2000 + number) + data[48:at])
    while at < len(data):
        axes, length, stored = struct.unpack_from("<3i", data, at)
        shape = struct.unpack_from(f"<{axes}i", data, at + 12)
        name = data[at + 12 + 4 * axes :][:length].decode()
        at += 12 + 4 * axes + length
        values = np.frombuffer(data, ("<f4", "<f2")[stored], int(np.prod(shape)), at)
        at += values.nbytes
        packed = axes == 2 and name not in _STAY
        if packed:
            values = gguf.quantize(values.astype(np.float32).reshape(shape[::-1]), blocks)
        made += struct.pack(f"<{3 + axes}i", axes, length, blocks if packed else stored, *shape) + name.encode()
        made += values.tobytes()
    return bytes(made)
