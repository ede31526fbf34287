"""Merged rows of a family as text, each with the files that say it."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ckconv.families.axes import expanded
from ckconv.families.merge import files_of, merged, read_file

#: Sections whose entries are tables of rows themselves: keys of `config.json` and of metadata.
_NESTED = ("config", "metadata")
_BARE = re.compile(r"[\w-]+", re.ASCII)


def resolved(path: Path) -> Iterator[str]:
    """Lines of TOML, a line for each row.

    ``# FILE + FILE`` stands behind each row that another file says, too.

    Raises:
        InputError: ``family.file``, as :func:`merge.merged` has it.
    """
    table = merged(path)
    sources = _sources(path)
    for section, value in table.items():
        if not isinstance(value, dict):
            yield f"{section} = {_toml(value)}"
            continue
        groups = {f"{section}.{key}": group for key, group in value.items() if _is_group(section, group)}
        for name, group in {
            section: {k: v for k, v in value.items() if f"{section}.{k}" not in groups},
            **groups,
        }.items():
            if group or name in groups:
                yield from ("", f"[{name}]")
            for key, row in group.items():
                files = sources[f"{name}.{key}"]
                yield f"{_key(key)} = {_toml(row)}" + (f"  # {' + '.join(files)}" if files != [path.stem] else "")


def _is_group(section: str, value: Any) -> bool:
    return section in _NESTED and isinstance(value, dict)


def _sources(path: Path) -> Mapping[str, list[str]]:
    """Row -> names of the files that say it, the family's own last."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for file in reversed(files_of(path)):
        for section, value in read_file(file).items():
            for key, row in value.items() if isinstance(value, dict) else ():
                names = [*expanded(key)] if section == "tensors" else [key]
                nested = row if _is_group(section, row) or section == "defaults" else {}
                begun = "parameters" if section == "defaults" else f"{section}.{key}"
                for name in [f"{begun}.{one}" for one in nested] or [f"{section}.{name}" for name in names]:
                    if file.stem not in found[name]:
                        found[name].append(file.stem)
    return found


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key)


def _toml(value: Any) -> str:
    """Write a value in one line, without the parts of single tensors."""
    if isinstance(value, dict):
        shown = {k: v for k, v in value.items() if (k, v) not in (("part", 0), ("parts", 1))}
        return "{ " + ", ".join(f"{_key(key)} = {_toml(item)}" for key, item in shown.items()) + " }" if shown else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool | int) else repr(value)
