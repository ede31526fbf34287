"""Tensors of a GGUF: their source rows, and rules of llama.cpp's loader."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from struct import pack
from typing import TYPE_CHECKING, Any

from ckconv.core.config import (
    LLAMA3_NUMBERS,
    MAX_FLOAT32,
    MIN_FLOAT32,
    ModelConfig,
    positive_numbers,
    scaled,
    starts_behind,
    without_sections,
)
from ckconv.core.layouts import DTYPES, F32, F64, I64, DType, Kind, Layout, plain, shifted
from ckconv.core.lazy import NamedTuple, Rows, np
from ckconv.core.metadata import Value, array, raw_array, scalar
from ckconv.core.tensors import (
    EMBEDDING,
    HEAD,
    ROPE_FREQUENCIES,
    Array,
    DroppedTensor,
    Extent,
    PackedMatrix,
    StoredTensor,
    Tensor,
    TensorIndex,
    is_bias,
    made,
    matrix_of,
    parse,
    plain_tensor,
    with_layer,
)
from ckconv.errors import InputError, and_more
from ckconv.families import axes as shapes
from ckconv.families.canonical import Item, as_head, plain_item
from ckconv.families.catalog import FAMILIES, HEAD_SIZE, bracketed, of_class, rows_of_head, tensor_keys
from ckconv.families.keys import ROPE_KEYS, TABLES_OF_ROPE
from ckconv.families.names import canonical_pattern, key_patterns, names_of, shift_of, tables_of
from ckconv.families.schema import DROP_MTP, LLAMA_CPP, Family
from ckconv.families.sizes import (
    Sizes,
    at_will,
    conditional,
    everywhere,
    layers_with,
    layout_in,
    loaded,
    narrow,
    required,
)
from ckconv.formats.gguf.read import ArrayRef, GgufFile
from ckconv.io.files import Files
from ckconv.plan.planner import Planner, drop_hint, modifier_reason, no_epsilon, row_reasons
from ckconv.plan.probe import PLACEHOLDER
from ckconv.plan.steps import DECODE, Reason
from ckconv.quant.codec import get_codes, of_bytes, to_float32
from ckconv.quant.packed import FACTOR, NOT_WEIGHTS, inverse, is_scaled, packed_type, rows_of, scheme_of

if TYPE_CHECKING:
    from ckconv.quant.packings.module import Tile


# Tensors of one number that are a metadata key in GGUF: a number, or an array with that of every layer (xIELU's).


def tensors_of_keys(file: GgufFile, family: Family, config: ModelConfig) -> Iterator[Tensor]:
    """Tensors that a file's keys are, where their numbers lie in the header."""
    sizes = Sizes(family, config.scope)
    for row in (row for row in family.tensors.values() if row.key):
        found = file.metadata.get(row.key)
        if found is None:
            continue
        numbers, count = found.value, sizes.layers(row)
        pattern = canonical_pattern(family, row.name, "" if row.whole_name else "weight")
        shape = shapes.sizes(row.axes, sizes.of(row, None))
        if row.whole:
            layer, *_ = (*layers_with(family, row, sizes.scope), None)
            if layer is not None:
                yield plain_tensor(with_layer(pattern, layer), _whole(file, row.key, shape))
            continue
        if not row.in_stack(family.stacks):
            if found.type != "f32":
                raise InputError("model.config", f"{row.key} must be a number (f32)", path=file.path)
            yield Tensor(pattern, row.key, F32, shape, (Extent(file.files[0], found.offset, F32.size),), plain(1, 1))
            continue
        if not isinstance(numbers, ArrayRef) or numbers.type != "f32" or numbers.count != count:
            raise InputError("model.config", f"{row.key} must be a list of {count:,} numbers (f32)", path=file.path)
        for layer in range(count):
            extent = Extent(file.files[0], numbers.offset + layer * F32.size, F32.size)
            yield Tensor(with_layer(pattern, layer), f"{row.key}[{layer}]", F32, shape, (extent,), plain(1, 1))


def _whole(file: GgufFile, key: str, shape: tuple[int, ...]) -> StoredTensor:
    """The whole numbers of a key, as a tensor has them: each below 2^63."""
    numbers = file.metadata[key].value
    fits = isinstance(numbers, ArrayRef) and numbers.type == "u64" and (numbers.count,) == shape
    if not isinstance(numbers, ArrayRef) or not fits or _beyond_i64(numbers.raw()):
        message = f"{key} must be a list of {shape[0]:,} numbers below 2^63 (u64)"
        raise InputError("model.config", message, path=file.path)
    return StoredTensor(key, I64, shape, Extent(file.files[0], numbers.offset, numbers.nbytes))


