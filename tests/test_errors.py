"""The error tree: exit codes, the ten faults of a report, and text from files that cannot harm a terminal."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from ckconv import errors
from ckconv.cli.render import print_error, printable
from ckconv.cli.settings import Settings
from ckconv.errors import CkconvError, Faults, InputError, Interrupted, an, listed, quoted, valid


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("CkconvError", 1),
        ("UsageError", 2),
        ("InputError", 3),
        ("UnsupportedError", 4),
        ("VerifyError", 5),
        ("OutputError", 6),
    ],
)
def test_exit_codes(name: str, code: int) -> None:
    error = getattr(errors, name)("a.b", "what is wrong", path="m.gguf")
    assert error.exit_code == code
    assert str(error) == "[a.b] m.gguf: what is wrong"


@pytest.mark.parametrize(("signal", "code"), [(1, 129), (2, 130), (15, 143)])
def test_interrupted_is_what_a_shell_says(signal: int, code: int) -> None:
    assert Interrupted(signal).exit_code == code


def test_at_most_ten_are_listed() -> None:
    assert listed(["x"] * 10) == ("x",) * 10
    assert listed(["x"] * 1234) == ("x",) * 10 + ("... and 1,224 more",)
    assert listed([]) == ()


def test_faults_of_the_first_kind_come_together() -> None:
    faults = Faults("f")
    faults.check()
    faults.add("a", "first", offset=7, tensor="t")
    faults.add("b", "other kind")
    faults.add("a", "second")
    with pytest.raises(InputError) as caught:
        faults.check()
    error = caught.value
    assert (error.code, error.message, error.details, error.offset, error.tensor) == ("a", "first", ("second",), 7, "t")


@given(st.text(st.characters(codec=None), max_size=400))
def test_quoted_and_printable_text_is_harmless(text: str) -> None:
    assert quoted(text).isprintable()
    assert len(quoted(text)) <= 10 * 120 + 2
    assert printable(text).isprintable()


@given(st.text(st.characters(codec=None), max_size=80))
def test_printed_errors_are_harmless_and_json_comes_back(text: str) -> None:
    import contextlib
    import io

    error = CkconvError("a.b", text, path=text.replace("\0", ""), tensor=text, hint=text, details=[text])
    out = io.StringIO()
    with contextlib.redirect_stderr(out):
        print_error(error, Settings())
        print_error(error, Settings(json=True))
    lines = out.getvalue().split("\n")
    assert all(line.isprintable() for line in lines)
    document = json.loads(lines[-2])["error"]
    there = valid(text)  # halves of surrogate pairs, which most parsers refuse, are escaped
    assert (document["tensor"], document["message"], document["details"]) == (there, there, [there])


def test_faults_keep_what_a_report_lists_and_count_the_rest() -> None:
    """A hostile header holds as many faults as it has records; their sentences must not fill the memory."""
    faults = Faults(None)
    for n in range(100_000):
        faults.add("gguf.type", f"fault {n}")
    with pytest.raises(InputError) as caught:
        faults.check()
    assert caught.value.message == "fault 0"
    assert caught.value.details == (*(f"fault {n}" for n in range(1, 11)), "... and 99,989 more")
    assert sum(map(len, faults._further.values())) == 10


@pytest.mark.parametrize("named", ["a llama", "an exaone", "an ultravox", "a umt5", "a eurobert"])
def test_an_article_is_that_of_the_sound(named: str) -> None:
    assert an(named.partition(" ")[2]) == named
