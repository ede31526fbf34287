"""The half of what differs between systems that needs no calls of POSIX: the same answers as the other half."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from ckconv.system import portable

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "fixtures/gguf/llama-tied-bf16.auto.gguf"


@pytest.fixture
def fd(tmp_path: Path) -> int:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    return os.open(path, os.O_RDWR)


def test_reads_at_a_position_and_less_at_the_end_only(fd: int) -> None:
    assert portable.read_at(fd, 4, 10) == bytes([10, 11, 12, 13])
    assert portable.read_at(fd, 10, 95) == bytes([95, 96, 97, 98, 99])
    buffer = bytearray(4)
    assert (portable.read_into(fd, buffer, 98), buffer) == (2, bytes([98, 99, 0, 0]))
    assert portable.read_into(fd, memoryview(buffer)[2:], 5) == 2
    assert buffer == bytes([98, 99, 5, 6])


def test_writes_at_a_position(fd: int) -> None:
    assert portable.write_some(fd, b"abc", 98) == 3
    assert portable.read_at(fd, 10, 97) == b"aabc"


def test_threads_that_share_a_descriptor_read_where_they_mean_to(fd: int) -> None:
    found: list[bool] = []

    def read(at: int) -> None:
        found.extend(portable.read_at(fd, 3, at) == bytes([at, at + 1, at + 2]) for _ in range(300))

    threads = [threading.Thread(target=read, args=(at,)) for at in (0, 30, 60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 900


def test_a_directory_takes_the_place_of_nothing_or_of_an_empty_one(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "empty").mkdir()
    portable.become_directory(tmp_path / "one", tmp_path / "new")
    portable.become_directory(tmp_path / "two", tmp_path / "empty")
    with pytest.raises(OSError, match="not empty"):
        portable.become_directory(tmp_path / "three", tmp_path / "new")
    assert [(tmp_path / name / "file").read_text() for name in ("new", "empty", "three")] == ["one", "two", "three"]


def test_a_file_is_locked_as_windows_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``msvcrt.locking`` says EACCES of bytes that somebody else has locked; another error is one."""

    fcntl = pytest.importorskip("fcntl")

    def locking(fd: int, mode: int, nbytes: int) -> None:
        assert (mode, nbytes) == (2, 1)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None

    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(LK_NBLCK=2, locking=locking))
    path = tmp_path / "lock"
    path.touch()
    one, other = (os.open(path, os.O_RDWR) for _ in range(2))
    assert (portable.try_lock(one), portable.try_lock(other)) == (True, False)
    os.close(one)
    assert portable.try_lock(other)


@pytest.mark.needs("posix")
def test_a_system_without_locks_says_so(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No locks available"):
        portable.try_lock(0)


def test_the_space_that_is_left(tmp_path: Path) -> None:
    assert (portable.free_space(tmp_path) or 0) > 0


#: Converts, and says at every rename and link whether the file is open.
WATCHED = """
import os, sys
def watch(name):
    real = getattr(os, name)
    def call(old, new, **more):
        for fd in os.listdir("/proc/self/fd"):
            try:
                there = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                continue
            if there == str(old) or there.startswith(f"{old}/"):
                print(f"{name} of an open file: {there}", file=sys.stderr)
        return real(old, new, **more)
    setattr(os, name, call)
watch("rename")
watch("replace")
from ckconv.cli import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.needs("posix")
@pytest.mark.parametrize("arguments", [("out.gguf",), ("out.gguf", "--force"), ("out/", "--to", "hf"), ("out/", "-fq")])
def test_nothing_is_renamed_while_it_is_open(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Windows refuses that."""
    (tmp_path / "out.gguf").write_bytes(b"old") if "--force" in arguments else None
    more = ["--to", "gguf"] if "-fq" in arguments else []
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, "convert", MODEL, *arguments, *more],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CKCONV_PORTABLE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "out" in {path.name.partition(".")[0] for path in tmp_path.iterdir()}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
