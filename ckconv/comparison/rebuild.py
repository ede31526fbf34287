"""An output made once more, and held byte for byte against the files that are there. Nothing is written anywhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ckconv.comparison.replan import file_name_of
from ckconv.conversion.losses import Losses
from ckconv.conversion.progress import Unwatched, Watcher
from ckconv.conversion.sidefiles import side_places
from ckconv.conversion.write import in_one_run
from ckconv.core.tensors import TensorIndex
from ckconv.core.version import __version__
from ckconv.errors import UsageError, VerifyError
from ckconv.formats import format_of
from ckconv.io.files import CHUNK, Files
from ckconv.options import Options
from ckconv.publish.files import opened_regular, pieces_of, there
from ckconv.record.conversion import ConversionRecord, records_of
from ckconv.record.read import OpenRecord, record_beside
from ckconv.record.schema import record_path
from ckconv.system import read_at

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ckconv.formats.destination import Destination
    from ckconv.plan.steps import Frame, OutputFile, Plan
    from ckconv.publish.files import SideFile

CODE = "verify.rebuild"

#: Plan and place of the conversion, told the name and the format of the output, and its options.
Prepare = Callable[[str, str, Options], "tuple[Plan, Destination]"]


class Rebuilt(NamedTuple):
    """What was found to be the same, byte for byte."""

    files: int
    nbytes: int


class Held:
    """Takes what a conversion writes, and holds it against a file."""

    def __init__(self, path: Path, fd: int, watcher: Watcher | None = None) -> None:
        """Describe it; ``path`` is what an error calls the file."""
        self._path, self._fd, self._watcher = path, fd, watcher or Unwatched()
        self.at = 0
        self._digest = sha256()
        self.tensor = ""

    def begin(self, at: int) -> None:
        """What comes next stands at byte ``at``."""
        self.at = at

    def named(self, tensor: str) -> None:
        """What comes next belongs to this tensor, or to none."""
        self.tensor = tensor

    @property
    def digest(self) -> bytes:
        """SHA-256 of everything that came."""
        return self._digest.digest()

    def put(self, data: Buffer) -> None:
        """Compare these bytes with the file's next ones.

        Raises:
            VerifyError: ``verify.rebuild``, the file has another byte, or none.
        """
        view = memoryview(data)
        view = view.cast("B") if view.nbytes else memoryview(b"")
        for start in range(0, len(view), CHUNK):
            meant = view[start : start + CHUNK]
            found = read_at(self._fd, len(meant), self.at)
            if found != meant:
                self._differs(found, meant)
            self._digest.update(meant)
            self.at += len(meant)
            self._watcher(len(meant), self.tensor)

    def ends(self) -> None:
        """Check that the file ends here.

        Raises:
            VerifyError: ``verify.rebuild``, the file goes on.
        """
        size = os.fstat(self._fd).st_size
        if size != self.at:
            message = f"has {size:,} bytes, {self.at:,} are made of the source: byte {self.at:,} is one too many"
            raise VerifyError(CODE, message, path=self._path, offset=self.at)

    def _differs(self, found: bytes, meant: memoryview) -> None:
        first = next((n for n, (one, other) in enumerate(zip(found, meant, strict=False)) if one != other), len(found))
        at, is_there = self.at + first, f"is {found[first]:#04x}" if first < len(found) else "is missing"
        message = f"byte {at:,} {is_there}, {meant[first]:#04x} is made of the source"
        raise VerifyError(CODE, message, path=self._path, offset=at, tensor=self.tensor or None)


def rebuild(
    out: TensorIndex,
    opened: Path,
    given: Callable[[ConversionRecord | None], Options],
    prepare: Prepare,
    *,
    named: Mapping[str, Path] | None = None,
    watcher: Watcher | None = None,
) -> Rebuilt:
    """Run the conversion of ``out`` again as its record says, and compare every byte of every file.

    The record itself, and lists of digests, are not made again: they are held against the files they list.

    Args:
        opened: what the user named.
        given: the options that count, told the record if there is one.
        named: side file -> where it is, if not beside the model.

    Raises:
        VerifyError: ``verify.rebuild``, the first byte that differs, or a file that is missing.
        UnsupportedError, UsageError: the conversion cannot be run again.
    """
    kept = record_beside(out) if format_of(out.format).keeps_source else None
    record = next(records_of(opened, out, kept), None)
    name = f"{opened}/" if opened.is_dir() else str(out.files[0].with_name(file_name_of(out)))
    asked, first = given(record), None
    # Whether a source record beside SRC was used is in no record.
    for used in (kept is not None,) if format_of(out.format).keeps_source else (True, False):
        plan, place = prepare(name, out.format, replace(asked, source_record=used))
        plan.check()
        try:
            return _compared(plan, place, named or {}, kept, watcher or Unwatched())
        except VerifyError as error:
            first = first or error
        if not format_of(plan.index.format).keeps_source:
            break
    assert first is not None
    if record is not None and record.version != __version__:
        first.hint = f"ckconv {record.version} made it, this is {__version__}"
    elif record is None:
        first.hint = "no conversion record says how it was made: repeat the options"
    raise first


def _compared(
    plan: Plan, place: Destination, named: Mapping[str, Path], kept: OpenRecord | None, watcher: Watcher
) -> Rebuilt:
    container = plan.contents()
    parent = place.parent
    if parent is None:
        raise UsageError("usage.target", "stdout holds nothing to compare")
    files, nbytes = 0, 0
    digests = []
    losses = Losses(plan)
    watcher.begin("rebuilding", plan.nbytes)
    with Files(plan.index.identities) as inputs:
        for file, frame in zip(plan.files, container.frames, strict=True):
            digests.append(_file(parent / file.name, file, frame, inputs, losses, watcher))
            files, nbytes = files + 1, nbytes + file.nbytes
        losses.check()
        inputs.check_unchanged()
    wanted = [name for name in container.on_request if there(named.get(name) or parent / name)]
    for path, small in side_places(plan, container, place, named, wanted).items():
        nbytes += _bytes(path, small.content)
        files += 1
    if plan.record is not None and kept is not None:
        pieces = plan.record.chunks(digests[0], kept.conversion())
        nbytes += _pieces(record_path(parent / plan.files[0].name), pieces)
        files += 1
    return Rebuilt(files, nbytes)


def _file(path: Path, file: OutputFile, frame: Frame, inputs: Files, losses: Losses, watcher: Watcher) -> bytes:
    """Compare one file of tensors; the digest that its header holds."""
    with _is_there(path) as fd:
        held = Held(path, fd, watcher)
        begin = frame.header_bytes + len(frame.prologue)
        held.begin(frame.header_bytes)
        held.put(frame.prologue)
        held.begin(begin)
        for data, name in in_one_run(file, begin, file.nbytes - len(frame.epilogue), inputs, losses):
            held.named(name)
            held.put(data)
        digest = held.digest
        held.named("")
        held.put(frame.epilogue)
        held.ends()
        if frame.header:
            held.begin(0)
            held.put(frame.header(digest))
    return digest


def _bytes(path: Path, content: SideFile) -> int:
    return _pieces(path, pieces_of(content))


def _pieces(path: Path, pieces: Iterable[bytes]) -> int:
    with _is_there(path) as fd:
        held = Held(path, fd)
        for piece in pieces:
            held.put(piece)
        held.ends()
    return held.at


@contextmanager
def _is_there(path: Path) -> Iterator[int]:
    """The file, open.

    Raises:
        VerifyError: ``verify.rebuild``, there is none.
    """
    if not there(path):
        raise VerifyError(CODE, "is missing, and is made of the source", path=path)
    with opened_regular(path) as fd:
        yield fd
