"""The few facts about a source that only its bytes tell, gathered before the plan is made."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ckconv.core.adapters import Role
from ckconv.core.dtypes import DType
from ckconv.core.names import is_bias, parse
from ckconv.core.tensors import Tensor, TensorIndex
from ckconv.io.files import Files, pieces
from ckconv.io.tied import head_is_embedding
from ckconv.quant.triples import triple_of

if TYPE_CHECKING:
    from ckconv.quant.codec import Floats

#: Why a placeholder is left out.
PLACEHOLDER = "zeros that stand for a tensor which is not there"


class SourceFacts(NamedTuple):
    """What was found in the data.

    Attributes:
        head_is_embedding: ``output.weight`` is byte for byte the embedding.
        unfit: canonical name of an MLX triple -> GGUF type it could be re-packed to -> groups whose numbers do not
            fit; its own type -> groups whose scale is a code for no number. Empty where nobody looked: then a triple
            is taken to fit, and the conversion finds out.
        copies: tensors of an adapter that are the base's own.
        importance: name in GGUF -> how much the error of each column counts, of each expert apart ``[experts, cols]``.
    """

    head_is_embedding: bool = False
    unfit: Mapping[str, Mapping[DType, int]] = {}
    copies: frozenset[str] = frozenset()
    importance: Mapping[str, Floats] = {}


def gather(index: TensorIndex) -> SourceFacts:
    """Read what has to be read: two matrices until they differ, and the scales and biases of MLX triples."""
    with Files(index.identities) as files:
        unfit = {
            name: _unfit(tensor, files) for name, tensor in index.tensors.items() if triple_of(tensor.dtype) is not None
        }
        return SourceFacts(head_is_embedding(index, files), unfit)


def gather_adapter(index: TensorIndex) -> SourceFacts:
    """Hold the matrices that peft saves beside the LoRA of an embedding or a head against those of the base."""
    adapter = index.adapter
    base = adapter.base_index if adapter else None
    if adapter is None or base is None:
        return SourceFacts()
    pairs = [
        (f"{module.name}.{role.value}", f"{module.name}.{kind}")
        for module in adapter.modules.values()
        for role, kind in ((Role.SAVED_WEIGHT, "weight"), (Role.SAVED_BIAS, "bias"))
        if role in module.roles and Role.B in module.roles
    ]
    if not pairs:
        return SourceFacts()
    from ckconv.io.rowcompare import same_values

    with Files({**base.identities, **index.identities}) as files:
        same = (
            mine
            for mine, theirs in pairs
            if theirs in base.tensors and same_values(index.tensors[mine], base.tensors[theirs], files)
        )
        return SourceFacts(copies=frozenset(same))


def _unfit(tensor: Tensor, files: Files) -> dict[DType, int]:
    from ckconv.io.rows import RowReader, canonical_pieces
    from ckconv.quant.repack import candidates, no_numbers

    triple = triple_of(tensor.dtype)
    assert triple is not None
    recipes = candidates(triple.quantization)
    counts = {recipe.block: 0 for recipe in recipes}
    counts[tensor.dtype] = 0
    _, scales, *biases = (RowReader(plane, files) for plane in tensor.planes)
    for start, rows in canonical_pieces(scales):
        beside = biases[0].rows(start, start + len(rows)) if biases else None
        counts[tensor.dtype] += no_numbers(rows, triple)
        for recipe in recipes:
            counts[recipe.block] += recipe.unfit_groups(rows, beside, triple)
    return counts


def placeholders(index: TensorIndex, written: Container[str] | None = None) -> frozenset[str]:
    """Canonical names of tensors that may be absent and are all zeros: they stand for ones that are not there.

    Args:
        written: patterns that have a place; others may be absent, if they are added to something.
    """
    candidates = [
        tensor
        for tensor in index.tensors.values()
        if tensor.may_be_absent
        or (written is not None and is_bias(tensor.name) and parse(tensor.name).pattern not in written)
    ]
    return zeros(index, candidates)


def zeros(index: TensorIndex, tensors: Iterable[Tensor]) -> frozenset[str]:
    """Canonical names of those of the tensors that are all zeros."""
    with Files(index.identities) as files:
        return frozenset(tensor.name for tensor in tensors if files.are_zero(pieces(tensor)))
