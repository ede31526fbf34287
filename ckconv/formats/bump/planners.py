"""Plan each version of bump, and flags that give computable types."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import combinations, product
from typing import Any, Protocol

from ckconv.core.layouts import DTYPES, F32, DType
from ckconv.core.lazy import replace
from ckconv.core.options import Options
from ckconv.core.tensors import HEAD, Tensor, TensorIndex, is_bias, parse
from ckconv.errors import an, and_more
from ckconv.families import catalog, parameters, sizes
from ckconv.formats.bump import releases, sidefiles, slots
from ckconv.formats.bump.plan import BumpPlanner
from ckconv.plan.probe import SourceFacts, zeros
from ckconv.plan.steps import Plan, Reason, decode, decoding_hint
from ckconv.tokenizer.source import equal_tokens_of, gguf_keys, special_tokens_of, texts_of, tokenizer_of

# -- Version of bump that holds a model best, and flags that help ------------------------------------------------------

#: What is tried, in this order.
_AUTO = (3, 5)


class VersionPlanner(Protocol):
    """Plans for a version."""

    def __call__(self, version: int, *, only_reasons: bool = False) -> Plan:
        """The plan; with ``only_reasons``, without steps."""


def choose(index: TensorIndex, options: Options, plan_of: VersionPlanner) -> Plan:
    """Plan of the version that is asked for, or the first that fits the model."""
    if options.trainable:
        return _leading(plan_of(0))
    version = options.bump_version or (releases.release_of(options).versions[0] if options.engine else 0)
    if version:
        plan = plan_of(version)
        if plan.refusals and version == 3 and not options.engine and not plan_of(5, only_reasons=True).refusals:
            return replace(plan, alternative="--bump-version 5 holds it")
        return _leading(plan)
    plans: list[Plan] = []
    for version in _AUTO:
        plan = _unless_floats(plan_of(version))
        if not plan.refusals:
            return plan.with_notes(_why(plan, plans))
        plans.append(plan)
    return _refused(index, options, plans)


def _leading(plan: Plan) -> Plan:
    """Plan without any hint if some reason has none: a hint leads nowhere."""
    if all(reason.hint for reason in plan.refusals):
        return plan
    return replace(plan, refusals=tuple(Reason(reason.text) for reason in plan.refusals))


def _unless_floats(plan: Plan) -> Plan:
    """Refuse bump 3 of other types than FP32 unless asked.

    One engine at most runs it.
    """
    who = slots.computed_by([step.target.dtype.name for step in plan.steps], releases.numbering(plan.options))
    if plan.version != 3 or not who:
        return plan
    return replace(plan, files=(), refusals=(Reason(who, "--bump-version 3 writes it all the same"),))


def _why(plan: Plan, refused: Sequence[Plan]) -> str:
    """Why this version was chosen."""
    if not refused:
        exactly = "" if plan.options.allow_lossy else " without loss"
        return f"{plan.target_name} was chosen: it holds the model{exactly}"
    first = refused[0].refusals
    more = f" (and {len(first) - 1} more)" if len(first) > 1 else ""
    return f"{plan.target_name} was chosen; {refused[0].target_name} cannot hold the model: {first[0].text}{more}"


def _refused(index: TensorIndex, options: Options, plans: Sequence[Plan]) -> Plan:
    """Reasons of each version, shared ones once, if none holds the model."""
    texts = [{reason.text for reason in plan.refusals} for plan in plans]
    led = sorted(map(_leading, plans), key=lambda plan: not plan.refusals[0].hint)
    reasons = [reason for reason in led[0].refusals if all(reason.text in found for found in texts)]
    shared = {reason.text for reason in reasons}
    for plan in sorted(led, key=lambda plan: plan.version):
        reasons += [r._replace(text=f"{plan.target_name}: {r.text}") for r in plan.refusals if r.text not in shared]
    out = next(filter(None, (plan.way_out for plan in plans)), "")
    if out:  # it leads out of the reasons of one version
        reasons = [reason._replace(hint="") for reason in reasons]
    return Plan(index, plans[0].format, 0, options, refusals=tuple(reasons), alternative=out)


# The flags that give a bump 5 file types which the engine computes, each tried on the types of the plan.

Types = Mapping[str, DType]

#: Slot -> the source tensors in it.
SlotTensors = Mapping[str, Sequence[Tensor]]

_Q8_0 = DTYPES["Q8_0"]

#: Names that a flag lists at most, where one glob for all would change a matrix too many.
_SHOWN = 3


class Remedies:
    """Remedies for types that the engine computes wrong.

    Attributes:
        quantized: canonical name -> the type that ``--quantize`` gives a matrix of floats.
        right: the engine computes a model with these types.
        stand: matrices of a layer with these types stand beside each other.
    """

    def __init__(
        self,
        tensors: SlotTensors,
        types: Types,
        quantized: Types,
        options: Options,
        right: Callable[[Types], bool],
        stand: Callable[[Types], bool],
    ) -> None:
        self._slot, self._types, self._quantized, self._options = tensors, types, quantized, options
        self._right, self._stand = right, stand

    def least_change(self, layers: Sequence[tuple[str, ...]]) -> str:
        """Flag that changes the fewest matrices where types of a layer clash."""
        changed: dict[str, DType] = {}
        for group in layers:
            found = self._fewest([slot for slot in group if slot in self._types])
            if found is None:
                return ""
            changed |= found
        if not self._right({**self._types, **changed}):
            return ""
        names = self._names(changed)
        if not any(self._is_quantized(slot) for slot in changed):
            return decode(names, several=len(changed) > 1)
        rules = "".join(f",{glob}={dtype.name.lower()}" for glob, dtype in names.items())
        return f"--quantize '{self._options.quantize}{rules}' gives types that are right beside each other"

    def rounded(self) -> str:
        """Flag that makes matrices Q8_0: of floats, or all if need be."""
        floats = {slot: _Q8_0 for slot, dtype in self._types.items() if dtype.block == 1}
        every = dict.fromkeys(self._types, _Q8_0)
        for flag, changed in ((f"--quantize {_Q8_0}", floats), (f"--dequantize --quantize {_Q8_0}", every)):
            fit = not any(tensor.shape[-1] % _Q8_0.block for slot in changed for tensor in self._slot[slot])
            if changed and fit and self._right({**self._types, **changed}):
                return flag
        return ""

    def _is_quantized(self, slot: str) -> bool:
        return any(tensor.name in self._quantized for tensor in self._slot[slot])

    def _fewest(self, group: Sequence[str]) -> dict[str, DType] | None:
        """New types, small ones, for the fewest matrices that must change."""
        here = {slot: self._types[slot] for slot in group}
        for count in range(1, len(group) + 1):
            choices = [
                dict(zip(some, types, strict=True))
                for some in combinations(group, count)
                for types in product(*(self._others(slot, here) for slot in some))
            ]
            fitting = [choice for choice in choices if self._stand({**here, **choice})]
            if fitting:
                return min(fitting, key=self._nbytes)
        return None

    def _others(self, slot: str, here: Types) -> Iterator[DType]:
        """Types that a flag can give a matrix instead.

        A matrix of floats gets a neighbor's type or Q8_0, a matrix of blocks FP32.
        """
        if not self._is_quantized(slot):
            yield F32
            return
        columns = [tensor.shape[-1] for tensor in self._slot[slot]]
        for dtype in dict.fromkeys([*here.values(), _Q8_0]):
            if dtype is not here[slot] and not any(number % dtype.block for number in columns):
                yield dtype

    def _nbytes(self, types: Types) -> int:
        return sum(dtype.nbytes(math.prod(t.shape)) for slot, dtype in types.items() for t in self._slot[slot])

    def _names(self, changed: Types) -> dict[str, DType]:
        """New type by glob, or by name where globs would not be right."""
        globs: dict[str, DType] = {}
        exact: dict[str, DType] = {}
        for slot, dtype in changed.items():
            for tensor in self._slot[slot]:
                shared = any(tensor.source == other.source for s in self._types for other in self._slot[s] if s != slot)
                name = tensor.name if shared else tensor.source
                exact[name] = globs[parse(name).pattern.replace("{n}", "*")] = dtype
        after = dict(self._types)
        for slot in after:
            for glob, dtype in globs.items():
                if any(fnmatchcase(name, glob) for tensor in self._slot[slot] for name in (tensor.name, tensor.source)):
                    after[slot] = dtype
        others = {slot for slot in after if after[slot] is not self._types[slot]} - changed.keys()
        several = len(exact) > 1 and (not others or len(exact) > _SHOWN)
        return globs if several and self._right(after) else exact


# -- Planning each version of bump: 3, 4 and 5 -------------------------------------------------------------------------

# Planning a BUMPWGT3 file, as its loader wants it.
#
# Source of every rule: the loader that ``src/ckernel_codegen.c`` emits (``load_weight_dtypes``, ``load_model_weights``)
# and the kernels it calls; upstream's own GGUF script breaks several of them.

_K_QUANT_BLOCK = 256
_OUTPUT = "attention.output.weight"

#: Bytes for keys, values and logits that are worth a note: what build_activation_specs (build_ir_v8.py) reserves of any
#: context, for every layer and as FP32.
_MUCH = 4 << 30

#: A configuration's context may make at most so many bytes of zeros: some megabytes, or a few times the model.
_POSITIONS_FLOOR = 64 << 20
_POSITIONS_SHARE = 4


class Bump3Planner(BumpPlanner):
    """The rules of the engine's first generated runtime."""

    engine = slots.GENERATED
    version = 3
    table = slots.TABLES["3"]
    data_start = slots.HEADER_BYTES
    step = slots.ALIGN_ELEMENTS

    def __init__(self, index: TensorIndex, options: Options, source: SourceFacts) -> None:
        super().__init__(index, options, source)
        self.numbering = releases.numbering(options)

    def _check_engine(self) -> None:
        c = self.config
        if self.options.template:
            self.refuse("bump 3 has no place for an engine template")
        release = releases.release_of(self.options)
        if self.options.engine and self.version not in release.versions:
            self.refuse(f"the engine of {release.title} loads no bump 3", f"--bump-version {release.versions[0]}")
        elif self.options.engine and self.numbering != release.codes:
            self.refuse(
                f"the engine of {release.title} uses other numbers for K-quants", f"--dtype-codes {release.codes}"
            )
        absent = next((row for row in (self.own_row, self.row) if row is not None and row.absent), None)
        if absent is not None:
            plain = f"{c.family} is not an RMSNorm + SwiGLU decoder, which is all this engine computes"
            self.refuse(f"{absent.why or plain}{catalog.bracketed(c, 'family', format=self.index.format)}")
            return
        if self.row is None:
            self.refuse(self.unknown_to_us(slots.GENERATED))
        if self.family.experts:
            self.refuse(f"{c.num_experts} experts per layer; the format holds dense models")
        if c.head_dim * c.num_heads != c.hidden_size:
            self.refuse(
                f"head size {c.head_dim} is not hidden / heads ({c.hidden_size} / {c.num_heads}), as it must be"
            )

        positions = self.geometry.context * self.geometry.aligned_hidden * F32.size
        most = max(_POSITIONS_FLOOR, _POSITIONS_SHARE * self.index.nbytes)
        if positions > most and not self.options.context:
            self.refuse(
                f"a context of {self.geometry.context:,} makes {positions:,} bytes of zeros for positions that are not "
                f"learned, the model has {self.index.nbytes:,} bytes",
                "--context N sets the context length",
            )

    def refused_type(self, source: DType, slot: slots.Slot) -> str:
        """See :meth:`BumpPlanner.refused_type`."""
        release = releases.release_of(self.options)
        if self.options.engine and source.name in releases.LOADED_BY_V3 and source.name not in release.older:
            return f"the engine of {release.title} has no correct kernel for {source} matrices"
        ok = source.name in releases.LOADED_BY_V3
        return "" if ok else f"the engine loads F32, Q4_K and Q6_K matrices, not {source}"

    def _rotates_pairs(self) -> bool:
        return False  # src/kernels/rope_kernels.c turns (i, i + D/2)

    def _check_types(self, types: Mapping[str, DType]) -> None:
        """Refuse blocks whose rows the loader wants padded, as blocks cannot be."""
        g = self.geometry
        decoding = "" if self.quantized_as else "--dequantize decodes them to FP32"
        if any(dtype.block == _K_QUANT_BLOCK for dtype in types.values()):
            for what, size in (("hidden", g.hidden), ("feed-forward", g.ffn)):
                if size % _K_QUANT_BLOCK:
                    self.refuse(
                        f"{what} size {size} is not a multiple of 256, which the loader wants of K-quants", decoding
                    )
        flat = [f"layers.{n}.{_OUTPUT}" for n in range(self.config.num_layers) if types[f"layer.{n}.wo"].block > 1]
        if flat and g.heads * g.aligned_head != g.aligned_hidden:
            self.refuse(
                f"a quantized wo must have heads x padded head size = hidden, not {g.heads} x {g.aligned_head}",
                self._as_floats([self.tensors[name] for name in flat]),
            )
        if any(t.block > 1 and (g.hidden % t.block or g.ffn % t.block) for t in types.values()):
            self.refuse(f"hidden {g.hidden} and feed-forward {g.ffn} must be whole blocks", decoding)
        who = slots.computed_by([dtype.name for dtype in types.values()], self.numbering)
        self.notes += [who] if who else []

    def _as_floats(self, tensors: Sequence[Tensor]) -> str:
        """Flag that makes these quantized matrices FP32; empty for none."""
        if not any(tensor.name in self.quantized_as for tensor in tensors):
            sources = [tensor.source for tensor in tensors]
            blocks = {tensor.source for tensor in self.tensors.values() if tensor.dtype.block > 1}
            return decoding_hint(sources, blocks - {*sources})
        globs = {parse(tensor.source).pattern.replace("{n}", "*") for tensor in tensors}
        rules = "".join(f",{glob}=f32" for glob in sorted(globs))
        every = all(tensor.name in self.quantized_as for tensor in tensors)
        return f"--quantize '{self.options.quantize}{rules}' takes another type" if every else ""

    def _check_rows(self, *, interleaved: bool) -> None:
        if interleaved:
            self.notes.append("Q and K rows are interleaved: every engine of bump 3 rotates split rows")

    def _finish(self, types: Mapping[str, DType], interleaved: bool) -> Plan:
        from ckconv.formats.bump.write import Bump3, container3

        steps = self.steps(types, interleaved=interleaved)
        kinds = {dtype.name for dtype in self.matrices(types).values()}
        right = () if interleaved else releases.right_of_bump3(kinds, self.numbering)
        self.notes += [releases.release_note(right)] if right and not slots.K_QUANTS & kinds else []
        layout = "interleaved" if interleaved else "split"
        return self.made(
            [self.file(steps)],
            partial(container3, Bump3(self.config, self.geometry, self.codes(types), layout)),
            rope_layout=layout,
            importance=self.importance,
            errors=self.quantized.errors if self.options.quantize else None,
            engines=right,
        )


