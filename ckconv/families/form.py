"""Types of all fields of a family file, checked before use."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

#: The longest text: of an expression, a shape, a name or a sentence.
_LONGEST = 500
_BRACES = re.compile(r"(?:[^{}]|\{[^{}]+\})*")
#: Whole numbers have 64 bits.
_LARGEST = 1 << 63
#: Tables and lists of constants within others.
_DEEPEST = 4

#: Says what is expected and is not there, with the key below the one that is looked at; ``None`` where all is right.
Form = Callable[[Any], str | None]


def _text(value: Any) -> str | None:
    if not isinstance(value, str):
        return ": a text expected"
    return None if len(value) <= _LONGEST else f": a text of {len(value):,} characters; {_LONGEST} are allowed"


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else ": true or false expected"


def _scalar(value: Any) -> str | None:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int) and abs(value) >= _LARGEST:
        return ": a number of more than 64 bits"
    return None if isinstance(value, bool | int | float) else ": a text, a number, true or false expected"


def _count(value: Any) -> str | None:
    return None if type(value) is int and 0 < value < _LARGEST else ": a whole number above 0 expected"


def _number(value: Any) -> str | None:
    right = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1
    return None if right else ": a number above 0 and at most 1 expected"


def _plain(value: Any, depth: int = 0) -> str | None:
    """A constant of a document: no date, nothing in great depth."""
    if isinstance(value, list | dict) and depth == _DEEPEST:
        return ": tables are nested too deep"
    if isinstance(value, list):
        return _each(lambda item: _plain(item, depth + 1), value)
    if isinstance(value, dict):
        return _entries(lambda item: _plain(item, depth + 1), value)
    return _scalar(value)


def _each(form: Form, items: list[Any]) -> str | None:
    return next((f"[{n}]{said}" for n, item in enumerate(items) if (said := form(item))), None)


def _entries(form: Form, table: Mapping[str, Any]) -> str | None:
    return next((f".{key}{said}" for key, value in table.items() if (said := form(value))), None)


def _many(form: Form) -> Form:
    """One, or a list of them."""
    return lambda value: _each(form, value) if isinstance(value, list) else form(value)


def _list(form: Form) -> Form:
    return lambda value: _each(form, value) if isinstance(value, list) else ": a list expected"


def _table_of(form: Form) -> Form:
    return lambda value: _entries(form, value) if isinstance(value, dict) else ": a table expected"


def _or_table(form: Form, fields: Mapping[str, Form]) -> Form:
    """A table of these fields, others not looked at; or what ``form`` says."""
    return lambda value: _fields(fields, value) if isinstance(value, dict) else form(value)


def _table(fields: Mapping[str, Form]) -> Form:
    return _or_table(lambda value: ": a table expected", fields)


def _fields(fields: Mapping[str, Form], table: Mapping[str, Any]) -> str | None:
    known = (key for key in table if key in fields)
    return next((f".{key}{said}" for key in known if (said := fields[key](table[key]))), None)


def _shape(value: Any) -> str | None:
    right = isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and type(value[1]) is int
    return None if right and 0 <= value[1] < 8 else ": a tensor's name and an axis expected"


def _name(value: Any) -> str | None:
    """A tensor's: braces hold one letter of an axis, ``n``, or a list."""
    return _text(value) or (None if _BRACES.fullmatch(value) else ": braces that are not closed")


def _cell(value: Any) -> str | None:
    if isinstance(value, dict) and "dropped" in value and "name" not in value:
        return ": 'dropped' without a name"
    return _or_table(_name, _CELL_FIELDS)(value)


def _layer(value: Any) -> str | None:
    if isinstance(value, dict) and "{n}" not in str(value.get("layer")):
        return ".layer: a name with {n} expected"
    return _table({"root": _text, "layer": _name})(value)


