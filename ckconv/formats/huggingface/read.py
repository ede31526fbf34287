"""Canonical index of a checkpoint's headers and configuration."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ckconv.core.config import ModelConfig
from ckconv.core.dtypes import Kind
from ckconv.core.layouts import plain
from ckconv.core.metadata import document_of, joined_metadata, root_of, text_key, unquantized, without_stale
from ckconv.core.tensors import (
    EMBEDDING,
    HEAD,
    MetadataKind,
    Name,
    StoredTensor,
    Tensor,
    TensorIndex,
    cut,
    joined,
    matrix_of,
    parse,
    plain_tensor,
    with_layer,
)
from ckconv.errors import InputError, UnsupportedError, quoted
from ckconv.families.canonical import Canonical, Fitted, Item, canonicalize, fitted, notes_on, plain_item
from ckconv.families.catalog import FAMILIES, classes_of, drafter_of, tower_known_by
from ckconv.families.diffusion import canonical_diffusion, diffusion_of
from ckconv.families.huggingface_config import huggingface_config, huggingface_family
from ckconv.families.keys import CONSUMERS
from ckconv.families.names import (
    HF,
    NAMES_KEY,
    NESTED,
    OTHER_SCHEMES,
    REFERENCE,
    TEXT_PART,
    is_beside_text,
    names_of,
    numbered_apart,
    scheme_names,
)
from ckconv.families.parameters import ConfigSource
from ckconv.families.schema import MLX_VLM, Family
from ckconv.families.sizes import has_transposed
from ckconv.families.towers import tower_of_document, tower_parameters, tower_tensors
from ckconv.families.words import said, said_of
from ckconv.formats.huggingface.packed import Found, packed_items
from ckconv.formats.safetensors.container import MAX_JSON, is_pickle, read_safetensors
from ckconv.formats.safetensors.files import CheckpointFiles, ends_with_layers
from ckconv.io.files import text_of_card
from ckconv.io.json import Document, parse_object, read_object
from ckconv.tokenizer.checkpoint import token_ids_beside

# The headers and the configuration of a checkpoint -> the canonical index.

#: Stored arrays, ``config.json`` and the path, for errors -> the tensors that they are.
Group = Callable[[Sequence[StoredTensor], Mapping[str, Any], Path], list[Item]]


def index_checkpoint(
    path: Path, checkpoint: CheckpointFiles, group: Group | None = None, drop: Sequence[str] = ()
) -> TensorIndex:
    """The index of headers and a configuration that were read.

    Args:
        group: which stored arrays are one matrix, in a checkpoint of MLX's.
        drop: globs of tensors that need not fit the family's rules.

    Raises:
        InputError: ``mlx.quant``.
    """
    config, mlx = checkpoint.config, group is not None
    architecture = str(config.get("model_type", "")) if config else ""
    if group is not None:
        found = Found(group(checkpoint.tensors, config, path) if config is not None else [])
    else:
        found = packed_items(
            checkpoint.tensors, config or {}, checkpoint.root, [shard.metadata for shard in checkpoint.shards]
        )
    if found.packed and config is not None and (known := huggingface_family(config)) and has_transposed(known):
        # A quantizer may store what a Conv1D multiplies with as it is, or as that of a Linear, [out, in].
        found = Found(words=found.words, unread=f"{found.words} of modules that are stored [in, out]")
    # Without the values of its matrices a model has no canonical tensors, whatever its family.
    drafter = drafter_of(config or {})
    is_model = config and not found.unread
    family = huggingface_family({**(config or {}), "called": _called(checkpoint)}) if is_model else None
    if family and drafter:
        asks = family.asks_target and not checkpoint.target
        family = None if asks or drafter not in family.in_huggingface.classes else family
    scheme = checkpoint.shards[0].metadata.get(NAMES_KEY, "hf")
    left = {item.stored.name for item in found.dropped}
    rest = tuple(stored for stored in checkpoint.tensors if stored.name not in left) if left else checkpoint.tensors
    model, canonical, misfit = Fitted(None, Canonical({}, {}, (), rest))
    if config is not None and family:
        known, said_of_model = family, unquantized(config) if found.packed else config
        said_of_model = said_of_model if mlx else without_stale(said_of_model, checkpoint.tensors)
        scheme = scheme if scheme in (*OTHER_SCHEMES, REFERENCE) else "mlx" if mlx else "hf"

        def made(globs: Sequence[str]) -> tuple[ModelConfig, Canonical]:
            consumer, stored = CONSUMERS["mlx" if mlx else "safetensors"], (*_named(found, checkpoint.tensors), *shared)
            stored = _of_class(stored, known, scheme) if scheme in OTHER_SCHEMES else stored
            model = huggingface_config(said_of_model, known, stored, path, consumer=consumer)
            items = [*(found.items or map(plain_item, checkpoint.tensors)), *map(plain_item, shared)]
            read = partial(
                canonicalize,
                items,
                known,
                scheme_names(known, scheme),
                model,
                said_of(model),
                path=path,
                layers=f"the number of layers{said(model, 'num_layers')}",
                drop=globs,
            )
            nested = NESTED if text_key(said_of_model) or architecture.endswith(TEXT_PART) else ()
            nested = (*_nested_in_mlx(said_of_model), *nested) if mlx else nested
            canonical = read(nested=nested)
            heads = [tensor.source for tensor in canonical.tensors.values()]
            for start in _starts(canonical.unknown) if not canonical.tensors.keys() - {HEAD} else ():
                inner = read(nested=((start, ""),))
                if inner.tensors and not inner.unknown:
                    raise _prefixed(start, heads, known.name, path)
            return model, _once(canonical, model, {tensor.name for tensor in shared})

        shared = [] if found.items else _shared(checkpoint)
        model, canonical, misfit = fitted(made, rest, drop)
    elif not (mlx or found.unread) and (diffusing := diffusion_of(checkpoint.tensors)):
        architecture = architecture or diffusing.name
        canonical = canonical_diffusion(diffusing, found.items or map(plain_item, checkpoint.tensors))
    index = TensorIndex(
        format="mlx" if mlx else "safetensors",
        version=0,
        path=path,
        files=tuple(shard.path for shard in checkpoint.shards),
        architecture=architecture,
        config=model,
        stored=checkpoint.tensors,
        tensors=canonical.tensors,
        canonical_of=canonical.canonical_of,
        dropped=(*canonical.dropped, *found.dropped),
        unknown=canonical.unknown,
        metadata_kind=MetadataKind.DOCUMENT,
        metadata=_metadata(checkpoint),
        facts=_facts(checkpoint, config, found.words),
        packed=found.packed,
        quantizer=found.unread,
        side_files=checkpoint.side_files,
        target=checkpoint.target,
        shard_index=checkpoint.index_path,
        notes=(*checkpoint.notes, *found.notes, *_stale(config or {}, checkpoint.tensors, mlx=mlx), *notes_on(misfit)),
        misfit=misfit,
    )
    ranking = _embeddings(index, family.in_huggingface.embeddings) if family and model else {}
    return replace(index, tensors={**index.tensors, **ranking}) if ranking else index


def _nested_in_mlx(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Beginnings of names in mlx-vlm's class -> in the text model."""
    seeing = tower_of_document(document)
    row = seeing.engines.get(MLX_VLM.row) if seeing else None
    yield from ((inside, start) for start, inside in (row.names if row else ()))


