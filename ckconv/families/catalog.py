"""Families known to ckconv, and what is known of models without one.

Families are shipped or of the user. A user's file is checked whenever it is read, the shipped ones by a test. Files of
a user count within :func:`in_force`, in the thread that entered it, and nowhere else: two calls in one process do not
see each other's.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, lru_cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

from ckconv.core.config import FIELD_OF, ModelConfig, config_differences, worded_fields
from ckconv.core.lazy import NamedTuple, replace, table_of
from ckconv.core.metadata import CONFIG_NAME, within
from ckconv.core.tensors import MetadataKind, Tensor, TensorIndex
from ckconv.errors import UsageError, an, quoted
from ckconv.families import axes as shapes, parameters
from ckconv.families.expressions import Expression, ExpressionError, parse
from ckconv.families.keys import TABLES_OF_ROPE, TAKERS, full_key
from ckconv.families.merge import FOLDER, FORMATS, Table, fault, files_of, is_family, listed, read_file
from ckconv.families.names import NameRule, names_of
from ckconv.families.schema import DRAFTS, Condition, Family, TensorRow, load
from ckconv.families.sizes import used

# -- Checks of a whole family file: rows against each other, and names -------------------------------------------------

#: Parameters without which nothing is known of a model's size.
REQUIRED = ("layers", "hidden", "heads", "vocabulary")

#: What expressions may ask for besides parameters: the layer, the stored value, the parameters that a source says,
#: and what is known of an output.
_GIVEN = frozenset({"n", "it", "stated", "context", "tied", "one_matrix"})

#: Parameters that follow from each other; more would be too deep to compute.
_MOST_STEPS = 64


def check_family(family: Family) -> None:
    """Refuse a file whose rows contradict each other.

    Raises:
        InputError: ``family.file``, with the key at fault.
    """
    for key, message in _faults(family):
        raise fault(family.path, f"{key}: {message}")


def _faults(family: Family) -> Iterator[tuple[str, str]]:
    match = family.in_gguf.condition
    for section, word, found, where in (
        ("huggingface", "model_type", family.in_huggingface.names, CONFIG_NAME),
        ("huggingface", "class", family.in_huggingface.classes, "architectures of config.json"),
        ("gguf", "arch", family.in_gguf.names or match is None, "general.architecture of a GGUF"),
    ):
        if not found:
            yield f"{section}.{word}", f"missing: {word} = what {where} says"
    for name in sorted(match.names if match else ()):
        yield "gguf.match", f"it asks for {name!r}, and a match asks for has('KEY') only"
    if "hf" not in family.prefixes:
        yield "prefix.hf", "missing; rows with M. and L. need it"
    for name in REQUIRED:
        if name not in family.parameters:
            yield f"parameters.{name}", "there is none, and without it no model can be read"
    for name in ("rope_theta", "local_theta"):
        if name in family.parameters and "transformers" not in family.parameters[name].defaults:
            yield f"parameters.{name}", "no default for transformers, which reads files that do not say it"
        for default in family.parameters[name].defaults.values() if name in family.parameters else ():
            with suppress(ExpressionError):
                if isinstance(default.value({}), str):
                    yield f"parameters.{name}", f"its default {str(default)!r} is a text, and a number is expected"
    drafts = family.parameters.get(DRAFTS)
    if drafts is not None and drafts.value is None and "extra_layers" not in family.parameters:  # none has a value
        yield f"parameters.{DRAFTS}", "there is no parameter extra_layers, which says how many layers those are"
    known = family.parameters.keys() | _GIVEN
    for key, expression in _expressions(family):
        for name in sorted(expression.names - known):
            yield key, f"{str(expression)!r} asks for {name!r}, and there is no such parameter: a new one is a row"
    for key, condition in _conditions(family):
        for name in sorted(condition.names - condition.expression.names - known):
            yield key, f"its sentence or hint has {{{name}}}, and there is no such parameter"
    for taker in TAKERS:
        steps: dict[str, int] = {}
        for name in family.parameters:
            try:
                _steps(family, taker, name, steps, ())
            except ExpressionError as error:
                yield f"parameters.{name}", str(error)
    for format in FORMATS:
        yield from _place_faults(family, format)


def _expressions(family: Family) -> Iterator[tuple[str, Expression]]:
    """Key and expression of everything that is computed."""
    used = {letter for row in family.tensors.values() for letter in shapes.letters(row.fused_axes)}
    yield from ((f"axes.{letter}", expression) for letter, expression in family.axes.items() if letter in used)
    kinds = [one for row in family.tensors.values() for one in (row.layers, row.spare) if one]
    named = {name for one in (*kinds, *family.layers.values()) for name in one.names}
    yield from ((f"layers.{name}", one) for name, one in family.layers.items() if name in named)
    for letter, stack in family.stacks.items():
        yield f"stacks.{letter}.count", stack.count
    for name, row in family.tensors.items():
        yield from ((f"tensors.{name}", one) for one in (row.bias, row.when) if one)
    for name, parameter in family.parameters.items():
        both = [cell for cells in parameter.cells.values() for cell in cells]
        computed = [one for cell in both for one in (cell.expression, cell.read, cell.write, cell.when)]
        everything = (parameter.value, *parameter.defaults.values(), *computed)
        yield from ((f"parameters.{name}", one) for one in everything if one)
    yield from ((key, condition.expression) for key, condition in _conditions(family))


def _conditions(family: Family) -> Iterator[tuple[str, Condition]]:
    """Key and condition of everything that an engine asks for."""
    for name, engine in family.engines.items():
        yield from ((f"engines.{name}.right_if", condition) for condition in (*engine.right_if, *engine.same_if))


def _steps(family: Family, taker: str, name: str, known: dict[str, int], above: tuple[str, ...]) -> int:
    """How many parameters a parameter follows from, one after the other."""
    if name in above or len(above) > _MOST_STEPS:
        raise ExpressionError(f"it depends on itself: {' -> '.join((*above, name)[-8:])}")
    if name not in known:
        parameter = family.parameters.get(name)
        expressions = (parameter.value, parameter.defaults.get(taker)) if parameter else ()
        others = {other for expression in expressions if expression for other in expression.names}
        known[name] = 1 + max(
            (_steps(family, taker, other, known, (*above, name)) for other in sorted(others)), default=0
        )
    return known[name]


def _place_faults(family: Family, format: str) -> Iterator[tuple[str, str]]:
    """Places claimed twice in a format, and fused segments without a row."""
    try:
        names = names_of(family, format)
    except shapes.AxesError as error:
        yield f"tensors ({format})", str(error)
        return
    for pattern, found in names.stored.items():
        if found in names.written.values() or found in names.packed.values():
            yield from _segment_faults(family, format, pattern, found)
    for pattern, choices in names.choices.items():
        # layers whose numbers in names a stack lists are distinguished by them
        listed_rows = {
            choice.parts[0].row.name for choice in choices if choice.numbers is not None and choice.numbers.of_lists
        }
        for one, other in combinations([choice.parts[0].row.name for choice in choices], 2):
            if one != other and (one in listed_rows) == (other in listed_rows) and not _exclusive(family, one, other):
                yield f"tensors.{other}", f"{one} is {pattern} too ({format})"


def _segment_faults(family: Family, format: str, pattern: str, found: NameRule) -> Iterator[tuple[str, str]]:
    last = found.parts[-1]
    key = f"tensors.{last.row.name}"
    fused = {part.stored for part in found.parts if shapes.segment_count(part.stored) > 1}
    if len(fused) > 1:
        yield key, f"{pattern} is described in two ways ({format}; {found.parts[0].row.name} has it too)"
        return
    taken: dict[int, str] = {}
    for part in found.parts:
        other = taken.setdefault(part.number, part.row.name)
        if other != part.row.name and not _exclusive(family, other, part.row.name):
            yield f"tensors.{part.row.name}", f"{other} is {pattern} too ({format})"
    for number in range(shapes.segment_count(last.stored)):
        if number not in taken:
            yield key, f"segment {number + 1} of {pattern} has no row ({format})"


def _exclusive(family: Family, one: str, other: str) -> bool:
    """Whether the conditions of two rows differ, so that no model has both."""
    rows = [family.tensors[name] for name in (one, other)]
    first, second = ((str(row.when or ""), str(row.layers or "")) for row in rows)
    return first != second


# -- Family files of a user: claims, and calls for which they count ----------------------------------------------------

#: What a family may be called: reports and messages show it.
_NAME = r"(?a:[A-Za-z0-9][\w.-]{0,63})"

#: Keys that two conditions over the metadata ask for, of which every combination is tried.
_MOST_KEYS = 10

_HAS = r"has\(\s*(['\"])(.*?)\1\s*\)"


#: ``arch``, ``model_type``, ``class``, ``engine`` or ``family`` -> word -> the shipped families that say it.
Index = Mapping[str, Mapping[str, Sequence[str]]]


class OwnFiles(NamedTuple):
    """Family files that a call has named.

    Attributes:
        families: name -> the family.
        tables: name -> the file's own table, without what it extends.
        digests: file name -> SHA-256 of every file that a user brought, extended ones too; of a shipped one, its name.
        named: shipped families as which a user wants models to be read.
    """

    families: Mapping[str, Family] = {}
    tables: Mapping[str, Table] = {}
    digests: Mapping[str, str] = {}
    named: tuple[str, ...] = ()


_NONE = OwnFiles()
_COUNTING: ContextVar[OwnFiles | None] = ContextVar("own family files", default=None)


def own_files() -> OwnFiles:
    """Family files that count here."""
    return _COUNTING.get() or _NONE


def is_name(path: Path) -> bool:
    """Whether the argument is a shipped family's name, not a ``.toml`` file."""
    return path.suffix != ".toml" and path.name == str(path)


