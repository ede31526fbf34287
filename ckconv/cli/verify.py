"""``ckconv verify PATH [SRC]``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ckconv.cli.flags import (
    FormatName,
    adapters_of,
    conversion_options,
    default_options,
    one_or_two,
    options_of,
    where_it_counts,
)
from ckconv.cli.render import ProgressLine, container, print_json, print_report_lines
from ckconv.cli.settings import (
    CONTEXT,
    PATH,
    Integer,
    Sections,
    Settings,
    common_options,
    flag_notes,
    force_option,
    forget_default,
    page_option,
    settings_of,
)
from ckconv.comparison.verify import Proofs, Rebuild, check_output, rebuild
from ckconv.conversion.planning import at_work, prepare, prepare_tower
from ckconv.core.options import Options
from ckconv.core.tensors import TensorIndex
from ckconv.errors import InputError, UsageError, VerifyError, counted, shown
from ckconv.system.signals import interruptible

if TYPE_CHECKING:
    from ckconv.formats.destination import Destination
    from ckconv.plan.steps import Plan

#: Side file -> the flag that says where it is.
_NAMED = {"config.json": "config", "weights_manifest.json": "manifest"}

#: Errors after which nothing can be said about the output, because it could not be opened.
_NOT_THERE = ("input.missing", "input.directory", "input.special", "input.unreadable")


@click.command("verify", cls=Sections, context_settings=CONTEXT)
@click.argument("path", type=PATH)
@click.argument("sources", metavar="[SRC [MMPROJ]]", nargs=-1, type=PATH)
@click.option("--from", "source_format", type=FormatName(), help="Read SRC as this format.")
@click.option("--config", type=PATH, help="The config.json of a bump file, if not beside it.")
@click.option("--manifest", type=PATH, help="The weights_manifest.json of a bump file, if not beside it.")
@click.option("--weights", is_flag=True, help="Compare the tensors alone: no metadata, no tokenizer, no side files.")
@click.option(
    "--jobs",
    type=Integer(min=1),
    metavar="N",
    help="Keep N processors at work: quantize N pieces of a tensor at once; by default as many as there are.",
)
@click.option("--rebuild", is_flag=True, help="Convert SRC again as the record says, and compare every byte.")
@page_option("Write a page to FILE: what was found, PATH, and SRC beside it.")
@force_option
@conversion_options
@common_options
@click.pass_context
@interruptible(last=True)
def command(context: click.Context, /, path: Path, sources: tuple[Path, ...], **flags: Any) -> None:
    """Check a file's structure and checksums, or compare it with SRC.

    With SRC, everything in and beside PATH is compared with what SRC makes.

    SRC is planned again as it was converted: repeat the options that changed what the output says (--context,
    --set-meta, --drop), unless a conversion record (convert --record) comes with it. How values are stored is taken
    from PATH. If PATH is a checkpoint of text and tower, SRC is its text model in a GGUF, and MMPROJ its tower. Exit 5
    if anything is not what it should be, with everything at fault named.
    """
    from ckconv.formats.bump.sidefiles import MAP_NAME, check_map
    from ckconv.formats.detect import open_index
    from ckconv.formats.model import of_task, with_mmproj
    from ckconv.plan.probe import ids_beyond, numberless
    from ckconv.tokenizer.source import equal_tokens_of

    settings = settings_of(context)
    src, tower = one_or_two(sources) if sources else (None, None)
    options, adapters = options_of(flags), adapters_of(flags)
    context.with_resource(at_work(options.families, flags["jobs"]))
    page = flags["page"]
    if page is not None:
        from ckconv.cli.page import check_new, check_place, page_of_verification, write

        check_new(page, force=flags["force"])
        check_place(page, ())
    config, base = flags["config"], options.base
    opened = partial(open_index, base=base, follow_links=options.follow_links)
    source = of_task(opened(src, format=flags["source_format"], drop=options.drop), options.task) if src else None
    source = with_mmproj(source, tower) if source and tower else source
    try:
        out = opened(path, config_path=config)
    except InputError as error:
        if source is None or error.code in _NOT_THERE:
            raise
        # Held against its source, a file that cannot even be read is a failed verification.
        raise VerifyError.of(error) from error
    names = (shown(path), shown(src) if src else None)
    named = {name: flags[flag] for name, flag in _NAMED.items() if flags[flag]}
    rebuilt = _rebuilt(path, src, out, flags, named, settings) if flags["rebuild"] else None
    defaults = default_options(context)
    before = set(defaults)
    with ProgressLine(settings, str(path)) as line:
        line.begin("verifying", out.nbytes + (source.nbytes if source else 0))
        try:
            checked = where_it_counts(
                options,
                defaults,
                lambda options: check_output(
                    path, out, source, options, adapters=adapters, weights=flags["weights"], named=named, progress=line
                ),
            )
        except VerifyError as error:
            if page is not None:
                write(page, page_of_verification(names, out, source, error), force=flags["force"])
            raise
    if page is not None:
        write(page, page_of_verification(names, out, source, checked), force=flags["force"])
    found, record = checked.found, checked.source
    mapped = check_map(out)
    besides = [shown(item) for item in (checked.record, checked.sums) if item]
    opened_ones = [(shown(name or ""), index) for name, index in ((path, out), (src, source)) if index is not None]
    found_of = {name: [numberless(index), equal_tokens_of(index), *ids_beyond(index)] for name, index in opened_ones}
    for name in before - defaults:
        forget_default(context, name)
    notes = [*flag_notes(context)]
    notes += ["the text model alone: the tower of the source is not in it"] if found.without_tower else []
    notes += [f"{name}: {why}" for name, reasons in found_of.items() for why in reasons if why]
    if settings.json:
        print_json(
            {
                "path": shown(path),
                "source": shown(src) if src else None,
                "mmproj": shown(tower) if tower else None,
                "format": out.format,
                "version": out.version or None,
                "tensors": found.tensors,
                "placeholders": found.zero_filled,
                "compared": found.compared,
                "weights_only": flags["weights"],
                "rounded": found.rounded,
                "payload_sha256": found.payload_sha256 or None,
                "map": mapped,
                "source_record": shown(record.path) if record else None,
                "conversion_record": shown(checked.record) if checked.record else None,
                "checksums": shown(checked.sums) if checked.sums else None,
                "rebuilt": rebuilt._asdict() if rebuilt else None,
                "notes": notes,
            },
            schema=2,
        )
        return
    if settings.quiet:
        return
    tensors = counted(found.tensors, "tensor")
    against = f"verified {found.tensors:,}/{tensors} against {' and '.join(map(shown, sources))}" if src else tensors
    rounded = f", {found.rounded:,} of them rounded" if found.rounded else ""
    zero_filled = (
        f", {counted(found.zero_filled, 'zero-filled entry', 'zero-filled entries')}" if found.zero_filled else ""
    )
    checks = "structure and padding are valid"
    if found.payload_sha256:
        checks += f", payload sha256 {found.payload_sha256}"
    elif not checked.sums and not checked.record:
        checks += f"; {out.format} stores no checksum" + ("" if src else ": compare with SRC or a .sha256")
    checks += f", {MAP_NAME} fits" if mapped else ""
    if source is not None and not flags["weights"]:
        checks += ", metadata and side files as the source makes them"
    lines = [
        f"{shown(path)}  {container(out.format, out.version, 'v')}  {against}{rounded}{zero_filled}",
        f"  {checks}",
    ]
    if rebuilt:
        lines.append(
            f"  made again from the source: {counted(rebuilt.files, 'file')}, {rebuilt.nbytes:,} bytes, all equal"
        )
    lines += [f"  note: {note}" for note in notes]
    lines += [f"  every file is as {Path(item).name} lists it" for item in besides]
    if record:
        lines.append(f"  {record.path.name} belongs to it: {record.record.source} ({record.record.format})")
    print_report_lines(lines, settings)


def _rebuilt(
    path: Path, src: Path | None, out: TensorIndex, flags: dict[str, Any], named: dict[str, Path], settings: Settings
) -> Rebuild:
    """Every byte of the output, and what it is made of."""
    if src is None:
        raise UsageError("usage.flag", "--rebuild makes the output again: name SRC")
    options, adapters = options_of(flags), adapters_of(flags)

    def again(target: str, to: str, options: Options) -> tuple[Plan, Destination]:
        if out.facts.get("kind") == "mmproj":
            return prepare_tower(src, target, options=options)
        return prepare(src, target, to=to, source_format=flags["source_format"], adapters=adapters, options=options)

    with ProgressLine(settings, str(path)) as line:
        return rebuild(
            out, path, lambda record: Proofs(record, None).options(options, adapters), again, named=named, watcher=line
        )
