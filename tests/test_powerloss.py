"""A sample of the losses of power of ``make attack``: what was there is there, whatever was not on the disk yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "powerloss.py"


@pytest.mark.needs("posix")
@pytest.mark.parametrize("targets", ["shards,bump3", "split,copy"])
def test_nothing_that_was_there_is_lost(targets: str) -> None:
    command = [sys.executable, str(SCRIPT), "--runs", "24", "--only", targets]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "24 losses of power, 0 with wrong ends" in done.stdout) == (0, True), (
        done.stdout + done.stderr
    )
