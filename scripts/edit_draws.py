"""Random edits of a configuration: which keys there are, and what each could say instead."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Path_ = tuple[str, ...]

#: Families whose keys are tried on every other one: ``model_type`` s of transformers.
STRANGERS = (
    "apertus", "arcee", "bitnet", "bloom", "cohere", "cohere2", "deepseek_v3", "ernie4_5", "exaone4", "falcon", "gemma",
    "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "glm", "glm4", "glm4_moe", "gpt2", "gpt_bigcode",
    "gpt_neox", "gpt_oss", "gptj", "granite", "granitemoe", "granitemoehybrid", "helium", "jamba", "llama",
    "llama4_text", "mamba2", "minimax", "mistral", "mixtral", "mpt", "nemotron", "olmo2", "olmo3", "olmoe",
    "opt", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "seed_oss", "smollm3",
    "stablelm", "starcoder2",
)  # fmt: skip

#: Keys that classes read without declaring them, or that are common in files: each with a value that means something.
UNDECLARED: Mapping[str, Any] = {
    "is_causal": True, "is_decoder": True, "use_bidirectional_attention": False, "logit_scale": 1.0,
    "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 1.0, "logits_scaling": 1.0,
    "clip_qkv": 1.0, "use_qk_norm": False, "qk_layernorm": False, "attention_scale": 1.0, "no_rope_layers": [],
    "layer_types": ["full_attention"], "sliding_window": 8, "use_sliding_window": False, "max_window_layers": 1,
    "sliding_window_pattern": 2, "rope_traditional": False, "rope_interleaved": False, "rope_interleave": False,
    "partial_rotary_factor": 1.0, "rotary_pct": 1.0, "rotary_dim": 8, "rope_theta": 10000.0, "head_dim": 8,
    "rope_local_base_freq": 10000.0, "original_max_position_embeddings": 64, "scale_emb": 1.0, "scale_depth": 1.0,
    "dim_model_base": 32, "attn_logit_softcapping": 30.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 8,
    "pretraining_tp": 1, "norm_type": "rmsnorm", "activation": "silu", "ffn_dim_multiplier": 1.0, "mup_width": 1.0,
    "tie_word_embeddings": True, "quantization_config": {"quant_method": "gptq", "bits": 4},
    "quantization": {"group_size": 32, "bits": 4}, "auto_map": {"AutoModelForCausalLM": "modeling.Model"},
    "per_layer_config": {}, "model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "float32",
    "text_config": {"rms_norm_eps": 0.1}, "norm_eps": 1e-5, "layer_norm_eps": 1e-5, "attention_dropout": 0.0,
}  # fmt: skip

CHOICES: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2", "quick_gelu"),
    "rope_type": ("default", "linear", "dynamic", "yarn", "longrope", "llama3"),
    "type": ("default", "linear", "dynamic", "yarn", "su", "llama3", "mrope"),
    "dtype": ("float32", "bfloat16", "float16"),
    "torch_dtype": ("float32", "bfloat16", "float16"),
    "model_type": ("llama", "mistral", "qwen2", "qwen3", "gemma3_text", "olmo2", "granite", "unheard_of"),
    "position_embedding_type": ("absolute", "rope", "nope", "relative_key"),
}  # fmt: skip
CHOICES = {**CHOICES, "hidden_activation": CHOICES["hidden_act"], "activation_function": CHOICES["hidden_act"]}

LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention")

#: Whole objects for RoPE; members are drawn from them too.
ROPES: tuple[Mapping[str, Any], ...] = (
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 2.0},
    {"type": "linear", "factor": 2.0},
    {"factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 32},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "attention_factor": 1.5,
     "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 32},
    {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 3.0, 4.0],
     "original_max_position_embeddings": 64},
    {"type": "mrope", "mrope_section": [1, 1, 2]},
)  # fmt: skip
ROPE_MEMBERS: Mapping[str, Any] = {
    **{key: value for rope in ROPES for key, value in rope.items()},
    "rope_theta": 10000.0, "partial_rotary_factor": 1.0, "finetuned": True, "sliding_attention": {"rope_theta": 1e4},
    "full_attention": {"rope_theta": 1e4},
}  # fmt: skip
ROPE_OBJECTS = ("rope_parameters", "rope_scaling")

#: What llama.cpp reads and the gguf package has no writer for (``src/llama-arch.cpp``), with types.
GGUF_ONLY: Mapping[str, tuple[str, Any]] = {
    "rope.scaling.type": ("str", "none"), "rope.scale_linear": ("f32", 1.0), "expert_gating_func": ("u32", 1),
    "attention.value_scale": ("f32", 1.0), "pooling_type": ("u32", 0), "num_loops": ("u32", 1),
    "attention.causal": ("bool", True), "hidden_activation": ("str", "gelu"),
}  # fmt: skip
GGUF_CHOICES = {"rope.scaling.type": ("none", "linear", "yarn", "longrope")}


@dataclass(frozen=True)
class Edit:
    """One change of a document: ``op`` is ``add``, ``set`` or ``remove``; ``kind`` the type in a GGUF."""

    op: str
    path: Path_
    value: Any = None
    kind: str = ""

    def __str__(self) -> str:
        name = ".".join(self.path)
        return f"remove {name}" if self.op == "remove" else f"{self.op} {name} = {self.value!r}"

    def applied(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """The document with the change."""
        made = dict(document)
        head, *rest = self.path
        if rest:
            inner = made.get(head)
            made[head] = dataclasses.replace(self, path=tuple(rest)).applied(inner if isinstance(inner, dict) else {})
        elif self.op == "remove":
            made.pop(head, None)
        else:
            made[head] = self.value
        return made


Draw = Callable[[random.Random, Mapping[str, Any]], Edit]


#: A value of each type that an annotation may name, where a default is none; the first word that is found counts.
_TYPES: Mapping[str, Any] = {"list": [0], "dict": {}, "bool": True, "int": 2, "float": 1.0, "str": "none"}


@dataclass(frozen=True)
class Known:
    """Keys with a value of their type, and those that may be null."""

    values: Mapping[str, Any]
    optional: frozenset[str]


@functools.cache
def huggingface_keys(model_type: str) -> Known:
    """Every key that a configuration class of transformers or mlx-lm declares."""
    import transformers

    transformers.logging.set_verbosity_error()
    kind = transformers.CONFIG_MAPPING[model_type]
    values: dict[str, Any] = dict(kind().to_dict())
    types = {key: str(type) for key, type in kind.__annotations__.items()}
    try:
        arguments = importlib.import_module(f"mlx_lm.models.{model_type}").ModelArgs
    except ImportError:
        arguments = None
    for field in dataclasses.fields(arguments) if arguments else ():
        values.setdefault(field.name, None if field.default is dataclasses.MISSING else field.default)
        types.setdefault(field.name, str(field.type).lower())
    optional = frozenset(key for key in values if values[key] is None or "None" in types.get(key, ""))
    for key, text in types.items():
        if values.get(key) is None:
            values[key] = next((value for word, value in _TYPES.items() if word in text), None)
    for alias, key in getattr(kind, "attribute_map", {}).items():
        values[alias] = values.get(key)
    known = {key: value for key, value in values.items() if value is not None and _finite(value)}
    return Known(known, optional)


def _finite(value: Any) -> bool:
    """It can be written as JSON."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def huggingface_draw(model_type: str) -> Draw:
    """Edits of a ``config.json``."""
    own = huggingface_keys(model_type)
    foreign: dict[str, Any] = dict(UNDECLARED)
    for stranger in STRANGERS:
        for key, value in huggingface_keys(stranger).values.items():
            if key not in own.values:
                foreign.setdefault(key, value)

    def draw(rng: random.Random, document: Mapping[str, Any]) -> Edit:
        sort = rng.random()
        if sort < 0.2:
            return _rope_edit(rng, document)
        if sort < 0.35:
            return Edit("remove", (rng.choice(sorted(document)),))
        if sort < 0.6:
            key = rng.choice(sorted(document))
        elif sort < 0.8:
            key = rng.choice(sorted(own.values))
        else:
            key = rng.choice(sorted(foreign))
            if rng.random() < 0.4 and foreign[key] != document.get(key):
                return Edit("set" if key in document else "add", (key,), foreign[key])
        if key in document and key in own.optional and document[key] is not None and rng.random() < 0.1:
            return Edit("set", (key,), None)
        there = document.get(key)
        value = own.values.get(key, foreign.get(key, 1)) if there is None else there
        return Edit("set" if key in document else "add", (key,), another(rng, key, value))

    return draw


