"""Refused commands of all tests, noted while they run; their hints are followed when a test is through.

Works with ``CKCONV_HINTS``, which names a file: a line of JSON for each hint that was met (``scripts/hints.py``).
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import click
import hints
from hints import Misleading, Refusal, Unknown

import ckconv.api
from ckconv.cli import run
from ckconv.cli.commands import main
from ckconv.core.options import OPTIONS, Options, Takes
from ckconv.errors import CkconvError
from ckconv.system.signals import ENDING

FIXTURES = Path(__file__).parent.parent / "fixtures"


class Command(NamedTuple):
    """What was refused: its words, and where."""

    arguments: tuple[str, ...]
    folder: str


class How(NamedTuple):
    """What became of a hint.

    Attributes:
        whole, hint: the hint, and one clause of it.
        what: ``followed``, ``prose`` (it is no command), ``unknown`` (only the user knows a word of it), ``raised`` (by
            what cannot be run again), ``misleading``.
    """

    whole: str
    hint: str
    what: str
    why: str = ""


def flags(options: Options) -> list[str]:
    """The flags that give these options."""
    found: list[str] = []
    for row in OPTIONS:
        value = getattr(options, row.name)
        if row.takes is Takes.NO_FLAG or value == row.default:
            continue
        if row.takes is Takes.NOTHING:
            found += [row.flag] if value == row.gives else []
        elif row.takes in (Takes.WORD, Takes.WORDS):
            words = {given: word for word, given in row.words.items()}
            for each in value if row.takes is Takes.WORDS else [value]:
                found += [row.flag, words[each]]
        elif row.takes is Takes.PAIR:
            found += [part for key, text in value for part in (row.flag, f"{key}={text}")]
        else:
            found += [
                part for each in (value if isinstance(value, tuple) else (value,)) for part in (row.flag, str(each))
            ]
    return found


def _given(adapters: Any = (), options: Options | None = None, **switches: Any) -> list[str]:
    found = [part for path, scale in adapters or () for part in ("--adapter", f"{path}={scale:g}")]
    found += flags(options) if options is not None else []
    return found + [f"--{name.replace('_', '-')}" for name, value in switches.items() if value is True]


def _open(
    path: Any, *, format: str | None = None, follow_links: bool = False, families: Any = (), **_: Any
) -> list[str]:
    options = Options(follow_links=follow_links, families=tuple(map(Path, families)))
    return ["inspect", str(path), *(("--from", format) if format else ()), *_given(options=options)]


def _convert(source: Any, target: Any, *, to: str | None = None, source_format: str | None = None, mmproj: Any = None,
             adapters: Any = (), options: Options | None = None, **more: Any) -> list[str]:  # fmt: skip
    named = [*(("--to", to) if to else ()), *(("--from", source_format) if source_format else ())]
    switches = {name: more.get(name) for name in ("force", "checksums", "record", "resume")}
    return ["convert", str(source), *([str(mmproj)] if mmproj else ()), os.fspath(target), *named,
            *_given(adapters, options, **switches)]  # fmt: skip


def _edit(
    source: Any, target: Any = None, *, set_meta: Any = (), drop_meta: Any = (), force: bool = False, **_: Any
) -> list[str]:
    place = ["--in-place"] if target is None else [os.fspath(target)]
    return [
        "edit",
        str(source),
        *place,
        *_given(options=Options(set_meta=tuple(set_meta), drop_meta=tuple(drop_meta)), force=force),
    ]


def _verify(path: Any, source: Any = None, *, mmproj: Any = None, left_out: Any = (), options: Options | None = None,
            adapters: Any = (), weights: bool = False, **_: Any) -> list[str]:  # fmt: skip
    sources = [str(each) for each in (source, mmproj) if each is not None]
    dropped = [part for glob in left_out for part in ("--drop", glob)]
    return ["verify", str(path), *sources, *dropped, *_given(adapters, options, weights=weights)]


def _diff(a: Any, b: Any, *, weights: bool = False, **_: Any) -> list[str]:
    return ["diff", str(a), str(b), *_given(weights=weights)]


#: A function of the library -> the command line that says the same.
_SAME: dict[str, Callable[..., list[str]]] = {
    "open_model": _open, "convert": _convert, "edit": _edit, "verify": _verify, "diff": _diff,
}  # fmt: skip

_NOTED: list[Command] = []


def note(arguments: list[str]) -> None:
    """A command was refused."""
    with suppress(OSError):
        _NOTED.append(Command(tuple(arguments), str(Path.cwd())))


def forget() -> None:
    """What a test follows itself is not followed behind it."""
    _NOTED.clear()


@contextmanager
def noted() -> Iterator[None]:
    """Within the block, refusals of the library's functions are noted, too."""
    real = {name: getattr(ckconv.api, name) for name in _SAME}

    def noting(name: str) -> Callable[..., Any]:
        @wraps(real[name])
        def call(*arguments: Any, **given: Any) -> Any:
            try:
                return real[name](*arguments, **given)
            except CkconvError as error:
                if error.hint or any("; hint: " in text for text in error.details):
                    with suppress(Exception):  # what no command line says
                        note(_SAME[name](*arguments, **given))
                raise

        return call

    try:
        for name in real:
            setattr(ckconv.api, name, noting(name))
        yield
    finally:
        for name, function in real.items():
            setattr(ckconv.api, name, function)


