"""Regular expressions of a file's author, matched in bounded time.

Python's own may backtrack for years; the package regex matches as Python does, and stops when its time is over.
"""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ckconv.errors import InputError, UnsupportedError, quoted

if TYPE_CHECKING:
    import regex

#: For all patterns and modules of one file. The largest known adapters take a hundredth of it.
MAX_SECONDS = 3.0
#: Characters of an expression. The longest known ones, which list every kind of projection, have 400.
MAX_PATTERN = 4096
#: Places that regex may make of an expression: it writes out what is repeated a number of times.
MAX_PLACES = 100_000
#: Numbers of repetitions, and the bracket of a group before them.
_COUNT = re.compile(r"(\)?)\{(?:\d*,)?(\d+)(?:,)?\}")
#: What regex reads as a number of errors and as a class of POSIX, and Python as characters.
_OTHERWISE = re.compile(r"\[:|(?<!\\)(?:\\\\)*\{(?!\d+(?:,\d*)?\}|,\d+\})")

#: Every character of such an expression stands for one character: for itself, or ``.`` for any one.
PLAIN = re.compile(r"(?:[A-Za-z0-9_.\-]|\\\.)*", re.ASCII)

#: What a compiled expression finds in a path, if anything.
Matcher = Callable[[str], "re.Match[str] | regex.Match[str] | None"]


class Clock:
    """Time left for the patterns of one file.

    Args:
        path: the file whose patterns they are.
        code: of the error where none is left, or an expression cannot be matched.
    """

    def __init__(self, path: Path | None = None, code: str = "adapter.unsupported") -> None:
        self.path, self.code = path, code
        self._left = MAX_SECONDS

    def take(self, seconds: float) -> None:
        """Take time off.

        Raises:
            UnsupportedError: the clock's code, none is left.
        """
        self._left -= seconds
        if self._left <= 0:
            message = f"its patterns take more than {MAX_SECONDS:g} seconds to be held against its modules"
            hint = "names in place of patterns are held against them at once"
            raise UnsupportedError(self.code, message, path=self.path, hint=hint)

    def match(self, method: Callable[..., regex.Match[str] | None], name: str) -> regex.Match[str] | None:
        """Result of a method of regex's for a name."""
        began = time.monotonic()
        try:
            found = method(name, timeout=self._left)
        except TimeoutError:
            found, began = None, -math.inf
        self.take(time.monotonic() - began)
        return found


def compiled(text: str, field: str, clock: Clock, around: str | None) -> Matcher:
    """Function that matches an expression, within another or a whole path.

    The expression is valid by itself.

    Raises:
        InputError: ``adapter.config``, it is not a regular expression.
        UnsupportedError: the clock's code, Python and regex read it otherwise, or it is too large.
    """
    began = time.monotonic()
    whole = text if around is None else around.replace("{}", text)
    counts = [(bool(group), int(number)) for group, number in _COUNT.findall(text)]
    places = len(text) * math.prod(number for group, number in counts if group) * max([1, *(n for _, n in counts)])
    message = (
        f"{quoted(text)} of {field} is an expression that ckconv does not match: it is longer than"
        f" {MAX_PATTERN:,} characters, too deep or too often repeated, or has braces that are no number of"
        " repetitions, or a class [:...:]"
    )
    refused = UnsupportedError(clock.code, message, path=clock.path)
    if len(text) > MAX_PATTERN or places > MAX_PLACES or _OTHERWISE.search(text):
        raise refused
    try:
        with warnings.catch_warnings(action="ignore"):  # of a bracket in a class
            re.compile(text)
            plain = re.compile(whole)
            if PLAIN.fullmatch(text):
                return plain.fullmatch if around is None else plain.match
            import regex

            made = regex.compile(whole, cache_pattern=False)
    except re.error as error:
        message = f"{quoted(text)} of {field} is not a regular expression: {error}"
        raise InputError("adapter.config", message, path=clock.path) from None
    except (RecursionError, OverflowError):
        raise refused from None
    clock.take(time.monotonic() - began)
    return partial(clock.match, made.fullmatch if around is None else made.match)
