"""SentencePiece as the keys of a GGUF: pieces, scores and types, out of ``tokenizer.model`` or ``tokenizer.json``.

Of a unigram model llama.cpp takes the likeliest pieces, and applies its rules to a text first. Of a BPE model it joins
the two neighbours whose piece has the highest score, the leftmost of equals. A ``tokenizer.json`` has merges in an
order instead: the scores are made of that order, where it is one of pieces.
Sources: ``_create_vocab_sentencepiece`` of llama.cpp's converter; ``llm_tokenizer_spm_session`` of llama.cpp's
``src/llama-vocab.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Any

from ckconv.core.metadata import Value, array, raw_array, scalar
from ckconv.tokenizer import sentencepiece
from ckconv.tokenizer.added import added_tokens, of_settings, words_of_document
from ckconv.tokenizer.files import LeftOut, TokenizerFiles
from ckconv.tokenizer.gguf_special import put_around
from ckconv.tokenizer.gguf_words import LOOKS_SPECIAL, Words, check_text, filled, notes_on, placeable, words_of
from ckconv.tokenizer.sentencepiece import (
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    UNIGRAM,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Malformed,
    Piece,
    SentencePiece,
    TooManyPieces,
)

#: Score of a token that the SentencePiece model does not have; of an id that nothing has.
ADDED_SCORE, EMPTY_SCORE = -1000.0, -10000.0
_BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))
#: Characters of all ways to cut all pieces in two; Gemma's 262,144 pieces have 2^24.
_MAX_CUT = 1 << 28

#: Why a unigram model is left out: a character without a piece is the unknown token there.
PIECES_FOR_BYTES = "has pieces for bytes, which llama.cpp does not take in unigram models"

Rows = list[tuple[str, float, int]]


def of_same_words(files: TokenizerFiles, vocab_size: int) -> bool:
    """``tokenizer.model`` has the words of the ``tokenizer.json`` beside it, but for tokens that are added to them.

    transformers takes ``tokenizer.json``; the model says how likely pieces are.
    """
    words = words_of_document(files.tokenizer)
    if not words or files.model is None:
        return files.model is not None
    try:
        model = _parsed(files, files.model, vocab_size)
    except LeftOut:
        return False
    added = added_tokens(files, words)
    numbers = {token.number for token in added.values()}
    pieces = {piece.text: n for n, piece in enumerate(model.pieces) if n not in numbers and piece.text not in added}
    return pieces == {word: n for word, n in words.items() if n not in numbers and word not in added}


def _parsed(files: TokenizerFiles, data: bytes, vocab_size: int) -> SentencePiece:
    try:
        model = sentencepiece.parse(data, limit=vocab_size)
    except TooManyPieces:
        raise LeftOut(f"tokenizer.model has more pieces than the embedding has rows ({vocab_size:,})") from None
    except Malformed as error:
        raise LeftOut(f"tokenizer.model is malformed: {error}") from None
    return _moved(model) if files.moved else model


def from_model(files: TokenizerFiles, data: bytes, vocab_size: int) -> Words:
    """The words of a ``tokenizer.model``, and those that are added to them by the files beside it.

    Raises:
        LeftOut: it is malformed, or neither BPE with byte fallback nor unigram without.
    """
    model = _parsed(files, data, vocab_size)
    unigram = model.model_type == UNIGRAM
    if not unigram and model.model_type != BPE:
        raise LeftOut("tokenizer.model is of neither the BPE nor the unigram type")
    if model.byte_fallback == unigram:
        raise LeftOut(f"tokenizer.model {PIECES_FOR_BYTES if unigram else 'has no pieces for bytes'}")
    rows, notes = _pieces(model, files, vocab_size)
    prefix = files.settings.get("add_prefix_space")
    prefix = prefix if isinstance(prefix, bool) else model.add_dummy_prefix
    if unigram:
        words = as_words(rows, model.special, prefix=prefix, notes=notes)
        return as_unigram(words, model.charsmap, one_space=model.remove_extra_whitespaces, prefix=prefix)
    if files.tokenizer is not None:
        with suppress(LeftOut):
            prefix, said = _spaces(files.tokenizer)
            notes += said
    if model.charsmap or model.remove_extra_whitespaces:
        rules = model.normalizer or "removing spaces"
        notes.append(f"the tokenizer normalises text first ({rules}), which llama.cpp does not do")
    own = dict(model.special)
    if files.versioned and own["pad"] < 0:  # MistralVocab.pad_id of gguf-py
        own["pad"] = own["eos"]
    return as_words(rows, own, prefix=prefix, notes=notes)


#: What XLM-R has in front of the pieces in place of SentencePiece's own (``XLMRobertaTokenizer`` of transformers).
_FIRST = (("<s>", CONTROL), ("<pad>", CONTROL), ("</s>", CONTROL), ("<unk>", UNKNOWN))


def _moved(model: SentencePiece) -> SentencePiece:
    first = tuple(Piece(text, 0.0, kind) for text, kind in _FIRST)
    own = {name: n for n, name in enumerate(("bos", "pad", "eos", "unk"))}
    return replace(model, pieces=(*first, *model.pieces[3:]), special=own)


def as_unigram(words: Words, charsmap: bytes, *, one_space: bool, prefix: bool) -> Words:
    """The same pieces, of which the likeliest are taken, and what llama.cpp does to a text before."""
    rules = {
        "model": scalar("str", "t5"),
        "remove_extra_whitespaces": scalar("bool", one_space),
        "precompiled_charsmap": raw_array("u8", len(charsmap), charsmap),
    }
    said = {f"tokenizer.ggml.{key}": value for key, value in rules.items() if key[0] != "p" or charsmap}
    return replace(words, metadata={**words.metadata, **said}, behind=_prefix(prefix))


def _prefix(prefix: bool) -> dict[str, Value]:
    return {"tokenizer.ggml.add_space_prefix": scalar("bool", prefix)}


def is_sentencepiece(document: Mapping[str, Any]) -> bool:
    """A ``tokenizer.json`` holds BPE of characters, those without a piece as their bytes."""
    model = document.get("model")
    return isinstance(model, dict) and model.get("type") == "BPE" and model.get("byte_fallback") is True


def from_json(files: TokenizerFiles, document: Mapping[str, Any], vocab_size: int) -> Words:
    """The words of a ``tokenizer.json``: with scores, or with merges where their order is none of scores.

    Raises:
        LeftOut: llama.cpp would make other ids of a text.
    """
    model = document["model"]
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"):
        if model.get(key):
            raise LeftOut(f"its model has {key} = {model[key]!r} (tokenizer.json)")
    prefix, notes = _spaces(document)
    by_id, added, said = words_of(files, model["vocab"], vocab_size)
    notes += said
    if not model["vocab"].keys() >= _BYTES:
        raise LeftOut("tokenizer.json has no tokens for all bytes")
    plain = [token for token in model["vocab"] if token not in added and token not in _BYTES]
    merges: list[str] = []
    try:
        scores = _scores(model, plain)
    except LeftOut:
        if prefix or any("\n" in token and token.strip("\n") for token in plain):
            raise  # the tokenizer of llama.cpp that follows merges puts no space in front, and cuts between lines
        scores, merges = {}, [" ".join(pair) for pair in _merges(model.get("merges"))]
    unknown = model.get("unk_token")
    rows: Rows = []
    for token, kind in filled(by_id, vocab_size):
        if kind == UNUSED:
            rows.append((token, EMPTY_SCORE, kind))
        elif token == unknown:
            rows.append((token, 0.0, UNKNOWN))
        elif kind == NORMAL and token in _BYTES:
            rows.append((token, 0.0, BYTE))
        elif kind == NORMAL:
            rows.append((token, scores.get(token, float(-len(scores))), kind))
        else:
            rows.append((token.replace(SPACE, " ") if kind == USER_DEFINED else token, ADDED_SCORE, kind))
    words = as_words(rows, {}, prefix=prefix, notes=notes)
    return _with_merges(words, merges, adds_bos=put_around(files)[0]) if merges else words


def _with_merges(words: Words, merges: list[str], *, adds_bos: bool) -> Words:
    """llama.cpp puts a beginning before every text under one name, and does as it is told under the other."""
    bad = next((merge for merge in merges if merge.count(" ") != 1), "")
    if bad:
        raise LeftOut(f"the merge {bad!r} holds a space (tokenizer.json)")
    model = {"model": "gemma4"} if adds_bos else {"model": "gpt2", "pre": "sarvam-moe"}
    said = {f"tokenizer.ggml.{key}": scalar("str", name) for key, name in model.items()}
    kept = {key: words.metadata[key] for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type")}
    return replace(words, metadata={**said, **kept, "tokenizer.ggml.merges": array("str", merges)})


def as_words(rows: Rows, own: Mapping[str, int], *, prefix: bool, notes: list[str]) -> Words:
    """Pieces that neighbours are joined to; ``own`` are the model's special ones."""
    texts = [text for text, _, _ in rows]
    metadata = {
        "tokenizer.ggml.model": scalar("str", "llama"),
        "tokenizer.ggml.pre": scalar("str", "default"),
        "tokenizer.ggml.tokens": array("str", texts),
        "tokenizer.ggml.scores": array("f32", [score for _, score, _ in rows]),
        "tokenizer.ggml.token_type": array("i32", [kind for _, _, kind in rows]),
    }
    ids = {text: n for n, text in reversed(list(enumerate(texts)))}
    # llama.cpp's default for this model is true.
    return Words(metadata, ids, frozenset(texts), own, {} if prefix else _prefix(prefix), tuple(notes))


