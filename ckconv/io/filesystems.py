"""Files of every system that fsspec knows: s3, gs, memory and the like."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

from ckconv.errors import (
    CkconvError,
    InputError,
    OutputError,
    UnsupportedError,
    UsageError,
    missing_package,
    short,
    shown,
)
from ckconv.io.http import retried

#: What a file system says of one state of a file; the first that it has is taken.
_MARKS = (
    *("ETag", "etag", "md5Hash", "generation", "version_id", "sha", "hex", "CRC"),
    *("LastModified", "last_modified", "modified", "modify", "mtime", "created"),
)


#: Scheme of an address -> the package that fsspec reads it with, where that is another.
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}


@contextmanager
def _asked(url: str) -> Iterator[None]:
    """What the packages of the systems raise has one of these classes, or is a failure of theirs.

    Raises:
        OutputError: ``remote.read``.
    """
    try:
        yield
    except (CkconvError, OSError, EOFError):
        raise
    except Exception as error:
        message = f"cannot be read: {type(error).__name__}: {short(str(error).replace(url, shown(url)))}"
        raise OutputError("remote.read", message, path=url) from error


class FsspecFile:
    """One file of such a system."""

    #: It gives ranges.
    whole = False

    def __init__(self, system: Any, path: str, shown: str, info: dict[str, Any]) -> None:
        self._system, self._path, self._shown = system, path, shown
        self.size = int(info["size"])
        self._mark: tuple[object, ...] | None = None
        self.state = str(_mark(info)[1])
        if not self.state:
            message = "the system does not say whether a file has changed: one that does would be read as a mixture"
            raise UnsupportedError("remote.changes", message, path=shown, hint="download it first")

    def fetch(self, offset: int, nbytes: int) -> bytes:
        """See :class:`ckconv.io.elsewhere.Origin`."""
        return retried(lambda: self._read(offset, nbytes), self._shown)

    def _read(self, offset: int, nbytes: int) -> bytes:
        with _asked(self._shown):
            data: bytes = self._system.cat_file(self._path, start=offset, end=offset + nbytes)
            self._system.invalidate_cache()  # what it says of the file is of now
            now = _mark(self._system.info(self._path))
        self._mark = self._mark or now
        if now != self._mark or now[0] != self.size:
            message = "changed while it was being read"
            raise OutputError("input.changed", message, path=self._shown)
        if len(data) != nbytes:
            raise EOFError(f"{len(data):,} of {nbytes:,} bytes came")
        return data


def _mark(info: dict[str, Any]) -> tuple[object, ...]:
    return int(info["size"]), next((str(info[key]) for key in _MARKS if info.get(key)), "")


def files_at(url: str) -> tuple[dict[str, FsspecFile], bool]:
    """The files at an address, by their paths below it; and whether it is one file alone, by its name.

    Raises:
        UsageError: ``usage.remote``, fsspec knows no such system.
        UnsupportedError: ``system.package``, fsspec or what it needs for this system is not installed.
        InputError: ``input.missing``, nothing is there; ``input.unreadable``.
        OutputError: ``remote.read``.
    """
    try:
        return retried(lambda: _found(url), url)
    except CkconvError as error:
        cause = error.__cause__
        if isinstance(cause, FileNotFoundError):
            raise InputError("input.missing", "there is no such file", path=url) from cause
        if isinstance(cause, PermissionError):
            raise InputError("input.unreadable", "may not be read: access is denied", path=url) from cause
        raise


def missing_filesystem(url: str) -> UnsupportedError:
    """``system.package``: what reads or writes at such an address is not installed."""
    scheme = url.partition(":")[0]
    return missing_package(f"{scheme}:", "fsspec", *filter(None, [_PACKAGES.get(scheme)]))


def _found(url: str) -> tuple[dict[str, FsspecFile], bool]:
    with _asked(url):
        try:
            from fsspec.core import url_to_fs

            system, path = url_to_fs(url)
        except ImportError as error:
            raise missing_filesystem(url) from error
        except ValueError as error:
            reason = short(str(error).replace(url, shown(url)))
            raise UsageError("usage.remote", f"{url.partition(':')[0]}: is not read: {reason}") from error
        return _listed(system, path, url)


def _listed(system: Any, path: str, url: str) -> tuple[dict[str, FsspecFile], bool]:
    info = system.info(path)
    if info["type"] == "file":
        name = PurePosixPath(path).name
        return {name: FsspecFile(system, path, url, info)}, True
    found = system.find(path, maxdepth=2, detail=True)
    inside = {str(PurePosixPath(name).relative_to(system._strip_protocol(path))): name for name in found}
    return {
        short: FsspecFile(system, name, f"{shown(url).rstrip('/')}/{short}", found[name])
        for short, name in inside.items()
    }, False