@contextmanager
def in_force(paths: Sequence[Path], shipped: Index) -> Iterator[None]:
    """Let only these files count; without a path, nothing changes.

    Args:
        shipped: what the shipped families claim; only those that a claim is about are read.

    Raises:
        InputError: ``family.file``, a file is malformed, or claims what it does not say that it changes.
        UsageError: ``usage.flag``, there is no shipped family of a name.
    """
    if not paths:
        yield
        return
    token = _COUNTING.set(_read(paths, shipped))
    try:
        yield
    except (ExpressionError, shapes.AxesError, parameters.ParameterError) as error:
        raise fault(paths[0], f"a value that it computes from the model: {error}") from None
    finally:
        _COUNTING.reset(token)


def _read(paths: Sequence[Path], shipped: Index) -> OwnFiles:
    import hashlib

    families: dict[str, Family] = {}
    tables: dict[str, Table] = {}
    digests: dict[str, str] = {}
    named = tuple(str(path) for path in dict.fromkeys(paths) if is_name(path))
    for name in named:
        if name not in shipped["family"]:
            message = f"--family {name}: neither one of the families that ckconv formats lists, nor a .toml file"
            raise UsageError("usage.flag", message)
        digests[name] = hashlib.sha256((FOLDER / f"{name}.toml").read_bytes()).hexdigest()
    for path in (path for path in dict.fromkeys(paths) if not is_name(path)):
        name, table = path.stem, read_file(path)
        if not re.fullmatch(_NAME, name):
            raise fault(path, "a family is called what its file is: letters, digits, '_', '-' and '.'")
        files = [file for file in files_of(path) if file.parent != FOLDER]
        contents = tuple((file, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files)
        family = _loaded(path, contents)
        parents, over = listed(table.get("extends", [])), listed(table.get("gguf", {}).get("over", []))
        for other, other_table in tables.items():
            for claim in _claims(path, name, table, other, other_table):
                raise fault(path, f"{claim}, and so does {families[other].path}")
        claimed = {*shipped["family"].get(name, ())}
        for section, key in (("huggingface", "model_type"), ("gguf", "arch")):
            claimed |= {other for word in _words(table, section, key) for other in shipped[key].get(word, ())}
        changed = {parent: read_file(FOLDER / f"{parent}.toml") for parent in parents if parent in shipped["family"]}
        others = {other: read_file(FOLDER / f"{other}.toml") for other in sorted(claimed - set(parents))}
        classes = _words(table, "huggingface", "class")
        for other in sorted(others, key=lambda one: classes.isdisjoint(_words(others[one], "huggingface", "class"))):
            other_table = {**others[other], "gguf": {}} if other in over else others[other]
            for claim in _claims(path, name, table, other, other_table, changed.values()):
                section, _, key = claim.partition(":")[0].partition(".")
                same = [
                    (parent, base[section]["match"])
                    for parent, base in changed.items()
                    if "match" in base.get(section, {}) and _words(table, section, key) & _words(base, section, key)
                ]
                changes = f'extends = "{other}" changes that one'
                if same and "match" not in table.get(section, {}):
                    changes = f'match = "{same[0][1]}" beside it claims what {same[0][0]} does, no more'
                raise fault(path, f"{claim}, as the shipped family {other} does: {changes}")
        families[name], tables[name] = family, table
        digests |= {file.name: digest for file, digest in contents}
    return OwnFiles(families, tables, digests, named)


@lru_cache(maxsize=32)
def _loaded(path: Path, contents: tuple[tuple[Path, str], ...]) -> Family:
    """Family of a file with these contents, cached."""
    family = load(path)
    check_family(family)
    return family


def _claims(
    path: Path, name: str, table: Table, other: str, other_table: Table, changed: Collection[Table] = ()
) -> Iterator[str]:
    """Names that two families both claim.

    Args:
        changed: shipped families that the file extends: under their match it claims what they do.
    """
    if name == other:
        yield f"the file is called {name}"
    match = table.get("huggingface", {}).get("match")
    extended = [one for one in changed if match and match == one.get("huggingface", {}).get("match")]
    allowed = {word for one in extended for word in _words(one, "huggingface", "model_type")}
    for word in _words(table, "huggingface", "model_type") & _words(other_table, "huggingface", "model_type") - allowed:
        yield f"huggingface.model_type: it claims {word!r}"
    shared = _words(table, "gguf", "arch") & _words(other_table, "gguf", "arch")
    if shared and both_hold(path, table["gguf"].get("match", "true"), other_table["gguf"].get("match", "true")):
        yield f"gguf.arch: it claims {min(shared)!r} under a match that holds for the same files"


def _words(table: Table, section: str, key: str) -> set[str]:
    return set(listed(table.get(section, {}).get(key, [])))


def both_hold(path: Path, *conditions: Any) -> bool:
    """Whether some metadata satisfies both conditions."""
    keys = sorted({found[1] for text in conditions for found in re.findall(_HAS, str(text))})
    if len(keys) > _MOST_KEYS:
        return True
    parsed = [parse(str(text).lower() if isinstance(text, bool) else str(text)) for text in conditions]
    for truths in product((False, True), repeat=len(keys)):
        there = dict(zip(keys, truths, strict=True))
        try:
            if all(one.value({"has": lambda key, there=there: there.get(key, False)}) for one in parsed):
                return True
        except ExpressionError as error:
            raise fault(path, f"gguf.match: {error}; it asks for has('KEY') only") from None
    return False


# -- Families known to ckconv, shipped and of the user, read on demand -------------------------------------------------

_SUFFIX = ".toml"


#: What every shipped file says that it is: words of ``general.architecture``, ``model_type`` and ``architectures``, and
#: the bump engines that load it, each with the families that say so; ``scripts/record_modules.py`` writes it.
INDEX = FOLDER / "index.json"

#: Words of the index -> the section of a family file that has them.
_SECTIONS = {"arch": "gguf", "model_type": "huggingface", "class": "huggingface"}


def checksum_of_files() -> int:
    """CRC-32 of all shipped files and their names."""
    from zlib import crc32

    return crc32("\0".join(text for file in _files().items() for text in file).encode())


@cache
def _files() -> dict[str, str]:
    found = {}
    with os.scandir(FOLDER) as entries:  # of many files: paths and layers of text take longer than reading them
        names = sorted(entry.name for entry in entries if entry.name.endswith(_SUFFIX))
    for name in names:
        with open(f"{FOLDER}/{name}", "rb", buffering=0) as file:
            found[name.removesuffix(_SUFFIX)] = str(file.read(), "utf-8")
    return found


@cache
def _index() -> Index:
    found: Index = json.loads(INDEX.read_bytes())
    return found


def index_of_files() -> Index:
    """Make the index of families; fragments without a class are left out."""
    families = {name: load(FOLDER / f"{name}{_SUFFIX}") for name, text in _files().items()
                if is_family(text)}  # fmt: skip
    found: dict[str, dict[str, list[str]]] = {"family": {name: [name] for name in families}}
    found |= {key: {} for key in (*_SECTIONS, "engine")}
    for name, family in families.items():
        for key, section in _SECTIONS.items():
            for word in listed(read_file(family.path).get(section, {}).get(key, [])):
                found[key].setdefault(word, []).append(name)
        for engine in family.engines:
            if _has_templates(family, engine):
                found["engine"].setdefault(engine, []).append(name)
    return {key: dict(sorted(words.items())) for key, words in found.items()}


def _own_table(name: str) -> dict[str, Any]:
    """Table of the family's file alone, without inherited rows."""
    own = own_files().tables
    return own[name] if name in own else read_file(FOLDER / f"{name}{_SUFFIX}")


def _naming(word: str, key: str) -> Iterator[str]:
    """Families whose file has this word under a key, a user's own first."""
    own = own_files().tables
    yield from (name for name, table in own.items() if word in listed(table.get(_SECTIONS[key], {}).get(key, [])))
    yield from (name for name in _index()[key].get(word, ()) if name not in own)


#: The file that families extend; no family of its own.
_COMMON = "decoder"


class Catalog(Mapping[str, Family]):
    """Families by name. Listing them reads no rows."""

    def __init__(self) -> None:
        self._loaded: dict[str, Family] = {}

    def __getitem__(self, name: str) -> Family:
        own = own_files().families
        if name in own:
            return own[name]
        if name not in self._loaded:
            if name not in _index()["family"]:
                raise KeyError(name)
            self._loaded[name] = load(FOLDER / f"{name}{_SUFFIX}")
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in _index()["family"] or name in own_files().families

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*_index()["family"], *own_files().families)))

    def __len__(self) -> int:
        return len(_index()["family"].keys() | own_files().families.keys())


