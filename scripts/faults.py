"""Faults at every system call of a conversion: what the status and the sentence say is true, and nothing is mixed.

    python scripts/faults.py                    a sample of 8,000 faults over all targets
    python scripts/faults.py --sample 60        fewer
    python scripts/faults.py --all              every call with every kind of fault
    python scripts/faults.py --only bump3,mlx   some targets
    python scripts/faults.py --kinds EIO,KILL   some kinds of fault
    python scripts/faults.py --force            only over an older output

A run converts a model to a target, to a fresh place or with ``--force`` over the same model with other numbers. One of
its system calls on files of source or output, or on stdout and stderr, fails (EIO, ENOSPC, EINTR), does half of what it
was asked for, or is preceded by SIGTERM or SIGKILL. What is there afterwards is all old, all new, or does not load and
does not verify; then the same command without a fault makes the whole output and leaves nothing else.

The faults come out of ``faults.c``, which the system's compiler makes a library of that is preloaded. Runs are forks of
one process, since an interpreter takes longer to start than a small model to convert.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import errno
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"
SHIM = "CKCONV_FAULTS_SHIM"

_FAIL, _HALF, _STRIKE = 1, 2, 3

#: Fault -> what the shim does, with which number.
KINDS: dict[str, tuple[int, int]] = {
    "EIO": (_FAIL, errno.EIO),
    "ENOSPC": (_FAIL, errno.ENOSPC),
    "EINTR": (_FAIL, errno.EINTR),
    "SHORT": (_HALF, 0),
    "TERM": (_STRIKE, signal.SIGTERM),
    "KILL": (_STRIKE, signal.SIGKILL),
}

_TRANSFERS = {"read", "write", "pread64", "preadv64v2", "pwrite64", "pwritev64v2"}
_WRITERS = {"write", "pwrite64", "posix_fallocate64", "ftruncate64", "mkdir", "link", "rename", "symlink", "fsync"}

#: Fault -> the calls that it happens to; the others happen to all.
CALLS: dict[str, set[str]] = {
    "ENOSPC": _WRITERS,
    "EINTR": {*_TRANSFERS, "open", "close", "fsync", "ftruncate64", "posix_fallocate64"},
    "SHORT": _TRANSFERS,
}

_LEFT = re.compile(r"\..+\.ckconv-[0-9a-f]{8}\.tmp|\.ckconv\.lock")

LLAMA = "gguf/llama-tied-bf16.auto.gguf"
QWEN2 = "hf/qwen2-tied-bf16"
LORA = "lora/llama-r4-attn-mlp"


@dataclass(frozen=True)
class Target:
    """One way to convert.

    Attributes:
        source: in the fixtures.
        to: where to, in the folder of the output.
        flags: of ``convert``.
        entry: files without which no loader takes the output.
        through: what the source becomes first, if it is not converted as it is.
    """

    source: str
    to: str
    flags: tuple[str, ...]
    entry: tuple[str, ...]
    through: str = ""


TARGETS: dict[str, Target] = {
    "gguf": Target(LLAMA, "m.gguf", ("--checksums",), ("m.gguf",)),
    "split": Target(LLAMA, "m.gguf", ("--max-shard-size", "80kB"), ("m-00001-of-0000?.gguf",)),
    "file": Target(LLAMA, "m.safetensors", (), ("m.safetensors",)),
    "hf": Target(LLAMA, "out/", ("--to", "safetensors"), ("out/model.safetensors",)),
    "shards": Target(
        LLAMA,
        "out/",
        ("--to", "safetensors", "--max-shard-size", "80kB"),
        ("out/model.safetensors.index.json",),
    ),
    "mlx": Target(LLAMA, "out/", ("--to", "mlx"), ("out/model.safetensors",)),
    "bump3": Target(LLAMA, "m.bump", ("--bump-version", "3", "--checksums"), ("m.bump",)),
    "bump4": Target(LLAMA, "m.bump", ("--bump-version", "4"), ("m.bump",)),
    "bump5": Target(LLAMA, "out/", ("--to", "bump", "--bump-version", "5", "--map"), ("out/weights.bump",)),
    "peft": Target(LORA, "out/", ("--to", "peft"), ("out/adapter_model.safetensors",)),
    "copy": Target(QWEN2, "out/", ("--to", "safetensors", "--checksums", "--record"), ("out/model.safetensors",)),
    "record": Target(LLAMA, "m.bump", ("--bump-version", "3", "--record"), ("m.bump",)),
    "made": Target(QWEN2, "m.gguf", (), ("m.gguf",)),
    "back": Target(LLAMA, "m.gguf", (), ("m.gguf",), "m.bump"),
    "lora": Target(LORA, "m.gguf", ("--to", "gguf", "--base", str(FIXTURES / LLAMA)), ("m.gguf",)),
}

State = Mapping[str, bytes]


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    status: int
    text: str


@dataclass(frozen=True)
class Fault:
    """A kind of fault, and the number of the call that it happens to."""

    kind: str
    at: int


class Bench:
    """A target with its source, what is there before, and what is there after a run that nothing disturbs."""

    def __init__(self, name: str, place: Path, shim: ctypes.CDLL, *, force: bool) -> None:
        self.name, self.target, self.shim = name, TARGETS[name], shim
        self.title = f"{name} --force" if force else name
        self.work = place / self.title.replace(" ", "")
        self.folder, self.before = self.work / "dst", self.work / "before"
        source = self._source("src")
        self.command = ["convert", str(source), f"{self.folder}/{self.target.to}", *self.target.flags]
        self.before.mkdir()
        if force:
            older = self._source("older", altered=True)
            self.reset()
            self._must([self.command[0], str(older), *self.command[2:], *self._others()])
            self.before.rmdir()
            shutil.copytree(self.folder, self.before)
            self.command.append("--force")
        self.old = contents(self.before)
        self.reset()
        self._must(self.command)
        self.new = contents(self.folder)
        self.reset()
        self.calls = self._count()

    def _source(self, folder: str, *, altered: bool = False) -> Path:
        """What is converted, in a folder of its own."""
        source = self.work / folder / Path(self.target.source).name
        _copy(FIXTURES / self.target.source, source)
        if altered:
            _alter(source)
        if self.target.through:
            made = source.parent / self.target.through
            self._must(["convert", str(source), str(made)])
            return made
        return source

    def _others(self) -> list[str]:
        """Options of the older output, so that its configuration is another one, too."""
        return [] if self.target.source == LORA or self.target.through else ["--context", "48"]

    def reset(self) -> None:
        """Put the folder back as it was before."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.before, self.folder)

    def _must(self, command: Sequence[str]) -> None:
        ended = self.run(command)
        assert ended.status == 0, ended.text

    def _count(self) -> list[tuple[str, str]]:
        """Name and path of every call."""
        log = self.work / "calls"
        with log.open("wb") as file:
            self.run(self.command, log=file.fileno())
        lines = (line.split(" ", 2) for line in log.read_text().splitlines())
        return [(name, path) for _, name, path in lines]

    def run(self, command: Sequence[str], fault: Fault | None = None, log: int = -1) -> Ended:
        """Run ``ckconv`` in a process of its own."""
        printed = self.work / "printed"
        with printed.open("wb") as file:
            pid = os.fork()
            if not pid:
                self._child(command, fault, file.fileno(), log)
            signal.alarm(60)
            _, status = os.waitpid(pid, 0)
            signal.alarm(0)
        return Ended(os.waitstatus_to_exitcode(status), printed.read_text())

    def _child(self, command: Sequence[str], fault: Fault | None, printed: int, log: int) -> None:
        from ckconv.cli import main

        status: object = 99
        try:
            os.dup2(printed, 1)
            os.dup2(printed, 2)
            sys.argv = ["ckconv", *command]
            kind, number = KINDS[fault.kind] if fault else (0, 0)
            if fault or log >= 0:
                self.shim.faults_arm(f"{self.work}/".encode(), kind, number, fault.at if fault else 0, log)
            main()
        except SystemExit as end:
            status = end.code
        except BaseException:
            traceback.print_exc()
        finally:
            self.shim.faults_disarm()
            os._exit(status if isinstance(status, int) else 0)

    def faults(self) -> Iterator[Fault]:
        """Every fault of every call."""
        for number, (name, _) in enumerate(self.calls, 1):
            for kind in KINDS:
                if name in CALLS.get(kind, {name}) and not (kind == "EINTR" and _portable()):  # there it is unknown
                    yield Fault(kind, number)

    def try_fault(self, fault: Fault) -> str:
        """What is wrong after a run with this fault; empty if nothing is."""
        self.reset()
        ended = self.run(self.command, fault)
        wrong = self._killed(ended) if fault.kind == "KILL" else self._judge(fault, ended)
        return f"{wrong}\n{ended.text}" if wrong else ""

    def _judge(self, fault: Fault, ended: Ended) -> str:
        status, text = ended.status, ended.text
        state = contents(self.folder)
        left = [path.name for path in self.folder.rglob("*") if _LEFT.fullmatch(path.name)]
        if status in (1, 99) or "Traceback" in text:
            return f"status {status}"
        allowed = {"EIO": (0, 6), "TERM": (0, 143, -signal.SIGTERM), "SHORT": (0,), "EINTR": (0,)}.get(
            fault.kind, (0, 6)
        )
        if status not in allowed:
            return f"status {status}, one of {allowed} expected"
        if "nothing was left behind" in text and (state != self.old or left):
            return f"something was left behind: {sorted(state)} {left}"
        if status == 0 or "it was kept" in text or "the output is complete" in text:
            if state != self.new:
                return f"status {status}, and the new output is not there"
        elif state != self.old:
            if "could not be" not in text or text.count("\n") < 2:
                return "what was there before is not there, although nothing says so"
            return self._mixed(state)
        if text and any(name not in text for name in left):
            return f"left behind and not mentioned: {left}"
        return ""

    def _killed(self, ended: Ended) -> str:
        if ended.status not in (-signal.SIGKILL, 0):
            return f"status {ended.status} of a run that was killed"
        wrong = self._mixed(contents(self.folder)) or self._read_again()
        if wrong:
            return wrong
        again = self.run(self.command)
        there = again.status == 6 and "output.exists" in again.text and "--force" not in self.command
        if again.status != 0 and not there:
            return f"status {again.status} of the run after it: {again.text}"
        if contents(self.folder) != self.new:
            return f"the run after it does not leave the new output: {sorted(contents(self.folder))}"
        left = [path.name for path in self.folder.rglob("*") if _LEFT.fullmatch(path.name)]
        return f"the run after it leaves {left}" if left and not there and not _portable() else ""

    def _read_again(self) -> str:
        """Whether what was there is there for who reads it after a run was killed."""
        if _portable():
            return ""
        model = self.folder / self.target.to
        if not self.target.to.endswith("/"):
            model = self.folder / next(name for name in sorted(self.new) if Path(name).suffix == model.suffix)
        read = self.run(["inspect", str(model)])
        state = contents(self.folder)
        if state not in (self.old, self.new):
            return f"who reads it finds a part: {sorted(state)}: {read.text}"
        if state and read.status:
            return f"status {read.status} of who reads it: {read.text}"
        return ""

    def _mixed(self, state: State) -> str:
        """Whether files of both outputs lie beside each other, or a part of one that loads."""
        if state in (self.old, self.new):
            return ""
        for name, data in state.items():
            if data not in (self.old.get(name), self.new.get(name)):
                return f"{name} is neither the old one nor the new one"
        mine = all(data == self.new.get(name) for name, data in state.items())
        theirs = all(data == self.old.get(name) for name, data in state.items())
        if not mine and not theirs:
            return f"a mix: {[(name, 'new' if data == self.new.get(name) else 'old') for name, data in state.items()]}"
        weights = {name for name in self.new if name.endswith((".gguf", ".safetensors", ".bump"))}
        if weights <= state.keys() and all(list(self.folder.glob(name)) for name in self.target.entry):
            return f"a part that loads: {sorted(state)}"
        outputs = [self.folder / self.target.to, *self.folder.glob("m-*.gguf")]
        loaded = any(path.exists() and self.run(["verify", str(path)]).status == 0 for path in outputs)
        if loaded and contents(self.folder) not in (self.old, self.new):  # who reads it may have brought the rest back
            return f"a part that verifies: {sorted(state)}"
        return ""


