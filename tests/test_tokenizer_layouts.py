"""Tokens have the ids and flags in a GGUF that ``AutoTokenizer`` gives them, or the tokenizer is left out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from checkpoints import Decoder, save
from conftest import FIXTURES
from consumers import LIBRARY
from gguf_copies import gguf_copy
from llama_cpp_vocabulary import ids_by_file
from models import Model
from test_tokenizer_names import TEXTS as HOSTILE
from tokenizer_layouts import FOLDER, LAYOUTS, RECORDED, ROWS, TEXTS, Layout, asked

import ckconv
from ckconv import Options
from ckconv.errors import VerifyError
from ckconv.tokenizer.source import tokenizer_of

RESULTS = json.loads(RECORDED.read_text("utf-8"))
CONTROL, USER_DEFINED = 3, 4
#: Where ``tokenizer.json`` does not list tokens by their ids, or the settings call one special that it does not, the
#: class of transformers 5 that is made of its words has other ids or flags than the file, which transformers 4 takes.
LEFT_OUT = {
    layout.name
    for layout in LAYOUTS
    if layout.base in ("json", "both") and layout.places.startswith("json")
    if layout.tokens == "turned" or (layout.places == "json+named" and layout.tokens in ("word", "again"))
}


def converted(layout: Layout, folder: Path) -> tuple[Path, tuple[str, ...]]:
    """The GGUF of a model with these files beside it, and the notes of its report."""
    decoder = Decoder(layers=1, hidden=16, heads=1, kv_heads=1, ffn=16, vocab=ROWS)
    save(folder / "hf", decoder.config(bos_token_id=1, eos_token_id=2), decoder.tensors())
    report = ckconv.convert(layout.write(folder / "hf"), folder / "m.gguf")
    return folder / "m.gguf", report.plan.notes


def keys_of(path: Path) -> dict[str, Any]:
    fields = gguf.GGUFReader(path).fields
    return {key: field.contents() for key, field in fields.items() if key.startswith("tokenizer.")}


def assert_llama_cpp_makes_the_ids(layout: Layout, path: Path) -> None:
    """Those that AutoTokenizer makes of the same texts."""
    found = ids_by_file(path, TEXTS)

    assert found is not None, "llama.cpp does not load it"
    # llama.cpp puts the space of pieces before every text between added tokens, as older versions of the classes do.
    aside = {1, 293} if layout.base != "bpe" else {RESULTS[layout.name]["roles"]["bos"]}
    plain = [[[n for n in ids if n not in aside] for ids in many] for many in (found, RESULTS[layout.name]["ids"])]
    assert plain[0] == plain[1]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_tokens_have_the_ids_and_flags_of_auto_tokenizer(layout: Layout, tmp_path: Path) -> None:
    path, notes = converted(layout, tmp_path)

    keys, theirs = keys_of(path), RESULTS[layout.name]
    if keys["tokenizer.ggml.model"] == "no_vocab":
        assert any("transformers 4 and 5 have other ids" in note for note in notes)
    assert (keys["tokenizer.ggml.model"] == "no_vocab") == (layout.name in LEFT_OUT)
    if layout.name in LEFT_OUT:
        return
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    assert len({*tokens}) == len(tokens)
    for number, content, special in theirs["added"]:
        looks = content.startswith("<|")
        assert (tokens[number], types[number] in (CONTROL, 2)) == (content, special or looks)
    assert {n for n, kind in enumerate(types) if kind in (CONTROL, USER_DEFINED)} <= {n for n, *_ in theirs["added"]}
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    said = {name: keys.get(f"tokenizer.ggml.{key}_token_id") for name, key in roles.items()}
    assert {name: number for name, number in said.items() if theirs["roles"][name] is not None} == {
        name: number for name, number in theirs["roles"].items() if number is not None
    }
    if LIBRARY:
        assert_llama_cpp_makes_the_ids(layout, path)


@pytest.mark.skipif(not LIBRARY, reason="LLAMA_CPP_LIBRARY names no folder")
def test_llama_cpp_is_asked(tmp_path: Path) -> None:
    """Skipped where it is missing, so that a gate without skipped tests has it."""
    layout = next(layout for layout in LAYOUTS if layout.name not in LEFT_OUT)
    assert ids_by_file(converted(layout, tmp_path)[0], TEXTS)


@pytest.mark.live
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_auto_tokenizer_says_what_is_recorded_and_llama_cpp_follows_it(layout: Layout, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    assert asked(layout, TEXTS) == RESULTS[layout.name]
    if layout.base != "bpe" or layout.name in LEFT_OUT:
        return  # llama.cpp puts the space of pieces behind special tokens, too
    texts = [f"{text}{'<|new|>' * (n % 3 == 0)}{'<think>' * (n % 5 == 0)}he" for n, text in enumerate(HOSTILE[:300])]
    found, wanted = ids_by_file(converted(layout, tmp_path)[0], texts), asked(layout, texts)["ids"]
    assert found is not None
    assert [text for text, ours, theirs in zip(texts, found, wanted, strict=True) if ours != theirs] == []


def test_tokens_of_a_bump_file_have_those_ids_too(tmp_path: Path) -> None:
    layout = Layout("bpe", "added", "again")
    converted(layout, tmp_path)

    made = tokenizer_of(ckconv.open_model(tmp_path / "hf").index, {}, ROWS)

    assert made is not None
    strings = made["vocab_strings"].split(b"\0")
    assert [strings[number].decode() for number, *_ in RESULTS[layout.name]["added"]] == [
        content for _, content, _ in RESULTS[layout.name]["added"]
    ]
    assert len({*strings[:306]}) == 306


def test_a_tokenizer_json_with_other_words_counts_and_not_the_model_beside_it(tmp_path: Path) -> None:
    layout = Layout("bpe", "json", "next")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf/tokenizer.model").write_bytes((FOLDER / "layouts/pieces.model").read_bytes())

    keys = keys_of(converted(layout, tmp_path)[0])

    assert (keys["tokenizer.ggml.model"], keys["tokenizer.ggml.tokens"][305]) == ("gpt2", "<|new|>")


def of_pieces(root: Path) -> Path:
    """A checkpoint with pieces, and a user's token of three spaces."""
    document = json.loads((FOLDER / "layouts/pieces.json").read_bytes())
    token = {**document["added_tokens"][0], "id": 320, "content": "▁▁▁", "special": False}
    document["added_tokens"].append(token)
    document["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    root.mkdir()
    (root / "tokenizer.json").write_text(json.dumps(document | {"pre_tokenizer": split, "post_processor": None}))
    decoder = Decoder(layers=1, hidden=16, heads=1, kv_heads=1, ffn=16, vocab=ROWS)
    return save(root, decoder.config(bos_token_id=1, eos_token_id=2), decoder.tensors())


@pytest.mark.parametrize("to", ["gguf", "bump"])
def test_a_users_token_with_marks_for_spaces_has_spaces_as_of_llama_cpps_converter(to: str, tmp_path: Path) -> None:
    """Gemma 3 has 30 of them; the proof takes the one spelling for the other."""
    source = of_pieces(tmp_path / "hf")
    out = tmp_path / f"m.{to}"

    ckconv.convert(source, out, options=Options(source_record=False))

    assert ckconv.verify(out, source).tensors
    if to == "gguf":
        assert keys_of(out)["tokenizer.ggml.tokens"][320] == "   "


@pytest.mark.parametrize(
    ("spelled", "kind"),
    [(lambda word: word.removeprefix("▁"), 1), (lambda word: word.replace("▁", " "), 4)],
    ids=["without marks", "as a user's tokens"],
)
def test_pieces_with_other_marks_are_other_pieces(spelled: Callable[[str], str], kind: int, tmp_path: Path) -> None:
    source, right = of_pieces(tmp_path / "hf"), tmp_path / "m.gguf"
    ckconv.convert(source, right)
    keys = keys_of(right)
    tokens, types = ([*keys[f"tokenizer.ggml.{key}"]] for key in ("tokens", "token_type"))
    words = [n for n, text in enumerate(tokens) if text.startswith("▁") and len(text) > 1 and types[n] == 1]
    for number in words:
        tokens[number], types[number] = spelled(tokens[number]), kind
    said = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}

    with pytest.raises(VerifyError, match=rf"tokenizer\.ggml\.tokens\[{words[0]}\]"):
        ckconv.verify(gguf_copy(right, tmp_path / "n.gguf", keys=said), source)


