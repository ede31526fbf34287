"""Run a plan: stream the steps into an output that is published complete and verified, or not at all."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ckconv.conversions import Action
from ckconv.errors import OutputError, UnsupportedError, UsageError, VerifyError, listed
from ckconv.files import Files
from ckconv.output import Outputs
from ckconv.plan.steps import Plan, Step
from ckconv.readers.bump import open_bump
from ckconv.stream import SMALLEST_HOLE, Pipeline
from ckconv.writers import bump, bump5
from ckconv.writers.container import Container

#: The name that writes to standard output.
STDOUT = "-"

#: File name endings -> output format.
TARGET_SUFFIXES: dict[str, str] = {".bump": "bump"}

#: What makes the bytes around the tensors, by target.
CONTAINERS: dict[str, Callable[[Plan], Container]] = {
    "bump 3": bump.container,
    "bump 4": bump5.container,
    "bump 5": bump5.container,
}

#: What a directory target's model file is called.
MODEL_NAMES: dict[str, str] = {"bump": "weights.bump"}


class Watcher(Protocol):
    """Hears of progress: a phase begins with its total bytes, then bytes are done, with the tensor they belong to."""

    def begin(self, phase: str, total: int) -> None:
        """A phase of ``total`` bytes begins."""

    def __call__(self, nbytes: int, name: str) -> None:
        """``nbytes`` more are done."""


class Unwatched:
    """A watcher for whom nothing is done."""

    def begin(self, phase: str, total: int) -> None:
        """Ignored."""

    def __call__(self, nbytes: int, name: str) -> None:
        """Ignored."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a conversion did. ``seconds`` is wall time; ``verified`` counts tensors compared, ``None`` for not asked."""

    plan: Plan
    target: str
    side_files: tuple[Path, ...]
    sha256: str
    verified: int | None
    seconds: float
    changed: Mapping[str, int] = field(default_factory=dict)


def target_format(target: str, to: str | None) -> str:
    """The output's format: as asked, or from the name.

    Raises:
        UsageError: neither says.
    """
    if to:
        return to
    path = Path(target)
    if target.endswith("/") or os.path.isdir(target) or target == STDOUT:  # noqa: PTH112 - Path.is_dir raises for long names
        raise UsageError("usage.target", f"{target!r} does not say which format to write", hint="name one with --to")
    found = TARGET_SUFFIXES.get(path.suffix.lower())
    if found is None:
        known = ", ".join(TARGET_SUFFIXES)
        raise UsageError(
            "usage.target", f"{path.name!r} ends in no known format ({known})", hint="name the format with --to"
        )
    return found


