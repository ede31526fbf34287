"""Canonical tensor names and each format's names for them, as tables of patterns.

``{n}`` is the layer. A name is looked up by replacing its whole-number segments by ``{n}``, so a table costs one
dictionary look-up a tensor, whatever its length. Shapes are given with the canonical names, outermost first:
V vocabulary, E hidden, F feed-forward, H heads x head size, K key/value heads x head size, D head size, X experts,
M feed-forward of one expert, C context.
"""

from __future__ import annotations

from dataclasses import dataclass

#: canonical pattern -> shape. The weight and the bias of one matrix stand together.
SHAPES: dict[str, tuple[str, ...]] = {
    "token_embedding.weight": ("V", "E"),
    "position_embedding.weight": ("C", "E"),
    "layers.{n}.attention_norm.weight": ("E",),
    "layers.{n}.attention_norm.bias": ("E",),
    "layers.{n}.ffn_norm.weight": ("E",),
    "layers.{n}.ffn_norm.bias": ("E",),
    "layers.{n}.attention.q.weight": ("H", "E"),
    "layers.{n}.attention.q.bias": ("H",),
    "layers.{n}.attention.k.weight": ("K", "E"),
    "layers.{n}.attention.k.bias": ("K",),
    "layers.{n}.attention.v.weight": ("K", "E"),
    "layers.{n}.attention.v.bias": ("K",),
    "layers.{n}.attention.output.weight": ("E", "H"),
    "layers.{n}.attention.output.bias": ("E",),
    "layers.{n}.attention.q_norm.weight": ("D",),
    "layers.{n}.attention.k_norm.weight": ("D",),
    "layers.{n}.post_attention_norm.weight": ("E",),
    "layers.{n}.post_ffn_norm.weight": ("E",),
    "layers.{n}.ffn.gate.weight": ("F", "E"),
    "layers.{n}.ffn.gate.bias": ("F",),
    "layers.{n}.ffn.up.weight": ("F", "E"),
    "layers.{n}.ffn.up.bias": ("F",),
    "layers.{n}.ffn.down.weight": ("E", "F"),
    "layers.{n}.ffn.down.bias": ("E",),
    "layers.{n}.ffn.router.weight": ("X", "E"),
    "layers.{n}.ffn.experts.gate.weight": ("X", "M", "E"),
    "layers.{n}.ffn.experts.up.weight": ("X", "M", "E"),
    "layers.{n}.ffn.experts.down.weight": ("X", "E", "M"),
    "output_norm.weight": ("E",),
    "output_norm.bias": ("E",),
    "output.weight": ("V", "E"),
    "output.bias": ("V",),
}

#: GGUF pattern -> canonical pattern (llama.cpp's gguf-py tensor names).
GGUF_NAMES: dict[str, str] = {
    "token_embd.weight": "token_embedding.weight",
    "position_embd.weight": "position_embedding.weight",
    "output_norm.weight": "output_norm.weight",
    "output_norm.bias": "output_norm.bias",
    "output.weight": "output.weight",
    "output.bias": "output.bias",
    "rope_freqs.weight": "rope_frequencies",
    "blk.{n}.attn_norm.weight": "layers.{n}.attention_norm.weight",
    "blk.{n}.attn_norm.bias": "layers.{n}.attention_norm.bias",
    "blk.{n}.ffn_norm.weight": "layers.{n}.ffn_norm.weight",
    "blk.{n}.ffn_norm.bias": "layers.{n}.ffn_norm.bias",
    "blk.{n}.attn_q_norm.weight": "layers.{n}.attention.q_norm.weight",
    "blk.{n}.attn_k_norm.weight": "layers.{n}.attention.k_norm.weight",
    "blk.{n}.post_attention_norm.weight": "layers.{n}.post_attention_norm.weight",
    "blk.{n}.post_ffw_norm.weight": "layers.{n}.post_ffn_norm.weight",
    "blk.{n}.ffn_gate_inp.weight": "layers.{n}.ffn.router.weight",
    "blk.{n}.ffn_gate_exps.weight": "layers.{n}.ffn.experts.gate.weight",
    "blk.{n}.ffn_up_exps.weight": "layers.{n}.ffn.experts.up.weight",
    "blk.{n}.ffn_down_exps.weight": "layers.{n}.ffn.experts.down.weight",
    **{
        f"blk.{{n}}.{theirs}.{kind}": f"layers.{{n}}.{ours}.{kind}"
        for theirs, ours in (
            ("attn_q", "attention.q"),
            ("attn_k", "attention.k"),
            ("attn_v", "attention.v"),
            ("attn_qkv", "attention.qkv"),
            ("attn_output", "attention.output"),
            ("ffn_gate", "ffn.gate"),
            ("ffn_up", "ffn.up"),
            ("ffn_down", "ffn.down"),
        )
        for kind in ("weight", "bias")
    },
}


@dataclass(frozen=True, slots=True)
class Name:
    """A name taken apart: its ``pattern``, and the ``layer`` and ``expert`` it names, ``None`` where it names none."""

    pattern: str
    layer: int | None
    expert: int | None = None


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


def with_layer(pattern: str, layer: int | None) -> str:
    """The name that a pattern gives for one layer."""
    return pattern if layer is None else pattern.replace("{n}", str(layer))


def is_bias(canonical: str) -> bool:
    """A tensor that is added to something, so that one of zeros is the same as none; some formats store such zeros."""
    return canonical.endswith(".bias") and parse(canonical).pattern in SHAPES
