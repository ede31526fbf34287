"""``ckconv verify PATH [SRC]``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckconv.cli.progress import ProgressLine
from ckconv.cli.render import container, print_json, print_lines
from ckconv.cli.settings import CONTEXT, PATH, common_options, settings_of
from ckconv.errors import InputError, VerifyError, counted

if TYPE_CHECKING:
    from ckconv.model.index import TensorIndex
    from ckconv.readers.record import OpenRecord


#: What says nothing of the output's content: there was none to look at.
_NOT_THERE = ("input.missing", "input.directory", "input.special", "input.unreadable")


@click.command("verify", context_settings=CONTEXT)
@click.argument("path", type=PATH)
@click.argument("src", type=PATH, required=False)
@click.option(
    "--config",
    type=PATH,
    help="The config.json of a bump file, if not beside it.",
)
@click.option("--drop", multiple=True, metavar="GLOB", help="A source tensor left out on purpose; repeatable.")
@click.option("--base", type=PATH, help="The model that an adapter was made for.")
@common_options
@click.pass_context
def command(
    context: click.Context, path: Path, src: Path | None, config: Path | None, drop: tuple[str, ...], base: Path | None
) -> None:
    """Check a file's structure and checksums; with SRC, every tensor against its source.

    Padding must be zero and so must placeholders of tensors that the source does not have. Exit 5 if anything is
    not what it should be, with every tensor at fault named.
    """
    from ckconv.readers.bump_map import MAP_NAME, check_map
    from ckconv.readers.detect import open_index
    from ckconv.verification import verify_soundly

    settings = settings_of(context)
    source = open_index(src, base=base) if src else None
    try:
        out = open_index(path, config_path=config, base=base)
    except InputError as error:
        if source is None or error.code in _NOT_THERE:
            raise
        # Held against its source, a file that cannot even be read is a failed verification.
        raise _failed(error) from error
    with ProgressLine(settings) as line:
        line.begin("verifying", out.nbytes + (source.nbytes if source else 0))
        found = verify_soundly(out, source, left_out=drop, progress=line)
    record = _record(out)
    mapped = check_map(out)
    if settings.json:
        print_json(
            {
                "path": str(path),
                "source": str(src) if src else None,
                "format": out.format,
                "version": out.version or None,
                "tensors": found.tensors,
                "placeholders": found.blank,
                "compared": found.compared,
                "rounded": found.rounded,
                "payload_sha256": found.payload_sha256 or None,
                "map": mapped,
                "source_record": str(record.path) if record else None,
            },
            schema=2,
        )
        return
    if settings.quiet:
        return
    tensors = counted(found.tensors, "tensor")
    against = f"verified {found.tensors:,}/{tensors} against {src}" if src else tensors
    rounded = f", {found.rounded:,} of them rounded" if found.rounded else ""
    blank = f", {counted(found.blank, 'placeholder')} zero" if found.blank else ""
    checks = "structure and padding right" + (
        f", payload sha256 {found.payload_sha256}" if found.payload_sha256 else ", the format has no checksum"
    )
    checks += f", {MAP_NAME} fits" if mapped else ""
    lines = [f"{path}  {container(out.format, out.version, 'v')}  {against}{rounded}{blank}", f"  {checks}"]
    if record:
        lines.append(f"  {record.path.name} belongs to it: {record.record.source} ({record.record.format})")
    print_lines(lines)


def _failed(error: InputError) -> VerifyError:
    """What was found, as a failed verification."""
    return VerifyError(
        error.code, error.message, path=error.path, tensor=error.tensor, offset=error.offset, found=error.found,
        allowed=error.allowed, hint=error.hint, details=error.details,
    )  # fmt: skip


def _record(index: TensorIndex) -> OpenRecord | None:
    """The record beside a bump file, checked whole; one whose digests do not fit is a failed verification."""
    if index.format != "bump":
        return None
    from ckconv.readers.record import record_beside

    try:
        record = record_beside(index)
        if record is not None:
            record.check()
    except InputError as error:
        if error.code in ("record.foreign", "record.content"):
            raise _failed(error) from error
        raise
    return record