def run(
    plan: Plan,
    target: str,
    *,
    force: bool = False,
    verify: bool = True,
    config_out: Path | None = None,
    manifest_out: Path | None = None,
    with_map: bool = False,
    checksums: bool = False,
    stdout: int | None = None,
    watcher: Watcher | None = None,
) -> Report:
    """Write the output of ``plan`` to ``target``.

    Args:
        force: replace what is there.
        verify: read the output again and compare every tensor with its source before it gets its name.
        config_out: where ``config.json`` goes, if not beside the model.
        manifest_out: where ``weights_manifest.json`` goes, if not beside the model.
        with_map: write ``weights_manifest.map`` beside the model.
        checksums: write ``TARGET.sha256``, in the form that ``sha256sum -c`` reads.
        stdout: the descriptor that ``-`` means.

    Raises:
        UsageError: a side file was asked for that the target does not have.
        UnsupportedError: the plan refuses, or a value would change that may not.
        OutputError: the output exists, is the input, does not fit or cannot be written; or the input changed.
        VerifyError: the output is not what the source holds; it is not published.
    """
    plan.check()
    started = time.monotonic()
    watcher = watcher or Unwatched()
    container = CONTAINERS[plan.target_name](plan)
    path, directory = _place(plan, target)
    places = {bump.CONFIG_NAME: config_out, bump5.MANIFEST_NAME: manifest_out}
    wanted = {name for name, place in places.items() if place} | ({bump5.MAP_NAME} if with_map else set())
    side = _side_files(plan, container, path, places, wanted)
    if path is not None and any(path.absolute() == other.absolute() for other in side):
        raise UsageError(
            "usage.target", f"{path} would be both the model and a file beside it", hint="name another DST"
        )
    with Files() as files:
        if path is None:
            assert stdout is not None
            with Outputs(side, force=force, inputs=plan.index.files) as outputs:
                digest, changed = _to_stdout(plan, container, files, stdout, watcher)
                outputs.publish()
            return Report(plan, target, tuple(side), digest.hex(), None, time.monotonic() - started, changed)
        with Outputs(
            side,
            main=path,
            nbytes=plan.nbytes,
            holes=_holes(plan),
            directory=directory,
            force=force,
            inputs=plan.index.files,
        ) as outputs:
            digest, changed = _to_file(plan, container, files, outputs.fd, watcher)
            try:
                verified = _settle(plan, container, outputs, watcher, verify=verify)
            except VerifyError as error:
                error.path = str(path)  # its temporary name says nothing to anybody
                raise
            files.check_unchanged()
            outputs.publish()
    return Report(plan, str(path), tuple(side), digest.hex(), verified, time.monotonic() - started, changed)


def _place(plan: Plan, target: str) -> tuple[Path | None, Path | None]:
    """The model file, and the directory that is made for it where the target is one."""
    if target == STDOUT:
        return None, None
    if target.endswith("/") or os.path.isdir(target):  # noqa: PTH112
        return Path(target) / MODEL_NAMES[plan.format], Path(target)
    return Path(target), None


def _side_files(
    plan: Plan, container: Container, path: Path | None, places: Mapping[str, Path | None], wanted: set[str]
) -> dict[Path, bytes]:
    """Where each side file goes. A model on standard output has no place beside it."""
    side: dict[Path, bytes] = {}
    for name in sorted(wanted - container.side_files.keys()):
        raise UsageError("usage.side-file", f"{plan.target_name} has no {name}")
    for name, content in container.side_files.items():
        if name in container.on_request and name not in wanted:
            continue
        place = places.get(name) or (path.parent / name if path else None)
        if place is None and name in container.on_request:
            raise UsageError("usage.side-file", f"{name} must lie beside the model, and stdout has no place for it")
        if place is not None and any(place.absolute() == other.absolute() for other in side):
            raise UsageError("usage.side-file", f"{place} would be two of the files beside the model")
        if place is not None:
            side[place] = content
    return side


def _holes(plan: Plan) -> list[tuple[int, int]]:
    return [(step.offset, step.nbytes) for step in plan.steps if step.blank and step.nbytes >= SMALLEST_HOLE]


def _to_file(plan: Plan, container: Container, files: Files, fd: int, watcher: Watcher) -> tuple[bytes, dict[str, int]]:
    watcher.begin("writing", plan.nbytes)
    with Pipeline(fd, offset=container.header_bytes) as pipeline:
        changed = _stream(plan, container, files, pipeline, watcher)
        digest = pipeline.finish()
    end = plan.nbytes - len(container.epilogue)
    for what, data, offset in (("header", container.header(digest), 0), ("end", container.epilogue, end)):
        if os.pwrite(fd, data, offset) != len(data):
            raise OutputError("output.write", f"the {what} could not be written")
    return digest, changed


