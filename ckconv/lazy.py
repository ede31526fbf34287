"""Data classes, named tuples and patterns that are compiled when they are first used.

``dataclasses`` and ``typing`` compile the methods of every class at import, a quarter to one and a half milliseconds
each: together a quarter of the time in which a header is shown, though a run makes objects of few of its classes.
What stands here behaves as theirs: ``fields``, ``replace``, ``pickle`` and mypy see what they are used to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import re
    from dataclasses import dataclass as dataclass
    from dataclasses import replace as replace
    from typing import NamedTuple as NamedTuple

    regex = re.compile
else:
    from _collections import _tuplegetter as getter
    from dataclasses import MISSING, Field, FrozenInstanceError
    from dataclasses import dataclass as _standard
    from operator import attrgetter
    from re import compile as _compiled

    class regex:  # noqa: N801 - used as the function that it stands for
        """What ``re.compile`` makes of a regular expression."""

        def __init__(self, text: Any, flags: int = 0) -> None:
            self._given = text, flags

        def __getattr__(self, name: str) -> Any:
            found = getattr(_compiled(*self._given), name)
            setattr(self, name, found)
            return found

    def dataclass(*, frozen: bool = False, slots: bool = False, eq: bool = True) -> Any:
        """A class as the standard decorator makes it."""

        def decorated(template: type) -> type:
            body = {key: value for key, value in vars(template).items() if key not in ("__dict__", "__weakref__")}
            names = tuple(body.get("__annotations__", ()))
            given = {name: body[name] for name in names if name in body}
            kept = {key: value for key, value in body.items() if key not in given}
            own = {**(_REFUSING if frozen else {}), "__match_args__": names, "__qualname__": template.__qualname__}
            own["__repr__"] = _shown([name for name in names if getattr(given.get(name), "repr", True)])
            if slots:
                own |= {"__slots__": names, "__getstate__": _state, "__setstate__": _restored}
            if eq:
                seen = [name for name in names if getattr(given.get(name), "compare", True)]
                values = attrgetter(*seen) if len(seen) > 1 else lambda self: tuple(getattr(self, n) for n in seen)
                own |= {"__eq__": _equal(values), "__hash__": (lambda self: hash(values(self))) if frozen else None}
            made = type(template)(template.__name__, template.__bases__, {**own, **kept})
            made.__init__ = _first_init(made, given)
            made.__dataclass_fields__ = _Fields(made, body)
            return made

        return decorated

    def replace(one: Any, /, **changed: Any) -> Any:
        """A copy in which some fields have other values."""
        return type(one)(**({name: getattr(one, name) for name in one.__match_args__} | changed))

    class _Fields:
        """``__dataclass_fields__``, which the standard decorator makes when somebody looks."""

        __slots__ = ("_body", "_made")

        def __init__(self, made: Any, body: dict[str, Any]) -> None:
            self._made, self._body = made, body

        def __get__(self, *_: object) -> Any:
            made = self._made
            standard = _standard(frozen=True)(type(made)(made.__name__, made.__bases__, dict(self._body)))
            made.__dataclass_fields__ = standard.__dataclass_fields__
            return standard.__dataclass_fields__

    def _first_init(made: Any, given: dict[str, Any]) -> Any:
        """An ``__init__`` that compiles the class's own, which takes its place; twice if two threads come at once."""

        def first(self: Any, *arguments: Any, **more: Any) -> None:
            known = {"_set": object.__setattr__, "_none": MISSING}
            heads, lines = [], []
            for name in made.__match_args__:
                default = given.get(name, MISSING)
                make = default.default_factory if isinstance(default, Field) else MISSING
                default = default.default if isinstance(default, Field) else default
                known |= {f"_default_{name}": default, f"_make_{name}": make}
                absent = make is MISSING and default is MISSING
                heads.append(name if absent else f"{name}=_none" if make is not MISSING else f"{name}=_default_{name}")
                value = name if make is MISSING else f"_make_{name}() if {name} is _none else {name}"
                lines.append(f" _set(self, {name!r}, {value})")
            exec(f"def __init__(self, {', '.join(heads)}):\n" + "\n".join(lines), known)
            made.__init__ = known["__init__"]
            known["__init__"](self, *arguments, **more)

        return first

    def _equal(values: Any) -> Any:
        def equal(self: Any, other: object) -> Any:
            return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

        return equal

    def _shown(names: list[str]) -> Any:
        def shown(self: Any) -> str:
            said = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
            return f"{type(self).__qualname__}({said})"

        return shown

    def _refused(self: Any, name: str, *_: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    _REFUSING = {"__setattr__": _refused, "__delattr__": _refused}

    def _state(self: Any) -> list[Any]:
        return [getattr(self, name) for name in self.__match_args__]

    def _restored(self: Any, state: list[Any]) -> None:
        for name, value in zip(self.__match_args__, state, strict=True):
            object.__setattr__(self, name, value)

    class _Tuples(type):
        """Makes a class of tuples out of a class body with annotations."""

        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            if bases[0] is tuple or "_fields" in vars(bases[0]):
                return super().__new__(cls, name, bases, body)
            names = tuple(body.get("__annotations__", ()))
            defaults = {field: body.pop(field) for field in names if field in body}
            getters = {field: getter(place, "") for place, field in enumerate(names)}
            facts = {"_fields": names, "_field_defaults": defaults, "__match_args__": names, "__slots__": ()}
            made = super().__new__(cls, name, bases, {**body, **getters, **facts})
            made.__new__ = _first(made)
            return made

    def _first(made: Any) -> Any:
        def new(cls: type, /, *arguments: Any, **more: Any) -> Any:
            names = made._fields
            code = f"lambda _cls, {', '.join(names)}: _new(_cls, ({''.join(f'{name}, ' for name in names)}))"
            compiled = eval(code, {"_new": tuple.__new__, "__builtins__": {}})
            compiled.__defaults__ = tuple(made._field_defaults.values())
            compiled.__name__ = "__new__"
            made.__new__ = staticmethod(compiled)
            return compiled(cls, *arguments, **more)

        return staticmethod(new)

    class NamedTuple(tuple, metaclass=_Tuples):
        """A tuple with names, as the standard library's."""

        __slots__ = ()

        @classmethod
        def _make(cls, values: Any) -> Any:
            return cls(*values)

        def _replace(self, /, **changed: Any) -> Any:
            return type(self)(**{**self._asdict(), **changed})

        def _asdict(self) -> dict[str, Any]:
            return dict(zip(self._fields, self, strict=True))

        def __repr__(self) -> str:
            said = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
            return f"{type(self).__name__}({said})"

        def __getnewargs__(self) -> tuple[Any, ...]:
            return tuple(self)
