"""One file of an output, written and verified by whoever has the description of it: this process or another one.

The output's other files are there with everything but their tensors, so that the format's own reader finds the model
whole. The file itself is made under a name of its own, which nobody else knows: it takes its place when it is finished,
and somebody who was taken for dead and lives writes to a file that is no more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from ckconv.core.tensors import TensorIndex, identity
from ckconv.engine.pipeline import Pipeline
from ckconv.engine.readback import check_frame
from ckconv.engine.request import Fingerprint, Request, fingerprint
from ckconv.engine.write import holes, write_frames
from ckconv.errors import InputError, OutputError, VerifyError
from ckconv.families.catalogue import own_families
from ckconv.formats.detect import open_index
from ckconv.io.ahead import at_once
from ckconv.io.files import Files
from ckconv.plan.container import Container
from ckconv.plan.steps import Plan
from ckconv.publish.files import close_unwritten, close_written, create, failing
from ckconv.publish.journal import temporary_name
from ckconv.publish.kept import UNFINISHED
from ckconv.system import allocate, sync

#: Held by the one thread that makes a file with what threads share.
_ALONE = Lock()

#: Seconds between two looks whether the file that is written is still wanted.
_PATIENCE = 2.0


class Piece(NamedTuple):
    """One file of an output: all that another process needs to make it.

    Attributes:
        number: of the file in the plan.
        staging: the directory where the output grows.
        opened: what a reader of the format opens there.
        places: where every file of tensors is going to be there, in order.
        target: what the user calls the output.
        verify: compare the tensors with their source.
        jobs: how many pieces of a tensor are converted at once.
    """

    request: Request
    fingerprint: Fingerprint
    number: int
    staging: str
    opened: str
    places: tuple[str, ...]
    target: str
    verify: bool
    jobs: int | None


class Made(NamedTuple):
    """A finished file, on the disk.

    Attributes:
        number: of the file in the plan.
        place: where it is.
        compared: its tensors were compared; not where a reader needs what is in other files.
        zero_filled, rounded: see :class:`ckconv.verification.tensors.Compared`.
        changed, merged, errors: what values lost: see :class:`ckconv.engine.losses.Losses`.
    """

    number: int
    place: str
    nbytes: int
    sha256: str
    compared: bool
    zero_filled: int
    rounded: int
    changed: Mapping[str, int]
    merged: Mapping[str, float]
    errors: Mapping[str, Any]


def make(piece: Piece) -> Made:
    """Make one file in a process that knows nothing of it yet.

    Raises:
        CkconvError: as a conversion.
        OutputError: ``cluster.version``; ``cluster.place``, the directory is not there.
    """
    if not Path(piece.staging).is_dir():
        message = "is not there for a worker: workers need the files under the same path"
        raise OutputError("cluster.place", message, path=piece.staging)
    options = piece.request.options
    # A worker of several threads (Dask's have as many as there are processors) has one plan, which counts errors of
    # quantising, and one list of families.
    with (
        _ALONE if options.quantize or options.families else nullcontext(),
        own_families(options.families),
        at_once(piece.jobs),
    ):
        plan, container = _planned(piece.request, piece.verify, piece.fingerprint)
        if not _is_current(plan):  # a file was saved again with its former size and time
            _planned.cache_clear()
            plan, container = _planned(piece.request, piece.verify, piece.fingerprint)
        return write_piece(plan, container, piece)


@lru_cache(maxsize=1)
def _planned(request: Request, verify: bool, expected: Fingerprint) -> tuple[Plan, Container]:
    """The plan of a conversion, for all of its pieces; a source that changed is planned anew."""
    plan = request.planned()
    plan.check()
    container = plan.contents()
    expected.check(fingerprint(plan, container, request, verify=verify))
    return plan, container


def _is_current(plan: Plan) -> bool:
    """Every file is the one whose header was read."""
    with suppress(OSError):
        return all(identity(path.stat()) == known for path, known in plan.index.identities.items())
    return False


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A watcher who ends the work when the file is taken away."""

    place: Path
    told: Callable[[int, str], None] | None
    looked: list[float]

    def __call__(self, nbytes: int, name: str) -> None:
        """``nbytes`` more are done."""
        if self.told is not None:
            self.told(nbytes, name)
        now = time.monotonic()
        if now - self.looked[0] > _PATIENCE:
            self.looked[0] = now
            if not self.place.exists():
                raise OutputError("output.write", "was removed: nothing waits for it any more", path=self.place)


def write_piece(
    plan: Plan, container: Container, piece: Piece, watcher: Callable[[int, str], None] | None = None
) -> Made:
    """Write one file of a plan, compare it with the source, and bring it to the disk.

    Raises:
        CkconvError: as a conversion.
    """
    file, frame = plan.files[piece.number], container.frames[piece.number]
    staged, folder = Path(piece.places[piece.number]), Path(piece.staging, UNFINISHED)
    place = folder / temporary_name(staged.name)
    wanted = _Wanted(place, watcher, [time.monotonic()])

    def read() -> TensorIndex:
        return open_index(Path(piece.opened), base=plan.options.base, follow_links=True)

    if plan.errors is not None:
        plan.errors.taken()
    fd = -1
    try:
        with failing(staged):
            fd = create(place)
        with failing(Path(piece.target)), Files(plan.index.identities) as files:
            allocate(fd, file.nbytes, holes(file))
            write_frames([(file, frame, fd)], staged)
            places = [Path(name) for name in piece.places]
            with as_output(piece):
                pipeline = Pipeline(plan, container, files, places, read, verify=piece.verify, moved={staged: place})
                (result,) = pipeline.run([piece.number], lambda _: fd, wanted)
            files.check_unchanged()
            losses, compared = result.losses, result.compared
            losses.check()
            if compared is not None:
                with as_output(piece):
                    compared.check(plan.index.path, (), {})
            check_frame(file, frame, b"", fd, staged)
            sync(fd)
            container.check(place)
        written, fd = fd, -1
        close_written(written)
    except BaseException:
        if fd >= 0:
            close_unwritten(fd)
        place.unlink(missing_ok=True)
        raise
    errors = plan.errors.taken() if plan.errors is not None else {}
    zero_filled, rounded = (compared.zero_filled, compared.rounded) if compared is not None else (0, 0)
    return Made(
        piece.number,
        str(place),
        file.nbytes,
        result.digest.hex(),
        compared is not None,
        zero_filled,
        rounded,
        losses.changed,
        losses.merged,
        errors,
    )


class as_output:  # noqa: N801 - used as a statement
    """Within the block, an error about what is staged is one about the target."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, VerifyError):
            error.path = self._piece.target
        elif isinstance(error, InputError) and error.path and Path(error.path).is_relative_to(self._piece.staging):
            found = VerifyError.of(error)
            found.path, found.message = self._piece.target, f"the output cannot be read back: {error.message}"
            raise found from error
