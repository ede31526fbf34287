"""Tokenizers that lie beside a checkpoint in other files than ``tokenizer.json``, as the document that says the same.

``vocab.json`` and ``merges.txt`` are byte-level BPE; which, transformers says by the tokenizer's class
(``tokenization_gpt2.py``, ``tokenization_qwen2.py``, 5.23), that of ``tokenizer_config.json`` or of the model's type
(``models/auto/tokenization_auto.py``). ``tekken.json`` is Mistral's: bytes by rank, which tiktoken merges by the rank
of what they make; special tokens have the first ids (``tokens/tokenizers/tekken.py`` of mistral_common 1.13).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any

from ckconv.tokenizer.files import LeftOut
from ckconv.tokenizer.merging import bounded
from ckconv.tokenizer.pretokenizers import BYTE_LEVEL, definition, of_class

#: What the classes take for tokens that no file names, where the vocabulary has it.
_END = "<|endoftext|>"
#: Beginning of the first line of ``merges.txt``.
_VERSION = "#version"
_BOS, _PAD = "<s>", "<pad>"
#: Special tokens of a ``tekken.json`` that names none, from id 0 on.
_UNNAMED = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] "
    "[IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
)
#: Special tokens of a ``tekken.json``, of which those without a name get one; Mistral's have 1,000.
_MAX_SPECIAL = 100_000


def of_vocabulary(
    vocab: Mapping[str, Any],
    merges: str,
    settings: Mapping[str, Any],
    config: Mapping[str, Any],
) -> dict[str, Any]:
    """``tokenizer.json`` of ``vocab.json`` and ``merges.txt``.

    Raises:
        LeftOut: it is of a class of which ckconv has no rules.
    """
    said = settings.get("tokenizer_class") or config.get("tokenizer_class")
    known = of_class(str(said or config.get("model_type")))
    if known is None:
        what = f"of the class {said!r}" if said else "of no class that is named"
        raise LeftOut(f"vocab.json and merges.txt are {what}, which ckconv has no rules for")
    if settings.get("add_prefix_space"):
        raise LeftOut("it puts a space before a text (add_prefix_space), which llama.cpp does not do")
    lines = merges.replace("\r\n", "\n").split("\n")
    return {
        "added_tokens": [{"id": vocab[_END], "content": _END, "special": True}] if _END in vocab else [],
        "normalizer": {"type": "NFC"} if known.nfc else None,
        "pre_tokenizer": definition(known),
        "decoder": BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "vocab": vocab,
            "merges": [line for n, line in enumerate(lines) if line and not (n == 0 and line.startswith(_VERSION))],
        },
    }


def of_tekken(document: Mapping[str, Any]) -> dict[str, Any]:
    """``tokenizer.json`` of ``tekken.json``, and the ``settings`` that follow from it.

    ``scores`` is what llama.cpp's converter writes for every word of such a tokenizer, though nothing reads it there.

    Raises:
        LeftOut: it is not in the form that mistral_common reads.
    """
    config, ranked, special = (document.get(key) for key in ("config", "vocab", "special_tokens"))
    special = [*enumerate(_UNNAMED.split())] if special is None else special
    if not isinstance(config, dict) or not isinstance(ranked, list) or not isinstance(special, list):
        raise LeftOut("tekken.json has no configuration, or no list of words")
    size, first = config.get("default_vocab_size"), config.get("default_num_special_tokens")
    if not isinstance(size, int) or not isinstance(first, int) or not 0 < first < size <= first + len(ranked):
        raise LeftOut("tekken.json has no sizes, or fewer words than it says")
    if first > _MAX_SPECIAL:
        raise LeftOut(f"tekken.json has more than {_MAX_SPECIAL:,} special tokens")
    words = list(_words(ranked[: size - first]))
    added: dict[int, str] = dict(item if isinstance(item, tuple) else _special(item) for item in special)
    ranks = {word: rank for rank, word in enumerate(words)}
    if len(ranks) < len(words):
        raise LeftOut("tekken.json has a word twice")
    alphabet = byte_letters()
    spelled = ["".join(map(alphabet.__getitem__, word)) for word in words]
    bos = added.get(1) == _BOS
    names = [added.get(rank, f"<SPECIAL_{rank}>") for rank in range(first)]
    return {
        "added_tokens": [{"id": rank, "content": name, "special": True} for rank, name in enumerate(names)],
        "settings": {f"{name}_token": added[rank] for rank, name in enumerate(("unk", "bos", "eos")) if rank in added}
        | ({"pad_token": _PAD} if _PAD in added.values() else {}),
        "scores": 0,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": config.get("pattern")}, "behavior": "Isolated"},
                BYTE_LEVEL,
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": _BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {_BOS: {"id": _BOS, "ids": [1], "tokens": [_BOS]}},
        }
        if bos
        else None,
        "decoder": BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "ignore_merges": True,
            "vocab": {word: number for number, word in enumerate([*names, *spelled])},
            "merges": [[spelled[one], spelled[other]] for one, other in _merges(words, ranks)],
        },
    }


def _special(item: object) -> tuple[int, str]:
    rank, text = (item.get("rank"), item.get("token_str")) if isinstance(item, dict) else (None, None)
    if not isinstance(rank, int) or not isinstance(text, str):
        raise LeftOut("a special token of tekken.json has no rank, or no text")
    return rank, text


def _words(ranked: list[Any]) -> Iterator[bytes]:
    """The words in the order of their ranks."""
    for rank, item in enumerate(ranked):
        try:
            if item["rank"] != rank:
                raise LeftOut(f"word {rank:,} of tekken.json has another rank")
            yield base64.b64decode(item["token_bytes"], validate=True)
        except (TypeError, KeyError, ValueError, binascii.Error):
            raise LeftOut(f"word {rank:,} of tekken.json has no bytes") from None


def _merges(words: list[bytes], ranks: Mapping[bytes, int]) -> Iterator[tuple[int, int]]:
    """Every two words that make a third, by the rank of that, then by their own."""
    for word in bounded(words, "tekken.json"):
        halves = ((ranks.get(word[:cut]), ranks.get(word[cut:])) for cut in range(1, len(word)))
        yield from sorted((one, other) for one, other in halves if one is not None and other is not None)


def byte_letters() -> dict[int, str]:
    """Byte -> the letter that stands for it in byte-level BPE (``bytes_to_unicode`` of GPT-2's encoder.py)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(0x100) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(0x100 + n) for n, byte in enumerate(rest)}
