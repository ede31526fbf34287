"""The card of an open model."""

from __future__ import annotations

from typing import Any

from ckconv.core.metadata import Card, card_of_keys, card_of_text
from ckconv.core.tensors import MetadataKind, TensorIndex
from ckconv.errors import CkconvError
from ckconv.io.bytesource import open_source

CARD_NAME = "README.md"

#: Bytes of a card that are looked at; its front matter is at its beginning.
_LIMIT = 1 << 20

#: Elements of an array that are kept: more languages, tags or datasets than any card names.
_ELEMENTS = 64


def card_of(index: TensorIndex) -> Card:
    """What the metadata of a model, or the README.md beside it, says of it; nothing where it cannot be read."""
    if index.metadata_kind is MetadataKind.TYPED:
        return card_of_keys({key: _plain(item) for key, item in index.metadata.items() if key.startswith("general.")})
    return card_of_text(text_of_card(index))


def text_of_card(index: TensorIndex) -> str:
    """The beginning of the README.md beside a model; empty where there is none that can be read."""
    path = next((path for path in index.side_files if path.name == CARD_NAME), None)
    if path is None:
        return ""
    try:
        with open_source(path) as source:
            return source.read_at(0, _LIMIT).decode("utf-8", "replace")
    except (CkconvError, OSError):
        return ""


def _plain(item: Any) -> Any:
    """The value of a key; of an array its first elements."""
    value = getattr(item, "value", item)
    return value.head(_ELEMENTS) if hasattr(value, "head") else value
