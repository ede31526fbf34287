"""Lines of a report on a terminal: none is longer than it is wide, and no name is folded."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator

#: Columns that a report has at least: what is narrower wraps by itself.
NARROWEST = 60

#: How far to the right a field may begin that goes on in further lines, as a part of the width; and one that a further
#: line holds whole.
_FAR, _FAR_OF_WHOLE = 0.4, 0.25

#: Columns by which a further line is moved to the right.
_DEEPER = 4

#: A field, and the blanks behind it.
_FIELD = re.compile(r"(\S+(?: \S+)*)( {2,}|$)")

_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{40}([0-9a-f]{12})\b")


def width(*, err: bool) -> int | None:
    """Columns of the terminal that stdout is, or stderr; ``None`` where it is none."""
    stream = sys.stderr if err else sys.stdout
    if not stream.isatty():
        return None
    import shutil  # a command in a script does without

    return max(shutil.get_terminal_size().columns, NARROWEST)


def fitted(lines: Iterable[str], columns: int | None, *, whole: bool) -> Iterator[str]:
    """Lines of at most so many columns: fields move into a further line, sentences go on there.

    Args:
        columns: ``None`` leaves everything as it is.
        whole: digests keep their middle.
    """
    for line in lines:
        if columns is None or len(line) <= columns:
            yield line
        else:
            yield from _narrow(line if whole else _DIGEST.sub(r"\1...\2", line), columns)


def _narrow(line: str, columns: int) -> Iterator[str]:
    import textwrap

    text = line.lstrip(" ")
    indent = len(line) - len(text)
    now = " " * indent
    for field, gap in _FIELD.findall(text):
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
    """A name of at most so many characters, its middle left out; a digest stays as it is."""
    end = (columns - 3) // 2
    return (
        name
        if len(name) <= columns or _DIGEST.search(name)
        else f"{name[: columns - 3 - end]}...{name[len(name) - end :]}"
    )
