"""Models that diffuse: which architecture a GGUF of them names, told by the names of their tensors."""

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
    """A GGUF of this ``general.architecture`` holds no language model, but one that diffuses."""
    return architecture in _table()["architectures"]


def diffusion_of(names: Collection[str]) -> Diffusion | None:
    """What has tensors of these names; ``None`` for anything else."""
    for name, row in _table()["architectures"].items():
        if any(all(one in names for one in each) for each in row["holds"]):
            return Diffusion(name, tuple(row.get("full", ())), tuple(row.get("ignored", ())))
    return None


def is_of_diffusion(names: Collection[str]) -> bool:
    """Tensors of these names are those of a model that diffuses, whether or not its architecture is known."""
    return diffusion_of(names) is not None or any(name.startswith(tuple(_table()["parts"])) for name in names)


def has_names_of_diffusers(names: Collection[str]) -> bool:
    """The tensors are called and fused as in diffusers, where GGUF has the original checkpoint's names."""
    return any(name in names for name in _table()["diffusers"])
