"""Tokenizers in other files than tokenizer.json: vocab.json with merges.txt, and Mistral's tekken.json."""

from __future__ import annotations

import base64
import itertools
import json
from pathlib import Path
from shutil import copyfile
from typing import Any

import gguf
import pytest
from checkpoints import Decoder, save
from conftest import FIXTURES

import ckconv
from ckconv.core.options import Options
from ckconv.tokenizer.checkpoint import of_tekken
from ckconv.tokenizer.vocabulary import Inexact

VOCABULARIES = FIXTURES / "tokenizers" / "vocabularies"
PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def model(root: Path, rows: int, **files: Any) -> Path:
    """A checkpoint with these tokenizer files beside it: JSON, or text as it is."""
    decoder = Decoder(layers=1, hidden=16, heads=1, kv_heads=1, ffn=16, vocab=rows)
    save(root, decoder.config(), decoder.tensors())
    for name, content in files.items():
        path = root / (f"{name}.txt" if isinstance(content, str) else f"{name}.json")
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return root


def converted(source: Path, *drop: str) -> dict[str, Any]:
    """The tokenizer's keys of the GGUF, read by the gguf package."""
    out = source.parent / "out.gguf"
    out.unlink(missing_ok=True)
    ckconv.convert(source, out, to="gguf", options=Options(drop=drop))
    fields = gguf.GGUFReader(out).fields
    prefix = "tokenizer.ggml."
    return {key.removeprefix(prefix): field.contents() for key, field in fields.items() if key.startswith(prefix)}


@pytest.mark.parametrize(("name", "kind"), [("gpt-2", "GPT2Tokenizer"), ("qwen2", "Qwen2TokenizerFast")])
def test_a_vocabulary_with_its_merges_is_what_llama_cpp_has_of_it(name: str, kind: str, tmp_path: Path) -> None:
    theirs = json.loads((VOCABULARIES / f"{name}.json").read_bytes())["keys"]
    words = {token: n for n, token in enumerate(theirs["tokens"])}
    added = {token: n for token, n in words.items() if theirs["token_type"][n] != 1}
    plain = {token: n for token, n in words.items() if token not in added or name == "gpt-2"}
    settings = {"tokenizer_class": kind, "eos_token": "<|endoftext|>", "additional_special_tokens": list(added)}
    merges = "#version: 0.2\n" + "\n".join(theirs["merges"]) + "\n"
    files = {"vocab": plain, "merges": merges, "tokenizer_config": settings}
    source = model(tmp_path / "hf", len(words), **files, **({} if plain == words else {"added_tokens": added}))

    ours = converted(source)

    said = ("model", "tokens", "token_type", "merges", "eos_token_id")
    assert {key: ours[key] for key in said} == {key: theirs[key] for key in said}
    assert (
        ours["pre"] == theirs["pre"]
    )  # so the ids are those that llama.cpp makes of it: tests/test_tokenizer_names.py


def test_the_class_is_that_of_the_models_type_where_no_file_names_one(tmp_path: Path) -> None:
    source = model(tmp_path / "hf", 3, vocab={"a": 0, "b": 1, "ab": 2}, merges="a b\n")
    document = json.loads((source / "config.json").read_text())
    assert converted(source)["model"] == "no_vocab"

    (source / "config.json").write_text(json.dumps(document | {"model_type": "qwen2"}))

    assert converted(source, "*.attention.?.bias")["pre"] == "qwen2"


