"""What somebody is told who does not know the command line yet."""

from __future__ import annotations

import importlib
import json
import shlex
import shutil
from collections import Counter
from pathlib import Path

import click
import pytest
from conftest import FIXTURES

from ckconv.cli.commands import VERBS, main
from ckconv.cli.settings import GROUPS, Sections

LLAMA = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
SECTIONED = [verb for verb in VERBS if isinstance(main.get_command(click.Context(main), verb), Sections)]


@pytest.mark.parametrize("verb", SECTIONED)
def test_every_flag_stands_in_one_group(verb: str, ckconv) -> None:
    command = importlib.import_module(f"ckconv.cli.{verb}").command
    shown = ckconv(verb, "--help").out
    assert "Further:" not in shown
    flags = [flag for option in command.params if isinstance(option, click.Option) for flag in option.opts[-1:]]
    assert all(count == 1 for count in Counter(flag for group in GROUPS.values() for flag in group).values())
    assert [flag for flag in flags if flag not in shown] == []


def test_examples_of_the_help_are_commands_that_parse(ckconv) -> None:
    command = importlib.import_module("ckconv.cli.convert").command
    for line in command.examples:
        name, *arguments = shlex.split(line)
        assert name == "ckconv"
        assert line in ckconv("convert", "--help").out
        command_of = main.get_command(click.Context(main), arguments[0])
        assert command_of is not None
        command_of.make_context("convert", arguments[1:], parent=click.Context(main))


@pytest.mark.parametrize(("typed", "meant"), [("inpect", "inspect"), ("convrt", "convert"), ("verfy", "verify")])
def test_a_verb_that_is_misspelt_is_named(typed: str, meant: str, ckconv) -> None:
    found = ckconv(typed, "x")
    assert (found.code, found.out) == (2, "")
    assert f"no such command '{typed}'; did you mean {meant}?" in found.err
    assert "did you mean" not in ckconv("xyzzy").err


def test_a_file_that_is_misspelt_is_named(ckconv) -> None:
    found = ckconv("inspect", str(LLAMA)[:-1])
    assert found.code == 3
    assert f"hint: did you mean '{LLAMA}'?" in found.err
    assert "hint:" not in ckconv("inspect", LLAMA.with_name("nothing-like-it")).err
    assert "hint:" not in ckconv("inspect", "/no/such/directory/x.gguf").err


def test_a_file_whose_name_begins_as_an_option_does_is_hinted_at(
    ckconv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(LLAMA, "-model.gguf")
    found = ckconv("inspect", "-model.gguf")
    assert (found.code, "hint: ./-model.gguf names the file\n" in found.err) == (2, True)
    assert ckconv("inspect", "./-model.gguf").code == 0
    assert "hint: ckconv inspect --help shows the usage\n" in ckconv("inspect", "-other.gguf").err


def test_a_link_to_nothing_is_said_to_be_one(ckconv, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").symlink_to("no")
    found = ckconv("inspect", tmp_path / "model.gguf")
    where = tmp_path / "model.gguf"
    assert (found.code, found.err) == (
        3,
        f"ckconv: error[input.missing]: {where}: is a link to '{tmp_path / 'no'}', which is not there\n",
    )
    assert "hint" not in ckconv("inspect", tmp_path / "model.guf").err


def test_hf_is_a_name_of_the_format(ckconv, tmp_path: Path) -> None:
    for name in ("hf", "safetensors"):
        assert ckconv("convert", LLAMA, f"{tmp_path}/{name}/", "--to", name).code == 0
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("hf", "safetensors"))
    assert one == other
    document = json.loads(ckconv("inspect", "--json", "--from", "hf", tmp_path / "hf").out)
    assert document["format"] == "safetensors"


def test_a_report_of_a_fault_has_the_versions_of_what_computes(ckconv) -> None:
    said = ckconv("version").out.splitlines()
    assert said[0] == ckconv("--version").out.strip()
    assert [line.partition(" ")[0] for line in said[1:]] == ["Python", "gguf", "libgguf", "numpy", "safetensors"]


@pytest.mark.parametrize(
    ("begun", "offered"),
    [("q4_k", ["q4_k_s", "q4_k_m"]), ("q8_0,token_embd.weight=Q6", ["q8_0,token_embd.weight=q6_k"])],
)
def test_types_are_completed(begun: str, offered: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from click.shell_completion import BashComplete

    found = BashComplete(main, {}, "ckconv", "_X").get_completions(["convert", "a", "b", "--quantize"], begun)
    assert [item.value for item in found] == offered
