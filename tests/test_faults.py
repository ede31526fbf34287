"""A sample of the faults that ``make faults`` injects: disks that fail, calls cut short, signals and ``kill -9``."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "faults.py"

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("cc"), reason="needs a compiler, and a system that preloads"
)


@pytest.mark.parametrize("targets", ["bump3,split,shards", "bump5,mlx,peft", "gguf,hf,lora", "copy,record,back,made"])
def test_after_any_fault_the_words_are_true_and_nothing_is_mixed(targets: str) -> None:
    command = [sys.executable, str(SCRIPT), "--sample", "16", "--seed", "11", "--only", targets]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, "WRONG" in done.stdout) == (0, False), done.stdout + done.stderr
    assert "16 of" in done.stdout


@pytest.mark.needs("posix")
def test_what_interrupts_a_call_changes_nothing() -> None:
    """A close that is interrupted has closed the descriptor (Linux); no call of Windows is interrupted."""
    command = [sys.executable, str(SCRIPT), "--sample", "60", "--seed", "1", "--only", "copy", "--kinds", "EINTR"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, "WRONG" in done.stdout) == (0, False), done.stdout + done.stderr
