"""``ckconv batch SRC... --to FORMAT --into DIR``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ckconv.cli.conversion import adapters_of, cluster_option, conversion_options, options_of, writing_options
from ckconv.cli.fitted import NARROWEST, shortened, width
from ckconv.cli.format_name import FormatName
from ckconv.cli.render import print_lines, size
from ckconv.cli.sections import Sections
from ckconv.cli.settings import CONTEXT, PATH, common_options, settings_of
from ckconv.errors import InputError, UsageError, counted, listed, shown, unreadable

if TYPE_CHECKING:
    from ckconv.cli.batch_run import Model

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
    """Convert many models, each to DIR/NAME with its conversion record; NAME is that of SRC without its suffix.

    What is there and fits its record is not written again, so the same command goes on with a batch that was
    interrupted. A model that fails does not stop the others. As each one ends, stdout gets a line of JSON; on a
    terminal a table of all stands at the end.
    """
    from ckconv.cli.batch_run import Batch
    from ckconv.families.catalog import own_families
    from ckconv.io.tiles import at_once
    from ckconv.plan.choices import check_values
    from ckconv.publish.checks import check_place
    from ckconv.publish.files import failing
    from ckconv.signals import interruptible

    settings = settings_of(context)
    options, adapters = options_of(flags), adapters_of(flags)
    check_values(options)
    models = _models([*sources, *(_listed(from_file) if from_file else ())], into)
    context.with_resource(own_families(options.families))
    context.with_resource(at_once(flags["jobs"]))
    with interruptible(last=True):
        if not flags["dry_run"]:
            check_place(into)
            with failing(into):  # it stays, whatever comes of it: another batch may have begun to use it
                into.mkdir(exist_ok=True)
        try:
            batch = Batch(flags, options, adapters, settings)
            if flags["cluster"]:
                from ckconv.conversion.cluster import connected

                with connected(flags["cluster"]) as executor:
                    batch.run_on(executor, models)
            else:
                batch.run(models)
        finally:
            if sys.stdout.isatty() and not (settings.json or settings.quiet):
                print_lines(_table(models, width(err=False)))
    found = {model.exit_status for model in models}
    return next((status for status in _GRAVITY if status in found), 0)


def _listed(path: Path) -> Iterator[Path]:
    """Sources that a file names, one a line; empty lines count for nothing."""
    from ckconv.io.addresses import as_path
    from ckconv.io.json import Document, read_document

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
    """What is converted, and where each goes.

    Raises:
        UsageError: there is none; ``usage.target``, two would go to one place, or one to its own.
    """
    from ckconv.cli.batch_run import Model

    if not sources:
        raise UsageError("usage", "nothing to convert: give SRC... or --from-file LIST")
    named: dict[str, list[Path]] = {}
    for source in sources:
        named.setdefault(_name(source), []).append(source)
    faults = [f"{name}: {', '.join(map(shown, same))}" for name, same in named.items() if len(same) > 1]
    if faults:
        message = f"{counted(len(faults), 'name')} in {into} would be used by several models"
        hint = "convert them into different directories, or rename them"
        raise UsageError("usage.target", message, hint=hint, details=listed(faults))
    for name, (source,) in named.items():
        if os.path.realpath(into / name) in (os.path.realpath(source), os.path.realpath(source.parent)):
            raise UsageError("usage.target", f"{into / name} is where the source is", hint="name another --into DIR")
    return [Model(str(source), f"{into / name}/") for name, (source,) in named.items()]


def _name(source: Path) -> str:
    """What a model is called: a directory as it is (of a download cache, as the repository), a file without suffix."""
    from ckconv.families.gguf_metadata import directory_name
    from ckconv.formats import FORMATS
    from ckconv.formats.gguf.values import parse_shard_name
    from ckconv.formats.safetensors.spec import INDEX_SUFFIX

    if os.path.isdir(source):  # noqa: PTH112 - never raises
        return directory_name(source) or "model"
    name = source.name.partition("?")[0].removesuffix(INDEX_SUFFIX)
    shard = parse_shard_name(name)
    if shard:
        return shard.stem
    if os.path.lexists(source) or any(Path(name).suffix in row.endings for row in FORMATS):
        return Path(name).stem or "model"
    return name.partition("@")[0].removeprefix("ollama:").replace(":", "-") or "model"


def _table(models: Sequence[Model], columns: int | None) -> Iterator[str]:
    """Every model that was come to in a line of at most so many columns, then how many became what."""
    begun = [model for model in models if model.status]
    found = [f"[{model.error['code']}]" if model.error else size(model.bytes or 0) for model in begun]
    ends = [f"  {what:>9}  {model.seconds:>7.1f} s" for model, what in zip(begun, found, strict=True)]
    room = max((columns or sys.maxsize) - 13 - max(map(len, ends), default=0), NARROWEST // 3)
    names = [shortened(model.target, room) for model in begun]
    longest = max(map(len, names), default=0)
    for model, name, end in zip(begun, names, ends, strict=True):
        yield f"{model.status:<11}  {name:<{longest}}{end}"
    counts = {
        status: sum(model.status == status for model in models) for status in dict.fromkeys(m.status for m in begun)
    }
    left = [f"{len(models) - len(begun):,} not begun"] if len(begun) < len(models) else []
    yield ", ".join([*(f"{count:,} {status}" for status, count in counts.items()), *left])
