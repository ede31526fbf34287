"""The canonical tensor index of a model or an adapter, whatever its file."""

from __future__ import annotations

import enum
import math
import os
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ckconv.core.layouts import DType, Kind, Layout, float32, plain, stored_order
from ckconv.core.lazy import NamedTuple, cached_property, dataclass, field, replace
from ckconv.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from ckconv.core.config import ModelConfig


# Canonical tensor names: patterns, and parsed names.
#
# ``{n}`` is the layer, ``{e}`` one of many experts. A name is looked up by replacing its whole-number segments, so a
# table of patterns costs one dictionary look-up a tensor, whatever its length.

#: Tensors that may be stored as one, rows one after the other: module of the whole -> those of its parts, in order.
PARTS: dict[str, tuple[str, ...]] = {
    "layers.{n}.attention.qkv": ("layers.{n}.attention.q", "layers.{n}.attention.k", "layers.{n}.attention.v"),
    "layers.{n}.ffn.gate_up": ("layers.{n}.ffn.gate", "layers.{n}.ffn.up"),
    "layers.{n}.linear.qkv": ("layers.{n}.linear.q", "layers.{n}.linear.k", "layers.{n}.linear.v"),
    "layers.{n}.attention.kv_b_heads": ("layers.{n}.attention.k_b", "layers.{n}.attention.v_b"),
    "layers.{n}.linear.qkvz": tuple(f"layers.{{n}}.linear.{part}" for part in ("q", "k", "v", "gate")),
    "layers.{n}.indexer.qk": ("layers.{n}.indexer.q", "layers.{n}.indexer.k"),
    "layers.{n}.linear.conv": ("layers.{n}.linear.conv_qk", "layers.{n}.linear.conv_v"),
}
QKV, GATE_UP, *_ = PARTS

#: What the patterns of biases start with.
_BIASED = ("layers.{n}.attention", "layers.{n}.ffn", "layers.{n}.cross_attn", "enc.", "output")


#: Parsed names that are cached: everybody asks, and few models have more.
_MAX_CACHED = 4096


class Name(NamedTuple):
    """A parsed name: ``pattern``, ``layer`` and ``expert``, or ``None``."""

    pattern: str
    layer: int | None
    expert: int | None = None


@lru_cache(maxsize=_MAX_CACHED)
def parse(name: str) -> Name:
    """Replace whole-number segments, the first by ``{n}``, then ``{e}``.

    ``model.layers.7.mlp.experts.3.up_proj.weight`` -> ``model.layers.{n}.mlp.experts.{e}.up_proj.weight``, 7, 3. A
    number written with leading zeros or in other digits is none: two spellings must not name one tensor.
    """
    parts = name.split(".")
    numbers: list[int] = []
    for position, part in enumerate(parts):
        if part.isascii() and part.isdigit() and len(part) <= 9 and (part == "0" or part[0] != "0"):
            if len(numbers) == 2:
                return Name(name, None)
            parts[position] = ("{n}", "{e}")[len(numbers)]
            numbers.append(int(part))
    return Name(".".join(parts), *numbers) if numbers else Name(name, None)


#: Number of a part behind a word.
_PART = re.compile(r"_(0|[1-9][0-9]{0,8})(?=\.)")


def spellings(stored: str) -> Iterator[Name]:
    """Names that a stored one may stand for.

    A number in it is that of a layer, of an expert, or a part of the name.
    """
    yield (name := parse(stored))
    if name.expert is not None:  # decoder.block.7.layer.0 of T5, visual.merger.mlp.0
        yield Name(name.pattern.replace("{e}", str(name.expert)), name.layer)
        # timm_model.blocks.2.9 of MobileNetV5, whose stages are stacks
        yield Name(name.pattern.replace("{n}", str(name.layer)).replace("{e}", "{n}"), name.expert)
    if name.pattern != stored:
        yield Name(stored, None)
    if name.layer is not None and (part := _PART.search(name.pattern)):  # ngram_embedding.shard_0.weight of Qwen 4
        yield Name(_PART.sub("_{e}", name.pattern, count=1), name.layer, int(part[1]))


