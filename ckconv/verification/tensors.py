"""Whether the tensors of a file are what its source holds.

The layouts of the output are undone and canonical rows are compared with the source's, so a permutation that was
applied wrongly cannot hide: nothing here knows how the writer packs. What is computed is compared with what the same
conversion makes once more, and a few rows of it with a second implementation (:mod:`ckconv.verification.values`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path

from ckconv.core.config import ModelConfig, llama3_factors, same_factors
from ckconv.core.layouts import EXPONENTIALS, F32, merged, plain
from ckconv.core.lazy import Floats, NamedTuple, NDArray, Rows, dataclass, field, np, replace
from ckconv.core.options import Options
from ckconv.core.tensors import (
    PREFIX,
    ROPE_FREQUENCIES,
    Checksum,
    Extent,
    MetadataKind,
    Role,
    Tensor,
    TensorIndex,
    TensorsByName,
    in_rows_of,
    is_bias,
    parse,
    plain_tensor,
    quantized_order,
)
from ckconv.errors import UnsupportedError, VerifyError, listed
from ckconv.families import canonical, schema, towers
from ckconv.families.catalog import FAMILIES, bracketed_of, rows_of_head
from ckconv.families.names import IN_CONFIGURATION
from ckconv.io.digests import Digests
from ckconv.io.files import CHUNK, Files, Progress, head_is_embedding, paired_runs, runs
from ckconv.io.rows import RowReader, canonical_pieces, cell_of, row_ranges, stored_view
from ckconv.io.tiles import SideBySide, Tiles, is_handed_over, is_in_steps
from ckconv.quant.convert import Action, Conversion, QuantSettings, between, missing_quantizer, of_values, writable
from ckconv.quant.mlx import triple_of
from ckconv.verification.content import engine_row, is_named
from ckconv.verification.documents import unasked_differences

# -- Comparison of canonical rows, and of padding with zero ------------------------------------------------------------


#: Rows of each tensor and expert that are quantized twice: to be written, and to be compared.
QUANTIZED_TWICE = 16


def wrong_rows(
    tensor: Tensor,
    source: Tensor,
    conversion: Conversion,
    files: Files,
    progress: Callable[[int], None],
    importance: Floats | None = None,
    tiles: Tiles | None = None,
) -> tuple[list[int], int]:
    """Canonical rows of a tensor that differ from the converted source's.

    Also how many values ``conversion`` had to round.

    Args:
        progress: called with the bytes of ``tensor`` just compared.
        importance: where it was quantized, how much the error of each column counted, an expert a row.
        tiles: where rows may be that were converted already, to be written.
    """
    if importance is None or len(importance) == 1:
        tensor, source = _in_stored_order(tensor, source)
    both = SideBySide(lambda files: (RowReader(tensor, files), RowReader(source, files)), files)
    reader, of_source = both.first
    if reader.dtype is not tensor.dtype:
        conversion = conversion._replace(target=reader.dtype)
    comparison = _Rows(tensor, source, of_source.left(conversion), importance, tiles, reader, files)
    alone = is_in_steps(source, comparison.conversion)
    wrong: list[int] = []
    rounded = 0

    def note(found: _Found) -> None:
        nonlocal rounded
        wrong.extend(found.wrong)
        rounded += found.changed
        progress(found.nbytes)

    def pieces() -> Iterator[Callable[[tuple[RowReader, RowReader]], _Found]]:
        for start, stop in row_ranges(
            _broader(reader, of_source, conversion), max(reader.row_bytes, of_source.row_bytes), comparison.conversion
        ):
            again = [(start, stop)]
            if (found := comparison.handed_over(start, stop)) is not None:
                note(found)
                again = [*comparison.twice(start, stop)]
            for array in () if alone or not again else (*tensor.arrays, *source.arrays):  # threads read what is there
                until = stop * reader.row_bytes if comparison.in_order and array is tensor else array.nbytes
                files.wait_for(array.extents, 0, until)
            yield from (partial(comparison.converted, start=one, stop=other) for one, other in again)

    with closing(both.each(pieces(), alone=alone)) as results:
        for found in results:
            note(found)
    return sorted({*wrong}), rounded


def _in_stored_order(tensor: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the order of their stored rows, where that is one order.

    Q and K of two GGUFs are: the writer does not move their rows either, and keeps its tiles in that order.
    """
    layout = tensor.layout
    whole = layout.whole_rows and layout.elements == layout.rows * layout.cols
    if not (whole and tensor.as_stored and source.as_stored and layout.same_bytes_as(source.layout)):
        return tensor, source
    stored = replace(plain(layout.rows, layout.cols, shift=layout.shift), scale=layout.scale)
    return replace(tensor, layout=stored), replace(source, layout=stored)


