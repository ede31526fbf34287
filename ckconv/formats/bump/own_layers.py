"""Families with entries of their own for layers: rows as slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckconv.families.catalog import families_of_gguf
from ckconv.families.expressions import ExpressionError
from ckconv.families.names import canonical_pattern
from ckconv.families.parameters import ParameterError, Values
from ckconv.families.schema import Family, TensorRow
from ckconv.families.sizes import Scope, layers_with
from ckconv.formats.bump.slots import TEMPLATED, SlotTable, own_slots, table_entries, with_optional


def table_of(family: Family, parameters: Mapping[str, Any]) -> SlotTable | None:
    """The slots of a model; ``None`` for a family with those of a Llama."""
    row = family.engines.get(TEMPLATED)
    if row is None or not row.slots:
        return None
    scope = Scope(family, parameters)
    entries = []
    of_layers = [(slot, names) for slot, names in row.slots if names[0].startswith("L.")]
    for slot, names in of_layers:
        tensors = [_row(family, name) for name in names]
        layers = layers_with(family, tensors[0][0], scope)
        fp32 = slot in row.floats or len(tensors[0][0].axes) == 1 or tensors[0][1] == "bias"
        here = None if len(layers) == scope["layers"] else frozenset(layers)
        entries.append((slot, [canonical_pattern(family, one.name, kind) for one, kind in tensors], fp32, here))
    return own_slots(entries, final_bias=len(of_layers) < len(row.slots))


def _row(family: Family, name: str) -> tuple[TensorRow, str]:
    """A tensor's row, and which of its tensors it is."""
    if name in family.tensors:
        return family.tensors[name], ""
    module, _, kind = name.rpartition(".")
    return family.tensors[module], kind


def described_table(config: Mapping[str, Any], num_layers: int, coded: int) -> SlotTable | None:
    """Slot table of the configured model if it has layers of its own.

    Args:
        coded: bytes of the file's dtype table, which have to be that table's.
    """
    from ckconv.formats.bump.sidefiles import Described

    for family in families_of_gguf(str(config.get("model"))):
        values = Values(family, Described(config), given={"layers": num_layers})
        try:
            table = table_of(family, values)
        except (ParameterError, ExpressionError, LookupError, TypeError):
            continue
        heads = (set[str](), {"output.weight"})
        if table and any(table_entries(with_optional(table, head), num_layers) == coded for head in heads):
            return table
    return None
