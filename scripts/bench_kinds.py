"""What ``bench.py`` measures of each type and packing, and of very many tensors, files and models.

Made in a process of its own, because a process hands its peak memory on to the children it starts.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from bench_inputs import TYPES, Shape, write_gguf

ROOT = Path(__file__).resolve().parent.parent
SMALL = ROOT / "fixtures" / "gguf" / "llama-tied-bf16.auto.gguf"
_LIBRARY = ROOT / "tests" / "llama_cpp_quantize.py"

#: Block types that are decoded -> their number in ``ggml.h``, elements and bytes of a block.
_BLOCKS = {
    "Q4_0": (2, 32, 18), "Q8_0": (8, 32, 34), "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210), "IQ2_XS": (17, 256, 74), "IQ3_S": (21, 256, 110),
    "IQ4_XS": (23, 256, 136), "TQ2_0": (35, 256, 66), "MXFP4": (39, 32, 17),
}  # fmt: skip
#: Checkpoints as other quantizers write them.
_PACKED = ("FP8", "NVFP4", "AWQ", "GPTQ", "bitsandbytes")
#: Types and recipes -> their numbers in ``llama.h``; Q8_0 and Q4_K_M are measured of a larger model.
_FILE_TYPES = {
    "q4_0": 2, "q5_1": 9, "q2_k": 10, "q3_k_m": 12, "q5_k_m": 17, "q6_k": 18, "iq4_xs": 30, "tq2_0": 37,
}  # fmt: skip
#: What ``--quantize`` is told -> bits, size of groups and mode of ``mx.quantize``.
_MLX = {f"affine:{bits}:64": (bits, 64, "affine") for bits in (2, 3, 4, 5, 6, 8)} | {
    "mxfp4": (4, 32, "mxfp4"), "mxfp8": (8, 32, "mxfp8"), "nvfp4": (4, 16, "nvfp4"),
}  # fmt: skip
_MX = """import sys
import mlx.core as mx
source, target, bits, group, mode = sys.argv[1:]
made = {}
for name, weight in mx.load(source).items():
    parts = mx.quantize(weight, group_size=int(group), bits=int(bits), mode=mode) if weight.ndim > 1 else [weight]
    made |= {f"{name}.{n}": part for n, part in enumerate(parts)}
mx.save_safetensors(target, made)
"""
_ONE_AFTER_ANOTHER = """import sys
from pathlib import Path
import ckconv
for source in sys.argv[2:]:
    (place := Path(sys.argv[1], Path(source).stem)).mkdir(parents=True)
    ckconv.convert(source, place / Path(source).name, record=True)