def with_modules(index: TensorIndex) -> TensorIndex:
    """Index with the linear layers of sentence-transformers' directories.

    They are those of the family, in its order, and nothing but a normalization is behind them (``build_dense_out`` of
    llama.cpp's ``llama-graph.cpp``).

    Raises:
        InputError: ``st.*``, ``model.config``, a file is malformed.
    """
    wanted = FAMILIES[index.config.family].in_huggingface.modules if index.config else {}
    if not wanted or not ends_with_layers(root_of(index), [*wanted.values()]):
        return index
    tensors, own = dict(index.tensors), dict(index.config.own) if index.config else {}
    for name, folder in wanted.items():
        files = {path.name: path for path in index.part_files if path.parent.name == folder}
        if not files.keys() >= {"config.json", "model.safetensors"}:
            continue
        said, stored = (
            read_object(files["config.json"], _DOCUMENT),
            read_safetensors(files["model.safetensors"]).tensors,
        )
        plainly = str(said.get("activation_function", "")).rpartition(".")[2] == "Identity"
        if plainly and [one.name for one in stored] == ["linear.weight"] and len(stored[0].shape) == 2:
            linear = plain_tensor(name, stored[0])
            tensors[name] = replace(linear, source=f"{folder}/{linear.source}")
            module = name.removesuffix(".weight")
            own |= {f"{module}_out": stored[0].shape[0], f"{module}_in": stored[0].shape[1]}
    if len(tensors) == len(index.tensors) or index.config is None:
        return index
    return replace(index, tensors=tensors, config=replace(index.config, own=own))


