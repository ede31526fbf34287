"""A checkpoint's tokenizer as GGUF's keys, where llama.cpp agrees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from ckconv.core.lazy import NamedTuple
from ckconv.core.metadata import Value, array, as_read, list_within, scalar, table_within, within
from ckconv.core.tensors import TensorIndex
from ckconv.tokenizer import gguf_words
from ckconv.tokenizer.checkpoint import BYTE, UNUSED, Row, tokenizer_files, unmade
from ckconv.tokenizer.huggingface import from_wordpiece
from ckconv.tokenizer.vocabulary import SPECIAL, Inexact, TokenizerFiles, content_of, equal_tokens, recognized

# The ``tokenizer.*`` keys of a GGUF, from what a checkpoint says about its tokenizer, where llama.cpp does the same.
#
# Six kinds can be expressed faithfully: byte-level BPE whose pre-tokenizer llama.cpp knows by name ("gpt2"), out of
# ``tokenizer.json``, SentencePiece BPE ("llama") and unigram models ("t5"), out of ``tokenizer.model`` or
# ``tokenizer.json``, WordPiece ("bert"), and RWKV's and PLaMo's ("rwkv", "plamo2"), out of files of their own. Any
# other is left out, which llama.cpp loads too: it then takes token ids and has no words ("no_vocab").
# Source: ``_set_vocab_gpt2`` of llama.cpp's converter.


class TokenizerKeys(NamedTuple):
    """Tokenizer keys to be written, and notes about them.

    Attributes:
        metadata: key -> value, in order.
        notes: what a user should know: that the tokenizer is left out and why, or what llama.cpp does not do.
        tokens: the words that have an id; empty where the tokenizer is left out.
    """

    metadata: dict[str, Value]
    notes: tuple[str, ...] = ()
    tokens: frozenset[str] = frozenset()


@lru_cache(maxsize=1)  # one model may be planned in several ways, and each time it has the same words
def keys_of_index(index: TensorIndex, vocab_size: int) -> TokenizerKeys:
    """As :func:`tokenizer_keys`, of the files beside a model."""
    return tokenizer_keys(tokenizer_files(index), vocab_size)


def tokenizer_keys(files: TokenizerFiles, vocab_size: int) -> TokenizerKeys:
    """Make the tokenizer keys of a model of ``vocab_size`` rows.

    Those of a model without words where that is all that is right.
    """
    try:
        return keys_of_words(files, vocab_size)
    except Inexact as reason:
        note = f"the tokenizer is left out: {reason}; llama.cpp then works with token ids only"
        return TokenizerKeys({"tokenizer.ggml.model": scalar("str", "no_vocab")}, (note,))


#: ``type`` of the model of a ``tokenizer.json`` -> what makes words of it; all else is BPE, of two kinds.
_KINDS = {"Unigram": gguf_words.from_unigram, "WordPiece": from_wordpiece}


def keys_of_words(files: TokenizerFiles, vocab_size: int) -> TokenizerKeys:
    """As :func:`tokenizer_keys`, with words.

    Raises:
        Inexact: there are none, or none that can be expressed faithfully.
    """
    if (pieces := gguf_words.model_of_same_words(files, vocab_size)) is not None:
        return _made(files, gguf_words.from_model(files, pieces, vocab_size), vocab_size)
    files = files._replace(model=None)  # of other words
    if files.tokenizer is None:
        raise Inexact(files.why or (f"{files.others[0]} is not read" if files.others else "the source has none"))
    kind = str(within(files.tokenizer, "model", "type"))
    if kind in _OF_ROWS:
        return _OF_ROWS[kind](files, files.tokenizer["model"]["rows"], vocab_size)
    made = gguf_words.from_json if gguf_words.is_sentencepiece(files.tokenizer) else _KINDS.get(kind, _bpe)
    return _made(files, made(files, files.tokenizer, vocab_size), vocab_size)


def _made(files: TokenizerFiles, words: gguf_words.Wordlist, vocab_size: int) -> TokenizerKeys:
    """The keys of a tokenizer's words and of every kind of tokenizer."""
    files, end_notes = gguf_words.ended(files, words.ids)
    special, ends_notes = gguf_words.special_ids(files, words.ids, words.own, vocab_size)
    tokens = words.metadata["tokenizer.ggml.tokens"]
    if same := equal_tokens(as_read({"tokens": tokens})["tokens"].value.each()):
        raise Inexact(
            f"tokens {same[0]:,} and {same[1]:,} are both {same[2]!r}, and llama.cpp loads no two of one text"
        )
    unigram = words.metadata["tokenizer.ggml.model"] == scalar("str", "t5")
    adds_bos, adds_eos, notes = gguf_words.put_around(files, words, vocab_size, unigram=unigram)
    templates, template_notes = gguf_words.chat_templates(files.chat_template)
    metadata = {
        **words.metadata,
        **special,
        "tokenizer.ggml.add_bos_token": scalar("bool", adds_bos),
        "tokenizer.ggml.add_eos_token": scalar("bool", adds_eos),
        **words.behind,
        **templates,
    }
    return TokenizerKeys(
        metadata, (*words.notes, *notes, *_beside(files), *end_notes, *ends_notes, *template_notes), words.tokens
    )


