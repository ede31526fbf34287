"""The ``tokenizer.*`` keys of a GGUF, from what a checkpoint says about its tokenizer, where llama.cpp does the same.

Two kinds can be said faithfully: byte-level BPE whose pre-tokenizer llama.cpp knows by name ("gpt2"), out of
``tokenizer.json``, and SentencePiece BPE ("llama"), out of ``tokenizer.model``. Any other is left out, which llama.cpp
loads too: it then takes token ids and has no words ("no_vocab").
Sources: ``SpecialVocab`` of gguf-py, ``_set_vocab_gpt2`` and ``_create_vocab_sentencepiece`` of llama.cpp's converter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ckconv.formats.gguf import Value, array, scalar
from ckconv.model import sentencepiece
from ckconv.model.gguf_pretokenizers import recognised
from ckconv.model.gguf_vocabulary import SPECIAL
from ckconv.model.sentencepiece import BPE, CONTROL, NORMAL, UNUSED, USER_DEFINED, Malformed, SentencePiece

#: Tokens that llama.cpp's converter takes for control tokens although nobody marked them as special.
_LOOKS_SPECIAL = re.compile(r"<pad>|<mask>|<2mass>|\[@BOS@\]|<\|.*\|>|<｜.*｜>|<unused.*>", re.DOTALL)

#: Score of a token that the SentencePiece model does not have; of an id that nothing has.
_ADDED_SCORE, _EMPTY_SCORE = -1000.0, -10000.0

_MAX_TEMPLATE_NAME = re.compile(r"[a-z0-9_]{1,64}")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What lies beside a checkpoint's tensors.

    Attributes:
        tokenizer: ``tokenizer.json``, parsed.
        model: ``tokenizer.model``.
        settings: ``tokenizer_config.json`` over ``special_tokens_map.json``.
        config: ``config.json``, which names ids.
        chat_template: ``chat_template.jinja``, or what the settings say: a text, or a list of named ones.
        added: ``added_tokens.json``: token -> id.
    """

    tokenizer: Mapping[str, Any] | None = None
    model: bytes | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    chat_template: object = None
    added: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenizerKeys:
    """What is written.

    Attributes:
        metadata: key -> value, in order.
        notes: what a user should know: that the tokenizer is left out and why, or what llama.cpp does not do.
        tokens: the words that have an id; empty where the tokenizer is left out.
    """

    metadata: dict[str, Value]
    notes: tuple[str, ...] = ()
    tokens: frozenset[str] = frozenset()


class _LeftOut(Exception):
    """Why a tokenizer cannot be said faithfully."""


def tokenizer_keys(files: TokenizerFiles, vocab_size: int) -> TokenizerKeys:
    """The keys for a model of ``vocab_size`` rows; those of a model without words where that is all that is right."""
    try:
        if files.model is not None:
            return _sentencepiece(files, vocab_size)
        if files.tokenizer is not None:
            return _bpe(files, files.tokenizer, vocab_size)
        reason = "the source has none"
    except _LeftOut as error:
        reason = str(error)
    note = f"the tokenizer is left out: {reason}; llama.cpp then takes and gives token ids only"
    return TokenizerKeys({"tokenizer.ggml.model": scalar("str", "no_vocab")}, (note,))


def _bpe(files: TokenizerFiles, document: Mapping[str, Any], vocab_size: int) -> TokenizerKeys:
    known, why = recognised(document)
    if known is None:
        raise _LeftOut(f"{why} (tokenizer.json)")
    model = document["model"]
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not vocab:
        raise _LeftOut("tokenizer.json has no vocabulary")
    by_id: dict[int, tuple[str, int]] = {}
    for token, number in vocab.items():
        _place(by_id, token, number, NORMAL, vocab_size)
    added = document.get("added_tokens")
    ids: dict[str, int] = {}
    for item in added if isinstance(added, list) else ():
        token, number = (item.get("content"), item.get("id")) if isinstance(item, dict) else (None, None)
        if not isinstance(token, str):
            raise _LeftOut("tokenizer.json has an added token without content")
        control = item.get("special") is True or _LOOKS_SPECIAL.fullmatch(token)
        _place(by_id, token, number, CONTROL if control else USER_DEFINED, vocab_size)
        ids[token] = int(str(number))
    tokens = [by_id.get(n, (f"[PAD{n}]", UNUSED)) for n in range(vocab_size)]
    adds_bos, adds_eos = _template(document.get("post_processor"), files.settings)
    metadata = {
        "tokenizer.ggml.model": scalar("str", "gpt2"),
        "tokenizer.ggml.pre": scalar("str", known.name),
        "tokenizer.ggml.tokens": array("str", [token for token, _ in tokens]),
        "tokenizer.ggml.token_type": array("i32", [kind for _, kind in tokens]),
        "tokenizer.ggml.merges": array("str", _merges(model.get("merges"))),
        **_special_ids(files, {**{token: n for n, (token, _) in by_id.items()}, **ids}, {}, vocab_size),
        "tokenizer.ggml.add_bos_token": scalar("bool", adds_bos),
        "tokenizer.ggml.add_eos_token": scalar("bool", adds_eos),
        **_chat_templates(files),
    }
    notes = _normalized(document.get("normalizer"))
    if known.approximate:
        notes += (f"llama.cpp cuts text with combining marks otherwise than this tokenizer ({known.name})",)
    return TokenizerKeys(metadata, notes, frozenset(token for token, _ in by_id.values()))


