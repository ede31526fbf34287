"""Tokenizer files beside a checkpoint's tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ckconv.core.named import NamedTuple


class TokenizerFiles(NamedTuple):
    """The files, read.

    Attributes:
        tokenizer: ``tokenizer.json``, parsed.
        model: ``tokenizer.model``.
        moved: the ids are not the model's: four special tokens come first, in place of its three (XLM-R).
        versioned: the model is Mistral's own, with the end of a text for padding where it has none.
        settings: ``tokenizer_config.json``, below ``special_tokens_map.json`` where that is read.
        config: ``config.json``, which names ids.
        generation: ``generation_config.json``, which names those that end a text.
        chat_template: a text, or a list of named ones.
        added: ``added_tokens.json``: token -> id.
        why: what speaks against the tokenizer that is there, where it is not read.
        others: names of tokenizer files that are there and not read.
    """

    tokenizer: Mapping[str, Any] | None = None
    model: bytes | None = None
    moved: bool = False
    versioned: bool = False
    settings: Mapping[str, Any] = {}
    config: Mapping[str, Any] = {}
    generation: Mapping[str, Any] = {}
    chat_template: object = None
    added: Mapping[str, Any] = {}
    why: str = ""
    others: tuple[str, ...] = ()


class LeftOut(Exception):
    """Why a tokenizer cannot be said faithfully."""


def equal_tokens(tokens: Iterable[str]) -> tuple[int, int, str] | None:
    """The first two ids of one text; ``None`` where there are none."""
    ids: dict[str, int] = {}
    for number, token in enumerate(tokens):
        if ids.setdefault(token, number) != number:
            return ids[token], number, token
    return None
