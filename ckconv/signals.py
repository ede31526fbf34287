"""Signals become one exception, so that whatever has to be cleaned up is cleaned up the way any error does it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ckconv.errors import Interrupted

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise :class:`Interrupted` in the main thread at the first SIGINT, SIGTERM or SIGHUP.

    Further ones are ignored, so that nothing interrupts the clean-up. A signal that was ignored before (``nohup``) stays
    ignored. Outside the main thread, where Python allows no handlers, nothing happens.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    raised = False

    def interrupt(number: int, _: FrameType | None) -> None:
        nonlocal raised
        if not raised:
            raised = True
            raise Interrupted(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, interrupt)
        yield
    finally:
        raised = True
        for number, handler in before.items():
            signal.signal(number, handler)
