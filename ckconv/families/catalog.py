"""Families known to ckconv, shipped and of the user, read on demand."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from ckconv.core.tensors import MetadataKind, TensorIndex
from ckconv.families.expressions import ExpressionError, parse
from ckconv.families.fields import has_section, listed
from ckconv.families.merge import FOLDER, read_file
from ckconv.families.own import Index, in_force, own_files
from ckconv.families.presence import used
from ckconv.families.schema import Family, load

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
                if has_section(text, "huggingface")}  # fmt: skip
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
            tensor of this name.
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


def told_by_architecture(name: str) -> str:
    """Family that a GGUF of this family reads as: Mistral's as a Llama."""
    family = FAMILIES[name]
    if _is_told(family):
        return name
    base = listed(_own_table(name).get("extends", []))
    others = sorted(families_of_gguf(family.gguf), key=lambda one: one.name not in base)
    return next((one.name for one in others if _is_told(one) and one.experts == family.experts), name)


def rows_of_head(index: TensorIndex) -> Collection[str]:
    """Tensors of a checkpoint that are rows of its own head or embedding."""
    if index.config is None or index.metadata_kind is not MetadataKind.DOCUMENT:
        return ()
    return FAMILIES[index.config.family].in_huggingface.embeddings.keys()


def written_as(family: Family, engine: str) -> str:
    """Family whose bump layout is the same; empty for the family itself."""
    row = family.engines.get(engine)
    return row.written_as if row else ""


def _is_told(family: Family) -> bool:
    """Whether some GGUFs read as this family."""
    condition = family.in_gguf.condition
    if condition is None:
        return True
    asked = list(dict.fromkeys(condition.asked))
    files = (dict(zip(asked, there, strict=True)) for there in product((True, False), repeat=len(asked)))
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
    said = defaultdict(lambda: None, document or {})
    named = _named(model_type, "model_type") if document is not None else None
    if named is not None:
        return named
    for name in _naming(model_type, "model_type"):
        condition = _own_table(name)["huggingface"].get("match")
        with suppress(ExpressionError):  # a key that tells families apart may hold anything
            if condition is None or parse(condition).value(said):
                return FAMILIES[name]
    return FAMILIES.get(model_type)


def family_of_class(document: Mapping[str, Any]) -> Family | None:
    """Only family with a class in ``architectures``: a renamed type (Kimi K2)."""
    named = document.get("architectures")
    classes = named if isinstance(named, list) and len(named) == 1 and isinstance(named[0], str) else []
    said = defaultdict(lambda: None, document)
    found = []
    for name in (family for word in classes for family in _naming(word, "class")):
        condition = _own_table(name)["huggingface"].get("match")
        with suppress(ExpressionError):
            if condition is None or parse(condition).value(said):
                found.append(name)
    return FAMILIES[found[0]] if len(found) == 1 else None


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