"""
_NAMES, _FLOATS, _CHECKPOINT, _MODELS = "kinds", "few.gguf", "small", "models"
_WIDE = Shape(6, 2048, 5632, 16, 4, 8_000)
SPARSE, SHARDS = "sparse", "shards"


class Pair(NamedTuple):
    """Something to measure, and what it is measured against.

    Attributes:
        target: the ratio to reach; of ``planning``, milliseconds more than bare Python.
    """

    name: str
    command: list[str]
    against: str
    other: list[str]
    target: float | None
    planning: bool = False


def pairs(place: Path, ckconv: Sequence[str]) -> Iterator[Pair]:
    """All of them; programs that are missing leave theirs out."""
    new, kinds = place / "new", place / _NAMES
    floats, checkpoint = str(place / _FLOATS), place / _CHECKPOINT
    for names, kind in ((list(_BLOCKS), "blocks"), (list(_PACKED), "packed")):
        decoded = ["openssl", "dgst", "-sha256", str(kinds / f"{kind}-decoded" / "model.safetensors")]
        for name in names:
            source = str(kinds / (f"{name}.gguf" if kind == "blocks" else name))
            command = [*ckconv, *_DECODE, source, f"{new}/"]
            yield Pair(f"decoding {name}", command, f"openssl dgst of decoded {kind}", decoded, 1.2)
    if libraries := os.environ.get("LLAMA_CPP_LIBRARY", ""):
        for name, number in _FILE_TYPES.items():
            out = str(new / "out.gguf")
            theirs = [sys.executable, str(_LIBRARY), libraries, floats, out, str(number), "all"]
            ours = [*ckconv, "convert", "-q", floats, out, "--quantize", name]
            yield Pair(f"{name} / llama-quantize {name}", ours, f"llama-quantize {name}", theirs, 1.0)
    if find_spec("mlx"):
        for name, how in _MLX.items():
            theirs = [sys.executable, "-c", _MX, str(checkpoint / "model.safetensors"), str(new / "out.safetensors")]
            ours = [*ckconv, "convert", "-q", str(checkpoint), f"{new}/out/", "--to", "mlx", "--quantize", name]
            yield Pair(f"{name} / mx.quantize", ours, f"mx.quantize {name}", [*theirs, *map(str, how)], 1.0)
    models = [str(path) for path in sorted((place / _MODELS).iterdir())]
    one_by_one = [sys.executable, "-c", _ONE_AFTER_ANOTHER, str(new / "each"), *models]
    batch = [*ckconv, "batch", "-q", *models, "--to", "gguf", "--into", str(new / "all"), "--no-source-record"]
    yield Pair("batch of 200 / 200 in one process", batch, "200 in one process, with records", one_by_one, 1.1)
    for name, words in ((SPARSE, "of 200 GB"), (SHARDS, "of 10,000 shards")):
        plan = [*ckconv, "convert", "-q", "--dry-run", str(place / name), f"{new}/", "--to", "mlx"]
        yield Pair(f"planning {words}", plan, "bare Python", [], 10_000, planning=True)


_DECODE = ["convert", "-q", "--to", "hf", "--dequantize", "--dtype", "f32", "--force"]


def _write_sparse(place: Path, shape: Shape, files: int) -> None:
    """A llama checkpoint in BF16 whose data is a hole."""
    place.mkdir()
    names = {"token_embd": "embed_tokens", "output_norm": "norm", "attn_norm": "input_layernorm",
             "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
             "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj",
             "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}  # fmt: skip
    dealt: list[dict[str, object]] = [{} for _ in range(files)]
    ends, where = [0] * files, {}
    for at, (name, dimensions) in enumerate(shape.tensors().items()):
        *layer, word, _ = name.removeprefix("blk.").split(".")
        stored = f"model.{'layers.' + layer[0] + '.' if layer else ''}{names[word]}.weight"
        n = at % files
        size = 2 * dimensions[0] * (dimensions[1] if len(dimensions) > 1 else 1)
        dealt[n][stored] = {"dtype": "BF16", "shape": dimensions, "data_offsets": [ends[n], ends[n] + size]}
        ends[n] += size
        where[stored] = f"model-{n + 1:05}-of-{files:05}.safetensors"
    for n, (entries, end) in enumerate(zip(dealt, ends, strict=True)):
        header = json.dumps(entries).encode()
        with (place / f"model-{n + 1:05}-of-{files:05}.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + end)
    index = {"metadata": {"total_size": sum(ends)}, "weight_map": where}
    (place / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden, "intermediate_size": shape.ffn, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "vocab_size": shape.vocab, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (place / "config.json").write_text(json.dumps(config))


def _write_packed(place: Path) -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    import packed_checkpoints as packed  # type: ignore[import-not-found]
    from checkpoints import Decoder  # type: ignore[import-not-found]

    decoder = Decoder(layers=3, hidden=2048, heads=16, kv_heads=4, head_dim=128, ffn=16384, vocab=8_000)
    packed.fp8_model(place / "FP8", decoder, block=(128, 128))
    packed.torchao_mx_model(place / "NVFP4", decoder, kind="nvfp4")
    packed.awq_model(place / "AWQ", decoder, group=128)
    packed.gptq_model(place / "GPTQ", decoder, group=128)
    packed.bitsandbytes_model(place / "bitsandbytes", decoder)


def _type(name: str, _: str, shape: tuple[int, ...]) -> str:
    return name if len(shape) > 1 else "F32"


def prepare(place: Path, ckconv: Sequence[str]) -> None:
    """Make all inputs, and what decoded ones are."""
    kinds = place / _NAMES
    kinds.mkdir()
    TYPES.update(_BLOCKS)
    for name in _BLOCKS:
        write_gguf(kinds / f"{name}.gguf", _WIDE, partial(_type, name), [])
    _write_packed(kinds)
    for source, kind in (("Q4_0.gguf", "blocks"), ("FP8", "packed")):
        command = [*ckconv, *_DECODE, "--no-verify", str(kinds / source), f"{kinds}/{kind}-decoded/"]
        subprocess.run(command, check=True)
    command = [*ckconv, "convert", "-q", str(place / _FLOATS), f"{place / _CHECKPOINT}/", "--to", "hf", "--no-verify"]
    subprocess.run(command, check=True)
    (place / _MODELS).mkdir()
    for n in range(200):
        shutil.copy(SMALL, place / _MODELS / f"model{n:03}.gguf")
    _write_sparse(place / SPARSE, Shape(117, 8192, 28672, 64, 8, 32_000), 117)
    _write_sparse(place / SHARDS, Shape(1111, 64, 96, 4, 2, 40), 10_000)


if __name__ == "__main__":
    prepare(Path(sys.argv[1]), sys.argv[2:])
