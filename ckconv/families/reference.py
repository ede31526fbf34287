"""Mistral's own checkpoints: ``params.json`` and reference names.

Rows of Q and K are in the order of llama.cpp, neighbors turning together, so a tensor is what it is in a GGUF under
another name; experts are one by one, as in Hugging Face's checkpoints. Source: ``convert_mistral_weights_to_hf.py`` of
transformers (names, ``permute_for_rope``, keys); ``TransformerArgs`` and ``MoeLayer`` of mistral-inference. Keys beyond
those are of models that are more than this decoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ckconv.families.names import GGUF, HF, Names, Stored, names_of
from ckconv.families.schema import FAMILIES_KEPT, Family

#: What the scheme of these names is called.
REFERENCE = "reference"

PARAMS_NAME = "params.json"

#: How the files of weights are called.
WEIGHTS = "consolidated"

_BLOCK = "layers.{n}."
_NAMES = {
    "token_embd": "tok_embeddings",
    "output_norm": "norm",
    "output": "output",
    **{
        f"blk.{{n}}.{ours}": _BLOCK + theirs
        for ours, theirs in (
            ("attn_norm", "attention_norm"),
            ("ffn_norm", "ffn_norm"),
            ("attn_q", "attention.wq"),
            ("attn_k", "attention.wk"),
            ("attn_v", "attention.wv"),
            ("attn_output", "attention.wo"),
            ("ffn_gate", "feed_forward.w1"),
            ("ffn_down", "feed_forward.w2"),
            ("ffn_up", "feed_forward.w3"),
        )
    },
    "blk.{n}.ffn_gate_inp": _BLOCK + "feed_forward.gate",
    **{
        f"model.layers.{{n}}.block_sparse_moe.experts.{{e}}.{part}": _BLOCK + f"feed_forward.experts.{{e}}.{part}"
        for part in ("w1", "w2", "w3")
    },
}

#: Keys of ``params.json`` -> those of ``config.json``; all of them have to be there.
_NEEDED = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "norm_eps": "rms_norm_eps",
    "vocab_size": "vocab_size",
}
_OPTIONAL = {
    "rope_theta": "rope_theta",
    "sliding_window": "sliding_window",
    "_sliding_window": "sliding_window",
    "max_seq_len": "max_position_embeddings",
    "max_position_embeddings": "max_position_embeddings",
    "tied_embeddings": "tie_word_embeddings",
}
#: Keys of ``moe`` in it; others are of mixtures with layers and experts of more than one kind.
_MOE, _MIXTURE = "moe", {"num_experts": "num_local_experts", "num_experts_per_tok": "num_experts_per_tok"}
_IDLE: Mapping[str, tuple[Any, ...]] = {"use_biases": (False,), "model_type": ("transformer",), "causal": (True,)}

#: Where nothing says it: the converter's ``--max_position_embeddings``, and ``rope_theta`` of its ``convert_config``.
_DEFAULTS = {"rope_theta": 10000.0, "max_position_embeddings": 32768, "sliding_window": None}

#: ``freqs_cis`` of mistral-inference's ``transformer.py``; its older ones had 10,000 beside a window, as the converter.
_THETAS = "mistral-inference then takes for 1,000,000, transformers' converter for 10,000"

#: What there is to say of a context that is the converter's default.
CONTEXT_NOTE = (
    f"{PARAMS_NAME} names no context length: 32,768 as transformers' converter has it; --context N says another"
)


def reference_config(params: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """``config.json`` of a Mistral checkpoint with notes, or ``None`` and why."""
    given = {key: value for key, value in params.items() if value is not None}
    mixture = given.pop(_MOE, None)
    missing = [key for key in _NEEDED if key not in given]
    if missing:
        return None, f"{PARAMS_NAME} has no {missing[0]}"
    known = {**_NEEDED, **_OPTIONAL}
    if "rope_theta" not in given and not {"sliding_window", "_sliding_window"} & given.keys():
        return None, f"{PARAMS_NAME} has no rope_theta, which {_THETAS}"
    more = [key for key, value in given.items() if key not in known and value not in _IDLE.get(key, ())]
    if more:
        return None, f"{PARAMS_NAME} says {more[0]}, which is not part of Mistral's decoders that ckconv knows"
    if mixture is not None and (not isinstance(mixture, dict) or mixture.keys() != _MIXTURE.keys()):
        return None, f"what {PARAMS_NAME} says of {_MOE} is not {' and '.join(_MIXTURE)} alone, as a Mixtral has it"
    said = {known[key]: value for key, value in given.items() if key in known}
    if isinstance(said.get("sliding_window"), str) and said["sliding_window"].isdecimal():
        said["sliding_window"] = int(said["sliding_window"])
    family, own = ("Mistral", {}) if mixture is None else ("Mixtral", {_MIXTURE[key]: mixture[key] for key in _MIXTURE})
    config = {
        "architectures": [f"{family}ForCausalLM"],
        "model_type": family.lower(),
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        **_DEFAULTS,
        **said,
        **own,
    }
    return config, "" if "max_position_embeddings" in said else CONTEXT_NOTE


@lru_cache(maxsize=FAMILIES_KEPT)
def reference_names(family: Family) -> Names:
    """The names of a family's tensors there."""
    own = [names_of(family, scheme) for scheme in (GGUF, HF)]
    kinds = [found for names in own for found in names.stored.values()]
    stored = {called: found._replace(pattern=called) for found in kinds if (called := _called(found))}
    pairs = [pair for names in own for pair in names.written.items()]
    written = {name: stored[called] for name, found in pairs if (called := _called(found))}
    return Names(stored, written, {})


def _called(found: Stored) -> str:
    module = found.pattern.removesuffix(".weight")
    return f"{_NAMES[module]}.weight" if module in _NAMES and module != found.pattern else ""
