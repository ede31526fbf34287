"""Run the examples of README.md and docs/, and write what they print, or (--check) say which print something else now.

Each page has a directory of its own that holds ``fixtures`` and what its earlier blocks made. In a ``console`` block,
lines after a ``$ `` line are that command's output, stdout and stderr together. A ``pycon`` block is a Python session.
"""

from __future__ import annotations

import argparse
import contextlib
import doctest
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

#: Every page that a user reads.
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

#: What differs from run to run: wall time, rate, peak memory, which not every system tells.
_VOLATILE = re.compile(r"\d+\.\d s   [\d.]+ [kMG]?B/s(?:   peak memory [\d.]+ MB)?")
_BLOCK = re.compile(r"^```(console|pycon)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def masked(text: str) -> str:
    """``text`` without what differs from run to run."""
    return _VOLATILE.sub("S s   R/s", text)


def console(block: str, directory: Path, _: dict[str, Any]) -> str:
    """Run a block's commands and return it with what they print now."""
    lines: list[str] = []
    for command in (line[2:] for line in block.splitlines() if line.startswith("$ ")):
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "100",
            "NO_COLOR": "1",
        }
        done = subprocess.run(
            ["bash", "-c", f'ckconv() {{ {shlex.quote(sys.executable)} -m ckconv "$@"; }}; {command}'],
            cwd=directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        lines += [f"$ {command}", *done.stdout.splitlines()]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def pycon(block: str, directory: Path, names: dict[str, Any]) -> str:
    """Run a block's statements and return it with what they print now; later blocks of a page have its names."""
    printed: list[str] = []
    for example in doctest.DocTestParser().get_examples(block):
        first, *more = example.source.splitlines()
        out = io.StringIO()
        with contextlib.chdir(directory), contextlib.redirect_stdout(out):
            try:
                exec(compile(example.source, "<example>", "single"), names)
            except Exception as error:
                kind = type(error)
                print(f"Traceback (most recent call last):\n  ...\n{kind.__module__}.{kind.__name__}: {error}")
        printed += [f">>> {first}", *(f"... {line}" for line in more), *out.getvalue().splitlines()]
    return "\n".join(printed) + "\n"


_RUNNERS: dict[str, Callable[[str, Path, dict[str, Any]], str]] = {"console": console, "pycon": pycon}


def renewed(page: Path) -> Iterator[tuple[str, str, str]]:
    """Language, text and what it prints now of each of a page's blocks, in order."""
    names: dict[str, Any] = {}
    blocks = _BLOCK.findall(page.read_text())
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if blocks:
            shutil.copytree(ROOT / "fixtures", directory / "fixtures")
        for language, block in blocks:
            yield language, block, _RUNNERS[language](block, directory, names)


def main() -> int:
    """Regenerate or check; exit 1 if a block is not what it prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a block is out of date")
    parser.add_argument("pages", nargs="*", type=Path, help="these pages only")
    options = parser.parse_args()
    stale = 0
    for page in options.pages or PAGES:
        text = page.read_text()
        for language, block, now in renewed(page):
            if masked(now) == masked(block):
                continue
            stale += 1
            text = text.replace(f"```{language}\n{block}```", f"```{language}\n{now}```")
            if options.check:
                print(f"--- {page.name}\n{block}+++ now\n{now}")
        if not options.check:
            page.write_text(text)
    if not options.check:
        print(f"{stale} blocks renewed")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
