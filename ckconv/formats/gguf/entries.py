"""Which tensors a GGUF gets, and of which rows of the source each is made. Types and places come later."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from struct import pack
from typing import Any, NamedTuple

from ckconv.core.config import ModelConfig
from ckconv.core.dtypes import F32, DType
from ckconv.core.layouts import Layout, plain, shifted
from ckconv.core.tensors import StoredTensor, Tensor, TensorIndex, made, matrix_of, parse, plain_tensor, with_layer
from ckconv.families.axes import AxesError
from ckconv.families.catalogue import FAMILIES
from ckconv.families.kinds import layout_in
from ckconv.families.loaders import LLAMA_CPP
from ckconv.families.names import names_of, shift_of
from ckconv.families.naming_schemes import beside_text
from ckconv.families.presence import narrow
from ckconv.families.schema import Family
from ckconv.families.sizes import Sizes
from ckconv.families.tied_head import as_head
from ckconv.families.words import of_class, said, tensors_said
from ckconv.formats.gguf.layer_keys import key_patterns
from ckconv.formats.gguf.rules import known_patterns, required_layers
from ckconv.plan.planner import EMBEDDING, HEAD, ROPE_FREQUENCIES, Planner
from ckconv.plan.probe import PLACEHOLDER

#: Modules whose weights llama.cpp's converter keeps in FP32 whatever is asked for (``prepare_tensors``); ``conv`` is
#: that of ``shortconv``.
_FP32_MODULES = frozenset(
    {
        "position_embd", "token_types", "ffn_gate_inp", "ffn_gate_inp_shexp", "altup_correct_coef",
        "altup_predict_coef", "conv", "ssm_conv1d", "ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v",
    }
)  # fmt: skip

FREQUENCIES_NAME = "rope_freqs.weight"


class Entry(NamedTuple):
    """One tensor of the output.

    Attributes:
        name: in GGUF.
        canonical: what it holds, for reports.
        parts: the source tensors whose rows it holds, one after the other; none where ``content`` holds the bytes.
        shape: in elements, outermost first.
        layout: how canonical rows lie in it.
        fp32: llama.cpp loads nothing but FP32 here.
    """

    name: str
    canonical: str
    parts: tuple[Tensor, ...]
    shape: tuple[int, ...]
    layout: Layout
    fp32: bool
    content: bytes | None = None

    @property
    def matrix(self) -> bool:
        """It is no vector: what the type of the file is called after."""
        return len(self.shape) > 1


def stored_entries(planner: Planner) -> Sequence[Entry]:
    """The tensors of a GGUF as they are, whatever they mean; those that adapters change as llama.cpp wants them."""
    index = planner.index
    config = index.config
    if not (index.canonical_of or planner.options.drop):
        return made(len(index.stored), lambda at: _as_stored(planner, index.stored[at], ()))
    entries = []
    for stored in index.stored:
        canonical = index.canonical_of.get(stored.name, ())
        dropped = [planner.dropped(name, stored.name) for name in canonical or (stored.name,)]
        if all(dropped):
            _check_needed(planner, canonical)
            planner.leave_out(stored.name, "--drop", stored.extent.nbytes)
            continue
        if any(dropped):
            planner.refuse(f"--drop names only a part of {stored.name}", f"--drop {stored.name}")
        if planner.options.tie == "tie" and canonical == (HEAD,) and planner.source.head_is_embedding:
            planner.leave_out(stored.name, "--tie: byte for byte the embedding", stored.extent.nbytes)
            continue
        parts = [index.tensors[name] for name in canonical]
        if any(part.merge and part.merge.base.packed for part in parts):
            planner.refuse(f"{stored.name} has a scale beside it, and an adapter changes its values", "--dequantize")
        # What an adapter changes is a merge, what it saved whole lies in a file of its own.
        if config and any(part.merge or next(part.arrays).extents[0].path != stored.extent.path for part in parts):
            entries.append(_entry(stored.name, parts, FAMILIES[config.family], config))
            continue
        entries.append(_as_stored(planner, stored, canonical))
    there = {name for names in index.canonical_of.values() for name in names}
    if config and HEAD in index.tensors and HEAD not in there:  # an adapter has untied it
        entries.append(_entry(HEAD, [index.tensors[HEAD]], FAMILIES[config.family], config))
    elif planner.options.tie == "untie" and EMBEDDING in index.tensors and HEAD not in index.tensors:
        entries.append(_head(index))
    return entries


def _as_stored(planner: Planner, stored: StoredTensor, canonical: tuple[str, ...]) -> Entry:
    config, name = planner.index.config, canonical[0] if len(canonical) == 1 else stored.name
    tensor = plain_tensor(name, stored)
    narrowed = planner.options.dtype in ("f16", "bf16") and _is_fp32(stored.name, tensor.name, config)
    fp32 = config is not None and (len(stored.shape) <= 1 or narrowed)
    return Entry(stored.name, tensor.name, (tensor,), stored.shape, tensor.layout, fp32)


def _check_needed(planner: Planner, canonical: tuple[str, ...]) -> None:
    """A flag may leave out what a model can do without, and nothing else."""
    config = planner.index.config
    family = FAMILIES[config.family] if config else None
    needed = required_layers(config) if config else {}
    for name in canonical:
        if family and parse(name).pattern in needed:
            planner.refuse(f"llama.cpp loads no {family.gguf} without {name}, which --drop leaves out")


def canonical_entries(
    planner: Planner, config: ModelConfig, family: Family, zero_filled: frozenset[str]
) -> list[Entry]:
    """The tensors that llama.cpp looks for, out of canonical ones. What has no place, or is missing, is refused.

    Args:
        zero_filled: source tensors that only stand for ones that are not there.
    """
    index = planner.index
    for item in index.dropped:
        planner.leave_out(item.stored.name, item.reason, item.stored.extent.nbytes)
    tensors = _selected(planner, config, zero_filled)
    entries: dict[str, Entry] = {}
    written, keys = names_of(family, "gguf").written, key_patterns(family)
    for tensor in tensors.values():
        name = parse(tensor.name)
        if name.pattern in keys:
            continue
        own = [with_layer(part, name.layer) for part in written[name.pattern].names]
        there = [tensors[part] for part in own if part in tensors]
        if len(there) == len(own):
            made = _entry(with_layer(written[name.pattern].pattern, name.layer), there, family, config)
            entries.setdefault(made.name, made)
        elif tensor.name.endswith(".bias"):
            absent = next(part for part in own if part not in tensors)
            planner.refuse(f"GGUF stores {tensor.name} in one tensor with {absent}, which is not there")
    _check_missing(planner, config, tensors)
    found = list(entries.values())
    wanted = planner.options.tie == "untie" or planner.doubles_head(LLAMA_CPP)
    if wanted and HEAD not in tensors and EMBEDDING in tensors:
        found.append(_head(index))
    return found


_NO_PLACE = "llama.cpp's {} has no place for"


def _selected(planner: Planner, config: ModelConfig, zero_filled: frozenset[str]) -> dict[str, Tensor]:
    """Canonical tensors that have a place and are not left out."""
    index, family, known = planner.index, FAMILIES[config.family], known_patterns(config)
    required = required_layers(config)
    row = family.engines.get(LLAMA_CPP.row)
    headless = row is not None and row.no_head and config.tied
    headless = headless or (planner.head_is_loaders() and not planner.doubles_head(LLAMA_CPP))
    tensors: dict[str, Tensor] = {}
    nameless: Counter[str] = Counter()
    unmapped: Counter[str] = Counter()
    for tensor in index.tensors.values():
        pattern = parse(tensor.name).pattern
        if planner.dropped(tensor.name, tensor.source):
            planner.leave_out(tensor.name, "--drop", tensor.nbytes)
        elif tensor.name in zero_filled and pattern not in required:
            planner.leave_out(tensor.name, PLACEHOLDER, tensor.nbytes)
        elif tensor.name == HEAD and planner.options.tie == "tie" and planner.source.head_is_embedding:
            planner.leave_out(tensor.name, "--tie: byte for byte the embedding", tensor.nbytes)
        elif tensor.name == HEAD and headless and planner.source.head_is_embedding:
            planner.leave_out(tensor.name, "byte for byte the embedding: tied", tensor.nbytes)
        elif pattern in known:
            tensors[tensor.name] = tensor
        else:
            nameless[pattern] += 1
    for stored in index.unknown:
        if planner.dropped(stored.name, *index.canonical_of.get(stored.name, ())):
            planner.leave_out(stored.name, "--drop", stored.extent.nbytes)
        elif not planner.leave_out_part(stored):
            unmapped[beside_text(config.raw, stored.name) or parse(stored.name).pattern] += 1
    for pattern, count in (nameless + unmapped).items():
        more = f" ({count} tensors)" if count > 1 else ""
        glob = pattern.replace("{n}", "*").replace("{e}", "*")
        hint = f"--drop '{glob}' leaves out what {family.name} does not have" if pattern in unmapped else ""
        # Of what ckconv has no rule for, it does not know what llama.cpp has.
        who = f"ckconv has no rule of {family.gguf} for" if pattern in unmapped else _NO_PLACE.format(family.gguf)
        planner.refuse(f"{who} {pattern}{more}{of_class(index.config)}", hint)
    return tensors


def _check_missing(planner: Planner, config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
    """Layers are counted before they are walked through: a configuration may claim any number of them."""
    bare = config.num_layers - len({parse(name).layer for name in tensors} - {None})
    if not tensors and planner.index.unknown:  # Ultravox as it is published
        hint = "ckconv.convert_tower writes what is there; the text model is a checkpoint of its own"
        planner.refuse("no tensor of the text model is there, only what it hears or sees with", hint)
        return
    if bare > 0:
        planner.refuse_bare(config.num_layers, bare, said(config, "num_layers", format=planner.index.format))
        return
    missing: Counter[str] = Counter()
    for pattern, layers in sorted(required_layers(config).items()):
        names = [with_layer(pattern, n) for n in layers] if "{n}" in pattern else [pattern]
        missing[pattern] = sum(name not in tensors for name in names)
    planner.refuse_missing(missing, tensors_said(config, format=planner.index.format))


def _entry(name: str, parts: list[Tensor], family: Family, config: ModelConfig) -> Entry:
    return entry_of(name, parts, family, config.scope, fp32=_is_fp32(name, parts[0].name, config))


def entry_of(name: str, parts: list[Tensor], family: Family, parameters: Mapping[str, Any], *, fp32: bool) -> Entry:
    """The tensor ``name`` of a GGUF out of those that it holds.

    Args:
        parameters: by the names of the family's file.
        fp32: it is one of FP32, however many axes it has.
    """
    pattern = parse(parts[0].name).pattern
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:]) if len(parts) > 1 else parts[0].shape
    layout = plain(*matrix_of(shape, F32))
    with suppress(AxesError):
        held = names_of(family, "gguf").written[pattern]
        shape, layout = layout_in(held, Sizes(family, parameters), parse(parts[0].name).layer) or (shape, layout)
    shift = shift_of(family, pattern)
    canonical = parts[0].name if len(parts) == 1 else name
    layout = shifted(layout, shift) if shift else layout
    return Entry(name, canonical, tuple(parts), shape, layout, fp32 or len(shape) == 1)


def is_fp32(name: str) -> bool:
    """A name of GGUF that llama.cpp's converter writes in FP32, however many axes the tensor has."""
    module, _, kind = name.rpartition(".")
    return kind != "weight" or module.endswith("_norm") or module.rpartition(".")[2] in _FP32_MODULES


