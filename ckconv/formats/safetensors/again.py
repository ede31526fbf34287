"""Options of a conversion that show in a checkpoint."""

from __future__ import annotations

from typing import Any

from ckconv.core.documents import METADATA
from ckconv.core.tensors import TensorIndex
from ckconv.families.dialects import NAMES_KEY

#: A part of a fused tensor's name -> what ``--fuse`` calls it.
_FUSED = {"qkv_proj": "qkv", "gate_up_proj": "gate-up"}


def shown(source: TensorIndex, out: TensorIndex) -> dict[str, Any]:
    """The naming scheme, and what was fused."""
    names = [stored.name for stored in out.stored]
    before = [stored.name for stored in source.stored]
    fused = (
        word
        for part, word in _FUSED.items()
        if any(part in name for name in names) and not any(part in name for name in before)
    )
    return {"names": str(out.metadata.get(f"{METADATA}.{NAMES_KEY}", "hf")), "fuse": tuple(fused)}
