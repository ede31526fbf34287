"""Embedding as output head: classes may scale input and output apart."""

from __future__ import annotations

from ckconv.core.config import ModelConfig
from ckconv.core.tensors import Tensor
from ckconv.families.catalog import FAMILIES
from ckconv.families.kinds import factor_of, with_factor
from ckconv.families.names import HF, names_of
from ckconv.families.parameters import scope_of

_EMBEDDING, _HEAD = "token_embedding.weight", "output.weight"


def as_head(embedding: Tensor, config: ModelConfig | None) -> Tensor:
    """The embedding's rows with the factor of the head.

    Only transformers' classes have such factors, and elsewhere they are 1.

    Raises:
        UnsupportedError: ``model.config``, the factors differ, and the rows are blocks.
    """
    if config is None:
        return embedding
    family = FAMILIES[config.family]
    written, scope = names_of(family, HF).written, scope_of(family, config)
    parts = [written[name].parts[0] for name in (_EMBEDDING, _HEAD) if name in written]
    if all(part.by is None for part in parts) or len(parts) < 2:
        return embedding
    its, own = (factor_of(part, scope) for part in parts)
    return embedding if its == own else with_factor(embedding, own)