def _beyond_i64(numbers: bytes) -> bool:
    """Whether a u64 is above what an I64 holds, or an I64 below 0."""
    return any(byte >> 7 for byte in numbers[7::8])


def keys_of_tensors(planner: Planner, family: Family, rounded: list[str]) -> Mapping[str, Value]:
    """The keys that a model's tensors are.

    Refused where a list of whole numbers has others, or a number is beyond float32.

    Args:
        rounded: gets the names of tensors whose number becomes another float32.
    """
    index, patterns = planner.index, key_patterns(family)
    whole = {row.key for row in family.tensors.values() if row.whole}
    numbers: dict[str, dict[int | None, float]] = {}
    lists: dict[str, Value] = {}
    if patterns:
        from ckconv.io.rows import RowReader

        with Files(index.identities) as files:
            for tensor in index.tensors.values():
                name = parse(tensor.name)
                if patterns.get(name.pattern) in whole:
                    raw = RowReader(tensor, files).rows(0, tensor.layout.rows).tobytes()
                    if tensor.dtype is not I64 or _beyond_i64(raw):
                        text = f"{tensor.source} has other numbers than whole ones from 0 on (I64)"
                        planner.refuse(f"{text}, which {patterns[name.pattern]} has for llama.cpp")
                    lists[patterns[name.pattern]] = raw_array("u64", tensor.elements, raw)
                elif name.pattern in patterns:
                    rows = RowReader(tensor, files).rows(0, 1)
                    [[number]] = rows.view("<f8") if tensor.dtype is F64 else to_float32(rows, tensor.dtype)
                    with np.errstate(over="ignore"):
                        single = float(np.float32(number))
                    if math.isinf(single) and not math.isinf(number):
                        text = f"{tensor.source} is {number}, which no float32 holds"
                        planner.refuse(f"{text}, as which a GGUF has it ({patterns[name.pattern]})")
                    elif single != number == number:
                        rounded.append(tensor.source)
                    numbers.setdefault(patterns[name.pattern], {})[name.layer] = single
    return lists | {
        key: scalar("f32", found[None])
        if None in found
        else array("f32", [found[n] for n in sorted(layer for layer in found if layer is not None)])
        for key, found in numbers.items()
    }


# What llama.cpp loads and computes: which tensors of a family it looks for, and what it does not do.
#
# A tensor that llama.cpp does not look for stops it from loading a file ("wrong number of tensors"), a missing one too.
# Source: ``load_arch_tensors`` and ``load_arch_hparams`` of the files in llama.cpp's ``src/models``; what may be there
# besides was found by loading files that have it.

#: Of vectors of other types: ggml/src/ggml-cpu/binary-ops.cpp, ``binary_op``, "unsupported types".
ABORTS = "llama.cpp computes with vectors of FP32 only: it loads this file, and aborts when it computes"

#: Keys of a YaRN scaling that are said in GGUF or say what llama.cpp does anyway.
_YARN_KEYS = frozenset({"rope_type", "type", "factor", "original_max_position_embeddings", "rope_theta"})

#: Numbers of a YaRN scaling that llama.cpp takes for these, whatever ``rope.scaling.yarn_beta_fast`` and ``_slow`` say:
#: it reads those two keys for other architectures only (v0.5.0; found by loading files that have them).
_YARN_FIXED: Mapping[str, float] = {"beta_fast": 32.0, "beta_slow": 1.0}


def known_patterns(config: ModelConfig) -> frozenset[str]:
    """Every canonical pattern that llama.cpp loads of a model."""
    return frozenset(required_layers(config)) | loaded(FAMILIES[config.family], LLAMA_CPP.row) | {HEAD}


def required_layers(config: ModelConfig) -> dict[str, Sequence[int]]:
    """Canonical pattern -> layers in which llama.cpp requires the tensor."""
    family = FAMILIES[config.family]
    found = {**everywhere(family, config.scope), **conditional(family, config.scope)}
    wanted = {name: layers for name, layers in found.items() if name not in loaded(family, LLAMA_CPP.row)}
    layers: dict[str, Sequence[int]] = dict.fromkeys(required(family, LLAMA_CPP.row), range(config.num_layers))
    for name in layers:
        weight, _, kind = name.rpartition(".")
        if kind == "bias":  # where its weight is, which may be nowhere
            layers[name] = found.get(f"{weight}.weight", ())
    return wanted | layers


