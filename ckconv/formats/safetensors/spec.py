"""Safetensors containers in bytes; file names of checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from io import BytesIO

from ckconv.core.metadata import METADATA
from ckconv.core.tensors import MAX_BYTES

# The safetensors container at byte level, and the file names of a checkpoint directory.
#
# A file is an 8-byte little-endian length N, a JSON object of N bytes, then the tensors' bytes::
#
#     0      u64   N, at most 100,000,000
#     8      {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {"K": "V"}}
#     8 + N  data; data_offsets are relative to here
#
# Source: README.md and ``safetensors/src/tensor.rs`` of safetensors 0.8. The README promises more than its
# parser keeps (a header that begins with ``{``, no duplicate keys); ckconv holds files to the README.

#: Bytes of the length field in front of the header.
LENGTH_BYTES = 8
#: ``MAX_HEADER_SIZE`` of tensor.rs, in bytes.
MAX_HEADER = 100_000_000
#: Bytes that a header's writer aligns the data to, by trailing spaces (``N_LEN`` of tensor.rs).
ALIGNMENT = 8
MAX_TENSORS = 1_000_000
#: Dimensions of a tensor; numpy and torch know no more either.
MAX_DIMS = 64
#: Bytes of a tensor's name in UTF-8.
MAX_NAME = 1024
#: No count, offset or size reaches this one.
TOO_LARGE = MAX_BYTES + 1

#: The fields of a tensor; all are required and no others exist.
FIELDS = ("dtype", "shape", "data_offsets")

SUFFIX = ".safetensors"
#: The configuration of an adapter, beside its tensors.
ADAPTER_CONFIG = "adapter_config.json"
SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
INDEX_SUFFIX = ".index.json"
#: What ``torch.save`` wrote, in older checkpoints: endings of names, and the index of several.
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
PICKLE_INDEX = "pytorch_model.bin.index.json"
#: What a file of torch's says of itself as one of safetensors.
PICKLE_METADATA = {"format": "pt"}
#: Bytes of an index or of a config.json.
MAX_JSON = 64_000_000

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.(?:safetensors|bin)", re.DOTALL)


def shard_name(stem: str, number: int, count: int, suffix: str = SUFFIX) -> str:
    """File name of shard ``number`` (from 1) of ``count``."""
    return f"{stem}-{number:05d}-of-{count:05d}{suffix}"


def is_pickle(name: str) -> bool:
    """A file of this name is one of ``torch.save``."""
    return name.lower().endswith(PICKLE_SUFFIXES)


def parse_shard_name(name: str) -> tuple[str, int, int] | None:
    """``(stem, number, count)`` of a shard's name; else ``None``."""
    match = _SHARD.fullmatch(name)
    return (match["stem"], int(match["number"]), int(match["count"])) if match else None


def encode_header(tensors: Iterable[tuple[str, str, tuple[int, ...], int]], metadata: Mapping[str, str]) -> bytes:
    """Header bytes with their length, padded to a multiple of 8.

    Args:
        tensors: name, safetensors' name of the type, shape, bytes; one after the other in the file.
        metadata: ``__metadata__``, which stands first and sorted, so that the same model gives the same bytes.
    """
    import json

    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    made = BytesIO(bytes(LENGTH_BYTES))  # of a million tensors it has 100 MB
    made.seek(LENGTH_BYTES)
    made.write(encode({METADATA: dict(sorted(metadata.items()))} if metadata else {})[:-1].encode())
    at = 0
    for name, dtype, shape, nbytes in tensors:
        entry = {name: dict(zip(FIELDS, (dtype, list(shape), [at, at + nbytes]), strict=True))}
        made.write(b"," if made.tell() > LENGTH_BYTES + 1 else b"")
        made.write(encode(entry)[1:-1].encode())
        at += nbytes
    made.write(b"}")
    made.write(b" " * (-made.tell() % ALIGNMENT))
    length = made.tell() - LENGTH_BYTES
    made.seek(0)
    made.write(length.to_bytes(LENGTH_BYTES, "little"))
    return made.getvalue()


# What mlx-lm calls the files of an adapter. Source: ``mlx_lm/tuner`` of mlx-lm 0.32.

MLX_NAME = "adapters.safetensors"


# What peft calls the files and tensors of an adapter.
#
# Sources: ``peft/utils/save_and_load.py`` and ``peft/tuners/lora`` of peft 0.21.

PEFT_NAME = "adapter_model.safetensors"
PEFT_PICKLE = "adapter_model.bin"

#: What every tensor's name begins with: the base model inside of a PeftModel.
PEFT_PREFIX = "base_model.model."
