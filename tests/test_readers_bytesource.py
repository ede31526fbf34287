"""Input bytes: files, pipes and what is refused before a reader sees it."""

from __future__ import annotations

import io
import os
import socket
from pathlib import Path

import pytest

from ckconv.errors import InputError, OutputError
from ckconv.io.files import PipeSource, lfs_pointer, open_source


@pytest.fixture
def digits(tmp_path):
    path = tmp_path / "digits"
    path.write_bytes(b"0123456789")
    return path


READS = [(0, 4, b"0123"), (8, 5, b"89"), (10, 1, b""), (1 << 70, 1, b""), (3, 0, b""), (0, 1 << 62, b"0123456789")]


@pytest.mark.parametrize(("offset", "nbytes", "expected"), READS)
def test_a_file_is_read_at_any_offset_and_short_at_its_end(digits, offset, nbytes, expected):
    with open_source(digits) as source:
        assert source.size == 10
        assert source.read_at(offset, nbytes) == expected


@pytest.mark.parametrize(("offset", "nbytes", "expected"), READS[:3] + READS[4:5])
def test_a_pipe_is_read_at_any_offset_and_short_at_its_end(offset, nbytes, expected):
    source = PipeSource(io.BytesIO(b"0123456789"))
    assert source.size is None
    assert source.read_at(offset, nbytes) == expected
    assert source.read_at(2, 2) == b"23"


def test_a_pipe_knows_its_size_once_its_end_was_seen():
    source = PipeSource(io.BytesIO(b"0123456789"))
    source.read_at(0, 10)
    assert source.size is None
    source.read_at(0, 11)
    assert source.size == 10


def test_a_pipe_is_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ckconv.io.files.PIPE_LIMIT", 50)
    source = PipeSource(io.BytesIO(b"x" * 100))
    assert source.read_at(40, 10) == b"x" * 10
    with pytest.raises(InputError, match="byte 51 is needed, and only the first 50 bytes of a pipe are kept") as caught:
        source.read_at(50, 1)
    assert caught.value.code == "input.pipe-limit"
    assert caught.value.exit_code == 3


def test_a_pipe_of_short_reads_is_put_together():
    class Dribble(io.RawIOBase):
        def __init__(self):
            self.parts = [b"ab", b"c", b"defg"]

        def read(self, nbytes=-1):
            return self.parts.pop(0) if self.parts else b""

    assert PipeSource(Dribble()).read_at(1, 5) == b"bcdef"


def test_a_closed_file_can_still_be_read(digits):
    with open_source(digits) as source:
        pass
    taken = os.dup(0)
    os.close(taken)
    assert source.read_at(2, 3) == b"234"
    again = os.dup(0)
    os.close(again)
    assert taken == again, "a descriptor was left open"


@pytest.mark.parametrize("content", [b"0123456780", b"012345678"])
def test_a_file_that_changed_after_it_was_closed_is_refused(digits, content):
    with open_source(digits) as source:
        pass
    digits.write_bytes(content)
    os.utime(digits, ns=(1, 1))
    with pytest.raises(OutputError, match="changed while it was being read") as caught:
        source.read_at(0, 1)
    assert (caught.value.code, caught.value.exit_code) == ("input.changed", 6)


def test_a_file_truncated_while_open_reads_short(digits):
    with open_source(digits) as source:
        os.truncate(digits, 4)
        assert source.read_at(2, 6) == b"23"


def fifo(path):
    os.mkfifo(path)
    return path


def unix_socket(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    return path


@pytest.mark.parametrize(
    ("make", "code", "message"),
    [
        (lambda p: p, "input.missing", "there is no such file"),
        (lambda p: p / "below", "input.missing", "there is no such file"),
        (lambda p: Path(f"{p}\0x"), "input.missing", "a file name cannot hold a NUL character"),
        (lambda p: p.parent, "input.directory", "is a directory"),
        (fifo, "input.special", "is a FIFO, a regular file is needed"),
        (unix_socket, "input.special", "is a socket"),
        (lambda p: Path("/dev/null"), "input.special", "is a character device"),
        (lambda p: p.with_name("x" * 300), "input.unreadable", "cannot be read: File name too long"),
    ],
)
def test_what_is_no_readable_regular_file_is_refused(tmp_path, make, code, message):
    with pytest.raises(InputError, match=message) as caught:
        open_source(make(tmp_path / "x"))
    assert (caught.value.code, caught.value.exit_code) == (code, 3)


def test_a_loop_of_links_is_refused(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(InputError, match="cannot be read") as caught:
        open_source(tmp_path / "a")
    assert caught.value.code == "input.unreadable"


@pytest.mark.needs("user")
def test_a_file_without_read_permission_is_refused(digits):
    digits.chmod(0)
    with pytest.raises(InputError, match="cannot be read: Permission denied") as caught:
        open_source(digits)
    assert caught.value.code == "input.unreadable"


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (b"4100000000", "is a git-lfs pointer for a 4.1 GB object"),
        (b"52428800", "is a git-lfs pointer for a 52.4 MB object"),
        (b"2048", "is a git-lfs pointer for a 2.0 kB object"),
        (b"17", "is a git-lfs pointer for a 17-byte object"),
        (b"9" * 400, "is a git-lfs pointer"),
    ],
)
def test_a_git_lfs_pointer_is_recognized(size, expected):
    text = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize " + size + b"\n"
    assert lfs_pointer(text) == expected


def test_other_text_is_no_git_lfs_pointer():
    assert lfs_pointer(b"version 2\nsize 100\n") is None
