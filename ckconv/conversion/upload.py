"""An output on another machine: made here, sent in parts, named last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ckconv.conversion.follow import Watcher, watching
from ckconv.conversion.run import Report
from ckconv.errors import ADDRESSES, CkconvError, OutputError, UsageError, shown
from ckconv.formats import format_of
from ckconv.formats.safetensors.container import INDEX_SUFFIX
from ckconv.io import address_of, as_path
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
        from ckconv.io.remote import Uploads

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
