"""Signals become one exception, are held back where that matters, and the old handlers return."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from types import FrameType

import pytest

from ckconv import signals
from ckconv.engine.following import Following, Growth
from ckconv.errors import Interrupted
from ckconv.publish.locks import Locked
from ckconv.publish.staging import Outputs, Room
from ckconv.signals import check, declare, deferred, interruptible
from ckconv.system import ENDING


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def handlers_return() -> Iterator[None]:
    before = [signal.getsignal(number) for number in signals.ENDING]
    yield
    assert [signal.getsignal(number) for number in signals.ENDING] == before
    assert (signals._State.depth, signals._State.pending) == (0, None)


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


def test_a_later_signal_counts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "GRACE", -1.0)
    with interruptible():
        for _ in range(3):
            with pytest.raises(Interrupted):
                send(signal.SIGTERM)


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


def test_a_held_back_signal_comes_when_the_block_ends() -> None:
    done = []

    def work() -> None:
        with deferred():
            with deferred():
                send(signal.SIGTERM)
                done.append("inner")
            done.append("outer")
        done.append("after")

    with pytest.raises(Interrupted, match="nothing was left behind") as caught, interruptible():
        work()
    assert done == ["inner", "outer"]
    assert caught.value.exit_code == 143


def test_a_signal_says_what_was_declared_to_be_true() -> None:
    def work() -> None:
        with deferred():
            send(signal.SIGTERM)
            declare("it is all there")

    with pytest.raises(Interrupted) as caught, interruptible():
        work()
    assert str(caught.value) == "[interrupted] it is all there"


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


@pytest.fixture
def handlers_stay() -> Iterator[None]:
    """As the command's do until its end; put back for the tests that follow."""
    before = {number: signal.getsignal(number) for number in ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@signals.settling
def held_back() -> None:
    send(signal.SIGTERM)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="a thread cannot be sent a signal here")
@pytest.mark.parametrize("gone", [held_back, Dying], ids=["held back", "swallowed"])
def test_a_signal_that_was_not_heard_comes_again_to_who_waits(gone: Callable[[], object], handlers_stay: None) -> None:
    waited: list[object] = []

    def work() -> None:
        gone()
        waited.append(SimpleQueue().get(timeout=60))

    with pytest.raises(Interrupted) as caught, interruptible(last=True):
        work()
    assert (caught.value.exit_code, waited) == (143, [])


def test_a_signal_that_was_not_heard_comes_again_to_nobody_whose_handlers_return() -> None:
    with pytest.raises(Interrupted), interruptible():
        held_back()
    time.sleep(3 * signals.AGAIN)  # SIGTERM would end the tests


def test_other_threads_change_nothing() -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            before = signal.getsignal(signal.SIGINT)
            with interruptible(), deferred():
                assert signal.getsignal(signal.SIGINT) is before
                assert signals._State.depth == 0
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failures


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
        with Locked([tmp_path]):
            (tmp_path / "locked").touch()

    number = 1
    while interrupted_at(number, work):
        assert [path.name for path in tmp_path.iterdir() if path.name != "locked"] == []
        number += 1
    assert number > 20


def test_a_signal_at_any_function_call_leaves_nothing_of_an_output_behind(tmp_path: Path) -> None:
    def work() -> None:
        with Outputs({tmp_path / "out.bump": Room(3)}, {}) as outputs:
            os.write(outputs.fds[tmp_path / "out.bump"], b"all")
            outputs.sync()

    number = 1
    while interrupted_at(number, work):
        assert list(tmp_path.iterdir()) == []
        number += 1
    assert number > 100


def test_a_signal_at_any_function_call_leaves_no_thread_to_be_waited_for() -> None:
    ended: list[int] = []

    def work() -> None:
        with Following(Growth([]), lambda: None) as following:
            following.result()
            ended.append(number)

    number = 1
    while interrupted_at(number, work):
        number += 1
    assert ended[-1] == number
    assert len(set(ended)) < number, "most of the signals came before the end"
