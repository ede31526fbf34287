"""How far a file is written: one thread writes it, others follow."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from threading import Condition
from typing import Protocol

#: Bytes that may be written before whoever follows has asked for them: they are in memory still.
LEAD = 64 << 20


class Stopped(Exception):
    """The file that a thread follows will not be completed."""


class Watcher(Protocol):
    """Hears of progress: a phase begins with its total bytes, then bytes are done, with the tensor they belong to."""

    def begin(self, phase: str, total: int) -> None:
        """A phase of ``total`` bytes begins."""

    def __call__(self, nbytes: int, name: str) -> None:
        """``nbytes`` more are done."""


class Unwatched:
    """A watcher for whom nothing is done."""

    def begin(self, phase: str, total: int) -> None:
        """Ignored."""

    def __call__(self, nbytes: int, name: str) -> None:
        """Ignored."""


class Progress:
    """The number of bytes of one file that are written, from its beginning on.

    The writer waits where a follower is far behind: what was written is to be in memory, or in a cache, still.

    Attributes:
        written: how many they are.
        tensor: whose the last ones are.
        stopped: there will be no more.
    """

    def __init__(self, leads: Mapping[str, int]) -> None:
        """Nothing is written.

        Args:
            leads: follower -> bytes that may be written beyond those that it waits for.
        """
        self._changed = Condition()
        self._leads = dict(leads)
        self._wanted = dict.fromkeys(leads, 0)
        self.written, self.tensor = 0, ""
        self.stopped = False

    def advance(self, until: int, tensor: str = "") -> None:
        """Bytes before ``until`` are written, the last ones of this tensor."""
        with self._changed:
            reached = any(self.written < wanted <= until for wanted in self._wanted.values())
            self.written, self.tensor = until, tensor
            if reached:  # to wake a thread costs more than to look
                self._changed.notify_all()
            self._changed.wait_for(lambda: self.stopped or until <= self._limit())

    def _limit(self) -> float:
        return min((self._wanted[name] + lead for name, lead in self._leads.items()), default=self.written)

    def wait(self, until: int, follower: str) -> int:
        """Wait until bytes before ``until`` are written; returns how many are.

        Raises:
            Stopped: they will not be.
        """
        with self._changed:
            if until > self._wanted.get(follower, 0):
                self._wanted[follower] = until
                if follower in self._leads:
                    self._changed.notify_all()
            self._changed.wait_for(lambda: self.written >= until or self.stopped)
            if self.written < until:
                raise Stopped
            return self.written

    def leave(self, follower: str) -> None:
        """The writer waits for this one no more."""
        with self._changed:
            self._leads.pop(follower, None)
            self._changed.notify_all()

    def stop(self) -> None:
        """No more is written; those who wait are told."""
        with self._changed:
            self.stopped = True
            self._changed.notify_all()


class Growing:
    """The files of one output, as who compares one of them sees them.

    :class:`ckconv.io.files.Files` asks before it reads.
    """

    def __init__(self, files: Mapping[Path, Progress], own: Path) -> None:
        """Wait for nothing yet.

        Args:
            files: each, however far it is.
            own: the one whose bytes are waited for.
        """
        self._files, self._own = files, own

    @property
    def paths(self) -> Collection[Path]:
        """Which they are."""
        return self._files.keys()

    def wait_for(self, path: Path, until: int) -> None:
        """Return when the bytes of ``path`` before ``until`` are written; those of a file outside of the output are.

        Raises:
            Stopped: they will not be, or are those of another file and not there yet.
        """
        if path == self._own:
            self._files[path].wait(until, "compare")
        elif path in self._files and self._files[path].written < until:
            raise Stopped
