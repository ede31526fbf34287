"""Format of a path by its content; files of other programs by magic."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from ckconv.core.lazy import NamedTuple, replace
from ckconv.core.metadata import beside
from ckconv.core.tensors import Identity, TensorIndex, identity
from ckconv.errors import CkconvError, InputError, UnsupportedError, UsageError, counted, few, in_file, quoted, shown
from ckconv.formats import FORMATS, Reader, format_of, load, named, names
from ckconv.formats.gguf.values import parse_shard_name
from ckconv.formats.safetensors.container import ADAPTER_CONFIG, INDEX_SUFFIX, SUFFIX
from ckconv.io.files import ByteSource, open_source, readable, remembered

#: Names of files in a directory that may hold a model, which reads as another one.
_PARTS = (".metadata", "weights.npz", "pytorch_model_fsdp_*", "*[_-]model_states.pt", "latest")

_TURNED = "the source is big-endian: it is read with the bytes of each number reversed, and outputs are little-endian"

#: The file of a pipeline of diffusers that lists its models.
_PIPELINE = "model_index.json"

#: Kind of a file that holds a model -> its first bytes; :mod:`ckconv.formats.inside` reads it, and is slow to import.
_AROUND: dict[str, Callable[[bytes], object]] = {
    "tar": lambda head: head.startswith(b"ustar", 257),
    "llamafile": lambda head: head.startswith((b"MZqFpD", b"jartsr")),
    "npz": lambda head: head.startswith(b"PK") and re.match(rb"PK\x03\x04.{26}[ -~]{1,200}?\.npy", head, re.DOTALL),
    "big-endian": lambda head: head.startswith(b"GGUF\0\0") and head[6:8] != b"\0\0",
}

# Files of other programs: what they are and what reads them, by their first bytes or by their names.
#
# ckconv reads none of them. Sources of the magic numbers: FlatBuffers' file identifiers (bytes 4 to 7; ``TFL3`` of
# TFLite's ``schema.fbs``, ``ET12`` of ExecuTorch's ``program.fbs``), the HDF5 file format specification, NumPy's
# ``lib/format.py``, the POSIX tar header (``ustar`` at byte 257), ``llama.h`` of llama.cpp in 2023 (``ggml``, ``ggmf``,
# ``ggjt``, ``ggla``, little-endian), Git LFS's ``docs/spec.md``, Cosmopolitan's ``ape/specification.md``,
# ``onnx.proto`` (field 1, ``ir_version``, and then a field of text or the graph).

#: Bytes of a file that :func:`foreign_file` looks at.
HEAD = 512

#: The ways out of what has no other.
_ORIGINAL = "convert the checkpoint that it was made from"
_SAVED = "save it with save_pretrained(..., safe_serialization=True)"


class FileKind(NamedTuple):
    """One kind of file or directory.

    Attributes:
        what: with its article.
        reads: the programs that read it.
        hint: what somebody does who wants to convert it.
        head: regular expression that its first bytes match.
        names: globs: of its name; of a directory, of a name in it.
    """

    what: str
    reads: str
    hint: str = _ORIGINAL
    head: bytes | None = None
    names: tuple[str, ...] = ()


def _at(offset: int, magic: bytes) -> bytes:
    return rb".{%d}" % offset + magic


_GGML = "llama.cpp up to August 2023"
_REQUANTIZED = "llama.cpp's convert_llama_ggml_to_gguf.py makes a GGUF of it"

_NEMO = "NeMo's exporters write a Hugging Face checkpoint"
_NEMO_2 = (
    "nemo.collections.llm.export_ckpt(..., target='hf') writes one of Hugging Face; weights/ is read under own names"
)

#: What is known by its content goes first: a name may be any.
FOREIGN: tuple[FileKind, ...] = (
    FileKind("a GGML file of version ggjt", _GGML, _REQUANTIZED, _at(0, b"tjgg")),
    FileKind("a GGML file of version ggmf", _GGML, _REQUANTIZED, _at(0, b"fmgg")),
    FileKind("a GGML adapter (ggla)", _GGML, "convert the adapter's adapter_model.safetensors", _at(0, b"algg")),
    FileKind("a TFLite model", "LiteRT (TensorFlow Lite)", head=_at(4, b"TFL3"), names=("*.tflite",)),
    FileKind("a LiteRT-LM model", "LiteRT-LM", head=_at(0, b"LITERTLM"), names=("*.litertlm",)),
    FileKind("an ExecuTorch program", "ExecuTorch", head=_at(4, rb"ET\d\d"), names=("*.pte",)),
    FileKind("an HDF5 file", "Keras and h5py", _SAVED, _at(0, rb"\x89HDF\r\n\x1a\n"), ("*.h5", "*.hdf5")),
    FileKind("a NumPy array", "NumPy", "save it with safetensors.numpy.save_file", _at(0, rb"\x93NUMPY"), ("*.npy",)),
    FileKind("a NumPy archive", "NumPy", "give it the ending .npz", _at(0, rb"PK\x03\x04.{26}[ -~]{1,200}?\.npy")),
    FileKind("a gzip archive", "gzip", "gzip -dc FILE | ckconv convert - DST", _at(0, rb"\x1f\x8b")),
    FileKind("a Zstandard archive", "zstd", "zstd -dc FILE | ckconv convert - DST", _at(0, rb"\x28\xb5\x2f\xfd")),
    FileKind("a bzip2 archive", "bzip2", "bzip2 -dc FILE | ckconv convert - DST", _at(0, rb"BZh[1-9]1AY&SY")),
    FileKind("an xz archive", "xz", "xz -dc FILE | ckconv convert - DST", _at(0, rb"\xfd7zXZ\x00")),
    FileKind("a TensorRT engine", "TensorRT", head=_at(0, b"[pf]trt"), names=("*.engine", "*.trt")),
    FileKind("a NeMo archive", "NVIDIA NeMo", _NEMO, names=("*.nemo",)),
    FileKind("a NeMo 2 checkpoint", "NVIDIA NeMo", _NEMO_2, names=("context/io.json", "context/model.yaml")),
    FileKind("an ONNX model", "ONNX Runtime", head=_at(0, rb"\x08[\x03-\x1f](?:\x12[\x01-\x7f][ -~]{2}|\x3a)"),
            names=("*.onnx", "*.onnx_data", "onnx")),
    FileKind("an OpenVINO model", "OpenVINO", head=rb"<\?xml[^>]*>\s*<net\b",
            names=("openvino_*.xml", "openvino_*.bin")),
    FileKind("a Core ML model", "Core ML",
            names=("*.mlmodel", "*.mlpackage", "*.mlmodelc", "coremldata.bin", "com.apple.CoreML")),
    FileKind("an MNN model", "MNN", names=("*.mnn", "*.mnn.weight")),
    FileKind("a PaddlePaddle model", "PaddlePaddle", names=("*.pdparams", "*.pdiparams", "*.pdmodel")),
    FileKind("a Keras archive", "Keras", _SAVED, names=("*.keras", "*.weights.h5")),
    FileKind("a TensorFlow model", "TensorFlow", _SAVED, names=("saved_model.pb", "tf_model.h5", "*.ckpt.index")),
    FileKind("a Flax checkpoint", "Flax", _SAVED, names=("*.msgpack",)),
    FileKind("a checkpoint of torch.distributed (DCP)", "torch.distributed.checkpoint",
            "name the directory that has .metadata beside it", names=("*.distcp",)),
    FileKind("an Orbax checkpoint", "Orbax", "restore it with Orbax and save it with safetensors.flax.save_file",
            names=("_CHECKPOINT_METADATA", "manifest.ocdbt", "ocdbt.process_*")),
    FileKind("a Megatron checkpoint", "Megatron-LM", "Megatron Bridge exports it as a Hugging Face checkpoint",
            names=("latest_checkpointed_iteration.txt", "mp_rank_[0-9][0-9]*", "model_optim_rng.pt")),
    FileKind("an HQQ model in a pickle", "hqq", "AutoHQQHFModel.save_to_safetensors writes what is read",
            names=("qmodel.pt",)),
    FileKind("a DeepSpeed checkpoint", "DeepSpeed", "zero_to_fp32.py in the directory joins it",
            names=("zero_to_fp32.py", "*_model_states.pt", "*_optim_states.pt")),
)  # fmt: skip

#: Archives of anything, where neither content nor name tells more.
_ARCHIVES: tuple[FileKind, ...] = (
    FileKind("an archive of torch.save", "PyTorch", "give it the ending .pt", rb"PK\x03\x04.{26}[^/]{1,200}/data\.pkl"),
    FileKind("a zip archive", "unzip", "unpack it and name the model in it", _at(0, rb"PK\x03\x04")),
    FileKind("a 7-Zip archive", "7-Zip", "unpack it and name the model in it", _at(0, rb"7z\xbc\xaf\x27\x1c")),
    FileKind("a RAR archive", "unrar", "unpack it and name the model in it", _at(0, rb"Rar!\x1a\x07")),
)

#: The code of a pointer that stands for a file.
POINTER = "input.lfs-pointer"

_LFS = b"version https://git-lfs.github.com/spec/"


def _in(names: Collection[str], row: FileKind) -> bool:
    return any(fnmatchcase(name, glob) for name in names for glob in row.names)


def foreign_file(path: Path, head: bytes, *, by_name: bool = True) -> CkconvError | None:
    """Refusal of another program's file; ``None`` for an unknown one.

    Args:
        head: its first :data:`HEAD` bytes, or all.
        by_name: its name counts where its bytes say nothing.
    """
    if head.startswith(_LFS):
        return InputError(POINTER, "a Git LFS pointer, not the file", path=path, hint="run `git lfs pull`")
    found = [row for row in FOREIGN if row.head is not None and re.match(row.head, head, re.DOTALL)]
    if not found and by_name:
        found = [row for row in FOREIGN if _in((path.name.lower(),), row)]
        found += [row for row in _ARCHIVES if row.head is not None and re.match(row.head, head, re.DOTALL)]
    return _refusal(found[0], path) if found else None


def foreign_directory(path: Path, names: Collection[str]) -> CkconvError | None:
    """Refusal of another program's directory, by the names in it."""
    found = next((row for row in FOREIGN if _in(names, row)), None)
    return _refusal(found, path) if found else None