def engine_reasons(
    config: ModelConfig, context: int, *, rope_dropped: bool, tied: bool = True, equal: bool = False
) -> Iterator[Reason]:
    """Why llama.cpp would compute something else than the source says.

    Args:
        context: context length in the output.
        rope_dropped: a flag leaves Llama 3's scaling out.
        tied: the output has no head of its own.
        equal: the head is byte for byte the embedding.
    """
    family = FAMILIES[config.family]
    for modifier in config.modifiers:
        yield modifier_reason(modifier, config, LLAMA_CPP.name, f", and llama.cpp computes {family.gguf} without it")
    scaling = config.rope_scaling
    if scaling is not None and not starts_behind(scaling, config, context):
        yield from _scaling_reasons(config, scaling, rope_dropped)
    if family.rope and config.head_dim % 2:
        yield Reason(f"heads of {config.head_dim} elements cannot form RoPE pairs{bracketed(config, *HEAD_SIZE)}")
    if family.rope and config.rotary_dim != config.head_dim and not family.turns_a_part:
        what = f"RoPE rotates {config.rotary_dim} of {config.head_dim} elements of a head; llama.cpp rotates all"
        yield Reason(what + bracketed(config, "rotary_dim"))
    if config.own.get("causal") is False and config.sliding_window and config.sliding_window < context:
        text = "llama.cpp's window ends before a token, and of one that sees in both ways around it"
        yield Reason(text + bracketed(config, "causal"))
    eps = bracketed(config, "norm_eps")
    for what, number in (("rope_theta", config.rope_theta), (f"the epsilon of norms{eps}", config.norm_eps or None)):
        if number is not None and not MIN_FLOAT32 <= number <= MAX_FLOAT32:
            yield Reason(f"{what} is {number:g}, which float32 cannot hold")
    if not config.norm_eps:
        yield no_epsilon(eps)
    if not context:
        yield Reason("the source names no context length (max_position_embeddings)", "--context N sets one")
    key_format = "" if config.raw else "gguf"
    yield from row_reasons(config, LLAMA_CPP, context=context, tied=tied, equal=equal, format=key_format)


