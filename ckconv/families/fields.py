"""Checks shared by sections of a family file; faults name their key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckconv.errors import InputError
from ckconv.families.expressions import Expression, ExpressionError, parse
from ckconv.families.merge import fault


class Fields:
    """Reader of checked fields of a file.

    Attributes:
        where: the row that is read, for faults.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.where = path, ""

    def fault(self, message: str) -> InputError:
        """An error of the row that is read."""
        return fault(self.path, f"{self.where}: {message}")

    def expression(self, text: object, *where: str) -> Expression | None:
        """Parsed expression, or ``None`` if absent; booleans and numbers count."""
        if where:
            self.where = ".".join(where)
        if text is None:
            return None
        try:
            return parse(str(text).lower() if isinstance(text, bool) else str(text))
        except ExpressionError as error:
            raise self.fault(str(error)) from None

    def fields(self, row: object, known: frozenset[str]) -> Mapping[str, Any]:
        """The row as a table that has no other field than these."""
        if not isinstance(row, dict):
            raise self.fault("a table expected")
        for key in sorted(row.keys() - known):
            raise self.fault(f"there is no field {key!r} (known: {', '.join(sorted(known))})")
        return row

    def word(self, row: Mapping[str, Any], field: str, known: Mapping[str, Any], default: str) -> Any:
        """Value that a word out of a fixed set stands for."""
        found = row.get(field, default)
        if found not in known:
            raise self.fault(f"{field} is {found!r} (known: {', '.join(word or repr(word) for word in known)})")
        return known[found]


def listed(value: Any) -> list[Any]:
    """One item, or several."""
    return value if isinstance(value, list) else [value]


def has_section(text: str, name: str) -> bool:
    """Whether TOML text has this table: inline, dotted or with a header.

    A table of the same name inside of another one counts, too: the text is searched, not parsed.
    """
    return re.search(rf"^(\[{name}[.\]]|{name}(\.| = ))", text, re.MULTILINE) is not None


def texts(value: Any) -> tuple[str, ...]:
    """One text, several, or none."""
    return tuple(str(item) for item in listed(value)) if value is not None else ()
