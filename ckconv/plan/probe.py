"""Facts about a source that only its bytes tell, for the plan."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TypeVar

from ckconv.core.layouts import BF16, EXPONENTIALS, F32, INTEGERS, DType
from ckconv.core.lazy import Floats, NamedTuple, Rows, np
from ckconv.core.metadata import GENERATION, TOKENIZER, root_of
from ckconv.core.tensors import MetadataKind, Role, Tensor, TensorIndex, is_bias, parse
from ckconv.errors import InputError, and_more, counted
from ckconv.families import canonical, catalog, schema
from ckconv.families.names import tables_of
from ckconv.io.files import Files, head_is_embedding, runs
from ckconv.io.json import Document, read_object
from ckconv.quant.codec import to_float32
from ckconv.quant.convert import decode, side_by_side
from ckconv.quant.mlx import split_planes, triple_of, triple_type
from ckconv.quant.packed import (
    E4M3,
    decode as decode_packed,
    inverse,
    is_scaled,
    numbers,
    scale_values,
    scaled,
    scheme_of,
)

T = TypeVar("T")

#: Why a placeholder is left out.
PLACEHOLDER = "zeros that stand for a tensor which is not there"


class SourceFacts(NamedTuple):
    """Facts found in the data.

    Attributes:
        head_is_embedding: ``output.weight`` is byte for byte the embedding.
        unfit: canonical name of a matrix that no type of GGUF's is -> type it could be re-packed to -> groups whose
            numbers do not fit; of an MLX triple, its own type -> groups whose scale is a code for no number. Empty
            where nobody looked: then all are taken to fit, and the conversion finds out.
        no_number: name of a packed matrix -> how many of its scales, or products with its factor, are not finite.
        zeros: canonical name of a matrix of integers that have zero points or biases -> how many of its groups have no
            zero point that is a code, and whether that of all others is the middle one.
        beyond: canonical name of a tensor of I64 -> its first element that no I32 holds, or that is no expert of the
            model where it is a table of experts, and what it is; ``None`` where all fit.
        ids: canonical name of a row of whole numbers -> why they, each with its place added, are no ids of different
            tokens; empty where they are.
        factors: canonical name of a matrix of NVFP4 that has one -> what all its scales are multiplied with, of each of
            stacked matrices.
        copies: tensors of an adapter that are the base's own.
        importance: name in GGUF -> how much the error of each column counts, of its experts one after the other.
        importance_of: the data set that this was measured with, and how many chunks of it.
    """

    head_is_embedding: bool = False
    unfit: Mapping[str, Mapping[DType, int]] = {}
    copies: frozenset[str] = frozenset()
    importance: Mapping[str, Floats] = {}
    importance_of: tuple[str, int] = ("", 0)
    no_number: Mapping[str, int] = {}
    factors: Mapping[str, list[float]] = {}
    zeros: Mapping[str, tuple[int, bool]] = {}
    beyond: Mapping[str, tuple[int, int] | None] = {}
    ids: Mapping[str, str] = {}


class _Looked(Mapping[str, T]):
    """Tensor -> result, computed only when a planner asks."""

    def __init__(self, index: TensorIndex, tensors: Mapping[str, Tensor], look: Callable[[Tensor, Files], T]) -> None:
        self._index, self._tensors, self._look = index, tensors, look
        self._found: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        tensor = self._tensors[name]
        if name not in self._found:
            with Files(self._index.identities) as files:
                self._found[name] = self._look(tensor, files)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


#: A head that is stored, and the embedding that it is where none is.
_HEAD, _EMBEDDING = "output.weight", "token_embedding.weight"


def gather(index: TensorIndex) -> SourceFacts:
    """Read the bytes that a plan depends on, once for all plans of an index.

    Two matrices until they differ; and, when a planner asks, the numbers of blocks.
    """
    return index.once(_gathered)


def _gathered(index: TensorIndex) -> SourceFacts:
    beside = {name: tensor for name, tensor in index.tensors.items() if side_by_side(tensor.dtype)}
    packed = beside if index.config else {tensor.name: tensor for tensor in index.packed.values()}
    packed = {name: tensor for name, tensor in packed.items() if tensor.packed}
    with Files(index.identities) as files:
        tied = head_is_embedding(index, files)
    config = index.config
    tables = (
        tables_of(catalog.FAMILIES[config.family], schema.EXPERTS)
        if config and config.family in catalog.FAMILIES
        else frozenset()
    )
    experts = config.num_experts if config else 0

    words = config.vocab_size if config else 0
    whole = {name: one for name, one in index.tensors.items() if one.dtype in INTEGERS}
    long = {name: one for name, one in whole.items() if one.dtype.name == "I64"}

    def beyond(tensor: Tensor, files: Files) -> tuple[int, int] | None:
        return _beyond_i32(tensor, files, experts if parse(tensor.name).pattern in tables else 0)

    return SourceFacts(
        tied,
        _Looked(index, beside, _unfit),
        no_number=_Looked(index, packed, _without_number),
        factors=_Looked(index, beside, _factors),
        zeros=_Looked(index, index.tensors, _zero_points),
        beyond=_Looked(index, long, beyond),
        ids=_Looked(index, whole, lambda tensor, files: _no_ids(tensor, files, words)),
    )


def not_of_zeros(index: TensorIndex) -> Iterator[str]:
    """Stored tensors with more before what their rule takes than zeros."""
    with Files(index.identities) as files:
        yield from (name for name, before in index.once(canonical.unowned).items() if not files.are_zero(runs(before)))


def sinusoids(rows: int, columns: int, *deep: int) -> Floats:
    """Sines of positions, and behind them their cosines.

    Of a plane: those of each place in a row, before those of the row.

    Every step is rounded to the nearest float32, where torch's are off in the last place, and otherwise on another
    processor. Source: ``SinusoidsPositionEmbedding`` of transformers' qwen2_5_omni, ``generate_extra_tensors`` of
    llama.cpp's ``conversion/qwenvl.py``.
    """
    if deep:  # ``get_2d_sincos_pos_embed`` of minicpmv-convert-image-encoder-to-gguf.py
        quarter = deep[0] // 4
        parts = (np.arange(quarter, dtype=np.float32) / np.float32(quarter)).astype(np.float64)
        turns = (np.float32(1) / (10000**parts).astype(np.float32)).astype(np.float32)
        phases = (np.outer(np.arange(size, dtype=np.float32), turns).astype(np.float64) for size in (columns, rows))
        along, down = (np.concatenate([np.sin(each), np.cos(each)], 1).astype(np.float32) for each in phases)
        plane = (np.tile(along, (rows, 1)), np.repeat(down, columns, 0))
        return np.concatenate(plane, 1)
    step = np.float32(-math.log(10000) / (columns // 2 - 1))
    powers = (step * np.arange(columns // 2, dtype=np.float32)).astype(np.float64)
    angles = (np.arange(rows, dtype=np.float32)[:, None] * np.exp(powers).astype(np.float32)).astype(np.float64)
    found: Floats = np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)
    return found


def no_sinusoids(index: TensorIndex, tables: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """Stored tables that are no sines and cosines of positions.

    Args:
        tables: their names -> their shapes.
    """
    with Files(index.identities) as files:
        for stored in (item.stored for item in index.dropped if item.stored.name in tables):
            data, shape = bytearray(stored.extent.nbytes), tables[stored.name]
            files.read_run([stored.extent], 0, data)
            alike = stored.dtype is F32 and stored.shape == (math.prod(shape[:-1]), shape[-1])
            if not (alike and np.allclose(np.frombuffer(data, "<f4"), sinusoids(*shape).ravel(), atol=1e-3)):
                yield stored.name


# Most sources are planned by their headers: what reads rows is imported for the others.


def _pieces(tensor: Tensor, files: Files) -> Iterator[tuple[int, Rows]]:
    from ckconv.io.rows import RowReader, canonical_pieces

    return canonical_pieces(RowReader(tensor, files))


def _row(tensor: Tensor, files: Files, at: int = 0) -> Rows:
    from ckconv.io.rows import RowReader

    return RowReader(tensor, files).rows(at, at + 1)


def _alone(tensor: Tensor, files: Files) -> Iterator[Rows]:
    from ckconv.io.rows import numbers_alone

    return numbers_alone(tensor, files)


def crossed(index: TensorIndex, tensors: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, float, float]]:
    """Tensors of least values above the most, their number and the most."""
    pairs = [
        (least, most)
        for name, least in tensors.items()
        if name.endswith("_min") and (most := tensors.get(name.removesuffix("_min") + "_max")) is not None
    ]
    with Files(index.identities) as files:
        for pair in pairs:
            rows = [next(iter(_pieces(one, files)))[1] for one in pair]
            low, high = (float(decode(row, one.dtype).ravel()[0]) for row, one in zip(rows, pair, strict=True))
            if low > high:
                yield pair[0], low, high


def no_exponentials(index: TensorIndex) -> Iterator[tuple[str, float]]:
    """Tensors of exponentials, and their first element that is none."""
    signs = [(one, sign) for one in index.tensors.values() if (sign := EXPONENTIALS.get(one.layout.shift, 0))]
    if not signs:
        return
    with Files(index.identities) as files:
        for tensor, sign in signs:
            for _, rows in _pieces(tensor, files):
                stored = decode(rows, tensor.dtype)
                if (stored * sign < 0).any():
                    yield tensor.source, float(stored[stored * sign < 0][0])
                    break


def gather_adapter(index: TensorIndex) -> SourceFacts:
    """Compare whole tensors that peft saved in an adapter with the base's."""
    adapter = index.adapter
    base = adapter.base_index if adapter else None
    if adapter is None or base is None:
        return SourceFacts()
    pairs = [
        (f"{module.name}.{role.value}", f"{module.name}.{kind}")
        for module in adapter.modules.values()
        for role, kind in ((Role.SAVED_WEIGHT, "weight"), (Role.SAVED_BIAS, "bias"))
        if role in module.roles
    ]
    if (
        base.config is not None and _HEAD not in base.tensors and _EMBEDDING in base.tensors
    ):  # tied: it is the embedding
        pairs = [(name, _EMBEDDING if base_name == _HEAD else base_name) for name, base_name in pairs]
    if not pairs:
        return SourceFacts()
    from ckconv.io.rows import same_values

    with Files({**base.identities, **index.identities}) as files:
        same = (
            name
            for name, base_name in pairs
            if base_name in base.tensors and same_values(index.tensors[name], base.tensors[base_name], files)
        )
        return SourceFacts(copies=frozenset(same))


