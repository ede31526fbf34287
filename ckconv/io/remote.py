"""Files on other machines, read and uploaded: HTTP, the hub, fsspec."""

from __future__ import annotations

import base64
import http.client
import io
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.message import Message
from functools import cache
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote_to_bytes, urlsplit, urlunsplit

from ckconv.core import __version__
from ckconv.errors import (
    CkconvError,
    InputError,
    OutputError,
    UnsupportedError,
    UsageError,
    VerifyError,
    missing_package,
    short,
    shown,
)
from ckconv.io.standins import keep

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

T = TypeVar("T")

#: Seconds before each further try.
PAUSES = (0.5, 1.0, 2.0, 4.0)

#: Seconds without a byte after which a connection counts as cut; and the bytes that must come in any such time.
TIMEOUT, LEAST_READ = 60.0, 60_000

#: Bytes of a file that is fetched whole where a server gives no ranges.
WHOLE = 64 << 20

#: Bytes of everything around a file: status, header, what is said of an error or of another place.
_AROUND = 256 << 10

#: Statuses of a server that may know better the next time.
_FOR_NOW = (408, 425, 429, 500, 502, 503, 504)
_REFUSED = (401, 403)
_MISSING = (404, 410)

#: Bytes of a label of a host's name (RFC 1035).
_LABEL = 63

#: Numbers of 64 bits have at most as many digits.
_DIGITS = 19
_RANGE = re.compile(rf"bytes (\d{{1,{_DIGITS}}})-(\d{{1,{_DIGITS}}})/(\d{{1,{_DIGITS}}})")

#: What a connection that is cut, refused or slow raises; and what no further try makes better.
_CUT = (OSError, http.client.HTTPException, EOFError)
_FINAL = (FileNotFoundError, PermissionError, FileExistsError)


def retried(
    work: Callable[[], T], url: str, *, cut: tuple[type[Exception], ...] = _CUT, code: str = "remote.read"
) -> T:
    """Return the result of ``work``, tried once more after each of ``PAUSES``.

    Args:
        cut: what another try may mend.
        code: of the error.

    Raises:
        OutputError: none went through.
    """
    for pause in (*PAUSES, None):
        try:
            return work()
        except CkconvError:
            raise
        except cut as error:
            if pause is None or isinstance(error, _FINAL):
                reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
                done, why = ("read", short(str(reason))) if code == "remote.read" else ("written", type(error).__name__)
                message = f"cannot be {done}, after {len(PAUSES) + 1} tries: {why}"
                raise OutputError(code, message, path=url, hint="try again later") from error
            time.sleep(pause)
    raise AssertionError


class _Steady(io.RawIOBase):
    """The body of an answer, refused if too slow or too long."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw
        self.left = _AROUND
        self._since, self._came = float("inf"), 0

    def readable(self) -> bool:
        """Whether the stream can be read: it can."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Bytes that have come.

        Raises:
            ConnectionError: fewer than :data:`LEAST_READ` came in the last :data:`TIMEOUT` seconds, or too many in all.
        """
        count: int | None = self._raw.readinto(buffer)
        now = time.monotonic()
        self.left -= count or 0
        self._since, self._came = min(self._since, now), self._came + (count or 0)
        if self.left < 0:
            raise ConnectionError("the answer has no end")
        if now - self._since > TIMEOUT:
            if self._came < LEAST_READ:
                raise ConnectionError(f"only {self._came:,} bytes came in {now - self._since:.0f} seconds")
            self._since, self._came = now, 0
        return count

    def close(self) -> None:
        """Close the connection, too."""
        self._raw.close()
        super().close()


class _Answer(http.client.HTTPResponse):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._steady = _Steady(self.fp.detach())
        self.fp = io.BufferedReader(self._steady)

    def allow(self, nbytes: int) -> None:
        """Let so many bytes of a file come."""
        self._steady.left += nbytes


class _Connection(http.client.HTTPConnection):
    response_class = _Answer


class _SecureConnection(http.client.HTTPSConnection):
    response_class = _Answer


class _Connections(urllib.request.AbstractHTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Ask a server."""
        return self.do_open(_Connection, request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Ask a server that proves who it is."""
        return self.do_open(_SecureConnection, request)

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        """Follow a redirect; credentials go along on the same server only."""
        fp.close()  # its page need not end
        to = super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]
        there, here = urlsplit(newurl), urlsplit(req.full_url)
        if there.scheme not in ("https", here.scheme):
            message = f"the server sends readers on to {short(shown(newurl))}, which is not {here.scheme}"
            raise UnsupportedError(
                "remote.redirect", message, path=req.full_url, hint="name the address that you trust"
            )
        if to is not None:
            to.headers.pop("Proxy-authorization", None)  # perhaps no proxy is asked there
            to.unredirected_hdrs.update(req.unredirected_hdrs if there[:2] == here[:2] else {})
        return to


@cache
def _opener() -> urllib.request.OpenerDirector:
    """An opener for HTTP alone: Python's knows FTP and local files."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(),
        _Connections(),
    ):
        opener.add_handler(handler)
    return opener


