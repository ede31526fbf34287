"""How fast ckconv is, as ratios to ``openssl dgst -sha256`` of the same bytes, beside the targets.

Every output carries a checksum, so hashing is the floor. Times depend on the machine and its mood; ratios of runs
that stand next to each other do not. Each round runs every case once, in turn; the first round only warms up. What is
left to write back is written between the timed regions, not in them. Needs about eight times ``--size`` of disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import bench_converters
import bench_kinds
from bench_inputs import (
    BLOCKS,
    FEW,
    HEADER,
    MANY,
    QUANTIZED,
    SHARDED,
    WIDENED,
    many_gguf,
    many_safetensors,
)

ROOT = Path(__file__).resolve().parent.parent
SMALL = ROOT / "fixtures" / "gguf" / "llama-tied-bf16.auto.gguf"
#: What the installed command runs.
CKCONV = [sys.executable, "-c", "from ckconv.cli import main\nmain()"]
#: The same command line in a process where fsync does nothing: what the conversion costs without the disk.
UNSYNCED = [
    sys.executable,
    "-c",
    """import os
os.fsync = os.fdatasync = lambda fd: None
from ckconv.cli import main
main()
""",
]
NAIVE = [
    sys.executable,
    "-c",
    """import hashlib, sys
digest = hashlib.sha256()
with open(sys.argv[1], "rb") as source, open(sys.argv[2], "wb") as out:
    while data := source.read(1 << 20):
        out.write(data)
        digest.update(data)
""",
]
BARE = [sys.executable, "-c", "pass"]
#: What is measured: one file and its ``config.json``, whatever ``auto`` would choose for the input.
CONVERT = ["convert", "-q", "--bump-version", "3"]
DECODE = ["convert", "-q", "--to", "hf", "--dequantize", "--force"]
#: Runs a round of what takes milliseconds.
SHORT_RUNS = 5
#: Rounds of what takes long; none of them warms up.
LONG_RUNS = 3


@dataclass(frozen=True)
class Sample:
    """One run of a process: wall seconds, processor seconds, peak resident bytes, others' share of the processors."""

    seconds: float
    cpu: float
    peak: int
    others: float


@dataclass(frozen=True)
class Case:
    """One line of the table.

    Attributes:
        yardstick: the case it is compared with, in the same round.
        target, stretch: what it should reach: a ratio, or with ``short`` milliseconds more than the yardstick.
        makes: what it writes, removed again after each run.
        short: takes milliseconds.
        halved: compared with half of the yardstick's processor seconds instead of its time.
        long: runs in the first rounds only.
    """

    name: str
    command: Sequence[str]
    yardstick: str
    target: float | None = None
    stretch: float | None = None
    makes: Path | None = None
    short: bool = False
    halved: bool = False
    long: bool = False


@dataclass
class Result:
    """Samples of a case, one a round."""

    case: Case
    samples: list[Sample] = field(default_factory=list)


def cases(place: Path) -> list[Case]:
    """What is measured; yardsticks come before what they measure."""
    quantized, widened, header = (str(place / name) for name in (QUANTIZED, WIDENED, HEADER))
    done, wide = place / "done" / "out.bump", place / "wide" / "out.bump"
    new = place / "new"
    out, copy = str(new / "out.bump"), str(new / "copy")
    hash_in, hash_wide, bare = "openssl dgst of the input", "openssl dgst of the FP32 output", "bare Python"
    unsynced = [*UNSYNCED, *CONVERT]
    quick = [*unsynced, "--no-verify"]
    alone = [*CKCONV, *CONVERT, "--no-source-record"]  # of which the input's digest is a part: a second hash
    return [
        Case(hash_in, ["openssl", "dgst", "-sha256", quantized], hash_in),
        Case("cp", ["cp", quantized, copy], hash_in, makes=new),
        Case("read, write and hash in a loop", [*NAIVE, quantized, copy], hash_in, makes=new),
        Case("convert --no-verify, without fsync", [*quick, quantized, out], hash_in, 0.95, 0.85, new),
        Case("convert, without fsync", [*unsynced, quantized, out], hash_in, 1.1, 1.0, new),
        Case("GGUF -> bump 3", [*CKCONV, *CONVERT, quantized, out], hash_in, 1.25, 1.05, new),
        Case("GGUF -> bump 3, no source record", [*alone, quantized, out], hash_in, 1.25, 1.05, new),
        Case("GGUF -> bump 5", [*CKCONV, "convert", "-q", quantized, out], hash_in, 1.25, 1.15, new),
        Case("verify OUT SRC", [*CKCONV, "verify", "-q", str(done), quantized], hash_in, 1.1, 1.0),
        Case(hash_wide, ["openssl", "dgst", "-sha256", str(wide)], hash_wide),
        Case("FP32: convert --no-verify, without fsync", [*quick, widened, out], hash_wide, 1.6, 1.2, new),
        Case("FP32: verify OUT SRC", [*CKCONV, "verify", "-q", str(wide), widened], hash_wide),
        *_decoding(place),
        *_sharded(place),
        *_beside_others(place),
        Case(bare, BARE, bare, short=True),
        Case("inspect of 152k tokens", [*CKCONV, "inspect", header], bare, 150, 90, short=True),
        *_many(place),
        *_kinds(place),
        Case("convert --dry-run", [*CKCONV, *CONVERT, "--dry-run", quantized, out], bare, short=True),
        Case("inspect of a small GGUF", [*CKCONV, "inspect", str(SMALL)], bare, 60, 50, short=True),
        Case(
            "convert of a small GGUF",
            [*CKCONV, "convert", "-q", str(SMALL), f"{copy}.gguf", "-f"],
            bare,
            90,
            80,
            new,
            short=True,
        ),
        Case("--help", [*CKCONV, "--help"], bare, 32, 28, short=True),
        Case("--version", [*CKCONV, "--version"], bare, 25, 22, short=True),
    ]