def norms_of(index: TensorIndex) -> dict[str, float]:
    """Module of a LoRA -> Frobenius norm of its change.

    Empty where numpy is not installed.

    The norm of scale * B @ A is had from the two small products of the matrices with themselves.
    """
    from importlib.util import find_spec

    if index.adapter is None or find_spec("numpy") is None:
        return {}
    from ckconv.io.rows import values_of

    found = {}
    with Files(index.identities) as files:
        for module in index.adapter.modules.values():
            if {Role.A, Role.B} <= {*module.roles}:
                pair = (index.everything[f"{module.name}.{role.value}"] for role in (Role.A, Role.B))
                a, b = (values_of(one, files).reshape(one.shape).astype("f8") for one in pair)
                square = float(((b.T @ b) * (a @ a.T)).sum())
                found[module.name] = abs(module.scale) * math.sqrt(max(square, 0.0))
    return found


def have_equal_values(index: TensorIndex, pairs: Iterable[tuple[str, str]]) -> bool:
    """Whether the two tensors of each pair of names hold the same values."""
    from ckconv.io.rows import same_values

    with Files(index.identities) as files:
        return all(same_values(index.tensors[one], index.tensors[other], files) for one, other in pairs)


def numberless(index: TensorIndex) -> str:
    """Sentence about quantized scales that are not finite; empty for none."""
    tensors = index.tensors if index.config else {tensor.name: tensor for tensor in index.packed.values()}
    with Files(index.identities) as files:
        found = {
            tensor.source: _without_number(tensor, files)
            for tensor in tensors.values()
            if side_by_side(tensor.dtype) and (tensor.packed or tensor.planes)
        }
    names = [name for name, count in found.items() if count]
    groups = counted(sum(found.values()), "group")
    return f"the scale of {groups} is not a finite number: {and_more(names)}" if names else ""


