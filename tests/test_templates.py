"""Chat templates: what their text says they do, and what they make of samples without reaching out of the sandbox."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import FIXTURES, Result

from ckconv.tokenizer import source
from ckconv.tokenizer.source import SAMPLES, abilities_of, render

Run = Callable[..., Result]

CHATML = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NO_SYSTEM = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{% set role = 'model' %}{% else %}"
    "{% set role = m['role'] %}{% endif %}<{{ role }}>{{ m['content'] }}{% endfor %}"
)
TOOLS = (
    "{# enable_thinking and 'developer' in a comment are nothing #}{%- if tools %}{{ tools | tojson }}{%- endif %}"
    "{%- for m in messages %}{%- if m.role == 'tool' %}T{%- elif m.role == 'system' %}S{%- endif %}{{ m.content }}"
    "{%- endfor %}{%- if enable_thinking is defined and enable_thinking %}<think>{%- endif %}"
)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (CHATML, "roles any; no tools"),
        (NO_SYSTEM, "roles system, assistant; no system message; no tools"),
        (TOOLS, "roles system, tool; tools; thinking (enable_thinking)"),
        ("{{ messages[0].content }}", "one form for all roles; no system message; no tools"),
    ],
)
def test_what_a_template_does_is_read_off_its_text(template: str, said: str) -> None:
    assert str(abilities_of(template)) == said


MARKED = (
    "{% for message in messages %}{% if message.role == 'assistant' %}{% generation %}{{ message.content }}"
    "{% endgeneration %}{% endif %}{{ message | tojson(False, None, (',', ':'), sort_keys=True) }}{% endfor %}"
)


def test_samples_are_rendered_as_transformers_renders_them() -> None:
    pytest.importorskip("jinja2")
    chat = pytest.importorskip("transformers.utils.chat_template_utils")
    for template in (CHATML, TOOLS, MARKED):
        for one in render(template, {"eos_token": "</s>"}):
            given = dict(SAMPLES[one.sample])
            messages, tools = given.pop("messages"), given.pop("tools", None)
            texts, _ = chat.render_jinja_template(
                [messages], tools=tools, chat_template=template, add_generation_prompt=True, eos_token="</s>", **given
            )
            assert (one.text, one.error) == (texts[0], "")


@pytest.mark.parametrize(
    ("template", "error"),
    [
        (NO_SYSTEM, "System role not supported"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "seconds"),
        ("{% set a = 'x' * 9999999999 %}", "memory"),
        ("{{ 1 // 0 }}", "zero"),
        ("{% if %}", "Expected an expression"),
    ],
)
def test_a_template_that_fails_says_why(template: str, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jinja2")
    monkeypatch.setattr(source, "_SECONDS", 2)
    monkeypatch.setattr(source, "SAMPLES", {"system": SAMPLES["system and user"]})
    (one,) = render(template, {"bos_token": "<s>"})
    assert error in one.error
    assert one.text == ""


def test_modules_of_the_working_directory_are_none_of_the_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory may be the model's."""
    pytest.importorskip("jinja2")
    for name in ("jinja2", "datetime", "resource"):
        (tmp_path / f"{name}.py").write_text("open('executed', 'w').close()")
    monkeypatch.chdir(tmp_path)
    assert [one.error for one in render(CHATML, {"eos_token": "</s>"})] == [""] * len(SAMPLES)
    assert not (tmp_path / "executed").exists()


def test_limits_of_the_system_are_kept() -> None:
    """They cannot be raised, and a sound template is none that takes too much."""
    pytest.importorskip("jinja2")
    pytest.importorskip("resource")
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (900 << 20, 900 << 20));"
        "from ckconv.tokenizer.source import render, SAMPLES;"
        "print([one.error for one in render('{{ messages[0].content }}', {})] == [''] * len(SAMPLES))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_a_long_text_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jinja2")
    monkeypatch.setattr(source, "SAMPLES", {"user": SAMPLES["user"]})
    (one,) = render("{% for a in range(50000) %}x{% endfor %}", {})
    assert one.text.endswith("x... (cut)")
    assert len(one.text) < 20_100


def test_inspect_says_what_a_template_does_and_shows_it(ckconv: Run, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    model, text = tmp_path / "m.gguf", tmp_path / "t.jinja"
    text.write_text(CHATML)
    source = FIXTURES / "gguf/llama-tied-bf16.auto.gguf"
    assert ckconv("edit", source, model, "--set-meta", f"chat_template=@{text}").code == 0
    assert ckconv("inspect", model, "--json").json["overview"]["abilities"] == ["roles any; no tools"]
    lines = ckconv("inspect", model, "--template-test").out.splitlines()
    assert lines[:3] == [
        "tokenizer.chat_template: roles any; no tools",
        "--- user",
        "<|user|>How warm is it in Oslo?</s><|assistant|>",
    ]
    (document,) = ckconv("inspect", model, "--template-test", "--json").json["templates"]
    assert [sample["sample"] for sample in document["samples"]] == [*SAMPLES]
    assert json.loads(json.dumps(document))["tools"] is False
    refused = ckconv("inspect", source, "--template-test")
    assert (refused.code, "has no chat template" in refused.err) == (2, True)
