"""Signals become one exception, are noted where that matters, and the old handlers return."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import FrameType

import pytest
from conftest import FIXTURES

from ckconv import convert
from ckconv.core.metadata import side_file
from ckconv.errors import Interrupted
from ckconv.publish.files import locked
from ckconv.publish.staging import LargeFile, Outputs, SmallFile
from ckconv.system import ENDING, signals
from ckconv.system.signals import blocking, check, declare, interruptible, noted


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def handlers_return() -> Iterator[None]:
    before = [signal.getsignal(number) for number in ENDING]
    yield
    assert [signal.getsignal(number) for number in ENDING] == before
    check()  # nothing is left of a signal that was raised


@pytest.mark.parametrize(
    ("number", "status"), [(number, status) for number, status in ((2, 130), (15, 143), (1, 129)) if number in ENDING]
)
def test_a_signal_is_an_exception_with_the_exit_status_of_a_shell(number: int, status: int) -> None:
    with pytest.raises(Interrupted) as caught, interruptible():
        send(number)
    assert (caught.value.code, caught.value.exit_code) == ("interrupted", status)


def test_an_impatient_second_signal_does_not_break_the_clean_up() -> None:
    cleaned = []

    def work() -> None:
        try:
            send(signal.SIGINT)
        finally:
            send(signal.SIGINT)
            send(signal.SIGTERM)
            cleaned.append("all")

    with pytest.raises(Interrupted) as caught, interruptible():
        work()
    assert cleaned == ["all"]
    assert caught.value.exit_code == 130


def test_each_block_starts_afresh() -> None:
    for _ in range(2):
        with pytest.raises(Interrupted), interruptible():
            send(signal.SIGINT)


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            send(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_later_signal_is_raised_again_where_the_first_was_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "GRACE", -1.0)

    def work() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            with pytest.raises(Interrupted):
                send(number)

    with pytest.raises(Interrupted) as caught, interruptible():
        work()
    assert caught.value.exit_code == 143, "the first one's"


def test_a_noted_signal_comes_when_work_begins_or_the_block_ends() -> None:
    done = []

    def work(*, checked: bool) -> None:
        with noted():
            with noted():
                send(signal.SIGTERM)
                done.append("inner")
            if checked:
                check()
            done.append("outer")
        done.append("after")

    for checked, meant in ((False, ["inner", "outer"]), (True, ["inner"])):
        done.clear()
        with pytest.raises(Interrupted, match="nothing was left behind") as caught, interruptible():
            work(checked=checked)
        assert (done, caught.value.exit_code) == (meant, 143)


def test_a_noted_signal_comes_to_any_thread_that_has_more_to_do() -> None:

    def work() -> None:
        send(signal.SIGTERM)
        with ThreadPoolExecutor(1) as pool, pytest.raises(Interrupted):
            pool.submit(check).result()
        check()

    with pytest.raises(Interrupted), interruptible(), noted():
        work()


def test_an_error_on_its_way_stays_what_it_is_until_the_signal_takes_its_place() -> None:

    def work() -> None:
        send(signal.SIGTERM)
        raise ValueError("mine")

    def unwound() -> None:
        with pytest.raises(ValueError, match="mine"), noted():
            work()
        raise ValueError("again")

    with pytest.raises(Interrupted) as caught, interruptible():
        unwound()
    assert str(caught.value.__cause__) == "again"


@pytest.mark.parametrize("before", [True, False])
def test_who_waits_for_somebody_else_is_broken_off(before: bool) -> None:
    """As by a pipe that nobody reads: it may have come just before the call."""
    waited = []

    def work() -> None:
        with noted():
            if before:
                send(signal.SIGTERM)
            with blocking():
                if not before:
                    send(signal.SIGTERM)
                waited.append("for ever")

    with pytest.raises(Interrupted), interruptible():
        work()
    assert waited == []


def test_a_signal_breaks_a_side_file_off_between_its_pieces(tmp_path: Path) -> None:
    asked: list[int] = []

    def pieces() -> Iterator[bytes]:
        for number in range(4):
            asked.append(number)
            if len(asked) == 6:  # they are made once to be counted
                send(signal.SIGTERM)
            yield bytes(5 << 20)

    small = SmallFile("tokenizer.json", side_file(pieces))
    with pytest.raises(Interrupted), interruptible(), Outputs({tmp_path / "tokenizer.json": small}, {}):
        asked.append(-1)
    assert (asked, [*tmp_path.iterdir()]) == ([0, 1, 2, 3, 0, 1], [])


@pytest.mark.parametrize("waits", [False, True])
def test_an_import_is_not_broken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    """It would stay locked, and who imports it next would wait for ever."""
    (tmp_path / f"signaled{waits}.py").write_text("import os\nos.kill(os.getpid(), 15)\nwhole = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Interrupted), interruptible(), noted(), blocking() if waits else nullcontext():
        signaled = importlib.import_module(f"signaled{waits}")
    assert signaled.whole


def test_a_signal_breaks_the_proof_of_metadata_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of a large vocabulary take seconds, in which no piece of a file is read."""
    went_on = []

    def proof(*_: object, **__: object) -> None:
        send(signal.SIGTERM)
        went_on.append("for seconds")

    monkeypatch.setattr("ckconv.conversion.run.check_statements", proof)
    with pytest.raises(Interrupted), interruptible():
        convert(FIXTURES / "hf" / "llama-tied-bf16", tmp_path / "m.gguf")
    assert (went_on, [*tmp_path.iterdir()]) == ([], [])


