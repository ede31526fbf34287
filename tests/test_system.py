"""What the system is asked for, where it may know more or less."""

from __future__ import annotations

import os
from pathlib import Path

from ckconv import system


def test_what_is_read_ahead_changes_nothing(tmp_path: Path) -> None:
    """Cached or not, beyond the end or of no file of bytes: it is a wish."""
    path = tmp_path / "file"
    path.write_bytes(b"12345678" * 1024)
    fd = os.open(path, os.O_RDONLY)
    pipe, other = os.pipe()
    try:
        for offset, nbytes in ((0, 8192), (8000, 1 << 20), (1 << 40, 5), (0, 0), (5, -5)):
            system.reads_soon(fd, offset, nbytes)
        system.reads_soon(pipe, 0, 10)
        assert os.pread(fd, 8, 0) == b"12345678"
    finally:
        for each in (fd, pipe, other):
            os.close(each)
