"""Whether arrays that were computed again are those that were recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def moved(arrays: Mapping[str, NDArray[np.float32]], path: Path, tolerance: float) -> int:
    """1 if an array of the ``.npz`` is another one now, or only one of both has it; each such is printed."""
    found = 0
    with np.load(path) as kept:
        for name in sorted(set(arrays) | set(kept)):
            known = name in arrays and name in kept
            off = float(np.abs(arrays[name] - kept[name]).max()) if known else float("inf")
            if off > tolerance:
                print(f"{name}: {off:.2g} from what is recorded")
                found = 1
    return found
