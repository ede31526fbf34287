"""Defaults of flags out of ckconv.toml, pyproject.toml and the environment, and names that say a format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import FIXTURES

LLAMA = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
QWEN2 = FIXTURES / "hf" / "qwen2-tied-bf16"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def notes(ckconv, *arguments: object) -> list[str]:
    found = ckconv("convert", LLAMA, *arguments, "--dry-run", "--json")
    assert found.code == 0, found.err
    return json.loads(found.out)["notes"]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("ckconv.toml", 'dtype = "f32"\n[verify]\nweights = true\n'),
        ("ckconv.toml", '[convert]\ndtype = "f32"\n'),
        ("pyproject.toml", '[project]\nname = "x"\n[tool.ckconv]\ndtype = "f32"\n'),
    ],
)
def test_a_file_gives_flags_and_the_report_says_so(file: str, text: str, here: Path, ckconv, monkeypatch) -> None:
    (here / file).write_text(text)
    line = text.splitlines().index('dtype = "f32"') + 1
    (here / "below").mkdir()
    monkeypatch.chdir(here / "below")
    assert f"not from the command line: --dtype ({file}:{line})" in notes(ckconv, "x.gguf")
    assert ckconv("convert", LLAMA, "x.gguf", "-q").code == 0
    assert ckconv("convert", LLAMA, "y.gguf", "-q", "--dtype", "f32").code == 0
    assert Path("x.gguf").read_bytes() == Path("y.gguf").read_bytes()


def test_a_flag_counts_before_the_environment_and_that_before_the_file(here: Path, ckconv, monkeypatch) -> None:
    (here / "ckconv.toml").write_text('engine = "january"\n')
    assert "--engine (ckconv.toml:1)" in notes(ckconv, "x.bump", "--dtype", "f32")[0]
    monkeypatch.setenv("CKCONV_ENGINE", "july")
    assert "--engine (CKCONV_ENGINE)" in notes(ckconv, "x.bump")[0]
    assert not any("--engine" in note for note in notes(ckconv, "x.bump", "--engine", "april")[:1])
    monkeypatch.setenv("CKCONV_CONFIG", "")
    monkeypatch.delenv("CKCONV_ENGINE")
    assert not any("not from the command line" in note for note in notes(ckconv, "x.bump"))


def test_a_default_counts_only_for_outputs_that_have_the_flag(here: Path, ckconv) -> None:
    (here / "ckconv.toml").write_text('[convert]\nengine = "july"\nbump-version = "5"\n')
    assert notes(ckconv, "x.gguf") == []
    assert "--engine (ckconv.toml:2)" in notes(ckconv, "x.bump")[0]
    assert ckconv("convert", LLAMA, "y.gguf", "--engine", "july").code == 2


def test_a_preset_counts_where_it_is_asked_for(here: Path, ckconv) -> None:
    (here / "ckconv.toml").write_text('[preset.release]\nchecksums = true\nset-meta = ["general.license=mit"]\n')
    assert "--checksums (ckconv.toml:2)" in notes(ckconv, "x.gguf", "--preset", "release")[0]
    assert ckconv("--preset", "release", "convert", LLAMA, "z.gguf", "-q").code == 0
    assert Path("z.gguf.sha256").exists()
    assert ckconv("--preset", "none", "convert", LLAMA, "z2.gguf").code == 2
    assert ckconv("convert", LLAMA, "x.gguf", "--preset=release", "-q").code == 0
    assert Path("x.gguf.sha256").exists()
    assert "mit" in ckconv("inspect", "--metadata", "x.gguf").out
    assert ckconv("convert", LLAMA, "y.gguf", "-q").code == 0
    assert not Path("y.gguf.sha256").exists()


def test_a_preset_without_a_file_is_refused_by_its_name(here: Path, ckconv, monkeypatch) -> None:
    found = ckconv("convert", LLAMA, "x.gguf", "--preset", "relase")
    assert (found.code, "--preset 'relase': there is no ckconv.toml" in found.err) == (2, True), found.err
    monkeypatch.setenv("CKCONV_PRESET", "release")
    found = ckconv("convert", LLAMA, "x.gguf")
    assert (found.code, "CKCONV_PRESET='release': there is no ckconv.toml" in found.err) == (2, True), found.err
    Path("ckconv.toml").write_text("[preset.release]\nchecksums = true\n")
    monkeypatch.setenv("CKCONV_CONFIG", "")
    found = ckconv("convert", LLAMA, "x.gguf")
    assert (found.code, "CKCONV_CONFIG is empty, so no file with presets is read" in found.err) == (2, True), found.err


@pytest.mark.parametrize(
    ("text", "environment", "said"),
    [
        ("\nrecrod = true\n", {}, "ckconv.toml:2: no command has a flag --recrod"),
        ("[convert]\nweights = true\n", {}, "ckconv.toml:2: ckconv convert has no flag --weights"),
        ('engine = "june"\n', {}, "ckconv.toml:1: engine: 'june' is not one of 'january', 'april', 'july'"),
        ("record = 7\n", {}, "ckconv.toml:1: record is 7, true or false expected"),
        ("jobs = [1]\n", {}, "ckconv.toml:1: jobs is [1], one value expected"),
        ("[convrt]\nengine = 1\n", {}, "ckconv.toml: [convrt] is neither a command nor [preset.NAME]"),
        ("engine =\n", {}, "ckconv.toml: is not TOML: Invalid value (at line 1"),
        ("", {"CKCONV_PRESET": "release"}, "ckconv.toml: there is no preset 'release' (there are: none)"),
        ("", {"CKCONV_JOBS": "many"}, "CKCONV_JOBS: jobs: 'many' is not a whole number"),
        ("", {"CKCONV_CONFIG": "/no/such.toml"}, "/no/such.toml: cannot be read: No such file or directory"),
    ],
)
def test_a_fault_is_named_with_file_and_line(
    text: str, environment: dict[str, str], said: str, here: Path, ckconv, monkeypatch
) -> None:
    (here / "ckconv.toml").write_text(text)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = ckconv("convert", LLAMA, "x.gguf")
    assert (found.code, "error[usage.defaults]: " in found.err, said in found.err) == (2, True, True), found.err
    assert not Path("x.gguf").exists()


KQUANTS = FIXTURES / "kquants" / "llama64.Q4_K_M.gguf"


@pytest.mark.parametrize(
    ("text", "flags", "same_as"),
    [
        ("dequantize = true", ["--dtype", "keep"], ["--dtype", "keep"]),
        ('dtype = "keep"', ["--dequantize"], ["--dequantize"]),
        ('dequantize = "blk.0.*"', [], ["--dequantize=blk.0.*"]),
        ('decode = ["blk.0.*"]', ["--dtype", "keep"], []),
        ('output = "other.gguf"', [], []),
    ],
)
def test_a_flag_counts_before_a_default_that_it_excludes(
    text: str, flags: list[str], same_as: list[str], here: Path, ckconv
) -> None:
    assert ckconv("convert", KQUANTS, "two.gguf", *same_as, "-q").code == 0
    (here / "ckconv.toml").write_text(f"{text}\n")
    found = ckconv("convert", KQUANTS, "one.gguf", *flags, "-q")
    assert found.code == 0, found.err
    assert Path("one.gguf").read_bytes() == Path("two.gguf").read_bytes()
    assert not Path("other.gguf").exists()


def test_a_default_of_the_output_counts_where_none_is_named(here: Path, ckconv) -> None:
    (here / "ckconv.toml").write_text('output = "other.gguf"\n')
    assert ckconv("convert", LLAMA, "-q").code == 0
    assert Path("other.gguf").exists()
    assert ckconv("edit", LLAMA, "own.gguf", "--set-meta", "general.name=x", "-q").code == 0


@pytest.mark.parametrize(
    ("text", "environment", "said"),
    [
        ('dequantize = true\ndtype = "keep"\n', {}, "--dtype (ckconv.toml:2), --dequantize (ckconv.toml:1)"),
        ("dequantize = true\n", {"CKCONV_DTYPE": "keep"}, "--dtype (CKCONV_DTYPE), --dequantize (ckconv.toml:1)"),
        ('drop = "nothing"\n', {}, "--drop (ckconv.toml:1)"),
    ],
)
def test_a_refusal_names_the_flags_of_the_file(
    text: str, environment: dict[str, str], said: str, here: Path, ckconv, monkeypatch
) -> None:
    (here / "ckconv.toml").write_text(text)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = ckconv("convert", KQUANTS, "x.gguf")
    assert (found.code, f"not from the command line: {said}" in found.err) == (2, True), found.err


def test_a_default_for_other_outputs_has_no_say_in_batch_and_verify(here: Path, ckconv) -> None:
    (here / "ckconv.toml").write_text('engine = "july"\nchecksums = true\n')
    done = ckconv("batch", LLAMA, "--to", "gguf", "--into", "o")
    assert (done.code, json.loads(done.out)["status"]) == (0, "converted"), done.err
    assert json.loads(done.out)["notes"] == ["not from the command line: --checksums (ckconv.toml:2)"]
    verified = ckconv("verify", f"o/{LLAMA.stem}/model.gguf", LLAMA, "--json")
    assert (verified.code, [note for note in verified.json["notes"] if "--engine" in note]) == (0, [])
    assert ckconv("batch", LLAMA, "--to", "gguf", "--into", "p", "--engine", "july").code == 2


def test_a_record_and_a_statement_list_where_values_came_from(here: Path, ckconv, monkeypatch) -> None:
    (here / "ckconv.toml").write_text('checksums = true\ndtype = "keep"\n')
    monkeypatch.setenv("CKCONV_RECORD", "1")
    assert ckconv("convert", LLAMA, "o.gguf", "--attest", "a.json", "-q").code == 0
    said = {"--checksums": "ckconv.toml:1", "--dtype": "ckconv.toml:2", "--record": "CKCONV_RECORD"}
    assert json.loads(Path("o.gguf.ckconv.json").read_text())["origins"] == said
    assert json.dumps(said)[1:-1].split(", ")[0] in Path("a.json").read_text()
    monkeypatch.setenv("CKCONV_CONFIG", "")
    assert ckconv("verify", "o.gguf", LLAMA).code == 0


@pytest.mark.parametrize("words", [["diff", "a", "b", "--tolerance", "nan"], ["formats", "--timeout", "inf"]])
def test_a_number_is_finite(words: list[str], ckconv) -> None:
    found = ckconv(*words)
    assert (found.code, "is not a finite number" in found.err) == (2, True), found.err


# Names


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("x-mlx/", "mlx"), ("x.mlx", "mlx"), ("x-hf", "safetensors"), ("x_HF/", "safetensors"),
        ("x.safetensors/", "safetensors"), ("hf/", "safetensors"), ("mlx", "mlx"),
    ],
)  # fmt: skip
def test_a_directory_is_named_after_its_format(name: str, format: str, ckconv) -> None:
    found = ckconv("convert", LLAMA, name)
    assert (found.code, f"  {format}  " in found.out) == (0, True), found.err
    assert f"the name {name} says {format}: --to writes another format" in found.out
    assert (Path(name) / "config.json").exists()


@pytest.mark.parametrize("name", ["mlxish/", "x/", "x.gguf/", "x-bump/", "xhf", "gguf/"])
def test_a_name_that_says_nothing_is_asked_about(name: str, ckconv) -> None:
    found = ckconv("convert", LLAMA, name)
    assert (found.code, "--to gguf, --to hf or --to mlx names one" in found.err) == (2, True), found.err


@pytest.mark.parametrize(
    ("flags", "same_as"),
    [
        (["--dtype", "FP32"], ["--dtype", "f32"]),
        (["--dtype", "Float32"], ["--dtype", "f32"]),
        (["--to", "GGUF"], ["--to", "gguf"]),
        (["--dequantize=blk.*"], ["--decode", "blk.*"]),
        (["-j", "1"], ["--jobs", "1"]),
    ],
)
def test_a_flag_is_taken_as_other_tools_spell_it(flags: list[str], same_as: list[str], ckconv) -> None:
    source = FIXTURES / "kquants" / "llama64.Q4_K_M.gguf" if "blk" in flags[0] else LLAMA
    assert ckconv("convert", source, "-o", "one.gguf", *flags, "-q").code == 0
    assert ckconv("convert", source, "two.gguf", *same_as, "-q").code == 0
    assert Path("one.gguf").read_bytes() == Path("two.gguf").read_bytes()


def test_an_engine_is_named_by_its_month_or_commit(ckconv) -> None:
    for name in ("2026-07", "d901858", "July"):
        assert "computed right by the engine of July 2026" in " ".join(notes(ckconv, "x.bump", "--engine", name))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["convert", LLAMA], "argument DST is missing"),
        (["convert", LLAMA, "--to", "mlx"], "argument DST is missing"),
        (["convert"], "argument SRC is missing"),
        (["convert", "-o", "x.gguf"], "argument SRC is missing"),
        (["edit", LLAMA, "a.gguf", "-o", "b.gguf", "--set-meta", "a=b"], "two outputs"),
        (["inspect"], "argument PATH is missing"),
        (["inspect", "--tensors", "blk.*"], "--tensors took 'blk.*' for its GLOB"),
        (["quantize", "a", "b"], "hint: ckconv convert SRC DST --quantize q4_k_m"),
        (["merge", "a", "b"], "hint: ckconv convert SRC DST --adapter LORA"),
        (["split", "a", "b"], "hint: ckconv convert SRC DST --max-shard-size 5GB"),
    ],
)
def test_what_is_missing_or_elsewhere_is_named(arguments: list[object], said: str, ckconv) -> None:
    found = ckconv(*arguments)
    assert (found.code, said in found.err) == (2, True), found.err


def test_words_of_other_tools_do_what_they_say(ckconv) -> None:
    assert ckconv("info", LLAMA).out == ckconv("inspect", LLAMA).out
    assert ckconv("version").out.startswith(ckconv("--version").out)
    assert ckconv("help", "edit").out == ckconv("edit", "--help").out
    assert ckconv("help").out == ckconv("--help").out


@pytest.mark.parametrize(
    "words", [["version", "extra"], ["version", "--json"], ["-q", "version"], ["--json", "version"]]
)
def test_words_that_version_has_no_use_for_are_usage_errors(ckconv, words: list[str]) -> None:
    result = ckconv(*words)
    assert (result.code, "safetensors" in result.out) == (2, False), result.out
    assert ckconv("version").out.startswith("ckconv ")
    assert ckconv("help", "version").out == ckconv("version", "--help").out != ckconv("version").out
    assert ckconv("inspect", "--tensors", LLAMA).out == ckconv("inspect", LLAMA, "--tensors").out


def test_files_beside_a_gguf_are_those_of_hugging_face(ckconv) -> None:
    assert ckconv("convert", LLAMA, "side/", "--side-files-only").code == 0
    assert Path("side/config.json").exists()