def test_a_program_that_leaves_ctrl_c_to_python_is_told_as_python_does() -> None:
    before, done = signal.signal(signal.SIGINT, signal.default_int_handler), list[None]()
    try:
        with pytest.raises(KeyboardInterrupt), noted():
            done.append(send(signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(done) == 1


def test_a_signal_says_what_was_declared_to_be_true() -> None:
    def work() -> None:
        with noted():
            send(signal.SIGTERM)
            declare("it is all there")

    with pytest.raises(Interrupted) as caught, interruptible():
        work()
    assert str(caught.value) == "[interrupted] it is all there"


def test_other_threads_have_no_handlers() -> None:
    def work() -> None:
        before = signal.getsignal(signal.SIGINT)
        with interruptible(), noted(), blocking():
            assert signal.getsignal(signal.SIGINT) is before

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def test_what_was_declared_is_true_of_later_signals_and_not_of_the_next_block() -> None:
    def work() -> None:
        declare("it is all there")
        send(signal.SIGTERM)

    with pytest.raises(Interrupted, match="it is all there"), interruptible():
        work()
    with pytest.raises(Interrupted, match="nothing was left behind"), interruptible():
        send(signal.SIGTERM)


@pytest.mark.parametrize("became", [ImportError, SystemError, RuntimeError])
def test_an_exception_that_a_signal_became_on_its_way_is_the_signal(became: type[Exception]) -> None:
    """As C code makes of what it did not expect, which then looked like a bug: status 1."""

    def work() -> None:
        try:
            send(signal.SIGTERM)
        except Interrupted as error:
            raise became("initialization failed") from error

    with pytest.raises(Interrupted) as caught, interruptible():
        work()
    assert caught.value.exit_code == 143


class Dying:
    """Its destructor is where the signal comes, and the interpreter swallows what a destructor raises."""

    def __del__(self) -> None:
        send(signal.SIGTERM)


def test_what_the_interpreter_swallowed_is_raised_where_work_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        Dying()
        check()

    with pytest.raises(Interrupted) as caught, interruptible():
        work()
    assert caught.value.exit_code == 143
    assert capsys.readouterr().err == ""
    check()  # another day


def interrupted_at(number: int, work: Callable[[], None]) -> bool:
    """Do ``work``, with a signal when its ``number``-th function begins; whether it had as many."""
    calls = 0

    def trace(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            sys.settrace(None)
            send(signal.SIGTERM)

    before = sys.gettrace()
    try:
        with interruptible():
            sys.settrace(trace)
            try:
                work()
            finally:
                sys.settrace(before)
    except Interrupted:
        pass
    return calls >= number


def test_a_signal_at_any_function_call_leaves_no_lock_behind(tmp_path: Path) -> None:
    def work() -> None:
        with locked([tmp_path]):
            (tmp_path / "locked").touch()

    number = 1
    while interrupted_at(number, work):
        assert [path.name for path in tmp_path.iterdir() if path.name != "locked"] == []
        number += 1
    assert number > 20


def test_a_signal_at_any_function_call_leaves_nothing_of_an_output_behind(tmp_path: Path) -> None:
    def work() -> None:
        with Outputs({tmp_path / "out.bump": LargeFile(3)}, {}) as outputs:
            os.write(outputs.fds[tmp_path / "out.bump"], b"all")
            outputs.fds.sync()

    number = 1
    while interrupted_at(number, work):
        assert list(tmp_path.iterdir()) == []
        number += 1
    assert number > 100
