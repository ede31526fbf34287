"""Files of one output that are written side by side, as many at once as there are processors for them.

SHA-256 of one file keeps one processor busy, of several files several. So the files are shared out to lanes: a thread
writes those of its lane in order, and others read them back behind it. Whoever is through with a lane leaves its
processor to another one. What is written, and what is said of it, does not depend on how many lanes there are: where
something is wrong with several files, the first of them counts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Generic, NamedTuple, TypeVar

from ckconv.engine.following import Following, Growth
from ckconv.engine.losses import Losses
from ckconv.engine.pace import AbandonedError
from ckconv.engine.workers import Stage
from ckconv.errors import CkconvError, Interrupted
from ckconv.plan.container import Frame
from ckconv.plan.steps import OutputFile
from ckconv.signals import check
from ckconv.system import MAX_OPEN

T = TypeVar("T")

#: Told bytes, and the tensor they belong to.
Told = Callable[[int, str], None]

#: Lanes at most: what a disk takes, and a process may have open.
MOST = 8

#: Seconds between two looks at what others have done, when this thread has no more to do.
_PATIENCE = 0.1


class Part(NamedTuple):
    """One file of tensors.

    Attributes:
        number: in the plan.
        path: what it is going to be called.
        place: where it is until then.
    """

    number: int
    path: Path
    place: Path
    file: OutputFile
    frame: Frame


def open_in(lanes: int) -> int:
    """Files that may be open of those that one thread of a lane reads: together not many more than of one."""
    return MAX_OPEN if lanes == 1 else max(4, MAX_OPEN // (2 * lanes))


class Lane(Generic[T]):
    """Files that are written one after the other, and what reads them back."""

    def __init__(self, parts: Sequence[Part], growth: Growth, read: Callable[[], T]) -> None:
        self.parts, self.growth = parts, growth
        self.following = Following(growth, read)


def shared_out(parts: Sequence[Part], count: int) -> list[list[Part]]:
    """``count`` lanes of about as many bytes, each in order."""
    lanes: list[list[Part]] = [[] for _ in range(count)]
    sizes = [0] * count
    for part in parts:
        least = sizes.index(min(sizes))
        lanes[least].append(part)
        sizes[least] += part.file.nbytes
    return lanes


class Lanes(Generic[T]):
    """Lanes at work: those that read begin with the block, and whatever still runs ends with it."""

    def __init__(self, lanes: Sequence[Lane[T]]) -> None:
        self._lanes = lanes
        self._writers: list[Stage] = []
        self._watcher: Told = lambda nbytes, name: None
        #: What threads of other lanes have done, of which the watcher has not heard.
        self._aside: deque[tuple[int, str]] = deque()
        self._losses: dict[int, Losses] = {}
        self._errors: dict[int, BaseException] = {}
        #: The first file that is not needed any more: one before it failed.
        self._unwanted: float = math.inf

    def write(self, write: Callable[[Lane[T], Part, Told], Losses], watcher: Told) -> list[Losses]:
        """Write every file; the calling thread those of the first lane.

        Args:
            watcher: called by the calling thread only.

        Returns:
            what the steps of each file could not keep.

        Raises:
            CkconvError, OSError: what ``write`` raised, of the first file of which it did.
        """
        self._watcher = watcher
        for lane in self._lanes[1:]:
            context = copy_context()  # family files that count for this call
            stage = Stage.of(partial(context.run, self._write, lane, write, self._note))
            stage.start()
            self._writers.append(stage)
        self._write(self._lanes[0], write, self._tell)
        for stage in self._writers:
            while not stage.waited(_PATIENCE):
                check()
                self._pass_on()
            if stage.error is not None:
                raise stage.error
        self._pass_on()
        if self._errors:
            raise self._errors[min(self._errors)]
        return [losses for _, losses in sorted(self._losses.items())]

    def read(self) -> list[T]:
        """What was read of each lane, when all is written.

        Raises:
            Exception: what reading raised, of the first file of which it did.
        """
        found: list[T] = []
        errors: list[tuple[int, Exception]] = []
        for lane in self._lanes:
            try:
                found.append(lane.following.result())
            except Interrupted:
                raise
            except Exception as error:
                errors.append((_number(lane.parts, error), error))
        if errors:
            raise min(errors, key=lambda item: item[0])[1]
        return found

    def _write(self, lane: Lane[T], write: Callable[[Lane[T], Part, Told], Losses], told: Callable[..., None]) -> None:
        for part in lane.parts:
            try:
                self._require(part.number)
                self._losses[part.number] = write(lane, part, partial(told, part.number))
            except AbandonedError:
                return
            except BaseException as error:
                if lane is self._lanes[0] and (isinstance(error, Interrupted) or not _is_of_file(error)):
                    raise
                # Files before this one are written: something may be wrong there, too, and it would come first.
                self._errors[part.number] = error
                self._unwanted = min(self._unwanted, part.number)
                return
        self._help()

    def _help(self) -> None:
        """Called when a lane is done: its processor hashes for the lane with most bytes left."""
        at_work = [lane for lane in self._lanes if not any(part.number in self._errors for part in lane.parts)]
        for lane in sorted(at_work, key=lambda lane: -lane.growth.left):
            if not lane.growth.left or lane.growth.help():
                return

    def _require(self, number: int) -> None:
        if number > self._unwanted:
            raise AbandonedError

    def _tell(self, number: int, nbytes: int, name: str) -> None:
        self._require(number)
        self._pass_on()
        self._watcher(nbytes, name)

    def _note(self, number: int, nbytes: int, name: str) -> None:
        self._require(number)
        self._aside.append((nbytes, name))

    def _pass_on(self) -> None:
        while self._aside:
            self._watcher(*self._aside.popleft())

    def __enter__(self) -> Lanes[T]:
        try:
            for lane in self._lanes:
                lane.following.__enter__()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._unwanted = -1
        for lane in self._lanes:
            lane.growth.abandon()
        for stage in self._writers:
            stage.wait()
        for lane in self._lanes:
            lane.following.__exit__(None, None, None)


def _number(parts: Sequence[Part], error: Exception) -> int:
    """The file of a lane that an error is about, as far as it says."""
    path = str(getattr(error, "path", None))
    return next((part.number for part in parts if str(part.place) == path), parts[0].number)


def _is_of_file(error: BaseException) -> bool:
    """The error is one of a file: ckconv's own or the system's, and not a bug."""
    return isinstance(error, (CkconvError, OSError))