# Tokenizers whose files hold rows as a GGUF does: llama.cpp knows what each kind does with a text, and puts no token
# around one. Sources: ``_set_vocab_rwkv_world`` and ``_set_vocab_plamo`` of its converter, ``llama_vocab::impl``.

#: The two line feeds after which RWKV's turn ends, and what PLaMo's ends with.
_RWKV_TURN, _PLAMO_TURN = r"\n\n", "<|plamo:op|>"


def _rwkv(files: TokenizerFiles, rows: list[Row], vocab_size: int) -> TokenizerKeys:
    ids = {row.text: number for number, row in enumerate(rows)}
    if any(repr(bytes([byte]))[2:-1] not in ids for byte in range(256)):
        raise Inexact("it has no word for some byte, on which llama.cpp does not end")
    config = ((name, files.config.get(f"{name}_token_id")) for name in SPECIAL)
    # whatever config.json says of its beginning and end, they are <s>
    special = {name: n for name, n in config if type(n) is int and 0 <= n < vocab_size} | {"bos": 0, "eos": 0}
    more = {"eot_token_id": ids[_RWKV_TURN]} if _RWKV_TURN in ids else {}
    switches = {
        f"tokenizer.ggml.{key}": scalar("bool", value)
        for key in ("add_bos_token", "add_eos_token", "add_sep_token")
        if isinstance(value := files.settings.get(key), bool)
    }
    padded = [*rows, *(Row(f"[PAD{n}]", UNUSED) for n in range(len(rows), vocab_size))]
    numbers = {SPECIAL[name]: number for name, number in special.items()} | more
    return _of_rows(files, "rwkv", padded, vocab_size, {}, numbers, switches)


def _plamo(files: TokenizerFiles, rows: list[Row], vocab_size: int) -> TokenizerKeys:
    ids = {row.text: number for number, row in enumerate(rows)}
    pieces = {row.text for row in rows[1:] if row.type == BYTE}  # llama.cpp takes a number of 0 for none
    if any(f"<0x{byte:02X}>" not in pieces for byte in range(256)):
        raise Inexact("it has no piece for some byte, without which llama.cpp does not load it")
    words = {name: content_of(files.settings, f"{name}_token") for name in ("bos", "eos", "pad", "sep", "unk")}
    special = {SPECIAL[name]: ids[word] for name, word in words.items() if word in ids}
    special |= {"eot_token_id": ids[_PLAMO_TURN]} if _PLAMO_TURN in ids else {}
    padded = [*rows, *(Row(f"[PAD{n}]", UNUSED, -1000.0) for n in range(1, vocab_size - len(rows) + 1))]
    scores = {"tokenizer.ggml.scores": array("f32", [row.score for row in padded])}
    return _of_rows(
        files, "plamo2", padded, vocab_size, scores, special, {"tokenizer.ggml.add_space_prefix": scalar("bool", False)}
    )


_OF_ROWS = {"rwkv": _rwkv, "plamo2": _plamo}


def _of_rows(
    files: TokenizerFiles,
    kind: str,
    rows: list[Row],
    vocab_size: int,
    scores: Mapping[str, Value],
    special: Mapping[str, int],
    switches: Mapping[str, Value],
) -> TokenizerKeys:
    if len(rows) > vocab_size:
        raise Inexact(f"it has {len(rows):,} tokens, the embedding {vocab_size:,} rows")
    if same := equal_tokens(row.text for row in rows):
        raise Inexact(f"tokens {same[0]:,} and {same[1]:,} are both {same[2]!r}")
    templates, notes = gguf_words.chat_templates(files.chat_template)
    if not templates and kind == "rwkv":
        notes = (
            "the checkpoint has no chat template; that of llama.cpp's converter is llama.cpp's own: put a\
 chat_template.jinja beside the checkpoint",
        )
    if files.settings.get("add_bos_token") is True:
        notes += ("the tokenizer puts a token before a text (add_bos_token), which llama.cpp does not do of this kind",)
    end_ids = files.generation.get("eos_token_id")
    end_ids = files.config.get("eos_token_id") if end_ids is None else end_ids
    ends = [special[key] for key in ("eos_token_id", "eot_token_id") if key in special]
    if more := [number for number in gguf_words.numbers_of(end_ids) if number not in ends and 0 <= number < vocab_size]:
        free = [key for key in ("eom_token_id", "eot_token_id") if key not in special]
        flags = [f"--set-meta tokenizer.ggml.{key}={number}" for key, number in zip(free, more, strict=False)]
        ways = f"{' '.join(flags)} {'do' if flags[1:] else 'does'}"
        rest = f"; there is no key for {', '.join(map(str, more[len(free) :]))}" if more[len(free) :] else ""
        tokens = f"token{'s' if more[1:] else ''} {', '.join(map(str, more))}"
        notes += (f"generation ends after {tokens} too, which no key of the GGUF says: {ways}{rest}",)
    metadata = {
        "tokenizer.ggml.model": scalar("str", kind),
        **({"tokenizer.ggml.pre": scalar("str", "default")} if kind == "plamo2" else {}),
        "tokenizer.ggml.tokens": array("str", [row.text for row in rows]),
        **scores,
        "tokenizer.ggml.token_type": array("i32", [row.type for row in rows]),
        **{f"tokenizer.ggml.{key}": scalar("u32", number) for key, number in special.items()},
        **switches,
        **templates,
    }
    return TokenizerKeys(metadata, notes, frozenset(row.text for row in rows if row.type != UNUSED))


