"""Paths of the modules of every family, for Hugging Face and MLX.

An adapter that is given without its base names no family: every one is asked for its paths. So that this does not take
as long as reading them all, ``modules.json`` has the answers of the shipped ones (``scripts/record_modules.py``).
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from ckconv.core.late import NamedTuple
from ckconv.core.tensors import PARTS, Name, spellings
from ckconv.families.catalog import FAMILIES, checksum_of_files, own_files
from ckconv.families.names import HF, MLX, NESTED_PATHS, Stored, fusion_names, names_of
from ckconv.families.schema import FAMILIES_KEPT, MEMORY, Family
from ckconv.families.sizes import has_transposed

INDEX = Path(__file__).with_suffix(".json")

_WEIGHT = ".weight"


class Rule(NamedTuple):
    """Canonical module of a family at a path.

    Attributes:
        module: canonical pattern.
        whole: an adapter changes it as one: it is one matrix, several side by side, or those of a head after one
            another.
        stacked: the path is that of one of many, as an expert's.
        in_order: rows of an adapter are those of one part after the other.
    """

    module: str
    whole: bool
    stacked: bool
    in_order: bool


class Modules(NamedTuple):
    """All paths of some families.

    Attributes:
        stored: format -> pattern of a path -> the rules there, and the families that have each.
        written: format -> pattern of a module -> its paths, and the families that call it so.
        transposed: the families whose matrices are stored ``[in, out]``.
    """

    stored: Mapping[str, Mapping[str, list[tuple[Rule, frozenset[str]]]]]
    written: Mapping[str, Mapping[str, list[tuple[str, frozenset[str]]]]]
    transposed: frozenset[str]


def rules_at(path: str) -> dict[str, tuple[Name, Rule]]:
    """Family -> rule for a module's path, and the parts of the path."""
    found: dict[str, tuple[Name, Rule]] = {}
    for modules in _in_force():
        for format in (HF, MLX):
            for prefix, instead in (("", ""), *NESTED_PATHS):
                spelled = f"{instead}{path.removeprefix(prefix)}{_WEIGHT}"
                for name in spellings(spelled) if path.startswith(prefix) else ():
                    for rule, families in modules.stored[format].get(name.pattern.removesuffix(_WEIGHT), ()):
                        for family in families - found.keys():
                            found[family] = name, rule
    return found


def paths_of(module: str, format: str) -> dict[str, str]:
    """Family -> the path of a module, patterns both, in a format."""
    return {
        family: path
        for modules in _in_force()
        for path, families in modules.written[format].get(module, ())
        for family in families
    }


def transposing() -> frozenset[str]:
    """The families whose matrices Hugging Face stores ``[in, out]``."""
    return frozenset().union(*(modules.transposed for modules in _in_force()))


def _in_force() -> list[Modules]:
    own = own_files().families
    if not own:
        return [_shipped()]
    return [_without(_shipped(), own.keys()), modules_of(own.values())]


def _without(modules: Modules, names: Iterable[str]) -> Modules:
    gone = frozenset(names)
    stored, written = (
        {
            format: {key: [(one, families - gone) for one, families in rows] for key, rows in table.items()}
            for format, table in tables.items()
        }
        for tables in (modules.stored, modules.written)
    )
    return Modules(stored, written, modules.transposed - gone)  # type: ignore[arg-type]


@cache
def _shipped() -> Modules:
    document = json.loads(INDEX.read_bytes())
    if document["checksum"] != checksum_of_files():  # a family file was changed since
        return modules_of(FAMILIES[name] for name in FAMILIES)
    groups = [frozenset(group) for group in document["groups"]]
    stored = {
        format: {
            path: [(Rule(module, *map(bool, flags)), groups[group]) for module, *flags, group in rows]
            for path, rows in table.items()
        }
        for format, table in document["stored"].items()
    }
    written = {
        format: {module: [(path, groups[group]) for path, group in rows] for module, rows in table.items()}
        for format, table in document["written"].items()
    }
    return Modules(stored, written, groups[document["transposed"]])


