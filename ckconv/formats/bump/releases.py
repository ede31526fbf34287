"""Releases of the engine that compute a bump file right, and templates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from ckconv.core.layouts import DTYPES, WIDENS_TO_F32, DType
from ckconv.core.lazy import NamedTuple, table_of
from ckconv.core.metadata import table_within, within
from ckconv.core.options import Options
from ckconv.errors import InputError, an, counted
from ckconv.families.catalog import FAMILIES, family_in_gguf, written_as
from ckconv.families.expressions import Expression
from ckconv.families.merge import FOLDER, Fields, listed, texts
from ckconv.families.schema import Condition, Family, condition
from ckconv.formats.bump.slots import TEMPLATED, TYPE_WORDS
from ckconv.io.json import Document, read_object
from ckconv.plan.steps import Reason

# -- Releases of C-Kernel-Engine: which files each computes right, as TOML ---------------------------------------------

# A release has its versions of bump files, the first of which is written for it; of bump 3 the types and their numbers;
# of bump 5 the types by place, the templates it computes right and on which conditions, and the fragments of a template
# that a file needs to be computed right. Every fact was measured: logits of the engine against transformers.

#: The release whose rules hold where none is asked for.
DEFAULT = "april"

_OF_BUMP5 = frozenset({"anywhere", "projections", "full_logits", "added_twice", "mixes", "templates", "fragments"})

_FOLDER = FOLDER / "engine_releases"


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
    """Template of the engine, with what a release computes right of a model.

    Attributes:
        wrong: why no file is right; empty where some are.
        right_if: what must hold of the model.
        types: the only ones of matrices that are right; empty for those of the release.
        mixes: those that are wrong in a layer; none for those of the release.
        fragments: those that only its files need.
        full_logits: types of a head, besides those of the release, for which logits of every position are needed.
    """

    wrong: str
    right_if: tuple[Condition, ...]
    types: tuple[str, ...]
    mixes: tuple[Mix, ...]
    fragments: tuple[Fragment, ...]
    full_logits: tuple[str, ...]


class Release(NamedTuple):
    """A release.

    Attributes:
        name: as ``--engine`` has it.
        title: as a sentence has it.
        month: of its snapshot; releases are listed by it.
        versions: of the bump files that it loads, the one that is written first.
        run: family whose models were run in it -> the types of matrices that were right; others have the entries of
            their template's family.
        conditions: family -> with what it is right only, in words.
        codes: numbering of a bump 3 dtype table, ``v3`` or ``v4``; empty where it loads no bump 3.
        older: types of matrices of bump 3.
        anywhere: types of bump 5 that are right in every matrix.
        projections: types that are right in every matrix but the embedding.
        full_logits: types of a head for which the engine is built with logits of every position.
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
    projections: tuple[str, ...]
    full_logits: tuple[str, ...]
    added_twice: Mapping[str, str]
    mixes: tuple[Mix, ...]
    circuits: Mapping[str, Circuit]
    fragments: tuple[Fragment, ...]

    def all_logits(self, circuit: str, head: str) -> bool:
        """Whether a head of this type needs the logits of every position."""
        own = self.circuits.get(circuit)
        return head in self.full_logits or (own is not None and head in own.full_logits)

    def keeps(self, dtype: str) -> bool:
        """Whether floats of this type are stored as they are, and not widened."""
        return dtype in self.anywhere


@cache
def releases() -> Mapping[str, Release]:
    """Every release by name, the oldest first.

    Raises:
        InputError: ``family.file``, with the key at fault.
    """
    found = [_Reader(path).release() for path in _FOLDER.iterdir() if path.suffix == ".toml"]
    return {release.name: release for release in sorted(found, key=lambda release: release.month)}