def _rope_edit(rng: random.Random, document: Mapping[str, Any]) -> Edit:
    """An edit in, or of, the objects that describe RoPE; members go into the one that is there, if any."""
    objects = [key for key in ROPE_OBJECTS if isinstance(document.get(key), dict)]
    if rng.random() < 0.35:
        key = rng.choice(ROPE_OBJECTS)
        there = document.get(key)
        value = dict(rng.choice(ROPES))
        if isinstance(there, dict) and rng.random() < 0.7:
            value = {**there, **value}
        return Edit("set" if there is not None else "add", (key,), value)
    path: Path_ = (rng.choice(objects or list(ROPE_OBJECTS)),)
    inner: Any = document.get(path[0]) or {}
    nested = [key for key in inner if isinstance(inner[key], dict)]
    if nested and rng.random() < 0.8:
        path = (*path, rng.choice(nested))
        inner = inner[path[-1]]
    if inner and rng.random() < 0.6:
        key = rng.choice(sorted(inner))
        if rng.random() < 0.25:
            return Edit("remove", (*path, key))
        value = ROPE_MEMBERS.get(key, 1.0) if inner[key] is None else inner[key]
        return Edit("set", (*path, key), another(rng, key, value))
    key = rng.choice(sorted(ROPE_MEMBERS))
    return Edit("set" if key in inner else "add", (*path, key), another(rng, key, ROPE_MEMBERS[key]))


