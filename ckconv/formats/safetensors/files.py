"""Files of a checkpoint: tensors, their index, and side files."""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ckconv.core import metadata
from ckconv.core.lazy import NamedTuple
from ckconv.core.options import PACKED
from ckconv.core.tensors import StoredTensor, TensorIndex, chained
from ckconv.errors import (
    Faults,
    InputError,
    UnsupportedError,
    and_more,
    counted,
    few,
    listed,
    quoted,
    shown,
    unreadable,
)
from ckconv.families.catalog import TAKEN
from ckconv.families.names import NAMES_KEY, PARAMS_NAME, REFERENCE, WEIGHTS, reference_config
from ckconv.formats.safetensors.container import (
    ADAPTER_CONFIG,
    INDEX_NAME,
    INDEX_SUFFIX,
    MAX_JSON,
    PICKLE_INDEX,
    PICKLE_METADATA,
    SUFFIX,
    SafetensorsFile,
    is_pickle,
    parse_shard_name,
    pickle_refusal,
    read_metadata,
    read_safetensors,
    shard_name,
)
from ckconv.io.files import SPECIAL
from ckconv.io.json import Document, kind, parse_object, read_document, read_object
from ckconv.plan.steps import Globs, Piece, Plan

# ``model.safetensors.index.json``: which shard holds which tensor.
#
# An index is ``{"metadata": {"total_size": BYTES, ...}, "weight_map": {TENSOR: FILE NAME}}``. Loaders take from it
# which files there are, and read those whole (``get_checkpoint_shard_files`` of transformers); mlx-lm reads every
# ``model*.safetensors`` without it. No loader reads ``metadata``: the ``total_size`` of DeepSeek V3 is that of the same
# model in 16 bits.

_INDEX = Document("index", "index.json", "index.json", MAX_JSON)


class ShardIndex(NamedTuple):
    """An index file, whose file names are plain names of files.

    Attributes:
        path: the index file.
        weight_map: tensor -> the name of its shard, in the index's order.
    """

    path: Path
    weight_map: Mapping[str, str]

    @property
    def tensor_counts(self) -> dict[str, int]:
        """Shard -> how many tensors it should hold, by the shard's name."""
        return dict(sorted(Counter(self.weight_map.values()).items()))


def read_shard_index(path: Path) -> ShardIndex:
    """Read an index; the shards are not looked at."""
    document = read_object(path, _INDEX)
    weight_map = document.get("weight_map")
    if not isinstance(weight_map, dict):
        found = f"is {kind(weight_map)}" if "weight_map" in document else "is missing"
        raise InputError("index.json", f"weight_map {found}; an object of file names is required", path=path)
    if not weight_map:
        raise InputError("index.json", "weight_map is empty", path=path)
    faults = Faults(path)
    for tensor, name in weight_map.items():
        if not isinstance(name, str):
            faults.add(
                "index.json", f"weight_map has {kind(name)} for {quoted(tensor)}; file names only", tensor=tensor
            )
    faults.check()
    shards = sorted(set(weight_map.values()))
    for name in shards:
        reason = _path_fault(name)
        if reason:
            faults.add("index.path", f"index names {quoted(name)}, {reason}", found=name)
    faults.check()
    return ShardIndex(path, weight_map)


def _path_fault(name: str) -> str | None:
    """Why a shard's name is no plain name of a file in the model directory."""
    if "\0" in name:
        return "which holds a NUL character"
    if name in ("", ".", "..") or "/" in name or "\\" in name:
        parts = name.replace("\\", "/").split("/")
        if name.startswith(("/", "\\")) or ".." in parts:
            return "outside the model directory"
        return "which is not a plain file name"
    if not name.lower().endswith(SUFFIX) and not is_pickle(name):
        return "which is not a safetensors file"
    return None


def check_against_shards(index: ShardIndex, shards: Iterable[SafetensorsFile]) -> tuple[str, ...]:
    """Notes on tensors that are not where the index lists them."""
    holders: dict[str, list[str]] = defaultdict(list)
    for shard in shards:
        for stored in shard.tensors:
            holders[stored.name].append(shard.path.name)

    unlisted: dict[str, list[str]] = defaultdict(list)
    elsewhere: dict[tuple[str, str], list[str]] = defaultdict(list)
    twice: dict[tuple[str, ...], list[str]] = defaultdict(list)
    absent: dict[str, list[str]] = defaultdict(list)
    for tensor, names in holders.items():
        listed_in = index.weight_map.get(tensor)
        if len(names) > 1:
            twice[tuple(names)].append(tensor)
        elif listed_in is None:
            unlisted[names[0]].append(tensor)
        elif names[0] != listed_in:
            elsewhere[names[0], listed_in].append(tensor)
    for tensor, name in index.weight_map.items():
        if tensor not in holders:
            absent[name].append(tensor)

    faults = Faults(index.path)
    for where, n in twice.items():
        hint = f"remove {'it' if len(n) == 1 else 'them'} from all but one of these files"
        every = "both" if len(where) == 2 else "all"
        faults.add("index.mismatch", f"{' and '.join(where)} {every} hold {_tensors(n)}: {few(n, 3)}", hint=hint)
    faults.check()
    notes = [f"{s} holds {_tensors(n)} that the index does not list: {few(n, 3)}" for s, n in unlisted.items()]
    notes += [f"{s} lacks {_tensors(n)} that the index lists there: {few(n, 3)}" for s, n in absent.items()]
    notes += [f"{s} holds {_tensors(n)} that the index lists in {at}: {few(n, 3)}" for (s, at), n in elsewhere.items()]
    return listed(notes)


