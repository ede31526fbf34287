"""What is staged is read again, hashed and compared, and brought to the disk, before anything of it gets its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from ckconv.core.tensors import Checksum, Extent, TensorIndex
from ckconv.engine.following import Following, Growth
from ckconv.engine.readback import Meant, check_frame, check_kept
from ckconv.engine.readonce import ReadOnce
from ckconv.engine.reread import FileHash
from ckconv.engine.sides import seen_as
from ckconv.engine.tensors import Compared, compare_tensors
from ckconv.engine.transfer import payload
from ckconv.engine.workers import Stage
from ckconv.errors import InputError, VerifyError
from ckconv.formats import format_of
from ckconv.formats.destination import Destination
from ckconv.io.tiles import Tiles, tiles_for
from ckconv.lazy import NamedTuple
from ckconv.output.publish import Outputs
from ckconv.output.regular import growing
from ckconv.plan.container import Container, Frame
from ckconv.plan.steps import OutputFile, Plan
from ckconv.signals import deferred
from ckconv.system import sync, write_at

T = TypeVar("T")


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


class _Read(NamedTuple):
    """What reading the files again found: digests of their content, and how they compare, if that was asked for."""

    digests: list[bytes]
    compared: Compared | None


class Staged:
    """The files of tensors of an output that has no name yet: read again while they are written, then settled."""

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
        self._paths, self._outputs, self._verify = paths, outputs, verify
        self._places = [outputs.staged(path) for path in paths]
        self._parts = list(zip(paths, self._places, plan.files, container.frames, strict=True))
        payloads = (payload(file, frame, place) for _, place, file, frame in self._parts)
        self.growth = Growth(payloads, self._tiles(), compared=verify)
        self.following = Following(self.growth, self._read)

    def _tiles(self) -> Tiles | None:
        """Where converted rows wait to be compared."""
        from ckconv.io.ahead import made_at_once

        actions = (step.action for file in self._plan.files for step in file.steps)
        return tiles_for(actions, made_at_once()) if self._verify else None

    @property
    def unwritten(self) -> Iterator[tuple[int, Path]]:
        """Descriptor and place of every file."""
        return ((self._outputs.fds[path], place) for path, place in zip(self._paths, self._places, strict=True))

    def _read(self) -> _Read:
        """Hash every file, and compare what a reader finds in it with the source."""
        plan = self._plan
        contents = [_content(file, frame, place) for _, place, file, frame in self._parts]
        more = [checksum.extent for checksum in plan.index.checksums] if plan.restores else []
        with ReadOnce(plan.index.identities, self.growth, hashed=[*contents, *more]) as files:
            compared = self._as_output(lambda: self._compared(files)) if self._verify else None
            digests = [files.digest(extent) for extent in contents]
            files.check_unchanged()
        return _Read(digests, compared)

    def _compared(self, files: ReadOnce) -> Compared:
        plan = self._plan
        self.growth.begun()
        with growing(self.growth.wait_for):
            out = self._open()
        if not self.growth.paths.issuperset(out.files):
            self.growth.wait_for_all()
        if plan.restores:
            # The comparison that was made when the bump was written: of the bump, its checksum too, with its source.
            found = compare_tensors(plan.index, out, files, left_out=plan.restores.left_out)
            digests = {checksum.extent: files.digest(checksum.extent) for checksum in plan.index.checksums}
            found.check(plan.index.path, plan.index.checksums, digests)
            return found
        return compare_tensors(
            out,
            plan.index,
            files,
            left_out=[left.name for left in plan.left_out],
            configuration=not (plan.options.set_meta or plan.options.drop_meta),
            importance=plan.importance,
            tiles=self.growth.tiles,
        )

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
        # What a header says is there already, but for its digest, and this thread has nothing else to do.
        early = not any(frame.header for frame in self._container.frames)
        refused = self._refused() if early else None
        read = self.following.result()
        for (path, _, _, frame), digest in zip(self._parts, read.digests, strict=True):
            if frame.header:
                write_at(self._outputs.fds[path], frame.header(digest), 0)
        disk = Stage(lambda *_: self._outputs.sync(), 0)
        disk.jobs.put(0)
        disk.jobs.put(None)
        try:
            with deferred():
                disk.start()
            refused = refused if early else self._refused()
            if refused is not None:
                raise refused
            if read.compared:
                self._as_output(lambda: self._check(read))
            written = tuple(self._written(read, whole=whole))
            self._check_restored(written)
        finally:
            disk.wait()
        if disk.error is not None:
            raise disk.error
        return written, read.compared.tensors if read.compared else None

    def _written(self, read: _Read, *, whole: bool) -> Iterator[Written]:
        for (path, _, file, frame), digest in zip(self._parts, read.digests, strict=True):
            of_whole = "" if frame.header else digest.hex()
            if whole and frame.header:
                hashing = FileHash(self._outputs.fds[path], 0)
                hashing.read_to(file.nbytes)
                of_whole = hashing.digest.hex()
            yield Written(path, file.nbytes, of_whole, digest.hex() if frame.header else "")

    def _check_restored(self, written: Iterable[Written]) -> None:
        """What is made again is the file that it was, by its digest."""
        digests = self._plan.restores.digests if self._plan.restores else {}
        for file in written:
            was = digests.get(file.path.name, file.sha256)
            if was != file.sha256:
                message = f"{file.path.name} would not be the file that was converted: its SHA-256 was {was}"
                hint = "what it was converted to has changed; --no-source-record makes it without its record"
                raise VerifyError("record.foreign", message, path=self._target.name, hint=hint)

    def _refused(self) -> VerifyError | None:
        """What the reference reader of the format says, where there is one and it does not open a file."""
        try:
            for place in self._places:
                self._container.check(place)
        except VerifyError as error:
            error.path = self._target.name
            return error
        return None

    def _check(self, read: _Read) -> None:
        """What is around the tensors, then what they were found to be."""
        for (path, _, file, frame), digest in zip(self._parts, read.digests, strict=True):
            check_frame(file, frame, frame.header(digest) if frame.header else b"", self._outputs.fds[path], path)
        if self._plan.restores:
            check_kept(self._plan, self._places, Path(self._target.name))
            return
        assert read.compared is not None
        checksums: tuple[Checksum, ...] = ()
        if any(frame.header for frame in self._container.frames):  # which now holds a digest
            checksums = self._open().checksums
        hashed = (_content(file, frame, place) for _, place, file, frame in self._parts)
        known = dict(zip(hashed, read.digests, strict=True))
        with ReadOnce() as files:
            digests = {c.extent: known.get(c.extent) or files.digest(c.extent) for c in checksums}
        read.compared.check(self._plan.index.path, checksums, digests)

    def _open(self) -> TensorIndex:
        """What a reader of the format finds; what goes elsewhere is a link in the staging directory."""
        from ckconv.formats.detect import open_index

        index = open_index(self._opened(), base=self._plan.options.base, follow_links=True)
        return seen_as(self._plan.index, index)

    def _as_output(self, look: Callable[[], T]) -> T:
        """Look at what is staged; an error about it is one about the target."""
        try:
            return look()
        except VerifyError as error:
            if not self._plan.restores or error.code == "verify.file":
                error.path = self._target.name  # its temporary name says nothing to anybody
            raise
        except InputError as error:
            if error.path is None or not Path(error.path).is_relative_to(self._outputs.staging):
                raise
            raise VerifyError(
                error.code,
                f"the output cannot be read back: {error.message}",
                path=self._target.name,
                tensor=error.tensor,
                offset=error.offset,
                details=error.details,
            ) from error

    def _opened(self) -> Path:
        """What a reader of the format opens: a checkpoint's directory, its index, or the first file."""
        if not format_of(self._plan.format).single:
            if self._target.directory is not None:
                return self._outputs.staging
            if len(self._paths) > 1:
                from ckconv.formats.safetensors.spec import INDEX_SUFFIX

                return next(path for path in self._outputs.staging.iterdir() if path.name.endswith(INDEX_SUFFIX))
        return self._outputs.staged(self._paths[0])


def _content(file: OutputFile, frame: Frame, place: Path) -> Extent:
    """What is hashed while it is written: the part whose digest the header holds, or all of the file."""
    behind = len(frame.epilogue) if frame.header else 0
    return Extent(place, frame.header_bytes, file.nbytes - frame.header_bytes - behind)


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
