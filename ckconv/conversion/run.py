"""Run of a plan: files are written, verified, published or uploaded."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckconv.conversion.pipeline import FileResult, Pipeline, phase
from ckconv.conversion.sidefiles import (
    check_distinct,
    check_leftovers,
    gone_notes,
    last_file_sizes,
    left_documents,
    named_last,
    own_names,
    side_paths,
    stale_lists,
    write_last,
    written,
)
from ckconv.conversion.write import (
    Losses,
    Watcher,
    check_frame,
    check_stored,
    compare_restored,
    digested,
    holes,
    watching,
    write_archive,
    write_frames,
    write_stdout,
)
from ckconv.core.lazy import NamedTuple, dataclass, field, replace
from ckconv.core.metadata import beside
from ckconv.core.tensors import HEAD, Extent, TensorIndex
from ckconv.errors import ADDRESSES, CkconvError, InputError, OutputError, UsageError, VerifyError, counted, shown
from ckconv.formats import destination, detect, format_of, model
from ckconv.formats.safetensors.container import INDEX_SUFFIX
from ckconv.io import address_of, as_path, tiles
from ckconv.io.digests import Digests, sha256_of
from ckconv.io.files import Files, growing, opened_regular
from ckconv.plan.steps import Container, Frame, LastFile, NewFile, OutputFile, Plan, Step
from ckconv.publish.files import check_parent, check_place, failing
from ckconv.publish.staging import LargeFile, Outputs, SmallFile
from ckconv.quant.convert import GGML_TYPES, Action, Error, quantizer_of
from ckconv.system import peak_memory, sync, write_at
from ckconv.system.signals import blocking, check, noted
from ckconv.verification.content import check_documents
from ckconv.verification.statements import check_statements
from ckconv.verification.tensors import Compared, SourceChecksum

if TYPE_CHECKING:
    from ckconv.conversion.resume import SharedFiles

# -- Counts of a conversion for the report, its JSON and programs ------------------------------------------------------

VERBS = {
    Action.COPY: "copied",
    Action.WIDEN: "widened",
    Action.NARROW: "narrowed",
    Action.DECODE: "decoded",
    Action.REPACK: "re-packed",
    Action.QUANTIZE: "quantized",
    Action.SHIFT: "shifted",
    Action.SCALE: "scaled",
    Action.MERGE: "merged",
}


class RowChange(NamedTuple):
    """Conversion of values and positions that several tensors share.

    Attributes:
        action: the conversion of their values.
        reordered, transposed: their rows change places; become columns.
        packed: values are copied, but not as one run of bytes (rows of several tensors, padding).
    """

    action: Action
    reordered: bool
    transposed: bool
    packed: bool


def ways_of(plan: Plan) -> Counter[RowChange]:
    """Counts of canonical tensors, by the first step that writes of each.

    A step may write several (fused q, k and v), and several steps may write one (an MLX triple, single experts).
    """
    found: Counter[RowChange] = Counter()
    seen: set[str] = set()
    for step in plan.steps:
        names = {name for name in _names(step, plan.index) if name not in seen}
        if names:
            action, reordered, transposed = step.action, step.reordered, step.transposed
            lies = action is not Action.COPY or reordered or transposed or step.copied is not None
            found[RowChange(action, reordered, transposed, not lies)] += len(names)
            seen |= names
    return found


def _names(step: Step, index: TensorIndex) -> Iterator[str]:
    """Canonical names of what a step writes."""
    if step.target.name == HEAD:  # a tied head that is stored is read from the embedding
        yield HEAD
        return
    for tensor in step.sources:
        name = tensor.name
        yield from (name,) if name in index.tensors else index.canonical_of.get(tensor.source, (name,))


def counts_of(ways: Counter[RowChange]) -> Counter[Action]:
    """Tensors by what is done to their values."""
    counts: Counter[Action] = Counter()
    for way, tensors in ways.items():
        counts[way.action] += tensors
    return counts


def errors_of(plan: Plan) -> Mapping[str, Error]:
    """Type -> how far quantizing moved values."""
    return plan.errors.of_types if plan.errors else {}


def made_by(name: str) -> str:
    """Package and version that made blocks of a type; empty for none."""
    dtype = GGML_TYPES.get(name.lower())
    return quantizer_of(dtype) if dtype else ""


def bits_per_weight(plan: Plan) -> float:
    """Bits of the output's tensors for each of their elements; 0 without any."""
    steps = [step for step in plan.steps if step.source is not None]
    elements = sum(step.target.elements for step in steps)
    return 8 * sum(step.nbytes for step in steps) / elements if elements else 0.0


