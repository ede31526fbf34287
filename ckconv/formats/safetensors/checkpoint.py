"""Planning a checkpoint of safetensors: what transformers and mlx-lm share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from ckconv.core.dtypes import DTYPES, F32, DType, Kind
from ckconv.core.metadata import METADATA, text_of_card
from ckconv.core.tensors import MetadataKind, Tensor, TensorIndex, chained, parse
from ckconv.families.catalogue import FAMILIES
from ckconv.families.diffusion import diffuses
from ckconv.families.huggingface_classes import needs
from ckconv.families.keys import CONSUMERS
from ckconv.families.loaders import Loader
from ckconv.families.names import GGUF, names_of
from ckconv.families.naming_schemes import FUSIONS, NAMES_KEY, beside_text, part_hint, scheme_names
from ckconv.families.schema import Family
from ckconv.families.tied_head import as_head
from ckconv.families.words import of_source
from ckconv.formats.safetensors.checkpoint_agreement import unfit_notes
from ckconv.formats.safetensors.checkpoint_config import CHECKPOINTS, Said, config_json, source_document
from ckconv.formats.safetensors.checkpoint_kept import carried_files, kept_modules, left_by_rules, unpacks
from ckconv.formats.safetensors.checkpoint_metadata import metadata_of
from ckconv.formats.safetensors.checkpoint_names import Entry, Spelling
from ckconv.formats.safetensors.checkpoint_pieces import floats_of, module_of, spare_of
from ckconv.formats.safetensors.checkpoint_rules import loader_reasons, loading_notes, option_reasons
from ckconv.formats.safetensors.checkpoint_tokenizer import pooling_of_source, tokenizer_plan
from ckconv.formats.safetensors.parts import parts_beside
from ckconv.formats.safetensors.rope_factors import scaling_of
from ckconv.formats.safetensors.shards import lay_out, single_name
from ckconv.formats.safetensors.write import Checkpoint, container
from ckconv.io.card import card_of
from ckconv.options import Options
from ckconv.plan.checks import modifier_reason, row_notes
from ckconv.plan.decoding import DECODE, decode_hint
from ckconv.plan.pieces import Module, Piece, apart
from ckconv.plan.planner import EMBEDDING, HEAD, ROPE_FREQUENCIES, Planner, unknown_architecture
from ckconv.plan.probe import PLACEHOLDER, SourceFacts, placeholders
from ckconv.plan.source_rules import surplus_reasons
from ckconv.plan.steps import Plan
from ckconv.quant.convert import Action, decodable, writable
from ckconv.quant.triples import triple_of


class CheckpointPlanner(Planner):
    """A checkpoint under the names of its loader, or under others where they are asked for.

    Attributes:
        loader: what loads it.
        scheme: what ``--names hf`` means here.
        written_by: the value of ``format`` in the files' metadata.
        always_index: a single file has an index, too.
        library: what a model card calls the library that loads it.
        within: ``model_type`` of the document around the text model's; empty where that stands alone.
    """

    loader: Loader
    scheme: str
    written_by: str
    always_index: bool
    library: str
    within: str = ""

    def __init__(self, index: TensorIndex, options: Options, source: SourceFacts) -> None:
        super().__init__(index, options, source)
        self.config = index.config
        self.family: Family | None = FAMILIES[self.config.family] if self.config else None
        self.document = source_document(index)
        self.tensors, self.types = dict[str, Tensor](), dict[str, DType]()
        self.tied = True
        self.whole, self.beside = index, dict[str, bytes]()  # with what stands beside the text model, if anything does
        self.rope_scaling: Mapping[str, Any] | None = None
        self._type_faults: dict[tuple[str, str], list[str]] = {}
        self._counts: Counter[str] = Counter()

    def plan(self, *, only_reasons: bool = False) -> Plan:
        """The plan; with reasons to refuse, or with ``only_reasons``, without files.

        Raises:
            UsageError: ``usage.meta``, metadata that the readers rely on is to be changed.
        """
        metadata = metadata_of(self.index, self.options, self.written_by)
        kept = self._keeps_names()
        if self.config is None and not kept:
            self.reasons.append(unknown_architecture(self.index))
            return self.refused()
        for dropped in left_by_rules(self, kept):
            self.leave_out(dropped.stored.name, dropped.reason, dropped.stored.extent.nbytes)
        if self.config is not None:
            self.reasons += option_reasons(self.index, self.config, self.options)
        modules = kept_modules(self) if kept else self._renamed()
        for (why, hint), names in self._type_faults.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            count = f"{self._counts[why]:,} " if self._counts[why] else ""
            self.refuse(f"{count}{why}: {names[0]}{more}", hint)
        return self.refused() if self.reasons or only_reasons else self._finish(modules, kept, metadata)

    def _keeps_names(self) -> bool:
        """The tensors are written under the names they have, as they are stored."""
        o, source = self.options, self.index
        if source.metadata_kind is MetadataKind.TYPED and self.config is None and o.names == GGUF:
            return True
        if source.format not in CHECKPOINTS and self.config is None and diffuses(source.architecture):
            return all(stored.dtype.kind is Kind.FLOAT for stored in source.stored)
        if source.format not in CHECKPOINTS or o.names != "hf" or o.fuse or o.tie or source.merged:
            return False
        if self.config is None:
            if source.misfit is not None and source.format != self.format:
                return False  # a file may contradict its rules; what is made for another library does not
            decodes = bool(o.dequantize or o.decode)
            same = source.format == self.format and not (decodes and not source.packed)
            return (same or not self._quantised()) and not (decodes and source.quantizer)
        spelled = source.metadata.get(f"{METADATA}.{NAMES_KEY}", "hf")
        decoding = any(triple_of(t.dtype) and self.decoded(t) for t in source.tensors.values())
        return not decoding and source.format == self.format and spelled == "hf" and self._fused_as_its_class()

    def _fused_as_its_class(self) -> bool:
        """What the source stores as one tensor is what the family's class stores so."""
        assert self.family is not None
        written = names_of(self.family, "hf").written
        stored = ((names, written.get(parse(names[0]).pattern)) for names in self.index.canonical_of.values() if names)
        return all(held is None or (len(names) > 1) == (len(held.parts) > 1) for names, held in stored)

    def _quantised(self) -> bool:
        """The source has modules of several arrays."""
        return self.index.format == "mlx" and any(stored.name.endswith(".scales") for stored in self.index.stored)

    def _renamed(self) -> Sequence[Module]:
        """Every canonical tensor under the family's names."""
        assert self.config is not None
        assert self.family is not None
        self._select()
        self._check_class(self.family)
        names = self.scheme if self.options.names == "hf" else self.options.names
        fused = [FUSIONS[what] for what in self.options.fuse]
        blocks = [tensor.name for tensor in self.tensors.values() if self.in_blocks(tensor)]
        entries, nameless = Spelling(self.family, self.config.scope, names, fused).entries(self.tensors, blocks)
        self._refuse_grouped("no name for", [parse(name).pattern for name in nameless])
        self.types = self._types(entries)
        modules = []
        for entry in entries:
            if entry.missing:
                self.refuse(f"{entry.name} is made of {len(entry.parts)} tensors, and there is no {entry.missing[0]}")
                continue
            types = {self.types[part]: part for part in entry.parts}
            if len(types) > 1:
                mixed = " and ".join(f"{part} is {dtype}" for dtype, part in types.items())
                self._fault("the parts of a fused tensor share one type", DECODE, f"{entry.name} ({mixed})")
                continue
            parts, dtype = [self.tensors[part] for part in entry.parts], next(iter(types))
            if why := apart(parts, entry.places[1] if entry.places else None, dtype):
                self._fault(why, DECODE, entry.name)
            else:
                modules.append(self._module(entry, parts, dtype))
        if self.options.names == "hf" and modules:
            dtype = self.types.get(EMBEDDING, F32)  # without one it is refused
            spare = [*spare_of(self.family, self.scheme, self.config.scope, dtype, self.index.dropped, self.plain_type)]
            if named := ", ".join(piece.name for module in spare for piece in module if piece.source is None):
                self.notes.append(f"zeros stand for {named}, which the class would fill at random if they were missing")
            written = {piece.canonical for module in spare for piece in module}
            self.left_out[:] = [item for item in self.left_out if item.name not in written]
            modules += spare
        return modules

    def _select(self) -> None:
        """Every source tensor is written, or left out by a rule or a flag, or a reason to refuse."""
        assert self.family is not None
        assert self.config is not None
        zero_filled = placeholders(self.index, scheme_names(self.family, self.scheme).written)
        for tensor in self.index.tensors.values():
            if self.dropped(tensor.name, tensor.source):
                self.leave_out(tensor.name, "--drop", tensor.nbytes)
            elif tensor.name in zero_filled and not needs(self.family, tensor.name):
                self.leave_out(tensor.name, PLACEHOLDER, tensor.nbytes)
            elif tensor.name != ROPE_FREQUENCIES:
                self.tensors[tensor.name] = tensor
        unmapped: list[str] = []
        for stored in self.index.unknown:
            if self.dropped(stored.name, *self.index.canonical_of.get(stored.name, ())):
                self.leave_out(stored.name, "--drop", stored.extent.nbytes)
            elif not self.leave_out_part(stored):
                unmapped.append(beside_text(self.config.raw, stored.name) or parse(stored.name).pattern)
        self._refuse_grouped("no rule for", unmapped)
        scaling = scaling_of(self.index, self.config, drop=self.dropped(ROPE_FREQUENCIES))
        self.rope_scaling = scaling.document
        if scaling.left_out:
            self.leave_out(ROPE_FREQUENCIES, scaling.left_out, self.index.tensors[ROPE_FREQUENCIES].nbytes)
        self.reasons += scaling.reasons
        self._place_head()

    def _place_head(self) -> None:
        """The output head: its own tensor, or the embedding's rows."""
        assert self.config is not None
        asked = "untie" if self.options.names == "max" or self.doubles_head(self.loader) else self.options.tie
        head, embedding = self.tensors.get(HEAD), self.tensors.get(EMBEDDING)
        if head is None and asked == "untie" and embedding is not None:
            self.tensors[HEAD] = replace(as_head(embedding, self.config), name=HEAD)
        elif head is None and self.config.tied is False and HEAD not in self.index.tensors:
            text = "there is no output head, and it is not tied to the embedding (tie_word_embeddings)"
            self.refuse(text, '"tie_word_embeddings": true in config.json says that it is')
        elif head is not None and asked != "untie" and (asked == "tie" or self.is_tied()):
            if self.source.head_is_embedding:
                del self.tensors[HEAD]
                self.leave_out(HEAD, "byte for byte the embedding: tied", head.nbytes)
            else:
                why = "--tie leaves it out" if asked == "tie" else "tie_word_embeddings says that it is"
                hint = "" if asked == "tie" else "--untie writes it"
                self.refuse(f"{head.source} is not byte for byte the embedding, and {why}", hint)
        self.tied = HEAD not in self.tensors

    @cached_property
    def unpacked(self) -> bool:
        """Packed matrices are decoded, where tensors keep their names."""
        return unpacks(self)

    def _types(self, entries: Sequence[Entry]) -> dict[str, DType]:
        """The type of every tensor that ``entries`` are made of."""
        shift = {part: entry.shift for entry in entries for part in entry.parts}
        return {name: self.type_of(it, shift.get(name, 0)) for name, it in self.tensors.items()}

    def type_of(self, tensor: Tensor, shift: int = 0) -> DType:
        """The type in the output; a refused one stands for itself, so that every reason is found."""
        if tensor.dtype.kind is not Kind.BLOCK:
            higher = shift > tensor.layout.shift and self.dtype in ("engine", "keep")
            return F32 if higher else self.plain_type(tensor.source, tensor.dtype)  # 1 + w has more digits than w
        return self.decoded_type(tensor) if self.decoded(tensor) else self._block_type(tensor)

    def decoded_type(self, tensor: Tensor) -> DType:
        """What blocks are decoded to."""
        if not decodable(tensor.dtype):
            self._fault(f"no decoder for {tensor.dtype}", "", tensor.source)
        if why := self.unsound(tensor):
            self._fault(why, "", tensor.source)
        return self.decoded_as(tensor)

    def plain_type(self, name: str, source: DType) -> DType:
        """The type in the output of an array that stands for itself."""
        asked = self.dtype
        if source.kind is not Kind.FLOAT or asked in ("engine", "keep"):
            return source
        target = DTYPES[asked.upper()]
        if not writable(source, target):
            self._fault(f"{source} cannot become {target} exactly", "", name)
        return target

    _module = staticmethod(module_of)

    def _block_type(self, tensor: Tensor) -> DType:
        what = f"matrices of {tensor.dtype}" if triple_of(tensor.dtype) else f"{tensor.dtype} type"
        self._fault(f"{self.format} has no {what}", decode_hint(tensor.dtype), tensor.source)
        return tensor.dtype

    def in_blocks(self, tensor: Tensor) -> bool:
        """The tensor is written in the form that its family has for blocks."""
        return False

    def _fault(self, why: str, hint: str, name: str, count: int = 0) -> None:
        """``count`` is how many there are in the tensor of what ``why`` speaks of, where that is not the tensor."""
        self._type_faults.setdefault((why, hint), []).append(name)
        self._counts[why] += count

    def _refuse_grouped(self, what: str, patterns: Sequence[str]) -> None:
        for pattern, count in Counter(patterns).items():
            whose, also = of_source(self.config, self.index.format, pattern), f" ({count} tensors)" if count > 1 else ""
            self.refuse(f"{what} {pattern}{also}{whose}", part_hint(self.family, pattern))

    def _check_class(self, family: Family) -> None:
        """The tensors are those that the class has which will load them; other names are for other loaders."""
        assert self.config is not None
        if CONSUMERS.get(self.index.format) not in (None, self.loader.name):
            self.reasons += surplus_reasons(self.index, self.dropped)
            for modifier in self.config.modifiers:
                self.reasons.append(modifier_reason(modifier, f"; {self.loader.name} does not know it"))
        if self.options.names not in ("canonical", "gguf"):
            context, built, tied = self.options.context, not self.document, HEAD not in self.tensors
            model = self.index, self.config, self.tensors, self.loader
            dropped = self.dropped_patterns(self.index.tensors)
            self.reasons += loader_reasons(
                *model, target=self.format, built=built, context=context, dropped=dropped, within=self.within
            )
            self.notes += row_notes(self.config, self.loader, context=context or self.config.context_length, tied=tied)

    def _finish(self, modules: Sequence[Module], kept: bool, metadata: Mapping[str, str]) -> Plan:
        o = self.options
        shards = lay_out(
            modules,
            o.file_name or single_name(self.index.files[0].name, kept and self.config is None),
            o.max_shard_bytes,
            metadata,
            always_index=self.always_index and not o.file_name,
        )
        document = self._document(modules, kept)
        self.notes += unfit_notes(self.index, self.format)
        carried = {} if o.file_name else carried_files(self, kept)
        self.notes += loading_notes(self.family, o, self.loader, self.scheme)
        self.note_unread()
        if parts := parts_beside(self.index.path, carried):
            names = ", ".join(f"{name}/" for name in parts[:5])
            self.notes.append(f"{names} of the source, part of the model, is not copied: copy it beside the tensors")
        tokenizer, (pooling, pooling_notes) = tokenizer_plan(self.index, o), pooling_of_source(self.index, o)
        self.notes += (*tokenizer.notes, *pooling_notes)
        typed = self.index.metadata_kind is MetadataKind.TYPED and not o.file_name
        card = text_of_card(card_of(self.index), {"library_name": self.library}) if typed else ""
        absent = {item.name for item in self.left_out}
        parameters = sum(tensor.elements for name, tensor in self.whole.everything.items() if name not in absent)
        stands = Checkpoint(shards, document, parameters, carried, tokenizer, card, {**pooling, **self.beside})
        plan = Plan(
            self.whole,
            self.format,
            0,
            o,
            shards.files,
            tuple(self.left_out),
            notes=tuple(self.notes),
            rope_layout="split" if self.family and self.family.rope else "",
            contents=partial(container, stands),
        )
        if not (o.set_meta or o.drop_meta):
            return plan
        from ckconv.formats.safetensors.document_edits import with_edits

        return with_edits(plan)

    def _document(self, modules: Sequence[Module], kept: bool) -> bytes:
        pieces = chained(modules)
        as_they_were = all(
            c is not None and c.action is Action.COPY
            for p in pieces
            for c in (p.conversion, *(run.conversion for run in p.runs))
        )
        said = Said(
            format=self.format,
            kept=kept,
            unpacked=kept and self.unpacked,
            tied=self.tied,
            floats=self._floats(pieces),
            as_they_were=as_they_were,
            present=tuple(self.tensors),
            quantization=None if kept else self._quantization(modules),
            rope_scaling=self.rope_scaling,
            context=self.options.context,
        )
        return config_json(self.index, said)

    def _floats(self, pieces: Sequence[Piece]) -> frozenset[str]:
        """Names of the float types of what is written."""
        return floats_of(pieces)

    def _quantization(self, modules: Sequence[Module]) -> dict[str, Any] | None:
        """MLX's object for ``config.json``; ``None`` where nothing is quantised."""
        return None