@lru_cache(maxsize=_MAX_CACHED)
def with_layer(pattern: str, layer: int | None) -> str:
    """The name that a pattern gives for one layer."""
    return pattern if layer is None else pattern.replace("{n}", str(layer))


def is_bias(canonical: str) -> bool:
    """Whether a tensor is added, so that zeros are the same as none."""
    return canonical.endswith((".bias", "_bias")) and parse(canonical).pattern.startswith(_BIASED)


# What the tensors of an index are a tower of.


class Tower(NamedTuple):
    """A tower, beside which there is a text model that sees with it.

    Attributes:
        family: of towers, by name.
        parameters: by the names of the family's file.
        modifiers: whatever else changes what is computed, as "key = value" of the source.
        unread: keys of the source that no class of the family is known to read.
        others: what the preprocessor's document says otherwise than the parameters, as "key = value".
    """

    family: str
    parameters: Mapping[str, Any]
    modifiers: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


#: What stands before the names of a tower's tensors in the index of a model that has both.
PREFIX = "tower."

#: Canonical names of the tensors that formats treat in ways of their own.
EMBEDDING, HEAD, ROPE_FREQUENCIES = "token_embedding.weight", "output.weight", "rope_frequencies"


def joined(text: TensorIndex, tower: TensorIndex) -> TensorIndex:
    """Join the indexes of a text model and a tower, of two files or of one."""
    own = {f"{PREFIX}{name}": of_tower(tensor) for name, tensor in tower.tensors.items()}
    seen = {name: tuple(f"{PREFIX}{each}" for each in names) for name, names in tower.canonical_of.items()}
    known = {*tower.canonical_of, *(item.stored.name for item in tower.dropped)}
    beside = () if text.path == tower.path else tower.unknown
    return replace(
        text,
        files=tuple(dict.fromkeys((*text.files, *tower.files))),
        stored=tuple(dict.fromkeys((*text.stored, *tower.stored))),
        tensors={**text.tensors, **own},
        canonical_of={**text.canonical_of, **seen},
        dropped=(*text.dropped, *tower.dropped),
        unknown=(*(stored for stored in text.unknown if stored.name not in known), *beside),
        identities={**text.identities, **tower.identities},
        tower=tower.tower,
    )


def of_tower(tensor: Tensor) -> Tensor:
    """A tensor of a tower under its name in a joined index."""
    return replace(tensor, name=f"{PREFIX}{tensor.name}")


def parted(index: TensorIndex) -> tuple[TensorIndex, dict[str, Tensor]]:
    """Undo :func:`joined`: the text model, and the tower's tensors by name."""
    seen = {name.removeprefix(PREFIX): one for name, one in index.tensors.items() if name.startswith(PREFIX)}
    text = {name: tensor for name, tensor in index.tensors.items() if not name.startswith(PREFIX)}
    return replace(index, tensors=text, tower=None), seen


# What an adapter is, whatever file it came from: for each module of a base model, what its matrix changes by.
#
# The tensors of an adapter stand in a :class:`~ckconv.core.tensors.TensorIndex` like those of a model, named
# ``MODULE.ROLE`` (:class:`Role`), in one orientation for every format: a LoRA's ``lora_a`` is ``[rank, in]``, its
# ``lora_b`` ``[out, rank]``, and the matrix ``[out, in]`` of the base, rows in canonical order, changes by
# ``scale * lora_b @ lora_a``. The scale is part of the layout of ``lora_b``
# (:attr:`~ckconv.core.layouts.Layout.scale`), so that two adapters whose canonical values are equal change a model
# alike, wherever each of them keeps its scale. An embedding is no exception: its rows are the vocabulary.
#
# Scales are float32 numbers: PyTorch, MLX and llama.cpp all multiply float32 values by them.