def _decoding(place: Path) -> list[Case]:
    """Decoding beside hashing of its output; quantizing one piece and two pieces at a time."""
    new = place / "new"
    decode = [*CKCONV, *DECODE, str(place / BLOCKS), f"{new}/"]
    quantize = [*CKCONV, "convert", "-q", str(place / FEW), str(new / "out.gguf"), "--quantize", "q4_k"]
    alone, two = "--quantize q4_k --jobs 1", "--quantize q4_k --jobs 2"
    hash_decoded = "openssl dgst of the decoded output"
    return [
        Case(hash_decoded, ["openssl", "dgst", "-sha256", str(place / "decoded" / "model.safetensors")], hash_decoded),
        Case("--dequantize", decode, hash_decoded, 1.2, 1.1, new),
        Case(alone, [*quantize, "--jobs", "1"], alone, makes=new),
        Case(two, [*quantize, "--jobs", "2"], alone, 0.6, 0.52, new),
    ]


def _sharded(place: Path) -> list[Case]:
    """Eight shards."""
    new, size = place / "new", (place / SHARDED).stat().st_size
    command = [*CKCONV, "convert", "-q", str(place / SHARDED), f"{new}/", "--to", "hf", "--force"]
    command += ["--max-shard-size", str(size * 9 // 64)]  # an eighth and something, as no tensor is cut
    alone, two = "eight shards --jobs 1", [*command, "--jobs", "2"]
    return [
        Case(alone, [*command, "--jobs", "1"], alone, makes=new),
        Case("eight shards --jobs 2", two, alone, 1.0, 1.0, new),
        Case("eight shards --jobs 2 / CPU seconds of one, halved", two, alone, 1.1, 1.0, new, halved=True),
    ]


def _beside_others(place: Path) -> list[Case]:
    """The share that ckconv takes of another converter's time."""
    found, new = [], place / "new"
    for rival in bench_converters.rivals(place, CKCONV):
        if not rival.what:
            found.append(Case(rival.name, rival.command, rival.name, makes=new, long=True))
        share = (1 / rival.target, 1 / rival.stretch)
        found.append(Case(f"convert / {rival.name}{rival.what}", rival.ours, rival.name, *share, new, long=True))
    return found


def _kinds(place: Path) -> list[Case]:
    """Each type and packing, and what is very many."""
    found: dict[str, Case] = {}
    for it in bench_kinds.pairs(place, CKCONV):
        if it.other:
            found.setdefault(it.against, Case(it.against, it.other, it.against, makes=place / "new", long=True))
        where = None if it.planning else place / "new"
        found[it.name] = Case(it.name, it.command, it.against, it.target, None, where, it.planning, long=True)
    return [*found.values()]


def _many(place: Path) -> list[Case]:
    """Ten times the tensors should take ten times as long."""
    found = []
    for name in (many_gguf, many_safetensors):
        few, many = (f"inspect {name(count)}" for count in MANY)
        found.append(Case(few, [*CKCONV, "inspect", str(place / name(MANY[0]))], few, long=True))
        found.append(Case(many, [*CKCONV, "inspect", str(place / name(MANY[1]))], few, 10.0, 9.5, long=True))
    command = [*CKCONV, "inspect", "--json", str(place / many_gguf(MANY[1]))]
    found.append(Case(f"inspect --json {many_gguf(MANY[1])}", command, f"inspect {many_gguf(MANY[0])}", long=True))
    return found


def prepare(place: Path, gigabytes: float) -> None:
    """Make the inputs, the outputs that are verified, and read everything once."""
    converters = ("bench_converters", gigabytes * 2 / 3, *CKCONV)
    for script, *given in (("bench_inputs", gigabytes), converters, ("bench_kinds", *CKCONV)):
        made = [sys.executable, str(Path(__file__).with_name(f"{script}.py")), str(place), *map(str, given)]
        subprocess.run(made, check=True)
    for source, directory in ((QUANTIZED, "done"), (WIDENED, "wide")):
        (place / directory).mkdir()
        subprocess.run([*CKCONV, *CONVERT, "--no-verify", place / source, place / directory / "out.bump"], check=True)
    subprocess.run([*CKCONV, *DECODE, "--no-verify", place / BLOCKS, f"{place / 'decoded'}/"], check=True)
    os.sync()


def use_this_tree(place: Path) -> None:
    """Measure this working tree, compiled once as an installed package is."""
    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ["PYTHONPYCACHEPREFIX"] = str(place / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def run(command: Sequence[str]) -> Sample:
    """Run a process to its end."""
    busy, start = busy_seconds(), time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        seconds, busy = time.perf_counter() - start, busy_seconds() - busy
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"exit status {process.returncode} from: {' '.join(command)}")
    unit = 1 if sys.platform == "darwin" else 1024
    cpu = usage.ru_utime + usage.ru_stime
    others = max(0.0, busy - cpu) / (seconds * (os.cpu_count() or 1))
    return Sample(seconds, cpu, usage.ru_maxrss * unit, others)


def busy_seconds() -> float:
    """Seconds that all processors together have been at work since the start; 0 where nobody says."""
    try:
        user, nice, system, _, _, *interrupts = Path("/proc/stat").read_text().splitlines()[0].split()[1:8]
    except OSError:
        return 0.0
    return sum(map(int, (user, nice, system, *interrupts))) / os.sysconf("SC_CLK_TCK")


def claim_memory(directory: Path, nbytes: int) -> None:
    """Write a file and remove it, so that the page cache has room that is the machine's own.

    A virtual machine's host takes back what has been free for some seconds, and whoever needs it next waits for it.
    That would be measured as the cost of writing: the same `cp` took from 0.5 to 2.5 s.
    """
    path, block = directory / "claim", bytes(1 << 20)
    with path.open("wb", buffering=0) as file:
        for _ in range(0, nbytes, len(block)):
            file.write(block)
    path.unlink()


def measure(case: Case, nbytes: int) -> Sample:
    """One sample; whatever it wrote is gone and whatever was dirty is on the disk before it starts."""
    if case.makes:
        case.makes.mkdir()
    os.sync()
    if case.makes:
        claim_memory(case.makes, nbytes)
    try:
        if not case.short or case.long:
            return run(case.command)
        samples = sorted((run(case.command) for _ in range(SHORT_RUNS)), key=lambda sample: sample.seconds)
        return samples[SHORT_RUNS // 2]
    finally:
        if case.makes:
            shutil.rmtree(case.makes)


def rounds(results: Sequence[Result], count: int, nbytes: int, end: float, say: Callable[[str], None]) -> None:
    """Run every case ``count`` times and once before, to warm the page cache; ``nbytes`` is the largest output's.

    No round begins that would last beyond ``end``, a time of the monotonic clock.
    """
    began = last = time.monotonic()
    for number in range(count + 1):
        began, last = time.monotonic(), began
        if number > 1 and began + (began - last) > end:
            say(f"the time is over after {number - 1} of {count} rounds")
            return
        say(f"round {number} of {count}")
        for result in results:
            if result.case.long and not 0 < number <= LONG_RUNS:
                continue
            sample = measure(result.case, nbytes)
            if number:
                result.samples.append(sample)


def summarize(results: Sequence[Result]) -> list[dict[str, object]]:
    """One record a case. Ratios are medians of the ratios of each round."""
    by_name = {result.case.name: result for result in results}
    records: list[dict[str, object]] = []
    for result in results:
        case, yardstick = result.case, by_name[result.case.yardstick].samples
        pairs = list(zip(result.samples, yardstick, strict=False))  # bare Python runs in more rounds
        if case.short:
            against = statistics.median((mine.seconds - theirs.seconds) * 1000 for mine, theirs in pairs)
        else:
            against = statistics.median(
                mine.seconds / (theirs.cpu / 2 if case.halved else theirs.seconds) for mine, theirs in pairs
            )
        records.append(
            {
                "name": case.name,
                "seconds": statistics.median(sample.seconds for sample in result.samples),
                "cpu_seconds": statistics.median(sample.cpu for sample in result.samples),
                "others": statistics.median(sample.others for sample in result.samples),
                "peak_bytes": max(sample.peak for sample in result.samples),
                "yardstick": case.yardstick,
                "unit": "ms more" if case.short else "ratio",
                "against": against,
                "cpu_against": statistics.median(mine.cpu / theirs.cpu for mine, theirs in pairs),
                "target": case.target,
                "stretch": case.stretch,
                "met": None if case.target is None else against <= case.target,
            }
        )
    return records


def table(records: Sequence[dict[str, object]]) -> str:
    """The records as lines."""
    rows = [("", "seconds", "CPU s", "of CPU", "peak MB", "against", "target", "stretch", "")]
    for r in records:
        short = r["unit"] != "ratio"

        def number(value: object, short: bool = short) -> str:
            return "" if value is None else f"{value:+.0f} ms" if short else f"{value:.2f}"

        verdict = {None: "", True: "ok", False: "MISSED"}[r["met"]]  # type: ignore[index]
        rows.append(
            (
                str(r["name"]),
                f"{r['seconds']:.3f}",
                f"{r['cpu_seconds']:.2f}",
                "" if short else f"{r['cpu_against']:.2f}",
                f"{int(str(r['peak_bytes'])) / 1e6:.0f}",
                number(r["against"]),
                number(r["target"]),
                number(r["stretch"]),
                verdict,
            )
        )
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if n in (0, 8) else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def modelled(records: Sequence[dict[str, object]]) -> Iterator[str]:
    """What more jobs would take, if all that two do not halve is serial."""
    seconds = {str(record["name"]): float(str(record["seconds"])) for record in records}
    for name, two in seconds.items():
        if name.endswith(" --jobs 2"):
            serial = min(max(2 * two - (one := seconds[f"{name[:-1]}1"]), 0), one)
            more = ", ".join(f"{n}: {serial + (one - serial) / n:.2f}" for n in (4, 8, 16, 32, 64))
            yield f"{name[:-2]} N, {serial:.2f} s of {one:.2f} serial; modelled seconds by N: {more}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=7, help=f"measured rounds [7]; {LONG_RUNS} of what takes long")
    parser.add_argument("--minutes", type=float, default=25, help="begin no round that would end later [25]")
    parser.add_argument("--size", type=float, default=1, help="gigabytes of the quantized model [1]")
    parser.add_argument("--dir", type=Path, help="where to work [TMPDIR]")
    parser.add_argument("--quick", action="store_true", help="one round of a small model: does it run at all?")
    parser.add_argument(
        "--only", default="", help="only cases whose name holds this text, and what they are compared with"
    )
    parser.add_argument("--json", action="store_true", help="records instead of a table")
    options = parser.parse_args()
    count, size = (1, 0.2) if options.quick else (max(1, options.runs), options.size)
    end = time.monotonic() + options.minutes * 60
    with tempfile.TemporaryDirectory(prefix="ckconv-bench-", dir=options.dir) as name:
        place = Path(name)
        use_this_tree(place)

        def say(text: str) -> None:
            if not options.json:
                print(text, file=sys.stderr, flush=True)

        say(f"making inputs in {place}")
        prepare(place, size)
        every = cases(place)
        named = {case.yardstick for case in every if options.only in case.name}
        chosen = [case for case in every if options.only in case.name or case.name in named]
        results = [Result(case) for case in chosen]
        largest = max((place / name / "out.bump").stat().st_size for name in ("done", "wide"))
        rounds(results, count, largest, end, say)
        records = summarize(results)
        others = statistics.median(sample.others for result in results for sample in result.samples)
    if options.json:
        print(json.dumps({"runs": count, "gigabytes": size, "cases": records}, indent=2))
        return
    print(table(records))
    print("", *modelled(records), sep="\n")
    print(f"\nMedians of at most {count} interleaved runs, {LONG_RUNS} of what takes long.")
    print("Against: openssl or another program in the same round, or ms more than bare Python.")
    print(f"Other processes had {others:.0%} of the processors meanwhile; openssl needs one of them, ckconv two.")
    print("Processor seconds of a verified conversion have the targets 1.8 and, stretched, 1.6, in the column of CPU.")
    print(f"Peak memory has the targets 96 MB and, stretched, 64 MB; {MANY[1]:,} tensors: 400 MB and 150 MB.")


if __name__ == "__main__":
    main()
