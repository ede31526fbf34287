"""Whoever names files in a directory holds its lock, and takes it along however the block ends."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ckconv.errors import Interrupted, OutputError
from ckconv.publish.files import LOCK, locked
from ckconv.system.signals import interruptible


def at_the_first_line_of(function: Callable[..., Any], then: Callable[[], None]) -> Callable[..., None]:
    """To be traced with: calls ``then`` once, where the interpreter runs handlers of signals."""

    def traced(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code is function.__code__:  # type: ignore[attr-defined]
            sys.settrace(None)
            then()

    return traced


def test_there_is_a_file_as_long_as_somebody_holds_it(tmp_path: Path) -> None:
    with locked([tmp_path]):
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", [True, False])
def test_the_file_of_another_user_in_a_sticky_directory_is_locked(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Linux has it with fs.protected_regular; it may also go in the moment in which it is opened again."""
    (tmp_path / LOCK).touch()
    real = os.open

    def protected(path: Path, flags: int, *mode: int) -> int:
        if Path(path).name == LOCK and (tmp_path / LOCK).exists():
            if flags & os.O_CREAT or flags & os.O_RDWR:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            if not there:
                (tmp_path / LOCK).unlink()
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", protected)
    with locked([tmp_path]):
        assert (tmp_path / LOCK).exists()


@pytest.mark.needs("posix")
def test_a_directory_that_may_not_be_written_to_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refused(path: Path, flags: int, *mode: int) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(OutputError, match="Permission denied"):
        locked([tmp_path]).__enter__()


def test_a_signal_before_it_is_given_back_leaves_nothing(tmp_path: Path) -> None:
    before, leaving = sys.gettrace(), contextlib._GeneratorContextManager.__exit__
    try:
        with pytest.raises(Interrupted), interruptible(), locked([tmp_path]):
            sys.settrace(at_the_first_line_of(leaving, lambda: signal.raise_signal(signal.SIGTERM)))
    finally:
        sys.settrace(before)
    assert list(tmp_path.iterdir()) == []


def test_a_signal_within_the_block_comes_when_it_ends(tmp_path: Path) -> None:
    done = []

    def work() -> None:
        signal.raise_signal(signal.SIGTERM)
        done.append("the block")

    with pytest.raises(Interrupted), interruptible(), locked([tmp_path]):
        work()
    assert done == ["the block"]
    assert list(tmp_path.iterdir()) == []