def facts_of_plan(plan: Plan) -> dict[str, Any]:
    """The fields of a plan in JSON."""
    counts = counts_of(ways_of(plan))
    return {
        "format": plan.format,
        "version": plan.version or format_of(plan.format).version or None,
        "bytes": plan.nbytes,
        "bits_per_weight": round(bits_per_weight(plan), 3),
        "source": {
            "path": shown(plan.index.path),
            "format": plan.index.format,
            "version": plan.index.version or None,
            "architecture": plan.index.architecture,
        },
        "tensors": {action.value: counts[action] for action in VERBS},
        "reordered": sum(step.reordered for step in plan.steps),
        "content": sum(step.content is not None for step in plan.steps),
        "placeholders": sum(step.zero_filled for step in plan.steps),
        "left_out": [{"name": left.name, "reason": left.reason, "bytes": left.nbytes} for left in plan.left_out],
        "rope_layout": plan.rope_layout or None,
        "source_record": plan.record.nbytes if plan.record else None,
        "changes": [change._asdict() for change in plan.changes],
        "notes": list(plan.notes),
    }


# -- Run of a plan: files are written, verified, then published together -----------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """Report of a conversion.

    Attributes:
        target: what was written, as the user named it.
        files: the files of tensors, in order.
        side_files: what was published beside them.
        verified: tensors compared, ``None`` where that was not asked for.
        seconds: wall time.
        changed: source tensor -> values that are not what they were.
        merged: tensor that adapters change -> the largest difference that they made to a value.
    """

    plan: Plan
    target: str
    files: tuple[NewFile, ...]
    side_files: tuple[Path, ...]
    verified: int | None
    seconds: float
    changed: Mapping[str, int] = field(default_factory=dict)
    merged: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        checked = "not verified" if self.verified is None else f"{counted(self.verified, 'tensor')} verified"
        return f"<Report {self.target}: {self.plan.target_name}, {self.plan.nbytes:,} bytes, {checked}>"

    def to_dict(self) -> dict[str, Any]:
        """The fields of ``ckconv convert --json`` as plain values for :mod:`json`."""
        return {
            "target": self.target,
            "side_files": [str(path) for path in self.side_files],
            "sha256": self.sha256 or None,
            "payload_sha256": self.payload_sha256 or None,
            "files": [
                {
                    "path": str(file.path),
                    "bytes": file.nbytes,
                    "sha256": file.sha256 or None,
                    "payload_sha256": file.payload_sha256 or None,
                }
                for file in self.files
            ],
            "verified": self.verified,
            "seconds": round(self.seconds, 3),
            "peak_memory": peak_memory() or None,
            "changed_values": dict(self.changed),
            "largest_changes": dict(self.merged),
            "quantised": {
                name: {**error._asdict(), "by": made_by(name)} for name, error in errors_of(self.plan).items()
            },
            **facts_of_plan(self.plan),
        }

    @property
    def sha256(self) -> str:
        """The digest of the one file; empty where there are several."""
        return self.files[0].sha256 if len(self.files) == 1 else ""

    @property
    def payload_sha256(self) -> str:
        """The digest that the one file's header stores; empty without one."""
        return self.files[0].payload_sha256 if len(self.files) == 1 else ""


