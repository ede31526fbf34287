"""Layout, headers, filters and words of whisper.cpp's files; records.

All numbers are little-endian, 32 bits wide (``convert-h5-to-ggml.py``, ``whisper_model_load`` of whisper.cpp)::

    0    magic 0x67676d6c
    4    ten numbers of the model (families/speech/whisper_cpp.toml), then the type of the file: its remainder by 1000
         is a ggml_ftype, the rest the version of the quantization
    48   filters: their number, bins of each, and as many floats
         words: their number; of each its length in bytes, and the bytes
         tensors: number of axes, length of the name, ggml type; axes, innermost first; name; data, not aligned
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from struct import pack, unpack
from typing import NamedTuple

from ckconv.core.layouts import BY_GGML, DType, float32
from ckconv.core.metadata import Content
from ckconv.core.tensors import Extent, MetadataKind, StoredTensor, TensorIndex, plain_tensor
from ckconv.errors import UnsupportedError, quoted
from ckconv.families.canonical import Item, canonicalize
from ckconv.families.catalog import bracketed_of
from ckconv.families.huggingface_config import huggingface_config
from ckconv.families.towers import USUAL, speech, speech_document, speech_family, speech_names
from ckconv.io.files import ByteSource, Cursor, open_source

# -- The layout of a file of whisper.cpp, and the filters that it carries ----------------------------------------------

NAME = "whisper-ggml"
MAGIC = b"lmgg"
MODEL_NAME = "ggml-model.bin"

#: Bins of a filter: half of a window of 400 samples, and one.
BINS = 201
#: Types of a file by the type of its matrices (``ggml_ftype``).
FILE_TYPES = {"F32": 0, "F16": 1}
#: By this the type of the file is separated from the version of its quantization.
VERSION_FACTOR = 1000
MAX_AXES = 4

#: What begins with the same magic and has another header: llama.cpp's files before ``ggmf``, ggml's examples.
_OTHERS = "not of whisper.cpp? llama.cpp of March 2023, GPT-2 and GPT-J of ggml began their files so, too: \
convert the checkpoint that they were made from"

_SAMPLES, _RATE = 400, 16000
#: Of Slaney's scale: hertz of a mel below the break, the break, and the logarithm of a step above it.
_LINEAR, _BREAK, _STEP = 200.0 / 3, 1000.0, math.log(6.4) / 27.0


def words(*numbers: int) -> bytes:
    """Numbers as they stand in the file."""
    return pack(f"<{len(numbers)}i", *numbers)


@cache
def filters(count: int) -> bytes:
    """Mel filters of ``librosa.filters.mel``, each behind the last.

    ``librosa.filters.mel(sr=16000, n_fft=400, n_mels=count)``

    Triangles are rounded to float32 before they are scaled, and the product again. Those of transformers, which are
    rounded once, differ in the last bit of some.
    """
    top = _BREAK / _LINEAR + math.log(_RATE / 2 / _BREAK) / _STEP
    edges = [_hertz(top * n / (count + 1)) for n in range(count + 1)] + [_hertz(top)]
    made = []
    for low, middle, high in zip(edges, edges[1:], edges[2:], strict=False):
        for bin in range(BINS):
            at = bin * _RATE / _SAMPLES
            height = min(-(low - at) / (middle - low), (high - at) / (high - middle))
            made.append(float32(0.0 if height < 0 else height) * (2.0 / (high - low)))
    return pack(f"<{len(made)}f", *made)


def _hertz(mel: float) -> float:
    first = _BREAK / _LINEAR
    return _BREAK * math.exp(_STEP * (mel - first)) if mel >= first else _LINEAR * mel


# -- Headers, filters and words of whisper.cpp's files; tensors' records -----------------------------------------------

#: Bytes that are read at once where a tensor is described.
_RECORD = 1 << 8
#: The code of a file that ends too early.
_TRUNCATED = "whisper.truncated"
#: Bytes of a name; the longest has 42.
_LONGEST_NAME = 1 << 10
#: Largest number of the header; the embedding has 51,866 rows.
_LARGEST = 1 << 20


class Header(NamedTuple):
    """Fields before the tensors.

    Attributes:
        numbers: by key of ``config.json``.
        file_type: as it stands there.
        filters: their bytes.
        words: by id.
        end: where the tensors begin.
    """

    numbers: Mapping[str, int]
    file_type: int
    filters: bytes
    words: tuple[bytes, ...]
    end: int


class _Cursor(Cursor):
    """A position in a file."""

    def numbers(self, count: int, what: str) -> tuple[int, ...]:
        """The next numbers."""
        return unpack(f"<{count}i", self.need(4 * count, what))


def open_whisper_ggml(path: Path, *, source: ByteSource | None = None) -> TensorIndex:
    """Read the headers of a file and apply its family's rules.

    Raises:
        InputError: ``whisper.*``, the file is malformed; ``model.config``, tensors contradict the header.
        UnsupportedError: ``whisper.pipe``.
    """
    if source is not None:
        if source.size is None:
            message = "each tensor is described right before its values: such a file is not read out of a pipe"
            raise UnsupportedError("whisper.pipe", message, path=path, hint="save it, and name the file")
        return _index(path, source)
    with open_source(path) as opened:
        return _index(path, opened)


def header_of(source: ByteSource) -> Header:
    """Read the fields before the tensors.

    Raises:
        InputError: ``whisper.magic``, ``whisper.truncated``, ``whisper.header``, ``whisper.words``.
    """
    table, cursor = speech(), _Cursor(source, _TRUNCATED)
    magic = cursor.need(len(MAGIC), "the magic")
    if magic != MAGIC:
        raise cursor.fault("whisper.magic", f"starts with {quoted(magic.decode('latin-1'))}, not with 'lmgg'", offset=0)
    *found, file_type = cursor.numbers(len(table.header) + 1, "the header")
    numbers: dict[str, int] = {}
    named = dict[str, str]()
    for (name, key), number in zip(table.header, found, strict=True):
        if not 0 < number <= _LARGEST:
            text = f"{name} is {number:,}, outside 1 to {_LARGEST:,}"
            raise cursor.fault("whisper.header", text, found=number, hint=_OTHERS)
        if numbers.setdefault(key, number) != number:
            text = f"{named[key]} is {numbers[key]:,}, {name} is {number:,}"
            raise cursor.fault("whisper.header", text, found=number, hint=_OTHERS)
        named[key] = name
    count, bins = cursor.numbers(2, "the filters")
    if count != numbers["num_mel_bins"] or bins != BINS:
        text = f"there are {count:,} filters of {bins:,} bins, and n_mels is {numbers['num_mel_bins']:,}"
        text = f"{text}: {numbers['num_mel_bins']:,} of {BINS} are needed"
        raise cursor.fault("whisper.header", text, found=(count, bins), hint=_OTHERS)
    weights = cursor.need(4 * count * bins, "the filters")
    (length,) = cursor.numbers(1, "the words")
    if not 0 <= length <= numbers["vocab_size"]:
        text = f"there are {length:,} words, and n_vocab is {numbers['vocab_size']:,}"
        raise cursor.fault("whisper.words", text, found=length, allowed=numbers["vocab_size"])
    spoken = []
    for number in range(length):
        (nbytes,) = cursor.numbers(1, f"word {number:,}")
        if nbytes < 0:
            raise cursor.fault("whisper.words", f"word {number:,} has {nbytes:,} bytes", found=nbytes)
        spoken.append(cursor.need(nbytes, f"word {number:,}"))
    return Header(numbers, file_type, weights, tuple(spoken), cursor.offset)


def _index(path: Path, source: ByteSource) -> TensorIndex:
    header, table = header_of(source), speech()
    stored = _stored(_Cursor(source, _TRUNCATED, header.end, first=_RECORD, window=_RECORD))
    document, family = speech_document(header.numbers), speech_family()
    config = huggingface_config(document, family, stored, path)
    columns = {table.tensors[name] for name in table.columns}
    items = [Item(plain_tensor(one.name, _flat(one) if one.name in columns else one), (one,)) for one in stored]
    canonical = canonicalize(items, family, speech_names(), config, bracketed_of(config), path=path)
    mels = header.numbers["num_mel_bins"]
    usual = mels in speech().mels and header.filters == filters(mels)
    return TensorIndex(
        format=NAME,
        version=0,
        path=path,
        files=(path,),
        architecture=family.model_type,
        config=config,
        stored=stored,
        **canonical._asdict(),
        metadata_kind=MetadataKind.DOCUMENT,
        metadata=document,
        facts={
            "kind": "model",
            "file_type": header.file_type % VERSION_FACTOR,
            "words": len(header.words),
            "filters": USUAL if usual else "others than its converter's",
        },
    )


def _flat(stored: StoredTensor) -> StoredTensor:
    """A vector that is stored with an axis of one behind it."""
    return stored._replace(shape=stored.shape[:-1]) if stored.shape[-1:] == (1,) else stored


def _stored(cursor: _Cursor) -> tuple[StoredTensor, ...]:
    found: dict[str, StoredTensor] = {}
    while cursor.left:
        what = f"the header of tensor {len(found):,}"
        axes, length, kind = cursor.numbers(3, what)
        if not 1 <= axes <= MAX_AXES:
            text = f"tensor {len(found):,} has {axes:,} axes, outside 1 to {MAX_AXES}"
            raise cursor.fault("whisper.tensor", text, found=axes, allowed=MAX_AXES)
        if not 1 <= length <= _LONGEST_NAME:
            text = f"the name of tensor {len(found):,} has {length:,} bytes, outside 1 to {_LONGEST_NAME:,}"
            raise cursor.fault("whisper.tensor", text, found=length, allowed=_LONGEST_NAME)
        shape = cursor.numbers(axes, what)[::-1]
        try:
            name = cursor.need(length, what).decode()
        except UnicodeDecodeError:
            raise cursor.fault("whisper.tensor", f"the name of tensor {len(found):,} is not UTF-8") from None
        if name in found:
            raise cursor.fault("whisper.tensor", f"{quoted(name)} is there twice", tensor=name)
        found[name] = StoredTensor(name, _type(cursor, name, kind), shape, Extent(cursor.path, cursor.offset, 0))
        cursor.at += _sized(cursor, found, name)
    return tuple(found.values())


def _type(cursor: _Cursor, name: str, kind: int) -> DType:
    if kind not in BY_GGML:
        raise cursor.fault(
            "whisper.tensor", f"{quoted(name)} has type {kind}, which ggml does not have", tensor=name, found=kind
        )
    return BY_GGML[kind]


def _sized(cursor: _Cursor, found: dict[str, StoredTensor], name: str) -> int:
    """Note how many bytes a tensor has, which the file must hold."""
    stored = found[name]
    if min(stored.shape) < 1 or stored.shape[-1] % stored.dtype.block:
        text = f"{quoted(name)} of {stored.dtype} has shape {list(stored.shape)}"
        raise cursor.fault("whisper.tensor", text, tensor=name, found=list(stored.shape))
    nbytes = stored.dtype.nbytes(math.prod(stored.shape))
    left = cursor.left or 0
    if nbytes > left:
        text = f"the file ends at byte {cursor.offset + left:,}, inside {quoted(name)}"
        raise cursor.fault(_TRUNCATED, text, tensor=name, found=left, allowed=nbytes)
    found[name] = StoredTensor(name, stored.dtype, stored.shape, stored.extent._replace(nbytes=nbytes))
    return nbytes


def content(index: TensorIndex, _: Mapping[str, Path]) -> Content:
    """The header, the filters and the words."""
    with open_source(index.path) as source:
        header = header_of(source)
    return Content(keys_of(header.numbers, header.file_type), inside(header.filters, header.words))


def keys_of(numbers: Mapping[str, int], file_type: int) -> dict[str, int]:
    """Numbers of a header by their names."""
    return {**{name: numbers[key] for name, key in speech().header}, "ftype": file_type}


def inside(weights: bytes, spoken: tuple[bytes, ...]) -> dict[str, bytes]:
    """Parts of a file that are no tensors, by names for people."""
    return {"filters": weights, "words": b"".join(words(len(word)) + word for word in spoken)}
