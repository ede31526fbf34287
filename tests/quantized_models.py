"""Quantized GGUFs made with the gguf package, and the decoded weights as transformers has them.

``scripts/record_quantized_models.py`` gives transformers the decoded weights and writes its logits into
``fixtures/logits/quantised_models.npz``. Nothing of ckconv is used.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from conftest import FIXTURES
from family_cases import values
from gguf import GGMLQuantizationType as Q
from gguf.quants import dequantize, quantize
from gguf_copies import add_value, finish
from models import BLOCKS

VOCABULARY, PROMPT = 64, tuple((7 * i * i + 3 * i + 5) % 64 for i in range(16))

#: Tensor of the GGUF -> of transformers, as the converters of llama.cpp rename them.
BOTH = {
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    **{f"attn_{part}.weight": f"self_attn.{part}_proj.weight" for part in "qkv"},
    "attn_output.weight": "self_attn.o_proj.weight",
}
NAMES = {
    "glm4": BOTH | {
        **{f"attn_{part}.bias": f"self_attn.{part}_proj.bias" for part in "qkv"},
        "ffn_norm.weight": "post_attention_layernorm.weight",
        "post_attention_norm.weight": "post_self_attn_layernorm.weight",
        "post_ffw_norm.weight": "post_mlp_layernorm.weight",
        "ffn_up.weight": "mlp.gate_up_proj.weight",
    },
    "qwen35": BOTH | {
        "post_attention_norm.weight": "post_attention_layernorm.weight",
        "ffn_gate.weight": "mlp.gate_proj.weight",
        "ffn_up.weight": "mlp.up_proj.weight",
        "attn_q_norm.weight": "self_attn.q_norm.weight",
        "attn_k_norm.weight": "self_attn.k_norm.weight",
        "attn_qkv.weight": "linear_attn.in_proj_qkv.weight",
        "attn_gate.weight": "linear_attn.in_proj_z.weight",
        "ssm_alpha.weight": "linear_attn.in_proj_a.weight",
        "ssm_beta.weight": "linear_attn.in_proj_b.weight",
        "ssm_conv1d.weight": "linear_attn.conv1d.weight",
        "ssm_dt.bias": "linear_attn.dt_bias",
        "ssm_a": "linear_attn.A_log",
        "ssm_norm.weight": "linear_attn.norm.weight",
        "ssm_out.weight": "linear_attn.out_proj.weight",
    },
    "nemotron_h": {
        "attn_norm.weight": "norm.weight",
        **{f"attn_{part}.weight": f"mixer.{part}_proj.weight" for part in "qkv"},
        "attn_output.weight": "mixer.o_proj.weight",
        "ffn_up.weight": "mixer.up_proj.weight",
        "ffn_down.weight": "mixer.down_proj.weight",
        "ssm_in.weight": "mixer.in_proj.weight",
        "ssm_conv1d.weight": "mixer.conv1d.weight",
        "ssm_conv1d.bias": "mixer.conv1d.bias",
        "ssm_dt.bias": "mixer.dt_bias",
        "ssm_a": "mixer.A_log",
        "ssm_d": "mixer.D",
        "ssm_norm.weight": "mixer.norm.weight",
        "ssm_out.weight": "mixer.out_proj.weight",
    },
}  # fmt: skip
WHOLE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
         "output.weight": "lm_head.weight"}  # fmt: skip
OWN = {"nemotron_h": {"token_embd.weight": "model.embeddings.weight", "output_norm.weight": "model.norm_f.weight"}}

#: Type of blocks -> where a block has its scales, float16, and the values that make its elements small.
SCALES = {Q.Q4_K: {0: 0.002, 2: 0.01}, Q.Q5_K: {0: 0.001, 2: 0.01}, Q.Q6_K: {208: 0.0001}}


class Quantized(NamedTuple):
    """A model: ``wide`` elements in a row of every matrix, two heads of all kinds; ``types`` by the end of a name."""

    arch: str
    wide: int
    types: dict[str, Q]
    layers: tuple[str, ...] = ("full_attention",) * 2

    @property
    def head(self) -> int:
        return self.wide // 2

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name in the GGUF -> rows and columns."""
        w, made = self.wide, {"token_embd.weight": (VOCABULARY, self.wide), "output_norm.weight": (self.wide,)}
        found: dict[str, tuple[int, ...]] = dict(made) | {"output.weight": (VOCABULARY, w)}
        rows = {"attn_q": w, "attn_k": w, "attn_v": w, "attn_output": w, "ffn_down": w}
        norms = {"attn_norm": w, "post_attention_norm": w}
        gated = {"ffn_gate": w, "ffn_up": w, "ffn_down": w}
        for n, kind in enumerate(self.layers):
            if self.arch == "nemotron_h":
                has, vectors, other = self.block(kind), {"attn_norm": w}, {}
                if kind == "mamba":
                    other = {
                        "ssm_conv1d.weight": (2 * w, 4),
                        "ssm_conv1d.bias": (2 * w,),
                        "ssm_norm.weight": (2, w // 2),
                    }
                    other |= {"ssm_dt.bias": (2,), "ssm_a": (2, 1), "ssm_d": (2, 1)}
            elif self.arch == "glm4":
                has = rows | {"ffn_up": 2 * w}
                vectors = norms | {"ffn_norm": w, "post_ffw_norm": w}
                other = {f"attn_{part}.bias": (w,) for part in "qkv"}
            elif kind == "full_attention":
                has = rows | gated | {"attn_q": 2 * w}
                vectors = norms | {"attn_q_norm": self.head, "attn_k_norm": self.head}
                other = {}
            else:
                has = gated | {"attn_qkv": 3 * w, "attn_gate": w, "ssm_alpha": 2, "ssm_beta": 2, "ssm_out": w}
                vectors = norms | {"ssm_norm": self.head}
                other = {"ssm_conv1d.weight": (3 * w, 4), "ssm_dt.bias": (2,), "ssm_a": (2,)}
            made = {f"{name}.weight": (length,) for name, length in vectors.items()} | other
            made |= {f"{name}.weight": (length, w) for name, length in has.items()}
            found |= {f"blk.{n}.{name}": shape for name, shape in made.items()}
        return found

    def block(self, kind: str) -> dict[str, int]:
        """Rows of the matrices of a layer of one block; Mamba has two groups and a quarter of the width as state."""
        w = self.wide
        kinds = {"mamba": {"ssm_in": 3 * w + 2, "ssm_out": w}, "mlp": {"ffn_up": w, "ffn_down": w}}
        return kinds.get(kind) or dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), w)

    def stored(self, name: str, shape: tuple[int, ...]) -> tuple[np.ndarray, Q]:
        """Rows of blocks, or of floats: vectors and the kernel of a convolution, as llama-quantize leaves them."""
        if len(shape) == 1 or "conv1d" in name or "norm" in name or shape[-1] == 1:
            if name.endswith("ssm_a"):
                return -np.exp(values(name, shape)), Q.F32
            return values(name, shape, 1.0 if "norm" in name else 0.0), Q.F32
        kind = next((kind for ending, kind in self.types.items() if ending and ending in name), self.types[""])
        if kind not in SCALES:
            return quantize(values(name, shape), kind), kind
        elements, size = BLOCKS[kind]
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
        blocks = np.random.default_rng(seed).integers(0, 256, (*shape[:-1], shape[-1] // elements, size), np.uint8)
        for at, scale in SCALES[kind].items():
            blocks[..., at : at + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
        return blocks.reshape(*shape[:-1], -1), kind

    def keys(self) -> dict[str, object]:
        shared: dict[str, object] = {
            "block_count": len(self.layers),
            "context_length": 64,
            "embedding_length": self.wide,
            "feed_forward_length": self.wide,
            "attention.head_count": 2,
            "attention.head_count_kv": 2,
            "attention.key_length": self.head,
            "attention.value_length": self.head,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 10000.0,
            "rope.dimension_count": self.head // 2,
        }
        linear: dict[str, object] = {
            "rope.dimension_sections": [self.head // 4, 0, 0, 0],
            "ssm.conv_kernel": 4,
            "ssm.state_size": self.head,
            "ssm.group_count": 2,
            "ssm.time_step_rank": 2,
            "ssm.inner_size": self.wide,
            "attention.recurrent_layers": [kind == "linear_attention" for kind in self.layers],
            "full_attention_interval": 4,
        }
        if self.arch != "nemotron_h":
            return shared | (linear if self.arch == "qwen35" else {})
        mixer = {key: value for key, value in linear.items() if key.startswith("ssm.")}
        return {
            **{key: value for key, value in (shared | mixer).items() if "rms" not in key and "rope" not in key},
            "attention.layer_norm_epsilon": 1e-5,
            "attention.head_count_kv": [2 * (kind == "attention") for kind in self.layers],
            "feed_forward_length": [self.wide * (kind == "mlp") for kind in self.layers],
            "ssm.state_size": self.wide // 4,
            "vocab_size": VOCABULARY,
        }

    def write(self, path: Path) -> Path:
        """The GGUF."""
        writer = gguf.GGUFWriter(path, self.arch)
        for key, value in self.keys().items():
            add_value(writer, f"{self.arch}.{key}", value)
        for name, shape in self.shapes().items():
            data, kind = self.stored(name, shape)
            writer.add_tensor(name, data, raw_dtype=kind)
        return finish(writer, path)

    def state(self) -> dict[str, np.ndarray]:
        """Decoded, as transformers has the tensors."""
        made = {}
        for name, shape in self.shapes().items():
            array = dequantize(*self.stored(name, shape)).astype(np.float32).reshape(shape)
            if self.arch == "qwen35" and "norm" in name and "ssm" not in name:
                array = array - np.float32(1)  # Qwen3_5RMSNorm multiplies by 1 + weight
            if name.endswith("ssm_a"):
                array = np.log(-array)
            layer, _, part = name.removeprefix("blk.").partition(".")
            inside = name.startswith("blk.")
            whole = WHOLE | OWN.get(self.arch, {})
            theirs = f"model.layers.{layer}.{NAMES[self.arch][part]}" if inside else whole[name]
            if self.arch == "nemotron_h" and part.startswith(("attn_q", "attn_k")):
                array = array.reshape(2, -1, 2, self.wide).swapaxes(1, 2).reshape(-1, self.wide)  # heads of neighbors
            if self.arch == "nemotron_h" and part.startswith(("ssm_a", "ssm_d", "ssm_norm")):
                array = array.reshape(-1)
            made[theirs] = array[:, None, :] if "conv1d.weight" in name else array
        return made

    def config(self) -> dict[str, Any]:
        """Of transformers' class."""
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
        shared = {
            "vocab_size": VOCABULARY,
            "hidden_size": self.wide,
            "intermediate_size": self.wide,
            "num_hidden_layers": len(self.layers),
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": self.head,
            "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "pad_token_id": 0,
            "attn_implementation": "eager",
        }
        if self.arch == "glm4":
            return {**shared, "attention_bias": True, "rope_parameters": rope}
        if self.arch == "nemotron_h":
            shared["layer_norm_epsilon"] = shared.pop("rms_norm_eps")
            mixer = {"ssm_state_size": self.wide // 4, "mamba_num_heads": 2, "mamba_head_dim": self.head, "n_groups": 2}
            return {**shared, **mixer, "conv_kernel": 4, "chunk_size": 16, "layers_block_type": list(self.layers)}
        linear = {f"linear_num_{kind}_heads": 2 for kind in ("key", "value")}
        linear |= {f"linear_{kind}_head_dim": self.head for kind in ("key", "value")} | {"linear_conv_kernel_dim": 4}
        rope["mrope_section"] = [self.head // 4, 0, 0]
        return {**shared, **linear, "layer_types": list(self.layers), "rope_parameters": rope}


BLOCK_KINDS = ("mamba", "mlp", "attention", "mamba")
LINEAR = ("linear_attention", "linear_attention", "full_attention")
MODELS = {
    "glm4-q8_0": Quantized("glm4", 64, {"": Q.Q8_0}),
    "qwen35-q8_0": Quantized("qwen35", 64, {"": Q.Q8_0}, LINEAR),
    "qwen35-q5_k": Quantized(
        "qwen35", 256, {"token_embd": Q.Q6_K, "output.weight": Q.Q6_K, "ffn": Q.Q4_K, "": Q.Q5_K}, LINEAR
    ),
    "qwen35-q4_k": Quantized(
        "qwen35", 256, {"token_embd": Q.Q6_K, "ssm_out": Q.Q5_K, "attn_v": Q.Q6_K, "ssm": Q.Q8_0, "": Q.Q4_K}, LINEAR
    ),
    "nemotron_h-q8_0": Quantized("nemotron_h", 64, {"": Q.Q8_0}, BLOCK_KINDS),
    "nemotron_h-q4_k": Quantized(
        "nemotron_h",
        256,
        {"token_embd": Q.Q6_K, "output.weight": Q.Q6_K, "ffn_down": Q.Q6_K, "ssm_in": Q.Q8_0, "": Q.Q4_K},
        BLOCK_KINDS,
    ),
}


def recorded(name: str) -> np.ndarray:
    """``[positions, vocabulary]``."""
    with np.load(FIXTURES / "logits" / "quantised_models.npz") as arrays:
        return np.asarray(arrays[name])
