"""A tokenizer as keys of a GGUF, and what llama.cpp makes of texts with it; ``LLAMA_CPP_LIBRARY`` is its folder."""

from __future__ import annotations

import json
import os
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gguf
from consumers import Consumer, ending_here
from gguf_copies import add_value, finish

_PREFIX = "tokenizer.ggml."


def said_by(path: Path) -> dict[str, Any]:
    """The tokenizer's keys of a GGUF without ``tokenizer.ggml.``, as the gguf package reads them; bytes in Base64."""
    fields = gguf.GGUFReader(path).fields
    said = {key.removeprefix(_PREFIX): field.contents() for key, field in fields.items() if key.startswith(_PREFIX)}
    if "precompiled_charsmap" in said:
        said["precompiled_charsmap"] = b64encode(bytes(said["precompiled_charsmap"])).decode()
    return said


def written(keys: Mapping[str, Any], path: Path) -> Path:
    """A GGUF of a tokenizer alone, whose keys are named without ``tokenizer.ggml.``."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    for key, value in keys.items():
        packed = key == "precompiled_charsmap"
        add_value(writer, _PREFIX + key, b64decode(value) if packed else value)
    return finish(writer, path)


def ids_of(keys: Mapping[str, Any], texts: Sequence[str]) -> list[list[int]] | None:
    """What llama.cpp makes of the texts, ``None`` where it does not load the tokenizer."""
    with tempfile.TemporaryDirectory() as folder:
        return ids_by_file(written(keys, Path(folder) / "vocabulary.gguf"), texts)


def ids_by_file(path: Path, texts: Sequence[str], *, plain: bool = False) -> list[list[int]] | None:
    """As :func:`ids_of`, of a file that is there."""
    with tempfile.TemporaryDirectory() as folder:
        ids = Path(folder) / "ids.json"
        said = _llama_cpp().ask({"model": str(path), "texts": list(texts), "ids": str(ids), "plain": plain})
        return None if said else json.loads(ids.read_text())


@cache
def _llama_cpp() -> Consumer:
    """One process for all files: starting it takes longer than a tokenizer."""
    return ending_here(Consumer("llama_cpp_tokens.py", os.environ["LLAMA_CPP_LIBRARY"]))
