"""A conversion that ends early while it names its files: nothing is mixed, and what is finished stays for the next."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import FIXTURES, Result
from outputs import contents

from ckconv.publish.journal import lasting_name

QWEN2 = FIXTURES / "hf" / "qwen2-tied-bf16"

#: Converts, and at the n-th of some calls while files are named a signal comes, or the call fails; says what it made.
CHILD = """
import os, sys
from ckconv import cli
from ckconv.conversion import pipeline
from ckconv.publish.staging import Outputs
number, at, arguments = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
write, publish, made, count = pipeline.write_file, Outputs.publish, 0, 0

def counted(*given):
    global made
    made += 1
    return write(*given)

def hit(real):
    def called(*given, **options):
        global count
        count += 1
        if count == at and number < 0:
            raise OSError(-number, os.strerror(-number))
        if count == at:
            os.kill(os.getpid(), number)
        return real(*given, **options)
    return called

def published(*given):
    for name in ("link", "rename", "replace", "mkdir", "unlink", "rmdir"):
        setattr(os, name, hit(getattr(os, name)))
    return publish(*given)

pipeline.write_file, Outputs.publish = counted, published
code = cli.run(arguments)
print(f"made {made}")
sys.exit(code)
"""


CASES = [
    *(("m.gguf False", "SIGKILL", at) for at in (3, 6)),
    *(("m.gguf True", "SIGKILL", at) for at in (6, 12)),
    ("m/ True", "SIGKILL", 11),
    ("m/ False", "SIGKILL", 4),
    ("m.gguf False", "SIGTERM", 3),
    ("m.gguf True", "EIO", 6),
    ("m/ True", "EIO", 12),
    ("m/ False", "EIO", 3),
]


def convert(place: Path, name: str, *flags: str, number: int = 0, at: int = 0, source: Path = QWEN2) -> Result:
    command = [sys.executable, "-c", CHILD, str(number), str(at), "convert", str(source), f"{place}/{name}", "-q"]
    done = subprocess.run([*command, "--max-shard-size", "80KB", *flags], capture_output=True, text=True, check=False)
    return Result(done.returncode, done.stdout, done.stderr)


def shown(place: Path) -> dict[str, bytes]:
    """What has a name of its own."""
    return {name: data for name, data in contents(place).items() if "/." not in f"/{name}"}


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, bytes], dict[str, bytes]]]:
    """What is there before and what is to be there, by the target."""
    found = {}
    for name, force in (("m.gguf", False), ("m.gguf", True), ("m/", False), ("m/", True)):
        place = tmp_path_factory.mktemp("state")
        before: dict[str, bytes] = {}
        if force:
            assert convert(place, name, "--to", "gguf" if name == "m.gguf" else "mlx", "--context", "48").code == 0
            before = contents(place)
        assert convert(place, name, "--to", "gguf" if name == "m.gguf" else "mlx", "--force").code == 0
        found[f"{name} {force}"] = before, contents(place)
    return found


@pytest.mark.needs("posix")
@pytest.mark.parametrize(("target", "how", "at"), CASES)
def test_what_ends_while_files_are_named_goes_on(
    target: str, how: str, at: int, tmp_path: Path, states: dict[str, tuple[dict[str, bytes], dict[str, bytes]]]
) -> None:
    name, _, force = target.partition(" ")
    before, after = states[target]
    for path, data in before.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(data)
    flags = ["--to", "gguf" if name == "m.gguf" else "mlx", "--resume", *(["--force"] if force == "True" else [])]
    number = -errno.EIO if how == "EIO" else signal.Signals[how].value
    ended = convert(tmp_path, name, *flags, number=number, at=at)
    assert "Traceback" not in ended.err
    left = shown(tmp_path)
    if how == "SIGKILL":
        assert all(left[path] in (before.get(path), after.get(path)) for path in left)
    else:
        assert left in (before, after), ended.err
    if "finished and stay" in ended.err:
        assert left == before
    again = convert(tmp_path, name, *flags)
    if again.code == 6:
        assert "output.exists" in again.err
    else:
        assert again.code == 0, again.err
        if left == before and target != "m/ False":  # a directory gets its name without what is finished beside it
            assert again.out == "made 0\n", "nothing that was finished is made again"
    assert contents(tmp_path) == after


def test_a_split_model_grows_in_one_place() -> None:
    of_five = lasting_name("m-00001-of-00005.gguf")
    assert of_five == lasting_name("m-00001-of-00009.gguf") == lasting_name("m.gguf")
    assert of_five != lasting_name("m-00001.gguf")
