"""``formats`` and ``completion``: what this build can do, out of the tables that it works with."""

from __future__ import annotations

import subprocess

import pytest

from ckconv.families.catalog import FAMILIES
from ckconv.formats import FORMATS, names


def test_directions(ckconv) -> None:
    lines = ckconv("formats").out.splitlines()
    assert lines[1].split() == [
        "from",
        "gguf",
        "safetensors",
        "mlx",
        "bump",
        "3",
        "bump",
        "4",
        "bump",
        "5",
        "bump",
        "train",
        "whisper-ggml",
    ]
    table = {line.split()[0]: line.split()[1:] for line in lines[2:6]}
    assert table["gguf"][0] == "all"
    assert table["gguf"][3] == "2"  # Q4_K and Q6_K
    assert table["safetensors"][0] == "-"
    assert "adapters: between peft, gguf, mlx, and merged into a model during its conversion" in lines


def test_json(ckconv) -> None:
    document = ckconv("formats", "--json").json
    assert document["schema"] == 1
    assert (document["reads"], document["writes"]) == (
        names(),
        [output.name for format in FORMATS for output in format.outputs],
    )
    kept = {(d["from"], d["to"]): d["keeps_blocks"] for d in document["directions"]}
    assert kept["gguf", "bump 3"] == ["Q4_K", "Q6_K"]
    assert "Q4_1" in kept["mlx", "gguf"]
    assert kept["gguf", "safetensors"] == []
    assert {a["name"] for a in document["architectures"]} == set(FAMILIES)
    types = {t["name"]: t for t in document["types"]}
    assert (types["Q4_K"]["block_elements"], types["Q4_K"]["block_bytes"], types["Q4_K"]["ggml"]) == (256, 144, 12)


def test_every_family_and_type_has_a_line(ckconv) -> None:
    out = ckconv("formats").out
    for family in FAMILIES:
        assert f"\n  {family} " in out
    assert "\n  Q6_K           256    210    14" in out


@pytest.mark.parametrize(("shell", "check"), [("bash", "bash"), ("zsh", None), ("fish", None)])
def test_completion_is_a_script_of_that_shell(shell: str, check: str | None, ckconv) -> None:
    result = ckconv("completion", shell)
    assert result.code == 0
    assert "_CKCONV_COMPLETE" in result.out
    if check:
        assert subprocess.run([check, "-n"], input=result.out, text=True, check=False).returncode == 0


def test_completion_of_an_unknown_shell(ckconv) -> None:
    assert ckconv("completion", "tcsh").code == 2