@noted()
def run(
    plan: Plan,
    target: destination.Destination,
    *,
    force: bool = False,
    in_place: bool = False,
    verify: bool = True,
    named: Mapping[str, Path] | None = None,
    on_request: Sequence[str] = (),
    last: Sequence[LastFile] = (),
    stdout: int | None = None,
    digests: bool = True,
    watcher: Watcher | None = None,
    shared: Callable[[Plan, Container], SharedFiles] | None = None,
) -> Report:
    """Write the output of ``plan`` to ``target``.

    Args:
        force: replace what is there.
        in_place: the output may take the name of the source, whose bytes stay as they are until then.
        verify: read the output again and compare every tensor with its source before it gets its name.
        named: side file -> where it goes, if not beside the model.
        on_request: side files that are asked for.
        last: further files.
        stdout: the descriptor that ``-`` means.
        digests: of whole files are wanted, even where a header holds that of its payload, which is computed anyway.
        shared: how several runs make the files of one output.

    Raises:
        UsageError: a side file was asked for that the target does not have.
        UnsupportedError: the plan refuses, or a value would change that may not.
        OutputError: the output exists, is the input, does not fit or cannot be written; or the input changed.
        VerifyError: the output is not what the source holds, or the source not what its own checksum says; the output
            is not published.
        Interrupted: a signal came, before the output was published or after; it says which.
    """
    plan.check()
    started = time.monotonic()
    watcher = watching(watcher)
    container = plan.contents()
    plan = plan.with_notes(*container.notes)
    beside = {name: it for name, it in container.side_files.items() if name not in container.on_request}
    if target.parent is None and not target.archived and beside:
        plan = plan.with_notes(f"not written: {', '.join(sorted(beside))}; tar:- is a tar archive with them")
    side = side_paths(plan, container, target, named or {}, on_request)
    plan = plan.with_notes(*own_names(side, target))
    if target.file is not None:
        check_parent(target.file)

    def report(files: Sequence[NewFile], verified: int | None, losses: Losses) -> Report:
        tensors, others = files[: len(plan.files)], files[len(plan.files) :]
        seconds = time.monotonic() - started
        beside_it = tuple(file.path for file in others)
        return Report(plan, target.name, tuple(tensors), beside_it, verified, seconds, losses.changed, losses.merged)

    with Files(plan.index.identities) as files, SourceChecksum(plan.index) as source:
        if target.parent is None:
            assert stdout is not None
            source.check()  # nothing can be taken back from there
            with Outputs({}, side, force=force, inputs=_inputs(plan)) as outputs:
                if target.archived:
                    found, losses = b"", write_archive(plan, container, beside, files, stdout, watcher)
                else:
                    found, losses = write_stdout(plan, container, files, stdout, watcher)
                outputs.publish()
            digest_of_what = ("", found.hex()) if container.frames[0].header else (found.hex(), "")
            whole = NewFile(Path(target.name), plan.nbytes, *digest_of_what)
            return report([whole, *written(side)], None, losses)
        paths = [target.parent / file.name for file in plan.files]
        rooms = last_file_sizes(last, paths, plan, side)
        # There are several files of tensors, none of which says a digest, and they are compared with their source.
        is_shareable = len(plan.files) > 1 and plan.restores is None and plan.record is None
        sharing = shared(plan, container) if shared is not None and is_shareable else None
        if shared is not None and sharing is None:
            plan = plan.with_notes("--resume and --cluster change nothing here: the output is written in one piece")
        rooms |= {
            path: LargeFile(file.nbytes, tuple(holes(file)), later=sharing is not None)
            for path, file in zip(paths, plan.files, strict=True)
        }
        check_distinct([*side, *(item.path for item in last)], paths)
        gone = left_documents(plan, target, [*rooms, *side]) if force else []
        plan = plan.with_notes(*gone_notes(gone), *stale_lists(target, [*rooms, *side]))
        with (
            sharing.at(target.directory or paths[0]) if sharing is not None else nullcontext(),
            Outputs(
                rooms,
                side,
                directory=target.directory,
                typed=target.file,
                follow=target.typed,
                force=force,
                inputs=() if in_place else _inputs(plan),
                last=named_last(plan, paths, side),
                gone=gone,
            ) as outputs,
            plan.record.hashing() if plan.record else nullcontext(),
        ):
            look = partial(check_leftovers, plan, target, rooms, side, gone)
            look()
            source.begin()
            with failing(Path(target.name)):  # a reader raises its own error
                staged = _Staged(plan, container, target, files, outputs, side, verify=verify)
                written_files = staged.write(watcher, sharing)
                if sharing is not None and not sharing.publishes:  # another run looks at all of it, and publishes
                    losses, results = staged.written(written_files)
                    others = [*written(side), *(NewFile(item.path, 0, "") for item in last)]
                    return report([*results, *others], sharing.elsewhere.get("verified"), losses)
                whole_digests = digests or any(item.names_digests for item in last)
                losses, results, verified = staged.settle(written_files, whole=whole_digests)
            source.check()
            done = [*results, *written(side)]
            for item in last:
                with failing(item.path):
                    done.append(write_last(item, done, outputs.fds[item.path], verify=verify))
            files.check_unchanged()
            outputs.publish(look)
            if sharing is not None:
                sharing.published(verified)
                if sharing.finished:
                    note = f"{sharing.finished:,} of {counted(len(paths), 'file')} had been finished by an earlier run"
                    plan = plan.with_notes(note)
        plan = plan.with_notes(*outputs.notes)
    return report(done, verified, losses)


