"""Whether a file holds what it says, and what its source holds.

The layouts of the output are undone and canonical rows are compared with the source's, so a permutation that was
applied wrongly cannot hide: nothing here knows how the writer packs. The checksum is computed in a second thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

from ckconv.core.dtypes import F32
from ckconv.core.names import is_bias
from ckconv.core.rope import llama3_factors, same_factors
from ckconv.core.tensors import (
    Extent,
    MetadataKind,
    Tensor,
    TensorIndex,
    plain_tensor,
    require_described,
)
from ckconv.engine.configs import parameter_differences
from ckconv.engine.reread import ChecksumThread, Soundness
from ckconv.engine.rowmoves import moved_chunks, row_order
from ckconv.errors import VerifyError, listed
from ckconv.io.files import Files, paired_pieces, pieces
from ckconv.io.tied import head_is_embedding
from ckconv.lazy import NamedTuple
from ckconv.quant.convert import between, convertible

if TYPE_CHECKING:
    from ckconv.quant.codec import Floats

#: Called with the bytes just read and the tensor they belong to.
Progress = Callable[[int, str], None]


class Verified(NamedTuple):
    """What was found right.

    Attributes:
        tensors: tensors of the output that were compared, or only looked at where no source was given.
        zero_filled: all-zero placeholders for tensors that the source does not have.
        rounded: tensors that hold their source's values rounded to a smaller type: right, but not exact.
        payload_sha256: the digest of the payload that the header stores, as hex; empty where the format has none.
    """

    tensors: int
    zero_filled: int
    payload_sha256: str
    compared: bool
    rounded: int = 0


def verify_index(
    out: TensorIndex,
    source: TensorIndex | None = None,
    *,
    left_out: Collection[str] = (),
    configuration: bool = True,
    progress: Progress | None = None,
    digests: Mapping[Extent, bytes] | None = None,
    importance: Mapping[str, Floats] | None = None,
) -> Verified:
    """Verify ``out``: checksums, padding and placeholders; with ``source``, configuration and every tensor against it.

    Args:
        left_out: names or globs of source tensors that are not in the output on purpose.
        configuration: hyper-parameters are to be the source's; not where somebody asked for others.
        importance: canonical name -> how much the error of each column counted when it was quantised, an expert a row.
        digests: SHA-256 of what was read from the output already.

    Raises:
        VerifyError: ``bump.checksum``, ``verify.config``, ``verify.padding`` or ``verify.tensor``, with every fault
            found.
        InputError: ``bump.config``, if the output cannot be described for want of its configuration.
    """
    require_described(out)
    hashing = ChecksumThread(out.checksums, digests or {})
    try:
        with Files({**(source.identities if source else {}), **out.identities}) as files:
            comparison = _Comparison(out, source, files, left_out, progress or (lambda n, name: None))
            comparison.configuration = configuration
            comparison.importance = importance or {}
            faults, compared, zero_filled = comparison.run()
            files.check_unchanged()
        named = next((fault.tensor for fault in faults if fault.tensor), None)
        hashing.check(out.path, tensor=named, details=[fault.text for fault in faults])
    finally:
        hashing.stop()
    if faults:
        first = faults[0]
        raise VerifyError(
            first.code, first.text, path=out.path, tensor=first.tensor, details=listed([f.text for f in faults[1:]])
        )
    digest = out.checksums[0].stored.hex() if out.checksums else ""
    return Verified(compared, zero_filled, digest, source is not None, comparison.rounded)


def verify_soundly(
    out: TensorIndex,
    source: TensorIndex | None,
    *,
    left_out: Collection[str] = (),
    configuration: bool = True,
    progress: Progress | None = None,
    importance: Mapping[str, Floats] | None = None,
) -> Verified:
    """:func:`verify_index`, and the source's own checksum: nothing is right beside a damaged one.

    Raises:
        VerifyError, InputError: see there.
    """
    if source is None:
        return verify_index(out, left_out=left_out, progress=progress)
    with Soundness(source) as sound:
        sound.begin()
        found = verify_index(
            out, source, left_out=left_out, configuration=configuration, progress=progress, importance=importance
        )
        sound.check()
    return found


class _Fault(NamedTuple):
    code: str
    text: str
    tensor: str | None


class _Comparison:
    def __init__(
        self,
        out: TensorIndex,
        source: TensorIndex | None,
        files: Files,
        left_out: Collection[str],
        progress: Progress,
    ) -> None:
        self.out, self.source, self.files, self.left_out, self.progress = out, source, files, left_out, progress
        self.rounded = 0
        self.configuration = True
        self.importance: Mapping[str, Floats] = {}

    def run(self) -> tuple[list[_Fault], int, int]:
        """All faults, the number of tensors looked at, and how many of them are placeholders."""
        faults = [*self._config(), *self._absent()]
        zero_filled = 0
        theirs = _every_tensor(self.source) if self.source else {}
        for key, tensor in _every_tensor(self.out).items():
            self.progress(0, tensor.name)
            faults += self._padding(tensor)
            twin = theirs.get(key)
            if twin is None and key == "output.weight":  # a tied head that was given a tensor of its own
                twin = theirs.get("token_embedding.weight")
            if twin is not None and tensor.may_be_absent and self._may_be_left_out(twin) and self._is_zero(tensor):
                zero_filled += 1
            elif twin is not None:
                faults += self._rows(tensor, twin)
            elif key == "rope_frequencies" and self._follows(tensor):
                continue
            elif self.source is not None:
                if self._says_nothing(tensor, self.out):
                    zero_filled += 1
                elif tensor.may_be_absent:
                    text = f"{_label(tensor)} is not zero, but the source has no such tensor"
                    faults.append(_Fault("verify.tensor", text, tensor.source))
                else:
                    faults.append(_Fault("verify.tensor", f"{_label(tensor)} is not in the source", tensor.source))
        return faults, len(self.out.tensors) + len(self.out.unknown) - zero_filled, zero_filled

    def _config(self) -> Iterator[_Fault]:
        """What the output's configuration says else than the source's; the context length is a matter of choice.

        So is what the target's engine imposes on every model of the format, where the plan was asked to allow that.
        """
        if not self.configuration or self.source is None or self.out.config is None or self.source.config is None:
            return
        chosen = {"context_length", *str(self.out.facts.get("imposed", "")).split()}
        if self.out.metadata_kind is MetadataKind.OWN and self.out.metadata.keys() <= {"model_type"}:
            chosen |= {"norm_eps", "rope_theta"}  # no document in or beside the file, and its header has no place
        for name, pair in parameter_differences(self.out, self.source).items():
            if name not in chosen:
                yield _Fault("verify.config", f"{name} is {pair[0]}, {pair[1]} in the source", None)

    def _absent(self) -> Iterator[_Fault]:
        """Source tensors that are nowhere in the output, though no rule or flag left them out."""
        if self.source is None:
            return
        there = _every_tensor(self.out)
        for key, tensor in _every_tensor(self.source).items():
            if key in there or self._may_be_left_out(tensor):
                continue
            if self._says_nothing(tensor, self.source):
                continue
            yield _Fault("verify.tensor", f"{tensor.source} of the source is not in the output", tensor.source)

    def _says_nothing(self, tensor: Tensor, index: TensorIndex) -> bool:
        """The model computes the same without this tensor: a head that is the embedding, or zeros that are added."""
        if tensor.name == "output.weight":
            return head_is_embedding(index, self.files)
        return (tensor.may_be_absent or is_bias(tensor.name)) and self._is_zero(tensor)

    def _may_be_left_out(self, tensor: Tensor) -> bool:
        """A name stands for itself too: what a file calls a tensor may hold the brackets of a glob."""
        names = (tensor.name, tensor.source)
        return any(glob in names or any(fnmatchcase(name, glob) for name in names) for glob in self.left_out)

    def _rows(self, tensor: Tensor, twin: Tensor) -> list[_Fault]:
        """Compare the canonical rows of a tensor with its source's."""
        label = f"{_label(tensor)}"
        if tensor.shape != twin.shape and self.out.adapter is not None:
            from ckconv.adapters.lowrank import same_rank

            tensor, twin = same_rank(tensor, twin, self.files)
        if tensor.shape != twin.shape:
            text = f"{label} has shape {list(tensor.shape)}, {twin.source} has {list(twin.shape)}"
            return [_Fault("verify.tensor", text, tensor.source)]
        if not convertible(twin.dtype, tensor.dtype):
            text = f"{label} is {tensor.dtype}, {twin.source} is {twin.dtype}"
            return [_Fault("verify.tensor", text, tensor.source)]
        conversion = between(twin, tensor)
        alike = tensor.dtype is twin.dtype and not conversion.shift and tensor.layout.same_bytes_as(twin.layout)
        alike = alike and twin.merge is None and not twin.packed  # equal arrays may stand for other numbers
        told = partial(self._told, tensor.name)
        if alike and self.files.are_same(paired_pieces(tensor, twin), told):
            return []
        order = row_order(twin, tensor)
        if order is not None and self._same_moved(tensor, twin, order):
            return []
        # Importing what computes with rows takes a while, in which the checksum gets ahead.
        from ckconv.io.rowcompare import wrong_rows

        wrong, rounded = wrong_rows(
            tensor, twin, conversion, self.files, told, importance=self.importance.get(tensor.name)
        )
        if not wrong:
            self.rounded += rounded > 0
            return []
        unit = "row" if tensor.layout.cols > 1 else "element"
        which = f"{unit} {wrong[0]:,} is"
        if len(wrong) > 1:
            which = f"{len(wrong):,} of {tensor.layout.rows:,} {unit}s, from {wrong[0]:,} on, are"
        text = f"{label} differs from {twin.source}: {which} not what the source holds"
        return [_Fault("verify.tensor", text, tensor.source)]

    def _same_moved(self, tensor: Tensor, twin: Tensor, order: tuple[int, ...]) -> bool:
        mine, start = bytearray(), 0
        for moved in moved_chunks(twin, order, self.files):
            if len(mine) != len(moved):
                mine = bytearray(len(moved))
            self.files.read_run(tensor.extents, start, mine)
            start += len(moved)
            self.progress(len(moved), tensor.name)
            if mine != moved:  # a bytearray first: comparing views goes byte by byte
                return False
        return True

    def _follows(self, tensor: Tensor) -> bool:
        """The factors of Llama 3's RoPE, which the source's configuration says instead of a tensor."""
        config = self.source.config if self.source else None
        expected = llama3_factors(config) if config else None
        if expected is None or len(expected) != tensor.nbytes or tensor.dtype is not F32:
            return False
        stored = bytearray(tensor.nbytes)
        self.files.read_into(tensor.extents[0].path, tensor.extents[0].offset, stored)
        return same_factors(bytes(stored), expected)

    def _padding(self, tensor: Tensor) -> list[_Fault]:
        """Padding is zero."""
        if not tensor.layout.padded:
            return []
        from ckconv.io.rowcompare import dirty_padding

        row = dirty_padding(tensor, self.files)
        if row is None:
            return []
        text = f"{_label(tensor)} holds non-zero padding in stored row {row:,}"
        return [_Fault("verify.padding", text, tensor.source)]

    def _is_zero(self, tensor: Tensor) -> bool:
        return self.files.are_zero(pieces(tensor), partial(self._told, tensor.name))

    def _told(self, name: str, nbytes: int) -> None:
        self.progress(nbytes, name)


def _every_tensor(index: TensorIndex) -> dict[str, Tensor]:
    """Canonical tensors by name; those without a rule by their own, marked so that it is never taken for canonical."""
    copied = {item.stored.name: plain_tensor(item.stored.name, item.stored) for item in index.dropped if item.copied}
    return {**index.tensors, **{f"\0{name}": tensor for name, tensor in {**index.unnamed, **copied}.items()}}


def _label(tensor: Tensor) -> str:
    return tensor.source if tensor.source == tensor.name else f"{tensor.source} ({tensor.name})"
