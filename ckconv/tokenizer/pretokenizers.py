"""Which of llama.cpp's pre-tokenizers a ``tokenizer.json`` defines, recognised by its definition and nothing less.

llama.cpp splits text by rules that it knows by a name (``tokenizer.ggml.pre``), not by the rules of the file. A name
is only right where the file's whole definition is the one that llama.cpp implements under it.
Source: ``llm_tokenizer_bpe`` and ``llama_vocab::impl::load`` of llama.cpp's ``src/llama-vocab.cpp``, which quotes the
regular expressions of the original files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START = r"[^\r\n\p{L}\p{N}]?"
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASHED}"
_GPT4O = (
    rf"{_START}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_START}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_SLASHED}"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One definition.

    Attributes:
        name: llama.cpp's.
        steps: what text goes through, as :func:`steps_of` names them.
        ignore_merges: a word that is a token is one, whatever the merges say.
        approximate: llama.cpp stands in for classes of letters with ranges of ASCII: combining marks are cut elsewhere.
        adds_bos: llama.cpp puts a beginning before a text where a file does not say.
        composed: the tokenizers of this name compose characters first (NFC), which llama.cpp does not do.
        also: other names under which llama.cpp does the same.
    """

    name: str
    steps: tuple[str, ...]
    ignore_merges: bool = False
    approximate: bool = False
    adds_bos: bool = False
    composed: bool = False
    also: tuple[str, ...] = ()


_BYTES = "bytes"
#: ByteLevel with its own expression, that of GPT-2.
_GPT2_BYTES = "gpt-2 bytes"
_DIGITS = "single digits"

#: Every definition that is recognised. "dbrx" is llama 3's expression for a tokenizer that follows its merges.
PRE_TOKENIZERS: tuple[PreTokenizer, ...] = (
    PreTokenizer("gpt-2", (_GPT2_BYTES,), also=("phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4")),
    PreTokenizer("smollm", (_DIGITS, _GPT2_BYTES), also=("starcoder", "refact", "codeshell", "exaone", "minerva-7b")),
    PreTokenizer(
        "llama-bpe",
        (f"split {_LLAMA3}", _BYTES),
        ignore_merges=True,
        adds_bos=True,
        also=("llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    ),
    PreTokenizer("dbrx", (f"split {_LLAMA3}", _BYTES), also=("smaug-bpe",)),
    PreTokenizer("qwen2", (f"split {_QWEN2}", _BYTES), composed=True),
    PreTokenizer("tekken", (f"split {_TEKKEN}", _BYTES), ignore_merges=True, approximate=True, adds_bos=True),
    PreTokenizer("gpt-4o", (f"split {_GPT4O}", _BYTES), approximate=True),
)

#: Names under which llama.cpp cuts text as under another, for tokenizers that do not compose characters.
_UNCOMPOSED = {"deepseek-r1-qwen": "qwen2", "megrez": "qwen2", "stablelm2": "qwen2", "hunyuan": "qwen2"}


def named(name: str) -> PreTokenizer | None:
    """What llama.cpp does under a name; ``None`` where this is not known exactly."""
    wanted = _UNCOMPOSED.get(name, name)
    known = next((known for known in PRE_TOKENIZERS if wanted in (known.name, *known.also)), None)
    return replace(known, composed=known.composed and wanted == name) if known else None


def definition(known: PreTokenizer) -> dict[str, Any]:
    """The ``pre_tokenizer`` of a ``tokenizer.json``, of which :func:`steps_of` makes ``known.steps``."""
    members = [_member(step) for step in known.steps]
    return members[0] if len(members) == 1 else {"type": "Sequence", "pretokenizers": members}


def _member(step: str) -> dict[str, Any]:
    if step in (_BYTES, _GPT2_BYTES):
        return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": step == _GPT2_BYTES}
    if step == _DIGITS:
        return {"type": "Digits", "individual_digits": True}
    expression = step.removeprefix("split ")
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def recognised(document: Mapping[str, Any]) -> tuple[PreTokenizer | None, str]:
    """The definition of a ``tokenizer.json``, or ``None`` and what speaks against every one.

    A normalizer is not looked at: llama.cpp applies none.
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
    steps = steps_of(document.get("pre_tokenizer"))
    if steps is None:
        return None, "its pre-tokenizer is none that llama.cpp names"
    ignores = model.get("ignore_merges") is True
    for known in PRE_TOKENIZERS:
        if (known.steps, known.ignore_merges) == (steps, ignores):
            return known, ""
    return None, "its pre-tokenizer is none that llama.cpp names"


def steps_of(definition: object) -> tuple[str, ...] | None:
    """The steps of a ``pre_tokenizer`` as words that compare; ``None`` where one has no word."""
    if not isinstance(definition, dict):
        return None
    members = definition.get("pretokenizers") if definition.get("type") == "Sequence" else [definition]
    if not isinstance(members, list):
        return None
    steps = [_step(member) if isinstance(member, dict) else None for member in members]
    return None if None in steps else tuple(step for step in steps if step is not None)


def _step(member: Mapping[str, Any]) -> str | None:
    kind = member.get("type")
    if kind == "ByteLevel" and member.get("add_prefix_space") is False:
        return _GPT2_BYTES if member.get("use_regex", True) else _BYTES
    if kind == "Digits" and member.get("individual_digits") is True:
        return _DIGITS
    pattern = member.get("pattern")
    expression = pattern.get("Regex") if isinstance(pattern, dict) else None
    # What the expressions above match is the whole text, so that keeping matches apart and removing what is between
    # them is the same.
    split = (member.get("behavior"), member.get("invert")) in (("Isolated", False), ("Removed", True))
    return f"split {expression}" if kind == "Split" and split and isinstance(expression, str) else None
