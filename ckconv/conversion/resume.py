"""Finished files of an output that runs of the same command share.

Finished files are in a hidden directory beside the output, which stays where a run ends early (``--resume``). Whoever
makes one holds the lock of its name, which ends with the process; so any number of runs share the work, on any machines
that see the same files, and none waits for one that is dead. Who finds all of them finished first publishes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from ckconv.conversion.pipeline import FileResult
from ckconv.conversion.planning import make_plan, merged
from ckconv.conversion.write import Losses, Watcher, holes, write_frames
from ckconv.core import __version__, tensors
from ckconv.core.lazy import replace
from ckconv.core.options import Options
from ckconv.errors import CkconvError, InputError, Interrupted, OutputError, counted
from ckconv.families.catalog import is_name, own_files
from ckconv.formats import destination, detect, locate, model
from ckconv.io import address_of, as_path, digests
from ckconv.io.files import Files, close_unwritten, opened_regular, readable
from ckconv.plan.steps import Container, Plan
from ckconv.publish.files import Directory, failing, locked
from ckconv.publish.journal import CONVERSION, discard, lasting_name, recover
from ckconv.publish.staging import Outputs
from ckconv.system import NO_LOCKS, allocate, read_at, try_lock, write_at
from ckconv.system.signals import check, declare
from ckconv.verification.tensors import Compared

#: Seconds between two looks at what others have done.
PATIENCE = 0.2

#: Bytes of a source that are hashed at most: headers end before; and of a document.
_HEADER, _MOST = 64 << 20, 16 << 20

#: The file that is locked by the run whose turn it is to publish; when it has, the facts of all files are in it.
_TURN = ".publish"


class Request(NamedTuple):
    """A conversion as plain data, for the same plan in another process.

    Attributes:
        source: a path from the root, or an address.
        version: of ckconv.
    """

    source: str
    target: destination.Destination
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
        links, drop = options.follow_links, options.drop
        index = detect.open_index(
            as_path(self.source), format=self.source_format, base=options.base, follow_links=links, drop=drop
        )
        index = model.of_task(index, options.task)
        if self.adapters:
            index = merged(index, self.adapters, options, self.target.format)
        with readable(index.path):
            return make_plan(index, self.target.format, options)


def requested(
    plan: Plan,
    target: destination.Destination,
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
    """Check that the process that sent the work has this version of ckconv."""
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
    """A path that means the same in another directory; addresses as they are."""
    text = str(path)
    return text if address_of(text) or not os.path.lexists(text) else os.path.abspath(text)  # noqa: PTH100


class Fingerprint(NamedTuple):
    """Digests that are equal for all runs of one conversion.

    Attributes:
        source: sizes, times and headers of every file that is read.
        plan: all else: options, what is written where, everything around the tensors, and the version of ckconv.
    """

    source: str
    plan: str


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


def _described(tensor: tensors.Tensor) -> list[object]:
    """A tensor without paths and functions, which differ between processes."""
    packed = [
        (each.rows, [array and (_described(array.tensor), array.per) for array in each.arrays])
        for each in tensor.packed
    ]
    ranges = [(extent.offset, extent.nbytes) for extent in tensor.extents]
    what = (tensor.name, tensor.source, tensor.dtype, tensor.shape, tensor.layout, tensor.may_be_absent)
    return [*what, ranges, [_described(plane) for plane in tensor.planes], packed]


def _files(plan: Plan, request: Request) -> Iterator[str]:
    """A line for each file: name, size, time, and digest of its header."""
    index, options = plan.index, request.options
    begins: dict[Path, int] = {}
    for stored in index.stored:
        path, offset, _ = stored.extent
        begins[path] = min(begins.get(path, offset), offset)
    with Files(index.identities) as files:
        for path in dict.fromkeys((*index.files, *index.side_files, *index.part_files)):
            status = os.fstat(files.fd(path))
            header = bytearray(min(begins.get(path, 0), status.st_size, _HEADER))
            files.read_into(path, 0, header)
            yield f"{path.name} {status.st_size} {status.st_mtime_ns} {sha256(header).hexdigest()}"
    besides = (*(as_path(name) for name, _ in request.adapters), options.imatrix, options.template, options.base)
    for further in filter(None, besides):
        yield from _small(locate.located(further))


def _small(path: Path) -> Iterator[str]:
    """A line for each further file: content of small files, size and time."""
    with readable(path):
        for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if each.is_file():
                status = each.stat()
                line = f"{each.name} {status.st_size} {status.st_mtime_ns}"
                if status.st_size <= _HEADER:
                    with opened_regular(each) as fd:
                        line += f" {digests.sha256_of(fd)}"
                yield line


def _is_locked(lock: Callable[[], bool]) -> bool:
    """Whether this run gets a lock; every run does where there are no locks."""
    try:
        return lock()
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return True


class SharedFiles:
    """The finished files of one conversion, and a run's part in making them.

    Attributes:
        only: the one file that this run makes, for another one that publishes; ``None`` for all of them.
        hands: makes files in other processes, given the numbers of those that are not finished; else this run does.
        publishes: it is this run's turn to publish all of them.
    """

    _here: Directory
    #: The directory of finished files in it.
    _made: Directory
    _turn: int

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
        """Take the fingerprint of the conversion.

        The source is looked at once more: nothing is gone on with that was made of another one.

        Args:
            resume: what is finished stays where the run ends early.

        Raises:
            OutputError: ``input.changed``.
        """
        self._plan, self._container = plan, container
        self._names = [file.name.replace("/", "_") for file in plan.files]  # some lie in directories
        self._fingerprint = fingerprint(plan, container, request)
        self._resume, self.only, self.hands = resume, only, hands
        self.publishes = self._is_published = False
        self._facts: list[Any] = []
        #: Files that an earlier run finished.
        self.finished = 0

    # The directory

    @contextmanager
    def at(self, output: Path) -> Iterator[None]:
        """Work in the directory of finished files beside ``output``.

        Files of another conversion, and damaged ones, are removed from it; all are where they are of no more use.

        Raises:
            OutputError: ``output.busy``, runs of another conversion are at work in it; ``input.changed`` or
                ``cluster.version``, the run for which this one works has another plan; ``output.write``.
        """
        with ExitStack() as stack:
            with failing(output):
                self._open(output, stack)
            error: BaseException | None = None
            try:
                yield
            except BaseException as raised:
                error = raised
                raise
            finally:
                if self.only is None and (self.publishes or not self.elsewhere):
                    self._leave(error)

    def _open(self, output: Path, stack: ExitStack) -> None:
        name, elsewhere = lasting_name(output.name), self.only is not None and not output.parent.is_dir()
        with nullcontext() if elsewhere else locked([output.parent]):  # nobody else comes, and nobody removes it
            if elsewhere or (self.only is not None and not (output.parent / name).is_dir()):
                message = "is not there for a worker: workers need the files under the same path"
                raise OutputError("cluster.place", message, path=output.parent)
            self._here = stack.enter_context(Directory(output.parent))
            self._made = stack.enter_context(self._here.make(name))
            alone = _is_locked(self._made.is_free) and self.only is None
            known = self._read(CONVERSION)
            is_same = known == [*self._fingerprint]
            if self.only is not None and not is_same:
                if not isinstance(known, list) or known[:1] != [self._fingerprint.source]:
                    message = "the source has changed since the run began, or is another file on a worker's machine"
                    raise OutputError("input.changed", message)
                message = "a worker plans this conversion differently: it has another version of some package"
                raise OutputError("cluster.version", message, hint="install the same versions there")
            if not (alone or (is_same and _is_locked(partial(self._made.is_free, shared=True)))):
                message = "another run of ckconv is writing it"
                raise OutputError("output.busy", message, path=self._made.path, hint="wait for it")
            if not is_same:
                self._remove(*self._made.names())
                self._write(CONVERSION, self._fingerprint)
            if alone:
                self._remove(_TURN)
            _is_locked(partial(self._made.is_free, shared=True))
            self._turn = self._made.open(_TURN, os.O_RDWR | os.O_CREAT)
            stack.callback(close_unwritten, self._turn)
        for number in range(len(self._names)) if alone else ():
            if not self._fits(number):
                self._forget(number)
        self.finished = sum(self.result(number) is not None for number in range(len(self._names))) if alone else 0
        self._made.sync()

    def _forget(self, number: int) -> None:
        self._remove(self._names[number], self._facts_name(number))

    def _facts_name(self, number: int) -> str:
        return f".{self._names[number]}.json"

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
        """Whether every byte of a finished file is what it was."""
        found = self.result(number)
        with suppress(OSError):
            fd = self._made.open(self._names[number])
            try:
                return found is not None and digests.sha256_of(fd) == found.digest.hex()
            finally:
                close_unwritten(fd)
        return False

    # Finished files

    def result(self, number: int) -> FileResult | None:
        """The result of a file; ``None`` while unfinished."""
        status = self._made.status(self._names[number])
        if status is None or status.st_size != self._plan.files[number].nbytes:
            return None
        return self._result(number, self._read(self._facts_name(number)))

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

    # Making them

    def run(
        self, make: Callable[[int], FileResult], outputs: Outputs, paths: Sequence[Path], watcher: Watcher
    ) -> list[FileResult]:
        """Make files until all are finished, or the one that this run is to make.

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
        found = self.elsewhere.get("files", [])
        if not found and self._is_ours():
            outputs.recover()  # whose turn it was before may have been killed
            found = [self._read(self._facts_name(number)) for number in range(len(paths))]
            for number, path in enumerate(paths):
                with failing(path):
                    outputs.take(path, self._made, self._names[number])
        found = found or self.elsewhere.get("files", [])
        results = [result for number, facts in enumerate(found) if (result := self._result(number, facts)) is not None]
        if len(results) < len(paths):
            raise OutputError("output.write", "another run of this command has failed", path=self._made.path)
        if self._plan.errors is not None:
            for facts in found:
                self._plan.errors.join(facts.get("errors", {}))
        self._facts = found
        return results

    @property
    def elsewhere(self) -> Mapping[str, Any]:
        """Facts of files that another run has published; empty before."""
        with suppress(OSError, ValueError, RecursionError):
            found = json.loads(read_at(self._turn, _MOST, 0))
            return found if isinstance(found, dict) else {}
        return {}

    def _share(
        self, make: Callable[[int], FileResult], outputs: Outputs, paths: Sequence[Path], watcher: Watcher
    ) -> None:
        wanted = [self.only] if self.only is not None else [*range(len(paths))]
        reported: set[int] = set()

        def left() -> list[int]:
            if self.elsewhere:
                return []
            done = {number for number in wanted if self.result(number) is not None}
            for number in sorted(done - reported):
                watcher(self._plan.files[number].nbytes, self._names[number])
            reported.update(done)
            return [number for number in wanted if number not in done]

        while missing := left():
            check()
            if self.hands is not None:
                for _ in self.hands(missing):
                    left()
            elif not any(self._make(number, make, outputs, paths[number], reported) for number in missing):
                time.sleep(PATIENCE)

    def _make(
        self, number: int, make: Callable[[int], FileResult], outputs: Outputs, path: Path, reported: set[int]
    ) -> bool:
        """Make a file, unless it is finished or another run holds its lock."""
        lock = self._made.open(f".{self._names[number]}.lock", os.O_RDWR | os.O_CREAT)
        try:
            if not _is_locked(partial(try_lock, lock)) or self.result(number) is not None:
                return False
            self._forget(number)
            errors, file = self._plan.errors, self._plan.files[number]
            if errors is not None:
                errors.taken()
            with failing(path):
                allocate(outputs.fds[path], file.nbytes, holes(file))
            reported.add(number)
            found = make(number)
            with failing(path):
                if not outputs.share(path, self._made, self._names[number]):
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
                self._write(self._facts_name(number), facts)
            return True
        finally:
            close_unwritten(lock)

    def _is_ours(self) -> bool:
        """Wait for the turn to publish; false where nothing is left to do."""
        while not _is_locked(partial(try_lock, self._turn)):
            check()
            time.sleep(PATIENCE)
        self.publishes = not self.elsewhere and self._made.status(CONVERSION) is not None
        return self.publishes

    def published(self, verified: int | None) -> None:
        """Tell the waiting runs that the output is published."""
        write_at(self._turn, json.dumps({"verified": verified, "files": self._facts}).encode(), 0)
        self._is_published = True

    def _leave(self, error: BaseException | None) -> None:
        """Keep finished files for a later run, or remove the directory."""
        finished = sum(self.result(number) is not None for number in range(len(self._names)))
        if not self._is_published and finished and self._resume and self._is_of_machine(error):
            are = "is" if finished == 1 else "are"
            stay = f"{counted(finished, 'file')} of {len(self._names):,} {are} finished and stay: --resume goes on"
            declare(f"interrupted; {stay}")
            if isinstance(error, Interrupted):
                error.message = f"interrupted; {stay}"
            elif isinstance(error, CkconvError):
                error.details = (*error.details, stay)
        else:
            with suppress(OutputError), locked([self._here.path]):  # nobody comes while it goes
                if self._is_published or self.hands is not None or _is_locked(self._made.is_free):
                    discard(self._here, self._made)
        if self.hands is not None:
            recover([self._here.path])  # what workers left that died

    def _is_of_machine(self, error: BaseException | None) -> bool:
        """Whether finished files survive this error (machine) or not (model)."""
        if isinstance(error, OutputError):
            found = [self._made.status(name) for name in self._names]
            # A run that was killed at its very end has given all of them their names.
            named = error.code == "output.exists" and all(status and status.st_nlink > 1 for status in found)
            return error.code != "input.changed" and not named
        if isinstance(error, InputError):
            return error.code == "input.unreadable"
        return isinstance(error, (Interrupted, KeyboardInterrupt, MemoryError))
