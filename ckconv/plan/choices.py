"""Check the values of options that a program gives.

The command line offers nothing else; a program may say anything.
"""

from __future__ import annotations

from pathlib import Path

from ckconv.errors import UsageError
from ckconv.options import OPTIONS, Option, Options, Takes, asked
from ckconv.plan.quantizing import parsed

#: One more than the latest second that a file may be dated with, in the year 5138: one of eleven digits.
_LATEST = 10**11


def check_values(options: Options) -> None:
    """Refuse what no option can be.

    Raises:
        UsageError: ``usage``; ``usage.dtype``, options that exclude each other.
    """
    for option in OPTIONS:
        _check(option, getattr(options, option.name))
    if not isinstance(options.file_name, str):
        raise _fault("file_name", options.file_name, "a word")
    created = options.created
    if created is not None and not (type(created) is int and 0 <= created < _LATEST):
        raise _fault("created", created, "a whole number of seconds since 1970")
    given = list(asked(options))
    for one in given:
        for other in given:
            if one.excludes(other.option):
                message = f"{other.flag} and {one.shown} exclude each other"
                raise UsageError("usage.dtype", message, found=(other.option.name, one.option.name))


def _check(option: Option, value: object) -> None:
    if option.takes in (Takes.WORD, Takes.NOTHING):
        choices = _choices(option)
        if not any(type(value) is type(word) and value == word for word in (*choices, option.default)):
            raise _fault(option.name, value, f"one of {', '.join(map(repr, choices))}")
    elif option.takes in (Takes.WORDS, Takes.GLOB):
        # A lone word would be taken for its letters.
        if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
            raise _fault(option.name, value, "a tuple of words")
        for item in value:
            if option.words and item not in option.words:
                raise _fault(option.name, item, f"{' or '.join(map(repr, option.words))}")
    elif option.takes is Takes.TEXT:
        if not isinstance(value, str):
            raise _fault(option.name, value, "a text")
    elif option.takes is Takes.TYPES:
        if not isinstance(value, str):
            raise _fault(option.name, value, "a type by name")
        if value:
            parsed(value)
    elif option.takes is Takes.FILES:
        if not isinstance(value, tuple) or not all(isinstance(item, Path) for item in value):
            raise _fault(option.name, value, "a tuple of paths")
    elif option.takes in (Takes.PATH, Takes.EXISTING):
        if not isinstance(value, Path) and value is not None:
            raise _fault(option.name, value, "a path")
    elif option.takes in (Takes.NUMBER, Takes.SIZE):
        if type(value) is not int or not 0 <= value <= option.most:
            raise _fault(option.name, value, f"a whole number from 0 to {option.most:,}")
    elif option.takes is Takes.PAIR:
        for pair in value if isinstance(value, tuple) else (value,):
            if not isinstance(pair, tuple) or [type(text) for text in pair] != [str, str]:
                raise _fault(option.name, pair, "pairs of a key and a value, both words")


def _choices(option: Option) -> list[object]:
    if option.words:
        return list(option.words.values())
    return sorted({option.default, *(row.gives for row in OPTIONS if row.name == option.name)}, key=str)


def _fault(name: str, value: object, expected: str) -> UsageError:
    return UsageError("usage", f"{name} is {repr(value)[:80]}, {expected} expected")