FAMILIES = Catalog()


@contextmanager
def own_families(paths: Sequence[Path]) -> Iterator[None]:
    """Let only these files of a user count; see :func:`own.in_force`."""
    with in_force(paths, _index() if paths else {}):
        yield


def text_of(name: str) -> str | None:
    """A shipped family's file; ``None`` where there is none."""
    return _files()[name] if name in _index()["family"] else None


def families_of_gguf(architecture: str) -> list[Family]:
    """Families of a ``general.architecture``, dense and mixtures."""
    return [FAMILIES[name] for name in _naming(architecture, "arch")]


def family_of_gguf(architecture: str, has: Callable[[str], bool]) -> Family | None:
    """The family of a GGUF.

    Args:
        has: the metadata has this key, after the architecture's prefix, and it says something; behind ``=``: there is a
            tensor of this name; behind ``!``: the key says false.
    """
    named = _named(architecture, "arch")
    if named is not None:
        return named
    for name in _naming(architecture, "arch"):
        condition = _own_table(name)["gguf"].get("match")
        if condition is None or parse(condition).value({"has": has}):
            return FAMILIES[name]
    return None


def _named(word: str, key: str) -> Family | None:
    """Shipped family that a user names: with this word, or the only one."""
    own = own_files()
    fitting = [name for name in own.named if word in listed(_own_table(name).get(_SECTIONS[key], {}).get(key, []))]
    alone = own.named if len(own.named) == 1 and not own.families else ()
    return next((FAMILIES[name] for name in (*fitting, *alone)), None)


