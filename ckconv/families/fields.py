"""Checks that every section of a family file shares: known fields, expressions, texts; each fault names its key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckconv.errors import InputError
from ckconv.families.expressions import Expression, ExpressionError, parse
from ckconv.families.merge import fault


class Fields:
    """What is read of one file.

    Attributes:
        where: the row that is read, for faults.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.where = path, ""

    def fault(self, message: str) -> InputError:
        """An error of the row that is read."""
        return fault(self.path, f"{self.where}: {message}")

    def expression(self, text: object, *where: str) -> Expression | None:
        """An expression, or ``None`` for what is not said; a boolean or number of TOML is a constant."""
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
        """What one of several words stands for."""
        found = row.get(field, default)
        if found not in known:
            raise self.fault(f"{field} is {found!r} (known: {', '.join(word or repr(word) for word in known)})")
        return known[found]


def listed(value: Any) -> list[Any]:
    """One item, or several."""
    return value if isinstance(value, list) else [value]


def has_section(text: str, name: str) -> bool:
    """Whether the text of a TOML file has this table, however it is written: inline, by dotted keys, under a header.

    A table of the same name inside of another one counts, too: the text is searched, not parsed.
    """
    return re.search(rf"^(\[{name}[.\]]|{name}(\.| = ))", text, re.MULTILINE) is not None


def texts(value: Any) -> tuple[str, ...]:
    """One text, several, or none."""
    return tuple(str(item) for item in listed(value)) if value is not None else ()
