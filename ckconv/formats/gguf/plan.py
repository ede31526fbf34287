"""Plans of GGUFs, whole or split: text models, towers, diffusion."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from struct import pack

from ckconv.core.config import ModelConfig, behind_note, llama3_factors, longrope_note, starts_behind
from ckconv.core.layouts import BF16, COUNTED, DTYPES, F16, F32, F64, INTEGERS, WIDENS_TO_F32, DType, Kind, plain
from ckconv.core.lazy import NamedTuple, cached_property, replace
from ckconv.core.metadata import CONFIG_NAME, Value, array as int_array, as_read, scalar
from ckconv.core.tensors import (
    HEAD,
    ROPE_FREQUENCIES,
    Extent,
    Tensor,
    TensorIndex,
    Tower,
    made,
    parse,
    quantized_order,
    with_layer,
)
from ckconv.errors import CkconvError, InputError, UnsupportedError, UsageError, and_more, listed
from ckconv.families import catalog, parameters
from ckconv.families.expressions import ExpressionError
from ckconv.families.names import beside_text, interleaves, names_of
from ckconv.families.schema import LLAMA_CPP, Family
from ckconv.families.sizes import Scope, Sizes, expected, loaded, narrow
from ckconv.families.towers import (
    ORIGINAL_SHAPE,
    PREPROCESSOR,
    ROW,
    Diffusion,
    diffuses,
    diffusion_in,
    sinusoids_of,
    taken_otherwise,
    tower_family,
)
from ckconv.formats.gguf import values
from ckconv.formats.gguf.entries import (
    ABORTS,
    FREQUENCIES_NAME,
    Entry,
    canonical_entries,
    engine_reasons,
    entry_of,
    is_fp32,
    keys_of_tensors,
    known_patterns,
    nbytes_of,
    numbers_entry,
    required_layers,
    scale_entries,
    stored_entries,
)
from ckconv.formats.gguf.index import config_of_keys
from ckconv.formats.gguf.keys import (
    ARCHITECTURE_KEY,
    card_keys,
    container,
    copied,
    edited,
    gives_embeddings,
    mistyped_notes,
    module_reasons,
    pooling_keys,
)
from ckconv.io.files import own_texts
from ckconv.plan.planner import ORIGINAL, Planner, row_notes, row_reasons, surplus_reasons, unknown_architecture
from ckconv.plan.probe import placeholders, sinusoids
from ckconv.plan.quantizing import GgufTensor, Matrix, Picture, TypePlan
from ckconv.plan.steps import DECODE, Container, OutputFile, Plan, Step, decode_hint, missing_tensors, place, unmovable
from ckconv.quant.convert import Conversion, Run, decodable, side_by_side, writable
from ckconv.quant.packed import is_scaled
from ckconv.tokenizer.source import equal_tokens_of
from ckconv.tokenizer.vocabulary import PHI3_NAMES, PHI3_TOKENS

# The type that each tensor of a GGUF gets, or why it gets none.

#: Block types of intermediate results: ggml has no kernel for a matrix of them.
_NO_MATRIX = frozenset({"Q8_1", "Q8_K"})

#: The way out of FP8 that stands in a file by itself, as ComfyUI's: its factor, if any, is a tensor of another name.
_ROUNDED = "convert the checkpoint, in BF16 or F16, that it was rounded from"


class _Choice(NamedTuple):
    """The type of a tensor, or ``why`` it is refused.

    With how many ``groups`` that counts, and the flag for it.
    """

    dtype: DType
    why: str = ""
    hint: str = ""
    groups: int = 0


def types_of(
    planner: Planner, entries: Sequence[Entry], quantized: Mapping[str, DType], *, same_format: bool
) -> list[DType]:
    """The type of each entry; the planner gets the reasons to refuse.

    A refused type stands for itself.

    Args:
        quantized: types of entries that were asked for, by name.
        same_format: the source is a GGUF: what it holds can be held.
    """
    chosen: list[DType] = []
    for entry in entries:
        types: list[DType] = [] if entry.parts else [F32]
        for part in entry.parts:
            given = quantized.get(entry.name)
            choice = _Choice(given) if given is not None else _choice(planner, entry, part, same_format)
            looked = choice.why or given is not None or is_scaled(part.dtype) or planner.decoded(part)
            if looked and side_by_side(part.dtype) and (why := planner.unsound(part)):
                choice = _Choice(choice.dtype, why, ORIGINAL)
            if choice.why:
                planner.fault(choice.why, choice.hint, part.source, choice.groups)
            elif why := unmovable([part], entry.layout, choice.dtype):
                planner.fault(why, DECODE, part.source)
            types.append(choice.dtype)
        if len(set(types)) > 1 and set(types) <= WIDENS_TO_F32 and planner.dtype == "engine":
            types = [F32]
        if len(set(types)) > 1:
            mixed = " and ".join(f"{part.source} is {part.dtype}" for part in entry.parts)
            planner.fault(f"the parts of {entry.name} share one type", DECODE, mixed)
        chosen.append(types[0])
    planner.refuse_faults()
    return chosen


def _in_order(entry: Entry, quantized: DType | None) -> Entry:
    """Parts and layout of an entry in the order in which its blocks are made."""
    if quantized is None or len(entry.parts) != 1:
        return entry
    found = quantized_order(entry.parts[0], quantized, entry.layout)
    return entry._replace(parts=(found[0],), layout=found[1]) if found else entry


def _choice(planner: Planner, entry: Entry, tensor: Tensor, same_format: bool) -> _Choice:
    requested, source = planner.dtype, tensor.dtype
    if entry.table and not same_format:
        return _table(planner, tensor, entry.layout.shift == COUNTED)
    # A language model's FP8 is read as rows of a matrix, with their scales.
    if planner.index.config is not None and side_by_side(source) and len(tensor.shape) < 2:
        return _Choice(source, f"a vector of {source} is no matrix, and llama.cpp wants F32 here", ORIGINAL)
    if source.kind is Kind.BLOCK and planner.decoded(tensor):
        target = F32 if entry.fp32 else planner.decoded_as(tensor)
        return _Choice(target, "" if decodable(source) else f"no decoder for {source}", ORIGINAL)
    if requested == "keep":
        why = "" if source.ggml is not None else f"GGUF has no type for {source}"
        if entry.fp32 and source is not F32 and not same_format:
            return _Choice(source, why or f"llama.cpp computes with F32 here, and aborts at {source}", _WIDENED)
        return _Choice(source, why)
    if is_scaled(source):
        return _nvfp4(planner, entry, source)
    if side_by_side(source):
        return _repacked(planner, entry, source)
    if source.kind is Kind.BLOCK:
        useless = not same_format and (source.ggml is None or source.name in _NO_MATRIX)
        return _Choice(source, f"llama.cpp computes nothing with {source}" if useless else "", decode_hint(source))
    if entry.fp32:
        return _floats(source, F64 if source is F64 and requested == "engine" else F32, same_format)
    return _floats(source, DTYPES[requested.upper()] if requested != "engine" else source, same_format)


#: Hint where a kept type is none that llama.cpp computes with.
_WIDENED = "leave out --dtype keep: F32 holds every value of a narrower type"


def _floats(source: DType, target: DType, same_format: bool) -> _Choice:
    """The type of float64: the one that a flag names, if any."""
    if same_format and source not in WIDENS_TO_F32 and not (source is F64 and source is not target):
        return _Choice(source)  # an integer or F64 that an architecture wants
    if source.kind is Kind.FLOAT and target is not F64 and writable(source, target):
        return _Choice(target)
    hint = "--dtype f32" if source is F64 else _ROUNDED if source.name.startswith("F8_E") else ""
    hint = ORIGINAL if source.name in ("I8", "U8") else hint  # codes whose scales nobody found
    return _Choice(source, f"llama.cpp loads no {source} here", hint)


def _table(planner: Planner, tensor: Tensor, ids: bool) -> _Choice:
    """A table of whole numbers: I32 to llama.cpp, and I64 of ids of tokens."""
    if tensor.dtype not in INTEGERS:
        return _Choice(tensor.dtype, f"llama.cpp wants whole numbers here, and not {tensor.dtype}")
    if ids:
        return _Choice(DTYPES["I64"], planner.source.ids.get(tensor.name, ""))
    beyond = planner.source.beyond.get(tensor.name)
    if beyond is None:
        return _Choice(DTYPES["I32"])
    why = "which no I32 holds" if not -(1 << 31) <= beyond[1] < 1 << 31 else "which is no expert of the model"
    return _Choice(DTYPES["I32"], f"element {beyond[0]:,} is {beyond[1]:,}, {why}")


def _nvfp4(planner: Planner, entry: Entry, source: DType) -> _Choice:
    """NVFP4 with a tensor scale, where llama.cpp was seen to multiply by it."""
    config = planner.index.config
    row = catalog.FAMILIES[config.family].engines.get(LLAMA_CPP.row) if config else None
    if row is None or not row.scaled:
        return _Choice(source, "llama.cpp is not known to multiply NVFP4 by its scale in this family", DECODE)
    if entry.shape[-1] % DTYPES["NVFP4"].block:
        return _Choice(source, f"rows of {entry.shape[-1]:,} elements are not whole blocks", DECODE)
    return _Choice(DTYPES["NVFP4"])


def _repacked(planner: Planner, entry: Entry, source: DType) -> _Choice:
    """Smallest GGUF type that holds every number of a packed matrix."""
    from ckconv.quant.repack import blocks_for, no_block, none_of

    blocks = blocks_for(source, entry.shape[-1])
    if not blocks:
        return _Choice(source, no_block(source, entry.shape[-1]), DECODE)
    counts: Counter[DType] = Counter()
    for part in entry.parts:
        counts.update(planner.source.unfit.get(part.name, {}))
    best = min(blocks, key=lambda block: (counts[block], block.size / block.block))
    if counts[best]:
        return _Choice(source, f"groups have {none_of(blocks)}", DECODE, counts[best])
    return _Choice(best)


def file_type(entries: Sequence[Entry], types: Sequence[DType]) -> int:
    """``general.file_type``: the type of most matrices, all-FP32 for none."""
    counts: Mapping[DType, int] = Counter(
        dtype for entry, dtype in zip(entries, types, strict=True) if entry.matrix and not entry.fp32
    )
    best = max(counts, key=lambda dtype: (counts[dtype], dtype.kind is not Kind.FLOAT, dtype.size), default=F32)
    return best.file_type or 0


# Planning a GGUF, whole or split: out of another GGUF as it is, out of anything else as llama.cpp loads it.

#: What the file is called in a directory.
MODEL_NAME = "model.gguf"
_SUFFIX = ".gguf"

_TOKENS = "tokenizer.ggml.tokens"
_FILE_TYPE_KEY = "general.file_type"


def _group_keys(architecture: str) -> list[str]:
    """Keys of how many experts, and groups of them, there are."""
    return [f"{architecture}.expert_{word}" for word in ("count", "group_count", "group_used_count")]


class GgufPlanner(Planner):
    """Plans one GGUF, or the shards of a split set."""

    format = "gguf"

    def plan(self, *, only_reasons: bool = False) -> Plan:
        """Make the plan, without files where there are reasons to refuse.

        Nor with ``only_reasons``.

        Raises:
            UsageError: ``usage.meta``, a flag asks for metadata that would contradict the tensors.
            InputError: ``tokenizer.*``, a file beside the source is malformed.
        """
        entries = self._entries()
        self.quantized = self._quantized(entries)
        if self.quantized.types:
            entries = [_in_order(entry, self.quantized.types.get(entry.name)) for entry in entries]
        types = types_of(self, entries, self.quantized.types, same_format=self._same_format)
        self.note_growth(
            (part.dtype, dtype)
            for entry, dtype in zip(entries, types, strict=True)
            for part in entry.parts
            if not self.decoded(part)
        )
        if not self._same_format:
            scales = scale_entries(self, entries, types)
            entries, types = [*entries, *scales], [*types, *(F32 for _ in scales)]
        if self.reasons or only_reasons:
            return self.refused()
        if self.options.dtype == "keep" and any(
            len(entry.shape) < 2 and part.dtype is not F32 for entry in entries for part in entry.parts
        ):
            self.notes.append(ABORTS)
        metadata = self._edited(self._metadata(entries, types))
        self._check_set(metadata)
        if self.reasons:
            return self.refused()
        groups = self._dealt(entries, types, self._alignment(metadata))
        if len(groups) > values.MAX_SHARDS:
            self.refuse(f"{len(groups):,} files would be needed, a split set has at most {values.MAX_SHARDS:,}")
            return self.refused()
        if len(groups) > 1 and self._config is None and diffuses(self.index.architecture):  # ComfyUI-GGUF's loader.py
            self.refuse(f"programs that make pictures read one file, and --max-shard-size makes {len(groups):,}")
            return self.refused()
        files, contents = self._laid_out(entries, types, groups, metadata)
        interleaved = any(entry.layout.interleaved for entry in entries) or (
            self._same_format and self._config is not None and interleaves(catalog.FAMILIES[self._config.family])
        )
        rotary = self._config is not None and catalog.FAMILIES[self._config.family].rope
        return self.made(
            files,
            contents,
            rope_layout=("interleaved" if interleaved else "split") if rotary or interleaved else "",
            importance=self.quantized.importance(self._placed),
            errors=self.quantized.errors if self.options.quantize else None,
        )

    def _quantized(self, entries: Sequence[Entry]) -> TypePlan:
        """Types that ``--quantize`` gives; refuses unknown architectures."""
        quantizable = entries if self.options.quantize else ()
        if self.options.quantize and self._config is None and (model := diffusion_in(self.index)):
            self._placed = [GgufTensor(Matrix(e.name, e.shape), e.parts) for e in entries]
            return TypePlan(self, self._placed, None, Picture(model.stays, model.ends))
        placed = [GgufTensor(Matrix(e.name, e.shape), e.parts) for e in quantizable if e.parts]
        if self.options.quantize and self._config is None:
            what = f"the architecture {self.index.architecture!r}"
            if self.index.misfit is not None:
                raise self.index.misfit
            if not self.index.quantizer:  # which is the reason
                self.refuse(f"ckconv does not know {what}, so it cannot tell which of its tensors must stay floats")
            placed = []
        self._placed = placed
        return TypePlan(self, placed, self._config)

    @property
    def _same_format(self) -> bool:
        return self.index.format == "gguf"

    @cached_property
    def _config(self) -> ModelConfig | None:
        """The source's, of the family that a reader of the output takes it for."""
        config = self.index.config
        return replace(config, family=catalog.family_in_gguf(config.family)) if config is not None else None

    @cached_property
    def _context(self) -> int:
        return self.options.context or (self._config.context_length if self._config else 0)

    def _entries(self) -> Sequence[Entry]:
        """The tensors; notes every reason that does not depend on their types."""
        self._check_options()
        if self._same_format:
            return stored_entries(self)
        config = self._config
        family = catalog.FAMILIES[config.family] if config else None
        if config is None or family is None:
            self.reasons.append(unknown_architecture(self.index, self.options))
            return []
        if not family.gguf:
            row = family.engines.get("llama_cpp")
            why = row.why if row is not None and row.absent else ""
            self.refuse(why or f"llama.cpp has no architecture for {family.name}")
            return []
        self.refuse_parted()
        entries = canonical_entries(self, config, family, placeholders(self.index))
        rope_dropped = self.dropped(ROPE_FREQUENCIES)
        tied = all(entry.name != HEAD for entry in entries)
        equal = self.source.head_is_embedding or HEAD not in self.index.tensors
        self.reasons += engine_reasons(config, self._context, rope_dropped=rope_dropped, tied=tied, equal=equal)
        if (own := self.index.config) is not None and own.family != config.family:  # what the file cannot say
            more = row_reasons(own, LLAMA_CPP, context=self._context, tied=tied, equal=equal)
            self.reasons += [reason for reason in more if reason not in self.reasons]
        self.notes += row_notes(config, LLAMA_CPP, context=self._context, tied=tied)
        self.reasons += [*module_reasons(self.index), *surplus_reasons(self.index, self.dropped)]
        if config.rope_scaling and starts_behind(config.rope_scaling, config, self._context):
            self.notes.append(behind_note(config))
        self._check_head(config)
        factors = llama3_factors(config) if ROPE_FREQUENCIES in known_patterns(config) else None  # others scale by one
        if factors and ROPE_FREQUENCIES not in self.index.tensors:
            if rope_dropped:
                self.leave_out(ROPE_FREQUENCIES, "--drop", 0)
            else:
                entries.insert(0, numbers_entry(FREQUENCIES_NAME, ROPE_FREQUENCIES, factors))
        if not self.reasons:
            numbers = parameters.number_tensors(config, family)
            entries[:0] = [numbers_entry(name, name, pack(f"<{len(its)}f", *its)) for name, its in numbers.items()]
            if (config.rope_scaling or {}).get("rope_type") == "longrope":
                self.notes.append(longrope_note(config))
        return entries

    def _check_options(self) -> None:
        family = catalog.FAMILIES[self._config.family] if self._config else None
        layout = self.options.rope_layout
        here = "interleaved" if family and interleaves(family) else "split"
        if family and family.rope and layout in ("split", "interleaved") and layout != here:
            self.refuse(
                f"a GGUF does not say how its Q and K rows lie, so {family.gguf} files have to be {here}",
                "--rope-layout engine is what every reader of GGUF takes them for",
            )
        learned = family is not None and "position_embedding" in family.tensors
        if family and learned and self._context != (self._config.context_length if self._config else 0):
            self.refuse(f"positions of {family.name} are learned: --context cannot change how many there are")
        if family is None and self._same_format and self.options.dtype in ("f16", "bf16"):
            if self.index.misfit is not None:
                raise self.index.misfit
            self.refuse(
                f"ckconv does not know the architecture {self.index.architecture!r},"
                " so it cannot tell which of its tensors must stay FP32"
            )
        if self.options.tie == "tie" and HEAD in self.index.tensors and not self.source.head_is_embedding:
            self.refuse("--tie: the output head is not byte for byte the embedding")

    def _check_head(self, config: ModelConfig) -> None:
        there = HEAD in self.index.tensors
        free = self.keeps_head() or self.source.head_is_embedding or self.dropped(HEAD)
        if config.tied and there and not free:
            word = catalog.tie_word(config) or "tie_word_embeddings"
            self.refuse(
                f"{word} ties the output head to the embeddings, but another matrix is stored as the head",
                "--drop output.weight ties it",
            )
        if config.tied is False and not there and self.options.tie != "untie" and not gives_embeddings(self.index):
            word = catalog.tie_word(config)
            text = (
                f"the output head is not tied to the embeddings ({word}), but" if word else "the model has a head, and"
            )
            self.refuse_headless(f"{text} there is none", word)

    def _metadata(self, entries: Sequence[Entry], types: Sequence[DType]) -> dict[str, Value]:
        if self._same_format:
            return self._copied(entries, types)
        config = self._config
        assert config is not None
        family = catalog.FAMILIES[config.family]
        from ckconv.tokenizer.gguf import keys_of_index

        tokenizer = keys_of_index(self.index, config.vocab_size)
        self.notes += tokenizer.notes
        experts = sum(t.elements for name, t in self.index.tensors.items() if ".experts." in name)
        label = parameters.size_label(sum(t.elements for e in entries for t in e.parts), config.num_experts, experts)
        model = parameters.model_keys(config, family, self._context) | pooling_keys(self.index, family, self.notes)
        words: dict[str, Value] = {f"{family.gguf}.vocab_size": scalar("u32", config.vocab_size)}
        model |= {} if tokenizer.tokens else words
        words |= {key: value for key, value in tokenizer.metadata.items() if not value.type.startswith("arr")}
        self._read_back(config, family, model | words, entries)
        self._check_groups(config, family.gguf, model)
        template: dict[str, Value] = {}
        rounded: list[str] = []
        if self.index.format == "bump":
            text = self.index.metadata.get("chat_template")  # of config.json beside it
            template = {"tokenizer.chat_template": scalar("str", text)} if isinstance(text, str) and text else {}
            lacks = "license and authors" if template else "chat template, license and authors"
            self.notes.append(f"a bump file says nothing of {lacks}: those keys are missing")
        numbers = keys_of_tensors(self, family, rounded)
        if rounded and not self.options.allow_lossy:
            self.refuse(
                f"{and_more(rounded)} is no float32, as which a GGUF has it ({next(iter(numbers))})",
                "--allow-lossy rounds it",
            )
        return {
            **parameters.general_keys(family, self._name(tokenizer.tokens), label),
            **card_keys(self.index),
            **model,
            **numbers,
            **parameters.type_keys(self._file_type(entries, types)),
            **template,
            **tokenizer.metadata,
            **self._weighed(),
        }

    def _check_groups(self, config: ModelConfig, architecture: str, keys: Mapping[str, Value]) -> None:
        """Refuse groups of experts at which llama.cpp stops.

        Source: asserts of ``llama_model_base::load_hparams`` (llama-model.cpp).
        """
        names = _group_keys(architecture)
        made = as_read({name: keys[name] for name in names if name in keys})
        experts, groups, chosen = (int(made[name].value) if name in made else 0 for name in names)
        if groups and not (groups < experts and (groups == 1 or (experts % groups == 0 and 0 < chosen < groups))):
            text = f"llama.cpp stops at {groups} groups of {experts} experts of which {chosen} are chosen"
            format = self.index.format
            of_source = [key for name in ("groups", "groups_used") for key in catalog.field_keys(config, name, format)]
            ones = " ".join(f"--set-meta {key}=1" for key in of_source)
            hint = f"ckconv edit SRC DST/ {ones} chooses the same experts" if groups == chosen and ones else ""
            self.refuse(f"{text}{catalog.bracketed(config, 'groups', 'groups_used', format=format)}", hint)

    def _read_back(
        self, config: ModelConfig, family: Family, metadata: Mapping[str, Value], entries: Sequence[Entry]
    ) -> None:
        """Refuse numbers that are read otherwise out of the keys."""
        tensors = [(entry.name, entry.shape, entry.content or b"") for entry in entries]
        try:
            read = config_of_keys(self.index.path, family, metadata, tensors)
        except (InputError, UnsupportedError) as error:
            keys = catalog.stated_in(config, error.message, self.index.format) or CONFIG_NAME
            self.refuse(f"{keys} would not be read back: {error.message}", catalog.copied_by(self.index.format))
            return
        factors = any(entry.canonical == ROPE_FREQUENCIES for entry in entries)
        another = self.options.drop and read.family != config.family  # tensors tell the two apart
        hint = "leave out --drop" if another else catalog.copied_by(self.index.format)
        for text in catalog.read_otherwise(read, config, of=self.index.format, factors=factors):
            self.refuse(text, hint)

    def _check_set(self, metadata: Mapping[str, Value]) -> None:
        """A flag names no token that is not there."""
        found = as_read({key: metadata[key] for key in metadata.keys() & {_TOKENS}})
        count = getattr(found[_TOKENS].value, "count", 0) if found else 0
        count = count if isinstance(count, int) else 0
        for key, _ in self.options.set_meta if count else ():
            value = as_read({key: metadata[key]})[key].value
            if key.endswith("_token_id") and type(value) is int and value >= count:
                self.refuse(f"--set-meta {key}={value}: there are {count:,} tokens", f"the last one is {count - 1}")

    def _unloaded(self, entries: Sequence[Entry]) -> str:
        """Note on a tower that llama.cpp does not load."""
        parts = sorted({beside_text({}, entry.name) for entry in entries} - {""}) if self.index.config else []
        if not parts:
            return ""
        flags = " ".join(f"--drop '{part}'" for part in parts)
        return f"llama.cpp does not load a text model's file with {', '.join(parts)}; convert {flags} leaves them out"

    def _copied(self, entries: Sequence[Entry], types: Sequence[DType]) -> dict[str, Value]:
        """The source's keys, with the file type that the tensors now have."""
        metadata = copied(self.index.metadata)
        gone = self.sizes_left_out(self._config) if self._config else []
        named = catalog.hyperparameters(self.index.architecture) if gone else []  # reads every family with that word
        for key in (key for name, key in named if name in gone):
            metadata.pop(f"{self.index.architecture}.{key}", None)
        self.notes += filter(None, [equal_tokens_of(self.index), self._unloaded(entries)])
        pairs = {(part.dtype, to) for entry, to in zip(entries, types, strict=True) for part in entry.parts}
        changed = any(before is not after for before, after in pairs)
        if self.options.imatrix or (changed and not any(one is to and to.block > 1 for one, to in pairs)):
            metadata = {key: value for key, value in metadata.items() if not key.startswith(parameters.IMPORTANCE)}
        if self.options.quantize:
            metadata |= parameters.type_keys(self._file_type(entries, types)) | self._weighed()
        elif changed and _FILE_TYPE_KEY in metadata:
            metadata[_FILE_TYPE_KEY] = scalar("u32", file_type(entries, types))
        if self.options.context:
            architecture = self.index.architecture
            if not architecture:
                self.refuse(f"the file has no {ARCHITECTURE_KEY}, by which the key of the context is called")
            scaling = (self._config.rope_scaling if self._config else None) or {}
            if scaling.get("rope_type") == "yarn":  # without the key, llama.cpp takes the context for it
                original = scalar("u32", int(scaling["original_max_position_embeddings"]))
                metadata.setdefault(f"{architecture}.rope.scaling.original_context_length", original)
            metadata[f"{architecture}.context_length"] = scalar("u32", self.options.context)
        return metadata

    def _weighed(self) -> dict[str, Value]:
        file, source = self.options.imatrix, self.source
        return parameters.importance_keys(file.name, len(source.importance), *source.importance_of) if file else {}

    def _file_type(self, entries: Sequence[Entry], types: Sequence[DType]) -> int:
        """The file type: of the recipe, else that of most matrices."""
        return file_type(entries, types) if self.quantized.file_type is None else self.quantized.file_type

    def _edited(self, metadata: Mapping[str, Value]) -> dict[str, Value]:
        own, config = self._same_format, self._config
        architecture = self.index.architecture if own or config is None else catalog.FAMILIES[config.family].gguf
        made = edited(self, metadata, architecture, ruled=config is not None, own=own)
        self.notes += mistyped_notes(made, architecture, config.family if config else "") if own else ()
        left = [key for key in made if key.startswith(f"{architecture}.")]
        if own and left and made.get(ARCHITECTURE_KEY) != metadata.get(ARCHITECTURE_KEY):
            them = and_more(left)
            self.notes.append(f"{ARCHITECTURE_KEY} is another; keys of {architecture} stay as they are: {them}")
        elif own and config is None and self.index.tower is None:
            changed = [change.key for change in self.changes if change.key.startswith(f"{architecture}.")]
            if changed:
                text = f"no family of ckconv has the tensors of this {architecture}: what they allow"
                self.notes.append(f"{text} {and_more(changed)} to say was not checked")
        elif own and config is not None and made != metadata:
            self._note_edits(config, catalog.FAMILIES[config.family], metadata, made)
        return made

    def _note_edits(
        self, config: ModelConfig, family: Family, before: Mapping[str, Value], metadata: Mapping[str, Value]
    ) -> None:
        """Note edits that give a model which nothing here converts."""
        if any(metadata.get(key) != before.get(key) for key in _group_keys(family.gguf)):
            self._check_groups(config, family.gguf, metadata)
        if parameters.number_tensors(config, family):  # their values are not at hand
            return
        tensors = [(tensor.name, tensor.shape, b"") for tensor in self.index.stored]
        try:
            read = config_of_keys(self.index.path, family, metadata, tensors)
            meant, written = (parameters.model_keys(one, family, one.context_length) for one in (config, read))
        except (ExpressionError, InputError, UnsupportedError) as error:
            text = error.message if isinstance(error, CkconvError) else str(error)
            self.notes.append(f"ckconv reads no {family.name} out of the copy: {text}")
            return
        what = f"ckconv converts no such {family.name}, and llama.cpp computes another or does not load it"
        self._check_layers(config, read)
        follow = (row for row in family.parameters.values() if row.value is not None)
        for key in sorted(f"{family.gguf}.{cell.key}" for row in follow for cell in row.key_cells("gguf")):
            if key in written and metadata.get(key) == before.get(key) == meant.get(key) != written[key]:
                was, made = (as_read({key: one})[key].value for one in (before[key], written[key]))
                keys = ", ".join(key for key, _ in self.options.set_meta)
                text = f"--set-meta of {keys} makes {key} {made}, and it is {was}"
                raise UsageError("usage.meta", text, hint=f"--set-meta {key}={made}, too, sets it")
        for key in meant.keys() & metadata.keys():
            none = key.endswith(parameters.ZERO_IS_NONE) and as_read({key: metadata[key]})[key].value == 0
            if meant[key] == before.get(key) and written.get(key) != metadata[key] != before[key] and not none:
                self.notes.append(f"{key} says what neither other keys nor the tensors say: {what}, or looks at others")
        for modifier in sorted({*read.modifiers} - {*config.modifiers}):
            self.notes.append(f"{modifier}: {what}")
        tied = HEAD not in self.index.tensors
        rows = partial(row_reasons, loader=LLAMA_CPP, context=self._context, tied=tied, equal=tied, format="gguf")
        known = {reason.text for reason in rows(config)}
        self.notes += [reason.text for reason in rows(read) if reason.text not in known]

    def _check_layers(self, before: ModelConfig, after: ModelConfig) -> None:
        """Refuse an edit by which other layers have tensors than the file's."""
        there, free = self.index.tensors.keys(), loaded(catalog.FAMILIES[before.family], LLAMA_CPP.row)
        was, now = (
            {
                with_layer(pattern, layer)
                for pattern, layers in required_layers(config).items()
                for layer in (layers if "{n}" in pattern and pattern not in free else ())
            }
            for config in (before, after)
        )
        if (now - was) - there or (was - now) & there:
            keys = ", ".join(change.key for change in self.changes)
            text = f"{keys} {'together say' if self.changes[1:] else 'says'} which layers have which tensors"
            raise UsageError("usage.meta", f"{text}, and a copy has the source's")

    def _name(self, tokens: frozenset[str]) -> str:
        """The name of the source, or of its directory."""
        path = str((self._config.raw if self._config else {}).get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
        name = own_texts(self.index).get("name") or parameters.display_name(
            path or parameters.directory_name(self.index.path)
        )
        name = name.encode("utf-8", "replace").decode()  # a name in a file system may be no text
        plain = name.lower()
        if tokens and any(word in plain for word in PHI3_NAMES) and PHI3_TOKENS - tokens:
            self.notes.append(f"general.name is left out: llama.cpp wants words of Phi 3's vocabulary in {name!r}")
            return ""
        return name

    def _alignment(self, metadata: Mapping[str, Value]) -> int:
        return int(self.index.facts["alignment"]) if values.ALIGNMENT_KEY in metadata else values.DEFAULT_ALIGNMENT

    def _dealt(self, entries: Sequence[Entry], types: Sequence[DType], alignment: int) -> list[range]:
        """Entries of each file in order, up to the size limit as in gguf-split."""
        limit = self.options.max_shard_bytes
        groups: list[range] = []
        first = filled = 0
        for at, (entry, dtype) in enumerate(zip(entries, types, strict=True)):
            nbytes = values.align_up(nbytes_of(entry, dtype), alignment)
            if limit and at > first and filled + nbytes > limit:
                groups.append(range(first, at))
                first, filled = at, 0
            filled += nbytes
        return [*groups, range(first, len(entries))]

    def _laid_out(
        self, entries: Sequence[Entry], types: Sequence[DType], groups: Sequence[range], metadata: Mapping[str, Value]
    ) -> tuple[tuple[OutputFile, ...], Callable[[], Container]]:
        """Lay out all files; only a set's first has the model's metadata."""
        files, own, alignments = [], [], []
        for number, group in enumerate(groups):
            keys = dict(metadata) if number == 0 else {}
            if len(groups) > 1:
                keys[values.SPLIT_NO] = scalar("u16", number)
                keys[values.SPLIT_TENSORS] = scalar("i32", len(entries))
                keys[values.SPLIT_COUNT] = scalar("u16", len(groups))
            alignment = self._alignment(keys)
            at = values.align_up(
                values.header_bytes(keys, ((entries[n].name, len(entries[n].shape)) for n in group)), alignment
            )
            offsets = array("Q")
            for n in group:
                offsets.append(place(at))
                at = values.align_up(at + nbytes_of(entries[n], types[n]), alignment)
            steps = made(len(group), partial(self._step, entries, types, group, offsets))
            files.append(OutputFile(self._file_name(number, len(groups)), at, steps))
            own.append(keys)
            alignments.append(alignment)
        return tuple(files), partial(container, files, own, alignments)

    def _file_name(self, number: int, count: int) -> str:
        name = self.options.file_name or MODEL_NAME
        if count == 1:
            return name
        shard = values.parse_shard_name(name)
        return str(values.ShardName(shard.stem if shard else name.removesuffix(_SUFFIX), number + 1, count))

    def _step(
        self, entries: Sequence[Entry], types: Sequence[DType], group: Sequence[int], offsets: Sequence[int], at: int
    ) -> Step:
        entry, dtype = entries[group[at]], types[group[at]]
        extent = Extent(self.index.path, offsets[at], nbytes_of(entry, dtype))
        target = Tensor(entry.canonical, entry.name, dtype, entry.shape, (extent,), entry.layout)
        if entry.content is not None:
            return Step(entry.name, target, None, None, entry.content)
        conversions = [
            self.quantized.conversion(
                entry.name,
                Conversion(part.dtype, dtype, entry.layout.shift - part.layout.shift, factor=part.layout.scale),
            )
            for part in entry.parts
        ]
        runs = self.quantized.runs(
            entry.name,
            [Run(part, how, 0, part.layout.rows) for part, how in zip(entry.parts, conversions, strict=True)],
        )
        return Step(entry.name, target, entry.parts[0], runs[0].conversion, runs=runs if len(runs) > 1 else ())


# Planning an ``mmproj``: the tower of a model that sees, as llama.cpp loads it beside the text model.

#: Kernels over pixels, and what merges parts of a picture: ``tensor_force_quant`` of ``MmprojModel`` stores them as F16
#: in a file of F16 and as F32 in any other, as BF16 in none. A family's row ``narrow`` names what may be F16.
_PIXELS = ("v.patch_embd.", "mm.patch_merger.")
#: Kernels of one channel each: ``ggml_conv_2d_dw`` multiplies them with what it makes F16 of, unless they are BF16.
_ONE_CHANNEL = (".dw_start.conv.weight", ".dw_mid.conv.weight", ".down_conv.weight")


class TowerPlanner(GgufPlanner):
    """Plans an mmproj."""

    def plan(self, *, only_reasons: bool = False) -> Plan:
        """The plan.

        Raises:
            UsageError: ``usage.meta``, as of any GGUF.
            InputError: ``model.config``, what the file would say cannot be computed from the parameters.
        """
        if self.options.quantize:
            self.refuse("--quantize is for the text model: a tower is written in the types that it has")
        try:
            return super().plan(only_reasons=only_reasons)
        except ExpressionError as error:
            raise InputError("model.config", str(error), path=self.index.path) from None

    @cached_property
    def _tower(self) -> Tower:
        assert self.index.tower is not None
        return self.index.tower

    @cached_property
    def _written(self) -> parameters.NewKeys:
        return parameters.write(tower_family(self._tower.family), self._tower.parameters, "gguf")

    def _entries(self) -> list[Entry]:
        family, index = tower_family(self._tower.family), self.index
        scope = Scope(family, self._tower.parameters)
        for sentence in taken_otherwise(self._tower, self._written, "gguf", "llama.cpp"):
            self.refuse(sentence)
        row = family.engines[LLAMA_CPP.row]
        for condition in (*row.right_if, *row.same_if):
            if not condition.expression.value(values := self._tower.parameters):
                if condition in row.right_if:
                    self.refuse(condition.message(values), condition.way_out(values))
                else:
                    self.notes.append(condition.message(values))
        for modifier in self._tower.modifiers:
            self.refuse(f"{modifier} of the tower changes the computation, and llama.cpp has no place for it")
        self._note_keys(family)
        self.refuse_crossed(index.tensors)
        self.leave_out_by_rules()
        surplus = Counter(parse(name).pattern for name in self.unruled())
        there = Counter(parse(name).pattern for name in index.tensors)
        wanted = expected(family, "gguf", self._tower.parameters)
        missing = [*missing_tensors({name: count - there[name] for name, count in wanted.items()})]
        for pattern, count in surplus.items():
            more = f" ({count} tensors)" if count > 1 else ""
            glob = pattern.replace("{n}", "*").replace("{e}", "*")
            text = f"llama.cpp's tower of {family.model_type} has no place for {pattern}{more}"
            self.refuse(text, "" if missing else f"--drop '{glob}'")  # it may be what is missing, by another name
        entries = self._placed_tensors(scope)
        for pattern in there - Counter(wanted):
            self.refuse(f"there is a {pattern}, and the class has none with what config.json says")
        self.reasons += missing
        return entries

    def _note_keys(self, family: Family) -> None:
        """Keys that are not carried."""
        beside = f"{PREPROCESSOR}."
        keys = [*self._tower.unread]
        for file, named in (
            (CONFIG_NAME, [key for key in keys if not key.startswith(beside)]),
            ("preprocessor_config.json", [key.removeprefix(beside) for key in keys if key.startswith(beside)]),
        ):
            if named:
                unread = ", ".join(listed(named))
                self.notes.append(f"no known class of {family.model_type} reads these keys of {file}: {unread}")
        if self._tower.others:
            others = ", ".join(other.removeprefix(beside) for other in self._tower.others)
            self.notes.append(f"llama.cpp takes what the model says, not preprocessor_config.json: {others}")

    def _placed_tensors(self, scope: Scope) -> list[Entry]:
        """The tensors under the names of GGUF."""
        family, tensors = tower_family(self._tower.family), self.index.tensors
        written, entries, sizes = names_of(family, "gguf").written, dict[str, Entry](), Sizes(family, scope)
        wide: list[str] = []
        for name in map(parse, tensors):
            rule = written[name.pattern]
            called = rule.called(name.layer, scope)
            parts = [tensors[part] for one in rule.names if (part := with_layer(one, name.layer)) in tensors]
            if len(parts) == len(rule.names):
                short = name.pattern in narrow(family, LLAMA_CPP.row) and all(part.dtype is F16 for part in parts)
                named = name.pattern in narrow(family, LLAMA_CPP.row) or called.startswith(_PIXELS)
                fp32 = not short and (named or is_fp32(called))
                if called.endswith(_ONE_CHANNEL):
                    stays = self.dtype in ("engine", "keep") and all(part.dtype is not F32 for part in parts)
                    if not stays and self.dtype not in ("f16", "bf16"):
                        wide.append(called)
                entries.setdefault(called, entry_of(called, parts, sizes, fp32=fp32))
        if wide:
            self.refuse(f"llama.cpp computes these kernels in F16 or BF16 alone, and stops at F32: {and_more(wide)}")
        for called, shape in sinusoids_of(self._tower).items():
            table = sinusoids(*shape).astype("<f4")
            made = numbers_entry(called, called, table.tobytes())
            entries[called] = made._replace(shape=table.shape, layout=plain(*table.shape))
        return list(entries.values())

    def _metadata(self, entries: Sequence[Entry], types: Sequence[DType]) -> dict[str, Value]:
        family = tower_family(self._tower.family)
        label = parameters.size_label(sum(math.prod(entry.shape) for entry in entries), 0, 0)
        return {
            **parameters.general_keys(family, self._name(frozenset()), label, "mmproj"),
            **parameters.keys_of_entries(family, self._written.entries),
            **parameters.type_keys(self._file_type(entries, types)),
        }


# Planning a GGUF of a model that diffuses: tensors under their own names, in their own order.

#: Tensors of so many elements and fewer are FP32, and those of one axis (``handle_tensors`` of city96's
#: ``tools/convert.py``); those of F16 stay what they are.
_SMALL = 1024
#: Tensors of fewer elements keep their rows (``REARRANGE_THRESHOLD`` there).
_CUT = 512
#: Axes of a tensor of ggml (``GGML_MAX_DIMS`` of ``ggml.h``); one more is read by programs for videos alone.
_MOST_AXES = 4


class DiffusionPlanner(GgufPlanner):
    """Plans it."""

    @cached_property
    def _model(self) -> Diffusion:
        found = diffusion_in(self.index)
        assert found is not None
        return found

    def _entries(self) -> list[Entry]:
        model, names = self._model, self.index.canonical_of
        entries: list[Entry] = []
        of_five: dict[str, Entry] = {}
        left = {item.stored.name: item.reason for item in self.index.dropped}
        seen: set[str] = set()
        for stored in self.index.stored:
            name = names[stored.name][0] if stored.name in names else ""
            if name in seen:
                continue  # another array of the same matrix
            seen |= {name} if name else set()
            if self.dropped(stored.name, name):
                self.leave_out(stored.name, "--drop", stored.extent.nbytes)
            elif stored.name in left:
                self.leave_out(stored.name, left[stored.name], stored.extent.nbytes)
            elif not name:
                self.leave_out(stored.name, f"of another model, beside {model.prefix}*", stored.extent.nbytes)
            elif any(part in name for part in model.ignored):
                self.leave_out(stored.name, "no weight of the model", stored.extent.nbytes)
            elif (axes := len(self.index.tensors[name].shape)) <= _MOST_AXES:
                entries.append(self._entry(name))
            elif model.five and axes == _MOST_AXES + 1:
                of_five[name] = self._entry(name)._replace(fp32=True)
            else:
                text = f"GGUF has tensors of {_MOST_AXES} axes at most, and {stored.name} has {axes}"
                self.refuse(text, "--to safetensors copies the model as it is")
        if not entries:
            self.refuse(f"no tensor of {model.name} would be in it")
        behind = (of_five.pop(f"{entry.name.removesuffix('.bias')}.weight", None) for entry in entries)  # their biases
        ordered = [one for pair in zip(entries, behind, strict=True) for one in pair if one]
        return [*ordered, *of_five.values()]

    def _entry(self, name: str) -> Entry:
        tensor = self.index.tensors[name]
        shape, elements = tensor.shape, math.prod(tensor.shape)
        small = len(shape) <= 1 or elements <= _SMALL
        fp32 = tensor.dtype in (F32, BF16) and (small or any(part in name for part in self._model.full))
        whole = not shape or shape[-1] % ROW == 0 or elements % ROW
        if self._model.in_blocks and len(shape) > 1 and elements >= _CUT and not whole:
            shape = (elements // ROW, ROW)
            if tensor.dtype.kind is Kind.FLOAT:
                tensor = replace(tensor, layout=plain(*shape))  # which may become blocks
        return Entry(name, name, (tensor,), shape, tensor.layout, fp32)

    def _quantized(self, entries: Sequence[Entry]) -> TypePlan:
        found = super()._quantized(entries)
        for matrix, (part, *_) in self._placed:
            if matrix.name in found.types and matrix.shape != part.shape and part.packed:
                text = f"{part.source} has rows that are cut anew before they are quantized, and is packed"
                self.refuse(text, "--to safetensors --dequantize decodes it, and --quantize then quantizes that file")
        return found

    def _metadata(self, entries: Sequence[Entry], types: Sequence[DType]) -> dict[str, Value]:
        keys = {"general.architecture": scalar("str", self._model.name)}
        keys |= dict(reversed(parameters.type_keys(self._file_type(entries, types)).items()))
        cut = [entry for entry in entries if entry.shape != entry.parts[0].shape]
        return keys | {f"{ORIGINAL_SHAPE}{one.name}": int_array("i32", one.parts[0].shape) for one in cut}


# Which planner makes a GGUF of what is no text model.


def planner_of(index: TensorIndex) -> type[Planner] | None:
    """The planner of a tower or a diffusion model; ``None`` for GGUFs, text."""
    if index.format == "gguf" or index.config is not None:
        return None
    if index.tower is not None:
        return TowerPlanner
    if not index.quantizer and diffusion_in(index):
        return DiffusionPlanner
    return None