def family_in_gguf(name: str) -> str:
    """Family that a GGUF of this family reads as: Mistral's as a Llama."""
    family = FAMILIES[name]
    if _is_readable(family):
        return name
    base = listed(_own_table(name).get("extends", []))
    others = sorted(families_of_gguf(family.gguf), key=lambda one: one.name not in base)
    return next((one.name for one in others if _is_readable(one) and one.experts == family.experts), name)


def alike_in_gguf(family: Family) -> list[str]:
    """Families whose GGUFs are those of this one, which stands first."""
    return [family.name, *(name for name in FAMILIES if name != family.name == family_in_gguf(name))]


def rows_of_head(index: TensorIndex) -> Collection[str]:
    """Tensors of a checkpoint that are rows of its own head or embedding."""
    if index.config is None or index.metadata_kind is not MetadataKind.DOCUMENT:
        return ()
    return FAMILIES[index.config.family].in_huggingface.embeddings.keys()


def written_as(family: Family, engine: str) -> str:
    """Family whose bump layout is the same; empty for the family itself."""
    row = family.engines.get(engine)
    return row.written_as if row else ""


def _is_readable(family: Family) -> bool:
    """Whether some GGUFs read as this family."""
    condition = family.in_gguf.condition
    if condition is None:
        return True
    keys = list(dict.fromkeys(condition.probed_keys))
    files = (dict(zip(keys, there, strict=True)) for there in product((True, False), repeat=len(keys)))
    return any(condition.value({"has": file.__getitem__}) for file in files)