def _is_fp32(name: str, canonical: str, config: ModelConfig | None) -> bool:
    """A name of GGUF that is written in FP32, however many axes it has."""
    if name.rpartition(".")[0].rpartition(".")[2] in _FP32_MODULES and config is not None:
        return parse(canonical).pattern not in narrow(FAMILIES[config.family], LLAMA_CPP.row)
    return is_fp32(name)


def _head(index: TensorIndex) -> Entry:
    """A head of its own, which is the embedding."""
    embedding = as_head(index.tensors[EMBEDDING], index.config)
    rows, cols = matrix_of(embedding.shape, F32)
    return Entry(HEAD, HEAD, (embedding,), embedding.shape, plain(rows, cols), False)


def frequencies_entry(content: bytes) -> Entry:
    """Llama 3's factors, which follow from the configuration."""
    return numbers_entry(FREQUENCIES_NAME, ROPE_FREQUENCIES, content)


def number_entries(tensors: Mapping[str, Sequence[float]]) -> list[Entry]:
    """Parameters that are tensors in GGUF."""
    return [numbers_entry(name, name, pack(f"<{len(numbers)}f", *numbers)) for name, numbers in tensors.items()]


def numbers_entry(name: str, canonical: str, content: bytes) -> Entry:
    """Float32 numbers that no tensor of the source is."""
    count = len(content) // F32.size
    return Entry(name, canonical, (), (count,), plain(count, 1), True, content)


def nbytes_of(entry: Entry, dtype: DType) -> int:
    """Bytes of an entry in the file."""
    return dtype.nbytes(math.prod(entry.shape))