def _portable() -> bool:
    """The half for systems without POSIX calls runs: no directory is locked, so nobody knows whose run is dead."""
    return "CKCONV_PORTABLE" in os.environ


def contents(folder: Path) -> dict[str, bytes]:
    """Every file with a name of its own, below ``folder``."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not any(_LEFT.fullmatch(part) for part in name.parts):
            found[str(name)] = path.read_bytes()
    return found


def _copy(source: Path, place: Path) -> None:
    place.parent.mkdir(parents=True)
    shutil.copytree(source, place) if source.is_dir() else shutil.copy(source, place)


def _alter(source: Path) -> None:
    """Change a number of the last tensor."""
    path = next(source.glob("*.safetensors")) if source.is_dir() else source
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)


def compiled(place: Path) -> Path:
    """The shim, made by the system's compiler."""
    library = place / "faults.so"
    compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", library, ROOT / "scripts" / "faults.c", "-ldl"], check=True
    )
    return library


def _preloaded(arguments: Sequence[str]) -> int:
    """Run this script again with the shim in it."""
    with tempfile.TemporaryDirectory() as place:
        library = str(compiled(Path(place)))
        environment = {**os.environ, "LD_PRELOAD": library, SHIM: library, "OPENBLAS_NUM_THREADS": "1"}
        return subprocess.run([sys.executable, __file__, *arguments], env=environment).returncode