def _to_stdout(
    plan: Plan, container: Container, files: Files, fd: int, watcher: Watcher
) -> tuple[bytes, dict[str, int]]:
    """Two passes: the header holds the digest of what follows it, and a pipe cannot be gone back in."""
    watcher.begin("hashing", plan.nbytes)
    with Pipeline(None) as pipeline:
        changed = _stream(plan, container, files, pipeline, watcher)
        digest = pipeline.finish()
    watcher.begin("writing", plan.nbytes)
    _write_all(fd, container.header(digest))
    with Pipeline(fd, seekable=False) as pipeline:
        _stream(plan, container, files, pipeline, watcher)
        again = pipeline.finish()
    if again != digest:
        raise OutputError("input.changed", "the input changed between two passes over it", path=plan.index.path)
    _write_all(fd, container.epilogue)
    files.check_unchanged()
    return digest, changed


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while len(view):
        view = view[os.write(fd, view) :]


def _stream(plan: Plan, container: Container, files: Files, pipeline: Pipeline, watcher: Watcher) -> dict[str, int]:
    """Run every step; returns how many values changed, by source tensor."""
    changed: dict[str, int] = {}
    misfits: dict[str, int] = {}
    pipeline.put(container.prologue)
    for step in plan.steps:
        watcher(0, step.target.name)
        some = _run_step(step, files, pipeline)
        watcher(step.nbytes, step.target.name)
        if some and step.source is not None:
            count = misfits if step.action is Action.REPACK else changed
            count[step.source.source] = count.get(step.source.source, 0) + some
    if misfits:
        faults = [f"{name}: {count:,} groups" for name, count in misfits.items()]
        raise UnsupportedError(
            "plan.repack",
            f"{sum(misfits.values()):,} groups of {len(misfits)} tensors have numbers that no block holds",
            path=plan.index.path,
            tensor=next(iter(misfits)),
            hint="--dequantize decodes them",
            details=listed(faults),
        )
    if changed and not plan.options.allow_lossy:
        faults = [f"{name}: {count:,} values" for name, count in changed.items()]
        raise UnsupportedError(
            "plan.lossy",
            f"{plan.options.dtype} cannot hold {sum(changed.values()):,} values of {len(changed)} tensors exactly",
            path=plan.index.path,
            tensor=next(iter(changed)),
            hint="--allow-lossy rounds them",
            details=listed(faults),
        )
    return changed


def _run_step(step: Step, files: Files, pipeline: Pipeline) -> int:
    if step.content is not None:
        pipeline.put(step.content)
        return 0
    if step.source is None:
        pipeline.zeros(step.nbytes)
        return 0
    if step.one_run:
        for extent in step.source.extents:
            pipeline.copy(
                files.fd(extent.path), extent.offset, extent.nbytes, path=extent.path, tensor=step.source.source
            )
        return 0
    from ckconv.rows import RowReader, stored_chunks

    assert step.conversion is not None
    changed = 0
    for chunk, some in stored_chunks(RowReader(step.source, files), step.target.layout, step.conversion):
        pipeline.put(chunk)
        changed += some
    return changed


def _settle(plan: Plan, container: Container, outputs: Outputs, watcher: Watcher, *, verify: bool) -> int | None:
    """Bring the file to the disk; meanwhile read it again and compare every tensor with its source."""
    if not verify:
        outputs.sync()
        return None
    from ckconv.verification import verify_index

    assert outputs.path is not None
    failures: list[BaseException] = []
    syncing = threading.Thread(target=_catching, args=(outputs.sync, failures), name="ckconv-sync", daemon=True)
    syncing.start()
    try:
        beside = {name: json.loads(data) for name, data in container.side_files.items() if name.endswith(".json")}
        out = open_bump(outputs.path, config=beside[bump.CONFIG_NAME], manifest=beside.get(bump5.MANIFEST_NAME))
        watcher.begin("verifying", plan.nbytes)
        found = verify_index(out, plan.index, left_out=[left.name for left in plan.left_out], progress=watcher)
    finally:
        syncing.join()
    if failures:
        raise failures[0]
    return found.tensors


def _catching(work: Callable[[], None], failures: list[BaseException]) -> None:
    try:
        work()
    except BaseException as error:
        failures.append(error)
