"""Groups of columns that share a scale: runs, or given by an index."""

from __future__ import annotations

from ckconv.core.tensors import Array
from ckconv.quant.packings.module import Arrays, Declared, Misfit


def grouped(columns: int, groups: int, declared: Declared) -> int:
    """Columns of a group.

    Raises:
        Misfit: groups do not divide the row, or are not what is declared.
    """
    size = declared.number("group_size")
    size = columns // max(groups, 1) if size is None else columns if size in (-1, 0) else size
    if size < 1 or columns % size:
        raise Misfit(f"groups of {size} do not divide rows of {columns:,}")
    if columns // size != groups:
        raise Misfit(f"quantization_config makes {columns // size:,} groups of {size}, and scales has {groups:,}")
    return size


def said(size: int, declared: Declared) -> str:
    """The groups, for people."""
    return "scales of whole rows" if declared.number("group_size") in (-1, 0) else f"groups of {size}"


def ordered(index: Array | None, stored: Arrays, suffix: str, size: int, groups: int, declared: Declared) -> bool:
    """Whether columns of a group are anywhere in the row, as its index says.

    What is declared does not count.

    Raises:
        Misfit: the index names a group that is not there.
    """
    if index is None:
        return False
    found = declared.integers_of(stored[suffix])
    if found is None:
        return True
    if not len(found) or int(found.min()) < 0 or int(found.max()) >= groups:
        raise Misfit(f"{suffix[1:]} names groups beyond the {groups:,} of scales")
    return bool((found != [n // size for n in range(len(found))]).any())
