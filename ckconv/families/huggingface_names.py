"""Hugging Face's and MLX's tensor names, one table a family; what they fuse, transpose and keep.

Sources: the modelling files of transformers (4.57, 5) and mlx-lm (0.32), checked against checkpoints that they wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ckconv.core.names import GGUF_NAMES


def _both(theirs: str, ours: str) -> dict[str, str]:
    return {f"{theirs}.{kind}": f"{ours}.{kind}" for kind in ("weight", "bias")}


_LAYER, _OURS = "model.layers.{n}", "layers.{n}"

_ATTENTION = {
    **_both(f"{_LAYER}.self_attn.q_proj", f"{_OURS}.attention.q"),
    **_both(f"{_LAYER}.self_attn.k_proj", f"{_OURS}.attention.k"),
    **_both(f"{_LAYER}.self_attn.v_proj", f"{_OURS}.attention.v"),
    **_both(f"{_LAYER}.self_attn.o_proj", f"{_OURS}.attention.output"),
    f"{_LAYER}.self_attn.q_norm.weight": f"{_OURS}.attention.q_norm.weight",
    f"{_LAYER}.self_attn.k_norm.weight": f"{_OURS}.attention.k_norm.weight",
    f"{_LAYER}.input_layernorm.weight": f"{_OURS}.attention_norm.weight",
}

_DENSE = {
    **_both(f"{_LAYER}.mlp.gate_proj", f"{_OURS}.ffn.gate"),
    **_both(f"{_LAYER}.mlp.up_proj", f"{_OURS}.ffn.up"),
    **_both(f"{_LAYER}.mlp.down_proj", f"{_OURS}.ffn.down"),
}

_ENDS = {
    "model.embed_tokens.weight": "token_embedding.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "lm_head.bias": "output.bias",
}

# Fused by Phi 3, and in any other decoder by who asks for it (``--fuse``, and runtimes that store them so).
_FUSED = {
    **_both(f"{_LAYER}.self_attn.qkv_proj", f"{_OURS}.attention.qkv"),
    **_both(f"{_LAYER}.mlp.gate_up_proj", f"{_OURS}.ffn.gate_up"),
}

_DECODER = {
    **_ENDS,
    **_ATTENTION,
    **_DENSE,
    **_FUSED,
    f"{_LAYER}.post_attention_layernorm.weight": f"{_OURS}.ffn_norm.weight",
}

_GEMMA3 = {
    **_ENDS,
    **_ATTENTION,
    **_DENSE,
    **_FUSED,
    f"{_LAYER}.post_attention_layernorm.weight": f"{_OURS}.post_attention_norm.weight",
    f"{_LAYER}.pre_feedforward_layernorm.weight": f"{_OURS}.ffn_norm.weight",
    f"{_LAYER}.post_feedforward_layernorm.weight": f"{_OURS}.post_ffn_norm.weight",
}


def _experts(module: str, gate: str, up: str, down: str) -> dict[str, str]:
    """One by one as transformers stores them, and stacked as mlx-lm does."""
    return {
        f"{module}.gate.weight": f"{_OURS}.ffn.router.weight",
        f"{module}.experts.{{e}}.{gate}.weight": f"{_OURS}.ffn.experts.gate.weight",
        f"{module}.experts.{{e}}.{up}.weight": f"{_OURS}.ffn.experts.up.weight",
        f"{module}.experts.{{e}}.{down}.weight": f"{_OURS}.ffn.experts.down.weight",
        f"{module}.switch_mlp.gate_proj.weight": f"{_OURS}.ffn.experts.gate.weight",
        f"{module}.switch_mlp.up_proj.weight": f"{_OURS}.ffn.experts.up.weight",
        f"{module}.switch_mlp.down_proj.weight": f"{_OURS}.ffn.experts.down.weight",
    }


_MIXTRAL = {**_DECODER, **_experts(f"{_LAYER}.block_sparse_moe", "w1", "w3", "w2")}
_QWEN3MOE = {**_DECODER, **_experts(f"{_LAYER}.mlp", "gate_proj", "up_proj", "down_proj")}

# The hub's gpt2 has no prefix, transformers writes "transformer.", mlx-lm "model.": one table without one.
_GPT2 = {
    "wte.weight": "token_embedding.weight",
    "wpe.weight": "position_embedding.weight",
    "lm_head.weight": "output.weight",
    **_both("ln_f", "output_norm"),
    **_both("h.{n}.ln_1", f"{_OURS}.attention_norm"),
    **_both("h.{n}.ln_2", f"{_OURS}.ffn_norm"),
    **_both("h.{n}.attn.c_attn", f"{_OURS}.attention.qkv"),
    **_both("h.{n}.attn.c_proj", f"{_OURS}.attention.output"),
    **_both("h.{n}.mlp.c_fc", f"{_OURS}.ffn.up"),
    **_both("h.{n}.mlp.c_proj", f"{_OURS}.ffn.down"),
}


def _whisper_layer(theirs: str, ours: str) -> dict[str, str]:
    return {
        **{
            k: v
            for q, p in (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("out_proj", "output"))
            for k, v in _both(
                f"{theirs}.self_attn.{q}", f"{ours}.{'attn' if ours[0] == 'e' else 'attention'}.{p}"
            ).items()
        },
        **_both(f"{theirs}.self_attn_layer_norm", f"{ours}.{'attn_norm' if ours[0] == 'e' else 'attention_norm'}"),
        **_both(f"{theirs}.final_layer_norm", f"{ours}.ffn_norm"),
        **_both(f"{theirs}.fc1", f"{ours}.ffn.up"),
        **_both(f"{theirs}.fc2", f"{ours}.ffn.down"),
    }


_WHISPER = {
    "model.decoder.embed_tokens.weight": "token_embedding.weight",
    "model.decoder.embed_positions.weight": "position_embedding.weight",
    "proj_out.weight": "output.weight",
    **_both("model.decoder.layer_norm", "output_norm"),
    **_whisper_layer("model.decoder.layers.{n}", _OURS),
    **_both("model.decoder.layers.{n}.encoder_attn_layer_norm", f"{_OURS}.cross_attn_norm"),
    **{
        k: v
        for q, p in (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("out_proj", "output"))
        for k, v in _both(f"model.decoder.layers.{{n}}.encoder_attn.{q}", f"{_OURS}.cross_attn.{p}").items()
    },
    "model.encoder.embed_positions.weight": "enc.position_embedding.weight",
    **_both("model.encoder.conv1", "enc.conv1"),
    **_both("model.encoder.conv2", "enc.conv2"),
    **_both("model.encoder.layer_norm", "enc.output_norm"),
    **_whisper_layer("model.encoder.layers.{n}", "enc.layers.{n}"),
}


@dataclass(frozen=True, slots=True)
class Naming:
    """How one family is named and stored.

    Attributes:
        names: pattern -> canonical pattern.
        prefixes: what may stand before every name, and what the table has in its place.
        fused: stem of a fused tensor -> stems of its parts, in row order, wherever one may be found.
        always_fused: those of them that the family's classes store so.
        transposed: canonical patterns of matrices that transformers stores ``[in, out]`` (MLX does not).
        dropped: pattern -> why the tensor is no part of the model.
    """

    names: Mapping[str, str]
    prefixes: tuple[tuple[str, str], ...] = ()
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    always_fused: tuple[str, ...] = ()
    transposed: frozenset[str] = frozenset()
    dropped: Mapping[str, str] = field(default_factory=dict)


_ROTARY = "rotary frequencies, which follow from the configuration"
_INV_FREQ = {f"{_LAYER}.self_attn.rotary_emb.inv_freq": _ROTARY, "model.rotary_emb.inv_freq": _ROTARY}
_MASK = "a causal mask, the same in every model"

QKV, GATE_UP = f"{_OURS}.attention.qkv", f"{_OURS}.ffn.gate_up"

#: Stem of a fused tensor -> stems of its parts, in row order.
PARTS: dict[str, tuple[str, ...]] = {
    QKV: (f"{_OURS}.attention.q", f"{_OURS}.attention.k", f"{_OURS}.attention.v"),
    GATE_UP: (f"{_OURS}.ffn.gate", f"{_OURS}.ffn.up"),
}

#: A checkpoint of the class without a head (``LlamaModel``) names its tensors without the class's own prefix.
_BARE = (("", "model."),)

#: Where a configuration has a ``text_config``, its decoder's tensors are under one of these: transformers 5 and 4.
NESTED = (("model.language_model.", "model."), ("language_model.", ""))

NAMINGS: dict[str, Naming] = {
    "llama": Naming(_DECODER, prefixes=_BARE, fused=PARTS, dropped=_INV_FREQ),
    "qwen2": Naming(_DECODER, prefixes=_BARE, fused=PARTS, dropped=_INV_FREQ),
    "qwen3": Naming(_DECODER, prefixes=_BARE, fused=PARTS, dropped=_INV_FREQ),
    "gemma3": Naming(_GEMMA3, prefixes=_BARE, fused=PARTS, dropped=_INV_FREQ),
    "phi3": Naming(_DECODER, prefixes=_BARE, fused=PARTS, always_fused=(QKV, GATE_UP), dropped=_INV_FREQ),
    "mixtral": Naming(_MIXTRAL, prefixes=_BARE, fused=PARTS, dropped=_INV_FREQ),
    "qwen3moe": Naming(_QWEN3MOE, prefixes=_BARE, fused=PARTS, dropped=_INV_FREQ),
    "gpt2": Naming(
        _GPT2,
        prefixes=(("transformer.", ""), ("model.", "")),
        fused={QKV: PARTS[QKV]},
        always_fused=(QKV,),
        transposed=frozenset(
            f"{_OURS}.{matrix}.weight" for matrix in ("attention.qkv", "attention.output", "ffn.up", "ffn.down")
        ),
        dropped={"h.{n}.attn.bias": _MASK, "h.{n}.attn.masked_bias": _MASK},
    ),
    "whisper": Naming(_WHISPER),
}

#: The key of a file's ``__metadata__`` that says under which names its tensors are, where not under the family's own.
NAMES_KEY = "ckconv.names"

_CANONICAL = {canonical: canonical for naming in NAMINGS.values() for canonical in naming.names.values()}
_GGUF = {
    **{theirs: ours for theirs, ours in GGUF_NAMES.items() if ours != "rope_frequencies"},
    **_both("blk.{n}.ffn_gate_up", GATE_UP),
}

#: Names that are the same in every family: what :data:`NAMES_KEY` holds -> pattern -> canonical pattern. Only the
#: names are other ones; rows and values are as Hugging Face stores them.
DIALECTS: dict[str, Mapping[str, str]] = {"canonical": _CANONICAL, "gguf": _GGUF}


def naming_of(family: str, dialect: str) -> Naming:
    """How a family is named in a dialect: ``hf``, one of :data:`DIALECTS`, or ``max``: GPT-2 with linear layers."""
    own = NAMINGS[family]
    if dialect in DIALECTS:
        return Naming(DIALECTS[dialect], fused=PARTS)
    return replace(own, transposed=frozenset()) if dialect == "max" else own


#: Endings of tensors that other quantisers write -> what they are called.
FOREIGN_QUANTIZERS: tuple[tuple[str, str], ...] = (
    (".qzeros", "GPTQ or AWQ"),
    (".g_idx", "GPTQ"),
    (".qweight", "GPTQ or AWQ"),
    (".absmax", "bitsandbytes"),
    (".quant_map", "bitsandbytes"),
    (".nested_absmax", "bitsandbytes"),
    (".SCB", "bitsandbytes"),
    (".weight_scale_inv", "block-scaled FP8"),
    (".weight_scale", "FP8 or compressed-tensors"),
    (".input_scale", "FP8"),
    (".weight_packed", "compressed-tensors"),
    ("._scale", "a scaled format"),
    ("._data", "a quanto format"),
)