def _spaces(document: Mapping[str, Any]) -> tuple[bool, list[str]]:
    """Whether a space is put before a text; and notes.

    Raises:
        LeftOut: more is done to a text than that and making every space a piece.
    """
    prefix, escaped = False, False
    notes: list[str] = []
    for step in steps(document.get("normalizer"), "normalizers"):
        if step == {"type": "Prepend", "prepend": SPACE}:
            prefix = True
        elif step == {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}:
            escaped = True
        else:
            raise LeftOut(f"it normalises text first ({step.get('type')}), which llama.cpp does not do")
    for step in steps(document.get("pre_tokenizer"), "pretokenizers"):
        scheme = step.get("prepend_scheme", "always")
        if step.get("type") == "Metaspace" and step.get("replacement") == SPACE and step.get("split") is False:
            escaped = True
            if scheme != "never":
                prefix = True
                notes.append(
                    "llama.cpp puts a space after special tokens and before spaces too; the tokenizer does not"
                )
        elif not (escaped and step.get("type") == "Split" and step.get("pattern") == {"String": " "}):
            raise LeftOut(f"its pre-tokenizer is {step.get('type')!r} (tokenizer.json)")
    if not escaped:
        raise LeftOut("it does not make spaces pieces (tokenizer.json)")
    return prefix, notes


