"""The help of a command with many flags: in groups, with examples first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

#: Group -> its flags, in order: daily ones first. The flags of a group that a command does not have are passed over.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "Daily": (
        "--output", "--into", "--from-file", "--to", "--quantize", "--dequantize", "--adapter", "--max-shard-size",
        "--dry-run", "--force", "--checksums", "--record", "--html",
    ),
    "The model": (
        "--mmproj", "--base", "--context", "--drop", "--set-meta", "--drop-meta", "--strict", "--family", "--from",
    ),
    "The run": ("--jobs", "--resume", "--cluster", "--no-verify", "--weights", "--rebuild"),
    "C-Kernel-Engine": (
        "--engine", "--bump-version", "--template", "--config", "--config-out", "--manifest", "--map", "--trainable",
        "--wrapped",
    ),
    "Expert": (
        "--dtype", "--decode", "--allow-lossy", "--imatrix", "--tie", "--untie", "--fuse", "--names", "--pack",
        "--rope-layout", "--dtype-codes", "--tensor-scales", "--attest", "--source-record", "--no-source-record",
        "--side-files-only", "--follow-links",
    ),
    "Every command": (
        "--quiet", "--verbose", "--json", "--no-color", "--progress", "--preset", "--timeout", "--debug", "--help",
    ),
}  # fmt: skip


class Sections(click.Command):
    """A command whose flags stand in :data:`GROUPS`; what is in none of them stands at the end.

    Args:
        examples: command line -> what it does.
    """

    def __init__(self, *arguments: Any, examples: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.examples = examples or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; ``--dequantize=GLOB`` is ``--decode GLOB``, since a flag's value could otherwise eat a path."""
        whole = "--dequantize="
        return super().parse_args(
            ctx, [word.replace(whole, "--decode=", 1) if word.startswith(whole) else word for word in args]
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, then a section for every group."""
        if self.examples:
            with formatter.section("Examples"):
                for line, meaning in self.examples.items():
                    formatter.write_text(line)
                    with formatter.indentation():
                        formatter.write_text(meaning)
        records = {
            option: record
            for option in self.get_params(ctx)
            if isinstance(option, click.Option) and (record := option.get_help_record(ctx))
        }
        for title, flags in GROUPS.items():
            found = [option for flag in flags for option in records if flag in option.opts]
            if rows := [records.pop(option) for option in found]:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if records:
            with formatter.section("Further"):
                formatter.write_dl([*records.values()])
