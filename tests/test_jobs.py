"""``--jobs N``: pieces of a tensor made side by side give the bytes and the words that one after the other give."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import FIXTURES
from outputs import contents
from test_quantize import WIDE, checkpoint

import ckconv
from ckconv.conversion import write
from ckconv.core.options import Options
from ckconv.errors import InputError, Interrupted, OutputError, UsageError, VerifyError
from ckconv.io import rows, stored
from ckconv.io.files import Files
from ckconv.io.tiles import BEHIND, SideBySide, at_once, made_at_once
from ckconv.quant.convert import Conversion
from ckconv.system.signals import interruptible

resource = pytest.importorskip("resource")  # of POSIX

KQUANTS = FIXTURES / "kquants/llama64.Q4_K_M.gguf"

#: Bytes of a piece: these models are small.
PIECE = 4096

#: What is converted, to what, and how; paths of fixtures.
CONVERSIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "blocks to numbers": (
        "kquants/llama64.Q4_K_M.gguf",
        "out/",
        {"to": "safetensors", "options": {"dequantize": True}},
    ),
    "blocks to halves": (
        "kquants/llama64.Q4_K_M.gguf",
        "out.gguf",
        {"options": {"dequantize": True, "dtype": "f16", "allow_lossy": True}},
    ),
    "numbers to blocks": ("", "out.gguf", {"options": {"quantize": "q4_k_m"}}),
    "in shards": ("", "out/", {"to": "safetensors", "options": {"max_shard_bytes": 100_000, "dtype": "f32"}}),
    "with an adapter": (
        "hf/llama-tied-bf16",
        "out.gguf",
        {"adapters": [(FIXTURES / "lora/llama-r4-attn-mlp", 1.0)], "options": {"dtype": "f32"}},
    ),
    "words of GPTQ's kind": ("quantised/awq-g32", "out.gguf", {"options": {"dequantize": True}}),
    "to MLX": ("", "out/", {"to": "mlx", "options": {"quantize": "affine:4:64"}}),
    "to a bump": ("hf/llama-tied-bf16", "out.bump", {"options": {}}),
}


def left_of(before: int) -> int:
    """Threads more than there were; one that has said that it is through needs a moment to end."""
    until = time.monotonic() + 10
    while _thread._count() > before and time.monotonic() < until:
        time.sleep(0.001)
    return _thread._count() - before


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose rows are whole blocks."""
    return checkpoint(tmp_path_factory.mktemp("floats"), replace(WIDE, layers=1))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (rows, stored):
        monkeypatch.setattr(module, "PIECE", PIECE)
        monkeypatch.setattr(module, "SCRATCH", 8 * PIECE)


def converted(source: Path, folder: Path, target: str, jobs: int, options: dict[str, Any], **more: Any) -> Any:
    """What is in every file, and what the report says of values."""
    folder.mkdir()
    report = ckconv.convert(source, f"{folder}/{target}", jobs=jobs, options=Options(**options), **more)
    files = contents(folder)
    return files, report.changed, report.merged, report.plan.errors and report.plan.errors.of_types, report.verified


@pytest.mark.parametrize("name", CONVERSIONS)
@pytest.mark.usefixtures("small_pieces")
def test_bytes_and_report_do_not_depend_on_the_number(name: str, floats: Path, tmp_path: Path) -> None:
    path, target, more = CONVERSIONS[name]
    source = FIXTURES / path if path else floats
    one, *others = (converted(source, tmp_path / str(jobs), target, jobs, **more) for jobs in (1, 2, 3))
    assert one[0]
    assert others == [one, one]