def _refusal(found: FileKind, path: Path) -> UnsupportedError:
    return UnsupportedError(
        "input.foreign", f"is {found.what}, which ckconv does not read (for {found.reads})", path=path, hint=found.hint
    )


# What a path holds, by its content; a name only decides which reader gets to complain.

#: What a directory of safetensors files is, unless something in it says another.
_CHECKPOINT = "safetensors"


def detect(path: Path, source: ByteSource) -> str:
    """The format of an open file.

    Raises:
        InputError: ``input.format``, if neither its content nor its name says.
        UnsupportedError: ``input.foreign``, it is another program's.
    """
    head = source.read_at(0, 16)
    name = path.name.lower()
    for format in FORMATS:
        if (
            format.detect_beside
            and source.size is not None
            and name.endswith(format.suffix)
            and load(format.detect_beside)(path)
        ):
            return format.name
    for format in FORMATS:
        if format.head is not None and format.head.match(head):
            return format.name
    own = next((format.name for format in FORMATS if name.endswith(format.endings)), None)
    foreign = foreign_file(path, source.read_at(0, HEAD), by_name=own is None)
    if own is not None and foreign is None and source.size is not None:
        foreign = _weights_of_openvino(path)
    if foreign is not None and not (foreign.code == POINTER and name.endswith((".gguf", SUFFIX))):  # own codes
        raise foreign
    if own is not None:
        return own
    what = f"starts with {quoted(head[:8].decode('latin-1'))}, which" if head else "is empty, which"
    message = f"{what} is not a format that ckconv reads ({', '.join(names())})"
    hint = "--from FORMAT reads it as that format and says what is wrong with it"
    ends = tuple(ending for format in FORMATS for ending in format.endings)
    if path.suffix == ".json" and path.parent.is_dir() and any(e.name.endswith(ends) for e in path.parent.iterdir()):
        hint = f"the model is its directory: name {shown(path.parent)}"
    if _AROUND["tar"](source.read_at(0, HEAD)):
        message = "is a tar archive, and of a pipe only a header is read here"
        hint = "ckconv convert - DST reads it, and every command does where it is a file"
    raise InputError("input.format", message, path=path, hint=hint)


