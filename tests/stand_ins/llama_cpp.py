"""``llama_cpp.Llama`` of llama-cpp-python, as far as ``learn`` asks it, over the libraries of ``LLAMA_CPP_LIBRARY``."""

from __future__ import annotations

import os
from pathlib import Path

import llama_cpp_logits
import numpy as np
from consumers import Request


class Llama:
    """Loads a model, computes the logits of a prompt."""

    def __init__(self, model_path: str, **said: object) -> None:
        self.model, self.said = model_path, said
        self.library = llama_cpp_logits.load(Path(os.environ["LLAMA_CPP_LIBRARY"]))
        self.scores = np.zeros((0, 0), np.float32)

    def eval(self, tokens: list[int]) -> None:
        assert self.said["logits_all"]
        self.scores = llama_cpp_logits.rows(self.library, Request(self.model, tuple(tokens), ""))
