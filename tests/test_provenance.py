"""Of what an output was made: in-toto reads the statement, model-signing signs the files, ckconv makes them again."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Result

from ckconv import convert

Run = Callable[..., Result]
ROOT = Path(__file__).parent.parent
SOURCE = "hf/qwen2-tied-bf16"
GGUF = "gguf/llama-tied-bf16.auto.gguf"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("source", "target", "flags"),
    [
        (SOURCE, "out.gguf", ["--context", "128", "--set-meta", "general.name=ä"]),
        (SOURCE, "out.bump", ["--record"]),
        (GGUF, "out/", ["--to", "hf", "--max-shard-size", "20KB", "--record"]),
    ],
)
def test_in_toto_reads_the_statement(
    fixtures: Path, tmp_path: Path, ckconv: Run, source: str, target: str, flags: list[str]
) -> None:
    """Statement and predicate of in-toto's own package."""
    statements = pytest.importorskip("in_toto_attestation.v1.statement")
    messages = pytest.importorskip("in_toto_attestation.v1.statement_pb2")
    provenance = pytest.importorskip("in_toto_attestation.predicates.provenance.v1.provenance_pb2")
    from google.protobuf.json_format import Parse, ParseDict

    place = tmp_path / "made.intoto.json"
    done = ckconv("convert", fixtures / source, f"{tmp_path}/{target}", *flags, "--attest", place)
    assert (done.code, done.err) == (0, "")
    statement = Parse(place.read_text(), messages.Statement())
    statements.Statement.copy_from_pb(statement).validate()
    parent = tmp_path / target if target.endswith("/") else tmp_path
    made = {subject.name: subject.digest["sha256"] for subject in statement.subject}
    assert made == {name: sha256(parent / name) for name in made}
    assert {path.name for path in parent.iterdir() if path.is_file()} - {place.name} == set(made)
    predicate = ParseDict(json.loads(place.read_text())["predicate"], provenance.Provenance())
    read = {item.name: item.digest["sha256"] for item in predicate.build_definition.resolved_dependencies}
    there = fixtures / source
    files = [there] if there.is_file() else list(there.iterdir())
    assert read == {path.name: sha256(path) for path in files if path.name in read}
    assert {path.name for path in files if "tensors" in path.name or path.suffix == ".gguf"} <= set(read)
    assert predicate.run_details.builder.version["ckconv"]
    if "--context" in flags:
        assert dict(predicate.build_definition.external_parameters["options"])["context"] == 128