def _scaling_reasons(config: ModelConfig, scaling: Mapping[str, Any], dropped: bool) -> Iterator[Reason]:
    kind = str(scaling.get("rope_type"))
    if kind == "llama3":
        if dropped:
            return
        if ROPE_FREQUENCIES not in known_patterns(config):
            yield Reason(f"{scaled(kind, config)}, which llama.cpp does not do for {FAMILIES[config.family].gguf}")
        elif positive_numbers(scaling, LLAMA3_NUMBERS) is None:
            yield Reason(f"{scaled(kind, config)} and lacks one of its numbers: " + ", ".join(LLAMA3_NUMBERS))
        return
    family = FAMILIES[config.family]
    written = {name.removeprefix("rope_") for name, row in family.parameters.items() if row.cells.get("gguf")}
    if "type" not in written:
        yield Reason(f"{scaled(kind, config)}, and ckconv knows no key of llama.cpp's {family.gguf} for it")
        return
    if kind == "longrope" and "long_factor" in written:
        sets = [scaling.get(key) for key in ("long_factor", "short_factor")]
        if any(not isinstance(factors, list) or len(factors) != config.rotary_dim // 2 for factors in sets):
            yield Reason(f"{scaled(kind, config)} and names no {config.rotary_dim // 2} long and short factors")
        return
    if kind not in ("linear", "yarn"):
        behind = f"--context {config.context_length} is where it starts" if kind == "dynamic" else ""
        hint = behind or without_sections(kind, config)
        yield Reason(f"{scaled(kind, config)}, which this version does not write to GGUF", hint)
        return
    if positive_numbers(scaling, ("factor",)) is None:
        yield Reason(f"{scaled(kind, config)} and names no factor")
    if kind == "yarn" and scaling.get("factor", 1) < 1:
        yield Reason(f"{scaled(kind, config)} with factor = {scaling['factor']:g}, which llama.cpp weights differently")
    if kind == "yarn":
        known, read = _YARN_KEYS | _YARN_FIXED.keys() | written | {*family.document.rope.noted}, ROPE_KEYS["yarn"]
        known |= {"mscale", "mscale_all_dim"} if "attention_factor" in written else set()  # it holds what they give
        for key in sorted(key for key in scaling if key not in known and not read.idle(key, scaling[key])):
            yield Reason(
                f"{scaled(kind, config)} with {key} = {scaling[key]!r}, for which llama.cpp's {family.gguf} has no key"
            )
        given = [key for key in (*_YARN_FIXED, "original_max_position_embeddings") if scaling.get(key) is not None]
        if positive_numbers(scaling, tuple(given)) is None:
            yield Reason(f"{scaled(kind, config)} with numbers that are none: " + ", ".join(given))
            return
        others = {
            key: fixed
            for key, fixed in _YARN_FIXED.items()
            if key not in written and scaling.get(key) not in (None, fixed)
        }
        hint = _by_flags(config, others) if others else ""
        for key, fixed in others.items():
            text = f"{scaled(kind, config)} with {key} = {scaling[key]!r}, llama.cpp's {family.gguf} {fixed:g}"
            yield Reason(text, hint)


def _by_flags(config: ModelConfig, fixed: Mapping[str, float]) -> str:
    """Way to a file that llama.cpp computes right where it is run with flags.

    Source: ``llama_context`` of llama-context.cpp, which takes a flag's number for that of the model.

    Args:
        fixed: key -> number that llama.cpp has for it.
    """
    whole: dict[str, Any] = dict(config.raw)
    tables = (
        (f"{start}{table}", document.get(table))
        for start, document in (("", whole), ("text_config.", whole.get("text_config")))
        if isinstance(document, dict)
        for table in TABLES_OF_ROPE
    )
    for path, table in tables:
        if isinstance(table, dict) and fixed.keys() <= table.keys():
            edits = " ".join(f"--set-meta {path}.{key}={number:g}" for key, number in fixed.items())
            flags = " ".join(f"--yarn-{key.replace('_', '-')} {table[key]:g}" for key in fixed)
            made = " and ".join(f"{number:g}" for number in fixed.values())
            what = "it" if len(fixed) == 1 else "them"
            return f"ckconv edit SRC DST/ {edits} makes {what} {made}, and llama.cpp's {flags} computes the model"
    return ""


# Which tensors a GGUF gets, and of which rows of the source each is made. Types and offsets come later.

#: Modules whose weights llama.cpp's converter keeps in FP32 whatever is asked for (``prepare_tensors``); ``conv_dw`` is
#: that of a conformer (``tensor_force_quant`` of ``Gemma4VisionAudioModel``).
_FP32_MODULES = frozenset(
    {
        "position_embd", "token_types", "ffn_gate_inp", "ffn_gate_inp_shexp", "altup_correct_coef",
        "altup_predict_coef", "conv_dw", "ssm_conv1d", "ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v",
        "time_mix_first", "time_mix_w1", "time_mix_w2", "time_mix_decay_w1", "time_mix_decay_w2",
        "time_mix_lerp_fused", "q_proj", "k_proj", "pos_h", "pos_w",
    }
)  # fmt: skip

_FP32_ENDS = ("_norm", ".indexer.proj", ".shortconv.conv")

#: What becomes of a spectrogram before the layers, likewise; of a picture in Gemma 3n; convolutions, positions of a SAM
#: (``tensor_force_quant`` of ``DeepseekOCRVisionModel``, as is ``pos_h``).
_FP32_STARTS = (
    "a.conv1d.", "a.input_projection.", "v.conv_stem.", "v.sam.neck.", "v.sam.net_", "v.sam.pos_embd.",
)  # fmt: skip

FREQUENCIES_NAME = "rope_freqs.weight"


class Entry(NamedTuple):
    """A tensor of the output.

    Attributes:
        name: in GGUF.
        canonical: what it holds, for reports.
        parts: the source tensors whose rows it holds, one after the other; none where ``content`` holds the bytes.
        shape: in elements, outermost first.
        layout: how canonical rows lie in it.
        fp32: llama.cpp loads nothing but FP32 here, or I32 of a table.
        table: of whole numbers.
    """

    name: str
    canonical: str
    parts: tuple[Tensor, ...]
    shape: tuple[int, ...]
    layout: Layout
    fp32: bool
    content: bytes | None = None
    table: bool = False

    @property
    def matrix(self) -> bool:
        """Whether the tensor is a matrix, which counts for the file type."""
        return len(self.shape) > 1


def stored_entries(planner: Planner) -> Sequence[Entry]:
    """The tensors of a GGUF as they are, whatever they mean.

    Tensors that adapters change are as llama.cpp wants them.
    """
    index = planner.index
    config = index.config
    if not (index.canonical_of or planner.options.drop):
        return made(len(index.stored), lambda at: _as_stored(planner, index.stored[at], ()))
    entries = []
    sizes = Sizes(FAMILIES[config.family], config.scope) if config else None
    for stored in index.stored:
        canonical = index.canonical_of.get(stored.name, ())
        dropped = [planner.dropped(name, stored.name) for name in canonical or (stored.name,)]
        if all(dropped):
            _check_needed(planner, canonical)
            planner.leave_out(stored.name, "--drop", stored.extent.nbytes)
            continue
        if any(dropped):
            planner.refuse(f"--drop names only a part of {stored.name}", "leave out --drop for it")
        if planner.options.tie == "tie" and canonical == (HEAD,) and planner.source.head_is_embedding:
            planner.leave_out(stored.name, "--tie: byte for byte the embedding", stored.extent.nbytes)
            continue
        parts = [index.tensors[name] for name in canonical]
        if any(part.merge and part.merge.base.packed for part in parts):
            planner.refuse(f"{stored.name} has a scale beside it, and an adapter changes its values", "--dequantize")
        # What an adapter changes is a merge, what it saved whole lies in a file of its own.
        if sizes and any(part.merge or part.arrays[0].extents[0].path != stored.extent.path for part in parts):
            entries.append(_entry(stored.name, parts, sizes))
            continue
        entries.append(_as_stored(planner, stored, canonical))
    there = {name for names in index.canonical_of.values() for name in names}
    if sizes and HEAD in index.tensors and HEAD not in there:  # an adapter has untied it
        entries.append(_entry(HEAD, [index.tensors[HEAD]], sizes))
    elif EMBEDDING in index.tensors and HEAD not in index.tensors and planner.unties("gguf"):
        entries.append(_head(index))
    return entries


def _as_stored(planner: Planner, stored: StoredTensor, canonical: tuple[str, ...]) -> Entry:
    config, name = planner.index.config, canonical[0] if len(canonical) == 1 else stored.name
    family, tensor = FAMILIES[config.family] if config else None, plain_tensor(name, stored)
    narrowed = planner.options.dtype in ("f16", "bf16") and _is_fp32(stored.name, tensor.name, family)
    fp32 = family is not None and (len(stored.shape) <= 1 or narrowed)
    return Entry(stored.name, tensor.name, (tensor,), stored.shape, tensor.layout, fp32)


def _check_needed(planner: Planner, canonical: tuple[str, ...]) -> None:
    """A flag may leave out what a model can do without, and nothing else."""
    config = planner.index.config
    family = FAMILIES[config.family] if config else None
    needed = required_layers(config) if config else {}
    for name in canonical:
        if family and parse(name).pattern in needed:
            label = planner.index.label(name)
            planner.refuse(f"llama.cpp loads no {family.gguf} without {label}, which --drop leaves out")


def canonical_entries(
    planner: Planner, config: ModelConfig, family: Family, zero_filled: frozenset[str]
) -> list[Entry]:
    """The tensors that llama.cpp looks for, out of canonical ones.

    What has no place, or is missing, is refused.

    Args:
        zero_filled: source tensors that only stand for ones that are not there.
    """
    index = planner.index
    planner.leave_out_by_rules()
    tensors = _selected(planner, config, zero_filled)
    entries: dict[str, Entry] = {}
    written, keys, sizes = names_of(family, "gguf").written, key_patterns(family), Sizes(family, config.scope)
    for tensor in tensors.values():
        name = parse(tensor.name)
        if name.pattern in keys:
            continue
        own = [with_layer(part.canonical, name.layer) for part in sizes.present(written[name.pattern].parts)]
        there = [tensors[part] for part in own if part in tensors]
        if len(there) == len(own):
            made = _entry(written[name.pattern].called(name.layer, sizes.scope), there, sizes)
            entries.setdefault(made.name, made)
        elif tensor.name.endswith(".bias"):
            absent = next(part for part in own if part not in tensors)
            planner.refuse(f"GGUF stores {tensor.label} in one tensor with {absent}, which is not there")
    for made in _fillers(sizes, tensors):
        entries.setdefault(made.name, made)
    _check_missing(planner, config, tensors, zero_filled)
    found = list(entries.values())
    if HEAD not in tensors and EMBEDDING in tensors and (planner.doubles_head(LLAMA_CPP) or planner.unties("gguf")):
        found.append(_head(index))
    return found


def _fillers(sizes: Sizes, tensors: Mapping[str, Tensor]) -> Iterator[Entry]:
    """Tensors in layers without them, where llama.cpp wants every layer's."""
    for found in names_of(sizes.family, "gguf").written.values():
        part = found.parts[0]
        if not part.instead:
            continue
        kind = "" if part.row.whole_name else part.canonical.rpartition(".")[2]
        other = canonical_pattern(sizes.family, part.instead, kind)
        for layer in range(sizes.layers(part.row)):
            instead = tensors.get(with_layer(other, layer))
            if instead is not None and not sizes.has(part.row, layer):
                yield _entry(with_layer(found.pattern, layer), [instead], sizes)


_NO_PLACE = "llama.cpp's {} has no place for"


def _selected(planner: Planner, config: ModelConfig, zero_filled: frozenset[str]) -> dict[str, Tensor]:
    """Canonical tensors that have a place and are not left out."""
    index, family, known = planner.index, FAMILIES[config.family], known_patterns(config)
    required = required_layers(config)
    row = family.engines.get(LLAMA_CPP.row)
    headless = row is not None and row.head == "none" and config.tied
    headless = headless or (planner.head_is_loaders() and not planner.doubles_head(LLAMA_CPP))
    tensors: dict[str, Tensor] = {}
    nameless: Counter[str] = Counter()
    for tensor in planner.remaining(index.tensors.values()):
        pattern = parse(tensor.name).pattern
        if tensor.name in zero_filled and pattern not in required:
            planner.leave_out(tensor.name, PLACEHOLDER, tensor.nbytes)
        elif tensor.name == HEAD and planner.options.tie == "tie" and planner.source.head_is_embedding:
            planner.leave_out(tensor.name, "--tie: byte for byte the embedding", tensor.nbytes)
        elif tensor.name == HEAD and headless and planner.source.head_is_embedding:
            planner.leave_out(tensor.name, "byte for byte the embedding: tied", tensor.nbytes)
        elif tensor.name == HEAD and family.in_huggingface.embeddings:
            planner.leave_out(tensor.name, "its rows by which texts are ranked are there", tensor.nbytes)
        elif pattern in known or tensor.name in family.in_huggingface.modules:
            tensors[tensor.name] = tensor
        else:
            nameless[pattern] += 1
    unmapped = Counter(map(planner.part, planner.unruled()))
    for pattern, count in (nameless + unmapped).items():
        more = f" ({count} tensors)" if count > 1 else ""
        hint = drop_hint(index, family, pattern, unruled=pattern in unmapped)
        # Of what ckconv has no rule for, it does not know what llama.cpp has.
        who = f"ckconv has no rule of {family.gguf} for" if pattern in unmapped else _NO_PLACE.format(family.gguf)
        planner.refuse(f"{who} {pattern}{more}{of_class(index.config)}", hint)
    return tensors


def _check_missing(
    planner: Planner, config: ModelConfig, tensors: Mapping[str, Tensor], zero_filled: frozenset[str]
) -> None:
    """Count missing layers before walking them: any number may be claimed."""
    bare = planner.bare_layers(config, tensors)
    if not tensors and planner.index.unknown:  # Ultravox as it is published
        hint = "ckconv.convert_tower writes what is there; the text model is a checkpoint of its own"
        planner.refuse("no tensor of the text model is there, only what it hears or sees with", hint)
        return
    if bare > 0:
        planner.refuse_bare(config.num_layers, bare, bracketed(config, "num_layers", format=planner.index.format))
        return
    missing: Counter[str] = Counter()
    behind = True
    for pattern, layers in sorted(required_layers(config).items()):
        lost = [n for n in (layers if "{n}" in pattern else [0]) if with_layer(pattern, n) not in tensors]
        missing[pattern], behind = len(lost), behind and all(n >= config.num_layers for n in lost)
    for pattern, layers in sorted(at_will(FAMILIES[config.family], LLAMA_CPP.row, config.scope).items()):
        names = [with_layer(pattern, n) for n in layers] if "{n}" in pattern else []
        absent = sum(name not in tensors and name not in zero_filled for name in names)
        if absent < len(names) and pattern not in missing:  # llama.cpp would compute without those that were lost
            missing[pattern], behind = absent, behind and not absent
    for pattern in rows_of_head(planner.index):
        if missing[pattern] and (reason := _no_rows(planner.index, config, pattern)):
            planner.reasons.append(reason)
            del missing[pattern]
    free = loaded(FAMILIES[config.family], LLAMA_CPP.row)
    unasked = {pattern: layers for pattern, layers in planner.lost().items() if pattern in free}
    counts = {**missing, **{pattern: len(layers) for pattern, layers in unasked.items()}}
    biases = {pattern: layers for pattern, layers in unasked.items() if is_bias(pattern)}
    hint = DROP_MTP if behind and any(missing.values()) else ""
    planner.refuse_missing(counts, tensor_keys(config, format=planner.index.format), hint, biases)


def _no_rows(index: TensorIndex, config: ModelConfig, name: str) -> Reason | None:
    """Why rows of a head are not there that its vocabulary has."""
    from ckconv.tokenizer.checkpoint import token_ids_beside

    tokens = FAMILIES[config.family].in_huggingface.embeddings[name]
    head = index.tensors.get(HEAD) or index.tensors.get(EMBEDDING)
    if head is None or not token_ids_beside(index, tokens).keys() >= {*tokens}:
        return None
    text = f"no tensor for {name}: it is the rows of {' and '.join(tokens)} of {head.source}"
    if head.dtype.kind is not Kind.FLOAT:
        way = "--to safetensors --dequantize decodes it: convert what that writes"
        return Reason(f"{text}, which is quantized", way)
    if not index.merged:
        return None
    return Reason(f"{text}, which an adapter changes", "--to safetensors merges it: convert what that writes")


def _entry(name: str, parts: list[Tensor], sizes: Sizes) -> Entry:
    return entry_of(name, parts, sizes, fp32=_is_fp32(name, parts[0].name, sizes.family))


def entry_of(name: str, parts: list[Tensor], sizes: Sizes, *, fp32: bool) -> Entry:
    """The tensor ``name`` of a GGUF out of those that it holds.

    Args:
        fp32: it is one of FP32, however many axes it has.
    """
    family, first = sizes.family, parse(parts[0].name)
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:]) if len(parts) > 1 else parts[0].shape
    layout = plain(*matrix_of(shape, F32))
    with suppress(shapes.AxesError):
        rule = names_of(family, "gguf").written[first.pattern]
        shape, layout = layout_in(rule, sizes, first.layer) or (shape, layout)
    shift = shift_of(family, first.pattern)
    canonical = parts[0].name if len(parts) == 1 else name
    layout = shifted(layout, shift) if shift else layout
    table = first.pattern in tables_of(family)
    return Entry(name, canonical, tuple(parts), shape, layout, fp32 or table or len(shape) == 1, table=table)


