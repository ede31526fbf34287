"""Patterns of a file's author, matched in bounded steps."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ckconv.errors import UnsupportedError

# Regular expressions of a file's author -> the states of an automaton that needs no backtracking.
#
# Accepted is what sets of states can follow: characters, classes, groups, alternatives, repetitions, ``^``, ``$``,
# ``\b``. Not accepted are back references, looking around, flags and named groups, and a number of repetitions of
# anything but one character. An expression has at most :data:`STATES_A_CHARACTER` states for each of its characters.
# What is accepted means what it means to Python's ``re`` (``Lib/re/_parser.py``), as peft uses that.

#: ``|`` has five; of long expressions those of ``a{16}`` have most, four for each of its characters.
STATES_A_CHARACTER = 5
#: Characters of an expression. The longest known ones, which list every kind of projection, have 400.
MAX_PATTERN = 4096
#: The largest number in braces; a layer's number has up to three digits.
MAX_COUNT = 16
_MAX_DEPTH = 32


class NoPattern(ValueError):
    """Not a regular expression."""


class NotMatched(ValueError):
    """A regular expression with an unsupported construct."""


class At(enum.Enum):
    """A condition on a place in the text."""

    START = enum.auto()
    END = enum.auto()
    #: The end, or a line feed that ends the text.
    LAST = enum.auto()
    WORD_EDGE = enum.auto()


@dataclass(frozen=True, slots=True)
class Characters:
    """A set of characters.

    Attributes:
        kinds: categories, each with whether it is the characters outside of it.
    """

    singles: frozenset[str] = frozenset()
    ranges: tuple[tuple[str, str], ...] = ()
    kinds: tuple[tuple[Callable[[str], bool], bool], ...] = ()
    negated: bool = False

    @property
    def size(self) -> int:
        """Comparisons that one character needs at most."""
        return 1 + len(self.ranges) + len(self.kinds)

    def holds(self, char: str) -> bool:
        """The character is one of them."""
        inside = (
            char in self.singles
            or any(low <= char <= high for low, high in self.ranges)
            or any(kind(char) is not outside for kind, outside in self.kinds)
        )
        return inside is not self.negated


def is_word(char: str) -> bool:
    r"""``\w`` of a text."""
    return char.isalnum() or char == "_"


_KINDS: dict[str, Callable[[str], bool]] = {"d": str.isdecimal, "w": is_word, "s": str.isspace}
_PLACES = {"A": At.START, "Z": At.END, "b": At.WORD_EDGE}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
#: Escapes of ``re`` that are not accepted; other letters are none.
_OTHER_ESCAPES = frozenset("BNuUxz0123456789")
_ANY = Characters(frozenset("\n"), negated=True)


@dataclass(frozen=True, slots=True)
class State:
    """State of the automaton: a character, a condition, or neither."""

    needs: Characters | At | None
    to: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Automaton:
    """States by number; ``end`` is where the whole expression has been seen."""

    states: tuple[State, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Part:
    """Part of an expression: begin, end, and whether it may be empty."""

    start: int
    end: int
    empty: bool
    single: Characters | None = None


def automaton(pattern: str) -> Automaton:
    """The automaton of an expression.

    Raises:
        NoPattern, NotMatched: it is none, or not accepted.
    """
    if len(pattern) > MAX_PATTERN:
        raise NotMatched(f"it has {len(pattern):,} characters")
    return _Parser(pattern).parse()


class _Parser:
    """Reads an expression once, from its beginning to its end."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0
        self._needs: list[Characters | At | None] = []
        self._to: list[list[int]] = []

    def parse(self) -> Automaton:
        whole = self._alternatives()
        if self._at < len(self._text):
            raise NoPattern("a parenthesis is not opened")
        end = self._state(None)
        self._to[whole.end].append(end)
        states = tuple(State(needs, tuple(to)) for needs, to in zip(self._needs, self._to, strict=True))
        return Automaton(states, whole.start, end)

    def _next(self) -> str:
        """The next character, which is taken; empty at the end."""
        char = self._peek()
        self._at += len(char)
        return char

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _state(self, needs: Characters | At | None, *to: int) -> int:
        self._needs.append(needs)
        self._to.append(list(to))
        return len(self._needs) - 1

    def _alternatives(self) -> _Part:
        parts = [self._sequence()]
        while self._peek() == "|":
            self._next()
            parts.append(self._sequence())
        if len(parts) == 1:
            return parts[0]
        end = self._state(None)
        for part in parts:
            self._to[part.end].append(end)
        return _Part(self._state(None, *(part.start for part in parts)), end, any(part.empty for part in parts))

    def _sequence(self) -> _Part:
        first = last = self._state(None)
        empty = True
        while self._peek() not in ("", "|", ")"):
            part = self._repeated()
            self._to[last].append(part.start)
            last, empty = part.end, empty and part.empty
        return _Part(first, last, empty)

    def _repeated(self) -> _Part:
        part, repeatable = self._item()
        char = self._peek()
        if not char or char not in "?*+{":
            return part
        if not repeatable:
            raise NoPattern("there is nothing to repeat")
        self._next()
        least, most = {"?": (0, 1), "*": (0, None), "+": (1, None)}.get(char) or self._numbers()
        if self._peek() == "?":
            self._next()  # as few as possible: what matches is the same
        if self._peek() and self._peek() in "?*+{":
            raise NotMatched("a repetition is repeated")
        return self._times(part, least, most)

    def _numbers(self) -> tuple[int, int | None]:
        """Parse the numbers between braces."""
        close = self._text.find("}", self._at)
        first, comma, second = self._text[self._at : close].partition(",") if close > 0 else ("", "", "")
        if not all(number.isascii() and len(number) <= 2 for number in (first, second)):
            raise NotMatched("a number in braces is too large")
        if not (first.isdecimal() or (comma and not first)) or not (second.isdecimal() or not second):
            raise NotMatched("a brace is no number of times")
        self._at = close + 1
        least = int(first or 0)
        most = int(second) if second else None if comma else least
        if max(least, most or 0) > MAX_COUNT:
            raise NotMatched("a number in braces is too large")
        if most is not None and most < least:
            raise NoPattern("a number in braces is below the one before it")
        return least, most

    def _times(self, part: _Part, least: int, most: int | None) -> _Part:
        """The part again and again."""
        if (least, most) == (0, 1):
            end = self._state(None)
            self._to[part.end].append(end)
            return _Part(self._state(None, part.start, end), end, True)
        if part.empty:
            # What ``re`` does after an empty repetition differs from one version of Python to the next.
            raise NotMatched("what may be empty is repeated")
        if most is None and least <= 1:
            end = self._state(None)
            again = self._state(None, part.start, end)
            self._to[part.end].append(again)
            return _Part(part.start if least else again, end, not least)
        if part.single is None:
            raise NotMatched("a group is repeated a number of times")
        first = last = self._state(None)
        for _ in range(least):
            one = self._state(part.single)
            self._to[last].append(one)
            last = one
        if most is None:
            self._to[last].append(last_again := self._state(part.single))
            self._to[last_again].append(last)
            return _Part(first, last, False)
        end = self._state(None)
        for _ in range(most - least):
            self._to[last].append(end)
            one = self._state(part.single)
            self._to[last].append(one)
            last = one
        self._to[last].append(end)
        return _Part(first, end, not least)

    def _item(self) -> tuple[_Part, bool]:
        """Character, class, group or condition; and if repeatable."""
        char = self._next()
        if char == "(":
            return self._group(), True
        if char == "^":
            return self._condition(At.START), False
        if char == "$":
            return self._condition(At.LAST), False
        if char in "?*+":
            raise NoPattern("there is nothing to repeat")
        if char == "{":
            raise NotMatched("a brace is no number of times")
        if char == ".":
            return self._single(_ANY), True
        if char == "[":
            return self._single(self._class()), True
        if char != "\\":
            return self._single(Characters(frozenset(char))), True
        escaped = self._escape()
        return (self._condition(escaped), False) if isinstance(escaped, At) else (self._single(escaped), True)

    def _condition(self, at: At) -> _Part:
        state = self._state(at)
        return _Part(state, state, True)

    def _single(self, characters: Characters) -> _Part:
        state = self._state(characters)
        return _Part(state, state, False, characters)

    def _group(self) -> _Part:
        if self._peek() == "?":
            self._next()
            if self._next() != ":":
                raise NotMatched("a group is more than a group")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise NotMatched(f"groups are nested more than {_MAX_DEPTH} deep")
        part = self._alternatives()
        if self._next() != ")":
            raise NoPattern("a parenthesis is not closed")
        self._depth -= 1
        return _Part(part.start, part.end, part.empty)

    def _escape(self) -> Characters | At:
        char = self._next()
        if char in _PLACES:
            return _PLACES[char]
        return self._escaped(char)

    def _escaped(self, char: str) -> Characters:
        if char and char.lower() in _KINDS:
            return Characters(kinds=((_KINDS[char.lower()], char.isupper()),))
        if char in _CONTROLS:
            return Characters(frozenset(_CONTROLS[char]))
        if not char:
            raise NoPattern("nothing is escaped")
        if char in _OTHER_ESCAPES:
            raise NotMatched(f"\\{char} is in it")
        if char.isascii() and char.isalnum():
            raise NoPattern(f"\\{char} means nothing")
        return Characters(frozenset(char))

    def _class(self) -> Characters:
        """Characters between brackets, the first of which has been taken."""
        negated = self._peek() == "^"
        self._at += negated
        singles: set[str] = set()
        ranges: list[tuple[str, str]] = []
        kinds: list[tuple[Callable[[str], bool], bool]] = []
        first = True
        while first or self._peek() != "]":
            first = False
            low = self._member()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._next()
                high = self._member()
                if low.kinds or high.kinds or min(low.singles) > min(high.singles):
                    raise NoPattern("a range of characters has no order")
                ranges.append((min(low.singles), min(high.singles)))
                continue
            singles |= low.singles
            kinds += low.kinds
        self._next()
        return Characters(frozenset(singles), tuple(ranges), tuple(kinds), negated)

    def _member(self) -> Characters:
        char = self._next()
        if not char:
            raise NoPattern("a class of characters is not closed")
        if char != "\\":
            return Characters(frozenset(char))
        escaped = self._next()
        if escaped == "b":
            raise NotMatched("\\b is in a class")
        return self._escaped(escaped)


