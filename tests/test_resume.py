"""A conversion into several files that ends early and goes on: what is finished and fits is kept, the rest made."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest
from conftest import FIXTURES, Result, kept_handlers
from outputs import contents

from ckconv.cli import run
from ckconv.conversion import pipeline
from ckconv.publish.journal import CONVERSION

Ckconv = Callable[..., Result]

QWEN2 = FIXTURES / "hf" / "qwen2-tied-bf16"
SHARDS = 5

#: Converts, and sends itself a signal when it has begun to write the n-th file that it makes; says how many it made.
CHILD = """
import os, sys
from ckconv import cli
from ckconv.conversion import pipeline
number, at, arguments = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
real, count = pipeline.write_file, 0

def counted(*given):
    global count
    count += 1
    found = real(*given)
    if count == at:
        os.kill(os.getpid(), number)
    return found

pipeline.write_file = counted
code = cli.run(arguments)
print(f"made {count}")
sys.exit(code)
"""


def convert(source: Path, target: str, *flags: str, number: int = 0, at: int = 0) -> Result:
    """In a process of its own, where a signal may end it."""
    command = ["convert", str(source), target, "--max-shard-size", "50KB", "-q", *flags]
    if at:
        own = [sys.executable, "-c", CHILD, str(number), str(at), *command]
        done = subprocess.run(own, capture_output=True, text=True, check=False)
        return Result(done.returncode, done.stdout, done.stderr)
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(pipeline, "write_file", wraps=pipeline.write_file) as made,
        kept_handlers(),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = run(command)
    return Result(code, f"{out.getvalue()}made {made.call_count}\n", err.getvalue())


def staging(place: Path) -> list[Path]:
    return [path for path in place.iterdir() if path.name.startswith(".")]


def kept(place: Path) -> Path:
    (found,) = (path for path in staging(place) if (path / CONVERSION).exists())
    return found


def finished(place: Path) -> list[str]:
    return sorted(path.name for path in kept(place).iterdir() if not path.name.startswith("."))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Path(shutil.copytree(QWEN2, tmp_path / "qwen2-tied-bf16"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def whole(source: Path, tmp_path: Path, target: list[str]) -> dict[str, bytes]:
    """What it is to be, of a conversion that does all at once."""
    (tmp_path / "whole").mkdir()
    name, *flags = target
    assert convert(source, f"{tmp_path}/whole/{name}", *flags).code == 0
    found = tmp_path / "whole"
    return contents(found / "m" if name == "m/" else found)


def published(place: Path, target: list[str]) -> dict[str, bytes]:
    assert staging(place) == []
    return contents(place / "m" if target[0] == "m/" else place)


@pytest.mark.needs("posix")
@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("SIGKILL", "m/ --to safetensors --checksums"),
        ("SIGTERM", "m.gguf"),
        ("SIGINT", "m/ --to mlx --record"),
    ],
)
def test_an_interrupted_conversion_goes_on(name: str, output: str, source: Path, place: Path) -> None:
    target = output.split()
    number = signal.Signals[name].value
    goal, *flags = f"{place}/{target[0]}", *target[1:], "--resume"
    ended = convert(source, goal, *flags, number=number, at=3)
    assert ended.code == (-number if name == "SIGKILL" else 128 + number)
    if name != "SIGKILL":
        assert "interrupted; 2 files of 5 are finished and stay: --resume goes on" in ended.err
    assert len(finished(place)) == 2
    assert [path for path in place.iterdir() if path not in staging(place)] == []
    again = convert(source, goal, *flags)
    assert (again.code, again.out) == (0, f"made {SHARDS - 2}\n")
    assert published(place, target) == whole(source, place.parent, target)


@pytest.fixture
def begun(source: Path, place: Path) -> Path:
    """The staging directory of a conversion to ``m/`` of which three files are finished."""
    assert convert(source, f"{place}/m/", "--to", "mlx", "--resume", number=signal.SIGTERM, at=4).code == 143
    return kept(place)


def resumed(source: Path, place: Path, *flags: str) -> Result:
    return convert(source, f"{place}/m/", "--to", "mlx", "--resume", *flags)


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.needs("posix")
@pytest.mark.parametrize("damage", [flipped, cut_off, Path.unlink])
def test_a_finished_file_that_does_not_fit_is_made_again(
    damage: Callable[[Path], None], begun: Path, source: Path, place: Path
) -> None:
    damage(sorted(begun.glob("*.safetensors"))[1])
    again = resumed(source, place)
    assert (again.code, again.out) == (0, "made 3\n")
    assert convert(source, f"{place}/n/", "--to", "mlx").code == 0
    assert contents(place / "m") == contents(place / "n")


@pytest.mark.needs("posix")
def test_nothing_is_kept_of_another_conversion(begun: Path, source: Path, place: Path) -> None:
    saved = Path(shutil.copytree(begun, place.parent / "saved"))
    weights = source / "model.safetensors"

    def made(*flags: str) -> str:
        shutil.rmtree(begun, ignore_errors=True)
        shutil.rmtree(place / "m", ignore_errors=True)
        shutil.copytree(saved, begun)
        assert (begun / "model-00001-of-00005.safetensors").is_file()
        found = resumed(source, place, *flags)
        assert found.code == 0, found.err
        return found.out

    assert made() == "made 2\n"
    assert made("--dtype", "f32") == "made 9\n"
    assert made("--no-verify") == "made 5\n"
    before = weights.stat()
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert made() == "made 5\n"
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert made() == "made 2\n"
    facts = saved / ".model-00003-of-00005.safetensors.json"
    whole = facts.read_bytes()
    facts.write_bytes(whole[:40])  # cut off while it was written
    assert made() == "made 3\n"
    facts.write_bytes(whole.replace(b'"sha256": "', b'"sha256": "00'))
    assert made() == "made 3\n"
    facts.write_bytes(whole)
    (saved / CONVERSION).write_text(json.dumps(["0", "0"]))
    assert made() == "made 5\n"
    for document in (b"\xff[]", b"[" * 100_000, b"{}", b"[1, 2, 3]"):
        (saved / CONVERSION).write_bytes(document)
        assert made() == "made 5\n"


@pytest.mark.needs("posix")
def test_without_resume_nothing_is_kept_and_nothing_stays(begun: Path, source: Path, place: Path) -> None:
    assert convert(source, f"{place}/other/", "--to", "mlx").code == 0
    assert begun.is_dir()  # it is of another output
    assert convert(source, f"{place}/m/", "--to", "mlx").code == 0
    assert staging(place) == []


@pytest.mark.needs("posix")
def test_a_source_that_changes_meanwhile_leaves_nothing(source: Path, place: Path) -> None:
    change = f"import os; os.utime({str(source / 'model.safetensors')!r}, ns=(1, 1))"
    code = CHILD.replace("os.kill(os.getpid(), number)", change)
    command = [sys.executable, "-c", code, "0", "3", "convert", str(source), f"{place}/m/", "--to", "mlx"]
    done = subprocess.run([*command, "--max-shard-size", "50KB", "--resume"], capture_output=True, text=True)
    assert (done.returncode, "error[input.changed]" in done.stderr) == (6, True)
    assert list(place.iterdir()) == []


@pytest.mark.needs("posix")
def test_what_another_run_is_writing_is_left_to_it(begun: Path, source: Path, place: Path) -> None:
    from ckconv.system import try_lock

    fd = os.open(begun, os.O_RDONLY)
    try:
        assert try_lock(fd)
        refused = resumed(source, place)
    finally:
        os.close(fd)
    assert (refused.code, "error[output.busy]" in refused.err) == (6, True)
    assert resumed(source, place).out == "made 2\n"


def test_one_file_is_made_at_once(source: Path, place: Path, ckconv: Ckconv) -> None:
    done = ckconv("convert", source, f"{place}/m.gguf", "--resume", "--json")
    assert (done.code, staging(place)) == (0, [])
    assert "the output is written in one piece" in " ".join(done.json["notes"])
    refused = ckconv("convert", source, "-", "--to", "gguf", "--resume")
    assert (refused.code, "error[usage.target]" in refused.err) == (2, True)


@pytest.mark.needs("posix")
@pytest.mark.parametrize("target", ["m/ --to mlx --checksums --record", "m.gguf"])
def test_runs_of_the_same_command_share_the_work(target: str, source: Path, place: Path) -> None:
    """Each file is made once, all of them end with 0, and one that is killed is done without."""
    name, *flags = target.split()
    command = [sys.executable, "-c", CHILD, "0", "0", "convert", str(source), f"{place}/{name}", "--max-shard-size"]
    command += ["5KB", "-q", "--resume", *flags]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    command[3:5] = str(int(signal.SIGKILL)), "2"
    killed = subprocess.run(command, capture_output=True, text=True)
    found = [(*run.communicate(timeout=120), run.returncode) for run in runs]
    late = [err for _, err, code in found if code == 6]
    assert all("output.exists" in err for err in late), "a run may come when all is done"
    assert {code for _, _, code in found} <= {0, 6}, found
    made = sum(int(out.split()[1]) for out, _, code in found if code == 0)
    assert killed.returncode in (-signal.SIGKILL, 0, 6)
    whole_place = place.parent / "whole"
    whole_place.mkdir()
    again = [*command[:3], "0", "0", *command[5:]]
    again[again.index(f"{place}/{name}")] = f"{whole_place}/{name}"
    assert subprocess.run(again, capture_output=True).returncode == 0
    shards = len([*whole_place.rglob("*.safetensors"), *whole_place.rglob("*.gguf")])
    assert made >= shards - 2, "files that others had made are in the output"
    one = {path.relative_to(whole_place): path.read_bytes() for path in whole_place.rglob("*") if path.is_file()}
    all_of_them = {path.relative_to(place): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    hidden = [path for path in all_of_them if path.parts[0].startswith(".")]
    assert one == {path: data for path, data in all_of_them.items() if path not in hidden}
    assert not hidden or killed.returncode == -signal.SIGKILL


@pytest.mark.needs("posix")
def test_another_conversion_waits_until_the_one_that_is_at_work_is_done(source: Path, place: Path) -> None:
    command = [sys.executable, "-c", CHILD, str(int(signal.SIGSTOP)), "2", "convert", str(source), f"{place}/m/"]
    command += ["--to", "mlx", "--max-shard-size", "50KB", "-q", "--resume"]
    one = subprocess.Popen(command)
    assert os.WIFSTOPPED(os.waitpid(one.pid, os.WUNTRACED)[1])
    refused = resumed(source, place, "--dtype", "f32")
    os.kill(one.pid, signal.SIGCONT)
    assert (refused.code, "error[output.busy]" in refused.err) == (6, True)
    assert one.wait(60) == 0
    assert staging(place) == []
