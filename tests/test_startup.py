"""What a command imports before it does anything: heavy packages only where they are used."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import os
import pickle
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from ckconv.core import __version__, lazy
from ckconv.core.lazy import table_of
from ckconv.families.catalog import INDEX

HEAVY = {"numpy", "rich", "tqdm", "gguf", "safetensors"}

#: Runs the command line, then names on the last three lines of stderr the tables and modules that were opened, the
#: families that were read, and the packages that were imported.
PROGRAM = """
import sys
opened = {}
sys.addaudithook(lambda event, said: event == "open" and opened.update({str(said[0]).rpartition("/")[2]: None}))
from ckconv.cli import run
status = run(sys.argv[1:])
catalog = sys.modules.get("ckconv.families.catalog")
print(*(name.partition(".")[0] for name in opened if ".toml" in name or ".pyc" in name), file=sys.stderr)
print(*(catalog.FAMILIES._loaded if catalog else ()), file=sys.stderr)
print(*{name.partition(".")[0] for name in sys.modules}, file=sys.stderr)
sys.exit(status)
"""

MODEL = "gguf/llama-tied-bf16.auto.gguf"
ROOT = Path(__file__).parent.parent


def imported(*arguments: object) -> tuple[int, str, set[str]]:
    """Exit status, stdout and the heavy packages that a command imported."""
    done = run(*arguments)
    return done.returncode, done.stdout, HEAVY & set(done.stderr.splitlines()[-1].split())


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """A command, all its streams being pipes."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--help"], 0),
        (["--version"], 0),
        ([], 2),
        (["nonsense"], 2),
        (["--nonsense"], 2),
        (["convert", "--help"], 0),
        (["convert"], 2),
        (["convert", "a.gguf", "b.bump", "--dtype", "f64"], 2),
        (["convert", "missing.gguf", "b.bump"], 3),
        (["inspect", "--help"], 0),
        (["inspect", "missing.gguf"], 3),
        (["verify", "--help"], 0),
    ],
)
def test_help_version_and_wrong_use_import_nothing_heavy(arguments: list[str], status: int) -> None:
    code, _, heavy = imported(*arguments)
    assert (code, heavy) == (status, set())


@pytest.mark.parametrize("flags", [(), ("--json",), ("--metadata",), ("--tensors", "*attn*")])
def test_inspect_into_a_pipe_imports_nothing_heavy(fixtures: Path, flags: tuple[str, ...]) -> None:
    code, out, heavy = imported("inspect", fixtures / MODEL, *flags)
    assert (code, heavy) == (0, set())
    assert "general.architecture" in out or "blk.0.attn_q.weight" in out


def test_dry_run_imports_nothing_heavy(fixtures: Path, tmp_path: Path) -> None:
    code, out, heavy = imported("convert", fixtures / MODEL, tmp_path / "out.bump", "--dry-run")
    assert (code, heavy) == (0, set())
    assert "nothing written" in out


def test_widening_needs_numpy_and_nothing_else(fixtures: Path, tmp_path: Path) -> None:
    code, _, heavy = imported("convert", fixtures / MODEL, tmp_path / "out.bump", "--no-verify")
    assert (code, heavy) == (0, {"numpy"})


def test_a_verified_copy_imports_nothing_heavy(fixtures: Path, tmp_path: Path) -> None:
    code, _, heavy = imported("convert", fixtures / MODEL, tmp_path / "out.gguf")
    assert (code, heavy) == (0, set())


def test_inspect_loads_no_hashing(fixtures: Path) -> None:
    assert "hashlib" not in run("inspect", fixtures / MODEL).stderr.splitlines()[-1].split()


@pytest.mark.parametrize(
    ("source", "out"),
    [
        (MODEL, "out.gguf"),
        (MODEL, "out.bump"),
        (MODEL, "out.safetensors"),
        ("hf/llama-tied-bf16", "out.gguf"),
        ("hf/llama-tied-bf16", "out.bump"),
    ],
)
def test_a_conversion_reads_one_family_however_many_there_are(
    fixtures: Path, tmp_path: Path, source: str, out: str
) -> None:
    """Four families have that architecture in GGUF."""
    done = run("convert", fixtures / source, f"{tmp_path}/{out}")
    assert (done.returncode, done.stderr.splitlines()[-2].split()) == (0, ["llama"])


@pytest.mark.parametrize(
    ("source", "key", "word"),
    [(MODEL, "arch", "llama"), ("hf/llama-tied-bf16", "model_type", "llama"), ("zoo/olmo2", "model_type", "olmo2")],
)
def test_only_families_that_say_the_word_are_opened(fixtures: Path, source: str, key: str, word: str) -> None:
    """An index has what all are called: start-up takes as long with 500 of them."""
    index = json.loads(INDEX.read_bytes())
    done = run("inspect", fixtures / source)
    opened = {*done.stderr.splitlines()[-3].split()} & index["family"].keys()
    assert (done.returncode, word in opened, opened <= set(index[key][word])) == (0, True, True)


