"""Lines for people, that fit the terminal, and documents of JSON."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from json.encoder import encode_basestring_ascii
from typing import Any

from ckconv.cli.settings import Settings
from ckconv.errors import CkconvError, OutputError, each_text, missing_package, shown, valid
from ckconv.system import limits

#: The version of every JSON document's shape.
SCHEMA = 1

#: Lines, or parts of a document, that are put together before they are written, and characters after which no more are.
_AT_ONCE, _MOST = 1000, 1 << 20

#: Characters of a text in a listing; the longest chat templates have a third of it.
_SHOWN_CHARACTERS = 100_000


class _Escapes(dict[int, str]):
    """Code point -> its printed form, for :meth:`str.translate`."""

    def __missing__(self, code: int) -> str:
        c = chr(code)
        self[code] = c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode("ascii")
        return self[code]


_ESCAPES = _Escapes()


def printable(text: str) -> str:
    """Escape control characters and lone surrogates of ``text``."""
    return text if text.isprintable() else text.translate(_ESCAPES)


def cut(text: str) -> str:
    """Shorten a text that is longer than any chat template."""
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    return f"{text[:_SHOWN_CHARACTERS]}... {len(text):,} characters in all"


#: What a terminal takes for bold red, and for an end of that.
_RED, _PLAIN = "\x1b[1;31m", "\x1b[0m"


def print_error(error: CkconvError, settings: Settings) -> int:
    """Write an error to stderr and return its exit status."""
    if settings.json:
        text = json.dumps(each_text({"error": error_facts(error)}, valid), ensure_ascii=True)
    else:
        lines = [f"ckconv: error[{error.code}]: {error.sentence}"]
        lines += [f"  {detail}" for detail in error.details]
        if error.hint:
            lines.append(f"hint: {error.hint}")
        text = "\n".join(printable(line) for line in lines)
        if settings.colors(sys.stderr):
            text = text.replace(f"error[{error.code}]", f"{_RED}error[{error.code}]{_PLAIN}", 1)
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
    """Turn any exception into an error with a code."""
    if isinstance(error, CkconvError):
        if error.code == "system" and error.hint is None:
            error.hint = _limit(error.message)
        return error
    if isinstance(error, OSError):
        message = error.strerror or str(error)
        return OutputError("system", message, path=error.filename, hint=_limit(message))
    missing = isinstance(error, (ImportError, SystemError)) and not isinstance(error, ModuleNotFoundError)
    if isinstance(error, MemoryError) or (missing and _limit("memory")):  # of a library that lacked it
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


def discard_stdout() -> None:
    """Discard what a failed stdout would flush, at the end too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Lines:
    """JSON documents on stdout, a line each; work goes on if nobody reads."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._failed: OSError | None = None

    def print(self, document: Mapping[str, Any]) -> None:
        """Print one."""
        if not self._shown or self._failed is not None:
            return
        try:
            sys.stdout.write(json.dumps(each_text(document, valid)) + "\n")
            sys.stdout.flush()
        except OSError as error:
            self._failed = error
            discard_stdout()

    def check(self) -> None:
        """All that was printed has gone to where somebody reads it."""
        if self._failed is not None and not isinstance(self._failed, BrokenPipeError):
            raise OutputError("output.write", f"stdout cannot be written: {self._failed.strerror}")


def say(text: str) -> None:
    """Write to stderr; a failure changes nothing."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        # What is in its buffer would fail once more when the interpreter ends, and change the status then.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def print_json(document: Mapping[str, Any], *, err: bool = False, schema: int = SCHEMA) -> None:
    """Write one JSON document to stdout, or to stderr.

    Args:
        document: a value that is an iterator is a list that need not be in memory at once.
        schema: counts up where a field has another meaning than before.
    """
    _write(json_parts({"schema": schema, **document}), err=err)


def print_lines(lines: Iterable[str], *, err: bool = False) -> None:
    """Write lines to stdout, or to stderr; tabs between fields stay."""
    _write((_between_tabs(line) + "\n" for line in lines), err=err)


