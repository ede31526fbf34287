"""Arrays of a packed module, its declared settings, layout and groups."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ckconv.core.layouts import BF16, DTYPES, F16, F32, DType, Kind, Layout, plain, transposed
from ckconv.core.lazy import Rows, np
from ckconv.core.tensors import Array, StoredTensor, Tensor
from ckconv.quant.mlx import MAX_COLUMNS, Triple
from ckconv.quant.packed import INT, PARTS, Scheme, rows_of, scheme_of

# -- Arrays of a packed module, its declared settings, and its layout --------------------------------------------------

#: Arrays of a module by suffix; those that are there.
Arrays = Mapping[str, StoredTensor]

I32, I64, I8, U8 = DTYPES["I32"], DTYPES["I64"], DTYPES["I8"], DTYPES["U8"]
FP8, UE8 = DTYPES["F8_E4M3"], DTYPES["F8_E8M0"]
FLOATS = (F32, BF16, F16)

#: ``quant_method`` of auto-round, which packs as GPTQ, AutoAWQ or compressed-tensors do.
AUTO_ROUND = frozenset({"auto-round", "intel/auto-round"})


class Conflict(Exception):
    """Contradiction of arrays and declarations: the end of a sentence."""


class Unread(Exception):
    """Name of a sound layout that is not read."""


class PackConfig(NamedTuple):
    """Settings that the configuration declares of one module.

    ``None`` for what it does not say.

    Attributes:
        method: ``quant_method``.
        settings: keys of ``quantization_config``; of compressed-tensors, those of the module's group of ``weights``.
        integers_of: reads a small array; gives ``None`` where there are only headers.
        header: what ``__metadata__`` of the file says of the matrix, in JSON (torchao).
    """

    method: str
    settings: Mapping[str, Any]
    integers_of: Callable[[StoredTensor], Any]
    header: Mapping[str, Any]

    def number(self, key: str) -> int | None:
        """A whole number."""
        value = self.settings.get(key)
        return value if type(value) is int else None

    def agree(self, key: str, found: int) -> None:
        """Raise what the arrays contradict.

        Raises:
            Conflict: another number is declared.
        """
        value = self.number(key)
        if value is not None and value != found:
            raise Conflict(f"quantization_config says {key} {value}, and the arrays hold {found}")

    def document(self, stored: StoredTensor, name: str, whose: str) -> Mapping[str, Any]:
        """The JSON object whose bytes a small array holds.

        Raises:
            Unread: it is not there, or too long.
            Conflict: it is no object.
        """
        found = self.integers_of(stored) if stored.extent.nbytes <= 1 << 16 else None
        if found is None:
            raise Unread(f"{whose} without {name}")
        try:
            parsed = json.loads(found.tobytes())
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            raise Conflict(f"{name} is no JSON object")
        return parsed


class Tile(NamedTuple):
    """Stored bytes for rows ``start`` to ``stop`` of a matrix.

    Attributes:
        arrays: bytes ``[n, bytes of a row]`` of the rows of each array that are for some of these rows; ``None`` for an
            array that is not there.
        per: rows of the matrix that one row of the array is for, 0 for all.
        dtype: type of the rows to make.
        columns: of the matrix.
    """

    start: int
    stop: int
    arrays: tuple[Rows | None, ...]
    per: tuple[int, ...]
    dtype: DType
    columns: int

    @property
    def scheme(self) -> Scheme:
        """Scheme of the rows; unpacking of a triple asks for none."""
        found = scheme_of(self.dtype)
        assert found is not None
        return found

    def own(self, number: int) -> Rows:
        """The row of an array for each row of the tile."""
        array, per = self.arrays[number], self.per[number]
        assert array is not None
        if per == 0:
            return np.repeat(array[:1], self.stop - self.start, axis=0)
        return array if per == 1 else self.cut(np.repeat(array, per, axis=0), per)

    def cut(self, rows: Any, per: int) -> Any:
        """The tile's part of ``rows``, where an array row makes ``per`` rows."""
        first = self.start % per
        return rows[first : first + self.stop - self.start]


class Module(NamedTuple):
    """Layout of a module's arrays, for ``core.tensors.PackedMatrix``.

    Attributes:
        scheme: type of the rows that ``unpack`` makes; of a triple they are those of the arrays side by side, as which
            the arrays are read where nothing has to be unpacked.
        shape: of the matrix; more than two axes for stacked ones.
        arrays: in the order of ``Tile.arrays``; the second one is that of the scales.
        words: bits and groups, for people.
    """

    scheme: Scheme | Triple
    shape: tuple[int, ...]
    arrays: tuple[Array | None, ...]
    unpack: Callable[[Tile], Rows] | None
    words: str


#: Bytes of an array that is read at once, because any row may need any of it.
MAX_WHOLE = 64 << 20


def check_bounded(found: Module) -> Module:
    """The module, if little memory is enough to read it.

    Raises:
        Unread: of any part more is read at once.
    """
    if found.shape[-1] > MAX_COLUMNS:
        raise Unread(f"matrices with rows of {found.shape[-1]:,} columns ({MAX_COLUMNS:,} are read at once)")
    for array in found.arrays:
        if array is not None and not array.per and array.tensor.nbytes > MAX_WHOLE:
            raise Unread(f"arrays of {array.tensor.nbytes:,} bytes for any row ({MAX_WHOLE:,} are read at once)")
    return found


