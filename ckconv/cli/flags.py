"""Flags that decide what a conversion writes, and their defaults."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from ckconv.cli.settings import PATH, Integer, forget_default, origin_of
from ckconv.core.lazy import NamedTuple, replace
from ckconv.core.options import OPTIONS, Option, Options, Takes
from ckconv.errors import InputError, UsageError, nearest, quoted
from ckconv.formats import ALIASES, names
from ckconv.io import as_path
from ckconv.io.json import Document, read_document

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


#: Bytes of a file that is one value of the metadata: a chat template has a few thousand.
_MAX_VALUE = 16 << 20


class Size(click.ParamType):  # type: ignore[type-arg]
    """Number of bytes: digits, ``5GB`` (10^9) or ``512MiB`` (2^20)."""

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
    from ckconv.plan.quantizing import recipe_names

    before, equals, word = begun.rpartition("=")
    known = (*recipe_names(), "affine:4:64", "affine:8:64")
    return [f"{before}{equals}{name}" for name in known if name.startswith(word.lower())]


#: What :func:`click.option` gets for what stands behind a flag.
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
        attributes["type"] = NamedChoice(option.words, option.aliases)
    if option.takes is Takes.WORD:
        attributes["default"] = next((word for word, value in option.words.items() if value == option.default), None)
    if option.takes is Takes.NUMBER:
        attributes["type"] = Integer(1, option.most)
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
        type=Integer(min=1),
        metavar="N",
        help="Keep N processors at work: quantize N pieces of a tensor, or write N files, at once; by default as many"
        " as there are.",
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
    found = origin_of(context)
    return {option.name for option in OPTIONS if option.flag.lstrip("-").replace("-", "_") in found}


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
    if "output" in origin_of(context) and len(paths) > 1:
        forget_default(context, "output")
        output = None
    *sources, dst = (*paths, output) if output is not None else (*paths, *([""] if len(paths) < 2 else []))
    if not sources or not dst:
        missing = "SRC" if not paths else "DST"
        message = f"argument {missing} is missing"
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
    """``SOURCE_DATE_EPOCH``, the only date that may be in an output."""
    text = os.environ.get("SOURCE_DATE_EPOCH")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 11):
        raise UsageError("usage.date", f"SOURCE_DATE_EPOCH is {text!r}, seconds since 1970 expected")
    return int(text)


class NamedChoice(click.Choice[str]):
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


class FormatName(NamedChoice):
    """Format, by its name or an alias."""

    def __init__(self) -> None:
        super().__init__([*names(), *ALIASES])


# -- Defaults of flags from the environment and ckconv.toml ------------------------------------------------------------
#
# CKCONV_FLAG counts first, then ckconv.toml or [tool.ckconv] of pyproject.toml. A key is a flag without its dashes. At
# the top it counts for every command that has the flag, in a table named after a command for that one alone, in
# [preset.NAME] where --preset NAME asks for it. The file is that of the working directory or of the nearest one above
# it; CKCONV_CONFIG names another, or none where it is empty.

_PREFIX, FILE, PROJECT = "CKCONV_", "ckconv.toml", "pyproject.toml"
_CONFIG = f"{_PREFIX}CONFIG"
_TABLE = "[tool.ckconv"
_PRESET, _DECODE = "preset", "decode"
_LIMIT = 1 << 20


class Default(NamedTuple):
    """A value for a flag, and where it was found."""

    value: Any
    origin: str


class _File(NamedTuple):
    path: Path
    text: str
    table: Mapping[str, Any]

    def at(self, key: str, table: str = "") -> str:
        """``ckconv.toml:3``: the line of a key."""
        start = 0
        if table and (header := re.search(rf"^\s*\[.*{re.escape(table)}\]", self.text, re.MULTILINE)):
            start = header.end()
        found = re.compile(rf"^\s*\"?{re.escape(key)}\"?\s*=", re.MULTILINE).search(self.text, start)
        line = f":{self.text.count(chr(10), 0, found.end()) + 1}" if found else ""
        return f"{self.path.name}{line}"


def defaults_of(
    command: click.Command, arguments: Sequence[str], verbs: Mapping[str, str], before: str = ""
) -> dict[str, Default]:
    """Parameter -> its default, for a command.

    Args:
        before: the preset that is named before the command.

    Raises:
        UsageError: ``usage.defaults``, the file cannot be read, a key is no flag, or a value is none of the flag.
    """
    flags = _flags(command)
    found: dict[str, Default] = {}

    def take(key: str, value: Any, origin: str) -> None:
        key = _DECODE if key == "dequantize" and _is_glob(value) and _DECODE in flags else key
        value = [value] if flags[key].multiple and isinstance(value, str) else value
        _take(found, flags[key], Default(_as_typed(flags[key], value, key, origin), origin))

    file, by_flag, by_env = _file(), _preset(arguments) or before, os.environ.get(f"{_PREFIX}PRESET", "")
    preset = by_flag or by_env
    if file is not None:
        presets = _tables(file, _PRESET)
        if preset and preset not in presets:
            known = ", ".join(presets) or "none"
            raise _fault(file.path.name, f"there is no preset {quoted(preset)} (there are: {known})")
        everywhere = {key: value for key, value in file.table.items() if not isinstance(value, Mapping)}
        _check(file, verbs)
        rows = [("", everywhere), (command.name or "", file.table.get(command.name or "", {}))]
        rows += [(f"{_PRESET}.{preset}", presets[preset])] if preset else []
        for table, values in rows:
            for key, value in values.items():
                if key in flags:
                    take(key, value, file.at(key, table))
                elif table == command.name:
                    raise _fault(file.at(key, table), f"ckconv {table} has no flag --{key}")
    elif preset:
        where = f"--{_PRESET} {quoted(by_flag)}" if by_flag else f"{_PREFIX}PRESET={quoted(by_env)}"
        none = f"there is no {FILE} and no {_TABLE}] in {PROJECT}, here or above"
        empty = os.environ.get(_CONFIG) == ""
        raise _fault(where, f"{_CONFIG} is empty, so no file with presets is read" if empty else none)
    for key in flags:
        name = f"{_PREFIX}{key.upper().replace('-', '_')}"
        if text := os.environ.get(name):
            take(key, text, name)
    given = {word.partition("=")[0].lstrip("-") for word in arguments if word.startswith("--")}
    for key in given & flags.keys():
        for other in _opposites(key):
            found.pop(other, None)
    return found


def _is_glob(value: Any) -> bool:
    """Whether a default of ``dequantize`` is a glob, or a list of globs."""
    try:
        return isinstance(value, list) or (isinstance(value, str) and click.BOOL.convert(value, None, None) is None)
    except click.UsageError:
        return True


def _take(found: dict[str, Default], option: click.Option, default: Default) -> None:
    """Set a nearer default; drop farther ones and those of opposite flags."""
    for other in _opposites(option.opts[-1].lstrip("-")) if default.value else ():
        found.pop(other, None)
    found[option.name or ""] = default


def _opposites(flag: str) -> Iterator[str]:
    """Parameters whose flags exclude this one: ``--tie`` and ``--untie``."""
    names = {row.name for row in OPTIONS if row.flag == f"--{flag}"}
    yield from (row.flag[2:].replace("-", "_") for row in OPTIONS if row.name in names and row.flag != f"--{flag}")


def _fault(where: str, message: str, hint: str = "") -> UsageError:
    return UsageError("usage.defaults", f"{where}: {message}", hint=hint)


def _flags(command: click.Command) -> dict[str, click.Option]:
    """Flag, without dashes -> the option, where defaults are allowed."""
    options = [option for option in command.params if isinstance(option, click.Option)]
    left = {"help", _PRESET, "debug"}
    return {flag.lstrip("-"): o for o in options for flag in o.opts if flag.startswith("--") and flag[2:] not in left}


def _preset(arguments: Sequence[str]) -> str:
    for at, word in enumerate(arguments):
        if word == f"--{_PRESET}" and at + 1 < len(arguments):
            return arguments[at + 1]
        if word.startswith(f"--{_PRESET}="):
            return word.partition("=")[2]
    return ""


def _file() -> _File | None:
    """The nearest file of defaults."""
    named = os.environ.get(_CONFIG)
    if named is not None:
        return _read(Path(named), ()) if named else None
    try:
        here = Path.cwd()
    except OSError:  # it was removed
        return None
    for directory in (here, *here.parents):
        if (directory / FILE).is_file():
            return _read(directory / FILE, ())
        project = directory / PROJECT
        if project.is_file() and (found := _read(project, ("tool", "ckconv"))) is not None:
            return found
    return None


def _read(path: Path, keys: tuple[str, ...]) -> _File | None:
    try:
        with path.open("rb") as file:
            data = file.read(_LIMIT + 1)
    except OSError as error:
        if keys:
            return None  # somebody else's file
        raise _fault(str(path), f"cannot be read: {error.strerror}") from None
    if keys and _TABLE.encode() not in data:
        return None
    if len(data) > _LIMIT:
        raise _fault(str(path), f"has more than {_LIMIT:,} bytes")
    import tomllib

    try:
        text = data.decode()
        table: Any = tomllib.loads(text)
    except ValueError as error:
        raise _fault(str(path), f"is not TOML: {error}") from None
    for key in keys:
        table = table.get(key, {}) if isinstance(table, dict) else {}
    return _File(path, text, table) if isinstance(table, dict) else None


def _tables(file: _File, name: str) -> Mapping[str, Mapping[str, Any]]:
    found = file.table.get(name, {})
    if not isinstance(found, Mapping) or not all(isinstance(table, Mapping) for table in found.values()):
        raise _fault(file.at(name), f"{name} has a table for each name: [{name}.NAME]")
    return found


def _check(file: _File, verbs: Mapping[str, str]) -> None:
    """Check that keys are flags, and tables commands or presets."""
    tables = {name: value for name, value in file.table.items() if isinstance(value, Mapping)}
    if unknown := sorted(tables.keys() - {*verbs, _PRESET}):
        raise _fault(file.path.name, f"[{unknown[0]}] is neither a command nor [{_PRESET}.NAME]")
    presets = _tables(file, _PRESET)
    groups = [("", {key: value for key, value in file.table.items() if key not in tables})]
    groups += [(f"{_PRESET}.{name}", {**table}) for name, table in presets.items()]
    if not any(keys for _, keys in groups):
        return
    from importlib import import_module

    own = (import_module(f"ckconv.cli.{verb}").command for verb in verbs if verb != "completion")
    known = {flag for command in own for flag in _flags(command)}
    for table, keys in groups:
        for key in keys:
            if key not in known:
                near = nearest(key, known)
                hint = f"did you mean {near}?" if near else ""
                raise _fault(file.at(key, table), f"no command has a flag --{key}", hint)


def _as_typed(option: click.Option, value: Any, key: str, origin: str) -> Any:
    """The value as the flag's type has it."""
    wanted = "true or false" if option.is_flag else "a list" if option.multiple else "one value"
    if isinstance(value, list) != option.multiple or (option.is_flag and not isinstance(value, bool | str)):
        raise _fault(origin, f"{key} is {value!r}, {wanted} expected")
    items = value if option.multiple else [value]
    type: Any = click.BOOL if option.is_flag else option.type
    try:
        for item in items:
            type.convert(item if option.is_flag else str(item), option, None)
    except click.UsageError as error:
        raise _fault(origin, f"{key}: {error.message.rstrip('.')}") from None
    made = [item if option.is_flag else str(item) for item in items]
    if option.is_flag:
        return click.BOOL.convert(value, option, None)
    return made if option.multiple else made[0]
