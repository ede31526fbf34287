"""What llama.cpp makes of pictures: ``python llama_cpp_pictures.py LIBRARY`` reads requests, one a line.

LIBRARY has libmtmd in it. A request has a ``model``, its ``mmproj``, a ``picture`` (bytes of ``[height, width, 3]`` in
a file of numpy, or samples of a sound) and a ``text`` with ``{}`` where it stands. Files get the embeddings of its
tokens (``rows``), the numbers of the text's tokens, -1 for those of the picture (``ids``), and the logits of the text's
(``logits``).
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
from consumers import obey
from llama_cpp_logits import FUNCTIONS as DECODED, Opaque, context_parameters, fill, logits

_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32


class Text(ctypes.Structure):
    """``mtmd_input_text``."""

    _fields_ = [
        ("text", ctypes.c_char_p),
        ("length", _SIZE),
        ("add_special", ctypes.c_bool),
        ("parse_special", ctypes.c_bool),
    ]


FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    **DECODED,
    "llama_model_n_embd_inp": (_INT, [_POINTER]),
    "mtmd_context_params_default": (Opaque, []),
    "mtmd_init_from_file": (_POINTER, [ctypes.c_char_p, _POINTER, Opaque]),
    "mtmd_bitmap_init": (_POINTER, [ctypes.c_uint32, ctypes.c_uint32, ctypes.c_char_p]),
    "mtmd_bitmap_init_from_audio": (_POINTER, [_SIZE, ctypes.c_char_p]),
    "mtmd_input_chunks_init": (_POINTER, []),
    "mtmd_default_marker": (ctypes.c_char_p, []),
    "mtmd_tokenize": (_INT, [_POINTER, _POINTER, ctypes.POINTER(Text), ctypes.POINTER(_POINTER), _SIZE]),
    "mtmd_input_chunks_size": (_SIZE, [_POINTER]),
    "mtmd_input_chunks_get": (_POINTER, [_POINTER, _SIZE]),
    "mtmd_input_chunk_get_type": (ctypes.c_int, [_POINTER]),
    "mtmd_input_chunk_get_n_tokens": (_SIZE, [_POINTER]),
    "mtmd_input_chunk_get_tokens_text": (ctypes.POINTER(_INT), [_POINTER, ctypes.POINTER(_SIZE)]),
    "mtmd_helper_eval_chunk_single": (
        _INT, [_POINTER, _POINTER, _POINTER, _INT, _INT, _INT, ctypes.c_bool, ctypes.POINTER(_INT)],
    ),
    "mtmd_get_output_embd": (ctypes.POINTER(ctypes.c_float), [_POINTER]),
}  # fmt: skip

#: ``MTMD_INPUT_CHUNK_TYPE_TEXT``, and how many positions there are.
TEXT, MOST = 0, 2048


def main(library: str) -> None:
    llama = ctypes.CDLL(library)
    for name, (result, arguments) in FUNCTIONS.items():
        if hasattr(llama, name):
            function = getattr(llama, name)
            function.restype, function.argtypes = result, arguments
    llama.llama_backend_init()

    def see(request: dict[str, Any]) -> None:
        model = llama.llama_model_load_from_file(request["model"].encode(), llama.llama_model_default_params())
        if not model:
            raise ValueError("llama.cpp does not load the model")
        eyes = llama.mtmd_init_from_file(request["mmproj"].encode(), model, llama.mtmd_context_params_default())
        if not eyes:
            raise ValueError("libmtmd does not load the mmproj")
        reader = llama.llama_init_from_model(model, context_parameters(llama, MOST))
        picture = np.load(request["picture"])
        sound = picture.ndim == 1
        size = (len(picture),) if sound else (picture.shape[1], picture.shape[0])
        bitmap = (llama.mtmd_bitmap_init_from_audio if sound else llama.mtmd_bitmap_init)(*size, picture.tobytes())
        marker, chunks = llama.mtmd_default_marker().decode(), llama.mtmd_input_chunks_init()
        said = request["text"].format(marker).encode()
        if llama.mtmd_tokenize(eyes, chunks, Text(said, len(said), False, True), (_POINTER * 1)(bitmap), 1):
            raise ValueError("libmtmd does not cut the picture")
        rows, ids, known, place = [], [], [], _INT(0)
        for number in range(llama.mtmd_input_chunks_size(chunks)):
            chunk = llama.mtmd_input_chunks_get(chunks, number)
            count = llama.mtmd_input_chunk_get_n_tokens(chunk)
            if llama.mtmd_input_chunk_get_type(chunk) == TEXT:
                tokens = llama.mtmd_input_chunk_get_tokens_text(chunk, _SIZE(0))[:count]
                batch = llama.llama_batch_init(count, 0, 1)
                fill(batch, tokens, place.value)
                if llama.llama_decode(reader, batch):
                    raise ValueError("llama.cpp does not decode the text")
                known.append(logits(llama, model, reader, count))
                place.value += count
                ids += tokens
                continue
            if llama.mtmd_helper_eval_chunk_single(eyes, reader, chunk, place.value, 0, MOST, False, place):
                raise ValueError("libmtmd does not encode the picture, or llama.cpp does not decode it")
            shape = count, llama.llama_model_n_embd_inp(model)
            rows.append(np.ctypeslib.as_array(llama.mtmd_get_output_embd(eyes), shape).copy())
            ids += count * [-1]
        for key, found in (("rows", np.concatenate(rows)), ("ids", np.array(ids)), ("logits", np.concatenate(known))):
            np.save(request[key], found)

    obey(see)


if __name__ == "__main__":
    main(*sys.argv[1:])
