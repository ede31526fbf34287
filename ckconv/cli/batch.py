"""``ckconv batch SRC... --to FORMAT --into DIR``."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ckconv.cli import render
from ckconv.cli.flags import (
    MAP_NAME,
    FormatName,
    adapters_of,
    cluster_option,
    conversion_options,
    default_options,
    options_of,
    where_it_counts,
    writing_options,
)
from ckconv.cli.settings import CONTEXT, PATH, Sections, Settings, common_options, origin_notes, origins, settings_of
from ckconv.core import __version__
from ckconv.core.options import OPTIONS, Options
from ckconv.errors import CkconvError, InputError, Interrupted, OutputError, UsageError, shown, unreadable
from ckconv.formats import format_of
from ckconv.formats.destination import targets_in
from ckconv.io import as_path
from ckconv.io.json import Document, read_document
from ckconv.plan.steps import NewFile
from ckconv.publish.files import followed
from ckconv.system.signals import check, declare, interruptible

if TYPE_CHECKING:
    from concurrent.futures import Executor


#: Exit statuses, the one that counts most first; those of signals come before all.
_GRAVITY = (1, 5, 6, 3, 4, 2)

#: Bytes of a list of sources.
_MAX_LIST = 16 << 20

_EXAMPLES = {
    "ckconv batch models/* --to gguf --into gguf/ --quantize q4_k_m": "every model to gguf/NAME/, quantized",
    "ckconv batch --from-file list.txt --to mlx --into mlx/": "the models that a file lists",
}


@click.command("batch", cls=Sections, examples=_EXAMPLES, context_settings=CONTEXT)
@click.argument("sources", metavar="SRC...", nargs=-1, type=PATH)
@click.option(
    "--from-file", type=PATH, metavar="LIST", help="Also convert what LIST names, one model per line; - is stdin."
)
@click.option(
    "-o", "--into", type=PATH, required=True, metavar="DIR", help="Where every model gets a directory of its own."
)
@click.option("--from", "source_format", type=FormatName(), help="Read every SRC as this format.")
@click.option("--to", type=FormatName(), required=True, help="Write this format.")
@conversion_options
@cluster_option
@writing_options
@common_options
@click.pass_context
def command(
    context: click.Context, /, sources: tuple[Path, ...], from_file: Path | None, into: Path, **flags: Any
) -> int:
    """Convert many models, each to DIR/NAME with its conversion record.

    NAME is that of SRC without its suffix.

    Outputs that are there and fit their records are not written again, so the same command goes on with a batch that
    was interrupted. A model that fails does not stop the others. As each one ends, stdout gets a line of JSON, or on a
    terminal one for people.
    """
    from ckconv.conversion.planning import at_work
    from ckconv.conversion.run import make_folder
    from ckconv.plan.quantizing import check_values

    settings = settings_of(context)
    options, adapters = options_of(flags), adapters_of(flags)
    defaults = default_options(context)

    def checked(options: Options) -> Options:
        check_values(options)
        return options

    options = where_it_counts(options, defaults, checked)
    flags["origins"] = origins(context)
    models = _models([*sources, *(_listed(from_file) if from_file else ())], into)
    context.with_resource(at_work(options.families, flags["jobs"]))
    with interruptible(last=True):
        if not flags["dry_run"]:
            make_folder(into)  # it stays, whatever comes of it: another batch may have begun to use it
        try:
            batch = Batch(flags, options, defaults, adapters, settings, max(len(model.target) for model in models))
            if flags["cluster"]:
                from ckconv.conversion.cluster import connected

                with connected(flags["cluster"]) as executor:
                    batch.run_on(executor, models)
            else:
                batch.run(models)
        finally:
            if sys.stdout.isatty() and not (settings.json or settings.quiet):
                render.print_lines([_counts(models)])
    found = {model.exit_status for model in models}
    return next((status for status in _GRAVITY if status in found), 0)


def _listed(path: Path) -> Iterator[Path]:
    """Sources that a file names, one a line; empty lines count for nothing."""
    if str(path) == "-":
        if sys.stdin is None:
            raise InputError("input.unreadable", "stdin is closed")
        try:
            data = sys.stdin.buffer.read(_MAX_LIST + 1)
        except OSError as error:
            raise unreadable(error, path) from error
        if len(data) > _MAX_LIST:
            raise InputError("input.text", f"a list has at most {_MAX_LIST:,} bytes", path=path)
    else:
        data = read_document(path, Document("the list", "input.text", "input.text", _MAX_LIST))
    if b"\0" in data:
        raise InputError("input.text", "is not a list of paths: it holds a NUL character", path=path)
    yield from (as_path(os.fsdecode(line)) for line in data.splitlines() if line.strip())


def _models(sources: Sequence[Path], into: Path) -> list[Model]:
    """List the models, and the place of each."""
    if not sources:
        raise UsageError("usage", "nothing to convert: give SRC... or --from-file LIST")
    return [Model(str(source), place) for source, place in targets_in(sources, into)]


def _line(model: Model, longest: int) -> str:
    """Line for people about a model, as wide as the terminal."""
    what = f"[{model.error['code']}]" if model.error else render.size(model.bytes or 0)
    end = f"  {what:>9}  {model.seconds:>7.1f} s"
    room = max((render.width(err=False) or sys.maxsize) - 13 - len(end), render.NARROWEST // 3)
    return f"{model.status:<11}  {render.shortened(model.target, room):<{min(longest, room)}}{end}"


def _counts(models: Sequence[Model]) -> str:
    """How many became what."""
    found = Counter(model.status for model in models)
    left = found.pop("", 0)
    counts = [f"{count:,} {status}" for status, count in found.items()]
    return ", ".join([*counts, *([f"{left:,} not begun"] if left else [])])


#: Flags that a worker gets.
_SENT = ("to", "source_format", "checksums", "with_map", "force", "dry_run", "no_verify", "origins")

#: Version of a line's shape.
SCHEMA = 1


@dataclass
class Model:
    """Model of a batch, with the fields of its line.

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
    """Flags and output that all models of a batch share."""

    def __init__(
        self,
        flags: Mapping[str, Any],
        options: Options,
        defaults: set[str],
        adapters: Sequence[tuple[Path, float]],
        settings: Settings,
        longest: int = 0,
    ) -> None:
        """Nothing is done yet.

        Args:
            defaults: options of the environment or a file, which count for models that they have a say in.
            longest: how long names of targets are.
        """
        self._defaults = defaults
        self._flags, self._options, self._adapters, self._settings = flags, options, adapters, settings
        self._longest = longest
        self._lines = render.Lines(shown=settings.json or not settings.quiet)

    def run(self, models: Sequence[Model]) -> None:
        """Convert all; a failure is the model's own.

        Raises:
            Interrupted: a signal came; its model's line says so.
            OutputError: ``output.write``, stdout could not be written.
        """
        for model in models:
            started = time.monotonic()
            try:
                convert(model, self._flags, self._options, self._defaults, self._adapters, self._settings)
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
                self._defaults,
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
                    render.print_error(error, self._settings)
        except Interrupted as error:
            raise _interrupted(error, models) from error
        self._lines.check()

    def _print(self, model: Model) -> None:
        if sys.stdout.isatty() and not (self._settings.json or self._settings.quiet):
            render.print_lines([_line(model, self._longest)])
        else:
            self._lines.print({"schema": SCHEMA, **asdict(model), "source": shown(model.source)})

    def _failed(self, model: Model, error: Exception) -> None:
        check()  # a signal's exception may come out of an import as an ImportError
        if self._settings.debug:
            raise error
        known = render.as_error(error)
        _fail(model, known, "failed")
        render.print_error(known, self._settings)


