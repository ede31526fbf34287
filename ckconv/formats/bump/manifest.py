"""``weights_manifest.json``: what a bump 4 or 5 file holds where, in the words of the engine's scripts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ckconv.core.tensors import with_layer
from ckconv.errors import Faults, InputError, listed, quoted
from ckconv.formats.bump.placement import Placed, slots_of
from ckconv.formats.bump.slots import ALIASES, CONTENT_WORDS, TYPE_WORDS, SlotTable, key_of, with_optional
from ckconv.io.json import Document, read_object, shown

MANIFEST_NAME = "weights_manifest.json"
CODE = "bump.metadata"
_DOCUMENT = Document("manifest", CODE, CODE, 64 << 20)
_HINT = f"if {MANIFEST_NAME} belongs to another file, move it away: the file can be read without one"


class Entry(NamedTuple):
    """One entry; ``offset`` is absolute, both numbers are in bytes."""

    name: str
    dtype: str
    offset: int
    nbytes: int


class Manifest(NamedTuple):
    """A manifest whose entries lie inside the payload and not in each other; ``entries`` by the slot's own name."""

    document: Mapping[str, Any]
    entries: Mapping[str, Entry]


def load_manifest(path: Path) -> Mapping[str, Any] | None:
    """The document at ``path``, ``None`` where there is none.

    Raises:
        InputError: ``bump.metadata``; those of ``open_source``.
    """
    return read_object(path, _DOCUMENT) if path.exists() else None


def checked_manifest(document: Mapping[str, Any], path: Path, *, start: int, end: int) -> Manifest:
    """Check a manifest against the payload of the file at ``path``, bytes ``start`` to ``end``.

    Raises:
        InputError: ``bump.metadata``, an entry is malformed, twice there, outside the payload or overlaps another.
    """
    faults = Faults(path)
    items = document.get("entries")
    if not isinstance(items, list) or not items:
        raise InputError(CODE, f"{MANIFEST_NAME} has no list of entries", path=path, hint=_HINT)
    entries: dict[str, Entry] = {}
    for number, item in enumerate(items):
        entry = _entry(item)
        if entry is None:
            faults.add(
                CODE, f"{MANIFEST_NAME}: entry #{number + 1:,} lacks name, dtype, file_offset or size", hint=_HINT
            )
        elif entry.name in entries:
            faults.add(CODE, f"{MANIFEST_NAME}: {quoted(entry.name)} is listed twice", tensor=entry.name, hint=_HINT)
        else:
            entries[entry.name] = entry
            if entry.offset < start or entry.offset + entry.nbytes > end:
                faults.add(
                    CODE,
                    f"{MANIFEST_NAME}: {quoted(entry.name)} is at {entry.offset:,} to "
                    f"{entry.offset + entry.nbytes:,}, the payload at {start:,} to {end:,}",
                    tensor=entry.name,
                    offset=entry.offset,
                    found=entry.offset + entry.nbytes,
                    allowed=end,
                    hint=_HINT,
                )
    ordered = sorted(entries.values(), key=lambda entry: (entry.offset, entry.offset + entry.nbytes))
    for one, other in pairwise(ordered):
        if one.offset + one.nbytes > other.offset:
            faults.add(
                CODE,
                f"{MANIFEST_NAME}: {quoted(other.name)} begins at {other.offset:,}, "
                f"inside {quoted(one.name)}, which ends at {one.offset + one.nbytes:,}",
                tensor=other.name,
                offset=other.offset,
                found=other.offset,
                allowed=one.offset + one.nbytes,
                hint=_HINT,
            )
    faults.check()
    return Manifest(document, entries)


def _entry(item: object) -> Entry | None:
    """An entry, under the names that the engine's builder takes."""
    if not isinstance(item, dict):
        return None
    name, dtype = item.get("name"), item.get("dtype")
    offset = item.get("file_offset", item.get("offset"))
    nbytes = item.get("size", item.get("size_bytes"))
    if not isinstance(name, str) or not isinstance(dtype, str):
        return None
    for number in (offset, nbytes):
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 63:
            return None
    assert isinstance(offset, int)
    assert isinstance(nbytes, int)
    return Entry(ALIASES.get(name, name), dtype, offset, nbytes)


def slots_named(manifest: Manifest, table: SlotTable, num_layers: int) -> tuple[SlotTable, list[str]]:
    """The slots of ``table`` that a manifest's model has, and what does not fit between the two, as sentences.

    A slot that zeros may stand for need not have an entry.
    """
    names = manifest.entries.keys()
    present = {key_of(slot) for group in table for slot in group if slot.optional and with_layer(slot.name, 0) in names}
    resolved = with_optional(table, present)
    slots = {with_layer(slot.name, n): slot for slot, n in slots_of(resolved, num_layers) if slot.stored}
    missing = [name for name, slot in slots.items() if name not in names and not slot.zero_if_absent]
    extra = [name for name in names if name not in slots]
    sentences = [f"{MANIFEST_NAME} has no entry {name}" for name in missing]
    sentences += [f"{MANIFEST_NAME}: {quoted(name)} is not a slot of this layout" for name in extra]
    return resolved, sentences


def relocated(placed: list[Placed], manifest: Manifest, path: Path) -> list[Placed]:
    """The placed slots that have an entry, at the entry's offset.

    Raises:
        InputError: ``bump.metadata``, an entry's type or size is not the slot's.
    """
    faults = Faults(path)
    sizes: dict[str, int] = {}
    for item in placed:
        sizes[item.slot_name] = sizes.get(item.slot_name, 0) + item.nbytes
    found: list[Placed] = []
    at: dict[str, int] = {}
    for item in placed:
        entry = manifest.entries.get(item.slot_name)
        if entry is None:
            continue
        words = CONTENT_WORDS if item.slot.content else TYPE_WORDS
        word = words.get(item.dtype.name)
        if item.slot_name not in at and entry.dtype != word:
            faults.add(
                CODE,
                f"{MANIFEST_NAME}: {item.slot_name} is {shown(entry.dtype)}, the file's dtype table says {word}",
                tensor=item.slot_name,
                hint=_HINT,
            )
        elif item.slot_name not in at and entry.nbytes != sizes[item.slot_name]:
            faults.add(
                CODE,
                f"{MANIFEST_NAME}: {item.slot_name} has {entry.nbytes:,} bytes, its shape and type make it "
                f"{sizes[item.slot_name]:,}",
                tensor=item.slot_name,
                found=entry.nbytes,
                allowed=sizes[item.slot_name],
                hint=_HINT,
            )
        offset = at.get(item.slot_name, entry.offset)
        at[item.slot_name] = offset + item.nbytes
        found.append(item._replace(offset=offset))
    faults.check()
    return found


def mismatch_error(sentences: list[str], path: Path) -> InputError:
    """A manifest names other slots than the file's layout has."""
    return InputError(CODE, sentences[0], path=path, hint=_HINT, details=listed(sentences[1:]))
