"""A GGUF's tokenizer beside the checkpoint that is made from it: what llama.cpp does with a text, or nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import family_cases
import gguf
import pytest
from checkpoints import Decoder, stacked
from conftest import FIXTURES
from gguf_copies import finish, gguf_copy
from llama_cpp_vocabulary import ids_by_file

import ckconv
from ckconv import Options
from ckconv.conversion.planning import make_plan
from ckconv.formats.detect import open_index
from ckconv.formats.gguf.values import ArrayRef
from ckconv.formats.safetensors.write import TokenizerPlan, files_from_gguf
from ckconv.tokenizer import checkpoint, huggingface as tokenizer_json
from ckconv.tokenizer.source import texts_of
from ckconv.tokenizer.vocabulary import (
    NotFaithful,
    PreTokenizer,
    Vocabulary,
    definition,
    pre_tokenizers,
    recognized,
    vocabulary,
)

LIBRARY = os.environ.get("LLAMA_CPP_LIBRARY", "")
ORACLE = json.loads((FIXTURES / "tokenizers" / "llama-cpp-ids.json").read_text())
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


@dataclass(frozen=True)
class Scalar:
    value: object


@dataclass(frozen=True)
class Array:
    """An array of a GGUF's metadata that is there already."""

    type: str
    values: Sequence[Any]

    @property
    def count(self) -> int:
        return len(self.values)

    def decode(self) -> list[Any]:
        return list(self.values)

    def each(self) -> Iterator[Any]:
        return iter(self.values)


def metadata(**changes: Any) -> dict[str, Scalar]:
    """Keys of the smallest byte-level tokenizer; a change of ``...`` leaves a key out."""
    keys: dict[str, Any] = {
        "model": "gpt2", "pre": "gpt-2", "tokens": Array("str", ["<s>", "</s>", "a", "Ġ", "b", "Ġa", "ab", "<u>"]),
        "token_type": Array("i32", [CONTROL, CONTROL, *[NORMAL] * 5, USER_DEFINED]),
        "merges": Array("str", ["Ġ a", "a b"]), "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    return {f"tokenizer.ggml.{key}": Scalar(value) for key, value in {**keys, **changes}.items() if value is not ...}


def spm(tokens: Sequence[tuple[str, float, int]], **changes: Any) -> dict[str, Scalar]:
    """Keys of a SentencePiece model: unknown, beginning, end, 256 bytes, and ``tokens``."""
    rows = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    rows += [*((f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)), *tokens]
    texts, scores, kinds = (list(column) for column in zip(*rows, strict=True))
    keys = {"tokens": Array("str", texts), "scores": Array("f32", scores), "token_type": Array("i32", kinds)}
    return metadata(**{"model": "llama", "pre": ..., "merges": ..., "bos_token_id": ..., **keys, **changes})


def files_of(keys: Mapping[str, Scalar], context: int = 32) -> tuple[dict[str, bytes], tuple[str, ...]]:
    return files_from_gguf(TokenizerPlan(vocabulary(keys), context))


def made_of(keys: Mapping[str, Scalar]) -> dict[str, Any]:
    files, notes = files_of(keys)
    assert notes == ()
    document: dict[str, Any] = json.loads(files["tokenizer.json"])
    return document


def left_out(keys: Mapping[str, Scalar]) -> str:
    """Why nothing is written, found before or while the words are read."""
    try:
        files, notes = files_of(keys)
    except NotFaithful as reason:
        return str(reason)
    assert files == {}
    return notes[0].removeprefix("no tokenizer files are written: ").partition(";")[0]


def to_hf(source: Path, tmp_path: Path) -> Path:
    ckconv.convert(source, f"{tmp_path / 'hf'}/", to="safetensors")
    return tmp_path / "hf"


def added(number: int, content: str, special: str) -> str:
    plain = '"single_word": false, "lstrip": false, "rstrip": false, "normalized": false'
    return f'    {{"id": {number}, "content": "{content}", {plain}, "special": {special}}}'


TOKENIZER_JSON = f"""\
{{
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": [
{added(0, "<s>", "true")},
{added(1, "</s>", "true")},
{added(7, "<u>", "false")}
  ],
  "normalizer": null,
  "pre_tokenizer": {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}},
  "post_processor": {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}},
  "decoder": {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}},
  "model": {{
    "type": "BPE",
    "dropout": null,
    "unk_token": null,
    "continuing_subword_prefix": null,
    "end_of_word_suffix": null,
    "fuse_unk": false,
    "byte_fallback": false,
    "ignore_merges": false,
    "vocab": {{
      "<s>": 0,
      "</s>": 1,
      "a": 2,
      "Ġ": 3,
      "b": 4,
      "Ġa": 5,
      "ab": 6,
      "<u>": 7
    }},
    "merges": [
      "Ġ a",
      "a b"
    ]
  }}
}}
"""

TOKENIZER_CONFIG = """\
{
  "add_bos_token": false,
  "add_eos_token": false,
  "bos_token": "<s>",
  "eos_token": "</s>",
  "clean_up_tokenization_spaces": false,
  "model_max_length": 32,
  "tokenizer_class": "PreTrainedTokenizerFast"
}
"""


def test_the_bytes_of_a_small_tokenizer() -> None:
    files, notes = files_of(metadata())

    assert {name: data.decode() for name, data in files.items()} == {
        "tokenizer.json": TOKENIZER_JSON,
        "tokenizer_config.json": TOKENIZER_CONFIG,
    }
    assert notes == ()


def test_pieces_are_the_bytes_that_sentencepiece_wrote(tmp_path: Path) -> None:
    """llama.cpp's converter read the fixture into the GGUF; trained models begin with their pieces."""
    made = (to_hf(FIXTURES / "gguf" / "phi3-bf16.auto.gguf", tmp_path) / "tokenizer.model").read_bytes()

    original = (FIXTURES / "tokenizers" / "sentencepiece-bpe.model").read_bytes()
    pieces = original.index(b"\x12'\x18\x02 \x80\x03")  # the trainer's settings
    assert made[:pieces] == original[:pieces]
    said, had = checkpoint.parse_sentencepiece(made), checkpoint.parse_sentencepiece(original)
    assert (said.pieces, said.special, said.model_type, said.byte_fallback) == (
        had.pieces, had.special, had.model_type, had.byte_fallback,
    )  # fmt: skip
    assert said.add_dummy_prefix  # as llama.cpp does where a file does not say


def test_what_is_put_around_a_text_follows_the_switches_or_llama_cpps_default() -> None:
    begin = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    end = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}

    def single(**changes: Any) -> Any:
        processor = made_of(metadata(**changes))["post_processor"]
        members = processor.get("processors", [processor])
        return next((m["single"] for m in members if m["type"] == "TemplateProcessing"), [text])

    assert single() == [text]
    assert single(pre="llama-bpe") == [begin, text]
    assert single(pre="llama-bpe", add_bos_token=False) == [text]
    assert single(add_bos_token=True, add_eos_token=True) == [begin, text, end]


