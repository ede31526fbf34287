"""Family files as TOML tables: form, files that they extend, text."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from ckconv.core.lazy import pattern, table_of
from ckconv.errors import InputError
from ckconv.families.axes import AxesError, expanded
from ckconv.families.expressions import Expression, ExpressionError, parse

# -- Types of all fields of a family file, checked before use ----------------------------------------------------------

#: The longest text: of an expression, a shape, a name or a sentence.
_LONGEST = 500
_BRACES = pattern(r"(?:[^{}]|\{[^{}]+\})*")
#: Whole numbers have 64 bits.
_LARGEST = 1 << 63
#: Tables and lists of constants within others.
_DEEPEST = 4

#: Says what is expected and is not there, with the key below the one that is looked at; ``None`` where all is right.
Form = Callable[[Any], str | None]


def _text(value: Any) -> str | None:
    if not isinstance(value, str):
        return ": a text expected"
    return None if len(value) <= _LONGEST else f": a text of {len(value):,} characters; {_LONGEST} are allowed"


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else ": true or false expected"


def _scalar(value: Any) -> str | None:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int) and abs(value) >= _LARGEST:
        return ": a number of more than 64 bits"
    return None if isinstance(value, bool | int | float) else ": a text, a number, true or false expected"


def _plain(value: Any, depth: int = 0) -> str | None:
    """A constant of a document: no date, nothing in great depth."""
    if isinstance(value, list | dict) and depth == _DEEPEST:
        return ": tables are nested too deep"
    if isinstance(value, list):
        return _each(lambda item: _plain(item, depth + 1), value)
    if isinstance(value, dict):
        return _entries(lambda item: _plain(item, depth + 1), value)
    return _scalar(value)


def _each(form: Form, items: list[Any]) -> str | None:
    return next((f"[{n}]{message}" for n, item in enumerate(items) if (message := form(item))), None)


def _entries(form: Form, table: Mapping[str, Any]) -> str | None:
    return next((f".{key}{message}" for key, value in table.items() if (message := form(value))), None)


def _many(form: Form) -> Form:
    """One, or a list of them."""
    return lambda value: _each(form, value) if isinstance(value, list) else form(value)


def _list(form: Form) -> Form:
    return lambda value: _each(form, value) if isinstance(value, list) else ": a list expected"


def _table_of(form: Form) -> Form:
    return lambda value: _entries(form, value) if isinstance(value, dict) else ": a table expected"


def _or_table(form: Form, fields: Mapping[str, Form]) -> Form:
    """A table of these fields, others not looked at; or what ``form`` says."""
    return lambda value: _fields(fields, value) if isinstance(value, dict) else form(value)


def _table(fields: Mapping[str, Form]) -> Form:
    return _or_table(lambda value: ": a table expected", fields)


def _fields(fields: Mapping[str, Form], table: Mapping[str, Any]) -> str | None:
    known = (key for key in table if key in fields)
    return next((f".{key}{message}" for key in known if (message := fields[key](table[key]))), None)


def _shape(value: Any) -> str | None:
    right = isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and type(value[1]) is int
    return None if right and 0 <= value[1] < 8 else ": a tensor's name and an axis expected"


def _name(value: Any) -> str | None:
    """A tensor's: braces hold one letter of an axis, ``n``, or a list."""
    return _text(value) or (None if _BRACES.fullmatch(value) else ": braces that are not closed")


def _cell(value: Any) -> str | None:
    if isinstance(value, dict) and "dropped" in value and "name" not in value:
        return ": 'dropped' without a name"
    return _or_table(_name, _CELL_FIELDS)(value)


def _layer(value: Any) -> str | None:
    if isinstance(value, dict) and "{n}" not in str(value.get("layer")):
        return ".layer: a name with {n} expected"
    return _table({"root": _text, "layer": _name, "as": _text})(value)


_CELL_FIELDS: dict[str, Form] = {
    **dict.fromkeys(("axes", "dropped", "key"), _text),
    "value": _many(_scalar),
    "map": _text,
    "instead": _text,
    "name": _name,
    "as": _text,
    "by": _scalar,
}
_CELL = _many(_cell)

