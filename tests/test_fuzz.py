"""A short run of the fuzzer, and that it would notice something."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "fuzz.py"


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz"] = module
    spec.loader.exec_module(module)
    return module


def test_two_thousand_mutations(fuzz: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    found = fuzz.run(20_261, range(2000))
    assert found.failures == [], capsys.readouterr().err
    assert found.inputs == 2000
    assert len(found.codes) > 30, "the mutations reach the readers' rules"
    assert found.codes["sound"] < 1000


def test_same_seed_same_inputs(fuzz: ModuleType) -> None:
    import random

    for name, mutate in fuzz.seeds().items():
        assert mutate(random.Random(7)) == mutate(random.Random(7)), name


@pytest.mark.parametrize("what", ["crash", "hang", "control character"])
def test_failure_is_noticed_and_its_input_kept(
    what: str, fuzz: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ckconv.errors import InputError

    def fail(folder: Path, files: dict[str, bytes]) -> None:
        if what == "crash":
            raise IndexError(3)
        if what == "hang":
            time.sleep(5)
        raise InputError("a.b", "\x1b[31m", path=folder)

    monkeypatch.setattr(fuzz, "_describe", fail)
    monkeypatch.setattr(fuzz, "SLOWEST", 0.05)
    found = fuzz.run(1, range(2), keep=tmp_path)
    assert len(found.failures) == 2
    assert "seed 1, input 0" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"1-0", "1-1"}
    assert (tmp_path / "1-0" / "m.gguf").is_file()


def test_a_document_with_a_value_of_another_type_is_noticed(fuzz: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what only planning reads, too: an end of generation that is an object was a crash once."""
    import random

    from ckconv.tokenizer import gguf_words as gguf_special

    made = fuzz.retyped(b'{"a": {"b": [1, 2]}, "c": "d"}', random.Random(3))
    assert made != b'{"a": {"b": [1, 2]}, "c": "d"}'
    kinds = fuzz.seeds()
    monkeypatch.setattr(fuzz, "seeds", lambda: {"documents": kinds["documents"]})
    assert fuzz.run(5, range(60)).failures == []

    def crash(*_: object) -> None:
        raise TypeError("unhashable type: 'dict'")

    monkeypatch.setattr(gguf_special, "_other_ends", crash)
    assert fuzz.run(5, range(60)).failures
