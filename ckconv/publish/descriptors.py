"""Descriptors of files that grow: as many as an output has shards, of which only some are open at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ckconv.publish.files import close_written, failing
from ckconv.system import CLOEXEC, MAX_OPEN, sync, sync_file


class Descriptors(Mapping[Path, int]):
    """Output -> a descriptor to read and write it, which stays open until ``MAX_OPEN`` others were opened.

    What is closed before the end is brought to the disk first: whoever opens it again might not hear of a failed write.
    One thread asks for descriptors.
    """

    def __init__(self) -> None:
        self._places: dict[Path, Path] = {}
        #: Output -> descriptor, in the order in which they were opened.
        self._open: dict[Path, int] = {}

    def add(self, output: Path, fd: int, place: Path) -> None:
        """Take over the descriptor of ``output``, which is at ``place`` for now."""
        self._places[output], self._open[output] = place, fd
        self._make_room(MAX_OPEN)

    def forget(self, output: Path) -> None:
        """Close the descriptor of what another file takes the place of; it is opened again when it is asked for."""
        if output in self._open:
            close_written(self._open.pop(output))

    def __getitem__(self, output: Path) -> int:
        if output not in self._open:
            place = self._places[output]
            self._make_room(MAX_OPEN - 1)
            with failing(output):
                self._open[output] = os.open(place, os.O_RDWR | CLOEXEC)
        return self._open[output]

    def _make_room(self, most: int) -> None:
        while len(self._open) > most:
            output = next(iter(self._open))
            with failing(output):
                sync(self._open[output])
                close_written(self._open.pop(output))

    def sync(self) -> None:
        """Bring all files to the disk. Any thread may do so while another one asks for descriptors.

        Raises:
            OutputError: ``output.write`` or ``output.space``.
        """
        some_are_closed = len(self._places) > MAX_OPEN
        for output, place in list(self._places.items()):
            with failing(output):
                if some_are_closed or output not in self._open:
                    sync_file(place)
                else:
                    sync(self._open[output])

    def __iter__(self) -> Iterator[Path]:
        return iter(list(self._places))

    def __len__(self) -> int:
        return len(self._places)

    def close(self) -> None:
        """Close every descriptor and forget the files."""
        self._places.clear()
        while self._open:
            with suppress(OSError):  # what could go wrong was said when it was brought to the disk
                os.close(self._open.popitem()[1])
