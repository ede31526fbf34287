"""The hyper-parameters of two models, compared; no tensor is read, and numpy is not needed."""

from __future__ import annotations

from ckconv.core.config import config_differences
from ckconv.core.tensors import TensorIndex
from ckconv.families.catalogue import told_by_architecture
from ckconv.families.words import without_noted
from ckconv.lazy import replace


def parameter_differences(a: TensorIndex, b: TensorIndex) -> dict[str, tuple[object, object]]:
    """Hyper-parameters in which two models differ, as far as the format of each can say -> both values."""
    if a.config is None or b.config is None:
        return {}
    ours, theirs, same_words = a.config, b.config, a.same_words_as(b)
    if not same_words:
        ours, theirs = (replace(config, family=told_by_architecture(config.family)) for config in (ours, theirs))
    if a.format != b.format:
        ours, theirs = without_noted(ours), without_noted(theirs)
    return config_differences(ours, theirs, same_words=same_words)
