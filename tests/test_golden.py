"""Every fixture x target x options gives the bytes, or the refusal, and the messages of tests/golden.tsv."""

from __future__ import annotations

import sys

import pytest
from conftest import FIXTURES, kept_handlers

sys.path.insert(0, str(FIXTURES.parent / "scripts"))
import golden

FOLDERS = sorted({f"{source.relative_to(FIXTURES).parent}/" for source in golden.sources()})


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_run_gives_what_the_golden_file_says(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    with kept_handlers():
        assert golden.differences(folder) == []


def test_every_line_of_the_golden_file_is_of_a_fixture() -> None:
    lines = golden.GOLDEN.read_text().splitlines()

    assert {f"{line.partition('/')[0]}/" for line in lines} == {*FOLDERS}