def _tensors(names: list[str]) -> str:
    return counted(len(names), "tensor")


# Files of Mistral's own checkpoints, and of Meta's: several without an index, and ``params.json``.
#
# Files ``consolidated.00.pth``, ``consolidated.01.pth`` ... hold different tensors of a model each, or a share of every
# matrix: some of its rows or of its columns, as many as processors shall compute it (``model_parallel_size`` of Meta's
# llama; ``write_model`` of transformers' ``convert_llama_weights_to_hf.py`` knows of which matrix it is which).

_PART = r"consolidated\.\d\d\.(?:pth|pt)"
_TORCH_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def parts_of(name: str, names: Sequence[str]) -> list[str]:
    """Files that hold a model together with ``name``; or nothing."""
    return [each for each in sorted(names) if re.fullmatch(_PART, each)] if re.fullmatch(_PART, name) else []


def put_together(files: Sequence[SafetensorsFile]) -> tuple[SafetensorsFile, ...]:
    """The files, none of which holds a tensor of another."""
    holders: dict[str, Path] = {}
    for file in files if len(files) > 1 else ():
        for stored in file.tensors:
            other = holders.setdefault(stored.name, file.path)
            if other != file.path:
                message = (
                    f"{other.name} and {file.path.name} both hold {quoted(stored.name)}: "
                    f"each of {len(files)} files has a share of every matrix, of some by rows, of others by columns"
                )
                hint = "take the same model as Hugging Face has it, or join them with its publisher's script"
                raise UnsupportedError("hf.shares", message, path=file.path, tensor=stored.name, hint=hint)
    return tuple(files)


def described(
    params: Mapping[str, Any], files: tuple[SafetensorsFile, ...]
) -> tuple[dict[str, Any] | None, str, tuple[SafetensorsFile, ...]]:
    """Configuration in the words of ``config.json``; tensors named so."""
    config, note = reference_config(params)
    if config is None:
        return None, f"{note}: tensors keep the names of the file", files
    dtype = next((tensor.dtype.name for tensor in files[0].tensors), "")
    config |= {key: _TORCH_NAMES[dtype] for key in ("dtype", "torch_dtype") if dtype in _TORCH_NAMES}
    return config, note, tuple(file._replace(metadata={**file.metadata, NAMES_KEY: REFERENCE}) for file in files)


# The files of a Hugging Face or MLX checkpoint: which of them hold the tensors, and what lies beside those.
#
# A checkpoint is one ``model.safetensors``, or shards with a ``model.safetensors.index.json``, with ``config.json``
# and tokenizer files beside them; mlx-lm writes the index for a single file as well. Shards that are all there, or one
# file, are read without an index too, or beside one of another set: transformers takes ``model.safetensors`` first, and
# mlx-lm reads what is there. Older ones have
# ``pytorch_model.bin`` in their place, which another reader describes in the same words. A link is followed only if it
# stays in the directory, or leads into the ``blobs`` of the download cache that the directory is a snapshot of: a
# checkpoint must not be able to pass off any other file of this machine as its own. Whoever made the links himself says
# so (``--follow-links``); what an index names is in the directory all the same.

#: transformers 4 writes what Mamba 2 does not clamp as Infinity.
CONFIG_DOCUMENT = Document("configuration", "model.config", "model.config", MAX_JSON, lax=True)

#: Patterns of the files that belong to a checkpoint and are carried as they are.
SIDE_FILES = (
    metadata.CONFIG_NAME, "generation_config.json", "*preprocessor_config.json", "processor_config.json",
    "hf_quant_config.json", "quantize_config.json", "quant_config.json", "quanto_qmap.json",
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
    "normalizer.json", "chat_template.json", "*.jinja", "*.model", "*.model.v[0-9]*", "*.tiktoken", "tekken.json",
    "rwkv_vocab_*.txt", "params.json", "modules.json", "sentence_bert_config.json",
    "config_sentence_transformers.json", "*.py",
    "README.md", "LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*", "COPYING*", "CITATION*",
)  # fmt: skip

#: What describes a file of pickles as one of safetensors.
PickleReader = Callable[[Path], SafetensorsFile]

#: Names of pickles that hold weights, by choice; where there are none, any pickle but those of a training's state.
_WEIGHTS = ("pytorch_model*", "consolidated*", "*")
_TRAINING = ("training_args*", "optimizer*", "scheduler*", "scaler*", "rng_state*")


#: Layers that predict further tokens, where a checkpoint has them in a file that no index names.
DRAFTS_NAME = "mtp.safetensors"


