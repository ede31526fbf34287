"""The ``tokenizer.*`` keys of a GGUF as llama.cpp reads them."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ckconv.core.lazy import NamedTuple, table_of
from ckconv.core.metadata import list_within, table_within, within
from ckconv.errors import UnsupportedError

# -- llama.cpp's pre-tokenizers, recognized by their definitions -------------------------------------------------------
# By the definition in a ``tokenizer.json`` and nothing less.
#
# llama.cpp splits text by rules that it knows by a name (``tokenizer.ggml.pre``), not by the rules of the file. A name
# is only right where the file's whole definition is the one that llama.cpp implements under it: ``pretokenizers.toml``.

#: The step that spells bytes as letters, where an expression has cut the text before; it is the decoder, too.
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}

_TABLE = Path(__file__).with_name("pretokenizers.toml")


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


#: Kind of a tokenizer that has no pre-tokenizer -> what llama.cpp adds (``impl::load`` of ``llama-vocab.cpp``).
_ADDED_BY_KIND: Mapping[str, Collection[str]] = {"llama": ("bos",), "bert": ("bos", "sep"), "t5": ("eos",), "rwkv": ()}

#: The kind that puts a space before a text.
_SPACED = "llama"

#: Names under which it puts a separator between two texts.
_SEPARATES = ("jina-v1-en", "jina-v2-code", "roberta-bpe")

#: A step as what it does: its kind and what tells it from others of the kind.
Step = tuple[object, ...]


@cache
def _table() -> Mapping[str, Any]:
    table = table_of(_TABLE)
    for section in ("whole", "apart"):
        own = table[section].items()
        table[section] = {name: it if isinstance(it, str) else "|".join(it) for name, it in own}
    return table


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
    """Pre-tokenizer that a slow tokenizer's class implies, or ``None``."""
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
        return None, f"its model is {within(model, 'type')!r}, not byte-level BPE"
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
    expression = within(member, "pattern", "Regex")
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


# -- The ``tokenizer.*`` keys of a GGUF as llama.cpp reads them --------------------------------------------------------
# Arrays stay encoded. The vocabulary of bump entries is read likewise. Source: ``llama_vocab::impl::load`` of
# llama.cpp's ``src/llama-vocab.cpp``.

#: Name of a special token in Hugging Face's words -> its key in GGUF after ``tokenizer.ggml.``, in llama.cpp's order.
SPECIAL: dict[str, str] = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",
    "pad": "padding_token_id",
    "cls": "cls_token_id",
    "mask": "mask_token_id",
}

#: Tokens that end a text besides ``eos``: of a turn, of a message.
_ALSO_END = ("eot_token_id", "eom_token_id")

