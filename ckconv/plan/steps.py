"""The plan as data: exact steps, other bytes, losses and refusals."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

from ckconv.core.layouts import DType, Layout
from ckconv.core.lazy import Floats, NamedTuple, cached_property, dataclass, field, replace
from ckconv.core.metadata import SideFile
from ckconv.core.options import Options
from ckconv.core.tensors import MAX_BYTES, Extent, Tensor, TensorIndex, blocks_split, chained, cut, parse
from ckconv.errors import UnsupportedError, counted, listed
from ckconv.quant.convert import Action, Conversion, Errors, Run as Run, decodable

# The bytes that a format adds around the tensors: headers, entries and side files.


class Frame(NamedTuple):
    """The bytes of one output file that are not tensors.

    Attributes:
        prologue: bytes between the header and the first tensor.
        header_bytes: size of the header, which is written last; the digest starts after it.
        header: makes the header from the digest of prologue and tensors; ``None`` for a format without one.
        epilogue: bytes after the last tensor, outside the digest.
    """

    prologue: bytes
    header_bytes: int = 0
    header: Callable[[bytes], bytes] | None = None
    epilogue: bytes = b""


class Container(NamedTuple):
    """Everything in an output except its tensors.

    Attributes:
        frames: one for each file of the plan, in the plan's order.
        side_files: name -> content of each file beside the model; a name may lie in a directory (``1_Pooling/x``).
        on_request: names of side files that are written only if a flag asks for them.
        keys: header fields and metadata by name, for comparison by value.
        inside: name for people -> content of each document embedded in the files.
        notes: lines for the report that are known only when the bytes are made.
        check: raises if the format's reference reader does not open a file that was written.
    """

    frames: tuple[Frame, ...]
    side_files: Mapping[str, SideFile] = {}
    on_request: frozenset[str] = frozenset()
    keys: Mapping[str, Any] = {}
    inside: Mapping[str, bytes] = {}
    notes: tuple[str, ...] = ()
    check: Callable[[Path], None] = lambda _: None


class Globs(NamedTuple):
    """Patterns of file names that loaders look for beside the output.

    Attributes:
        weights: files of tensors and their indexes; a conversion refuses to write beside one.
        documents: files that describe weights, perhaps in a subdirectory; ``--force`` removes them.
    """

    weights: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()


class NewFile(NamedTuple):
    """One file of an output.

    Attributes:
        sha256: digest of the whole file, as hex.
        payload_sha256: digest that the file's header stores, as hex; empty for a format without one.
    """

    path: Path
    nbytes: int
    sha256: str
    payload_sha256: str = ""


class LastFile(NamedTuple):
    """A file beside the model whose content depends on earlier files.

    Attributes:
        nbytes: returns its size, given the earlier files (their digests are still zeros).
        content: returns its bytes, given the earlier files: tensors, then side files, then last files.
        names_digests: whether its content lists digests of whole files.
    """

    path: Path
    nbytes: Callable[[Sequence[NewFile]], int]
    content: Callable[[Sequence[NewFile]], Iterable[bytes]]
    names_digests: bool = True


# The flag that decodes the blocks which a target refuses, and leaves those alone that it takes.

#: Globs that a hint names at most.
_SHOWN = 3

#: The flags, where the hint does not name the tensors that are refused.
DECODE = "--dequantize decodes them to FP32, --decode GLOB only the ones it names"


def decode_hint(dtype: DType) -> str:
    """:data:`DECODE`, for blocks that have a decoder."""
    return DECODE if decodable(dtype) else ""


_IT, _THEM, _ALL = " decodes it to FP32", " decodes them to FP32", "--dequantize"


def decoding_hint(refused: Collection[str], taken: Collection[str]) -> str:
    """A hint for the tensors ``refused``.

    Args:
        refused, taken: names of quantized tensors that the target refuses, and of those that it takes.
    """
    them = len(refused) > 1
    if not taken:
        return _ALL + (_THEM if them else _IT)
    for globs in _globs(refused):
        if len(globs) <= _SHOWN and not any(fnmatchcase(name, glob) for name in taken for glob in globs):
            return decode(globs, several=them)
    return "--decode GLOB decodes to FP32 what it names, --dequantize every quantized tensor"


def decode(globs: Iterable[str], *, several: bool) -> str:
    """The flags that decode what the globs name, one matrix or ``several``."""
    return " ".join(f"--decode '{glob}'" for glob in globs) + (_THEM if several else _IT)


def joined(hints: Iterable[str]) -> list[str]:
    """The hints of several reasons, each flag once."""
    found: dict[str, str] = {}
    for hint in hints:
        flag = hint.removesuffix(_IT).removesuffix(_THEM)
        found[flag] = hint if found.get(flag, hint) == hint else flag + _THEM
    return list(found.values())


def _globs(names: Collection[str]) -> Iterator[list[str]]:
    """Globs for all of ``names``: one for each pattern, then one for all."""
    yield sorted({parse(name).pattern.replace("{n}", "*").replace("{e}", "*") for name in names})
    roots = {name.partition(".")[0] for name in names}
    if len(roots) == 1:
        yield [f"{roots.pop()}.*"]


# The plan as data: what a conversion writes, in order, with exact sizes; what it leaves out, and why it refuses.


@dataclass(frozen=True)
class Step:
    """One run of output bytes.

    Attributes:
        slot: the target's name for the entry.
        target: the tensor as the target stores it; its extent's offset is relative to the output file.
        source: where the rows come from; ``None`` writes ``content``, or zeros.
        conversion: what happens to the values, ``None`` with no source.
        content: the bytes themselves, for an entry that is no tensor.
        runs: where the rows are not all rows of ``source``: those of several tensors, one after the other (q, k and v
            that the target fuses), or some of one (an expert). ``source`` and ``conversion`` are then the first run's.
    """

    slot: str
    target: Tensor
    source: Tensor | None
    conversion: Conversion | None
    content: bytes | None = None
    runs: tuple[Run, ...] = ()

    @cached_property
    def offset(self) -> int:
        """Byte offset in the output file."""
        return self.target.extents[0].offset

    @cached_property
    def nbytes(self) -> int:
        """Bytes in the output file, padding included."""
        return self.target.nbytes

    @cached_property
    def action(self) -> Action:
        """The conversion of the values."""
        if self.content is not None:
            return Action.CONTENT
        if any(tensor.merge for tensor in self.sources):
            return Action.MERGE
        return self.conversion.action if self.conversion else Action.ZERO

    @cached_property
    def sources(self) -> tuple[Tensor, ...]:
        """Every source tensor that the step reads."""
        if self.runs:
            return tuple(run.tensor for run in self.runs)
        return (self.source,) if self.source is not None else ()

    @cached_property
    def zero_filled(self) -> bool:
        """Whether zeros stand for a tensor which the model does not have."""
        return self.action is Action.ZERO

    @cached_property
    def one_run(self) -> bool:
        """Whether the source's bytes are the target's, copied as one run."""
        return (
            self.source is not None
            and not self.runs
            and self.action is Action.COPY
            and self.source.as_stored
            and self.source.layout.same_bytes_as(self.target.layout)
        )

    @property
    def copied(self) -> tuple[Extent, ...] | None:
        """The step's bytes as source ranges in order; ``None`` if rows change."""
        if self.one_run:
            assert self.source is not None
            return self.source.extents
        if not self.runs or not self.target.layout.in_order:
            return None
        found: list[Extent] = []
        for run in self.runs:
            layout, conversion = run.tensor.layout, run.conversion
            same = conversion.action is Action.COPY and conversion.plane is None and run.tensor.as_stored
            if not (same and layout.in_order and layout.shift == self.target.layout.shift):
                return None
            row_bytes = run.tensor.dtype.nbytes(layout.cols)
            found += cut(run.tensor.extents, run.start * row_bytes, run.stop * row_bytes)
        return tuple(found)

    @property
    def transposed(self) -> bool:
        """Whether rows become columns: no two elements of a row stay together."""
        return any(tensor.layout.by_columns != self.target.layout.by_columns for tensor in self.sources)

    @property
    def reordered(self) -> bool:
        """Whether rows change places between RoPE orders."""
        return self.source is not None and self.source.layout.interleaved != self.target.layout.interleaved