def is_fp32(name: str) -> bool:
    """Whether llama.cpp's converter always writes a tensor as FP32."""
    module, _, kind = name.rpartition(".")
    if name.startswith(_FP32_STARTS):
        return True
    return kind != "weight" or module.endswith(_FP32_ENDS) or module.rpartition(".")[2] in _FP32_MODULES


def _is_fp32(name: str, canonical: str, family: Family | None) -> bool:
    """Whether GGUF has this name in FP32, however many axes it has."""
    return is_fp32(name) and not (family and parse(canonical).pattern in narrow(family, LLAMA_CPP.row))


def _head(index: TensorIndex) -> Entry:
    """A head of its own, which is the embedding."""
    embedding = as_head(index.tensors[EMBEDDING], index.config)
    rows, cols = matrix_of(embedding.shape, F32)
    return Entry(HEAD, HEAD, (embedding,), embedding.shape, plain(rows, cols), False)


def numbers_entry(name: str, canonical: str, content: bytes) -> Entry:
    """Float32 numbers that no tensor of the source is."""
    count = len(content) // F32.size
    return Entry(name, canonical, (), (count,), plain(count, 1), True, content)


def nbytes_of(entry: Entry, dtype: DType) -> int:
    """Bytes of an entry in the file."""
    return dtype.nbytes(math.prod(entry.shape))


