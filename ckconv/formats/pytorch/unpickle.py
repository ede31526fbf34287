"""Interpret the pickle of a state dict; nothing is imported or called.

A pickle is a program for a machine with a stack. Of its instructions those are followed that describe containers,
numbers, texts and tensors; what it names beside torch's functions for tensors is an error with that name.
Source: ``pickletools`` of Python, whose parser of instructions is used: it reads no further than the bytes go.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable, Container, Mapping
from typing import Any, NamedTuple

from ckconv.core.dtypes import DType
from ckconv.formats.pytorch.spec import (
    BYTES_PER_CONTAINER,
    BYTES_PER_INSTRUCTION,
    CLASSES,
    MAX_CONTAINERS,
    NAMED,
    ORDERED_DICT,
    SIZE,
    STORAGES,
    TYPED,
    TYPES,
    UNTYPED,
    VIEWS,
    WRAPPERS,
)


class Malformed(Exception):
    """Fault of a pickle, to follow its name in a sentence."""


class Named(NamedTuple):
    """A function or class, by its name only."""

    module: str
    name: str


class Storage(NamedTuple):
    """Run of ``elements`` values of ``dtype``, or bytes without a type.

    ``key`` says which run.
    """

    key: str
    dtype: DType | None
    elements: int


class Record:
    """Object of a permitted class: its arguments and its state.

    It is known by its identity.
    """

    def __init__(self, named: Named, made_of: Any = ()) -> None:
        self.named, self.made_of = named, made_of
        self.state: Any = {}


class View(NamedTuple):
    """A tensor: ``offset`` and ``strides`` in elements of its storage."""

    storage: Storage
    dtype: DType
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


#: Sizes and places are numbers of 64 bits with a sign.
_NUMBERS = 1 << 63


class _Mark:
    """Object that ``MARK`` leaves on the stack."""


_MARK = _Mark()


class Unpickled(NamedTuple):
    """Object that a pickle describes, and the length of the pickle in bytes."""

    value: Any
    nbytes: int


def unpickle(data: bytes, records: Container[tuple[str, str]] = ()) -> Unpickled:
    """Interpret the pickle that ``data`` begins with.

    Args:
        records: classes and functions of which it may make a :class:`Record`.

    Raises:
        Malformed: it is none, or does anything but describe containers, numbers, texts and tensors.
        EOFError: it goes on behind the end of ``data``.
    """
    machine = _Machine(len(data), records)
    stream = io.BytesIO(data)
    instructions = pickletools.genops(stream)
    while True:
        try:
            instruction, argument, _ = next(instructions)
        except StopIteration:
            return Unpickled(machine.result, stream.tell())
        except ValueError as error:
            if stream.tell() >= len(data):
                raise EOFError from None
            raise Malformed(f"holds no sound pickle at byte {stream.tell():,} ({error})") from None
        try:
            machine.do(instruction.name, argument)
        except (IndexError, TypeError, KeyError, ValueError, AttributeError):
            raise Malformed(f"holds a pickle that makes no sense at byte {stream.tell():,}") from None


class _Machine:
    """The stack and the memory of the machine."""

    def __init__(self, nbytes: int, records: Container[tuple[str, str]]) -> None:
        self.records = records
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.result: Any = None
        #: How many instructions, containers and memorized values may still come.
        self._instructions = MAX_CONTAINERS + nbytes // BYTES_PER_INSTRUCTION
        self._containers = self._memorized = MAX_CONTAINERS + nbytes // BYTES_PER_CONTAINER

    def do(self, name: str, argument: Any) -> None:
        """One instruction.

        Raises:
            Malformed: it is none that describes, or there are more than a state dict has.
        """
        stack = self.stack
        self._instructions -= 1
        self._containers -= name in _CONTAINERS
        self._memorized -= name in _MEMORIZING
        if self._instructions < 0 or self._containers < 0 or self._memorized < 0:
            raise Malformed("holds a pickle with more lists, dicts and tuples than a state dict has in so many bytes")
        if name in _CONSTANTS:
            stack.append(argument)
        elif name in _MADE:
            stack.append(_MADE[name]())
        elif name in _PUTS:
            self.memo[int(argument)] = stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self.memo[int(argument)])
        elif name in _DONE:
            _DONE[name](self)
        elif name == "GLOBAL":
            stack.append(self._named(*argument.split(" ", 1)))
        elif name not in _IGNORED:
            raise Malformed(f"holds a pickle with {name}, which describes no tensor")

    def marked(self) -> list[Any]:
        """Pop the last mark and all above."""
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
        found = self.stack[at + 1 :]
        del self.stack[at:]
        return found

    def popped(self, count: int) -> list[Any]:
        """The uppermost ``count``, of which no mark is one."""
        found = self.stack[-count:]
        if len(found) < count or _MARK in found:
            raise IndexError
        del self.stack[-count:]
        return found

    def stop(self) -> None:
        """The one that is left is the result."""
        (self.result,) = self.stack

    def update(self, pairs: list[Any]) -> None:
        """Keys and values, by turns, into the dict below them."""
        held = self.stack[-1]
        keys = pairs[::2]
        # To look up a tuple of tuples goes as deep as they are nested.
        if not isinstance(held, dict) or not all(isinstance(key, (str, int, Record)) for key in keys):
            raise TypeError
        held.update(zip(keys, pairs[1::2], strict=True))

    def extend(self, items: list[Any]) -> None:
        """Into the list below them."""
        held = self.stack[-1]
        if isinstance(held, Record):
            return
        if not isinstance(held, list):
            raise TypeError
        held += items

    def leave_out(self) -> None:
        """Drop the items of a set, which has no tensors."""
        self.marked()

    def named(self) -> None:
        """A name whose module and name are texts on the stack."""
        module, name = self.popped(2)
        self.stack.append(self._named(module, name))

    def _named(self, module: Any, name: Any) -> Named:
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeError
        if (module, name) not in NAMED and (module, name) not in self.records:
            raise Malformed(f"holds a pickle that names {module}.{name}; only tensors are read, nothing is executed")
        return Named(module, name)

    def state(self) -> None:
        """Take the attributes of a state dict: versions of its modules.

        They say nothing of the tensors.
        """
        held, state = self.popped(2)
        if isinstance(held, Record):
            held.state = state
        elif not isinstance(held, (dict, View)):
            raise TypeError
        self.stack.append(held)

    def call(self) -> None:
        """A tensor, or a container, out of its parts."""
        function, arguments = self.popped(2)
        if isinstance(function, Named) and function not in NAMED and function in self.records:
            self.stack.append(Record(function, arguments))
        else:
            self.stack.append(_called(function, arguments))

    def persistent(self) -> None:
        """Read a storage: ``("storage", class, key, device, elements)``.

        Files of old versions add a view of another.
        """
        kind, made_of, key, _, elements, *view = self.popped(1)[0]
        if kind != "storage" or any(item is not None for item in view) or not isinstance(made_of, Named):
            raise TypeError
        if not isinstance(elements, int) or not 0 <= elements < _NUMBERS or not isinstance(key, str):
            raise TypeError
        dtype = None if made_of.name == UNTYPED else STORAGES[made_of.name]
        self.stack.append(Storage(key, dtype, elements))


def _called(function: Any, arguments: Any) -> Any:
    if not isinstance(function, Named) or not isinstance(arguments, tuple):
        raise TypeError
    if function == ORDERED_DICT:
        if arguments:
            raise TypeError
        return {}
    if function == SIZE:
        return tuple(*arguments)
    if function == TYPED and arguments[1] in CLASSES and arguments[0] in VIEWS:
        return _called(arguments[0], arguments[2])
    if function in WRAPPERS and isinstance(arguments[0], View):
        return arguments[0]
    storage, offset, shape, strides = arguments[:4]
    typed = VIEWS[function]
    if not isinstance(storage, Storage) or len(shape) != len(strides):
        raise TypeError
    dtype = storage.dtype if typed is None else TYPES[arguments[typed].name]
    numbers = (offset, *shape, *strides)
    if dtype is None:
        raise TypeError
    if any(type(number) is not int or not 0 <= number < _NUMBERS for number in numbers):
        raise TypeError
    return View(storage, dtype, offset, tuple(shape), tuple(strides))


_PUTS = frozenset({"BINPUT", "LONG_BINPUT", "PUT"})
_MEMORIZING = _PUTS | {"MEMOIZE"}
#: Instructions that make an object of many bytes out of one or two.
_CONTAINERS = frozenset(
    {"EMPTY_DICT", "EMPTY_LIST", "EMPTY_SET", "MARK", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "LIST"}
)
#: Instructions that put their argument on the stack.
_CONSTANTS = frozenset(
    {
        *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BININT", "BININT1", "BININT2", "LONG1", "LONG4"),
        *("BINFLOAT", "INT", "LONG", "FLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES"),
    }
)
#: Instructions that put something new on it.
_MADE: Mapping[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": set,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "MARK": lambda: _MARK,
}
_DONE: Mapping[str, Callable[[_Machine], None]] = {
    "STOP": _Machine.stop,
    "TUPLE": lambda m: m.stack.append(tuple(m.marked())),
    "TUPLE1": lambda m: m.stack.append(tuple(m.popped(1))),
    "TUPLE2": lambda m: m.stack.append(tuple(m.popped(2))),
    "TUPLE3": lambda m: m.stack.append(tuple(m.popped(3))),
    "LIST": lambda m: m.stack.append(m.marked()),
    "SETITEM": lambda m: m.update(m.popped(2)),
    "SETITEMS": lambda m: m.update(m.marked()),
    "APPEND": lambda m: m.extend(m.popped(1)),
    "APPENDS": lambda m: m.extend(m.marked()),
    "ADDITEMS": _Machine.leave_out,
    "STACK_GLOBAL": _Machine.named,
    "BUILD": _Machine.state,
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.call,
    "BINPERSID": _Machine.persistent,
}
_IGNORED = frozenset({"PROTO", "FRAME"})
