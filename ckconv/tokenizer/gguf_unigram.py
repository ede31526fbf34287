"""A unigram model out of ``tokenizer.json`` alone, as transformers 5 saves those of XLM-R and T5.

Words are cut at white space and each gets a space in front, which is what llama.cpp does with
``remove_extra_whitespaces`` where the map of characters makes every white space a space. Sources:
``XLMRobertaTokenizer`` and ``T5Tokenizer`` of transformers 5.23; ``llm_tokenizer_ugm_session`` of llama.cpp's
``src/llama-vocab.cpp``, which has the map's layout, too; ``_xlmroberta_set_vocab`` of its converter.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from typing import Any

from ckconv.tokenizer.files import LeftOut, TokenizerFiles
from ckconv.tokenizer.gguf_sentencepiece import (
    ADDED_SCORE,
    EMPTY_SCORE,
    PIECES_FOR_BYTES,
    Rows,
    as_unigram,
    as_words,
    steps,
)
from ckconv.tokenizer.gguf_words import Words, filled, words_of
from ckconv.tokenizer.sentencepiece import SPACE, UNKNOWN, UNUSED, USER_DEFINED

#: White space of common texts.
_SPACES = ("\t", "\n", "\r")


def from_unigram(files: TokenizerFiles, document: Mapping[str, Any], vocab_size: int) -> Words:
    """The words, with their scores.

    Raises:
        LeftOut: llama.cpp would make other ids of a text.
    """
    model = document["model"]
    if model.get("byte_fallback"):
        raise LeftOut(f"its model {PIECES_FOR_BYTES} (tokenizer.json)")
    charsmap = _charsmap(document.get("normalizer"))
    _check_cut(document.get("pre_tokenizer"))
    scores = _scores(model.get("vocab"))
    inside = next((piece for piece in scores if SPACE in piece[1:]), None)
    if inside is not None:
        raise LeftOut(f"it cuts words before it takes pieces, and {inside!r} is of two words (tokenizer.json)")
    unknown = model.get("unk_id")
    if type(unknown) is not int or not 0 <= unknown < len(scores):
        raise LeftOut("its model has no unknown token (tokenizer.json)")
    vocab = {piece: number for number, piece in enumerate(scores)}
    by_id, _, notes = words_of(files, vocab, vocab_size)
    rows: Rows = []
    for number, (token, kind) in enumerate(filled(by_id, vocab_size)):
        score = EMPTY_SCORE if kind == UNUSED else scores.get(token, ADDED_SCORE)
        text = token.replace(SPACE, " ") if kind == USER_DEFINED else token
        rows.append((text, score, UNKNOWN if number == unknown else kind))
    words = as_words(rows, {"unk": unknown}, prefix=True, notes=[*notes])
    return as_unigram(words, charsmap, one_space=True, prefix=True)


def _charsmap(normalizer: object) -> bytes:
    """SentencePiece's rules, which make white space of every kind a space."""
    found = steps(normalizer, "normalizers")
    if [step.get("type") for step in found] != ["Precompiled"]:
        kinds = ", ".join(str(step.get("type")) for step in found) or "none"
        raise LeftOut(f"its normaliser is no map of characters alone, but {kinds} (tokenizer.json)")
    text = found[0].get("precompiled_charsmap")
    try:
        charsmap = base64.b64decode(text if isinstance(text, str) else "", validate=True)
        kept = next((space for space in _SPACES if _mapped(charsmap, space.encode()) != b" "), None)
    except (binascii.Error, ValueError, IndexError, TypeError):  # of units that are cut off, cast raises the last
        raise LeftOut("its map of characters is malformed (tokenizer.json)") from None
    if kept is not None:
        raise LeftOut(f"it cuts at {kept!r}, which its map of characters makes no space (tokenizer.json)")
    return charsmap


def _mapped(charsmap: bytes, key: bytes) -> bytes | None:
    """What a map of characters makes of a text that it has.

    The map is the size of a double array in bytes (u32), its units (u32), and texts that end in zero. A unit has a
    label (bits 0 to 7, and 31, which no label has), a leaf (8), and an offset (10 and on; by 256 with bit 9).
    """
    size = int.from_bytes(charsmap[:4], "little")
    units = memoryview(charsmap)[4 : 4 + size].cast("I")
    at = _offset(units[0])
    unit = units[0]
    for byte in key:
        at ^= byte
        unit = units[at]
        if unit & (1 << 31 | 0xFF) != byte:
            return None
        at ^= _offset(unit)
    if not unit >> 8 & 1:
        return None
    start = 4 + size + (units[at] & (1 << 31) - 1)
    return charsmap[start : charsmap.index(b"\0", start)]


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 1 << 9) >> 6)


def _check_cut(pre_tokenizer: object) -> None:
    """Words between white space, each with a space in front."""
    for step in (found := steps(pre_tokenizer, "pretokenizers")):
        kind, scheme = step.get("type"), step.get("prepend_scheme", "always")
        spaces = kind == "Metaspace" and step.get("replacement") == SPACE and scheme == "always"
        if not (kind == "WhitespaceSplit" or (spaces and step.get("add_prefix_space") is not False)):
            raise LeftOut(f"its pre-tokenizer is {kind!r} (tokenizer.json)")
    if [step.get("type") for step in found] != ["WhitespaceSplit", "Metaspace"]:
        raise LeftOut("it does not cut at white space before it makes spaces pieces (tokenizer.json)")


def _scores(vocab: object) -> dict[str, float]:
    """Piece -> score, in the order of ids."""
    pairs = vocab if isinstance(vocab, list) else []
    scores: dict[str, float] = {}
    for pair in pairs:
        piece, score = pair if isinstance(pair, list) and len(pair) == 2 else (None, None)
        if not isinstance(piece, str) or isinstance(score, bool) or not isinstance(score, int | float):
            raise LeftOut("its vocabulary is no list of pieces and scores (tokenizer.json)")
        if not math.isfinite(score):
            raise LeftOut(f"the score of {piece!r} is no number (tokenizer.json)")
        scores[piece] = float(score)
    if len(scores) < len(pairs) or not scores:
        raise LeftOut("its vocabulary has a piece twice, or none (tokenizer.json)")
    return scores