# Matching names with the patterns of a file's author, in steps that are counted and bounded.
#
# A name is followed through all states of an expression at once, so the steps are at most states times characters, and
# states are at most a few for each character of the expression (:mod:`ckconv.formats.peft.patterns`). Sets of
# states are kept and used again, which makes most characters one step. The answer is that of Python's ``re``.

#: Steps for all patterns and names of one file: some seconds.
MAX_STEPS = 20_000_000
#: Numbers of states that one pattern keeps in its sets.
_MAX_KEPT = 100_000
#: What making and keeping a state counts for.
_STEPS_A_STATE = 100

#: Conditions that hold at a place.
Holding = frozenset[At]
_NONE: Holding = frozenset()


class Steps:
    """Counts what was done.

    Args:
        path: the file whose patterns they are.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.taken = 0

    def take(self, number: int) -> None:
        """Count some more."""
        self.taken += number
        if self.taken > MAX_STEPS:
            message = f"its patterns take more than {MAX_STEPS:,} steps to be held against its modules"
            raise UnsupportedError("adapter.unsupported", message, path=self.path)


class Pattern:
    """A regular expression, compiled to an automaton.

    Raises:
        NoPattern, NotMatched: as :func:`ckconv.formats.peft.patterns.automaton`.
    """

    def __init__(self, pattern: str, steps: Steps) -> None:
        self._automaton: Automaton = automaton(pattern)
        self._steps = steps
        steps.take(_STEPS_A_STATE * len(self._automaton.states))
        self._conditions = any(isinstance(state.needs, At) for state in self._automaton.states)
        self._forget()

    def fully_matches(self, name: str) -> bool:
        """``re.fullmatch``."""
        return self._follow(name, whole=True)

    def matches(self, name: str) -> bool:
        """``re.match``: the name begins so."""
        return self._follow(name, whole=False)

    def _forget(self) -> None:
        self._kept = 0
        self._numbers: dict[frozenset[int], int] = {}
        self._sets: list[frozenset[int]] = []
        self._reached: dict[tuple[int, Holding], tuple[tuple[int, ...], bool]] = {}
        self._moves: dict[tuple[int, Holding, str], int] = {}

    def _number(self, states: frozenset[int]) -> int:
        number = self._numbers.setdefault(states, len(self._sets))
        if number == len(self._sets):
            self._sets.append(states)
            self._kept += 1 + len(states)
        return number

    def _follow(self, name: str, *, whole: bool) -> bool:
        states = frozenset((self._automaton.start,))
        current = self._number(states)
        for at, char in enumerate(name):
            self._steps.take(1)
            if self._kept > _MAX_KEPT:
                states = self._sets[current]
                self._forget()
                current = self._number(states)
            holding = self._holding(name, at)
            needing, ended = self._reach(current, holding)
            if ended and not whole:
                return True
            if not needing:
                return False
            key = (current, holding, char)
            found = self._moves.get(key)
            current = self._move(key, needing) if found is None else found
        return self._reach(current, self._holding(name, len(name)))[1]

    def _reach(self, current: int, holding: Holding) -> tuple[tuple[int, ...], bool]:
        """States reached without a character, and if the end is."""
        found = self._reached.get((current, holding))
        if found is not None:
            return found
        seen: set[int] = set()
        needing = []
        waiting = list(self._sets[current])
        while waiting:
            self._steps.take(1)
            number = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            state = self._automaton.states[number]
            if isinstance(state.needs, Characters):
                needing.append(number)
            elif state.needs is None or state.needs in holding:
                waiting += state.to
        found = (tuple(needing), self._automaton.end in seen)
        self._reached[current, holding] = found
        self._kept += 1 + len(needing)
        return found

    def _move(self, key: tuple[int, Holding, str], needing: tuple[int, ...]) -> int:
        """The set of states behind a character."""
        to: set[int] = set()
        for number in needing:
            state = self._automaton.states[number]
            assert isinstance(state.needs, Characters)
            self._steps.take(state.needs.size)
            if state.needs.holds(key[2]):
                to.update(state.to)
        self._moves[key] = self._number(frozenset(to))
        self._kept += 1
        return self._moves[key]

    def _holding(self, name: str, at: int) -> Holding:
        """The conditions that hold before a character of the name, or at its end."""
        if not self._conditions:
            return _NONE
        before, after = name[at - 1 : at] if at else "", name[at : at + 1]
        holding = {At.START} if not at else set()
        if not after:
            holding |= {At.END, At.LAST}
        elif after == "\n" and at == len(name) - 1:
            holding.add(At.LAST)
        if is_word(before) is not is_word(after):
            holding.add(At.WORD_EDGE)
        return frozenset(holding)
