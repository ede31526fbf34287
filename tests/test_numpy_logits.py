"""Families that one engine alone computes, computed once more: their papers' formulas in numpy, from the checkpoint.

The logits that were recorded are mlx-lm's, of the class that it has; this shares nothing with it, nor with ckconv.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import family_cases
import numpy as np
import pytest
import safetensors

Array = np.ndarray[Any, np.dtype[Any]]
W = Mapping[str, Array]


def read(folder: Path) -> dict[str, Array]:
    """Every tensor as float64; BF16 is the upper half of a float32."""
    found = {}
    for name, one in safetensors.deserialize((folder / "model.safetensors").read_bytes()):
        stored = np.frombuffer(one["data"], {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[one["dtype"]])
        wide = (stored.astype("<u4") << 16).view("<f4") if one["dtype"] == "BF16" else stored
        found[name] = wide.reshape(one["shape"]).astype(np.float64)
    return found


def rms(x: Array, weight: Array | float, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * weight + bias


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def gelu(x: Array) -> Array:
    """The approximation by tanh."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def linear(x: Array, w: W, name: str) -> Array:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)


def mlp(x: Array, w: W, name: str, act: Callable[[Array], Array] = silu) -> Array:
    gated = act(linear(x, w, f"{name}.gate_proj")) * linear(x, w, f"{name}.up_proj")
    return linear(gated, w, f"{name}.down_proj")


