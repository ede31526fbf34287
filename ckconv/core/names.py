"""Canonical tensor names: patterns, and names taken apart.

``{n}`` is the layer, ``{e}`` one of many experts. A name is looked up by replacing its whole-number segments, so a
table of patterns costs one dictionary look-up a tensor, whatever its length.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

#: Tensors that may be stored as one, rows one after the other: module of the whole -> those of its parts, in order.
PARTS: dict[str, tuple[str, ...]] = {
    "layers.{n}.attention.qkv": ("layers.{n}.attention.q", "layers.{n}.attention.k", "layers.{n}.attention.v"),
    "layers.{n}.ffn.gate_up": ("layers.{n}.ffn.gate", "layers.{n}.ffn.up"),
    "layers.{n}.linear.qkv": ("layers.{n}.linear.q", "layers.{n}.linear.k", "layers.{n}.linear.v"),
    "layers.{n}.attention.kv_b_heads": ("layers.{n}.attention.k_b", "layers.{n}.attention.v_b"),
    "layers.{n}.linear.qkvz": tuple(f"layers.{{n}}.linear.{part}" for part in ("q", "k", "v", "gate")),
    "layers.{n}.linear.conv": ("layers.{n}.linear.conv_qk", "layers.{n}.linear.conv_v"),
}
QKV, GATE_UP, *_ = PARTS

#: What the patterns of biases start with.
_BIASED = ("layers.{n}.attention", "layers.{n}.ffn", "layers.{n}.cross_attn", "enc.", "output")


#: Names that are kept taken apart: everybody asks, and few models have more.
_KEPT = 4096


class Name(NamedTuple):
    """A name taken apart: its ``pattern``, and the ``layer`` and ``expert`` it names, ``None`` where it names none."""

    pattern: str
    layer: int | None
    expert: int | None = None


@lru_cache(maxsize=_KEPT)
def parse(name: str) -> Name:
    """Replace whole-number segments, the first by ``{n}``, the second by ``{e}``.

    ``model.layers.7.mlp.experts.3.up_proj.weight`` -> ``model.layers.{n}.mlp.experts.{e}.up_proj.weight``, 7, 3. A
    number written with leading zeros or in other digits is none: two spellings must not name one tensor.
    """
    parts = name.split(".")
    numbers: list[int] = []
    for position, part in enumerate(parts):
        if part.isascii() and part.isdigit() and len(part) <= 9 and (part == "0" or part[0] != "0"):
            if len(numbers) == 2:
                return Name(name, None)
            parts[position] = ("{n}", "{e}")[len(numbers)]
            numbers.append(int(part))
    return Name(".".join(parts), *numbers) if numbers else Name(name, None)


@lru_cache(maxsize=_KEPT)
def with_layer(pattern: str, layer: int | None) -> str:
    """The name that a pattern gives for one layer."""
    return pattern if layer is None else pattern.replace("{n}", str(layer))


def is_bias(canonical: str) -> bool:
    """A tensor that is added to something, so that one of zeros is the same as none; some formats store such zeros."""
    return canonical.endswith((".bias", "_bias")) and parse(canonical).pattern.startswith(_BIASED)
