"""``formats`` and ``completion``: what this build can do, out of the tables that it works with."""

from __future__ import annotations

import subprocess
import tomllib
from typing import Any

import pytest

from ckconv.families.catalog import FAMILIES
from ckconv.families.merge import FOLDER, merged, resolved
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


def single(value: Any) -> Any:
    """Rows without the fields of those that stand for one tensor each."""
    if isinstance(value, dict):
        return {k: single(v) for k, v in value.items() if (k, v) not in (("part", 0), ("parts", 1))}
    return [single(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", FAMILIES)
def test_resolved_rows_are_those_that_the_readers_of_a_family_are_given(name: str) -> None:
    told, table = tomllib.loads("\n".join(resolved(FOLDER / f"{name}.toml"))), merged(FOLDER / f"{name}.toml")
    assert {section: told.get(section, {}) for section in table} == single(table)


def test_resolved_rows_say_which_files_they_come_from(ckconv) -> None:
    lines = ckconv("formats", "--family", "dots1", "--resolved").out.splitlines()
    (context,) = (line for line in lines if line.startswith("context = "))
    assert context.startswith('context = { hf = "max_position_embeddings", gguf = "context_length"')
    assert context.endswith("# decoder + dots1")
    assert not any("#" in line for line in lines if line.startswith("shared_experts = "))


def test_rows_are_those_of_a_family(ckconv) -> None:
    refused = ckconv("formats", "--resolved")
    assert (refused.code, "add --family NAME" in refused.err) == (2, True)
