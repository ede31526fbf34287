"""Families, by their cases and adapters: every direction is right, or refused with the sentence that the case says.

A checkpoint is made from a seed; what transformers and llama.cpp's converter make of it is recorded
(``scripts/record_families.py``, which says how a case is written). What is neither right nor expected fails.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import consumers
import numpy as np
import pytest
from conftest import FIXTURES
from family_adapters import BACK, DIRECTIONS as USED, AdapterRun
from family_cases import CASES, DIRECTIONS, NO_SOURCE, AdapterCase, Case, adapters, cases, families, stored_as
from family_directions import Run, otherwise_than_the_class
from products import shown

#: Directions that read what one of the others reads, and write what another one writes.
OTHERS = ("hf->hf", "gguf->mlx")


def kinds_of(case: Case) -> set[tuple[str, ...]]:
    """What a case shows in those directions: what is expected, and with which keys, tensors and options."""
    expected = {(case.family, direction, case.expected(direction)) for direction in OTHERS}
    return expected | {(case.family, name) for name in (*case.overrides, *case.stored, *case.options)}


def values_of(case: Case) -> set[tuple[str, ...]]:
    """Each value that a case gives a key or says of itself, and what is expected of each direction."""
    said = [case.overrides, case.options, case.converter, case.document, case.tolerance, case.stored, case.renamed]
    values = {
        (case.family, str(number), key, str(value)) for number, of in enumerate(said) for key, value in of.items()
    }
    whole = (case.dtype, case.without, case.besides, case.ranks, case.columns, case.alike)
    values |= {(case.family, str(number), str(value)) for number, value in enumerate(whole)}
    return values | {(case.family, direction, case.expected(direction)) for direction in DIRECTIONS}


def every() -> Iterator[Any]:
    """Every case and the directions that it is converted in; what others show of the last two stands apart."""
    rows = shown(cases(), values_of)
    yield from (pytest.param(*row.values, DIRECTIONS, id=row.id, marks=row.marks) for row in rows if row.marks)
    for row in shown([row.values[0] for row in rows if not row.marks], kinds_of):
        (case,) = row.values
        directions = [one for one in DIRECTIONS if one not in OTHERS] if row.marks else DIRECTIONS
        yield pytest.param(case, directions, id=str(case))
        if row.marks:
            yield pytest.param(case, OTHERS, id=f"{case}-others", marks=row.marks)


def kinds_of_adapter(adapter: AdapterCase) -> set[object]:
    """What an adapter adds to, how its family stores that, and what is expected."""
    expected = {(direction, adapter.expected(direction)) for direction in (*USED, *BACK)}
    return {str(adapter.said), *stored_as(adapter.case.family), *expected}


LORAS = shown(adapters(), kinds_of_adapter)


def run(case: Case, place: Path, *, verify: bool = True) -> Run:
    assert case.recorded, f"scripts/record_families.py {case.family} records the case as it stands now"
    proven = case.recorded["proven"]

    def proof(direction: str, folder: Path) -> str:
        document = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
        return "" if proven.get(direction) == document else "config.json is not the one that transformers has loaded"

    return Run(case, place, proof, case.recorded, verify)


@pytest.fixture
def engines(request: pytest.FixtureRequest) -> dict[str, consumers.Consumer]:
    """Those that are installed."""
    there = {"llama_cpp": bool(consumers.LIBRARY), "mlx_lm": importlib.util.find_spec("mlx_lm") is not None}
    return {name: request.getfixturevalue(name) for name, found in there.items() if found}


@pytest.mark.parametrize(("engine", "model"), [("llama_cpp", "olmo2.f32.gguf"), ("mlx_lm", "olmo2")])
def test_the_engine_is_asked(engine: str, model: str, engines: dict[str, consumers.Consumer]) -> None:
    """Skipped where it is missing, so that a gate without skipped tests has it; and it answers."""
    if engine not in engines:
        pytest.skip(f"{engine} is not installed, or LLAMA_CPP_LIBRARY names no folder of its libraries")

    logits = engines[engine].logits(FIXTURES / "zoo" / model, (1, 2, 3))

    assert (len(logits), logits.ndim, bool(np.isfinite(logits).all())) == (3, 2, True)


@pytest.mark.parametrize(("case", "directions"), [*every()])
def test_every_direction_is_right_or_refused_as_the_case_says(
    case: Case, directions: Sequence[str], engines: dict[str, consumers.Consumer], tmp_path: Path
) -> None:
    running = run(case, tmp_path)
    outcomes = running.outcomes(engines, directions)

    assert running.unexpected(outcomes) == {}
    assert quantized_otherwise(running, outcomes, engines) == []


def quantized_otherwise(
    running: Run, outcomes: Mapping[str, str], engines: Mapping[str, consumers.Consumer]
) -> list[tuple[str, str, str]]:
    """Modules of mlx-lm's class that ``--quantize`` would quantize otherwise than the class asks for."""
    if "mlx_lm" not in engines or running.convert("hf->mlx"):
        return []
    try:
        return otherwise_than_the_class(running.result("hf->mlx"))
    except ValueError:  # of another program than mlx-lm
        assert "mlx_lm hf->mlx" not in outcomes or not outcomes["mlx_lm hf->mlx"].startswith("right")
        return []


@pytest.mark.parametrize("adapter", LORAS)
def test_an_adapter_is_converted_and_merged_right_or_refused_as_is_said(
    adapter: AdapterCase, engines: dict[str, consumers.Consumer], tmp_path: Path
) -> None:
    if all(adapter.expected(direction) == NO_SOURCE for direction in USED):
        return
    assert adapter.recorded, f"scripts/record_families.py {adapter.case.family} --adapters records it as it stands now"
    base = run(adapter.case, tmp_path / "base", verify=False)  # the test above has it compared
    running = AdapterRun(adapter, base, tmp_path / "adapter", adapter.recorded)

    assert running.unexpected(running.outcomes(engines)) == {}


@pytest.mark.parametrize("family", families())
def test_a_family_has_two_configurations_and_two_types_at_least(family: str) -> None:
    found = list(cases(family))

    assert len(found) >= 2
    assert len({case.dtype for case in found}) >= 2


def test_every_case_belongs_to_a_shipped_family() -> None:
    shipped = {path.stem for path in (Path(CASES).parents[1] / "ckconv" / "families").glob("*.toml")}
    assert set(families()) <= shipped
