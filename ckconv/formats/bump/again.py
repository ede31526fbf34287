"""What of the options shows in a bump file, whether a plan stores the same, and what the engine reads besides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ckconv.core.tensors import TensorIndex
from ckconv.formats.bump.beside import other_bumps
from ckconv.formats.bump.map import MAP_NAME
from ckconv.plan.steps import Plan


def shown(_: TensorIndex, out: TensorIndex) -> dict[str, Any]:
    """The version, and how its types are numbered and its rows ordered."""
    seen: dict[str, Any] = {"bump_version": out.version}
    if out.version == 3 and "dtype_codes" in out.facts:
        seen["dtype_codes"] = out.facts["dtype_codes"]
    if any(tensor.layout.interleaved for tensor in out.tensors.values()):
        seen["rope_layout"] = "interleaved"
    return seen


def stores_alike(plan: Plan, out: TensorIndex) -> bool:
    """The plan writes entries of these types, in this order of rows."""
    layout = str(out.facts.get("rope_layout", "")) if plan.rope_layout else ""
    return bytes(plan.contents().keys["dtype table"]) == bytes(out.facts["codes"]) and plan.rope_layout == layout


def takes_along(plan: Plan, directory: Path) -> tuple[tuple[str, ...], str]:
    """Names of files that the engine reads along with the output, and the flag that writes them anew.

    It loads by the ``weights_manifest.map`` that lies beside the weights of versions 4 and 5; that may be of another
    bump file there.
    """
    if plan.version == 3 or other_bumps(directory / plan.files[0].name, MAP_NAME):
        return (), ""
    return (MAP_NAME,), "--map writes it anew"
