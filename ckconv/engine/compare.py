"""Two models of any formats, compared through the canonical index: values, not files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np

from ckconv.adapters.lowrank import same_rank
from ckconv.core.dtypes import F32
from ckconv.core.names import is_bias
from ckconv.core.rope import llama3_factors, same_factors
from ckconv.core.tensors import Tensor, TensorIndex, require_tensors
from ckconv.core.towers import PREFIX
from ckconv.engine.configs import parameter_differences
from ckconv.engine.factdiff import Facts, compare_facts
from ckconv.errors import UnsupportedError, counted
from ckconv.families.catalogue import FAMILIES
from ckconv.families.names import shift_of
from ckconv.families.towers import tower_family
from ckconv.io.files import Files, runs
from ckconv.io.rows import RowReader, canonical_pieces
from ckconv.io.tied import head_is_embedding
from ckconv.lazy import NamedTuple, dataclass
from ckconv.quant.convert import Conversion, convertible, decode, way_between
from ckconv.quant.shifts import shifted

if TYPE_CHECKING:
    from ckconv.engine.contentdiff import Fact
    from ckconv.quant.codec import Floats, Rows

ROPE_FREQUENCIES = "rope_frequencies"

Progress = Callable[[int, str], None]


class Difference(NamedTuple):
    """One tensor that is in both models and not the same.

    Attributes:
        values: how many values differ, of ``elements``; 0 where the shapes or types cannot be compared.
        max_error: the largest absolute difference; NaN where every difference is between a number and NaN, or
            between two NaNs of other bits, which are left out of both errors.
        relative_error: root of the sum of squared differences over that of squared values of the first model.
        reason: why the values were not compared, empty where they were.
        spread: (n, values whose absolute difference is below 2**n and no less than half of that), if it was asked for.
    """

    name: str
    dtypes: tuple[str, str]
    values: int
    elements: int
    max_error: float
    relative_error: float
    reason: str = ""
    spread: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two models have in common.

    Attributes:
        equal: tensors whose every value is the same.
        retyped: those of them whose types differ, as (name, type in A, type in B).
        only: names that only the first, and only the second model has.
        config: field -> its two values, where they differ.
        facts: what else the two say different things of: metadata, tokenizers, files beside them.
        unknown: why that was not compared, empty where it was.
        weights: nothing but tensors was compared.
    """

    equal: int
    retyped: tuple[tuple[str, str, str], ...]
    different: tuple[Difference, ...]
    only: tuple[tuple[str, ...], tuple[str, ...]]
    config: dict[str, tuple[object, object]] = field(default_factory=dict)
    facts: tuple[Fact, ...] = ()
    unknown: str = ""
    weights: bool = False

    @property
    def same_weights(self) -> bool:
        """Every tensor is the same."""
        return not (self.different or self.only[0] or self.only[1])

    @property
    def same(self) -> bool:
        """The two are the same model; where nothing else was asked for, in their tensors."""
        return self.same_weights and not (self.config or self.facts or self.unknown)


