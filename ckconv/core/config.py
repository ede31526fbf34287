"""ModelConfig: hyper-parameters, which each format names its own way."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from ckconv.core.lazy import Floats, NamedTuple, NDArray, dataclass, field, np, replace
from ckconv.errors import InputError, an, quoted


class Cause(Enum):
    """Why a modifier is one."""

    VALUE = "a value that changes what is computed"
    UNKNOWN_KEY = "a key that ckconv does not know of"
    FOREIGN_CLASS = "which is code of its own and no class of"
    STRAY = "a key in the place of which the class has another"
    TWO_NUMBERS = "two keys say two numbers, and the loader takes one of them"


class Modifier(str):
    """A key that changes the computation: "key = value" of the source."""

    cause: Cause

    def __new__(cls, text: str, cause: Cause = Cause.VALUE) -> Modifier:
        """A modifier of this text."""
        made = super().__new__(cls, text)
        made.cause = cause
        return made

    @property
    def key(self) -> str:
        """The key, where the text is ``key = value``; else all of it."""
        return self.partition(" = ")[0]


def modifiers_of(found: Iterable[str]) -> tuple[Modifier, ...]:
    """Modifiers; a text is a value that changes the computation."""
    return tuple(one if isinstance(one, Modifier) else Modifier(one) for one in found)


# The numbers of a ``rope_scaling`` object.

#: The largest float32, the type of such numbers in GGUF, and the smallest above 0.
MAX_FLOAT32, MIN_FLOAT32 = (2 - 2**-23) * 2.0**127, 2.0**-149

#: What Llama 3's scaling needs; transformers has no defaults for them.
LLAMA3_NUMBERS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


#: Those of ``ROPE_INIT_FUNCTIONS`` of modeling_rope_utils.py, transformers 5.24, and what older classes call some.
_SCALINGS = frozenset({"linear", "dynamic", "yarn", "longrope", "llama3", "proportional", "mrope", "su"})


def scaled(kind: str, config: ModelConfig) -> str:
    """A sentence that RoPE is scaled, with the configuration key."""
    if config.raw:
        known = kind in _SCALINGS
        named = f"{kind if known else quoted(kind)} of rope_scaling or rope_parameters"
        return f"RoPE is scaled (rope_type {named}{'' if known else ', of which transformers knows nothing'})"
    keys = ("rope_factors_long.weight",) if kind == "longrope" else SCALING_KEYS
    return f"RoPE is scaled ({kind} by {', '.join(keys)})"


def without_sections(kind: str, config: ModelConfig) -> str:
    """Hint at what takes sections of RoPE away; empty for other kinds."""
    if kind != "mrope" or not config.raw:
        return ""
    old = isinstance(config.raw.get("rope_scaling"), dict)
    edits = "--drop-meta rope_scaling" if old else "--set-meta rope_parameters.rope_type=default"
    return f"ckconv edit SRC DST/ {edits} takes its sections away, in all of which a text has one position"


#: What scales RoPE in a GGUF.
SCALING_KEYS = ("rope.scaling.type", "rope.scaling.factor", "rope.scale_linear")


def starts_behind(scaling: Mapping[str, Any], config: ModelConfig, context: int) -> bool:
    """Whether the scaling changes no angle within an output's context length.

    A dynamic one starts behind the model's own (``dynamic_frequency_update`` of transformers, ``DynamicNTKScalingRoPE``
    of mlx-lm).
    """
    return scaling.get("rope_type") == "dynamic" and 0 < context <= config.context_length


#: Scalings that a GGUF names by keys; others it has as a tensor of factors, or no words for.
SCALED_BY_KEYS = ("linear", "yarn")


def scales_by_one(scaling: Mapping[str, Any]) -> bool:
    """Whether every angle is what it is without the scaling."""
    kind = scaling.get("rope_type")
    weight = scaling.get("attention_factor") if kind == "yarn" else None  # no other type of these reads it
    numbers = (scaling.get("factor"), weight or 1, scaling.get("llama_4_scaling_beta") or 0)
    return kind in (*SCALED_BY_KEYS, "llama3") and numbers == (1, 1, 0)


def behind_note(config: ModelConfig) -> str:
    """The note for a scaling that starts beyond the output's context."""
    return f"{scaled('dynamic', config)} behind {config.context_length:,} tokens only: nothing is scaled up to there"