def _weights_of_openvino(path: Path) -> CkconvError | None:
    """Refusal of unknown bytes called like OpenVINO's or beside its model."""
    if path.suffix != ".bin":
        return None
    if path.name.startswith("openvino_"):
        return foreign_file(path, b"")
    model = path.with_suffix(".xml")
    if not model.is_file():
        return None
    with open_source(model) as file:
        found = foreign_file(model, file.read_at(0, HEAD), by_name=False)
    if found is not None:
        found.path = shown(path)
    return found


def open_index(
    path: Path,
    *,
    format: str | None = None,
    source: ByteSource | None = None,
    config_path: Path | None = None,
    base: Path | None = None,
    follow_links: bool = False,
    drop: Sequence[str] = (),
) -> TensorIndex:
    """Open a model or an adapter of any format: headers only.

    Args:
        format: read it as this format, whatever it looks like.
        source: the bytes, where they are not a file (a pipe).
        config_path: the configuration of a bump file, if it is not ``config.json`` beside it.
        base: the model that an adapter was made for, if not where the adapter says it is.
        follow_links: links out of a directory of safetensors files, the base's too, are followed.
        drop: globs of tensors that are to be left out: they need not fit the family's rules.

    Raises:
        InputError: malformed, missing or unreadable.
        UnsupportedError: nothing but pickles, or tensors of a quantizer that is not read.
        UsageError: ``usage``, there is no such format.
    """
    format = named(format) if format else None
    if format is not None and format not in names():
        raise UsageError("usage", f"no format is called {quoted(format)}; one of {', '.join(names())} expected")
    if source is None and _may_be_named(path):
        from ckconv.formats.locate import located

        path = located(path)
    piped = how = ""
    if source is None:
        if path == Path("-") and not os.path.lexists(path):
            from ckconv.io.standins import spooled

            path, nbytes = spooled()
            piped = f"read from a pipe: {nbytes:,} bytes of temporary space"
        with readable(path):
            path, how = _within(path)
    with readable(path):
        is_directory = source is None and path.is_dir()
    away = _brought_back(path) if is_directory else []
    with in_file(path):  # rules about tensors know no files
        try:
            index, opened = _remembered(path, format, source, config_path, base, follow_links, drop)
        except InputError as error:
            if source is None and not is_directory:
                away = _brought_back(path.parent)
            if not away or is_directory:
                error.details = (*error.details, *away)
                raise
            index, opened = _remembered(path, format, source, config_path, base, follow_links, drop)
        if index.misfit is not None:
            index.misfit.path = index.misfit.path or shown(path)
        index = replace(index, notes=(*filter(None, (piped, how)), *index.notes))
        if source is not None:
            return index
        return replace(index, identities=_identities([*index.files, *beside(index).values()], opened))


