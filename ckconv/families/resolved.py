"""Merged rows of a family as text, each with the files that say it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ckconv.families.axes import expanded
from ckconv.families.document import inline, key
from ckconv.families.merge import files_of, merged, read_file

#: Sections whose entries are tables of rows themselves: keys of `config.json` and of metadata.
_NESTED = ("config", "metadata")


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
            yield f"{section} = {inline(_single(value))}"
            continue
        rows = {word: row for word, row in value.items() if not _is_group(section, row)}
        groups = {f"{section}.{word}": row for word, row in value.items() if word not in rows}
        for name, group in {section: rows, **groups}.items():
            if group or name in groups:
                yield from ("", f"[{name}]")
            for word, row in group.items():
                files = sources[f"{name}.{word}"]
                behind = f"  # {' + '.join(files)}" if files != [path.stem] else ""
                yield f"{key(word)} = {inline(_single(row))}{behind}"


def _is_group(section: str, value: Any) -> bool:
    return section in _NESTED and isinstance(value, dict)


def _sources(path: Path) -> Mapping[str, list[str]]:
    """Row -> names of the files that say it, the family's own last."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for file in reversed(files_of(path)):
        for section, value in read_file(file).items():
            for word, row in value.items() if isinstance(value, dict) else ():
                names = [*expanded(word)] if section == "tensors" else [word]
                nested = row if _is_group(section, row) or section == "defaults" else {}
                begun = "parameters" if section == "defaults" else f"{section}.{word}"
                for name in [f"{begun}.{one}" for one in nested] or [f"{section}.{name}" for name in names]:
                    if file.stem not in found[name]:
                        found[name].append(file.stem)
    return found


def _single(value: Any) -> Any:
    """A row without the parts of rows that stand for one tensor each."""
    if isinstance(value, dict):
        return {k: _single(v) for k, v in value.items() if (k, v) not in (("part", 0), ("parts", 1))}
    return [_single(item) for item in value] if isinstance(value, list) else value
