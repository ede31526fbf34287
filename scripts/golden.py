"""The golden file: every fixture x target x options, with exit status, SHA-256 of every output and messages.

    python scripts/golden.py           write tests/golden.tsv anew
    python scripts/golden.py --check   compare, and print the lines that differ

With a folder of the fixtures behind ``--check``, the lines of that one: few enough for another processor (README of
``fixtures/quantised``: Debian's ``qemu-x86_64-static -cpu Nehalem python3 scripts/golden.py --check quantized``).

A line is one run of ``ckconv convert``: source, options, status, either the error's code or each output file with the
first 16 digits of its SHA-256, and what the user is told: the report's notes, or the error's sentence, details and
hint. A change that moves a line says in its commit message why the new bytes, or the new words, are right.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ckconv.cli import run  # noqa: E402
from ckconv.formats.bump import write as documents5  # noqa: E402

GOLDEN = ROOT / "tests" / "golden.tsv"
FIXTURES = ROOT / "fixtures"

#: Name of the target's options -> arguments. Every source goes through all of them, refusals included.
RUNS: dict[str, tuple[str, ...]] = {
    "bump": ("--to", "bump"),
    "bump 3 lossless": ("--to", "bump", "--bump-version", "3", "--dequantize"),
    "bump 4": ("--to", "bump", "--bump-version", "4"),
    "bump 5": ("--to", "bump", "--bump-version", "5", "--map"),
    "bump 5 keep": ("--to", "bump", "--bump-version", "5", "--dtype", "keep", "--no-source-record"),
    "gguf": ("--to", "gguf"),
    "gguf f32 split": ("--to", "gguf", "--dtype", "f32", "--max-shard-size", "200KB"),
    "safetensors": ("--to", "safetensors"),
    "safetensors decoded": ("--to", "safetensors", "--dequantize", "--dtype", "f32", "--max-shard-size", "200KB"),
    "safetensors canonical": ("--to", "safetensors", "--names", "canonical", "--untie"),
    "mlx": ("--to", "mlx"),
    "mlx fused": ("--to", "mlx", "--fuse", "qkv", "--fuse", "gate-up", "--checksums"),
    "gguf quantized": ("--to", "gguf", "--quantize", "q4_k_m"),
    "bump trainable": ("--to", "bump", "--trainable"),
    "bump 5 quantized": ("--to", "bump", "--bump-version", "5", "--quantize", "q8_0", "--no-source-record"),
    "mlx quantized": ("--to", "mlx", "--quantize", "affine:4:32,*embed*=affine:8:64"),
    "peft": ("--to", "peft"),
}

#: Linear layers in the layout of another quantizer, of whatever is quantized.
LAID_OUT: dict[str, tuple[str, ...]] = {
    f"packed as {layout}": ("--to", "hf", "--pack", layout, "--decode", "*emb*")
    for layout in ("compressed-tensors", "modelopt")
}

#: What is asked of checkpoints that another quantizer packed: those of the runs that its packing matters to.
PACKED: dict[str, tuple[str, ...]] = {
    **{name: RUNS[name] for name in ("bump", "gguf", "safetensors", "safetensors decoded", "mlx")},
    "safetensors library": ("--to", "safetensors", "--dequantize", "--dtype", "source"),
    "gguf scaled": ("--to", "gguf", "--tensor-scales"),
    **LAID_OUT,
}

#: Folders of models that are quantized -> what is asked of them.
QUANTIZED = {"quantised": PACKED, "mlx": RUNS | LAID_OUT, "kquants": RUNS | LAID_OUT}

#: What is done with an output: its source, the directory, and the options it was made with.
Look = Callable[[Path, Path, tuple[str, ...]], None]


def sources() -> list[Path]:
    """Every model and adapter of the fixtures: a file, a directory, or the first shard of a set."""
    found = []
    for kind in ("gguf", "kquants", "gguf-lora"):
        found += sorted((FIXTURES / kind).glob("*.gguf"))
    found.append(FIXTURES / "gguf-split" / "llama-untied-f32-00001-of-00003.gguf")
    for kind in ("hf", "mlx", "mlx-dequantized", "lora", "quantised"):
        found += sorted(path for path in (FIXTURES / kind).iterdir() if path.is_dir())
    return found


def lines(start: str, look: Look | None = None) -> Iterator[str]:
    """One line a run, in a fixed order, of those that start so: of a folder, a source, one of its runs, or all.

    Args:
        look: called with every output that is made.
    """
    os.environ.pop("SOURCE_DATE_EPOCH", None)
    for source in sources():
        base = base_of(source)
        for name, arguments in QUANTIZED.get(source.parent.name, RUNS).items():
            if not f"{source.relative_to(FIXTURES)}\t{name}\t".startswith(start):
                continue
            with tempfile.TemporaryDirectory() as place:
                out = Path(place) / "out"
                call = ["convert", str(source), f"{out}/", *arguments, *base, "--json"]
                status, printed = called(call)
                told = json.loads(printed[printed.index("{") :])
                if status == 0 and look is not None:
                    look(source, out, (*arguments, *base))
                outcome = _digests(out) if status == 0 else str(told["error"]["code"])
                messages = _messages(told).replace(f"{FIXTURES}/", "").replace(str(out), "OUT")
                yield "\t".join((str(source.relative_to(FIXTURES)), name, str(status), outcome, messages)).rstrip()


def base_of(source: Path) -> tuple[str, ...]:
    """The base of an adapter of the fixtures, where its name says which it is."""
    if source.parent.name not in ("lora", "gguf-lora") or "merged" in source.name or "fused" in source.name:
        return ()
    family = source.name.partition("-")[0]
    bases = {"llama": "llama-untied-f32", "qwen2": "qwen2-tied-bf16", "gpt2": "gpt2-f32", "phi3": "phi3-bf16"}
    path = FIXTURES / "hf" / bases.get(family, "")
    return ("--base", str(path)) if family in bases and path.is_dir() else ()


def called(call: list[str]) -> tuple[int, str]:
    """Exit status of a command, and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(call)
    return status, out.getvalue() + err.getvalue()


def _messages(told: dict[str, Any]) -> str:
    """What the user is told, on one line: notes of a report; sentence, details and hint of an error."""
    if "error" not in told:
        return " | ".join(told["notes"])
    error = told["error"]
    return " | ".join([error["message"], *error["details"], *([f"hint: {error['hint']}"] if error["hint"] else [])])


def _digests(out: Path) -> str:
    """Every file below ``out`` with its digest."""
    found = []
    for path in sorted(out.rglob("*")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        found.append(f"{path.relative_to(out)}={digest[:16]}")
    shutil.rmtree(out)
    return " ".join(found)


def made(start: str, look: Look | None = None) -> list[str]:
    """The lines that start so, as they are now."""
    with patch.object(documents5, "__version__", "0.1.0"):  # bump 5 says it, and no line is to move with a release
        return list(lines(start, look))


def differences(start: str, look: Look | None = None) -> list[str]:
    """How the lines that start so differ from those of the golden file."""
    before = [line for line in GOLDEN.read_text().splitlines() if line.startswith(start)]
    return list(difflib.unified_diff(before, made(start, look), "golden", "now", lineterm="", n=0))


def main() -> int:
    """Write or compare the golden file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", nargs="?", const="", metavar="FOLDER", help="compare, and change nothing")
    asked = parser.parse_args()
    if asked.check is None:
        GOLDEN.write_text("\n".join(made("")) + "\n")
        return 0
    found = differences(asked.check)
    print("\n".join(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
