"""Canonical tensors -> the tensors of a checkpoint: what each is called there, and which are stored as one.

The tables are those that the readers use (:mod:`ckconv.families.huggingface_names`), turned round.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ckconv.core.names import parse, with_layer
from ckconv.families.huggingface_names import GATE_UP, PARTS, QKV, naming_of

#: What ``--fuse`` calls them -> stem of the fused tensor.
FUSIONS: dict[str, str] = {"qkv": QKV, "gate-up": GATE_UP}

# What stands before every name but the output head's, which transformers keeps outside of the model it belongs to.
_PREFIXES: dict[tuple[str, str], str] = {
    ("gpt2", "hf"): "transformer.",
    ("gpt2", "max"): "transformer.",
    ("gpt2", "mlx"): "model.",
}
_HEAD = "lm_head."

#: What tells the two ways to store experts apart: one by one, as transformers has it, and stacked, as mlx-lm does.
_ONE_BY_ONE, _STACKED = "{e}", ".switch_mlp."


@dataclass(frozen=True, slots=True)
class Entry:
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
        family: a row of :data:`ckconv.families.architectures.FAMILIES`.
        dialect: ``hf``, ``mlx``, ``canonical``, ``gguf`` or ``max``.
        fuse: stems of tensors to fuse besides those that the family always fuses.
    """

    def __init__(self, family: str, dialect: str, fuse: Iterable[str] = ()) -> None:
        naming = naming_of(family, "hf" if dialect == "mlx" else dialect)
        other = _ONE_BY_ONE if dialect == "mlx" else _STACKED
        self._names = {ours: theirs for theirs, ours in naming.names.items() if other not in theirs}
        self._transposed = frozenset() if dialect == "mlx" else naming.transposed
        self._prefix = _PREFIXES.get((family, dialect), "")
        self._fused: dict[str, str] = {}
        for stem in {**dict.fromkeys(naming.always_fused), **dict.fromkeys(fuse)}:
            self._fused |= dict.fromkeys(PARTS[stem], stem)

    def entries(self, present: Collection[str], experts: int) -> tuple[list[Entry], list[str]]:
        """What a checkpoint of these canonical tensors holds, and the canonical names that it has no name for.

        Args:
            experts: how many a stack of experts is cut into where they are stored one by one.
        """
        found: dict[str, Entry] = {}
        nameless: list[str] = []
        for name in present:
            for entry in self._entries_of(name, present, experts):
                found.setdefault(entry.name, entry)
            if self._pattern(name) is None:
                nameless.append(name)
        return list(found.values()), nameless

    def _fused_stem(self, pattern: str) -> tuple[str | None, str]:
        stem, _, kind = pattern.rpartition(".")
        return self._fused.get(stem), kind

    def _pattern(self, canonical: str) -> str | None:
        pattern = parse(canonical).pattern
        stem, kind = self._fused_stem(pattern)
        return self._names.get(f"{stem}.{kind}" if stem else pattern)

    def _entries_of(self, canonical: str, present: Collection[str], experts: int) -> list[Entry]:
        name = parse(canonical)
        theirs = self._pattern(canonical)
        if theirs is None:
            return []
        stored = with_layer(theirs if theirs.startswith(_HEAD) else self._prefix + theirs, name.layer)
        stem, kind = self._fused_stem(name.pattern)
        if stem:
            whole = f"{stem}.{kind}"
            parts = tuple(with_layer(f"{part}.{kind}", name.layer) for part in PARTS[stem])
            missing = tuple(part for part in parts if part not in present)
            ours = with_layer(whole, name.layer)
            return [Entry(stored, ours, parts, missing, transposed=whole in self._transposed)]
        if _ONE_BY_ONE in stored:
            return [
                Entry(stored.replace(_ONE_BY_ONE, str(n)), canonical, (canonical,), expert=n) for n in range(experts)
            ]
        return [Entry(stored, canonical, (canonical,), transposed=name.pattern in self._transposed)]
