"""An output of several files, each of which is made apart: here or by workers, and again if its worker dies.

Nothing of it is under its name, nor the files around it, until every piece is finished and verified.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ckconv.engine.dispatch import dispatched
from ckconv.engine.losses import Losses
from ckconv.engine.pieces import Made, Piece, as_output, make, write_piece
from ckconv.engine.pipeline import phase
from ckconv.engine.progress import Watcher
from ckconv.engine.readback import check_frame
from ckconv.engine.request import Request, fingerprint, requested
from ckconv.engine.write import write_frames
from ckconv.formats import format_of
from ckconv.formats.destination import Destination
from ckconv.formats.detect import open_index
from ckconv.formats.safetensors.spec import INDEX_SUFFIX
from ckconv.io.files import Files
from ckconv.plan.container import Container, Written
from ckconv.plan.steps import Plan
from ckconv.publish.kept import Finished, Kept
from ckconv.publish.staging import Outputs
from ckconv.signals import check
from ckconv.verification.statements import check_statements
from ckconv.verification.tensors import compare_tensors, within


class Apart(NamedTuple):
    """How the files of an output are made apart.

    Attributes:
        executor: who makes them; ``None`` for this process, one after the other.
        resume: what is finished stays when the run ends early, and the next one goes on with it.
        jobs: how many pieces of a tensor a worker converts at once; ``None`` for one.
    """

    request: Request
    executor: Executor | None = None
    resume: bool = False
    jobs: int | None = None


def apart_of(
    plan: Plan,
    source: str | os.PathLike[str],
    source_format: str | None,
    adapters: Sequence[tuple[str | os.PathLike[str], float]],
    executor: Executor | None,
    resume: bool,
    jobs: int | None,
) -> Apart:
    """How the files of this plan's output are made apart, with what made the plan."""
    return Apart(requested(plan, source, source_format, adapters), executor, resume, jobs)


def is_apart(plan: Plan) -> bool:
    """There are several files of tensors, none of which says a digest, and they are compared with their source."""
    return len(plan.files) > 1 and plan.restores is None and plan.record is None


class Assembly:
    """The pieces of one output."""

    def __init__(self, plan: Plan, container: Container, how: Apart, *, verify: bool) -> None:
        """Look at the source once more: what was made of another one is not gone on with.

        Raises:
            OutputError: ``input.changed``.
        """
        self._plan, self._container, self._how, self._verify = plan, container, how, verify
        self._fingerprint = fingerprint(plan, container, how.request, verify=verify)
        self.kept = Kept(str(self._fingerprint), len(plan.files)) if how.resume else None
        self._made: dict[int, Made] = {}
        self.losses = Losses(plan)

    @property
    def _done(self) -> Mapping[str, Finished]:
        return self.kept.files if self.kept is not None else {}

    def run(
        self, outputs: Outputs, paths: Sequence[Path], target: Destination, watcher: Watcher
    ) -> tuple[Losses, list[Written], int | None]:
        """Make what is not finished, put all of it into place, and look at the whole.

        Args:
            paths: the files of tensors, in order.

        Returns:
            what values lost, the files, and the number of tensors compared, ``None`` where that was not asked for.

        Raises:
            CkconvError: as a conversion.
        """
        plan = self._plan
        parts = zip(plan.files, self._container.frames, paths, strict=True)
        write_frames(((file, frame, outputs.fds[path]) for file, frame, path in parts), Path(target.name))
        outputs.unfinished()
        pieces = [*self._pieces(outputs, paths, target)]
        watcher.begin(phase(plan), plan.nbytes)
        for made in (Made(**found.facts) for found in self._done.values()):
            watcher(made.nbytes, "")
            self._note(made)
        left = [piece for piece in pieces if piece.number not in self._made]
        if self._how.executor is None:
            for piece in left:
                check()
                self._finished(write_piece(plan, self._container, piece, watcher))
        else:
            for made in dispatched(self._how.executor, make, left):
                watcher(made.nbytes, plan.files[made.number].name)
                self._finished(made)
        for number, path in enumerate(paths):
            outputs.take(path, self._place(number))
        self.losses.check()
        compared = self._settle(outputs, paths, pieces[0])
        written = (
            Written(path, made.nbytes, made.sha256)
            for path, (_, made) in zip(paths, sorted(self._made.items()), strict=True)
        )
        return self.losses, [*written], compared

    def _pieces(self, outputs: Outputs, paths: Sequence[Path], target: Destination) -> Iterator[Piece]:
        staging = outputs.staging.absolute()
        places = tuple(str(staging / outputs.staged(path).name) for path in paths)
        opened = str(staging) if target.directory else self._opened(staging, places)
        jobs = self._how.jobs or 1
        for number in range(len(paths)):
            yield Piece(
                self._how.request,
                self._fingerprint,
                number,
                str(staging),
                opened,
                places,
                target.name,
                self._verify,
                jobs,
            )

    def _opened(self, staging: Path, places: Sequence[str]) -> str:
        if format_of(self._plan.format).single:
            return places[0]
        return str(next(path for path in staging.iterdir() if path.name.endswith(INDEX_SUFFIX)))

    def _finished(self, made: Made) -> None:
        if self.kept is not None:
            name = self._plan.files[made.number].name
            place = Path(made.place)
            made = made._replace(place=str(self.kept.place(name)))
            self.kept.add(place, Finished(name, made.nbytes, made.sha256, made._asdict()))
        self._note(made)

    def _place(self, number: int) -> Path:
        if self.kept is not None:
            return self.kept.place(self._plan.files[number].name)
        return Path(self._made[number].place)

    def _note(self, made: Made) -> None:
        self._made[made.number] = made
        self.losses.join(Losses(self._plan, made.changed, made.merged))
        if self._plan.errors is not None:
            self._plan.errors.join(made.errors)

    def _settle(self, outputs: Outputs, paths: Sequence[Path], first: Piece) -> int | None:
        """What is around the tensors, and what no worker could compare."""
        plan = self._plan
        parts = zip(paths, plan.files, self._container.frames, strict=True)
        for path, file, frame in parts:
            check_frame(file, frame, b"", outputs.fds[path], path)
            self._container.check(outputs.staged(path))
        outputs.sync()
        fingerprint(replace(plan, files=()), self._container._replace(frames=()), self._how.request, verify=False)
        if not self._verify:
            return None
        compared = [Path(first.places[made.number]) for made in self._made.values() if made.compared]
        seen = within(compared)
        with as_output(first), Files(plan.index.identities) as files:
            out = open_index(Path(first.opened), base=plan.options.base, follow_links=True)
            found = compare_tensors(
                out,
                plan.index,
                files,
                left_out=[left.name for left in plan.left_out],
                configuration=not (plan.options.set_meta or plan.options.drop_meta),
                importance=plan.importance,
                decodes=plan.options.decodes,
                only=lambda tensor: not seen(tensor),
            )
            found.check(plan.index.path, (), {})
            check_statements(out, plan.index, plan.options, plan.index.path)
            files.check_unchanged()
        return found.tensors - sum(made.zero_filled for made in self._made.values())