def families_of_engine(engine: str) -> list[Family]:
    """The families that an engine has templates for; no other file is read."""
    named = dict.fromkeys((*_index()["engine"].get(engine, ()), *own_files().families))
    return [family for family in map(FAMILIES.__getitem__, named) if _has_templates(family, engine)]


def _has_templates(family: Family, engine: str) -> bool:
    row = family.engines.get(engine)
    return row is not None and not row.absent and not row.written_as


def family_without_name(engine: str, present: Collection[str]) -> str:
    """The family for which a bump file is taken that names none.

    Args:
        present: canonical patterns of the file's tensors.
    """
    taken = [family for family in families_of_engine(engine) if family.engines[engine].unnamed]
    tensors = {family.name: used(family, engine) for family in taken}
    return max(tensors, key=lambda name: (len(tensors[name] & set(present)), -len(tensors[name] - set(present))))


def family_of_model_type(model_type: str, document: Mapping[str, Any] | None = None) -> Family | None:
    """Family of a ``config.json``, or by the family name of a bump file.

    Args:
        document: the keys of the file, for a ``model_type`` of several families (dense models and mixtures); one of
            an empty file without it.
    """
    values = defaultdict(lambda: None, {**(document or {}), "architectures": classes_of(document or {})})
    named = _named(model_type, "model_type") if document is not None else None
    if named is not None:
        return named
    for name in _naming(model_type, "model_type"):
        condition = _own_table(name)["huggingface"].get("match")
        with suppress(ExpressionError):  # a key that tells families apart may hold anything
            if condition is None or parse(condition).value(values):
                return FAMILIES[name]
    return FAMILIES.get(model_type)


#: Parameters that follow from the tensors' shapes.
SIZES = frozenset({"layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocabulary", "experts"})


def layers_behind(index: TensorIndex) -> dict[str, Tensor]:
    """Directory of sentence-transformers -> linear layer behind the model."""
    modules = FAMILIES[index.config.family].in_huggingface.modules if index.config else {}
    return {folder: tensor for name, folder in modules.items() if (tensor := index.tensors.get(name)) is not None}