class _Found(NamedTuple):
    """Wrong rows, a count of rounded values, and of compared bytes."""

    wrong: list[int]
    changed: int
    nbytes: int


class _Rows:
    """The rows of a tensor, compared with converted rows of its source."""

    def __init__(
        self,
        tensor: Tensor,
        source: Tensor,
        conversion: Conversion,
        importance: Floats | None,
        tiles: Tiles | None,
        reader: RowReader,
        files: Files,
    ) -> None:
        self._tensor, self._source, self.conversion = tensor, source, conversion
        self._importance, self._reader, self._files = importance, reader, files
        as_stored = tensor.as_stored and reader.dtype is tensor.dtype
        self.in_order = as_stored and tensor.layout.same_bytes_as(plain(tensor.layout.rows, tensor.layout.cols))
        self._tiles = tiles if as_stored and is_handed_over(source, conversion) else None
        self._each = max(1, tensor.layout.rows // (len(importance) if importance is not None else 1))

    def handed_over(self, start: int, stop: int) -> _Found | None:
        """Compare with rows that were converted to be written.

        ``None`` where there are none. Called in the thread that waits for the output.
        """
        if self._tiles is None:
            return None
        tensor, reader, conversion = self._tensor, self._reader, self.conversion
        begin, end = start * reader.row_bytes, min(stop * reader.row_bytes, tensor.nbytes)
        self._files.wait_for(tensor.extents, begin, end)  # when they are there, their tile is
        tiles = [self._tiles.take(self._source, conversion, *cut) for cut in self._by_expert(start, stop)]
        found = [tile for tile in tiles if tile is not None]
        if len(found) < len(tiles):
            return None
        made = _together(found)
        if self.in_order and not self._cannot_be(made[1]) and self._files.stores(tensor.extents, begin, made[0]):
            return _Found([], made[1], end - begin)
        return self._compared(made, reader.rows(start, stop), start)

    def converted(self, readers: tuple[RowReader, RowReader], start: int, stop: int) -> _Found:
        """Against rows that are converted now, in any thread."""
        reader, of_source = readers
        rows, made = of_source.rows(start, stop), []
        for one, other, importance in self._by_expert(start, stop):
            weighed = importance is not None and self.conversion.quantizes
            how = self.conversion._replace(quantizing=QuantSettings(importance)) if weighed else self.conversion
            made.append(how.apply(rows[one - start : other - start]))
        return self._compared(_together(made), reader.rows(start, stop), start)

    def twice(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """First rows of each expert between these, where rows are quantized."""
        if self.conversion.quantizes:
            firsts = (one for one, _, _ in self._by_expert(start, stop) if one % self._each == 0)
            yield from ((one, min(stop, one + QUANTIZED_TWICE, one + self._each)) for one in firsts)

    def _by_expert(self, start: int, stop: int) -> Iterator[tuple[int, int, Floats | None]]:
        """Rows of each expert apart, with its own importance."""
        for first in range(start - start % self._each, stop, self._each):
            own = self._importance[first // self._each] if self._importance is not None else None
            yield max(start, first), min(stop, first + self._each), own

    def _cannot_be(self, changed: int) -> bool:
        """Whether no block holds the source's numbers."""
        return changed > 0 and self.conversion.action is Action.REPACK

    def _compared(self, made: tuple[Rows, int], got: Rows, start: int) -> _Found:
        want, changed = made
        if self._cannot_be(changed):
            return _Found(list(range(start, start + len(got))), changed, got.nbytes)
        if np.array_equal(_words(got), _words(want)):
            return _Found([], changed, got.nbytes)
        return _Found([start + int(row) for row in np.nonzero((got != want).any(axis=1))[0]], changed, got.nbytes)


def _broader(reader: RowReader, of_source: RowReader, conversion: Conversion) -> RowReader:
    """The reader whose pieces are taken."""
    if conversion.plane is not None or of_source.tensor.merge:  # of one array, of whole rows; or takes more memory
        return of_source
    return reader if reader.piece >= of_source.piece else of_source


def _together(made: Sequence[tuple[Rows, int]]) -> tuple[Rows, int]:
    """Converted rows of experts, one after the other."""
    return made[0] if len(made) == 1 else (np.concatenate([rows for rows, _ in made]), sum(n for _, n in made))


def dirty_padding(tensor: Tensor, files: Files) -> int | None:
    """The first stored row whose padding is not zero, or ``None``."""
    layout, dtype = tensor.layout, tensor.dtype
    if not layout.padded:
        return None
    stored_bytes = dtype.nbytes(layout.stored_cols)
    step = max(1, CHUNK // stored_bytes)
    buffer = np.empty((min(step, layout.stored_rows), stored_bytes), np.uint8)
    for start in range(0, layout.stored_rows, step):
        stop = min(start + step, layout.stored_rows)
        rows = buffer[: stop - start]
        files.read_into(tensor.extents[0].path, tensor.extents[0].offset + start * stored_bytes, rows)
        cells, first = rows.reshape(-1).view(cell_of(dtype)), start * layout.stored_cols
        for strip in layout.strips:
            for box in strip.between(first, stop * layout.stored_cols):
                stored_view(cells, strip, box, dtype.block, first)[...] = np.zeros((), cells.dtype)
        bad = rows.any(axis=1)
        if bad.any():
            return start + int(np.argmax(bad))
    return None


# LoRA matrices of another rank than the source's: zeros beyond the smaller rank add nothing. A format with one rank
# for all modules stores those of a smaller rank so.

_A, _B = f".{Role.A.value}", f".{Role.B.value}"


def same_rank(one: Tensor, other: Tensor, files: Files) -> tuple[Tensor, Tensor]:
    """Two matrices of one rank, zeros beyond the smaller cut off.

    Tensors that are no LoRA matrices, or differ otherwise, are given back as they are.
    """
    axis = 0 if one.name.endswith(_A) else 1 if one.name.endswith(_B) else None
    if axis is None or one.name != other.name or len(one.shape) != 2 or len(other.shape) != 2:
        return one, other
    if one.shape == other.shape or one.shape[1 - axis] != other.shape[1 - axis]:
        return one, other
    from ckconv.families.adapters import rows_of

    rank = min(one.shape[axis], other.shape[axis])
    larger = one if one.shape[axis] > rank else other
    if larger.dtype.block != 1:
        return one, other
    first, rest = (rank * larger.dtype.size, larger) if axis else (0, rows_of(larger, rank, larger.shape[0] - rank))
    if any(bool(rows[:, first:].any()) for _, rows in canonical_pieces(RowReader(rest, files))):
        return one, other
    smaller = rows_of(larger, 0, rank) if axis == 0 else _columns_of(larger, rank)
    return (smaller, other) if larger is one else (one, smaller)


def _columns_of(tensor: Tensor, cols: int) -> Tensor:
    """The first canonical columns."""
    strips = tuple(replace(own, cols=merged([(cols, own.cols[0][1])])) for own in tensor.layout.strips)
    return replace(
        tensor, shape=(tensor.shape[0], cols), layout=replace(tensor.layout, cols=cols, strips=strips, shared=True)
    )


def _words(rows: Rows) -> NDArray[np.uint64] | Rows:
    """The same bytes as eight-byte words, which are compared faster."""
    flat = np.ascontiguousarray(rows).reshape(-1)
    return flat.view(np.uint64) if flat.nbytes % 8 == 0 else flat


# -- Whether the tensors of a file are what its source holds -----------------------------------------------------------


#: Called with the bytes just read and the tensor they belong to.
#: What a fault says of a tensor of one side that the other lacks, by its name.
ABSENT = "is not in the"


class Fault(NamedTuple):
    """One thing that is wrong.

    Attributes:
        place: file of the output and offset, of a tensor.
    """

    code: str
    text: str
    tensor: str | None
    place: tuple[int, int] = (-1, 0)


class Compared(NamedTuple):
    """Result of a comparison of tensors.

    Attributes:
        faults: everything that is wrong.
        tensors, zero_filled, rounded: see :class:`Verified`.
    """

    faults: list[Fault]
    tensors: int
    zero_filled: int
    rounded: int

    def join(self, parts: Iterable[Compared]) -> Compared:
        """Add the findings of other threads, of tensors that this one left out."""
        parts = list(parts)
        faults = [fault for found in (self, *parts) for fault in found.faults]
        zero_filled = sum(found.zero_filled for found in parts)
        return Compared(
            sorted(faults, key=lambda fault: fault.place),
            self.tensors - zero_filled,
            self.zero_filled + zero_filled,
            self.rounded + sum(found.rounded for found in parts),
        )

    def check(self, path: Path, checksums: Iterable[Checksum], digests: Mapping[Extent, bytes]) -> None:
        """Raise what is wrong, first of all a checksum.

        Args:
            path: what errors call the file.
            digests: what its checksums should say.
        """
        named = next((fault.tensor for fault in self.faults if fault.tensor), None)
        texts = [fault.text for fault in self.faults]
        check_checksums(checksums, digests.__getitem__, path, tensor=named, details=texts)
        if self.faults:
            raise VerifyError(
                self.faults[0].code, texts[0], path=path, tensor=self.faults[0].tensor, details=listed(texts[1:])
            )


def check_checksums(
    checksums: Iterable[Checksum],
    digest: Callable[[Extent], bytes],
    path: Path,
    *,
    tensor: str | None = None,
    details: Sequence[str] = (),
) -> None:
    """Check the digests that a file stores of its own bytes.

    Args:
        digest: computes the SHA-256 of an extent.
        path, tensor, details: what the error says besides.
    """
    for checksum in checksums:
        computed = digest(checksum.extent)
        if computed == checksum.stored:
            continue
        raise VerifyError(
            "bump.checksum",
            f"the {checksum.what} sha256 is wrong: stored {checksum.stored.hex()}, computed {computed.hex()}",
            path=path,
            tensor=tensor,
            found=computed.hex(),
            allowed=checksum.stored.hex(),
            details=listed(list(details)),
        )


class SourceChecksum(Digests):
    """Whether a source that stores its own checksum has it.

    A damaged source is named as the cause, whatever else is found to be wrong because of it.
    """

    def __init__(self, index: TensorIndex) -> None:
        super().__init__(checksum.extent for checksum in index.checksums)
        self._index = index

    def check(self) -> None:
        """Wait for the result.

        Raises:
            VerifyError: ``bump.checksum``.
            InputError: ``input.unreadable``.
        """
        check_checksums(self._index.checksums, self.all().__getitem__, self._index.path)

    def __exit__(self, *raised: object) -> None:
        try:
            if isinstance(raised[1], (UnsupportedError, VerifyError)) and raised[1].code != "bump.checksum":
                self.check()
        finally:
            super().__exit__(*raised)


#: Ends of the names of tensors that an adapter saves whole; peft stores those of the base model, too.
_COPIES = (f".{Role.SAVED_WEIGHT}", f".{Role.SAVED_BIAS}")


#: What stands before the adapters of a Granite Switch.
_BEFORE = "begins with an adapter that is neither of zeros nor the source's"


@dataclass(slots=True, eq=False, repr=False)
class TensorComparison:
    """Comparison of an output's tensors with a source's, in file order.

    Attributes:
        out: what is looked at.
        source: what it was made of; ``None`` where nobody knows.
        left_out: names or globs of source tensors that somebody asked to leave out.
        left_parts: names of source tensors that the plan left out: it is believed about those alone that no row of the
            family is about (parts of a picture model beside its text), and about an adapter's copies of its base.
        configuration: hyper-parameters are to be the source's.
        options: of the conversion, which may ask for others.
        importance: canonical name -> how much the error of each column counted when it was quantized, an expert a row.
        decodes: whether blocks of a source tensor were decoded to make others; where nobody knows, either is right.
        tiles: rows that were converted to be written, which need not be converted again to be compared.
        only: which tensors of ``out`` are looked at; all of them.
        absent: look at the configuration too, and for what is in the source alone.
    """

    out: TensorIndex
    source: TensorIndex | None
    files: Files
    left_out: Collection[str] = ()
    left_parts: Collection[str] = ()
    configuration: bool = True
    options: Options = field(default_factory=Options)
    progress: Progress | None = None
    importance: Mapping[str, Floats] = field(default_factory=dict)
    decodes: Callable[[Tensor], bool] | None = None
    tiles: Tiles | None = None
    only: Callable[[Tensor], bool] | None = None
    absent: bool = True
    rounded: int = 0
    zero_filled: int = 0
    _found: int = 0
    _ours: Mapping[str, Tensor] = field(init=False)
    _sources: Mapping[str, Tensor] = field(init=False)
    _arrays: dict[str, list[tuple[list[int], int]]] = field(default_factory=dict)
    _embedded: Collection[str] = ()
    _no_part: Collection[str] = ()
    _derived: Collection[str] = ()
    _positions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        source = self.source
        if source is not None and self.out.format == source.format and _rules(self.out) != _rules(source):
            # An edited header says that it is another model.
            self.out, self.source = self.out.as_container, source.as_container
        self._embedded = {*_within_text(self.out), *(_within_text(self.source) if self.source is not None else ())}
        self._ours, self._sources = _every_tensor(self.out), _every_tensor(self.source) if self.source else {}
        if self.source is not None and self.source.format != self.out.format:
            # What a rule leaves out of other formats, a source of another format does not have: no program reads it.
            self._no_part = {key for key in _no_part(self.out) if key not in self._sources}
        if self.out.tower is not None:
            self._positions = towers.sinusoids_of(self.out.tower)
        if self.source is not None:
            # Rows of a head that is compared itself, which the source has in blocks.
            self._derived = {key for key in rows_of_head(self.out) if key in self._ours and key not in self._sources}

    def run(self) -> Compared:
        """Look at everything."""
        faults: list[Fault] = []
        order = {path: number for number, path in enumerate(self.out.files)}
        for key, tensor, array, last in _by_place(self._ours, order, by_array=self.tiles is not None):
            if self.only is None or self.only(tensor):
                self._report(tensor.name, 0)
                if array is not None:
                    self._array(key, tensor, array)
                place = _place(tensor.arrays, order)
                faults += [fault._replace(place=place) for fault in self._tensor(key, tensor)] if last else []
        if self.absent:
            faults = [*self._config(), *self._absent(), *faults, *self._between()]
        embedded = sum(key in self._ours for key in self._embedded)
        unmade = sum(self._ours[key].source not in self._positions for key in self._no_part)
        count = len(self._ours) - self.zero_filled - unmade - embedded - len(self._derived)
        count += sum(item.reason == IN_CONFIGURATION for item in self.out.dropped)
        return Compared(faults, count, self.zero_filled, self.rounded)

    def _array(self, key: str, tensor: Tensor, array: int) -> None:
        """Compare one array whose rows were converted to be written.

        The next array of the matrix may be far away in the file.
        """
        source = self._source_of(key)
        if source is None or tensor.shape != source.shape or not writable(source.dtype, tensor.dtype):
            return
        conversion = between(source, tensor, decoded=self.decodes is not None and self.decodes(source))._replace(
            plane=array
        )
        plainly = in_rows_of(tensor, source) is tensor and not quantized_order(source, tensor.dtype, tensor.layout)
        if plainly and is_handed_over(source, conversion):
            report = partial(self._report, tensor.name)
            found = wrong_rows(tensor.planes[array], source, conversion, self.files, report, tiles=self.tiles)
            self._arrays.setdefault(key, []).append(found)

    def _source_of(self, key: str) -> Tensor | None:
        """The source's tensor of this name; none for a head that was left out."""
        source = self._sources.get(key)
        return None if source is not None and key == "output.weight" and self._may_be_left_out(source) else source

    def _tensor(self, key: str, tensor: Tensor) -> Iterator[Fault]:
        """Look at one tensor of the output."""
        yield from self._padding(tensor)
        if key in self._no_part or key in self._derived:
            if tensor.source in self._positions and not self._is_of_positions(tensor):
                text = f"{tensor.label} is not the table of sines and cosines that the class computes"
                yield Fault("verify.tensor", text, tensor.source)
            return
        source = self._source_of(key)
        self._found += source is not None
        if source is None and key == "output.weight":  # a tied head that was given a tensor of its own
            source, index = self._sources.get("token_embedding.weight"), self.source
            source = canonical.as_head(source, index.config) if source is not None and index is not None else None
        if source is not None and tensor.name in self._embedded and self._is_left_out(source, key):
            return
        if source is not None and tensor.may_be_absent and self._may_be_left_out(source) and self._is_zero(tensor):
            self.zero_filled += 1
        elif source is not None:
            yield from self._rows(tensor, source, self._arrays.pop(key, []))
        elif key == ROPE_FREQUENCIES and self.source and self._follows(tensor, self.source.config, ("llama3",)):
            return
        elif self.source is not None:
            if self._says_nothing(tensor, self.out):
                self.zero_filled += 1
            elif tensor.may_be_absent:
                text = f"{tensor.label} is not zero, but the source has no such tensor"
                yield Fault("verify.tensor", text, tensor.source)
            else:
                yield Fault("verify.tensor", f"{tensor.label} {ABSENT} source", tensor.source)

    def _config(self) -> Iterator[Fault]:
        """Differences of configuration; the context length is a matter of choice.

        So is what the target's engine imposes on every model of the format, where the plan was asked to allow that.
        """
        if not self.configuration or self.source is None:
            return
        chosen = {"context_length", *str(self.out.facts.get("imposed", "")).split()}
        if self.out.metadata_kind is MetadataKind.OWN and self.out.metadata.keys() <= {"model_type"}:
            chosen |= {"norm_eps", "rope_theta"}  # no document in or beside the file, and its header has no place
        for name, pair in unasked_differences(self.out, self.source, self.options).items():
            if name not in chosen and not (pair[0] is None and self.left_out and self._by_shape(name)):
                config = self.out.config
                key = bracketed_of(config, self.out.format)(name) if config is not None and name in config.own else ""
                yield Fault("verify.config", f"{name}{key} is {pair[0]}, {pair[1]} in the source", None)

    def _by_shape(self, name: str) -> bool:
        """Whether the shape of a tensor, which may be left out, says it."""
        row = FAMILIES[self.source.config.family].parameters.get(name) if self.source and self.source.config else None
        return row is not None and any(cell.kind == "shape" for cells in row.cells.values() for cell in cells)

    def _absent(self) -> Iterator[Fault]:
        """Source tensors that the output lacks, though no rule left them out."""
        if self.source is None:
            return
        if self._found == len(self._sources):  # every one was met
            return
        # A rule leaves them out where tensors get other names.
        by_rule = {item.stored.name for item in self.source.dropped} if self.out.format != self.source.format else ()
        there = {*rows_of_head(self.source)}
        if there and there <= self._ours.keys():  # a reranker has no more of its head
            there.add("output.weight")
        if self.out.metadata_kind is MetadataKind.DOCUMENT is self.source.metadata_kind:
            directories = FAMILIES[self.source.config.family].in_huggingface.modules if self.source.config else ()
            there.update(directories)  # compared as files beside the model
        for key, tensor in self._sources.items():
            if key in there or key in self._ours or tensor.source in by_rule or self._is_left_out(tensor, key):
                continue
            kinds = ("llama3", "linear", "default") if key == ROPE_FREQUENCIES else ()
            if self._follows(tensor, self.out.config, kinds) or self._says_nothing(tensor, self.source):
                continue
            yield Fault("verify.tensor", f"{tensor.source} of the source {ABSENT} output", tensor.source)

    def _says_nothing(self, tensor: Tensor, index: TensorIndex) -> bool:
        """Whether the model computes the same without a tensor."""
        if tensor.name == "output.weight":
            return head_is_embedding(index, self.files)
        return (tensor.may_be_absent or is_bias(tensor.name)) and self._is_zero(tensor)

    def _is_left_out(self, tensor: Tensor, key: str) -> bool:
        """Whether a tensor may be missing; the plan's word counts for few.

        A tensor that a row of the family is about is not left out by the plan alone, but for an adapter's copies of the
        base model's tensors.
        """
        named = key in self._sources and not key.startswith("\0") and key not in self._embedded
        named = named and not (self.out.adapter is not None and key.endswith(_COPIES))
        by_plan = not named and not {tensor.name, tensor.source}.isdisjoint(self.left_parts)
        return by_plan or self._may_be_left_out(tensor)

    def _may_be_left_out(self, tensor: Tensor) -> bool:
        """Whether a name or glob left a tensor out."""
        layer, config = parse(tensor.name).layer, self.source.config if self.source is not None else None
        behind = layer is not None and config is not None and layer >= config.num_layers
        if behind and (schema.MTP in self.left_out or (tensor.name.startswith("layers.") and not self._holds_drafts)):
            return True
        return is_named((tensor.name, tensor.source), self.left_out)

    @property
    def _holds_drafts(self) -> bool:
        """Whether the output has a place for layers that predict further tokens."""
        another = self.source is not None and self.source.format != self.out.format
        row = engine_row(self.out) if another else None
        config = self.source.config if self.source is not None else None
        seeing = towers.tower_family(self.out.tower.family) if self.out.tower is not None else None
        return towers.holds_drafts(self.out.format, config, seeing) and not (row and row.drafts)

    def _rows(self, tensor: Tensor, source: Tensor, arrays: Sequence[tuple[list[int], int]]) -> list[Fault]:
        """Compare the canonical rows of a tensor with its source's.

        Args:
            arrays: wrong rows of each array, and values that were rounded, where that was done before.
        """
        label = tensor.label
        if tensor.shape != source.shape and self.out.adapter is not None:
            tensor, source = same_rank(tensor, source, self.files)
        if tensor.shape != source.shape:
            text = f"{label} has shape {list(tensor.shape)}, {source.source} has {list(source.shape)}"
            return [Fault("verify.tensor", text, tensor.source)]
        if not writable(source.dtype, tensor.dtype):
            text = f"{label} is {tensor.dtype}, {source.source} is {source.dtype}"
            return [Fault("verify.tensor", text, tensor.source)]
        if ordered := quantized_order(source, tensor.dtype, tensor.layout):
            source, tensor = ordered[0], replace(tensor, layout=ordered[1])
        tensor, source = in_rows_of(tensor, source), in_rows_of(source, tensor)
        conversion = between(source, tensor, decoded=self.decodes is not None and self.decodes(source))
        alike = tensor.dtype is source.dtype and not conversion.shift and tensor.layout.same_bytes_as(source.layout)
        alike = alike and source.merge is None and not source.packed  # equal arrays may stand for other numbers
        report = partial(self._report, tensor.name)
        if alike and self.files.are_same(paired_runs(tensor, source), report):
            return self._sampled(tensor, source, conversion)
        importance = self.importance.get(tensor.name)
        if arrays:
            wrong, rounded = sorted({row for rows, _ in arrays for row in rows}), sum(n for _, n in arrays)
        else:
            wrong, rounded = wrong_rows(tensor, source, conversion, self.files, report, importance, self.tiles)
        decoded = self.decodes is None and conversion.action is Action.REPACK and not missing_quantizer(tensor.dtype)
        if wrong and decoded:
            again, count = wrong_rows(tensor, source, of_values(conversion), self.files, lambda _: None, importance)
            wrong, rounded, conversion = (
                (wrong, rounded, conversion) if again else (again, count, of_values(conversion))
            )
        if not wrong:
            self.rounded += rounded > 0
            return self._sampled(tensor, source, conversion)
        if self.decodes is None and conversion.shift in EXPONENTIALS and tensor.dtype is F32:  # of another program
            from ckconv.verification.values import is_faithful

            if conversion.factor == 1.0 and is_faithful(tensor, source, conversion.shift, self.files):
                return []
        unit = "row" if tensor.layout.cols > 1 else "element"
        which = f"{unit} {wrong[0]:,} is"
        if len(wrong) > 1:
            which = f"{len(wrong):,} of {tensor.layout.rows:,} {unit}s, from {wrong[0]:,} on, are"
        text = f"{label} differs from {source.source}: {which} not what the source holds"
        return [Fault("verify.tensor", text, tensor.source)]

    def _sampled(self, tensor: Tensor, source: Tensor, conversion: Conversion) -> list[Fault]:
        """Compare a few rows once more, by a second implementation."""
        if self.source is None or (conversion.action is Action.COPY and not self.source.adapters):
            return []
        from ckconv.verification.values import Sample, disagreement

        moved = conversion.shift, conversion.factor
        importance = self.importance.get(tensor.name)
        sample = Sample(tensor, source, self.source, *moved, importance, conversion.quantizes)
        text = disagreement(sample, self.files)
        if not text:
            return []
        return [Fault("verify.tensor", f"{tensor.label} differs from {source.source}: {text}", tensor.source)]

    def _follows(self, tensor: Tensor, config: ModelConfig | None, kinds: Collection[str]) -> bool:
        """Whether a tensor is the factors of RoPE that a configuration says."""
        scaling = (config.rope_scaling if config else None) or {}
        kind = scaling.get("rope_type", "default")
        if config is None or kind not in kinds or tensor.dtype is not F32:
            return False
        stored = bytearray(tensor.nbytes)
        self.files.read_into(tensor.extents[0].path, tensor.extents[0].offset, stored)
        expected = llama3_factors(config)
        if (kind == "llama3") != (expected is not None and same_factors(bytes(stored), expected)):
            return False
        from ckconv.verification.values import llama3_factors as again

        llama3 = kind == "llama3"
        meant = again(config.rope_theta or 0.0, config.rotary_dim, scaling) if llama3 else scaling.get("factor", 1.0)
        return bool(np.allclose(np.frombuffer(stored, "<f4"), meant, rtol=1e-5, atol=0))

    def _is_of_positions(self, tensor: Tensor) -> bool:
        """Whether a table is one of sines and cosines, within rounding."""
        from ckconv.verification.values import sinusoids as again

        shape, stored = self._positions[tensor.source], np.zeros(tensor.shape, "<f4")
        if tensor.dtype is not F32 or tensor.shape != (math.prod(shape[:-1]), shape[-1]):
            return False
        self.files.read_run(list(runs(tensor)), 0, stored)
        return bool(np.allclose(stored, again(*shape), rtol=0, atol=1e-3))

    def _between(self) -> Iterator[Fault]:
        """Tensors of a GGUF have zeros between them."""
        extents = sorted(one.extent for one in self.out.stored) if self.out.metadata_kind is MetadataKind.TYPED else []
        for before, behind in pairwise(extents):
            start = before.offset + before.nbytes
            nbytes = behind.offset - start if before.path == behind.path else 0
            if nbytes > 0 and not self.files.are_zero([(before.path, start, nbytes)]):
                yield Fault("verify.padding", f"{before.path.name} holds non-zero padding from byte {start:,} on", None)

    def _padding(self, tensor: Tensor) -> list[Fault]:
        """Padding is zero."""
        before = self.out.once(canonical.unowned).get(tensor.source)
        if before is not None and self.source is not None and not self._same_before(before, self.source):
            return [Fault("verify.padding", f"{tensor.label} {_BEFORE}", tensor.source)]
        if not tensor.layout.padded:
            return []

        row = dirty_padding(tensor, self.files)
        if row is None:
            return []
        text = f"{tensor.label} holds non-zero padding in stored row {row:,}"
        return [Fault("verify.padding", text, tensor.source)]

    def _same_before(self, before: Tensor, source: TensorIndex) -> bool:
        """Whether elements that no tensor owns are zeros, or made of the source's."""
        unowned = source.once(canonical.unowned).get(before.source)
        if unowned is None or unowned.shape != before.shape or not writable(unowned.dtype, before.dtype):
            return self.files.are_zero(runs(before))
        conversion = between(unowned, before, decoded=self.decodes is not None and self.decodes(unowned))
        ways = (conversion, of_values(conversion)) if conversion.action is Action.REPACK else (conversion,)
        return any(not wrong_rows(before, unowned, way, self.files, lambda _: None)[0] for way in ways)

    def _is_zero(self, tensor: Tensor) -> bool:
        return self.files.are_zero(runs(tensor), partial(self._report, tensor.name))

    def _report(self, name: str, nbytes: int) -> None:
        if self.progress is not None:
            self.progress(nbytes, name)


def _by_place(
    tensors: Mapping[str, Tensor], order: Mapping[Path, int], *, by_array: bool
) -> Iterable[tuple[str, Tensor, int | None, bool]]:
    """Tensors in the order of their bytes, so that each is read once.

    Args:
        by_array: each array of an MLX triple has a place of its own; the last one ends the tensor.
    """
    if not (by_array and any(triple_of(tensor.dtype) for tensor in tensors.values())):
        positions = (_place(tensor.arrays, order) for tensor in tensors.values())
        in_order = all(one <= other for one, other in pairwise(positions))
        each = tensors.items() if in_order else sorted(tensors.items(), key=lambda one: _place(one[1].arrays, order))
        return ((key, tensor, None, True) for key, tensor in each)  # a million tensors are made one at a time
    items: list[tuple[str, Tensor, int | None, bool]] = []
    for key, tensor in tensors.items():
        arrays = tensor.planes if triple_of(tensor.dtype) is not None else ()
        last = max(range(len(arrays)), key=lambda n: _place(arrays[n].arrays, order), default=None)
        items += [(key, tensor, n, n == last) for n in range(len(arrays))] or [(key, tensor, None, True)]

    def place(item: tuple[str, Tensor, int | None, bool]) -> tuple[int, int]:
        _, tensor, array, _ = item
        return _place(tensor.arrays if array is None else tensor.planes[array].arrays, order)

    return sorted(items, key=place)


def _place(arrays: Sequence[Tensor], order: Mapping[Path, int]) -> tuple[int, int]:
    """File and offset of the first array."""
    first = arrays[0].extents[0] if arrays else None
    return (order.get(first.path, 0), first.offset) if first else (0, 0)


def _within_text(index: TensorIndex) -> Collection[str]:
    """Tensors of a tower that are rows of the text model's embedding."""
    if index.tower is None or index.config is None:
        return ()
    embedded = towers.tower_family(index.tower.family).in_huggingface.embeddings
    return {f"{PREFIX}{name}" for name in embedded} & index.tensors.keys()


def _rules(index: TensorIndex) -> str:
    """Name of the rules that tensors have their names by, or empty."""
    return index.config.family if index.config else "adapter" * bool(index.adapter and index.tensors)


def _every_tensor(index: TensorIndex) -> Mapping[str, Tensor]:
    """Canonical tensors by name, others by their own, which is marked.

    Those that are no part of the model may be zeros, where the source has none.
    """
    others, dropped = index.unnamed, _no_part(index)
    if not (index.tensors or dropped or index.packed):
        return TensorsByName(index.unknown, before="\0")
    unnamed = {f"\0{name}": tensor for name, tensor in others.items()}
    own = index.tensors
    if not (index.config or index.tower or index.adapter):  # names of no family: the other file's may be unknown
        own = {f"\0{name}": tensor for name, tensor in own.items()}
    return {**own, **unnamed, **dropped} if unnamed or dropped else own


def _no_part(index: TensorIndex) -> Mapping[str, Tensor]:
    """Tensors that a rule leaves out of other formats."""
    dropped = {f"\0{item.name or item.stored.name}": item.stored for item in index.dropped if item.copied}
    return {key: replace(plain_tensor(s.name, s), may_be_absent=True) for key, s in dropped.items()}


def within(paths: Iterable[Path]) -> Callable[[Tensor], bool]:
    """Tensors of which every byte is in one of these files."""
    known = {os.fspath(path) for path in paths}

    def looked_at(tensor: Tensor) -> bool:
        paths = {os.fspath(extent.path) for array in tensor.arrays for extent in array.extents}
        return len(paths) == 1 and paths <= known

    return looked_at
