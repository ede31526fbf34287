"""What llama.cpp makes of texts: ``python llama_cpp_tokens.py FOLDER_OF_LIBRARIES`` reads requests, one a line.

A request has a ``model``, ``texts``, and the place of a file (``ids``) that gets a list of ids for each, special tokens
parsed and added; where it is ``plain`` parsed only.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import llama_cpp_logits
from consumers import obey

#: Where the pointers of ``llama_model_params`` end; ``vocab_only`` is two before the first switch that is on.
_SWITCHES = 72


def ready(folder: str) -> ctypes.CDLL:
    """The library, which tokenizes."""
    llama = llama_cpp_logits.load(Path(folder))
    llama.llama_tokenize.argtypes = [
        ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool, ctypes.c_bool,
    ]  # fmt: skip
    llama.llama_backend_init()
    return llama


def ids_of(llama: ctypes.CDLL, vocab: int, text: str, *, plain: bool = False) -> list[int]:
    data = text.encode()
    ids = (ctypes.c_int32 * (2 * len(data) + 16))()
    return ids[: llama.llama_tokenize(vocab, data, len(data), ids, len(ids), not plain, True)]


def words_only(llama: ctypes.CDLL) -> llama_cpp_logits.Opaque:
    """Parameters that load no weights, so that a file needs none."""
    raw = bytearray(bytes(llama.llama_model_default_params()))
    raw[raw.index(1, _SWITCHES) - 2] = 1
    return llama_cpp_logits.Opaque.from_buffer(raw)


def main(folder: str) -> None:
    llama = ready(folder)

    def tokenize(request: dict[str, Any]) -> None:
        loaded = llama.llama_model_load_from_file(request["model"].encode(), words_only(llama))
        if not loaded:
            raise ValueError("llama.cpp does not load the model")
        vocab = llama.llama_model_get_vocab(loaded)
        made = [ids_of(llama, vocab, text, plain=request["plain"]) for text in request["texts"]]
        llama.llama_model_free(loaded)
        Path(request["ids"]).write_text(json.dumps(made))

    obey(tokenize)


if __name__ == "__main__":
    main(*sys.argv[1:])