def diff(
    a: TensorIndex,
    b: TensorIndex,
    *,
    weights: bool = False,
    spread: bool = False,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two models: tensor by tensor, then everything else that they say, unless ``weights`` alone count.

    Tensors are matched by canonical name, or by their own where a file has no rules. Not counted as missing: a head
    that is the embedding, RoPE frequencies where the other model's configuration says the same, all-zero placeholders.

    Args:
        spread: count how far values are apart, power of two by power of two.
    """
    tell = progress or (lambda nbytes, name: None)
    with Files({**a.identities, **b.identities}) as files:
        ours, theirs = _tensors(a, files), _tensors(b, files)
        for has, lacks, other in ((ours, theirs, b), (theirs, ours, a)):
            _drop_placeholders(has, lacks, files)
            _drop_derived(has, lacks, other, files)
        equal: list[tuple[str, str, str]] = []
        different: list[Difference] = []
        for name in [name for name in ours if name in theirs]:
            tell(0, name)
            shifts = (_shift(a, ours[name]), _shift(b, theirs[name]))
            found = _compare(ours[name], theirs[name], shifts, files, tell, spread=spread)
            if found is None:
                equal.append((name, ours[name].dtype.name, theirs[name].dtype.name))
            else:
                different.append(found)
        files.check_unchanged()
    facts = Facts() if weights else compare_facts(a, b)
    return Comparison(
        len(equal),
        tuple(row for row in equal if row[1] != row[2]),
        tuple(different),
        (tuple(n for n in ours if n not in theirs), tuple(n for n in theirs if n not in ours)),
        {} if weights else parameter_differences(a, b),
        facts.different,
        facts.unknown,
        weights,
    )


def _tensors(index: TensorIndex, files: Files) -> dict[str, Tensor]:
    """What a model has, without a head that is the embedding."""
    tensors = index.everything
    if head_is_embedding(index, files):
        tensors.pop("output.weight", None)
    return tensors


def _drop_placeholders(has: dict[str, Tensor], lacks: dict[str, Tensor], files: Files) -> None:
    """Zeros that stand for a tensor which is not there; a model that has the tensor is compared with them."""
    for name in [name for name, tensor in has.items() if name not in lacks and (tensor.may_be_absent or is_bias(name))]:
        if files.are_zero(runs(has[name])):
            del has[name]


def _drop_derived(has: dict[str, Tensor], lacks: dict[str, Tensor], other: TensorIndex, files: Files) -> None:
    """RoPE frequencies, where they are those that the other model's configuration gives."""
    tensor = has.get(ROPE_FREQUENCIES)
    factors = llama3_factors(other.config) if other.config else None
    if tensor is None or factors is None or ROPE_FREQUENCIES in lacks or not convertible(tensor.dtype, F32):
        return
    values = decode(RowReader(tensor, files).rows(0, tensor.layout.rows), tensor.dtype)
    if same_factors(values.tobytes(), factors):
        del has[ROPE_FREQUENCIES]


def _shift(index: TensorIndex, tensor: Tensor) -> int:
    """What has to be added to the stored values to hold them against another file's: gemma norms as 1 + w."""
    family, name = FAMILIES[index.config.family] if index.config else None, tensor.name
    if index.tower is not None and (family is None or name.startswith(PREFIX)):
        family, name = tower_family(index.tower.family), name.removeprefix(PREFIX)
    return shift_of(family, name) - tensor.layout.shift if family is not None else 0


def _compare(
    one: Tensor, other: Tensor, shifts: tuple[int, int], files: Files, progress: Progress, *, spread: bool
) -> Difference | None:
    types = (one.dtype.name, other.dtype.name)
    one, other = same_rank(one, other, files)
    if one.shape != other.shape:
        reason = f"shape {list(one.shape)} and {list(other.shape)}"
        return Difference(one.name, types, 0, one.elements, math.nan, math.nan, reason)
    left, right = RowReader(one, files), RowReader(other, files)
    pair = _Pair(left, right, shifts, Counter() if spread else None)
    if left.dtype is not right.dtype and not pair.comparable:
        return Difference(one.name, types, 0, one.elements, math.nan, math.nan, f"{types[0]} and {types[1]}")
    lead = left if left.piece >= right.piece else right
    for start, rows in canonical_pieces(lead, max(left.row_bytes, right.row_bytes)):
        stop = start + len(rows)
        pair.add(rows if lead is left else left.rows(start, stop), rows if lead is right else right.rows(start, stop))
        progress(rows.nbytes, one.name)
    return pair.result(types, lambda: _power(left, shifts[0]))


def _power(reader: RowReader, shift: int) -> float:
    """The sum of a tensor's squared values; read once more, and only for a tensor that differs."""
    total = 0.0
    with np.errstate(all="ignore"):
        for _, rows in canonical_pieces(reader):
            total += float(np.nansum(_values(rows, reader, shift).astype(np.float64) ** 2))
    return total


def _values(rows: Rows, reader: RowReader, shift: int) -> Floats:
    values = np.ascontiguousarray(decode(rows, reader.dtype))
    if reader.layout.scale != 1.0:
        values = (values.astype(np.float64) * reader.layout.scale).astype(np.float32)
    return shifted(values, shift) if shift else values


class _Pair:
    """Adds up the differences of two tensors, piece by piece."""

    def __init__(self, one: RowReader, other: RowReader, shifts: tuple[int, int], spread: Counter[int] | None) -> None:
        self.spread = spread
        self.one, self.other, self.shifts = one, other, shifts
        self.comparable = convertible(one.dtype, F32) and convertible(other.dtype, F32)
        self.recipes = way_between(one.dtype, other.dtype), way_between(other.dtype, one.dtype)
        self.values, self.max_error, self.squares = 0, math.nan, 0.0
        self.uncompared = False

    def add(self, left: Rows, right: Rows) -> None:
        """Compare some rows; blocks that hold the same numbers are equal whatever either library rounds them to."""
        alike = self.shifts[0] == self.shifts[1] and self.one.layout.scale == self.other.layout.scale
        if self.one.dtype is self.other.dtype and alike and np.array_equal(left, right):
            return
        # Some re-packings go one way only: whichever there is decides.
        for recipe, source, target, rows, want in (
            (self.recipes[0], self.one, self.other, left, right),
            (self.recipes[1], self.other, self.one, right, left),
        ):
            if recipe is not None:
                packed, inexact = Conversion(source.dtype, target.dtype).apply(rows)
                if not inexact and np.array_equal(packed, want):
                    return
        if not self.comparable:
            self.values += int((left != right).any(axis=1).sum())
            self.uncompared = True
            return
        a = _values(left, self.one, self.shifts[0])
        b = _values(right, self.other, self.shifts[1])
        if self.one.dtype.block == 1 and self.other.dtype.block == 1:
            wrong = a.view(np.uint32) != b.view(np.uint32)
        else:
            wrong = (a != b) & ~(np.isnan(a) & np.isnan(b))
        if wrong.any():
            with np.errstate(all="ignore"):
                error = np.abs(a[wrong].astype(np.float64) - b[wrong])
                self.max_error = float(np.fmax(self.max_error, np.fmax.reduce(error)))
                self.squares += float(np.nansum(error * error))
            if self.spread is not None:
                powers, counts = np.unique(np.frexp(error[np.isfinite(error) & (error > 0)])[1], return_counts=True)
                self.spread.update(dict(zip(powers.tolist(), counts.tolist(), strict=True)))
            self.values += int(np.count_nonzero(wrong))

    def result(self, types: tuple[str, str], power: Callable[[], float]) -> Difference | None:
        """The sum, or ``None`` where nothing differs."""
        if not self.values:
            return None
        if self.uncompared:
            rows = f"{counted(self.values, 'row')} differ{'s' if self.values == 1 else ''}"
            reason = f"{rows}, and there is no decoder for {types[0]}"
            return Difference(self.one.tensor.name, types, 0, self.one.tensor.elements, math.nan, math.nan, reason)
        relative = _ratio(self.squares, power()) if not math.isnan(self.max_error) else math.nan
        errors = self.max_error, relative
        spread = tuple(sorted(self.spread.items())) if self.spread else ()
        return Difference(self.one.tensor.name, types, self.values, self.one.tensor.elements, *errors, spread=spread)


def _ratio(squares: float, power: float) -> float:
    if not squares:  # only zeros of the other sign
        return 0.0
    return math.sqrt(squares / power) if power else math.inf


def require_comparable(a: TensorIndex, b: TensorIndex) -> None:
    """Refuse a file without tensors, and two of which only one follows the rules of a known architecture.

    In the first there is nothing to compare, and of the others no name would match.

    Raises:
        InputError: ``bump.config``.
        UnsupportedError: ``model.architecture`` or ``model.no-tensors``.
    """
    for index in (a, b):
        require_tensors(index)
    for one, other in ((a, b), (b, a)):
        if one.config is None and other.config is not None:
            raise UnsupportedError(
                "model.architecture",
                f"ckconv does not know the architecture {one.architecture!r},"
                f" so its tensors cannot be matched with those of {other.path}",
                path=one.path,
            )
