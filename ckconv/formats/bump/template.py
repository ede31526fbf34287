"""The engine's template of a family: a JSON file of its own, which a bump 5 file carries a copy of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckconv.errors import InputError

#: Words for the order of RoPE rows in a template or configuration -> rows interleaved (``build_ir_v7.py``).
ROPE_WORDS: dict[str, bool] = {
    **dict.fromkeys(("split", "standard", "cos_sin_split", "half", "multi_section_1d"), False),
    **dict.fromkeys(("pairwise", "interleaved", "even_odd"), True),
}


def read_template(path: Path, architecture: str) -> dict[str, Any]:
    """The template at ``path``, a file or a directory that holds ``ARCHITECTURE.json``.

    Raises:
        InputError: ``template.missing``, the directory holds none for the architecture; ``template.json``; those of
            ``open_source``.
    """
    from ckconv.io.json import Document, read_object

    file = path / f"{architecture}.json" if path.is_dir() else path
    if file is not path and not file.is_file():
        raise InputError("template.missing", f"there is no {file.name} in it", path=path)
    return read_object(file, Document("template", "template.json", "template.json", 4 << 20))


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """``other`` over ``one``, objects key by key, as the engine's builder merges."""
    made = dict(one)
    for key, value in other.items():
        both = isinstance(value, dict) and isinstance(made.get(key), dict)
        made[key] = merged(made[key], value) if both else value
    return made


def lacks(template: Mapping[str, Any], fragment: Mapping[str, Any]) -> str:
    """The first key of ``fragment`` that ``template`` has not or otherwise, in words; empty where there is none."""
    for key, value in fragment.items():
        found = template.get(key)
        if isinstance(value, dict):
            inner = lacks(found if isinstance(found, dict) else {}, value)
            if inner:
                return f"{key}.{inner}"
        elif found != value:
            return f"{key} is {found!r}, and the file needs {value!r}"
    return ""


def template_interleaves(template: dict[str, Any], default: bool) -> bool:
    """Whether its engine rotates neighbouring rows: by its attention contract, else by the name of its RoPE kernel."""
    contract = template.get("contract")
    attention = contract.get("attention_contract") if isinstance(contract, dict) else None
    word = attention.get("rope_layout") if isinstance(attention, dict) else None
    if isinstance(word, str) and word in ROPE_WORDS:
        return ROPE_WORDS[word]
    kernels = template.get("kernels")
    kernel = kernels.get("rope_qk") if isinstance(kernels, dict) else None
    if isinstance(kernel, str):
        return "pairwise" in kernel
    return default