def _sent(url: str) -> tuple[str, dict[str, str]]:
    """An address escaped for sending, and its authorization header."""
    parts = urlsplit(url)
    if parts.port is not None and not parts.hostname:
        raise ValueError
    user, at, host = parts.netloc.rpartition("@")
    if not host.isascii():
        host = host.encode("idna").decode("ascii")
    if any(len(label) > _LABEL or not label for label in (parts.hostname or "").removesuffix(".").split(".")):
        raise ValueError
    path, query = (
        quote(part, safe="%/:=&?~+!$,;'@()*[]", errors="surrogateescape") for part in (parts.path, parts.query)
    )
    header = {"Authorization": f"Basic {base64.b64encode(unquote_to_bytes(user)).decode()}"} if at else {}
    return urlunsplit((parts.scheme, host, path, query, "")), header


class HttpFile:
    """A file behind HTTP or HTTPS.

    The first bytes are fetched at once, with the size, unless that is known.

    Raises:
        InputError: ``input.missing`` or ``input.unreadable``.
        UnsupportedError: ``remote.ranges``, the server gives whole files only, and it is large.
        OutputError: ``remote.read``.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        shown: str = "",
        size: int | None = None,
        state: str = "",
    ) -> None:
        """Ask for the size, unless it is known.

        Args:
            headers: further ones, of the first server only: what it sends elsewhere needs no credentials.
            shown: what messages call it.
            state: see :class:`ckconv.io.standins.Origin`, where the server need not be asked.
        """
        self._state = state
        self._shown = shown or url
        try:
            self._url, given = _sent(url)
        except ValueError:
            raise self._none() from None
        self._headers = {**given, **(headers or {})}
        self._mark: str | None = None
        self.size = size or 0
        self.whole = False
        if size is None:
            keep(self, retried(lambda: self._get(0, 64 << 10, first=True), self._shown))

    @property
    def state(self) -> str:
        """See :class:`ckconv.io.standins.Origin`."""
        return self._state or self._mark or ""

    def fetch(self, offset: int, nbytes: int) -> bytes:
        """See :class:`ckconv.io.standins.Origin`."""
        return retried(lambda: self._get(offset, nbytes), self._shown)

    def _get(self, offset: int, nbytes: int, *, first: bool = False) -> bytes:
        request = urllib.request.Request(
            self._url, headers={"Range": f"bytes={offset}-{offset + nbytes - 1}", "User-Agent": f"ckconv/{__version__}"}
        )
        request.add_unredirected_header("Accept-Encoding", "identity")
        for name, value in self._headers.items():
            request.add_unredirected_header(name, value)
        try:
            with _opener().open(request, timeout=TIMEOUT) as answer:
                size, span = self._checked(answer.status, answer.headers)
                if not first and size != self.size:
                    raise self._changed(f"has {size:,} bytes now, {self.size:,} before")
                self.size, self.whole = size, span is None
                wanted = size if span is None else min(nbytes, size - offset)
                if span not in (None, (offset, offset + wanted - 1)):
                    raise ConnectionError("the server sent another range than it was asked for")
                answer.allow(wanted)
                data: bytes = answer.read(wanted + 1)
                mark = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and first:
                return b""  # of an empty file there is no range
            raise self._refusal(error) from error
        except (http.client.InvalidURL, ValueError):
            raise self._none() from None
        if len(data) != wanted:
            raise EOFError(f"{len(data):,} of {wanted:,} bytes came")
        if span is None and not mark:
            mark = sha256(data).hexdigest()
        if self._mark not in (None, mark):
            raise self._changed("changed while it was being read: its ETag is another one")
        self._mark = mark
        return data if span is not None or first else data[offset : offset + nbytes]

    def _checked(self, status: int, headers: Message) -> tuple[int, tuple[int, int] | None]:
        """The size of the file, and the range of the answer; ``None`` for all."""
        if status == 206 and not (headers.get("ETag") or headers.get("Last-Modified")):
            message = "the server gives neither ETag nor Last-Modified: a file that changes would be read as a mixture"
            raise UnsupportedError("remote.changes", message, path=self._shown, hint="download it first")
        found = _RANGE.fullmatch((headers.get("Content-Range") or "").strip()) if status == 206 else None
        if found:
            start, end, size = map(int, found.groups())
            return size, (start, end)
        length = headers.get("Content-Length") or ""
        if status == 206 or not length.isdecimal() or len(length) > _DIGITS or int(length) > WHOLE:
            hint = "download it first"
            raise UnsupportedError(
                "remote.ranges", "the server does not send parts of a file", path=self._shown, hint=hint
            )
        return int(length), None

    def _none(self) -> InputError:
        return InputError("input.missing", "is not an address", path=self._shown)

    def _changed(self, what: str) -> OutputError:
        return OutputError("input.changed", f"{what}: it changed while it was read", path=self._shown)

    def _refusal(self, error: urllib.error.HTTPError) -> CkconvError | OSError:
        if error.code in _FOR_NOW:
            return error
        if error.code == 416:
            return self._changed("has fewer bytes now")
        if error.code in _MISSING:
            return InputError("input.missing", "there is no such file", path=self._shown)
        what = "may not be read: access is denied" if error.code in _REFUSED else "cannot be read"
        return InputError("input.unreadable", f"{what}: HTTP status {error.code}", path=self._shown)


# Files of every system that fsspec knows: s3, gs, memory and the like.

#: What a file system says of one state of a file; the first that it has is taken.
_MARKS = (
    *("ETag", "etag", "md5Hash", "generation", "version_id", "sha", "hex", "CRC"),
    *("LastModified", "last_modified", "modified", "modify", "mtime", "created"),
)


#: Scheme of an address -> the package that fsspec reads it with, where that is another.
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}


@contextmanager
def _attempted(url: str) -> Iterator[None]:
    """Turn exceptions of the packages into errors about an address."""
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
        """See :class:`ckconv.io.standins.Origin`."""
        return retried(lambda: self._read(offset, nbytes), self._shown)

    def _read(self, offset: int, nbytes: int) -> bytes:
        with _attempted(self._shown):
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
    """The files at an address by their paths, and whether it is one file.

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