@pytest.mark.parametrize(
    ("source", "target"),
    [("lora/mlx-lora", "peft"), ("lora/qwen2-r4-all", "mlx"), ("lora/gpt2-r4", "mlx"), ("adapters/llama-dora", "mlx")],
)
def test_an_adapter_without_its_base_reads_no_family(fixtures: Path, tmp_path: Path, source: str, target: str) -> None:
    """Its modules may be those of forty families: an index has all paths."""
    done = run("convert", fixtures / source, tmp_path / "out", "--to", target)
    assert (done.returncode, done.stderr.splitlines()[-2]) == (0, "")


@pytest.mark.parametrize(("out", "status"), [(subprocess.PIPE, 0), ("/dev/full", 6)])
def test_version_alone_imports_no_parser_of_flags(out: int | str, status: int) -> None:
    """But where it cannot be said: then there is an error to say."""
    with open(out, "w") if isinstance(out, str) else nullcontext(out) as stdout:
        command = [sys.executable, "-X", "importtime", "-m", "ckconv", "--version"]
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    said = f"ckconv {__version__}\n" if out == subprocess.PIPE else None
    assert (done.returncode, done.stdout, " click" in done.stderr) == (status, said, status != 0)


@pytest.mark.parametrize(
    ("verb", "out", "signs"),
    [
        (
            "inspect",
            (),
            {"ast", "dis", "tokenize", "traceback", "difflib", "ipaddress", "locale", "subprocess", "_uuid"},
        ),
        ("convert", ("-q", "-", "--to", "gguf"), {"ast", "dis", "tokenize", "traceback", "ipaddress", "_uuid"}),
    ],
)
def test_modules_that_are_hardly_used_wait(fixtures: Path, verb: str, out: tuple[str, ...], signs: set[str]) -> None:
    """What ``inspect`` and ``logging`` import are the signs that these did not run."""
    command = [sys.executable, "-X", "importtime", "-m", "ckconv", verb, str(fixtures / MODEL), *out]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, check=False)
    names = {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}
    assert (done.returncode, names & signs) == (0, set())
    assert names >= {"click", "inspect", "dataclasses"}


@pytest.mark.parametrize(("verb", "out"), [("inspect", ()), ("convert", ("-q", "-", "--to", "gguf"))])
def test_patterns_that_are_hardly_used_are_not_compiled(fixtures: Path, verb: str, out: tuple[str, ...]) -> None:
    """Of adapters, templates, classifiers, drafters, shards, other formats, which this is not, and of difflib."""
    code = """
import re, sys
from ckconv.cli import _Imports, run
sys.meta_path.insert(0, _Imports())
print("status", run(sys.argv[1:]), *(repr(key[1]) for key in re._cache), sep="\\n", file=sys.stderr)
"""
    command = [sys.executable, "-c", code, verb, str(fixtures / MODEL), *out]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, check=False)
    status, *patterns = done.stderr.decode().partition("status\n")[2].splitlines()
    signs = ("lora_", "raise_exception", "SequenceClassification", "consolidated", "of-(?P<count>", "(?:#",
             "-of-([0-9]", "Eagle3", "BUMPWGT", "npy", "[^{}]+", "layers")  # fmt: skip
    assert (status, [each for each in patterns if any(sign in each for sign in signs)]) == ("0", [])
    assert any("GGUF" in each for each in patterns)


def test_waiting_modules_answer_as_they_would() -> None:
    code = """
import sys
from ckconv.cli import _Imports
if sys.argv[1:]:
    sys.meta_path.insert(0, _Imports())
import concurrent.futures, datetime, difflib, gettext, pathlib, platform, uuid
from datetime import datetime as moment
print(difflib.get_close_matches("-q", ["--quiet"]), difflib.get_close_matches("--quit", ["--quiet"], 3, cutoff=0.5))
from concurrent.futures._base import LOGGER
print(LOGGER.name, LOGGER.level, LOGGER.parent, "logging" in sys.modules)
print(pathlib.Path("/a b/\\udcff\xe4%~").as_uri(), platform.system(), "ipaddress" in sys.modules)
print(*(gettext.gettext("a"), *(gettext.ngettext("one", "more", n) for n in range(3))), platform.python_version())
print(uuid.UUID(int=7), isinstance(uuid.UUID("0" * 32), uuid.UUID), uuid.UUID.__name__)
print(moment is datetime.datetime, moment(2026, 1, 2, tzinfo=datetime.UTC), moment.strptime("3", "%d"))
"""
    runs = [
        subprocess.run([sys.executable, "-c", code, *it], capture_output=True, text=True, cwd=ROOT, check=True)
        for it in ((), "w")
    ]
    assert runs[0].stdout == runs[1].stdout
    assert "00000000-0000-0000-0000-000000000007 True UUID" in runs[0].stdout


