"""The entry point: runs a command and turns whatever comes out of it into an exit status."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line and exit; a user never sees a traceback without ``--debug``."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run the command line with ``arguments`` and return its exit status."""
    import click

    from ckconv.cli import main as group
    from ckconv.cli.render import print_error
    from ckconv.cli.settings import Settings
    from ckconv.errors import CkconvError, Interrupted, UsageError

    settings = Settings()
    try:
        status = group.main(arguments, prog_name="ckconv", standalone_mode=False, obj=settings)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "", err=True)
        return 2
    except click.ClickException as error:
        hint = f"{error.ctx.command_path} --help shows the usage" if getattr(error, "ctx", None) else None  # type: ignore[attr-defined]
        return print_error(UsageError("usage", error.format_message(), hint=hint), settings)
    except CkconvError as error:
        if settings.debug:
            raise
        return print_error(error, settings)
    except BrokenPipeError:
        # The reader of our stdout went away; that is its right. Nothing more may be flushed into the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, click.Abort):
        return print_error(Interrupted(2), settings)
    except Exception as error:
        if settings.debug:
            raise
        bug = CkconvError(
            "internal",
            f"{type(error).__name__}: {error}",
            hint="this is a bug in ckconv; please report it with the output of the same command and --debug",
        )
        return print_error(bug, settings)


if __name__ == "__main__":
    main()
