"""A checkpoint's tokenizer as a GGUF's keys: recognized by its definition, or left out with the reason."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from conftest import FIXTURES
from hypothesis import given, strategies as st

from ckconv.core.metadata import Value, array, scalar
from ckconv.tokenizer import checkpoint
from ckconv.tokenizer.checkpoint import Malformed, chat_template
from ckconv.tokenizer.gguf import TokenizerKeys, tokenizer_keys
from ckconv.tokenizer.vocabulary import TokenizerFiles, recognized

# The expressions as the tokenizer.json of these models have them.
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + REST
QWEN2 = CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + REST
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTES_ONLY = {**BYTE_LEVEL, "use_regex": False}


def split(expression: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def sequence(*members: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(members)}


def document(pre: object = BYTE_LEVEL, **model: Any) -> dict[str, Any]:
    vocab = {"a": 0, "b": 1, "ab": 2}
    return {
        "added_tokens": [{"id": 3, "content": "<s>", "special": True}, {"id": 4, "content": "</s>", "special": True}],
        "normalizer": None,
        "pre_tokenizer": pre,
        "post_processor": None,
        "model": {"type": "BPE", "vocab": vocab, "merges": [["a", "b"]], **model},
    }


@pytest.mark.parametrize(
    ("pre", "model", "name"),
    [
        (BYTE_LEVEL, {}, "gpt-2"),
        (sequence({"type": "Digits", "individual_digits": True}, BYTE_LEVEL), {}, "smollm"),
        (sequence(split(LLAMA3), BYTES_ONLY), {"ignore_merges": True}, "llama-bpe"),
        (sequence(split(LLAMA3), BYTES_ONLY), {}, "dbrx"),
        (sequence(split(QWEN2), BYTES_ONLY), {"ignore_merges": False}, "deepseek-r1-qwen"),
        (sequence(split(TEKKEN), BYTES_ONLY), {"ignore_merges": True}, "tekken"),
    ],
)
def test_a_pre_tokenizer_is_recognized_by_its_whole_definition(pre: object, model: dict[str, Any], name: str) -> None:
    found, _ = recognized(document(pre, **model))

    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (document({**BYTE_LEVEL, "add_prefix_space": True}), "pre-tokenizer is none that llama.cpp names"),
        (document(sequence(split(LLAMA3 + "|x"), BYTES_ONLY)), "pre-tokenizer is none that llama.cpp names"),
        (document(sequence(split(LLAMA3), BYTE_LEVEL)), "pre-tokenizer is none that llama.cpp names"),
        (
            document(sequence(split(QWEN2), BYTES_ONLY), ignore_merges=True, vocab={"a": 0, "b": 1, "ba": 2}),
            "no merges make the token 'ba', and llama.cpp follows merges (deepseek-r1-qwen)",
        ),
        ({**document(), "decoder": {"type": "WordPiece"}}, "its decoder is 'WordPiece'"),
        (document(None), "pre-tokenizer is none that llama.cpp names"),
        (document(type="Unigram"), "its normalizer is no map of characters alone, but none"),
        (document(type="WordPiece"), "its normalizer is not BERT's"),
        (document(dropout=0.1), "dropout = 0.1"),
        (document(end_of_word_suffix="</w>"), "end_of_word_suffix = '</w>'"),
    ],
)
def test_what_llama_cpp_has_no_name_for_is_left_out(changed: dict[str, Any], why: str) -> None:
    made = tokenizer_keys(TokenizerFiles(tokenizer=changed), 6)

    assert made.metadata == {"tokenizer.ggml.model": scalar("str", "no_vocab")}
    assert (made.notes[0].startswith("the tokenizer is left out"), why in made.notes[0]) == (True, True)


def keys(changed: dict[str, Any] | None = None, *, vocab_size: int = 6, **other: Any) -> TokenizerKeys:
    return tokenizer_keys(TokenizerFiles(tokenizer=changed or document(), **other), vocab_size)


def value(made: TokenizerKeys, name: str) -> Value | None:
    return made.metadata.get(f"tokenizer.ggml.{name}")


def test_tokens_types_and_merges_by_id() -> None:
    changed = document()
    changed["added_tokens"] += [{"id": 5, "content": "<|x|>", "special": False}, {"id": 6, "content": "y"}]
    changed["model"]["merges"] = ["a b", ["ab", "ab"]]

    made = keys(changed, vocab_size=9)

    assert value(made, "tokens") == array("str", ["a", "b", "ab", "<s>", "</s>", "<|x|>", "y", "[PAD7]", "[PAD8]"])
    assert value(made, "token_type") == array("i32", [1, 1, 1, 3, 3, 3, 4, 5, 5])
    assert value(made, "merges") == array("str", ["a b", "ab ab"])
    assert [note.partition(" here")[0] for note in made.notes] == [
        "'<|x|>', not special in the tokenizer's file, is a control token"
    ]


def test_special_ids_are_those_of_the_words_then_of_the_configuration() -> None:
    settings = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": "new"}

    made = keys(
        settings=settings, config={"bos_token_id": 0, "eos_token_id": [1, 2], "pad_token_id": 2, "unk_token_id": 99}
    )

    ids = {name: value(made, f"{name}_token_id") for name in ("bos", "eos", "padding", "unknown", "mask")}
    assert ids == {
        "bos": scalar("u32", 3),
        "eos": scalar("u32", 4),
        "padding": scalar("u32", 5),
        "unknown": None,
        "mask": None,
    }


def template(*parts: str) -> dict[str, Any]:
    words = [{"Sequence": {"id": "A", "type_id": 0}} if p == "A" else {"SpecialToken": {"id": p}} for p in parts]
    return {"type": "TemplateProcessing", "single": words}


@pytest.mark.parametrize(
    ("processor", "settings", "expected"),
    [
        (None, {}, (False, False)),
        ({"type": "ByteLevel"}, {}, (False, False)),
        (template("<s>", "A"), {}, (True, False)),
        (template("<s>", "A", "</s>"), {}, (True, True)),
        ({"type": "Sequence", "processors": [{"type": "ByteLevel"}, template("<s>", "A")]}, {}, (True, False)),
        # transformers takes it from tokenizer.json alone, whatever the settings say.
        (template("<s>", "A"), {"add_bos_token": False}, (True, False)),
        (None, {"add_bos_token": True}, (False, False)),
    ],
)
def test_what_is_put_around_a_text(processor: object, settings: dict[str, Any], expected: tuple[bool, bool]) -> None:
    made = keys(
        {**document(), "post_processor": processor}, settings={"bos_token": "<s>", "eos_token": "</s>", **settings}
    )

    assert (value(made, "add_bos_token"), value(made, "add_eos_token")) == tuple(scalar("bool", e) for e in expected)
    assert any("which is what counts" in note for note in made.notes) == bool(settings)


#: Qwen3-Embedding's: a text ends after either, and the template puts the second one behind it.
ENDS = [{"id": 3, "content": "<|im_end|>", "special": True}, {"id": 4, "content": "<|endoftext|>", "special": True}]


def test_an_end_that_is_put_behind_a_text_and_is_not_eos_token_is_llama_cpps() -> None:
    """As ``SpecialVocab`` of gguf-py has it: eos_token_id and add_eos_token are of the template."""
    changed = {**document(), "added_tokens": ENDS, "post_processor": template("A", "<|endoftext|>")}
    settings = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}

    made = keys(changed, settings=settings, config={"eos_token_id": 4})

    assert (value(made, "eos_token_id"), value(made, "add_eos_token")) == (scalar("u32", 4), scalar("bool", True))
    assert made.notes == (
        "llama.cpp has '<|endoftext|>' for eos_token, as tokenizer.json appends it to a text; a text also ends after "
        "'<|im_end|>'",
    )


@pytest.mark.parametrize(
    ("eos", "chat"), [("ab", None), ("<|im_end|>", "{{ messages[0].content }}{{ eos_token }}"), ("", "{{ eos_token }}")]
)
def test_another_end_is_not_one_to_llama_cpp_or_to_a_chat(eos: str, chat: str | None) -> None:
    changed = {**document(), "added_tokens": ENDS, "post_processor": template("A", "<|endoftext|>")}
    made = keys(changed, settings={"eos_token": eos}, chat_template=chat)
    assert "which is not its eos_token" in made.notes[0]


def test_what_is_put_around_a_text_may_be_named_by_config_json_alone() -> None:
    made = keys(
        {**document(), "added_tokens": ENDS, "post_processor": template("A", "<|im_end|>")}, config={"eos_token_id": 3}
    )

    assert (value(made, "eos_token_id"), value(made, "add_eos_token")) == (scalar("u32", 3), scalar("bool", True))


@pytest.mark.parametrize("chat", [None, "{{ messages }}", "{{ bos_token }}{{ eos_token }}"])
def test_what_is_put_around_a_text_and_nothing_names_keeps_its_place(chat: str | None) -> None:
    """A chat template that wrote none would write it."""
    changed = {**document(), "added_tokens": ENDS, "post_processor": template("<|im_end|>", "A", "<|im_end|>")}
    made = keys(changed, chat_template=chat)

    kept = "bos_token" not in str(chat)
    assert "which is not its bos_token" in "".join(made.notes) or kept
    for role in ("bos", "eos") if kept else ():
        assert (value(made, f"{role}_token_id"), value(made, f"add_{role}_token")) == (
            scalar("u32", 3), scalar("bool", True),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"post_processor": template("<s>", "<s>", "A")}, "puts more around a text"),
        ({"post_processor": template("</s>", "A")}, "which is not its bos_token"),
        ({"post_processor": {"type": "BertProcessing"}}, "post-processor is 'BertProcessing'"),
        ({"model": {**document()["model"], "vocab": {"a": 6}}}, "token 'a' has the id 6, the embedding 6 rows"),
        ({"model": {**document()["model"], "vocab": {"a": 0, "b": 0}}}, "tokens 'a' and 'b' have the same id 0"),
        ({"model": {**document()["model"], "vocab": {"a": "0"}}}, "token 'a' has the id '0'"),
        ({"model": {**document()["model"], "vocab": {}}}, "has no vocabulary"),
        ({"model": {**document()["model"], "merges": []}}, "has no merges"),
        ({"model": {**document()["model"], "merges": ["a b c"]}}, "a merge is not two byte-level tokens"),
        ({"added_tokens": [{"id": 1}]}, "an added token without content"),
    ],
)
def test_a_document_that_cannot_be_said_faithfully_is_left_out(change: dict[str, Any], why: str) -> None:
    made = keys({**document(), **change}, settings={"bos_token": "<s>"})

    assert value(made, "model") == scalar("str", "no_vocab")
    assert why in made.notes[0]


def test_normalizing_is_noted_and_names_a_definition_whose_tokenizers_do_so() -> None:
    made = keys({**document(), "normalizer": {"type": "NFC"}})

    assert made.notes == ("the tokenizer normalizes text first (NFC), which llama.cpp does not do",)
    assert value(made, "pre") == scalar("str", "olmo")


@pytest.mark.parametrize("key", ["lstrip", "rstrip", "single_word"])
def test_what_an_added_token_does_to_the_text_beside_it_is_noted(key: str) -> None:
    changed = document()
    changed["added_tokens"][0][key] = True

    assert ["'<s>'" in note for note in keys(changed).notes] == [True]


def test_words_that_the_settings_name_are_special_as_transformers_adds_them() -> None:
    made = keys(settings={"sep_token": {"content": "b"}, "pad_token": "missing"})

    assert value(made, "token_type") == array("i32", [1, 3, 1, 3, 3, 3])
    assert value(made, "tokens") == array("str", ["a", "b", "ab", "<s>", "</s>", "missing"])
    assert value(made, "padding_token_id") == scalar("u32", 5)


def test_bytes_may_be_one_step_of_a_decoder() -> None:
    decoder = {"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "Fuse"}]}

    assert keys({**document(), "decoder": decoder}) == keys()


def test_words_that_merges_make_are_the_same_looked_up() -> None:
    made = keys(document(sequence(split(QWEN2), BYTES_ONLY), ignore_merges=True))

    assert value(made, "pre") == scalar("str", "deepseek-r1-qwen")


@pytest.mark.parametrize(
    "normalizer",
    [
        {"type": "Lowercase"},
        {"type": "NFKC"},
        {
            "type": "Sequence",
            "normalizers": [{"type": "NFC"}, {"type": "Sequence", "normalizers": [{"type": "Strip"}]}],
        },
    ],
)
def test_a_tokenizer_whose_normalizer_changes_common_texts_is_left_out(normalizer: dict[str, Any]) -> None:
    made = keys({**document(), "normalizer": normalizer})

    assert value(made, "model") == scalar("str", "no_vocab")
    assert "it normalizes text first" in made.notes[0]


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"eos_token_id": 4}, {}, {}),
        ({"eos_token_id": [4, 2]}, {}, {"eot": 2}),
        ({"eos_token_id": [4, 2, 0, 1]}, {}, {"eot": 2, "eom": 0}),
        ({"eos_token_id": 4}, {"eos_token_id": [2, 4]}, {"eot": 2}),
        ({"eos_token_id": [4, 2]}, {"eos_token_id": 4}, {}),
        ({"eos_token_id": 2}, {}, {"eot": 2}),
        ({"eos_token_id": [4, 99, -1, "x", True, None]}, {}, {}),
    ],
)
def test_every_token_that_ends_a_text_has_a_key(
    config: dict[str, Any], generation: dict[str, Any], expected: dict[str, int]
) -> None:
    made = keys(config=config, generation=generation, settings={"eos_token": "</s>"})

    assert value(made, "eos_token_id") == scalar("u32", 4)
    found = {name: value(made, f"{name}_token_id") for name in ("eot", "eom")}
    assert {name: v for name, v in found.items() if v} == {name: scalar("u32", n) for name, n in expected.items()}
    assert any("generation ends after token 1 too" in note for note in made.notes) == (len(expected) == 2)


def test_a_key_for_an_end_does_not_take_the_place_of_the_turns_end_that_llama_cpp_finds() -> None:
    changed = document()
    changed["added_tokens"].append({"id": 5, "content": "<|im_end|>", "special": True})
    made = keys(changed, config={"eos_token_id": [4, 5, 2]}, settings={"eos_token": "</s>"})

    assert (value(made, "eot_token_id"), value(made, "eom_token_id")) == (None, scalar("u32", 2))


def test_an_end_that_config_json_alone_names_is_noted() -> None:
    config, said = (
        {"eos_token_id": [4, 2]},
        "config.json ends a text after token 2 too; generation_config.json does not",
    )

    made = keys(config=config, generation={"eos_token_id": 4})

    assert [note.startswith(said) for note in made.notes] == [True]
    assert keys(config=config, generation={"eos_token_id": [2, 4]}).notes == keys(config=config).notes == ()


def test_chat_templates() -> None:
    one = keys(chat_template="{{ x }}").metadata
    several = keys(
        chat_template=[{"name": "default", "template": "D"}, {"name": "rag", "template": "R"}, {"name": "a/b"}]
    ).metadata

    assert one["tokenizer.chat_template"] == scalar("str", "{{ x }}")
    assert several["tokenizer.chat_template"] == scalar("str", "D")
    assert several["tokenizer.chat_template.rag"] == scalar("str", "R")
    assert several["tokenizer.chat_templates"] == array("str", ["rag"])
    assert keys(chat_template=[{"name": "A", "template": "x"}]).notes == (
        "a GGUF has no place for the chat template 'A'",
    )


def test_the_template_files_have_the_last_word_as_in_transformers(tmp_path: Path) -> None:
    settings = {"chat_template": "of the settings"}
    assert chat_template(tmp_path, settings) == "of the settings"
    assert chat_template(tmp_path, {"chat_template": {"default": "D", "rag": "R"}}) == [
        {"name": "default", "template": "D"},
        {"name": "rag", "template": "R"},
    ]
    (tmp_path / "chat_template.jinja").write_text("of the file")
    assert chat_template(tmp_path, settings) == "of the file"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("T")
    assert chat_template(tmp_path, settings) == [
        {"name": "default", "template": "of the file"},
        {"name": "tool_use", "template": "T"},
    ]


SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}


def pieces_document(**changes: Any) -> dict[str, Any]:
    """SentencePiece BPE as ``tokenizer.json``: 256 bytes, letters and three pieces."""
    vocab = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "ab", "▁ab", "bb"]
    model = {
        "type": "BPE",
        "unk_token": "<unk>",
        "byte_fallback": True,
        "vocab": {token: n for n, token in enumerate(vocab)},
        "merges": [["a", "b"], ["▁", "ab"], ["b", "b"]],
    }
    return {
        "added_tokens": [{"id": 0, "content": "<unk>", "special": True}, {"id": 1, "content": "</s>", "special": True}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, SPACES]},
        "pre_tokenizer": None,
        "post_processor": None,
        "model": {**model, **changes.pop("model", {})},
        **changes,
    }


def test_merges_of_pieces_become_scores_that_fall() -> None:
    made = keys(pieces_document(), vocab_size=265)

    assert value(made, "model") == scalar("str", "llama")
    tokens, scores, kinds = (made.metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores", "token_type"))
    words = pieces_document()["model"]["vocab"]
    assert tokens == array("str", [*words, "[PAD264]"])
    assert scores == array("f32", [0.0, -1000.0, *[0.0] * 256, -3.0, -3.0, -3.0, 0.0, -1.0, -2.0, -10000.0])
    assert kinds == array("i32", [2, 3, *[6] * 256, *[1] * 6, 5])
    assert value(made, "add_space_prefix") is None
    assert value(keys(pieces_document(normalizer=SPACES), vocab_size=265), "add_space_prefix") == scalar("bool", False)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": {"merges": [["a", "b"], ["b", "b"]]}}, "no merge makes '▁ab' of '▁' and 'ab', llama.cpp does"),
        (
            {"model": {"merges": [["a", "b"], ["b", "b"], ["▁", "ab"], ["b", "b"]]}},
            "the merges of 'bb' do not follow each other",
        ),
        ({"model": {"merges": [["a"]]}}, "a merge is not two pieces"),
        ({"model": {"ignore_merges": True}}, "ignore_merges = True"),
        ({"model": {"vocab": {"a": 0}}}, "no tokens for all bytes"),
        ({"normalizer": None}, "it does not make spaces pieces"),
        ({"normalizer": {"type": "Lowercase"}}, "it normalizes text first (Lowercase)"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "its pre-tokenizer is 'Whitespace'"),
    ],
)
def test_merges_that_scores_cannot_say_are_left_out(changes: dict[str, Any], why: str) -> None:
    made = keys(pieces_document(**changes), vocab_size=265)

    assert value(made, "model") == scalar("str", "no_vocab")
    assert why in made.notes[0]


@pytest.mark.parametrize(
    ("adds_bos", "model"), [(False, {"model": "gpt2", "pre": "sarvam-moe"}), (True, {"model": "gemma4"})]
)
def test_merges_that_scores_cannot_say_go_as_they_are_where_no_space_is_put_in_front(
    adds_bos: bool, model: dict[str, str]
) -> None:
    around = template("</s>", "A") if adds_bos else None
    changed = pieces_document(
        normalizer=SPACES, model={"merges": [["b", "b"], ["▁", "a"], ["a", "b"], ["▁", "ab"]]}, post_processor=around
    )
    made = keys(changed, vocab_size=265, settings={"bos_token": "</s>"})

    assert {key: value(made, key) for key in ("model", "pre", "scores")} == {
        "pre": None, "scores": None, **{key: scalar("str", name) for key, name in model.items()}
    }  # fmt: skip
    assert value(made, "merges") == array("str", ["b b", "▁ a", "a b", "▁ ab"])
    assert value(made, "add_bos_token") == scalar("bool", adds_bos)


def test_pieces_of_words_are_marked_where_a_word_begins() -> None:
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "lowercase": False}
    model = {"type": "WordPiece", "continuing_subword_prefix": "##", "vocab": {"a": 0, "##b": 1, "c": 2}}
    changed = {**document({"type": "BertPreTokenizer"}), "normalizer": normalizer, "model": model}
    around = {"type": "BertProcessing", "cls": ["<s>", 3], "sep": ["</s>", 4]}

    made = keys({**changed, "post_processor": around}, settings={"cls_token": "<s>", "sep_token": "</s>"})

    assert value(made, "model") == scalar("str", "bert")
    assert value(made, "tokens") == array("str", ["▁a", "b", "▁c", "<s>", "</s>", "[PAD5]"])
    assert [value(made, f"{key}_token_id") for key in ("bos", "seperator")] == [scalar("u32", 3), scalar("u32", 4)]
    assert [value(made, f"normalizer.{key}") for key in ("lowercase", "strip_accents")] == [scalar("bool", False)] * 2
    assert made.notes == ()


# SentencePiece.

MODEL = (FIXTURES / "tokenizers" / "sentencepiece-bpe.model").read_bytes()


def field(number: int, payload: bytes | int) -> bytes:
    """One field of a protocol buffer whose number and length fit into a byte each, or two."""

    def varint(value: int) -> bytes:
        return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)

    if isinstance(payload, int):
        return varint(number << 3) + varint(payload)
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def piece(text: str, score: float, kind: int = 1) -> bytes:
    return field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + field(3, kind))


def model(*pieces: bytes, kind: int = 2, fallback: int = 1, normalizer: bytes = b"") -> bytes:
    return b"".join(pieces) + field(2, field(3, kind) + field(35, fallback) + field(41, 1)) + field(3, normalizer)


PIECES = (piece("<unk>", 0.0, 2), piece("<s>", 0.0, 3), piece("▁a", -1.5), piece("<0x0A>", 0.0, 6))
PLAIN = field(4, 0)


@given(st.text(max_size=60), st.floats(width=32, allow_nan=False), st.sampled_from([None, 1, 2, 3, 4, 5, 6]))
def test_a_piece_with_a_field_more_is_the_same_piece(text: str, score: float, kind: int | None) -> None:
    """Pieces as the library writes them are read in a shorter way."""
    written = field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + (field(3, kind) if kind else b"")
    plain, longer = (checkpoint.parse_sentencepiece(field(1, data)).pieces for data in (written, written + field(9, 0)))

    assert plain == longer == ((text, score, kind or 1),)


def test_a_real_model() -> None:
    made = checkpoint.parse_sentencepiece(MODEL)

    assert (len(made.pieces), made.model_type, made.byte_fallback) == (384, checkpoint.BPE, True)
    assert made.special == {"unk": 3, "bos": 1, "eos": 2, "pad": 0}
    assert [(p.text, p.type) for p in made.pieces[:6]] == [
        ("<pad>", 3), ("<s>", 3), ("</s>", 3), ("<unk>", 2), ("<|endoftext|>", 3), ("<0x00>", 6),
    ]  # fmt: skip
    assert made.pieces[-1].score == -122.0


def test_pieces_scores_and_types() -> None:
    data = model(*PIECES, normalizer=PLAIN)
    settings = {"add_bos_token": False, "added_tokens_decoder": {"4": {"content": "▁▁x"}, "5": {"content": "<|y|>"}}}

    made = tokenizer_keys(TokenizerFiles(model=data, settings=settings), 7)

    assert value(made, "model") == scalar("str", "llama")
    assert value(made, "tokens") == array("str", ["<unk>", "<s>", "▁a", "<0x0A>", "  x", "<|y|>", "[PAD6]"])
    assert value(made, "scores") == array("f32", [0.0, 0.0, -1.5, 0.0, -1000.0, -1000.0, -10000.0])
    assert value(made, "token_type") == array("i32", [2, 3, 1, 6, 4, 3, 5])
    assert value(made, "add_bos_token") == scalar("bool", False)
    assert value(made, "add_space_prefix") is None
    assert [note.partition(" here")[0] for note in made.notes] == [
        "'<|y|>', not special in the tokenizer's file, is a control token"
    ]


def test_a_model_without_a_space_in_front_says_so() -> None:
    made = tokenizer_keys(TokenizerFiles(model=model(*PIECES, normalizer=PLAIN + field(3, 0))), 4)

    assert value(made, "add_space_prefix") == scalar("bool", False)


def test_a_unigram_model_goes_with_its_rules() -> None:
    data = model(*PIECES[:3], kind=1, fallback=0, normalizer=field(2, b"rules"))

    made = tokenizer_keys(TokenizerFiles(model=data), 3)

    assert value(made, "model") == scalar("str", "t5")
    assert value(made, "scores") == array("f32", [0.0, 0.0, -1.5])
    assert value(made, "precompiled_charsmap") == array("u8", list(b"rules"))
    assert [value(made, key) for key in ("remove_extra_whitespaces", "add_space_prefix")] == [scalar("bool", True)] * 2
    assert made.notes == ()


def test_special_ids_of_pieces_that_are_moved_by_one_are_those_behind_the_move() -> None:
    data = model(*PIECES[:2], piece("</s>", 0.0, 3), PIECES[2], kind=1, fallback=0)

    made = tokenizer_keys(TokenizerFiles(model=data, moved=True), 5)

    assert value(made, "tokens") == array("str", ["<s>", "<pad>", "</s>", "<unk>", "▁a"])
    names = ("bos", "padding", "eos", "unknown")
    assert [value(made, f"{name}_token_id") for name in names] == [scalar("u32", n) for n in range(4)]


def test_pieces_that_are_moved_by_one_are_left_out_where_one_has_no_row() -> None:
    data = model(*PIECES[:2], piece("</s>", 0.0, 3), PIECES[2], kind=1, fallback=0)

    made = tokenizer_keys(TokenizerFiles(model=data, moved=True), 4)

    assert "more pieces than the embedding has rows (4)" in made.notes[0]


def test_rules_that_llama_cpp_does_not_apply_are_noted() -> None:
    normalizer = field(1, b"nmt_nfkc") + field(2, b"rules") + PLAIN

    made = tokenizer_keys(TokenizerFiles(model=model(*PIECES, normalizer=normalizer)), 4)

    assert made.notes == ("the tokenizer normalizes text first (nmt_nfkc), which llama.cpp does not do",)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (model(*PIECES, kind=3), "of neither the BPE nor the unigram type"),
        (model(*PIECES, kind=1), "has pieces for bytes, which llama.cpp does not take in unigram models"),
        (model(*PIECES, fallback=0), "no pieces for bytes"),
        (model(*PIECES, piece("b", 0.0)), "more pieces than the embedding has rows (4)"),
        (b"", "malformed: it has no pieces"),
        (b"\x0a\x05ab", "malformed: field 1 is cut off"),
        (b"\x0f", "malformed: field 1 has wire type 7"),
        (b"\xff" * 12, "malformed: a number is cut off"),
        (field(1, field(3, 9)), "malformed: a piece has type 9"),
        (field(1, field(1, b"\xff")), "malformed: a text is not UTF-8"),
        (field(1, 1), "malformed: a number stands where a message is expected"),
    ],
)
def test_a_model_that_cannot_be_said_faithfully_is_left_out(data: bytes, why: str) -> None:
    made = tokenizer_keys(TokenizerFiles(model=data), 4)

    assert value(made, "model") == scalar("str", "no_vocab")
    assert why in made.notes[0]


@pytest.mark.parametrize("cut", [1, 5_000, 5_921])
def test_a_model_that_is_cut_off_is_malformed(cut: int) -> None:
    with pytest.raises(Malformed):
        checkpoint.parse_sentencepiece(MODEL[:-cut])


def test_the_fixtures_tokenizer_is_gpt_2s() -> None:
    found, _ = recognized(json.loads((FIXTURES / "hf" / "llama-tied-bf16" / "tokenizer.json").read_text()))

    assert found is not None
    assert found.name == "gpt-2"


def test_half_a_character_is_no_token() -> None:
    made = keys({**document(), "model": {**document()["model"], "vocab": {"\ud800": 0}}}, chat_template="a\ud800")

    assert value(made, "model") == scalar("str", "no_vocab")
    assert "is not text" in made.notes[0]


@pytest.mark.parametrize("key", ["\u00b2", "\u0663", "1" * 4301, "-1", ""])
def test_an_id_that_is_no_number_leaves_the_tokenizer_out(key: str) -> None:
    settings = {"added_tokens_decoder": {key: {"content": "x"}}}
    made = tokenizer_keys(TokenizerFiles(model=model(*PIECES, normalizer=PLAIN), settings=settings), 6)

    assert value(made, "model") == scalar("str", "no_vocab")
    assert "added_tokens_decoder has no token at" in made.notes[0]
    assert len(made.notes[0]) < 250


def test_no_more_pieces_are_read_than_the_embedding_has_rows() -> None:
    with pytest.raises(checkpoint.TooManyPieces):
        checkpoint.parse_sentencepiece(b"\x0a\x00" * 5 + b"\xff" * 100, limit=4)


def test_beside_a_sentencepiece_model_tokenizer_json_says_what_is_put_around_a_text() -> None:
    data = model(*PIECES, normalizer=PLAIN)
    settings = {"bos_token": "<s>", "add_bos_token": True}
    expected = {None: False, "<s>": True, "<other>": True}
    for token, adds in expected.items():
        processor = template(token, "A") if token else None
        files = TokenizerFiles(model=data, tokenizer={"post_processor": processor}, settings=settings)
        made = tokenizer_keys(files, 6)
        assert value(made, "add_bos_token") == scalar("bool", adds), token
        assert any("where tokenizer.json puts '<other>'" in note for note in made.notes) == (token == "<other>")
