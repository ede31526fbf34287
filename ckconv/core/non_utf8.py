"""Names that are not UTF-8, as text that every JSON parser accepts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_ODD = r"[\ud800-\udfff]|\\(?=x[0-9a-f]{2}|ud[89a-f][0-9a-f]{2})"
_ESCAPED = r"\\x(5c|[89a-f][0-9a-f])|\\u(d[89a-f][0-9a-f]{2})"


def is_text(text: str) -> bool:
    """Whether a text has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def escaped(text: str) -> str:
    """Escape halves of surrogate pairs; :func:`unescaped` undoes that."""
    return re.sub(_ODD, _escape, text)


def unescaped(text: str) -> str:
    """The original of an escaped text."""
    return re.sub(_ESCAPED, _unescape, text)


def valid(text: str) -> str:
    """The text, escaped where it has to be."""
    return text if is_text(text) else escaped(text)


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """A value as JSON has them, with every text and key in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): each_text(item, change) for key, item in value.items()}
    return [each_text(item, change) for item in value] if isinstance(value, (list, tuple)) else value


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code & 0xFF:02x}" if code == ord("\\") or 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def _unescape(found: re.Match[str]) -> str:
    code = int(found[1] or found[2], 16)
    return chr(code + 0xDC00) if found[1] and code >= 0x80 else chr(code)
