"""Whether a file holds what it says, and what its source holds: its tensors, and its checksums over the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

from ckconv.core.tensors import Tensor, TensorIndex, require_described
from ckconv.io.digests import Digests
from ckconv.io.files import Files
from ckconv.verification.tensors import Progress, Soundness, TensorComparison

if TYPE_CHECKING:
    from ckconv.quant.codec import Floats


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
    importance: Mapping[str, Floats] | None = None,
    decodes: Callable[[Tensor], bool] | None = None,
) -> Verified:
    """Verify ``out``: checksums, padding and placeholders; with ``source``, configuration and every tensor against it.

    The source's own checksum comes first: nothing is right beside a damaged one.

    Args:
        left_out, configuration, importance, decodes: see :class:`ckconv.verification.tensors.TensorComparison`.

    Raises:
        VerifyError: ``bump.checksum``, ``verify.config``, ``verify.padding`` or ``verify.tensor``, with every fault
            found.
        InputError: ``bump.config``, if the output cannot be described for want of its configuration.
    """
    require_described(out)
    known = {**(source.identities if source else {}), **out.identities}
    with (
        Soundness(source) if source is not None else nullcontext() as sound,
        Files(known) as files,
        Digests(checksum.extent for checksum in out.checksums) as digests,
    ):
        if sound is not None:
            sound.begin()
        digests.begin()
        found = TensorComparison(
            out,
            source,
            files,
            left_out=left_out,
            configuration=configuration,
            progress=progress,
            importance=importance or {},
            decodes=decodes,
        ).run()
        found.check(out.path, out.checksums, digests.all())
        files.check_unchanged()
        if sound is not None:
            sound.check()
    digest = out.checksums[0].stored.hex() if out.checksums else ""
    return Verified(found.tensors, found.zero_filled, digest, source is not None, found.rounded)