@pytest.mark.parametrize("known", pre_tokenizers().values(), ids=lambda known: known.name)
def test_a_definition_is_recognized_as_what_it_was_made_of(known: PreTokenizer) -> None:
    document = made_of(metadata(pre=known.name, bos_token_id=0))
    found, _ = recognized(document, nfc=known.nfc)

    assert document["pre_tokenizer"] == definition(known)
    assert found is not None
    assert (found.steps, found.ignore_merges, found.otherwise) == (known.steps, known.ignore_merges, known.otherwise)
    assert document["normalizer"] == ({"type": "NFC"} if found.nfc else None)


def test_names_for_the_same_rules() -> None:
    llama, qwen = made_of(metadata(pre="llama-bpe")), made_of(metadata(pre="qwen2"))

    assert made_of(metadata(pre="llama3")) == llama
    assert made_of(metadata(pre="deepseek-r1-qwen")) == {**qwen, "normalizer": None}


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({}, "the source has none"),
        (metadata(model="no_vocab"), "the source has none"),
        (metadata(model="rwkv"), "it takes the longest word that a text begins with, which no tokenizer.json says"),
        (metadata(model="later"), "its model is 'later', which is not known exactly"),
        (metadata(pre=...), "the source does not say how it splits text (tokenizer.ggml.pre)"),
        (metadata(pre="x"), "it splits text as 'x', whose definition is not known exactly"),
        (metadata(merges=...), "tokenizer.ggml.merges is missing or too short"),
        (metadata(token_type=...), "tokenizer.ggml.token_type is missing or too short"),
        (metadata(token_type=Array("i32", [1])), "tokenizer.ggml.token_type is missing or too short"),
        (metadata(tokens=Array("i32", [1])), "tokenizer.ggml.tokens is missing or too short"),
        (
            metadata(add_bos_token=True, bos_token_id=...),
            "it puts a token around a text and does not say which (bos_token_id)",
        ),
        (metadata(add_eos_token=True, eos_token_id=2), "it puts token 2 around a text, which is not a control token"),
        (metadata(merges=Array("str", ["a Ġ"])), "the merge 'a Ġ' is not of tokens"),
        (metadata(merges=Array("str", ["ab"])), "the merge 'ab' is not of tokens"),
        (metadata(tokens=Array("str", ["a", "a", *"bcdefg"])), "two tokens are 'a'"),
        (metadata(tokens=Array("str", ["a", "\udcff", *"bcdefg"])), "token 1 is not text"),
        (metadata(token_type=Array("i32", [BYTE] * 8)), "it has tokens for bytes and is byte-level BPE"),
        (spm([("x", 0.0, UNKNOWN)]), "it has 2 unknown tokens, and not one"),
        (spm([("<0x41>", 0.0, NORMAL)]), "two tokens are '<0x41>'"),
        (spm([("éé", -1.0, NORMAL)]), "a piece holds 'é', which is not a piece itself"),
        (
            spm([("a", 0.0, NORMAL), ("b", 0.0, NORMAL), ("ab", -1.0, NORMAL), ("ba", -1.0, NORMAL)]),
            "'ab' and 'ba' have one score, and merges have an order",
        ),
        (spm([("a", 0.0, NORMAL), ("aa", float("nan"), NORMAL)]), "a score is not a number"),
        (spm([("a", 0.0, NORMAL), ("a" * 2000, -1.0, NORMAL)]), "a piece has 2,000 characters"),
        (spm([], scores=...), "tokenizer.ggml.scores is missing or too short"),
    ],
)
def test_what_is_not_known_exactly_is_left_out(keys: dict[str, Scalar], why: str) -> None:
    assert left_out(keys) == why


