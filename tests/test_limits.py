"""Limits of the system: a command succeeds within them, or ends with exit 6 and the name of the limit."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import FIXTURES, Result
from outputs import contents

resource = pytest.importorskip("resource")  # of POSIX

pytestmark = pytest.mark.attack

Ckconv = Callable[..., Result]

LLAMA = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"


def limited(name: str, value: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    limit = getattr(resource, name)
    return subprocess.run(
        [sys.executable, "-m", "ckconv", *map(str, arguments)],
        preexec_fn=lambda: resource.setrlimit(limit, (value, value)),
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not keep this limit")
@pytest.mark.product("values")
@pytest.mark.parametrize("megabytes", [60, 100, 150, 180, 200, 220, 260, 300])
@pytest.mark.parametrize("command", ["convert", "verify", "inspect"])
def test_little_memory(command: str, megabytes: int, tmp_path: Path) -> None:
    out = [tmp_path / "m.bump"] if command == "convert" else []
    done = limited("RLIMIT_AS", megabytes * 1_000_000, command, LLAMA, *out)
    assert done.returncode in (0, 6), done.stderr
    if done.returncode == 6:
        assert "error[system]" in done.stderr
        assert "memory" in done.stderr
        assert f"hint: the limit of memory is {megabytes * 1_000_000 // 1024:,} kB (ulimit -v)" in done.stderr
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("files", [12, 16, 20, 32, 64])
def test_few_open_files(files: int, tmp_path: Path) -> None:
    done = limited("RLIMIT_NOFILE", files, "convert", LLAMA, f"{tmp_path}/m/", "--to", "hf", "--max-shard-size", "20kB")
    assert done.returncode in (0, 6), done.stderr
    if done.returncode == 6:
        assert "Too many open files" in done.stderr
        assert "(ulimit -n)" in done.stderr
    else:
        assert len([*(tmp_path / "m").glob("*.safetensors")]) > 10
    assert [path.name for path in tmp_path.iterdir()] == ([] if done.returncode else ["m"])
    if files == 64:
        assert done.returncode == 0


def test_no_threads(ckconv: Ckconv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    done = ckconv("convert", LLAMA, tmp_path / "m.gguf")
    assert done.code in (0, 6), done.err
    assert done.code == 0 or "no thread can be started" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ([] if done.code else ["m.gguf"])


def test_no_directory_for_temporary_files(ckconv: Ckconv, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**how: object) -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    pytest.importorskip("fsspec")
    monkeypatch.setattr(tempfile, "mkdtemp", refused)
    done = ckconv("convert", LLAMA, "memory://limits/m.gguf")
    assert (done.code, "there is no place for temporary files" in done.err) == (6, True)


@pytest.mark.needs("user")
def test_a_home_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ckconv: Ckconv) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o500)
    monkeypatch.setenv("HOME", str(home))
    assert ckconv("convert", LLAMA, tmp_path / "m.gguf").code == 0
    refused = ckconv("convert", LLAMA, home / "m.gguf")
    assert (refused.code, "Permission denied" in refused.err) == (6, True)


def test_a_directory_in_the_place_of_the_lock_is_named(ckconv: Ckconv, tmp_path: Path) -> None:
    (tmp_path / ".ckconv.lock").mkdir()
    done = ckconv("convert", LLAMA, tmp_path / "m.gguf")
    assert done.code == 6
    assert f"{tmp_path}/.ckconv.lock: is no file that a run of ckconv could lock" in done.err
    assert "hint: remove it" in done.err
    (tmp_path / ".ckconv.lock").rmdir()
    assert ckconv("convert", LLAMA, tmp_path / "m.gguf").code == 0


#: What is written, each to a directory of its own.
WRITTEN = {
    "file": ["convert", LLAMA, "OUT/m.gguf", "--checksums"],
    "directory": ["convert", LLAMA, "OUT/m/", "--to", "hf"],
    "replaced": ["convert", LLAMA, "OUT/m/", "--to", "hf", "--force"],
    "shared": ["convert", LLAMA, "OUT/m/", "--to", "hf", "--max-shard-size", "80kB", "--resume"],
    "edited": ["edit", "OUT/e.gguf", "--set-meta", "general.name=x", "--in-place"],
    "batch": ["batch", LLAMA, "--to", "gguf", "--into", "OUT"],
}

#: What each of them writes on a file system that has everything.
MEANT: dict[str, dict[str, bytes]] = {}


def written(command: list[object], out: Path, ckconv: Ckconv) -> tuple[Result, dict[str, bytes]]:
    """What a command says, and the files that are there then: beside old ones, where it replaces some."""
    if "--force" in command:
        (out / "m").mkdir(parents=True)
        (out / "m" / "config.json").write_bytes(b"old")
        (out / "m" / "mine.txt").write_bytes(b"mine")
    out.mkdir(exist_ok=True)
    (out / "e.gguf").write_bytes(LLAMA.read_bytes())
    done = ckconv(*(str(word).replace("OUT", str(out)) for word in command))
    return done, contents(out)


@pytest.mark.product("pairs")
@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP], ids=os.strerror)
@pytest.mark.parametrize("what", ["links", "locks", "neither"])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_file_system_without_links_or_locks(
    name: str, what: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ckconv: Ckconv
) -> None:
    """Or a container that allows none: everything is written as elsewhere."""
    import fcntl

    def refused(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    if name not in MEANT:
        _, MEANT[name] = written(WRITTEN[name], tmp_path / "elsewhere", ckconv)
    if what != "locks":
        monkeypatch.setattr(os, "link", refused)
    if what != "links":
        monkeypatch.setattr(fcntl, "flock", refused)
    done, found = written(WRITTEN[name], tmp_path / "out", ckconv)
    assert (done.code, found) == (0, MEANT[name]), done.err


@pytest.mark.product("values")
@pytest.mark.parametrize("home", ["read-only", "not there", "unset", "empty"])
@pytest.mark.parametrize("name", WRITTEN)
def test_whatever_the_home_directory_is_nothing_is_kept_there(
    name: str, home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No cache, no settings: a home that may not be written to, or none at all, changes nothing."""
    place, out = tmp_path / "home", tmp_path / "out"
    environment = {key: value for key, value in os.environ.items() if key != "HOME" and not key.startswith("XDG_")}
    if home != "not there":
        place.mkdir(mode=0o500)
    if home != "unset":
        environment["HOME"] = "" if home == "empty" else str(place)

    def run(*arguments: object) -> Result:
        command = [sys.executable, "-m", "ckconv", *map(str, arguments)]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
        return Result(done.returncode, done.stdout, done.stderr)

    done, _ = written(WRITTEN[name], out, run)
    assert done.code == 0, done.err
    if name == next(iter(WRITTEN)):
        assert (run("inspect", LLAMA).code, run("verify", LLAMA).code) == (0, 0)
    assert {path.name for path in tmp_path.iterdir()} <= {"home", "out"}
    assert list(place.iterdir() if place.exists() else ()) == []
