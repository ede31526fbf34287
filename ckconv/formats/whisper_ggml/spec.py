"""The layout of a file of whisper.cpp, and the filters that it carries.

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
from functools import cache
from struct import pack, unpack

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

_WINDOW, _RATE = 400, 16000
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
            at = bin * _RATE / _WINDOW
            height = min(-(low - at) / (middle - low), (high - at) / (high - middle))
            made.append(_float32(0.0 if height < 0 else height) * (2.0 / (high - low)))
    return pack(f"<{len(made)}f", *made)


def _hertz(mel: float) -> float:
    first = _BREAK / _LINEAR
    return _BREAK * math.exp(_STEP * (mel - first)) if mel >= first else _LINEAR * mel


def _float32(value: float) -> float:
    return float(unpack("<f", pack("<f", value))[0])
