"""``ckconv edit SRC [DST]``."""

from __future__ import annotations

from pathlib import Path

import click

from ckconv.cli.conversion import flag, pairs_of
from ckconv.cli.progress import ProgressLine
from ckconv.cli.settings import CONTEXT, PATH, common_options, settings_of


@click.command("edit", context_settings=CONTEXT)
@click.argument("src", type=PATH)
@click.argument("dst", required=False)
@flag("--set-meta")
@flag("--drop-meta")
@click.option("--in-place", is_flag=True, help="Replace SRC by the new file once that is complete and verified.")
@click.option("-f", "--force", is_flag=True, help="Replace an existing DST, atomically.")
@common_options
@click.pass_context
def command(
    context: click.Context,
    src: Path,
    dst: str | None,
    set_meta: tuple[str, ...],
    drop_meta: tuple[str, ...],
    in_place: bool,
    force: bool,
) -> None:
    """Write SRC again with another header: its tensors stay byte for byte.

    No byte of an existing file is overwritten: with --in-place, too, a new file takes SRC's name at the end.
    """
    from ckconv.api import edit
    from ckconv.cli.report import print_report
    from ckconv.errors import UsageError
    from ckconv.signals import interruptible, noted

    settings = settings_of(context)
    if (dst is None) != in_place:
        raise UsageError("usage", "give either DST or --in-place", hint="ckconv edit --help")
    with interruptible(last=True):
        with ProgressLine(settings, dst or str(src)) as line:
            report = edit(src, dst, set_meta=pairs_of(set_meta), drop_meta=drop_meta, force=force, progress=line)
        with noted():
            print_report(report, settings, err=False)