def _called(checkpoint: CheckpointFiles) -> str:
    """Names of a model: directory, configuration, titles of its card.

    Source: ``_is_qwen3_reranker`` of llama.cpp's ``conversion/qwen.py``, which knows a reranker by it.
    """
    titles = (line for line in text_of_card(checkpoint.side_files).splitlines() if line.startswith("# "))
    named = (checkpoint.root.name, str((checkpoint.config or {}).get("_name_or_path", "")), *titles)
    return "\n".join(named).lower()


def _named(found: Found, stored: Sequence[StoredTensor]) -> Sequence[StoredTensor]:
    """Stored tensors, packed ones under their dense names."""
    if not found.packed:
        return stored
    whole = (
        StoredTensor(item.tensor.source, item.tensor.dtype, item.tensor.shape, item.stored[0].extent)
        for item in found.items
        if item.tensor.packed or item.tensor.planes
    )
    return (*(tensor for tensor in stored if tensor.name not in found.packed), *whole)


def _of_class(stored: Sequence[StoredTensor], family: Family, scheme: str) -> tuple[StoredTensor, ...]:
    """Stored tensors under the names of the family's class."""
    named, written = scheme_names(family, scheme).stored, names_of(family, HF).written
    names = [parse(one.name) for one in stored]
    drafts = (one.layer or 0 for one in names if (row := named.get(one.pattern)) and ".draft." in row.canonical)
    first = min(drafts, default=0)

    def called(name: Name) -> str:
        found = named.get(name.pattern)
        own = written.get(found.canonical) if found is not None else None
        if own is None or own.parts[0].stack:
            return with_layer(name.pattern, name.layer).replace("{e}", str(name.expert))
        plain, canonical = with_layer(own.pattern, name.layer), with_layer(own.canonical, name.layer)
        return numbered_apart(plain, canonical, family, first) if ".draft." in canonical else plain

    return tuple(one._replace(name=called(name)) for one, name in zip(stored, names, strict=True))


def _starts(unknown: Sequence[StoredTensor]) -> Iterator[str]:
    """Common beginnings of names without a row, the shortest first."""
    names = [tensor.name for tensor in unknown] or [""]
    for at, (letter, other) in enumerate(zip(min(names), max(names), strict=False)):
        if letter != other:
            return
        if letter == ".":
            yield names[0][: at + 1]


def _prefixed(start: str, others: Sequence[str], family: str, path: Path) -> UnsupportedError:
    """Reason for names stored within another module's prefix."""
    every = " but ".join(["every name", *map(quoted, others)])
    message = f"{every} starts with {quoted(start)}: without it they are those of a {family}"
    hint = f"save the model itself, or its tensors under name.removeprefix({start!r})"
    return UnsupportedError("model.config", message, path=path, hint=hint)


def _shared(checkpoint: CheckpointFiles) -> list[StoredTensor]:
    """Tensors that safetensors stores once for several names.

    The header's ``__metadata__`` says by which name (``_remove_duplicate_names`` of ``safetensors/torch.py``).
    """
    stored = {tensor.name: tensor for tensor in checkpoint.tensors}
    said = [item for shard in checkpoint.shards for item in shard.metadata.items()]
    return [stored[kept]._replace(name=name) for name, kept in said if kept in stored and name not in stored]


def _once(canonical: Canonical, model: ModelConfig, shared: Container[str]) -> Canonical:
    """Embedding stored as a tied head alone, unknown names left out.

    transformers ties either to the other (``tie_weights``).
    """
    tensors, canonical_of = dict(canonical.tensors), dict(canonical.canonical_of)
    head, embedding = tensors.get(HEAD), tensors.get(EMBEDDING)
    if head is not None and model.tied is not False:
        tied = embedding is None and model.tied
        if tied or (embedding is not None and embedding.source in shared and embedding.extents == head.extents):
            tensors = {EMBEDDING if name == HEAD else name: it for name, it in tensors.items() if name != EMBEDDING}
            tensors[EMBEDDING] = replace(head, name=EMBEDDING)
            canonical_of[head.source] = (EMBEDDING,)
    return canonical._replace(
        tensors=tensors,
        canonical_of={name: names for name, names in canonical_of.items() if name not in shared},
        dropped=tuple(item for item in canonical.dropped if item.stored.name not in shared),
        unknown=tuple(stored for stored in canonical.unknown if stored.name not in shared),
    )


