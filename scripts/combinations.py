"""Options in chance combinations, over every recorded model: right, or refused.

    python scripts/combinations.py --seconds 600 --seed 1

A model of the families' cases is converted with up to three options, and what comes out is converted again. Nothing may
end as a mistake of ckconv's own (exit 1 or 5), and ``verify OUT SRC`` with the same options passes what was published.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from family_cases import cases, checkpoint, families  # noqa: E402

from ckconv.cli import run  # noqa: E402

_FLOATS = ("--dtype f32", "--dtype f16 --allow-lossy", "--dtype bf16 --allow-lossy", "--dtype keep")
_HEAD = ("--tie", "--untie", "--context 64", "--dequantize", "--decode *ffn*")

#: Format -> options that its outputs take.
OPTIONS: dict[str, tuple[str, ...]] = {
    "gguf": (
        *_FLOATS, *_HEAD, "--quantize q8_0", "--quantize q4_k_m", "--quantize q4_0,*ffn*=q5_1", "--quantize mxfp4",
        "--max-shard-size 100KB", "--drop mtp", "--drop *norm*", "--tensor-scales", "--set-meta general.name=x",
        "--drop-meta tokenizer.*", "--strict",
    ),
    "hf": (
        *_FLOATS, *_HEAD, "--max-shard-size 100KB", "--fuse qkv", "--fuse gate-up", "--names canonical",
        "--names gguf", "--pack compressed-tensors", "--pack modelopt", "--dequantize --dtype source",
    ),
    "mlx": (
        *_FLOATS, *_HEAD, "--quantize affine:4:32", "--quantize affine:8:64", "--quantize mxfp4", "--quantize nvfp4",
        "--quantize affine:3:32,*down*=affine:6:32", "--fuse qkv", "--max-shard-size 100KB", "--names hf",
    ),
    "bump": (
        *_FLOATS, *_HEAD, "--bump-version 3", "--bump-version 4", "--bump-version 5", "--engine january",
        "--engine april", "--engine july", "--quantize q4_k_m", "--quantize q8_0", "--trainable", "--wrapped", "--map",
    ),
}  # fmt: skip

#: Those that ``verify`` does not take.
_OF_CONVERT = ("--map",)

_NAMES = {"gguf": "m.gguf", "bump": "m.bump"}


def said(*arguments: object) -> tuple[int, str]:
    """Exit status of a command, and what it says."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([str(argument) for argument in arguments])
    return code, err.getvalue()


def chain(rng: random.Random, folder: Path, counts: Counter[int]) -> str:
    """Convert one model once or several times; what went wrong, or empty."""
    case = rng.choice([*cases(rng.choice(families()))])
    source = checkpoint(case.recorded, folder / "source")
    history = [f"{case.family}: {case.name}"]
    for step in range(rng.choice((1, 2, 2, 3))):
        to = rng.choice([*OPTIONS])
        chosen = rng.sample(OPTIONS[to], rng.choice((0, 1, 1, 2, 3)))
        name = "m/" if "--max-shard-size 100KB" in chosen else _NAMES.get(to, "m/")
        place = folder / str(step)
        place.mkdir()
        out = f"{place}/{name}"
        code, told = said("convert", source, out, "--to", to, *" ".join(chosen).split())
        counts[code] += 1
        history.append(f"--to {to} {' '.join(chosen)}")
        if code not in (0, 2, 3, 4):
            return f"{' -> '.join(history)}: exit {code}\n{told}"
        if code:
            return ""
        made = place / name
        made = next(iter(sorted(made.glob("*.gguf"))), made) if to == "gguf" else made
        again = [word for word in chosen if word not in _OF_CONVERT]
        code, told = said("verify", made, source, *" ".join(again).split())
        if code:
            return f"{' -> '.join(history)}: verify exits with {code}\n{told}"
        source = made
    return ""


def main() -> int:
    """Parse the arguments and try combinations until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng, counts, wrong, end = random.Random(asked.seed), Counter[int](), 0, time.monotonic() + asked.seconds
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory() as folder:
            if fault := chain(rng, Path(folder), counts):
                wrong += 1
                print(fault, flush=True)
    ends = ", ".join(f"{count:,} with exit {code}" for code, count in sorted(counts.items()))
    print(f"{counts.total():,} conversions: {ends}; {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