def families_of_model_type(model_type: str) -> list[Family]:
    """Every family of a ``model_type``, whatever else tells them apart."""
    return [FAMILIES[name] for name in _naming(model_type, "model_type")]


def family_of_class(document: Mapping[str, Any]) -> Family | None:
    """Only family with a class in ``architectures``: a renamed type (Kimi K2).

    A ``model_type`` that families claim is theirs: where no condition holds, it is another model of that type.
    """
    if next(_naming(str(document.get("model_type", "")), "model_type"), None) is not None:
        return None
    named = document.get("architectures")
    classes = named if isinstance(named, list) and len(named) == 1 and isinstance(named[0], str) else []
    values = defaultdict(lambda: None, document)
    found = []
    for name in (family for word in classes for family in _naming(word, "class")):
        condition = _own_table(name)["huggingface"].get("match")
        with suppress(ExpressionError):
            if condition is None or parse(condition).value(values):
                found.append(name)
    return FAMILIES[found[0]] if len(found) == 1 else None


def asks_target(name: str) -> bool:
    """Whether a family has this class, and reads its model's document."""
    return any(FAMILIES[family].asks_target for family in _naming(name, "class"))


def hyperparameters(architecture: str) -> list[tuple[str, str]]:
    """Parameter and key of all metadata of an architecture, unprefixed.

    Of one that no family has, what every decoder has.
    """
    families = families_of_gguf(architecture) or [load(FOLDER / f"{_COMMON}.toml")]
    return [
        (name, cell.key)
        for family in families
        for name, row in family.parameters.items()
        for cell in row.key_cells("gguf")
    ]


# -- Programs that know an architecture which ckconv does not know -----------------------------------------------------


@cache
def _names() -> dict[str, frozenset[str]]:
    """Table of ``other_programs/architectures.toml`` -> its words."""
    table = table_of(FOLDER / "other_programs" / "architectures.toml")
    return {name: frozenset(words.split()) for name, words in table.items()}


def known_by(architecture: str, classes: Iterable[str] = ()) -> str:
    """Clause on programs: ``llama.cpp and transformers know it``.

    Args:
        architecture: ``general.architecture`` or ``model_type``.
        classes: ``architectures`` of ``config.json``.
    """
    names = _names()
    engines = [
        *(["llama.cpp"] if architecture in names["gguf"] or not names["classes"].isdisjoint(classes) else []),
        *(["mlx-lm"] if architecture in names["mlx_lm"] else []),
    ]
    transformers = architecture in names["transformers"]
    if not engines:
        return f"no engine here knows it, {'transformers does' if transformers else 'nor does transformers'}"
    knowing = [*engines, *(["transformers"] if transformers else [])]
    *others, last = knowing
    return f"{', '.join(others)} and {last} know it" if others else f"{last} knows it"


def classes_of(document: Mapping[str, Any]) -> list[str]:
    """Class names in ``config.json``."""
    named = document.get("architectures")
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []


#: Classes that draft tokens for another model: those of llama.cpp's ``conversion/``, of SpecForge (Domino, P-EAGLE) and
#: SGLang (EAGLE), and architectures of GGUFs.
_DRAFTERS = frozenset({"eagle3", "dflash", "dspark"})
_WITHIN_DRAFTERS = ("Eagle3", "DFlash", "DSpark")
_AT_END_OF_DRAFTERS = ("AssistantForCausalLM", "AssistantModel", "DraftModel", "ForCausalLMEagle", "-assistant")

#: Keys that say of what size the hidden states are which a drafter takes from its model.
TAKEN = ("target_hidden_size", "backbone_hidden_size")


def without_rules(drafter: str) -> str:
    """Clause on why ckconv lacks a drafter that llama.cpp's converter knows."""
    return ": nobody has written its file yet" if "deepseekv4" in drafter.lower() else ""


def drafter_of(document: Mapping[str, Any], architecture: str = "") -> str:
    """Class, or architecture, of a speculative drafter; empty for a model."""
    for name in (*classes_of(document), architecture):
        if name in _DRAFTERS or name.endswith(_AT_END_OF_DRAFTERS) or any(it in name for it in _WITHIN_DRAFTERS):
            return name
    return ""


def drafts_for(document: Mapping[str, Any], architecture: str = "") -> str:
    """Words about a speculative drafter and its model; empty for a model."""
    drafter = drafter_of(document, architecture)
    target = within(document, "speculators_config", "verifier", "name_or_path")
    size = next((document[key] for key in TAKEN if isinstance(document.get(key), int)), None)
    layers = document.get("num_target_layers")
    whose = f"a model of {layers:,} layers" if isinstance(layers, int) else "another model"
    whose = f"a model whose hidden size is {size:,}" if size else whose
    whose = quoted(target) if isinstance(target, str) else whose
    return f"it drafts tokens for {whose} ({drafter})" if drafter else ""