class _Staged:
    """The files of tensors of an output that has no name yet."""

    def __init__(
        self,
        plan: Plan,
        container: Container,
        target: destination.Destination,
        source: Files,
        outputs: Outputs,
        side: Mapping[Path, SmallFile],
        *,
        verify: bool,
    ) -> None:
        self._plan, self._container, self._target, self._side = plan, container, target, side
        assert target.parent is not None
        self._paths = [target.parent / file.name for file in plan.files]
        self._source, self._outputs, self._verify = source, outputs, verify
        self._staged = [outputs.staged(path) for path in self._paths]
        self._pipeline = Pipeline(plan, container, source, self._staged, self._open, verify=verify)

    def write(self, watcher: Watcher, shared: SharedFiles | None) -> list[FileResult]:
        """Write everything: alone, or with others."""
        plan, fds = self._plan, self._outputs.fds
        for file, frame, path in self._parts():
            with failing(path):
                write_frames([(file, frame, fds[path])], Path(self._target.name))
        watcher.begin(phase(plan), plan.nbytes)
        self._shared = shared is not None  # files that others have finished take the places of these
        with self._as_target():
            if shared is None:
                return self._pipeline.run(range(len(self._paths)), lambda number: fds[self._paths[number]], watcher)
            return shared.run(lambda number: self._write_one(number, watcher), self._outputs, self._paths, watcher)

    def _write_one(self, number: int, watcher: Watcher) -> FileResult:
        """Write a file for other runs: checked, and on the disk."""
        fd = self._outputs.fds[self._paths[number]]
        (result,) = self._pipeline.run([number], lambda _: fd, watcher)
        self._source.check_unchanged()
        result.losses.check()
        if result.compared is not None:
            result.compared.check(self._plan.index.path, (), {})
        sync(fd)
        return result

    def written(self, results: Sequence[FileResult]) -> tuple[Losses, list[NewFile]]:
        """Losses and files of one run; another run checks the whole."""
        losses = Losses(self._plan)
        for result in results:
            losses.join(result.losses)
        files = zip(results, self._parts(), strict=False)
        return losses, [NewFile(path, file.nbytes, result.digest.hex()) for result, (file, _, path) in files]

    def settle(self, results: Sequence[FileResult], *, whole: bool) -> tuple[Losses, list[NewFile], int | None]:
        """Check everything that is written: losses, files, tensors.

        Args:
            whole: digests of whole files are wanted, also of those whose headers hold one of a part.

        Raises:
            UnsupportedError: a value would change that may not.
            VerifyError: a byte is not what was meant, a tensor not what the source holds, or the format's reference
                reader does not open a file.
            OutputError: ``output.write`` or ``output.space``.
        """
        plan, fds, pipeline = self._plan, self._outputs.fds, self._pipeline
        losses = Losses(plan)
        for result in results:
            losses.join(result.losses)
        losses.check()
        for result, (_, frame, path) in zip(results, self._parts(), strict=True):
            if frame.header:
                write_at(fds[path], frame.header(result.digest), 0)
        pool = None if pipeline.alone else tiles.threads(1)
        syncing = pool.submit(self._outputs.fds.sync) if pool else None
        try:
            verified = self._checked(pipeline, results)
            files = [*self._files(results, whole=whole)]
            self._check_restored(files)
        finally:
            if pool:
                pool.shutdown()
        if syncing:
            syncing.result()
        else:
            self._outputs.fds.sync()
        return losses, files, verified

    def _parts(self) -> Iterator[tuple[OutputFile, Frame, Path]]:
        return zip(self._plan.files, self._container.frames, self._paths, strict=True)

    def _checked(self, pipeline: Pipeline, results: Sequence[FileResult]) -> int | None:
        """Check the bytes around the tensors, then the comparisons of tensors."""
        for place in self._staged:
            with self._as_target(always=True):
                self._container.check(place)
        if not self._verify:
            return None
        with self._as_target():
            for result, (file, frame, path) in zip(results, self._parts(), strict=True):
                header = frame.header(result.digest) if frame.header else b""
                check_frame(file, frame, header, self._outputs.fds[path], path)
            compared = self._compared(pipeline, results)
        return compared.tensors

    def _compared(self, pipeline: Pipeline, results: Sequence[FileResult]) -> Compared:
        plan = self._plan
        if plan.restores:
            check_stored(plan, self._staged, Path(self._target.name))
            restored = compare_restored(self._open(), plan)
            restored.check(plan.index.path, (), {})
            return restored
        compared = pipeline.compared(results)
        assert compared is not None
        framed = any(frame.header for frame in self._container.frames)  # a header holds the digest now
        out = pipeline.index(again=framed or self._shared)
        checksums = out.checksums if framed else ()
        parts = zip(results, self._plan.files, self._container.frames, self._staged, strict=True)
        known = {digested(file, frame, place): result.digest for result, file, frame, place in parts}
        found = known | Digests(c.extent for c in checksums if c.extent not in known).all()
        compared.check(plan.index.path, checksums, found)
        named = {small.name: self._outputs.staged(path) for path, small in self._side.items()}
        with blocking(), growing(lambda *_: None):  # it has grown since its header was read
            check_statements(out, plan.index, plan.options, self._target.name, named=named)
            check_documents(out, named)
        return compared

    def _files(self, results: Sequence[FileResult], *, whole: bool) -> Iterator[NewFile]:
        for result, (file, frame, path), place in zip(results, self._parts(), self._staged, strict=True):
            found = result.digest.hex()
            if not frame.header:
                yield NewFile(path, file.nbytes, found)
            else:
                everything = Extent(place, 0, file.nbytes)
                of_whole = Digests([everything]).all()[everything].hex() if whole else ""
                yield NewFile(path, file.nbytes, of_whole, found)

    def _check_restored(self, files: Sequence[NewFile]) -> None:
        """Check the digest of a restored file."""
        digests = self._plan.restores.digests if self._plan.restores else {}
        for file in files:
            was = digests.get(file.path.name, file.sha256)
            if was != file.sha256:
                message = f"{file.path.name} would not be the file that was converted: its SHA-256 was {was}"
                hint = "what it was converted to has changed; --no-source-record makes it without its record"
                raise VerifyError("record.foreign", message, path=self._target.name, hint=hint)

    def _open(self) -> TensorIndex:
        """The index that a reader of the format finds in the staging directory."""
        opened = self._staged[0]
        if not format_of(self._plan.format).single:
            if self._target.directory is not None:
                opened = self._outputs.staging
            elif len(self._paths) > 1:
                staged = self._outputs.staging.iterdir()
                opened = next(path for path in staged if path.name.endswith(INDEX_SUFFIX))
        return model.seen_as(
            self._plan.index, detect.open_index(opened, base=self._plan.options.base, follow_links=True)
        )

    @contextmanager
    def _as_target(self, *, always: bool = False) -> Iterator[None]:
        """Name the target instead of the staged file in errors of the block."""
        try:
            yield
        except VerifyError as error:
            if always or not self._plan.restores or error.code == "verify.file":
                error.path = self._target.name
            raise
        except OutputError as error:
            staged = {shown(place): shown(path) for place, path in zip(self._staged, self._paths, strict=True)}
            error.path = staged.get(error.path or "", error.path or self._target.name)
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


