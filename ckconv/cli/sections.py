"""The help of a command with many flags: in groups, with examples first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

#: Group -> its flags, in order. The flags of a group that a command does not have are passed over.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "Formats": ("--from", "--to", "--bump-version", "--engine", "--names", "--max-shard-size"),
    "Types of values": ("--dtype", "--dequantize", "--decode", "--quantize", "--imatrix", "--allow-lossy"),
    "What the model is": (
        "--adapter", "--base", "--context", "--drop", "--tie", "--untie", "--set-meta", "--drop-meta", "--family",
    ),
    "How tensors are stored": (
        "--fuse", "--rope-layout", "--dtype-codes", "--tensor-scales", "--pack", "--trainable", "--wrapped",
    ),
    "What lies beside": (
        "--template", "--config", "--config-out", "--manifest", "--map", "--mmproj", "--checksums", "--record",
        "--attest", "--source-record", "--no-source-record", "--side-files-only", "--follow-links",
    ),
    "The run": (
        "--from-file", "--into", "--resume", "--cluster", "--jobs", "--weights", "--rebuild", "--html", "--no-verify",
        "--strict", "--dry-run", "--force",
    ),
    "Every command": ("--quiet", "--verbose", "--json", "--no-color", "--progress", "--timeout", "--debug", "--help"),
}  # fmt: skip


class Sections(click.Command):
    """A command whose flags stand in :data:`GROUPS`; what is in none of them stands at the end.

    Args:
        examples: command line -> what it does.
    """

    def __init__(self, *arguments: Any, examples: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.examples = examples or {}

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
