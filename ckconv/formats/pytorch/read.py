"""Read a state dict of ``torch.save`` without executing its pickle."""

from __future__ import annotations

import io
import itertools
import pickletools
import struct
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ckconv.core.layouts import DTYPES, DType
from ckconv.core.tensors import Extent, StoredTensor
from ckconv.errors import Faults, InputError, UnsupportedError, quoted
from ckconv.formats.safetensors.container import MAX_DIMS, MAX_NAME, PICKLE_METADATA, SafetensorsFile
from ckconv.io.files import ByteSource, open_source

# -- Names that the pickle of a state dict may hold, and torch's types -------------------------------------------------
# Source: ``torch/serialization.py``, ``torch/_utils.py`` and ``torch/storage.py`` of torch 2.13.

#: Class of a storage of one type -> that type.
STORAGES: dict[str, DType] = {
    f"{name}Storage": DTYPES[dtype]
    for name, dtype in {
        "Float": "F32", "Double": "F64", "Half": "F16", "BFloat16": "BF16", "Long": "I64", "Int": "I32",
        "Short": "I16", "Char": "I8", "Byte": "U8", "Bool": "BOOL", "ComplexFloat": "C64",
    }.items()
}  # fmt: skip
#: Of a storage of bytes, whose tensors say their type.
UNTYPED = "UntypedStorage"

#: Name in ``torch`` -> type.
TYPES: dict[str, DType] = {
    name: DTYPES[dtype]
    for name, dtype in {
        "float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
        "int16": "I16", "int8": "I8", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
        "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
        "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
    }.items()
}  # fmt: skip

#: Functions that make a tensor of a storage: (module, name) -> where in their arguments the type is, if not in that.
VIEWS: dict[tuple[str, str], int | None] = {
    ("torch._utils", "_rebuild_tensor"): None,
    ("torch._utils", "_rebuild_tensor_v2"): None,
    ("torch._utils", "_rebuild_tensor_v3"): 6,
}
#: Functions whose first argument is the tensor that they return.
WRAPPERS = frozenset({("torch._utils", "_rebuild_parameter"), ("torch._utils", "_rebuild_parameter_with_state")})
#: Of a tensor with attributes: the function, the class, the arguments and the attributes.
TYPED = ("torch._tensor", "_rebuild_from_type_v2")
CLASSES = frozenset({("torch", "Tensor"), ("torch.nn.parameter", "Parameter")})
ORDERED_DICT = ("collections", "OrderedDict")
SIZE = ("torch", "Size")

#: Everything that may be named, whatever is done with it.
NAMED = frozenset(
    {
        *VIEWS,
        *WRAPPERS,
        *CLASSES,
        TYPED,
        ORDERED_DICT,
        SIZE,
        *(("torch", name) for name in (*STORAGES, *TYPES)),
        ("torch.storage", UNTYPED),
    }
)

