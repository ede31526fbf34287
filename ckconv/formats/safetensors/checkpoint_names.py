"""Canonical tensors -> the tensors of a checkpoint: what each is called there, and which are stored as one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from ckconv.core.names import parse, with_layer
from ckconv.families.dialects import dialect_names, fusion_names
from ckconv.families.kinds import is_transposed
from ckconv.families.names import Stored
from ckconv.families.schema import Family


class Entry(NamedTuple):
    """One tensor of a checkpoint.

    Attributes:
        name: what it is called there.
        canonical: what it holds, by canonical name; for a fused tensor a name that no single tensor has.
        parts: canonical tensors whose rows it holds, in order.
        missing: parts that the model does not have.
        expert: the one expert whose rows it holds, ``None`` for all rows.
        transposed: it is stored ``[in, out]``.
    """

    name: str
    canonical: str
    parts: tuple[str, ...]
    missing: tuple[str, ...] = ()
    expert: int | None = None
    transposed: bool = False


class Spelling:
    """How one family's tensors are named and put together in one kind of checkpoint.

    Args:
        dialect: ``hf``, ``mlx``, or one of :data:`ckconv.families.dialects.OTHER_DIALECTS`.
        fuse: canonical stems of tensors to fuse besides those that the family always fuses.
    """

    def __init__(self, family: Family, dialect: str, fuse: Iterable[str] = ()) -> None:
        self._written = dict(dialect_names(family, dialect).written)
        for whole in fuse:
            self._written |= fusion_names(family, dialect, whole)

    def entries(self, present: Collection[str], experts: int) -> tuple[list[Entry], list[str]]:
        """What a checkpoint of these canonical tensors holds, and the canonical names that it has no name for.

        Args:
            experts: how many a stack of experts is cut into where they are stored one by one.
        """
        found: dict[str, Entry] = {}
        nameless: list[str] = []
        for canonical in present:
            name = parse(canonical)
            stored = self._written.get(name.pattern)
            if stored is None:
                nameless.append(canonical)
                continue
            for entry in _entries_of(canonical, stored, name.layer, present, experts):
                found.setdefault(entry.name, entry)
        return list(found.values()), nameless


def _entries_of(
    canonical: str, stored: Stored, layer: int | None, present: Collection[str], experts: int
) -> list[Entry]:
    called = with_layer(stored.pattern, layer)
    part = stored.parts[0]
    if part.stack:
        return [Entry(called.replace("{e}", str(n)), canonical, (canonical,), expert=n) for n in range(experts)]
    parts = tuple(with_layer(name, layer) for name in stored.names)
    missing = tuple(part for part in parts if part not in present) if len(parts) > 1 else ()
    return [Entry(called, with_layer(stored.canonical, layer), parts, missing, transposed=is_transposed(part))]
