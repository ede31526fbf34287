"""Families that one engine alone computes, computed once more: their papers' formulas in numpy, from the checkpoint.

The logits that were recorded are mlx-lm's, of the class that it has; this shares nothing with it, nor with ckconv.
llama.cpp computes those of a drafter here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import consumers
import family_cases
import numpy as np
import pytest
import safetensors

import ckconv

Array = np.ndarray[Any, np.dtype[Any]]
W = Mapping[str, Array]


def read(folder: Path, file: str = "model.safetensors") -> dict[str, Array]:
    """Every tensor as float64; BF16 is the upper half of a float32."""
    found = {}
    for name, one in safetensors.deserialize((folder / file).read_bytes()):
        stored = np.frombuffer(one["data"], {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8"}[one["dtype"]])
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


def turned(x: Array, dims: int, base: float, *, neighbors: bool = False, slower: float = 1) -> Array:
    """Heads ``[H, T, D]``, whose first elements turn with the position."""
    angles = np.arange(x.shape[1])[:, None] / slower * base ** (-np.arange(0, dims, 2) / dims)
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


def bailing_moe_linear(c: Mapping[str, Any], w: W, tokens: Array) -> Array:
    def attention(h: Array, at: str) -> Array:
        many, few = c["num_attention_heads"], c["num_key_value_heads"]
        qkv = heads(linear(h, w, f"{at}.query_key_value"), many + 2 * few)
        q = rms(qkv[:many], w[f"{at}.query_layernorm.weight"], c["rms_norm_eps"])
        k = rms(qkv[many : many + few], w[f"{at}.key_layernorm.weight"], c["rms_norm_eps"])
        dims = int(c["head_dim"] * c["partial_rotary_factor"])
        q, k = (turned(one, dims, c["rope_theta"]) for one in (q, k))
        return attend(q, k, qkv[many + few :], c["head_dim"] ** -0.5)

    return ling_layers(c, w, tokens, attention, first=1, left_out=0.0)


def bailing_moe_v2_5(c: Mapping[str, Any], w: W, tokens: Array) -> Array:
    eps, count, rank = c["rms_norm_eps"], c["num_attention_heads"], c["kv_lora_rank"]
    nope, rope, base = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["rope_theta"]

    def turn(one: Array) -> Array:
        return turned(one, rope, base, neighbors=c["rope_interleave"])

    def attention(h: Array, at: str) -> Array:
        low = f"{at}.q_a_layernorm.weight" in w
        asked = rms(linear(h, w, f"{at}.q_a_proj"), w[f"{at}.q_a_layernorm.weight"], eps) if low else h
        q = heads(linear(asked, w, f"{at}.q_b_proj" if low else f"{at}.q_proj"), count)
        pair = linear(h, w, f"{at}.kv_a_proj_with_mqa")
        kv = heads(linear(rms(pair[:, :rank], w[f"{at}.kv_a_layernorm.weight"], eps), w, f"{at}.kv_b_proj"), count)
        q = np.concatenate([q[..., :nope], turn(q[..., nope:])], -1)
        k = np.concatenate([kv[..., :nope], np.repeat(turn(pair[None, :, rank:]), count, 0)], -1)
        return attend(q, k, kv[..., nope:], (nope + rope) ** -0.5)

    return ling_layers(c, w, tokens, attention, first=0, left_out=-np.inf)


def ling_layers(
    c: Mapping[str, Any], w: W, tokens: Array, attention: Callable[[Array, str], Array], *, first: int, left_out: float
) -> Array:
    """Layers of linear attention, whose last of a group is another."""
    eps, count, layers, group = (
        c["rms_norm_eps"],
        c["num_attention_heads"],
        c["num_hidden_layers"],
        c["layer_group_size"],
    )

    def recurrent(h: Array, at: str, n: int) -> Array:
        q, k, v = (heads(one, count) for one in np.split(linear(h, w, f"{at}.query_key_value"), 3, -1))
        q, k = rms(q, w[f"{at}.query_layernorm.weight"], eps), rms(k, w[f"{at}.key_layernorm.weight"], eps)
        dims = int(c["head_dim"] * c["partial_rotary_factor"])
        q, k = (turned(one, dims, c["rope_theta"]) for one in (q, k))
        slopes = 2.0 ** (-8 * np.arange(1, count + 1) / count) * (1 - max(0, n - first) / (layers - 1) + 1e-5)
        i, j = np.indices((len(h), len(h)))
        decay = np.where(j <= i, np.exp(-slopes[:, None, None] * np.maximum(i - j, 0)), 0)
        out = (q @ k.swapaxes(1, 2) * decay) @ v * c["head_dim"] ** -0.5
        out = out.swapaxes(0, 1).reshape(len(h), c["group_norm_size"], -1)
        out = rms(out, 1.0, eps).reshape(len(h), -1) * w[f"{at}.g_norm.weight"]
        return out * sigmoid(linear(h, w, f"{at}.g_proj"))

    def mixture(h: Array, at: str) -> Array:
        logits = linear(h, w, f"{at}.gate")
        scores = sigmoid(logits) if c["score_function"] == "sigmoid" else softmax(logits)
        groups = (scores + w[f"{at}.gate.expert_bias"]).reshape(len(h), c["n_group"], -1)
        best = chosen(np.sort(groups, -1)[..., -2:].sum(-1), c["topk_group"])
        kept = np.zeros(groups.shape[:2], bool)
        np.put_along_axis(kept, best, True, -1)
        left = np.where(kept[..., None], groups, left_out).reshape(len(h), -1)
        out = mlp(h, w, f"{at}.shared_experts")
        for t, which in enumerate(chosen(left, c["num_experts_per_tok"])):
            weights = scores[t, which] / (scores[t, which].sum() if c["norm_topk_prob"] else 1)
            for e, weight in zip(which, weights, strict=True):
                out[t] += c["routed_scaling_factor"] * weight * mlp(h[t], w, f"{at}.experts.{e}")
        return out

    x = w["model.word_embeddings.weight"][tokens]
    for n in range(layers):
        at = f"model.layers.{n}"
        h = rms(x, w[f"{at}.input_layernorm.weight"], eps)
        full = (n + 1) % group == 0 or n >= layers // group * group
        out = attention(h, f"{at}.attention") if full else recurrent(h, f"{at}.attention", n)
        x = x + linear(out, w, f"{at}.attention.dense")
        h = rms(x, w[f"{at}.post_attention_layernorm.weight"], eps)
        x = x + (mlp(h, w, f"{at}.mlp") if n < c["first_k_dense_replace"] else mixture(h, f"{at}.mlp"))
    return linear(rms(x, w["model.norm.weight"], eps), w, "lm_head")


_LING = (bailing_moe_linear, bailing_moe_v2_5)
FORMULAS = {one.__name__: one for one in (phixtral, hunyuan, gear, longcat_flash, longcat_flash_ngram, *_LING)}
CASES = [case for name in FORMULAS for case in family_cases.cases(name) if case.reference == "mlx_lm"]


@pytest.mark.parametrize("case", [pytest.param(case, id=str(case)) for case in CASES])
def test_what_mlx_lm_computes_is_what_the_formulas_say(case: family_cases.Case, tmp_path: Path) -> None:
    folder = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    rows = FORMULAS[case.family](case.recorded["config"], read(folder), np.array(case.tokens))
    assert np.abs(family_cases.kept(case, rows) - np.array(case.recorded["logits"])).max() < 1e-4


def eagle3(c: Mapping[str, Any], w: W, tokens: Array, states: Array) -> Array:
    """Logits of a drafter, given the three hidden states of its model beside each token."""
    eps, count, groups, at = c["rms_norm_eps"], c["num_attention_heads"], c["num_key_value_heads"], "midlayer"
    fused = linear(rms(states, w["input_norm.weight"], eps), w, "fc")
    normed = rms(fused, w[f"{at}.hidden_norm.weight"], eps)
    x = np.concatenate([rms(w["embed_tokens.weight"][tokens], w[f"{at}.input_layernorm.weight"], eps), normed], -1)
    sizes = {"q": count, "k": groups, "v": groups}
    q, k, v = (heads(linear(x, w, f"{at}.self_attn.{one}_proj"), size) for one, size in sizes.items())
    dims, slower = c["head_dim"], c["rope_scaling"].get("factor", 1.0)
    q, k = (turned(one, dims, c["rope_theta"], slower=slower) for one in (q, k))
    x = normed if c.get("norm_before_residual") else fused
    x = x + linear(attend(q, k, v, dims**-0.5), w, f"{at}.self_attn.o_proj")
    x = x + mlp(rms(x, w[f"{at}.post_attention_layernorm.weight"], eps), w, f"{at}.mlp")
    drafted = linear(rms(x, w["norm.weight"], eps), w, "lm_head")
    rows = np.full((len(tokens), c["vocab_size"]), -np.inf)
    rows[:, (np.arange(drafted.shape[1]) + w["d2t"]).astype(int)] = drafted
    return rows


@pytest.mark.parametrize(
    "more", [{}, {"norm_before_residual": True}, {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}]
)
def test_what_llama_cpp_drafts_is_what_the_formulas_say(
    more: dict[str, Any], tmp_path: Path, llama_cpp: consumers.Consumer
) -> None:
    """The states of its model are drawn; sections of RoPE are the same for a text as none."""
    case = next(case for case in family_cases.cases("eagle3") if case.name == "seeing")
    config = {**case.recorded["config"], **more}
    folder = family_cases.checkpoint({**case.recorded, "config": config}, tmp_path / "hf", case.tokenizer)
    weights = read(folder)
    target = {**case.recorded, "config": {**config, "num_hidden_layers": config["num_target_layers"]}}
    base = family_cases.checkpoint(target, tmp_path / "base", case.tokenizer)
    ckconv.convert(folder, tmp_path / "m.gguf", options=ckconv.Options(base=base))
    states = np.random.default_rng(0).normal(size=(case.prompt, weights["fc.weight"].shape[1]))

    rows = llama_cpp.logits(tmp_path / "m.gguf", case.tokens, states=states)

    expected = eagle3(config, weights, np.array(case.tokens), states)
    drafted = np.isfinite(expected)
    assert drafted.any(0).sum() == config["draft_vocab_size"]
    assert np.abs(rows[drafted] - expected[drafted]).max() < 1e-5
    assert (rows[~drafted] == -np.inf).all()
