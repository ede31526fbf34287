"""WordPiece, as BERT has it: a word is cut into the longest pieces, greedily; between GGUF and ``tokenizer.json``.

llama.cpp marks the beginning of a word (``▁word``), the tokenizers library what follows it (``##piece``).
Source: ``llm_tokenizer_wpm_session`` of llama.cpp's ``src/llama-vocab.cpp``; ``BertModel`` of its converter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ckconv.core.metadata import array, scalar
from ckconv.publish.files import SideFile
from ckconv.tokenizer.files import LeftOut, TokenizerFiles
from ckconv.tokenizer.gguf_words import Words, filled, words_of
from ckconv.tokenizer.huggingface import added_tokens, around, fills, unknown_token, written
from ckconv.tokenizer.sentencepiece import NORMAL, SPACE, UNUSED
from ckconv.tokenizer.vocabulary import NotFaithful, Vocabulary

_CONTINUED = "##"
ACCENTS = "llama.cpp takes accents off fewer characters than the tokenizer, and leaves Hangul whole"
#: Letters of a word, above which it is unknown; llama.cpp has no such limit.
_LONGEST = 100


def wordpiece(vocabulary: Vocabulary, tokens: Sequence[str], types: Sequence[int], _: Sequence[float]) -> SideFile:
    """``tokenizer.json``.

    Raises:
        NotFaithful: two tokens are one.
    """
    vocab = {
        _theirs(token) if types[n] == NORMAL else token: n
        for n, token in enumerate(tokens)
        if not fills(token, types[n], n)
    }
    if len(vocab) != sum(not fills(token, types[n], n) for n, token in enumerate(tokens)):
        raise NotFaithful("two of its tokens are one")
    assert vocabulary.lowers is not None
    lowercase, accents = vocabulary.lowers
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
    document = {
        "added_tokens": added_tokens(vocabulary, tokens, types),
        "normalizer": {**normalizer, "strip_accents": accents, "lowercase": lowercase},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": around(vocabulary, tokens, None),
        "decoder": {"type": "WordPiece", "prefix": _CONTINUED, "cleanup": False},
    }
    model = {
        "type": "WordPiece",
        "unk_token": tokens[unknown_token(vocabulary, tokens, types)],
        "continuing_subword_prefix": _CONTINUED,
        "max_input_chars_per_word": _LONGEST,
    }
    return written(document, model, vocab, lambda: ())


def _theirs(token: str) -> str:
    return token[1:] if token.startswith(SPACE) else _CONTINUED + token


def from_wordpiece(files: TokenizerFiles, document: Mapping[str, Any], vocab_size: int) -> Words:
    """The words of a ``tokenizer.json``.

    Raises:
        LeftOut: llama.cpp would make other ids of a text.
    """
    normalizer, model = document.get("normalizer"), document["model"]
    if not isinstance(normalizer, dict) or normalizer.get("type") != "BertNormalizer":
        raise LeftOut("its normaliser is not BERT's (tokenizer.json)")
    if normalizer.get("clean_text") is not True or normalizer.get("handle_chinese_chars") is not True:
        raise LeftOut("its normaliser keeps control characters or Chinese ones together (tokenizer.json)")
    if document.get("pre_tokenizer") != {"type": "BertPreTokenizer"}:
        raise LeftOut("its pre-tokenizer is not BERT's (tokenizer.json)")
    if model.get("continuing_subword_prefix") != _CONTINUED:
        raise LeftOut(f"its pieces do not begin with {_CONTINUED} (tokenizer.json)")
    by_id, added, notes = words_of(files, model.get("vocab"), vocab_size)
    rows = [(_ours(token) if kind == NORMAL else token, kind) for token, kind in filled(by_id, vocab_size)]
    lowercase, accents = normalizer.get("lowercase") is True, normalizer.get("strip_accents")
    metadata = {
        "tokenizer.ggml.model": scalar("str", "bert"),
        "tokenizer.ggml.tokens": array("str", [token for token, _ in rows]),
        "tokenizer.ggml.token_type": array("i32", [kind for _, kind in rows]),
        "tokenizer.ggml.normalizer.lowercase": scalar("bool", lowercase),
        "tokenizer.ggml.normalizer.strip_accents": scalar("bool", lowercase if accents is None else accents is True),
    }
    words = frozenset(token for token, kind in rows if kind != UNUSED)
    takes_off = metadata["tokenizer.ggml.normalizer.strip_accents"] == scalar("bool", True)
    return Words(metadata, added, words, notes=(*notes, *((ACCENTS,) if takes_off else ())))


def _ours(token: str) -> str:
    return token.removeprefix(_CONTINUED) if token.startswith(_CONTINUED) else SPACE + token
