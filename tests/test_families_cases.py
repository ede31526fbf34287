"""Families, by their cases: every direction is right, or refused with the sentence that the case says.

A checkpoint is made from a seed; what transformers and llama.cpp's converter make of it is recorded
(``scripts/record_families.py``, which says how a case is written). What is neither right nor expected fails.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import consumers
import pytest
from family_cases import CASES, DIRECTIONS, Case, agrees, cases, families
from family_directions import Run

EVERY = [pytest.param(case, id=str(case)) for case in cases()]


def run(case: Case, place: Path) -> Run:
    assert case.recorded, f"scripts/record_families.py {case.family} records the case as it stands now"
    proven = case.recorded["proven"]

    def proof(direction: str, folder: Path) -> str:
        document = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
        return "" if proven.get(direction) == document else "config.json is not the one that transformers has loaded"

    return Run(case, place, proof, case.recorded)


@pytest.fixture(scope="module")
def llama_cpp() -> Iterator[consumers.Consumer]:
    if not consumers.LIBRARY:
        pytest.skip("LLAMA_CPP_LIBRARY names no folder of llama.cpp's libraries")
    with consumers.llama_cpp() as program:
        yield program


@pytest.fixture(scope="module")
def mlx_lm() -> Iterator[consumers.Consumer]:
    pytest.importorskip("mlx_lm")
    with consumers.mlx_lm() as program:
        yield program


@pytest.mark.parametrize("case", EVERY)
def test_every_direction_writes_what_was_recorded_or_is_refused_as_the_case_says(case: Case, tmp_path: Path) -> None:
    running = run(case, tmp_path)
    outcomes = {direction: running.outcome(direction) for direction in DIRECTIONS}

    wrong = {name: said for name, said in outcomes.items() if not agrees(said, case.expected(name))}
    assert wrong == {}


@pytest.mark.parametrize("case", [case for case in EVERY if case.values[0].expected("hf->gguf") == "right"])
def test_llama_cpp_computes_what_transformers_does(case: Case, llama_cpp: consumers.Consumer, tmp_path: Path) -> None:
    running = run(case, tmp_path)

    assert running.convert("hf->gguf") == ""
    assert running.computes("llama_cpp", llama_cpp, "hf->gguf").startswith("right")


@pytest.mark.parametrize("direction", ["hf->mlx", "gguf->mlx"])
@pytest.mark.parametrize("case", EVERY)
def test_mlx_lm_computes_what_transformers_does(
    case: Case, direction: str, mlx_lm: consumers.Consumer, tmp_path: Path
) -> None:
    running = run(case, tmp_path)
    if case.expected(direction) != "right":
        assert agrees(running.convert(direction), case.expected(direction))
        return

    assert running.convert(direction) == ""
    assert running.computes("mlx_lm", mlx_lm, direction).startswith("right")


@pytest.mark.parametrize("family", families())
def test_a_family_has_two_configurations_and_two_types_at_least(family: str) -> None:
    found = list(cases(family))

    assert len(found) >= 2
    assert len({case.dtype for case in found}) >= 2


def test_every_case_belongs_to_a_shipped_family() -> None:
    shipped = {path.stem for path in (Path(CASES).parents[1] / "ckconv" / "families").glob("*.toml")}
    assert set(families()) <= shipped