def modules_of(families: Iterable[Family]) -> Modules:
    """The modules of these families, from their files."""
    stored: dict[str, dict[str, dict[Rule, set[str]]]] = {}
    written: dict[str, dict[str, dict[str, set[str]]]] = {}
    turned = set()
    for family in families:
        turned |= {family.name} if has_transposed(family) else set()
        for format in (HF, MLX):
            rules, paths = (tables.setdefault(format, {}) for tables in (stored, written))
            names = names_of(family, format)
            for pattern, found in names.stored.items():
                if pattern.endswith(_WEIGHT):
                    rule = rule_of(found)
                    if len({one.canonical for one in names.choices.get(pattern, ())}) > 1:  # a base says which
                        rule = rule._replace(whole=False)
                    path = pattern.removesuffix(_WEIGHT)
                    rules.setdefault(path, defaultdict(set))[rule].add(family.name)  # type: ignore[index]
            for module, path in _paths(family, format).items():
                paths.setdefault(module, defaultdict(set))[path].add(family.name)  # type: ignore[index]
    return Modules(_frozen(stored), _frozen(written), frozenset(turned))


def _frozen(tables: Mapping[str, Mapping[str, Mapping[Any, set[str]]]]) -> dict[str, dict[str, list[Any]]]:
    return {
        format: {key: [(one, frozenset(families)) for one, families in rows.items()] for key, rows in table.items()}
        for format, table in tables.items()
    }


def has_module(found: Stored) -> bool:
    """Whether an adapter can change the module as a single matrix.

    And its class does not multiply what comes out of it, which other formats have in the matrix.
    """
    if any(part.by is not None for part in found.parts):
        return False
    modules = tuple(name.removesuffix(_WEIGHT) for name in found.names)
    return found.side_by_side or modules == PARTS.get(found.canonical.removesuffix(_WEIGHT))


def rule_of(found: Stored) -> Rule:
    """The rule for a stored matrix."""
    stacked = bool(found.parts[0].stack)
    return Rule(found.canonical.removesuffix(_WEIGHT), has_module(found), stacked, found.side_by_side)


@lru_cache(maxsize=FAMILIES_KEPT)
def _paths(family: Family, format: str) -> dict[str, str]:
    """Canonical module -> path, as patterns, fused modules included."""
    names = names_of(family, format)
    wholes = {name: found for whole in PARTS for name, found in fusion_names(family, format, whole).items()}
    paths = {name: found.pattern for name, found in names.written.items() if len(found.parts) == 1}
    fused = (*names.always_fused, *wholes.values())
    paths |= {found.canonical: found.pattern for found in fused if has_module(found)}
    in_memory = {
        found.canonical: found.pattern
        # of several prefixes the first is written
        for found in reversed([*names.stored.values(), *itertools.chain(*names.choices.values())])
        for cell in found.parts[0].row.cells[format]
        if cell.memory and found.pattern.endswith(f"{cell.name[1:]}{_WEIGHT}")
    }
    paths |= in_memory if format == HF else {}
    for root, layer in family.prefixes.get(MEMORY, ()) if format == HF else ():
        stored_root, stored_layer = family.prefixes[HF][0]
        paths = {
            ours: layer + theirs.removeprefix(stored_layer)
            if theirs.startswith(stored_layer)
            else root + theirs.removeprefix(stored_root)
            for ours, theirs in paths.items()
            if theirs.startswith((stored_layer, stored_root))
        }
    return {
        ours.removesuffix(_WEIGHT): theirs.removesuffix(_WEIGHT)
        for ours, theirs in paths.items()
        if theirs.endswith(_WEIGHT)
    }


def document_of(modules: Modules) -> dict[str, Any]:
    """Contents of ``modules.json`` for these modules."""
    groups: dict[frozenset[str], int] = {}

    def number(families: frozenset[str]) -> int:
        return groups.setdefault(families, len(groups))

    stored = {
        format: {
            path: [[rule.module, *map(int, rule[1:]), number(families)] for rule, families in table[path]]
            for path in sorted(table)
        }
        for format, table in modules.stored.items()
    }
    written = {
        format: {module: [[path, number(families)] for path, families in table[module]] for module in sorted(table)}
        for format, table in modules.written.items()
    }
    transposed = number(modules.transposed)
    return {
        "checksum": checksum_of_files(),
        "groups": [sorted(group) for group in groups],
        "transposed": transposed,
        "stored": stored,
        "written": written,
    }