def llama_cpp_has(what: str, names: Iterable[str]) -> str:
    """Clause on ``towers`` of classes, or ``projectors``, of llama.cpp's."""
    return "; llama.cpp does" if not _names()[what].isdisjoint(names) else ""


#: The fields that the size of a head follows from.
HEAD_SIZE = ("head_dim", "hidden_size", "num_heads")

_PARAMETER_OF = {field: name for name, field in FIELD_OF.items()}


# -- Source keys of a field, for messages that name them ---------------------------------------------------------------


def family_of(config: ModelConfig) -> Family | None:
    """Family file of a model, by its own ``model_type`` or its family."""
    family = FAMILIES.get(config.family)
    if family is not None and config.model_type in family.in_huggingface.names:
        return family
    return family_of_model_type(config.model_type) or family


def document_words(family: Family, field: str) -> list[str]:
    """Keys of a field in a family's configuration."""
    parameter = family.parameters.get(_PARAMETER_OF.get(field, field))
    cells = parameter.key_cells("hf") if parameter else ()
    return [cell.key for cell in cells if not cell.of_rope and not cell.unread]


def written_words(family: Family, field: str) -> list[str]:
    """Keys that the family's class itself uses, without aliases."""
    parameter = family.parameters.get(_PARAMETER_OF.get(field, field))
    cells = parameter.key_cells("hf") if parameter else ()
    own = [cell.key for cell in cells if not cell.of_rope and not cell.alias and not cell.unread]
    return own or document_words(family, field)


def gguf_words(family: Family, field: str) -> list[str]:
    """Keys of a field in a GGUF."""
    parameter = family.parameters.get(_PARAMETER_OF.get(field, field))
    return [full_key(family.gguf, cell.key) for cell in parameter.key_cells("gguf")] if parameter else []


def window_words(config: ModelConfig) -> str:
    """Keys that make layers slide."""
    family = family_of(config) if config.raw else None
    switched = family is not None and "windowed" in family.parameters
    return "sliding_window, use_sliding_window, max_window_layers, layer_types" if switched else "sliding_window"


def bracketed(config: ModelConfig, *fields: str, format: str = "") -> str:
    """`` (num_attention_heads, head_dim)``; empty without a document.

    Args:
        fields: of the configuration, or parameters; ``family`` is what says which class it is of.
    """
    names = dict.fromkeys(name for field in fields for name in field_keys(config, field, format))
    return f" ({', '.join(names)})" if names else ""


def field_keys(config: ModelConfig, field: str, format: str) -> list[str]:
    """Keys of a field in the source."""
    family = family_of(config)
    if family is None or (format == "gguf" and field == "family"):
        return []
    if format == "gguf":
        return gguf_words(family, field)
    if not config.raw:
        return []
    own = {"family": ["model_type"], "rope_scaling": [*TABLES_OF_ROPE]}
    return own.get(field) or document_words(family, field)


def of_class(config: ModelConfig | None) -> str:
    """`` of a llama (model_type)``: class behind a sentence, if named."""
    return f" of {an(config.model_type)} (model_type)" if config is not None and config.raw else ""


def of_source(config: ModelConfig | None, format: str, pattern: str) -> str:
    """:func:`of_class`, with the keys that say which layers have a tensor."""
    if config is None:
        return ""
    if format != "gguf":
        family = family_of(config) if config.raw else None
        keys = _of_layers(family, format, pattern) if family else []
        return of_class(config).replace("(model_type", ", ".join(["(model_type", *keys]))
    family = FAMILIES[config.family]
    others = [other for other in families_of_gguf(family.gguf) if pattern in names_of(other, "gguf").stored]
    keys = [key for other in others if other.in_gguf.condition for key in other.in_gguf.condition.probed_keys]
    of_file = (key[1:] if key.startswith("=") else full_key(family.gguf, key) for key in keys)  # "=" names a tensor
    keys = [*of_file, *_of_layers(family, format, pattern)]
    return f" of {an(family.name)} ({', '.join(dict.fromkeys(keys))})" if keys else ""


def _of_layers(family: Family, format: str, pattern: str) -> list[str]:
    """Keys that say which layers have a tensor, where not all have it."""
    rule = names_of(family, format if format in ("gguf", "mlx") else "hf").stored.get(pattern)
    return _keys_of(family, rule.parts[0].row, format) if rule else []


