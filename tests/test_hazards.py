"""Code that travels with a model, and characters that hide: said by inspect and convert, refused by --strict."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import FIXTURES, Result
from test_json_schemas import check

from ckconv.formats.hazards import MOST, reaches

pytestmark = pytest.mark.attack

Ckconv = Callable[..., Result]

QWEN2 = FIXTURES / "hf" / "qwen2-tied-bf16"
GGUF = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
EVIL = "{{ cycler.__init__.__globals__.os.popen('id').read() }}"

#: Template -> what is said of it.
TEMPLATES = {
    EVIL: ["__init__", "__globals__", ".os", "popen"],
    "{{ ''['__class__'] }}": ["__class__"],
    "{{ '}}' ~ x.__class__ }}": ["__class__"],
    "{# {{ #}{{ x.__class__ }}{# }} #}": ["__class__"],
    r"{{ x['\x5f\x5fclass\x5f\x5f'] }}": [r"\x5f"],
    "{{ x | attr('_' ~ '_class_' ~ '_') }}": ["| attr"],
    "{%- from 'x' import y %}": ["{%- from"],
    "{%+ include 'x' %}": ["{%+ include"],
    "{{ x['os'].system('id') }}": ["['os']"],
    "{% for message in messages %}import os; from x import y; message['role'] == 'system'{% endfor %}": [],
    "{{ raise_exception('imports are not open to evaluation') }}": [],
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') }}": [],
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_what_a_template_reaches_for(template: str) -> None:
    assert reaches(template) == TEMPLATES[template]


def planted(tmp_path: Path, kind: str) -> Path:
    """A checkpoint with one hazard of this kind."""
    place = tmp_path / "model"
    shutil.copytree(QWEN2, place)
    settings = json.loads((place / "tokenizer_config.json").read_text())
    config = json.loads((place / "config.json").read_text())
    if kind == "template":
        (place / "chat_template.jinja").write_text(EVIL)
    elif kind == "template of several":
        (place / "tokenizer_config.json").write_text(
            json.dumps({**settings, "chat_template": [{"name": "tool_use", "template": EVIL}]})
        )
    elif kind == "size":
        (place / "chat_template.jinja").write_text("x" * (MOST + 1))
    elif kind == "hidden in a template":
        (place / "chat_template.jinja").write_text("{{ messages }}\u202e")
    elif kind == "hidden in the license":
        (place / "README.md").write_text("---\nlicense: mit\u200b\n---\n")
    elif kind == "auto_map":
        (place / "config.json").write_text(
            json.dumps(
                {
                    **config,
                    "auto_map": {
                        "AutoModelForCausalLM": "modeling_evil.Qwen2ForCausalLM",
                        "AutoTokenizer": ["a.B", None],
                        "AutoProcessor": "Xenova/gpt-4o",  # names a repository, and no class
                    },
                }
            )
        )
    elif kind == "code":
        (place / "modeling_evil.py").write_text("")
    elif kind == "pickle":
        (place / "pytorch_model.bin").write_bytes(b"x")
    return place


KINDS = {
    "template": ("template", "chat_template", "reaches for __init__, __globals__, .os, popen"),
    "template of several": ("template", "chat_template tool_use", "reaches for __init__, __globals__, .os, popen"),
    "size": ("template", "chat_template", "has 100,001 characters"),
    "hidden in a template": ("hidden", "chat_template", "has hidden characters: U+202E"),
    "hidden in the license": ("hidden", "license of README.md", "has hidden characters: U+200B"),
    "auto_map": ("code", "config.json", "has transformers run a.py, modeling_evil.py (auto_map)"),
    "code": ("code", "modeling_evil.py", "is code"),
    "pickle": ("pickle", "pytorch_model.bin", "is a pickle, beside weights that are none"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_that_carries_some(kind: str, tmp_path: Path, ckconv: Ckconv) -> None:
    place = planted(tmp_path, kind)
    said = " ".join(KINDS[kind][1:])
    document = ckconv("inspect", place, "--json").json
    check(ckconv, "inspect", document)
    assert document["hazards"] == [dict(zip(("kind", "where", "text"), KINDS[kind], strict=True))]
    assert "\t".join(("hazard", *KINDS[kind])) in ckconv("inspect", place).out.splitlines()
    assert ckconv("inspect", place, "--html", tmp_path / "page.html").code == 0
    assert said in (tmp_path / "page.html").read_text()
    done = ckconv("convert", place, f"{tmp_path}/out/", "--to", "mlx", "--json")
    assert [note for note in done.json["notes"] if said in note] != []
    for command in (("inspect", place), ("verify", place), ("convert", place, f"{tmp_path}/none/", "--to", "mlx")):
        refused = ckconv(*command, "--strict", "--json")
        error = json.loads(refused.err)["error"]
        assert (refused.code, error["code"], error["details"]) == (4, "model.hazard", [said])
    assert not (tmp_path / "none").exists()


def test_a_gguf_that_carries_some(tmp_path: Path, ckconv: Ckconv) -> None:
    flags = ("--set-meta", f"tokenizer.chat_template={EVIL}", "--set-meta", "general.license=mit\u2066")
    assert ckconv("edit", GGUF, tmp_path / "m.gguf", *flags).code == 0
    found = ckconv("inspect", tmp_path / "m.gguf", "--json").json["hazards"]
    assert [(one["kind"], one["where"]) for one in found] == [
        ("template", "tokenizer.chat_template"),
        ("hidden", "general.license"),
    ]
    done = ckconv("convert", tmp_path / "m.gguf", tmp_path / "m.bump", "--bump-version", "5")
    assert (done.code, done.out.count("the source carries what others may run, or what hides: ")) == (0, 1)
    assert ckconv("convert", tmp_path / "m.gguf", tmp_path / "n.bump", "--strict").code == 4
    assert ckconv("inspect", tmp_path / "m.bump", "--strict").code == 4


@pytest.mark.parametrize("path", [GGUF, QWEN2], ids=["gguf", "hf"])
def test_a_model_that_carries_none(path: Path, tmp_path: Path, ckconv: Ckconv) -> None:
    assert ckconv("inspect", path, "--json").json["hazards"] == []
    assert ckconv("convert", path, tmp_path / "m.gguf", "--strict").code == 0
    assert ckconv("verify", tmp_path / "m.gguf", path, "--strict").code == 0
