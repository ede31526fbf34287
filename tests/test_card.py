"""Model cards: what they say in a README.md and in the keys of a GGUF, and how the one becomes the other."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import pytest
import yaml
from conftest import FIXTURES

from ckconv.core.metadata import Card, card_of_keys, card_of_text, keys_of_card, text_of_card

QWEN2 = FIXTURES / "hf" / "qwen2-tied-bf16"

TEXT = """---
license: other
license_name: tiny-license
license_link: LICENSE
language:
- en
- no
base_model: Some-Org/tiny-base-1b
datasets: [one/set-of-texts, alone]
tags:
- chat
pipeline_tag: text-generation
---
# A model
"""
CARD = Card(
    "other",
    "tiny-license",
    "LICENSE",
    ("Some-Org/tiny-base-1b",),
    ("en", "no"),
    ("chat",),
    ("one/set-of-texts", "alone"),
)


def test_the_front_matter_of_a_readme() -> None:
    assert card_of_text(TEXT) == CARD
    assert card_of_text(TEXT.replace("\n", "\r\n")) == CARD


@pytest.mark.parametrize(
    "text",
    ["", "# no front matter\n", "---\nlicense: mit\n", "---\n- a list\n---\n", "---\n{: x\n---\n",
     f"---\n{'[' * 5000}\n---\n", "---\nlicense: [1, 2]\ntags: 7\nlanguage: {a: b}\n---\n",
     "---\n!!python/object:os.system x\n---\n"],
)  # fmt: skip
def test_what_is_no_front_matter_says_nothing(text: str) -> None:
    assert card_of_text(text) == Card()


def test_keys_are_those_of_llama_cpps_converter(tmp_path: Path) -> None:
    """The metadata that gguf-py's heuristic makes of the same card."""
    (tmp_path / "README.md").write_text(TEXT)
    card = gguf.Metadata.load_model_card(tmp_path)
    theirs = gguf.Metadata.apply_metadata_heuristic(gguf.Metadata(), card, None, None, 0)

    keys = keys_of_card(CARD)
    assert (theirs.license, theirs.license_name, theirs.license_link) == tuple(
        keys[f"general.{key}"] for key in ("license", "license.name", "license.link")
    )
    assert theirs.base_models == [
        {key: keys[f"general.base_model.0.{key}"] for key in ("name", "organization", "repo_url")}
    ]
    assert keys["general.languages"] == theirs.languages == ["en", "no"], "YAML's truth value is a language"
    assert keys["general.dataset.count"] == 2
    assert card_of_keys(keys) == CARD._replace(datasets=("one/set-of-texts", "Alone"))


def test_a_card_goes_into_a_gguf_and_back(ckconv, tmp_path: Path) -> None:
    source = shutil.copytree(QWEN2, tmp_path / "model")
    (source / "README.md").write_text(TEXT)
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 0

    fields = gguf.GGUFReader(tmp_path / "m.gguf").fields
    assert fields["general.license.name"].contents() == "tiny-license"
    assert fields["general.languages"].contents() == ["en", "no"]
    assert fields["general.base_model.0.repo_url"].contents() == "https://huggingface.co/Some-Org/tiny-base-1b"

    for to, library in (("safetensors", "transformers"), ("mlx", "mlx")):
        back = tmp_path / to
        assert ckconv("convert", tmp_path / "m.gguf", f"{back}/", "--to", to).code == 0
        said = yaml.safe_load((back / "README.md").read_text().split("---")[1])
        assert (said["license"], said["language"], said["library_name"]) == ("other", ["en", "no"], library)
        assert ckconv("verify", back, tmp_path / "m.gguf").code == 0


@pytest.mark.parametrize(("name", "title"), [("ırmak", "Irmak"), ("\ufb01ne", "Fine"), ("---", None)])
def test_titles_that_letters_change_in_are_proved(ckconv, tmp_path: Path, name: str, title: str | None) -> None:
    shutil.copytree(QWEN2, tmp_path / "model")
    card = f"---\nbase_model: an-org/{name}\n---\n"
    (tmp_path / "model" / "README.md").write_text(card, encoding="utf-8")

    assert ckconv("convert", tmp_path / "model", tmp_path / "m.gguf").code == 0

    found = gguf.GGUFReader(tmp_path / "m.gguf").fields.get("general.base_model.0.name")
    assert (found.contents() if found else None) == title
    assert ckconv("verify", tmp_path / "m.gguf", tmp_path / "model").code == 0


def test_a_gguf_that_says_nothing_makes_no_card(ckconv, tmp_path: Path) -> None:
    source, silent = FIXTURES / "gguf" / "qwen2-tied-bf16.auto.gguf", tmp_path / "silent.gguf"
    assert ckconv("edit", source, silent, "--drop-meta", "general.name").code == 0
    assert ckconv("convert", silent, f"{tmp_path}/m/", "--to", "safetensors").code == 0
    assert not (tmp_path / "m" / "README.md").exists()
    assert text_of_card(Card(), {}, "transformers") == ""
