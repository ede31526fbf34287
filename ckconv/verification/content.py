"""The hyper-parameters of two models, compared; no tensor is read, and numpy is not needed."""

from __future__ import annotations

from dataclasses import replace

from ckconv.core.config import config_differences
from ckconv.core.tensors import TensorIndex
from ckconv.core.towers import PREFIX, Tower
from ckconv.families.catalogue import FAMILIES, told_by_architecture
from ckconv.families.parameters import differ
from ckconv.families.towers import tower_family
from ckconv.families.words import without_noted


def parameter_differences(a: TensorIndex, b: TensorIndex) -> dict[str, tuple[object, object]]:
    """Hyper-parameters in which two models differ, as far as the format of each can say -> both values."""
    return {**_of_towers(a.tower, b.tower), **_of_texts(a, b)}


def _of_towers(one: Tower | None, other: Tower | None) -> dict[str, tuple[object, object]]:
    """Of what a picture is seen with; of a text model alone nothing is known of it."""
    if one is None or other is None:
        return {}
    rows = (row for tower in (one, other) for row in tower_family(tower.family).parameters.values())
    aids = {row.name for row in rows if row.read_only}
    names = dict.fromkeys((*one.parameters, *other.parameters))  # one of them is the kind of projector
    pairs = {name: (one.parameters.get(name), other.parameters.get(name)) for name in names if name not in aids}
    return {f"{PREFIX}{name}": pair for name, pair in pairs.items() if differ(*pair)}


def _of_texts(a: TensorIndex, b: TensorIndex) -> dict[str, tuple[object, object]]:
    if a.config is None or b.config is None:
        return {}
    ours, theirs, same_words = a.config, b.config, a.same_words_as(b)
    if not same_words:
        pairs = ((ours, theirs), (theirs, ours))
        ours, theirs = (replace(one, family=_told(one.family, other.family)) for one, other in pairs)
    if a.format != b.format:
        ours, theirs = without_noted(ours), without_noted(theirs)
    return config_differences(ours, theirs, same_words=same_words)


def _told(name: str, other: str) -> str:
    """The family for which a GGUF is taken; without a tokenizer, the other where nothing else tells them apart."""
    told = FAMILIES[told_by_architecture(name)]
    condition = told.in_gguf.condition
    alike = condition is not None and told.gguf == FAMILIES[other].gguf and _by_tokenizer(condition.asked)
    return min(told.name, other) if alike else told.name


def _by_tokenizer(keys: list[str]) -> bool:
    return all(key.startswith("/tokenizer.") for key in keys)
