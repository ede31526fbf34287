"""Vocabularies of one token a line: the keys of llama.cpp's converter, and what llama.cpp makes of texts with them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import gguf
import pytest
from checkpoints import Decoder, save
from conftest import FIXTURES
from llama_cpp_vocabulary import ids_by_file, said_by
from tokenizer_lines import CASES, FILES, PIECES, WORDS, Case, beside, every_byte, rwkv

import ckconv
from ckconv.errors import InputError

#: What ``scripts/record_lines.py`` wrote.
RECORDED = FIXTURES / "tokenizers" / "lines.json"
LIBRARY = os.environ.get("LLAMA_CPP_LIBRARY", "")

TEXTS = [
    *("", "the", " then the thenth", "it's 'so' \"q\" '\"", "a\\nb\\\\", "日本日\u2028é", "🙂🙃"),
    *("User: a\n\nAssistant:", "\t\t\n\r\n\t ", "<s>a", "ħ\U0010ffff"),
]  # fmt: skip


def converted(case: Case, folder: Path) -> tuple[Path, tuple[str, ...]]:
    decoder = Decoder(layers=1, hidden=16, heads=1, kv_heads=1, ffn=16, vocab=case.rows)
    ends = ("bos_token_id", "eos_token_id", "pad_token_id")
    config = {key: value for key, value in decoder.config().items() if key not in ends} | dict(case.config)
    save(beside(folder / "hf", case), config, decoder.tensors())
    report = ckconv.convert(folder / "hf", folder / "m.gguf", to="gguf")
    return folder / "m.gguf", tuple(report.plan.notes)


@pytest.mark.parametrize("name", CASES)
def test_the_keys_are_those_of_llama_cpps_converter(name: str, tmp_path: Path) -> None:
    theirs = json.loads(RECORDED.read_bytes())[name]
    template = theirs.pop("chat_template")

    path, notes = converted(CASES[name], tmp_path)

    assert said_by(path) == theirs
    found = gguf.GGUFReader(path).fields.get("tokenizer.chat_template")
    if name == "rwkv-bare":  # a text of llama.cpp's own, which no checkpoint has
        assert "User: " in template
        assert found is None
        assert any("the checkpoint has no chat template" in note for note in notes)
    else:
        assert (found.contents() if found else None) == template
    assert any("puts a token before a text" in note for note in notes) == (name == "plamo")


def test_an_end_that_a_gguf_of_this_kind_does_not_say(tmp_path: Path) -> None:
    path, notes = converted(CASES["rwkv"]._replace(config={"eos_token_id": 7}), tmp_path)
    flag = "tokenizer.ggml.eom_token_id"
    assert f"generation ends after token 7 too, which no key of the GGUF says: --set-meta {flag}=7 does" in notes
    options = ckconv.Options(set_meta=((flag, "7"),))
    ckconv.convert(tmp_path / "hf", path, to="gguf", options=options, force=True)
    assert gguf.GGUFReader(path).fields[flag].contents() == 7


def test_every_end_that_a_gguf_of_this_kind_does_not_say(tmp_path: Path) -> None:
    path, notes = converted(CASES["rwkv"]._replace(config={"eos_token_id": [7, 9, 11]}), tmp_path)
    (note,) = [note for note in notes if "generation ends" in note]
    flags = re.findall(r"--set-meta (\S+)=(\d+)", note)
    assert note.startswith("generation ends after tokens 7, 9, 11 too")
    assert (flags[0], note.rpartition("; ")[2]) == (("tokenizer.ggml.eom_token_id", "7"), "there is no key for 9, 11")
    ckconv.convert(tmp_path / "hf", path, to="gguf", options=ckconv.Options(set_meta=tuple(flags)), force=True)
    assert [gguf.GGUFReader(path).fields[key].contents() for key, _ in flags] == [int(number) for _, number in flags]


def longest(text: str) -> list[int]:
    """Of the words that a text begins with always the longest."""
    words = [b"<s>", *(word.encode() if isinstance(word, str) else word for word in [*every_byte(), *WORDS])]
    ids, data, made = {word: n for n, word in enumerate(words)}, text.encode(), []
    while data:
        size = max(n for n in range(1, 20) if data[:n] in ids)
        made.append(ids[data[:size]])
        data = data[size:]
    return made


def likeliest(text: str) -> list[int]:
    """The pieces with the highest sum, bytes for a character without one."""
    ids, scores = {piece: 262 + n for n, piece in enumerate(PIECES)}, PIECES
    best: list[tuple[float, list[int]]] = [(0.0, [])]
    for start in range(len(text) - 1, -1, -1):
        ways = [(best[0][0] - 1000, [5 + byte for byte in text[start].encode()] + best[0][1])]
        ways += [
            (best[len(piece) - 1][0] + scores[piece], [ids[piece], *best[len(piece) - 1][1]])
            for piece in PIECES
            if text.startswith(piece, start)
        ]
        best.insert(0, max(ways))
    return best[0][1]


@pytest.mark.skipif(not LIBRARY, reason="needs llama.cpp")
@pytest.mark.parametrize("name", ["rwkv-bare", "plamo-bare"])
def test_llama_cpp_makes_the_ids_of_the_tokenizer(name: str, tmp_path: Path) -> None:
    path, _ = converted(CASES[name], tmp_path)
    texts = TEXTS if name == "rwkv-bare" else ["ab", "abc", "aabcb▁c", "日本日x", "é🙂a", "bcbcabab", "日 本"]

    made = ids_by_file(path, texts)

    assert made == [(longest if name == "rwkv-bare" else likeliest)(text) for text in texts]


def changed(kind: str, line: int, text: str) -> Case:
    """One line of the file is another."""
    case = CASES[kind]
    lines = case.file.split("\n")
    lines[line - 1] = text
    return case._replace(file="\n".join(lines))


@pytest.mark.parametrize(
    ("kind", "line", "why"),
    [
        ("rwkv", "8 '\\x06' 1", "its id is not 7"),
        ("rwkv", "07 '\\x06' 1", "its id is not 7"),
        ("rwkv", "", "its id is not 7"),
        ("rwkv", "7 '\\x06' 2", "its token has 1 bytes"),
        ("rwkv", "7 '\\x06'", "no token that Python writes so"),
        ("rwkv", "7  0", "no token that Python writes so"),
        ("rwkv", "7 '' 0", "no token that Python writes so"),
        ("rwkv", "7 6 1", "no token that Python writes so"),
        ("rwkv", "7 'a' 'b' 2", "no token that Python writes so"),
        ("rwkv", "7 " + "(" * 900 + "'a'" + ")" * 900 + " 1", "no token that Python writes so"),
        ("rwkv", "7 f'{1}' 1", "no token that Python writes so"),
        ("rwkv", "7 '\\d' 2", "no token that Python writes so"),
        ("rwkv", "7 '\\ud800' 3", "no token that Python writes so"),
        ("rwkv", "7 '\\U00110000' 3", "no token that Python writes so"),
        ("rwkv", "7 b'é' 2", "no token that Python writes so"),
        ("rwkv", "7 '\x00' 1", "no token that Python writes so"),
        ("rwkv", "7 '" + "a" * 4096 + "' 4096", "more than 4,096 characters"),
        ("rwkv", "7 '\\x05' 1", "is there before"),
        ("rwkv", "7 '<s>' 3", "is there before"),
        ("plamo", "", "no list of a token"),
        ("plamo", '["a", 1]', "no list of a token"),
        ("plamo", '["", 1, "NORMAL"]', "no list of a token"),
        ("plamo", '["\\ud800", 1, "NORMAL"]', "no list of a token"),
        ("plamo", '["a", "1", "NORMAL"]', "no list of a token"),
        ("plamo", '["a", true, "NORMAL"]', "no list of a token"),
        ("plamo", "[" * 4000, "no list of a token"),
        ("plamo", '["a", NaN, "NORMAL"]', "its score is not between"),
        ("plamo", '["a", -1000, "NORMAL"]', "its score is not between"),
        ("plamo", '["a", 1' + "0" * 400 + ', "NORMAL"]', "its score is not between"),
        ("plamo", '["<0x00>", 0, "BYTE"]', "is there before"),
    ],
)
def test_a_malformed_line_is_named(kind: str, line: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        converted(changed(kind, 7, line), tmp_path)

    assert caught.value.exit_code == 3
    assert f"/{FILES[CASES[kind].kind]}: line 7: " in str(caught.value)
    assert why in str(caught.value)


def test_what_is_no_utf_8_is_named(tmp_path: Path) -> None:
    folder = beside(tmp_path / "hf", CASES["rwkv"])
    from ckconv.tokenizer.checkpoint import rwkv_rows

    with pytest.raises(InputError, match="is not UTF-8"):
        rwkv_rows(b"\xff", folder / "rwkv_vocab_v20230424.txt")
    with pytest.raises(InputError, match="more than 262,144 lines"):
        rwkv_rows(b"\n" * ((1 << 18) + 2), folder / "rwkv_vocab_v20230424.txt")


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (CASES["rwkv"]._replace(rows=270), f"it has {257 + len(WORDS)} tokens, the embedding 270 rows"),
        (CASES["rwkv"]._replace(file=rwkv(["a", "b"])), "it has no word for some byte"),
        (CASES["rwkv"]._replace(file=rwkv([*every_byte(), "[PAD289]"])), "are both '[PAD289]'"),
        (CASES["plamo"]._replace(file='["a", 1, "NORMAL"]\n'), "it has no piece for some byte"),
    ],
)
def test_what_llama_cpp_does_not_do_is_left_out(case: Case, why: str, tmp_path: Path) -> None:
    path, notes = converted(case, tmp_path)

    assert said_by(path)["model"] == "no_vocab"
    assert any("the tokenizer is left out: " in note and why in note for note in notes)