def test_a_statement_has_the_same_bytes_each_time_and_no_path(fixtures: Path, tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        convert(fixtures / SOURCE, tmp_path / name / "out.gguf", attest=tmp_path / name / "a.json")
        made.append((tmp_path / name / "a.json").read_bytes())
    assert made[0] == made[1]
    assert str(tmp_path).encode() not in made[0]


def test_a_statement_replaces_nothing_and_needs_a_place(fixtures: Path, tmp_path: Path, ckconv: Run) -> None:
    place = tmp_path / "made.json"
    place.write_text("mine")
    done = ckconv("convert", fixtures / SOURCE, tmp_path / "out.gguf", "--attest", place)
    assert (done.code, place.read_text(), (tmp_path / "out.gguf").exists()) == (6, "mine", False)
    done = ckconv("convert", fixtures / SOURCE, tmp_path / "x.gguf", "--attest", tmp_path / "other.json", "-n")
    assert (done.code, "error[usage.flag]: --attest states what was written" in done.err) == (2, True)
    done = ckconv("convert", fixtures / SOURCE, "-", "--to", "gguf", "--attest", tmp_path / "other.json")
    assert (done.code, "usage.side-file" in done.err) == (2, True)


CONVERSIONS: list[tuple[str, str, list[str]]] = [
    (SOURCE, "out.gguf", ["--quantize", "q8_0", "--context", "128", "--record"]),
    (SOURCE, "out.bump", ["--record", "--checksums"]),
    (SOURCE, "out.bump", []),
    (GGUF, "out/", ["--to", "hf", "--max-shard-size", "20KB", "--record"]),
    (GGUF, "out.safetensors", ["--record", "--names", "gguf"]),
    ("kquants/llama64.Q4_K_M.gguf", "out.gguf", ["--max-shard-size", "20KB", "--record"]),
    (SOURCE, "out/", ["--to", "mlx", "--quantize", "affine:4:32", "--record"]),
]


@pytest.mark.parametrize(("source", "target", "flags"), CONVERSIONS)
def test_what_was_converted_is_made_again_byte_for_byte(
    fixtures: Path, tmp_path: Path, ckconv: Run, source: str, target: str, flags: list[str]
) -> None:
    assert ckconv("convert", fixtures / source, f"{tmp_path}/{target}", *flags).code == 0
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    out = tmp_path / target if (tmp_path / target).exists() else min(files)
    done = ckconv("verify", out, fixtures / source, "--rebuild", "--json")
    assert done.code == 0, done.err
    lists = ("ckconv.json", ".sha256")
    made = {path: data for path, data in files.items() if not path.name.endswith(lists)}
    assert done.json["rebuilt"] == {"files": len(made), "nbytes": sum(map(len, made.values()))}
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


def test_a_source_that_came_out_of_a_bump_file_is_made_again(fixtures: Path, tmp_path: Path, ckconv: Run) -> None:
    assert ckconv("convert", fixtures / SOURCE, tmp_path / "out.bump").code == 0
    for flags in ([], ["--no-source-record"]):
        place = tmp_path / f"back{len(flags)}"
        assert ckconv("convert", tmp_path / "out.bump", place, "--to", "hf", "--record", *flags).code == 0
        done = ckconv("verify", place, tmp_path / "out.bump", "--rebuild")
        assert (done.code, "all equal" in done.out) == (0, True), done.err


@pytest.mark.parametrize("at", [0, 9, 5_000, -1_000, -1])
@pytest.mark.parametrize("target", ["out.gguf", "out.bump"])
def test_the_first_byte_that_differs_is_named(
    fixtures: Path, tmp_path: Path, ckconv: Run, target: str, at: int
) -> None:
    out = tmp_path / target
    assert ckconv("convert", fixtures / SOURCE, out, "--record").code == 0
    data = bytearray(out.read_bytes())
    where = at % len(data)
    data[where] ^= 0x10
    was = data[where]
    data[-1] ^= 0x01 if where != len(data) - 1 else 0
    out.write_bytes(data)
    done = ckconv("verify", out, fixtures / SOURCE, "--rebuild")
    assert done.code in (3, 5)
    if "verify.rebuild" in done.err:  # else the file cannot even be read
        assert f"byte {where:,} is {was:#04x}" in done.err
    else:
        assert where < 32


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("tokenizer.json", lambda data: data + b" ", "is one too many"),
        ("tokenizer.json", lambda data: data[:-3], "is missing"),
        ("generation_config.json", None, "is missing, and is made of the source"),
    ],
)
def test_side_files_are_compared_too(
    fixtures: Path, tmp_path: Path, ckconv: Run, name: str, change: Any, message: str
) -> None:
    place = tmp_path / "out"
    assert ckconv("convert", fixtures / GGUF, place, "--to", "hf").code == 0
    if change is None:
        (place / name).unlink()
    else:
        (place / name).write_bytes(change((place / name).read_bytes()))
    done = ckconv("verify", place, fixtures / GGUF, "--rebuild")
    assert (done.code, "verify.rebuild" in done.err, message in done.err) == (5, True, True)


def test_other_options_make_other_bytes_and_the_hint_says_so(fixtures: Path, tmp_path: Path, ckconv: Run) -> None:
    assert ckconv("convert", fixtures / SOURCE, tmp_path / "out.gguf", "--context", "128").code == 0
    done = ckconv("verify", tmp_path / "out.gguf", fixtures / SOURCE, "--rebuild")
    assert (done.code, "no conversion record" in done.err) == (5, True)
    again = ("verify", tmp_path / "out.gguf", fixtures / SOURCE, "--rebuild", "--context", "128")
    assert ckconv(*again).code == 0


def test_an_output_is_made_again_of_its_source_only(fixtures: Path, ckconv: Run) -> None:
    done = ckconv("verify", fixtures / GGUF, "--rebuild")
    assert (done.code, "name SRC" in done.err) == (2, True)


@pytest.mark.needs("model_signing")
def test_the_example_of_model_signing_signs_and_finds_a_changed_byte(fixtures: Path, tmp_path: Path) -> None:
    """The very lines of docs/cli.md, ckconv being this one."""
    found = re.search(r"```sh\n([^`]*model_signing verify[^`]*)```", (ROOT / "docs/cli.md").read_text())
    assert found is not None
    (tmp_path / "model.gguf").write_bytes((fixtures / GGUF).read_bytes())
    script = f'set -e\nckconv() {{ "{sys.executable}" -m ckconv "$@"; }}\n{found[1]}'

    def bash(text: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            ["bash", "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    done = bash(script)
    assert done.returncode == 0, done.stdout + done.stderr
    weights = tmp_path / "signed/model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert bash(found[1].splitlines()[-1]).returncode != 0
