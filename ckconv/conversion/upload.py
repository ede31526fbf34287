"""An output on another machine: made here, sent in parts, named last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from ckconv.conversion.follow import Watcher, watching
from ckconv.conversion.run import Report
from ckconv.errors import ADDRESSES, CkconvError, InputError, OutputError, UsageError, VerifyError, short, shown
from ckconv.formats import format_of
from ckconv.formats.safetensors.container import INDEX_SUFFIX
from ckconv.io import remote as http
from ckconv.io.addresses import address_of, as_path
from ckconv.io.digests import sha256_of
from ckconv.publish.files import opened_regular
from ckconv.signals import check

#: Addresses of this machine.
_LOCAL = ("file", "local")

#: What takes no files by itself.
_READ_ONLY = ("http", "https", "hf", "ollama")


class Upload:
    """An output on another machine.

    Attributes:
        local: what it is called while it is made.
    """

    def __init__(self, url: str, folder: Path) -> None:
        """Find out whether it can go there.

        Raises:
            UsageError, OutputError: it cannot.
        """
        place, _, name = url.rstrip("/").rpartition("/")
        directory = url.endswith("/")
        self._url, self._folder = url, folder
        self._uploads = Uploads(url if directory else place)
        self._uploads.check_free([] if directory else [name])
        self.local = f"{folder / name}/" if directory else str(folder / name)
        ADDRESSES[str(folder)] = shown(place)

    def publish(self, report: Report, watcher: Watcher | None = None) -> Report:
        """Send all files, then give them names; loaders' first files come last.

        Raises:
            CkconvError: nothing of it is there.
        """
        single = format_of(report.plan.format).single
        weights = [file.path for file in report.files]
        index = [path for path in report.side_files if path.name.endswith(INDEX_SUFFIX)]
        first = [path for path in report.side_files if path not in index and path.is_relative_to(self._folder)]
        paths = [*first, *(reversed(weights) if single else weights), *index]
        self._uploads.check_free([path.name for path in paths])
        digests = []
        watcher = watching(watcher)
        watcher.begin("sending", sum(path.stat().st_size for path in paths))
        try:
            for path in paths:
                check()
                with opened_regular(path) as fd:
                    digests.append((path.name, sha256_of(fd)))
                self._uploads.send(path, lambda n, name=path.name: watcher(n, name))  # type: ignore[misc]
            check()
            self._uploads.publish(digests)
        except BaseException as error:
            left = self._uploads.remove()
            if isinstance(error, CkconvError):
                error.details = (*error.details, *left)
            raise
        place = shown(self._uploads.url)

        def there(path: Path) -> Path:
            return as_path(f"{place}/{path.name}") if path.is_relative_to(self._folder) else path

        files = tuple(file._replace(path=there(file.path)) for file in report.files)
        return replace(
            report, target=shown(self._url), files=files, side_files=tuple(there(path) for path in report.side_files)
        )


@contextmanager
def uploading(target: str, *, replacing: bool = False, lasting: bool = False) -> Iterator[Upload | None]:
    """The upload of an output; ``None`` for a path of this machine.

    Args:
        replacing, lasting: what an output elsewhere cannot be asked for.

    Raises:
        UsageError: ``usage.target`` or ``usage.remote``.
        OutputError: ``output.exists``; ``remote.write``.
    """
    found = address_of(target)
    if found is None or "://" not in target:
        yield None
        return
    if found[1].lower() in _READ_ONLY:
        raise UsageError("usage.target", f"{found[1]}: can be read, but not written", hint="copy it there afterwards")
    if found[1].lower() in _LOCAL:  # what writes there would follow links
        hint = f"name it as one: {target.partition('://')[2]}"
        raise UsageError("usage.target", f"{found[1]}: is this machine, where outputs have paths", hint=hint)
    if replacing or lasting:
        raise UsageError("usage.target", "--force, --resume and --cluster are for outputs on this machine")
    import shutil
    import tempfile

    try:
        folder = Path(tempfile.mkdtemp(prefix="ckconv-"))
    except OSError as error:
        raise OutputError("output.write", f"there is no place for temporary files: {error.strerror}") from error
    try:
        yield Upload(target, folder)
    except CkconvError as error:
        error.path = shown(error.path) if error.path else None
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        ADDRESSES.pop(str(folder), None)


# -- Parts of an upload, as servers take them --------------------------------------------------------------------------

T = TypeVar("T")

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
            from fsspec.core import url_to_fs

            self._system, self._place = url_to_fs(self.url)
        except CkconvError:
            raise
        except ImportError as error:
            from ckconv.io.remote import missing_filesystem

            raise missing_filesystem(url) from error
        except ValueError as error:
            message = f"{url.partition(':')[0]}: is not written: {short(str(error).replace(url, shown(url)))}"
            raise UsageError("usage.remote", message) from error
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

    def send(self, path: Path, told: Callable[[int], None]) -> None:
        """Send a file, held back until :meth:`publish` if the system can.

        Raises:
            OutputError: ``remote.write``, after several tries.
        """

        def work() -> Any:
            to = self._system.open(self._path(path.name), "wb", block_size=_PART, autocommit=False)
            try:
                with open(path, "rb") as file:
                    while data := file.read(4 << 20):
                        to.write(data)
                        told(len(data))
                to.close()
            except BaseException:
                _discard(to)
                raise
            return to

        self._there.append(path.name)  # some systems show it from the first byte on
        self._sent.append((path.name, self._tried(work, path.name)))
        self._system.invalidate_cache()
        if not self._tried(lambda: self._system.exists(self._path(path.name)), path.name):
            self._there.remove(path.name)
            self._back.add(path.name)

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

        return http.retried(allowed, url, cut=(Exception,), code="remote.write")


def _discard(to: Any) -> None:
    try:
        to.discard()
    except Exception:  # it was not begun, or there is nobody to tell
        return