# NVFP4 in a GGUF: ``NAME.weight`` holds codes and scales, ``NAME.scale`` what all scales are multiplied with.
#
# ``NAME.scale`` is F32 ``[1]``, of stacked experts ``[experts]``; without it the number is 1. Source: the generic pass
# of ``load_tensors`` in ``src/llama-model.cpp`` and ``build_lora_mm`` in ``src/llama-graph.cpp``, which multiplies the
# product; ``_generate_nvfp4_tensors`` in ``conversion/base.py``. ``NAME.input_scale``, of activations, is loaded beside
# it and enters no product.

_NVFP4 = DTYPES["NVFP4"]
#: As ``inverse_scale`` of ``conversion/base.py`` of llama.cpp has it.
_ROUNDED = "NAME.scale is what NVFP4's scales are divided by in the source, inverted: rounded once, to float32"

_WEIGHT, _SCALE, _INPUT = ".weight", ".scale", ".input_scale"

#: What there may be, where nobody looked.
_UNSEEN = [math.nan]

#: Modules whose scale is looked for; a bias beside those of ``ffn`` ends llama.cpp (``build_ffn``).
_SCALED = frozenset(
    {"attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "ffn_gate_exps",
     "ffn_up_exps", "ffn_down_exps", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp", "output", "attn_gate",
     "ssm_in", "ssm_out", "ssm_alpha", "ssm_beta"}
)  # fmt: skip


