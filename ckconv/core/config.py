"""ModelConfig: the hyper-parameters that every format writes under its own names."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ckconv.core.rope import effective_scaling
from ckconv.errors import InputError

#: No model has more; a larger count is a hostile or broken header (malformed input 37).
MAX_LAYERS = 65_536
MAX_DIMENSION = 1 << 31


class Number(NamedTuple):
    """A field that is a number, and whether no model is without it."""

    field: str
    integer: bool = True
    required: bool = False


#: The fields that are numbers; what each format calls them the family files say.
NUMBERS: Mapping[str, Number] = {
    number.field: number
    for number in (
        Number("num_layers", required=True),
        Number("hidden_size", required=True),
        Number("ffn_size"),
        Number("num_heads", required=True),
        Number("num_kv_heads"),
        Number("head_dim"),
        Number("vocab_size"),
        Number("context_length"),
        Number("norm_eps", integer=False),
        Number("rope_theta", integer=False),
        Number("rotary_dim"),
        Number("sliding_window"),
        Number("num_experts"),
        Number("experts_used"),
        Number("expert_ffn_size"),
    )
}

#: Any number that is no field of its own, and one that is whole.
REAL, WHOLE = Number("", integer=False), Number("")

#: llama.cpp's default where a GGUF names no base (llama-hparams / llama_model_loader).
DEFAULT_ROPE_THETA = 10_000.0

#: Parameter of the family files -> the field that holds it.
FIELD_OF: Mapping[str, str] = {
    "layers": "num_layers",
    "context": "context_length",
    "hidden": "hidden_size",
    "ffn": "ffn_size",
    "heads": "num_heads",
    "kv_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "vocabulary": "vocab_size",
    "norm_eps": "norm_eps",
    "rope_theta": "rope_theta",
    "rope_dim": "rotary_dim",
    "window": "sliding_window",
    "layer_types": "layer_types",
    "local_theta": "local_rope_theta",
    "final_cap": "final_cap",
    "query_scalar": "query_scalar",
    "experts": "num_experts",
    "experts_used": "experts_used",
    "expert_ffn": "expert_ffn_size",
    "tied": "tied",
}

#: Parameters of what every reader leaves out: layers behind the last, which predict further tokens; the padding token,
#: of which a GGUF says what the tokenizer does.
LEFT_OUT = frozenset({"extra_layers", "pad"})

#: Fields that mean the same in every format.
SHARED_FIELDS = (
    "family",
    "num_layers",
    "hidden_size",
    "ffn_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "vocab_size",
    "context_length",
    "norm_eps",
    "rope_theta",
    "rotary_dim",
    "num_experts",
    "experts_used",
)

#: Fields that formats say in words of their own, or have no words for.
_WORDED_FIELDS = (
    "sliding_window",
    "layer_types",
    "local_rope_theta",
    "final_cap",
    "query_scalar",
    "rope_scaling",
    "modifiers",
)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Canonical hyper-parameters; sizes in elements.

    Attributes:
        family: the row of :data:`ckconv.families.catalogue.FAMILIES` that the model belongs to.
        model_type: what a Hugging Face ``config.json`` calls it.
        head_dim: elements of one attention head.
        rotary_dim: elements of a head that RoPE rotates.
        rope_theta: ``None`` for a model without RoPE.
        sliding_window: attention span in tokens, ``None`` for full attention.
        layer_types: ``sliding_attention`` or ``full_attention`` for every layer, ``None`` where all are alike or the
            source does not say.
        local_rope_theta: the RoPE base of the sliding layers, ``None`` where there is no other one.
        final_cap: logits are capped by ``cap * tanh(x / cap)``; 0 for no cap, ``None`` where the source cannot say.
        query_scalar: attention is divided by the root of this, ``None`` for the size of a head.
        rope_scaling: how RoPE is scaled, in Hugging Face's words, ``None`` where it is not. A GGUF says Llama 3's only
            by its ``rope_frequencies`` tensor.
        tied: what the source says of the output head, ``None`` where it says nothing.
        own: parameters of the family's file that no other field holds, by the name that the file gives them.
        modifiers: whatever else changes the computation, as "key = value" of the source.
        unread: keys of the source that its consumer does not read for this architecture.
        overruled: keys that it does not read because of another one, as "key, because other_key is there".
        raw: the source's own configuration document, if it has one.
    """

    family: str
    model_type: str
    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    rope_theta: float | None
    rotary_dim: int
    sliding_window: int | None = None
    layer_types: tuple[str, ...] | None = None
    local_rope_theta: float | None = None
    final_cap: float | None = None
    query_scalar: float | None = None
    num_experts: int = 0
    experts_used: int = 0
    expert_ffn_size: int = 0
    rope_scaling: Mapping[str, Any] | None = None
    tied: bool | None = None
    modifiers: tuple[str, ...] = ()
    own: Mapping[str, Any] = field(default_factory=dict)
    unread: tuple[str, ...] = field(default=(), compare=False)
    overruled: tuple[str, ...] = field(default=(), compare=False)
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def scope(self) -> dict[str, Any]:
        """The parameters by the names of family files, which their expressions ask for."""
        scaling = self.rope_scaling or {}
        return {
            **{name: getattr(self, attribute) for name, attribute in FIELD_OF.items()},
            "expert_ffn": self.expert_ffn_size or self.ffn_size,
            "layer_types": list(self.layer_types) if self.layer_types is not None else None,
            "tied": bool(self.tied),
            "rope_type": scaling.get("rope_type", "default"),
            "rope_factor": scaling.get("factor"),
            "rope_original": scaling.get("original_max_position_embeddings"),
            **{f"rope_{key}": value for key, value in scaling.items() if key != "rope_theta"},
            **self.own,
        }


