"""What llama.cpp makes of texts: ``python llama_cpp_tokens.py FOLDER_OF_LIBRARIES MODEL`` reads a JSON list of them.

It prints a list of ids for each, special tokens parsed and added; with ``plain`` behind the model parsed only.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import llama_cpp_logits

#: Where the pointers of ``llama_model_params`` end; ``vocab_only`` is two before the first switch that is on.
_SWITCHES = 72


def words_only(llama: ctypes.CDLL) -> llama_cpp_logits.Opaque:
    """Parameters that load no weights, so that a file needs none."""
    raw = bytearray(bytes(llama.llama_model_default_params()))
    raw[raw.index(1, _SWITCHES) - 2] = 1
    return llama_cpp_logits.Opaque.from_buffer(raw)


def main(folder: str, model: str, plain: str = "") -> None:
    llama = llama_cpp_logits.load(Path(folder))
    llama.llama_tokenize.argtypes = [
        ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool, ctypes.c_bool,
    ]  # fmt: skip
    llama.llama_backend_init()
    loaded = llama.llama_model_load_from_file(model.encode(), words_only(llama))
    if not loaded:
        sys.exit("llama.cpp does not load the model")
    vocab = llama.llama_model_get_vocab(loaded)
    made = []
    for text in json.load(sys.stdin):
        data = text.encode()
        ids = (ctypes.c_int32 * (2 * len(data) + 16))()
        count = llama.llama_tokenize(vocab, data, len(data), ids, len(ids), not plain, True)
        made.append(ids[:count])
    json.dump(made, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