def ids_beyond(index: TensorIndex) -> Iterator[str]:
    """Special tokens that the source names by an id that no token has."""
    typed = index.metadata_kind is MetadataKind.TYPED
    words = getattr(getattr(index.metadata.get("tokenizer.ggml.tokens"), "value", None), "count", 0) if typed else 0
    rows = index.config.vocab_size if index.config else words if isinstance(words, int) else 0
    named = dict(index.metadata) if rows else {}
    if rows and index.metadata_kind is MetadataKind.DOCUMENT and (path := root_of(index) / GENERATION).is_file():
        with suppress(InputError):  # a malformed file is said where it is needed
            document = read_object(path, Document("tokenizer", TOKENIZER, TOKENIZER, 64 << 20))
            named |= {f"{GENERATION}: {key}": value for key, value in document.items()}
    for key, value in named.items():
        if not key.endswith("_token_id") or (typed and not key.startswith("tokenizer.ggml.")):
            continue
        ids = getattr(value, "value", value)
        for number in ids if isinstance(ids, list) else [ids]:
            if type(number) is int and number >= rows:
                yield f"{key} is {number:,}, and there are {rows:,} tokens: no engine ever makes it"


def products_are_exact(index: TensorIndex) -> bool:
    """Whether all factors of scales are powers of two, which round nothing."""
    scaled = [
        tensor
        for tensor in index.everything.values()
        if tensor.packed and (scheme := scheme_of(tensor.dtype)) and scheme.factor
    ]
    with Files(index.identities) as files:
        return all(inverse(factor) is not None for tensor in scaled for factor in _factors(tensor, files))