def _brought_back(directory: Path) -> list[str]:
    from ckconv.publish.journal import bring_back

    return bring_back(directory)


def _remembered(path: Path, *how: Any) -> tuple[TensorIndex, Mapping[Path, Identity]]:
    with readable(path), remembered() as opened:
        return _open(path, *how), opened


def _within(path: Path) -> tuple[Path, str]:
    """Stand-in of a model in other files, and a note; else the path itself."""
    kind = ""
    if path.is_dir():
        kind = "directory" if any(fnmatchcase(e.name, glob) for e in path.iterdir() for glob in _PARTS) else ""
    elif path.is_file() and path.suffix != ".nemo":  # a tar, too, of another program's
        with open_source(path) as file:
            head = file.read_at(0, 512)
        kind = next((kind for kind, first in _AROUND.items() if first(head)), "")
    if not kind or (kind == "npz" and path.suffix.lower() != ".npz"):
        return path, ""
    from ckconv.formats.inside import inside

    return inside(path, kind), _TURNED * (kind == "big-endian")


def _may_be_named(path: Path) -> bool:
    """Say whether a path that is not there is an address or OWNER/NAME."""
    text = path.as_posix()
    return (":" in text or text.count("/") == 1) and not os.path.lexists(path)


def _identities(files: Iterable[Path], opened: Mapping[Path, Identity]) -> dict[Path, Identity]:
    """Identities of the files, by descriptor or, of side files, by name."""
    found = {}
    for path in files:
        with suppress(OSError):  # whoever reads it will say so
            found[path] = opened.get(path) or identity(path.stat())
    return found


