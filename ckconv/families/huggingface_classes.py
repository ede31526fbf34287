"""What the classes of transformers and mlx-lm hold: which tensors a family's class has, and which switch adds biases.

A tensor that a class does not have is ignored by transformers with a warning at most, and one that it misses is made
up: either is a model that computes something else. mlx-lm refuses both.

Source: the modelling files of transformers 4.57 and 5 and of mlx-lm 0.32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ckconv.core.config import ModelConfig
from ckconv.core.names import parse
from ckconv.families.architectures import Family

_QKV = ("attention.q", "attention.k", "attention.v")
_ATTENTION = (*_QKV, "attention.output")
_MLP = ("ffn.gate", "ffn.up", "ffn.down")
_QK_NORM = ("attention.q_norm.weight", "attention.k_norm.weight")

_ENDS = ("token_embedding.weight", "output_norm.weight")


@dataclass(frozen=True, slots=True)
class Switch:
    """Stems of a layer that have a bias all together or not at all."""

    key: str
    stems: tuple[str, ...]


ATTENTION_BIAS, MLP_BIAS = Switch("attention_bias", _ATTENTION), Switch("mlp_bias", _MLP)


@dataclass(frozen=True, slots=True)
class ModelClass:
    """What a family's class has besides the tensors that every model of the family has.

    Attributes:
        ends: tensors outside of the layers, the output head left out.
        layer: further tensors of every layer, after ``layers.{n}.``.
        switches: biases that the configuration switches on, in transformers.
        mlx_switches: the same in mlx-lm.
        fixed_head: the size of a head is hidden / heads, whatever the configuration says (mlx-lm).
        head_of_its_own: mlx-lm's class can have an output head that is not the embedding.
        scales_rope: mlx-lm's class reads ``rope_scaling``.
    """

    ends: tuple[str, ...] = _ENDS
    layer: tuple[str, ...] = ()
    switches: tuple[Switch, ...] = ()
    mlx_switches: tuple[Switch, ...] = ()
    fixed_head: bool = False
    head_of_its_own: bool = True
    scales_rope: bool = True


CLASSES: Mapping[str, ModelClass] = {
    "llama": ModelClass(switches=(ATTENTION_BIAS, MLP_BIAS), mlx_switches=(ATTENTION_BIAS, MLP_BIAS)),
    # Read by mlx-lm's llama class.
    "mistral": ModelClass(mlx_switches=(ATTENTION_BIAS, MLP_BIAS)),
    "mixtral": ModelClass(fixed_head=True, scales_rope=False),
    "qwen2": ModelClass(layer=tuple(f"{stem}.bias" for stem in _QKV), fixed_head=True),
    "qwen3": ModelClass(layer=_QK_NORM, switches=(ATTENTION_BIAS,)),
    "qwen3moe": ModelClass(layer=_QK_NORM, switches=(ATTENTION_BIAS,), scales_rope=False),
    "gemma3": ModelClass(layer=_QK_NORM, switches=(ATTENTION_BIAS,)),
    # Its class turns with the long factors whatever the length of the sequence, and knows no other scaling.
    "phi3": ModelClass(fixed_head=True, scales_rope=False),
    "gpt2": ModelClass(
        ends=(*_ENDS, "output_norm.bias", "position_embedding.weight"),
        layer=tuple(f"{stem}.bias" for stem in (*_ATTENTION, "ffn.up", "ffn.down")),
        fixed_head=True,
        head_of_its_own=False,
    ),
}


def class_of(config: ModelConfig) -> ModelClass | None:
    """The class that a model's configuration names; ``None`` for one without a row."""
    return CLASSES.get(config.model_type, CLASSES.get(config.family))


def expected_of(family: Family, config: ModelConfig, switches: Mapping[str, bool], *, mlx: bool) -> dict[str, int]:
    """Canonical pattern of every tensor that the class has, the output head left out -> how many of them."""
    own = class_of(config)
    assert own is not None
    wanted = [*family.required, *own.layer]
    known = own.mlx_switches if mlx else own.switches
    wanted += [f"{stem}.bias" for switch in known if switches[switch.key] for stem in switch.stems]
    return {**dict.fromkeys(own.ends, 1), **{f"layers.{{n}}.{tail}": config.num_layers for tail in wanted}}


@dataclass(frozen=True, slots=True)
class Fit:
    """How a model's tensors fit a class.

    Attributes:
        switches: the class's own keys -> whether the model has those biases.
        missing: canonical pattern -> layers in which the class has a tensor and the model has none.
        surplus: canonical pattern -> tensors that the class has no place for.
    """

    switches: Mapping[str, bool] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    surplus: Mapping[str, int] = field(default_factory=dict)


def fit(family: Family, config: ModelConfig, present: Collection[str], *, mlx: bool) -> Fit:
    """Hold canonical names, without the output head, against the class of a model."""
    own = class_of(config)
    assert own is not None
    counts = Counter(parse(name).pattern for name in present)
    switches = own.mlx_switches if mlx else own.switches
    on = {s.key: any(counts[f"layers.{{n}}.{stem}.bias"] for stem in s.stems) for s in switches}
    expected = expected_of(family, config, on, mlx=mlx)
    return Fit(
        on,
        {pattern: n - counts[pattern] for pattern, n in expected.items() if counts[pattern] < n},
        {pattern: n for pattern, n in counts.items() if pattern not in expected},
    )


def needs(family: str, canonical: str) -> bool:
    """The family's class cannot do without this tensor, even if it is all zeros."""
    own = CLASSES.get(family)
    if own is None:
        return True
    pattern = parse(canonical).pattern
    return pattern in own.ends or pattern.removeprefix("layers.{n}.") in own.layer
