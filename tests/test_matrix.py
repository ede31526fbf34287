"""The table of directions in docs/formats.md is what happens when each of them is tried."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_table_is_true() -> None:
    script = ROOT / "scripts" / "matrix.py"
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0
    text = (ROOT / "docs" / "formats.md").read_text()
    assert text.count("| identical |") >= 8
    assert "not identical" not in text
