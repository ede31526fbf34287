"""What tests of outputs share."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckconv.errors import CkconvError, OutputError
from ckconv.publish.staging import LargeFile, Outputs, SmallFile


def one_file(
    side: Mapping[Path, bytes],
    *,
    main: Path,
    nbytes: int,
    holes: Sequence[tuple[int, int]] = (),
    directory: Path | None = None,
    force: bool = False,
    inputs: Sequence[Path] = (),
) -> Outputs:
    """A model file and side files that are called as readers expect them."""
    small = {path: SmallFile(path.name, content) for path, content in side.items()}
    rooms = {main: LargeFile(nbytes, tuple(holes))}
    return Outputs(rooms, small, directory=directory, force=force, inputs=inputs, typed=main)


def descriptor(outputs: Outputs) -> int:
    return next(iter(outputs.fds.values()))


def write(outputs: Outputs, data: bytes) -> None:
    os.pwrite(descriptor(outputs), data, 0)
    outputs.fds.sync()


def contents(place: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@contextmanager
def refused(code: str, message: str | None = None) -> Iterator[list[CkconvError]]:
    caught: list[CkconvError] = []
    with pytest.raises(OutputError, match=message) as info:
        yield caught
    assert (info.value.code, info.value.exit_code) == (code, 6)
    caught.append(info.value)


@contextmanager
def failing_at(step: int, *calls: str) -> Iterator[None]:
    """The n-th of these calls of the system fails in the block."""
    count = itertools.count()

    def failing(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            if next(count) == step:
                raise OSError(errno.EIO, "Input/output error")
            return real(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in calls:
            patch.setattr(os, name, failing(getattr(os, name)))
        yield


def no_links(*arguments: object, **options: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")