#: What every tensor row may say; a cell of a parameter; a parameter; an engine.
ROW_FIELDS: dict[str, Form] = {
    "axes": _text,
    **dict.fromkeys(("bias", "when", "layers", "spare"), _scalar),
    **dict.fromkeys(("hf", "gguf", "mlx"), _CELL),
}
KEY_FIELDS: dict[str, Form] = {
    **dict.fromkeys(("key", "only", "present", "absent", "tensor", "else"), _text),
    **dict.fromkeys(("read", "write", "when", "fixed"), _scalar),
    **dict.fromkeys(("alias", "instead", "folded"), _flag),
    "shape": _shape,
    "map": _table_of(_scalar),
}
PARAMETER_FIELDS: dict[str, Form] = {
    **dict.fromkeys(("hf", "gguf", "bump"), _many(_or_table(_text, KEY_FIELDS))),
    "default": _or_table(_scalar, dict.fromkeys(("transformers", "mlx_lm", "llama_cpp"), _scalar)),
    "value": _scalar,
    **dict.fromkeys(("optional", "aid"), _flag),
}
_KEYS: dict[str, Form] = {
    "modifiers": _table_of(_or_table(_plain, {"neutral": _plain, "only": _text, "written": _flag})),
    "harmless": _list(_text),
    "seen": _table_of(_plain),
}
_CONDITION = _or_table(_scalar, {"if": _scalar, "else": _text, "of": _many(_text), "hint": _text})
ENGINE_FIELDS: dict[str, Form] = {
    **dict.fromkeys(("model_type", "head", "rotates", "rope", "as", "absent", "unmeasured", "drafts", "biased"), _text),
    **dict.fromkeys(("slots", "names"), _table_of(_text)),
    "says": _table_of(_scalar),
    "only": _table_of(_many(_text)),
    "written": _table_of(_plain),
    **dict.fromkeys(("right_if", "same_if"), _many(_CONDITION)),
    **dict.fromkeys(("needs", "reads", "ignores", "scaling", "optional", "required", "tensors"), _many(_text)),
    **dict.fromkeys(("unadapted", "text", "biases", "narrow"), _many(_text)),
    **dict.fromkeys(("scaled", "transposed", "unnamed", "at_top"), _flag),
}


def _or_absent(fields: Mapping[str, Form]) -> Form:
    return _or_table(lambda value: None if value == "absent" else ": a table or 'absent' expected", fields)


#: Section -> what it is.
_FORMS: dict[str, Form] = {
    "extends": _many(_text),
    "without": _list(_text),
    "gguf": _table({"arch": _many(_text), "match": _scalar, "over": _many(_text)}),
    "huggingface": _table(
        {
            "model_type": _many(_text),
            "class": _many(_text),
            "match": _scalar,
            "text": _table({"of": _many(_text), "prefix": _text}),
            "tokens": _table_of(_text),
            "elsewhere": _table_of(_many(_text)),
        }
    ),
    "prefix": _table_of(_many(lambda value: _text(value) if isinstance(value, str) else _layer(value))),
    "axes": _table_of(_scalar),
    "layers": _table_of(_scalar),
    "stacks": _table_of(_table(dict.fromkeys(("canonical", "count", "hf", "gguf", "mlx"), _scalar))),
    "tensors": _table_of(_or_absent(ROW_FIELDS)),
    "fused": _table_of(_table_of(_text)),
    "parameters": _table_of(_or_table(_scalar, PARAMETER_FIELDS)),
    "defaults": _table_of(_table_of(_scalar)),
    "config": _table(
        {
            **_KEYS,
            "written": _table_of(_plain),
            "default": _table_of(_table_of(_plain)),
            "unknown": _text,
        }
    ),
    "metadata": _table(_KEYS),
    "engines": _table_of(_or_absent(ENGINE_FIELDS)),
}


def misformed(table: Mapping[str, Any]) -> str | None:
    """First key with a value of a wrong type, and the expected type."""
    found = _fields(_FORMS, table)
    return found.removeprefix(".") if found else None


# -- Family files as TOML tables, merged with the files they extend ----------------------------------------------------

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

SECTIONS = frozenset(_FORMS)

#: Fields of a tensor row that are one format's cell.
FORMATS = ("hf", "gguf", "mlx")

#: Neutral value of a modifier that stands for all.
EVERY = "any"

#: Word of ``only`` for a key that is written, though no engine looks at it.
NOBODY = "nobody"

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
    """Find the line of a key, also in extended files: file, number, text."""
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
            parents = _read(file).get("extends", [])
            yield file
            ahead += [_parent(file, name, FOLDER) for name in listed(parents)]


def read_file(path: Path) -> Table:
    """Checked table of a file, read-only: shipped ones are shared."""
    if path.parent == FOLDER:
        return _shipped(path)
    table = _read(path)
    for key in table.keys() - SECTIONS:
        raise fault(path, f"there is no section {key!r} (known: {', '.join(sorted(SECTIONS))})")
    if wrong := misformed(table):
        raise fault(path, wrong)
    return table


@cache
def _shipped(path: Path) -> Table:
    return _read(path)


