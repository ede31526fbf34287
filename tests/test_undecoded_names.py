"""Names of files that are not UTF-8: records read them again, and no JSON has half of a surrogate pair."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import FIXTURES, Result
from hypothesis import example, given, strategies as st

from ckconv.errors import escaped, is_text, unescaped

pytestmark = pytest.mark.needs("posix")

Ckconv = Callable[..., Result]

LLAMA = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
#: The second one is text that looks like what becomes of a byte.
ODD = os.fsdecode(b"bad\xff\\xfe.gguf")


def parsed(text: str) -> Any:
    """What a parser reads that takes no halves of surrogate pairs."""
    document = json.loads(text)
    json.dumps(document, ensure_ascii=False).encode()
    return document


@pytest.fixture
def source(tmp_path: Path) -> Path:
    try:
        shutil.copy(LLAMA, tmp_path / ODD)
    except OSError:
        pytest.skip("this file system has no such names")
    return tmp_path / ODD


@given(st.text(st.characters(codec=None) | st.sampled_from("\\xuf89d5c\udcff\ud83d")))
@example("\udcff")
@example("\\xff\\x5c\\\\ud800")
def test_what_was_escaped_comes_back(text: str) -> None:
    assert is_text(escaped(text))
    assert unescaped(escaped(text)) == text


@pytest.mark.parametrize("text", ["model.gguf", "Modèle 🦙.gguf", "C:\\models\\xlnet\\under", "a\\b"])
def test_other_names_are_as_they_are(text: str) -> None:
    assert escaped(text) == text


@pytest.mark.parametrize("odd", ["source", "output"])
def test_a_record_names_what_is_no_text(odd: str, source: Path, tmp_path: Path, ckconv: Ckconv) -> None:
    """It was written, and refused when it was read: half of a surrogate pair."""
    given_source, out = (source, tmp_path / "out.gguf") if odd == "source" else (LLAMA, tmp_path / f"out-{ODD}")

    assert ckconv("convert", given_source, out, "--record", "--attest", tmp_path / "a.json").code == 0

    record = parsed(Path(f"{out}.ckconv.json").read_text())
    named = record[f"{odd}s"][0]["name"]
    assert (named.removeprefix("out-"), record["escaped"]) == ("bad\\xff\\x5cxfe.gguf", True)
    parsed((tmp_path / "a.json").read_text())
    for more in ((), ("--rebuild",)):
        done = ckconv("verify", out, given_source, *more)
        assert done.code == 0, done.err
        assert "every file is as" in done.out
    (tmp_path / "other").write_bytes(b"-")
    shutil.copy(tmp_path / "other", out)
    assert ckconv("verify", out, given_source).code == 5


def test_a_record_of_text_is_as_it_was(tmp_path: Path, ckconv: Ckconv) -> None:
    out = tmp_path / "a\\xff.gguf"
    assert ckconv("convert", LLAMA, out, "--record").code == 0
    record = json.loads(Path(f"{out}.ckconv.json").read_text())
    assert (record["outputs"][0]["name"], "escaped" in record) == ("a\\xff.gguf", False)


@pytest.mark.parametrize("to", ["gguf", "bump"])
def test_a_batch_goes_on(to: str, source: Path, tmp_path: Path, ckconv: Ckconv) -> None:
    runs = [ckconv("batch", source, "--to", to, "--into", tmp_path / "o") for _ in range(2)]

    assert [(done.code, parsed(done.out)["status"]) for done in runs] == [(0, "converted"), (0, "there")]


def test_json_has_no_half_of_a_pair(source: Path, tmp_path: Path, ckconv: Ckconv) -> None:
    for words in (
        ("convert", source, tmp_path / "o.gguf"),
        ("convert", source, tmp_path / f"o-{ODD}", "--dry-run"),
        ("inspect", source),
        ("verify", source),
        ("diff", source, LLAMA),
    ):
        done = ckconv(*words, "--json")
        assert (done.code, done.err) == (0, "")
        assert "bad\\\\xff\\\\x5cxfe.gguf" in done.out
        parsed(done.out)
    missing = ckconv("inspect", tmp_path / f"no-{ODD}", "--json")
    assert parsed(missing.err)["error"]["path"].endswith("no-bad\\xff\\x5cxfe.gguf")


def test_lists_name_the_bytes_of_a_name_whatever_the_locale_says(tmp_path: Path) -> None:
    """Where names are ASCII, those beyond it are undecoded bytes: one that is there was listed and missing."""
    locale = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    root = Path(__file__).parent.parent

    def run(*arguments: str | Path) -> str:
        command = [sys.executable, "-m", "ckconv", *map(str, arguments)]
        return subprocess.run(command, cwd=root, env=locale, check=True, capture_output=True, text=True).stdout

    out = tmp_path / "größe.gguf"
    run("convert", LLAMA, out, "--checksums", "--record", "-q")
    assert "sha256 lists it" in run("verify", out)
    assert out.name in (tmp_path / f"{out.name}.sha256").read_text(encoding="utf-8")
