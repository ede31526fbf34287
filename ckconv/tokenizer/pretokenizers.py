"""llama.cpp's pre-tokenizers, recognized by their definitions.

By the definition in a ``tokenizer.json`` and nothing less.

llama.cpp splits text by rules that it knows by a name (``tokenizer.ggml.pre``), not by the rules of the file. A name
is only right where the file's whole definition is the one that llama.cpp implements under it: ``pretokenizers.toml``.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ckconv.core.named import NamedTuple

#: The step that spells bytes as letters, where an expression has cut the text before; it is the decoder, too.
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}

_TABLE = Path(__file__).with_suffix(".toml")


class PreTokenizer(NamedTuple):
    """A pre-tokenizer of llama.cpp, by name.

    Attributes:
        steps: what text goes through, by their names in the table.
        nfc: the tokenizers of this name compose characters first (NFC), which llama.cpp does not do.
        ignore_merges: a word that is a token is one, whatever the merges say.
        adds_bos: llama.cpp puts a beginning before a text where a file does not say.
        otherwise: text that llama.cpp cuts otherwise than the tokenizers of this name; empty for none.
    """

    name: str
    steps: tuple[str, ...]
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False
    otherwise: str = ""


#: A step as what it does: its kind and what tells it from others of the kind.
Step = tuple[object, ...]


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(_TABLE.read_text("utf-8"))


@cache
def pre_tokenizers() -> Mapping[str, PreTokenizer]:
    """All names; of one definition's, the written one comes first."""
    return {
        name: PreTokenizer(name, tuple(steps), name in nfc, **more)
        for row in _table()["definition"]
        for names, steps, nfc, more in [_row(**row)]
        for name in names
    }


def of_class(name: str) -> PreTokenizer | None:
    """The pre-tokenizer of a class of slow tokenizers, else ``None``.

    Or of the models of a type whose class it is.
    """
    known = _table()["class"].get(name.removesuffix("Fast"))
    return None if known is None else pre_tokenizers()[known]


def _row(
    names: list[str], steps: list[str], nfc: tuple[str, ...] = (), **more: Any
) -> tuple[list[str], list[str], tuple[str, ...], dict[str, Any]]:
    return names, steps, nfc, more


def definition(known: PreTokenizer) -> dict[str, Any]:
    """The ``pre_tokenizer`` of a ``tokenizer.json``."""
    members = [_member(step) for step in known.steps]
    return members[0] if len(members) == 1 else {"type": "Sequence", "pretokenizers": members}


def _member(step: str) -> dict[str, Any]:
    table = _table()
    if step in table["step"]:
        return dict(table["step"][step])
    expression = table["whole"].get(step) or table["apart"][step]
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def recognized(document: Mapping[str, Any], *, nfc: bool = False) -> tuple[PreTokenizer | None, str]:
    """The definition of a ``tokenizer.json``, or why none fits.

    ``None`` with what speaks against every one.

    Args:
        document: where one name fits but for ``ignore_merges``, it is returned: that only counts for some vocabularies.
        nfc: it composes characters first; a name whose tokenizers do is preferred then.
    """
    model = document.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        kind = model.get("type") if isinstance(model, dict) else None
        return None, f"its model is {kind!r}, not byte-level BPE"
    for key, harmless in (
        ("dropout", (None, 0, 0.0)),
        ("continuing_subword_prefix", (None, "")),
        ("end_of_word_suffix", (None, "")),
        ("byte_fallback", (None, False)),
    ):
        if model.get(key) not in harmless:
            return None, f"its model has {key} = {model[key]!r}"
    decoder = document.get("decoder")
    if isinstance(decoder, dict) and '"ByteLevel"' not in json.dumps(decoder):  # alone, or one of a sequence
        return None, f"its decoder is {decoder.get('type')!r}"
    steps = steps_of(document.get("pre_tokenizer"))
    found = [known for known in pre_tokenizers().values() if _steps_by_name(known.name) == steps]
    if not found:
        return None, "its pre-tokenizer is none that llama.cpp names"
    ignores = model.get("ignore_merges") is True
    return min(found, key=lambda known: (known.ignore_merges != ignores, known.nfc != nfc)), ""


@cache
def _steps_by_name(name: str) -> tuple[Step, ...] | None:
    return steps_of(definition(pre_tokenizers()[name]))


def steps_of(definition: object) -> tuple[Step, ...] | None:
    """Steps of a ``pre_tokenizer``; ``None`` with one of unknown kind."""
    if not isinstance(definition, dict):
        return None
    members = definition.get("pretokenizers") if definition.get("type") == "Sequence" else [definition]
    if not isinstance(members, list) or not all(isinstance(member, dict) for member in members):
        return None
    steps = tuple(step for member in members for step in _steps(member))
    return None if () in steps else steps


def _steps(member: Mapping[str, Any]) -> Iterator[Step]:
    """A step, or the two of ByteLevel with its own expression.

    An empty one is not known.
    """
    kind = member.get("type")
    if kind == "ByteLevel" and member.get("add_prefix_space") is False:
        if member.get("use_regex", True):
            yield ("Split", "gpt-2-words")
        yield (kind,)
    elif kind == "Digits":
        yield (kind, member.get("individual_digits", False))
    elif kind == "Punctuation":
        yield (kind, member.get("behavior", "Isolated"))
    elif kind == "Split":
        yield _split(member)
    else:
        yield ()


def _split(member: Mapping[str, Any]) -> Step:
    pattern = member.get("pattern")
    expression = pattern.get("Regex") if isinstance(pattern, dict) else None
    if not isinstance(expression, str):
        return ()
    # The characters themselves, as some files hold them, and their escapes match the same.
    expression = expression.replace("\r", r"\r").replace("\n", r"\n")
    behavior, invert = member.get("behavior"), member.get("invert", False)
    name = _whole().get(expression)
    if name and (behavior, invert) in (("Isolated", False), ("Removed", True)):
        return ("Split", name)
    return (
        ("Digits", True)
        if (expression, behavior) == (r"\p{N}", "Isolated")
        else ("Split", expression, behavior, invert)
    )


@cache
def _whole() -> Mapping[str, str]:
    """Expression that matches every text -> its name."""
    table = _table()
    others = {spelling: name for name, spellings in table["spelling"].items() for spelling in spellings}
    return {expression: name for name, expression in table["whole"].items()} | others
