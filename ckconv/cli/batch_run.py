"""The models of a batch, one after the other: each is converted, found there, or fails for itself."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckconv.cli.conversion import MAP_NAME
from ckconv.cli.progress import ProgressLine
from ckconv.cli.render import Lines, as_error, error_facts, print_error
from ckconv.cli.settings import Settings
from ckconv.errors import CkconvError, Interrupted, shown
from ckconv.io.addresses import as_path

if TYPE_CHECKING:
    from ckconv.engine.settle import Written
    from ckconv.options import Options

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
                self._convert(model)
            except Interrupted as error:
                _fail(model, error, "interrupted")
                done = sum(one.status in ("converted", "there") for one in models)
                what = f"interrupted; {done:,} of {len(models):,} models are done, the same command goes on"
                raise Interrupted(error.signal_number, what, (error.message, *error.details)) from error
            except Exception as error:
                self._failed(model, error)
            finally:
                model.seconds = round(time.monotonic() - started, 3)
                self._lines.print({"schema": SCHEMA, **asdict(model), "source": shown(model.source)})
        self._lines.check()

    def _failed(self, model: Model, error: Exception) -> None:
        from ckconv.signals import check

        check()  # a signal's exception may come out of an import as an ImportError
        if self._settings.debug:
            raise error
        known = as_error(error)
        _fail(model, known, "failed")
        print_error(known, self._settings)

    def _convert(self, model: Model) -> None:
        from ckconv.api import prepare
        from ckconv.engine.conversion_record import recorded
        from ckconv.engine.fitting import found_there
        from ckconv.engine.late import side_files
        from ckconv.engine.run import run
        from ckconv.errors import OutputError
        from ckconv.signals import declare

        declare(None)  # what was true of the model before
        flags = self._flags
        plan, place = prepare(
            as_path(model.source),
            model.target,
            to=flags["to"],
            source_format=flags["source_format"],
            adapters=self._adapters,
            options=self._options,
        )
        late = side_files(plan, place, checksums=flags["checksums"], record=True, adapters=self._adapters)
        model.format, model.version, model.bytes = plan.format, plan.version or None, plan.nbytes
        model.notes = [*plan.notes]
        extra = [MAP_NAME] if flags["with_map"] else []
        needed = [*(item.path for item in late), *(Path(model.target, name) for name in extra)]
        there: tuple[Written, ...] = ()
        try:
            there = found_there(plan, place, needed, recorded(plan, place, self._adapters))
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
        with ProgressLine(self._settings, model.target) as line:
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


def _fail(model: Model, error: CkconvError, status: str) -> None:
    model.status, model.exit_status, model.error = status, error.exit_code, error_facts(error)


def _files(files: Iterable[Written]) -> list[dict[str, Any]]:
    return [{"path": str(file.path), "bytes": file.nbytes, "sha256": file.sha256} for file in files]