class Role(enum.StrEnum):
    """Role of an adapter's tensor in its module.

    ``lora_a`` ``[rank, in]`` and ``lora_b`` ``[out, rank]``; ``lora_bias`` ``[out]``, which the scale multiplies too;
    ``magnitude``, what DoRA makes the norms of the merged rows (of an embedding: columns); ``ia3``, what the module's
    outputs, or in a feed-forward its inputs, are multiplied by; ``rows``, what replaces single rows of a table;
    ``saved_weight`` and ``saved_bias``, whole tensors that replace the base's.
    """

    A = "lora_a"
    B = "lora_b"
    BIAS = "lora_bias"
    MAGNITUDE = "magnitude"
    IA3 = "ia3"
    ROWS = "rows"
    SAVED_WEIGHT = "saved_weight"
    SAVED_BIAS = "saved_bias"


#: The end of a sentence about a place that only the base model's numbers say: where no base is known, naming it helps.
BY_BASE = "which follows from the base model"


class AdapterModule(NamedTuple):
    """A module of the base model, and the matrices that change it.

    Attributes:
        name: canonical (``layers.0.attention.q``), or as the file has it where there is no rule for it.
        path: as the file calls it (``model.layers.0.self_attn.q_proj``).
        roles: which tensors there are; the index has each as ``NAME.ROLE``.
        rank: columns of ``lora_b``, 0 where there is none.
        alpha: what the file says of the scale, ``None`` where it says nothing.
        scale: the effective one, a float32 number; 1 without LoRA.
        embedding: the module is a table that is looked up, not a matrix that is multiplied.
        feedforward: ``ia3`` multiplies the module's inputs.
        replaced: which rows of the base's matrix those of ``rows`` replace.
    """

    name: str
    path: str
    roles: tuple[Role, ...]
    rank: int = 0
    alpha: float | None = None
    scale: float = 1.0
    embedding: bool = False
    feedforward: bool = False
    replaced: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        """The method: ``lora``, ``dora``, ``ia3``, ``rows`` or ``full``."""
        if Role.IA3 in self.roles:
            return "ia3"
        if Role.ROWS in self.roles:
            return "rows"
        if Role.B not in self.roles:
            return "full"
        return "dora" if Role.MAGNITUDE in self.roles else "lora"


@dataclass(frozen=True, slots=True)
class Adapter:
    """Everything about an adapter but its tensors.

    Attributes:
        method: ``LoRA``, ``DoRA``, ``IA3`` or ``full``.
        base_name: what the adapter calls its base model; empty where it does not say.
        modules: by canonical name, in file order.
        unsupported: what the file says of the computation that ckconv has no rule for; each stops every use of it.
        base: the base model's hyper-parameters, where it was named and found.
        document: the configuration as the file has it.
        ties: what it changes of a tied model's embedding changes the output head too.
        base_index: the base model's tensors, where they were found.
        task: the task that it is for, and what stands before texts of it; ``None`` where nothing is stated.
    """

    method: str
    base_name: str
    modules: Mapping[str, AdapterModule]
    unsupported: tuple[str, ...] = ()
    base: ModelConfig | None = None
    document: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    ties: bool = True
    base_index: TensorIndex | None = field(default=None, compare=False, repr=False)
    task: tuple[str, str | None] | None = None

    @property
    def replaced(self) -> dict[str, tuple[int, ...]]:
        """Modules with replaced rows, and the numbers of those rows."""
        return {name: module.replaced for name, module in self.modules.items() if module.replaced}


def effective_scale(alpha: float, rank: int, *, rank_stabilised: bool = False) -> float:
    """``alpha / rank``, or ``alpha / sqrt(rank)`` with rsLoRA.

    Source: peft's ``LoraLayer.update_layer``.
    """
    return float32(alpha / (math.sqrt(rank) if rank_stabilised else rank))


