"""``ckconv batch``: many models, each for itself, and only what is not there yet."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from conftest import FIXTURES
from outputs import contents

pty = pytest.importorskip("pty")  # of POSIX

ROOT = Path(__file__).parent.parent
LLAMA, QWEN2 = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf", FIXTURES / "hf" / "qwen2-tied-bf16"
GPT2 = FIXTURES / "hf" / "gpt2-hub-f32"
MODELS = [LLAMA, QWEN2]


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def statuses(out: str) -> list[str]:
    return [line["status"] for line in lines(out)]


def identities(directory: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("to", ["gguf", "bump", "safetensors", "mlx"])
def test_each_model_is_what_convert_writes(to: str, tmp_path: Path, ckconv) -> None:
    done = ckconv("batch", *MODELS, "--to", to, "--into", tmp_path / "all")

    assert (done.code, statuses(done.out)) == (0, ["converted", "converted"])
    for source, name in zip(MODELS, ("llama-tied-bf16.auto", "qwen2-tied-bf16"), strict=True):
        alone = tmp_path / f"{name}-alone"
        assert ckconv("convert", source, f"{alone}/", "--to", to, "--record").code == 0
        assert contents(tmp_path / "all" / name) == contents(alone)


def test_a_line_says_what_became_of_a_model_and_fits_its_schema(tmp_path: Path, ckconv) -> None:
    done = ckconv("batch", LLAMA, GPT2, "/no/such/model", "--to", "bump", "--into", tmp_path / "all")
    converted, refused, missing = found = lines(done.out)

    schema = json.loads(ckconv("formats", "--schema", "batch").out)
    for line in found:
        jsonschema.validate(line, schema)
    weights = tmp_path / "all" / "llama-tied-bf16.auto" / "weights.bump"
    file = {"path": str(weights), "bytes": weights.stat().st_size, "sha256": sha256(weights.read_bytes()).hexdigest()}
    assert (converted["files"], converted["verified"], converted["error"]) == ([file], 20, None)
    assert (refused["exit_status"], refused["error"]["code"]) == (4, "plan.refused")
    assert (missing["exit_status"], missing["error"]["code"]) == (3, "input.missing")
    assert "error[plan.refused]" in done.err
    assert done.code == 3, "a malformed input counts more than a refusal"
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["llama-tied-bf16.auto"]


@pytest.mark.parametrize("to", ["gguf", "bump", "mlx"])
def test_what_is_there_and_fits_is_not_written_again(to: str, tmp_path: Path, ckconv) -> None:
    arguments = ["batch", *MODELS, "--to", to, "--into", tmp_path / "all", "--checksums"]
    first = ckconv(*arguments)
    before = identities(tmp_path / "all")

    again = ckconv(*arguments)

    assert (again.code, statuses(again.out)) == (0, ["there", "there"])
    assert identities(tmp_path / "all") == before
    assert [line["files"] for line in lines(again.out)] == [line["files"] for line in lines(first.out)]


def test_what_is_missing_alone_is_converted(tmp_path: Path, ckconv) -> None:
    arguments = ["batch", *MODELS, "--to", "gguf", "--into", tmp_path / "all"]
    assert ckconv(*arguments).code == 0
    shutil.rmtree(tmp_path / "all" / "qwen2-tied-bf16")
    assert statuses(ckconv(*arguments).out) == ["there", "converted"]


def flipped(directory: Path) -> None:
    weights = directory / "model.gguf"
    data = bytearray(weights.read_bytes())
    data[-1000] ^= 1
    weights.write_bytes(data)


def other_source(directory: Path) -> None:
    source = directory.parent.parent / "model.gguf"
    source.write_bytes((FIXTURES / "gguf" / "qwen2-tied-bf16.auto.gguf").read_bytes())


CHANGES = {
    "another option": (lambda _: None, ["--context", "64"], "made with other options"),
    "another source": (other_source, [], "made of other files"),
    "a flipped bit": (flipped, [], "not as its record says"),
    "no record": (lambda place: (place / "ckconv.json").unlink(), [], "without a conversion record"),
    "no list of digests": (lambda _: None, ["--checksums"], "without SHA256SUMS"),
    "a file is gone": (lambda place: (place / "model.gguf").unlink(), [], "not as its record says"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_does_not_fit_is_refused_and_replaced_with_force(change: str, tmp_path: Path, ckconv) -> None:
    spoil, flags, reason = CHANGES[change]
    source, target = tmp_path / "model.gguf", tmp_path / "all" / "model"
    source.write_bytes(LLAMA.read_bytes())
    arguments = ["batch", source, "--to", "gguf", "--into", tmp_path / "all"]
    assert ckconv(*arguments).code == 0
    spoil(target)
    before = contents(target)

    refused = ckconv(*arguments, *flags)
    assert (refused.code, lines(refused.out)[0]["error"]["code"]) == (6, "output.exists")
    assert reason in refused.err
    assert "--force" in refused.err
    assert contents(target) == before

    assert statuses(ckconv(*arguments, *flags, "--force").out) == ["converted"]
    assert statuses(ckconv(*arguments, *flags).out) == ["there"]


def test_a_template_that_changed_under_its_name_is_found(tmp_path: Path, ckconv) -> None:
    """The record has its name alone."""
    (tmp_path / "llama.json").write_text('{"name": "llama", "kernels": {}}')
    flags = ["--to", "bump", "--bump-version", "5", "--template", tmp_path / "llama.json", "--into", tmp_path / "all"]
    assert statuses(ckconv("batch", LLAMA, *flags).out) == ["converted"]
    assert statuses(ckconv("batch", LLAMA, *flags).out) == ["there"]
    (tmp_path / "llama.json").write_text('{"name": "llama", "kernels": {}, "more": 1}')
    assert "and not as its record says" in ckconv("batch", LLAMA, *flags).err


def test_equal_names_are_refused_before_anything_runs(tmp_path: Path, ckconv) -> None:
    twin = tmp_path / "llama-tied-bf16.auto"
    shutil.copytree(QWEN2, twin)
    done = ckconv("batch", QWEN2, LLAMA, twin, "--to", "gguf", "--into", tmp_path / "all")
    assert (done.code, done.out) == (2, "")
    assert "error[usage.target]: 1 name in" in done.err
    assert f"llama-tied-bf16.auto: {LLAMA}, {twin}" in done.err
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize("format", ["gguf", "safetensors"])
def test_files_of_a_split_set_and_a_file_twice_are_one_model(format: str, tmp_path: Path, ckconv) -> None:
    ckconv("convert", LLAMA, f"{tmp_path}/set/", "--to", format, "--max-shard-size", "60kB")
    shards = sorted((tmp_path / "set").glob(f"*.{format}"))
    assert len(shards) > 1
    index = sorted((tmp_path / "set").glob("*.index.json"))
    again = LLAMA.parent / ".." / LLAMA.parent.name / LLAMA.name
    done = ckconv("batch", *shards, *index, LLAMA, LLAMA, again, "--to", "mlx", "--into", tmp_path / "all")
    assert done.code == 0
    assert [line["source"] for line in lines(done.out)] == [str(shards[0]), str(LLAMA)]
    assert {line["verified"] for line in lines(done.out)} == {20}


def test_a_model_does_not_go_to_where_it_is(tmp_path: Path, ckconv) -> None:
    shutil.copytree(QWEN2, tmp_path / "model")
    done = ckconv("batch", tmp_path / "model", "--to", "gguf", "--into", tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "is where the source is" in done.err


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("a.Q4_K_M.gguf", "a.Q4_K_M"),
        ("a-00001-of-00003.gguf", "a"),
        ("a.safetensors.index.json", "a"),
        ("Qwen2.5-7B/", "Qwen2.5-7B"),
        ("models--org--name/snapshots/0123abcd/", "name"),
    ],
)
def test_the_name_of_a_model(source: str, name: str, tmp_path: Path, ckconv) -> None:
    place = tmp_path / source
    if source.endswith("/"):
        place.mkdir(parents=True)
    done = ckconv("batch", f"{tmp_path}/{source}", "--to", "gguf", "--into", tmp_path / "all")
    assert done.code == 3
    assert lines(done.out)[0]["target"] == f"{tmp_path}/all/{name}/"
    assert list((tmp_path / "all").iterdir()) == []


def test_sources_of_a_list(tmp_path: Path, ckconv) -> None:
    (tmp_path / "list").write_text(f"{QWEN2}\n\n{GPT2}\n")
    done = ckconv("batch", LLAMA, "--from-file", tmp_path / "list", "--to", "mlx", "--into", tmp_path / "all")
    assert (done.code, statuses(done.out)) == (0, ["converted"] * 3)
    assert [line["source"] for line in lines(done.out)] == [str(LLAMA), str(QWEN2), str(GPT2)]


def test_an_address_in_a_list_keeps_its_text(tmp_path: Path, ckconv) -> None:
    (tmp_path / "list").write_text("memory://models//none.gguf\n")
    done = ckconv("batch", "--from-file", tmp_path / "list", "--to", "mlx", "--into", tmp_path / "all")
    assert (done.code, [line["source"] for line in lines(done.out)]) == (3, ["memory://models//none.gguf"])


def test_a_line_of_a_list_is_a_name_as_it_stands(tmp_path: Path, ckconv) -> None:
    name = tmp_path / "# a model .gguf"
    shutil.copy(LLAMA, name)
    (tmp_path / "list").write_text(f"\n{name}\n   \n# no comment\n")
    done = ckconv("batch", "--from-file", tmp_path / "list", "--to", "mlx", "--into", tmp_path / "all")
    assert statuses(done.out) == ["converted", "failed"]
    assert "# no comment: there is no such file" in done.err


def test_what_is_no_directory_takes_no_models(tmp_path: Path, ckconv) -> None:
    (tmp_path / "file").touch()
    done = ckconv("batch", LLAMA, "--to", "gguf", "--into", tmp_path / "file")
    assert (done.code, done.out) == (6, "")
    assert done.err == f"ckconv: error[output.exists]: {tmp_path / 'file'}: exists and is not a directory\n"
    done = ckconv("batch", LLAMA, "--to", "gguf", "--into", tmp_path / "file" / "all")
    assert "error[output.parent]" in done.err


def test_nothing_to_convert_and_a_list_that_is_not_there(tmp_path: Path, ckconv) -> None:
    into = ["--to", "gguf", "--into", tmp_path / "all"]
    assert ckconv("batch", *into).code == 2
    assert ckconv("batch", "--from-file", tmp_path / "none", *into).code == 3
    (tmp_path / "list").write_bytes(b"a\0b\n")
    assert "input.text" in ckconv("batch", "--from-file", tmp_path / "list", *into).err


def test_a_list_of_a_closed_or_endless_stdin_is_refused(tmp_path: Path) -> None:
    asked = command("batch", "--from-file", "-", "--to", "gguf", "--into", tmp_path / "all")
    closed = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *asked], capture_output=True, text=True, cwd=ROOT)
    assert (closed.returncode, "error[input.unreadable]: stdin is closed" in closed.stderr) == (3, True)
    with Path("/dev/zero").open("rb") as zeros:
        endless = subprocess.run(asked, stdin=zeros, capture_output=True, text=True, cwd=ROOT)
    assert endless.returncode == 3
    assert "error[input.text]: -: a list has at most 16,777,216 bytes" in endless.stderr


def test_a_dry_run_writes_nothing_and_says_what_is_there(tmp_path: Path, ckconv) -> None:
    into = ["--to", "gguf", "--into", tmp_path / "all"]
    planned = ckconv("batch", LLAMA, "-n", *into)
    assert (planned.code, statuses(planned.out)) == (0, ["planned"])
    assert not (tmp_path / "all").exists()
    assert ckconv("batch", LLAMA, *into).code == 0
    size = (tmp_path / "all" / "llama-tied-bf16.auto" / "model.gguf").stat().st_size
    assert lines(planned.out)[0]["bytes"] == size
    assert statuses(ckconv("batch", LLAMA, QWEN2, "-n", *into).out) == ["there", "planned"]


def test_quiet_prints_errors_alone(tmp_path: Path, ckconv) -> None:
    done = ckconv("batch", *MODELS, GPT2, "-q", "--to", "bump", "--into", tmp_path / "all")
    assert (done.code, done.out) == (4, "")
    assert done.err.startswith("ckconv: error[plan.refused]")


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "ckconv", *map(str, arguments)]


def test_on_a_terminal_lines_are_for_people(tmp_path: Path) -> None:
    mine, theirs = pty.openpty()
    done = subprocess.run(
        command("batch", LLAMA, GPT2, "--to", "bump", "--into", tmp_path / "all"),
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        check=False,
    )
    os.close(theirs)
    text = b""
    try:
        while piece := os.read(mine, 1 << 16):
            text += piece
    except OSError:  # the other end is closed
        pass
    os.close(mine)
    *table, last = text.decode().splitlines()
    assert done.returncode == 4
    assert [line.split()[0] for line in table] == ["converted", "failed"]
    assert "[plan.refused]" in table[1]
    assert max(map(len, table)) <= 80
    assert last == "1 converted, 1 failed"


def test_a_reader_that_goes_away_stops_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(
        command("batch", *MODELS, "--to", "gguf", "--into", tmp_path / "all"), stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait() == 0
    assert len(list((tmp_path / "all").iterdir())) == 2


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interrupted_batch_goes_on_where_it_was(
    number: int, status: int, tmp_path: Path, ckconv, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckconv.conversion import run as engine

    really, calls = engine.run, []

    def run(*given: Any, **more: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            os.kill(os.getpid(), number)
        return really(*given, **more)

    arguments = ["batch", *MODELS, GPT2, "--to", "gguf", "--into", tmp_path / "all"]
    with monkeypatch.context() as patch:
        patch.setattr(engine, "run", run)
        done = ckconv(*arguments)

    assert (done.code, statuses(done.out)) == (status, ["converted", "interrupted"])
    assert "interrupted; 1 of 3 models are done; the same command continues" in done.err
    assert [path.name for path in (tmp_path / "all").iterdir()] == ["llama-tied-bf16.auto"]
    again = ckconv(*arguments)
    assert (again.code, statuses(again.out)) == (0, ["there", "converted", "converted"])


def test_a_signal_before_a_model_is_planned_says_nothing_of_the_one_before(
    tmp_path: Path, ckconv, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckconv.conversion import planning

    really = planning.prepare

    def prepare(source: Path, *given: Any, **more: Any) -> Any:
        if source == QWEN2:
            os.kill(os.getpid(), signal.SIGTERM)
        return really(source, *given, **more)

    monkeypatch.setattr(planning, "prepare", prepare)
    done = ckconv("batch", LLAMA, QWEN2, "--to", "gguf", "--into", tmp_path / "all")
    assert statuses(done.out) == ["converted", "interrupted"]
    assert "is there" not in lines(done.out)[1]["error"]["message"]


def test_a_bug_counts_more_than_anything_else_and_stops_nothing(
    tmp_path: Path, ckconv, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckconv.conversion import run as engine

    really = engine.run

    def run(plan: Any, *given: Any, **more: Any) -> Any:
        if plan.index.path == QWEN2:
            raise RuntimeError("no such luck")
        return really(plan, *given, **more)

    monkeypatch.setattr(engine, "run", run)
    done = ckconv("batch", QWEN2, LLAMA, "/no/such", "--to", "gguf", "--into", tmp_path / "all")
    assert (done.code, statuses(done.out)) == (1, ["failed", "converted", "failed"])
    assert "error[internal]: RuntimeError: no such luck" in done.err
