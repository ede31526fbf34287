"""The converters that people would use instead, beside ckconv: what ``bench.py`` measures where they are installed.

llama.cpp's is found by ``LLAMA_CPP_SOURCES``, the folder of ``convert_hf_to_gguf.py``. What ckconv writes is
verified and synced, what the others write is neither. What they need is made in a process of its own, because a process
hands its peak memory on to the children it starts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from bench_inputs import quantized_shape, write_gguf

NUMBERS, CHECKPOINT = "numbers.gguf", "checkpoint"
_TOKENIZER = Path(__file__).resolve().parent.parent / "fixtures" / "hf" / "llama-tied-bf16"
_QUANTIZER = Path(__file__).resolve().parent.parent / "tests" / "llama_cpp_quantize.py"
#: Recipe -> its number in llama.h, and how many times as fast ckconv should be.
_FILE_TYPES = {"q8_0": (7, 1.0, 1.2), "q4_k_m": (15, 1.0, 1.2)}
#: The tokenizer is none that llama.cpp knows by its hash.
_LLAMA_CPP = """import importlib, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]
del sys.argv[1]
importlib.import_module("conversion.base").TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
importlib.import_module("convert_hf_to_gguf").main()
"""


class Rival(NamedTuple):
    """Another converter, and ckconv doing the same.

    Attributes:
        target, stretch: how many times as fast ckconv should be.
        what: differs from the row before, whose command is the same.
    """

    name: str
    command: list[str]
    ours: list[str]
    target: float
    stretch: float
    what: str = ""


def rivals(place: Path, ckconv: Sequence[str]) -> Iterator[Rival]:
    """Those that are installed; the others are named on stderr."""
    numbers, checkpoint, new = (str(place / name) for name in (NUMBERS, CHECKPOINT, "new"))
    gguf, folder = f"{new}/out.gguf", f"{new}/out"
    sources = os.environ.get("LLAMA_CPP_SOURCES", "")
    if sources:
        theirs = [sys.executable, "-c", _LLAMA_CPP, sources, checkpoint, "--outfile", gguf, "--outtype", "bf16"]
        yield Rival("llama.cpp's converter", theirs, [*ckconv, "convert", "-q", checkpoint, gguf], 9, 10)
    else:
        _absent("llama.cpp's converter", "LLAMA_CPP_SOURCES is not set")
    if find_spec("mlx_lm"):
        theirs = [sys.executable, "-m", "mlx_lm", "convert", "--hf-path", checkpoint, "--mlx-path", folder]
        ours = [*ckconv, "convert", "-q", checkpoint, f"{folder}/", "--to", "mlx"]
        yield Rival("mlx_lm.convert", theirs, ours, 6, 6.8)
    else:
        _absent("mlx_lm.convert", "mlx-lm is not installed")
    libraries = os.environ.get("LLAMA_CPP_LIBRARY", "")
    for name, (number, target, stretch) in _FILE_TYPES.items() if libraries else ():
        theirs = [sys.executable, str(_QUANTIZER), libraries, numbers, gguf, str(number), "all"]
        yield Rival(
            f"llama-quantize {name}",
            theirs,
            [*ckconv, "convert", "-q", numbers, gguf, "--quantize", name],
            target,
            stretch,
        )
    if libraries:
        ours = [*ckconv, "convert", "-q", checkpoint, f"{new}/out.bump", "--quantize", "q4_k_m"]
        yield Rival("llama-quantize q4_k_m", theirs, ours, 1 / 1.1, 1, ", of a checkpoint to bump")
    else:
        _absent("llama-quantize", "LLAMA_CPP_LIBRARY is not set")
    if find_spec("mlx_lm"):
        theirs = [sys.executable, "-m", "mlx_lm", "convert", "-q", "--hf-path", checkpoint, "--mlx-path", folder]
        ours = [*ckconv, "convert", "-q", checkpoint, f"{folder}/", "--to", "mlx", "--quantize", "affine:4:64"]
        yield Rival("mlx_lm.convert -q", theirs, ours, 1, 1.5)
    if find_spec("gguf2mlx"):
        theirs = [sys.executable, "-m", "gguf2mlx", "--input", numbers, "--output", folder]
        yield Rival("gguf2mlx", theirs, [*ckconv, "convert", "-q", numbers, f"{folder}/", "--to", "mlx"], 12, 14)
    else:
        _absent("gguf2mlx", "it is not installed")


def _absent(name: str, why: str) -> None:
    print(f"{name} is left out: {why}", file=sys.stderr)


def prepare(place: Path, gigabytes: float, ckconv: Sequence[str]) -> None:
    """Make a checkpoint of BF16 with a tokenizer, and the same as GGUF."""
    plain, checkpoint = place / "plain.gguf", place / CHECKPOINT
    write_gguf(plain, quantized_shape(gigabytes / 4), lambda _, shape: "BF16" if len(shape) > 1 else "F32", [])
    subprocess.run([*ckconv, "convert", "-q", str(plain), f"{checkpoint}/", "--to", "hf", "--no-verify"], check=True)
    plain.unlink()
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(_TOKENIZER / name, checkpoint)
    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    (checkpoint / "config.json").write_text(json.dumps(config | {"torch_dtype": "bfloat16"}), "utf-8")
    command = [*ckconv, "convert", "-q", str(checkpoint), str(place / NUMBERS), "--no-verify"]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    prepare(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
