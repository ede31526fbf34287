"""Run a plan: stream the steps into an output that is published complete and verified, or not at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path

from ckconv.destination import Destination
from ckconv.errors import InputError, UsageError, VerifyError
from ckconv.files import Files
from ckconv.filesystem import failing, write_at
from ckconv.leftovers import check_leftovers
from ckconv.model.index import Extent
from ckconv.output import Outputs, Room, Small
from ckconv.plan.steps import OutputFile, Plan
from ckconv.soundness import Soundness
from ckconv.stage import Stage
from ckconv.stream import SMALLEST_HOLE
from ckconv.transfer import Unwatched, Watcher, write_files, write_stdout
from ckconv.writers.container import Container

#: What makes the bytes around the tensors, by target: module and function.
CONTAINERS: dict[str, tuple[str, str]] = {
    "bump 3": ("ckconv.writers.bump", "container"),
    "bump 4": ("ckconv.writers.bump5", "container"),
    "bump 5": ("ckconv.writers.bump5", "container"),
    "gguf": ("ckconv.writers.gguf", "container"),
    "safetensors": ("ckconv.writers.safetensors", "container"),
    "mlx": ("ckconv.writers.safetensors", "container"),
    "peft": ("ckconv.writers.adapters", "container"),
    "mlx adapter": ("ckconv.writers.adapters", "container"),
    "gguf adapter": ("ckconv.writers.gguf", "container"),
}

#: The same for an output that is the source of a bump file again, whatever its format.
_RESTORED = ("ckconv.writers.restore", "container")


@dataclass(frozen=True, slots=True)
class Written:
    """One model file: its SHA-256 as hex, and that of its payload, which the header of a bump file stores."""

    path: Path
    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a conversion did.

    Attributes:
        target: what was written, as the user named it.
        files: the files of tensors, in order. The SHA-256 of one that has a digest in its header is that digest.
        side_files: what was published beside them.
        verified: tensors compared, ``None`` where that was not asked for.
        seconds: wall time.
        changed: source tensor -> values that are not what they were.
        merged: tensor that adapters change -> the largest difference that they made to a value.
    """

    plan: Plan
    target: str
    files: tuple[Written, ...]
    side_files: tuple[Path, ...]
    verified: int | None
    seconds: float
    changed: Mapping[str, int] = field(default_factory=dict)
    merged: Mapping[str, float] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """The digest of the one file; empty where there are several."""
        return self.files[0].sha256 if len(self.files) == 1 else ""


@dataclass(frozen=True, slots=True)
class Late:
    """A file beside the model whose size is known before, and whose content is known when the model is written."""

    path: Path
    nbytes: int
    content: Callable[[Sequence[Written], Outputs], Iterable[bytes]]


def run(
    plan: Plan,
    target: Destination,
    *,
    force: bool = False,
    verify: bool = True,
    places: Mapping[str, Path] | None = None,
    on_request: Sequence[str] = (),
    late: Sequence[Late] = (),
    stdout: int | None = None,
    watcher: Watcher | None = None,
) -> Report:
    """Write the output of ``plan`` to ``target``.

    Args:
        force: replace what is there.
        verify: read the output again and compare every tensor with its source before it gets its name.
        places: side file -> where it goes, if not beside the model.
        on_request: side files that are asked for.
        late: further files.
        stdout: the descriptor that ``-`` means.

    Raises:
        UsageError: a side file was asked for that the target does not have.
        UnsupportedError: the plan refuses, or a value would change that may not.
        OutputError: the output exists, is the input, does not fit or cannot be written; or the input changed.
        VerifyError: the output is not what the source holds, or the source not what its own checksum says; the output
            is not published.
    """
    plan.check()
    started = time.monotonic()
    watcher = watcher or Unwatched()
    module, function = _RESTORED if plan.restores else CONTAINERS[plan.target_name]
    container: Container = getattr(import_module(module), function)(plan)
    plan = replace(plan, notes=(*plan.notes, *container.notes))
    if target.parent is None and plan.index.adapter is not None and container.side_files:
        raise UsageError("usage.target", "an adapter is two files, stdout holds one", hint="name a directory")
    side = _side_files(plan, container, target.parent, places or {}, on_request)
    with Files(plan.index.identities) as files, Soundness(plan.index) as source:
        if target.parent is None:
            assert stdout is not None
            source.check()  # nothing can be taken back from there
            with Outputs({}, side, force=force, inputs=_inputs(plan)) as outputs:
                digest, losses = write_stdout(plan, container, files, stdout, watcher)
                outputs.publish()
            whole = Written(Path(target.name), plan.nbytes, digest.hex())
            return Report(
                plan,
                target.name,
                (whole,),
                tuple(side),
                None,
                time.monotonic() - started,
                losses.changed,
                losses.merged,
            )
        paths = [target.parent / file.name for file in plan.files]
        rooms = {item.path: Room(item.nbytes) for item in late}
        rooms |= {path: Room(file.nbytes, tuple(_holes(file))) for path, file in zip(paths, plan.files, strict=True)}
        _check_apart([*side, *(item.path for item in late)], paths)
        with Outputs(rooms, side, directory=target.directory, force=force, inputs=_inputs(plan)) as outputs:
            check_leftovers(plan, target.parent, [*rooms, *side])
            fds = [outputs.fds[path] for path in paths]
            if not verify:
                source.begin()
            with failing(Path(target.name)):  # what is read says of itself that it cannot be
                digests, losses = write_files(plan, container, files, fds, watcher, reread=verify)
            written = tuple(
                Written(path, file.nbytes, digest.content.hex())
                for path, file, digest in zip(paths, plan.files, digests, strict=True)
            )
            reread = {
                Extent(outputs.staged(path), digest.reread[0], digest.reread[1]): digest.reread[2]
                for path, digest in zip(paths, digests, strict=True)
                if digest.reread
            }
            for item in late:
                with failing(item.path):
                    _write_late(item, outputs.fds[item.path], item.content(written, outputs))
            if not plan.restores:  # which is verified whole, or hashed already
                source.begin()
            try:
                verified = _settle(plan, target, paths, outputs, watcher, reread, verify=verify)
            except VerifyError as error:
                if not plan.restores:
                    error.path = target.name  # its temporary name says nothing to anybody
                raise
            except InputError as error:
                if error.path is None or not Path(error.path).is_relative_to(outputs.staging):
                    raise
                raise VerifyError(
                    error.code,
                    f"what was written cannot be read: {error.message}",
                    path=target.name,
                    tensor=error.tensor,
                    offset=error.offset,
                    details=error.details,
                ) from error
            if not plan.restores or not verify:
                source.check()
            files.check_unchanged()
            outputs.publish()
    besides = (*side, *(item.path for item in late))
    return Report(
        plan, target.name, written, besides, verified, time.monotonic() - started, losses.changed, losses.merged
    )