def test_merges_of_sentencepiece_come_by_score_and_make_runs_longer_from_the_left() -> None:
    """As in llama's vocabulary, whose runs of spaces have one score: SentencePiece joins the leftmost two."""
    runs = [("▁" * n, -1e9 if n > 1 else -1.0, NORMAL) for n in (1, 2, 4, 3)]
    words = [("a", -2.0, NORMAL), ("b", -3.0, NORMAL), ("ab", -0.5, NORMAL), ("▁ab", -0.7, NORMAL)]
    document = made_of(spm([*runs, *words]))

    merges = ["a b", "▁ ab", "▁▁▁ ▁", "▁▁ ▁▁", "▁▁ ▁", "▁ ▁▁▁", "▁ ▁▁", "▁ ▁"]
    assert document["model"]["merges"] == merges
    assert document["model"]["byte_fallback"]
    assert document["model"]["unk_token"] == "<unk>"


def test_a_character_without_a_piece_is_its_byte() -> None:
    document = made_of(spm([("\t\t", -1.0, NORMAL), ("▁", -2.0, NORMAL)]))

    assert document["model"]["vocab"]["\t"] == document["model"]["vocab"]["<0x09>"] == 3 + 9
    assert document["model"]["merges"] == ["\t \t"]


def test_a_space_before_the_text_is_the_sources() -> None:
    piece = [("▁", -1.0, NORMAL)]
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}

    assert made_of(spm(piece))["normalizer"]["normalizers"] == [{"type": "Prepend", "prepend": "▁"}, spaces]
    without = files_of(spm(piece, add_space_prefix=False))[0]
    assert json.loads(without["tokenizer.json"])["normalizer"]["normalizers"] == [spaces]
    assert not checkpoint.parse_sentencepiece(without["tokenizer.model"]).add_dummy_prefix