@pytest.mark.parametrize(("listed", "end"), [(False, 1), (True, 2)])
def test_an_end_of_the_map_counts_where_transformers_reads_it(listed: bool, end: int, tmp_path: Path) -> None:
    source = Path(shutil.copytree(FIXTURES / "hf" / "llama-tied-bf16", tmp_path / "hf"))
    added = json.loads((source / "tokenizer.json").read_bytes())["added_tokens"]
    settings = {"added_tokens_decoder": {str(token.pop("id")): token for token in added}} if listed else {}
    (source / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", **settings}))
    (source / "special_tokens_map.json").write_text('{"eos_token": "<s>"}')

    ckconv.convert(source, tmp_path / "m.gguf")

    assert keys_of(tmp_path / "m.gguf")["tokenizer.ggml.eos_token_id"] == end


def foreign(tmp_path: Path, tokens: list[str], end: int) -> Path:
    keys = {"tokenizer.ggml.eos_token_id": end}
    return Model(vocab=len(tokens), tokens=tuple(tokens), extra_keys=keys).write(tmp_path / f"foreign-{end}.gguf")


def test_a_gguf_with_two_equal_tokens_is_named_wherever_it_is_seen(tmp_path: Path, ckconv: Any) -> None:
    """llama.cpp aborts on such a file (``GGML_ASSERT(id_to_token.size() == token_to_id.size())``)."""
    source = foreign(tmp_path, ["a", "b", "a"], 1)
    said = "tokens 0 and 2 are both 'a': llama.cpp does not load the file"

    assert said in ckconv("inspect", source).out
    assert said in ckconv("verify", source).out
    assert said in ckconv("convert", source, tmp_path / "copy.gguf").out


def test_an_end_that_no_token_is_is_refused_by_edit_and_a_note_elsewhere(tmp_path: Path, ckconv: Any) -> None:
    tokens = [f"t{n}" for n in range(40)]
    good, bad = foreign(tmp_path, tokens, 1), foreign(tmp_path, tokens, 99)
    said = "tokenizer.ggml.eos_token_id is 99, and there are 40 tokens"

    refused = ckconv("edit", good, tmp_path / "e.gguf", "--set-meta", "tokenizer.ggml.eos_token_id=40")
    assert (refused.code, "there are 40 tokens" in refused.err) == (4, True)
    assert ckconv("edit", good, tmp_path / "e.gguf", "--set-meta", "tokenizer.ggml.eos_token_id=39").code == 0
    outputs = (
        (f"{tmp_path}/hf/", "--to", "safetensors"),
        (tmp_path / "copy.gguf",),
        (f"{tmp_path}/mlx/", "--to", "mlx"),
    )
    for command in (("inspect", bad), ("verify", bad), *(("convert", bad, *output) for output in outputs)):
        assert said in ckconv(*command).out
    assert "eos_token_id is 99, and there are 40 tokens" in ckconv("convert", tmp_path / "hf", tmp_path / "m.gguf").out


def test_an_end_of_generation_that_no_token_is_is_a_note(tmp_path: Path, ckconv: Any) -> None:
    source = shutil.copytree(FIXTURES / "hf" / "llama-tied-bf16", tmp_path / "hf")
    (source / "generation_config.json").write_text('{"eos_token_id": [2, 999]}')
    said = "generation_config.json: eos_token_id is 999, and there are 384 tokens: no engine ever makes it"

    for command in (("inspect", source), ("verify", source), ("convert", source, tmp_path / "m.gguf")):
        assert said in ckconv(*command).out
