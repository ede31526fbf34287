"""What layers behind the last draft in llama.cpp, held against layers of transformers, whose classes leave them out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import consumers
import family_cases
import numpy as np
import pytest
from checkpoints import save_file
from test_numpy_logits import attend, heads, linear, mlp, read, rms, sigmoid, turned

import ckconv

#: What joins a token to the state before it, and what stands behind the layer -> what some families call it.
JOINING = {
    "eh_proj": ("fc",), "enorm": ("pre_fc_norm_embedding",), "hnorm": ("pre_fc_norm_hidden",),
    "shared_head.norm": ("norm", "final_layernorm"), "embed_tokens": (), "shared_head.head": (),
}  # fmt: skip
CALLED = {other: name for name, others in JOINING.items() for other in (name, *others)}

#: Lists of a configuration, one for each layer -> what the layer behind the last is; a prompt is short.
KINDS = {"layer_types": "full_attention", "mlp_layer_types": "sparse", "indexer_types": "full", "index_topk": 64}
#: Where it is another: a layer of Cohere's that turns slides.
OTHER = {
    "cohere2_moe": {"layer_types": "sliding_attention", "sliding_window": 64},
    "deepseek_v32": {"layer_types": "indexed_attention"},
    "glm_moe_dsa": {"layer_types": "indexed_attention"},
}


def parts(stored: dict[str, np.ndarray], layers: int, last: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The model, whose last layer is the one that drafts, and what joins."""
    model, joining = {}, {}
    start = re.compile(rf"mtp\.(?:layers\.0\.)?|model\.layers\.{layers}\.")
    for name, array in stored.items():
        behind = start.sub("", name, count=1) if start.match(name) else None
        if behind is not None and (own := CALLED.get(behind.removesuffix(".weight"))):
            joining[own] = array
        else:
            model[name if behind is None else f"model.layers.{last}.{behind}"] = array
    return model, joining


