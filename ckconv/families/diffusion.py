"""Diffusion models: architecture of a GGUF by its tensor names."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from functools import cache
from typing import Any

from ckconv.core.named import NamedTuple
from ckconv.families.merge import FOLDER


class Diffusion(NamedTuple):
    """An architecture.

    Attributes:
        name: of ``general.architecture``.
        full: parts of the names of tensors that stay FP32.
        ignored: parts of the names of tensors that are no weights.
    """

    name: str
    full: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((FOLDER / "diffusing" / "architectures.toml").read_text(encoding="utf-8"))


def diffuses(architecture: str) -> bool:
    """Whether this ``general.architecture`` is a diffusion model's."""
    return architecture in _table()["architectures"]


def diffusion_of(names: Collection[str]) -> Diffusion | None:
    """Diffusion architecture with these tensor names, or ``None``."""
    for name, row in _table()["architectures"].items():
        if any(all(one in names for one in each) for each in row["holds"]):
            return Diffusion(name, tuple(row.get("full", ())), tuple(row.get("ignored", ())))
    return None


def is_of_diffusion(names: Collection[str]) -> bool:
    """Whether tensor names are a diffusion model's, known or not."""
    return diffusion_of(names) is not None or any(name.startswith(tuple(_table()["parts"])) for name in names)


def has_names_of_diffusers(names: Collection[str]) -> bool:
    """Whether tensors have diffusers' names, not the original checkpoint's."""
    return any(name in names for name in _table()["diffusers"])
