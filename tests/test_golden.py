"""Every fixture x target x options gives the bytes, or the refusal, and the messages of tests/golden.tsv."""

from __future__ import annotations

import subprocess
import sys

from conftest import FIXTURES


def test_every_run_gives_what_the_golden_file_says() -> None:
    found = subprocess.run(
        [sys.executable, str(FIXTURES.parent / "scripts" / "golden.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert found.returncode == 0, found.stdout + found.stderr