def _normalized(normalizer: object) -> tuple[str, ...]:
    """llama.cpp takes text as it is."""
    if not isinstance(normalizer, dict) or normalizer == {"type": "Sequence", "normalizers": []}:
        return ()
    return (f"the tokenizer normalises text first ({normalizer.get('type')}), which llama.cpp does not do",)


def _place(by_id: dict[int, tuple[str, int]], token: str, number: object, kind: int, vocab_size: int) -> None:
    _check_text(token)
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise _LeftOut(f"token {token!r} has the id {number!r} (tokenizer.json)")
    if number >= vocab_size:
        raise _LeftOut(f"token {token!r} has the id {number:,}, the embedding {vocab_size:,} rows")
    there = by_id.get(number)
    if there and there[0] != token and kind == NORMAL:
        raise _LeftOut(f"tokens {there[0]!r} and {token!r} have the same id {number:,}")
    by_id[number] = (token, kind)


def _check_text(text: str) -> None:
    """JSON can spell halves of a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _LeftOut(f"{text!r} is no text") from None


def _merges(merges: object) -> list[str]:
    """``a b`` lines. A half may hold no space: of byte-level tokens none does."""
    made = []
    for merge in merges if isinstance(merges, list) else ():
        halves = merge.split(" ") if isinstance(merge, str) else merge
        whole = isinstance(halves, list) and len(halves) == 2
        if not whole or not all(isinstance(half, str) and half and " " not in half for half in halves):
            raise _LeftOut("a merge is not two byte-level tokens (tokenizer.json)")
        made.append(" ".join(halves))
        _check_text(made[-1])
    if not made:
        raise _LeftOut("tokenizer.json has no merges")
    return made


def _template(processor: object, settings: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether a beginning and an end are put around a text; the settings have the last word, as in transformers."""
    first = last = ""
    members: list[object] = [processor] if isinstance(processor, dict) else []
    if isinstance(processor, dict) and processor.get("type") == "Sequence":
        inner = processor.get("processors")
        members = inner if isinstance(inner, list) else [None]
    for member in members:
        kind = member.get("type") if isinstance(member, dict) else None
        if kind == "ByteLevel":
            continue
        if kind != "TemplateProcessing" or not isinstance(member, dict):
            raise _LeftOut(f"its post-processor is {kind!r} (tokenizer.json)")
        first, last = _ends(member.get("single"))
    for what, token in (("bos", first), ("eos", last)):
        if token and token != _content(settings, f"{what}_token"):
            raise _LeftOut(f"it puts {token!r} around a text, which is not its {what}_token (tokenizer.json)")
    said = [settings.get(f"add_{what}_token") for what in ("bos", "eos")]
    return (
        said[0] if isinstance(said[0], bool) else bool(first),
        said[1] if isinstance(said[1], bool) else bool(last),
    )


def _ends(single: object) -> tuple[str, str]:
    """The special tokens before and after the text; empty where there is none."""
    words: list[str] = []
    for part in single if isinstance(single, list) else ():
        special = part.get("SpecialToken") if isinstance(part, dict) else None
        words.append(str(special.get("id")) if isinstance(special, dict) else "")
    if words.count("") != 1 or len(words) - words.index("") > 2 or words.index("") > 1:
        raise _LeftOut("its template puts more around a text than a beginning and an end (tokenizer.json)")
    at = words.index("")
    return (words[0] if at else ""), (words[-1] if at < len(words) - 1 else "")


def _content(settings: Mapping[str, Any], key: str) -> str:
    entry = settings.get(key)
    entry = entry.get("content") if isinstance(entry, dict) else entry
    return entry if isinstance(entry, str) else ""


def _special_ids(
    files: TokenizerFiles, ids: Mapping[str, int], own: Mapping[str, int], vocab_size: int
) -> dict[str, Value]:
    """Ids by the words of the settings, else by ``config.json``, else the model's ``own``."""
    made: dict[str, Value] = {}
    for name, key in SPECIAL.items():
        word = _content(files.settings, f"{name}_token")
        said = files.config.get(f"{name}_token_id")
        said = said[0] if isinstance(said, list) and said else said
        said = said if isinstance(said, int) and not isinstance(said, bool) else own.get(name, -1)
        number = ids.get(word, said) if word else said
        if 0 <= number < vocab_size:
            made[f"tokenizer.ggml.{key}"] = scalar("u32", number)
    return made


