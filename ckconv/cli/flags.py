"""Flags that decide what a conversion writes, with their words."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from ckconv.cli.settings import PATH, Whole, forget_default, is_default
from ckconv.errors import InputError, UsageError
from ckconv.formats import ALIASES, names
from ckconv.io import as_path
from ckconv.io.json import Document, read_document
from ckconv.options import OPTIONS, Option, Options, Takes

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


#: Bytes of a file that is one value of the metadata: a chat template has a few thousand.
_MAX_VALUE = 16 << 20


class Size(click.ParamType):  # type: ignore[type-arg]
    """Number of bytes: ``5GB``, ``512MiB`` or plain digits.

    GB are 10^9, MiB 2^20.
    """

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The bytes; fails with a sentence."""
        found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]?I?B|)", str(value).strip().upper())
        if found is None or found[2] not in _UNITS or (size := int(float(found[1]) * _UNITS[found[2]])) < 1:
            self.fail(f"{value!r} is not a size; 5GB, 512MiB or a number of bytes expected", param, ctx)
        return size


_ADAPTER = click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="PATH[=WEIGHT]",
    help="Merge an adapter (PEFT, MLX or GGUF) into the float matrices of SRC, its change times WEIGHT; repeatable.",
)


def _types_begun(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    """Types and recipes that a word may become; behind ``GLOB=``, too."""
    from ckconv.plan import recipes

    before, equals, word = begun.rpartition("=")
    known = (*recipes.names(), "affine:4:64", "affine:8:64")
    return [f"{before}{equals}{name}" for name in known if name.startswith(word.lower())]


#: What :func:`click.option` is told of what stands behind a flag.
_TAKES: dict[Takes, dict[str, Any]] = {
    Takes.NOTHING: {"is_flag": True},
    Takes.WORD: {"show_default": True},
    Takes.WORDS: {"multiple": True},
    Takes.GLOB: {"multiple": True, "metavar": "GLOB"},
    Takes.PAIR: {"multiple": True, "metavar": "KEY=VALUE"},
    Takes.TYPES: {"metavar": "TYPE[,GLOB=TYPE...]", "shell_complete": _types_begun},
    Takes.SIZE: {"type": Size(), "metavar": "SIZE"},
    Takes.PATH: {"type": PATH},
    Takes.TEXT: {"metavar": "NAME"},
    Takes.FILES: {"type": PATH, "multiple": True, "metavar": "FAMILY"},
    Takes.EXISTING: {"type": click.Path(path_type=Path, exists=True, readable=False)},
}


def flag(name: str) -> Callable[[Function], Function]:
    """The flag of the table of options that has this name."""
    return _flag(next(option for option in OPTIONS if option.flag == name))


def _flag(option: Option) -> Callable[[Function], Function]:
    attributes: dict[str, Any] = dict(_TAKES.get(option.takes, {}))
    if option.words:
        attributes["type"] = Word(option.words, option.aliases)
    if option.takes is Takes.WORD:
        attributes["default"] = next((word for word, value in option.words.items() if value == option.default), None)
    if option.takes is Takes.NUMBER:
        attributes["type"] = Whole(1, option.most)
    return click.option(option.flag, help=option.help, **attributes)


def conversion_options(function: Function) -> Function:
    """Add those that `convert` and `verify` have to a command."""
    for option in reversed(OPTIONS):
        if option.takes is not Takes.NO_FLAG and option.name != "source_record":
            function = _flag(option)(function)
        if option.name == "base":  # what an adapter is for stands behind the adapter
            function = _ADAPTER(function)
    return function


#: The side file of :func:`writing_options`' ``--map``.
MAP_NAME = "weights_manifest.map"

_WRITING: tuple[Callable[[Function], Function], ...] = (
    click.option("--map", "with_map", is_flag=True, help="Write weights_manifest.map beside the model (bump 4, 5)."),
    click.option(
        "--checksums",
        is_flag=True,
        help="Write DST.sha256 (in a directory: SHA256SUMS) of all files for sha256sum -c.",
    ),
    flag("--no-source-record"),
    flag("--source-record"),
    click.option("--no-verify", is_flag=True, help="Do not read the output again to compare every tensor."),
    click.option(
        "-j",
        "--jobs",
        type=Whole(min=1),
        metavar="N",
        help="Keep N processors at work: convert and compare N pieces of a tensor, or N files, at once;"
        " by default as many as there are.",
    ),
    click.option("-n", "--dry-run", is_flag=True, help="Print the plan with exact sizes; write nothing."),
    click.option("-f", "--force", is_flag=True, help="Replace an existing output, atomically."),
)


#: Of `convert` and `batch`.
cluster_option = click.option(
    "--cluster",
    metavar="URL",
    help="Let the workers of dask://HOST:PORT or ray://HOST:PORT do the work; they need the files at the same paths."
    " Or N processes of this machine: local://N.",
)


def writing_options(function: Function) -> Function:
    """Add those of `convert` and `batch` that say how an output is written."""
    for option in reversed(_WRITING):
        function = option(function)
    return function


def default_options(context: click.Context) -> set[str]:
    """The options that the environment or a file gave."""
    given = [o for o in OPTIONS if is_default(context, o.flag.lstrip("-").replace("-", "_"))]
    return {option.name for option in given}


def where_it_counts(options: Options, defaults: set[str], planned: Callable[[Options], T]) -> T:
    """Plan without defaults for another output, or that a flag excludes.

    Args:
        defaults: options that nobody gave on the command line; those without a say are removed from it.
    """
    while True:
        try:
            return planned(options)
        except UsageError as error:
            names = error.found if isinstance(error.found, tuple) else (error.found,)
            soft = [name for name in names if name in defaults]
            if error.code not in ("usage.flag", "usage.dtype") or len(soft) != 1:
                raise
            defaults.remove(soft[0])
            options = replace(options, **{soft[0]: getattr(Options(), soft[0])})


def options_of(flags: dict[str, Any]) -> Options:
    """The options that flags ask for.

    Raises:
        UsageError: flags that exclude each other, or a value that is none.
    """
    if flags["tie"] and flags["untie"]:
        raise UsageError("usage.flag", "--tie and --untie exclude each other")
    if flags.get("no_source_record") and flags.get("source_record"):
        raise UsageError("usage.flag", "--source-record and --no-source-record exclude each other")
    if flags["trainable"] and flags["wrapped"]:
        raise UsageError("usage.flag", "--trainable and --wrapped exclude each other")
    values: dict[str, Any] = {"created": _source_date()}
    for option in OPTIONS:
        given = flags.get(option.flag.lstrip("-").replace("-", "_"))
        if given:
            values[option.name] = _value(option, given)
    return Options(**values)


def _value(option: Option, given: Any) -> Any:
    if option.takes is Takes.NOTHING:
        return option.gives
    if option.takes is Takes.PAIR:
        return pairs_of(given)
    return option.words[given] if option.takes is Takes.WORD else given


def adapters_of(flags: dict[str, Any]) -> list[tuple[Path, float]]:
    """Path and weight of every adapter that is to be merged.

    Raises:
        UsageError: a weight is no number.
    """
    return [_adapter(text) for text in flags["adapters"]]


def _adapter(text: str) -> tuple[Path, float]:
    """``PATH`` or ``PATH=WEIGHT``; what is there as it stands is a path."""
    path, equals, weight = text.rpartition("=")
    if not equals or os.path.lexists(text):
        return as_path(text), 1.0
    try:
        number = float(weight)
    except ValueError:
        number = math.nan
    if not path or not math.isfinite(number):
        raise UsageError("usage", f"--adapter {text!r}: PATH or PATH=WEIGHT expected, WEIGHT a number")
    return as_path(path), number


def sources_and_output(context: click.Context, paths: Sequence[str], output: str | None) -> tuple[list[Path], str]:
    """Split paths into sources and output.

    The last one is the output, unless ``-o`` names it. A default of ``-o`` counts where there is one path.

    Raises:
        UsageError: one of the two is missing.
    """
    if is_default(context, "output") and len(paths) > 1:
        forget_default(context, "output")
        output = None
    *sources, dst = (*paths, output) if output is not None else (*paths, *([""] if len(paths) < 2 else []))
    if not sources or not dst:
        missing = "SRC" if not paths else "DST"
        message = f"Missing argument '{missing}'"
        raise UsageError("usage", message, hint="ckconv convert SRC DST, or ckconv convert SRC -o DST")
    return [as_path(path) for path in sources], dst


def one_or_two(sources: Sequence[Path]) -> tuple[Path, Path | None]:
    """A source, and the tower beside it where there are two.

    Raises:
        UsageError: there are more.
        UnsupportedError: ``plan.refused``, several towers are among them.
        InputError: one of more cannot be read.
    """
    if len(sources) > 2:
        from ckconv.formats.model import check_one_tower

        check_one_tower(sources)
        message = f"{len(sources)} sources: one model expected, or a text model and its tower (mmproj)"
        raise UsageError("usage", message, hint="ckconv batch SRC --into DIR converts many models")
    return sources[0], sources[1] if len(sources) == 2 else None


def pairs_of(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Keys and values of ``KEY=VALUE`` and ``KEY=@FILE``.

    Raises:
        UsageError: one is neither.
        InputError: a file cannot be read, or is not text.
    """
    return tuple(_key_value(text) for text in texts)


def _key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError("usage", f"--set-meta {text!r}: KEY=VALUE or KEY=@FILE expected")
    return key, _content(Path(value[1:])) if value.startswith("@") else value


def _content(path: Path) -> str:
    """The text of a file."""
    document = Document("value", "input.text", "input.text", _MAX_VALUE)
    try:
        return read_document(path, document).decode()
    except UnicodeDecodeError:
        raise InputError("input.text", "the value is not UTF-8 text", path=path) from None


def _source_date() -> int | None:
    """Date of a reproducible build (reproducible-builds.org).

    No other may be in an output.
    """
    text = os.environ.get("SOURCE_DATE_EPOCH")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 11):
        raise UsageError("usage.date", f"SOURCE_DATE_EPOCH is {text!r}, seconds since 1970 expected")
    return int(text)


class Word(click.Choice[str]):
    """Parameter type: a word of a list, or its alias, in any case.

    Args:
        aliases: what other tools call it -> the word.
    """

    def __init__(self, words: Iterable[str], aliases: Mapping[str, str] | None = None) -> None:
        super().__init__([*words], case_sensitive=False)
        self._aliases = aliases or {}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The word as the table has it."""
        return super().convert(self._aliases.get(str(value).lower(), value), param, ctx)


class FormatName(Word):
    """Format, by its name or an alias."""

    def __init__(self) -> None:
        super().__init__([*names(), *ALIASES])
