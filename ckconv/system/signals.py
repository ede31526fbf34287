"""Signals: raised at once, and noted while an output is written.

An exception out of a handler comes between any two lines, of whoever cleans up too. A signal that is only noted cannot
break anything: :func:`check` raises it, in whatever thread has the next piece of work to begin.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from ckconv.errors import Interrupted
from ckconv.system import ENDING

if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

#: Seconds in which a repeated signal counts as the same wish, so that an impatient second Ctrl-C does not break
#: the unwinding that the first one began.
GRACE = 2.0

#: The note on a signal that came when there was nothing left to undo.
COMPLETE = "interrupted after the output was complete; it was kept"

#: The note where the output was to replace another.
OLDER = "interrupted; nothing was left behind, and what was there before stayed"

#: The note where not all could be removed or brought back; the error's details say what.
LEFT = "interrupted; not everything could be put back as it was"


class State:
    """State of the handler, which the main thread alone changes."""

    #: The first signal that came; who reads a piece of a file looks at it before calling :func:`check`.
    number: int | None = None
    #: Blocks of :func:`noted` that are open, and whether the innermost one lets signals through (:func:`blocking`).
    depth = 0
    #: Where :func:`blocking` was entered.
    blocking: FrameType | None = None
    raised_at = float("-inf")
    #: A program of somebody else's, which hears of Ctrl-C as it is used to.
    library = over = False
    sentence: str | None = None


def interrupted(number: int) -> BaseException:
    """The exception of a signal, with what is true now."""
    if State.library:
        return KeyboardInterrupt()
    return Interrupted(number, State.sentence) if State.sentence else Interrupted(number)


def declare(sentence: str | None) -> None:
    """Set the sentence of an interruption from now on.

    Args:
        sentence: what is true of the output; ``None`` where nothing of it is left.
    """
    if threading.current_thread() is threading.main_thread():
        State.sentence = sentence


def check() -> None:
    """Raise the exception of a signal that came, in any thread."""
    if State.number is not None:
        State.raised_at = time.monotonic()
        raise interrupted(State.number)


def _handle(number: int, frame: FrameType | None) -> None:
    if State.over:
        return
    repeated = time.monotonic() - State.raised_at <= GRACE
    State.number = number if State.number is None else State.number
    if not _imports(frame, State.blocking) and (State.blocking or not (State.depth or repeated)):
        State.blocking = None
        check()


def _imports(frame: FrameType | None, within: FrameType | None) -> bool:
    """Whether a module is being imported; interruption would leave a lock."""
    while frame is not None and frame is not within:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _report(unraisable: sys.UnraisableHookArgs) -> None:
    """Drop a signal's swallowed exception, which :func:`check` raises again."""
    if not isinstance(unraisable.exc_value, Interrupted):
        sys.__unraisablehook__(unraisable)


@contextmanager
def interruptible(*, last: bool = False) -> Iterator[None]:
    """Raise :class:`Interrupted` in the main thread on a signal.

    The signals are SIGINT, SIGTERM and SIGHUP; at the end the old handlers return.

    A signal that is ignored on entry (``nohup``, a background job) stays ignored. Outside the main thread, where
    Python cannot set handlers, this does nothing.

    Args:
        last: only the report and the end of the process come after it: a signal no longer changes the exit status.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    State.number, State.sentence, State.raised_at, State.over = None, None, float("-inf"), False
    # None: a handler that C code installed, which Python could not put back.
    old = {number: signal.getsignal(number) for number in ENDING}
    old = {number: handler for number, handler in old.items() if handler not in (signal.SIG_IGN, None)}
    hook = sys.unraisablehook
    try:
        sys.unraisablehook = _report
        for number in old:
            signal.signal(number, _handle)
        yield
        check()
    except Interrupted:
        raise
    except BaseException as error:
        # What becomes of a signal's exception on its way is not always itself: C code may make a SystemError of it.
        if State.number is None:
            raise
        raise interrupted(State.number) from error
    finally:
        sys.unraisablehook = hook
        State.over = last
        for number, handler in {} if last else old.items():
            signal.signal(number, handler)
        State.number = State.sentence = None


@contextmanager
def noted() -> Iterator[None]:
    """Note signals in this block: :func:`check` or its end raises them.

    In a program that leaves Ctrl-C to Python, too, which is a ``KeyboardInterrupt`` then.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    library = not State.depth and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if library:
        State.number, State.library, State.over = None, True, False
    blocking, State.blocking = State.blocking, None
    State.depth += 1
    try:
        if library:
            signal.signal(signal.SIGINT, _handle)
        yield
        if State.depth == 1:
            check()
    finally:
        if library:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            State.number, State.library = None, False
        State.depth -= 1
        State.blocking = blocking


@contextmanager
def blocking() -> Iterator[None]:
    """Raise signals at once, for waits and long reads without clean-up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    outer, State.blocking = State.blocking, sys._getframe(2)  # of who enters it by contextlib
    try:
        check()
        yield
    finally:
        State.blocking = outer


def ignore() -> None:
    """Ignore signals from now on: the process ends."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
