"""Speech models of whisper.cpp: header, names and order of tensors."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple

from ckconv.core.tensors import with_layer
from ckconv.families.catalog import FAMILIES
from ckconv.families.merge import FOLDER
from ckconv.families.names import HF, Names, names_of
from ckconv.families.schema import Family

#: What is said of filters that its converter writes.
USUAL = "those of its converter"


class Speech(NamedTuple):
    """Contents of a whisper.cpp file; see ``speech/whisper_cpp.toml``.

    Attributes:
        family: the only one that it is for.
        header: numbers of the header, in order, each with its key of ``config.json``.
        widths: keys of what follows from the state's width, which is ``width`` times that.
        heads: of a configuration that names no number.
        ends: rows of the embedding -> id of the token that ends a text.
        mels: how many filters there may be.
        full: canonical names of matrices that are FP32.
        columns: canonical names of vectors that are stored with an axis of one.
        tensors: canonical pattern -> the file's, in the order of the file.
        extractor: what computes the same input in transformers.
    """

    family: str
    header: tuple[tuple[str, str], ...]
    widths: tuple[str, ...]
    width: int
    heads: int
    ends: Mapping[int, int]
    mels: tuple[int, ...]
    full: frozenset[str]
    columns: frozenset[str]
    tensors: Mapping[str, str]
    extractor: Mapping[str, Any]


@cache
def speech() -> Speech:
    """The table."""
    said = tomllib.loads((FOLDER / "speech" / "whisper_cpp.toml").read_text(encoding="utf-8"))
    return Speech(
        said["family"],
        tuple((name, key) for name, key in said["header"]),
        tuple(said["widths"]),
        said["width"],
        said["heads"],
        {int(rows): end for rows, end in said["ends"].items()},
        tuple(said["mels"]),
        frozenset(said["full"]),
        frozenset(said["columns"]),
        said["tensors"],
        said["extractor"],
    )


def speech_family() -> Family:
    """The family that the file is for."""
    return FAMILIES[speech().family]


@cache
def speech_names() -> Names:
    """The names of the file, for the rows of its family."""
    written = names_of(speech_family(), HF).written
    called = {
        canonical: written[canonical]._replace(pattern=name)
        for canonical, name in speech().tensors.items()
        if canonical in written
    }
    return Names({found.pattern: found for found in called.values()}, called, {})


def speech_tensors(layers: int, encoder_layers: int) -> Iterator[tuple[str, str]]:
    """Canonical name and stored name of every tensor, in file order."""
    for layered, rows in groupby(speech().tensors.items(), lambda row: row[0].partition("{n}")[0] * ("{n}" in row[0])):
        group = list(rows)
        count = (encoder_layers if layered.startswith("enc.") else layers) if layered else 1
        for number in range(count):
            yield from ((with_layer(name, number), with_layer(called, number)) for name, called in group)


def is_usual(facts: Mapping[str, Any]) -> bool:
    """The filters of a file are those that its converter writes."""
    return facts.get("filters") == USUAL


def speech_settings(mels: int) -> dict[str, Any]:
    """``preprocessor_config.json`` with defaults of Whisper's extractor."""
    return {**speech().extractor, "feature_size": mels}


def speech_document(numbers: Mapping[str, int]) -> dict[str, Any]:
    """``config.json`` of a file's header.

    Args:
        numbers: of the header, by key of ``config.json``.
    """
    table, family = speech(), speech_family()
    end = table.ends.get(numbers["vocab_size"])
    tokens = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end)
    return {
        "architectures": [family.hf_class],
        "model_type": family.model_type,
        **numbers,
        **dict.fromkeys(table.widths, table.width * numbers["d_model"]),
        **({**tokens, "decoder_start_token_id": end + 1} if end is not None else {}),
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
    }