# Sequences whose items are made when they are asked for: of a million tensors every object in memory counts.

T = TypeVar("T")

#: Items that stay in memory: as many tensors as large models have.
MAX_OBJECTS = 1 << 17


class LazySequence(Sequence[T]):
    """``count`` items, each made when it is asked for; the last one is cached.

    Who asks for an item asks for it several times, and making it asks other sequences.
    """

    __slots__ = ("_count", "_last", "_make")

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        """Make nothing yet.

        Args:
            make: the item of a place, the same each time.
        """
        self._count, self._make = count, make
        self._last: tuple[int, T] | None = None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return map(self._make, range(self._count))

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[T]: ...
    def __getitem__(self, at: int | slice) -> T | Sequence[T]:
        if isinstance(at, slice):
            return tuple(map(self._make, range(self._count)[at]))
        last = self._last
        if last is None or last[0] != at:
            last = self._last = at, self._make(at if 0 <= at < self._count else range(self._count)[at])
        return last[1]


def made(count: int, make: Callable[[int], T]) -> Sequence[T]:
    """``count`` items: in memory if few, else made whenever asked for."""
    return tuple(map(make, range(count))) if count <= MAX_OBJECTS else LazySequence(count, make)


def reordered(items: Sequence[T], order: Iterable[int]) -> Sequence[T]:
    """The items at these positions."""
    positions = array("I", order)
    return made(len(positions), lambda at: items[positions[at]])


def chained(parts: Sequence[Sequence[T]]) -> Sequence[T]:
    """The items of all parts, in order."""
    if len(parts) == 1:
        return parts[0]
    ends = array("Q", accumulate(map(len, parts)))

    def item(at: int) -> T:
        number = bisect_right(ends, at)
        return parts[number][at - ends[number]]

    return made(ends[-1] if ends else 0, item)


# The canonical tensor index: what a model is, whatever file it came from.
#
# A reader makes :class:`StoredTensor` s (what the file's header says, under the file's own names) and the
# architecture's rules turn them into canonical :class:`Tensor` s. No tensor data is read for either.

#: Offsets and sizes are signed 64-bit numbers to every operating system.
MAX_BYTES = (1 << 63) - 1

#: Device, inode, bytes and modification time: what tells a file from another one of the same name.
Identity = tuple[int, int, int, int, int]


def identity(status: os.stat_result) -> Identity:
    """Identity of a file: equal as long as the file is unchanged.

    Programs set the modification time back (``cp -p``, ``rsync -t``); nobody can set the time of the last change
    (``st_ctime``).
    """
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class Extent(NamedTuple):
    """A run of bytes in a file: absolute ``offset``, length ``nbytes``."""

    path: Path
    offset: int
    nbytes: int


def cut(extents: Iterable[Extent], start: int, stop: int) -> list[Extent]:
    """Bytes ``start`` to ``stop`` of a run of bytes that is stored as several."""
    found, at = [], 0
    for path, offset, nbytes in extents:
        if at >= stop:
            break
        end = at + nbytes
        if end > start and (n := min(stop, end) - max(start, at)) > 0:  # of hundreds of runs a piece needs a few
            found.append(Extent(path, offset + max(0, start - at), n))
        at = end
    return found


