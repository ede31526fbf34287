"""The one place that turns facts into lines for a person or into JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from ckconv.cli.settings import Settings
from ckconv.core.non_utf8 import each_text, valid
from ckconv.errors import CkconvError, OutputError, missing_package
from ckconv.system import limits

#: The version of every JSON document's shape.
SCHEMA = 1

#: Lines, or parts of a document, that are put together before they are written, and characters after which no more are.
_AT_ONCE, _MOST = 1000, 1 << 20

#: Characters of a text in a listing; the longest chat templates have a third of it.
_SHOWN_CHARACTERS = 100_000


class _Escapes(dict[int, str]):
    """Number of a character -> how it is printed, for :meth:`str.translate`: runs of one take no object each."""

    def __missing__(self, code: int) -> str:
        c = chr(code)
        self[code] = c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode("ascii")
        return self[code]


_ESCAPES = _Escapes()


def printable(text: str) -> str:
    """``text`` without anything a terminal would act on: control characters and lone surrogates are escaped."""
    return text if text.isprintable() else text.translate(_ESCAPES)


def cut(text: str) -> str:
    """A text of a model in a listing; one that is longer than any chat template, with its length."""
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    return f"{text[:_SHOWN_CHARACTERS]}... {len(text):,} characters in all"


def print_error(error: CkconvError, settings: Settings) -> int:
    """Write an error to stderr and return its exit status."""
    if settings.json:
        import json

        text = json.dumps(each_text({"error": error_facts(error)}, valid), ensure_ascii=True)
    else:
        place = f"{error.path}: " if error.path else ""
        lines = [f"ckconv: error[{error.code}]: {place}{error.message}"]
        lines += [f"  {detail}" for detail in error.details]
        if error.hint:
            lines.append(f"hint: {error.hint}")
        text = "\n".join(printable(line) for line in lines)
    say(text + "\n")
    return error.exit_code


def error_facts(error: CkconvError) -> dict[str, Any]:
    """An error as JSON has it."""
    return {
        "code": error.code,
        "path": error.path,
        "tensor": error.tensor,
        "offset": error.offset,
        "message": error.message,
        "details": list(error.details),
        "hint": error.hint,
    }


def as_error(error: Exception) -> CkconvError:
    """Whatever was raised as an error with a code: what has none of its own is the system's, or a bug."""
    if isinstance(error, CkconvError):
        if error.code == "system" and error.hint is None:
            error.hint = _limit(error.message)
        return error
    if isinstance(error, OSError):
        message = error.strerror or str(error)
        return OutputError("system", message, path=error.filename, hint=_limit(message))
    if isinstance(error, MemoryError) or (_lacks_memory(error) and _limit("memory")):
        return OutputError("system", "there is not enough memory", hint=_limit("memory"))
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return OutputError("system", "no thread can be started", hint=_limit("thread") or _limit("memory"))
    if isinstance(error, ModuleNotFoundError) and (package := (error.name or "ckconv").partition(".")[0]) != "ckconv":
        return missing_package("this", package)
    return CkconvError(
        "internal",
        f"{type(error).__name__}: {error}",
        hint="this is a bug in ckconv; please report it with the output of the same command and --debug",
    )


#: What the system says -> the flags of ``ulimit`` that may be at fault, what they limit, and the unit of their numbers.
_LIMITS = (
    ("memory", ("-v", "-d"), "memory", 1024, " kB"),
    ("open files", ("-n",), "open files", 1, ""),
    ("thread", ("-u",), "processes and threads", 1, ""),
)


def _limit(message: str) -> str | None:
    """The limit that was met, where one is set."""
    found = limits()
    for word, flags, what, unit, name in _LIMITS:
        for flag in flags:
            if word in message.lower() and flag in found:
                return f"the limit of {what} is {found[flag] // unit:,}{name} (ulimit {flag})"
    return None


def _lacks_memory(error: Exception) -> bool:
    """A library could not be loaded, or began and could not go on, for want of memory, as far as that can be told."""
    return isinstance(error, (ImportError, SystemError)) and not isinstance(error, ModuleNotFoundError)


def discard_stdout() -> None:
    """Nothing more may be flushed into a stdout that failed, not even when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Lines:
    """JSON documents on stdout, a line each, while work goes on that does not end because nobody reads them."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._failed: OSError | None = None

    def print(self, document: Mapping[str, Any]) -> None:
        """Print one."""
        import json

        if not self._shown or self._failed is not None:
            return
        try:
            sys.stdout.write(json.dumps(each_text(document, valid)) + "\n")
            sys.stdout.flush()
        except OSError as error:
            self._failed = error
            discard_stdout()

    def check(self) -> None:
        """All that was printed has gone to where somebody reads it.

        Raises:
            OutputError: ``output.write``; but a reader may go away.
        """
        if self._failed is not None and not isinstance(self._failed, BrokenPipeError):
            raise OutputError("output.write", f"stdout cannot be written: {self._failed.strerror}")


def say(text: str) -> None:
    """Write to stderr. Where that fails nobody can be told, and the exit status must not change for it."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        # What is in its buffer would fail once more when the interpreter ends, and change the status then.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def print_json(document: Mapping[str, Any], *, err: bool = False, schema: int = SCHEMA) -> None:
    """Write one JSON document to stdout, or to stderr where stdout is the model.

    Args:
        document: a value that is an iterator is a list that need not be in memory at once.
        schema: counts up where a field has another meaning than before.
    """
    from ckconv.cli.jsontext import json_parts

    _write(json_parts({"schema": schema, **document}), err=err)


def print_lines(lines: Iterable[str], *, err: bool = False) -> None:
    """Write lines to stdout, or to stderr where stdout is the model. Tabs stand between fields and stay."""
    _write(("\t".join(map(printable, line.split("\t"))) + "\n" for line in lines), err=err)


def print_report_lines(lines: Iterable[str], settings: Settings, *, err: bool = False) -> None:
    """The same of a report, which fits the terminal that it is printed on."""
    from ckconv.cli.fitted import fitted, width

    print_lines(fitted(map(printable, lines), width(err=err), whole=settings.verbose), err=err)


def _write(parts: Iterable[str], *, err: bool) -> None:
    """Write a text of any length, some of it at a time."""
    write = say if err else sys.stdout.write
    held: list[str] = []
    length = 0
    for part in (whole[at : at + _MOST] for whole in parts for at in range(0, len(whole), _MOST)):
        held.append(part)
        length += len(part)
        if len(held) == _AT_ONCE or length > _MOST:
            write("".join(held))
            held, length = [], 0
    write("".join(held))
    if not err:
        sys.stdout.flush()


def size(nbytes: int) -> str:
    """Bytes in decimal units: ``4.4 GB``."""
    value = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{nbytes} B" if unit == "B" else f"{value:.{1 if value < 99.95 else 0}f} {unit}"
        value /= 1000
    return f"{value:.2f} TB"


def count(number: int) -> str:
    """A number of parameters: ``7.6 B``."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if number >= limit:
            return f"{number / limit:.1f} {unit}"
    return str(number)


def container(format: str, version: int, mark: str = "") -> str:
    """A format with its version, where it has one: ``gguf v3`` with the mark ``v``."""
    return f"{format} {mark}{version}" if version else format
