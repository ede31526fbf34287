"""Flags of every command, their settings, sections of the help."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click

from ckconv.io import as_path

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
        """Whether stdout gets tables with color."""
        return self.colors(sys.stdout)

    def colors(self, stream: TextIO | None) -> bool:
        """Whether a stream gets color: terminals, or all by ``FORCE_COLOR``."""
        if self.no_color or "NO_COLOR" in os.environ:
            return False
        if any(os.environ.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
            return True
        return os.environ.get("TERM") != "dumb" and stream is not None and stream.isatty()


def settings_of(context: click.Context) -> Settings:
    """The settings of this run."""
    settings = context.find_root().ensure_object(Settings)
    assert isinstance(settings, Settings)
    return settings


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value and parameter.name:
        setattr(settings_of(context), parameter.name, value)


def origin_of(context: click.Context) -> dict[str, str]:
    """Parameter -> the environment or file that gave its value."""
    found, of_map = context.find_root().meta.get("ckconv.defaults", {}), click.core.ParameterSource.DEFAULT_MAP
    return {name: default.origin for name, default in found.items() if context.get_parameter_source(name) is of_map}


def origins(context: click.Context) -> dict[str, str]:
    """Flag that the command line lacks -> where its value comes from."""
    found = origin_of(context)
    return {each.opts[-1]: found[each.name] for each in context.command.params if each.name in found}


def flag_notes(context: click.Context) -> tuple[str, ...]:
    """Notes on flags set by the environment or a file."""
    return origin_notes(origins(context))


def origin_notes(found: Mapping[str, str]) -> tuple[str, ...]:
    """Note on flags and the origins of their values."""
    words = [f"{flag} ({origin})" for flag, origin in found.items()]
    return (f"not from the command line: {', '.join(words)}",) if words else ()


def forget_default(context: click.Context, name: str) -> None:
    """Let a default count no more: it has no say here."""
    context.find_root().meta["ckconv.defaults"].pop(name, None)


def _preset(context: click.Context, _: click.Parameter, name: str | None) -> None:
    """Note the context of the command, and the preset before it."""
    context.find_root().meta["ckconv.context"] = context
    if name:
        context.find_root().meta["ckconv.preset"] = name


class Integer(click.IntRange):
    """Range of whole numbers."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number; fails with a sentence."""
        try:
            int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number", param, ctx)
        number: int = super().convert(value, param, ctx)
        return number


class Float(click.FloatRange):
    """Range of numbers without NaN and infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; fails with a sentence."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


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
    """Add the common options, accepted before and after a command's name."""
    options: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
        (
            ("--timeout",),
            {
                "type": Float(min=0, min_open=True),
                "metavar": "SECONDS",
                "callback": _end_after,
                "help": "End after SECONDS, as SIGTERM ends it.",
            },
        ),
        (
            ("--preset",),
            {
                "metavar": "NAME",
                "callback": _preset,
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
        """Convert an argument to a path."""
        return as_path(os.fsdecode(value))


#: click does not check the path: the reader does, so that the message is the same everywhere.
PATH = _Path(path_type=Path, readable=False)


def page_option(help: str) -> Callable[[Function], Function]:
    """Flag ``--html FILE``."""
    return click.option("--html", "page", metavar="FILE", type=PATH, help=help)


#: Of the commands that write nothing else.
force_option = click.option("-f", "--force", is_flag=True, help="Replace an older page at --html FILE.")


#: Group -> its flags, in order: daily ones first. The flags of a group that a command does not have are passed over.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "Daily": (
        "--output", "--into", "--from-file", "--to", "--quantize", "--dequantize", "--adapter", "--max-shard-size",
        "--dry-run", "--force", "--checksums", "--record", "--html",
    ),
    "The model": (
        "--mmproj", "--base", "--task", "--context", "--drop", "--set-meta", "--drop-meta", "--strict", "--family",
        "--from",
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
    """Command whose flags stand in sections (:data:`GROUPS`).

    What is in none of them stands at the end.

    Args:
        examples: command line -> what it does.
    """

    def __init__(self, *arguments: Any, examples: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.examples = examples or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; ``--dequantize=GLOB`` means ``--decode GLOB``.

        Without the equals sign, an optional value could take the place of a path.
        """
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
