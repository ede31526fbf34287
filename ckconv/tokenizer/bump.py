"""A vocabulary as the bump tokenizer entries hold it, from what GGUF metadata or a ``tokenizer.json`` says.

Source: ``load_tokenizer_from_gguf`` and ``load_tokenizer_json`` of the engine's ``convert_gguf_to_bump_v7.py``.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ckconv.errors import UnsupportedError

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

    Raises:
        UnsupportedError: ``tokenizer.size``, the strings do not fit into 32-bit offsets; ``tokenizer.type``, a token's
            type does not fit into a byte.
    """
    kept = [*tokens[:vocab_size], *(b"<|pad_%d|>" % n for n in range(len(tokens), vocab_size))]
    offsets, total = array("i"), 0
    for token in kept:
        if total > _MAX_STRINGS:
            break
        offsets.append(total)
        total += len(token) + 1
    if total > _MAX_STRINGS:
        raise UnsupportedError("tokenizer.size", f"the strings of {len(kept):,} tokens do not fit into 2 GiB")
    bad = next((kind for kind in types if not 0 <= kind <= 255), None)
    if bad is not None:
        raise UnsupportedError("tokenizer.type", f"a token has type {bad}, 0 to 255 fit", found=bad, allowed=255)
    ids = {token: n for n, token in enumerate(tokens[:vocab_size])}
    return {
        "vocab_offsets": _little(offsets),
        "vocab_strings": b"\0".join([*kept, b""]),
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
    """The entries of a GGUF's ``tokenizer.ggml.*`` keys, ``None`` where it has no tokens.

    Args:
        metadata: key -> value; an array has a ``type`` and ``decode()``, as those of
            :class:`ckconv.formats.gguf.values.ArrayRef`. One of another type than llama.cpp's counts as missing.
    """
    tokens = [_bytes(token) for token in _array(metadata, "tokenizer.ggml.tokens", "str")]
    if not tokens:
        return None
    merges = (_halves(_bytes(merge)) for merge in _array(metadata, "tokenizer.ggml.merges", "str"))
    return tokenizer_entries(
        tokens,
        (merge for merge in merges if merge),
        vocab_size=vocab_size,
        scores=_array(metadata, "tokenizer.ggml.scores", "f32"),
        types=_array(metadata, "tokenizer.ggml.token_type", "i32"),
    )


def _array(metadata: Mapping[str, Any], key: str, kind: str) -> list[Any]:
    found: Any = getattr(metadata.get(key), "value", None)
    return list(found.decode()) if getattr(found, "type", None) == kind else []


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _halves(merge: bytes) -> tuple[bytes, bytes] | None:
    """Cut at the first space that is not the first byte, as llama.cpp does: a token may begin with a space."""
    at = merge.find(b" ", 1)
    return (merge[:at], merge[at + 1 :]) if at > 0 else None


def huggingface_entries(
    document: Mapping[str, Any], vocab_size: int, added: Mapping[str, int] | None = None
) -> dict[str, bytes] | None:
    """The entries of a parsed ``tokenizer.json``, ``None`` where its model has no vocabulary of strings and ids.

    An id that no token has is filled with the unknown token, or ``<|ck_missing_ID|>``.

    Args:
        added: the added tokens, with their ids; ``None`` for what the document lists.
    """
    model = document.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(model, dict) or not isinstance(vocab, dict) or not vocab:
        return None
    by_id: dict[int, str] = {
        number: token
        for token, number in (*vocab.items(), *(_added(document) if added is None else added.items()))
        if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < vocab_size
    }
    unknown = _unknown(model)
    tokens = [by_id.get(n) or unknown or f"<|ck_missing_{n}|>" for n in range(vocab_size)]
    merges = model.get("merges")
    pairs = (_pair(merge) for merge in (merges if isinstance(merges, list) else ()))
    return tokenizer_entries(
        [token.encode("utf-8", "replace") for token in tokens], (pair for pair in pairs if pair), vocab_size=vocab_size
    )


def _added(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    added = document.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict) and isinstance(token.get("content"), str):
            yield token["content"], token.get("id")


def _unknown(model: Mapping[str, Any]) -> str:
    unknown = model.get("unk_token")
    if isinstance(unknown, dict):
        unknown = unknown.get("content")
    return unknown if isinstance(unknown, str) else ""


def _pair(merge: object) -> tuple[bytes, bytes] | None:
    """A merge is ``"left right"``, or a list of the two since tokenizers 0.20."""
    if isinstance(merge, str):
        return _halves(merge.encode("utf-8", "replace"))
    if isinstance(merge, list) and len(merge) == 2 and all(isinstance(half, str) for half in merge):
        return merge[0].encode("utf-8", "replace"), merge[1].encode("utf-8", "replace")
    return None
