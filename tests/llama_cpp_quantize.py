"""llama-quantize, as a library: ``python llama_cpp_quantize.py LIBRARIES IN OUT FILE_TYPE [pure] [all] [IMATRIX]``.

A process of its own, because an assertion of the library ends it. IMATRIX is an .npz of name -> float32 numbers;
all: on all processors, as the program does unless it is told otherwise. With LIBRARIES alone it answers the requests of
:mod:`consumers`, ``{"arguments": [IN, OUT, ...]}``: the tables of a type are computed once.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from consumers import obey
from llama_cpp_logits import Opaque, load

#: Offsets in ``llama_model_quantize_params`` (``llama.h``).
FILE_TYPE, PURE, IMATRIX = 4, 19, 24


class Importance(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("data", ctypes.c_void_p), ("size", ctypes.c_size_t))


def quantize(llama: ctypes.CDLL, source: str, target: str, file_type: str, *more: str) -> int:
    llama.llama_model_quantize_default_params.restype = Opaque
    llama.llama_model_quantize.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p]
    parameters = llama.llama_model_quantize_default_params()
    raw = ctypes.addressof(parameters)
    ctypes.c_int32.from_address(raw).value = (os.cpu_count() or 1) if "all" in more else 1
    ctypes.c_int32.from_address(raw + FILE_TYPE).value = int(file_type)
    ctypes.c_bool.from_address(raw + PURE).value = "pure" in more
    arrays = {}
    if more and more[-1].endswith(".npz"):
        with np.load(more[-1]) as found:
            arrays = {name: np.ascontiguousarray(found[name], np.float32) for name in found}
        entries = (Importance * (len(arrays) + 1))(
            *(Importance(name.encode(), data.ctypes.data, data.size) for name, data in arrays.items())
        )
        ctypes.c_void_p.from_address(raw + IMATRIX).value = ctypes.addressof(entries)
    return int(llama.llama_model_quantize(source.encode(), target.encode(), raw))


def main(folder: str, *arguments: str) -> int:
    llama = load(Path(folder))

    def act(asked: dict[str, Any]) -> None:
        status = quantize(llama, *asked["arguments"])
        if status:
            raise ValueError(f"llama_model_quantize: status {status}")

    if arguments:
        return quantize(llama, *arguments)
    obey(act)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