def steps(part: object, members: str) -> list[dict[str, Any]]:
    """The steps of a normaliser or pre-tokenizer."""
    steps = part.get(members) if isinstance(part, dict) and part.get("type") == "Sequence" else [part]
    steps = [] if steps == [None] else steps
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise LeftOut("its steps are not a list of objects (tokenizer.json)")
    return steps


def _scores(model: Mapping[str, Any], pieces: list[str]) -> dict[str, float]:
    """Piece -> its place in the order of the merges, as a number that falls.

    Args:
        pieces: all words that are made of characters.

    Raises:
        LeftOut: the merges have an order that scores of pieces cannot have.
    """
    if sum(len(piece) ** 2 for piece in pieces) > _MAX_CUT:
        raise LeftOut("its pieces are too long to be looked through (tokenizer.json)")
    scores: dict[str, float] = {}
    order: list[str] = []
    pairs: dict[tuple[str, str], None] = {}
    tied: set[str] = set()
    last = ""
    for left, right in _merges(model.get("merges")):
        piece = left + right
        if piece != last and piece in scores:
            between = order[order.index(piece) :]
            if len(set("".join(between))) > 1:
                raise LeftOut(f"the merges of {piece!r} do not follow each other (tokenizer.json)")
            tied.update(between)
            scores |= dict.fromkeys(between, scores[piece])
        elif piece not in scores:
            scores[piece] = float(-len(scores))
            order.append(piece)
        pairs[left, right] = None
        last = piece
    _check_ties([pair for pair in pairs if "".join(pair) in tied])
    for piece in pieces:
        for left, right in ((piece[:at], piece[at:]) for at in range(1, len(piece))):
            joins = all(len(half) == 1 or half in scores for half in (left, right))
            if joins and (left, right) not in pairs:
                raise LeftOut(f"no merge makes {piece!r} of {left!r} and {right!r}, llama.cpp does (tokenizer.json)")
    return scores


