"""Digests of what ``mlx.core.quantize`` makes of weights from a seed, for tests/mlx_quantised.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path.insert(0, str(TESTS))

from mlx_cases import CASES, by_mlx, digest  # noqa: E402

if __name__ == "__main__":
    found = {name: digest(by_mlx(name)) for name in CASES}
    (TESTS / "mlx_quantised.json").write_text(json.dumps(found, indent=1) + "\n")
