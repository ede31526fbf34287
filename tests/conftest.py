"""Shared by all tests: a runner of the command line, in this process, and where the fixtures are.

A test that needs another user or machine than this is not collected. One that needs a program that is not installed
is skipped; with ``CKCONV_ORACLES=required`` that is a failure.
"""

from __future__ import annotations

import compileall
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import consumers
import hints_noted
import numpy as np
import pytest
from gguf import gguf_reader
from hypothesis import HealthCheck, settings
from products import beside, diagonals

import ckconv as package
from ckconv.cli import GARBAGE_THRESHOLD, run
from ckconv.system import MOVES_OPEN, TELLS_CACHED
from ckconv.system.signals import ENDING

#: Nothing may be skipped: the programs that models are made for are there.
REQUIRED = os.environ.get("CKCONV_ORACLES") == "required"

#: Where it is written down what became of every hint (scripts/hints.py); empty where hints are not followed.
HINTS = os.environ.get("CKCONV_HINTS", "")

#: A script's background job and nohup ignore signals, and so would every child that a test sends one to.
for _number in ENDING:
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

# A command takes half a second to begin, and half of that where its modules are compiled before. Children compile none:
# under a limit of file sizes Python leaves a part of a module, which nothing imports any more.
compileall.compile_dir(str(Path(package.__file__).parent), quiet=2)
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
sys.dont_write_bytecode = False  # of modules of tests, until all are there

# A disk takes some milliseconds for what tests in this process ask of it many thousands of times, and none of them goes
# on after a power loss. What is brought to the disk, and when, is spied on by the tests of that; children do sync.
if MOVES_OPEN:
    os.fsync = os.fdatasync = lambda fd: os.fstat(fd) and None


def _mapped(path: Path, mode: str) -> np.ndarray:
    return np.fromfile(path, np.uint8) if mode == "r" else np.memmap(path, mode=mode)


# gguf's reader makes a view for every token, and views of a memory map cost three times those of an array.
gguf_reader.np = SimpleNamespace(**{**vars(np), "memmap": _mapped})

# How long a machine takes says nothing of what is right.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

FIXTURES = Path(__file__).parent.parent / "fixtures"


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@cache
def can_mount() -> bool:
    """Whether a file system of a given size can be made."""
    with tempfile.TemporaryDirectory() as place:
        try:
            done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, check=False)
        except FileNotFoundError:
            return False
        if done.returncode == 0:
            subprocess.run(["umount", place], check=True)
        return done.returncode == 0


#: What a test may need: ``pytest.mark.needs(name)``.
NEEDS: dict[str, Callable[[], bool]] = {
    "root": lambda: MOVES_OPEN and os.geteuid() == 0,
    "user": lambda: MOVES_OPEN and os.geteuid() != 0,
    "mount": can_mount,
    "posix": lambda: MOVES_OPEN,
    "cached": lambda: TELLS_CACHED,
    "chromium": lambda: shutil.which("chromium") is not None,
    "model_signing": lambda: shutil.which("model_signing") is not None and shutil.which("openssl") is not None,
    "pyodide": lambda: shutil.which("node") is not None and "PYODIDE" in os.environ,
    "ggml_python": lambda: find_spec("ggml") is not None,
    "learn": lambda: "CKCONV_LEARN" in os.environ,
    "groff": lambda: shutil.which("groff") is not None,
}


def leave_to_combinations(items: list[pytest.Item]) -> None:
    """Of a test of a product of axes, mark the rows that only ``make combinations`` runs."""
    products: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("product"):
            products.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for rows in products.values():
        together = {"pairs": 2, "values": 1}[rows[0].get_closest_marker("product").args[0]]
        axes = [named(mark) for mark in rows[0].iter_markers("parametrize")]
        values = [[tuple(id(row.callspec.params[name]) for name in axis) for axis in axes] for row in rows]
        order = diagonals(values)
        for place in beside([{*combinations(enumerate(values[number]), together)} for number in order]):
            rows[order[place]].add_marker("combinations")


