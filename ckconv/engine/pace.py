"""Threads that wait for how far others are."""

from __future__ import annotations

import math
from queue import SimpleQueue


class AbandonedError(Exception):
    """What is waited for will not come: who waits is to end."""


class Mark:
    """A number that one thread sets and another one waits for."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.ended = False
        #: The least number for which somebody is to be woken.
        self._awaited = math.inf
        self._woken: SimpleQueue[None] = SimpleQueue()

    def set(self, value: float) -> None:
        """Never waits."""
        self.value = value
        if value >= self._awaited:
            self._awaited = math.inf
            self._woken.put(None)

    def end(self) -> None:
        """Nobody waits any more, whatever is set later; nor who was to be woken when a signal broke off :meth:`set`."""
        self.ended = True
        self._woken.put(None)

    def wait(self, least: float) -> None:
        """Until the number is at least this."""
        while self.value < least and not self.ended:
            self._awaited = least
            if self.value < least and not self.ended:  # it may have been set before anybody knew that it is awaited
                self._woken.get()


class Pace:
    """How far a writer is, and what somebody waits for who follows: neither leaves the other far behind."""

    def __init__(self, lead: int) -> None:
        """Nothing is written, and nobody follows.

        Args:
            lead: bytes behind what is waited for that may be written.
        """
        self._lead = lead
        self._written, self._wanted = Mark(0), Mark(math.inf)

    @property
    def written(self) -> float:
        """What is before this place is written."""
        return self._written.value

    def tell(self, place: int) -> None:
        """What is before ``place`` is written. Waits while too much is for who follows."""
        self._written.set(place)
        self._wanted.wait(place - self._lead)

    def wait(self, place: int) -> None:
        """Until what is before ``place`` is written.

        Raises:
            AbandonedError: nobody writes it, or who follows is to end.
        """
        self._wanted.set(place)
        self.wait_aside(place)

    def wait_aside(self, place: int) -> None:
        """The same, and nobody waits for who does so."""
        self._written.wait(place)
        if self._written.ended:
            raise AbandonedError

    def unread(self) -> None:
        """Nobody follows."""
        self._wanted.end()

    def abandon(self) -> None:
        """Nobody writes any more, or who follows is to end."""
        self._written.end()
