"""What the engine's builder checks when it builds a bump 5 or 4 file, checked without building.

Every entry has to be used by an operation of the family's template, and every weight that an operation expects has to
be there (``validate_weights`` of ``build_ir_v7.py`` and ``build_ir_v8.py``: a hard fault); types are taken from
``quant_summary``.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ckconv.core.tensors import TensorIndex, parse
from ckconv.families.presence import used
from ckconv.formats.bump.engines import TEMPLATED
from ckconv.formats.bump.read5 import row_family
from ckconv.formats.bump.slots import SLOTS_V5, SUMMARISED, TYPE_WORDS, key_of
from ckconv.formats.bump.spec import canonical_json
from ckconv.plan.planner import HEAD

UNUSED, MISSING, SUMMARY, HASH = (
    "verify.entry-unused",
    "verify.entry-missing",
    "verify.quant-summary",
    "verify.hash",
)

#: An entry that every file of the layout has whose layers have attention and a feed-forward block each.
_MARK = "layer.0.wq"

_OPTIONAL = frozenset(key_of(slot) for group in SLOTS_V5 for slot in group if slot.optional and slot.parts) - {HEAD}


def entry_faults(index: TensorIndex) -> Iterator[tuple[str, str]]:
    """(code, sentence) of entries that the builder does not use, or does not find."""
    config = index.config
    if config is None or _MARK not in {tensor.source for tensor in index.tensors.values()}:
        return
    family = row_family(config.family)
    needed, name = used(family, TEMPLATED), family.gguf
    there = Counter(pattern for pattern in (parse(one).pattern for one in index.tensors) if pattern in _OPTIONAL)
    slots = {parse(one).pattern: tensor.source for one, tensor in [*index.tensors.items()][::-1]}
    for pattern in sorted(there.keys() - needed):
        yield UNUSED, f"{slots[pattern]} is used by no operation of the engine's {name}"
    for pattern in sorted(needed):
        if there[pattern] < config.num_layers:
            yield MISSING, f"{pattern} is missing in {config.num_layers - there[pattern]} layers, and {name} has it"
    tied = index.metadata.get("tie_word_embeddings")
    if tied is True and HEAD in index.tensors:
        yield UNUSED, f"{index.tensors[HEAD].source} is used by no operation: tie_word_embeddings is true"
    if tied is False and HEAD not in index.tensors:
        yield MISSING, "output.weight is missing: tie_word_embeddings is false"


def summary_faults(summary: object, index: TensorIndex) -> Iterator[tuple[str, str]]:
    """Types in a manifest's ``quant_summary`` that are not those of the entries, and matrices that it lacks."""
    if not isinstance(summary, dict):
        return
    words = {tensor.source: TYPE_WORDS.get(tensor.dtype.name, "") for tensor in index.tensors.values()}
    words["lm_head"] = words.get("output.weight") or words.get("lm_head_weight") or words.get("token_emb", "")
    told: dict[str, object] = {}
    for name, value in summary.items():
        told |= {f"{name}.{slot}": word for slot, word in value.items()} if isinstance(value, dict) else {name: value}
    for slot, word in told.items():
        if slot in words and words[slot] != word:
            yield SUMMARY, f"quant_summary: {slot} is {word!r}, in the file {words[slot]}"
    row = row_family(index.config.family).engines.get(TEMPLATED) if index.config else None
    summarised = {name for name, _ in row.slots} - {*row.floats} if row and row.slots else SUMMARISED
    for tensor in index.tensors.values():
        slot = tensor.source
        if len(tensor.shape) > 1 and slot.rpartition(".")[2] in summarised and slot not in told:
            yield SUMMARY, f"quant_summary has no {slot}"


def hash_faults(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Hashes inside the metadata that are not those of what they name."""
    stated = metadata.get("template_hash")
    if stated is not None and isinstance(metadata.get("template"), dict):
        found = hashlib.sha256(canonical_json(metadata["template"])).hexdigest()
        if stated != found:
            yield HASH, f"template_hash is {stated!r}, the template's SHA-256 is {found}"