# -- What a person does who reads a hint that is no command ------------------------------------------------------------


def _another_target(arguments: list[str], folder: Path, error: Mapping[str, Any], _: Any) -> list[str]:
    """Of another name, in another place; an output instead of the source in its place."""
    target = error["path"] if error["path"] in arguments else hints.target(arguments)
    if "--in-place" in arguments:
        other = _made(folder / "another") / Path(arguments[1]).name
        return [*(it for it in arguments if it != "--in-place"), f"{other}{'/' * Path(arguments[1]).is_dir()}"]
    if not target:
        raise Unknown("there is no output")
    other = f"{_made(folder / 'another')}/another-{Path(target).name}"
    slash = "/" if f"{target}/" in arguments or target.endswith("/") else ""
    at = max(n for n, it in enumerate(arguments) if it.rstrip("/") == target.rstrip("/"))  # the source may be the same
    return [*arguments[:at], f"{other}{slash}", *arguments[at + 1 :]]


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _a_directory(arguments: list[str], folder: Path, error: Mapping[str, Any], _: Any) -> list[str]:
    target = hints.target(arguments)
    return [f"{it.rstrip('/')}/" if it == target else it for it in arguments]


def _makes(arguments: list[str], folder: Path, error: Mapping[str, Any], found: re.Match[str]) -> list[str]:
    Path(found[1].strip("'")).mkdir(parents=True)
    return arguments


def _names(arguments: list[str], folder: Path, error: Mapping[str, Any], found: re.Match[str]) -> list[str]:
    return [found[1] if it == Path(found[1]).name else it for it in arguments]


def _meant(arguments: list[str], folder: Path, error: Mapping[str, Any], found: re.Match[str]) -> list[str]:
    words = [*re.findall(r"'([^']*)'", error["message"]), error["path"]]
    return [found[1].strip("'") if it in words else it for it in arguments]


def _one_of_them(arguments: list[str], folder: Path, error: Mapping[str, Any], found: re.Match[str]) -> list[str]:
    (name,) = re.findall(r"'([^']*)'", found.string if found.lastindex else error["message"])[:1]
    place = error["path"]
    return [str(Path(place) / name) if it.rstrip("/") == place else it for it in arguments]


def _another_file(arguments: list[str], folder: Path, error: Mapping[str, Any], found: re.Match[str]) -> list[str]:
    flag = found[1]
    at = arguments.index(flag) + 1
    return [*arguments[:at], str(_made(folder / "another") / Path(arguments[at]).name), *arguments[at + 1 :]]