def longrope_note(config: ModelConfig) -> str:
    """A note when llama.cpp and transformers use the long factors.

    Source: ``llama_model::get_rope_factors``.
    """
    original = int((config.rope_scaling or {})["original_max_position_embeddings"])
    both = f"of more than {original:,} tokens"
    return f"longrope: llama.cpp uses the long factors for a context {both}, transformers in a sequence {both}"


def same_factors_always(scaling: Mapping[str, Any]) -> bool:
    """Whether LongRoPE's two sets of factors are equal.

    Of others mlx-lm takes the long ones for short sequences, too.
    """
    return scaling.get("rope_type") == "longrope" and scaling.get("long_factor") == scaling.get("short_factor")


def positive_numbers(scaling: Mapping[str, Any], keys: Sequence[str]) -> list[float] | None:
    """The numbers under these keys, or ``None`` if any is no float32 above 0."""
    found = [scaling.get(key) for key in keys]
    for number in found:
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= MAX_FLOAT32:
            return None
    return [float(number) for number in found if number is not None]


#: Numbers that transformers' YaRN takes where they are not stated (``_compute_yarn_parameters``).
YARN_DEFAULTS: Mapping[str, Any] = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}

#: What each type of scaling computes with; other keys are read by nobody.
_COMPUTES: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "llama3": LLAMA3_NUMBERS,
    "yarn": (
        *("factor", "original_max_position_embeddings", "attention_factor", "llama_4_scaling_beta"),
        *YARN_DEFAULTS,
    ),
}


def effective_scaling(scaling: Mapping[str, Any], context: int, *, latent: bool) -> dict[str, Any]:
    """A scaling without keys that change nothing: equal ones compute alike.

    Args:
        context: the model's context length, which YaRN takes for the original one where none is stated.
        latent: attention over latent vectors, which ``mscale_all_dim`` weighs besides.
    """
    kind = scaling.get("rope_type")
    names = _COMPUTES.get(str(kind), tuple(key for key in scaling if key not in ("type", "rope_theta", "rope_type")))
    terms = {"original_max_position_embeddings": context, **YARN_DEFAULTS} if kind == "yarn" else {}
    terms |= {key: scaling[key] for key in names if scaling.get(key) is not None}
    if kind == "yarn" and scaling.get("factor"):
        more = (scaling.get(key) for key in ("attention_factor", "mscale", "mscale_all_dim"))
        terms["attention_factor"] = yarn_scale(scaling["factor"], *more)
        terms |= {"mscale_all_dim": scaling.get("mscale_all_dim")} if latent else {}

    def shortest(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [shortest(item) for item in value]
        return (
            shortest_float32(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else value
        )

    return {"rope_type": kind, **{key: shortest(value) for key, value in terms.items()}}


def yarn_scale(
    factor: float, attention: float | None = None, mscale: float | None = None, all_dim: float | None = None
) -> float:
    """The factor of YaRN for cosines and sines.

    Source: ``_compute_yarn_parameters`` of transformers' modeling_rope_utils.py; ``mscale`` counts with
    ``mscale_all_dim`` only, and neither beside an ``attention_factor``.
    """
    if attention is not None:
        return float(attention)
    growth = 0.1 * math.log(factor) if factor > 1 else 0.0
    return (growth * mscale + 1.0) / (growth * all_dim + 1.0) if mscale and all_dim else growth + 1.0


def without_yarn_default(scaling: Mapping[str, Any]) -> dict[str, Any]:
    """YaRN without an ``attention_factor`` that readers compute themselves."""
    factor, attention = scaling.get("factor"), scaling.get("attention_factor")
    if attention is None or not factor:
        return dict(scaling)
    default = yarn_scale(factor, None, scaling.get("mscale"), scaling.get("mscale_all_dim"))
    stated = shortest_float32(float(attention)) != shortest_float32(default)
    return {key: value for key, value in scaling.items() if stated or key != "attention_factor"}


#: Powers and quotients of float32 may differ by some units in the last place from library to library.
_TOLERANCE = 1e-6


def same_factors(one: bytes, other: bytes) -> bool:
    """Whether two ``rope_freqs.weight`` are equal but for rounding."""
    a, b = np.frombuffer(one, "<f4"), np.frombuffer(other, "<f4")
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=_TOLERANCE, atol=0))


