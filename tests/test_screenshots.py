"""docs/screenshots: small, whole, all of them shown in docs/, and nothing but text and its colors."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "scripts"))
from screenshots import COMMANDS, PAGES, WIDTHS, drawn  # noqa: E402

PICTURES = sorted((ROOT / "docs/screenshots").iterdir())
SVG = "{http://www.w3.org/2000/svg}"


def lines(svg: str) -> list[str]:
    return ["".join(line.itertext()) for line in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_every_command_has_its_pictures_and_the_pages_lead_to_them() -> None:
    names = {f"{name}-{width}.svg" for name in COMMANDS for width in WIDTHS} | {"viewer.webp"}
    names |= {f"{name}-{width}.webp" for name in PAGES for width in (400, 1280)}
    assert {path.name for path in PICTURES} == names
    assert set(re.findall(r"\]\(screenshots/([^)]+)\)", (ROOT / "docs/cli.md").read_text())) == names


def test_they_are_small() -> None:
    assert sum(path.stat().st_size for path in PICTURES) < 300_000
    assert (ROOT / "docs/screenshots/viewer.webp").stat().st_size <= 150_000


@pytest.mark.product("values")
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_terminal_shows_a_command_and_what_it_says_within_its_columns(name: str, width: int) -> None:
    svg = (ROOT / f"docs/screenshots/{name}-{width}.svg").read_text()
    typed, *said = lines(svg)
    assert typed == f"$ {COMMANDS[name]}"
    assert said
    assert max(map(len, said)) <= width
    assert "error[" not in svg
    assert {element.tag.removeprefix(SVG) for element in ElementTree.fromstring(svg).iter()} <= {
        "svg", "title", "style", "rect", "text", "tspan",
    }  # fmt: skip


def test_text_of_a_terminal_is_text_of_the_picture_with_its_colors() -> None:
    svg = drawn("ckconv x", "a \x1b[32m<yes>\x1b[39m \x1b[1;31mno\x1b[0m\n\x1b[2m  b & c\x1b[0m", 80)
    assert lines(svg) == ["$ ckconv x", "a <yes> no", "  b & c"]
    styles = {span.text: span.get("style") for span in ElementTree.fromstring(svg).iter(f"{SVG}tspan")}
    assert styles["<yes>"] == "fill:var(--green)"
    assert styles["no"] == "font-weight:bold;fill:var(--red)"
    assert styles["  b & c"] == "fill:var(--soft)"
