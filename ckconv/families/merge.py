"""Family files as TOML tables, merged with the files they extend."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from ckconv.errors import InputError
from ckconv.families.axes import AxesError, expanded
from ckconv.families.form import misformed

#: Where the shipped files lie.
FOLDER = Path(__file__).parent

#: The longest file that is read; the largest shipped one has 8 kB.
MAX_BYTES = 1 << 16

#: How deep ``extends`` may go.
_MAX_DEPTH = 8
#: How many files one may be made of.
_MAX_FILES = 32

#: What ``extends`` may name.
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)

Table = dict[str, Any]

SECTIONS = frozenset(
    {
        "extends", "without", "gguf", "huggingface", "prefix", "axes", "layers", "stacks", "tensors", "fused",
        "parameters", "defaults", "config", "metadata", "engines",
    }
)  # fmt: skip

#: Fields of a tensor row that are one format's cell.
FORMATS = ("hf", "gguf", "mlx")

#: What every tensor row may say besides its cells.
ROW_FIELDS = frozenset({"axes", "bias", "when", "layers", "spare", "why", *FORMATS})

#: Fields of a parameter that hold one cell or a list of them.
PARAMETER_CELLS = ("hf", "gguf", "bump")


def fault(path: Path, message: str) -> InputError:
    """Error of a family file: key, message, and the line of the key.

    Args:
        message: ``SECTION.KEY: what was found, what was expected``.
    """
    key = message.partition(": ")[0]
    place = _line_of(path, key) if re.fullmatch(r"[a-z]+\.\S+", key) else None
    return InputError("family.file", message, path=path, details=(place,) if place else ())


#: A line of TOML that begins a table, or says a key.
_HEADER, _SAYS = r"\[([^\]]+)\]\s*(#.*)?", r"((?:\"[^\"]*\"|[\w-]+)(?:\.(?:\"[^\"]*\"|[\w-]+))*)\s*="


def _line_of(path: Path, key: str) -> str | None:
    """Find the line of a key: file, number and text.

    An extended file is looked at where the file itself has no such line.
    """
    for file in _extended(path):
        section, best, length = "", "", 0
        for number, line in enumerate(file.read_text("utf-8").split("\n"), 1):
            header, says = re.fullmatch(_HEADER, line.strip()), re.match(_SAYS, line)
            section = header[1].replace('"', "") if header else section
            name = f"{section}.{says[1]}".replace('"', "").removeprefix(".") if says else section if header else ""
            for one in _names(name):
                if len(one) > length and f"{key}.".startswith(f"{one}."):
                    best, length = f"{file.name}, line {number}: {line.strip()[:100]}", len(one)
        if length > len(key.partition(".")[0]):
            return best
    return None


def _names(name: str) -> list[str]:
    """Expand the key of a row; a key that cannot be read stays."""
    try:
        return [*expanded(name)]
    except AxesError:
        return [name]


def _extended(path: Path) -> Iterator[Path]:
    """Readable files of a family: the file, then what it extends."""
    ahead, seen = [path], set[Path]()
    while ahead and len(seen) < _MAX_FILES:
        file = ahead.pop(0)
        if file in seen:
            continue
        seen.add(file)
        with suppress(OSError, ValueError, InputError, AxesError):
            parents = tomllib.loads(file.read_text("utf-8")).get("extends", [])
            yield file
            ahead += [_parent(file, name, FOLDER) for name in ([parents] if isinstance(parents, str) else parents)]


def read_file(path: Path) -> Table:
    """Checked table of a file; shared for shipped files, so read-only."""
    return _shipped(path) if path.parent == FOLDER else _read(path)


@cache
def _shipped(path: Path) -> Table:
    return _read(path)


def _read(path: Path) -> Table:
    """Read one file.

    Raises:
        InputError: ``family.file``, it is no TOML or too long, a section is not known, or a value has another type.
    """
    try:
        if path.exists() and not path.is_file():
            raise fault(path, "is not a regular file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise fault(path, f"a family file has at most {MAX_BYTES:,} bytes")
        table = tomllib.loads(data.decode())
    except OSError as error:
        raise fault(path, error.strerror or str(error)) from None
    except (ValueError, RecursionError) as error:  # of numbers with too many digits tomllib lets int's pass
        raise fault(path, f"no TOML: {error}") from None
    for key in table.keys() - SECTIONS:
        raise fault(path, f"there is no section {key!r} (known: {', '.join(sorted(SECTIONS))})")
    wrong = misformed(table)
    if wrong:
        raise fault(path, wrong)
    return table


def files_of(path: Path) -> list[Path]:
    """The file and all that it extends, in the order in which they are read."""
    read: list[Path] = []
    merged(path, read=read)
    return list(dict.fromkeys(read))


def _parent(path: Path, name: str, folder: Path) -> Path:
    """File that ``extends`` names: beside the file, or a shipped family."""
    for place in (path.parent, folder) if folder in path.parents else (folder, path.parent):
        if _NAME.fullmatch(name) and (place / f"{name}.toml").is_file():
            return place / f"{name}.toml"
    raise fault(path, f"extends {name!r}, and there is no such family")


def merged(path: Path, *, folder: Path = FOLDER, depth: int = 0, read: list[Path] | None = None) -> Table:
    """Merged file with rows of several tensors split, an entry a tensor.

    ``tensors`` maps a canonical name to its fields, each field that a row writes for several tensors with the
    position among them: ``part`` and ``parts``.

    Args:
        read: takes the path of every file that is read.

    Raises:
        InputError: ``family.file``.
    """
    own = dict(read_file(path))
    read = [] if read is None else read
    read.append(path)
    if depth > _MAX_DEPTH or len(read) > _MAX_FILES:
        raise fault(path, "extends forms a circle, or goes too deep")
    parents = own.pop("extends", [])
    result: Table = {}
    for name in [parents] if isinstance(parents, str) else parents:
        inherited = merged(_parent(path, name, folder), folder=folder, depth=depth + 1, read=read)
        inherited.pop("engines", None)  # what was measured for one class says nothing of another
        for style in ("rope", "window", "within", "unknown", "seen"):
            inherited.get("config", {}).pop(style, None)
        inherited.get("metadata", {}).pop("seen", None)
        inherited.pop("huggingface", None)
        inherited.pop("gguf", None)
        _merge(result, inherited)
    _remove(result, own.pop("without", []), path)
    own["tensors"] = _tensors(own.get("tensors", {}), path)
    own["parameters"] = _with_defaults(own.get("parameters", {}), own.pop("defaults", {}), path)
    _merge(result, own)
    for section in ("tensors", "parameters"):
        result[section] = {name: row for name, row in result.get(section, {}).items() if row != "absent"}
    result["layers"] = {kind: text for kind, text in result.get("layers", {}).items() if text != "absent"}
    return result


def _remove(table: Table, patterns: object, path: Path) -> None:
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise fault(path, "without is a list of patterns")
    for pattern in patterns:
        hit = False
        for section in ("tensors", "parameters", "fused"):
            for name in [name for name in table.get(section, {}) if fnmatchcase(name, pattern)]:
                del table[section][name]
                hit = True
        if not hit:
            raise fault(path, f"without {pattern!r}: nothing inherited has that name")


def _with_defaults(rows: Mapping[str, Any], defaults: Mapping[str, Mapping[str, Any]], path: Path) -> Table:
    """Parameter rows with ``default`` from ``[defaults]`` of each library."""
    result = dict(rows)
    for taker, values in defaults.items():
        for name, value in values.items():
            row = result.get(name, {})
            before = row.get("default", {}) if isinstance(row, dict) else None
            if not isinstance(before, dict) or taker in before:
                raise fault(path, f"defaults.{taker}.{name}: parameters.{name} says its value already")
            result[name] = {**row, "default": {**before, taker: value}}
    return result


def _tensors(rows: Mapping[str, Any], path: Path) -> Table:
    """Rows by single canonical names."""
    result: Table = {}
    key = ""
    try:
        for key, row in rows.items():
            names = expanded(key)
            for part, name in enumerate(names):
                entry = row if isinstance(row, str) else _entry(key, row, part, len(names), path)
                result[name] = _merged_row(result.get(name), entry, FORMATS, "name")
    except AxesError as error:
        raise fault(path, f"tensors.{key}: {error}") from None
    return result


def _entry(key: str, row: object, part: int, parts: int, path: Path) -> Table:
    if not isinstance(row, dict):
        raise fault(path, f"tensors.{key}: a table or 'absent' expected")
    for field in row.keys() - ROW_FIELDS:
        raise fault(path, f"tensors.{key}: there is no field {field!r}")
    entry: Table = {}
    for field, value in row.items():
        if field not in FORMATS or value == "absent":
            entry[field] = _picked(value, part, parts)
            continue
        forms = [_form(form, part, parts) for form in (value if isinstance(value, list) else [value])]
        entry[field] = forms if isinstance(value, list) else forms[0]
    if isinstance(entry.get("axes"), str) and parts > 1:
        entry["part"], entry["parts"] = part, parts
    return entry


def _form(value: Any, part: int, parts: int) -> Table:
    """Cell as a table, with its place among tensors of a shared name."""
    cell = {"name": value} if isinstance(value, str) else dict(value)
    name = cell.get("name")
    picked = {field: _picked(item, part, parts) for field, item in cell.items()}
    if isinstance(name, str):
        picked["part"], picked["parts"] = (part, parts) if picked["name"] == name else (0, 1)
    return picked


def _picked(value: Any, part: int, parts: int) -> Any:
    """The part's own text, where a text is written for several tensors."""
    if not isinstance(value, str):
        return value
    found = expanded(value)
    if len(found) == 1:
        return value
    if len(found) != parts:
        raise AxesError(f"{value!r} is written for {len(found)} tensors, the row for {parts}")
    return found[part]


