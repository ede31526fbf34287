"""Late work: numpy's import, and methods of classes, at their first use.

``typing`` compiles each annotation of each field when the class of a named tuple is made, and ``collections`` the
constructor: with a hundred classes that is a tenth of the time in which a small model is described. Here a constructor
is compiled once for all classes with as many fields. To mypy they are the same; ``_make``, ``_field_defaults`` and
``__replace__`` are not there.

``dataclasses`` compiles six methods of each class, which takes ten times as long as the rest of it. Here the
constructor is compiled when it is first looked for, and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

__all__ = ["NDArray", "NamedTuple", "dataclass", "np"]

if TYPE_CHECKING:
    from dataclasses import dataclass
    from typing import NamedTuple

    import numpy as np
    from numpy.typing import NDArray
else:
    import dataclasses
    from collections import _tuplegetter as getter
    from functools import cache
    from operator import attrgetter
    from types import CodeType, FunctionType

    class _Numpy:
        def __getattr__(self, name: str) -> Any:
            import numpy

            found = self.__dict__[name] = getattr(numpy, name)  # which is there the next time
            return found

    np, NDArray = _Numpy(), Any

    def _written(it: object, fields: dict[str, Any]) -> str:
        return f"{type(it).__name__}({', '.join(f'{field}={value!r}' for field, value in fields.items())})"

    class _Tuple(tuple):
        __slots__ = ()

        def __repr__(self) -> str:
            return _written(self, self._asdict())

        def __getnewargs__(self) -> tuple[Any, ...]:
            return tuple(self)

        def _asdict(self) -> dict[str, Any]:
            return dict(zip(self._fields, self, strict=True))

        def _replace(self, /, **changes: Any) -> _Tuple:
            made = tuple.__new__(type(self), map(changes.pop, self._fields, self))
            if changes:
                raise TypeError(f"{type(self).__name__} has no fields {[*changes]}")
            return made

    @cache
    def _constructor(fields: int) -> CodeType:
        listed = "".join(f"_{at}, " for at in range(fields))
        return eval(f"lambda _kind, {listed}: _new(_kind, ({listed}))").__code__

    class _Named(type):
        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            fields = tuple(body.get("__annotations__", {}))
            defaults = tuple(body.pop(field) for field in fields if field in body)
            code = _constructor(len(fields)).replace(co_varnames=("_kind", *fields), co_name=name, co_qualname=name)
            new = FunctionType(code, {"_new": tuple.__new__}, name, defaults)
            getters = {field: getter(at, "") for at, field in enumerate(fields)}
            own = {"__slots__": (), "__new__": new, "_fields": fields, "__match_args__": fields}
            return type(name, (_Tuple,), getters | body | own)

    NamedTuple = type.__new__(_Named, "NamedTuple", (), {})

    class _Initializer:
        def __init__(self, kind: type) -> None:
            self.kind = kind

        def __get__(self, it: object, _: type) -> Any:
            kind = self.kind
            heads, lines, known = ["self"], [], {"setattr": object.__setattr__}
            for each in dataclasses.fields(kind):
                value = name = each.name
                if each.default_factory is not dataclasses.MISSING:
                    known[f"_{name}"] = each.default_factory
                    value = f"_{name}() if {name} is _{name} else {name}"
                elif each.default is not dataclasses.MISSING:
                    known[f"_{name}"] = each.default
                if each.init:
                    heads.append(f"{name}=_{name}" if f"_{name}" in known else name)
                    lines.append(f" setattr(self, {name!r}, {value})")
            lines.append(" self.__post_init__()" if hasattr(kind, "__post_init__") else " pass")
            exec("\n".join((f"def __init__({', '.join(heads)}):", *lines)), known)
            kind.__init__ = known["__init__"]
            return kind.__init__.__get__(it, kind)

    def _refuse(it: object, name: str, *_: object) -> None:
        raise dataclasses.FrozenInstanceError(f"field {name!r} cannot be changed")

    def _restore(it: object, state: tuple[None, dict[str, Any]]) -> None:
        for name, value in state[1].items():
            object.__setattr__(it, name, value)

    def dataclass(*, frozen: bool = False, slots: bool = False, eq: bool = True, repr: bool = True) -> Any:
        """Make a data class; its constructor is compiled at first use."""

        def decorated(kind: type) -> type:
            found = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(kind)
            found.__init__ = _Initializer(found)
            if repr:
                shown = [each.name for each in dataclasses.fields(found) if each.repr]
                found.__repr__ = lambda it: _written(it, {name: getattr(it, name) for name in shown})
            if eq:
                key = attrgetter(*(each.name for each in dataclasses.fields(found) if each.compare))
                found.__eq__ = lambda it, other: key(it) == key(other) if type(it) is type(other) else NotImplemented
                found.__hash__ = (lambda it: hash(key(it))) if frozen else None
            if frozen:
                found.__setattr__ = found.__delattr__ = _refuse
            if frozen and slots:
                found.__setstate__ = _restore
            return found

        return decorated


#: Stored rows ``[n, bytes]``; bytes of any shape; blocks, and elements, as structures.
Rows: TypeAlias = "NDArray[np.uint8]"
Bytes: TypeAlias = "NDArray[np.uint8]"
Blocks: TypeAlias = "NDArray[Any]"
Cells: TypeAlias = "NDArray[Any]"

#: Values, zero points, numbers of rows, and what holds of each.
Floats: TypeAlias = "NDArray[np.float32]"
Doubles: TypeAlias = "NDArray[np.float64]"
Zeros: TypeAlias = "NDArray[np.int16]"
Index: TypeAlias = "NDArray[np.int64]"
Flags: TypeAlias = "NDArray[np.bool_]"
