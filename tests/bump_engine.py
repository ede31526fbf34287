"""What C-Kernel-Engine computes of a bump file, in float64: numpy, the gguf package's decoders, nothing of ckconv.

Entries are read where ``weights_manifest.json`` has them and used as the engine's template of the family uses them:
rows are rotated as the template's RoPE kernel does, biases are added wherever an entry has them, the head is the
embedding where the configuration ties it, and an entry that no operation uses is an error, as it is for the engine's
builder. Nothing is undone that the engine does not undo. A family is a row of :data:`CIRCUITS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import GGMLQuantizationType as Q
from gguf.quants import dequantize

TYPES = {
    "fp32": Q.F32, "fp16": Q.F16, "bf16": Q.BF16, "q8_0": Q.Q8_0, "q5_0": Q.Q5_0, "q5_1": Q.Q5_1, "q4_k": Q.Q4_K,
    "q5_k": Q.Q5_K, "q6_k": Q.Q6_K,
}  # fmt: skip

#: Entries of the tokenizer, and of the parity harness that an untrained file still has.
NOT_COMPUTED = ("vocab_", "tiny.")


@dataclass
class Bump:
    """A file and its manifest.

    Attributes:
        template: the engine's own, the manifest's merged over it.
        entries: name -> (type, offset, bytes).
        used: names that were asked for.
    """

    config: Mapping[str, Any]
    template: Mapping[str, Any]
    entries: Mapping[str, tuple[str, int, int]]
    data: bytes
    used: set[str] = field(default_factory=set)

    def rows(self, name: str, columns: int) -> np.ndarray:
        """An entry of rows of ``columns`` elements."""
        word, offset, size = self.entries[name]
        self.used.add(name)
        raw = np.frombuffer(self.data, np.uint8, size, offset)
        return dequantize(raw, TYPES[word]).astype(np.float64).reshape(-1, columns)

    def vector(self, name: str) -> np.ndarray:
        return self.rows(name, 1)[:, 0]

    def optional(self, name: str) -> np.ndarray | float:
        """A bias: an entry of zeros may be left out."""
        return self.vector(name) if name in self.entries else 0.0

    def linear(self, x: np.ndarray, at: str, matrix: str, bias: str = "") -> np.ndarray:
        made: np.ndarray = x @ self.rows(at + matrix, x.shape[-1]).T
        return made + self.optional(at + bias) if bias else made

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        """RMSNorm of the last axis, which is a head's where the entry is as long as one."""
        made: np.ndarray = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_eps"]) * self.vector(name)
        return made

    def rotated(self, x: np.ndarray) -> np.ndarray:
        """RoPE of ``[positions, heads, head size]``: neighbors by a pairwise kernel, else half against half."""
        size = self.config.get("rotary_dim", x.shape[-1])
        pairwise = "pairwise" in self.template["kernels"]["rope_qk"]
        angles = np.arange(len(x))[:, None] * self.config["rope_theta"] ** (-2 * np.arange(size // 2) / size)
        turn = np.exp(1j * angles)[:, None, :]
        turned = x.copy()
        one, two = (slice(0, size, 2), slice(1, size, 2)) if pairwise else (slice(size // 2), slice(size // 2, size))
        turn = turn * (x[..., one] + 1j * x[..., two])
        turned[..., one], turned[..., two] = turn.real, turn.imag
        return turned


def attention(bump: Bump, h: np.ndarray, at: str) -> np.ndarray:
    """Causal attention with the entries of llama and its like; norms of Q and K before RoPE, where there are any."""
    c, n = bump.config, len(h)
    q, k, v = (bump.linear(h, at, f"w{p}", f"b{p}").reshape(n, -1, c["head_dim"]) for p in "qkv")
    if f"{at}q_norm" in bump.entries:
        q, k = bump.norm(q, f"{at}q_norm"), bump.norm(k, f"{at}k_norm")
    return bump.linear(attended(bump.rotated(q), bump.rotated(k), v).reshape(n, -1), at, "wo", "bo")


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """``[positions, heads, head size]``; heads of Q share those of K and V in runs."""
    k, v = (np.repeat(a, q.shape[1] // a.shape[1], axis=1) for a in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
    scores = np.exp(np.where(np.tri(len(q), dtype=bool), scores, -np.inf))
    mixed: np.ndarray = np.einsum("hqk,khd->qhd", scores / scores.sum(-1, keepdims=True), v)
    return mixed


def silu(x: np.ndarray) -> np.ndarray:
    made: np.ndarray = x / (1 + np.exp(-x))
    return made


def mlp(bump: Bump, h: np.ndarray, at: str) -> np.ndarray:
    """SwiGLU, gate and up in one entry."""
    gate, up = np.split(bump.linear(h, at, "w1", "b1"), 2, axis=-1)
    return bump.linear(silu(gate) * up, at, "w2", "b2")


def dense(bump: Bump, x: np.ndarray, layer: int) -> np.ndarray:
    """A layer with a norm before each of its two blocks."""
    at = f"layer.{layer}."
    x = x + attention(bump, bump.norm(x, f"{at}ln1_gamma"), at)
    return x + mlp(bump, bump.norm(x, f"{at}ln2_gamma"), at)


def sandwiched(bump: Bump, x: np.ndarray, layer: int) -> np.ndarray:
    """A layer with a norm before and behind each of its two blocks."""
    at = f"layer.{layer}."
    x = x + bump.norm(attention(bump, bump.norm(x, f"{at}ln1_gamma"), at), f"{at}post_attention_norm")
    return x + bump.norm(mlp(bump, bump.norm(x, f"{at}ln2_gamma"), at), f"{at}post_ffn_norm")


def sigmoid(x: np.ndarray) -> np.ndarray:
    made: np.ndarray = 1 / (1 + np.exp(-x))
    return made


def unit(x: np.ndarray) -> np.ndarray:
    made: np.ndarray = x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)
    return made


def convolved(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray | float = 0.0) -> np.ndarray:
    """Every channel with its row of the kernel, over the positions up to each."""
    width = kernel.shape[1]
    padded = np.concatenate([np.zeros((width - 1, len(kernel))), x])
    return silu(np.stack([(padded[t : t + width] * kernel.T).sum(0) for t in range(len(x))]) + bias)


def delta_net(bump: Bump, h: np.ndarray, at: str) -> np.ndarray:
    """Gated DeltaNet, token by token: a state of ``[heads, key, value]``, and a causal convolution before it."""
    c, n = bump.config, len(h)
    heads, size, width = c["ssm_group_count"], c["ssm_state_size"], c["ssm_conv_kernel"]
    mixed = convolved(bump.linear(h, at, "attn_qkv"), bump.rows(f"{at}ssm_conv1d", width))
    q, k, v = (part.reshape(n, heads, -1) for part in np.split(mixed, [heads * size, 2 * heads * size], axis=-1))
    q, k = unit(q) / np.sqrt(size), unit(k)
    beta = sigmoid(bump.linear(h, at, "ssm_beta"))
    steps = np.logaddexp(0, bump.linear(h, at, "ssm_alpha") + bump.vector(f"{at}ssm_dt_bias"))
    decay = np.exp(bump.vector(f"{at}ssm_a") * steps)
    state, rows = np.zeros((heads, size, v.shape[-1])), []
    for t in range(n):
        state = state * decay[t][:, None, None]
        change = (v[t] - np.einsum("hkv,hk->hv", state, k[t])) * beta[t][:, None]
        state = state + k[t][:, :, None] * change[:, None, :]
        rows.append(np.einsum("hkv,hk->hv", state, q[t]))
    gated = bump.norm(np.stack(rows), f"{at}ssm_norm") * silu(bump.linear(h, at, "attn_gate").reshape(v.shape))
    return bump.linear(gated.reshape(n, -1), at, "ssm_out")


def gated_attention(bump: Bump, h: np.ndarray, at: str) -> np.ndarray:
    """Of every head a query and its gate."""
    n, size = len(h), bump.config["head_dim"]
    q, gate = np.split(bump.linear(h, at, "attn_q_gate").reshape(n, -1, 2 * size), 2, axis=-1)
    k, v = (bump.linear(h, at, name).reshape(n, -1, size) for name in ("attn_k", "attn_v"))
    q, k = bump.norm(q, f"{at}attn_q_norm"), bump.norm(k, f"{at}attn_k_norm")
    mixed = attended(bump.rotated(q), bump.rotated(k), v) * sigmoid(gate)
    return bump.linear(mixed.reshape(n, -1), at, "attn_output")


def hybrid(bump: Bump, x: np.ndarray, layer: int) -> np.ndarray:
    """A layer of one of two kinds."""
    at = f"layer.{layer}."
    block = delta_net if bump.config["layer_kinds"][layer] == "recurrent" else gated_attention
    x = x + block(bump, bump.norm(x, f"{at}attn_norm"), at)
    h = bump.norm(x, f"{at}post_attention_norm")
    return x + bump.linear(silu(bump.linear(h, at, "ffn_gate")) * bump.linear(h, at, "ffn_up"), at, "ffn_down")


def mamba(bump: Bump, h: np.ndarray, at: str) -> np.ndarray:
    """Mamba 2, token by token: a state of ``[heads, head size, state size]``; gated before the norm of every group."""
    c, n = bump.config, len(h)
    heads, size, states, groups = (
        c[k] for k in ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "ssm_group_count")
    )
    inner = c["ssm_inner_size"]
    gate, mixed, steps = np.split(bump.linear(h, at, "mamba_in_proj"), [inner, inner + c["ssm_conv_channels"]], axis=-1)
    assert steps.shape[-1] == heads
    mixed = convolved(
        mixed, bump.rows(f"{at}mamba_conv1d", c["ssm_conv_kernel"]), bump.vector(f"{at}mamba_conv1d_bias")
    )
    x, into, out = np.split(mixed, [inner, inner + groups * states], axis=-1)
    x = x.reshape(n, heads, size)
    into, out = (np.repeat(part.reshape(n, groups, states), heads // groups, axis=1) for part in (into, out))
    steps = np.logaddexp(0, steps + bump.vector(f"{at}mamba_dt_bias"))
    decay, skip = np.exp(bump.vector(f"{at}mamba_a") * steps), bump.vector(f"{at}mamba_d")
    state, rows = np.zeros((heads, size, states)), []
    for t in range(n):
        change = (steps[t][:, None] * x[t])[:, :, None] * into[t][:, None, :]
        state = state * decay[t][:, None, None] + change
        rows.append(np.einsum("hds,hs->hd", state, out[t]) + skip[:, None] * x[t])
    gated = (np.stack(rows).reshape(n, inner) * silu(gate)).reshape(n, -1, c["mamba_norm_group_size"])
    normed = gated / np.sqrt((gated * gated).mean(-1, keepdims=True) + c["rms_eps"])
    return bump.linear(normed.reshape(n, inner) * bump.vector(f"{at}mamba_norm"), at, "mamba_out_proj")


def unrotated(bump: Bump, h: np.ndarray, at: str) -> np.ndarray:
    """Attention without positions."""
    q, k, v = (bump.linear(h, at, f"attn_{p}").reshape(len(h), -1, bump.config["head_dim"]) for p in "qkv")
    return bump.linear(attended(q, k, v).reshape(len(h), -1), at, "attn_o")


def squared(bump: Bump, h: np.ndarray, at: str) -> np.ndarray:
    """ReLU squared, no gate."""
    return bump.linear(np.maximum(bump.linear(h, at, "mlp_up"), 0) ** 2, at, "mlp_down")


BLOCKS = {"mamba": mamba, "attention": unrotated, "mlp": squared}


def single(bump: Bump, x: np.ndarray, layer: int) -> np.ndarray:
    """A layer of one block."""
    at = f"layer.{layer}."
    return x + BLOCKS[bump.config["layer_kinds"][layer]](bump, bump.norm(x, f"{at}block_norm"), at)


class Circuit(NamedTuple):
    """A family as the engine knows it: its RoPE kernel and a layer."""

    rope_qk: str
    layer: Callable[[Bump, np.ndarray, int], np.ndarray]


#: The engine's template -> what it computes.
CIRCUITS = {
    "llama": Circuit("rope_forward_qk_pairwise", dense),
    "qwen2": Circuit("rope_forward_qk", dense),
    "qwen3": Circuit("rope_forward_qk", dense),
    "glm4": Circuit("rope_forward_qk_pairwise", sandwiched),
    "qwen3vl": Circuit("mrope_qk_text", dense),
    "qwen35": Circuit("mrope_qk_text", hybrid),
    "nemotron_h": Circuit("rope_forward_qk", single),
}

#: ``rope_layout`` of the configuration overrides the template's kernel, in April's engine only.
APRIL_KERNELS = {"split": "rope_forward_qk", "pairwise": "rope_forward_qk_pairwise"}


def merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """As the engine's builder merges: objects key by key, lists replaced, null ignored."""
    made = dict(ours)
    for key, value in theirs.items():
        both = isinstance(value, dict) and isinstance(made.get(key), dict)
        if value is not None:
            made[key] = merged(made[key], value) if both else value
    return made


def read(path: Path, release: str = "april") -> Bump:
    """A bump 5 file, or one of layout D of version 4, with its manifest beside it."""
    manifest = json.loads((path.parent / "weights_manifest.json").read_text())
    config = manifest["config"]
    own = manifest.get("template") or {}
    template = merged({"kernels": {"rope_qk": CIRCUITS[own.get("name") or config["model"]].rope_qk}}, own)
    if release == "april" and config.get("rope_layout"):
        template = merged(template, {"kernels": {"rope_qk": APRIL_KERNELS[config["rope_layout"]]}})
    entries = {e["name"]: (e["dtype"], e["file_offset"], e["size"]) for e in manifest["entries"]}
    return Bump(config, template, entries, path.read_bytes())


def read_trained(path: Path) -> Bump:
    """A model trained in the engine, with the manifest that is called after it.

    The runtime that trains knows one epsilon, ties no head, and has norms of Q and K in one family only.
    """
    manifest = json.loads(path.with_name(f"{path.stem}_manifest.json").read_text())
    config = {**manifest["config"], "rms_eps": 1e-6, "tie_word_embeddings": False}
    normed = config["model"] == "qwen3"
    entries = {
        e["name"]: (e["dtype"], e["offset"], e["size"])
        for e in manifest["entries"]
        if normed or not e["name"].endswith(("q_norm", "k_norm"))
    }
    return Bump(config, {"kernels": {"rope_qk": CIRCUITS[config["model"]].rope_qk}}, entries, path.read_bytes())


def logits(path: Path, prompt: tuple[int, ...], release: str = "april") -> np.ndarray:
    """``[positions, vocabulary]`` of a file, by the engine of a release: ``april`` or ``july``."""
    return computed(read(path, release), prompt)


def computed(bump: Bump, prompt: tuple[int, ...]) -> np.ndarray:
    c = bump.config
    embedding = bump.rows("token_emb", c["embed_dim"])
    x = embedding[list(prompt)]
    layer = CIRCUITS[bump.template.get("name") or c["model"]].layer
    for n in range(c["num_layers"]):
        x = layer(bump, x, n)
    x = bump.norm(x, "final_ln_weight") + bump.optional("final_ln_bias")
    tied = c.get("tie_word_embeddings", "output.weight" not in bump.entries)
    made: np.ndarray = x @ (embedding if tied else bump.rows("output.weight", c["embed_dim"])).T
    unused = [name for name in bump.entries if name not in bump.used and not name.startswith(NOT_COMPUTED)]
    assert not unused, f"no operation uses {unused}"
    return made
