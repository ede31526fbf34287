"""What is staged is read again, hashed and compared, and brought to the disk, before anything of it gets its name."""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from ckconv.core.tensors import Checksum
from ckconv.engine.following import Growth
from ckconv.engine.lanes import MOST, Lane, Lanes, Part, Told, open_in, shared_out
from ckconv.engine.losses import Losses
from ckconv.engine.readback import Meant, check_frame, check_kept
from ckconv.engine.readonce import ReadOnce
from ckconv.engine.reread import FileHash
from ckconv.engine.rereading import Read, Rereading, content
from ckconv.engine.transfer import Watcher, payload, phase, write_file
from ckconv.engine.workers import Stage
from ckconv.engine.writeback import Disk
from ckconv.errors import VerifyError
from ckconv.formats.destination import Destination
from ckconv.io.ahead import made_at_once
from ckconv.io.files import Files
from ckconv.io.tiles import tiles_for
from ckconv.plan.container import Container
from ckconv.plan.steps import Plan
from ckconv.publish.files import close_unwritten, close_written
from ckconv.publish.staging import Outputs
from ckconv.system import ELSEWHERE, THREADS, sync, write_at


class Written(NamedTuple):
    """One file of an output.

    Attributes:
        sha256: of the whole file, as hex.
        payload_sha256: of the part whose digest its own header stores; empty where there is none.
    """

    path: Path
    nbytes: int
    sha256: str
    payload_sha256: str = ""


class Late(NamedTuple):
    """A file beside the model whose content is known when all files before it are written.

    Attributes:
        nbytes: its size, told the files before it, whose digests are not known yet.
        content: its bytes, told the same files: those of tensors, side files, and late ones, in this order.
        names_digests: of whole files, also of those whose headers hold one.
    """

    path: Path
    nbytes: Callable[[Sequence[Written]], int]
    content: Callable[[Sequence[Written]], Iterable[bytes]]
    names_digests: bool = True


