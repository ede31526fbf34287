"""What is special about each model family, as data, and the rules that turn stored tensors into canonical ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ckconv.core.config import ModelConfig, gguf_words
from ckconv.core.layouts import Layout, headed, plain, shifted
from ckconv.core.names import SHAPES, Name, parse, with_layer
from ckconv.core.tensors import Dropped, Extent, StoredTensor, Tensor, matrix_of
from ckconv.errors import Faults, InputError, UnsupportedError


@dataclass(frozen=True, slots=True)
class Fused:
    """Rows of several canonical tensors stored as one, in order; ``weight`` and ``bias`` alike."""

    stem: str
    parts: tuple[str, ...]


_QKV = Fused("layers.{n}.attention.qkv", ("layers.{n}.attention.q", "layers.{n}.attention.k", "layers.{n}.attention.v"))
_GATE_UP = Fused("layers.{n}.ffn.up", ("layers.{n}.ffn.gate", "layers.{n}.ffn.up"))

_NORMS = frozenset(
    {
        "layers.{n}.attention_norm.weight",
        "layers.{n}.ffn_norm.weight",
        "layers.{n}.attention.q_norm.weight",
        "layers.{n}.attention.k_norm.weight",
        "layers.{n}.post_attention_norm.weight",
        "layers.{n}.post_ffn_norm.weight",
        "output_norm.weight",
    }
)

_ATTENTION = (
    "attention_norm.weight",
    "attention.q.weight",
    "attention.k.weight",
    "attention.v.weight",
    "attention.output.weight",
)
_DENSE = (*_ATTENTION, "ffn_norm.weight", "ffn.gate.weight", "ffn.up.weight", "ffn.down.weight")
_SPARSE = (
    *_ATTENTION,
    "ffn_norm.weight",
    "ffn.router.weight",
    "ffn.experts.gate.weight",
    "ffn.experts.up.weight",
    "ffn.experts.down.weight",
)


@dataclass(frozen=True, slots=True)
class Family:
    """One row of the table below.

    Attributes:
        name: what ckconv calls the family.
        gguf: the ``general.architecture`` of its GGUF files.
        model_type: Hugging Face's ``model_type``; ``hf_class`` the class its config names.
        interleaved_gguf: llama.cpp's converter stores Q and K rows (and biases) with RoPE pairs as neighbours.
        gguf_norm_shift: what GGUF adds to every norm weight.
        gguf_fused: fused tensors in GGUF.
        required: canonical tensors of every layer, after ``layers.{n}.``.
        experts: a mixture of experts.
        rope: positions are rotary; learned otherwise.
        rms_swiglu: RMSNorm before attention and a SwiGLU feed-forward, nothing else: what the bump 3 engine computes.
    """

    name: str
    gguf: str
    model_type: str
    hf_class: str
    interleaved_gguf: bool = False
    gguf_norm_shift: int = 0
    gguf_fused: tuple[Fused, ...] = ()
    required: tuple[str, ...] = _DENSE
    experts: bool = False
    rope: bool = True
    rms_swiglu: bool = False


# Sources: llama.cpp's convert_hf_to_gguf.py, every row of which was checked against the reference models.
FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("llama", "llama", "llama", "LlamaForCausalLM", interleaved_gguf=True, rms_swiglu=True),
        Family(
            "mixtral",
            "llama",
            "mixtral",
            "MixtralForCausalLM",
            interleaved_gguf=True,
            required=_SPARSE,
            experts=True,
            rms_swiglu=True,
        ),
        Family("qwen2", "qwen2", "qwen2", "Qwen2ForCausalLM", rms_swiglu=True),
        Family("qwen3", "qwen3", "qwen3", "Qwen3ForCausalLM", rms_swiglu=True),
        Family(
            "qwen3moe", "qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM", required=_SPARSE, experts=True, rms_swiglu=True
        ),
        Family(
            "gemma3",
            "gemma3",
            "gemma3_text",
            "Gemma3ForCausalLM",
            gguf_norm_shift=1,
            required=(*_DENSE, "post_attention_norm.weight", "post_ffn_norm.weight"),
        ),
        Family("phi3", "phi3", "phi3", "Phi3ForCausalLM", gguf_fused=(_QKV, _GATE_UP), rms_swiglu=True),
        Family(
            "gpt2",
            "gpt2",
            "gpt2",
            "GPT2LMHeadModel",
            gguf_fused=(_QKV,),
            required=(
                *_ATTENTION,
                "attention_norm.bias",
                "ffn_norm.weight",
                "ffn_norm.bias",
                "ffn.up.weight",
                "ffn.down.weight",
            ),
            rope=False,
        ),
        Family("whisper", "", "whisper", "WhisperForConditionalGeneration", required=(), rope=False),
    )
}


def family_of_gguf(architecture: str, expert_count: int) -> Family | None:
    """The family of a GGUF: its architecture's, told apart by experts where two families share one name."""
    for family in FAMILIES.values():
        if family.gguf and family.gguf == architecture and family.experts == (expert_count > 0):
            return family
    return None


