"""A JSON document as text, piece by piece: that of a million tensors is never in memory at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from json.encoder import encode_basestring_ascii
from typing import Any

from ckconv.core.non_utf8 import valid


def json_parts(document: Mapping[str, Any]) -> Iterator[str]:
    """The text of ``json.dumps(document, indent=2)``, piece by piece."""
    opening = "{\n"
    for key, value in document.items():
        yield f"{opening}  {json_text(key)}: "
        opening = ",\n"
        if isinstance(value, dict) and value:
            yield from _members(value)
            continue
        if not isinstance(value, Iterator):
            yield json_text(value, "\n  ")
            continue
        before = "[\n    "
        for item in value:
            yield before + json_text(item, "\n    ")
            before = ",\n    "
        yield "\n  ]" if before[0] == "," else "[]"
    yield "\n}\n"


def _members(value: Mapping[str, Any]) -> Iterator[str]:
    """An object of the document, a member at a time: a value of a GGUF's metadata may have 64 MB."""
    before = "{\n    "
    for key, item in value.items():
        yield f"{before}{json_text(str(key))}: "
        yield json_text(item, "\n    ")
        before = ",\n    "
    yield "\n  }"


def json_text(value: Any, line: str = "\n") -> str:
    """A value as ``json.dumps`` writes it, ``line`` before each line but the first: several times as fast.

    Names that are no text are escaped: no parser has to take halves of surrogate pairs.
    """
    if isinstance(value, str):
        return encode_basestring_ascii(valid(value))
    inner = f"{line}  "
    if isinstance(value, dict) and value:
        pairs = (f"{encode_basestring_ascii(valid(str(k)))}: {json_text(v, inner)}" for k, v in value.items())
        return f"{{{inner}{f',{inner}'.join(pairs)}{line}}}"
    if isinstance(value, (list, tuple)) and value:
        return f"[{inner}{f',{inner}'.join(json_text(v, inner) for v in value)}{line}]"
    if type(value) is int:
        return str(value)
    return json.dumps(value, allow_nan=False, default=lambda other: valid(str(other)))
