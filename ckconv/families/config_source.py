"""A ``config.json`` as the rows of a family read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ConfigSource:
    """The document as the rows of a family read it."""

    format = "hf"

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def _found(self, key: str) -> tuple[bool, Any]:
        found: Any = self._document
        for part in key.split("."):
            if not isinstance(found, dict) or part not in found:
                return False, None
            found = found[part]
        return True, found

    def has(self, key: str) -> bool:
        """The key is there, be it null."""
        return self._found(key)[0]

    def value(self, key: str) -> Any:
        """What stands under a dotted path."""
        return self._found(key)[1]

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        """A document has no tensors."""
        return None

    def numbers(self, tensor: str) -> list[float] | None:
        """A document has no tensors."""
        return None
