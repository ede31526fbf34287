"""Signals as exceptions: an interrupted conversion unwinds and cleans up like a failed one."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

from ckconv.errors import Interrupted
from ckconv.system import ENDING

#: Seconds in which a repeated signal counts as the same wish, so that an impatient second Ctrl-C does not break
#: the unwinding that the first one began.
GRACE = 2.0

#: What is said of a signal that came when there was nothing left to undo.
LATE = "interrupted when the output was complete; it is there"


#: What is said where not all could be removed or brought back; the error's details say what.
LEFT = "interrupted; not everything could be put back as it was"


class _State:
    """What the handler knows; changed by the main thread only, where Python runs handlers."""

    depth = 0
    pending: int | None = None
    raised_at = float("-inf")
    raised: int | None = None
    over = False
    sentence: str | None = None


def interrupted(number: int) -> Interrupted:
    """The exception of a signal, with what is true now."""
    return Interrupted(number, _State.sentence) if _State.sentence else Interrupted(number)


def declare(sentence: str | None) -> None:
    """What an interruption says from now on.

    Args:
        sentence: what is true of the output; ``None`` where nothing of it is left.
    """
    if threading.current_thread() is threading.main_thread():
        _State.sentence = sentence


def _handle(number: int, frame: FrameType | None) -> None:
    if _State.over:
        return
    if _State.depth:
        _State.pending = number
    elif time.monotonic() - _State.raised_at > GRACE:
        _State.raised_at = time.monotonic()
        _State.raised = number
        raise interrupted(number)


def check() -> None:
    """Raise a signal's exception once more where it was lost, as the interpreter loses one that a destructor raises.

    For places that begin or carry on with work, in the main thread: they are only reached if it was lost.
    """
    number = _State.raised
    if number is not None and not _State.depth and threading.current_thread() is threading.main_thread():
        raise interrupted(number)


def _report_lost(unraisable: sys.UnraisableHookArgs) -> None:
    """Say nothing of a signal's exception that was lost: :func:`check` raises it again."""
    if not isinstance(unraisable.exc_value, Interrupted):
        sys.__unraisablehook__(unraisable)


@contextmanager
def interruptible(*, last: bool = False) -> Iterator[None]:
    """Raise :class:`Interrupted` in the main thread on SIGINT, SIGTERM or SIGHUP, once; then the old handlers return.

    A signal that is ignored on entry (``nohup``, a background job) stays ignored. Outside the main thread, where
    Python cannot set handlers, this does nothing.

    Args:
        last: only the report and the end of the process come after it: a signal no longer changes the exit status.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _State.raised_at, _State.raised, _State.over, _State.sentence = float("-inf"), None, False, None
    old = {number: signal.getsignal(number) for number in ENDING}
    # None: a handler that C code installed, which Python could not put back.
    old = {number: handler for number, handler in old.items() if handler not in (signal.SIG_IGN, None)}
    hook = sys.unraisablehook
    try:
        sys.unraisablehook = _report_lost
        for number in old:
            signal.signal(number, _handle)
        yield
    except Interrupted:
        raise
    except BaseException as error:
        # What becomes of a signal's exception on its way is not always itself: an import that it broke off may say
        # ImportError, or SystemError.
        if _State.raised is None:
            raise
        raise interrupted(_State.raised) from error
    finally:
        sys.unraisablehook = hook
        _State.raised = _State.sentence = None
        if not last:
            for number, handler in old.items():
                signal.signal(number, handler)
        else:
            _State.over = True


def ignore() -> None:
    """Ignore the signals from now on: the process ends, with the exit status of the first one."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


class deferred:  # noqa: N801 - used as a statement, like contextlib's own
    """Within :func:`interruptible`, hold signals back until the block ends: for clean-up and for publishing.

    Raises:
        Interrupted: on leaving the block, if a signal came meanwhile.
    """

    def __init__(self) -> None:
        self._main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> None:
        if self._main:
            _State.depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._main:
            return
        _State.depth -= 1
        number, self_is_last = _State.pending, _State.depth == 0
        if number is not None and self_is_last:
            _State.pending = None
            _State.raised_at = time.monotonic()
            _State.raised = number
            raise interrupted(number)