def _filesystem(url: str, done: str) -> tuple[Any, str]:
    """An object that speaks to the system of an address; the path there.

    Args:
        done: what is done there: ``read`` or ``written``.
    """
    scheme = url.partition(":")[0]
    try:
        from fsspec.core import url_to_fs

        system, path = url_to_fs(url)
    except ImportError as error:
        raise missing_package(f"{scheme}:", "fsspec", *filter(None, [_PACKAGES.get(scheme)])) from error
    except ValueError as error:
        reason = short(str(error).replace(url, shown(url)))
        raise UsageError("usage.remote", f"{scheme}: is not {done}: {reason}") from error
    return system, path


def _found(url: str) -> tuple[dict[str, FsspecFile], bool]:
    with _attempted(url):
        return _listed(*_filesystem(url, "read"), url)


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


# Repositories of the hub, as huggingface_hub knows them: where it is, who one is, and what a revision holds. Nothing
# else needs that package: HTTP needs none, and every other scheme fsspec.


def offline() -> bool:
    """Whether only the cache may be asked."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def repository(name: str, revision: str | None) -> dict[str, HttpFile]:
    """Every file of a repository, at the one commit that the revision is now.

    Raises:
        InputError: ``input.missing`` or ``input.unreadable``.
        OutputError: ``remote.read``.
    """
    from huggingface_hub import get_token, hf_hub_url

    url = f"hf://{name}" + (f"@{revision}" if revision else "")
    info = retried(lambda: _model_info(name, revision, url), url)
    token = get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return {
        file.rfilename: HttpFile(
            hf_hub_url(name, file.rfilename, revision=info.sha),
            headers,
            shown=f"hf://{name}/{file.rfilename}",
            size=file.size,
            state=f"{info.sha} {file.rfilename}",
        )
        for file in info.siblings or ()
    }


def _model_info(name: str, revision: str | None, url: str) -> ModelInfo:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return HfApi().model_info(name, revision=revision, files_metadata=True)
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status == 404:
            raise InputError("input.missing", "there is no such repository or revision", path=url) from error
        if status in (401, 403):
            hint = "hf auth login"
            raise InputError("input.unreadable", "is not there, or not open to you", path=url, hint=hint) from error
        raise ConnectionError(f"HTTP status {status}") from error
    except HFValidationError as error:
        raise InputError("input.missing", "is not the name of a repository", path=url) from error
    except OSError:
        raise
    except Exception as error:  # of the library that it asks with
        raise ConnectionError(short(str(error))) from error


# -- Uploads in parts, named by their last request ---------------------------------------------------------------------

#: Bytes of a part: S3 takes ten thousand of them, so a file may have 640 GB.
_PART = 64 << 20


class Uploads:
    """Files on their way to one directory elsewhere.

    Attributes:
        url: of the directory.
    """

    def __init__(self, url: str) -> None:
        """Find what speaks to that system.

        Raises:
            UsageError: ``usage.remote``, fsspec knows no such system.
            UnsupportedError: ``system.package``, what writes there is not installed.
        """
        self.url = url.rstrip("/")
        try:
            self._system, self._place = _filesystem(self.url, "written")
        except CkconvError:
            raise
        except Exception as error:  # some connect, or look for credentials, at once
            message = f"cannot be written: {type(error).__name__}"
            raise OutputError("remote.write", message, path=self.url, hint="try again later") from error
        #: Files that are sent, in order; names that may be there; those of files that the system holds back.
        self._sent: list[tuple[str, Any]] = []
        self._there: list[str] = []
        self._back: set[str] = set()

    def check_free(self, names: Sequence[str]) -> None:
        """Raise if a name is taken; without names, if the directory is not empty.

        Raises:
            OutputError: ``output.exists``; ``remote.write``.
        """
        self._system.invalidate_cache()
        for name in names:
            if self._tried(lambda name=name: self._system.exists(self._path(name)), name):  # type: ignore[misc]
                raise OutputError("output.exists", "exists already", path=f"{self.url}/{name}", hint="remove it first")
        if not names and self._tried(lambda: self._system.exists(self._place) and self._system.ls(self._place), ""):
            raise OutputError("output.exists", "holds something already", path=self.url, hint="name another place")

    def send(self, path: Path, name: str, report: Callable[[int], None]) -> None:
        """Send a file, held back until :meth:`publish` if the system can.

        Raises:
            OutputError: ``remote.write``, after several tries.
        """

        def work() -> Any:
            if "/" in name:
                self._system.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)
            to = self._system.open(self._path(name), "wb", block_size=_PART, autocommit=False)
            try:
                with open(path, "rb") as file:
                    while data := file.read(4 << 20):
                        to.write(data)
                        report(len(data))
                to.close()
            except BaseException:
                _discard(to)
                raise
            return to

        self._there.append(name)  # some systems show it from the first byte on
        self._sent.append((name, self._tried(work, name)))
        self._system.invalidate_cache()
        if not self._tried(lambda: self._system.exists(self._path(name)), name):
            self._there.remove(name)
            self._back.add(name)

    def publish(self, digests: Sequence[tuple[str, str]]) -> None:
        """Publish the files in order, each read back before the next.

        Args:
            digests: name and SHA-256 of each, in the order of :meth:`send`.

        Raises:
            VerifyError: ``verify.file``, it holds something else.
            OutputError: ``output.exists``, somebody else made it meanwhile; ``remote.write``, ``remote.read``.
        """
        for (name, to), (_, digest) in zip(self._sent, digests, strict=True):
            if name in self._back:
                self.check_free([name])  # sending took its time
                self._there.append(name)
            self._tried(to.commit, name)
            self._system.invalidate_cache()
            if self._tried(lambda name=name: self._digest(name), name) != digest:  # type: ignore[misc]
                raise VerifyError("verify.file", "is not what was sent", path=f"{self.url}/{name}")

    def remove(self) -> list[str]:
        """Take back everything.

        Returns:
            sentences about what is still there.
        """
        left = []
        for _, to in self._sent:
            _discard(to)
        self._system.invalidate_cache()
        for name in reversed(self._there):
            try:
                if self._system.exists(self._path(name)):
                    self._system.rm_file(self._path(name))
            except Exception:
                left.append(f"{shown(self.url)}/{name} may be left over: its server does not answer")
        return left

    def _digest(self, name: str) -> str:
        digest = sha256()
        with self._system.open(self._path(name), "rb", block_size=4 << 20) as file:
            while data := file.read(4 << 20):
                digest.update(data)
        return digest.hexdigest()

    def _path(self, name: str) -> str:
        return f"{self._place.rstrip('/')}/{name}"

    def _tried(self, work: Callable[[], T], name: str) -> T:
        url = f"{self.url}/{name}" if name else self.url

        def allowed() -> T:
            try:
                return work()
            except PermissionError as error:
                raise InputError("input.unreadable", "may not be read: access is denied", path=url) from error

        return retried(allowed, url, cut=(Exception,), code="remote.write")


def _discard(to: Any) -> None:
    try:
        to.discard()
    except Exception:  # it was not begun, or there is nobody to tell
        return