class Staged:
    """The files of tensors of an output that has no name yet: read again while they are written, then settled.

    Attributes:
        lanes: to be at work while files are written and settled.
        jobs: how many pieces of a tensor a lane makes at once.
    """

    def __init__(
        self,
        plan: Plan,
        container: Container,
        target: Destination,
        paths: Sequence[Path],
        outputs: Outputs,
        *,
        verify: bool,
    ) -> None:
        self._plan, self._container, self._target = plan, container, target
        self._outputs, self._verify = outputs, verify
        #: Some header holds a digest, so it is written last; other headers are final before the tensors.
        self._framed = any(frame.header for frame in container.frames)
        numbered = enumerate(zip(paths, plan.files, container.frames, strict=True))
        self._parts = [
            Part(number, path, outputs.staged(path), file, frame) for number, (path, file, frame) in numbered
        ]
        lanes = shared_out(self._parts, self._side_by_side())
        self._reading = Rereading(plan, target, outputs, self._parts, verify=verify, lanes=len(lanes))
        self.jobs = max(1, made_at_once() // len(lanes))
        self._lanes = [self._lane(parts) for parts in lanes]
        self.lanes = Lanes(self._lanes)
        self._disks = {lane: Disk() for lane in self._lanes}
        #: Held by the one thread that asks for a descriptor.
        self._describing = _thread.allocate_lock()
        #: Held by the one thread that asks the format's reference reader.
        self._asking = _thread.allocate_lock()
        #: What that reader says of each file of which it was asked.
        self._opens: dict[int, VerifyError | None] = {}

    def _side_by_side(self) -> int:
        """How many lanes there are: one where files are not made apart, or another machine is asked in order."""
        plan = self._plan
        if not THREADS or ELSEWHERE or self._framed or plan.restores or plan.errors is not None:
            return 1
        return max(1, min(len(plan.files), made_at_once(), MOST))

    def _lane(self, parts: Sequence[Part]) -> Lane[Read]:
        actions = (step.action for part in parts for step in part.file.steps)
        tiles = tiles_for(actions, self.jobs) if self._verify else None
        payloads = [payload(part.file, part.frame, part.place) for part in parts]
        growth = Growth(payloads, tiles, alone=self.jobs == 1)
        return Lane(parts, growth, lambda: self._reading.read(parts, growth))

    def write(self, files: Files, watcher: Watcher) -> Losses:
        """Write everything, with :attr:`jobs`, in the block of :attr:`lanes`.

        Args:
            files: of the source.

        Raises:
            UnsupportedError: a value would change that may not.
            CkconvError, OSError: it cannot be written.
        """
        watcher.begin(phase(self._plan), self._plan.nbytes)
        plan, losses = self._plan, Losses(self._plan)

        def write(lane: Lane[Read], part: Part, told: Told) -> Losses:
            with (
                self._descriptor(part.path) as fd,
                nullcontext(files) if lane is self._lanes[0] else files.twin(open_in(len(self._lanes))) as source,
            ):
                output = fd, part.place
                found = write_file(plan, part.file, part.frame, source, output, lane.growth, told, self._disks[lane])
                if source is not files:
                    source.check_unchanged()
            if len(self._lanes) > 1:
                self._ask_early(part)
            return found

        for found in self.lanes.write(write, watcher):
            losses.join(found)
        losses.check()
        return losses

    @contextmanager
    def _descriptor(self, path: Path) -> Iterator[int]:
        """A descriptor of this thread's own: it stays open whatever other threads do with theirs."""
        fd = -1
        try:
            with self._describing:
                fd = os.dup(self._outputs.fds[path])
            yield fd
        except BaseException:
            close_unwritten(fd)
            raise
        close_written(fd)

    def settle(self, *, whole: bool) -> tuple[tuple[Written, ...], int | None]:
        """When everything is written: give headers their digests, bring all to the disk, and say what reading found.

        Args:
            whole: digests of whole files are wanted, also of those whose headers hold one of a part.

        Returns:
            the files, and the number of tensors compared, ``None`` where that was not asked for.

        Raises:
            VerifyError: a byte is not what was meant, a tensor not what the source holds, or the format's reference
                reader does not open the file.
            OutputError: ``output.write`` or ``output.space``.
        """
        refused = None if self._framed else self._refused()  # this thread has nothing else to do
        read = self._reading.joined(self.lanes.read(), [lane.parts for lane in self._lanes])
        for part in self._parts:
            if part.frame.header:
                write_at(self._outputs.fds[part.path], part.frame.header(read.digests[part.number]), 0)
        disk = Stage.of(self._sync)
        try:
            disk.start()
            refused = self._refused() if self._framed else refused
            if refused is not None:
                raise refused
            if read.compared:
                self._reading.as_output(lambda: self._check(read))
            written = tuple(self._written(read, whole=whole))
            self._check_restored(written)
        finally:
            disk.wait()
        if disk.error is not None:
            raise disk.error
        return written, read.compared.tensors if read.compared else None

    def _sync(self) -> None:
        for disk in self._disks.values():
            disk.wait()
        self._outputs.sync()

    def _written(self, read: Read, *, whole: bool) -> Iterator[Written]:
        for number, path, _, file, frame in self._parts:
            digest = read.digests[number].hex()
            of_whole = "" if frame.header else digest
            if whole and frame.header:
                hashing = FileHash(self._outputs.fds[path], 0)
                hashing.read_to(file.nbytes)
                of_whole = hashing.digest.hex()
            yield Written(path, file.nbytes, of_whole, digest if frame.header else "")

    def _check_restored(self, written: Iterable[Written]) -> None:
        """Check by its digest that a file that is restored is the one that it was."""
        digests = self._plan.restores.digests if self._plan.restores else {}
        for file in written:
            was = digests.get(file.path.name, file.sha256)
            if was != file.sha256:
                message = f"{file.path.name} would not be the file that was converted: its SHA-256 was {was}"
                hint = "what it was converted to has changed; --no-source-record makes it without its record"
                raise VerifyError("record.foreign", message, path=self._target.name, hint=hint)

    def _refused(self) -> VerifyError | None:
        """What the reference reader of the format says, where there is one and it does not open a file."""
        for part in self._parts:
            if part.number not in self._opens:
                self._check_opens(part)
            if error := self._opens[part.number]:
                error.path = self._target.name
                return error
        return None

    def _ask_early(self, part: Part) -> None:
        """Ask the reference reader while other lanes write; later, if another thread is asking it."""
        if self._asking.acquire(blocking=False):
            try:
                self._check_opens(part)
            finally:
                self._asking.release()

    def _check_opens(self, part: Part) -> None:
        try:
            self._container.check(part.place)
        except VerifyError as error:
            self._opens[part.number] = error
        else:
            self._opens[part.number] = None

    def _check(self, read: Read) -> None:
        """What is around the tensors, then what they were found to be."""
        for number, path, _, file, frame in self._parts:
            header = frame.header(read.digests[number]) if frame.header else b""
            check_frame(file, frame, header, self._outputs.fds[path], path)
        if self._plan.restores:
            check_kept(self._plan, [part.place for part in self._parts], Path(self._target.name))
            return
        assert read.compared is not None
        checksums: tuple[Checksum, ...] = ()
        if self._framed:  # the header holds the digest now
            checksums = self._reading.open().checksums
        known = {content(part): read.digests[part.number] for part in self._parts}
        with ReadOnce() as files:
            digests = {c.extent: known.get(c.extent) or files.digest(c.extent) for c in checksums}
        read.compared.check(self._plan.index.path, checksums, digests)


def write_late(item: Late, files: Sequence[Written], fd: int, *, verify: bool) -> Written:
    """Write a file whose content is known now, bring it to the disk and read it again.

    Raises:
        VerifyError: ``verify.file``.
        OSError: it cannot be written.
    """
    at, meant, planned = 0, Meant(), item.nbytes(files)
    for data in item.content(files):
        meant.add(data)
        write_at(fd, data, at)
        at += len(data)
    if at != planned:
        raise AssertionError(f"{item.path.name} has {at:,} bytes, {planned:,} were planned")
    if verify:
        meant.check(fd, item.path)
    sync(fd)
    return Written(item.path, at, meant.sha256)
