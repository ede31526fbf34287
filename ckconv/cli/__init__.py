"""The command line: one module a verb, imported only when it is called."""

from __future__ import annotations

import importlib
from typing import Any

import click

from ckconv.cli.settings import CONTEXT, common_options
from ckconv.core.version import __version__

#: verb -> what `ckconv --help` says of it. The module has the verb's name; its command is called ``command``.
VERBS: dict[str, str] = {
    "convert": "Convert a model; the output's format from its name, or --to.",
    "batch": "Convert many models, each to a directory of its own; goes on where it was interrupted.",
    "inspect": "Show what is in a file: format, architecture, config, tensors, metadata.",
    "verify": "Check structure and checksums; with SRC, every tensor against its source.",
    "diff": "Compare two models of any formats, value by value.",
    "edit": "Write a model again with other metadata; its tensors stay byte for byte.",
    "formats": "List the directions, architectures and tensor types of this build.",
    "completion": "Print the completion script for bash, zsh or fish.",
}


class ReaderGone(Exception):
    """Nobody reads our stdout any more, which is their right."""


class Verbs(click.Group):
    """A group whose commands are found by name, so that start-up imports one of them at most."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's module."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"ckconv.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; of one that there is not, the verb that is spelt most like it stands in the error."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            near = get_close_matches(args[0], VERBS, n=1) if args else []
            if not near:
                raise
            message = f"{error.message.rstrip('.')}. Did you mean {near[0]}?"
            raise click.UsageError(message, ctx) from None

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        """Parse the options, which may print the help; like :meth:`invoke` where nobody reads it."""
        try:
            return super().make_context(*arguments, **more)
        except BrokenPipeError as error:
            raise ReaderGone from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; click itself would end the process with status 1 where stdout's reader went away."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGone from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=Verbs, context_settings=CONTEXT, no_args_is_help=True)
@click.version_option(__version__, prog_name="ckconv", message="%(prog)s %(version)s")
@common_options
def main(**_: Any) -> None:
    """Convert model weights between formats, exactly, and verify every tensor.

    Results go to stdout, everything else to stderr. Exit status: 0 done, 1 a bug, 2 usage, 3 malformed input,
    4 unsupported or lossy, 5 verification failed, 6 the output could not be written.
    """
