"""The text of a family file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def inline(value: Any) -> str:
    """A value as TOML writes it on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return (
            "{ " + ", ".join(f"{key(name)} = {inline(item)}" for name, item in value.items()) + " }" if value else "{}"
        )
    return "[" + ", ".join(map(inline, value)) + "]"


def key(name: str) -> str:
    """A key, quoted where it has to be."""
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def text(comments: Sequence[str], top: Mapping[str, Any], sections: Mapping[str, Mapping[str, Any]]) -> str:
    """TOML of a family file: comments, top values, a section each."""
    lines = [f"# {line}".rstrip() for line in comments]
    lines += [f"{key(name)} = {inline(value)}" for name, value in top.items() if value or value is False]
    for section, rows in sections.items():
        if rows:
            lines.append(f"[{section}]")
            lines += [f"{key(name)} = {inline(value)}" for name, value in rows.items()]
    return "\n".join(lines) + "\n"