class StoredTensor(NamedTuple):
    """A tensor as its file describes it: ``shape`` outermost first."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    extent: Extent


class Form(NamedTuple):
    """Type, shape (outermost first) and unpadded bytes of many tensors."""

    dtype: DType
    shape: tuple[int, ...]
    nbytes: int


def stored_tensors(
    path: Path, names: Sequence[str], forms: Sequence[Form], offsets: Sequence[int], begin: int
) -> Sequence[StoredTensor]:
    """The tensors of a file, from columns of names, forms and offsets.

    Args:
        forms: one for each tensor; equal ones may be one object.
        offsets, begin: each in bytes; an offset counts from byte ``begin`` of the file.
    """

    def tensor(at: int) -> StoredTensor:
        form = forms[at]
        new = tuple.__new__  # a constructor's own call takes as long as the rest
        return new(
            StoredTensor, (names[at], form.dtype, form.shape, new(Extent, (path, begin + offsets[at], form.nbytes)))
        )

    return made(len(names), tensor)


class Delta(NamedTuple):
    """A low-rank change of a matrix ``[out, in]``: ``scale * b @ a`` is added.

    Attributes:
        a: ``[rank, in]``; ``None`` for a vector, to which ``scale * b`` is added. Of a stack ``[experts, rank, in]``.
        b: ``[out, rank]``, rows in canonical order; ``[experts, out, rank]``.
        magnitude: DoRA's: after adding, every row is given this Euclidean length; one column, a row each.
    """

    a: Tensor | None
    b: Tensor
    scale: float
    magnitude: Tensor | None = None


class Rescale(NamedTuple):
    """Factors of the rows, or columns (IA3), of a matrix ``[out, in]``.

    Attributes:
        factors: one column, a row for each row, or column, of the matrix.
    """

    factors: Tensor
    of_columns: bool


class Replacement(NamedTuple):
    """A change of single rows of a matrix ``[out, in]``, which others replace.

    Attributes:
        rows: ``[len(at), in]``.
        at: which row of the matrix each of them replaces; none twice.
    """

    rows: Tensor
    at: tuple[int, ...]


class Merge(NamedTuple):
    """Rows of ``base`` changed in order, in float32, and rounded once."""

    base: Tensor
    changes: tuple[Delta | Rescale | Replacement, ...]


class Array(NamedTuple):
    """Array that is stored of a packed module.

    Attributes:
        tensor: its rows are those that the packing reads: of an array that is stored ``[in, out]``, the columns.
        per: how many rows of the module a row of the array is for; 0 for all of them.
    """

    tensor: Tensor
    per: int = 1


class PackedMatrix(NamedTuple):
    """A matrix of another quantizer: arrays, unpacked to rows of blocks.

    Attributes:
        rows: how many rows it has.
        arrays: in the order that ``unpack`` wants; ``None`` for one that is not there.
        unpack: :attr:`ckconv.quant.packings.module.Module.unpack`, settings filled in.
    """

    rows: int
    arrays: tuple[Array | None, ...]
    unpack: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Tensor:
    """Tensor under its canonical name, and the bytes of its rows.

    Attributes:
        name: canonical name (``layers.0.attention.q.weight``).
        source: the name its file gives it; for a part of a fused tensor, the fused tensor's name.
        dtype: type of the stored rows.
        shape: canonical shape, outermost first, in elements; ``[out, in]`` for a matrix.
        extents: the stored bytes; more than one where the rows of one tensor are stored as several runs
            (experts stored one by one), in order.
        layout: how canonical rows lie in those bytes.
        planes: for a tensor stored as several parallel arrays (an MLX triple: weight, scales, biases), those
            arrays; row ``i`` is the rows ``i`` of all of them. ``extents`` is then empty.
        packed: for a matrix that another quantizer packed, its arrays; several for matrices that are stacked.
            ``extents`` is then empty, and ``layout`` that of rows which the packing made.
        merge: for a tensor that adapters change, what its rows are computed from. ``extents`` is then empty, and
            ``layout`` plain.
        may_be_absent: an all-zero tensor stands for one that is not there (bump's bias and position slots).
    """

    name: str
    source: str
    dtype: DType
    shape: tuple[int, ...]
    extents: tuple[Extent, ...]
    layout: Layout
    planes: tuple[Tensor, ...] = ()
    packed: tuple[PackedMatrix, ...] = ()
    merge: Merge | None = None
    may_be_absent: bool = False

    @property
    def label(self) -> str:
        """Name for messages: the file's, with the canonical one behind."""
        return self.source if self.source == self.name else f"{self.source} ({self.name})"

    @property
    def elements(self) -> int:
        """Canonical elements, without padding."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Stored bytes, padding included."""
        return sum(extent.nbytes for array in self.arrays for extent in array.extents)

    @property
    def as_stored(self) -> bool:
        """Whether rows can be read as stored (not packed, not merged)."""
        return not (self.planes or self.packed) and self.merge is None

    @property
    def arrays(self) -> Sequence[Tensor]:
        """Every array that is read for it, in order."""
        own = (self,) if self.extents else ()
        if not (self.planes or self.packed):
            return own
        packed = (array.tensor for packed in self.packed for array in packed.arrays if array is not None)
        return (*own, *self.planes, *packed)


def matrix_of(shape: tuple[int, ...], dtype: DType) -> tuple[int, int]:
    """``(rows, cols)``: the last axis is the row; a vector is a column."""
    if len(shape) <= 1 and dtype.block == 1:
        return math.prod(shape), 1
    return math.prod(shape[:-1]), shape[-1]


def blocks_split(dtype: DType, layout: Layout) -> str:
    """Why blocks cannot stay whole in canonical order; empty if they can."""
    if layout.run % dtype.block == 0 and (layout.whole_rows or dtype.block == 1 or dtype.ggml is not None):
        return ""
    return f"blocks of {dtype} would have to be decoded: of {dtype.block} values only {layout.run:,} stay together"


def quantized_order(source: Tensor, dtype: DType, layout: Layout) -> tuple[Tensor, Layout] | None:
    """Source and layout in stored order, where blocks run over rows.

    Floats are quantized in the order in which a file stores them.

    Returns:
        The source and the layout of its blocks, both with stored rows and columns for canonical ones; ``None`` where
        canonical rows are quantized as they are, or the order is not that of one matrix.
    """
    floats = source.dtype.kind is Kind.FLOAT and not (source.merge or source.packed or source.planes)
    if dtype.kind is not Kind.BLOCK or not floats or not blocks_split(dtype, layout):
        return None
    found = stored_order(source.layout, layout)
    own = stored_order(layout, layout)
    return (replace(source, layout=found), own) if found and own else None


def plain_tensor(name: str, stored: StoredTensor) -> Tensor:
    """A canonical tensor whose bytes are its stored tensor's, in order."""
    return Tensor(
        name, stored.name, stored.dtype, stored.shape, (stored.extent,), plain(*matrix_of(stored.shape, stored.dtype))
    )


def in_rows_of(tensor: Tensor, other: Tensor) -> Tensor:
    """The tensor in the rows of another of its shape.

    Blocks of a matrix may run over its rows, in a file that has cut them anew.
    """
    own, target = tensor.layout, other.layout
    anew = tensor.dtype.block == 1 < other.dtype.block and own.cols != target.cols
    plainly = all(one.same_bytes_as(plain(one.rows, one.cols)) for one in (own, target)) if anew else False
    return replace(tensor, layout=target) if plainly else tensor


class TensorsByName(Mapping[str, Tensor]):
    """Stored tensors under their own names, each made when it is asked for."""

    def __init__(self, stored: Sequence[StoredTensor], before: str = "") -> None:
        """Make nothing yet.

        Args:
            before: stands before every name by which they are asked for.
        """
        self._stored, self._before, self._next = stored, before, 0

    def __getitem__(self, name: str) -> Tensor:
        return plain_tensor(name.removeprefix(self._before), self._found(name))

    def _found(self, name: str) -> StoredTensor:
        """Find a tensor by name; in stored order without a table of names."""
        own, at = name[len(self._before) :], self._next
        if not name.startswith(self._before):
            raise KeyError(name)
        stored = self._stored[at] if at < len(self._stored) else None
        if stored is None or stored.name != own:
            at = self._positions[own]
            stored = self._stored[at]
        self._next = at + 1
        return stored

    @cached_property
    def _positions(self) -> Mapping[str, int]:
        return {stored.name: at for at, stored in enumerate(self._stored)}

    def __contains__(self, name: object) -> bool:
        with suppress(KeyError):
            return isinstance(name, str) and self._found(name) is not None
        return False

    def __iter__(self) -> Iterator[str]:
        return (self._before + stored.name for stored in self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def items(self) -> ItemsView[str, Tensor]:
        """Names and tensors, in order."""
        return _Items(self)


class _Items(ItemsView[str, Tensor]):
    def __init__(self, named: TensorsByName) -> None:
        super().__init__(named)
        self._named = named

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        before = self._named._before
        return ((before + stored.name, plain_tensor(stored.name, stored)) for stored in self._named._stored)


class DroppedTensor(NamedTuple):
    """A stored tensor without a canonical one, and the rule that drops it.

    Attributes:
        copied: only where tensors get other names, or its matrix becomes another one; else it goes along.
        name: what the family calls one that goes along, however it is spelled.
    """

    stored: StoredTensor
    reason: str
    copied: bool = False
    name: str = ""


class Checksum(NamedTuple):
    """A SHA-256 that a file holds over a run of its own bytes."""

    what: str
    extent: Extent
    stored: bytes


class MetadataKind(enum.Enum):
    """Kind of a model's metadata."""

    #: The document ``config.json`` of Hugging Face; other documents lie beside it.
    DOCUMENT = enum.auto()
    #: Keys with values that say their type, the tokenizer's among them.
    TYPED = enum.auto()
    #: The fields of a header, and what the format keeps besides.
    OWN = enum.auto()


@dataclass(frozen=True, eq=False)
class TensorIndex:
    """A model: its configuration and every tensor, under canonical names.

    Attributes:
        format, version: ``gguf``, ``bump``, ``safetensors``, ``mlx``; its version as a number, 0 where it has none.
        path: what the user named.
        files: every file that holds tensors or headers, in reading order.
        architecture: the file's own word for it (``llama``, ``qwen2``); empty where the file has none.
        config: canonical hyper-parameters, or ``None`` where the architecture is not known.
        stored: the tensors as the files describe them, in file order.
        tensors: canonical name -> tensor, in file order.
        canonical_of: stored name -> canonical names made from it.
        dropped, unknown: stored tensors that a rule leaves out, and those without one, which stop a conversion.
        metadata_kind: what ``metadata`` is.
        metadata: the format's own key/value pairs, lazily decoded where they are long.
        facts, checksums: what `inspect` prints about the container, in order; what the file says of its own bytes.
        target: directory of the model that this one drafts for, whose tokenizer it has.
        side_files, part_files: what belongs to the model: files beside it, by name, and in directories there.
        shard_index: the file that names the shards of a checkpoint, if there is one.
        merged: the adapters that were merged into it, for people; what the files say is then not what the model is.
        adapters: the same, open, and how much of each.
        packed: stored name of an array -> the matrix that it is part of, under its own name, of any architecture.
        quantizer: what made tensors that ckconv cannot read, for people; there is no ``config`` then.
        adapter: what changes another model, where the files hold no model of their own.
        tower: what the tensors are a tower of; such an index has no ``config``.
        misfit: why its family's rules do not apply, though they are known: there is no ``config`` then. Of an adapter:
            why it is none of the base that it names.
        incomplete: why the tensors cannot be found, though there are some.
        notes: what a user should know of the files, in every report of them.
        identities: what ``files`` were when their headers were read: data of other files is not taken for theirs.
    """

    format: str
    version: int
    path: Path
    files: tuple[Path, ...]
    architecture: str
    config: ModelConfig | None
    stored: Sequence[StoredTensor]
    tensors: Mapping[str, Tensor]
    metadata_kind: MetadataKind = MetadataKind.OWN
    canonical_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dropped: tuple[DroppedTensor, ...] = ()
    unknown: Sequence[StoredTensor] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    checksums: tuple[Checksum, ...] = ()
    target: Path | None = None
    side_files: tuple[Path, ...] = ()
    part_files: tuple[Path, ...] = ()
    shard_index: Path | None = None
    merged: tuple[str, ...] = ()
    adapters: tuple[tuple[TensorIndex, float], ...] = ()
    packed: Mapping[str, Tensor] = field(default_factory=dict)
    quantizer: str = ""
    adapter: Adapter | None = None
    tower: Tower | None = None
    misfit: InputError | UnsupportedError | None = None
    incomplete: InputError | None = None
    notes: tuple[str, ...] = ()
    identities: Mapping[Path, Identity] = field(default_factory=dict)

    @cached_property
    def _remembered(self) -> dict[object, Any]:
        return {}

    def label(self, name: str) -> str:
        """Names for messages of the tensor with a canonical name, if it has one."""
        return self.tensors[name].label if name in self.tensors else name

    def once(self, make: Callable[[TensorIndex], T]) -> T:
        """Result of a function of this index, made by the first call."""
        if make not in self._remembered:
            self._remembered[make] = make(self)
        found: T = self._remembered[make]
        return found

    @cached_property
    def everything(self) -> Mapping[str, Tensor]:
        """Every tensor that no rule drops, unknown ones under their own names.

        An unknown tensor whose own name is another one's canonical name must not pass for it.
        """
        if not (self.unknown and self.tensors):
            return self.tensors or self.unnamed
        found = dict(self.tensors)
        for own in self.unnamed.values():
            tensor = replace(own, name=f"{own.name} (no rule)") if own.name in self.tensors else own
            found[tensor.name] = tensor
        return found

    @cached_property
    def unnamed(self) -> Mapping[str, Tensor]:
        """Tensors without a rule, each once, under their own names."""
        if self.packed:
            found = (self.packed.get(stored.name) or plain_tensor(stored.name, stored) for stored in self.unknown)
            return {tensor.name: tensor for tensor in found}
        return TensorsByName(self.unknown)

    @property
    def as_container(self) -> TensorIndex:
        """The same files without the rules of a family: names of the file."""
        return replace(self, config=None, tensors={}, canonical_of={}, dropped=(), unknown=self.stored)

    @cached_property
    def parameters(self) -> int:
        """Elements of all tensors, unpacked, without padding and copies."""
        canonical = sum(tensor.elements for tensor in self.tensors.values())
        beside, packed = sum(math.prod(item.stored.shape) for item in self.dropped if item.copied), dict[str, Tensor]()
        for stored in self.unknown:
            if whole := self.packed.get(stored.name):
                packed[whole.name] = whole
            else:
                beside += math.prod(stored.shape)
        return canonical + beside + sum(whole.elements for whole in packed.values())

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all stored tensors."""
        return sum(t.extent.nbytes for t in self.stored)


def stored_value(index: TensorIndex, key: str) -> Any:
    """Value of a key of a header, or ``None``; an array is decoded."""
    found = index.metadata.get(key)
    found = getattr(found, "value", found)
    decode = getattr(found, "decode", None)  # an array is decoded when it is asked for
    return decode() if decode is not None else found


def require_described(index: TensorIndex) -> None:
    """Refuse a model whose tensors cannot be found.

    Raises:
        InputError: ``bump.config``, a bump file cannot be described for want of its configuration.
    """
    if index.incomplete is not None:
        raise index.incomplete


def require_tensors(index: TensorIndex) -> None:
    """Refuse a model of which no tensor can be read.

    Raises:
        InputError: ``bump.config``, as :func:`require_described`.
        UnsupportedError: ``model.no-tensors``, a file of metadata only.
    """
    require_described(index)
    if index.stored:
        return
    raise UnsupportedError("model.no-tensors", "holds no tensors, only metadata", path=index.path)