def _open(
    path: Path,
    format: str | None,
    source: ByteSource | None,
    config_path: Path | None,
    base: Path | None,
    follow_links: bool,
    drop: Sequence[str],
) -> TensorIndex:
    given = {
        "drop": drop,
        "source": source,
        "config_path": config_path,
        "base": base,
        "opener": partial(_open_base, follow_links=follow_links),
        "follow_links": follow_links,
    }
    adapter = adapter_format(path, format) if source is None else None
    if adapter:
        return _read(format_of(adapter).read_adapter, path, given)
    if source is None and path.is_dir():
        model = _model_in(path, format)
        if model is not None:
            return open_index(
                model, format=format, config_path=config_path, base=base, follow_links=follow_links, drop=drop
            )
        found, what = format_of(format or _CHECKPOINT), "a checkpoint"
    else:
        opened = source or open_source(path)
        try:
            found = format_of(format or detect(path, opened))
        finally:
            if source is None:
                opened.close()
        what = found.name
    if found.read is None:
        raise UsageError("usage", f"{found.name} is a directory, and {shown(path)} is not")
    if config_path is not None and "config_path" not in found.read.takes:
        raise UsageError("usage", f"--config names a bump file's configuration, and {shown(path)} is {what}")
    return _read(found.read, path, given)


def _read(reader: Reader | None, path: Path, given: Mapping[str, Any]) -> TensorIndex:
    assert reader is not None
    index: TensorIndex = load(reader.place)(path, **{name: given[name] for name in reader.takes})
    return index


def adapter_format(path: Path, format: str | None = None) -> str | None:
    """Kind of adapter in the path, ``peft`` or ``mlx``; else ``None``.

    A directory that holds a whole model besides is a model.

    Raises:
        InputError: ``input.unreadable``, its names cannot be listed.
        OutputError: ``system``.
    """
    files = {file: row.name for row in FORMATS for file in row.adapter_files}
    if format is not None and format not in files.values():
        return None
    alone = format if format is not None and format_of(format).read is None else None
    if not path.is_dir():
        return files.get(path.name, alone)
    with readable(path):
        names = {entry.name for entry in path.iterdir()}
    if alone:
        return alone
    if any(fnmatchcase(name, "model*.safetensors*") for name in names):
        return None
    found = next((kind for name, kind in files.items() if name in names), None)
    suffixes = tuple(row.suffix for row in FORMATS if row.suffix)
    if found or any(name.endswith((*suffixes, ".bin")) for name in names):
        return found
    return "peft" if any((path / name / ADAPTER_CONFIG).is_file() for name in sorted(names)) else None


def _open_base(path: Path, *, follow_links: bool) -> TensorIndex:
    """The model that an adapter changes. An adapter that names itself is none."""
    if adapter_format(path):
        raise UnsupportedError("model.architecture", "is an adapter, not the model that an adapter changes", path=path)
    return open_index(path, follow_links=follow_links)


def _model_in(path: Path, format: str | None) -> Path | None:
    """Only model file in a directory; ``None`` where it is a checkpoint."""
    with readable(path):
        names = sorted(entry.name for entry in path.iterdir())
    if format is None or format_of(format).single:
        suffixes = [row.suffix or row.file for row in FORMATS if row.single and format in (None, row.name)]
        models = _model_files([name for name in names if name.endswith(tuple(suffixes))])
        if format is None and any(name.endswith((SUFFIX, INDEX_SUFFIX)) for name in names):
            models = []
        if len(models) > 1:
            message = f"holds {len(models):,} models: {few(models, 4)}"
            raise InputError("input.format", message, path=path, hint="name one of them")
        if models:
            return path / models[0]
        if not any(name.endswith((SUFFIX, INDEX_SUFFIX)) for name in names):
            _check_pipeline(path, names)
            inner = [f"context/{it.name}" for it in (path / "context").glob("*")]  # of NeMo
            if it := foreign_directory(path, (*names, path.name, *inner)):
                raise it
        if format is not None:
            raise InputError("input.directory", f"is a directory without a {format} file", path=path)
    return None


def _check_pipeline(path: Path, names: Sequence[str]) -> None:
    """Refuse the directory of a pipeline of diffusers with several models."""
    folders = [path / name for name in names if (path / name).is_dir()] if _PIPELINE in names else []
    endings = ("*.safetensors", "*.bin")
    if parts := [*dict.fromkeys(it.name for ending in endings for it in folders if any(it.glob(ending)))]:
        hint = f"convert one after the other: {', '.join(shown(path / name) for name in parts)}"
        message = (
            f"is a pipeline of diffusers and holds {counted(len(parts), 'model')}: {', '.join(map(quoted, parts))}"
        )
        raise InputError("input.format", message, path=path, hint=hint)


def _model_files(names: list[str]) -> list[str]:
    """One name a model: of a split set, the first that is there."""
    models: dict[object, str] = {}
    for name in names:
        shard = parse_shard_name(name)
        models.setdefault((shard.stem, shard.count) if shard else name, name)
    return list(models.values())