def test_merges_of_pieces_stay_as_they_are_and_gemma_4_always_has_a_beginning() -> None:
    said = spm([("▁", 0.0, NORMAL), ("a", 0.0, NORMAL), ("▁a", 0.0, NORMAL)], scores=..., bos_token_id=1)
    merges = {"tokenizer.ggml.merges": Scalar(Array("str", ["▁ a"]))}

    def made(**changes: str | bool) -> dict[str, Any]:
        return made_of({**said, **merges, **{f"tokenizer.ggml.{key}": Scalar(value) for key, value in changes.items()}})

    gemma, sarvam = made(model="gemma4", add_bos_token=False), made(model="gpt2", pre="sarvam-moe")

    assert gemma["model"] == sarvam["model"]
    assert (gemma["model"]["merges"], gemma["model"]["byte_fallback"]) == (["▁ a"], True)
    assert gemma["normalizer"]["normalizers"] == [{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    assert [document["post_processor"] is None for document in (gemma, sarvam)] == [False, True]
    assert made(model="gpt2", pre="granite-embed-multi-311m") == gemma


def test_phi_3s_special_tokens_swallow_spaces() -> None:
    tokens = [("<|end|>", -1000.0, CONTROL), ("<|endoftext|>", -1000.0, CONTROL)]
    keys = {**spm(tokens), "general.name": Scalar("Phi-3 mini")}

    strips = {token["content"]: token["rstrip"] for token in made_of(keys)["added_tokens"]}
    assert strips == {"<unk>": False, "<s>": False, "</s>": True, "<|end|>": True, "<|endoftext|>": False}


def test_rows_that_only_fill_the_embedding_are_no_words() -> None:
    tokens = Array("str", ["<s>", "</s>", "a", "[PAD3]", "[PAD9]", "b", "ab"])
    types = Array("i32", [CONTROL, CONTROL, NORMAL, UNUSED, UNUSED, NORMAL, NORMAL])
    document = made_of(metadata(tokens=tokens, token_type=types, merges=Array("str", ["a b"])))

    assert document["model"]["vocab"] == {"<s>": 0, "</s>": 1, "a": 2, "[PAD9]": 4, "b": 5, "ab": 6}


def test_rows_of_older_converters_are_called_unknown() -> None:
    files, _ = files_of(spm([("[PAD259]", -10000.0, UNKNOWN), ("▁", -1.0, NORMAL), ("[PAD261]", -10000.0, UNKNOWN)]))

    document, pieces = (
        json.loads(files["tokenizer.json"]),
        checkpoint.parse_sentencepiece(files["tokenizer.model"]).pieces,
    )
    assert document["model"]["unk_token"] == "<unk>"
    assert [token["content"] for token in document["added_tokens"]] == ["<unk>", "<s>", "</s>"]
    assert [(piece.text, piece.type) for piece in pieces[259:]] == [("[PAD259]", UNUSED), ("▁", NORMAL)]


def test_a_row_that_is_called_unknown_pads_nothing(tmp_path: Path) -> None:
    """transformers would add the text of such a padding token behind the vocabulary."""
    source = FIXTURES / "gguf" / "gemma3-text-bf16.auto.gguf"
    fields = gguf.GGUFReader(source).fields
    texts, kinds = (fields[f"tokenizer.ggml.{key}"].contents()[1:] for key in ("tokens", "token_type"))
    keys = {"tokenizer.ggml.tokens": ["[PAD0]", *texts], "tokenizer.ggml.token_type": [UNKNOWN, *kinds]}

    ckconv.convert(gguf_copy(source, tmp_path / "m.gguf", keys=keys), f"{tmp_path}/hf/", to="safetensors")

    assert "pad_token" not in json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    added = json.loads((tmp_path / "hf" / "tokenizer.json").read_text())["added_tokens"]
    assert [token["id"] for token in added] == [1, 2, 3, 4]


def test_an_unknown_token_that_is_a_control_token_is_still_the_unknown_one() -> None:
    """As llama.cpp's converter writes it for a checkpoint that lists it among its added tokens."""
    keys = spm([("▁", -1.0, NORMAL)])
    types = [CONTROL, *keys["tokenizer.ggml.token_type"].value.values[1:]]
    scores = [-1000.0, *keys["tokenizer.ggml.scores"].value.values[1:]]
    keys |= {
        "tokenizer.ggml.token_type": Scalar(Array("i32", types)),
        "tokenizer.ggml.scores": Scalar(Array("f32", scores)),
    }
    files, _ = files_of(keys)

    settings = json.loads(files["tokenizer_config.json"])
    assert (settings["unk_token"], list(settings["added_tokens_decoder"])) == ("<unk>", ["0"])
    assert checkpoint.parse_sentencepiece(files["tokenizer.model"]).pieces[0].type == UNKNOWN
    assert json.loads(files["tokenizer.json"])["model"]["unk_token"] == "<unk>"


def test_templates_by_name_and_only_control_tokens_as_special_ones() -> None:
    keys = {**metadata(padding_token_id=2, unknown_token_id=9), "tokenizer.chat_template": Scalar("{{ x }}")}
    one = json.loads(files_of(keys)[0]["tokenizer_config.json"])
    several = json.loads(files_of({**keys, "tokenizer.chat_template.rag": Scalar("y")})[0]["tokenizer_config.json"])

    assert (one["chat_template"], one["eos_token"]) == ("{{ x }}", "</s>")
    assert "pad_token" not in one  # "a" is a word, and would be cut out of every text
    assert "unk_token" not in one
    assert several["chat_template"] == [{"name": "default", "template": "{{ x }}"}, {"name": "rag", "template": "y"}]


@pytest.mark.parametrize("ends", [("", ".default", ".rag"), (".default", ".rag", ""), (".rag", ".default", "")])
def test_the_template_without_a_name_is_the_default_as_llama_cpp_takes_it(ends: Sequence[str], tmp_path: Path) -> None:
    texts = {f"tokenizer.chat_template{end}": end or "plain" for end in ends}
    source = gguf_copy(
        FIXTURES / "gguf" / "qwen2-tied-bf16.auto.gguf", tmp_path / "m.gguf", keys=texts, without=[*texts]
    )
    settings = json.loads((to_hf(source, tmp_path) / "tokenizer_config.json").read_text())

    assert settings["chat_template"] == [{"name": "default", "template": "plain"}, {"name": "rag", "template": ".rag"}]


@pytest.mark.parametrize(
    ("name", "last", "keys"),
    [
        ("phi3", {}, {"merges": ["a b"]}),  # which llama.cpp does not look at
        ("qwen2-tied", {"tokens": "", "token_type": CONTROL}, {}),
        ("phi3", {}, {"unknown_token_id": 5}),  # a byte
    ],
    ids=["merges beside scores", "a control token without a text", "a byte is unknown"],
)
def test_what_llama_cpp_loads_is_written_and_proved(
    name: str, last: Mapping[str, Any], keys: Mapping[str, Any], tmp_path: Path
) -> None:
    source = FIXTURES / "gguf" / f"{name}-bf16.auto.gguf"
    fields = gguf.GGUFReader(source).fields
    lists = {key: [*fields[f"tokenizer.ggml.{key}"].contents()[:-1], item] for key, item in last.items()}
    made = {f"tokenizer.ggml.{key}": value for key, value in {**lists, **keys}.items()}
    root = to_hf(gguf_copy(source, tmp_path / "m.gguf", keys=made), tmp_path)

    assert (root / "tokenizer.json").exists()


def test_a_tab_that_is_no_token_is_its_byte(tmp_path: Path) -> None:
    source = FIXTURES / "gguf" / "phi3-bf16.auto.gguf"
    tokens = gguf.GGUFReader(source).fields["tokenizer.ggml.tokens"].contents()
    tokens[tokens.index("orld")] = "\t\t"
    root = to_hf(gguf_copy(source, tmp_path / "m.gguf", keys={"tokenizer.ggml.tokens": tokens}), tmp_path)
    vocab = json.loads((root / "tokenizer.json").read_text())["model"]["vocab"]

    assert vocab["\t"] == vocab["<0x09>"] == tokens.index("<0x09>")
    ckconv.convert(root, f"{tmp_path / 'bump'}/", to="bump", options=Options(bump_version=5))


def test_generation_ends_at_every_token_that_the_source_names(tmp_path: Path) -> None:
    source = FIXTURES / "gguf" / "qwen2-tied-bf16.auto.gguf"
    ends = {"tokenizer.ggml.eot_token_id": 17, "tokenizer.ggml.eom_token_id": 9999}
    root = to_hf(gguf_copy(source, tmp_path / "m.gguf", keys=ends), tmp_path)

    said = json.loads((root / "generation_config.json").read_text())
    assert said == {"bos_token_id": 1, "eos_token_id": [2, 17], "pad_token_id": 0}


GGUFS = sorted(path.name for path in (FIXTURES / "gguf").glob("*.gguf"))


@pytest.mark.product("values")
@pytest.mark.parametrize("to", ["safetensors", "mlx"])
@pytest.mark.parametrize("name", GGUFS)
def test_there_and_back_are_the_same_keys(name: str, to: str, tmp_path: Path) -> None:
    source = FIXTURES / "gguf" / name
    ckconv.convert(source, f"{tmp_path / 'there'}/", to=to)
    ckconv.convert(tmp_path / "there", tmp_path / "back.gguf")

    had, has = (
        {key: model.metadata[key] for key in model.metadata if key.startswith("tokenizer.")}
        for model in (ckconv.open_model(source), ckconv.open_model(tmp_path / "back.gguf"))
    )
    assert {key: has.get(key) for key in had} == had
    said_now = {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token", "tokenizer.ggml.unknown_token_id"}
    assert has.keys() - had.keys() <= said_now


def test_a_plan_decodes_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def decoded(array: ArrayRef) -> list[Any]:
        raise AssertionError("an array was decoded")

    monkeypatch.setattr(ArrayRef, "decode", decoded)
    monkeypatch.setattr(ArrayRef, "raw", decoded)
    index = open_index(FIXTURES / "gguf" / "phi3-bf16.auto.gguf")

    plan = make_plan(index, "safetensors", Options())

    assert plan.files
    with pytest.raises(AssertionError, match="decoded"):
        plan.contents()


def test_words_that_turn_out_wrong_are_told_and_the_model_is_written(tmp_path: Path) -> None:
    source = bytearray((FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf").read_bytes())
    at = source.index(b"\x03\x00\x00\x00\x00\x00\x00\x00e r")
    source[at + 8 : at + 11] = b"e\xff "
    (tmp_path / "m.gguf").write_bytes(source)
    report = ckconv.convert(tmp_path / "m.gguf", f"{tmp_path / 'hf'}/", to="safetensors")

    assert [note for note in report.plan.notes if "tokenizer" in note] == [
        "no tokenizer files are written: the merge 'e\\udcff ' is not of tokens; "
        "put those of the original checkpoint beside the model"
    ]
    assert sorted(path.name for path in report.side_files) == ["README.md", "config.json", "generation_config.json"]


def test_a_file_has_no_place_for_a_tokenizer(tmp_path: Path) -> None:
    report = ckconv.convert(FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf", tmp_path / "m.safetensors")

    assert "DST is a single file, so tokenizer files were not written; use DST/ to get them" in report.plan.notes[-1]
    assert not (tmp_path / "tokenizer.json").exists()


def test_the_sources_own_files_are_carried(tmp_path: Path) -> None:
    source = FIXTURES / "hf" / "llama-tied-bf16"
    ckconv.convert(source, f"{tmp_path / 'mlx'}/", to="mlx")

    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (tmp_path / "mlx" / name).read_bytes() == (source / name).read_bytes()


def big_vocabulary(path: Path, size: int) -> Path:
    """A decoder of a few numbers a word with byte-level tokens of one to three characters, and their merges."""
    decoder = Decoder(layers=1, hidden=32, heads=2, kv_heads=2, head_dim=16, ffn=32, vocab=size)
    letters = [chr(0x100 + n) for n in range(128)]
    pairs = [a + b for a in letters for b in letters]
    triples = [pair + letter for letter in letters for pair in pairs]
    tokens = ["<s>", "</s>", *letters, *pairs, *triples][:size]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL, CONTROL, *[NORMAL] * (size - 2)])
    writer.add_token_merges([f"{token[:-1]} {token[-1]}" for token in tokens[130:]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    words = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    layer = {
        "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    words |= {f"model.layers.0.{theirs}": f"blk.0.{ours}" for theirs, ours in layer.items()}
    for name, array in stacked(decoder.tensors()).items():
        writer.add_tensor(words[name.removesuffix(".weight")] + ".weight", array)
    return finish(writer, path)


MEASURED = """
import sys
from ckconv.cli import run
run(sys.argv[1:])
with open("/proc/self/status") as file:
    print(next(line.split()[1] for line in file if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks /proc for its peak memory")
def test_a_vocabulary_of_152_thousand_words_is_written_within_160_megabytes(tmp_path: Path) -> None:
    source = big_vocabulary(tmp_path / "big.gguf", 152_000)
    command = [sys.executable, "-c", MEASURED, "convert", source, f"{tmp_path / 'hf'}/", "--to", "safetensors", "-q"]
    environment = {**os.environ, "PYTHONPATH": str(Path(ckconv.__file__).parent.parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)

    assert len(json.loads((tmp_path / "hf" / "tokenizer.json").read_bytes())["model"]["vocab"]) == 152_000
    assert int(done.stdout.split()[-1]) < 160 * 1024


# Other programs


def differing(name: str, root: Path, wanted: Sequence[Sequence[int]]) -> list[str]:
    """Texts of which the tokenizers library makes other ids than ``wanted``."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(root / "tokenizer.json"))
    texts = ORACLE["texts"]
    composed = [text == unicodedata.normalize("NFC", text) or "qwen" not in name for text in texts]
    return [
        text
        for text, same, ids in zip(texts, composed, wanted, strict=True)
        if same and tokenizer.encode(text).ids != ids
    ]


@pytest.mark.parametrize("name", ORACLE["ids"])
def test_the_tokenizers_library_makes_the_ids_that_llama_cpp_makes(name: str, tmp_path: Path) -> None:
    root = to_hf(FIXTURES / "gguf" / f"{name}.gguf", tmp_path)

    assert differing(name, root, ORACLE["ids"][name]) == []


def test_the_original_and_ours_make_the_same_ids_and_texts(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    root = to_hf(FIXTURES / "gguf" / "gpt2-f32.f32.gguf", tmp_path)
    ours = tokenizers.Tokenizer.from_file(str(root / "tokenizer.json"))
    original = tokenizers.Tokenizer.from_file(str(FIXTURES / "hf" / "gpt2-hub-f32" / "tokenizer.json"))

    for text in ORACLE["texts"]:
        ids = original.encode(text).ids
        assert ours.encode(text).ids == ids
        assert ours.decode(ids) == original.decode(ids)


def test_sentencepiece_reads_the_model(tmp_path: Path) -> None:
    library = pytest.importorskip("sentencepiece")
    root = to_hf(FIXTURES / "gguf" / "gemma3-text-bf16.auto.gguf", tmp_path)
    model = library.SentencePieceProcessor(model_file=str(root / "tokenizer.model"))

    assert (model.bos_id(), model.eos_id(), model.pad_id(), model.unk_id()) == (1, 2, 0, 3)
    wanted = zip(ORACLE["texts"], ORACLE["ids"]["gemma3-text-bf16.auto"], strict=True)
    plain = [(text, ids[1:]) for text, ids in wanted if "<" not in text and "\0" not in text]
    assert len(plain) > 20
    assert [text for text, ids in plain if model.encode(text) != ids] == []


@pytest.mark.parametrize("name", ["gemma3-text-bf16.auto", "phi3-bf16.auto"])
def test_sentencepiece_out_of_tokenizer_json_alone_is_the_same_tokenizer(name: str, tmp_path: Path) -> None:
    root = to_hf(FIXTURES / "gguf" / f"{name}.gguf", tmp_path)
    (root / "tokenizer.model").unlink()
    ckconv.convert(root, tmp_path / "back.gguf")

    had, has = (
        ckconv.open_model(path).metadata for path in (FIXTURES / "gguf" / f"{name}.gguf", tmp_path / "back.gguf")
    )
    for key in ("model", "tokens", "token_type", "eos_token_id", "bos_token_id"):
        assert has[f"tokenizer.ggml.{key}"] == had[f"tokenizer.ggml.{key}"]
    if LIBRARY and "phi3" not in name:  # whose special tokens swallow spaces by the name of the model
        assert ids_by_file(tmp_path / "back.gguf", ORACLE["texts"]) == ORACLE["ids"][name]


@pytest.mark.skipif(not LIBRARY, reason="needs llama.cpp")
def test_llama_cpp_puts_the_end_of_the_template_behind_a_text_whatever_eos_token_is(tmp_path: Path) -> None:
    """As Qwen3-Embedding has it: ``<|endoftext|>`` behind a text, and ``<|im_end|>`` for eos_token."""
    library = pytest.importorskip("tokenizers")
    case = next(family_cases.cases("qwen3"))
    root = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    text = (root / "tokenizer.json").read_text().replace('"<s>"', '"<|im_end|>"').replace('"</s>"', '"<|endoftext|>"')
    document = json.loads(text)
    behind = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}, behind], "pair": []}
    template["special_tokens"] = {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [2], "tokens": ["<|endoftext|>"]}}
    template["pair"] = [*template["single"], {"Sequence": {"id": "B", "type_id": 1}}]
    (root / "tokenizer.json").write_text(json.dumps({**document, "post_processor": template}))
    settings = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (root / "tokenizer_config.json").write_text(json.dumps(settings))

    ckconv.convert(root, tmp_path / "m.gguf")

    texts = [text for text in ORACLE["texts"] if "\0" not in text]
    expected = [each.ids for each in library.Tokenizer.from_file(str(root / "tokenizer.json")).encode_batch(texts)]
    assert {ids[-1] for ids in expected} == {2}
    assert ids_by_file(tmp_path / "m.gguf", texts) == expected


@pytest.mark.parametrize("name", ORACLE["ids"])
def test_mlx_lm_makes_the_ids_that_llama_cpp_makes(name: str, tmp_path: Path) -> None:
    library = pytest.importorskip("mlx_lm.tokenizer_utils")
    template = "{% for m in messages %}<s>{{ m['content'] }}{% endfor %}"
    options = Options(set_meta=(("tokenizer.chat_template", f"str:{template}"),))
    ckconv.convert(FIXTURES / "gguf" / f"{name}.gguf", tmp_path / "m.gguf", options=options)
    ckconv.convert(tmp_path / "m.gguf", f"{tmp_path / 'mlx'}/", to="mlx")
    tokenizer = library.load(tmp_path / "mlx")
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False)

    wanted = {text: ids for text, ids in zip(ORACLE["texts"], ORACLE["ids"][name], strict=True)
              if text == unicodedata.normalize("NFC", text)}  # fmt: skip
    assert {text: tokenizer.encode(text) for text in wanted} == wanted
    assert chat == "<s>hello"


def test_generation_ends_at_the_control_tokens_that_llama_cpp_finds_by_their_text(tmp_path: Path) -> None:
    root = to_hf(FIXTURES / "gguf" / "phi3-bf16.auto.gguf", tmp_path)

    said = json.loads((root / "generation_config.json").read_text())
    assert said == {"bos_token_id": 1, "eos_token_id": [2, 4], "pad_token_id": 0}


def test_a_vocabulary_whose_merges_are_many_times_its_size_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 200
    runs = ["a" * length for length in range(1, count)]
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *runs]
    types = [UNKNOWN, *[BYTE] * 256, *[NORMAL] * len(runs)]
    scores = [0.0] * len(tokens)
    written = sentencepiece_document(tokens, types, scores)
    assert written.count(b'"a') > count * (count - 2) / 2
    monkeypatch.setattr(tokenizer_json, "_MAX_BYTES", len(written) // 2)
    with pytest.raises(NotFaithful, match="would have more than"):
        sentencepiece_document(tokens, types, scores)


def test_pieces_longer_than_any_that_was_trained_are_left_out() -> None:
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "a", "a" * 257]
    with pytest.raises(NotFaithful, match="a piece has 257 characters"):
        sentencepiece_document(tokens, [UNKNOWN, *[BYTE] * 256, NORMAL, NORMAL], [0.0] * len(tokens))


def sentencepiece_document(tokens: list[str], types: list[int], scores: list[float]) -> bytes:
    words = Vocabulary(None, {"unk": 0}, False, False, False, False, None, None, None)
    return tokenizer_json.pieces(words, tokens, types, scores)


def test_files_that_make_the_model_what_it_is_are_carried_and_directories_named(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "hf" / "llama-tied-bf16", source)
    carried = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")
    own = ("modeling_own.py", "tekken.json", "params.json", "rwkv_vocab_v20230424.txt", "tokenizer.jsonl")
    for name in (*carried, *own):
        (source / name).write_text("{}")
    (source / "onnx").mkdir()
    (source / "onnx" / "config.json").write_text("{}")
    report = ckconv.convert(source, f"{tmp_path / 'out'}/", to="safetensors")

    there = {path.name for path in (tmp_path / "out").iterdir()}
    assert there >= {*carried, *own}
    assert any("onnx/ of the source" in note for note in report.plan.notes)


@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer.tiktoken"])
def test_a_tokenizer_that_is_not_read_is_left_out_by_its_name(name: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "hf" / "llama-tied-bf16", source, ignore=shutil.ignore_patterns("tokenizer*", "*.model"))
    (source / name).write_text("")
    report = ckconv.convert(source, tmp_path / "m.gguf")

    assert any(f"the tokenizer is left out: {name} is not read" in note for note in report.plan.notes)


def test_the_template_of_a_bump_manifest_is_the_one_that_transformers_takes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "hf" / "llama-tied-bf16", source)
    settings = json.loads((source / "tokenizer_config.json").read_text())
    (source / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": "of the settings"}))
    (source / "chat_template.jinja").write_text("of the file")

    assert texts_of(open_index(source))["chat_template"] == "of the file"


def test_the_tokenizer_of_an_architecture_that_is_not_known_comes_with_names_of_gguf(tmp_path: Path) -> None:
    source = family_cases.checkpoint(family_cases.recording("llama")["untied"], tmp_path / "hf")
    ckconv.convert(source, tmp_path / "m.gguf")
    ckconv.edit(tmp_path / "m.gguf", tmp_path / "u.gguf", set_meta=[("general.architecture", "zonk")])
    ckconv.convert(tmp_path / "u.gguf", tmp_path / "out", to="safetensors", options=Options(names="gguf"))

    made, wanted = (json.loads((at / "tokenizer.json").read_text())["model"] for at in (tmp_path / "out", source))
    assert made["vocab"] == wanted["vocab"]
