"""Reports on a terminal: as wide as it is, with no name folded; and everything where it is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import FIXTURES
from test_cli_inspect import on_a_terminal

from ckconv.cli.render import fitted, shortened

MODEL = FIXTURES / "gguf/llama-tied-bf16.auto.gguf"
QUANTIZED = FIXTURES / "kquants/llama64.Q4_K_M.gguf"
DIGEST = "0123456789ab" + "c" * 40 + "ba9876543210"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("short enough", "short enough"),
        ("a-file.gguf  GGUF v3  98.6 K parameters", "a-file.gguf  GGUF v3  98.6 K parameters"),
        ("  note: a sentence that is longer than a line", "  note: a sentence that is longer than a\n      line"),
        ("a.gguf  GGUF v3  llama  2 layers, hidden 64", "a.gguf  GGUF v3  llama\n    2 layers, hidden 64"),
        (
            "  16  copy  rows that lie in another order there",
            "  16  copy  rows that lie in another\n            order there",
        ),
        ("a-name-of-many-letters-and-more-letters.gguf  v3", "a-name-of-many-le...ore-letters.gguf  v3"),
    ],
)
def test_fields_move_and_sentences_go_on(line: str, shown: str) -> None:
    assert "\n".join(fitted([line], 40, whole=False)) == shown
    assert list(fitted([line], None, whole=False)) == [line]


def test_a_digest_loses_its_middle_unless_it_is_asked_for() -> None:
    line = f"  structure is valid, sha256 {DIGEST}"
    short = "  structure is valid, sha256 0123456789ab...ba9876543210"
    assert list(fitted([line], 60, whole=False)) == [short]
    assert list(fitted([line], 80, whole=True)) == ["  structure is valid, sha256", f"      {DIGEST}"]


def test_both_ends_of_a_name_stay() -> None:
    assert shortened("model.layers.1.self_attn.q_proj.weight", 20) == "model.lay...j.weight"
    assert shortened("short", 5) == "short"


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("flags", [(), ("-v",)], ids=["", "-v"])
def test_nothing_is_wider_than_the_terminal(width: int, flags: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "model.bump"
    steps = 0
    for command in (
        ("convert", MODEL, out, "--dry-run"),
        ("convert", MODEL, out),
        ("verify", out, MODEL),
        ("verify", QUANTIZED),
        ("convert", QUANTIZED, f"{tmp_path / 'mlx'}/", "--to", "mlx", "--dequantize", "-n"),
    ):
        shown = on_a_terminal(*command, *flags, "--progress", "none", COLUMNS=str(width))
        lines = [line for line in shown.splitlines() if not re.search("[0-9a-f]{64}", line)]
        assert max(map(len, lines)) <= width
        steps += re.search("token_emb|embed_tokens", shown) is not None
    assert steps == 3 * bool(flags)
    assert "\nthe same model\n" in on_a_terminal("diff", MODEL, MODEL, COLUMNS=str(width))
