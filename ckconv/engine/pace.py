"""Threads that wait for how far others are."""

from __future__ import annotations

import math
from queue import SimpleQueue


class AbandonedError(Exception):
    """What a thread waits for will not come: the thread is to end."""


class Mark:
    """A number that one thread sets and another one waits for."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.ended = False
        #: The number that the waiting thread wants at least.
        self._awaited = math.inf
        self._woken: SimpleQueue[None] = SimpleQueue()

    def set(self, value: float) -> None:
        """Set the number, and wake the thread that waits for it. Never waits."""
        self.value = value
        if value >= self._awaited:
            self._awaited = math.inf
            self._woken.put(None)

    def end(self) -> None:
        """Wake the waiter for good, also one whose wake-up a signal lost."""
        self.ended = True
        self._woken.put(None)

    def wait(self, least: float) -> None:
        """Until the number is at least this."""
        while self.value < least and not self.ended:
            self._awaited = least
            if self.value < least and not self.ended:  # it may have been set before `_awaited` was
                self._woken.get()


class Pace:
    """How far a writer is, and the place that a reader behind it waits for: neither leaves the other far behind."""

    def __init__(self, lead: int) -> None:
        """Nothing is written, and no reader waits.

        Args:
            lead: bytes that may be written beyond the place that the reader waits for.
        """
        self._lead = lead
        self._written, self._wanted = Mark(0), Mark(math.inf)

    @property
    def written(self) -> float:
        """What is before this place is written."""
        return self._written.value

    def tell(self, place: int) -> None:
        """What is before ``place`` is written. Waits while the reader is too far behind."""
        self._written.set(place)
        self._wanted.wait(place - self._lead)

    def wait(self, place: int) -> None:
        """Until what is before ``place`` is written.

        Raises:
            AbandonedError: it will not be written, or the reader is to end.
        """
        self._wanted.set(place)
        self.wait_aside(place)

    def wait_aside(self, place: int) -> None:
        """As `wait`, without letting the writer run further ahead."""
        self._written.wait(place)
        if self._written.ended:
            raise AbandonedError

    def unread(self) -> None:
        """The reader has ended: the writer waits for it no more."""
        self._wanted.end()

    def abandon(self) -> None:
        """The writer has ended, or the reader is to end."""
        self._written.end()