_CELL_FIELDS: dict[str, Form] = {
    **dict.fromkeys(("axes", "value", "dropped", "key"), _text),
    "name": _name,
    "packed": _flag,
    "memory": _flag,
    "zeros": _flag,
    "copied": _flag,
}
_CELL = _many(_cell)
_ROW = _or_table(
    lambda value: None if value == "absent" else ": a table or 'absent' expected",
    {
        **dict.fromkeys(("axes", "why"), _text),
        **dict.fromkeys(("bias", "when", "layers", "spare"), _scalar),
        **dict.fromkeys(("hf", "gguf", "mlx"), _CELL),
    },
)
_KEY = _many(
    _or_table(
        _text,
        {
            **dict.fromkeys(("key", "only", "present", "absent", "tensor", "else"), _text),
            **dict.fromkeys(("read", "write", "when", "fixed"), _scalar),
            **dict.fromkeys(("alias", "instead", "unread", "folded"), _flag),
            "shape": _shape,
            "map": _table_of(_scalar),
        },
    )
)
_PARAMETER = _or_table(
    _scalar,
    {
        "hf": _KEY,
        "gguf": _KEY,
        "bump": _KEY,
        "default": _or_table(_scalar, dict.fromkeys(("transformers", "mlx_lm", "llama_cpp"), _scalar)),
        "value": _scalar,
        "optional": _flag,
    },
)
_KEYS: dict[str, Form] = {
    "carried": _table_of(_text),
    "modifiers": _table_of(_or_table(_plain, {"neutral": _plain, "only": _text, "written": _flag})),
    "harmless": _list(_text),
    "seen": _table_of(_plain),
}
_CONDITION = _or_table(_scalar, {"if": _scalar, "else": _text, "of": _many(_text), "hint": _text})
_ENGINE = _or_table(
    lambda value: None if value == "absent" else ": a table or 'absent' expected",
    {
        **dict.fromkeys(("model_type", "wrapped"), _text),
        "slots": _table_of(_text),
        **dict.fromkeys(("right_if", "same_if"), _many(_CONDITION)),
        **dict.fromkeys(
            ("needs", "reads", "ignores", "scaling", "optional", "required", "tensors", "unadapted", "floats"),
            _many(_text),
        ),
        **dict.fromkeys(("as", "absent", "unmeasured"), _text),
        "biases": _many(_text),
        **dict.fromkeys(
            ("head_must_be_written", "interleaved", "slides", "neighbors", "scaled", "transposed", "unnamed"), _flag
        ),
    },
)

_PARTS = _table_of(_number)
_ROPE_TEXTS = dict.fromkeys(("mlx_lm", "theta", "share"), _text)
_ROPE_TABLES = dict.fromkeys(("default", "unscaled"), _table_of(_scalar))

#: Section -> what it is.
_FORMS: dict[str, Form] = {
    "extends": _many(_text),
    "without": _list(_text),
    "gguf": _table({"arch": _many(_text), "match": _scalar, "over": _many(_text)}),
    "huggingface": _table(
        {
            "model_type": _many(_text),
            "class": _many(_text),
            "match": _scalar,
            "text": _table({"of": _many(_text), "prefix": _text}),
            "tokens": _table_of(_text),
            "embeddings": _table_of(_many(_text)),
            "modules": _table_of(_text),
        }
    ),
    "prefix": _table_of(_many(lambda value: _text(value) if isinstance(value, str) else _layer(value))),
    "axes": _table_of(_scalar),
    "layers": _table_of(_scalar),
    "stacks": _table_of(_table_of(_scalar)),
    "tensors": _table_of(_ROW),
    "fused": _table_of(_table_of(_text)),
    "parameters": _table_of(_PARAMETER),
    "defaults": _table_of(_table_of(_scalar)),
    "config": _table(
        {
            **_KEYS,
            **dict.fromkeys(("written", "within"), _table_of(_plain)),
            "unknown": _text,
            "rope": _table(
                {
                    "by_layer": _flag,
                    "alpha": _flag,
                    "whole": _flag,
                    "types": _many(_text),
                    "noted": _many(_text),
                    "part": _PARTS,
                }
                | _ROPE_TEXTS
                | _ROPE_TABLES
            ),
            "window": _table({"transformers": _text, "mlx_lm": _text, "family": _text, "period": _count}),
        }
    ),
    "metadata": _table(_KEYS),
    "engines": _table_of(_ENGINE),
}


def misformed(table: Mapping[str, Any]) -> str | None:
    """First key with a value of a wrong type, and the expected type."""
    found = _fields(_FORMS, table)
    return found.removeprefix(".") if found else None
