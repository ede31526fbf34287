"""``ckconv edit SRC [DST]``."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import click

from ckconv.cli import flags, render
from ckconv.cli.settings import CONTEXT, PATH, common_options, flag_notes, forget_default, origin_of, settings_of
from ckconv.core.lazy import replace
from ckconv.errors import OutputError, UsageError, shown
from ckconv.system.signals import interruptible, noted


@click.command("edit", context_settings=CONTEXT)
@click.argument("src", type=PATH)
@click.argument("dst", required=False)
@click.option("-o", "--output", metavar="DST", help="The output, if it is not the last argument.")
@flags.flag("--set-meta")
@flags.flag("--drop-meta")
@click.option("--in-place", is_flag=True, help="Replace SRC by the new file once that is complete and verified.")
@click.option("-n", "--dry-run", is_flag=True, help="Print what would change; write nothing.")
@click.option("-f", "--force", is_flag=True, help="Replace an existing DST, atomically.")
@common_options
@click.pass_context
def command(
    context: click.Context,
    src: Path,
    dst: str | None,
    output: str | None,
    set_meta: tuple[str, ...],
    drop_meta: tuple[str, ...],
    in_place: bool,
    dry_run: bool,
    force: bool,
) -> None:
    """Write SRC again with other metadata, and print each change.

    Its tensors stay byte for byte.

    KEY is a key of a GGUF, or of a checkpoint's config.json, generation_config.json or tokenizer_config.json;
    FILE:KEY names one of these, __metadata__.KEY a key of the safetensors headers. A token is set by its text
    (eos_token="<|im_end|>"), a value from a file by KEY=@FILE. --in-place also writes a new file and renames it over
    SRC when it is complete.
    """
    from ckconv.cli.report import print_plan, print_report
    from ckconv.conversion.planning import prepare_edit
    from ckconv.conversion.run import run

    settings = settings_of(context)
    if "output" in origin_of(context) and (dst is not None or in_place):  # the command line names another place
        forget_default(context, "output")
        output = None
    if "in_place" in origin_of(context) and (dst is not None or output is not None):
        forget_default(context, "in_place")
        in_place = False
    if dst is not None and output is not None:
        raise UsageError("usage", f"two outputs: {dst} and -o {output}", hint="name one of them")
    dst = output if dst is None else dst
    if (dst is None) != in_place:
        raise UsageError("usage", "give either DST or --in-place", hint="ckconv edit --help")
    with interruptible(last=True):
        plan, place, last = prepare_edit(src, dst, set_meta=flags.pairs_of(set_meta), drop_meta=drop_meta)
        plan = replace(plan, notes=(*flag_notes(context), *plan.notes))
        plan.check()
        if dry_run:
            print_plan(plan, dst or str(src), settings)
            return
        with render.ProgressLine(settings, dst or str(src)) as line:
            try:
                report = run(plan, place, force=force or in_place, in_place=in_place, last=last, watcher=line)
            except OutputError as error:
                if error.code == "output.is-input" and error.path and src.is_file() and src.samefile(error.path):
                    changes = [f"--set-meta {quote(text)}" for text in set_meta]
                    changes += [f"--drop-meta {quote(text)}" for text in drop_meta]
                    there = " ".join(["ckconv edit", quote(shown(src)), "--in-place", *changes])
                    error.hint = f"{there} puts the new file in the place of SRC; to keep SRC, {error.hint}"
                raise
        with noted():
            print_report(report, settings, err=False)
