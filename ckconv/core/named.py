"""Named tuples that take little time to make.

``typing`` compiles each annotation of each field when the class is made, and ``collections`` the constructor: with a
hundred classes that is a tenth of the time in which a small model is described. Here the constructor is compiled when
it is first called. To mypy they are the same; ``_make``, ``_field_defaults`` and ``__replace__`` are not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    from collections import _tuplegetter as getter

    class _Tuple(tuple):
        __slots__ = ()

        def __repr__(self) -> str:
            fields = ", ".join(f"{field}={value!r}" for field, value in self._asdict().items())
            return f"{type(self).__name__}({fields})"

        def __getnewargs__(self) -> tuple[Any, ...]:
            return tuple(self)

        def _asdict(self) -> dict[str, Any]:
            return dict(zip(self._fields, self, strict=True))

        def _replace(self, /, **changes: Any) -> _Tuple:
            made = tuple.__new__(type(self), map(changes.pop, self._fields, self))
            if changes:
                raise TypeError(f"{type(self).__name__} has no fields {[*changes]}")
            return made

    class _Named(type):
        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            fields = tuple(body.get("__annotations__", {}))
            defaults = tuple(body.pop(field) for field in fields if field in body)

            def first(kind: type, /, *given: Any, **named: Any) -> _Tuple:
                listed = "".join(f"{field}, " for field in fields)
                new = eval(f"lambda _kind, {listed}: _new(_kind, ({listed}))", {"_new": tuple.__new__})
                new.__defaults__, new.__name__, new.__qualname__ = defaults, name, name
                made.__new__ = staticmethod(new)
                return new(kind, *given, **named)

            getters = {field: getter(at, "") for at, field in enumerate(fields)}
            own = {"__slots__": (), "__new__": first, "_fields": fields, "__match_args__": fields}
            made = type(name, (_Tuple,), getters | body | own)
            return made

    NamedTuple = type.__new__(_Named, "NamedTuple", (), {})
