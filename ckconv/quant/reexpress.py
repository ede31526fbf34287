"""Which types say the same numbers: every exact way from one block type to another, and what it asks for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ckconv.core.dtypes import DType
from ckconv.quant import affine, repack
from ckconv.quant.affine import Affine, Repacked
from ckconv.quant.mlx import Quantization, Triple
from ckconv.quant.superblocks import SUPERBLOCKS, parts_of
from ckconv.quant.triples import split_planes, triple_of

if TYPE_CHECKING:
    from ckconv.quant.codec import Rows

T = TypeVar("T")

#: Rows of one type -> those of another; ``codes=False`` for scales and biases alone.
Way = Callable[..., Repacked]


class Numbers(NamedTuple):
    """What all groups of a type have in common.

    Attributes:
        bits: of a code.
        group: elements that share scale and zero point, or scale and bias.
        has_zero: there is a zero point, no bias of its own.
        parts: codes and numbers of rows; ``codes=False`` for the numbers alone.
    """

    bits: int
    group: int
    has_zero: bool
    parts: Callable[..., Affine]


@cache
def numbers_of(dtype: DType) -> Numbers | None:
    """How the numbers of a type that only goes one way are read; ``None`` for any other type."""
    kind = SUPERBLOCKS.get(dtype)
    return Numbers(kind.bits, kind.group, kind.zero is not None, partial(parts_of, block=dtype)) if kind else None


@cache
def way_between(source: DType, target: DType) -> Way | None:
    """The exact re-packing from one type to another, or ``None`` where there is none."""
    triple, into = triple_of(source), triple_of(target)
    if source is target or (triple and into):
        return None
    if triple is not None:
        recipe = repack.find(triple.quantization, target)
        return partial(_to_blocks, recipe, triple) if recipe else None
    if into is not None and (recipe := repack.find(into.quantization, source)):
        return partial(recipe.to_triple, triple=into)
    numbers = numbers_of(source)
    if numbers is None:
        return None
    if into is not None:
        q = into.quantization
        fits = q.mode == "affine" and q.bits == numbers.bits and numbers.group % q.group_size == 0
        return partial(_through, numbers, into, affine.to_triple) if fits else None
    block = affine.BLOCKS.get(target)
    fits = block is not None and (numbers.has_zero or block.offset is None) and numbers.bits <= block.bits
    return partial(_through, numbers, target, affine.to_blocks) if fits else None


def triple_for(source: DType, number: DType) -> Triple | None:
    """The triple that holds the blocks of a type, of this size or smaller, or ``None`` where none does.

    ``number`` is the type of affine scales and biases.
    """
    recipe = repack.BY_BLOCK.get(source)
    if recipe is not None:
        return repack.natural_triple(source, number if recipe.mode == "affine" else None)
    numbers = numbers_of(source)
    if numbers is None or not (group := affine.natural_group(numbers.group)):
        return None
    return Triple(Quantization("affine", numbers.bits, group), number)


def grown(source: DType, target: DType) -> bool:
    """Codes alone take more bits in ``target`` than whole groups in ``source``."""
    triple, block = triple_of(target), affine.BLOCKS.get(target)
    bits = triple.quantization.bits if triple else block.bits if block else 0
    return way_between(source, target) is not None and bits > bits_a_weight(source)


def bits_a_weight(dtype: DType) -> float:
    """Bits that a weight takes, its part of the scales included."""
    return dtype.size * 8 / dtype.block


def _to_blocks(recipe: repack.Recipe, triple: Triple, rows: Rows) -> Repacked:
    return recipe.to_blocks(split_planes(rows, triple), triple)


def _through(
    numbers: Numbers, target: T, make: Callable[[Affine, T], Repacked], rows: Rows, *, codes: bool = True
) -> Repacked:
    return make(numbers.parts(rows, codes=codes), target)
