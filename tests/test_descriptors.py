"""A checkpoint of hundreds of shards at the descriptor limit of macOS; and what is said when even that is not kept."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from models import Model

from ckconv.errors import unreadable
from ckconv.io.files import Files
from ckconv.publish.files import Directory
from ckconv.publish.staging import Descriptors
from ckconv.system import MAX_OPEN

resource = pytest.importorskip("resource")  # of POSIX

#: One tensor a shard: 272 of them.
MANY = Model(layers=30, hidden=16, ffn=16, heads=2, kv_heads=2, vocab=8, context=4)


def limited(limit: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def run(limit: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ckconv", *map(str, arguments)]
    return subprocess.run(command, preexec_fn=limited(limit), capture_output=True, text=True)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_272_shards_are_written_read_and_verified_with_256_descriptors(tmp_path: Path) -> None:
    source = MANY.write(tmp_path / "m.gguf")
    for arguments in (
        ("convert", source, tmp_path / "hf", "--to", "safetensors", "--max-shard-size", 1, "--checksums"),
        ("convert", tmp_path / "hf", tmp_path / "again", "--to", "safetensors", "--max-shard-size", 1),
        ("verify", tmp_path / "again", tmp_path / "hf"),
        ("diff", tmp_path / "again", source),
    ):
        found = run(256, *arguments)
        assert (found.returncode, found.stderr) == (0, "")
    assert len(list((tmp_path / "again").glob("*.safetensors"))) == 272


def test_no_descriptor_left_is_the_system_s_fault_and_not_the_file_s(
    tmp_path: Path, ckconv: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MANY.write(tmp_path / "m.gguf")

    def refusing(path: object, *arguments: object, **more: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    assert ckconv("inspect", source).code == 0  # everything is imported
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refusing)
        found = ckconv("inspect", source)
    assert (found.code, found.out) == (6, "")
    assert found.err.splitlines() == [
        f"ckconv: error[system]: {source}: cannot be read: Too many open files",
        "hint: the limit of open files is reached (ulimit -n)",
    ]


@pytest.mark.parametrize(
    ("name", "code", "status"),
    [
        ("EMFILE", "system", 6),
        ("ENFILE", "system", 6),
        ("ENOMEM", "system", 6),
        ("EIO", "system", 6),
        ("EACCES", "input.unreadable", 3),
        ("ENOENT", "input.unreadable", 3),
    ],
)
def test_what_the_system_says_of_itself_is_no_fault_of_the_input(name: str, code: str, status: int) -> None:
    error = unreadable(OSError(getattr(errno, name), "words of the system"), "a.gguf", offset=7)
    assert (error.code, error.exit_code, error.path, error.offset) == (code, status, "a.gguf", 7)
    assert error.message == "cannot be read: words of the system"


def test_many_files_are_read_through_few_descriptors(tmp_path: Path) -> None:
    paths = [tmp_path / str(n) for n in range(3 * MAX_OPEN)]
    for n, path in enumerate(paths):
        path.write_bytes(bytes([n]))
    before = open_descriptors()
    with Files() as files:
        for _ in range(2):
            for n, path in enumerate(paths):
                byte = bytearray(1)
                files.read_into(path, 0, byte)
                assert byte == bytes([n])
        assert open_descriptors() == before + MAX_OPEN
        files.check_unchanged()
    assert open_descriptors() == before


@pytest.mark.parametrize("change", ["content", "removed", "another file"])
def test_a_change_of_a_file_that_was_closed_meanwhile_is_noticed(tmp_path: Path, change: str) -> None:
    paths = [tmp_path / str(n) for n in range(MAX_OPEN + 1)]
    for path in paths:
        path.write_bytes(b"x")
    with Files() as files:
        for path in paths:
            files.fd(path)
        if change == "content":
            paths[0].write_bytes(b"xy")
        else:
            paths[0].rename(tmp_path / "away")
        if change == "another file":
            paths[0].write_bytes(b"x")
        with pytest.raises(Exception, match="the file changed while it was being read") as caught:
            files.check_unchanged()
        assert getattr(caught.value, "code", "") == "input.changed"


def test_many_files_are_written_through_few_descriptors(tmp_path: Path) -> None:
    outputs = [tmp_path / str(n) for n in range(2 * MAX_OPEN)]
    before = open_descriptors()
    fds = Descriptors()
    here = Directory(tmp_path)
    for n, output in enumerate(outputs):
        fds.add(output, here.create(output.name), here, (output.name,))
        os.pwrite(fds[output], bytes([n]), 0)
    for output in reversed(outputs):
        os.pwrite(fds[output], b"!", 1)
    assert (open_descriptors(), len(fds), list(fds)) == (before + 1 + MAX_OPEN, len(outputs), outputs)
    fds.close()
    here.close()
    assert [output.read_bytes() for output in outputs] == [bytes([n]) + b"!" for n in range(len(outputs))]
    assert open_descriptors() == before