def named(mark: pytest.Mark) -> Sequence[str]:
    """The arguments that a mark gives values."""
    return [name.strip() for name in mark.args[0].split(",")] if isinstance(mark.args[0], str) else mark.args[0]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this user or machine cannot do, and rows of products that others show."""
    leave_to_combinations(items)
    wanted = {item: [NEEDS[name] for mark in item.iter_markers("needs") for name in mark.args] for item in items}
    left_out = [item for item, needs in wanted.items() if not all(there() for there in needs)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    sys.dont_write_bytecode = True
    gc.freeze()  # tests and modules stay until the end: looking through them takes a twentieth of the time
    gc.set_threshold(GARBAGE_THRESHOLD)  # as a command does: a sixth of a conversion's time


def fail(report: Any) -> None:
    *_, reason = report.longrepr
    report.outcome, report.longrepr = "failed", f"{reason}: nothing may be skipped with CKCONV_ORACLES=required"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skipped test into a failure where everything must run."""
    report = yield
    if REQUIRED and report.skipped and not hasattr(report, "wasxfail"):
        fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a file that is skipped as a whole."""
    report = yield
    if REQUIRED and report.skipped:
        fail(report)
    return report


@contextmanager
def kept_handlers() -> Iterator[None]:
    """The handlers of signals are the same behind the block: a command ends its process, and leaves others."""
    handlers = {number: signal.getsignal(number) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@pytest.fixture
def ckconv(capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """``ckconv("convert", a, b)`` -> exit status, stdout, stderr."""

    def call(*arguments: object) -> Result:
        capfd.readouterr()
        with kept_handlers():
            code = run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in err or "--debug" in arguments
        if code and HINTS and ("hint: " in err or '"hint"' in err):
            hints_noted.note([str(argument) for argument in arguments])
        return Result(code, out, err)

    return call


#: Tests of how files are written, proved and given up: of small ones by threads, as large ones are.
BY_THREADS = {
    *("test_executors", "test_golden", "test_independence", "test_jobs", "test_lanes"),
    *("test_locks", "test_output", "test_output_folders", "test_output_sets", "test_planted_links"),
    *("test_recovery", "test_recovery_foreign", "test_remote", "test_resume", "test_resume_naming"),
    *("test_signals", "test_stdout", "test_tiles", "test_uploads", "test_verify_whole"),
    "test_write",
}


@pytest.fixture(autouse=True)
def by_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """No file is so small that one thread writes, hashes and compares it."""
    with pytest.MonkeyPatch.context() as patch:
        if request.module.__name__ in BY_THREADS:
            patch.setattr("ckconv.conversion.pipeline.ALONE", -1)
        yield


@pytest.fixture(autouse=bool(HINTS))
def followed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """What was refused in a test leads on by its hints, as long as the test's files are there."""
    with hints_noted.noted():
        yield
    if request.node.get_closest_marker("follows"):
        hints_noted.forget()
    wrong = hints_noted.follow_noted(tmp_path, Path(HINTS), request.node.nodeid)
    assert not wrong, "\n\n".join(wrong).encode("ascii", "backslashreplace").decode()


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """``write(data)`` -> a file of these bytes."""

    def write(data: bytes, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.unlink(missing_ok=True)  # ext4 waits for the disk where a file is written again: ten times as long
        path.write_bytes(data)
        return path

    return write


@pytest.fixture(scope="session")
def fixtures() -> Path:
    return FIXTURES


@pytest.fixture
def unrefused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a tower that llama.cpp hears nothing right with as its converter does, for what reads the file."""
    from ckconv.families.towers import tower_family

    engines = tower_family("voxtral").engines
    monkeypatch.setitem(engines, "llama_cpp", engines["llama_cpp"]._replace(right_if=()))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def no_collection() -> Iterator[None]:
    """No garbage is looked for in a file of tests that makes very many small objects."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module", params=[1 << 20, 64, 1], ids=["one piece", "64 bytes a piece", "a row a piece"])
def small_pieces(request: pytest.FixtureRequest) -> Generator[None]:
    """The work of reading and writing rows in pieces of other sizes."""
    from ckconv.io import rows, stored

    with pytest.MonkeyPatch.context() as patch:
        for module, names in ((rows, ("CHUNK", "PIECE", "SCRATCH")), (stored, ("PIECE", "SCRATCH"))):
            for name in names:
                patch.setattr(module, name, request.param)
        yield


@pytest.fixture(scope="session")
def llama_cpp() -> Iterator[consumers.Consumer]:
    if not consumers.LIBRARY:
        pytest.skip("LLAMA_CPP_LIBRARY names no folder of llama.cpp's libraries")
    with consumers.llama_cpp() as program:
        yield program


@pytest.fixture(scope="session")
def llama_quantize() -> Iterator[Callable[..., Path]]:
    """``llama_quantize(source, target, file type, *more)`` -> target: one process for all tests."""
    if not consumers.LIBRARY:
        pytest.skip("LLAMA_CPP_LIBRARY names no folder of llama.cpp's libraries")
    with consumers.llama_quantize() as program:

        def quantize(source: Path, target: Path, file_type: int, *more: str) -> Path:
            said = program.ask({"arguments": [str(source), str(target), str(file_type), *more]})
            assert not said
            return target

        yield quantize


@pytest.fixture(scope="session")
def mlx_lm() -> Iterator[consumers.Consumer]:
    if find_spec("mlx_lm") is None:
        pytest.skip("mlx_lm is not installed")
    with consumers.mlx_lm() as program:
        yield program