def of_activations(stored: Sequence[StoredTensor]) -> tuple[DroppedTensor, ...]:
    """Scales of a matrix's inputs, which only a GGUF keeps."""
    found = [tensor for tensor in stored if tensor.name.endswith(_INPUT)]
    names = {tensor.name for tensor in stored} if found else set()
    beside = (tensor for tensor in found if tensor.name.removesuffix(_INPUT) + _WEIGHT in names)
    return tuple(DroppedTensor(tensor, NOT_WEIGHTS, copied=True) for tensor in beside)


def items(stored: Sequence[StoredTensor]) -> Iterable[Item]:
    """The tensors of a GGUF; a matrix and its scale are one."""
    by_name = {tensor.name: tensor for tensor in stored}
    for tensor in stored:
        weight = by_name.get(tensor.name.removesuffix(_SCALE) + _WEIGHT) if tensor.name.endswith(_SCALE) else None
        scale = by_name.get(tensor.name.removesuffix(_WEIGHT) + _SCALE)
        if weight is not None and _fits(weight, tensor):
            continue
        if scale is not None and tensor.name.endswith(_WEIGHT) and _fits(tensor, scale):
            yield Item(_scaled(tensor, scale), (tensor, scale))
        else:
            yield plain_item(tensor)


def has_scales(stored: Sequence[StoredTensor]) -> bool:
    """Whether a matrix has its scale beside it."""
    scales = {tensor.name.removesuffix(_SCALE): tensor for tensor in stored if tensor.name.endswith(_SCALE)}
    matrices = (tensor for tensor in stored if scales and tensor.dtype is _NVFP4)
    return any((scale := scales.get(one.name.removesuffix(_WEIGHT))) and _fits(one, scale) for one in matrices)


