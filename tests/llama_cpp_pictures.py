"""What llama.cpp makes of pictures: ``python llama_cpp_pictures.py LIBRARY`` reads requests, one a line.

LIBRARY has libmtmd in it. A request has a ``model``, its ``mmproj``, a ``picture`` (bytes of ``[height, width, 3]`` in
a file of numpy), and the place of a file (``rows``) that gets the embeddings of its tokens.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
from consumers import obey
from llama_cpp_logits import Opaque

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t


class Text(ctypes.Structure):
    """``mtmd_input_text``."""

    _fields_ = [
        ("text", ctypes.c_char_p),
        ("length", _SIZE),
        ("add_special", ctypes.c_bool),
        ("parse_special", ctypes.c_bool),
    ]


FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "llama_model_default_params": (Opaque, []),
    "llama_model_load_from_file": (_POINTER, [ctypes.c_char_p, Opaque]),
    "llama_model_n_embd_inp": (ctypes.c_int32, [_POINTER]),
    "mtmd_context_params_default": (Opaque, []),
    "mtmd_init_from_file": (_POINTER, [ctypes.c_char_p, _POINTER, Opaque]),
    "mtmd_bitmap_init": (_POINTER, [ctypes.c_uint32, ctypes.c_uint32, ctypes.c_char_p]),
    "mtmd_input_chunks_init": (_POINTER, []),
    "mtmd_default_marker": (ctypes.c_char_p, []),
    "mtmd_tokenize": (ctypes.c_int32, [_POINTER, _POINTER, ctypes.POINTER(Text), ctypes.POINTER(_POINTER), _SIZE]),
    "mtmd_input_chunks_size": (_SIZE, [_POINTER]),
    "mtmd_input_chunks_get": (_POINTER, [_POINTER, _SIZE]),
    "mtmd_input_chunk_get_type": (ctypes.c_int, [_POINTER]),
    "mtmd_input_chunk_get_n_tokens": (_SIZE, [_POINTER]),
    "mtmd_encode_chunk": (ctypes.c_int32, [_POINTER, _POINTER]),
    "mtmd_get_output_embd": (ctypes.POINTER(ctypes.c_float), [_POINTER]),
}

#: ``MTMD_INPUT_CHUNK_TYPE_IMAGE``.
IMAGE = 1


def main(library: str) -> None:
    llama = ctypes.CDLL(library)
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(llama, name)
        function.restype, function.argtypes = result, arguments
    llama.llama_backend_init()

    def encode(request: dict[str, Any]) -> None:
        model = llama.llama_model_load_from_file(request["model"].encode(), llama.llama_model_default_params())
        if not model:
            raise ValueError("llama.cpp does not load the model")
        context = llama.mtmd_init_from_file(request["mmproj"].encode(), model, llama.mtmd_context_params_default())
        if not context:
            raise ValueError("libmtmd does not load the mmproj")
        picture = np.load(request["picture"])
        bitmap = llama.mtmd_bitmap_init(picture.shape[1], picture.shape[0], picture.tobytes())
        marker, chunks = llama.mtmd_default_marker(), llama.mtmd_input_chunks_init()
        text = Text(marker, len(marker), False, True)
        if llama.mtmd_tokenize(context, chunks, text, (_POINTER * 1)(bitmap), 1):
            raise ValueError("libmtmd does not cut the picture")
        rows = []
        for number in range(llama.mtmd_input_chunks_size(chunks)):
            chunk = llama.mtmd_input_chunks_get(chunks, number)
            if llama.mtmd_input_chunk_get_type(chunk) == IMAGE:
                if llama.mtmd_encode_chunk(context, chunk):
                    raise ValueError("libmtmd does not encode the picture")
                shape = llama.mtmd_input_chunk_get_n_tokens(chunk), llama.llama_model_n_embd_inp(model)
                rows.append(np.ctypeslib.as_array(llama.mtmd_get_output_embd(context), shape).copy())
        np.save(request["rows"], np.concatenate(rows))

    obey(encode)


if __name__ == "__main__":
    main(*sys.argv[1:])
