"""``ckconv convert --side-files-only``: what lies beside weights, without them."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckconv.cli.render import print_report_lines
from ckconv.core.metadata import CONFIG_NAME
from ckconv.errors import UsageError, counted, shown
from ckconv.formats import format_of, whole_format
from ckconv.formats.destination import without_say_beside
from ckconv.formats.safetensors.spec import INDEX_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckconv.cli.settings import Settings
    from ckconv.formats.destination import Destination
    from ckconv.options import Options
    from ckconv.plan.steps import Plan
    from ckconv.publish.files import SideFile

#: Flags about weights, and about files that tell of them, beside those of the table of options.
_ABOUT_WEIGHTS = (
    "adapters", "attest", "checksums", "cluster", "jobs", "manifest", "mmproj", "no_verify", "record", "resume",
    "with_map",
)  # fmt: skip


def check_flags(flags: Mapping[str, Any], options: Options) -> None:
    """Refuse flags that have no say where no weights are written.

    Raises:
        UsageError: ``usage.flag``.
    """
    names = {"adapters": "adapter", "with_map": "map"}
    given = [f"--{names.get(name, name).replace('_', '-')}" for name in _ABOUT_WEIGHTS if flags[name]]
    given += without_say_beside(options)
    if given:
        raise UsageError("usage.flag", f"{given[0]} is about weights, and --side-files-only writes none")


def planned(src: Path, dst: str, *, to: str | None, source_format: str | None, options: Options) -> Any:
    """Plan and place of an output whose weights nobody writes: blocks that it has no type for are no obstacle.

    Raises:
        UnsupportedError: ``plan.refused``, the family, the configuration or the tokenizer has no form there.
        UsageError: ``usage.side-file``, the format has nothing beside its weights that is of use without them, or DST
            is not a directory.
    """
    from ckconv.api import prepare
    from ckconv.formats.destination import named_by_directory

    to = to or (None if named_by_directory(dst) else whole_format())
    plan, place = prepare(src, dst, to=to, source_format=source_format, options=options)
    adapter = plan.index.adapter is not None
    if adapter or not format_of(place.format).described_beside:
        raise UsageError(
            "usage.side-file",
            f"{plan.format} has no files that are of use without its weights: they describe them, or are inside",
            hint=None if adapter else "--to hf writes what transformers and vLLM read beside a GGUF",
        )
    if place.directory is None:
        raise UsageError("usage.side-file", "side files have names of their own", hint="name a directory: DST/")
    if plan.refusals:
        decoded = replace(options, dequantize=True, allow_lossy=True)
        plan, place = prepare(src, dst, to=to, source_format=source_format, options=decoded)
    plan.check()
    return plan, place


def write_side_files(
    plan: Plan, place: Destination, settings: Settings, *, config: Path | None, force: bool, dry_run: bool
) -> None:
    """Publish what the plan has beside the weights, all of it or nothing, and say what there is.

    Args:
        config: where ``config.json`` goes, if not into the directory.

    Raises:
        OutputError: as of a conversion.
    """
    from ckconv.cli.report import print_plan, print_report
    from ckconv.conversion.leftovers import check_leftovers, gone_notes, left_documents
    from ckconv.conversion.run import Report
    from ckconv.io.files import Files
    from ckconv.publish.staging import Outputs, Small

    started = time.monotonic()
    assert place.directory is not None
    container = plan.contents()
    plan = replace(plan, files=(), left_out=(), notes=container.notes)
    found: dict[str, SideFile] = {
        name: content
        for name, content in container.side_files.items()
        if name not in container.on_request and not name.endswith(INDEX_SUFFIX)
    }
    if config is not None and CONFIG_NAME not in found:
        raise UsageError("usage.side-file", f"{plan.target_name} has no {CONFIG_NAME}")
    side = {
        config if config is not None and name == CONFIG_NAME else place.directory / name: Small(name, content)
        for name, content in found.items()
    }
    if not dry_run:
        inputs = (*plan.index.files, *plan.index.side_files)
        last = [path for path, small in side.items() if small.name == CONFIG_NAME]
        gone = left_documents(plan, place, list(side)) if force else []
        look = partial(check_leftovers, plan, place, (), side, gone)
        with (
            Files(plan.index.identities) as files,
            Outputs({}, side, directory=place.directory, force=force, inputs=inputs, last=last, gone=gone) as outputs,
        ):
            look()
            files.check_unchanged()
            outputs.publish(look)
        plan = replace(plan, notes=(*plan.notes, *gone_notes(gone), *outputs.notes))
    paths = tuple(side)
    if settings.json:
        if dry_run:
            print_plan(plan, place.name, settings)
        else:
            print_report(Report(plan, place.name, (), paths, None, time.monotonic() - started), settings, err=False)
    elif not settings.quiet:
        print_report_lines(_lines(plan, place, paths, dry_run=dry_run), settings)


def _lines(plan: Plan, place: Destination, paths: Sequence[Path], *, dry_run: bool) -> list[str]:
    names = ", ".join(path.name for path in paths)
    return [
        f"{place.name}  {counted(len(paths), 'file')} for {shown(plan.index.path.name)} ({plan.index.architecture}),"
        " no weights",
        f"  {names}",
        *(f"  note: {note}" for note in plan.notes),
        *(["nothing written"] if dry_run else []),
    ]
