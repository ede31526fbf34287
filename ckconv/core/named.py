"""Named tuples whose annotations nobody compiles.

``typing`` compiles each annotation of each field when the class is made: a tenth of the time in which a small model is
converted. To mypy, and to whoever uses them, they are the same.
"""

from __future__ import annotations

from collections import namedtuple
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:

    class _Named(type):
        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            fields = body.get("__annotations__", {})
            defaults = [body.pop(field) for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body["__module__"])
            for key in body.keys() - {"__module__", "__qualname__"}:
                setattr(made, key, body[key])
            return made

    NamedTuple = type.__new__(_Named, "NamedTuple", (), {})