def norm_shift(family: Family, canonical: str) -> int:
    """What GGUF and bump add to the values of a canonical tensor: 1 for gemma norms, else 0."""
    shift = family.gguf_norm_shift
    return shift if shift and parse(canonical).pattern in _NORMS else 0


#: Hugging Face ``model_type`` s that are a family under another name, and GGUF architectures used as one.
_MODEL_TYPES: dict[str, str] = {"mistral": "llama", **{family.model_type: family.name for family in FAMILIES.values()}}


def family_of_model_type(model_type: str) -> str | None:
    """The family of a ``config.json``."""
    return _MODEL_TYPES.get(model_type) or (model_type if model_type in FAMILIES else None)


#: Letter of a shape -> fields that it follows from.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "V": ("vocab_size",),
    "E": ("hidden_size",),
    "F": ("ffn_size",),
    "H": ("num_heads", "head_dim"),
    "K": ("num_kv_heads", "num_heads", "head_dim"),
    "D": ("head_dim",),
    "X": ("num_experts",),
    "M": ("expert_ffn_size", "ffn_size"),
    "C": ("context_length",),
}


def dimensions(config: ModelConfig) -> dict[str, int]:
    """The letters of :data:`ckconv.core.names.SHAPES` as numbers of elements."""
    return {
        "V": config.vocab_size,
        "E": config.hidden_size,
        "F": config.ffn_size,
        "H": config.num_heads * config.head_dim,
        "K": config.num_kv_heads * config.head_dim,
        "D": config.head_dim,
        "X": config.num_experts,
        "M": config.expert_ffn_size or config.ffn_size,
        "C": config.context_length,
    }


@dataclass(frozen=True, slots=True)
class Canonical:
    """What the rules made of a file's tensors."""

    tensors: Mapping[str, Tensor]
    canonical_of: Mapping[str, tuple[str, ...]]
    dropped: tuple[Dropped, ...]
    unknown: tuple[StoredTensor, ...]


