"""Plan a bump file: which tensor goes into which slot, as which type."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence

from ckconv.core.config import MAX_FLOAT32, behind_note, modifiers_of, scaled, starts_behind, without_sections
from ckconv.core.layouts import DTYPES, F32, F64, WIDENS_TO_F32, DType, Kind
from ckconv.core.lazy import replace
from ckconv.core.options import Options
from ckconv.core.tensors import HEAD, ROPE_FREQUENCIES, Tensor, TensorIndex, is_bias, parse, with_layer
from ckconv.errors import an
from ckconv.families import catalog
from ckconv.families.names import GGUF, names_of, part_hint
from ckconv.formats.bump import slots
from ckconv.plan.planner import ORIGINAL, Planner, modifier_reason, no_epsilon, surplus_reasons
from ckconv.plan.probe import PLACEHOLDER, SourceFacts, placeholders
from ckconv.plan.quantizing import GgufTensor, Matrix, TypePlan
from ckconv.plan.steps import OutputFile, Plan, Step, decoding_hint
from ckconv.quant.convert import Conversion, decodable, side_by_side, writable
from ckconv.quant.packed import scheme_of

# The type of every slot of a bump file, and why a tensor cannot have one there.

_Q8_0 = DTYPES["Q8_0"]

#: What `inspect` says of an MLX model, whose scales and biases it does not read.
_UNREAD = "if its blocks hold the numbers of every quantized group: convert --dry-run reads them and says so"


def types_of(planner: BumpPlanner) -> dict[str, DType]:
    """Slot name -> type; refused types stay, so that all reasons are found."""
    types: dict[str, DType] = {}
    refused: dict[str, list[Tensor]] = {}
    mixed: dict[str, list[list[tuple[Tensor, DType]]]] = {}
    accepted: set[str] = set()
    for name, slot, names in slots.slots_of(planner.table, planner.config.num_layers):
        here = [planner.tensors[canonical] for canonical in names if canonical in planner.tensors]
        chosen = []
        for tensor in here:
            given = planner.quantized_as.get(tensor.name)
            if given is not None and not slot.fp32:
                dtype, why = given, planner.refused_type(given, slot) if given.block > 1 else ""
            elif side_by_side(tensor.dtype) and planner.dtype == "engine" and not planner.decoded(tensor):
                dtype, why = _repacked(planner, here, tensor.dtype, slot)
            else:
                dtype, why = _type(planner, tensor, slot)
            looked = why or given is not None or planner.decoded(tensor)
            if looked and side_by_side(tensor.dtype) and (wrong := planner.unsound(tensor)):
                planner.fault(wrong, ORIGINAL, tensor.source)
            elif why:
                refused.setdefault(why, []).append(tensor)
            elif tensor.dtype.block > 1 and not planner.decoded(tensor):
                accepted.add(tensor.source)
            chosen.append(dtype)
        if len(set(chosen)) > 1 and planner.dtype == "engine" and set(chosen) <= WIDENS_TO_F32:
            chosen = [F32] * len(chosen)  # floats of several types in one slot
        types[name] = chosen[0] if chosen else F32
        if len(set(chosen)) > 1:
            mixed.setdefault(f"gate and up share one type in {slot.name}", []).append([*zip(here, chosen, strict=True)])
    planner.refuse_faults()
    for why, tensors in refused.items():
        _refuse_blocks(planner, why, tensors, accepted, tensors[0].source)
    for why, pairs in mixed.items():
        both = " and ".join(
            f"{tensor.source} {'becomes' if tensor.name in planner.quantized_as else 'is'} {dtype}"
            for tensor, dtype in pairs[0]
        )
        tensors = [
            tensor
            for pair in pairs
            for tensor, _ in pair
            if tensor.dtype.block > 1 or tensor.name in planner.quantized_as
        ]
        _refuse_blocks(planner, why, tensors, accepted - {tensor.source for tensor in tensors}, both, len(pairs))
    return types


def _refuse_blocks(
    planner: BumpPlanner, why: str, tensors: Sequence[Tensor], accepted: set[str], first: str, count: int = 0
) -> None:
    """Note a reason that decoding takes away, if tensors are quantized.

    Only where some of them are not to be decoded already.

    Args:
        accepted: names of quantized tensors that nothing speaks against.
        first: what the reason names; ``count`` is how many there are of it, where that is not the tensors.
    """
    matrices = [tensor for tensor in tensors if len(tensor.shape) > 1]  # nothing decodes a vector
    blocks = [tensor.source for tensor in matrices if tensor.dtype.block > 1 and not planner.decoded(tensor)]
    decodes = blocks and planner.options.dtype != "keep"
    more = (count or len(tensors)) - 1
    codes = tensors[0].dtype.name in ("I8", "U8")
    narrowed = "--dtype f32" if tensors[0].dtype is F64 and planner.dtype in ("engine", "keep") else ORIGINAL * codes
    decoding = decoding_hint(blocks, accepted) if decodes else ""
    hints = [narrowed, decoding, _requantizing(planner, matrices), planner.elsewhere(why)]
    planner.refuse(f"{why}: {first}" + (f" and {more} more" if more else ""), "; ".join(filter(None, hints)))


def _requantizing(planner: BumpPlanner, matrices: Sequence[Tensor]) -> str:
    """Flag that makes floats Q8_0, against ``--quantize``; empty for none."""
    names = {
        parse(tensor.source).pattern.replace("{n}", "*") for tensor in matrices if tensor.name in planner.quantized_as
    }
    fit = not any(tensor.shape[-1] % _Q8_0.block for tensor in matrices)
    own = [slot for group in planner.table for slot in group if slot.parts]
    taken = not any(planner.refused_type(_Q8_0, slot) for slot in own)
    rules = "".join(f",{name}=q8_0" for name in sorted(names))
    return f"--quantize '{planner.options.quantize}{rules}' takes another type" if names and fit and taken else ""


def _type(planner: BumpPlanner, tensor: Tensor, slot: slots.Slot) -> tuple[DType, str]:
    """(type in the output, reason to refuse or "")."""
    requested, source = planner.dtype, tensor.dtype
    if slot.fp32:
        exact = source in WIDENS_TO_F32 or (source is F64 and requested not in ("engine", "keep"))
        return F32, "" if exact else f"{source} in an FP32 slot"
    if source.block > 1 and planner.decoded(tensor):
        target = planner.decoded_as(tensor)
        return target, "" if decodable(source) else f"no decoder for {source}"
    if requested == "keep":
        known = getattr(source, f"bump_{planner.numbering}") is not None
        return source, "" if known else f"{source} has no code in the dtype table"
    if source.block > 1:
        return source, planner.refused_type(source, slot)
    plain = source if planner.keeps(source) else F32
    target = plain if requested == "engine" else DTYPES[requested.upper()]
    if not writable(source, target):
        whole = source.kind is Kind.INTEGER
        return source, f"the engine has no {source}" if whole else f"{source} cannot become {target} exactly"
    return target, ""


def _repacked(planner: BumpPlanner, tensors: Sequence[Tensor], source: DType, slot: slots.Slot) -> tuple[DType, str]:
    """Smallest bump type that holds a packed matrix, and a reason or empty."""
    from ckconv.quant.repack import blocks_for, no_block, none_of

    columns = tensors[0].layout.cols
    blocks = blocks_for(source, columns)
    if not blocks and scheme_of(source):
        return source, no_block(source, columns)
    loaded = [block for block in blocks if not planner.refused_type(block, slot)]
    if not loaded:
        return source, planner.refused_type(source, slot)
    if _UNREAD not in planner.notes and not any(tensor.name in planner.source.unfit for tensor in tensors):
        planner.notes.append(_UNREAD)
    counts: Counter[DType] = Counter()
    for tensor in tensors:
        counts.update(planner.source.unfit.get(tensor.name, {}))
    best = min(loaded, key=lambda block: (counts[block], block.size))
    if counts[best]:
        have = "group has" if counts[best] == 1 else "groups have"
        return source, f"{counts[best]:,} {have} {none_of(loaded)}"
    return best, ""


# Planning a bump file of any version: which tensor goes into which slot, as which type, and why not.
#
# What the versions share is here; their engines' rules are in the subclasses (:mod:`ckconv.formats.bump.planners`,
# :mod:`ckconv.formats.bump.planners`).

#: The smallest number above 0 that float32 has: the engine reads a smaller base as 0, which switches RoPE off.
_LEAST_FLOAT32 = 2.0**-149

#: The engine's headers have 32 bits with a sign for a context length.
_MOST_POSITIONS = (1 << 31) - 1
_FEWER_POSITIONS = "--context N sets a smaller one"

#: What the file is called in a directory.
MODEL_NAME = "weights.bump"


class BumpPlanner(Planner):
    """Planner of all versions.

    Attributes:
        engine: the row of family files.
        own, own_row: the source's family and its row.
        family: the one as which it is written.
        row: that one's, ``None`` where its file has none.
        version: the file's.
        table: the slots of this model, tokenizer content left out.
        numbering: of the dtype table: ``v3`` or ``v4``.
        looks: tensors' bytes are read for the plan.
        data_start: where the dtype table begins, in bytes.
    """

    format = "bump"
    engine: str
    table: slots.SlotTable
    numbering: str
    data_start: int
    #: Float rows and heads are padded to this many elements.
    step: int

    def __init__(self, index: TensorIndex, options: Options, source: SourceFacts) -> None:
        super().__init__(index, options, source)
        assert index.config is not None
        self.own = catalog.FAMILIES[index.config.family]
        self.own_row = self.own.engines.get(self.engine)
        # Its documents name the architecture, as a GGUF does.
        name = catalog.written_as(self.own, self.engine) or catalog.family_in_gguf(self.own.name)
        self.config = config = replace(self.index.config or index.config, family=name)
        self.family = catalog.FAMILIES[name]
        self.row = self.family.engines.get(self.engine)
        self.tensors: dict[str, Tensor] = {}
        self.quantized_as: dict[str, DType] = {}
        self.geometry: slots.Geometry = slots.geometry(
            config, context=options.context or config.context_length, step=self.step
        )

    def plan(self, *, only_reasons: bool = False) -> Plan:
        """Make the plan, without steps where it is refused or only asked why."""
        self.looks = not only_reasons
        if any(row is not None and row.absent for row in (self.row, self.own_row)):
            self._check_engine()  # of a family that the engine has nothing for, no more is to be said
            return self.refused()
        self._select(look=self.looks)
        self._check_model()
        # What follows is work for every layer that the header claims, whatever the size of the file.
        bare = self.bare_layers(self.config, self.tensors)
        if bare > 0:
            self.refuse_bare(
                self.config.num_layers, bare, catalog.bracketed(self.config, "num_layers", format=self.index.format)
            )
            return self.refused()
        self._quantize()
        types = types_of(self)
        self._check_missing()
        interleaved = self._interleaved()
        if self.family.rope:
            self._check_rows(interleaved=interleaved)
        if not self.reasons:
            self._check_types(types)
        if self.reasons or only_reasons:
            return self.refused()
        self.note_unread()
        if self.engine != slots.TRAINED and self.index.facts.get("only_here"):
            self.notes.append(str(self.index.facts["only_here"]))
        return self._finish(types, interleaved)

    @abstractmethod
    def _check_engine(self) -> None:
        """Reasons of this version's engine that follow from the architecture."""

    def unknown_to_us(self, engine: str) -> str:
        """Why a family without a row is refused."""
        kind = catalog.bracketed(self.config, "family", format=self.index.format)
        what = f"{an(self.family.name)}{kind} correctly: the family file has no row {engine}"
        return f"ckconv does not know whether the engine computes {what}"

    @abstractmethod
    def refused_type(self, source: DType, slot: slots.Slot) -> str:
        """Why the engine has no correct kernel for a type in a slot, or empty."""

    def keeps(self, source: DType) -> bool:
        """Whether the engine computes matrices of these floats as they are."""
        return source is F32

    def elsewhere(self, why: str) -> str:
        """Hint that another release of the engine does what is refused here."""
        del why
        return ""

    def _check_types(self, types: Mapping[str, DType]) -> None:
        """Reasons and notes that follow from the types of several slots together."""

    def _check_rows(self, *, interleaved: bool) -> None:
        """Add reasons and notes about the order of Q and K rows in the output."""

    @abstractmethod
    def _rotates_pairs(self) -> bool:
        """Whether the engine rotates interleaved rows, which the file then has."""

    @abstractmethod
    def _finish(self, types: Mapping[str, DType], interleaved: bool) -> Plan:
        """The plan of a model that nothing speaks against."""

    def _select(self, *, look: bool) -> None:
        """Assign every source tensor to a slot, leave it out, or note why not.

        Args:
            look: read what may be a placeholder; otherwise it is taken for one.
        """
        slotted = {part.canonical for group in self.table for slot in group if slot.stored for part in slot.parts}
        unmapped: Counter[str] = Counter()
        absent = {tensor.name for tensor in self.index.tensors.values() if tensor.may_be_absent}
        zero_filled = placeholders(self.index) if look else absent
        self.leave_out_by_rules()
        rows = self.own.rows
        for tensor in self.remaining(one for one in self.index.tensors.values() if one.name not in rows):
            if tensor.name in zero_filled:  # where this version has the slot, it is filled with zeros again
                self.leave_out(tensor.name, PLACEHOLDER, tensor.nbytes)
            elif tensor.name == HEAD and self.source.head_is_embedding:
                self.leave_out(tensor.name, "byte for byte the embedding: tied", tensor.nbytes)
                self.notes.append("the output head is byte for byte the embedding: written as tied")
            elif parse(tensor.name).pattern in slotted:
                self.tensors[tensor.name] = tensor
            elif tensor.name == HEAD:
                self.refuse(f"the output head is not tied to the embeddings and bump {self.version} has no slot for it")
            elif tensor.name == ROPE_FREQUENCIES:
                self._refuse_scaling(f"{tensor.source} scales RoPE (Llama 3.1 style)")
            else:
                unmapped[parse(tensor.name).pattern] += 1
        unmapped.update(map(self.part, self.unruled()))
        for pattern, count in unmapped.items():
            more = f" ({count} tensors)" if count > 1 else ""
            self.refuse(f"no slot for {pattern}{more}{catalog.of_class(self.config)}", part_hint(self.own, pattern))

    def _quantize(self) -> None:
        """Types that ``--quantize`` gives: those of a GGUF of the same model."""
        written = names_of(self.family, GGUF).written
        parts: dict[str, list[Tensor]] = {}
        for tensor in self.tensors.values() if self.options.quantize else ():
            rule, layer = written.get(parse(tensor.name).pattern), parse(tensor.name).layer
            if rule is not None:
                parts.setdefault(with_layer(rule.pattern, layer), []).append(tensor)
        placed = [
            GgufTensor(Matrix(name, (sum(part.shape[0] for part in own), *own[0].shape[1:])), tuple(own))
            for name, own in parts.items()
        ]
        self.quantized = TypePlan(self, placed, self.config, f16=False)  # which no engine computes
        self.importance = self.quantized.importance(placed)
        self._named = {part.name: item.matrix.name for item in placed for part in item.parts}
        types = self.quantized.types
        self.quantized_as = {part: types[name] for part, name in self._named.items() if name in types}

    def _refuse_scaling(self, what: str, hint: str = "") -> None:
        drop = f"--drop {ROPE_FREQUENCIES} leaves the scaling out, and changes the logits from the first tokens on"
        self.refuse(f"{what}, which the engine does not do", hint or drop)

    def _check_model(self) -> None:
        c, g = self.config, self.geometry
        self._check_engine()
        if self.family.rope and c.head_dim % 2:
            keys = catalog.bracketed(c, *catalog.HEAD_SIZE, format=self.index.format)
            self.refuse(f"heads of {c.head_dim} elements cannot form RoPE pairs{keys}")
        part = self.family.parameters.get("rope_dim")
        if part and c.rotary_dim != c.head_dim and not part.cells.get("bump"):
            what = f"RoPE rotates {c.rotary_dim} of {c.head_dim} elements of a head; the engine rotates all"
            self.refuse(what + catalog.bracketed(c, "rotary_dim", format=self.index.format))
        if c.rope_scaling and ROPE_FREQUENCIES not in self.index.tensors:
            if self.dropped(ROPE_FREQUENCIES):
                self.leave_out(ROPE_FREQUENCIES, "--drop", 0)
            elif starts_behind(c.rope_scaling, c, g.context):
                self.notes.append(behind_note(c))
            else:
                kind = str(c.rope_scaling.get("rope_type", ""))
                self._refuse_scaling(scaled(kind, c), without_sections(kind, c))
        if c.sliding_window and c.sliding_window < g.context and not self._slides():
            self.refuse(
                f"attention slides over {c.sliding_window:,} tokens ({catalog.window_words(c)}), "
                f"the engine attends to all {g.context:,}",
                f"--context {c.sliding_window} makes them the same",
            )
        free = self.keeps_head() or self.source.head_is_embedding or self.dropped(HEAD)
        if c.tied and HEAD in self.index.tensors and not free:
            self.refuse(
                "tie_word_embeddings ties the output head to the embeddings, but another matrix is stored as the head",
                "--drop output.weight ties it",
            )
        if c.tied is False and HEAD not in self.index.tensors:
            text = "the output head is not tied to the embeddings (tie_word_embeddings), but there is none"
            self.refuse_headless(text, "tie_word_embeddings")
        self.reasons += surplus_reasons(self.index, self.dropped)
        for modifier in modifiers_of((*c.modifiers, *slots.unusual(c, self.index.format))):
            self.reasons.append(modifier_reason(modifier, c, "the engine"))
        if not c.norm_eps:
            self.reasons.append(no_epsilon(catalog.bracketed(c, "norm_eps", format=self.index.format)))
        for what, number in (("base of RoPE", c.rope_theta), ("epsilon of the norms", c.norm_eps)):
            if number and not _LEAST_FLOAT32 <= number <= MAX_FLOAT32:
                self.refuse(f"the {what} is {number:g}, which float32 cannot hold")
        if not g.context:
            keys = catalog.bracketed(c, "context_length", format=self.index.format)
            self.refuse(f"the source names no context length{keys}", "--context N sets one")
        elif g.context > _MOST_POSITIONS:
            self.refuse(f"the context length is {g.context:,}, a header holds {_MOST_POSITIONS:,}", _FEWER_POSITIONS)
        elif c.context_length and g.context > c.context_length:
            self.notes.append(f"context {g.context:,} is longer than the source's {c.context_length:,}")

    def matrices(self, types: Mapping[str, DType]) -> dict[str, DType]:
        """Slot -> type, of those whose type the model decides."""
        each = slots.slots_of(self.table, self.config.num_layers)
        return {name: types[name] for name, slot, _ in each if slot.parts and not slot.fp32}

    def _slides(self) -> bool:
        """Whether the engine knows this family's sliding window."""
        return False

    def _interleaved(self) -> bool:
        """Whether Q and K rows are written with RoPE pairs as neighbors."""
        layout = self.options.rope_layout
        if layout == "source":
            return any(tensor.layout.interleaved for tensor in self.tensors.values())
        return self._rotates_pairs() if layout == "engine" else layout == "interleaved"

    def _check_missing(self) -> None:
        missing: Counter[str] = Counter()
        for _, slot, names in slots.slots_of(self.table, self.config.num_layers):
            if not slot.zero_if_absent:
                pairs = zip(slot.parts, names, strict=True)
                missing.update(part.canonical for part, canonical in pairs if canonical not in self.tensors)
        # zeros would stand there
        lost = {pattern: layers for pattern, layers in self.lost().items() if is_bias(pattern)}
        counts = {**missing, **{pattern: len(layers) for pattern, layers in lost.items()}}
        self.refuse_missing(counts, catalog.tensor_keys(self.config, format=self.index.format), lost=lost)

    def file(self, steps: Sequence[Step], epilogue: int = 0) -> OutputFile:
        """The one file; ``epilogue`` bytes stand behind the last step."""
        nbytes = steps[-1].offset + steps[-1].nbytes + epilogue
        return OutputFile(self.options.file_name or MODEL_NAME, nbytes, tuple(steps))

    def codes(self, types: Mapping[str, DType]) -> bytes:
        """The dtype table."""
        each = slots.slots_of(self.table, self.config.num_layers)
        return bytes(getattr(types[name], f"bump_{self.numbering}") for name, slot, _ in each if slot.coded)

    def steps(
        self,
        types: Mapping[str, DType],
        *,
        interleaved: bool,
        table: slots.SlotTable | None = None,
        content: Mapping[str, bytes] | None = None,
    ) -> list[Step]:
        """The payload in file order.

        Args:
            table: the slots with those of ``content``, if there is any.
            content: slot name -> bytes of tokenizer content.
        """
        content = content or {}
        table = table or self.table
        placed = slots.place(
            table,
            self.geometry,
            types,
            start=self.data_start + slots.TABLE_LENGTH.size + slots.table_entries(table, self.config.num_layers),
            interleaved=interleaved,
            family=self.family,
            content={name: len(data) for name, data in content.items()},
            parameters=self.config.scope,
        )
        steps = []
        for item in placed:
            target = item.tensor(self.index.path)
            source = self.tensors.get(item.canonical)
            conversion = None
            if source is not None:
                plain = Conversion(source.dtype, item.dtype, item.layout.shift - source.layout.shift)
                conversion = self.quantized.conversion(self._named.get(item.canonical, ""), plain)
            steps.append(Step(item.slot_name, target, source, conversion, content.get(item.slot_name)))
        return steps