def _merge(into: Table, other: Mapping[str, Any]) -> None:
    _forget(into, other.get("parameters", {}))
    for section, value in other.items():
        if section == "tensors":
            for name, row in value.items():
                into.setdefault(section, {})[name] = _merged_row(into.get(section, {}).get(name), row, FORMATS, "name")
        elif section == "parameters":
            for name, row in value.items():
                before = into.setdefault(section, {}).get(name)
                into[section][name] = _merged_row(before, row, PARAMETER_CELLS, "key")
        elif section in ("config", "metadata"):
            _merge_keys(into.setdefault(section, {}), value)
        elif section in ("prefix", "engines", "axes", "layers", "stacks", "fused"):
            into[section] = {**into.get(section, {}), **value}
        else:
            into[section] = value


def _merge_keys(into: Table, other: Mapping[str, Any]) -> None:
    """Merge roles of keys: the own role replaces an inherited role."""
    groups: dict[str, Table] = {name: other.get(name, {}) for name in ("carried", "modifiers")}
    groups["harmless"] = dict.fromkeys(other.get("harmless", []), True)
    said = {key for group in groups.values() for key in group}
    for name, group in groups.items():
        before = into.get(name, {})
        kept = {key: value for key, value in dict.fromkeys(before, True).items() if key not in said}
        if name == "harmless":
            into[name] = [*kept, *group]
        else:
            into[name] = {key: before[key] for key in kept} | {k: v for k, v in group.items() if v != "absent"}
    for name in (name for name in other if name not in groups):  # in the order of the file
        both = isinstance(other[name], dict) and isinstance(into.get(name), dict)
        table = {**into[name], **other[name]} if both else other[name]
        into[name] = {k: v for k, v in table.items() if v != "absent"} if isinstance(table, dict) else table


