"""``tokenizer.json`` of a unigram model of SentencePiece: the likeliest pieces, after rules for characters and spaces.

Source: ``llm_tokenizer_ugm_session`` of llama.cpp's ``src/llama-vocab.cpp``. Its rules are SentencePiece's; the
tokenizers library applies them to whole graphemes, so that a few combinations of marks have other ids there.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from ckconv.publish.files import SideFile
from ckconv.tokenizer.huggingface import added_tokens, around, unknown_token, written
from ckconv.tokenizer.sentencepiece import NORMAL, SPACE
from ckconv.tokenizer.vocabulary import NotFaithful, Rules, Vocabulary


def rules_of(rules: Rules) -> dict[str, Any]:
    """What :func:`ckconv.tokenizer.sentencepiece.encode` takes of them."""
    charsmap = rules.charsmap.decode() if rules.charsmap else ()
    return {"unigram": True, "charsmap": bytes(byte % 256 for byte in charsmap), "one_space": rules.one_space}


def unigram(vocabulary: Vocabulary, tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> SideFile:
    """``tokenizer.json`` of the likeliest pieces.

    Raises:
        NotFaithful: not every token has a text, or not one is the unknown one.
    """
    rules = vocabulary.unigram
    assert rules is not None
    if "" in tokens:
        raise NotFaithful(f"token {tokens.index(''):,} has no text")
    steps: list[dict[str, Any]] = []
    if charsmap := rules_of(rules)["charsmap"]:
        steps.append({"type": "Precompiled", "precompiled_charsmap": b64encode(charsmap).decode()})
    if rules.one_space:
        # As SentencePiece and llama.cpp do; a space at the end is none of a word's.
        steps += [{"type": "Replace", "pattern": {"Regex": r"\A +| +\z"}, "content": ""}]
        steps += [{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]
    spaces = {"type": "Metaspace", "replacement": SPACE, "split": rules.one_space}
    spaces["prepend_scheme"] = "always" if vocabulary.space_prefix else "never"
    document = {
        "added_tokens": added_tokens(vocabulary, tokens, types),
        "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
        "pre_tokenizer": spaces,
        "post_processor": around(vocabulary, tokens, None),
        "decoder": spaces,
    }
    # A token that only fills a row may not set the scale, by which the unknown one is the last resort.
    least = min((score for score, kind in zip(scores, types, strict=True) if kind == NORMAL), default=0.0)
    vocab = [(token, max(score, least)) for token, score in zip(tokens, scores, strict=True)]
    model = {"type": "Unigram", "unk_id": unknown_token(vocabulary, tokens, types), "byte_fallback": False}
    return written(document, model, vocab, lambda: ())