# Planning BUMPWGT5, and layout D of BUMPWGT4, which has the same payload: what the engine's v7 and v8 compute.
#
# Sources: ``version/v7/scripts/convert_gguf_to_bump_v7.py`` for the layout, ``build_ir_v7.py`` and the templates for
# what is taken; which types are computed rightly was measured, not promised.


class Bump5Planner(BumpPlanner):
    """The rules of the engine's template-driven runtime."""

    engine = slots.TEMPLATED
    version = 5
    numbering = "v4"
    data_start = slots.EXTENDED_HEADER_BYTES
    step = 1

    def __init__(self, index: TensorIndex, options: Options, source: SourceFacts) -> None:
        super().__init__(index, options, source)
        self.release = releases.release_of(options)
        self._made: releases.FileFacts | None = None
        self._elsewhere: dict[str, str] = {}
        # An entry that no operation of the engine's template uses is a fault there, and so is one that is missing.
        self.present = set(sizes.used(self.family, slots.TEMPLATED))
        head = index.tensors.get(HEAD)
        if head is not None and not source.head_is_embedding and not self.dropped(head.name, head.source):
            self.present.add(HEAD)
        self.slots = sidefiles.table_of(self.family, self.config.scope) or slots.TABLES["5"]
        self.table = slots.with_optional(self.slots, self.present)
        self._template: dict[str, Any] | None = None
        if options.template is not None:
            self._template = releases.read_template(options.template, self.family.gguf)

    def _check_engine(self) -> None:
        version = self.version
        if version not in self.release.versions:
            title, versions = self.release.title, self.release.versions
            self.refuse(f"the engine of {title} loads no bump {version}", f"--bump-version {versions[0]}")
        elif self.own_row is not None and self.own_row.why:
            self.refuse(f"{self.own_row.why}{catalog.bracketed(self.config, 'family', format=self.index.format)}")
        elif self.row is None:
            self.refuse(self.unknown_to_us(slots.TEMPLATED))
        elif self.row.absent or (self.own_row is not None and self.own_row.absent):
            known = ", ".join(family.name for family in catalog.families_of_engine(slots.TEMPLATED))
            self.refuse(f"the engine has no template for {self.own.name} (ckconv knows those of {known})")
        elif why := releases.no_circuit(self.release, self.family.gguf):
            self.refuse(why, self._computed_by(lambda release: releases.no_circuit(release, self.family.gguf)))
        elif self.row.slots and version != 5:
            self.refuse(f"bump {version} has no place for the layers of {an(self.family.name)}", "--bump-version 5")
        elif "window" in self.row.reads:
            self.reasons += slots.engine_reasons(self.config, self.geometry.context)
        self.reasons += releases.conditions(self.release, self._to_judge({}))
        allowed = sizes.added(self.own, slots.TEMPLATED)
        if allowed is not None:
            there = {parse(name).pattern for name in self.tensors if is_bias(name)}
            if others := sorted(there - allowed):
                self.refuse(f"{self.own.name} goes to bump {self.version} only without {and_more(others)}")

    def _computed_by(self, fault: Callable[[releases.Release], object]) -> str:
        """Hint at releases without a fault whose templates fit the model."""
        made, there = self._to_judge({}), self._to_judge(self._stay_floats())._replace(biased=self._biased())
        faults = (fault, lambda it: [*releases.conditions(it, made)], lambda it: releases.doubled_biases(it, there))
        return releases.elsewhere(self.release, lambda it: any(one(it) for one in faults))

    def _stay_floats(self) -> dict[str, DType]:
        """Slot -> type of the source, of matrices whose rows are no blocks."""
        each = slots.slots_of(self.table, self.config.num_layers)
        parts = {name: self.tensors.get(names[0]) for name, _, names in each if names}
        return {name: part.dtype for name, part in parts.items() if part is not None and part.shape[-1] % _Q8_0.block}

    def _to_judge(self, types: Mapping[str, DType]) -> releases.FileFacts:
        scope = {
            **parameters.scope_of(self.own, replace(self.config, family=self.own.name)),
            "context": self.geometry.context,
        }
        right_if = self.own_row.right_if if self.own_row else ()
        return releases.FileFacts(self.version, self.family.gguf, scope, right_if, types, frozenset(), "")

    def _slides(self) -> bool:
        return self.row is not None and "window" in self.row.reads

    def keeps(self, source: DType) -> bool:
        """See :meth:`BumpPlanner.keeps`."""
        return self.release.keeps(source.name)

    def elsewhere(self, why: str) -> str:
        """See :meth:`BumpPlanner.elsewhere`."""
        return self._elsewhere.get(why, "")

    def refused_type(self, source: DType, slot: slots.Slot) -> str:
        """See :meth:`BumpPlanner.refused_type`."""

        def wrong(release: releases.Release) -> bool:
            return releases.no_kernel(release, source.name, slot.name)

        if not wrong(self.release):
            return ""
        hint = self._computed_by(wrong)
        who = f"the engine of {self.release.title}" if hint else "the engine"
        what = f"a {source} {slot.name}" if source.name in self.release.projections else f"{source} matrices"
        why = f"{who} has no correct kernel for {what}"
        self._elsewhere[why] = hint
        return why

    def _check_types(self, types: Mapping[str, DType]) -> None:
        matrices = self.matrices(types)
        layout = "split" if self._rotates_pairs() and not self._interleaved() else ""
        made = self._to_judge(matrices)._replace(biased=self._biased(), rope_layout=layout)
        made = made._replace(template=releases.merged(releases.needed_template(made), self._template or {}))
        for why in releases.later_faults(self.release, made):
            self.refuse(why, "; ".join(filter(None, self._ways_out(made))))
        self._made = made

    def _ways_out(self, made: releases.FileFacts) -> Iterator[str]:
        """Flags with which the engine computes the model."""

        def right(types: Mapping[str, DType]) -> bool:
            return not [*releases.later_faults(self.release, made._replace(types=types))]

        def stand(types: Mapping[str, DType]) -> bool:
            return not releases.mixed(self.release, made._replace(types=types))

        tensors = {
            name: [self.tensors[canonical] for canonical in names if canonical in self.tensors]
            for name, _, names in slots.slots_of(self.table, self.config.num_layers)
        }
        remedies = Remedies(tensors, made.types, self.quantized_as, self.options, right, stand)
        layers = [slot.rpartition(".")[0] for slot, _ in releases.mixed(self.release, made)]
        mixes = releases.mixes_of(self.release, made.circuit)
        group = dict.fromkeys(slot for mix in mixes for slot in mix.slots + mix.beside)
        flag = remedies.least_change([tuple(f"{layer}.{slot}" for slot in group) for layer in layers]) if layers else ""
        yield flag or remedies.rounded()
        yield releases.elsewhere(self.release, lambda release: releases.remains_wrong(release, made))

    def _biased(self) -> frozenset[str]:
        """Slots of biases that are not all zeros."""
        slot_of = {
            canonical: name
            for name, slot, names in slots.slots_of(self.table, self.config.num_layers)
            for canonical in names
            if slot.zero_if_absent
        }
        there = [tensor for name, tensor in self.tensors.items() if name in slot_of]
        empty = zeros(self.index, there) if self.looks else frozenset[str]()
        return frozenset(slot_of[tensor.name] for tensor in there if tensor.name not in empty)

    def _check_rows(self, *, interleaved: bool) -> None:
        """Check that a configuration can say how rows are stored.

        Only ``split`` against its template (``_resolve_rope_qk_kernel`` of v7 and v8).
        """
        if interleaved and not self._rotates_pairs():
            self.refuse(
                f"Q and K rows would be interleaved, the template for {self.family.gguf} rotates split rows",
                "--rope-layout engine stores split rows, --template FILE may rotate interleaved ones",
            )

    def _rotates_pairs(self) -> bool:
        if self.own_row is not None and self.own_row.rotates == "neighbors":
            return False  # rows of neighbors everywhere: none is moved
        default = self.row is not None and self.row.rotates == "interleaved"
        if self._template is None:
            return default
        return releases.template_interleaves(self._template, default)

    def _finish(self, types: Mapping[str, DType], interleaved: bool) -> Plan:
        # What only a plan needs that is going to be carried out: `inspect` asks no more than whether there is one.
        from ckconv.formats.bump import write as documents
        from ckconv.formats.bump.write import Bump5, container5
        from ckconv.tokenizer.vocabulary import MERGE_BYTES

        keys = gguf_keys(self.index, self.geometry.vocab)
        content = tokenizer_of(self.index, keys, self.geometry.vocab) or {}
        table = slots.with_optional(self.slots, self.present | content.keys())
        steps = tuple(self.steps(types, interleaved=interleaved, table=table, content=content))
        assert self._made is not None
        right = releases.right(self._made)
        self._note(content, types[HEAD if HEAD in self.present else "token_emb"], right)
        self.notes.append(releases.release_note(right))
        facts = documents.DocumentFacts(
            config=self.config,
            geometry=self.geometry,
            steps=steps,
            tied=HEAD not in self.present,
            own_rope_layout=self._made.rope_layout,
            engines=right,
            of=self.own.name if self.own is not self.family else "",
            num_merges=len(content.get("vocab_merges", b"")) // MERGE_BYTES,
            total_vocab_bytes=len(content.get("vocab_strings", b"")),
            special_tokens=special_tokens_of(self.index, keys),
            texts=texts_of(self.index),
            template=self._template,
            fragment=releases.needed_template(self._made),
            created=self.options.created,
        )
        manifest = documents.manifest(facts)
        metadata = documents.metadata(facts, manifest) if self.version == 5 else b""
        made = Bump5(
            self.version,
            self.geometry,
            self.codes(types),
            facts.num_merges,
            facts.total_vocab_bytes,
            content,
            manifest,
            documents.config_json(facts),
            metadata,
        )
        return self.made(
            [self.file(steps, len(metadata))],
            partial(container5, made),
            rope_layout="interleaved" if interleaved else "split",
            importance=self.importance,
            errors=self.quantized.errors if self.options.quantize else None,
            engines=right,
        )

    def _note(self, content: Mapping[str, bytes], head: DType, right: Sequence[str]) -> None:
        same = equal_tokens_of(self.index, "a text has the one or the other")
        self.notes += [same] if same and content else []
        if not content:
            self.notes.append("the source has no tokenizer: none is embedded")
        needing = (it for it in releases.releases().values() if it.all_logits(self.family.gguf, head.name))
        full = [it.title for it in needing if it.name in right]
        if full or head is F32:
            whose = "" if head is F32 else f" of {' and of '.join(full)}"
            word = "FP32" if head is F32 else head.name
            self.notes.append(f"the output head is {word}: the engine{whose} is built with --logits-layout full")
        g = self.geometry
        row = 2 * g.num_layers * g.kv_heads * g.head + (g.vocab if full or head is F32 else 0)
        if (reserved := row * g.context * F32.size) > _MUCH:
            self.notes.append(
                f"the engine reserves at least {reserved / 1e9:,.0f} GB for the {g.context:,} positions that the file "
                "names: --context N, or --context-len N of the engine's runner, needs less memory"
            )
        if self.version == 4:
            self.notes.append(slots.FOR_V7_AND_V8)
        if self._template is None:
            self.notes.append("no engine template is embedded (--template): the engine takes its own")
        elif self._template.get("name", self.family.gguf) != self.family.gguf:
            self.notes.append(f"the template calls itself {self._template['name']!r}, the model is {self.family.gguf}")


class Bump4Planner(Bump5Planner):
    """Planner of version 4: the payload of version 5 without metadata."""

    version = 4
