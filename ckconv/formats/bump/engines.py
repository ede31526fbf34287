"""Which of the engine's snapshots computes a bump 3 or 4 file: nothing in the file says for which one it was made.

Sources: ``load_weight_dtypes`` of ``src/ckernel_codegen.c`` and ``src/kernels/dequant_kernels.c`` of the snapshots of
January and April 2026, and logits of files of each kind in each snapshot.
"""

from __future__ import annotations

from collections.abc import Collection

#: Rows of family files: the generated runtime of bump 3, the one that goes by templates, of bump 4 and 5, and the one
#: that trains.
GENERATED, TEMPLATED, TRAINED = "bump3", "bump5", "bump_trained"

#: Types of whose blocks a bump 3 file is computed by one snapshot at most.
K_QUANTS = frozenset({"Q4_K", "Q6_K"})

_NEWER = "v7 and v8 want bump 5"

#: The January engine with bump 4 in its own layout has the same magic.
FOR_V7_AND_V8 = (
    "layout D, for v7 and v8 only: the v4 engine of January 2026 loads the file without a complaint, takes it for its "
    "own layout and computes garbage"
)


def computed_by(types: Collection[str], numbering: str) -> str:
    """Who computes a bump 3 file with matrices of these types; empty where every snapshot with that format does.

    Args:
        types: their names.
        numbering: of its dtype table, ``v3`` or ``v4``.
    """
    held = " and ".join(sorted(K_QUANTS & set(types)))
    if not held:
        return ""
    if numbering == "v4":
        return f"{held} by the codes 7 and 8: only the v1 runtime of April 2026 computes it; {_NEWER}"
    if "Q4_K" in types:
        return (
            f"{held} by the codes 6 and 7: no known engine computes it. The engine of January 2026 has another Q4_K "
            f"than ggml's, April's v1 runtime wants --dtype-codes v4, {_NEWER}"
        )
    return (
        f"{held} by the code 7: only the engine of January 2026 computes it. April's v1 runtime takes it for Q4_K and "
        f"computes NaN: it wants --dtype-codes v4; {_NEWER}"
    )
