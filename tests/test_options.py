"""One table of options: what the command line, a program, the records and the documentation know is the same."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import pytest
from conftest import FIXTURES

import ckconv
from ckconv.cli.commands import main
from ckconv.cli.flags import options_of
from ckconv.core.options import OPTIONS, Option, Options, Records, Takes, given_options
from ckconv.errors import UsageError
from ckconv.formats.destination import destination, followable
from ckconv.record.conversion import options_of as recorded_options

DOCS = Path(__file__).parent.parent / "docs"
FLAGS = [option for option in OPTIONS if option.takes is not Takes.NO_FLAG]

#: For every kind of option: words behind the flag, and the value that a program gives for the same.
EXAMPLES: dict[Takes, tuple[list[str], Any]] = {
    Takes.GLOB: (["a*", "b"], ("a*", "b")),
    Takes.TYPES: (["q4_k,a*=q8_0"], "q4_k,a*=q8_0"),
    Takes.PAIR: (["k=v", "l==w"], (("k", "v"), ("l", "=w"))),
    Takes.TEXT: (["one"], "one"),
    Takes.NUMBER: (["64"], 64),
    Takes.SIZE: (["5MB"], 5_000_000),
    Takes.PATH: (["/"], Path("/")),
    Takes.EXISTING: (["/"], Path("/")),
    Takes.FILES: (["a.toml", "b.toml"], (Path("a.toml"), Path("b.toml"))),
}


def parsed(*arguments: str) -> Options:
    command = main.get_command(click.Context(main), "convert")
    assert command is not None
    return options_of(command.make_context("convert", ["src", "dst", *arguments]).params)


def example(option: Option) -> tuple[list[str], Any]:
    """The flag as it is typed, and the value of the field then."""
    if option.takes is Takes.NOTHING:
        return [option.flag], option.gives
    if option.takes in (Takes.WORD, Takes.WORDS):
        word, value = list(option.words.items())[-1]
        return [option.flag, word], value if option.takes is Takes.WORD else (value,)
    words, value = EXAMPLES[option.takes]
    return [part for word in words for part in (option.flag, word)], value


def test_every_field_has_a_row() -> None:
    assert {option.name for option in OPTIONS} == {field.name for field in fields(Options)}


def test_no_flag_is_the_default() -> None:
    assert parsed() == Options()


@pytest.mark.parametrize("option", FLAGS, ids=lambda option: option.flag)
def test_a_flag_gives_the_value_that_a_program_gives(option: Option) -> None:
    words, value = example(option)

    options = parsed(*words)

    assert options == replace(Options(), **{option.name: value}) != Options()
    assert [(given.flag, given.value) for given in given_options(options)] == [(option.flag, value)]


@pytest.mark.parametrize("option", FLAGS, ids=lambda option: option.flag)
def test_what_a_record_keeps_comes_back(option: Option) -> None:
    _, value = example(option)
    document = json.loads(json.dumps({option.name: value}, default=str))

    if option.records is Records.NEITHER:
        with pytest.raises(KeyError):
            recorded_options(document)
    else:
        assert recorded_options(document) == replace(Options(), **{option.name: value})


@pytest.mark.parametrize("option", FLAGS, ids=lambda option: option.flag)
def test_a_program_may_give_nothing_of_another_type(option: Option, tmp_path: Path) -> None:
    if option.takes in (Takes.PATH, Takes.EXISTING):
        return  # whatever names a path
    options = replace(Options(), **{option.name: object()})

    with pytest.raises(UsageError, match=rf"{option.name} is <object object .* expected"):
        ckconv.convert(FIXTURES / "hf" / "qwen2-tied-bf16", tmp_path / "out.gguf", options=options)


@pytest.mark.parametrize("option", FLAGS, ids=lambda option: option.flag)
def test_verify_has_every_flag_but_that_of_the_source_record(option: Option) -> None:
    command = main.get_command(click.Context(main), "verify")
    assert command is not None
    flags = {flag for parameter in command.params for flag in parameter.opts}
    assert (option.flag in flags) == (option.name != "source_record")


def test_the_library_page_names_every_field_that_is_not_called_like_its_flag() -> None:
    text = (DOCS / "library.md").read_text()
    other = {option.name for option in OPTIONS if option.flag != f"--{option.name.replace('_', '-')}"} - {"file_name"}
    assert not [name for name in other if not re.search(rf"`{name}\b", text)]


def test_a_way_out_names_another_place_unless_its_command_does() -> None:
    place, options = destination("m.gguf", None), Options()
    assert followable("--to mlx keeps them, ckconv convert A DST merges", place, options).startswith("--to mlx DST/ ")
    command = "ckconv convert BASE DST/ --to hf makes a base"
    assert followable(command, place, options) == command
