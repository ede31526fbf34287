"""What a report says where an engine computes something else than the model, whatever a file says."""

from __future__ import annotations

from pathlib import Path

import pytest
from family_cases import cases, checkpoint

import ckconv

LOW_RANK = (
    "llama.cpp normalizes vectors of low rank with the epsilon of the other norms, and the model with 1e-6"
    " (rms_norm_eps)"
)


def notes(family: str, target: str, place: Path, **said: object) -> list[str]:
    """Of a conversion of the family's first case that goes there, its configuration changed."""
    case = next(case.recorded for case in cases(family) if case.expected(f"hf->{target}") == "right")
    source = checkpoint({**case, "config": {**case["config"], **said}}, place / "hf")
    return list(ckconv.convert(source, place / target, to=target).plan.notes)


@pytest.mark.parametrize("family", ["minicpm3", "deepseek_v2", "deepseek_v3"])
def test_llama_cpp_has_one_epsilon_for_all_norms(family: str, tmp_path: Path) -> None:
    assert LOW_RANK in notes(family, "gguf", tmp_path / "other", rms_norm_eps=1e-5)
    assert LOW_RANK not in notes(family, "gguf", tmp_path / "same", rms_norm_eps=1e-6)


@pytest.mark.parametrize(
    ("family", "target", "note"),
    [
        ("minicpm3", "mlx", "mlx-lm normalizes vectors of low rank with an epsilon of 1e-5, and the model with 1e-6"),
        ("gemma", "mlx", "mlx-lm's gemma computes GELU itself, and the model its approximation by tanh"),
        ("gemma3n", "gguf", "llama.cpp divides the variance of sparse activations by one less than their number"),
    ],
)
def test_what_no_file_changes_is_noted(family: str, target: str, note: str, tmp_path: Path) -> None:
    assert note in notes(family, target, tmp_path)