def _between_tabs(line: str) -> str:
    plain = line.replace("\t", " ").isprintable()  # in one step, as nearly every line is
    return line if plain else "\t".join(map(printable, line.split("\t")))


def print_report_lines(lines: Iterable[str], settings: Settings, *, err: bool = False) -> None:
    """The same of a report, which fits the terminal that it is printed on."""
    print_lines(fitted(map(printable, lines), width(err=err), whole=settings.verbose), err=err)


def _write(parts: Iterable[str], *, err: bool) -> None:
    """Write a text of any length, some of it at a time."""
    write = say if err else sys.stdout.write
    buffer: list[str] = []
    length = 0
    for part in (whole[at : at + _MOST] for whole in parts for at in range(0, len(whole), _MOST)):
        buffer.append(part)
        length += len(part)
        if len(buffer) == _AT_ONCE or length > _MOST:
            write("".join(buffer))
            buffer, length = [], 0
    write("".join(buffer))
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
    """Format with its version: ``gguf v3`` with the mark ``v``."""
    return f"{format} {mark}{version}" if version else format


#: Columns that a report has at least: what is narrower wraps by itself.
NARROWEST = 60

#: How far to the right a field may begin that goes on in further lines, as a part of the width; and one that a further
#: line holds whole.
_FAR, _FAR_OF_WHOLE = 0.4, 0.25

#: Columns by which a further line is moved to the right.
_DEEPER = 4

#: A field, and the blanks behind it.
_FIELD = r"(\S+(?: \S+)*)( {2,}|$)"

_DIGEST = r"\b([0-9a-f]{12})[0-9a-f]{40}([0-9a-f]{12})\b"


def width(*, err: bool) -> int | None:
    """Columns of the terminal on stdout or stderr, if there is one."""
    stream = sys.stderr if err else sys.stdout
    if not stream.isatty():
        return None
    import shutil  # a command in a script does without

    return max(shutil.get_terminal_size().columns, NARROWEST)


def fitted(lines: Iterable[str], columns: int | None, *, whole: bool) -> Iterator[str]:
    """Fold lines to so many columns, fields first, then words.

    Args:
        columns: ``None`` leaves everything as it is.
        whole: digests keep their middle.
    """
    for line in lines:
        if columns is None or len(line) <= columns:
            yield line
        else:
            yield from _narrow(line if whole else re.sub(_DIGEST, r"\1...\2", line), columns)


def _narrow(line: str, columns: int) -> Iterator[str]:
    import textwrap

    text = line.lstrip(" ")
    indent = len(line) - len(text)
    now = " " * indent
    for field, gap in re.findall(_FIELD, text):
        if len(now) + len(field) > columns:
            deeper = indent + _DEEPER
            far = _FAR_OF_WHOLE if deeper + len(field) <= columns else _FAR
            widest = max(map(len, field.split(" ")))
            if len(now) > max(indent, min(far * columns, columns - widest)):
                yield now.rstrip()
                now = " " * deeper
            start = " " * max(len(now), deeper)
            field = " ".join(shortened(word, columns - len(start)) for word in field.split(" "))
            *before, now = textwrap.wrap(
                field,
                columns,
                initial_indent=now,
                subsequent_indent=start,
                break_long_words=False,
                break_on_hyphens=False,
            )
            yield from before
            now += gap
        else:
            now += field + gap
    yield now.rstrip()


def shortened(name: str, columns: int) -> str:
    """Shorten a name by its middle; a digest stays as it is."""
    end = (columns - 3) // 2
    return (
        name
        if len(name) <= columns or re.search(_DIGEST, name)
        else f"{name[: columns - 3 - end]}...{name[len(name) - end :]}"
    )


def json_parts(document: Mapping[str, Any]) -> Iterator[str]:
    """The text of ``json.dumps(document, indent=2)``, piece by piece."""
    opening = "{\n"
    for key, value in document.items():
        yield f"{opening}  {json_text(key)}: "
        opening = ",\n"
        if isinstance(value, dict) and value:
            yield from _members(value)
            continue
        if not isinstance(value, Iterator):
            yield json_text(value, "\n  ")
            continue
        before = "[\n    "
        for item in value:
            yield before + json_text(item, "\n    ")
            before = ",\n    "
        yield "\n  ]" if before[0] == "," else "[]"
    yield "\n}\n"


