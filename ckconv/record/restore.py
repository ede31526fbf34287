"""Planning of the way back: the source's files, byte for byte.

Every run of bytes of every file is either stored in the record, or rows of a tensor that it holds, in the type and
the order in which the source stored them, or zeros. What was widened is narrowed again, and every value is checked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from ckconv.core.layouts import DTYPES, plain
from ckconv.core.lazy import replace
from ckconv.core.options import Options, given_options
from ckconv.core.tensors import PREFIX, Extent, StoredTensor, Tensor, TensorIndex
from ckconv.errors import InputError, quoted
from ckconv.formats import format_of
from ckconv.formats.gguf.values import ShardName, parse_shard_name
from ckconv.formats.model import with_tower
from ckconv.formats.safetensors import container, write
from ckconv.plan.steps import Container, Frame, OutputFile, Plan, Reason, RestoredSource, Step
from ckconv.quant.convert import Conversion, Run, between, convertible
from ckconv.record import record_path
from ckconv.record.read import IGNORED, OpenRecord, Run as Bytes, SourceFile, open_skeleton, record_beside


def restoring_plan(index: TensorIndex, to: str, options: Options) -> tuple[Plan | None, str]:
    """Plan that makes the source again, or the reason for none.

    Raises:
        InputError: ``record.*``: the record beside it is malformed, or belongs to another output.
    """
    given = _given(options)
    if not options.source_record or not (index.config or (index.tensors and index.tower is None)):
        return None, ""
    opened = record_beside(index)
    if opened is None and index.facts.get("only_here"):
        return None, str(index.facts["only_here"])
    if opened is None and not format_of(index.format).keeps_source:
        return None, ""
    if opened is None:
        name = record_path(index.path).name
        return None, f"no source record beside it ({name}): what only the source's own header said is not known"
    record = opened.record
    if to == index.format:
        return None, ""
    if record.format != to:
        return None, f"the record of its source is beside it: --to {record.format} restores that"
    if given:
        return None, f"the source record is not used: {', '.join(given)} asks for another file than the source was"
    names = _names(opened, options.file_name)
    if names is None:
        return None, "the source record is not used: it holds a directory of files; name a directory to get them"
    opened.check()
    restorer = _Restorer(index, opened, options)
    if restorer.half:
        return None, restorer.half
    return restorer.plan(names), ""


def _given(options: Options) -> list[str]:
    """Flags that ask for another output than the source was."""
    return [given.flag for given in given_options(options) if not given.option.neutral]


def _names(opened: OpenRecord, file_name: str) -> dict[str, str] | None:
    """Source file -> name in the output; ``None`` for a mismatch."""
    files = [file.name for file in opened.record.files if file.tensors]
    if not file_name:
        return {name: name for name in files}
    if len(files) == 1:
        return {files[0]: file_name} if container.is_pickle(files[0]) == container.is_pickle(file_name) else None
    if not format_of(opened.record.format).single:
        return None
    shard = parse_shard_name(file_name)
    stem = shard.stem if shard and shard.count == len(files) else file_name.removesuffix(".gguf")
    return {name: str(ShardName(stem, n, len(files))) for n, name in enumerate(files, 1) if parse_shard_name(name)}


class _Restorer:
    def __init__(self, index: TensorIndex, opened: OpenRecord, options: Options) -> None:
        self.index, self.opened, self.options = index, opened, options
        self.record = opened.record
        self.here = "bump file" if self.record.payload else index.format
        self.was = open_skeleton(opened)
        self.files: dict[str, SourceFile] = {file.name: file for file in self.record.files}
        self.stored = {name: file.runs for name, file in self.files.items()}
        self.steps: dict[str, list[Step]] = defaultdict(list)
        self.reasons: list[Reason] = []
        if not self.record.payload:
            self.was = with_tower(self.was, {name: self._whole(file) for name, file in self.files.items()})

    def _whole(self, file: SourceFile) -> bytes:
        """A file that is stored whole."""
        if file.tensors:
            return b""
        return b"".join(self.opened.read_whole(at, run[1]) for run, at in self.opened.pieces(file))

    @property
    def half(self) -> str:
        """Reason why source and output are two models; empty if not."""
        if self.index.tower is not None and self.was.tower is None:
            return "the source record is not used: its source is the text model alone"
        needed = (tensor for name, tensor in self.was.tensors.items() if name.startswith(PREFIX))
        gone = any(list(_gaps(self.stored[e.path.name], e)) for tensor in needed for e in tensor.extents)
        if self.index.tower is None and gone:
            return "the source record is not used: it is of a text model and its tower; name the tower's file, too"
        return ""

    def plan(self, names: Mapping[str, str]) -> Plan:
        """The plan of all files."""
        self._check_families()
        side_files = {}
        for file in self.record.files:
            if file.tensors:
                self.steps[file.name] += self._stored_steps(file)
            else:
                side_files[file.name] = self._whole(file)
        for tensor in self.was.tensors.values():
            self._tensor(tensor)
        self._check_cover()
        outputs = tuple(
            OutputFile(names[name], self.files[name].size, tuple(sorted(steps, key=lambda step: step.offset)))
            for name, steps in self.steps.items()
        )
        return Plan(
            replace(self.index, files=(*self.index.files, self.opened.path)),
            self.record.format,
            0,
            self.options,
            () if self.reasons else outputs,
            refusals=tuple(self.reasons),
            notes=(f"made again from {self.opened.path.name}, byte for byte: {self.record.source}",),
            rope_layout=self._rope_layout(),
            contents=partial(_container, self.record.format, list(self.steps), side_files),
            restores=RestoredSource(
                tuple(self.record.left_out),
                {names[file.name]: file.sha256 for file in self.record.files if file.sha256},
            ),
        )

    def _fault(self, message: str) -> InputError:
        hint = None if self.record.payload else IGNORED
        return InputError("record.files", message, path=self.opened.path, hint=hint)

    def _rope_layout(self) -> str:
        config = self.was.config
        if not (self.record.rope_layout if self.record.payload else config and config.rotary_dim):
            return ""
        return "interleaved" if any(t.layout.interleaved for t in self.was.tensors.values()) else "split"

    def _check_families(self) -> None:
        was, now = self.was.config, self.index.config
        if not self.record.payload:  # a digest proves what is made; families that share an arch are one in a GGUF
            return
        if was is None or now is None or was.family != now.family:
            raise self._fault("the model that it keeps the headers of is of another family than the bump file's")

    def _stored_steps(self, file: SourceFile) -> Iterator[Step]:
        """Steps of a file's stored bytes: tensors copied, the rest content."""
        stored = sorted((t for t in self.was.stored if t.extent.path.name == file.name), key=_offset)
        starts = [_offset(tensor) for tensor in stored]
        for (offset, nbytes), at in self.opened.pieces(file):
            owner = stored[max(bisect_right(starts, offset) - 1, 0)] if stored else None
            target = _bytes_at(Extent(Path(file.name), offset, nbytes), "record")
            if owner is None or not _offset(owner) <= offset < _offset(owner) + owner.extent.nbytes:
                yield Step("record", target, None, None, content=self.opened.read_whole(at, nbytes))
                continue
            name = (*self.was.canonical_of.get(owner.name, ()), owner.name)[0]
            source = _bytes_at(Extent(self.opened.path, at, nbytes), name)
            yield Step(owner.name, target, source, Conversion(source.dtype, source.dtype))

    def _tensor(self, tensor: Tensor) -> None:
        """The steps that write what is not stored of one canonical tensor."""
        arrays: list[tuple[Tensor, int | None]] = [(tensor, None)] if not tensor.planes else []
        arrays += [(plane, number) for number, plane in enumerate(tensor.planes)]
        for array, plane in arrays:
            first = 0
            for extent in array.extents:
                rows = array.layout.rows if len(array.extents) == 1 else extent.nbytes // _row_bytes(array)
                for part, start, stop in self._missing(array, extent, rows):
                    step = self._step(tensor, array, plane, part, first + start, first + stop)
                    self.steps[extent.path.name].append(step)
                first += rows

    def _missing(self, array: Tensor, extent: Extent, rows: int) -> Iterator[tuple[Extent, int, int]]:
        """(extent, first row, last row + 1) of what a run of rows lacks."""
        gaps = list(_gaps(self.stored[extent.path.name], extent))
        if gaps == [extent]:
            yield extent, 0, rows
            return
        row_bytes = _row_bytes(array)
        for gap in gaps:
            start, odd = divmod(gap.offset - extent.offset, row_bytes)
            if odd or gap.nbytes % row_bytes or not array.layout.in_order:
                raise self._fault(f"it keeps parts of rows of {quoted(array.source)}")
            yield gap, start, start + gap.nbytes // row_bytes

    def _step(self, tensor: Tensor, array: Tensor, plane: int | None, extent: Extent, start: int, stop: int) -> Step:
        found = self.index.tensors.get(self.record.aliases.get(tensor.name, tensor.name))
        if found is None or found.shape != tensor.shape:
            what = "does not hold" if found is None else "holds in another shape"
            raise self._fault(f"it does not keep {quoted(array.source)}, which the {self.here} {what}")
        if not convertible(found.dtype, tensor.dtype) or between(found, tensor).quantizes:
            raise self._fault(f"{quoted(array.source)} was {tensor.dtype}, the {self.here} holds {found.dtype}")
        conversion = between(found, tensor)._replace(plane=plane)
        whole = plane is None and (start, stop) == (0, array.layout.rows)
        if whole:
            return Step(tensor.source, replace(array, extents=(extent,)), found, conversion)
        cols = array.layout.cols
        layout = replace(plain(stop - start, cols), shift=array.layout.shift)
        target = replace(array, name=tensor.name, shape=(stop - start, cols), extents=(extent,), layout=layout)
        return Step(array.source, target, found, conversion, runs=(Run(found, conversion, start, stop),))

    def _check_cover(self) -> None:
        """Every byte of every tensor is written once."""
        for name, steps in self.steps.items():
            written = sorted((step.offset, step.nbytes) for step in steps)
            end = 0
            for offset, nbytes in written:
                if offset < end:
                    raise self._fault(f"two tensors of {quoted(name)} share bytes from {offset:,} on")
                end = offset + nbytes
            for stored in self.was.stored:
                if stored.extent.path.name == name and stored.extent.nbytes and list(_gaps(written, stored.extent)):
                    raise self._fault(f"it does not keep {quoted(stored.name)}, and nothing in the {self.here} is it")


def _row_bytes(array: Tensor) -> int:
    return array.dtype.nbytes(array.layout.stored_cols)


def _gaps(runs: Sequence[Bytes], extent: Extent) -> Iterator[Extent]:
    """Parts of an extent that no sorted run covers."""
    at, end = extent.offset, extent.offset + extent.nbytes
    for offset, nbytes in runs:
        if offset + nbytes <= at:
            continue
        if offset >= end:
            break
        if offset > at:
            yield Extent(extent.path, at, offset - at)
        at = offset + nbytes
    if at < end:
        yield Extent(extent.path, at, end - at)


def _offset(stored: StoredTensor) -> int:
    return stored.extent.offset


def _bytes_at(extent: Extent, name: str) -> Tensor:
    """A run of bytes, as the tensor that steps are made of."""
    return Tensor(name, name, DTYPES["U8"], (extent.nbytes,), (extent,), plain(extent.nbytes, 1))


def _container(format: str, files: Sequence[str], side_files: Mapping[str, bytes]) -> Container:
    """Container with side files alone; headers are steps."""
    made = Container(tuple(Frame(b"") for _ in files), side_files=side_files)
    checked = not format_of(format).single and not any(map(container.is_pickle, files))
    return made._replace(check=write.check_opens) if checked else made