def _forget(table: Table, parameters: Mapping[str, Any]) -> None:
    """Remove inherited roles of keys that are parameters now."""
    for format, section in (("hf", "config"), ("gguf", "metadata")):
        cells = [row[format] for row in parameters.values() if isinstance(row, dict) and format in row]
        flat = [cell for item in cells for cell in (item if isinstance(item, list) else [item])]
        keys = [cell if isinstance(cell, str) else cell.get("key", "") for cell in flat if not _unread(cell)]
        heads = {str(key).partition("." if format == "hf" else ":")[0] for key in keys}
        own = table.get(section, {})
        if "harmless" in own:
            own["harmless"] = [key for key in own["harmless"] if key not in heads]
        if "modifiers" in own:
            own["modifiers"] = {key: value for key, value in own["modifiers"].items() if key not in heads}


def _unread(cell: Any) -> bool:
    return isinstance(cell, dict) and bool(cell.get("unread"))


def _merged_row(before: Any, row: Any, cells: tuple[str, ...], word: str) -> Any:
    """Merge a row over an inherited row, field by field, cells too."""
    if not isinstance(row, dict):
        return row
    before = before if isinstance(before, dict) else {}
    result = {**before, **row}
    if "value" in row and "default" not in row:
        result.pop("default", None)
    for field in ("default", "value"):
        if result.get(field) == "absent":
            del result[field]
    for cell in cells:
        old, new = before.get(cell), row.get(cell)
        old, new = ({word: text} if isinstance(text, str) and text != "absent" else text for text in (old, new))
        if isinstance(old, dict) and isinstance(new, dict) and _kind(old) == _kind(new):
            other = "key" in new and new["key"] != old.get("key")  # another key than the one that nobody reads
            result[cell] = {**{k: v for k, v in old.items() if not (other and k == "unread")}, **new}
    return result


#: Fields that make a parameter's cell one of another kind than a key.
_KINDS = ("fixed", "present", "absent", "shape", "tensor", "dropped")


def _kind(cell: Mapping[str, Any]) -> str:
    return next((kind for kind in _KINDS if kind in cell), "")
