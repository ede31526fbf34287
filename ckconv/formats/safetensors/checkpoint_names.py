"""Canonical tensors -> the tensors of a checkpoint: what each is called there, and which are stored as one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ckconv.core.layouts import Layout
from ckconv.core.tensors import parse, with_layer
from ckconv.families.kinds import factor_of, layout_in
from ckconv.families.names import Stored
from ckconv.families.naming_schemes import fusion_names, scheme_names
from ckconv.families.schema import Family
from ckconv.families.sizes import Sizes
from ckconv.families.tensor_rows import VALUES


class Entry(NamedTuple):
    """One tensor of a checkpoint.

    Attributes:
        name: what it is called there.
        canonical: what it holds, by canonical name; for a fused tensor a name that no single tensor has.
        parts: canonical tensors whose rows it holds, in order.
        missing: parts that the model does not have.
        expert: the one expert whose rows it holds, ``None`` for all rows.
        places: its shape, and where the canonical rows are in it; ``None`` where they follow each other.
        shift: what is stored for a canonical value (:class:`ckconv.core.layouts.Layout`).
        packed: it is stored as blocks and scales.
        factors: of each part, what a stored value is multiplied with; empty for 1.
    """

    name: str
    canonical: str
    parts: tuple[str, ...]
    missing: tuple[str, ...] = ()
    expert: int | None = None
    places: tuple[tuple[int, ...], Layout] | None = None
    shift: int = 0
    packed: bool = False
    factors: tuple[float, ...] = ()


class Spelling:
    """How one family's tensors are named and put together in one kind of checkpoint.

    Args:
        parameters: of the model.
        scheme: ``hf``, ``mlx``, or one of :data:`ckconv.families.naming_schemes.OTHER_SCHEMES`.
        fuse: canonical modules of tensors to fuse besides those that the family always fuses.
    """

    def __init__(self, family: Family, parameters: Mapping[str, Any], scheme: str, fuse: Iterable[str] = ()) -> None:
        self._sizes = Sizes(family, parameters)
        names = scheme_names(family, scheme)
        self._written, self._packed = dict(names.written), names.packed
        for whole in fuse:
            self._written |= fusion_names(family, scheme, whole)

    def entries(self, present: Collection[str], packed: Collection[str] = ()) -> tuple[list[Entry], list[str]]:
        """What a checkpoint of these canonical tensors holds, and the canonical names that it has no name for.

        Args:
            packed: those whose values stay in blocks.

        Raises:
            AxesError: the parameters give no sizes.
        """
        found: dict[str, Entry] = {}
        nameless: list[str] = []
        for canonical in present:
            name = parse(canonical)
            stored = (self._packed if canonical in packed else self._written).get(name.pattern)
            if stored is None:
                nameless.append(canonical)
                continue
            for entry in self._entries_of(stored, name.layer, present):
                found.setdefault(entry.name, entry._replace(packed=canonical in packed))
        return list(found.values()), nameless

    def _entries_of(self, stored: Stored, layer: int | None, present: Collection[str]) -> Iterator[Entry]:
        called, part = with_layer(stored.pattern, layer), stored.parts[0]
        parts = tuple(with_layer(name, layer) for name in stored.names)
        missing = tuple(part for part in parts if part not in present) if len(parts) > 1 else ()
        places = layout_in(stored, self._sizes, layer)
        canonical, shift = with_layer(stored.canonical, layer), VALUES[part.value]
        factors = tuple(factor_of(one, self._sizes.scope) for one in stored.parts) if part.by is not None else ()
        whole = Entry(called, canonical, parts, missing, places=places, shift=shift, factors=factors)
        if not part.stack:
            yield whole
            return
        hole = "{e}" if "{e}" in called else "{n}"
        for n in range(int(self._sizes.of(part.row, layer)(part.stack))):
            yield whole._replace(name=called.replace(hole, str(n)), expert=n)