def _stale(config: Mapping[str, Any], stored: Sequence[StoredTensor], *, mlx: bool) -> Iterator[str]:
    """Whether config.json calls a checkpoint of floats quantized."""
    keys = [] if mlx else sorted(config.keys() - without_stale(config, stored).keys())
    if keys:
        yield f"config.json has {' and '.join(keys)}, and no tensor is quantized: nothing is taken from there"


def _metadata(checkpoint: CheckpointFiles) -> dict[str, Any]:
    """The headers' own ``__metadata__`` and the configuration, each key once."""
    header: dict[str, str] = {}
    for shard in checkpoint.shards:
        header.update(shard.metadata)
    return joined_metadata(header, checkpoint.config or {})


def _facts(checkpoint: CheckpointFiles, config: dict[str, Any] | None, quantizer: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": "model", "shards": len(checkpoint.shards)}
    if any(is_pickle(shard.path.name) for shard in checkpoint.shards):
        facts["saved_by"] = "torch.save"
    if checkpoint.side_files:
        facts["side_files"] = ", ".join(side.name for side in checkpoint.side_files)
    if quantizer:
        facts["quantizer"] = quantizer
    if config is None and not checkpoint.notes:
        facts["note"] = "no config.json: tensors keep the names of the file"
    return facts


# The tower of a checkpoint that sees, as an index of its own.

#: Files that say how pictures are prepared -> the table in them that says it where it is not the document; the later
#: one counts (``MmprojModel.__init__`` of llama.cpp's ``conversion/base.py``).
_SETTINGS = {"preprocessor_config.json": "media_proc_cfg", "processor_config.json": "image_processor"}
#: Format of a checkpoint -> whose names its tensors have: transformers', or mlx-vlm's.
_NAMES = {"safetensors": "hf", "mlx": "mlx"}

_DOCUMENT = Document("preprocessor's configuration", "model.config", "model.config", MAX_JSON)


def with_tower(index: TensorIndex, documents: Mapping[str, bytes] | None = None) -> TensorIndex:
    """Checkpoint with a known tower's tensors under its rows' names.

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
        UnsupportedError: ``tower.unknown``, there is none, or none that is known; ``tower.quantized``, of MLX's.
        InputError: ``model.config``.
    """
    document = document_of(index.metadata)
    family = tower_of_document(document) if index.format in _NAMES else None
    if family is None:
        what = quoted(str(document.get("model_type") or index.architecture))
        message = f"ckconv knows no tower of a {what}{tower_known_by(classes_of(document))}"
        raise UnsupportedError("tower.unknown", message, path=index.path)
    beside = [stored for stored in index.stored if is_beside_text(document, stored.name)]
    if not beside:
        message = "config.json says a tower, and no tensor of it is there"
        raise UnsupportedError("tower.unknown", message, path=index.path)
    source = ConfigSource({**document, "preprocessor": _settings(index, documents)})
    tower = tower_parameters(family, source, index.path)
    for stored in beside:
        if stored.dtype.name == "U32":
            message = f"{stored.name} of the tower is quantized, and one whose values are floats is converted"
            raise UnsupportedError("tower.quantized", message, path=index.path)
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


def _embeddings(index: TensorIndex, wanted: Mapping[str, str | list[str]]) -> dict[str, Tensor]:
    """Rows of the text model's embedding or head that stand for tensors."""
    found = {}
    for name, tokens in wanted.items():
        listed = [tokens] if isinstance(tokens, str) else tokens
        whole = index.tensors.get(EMBEDDING if isinstance(tokens, str) or HEAD not in index.tensors else HEAD)
        if whole is None or whole.merge or whole.dtype.kind is not Kind.FLOAT or whole.layout.scale != 1.0:
            continue
        (count, width), ids = whole.shape, token_ids_beside(index, listed)
        rows, nbytes = [ids.get(token, -1) for token in listed], whole.dtype.nbytes(width)
        if not all(0 <= row < count for row in rows):
            continue
        shape = (width,) if isinstance(tokens, str) else (len(rows), width)
        extents = (one for row in rows for one in cut(whole.extents, row * nbytes, (row + 1) * nbytes))
        layout = plain(*matrix_of(shape, whole.dtype))
        found[name] = replace(whole, name=name, shape=shape, extents=tuple(extents), layout=layout)
    return found


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
