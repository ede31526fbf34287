"""The files of a Hugging Face or MLX checkpoint: which of them hold the tensors, and what lies beside those.

A checkpoint is one ``model.safetensors``, or shards with a ``model.safetensors.index.json``, with ``config.json``
and tokenizer files beside them; mlx-lm writes the index for a single file as well. Shards that are all there, or one
file, are read without an index too, or beside one of another set: transformers takes ``model.safetensors`` first, and
mlx-lm reads what is there. Older ones have
``pytorch_model.bin`` in their place, which another reader describes in the same words. A link is followed only if it
stays in the directory, or leads into the ``blobs`` of the download cache that the directory is a snapshot of: a
checkpoint must not be able to pass off any other file of this machine as its own. Whoever made the links himself says
so (``--follow-links``); what an index names is in the directory all the same.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from ckconv.core.metadata import CONFIG_NAME
from ckconv.core.tensors import StoredTensor, chained
from ckconv.errors import Faults, InputError, counted, quoted, unreadable
from ckconv.families.reference import PARAMS_NAME, WEIGHTS
from ckconv.formats.safetensors.consolidated import described, parts_of, put_together
from ckconv.formats.safetensors.read import SafetensorsFile, pickle_refusal, read_safetensors
from ckconv.formats.safetensors.shardindex import check_against_shards, read_shard_index
from ckconv.formats.safetensors.spec import (
    INDEX_NAME,
    INDEX_SUFFIX,
    MAX_JSON,
    PICKLE_INDEX,
    SUFFIX,
    is_pickle,
    parse_shard_name,
    shard_name,
)
from ckconv.io.json import Document, read_object

#: transformers 4 writes what Mamba 2 does not clamp as Infinity.
CONFIG_DOCUMENT = Document("configuration", "model.config", "model.config", MAX_JSON, lax=True)

#: Patterns of the files that belong to a checkpoint and are carried as they are.
SIDE_FILES = (
    CONFIG_NAME, "generation_config.json", "*preprocessor_config.json", "processor_config.json", "hf_quant_config.json",
    "quantize_config.json", "quant_config.json", "quanto_qmap.json",
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
    "normalizer.json", "chat_template.json", "*.jinja", "*.model", "*.model.v[0-9]*", "*.tiktoken", "tekken.json",
    "params.json", "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "*.py",
    "README.md", "LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*", "COPYING*", "CITATION*",
)  # fmt: skip

_KINDS = (
    (stat.S_ISDIR, "directory"),
    (stat.S_ISFIFO, "FIFO"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "character device"),
    (stat.S_ISBLK, "block device"),
)


#: What describes a file of pickles as one of safetensors.
PickleReader = Callable[[Path], SafetensorsFile]

#: Names of pickles that hold weights, by choice; where there are none, any pickle but those of a training's state.
_WEIGHTS = ("pytorch_model*", "consolidated*", "*")
_TRAINING = ("training_args*", "optimizer*", "scheduler*", "scaler*", "rng_state*")


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
    """

    root: Path
    index_path: Path | None
    shards: tuple[SafetensorsFile, ...]
    tensors: Sequence[StoredTensor]
    config: dict[str, Any] | None
    side_files: tuple[Path, ...]
    notes: tuple[str, ...] = ()


def read_checkpoint_files(
    path: Path, *, follow_links: bool = False, read_pickle: PickleReader | None = None
) -> CheckpointFiles:
    """Find and validate the files of a checkpoint. Headers are read, no tensor data.

    Args:
        path: a directory, an index file, or one file of tensors (its neighbours count as side files only where
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
    chosen = _choose(root, names, follow_links) if path.is_dir() else _chosen_by(path, follow_links)
    if chosen.index_path is None:
        linked = follow_links or chosen.weights == (path.name,)  # whoever names the link itself means it
        parts = [regular_file(root, name, follow_links=linked) or root / name for name in chosen.weights]
        shards, notes = put_together([_read(part, read_pickle) for part in parts]), chosen.notes
    else:
        shards, notes = _read_shards(root, chosen.index_path, names, follow_links, read_pickle)
    names = names or names_in(root)
    config = None
    if CONFIG_NAME in names and regular_file(root, CONFIG_NAME, follow_links=follow_links):
        config = read_object(root / CONFIG_NAME, CONFIG_DOCUMENT)
    if config is None and path.is_dir() and shards[0].path.name.startswith(WEIGHTS) and PARAMS_NAME in names:
        params = regular_file(root, PARAMS_NAME, follow_links=follow_links)
        if params:
            config, note, shards = described(read_object(params, CONFIG_DOCUMENT), shards)
            notes += (note,)
    tensors = chained([shard.tensors for shard in shards])
    belong = path.is_dir() or config is not None
    side_files = _side_files(root, names, follow_links) if belong else ()
    return CheckpointFiles(root, chosen.index_path, shards, tensors, config, side_files, notes)


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
    """The index of a checkpoint, or the files of its tensors where there is none, or one of another set."""

    index_path: Path | None
    weights: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def _choose(root: Path, names: tuple[str, ...], follow_links: bool) -> _Chosen:
    """What holds the tensors of a directory.

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
    if named := _naming(root, indexes, follow_links):
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
        raise InputError("hf.no-weights", "the directory holds no safetensors file and no index", path=root, hint=hint)
    if len({(shard := parse_shard_name(name)) and shard[::2] for name in found}) == 1 and parse_shard_name(found[0]):
        raise _incomplete(found, root)
    what = "indexes" if indexes else f"{kind} and no index"
    some = ", ".join([quoted(name) for name in found[:4]] + ["..."] * (len(found) > 4))
    hint = f"fetch {_index_of(found[0])} if they are shards; else name one of them instead of the directory"
    message = f"{len(found):,} {what}: {some}"
    raise InputError("hf.ambiguous", message, path=root, found=len(found), allowed=1, hint=hint)