def outputs_of(
    plan: Plan,
    target: destination.Destination,
    *,
    named: Mapping[str, Path],
    on_request: Sequence[str],
    last: Sequence[LastFile],
) -> list[Path]:
    """Everything that :func:`run` gives a name."""
    side = side_paths(plan, plan.contents(), target, named, on_request)
    files = [target.parent / file.name for file in plan.files] if target.parent is not None else []
    return [*([target.directory] if target.directory else []), *files, *side, *(item.path for item in last)]


def _inputs(plan: Plan) -> tuple[Path, ...]:
    return (*plan.index.files, *beside(plan.index).values())


def make_folder(path: Path) -> None:
    """Make the folder in which models of a batch get theirs.

    Raises:
        OutputError: ``output.parent``, ``output.exists`` or ``output.write``.
    """
    check_place(path)
    with failing(path):
        path.mkdir(exist_ok=True)


# -- An output on another machine: made here, sent in parts, named last ------------------------------------------------

#: Addresses of this machine.
_LOCAL = ("file", "local")

#: What takes no files by itself.
_READ_ONLY = ("http", "https", "hf", "ollama")


class Upload:
    """An output on another machine.

    Attributes:
        local: what it is called while it is made.
    """

    def __init__(self, url: str, folder: Path) -> None:
        """Find out whether it can go there.

        Raises:
            UsageError, OutputError: it cannot.
        """
        from ckconv.io.remote import Uploads

        place, _, name = url.rstrip("/").rpartition("/")
        directory = url.endswith("/")
        self._url, self._base = url, folder / name if directory else folder
        self._uploads = Uploads(url if directory else place)
        self._uploads.check_free([] if directory else [name])
        self.local = f"{folder / name}/" if directory else str(folder / name)
        ADDRESSES[str(folder)] = shown(place)

    def publish(self, report: Report, watcher: Watcher | None = None) -> Report:
        """Send all files, then give them names; loaders' first files come last.

        Raises:
            CkconvError: nothing of it is there.
        """
        single = format_of(report.plan.format).single
        weights = [file.path for file in report.files]
        index = [path for path in report.side_files if path.name.endswith(INDEX_SUFFIX)]
        first = [path for path in report.side_files if path not in index and path.is_relative_to(self._base)]
        paths = [*first, *(reversed(weights) if single else weights), *index]
        self._uploads.check_free([self._name(path) for path in paths])
        digests = []
        watcher = watching(watcher)
        watcher.begin("sending", sum(path.stat().st_size for path in paths))
        try:
            for path in paths:
                check()
                with opened_regular(path) as fd:
                    digests.append((name := self._name(path), sha256_of(fd)))
                self._uploads.send(path, name, lambda n, name=name: watcher(n, name))  # type: ignore[misc]
            check()
            self._uploads.publish(digests)
        except BaseException as error:
            left = self._uploads.remove()
            if isinstance(error, CkconvError):
                error.details = (*error.details, *left)
            raise
        place = shown(self._uploads.url)

        def there(path: Path) -> Path:
            return as_path(f"{place}/{self._name(path)}") if path.is_relative_to(self._base) else path

        files = tuple(file._replace(path=there(file.path)) for file in report.files)
        return replace(
            report, target=shown(self._url), files=files, side_files=tuple(there(path) for path in report.side_files)
        )

    def _name(self, path: Path) -> str:
        """Name of a file in the place; it may lie in a directory."""
        return path.relative_to(self._base).as_posix()