def drafted(case: family_cases.Case, stored: dict[str, np.ndarray], states: np.ndarray, root: Path) -> np.ndarray:
    """Logits of the layer behind the last, computed by transformers' class of the other layers."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = json.loads(json.dumps(case.recorded["config"]))
    layers, group = config["num_hidden_layers"], config.get("layer_group_size", 1)
    last = -(-(layers + 1) // group) * group - 1  # of a group, the one with attention
    model, joining = parts(stored, layers, last)
    kinds = {key: kind for key, kind in (KINDS | OTHER.get(case.family, {})).items() if key in config}
    config |= {key: [*config[key][:layers], kind] if isinstance(kind, str) else kind for key, kind in kinds.items()}
    root.mkdir()
    (root / "config.json").write_text(json.dumps(config | {"num_hidden_layers": last + 1}))
    save_file(root / "model.safetensors", {key: one.astype(np.float32) for key, one in model.items()}, {"format": "pt"})
    made, found = transformers.AutoModelForCausalLM.from_pretrained(
        root, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert [key for key in found["missing_keys"] if f".layers.{last}." in key] == []
    assert found["unexpected_keys"] == set()
    weights = {name: torch.tensor(array, dtype=torch.float32) for name, array in joining.items()}

    def norm(name: str) -> Any:
        one = deepcopy(made.model.norm)
        one.weight.data = weights[name]
        return one

    def idle(forward: Callable[..., Any]) -> Callable[..., Any]:
        def kept(hidden: Any, *rest: Any, **named: Any) -> Any:
            found = forward(hidden, *rest, **named)
            return (hidden, *found[1:]) if isinstance(found, tuple) else hidden

        return kept

    for layer in made.model.layers[:-1]:
        layer.forward = idle(layer.forward)
    table = weights.get("embed_tokens", made.get_input_embeddings().weight)
    made.lm_head.weight.data = weights.get("shared_head.head", made.lm_head.weight.data)
    with torch.no_grad():
        token = norm("enorm")(table[torch.tensor([case.tokens])])
        state = norm("hnorm")(torch.tensor(states, dtype=torch.float32)[None])
        joined = torch.cat([token, state], -1) @ weights["eh_proj"].T
        made.model.norm = norm("shared_head.norm")
        return np.asarray(made.eval()(inputs_embeds=joined, use_cache=False).logits[0])


def step3p5(case: family_cases.Case, w: dict[str, np.ndarray], states: np.ndarray, root: Path) -> np.ndarray:
    """The first of its layers, of which transformers has no text model: as in its paper."""
    c = case.recorded["config"]
    eps, at = c["rms_norm_eps"], f"model.layers.{c['num_hidden_layers']}"

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return rms(x, 1 + w[f"{at}.{name}.weight"], eps)

    token = norm(w["model.embed_tokens.weight"][np.array(case.tokens)], "enorm")
    x = linear(np.concatenate([token, norm(states, "hnorm")], -1), w, f"{at}.eh_proj")
    sliding, h = c["attention_other_setting"], norm(x, "input_layernorm")
    sizes = {"q": sliding["num_attention_heads"], **dict.fromkeys("kv", sliding["num_attention_groups"])}
    q, k, v = (heads(linear(h, w, f"{at}.self_attn.{one}_proj"), size) for one, size in sizes.items())
    q, k = (turned(norm(one, f"self_attn.{n}_norm"), c["head_dim"], 10000.0) for n, one in (("q", q), ("k", k)))
    seen = attend(q, k, v, c["head_dim"] ** -0.5, window=c["sliding_window"])
    seen *= np.repeat(sigmoid(linear(h, w, f"{at}.self_attn.g_proj")), c["head_dim"], -1)
    x = x + linear(seen, w, f"{at}.self_attn.o_proj")
    x = x + mlp(norm(x, "post_attention_layernorm"), w, f"{at}.mlp")
    return linear(norm(x, "transformer.shared_head.norm"), w, f"{at}.transformer.shared_head.output")


#: Cases of which the library drafts.
CASES = [
    case
    for family in (
        "bailing_hybrid", "cohere2_moe", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "hy_v3",
        "qwen3_5", "qwen3_5_moe", "qwen3_next", "step3p5",
    )
    for case in family_cases.cases(family)
    if case.name in ("drafts", "drafts_with_tables")
]  # fmt: skip


def converted(case: family_cases.Case, root: Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Weights of a checkpoint, whose GGUF lies beside it, and states of its model, which are drawn."""
    folder = family_cases.checkpoint(case.recorded, root / "hf", case.tokenizer)
    ckconv.convert(folder, root / "m.gguf", options=ckconv.Options(dtype="f32"))
    config = case.recorded["config"]
    width = config.get("text_config", config)["hidden_size"]
    return read(folder), np.random.default_rng(0).normal(size=(case.prompt, width))


@pytest.mark.live
@pytest.mark.parametrize("case", [pytest.param(case, id=str(case)) for case in CASES])
def test_what_llama_cpp_drafts_is_what_a_layer_of_transformers_computes(
    case: family_cases.Case, tmp_path: Path, llama_cpp: consumers.Consumer
) -> None:
    weights, states = converted(case, tmp_path)

    rows = llama_cpp.logits(tmp_path / "m.gguf", case.tokens, states=states)

    expected = {"step3p5": step3p5}.get(case.family, drafted)(case, weights, states, tmp_path / "layer")
    assert np.abs(rows - expected).max() < 1e-4


#: Of others it loads the GGUF and drafts nothing: it has no graph, or stops where Q, K and V are apart (mimo2.cpp), as
#: its own converter writes those of MiMo V2 Flash.
OTHERS = {
    "exaone_moe": "makes no context",
    "glm_ocr": "makes no context",
    "bailing_moe_v2": "makes no context",
    "mimo_v2_flash": "ended with status",
}


@pytest.mark.parametrize("family", OTHERS)
def test_of_others_the_library_loads_them_and_drafts_nothing(
    family: str, tmp_path: Path, llama_cpp: consumers.Consumer
) -> None:
    case = next(case for case in family_cases.cases(family) if case.name == "drafts")
    _, states = converted(case, tmp_path)

    assert llama_cpp.logits(tmp_path / "m.gguf", case.tokens).shape == (case.prompt, family_cases.VOCABULARY)
    with pytest.raises(consumers.DoesNotRun, match=OTHERS[family]):
        llama_cpp.logits(tmp_path / "m.gguf", case.tokens, states=states)
