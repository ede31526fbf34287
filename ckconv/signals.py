"""Signals as exceptions: an interrupted conversion unwinds and cleans up like a failed one."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FrameType, TracebackType
from typing import Any, TypeVar

from ckconv.errors import Interrupted
from ckconv.system import ENDING

#: Seconds in which a repeated signal counts as the same wish, so that an impatient second Ctrl-C does not break
#: the unwinding that the first one began.
GRACE = 2.0

#: Seconds after which a signal comes again that was held back, or whose exception was lost.
AGAIN = 0.1

#: The interpreter's own code that takes and gives back the locks of modules. An exception out of its middle leaves a
#: module locked, and the next thread that imports it waits for ever.
_IMPORTING = "<frozen importlib._bootstrap>"
_LOCKING = frozenset(
    {"acquire", "release", "__enter__", "__exit__", "has_deadlock", "cb", "_get_module_lock", "_lock_unlock_module"}
)

F = TypeVar("F", bound="Callable[..., Any]")

#: What is said of a signal that came when there was nothing left to undo.
LATE = "interrupted after the output was complete; it was kept"


#: What is said where not all could be removed or brought back; the error's details say what.
LEFT = "interrupted; not everything could be put back as it was"


class _State:
    """What the handler knows; changed by the main thread only, where Python runs handlers."""

    depth = 0
    pending: int | None = None
    raised_at = float("-inf")
    raised: int | None = None
    lost = over = last = False
    sentence: str | None = None
    settling: set[CodeType] = set()  # noqa: RUF012 - there is one state


def settling(function: F) -> F:
    """Mark a function that puts something back: a signal that comes in it is raised by the next :func:`check`.

    Signals are handled where a function begins. One that came while files were written would otherwise be raised at
    the beginning of what removes them, and that would not be done.
    """
    _State.settling.add(function.__code__)
    return function


def _must_go_on(frame: FrameType | None) -> bool:
    """What runs, or what called it, is not to be broken off here."""
    while frame is not None:
        code = frame.f_code
        if code in _State.settling or (code.co_filename == _IMPORTING and code.co_name in _LOCKING):
            return True
        frame = frame.f_back
    return False


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
    repeated = time.monotonic() - _State.raised_at <= GRACE and not _State.lost
    if _State.depth:
        _State.pending = number
    elif _must_go_on(frame):
        _State.pending = number
        if not repeated:
            _send_again(number)
    elif not repeated:
        _State.pending = number
        _raise_pending()


def _send_again(number: int) -> None:
    """Send the signal once more in a moment: who waits for a server by then would hear of it when the server answers.

    Only where the handler stays for as long as the process does: another one may not expect it.
    """
    if _State.last and hasattr(signal, "pthread_kill"):
        with suppress(RuntimeError):  # no thread is to be had
            _thread.start_new_thread(_sent_again, (number,))


def _sent_again(number: int) -> None:
    time.sleep(AGAIN)
    if not _State.over and (_State.pending is not None or _State.lost):
        signal.pthread_kill(threading.main_thread().ident or 0, number)


def check() -> None:
    """Raise a signal's exception that was held back, or once more where it was lost: a destructor's is swallowed.

    For places that begin or carry on with work, in the main thread.
    """
    if _State.pending is None and _State.raised is None:
        return
    if _State.depth or threading.current_thread() is not threading.main_thread():
        return
    _raise_pending()
    if _State.raised is not None:
        _State.lost = False
        raise interrupted(_State.raised)


def _raise_pending() -> None:
    number, _State.pending = _State.pending, None
    if number is not None:
        _State.lost = False
        _State.raised_at = time.monotonic()
        _State.raised = number
        raise interrupted(number)


def _report_lost(unraisable: sys.UnraisableHookArgs) -> None:
    """Say nothing of a signal's exception that was lost: :func:`check` raises it again, or the signal comes again."""
    if not isinstance(unraisable.exc_value, Interrupted):
        sys.__unraisablehook__(unraisable)
    elif _State.raised is not None:
        _State.lost = True
        _send_again(_State.raised)


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
    _State.raised_at, _State.raised, _State.sentence = float("-inf"), None, None
    _State.lost, _State.over, _State.last = False, False, last
    old = {number: signal.getsignal(number) for number in ENDING}
    # None: a handler that C code installed, which Python could not put back.
    old = {number: handler for number, handler in old.items() if handler not in (signal.SIG_IGN, None)}
    hook = sys.unraisablehook
    try:
        sys.unraisablehook = _report_lost
        for number in old:
            signal.signal(number, _handle)
        yield
        _raise_pending()
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
        _State.pending = _State.raised = _State.sentence = None
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
        if not _State.depth:
            _raise_pending()