def turned(x: Array, dims: int, base: float, *, neighbors: bool = False) -> Array:
    """Heads ``[H, T, D]``, whose first elements turn with the position."""
    angles = np.arange(x.shape[1])[:, None] * base ** (-np.arange(0, dims, 2) / dims)
    cos, sin = np.cos(angles), np.sin(angles)
    rest = x[..., dims:]
    a, b = (x[..., 0:dims:2], x[..., 1:dims:2]) if neighbors else (x[..., : dims // 2], x[..., dims // 2 : dims])
    one, two = a * cos - b * sin, a * sin + b * cos
    both = np.stack([one, two], -1).reshape(*one.shape[:-1], dims) if neighbors else np.concatenate([one, two], -1)
    return np.concatenate([both, rest], -1)


def heads(x: Array, count: int) -> Array:
    return x.reshape(len(x), count, -1).swapaxes(0, 1)


def attend(q: Array, k: Array, v: Array, scale: float, *, window: int = 0, cap: float = 0.0) -> Array:
    """Causal attention of heads that may share keys; ``[T, H D]``."""
    k, v = (np.repeat(one, len(q) // len(one), 0) for one in (k, v))
    scores = q @ k.swapaxes(1, 2) * scale
    scores = np.tanh(scores / cap) * cap if cap else scores
    i, j = np.indices(scores.shape[1:])
    seen = (j <= i) & (i - j < window if window else True)
    out = softmax(np.where(seen, scores, -np.inf)) @ v
    return out.swapaxes(0, 1).reshape(q.shape[1], -1)


def chosen(scores: Array, count: int) -> Array:
    return np.argsort(-scores, axis=-1, kind="stable")[:, :count]


def phixtral(c: Mapping[str, Any], w: W, tokens: Array) -> Array:
    x = w["transformer.embd.wte.weight"][tokens]
    for n in range(c["n_layer"]):
        at = f"transformer.h.{n}"
        h = layer_norm(x, w[f"{at}.ln.weight"], w[f"{at}.ln.bias"], 1e-5)
        q, k, v = (heads(one, c["n_head"]) for one in np.split(linear(h, w, f"{at}.mixer.Wqkv"), 3, -1))
        q, k = (turned(one, c["rotary_dim"], 10000.0) for one in (q, k))
        mixed = linear(attend(q, k, v, q.shape[-1] ** -0.5), w, f"{at}.mixer.out_proj")
        logits = linear(h, w, f"{at}.moe.gate")
        routed = np.zeros_like(x)
        for t, which in enumerate(chosen(logits, c["num_experts_per_tok"])):
            for weight, e in zip(softmax(logits[t, which]), which, strict=True):
                up = gelu(linear(h[t], w, f"{at}.moe.mlp.{e}.fc1"))
                routed[t] += weight * linear(up, w, f"{at}.moe.mlp.{e}.fc2")
        x = x + mixed + routed
    return linear(layer_norm(x, w["lm_head.ln.weight"], w["lm_head.ln.bias"], 1e-5), w, "lm_head.linear")


def hunyuan(c: Mapping[str, Any], w: W, tokens: Array) -> Array:
    x, eps = w["model.embed_tokens.weight"][tokens], c["rms_norm_eps"]
    size = c["hidden_size"] // c["num_attention_heads"]
    base = c["rope_theta"] * c["rope_scaling"]["alpha"] ** (size / (size - 2))
    k = v = np.zeros(0)
    for n in range(c["num_hidden_layers"]):
        at = f"model.layers.{n}"
        h = rms(x, w[f"{at}.input_layernorm.weight"], eps)
        if f"{at}.self_attn.k_proj.weight" in w:
            k, v = (heads(linear(h, w, f"{at}.self_attn.{one}_proj"), c["num_key_value_heads"]) for one in "kv")
        q, own = turned(heads(linear(h, w, f"{at}.self_attn.q_proj"), c["num_attention_heads"]), size, base), k
        own = turned(own, size, base)
        if c["use_qk_norm"]:
            q = rms(q, w[f"{at}.self_attn.query_layernorm.weight"], eps)
            own = rms(own, w[f"{at}.self_attn.key_layernorm.weight"], eps)
        x = x + linear(attend(q, own, v, size**-0.5), w, f"{at}.self_attn.o_proj")
        h = rms(x, w[f"{at}.post_attention_layernorm.weight"], eps)
        scores = softmax(linear(h, w, f"{at}.mlp.gate.wg"))
        out = mlp(h, w, f"{at}.mlp.shared_mlp") if c["use_mixed_mlp_moe"] else np.zeros_like(x)
        for t, which in enumerate(chosen(scores, c["moe_topk"])):
            out[t] += sum(scores[t, e] * mlp(h[t], w, f"{at}.mlp.experts.{e}") for e in which)
        x = x + out
    return rms(x, w["model.norm.weight"], eps) @ w["model.embed_tokens.weight"].T


def gear(c: Mapping[str, Any], w: W, tokens: Array) -> Array:
    eps, size, table = c["rms_norm_eps"], c["head_dim"], w["model.embed_tokens.weight"]
    x = table[tokens] * c["hidden_size"] ** 0.5
    scale = c.get("query_pre_attn_scalar", size) ** -0.5
    many, few = c["num_attention_heads"], c["num_key_value_heads"]

    def norm(one: Array, name: str) -> Array:
        return rms(one, 1 + w[f"{name}.weight"], eps)

    def convolved(one: Array, name: str) -> Array:
        kernel = w[f"{name}.weight"][:, 0]
        padded = np.concatenate([np.zeros((kernel.shape[1] - 1, one.shape[1])), one])
        return sum(padded[i : i + len(one)] * kernel[:, i] for i in range(kernel.shape[1])) + w.get(f"{name}.bias", 0.0)

    def spread(one: Array) -> Array:
        return np.repeat(one.reshape(len(one), few, size), many // few, 1).reshape(len(one), -1)

    for n, kind in enumerate(c["layer_types"]):
        at = f"model.layers.{n}"
        mixer = f"{at}.local_mixer" if kind == "conv_mixer" else f"{at}.self_attn"
        h = norm(x, f"{at}.input_layernorm")
        q, k = (heads(linear(h, w, f"{mixer}.{one}_proj"), count) for one, count in (("q", many), ("k", few)))
        q, k, v = norm(q, f"{mixer}.q_norm"), norm(k, f"{mixer}.k_norm"), linear(h, w, f"{mixer}.v_proj")
        if kind == "conv_mixer":
            flat = [one.swapaxes(0, 1).reshape(len(h), -1) for one in (q, k)]
            key, value = convolved(flat[1], f"{mixer}.key_conv"), convolved(v, f"{mixer}.value_conv")
            out = sigmoid(flat[0] * spread(key)) * spread(value)
        else:
            slides = kind == "sliding_attention"
            base = c["rope_local_base_freq"] if slides else c["rope_theta"]
            q, k = (turned(one, size, base) for one in (q, k))
            window, cap = c["sliding_window"] if slides else 0, c.get("attn_logit_softcapping", 0.0)
            out = attend(q, k, heads(v, few), scale, window=window, cap=cap)
        x = x + norm(linear(out, w, f"{mixer}.o_proj"), f"{at}.post_attention_layernorm")
        h = mlp(norm(x, f"{at}.pre_feedforward_layernorm"), w, f"{at}.mlp", gelu)
        x = x + norm(h, f"{at}.post_feedforward_layernorm")
    out = norm(x, "model.norm") @ w.get("lm_head.weight", table).T
    cap = c.get("final_logit_softcapping", 0.0)
    return np.tanh(out / cap) * cap if cap else out


def longcat_flash_ngram(c: Mapping[str, Any], w: W, tokens: Array) -> Array:
    at, words, splits = "model.ngram_embeddings", c["vocab_size"], c["emb_split_num"]
    x = w["model.embed_tokens.weight"][tokens]
    tables = splits * (c["emb_neighbor_num"] - 1)
    for table in range(tables):
        size = c["ngram_vocab_size_ratio"] * words + 2 * table + 1
        ids = np.zeros_like(tokens)
        for back in range(table // splits + 2):  # the number of the words, in base `words`, of which a remainder
            ids = ids + np.concatenate([np.zeros(back, int), tokens])[: len(tokens)] * pow(words, back, size)
        x = x + w[f"{at}.embedders.{table}.weight"][ids % size] @ w[f"{at}.post_projs.{table}.weight"].T
    return longcat_layers(c, w, x / (1 + tables))


def longcat_flash(c: Mapping[str, Any], w: W, tokens: Array) -> Array:
    return longcat_layers(c, w, w["model.embed_tokens.weight"][tokens])


def longcat_layers(c: Mapping[str, Any], w: W, x: Array) -> Array:
    eps, low, count = c["rms_norm_eps"], 1e-5, c["num_attention_heads"]  # low: what mlx-lm has for 1e-6
    nope, rope, values = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]

    def attention(h: Array, at: str) -> Array:
        q = linear(rms(linear(h, w, f"{at}.q_a_proj"), w[f"{at}.q_a_layernorm.weight"], low), w, f"{at}.q_b_proj")
        q = heads(q, count) * (c["hidden_size"] / c["q_lora_rank"]) ** 0.5
        pair = linear(h, w, f"{at}.kv_a_proj_with_mqa")
        latent = rms(pair[:, : c["kv_lora_rank"]], w[f"{at}.kv_a_layernorm.weight"], low)
        kv = heads(linear(latent * (c["hidden_size"] / c["kv_lora_rank"]) ** 0.5, w, f"{at}.kv_b_proj"), count)
        one = turned(pair[None, :, c["kv_lora_rank"] :], rope, c["rope_theta"], neighbors=True)
        q = np.concatenate([q[..., :nope], turned(q[..., nope:], rope, c["rope_theta"], neighbors=True)], -1)
        k = np.concatenate([kv[..., :nope], np.repeat(one, count, 0)], -1)
        return linear(attend(q, k, kv[..., nope : nope + values], (nope + rope) ** -0.5), w, f"{at}.o_proj")

    def mixture(h: Array, at: str) -> Array:
        scores, out = softmax(linear(h, w, f"{at}.router.classifier")), np.zeros_like(h)
        for t, which in enumerate(chosen(scores + w[f"{at}.router.e_score_correction_bias"], c["moe_topk"])):
            for e in which:
                own = mlp(h[t], w, f"{at}.experts.{e}") if e < c["n_routed_experts"] else h[t]
                out[t] += c["routed_scaling_factor"] * scores[t, e] * own
        return out

    for n in range(c["num_layers"]):
        at, routed = f"model.layers.{n}", np.zeros_like(x)
        for i in range(2):
            x = x + attention(rms(x, w[f"{at}.input_layernorm.{i}.weight"], eps), f"{at}.self_attn.{i}")
            h = rms(x, w[f"{at}.post_attention_layernorm.{i}.weight"], eps)
            routed = routed if i else mixture(h, f"{at}.mlp")
            x = x + mlp(h, w, f"{at}.mlps.{i}")
        x = x + routed
    return linear(rms(x, w["model.norm.weight"], eps), w, "lm_head")


FORMULAS = {one.__name__: one for one in (phixtral, hunyuan, gear, longcat_flash, longcat_flash_ngram)}
CASES = [case for name in FORMULAS for case in family_cases.cases(name) if case.reference == "mlx_lm"]


@pytest.mark.parametrize("case", [pytest.param(case, id=str(case)) for case in CASES])
def test_what_mlx_lm_computes_is_what_the_formulas_say(case: family_cases.Case, tmp_path: Path) -> None:
    folder = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    rows = FORMULAS[case.family](case.recorded["config"], read(folder), np.array(case.tokens))
    assert np.abs(family_cases.kept(case, rows) - np.array(case.recorded["logits"])).max() < 1e-4
