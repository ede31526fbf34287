"""Ranges of files behind HTTP: several tries, and proof that every answer is of the same file."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from email.message import Message
from typing import TypeVar

from ckconv.core.version import __version__
from ckconv.errors import CkconvError, InputError, OutputError, UnsupportedError

T = TypeVar("T")

#: Seconds before each further try.
PAUSES = (0.5, 1.0, 2.0, 4.0)

#: Seconds without a byte after which a connection counts as cut.
TIMEOUT = 60.0

#: Bytes of a file that is fetched whole where a server gives no ranges.
WHOLE = 64 << 20

#: Statuses of a server that may know better the next time.
_FOR_NOW = (408, 425, 429, 500, 502, 503, 504)
_REFUSED = (401, 403)
_MISSING = (404, 410)

#: What a connection that is cut, refused or slow raises; and what no further try makes better.
_CUT = (OSError, http.client.HTTPException, EOFError)
_FINAL = (FileNotFoundError, PermissionError)


def retried(work: Callable[[], T], url: str) -> T:
    """What ``work`` gives, after as many tries as there are :data:`PAUSES` and one more.

    Raises:
        OutputError: ``remote.read``, none went through.
    """
    for pause in (*PAUSES, None):
        try:
            return work()
        except _CUT as error:
            if pause is None or isinstance(error, _FINAL):
                reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
                message = f"cannot be read, after {len(PAUSES) + 1} tries: {reason}"
                raise OutputError("remote.read", message, path=url, hint="try again later") from error
            time.sleep(pause)
    raise AssertionError


class HttpFile:
    """One file behind HTTP or HTTPS; its first bytes are fetched at once, with its size, unless that is known.

    Raises:
        InputError: ``input.missing`` or ``input.unreadable``.
        UnsupportedError: ``remote.ranges``, the server gives whole files only, and it is large.
        OutputError: ``remote.read``.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str] | None = None, *, shown: str = "", size: int | None = None
    ) -> None:
        """Ask for the size, unless it is known.

        Args:
            headers: further ones, of the first server only: what it sends elsewhere needs no credentials.
            shown: what messages call it.
        """
        self._url, self._shown, self._headers = url, shown or url, dict(headers or {})
        self._mark: str | None = None
        self._first = b""
        self.size = size or 0
        if size is None:
            self._first = retried(lambda: self._get(0, 64 << 10, first=True), self._shown)

    def fetch(self, offset: int, nbytes: int) -> bytes:
        """See :class:`ckconv.io.elsewhere.Origin`."""
        if offset + nbytes <= len(self._first):
            return self._first[offset : offset + nbytes]
        return retried(lambda: self._get(offset, nbytes), self._shown)

    def _get(self, offset: int, nbytes: int, *, first: bool = False) -> bytes:
        request = urllib.request.Request(
            self._url, headers={"Range": f"bytes={offset}-{offset + nbytes - 1}", "User-Agent": f"ckconv/{__version__}"}
        )
        request.add_unredirected_header("Accept-Encoding", "identity")
        for name, value in self._headers.items():
            request.add_unredirected_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                size, whole = self._checked(answer.status, answer.headers)
                if not first and size != self.size:
                    raise self._changed(f"has {size:,} bytes now, {self.size:,} before")
                self.size = size
                wanted = size if whole else min(nbytes, size - offset)
                data: bytes = answer.read()
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and first:
                return b""  # of an empty file there is no range
            raise self._refusal(error) from error
        if len(data) != wanted:
            raise EOFError(f"{len(data):,} of {wanted:,} bytes came")
        if not whole:
            return data
        self._first = data
        return data[offset : offset + nbytes]

    def _checked(self, status: int, headers: Message) -> tuple[int, bool]:
        """The size of the file, and whether the answer is all of it; it must be the same file as the ones before."""
        mark = headers.get("ETag") or headers.get("Last-Modified")
        if self._mark is not None and mark != self._mark:
            raise self._changed("is not the file that it was: its ETag is another one")
        self._mark = mark
        if status == 206:
            size = (headers.get("Content-Range") or "").rpartition("/")[2]
        else:
            size = headers.get("Content-Length") or ""
        if not size.isdecimal() or (status != 206 and int(size) > WHOLE):
            hint = "download it first"
            raise UnsupportedError("remote.ranges", "the server gives no ranges of it", path=self._shown, hint=hint)
        return int(size), status != 206

    def _changed(self, what: str) -> OutputError:
        return OutputError("input.changed", f"{what}: it changed while it was read", path=self._shown)

    def _refusal(self, error: urllib.error.HTTPError) -> CkconvError | OSError:
        if error.code in _FOR_NOW:
            return error
        if error.code == 416:
            return self._changed("has fewer bytes now")
        if error.code in _MISSING:
            return InputError("input.missing", "there is no such file", path=self._shown)
        what = "is not open to you" if error.code in _REFUSED else "cannot be read"
        return InputError("input.unreadable", f"{what}: HTTP status {error.code}", path=self._shown)