@contextmanager
def uploading(target: str, *, replacing: bool = False, lasting: bool = False) -> Iterator[Upload | None]:
    """The upload of an output; ``None`` for a path of this machine.

    Args:
        replacing, lasting: what an output elsewhere cannot be asked for.

    Raises:
        UsageError: ``usage.target`` or ``usage.remote``.
        OutputError: ``output.exists``; ``remote.write``.
    """
    found = address_of(target)
    if found is None or "://" not in target:
        yield None
        return
    if found[1].lower() in _READ_ONLY:
        raise UsageError("usage.target", f"{found[1]}: can be read, but not written", hint="copy it there afterwards")
    if found[1].lower() in _LOCAL:  # what writes there would follow links
        hint = f"name it as one: {target.partition('://')[2]}"
        raise UsageError("usage.target", f"{found[1]}: is this machine, where outputs have paths", hint=hint)
    if replacing or lasting:
        raise UsageError("usage.target", "--force, --resume and --cluster are for outputs on this machine")
    import shutil
    import tempfile

    try:
        folder = Path(tempfile.mkdtemp(prefix="ckconv-"))
    except OSError as error:
        raise OutputError("output.write", f"there is no place for temporary files: {error.strerror}") from error
    try:
        yield Upload(target, folder)
    except CkconvError as error:
        error.path = shown(error.path) if error.path else None
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        ADDRESSES.pop(str(folder), None)