def another(rng: random.Random, key: str, value: Any) -> Any:
    """Another value of the same type."""
    if key in CHOICES and not isinstance(value, dict):
        return rng.choice([choice for choice in CHOICES[key] if choice != value])
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return _other(rng, value, [0, 1, 2, 3, 4, 5, 8, 16, 30, 64, 1000, value + 1, value - 1, value * 2, value // 2])
    if isinstance(value, float) and "drop" in key:
        return _other(rng, value, [0.0, 0.1, 0.5])
    if isinstance(value, float):
        return _other(rng, value, [0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 30.0, 5e5, value * 2, value / 2, value * 100])
    if isinstance(value, str):
        return rng.choice(["", "default", "none", "silu", "something_else"])
    if isinstance(value, list | tuple):
        return _other_list(rng, list(value))
    if isinstance(value, dict):
        if not value:
            return {"0": {"num_attention_heads": 2}}
        inner = rng.choice(sorted((key for key in value if value[key] is not None), key=str))
        return {**value, inner: another(rng, str(inner), value[inner])}
    raise TypeError(f"{key} is {value!r}")


def _other(rng: random.Random, value: Any, values: Sequence[Any]) -> Any:
    return rng.choice([one for one in values if one != value])


def _other_list(rng: random.Random, value: list[Any]) -> list[Any]:
    if not value:
        return [rng.choice([0, 1])]
    if isinstance(value[0], str) and "attention" in value[0]:
        made = list(value)
        for _ in range(rng.randint(1, len(made))):
            made[rng.randrange(len(made))] = rng.choice(LAYER_TYPES[:2] if rng.random() < 0.8 else LAYER_TYPES)
        return made if made != value else value[:-1]
    at = rng.randrange(len(value))
    if rng.random() < 0.2:
        return value[:at] + value[at + 1 :]
    return [*value[:at], another(rng, "", value[at]), *value[at + 1 :]]


def gguf_keys() -> dict[str, tuple[str, Any]]:
    """Every key after ``{arch}.`` that the gguf package writes or llama.cpp reads: its type and a value."""
    import gguf

    seen: dict[str, tuple[str, Any]] = {}

    class Recorder(gguf.GGUFWriter):
        def __init__(self) -> None:
            self.arch = "ARCH"

        def add_key_value(self, key: str, val: Any, vtype: Any, sub_type: Any = None) -> None:
            names = {"UINT32": "u32", "FLOAT32": "f32", "BOOL": "bool", "STRING": "str"}
            if str(key).startswith("ARCH.") and vtype.name in names:
                seen.setdefault(key.removeprefix("ARCH."), (names[vtype.name], val))

    recorder = Recorder()
    for name in sorted(vars(gguf.GGUFWriter)):
        if name.startswith("add_") and name != "add_key_value":
            for probe in (1, 1.0, True, "none"):
                try:
                    getattr(recorder, name)(probe)
                except (TypeError, AttributeError, ValueError):
                    continue
                break
    return {**seen, **GGUF_ONLY}


def gguf_draw(architecture: str) -> Draw:
    """Edits of the ``{arch}.*`` keys of a GGUF, whose document is (type, value) by key."""
    known = gguf_keys()

    def draw(rng: random.Random, document: Mapping[str, Any]) -> Edit:
        own = sorted(key for key in document if key.startswith(f"{architecture}."))
        sort = rng.random()
        if sort < 0.15:
            return Edit("remove", (rng.choice(own),))
        if sort < 0.5:
            key = rng.choice(own)
            kind, value = document[key]
        else:
            name = rng.choice(sorted(known))
            key = f"{architecture}.{name}"
            kind, value = document.get(key) or known[name]
        return Edit("set" if key in document else "add", (key,), _of_kind(rng, key, kind, value), kind)

    def _of_kind(rng: random.Random, key: str, kind: str, value: Any) -> Any:
        choices = next((found for name, found in GGUF_CHOICES.items() if key.endswith(name)), None)
        if choices:
            return rng.choice(choices)
        if kind == "f32":
            return float(_other(rng, value, [0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 30.0, 5e5, value * 2, value / 2]))
        if kind == "u32":
            return _other(rng, int(value), [0, 1, 2, 3, 4, 5, 6, 8, 16, 32, 64, int(value) * 2, int(value) + 1])
        return (not value) if kind == "bool" else rng.choice(["", "none", "silu", "something_else"])

    return draw