class _Reader(Fields):
    """Strict: a field or type that there is not is an error."""

    def release(self) -> Release:
        table = table_of(self.path)
        self.where = "the file"
        row = self.fields(table, frozenset({"title", "month", "versions", "run", "conditions", "bump3", "bump5"}))
        older = self._part(table, "bump3", frozenset({"codes", "types"}))
        newer = self._part(table, "bump5", _OF_BUMP5)
        return Release(
            self.path.stem,
            str(row["title"]),
            str(row["month"]),
            tuple(row["versions"]),
            {name: self._types(row["run"], name) for name in row.get("run", {})},
            dict(row.get("conditions", {})),
            self.word(older, "codes", {"": "", "v3": "v3", "v4": "v4"}, ""),
            self._types(older, "types"),
            self._types(newer, "anywhere"),
            self._types(newer, "projections"),
            self._types(newer, "full_logits"),
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
        row = self.fields(item, frozenset({"wrong", "right_if", "types", "mixes", "fragments", "full_logits"}))
        return Circuit(
            str(row.get("wrong", "")),
            tuple(condition(self, one) for one in listed(row.get("right_if", []))),
            self._types(row, "types"),
            tuple(self._mixes(row)),
            tuple(self._fragments(row)),
            self._types(row, "full_logits"),
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


# -- Releases of the engine that compute a bump file right, and templates ----------------------------------------------

# The engine's template of a family: a JSON file of its own, which a bump 5 file carries a copy of.

#: Words for the order of RoPE rows in a template or configuration -> rows interleaved (``build_ir_v7.py``).
ROPE_WORDS: dict[str, bool] = {
    **dict.fromkeys(("split", "standard", "cos_sin_split", "half", "multi_section_1d"), False),
    **dict.fromkeys(("pairwise", "interleaved", "even_odd"), True),
}


def read_template(path: Path, architecture: str) -> dict[str, Any]:
    """Read the template at ``path``, or ``ARCHITECTURE.json`` in it."""
    file = path / f"{architecture}.json" if path.is_dir() else path
    if file is not path and not file.is_file():
        raise InputError("template.missing", f"there is no {file.name} in it", path=path)
    return read_object(file, Document("template", "template.json", "template.json", 4 << 20))


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``other`` over ``one`` key by key, as the engine's builder does."""
    made = dict(one)
    for key, value in other.items():
        both = isinstance(value, dict) and isinstance(made.get(key), dict)
        made[key] = merged(made[key], value) if both else value
    return made


def lacks(template: Mapping[str, Any], fragment: Mapping[str, Any]) -> str:
    """Describe the first key that ``template`` lacks or has otherwise.

    Empty where ``template`` has everything of ``fragment``.
    """
    for key, value in fragment.items():
        found = template.get(key)
        if isinstance(value, dict):
            inner = lacks(table_within(found), value)
            if inner:
                return f"{key}.{inner}"
        elif found != value:
            return f"{key} is {found!r}, and the file needs {value!r}"
    return ""


def template_interleaves(template: Any, default: bool) -> bool:
    """Whether the template's engine rotates neighboring rows.

    The attention contract says so, else the name of the RoPE kernel.
    """
    word = within(template, "contract", "attention_contract", "rope_layout")
    if isinstance(word, str) and word in ROPE_WORDS:
        return ROPE_WORDS[word]
    kernel = within(template, "kernels", "rope_qk")
    if isinstance(kernel, str):
        return "pairwise" in kernel
    return default


# Which releases of the engine compute a bump file right, and why one does not. Facts: ``families/engine_releases``.

#: Matrix types that a bump 3 loader accepts (``load_weight_dtypes``): the rest makes its init fail with -6.
LOADED_BY_V3 = tuple(dict.fromkeys(name for release in releases().values() for name in release.older))

#: Types that the engine of some release computes in a bump 5 file.
COMPUTED = tuple(dict.fromkeys(name for it in releases().values() for name in (*it.anywhere, *it.projections)))

#: Key of the manifest's configuration under which it says for which releases it is.
KEY = "ckconv_engines"

#: Key under which it says of which family a model is that is written as another's.
FAMILY_KEY = "ckconv_family"


def release_of(options: Options) -> Release:
    """The release whose rules hold."""
    return releases()[options.engine or DEFAULT]


def numbering(options: Options) -> str:
    """Numbering of a bump 3 dtype table."""
    return options.dtype_codes or (release_of(options).codes if options.engine else "") or "v3"


class FileFacts(NamedTuple):
    """Facts of a bump file that decide which engines compute it right.

    Attributes:
        version: of the file.
        circuit: name of the engine's template.
        scope: parameters of the model, for conditions.
        right_if: those of its family.
        types: slot -> type of every matrix.
        biased: slots of biases that are not all zeros.
        rope_layout: what the configuration says of it, empty for nothing.
        template: what the manifest's template says, fragments merged in.
    """

    version: int
    circuit: str
    scope: Mapping[str, Any]
    right_if: tuple[Condition, ...]
    types: Mapping[str, DType]
    biased: frozenset[str]
    rope_layout: str
    template: Mapping[str, Any] = {}

    @property
    def words(self) -> dict[str, Any]:
        """Values that the condition of a fragment may name."""
        words: dict[str, set[str]] = {}
        for slot, dtype in self.types.items():
            words.setdefault(slot.rpartition(".")[2], set()).add(TYPE_WORDS.get(dtype.name, ""))
        return {**{slot: sorted(found) for slot, found in words.items()}, "rope_layout": self.rope_layout}


def elsewhere(release: Release, fault: Callable[[Release], object]) -> str:
    """Hint that an engine of another release has no such fault; or empty."""
    right = [f"--engine {other.name}" for other in releases().values() if other is not release and 5 in other.versions]
    right = [flag for flag in right if not fault(releases()[flag.rpartition(" ")[2]])]
    return f"{' and '.join(right)} {'computes' if len(right) == 1 else 'compute'} it" if right else ""


def no_circuit(release: Release, name: str) -> str:
    """Why no file with this template is right; empty where some are."""
    circuit = release.circuits.get(name)
    if circuit is None:
        return f"the engine of {release.title} has no template for {name}"
    return f"the engine of {release.title} computes {name} wrong: {circuit.wrong}" if circuit.wrong else ""


def no_kernel(release: Release, dtype: str, slot: str) -> bool:
    """Whether a matrix of this type is not computed right."""
    return dtype not in release.anywhere and (slot == "token_emb" or dtype not in release.projections)


def conditions(release: Release, made: FileFacts) -> Iterator[Reason]:
    """Conditions of a template that the model does not meet."""
    circuit = release.circuits.get(made.circuit)
    for needed in (*made.right_if, *(circuit.right_if if circuit else ())):
        if not needed.expression.value(made.scope):
            sentence = needed.message(made.scope) or f"the engine needs {needed.expression}"
            yield Reason(sentence, needed.way_out(made.scope))


def _type_faults(release: Release, made: FileFacts) -> Iterator[str]:
    """Matrices computed wrong though the release has a kernel for their type."""
    circuit = release.circuits.get(made.circuit)
    if circuit is not None and circuit.types:
        wrong = [slot for slot, dtype in made.types.items() if dtype.name not in circuit.types]
        if wrong:
            what = f"{made.circuit} with matrices of {', '.join(circuit.types)} only"
            yield f"the engine of {release.title} computes {what}, and {wrong[0]} is {made.types[wrong[0]]}"
    pairs = mixed(release, made)
    if pairs:
        one, other = pairs[0]
        beside = f" beside {other} of {made.types[other]}" if other else ""
        more = f" ({counted(len(pairs), 'layer')})" if len(pairs) > 1 else ""
        yield f"the engine of {release.title} does not compute {one} of {made.types[one]}{beside} right{more}"
    if doubled := doubled_biases(release, made):
        more = f" and {len(doubled) - 1} more" if len(doubled) > 1 else ""
        yield f"the engine of {release.title} adds a bias beside a float matrix twice: {doubled[0]}{more}"


def doubled_biases(release: Release, made: FileFacts) -> list[str]:
    """Biases that a release adds twice, as their matrices are floats."""
    floats = (slot for slot, dtype in made.types.items() if dtype.block == 1)
    return [bias for slot in floats if (bias := _bias(release, slot)) in made.biased]


def mixes_of(release: Release, circuit: str) -> tuple[Mix, ...]:
    """Types that a release cannot compute side by side, in this circuit."""
    found = release.circuits.get(circuit)
    return found.mixes if found and found.mixes else release.mixes


def mixed(release: Release, made: FileFacts) -> list[tuple[str, str]]:
    """First wrong matrix of every layer, and its neighbor if that is why."""
    layers: dict[str, dict[str, str]] = {}
    for slot, dtype in made.types.items():
        layer, _, matrix = slot.rpartition(".")
        layers.setdefault(layer, {})[matrix] = dtype.name
    found = []
    for layer, types in layers.items():
        pair = next((pair for mix in mixes_of(release, made.circuit) if (pair := mix.wrong(types))), None)
        if pair is not None:
            found.append((f"{layer}.{pair[0]}", f"{layer}.{pair[1]}" if pair[1] else ""))
    return found


def _bias(release: Release, slot: str) -> str:
    """The slot of the bias that is added twice beside floats; empty for none."""
    layer, dot, matrix = slot.rpartition(".")
    return f"{layer}{dot}{release.added_twice[matrix]}" if matrix in release.added_twice else ""


def _fragments(release: Release, made: FileFacts) -> Iterator[Fragment]:
    circuit = release.circuits.get(made.circuit)
    for fragment in (*release.fragments, *(circuit.fragments if circuit else ())):
        if fragment.needed.value(made.words):
            yield fragment


def needed_template(made: FileFacts) -> dict[str, Any]:
    """Template keys that any release needs; the other releases ignore them."""
    template: dict[str, Any] = {}
    for release in releases().values():
        for fragment in _fragments(release, made):
            template = merged(template, fragment.template)
    return template


def _template_faults(release: Release, made: FileFacts) -> Iterator[str]:
    """Keys of the manifest's template that contradict the file."""
    for fragment in _fragments(release, made):
        if all(lacks(made.template, one) for one in (fragment.template, *fragment.others)):
            yield f"the template's {lacks(made.template, fragment.template)}"


def later_faults(release: Release, made: FileFacts) -> Iterator[str]:
    """Faults that show once every slot has its type."""
    yield from _type_faults(release, made)
    yield from _template_faults(release, made)


def remains_wrong(release: Release, made: FileFacts) -> bool:
    """Whether a model stays wrong for a release even with types widened."""
    return bool(no_circuit(release, made.circuit) or [*later_faults(release, made)])


def _faults(release: Release, made: FileFacts) -> Iterator[object]:
    yield no_circuit(release, made.circuit)
    yield from conditions(release, made)
    yield from later_faults(release, made)
    yield from _without_kernel(release, made)


def _without_kernel(release: Release, made: FileFacts) -> Iterator[str]:
    """Matrices of types that the release computes nowhere, or not there."""
    for slot, dtype in made.types.items():
        if no_kernel(release, dtype.name, slot):
            yield slot


def right(made: FileFacts) -> tuple[str, ...]:
    """The releases whose engine computes the file right."""
    return tuple(it.name for it in releases().values() if made.version in it.versions and not any(_faults(it, made)))


def still_right(names: Collection[str], circuit: str, types: Mapping[str, DType]) -> tuple[str, ...]:
    """Releases that a file names and that are known to compute its types.

    Args:
        types: slot -> type of every matrix.
    """
    made = FileFacts(5, circuit, {}, (), types, frozenset(), "")
    return tuple(
        name
        for name in names
        if not no_circuit(releases()[name], circuit)
        and not [*_type_faults(releases()[name], made), *_without_kernel(releases()[name], made)]
    )


def right_of_bump3(types: Collection[str], numbers: str) -> tuple[str, ...]:
    """Releases that compute a bump 3 file of these types, in this numbering."""
    floats = set(types) <= {"F32"}
    return tuple(
        release.name
        for release in releases().values()
        if release.older and set(types) <= set(release.older) and (floats or release.codes == numbers)
    )


def release_note(names: Collection[str]) -> str:
    """The note about the releases that compute a file."""
    titles = [releases()[name].title for name in names]
    if not titles:
        return "no engine that is known computes it right"
    return f"computed right by the engine of {' and of '.join(titles)}"


def table_of_types() -> dict[str, dict[str, str]]:
    """Release -> type -> where its engine computes a matrix, in words.

    In bump 5, or in bump 3 where the engine loads nothing newer.
    """
    return {it.name: {dtype.name: _place(it, dtype) for dtype in DTYPES.values()} for it in releases().values()}


def _place(release: Release, dtype: DType) -> str:
    if dtype.name in release.anywhere or (not release.anywhere and dtype.name in release.older):
        return "everywhere"
    if dtype.name in release.projections:
        return "all but embeddings"
    return "widened" if dtype in WIDENS_TO_F32 else ""


def table_of_families() -> dict[str, tuple[str, dict[str, str]]]:
    """Family of bump 5 -> template, and release -> its run, in words."""
    newer = [release for release in releases().values() if 5 in release.versions]
    found = {}
    for name, family in FAMILIES.items():
        row = family.engines.get(TEMPLATED)
        base = FAMILIES[written_as(family, TEMPLATED) or family_in_gguf(name)]
        its = base.engines.get(TEMPLATED)
        if its is not None and not its.absent and not (row is not None and row.absent):
            found[name] = (base.gguf, {release.name: _run_in_words(release, name, base) for release in newer})
    return found


def table_of_mixes() -> list[tuple[str, str, str]]:
    """Release, template (empty: any other) and types not computed together."""
    return [
        (it.name, circuit, _mix_in_words(mix))
        for it in releases().values()
        for circuit, mixes in {"": it.mixes, **{name: found.mixes for name, found in it.circuits.items()}}.items()
        for mix in mixes
    ]


def _mix_in_words(mix: Mix) -> str:
    slots, types, others = ", ".join(mix.slots), ", ".join(mix.types), ", ".join(mix.others)
    if not mix.beside:
        return f"{slots} of {types}"
    if mix.beside == mix.slots:
        return f"{types} beside {others} among {slots}"
    if not mix.types:
        return f"{slots} of another type than {', '.join(mix.beside)}"
    return f"{slots} of {types} beside {', '.join(mix.beside)} of {others}"


def _run_in_words(release: Release, name: str, base: Family) -> str:
    if no_circuit(release, base.gguf):
        return "refused"
    condition = f" ({release.conditions[name]})" if name in release.conditions else ""
    if name in release.run:
        return f"right: {', '.join(release.run[name])}{condition}"
    if name != base.name:
        return f"not run; entry for entry {an(base.name)}{condition}"
    return f"not run{condition}"