class Omission(NamedTuple):
    """Source tensor that is not written, and the rule or flag that allows it."""

    name: str
    reason: str
    nbytes: int


class Change(NamedTuple):
    """One key that a flag changed.

    Attributes:
        key: with the document that it is in, where there are several (``config.json: rms_norm_eps``).
        old, new: ``None`` for a key that is not there.
    """

    key: str
    old: object
    new: object


class Reason(NamedTuple):
    """A reason why a target cannot hold a model, and the way out, if any."""

    text: str
    hint: str = ""


def missing_tensors(
    counts: Mapping[str, int],
    keys: str = "",
    *,
    dropped: Mapping[str, int] | None = None,
    of_layers: Callable[[str], Iterable[str]] = lambda pattern: (),
) -> Iterator[Reason]:
    """Tensors that a target needs and does not get.

    Pattern of a canonical name -> how often.

    Args:
        keys: what says that they should be there, in brackets.
        of_layers: pattern -> keys that say which layers have it.
        dropped: pattern -> how many of them the source has, and ``--drop`` leaves out.
    """
    for pattern, count in counts.items():
        out = min(count, (dropped or {}).get(pattern, 0))
        also = [key for key in of_layers(pattern) if key not in keys]
        brackets = f"{keys.removesuffix(')')}, {', '.join(also)})" if keys and also else keys
        for number, why, whence in ((count - out, "", brackets), (out, ", which --drop leaves out", "")):
            where = f" in {counted(number, 'layer')}" if "{n}" in pattern else ""
            if number > 0:
                yield Reason(f"no tensor for {pattern}{why}{where}{whence}", "leave out --drop for it" if why else "")


