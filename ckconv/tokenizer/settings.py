"""The small documents beside a ``tokenizer.json``: ``tokenizer_config.json``, ``generation_config.json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ckconv.tokenizer.huggingface import fills, has_role
from ckconv.tokenizer.sentencepiece import BYTE, CONTROL, NORMAL, SPACE, UNKNOWN, UNUSED, USER_DEFINED, Piece
from ckconv.tokenizer.vocabulary import ENDS_BY_TEXT, SPECIAL, Vocabulary

#: The class that takes ``tokenizer.json`` as it is, whatever the model is. Others build their own steps.
_CLASS = "PreTrainedTokenizerFast"

#: The score that llama.cpp's converter gives to a token which is not the SentencePiece model's own.
_ADDED_SCORE = -1000.0


def tokenizer_config(
    vocabulary: Vocabulary, tokens: Sequence[str], types: Sequence[int], scores: Sequence[float], context: int
) -> dict[str, Any]:
    """``tokenizer_config.json``.

    Args:
        scores: of a SentencePiece model; empty for another.
        context: tokens that the model takes, 0 where nobody knows.
    """
    decoder = _not_its_own(tokens, types, scores)
    return {
        "add_bos_token": vocabulary.adds_bos,
        "add_eos_token": vocabulary.adds_eos,
        **({"added_tokens_decoder": decoder} if decoder else {}),
        **{
            f"{name}_token": tokens[vocabulary.special[name]]
            for name in SPECIAL
            if has_role(vocabulary.special.get(name, len(tokens)), tokens, types)
        },
        **({"chat_template": vocabulary.chat_template} if vocabulary.chat_template else {}),
        "clean_up_tokenization_spaces": False,
        **({"model_max_length": context} if context else {}),
        "tokenizer_class": _CLASS,
    }


def generation_config(special: Mapping[str, int], ending: Sequence[int], vocab_size: int) -> dict[str, Any]:
    """``generation_config.json``; empty where no token has a role.

    Args:
        special: ``bos``, ``pad`` -> id.
        ending: ids after which there is nothing more to generate.
        vocab_size: ids beyond it are none.
    """
    ends = [number for number in ending if number < vocab_size]
    made: dict[str, Any] = {"bos_token_id": special.get("bos"), "eos_token_id": ends[0] if len(ends) == 1 else ends}
    made["pad_token_id"] = special.get("pad")
    return {
        key: value
        for key, value in made.items()
        if value not in (None, []) and (isinstance(value, list) or value < vocab_size)
    }


def also_ending(generation: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> Mapping[str, Any]:
    """``generation_config.json`` with the control tokens that llama.cpp takes for an end by their text."""
    found = [n for n, token in enumerate(tokens) if token in ENDS_BY_TEXT and types[n] == CONTROL]
    said = generation.get("eos_token_id", [])
    ends = list(dict.fromkeys([*(said if isinstance(said, list) else [said]), *found]))
    return {**generation, "eos_token_id": ends} if len(ends) > 1 else generation


def pieces(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float], unknown: int) -> Iterator[Piece]:
    """The pieces of ``tokenizer.model``: every token up to the last that is one. SentencePiece wants an unknown one."""
    count = len(tokens)
    while count and fills(tokens[count - 1], types[count - 1], count - 1):
        count -= 1
    for number in range(count):
        text, kind = tokens[number], UNKNOWN if number == unknown else types[number]
        # SentencePiece looks for a user's token where every space is escaped already.
        text = text.replace(" ", SPACE) if kind == USER_DEFINED else text
        used = kind in range(NORMAL, BYTE + 1) and not fills(text, kind, number)
        yield Piece(text or f"[PAD{number}]", scores[number], kind if used else UNUSED)


def _not_its_own(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> dict[str, dict[str, Any]]:
    """Tokens that were added to a SentencePiece model, as transformers lists them: id -> token.

    So are a user's with spaces, which the model itself only holds escaped.
    """
    return {
        str(number): {
            "content": tokens[number],
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": types[number] == CONTROL,
        }
        for number, score in enumerate(scores)
        if tokens[number]
        and (
            (types[number] in (CONTROL, USER_DEFINED) and score == _ADDED_SCORE)
            or (types[number] == USER_DEFINED and " " in tokens[number])
        )
    }