def _chat_templates(files: TokenizerFiles) -> dict[str, Value]:
    """One template, or the default one and others by name (``SpecialVocab.add_to_gguf``)."""
    template = files.chat_template
    if isinstance(template, str):
        return {"tokenizer.chat_template": scalar("str", _printable(template))}
    made: dict[str, Value] = {}
    others: list[str] = []
    for item in template if isinstance(template, list) else ():
        name, text = (item.get("name"), item.get("template")) if isinstance(item, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(text, str) or not _MAX_TEMPLATE_NAME.fullmatch(name):
            continue
        if name == "default":
            made["tokenizer.chat_template"] = scalar("str", _printable(text))
        elif name not in others:
            others.append(name)
            made[f"tokenizer.chat_template.{name}"] = scalar("str", _printable(text))
    return {"tokenizer.chat_templates": array("str", others), **made} if others else made


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _sentencepiece(files: TokenizerFiles, vocab_size: int) -> TokenizerKeys:
    assert files.model is not None
    try:
        model = sentencepiece.parse(files.model)
    except Malformed as error:
        raise _LeftOut(f"tokenizer.model is malformed: {error}") from None
    if model.model_type != BPE:
        raise _LeftOut("tokenizer.model is not of the BPE type")
    if not model.byte_fallback:
        raise _LeftOut("tokenizer.model has no pieces for bytes")
    if len(model.pieces) > vocab_size:
        raise _LeftOut(f"tokenizer.model has {len(model.pieces):,} pieces, the embedding {vocab_size:,} rows")
    texts, scores, kinds = _pieces(model, files, vocab_size)
    ids = {text: n for n, text in reversed(list(enumerate(texts)))}
    prefix = files.settings.get("add_prefix_space")
    prefix = prefix if isinstance(prefix, bool) else model.add_dummy_prefix
    metadata = {
        "tokenizer.ggml.model": scalar("str", "llama"),
        "tokenizer.ggml.pre": scalar("str", "default"),
        "tokenizer.ggml.tokens": array("str", texts),
        "tokenizer.ggml.scores": array("f32", scores),
        "tokenizer.ggml.token_type": array("i32", kinds),
        **_special_ids(files, ids, model.special, vocab_size),
        "tokenizer.ggml.add_bos_token": scalar("bool", files.settings.get("add_bos_token") is not False),
        "tokenizer.ggml.add_eos_token": scalar("bool", files.settings.get("add_eos_token") is True),
        # llama.cpp's default for this model is true.
        **({} if prefix else {"tokenizer.ggml.add_space_prefix": scalar("bool", False)}),
        **_chat_templates(files),
    }
    notes = []
    if model.charsmap or model.remove_extra_whitespaces:
        rules = model.normalizer or "removing spaces"
        notes.append(f"the tokenizer normalises text first ({rules}), which llama.cpp does not do")
    return TokenizerKeys(metadata, tuple(notes), frozenset(texts))


def _pieces(model: SentencePiece, files: TokenizerFiles, vocab_size: int) -> tuple[list[str], list[float], list[int]]:
    """Words, scores and types by id: the model's, then what was added to it, then what fills the embedding's rows."""
    rows = [(piece.text, piece.score, piece.type) for piece in model.pieces]
    rows += [(f"[PAD{n}]", _EMPTY_SCORE, UNUSED) for n in range(len(rows), vocab_size)]
    for number, token, special in _added(files):
        _check_text(token)
        if not 0 <= number < vocab_size:
            raise _LeftOut(f"token {token!r} has the id {number:,}, the embedding {vocab_size:,} rows")
        if special or _LOOKS_SPECIAL.fullmatch(token):
            rows[number] = (token, _ADDED_SCORE, CONTROL)
        elif rows[number][0] != token or rows[number][2] == UNUSED:
            # A user's token is matched against text, where a space is a space.
            rows[number] = (token.replace("▁", " "), _ADDED_SCORE, USER_DEFINED)
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


def _added(files: TokenizerFiles) -> list[tuple[int, str, bool]]:
    """(id, word, special) of tokens that are not the model's own, by id."""
    found = {n: (n, token, False) for token, n in files.added.items() if isinstance(n, int)}
    decoder = files.settings.get("added_tokens_decoder")
    for key, entry in decoder.items() if isinstance(decoder, dict) else ():
        token = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(token, str) or not key.isdigit():
            raise _LeftOut(f"added_tokens_decoder has no token at {json.dumps(key)} (tokenizer_config.json)")
        found[int(key)] = (int(key), token, entry.get("special") is True)
    return [found[number] for number in sorted(found)]
