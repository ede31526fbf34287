"""Keys of a GGUF that was made of a checkpoint.

They say what the file is, its types, and the numbers of a tower.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

from ckconv.core.metadata import document_of
from ckconv.core.tensors import TensorIndex, Tower, stored_value
from ckconv.families.expressions import ExpressionError
from ckconv.families.keys import full_key
from ckconv.families.parameters import differ
from ckconv.families.towers import tower_family
from ckconv.io.files import own_texts
from ckconv.options import Options
from ckconv.verification.content import Fact
from ckconv.verification.tokenizers import needed, shown

_TYPE, _NAME, _FILE_TYPE, _VERSION = (f"general.{key}" for key in ("type", "name", "file_type", "quantization_version"))


def general_faults(out: TensorIndex, source: TensorIndex, options: Options) -> Iterator[Fact]:
    """Faults of the keys at the head of a model's file."""
    table = needed()["general"]
    for key, meant in ((_TYPE, table["types"][out.tower is not None]), (_VERSION, table["version"])):
        if stored_value(out, key) != meant:
            yield Fact(key, shown(stored_value(out, key)), shown(meant))
    name, names = stored_value(out, _NAME), [*_names(source)]
    if name is None:
        words = [word for word in needed()["strips"]["names"] if any(word in one.lower() for one in names)]
        if not words:  # llama.cpp takes such a name for Phi 3's tokenizer, and it may not be that
            yield Fact(_NAME, None, shown(names[0]) if names else "one")
    elif _letters(str(name)) not in map(_letters, names):
        yield Fact(_NAME, shown(name), shown(names[0]) if names else None)
    yield from _file_type(out, options)


def _names(source: TensorIndex) -> Iterator[str]:
    """Names of a checkpoint.

    By its card, its configuration, or where it lies.
    """
    yield from filter(None, [own_texts(source).get("name")])
    said = document_of(source.metadata).get("_name_or_path")
    yield from filter(None, [str(said or "").rstrip("/").rpartition("/")[2]])
    for part in chain(reversed(source.path.absolute().parts), reversed(source.path.resolve().parts)):
        yield part.rpartition("--")[2]


def _letters(text: str) -> str:
    return re.sub(r"[\W_]", "", text.encode("utf-8", "replace").decode().lower())


def _file_type(out: TensorIndex, options: Options) -> Iterator[Fact]:
    """The fault of a file type that is not that of most matrices."""
    number, types = stored_value(out, _FILE_TYPE), needed()["file_types"]
    words = (word for word in options.quantize.upper().split(",") if "=" not in word)  # for single matrices
    recipe = next((types["recipes"][word.strip()] for word in words if word.strip() in types["recipes"]), None)
    counts = Counter(stored.dtype.name for stored in out.stored if len(stored.shape) > 1)
    floats = counts.pop("F32", 0)  # some have to be, whatever the others are
    most = max(counts.values(), default=0)
    fits = {name for name, count in counts.items() if count == most} | ({"F32"} if floats >= most else set())
    meant = {recipe} if recipe is not None else {types["plain"].get(name, 0) for name in fits}
    if number not in meant:
        yield Fact(_FILE_TYPE, shown(number), " or ".join(map(str, sorted(meant))))


def tower_faults(out: TensorIndex, tower: Tower) -> Iterator[Fact]:
    """Faults of a tower's numbers, for which its family has keys."""
    meant = {key: value for key, value in _keys(tower, out.architecture) if value is not None}
    for key in sorted(meant.keys() | {key for key in out.metadata if key.startswith(f"{out.architecture}.")}):
        mine = stored_value(out, key)
        if key not in meant:
            yield Fact(key, shown(mine), None)
        elif mine is None or _other(mine, meant[key]):
            yield Fact(key, shown(mine), shown(meant[key]))


def _keys(tower: Tower, architecture: str) -> Iterator[tuple[str, Any]]:
    values = tower.parameters
    for name, row in tower_family(tower.family).parameters.items():
        for cell in row.key_cells("gguf"):
            with suppress(ExpressionError):
                if cell.alias or (cell.when is not None and not cell.when.value({**values, "stated": []})):
                    continue
                value, words = values[name], {theirs: own for own, theirs in cell.words.items()}
                if isinstance(value, list | tuple):
                    value = [words.get(item, item) if isinstance(item, str) else item for item in value]
                elif isinstance(value, str):
                    value = words.get(value, value)
                value = cell.write.value({**values, "it": value}) if cell.write is not None else value
                yield full_key(architecture, cell.key), value


def _other(mine: Any, meant: Any) -> bool:
    if isinstance(mine, list | tuple) and isinstance(meant, list | tuple):
        return len(mine) != len(meant) or any(map(differ, mine, meant))
    return differ(mine, meant)