def _read(path: Path) -> Table:
    """Read one file."""
    try:
        if path.exists() and not path.is_file():
            raise fault(path, "is not a regular file")
        if path.parent == FOLDER:
            return table_of(path)
        import tomllib

        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise fault(path, f"a family file has at most {MAX_BYTES:,} bytes")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise fault(path, error.strerror or str(error)) from None
    except (ValueError, RecursionError) as error:  # of numbers with too many digits tomllib lets int's pass
        raise fault(path, f"no TOML: {error}") from None


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
    for name in listed(parents):
        inherited = merged(_parent(path, name, folder), folder=folder, depth=depth + 1, read=read)
        inherited.pop("engines", None)  # what was measured for one class says nothing of another
        for style in ("default", "unknown", "seen"):
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
    for one in patterns:
        hit = False
        for section in ("tensors", "parameters", "fused"):
            for name in [name for name in table.get(section, {}) if fnmatchcase(name, one)]:
                del table[section][name]
                hit = True
        if not hit:
            raise fault(path, f"without {one!r}: nothing inherited has that name")


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
        raise fault(path, f"tensors.{key}: there is no field {field!r} (known: {', '.join(sorted(ROW_FIELDS))})")
    entry: Table = {}
    for field, value in row.items():
        if field not in FORMATS or value == "absent":
            entry[field] = _picked(value, part, parts)
            continue
        forms = [_form(form, part, parts) for form in listed(value)]
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
        at = str(picked.pop("map", part))
        if not at.isdecimal() or int(at) >= parts:
            raise AxesError(f"map {at!r}: a segment of {parts}, counted from 0, expected")
        picked["part"], picked["parts"] = (int(at), parts) if picked["name"] == name else (0, 1)
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
    groups: dict[str, Table] = {
        "modifiers": other.get("modifiers", {}),
        "harmless": dict.fromkeys(other.get("harmless", []), True),
    }
    claimed = {key for group in groups.values() for key in group}
    for name, group in groups.items():
        before = into.get(name, {})
        inherited = {key: value for key, value in dict.fromkeys(before, True).items() if key not in claimed}
        if name == "harmless":
            into[name] = [*inherited, *group]
        else:
            into[name] = {key: before[key] for key in inherited} | {k: v for k, v in group.items() if v != "absent"}
    for name in (name for name in other if name not in groups):  # in the order of the file
        both = isinstance(other[name], dict) and isinstance(into.get(name), dict)
        table = {**into[name], **other[name]} if both else other[name]
        into[name] = {k: v for k, v in table.items() if v != "absent"} if isinstance(table, dict) else table


def _forget(table: Table, parameters: Mapping[str, Any]) -> None:
    """Remove inherited roles of keys that are parameters now."""
    for format, section in (("hf", "config"), ("gguf", "metadata")):
        cells = [row[format] for row in parameters.values() if isinstance(row, dict) and format in row]
        flat = [cell for item in cells for cell in listed(item)]
        keys = [cell if isinstance(cell, str) else cell.get("key", "") for cell in flat if not is_unread(cell)]
        heads = {str(key).partition("." if format == "hf" else ":")[0] for key in keys}
        own = table.get(section, {})
        if "harmless" in own:
            own["harmless"] = [key for key in own["harmless"] if key not in heads]
        if "modifiers" in own:
            left = {key: value for key, value in own["modifiers"].items() if key not in heads or is_carried(value)}
            own["modifiers"] = left


def is_carried(role: object) -> bool:
    """Whether a rule of a reader looks at the key, whatever its value is."""
    return isinstance(role, dict) and role.get("neutral") == EVERY


def is_unread(cell: object) -> bool:
    """Whether the cell's key is written though no engine looks at it."""
    return isinstance(cell, dict) and cell.get("only") == NOBODY


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
            result[cell] = {**{k: v for k, v in old.items() if not (other and k == "only" and v == NOBODY)}, **new}
    return result


#: Fields that make a parameter's cell one of another kind than a key.
_KINDS = ("fixed", "present", "absent", "shape", "tensor", "dropped")


def _kind(cell: Mapping[str, Any]) -> str:
    return next((kind for kind in _KINDS if kind in cell), "")


# -- Checks shared by sections of a family file; faults name their key -------------------------------------------------