#: Texts of tokens that llama.cpp takes for the end of a turn where a file names none, and of a message.
FOUND_AS: dict[str, frozenset[str]] = {
    "eot_token_id": frozenset(
        {
            *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>"),
            *("_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>"),
        }
    ),
    "eom_token_id": frozenset({"<|eom_id|>"}),
}
#: Texts of tokens after which llama.cpp ends, whatever a file names.
ENDS_BY_TEXT = frozenset(
    {
        *(text for texts in FOUND_AS.values() for text in texts),
        *("<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "</s>", "[EOS]", "<eos>", "<turn|>", "<|tool_response>"),
        "[e~[",
    }
)

#: What llama.cpp takes for the special tokens of a SentencePiece model whose file does not say. The unknown token is
#: the one of that type.
_SPECIAL = {
    "llama": {"bos": 1, "eos": 2},
    "t5": {"eos": 1, "unk": 2, "pad": 0},
    "bert": {"bos": 101, "sep": 102, "unk": 100, "pad": 0, "mask": 103},
}

#: Pre-tokenizers that make spaces pieces and follow merges of pieces -> whether a beginning is put before a text
#: whatever the file says.
PIECES: dict[str, bool] = {"gemma4": True, "granite-embed-multi-311m": True, "sarvam-moe": False}

#: Models of llama.cpp that no ``tokenizer.json`` says, or none of a family that ckconv knows, and why: none comes back.
OTHER_MODELS: dict[str, str] = {
    "hybriddna": "it takes six letters at a time between <dna> and </dna>, which no tokenizer.json says",
    "plamo2": "it scores pieces as PLaMo's own code does, which no tokenizer.json says",
    "rwkv": "it takes the longest word that a text begins with, which no tokenizer.json says",
    "whitespace": "it is that of Jina's Chinese embedding model, whose architecture ckconv does not know",
}

EXACT_MODELS, NO_VOCABULARY = ("gpt2", "llama", "gemma4", "t5", "bert"), ("no_vocab", "none")

#: Tokenizers of llama.cpp (``llama_vocab::impl::load``).
MODELS = (*EXACT_MODELS, *OTHER_MODELS, *NO_VOCABULARY)

#: Models whose name holds one of these have special tokens that swallow the white space behind them, but for these.
PHI3_NAMES = ("phi-3", "phi3")
#: Words that llama.cpp looks up in their vocabulary, without asking whether they are there.
PHI3_TOKENS = frozenset({"</s>", "<unk>", "<s>", "<|endoftext|>"})
KEEPS_SPACE = frozenset({"<unk>", "<s>", "<|endoftext|>"})


class NotFaithful(Exception):
    """Why a written tokenizer would not do what llama.cpp does."""


class Rules(NamedTuple):
    """Unigram model's rules for text: map of characters, one space for many."""

    charsmap: Any
    one_space: bool


class Vocabulary(NamedTuple):
    """A tokenizer, without its words.

    Attributes:
        pre: how text is split; ``None`` for pieces, where it is not: those of SentencePiece, with ``scores``, or with
            ``merges``.
        special: Hugging Face's name (``bos``) -> id.
        adds_bos, adds_eos: a beginning, an end is put around a text.
        space_prefix: a space is put before a text of pieces.
        strips: special tokens swallow the white space behind them, but for ``KEEPS_SPACE``.
        chat_template: a text, or a list of ``name`` and ``template`` with the default one first; ``None`` for none.
        tokens, types, merges, scores: arrays with ``count`` and ``decode()``, of strings with ``each()`` too; ``None``
            for those that the model does not have.
        unigram: the rules of a unigram model; ``None`` for another.
        lowers: WordPiece: letters are made small, and accents taken off them; ``None`` for another.
    """

    pre: PreTokenizer | None
    special: Mapping[str, int]
    adds_bos: bool
    adds_eos: bool
    space_prefix: bool
    strips: bool
    chat_template: str | list[dict[str, str]] | None
    tokens: Any
    types: Any
    merges: Any = None
    scores: Any = None
    unigram: Rules | None = None
    lowers: tuple[bool, bool] | None = None

    @property
    def around(self) -> tuple[tuple[str, bool], tuple[str, bool]]:
        """Roles of the tokens around a text, and whether they are added."""
        return ("bos", self.adds_bos), ("eos" if self.lowers is None else "sep", self.adds_eos)


def vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """The tokenizer of a GGUF.

    Only what can be seen without decoding an array is checked.

    Raises:
        NotFaithful: there is none, or not everything that it does is known.
    """
    kind = _text(metadata, "tokenizer.ggml.model")
    if kind in ("", *NO_VOCABULARY):
        raise NotFaithful("the source has none")
    if kind in OTHER_MODELS:
        raise NotFaithful(OTHER_MODELS[kind])
    if kind not in EXACT_MODELS:
        raise NotFaithful(f"its model is {kind!r}, which is not known exactly")
    name = "gemma4" if kind == "gemma4" else _text(metadata, "tokenizer.ggml.pre")
    scored = kind in ("llama", "t5")
    pieces = scored or kind == "bert" or name in PIECES
    pre = None if pieces else _pre_tokenizer(name)
    special = special_ids(metadata)
    tokens = _array(metadata, "tokens", "str", 1)
    added = [
        _flag(metadata, key, default)
        for key, default in (
            ("add_bos_token", pre.adds_bos if pre else kind == "llama"),
            ("add_eos_token", kind == "t5"),
        )
    ]
    added[0] = added[0] or (not scored and PIECES.get(name, False))
    if kind == "bert":  # llama.cpp asks no switch, and closes with the separator
        added, special = [True, True], {"eos": special["sep"], **special, "cls": special["bos"]}
    for what, adds in zip(("bos", "eos"), added, strict=True):
        if adds and what not in special:
            raise NotFaithful(f"it puts a token around a text and does not say which ({SPECIAL[what]})")
    model = _text(metadata, "general.name").lower()
    lower = _flag(metadata, "normalizer.lowercase", True)
    return Vocabulary(
        pre,
        special,
        added[0],
        added[1],
        scored and _flag(metadata, "add_space_prefix", kind == "llama"),
        any(word in model for word in PHI3_NAMES),
        _chat_template(metadata),
        tokens,
        _array(metadata, "token_type", "i32", tokens.count),
        None if scored or kind == "bert" else _array(metadata, "merges", "str", 1),
        _array(metadata, "scores", "f32", tokens.count) if scored else None,
        Rules(_charsmap(metadata), _flag(metadata, "remove_extra_whitespaces", False)) if kind == "t5" else None,
        (lower, _flag(metadata, "normalizer.strip_accents", lower)) if kind == "bert" else None,
    )


def adds_by_default(metadata: Mapping[str, Any]) -> dict[str, bool]:
    """Key -> whether llama.cpp adds a token, or a space, by default.

    Where the file does not say; empty where it is not known.
    """
    kind, pre = _text(metadata, "tokenizer.ggml.model"), pre_tokenizers().get(_text(metadata, "tokenizer.ggml.pre"))
    added = _ADDED_BY_KIND.get(kind)
    if added is None:
        if pre is None:
            return {}
        added = {name for name, adds in (("bos", pre.adds_bos), ("sep", pre.name in _SEPARATES)) if adds}
    flags = {f"tokenizer.ggml.add_{name}_token": name in added for name in ("bos", "eos", "sep")}
    return flags | {"tokenizer.ggml.add_space_prefix": kind == _SPACED}


def special_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Name of a special token -> id, of the file or llama.cpp's own."""
    found = _SPECIAL.get(_text(metadata, "tokenizer.ggml.model"), {})
    stated = {name: _number(metadata, key) for name, key in SPECIAL.items()}
    return found | {name: number for name, number in stated.items() if number is not None}


def token_ids(metadata: Mapping[str, Any], texts: Iterable[str]) -> dict[str, int]:
    """Text of a token -> its number, of those that the vocabulary has."""
    with suppress(NotFaithful):
        wanted = {*texts}
        tokens = _array(metadata, "tokens", "str", 1)
        return {text: number for number, text in enumerate(tokens.decode()) if text in wanted}
    return {}


def ending_ids(metadata: Mapping[str, Any]) -> list[int]:
    """Ids that end generation: the end token, and the file's others."""
    ids = [special_ids(metadata).get("eos"), *(_number(metadata, key) for key in _ALSO_END)]
    return list(dict.fromkeys(number for number in ids if number is not None))


def _pre_tokenizer(name: str) -> PreTokenizer:
    if not name:
        raise NotFaithful("the source does not say how it splits text (tokenizer.ggml.pre)")
    known = pre_tokenizers().get(name)
    if known is None:
        raise NotFaithful(f"it splits text as {name!r}, whose definition is not known exactly")
    return known


def _charsmap(metadata: Mapping[str, Any]) -> Any:
    """llama.cpp takes bytes of either sign."""
    key = "precompiled_charsmap"
    found = value_in(metadata, f"tokenizer.ggml.{key}")
    return None if found is None else _array(metadata, key, "i8" if getattr(found, "type", "") == "i8" else "u8", 0)


def _chat_template(metadata: Mapping[str, Any]) -> str | list[dict[str, str]] | None:
    """The template, and those with names beside it.

    The key without a name is the default whatever another calls itself (``llama_model_chat_template``).
    """
    key = "tokenizer.chat_template"
    named = sorted((k for k in metadata if k == key or k.startswith(f"{key}.")), key=lambda k: k != key)
    texts: dict[str, str] = {}
    for k in named:
        if text := encodable(_text(metadata, k)):
            texts.setdefault(k.removeprefix(key).removeprefix(".") or "default", text)
    if texts.keys() <= {"default"}:
        return texts.get("default")
    return [{"name": name, "template": text} for name, text in texts.items()]


def encodable(text: str) -> str:
    """Text in which bytes that are no UTF-8, as no JSON has, are replaced."""
    return text.encode("utf-8", "replace").decode()


def value_in(metadata: Mapping[str, Any], key: str) -> Any:
    """Value under a key; ``None`` where there is none."""
    return getattr(metadata.get(key), "value", None)


def _text(metadata: Mapping[str, Any], key: str) -> str:
    value = value_in(metadata, key)
    return value if isinstance(value, str) else ""


def _number(metadata: Mapping[str, Any], key: str) -> int | None:
    value = value_in(metadata, f"tokenizer.ggml.{key}")
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    value = value_in(metadata, f"tokenizer.ggml.{key}")
    return value if isinstance(value, bool) else default


def _array(metadata: Mapping[str, Any], key: str, kind: str, least: int) -> Any:
    """An array of at least so many elements; llama.cpp reads no other type."""
    found = value_in(metadata, f"tokenizer.ggml.{key}")
    if getattr(found, "type", None) != kind or found.count < least:
        raise NotFaithful(f"tokenizer.ggml.{key} is missing or too short")
    return found


# A vocabulary as the bump tokenizer entries hold it, from what GGUF metadata or a ``tokenizer.json`` says.
#
# Source: ``load_tokenizer_from_gguf`` and ``load_tokenizer_json`` of the engine's ``convert_gguf_to_bump_v7.py``.

#: Bytes of one merge: left, right and merged token id.
MERGE_BYTES = 12

_MAX_STRINGS = (1 << 31) - 1


def tokenizer_entries(
    tokens: Sequence[bytes],
    merges: Iterable[tuple[bytes, bytes]],
    *,
    vocab_size: int,
    scores: Sequence[float] = (),
    types: Sequence[int] = (),
) -> dict[str, bytes]:
    """The content of each tokenizer entry, by name and in file order.

    Args:
        tokens: by id; ids beyond them are filled with ``<|pad_ID|>``, tokens beyond ``vocab_size`` left out.
        merges: (left, right), read once; one whose parts or result are no tokens is left out.
        scores, types: one a token, or none; what is missing is 0.
    """
    words = [*tokens[:vocab_size], *(b"<|pad_%d|>" % n for n in range(len(tokens), vocab_size))]
    offsets, total = array("i"), 0
    for token in words:
        if total > _MAX_STRINGS:
            break
        offsets.append(total)
        total += len(token) + 1
    if total > _MAX_STRINGS:
        raise UnsupportedError("tokenizer.size", f"the strings of {len(words):,} tokens do not fit into 2 GiB")
    bad = next((kind for kind in types if not 0 <= kind <= 255), None)
    if bad is not None:
        raise UnsupportedError("tokenizer.type", f"a token has type {bad}, 0 to 255 fit", found=bad, allowed=255)
    ids = {token: n for n, token in enumerate(tokens[:vocab_size])}
    return {
        "vocab_offsets": _little(offsets),
        "vocab_strings": b"\0".join([*words, b""]),
        "vocab_scores": _little(array("f", scores[:vocab_size])).ljust(4 * vocab_size, b"\0"),
        "vocab_types": bytes(types[:vocab_size]).ljust(vocab_size, b"\0"),
        "vocab_merges": _little(array("i", (number for merge in _triples(merges, ids) for number in merge))),
    }


def _triples(merges: Iterable[tuple[bytes, bytes]], ids: Mapping[bytes, int]) -> Iterator[tuple[int, int, int]]:
    for left, right in merges:
        found = ids.get(left), ids.get(right), ids.get(left + right)
        if None not in found:
            yield found  # type: ignore[misc]


def _little(numbers: array[Any]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def gguf_entries(metadata: Mapping[str, Any], vocab_size: int) -> dict[str, bytes] | None:
    """Entries of a GGUF's ``tokenizer.ggml.*`` keys, else ``None``.

    ``None`` where it has no tokens.

    Args:
        metadata: key -> value; an array has a ``type`` and ``decode()``, as those of
            :class:`ckconv.formats.gguf.values.ArrayRef`. One of another type than llama.cpp's counts as missing.
    """
    tokens = [_bytes(token) for token in _encoded_array(metadata, "tokenizer.ggml.tokens", "str")]
    if not tokens:
        return None
    merges = (_halves(_bytes(merge)) for merge in _encoded_array(metadata, "tokenizer.ggml.merges", "str"))
    return tokenizer_entries(
        tokens,
        (merge for merge in merges if merge),
        vocab_size=vocab_size,
        scores=_encoded_array(metadata, "tokenizer.ggml.scores", "f32"),
        types=_encoded_array(metadata, "tokenizer.ggml.token_type", "i32"),
    )


def _encoded_array(metadata: Mapping[str, Any], key: str, kind: str) -> list[Any]:
    found: Any = getattr(metadata.get(key), "value", None)
    return list(found.decode()) if getattr(found, "type", None) == kind else []


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _halves(merge: bytes) -> tuple[bytes, bytes] | None:
    """Cut a merge, as llama.cpp, at the first space after the first byte."""
    at = merge.find(b" ", 1)
    return (merge[:at], merge[at + 1 :]) if at > 0 else None


def huggingface_entries(
    document: Mapping[str, Any], vocab_size: int, added: Mapping[str, int] | None = None
) -> dict[str, bytes] | None:
    """Entries of a parsed ``tokenizer.json``, else ``None``.

    ``None`` where its model has no vocabulary of strings and ids.

    An id that no token has is filled with the unknown token, or ``<|ck_missing_ID|>``.

    Args:
        added: the added tokens, with their ids; ``None`` for those of the document.
    """
    model, vocab = table_within(document, "model"), table_within(document, "model", "vocab")
    if not vocab:
        return None
    by_id: dict[int, str] = {
        number: token
        for token, number in (*reversed(vocab.items()), *(_added(document, vocab) if added is None else added.items()))
        if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < vocab_size
    }
    unknown = content_of(model, "unk_token")
    tokens = [by_id.get(n) or unknown or f"<|ck_missing_{n}|>" for n in range(vocab_size)]
    pairs = map(_pair, list_within(model, "merges"))
    return tokenizer_entries(
        [token.encode("utf-8", "replace") for token in tokens], (pair for pair in pairs if pair), vocab_size=vocab_size
    )


def _added(document: Mapping[str, Any], vocab: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Added tokens with the ids that the tokenizers library gives.

    A word keeps its own, any other token gets the number of words, or the one behind those added before
    (``AddedVocabulary.add_tokens``).
    """
    free, ids = len(vocab), dict(vocab)
    for token in list_within(document, "added_tokens"):
        if isinstance(token, dict) and isinstance(token.get("content"), str):
            number = ids.setdefault(token["content"], free)
            free = max(free, number + 1) if type(number) is int else free
            yield token["content"], number


def content_of(settings: Mapping[str, Any], key: str) -> str:
    """The word that a setting names, as a text or as an object with one."""
    entry = settings.get(key)
    entry = entry.get("content") if isinstance(entry, dict) else entry
    return entry if isinstance(entry, str) else ""


def _pair(merge: object) -> tuple[bytes, bytes] | None:
    """A merge is ``"left right"``, or a list of the two since tokenizers 0.20."""
    if isinstance(merge, str):
        return _halves(merge.encode("utf-8", "replace"))
    if isinstance(merge, list) and len(merge) == 2 and all(isinstance(half, str) for half in merge):
        return merge[0].encode("utf-8", "replace"), merge[1].encode("utf-8", "replace")
    return None


# -- Tokenizer files beside a checkpoint's tensors ---------------------------------------------------------------------


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


class Inexact(Exception):
    """Why a tokenizer cannot be expressed faithfully."""


def equal_tokens(tokens: Iterable[str]) -> tuple[int, int, str] | None:
    """The first two ids of one text; ``None`` where there are none."""
    ids: dict[str, int] = {}
    for number, token in enumerate(tokens):
        if ids.setdefault(token, number) != number:
            return ids[token], number, token
    return None
