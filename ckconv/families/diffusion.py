"""Models that diffuse: architecture by tensor names, canonical tensors.

They have no family: nothing is computed from their sizes, and tensors have the names of the original checkpoint.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

from ckconv.core.layouts import plain
from ckconv.core.named import NamedTuple
from ckconv.core.tensors import MetadataKind, StoredTensor, Tensor, TensorIndex, matrix_of
from ckconv.families.canonical import Canonical, Item
from ckconv.families.merge import FOLDER


class Diffusion(NamedTuple):
    """An architecture.

    Attributes:
        name: of ``general.architecture``.
        prefix: of the names of its tensors, which a GGUF's do not have.
        full: parts of the names of tensors that stay FP32.
        ignored: parts of the names of tensors that are no weights.
        in_blocks: matrices are cut into rows of :data:`ROW` elements where their own are no multiple of it.
        five: tensors of five axes are there.
        stays, ends: see :class:`ckconv.plan.recipes.Picture`.
    """

    name: str
    prefix: str = ""
    full: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    in_blocks: bool = False
    five: bool = False
    stays: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()


#: Elements of a row that was cut anew; the shape is under this key and the tensor's name (``tools/convert.py``).
ROW = 256
ORIGINAL_SHAPE = "comfy.gguf.orig_shape."


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((FOLDER / "diffusing" / "architectures.toml").read_text(encoding="utf-8"))


def diffuses(architecture: str) -> bool:
    """Whether this ``general.architecture`` is a diffusion model's."""
    return architecture in _table()["architectures"]


@cache
def _asked() -> frozenset[str]:
    """Names that some architecture has, or lacks."""
    rows = _table()["architectures"].values()
    return frozenset(name for row in rows for each in (*row["holds"], row.get("lacks", ())) for name in each)


def diffusion_of(stored: Collection[StoredTensor]) -> Diffusion | None:
    """Diffusion architecture with these tensors, or ``None``.

    Names are gone through and not kept: there may be a million.
    """
    prefix = _prefix(stored)
    own = (one.name.removeprefix(prefix) for one in stored if one.name.startswith(prefix))
    there = _asked().intersection(own)
    for name, row in _table()["architectures"].items():
        if any(there.issuperset(each) for each in row["holds"]) and there.isdisjoint(row.get("lacks", ())):
            parts = {key: tuple(row.get(key, ())) for key in ("full", "ignored", "stays", "ends")}
            return Diffusion(name, prefix, in_blocks="in_blocks" in row, five="five" in row, **parts)
    return None


def diffusion_in(index: TensorIndex) -> Diffusion | None:
    """Diffusion architecture of a file, or ``None``.

    A GGUF says whether it is one.
    """
    asked = index.metadata_kind is not MetadataKind.TYPED or diffuses(index.architecture)
    return diffusion_of(index.stored) if asked else None


def _prefix(stored: Collection[StoredTensor]) -> str:
    """Prefix of the names of the model itself."""
    table = _table()
    whole = str(table["whole_prefix"])
    found = next((p for p in table["prefixes"] if any(one.name.startswith(p) for one in stored)), "")
    return found or (whole if stored and all(one.name.startswith(whole) for one in stored) else "")


def is_of_diffusion(stored: Collection[StoredTensor]) -> bool:
    """Whether tensors are a diffusion model's, known or not."""
    parts = tuple(_table()["parts"])
    return diffusion_of(stored) is not None or any(one.name.startswith(parts) for one in stored)


def has_names_of_diffusers(stored: Collection[StoredTensor]) -> bool:
    """Whether tensors have diffusers' names, not the original checkpoint's."""
    names = frozenset(_table()["diffusers"])
    return any(one.name in names for one in stored)


def canonical_diffusion(
    model: Diffusion, items: Iterable[Item], shape: Callable[[StoredTensor], tuple[int, ...]] | None = None
) -> Canonical:
    """Tensors of the model under the names of a GGUF; the others are unknown.

    Args:
        shape: that a tensor had before its rows were cut anew.
    """
    tensors: dict[str, Tensor] = {}
    names: dict[str, tuple[str, ...]] = {}
    others: list[StoredTensor] = []
    for tensor, arrays in items:
        if tensor.name.startswith(model.prefix):
            name = tensor.name.removeprefix(model.prefix)
            tensors[name] = _shaped(replace(tensor, name=name), shape(arrays[0]) if shape else ())
            names |= {array.name: (name,) for array in arrays}
        else:
            others += arrays
    return Canonical(tensors, names, (), others)


def _shaped(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The tensor with its own shape; blocks keep the rows that they are in."""
    if not shape:
        return tensor
    layout = plain(*matrix_of(shape, tensor.dtype)) if tensor.dtype.block == 1 else tensor.layout
    return replace(tensor, shape=shape, layout=layout)
