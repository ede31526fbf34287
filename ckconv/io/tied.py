"""Is the output head the embedding? The one fact about a model that only its bytes tell."""

from __future__ import annotations

from ckconv.core.tensors import TensorIndex
from ckconv.io.files import Files, paired_runs


def head_is_embedding(index: TensorIndex, files: Files | None = None) -> bool:
    """``output.weight`` is byte for byte ``token_embedding.weight``: the model is tied, whatever its header says.

    Reads both until they differ, which two different matrices do at once.
    """
    head, embedding = index.tensors.get("output.weight"), index.tensors.get("token_embedding.weight")
    if head is None or embedding is None or (head.dtype, head.shape) != (embedding.dtype, embedding.shape):
        return False
    if head.merge or embedding.merge or not head.layout.same_bytes_as(embedding.layout):
        return False
    if any(len(tensor.extents) > 1 for t in (head, embedding) for tensor in (t, *t.planes)):
        return False  # stacked or fused: no head and no embedding is
    own = files or Files(index.identities)
    try:
        return own.are_same(paired_runs(head, embedding))
    finally:
        if files is None:
            own.close()
