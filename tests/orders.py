"""Values of a move by numpy alone."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ckconv.families.axes import Move


def _view(move: Move, stored: np.ndarray) -> np.ndarray:
    flat = stored.reshape(-1)[move.first :]
    return as_strided(flat, [n for n, _ in move.axes], [stride * flat.itemsize for _, stride in move.axes])


def to_canonical(move: Move, stored: np.ndarray) -> np.ndarray:
    """The canonical tensor's values out of the stored ones."""
    return _view(move, np.ascontiguousarray(stored)).reshape(move.canonical).copy()


def to_stored(move: Move, canonical: np.ndarray, into: np.ndarray) -> None:
    """Put a canonical tensor's values into their places."""
    view = _view(move, into)
    view[...] = canonical.reshape(view.shape)