def _inputs(plan: Plan) -> tuple[Path, ...]:
    return (*plan.index.files, *plan.index.side_files)


def _side_files(
    plan: Plan, container: Container, parent: Path | None, places: Mapping[str, Path], on_request: Sequence[str]
) -> dict[Path, Small]:
    """Where each side file goes. A model on standard output has no place beside it."""
    side: dict[Path, Small] = {}
    wanted = {*places, *on_request}
    for name in sorted(wanted - container.side_files.keys()):
        raise UsageError("usage.side-file", f"{plan.target_name} has no {name}")
    for name, content in container.side_files.items():
        if name in container.on_request and name not in wanted:
            continue
        place = places.get(name) or (parent / name if parent is not None else None)
        if place is None and name in container.on_request:
            raise UsageError("usage.side-file", f"{name} must lie beside the model, and stdout has no place for it")
        if place is not None and any(place.absolute() == other.absolute() for other in side):
            raise UsageError("usage.side-file", f"{place} would be two of the files beside the model")
        if place is not None:
            side[place] = Small(name, content)
    return side


def _check_apart(beside: Sequence[Path], paths: Sequence[Path]) -> None:
    taken = {path.absolute() for path in beside}
    for path in paths:
        if path.absolute() in taken:
            raise UsageError(
                "usage.target", f"{path} would be both the model and a file beside it", hint="name another DST"
            )


def _holes(file: OutputFile) -> list[tuple[int, int]]:
    return [(step.offset, step.nbytes) for step in file.steps if step.blank and step.nbytes >= SMALLEST_HOLE]


def _write_late(item: Late, fd: int, pieces: Iterable[bytes]) -> None:
    at = 0
    for data in pieces:
        write_at(fd, data, at)
        at += len(data)
    if at != item.nbytes:
        raise AssertionError(f"{item.path.name} has {at:,} bytes, {item.nbytes:,} were planned")


def _settle(
    plan: Plan,
    target: Destination,
    paths: Sequence[Path],
    outputs: Outputs,
    watcher: Watcher,
    reread: Mapping[Extent, bytes],
    *,
    verify: bool,
) -> int | None:
    """Bring the files to the disk; meanwhile read them again and compare every tensor with its source."""
    if not verify:
        outputs.sync()
        return None
    from ckconv.readers.detect import open_index
    from ckconv.verification import verify_index

    syncing = Stage(lambda job, position: outputs.sync(), 0)
    syncing.jobs.put(0)
    syncing.jobs.put(None)
    syncing.start()
    try:
        out = open_index(_opened(plan, target, paths, outputs), base=plan.options.base)
        watcher.begin("verifying", plan.nbytes)
        if plan.restores:
            # The comparison that was made when the bump was written: of the bump, its checksum too, with its source.
            found = verify_index(plan.index, out, left_out=plan.details.left_out, progress=watcher)
        else:
            found = verify_index(
                out,
                plan.index,
                left_out=[left.name for left in plan.left_out],
                configuration=not (plan.options.set_meta or plan.options.drop_meta),
                progress=watcher,
                digests=reread,
            )
    finally:
        syncing.wait()
    if syncing.error is not None:
        raise syncing.error
    return found.tensors


def _opened(plan: Plan, target: Destination, paths: Sequence[Path], outputs: Outputs) -> Path:
    """What a reader of the format opens: a checkpoint's directory, its index, or the first file."""
    if plan.format in ("safetensors", "mlx", "peft", "mlx adapter"):
        if target.directory is not None:
            return outputs.staging
        if len(paths) > 1:
            from ckconv.formats.safetensors import INDEX_SUFFIX

            return next(path for path in outputs.staging.iterdir() if path.name.endswith(INDEX_SUFFIX))
    return outputs.staged(paths[0])