def _as_path(arguments: list[str], folder: Path, error: Mapping[str, Any], found: re.Match[str]) -> list[str]:
    return [found[1] if "://" in it else it for it in arguments]


def _not_strict(arguments: list[str], folder: Path, error: Mapping[str, Any], _: Any) -> list[str]:
    return [it for it in arguments if it != "--strict"]


def _put_away(arguments: list[str], folder: Path, error: Mapping[str, Any], found: re.Match[str]) -> list[str]:
    path = Path(error["path"])
    path = path if path.name == found[1] else path.parent / found[1]
    path.rename(_made(folder / "away") / path.name)
    return arguments


def _removed(arguments: list[str], folder: Path, error: Mapping[str, Any], _: Any) -> list[str]:
    path = Path(error["path"])
    if path.is_dir() and not path.is_symlink():
        raise Unknown("a directory")
    path.unlink()
    return arguments


#: A hint -> the command of whoever does what it says.
_DONE: list[tuple[str, Callable[[list[str], Path, Mapping[str, Any], Any], list[str]]]] = [
    (r"name another (DST|place|directory)|name a DST|name a file$", _another_target),
    (r"name a directory(: DST/|, for| for|$)", _a_directory),
    (r"mkdir -p (.+)", _makes),
    (r"(\./.+) names the file", _names),
    (r"did you mean (.+)\?", _meant),
    (
        r"name one of them|name (?:the file|one of them) instead of the directory(?:, whose set is read)?: (.+)",
        _one_of_them,
    ),
    (r"remove it|remove the link|move it away", _removed),
    (r"name another (?:FILE|DIR) for (--[a-z]+)", _another_file),
    (r"name another (--into) DIR", _another_file),
    (r"name it as one: (.+)", _as_path),
    (r"look at what is named", _not_strict),
    (r"name a file in it, or .+/ for all", _a_directory),
    (r"if (.+) belongs to another file, move it away", _put_away),
]


def _moved(arguments: list[str], folder: Path) -> list[str]:
    """The command with another output."""
    target = hints.target(arguments)
    if not target:
        raise Unknown("there is no output")
    slash = "/" if f"{target}/" in arguments or target.endswith("/") else ""
    return [
        f"{_made(folder) / Path(target).name}{slash}" if it.rstrip("/") == target.rstrip("/") else it
        for it in arguments
    ]


# -- Following --------------------------------------------------------------------------------------------------------


def _runs(arguments: list[str]) -> tuple[Refusal, Mapping[str, Any]]:
    """Run a command, without its output."""
    handlers = {number: signal.getsignal(number) for number in ENDING}
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = run([*arguments, *(() if "--json" in arguments else ("--json",))])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if code == 0:
        return Refusal(0), {}
    lines = [line for line in f"{err.getvalue()}\n{out.getvalue()}".splitlines() if line.startswith('{"error"')]
    error = json.loads(lines[-1])["error"] if lines else {"code": "", "message": "", "details": [], "hint": ""}
    return hints.refusal(code, error), error


def follow_noted(folder: Path, record: Path, test: str) -> list[str]:
    """Follow the hints of everything that was noted, and write down what became of each.

    Returns:
        What is misleading.
    """
    commands, wrong = list(dict.fromkeys(_NOTED)), []
    _NOTED.clear()
    began = time.monotonic()
    for number, command in enumerate(commands):
        here = Path.cwd()
        try:
            os.chdir(command.folder)
            found = (
                list(_followed([*command.arguments], folder / f"hints-{number}"))
                if time.monotonic() - began < 60
                else []
            )
        except OSError:
            found = []
        finally:
            os.chdir(here)
        with record.open("a") as file:
            for how in found:
                file.write(json.dumps({"test": test, "command": command.arguments, **how._asdict()}) + "\n")
        wrong += [how.why for how in found if how.what == "misleading"]
    return wrong