class CheckpointFiles(NamedTuple):
    """A checkpoint's files, proved to agree with each other.

    Attributes:
        root: the directory.
        index_path: the index, ``None`` where a single file needs none.
        shards: the files of tensors, by name.
        tensors: the tensors of all shards, in the order of their data.
        config: the parsed ``config.json``, ``None`` where there is none.
        side_files: configuration, tokenizer and documentation files, by name; they are not opened.
        notes: what there is to say of the index and of the configuration.
        target: directory of the model that a drafter drafts for.
    """

    root: Path
    index_path: Path | None
    shards: tuple[SafetensorsFile, ...]
    tensors: Sequence[StoredTensor]
    config: dict[str, Any] | None
    side_files: tuple[Path, ...]
    notes: tuple[str, ...] = ()
    target: Path | None = None


def read_checkpoint_files(
    path: Path, *, follow_links: bool = False, read_pickle: PickleReader | None = None
) -> CheckpointFiles:
    """Find and validate the files of a checkpoint; read headers only.

    Args:
        path: a directory, an index file, or one file of tensors (its neighbors count as side files only where
            a ``config.json`` shows that they belong together).
        follow_links: links out of the directory are followed.
        read_pickle: describes a file that torch.save wrote; without it they are refused.

    Raises:
        InputError: ``index.json``, ``index.path``, ``index.missing``, ``index.mismatch``, ``hf.no-weights``,
            ``hf.ambiguous``, ``model.config``, those of ``read_safetensors``, ``read_pickle`` and ``open_source``.
        UnsupportedError: ``hf.pickle``, those of ``read_pickle``.
    """
    path = Path(path)
    root = path if path.is_dir() else path.parent
    names = names_in(path) if path.is_dir() else ()
    chosen = _choose(root, names, follow_links) if path.is_dir() else _chosen_by(path)
    if chosen.index_path is None:
        linked = follow_links or chosen.weights == (path.name,)  # whoever names the link itself means it
        parts = [regular_file(root, name, follow_links=linked) or root / name for name in chosen.weights]
        shards, notes = put_together([read_weights(part, read_pickle) for part in parts]), chosen.notes
    else:
        shards, notes = _read_shards(root, chosen.index_path, names, follow_links, read_pickle)
    separate = DRAFTS_NAME in names and all(shard.path.name != DRAFTS_NAME for shard in shards)
    if separate and (part := regular_file(root, DRAFTS_NAME, follow_links=follow_links)):
        shards = put_together([*shards, read_weights(part, read_pickle)])
    names = names or names_in(root)
    config = None
    if metadata.CONFIG_NAME in names and regular_file(root, metadata.CONFIG_NAME, follow_links=follow_links):
        config = metadata.opened(read_object(root / metadata.CONFIG_NAME, CONFIG_DOCUMENT))
    if config is None and path.is_dir() and shards[0].path.name.startswith(WEIGHTS) and PARAMS_NAME in names:
        params = regular_file(root, PARAMS_NAME, follow_links=follow_links)
        if params:
            config, note, shards = described(read_object(params, CONFIG_DOCUMENT), shards)
            notes += (note,)
    tensors = chained([shard.tensors for shard in shards])
    belong = path.is_dir() or config is not None
    side_files = _side_files(root, names, follow_links) if belong else ()
    if belong and (folder := metadata.pipeline_tokenizer(root)):
        own = {path.name for path in side_files}
        found = _side_files(folder, names_in(folder), follow_links)
        side_files += tuple(path for path in found if path.name not in own)
        notes = (*notes, f"the tokenizer is that of the pipeline, in {shown(folder)}")
    return CheckpointFiles(root, chosen.index_path, shards, tensors, config, side_files, notes)


def with_target(checkpoint: CheckpointFiles, base: Path, *, follow_links: bool) -> CheckpointFiles:
    """A drafter's checkpoint with the configuration of its model."""
    root = base if base.is_dir() else base.parent
    if not regular_file(root, metadata.CONFIG_NAME, follow_links=follow_links):
        raise InputError(
            "model.config", f"--base: no {metadata.CONFIG_NAME} of the model that it drafts for", path=root
        )
    document = read_object(root / metadata.CONFIG_NAME, CONFIG_DOCUMENT)
    document = metadata.text_on_top(document)
    config = checkpoint.config or {}
    if found := _of_another(config, document):
        raise InputError(
            "model.config",
            f"--base: it is not the model that the drafter in {shown(checkpoint.root)} drafts for: {found}",
            path=root,
            hint="--base DIR takes the directory of that model",
        )
    return checkpoint._replace(config={**config, metadata.TARGET: document}, target=root)


