"""The tower of a checkpoint that sees, as an index of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ckconv.core.dtypes import Kind
from ckconv.core.layouts import plain
from ckconv.core.metadata import document_of
from ckconv.core.tensors import Tensor, TensorIndex, cut, joined, matrix_of
from ckconv.errors import InputError, UnsupportedError, quoted
from ckconv.families.canonical import plain_item
from ckconv.families.config_source import ConfigSource
from ckconv.families.elsewhere import classes_of, tower_known_by
from ckconv.families.naming_schemes import is_beside_text
from ckconv.families.towers import tower_of_document, tower_parameters, tower_tensors
from ckconv.formats.safetensors.spec import MAX_JSON
from ckconv.io.json import Document, parse_object, read_object
from ckconv.plan.planner import EMBEDDING
from ckconv.tokenizer.documents import token_ids_beside

#: Files that say how pictures are prepared -> the table in them that says it where it is not the document; the later
#: one counts (``MmprojModel.__init__`` of llama.cpp's ``conversion/base.py``).
_SETTINGS = {"preprocessor_config.json": "media_proc_cfg", "processor_config.json": "image_processor"}
#: Format of a checkpoint -> whose names its tensors have: transformers', or mlx-vlm's.
_NAMES = {"safetensors": "hf", "mlx": "mlx"}

_DOCUMENT = Document("preprocessor's configuration", "model.config", "model.config", MAX_JSON)


def with_tower(index: TensorIndex, documents: Mapping[str, bytes] | None = None) -> TensorIndex:
    """A checkpoint whose tensors of a known tower have the names that its rows have for them; others as they are.

    Args:
        documents: the contents of side files, where these are no files.
    """
    try:
        return joined(index, tower_index(index, documents))
    except (InputError, UnsupportedError):
        return index


def tower_index(index: TensorIndex, documents: Mapping[str, bytes] | None = None) -> TensorIndex:
    """The tower alone, of a checkpoint of text and tower.

    Args:
        documents: the contents of side files, where these are no files.

    Raises:
        UnsupportedError: ``tower.unknown``, there is none, or none that is known; ``tower.quantised``, of MLX's.
        InputError: ``model.config``.
    """
    document = document_of(index.metadata)
    family = tower_of_document(document) if index.format in _NAMES else None
    if family is None:
        what = quoted(str(document.get("model_type") or index.architecture))
        message = f"ckconv knows no tower of a {what}{tower_known_by(classes_of(document))}"
        raise UnsupportedError("tower.unknown", message, path=index.path)
    source = ConfigSource({**document, "preprocessor": _settings(index, documents)})
    tower = tower_parameters(family, source, index.path)
    beside = [stored for stored in index.stored if is_beside_text(document, stored.name)]
    for stored in beside:
        if stored.dtype.name == "U32":
            message = f"{stored.name} of the tower is quantised, and one whose values are floats is converted"
            raise UnsupportedError("tower.quantised", message, path=index.path)
    found = tower_tensors(map(plain_item, beside), tower, _NAMES[index.format], index.path)
    embedded = _embeddings(index, family.in_huggingface.embeddings)
    return replace(
        index,
        config=None,
        stored=tuple(beside),
        tensors={**found.tensors, **embedded},
        canonical_of=found.canonical_of,
        dropped=found.dropped,
        unknown=found.unknown,
        packed={},
        side_files=(),
        facts={**index.facts, "kind": "mmproj"},
        tower=tower,
    )


def _embeddings(index: TensorIndex, wanted: Mapping[str, str]) -> dict[str, Tensor]:
    """Rows of the text model's embedding that the tower's file has, too."""
    whole = index.tensors.get(EMBEDDING)
    if not wanted or whole is None or whole.dtype.kind is not Kind.FLOAT or whole.layout.scale != 1.0:
        return {}
    (count, width), ids = whole.shape, token_ids_beside(index, wanted.values())
    rows = {name: ids[token] for name, token in wanted.items() if 0 <= ids.get(token, -1) < count}
    nbytes = whole.dtype.nbytes(width)
    return {
        name: replace(
            whole,
            name=name,
            shape=(width,),
            extents=tuple(cut(whole.extents, row * nbytes, (row + 1) * nbytes)),
            layout=plain(*matrix_of((width,), whole.dtype)),
        )
        for name, row in rows.items()
    }


def _settings(index: TensorIndex, documents: Mapping[str, bytes] | None) -> Mapping[str, Any]:
    """How pictures are prepared."""
    found: dict[str, Any] = {}
    for name, table in _SETTINGS.items():
        path = next((side for side in index.side_files if side.name == name), Path(index.path) / name)
        if (name in documents) if documents is not None else path.is_file():
            said = read_object(path, _DOCUMENT) if documents is None else parse_object(documents[name], _DOCUMENT, path)
            inner = said.get(table)
            found |= {**said, **(inner if isinstance(inner, dict) else {})}
    return found
