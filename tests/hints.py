"""What a hint tells a user to do, as commands: every flag and every ``ckconv ...`` that it names.

A hint's clauses are separated by ``;``, ``,``, ``:`` and ``or``. A clause that begins with a flag, or with ``leave
out`` and a flag, changes the command that was refused; one that begins with ``ckconv`` is a command of its own. Words
in capitals stand for what only the user knows, which :data:`Known` has; other clauses are prose.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from ckconv.cli.commands import main
from ckconv.core.options import OPTIONS

#: Commands that are run one after the other, until one is not refused.
DEPTH = 5

_CLAUSE = re.compile(r"(?:;|,|:|\bor\b)\s+(?=--|ckconv |leave out --|or --)|\s+(?=leave out --)")
_FIRST = re.compile(r"(?:without --[^,]*, )?")
_VERB = re.compile(rf"ckconv ({'|'.join(main.list_commands(click.Context(main)))}) ")
_PLACEHOLDER = re.compile(r"[A-Z][A-Z_]*(?:=[A-Z]+|\.gguf)?")


class Refusal(NamedTuple):
    """How a command ended.

    Attributes:
        sentences: its reasons.
        hint: what leads out of all of them.
        behind: reason -> what leads out of that one, where nothing leads out of all.
    """

    status: int
    code: str = ""
    sentences: frozenset[str] = frozenset()
    hint: str = ""
    behind: Mapping[str, str] = {}

    @property
    def ways(self) -> list[str]:
        """The clauses that are commands or flags."""
        return [clause for hint in (self.hint, *self.behind.values()) for clause in said(hint)]


#: Runs a command.
Runner = Callable[[list[str]], Refusal]

#: What a placeholder of a hint stands for -> the word: ``{"MODEL": "fixtures/hf/llama"}``.
Known = Mapping[str, str]


class Misleading(AssertionError):
    """A hint that does not lead on."""


class Unknown(Misleading):
    """A placeholder of a hint that nobody has a word for."""


def clauses(hint: str) -> list[str]:
    """The parts of a hint, each of which says one thing to do; what it begins with is for all of them."""
    first = _FIRST.match(hint)
    assert first is not None
    gone = "".join(f" without {flag}" for flag in re.findall(r"--[\w-]+", first[0]))
    found = [clause.removeprefix("or ").strip() for clause in _CLAUSE.split(hint[first.end() :]) if clause.strip()]
    return [f"{clause}{gone}" if clause.startswith("--") else clause for clause in found]


def said(hint: str) -> list[str]:
    """The clauses of a hint that are commands or flags."""
    return [clause for clause in clauses(hint) if clause.startswith(("--", "leave out --")) or _VERB.match(clause)]


def commands(arguments: list[str], hint: str, known: Known = {}) -> Iterator[list[str]]:  # noqa: B006
    """What a user runs who does what the hint says of a command.

    Raises:
        Misleading: the command has no such flag, or nobody says what a placeholder is.
    """
    for clause in said(hint):
        words = _words(clause)
        if words[0] == "ckconv":
            verb = words[1]
            ends = next((n for n, word in enumerate(words[2:], 2) if not _is_argument(word)), len(words))
            yield [verb, *(_filled(word, known) for word in _with_values(words[2:], verb, ends - 2))]
            continue
        yield changed(arguments, words, known)


def changed(arguments: list[str], words: list[str], known: Known) -> list[str]:
    """The command with the flags that a clause begins with, and without those that it says to leave out."""
    flags = _flags(arguments[0])
    found = list(arguments)
    removing = words[:2] == ["leave", "out"]
    at = 2 if removing else 0
    while at < len(words) and (words[at].startswith("--") or words[at] == "without"):
        removing = removing or words[at] == "without"
        at += words[at] == "without"
        flag = words[at].rstrip(",;:")
        if flag not in flags:
            raise Misleading(f"ckconv {arguments[0]} has no {flag}")
        takes, several, excluded = flags[flag]
        at += 1
        for other in [] if several and not removing else [flag, *excluded]:
            _remove(found, other, flags)
        if removing:
            continue
        found.append(flag)
        if takes:
            if at == len(words):
                raise Misleading(f"{flag} stands without a value")
            found.append(_filled(words[at].rstrip(",;:"), known))
            at += 1
    for word, flag in itertools.pairwise(words[at:]):
        if word == "without" and flag in flags:
            _remove(found, flag, flags)
    if words[at : at + 1] == ["DST/"]:
        found = [f"{Path(it).with_suffix('')}-as/" if it == target(arguments) else it for it in found]
    return found


def target(arguments: list[str]) -> str:
    """The output that a command names; empty where it has none."""
    command = main.get_command(click.Context(main), arguments[0])
    assert command is not None
    given = command.make_context(arguments[0], arguments[1:], resilient_parsing=True).params
    named = [given.get(name) for name in ("output", "dst", "into")] + [*given.get("paths", ())[1:]][-1:]
    return str(next(filter(None, named), ""))


def follow(
    run: Runner,
    arguments: list[str],
    known: Known = {},  # noqa: B006
    *,
    without: str = "",
) -> list[list[str]]:
    """Run a command that is refused, and whatever its hint says: each clause has to lead to a command that succeeds.

    One behind a reason has to lead out of that reason.

    Args:
        without: a placeholder; clauses with it are left alone.

    Returns:
        The commands that succeeded, one for each clause.

    Raises:
        Misleading: a clause is refused for the reason that it should change, as usage, or in a circle.
    """
    first = run(arguments)
    found = [clause for clause in first.ways if not without or without not in clause]
    ways = [way for clause in found for way in commands(arguments, clause, known)]
    return [_succeeds(run, way, first, known, (arguments,)) for way in ways]


def _succeeds(
    run: Runner, arguments: list[str], before: Refusal, known: Known, path: tuple[list[str], ...]
) -> list[str]:
    shown = f"{shlex.join(path[-1])}\n  says: {before.hint}\n  {shlex.join(arguments)}"
    if arguments in path or len(path) > DEPTH:
        raise Misleading(f"{shown}\n  is no other command")
    found = run(arguments)
    if found.status == 0:
        return arguments
    told = "\n    ".join(sorted(found.sentences))
    if found.status == 1 or (found.status == 2 and not found.ways):
        raise Misleading(f"{shown}\n  is {found.code}: {told}")
    if before.sentences <= found.sentences:
        raise Misleading(f"{shown}\n  is refused for the same reasons: {told}")
    if any(reason not in found.sentences for reason in before.behind):
        return arguments  # the others are as they were
    if not found.ways and (found.hint or found.behind):
        return arguments  # another reason, and words that lead on
    if not found.ways:
        raise Misleading(f"{shown}\n  is refused for good: {told}")
    failed: list[Misleading] = []
    for made in (way for clause in found.ways for way in commands(arguments, clause, known)):
        try:
            return _succeeds(run, made, found, known, (*path, arguments))
        except Misleading as error:
            failed.append(error)
    raise failed[0]


def _words(clause: str) -> list[str]:
    lexer = shlex.shlex(clause.partition(";")[0], posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    found = []
    try:
        found.extend(lexer)
    except ValueError:  # an apostrophe of the prose behind the flags
        return [word.strip("'") for word in clause.split()]
    return found


def _is_argument(word: str) -> bool:
    return word.startswith(("--", "./", "/")) or bool(_PLACEHOLDER.fullmatch(word.rstrip("/,;")))


def _with_values(words: list[str], verb: str, least: int) -> list[str]:
    """The arguments of a command at the head of a clause."""
    flags, found, at = _flags(verb), [], 0
    while at < len(words) and (at < least or words[at].startswith("--")):
        word = words[at].rstrip(",;")
        found.append(word)
        if word.startswith("--"):
            if word not in flags:
                raise Misleading(f"ckconv {verb} has no {word}")
            if flags[word][0]:
                at += 1
                if at == len(words):
                    raise Misleading(f"{word} stands without a value")
                found.append(words[at].rstrip(",;"))
        at += 1
    return found


def _filled(word: str, known: Known) -> str:
    if not _PLACEHOLDER.fullmatch(word.rstrip("/")):
        return word
    if word not in known:
        raise Unknown(f"nobody says what {word} is")
    return known[word]


def _remove(arguments: list[str], flag: str, flags: Mapping[str, tuple[bool, bool, list[str]]]) -> None:
    while flag in arguments:
        at = arguments.index(flag)
        del arguments[at : at + 1 + flags[flag][0]]


def _flags(verb: str) -> dict[str, tuple[bool, bool, list[str]]]:
    """Flag of a command -> whether a value follows, whether it is repeatable, and the flags whose place it takes."""
    command = main.get_command(click.Context(main), verb)
    assert command is not None, verb
    found: dict[str, tuple[bool, bool, list[str]]] = {}
    options = [option for option in command.get_params(click.Context(command)) if isinstance(option, click.Option)]
    for option in options:
        fields = {row.name for row in OPTIONS if row.flag in option.opts}
        same = {row.flag for row in OPTIONS if row.name in fields}
        alike = [other for other in options if other.name == option.name or same & {*other.opts}]
        rivals = [name for other in alike for name in other.opts if name[1] == "-"]
        for name in option.opts:
            found[name] = (not option.is_flag, option.multiple, [rival for rival in rivals if rival != name])
    return found


def refusal(status: int, error: Mapping[str, Any]) -> Refusal:
    """What ``--json`` says of an error."""
    told = [text for text in error["details"] if not text.startswith(("... and ", "way out: "))]
    details = [text.partition("; hint: ") for text in told]
    sentences = frozenset(text for text, _, _ in details) or frozenset({error["message"]})
    behind = {text: hint for text, _, hint in details if hint}
    return Refusal(status, error["code"], sentences, error["hint"] or "", behind)
