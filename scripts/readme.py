"""Run the examples of README.md and write what they print, or (--check) say which no longer print what stands there.

A block fenced as ``console`` is run in a directory that holds ``fixtures`` and what earlier blocks made; lines after a
``$ `` line are that command's output, stdout and stderr together. ``console smollm2`` blocks need the real model.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"

#: What differs from run to run: wall time, rate, peak memory.
_VOLATILE = re.compile(r"\d+\.\d s   [\d.]+ [kMG]?B/s   peak memory [\d.]+ MB")
_BLOCK = re.compile(r"^```console( smollm2)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def masked(text: str) -> str:
    """``text`` without what differs from run to run."""
    return _VOLATILE.sub("S s   R/s   peak memory M", text)


def run_block(block: str, directory: Path) -> str:
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


def main() -> int:
    """Regenerate or check; exit 1 if a block is not what it prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a block is out of date")
    parser.add_argument("--smollm2", type=Path, help=f"where {SMOLLM2} is; its blocks are left alone without it")
    options = parser.parse_args()
    text = README.read_text()
    stale: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        shutil.copytree(ROOT / "fixtures", directory / "fixtures")
        if options.smollm2:
            (directory / SMOLLM2).symlink_to(options.smollm2.resolve())

        def renew(match: re.Match[str]) -> str:
            if match[1] and not options.smollm2:
                return match[0]
            now = run_block(match[2], directory)
            if masked(now) == masked(match[2]):
                return match[0]
            stale.append(f"--- README.md\n{match[2]}+++ now\n{now}")
            return f"```console{match[1] or ''}\n{now}```"

        renewed = _BLOCK.sub(renew, text)
    if options.check:
        print("\n".join(stale), end="")
        return 1 if stale else 0
    README.write_text(renewed)
    print(f"{len(stale)} blocks renewed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