def _without_number(tensor: Tensor, files: Files) -> int:
    """Count the groups of a quantized matrix whose scale is not finite."""
    from ckconv.quant.repack import no_numbers

    triple, count = triple_of(tensor.dtype), 0
    if triple is not None:
        for rows, _ in _numbers(tensor, files):
            whole = triple.quantization.has_biases
            count += int(np.isnan(to_float32(rows, triple.number)).sum()) if whole else no_numbers(rows, triple)
        return count
    scheme = scheme_of(tensor.dtype)
    assert scheme is not None
    if scheme.factor:
        return _beyond(tensor, files)
    first, large = 0, False
    for packed in tensor.packed:  # otherwise they are the second of its arrays, if any
        if len(packed.arrays) == 1:
            continue
        scales = packed.arrays[1]
        assert scales is not None
        start, first = first, first + packed.rows
        if math.prod(scales.tensor.shape) == 1:  # BitNet's divides: any row has what is multiplied with
            row = _row(tensor, files, start)
            values = numbers(row, tensor.dtype).scales[:, :1]
            count += int(not np.isfinite(values).all())
            large |= bool((np.abs(values) > _LARGE).any())
            continue
        own = scales.tensor.dtype  # of bytes the scheme says what they are; BitNet's reciprocals are of another type
        if scheme.number.size > own.size:  # they are quantized, too
            many = _alone(tensor, files)
            return sum(int((~np.isfinite(numbers(rows, tensor.dtype).scales)).sum()) for rows in many)
        number = scheme.number if own.size == 1 else own
        for _, rows in _pieces(scales.tensor, files):
            values = scale_values(np.ascontiguousarray(rows), number)
            count += int(np.count_nonzero(~np.isfinite(values)))
            large |= bool((np.abs(values) > _LARGE).any())
    return count or (_beyond(tensor, files) if large else 0)