def run(
    names: Sequence[str], kinds: Sequence[str], sample: int, seed: int, place: Path, *, older: Sequence[bool]
) -> int:
    """Try the faults, print what is wrong and a table; the number of faults that had wrong ends."""
    shim = ctypes.CDLL(os.environ[SHIM])
    _warm_up(names, place)
    benches = [Bench(name, place, shim, force=force) for name in names for force in older]
    faults = [(bench, fault) for bench in benches for fault in bench.faults() if fault.kind in kinds]
    chosen = random.Random(seed).sample(faults, min(sample, len(faults))) if sample else faults
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    wrong = 0
    for done, (bench, fault) in enumerate(chosen, 1):
        counts[bench.title, fault.kind] += 1
        said = bench.try_fault(fault)
        if said:
            wrong += 1
            name, path = bench.calls[fault.at - 1]
            print(f"WRONG: {bench.title}: {fault.kind} at call {fault.at} ({name} {path}): {said}", flush=True)
        if done % 1000 == 0:
            print(f"{done:,} of {len(chosen):,} faults, {wrong} with wrong ends", flush=True)
    print(f"{'':16}" + "".join(f"{kind:>8}" for kind in KINDS) + "   calls")
    for bench in benches:
        row = "".join(f"{counts[bench.title, kind]:8,}" for kind in KINDS)
        print(f"{bench.title:16}{row}{len(bench.calls):8,}")
    print(f"{len(chosen):,} of {len(faults):,} faults tried, {wrong} with wrong ends")
    return wrong


