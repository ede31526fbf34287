"""Logits of all positions, by llama.cpp: a float32 KV cache and no flash attention, so that nothing is rounded.

Of an encoder its embeddings, not pooled; an encoder with a decoder has the prompt in both. Of a classifier, as the
file says that it is one, its outputs for every beginning of the prompt.

A process of its own, because an assertion of the library ends it: ``python llama_cpp_logits.py FOLDER_OF_LIBRARIES``
answers the requests of :mod:`consumers`. Parameter structures are passed as larger opaque blocks, which the System V
calling convention passes by value in memory, so that no release's exact layout matters.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from consumers import Request, serve


class Opaque(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 1024),)


class Batch(ctypes.Structure):
    _fields_ = (
        ("n_tokens", ctypes.c_int32), ("token", ctypes.c_void_p), ("embd", ctypes.c_void_p), ("pos", ctypes.c_void_p),
        ("n_seq_id", ctypes.c_void_p), ("seq_id", ctypes.c_void_p), ("logits", ctypes.c_void_p),
    )  # fmt: skip


#: Of llama-ext.h, under their names of C++.
SET_NEXTN = "_Z26llama_set_embeddings_nextnP13llama_contextbb"
GET_NEXTN = "_Z26llama_get_embeddings_nextnP13llama_context"

FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "llama_model_default_params": (Opaque, []),
    "llama_context_default_params": (Opaque, []),
    "llama_model_load_from_file": (ctypes.c_void_p, [ctypes.c_char_p, Opaque]),
    "llama_init_from_model": (ctypes.c_void_p, [ctypes.c_void_p, Opaque]),
    "llama_model_get_vocab": (ctypes.c_void_p, [ctypes.c_void_p]),
    "llama_vocab_n_tokens": (ctypes.c_int32, [ctypes.c_void_p]),
    "llama_set_n_threads": (None, [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32]),
    "llama_adapter_lora_init": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]),
    "llama_set_adapters_lora": (
        ctypes.c_int32, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p],
    ),
    "llama_batch_init": (Batch, [ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]),
    "llama_batch_free": (None, [Batch]),
    "llama_decode": (ctypes.c_int32, [ctypes.c_void_p, Batch]),
    "llama_encode": (ctypes.c_int32, [ctypes.c_void_p, Batch]),
    "llama_model_has_encoder": (ctypes.c_bool, [ctypes.c_void_p]),
    "llama_model_has_decoder": (ctypes.c_bool, [ctypes.c_void_p]),
    "llama_model_n_embd": (ctypes.c_int32, [ctypes.c_void_p]),
    "llama_model_meta_val_str": (
        ctypes.c_int32, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t],
    ),
    "llama_set_embeddings": (None, [ctypes.c_void_p, ctypes.c_bool]),
    "llama_get_embeddings_ith": (ctypes.POINTER(ctypes.c_float), [ctypes.c_void_p, ctypes.c_int32]),
    "llama_get_embeddings_seq": (ctypes.POINTER(ctypes.c_float), [ctypes.c_void_p, ctypes.c_int32]),
    "llama_model_n_cls_out": (ctypes.c_uint32, [ctypes.c_void_p]),
    "llama_get_logits_ith": (ctypes.POINTER(ctypes.c_float), [ctypes.c_void_p, ctypes.c_int32]),
    SET_NEXTN: (None, [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool]),
    GET_NEXTN: (ctypes.POINTER(ctypes.c_float), [ctypes.c_void_p]),
    "llama_free": (None, [ctypes.c_void_p]),
    "llama_model_free": (None, [ctypes.c_void_p]),
}  # fmt: skip

#: ``enum ggml_type``; of ``llama_pooling_type``: as the file says; of ``llama_context_type``: layers behind the last.
F32, F16 = 0, 1
UNSPECIFIED = -1
DRAFTS = 1

QUIET = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda level, text, user: None)


def load(folder: Path) -> ctypes.CDLL:
    for pattern in ("libggml-base*.so", "libggml.*so"):
        ggml = ctypes.CDLL(str(sorted(folder.glob(pattern))[0]), ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(sorted(folder.glob("libllama.*so"))[0]), ctypes.RTLD_GLOBAL)
    library.llama_log_set(QUIET, None)
    if list(folder.glob("libggml-cpu-*.so")):
        ggml.ggml_backend_load_all_from_path.argtypes = [ctypes.c_char_p]
        ggml.ggml_backend_load_all_from_path(str(folder).encode())
    for name, (result, arguments) in FUNCTIONS.items():
        if hasattr(library, name):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    return library


def context_parameters(llama: ctypes.CDLL, positions: int, pooling: int = 0, kind: int = 0) -> Opaque:
    """The defaults but for sizes, pooling, flash attention, the types of the cache, and what is computed.

    Releases put fields in between, so two places are found by their neighbors: the four enumerations that are -1 at
    first (the last is flash attention), and the types of the cache, both F16, behind two null pointers.
    """
    made = llama.llama_context_default_params()
    raw = bytes(made)
    unspecified = raw.index(struct.pack("<4i", -1, -1, -1, -1))
    cache = raw.index(bytes(16) + struct.pack("<2i", F16, F16), unspecified) + 16
    struct.pack_into("<3I", made, 0, positions, positions, positions)
    struct.pack_into("<i", made, unspecified - 4, kind)
    struct.pack_into("<i", made, unspecified + 4, pooling)  # how embeddings are pooled
    struct.pack_into("<i", made, unspecified + 12, 0)
    struct.pack_into("<2i", made, cache, F32, F32)
    return made


def rows(llama: ctypes.CDLL, request: Request) -> np.ndarray:
    """``[positions, vocabulary]``.

    Raises:
        ValueError: the library does not load or compute the model.
    """
    parameters = llama.llama_model_default_params()
    if request.states:  # load_mtp, third behind the only switch that is on
        parameters.bytes[bytes(parameters).index(b"\1", 40) + 3] = 1
    model = llama.llama_model_load_from_file(request.model.encode(), parameters)
    if not model:
        raise ValueError("llama.cpp does not load the model")
    count = len(request.prompt)
    if said_by(llama, model, b"pooling_type") == b"4":
        return np.stack([scores(llama, model, request.prompt[:stop]) for stop in range(1, count + 1)])
    drafts = DRAFTS if request.states and said_by(llama, model, b"nextn_predict_layers") else 0
    context = llama.llama_init_from_model(model, context_parameters(llama, max(count, 64), kind=drafts))
    batch = llama.llama_batch_init(count, 0, 1)
    try:
        if not context:
            raise ValueError("llama.cpp makes no context for the model")
        llama.llama_set_n_threads(context, 1, 1)
        if request.adapter:
            use_adapter(llama, model, context, request.adapter)
        fill(batch, request.prompt)
        if embeds(llama, model):
            llama.llama_set_embeddings(context, True)
            run = llama.llama_decode if llama.llama_model_has_decoder(model) else llama.llama_encode
            if run(context, batch):
                raise ValueError("llama.cpp does not embed")
            width = llama.llama_model_n_embd(model)
            found = (llama.llama_get_embeddings_ith(context, i) for i in range(count))
            return np.stack([np.ctypeslib.as_array(row, (width,)).copy() for row in found])
        if request.states:
            return drafted(llama, model, context, batch, np.load(request.states))
        if llama.llama_model_has_encoder(model) and llama.llama_encode(context, batch):
            raise ValueError("llama.cpp does not encode")
        if llama.llama_decode(context, batch):
            raise ValueError("llama.cpp does not decode")
        return logits(llama, model, context, count)
    finally:
        llama.llama_batch_free(batch)
        if context:
            llama.llama_free(context)
        llama.llama_model_free(model)


def logits(llama: ctypes.CDLL, model: int, context: int, count: int) -> np.ndarray:
    """Those of every position."""
    words = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    found = (llama.llama_get_logits_ith(context, i) for i in range(count))
    return np.stack([np.ctypeslib.as_array(row, (words,)).copy() for row in found])


def drafted(llama: ctypes.CDLL, model: int, context: int, batch: Batch, states: np.ndarray) -> np.ndarray:
    """What a drafter says of tokens beside states of its model, as common/speculative.cpp asks it."""
    count, width, tokens = len(states), llama.llama_model_n_embd(model), batch.token
    if llama.llama_model_has_encoder(model):
        getattr(llama, SET_NEXTN)(context, True, False)
        batch.token, batch.embd = None, states.ctypes.data
        if llama.llama_encode(context, batch):
            raise ValueError("llama.cpp does not encode")
        states = np.ctypeslib.as_array(getattr(llama, GET_NEXTN)(context), (count, width)).copy()
    batch.token, batch.embd = tokens, states.ctypes.data
    failed = llama.llama_decode(context, batch)
    batch.embd = None  # else llama_batch_free would free it
    if failed:
        raise ValueError("llama.cpp does not decode")
    return logits(llama, model, context, count)


def scores(llama: ctypes.CDLL, model: int, prompt: tuple[int, ...]) -> np.ndarray:
    """The outputs of a classifier for a prompt, pooled as the file says."""
    context = llama.llama_init_from_model(model, context_parameters(llama, 64, UNSPECIFIED))
    batch = llama.llama_batch_init(len(prompt), 0, 1)
    llama.llama_set_n_threads(context, 1, 1)
    llama.llama_set_embeddings(context, True)
    fill(batch, prompt)
    if llama.llama_decode(context, batch):
        raise ValueError("llama.cpp does not classify")
    width = llama.llama_model_n_cls_out(model)
    found = np.ctypeslib.as_array(llama.llama_get_embeddings_seq(context, 0), (width,)).copy()
    llama.llama_batch_free(batch)
    llama.llama_free(context)
    return found


def said_by(llama: ctypes.CDLL, model: int, key: bytes) -> bytes:
    """What the metadata say under a key of the architecture, empty for nothing."""
    said = ctypes.create_string_buffer(64)
    llama.llama_model_meta_val_str(model, b"general.architecture", said, len(said))
    found = llama.llama_model_meta_val_str(model, said.value + b"." + key, said, len(said))
    return said.value if found > 0 else b""


def embeds(llama: ctypes.CDLL, model: int) -> bool:
    """The model is one of the encoders, which have no logits."""
    said = ctypes.create_string_buffer(64)
    llama.llama_model_meta_val_str(model, b"general.architecture", said, len(said))
    if said.value == b"gemma-embedding":
        return True
    if not llama.llama_model_has_decoder(model):
        return True
    return said_by(llama, model, b"attention.causal") == b"false" and b"bert" in said.value


def use_adapter(llama: ctypes.CDLL, model: int, context: int, path: str) -> None:
    adapter = llama.llama_adapter_lora_init(model, path.encode())
    if not adapter:
        raise ValueError("llama.cpp does not load the adapter")
    scale = ctypes.c_float(1.0)
    if llama.llama_set_adapters_lora(context, ctypes.byref(ctypes.c_void_p(adapter)), 1, ctypes.byref(scale)):
        raise ValueError("llama.cpp does not use the adapter")


def fill(batch: Batch, prompt: Sequence[int], first: int = 0) -> None:
    """One sequence from a position on, all of whose logits are wanted."""

    def array(address: int, kind: Any) -> Any:
        return ctypes.cast(address, ctypes.POINTER(kind))

    tokens, positions = array(batch.token, ctypes.c_int32), array(batch.pos, ctypes.c_int32)
    counts, sequences = array(batch.n_seq_id, ctypes.c_int32), array(batch.seq_id, ctypes.POINTER(ctypes.c_int32))
    wanted = array(batch.logits, ctypes.c_int8)
    for i, token in enumerate(prompt):
        tokens[i], positions[i], counts[i], wanted[i] = token, first + i, 1, 1
        sequences[i][0] = 0
    batch.n_tokens = len(prompt)


def main(folder: str) -> None:
    llama = load(Path(folder))
    llama.llama_backend_init()
    serve(lambda request: rows(llama, request))


if __name__ == "__main__":
    main(*sys.argv[1:])
