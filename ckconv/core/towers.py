"""What the tensors of an index are a tower of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckconv.lazy import NamedTuple


class Tower(NamedTuple):
    """A tower, beside which there is a text model that sees with it.

    Attributes:
        family: of towers, by name.
        parameters: by the names of the family's file.
        modifiers: whatever else changes what is computed, as "key = value" of the source.
        unread: keys of the source that no class of the family is known to read.
    """

    family: str
    parameters: Mapping[str, Any]
    modifiers: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