def _keys_of(family: Family, row: TensorRow, format: str, *switches: Expression | None) -> list[str]:
    """Keys that say which layers have the tensors of a row.

    Args:
        switches: expressions that say whether any has.
    """
    fields = sorted({name for kind in row.layers.names for name in family.layers[kind].names}) if row.layers else []
    fields += sorted({name for switch in switches if switch is not None for name in switch.names} - {*fields})
    words = gguf_words if format == "gguf" else document_words
    return [key for name in fields for key in words(family, name)]


def layer_keys(config: ModelConfig, pattern: str, format: str) -> list[str]:
    """Keys that say whether, and in which layers, a model has a tensor."""
    family = family_of(config)
    rows = family.tensors.values() if family else ()
    row = next((row for row in rows if pattern.startswith(f"{row.name.replace('L.', 'layers.{n}.', 1)}.")), None)
    if family is None or row is None or not (config.raw or format == "gguf"):
        return []
    switches = (row.when, row.bias if pattern.endswith(".bias") else None)
    return list(dict.fromkeys(_keys_of(family, row, format, *switches)))


def tensor_keys(config: ModelConfig, *, format: str) -> str:
    """The keys that say which tensors a model has, in brackets."""
    family = family_of(config)
    experts = ("num_experts",) if family is not None and family.experts else ()
    return bracketed(config, "num_layers", *experts, "family", format=format)


def tie_word(config: ModelConfig) -> str:
    """The key that says whether the head is the embedding, or empty."""
    family = family_of(config)
    row = family.parameters.get("tied") if family is not None else None
    words = document_words(family, "tied") if family is not None else []
    return words[0] if words else "" if row is not None and row.value is not None else "tie_word_embeddings"


def bracketed_of(config: ModelConfig, format: str = "") -> Callable[..., str]:
    """:func:`bracketed` of parameters of family files; ``family`` is none."""
    return lambda *names: bracketed(config, *(FIELD_OF.get(name, name) for name in names), format=format)


def without_aids(config: ModelConfig) -> ModelConfig:
    """Configuration without aids to compute others, and neutral values."""
    family = family_of(config)
    rows = family.parameters if family else {}
    own = {
        name: it
        for name, it in config.own.items()
        if name not in rows or not (rows[name].aid or (rows[name].optional and it in rows[name].neutral))
    }
    return replace(config, own=own)


def without_noted(config: ModelConfig) -> ModelConfig:
    """Configuration without scaling keys that a note covers."""
    family = family_of(config)
    rows = family.parameters if family else {}
    own = {name: it for name, it in config.own.items() if name not in rows or not rows[name].folded}
    config = replace(config, own=own)
    noted = family.document.rope.noted if family else ()
    if not noted or not config.rope_scaling:
        return config
    return replace(config, rope_scaling={key: it for key, it in config.rope_scaling.items() if key not in noted})


def read_otherwise(made: ModelConfig, config: ModelConfig, *, of: str, factors: bool) -> list[str]:
    """Differences between a configuration and what keys made of it say.

    Args:
        of: format of the source, whose keys are named.
        factors: a tensor has what RoPE is scaled by.
    """
    stated, reread = (replace(without_aids(without_noted(one)), context_length=0) for one in (config, made))
    worded = worded_fields(config, factors=factors)
    found = dict[str, tuple[object, object]]()
    for name, (own, other) in config_differences(stated, reread, same_words=False, worded=(worded, worded)).items():
        if isinstance(own, dict) and isinstance(other, dict):
            keys = [key for key in own | other if own.get(key) != other.get(key)]
            found |= {f"{name}: {key}": (own.get(key), other.get(key)) for key in keys}
        else:
            found[name] = own, other
    return [f"{name}{_stated(config, name, of)} is {a!r}, and would be read as {b!r}" for name, (a, b) in found.items()]


def _stated(config: ModelConfig, field: str, format: str) -> str:
    """:func:`bracketed`, with keys of RoPE's tables."""
    family = family_of(config)
    row = family.parameters.get(_PARAMETER_OF.get(field, field)) if family else None
    if format != "gguf" and row is not None and config.raw and not bracketed(config, field):
        return f" ({', '.join(cell.key for cell in row.key_cells('hf'))})" if row.key_cells("hf") else ""
    return bracketed(config, field, format=format)


def stated_in(config: ModelConfig, message: str, format: str) -> str:
    """Source keys behind a message about keys of a GGUF."""
    family = family_of(config)
    names = [
        row.name
        for row in (family.parameters.values() if family else ())
        if any(f"{family.gguf}.{cell.key}" in message for cell in row.key_cells("gguf") if family)
    ]
    return ", ".join(_stated(config, name, format)[2:-1] or name.removeprefix("rope_") for name in names)


def copied_by(format: str) -> str:
    """Flag that copies a model, as a way out."""
    return f"--to {format} copies it as it is" if format in ("gguf", "safetensors", "mlx") else ""