def _followed(arguments: list[str], folder: Path) -> Iterator[How]:
    if len(arguments) < 2 or main.get_command(click.Context(main), arguments[0]) is None or "-" in arguments:
        return
    first, error = _runs(arguments)
    if first.status == 0 or not (first.hint or first.behind):
        return
    runner: Callable[[list[str]], Refusal] = lambda given: _runs(given)[0]  # noqa: E731
    told = [(hint, clause) for hint in (first.hint, *first.behind.values()) for clause in hints.clauses(hint)]
    for number, (hint, clause) in enumerate(told):
        made, place = arguments, folder / str(number)
        with suppress(Unknown, click.ClickException):
            if not first.code.startswith("output."):  # else what is there is what it is about
                made = _moved(arguments, place)
        yield How(hint, clause, *_one(runner, made, clause, first, error, place))


def base_of(adapter: Path) -> Path:
    """A base with tensors for an adapter of the fixtures."""
    family = adapter.name.partition("-")[0].replace("mlx", "llama")
    return sorted((FIXTURES / "hf").glob(f"{family}-*/*.safetensors"))[0].parent


def _known(arguments: list[str], folder: Path) -> dict[str, str]:
    """What stands for the words in capitals: what the command or the test names."""
    found = {
        "GLOB": "*",
        "N": "64",
        "KEY=VALUE": "general.name=x",
        "DST": str(folder / "new" / "m.gguf"),
        "DST/": f"{folder}/to/",
    }
    if arguments[0] == "edit":
        found["GLOB"] = "general.name"
    source = Path(arguments[1])
    if FIXTURES in source.parents and "lora" in str(source):
        return {**found, "ADAPTER": arguments[1], "BASE": str(base_of(source))}
    if "--adapter" in arguments:
        path, _, last = arguments[arguments.index("--adapter") + 1].rpartition("=")  # of PATH=WEIGHT or PATH
        return {**found, "BASE": arguments[1], "ADAPTER": path or last}
    bases = [*folder.parent.parent.glob("base*")]
    return {**found, "ADAPTER": arguments[1], **({"BASE": str(bases[0])} if bases else {})}


def _of_another_format(runner: Any, arguments: list[str], folder: Path) -> list[str]:
    """Without a name that says the former format, and flags that only that has."""
    target = hints.target(arguments)
    arguments = [f"{folder}/to/" if it.rstrip("/") == target.rstrip("/") else it for it in arguments]
    while (found := runner(arguments)).code == "usage.flag":
        (sentence,) = found.sentences
        flag = sentence.split()[0]
        if not sentence.startswith("--") or flag not in arguments:
            break
        hints._remove(arguments, flag, hints._flags(arguments[0]))
    return arguments


def _one(
    runner: Any, made: list[str], clause: str, first: Refusal, error: Mapping[str, Any], folder: Path
) -> tuple[str, str]:
    """What became of a clause, and why."""
    known = _known(made, folder)
    if clause.startswith("ckconv edit SRC "):
        known["SRC"] = made[1]
    try:
        if hints.said(clause):
            _made(folder / "new")
            for way in list(hints.commands(made, clause, known)):
                if clause.startswith("--to "):
                    way = _of_another_format(runner, way, folder)
                hints._succeeds(runner, way, first, known, (made,))
            return "followed", ""
        for pattern, done in _DONE:
            if found := re.match(pattern, clause):
                way = done(made, folder, error, found)
                if way == made and done not in (_makes, _removed, _put_away):
                    raise Unknown("it is the same command")
                hints._succeeds(runner, way, first, known, (["as it was"],))
                return "followed", ""
        return "prose", ""
    except Unknown as unknown:
        return "unknown", str(unknown)
    except Misleading as why:
        gone = "there is no such file" in str(why) and "no such file" not in error["message"]
        return ("unknown", "its input is not there") if gone else ("misleading", str(why))
    except (ValueError, OSError, KeyError) as why:
        return "unknown", repr(why)