def _of_another(drafter: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """Clause on what two documents say otherwise; empty where they agree."""
    size = next((key for key in TAKEN if key in drafter), "hidden_size")
    pairs = {size: "hidden_size", "num_target_layers": "num_hidden_layers", "vocab_size": "vocab_size"}
    for key, other in pairs.items():
        one, stated = drafter.get(key), model.get(other)
        if isinstance(one, int) and isinstance(stated, int) and one != stated:
            return f"{other} is {stated:,}, and {key} of the drafter {one:,}"
    layers = model.get("num_hidden_layers")
    drafter = {**drafter, **metadata.table_within(drafter, "dflash_config")}
    for key, behind in {"target_layer_ids": 0, "eagle_aux_hidden_state_layer_ids": 1}.items():
        ids = [one for one in metadata.list_within(drafter, key) if isinstance(one, int)]
        if isinstance(layers, int) and max(ids, default=0) >= layers + behind:  # what the last layer gives counts, too
            return f"num_hidden_layers is {layers:,}, and the drafter reads layer {max(ids):,} ({key})"
    return ""


def regular_file(root: Path, name: str, *, follow_links: bool) -> Path | None:
    """The file of this name in a directory, ``None`` if there is none.

    Raises:
        InputError: ``index.path``, it is a link out of the directory and those are not followed, or no regular file.
    """
    return root / name if _is_there(root, name, "the directory holds", follow_links) else None


def names_in(root: Path) -> tuple[str, ...]:
    """The names in a directory, sorted."""
    try:
        return tuple(sorted(entry.name for entry in root.iterdir()))
    except OSError as error:
        raise unreadable(error, root, doing="cannot be listed") from None


class _Chosen(NamedTuple):
    """Index of a checkpoint, or the files of tensors where there is none."""

    index_path: Path | None
    weights: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def _choose(root: Path, names: tuple[str, ...], follow_links: bool) -> _Chosen:
    """Choose the files or the index that hold a directory's tensors.

    ``model*.safetensors`` goes before other names, as transformers and mlx-lm have it. Where they would not
    agree (transformers takes ``model.safetensors`` alone, mlx-lm every ``model*.safetensors``) nothing is guessed.
    """
    indexes = [name for name in names if name.endswith(SUFFIX + INDEX_SUFFIX)]
    indexes = [INDEX_NAME] if INDEX_NAME in indexes else indexes
    weights = [name for name in names if name.endswith(SUFFIX)]
    weights = [name for name in weights if name.startswith("model")] or weights
    kind, stale = "safetensors files", ""
    if not weights and len(indexes) < 2 and not _naming(root, indexes, follow_links):
        stale = indexes[0] if indexes else ""
        kind, indexes, weights = "pickle files", [name for name in names if name == PICKLE_INDEX], _pickles(names)
    if named := _naming(root, indexes, follow_links, weights):
        return _Chosen(named)
    if len(indexes) == 1:
        stale, indexes = indexes[0], []
    if not indexes and (whole := _whole(weights)):
        for name in whole:
            if not regular_file(root, name, follow_links=follow_links):
                raise InputError("input.missing", "is a link to a file that is not there", path=root / name)
        note = f"{stale} names none of the files that are there, and is not read"
        return _Chosen(None, tuple(whole), (note,) if stale else ())
    if stale:
        return _Chosen(root / stale)
    found = indexes or weights
    if not found:
        others = [name for name in names if name.endswith(".gguf")]
        hint = f"name the file instead of the directory: {quoted(others[0])}" if others else None
        none = "no model: no safetensors, GGUF or bump file, no adapter"
        what = "no safetensors file and no index" if others else none
        raise InputError("hf.no-weights", f"the directory holds {what}", path=root, hint=hint)
    sets: dict[tuple[str | int, ...], list[str]] = {}
    for name in found:
        sets.setdefault(shard[::2] if (shard := parse_shard_name(name)) else (name,), []).append(name)
    if len(sets) == 1:
        raise _incomplete(found, root)
    what = "indexes" if indexes else f"{kind} and no index"
    if len(sets) < len(found) and (whole := [each[0] for each in sets.values() if _whole(each)]):
        message = f"{len(found):,} {kind} of {len(sets):,} sets and no index: {few(found, 4)}"
        hint = f"name one of them instead of the directory, whose set is read: {' or '.join(map(quoted, whole))}"
        raise InputError("hf.ambiguous", message, path=root, found=len(sets), allowed=1, hint=hint)
    hint = f"fetch {_index_of(found[0])} if they are shards; else name one of them instead of the directory"
    message = f"{len(found):,} {what}: {few(found, 4)}"
    raise InputError("hf.ambiguous", message, path=root, found=len(found), allowed=1, hint=hint)


def _chosen_by(path: Path) -> _Chosen:
    """Choose the tensors' files for a named index, file or shard."""
    shard, index = parse_shard_name(path.name), path.with_name(_index_of(path.name))
    if path.name.endswith(INDEX_SUFFIX) or not path.exists():
        return _Chosen(path) if path.name.endswith(INDEX_SUFFIX) else _Chosen(None, (path.name,))
    if shard is None or shard[2] == 1:
        return _Chosen(None, tuple(parts_of(path.name, names_in(path.parent)) or [path.name]))
    same = [name for name in names_in(path.parent) if (it := parse_shard_name(name)) and it[::2] == shard[::2]]
    if index.exists() and (path.name in read_shard_index(index).weight_map.values() or not _whole(same)):
        return _Chosen(index)
    if not _whole(same):
        raise _incomplete(same, path)
    return _Chosen(None, tuple(same))


def _whole(names: Sequence[str]) -> Sequence[str]:
    """Names of one file or of all shards of a set; else none."""
    if len(names) > 1 and parts_of(names[0], names) == names:
        return names
    shards = [parse_shard_name(name) or (name, 1, 1) for name in names]
    whole = [(stem, number, len(names)) for number, (stem, _, _) in enumerate(shards, 1)]
    return names if shards == whole and len({stem for stem, _, _ in shards}) == 1 else ()


def _naming(root: Path, indexes: Sequence[str], follow_links: bool, weights: Sequence[str] = ()) -> Path | None:
    """The index, where there is one, and it names a file that is there.

    Args:
        weights: files that are a model without it, if they are all of a set.
    """
    if len(indexes) != 1:
        return None
    if not regular_file(root, indexes[0], follow_links=follow_links):
        raise InputError("input.missing", "is a link to a file that is not there", path=root / indexes[0])
    try:
        named = read_shard_index(root / indexes[0]).tensor_counts
    except InputError as error:
        if _whole(weights):
            error.hint = "move it away: the files that are there are a whole model without it"
        raise
    return root / indexes[0] if any(_is_there(root, name, "index names", follow_links) for name in named) else None


def _incomplete(names: Sequence[str], path: Path) -> InputError:
    """Some shards of a set, and not all."""
    stem, _, count = next(filter(None, map(parse_shard_name, names)))
    whole = [shard_name(stem, number, count, Path(names[0]).suffix) for number in range(1, count + 1)]
    message = f"{len(names):,} of {counted(count, 'shard')} {'is' if len(names) == 1 else 'are'} there, and no index"
    hint = _fetch([name for name in whole if name not in names])
    return InputError("index.missing", message, path=path, found=len(names), allowed=count, hint=hint)


def _fetch(missing: Sequence[str]) -> str:
    """A hint."""
    return f"the download looks incomplete: fetch {and_more([quoted(name) for name in missing])}"


def _index_of(name: str) -> str:
    """Name of the index of the shard ``name``."""
    shard = parse_shard_name(name)
    return f"{shard[0]}{Path(name).suffix}{INDEX_SUFFIX}" if shard else INDEX_NAME


def _pickles(names: tuple[str, ...]) -> list[str]:
    """The pickles of a directory that are most likely to hold its weights."""
    pickles = [name for name in names if is_pickle(name) and not any(fnmatchcase(name, glob) for glob in _TRAINING)]
    chosen = ([name for name in pickles if fnmatchcase(name, glob)] for glob in _WEIGHTS)
    return next((some for some in chosen if some), [])


def read_weights(path: Path, read_pickle: PickleReader | None) -> SafetensorsFile:
    """Read the headers of one file of tensors, whatever wrote it.

    Raises:
        InputError: those of ``read_safetensors`` and ``read_pickle``.
        UnsupportedError: ``hf.pickle``, those of ``read_pickle``.
    """
    if not is_pickle(path.name):
        return read_safetensors(path)
    if read_pickle is None:
        raise pickle_refusal(path, "is a pickle checkpoint")
    return read_pickle(path)


def _read_shards(
    root: Path, index_path: Path, names: tuple[str, ...], follow_links: bool, read_pickle: PickleReader | None
) -> tuple[tuple[SafetensorsFile, ...], tuple[str, ...]]:
    """Read every shard of an index; note weights that it does not name."""
    index = read_shard_index(index_path)
    counts = index.tensor_counts
    faults = Faults(index_path)
    others = [name for name in names if fnmatchcase(name, f"model*{SUFFIX}") and name not in counts]
    missing = [name for name in counts if not _is_there(root, name, "index names", follow_links)]
    for name in missing:
        hint = _fetch(missing) + (f"; or name {quoted(others[0])} instead of the directory" if others else "")
        tensors = counted(counts[name], "tensor")
        message = f"{name if name.isprintable() else quoted(name)} is missing (it should hold {tensors})"
        faults.add("index.missing", message, hint=hint)
    faults.check()
    for name in () if is_pickle(next(iter(counts))) else others:
        hint = f"remove it if it is left over, or name {quoted(index_path.name)} instead of the directory"
        message = f"{quoted(name)} is not named in the index, and some loaders would read it"
        faults.add("index.mismatch", message, hint=hint)
    faults.check()

    shards = []
    for name in counts:
        shard = _read_shard(root / name, faults, read_pickle)
        if shard:
            shards.append(shard)
    faults.check()
    return tuple(shards), check_against_shards(index, shards)


def _read_shard(path: Path, faults: Faults, read_pickle: PickleReader | None) -> SafetensorsFile | None:
    """Read a shard; note a fault for a git-lfs pointer."""
    try:
        return read_weights(path, read_pickle)
    except InputError as error:
        if error.code != "st.lfs-pointer":
            raise
        faults.add(error.code, f"{path.name} {error.message}", hint=error.hint)
        return None


def _is_there(root: Path, name: str, who: str, follow_links: bool) -> bool:
    """Say whether the directory has a regular file of this name."""
    path = root / name
    try:
        linked = path.is_symlink() or (path.parent != root and path.parent.is_symlink())
        if linked and not follow_links:
            target = os.path.realpath(path)
            if not _is_inside(target, os.path.realpath(root)):
                message = f"{who} {quoted(name)}, a link to {quoted(target)}, outside the model directory"
                hint = "--follow-links reads what it links to, if you made the link"
                raise InputError("index.path", message, path=path, found=target, hint=hint)
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise unreadable(error, path) from None
    except ValueError:
        # A name that this locale's file system encoding cannot hold.
        return False
    if not stat.S_ISREG(mode):
        kind = next((words for test, words in SPECIAL if test(mode)), "special file")
        message = f"{who} {quoted(name)}, which is a {kind} and not a regular file"
        raise InputError("index.path", message, path=path, found=kind, allowed="regular file")
    return True


def _is_inside(target: str, root: str) -> bool:
    """Say whether ``target`` is under ``root`` or a blob of its snapshot.

    Both are resolved.

    The cache is ``models--OWNER--NAME/snapshots/REVISION/FILE -> ../../blobs/HASH`` (huggingface_hub, "Understand
    caching"), or ``REVISION/PART/FILE``. A ``blobs`` that is itself a link, or a blob that is one, has another resolved
    directory.
    """
    if os.path.commonpath([target, root]) == root:
        return True
    for snapshots in Path(root).parents:  # a part of a pipeline is a directory in the snapshot
        if snapshots.name == "snapshots" and snapshots.parent.name.startswith("models--"):
            return os.path.dirname(target) == str(snapshots.parent / "blobs")
    return False


def _side_files(root: Path, names: tuple[str, ...], follow_links: bool) -> tuple[Path, ...]:
    matching = [name for name in names if any(fnmatchcase(name, pattern) for pattern in SIDE_FILES)]
    files = [name for name in matching if not (root / name).is_dir()]
    return tuple(root / name for name in files if regular_file(root, name, follow_links=follow_links))


# What sentence-transformers keeps beside a checkpoint: ``modules.json``, and a directory for each further module.
#
# Source: ``SentenceTransformer._load_sbert_model`` and ``Pooling`` of sentence-transformers; ``_try_set_pooling_type``
# of llama.cpp's converter, ``enum llama_pooling_type`` of its ``include/llama.h``.

MODULES = "modules.json"
#: Modules that other programs than sentence-transformers compute, too, or that change no direction.
PLAIN = ("Transformer", "Pooling", "Normalize")
POOLING, _PLACE = "Pooling", "1_Pooling"
_DENSE, _NORMALIZE = "Dense", "Normalize"
_PACKAGE = "sentence_transformers.models."
#: The linear layer behind the embedding of each token, of a ColBERT (``models/Dense.py`` of PyLate 1.6).
_OF_TOKENS = "pylate.models.Dense.Dense"
_IDENTITY = "torch.nn.modules.linear.Identity"
#: The matrix of a linear layer in its directory.
LINEAR = "linear.weight"

#: How embeddings are pooled: the word of new files, the key of old ones, the number in a GGUF, and in words.
_POOLINGS = (
    ("mean", "pooling_mode_mean_tokens", 1, "by their mean"),
    ("cls", "pooling_mode_cls_token", 2, "by the first token"),
    ("lasttoken", "pooling_mode_lasttoken", 3, "by the last token"),
)
#: Keys of a GGUF that no engine reads -> the documents that are stored there, for the way back.
_STORED = {
    "sentence_transformers.modules": MODULES,
    "sentence_transformers.pooling": f"{_PLACE}/config.json",
    "sentence_transformers.transformer": "sentence_bert_config.json",
    "sentence_transformers.config": "config_sentence_transformers.json",
}
#: Bytes of one; prompts are a few lines.
_MAX_STORED = 1 << 16
#: Keys of old files that ckconv never writes as true.
_OTHERS = ("pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens")
_DOCUMENT = Document("description", "model.config", "model.config", 1 << 20)


class Module(NamedTuple):
    """Module of a list: class without package, and directory."""

    kind: str
    path: str


def modules_of(root: Path) -> list[Module]:
    """Modules of ``modules.json``; nothing where there is none.

    Raises:
        InputError: ``model.config``, it is malformed.
    """
    path = root / MODULES
    if not path.is_file():
        return []
    return _listed(read_document(path, _DOCUMENT), path)


def _listed(data: bytes, path: Path) -> list[Module]:
    found = metadata.list_within(parse_object(b'{"modules": %s}' % data, _DOCUMENT, path), "modules")
    listed = [module for module in found if isinstance(module, dict)]
    return [Module(str(one.get("type")).rpartition(".")[2], str(one.get("path") or "")) for one in listed]


def ends_with_layers(root: Path, folders: Sequence[str]) -> bool:
    """Whether these linear layers follow the pooling, in this order.

    Where nothing pools, the model. One may be missing; nothing else is there but a normalization behind them.

    Raises:
        InputError: ``model.config``, ``modules.json`` is malformed.
    """
    behind = _behind(modules_of(root))
    named = {module.path for module in behind}
    return bool(behind) and behind == [Module(_DENSE, folder) for folder in folders if folder in named]


def _behind(modules: list[Module]) -> list[Module]:
    """Modules behind the pooling, or the model, but a last normalization."""
    at = next((n for n, module in enumerate(modules, 1) if module.kind == POOLING), 1)
    return modules[at:-1] if modules[-1:] and modules[-1].kind == _NORMALIZE else modules[at:]


def folders_of(root: Path) -> Iterator[str]:
    """The directories of modules that lie beside the model.

    Raises:
        InputError: ``model.config``, ``modules.json`` is malformed.
    """
    for module in modules_of(root):
        is_plain = Path(module.path).name == module.path and not module.path.startswith(".")
        if module.path and is_plain and (root / module.path).is_dir():
            yield module.path


def pooling_of(files: Mapping[str, Path], modules: list[Module]) -> tuple[int, str]:
    """GGUF's number, 0 where there is none, and the file that says so.

    Args:
        files: those that belong to the checkpoint, by their names in it. No other is read: a name in ``modules.json``
            may lead out of the directory, and so may a link.

    Raises:
        InputError: ``model.config``, the file is malformed.
    """
    name = next((f"{module.path}/config.json" for module in modules if module.kind == POOLING), "")
    return (_number(read_object(files[name], _DOCUMENT)), name) if name in files else (0, "")


def _number(document: Mapping[str, Any]) -> int:
    number = next((number for _, key, number, _ in _POOLINGS if document.get(key) is True), 0)
    return number or {word: number for word, _, number, _ in _POOLINGS}.get(str(document.get("pooling_mode")), 0)


def stored_documents(files: Mapping[str, Path]) -> dict[str, str]:
    """Key of a GGUF -> document beside a checkpoint, word for word.

    Args:
        files: those that belong to the checkpoint, by their names in it.

    Raises:
        InputError: ``model.config``, one is malformed.
    """
    data = {key: read_document(files[name], _DOCUMENT) for key, name in _STORED.items() if name in files}
    for key, text in data.items():
        if _STORED[key] != MODULES:
            parse_object(text, _DOCUMENT, files[_STORED[key]])
    return {key: text.decode() for key, text in data.items() if len(text) <= _MAX_STORED}


def documents_of(stored: Mapping[str, object], number: int, layers: Sequence[str]) -> dict[str, bytes]:
    """Files out of the keys of a GGUF, where they pool as it does.

    Args:
        stored: metadata of a GGUF.
        number: how it pools.
        layers: directories of the linear layers behind that.
    """
    files = {name: text.encode() for key, name in _STORED.items() if isinstance(text := stored.get(key), str)}
    pooling = files.get(_STORED["sentence_transformers.pooling"])
    try:
        modules = _listed(files.get(MODULES, b"[]"), Path(MODULES))
        document = parse_object(pooling, _DOCUMENT, Path(POOLING)) if pooling else {}
        for name in files.keys() - {MODULES, f"{_PLACE}/config.json"}:
            parse_object(files[name], _DOCUMENT, Path(name))
    except InputError:
        return {}
    linear = [Module(_DENSE, folder) for folder in layers]
    plain = all(module.kind in PLAIN or module in linear for module in modules)
    plain = plain and [module for module in _behind(modules) if module.kind not in PLAIN] == linear
    there = {module.path for module in modules if module.kind == POOLING} == ({_PLACE} if pooling else set())
    return files if modules and plain and there and _number(document) == number else {}


def pooled(number: object) -> str:
    """How, in words; empty for another number."""
    return next((words for _, _, own, words in _POOLINGS if own == number), "")


def pooling_files(number: int, width: int, context: int, layers: Sequence[str]) -> Mapping[str, bytes]:
    """Files of sentence-transformers that pool so, for old and new readers.

    Args:
        number: how; 0 for an embedding of each token.
        width: of an embedding.
        context: tokens that the model takes, 0 where nobody knows.
        layers: directories of the linear layers behind that.
    """
    linear = _PACKAGE + _DENSE if number else _OF_TOKENS
    there = {"": _PACKAGE + PLAIN[0], **({_PLACE: _PACKAGE + POOLING} if number else {})}
    there |= dict.fromkeys(layers, linear)
    modules = [{"idx": n, "name": str(n), "path": path, "type": kind} for n, (path, kind) in enumerate(there.items())]
    switches = {key: own == number for _, key, own, _ in _POOLINGS} | dict.fromkeys(_OTHERS, False)
    pooling = {"word_embedding_dimension": width, **switches, "include_prompt": True}
    documents = {MODULES: modules, **({f"{_PLACE}/config.json": pooling} if number else {})}
    documents |= {"sentence_bert_config.json": {"max_seq_length": context, "do_lower_case": False}} if context else {}
    return {name: (json.dumps(document, indent=2) + "\n").encode() for name, document in documents.items()}


def layer_files(layers: Mapping[str, Sequence[Piece]]) -> dict[str, bytes]:
    """Documents of the linear layers in these directories."""
    found = {}
    for folder, (piece, *_) in layers.items():
        rows, columns = piece.shape
        says = {"in_features": columns, "out_features": rows, "bias": False, "activation_function": _IDENTITY}
        found[f"{folder}/{metadata.CONFIG_NAME}"] = (json.dumps(says, indent=2) + "\n").encode()
    return found


def computes_plainly(document: Mapping[str, Any]) -> bool:
    """Whether a linear layer is its matrix alone."""
    function = str(document.get("activation_function", "")).rpartition(".")[2]
    return function == "Identity" and document.get("bias") is False and not document.get("use_residual")


# Directories of a checkpoint that are part of the model.

#: Where transformers has chat templates by name.
TEMPLATES = "additional_chat_templates"

#: Files by which a directory inside is known to be part of the model.
_PARTS = (metadata.CONFIG_NAME, "*.jinja", "*.py")


def part_files(root: Path, *, follow_links: bool) -> tuple[Path, ...]:
    """Files in directories of sentence-transformers' modules and templates.

    Raises:
        InputError: ``index.path``, one of them leads out of the directory, a hidden one too; as :func:`regular_file`.
    """
    folders = [*folders_of(root), *([TEMPLATES] if (root / TEMPLATES).is_dir() else [])]
    names = [f"{folder}/{name}" for folder in dict.fromkeys(folders) for name in names_in(root / folder)]
    files = [name for name in names if not (root / name).is_dir()]
    there = [root / name for name in files if regular_file(root, name, follow_links=follow_links)]
    return tuple(path for path in there if not path.name.startswith("."))


def parts_beside(path: Path, carried: Collection[str]) -> tuple[str, ...]:
    """Directories that look like part of a model and are not carried."""
    if not path.is_dir() or not carried:
        return ()
    own = {name.partition("/")[0] for name in carried if "/" in name}
    try:
        folders = sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        return tuple(
            folder.name
            for folder in folders
            if folder.name not in own
            and any(fnmatchcase(entry.name, pattern) for entry in folder.iterdir() for pattern in _PARTS)
        )
    except OSError:  # whoever reads them will say so
        return ()


# -- What a checkpoint or an adapter says besides its tensors ----------------------------------------------------------


def content(index: TensorIndex, _: Mapping[str, Path]) -> metadata.Content:
    """The metadata of the headers, and the files beside them."""
    keys = _header_keys(PICKLE_METADATA if is_pickle(path.name) else read_metadata(path) for path in index.files)
    return metadata.Content(keys, paths={**metadata.beside(index), **_beside(index)})


def _header_keys(headers: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    """Keys that all files of a checkpoint say, and each file's own."""
    keys: dict[str, Any] = {}
    first: Mapping[str, str] = {}
    for number, header in enumerate(headers):
        first = first if number else header
        if number == 0 or header != first:
            keys |= {metadata.numbered(f"{metadata.METADATA}.{key}", number): value for key, value in header.items()}
    return keys


def _beside(index: TensorIndex) -> dict[str, Path]:
    if index.adapter is not None:
        path = index.files[0].parent / ADAPTER_CONFIG
        return {path.name: path} if path.exists() else {}
    return {index.shard_index.name: index.shard_index} if index.shard_index else {}


#: A part of a fused tensor's name -> what ``--fuse`` calls it.
_FUSED = {"qkv_proj": "qkv", "gate_up_proj": "gate-up"}


def options_shown(source: TensorIndex, out: TensorIndex) -> dict[str, Any]:
    """The naming scheme, what was fused, and how matrices are packed."""
    names = [stored.name for stored in out.stored]
    before = [stored.name for stored in source.stored]
    fused = (
        word
        for part, word in _FUSED.items()
        if any(part in name for name in names) and not any(part in name for name in before)
    )
    names_of = str(out.metadata.get(f"{metadata.METADATA}.{NAMES_KEY}", "hf"))
    return {"names": names_of, "fuse": tuple(fused), "pack": _layout(out)}


def _layout(out: TensorIndex) -> str:
    """Whose layout its packed matrices have, as ``--pack`` calls it."""
    document = metadata.document_of(out.metadata) if out.packed else None
    method = metadata.within(document, "quantization_config", "quant_method")
    return str(method) if method in PACKED else ""


# Files that loaders read in the directory of a checkpoint, be it of an earlier one.

#: What loaders look for.
_LOADED = (f"model*{SUFFIX}", f"model*{SUFFIX}{INDEX_SUFFIX}")

#: Documents that transformers, mlx-lm, vLLM, sentence-transformers or their tokenizers look for by these names.
_DOCUMENTS = (
    "config.json", "generation_config.json", "preprocessor_config.json", "video_preprocessor_config.json",
    "processor_config.json", "hf_quant_config.json", "quantize_config.json", "quant_config.json", "quanto_qmap.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "vocab.txt", "merges.txt", "normalizer.json", "tokenizer.model", "tokenizer.model.v[0-9]*", "spiece.model",
    "sentencepiece.bpe.model", "tiktoken.model", "qwen.tiktoken", "tekken.json", "params.json", "chat_template.json",
    "chat_template.jinja", "additional_chat_templates/*.jinja", "modules.json", "sentence_bert_config.json",
    "config_sentence_transformers.json",
)  # fmt: skip


def takes_along(plan: Plan, _: Path) -> Globs:
    """Names of files that loaders read along with the output.

    transformers prefers ``model.safetensors`` to an index beside it, and loads the model that an adapter was made for
    where ``adapter_config.json`` is there (``find_adapter_config_file``); mlx-lm reads every ``model*.safetensors``
    (``mlx_lm.utils.load_model``). An output without files of tensors is what lies beside some.
    """
    names = [file.name for file in plan.files]
    if names and not any(_is_among(name, _LOADED) for name in names):
        return Globs()
    return Globs((*_LOADED, ADAPTER_CONFIG) if names else (), _DOCUMENTS)


#: Names of weights that loaders read with ``config.json``, and of those that have another document.
_CONFIGURED = (f"*{SUFFIX}", f"*{SUFFIX}{INDEX_SUFFIX}", "pytorch_model*.bin", PICKLE_INDEX)
_UNCONFIGURED = (f"adapter*{SUFFIX}", f"consolidated*{SUFFIX}")


def configured(directory: Path) -> list[str]:
    """Names of weights that ``config.json`` in the directory describes."""
    names = [path.name for path in directory.iterdir()]
    return [name for name in names if _is_among(name, _CONFIGURED) and not _is_among(name, _UNCONFIGURED)]


def _is_among(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
