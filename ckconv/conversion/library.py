"""Arguments and errors of the library's functions.

Arguments are checked by their annotation; errors are builtin classes where they apply, and their hints have arguments
where those of the command line have flags.
"""

from __future__ import annotations

import errno
import math
import os
import re
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from inspect import isgeneratorfunction, signature
from numbers import Integral
from typing import Any, ParamSpec, Protocol, TypeVar

from ckconv.errors import CkconvError, InputError, OutputError, UsageError
from ckconv.options import OPTIONS, Options, Takes

StrPath = str | os.PathLike[str]


class SupportsWrite(Protocol):
    """A binary file object that is open for writing."""

    def write(self, data: bytes, /) -> object:
        """Write all of ``data``."""


P = ParamSpec("P")
T = TypeVar("T")

#: Flag -> the argument of the library's functions.
_ARGUMENTS = {
    "--force": "force=True", "--to": "to=", "--from": "source_format=", "--adapter": "adapters=", "--mmproj": "mmproj=",
    "--no-verify": "verify=False", "--checksums": "checksums=True", "--record": "record=True", "--jobs": "jobs=",
    "--resume": "resume=True", "--weights": "weights=True", "--tolerance": "tolerance=",
}  # fmt: skip


class ArgumentError(UsageError, TypeError):
    """An argument of another type than its function takes."""


class NotFoundError(InputError, FileNotFoundError):
    """A file that is not there."""


class ExistsError(OutputError, FileExistsError):
    """An output that is there already."""


#: Code of an error -> the builtin class that it is besides, and that class's number.
_ALSO: dict[str, tuple[type[CkconvError], int]] = {
    "input.missing": (NotFoundError, errno.ENOENT),
    "output.exists": (ExistsError, errno.EEXIST),
}

#: A flag, and the value behind it: quoted, or a word.
_FLAG = r"--[a-z][a-z0-9-]*(?P<value>[ =](?:'[^']*'|[\w.:*/]*[\w*/](?=$|[\s,;)])))?"


def in_python(text: str) -> str:
    """A hint with the arguments of the library where flags stand."""
    return re.sub(_FLAG, _spelled, text)


def _spelled(found: re.Match[str]) -> str:
    value = found["value"] or ""
    flag, word = found[0].removesuffix(value), value[1:].strip("'")
    row = next((option for option in OPTIONS if option.flag == flag), None)
    if row is None:
        argument = _ARGUMENTS.get(flag, flag)
        return f"{argument}{word!r}" if argument.endswith("=") and word else argument + value
    if row.takes is Takes.NOTHING:
        return f"Options({row.name}={row.gives!r}){value}"
    if not word or (row.takes is Takes.NUMBER and not word.isdigit()):
        return f"Options({row.name}=...){value}"
    several = row.takes in (Takes.GLOB, Takes.WORDS)
    return f"Options({row.name}={f'({word!r},)' if several else word if row.takes is Takes.NUMBER else repr(word)})"


def _made(error: CkconvError) -> CkconvError:
    kind, number = _ALSO.get(error.code, (None, 0))
    if kind is not None and not isinstance(error, kind):
        plain, error = error, kind.__new__(kind)
        error.__dict__.update(plain.__dict__)
        error.args = plain.args
        for name, value in {"filename": plain.path, "errno": number, "strerror": os.strerror(number)}.items():
            setattr(error, name, value)
    error.python_hint = in_python(error.hint) if error.hint else None
    return error


def pythonic(function: Callable[P, T]) -> Callable[P, T]:
    """Function with checked arguments whose errors are Python's, too.

    Raises:
        ArgumentError: ``usage``, an argument is not what its annotation says (:data:`_KINDS`).
    """

    def generate(*args: Any, **more: Any) -> Any:
        try:
            yield from function(*args, **more)  # type: ignore[misc]
        except CkconvError as error:
            raise _made(error) from error.__cause__

    @wraps(function)
    def call(*args: P.args, **more: P.kwargs) -> T:
        try:
            given = signature(function).bind(*args, **more)
        except TypeError:
            return function(*args, **more)  # raises that error in its own words
        for name, value in [*given.arguments.items()]:
            annotation = function.__annotations__[name]
            check_argument(name, value, annotation)
            given.arguments[name] = _pythons_own(value, annotation)
        if isgeneratorfunction(function):
            return generate(*given.args, **given.kwargs)  # type: ignore[no-any-return]
        try:
            return function(*given.args, **given.kwargs)
        except CkconvError as error:
            raise _made(error) from error.__cause__

    return call


def _is_path(value: object) -> bool:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    return isinstance(text, str) and text != ""


def _is_bool(value: object) -> bool:
    numpy = sys.modules.get("numpy")  # whoever has one of its values has imported it
    return isinstance(value, bool) or (numpy is not None and isinstance(value, numpy.bool_))


def _is_count(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) > 0


def _pythons_own(value: object, annotation: str) -> object:
    """Python's number for one of NumPy's: others are no JSON and no ``True``."""
    kind = {"int": int, "bool": bool}.get(annotation.removesuffix(" | None"))
    return value if kind is None or value is None else kind(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and _is_number(value) and 0 <= value < math.inf


def _each(accepted: Callable[[object], bool]) -> Callable[[object], bool]:
    """Accept lists and tuples; a lone text would be taken for its letters."""
    return lambda value: isinstance(value, list | tuple) and all(map(accepted, value))


def _pair(first: Callable[[object], bool], second: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, tuple) and len(value) == 2 and first(value[0]) and second(value[1])


def _is_text(value: object) -> bool:
    return isinstance(value, str)


#: Annotation of an argument -> what it accepts, in Python and in words.
_KINDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "StrPath": (_is_path, "a path"),
    "StrPath | SupportsWrite": (lambda value: _is_path(value) or hasattr(value, "write"), "a path or a binary file"),
    "Iterable[StrPath]": (
        lambda value: isinstance(value, Iterable) and not isinstance(value, str | bytes | os.PathLike),
        "paths",
    ),
    "Sequence[StrPath]": (_each(_is_path), "a list of paths"),
    "Sequence[str]": (_each(_is_text), "a list of words"),
    "Sequence[tuple[StrPath, float]]": (_each(_pair(_is_path, _is_number)), "a list of (path, weight)"),
    "Sequence[tuple[str, str]]": (_each(_pair(_is_text, _is_text)), "a list of (key, value), both words"),
    "str": (lambda value: _is_text(value) and value != "", "a word"),
    "bool": (_is_bool, "True or False"),
    "int": (_is_count, "a whole number from 1 on"),
    "float": (_is_amount, "a number from 0 on"),
    "Options": (lambda value: isinstance(value, Options), "ckconv.Options"),
    "Progress": (callable, "a function of bytes and a name"),
    "Executor": (lambda value: hasattr(value, "submit"), "an executor of concurrent.futures"),
    "Any": (lambda value: True, "anything"),
}


def check_argument(name: str, value: object, annotation: str) -> None:
    """Check a value by an annotation."""
    accepts, words = _KINDS[annotation.removesuffix(" | None")]
    if not (accepts(value) or (value is None and annotation.endswith(" | None"))):
        raise ArgumentError("usage", f"{name} is {repr(value)[:80]}, {words} expected")