def _check_ties(pairs: list[tuple[str, str]]) -> None:
    """Runs of one character, as the spaces of llama's vocabulary, have one score: the leftmost of them is made longer.

    Raises:
        LeftOut: the merges have another order.
    """
    for _, same in groupby(pairs, key=lambda pair: pair[0][0]):
        run = list(same)
        if run != sorted(run, key=lambda pair: (-len(pair[0]), -len(pair[1]))):
            raise LeftOut(f"the merges of {''.join(run[0])!r} do not follow each other (tokenizer.json)")


def _merges(merges: object) -> Iterator[tuple[str, str]]:
    for merge in merges if isinstance(merges, list) else ():
        halves = merge.split(" ") if isinstance(merge, str) else merge
        whole = isinstance(halves, list) and len(halves) == 2
        if not whole or not all(isinstance(half, str) and half for half in halves):
            raise LeftOut("a merge is not two pieces (tokenizer.json)")
        yield halves[0], halves[1]


def _pieces(model: SentencePiece, files: TokenizerFiles, vocab_size: int) -> tuple[Rows, list[str]]:
    """Words, scores and types by id: the model's, then what was added to it, then what fills the embedding's rows.

    Where ``tokenizer.json`` is there, a piece that it does not add is a word, whatever type the model gives it. Without
    it, the settings may give a piece another text (Gemma's unused ones).
    """
    rows = [(piece.text, piece.score, piece.type) for piece in model.pieces]
    words = words_of_document(files.tokenizer)
    if alone := not words:
        words = {text: n for n, (text, _, _) in enumerate(rows)}
        names = {token.listed: token.content for token in added_tokens(files, {}).values()}
        rows = [(names[n] if n in names and names[n] not in words else it[0], *it[1:]) for n, it in enumerate(rows)]
        words = {text: n for n, (text, _, _) in enumerate(rows)}
    added = added_tokens(files, words)
    if not alone:
        numbers = {token.number for token in added.values()}
        looked_for = (CONTROL, USER_DEFINED)
        rows = [(*it[:2], NORMAL if it[2] in looked_for and n not in numbers else it[2]) for n, it in enumerate(rows)]
    rows += [(f"[PAD{n}]", EMPTY_SCORE, UNUSED) for n in range(len(rows), vocab_size)]
    listed = {*files.added, *(token.content for token in of_settings(files.settings))}
    for token in placeable(added.values(), vocab_size):
        check_text(token.content)
        number = token.number
        if number >= vocab_size:
            raise LeftOut(f"token {token.content!r} has the id {number:,}, the embedding {vocab_size:,} rows")
        control = token.special or LOOKS_SPECIAL.fullmatch(token.content)
        text, _, kind = rows[number]
        if control and (token.content in listed or kind not in (CONTROL, UNKNOWN) or text != token.content):
            rows[number] = (token.content, ADDED_SCORE, CONTROL)
        elif not control and (text != token.content or kind not in (USER_DEFINED, UNKNOWN, BYTE)):
            # A user's token is matched against text, where a space is a space.
            rows[number] = (token.content.replace(SPACE, " "), ADDED_SCORE, USER_DEFINED)
    return rows, [*notes_on(added.values(), vocab_size)]
