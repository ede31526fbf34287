"""An output of several files that runs of the same command share: each makes those that nobody has made or is making.

Finished files are in a hidden directory beside the output, which stays where a run ends early (``--resume``). Whoever
makes one holds the lock of its name, which ends with the process; so any number of runs share the work, on any machines
that see the same files, and none waits for one that is dead. Who finds all of them finished first publishes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from ckconv.conversion.follow import Watcher
from ckconv.conversion.pipeline import FileResult
from ckconv.conversion.planning import make_plan, merged
from ckconv.conversion.write import Losses, holes, write_frames
from ckconv.core.tensors import Tensor
from ckconv.core.version import __version__
from ckconv.errors import CkconvError, InputError, Interrupted, OutputError, counted
from ckconv.families.own import is_name, own_files
from ckconv.formats.destination import Destination
from ckconv.formats.detect import open_index
from ckconv.formats.locate import located
from ckconv.io.addresses import ADDRESS, as_path
from ckconv.io.digests import sha256_of
from ckconv.io.files import Files, readable
from ckconv.options import Options
from ckconv.plan.steps import Container, Plan
from ckconv.publish.directory import Directory
from ckconv.publish.files import close_unwritten, failing, opened_regular
from ckconv.publish.journal import CONVERSION, discard, lasting_name, recover
from ckconv.publish.locks import Locked
from ckconv.publish.staging import Outputs
from ckconv.signals import check, declare
from ckconv.system import NO_LOCKS, allocate, read_at, try_lock, write_at
from ckconv.verification.tensors import Compared

#: Seconds between two looks at what others have done.
PATIENCE = 0.2

#: Bytes of a source that are hashed at most: headers end before; and of a document.
_HEADER, _MOST = 64 << 20, 16 << 20

#: The file that is locked by the run whose turn it is to publish; when it has, the facts of all files are in it.
_TURN = ".publish"


@dataclass(frozen=True, slots=True)
class Request:
    """A conversion as plain data, so that another process makes the same plan, or sees that it cannot.

    Attributes:
        source: a path from the root, or an address.
        version: of ckconv.
    """

    source: str
    target: Destination
    source_format: str | None
    adapters: tuple[tuple[str, float], ...]
    options: Options
    verify: bool
    force: bool
    version: str = __version__

    def planned(self) -> Plan:
        """The plan.

        Raises:
            OutputError: ``cluster.version``, this is another version of ckconv.
            InputError, UnsupportedError, UsageError: as :func:`ckconv.api.prepare`.
        """
        check_version(self.version)
        options = self.options
        index = open_index(
            as_path(self.source),
            format=self.source_format,
            base=options.base,
            follow_links=options.follow_links,
            drop=options.drop,
        )
        adapters = [(as_path(path), weight) for path, weight in self.adapters]
        if adapters:
            index = merged(index, adapters, options, self.target.format)
        with readable(index.path):
            return make_plan(index, self.target.format, options)


def requested(
    plan: Plan,
    target: Destination,
    source: str | os.PathLike[str],
    source_format: str | None,
    adapters: Sequence[tuple[str | os.PathLike[str], float]],
    *,
    verify: bool,
    force: bool,
) -> Request:
    """The request that another process needs to make the same plan."""
    named = tuple((absolute_path(path), weight) for path, weight in adapters)
    place = target._replace(
        directory=target.directory and target.directory.absolute(), file=target.file and target.file.absolute()
    )
    return Request(absolute_path(source), place, source_format, named, absolute(plan.options), verify, force)


def check_version(version: str) -> None:
    """Check that the process that sent the work has this version of ckconv.

    Raises:
        OutputError: ``cluster.version``.
    """
    if version != __version__:
        message = f"a worker has ckconv {__version__}, and the conversion is one of {version}"
        raise OutputError("cluster.version", message, hint="install the same version there")


def absolute(options: Options) -> Options:
    """Options that say the same in another directory."""
    return replace(
        options,
        imatrix=options.imatrix and Path(absolute_path(options.imatrix)),
        template=options.template and Path(absolute_path(options.template)),
        base=options.base and as_path(absolute_path(options.base)),
        families=tuple(path if is_name(path) else Path(absolute_path(path)) for path in options.families),
    )


def absolute_path(path: str | os.PathLike[str]) -> str:
    """A path that means the same in another directory; an address, and a name of a cache, as they are."""
    text = str(path)
    return text if ADDRESS.fullmatch(text) or not os.path.lexists(text) else os.path.abspath(text)  # noqa: PTH100


class Fingerprint(NamedTuple):
    """Digests that are equal for all runs of one conversion.

    Attributes:
        source: sizes, times and headers of every file that is read.
        plan: all else: options, what is written where, everything around the tensors, and the version of ckconv.
    """

    source: str
    plan: str

    def check(self, found: Fingerprint) -> None:
        """Another process found this of what should be the same.

        Raises:
            OutputError: ``input.changed`` or ``cluster.version``.
        """
        if found.source != self.source:
            message = "has changed since the conversion began, or is another file on a worker's machine"
            raise OutputError("input.changed", message)
        if found != self:
            message = "a worker plans this conversion differently: it has another version of some package"
            raise OutputError("cluster.version", message, hint="install the same versions there")


def fingerprint(plan: Plan, container: Container, request: Request) -> Fingerprint:
    """The fingerprint of a conversion.

    Raises:
        InputError: a file cannot be read.
        OutputError: ``input.changed``, one is not what it was when its header was read.
    """
    files = "\n".join(_files(plan, request))
    verify, options = request.verify, request.options
    digest = sha256(f"{__version__} {verify} {plan.target_name} {options} {request.adapters}".encode())
    digest.update(repr(sorted(own_files().digests.items())).encode())
    for file, frame in zip(plan.files, container.frames, strict=True):
        digest.update(f"{file.name} {file.nbytes} {frame.header_bytes}".encode())
        digest.update(frame.prologue + frame.epilogue)
        for step in file.steps:
            sources = [(tensor.source, tensor.dtype.name, tensor.shape) for tensor in step.sources]
            target = _described(step.target)
            digest.update(f"{step.slot} {step.offset} {step.nbytes} {step.action} {target} {sources}".encode())
            digest.update(step.content or b"")
    return Fingerprint(sha256(files.encode("utf-8", "surrogateescape")).hexdigest(), digest.hexdigest())


def _described(tensor: Tensor) -> list[object]:
    """What a tensor is, without what differs between two processes: paths as the user named them, and functions."""
    packed = [
        (each.rows, [array and (_described(array.tensor), array.per) for array in each.arrays])
        for each in tensor.packed
    ]
    places = [(extent.offset, extent.nbytes) for extent in tensor.extents]
    what = (tensor.name, tensor.source, tensor.dtype, tensor.shape, tensor.layout, tensor.may_be_absent)
    return [*what, places, [_described(plane) for plane in tensor.planes], packed]


def _files(plan: Plan, request: Request) -> Iterator[str]:
    """A line for each file: its name, size and time, and the digest of what is before its tensors."""
    index, options = plan.index, request.options
    begins: dict[Path, int] = {}
    for stored in index.stored:
        path, offset, _ = stored.extent
        begins[path] = min(begins.get(path, offset), offset)
    with Files(index.identities) as files:
        for path in dict.fromkeys((*index.files, *index.side_files, *index.part_files)):
            files.fd(path)  # it is the file that was planned
            with readable(path):
                status = path.stat()
            header = bytearray(min(begins.get(path, 0), status.st_size, _HEADER))
            files.read_into(path, 0, header)
            yield f"{path.name} {status.st_size} {status.st_mtime_ns} {sha256(header).hexdigest()}"
    for name, _ in request.adapters:
        yield from _small(located(as_path(name)))
    for further in (options.imatrix, options.template, options.base):
        if further is not None:
            yield from _small(located(further))


def _small(path: Path) -> Iterator[str]:
    """What is read besides: the content of small files, size and time of others."""
    with readable(path):
        for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if each.is_file():
                status = each.stat()
                line = f"{each.name} {status.st_size} {status.st_mtime_ns}"
                if status.st_size <= _HEADER:
                    with opened_regular(each) as fd:
                        line += f" {sha256_of(fd)}"
                yield line


class SharedFiles:
    """The finished files of one conversion, and the part of one run in making them.

    Attributes:
        only: the one file that this run makes, for another one that publishes; ``None`` for all of them.
        hands: makes files in other processes, given the numbers of those that are not finished; else this run does.
        publishes: it is this run's turn to publish all of them.
    """

    def __init__(
        self,
        plan: Plan,
        container: Container,
        request: Request,
        *,
        resume: bool,
        only: int | None = None,
        hands: Callable[[Sequence[int]], Iterator[int]] | None = None,
    ) -> None:
        """Look at the source once more: nothing is gone on with that was made of another one.

        Args:
            resume: what is finished stays where the run ends early.

        Raises:
            OutputError: ``input.changed``.
        """
        self._plan, self._container, self._request = plan, container, request
        self._fingerprint = fingerprint(plan, container, request)
        self._resume, self.only, self.hands = resume, only, hands
        self._output = Path()
        self._here: Directory | None = None
        self._directory: Directory | None = None
        self._turn = -1
        self.publishes = self._is_published = False
        self._facts: list[Any] = []

    # The directory

    def at(self, output: Path) -> SharedFiles:
        """Say where the output goes, which the directory of finished files is beside."""
        self._output = output
        return self

    def __enter__(self) -> SharedFiles:
        """Go into that directory; what is there of another conversion, or damaged, is removed.

        Raises:
            OutputError: ``output.busy``, runs of another conversion are at work in it; ``input.changed`` or
                ``cluster.version``, the run for which this one works has another plan; ``output.write``.
        """
        try:
            with failing(self._output):
                self._begin(self._output)
        except BaseException:
            self._close()
            raise
        return self

    def _begin(self, output: Path) -> None:
        name, elsewhere = lasting_name(output.name), self.only is not None and not output.parent.is_dir()
        with nullcontext() if elsewhere else Locked([output.parent]):  # nobody else comes, and nobody removes it
            if elsewhere or (self.only is not None and not (output.parent / name).is_dir()):
                message = "is not there for a worker: workers need the files under the same path"
                raise OutputError("cluster.place", message, path=output.parent)
            self._here = Directory(output.parent)
            self._directory = directory = self._here.make(name)
            alone = self._is_free(shared=False) and self.only is None
            if not alone and not self._is_free(shared=True):
                raise self._busy
            known = self._read(CONVERSION)
            found = Fingerprint(*map(str, known)) if isinstance(known, list) and len(known) == 2 else None
            if found != self._fingerprint:
                if self.only is not None:
                    (found or Fingerprint("", "")).check(self._fingerprint)
                if not alone:
                    raise self._busy
                self._remove(*self._made.names())
                self._write(CONVERSION, self._fingerprint)
            if alone:
                self._remove(_TURN)
            self._is_free(shared=True)
            self._turn = directory.open(_TURN, os.O_RDWR | os.O_CREAT)
        for number in range(len(self._plan.files)) if alone else ():
            if not self._fits(number):
                self._forget(number)
        directory.sync()

    @property
    def _busy(self) -> OutputError:
        message = "another run of ckconv is writing it"
        return OutputError("output.busy", message, path=self._made.path, hint="wait for it")

    def _is_free(self, *, shared: bool) -> bool:
        try:
            return self._made.is_free(shared=shared)
        except OSError as error:  # no run can know
            return error.errno in NO_LOCKS

    @property
    def _made(self) -> Directory:
        assert self._directory is not None
        return self._directory

    def _name(self, number: int) -> str:
        return self._plan.files[number].name

    def _forget(self, number: int) -> None:
        self._remove(self._name(number), _facts_of(self._name(number)))

    def _remove(self, *names: str) -> None:
        for name in names:
            with suppress(IsADirectoryError, PermissionError):
                self._made.remove(name)

    def _read(self, name: str) -> Any:
        """A document, ``None`` where there is none that makes sense."""
        with suppress(OSError, ValueError, RecursionError):
            return json.loads(self._made.read(name, _MOST))
        return None

    def _write(self, name: str, document: object) -> None:
        self._made.remove(f"{name}.new")
        self._made.write(f"{name}.new", json.dumps(document).encode())
        self._made.move(f"{name}.new", self._made, name)
        self._made.sync()

    def _fits(self, number: int) -> bool:
        """Every byte of a finished file is what it was."""
        found = self.result(number)
        if found is None:
            return False
        try:
            fd = self._made.open(self._name(number))
        except OSError:
            return False
        try:
            return os.fstat(fd).st_size == self._plan.files[number].nbytes and sha256_of(fd) == found.digest.hex()
        except OSError:
            return False
        finally:
            close_unwritten(fd)

    # Finished files

    def result(self, number: int) -> FileResult | None:
        """The result of a file; ``None`` while unfinished."""
        status = self._made.status(self._name(number))
        if status is None or status.st_size != self._plan.files[number].nbytes:
            return None
        return self._result(number, self._read(_facts_of(self._name(number))))

    def _result(self, number: int, found: Any) -> FileResult | None:
        with suppress(TypeError, ValueError, KeyError):
            compared = found["compared"]
            return FileResult(
                number,
                bytes.fromhex(found["sha256"]),
                None if compared is None else Compared([], *map(int, compared)),
                Losses(self._plan, found["changed"], found["merged"]),
            )
        return None

    @contextmanager
    def _taken(self, number: int) -> Iterator[bool]:
        """Whether this run makes a file in the block: it is not finished, and nobody else makes it."""
        name = f".{self._name(number)}.lock"
        fd = self._made.open(name, os.O_RDWR | os.O_CREAT)
        try:
            try:
                free = try_lock(fd)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                free = True  # two may make the same
            yield free and self.result(number) is None
        finally:
            close_unwritten(fd)

    # Making them

    def run(
        self, make: Callable[[int], FileResult], outputs: Outputs, paths: Sequence[Path], watcher: Watcher
    ) -> list[FileResult]:
        """Make files, until all of them are finished, or the one that this run is to make.

        Args:
            make: writes a file in the staging directory, compares it and brings it to the disk.
            paths: what each is going to be called.

        Raises:
            CkconvError: what ``make`` raises.
            OutputError: ``output.write``, another run that was to publish has failed, and left nothing.
        """
        self._share(make, outputs, paths, watcher)
        if self.only is not None:
            return []
        found = self._facts_of_others()
        if found is None and self._is_ours():
            outputs.recover()  # whose turn it was before may have been killed
            found = [self._read(_facts_of(self._name(number))) for number in range(len(paths))]
            for number, path in enumerate(paths):
                with failing(path):
                    outputs.take(path, self._made, self._name(number))
        found = found or self._facts_of_others() or []
        results = [result for number, facts in enumerate(found) if (result := self._result(number, facts)) is not None]
        if len(results) < len(paths):
            raise OutputError("output.write", "another run of this command has failed", path=self._made.path)
        if self._plan.errors is not None:
            for facts in found:
                self._plan.errors.join(facts.get("errors", {}))
        self._facts = found
        return results

    @property
    def elsewhere(self) -> int | None:
        """How many tensors the run compared that has published."""
        found = _document(self._turn)
        return found["verified"] if isinstance(found, dict) else None

    def _facts_of_others(self) -> list[Any] | None:
        """The facts of all files, where another run has published them."""
        found = _document(self._turn)
        return found["files"] if isinstance(found, dict) else None

    def _share(
        self, make: Callable[[int], FileResult], outputs: Outputs, paths: Sequence[Path], watcher: Watcher
    ) -> None:
        wanted = [self.only] if self.only is not None else [*range(len(paths))]
        told: set[int] = set()

        def left() -> list[int]:
            if self._facts_of_others() is not None:
                return []
            done = {number for number in wanted if self.result(number) is not None}
            for number in sorted(done - told):
                watcher(self._plan.files[number].nbytes, self._name(number))
            told.update(done)
            return [number for number in wanted if number not in done]

        while missing := left():
            check()
            if self.hands is not None:
                for _ in self.hands(missing):
                    left()
                continue
            if not any(self._make(number, make, outputs, paths[number], told) for number in missing):
                time.sleep(PATIENCE)

    def _make(
        self, number: int, make: Callable[[int], FileResult], outputs: Outputs, path: Path, told: set[int]
    ) -> bool:
        """Make a file, unless somebody else does."""
        with self._taken(number) as mine:
            if not mine:
                return False
            self._forget(number)
            errors, file = self._plan.errors, self._plan.files[number]
            if errors is not None:
                errors.taken()
            with failing(path):
                allocate(outputs.fds[path], file.nbytes, holes(file))
            told.add(number)
            found = make(number)
            with failing(path):
                if not outputs.share(path, self._made, self._name(number)):
                    write_frames([(file, self._container.frames[number], outputs.fds[path])], path)
                compared = found.compared
                facts = {
                    "sha256": found.digest.hex(),
                    "compared": compared and [compared.tensors, compared.zero_filled, compared.rounded],
                    "changed": found.losses.changed,
                    "merged": found.losses.merged,
                    "errors": errors.taken() if errors is not None else {},
                }
                self._made.sync()  # its name first, then what speaks of it
                self._write(_facts_of(self._name(number)), facts)
        return True

    def _is_ours(self) -> bool:
        """Wait for the turn to publish: not where another run has done so, or failed and left nothing."""
        with suppress(OSError):  # no locks here
            while not try_lock(self._turn):
                check()
                time.sleep(PATIENCE)
        self.publishes = self._facts_of_others() is None and self._made.status(CONVERSION) is not None
        return self.publishes

    def published(self, verified: int | None) -> None:
        """Tell the waiting runs that the output is published."""
        write_at(self._turn, json.dumps({"verified": verified, "files": self._facts}).encode(), 0)
        self._is_published = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._here is None or self._directory is None or self.only is not None:
                return
            if self._facts_of_others() is not None and not self.publishes:
                return
            finished = sum(self.result(number) is not None for number in range(len(self._plan.files)))
            if not self._is_published and finished and self._resume and self._is_of_machine(error):
                self._say(error, finished)
            else:
                with suppress(OutputError), Locked([self._here.path]):  # nobody comes while it goes
                    if self._is_published or self.hands is not None or self._is_free(shared=False):
                        discard(self._here, self._directory)
            if self.hands is not None:
                recover([self._here.path])  # what workers left that died
        finally:
            self._close()

    def _is_of_machine(self, error: BaseException | None) -> bool:
        """Whether finished files survive this error (machine) or not (model)."""
        if isinstance(error, OutputError):
            named = error.code == "output.exists" and all(map(self._has_name, range(len(self._plan.files))))
            return error.code != "input.changed" and not named
        if isinstance(error, InputError):
            return error.code == "input.unreadable"
        return isinstance(error, (Interrupted, KeyboardInterrupt, MemoryError))

    def _has_name(self, number: int) -> bool:
        """A run that was killed at its very end has published it."""
        status = self._made.status(self._name(number))
        return status is not None and status.st_nlink > 1

    def _say(self, error: BaseException | None, finished: int) -> None:
        of, are = len(self._plan.files), "is" if finished == 1 else "are"
        sentence = f"{counted(finished, 'file')} of {of:,} {are} finished and stay: --resume goes on"
        declare(f"interrupted; {sentence}")
        if isinstance(error, Interrupted):
            error.message = f"interrupted; {sentence}"
        elif isinstance(error, CkconvError):
            error.details = (*error.details, sentence)

    def _close(self) -> None:
        if self._turn >= 0:
            close_unwritten(self._turn)
        for directory in (self._directory, self._here):
            if directory is not None:
                directory.close()


def _document(fd: int) -> Any:
    """The JSON object in a file; ``None`` for anything else."""
    with suppress(OSError, ValueError, RecursionError):
        return json.loads(read_at(fd, _MOST, 0))
    return None


def _facts_of(name: str) -> str:
    return f".{name}.json"
