"""Logits of the last token, by llama.cpp: ``python llama_cpp_logits.py FOLDER_OF_LIBRARIES PROMPT MODEL`` prints JSON.

A process of its own, because an assertion of the library ends it. Parameter structures are passed as larger opaque
blocks, which the System V calling convention passes by value in memory, so that no release's exact layout matters.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path


class Opaque(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 1024),)


class Batch(ctypes.Structure):
    _fields_ = (
        ("n_tokens", ctypes.c_int32), ("token", ctypes.c_void_p), ("embd", ctypes.c_void_p), ("pos", ctypes.c_void_p),
        ("n_seq_id", ctypes.c_void_p), ("seq_id", ctypes.c_void_p), ("logits", ctypes.c_void_p),
    )  # fmt: skip


FUNCTIONS = {
    "llama_model_default_params": (Opaque, []),
    "llama_context_default_params": (Opaque, []),
    "llama_model_load_from_file": (ctypes.c_void_p, [ctypes.c_char_p, Opaque]),
    "llama_init_from_model": (ctypes.c_void_p, [ctypes.c_void_p, Opaque]),
    "llama_model_get_vocab": (ctypes.c_void_p, [ctypes.c_void_p]),
    "llama_vocab_n_tokens": (ctypes.c_int32, [ctypes.c_void_p]),
    "llama_batch_get_one": (Batch, [ctypes.c_void_p, ctypes.c_int32]),
    "llama_decode": (ctypes.c_int32, [ctypes.c_void_p, Batch]),
    "llama_get_logits_ith": (ctypes.POINTER(ctypes.c_float), [ctypes.c_void_p, ctypes.c_int32]),
}


def load(folder: Path) -> ctypes.CDLL:
    for pattern in ("libggml-base*.so", "libggml.*so"):
        ggml = ctypes.CDLL(str(sorted(folder.glob(pattern))[0]), ctypes.RTLD_GLOBAL)
    if list(folder.glob("libggml-cpu-*.so")):
        ggml.ggml_backend_load_all_from_path.argtypes = [ctypes.c_char_p]
        ggml.ggml_backend_load_all_from_path(str(folder).encode())
    library = ctypes.CDLL(str(sorted(folder.glob("libllama.*so"))[0]), ctypes.RTLD_GLOBAL)
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def main(folder: str, prompt: str, model: str) -> None:
    llama = load(Path(folder))
    llama.llama_backend_init()
    loaded = llama.llama_model_load_from_file(model.encode(), llama.llama_model_default_params())
    if not loaded:
        sys.exit("llama.cpp does not load the model")
    ids = [int(word) for word in prompt.split(",")]
    tokens = (ctypes.c_int32 * len(ids))(*ids)
    context = llama.llama_init_from_model(loaded, llama.llama_context_default_params())
    if llama.llama_decode(context, llama.llama_batch_get_one(ctypes.addressof(tokens), len(ids))):
        sys.exit("llama.cpp does not decode")
    count = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(loaded))
    json.dump(llama.llama_get_logits_ith(context, -1)[:count], sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