#: Field of former versions -> what says it now.
FORMER: Mapping[str, str] = {
    "alpha": "parameters.rope_alpha",
    "by_layer": "parameters.rope_theta.hf with a key in rope_parameters.full_attention",
    "carried": 'modifiers = { KEY = { neutral = "any" } }',
    "copied": 'value = "copied"',
    "counted": "a key of parameters.rope_dim.hf without read",
    "embeddings": "elsewhere",
    "family": "as of engines.transformers",
    "floats": ':f32 behind the name of the entry in slots, "attn_norm:f32",',
    "head_must_be_written": 'head = "written"',
    "interleaved": 'rotates = "interleaved"',
    "memory": 'as = "memory"',
    "modules": 'elsewhere = { NAME = "DIRECTORY/" }',
    "neighbors": 'rotates = "neighbors"',
    "no_head": 'head = "none"',
    "numbers": "a list for count",
    "noted": "a row of parameters, such as rope_truncate,",
    "older": "map of parameters.rope_type.hf",
    "packed": 'as = "blocks"',
    "part": "the default of parameters.rope_dim",
    "rope": "parameters.rope_theta and rope_dim, and rope of engines.mlx_lm,",
    "sinusoids": 'value = "sinusoids"',
    "slides": 'reads = ["window"]',
    "share": "a key of parameters.rope_dim.hf with read",
    "theta": "the key of parameters.rope_theta.hf",
    "types": "scaling of engines.transformers",
    "unread": 'only = "nobody"',
    "unscaled": "written of engines.mlx_lm",
    "whole": "only of all keys of parameters.rope_dim.hf",
    "window": "parameters.layer_types",
    "within": "default.text_config",
    "wrapped": 'model_type = "OUTER/INNER"',
    "zeros": 'value = "zeros"',
}


class Fields:
    """Reader of checked fields of a file.

    Attributes:
        where: the row that is read, for faults.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.where = path, ""

    def fault(self, message: str) -> InputError:
        """An error of the row that is read."""
        return fault(self.path, f"{self.where}: {message}")

    def expression(self, text: object, *where: str) -> Expression | None:
        """Parsed expression, or ``None`` if absent; booleans and numbers count."""
        if where:
            self.where = ".".join(where)
        if text is None:
            return None
        try:
            return parse(str(text).lower() if isinstance(text, bool) else str(text))
        except ExpressionError as error:
            raise self.fault(str(error)) from None

    def fields(self, row: object, known: Set[str]) -> Mapping[str, Any]:
        """The row as a table that has no other field than these."""
        if not isinstance(row, dict):
            raise self.fault("a table expected")
        for key in sorted(row.keys() - known):
            now = f"{FORMER[key]} says it now" if key in FORMER else f"known: {', '.join(sorted(known))}"
            raise self.fault(f"there is no field {key!r} ({now})")
        return row

    def word(self, row: Mapping[str, Any], field: str, known: Mapping[str, Any], default: str) -> Any:
        """Value that a word out of a fixed set stands for."""
        found = row.get(field, default)
        if found not in known:
            raise self.fault(f"{field} is {found!r} (known: {', '.join(filter(None, known))})")
        return known[found]


def listed(value: Any) -> list[Any]:
    """List of a field that may be a list or a single item."""
    return value if isinstance(value, list) else [value]


def is_family(text: str) -> bool:
    """Whether TOML text has a table ``huggingface``, without parsing."""
    return re.search(r"^(\[huggingface[.\]]|huggingface(\.| = ))", text, re.MULTILINE) is not None


def texts(value: Any) -> tuple[str, ...]:
    """Texts of a field: of a list, of a single text, or none."""
    return tuple(str(item) for item in listed(value)) if value is not None else ()


# -- The text of a family file -----------------------------------------------------------------------------------------

_BARE = r"[A-Za-z0-9_-]+"


def inline(value: Any) -> str:
    """A value as TOML writes it on one line.

    Raises:
        ValueError: there is a null in it, which TOML has not.
    """
    if value is None:
        raise ValueError("a value of config.json has null in it, which no family file can say")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return (
            "{ " + ", ".join(f"{key(name)} = {inline(item)}" for name, item in value.items()) + " }" if value else "{}"
        )
    return "[" + ", ".join(map(inline, value)) + "]"


def key(name: str) -> str:
    """A key, quoted where it has to be."""
    return name if re.fullmatch(_BARE, name) else json.dumps(name, ensure_ascii=False)


def text(comments: Sequence[str], top: Mapping[str, Any], sections: Mapping[str, Mapping[str, Any]]) -> str:
    """TOML of a family file: comments, top values, a section each."""
    lines = [f"# {line}".rstrip() for line in comments]
    lines += [f"{key(name)} = {inline(value)}" for name, value in top.items() if value or value is False]
    for section, rows in sections.items():
        if rows:
            lines.append(f"[{section}]")
            lines += [f"{key(name)} = {inline(value)}" for name, value in rows.items()]
    return "\n".join(lines) + "\n"


# -- Merged rows of a family as text, each with the files that say it --------------------------------------------------

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