def _beside(files: TokenizerFiles) -> Iterator[str]:
    """Notes on spaces beside added tokens, which a GGUF cannot say."""
    decoder = table_within(files.settings, "added_tokens_decoder")
    tokens = [*list_within(files.tokenizer, "added_tokens"), *decoder.values()]
    for key, what in _BESIDE.items():
        found = next((token.get("content") for token in tokens if isinstance(token, dict) and token.get(key)), None)
        if found is not None:
            yield what.format(repr(found))


#: Switch of an added token -> what llama.cpp does instead.
_BESIDE = {
    "lstrip": "llama.cpp keeps the spaces before {}, which the tokenizer removes",
    "rstrip": "llama.cpp removes the spaces after {} only where the model's name (general.name) says phi-3",
    "single_word": "llama.cpp finds {} inside words too; the tokenizer does not",
}


#: Steps of a normalizer that change next to no text: characters that are composed stay as they are.
_HARMLESS = frozenset({"NFC"})


def _bpe(files: TokenizerFiles, document: Mapping[str, Any], vocab_size: int) -> gguf_words.Wordlist:
    notes = _normalized(document.get("normalizer"))
    known, why = recognized(document, nfc=bool(notes))
    if known is None:
        raise Inexact(f"{why} (tokenizer.json)")
    by_id, ids, extra = gguf_words.words_of(files, document["model"].get("vocab"), vocab_size)
    notes += extra
    tokens = gguf_words.filled(by_id, vocab_size)
    merges = _merges(document["model"].get("merges"))
    if known.ignore_merges != (document["model"].get("ignore_merges") is True):
        word = unmade((token for token in document["model"]["vocab"] if token not in ids), merges)
        if word is not None:
            does = "looks words up" if known.ignore_merges else "follows merges"
            raise Inexact(f"no merges make the token {word!r}, and llama.cpp {does} ({known.name})")
    metadata = {
        "tokenizer.ggml.model": scalar("str", "gpt2"),
        "tokenizer.ggml.pre": scalar("str", known.name),
        "tokenizer.ggml.tokens": array("str", [token for token, _ in tokens]),
        "tokenizer.ggml.token_type": array("i32", [kind for _, kind in tokens]),
        "tokenizer.ggml.merges": array("str", merges),
    }
    if "scores" in document:
        metadata["tokenizer.ggml.scores"] = array("i32", [document["scores"]] * len(tokens))
    if known.otherwise:
        notes += (f"llama.cpp splits {known.otherwise} differently from this tokenizer ({known.name})",)
    words = frozenset(token for token, _ in by_id.values())
    return gguf_words.Wordlist(metadata, {**{token: n for n, (token, _) in by_id.items()}, **ids}, words, notes=notes)


def _normalized(normalizer: object) -> tuple[str, ...]:
    """llama.cpp takes text as it is."""
    kinds = list(dict.fromkeys(_kinds(normalizer)))
    for kind in kinds:
        if kind not in _HARMLESS:
            raise Inexact(f"it normalizes text first ({kind}), which llama.cpp does not do (tokenizer.json)")
    return (f"the tokenizer normalizes text first ({kinds[0]}), which llama.cpp does not do",) if kinds else ()


def _kinds(normalizer: object) -> Iterator[str]:
    """The types of a normalizer's steps."""
    waiting = [normalizer]
    while waiting:
        step = waiting.pop()
        members = step.get("normalizers") if isinstance(step, dict) and step.get("type") == "Sequence" else None
        if isinstance(members, list):
            waiting += members
        elif step is not None:
            yield str(step.get("type")) if isinstance(step, dict) else repr(step)


def _merges(merges: object) -> list[str]:
    """``a b`` lines. A half may hold no space: of byte-level tokens none does."""
    made = []
    for halves in gguf_words.merged_pairs(merges, "byte-level tokens", spaced=False):
        made.append(" ".join(halves))
        gguf_words.check_text(made[-1])
    if not made:
        raise Inexact("tokenizer.json has no merges")
    return made
