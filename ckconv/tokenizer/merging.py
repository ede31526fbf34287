"""Byte pair encoding of one word, to see whether merges make it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from ckconv.tokenizer.files import LeftOut

#: Characters of all words, each squared, that are looked through; those of o200k have 2^24.
_MAX_WORK = 1 << 28

Word = TypeVar("Word", str, bytes)


def bounded(words: Iterable[Word], file: str) -> Iterator[Word]:
    """The words, as long as work that grows with the square of their lengths is bounded.

    Raises:
        LeftOut: they are too long.
    """
    work = 0
    for word in words:
        work += len(word) ** 2
        if work > _MAX_WORK:
            raise LeftOut(f"its tokens are too long to be looked through ({file})")
        yield word


def unmade(words: Iterable[str], merges: Sequence[str]) -> str | None:
    """The first word that its merges do not make, ``None`` where they make every one.

    Where they do, it is all the same whether a word that is a token is looked up or made of its merges.

    Raises:
        LeftOut: the words are too long to be looked through.
    """
    ranks = {(left, right): rank for rank, (left, _, right) in enumerate(merge.partition(" ") for merge in merges)}
    return next((word for word in bounded(words, "tokenizer.json") if not _made(word, ranks)), None)


def _made(word: str, ranks: dict[tuple[str, str], int]) -> bool:
    parts = list(word)
    while len(parts) > 1:
        best = at = -1
        for n in range(len(parts) - 1):
            rank = ranks.get((parts[n], parts[n + 1]), -1)
            if rank >= 0 and (best < 0 or rank < best):
                best, at = rank, n
        if best < 0:
            return False
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return True