#: A scale that times a code, of at most 448, may be beyond float32.
_LARGE = 2.0**119


def _beyond(tensor: Tensor, files: Files) -> int:
    """Count the groups of a packed matrix whose products are not finite."""
    count = 0
    for _, rows in _pieces(tensor, files):
        found = numbers(rows, tensor.dtype)
        if found.factors is not None and np.isfinite(found.factors).all() and (np.abs(scaled(found)) <= _LARGE).all():
            continue  # without decoding a whole model while it is planned
        values = decode_packed(rows, tensor.dtype)
        # a code may be NaN, where its scale is a number
        beyond = np.isinf(values) if found.scheme.codes == E4M3 else ~np.isfinite(values)
        groups = np.logical_or.reduceat(beyond, np.arange(0, beyond.shape[1], found.scheme.group), axis=1)
        if found.factors is not None:
            groups |= ~np.isfinite(found.factors)[:, None]
        count += int(np.count_nonzero(groups))
    return count


def _beyond_i32(tensor: Tensor, files: Files, experts: int) -> tuple[int, int] | None:
    for start, rows in _pieces(tensor, files):
        numbers = rows.view("<i8")
        beyond = (numbers < 0) | (numbers >= experts) if experts else numbers != numbers.astype("<i4")
        for place in beyond.reshape(-1).nonzero()[0][:1].tolist():
            return start * numbers.shape[1] + place, int(numbers.reshape(-1)[place])
    return None


def _no_ids(tensor: Tensor, files: Files, words: int) -> str:
    numbers = _row(tensor, files).view(f"<i{tensor.dtype.size}").reshape(-1)
    ids = numbers + np.arange(len(numbers), dtype=np.int64)
    for place in ((ids < 0) | (ids >= words)).nonzero()[0][:1].tolist():
        return f"element {place:,} is for token {ids[place]:,}, and its model has {words:,}"
    tokens, counts = np.unique(ids, return_counts=True)
    return next((f"{counts.max():,} elements are for token {twice:,}" for twice in tokens[counts > 1][:1]), "")


def _numbers(tensor: Tensor, files: Files) -> Iterator[tuple[Rows, Rows | None]]:
    """Rows of the scales of a triple, and of its biases, in pieces."""
    triple = triple_of(tensor.dtype)
    assert triple is not None
    if tensor.packed:
        for rows in _alone(tensor, files):
            _, scales, *biases = split_planes(rows, triple)
            yield scales, biases[0] if biases else None
        return
    from ckconv.io.rows import RowReader

    _, own, *beside = tensor.planes
    others = [RowReader(plane, files) for plane in beside]
    for start, rows in _pieces(own, files):
        yield rows, others[0].rows(start, start + len(rows)) if others else None


def _factors(tensor: Tensor, files: Files) -> list[float]:
    """Factors of the scales of each stacked matrix."""
    scheme, found = scheme_of(tensor.dtype), []
    assert scheme is not None
    for packed in tensor.packed:
        array = packed.arrays[-1]
        assert array is not None
        number = _row(array.tensor, files).view(np.float32)[0, 0]
        with np.errstate(all="ignore"):
            found.append(float(np.float32(1) / number if scheme.divisor else number))
    return found


def _zero_points(tensor: Tensor, files: Files) -> tuple[int, bool]:
    from ckconv.quant.affine import integers
    from ckconv.quant.repack import integer_parts, of_triple

    triple, unfit, middle = triple_of(tensor.dtype), 0, True
    if triple is not None:
        each = (of_triple(triple, scales, biases) for scales, biases in _numbers(tensor, files) if biases is not None)
    else:
        whole = (rows for _, rows in _pieces(tensor, files))
        found = _alone(tensor, files) if tensor.packed else whole
        each = (integer_parts(rows, tensor.dtype, codes=False) for rows in found)
    for parts in each:
        zeros, fits = integers(parts)
        unfit += int(np.count_nonzero(~fits))
        middle = middle and bool((zeros[fits] == 1 << parts.bits - 1).all())
    return unfit, middle


