"""Random edits of configurations: every conversion is refused, or computes in the target what the source computes.

A key of a ``config.json`` or of a GGUF's metadata is added, removed or set to another value. What the source's own
program (transformers, llama.cpp, mlx-lm) then computes is compared with what the target's computes of the output: all
positions of a prompt. Of the edits that are not sampled, the class that loads the output has to take its configuration,
if the source's own class does. An edit that changes nothing for the source should be accepted, and a refusal names the
key.

An edit is known by the seed and its number: ``scripts/edits.py --seed 7 --only 1234``. Needs transformers, torch,
mlx-lm, and ``LLAMA_CPP_LIBRARY``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import consumers  # noqa: E402
import numpy as np  # noqa: E402
from edit_classes import complaint  # noqa: E402
from edit_draws import Draw, gguf_draw, huggingface_draw  # noqa: E402
from edit_models import FAMILIES, MODEL_TYPES, Base, bases  # noqa: E402

import ckconv  # noqa: E402
from ckconv import Options  # noqa: E402
from ckconv.conversion.planning import prepare  # noqa: E402
from ckconv.families.catalog import own_families  # noqa: E402
from ckconv.plan.steps import Plan  # noqa: E402

PROMPT = tuple((7 * i * i + 3 * i + 5) % 384 for i in range(60))

#: Where each format is converted to. A bump file is judged by the GGUF that is made of it.
TARGETS: Mapping[str, tuple[str, ...]] = {
    "hf": ("gguf", "mlx", "bump 3", "bump 5"),
    "gguf": ("hf", "mlx"),
    "mlx": ("hf", "gguf"),
}
#: llama.cpp does not know the architecture of a fork.
FORKED: tuple[str, ...] = ("mlx",)
CONFIGURED = ("hf", "mlx")
PROGRAMS = {"hf": "transformers", "gguf": "llama.cpp", "mlx": "mlx-lm"}

#: The largest difference of two logits, where their standard deviation is 1. llama.cpp looks GELU up in a table of 16
#: bits, and mlx-lm computes another form of it.
EXACT, GELU = 2e-4, 1e-2
_GELU = ("gemma3_text", "gpt2")


@dataclass
class Case:
    """What came of one edit in one direction."""

    number: int
    family: str
    source: str
    style: str
    target: str
    edit: str
    key: str
    result: str
    says: str = ""
    named: bool = False
    judged: bool = False
    runs: bool = False
    unchanged: bool = False
    off: float | None = None
    verdict: str = ""


@dataclass
class Bench:
    """What one process holds: models, programs, and what the unedited models compute."""

    folder: Path
    models: list[Base]
    draws: Mapping[tuple[str, str], Draw]
    programs: Mapping[str, consumers.Consumer]
    rows: dict[Path, np.ndarray] = field(default_factory=dict)
    closed: set[tuple[Path, str]] = field(default_factory=set)


_bench: Bench | None = None


def set_up(folder: Path, families: Sequence[str], reference: Path | None) -> None:
    """Make the models of this process; a direction that refuses the unedited model is left out."""
    global _bench
    os.nice(3)
    folder = Path(tempfile.mkdtemp(dir=folder))
    models = []
    for family in families:
        (folder / family).mkdir()
        models += bases(family, folder / family, reference)
    draws: dict[tuple[str, str], Draw] = {}
    for family in families:
        draws[family, "hf"] = draws[family, "mlx"] = huggingface_draw(MODEL_TYPES.get(family, family))
        draws[family, "gguf"] = gguf_draw(FAMILIES[family])
    programs = {"hf": consumers.transformers(), "gguf": consumers.llama_cpp(), "mlx": consumers.mlx_lm()}
    _bench = bench = Bench(folder, models, draws, programs)
    for base in models:
        bench.rows[base.path] = programs[base.format].logits(base.known(base.path), PROMPT)
        for target in targets(base):
            case = Case(-1, base.family, base.format, base.style, target, "", "", "")
            convert(bench, case, base, base.path, folder, bench.rows[base.path])
            if case.result == "refused":
                bench.closed.add((base.path, target))
            elif case.verdict != "right":
                raise SystemExit(f"the unedited {base.family} is wrong already: {case}")


def one(job: tuple[int, int, bool]) -> list[dict[str, Any]]:
    """Every direction of one edit."""
    seed, number, judged = job
    bench = _bench
    assert bench is not None
    rng = random.Random(f"{seed}:{number}")
    base = bench.models[number % len(bench.models)]
    edit = bench.draws[base.family, base.format](rng, base.document)
    place = bench.folder / "place"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    path = base.edited(edit, place)
    wanted = None
    if judged:
        try:
            wanted = bench.programs[base.format].logits(base.known(path), PROMPT)
        except consumers.DoesNotRun:
            wanted = None
        if wanted is not None and not np.isfinite(wanted).all():
            wanted = None
    made = []
    for target in targets(base):
        if (base.path, target) in bench.closed:
            continue
        case = Case(number, base.family, base.format, base.style, target, str(edit), ".".join(edit.path), "")
        case.judged = judged
        if wanted is not None:
            case.runs, case.unchanged = True, bool(np.array_equal(wanted, bench.rows[base.path]))
        convert(bench, case, base, path, place, wanted)
        made.append(asdict(case))
    return made


def convert(bench: Bench, case: Case, base: Base, path: Path, place: Path, wanted: np.ndarray | None) -> None:
    """Convert, and judge where the source computes something."""
    kind, _, version = case.target.partition(" ")
    families = (base.own,) if base.own else ()
    options = Options(bump_version=int(version or 0), source_record=False, families=families)
    name = "made.gguf" if kind == "gguf" else f"made-{case.target.replace(' ', '')}/"
    target = f"{place}/{name}"
    to = {"hf": "safetensors"}.get(kind, kind)
    shutil.rmtree(target, ignore_errors=True)
    try:
        if wanted is None:
            with own_families(families):
                plan = prepare(path, target, to=to, options=options)[0]
                plan.check()
            if kind in CONFIGURED and (
                base.format not in CONFIGURED or not complaint(base.format, document_at(base.known(path)))
            ):
                case.says = complaint(kind, base.named(json.loads(bytes_of(plan))))
                case.verdict = "wrong" if case.says else ""
        else:
            ckconv.convert(path, target, to=to, options=options, force=True)
            if kind == "bump":
                (bump,) = Path(target).glob("*.bump")
                ckconv.convert(bump, f"{place}/back.gguf", options=Options(source_record=False), force=True)
                target, kind = f"{place}/back.gguf", "gguf"
        case.result = "accepted"
    except ckconv.CkconvError as error:
        parts = [error.message, *error.details, error.hint or "", error.tensor or ""]
        case.result = "refused" if error.exit_code in (3, 4) else "failed"
        case.says = f"[{error.code}] " + "; ".join(part for part in parts if part)
        case.named = is_named(case.key, case.says, FAMILIES[base.family])
        return
    except Exception:
        case.result, case.says = "internal", traceback.format_exc()[-1500:]
        return
    if wanted is None:
        return
    try:
        found = bench.programs[kind].logits(base.known(Path(target)), PROMPT)
    except consumers.DoesNotRun as error:
        case.verdict, case.says = "wrong", f"{PROGRAMS[kind]} does not run it: {error}"
        return
    words = min(found.shape[1], wanted.shape[1])
    case.off = float(np.abs(found[:, :words] - wanted[:, :words]).max())
    allowed = (GELU if base.family in _GELU else EXACT) * max(1.0, float(wanted.std()))
    case.verdict = "right" if case.off <= allowed else "wrong"


def targets(base: Base) -> tuple[str, ...]:
    """What a model is converted to."""
    return TARGETS[base.format] if base.own is None else FORKED


def bytes_of(plan: Plan) -> bytes:
    """The ``config.json`` of an output."""
    found = plan.contents().side_files["config.json"]
    assert isinstance(found, bytes)
    return found


def document_at(path: Path) -> dict[str, Any]:
    """The configuration of a checkpoint."""
    document: dict[str, Any] = json.loads((path / "config.json").read_text())
    return document


def is_named(key: str, text: str, architecture: str) -> bool:
    """Whether a refusal says which key it is about: its last part, or the GGUF key with or without its prefix."""
    short = key.removeprefix(f"{architecture}.") if key.startswith(f"{architecture}.") else key.rpartition(".")[2]
    return short in text


def main() -> int:
    """Run from the command line; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edits", type=int, default=20_000)
    parser.add_argument("--sample", type=int, default=2_000, help="how many of them are judged by logits")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="one edit, judged")
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--reference", type=Path, help="folder with hf/NAME and gguf/NAME.f32.gguf")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cases", type=Path, default=Path("out/edits.jsonl"), help="where every case is written")
    asked = parser.parse_args()
    numbers = range(asked.edits) if asked.only is None else [asked.only]
    stride = max(asked.edits // max(asked.sample, 1), 1)
    # Models take turns by number, so that every model has its part of the sample.
    chosen = (
        {n for n in numbers if (n // (5 * len(asked.families.split(",")))) % stride == 0}
        if asked.only is None
        else {asked.only}
    )
    jobs = [(asked.seed, n, n in chosen) for n in numbers]
    found: list[Case] = []
    asked.cases.parent.mkdir(parents=True, exist_ok=True)
    spawn, shm = multiprocessing.get_context("spawn"), Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="edits-", dir=shm if shm.is_dir() else None) as name:
        arguments = (Path(name), asked.families.split(","), asked.reference)
        with (
            ProcessPoolExecutor(min(asked.jobs, len(jobs)), spawn, set_up, arguments) as pool,
            asked.cases.open("w") as out,
        ):
            for cases in pool.map(one, jobs, chunksize=8):
                for case in cases:
                    print(json.dumps(case), file=out)
                    found.append(Case(**case))
                    if is_bad(found[-1]):
                        print(line(found[-1]), file=sys.stderr, flush=True)
    print(report(found))
    return 1 if any(map(is_bad, found)) else 0


def is_bad(case: Case) -> bool:
    """Wrong, or neither an answer nor a refusal."""
    return case.verdict == "wrong" or case.result in ("internal", "failed")


def line(case: Case) -> str:
    """One case in a line."""
    off = f"off {case.off:.2g}" if case.off is not None else ""
    says = " ".join(case.says.split())
    where = f"{case.family}{'/' + case.style if case.style else ''}"
    return (
        f"#{case.number} {where} {case.source} -> {case.target}: {case.edit}: {case.result} {case.verdict} {off} {says}"
    )


def report(found: Iterable[Case]) -> str:
    """The table by family and direction, and what is to be looked at."""
    table: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    total: Counter[str] = Counter()
    for case in found:
        for row in (table[case.family, f"{case.source} -> {case.target}"], total):
            row[case.result] += 1
            row["judged"] += case.judged
            row["unnamed"] += case.result == "refused" and not case.named
            row[case.verdict] += 1
            if case.judged:
                row["unchanged"] += case.unchanged
                row["over"] += case.unchanged and case.result == "refused"
    columns = ("accepted", "refused", "unnamed", "internal", "failed", "judged", "right", "wrong", "unchanged", "over")
    lines = ["| family | direction | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|"]
    lines += [
        f"| {f} | {d} | " + " | ".join(str(row[c]) for c in columns) + " |" for (f, d), row in sorted(table.items())
    ]
    lines.append("| all | | " + " | ".join(str(total[c]) for c in columns) + " |")
    share = 100 * (1 - total["over"] / max(total["unchanged"], 1))
    lines += [
        "",
        f"of {total['unchanged']} judged conversions whose edit changes no logits, {share:.1f} % are accepted",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
