"""In what two models differ besides their tensors, one sentence a difference."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from ckconv.core.config_keys import CONFIG_KEYS
from ckconv.core.documents import text_key
from ckconv.core.typed import Value
from ckconv.errors import quoted
from ckconv.formats.bump.map import MAP_NAME
from ckconv.formats.bump.spec import FOOTER_NAME
from ckconv.io.json import Document, parse_object
from ckconv.plan.content import Content

CODE = "side.json"
_JSON = Document("the file", CODE, CODE, 1 << 30)
_CONFIG = _JSON._replace(lax=True)

#: Files for people: a model is the same without them, or with others.
FOR_PEOPLE = ("README.md", "LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*", "COPYING*", "CITATION*")

_ROPE = ("rope_scaling", "rope_parameters")

#: Keys of ``config.json`` that the comparison of hyper-parameters covers, under whatever name: one of them may be
#: missing where its value follows from the others. They are at its top, in the text part, and in the tables of RoPE.
COVERED = frozenset({key for keys in CONFIG_KEYS.values() for key in keys} | {*_ROPE, "partial_rotary_factor"})

#: What a fact is called that is about a document as a whole.
SPELLING = "spelling"

#: What says which program wrote a document, and not what the model is.
_OF_THE_WRITER = frozenset({"created_by", "manifest_hash"})


class Fact(NamedTuple):
    """Something of which two models say different things; ``None`` is nothing.

    Attributes:
        key: of a header, or in a document; the name of a file that only one of them has, or that is no document.
        file: the document, empty for a header.
    """

    key: str
    mine: str | None
    meant: str | None
    file: str = ""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.file}: {quoted(self.key)}" if self.file else self.key

    def __str__(self) -> str:
        if self.meant is None:
            return f"{self.name} is {self.mine}, although nothing says so"
        if self.mine is None:
            return f"{self.name} is missing, {self.meant} is meant"
        return f"{self.name} is {self.mine}, {self.meant} is meant"


def differences(mine: Content, meant: Content, *, people: bool = True) -> Iterator[Fact]:
    """What ``mine`` says else than is meant.

    Args:
        people: files for people count.

    Raises:
        InputError: ``side.json``, a file that should be JSON is malformed.
    """
    for key in mine.keys:
        if key not in meant.keys:
            yield Fact(key, _shown(mine.keys[key]), None)
        elif mine.keys[key] != meant.keys[key]:
            yield Fact(key, _shown(mine.keys[key]), _shown(meant.keys[key]))
    for key in meant.keys:
        if key not in mine.keys:
            yield Fact(key, None, _shown(meant.keys[key]))
    for name in sorted({*mine.files, *meant.files}):
        read = not any(fnmatchcase(name, pattern) for pattern in FOR_PEOPLE)
        if name not in meant.files:
            if read and name != MAP_NAME:
                yield Fact(name, "there", None)
        elif name not in mine.files:
            if (read or people) and name not in (MAP_NAME, FOOTER_NAME):
                yield Fact(name, None, "one")
        elif mine.files[name] != meant.files[name] and (read or people):
            yield from _of_files(name, mine.files[name], meant.files[name], mine.paths.get(name, Path(name)))


def check_json(content: Content) -> None:
    """Every file beside a model that should be JSON is.

    Raises:
        InputError: ``side.json``.
    """
    for name, data in content.files.items():
        if name.endswith(".json"):
            _parsed(name, data, content.paths.get(name, Path(name)))


def _parsed(name: str, data: bytes, path: Path) -> Any:
    """Objects are held to everything that ckconv asks of JSON, lists (``vocab`` files) to being JSON."""
    if data.lstrip()[:1] == b"[":
        data = b'{"":' + data + b"}"
        return parse_object(data, _JSON, path)[""]
    return parse_object(data, _CONFIG if name == "config.json" else _JSON, path)


def _of_files(name: str, mine: bytes, meant: bytes, path: Path) -> Iterator[Fact]:
    if not (name.endswith(".json") or name == FOOTER_NAME):
        at = next((n for n, pair in enumerate(zip(mine, meant, strict=False)) if pair[0] != pair[1]), None)
        where = f" another from byte {at:,} on" if at is not None else ""
        yield Fact(name, f"of {len(mine):,} bytes{where}", f"one of {len(meant):,}")
        return
    ours, theirs = _parsed(name, mine, path), _parsed(name, meant, Path(name))
    found = list(
        _of_values(ours, theirs, "", _covered_in(theirs) if name == "config.json" and isinstance(theirs, dict) else ())
    )
    yield from (fact._replace(file=name) for fact in found)
    # A number or a letter may be spelled in two ways: 1e-05 and 1E-05, \u00e9 and \u00E9. Only one is written.
    if not found and not _plainly_spelled(mine, ours):
        yield Fact(SPELLING, "another", "one", name)


def _covered_in(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The tables of a ``config.json`` in which keys are :data:`COVERED`; the first one is the document."""
    text = text_key(config)
    return tuple(f"{outer}{rope}".rstrip(".") for outer in ("", f"{text}.") for rope in ("", *_ROPE))