def _members(value: Mapping[str, Any]) -> Iterator[str]:
    """Members of an object, one at a time: a GGUF's value may have 64 MB."""
    before = "{\n    "
    for key, item in value.items():
        yield f"{before}{json_text(str(key))}: "
        yield json_text(item, "\n    ")
        before = ",\n    "
    yield "\n  }"


def json_text(value: Any, line: str = "\n") -> str:
    """Value as ``json.dumps`` writes it, several times as fast.

    ``line`` stands before each line but the first.

    Names that are no text are escaped: no parser has to take halves of surrogate pairs.
    """
    if isinstance(value, str):
        return encode_basestring_ascii(valid(value))
    inner = f"{line}  "
    if isinstance(value, dict) and value:
        pairs = (f"{encode_basestring_ascii(valid(str(k)))}: {json_text(v, inner)}" for k, v in value.items())
        return f"{{{inner}{f',{inner}'.join(pairs)}{line}}}"
    if isinstance(value, (list, tuple)) and value:
        return f"[{inner}{f',{inner}'.join(json_text(v, inner) for v in value)}{line}]"
    if type(value) is int:
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no word for it
        return json.dumps(str(value))
    return json.dumps(value, allow_nan=False, default=lambda other: valid(str(other)))


# -- Progress of long work on stderr -----------------------------------------------------------------------------------
# One rewritten line on a terminal, a plain line every ten seconds elsewhere.

#: Seconds before a terminal sees a line: short work needs none, nor the import of what draws it.
_PATIENCE = 0.5
#: Columns from which on the name of the tensor stands behind the bar.
_WIDE = 100
_PLAIN_INTERVAL = 10.0


class ProgressLine:
    """Progress display: called with bytes done and their tensor.

    ``begin`` names a phase and its total bytes.
    """

    def __init__(self, settings: Settings, file: str = "") -> None:
        """Nothing is shown yet; ``file`` is what a plain line says the work is on."""
        self._file = f" {printable(shown(file))}" if file else ""
        mode = "none" if settings.quiet else settings.progress
        if mode == "auto":
            mode = "line" if sys.stderr.isatty() else "plain"
        self._mode = mode
        self._bar: Any = None
        self._phase, self._total, self._done = "", 0, 0
        self._start = self._last = time.monotonic()

    def begin(self, phase: str, total: int) -> None:
        """Start a phase of ``total`` bytes."""
        self._close()
        self._phase, self._total, self._done = phase, total, 0
        self._start = self._last = time.monotonic()

    def __call__(self, nbytes: int, name: str) -> None:
        """``nbytes`` more are done, of the tensor ``name``."""
        self._done += nbytes
        if self._mode == "none":
            return
        now = time.monotonic()
        if self._mode == "plain":
            if now - self._last >= _PLAIN_INTERVAL:
                self._last = now
                share = 100 * self._done // self._total if self._total else 100
                rate = self._done / (now - self._start)
                left = f"{(self._total - self._done) / rate:,.0f} s left  " if 0 < self._done < self._total else ""
                say(
                    f"ckconv: {self._phase}{self._file} {share}%  {size(self._done)} of {size(self._total)}  "
                    f"{size(int(rate))}/s  {left}{printable(name)}\n"
                )
            return
        if self._bar is None and now - self._start >= _PATIENCE:
            self._bar = self._new_bar()
        if self._bar is not None:
            if self._bar.ncols is None or self._bar.ncols >= _WIDE:
                self._bar.set_postfix_str(printable(name)[:40], refresh=False)
            self._bar.update(self._done - self._bar.n)

    def _new_bar(self) -> Any:
        from tqdm import tqdm

        return tqdm(
            total=self._total,
            desc=self._phase,
            unit="B",
            unit_scale=True,
            leave=False,
            dynamic_ncols=True,
            file=sys.stderr,
            mininterval=0.1,
        )

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