def llama3_factors(config: ModelConfig) -> bytes | None:
    """Content of ``rope_freqs.weight``, ``[rotary_dim / 2]`` float32.

    ``None`` for a model whose scaling is not Llama 3's.
    """
    scaling = config.rope_scaling or {}
    numbers = positive_numbers(scaling, LLAMA3_NUMBERS) if scaling.get("rope_type") == "llama3" else None
    if numbers is None or config.rope_theta is None:
        return None

    factor, low, high, context = numbers
    made = rope_factors(config.rope_theta, config.rotary_dim, factor, low=low, high=high, context=int(context))
    return made.astype("<f4").tobytes()


#: No model has more; a larger count is a hostile or broken header (malformed input 37).
MAX_LAYERS = 65_536
MAX_DIMENSION = 1 << 31


class Number(NamedTuple):
    """A field that is a number, and whether no model is without it.

    Attributes:
        parameter: what family files call it.
        keys: those that ``config.json`` files have for it, whatever the family.
        shared: it means the same in every format.
    """

    field: str
    parameter: str = ""
    keys: tuple[str, ...] = ()
    integer: bool = True
    required: bool = False
    shared: bool = True


#: The fields that are numbers; what each format calls them the family files say.
#:
#: Source of the keys: C-Kernel-Engine's src/ckernel_ir.c, which searches a document for them in this order; they are
#: those of the configuration classes of transformers.
NUMBERS: Mapping[str, Number] = {
    number.field: number
    for number in (
        Number("num_layers", "layers", ("num_hidden_layers", "n_layer", "decoder_layers"), required=True),
        Number("hidden_size", "hidden", ("hidden_size", "n_embd", "d_model"), required=True),
        Number("ffn_size", "ffn", ("intermediate_size", "n_inner", "ffn_dim", "mlp_dim", "decoder_ffn_dim")),
        Number(
            "num_heads",
            "heads",
            ("num_attention_heads", "n_head", "num_heads", "decoder_attention_heads"),
            required=True,
        ),
        Number("num_kv_heads", "kv_heads", ("num_key_value_heads", "num_kv_heads")),
        Number("head_dim", "head_dim", ("head_dim",)),
        Number("vocab_size", "vocabulary", ("vocab_size", "n_vocab")),
        Number(
            "context_length",
            "context",
            ("max_position_embeddings", "n_positions", "context_length", "seq_len", "max_target_positions"),
        ),
        Number("norm_eps", "norm_eps", ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"), integer=False),
        Number("rope_theta", "rope_theta", ("rope_theta", "rope_base"), integer=False),
        Number("rotary_dim", "rope_dim"),
        Number("sliding_window", "window", ("sliding_window",), shared=False),
        Number("num_experts", "experts", ("num_local_experts", "num_experts")),
        Number("experts_used", "experts_used", ("num_experts_per_tok",)),
        Number("expert_ffn_size", "expert_ffn", ("moe_intermediate_size",), shared=False),
    )
}

#: The keys of each field in a ``config.json``.
CONFIG_KEYS: Mapping[str, tuple[str, ...]] = {field: number.keys for field, number in NUMBERS.items()}

#: Any number that is no field of its own, and one that is whole.
REAL, WHOLE = Number("", integer=False), Number("")

#: llama.cpp's default where a GGUF names no base (llama-hparams / llama_model_loader).
DEFAULT_ROPE_THETA = 10_000.0

#: Parameter of the family files -> the field that holds it.
FIELD_OF: Mapping[str, str] = {
    **{number.parameter: number.field for number in NUMBERS.values()},
    **{name: name for name in ("layer_types", "final_cap", "query_scalar", "tied")},
    "local_theta": "local_rope_theta",
}

#: Parameters of what every reader leaves out: layers behind the last, which predict further tokens; the padding token,
#: of which a GGUF says what the tokenizer does.
LEFT_OUT = frozenset(
    {"draft_head", "draft_index", "draft_tables", "drafts", "extra_layers", "pad"}
    | {f"dense_{number}_{side}" for number in (2, 3) for side in ("in", "out")}
)

#: Fields that mean the same in every format.
SHARED_FIELDS = ("family", *(number.field for number in NUMBERS.values() if number.shared))

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
        family: the row of :data:`ckconv.families.catalog.FAMILIES` that the model belongs to.
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
    modifiers: tuple[Modifier, ...] = ()
    own: Mapping[str, Any] = field(default_factory=dict)
    unread: tuple[str, ...] = field(default=(), compare=False)
    overruled: tuple[str, ...] = field(default=(), compare=False)
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def scope(self) -> dict[str, Any]:
        """The parameters by the names that expressions of family files use."""
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
    """The shortest decimal that a reader rounds to the same float32.

    1e-05, not 9.999999747378752e-06.

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
    """``value`` as the field's type; raises if it is none."""
    if number.integer:
        if isinstance(value, bool) or not isinstance(value, int):
            raise fail(f"{name} must be a whole number, got {value!r}")
        limit = MAX_LAYERS if number.field == "num_layers" else MAX_DIMENSION
        if not 0 <= value <= limit:
            raise fail(f"{name} is {value:,}, outside 0 to {limit:,}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise fail(f"{name} must be a finite number, got {value!r}")
    if value < 0:
        raise fail(f"{name} must be 0 or more, got {value!r}")
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
    experts: bool = False,
    rope_scaling: Mapping[str, Any] | None = None,
    tied: bool | None = None,
    modifiers: tuple[Modifier, ...] = (),
    raw: Mapping[str, Any] | None = None,
) -> ModelConfig:
    """Derive missing fields, and check the fields against each other.

    ``values`` are the parameters found, ``names`` what the file calls each field, ``vocab_size`` the rows of the
    embedding (0 where the file holds none), ``position_rows`` the rows of a learned position table.

    Raises:
        InputError: ``model.config``, with both numbers, for a missing or contradictory field.
    """
    got = {**{number.field: 0 for number in NUMBERS.values() if number.integer}, **values}
    for name, number in NUMBERS.items():
        if number.required and not got.get(name):
            needs = f", which {an(model_type)} (model_type) has" if raw else ""
            raise fail(f"{names[name]} is missing{needs}" if name not in values else f"{names[name]} is 0")
    hidden, heads = int(got["hidden_size"]), int(got["num_heads"])
    kv_heads = int(got["num_kv_heads"]) or heads
    if heads % kv_heads:
        raise fail(f"{names['num_heads']} is {heads}, not a multiple of {names['num_kv_heads']}, {kv_heads}")
    head_dim = int(got["head_dim"])
    for name in ("head_dim", "num_kv_heads") if raw else ("head_dim",):
        if values.get(name) == 0:
            raise fail(f"{names[name]} is 0")
    if not head_dim:
        if hidden % heads:
            raise fail(f"{names['hidden_size']} is {hidden}, not a multiple of {names['num_heads']}, {heads}")
        head_dim = hidden // heads
    if raw and vocab_size and values.get("vocab_size") == 0:
        raise fail(f"{names['vocab_size']} is 0, the embedding has {vocab_size:,} rows")
    if vocab_size and got["vocab_size"] and vocab_size != got["vocab_size"]:
        raise fail(f"{names['vocab_size']} is {got['vocab_size']:,}, the embedding has {vocab_size:,} rows")
    if rope and values.get("rope_theta") == 0:
        raise fail(f"{names['rope_theta']} is 0")
    if experts and not 0 < got["experts_used"] <= got["num_experts"]:
        counted = (f"{names[field]} is {got[field]:,}" for field in ("experts_used", "num_experts"))
        raise fail(", ".join(counted))
    context = int(values.get("context_length", position_rows))
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


def config_differences(
    a: ModelConfig, b: ModelConfig, *, same_words: bool, worded: Sequence[Collection[str]] = ((), ())
) -> dict[str, tuple[object, object]]:
    """Fields in which two configurations differ -> both values.

    Args:
        same_words: both come from one format, or from two with the same documents. Else what only one of them names
            is no difference, because the other may have no words for it.
        worded: the fields that each has words for all the same.
    """
    found: dict[str, tuple[object, object]] = {}
    if a.expert_ffn_size and b.expert_ffn_size:  # of a dense feed-forward, and no layer has one
        a = replace(a, ffn_size=b.ffn_size)
    stated = a, b  # a window that reaches beyond the context is stated, too
    a, b = _windowed(a, b.context_length), _windowed(b, a.context_length)
    for name in (*SHARED_FIELDS, *_WORDED_FIELDS):
        of_a, of_b = _comparable(getattr(a, name), a), _comparable(getattr(b, name), b)
        if isinstance(of_a, dict) and isinstance(of_b, dict) and not same_words:
            weights = [one.get("attention_factor") or 0 for one in (of_a, of_b)]
            if math.isclose(*weights, rel_tol=_TOLERANCE):  # a GGUF has it divided by what llama.cpp multiplies with
                of_b |= {key: of_a[key] for key in ("attention_factor",) if key in of_a}
        may_lack = (getattr(one, name) is None and name not in has for one, has in zip(stated, worded, strict=True))
        silent = name in _WORDED_FIELDS and not same_words and (name == "modifiers" or any(may_lack))
        if of_a != of_b and not silent:
            found[name] = of_a, of_b
    for name in sorted({*a.own, *b.own} - LEFT_OUT):
        pair = a.own.get(name), b.own.get(name)
        if not same_words:  # a GGUF has the float32 next to a number
            pair = _in_float32(pair[0]), _in_float32(pair[1])
        if pair[0] != pair[1] and (same_words or None not in pair):
            found[name] = pair
    return found


def worded_fields(config: ModelConfig, *, factors: bool) -> set[str]:
    """Fields of a configuration that a file without them says something by.

    All but a bump file have words for a window, and what computes without one attends to everything; so they have for a
    scaling by a factor.

    Args:
        factors: a tensor has what RoPE is scaled by.
    """
    by_keys = (config.rope_scaling or {}).get("rope_type") in SCALED_BY_KEYS and not factors
    return {"sliding_window", *(["rope_scaling"] if by_keys else [])}


def _in_float32(value: object) -> object:
    if isinstance(value, tuple):
        return tuple(_in_float32(item) for item in value)
    return shortest_float32(value) if isinstance(value, float) else value


def _windowed(config: ModelConfig, other: int) -> ModelConfig:
    """Drop a window as long as the context, or that no layer uses."""
    context = min(config.context_length or other, other or config.context_length)
    full = config.layer_types is not None and set(config.layer_types) == {"full_attention"}
    idle = config.sliding_window is None or config.sliding_window >= context or full
    return replace(config, sliding_window=None, layer_types=None) if idle else config


def _comparable(value: object, config: ModelConfig) -> object:
    if isinstance(value, Mapping):
        if scales_by_one(value):
            return None
        return effective_scaling(value, config.context_length, latent="kv_rank" in config.own)
    return value


# Llama 3's RoPE scaling, which a configuration names by four numbers and a GGUF by a tensor of factors.
#
# Source: ``LlamaModel.generate_extra_tensors`` of llama.cpp's converter; transformers' ``_compute_llama3_parameters``
# divides the frequencies by the same factors.

LOW_FREQ_FACTOR, HIGH_FREQ_FACTOR, ORIGINAL_CONTEXT = 1.0, 4.0, 8192


def rope_factors(
    theta: float,
    rotary_dim: int,
    factor: float,
    *,
    low: float = LOW_FREQ_FACTOR,
    high: float = HIGH_FREQ_FACTOR,
    context: int = ORIGINAL_CONTEXT,
) -> Floats:
    """Divisors of the ``rotary_dim / 2`` frequencies, as float32."""
    powers = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    frequencies = np.float32(1) / np.float32(theta) ** powers
    wavelengths = np.float32(2 * math.pi) / frequencies
    width = np.float32(high - low) or np.float32(1)  # Llama 4 Scout's two are equal, and no frequency is between them
    smooth = (np.float32(context) / wavelengths - np.float32(low)) / width
    with np.errstate(divide="ignore"):  # of what is not between them
        between = np.float32(1) / ((np.float32(1) - smooth) / np.float32(factor) + smooth)
    made = np.where(wavelengths < context / high, np.float32(1), between)
    return np.where(wavelengths > context / low, np.float32(factor), made).astype(np.float32)


def rope_scaling_of(factors: Floats, theta: float, rotary_dim: int) -> dict[str, Any] | None:
    """The ``rope_scaling`` that gives these factors; ``None`` if none does.

    ``{}`` for factors that scale nothing.

    Equal factors are a linear scaling. Between its two ends Llama 3's is ``1 / f = 1 / F + s * (1 - 1 / F)`` with
    ``s = (context / wavelength - low) / (high - low)``, so every factor between them gives the context, once the two
    constants are known: those of Llama 3 are tried first, then what a line through the factors says.
    """
    if factors.shape != (rotary_dim // 2,) or not np.isfinite(factors).all() or factors.min() <= 0:
        return None
    if (factors == factors[0]).all():
        factor = shortest_float32(float(factors[0]))
        return {} if factor == 1 else {"rope_type": "linear", "factor": factor}
    for found in llama3_candidates(factors.astype(np.float64), theta, rotary_dim):
        made = rope_factors(theta, rotary_dim, found[0], low=found[1], high=found[2], context=found[3])
        if found[3] > 0 and np.allclose(factors, made, rtol=_TOLERANCE, atol=0):
            return {
                "factor": found[0],
                "high_freq_factor": found[2],
                "low_freq_factor": found[1],
                "original_max_position_embeddings": found[3],
                "rope_type": "llama3",
            }
    return None


def llama3_candidates(
    factors: NDArray[Any], theta: float, rotary_dim: int
) -> Iterator[tuple[float, float, float, int]]:
    """Factor, low, high and original context that may give these factors."""
    wavelengths = 2 * math.pi * theta ** (np.arange(0, rotary_dim, 2) / rotary_dim)
    # The slowest frequency is divided by the whole factor, unless no frequency is that slow.
    factor = float(factors[-1])
    if factor > 1:
        between = (factors > 1) & (factors < factor)
        smooth = (1 / factors[between] - 1 / factor) / (1 - 1 / factor)
        low, high = LOW_FREQ_FACTOR, HIGH_FREQ_FACTOR
        yield factor, low, high, ORIGINAL_CONTEXT
        if between.any():
            contexts = wavelengths[between] * (smooth * (high - low) + low)
            yield factor, low, high, round(float(np.median(contexts)))
        if between.sum() == 1:
            yield from _one_between(factor, float(wavelengths[between][0]), float(smooth[0]), wavelengths, factors)
        if between.sum() > 1:
            yield from _fitted(factor, *np.polyfit(1 / wavelengths[between], smooth, 1))
        if not between.any() and (factors == 1).any():
            yield from _between(factor, wavelengths[factors == 1][-1], wavelengths[factors == factor][0])
    # Every frequency lies before the slow end: the line through two of them says the factor.
    slow = factors > 1
    if slow.sum() > 1:
        slope, start = np.polyfit(1 / wavelengths[slow], 1 / factors[slow], 1)
        ratio = LOW_FREQ_FACTOR / (HIGH_FREQ_FACTOR - LOW_FREQ_FACTOR)
        inverse = (start + ratio) / (1 + ratio)
        if 0 < inverse < 1:
            context = slope / (1 - inverse) * (HIGH_FREQ_FACTOR - LOW_FREQ_FACTOR)
            rounded = round(1 / inverse, 3)
            yield rounded, LOW_FREQ_FACTOR, HIGH_FREQ_FACTOR, round(float(context))


def _fitted(factor: float, slope: float, start: float) -> Iterator[tuple[float, float, float, int]]:
    """Constants of ``s = slope / wavelength + start``, up to a multiple."""
    if slope <= 0 or start >= 0:
        return
    for low in (1.0, 0.5, 2.0, 4.0, 8.0):
        high = low - low / start
        for digits in (0, 1, 2, 4, 6):
            width = round(high, digits) - low
            if width > 0:
                yield factor, low, round(high, digits), round(slope * width)


def _one_between(
    factor: float, wavelength: float, smooth: float, wavelengths: NDArray[Any], factors: NDArray[Any]
) -> Iterator[tuple[float, float, float, int]]:
    """Constants for a single frequency between the ends.

    Any context up to the next wavelength fits, with a constant for it; a usual one is tried first.
    """
    for high in (8.0, 16.0, 32.0, 64.0):
        yield factor, 1.0, high, round(wavelength * (smooth * (high - 1) + 1))
    slow = float(wavelengths[factors == factor].min())
    for context in (math.floor(slow), round(math.sqrt(wavelength * slow)), math.ceil(wavelength) + 1):
        if wavelength < context <= slow:
            yield factor, 1.0, 1 + (context / wavelength - 1) / smooth, context


def _between(factor: float, fast: float, slow: float) -> Iterator[tuple[float, float, float, int]]:
    """Constants for no frequency between the ends: any boundary will do."""
    if slow / fast >= HIGH_FREQ_FACTOR / LOW_FREQ_FACTOR:
        yield factor, LOW_FREQ_FACTOR, HIGH_FREQ_FACTOR, math.floor(slow)
    for context in (math.floor(slow), round(math.sqrt(fast * slow))):
        if context > fast:
            yield factor, 1.0, round(1 + (context / fast - 1) / 2, 4), context