def _warm_up(names: Sequence[str], place: Path) -> None:
    """Import everything once, so that no fork has to."""
    import ckconv.cli
    import ckconv.conversion.pipeline

    ckconv.conversion.pipeline.ALONE = -1  # threads write small files, as they do large ones
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for name in names:
        target, folder = TARGETS[name], place / "warm" / name
        folder.mkdir(parents=True)
        out = f"{folder}/{target.to}"
        ckconv.cli.run(["convert", str(FIXTURES / target.source), out, "-q", *target.flags])
        ckconv.cli.run(["verify", str(next(folder.glob("m-*.gguf"), out)), "-q"])
    for number, handler in handlers.items():
        signal.signal(number, handler)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=8000)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(TARGETS))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--force", action="store_true")
    options = parser.parse_args()
    if SHIM not in os.environ:
        return _preloaded(sys.argv[1:])
    del os.environ["LD_PRELOAD"]
    sys.path.insert(0, str(ROOT))
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="ckconv-faults-", dir=shared if os.access(shared, os.W_OK) else None
    ) as place:
        sample = 0 if options.all else options.sample
        older = [True] if options.force else [False, True]
        names, kinds = options.only.split(","), options.kinds.split(",")
        wrong = run(names, kinds, sample, options.seed, Path(place), older=older)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
