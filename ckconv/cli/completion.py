"""``ckconv completion SHELL``."""

from __future__ import annotations

import click

from ckconv.cli.settings import CONTEXT, common_options


@click.command("completion", context_settings=CONTEXT)
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
@common_options
def command(shell: str) -> None:
    """Print the completion script of a shell: bash, zsh or fish.

    \b
    bash:  eval "$(ckconv completion bash)"
    zsh:   eval "$(ckconv completion zsh)"
    fish:  ckconv completion fish | source
    """  # noqa: D301 - click's mark for lines that stay as they are
    from click.shell_completion import get_completion_class

    from ckconv.cli import main

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "ckconv", "_CKCONV_COMPLETE").source())