def _unfit(tensor: Tensor, files: Files) -> dict[DType, int]:
    from ckconv.quant.repack import MXFP8, TRIPLE, blocks_for, is_fp8, way_between

    blocks = blocks_for(tensor.dtype, tensor.layout.cols)
    into = TRIPLE if is_scaled(tensor.dtype) else MXFP8 if is_fp8(tensor.dtype) else triple_of(tensor.dtype)
    own = (triple_type(into),) if into else ()
    counts, certain = Counter[DType](), Counter[DType]()
    for judge in _judges(tensor, files) if blocks or own else ():
        for block in (*own, *blocks):
            counts[block] += (found := judge(block, whatever=False))
            certain[block] += judge(block, whatever=True) if found else 0
    for block in blocks if all(counts[block] for block in blocks) else ():
        way = way_between(tensor.dtype, block)
        if not certain[block] and way is not None:
            counts[block] = sum(way(rows).inexact for _, rows in _pieces(tensor, files))
    return {block: counts[block] for block in (*own, *blocks)}


def _judges(tensor: Tensor, files: Files) -> Iterator[Callable[..., int]]:
    """Functions that count, for some rows each, the groups that do not fit.

    Scales and zero points alone decide, not the codes.
    """
    from ckconv.quant.affine import unfit
    from ckconv.quant.repack import beyond_bf16, find, is_wide_fp8, no_numbers, numbers_of, products, scale_bytes

    triple, numbers = triple_of(tensor.dtype), numbers_of(tensor.dtype)
    if triple is None:
        for rows in _alone(tensor, files):
            if numbers is None:
                found, fits = (products if is_scaled(tensor.dtype) else scale_bytes)(rows, tensor.dtype)
                exact = fits & ~beyond_bf16(found, wide=is_wide_fp8(tensor.dtype))
                yield lambda block, whatever, each={BF16: exact}, fits=fits: int((~each.get(block, fits)).sum())
            else:
                parts = numbers.parts(rows, codes=False)
                yield lambda block, whatever, parts=parts: int(unfit(parts, block, whatever=whatever).sum())
        return
    quantization = triple.quantization
    for rows, beside in _numbers(tensor, files):

        def count(block: DType, whatever: bool, rows: Rows = rows, beside: Rows | None = beside) -> int:
            recipe = find(quantization, block)
            if block is BF16:
                return int(beyond_bf16(rows).sum())
            if recipe is None:  # its own type
                return no_numbers(rows, triple)
            return recipe.unfit_groups(rows, beside, triple, whatever=whatever)

        yield count


def placeholders(index: TensorIndex, written: Container[str] | None = None) -> frozenset[str]:
    """Canonical names of optional tensors that are all zeros.

    They stand for tensors that are not there.

    Args:
        written: patterns that have a place; others may be absent, if they are added to something.
    """
    candidates = [
        tensor
        for tensor in index.tensors.values()
        if tensor.may_be_absent
        or (written is not None and is_bias(tensor.name) and parse(tensor.name).pattern not in written)
    ]
    return zeros(index, candidates)


def size_of(index: TensorIndex) -> tuple[int, int]:
    """Parameters and bytes of a model, without zeros that stand for no tensor."""
    absent = [index.tensors[name] for name in placeholders(index)]
    nbytes = index.nbytes - sum(tensor.nbytes for tensor in absent)
    return index.parameters - sum(tensor.elements for tensor in absent), nbytes


def zeros(index: TensorIndex, tensors: Iterable[Tensor]) -> frozenset[str]:
    """Canonical names of those of the tensors that are all zeros."""
    with Files(index.identities) as files:
        return frozenset(tensor.name for tensor in tensors if files.are_zero(runs(tensor)))
