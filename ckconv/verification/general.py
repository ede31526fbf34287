"""General keys of a GGUF compared with its source: name, type, types."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from unicodedata import normalize

from ckconv.core.metadata import document_of
from ckconv.core.tensors import TensorIndex, stored_value
from ckconv.io.files import own_texts
from ckconv.options import Options
from ckconv.verification.content import Fact
from ckconv.verification.tokenizers import needed, shown

_TYPE, _NAME, FILE_TYPE, _VERSION = (f"general.{key}" for key in ("type", "name", "file_type", "quantization_version"))


def general_faults(out: TensorIndex, source: TensorIndex, options: Options) -> Iterator[Fact]:
    """Faults of the keys at the head of a model's file."""
    table = needed()["general"]
    for key, meant in ((_TYPE, table["types"][out.tower is not None]), (_VERSION, table["version"])):
        if stored_value(out, key) != meant:
            yield Fact(key, shown(stored_value(out, key)), shown(meant))
    name, names = stored_value(out, _NAME), [*_names(source)]
    if name is None:
        words = [word for word in needed()["strips"]["names"] if any(word in one.lower() for one in names)]
        if not words and _letters(names[0]):  # words with which llama.cpp takes a tokenizer for Phi 3's
            yield Fact(_NAME, None, shown(names[0]))
    elif _letters(str(name)) not in map(_letters, names):
        yield Fact(_NAME, shown(name), shown(names[0]))
    yield from _file_type(out, options)


def _names(source: TensorIndex) -> Iterator[str]:
    """Names of a checkpoint.

    By its card, its configuration, or where it lies.
    """
    yield from filter(None, [own_texts(source).get("name")])
    said = document_of(source.metadata).get("_name_or_path")
    yield from filter(None, [str(said or "").rstrip("/").rpartition("/")[2]])
    for part in chain(reversed(source.path.absolute().parts), reversed(source.path.resolve().parts)):
        yield from (part, part.rpartition("--")[2])


def _letters(text: str) -> str:
    folded = normalize("NFKC", text.encode("utf-8", "replace").decode()).casefold()  # of ligatures titles have letters
    return re.sub(r"[\W_]", "", normalize("NFKC", folded))


def _file_type(out: TensorIndex, options: Options) -> Iterator[Fact]:
    """The fault of a file type that is not that of most matrices."""
    number, recipes = stored_value(out, FILE_TYPE), needed()["file_types"]["recipes"]
    words = (word.strip() for word in options.quantize.upper().split(",") if "=" not in word)  # for single matrices
    recipe = next((recipes[word] for word in words if word in recipes), None)
    meant = plain_types(out) if recipe is None else {recipe}
    if number not in meant:
        # llama.cpp counts types itself where no key says it (llama_model_loader), and shows the number to people
        yield Fact(FILE_TYPE, shown(number), " or ".join(map(str, sorted(meant))), idle=number is None)


def plain_types(index: TensorIndex) -> set[int]:
    """Numbers of the types that most matrices have."""
    counts = Counter(stored.dtype.name for stored in index.stored if len(stored.shape) > 1)
    floats = counts.pop("F32", 0)  # some have to be, whatever the others are
    most = max(counts.values(), default=0)
    fits = {name for name, count in counts.items() if count == most} | ({"F32"} if floats >= most else set())
    return {needed()["file_types"]["plain"].get(name, 0) for name in fits}
