"""The layouts that share a magic number: five of version 4 under one, two of version 5 under another.

Nothing in a file names its layout. What tells them apart is where the dtype table is (24 zero bytes before it or not),
where the checksum is (two counts before it or not), how long the table is, and how large the whole is.
"""

from __future__ import annotations

from typing import NamedTuple

from ckconv.formats.bump.slots import SLOTS_A, SLOTS_C, SLOTS_E, SLOTS_V5, SlotTable


class Flavour(NamedTuple):
    """One layout.

    Attributes:
        name: the letter of its writer.
        slots: what lies in it.
        numberings: those that its dtype table may be in.
        extended: 24 zero bytes stand before the dtype table.
        tokenizer_fields: two counts stand before the checksum.
        interleaved: it was made from GGUF rows, which have RoPE pairs as neighbours in families whose template rotates
            those (``interleaved`` of their row); the rows of the others are Hugging Face's, because their writer read
            those or their engine rotates those.
        table_by_slot: a byte of the dtype table belongs to a slot; else only the set of codes says something.
        own_q4_k: its Q4_K blocks are not ggml's (``q4_k_quantize.py`` packs them in the engine's first way).
    """

    name: str
    slots: SlotTable
    numberings: tuple[str, ...] = ("v4",)
    extended: bool = False
    tokenizer_fields: bool = False
    interleaved: bool = True
    table_by_slot: bool = True
    own_q4_k: bool = False


A = Flavour("A", SLOTS_A, ("v3", "v4"), interleaved=False)
B = Flavour("B", SLOTS_C)
C = Flavour("C", SLOTS_C, tokenizer_fields=True)
D = Flavour("D", SLOTS_V5, extended=True, tokenizer_fields=True)
E = Flavour("E", SLOTS_E, ("v3",), interleaved=False, table_by_slot=False, own_q4_k=True)

#: The layouts of each version, in the order in which they are tried.
FLAVOURS: dict[int, tuple[Flavour, ...]] = {4: (D, A, B, C, E), 5: (D, E)}