def _chosen_by(path: Path, follow_links: bool) -> _Chosen:
    """What holds the tensors where a file is named: an index, a file of its own, or a shard, which names its set.

    Raises:
        InputError: ``index.missing``.
    """
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
    """The names, where they are those of one file or of all shards of one set; else none."""
    if len(names) > 1 and parts_of(names[0], names) == names:
        return names
    shards = [parse_shard_name(name) or (name, 1, 1) for name in names]
    whole = [(stem, number, len(names)) for number, (stem, _, _) in enumerate(shards, 1)]
    return names if shards == whole and len({stem for stem, _, _ in shards}) == 1 else ()


def _naming(root: Path, indexes: Sequence[str], follow_links: bool) -> Path | None:
    """The index, where there is one, and it names a file that is there."""
    if len(indexes) != 1:
        return None
    if not regular_file(root, indexes[0], follow_links=follow_links):
        raise InputError("input.missing", "is a link to a file that is not there", path=root / indexes[0])
    named = read_shard_index(root / indexes[0]).tensor_counts
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
    more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
    return f"the download looks incomplete: fetch {quoted(missing[0])}{more}"


def _index_of(name: str) -> str:
    """The index of the shards of which ``name`` is one (``diffusion_pytorch_model.safetensors.index.json``)."""
    shard = parse_shard_name(name)
    return f"{shard[0]}{Path(name).suffix}{INDEX_SUFFIX}" if shard else INDEX_NAME


def _pickles(names: tuple[str, ...]) -> list[str]:
    """The pickles of a directory that are most likely to hold its weights."""
    pickles = [name for name in names if is_pickle(name) and not any(fnmatchcase(name, glob) for glob in _TRAINING)]
    chosen = ([name for name in pickles if fnmatchcase(name, glob)] for glob in _WEIGHTS)
    return next((some for some in chosen if some), [])


def _read(path: Path, read_pickle: PickleReader | None) -> SafetensorsFile:
    if not is_pickle(path.name):
        return read_safetensors(path)
    if read_pickle is None:
        raise pickle_refusal(path, "is a pickle checkpoint")
    return read_pickle(path)


def _read_shards(
    root: Path, index_path: Path, names: tuple[str, ...], follow_links: bool, read_pickle: PickleReader | None
) -> tuple[tuple[SafetensorsFile, ...], tuple[str, ...]]:
    """Every shard of an index, and notes; ``names`` of the directory, to find weights it does not name."""
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
    """One shard; ``None`` with a fault noted for a git-lfs pointer, of which a checkpoint often has many."""
    try:
        return _read(path, read_pickle)
    except InputError as error:
        if error.code != "st.lfs-pointer":
            raise
        faults.add(error.code, f"{path.name} {error.message}", hint=error.hint)
        return None


def _is_there(root: Path, name: str, who: str, follow_links: bool) -> bool:
    """A regular file of this name is in the directory; ``False`` if there is none.

    Raises:
        InputError: ``index.path``, the name leads out of the directory and may not, or is not a regular file;
            ``input.unreadable``, the system does not tell.
    """
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
        kind = next((words for test, words in _KINDS if test(mode)), "special file")
        message = f"{who} {quoted(name)}, which is a {kind} and not a regular file"
        raise InputError("index.path", message, path=path, found=kind, allowed="regular file")
    return True


def _is_inside(target: str, root: str) -> bool:
    """``target`` lies under ``root``, or is a blob of the cache that ``root`` is a snapshot of. Both are resolved.

    The cache is ``models--OWNER--NAME/snapshots/REVISION/FILE -> ../../blobs/HASH`` (huggingface_hub, "Understand
    caching"). A ``blobs`` that is itself a link, or a blob that is one, has another resolved directory.
    """
    if os.path.commonpath([target, root]) == root:
        return True
    snapshots = os.path.dirname(root)
    repository = os.path.dirname(snapshots)
    is_snapshot = os.path.basename(snapshots) == "snapshots" and os.path.basename(repository).startswith("models--")
    return is_snapshot and os.path.dirname(target) == os.path.join(repository, "blobs")


def _side_files(root: Path, names: tuple[str, ...], follow_links: bool) -> tuple[Path, ...]:
    matching = [name for name in names if any(fnmatchcase(name, pattern) for pattern in SIDE_FILES)]
    files = [name for name in matching if not (root / name).is_dir()]
    return tuple(root / name for name in files if regular_file(root, name, follow_links=follow_links))
