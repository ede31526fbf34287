"""What is staged is brought to the disk, hashed, read again and compared, before anything of it gets its name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ckconv.core.tensors import Extent
from ckconv.engine.readback import Meant, check_frame, check_kept
from ckconv.engine.reread import FileHash
from ckconv.engine.transfer import Digests, Watcher
from ckconv.engine.workers import Stage
from ckconv.errors import InputError, VerifyError
from ckconv.formats import format_of
from ckconv.formats.destination import Destination
from ckconv.lazy import NamedTuple
from ckconv.output.publish import Outputs
from ckconv.plan.container import Container
from ckconv.plan.steps import Plan
from ckconv.system import sync, write_at


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


#: What a digest is before anything is written.
NO_DIGEST = "0" * 64


class Late(NamedTuple):
    """A file beside the model whose content is known when all files before it are written.

    Attributes:
        nbytes: its size, told the files before it, whose digests are not known yet.
        content: its bytes, told the same files: those of tensors, side files, and late ones, in this order.
    """

    path: Path
    nbytes: Callable[[Sequence[Written]], int]
    content: Callable[[Sequence[Written]], Iterable[bytes]]


class Staged:
    """The files of tensors of an output that is complete and has no name yet."""

    def __init__(
        self,
        plan: Plan,
        container: Container,
        target: Destination,
        paths: Sequence[Path],
        digests: Sequence[Digests],
        outputs: Outputs,
    ) -> None:
        self._plan, self._container, self._target = plan, container, target
        self._paths, self._digests, self._outputs = paths, digests, outputs
        #: Of each file whose header holds a digest of a part only, that of the whole.
        self._hashing = {
            path: FileHash(outputs.fds[path], 0)
            for path, frame in zip(paths, container.frames, strict=True)
            if frame.header
        }

    @property
    def written(self) -> tuple[Written, ...]:
        """Every file, once :meth:`settle` has hashed those whose headers hold a digest of a part only."""
        found = []
        for path, file, digest in zip(self._paths, self._plan.files, self._digests, strict=True):
            content, whole = digest.content.hex(), self._hashing.get(path)
            sums = (whole.digest.hex(), content) if whole else (content, "")
            found.append(Written(path, file.nbytes, *sums))
        return tuple(found)

    def settle(self, watcher: Watcher, *, verify: bool) -> int | None:
        """Bring the files to the disk and hash them; meanwhile read them again and compare them with their source.

        Returns:
            the number of tensors compared, ``None`` where that was not asked for.

        Raises:
            VerifyError: a byte is not what was meant, a tensor not what the source holds, or the format's reference
                reader does not open the file.
            OutputError: ``output.write`` or ``output.space``.
        """
        threads = [Stage(lambda *_: self._outputs.sync(), 0), Stage(lambda *_: self._hash(), 0)]
        if not self._hashing:
            threads.pop()
        for thread in threads:
            thread.jobs.put(0)
            thread.jobs.put(None)
            thread.start()
        try:
            self._check_opens()
            verified = self._compare(watcher) if verify else None
        except BaseException:
            self._stop_hashing()
            raise
        finally:
            for thread in threads:
                thread.wait()
        for thread in threads:
            if thread.error is not None:
                raise thread.error
        return verified

    def _check_opens(self) -> None:
        """Ask the reference reader of the format, where there is one."""
        try:
            for path in self._paths:
                self._container.check(self._outputs.staged(path))
        except VerifyError as error:
            error.path = self._target.name
            raise

    def _hash(self) -> None:
        for path, hashing in self._hashing.items():
            hashing.read_to(os.fstat(self._outputs.fds[path]).st_size)

    def _stop_hashing(self) -> None:
        for hashing in self._hashing.values():
            hashing.stopped = True

    def _compare(self, watcher: Watcher) -> int:
        try:
            return self._compared(watcher)
        except VerifyError as error:
            if not self._plan.restores or error.code == "verify.file":
                error.path = self._target.name  # its temporary name says nothing to anybody
            raise
        except InputError as error:
            if error.path is None or not Path(error.path).is_relative_to(self._outputs.staging):
                raise
            raise VerifyError(
                error.code,
                f"what was written cannot be read: {error.message}",
                path=self._target.name,
                tensor=error.tensor,
                offset=error.offset,
                details=error.details,
            ) from error

    def _compared(self, watcher: Watcher) -> int:
        from ckconv.engine.verify import verify_index
        from ckconv.formats.detect import open_index

        plan, outputs = self._plan, self._outputs
        known: dict[Extent, bytes] = {}
        files = zip(self._paths, plan.files, self._container.frames, self._digests, strict=True)
        for path, file, frame, digest in files:
            header = frame.header(digest.content) if frame.header else b""
            check_frame(file, frame, header, outputs.fds[path], path)
            if digest.reread:
                known[Extent(outputs.staged(path), digest.reread[0], digest.reread[1])] = digest.reread[2]
        # What goes elsewhere is a link in the staging directory.
        out = open_index(self._opened(), base=plan.options.base, follow_links=True)
        watcher.begin("verifying", plan.nbytes)
        if plan.restores:
            check_kept(plan, [outputs.staged(path) for path in self._paths], Path(self._target.name))
            # The comparison that was made when the bump was written: of the bump, its checksum too, with its source.
            return verify_index(plan.index, out, left_out=plan.restores.left_out, progress=watcher).tensors
        found = verify_index(
            out,
            plan.index,
            left_out=[left.name for left in plan.left_out],
            configuration=not (plan.options.set_meta or plan.options.drop_meta),
            progress=watcher,
            digests=known,
            importance=plan.importance,
        )
        return found.tensors

    def _opened(self) -> Path:
        """What a reader of the format opens: a checkpoint's directory, its index, or the first file."""
        if not format_of(self._plan.format).single:
            if self._target.directory is not None:
                return self._outputs.staging
            if len(self._paths) > 1:
                from ckconv.formats.safetensors.spec import INDEX_SUFFIX

                return next(path for path in self._outputs.staging.iterdir() if path.name.endswith(INDEX_SUFFIX))
        return self._outputs.staged(self._paths[0])


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