@pytest.mark.product("values")
@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("name", [name for name, (_, target, _) in CONVERSIONS.items() if target != "out.bump"])
@pytest.mark.usefixtures("small_pieces")
def test_a_byte_that_was_written_wrongly_is_found_whoever_compares(
    name: str, jobs: int, floats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target, more = CONVERSIONS[name]
    source = FIXTURES / path if path else floats
    real, calls, spoilt = write.write_some, [0], [0]

    def counted(fd: int, data: Any, at: int) -> int:
        calls[0] += 1
        if calls[0] == spoilt[0]:
            middle = len(data) // 2
            data = bytes(data[:middle]) + bytes([data[middle] ^ 1]) + bytes(data[middle + 1 :])
        return real(fd, data, at)

    monkeypatch.setattr(write, "write_some", counted)
    converted(source, tmp_path / "right", target, jobs, **more)
    for spoilt[0] in sorted({1, calls[0] // 2, calls[0]}):
        calls[0] = 0
        with pytest.raises(VerifyError):
            converted(source, tmp_path / str(spoilt[0]), target, jobs, **more)
        assert not any((tmp_path / str(spoilt[0])).rglob("*"))


@pytest.mark.usefixtures("small_pieces")
def test_threads_compare_with_nothing_that_is_not_written_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that is made again is what the finished file beside it is compared with."""
    source = FIXTURES / "quantised/awq-g32"
    ckconv.convert(source, tmp_path / "out.gguf", options=Options(source_record="always"))
    real = write.write_some

    def slow(fd: int, data: Any, at: int) -> int:
        time.sleep(0.002)
        return real(fd, data, at)

    monkeypatch.setattr(write, "write_some", slow)
    ckconv.convert(tmp_path / "out.gguf", f"{tmp_path}/back/", to="safetensors", jobs=3)
    for path in source.glob("*.safetensors"):
        assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(("made", "threads"), [("q4_0", 3), ("q8_0", 1)])
def test_what_a_library_quantized_is_compared_by_as_many_threads(
    made: str, threads: int, floats: Path, tmp_path: Path
) -> None:
    """What numpy makes is not: its steps are so short that threads wait for each other."""
    converted(floats, tmp_path / "out", "out.gguf", 3, {"quantize": made})
    again: set[int] = set()

    def noted(conversion: Any, rows: Any) -> Any:
        if conversion.quantizing is None or conversion.quantizing.errors is None:  # whoever writes counts errors
            again.add(threading.get_ident())
        return apply(conversion, rows)

    apply = Conversion.apply
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Conversion, "apply", noted)
        ckconv.verify(tmp_path / "out/out.gguf", floats, weights=True, jobs=3)
    assert len(again) == threads


@pytest.mark.parametrize("jobs", [1, 2, 3, 7])
def test_pieces_come_in_their_order_out_of_as_many_threads(jobs: int) -> None:
    met = threading.Barrier(jobs, timeout=10)
    threads = set()

    def piece(reader: int, number: int) -> tuple[int, int]:
        if number < jobs:
            met.wait()  # none is done before all have begun
        threads.add(threading.get_ident())
        return reader, number

    made = iter(range(100))
    with Files() as files, at_once(jobs):
        several = SideBySide(lambda files: next(made), files)
        found = list(several.each(partial(piece, number=number) for number in range(50)))
    assert [number for _, number in found] == list(range(50))
    assert len(threads) == jobs
    assert len({reader for reader, _ in found}) == jobs


def test_only_a_few_more_pieces_are_made_than_there_are_threads() -> None:
    begun: list[int] = []

    def piece(reader: None, number: int) -> int:
        begun.append(number)
        return number

    with Files() as files, at_once(3):
        results = SideBySide(lambda files: None, files).each(partial(piece, number=number) for number in range(50))
        for number in results:
            assert max(begun) < number + 3 + BEHIND
        assert sorted(begun) == list(range(50))


@pytest.mark.parametrize("jobs", [1, 3])
def test_the_first_fault_in_the_order_of_pieces_is_raised_and_no_thread_stays(jobs: int) -> None:
    before = _thread._count()

    def piece(reader: None, number: int) -> int:
        if number >= 5:
            raise InputError("input.unreadable", f"piece {number}")
        return number

    with Files() as files, at_once(jobs):
        results = SideBySide(lambda files: None, files).each(partial(piece, number=number) for number in range(50))
        assert [next(results) for _ in range(5)] == list(range(5))
        with pytest.raises(InputError, match="piece 5"):
            next(results)
    assert left_of(before) == 0


def test_what_threads_carry_out_at_once_has_numbers_of_its_own() -> None:
    """Two conversions that overlap, and do not end in the order in which they began."""
    begun, ended = threading.Event(), threading.Event()
    seen: list[int] = []

    def other() -> None:
        with at_once(8):
            seen.append(made_at_once())
            begun.set()
            ended.wait(60)
            seen.append(made_at_once())
        seen.append(made_at_once())

    thread = threading.Thread(target=other)
    with at_once(4):
        thread.start()
        begun.wait(60)
        assert made_at_once() == 4
    ended.set()
    thread.join(60)
    assert seen == [8, 8, 1]
    assert made_at_once() == 1


def test_whoever_makes_a_piece_knows_how_many_do() -> None:
    with Files() as files, at_once(3):
        pieces = SideBySide(lambda files: None, files).each((lambda _: made_at_once()) for _ in range(9))
        assert [*pieces] == [3] * 9


def test_a_walk_that_is_broken_off_leaves_no_thread() -> None:
    before = _thread._count()
    with Files() as files, at_once(3):
        results = SideBySide(lambda files: None, files).each(partial(lambda _, n: n, n=n) for n in range(50))
        assert next(results) == 0
        results.close()
    assert left_of(before) == 0


def test_where_no_thread_can_be_started_the_caller_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with Files() as files, at_once(3):
        assert [*SideBySide(lambda files: None, files).each(partial(lambda _, n: n, n=n) for n in range(5))] == [
            *range(5)
        ]


@pytest.mark.usefixtures("small_pieces")
def test_an_input_that_another_thread_finds_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1")

    def read(files: Files) -> Callable[[], int]:
        return lambda: files.fd(path)

    with Files() as files, at_once(2):
        results = SideBySide(read, files).each(lambda ask: ask() for _ in range(9))
        for _ in range(9):
            next(results)
        path.write_bytes(b"another")
        with pytest.raises(OutputError) as caught:
            next(results)
    assert caught.value.code == "input.changed"


@pytest.mark.usefixtures("small_pieces")
def test_a_damaged_output_is_found_with_the_same_words(tmp_path: Path) -> None:
    source = FIXTURES / "kquants/llama64.Q4_K_M.gguf"
    ckconv.convert(source, tmp_path / "out.gguf", options=Options(dequantize=True))
    data = bytearray((tmp_path / "out.gguf").read_bytes())
    data[-700] ^= 1
    (tmp_path / "out.gguf").write_bytes(data)
    said = []
    for jobs in (1, 2, 3):
        with pytest.raises(VerifyError) as caught:
            ckconv.verify(tmp_path / "out.gguf", source, options=Options(dequantize=True), jobs=jobs)
        said.append((caught.value.message, caught.value.details))
    assert said[0] == said[1] == said[2]


def test_less_than_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="jobs is 0"):
        ckconv.convert(FIXTURES / "hf/llama-tied-bf16", tmp_path / "out.gguf", jobs=0)


@pytest.mark.parametrize("limit", [0, 5000, 100_000])
def test_a_disk_that_is_full_leaves_nothing_whatever_the_number(limit: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ckconv", "convert", str(KQUANTS), f"{tmp_path}/out/"]
    command += ["--to", "hf", "--dequantize", "--jobs", "3"]
    bound = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit))
    done = subprocess.run(command, preexec_fn=bound, capture_output=True)
    assert (done.returncode, list(tmp_path.iterdir())) == (6, [])
    assert b"error[output.space]" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("small_pieces")
def test_a_signal_in_any_piece_leaves_neither_a_file_nor_a_thread(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while one thread writes and others quantize what comes next."""
    before, real = _thread._count(), write.write_some
    for moment in (1, 5, 30):
        writes = iter(range(1, 10_000))

        def interrupted(*given: Any, writes: Any = writes, moment: int = moment) -> int:
            if next(writes) == moment:
                os.kill(os.getpid(), number)
            return real(*given)

        monkeypatch.setattr(write, "write_some", interrupted)
        with pytest.raises(Interrupted), interruptible():
            ckconv.convert(KQUANTS, tmp_path / "out.gguf", jobs=3, options=Options(dequantize=True, quantize="q4_0"))
        assert list(tmp_path.iterdir()) == []
        assert left_of(before) == 0