def canonicalise_gguf(
    stored: tuple[StoredTensor, ...], family: Family, config: ModelConfig, names: Mapping[str, str]
) -> Canonical:
    """Apply a family's GGUF rules.

    Args:
        names: GGUF pattern -> canonical pattern.

    Raises:
        InputError: ``model.config`` where a tensor's shape or layer contradicts the configuration.
    """
    dims = dimensions(config)
    fused = {f"{f.stem}.{kind}": f for f in family.gguf_fused for kind in ("weight", "bias")}
    tensors: dict[str, Tensor] = {}
    canonical_of: dict[str, tuple[str, ...]] = {}
    unknown: list[StoredTensor] = []
    faults = Faults(None)
    beyond: dict[int, str] = {}
    for item in stored:
        name = parse(item.name)
        pattern = names.get(name.pattern)
        if pattern is None:
            unknown.append(item)
            continue
        if name.layer is not None and name.layer >= config.num_layers:
            beyond.setdefault(name.layer, item.name)
            continue
        parts = _split(item, Name(pattern, name.layer), fused.get(pattern), dims, family, faults)
        for tensor, part in parts:
            if tensor.name in tensors:
                other = tensors[tensor.name].source
                faults.add("model.config", f"{other!r} and {item.name!r} are both {tensor.name}", tensor=item.name)
            shift = norm_shift(family, part)
            layout = _gguf_layout(tensor, part, family, config)
            if shift or layout is not tensor.layout:
                tensor = replace(tensor, layout=shifted(layout, shift) if shift else layout)
            tensors[tensor.name] = tensor
        canonical_of[item.name] = tuple(tensor.name for tensor, _ in parts)
    if beyond:
        named = f"layer{'s' if len(beyond) > 1 else ''} {', '.join(str(layer) for layer in sorted(beyond)[:10])}"
        raise InputError(
            "model.config",
            f"{family.gguf}.block_count is {config.num_layers}, tensors name {named}",
            tensor=beyond[min(beyond)],
            found=max(beyond),
            allowed=config.num_layers - 1,
        )
    faults.check()
    return Canonical(tensors, canonical_of, (), tuple(unknown))


def _split(
    item: StoredTensor, name: Name, fused: Fused | None, dims: Mapping[str, int], family: Family, faults: Faults
) -> list[tuple[Tensor, str]]:
    """The canonical tensors of a stored one, each with its canonical pattern; shape faults go to ``faults``."""
    kind = name.pattern.rsplit(".", 1)[-1]
    patterns = [f"{part}.{kind}" for part in fused.parts] if fused else [name.pattern]
    expected = (
        [tuple(dims[letter] for letter in SHAPES[p]) for p in patterns] if patterns[0] in SHAPES else [item.shape]
    )
    whole = (sum(shape[0] for shape in expected), *expected[0][1:])
    if item.shape != whole:
        fields = [field for p in patterns for letter in SHAPES[p] for field in FIELDS[letter]]
        keys = ", ".join(dict.fromkeys(gguf_words(family.gguf, fields)))
        made = f"the configuration makes it {list(whole)} ({keys})"
        message = f"tensor {item.name!r} has shape {list(item.shape)}, {made}"
        faults.add("model.config", message, tensor=item.name)
        return []
    parts = []
    offset = item.extent.offset
    for pattern, shape in zip(patterns, expected, strict=True):
        rows, cols = matrix_of(shape, item.dtype)
        nbytes = rows * item.dtype.nbytes(cols)
        extent = Extent(item.extent.path, offset, nbytes)
        offset += nbytes
        tensor = Tensor(with_layer(pattern, name.layer), item.name, item.dtype, shape, (extent,), plain(rows, cols))
        parts.append((tensor, pattern))
    return parts


#: The tensors whose rows RoPE rotates, and the field that counts their heads.
ROTATED: dict[str, str] = {
    f"layers.{{n}}.attention.{letter}.{kind}": heads
    for letter, heads in (("q", "num_heads"), ("k", "num_kv_heads"))
    for kind in ("weight", "bias")
}


def _gguf_layout(tensor: Tensor, pattern: str, family: Family, config: ModelConfig) -> Layout:
    heads = ROTATED.get(pattern)
    if not family.interleaved_gguf or heads is None:
        return tensor.layout
    if config.head_dim % 2:
        keys = ", ".join(gguf_words(family.gguf, FIELDS["H"]))
        what = f"heads of {config.head_dim} elements cannot form RoPE pairs ({keys})"
        raise UnsupportedError("model.config", what, tensor=tensor.source)
    return headed(getattr(config, heads), config.head_dim, tensor.layout.cols, interleaved=True)
