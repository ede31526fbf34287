"""Every bit of an output counts: flip one at a time, and see that ``ckconv verify OUT SRC`` notices.

    python scripts/bitflips.py [--flips 5000] [--seed 1]

Outputs are made of the fixtures, one of every kind of source for every kind of target, with side files, source record,
conversion record and checksums as they come. Bits are sampled over all files of all outputs: half of them over all
bytes that are no tensor data (there are few of those), half over everything. A flip is found where the exit status is
3 or 5; zeros between tensors, which no reader looks at, are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ckconv.cli import run  # noqa: E402
from ckconv.formats.detect import open_index  # noqa: E402

FIXTURES = ROOT / "fixtures"

#: Source -> the conversions that are made of it.
RUNS: dict[str, tuple[tuple[str, ...], ...]] = {
    "gguf/llama-tied-bf16.auto.gguf": (
        ("--to", "gguf"),
        ("--to", "bump", "--bump-version", "3"),
        ("--to", "bump", "--bump-version", "5", "--map"),
        ("--to", "safetensors"),
        ("--to", "mlx", "--max-shard-size", "100KB"),
    ),
    "hf/qwen2-tied-bf16": (
        ("--to", "gguf"),
        ("--to", "safetensors", "--names", "canonical"),
        ("--to", "bump", "--bump-version", "4", "--map"),
        ("--to", "mlx"),
    ),
    "hf/gpt2-hub-f32": (("--to", "gguf", "--max-shard-size", "200KB"),),
    "mlx/llama-tied-bf16.q4g64": (("--to", "mlx"), ("--to", "gguf"), ("--to", "safetensors", "--dequantize")),
    "kquants/llama64.Q4_K_M.gguf": (("--to", "bump", "--dequantize"), ("--to", "gguf")),
    "lora/mlx-lora": (("--to", "peft"), ("--to", "mlx")),
}

#: Every output is made twice: alone, and with a conversion record and the digests of all files beside it, which
#: notice most flips by themselves.
BESIDE: tuple[tuple[str, ...], ...] = ((), ("--record", "--checksums"))


@dataclass(frozen=True)
class Output:
    """One conversion: what is verified, and every file of it."""

    source: Path
    opened: Path
    files: tuple[Path, ...]
    options: tuple[str, ...]


def outputs(place: Path, *more: str) -> Iterator[Output]:
    """Every conversion of :data:`RUNS`."""
    every = [(source, (*options, *beside)) for source, runs in RUNS.items() for options in runs for beside in BESIDE]
    for number, (source, options) in enumerate(every):
        out = place / str(number) / "out"
        out.parent.mkdir()
        status, said = called("convert", str(FIXTURES / source), f"{out}/", *options, *more, "-q")
        if status:
            raise SystemExit(f"{source} {options}: {said}")
        files = tuple(sorted(out.iterdir()))
        opened = next((path for path in files if path.suffix == ".gguf"), out)
        status, said = called("verify", str(opened), str(FIXTURES / source))
        if status:
            raise SystemExit(f"{source} {options} does not verify: {said}")
        yield Output(FIXTURES / source, opened, files, options)


def called(*arguments: str) -> tuple[int, str]:
    """Exit status and what was printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(list(arguments))
    return status, out.getvalue() + err.getvalue()


def spans(output: Output) -> dict[Path, tuple[list[range], list[range]]]:
    """File -> runs of bytes that are no tensor data and no padding, and runs that are tensor data."""
    index = open_index(output.opened)
    found = {}
    for path in output.files:
        size = path.stat().st_size
        tensors = sorted((s.extent.offset, s.extent.nbytes) for s in index.stored if s.extent.path == path)
        data = [range(at, at + nbytes) for at, nbytes in tensors if nbytes]
        if not data:
            found[path] = [range(size)], data
            continue
        around, raw, at = [], path.read_bytes(), 0
        for tensor in (*data, range(size, size)):
            gap = raw[at : tensor.start].rstrip(b"\0 ")
            if gap:
                around.append(range(at, at + len(gap)))
            at = tensor.stop
        found[path] = around, data
    return found


def flips(made: list[Output], count: int, chance: random.Random) -> Iterator[tuple[Output, Path, int, int]]:
    """(output, file, byte, bit), sampled."""
    around: list[tuple[Output, Path, range]] = []
    anywhere: list[tuple[Output, Path, range]] = []
    for output in made:
        for path, (outside, data) in spans(output).items():
            around += [(output, path, run) for run in outside]
            anywhere += [(output, path, run) for run in (*outside, *data)]
    for n in range(count):
        places = around if n % 2 else anywhere
        (output, path, run) = chance.choices(places, [len(run) for _, _, run in places])[0]
        byte, bit = chance.choice(run), chance.randrange(8)
        if not says_the_same(path, byte, bit):
            yield output, path, byte, bit


def says_the_same(path: Path, byte: int, bit: int) -> bool:
    """The flip makes a digit of a listed digest upper case, which ``sha256sum -c`` takes for the same digit."""
    if path.name != "SHA256SUMS" or bit != 5:
        return False
    raw = path.read_bytes()
    return byte - (raw.rfind(b"\n", 0, byte) + 1) < 64 and raw[byte : byte + 1] in (b"a", b"b", b"c", b"d", b"e", b"f")


def flipped(output: Output, path: Path, byte: int, bit: int) -> tuple[int, str]:
    """What ``verify OUT SRC`` says with that bit flipped."""
    raw = path.read_bytes()
    wrong = bytearray(raw)
    wrong[byte] ^= 1 << bit
    path.write_bytes(wrong)
    try:
        return called("verify", str(output.opened), str(output.source))
    finally:
        path.write_bytes(raw)


def main() -> int:
    """Sample, and print what was not found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    said: Counter[int] = Counter()
    with tempfile.TemporaryDirectory() as place:
        made = list(outputs(Path(place)))
        for output, path, byte, bit in flips(made, asked.flips, random.Random(asked.seed)):
            status, _ = flipped(output, path, byte, bit)
            said[status] += 1
            if status not in (3, 5):
                print(
                    f"{status}: {' '.join(output.options)} of {output.source.name}: {path.name} byte {byte} bit {bit}"
                )
    print(f"{asked.flips} flips: {dict(sorted(said.items()))}")
    return int(not said.keys() <= {3, 5})


if __name__ == "__main__":
    sys.exit(main())
