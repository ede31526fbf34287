"""A ``config.json`` as the rows of a family read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ckconv.core.tensors import StoredTensor


class ConfigSource:
    """The document as the rows of a family read it."""

    format = "hf"

    def __init__(self, document: Mapping[str, Any], stored: Sequence[StoredTensor] = ()) -> None:
        self._document, self._stored = document, stored

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
        """Value at a dotted path."""
        return self._found(key)[1]

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        """Shape of a stored tensor by this name, with or without a prefix."""
        ends = (one for one in self._stored if one.name.endswith(tensor))
        return next((one.shape for one in ends if one.name == tensor or one.name.endswith(f".{tensor}")), None)

    def numbers(self, tensor: str) -> list[float] | None:
        """A document has no tensors."""
        return None
