"""The models of a batch, one after the other: each is converted, found there, or fails for itself."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ckconv.cli.conversion import MAP_NAME
from ckconv.cli.progress import ProgressLine
from ckconv.cli.render import Lines, as_error, error_facts, print_error
from ckconv.cli.settings import Settings
from ckconv.core.version import __version__
from ckconv.errors import CkconvError, Interrupted, shown
from ckconv.formats import format_of
from ckconv.io.addresses import as_path

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ckconv.options import Options
    from ckconv.plan.steps import Written

#: Flags that a worker is told of.
_SENT = ("to", "source_format", "checksums", "with_map", "force", "dry_run", "no_verify")

#: Version of a line's shape.
SCHEMA = 1


@dataclass
class Model:
    """One model of a batch, and what became of it: the fields of its line.

    Attributes:
        target: its own directory.
        status: ``converted``, ``there``, ``planned``, ``failed``, ``interrupted``; empty before it began.
        exit_status: what ``convert`` would have ended with.
        verified: tensors compared; ``None`` where none were.
        error: as ``--json`` prints one.
    """

    source: str
    target: str
    status: str = ""
    exit_status: int = 0
    seconds: float = 0.0
    format: str | None = None
    version: int | None = None
    bytes: int | None = None
    verified: int | None = None
    files: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: dict[str, Any] | None = None


class Batch:
    """What is the same for every model, and where their lines go."""

    def __init__(
        self,
        flags: Mapping[str, Any],
        options: Options,
        adapters: Sequence[tuple[Path, float]],
        settings: Settings,
    ) -> None:
        self._flags, self._options, self._adapters, self._settings = flags, options, adapters, settings
        self._lines = Lines(shown=settings.json or not settings.quiet)

    def run(self, models: Sequence[Model]) -> None:
        """Convert all; a failure is the model's own.

        Raises:
            Interrupted: a signal came; its model's line says so.
            OutputError: ``output.write``, stdout could not be written.
        """
        for model in models:
            started = time.monotonic()
            try:
                convert(model, self._flags, self._options, self._adapters, self._settings)
            except Interrupted as error:
                _fail(model, error, "interrupted")
                raise _interrupted(error, models) from error
            except Exception as error:
                self._failed(model, error)
            finally:
                model.seconds = round(time.monotonic() - started, 3)
                self._print(model)
        self._lines.check()

    def run_on(self, executor: Executor, models: Sequence[Model]) -> None:
        """The same by the processes of an executor, in any order.

        Raises:
            Interrupted, OutputError: as :meth:`run`; ``cluster.version`` or ``cluster.worker``.
        """
        from ckconv.conversion.cluster import dispatched
        from ckconv.conversion.resume import absolute, absolute_path

        known = {absolute_path(model.source): number for number, model in enumerate(models)}
        jobs = [
            Job(
                __version__,
                {name: self._flags[name] for name in _SENT},
                absolute(self._options),
                [(absolute_path(path), weight) for path, weight in self._adapters],
                self._flags["jobs"],
                replace(model, source=absolute_path(model.source), target=os.path.abspath(model.target) + "/"),  # noqa: PTH100
            )
            for model in models
        ]
        try:
            for made, error in dispatched(executor, converted, jobs):
                model = models[known[made.source]]
                for name, value in asdict(made).items():
                    if name not in ("source", "target"):
                        setattr(model, name, value)
                self._print(model)
                if error is not None:
                    print_error(error, self._settings)
        except Interrupted as error:
            raise _interrupted(error, models) from error
        self._lines.check()

    def _print(self, model: Model) -> None:
        self._lines.print({"schema": SCHEMA, **asdict(model), "source": shown(model.source)})

    def _failed(self, model: Model, error: Exception) -> None:
        from ckconv.signals import check

        check()  # a signal's exception may come out of an import as an ImportError
        if self._settings.debug:
            raise error
        known = as_error(error)
        _fail(model, known, "failed")
        print_error(known, self._settings)


class Job(NamedTuple):
    """One model, for another process: all that it needs to convert it."""

    version: str
    flags: Mapping[str, Any]
    options: Options
    adapters: Sequence[tuple[str, float]]
    jobs: int | None
    model: Model


def converted(job: Job) -> tuple[Model, CkconvError | None]:
    """Convert a model in a process that knows nothing of it yet, and say what became of it.

    Raises:
        OutputError: ``cluster.version``.
    """
    from ckconv.conversion.resume import check_version
    from ckconv.families.catalog import own_families
    from ckconv.io.tiles import at_once

    check_version(job.version)
    model, started, adapters = job.model, time.monotonic(), [(as_path(path), weight) for path, weight in job.adapters]
    failure: CkconvError | None = None
    with own_families(job.options.families), at_once(job.jobs or 1):
        for again in (True, False):
            try:
                convert(model, job.flags, job.options, adapters)
            except Exception as error:
                failure = as_error(error)
                if again and failure.code == "output.exists":  # somebody who was taken for dead may have made it
                    continue
                _fail(model, failure, "failed")
            else:
                failure = None
            break
    model.seconds = round(time.monotonic() - started, 3)
    return model, failure


def convert(
    model: Model,
    flags: Mapping[str, Any],
    options: Options,
    adapters: Sequence[tuple[Path, float]],
    settings: Settings | None = None,
) -> None:
    """Convert a model, or find it there.

    Args:
        settings: of whoever watches.

    Raises:
        CkconvError: as ``convert``.
    """
    from ckconv.api import prepare
    from ckconv.comparison.verify import found_there
    from ckconv.conversion.run import run
    from ckconv.conversion.sidefiles import Facts, late_files, recorded
    from ckconv.errors import OutputError
    from ckconv.publish.checks import followed
    from ckconv.publish.journal import bring_back
    from ckconv.signals import declare

    declare(None)  # what was true of the model before
    bring_back(Path(model.target))
    plan, place = prepare(
        as_path(model.source),
        model.target,
        to=flags["to"],
        source_format=flags["source_format"],
        adapters=adapters,
        options=options,
    )
    place = place._replace(typed=False)
    followed(Path(model.target), force=False, typed=False)
    facts = Facts(plan, adapters)
    late = late_files(plan, place, checksums=flags["checksums"], record=True, facts=facts)
    model.format, model.version = plan.format, plan.version or format_of(plan.format).version or None
    model.bytes = plan.nbytes
    model.notes = [*plan.notes]
    extra = [MAP_NAME] if flags["with_map"] else []
    needed = [*(item.path for item in late), *(Path(model.target, name) for name in extra)]
    there: tuple[Written, ...] = ()
    try:
        there = found_there(plan, place, needed, recorded(facts, place))
    except OutputError:
        if not flags["force"]:
            raise
    if there:
        names = {file.name for file in plan.files}
        model.status, model.files = "there", _files(file for file in there if file.path.name in names)
        return
    if flags["dry_run"]:
        model.status = "planned"
        return
    with ProgressLine(settings or Settings(quiet=True), model.target) as line:
        report = run(
            plan,
            place,
            force=flags["force"],
            verify=not flags["no_verify"],
            on_request=extra,
            late=late,
            watcher=line,
        )
    model.status, model.verified, model.notes = "converted", report.verified, [*report.plan.notes]
    model.files = _files(report.files)


def _interrupted(error: Interrupted, models: Sequence[Model]) -> Interrupted:
    done = sum(one.status in ("converted", "there") for one in models)
    what = f"interrupted; {done:,} of {len(models):,} models are done; the same command continues"
    return Interrupted(error.signal_number, what, (error.message, *error.details))


def _fail(model: Model, error: CkconvError, status: str) -> None:
    model.status, model.exit_status, model.error = status, error.exit_code, error_facts(error)


def _files(files: Iterable[Written]) -> list[dict[str, Any]]:
    return [{"path": str(file.path), "bytes": file.nbytes, "sha256": file.sha256} for file in files]
