"""Late work: numpy's import at its first use, named tuples' constructors.

``typing`` compiles each annotation of each field when the class of a named tuple is made, and ``collections`` the
constructor: with a hundred classes that is a tenth of the time in which a small model is described. Here a constructor
is compiled once for all classes with as many fields. To mypy they are the same; ``_make``, ``_field_defaults`` and
``__replace__`` are not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

__all__ = ["NDArray", "NamedTuple", "np"]

if TYPE_CHECKING:
    from typing import NamedTuple

    import numpy as np
    from numpy.typing import NDArray
else:
    from collections import _tuplegetter as getter
    from functools import cache
    from types import CodeType, FunctionType

    class _Numpy:
        def __getattr__(self, name: str) -> Any:
            import numpy

            found = self.__dict__[name] = getattr(numpy, name)  # which is there the next time
            return found

    np, NDArray = _Numpy(), Any

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