@pytest.mark.parametrize("kind", ["CLIPTokenizer", "ChatGLMTokenizer", "ChatGLM4Tokenizer"])
def test_a_class_without_rules_leaves_the_tokenizer_out_by_name(kind: str, tmp_path: Path) -> None:
    files = {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": "a b\n"} if kind == "CLIPTokenizer" else {}
    source = model(tmp_path / "hf", 3, **files, tokenizer_config={"tokenizer_class": kind})
    if not files:
        copyfile(FIXTURES / "tokenizers" / "sentencepiece-bpe.model", source / "tokenizer.model")

    report = ckconv.convert(source, tmp_path / "out.gguf", to="gguf")

    assert any(f"of the class {kind!r}, which ckconv has no rules for" in note for note in report.plan.notes)


def sizes(special: int) -> dict[str, int]:
    """Of all bytes, and so many special tokens."""
    return {"default_vocab_size": special + 256, "default_num_special_tokens": special}


def tekken(*words: bytes, **changes: Any) -> dict[str, Any]:
    """All bytes, and these words behind them."""
    ranked = [*(bytes([n]) for n in range(256)), *words]
    vocab = [{"rank": n, "token_bytes": base64.b64encode(word).decode()} for n, word in enumerate(ranked)]
    size = {"default_vocab_size": len(ranked) + 4, "default_num_special_tokens": 4}
    special = [{"rank": n, "token_str": word, "is_control": True} for n, word in enumerate(["<unk>", "<s>", "</s>"])]
    return {"config": {"pattern": PATTERN, **size}, "vocab": vocab, "special_tokens": special} | changes


def test_ranks_become_every_merge_that_makes_a_word() -> None:
    made = of_tekken(tekken(b"ab", b"bc", b"abc", "é".encode()))["model"]

    assert made["merges"] == [["a", "b"], ["b", "c"], ["a", "bc"], ["ab", "c"], ["Ã", "©"]]
    assert made["ignore_merges"] is True
    assert [made["vocab"][word] for word in ("Ā", "a", "ab", "Ã©")] == [4, 4 + 97, 4 + 256, 4 + 259]


def by_rank(word: bytes, ranks: dict[bytes, int]) -> list[int]:
    """As tiktoken merges: of all neighbors that make a word those that make the one of the lowest rank."""
    parts = [bytes([byte]) for byte in word]
    while True:
        pairs = [(ranks.get(one + other, 1 << 30), n) for n, (one, other) in enumerate(itertools.pairwise(parts))]
        rank, at = min(pairs, default=(1 << 30, 0))
        if rank == 1 << 30:
            return [ranks[part] for part in parts]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def test_merges_make_the_ids_that_ranks_make() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = [b"bc", b"ab", b"abc", b"cab", b"ca", b"aa", b"aab", b"bca", b"aabc", b"cc"]
    document = of_tekken(tekken(*words))
    said = {key: document["model"][key] for key in ("vocab", "ignore_merges")}
    bpe = tokenizers.models.BPE(merges=[tuple(merge) for merge in document["model"]["merges"]], **said)
    ranks = {word: n for n, word in enumerate([*(bytes([n]) for n in range(256)), *words])}
    library = tokenizers.Tokenizer(bpe)

    for length in range(1, 7):
        for letters in itertools.product("abc", repeat=length):
            text = "".join(letters)
            wanted = [ranks[text.encode()]] if text.encode() in ranks else by_rank(text.encode(), ranks)
            assert [n - 4 for n in library.encode(text).ids] == wanted, text


def test_a_checkpoint_with_tekken_json_alone_goes_with_its_words(tmp_path: Path) -> None:
    ours = converted(model(tmp_path / "hf", 263, tekken=tekken(b"ab", b"bc", b"abc")))

    assert (ours["model"], ours["pre"]) == ("gpt2", "tekken")
    assert ours["tokens"][:5] == ["<unk>", "<s>", "</s>", "<SPECIAL_3>", "Ā"]
    assert ours["token_type"] == [3] * 4 + [1] * 259
    assert ours["merges"] == ["a b", "b c", "a bc", "ab c"]
    special = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "add_bos_token": True}
    assert {key: ours[key] for key in special} == special


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (tekken(vocab=None), "no configuration, or no list of words"),
        (tekken(config={"pattern": PATTERN}), "no sizes"),
        (tekken(b"ab", b"ab"), "a word twice"),
        (tekken(config={"pattern": PATTERN, **sizes(10**9)}), "more than 100,000 special tokens"),
        (tekken(b"a" * 80_000), "too long to be looked through"),
        (tekken(vocab=[{"rank": 1, "token_bytes": "AA=="}] * 256), "word 0 of tekken.json has another rank"),
        (tekken(vocab=[{"rank": 0, "token_bytes": "?"}] * 256), "word 0 of tekken.json has no bytes"),
        (tekken(special_tokens=[{"rank": 0}]), "has no rank, or no text"),
    ],
)
def test_what_is_no_tekken_json_is_left_out(document: dict[str, Any], why: str) -> None:
    with pytest.raises(Inexact, match=why):
        of_tekken(document)