class OutputFile(NamedTuple):
    """One file of tensors.

    Attributes:
        name: its name in the directory of the output.
        nbytes: its exact size.
        steps: its payload in file order; what is between two steps, or after the last, is zeros.
    """

    name: str
    nbytes: int
    steps: Sequence[Step]

    @property
    def in_directory(self) -> bool:
        """Whether it lies in a directory: a linear layer behind the model."""
        return "/" in self.name


def place(at: int) -> int:
    """Return an offset in an output, in bytes, that a file can have."""
    if at > MAX_BYTES:
        raise UnsupportedError("plan.refused", f"the output has more than {MAX_BYTES:,} bytes: no file is that long")
    return at


class PayloadRecord(Protocol):
    """A file beside the output that needs the digest of its payload."""

    @property
    def nbytes(self) -> int:
        """Exact size of the file without a conversion record."""

    def size(self, conversion: bytes | None) -> int:
        """Exact size of the file, with this conversion record if there is one."""

    def chunks(self, payload: bytes, conversion: bytes | None) -> Iterator[bytes]:
        """The file in pieces, once the SHA-256 of the payload is known."""

    def hashing(self) -> AbstractContextManager[object]:
        """Hash files of the source while the block runs."""


class RestoredSource(NamedTuple):
    """The source of an output that is made again.

    Attributes:
        left_out: its tensors that the output does not have.
        digests: file -> the SHA-256 (hex) that it had, where the output has no digest by which the record is its own.
    """

    left_out: tuple[str, ...]
    digests: Mapping[str, str]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Plan:
    """Everything about an output but its bytes.

    Attributes:
        files: what holds the tensors, in order; empty only where the plan refuses.
        left_out: source tensors not written.
        refusals: reasons not to do it; nothing may be written if there is one.
        notes: facts worth a line in the report.
        rope_layout: ``split`` or ``interleaved`` rows in the output, empty for a model without RoPE.
        engines: releases of the engine that compute the output right, where a format's engine has releases.
        alternative: the flag with which the model can be held, where this target refuses it.
        contents: makes everything in and beside the files but their tensors, when it is needed: files of the source
            are read for it, and a tokenizer is decoded.
        record: what makes the source of a bump file again, to be written beside it.
        restores: what is known of the source of the bump file ``index``, where that is the output, byte for byte.
        importance: canonical name -> how much the error of each column counts where it was quantized, an expert a row.
        errors: how far quantizing moves values, once it is carried out; ``None`` where nothing is quantized.
        changes: keys that flags changed.
        origins: flag -> where its value came from, of flags that nobody gave: ``ckconv.toml:3``.
        followable: a hint -> the same with what of the command it excludes.
    """

    index: TensorIndex
    format: str
    version: int
    options: Options
    files: tuple[OutputFile, ...] = ()
    left_out: tuple[Omission, ...] = ()
    refusals: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()
    rope_layout: str = ""
    engines: tuple[str, ...] | None = None
    alternative: str = ""
    contents: Callable[[], Container] = lambda: Container(())
    record: PayloadRecord | None = None
    restores: RestoredSource | None = None
    importance: Mapping[str, Floats] = field(default_factory=dict)
    errors: Errors | None = None
    changes: tuple[Change, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)
    followable: Callable[[str], str] = str

    def __repr__(self) -> str:
        what = f"refused, {len(self.refusals)} reasons" if self.refusals else f"{self.nbytes:,} bytes"
        return f"<Plan of {self.target_name}: {what}>"

    @property
    def steps(self) -> Sequence[Step]:
        """The payload of all files, in order."""
        return chained([file.steps for file in self.files])

    @property
    def nbytes(self) -> int:
        """Exact size of all files together."""
        return sum(file.nbytes for file in self.files)

    @property
    def target_name(self) -> str:
        """``bump 3``."""
        return f"{self.format} {self.version}" if self.version else self.format

    @property
    def way_out(self) -> str:
        """The hint that all reasons have; empty where one has none, or another."""
        hints = joined(reason.hint for reason in self.refusals)
        return hints[0] if len(hints) == 1 else ""

    def with_notes(self, *notes: str) -> Plan:
        """The plan with further notes."""
        return replace(self, notes=(*self.notes, *notes))

    def check(self) -> None:
        """Raise ``plan.refused`` with every reason, if there is one.

        With the way out of all, or of each behind it.

        Raises:
            UnsupportedError: exit 4.
        """
        if not self.refusals:
            return
        lead = self.followable
        out = "; ".join(filter(None, (lead(self.way_out), lead(self.alternative))))
        texts = [it.text if out or not it.hint else f"{it.text}; hint: {lead(it.hint)}" for it in self.refusals]
        one = len(texts) == 1
        code, what = ("adapter.unsupported", "adapter") if self.index.adapter else ("plan.refused", "model")
        target = self.target_name.removesuffix(" adapter")
        raise UnsupportedError(
            code,
            f"{target} cannot hold this {what}: {texts[0]}"
            if one
            else f"{target} cannot hold this {what}, for {len(texts)} reasons",
            path=self.index.path,
            hint=out or None,
            details=() if one else listed(texts),
        )


