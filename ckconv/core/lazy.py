"""Less work at the start: numpy and methods of classes wait, tables stay.

``typing`` compiles each annotation of each field when the class of a named tuple is made, and ``collections`` the
constructor: with a hundred classes that is a tenth of the time in which a small model is described. Here a constructor
is that of all classes with as many fields, compiled with this file. To mypy they are the same; ``_make``,
``_field_defaults`` and ``__replace__`` are not there.

``dataclasses`` compiles six methods of each class, which takes ten times as long as the rest of it. Here none is: the
constructor is that of named tuples, and what it calls sets fields.

Expressions are compiled when they are first matched: one takes as long as to open a small file.

Most commands ask for seven shipped tables, and to parse those takes as long as to plan a small conversion: they are
parsed once and cached beside Python's bytecode.
"""

from __future__ import annotations

import marshal
import re
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from zlib import crc32

from ckconv.core import __version__

__all__ = ["NDArray", "NamedTuple", "cached_property", "dataclass", "field", "np", "pattern", "replace"]

if TYPE_CHECKING:
    from dataclasses import dataclass, field, replace
    from functools import cached_property
    from re import compile as pattern
    from typing import NamedTuple

    import numpy as np
    from numpy.typing import NDArray
else:
    import dataclasses
    from collections import _tuplegetter as getter
    from dataclasses import field
    from itertools import repeat
    from operator import attrgetter, call
    from types import FunctionType

    _new = tuple.__new__

    #: By how many fields: nothing is compiled when classes are made. The first makes those of any number, slowly.
    _CONSTRUCTORS = (
        lambda kind: _new(kind, [*locals().values()][1:]),
        lambda kind, a: _new(kind, (a,)),
        lambda kind, a, b: _new(kind, (a, b)),
        lambda kind, a, b, c: _new(kind, (a, b, c)),
        lambda kind, a, b, c, d: _new(kind, (a, b, c, d)),
        lambda kind, a, b, c, d, e: _new(kind, (a, b, c, d, e)),
        lambda kind, a, b, c, d, e, f: _new(kind, (a, b, c, d, e, f)),
        lambda kind, a, b, c, d, e, f, g: _new(kind, (a, b, c, d, e, f, g)),
        lambda kind, a, b, c, d, e, f, g, h: _new(kind, (a, b, c, d, e, f, g, h)),
        lambda kind, a, b, c, d, e, f, g, h, i: _new(kind, (a, b, c, d, e, f, g, h, i)),
        lambda kind, a, b, c, d, e, f, g, h, i, j: _new(kind, (a, b, c, d, e, f, g, h, i, j)),
        lambda kind, a, b, c, d, e, f, g, h, i, j, k: _new(kind, (a, b, c, d, e, f, g, h, i, j, k)),
    )

    class _Numpy:
        def __getattr__(self, name: str) -> Any:
            import numpy

            found = self.__dict__[name] = getattr(numpy, name)  # which is there the next time
            return found

    np, NDArray = _Numpy(), Any

    class pattern:  # noqa: N801 - called as the function is
        """Expression that is compiled when it is first matched."""

        def __init__(self, *text: Any) -> None:
            self._text = text

        def __reduce__(self) -> tuple[Any, ...]:
            return pattern, self._text

        def __getattr__(self, name: str) -> Any:
            found = self.__dict__[name] = getattr(re.compile(*self._text), name)
            return found

    class cached_property:  # noqa: N801 - called as that of ``functools`` is
        """Property that is computed once, without the lock of Python 3.11."""

        def __init__(self, computed: Any) -> None:
            self._computed, self._name, self.__doc__ = computed, computed.__name__, computed.__doc__

        def __get__(self, it: Any, kind: type | None = None) -> Any:
            if it is None:
                return self
            found = it.__dict__[self._name] = self._computed(it)
            return found

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

    def _function(name: str, parameters: tuple[str, ...], new: Any, defaults: tuple[Any, ...]) -> FunctionType:
        count = len(parameters)
        made = _CONSTRUCTORS[count - 1 if count <= len(_CONSTRUCTORS) else 0].__code__
        code = made.replace(co_argcount=count, co_nlocals=count, co_varnames=parameters, co_name=name, co_qualname=name)
        return FunctionType(code, {"_new": new}, name, defaults)

    class _Named(type):
        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            fields = tuple(body.get("__annotations__", {}))
            defaults = tuple(body.pop(field) for field in fields if field in body)
            new = _function(name, ("_kind", *fields), tuple.__new__, defaults)
            getters = {field: getter(at, "") for at, field in enumerate(fields)}
            own = {"__slots__": (), "__new__": new, "_fields": fields, "__match_args__": fields}
            return type(name, (_Tuple,), getters | body | own)

    NamedTuple = type.__new__(_Named, "NamedTuple", (), {})

    def _initializer(kind: type) -> FunctionType:
        fields = [each for each in dataclasses.fields(kind) if each.init]
        names = tuple(each.name for each in fields)
        makers = {each.name: each.default_factory for each in fields if each.default_factory is not dataclasses.MISSING}
        given = (makers.get(each.name, each.default) for each in fields)
        ends = hasattr(kind, "__post_init__")
        put = object.__setattr__
        setters = [vars(kind)[name].__set__ for name in names if "__slots__" in vars(kind)]

        def by_slots(it: object, values: tuple[Any, ...]) -> None:
            list(map(call, setters, repeat(it), values))

        def by_names(it: object, values: tuple[Any, ...]) -> None:
            it.__dict__.update(zip(names, values, strict=True))

        stored = by_slots if setters else by_names

        def fill(it: object, values: tuple[Any, ...]) -> None:
            stored(it, values)
            for name, maker in makers.items():
                if getattr(it, name) is maker:
                    put(it, name, maker())
            if ends:
                it.__post_init__()

        defaults = tuple(value for value in given if value is not dataclasses.MISSING)
        return _function("__init__", ("self", *names), fill if makers or ends else stored, defaults)

    def _replacer(kind: type) -> Any:
        names = [each.name for each in dataclasses.fields(kind) if each.init]
        own = attrgetter(*names, "__class__")

        def replaced(it: object, /, **changes: Any) -> Any:
            *values, made = own(it)
            found = made(*map(changes.pop, names, values))
            if changes:
                raise TypeError(f"{made.__name__} has no fields {[*changes]}")
            return found

        return replaced

    def replace(it: Any, /, **changes: Any) -> Any:
        """Make another object of a data class."""
        return it.__replace__(**changes)

    def _refuse(it: object, name: str, *_: object) -> None:
        raise dataclasses.FrozenInstanceError(f"field {name!r} cannot be changed")

    def _restore(it: object, state: tuple[None, dict[str, Any]]) -> None:
        for name, value in state[1].items():
            object.__setattr__(it, name, value)

    def dataclass(*, frozen: bool = False, slots: bool = False, eq: bool = True, repr: bool = True) -> Any:
        """Make a data class, whose constructor is not compiled."""

        def decorated(kind: type) -> type:
            declared = kind.__annotations__  # texts, in each of which words of ``dataclasses`` would be looked for
            kind.__annotations__ = dict.fromkeys(declared, object)
            found = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(kind)
            found.__annotations__ = declared
            for each in dataclasses.fields(found):
                each.type = declared.get(each.name, each.type)
            found.__init__, found.__replace__ = _initializer(found), _replacer(found)
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


class _Loader(SourceFileLoader):
    def path_stats(self, path: Any) -> Any:
        """State when the file was changed, and in which release.

        Some installers give the files of every release one time, and none takes away what was cached of a table.
        """
        stats = dict(super().path_stats(path))
        return stats | {"mtime": int(stats["mtime"]) + crc32(__version__.encode())}

    def source_to_code(self, data: Any, path: Any, **_: Any) -> Any:  # type: ignore[override]
        """Make code that has the table, and does nothing."""
        import tomllib

        table = tomllib.loads(data.decode())
        return self.source_to_code.__code__.replace(co_consts=(marshal.dumps(table),))


def table_of(path: Path) -> dict[str, Any]:
    """Read a TOML file that no user changes.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no TOML.
    """
    code = _Loader(path.name, str(path)).get_code(path.name)
    assert code is not None
    table: dict[str, Any] = marshal.loads(code.co_consts[0])
    return table
