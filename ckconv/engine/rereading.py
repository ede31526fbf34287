"""What is staged is read again behind the writing thread: hashed, and compared with its source."""

from __future__ import annotations

import _thread
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ckconv.core.tensors import Extent, TensorIndex
from ckconv.engine.following import Growth
from ckconv.engine.lanes import Part, open_in
from ckconv.engine.pace import AbandonedError
from ckconv.engine.readonce import ReadOnce
from ckconv.engine.sides import seen_as
from ckconv.engine.transfer import payload
from ckconv.errors import InputError, VerifyError
from ckconv.formats import format_of
from ckconv.formats.destination import Destination
from ckconv.io.files import Files
from ckconv.plan.steps import Plan
from ckconv.publish.files import growing
from ckconv.publish.staging import Outputs
from ckconv.verification.tensors import Compared, compare_tensors, within

T = TypeVar("T")


class Read(NamedTuple):
    """What reading files again found: digests of their content, and how they compare, if that was asked for.

    Attributes:
        digests: by the number of the file in the plan, of its :func:`content`.
    """

    digests: dict[int, bytes]
    compared: Compared | None


class Rereading:
    """Reads back the files of tensors of an output that has no name yet."""

    def __init__(
        self, plan: Plan, target: Destination, outputs: Outputs, parts: Sequence[Part], *, verify: bool, lanes: int
    ) -> None:
        """Read nothing yet.

        Args:
            verify: compare what is read with the source.
            lanes: how many threads read, each the files of one lane.
        """
        self._plan, self._target, self._outputs, self._parts = plan, target, outputs, parts
        self._verify, self._lanes = verify, lanes
        self._most = open_in(lanes)
        #: Held by the one thread that opens the output, and what it found.
        self._opening = _thread.allocate_lock()
        self._found: list[TensorIndex | None] = []

    def read(self, parts: Sequence[Part], growth: Growth) -> Read:
        """Hash files, and compare what a reader finds in them with the source."""
        plan = self._plan
        contents = {part.number: content(part) for part in parts}
        more = [checksum.extent for checksum in plan.index.checksums] if plan.restores else []
        with ReadOnce(plan.index.identities, growth, hashed=[*contents.values(), *more], most=self._most) as files:
            compared = None
            if self._verify:
                growth.begun()
                compared = self.as_output(lambda: self._compared(files, growth, parts))
            digests = {number: files.digest(extent) for number, extent in contents.items()}
            files.check_unchanged()
        return Read(digests, compared)

    def _compared(self, files: ReadOnce, growth: Growth, parts: Sequence[Part]) -> Compared | None:
        plan = self._plan
        if self._lanes > 1:
            return self._compared_of(files, growth, parts)
        with growing(growth.wait_for):
            out = self.open()
        if not growth.paths.issuperset(out.files):
            growth.wait_for_all()
        if plan.restores:
            # The comparison that was made when the bump was written: of the bump, its checksum too, with its source.
            found = compare_tensors(plan.index, out, files, left_out=plan.restores.left_out)
            digests = {checksum.extent: files.digest(checksum.extent) for checksum in plan.index.checksums}
            found.check(plan.index.path, plan.index.checksums, digests)
            return found
        return self._held_against(out, files, tiles=growth.tiles)

    def _compared_of(self, files: ReadOnce, growth: Growth, parts: Sequence[Part]) -> Compared | None:
        """The comparison of the tensors in some files; ``None`` where it takes tensors of other files."""
        out = self._described(growth)
        if out is None or not {part.place for part in self._parts}.issuperset(out.files):
            return None
        only = within(part.place for part in parts)
        return self._held_against(out, files, tiles=growth.tiles, only=only, absent=False)

    def _described(self, growth: Growth) -> TensorIndex | None:
        """The output as the format's reader finds it, read once for all lanes; ``None``: not before all is written."""
        payloads = {part.place: payload(part.file, part.frame, part.place).offset for part in self._parts}

        def wait(path: Path, until: int) -> None:
            growth.wait_for(path, until)
            if path not in growth.paths and until > payloads.get(path, until):
                raise AbandonedError

        with self._opening:
            if not self._found:
                try:
                    with growing(wait):
                        self._found.append(self.open())
                except AbandonedError:
                    self._found.append(None)
            return self._found[0]

    def _held_against(self, out: TensorIndex, files: Files, **which: Any) -> Compared:
        plan = self._plan
        return compare_tensors(
            out,
            plan.index,
            files,
            left_out=[left.name for left in plan.left_out],
            configuration=not (plan.options.set_meta or plan.options.drop_meta),
            importance=plan.importance,
            decodes=plan.options.decodes,
            **which,
        )

    def joined(self, reads: Sequence[Read], lanes: Sequence[Sequence[Part]]) -> Read:
        """What was found in all lanes, and in what none of them could compare.

        Raises:
            VerifyError: the output cannot be read back.
        """
        if len(reads) == 1:
            return reads[0]
        digests = {number: digest for read in reads for number, digest in read.digests.items()}
        if not self._verify:
            return Read(digests, None)
        compared = [(parts, read.compared) for parts, read in zip(lanes, reads, strict=True) if read.compared]
        seen = within(part.place for parts, _ in compared for part in parts)

        def rest() -> Compared:
            with Files(self._plan.index.identities) as files:
                out = (self._found and self._found[0]) or self.open()
                found = self._held_against(out, files, only=lambda tensor: not seen(tensor))
                files.check_unchanged()
            return found

        return Read(digests, self.as_output(rest).join(found for _, found in compared))

    def open(self) -> TensorIndex:
        """What a reader of the format finds; what goes elsewhere is a link in the staging directory."""
        from ckconv.formats.detect import open_index

        index = open_index(self._opened(), base=self._plan.options.base, follow_links=True)
        return seen_as(self._plan.index, index)

    def as_output(self, look: Callable[[], T]) -> T:
        """Look at what is staged; an error about it is one about the target."""
        try:
            return look()
        except VerifyError as error:
            if not self._plan.restores or error.code == "verify.file":
                error.path = self._target.name  # its temporary name says nothing to anybody
            raise
        except InputError as error:
            if error.path is None or not Path(error.path).is_relative_to(self._outputs.staging):
                raise
            raise VerifyError(
                error.code,
                f"the output cannot be read back: {error.message}",
                path=self._target.name,
                tensor=error.tensor,
                offset=error.offset,
                details=error.details,
            ) from error

    def _opened(self) -> Path:
        """What a reader of the format opens: a checkpoint's directory, its index, or the first file."""
        if not format_of(self._plan.format).single:
            if self._target.directory is not None:
                return self._outputs.staging
            if len(self._parts) > 1:
                from ckconv.formats.safetensors.spec import INDEX_SUFFIX

                return next(path for path in self._outputs.staging.iterdir() if path.name.endswith(INDEX_SUFFIX))
        return self._parts[0].place


def content(part: Part) -> Extent:
    """What is hashed while it is written: the part whose digest the header holds, or all of the file."""
    frame, behind = part.frame, len(part.frame.epilogue) if part.frame.header else 0
    return Extent(part.place, frame.header_bytes, part.file.nbytes - frame.header_bytes - behind)