# Arrays of an output that have no place in its files yet.


#: The path of an output whose place is not known while it is planned.
_UNKNOWN = Path()


class Piece(NamedTuple):
    """One array of the output that has no place yet.

    Attributes:
        name: what it is called in the file.
        canonical: what it holds, for reports.
        shape: as stored, in elements.
        layout: how canonical rows lie in it.
        source, conversion, runs: where its rows come from, as in :class:`ckconv.plan.steps.Step`; ``None`` for
            ``content``, or for zeros.
        module: the block type of the quantized module that it is one array of, ``None`` where it stands for itself.
    """

    name: str
    canonical: str
    dtype: DType
    shape: tuple[int, ...]
    layout: Layout
    source: Tensor | None
    conversion: Conversion | None
    runs: tuple[Run, ...] = ()
    module: DType | None = None
    content: bytes | None = None

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.dtype.nbytes(math.prod(self.shape))

    def step(self, offset: int) -> Step:
        """The piece at ``offset`` bytes into its file."""
        extent = Extent(_UNKNOWN, offset, self.nbytes)
        target = Tensor(self.canonical, self.name, self.dtype, self.shape, (extent,), self.layout)
        return Step(self.name, target, self.source, self.conversion, self.content, self.runs)


def unmovable(parts: Iterable[Tensor], layout: Layout | None, dtype: DType) -> str:
    """Why blocks of parts cannot move between layouts; empty if they can."""
    if dtype.block == 1:
        return ""
    reasons = []
    for part in parts:
        copied = layout is not None and part.dtype is dtype and part.layout.same_bytes_as(layout)
        if part.merge is None and not copied:
            reasons += [blocks_split(part.dtype, part.layout), blocks_split(dtype, layout) if layout else ""]
    return next(filter(None, reasons), "")


#: Pieces that stay in one file: the arrays of a quantized module, else one alone.
Module = tuple[Piece, ...]
