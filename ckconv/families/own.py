"""Family files of a user: claims, and calls for which they count.

They count within :func:`in_force`, in the thread that entered it, and nowhere else: two calls in one process do not
see each other's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from ckconv.core.named import NamedTuple
from ckconv.errors import UsageError
from ckconv.families.axes import AxesError
from ckconv.families.expressions import ExpressionError, parse
from ckconv.families.fields import listed
from ckconv.families.merge import FOLDER, Table, fault, files_of, read_file
from ckconv.families.parameters import ParameterError
from ckconv.families.schema import Family, load

#: What a family may be called: reports and messages show it.
_NAME = r"(?a:[A-Za-z0-9][\w.-]{0,63})"

#: Keys that two conditions over the metadata ask for, of which every combination is tried.
_MOST_KEYS = 10

_HAS = r"has\(\s*(['\"])(.*?)\1\s*\)"


#: ``arch``, ``model_type``, ``class``, ``engine`` or ``family`` -> word -> the shipped families that say it.
Index = Mapping[str, Mapping[str, Sequence[str]]]


class OwnFiles(NamedTuple):
    """The files that count.

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
    except (ExpressionError, AxesError, ParameterError) as error:
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
        for other, theirs in tables.items():
            for claim in _claims(path, name, table, other, theirs):
                raise fault(path, f"{claim}, and so does {families[other].path}")
        claimed = {*shipped["family"].get(name, ())}
        for section, key in (("huggingface", "model_type"), ("gguf", "arch")):
            claimed |= {other for word in _words(table, section, key) for other in shipped[key].get(word, ())}
        for other in sorted(claimed - set(parents)):
            theirs = read_file(FOLDER / f"{other}.toml")
            theirs = {**theirs, "gguf": {}} if other in over else theirs
            for claim in _claims(path, name, table, other, theirs):
                changes = f'extends = "{other}" changes that one'
                said = [read_file(FOLDER / f"{p}.toml").get("gguf", {}) for p in parents if p in shipped["family"]]
                same = [
                    gguf["match"]
                    for gguf in said
                    if "match" in gguf and _words(table, "gguf", "arch") & {*listed(gguf["arch"])}
                ]
                if same and "match" not in table.get("gguf", {}):
                    changes = f'match = "{same[0]}" beside it claims what {parents[0]} does, no more'
                raise fault(path, f"{claim}, as the shipped family {other} does: {changes}")
        families[name], tables[name] = family, table
        digests |= {file.name: digest for file, digest in contents}
    return OwnFiles(families, tables, digests, named)


@lru_cache(maxsize=32)
def _loaded(path: Path, contents: tuple[tuple[Path, str], ...]) -> Family:
    """Family of a file with these contents, cached."""
    from ckconv.families.check import check_family

    family = load(path)
    check_family(family)
    return family


def _claims(path: Path, name: str, table: Table, other: str, theirs: Table) -> Iterator[str]:
    """Names that two families both claim."""
    if name == other:
        yield f"the file is called {name}"
    for word in _words(table, "huggingface", "model_type") & _words(theirs, "huggingface", "model_type"):
        yield f"huggingface.model_type: it claims {word!r}"
    shared = _words(table, "gguf", "arch") & _words(theirs, "gguf", "arch")
    if shared and both_hold(path, table["gguf"].get("match", "true"), theirs["gguf"].get("match", "true")):
        yield f"gguf.arch: it claims {min(shared)!r} under a match that holds for the same files"


def _words(table: Table, section: str, key: str) -> set[str]:
    return set(listed(table.get(section, {}).get(key, [])))


def both_hold(path: Path, *conditions: Any) -> bool:
    """Whether some metadata satisfies both conditions."""
    keys = sorted({found[1] for text in conditions for found in re.findall(_HAS, str(text))})
    if len(keys) > _MOST_KEYS:
        return True
    parsed = [parse(str(text).lower() if isinstance(text, bool) else str(text)) for text in conditions]
    for held in product((False, True), repeat=len(keys)):
        there = dict(zip(keys, held, strict=True))
        try:
            if all(one.value({"has": lambda key, there=there: there.get(key, False)}) for one in parsed):
                return True
        except ExpressionError as error:
            raise fault(path, f"gguf.match: {error}; it asks for has('KEY') only") from None
    return False
