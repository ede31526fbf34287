"""What the tensors of an index are a tower of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ckconv.core.tensors import Tensor, TensorIndex


class Tower(NamedTuple):
    """A tower, beside which there is a text model that sees with it.

    Attributes:
        family: of towers, by name.
        parameters: by the names of the family's file.
        modifiers: whatever else changes what is computed, as "key = value" of the source.
        unread: keys of the source that no class of the family is known to read.
        others: what the preprocessor's document says otherwise than the parameters, as "key = value".
    """

    family: str
    parameters: Mapping[str, Any]
    modifiers: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


#: What stands before the names of a tower's tensors in the index of a model that has both.
PREFIX = "tower."


def joined(text: TensorIndex, tower: TensorIndex) -> TensorIndex:
    """The index of a text model and of the tower beside it, of two files or of one checkpoint."""
    own = {f"{PREFIX}{name}": of_tower(tensor) for name, tensor in tower.tensors.items()}
    seen = {name: tuple(f"{PREFIX}{each}" for each in names) for name, names in tower.canonical_of.items()}
    known = {*tower.canonical_of, *(item.stored.name for item in tower.dropped)}
    beside = () if text.path == tower.path else tower.unknown
    return replace(
        text,
        files=tuple(dict.fromkeys((*text.files, *tower.files))),
        stored=tuple(dict.fromkeys((*text.stored, *tower.stored))),
        tensors={**text.tensors, **own},
        canonical_of={**text.canonical_of, **seen},
        dropped=(*text.dropped, *tower.dropped),
        unknown=(*(stored for stored in text.unknown if stored.name not in known), *beside),
        identities={**text.identities, **tower.identities},
        tower=tower.tower,
    )


def of_tower(tensor: Tensor) -> Tensor:
    """A tensor of a tower under the name that it has in the index of a model that has both."""
    return replace(tensor, name=f"{PREFIX}{tensor.name}")


def parted(index: TensorIndex) -> tuple[TensorIndex, dict[str, Tensor]]:
    """The text model of :func:`joined`, and the tensors of the tower by the names that its rows have for them."""
    seen = {name.removeprefix(PREFIX): one for name, one in index.tensors.items() if name.startswith(PREFIX)}
    text = {name: tensor for name, tensor in index.tensors.items() if not name.startswith(PREFIX)}
    return replace(index, tensors=text, tower=None), seen
