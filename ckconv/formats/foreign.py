"""Files of other programs: what they are and what reads them, by their first bytes or by their names.

ckconv reads none of them. Sources of the magic numbers: FlatBuffers' file identifiers (bytes 4 to 7; ``TFL3`` of
TFLite's ``schema.fbs``, ``ET12`` of ExecuTorch's ``program.fbs``), the HDF5 file format specification, NumPy's
``lib/format.py``, the POSIX tar header (``ustar`` at byte 257), ``llama.h`` of llama.cpp in 2023 (``ggml``, ``ggmf``,
``ggjt``, ``ggla``, little-endian), Git LFS's ``docs/spec.md``, Cosmopolitan's ``ape/specification.md``, ``onnx.proto``
(field 1, ``ir_version``, and then a field of text).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from ckconv.errors import CkconvError, InputError, UnsupportedError

#: Bytes of a file that :func:`foreign_file` looks at.
HEAD = 512

#: The ways out of what has no other.
_ORIGINAL = "convert the checkpoint that it was made from"
_SAVED = "save it with save_pretrained(..., safe_serialization=True)"


class Foreign(NamedTuple):
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

#: What is told by its content goes first: a name may be any.
FOREIGN: tuple[Foreign, ...] = (
    Foreign("a GGML file of version ggjt", _GGML, _REQUANTIZED, _at(0, b"tjgg")),
    Foreign("a GGML file of version ggmf", _GGML, _REQUANTIZED, _at(0, b"fmgg")),
    Foreign("a GGML adapter (ggla)", _GGML, "convert the adapter's adapter_model.safetensors", _at(0, b"algg")),
    Foreign("a TFLite model", "LiteRT (TensorFlow Lite)", head=_at(4, b"TFL3"), names=("*.tflite",)),
    Foreign("a LiteRT-LM model", "LiteRT-LM", head=_at(0, b"LITERTLM"), names=("*.litertlm",)),
    Foreign("an ExecuTorch program", "ExecuTorch", head=_at(4, rb"ET\d\d"), names=("*.pte",)),
    Foreign("an HDF5 file", "Keras and h5py", _SAVED, _at(0, rb"\x89HDF\r\n\x1a\n"), ("*.h5", "*.hdf5")),
    Foreign("a NumPy array", "NumPy", "save it with safetensors.numpy.save_file", _at(0, rb"\x93NUMPY"), ("*.npy",)),
    Foreign("a NumPy archive", "NumPy", "give it the ending .npz", _at(0, rb"PK\x03\x04.{26}[ -~]{1,200}?\.npy")),
    Foreign("a gzip archive", "gzip", "gzip -dc FILE | ckconv convert - DST", _at(0, rb"\x1f\x8b")),
    Foreign("a Zstandard archive", "zstd", "zstd -dc FILE | ckconv convert - DST", _at(0, rb"\x28\xb5\x2f\xfd")),
    Foreign("an xz archive", "xz", "xz -dc FILE | ckconv convert - DST", _at(0, rb"\xfd7zXZ\x00")),
    Foreign("a TensorRT engine", "TensorRT", head=_at(0, b"ptrt"), names=("*.engine", "*.trt")),
    Foreign("a NeMo archive", "NVIDIA NeMo", "NeMo's exporters write a Hugging Face checkpoint", names=("*.nemo",)),
    Foreign("an ONNX model", "ONNX Runtime", head=_at(0, rb"\x08[\x03-\x1f]\x12[\x01-\x7f][ -~]{2}"),
            names=("*.onnx", "*.onnx_data", "onnx")),
    Foreign("an OpenVINO model", "OpenVINO", head=rb"<\?xml[^>]*>\s*<net\b",
            names=("openvino_*.xml", "openvino_*.bin")),
    Foreign("a Core ML model", "Core ML",
            names=("*.mlmodel", "*.mlpackage", "*.mlmodelc", "coremldata.bin", "com.apple.CoreML")),
    Foreign("a Keras archive", "Keras", _SAVED, names=("*.keras", "*.weights.h5")),
    Foreign("a TensorFlow model", "TensorFlow", _SAVED, names=("saved_model.pb", "tf_model.h5", "*.ckpt.index")),
    Foreign("a Flax checkpoint", "Flax", _SAVED, names=("*.msgpack",)),
    Foreign("a checkpoint of torch.distributed (DCP)", "torch.distributed.checkpoint",
            "name the directory that has .metadata beside it", names=("*.distcp",)),
    Foreign("an Orbax checkpoint", "Orbax", "restore it with Orbax and save it with safetensors.flax.save_file",
            names=("_CHECKPOINT_METADATA", "manifest.ocdbt", "ocdbt.process_*")),
    Foreign("a Megatron checkpoint", "Megatron-LM", "Megatron Bridge exports it as a Hugging Face checkpoint",
            names=("latest_checkpointed_iteration.txt", "mp_rank_[0-9][0-9]*", "model_optim_rng.pt")),
    Foreign("a DeepSpeed checkpoint", "DeepSpeed", "zero_to_fp32.py in the directory joins it",
            names=("zero_to_fp32.py", "*_model_states.pt", "*_optim_states.pt")),
)  # fmt: skip

#: The code of a pointer that stands for a file.
POINTER = "input.lfs-pointer"

_LFS = b"version https://git-lfs.github.com/spec/"


def _in(names: Collection[str], row: Foreign) -> bool:
    return any(fnmatchcase(name, glob) for name in names for glob in row.names)


def foreign_file(path: Path, head: bytes, *, by_name: bool = True) -> CkconvError | None:
    """The refusal of a file of another program; ``None`` for one that is not known.

    Args:
        head: its first :data:`HEAD` bytes, or all.
        by_name: its name counts where its bytes say nothing.
    """
    if head.startswith(_LFS):
        return InputError(POINTER, "a Git LFS pointer, not the file", path=path, hint="run `git lfs pull`")
    found = [row for row in FOREIGN if row.head is not None and re.match(row.head, head, re.DOTALL)]
    if not found and by_name:
        found = [row for row in FOREIGN if _in((path.name.lower(),), row)]
    return _refusal(found[0], path) if found else None


def foreign_directory(path: Path, names: Collection[str]) -> CkconvError | None:
    """The refusal of a directory of another program, which holds these names; ``None`` for one that is not known."""
    found = next((row for row in FOREIGN if _in(names, row)), None)
    return _refusal(found, path) if found else None


def _refusal(found: Foreign, path: Path) -> UnsupportedError:
    return UnsupportedError(
        "input.foreign", f"is {found.what}, which ckconv does not read (for {found.reads})", path=path, hint=found.hint
    )
