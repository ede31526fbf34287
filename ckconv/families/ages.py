"""Ages of C-Kernel-Engine: which files each computes right, as TOML.

An age has its versions of bump files, the first of which is written for it; of bump 3 the types and their numbers; of
bump 5 the types by place, the templates it computes right and on which conditions, and the fragments of a template
that a file needs to be computed right. Every fact was measured: logits of the engine against transformers.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from ckconv.core.dtypes import DTYPES
from ckconv.core.named import NamedTuple
from ckconv.families.expressions import Expression
from ckconv.families.merge import Fields, listed, texts
from ckconv.families.schema import Condition, condition

#: The age whose rules hold where none is asked for.
DEFAULT = "april"

_OF_BUMP5 = frozenset({"anywhere", "layers", "added_twice", "mixes", "templates", "fragments"})

_FOLDER = Path(__file__).parent / "engine_ages"


class Fragment(NamedTuple):
    """A part of a template that a file needs.

    Attributes:
        needed: whether it does, of ``rope_layout`` (the configuration's, empty where it says none) and the types of
            every matrix (``attn_qkv``: a sorted list of the manifest's words).
        template: what is merged over the engine's own.
        others: what does as well, where a user's template has it.
    """

    needed: Expression
    template: Mapping[str, Any]
    others: tuple[Mapping[str, Any], ...]


class Mix(NamedTuple):
    """Types that matrices of one layer with the same input must not mix.

    The engine turns those numbers into blocks for one of the matrices, and each kind of matrix reads its own blocks.

    Attributes:
        slots, types: one matrix, and its types; none for all.
        beside, others: the other, of the same layer, and its types; no types for all that are not the first one's, and
            no matrix where the first is wrong by itself.
    """

    slots: tuple[str, ...]
    types: tuple[str, ...]
    beside: tuple[str, ...]
    others: tuple[str, ...]

    def wrong(self, types: Mapping[str, str]) -> tuple[str, str] | None:
        """Pair of matrices with types that must not mix; the second may be empty."""
        if not self.beside:
            return next(((one, "") for one in self.slots if types.get(one) in self.types), None)
        for one, other in product(self.slots, self.beside):
            here, there = types.get(one), types.get(other)
            if (
                here
                and there
                and here != there
                and here in (self.types or [here])
                and there in (self.others or [there])
            ):
                return one, other
        return None


class Circuit(NamedTuple):
    """Template of the engine, with what an age computes right of a model.

    Attributes:
        wrong: why no file is right; empty where some are.
        right_if: what must hold of the model.
        types: the only ones of matrices that are right; empty for those of the age.
        mixes: those that are wrong in a layer; none for those of the age.
        fragments: those that only its files need.
    """

    wrong: str
    right_if: tuple[Condition, ...]
    types: tuple[str, ...]
    mixes: tuple[Mix, ...]
    fragments: tuple[Fragment, ...]


class Age(NamedTuple):
    """An age.

    Attributes:
        name: as ``--engine`` has it.
        title: as a sentence has it.
        month: of its snapshot; ages are listed by it.
        versions: of the bump files that it loads, the one that is written first.
        run: family whose models were run in it -> the types of matrices that were right; others have the entries of
            their template's family.
        conditions: family -> with what it is right only, in words.
        codes: numbering of a bump 3 dtype table, ``v3`` or ``v4``; empty where it loads no bump 3.
        older: types of matrices of bump 3.
        anywhere: types of bump 5 that are right in every matrix.
        layers: types that are right in the layers only.
        added_twice: matrix -> its bias: with a matrix of floats and a bias that is not zero it is wrong.
        mixes: those that are wrong in a layer, of templates that have none of their own.
        fragments: those that files of every template may need.
    """

    name: str
    title: str
    month: str
    versions: tuple[int, ...]
    run: Mapping[str, tuple[str, ...]]
    conditions: Mapping[str, str]
    codes: str
    older: tuple[str, ...]
    anywhere: tuple[str, ...]
    layers: tuple[str, ...]
    added_twice: Mapping[str, str]
    mixes: tuple[Mix, ...]
    circuits: Mapping[str, Circuit]
    fragments: tuple[Fragment, ...]

    def keeps(self, dtype: str) -> bool:
        """Floats of this type are stored as they are, and not widened."""
        return dtype in self.anywhere


@cache
def ages() -> Mapping[str, Age]:
    """Every age by name, the oldest first.

    Raises:
        InputError: ``family.file``, with the key at fault.
    """
    found = [_Reader(path).age() for path in _FOLDER.glob("*.toml")]
    return {age.name: age for age in sorted(found, key=lambda age: age.month)}


def of_blocks() -> tuple[str, ...]:
    """Types that some age computes in some place of a bump 5 file."""
    return tuple(dict.fromkeys(name for age in ages().values() for name in (*age.anywhere, *age.layers)))


class _Reader(Fields):
    """Strict: a field or type that there is not is an error."""

    def age(self) -> Age:
        table = tomllib.loads(self.path.read_text("utf-8"))
        self.where = "the file"
        row = self.fields(table, frozenset({"title", "month", "versions", "run", "conditions", "bump3", "bump5"}))
        older = self._part(table, "bump3", frozenset({"codes", "types"}))
        newer = self._part(table, "bump5", _OF_BUMP5)
        return Age(
            self.path.stem,
            str(row["title"]),
            str(row["month"]),
            tuple(row["versions"]),
            {name: self._types(row["run"], name) for name in row.get("run", {})},
            dict(row.get("conditions", {})),
            self.word(older, "codes", {"": "", "v3": "v3", "v4": "v4"}, ""),
            self._types(older, "types"),
            self._types(newer, "anywhere"),
            self._types(newer, "layers"),
            dict(newer.get("added_twice", {})),
            tuple(self._mixes(newer)),
            {name: self._circuit(name, item) for name, item in newer.get("templates", {}).items()},
            tuple(self._fragments(newer)),
        )

    def _part(self, table: Mapping[str, Any], name: str, known: frozenset[str]) -> Mapping[str, Any]:
        self.where = name
        return self.fields(table.get(name, {}), known)

    def _types(self, row: Mapping[str, Any], field: str) -> tuple[str, ...]:
        names = texts(row.get(field))
        for name in names:
            if name not in DTYPES:
                raise self.fault(f"{field}: there is no type {name!r}")
        return names

    def _circuit(self, name: str, item: object) -> Circuit:
        self.where = f"bump5.templates.{name}"
        row = self.fields(item, frozenset({"wrong", "right_if", "types", "mixes", "fragments"}))
        return Circuit(
            str(row.get("wrong", "")),
            tuple(condition(self, one) for one in listed(row.get("right_if", []))),
            self._types(row, "types"),
            tuple(self._mixes(row)),
            tuple(self._fragments(row)),
        )

    def _mixes(self, row: Mapping[str, Any]) -> Iterator[Mix]:
        for item in row.get("mixes", []):
            fields = self.fields(item, frozenset({"slots", "types", "beside", "others"}))
            slots = texts(fields.get("slots"))
            beside = texts(fields["beside"]) if "beside" in fields else slots
            yield Mix(slots, self._types(fields, "types"), beside, self._types(fields, "others"))

    def _fragments(self, row: Mapping[str, Any]) -> Iterator[Fragment]:
        for item in row.get("fragments", []):
            fields = self.fields(item, frozenset({"if", "template", "or"}))
            needed = self.expression(fields.get("if", True))
            if needed is None or not isinstance(fields.get("template"), dict):
                raise self.fault("a fragment without a template")
            yield Fragment(needed, fields["template"], tuple(fields.get("or", [])))
