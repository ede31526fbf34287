"""Every hint of the package is followed, on the input that it was given for: all tests, with what they were refused.

    python scripts/hints.py            run the tests, follow every hint, and count
    python scripts/hints.py RECORD     count what an earlier run wrote down

A hint is followed if somebody who does what it says gets what was asked for, or is refused for another reason that
leads on to it. ``tests/hints_not_followed.tsv`` lists what is no command, or needs what no test has, with the reason.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from hint_texts import hint_texts, listed  # noqa: E402
from test_hints import followed_there  # noqa: E402


def main() -> int:
    """Run or read, and count; 1 if a hint is misleading, or neither followed nor listed."""
    with tempfile.TemporaryDirectory() as folder:
        status, record = 0, Path(sys.argv[1] if len(sys.argv) > 1 else f"{folder}/hints.jsonl")
        if len(sys.argv) < 2:
            jobs = os.environ.get("JOBS", "2")
            command = [sys.executable, "-m", "pytest", "-q", "-n", jobs, str(ROOT / "tests")]
            status = subprocess.run(command, env={**os.environ, "CKCONV_HINTS": str(record)}, check=False).returncode
        met = [json.loads(line) for line in record.read_text().splitlines()]
    there, reasons = followed_there(), listed()
    what: dict[str, set[str]] = {}
    for pattern in hint_texts():
        found = {str(each["what"]) for each in met if re.search(pattern, each["whole"])}
        what[pattern] = found | ({"followed"} if any(re.search(pattern, text) for text in there) else set())
    followed = {pattern for pattern, found in what.items() if "followed" in found}
    wrong = sorted({each["why"] for each in met if each["what"] == "misleading"})
    silent = sorted(what.keys() - followed - reasons.keys())
    print(f"{len(what)} hints: {sum(map(bool, what.values()))} met, {len(followed)} followed, {len(reasons)} listed")
    print(f"{len(met)} times met in tests, {sum(each['what'] == 'followed' for each in met)} of them followed")
    for title, lines in (("misleading", wrong), ("neither followed nor listed", silent)):
        for line in lines:
            print(f"\n{title}: {line}")
    return 1 if status or wrong or silent else 0


if __name__ == "__main__":
    raise SystemExit(main())
