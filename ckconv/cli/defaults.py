"""Defaults of flags from the environment and ``ckconv.toml``.

``CKCONV_FLAG`` counts first, then ``ckconv.toml`` or ``[tool.ckconv]`` of pyproject.toml.

A key is a flag without its dashes. At the top it counts for every command that has the flag, in a table named after a
command for that one alone, in ``[preset.NAME]`` where ``--preset NAME`` asks for it. The file is that of the working
directory or of the nearest one above it; ``CKCONV_CONFIG`` names another, or none where it is empty.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ckconv.core.late import NamedTuple
from ckconv.errors import UsageError, quoted

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
        _take(found, flags[key], Default(_value(flags[key], value, key, origin), origin))

    file, asked, told = _file(), _preset(arguments) or before, os.environ.get(f"{_PREFIX}PRESET", "")
    preset = asked or told
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
        where = f"--{_PRESET} {quoted(asked)}" if asked else f"{_PREFIX}PRESET={quoted(told)}"
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
    """Put a nearer default in the place of farther ones.

    Those of its opposites go, too.
    """
    for other in _opposites(option.opts[-1].lstrip("-")) if default.value else ():
        found.pop(other, None)
    found[option.name or ""] = default


def _opposites(flag: str) -> Iterator[str]:
    """Parameters whose flags exclude this one: ``--tie`` and ``--untie``."""
    from ckconv.options import OPTIONS

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
    from difflib import get_close_matches
    from importlib import import_module

    own = (import_module(f"ckconv.cli.{verb}").command for verb in verbs if verb != "completion")
    known = {flag for command in own for flag in _flags(command)}
    for table, keys in groups:
        for key in keys:
            if key not in known:
                near = get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]}?" if near else ""
                raise _fault(file.at(key, table), f"no command has a flag --{key}", hint)


def _value(option: click.Option, value: Any, key: str, origin: str) -> Any:
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
