"""The options that every command takes, before or after its name, and the settings they make."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ckconv.io.addresses import as_path

Function = TypeVar("Function", bound=Callable[..., Any])


class Settings:
    """How to talk to the user; one object for the whole command line."""

    # Not a dataclass: importing what makes one takes longer than printing the help.
    def __init__(
        self,
        quiet: bool = False,
        verbose: bool = False,
        json: bool = False,
        no_color: bool = False,
        progress: str = "auto",
        debug: bool = False,
    ) -> None:
        self.quiet, self.verbose, self.json = quiet, verbose, json
        self.no_color, self.progress, self.debug = no_color, progress, debug
        #: The seconds of ``--timeout``, when they are over.
        self.over = 0.0

    @property
    def color(self) -> bool:
        """Color on stdout is wanted: a terminal that can, and nobody who said no."""
        plain = self.no_color or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
        return not plain and sys.stdout.isatty()


def settings_of(context: click.Context) -> Settings:
    """The settings of this run."""
    settings = context.find_root().ensure_object(Settings)
    assert isinstance(settings, Settings)
    return settings


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value and parameter.name:
        setattr(settings_of(context), parameter.name, value)


def told_elsewhere(context: click.Context) -> tuple[str, ...]:
    """Notes on the flags whose values come from the environment or a file: not from the command line."""
    found = context.find_root().meta.get("ckconv.defaults", {})
    taken = [
        (parameter, found[parameter.name])
        for parameter in context.command.params
        if parameter.name in found
        and context.get_parameter_source(parameter.name) is click.core.ParameterSource.DEFAULT_MAP
    ]
    words = [f"{parameter.opts[-1]} ({default.origin})" for parameter, default in taken]
    return (f"not from the command line: {', '.join(words)}",) if words else ()


def _end_after(context: click.Context, _: click.Parameter, seconds: float | None) -> None:
    if seconds is None:
        return
    import signal
    import threading

    def end() -> None:
        settings_of(context).over = seconds
        if hasattr(signal, "pthread_kill"):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        else:
            signal.raise_signal(signal.SIGTERM)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    context.call_on_close(timer.cancel)


def common_options(function: Function) -> Function:
    """Add the common options to a command; either position counts, and neither unsets the other."""
    options: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
        (
            ("--timeout",),
            {
                "type": click.FloatRange(min=0, min_open=True),
                "metavar": "SECONDS",
                "callback": _end_after,
                "help": "End after SECONDS, as SIGTERM ends it.",
            },
        ),
        (
            ("--preset",),
            {
                "metavar": "NAME",
                "callback": lambda *_: None,
                "help": "Take defaults of flags from [preset.NAME] of ckconv.toml, too.",
            },
        ),
        (("--debug",), {"is_flag": True, "help": "Show the traceback of an error."}),
        (
            ("--progress",),
            {
                "type": click.Choice(["auto", "plain", "none"]),
                "help": "How to show progress on stderr [default: auto].",
            },
        ),
        (("--no-color",), {"is_flag": True, "help": "No color; NO_COLOR and TERM=dumb do the same."}),
        (("--json",), {"is_flag": True, "help": "One JSON document on stdout."}),
        (("-v", "--verbose"), {"is_flag": True, "help": "More detail in the report."}),
        (("-q", "--quiet"), {"is_flag": True, "help": "Nothing but errors."}),
    )
    for names, attributes in options:
        attributes = {"callback": _remember, **attributes}
        function = click.option(*names, expose_value=False, is_eager=True, **attributes)(function)
    return function


#: Every command: ``-h`` works as ``--help`` does.
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class _Path(click.Path):
    def coerce_path_result(self, value: str | os.PathLike[str]) -> Path:
        """What click makes of an argument."""
        return as_path(os.fsdecode(value))


#: click does not check the path: the reader does, so that the message is the same everywhere.
PATH = _Path(path_type=Path, readable=False)


def page_option(help: str) -> Callable[[Function], Function]:
    """``--html FILE``: a page, besides what is printed."""
    return click.option("--html", "page", metavar="FILE", type=PATH, help=help)
