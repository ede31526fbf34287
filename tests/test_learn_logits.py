"""``ckconv learn --check all``: logits of the pair and of a model of other sizes, by transformers and llama.cpp."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from test_learn import hide, pairs_of

from ckconv.errors import CkconvError
from ckconv.learning import learn

HERE = Path(__file__).parent


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch, llama_cpp: object) -> None:
    """llama-cpp-python, or what stands for it here."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    paths = [str(HERE / "stand_ins"), str(HERE), str(HERE.parent)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.syspath_prepend(paths[0])


def pair_of(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    found = next(pairs_of(name, folder))
    hide(name, monkeypatch)
    return found


@pytest.mark.usefixtures("engines")
@pytest.mark.needs("learn")
def test_a_file_whose_logits_agree_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ckconv) -> None:
    pair = pair_of("gemma", tmp_path, monkeypatch)

    made = ckconv("learn", *pair, "-o", tmp_path / "new.toml", "--check", "all", "--json")

    assert made.code in (0, 7), made.err
    found = made.json["logits"]
    assert found["pair"] < 5e-2  # of BF16
    assert found["other"] < 2e-3
    assert found["changed"]["hidden_size"] == [32, 64]
    assert "unmeasured" not in (tmp_path / "new.toml").read_text()


@pytest.mark.usefixtures("engines")
@pytest.mark.needs("learn")
def test_a_pair_that_the_engines_compute_otherwise_is_not_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ckconv
) -> None:
    """The activation is in no metadata: both directions are right, and llama.cpp computes another one."""
    source, model = pair_of("olmo2", tmp_path, monkeypatch)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "hidden_act": "relu"}))
    command = ("learn", source, model, "-o", tmp_path / "new.toml")

    wrong = ckconv(*command, "--check", "all")

    assert wrong.code == 3
    assert "logits of llama.cpp and transformers are" in wrong.err
    assert not (tmp_path / "new.toml").exists()
    assert ckconv(*command, "--check", "pair").code == 7


@pytest.mark.usefixtures("engines")
@pytest.mark.needs("learn")
def test_what_a_library_says_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ckconv) -> None:
    source, model = pair_of("olmo2", tmp_path, monkeypatch)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "model_type": "mylmo"}))

    wrong = ckconv("learn", source, model, "-o", tmp_path / "new.toml", "--check", "all")

    assert wrong.code == 3
    assert "transformers does not compute it: ValueError: " in wrong.err
    assert "mylmo" in wrong.err


def test_libraries_that_are_not_there_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ckconv) -> None:
    pair = pair_of("olmo2", tmp_path, monkeypatch)
    monkeypatch.setattr(learn, "find_spec", lambda module: None)

    wrong = ckconv("learn", *pair, "-o", tmp_path / "new.toml", "--check", "all")

    assert wrong.code == 4
    assert "hint: pip install torch transformers llama-cpp-python" in wrong.err


def test_a_pair_without_a_matrix_of_floats_is_refused_before_a_library_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file({"norm.weight": np.ones(4, np.float32)}, tmp_path / "m.safetensors")
    monkeypatch.setattr(learn, "_ask", None)

    with pytest.raises(CkconvError, match="no matrix of F32, BF16, F16"):
        learn._logit_distance(tmp_path / "m.safetensors", tmp_path / "m.safetensors", tmp_path, [1])


def test_a_library_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn, "_LONGEST", 0.01)

    with pytest.raises(CkconvError, match=r"llama.cpp does not compute it: it did not end within 0\.01 seconds"):
        learn._ask("llama_cpp", {"model": str(tmp_path)})