def test_a_waiting_module_becomes_the_one_that_it_stands_for() -> None:
    code = """
import sys
from ckconv.cli import _Imports
sys.meta_path.insert(0, _Imports())
import inspect, logging
from concurrent.futures import Future
assert "dis" not in sys.modules and "traceback" not in sys.modules
future = Future()
future.add_done_callback(lambda _: 1 / 0)
future.set_result(None)
assert logging.getLogger("concurrent.futures") is logging.getLogger("concurrent.futures")
logging.getLogger().error("said")
print(inspect.cleandoc(" a\\n   b\\n  c\\n"), inspect.isfunction(inspect.cleandoc), "dis" in sys.modules, type(inspect))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.stdout, done.stderr[-5:]) == ("a\n b\nc True True <class 'module'>\n", "said\n")
    assert "exception calling callback" in done.stderr


@pytest.mark.parametrize("made_by", [lazy.dataclass, dataclasses.dataclass])
def test_a_data_class_is_what_the_standard_library_makes(made_by: Any) -> None:
    @made_by(frozen=True, slots=True)
    class Own:
        """Fields of every kind."""

        first: int
        second: tuple[str, ...] = ()
        third: dict[str, int] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    one, other = Own(1), Own(first=1, third={"a": 1})
    assert (one == other, hash(one) == hash(other), one == Own(2), one == 1) == (True, True, False, False)
    assert (one.third, one.third is Own(1).third, copy.copy(other).third) == ({}, False, {"a": 1})
    assert dataclasses.replace(one, second=("b",)).second == ("b",)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.first = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del one.first
    with pytest.raises(TypeError, match="fourth"):
        Own(1, fourth=4)
    assert repr(one).endswith("Own(first=1, second=())")
    assert [*inspect.signature(Own).parameters] == ["first", "second", "third"]

    @made_by()
    class Changing:
        first: int

    class More(Changing):
        def __init__(self, first: int) -> None:
            super().__init__(first + 1)

    assert [More(1).first, More(1).first, Changing(1).first] == [2, 2, 1]
    with pytest.raises(TypeError, match="unhashable"):
        hash(Changing(1))


@pytest.mark.parametrize("count", [0, 1, 2, 9, 10, 11, 12, 13, 40])
def test_a_named_tuple_of_any_number_of_fields_is_made(count: int) -> None:
    """Constructors of few are there, that of more is one."""
    names = [f"field{at}" for at in range(count)]
    body = {"__annotations__": dict.fromkeys(names, int), "__module__": __name__, **({names[-1]: -1} if names else {})}
    made = lazy.NamedTuple.__class__("Own", (lazy.NamedTuple,), body)
    values = tuple(range(count))
    assert (made(*values), made(**dict(zip(names, values, strict=True)))) == (values, values)
    assert made(*values[:-1]) == (*values[:-1], *[-1] * bool(count))
    assert [*inspect.signature(made).parameters] == names
    with pytest.raises(TypeError):
        made(*values, 0)


def test_an_expression_is_copied_before_it_is_compiled() -> None:
    waiting = lazy.pattern("A(.)", re.IGNORECASE)
    for made in (copy.copy(waiting), copy.deepcopy(waiting), pickle.loads(pickle.dumps(waiting))):
        assert made.match("ab")[1] == "b"


@pytest.mark.parametrize("kept", [True, False])
def test_a_table_that_was_parsed_is_kept_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", not kept)
    path = tmp_path / "some.toml"
    path.write_text("[a]\nb = [1, 2.5, true, 'c']\n")
    assert [table_of(path), table_of(path)] == [{"a": {"b": [1, 2.5, True, "c"]}}] * 2
    assert [it.name.partition(".")[0] for it in tmp_path.glob("*/*.pyc")] == ["some"] * kept
    path.write_text("")
    assert table_of(path) == {}


def test_a_table_of_another_release_is_parsed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one size and one time, as installers of reproducible packages give."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "some.toml"
    for release, value in [("1.0", 1), ("1.1", 2)]:
        monkeypatch.setattr(lazy, "__version__", release)
        path.write_text(f"a = {value}\n")
        os.utime(path, (0, 0))
        assert table_of(path) == {"a": value}


def test_no_table_is_called_as_a_module_beside_it() -> None:
    """Both would be kept under one name."""
    tables = [*(ROOT / "ckconv").rglob("*.toml")]
    assert tables
    assert [path for path in tables if path.with_suffix(".py").exists()] == []


def test_help_reads_no_family() -> None:
    assert run("--help").stderr.splitlines()[-2] == ""
