"""``weights_manifest.map``: what the engine's loader maps a bump 4 or 5 file by, held against the file itself.

A line an entry, ``name|dtype|file_offset|size|runtime_offset``, numbers in any base that C's ``strtoull`` takes from
the prefix; ``#`` begins a comment (``ck_load_weights_manifest_v7`` of ``ckernel_model_load_v7.c``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ckconv.core.tensors import TensorIndex
from ckconv.errors import InputError, VerifyError, listed, quoted
from ckconv.formats.bump.beside import document_beside
from ckconv.formats.bump.slots import ALIASES, CONTENT_WORDS, TYPE_WORDS
from ckconv.io.bytesource import open_source

MAP_NAME = "weights_manifest.map"
CODE = "verify.map"
_LIMIT = 64 << 20

#: (type, offset in the file, bytes) of an entry.
Place = tuple[str, int, int]


def check_map(index: TensorIndex) -> bool:
    """Whether a map lies beside the file that is right; ``False`` where there is none.

    The loader copies every entry to where the map puts it in memory: in the engine's usual layout that is where it is
    in the file, for all entries. In another one no two entries may overlap.

    Raises:
        VerifyError: ``verify.map``, an entry is malformed, missing, or not where the file has it.
        InputError: those of ``open_source``.
    """
    path = document_beside(index.path, MAP_NAME)
    if index.format != "bump" or index.version < 4 or not path.exists():
        return False
    slots = dict(_slots(index))
    faults: list[str] = []
    seen: set[str] = set()
    entries = list(_entries(path, faults))
    for name, place, _ in entries:
        slot = slots.get(name)
        if name in seen:
            faults.append(f"{quoted(name)} is listed twice")
        elif slot is None:
            faults.append(f"{quoted(name)} is not in the file")
        elif slot[0] != place:
            faults.append(f"{name} is {_words(place)}, in the file {_words(slot[0])}")
        seen.add(name)
    faults += _misplaced(entries)
    faults += [f"{name} is missing" for name, (_, needed) in slots.items() if needed and name not in seen]
    if faults:
        raise VerifyError(CODE, faults[0], path=path, details=listed(faults[1:]))
    return True


def _words(place: Place) -> str:
    dtype, offset, nbytes = place
    return f"{dtype}, {nbytes:,} bytes from {offset:,} on"


def _slots(index: TensorIndex) -> Iterator[tuple[str, tuple[Place, bool]]]:
    """Slot -> its place, and whether the loader cannot do without it."""
    places: dict[str, tuple[Place, bool]] = {}
    for tensor in index.tensors.values():
        word = TYPE_WORDS.get(tensor.dtype.name, "")
        first = places.get(tensor.source)
        offset, nbytes = tensor.extents[0].offset, tensor.nbytes
        if first is not None:  # a slot of several parts, one after the other
            offset, nbytes = min(offset, first[0][1]), nbytes + first[0][2]
        places[tensor.source] = (word, offset, nbytes), not tensor.may_be_absent
    for stored in index.facts.get("tokenizer") or ():
        places[stored.name] = (CONTENT_WORDS[stored.dtype.name], stored.extent.offset, stored.extent.nbytes), False
    yield from places.items()


def _misplaced(entries: list[tuple[str, Place, int]]) -> Iterator[str]:
    """What lies elsewhere in memory than it should."""
    moved = [name for name, (_, offset, _), memory in entries if memory != offset]
    if len(moved) < len(entries):
        yield from (f"{name} has another place in memory than in the file, unlike the others" for name in moved)
        return
    end = 0
    for name, (_, _, nbytes), memory in sorted(entries, key=lambda entry: entry[2]):
        if memory < end:
            yield f"{name} begins in memory at {memory:,}, inside another"
        end = memory + nbytes


def _entries(path: Path, faults: list[str]) -> Iterator[tuple[str, Place, int]]:
    with open_source(path) as source:
        size = source.size or 0
        if size > _LIMIT:
            raise InputError(
                CODE, f"{size:,} bytes; at most {_LIMIT:,} are read", path=path, found=size, allowed=_LIMIT
            )
        lines = source.read_at(0, size).decode("utf-8", "surrogateescape").splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.split("|")
        try:
            name, dtype, *numbers = fields
            offset, nbytes, memory = (int(number, 0) for number in numbers)
        except ValueError:
            faults.append(f"line {number:,} is not name|dtype|file_offset|size|runtime_offset")
            continue
        yield ALIASES.get(name, name), (dtype, offset, nbytes), memory
