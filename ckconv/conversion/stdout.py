"""A model on stdout: nothing can be taken back from there, and no header be written last."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

from ckconv.conversion.losses import Losses
from ckconv.conversion.progress import Watcher
from ckconv.conversion.write import in_one_run
from ckconv.errors import OutputError, UsageError
from ckconv.io.files import Files
from ckconv.plan.steps import Container, Plan, Step
from ckconv.publish.files import write_code
from ckconv.quant.convert import Action
from ckconv.signals import blocking, check
from ckconv.system import wait_for_reader


def write_stdout(plan: Plan, container: Container, files: Files, fd: int, watcher: Watcher) -> tuple[bytes, Losses]:
    """Write the one file of a plan to a pipe, in two passes where its header holds the digest of what follows.

    The first pass also finds what may not be lost, before anything is written.

    Returns:
        SHA-256 of what follows the header, and what could not be kept.

    Raises:
        UsageError: ``usage.target``, there are several files.
        UnsupportedError: a value would change that may not.
        OutputError: ``output.write``, ``output.space`` or ``input.changed``.
    """
    if len(plan.files) != 1:
        hint = "leave out --max-shard-size" if plan.options.max_shard_bytes else "name a file or a directory"
        raise UsageError("usage.target", f"{len(plan.files)} files cannot go to stdout", hint=hint)
    file, frame = plan.files[0], container.frames[0]
    begin, end = frame.header_bytes, file.nbytes - len(frame.epilogue)

    def content(losses: Losses) -> Iterator[tuple[memoryview, str]]:
        yield memoryview(frame.prologue), ""
        for data, name in in_one_run(file, begin + len(frame.prologue), end, files, losses):
            check()
            yield data, name
            watcher(len(data), name)

    losses, first, digest = Losses(plan), b"", sha256()
    if frame.header or any(_may_lose(step) for step in file.steps):
        watcher.begin("hashing", plan.nbytes)
        for data, _ in content(losses):
            digest.update(data)
        losses.check()
        first, digest = digest.digest(), sha256()
    watcher.begin("writing", plan.nbytes)
    with _to_reader():
        _write(fd, frame.header(first) if frame.header else b"")
        for data, _ in content(Losses(plan) if first else losses):
            _write(fd, data)
            digest.update(data)
        if first and digest.digest() != first:
            raise OutputError("input.changed", "the input changed between two passes over it", path=plan.index.path)
        _write(fd, frame.epilogue)
    watcher(begin + len(frame.prologue) + len(frame.epilogue), "")
    files.check_unchanged()
    return digest.digest(), losses


@contextmanager
def _to_reader() -> Iterator[None]:
    """A model on stdout that was not read to its end is an error, unlike a listing of which only the head is wanted.

    Raises:
        OutputError: ``output.write`` or ``output.space``.
    """
    try:
        yield
    except BrokenPipeError as error:
        message = "stdout was closed by its reader before the model was complete"
        raise OutputError("output.write", message) from error
    except OSError as error:
        if error.filename is not None:
            raise
        raise OutputError(write_code(error), f"stdout cannot be written: {error.strerror or error}") from error


def _may_lose(step: Step) -> bool:
    """Whether all of the step's values survive is only known when they are converted."""
    conversions = [run.conversion for run in step.runs] if step.runs else [step.conversion]
    return any(c is not None and (not c.exact or c.action is Action.REPACK) for c in conversions)


def _write(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while len(view):
        with blocking():
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:  # somebody made the pipe that we share non-blocking
                wait_for_reader(fd)