#: What the pickle of a distributed checkpoint names besides.
DCP_NAMES = frozenset(
    {
        *(
            ("torch.distributed.checkpoint.metadata", name)
            for name in (
                *("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "StorageMeta"),
                *("TensorProperties", "MetadataIndex", "_MEM_FORMAT_ENCODING"),
            )
        ),
        *(("torch.distributed.checkpoint.filesystem", name) for name in ("_StorageInfo", "StorageInfo")),
        ("torch.serialization", "_get_layout"),
        *(("pathlib", name) for name in ("PosixPath", "WindowsPath", "PurePosixPath", "Path")),
        *(("pathlib._local", name) for name in ("PosixPath", "WindowsPath")),
    }
)

#: Packages whose objects the state of a training run holds beside tensors: they are known by their names.
_PACKAGES = frozenset({"accelerate", "argparse", "collections", "deepspeed", "numpy", "torch", "transformers"})
_BUILT_IN = frozenset({("builtins", "set"), ("__builtin__", "set"), ("_codecs", "encode")})


class _Training(Container[tuple[str, str]]):
    """Names of those packages, and of a few built-in classes."""

    def __contains__(self, name: object) -> bool:
        return name in _BUILT_IN or (isinstance(name, tuple) and str(name[0]).partition(".")[0] in _PACKAGES)


TRAINING = _Training()

#: What the state dict of a model is called within what was saved.
CONTAINERS = ("model", "models", "module", "state_dict", "model_state_dict")

#: Bytes of a pickle. Of 100,000 tensors one has about 20 MB.
MAX_PICKLE = 64 << 20
#: Of a pickle's containers, and of the values that it memorizes: so many, and one more for so many bytes (torch writes
#: one for 15 and one for 10 bytes); and of its instructions (one for 2.7 bytes). An empty list of 1 byte takes 64.
MAX_CONTAINERS, BYTES_PER_CONTAINER, BYTES_PER_INSTRUCTION = 100_000, 8, 2
MAX_TENSORS = 1_000_000
#: Bytes of an archive's directory.
MAX_DIRECTORY = 256 << 20

#: The first pickle of a file of torch before 1.6: a number (``MAGIC_NUMBER``), then the protocol's.
LEGACY_MAGIC, LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


# -- Interpret the pickle of a state dict; nothing is imported or called -----------------------------------------------
# A pickle is a program for a machine with a stack. Of its instructions those are followed that describe containers,
# numbers, texts and tensors; what it names beside torch's functions for tensors is an error with that name.
# Source: ``pickletools`` of Python, whose parser of instructions is used: it reads no further than the bytes go.


class Malformed(Exception):
    """Fault of a pickle, to follow its name in a sentence."""


class GlobalName(NamedTuple):
    """A function or class, by its name only."""

    module: str
    name: str


class Storage(NamedTuple):
    """Run ``key`` of ``elements`` values of ``dtype``, or untyped bytes."""

    key: str
    dtype: DType | None
    elements: int


class Record:
    """Object of a permitted class: arguments, state; compared by identity."""

    def __init__(self, named: GlobalName, made_of: Any = ()) -> None:
        self.named, self.made_of = named, made_of
        self.state: Any = {}


class View(NamedTuple):
    """A tensor: ``offset`` and ``strides`` in elements of its storage."""

    storage: Storage
    dtype: DType
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


#: Sizes and offsets are numbers of 64 bits with a sign.
_NUMBERS = 1 << 63


class _Mark:
    """Object that ``MARK`` leaves on the stack."""


_MARK = _Mark()


class PickledObject(NamedTuple):
    """Object that a pickle describes, and the length of the pickle in bytes."""

    value: Any
    nbytes: int


def unpickle(data: bytes, records: Container[tuple[str, str]] = ()) -> PickledObject:
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
            return PickledObject(machine.result, stream.tell())
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
        """Follow an instruction of the pickle.

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
        target = self.stack[-1]
        keys = pairs[::2]
        # To look up a tuple of tuples goes as deep as they are nested.
        if not isinstance(target, dict) or not all(isinstance(key, (str, int, Record)) for key in keys):
            raise TypeError
        target.update(zip(keys, pairs[1::2], strict=True))

    def extend(self, items: list[Any]) -> None:
        """Into the list below them."""
        target = self.stack[-1]
        if isinstance(target, Record):
            return
        if not isinstance(target, list):
            raise TypeError
        target += items

    def leave_out(self) -> None:
        """Drop the items of a set, which has no tensors."""
        self.marked()

    def named(self) -> None:
        """A name whose module and name are texts on the stack."""
        module, name = self.popped(2)
        self.stack.append(self._named(module, name))

    def _named(self, module: Any, name: Any) -> GlobalName:
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeError
        if (module, name) not in NAMED and (module, name) not in self.records:
            raise Malformed(f"holds a pickle that names {module}.{name}; only tensors are read, nothing is executed")
        return GlobalName(module, name)

    def state(self) -> None:
        """Apply a pickled state; that of a state dict says only versions."""
        target, state = self.popped(2)
        if isinstance(target, Record):
            target.state = state
        elif not isinstance(target, (dict, View)):
            raise TypeError
        self.stack.append(target)

    def call(self) -> None:
        """A tensor, or a container, out of its parts."""
        function, arguments = self.popped(2)
        if isinstance(function, GlobalName) and function not in NAMED and function in self.records:
            self.stack.append(Record(function, arguments))
        else:
            self.stack.append(_called(function, arguments))

    def persistent(self) -> None:
        """Read a storage: ``("storage", class, key, device, elements)``.

        Files of old versions add a view of another.
        """
        kind, made_of, key, _, elements, *view = self.popped(1)[0]
        if kind != "storage" or any(item is not None for item in view) or not isinstance(made_of, GlobalName):
            raise TypeError
        if not isinstance(elements, int) or not 0 <= elements < _NUMBERS or not isinstance(key, str):
            raise TypeError
        dtype = None if made_of.name == UNTYPED else STORAGES[made_of.name]
        self.stack.append(Storage(key, dtype, elements))


def _called(function: Any, arguments: Any) -> Any:
    if not isinstance(function, GlobalName) or not isinstance(arguments, tuple):
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


# -- Find the pickle of a ``torch.save`` file, and the storages it names -----------------------------------------------
# A zip archive of stored members since torch 1.6::
#
#     NAME/data.pkl    the state dict
#     NAME/byteorder   "little"; missing in files of old versions
#     NAME/data/KEY    the values of a storage
#
# Before, one pickle after the other: a magic number, a protocol version, the sizes of the machine, the state dict, the
# list of its storages' keys; then each storage, a count of elements as i64 in front of its values.
# Sources: ``torch/serialization.py``; PKWARE's APPNOTE.TXT 6.3.10, sections 4.3.7, 4.3.12, 4.3.14 to 4.3.16 and 4.5.3.
#
# Read a state dict of ``torch.save`` without executing its pickle.
#
# No value is read.

_LOCAL = struct.Struct("<4s2xHH16xHH")
_CENTRAL = struct.Struct("<4s4xHH8xIIHHH8xI")
_END = struct.Struct("<4s4x2xHIIH")
_LOCATOR, _END64 = struct.Struct("<4s4xQ4x"), struct.Struct("<4s28xQQQ")
#: A field of 32 bits that the 64-bit extension holds.
_WIDE = 0xFFFFFFFF
_EXTENSION = 1
_ENCRYPTED = 1
#: Bytes of a comment behind the end record.
_MAX_COMMENT = 0xFFFF
#: Bytes of a file of pickles that are read at first.
_FIRST = 1 << 20


class SavedState(NamedTuple):
    """Pickled state, and the bytes of each storage by key."""

    value: Any
    storages: Mapping[str, Extent]


class Member(NamedTuple):
    """Entry of a zip archive's directory.

    Attributes:
        end: where the next member, or the directory, begins.
    """

    offset: int
    nbytes: int
    method: int
    flags: int
    end: int = 0


def read_saved(source: ByteSource, records: Container[tuple[str, str]] = ()) -> SavedState:
    """Read a file that begins as one of the two kinds do.

    Args:
        records: see :func:`ckconv.formats.pytorch.read.unpickle`.

    Raises:
        Malformed: it is neither.
    """
    try:
        return (_archive if source.read_at(0, 2) == b"PK" else _legacy)(source, records)
    except (EOFError, struct.error):
        raise Malformed("ends early; the download looks incomplete") from None


def _archive(source: ByteSource, records: Container[tuple[str, str]]) -> SavedState:
    members = members_of(source)
    if any(name.partition("/")[2].startswith("code/") for name in members):
        raise Malformed(
            "is a TorchScript program: torch.jit.load reads it; save the state_dict() of what it was made of"
        )
    pickles = [name for name in members if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise Malformed("is a zip archive that torch.save did not write (it has no data.pkl)")
    stem = pickles[0].removesuffix("data.pkl")
    order = members.get(f"{stem}byteorder")
    if order is not None and _read(source, order, 16) != b"little":
        raise Malformed("was saved on a machine with the other order of bytes")
    value = unpickle(_read(source, members[pickles[0]], MAX_PICKLE), records).value
    prefix = f"{stem}data/"
    stored = {name.removeprefix(prefix): member for name, member in members.items() if name.startswith(prefix)}
    named = {view.storage.key for view in _views(value)}
    return SavedState(value, {key: member_extent(source, stored[key]) for key in stored.keys() & named})


def _views(value: Any) -> list[View]:
    """All tensors, however deep they lie."""
    found, seen, left = [], set[int](), [value]
    while left:
        item = left.pop()
        if isinstance(item, View):
            found.append(item)
        elif isinstance(item, (dict, list, tuple, Record)) and id(item) not in seen:
            seen.add(id(item))
            left += item.values() if isinstance(item, dict) else _items_of(item)
    return found


def _items_of(item: Any) -> Iterable[Any]:
    return (item.made_of, item.state) if isinstance(item, Record) else item


def _read(source: ByteSource, member: Member, limit: int) -> bytes:
    if member.nbytes > limit:
        raise Malformed(f"has a pickle of {member.nbytes:,} bytes; {limit:,} are allowed")
    extent = member_extent(source, member)
    return source.read_whole(extent.offset, extent.nbytes)


def member_extent(source: ByteSource, member: Member) -> Extent:
    """The bytes of a member, which lie behind a header of their own."""
    if member.method or member.flags & _ENCRYPTED:
        raise Malformed("has compressed or encrypted members: save it without")
    head = (
        source.read_at(member.offset, _LOCAL.size) if member.offset + _LOCAL.size <= member.end else bytes(_LOCAL.size)
    )
    magic, flags, method, name, extra = _LOCAL.unpack(head)
    start = member.offset + _LOCAL.size + name + extra
    if magic != b"PK\3\4" or method != member.method or flags & _ENCRYPTED or start + member.nbytes > member.end:
        raise Malformed(f"has a member at byte {member.offset:,} that is not what its directory says")
    return Extent(source.path, start, member.nbytes)


def members_of(source: ByteSource) -> dict[str, Member]:
    """The directory of a zip archive: name -> member.

    Raises:
        Malformed: it is none.
        EOFError: it has no end.
    """
    size = source.size or 0
    tail_at = max(0, size - _END.size - _MAX_COMMENT)
    tail = source.read_at(tail_at, size - tail_at)
    at = tail.rfind(b"PK\5\6")
    if at < 0:
        raise EOFError
    _, count, nbytes, offset, _ = _END.unpack_from(tail, at)
    if at >= _LOCATOR.size and tail[at - _LOCATOR.size :].startswith(b"PK\6\7"):
        _, end64 = _LOCATOR.unpack_from(tail, at - _LOCATOR.size)
        magic, count, nbytes, offset = _END64.unpack(source.read_at(end64, _END64.size))
        if magic != b"PK\6\6":
            raise Malformed("has a zip directory whose end record is not where it says")
    if nbytes > MAX_DIRECTORY or offset + nbytes > size:
        raise Malformed(f"has a zip directory of {nbytes:,} bytes at byte {offset:,}, the file {size:,} bytes")
    directory = source.read_whole(offset, nbytes)
    found: dict[str, Member] = {}
    at = 0
    for _ in range(count):
        magic, flags, method, stored, plain, name_bytes, extra, comment, local = _CENTRAL.unpack_from(directory, at)
        start = at + _CENTRAL.size
        at = start + name_bytes + extra + comment
        if magic != b"PK\1\2" or at > nbytes:
            raise Malformed("has a zip directory that is not sound")
        name = directory[start : start + name_bytes].decode("utf-8", "replace")
        wide = _wide(directory[start + name_bytes : start + name_bytes + extra])
        plain, stored, local = (next(wide) if number == _WIDE else number for number in (plain, stored, local))
        if name in found or (plain != stored and not method):
            raise Malformed(f"has a zip directory with {name!r} twice, or of two sizes")
        found[name] = Member(local, plain, method, flags)
    offsets = sorted({member.offset for member in found.values()} | {offset})
    if len(offsets) <= len(found) or offsets[-1] != offset:
        raise Malformed("has a zip directory whose members lie over each other")
    ends = dict(itertools.pairwise(offsets))
    return {name: member._replace(end=ends[member.offset]) for name, member in found.items()}


def _wide(extra: bytes) -> Any:
    """Numbers of the 64-bit extension: size, stored size, offset."""
    at = 0
    while at + 4 <= len(extra):
        kind, nbytes = int.from_bytes(extra[at : at + 2], "little"), int.from_bytes(extra[at + 2 : at + 4], "little")
        if kind == _EXTENSION:
            body = extra[at + 4 : at + 4 + nbytes]
            for start in range(0, len(body) - 7, 8):
                yield int.from_bytes(body[start : start + 8], "little")
        at += 4 + nbytes
    raise Malformed("has a zip directory that is not sound")


def _legacy(source: ByteSource, records: Container[tuple[str, str]]) -> SavedState:
    """One pickle after the other, then the storages."""
    at = 0
    values = []
    for _ in range(5):
        found = _unpickled(source, at, records)
        values.append(found.value)
        at += found.nbytes
        if values[0] != LEGACY_MAGIC:
            raise Malformed("is a pickle that torch.save did not write")
    _, protocol, machine, value, keys = values
    if protocol != LEGACY_PROTOCOL or not isinstance(machine, dict) or not isinstance(keys, list):
        raise Malformed("is a pickle of another protocol than torch.save's")
    if machine.get("little_endian") is not True:
        raise Malformed("was saved on a machine with the other order of bytes")
    sizes = {view.storage.key: view.storage for view in _views(value)}
    extents: dict[str, Extent] = {}
    for key in keys:
        storage = sizes.get(key) if isinstance(key, str) else None
        elements = int.from_bytes(source.read_at(at, 8), "little", signed=True)
        if storage is None or storage.dtype is None or elements != storage.elements:
            raise Malformed(f"has a storage at byte {at:,} that its pickle does not describe")
        extents[key] = Extent(source.path, at + 8, storage.dtype.nbytes(elements))
        at += 8 + extents[key].nbytes
    if at > (source.size or 0):
        raise EOFError
    return SavedState(value, extents)


def _unpickled(source: ByteSource, at: int, records: Container[tuple[str, str]]) -> PickledObject:
    """Read the pickle at a byte; its length is not known before."""
    nbytes, left = _FIRST, (source.size or 0) - at
    while True:
        try:
            return unpickle(source.read_at(at, min(nbytes, left)), records)
        except EOFError:
            if nbytes >= left:
                raise
            if nbytes >= MAX_PICKLE:
                raise Malformed(f"has a pickle of more than {MAX_PICKLE:,} bytes") from None
        nbytes *= 8


# -- Read a state dict of ``torch.save`` without executing its pickle --------------------------------------------------


#: Way out of a file that holds more than a model, or something else.
_ALONE = "save the tensors alone (torch: torch.save(model.state_dict(), FILE))"


def read_pytorch(path: Path, *, source: ByteSource | None = None) -> SafetensorsFile:
    """The tensors of a state dict, in the order of their values.

    Args:
        path: the file, also where ``source`` is given.
        source: what to read from; left open.

    Raises:
        InputError: ``pt.pickle``, it is malformed, or its pickle names what makes no tensor; ``pt.tensor``, a tensor
            lies outside of its storage; and those of ``open_source``.
        UnsupportedError: ``pt.content``, it holds other things than tensors, or tensors that are views with gaps.
    """
    opened = open_source(path) if source is None else source
    try:
        saved = read_saved(opened)
    except Malformed as error:
        raise InputError("pt.pickle", str(error), path=path) from None
    finally:
        if source is None:
            opened.close()
    value = _model(saved.value, path)
    if not isinstance(value, dict) or not value:
        what = "no tensors" if value == {} else f"a {type(value).__name__}, not a dict of tensors"
        raise UnsupportedError("pt.content", f"holds {what}", path=path, hint=_ALONE)
    if len(value) > MAX_TENSORS:
        message = f"lists {len(value):,} tensors; {MAX_TENSORS:,} are allowed"
        raise InputError("pt.pickle", message, path=path, found=len(value), allowed=MAX_TENSORS)
    tensors, faults = [], Faults(path)
    for name, view in value.items():
        if not isinstance(name, str) or not isinstance(view, View):
            what = "a tensor" if isinstance(view, View) else f"a {type(view).__name__}"
            raise UnsupportedError(
                "pt.content",
                f"holds {what} under {quoted(str(name))}, not only tensors by name",
                path=path,
                hint=_ALONE,
            )
        stored = _stored(name, view, saved.storages.get(view.storage.key), faults)
        if stored:
            tensors.append(stored)
    faults.check()
    tensors.sort(key=lambda stored: stored.extent.offset)
    return SafetensorsFile(path, PICKLE_METADATA, tuple(tensors), 0, 0, opened.size)


def _model(value: Any, path: Path) -> Any:
    """The model within the state of a training run; else the value itself."""
    within = value if isinstance(value, dict) else {}
    named = [key for key in within if key in CONTAINERS or "ema" in str(key).lower().split("_")]
    models = [key for key in named if isinstance(within[key], dict) and within[key] and _tensors(within[key])]
    if len(models) > 1 or (models and any(isinstance(each, View) for each in within.values())):
        names = [f"under {quoted(str(key))}" for key in models]
        where = ", ".join(names if len(names) > 1 else [*names, "tensors beside it"])
        message, hint = f"holds several models: {where}", "save one of them alone"
        raise UnsupportedError("pt.content", message, path=path, hint=hint)
    found = within[models[0]] if models and models[0] in CONTAINERS else value
    if found is not value and value.get("param_shapes") and not all(0 not in view.shape for view in found.values()):
        message, hint = "holds no values of the model, which DeepSpeed has cut", "name the directory that it is in"
        raise UnsupportedError("pt.content", message, path=path, hint=hint)
    return found


def _tensors(value: dict[Any, Any]) -> bool:
    return all(isinstance(view, View) for view in value.values())


def extent_of(name: str, view: View, extent: Extent | None, path: Path) -> Extent:
    """The run of bytes that a tensor is.

    Raises:
        InputError: ``pt.tensor``.
        UnsupportedError: ``pt.content``.
    """
    faults = Faults(path)
    stored = _stored(name, view, extent, faults)
    faults.check()
    assert stored is not None
    return stored.extent


def _stored(name: str, view: View, extent: Extent | None, faults: Faults) -> StoredTensor | None:
    """Tensor as a run of bytes; ``None`` with a fault noted where it is none."""
    storage, dtype = view.storage, view.dtype
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME or len(view.shape) > MAX_DIMS:
        faults.add("pt.tensor", f"tensor {quoted(name)} has too long a name, or too many dimensions", tensor=name)
        return None
    elements, strides = 1, []
    for length in reversed(view.shape):
        strides.append(elements)
        elements *= length
    start = view.offset * dtype.size
    nbytes = elements * dtype.size
    declared = storage.elements * (storage.dtype.size if storage.dtype else 1)
    if extent is None or extent.nbytes < declared or start + nbytes > declared:
        there = "is missing" if extent is None else f"has {extent.nbytes:,} bytes"
        faults.add(
            "pt.tensor",
            f"tensor {quoted(name)} needs bytes {start:,} to {start + nbytes:,} of a storage that {there}",
            tensor=name,
        )
        return None
    scattered = any(
        length > 1 and stride != wanted
        for length, stride, wanted in zip(view.shape, view.strides, reversed(strides), strict=True)
    )
    if scattered and elements:
        raise UnsupportedError(
            "pt.content",
            f"tensor {quoted(name)} is a view whose values do not lie one after the other",
            path=extent.path,
            tensor=name,
            hint="save it contiguous (torch: tensor.contiguous())",
        )
    return StoredTensor(name, dtype, view.shape, Extent(extent.path, extent.offset + start, nbytes))