class Job(NamedTuple):
    """Model for another process, with all that converts it."""

    version: str
    flags: Mapping[str, Any]
    options: Options
    defaults: set[str]
    adapters: Sequence[tuple[str, float]]
    jobs: int | None
    model: Model


def converted(job: Job) -> tuple[Model, CkconvError | None]:
    """Convert a model in a fresh process, and report the result.

    Raises:
        OutputError: ``cluster.version``.
    """
    from ckconv.conversion.planning import at_work
    from ckconv.conversion.resume import check_version

    check_version(job.version)
    model, started, adapters = job.model, time.monotonic(), [(as_path(path), weight) for path, weight in job.adapters]
    failure: CkconvError | None = None
    with at_work(job.options.families, job.jobs or 1):
        for again in (True, False):
            try:
                convert(model, job.flags, job.options, job.defaults, adapters)
            except Exception as error:
                failure = render.as_error(error)
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
    defaults: set[str],
    adapters: Sequence[tuple[Path, float]],
    settings: Settings | None = None,
) -> None:
    """Convert a model, or find it there.

    Args:
        settings: of whoever watches.
    """
    from ckconv.comparison.verify import found_there
    from ckconv.conversion.planning import prepare
    from ckconv.conversion.run import run
    from ckconv.conversion.sidefiles import Facts, last_files, recorded
    from ckconv.publish.journal import bring_back

    declare(None)  # what was true of the model before
    bring_back(Path(model.target))
    counting = {*defaults}
    plan, place = where_it_counts(
        options,
        counting,
        lambda options: prepare(
            as_path(model.source),
            model.target,
            to=flags["to"],
            source_format=flags["source_format"],
            adapters=adapters,
            options=options,
        ),
    )
    place = place._replace(typed=False)
    followed(Path(model.target), force=False, typed=False)
    facts = Facts(plan, adapters)
    last = last_files(plan, place, checksums=flags["checksums"], record=True, facts=facts)
    model.format, model.version = plan.format, plan.version or format_of(plan.format).version or None
    model.bytes = plan.nbytes
    left = {option.flag for option in OPTIONS if option.name in defaults - counting}
    found = {flag: origin for flag, origin in flags["origins"].items() if flag not in left}
    plan = replace(plan, notes=(*origin_notes(found), *plan.notes))
    model.notes = [*plan.notes]
    extra = [MAP_NAME] if flags["with_map"] else []
    needed = [*(item.path for item in last), *(Path(model.target, name) for name in extra)]
    there: tuple[NewFile, ...] = ()
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
    with render.ProgressLine(settings or Settings(quiet=True), model.target) as line:
        report = run(
            plan,
            place,
            force=flags["force"],
            verify=not flags["no_verify"],
            on_request=extra,
            last=last,
            watcher=line,
        )
    model.status, model.verified, model.notes = "converted", report.verified, [*report.plan.notes]
    model.files = _files(report.files)


def _interrupted(error: Interrupted, models: Sequence[Model]) -> Interrupted:
    done = sum(one.status in ("converted", "there") for one in models)
    what = f"interrupted; {done:,} of {len(models):,} models are done; the same command continues"
    return Interrupted(error.signal_number, what, (error.message, *error.details))


def _fail(model: Model, error: CkconvError, status: str) -> None:
    model.status, model.exit_status, model.error = status, error.exit_code, render.error_facts(error)


def _files(files: Iterable[NewFile]) -> list[dict[str, Any]]:
    return [{"path": str(file.path), "bytes": file.nbytes, "sha256": file.sha256} for file in files]