Fail = Callable[[str], InputError]


def shortest_float32(value: float) -> float:
    """The decimal with the fewest digits that a reader rounds to the same float32: 1e-05, not 9.999999747378752e-06.

    Numbers with one float32 have one decimal.
    """
    try:
        bits = struct.pack("<f", value)
    except OverflowError:
        return value
    value = struct.unpack("<f", bits)[0] or value
    for digits in range(6, 10):
        candidate = float(f"{value:.{digits}g}")
        if struct.pack("<f", candidate) == bits:
            return candidate
    return value


def checked_number(name: str, value: object, number: Number, fail: Fail) -> int | float:
    """``value`` as the field's type, or the error that says what is wrong with it."""
    if number.integer:
        if isinstance(value, bool) or not isinstance(value, int):
            raise fail(f"{name} must be a whole number, got {value!r}")
        limit = MAX_LAYERS if number.field == "num_layers" else MAX_DIMENSION
        if not 0 <= value <= limit:
            raise fail(f"{name} is {value:,}, outside 0 to {limit:,}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise fail(f"{name} must be a finite number, got {value!r}")
    return float(value)


def build_config(
    family: str,
    model_type: str,
    values: Mapping[str, int | float],
    names: Mapping[str, str],
    fail: Fail,
    *,
    vocab_size: int,
    position_rows: int = 0,
    rope: bool,
    rope_scaling: Mapping[str, Any] | None = None,
    tied: bool | None = None,
    modifiers: tuple[str, ...] = (),
    raw: Mapping[str, Any] | None = None,
) -> ModelConfig:
    """Fill in what follows from other fields, and check the fields against each other.

    ``values`` are the parameters found, ``names`` what the file calls each field, ``vocab_size`` the rows of the
    embedding (0 where the file holds none), ``position_rows`` the rows of a learned position table.

    Raises:
        InputError: ``model.config``, with both numbers, for a missing or contradictory field.
    """
    got = {**{number.field: 0 for number in NUMBERS.values() if number.integer}, **values}
    for name, number in NUMBERS.items():
        if number.required and not got.get(name):
            needs = f", which a {model_type} (model_type) has" if raw else ""
            raise fail(f"{names[name]} is missing{needs}" if name not in values else f"{names[name]} is 0")
    hidden, heads = int(got["hidden_size"]), int(got["num_heads"])
    kv_heads = int(got["num_kv_heads"]) or heads
    if heads % kv_heads:
        raise fail(f"{names['num_heads']} is {heads}, not a multiple of {names['num_kv_heads']}, {kv_heads}")
    head_dim = int(got["head_dim"])
    if values.get("head_dim") == 0:
        raise fail(f"{names['head_dim']} is 0")
    if not head_dim:
        if hidden % heads:
            raise fail(f"{names['hidden_size']} is {hidden}, not a multiple of {names['num_heads']}, {heads}")
        head_dim = hidden // heads
    if vocab_size and got["vocab_size"] and vocab_size != got["vocab_size"]:
        raise fail(f"{names['vocab_size']} is {got['vocab_size']:,}, the embedding has {vocab_size:,} rows")
    if rope and values.get("rope_theta") == 0:
        raise fail(f"{names['rope_theta']} is 0")
    context = int(got["context_length"]) or position_rows
    if position_rows and context != position_rows:
        raise fail(f"{names['context_length']} is {context:,}, the position embedding has {position_rows:,} rows")
    return ModelConfig(
        family=family,
        model_type=model_type,
        num_layers=int(got["num_layers"]),
        hidden_size=hidden,
        ffn_size=int(got["ffn_size"]),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size or int(got["vocab_size"]),
        context_length=context,
        norm_eps=shortest_float32(float(got.get("norm_eps", 0.0))),
        rope_theta=shortest_float32(float(got.get("rope_theta", 0.0)) or DEFAULT_ROPE_THETA) if rope else None,
        rotary_dim=int(got["rotary_dim"]) or head_dim,
        sliding_window=int(got["sliding_window"]) or None,
        num_experts=int(got["num_experts"]),
        experts_used=int(got["experts_used"]),
        expert_ffn_size=int(got["expert_ffn_size"]),
        rope_scaling=rope_scaling,
        tied=tied,
        modifiers=modifiers,
        raw=raw or {},
    )


def config_differences(a: ModelConfig, b: ModelConfig, *, same_words: bool) -> dict[str, tuple[object, object]]:
    """Fields in which two configurations differ -> both values.

    Args:
        same_words: both come from one format, or from two with the same documents. Else what only one of them names
            is no difference, because the other may have no words for it.
    """
    found: dict[str, tuple[object, object]] = {}
    if a.expert_ffn_size and b.expert_ffn_size:  # of a dense feed-forward, and no layer has one
        a = replace(a, ffn_size=b.ffn_size)
    a, b = _windowed(a, b.context_length), _windowed(b, a.context_length)
    for name in (*SHARED_FIELDS, *_WORDED_FIELDS):
        ours, theirs = _comparable(getattr(a, name), a), _comparable(getattr(b, name), b)
        silent = name in _WORDED_FIELDS and not same_words and (name == "modifiers" or None in (ours, theirs))
        if ours != theirs and not silent:
            found[name] = ours, theirs
    for name in sorted({*a.own, *b.own} - LEFT_OUT):
        pair = a.own.get(name), b.own.get(name)
        if not same_words:  # a GGUF has the float32 next to a number
            pair = _in_float32(pair[0]), _in_float32(pair[1])
        if pair[0] != pair[1] and (same_words or None not in pair):
            found[name] = pair
    return found


def _in_float32(value: object) -> object:
    if isinstance(value, tuple):
        return tuple(_in_float32(item) for item in value)
    return shortest_float32(value) if isinstance(value, float) else value


def _windowed(config: ModelConfig, other: int) -> ModelConfig:
    """Without a window that is as long as the shorter context: nothing slides out of it, nor out of none."""
    context = min(config.context_length or other, other or config.context_length)
    idle = config.sliding_window is None or config.sliding_window >= context
    return replace(config, sliding_window=None, layer_types=None) if idle else config


def _comparable(value: object, config: ModelConfig) -> object:
    if isinstance(value, Mapping):
        return effective_scaling(value, config.context_length, latent="kv_rank" in config.own)
    return value
