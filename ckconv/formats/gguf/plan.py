"""Planning a GGUF, whole or split: out of another GGUF as it is, out of anything else as llama.cpp loads it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from ckconv.core.config import ModelConfig, behind_note, llama3_factors, longrope_note, starts_behind
from ckconv.core.dtypes import F32, DType
from ckconv.core.metadata import Value, scalar
from ckconv.core.tensors import Extent, Tensor, made
from ckconv.families.catalogue import FAMILIES, told_by_architecture
from ckconv.families.gguf_metadata import (
    directory_name,
    display_name,
    general_keys,
    importance_keys,
    model_keys,
    number_tensors,
    size_label,
    type_keys,
)
from ckconv.families.loaders import LLAMA_CPP
from ckconv.families.names import interleaves
from ckconv.formats.gguf.entries import (
    Entry,
    canonical_entries,
    frequencies_entry,
    nbytes_of,
    number_entries,
    stored_entries,
)
from ckconv.formats.gguf.keys import ARCHITECTURE_KEY, card_keys, copied, edited
from ckconv.formats.gguf.layer_keys import keys_of_tensors
from ckconv.formats.gguf.pooling import gives_embeddings, module_reasons, pooling_keys
from ckconv.formats.gguf.rules import ABORTS, engine_reasons
from ckconv.formats.gguf.scales import scale_entries
from ckconv.formats.gguf.spec import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAX_SHARDS,
    SPLIT_COUNT,
    SPLIT_NO,
    SPLIT_TENSORS,
    ShardName,
    align_up,
    header_bytes,
    parse_shard_name,
)
from ckconv.formats.gguf.types import file_type, types_of
from ckconv.formats.gguf.write import container
from ckconv.plan.checks import row_notes
from ckconv.plan.container import Container
from ckconv.plan.planner import HEAD, ROPE_FREQUENCIES, Planner, unknown_architecture
from ckconv.plan.probe import placeholders
from ckconv.plan.quantising import Placed, Quantised
from ckconv.plan.recipes import Matrix
from ckconv.plan.source_rules import surplus_reasons
from ckconv.plan.steps import OutputFile, Plan, Step, place
from ckconv.quant.convert import Conversion, Run
from ckconv.tokenizer.source import equal_tokens_of

if TYPE_CHECKING:
    from ckconv.tokenizer.gguf import TokenizerKeys

#: What the file is called in a directory.
MODEL_NAME = "model.gguf"
_SUFFIX = ".gguf"

_TOKENS = "tokenizer.ggml.tokens"
_FILE_TYPE_KEY = "general.file_type"


class GgufPlanner(Planner):
    """Plans one GGUF, or the shards of a split set."""

    format = "gguf"

    def plan(self, *, only_reasons: bool = False) -> Plan:
        """The plan; with reasons to refuse, or with ``only_reasons``, without files.

        Raises:
            UsageError: ``usage.meta``, a flag asks for metadata that would contradict the tensors.
            InputError: ``tokenizer.*``, a file beside the source is malformed.
        """
        entries = self._entries()
        self.quantised = self._quantised(entries)
        types = types_of(self, entries, self.quantised.types, same_format=self._same_format)
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
        if len(groups) > MAX_SHARDS:
            self.refuse(f"{len(groups):,} files would be needed, a split set has at most {MAX_SHARDS:,}")
            return self.refused()
        files, contents = self._laid_out(entries, types, groups, metadata)
        interleaved = any(entry.layout.interleaved for entry in entries) or (
            self._same_format and self._config is not None and interleaves(FAMILIES[self._config.family])
        )
        rotary = self._config is not None and FAMILIES[self._config.family].rope
        return Plan(
            self.index,
            self.format,
            0,
            self.options,
            files=files,
            left_out=tuple(self.left_out),
            notes=tuple(self.notes),
            rope_layout=("interleaved" if interleaved else "split") if rotary or interleaved else "",
            contents=contents,
            importance=self.quantised.importance(self._placed),
            errors=self.quantised.errors if self.options.quantize else None,
            changes=self.changes,
        )

    def _quantised(self, entries: Sequence[Entry]) -> Quantised:
        """The types that ``--quantize`` gives; no file is made of a family that nobody knows how to quantise."""
        asked = entries if self.options.quantize else ()
        placed = [Placed(Matrix(e.name, e.shape), e.parts) for e in asked if e.parts and not e.fp32]
        if self.options.quantize and self._config is None:
            what = f"the architecture {self.index.architecture!r}"
            if self.index.misfit is not None:
                raise self.index.misfit
            self.refuse(f"ckconv does not know {what}, so it cannot tell which of its tensors must stay floats")
            placed = []
        self._placed = placed
        return Quantised(self, placed, self._config)

    @property
    def _same_format(self) -> bool:
        return self.index.format == "gguf"

    @cached_property
    def _config(self) -> ModelConfig | None:
        """The source's, of the family that a reader of the output takes it for."""
        config = self.index.config
        return replace(config, family=told_by_architecture(config.family)) if config is not None else None

    @cached_property
    def _context(self) -> int:
        return self.options.context or (self._config.context_length if self._config else 0)

    def _entries(self) -> Sequence[Entry]:
        """The tensors; notes every reason that does not depend on their types."""
        self._check_options()
        if self._same_format:
            return stored_entries(self)
        config = self._config
        family = FAMILIES[config.family] if config else None
        if config is None or family is None:
            self.reasons.append(unknown_architecture(self.index))
            return []
        if not family.gguf:
            self.refuse(f"llama.cpp has no architecture for {family.name}")
            return []
        entries = canonical_entries(self, config, family, placeholders(self.index))
        rope_dropped = self.dropped(ROPE_FREQUENCIES)
        tied = all(entry.name != HEAD for entry in entries)
        self.reasons += engine_reasons(config, self._context, rope_dropped=rope_dropped, tied=tied)
        self.notes += row_notes(config, LLAMA_CPP, context=self._context, tied=tied)
        self.reasons += [*module_reasons(self.index), *surplus_reasons(self.index, self.dropped)]
        if config.rope_scaling and starts_behind(config.rope_scaling, config, self._context):
            self.notes.append(behind_note(config))
        self._check_head(config)
        factors = llama3_factors(config)
        if factors and ROPE_FREQUENCIES not in self.index.tensors:
            if rope_dropped:
                self.leave_out(ROPE_FREQUENCIES, "--drop", 0)
            else:
                entries.insert(0, frequencies_entry(factors))
        if not self.reasons:
            entries[:0] = number_entries(number_tensors(config, family))
            if (config.rope_scaling or {}).get("rope_type") == "longrope":
                self.notes.append(longrope_note(config))
        return entries

    def _check_options(self) -> None:
        family = FAMILIES[self._config.family] if self._config else None
        asked = self.options.rope_layout
        here = "interleaved" if family and interleaves(family) else "split"
        if family and family.rope and asked in ("split", "interleaved") and asked != here:
            self.refuse(
                f"a GGUF does not say how its Q and K rows lie, so {family.gguf} files have to be {here}",
                "--rope-layout engine is what every reader of GGUF takes them for",
            )
        if family and not family.rope and self._context != (self._config.context_length if self._config else 0):
            self.refuse(f"positions of {family.name} are learned: --context cannot change how many there are")
        if family is None and self._same_format and self.options.dtype in ("f16", "bf16"):
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
            self.refuse(
                "tie_word_embeddings ties the output head to the embeddings, but another matrix is stored as the head",
                "--drop output.weight ties it",
            )
        if config.tied is False and not there and self.options.tie != "untie" and not gives_embeddings(self.index):
            self.refuse(
                "the output head is not tied to the embeddings (tie_word_embeddings), but there is none",
                '"tie_word_embeddings": true in config.json says that it is',
            )

    def _metadata(self, entries: Sequence[Entry], types: Sequence[DType]) -> dict[str, Value]:
        if self._same_format:
            return self._copied(entries, types)
        config = self._config
        assert config is not None
        family = FAMILIES[config.family]
        from ckconv.tokenizer.documents import tokenizer_files
        from ckconv.tokenizer.gguf import tokenizer_keys

        tokenizer = tokenizer_keys(tokenizer_files(self.index), config.vocab_size)
        self.notes += tokenizer.notes
        experts = sum(t.elements for name, t in self.index.tensors.items() if ".experts." in name)
        label = size_label(sum(t.elements for e in entries for t in e.parts), config.num_experts, experts)
        model = model_keys(config, family, self._context) | pooling_keys(self.index, family, self.notes)
        model |= {} if tokenizer.tokens else {f"{family.gguf}.vocab_size": scalar("u32", config.vocab_size)}
        if self.index.format == "bump":
            self.notes.append("a bump file says nothing of chat template, licence and authors: those keys are missing")
        return {
            **general_keys(family, self._name(tokenizer), label),
            **card_keys(self.index),
            **model,
            **keys_of_tensors(self.index, family),
            **type_keys(self._file_type(entries, types)),
            **tokenizer.metadata,
            **self._weighed(),
        }

    def _check_set(self, metadata: Mapping[str, Value]) -> None:
        """A flag names no token that is not there."""
        from ckconv.tokenizer.made import as_read

        found = as_read({key: metadata[key] for key in metadata.keys() & {_TOKENS}})
        count = found[_TOKENS].value.count if found else 0
        for key, _ in self.options.set_meta if count else ():
            value = as_read({key: metadata[key]})[key].value
            if key.endswith("_token_id") and type(value) is int and value >= count:
                self.refuse(f"--set-meta {key}={value}: there are {count:,} tokens", f"the last one is {count - 1}")

    def _copied(self, entries: Sequence[Entry], types: Sequence[DType]) -> dict[str, Value]:
        """The source's keys; the type of the file follows the tensors where those change."""
        metadata = copied(self.index.metadata)
        self.notes += filter(None, [equal_tokens_of(self.index)])
        changed = any(part.dtype is not to for entry, to in zip(entries, types, strict=True) for part in entry.parts)
        if self.options.quantize:
            metadata |= type_keys(self._file_type(entries, types)) | self._weighed()
        elif changed and _FILE_TYPE_KEY in metadata:
            metadata[_FILE_TYPE_KEY] = scalar("u32", file_type(entries, types))
        if self.options.context:
            architecture = self.index.architecture
            scaling = (self._config.rope_scaling if self._config else None) or {}
            if scaling.get("rope_type") == "yarn":  # without the key, llama.cpp takes the context for it
                original = scalar("u32", int(scaling["original_max_position_embeddings"]))
                metadata.setdefault(f"{architecture}.rope.scaling.original_context_length", original)
            metadata[f"{architecture}.context_length"] = scalar("u32", self.options.context)
        return metadata

    def _weighed(self) -> dict[str, Value]:
        file, source = self.options.imatrix, self.source
        return importance_keys(file.name, len(source.importance), *source.importance_of) if file else {}

    def _file_type(self, entries: Sequence[Entry], types: Sequence[DType]) -> int:
        """What llama-quantize says of a recipe, otherwise what most matrices are."""
        return file_type(entries, types) if self.quantised.file_type is None else self.quantised.file_type

    def _edited(self, metadata: Mapping[str, Value]) -> dict[str, Value]:
        own, config = self._same_format, self._config
        architecture = self.index.architecture if own or config is None else FAMILIES[config.family].gguf
        made = edited(self, metadata, architecture, ruled=config is not None, own=own)
        left = [key for key in made if key.startswith(f"{architecture}.")]
        if own and left and made[ARCHITECTURE_KEY] != metadata.get(ARCHITECTURE_KEY):
            them = f"{left[0]} and {len(left) - 1} more" if len(left) > 1 else left[0]
            self.notes.append(f"{ARCHITECTURE_KEY} is another; keys of {architecture} stay as they are: {them}")
        return made

    def _name(self, tokenizer: TokenizerKeys) -> str:
        """What the source calls itself, or the directory that it is in."""
        from ckconv.tokenizer.vocabulary import PHI3_NAMES, PHI3_TOKENS

        said = str((self._config.raw if self._config else {}).get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
        name = display_name(said or directory_name(self.index.path))
        name = name.encode("utf-8", "replace").decode()  # a name in a file system may be no text
        plain = name.lower()
        if tokenizer.tokens and any(word in plain for word in PHI3_NAMES) and PHI3_TOKENS - tokenizer.tokens:
            self.notes.append(f"general.name is left out: llama.cpp wants words of Phi 3's vocabulary in {name!r}")
            return ""
        return name

    def _alignment(self, metadata: Mapping[str, Value]) -> int:
        return int(self.index.facts["alignment"]) if ALIGNMENT_KEY in metadata else DEFAULT_ALIGNMENT

    def _dealt(self, entries: Sequence[Entry], types: Sequence[DType], alignment: int) -> list[range]:
        """The entries of each file, filled as llama.cpp's gguf-split does: in order, none above the limit but alone."""
        limit = self.options.max_shard_bytes
        groups: list[range] = []
        first = filled = 0
        for at, (entry, dtype) in enumerate(zip(entries, types, strict=True)):
            nbytes = align_up(nbytes_of(entry, dtype), alignment)
            if limit and at > first and filled + nbytes > limit:
                groups.append(range(first, at))
                first, filled = at, 0
            filled += nbytes
        return [*groups, range(first, len(entries))]

    def _laid_out(
        self, entries: Sequence[Entry], types: Sequence[DType], groups: Sequence[range], metadata: Mapping[str, Value]
    ) -> tuple[tuple[OutputFile, ...], Callable[[], Container]]:
        """Places for everything. Only the first file of a set has the model's metadata."""
        files, own, alignments = [], [], []
        for number, group in enumerate(groups):
            keys = dict(metadata) if number == 0 else {}
            if len(groups) > 1:
                keys[SPLIT_NO] = scalar("u16", number)
                keys[SPLIT_TENSORS] = scalar("i32", len(entries))
                keys[SPLIT_COUNT] = scalar("u16", len(groups))
            alignment = self._alignment(keys)
            at = align_up(header_bytes(keys, ((entries[n].name, len(entries[n].shape)) for n in group)), alignment)
            places = array("Q")
            for n in group:
                places.append(place(at))
                at = align_up(at + nbytes_of(entries[n], types[n]), alignment)
            steps = made(len(group), partial(self._step, entries, types, group, places))
            files.append(OutputFile(self._file_name(number, len(groups)), at, steps))
            own.append(keys)
            alignments.append(alignment)
        return tuple(files), partial(container, files, own, alignments)

    def _file_name(self, number: int, count: int) -> str:
        name = self.options.file_name or MODEL_NAME
        if count == 1:
            return name
        shard = parse_shard_name(name)
        return str(ShardName(shard.stem if shard else name.removesuffix(_SUFFIX), number + 1, count))

    def _step(
        self, entries: Sequence[Entry], types: Sequence[DType], group: Sequence[int], places: Sequence[int], at: int
    ) -> Step:
        entry, dtype = entries[group[at]], types[group[at]]
        extent = Extent(self.index.path, places[at], nbytes_of(entry, dtype))
        target = Tensor(entry.canonical, entry.name, dtype, entry.shape, (extent,), entry.layout)
        if entry.content is not None:
            return Step(entry.name, target, None, None, entry.content)
        conversions = [
            self.quantised.conversion(
                entry.name,
                Conversion(part.dtype, dtype, entry.layout.shift - part.layout.shift, factor=part.layout.scale),
            )
            for part in entry.parts
        ]
        runs = self.quantised.runs(
            entry.name,
            [Run(part, how, 0, part.layout.rows) for part, how in zip(entry.parts, conversions, strict=True)],
        )
        return Step(entry.name, target, entry.parts[0], runs[0].conversion, runs=runs if len(runs) > 1 else ())