def _fits(weight: StoredTensor, scale: StoredTensor) -> bool:
    many = weight.shape[0] if len(weight.shape) > 2 else 1
    return weight.dtype is _NVFP4 and scale.dtype is F32 and scale.shape == (many,)


def _scaled(weight: StoredTensor, scale: StoredTensor) -> Tensor:
    rows, columns = math.prod(weight.shape[:-1]) // scale.shape[0], weight.shape[-1]
    nbytes = _NVFP4.nbytes(rows * columns)
    modules = []
    for number in range(scale.shape[0]):
        blocks = Extent(weight.extent.path, weight.extent.offset + number * nbytes, nbytes)
        factor = Extent(scale.extent.path, scale.extent.offset + number * F32.size, F32.size)
        arrays = (
            Array(Tensor(weight.name, weight.name, _NVFP4, (rows, columns), (blocks,), plain(rows, columns))),
            Array(Tensor(scale.name, scale.name, F32, (1, 1), (factor,), plain(1, 1)), 0),
        )
        modules.append(PackedMatrix(rows, arrays, _unpack))
    dtype = packed_type(FACTOR, columns)
    layout = plain(math.prod(weight.shape[:-1]), columns)
    return Tensor(weight.name, weight.name, dtype, weight.shape, (), layout, packed=tuple(modules))


def _unpack(tile: Tile) -> Rows:
    blocks = of_bytes(tile.own(0), _NVFP4)
    return rows_of(get_codes(blocks, _NVFP4), np.ascontiguousarray(blocks["d"]), tile.own(1))


def _divides(dtype: DType) -> bool:
    scheme = scheme_of(dtype)
    return scheme is not None and scheme.divisor


def scale_entries(planner: Planner, entries: Sequence[Entry], types: Sequence[DType]) -> list[Entry]:
    """Entries ``NAME.scale`` of matrices that are written as NVFP4.

    Of those that have one; what has no place for it is refused.

    A program that reads blocks and knows nothing of the other tensor takes wrong numbers for right ones, so a GGUF has
    one only where it is asked for, or where the source has it.
    """
    found: list[Entry] = []
    nowhere: list[str] = []
    separate: list[str] = []
    unasked: list[str] = []
    rounded = False
    requested = planner.options.tensor_scales or planner.index.format == "gguf"
    names = {entry.name for entry in entries}
    for entry, dtype in zip(entries, types, strict=True):
        parts = [part for part in entry.parts if is_scaled(part.dtype)]
        if dtype is not _NVFP4 or not parts:
            continue
        module = entry.name.removesuffix(_WEIGHT)
        kind = module.rpartition(".")[2]
        each = [planner.source.factors.get(part.name, _UNSEEN) for part in parts]
        if kind not in _SCALED or (kind.startswith("ffn") and f"{module}.bias" in names):
            nowhere.append(module)
        elif any(numbers != each[0] for numbers in each):
            separate.append(module)
        elif any(number != 1 for number in each[0]) and not requested:
            unasked.append(module)
        elif any(number != 1 for number in each[0]):
            content = pack(f"<{len(each[0])}f", *each[0])
            found.append(numbers_entry(module + _SCALE, parts[0].name, content))
            rounded |= _divides(parts[0].dtype) and not all(map(inverse, each[0]))
    if rounded:
        planner.notes.append(_ROUNDED)
    asking = f"--tensor-scales writes it beside them (NAME.scale), as llama.cpp reads it; {DECODE}"
    for why, modules, hint in (
        ("llama.cpp has no place for the scale of the scales of", nowhere, DECODE),
        ("parts of one matrix have scales of their own, and llama.cpp has one for it:", separate, DECODE),
        ("the scales of NVFP4 matrices have a scale, without which a reader gets other numbers:", unasked, asking),
    ):
        if modules:
            planner.refuse(f"{why} {and_more(modules)}", hint)
    return found
