"""Commands: one module a verb, imported when the verb is called."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import click
from click.core import ParameterSource

from ckconv.cli.settings import CONTEXT, common_options, flag_notes
from ckconv.core import __version__
from ckconv.errors import CkconvError, UsageError, nearest

#: verb -> what `ckconv --help` says of it. Its module has the verb's name and holds ``command``.
VERBS: dict[str, str] = {
    "convert": "Convert a model; the output's format from its name, or --to.",
    "batch": "Convert many models, each to a directory of its own; goes on where it was interrupted.",
    "inspect": "Show what is in a file: format, architecture, config, tensors, metadata.",
    "verify": "Check structure and checksums; with SRC, every tensor against its source.",
    "diff": "Compare two models of any formats, value by value.",
    "edit": "Write a model again with other metadata; its tensors stay byte for byte.",
    "learn": "Make a family file out of a checkpoint and the GGUF that somebody made of it.",
    "formats": "List the directions, architectures and tensor types of this build.",
    "completion": "Print the completion script for bash, zsh or fish.",
}


#: What other tools call a command -> what does it here.
_ELSEWHERE: dict[str, str] = {
    "quantize": "ckconv convert SRC DST --quantize q4_k_m",
    "dequantize": "ckconv convert SRC DST --dequantize",
    "merge": "ckconv convert SRC DST --adapter LORA (shards: ckconv convert DIR/ DST makes one file)",
    "fuse": "ckconv convert SRC DST --adapter LORA",
    "split": "ckconv convert SRC DST --max-shard-size 5GB",
    "hash": "ckconv inspect --hash PATH",
    "dump": "ckconv inspect --json PATH",
    "compare": "ckconv diff A B",
    "check": "ckconv verify PATH",
    "validate": "ckconv verify PATH",
    "set": "ckconv edit SRC DST --set-meta KEY=VALUE",
}

#: Names that stand for a verb.
_ALIASES = {"info": "inspect", "show": "inspect"}


class ReaderGone(Exception):
    """Nobody reads our stdout any more, which is their right."""


def _flag_notes(ctx: click.Context, error: CkconvError) -> tuple[str, ...]:
    """Flags from elsewhere, where they may be the reason of a refusal."""
    return flag_notes(ctx.meta["ckconv.context"]) if error.exit_code in (2, 4) else ()


class Verbs(click.Group):
    """Group of commands found by name; start-up imports one at most."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's module."""
        if cmd_name == version.name:
            return version
        if cmd_name not in VERBS:
            return None
        if cmd_name == completion.name:
            return completion
        command: click.Command = importlib.import_module(f"ckconv.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb and the defaults of its flags.

        For another word, name the command that does the work.
        """
        word = args[0] if args else ""
        if word == "help":
            command = self.get_command(ctx, args[1]) if len(args) > 1 else None
            args = [args[1], "--help"] if command else args
            if command is None:
                click.echo(ctx.get_help())
                ctx.exit()
        if word in _ALIASES:
            args = [_ALIASES[word], *args[1:]]
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = nearest(word, VERBS)
            if word in _ELSEWHERE:
                raise UsageError("usage", f"ckconv has no command {word!r}", hint=_ELSEWHERE[word]) from None
            if not near:
                raise
            raise click.UsageError(f"{error.message.rstrip('.')}; did you mean {near}?", ctx) from None
        if command is not None and name not in ("completion", "version", None):
            from ckconv.cli.flags import defaults_of

            found = defaults_of(command, rest, VERBS, ctx.meta.get("ckconv.preset", ""))
            ctx.default_map = {name: {key: default.value for key, default in found.items()}}
            ctx.meta["ckconv.defaults"], ctx.meta["ckconv.words"] = found, rest
        return name, command, rest

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        """Parse the options, which may print help; report a closed stdout."""
        try:
            return super().make_context(*arguments, **more)
        except BrokenPipeError as error:
            raise ReaderGone from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; for a closed stdout, click alone would exit with 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGone from error
        except CkconvError as error:
            error.details = (*error.details, *_flag_notes(ctx, error))
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


def _versions() -> Iterator[str]:
    """Versions that a report of a fault needs."""
    import sys
    from importlib.metadata import PackageNotFoundError, version

    yield f"ckconv {__version__}"
    yield f"Python {sys.version.partition(' ')[0]}"
    for name in ("gguf", "libgguf", "numpy", "safetensors"):
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"{name} is not installed"


@click.group(cls=Verbs, context_settings=CONTEXT, no_args_is_help=True)
@click.version_option(__version__, "-V", "--version", prog_name="ckconv", message="%(prog)s %(version)s")
@common_options
def main(**_: Any) -> None:
    """Convert model weights between formats, exactly, and verify every tensor.

    Results go to stdout, everything else to stderr. Exit status: 0 done, 1 a bug, 2 usage, 3 malformed input,
    4 unsupported or lossy, 5 verification failed, 6 the output could not be written, 7 `learn` leaves questions.
    """


@click.command("version", context_settings=CONTEXT)
@click.pass_context
def version(ctx: click.Context) -> None:
    """Print the versions that a report of a fault needs."""
    group = ctx.parent
    for option in group.command.params if group else ():
        source = group.get_parameter_source(option.name or "") if group else None
        if source is ParameterSource.COMMANDLINE and option.name not in ("debug", "timeout"):
            raise click.UsageError(f"version has no use for {option.opts[0]}", ctx)
    click.echo("\n".join(_versions()))


@click.command("completion", context_settings=CONTEXT)
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
@common_options
def completion(shell: str) -> None:
    """Print the completion script of a shell: bash, zsh or fish.

    \b
    bash:  eval "$(ckconv completion bash)"
    zsh:   eval "$(ckconv completion zsh)"
    fish:  ckconv completion fish | source
    """  # noqa: D301 - click's mark for lines that stay as they are
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "ckconv", "_CKCONV_COMPLETE").source())
