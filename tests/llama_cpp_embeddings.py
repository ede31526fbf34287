"""What llama.cpp embeds texts as: ``python llama_cpp_embeddings.py FOLDER_OF_LIBRARIES`` reads requests, one a line.

A request has a ``model``, ``texts``, and the place of a file (``found``) that gets the ids and the embedding of each,
by the GGUF's own tokenizer and pooling; ``together`` texts are computed in one batch, a sequence each.
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp_logits
import numpy as np
from consumers import obey
from llama_cpp_tokens import ids_of, ready

FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "llama_get_embeddings_seq": (ctypes.POINTER(ctypes.c_float), [ctypes.c_void_p, ctypes.c_int32]),
    "llama_pooling_type": (ctypes.c_int, [ctypes.c_void_p]),
    "llama_model_has_decoder": (ctypes.c_bool, [ctypes.c_void_p]),
    "llama_model_n_embd_out": (ctypes.c_int32, [ctypes.c_void_p]),
    "llama_model_n_cls_out": (ctypes.c_uint32, [ctypes.c_void_p]),
}

#: ``enum llama_pooling_type``: whatever the file says; scores.
UNSPECIFIED, RANK = -1, 4


def embedded(llama: ctypes.CDLL, model: int, prompts: Sequence[Sequence[int]]) -> np.ndarray:
    """``[prompts, width]``, computed in one batch, which is one context's."""
    count = sum(map(len, prompts))
    made = llama_cpp_logits.context_parameters(llama, max(count, 64))
    struct.pack_into("<I", made, 12, len(prompts))  # n_seq_max
    raw = bytes(made)
    # context_parameters says none where the file is to have the word: the one 0 between three that are -1
    pooling = raw.index(struct.pack("<4i", -1, 0, -1, 0)) + 4
    struct.pack_into("<i", made, pooling, UNSPECIFIED)
    context = llama.llama_init_from_model(model, made)
    if not context or llama.llama_pooling_type(context) <= 0:
        raise ValueError("llama.cpp makes no context for the model" if not context else "the file names no pooling")
    llama.llama_set_n_threads(context, 1, 1)
    llama.llama_set_embeddings(context, True)
    batch = llama.llama_batch_init(count, 0, 1)
    llama_cpp_logits.fill(batch, tuple(token for prompt in prompts for token in prompt))
    positions = ctypes.cast(batch.pos, ctypes.POINTER(ctypes.c_int32))
    sequences = ctypes.cast(batch.seq_id, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32)))
    at = 0
    for number, prompt in enumerate(prompts):
        for position in range(len(prompt)):
            positions[at], sequences[at][0] = position, number
            at += 1
    run = llama.llama_decode if llama.llama_model_has_decoder(model) else llama.llama_encode
    if run(context, batch):
        raise ValueError("llama.cpp does not embed")
    ranks = llama.llama_pooling_type(context) == RANK
    width = llama.llama_model_n_cls_out(model) if ranks else llama.llama_model_n_embd_out(model)
    rows = [llama.llama_get_embeddings_seq(context, number) for number in range(len(prompts))]
    found = np.stack([np.ctypeslib.as_array(row, (width,)).copy() for row in rows])
    llama.llama_batch_free(batch)
    llama.llama_free(context)
    return found


def main(folder: str) -> None:
    llama = ready(folder)
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(llama, name)
        function.restype, function.argtypes = result, arguments

    def embed(request: dict[str, Any]) -> None:
        model = llama.llama_model_load_from_file(request["model"].encode(), llama.llama_model_default_params())
        if not model:
            raise ValueError("llama.cpp does not load the model")
        vocab, together = llama.llama_model_get_vocab(model), request["together"]
        prompts = [ids_of(llama, vocab, text) for text in request["texts"]]
        parts = [prompts[i : i + together] for i in range(0, len(prompts), together)]
        rows = np.concatenate([embedded(llama, model, part) for part in parts])
        llama.llama_model_free(model)
        Path(request["found"]).write_text(json.dumps({"ids": prompts, "rows": rows.tolist()}))

    obey(embed)


if __name__ == "__main__":
    main(*sys.argv[1:])
