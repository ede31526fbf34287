"""SentencePiece BPE as a list of merges, which is how the tokenizers library says BPE.

SentencePiece joins the two neighbours whose piece has the highest score, the leftmost of equals. Here that is a list of
merges in the order of the scores, as transformers makes it out of a ``tokenizer.model``. Of one piece's merges the one
with the longest first half is first, so that where two of them overlap it is the leftmost.
Source: ``generate_merges`` of transformers' ``convert_slow_tokenizer.py``; ``llm_tokenizer_spm_session`` of llama.cpp's
``src/llama-vocab.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import isnan

from ckconv.tokenizer.sentencepiece import NORMAL
from ckconv.tokenizer.vocabulary import NotFaithful

_ASCII = 128
#: Characters of a piece, which is cut at every one of them; trained pieces have a few dozen at most.
_MAX_PIECE = 256


def spell_out(vocab: dict[str, int], tokens: Sequence[str], types: Sequence[int]) -> None:
    """Give every character of a piece an id of its own: merges begin with characters.

    A character without a piece of its own gets the id of its byte token (Gemma has no piece for a single tab).

    Raises:
        NotFaithful: it has several bytes.
    """
    missing = {char for n, token in enumerate(tokens) if types[n] == NORMAL for char in token} - vocab.keys()
    for char in sorted(missing):
        if ord(char) >= _ASCII:
            raise NotFaithful(f"a piece holds {char!r}, which is not a piece itself")
        vocab[char] = vocab[f"<0x{ord(char):02X}>"]


def merges_of(
    vocab: dict[str, int], tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]
) -> Iterator[str]:
    """The merges that make pieces, in the order in which SentencePiece would choose them.

    Pieces of one score have no order, and of their merges the leftmost comes first. Where they are all runs of one
    character, as the spaces of llama's vocabulary, that is the one that makes the longest run longer.

    Args:
        vocab: piece, or character without one -> id.
        tokens, types, scores: by id.

    Raises:
        NotFaithful: there is no such order.
    """
    made = [n for n, token in enumerate(tokens) if types[n] == NORMAL and len(token) > 1]
    if any(isnan(scores[n]) for n in made):
        raise NotFaithful("a score is not a number")
    longest = max((len(tokens[n]) for n in made), default=0)
    if longest > _MAX_PIECE:
        raise NotFaithful(f"a piece has {longest:,} characters")
    made.sort(key=lambda n: -scores[n])
    for _, equals in groupby(made, key=lambda n: scores[n]):
        pairs: list[tuple[str, str]] = []
        first = ""
        for n in equals:
            halves = _halves(tokens[n], vocab, types)
            if halves and first and len({*first, *tokens[n]}) > 1:
                raise NotFaithful(f"{first!r} and {tokens[n]!r} have one score, and merges have an order")
            first = first or (tokens[n] if halves else "")
            pairs += halves
        for left, right in sorted(pairs, key=lambda pair: (-len(pair[0]), -len(pair[1]))):
            yield f"{left} {right}"


def _halves(token: str, vocab: dict[str, int], types: Sequence[int]) -> list[tuple[str, str]]:
    """Every way in which a piece can be made of two."""
    cuts = ((token[:at], token[at:]) for at in range(len(token) - 1, 0, -1))
    found = [(left, right) for left, right in cuts if _joins(left, vocab, types) and _joins(right, vocab, types)]
    if found and " " in token:
        raise NotFaithful(f"the piece {token!r} holds a space")
    return found


def _joins(part: str, vocab: dict[str, int], types: Sequence[int]) -> bool:
    """A character, or a piece that merges make."""
    number = vocab.get(part)
    return number is not None and (len(part) == 1 or types[number] == NORMAL)