class Packing(NamedTuple):
    """A way to lay a matrix out.

    Attributes:
        name: for people.
        methods: values of ``quant_method`` under which it occurs.
        arrays: suffix -> types; what ends in ``?`` may be missing.
        fit: what some arrays are, see above.
        dense: suffix of the name that the decoded matrix has.
        like: tells it from another packing of the same names and types, by shapes.
        declared: it is one only where ``quant_method`` says so: bytes and a scale may be many things.
    """

    name: str
    methods: frozenset[str]
    arrays: Mapping[str, tuple[DType, ...]]
    fit: Callable[[Arrays, PackConfig], Module]
    dense: str = ".weight"
    like: Callable[[Arrays], bool] = lambda stored: True
    declared: bool = False

    @property
    def required(self) -> frozenset[str]:
        """Suffixes of arrays that a module cannot do without."""
        return frozenset(suffix for suffix in self.arrays if not suffix.endswith("?"))

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of all arrays."""
        return tuple(suffix.removesuffix("?") for suffix in self.arrays)

    def types(self, suffix: str) -> tuple[DType, ...]:
        """Types that an array may have; none for an array of another packing."""
        return self.arrays.get(suffix) or self.arrays.get(f"{suffix}?") or ()


def in_rows(stored: StoredTensor, per: int = 1) -> Array:
    """Array stored row after row; a vector or a number is one row."""
    *rows, columns = stored.shape if len(stored.shape) > 1 else (1, *(stored.shape or (1,)))
    return laid_out(stored, plain(math.prod(rows), columns), per=per)


def in_columns(stored: StoredTensor, per: int = 1, run: int = 1) -> Array:
    """Array whose rows are stored as columns, or runs of neighboring columns."""
    if run == 1:
        return laid_out(stored, transposed(stored.shape[1], stored.shape[0]), per=per)
    dtype = DType(f"{run} {stored.dtype}", Kind.OPAQUE, 1, run * stored.dtype.size)
    return laid_out(stored, transposed(stored.shape[1] // run, stored.shape[0]), dtype, per=per)


def laid_out(
    stored: StoredTensor, layout: Layout, dtype: DType | None = None, *, times: int = 1, per: int = 1
) -> Array:
    """Array of a matrix, whose bytes are the stored ones so many times.

    Args:
        dtype: of its elements, if not the stored one.
    """
    shape, extents = (layout.rows, layout.cols), (stored.extent,) * times
    return Array(Tensor(stored.name, stored.name, dtype or stored.dtype, shape, extents, layout), per)


def matrix(stored: StoredTensor) -> tuple[int, int]:
    """Rows and columns of an array.

    Raises:
        Conflict: it has other axes, or nothing along one.
    """
    if len(stored.shape) != 2 or not all(stored.shape):
        name = stored.name.rpartition(".")[2]
        raise Conflict(f"{name} has shape {list(stored.shape)}, and is not a matrix")
    return stored.shape[0], stored.shape[1]


def unpack_bytes(tile: Tile) -> Rows:
    """Rows of a code a byte; signed codes are 128 less than the bytes."""
    parts = [tile.own(0), tile.own(2)] if tile.scheme.zeros else [tile.own(0)]
    codes, *zeros = [part ^ np.uint8(0x80) for part in parts] if tile.scheme.codes in (INT, PARTS) else parts
    return rows_of(codes, tile.own(1), *zeros)


def shaped(stored: StoredTensor, shape: tuple[int, ...]) -> None:
    """Raise for an array of another shape.

    Raises:
        Conflict: it has another.
    """
    if stored.shape != shape:
        name = stored.name.rpartition(".")[2]
        raise Conflict(f"{name} has shape {list(stored.shape)}, the other arrays make it {list(shape)}")


# -- Groups of columns that share a scale: runs, or given by an index --------------------------------------------------


def grouped(columns: int, groups: int, declared: PackConfig) -> int:
    """Columns of a group.

    Raises:
        Conflict: groups do not divide the row, or are not what is declared.
    """
    size = declared.number("group_size")
    size = columns // max(groups, 1) if size is None else columns if size in (-1, 0) else size
    if size < 1 or columns % size:
        raise Conflict(f"groups of {size} do not divide rows of {columns:,}")
    if columns // size != groups:
        raise Conflict(f"quantization_config makes {columns // size:,} groups of {size}, and scales has {groups:,}")
    return size


def group_words(size: int, declared: PackConfig) -> str:
    """The groups, for people."""
    return "scales of whole rows" if declared.number("group_size") in (-1, 0) else f"groups of {size}"


def ordered(stored: Arrays, suffix: str, size: int, groups: int, declared: PackConfig, promised: str) -> Array | None:
    """Index of the columns, where groups are scattered over the row.

    Args:
        promised: the setting that says so, which does not count beside an index; empty for none.

    Raises:
        Conflict: the index names a group that is not there, has another length, or is promised and missing.
    """
    if suffix not in stored:
        if promised:
            raise Conflict(f"{promised}, and there is no {suffix[1:]}")
        return None
    shaped(stored[suffix], (size * groups,))
    found, index = declared.integers_of(stored[suffix]), in_rows(stored[suffix], 0)
    if found is None:
        return index
    if not len(found) or int(found.min()) < 0 or int(found.max()) >= groups:
        raise Conflict(f"{suffix[1:]} names groups beyond the {groups:,} of scales")
    return index if (found.reshape(groups, size) != np.arange(groups)[:, None]).any() else None
