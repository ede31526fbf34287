"""Matching names with the patterns of a file's author, in steps that are counted and bounded.

A name is followed through all states of an expression at once, so the steps are at most states times characters, and
states are at most a few for each character of the expression (:mod:`ckconv.formats.peft.pattern_syntax`). Sets of
states are kept and used again, which makes most characters one step. The answer is that of Python's ``re``.
"""

from __future__ import annotations

from pathlib import Path

from ckconv.errors import UnsupportedError
from ckconv.formats.peft.pattern_syntax import At, Automaton, Characters, automaton, is_word

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
        """Count some more.

        Raises:
            UnsupportedError: ``adapter.unsupported``, there are too many.
        """
        self.taken += number
        if self.taken > MAX_STEPS:
            message = f"its patterns take more than {MAX_STEPS:,} steps to be held against its modules"
            raise UnsupportedError("adapter.unsupported", message, path=self.path)


class Pattern:
    """One expression.

    Raises:
        NoPattern, NotMatched: as :func:`ckconv.formats.peft.pattern_syntax.automaton`.
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
        """Where a set leads without a character: the states that need one, and whether the end is reached."""
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
