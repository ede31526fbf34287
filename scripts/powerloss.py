"""Power losses in the middle of a conversion: what was not synced is gone, or not, and nothing that was there is lost.

    python scripts/powerloss.py                    500 losses over all targets of scripts/faults.py
    python scripts/powerloss.py --runs 40          fewer
    python scripts/powerloss.py --only bump3,mlx   some targets

A run is recorded: every name that it makes, moves or takes away, and what a file holds when it is synced. Then the disk
is made as a loss of power may leave it after any of these calls. A change of names whose directory was not synced is
there or not, each for itself, but in the order of one name; a file holds what it held when it was synced, or, if it was
not, nothing or zeros. Who reads the output then finds all of the old one or all of the
new one, and what was complete when the run ended is there.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "scripts"))

import faults  # noqa: E402

#: A name: the number of its directory, and what it is called.
Name = tuple[int, str]


class Recorder:
    """What a process does to names and files below a folder, as it does it.

    Attributes:
        steps: each with its names -> what they lead to from then on (``None``: nothing), or the file that was synced,
            with its content.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self.steps: list[tuple[str, Any]] = []
        #: Inode -> number of what has it by now.
        self._numbers: dict[int, int] = {}
        self._count = 0
        self.start: dict[int, dict[str, int] | bytes] = {}
        self.root = self._walk(folder)

    def _walk(self, path: Path) -> int:
        number = self._number(path.lstat().st_ino)
        if path.is_dir():
            names = self.start[number] = {}
            for entry in sorted(path.iterdir()):
                names[entry.name] = self._walk(entry)
        else:
            self.start[number] = path.read_bytes()
        return number

    def _number(self, inode: int, *, new: bool = False) -> int:
        if new or inode not in self._numbers:
            self._numbers[inode] = self._count = self._count + 1
        return self._numbers[inode]

    @property
    def inodes(self) -> dict[int, int]:
        """Inode -> number."""
        return dict(self._numbers)

    def name(self, path: Any, directory: int | None) -> Name | None:
        """The name that a call means, if it is below the folder."""
        text = os.fspath(path)
        if directory is None:
            if not os.path.realpath(os.path.dirname(text) or ".").startswith(self._folder):
                return None
            inode = os.stat(os.path.dirname(text) or ".").st_ino
        else:
            inode = os.fstat(directory).st_ino
        return (self._numbers[inode], os.path.basename(text)) if inode in self._numbers else None

    def record(self) -> None:
        """From now on."""
        real = {name: getattr(os, name) for name in ("open", "mkdir", "rename", "replace", "link", "unlink", "rmdir")}

        def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            name = self.name(path, dir_fd) if flags & os.O_CREAT and isinstance(path, (str, Path)) else None
            there = name is not None and _exists(path, dir_fd)
            fd: int = real["open"](path, flags, mode, dir_fd=dir_fd)
            if name is not None and not there:
                self.steps.append(("names", {name: self._number(os.fstat(fd).st_ino, new=True)}))
            return fd

        def made(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            name = self.name(path, dir_fd)
            real["mkdir"](path, mode, dir_fd=dir_fd)
            if name is not None:
                self.steps.append(("directory", (name, self._number(_inode(path, dir_fd), new=True))))

        def moved(call: str) -> Callable[..., None]:
            def move(path: Any, to: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
                old, new = self.name(path, src_dir_fd), self.name(to, dst_dir_fd)
                inode = _inode(path, src_dir_fd)
                real[call](path, to, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
                if old is not None and new is not None:
                    self.steps.append(("names", {old: None, new: self._number(inode)}))

            return move

        def linked(path: Any, to: Any, **how: Any) -> None:
            new = self.name(to, how.get("dst_dir_fd"))
            real["link"](path, to, **how)
            if new is not None:
                self.steps.append(("names", {new: self._number(_inode(to, how.get("dst_dir_fd")))}))

        def removed(call: str) -> Callable[..., None]:
            def remove(path: Any, *, dir_fd: int | None = None) -> None:
                name = self.name(path, dir_fd)
                real[call](path, dir_fd=dir_fd)
                if name is not None:
                    self.steps.append(("names", {name: None}))

            return remove

        def synced(call: Callable[[int], None]) -> Callable[[int], None]:
            def sync(fd: int) -> None:
                status = os.fstat(fd)
                held = b""
                if stat.S_ISREG(status.st_mode):
                    held = os.pread(fd, status.st_size, 0)
                call(fd)
                if status.st_ino in self._numbers:
                    self.steps.append(("sync", (self._numbers[status.st_ino], held)))

            return sync

        os.fsync, os.fdatasync = synced(os.fsync), synced(os.fdatasync)  # type: ignore[assignment]
        os.open, os.mkdir, os.link = opened, made, linked  # type: ignore[assignment]
        os.rename, os.replace = moved("rename"), moved("replace")
        os.unlink, os.rmdir = removed("unlink"), removed("rmdir")


def _exists(path: Any, directory: int | None) -> bool:
    try:
        os.stat(path, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _inode(path: Any, directory: int | None) -> int:
    return os.stat(path, dir_fd=directory, follow_symlinks=False).st_ino


class Disk:
    """What is on the disk after a loss of power."""

    def __init__(self, recorder: Recorder, until: int, rng: random.Random) -> None:
        self.names: dict[int, dict[str, int]] = {}
        self.files: dict[int, bytes] = {}
        for number, what in recorder.start.items():
            if isinstance(what, dict):
                self.names[number] = dict(what)
            else:
                self.files[number] = what
        self._inodes, self._rng, self.root = recorder.inodes, rng, recorder.root
        waiting: list[dict[Name, int | None]] = []
        unsynced: dict[int, set[int]] = {}
        for kind, what in recorder.steps[:until]:
            if kind == "sync":
                number, held = what
                if number in self.names:
                    for index, change in [*enumerate(waiting)]:
                        unsynced[index].discard(number)
                        if not unsynced[index] and change:
                            self._apply(change)
                            waiting[index] = {}
                else:
                    self.files[number] = held
                continue
            change = {what[0]: what[1]} if kind == "directory" else what
            if kind == "directory":
                self.names[what[1]] = {}
            # What is renamed is there when the directory of its new name is synced, and is then nowhere else.
            unsynced[len(waiting)] = {name[0] for name, to in change.items() if to is not None or len(change) == 1}
            waiting.append(change)
        kept: set[Name] = set()  # a name that did not change keeps what it was, whatever came after
        for change in waiting:
            if change and (kept & change.keys() or rng.random() < 0.5):
                kept |= change.keys()
            elif change:
                self._apply(change)

    def _apply(self, change: dict[Name, int | None]) -> None:
        for (directory, name), number in change.items():
            if number is None:
                self.names[directory].pop(name, None)
            else:
                self.names[directory][name] = number

    def write(self, folder: Path) -> None:
        """Make it anew in a folder."""
        shutil.rmtree(folder, ignore_errors=True)
        made: dict[int, Path] = {}
        journals: list[Path] = []
        self._write(self.root, folder, made, journals)
        inodes = {old: made[number].stat().st_ino for old, number in self._inodes.items() if number in made}
        for path in journals:
            try:
                document = json.loads(path.read_bytes())
            except ValueError:
                continue
            document["give"] = [[place, inodes.get(inode, 1)] for place, inode in document["give"]]
            path.write_text(json.dumps(document))

    def _write(self, number: int, path: Path, made: dict[int, Path], journals: list[Path]) -> None:
        if number in self.names:
            path.mkdir()
            for name, inner in self.names[number].items():
                self._write(inner, path / name, made, journals)
        elif number in made:
            os.link(made[number], path)
        else:
            path.write_bytes(self.files.get(number, self._rng.choice((b"", bytes(1000)))))
            if path.name == "journal.json":
                journals.append(path)
        made.setdefault(number, path)


class _NoShim:
    def faults_disarm(self) -> None:
        """Nothing was armed."""


class Bench(faults.Bench):
    """A target, and the record of a run."""

    def __init__(self, name: str, place: Path, *, force: bool) -> None:
        super().__init__(name, place, _NoShim(), force=force)  # type: ignore[arg-type]
        self.reset()
        self._recorded = self.work / "steps"
        self._must(self.command)
        with self._recorded.open("rb") as file:
            self.recorder: Recorder = pickle.load(file)
        del self._recorded

    def _count(self) -> list[tuple[str, str]]:
        return []

    def _child(self, command: Sequence[str], fault: Any, printed: int, log: int) -> None:
        recorded: Path | None = getattr(self, "_recorded", None)
        if recorded is None:
            super()._child(command, fault, printed, log)
            return
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        from ckconv.cli import run

        recorder = Recorder(self.folder)
        recorder.record()
        status = run(list(command))
        with recorded.open("wb") as file:
            pickle.dump(recorder, file)
        os._exit(status)

    def lose(self, until: int, rng: random.Random) -> str:
        """What is wrong after a loss of power; empty if nothing is."""
        Disk(self.recorder, until, rng).write(self.folder)
        state = faults.contents(self.folder)
        if until == len(self.recorder.steps) and state != self.new:
            return f"the run had ended, and its output is not there: {sorted(state)}"
        return self._mixed(state) or self._read_again()


def run(names: Sequence[str], runs: int, seed: int, place: Path) -> int:
    """Try losses of power, say what is wrong, and how many there were with wrong ends."""
    faults._warm_up(names, place)
    benches = [Bench(name, place, force=force) for name in names for force in (False, True)]
    rng, wrong = random.Random(seed), 0
    for number in range(runs):
        bench = benches[number % len(benches)]
        steps = len(bench.recorder.steps)
        until = steps if number < len(benches) else rng.randrange(steps + 1)
        said = bench.lose(until, rng)
        if said:
            wrong += 1
            print(f"WRONG: {bench.title}: after {until} of {steps} steps: {said}", flush=True)
    print(f"{runs:,} losses of power, {wrong} with wrong ends")
    return wrong


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(faults.TARGETS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ckconv-power-") as place:
        return 1 if run(options.only.split(","), options.runs, options.seed, Path(os.path.realpath(place))) else 0


if __name__ == "__main__":
    sys.exit(main())