def _of_values(mine: Any, meant: Any, where: str, covered: Collection[str]) -> Iterator[Fact]:
    if isinstance(mine, dict) and isinstance(meant, dict):
        for key in mine:
            place = f"{where}.{key}" if where else str(key)
            if key not in meant:
                yield Fact(place, _shown(mine[key]), None)
            else:
                yield from _of_values(mine[key], meant[key], place, covered)
        for key in meant:
            if key not in mine and not (key in COVERED and where in covered):
                yield Fact(f"{where}.{key}" if where else str(key), None, _shown(meant[key]))
    elif isinstance(mine, list) and isinstance(meant, list) and len(mine) == len(meant):
        for n, (one, other) in enumerate(zip(mine, meant, strict=True)):
            yield from _of_values(one, other, f"{where}[{n}]", covered)
    elif (type(mine), mine) != (type(meant), meant) and where not in _OF_THE_WRITER:
        yield Fact(where, _shown(mine), _shown(meant))


def _plainly_spelled(data: bytes, value: Any) -> bool:
    """The document is spelled as Python spells it, white space apart."""
    text = _without_space(data.decode("utf-8", "replace"))
    return any(
        text == json.dumps(value, ensure_ascii=ascii, separators=(",", ":")) for ascii in (True, False)
    )  # fmt: skip


def _without_space(text: str) -> str:
    parts, quoted_part, at = [], False, 0
    while at < len(text):
        end = text.find('"', at)
        end = len(text) if end < 0 else end
        piece = text[at:end]
        if quoted_part:
            parts.append(piece)
            slashes = len(piece) - len(piece.rstrip("\\"))
            quoted_part = bool(slashes % 2)
        else:
            parts.append("".join(piece.split()))
            quoted_part = True
        if end < len(text):
            parts.append('"')
        at = end + 1
    return "".join(parts)


def _shown(value: Any) -> str:
    if isinstance(value, Value):
        return _of_gguf(value)
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value):,}"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    text = repr(value) if not isinstance(value, str) else quoted(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _of_gguf(value: Value) -> str:
    import struct

    from ckconv.core.typed import VALUE_TYPES_BY_NAME
    from ckconv.formats.gguf.spec import LENGTH, VERSION

    if value.type.startswith("arr["):
        (count,) = LENGTH[VERSION].unpack_from(value.payload, 4)
        return f"{value.type} of {count:,}"
    if value.type == "str":
        return _shown(value.payload[LENGTH[VERSION].size :].decode("utf-8", "replace"))
    found = struct.unpack(f"<{VALUE_TYPES_BY_NAME[value.type].code}", value.payload)[0]
    return f"{found} ({value.type})"
