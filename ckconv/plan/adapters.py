"""Adapters merged into a model, and planned as a target's own."""

from __future__ import annotations

import filecmp
import math
import shlex
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ckconv.core.config import ModelConfig
from ckconv.core.layouts import BF16, F16, F32, F64, WIDENS_TO_F32, DType, Kind, Layout, plain, transposed
from ckconv.core.lazy import dataclass, replace
from ckconv.core.metadata import TOKENIZER
from ckconv.core.options import Options
from ckconv.core.tensors import (
    BY_BASE,
    Adapter,
    AdapterModule,
    Delta,
    Merge,
    MetadataKind,
    Replacement,
    Rescale,
    Role,
    Tensor,
    TensorIndex,
    matrix_of,
)
from ckconv.errors import InputError, UnsupportedError, counted, listed, quoted, shown
from ckconv.families.adapters import (
    EMBEDDING_MODULE,
    HEAD_MODULE,
    Change,
    Outputs,
    changes_of,
    families_of,
    family_named,
    matrix_shape,
    parted,
    path_of,
    placed,
    resized_first,
    transposing,
)
from ckconv.families.catalog import rows_of_head
from ckconv.plan.planner import Planner
from ckconv.plan.probe import SourceFacts, gather, have_equal_values
from ckconv.plan.steps import Piece, Plan, Run
from ckconv.quant.convert import between, decodable, writable

# -- A model with adapters merged in: an index with computed tensors ---------------------------------------------------

# What becomes of a tied base, whose output head is its embedding, when adapters change one of the two or both.

_HEAD_TENSOR, _EMBEDDING_TENSOR = f"{HEAD_MODULE}.weight", f"{EMBEDDING_MODULE}.weight"


def untied(base: TensorIndex, adapters: Sequence[TensorIndex], config: ModelConfig) -> TensorIndex:
    """Base with a head of its own, where adapters change a tied one."""
    separate, together, rows_of_head = False, False, False
    for index in adapters:
        known = index.adapter
        assert known is not None
        for name in known.modules.keys() & {EMBEDDING_MODULE, HEAD_MODULE}:
            rows = Role.ROWS in known.modules[name].roles  # of the embedding, peft replaces those of a tied head too
            separate |= not known.ties and not rows
            together |= (known.ties or rows) and name == EMBEDDING_MODULE
            rows_of_head |= rows and name == HEAD_MODULE
    if not (separate or together or rows_of_head) or not _is_tied(base, config):
        return base
    if rows_of_head:
        text = "the base is tied, and the adapter replaces rows of its output head that are not its embedding's"
        hint = "ckconv convert BASE DST --untie makes a base with a head of its own; merge the adapter into that"
        raise _unsupported(base, text, hint=hint)
    if separate and together:
        text = "the base is tied; of the changes some are of its embedding and its output head together, others of one"
        raise _unsupported(base, text)
    tensors = dict(base.tensors)
    if together:
        tensors.pop(_HEAD_TENSOR, None)  # the one matrix that both are changes with the embedding
        return replace(base, tensors=tensors)
    if _HEAD_TENSOR not in base.tensors:
        tensors[_HEAD_TENSOR] = replace(tensors[_EMBEDDING_TENSOR], name=_HEAD_TENSOR)
    return replace(base, tensors=tensors, config=replace(config, tied=False))


def without_tied_copy(index: TensorIndex, base: TensorIndex, config: ModelConfig) -> TensorIndex:
    """Adapter that changes a tied embedding and head once, not twice.

    peft saves both where it keeps them tied (``ensure_weight_tying``), and where the vocabulary grew.
    """
    known = index.adapter
    assert known is not None
    head, embedding = known.modules.get(HEAD_MODULE), known.modules.get(EMBEDDING_MODULE)
    if head is None or embedding is None or not _is_tied(base, config):
        return index
    alike = (head.roles, head.scale, head.replaced) == (embedding.roles, embedding.scale, embedding.replaced)
    pairs = ((f"{HEAD_MODULE}.{role.value}", f"{EMBEDDING_MODULE}.{role.value}") for role in head.roles)
    alike = alike and have_equal_values(index, pairs)
    if not alike and not known.ties:
        return index
    if not alike:
        raise _unsupported(
            index, "the base is tied, and the adapter changes its embedding and its output head differently"
        )
    modules = {name: module for name, module in known.modules.items() if name != HEAD_MODULE}
    return replace(index, adapter=replace(known, modules=modules, ties=True))


def _unsupported(index: TensorIndex, text: str, **facts: Any) -> UnsupportedError:
    return UnsupportedError("adapter.unsupported", text, path=index.path, **facts)


def _is_tied(base: TensorIndex, config: ModelConfig) -> bool:
    return _HEAD_TENSOR not in base.tensors or (config.tied is not False and gather(base).head_is_embedding)


# A model with adapters merged into it: the same index, some of whose tensors are computed.
#
# Everything downstream - planning, streaming, verifying, hashing - reads such a tensor like any other.


@dataclass(frozen=True, slots=True)
class Adapting:
    """An adapter to merge; its change is multiplied by ``weight``."""

    index: TensorIndex
    weight: float = 1.0


def merge_adapters(
    base: TensorIndex,
    adapters: Sequence[Adapting],
    *,
    decoded: Callable[[Tensor], bool],
    unrounded: Callable[[Tensor], bool] = lambda tensor: False,
) -> TensorIndex:
    """Base with the changed matrices computed, adapters in order.

    Args:
        decoded: a quantized matrix may be decoded to float32 for it.
        unrounded: what is computed of a tensor stays float32, whatever the type of the base.

    Raises:
        InputError: ``adapter.base``, an adapter changes what the base does not have, or not in that shape.
        UnsupportedError: ``adapter.unsupported``, what cannot be merged; ``adapter.quantized``, matrices whose blocks
            would have to be decoded.
    """
    config = base.config
    if base.adapter is not None:
        given = (base, *(each.index for each in adapters))
        models = [index for index in given if index.adapter is None]  # the two are the wrong way round
        merged = [f"--adapter {shlex.quote(shown(index.path))}" for index in given if index.adapter is not None]
        model = shlex.quote(shown(models[0].path)) if models else "BASE"
        hint = f"ckconv convert {model} DST {' '.join(merged)} merges {'all of them' if len(merged) > 1 else 'it'}"
        raise _unsupported(base, "it is an adapter, and --adapter merges into a model", hint=hint)
    if config is None:
        known = f"ckconv has none for {quoted(base.architecture)}"
        raise _unsupported(base, f"merging an adapter takes the architecture's rules, and {known}")
    _check_supported(adapters)
    adapters = [replace(adapter, index=without_tied_copy(adapter.index, base, config)) for adapter in adapters]
    base = untied(base, [adapter.index for adapter in adapters], config)
    _check_there(base, adapters, config)
    tensors = dict(base.tensors)
    quantized: list[str] = []
    for name, tensor in base.tensors.items():
        made = _changed(tensor, base, adapters, config)
        if made is None:
            continue
        if made.merge is not None and made.dtype is F64:
            text = f"{tensor.source} is F64, and what an adapter changes is computed in float32"
            hint = "ckconv convert BASE DST/ --to hf --dtype f32 makes a base of float32"
            raise _unsupported(base, text, hint=hint)
        if made.merge is not None and made.dtype not in WIDENS_TO_F32:
            if not decoded(tensor):
                quantized.append(f"{tensor.source} is {tensor.dtype}")
            made = replace(made, dtype=F32)
        elif made.merge is not None and unrounded(tensor):
            made = replace(made, dtype=F32)
        tensors[name] = made
    if quantized:
        raise UnsupportedError(
            "adapter.quantized",
            f"the adapter changes {counted(len(quantized), 'matrix that is', 'matrices that are')} quantized",
            path=base.path,
            hint="--dequantize decodes them to float32, --decode GLOB only the ones it names",
            details=listed(quantized),
        )
    head = _HEAD_TENSOR if _HEAD_TENSOR in base.tensors else _EMBEDDING_TENSOR
    if tensors.get(head) is not base.tensors.get(head):
        for name in rows_of_head(base):  # those of the base's, which are no longer the model's
            tensors.pop(name, None)
    files = (*base.files, *(path for adapter in adapters for path in adapter.index.files))
    identities = dict(base.identities)
    for adapter in adapters:
        identities |= adapter.index.identities
    return replace(
        base,
        tensors=tensors,
        files=files,
        merged=tuple(_words(adapter, base) for adapter in adapters),
        identities=identities,
    )


#: Where a model says what it is called, in a ``config.json`` or in the header of a GGUF.
_NAME_KEYS = ("_name_or_path", "general.name", "general.basename")


def _words(adapter: Adapting, base: TensorIndex) -> str:
    known = adapter.index.adapter
    assert known is not None
    weight = "" if adapter.weight == 1 else f", weight {adapter.weight:g}"
    words = f"{adapter.index.path.name} ({known.method}, {counted(len(known.modules), 'module')}{weight})"
    if not _is_called(known.base_name, base):
        words += f": made for {quoted(known.base_name)}; the base model given has another name"
    if EMBEDDING_MODULE in known.modules and _has_own_tokenizer(adapter.index, base):
        words += "; the tokenizer is the base's"
        if base.metadata_kind is MetadataKind.DOCUMENT:  # whose tokenizer is a file
            words += ": that of the adapter's directory counts where it is copied to the base's"
    return words


def _has_own_tokenizer(adapter: TensorIndex, base: TensorIndex) -> bool:
    """Whether another tokenizer than the base's lies beside an adapter."""
    own, other = (index.files[0].parent / TOKENIZER for index in (adapter, base))
    return own.is_file() and not (other.is_file() and filecmp.cmp(own, other, shallow=False))


def _is_called(name: str, base: TensorIndex) -> bool:
    """Whether the base may be the model that an adapter names.

    Not compared: who published it, letter case, and what a file name adds, as the type of a quantized copy.
    """
    titles = [getattr(value, "value", value) for value in map(base.metadata.get, _NAME_KEYS)]
    names = [_plain(text) for text in (base.path.absolute().name, *titles) if isinstance(text, str)]
    wanted = _plain(name)
    return not wanted or any(known and (known in wanted or wanted in known) for known in names)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.rstrip("/").rpartition("/")[2].lower() if letter.isalnum())


#: The way out of what peft computes and ckconv does not.
MERGED_BY_PEFT = "merge_and_unload() of peft's PeftModel merges it; ckconv converts what save_pretrained() writes then"


def _check_supported(adapters: Sequence[Adapting]) -> None:
    for adapter in adapters:
        known = adapter.index.adapter
        if known is None:
            raise _misfit(adapter, f"is a {adapter.index.format} model, not an adapter")
        faults = list(known.unsupported)
        if adapter.weight != 1:
            odd = [m.path for m in known.modules.values() if m.kind != "lora"]
            if odd:
                faults.append(f"only LoRA has a weight; {odd[0]} and {len(odd) - 1} more are of another method")
        faults += [
            f"{module.path}: DoRA of an embedding has no defined merge"
            for module in known.modules.values()
            if module.embedding and Role.MAGNITUDE in module.roles
        ]
        if faults:
            by_peft = "peft_type" in known.document and known.unsupported
            hint = MERGED_BY_PEFT if by_peft else None
            raise _unsupported(adapter.index, faults[0], details=listed(faults[1:]), hint=hint)


def _misfit(adapter: Adapting, message: str, **facts: Any) -> InputError:
    return InputError("adapter.base", message, path=adapter.index.path, **facts)


def _check_there(base: TensorIndex, adapters: Sequence[Adapting], config: ModelConfig) -> None:
    """Every tensor of every adapter changes a tensor of the base."""
    for adapter in adapters:
        known = adapter.index.adapter
        assert known is not None
        used = {change.module.name for name in base.tensors for change in changes_of(adapter.index, name, config)}
        missing = [module for module in known.modules.values() if module.name not in used]
        if missing:
            details = listed([quoted(module.path) for module in missing[1:]])
            hint = "the head of a tied model is its embedding" if missing[0].name == "output" else None
            raise _misfit(adapter, f"no base tensor for {quoted(missing[0].path)}", details=details, hint=hint)
        for module in known.modules.values():
            if Role.BIAS in module.roles or Role.SAVED_BIAS in module.roles:
                _check_bias(base, adapter, module)


def _check_bias(base: TensorIndex, adapter: Adapting, module: AdapterModule) -> None:
    if f"{module.name}.bias" not in base.tensors and not any(
        change.module is module
        for name in base.tensors
        if name.endswith(".bias")
        for change in changes_of(adapter.index, name, base.config)  # type: ignore[arg-type]
    ):
        drop = f"ckconv convert ADAPTER DST/ --to peft --drop '*.{Role.BIAS.value}' leaves it out"
        hint = f"{drop}; merge what that makes" if Role.BIAS in module.roles else None
        raise _misfit(adapter, f"{quoted(module.path)} has a bias, the base has none there", hint=hint)


def _changed(tensor: Tensor, base: TensorIndex, adapters: Sequence[Adapting], config: ModelConfig) -> Tensor | None:
    """The changed tensor; ``None`` where no adapter changes it."""
    start = tensor
    changes: list[Delta | Rescale | Replacement] = []
    for adapter in adapters:
        for change in changes_of(adapter.index, tensor.name, config):
            saved = change.tensors.get(Role.SAVED_BIAS if _is_bias(tensor) else Role.SAVED_WEIGHT)
            if saved is not None:
                _check_shape(saved.shape, tensor, base, adapter, change)
                start, changes = replace(saved, name=tensor.name, source=tensor.source, shape=tensor.shape), []
            added = _of_bias(change, adapter) if _is_bias(tensor) else _of_weight(change, adapter)
            for one in added:
                _check_change(one, tensor, base, adapter, change)
            changes += added
    if not changes:
        return None if start is tensor else start
    if start.layout.shift:
        raise UnsupportedError(
            "adapter.unsupported", f"{tensor.source} is a norm that its format stores shifted", tensor=tensor.source
        )
    kind: DType = tensor.dtype if start is tensor else start.dtype
    rows, cols = matrix_of(tensor.shape, F32)
    return Tensor(
        tensor.name, tensor.source, kind, tensor.shape, (), plain(rows, cols), merge=Merge(start, tuple(changes))
    )


def _is_bias(tensor: Tensor) -> bool:
    return tensor.name.endswith(".bias")


def _of_weight(change: Change, adapter: Adapting) -> list[Delta | Rescale | Replacement]:
    tensors = change.tensors
    if Role.ROWS in tensors:
        return [Replacement(tensors[Role.ROWS], change.module.replaced)]
    if Role.IA3 in tensors:
        return [Rescale(_column(tensors[Role.IA3]), change.module.feedforward)]
    if Role.B not in tensors:
        return []
    magnitude = _column(tensors[Role.MAGNITUDE]) if Role.MAGNITUDE in tensors else None
    return [Delta(tensors[Role.A], tensors[Role.B], change.module.scale * adapter.weight, magnitude)]


def _of_bias(change: Change, adapter: Adapting) -> list[Delta | Rescale | Replacement]:
    tensors = change.tensors
    if Role.IA3 in tensors and not change.module.feedforward:
        return [Rescale(_column(tensors[Role.IA3]), of_columns=False)]
    if Role.BIAS in tensors:
        return [Delta(None, _column(tensors[Role.BIAS]), change.module.scale * adapter.weight)]
    return []


def _column(tensor: Tensor) -> Tensor:
    """Vector of any number of axes as one column."""
    return replace(tensor, layout=plain(tensor.elements, 1))


def _check_change(
    change: Delta | Rescale | Replacement, tensor: Tensor, base: TensorIndex, adapter: Adapting, found: Change
) -> None:
    rows, cols = matrix_of(tensor.shape, F32)
    if isinstance(change, Replacement):
        wanted_rows = max(rows, max(change.at) + 1)
        if (wanted_rows, change.rows.layout.cols) != (rows, cols):
            _check_shape((wanted_rows, change.rows.layout.cols), tensor, base, adapter, found)
        return
    if isinstance(change, Rescale):
        wanted, got = (cols if change.of_columns else rows), change.factors.layout.rows
        if wanted != got:
            _check_shape((got,), tensor, base, adapter, found)
        return
    columns = change.a.layout.cols if change.a is not None else 1
    if (change.b.layout.rows, columns) != (rows, cols):
        _check_shape((change.b.layout.rows, columns), tensor, base, adapter, found)


def _check_shape(shape: tuple[int, ...], tensor: Tensor, base: TensorIndex, adapter: Adapting, change: Change) -> None:
    if shape != tensor.shape:
        of_base = f"{tensor.source} of the base is {list(tensor.shape)}"
        hint = resized_first(change.module.name, shape, tensor.shape, base)
        message = f"{quoted(change.module.path)} is {list(shape)}, {of_base}"
        raise _misfit(adapter, message, tensor=tensor.source, hint=hint)


# -- Planning of adapters: tensors, types, and refusals of targets -----------------------------------------------------

# What planning for an adapter has in common: which tensors are written, as what type, and what a target cannot say.
#
# A target that holds one scale for all modules gets the one that fits most of them, and for the others
# ``lora_b`` is multiplied: by a power of two where that is possible, which changes no digit; any other factor rounds,
# and is refused unless a flag allows it.

_FLOAT_TYPES = {"f32": F32, "f16": F16, "bf16": BF16}

#: Way outs that several reasons of adapters have: what somebody runs who merges one, and who names its base.
MERGED = "ckconv convert BASE DST --adapter ADAPTER merges it into the base model"
NAME_BASE = "--base BASE names the base model"


class Entry(NamedTuple):
    """Tensor of the output: name, content and layout.

    Attributes:
        more: tensors whose rows follow those of ``source``.
    """

    name: str
    source: Tensor
    layout: Layout
    shape: tuple[int, ...]
    more: tuple[Tensor, ...] = ()


class AdapterPlanner(Planner):
    """Planner of one adapter; targets say names and layouts."""

    #: What the target is called in sentences.
    what: str
    #: Roles that it has a place for.
    roles: frozenset[Role]
    #: Quantized blocks are a type of tensor there.
    holds_blocks = False
    #: The target has the adapter of a task beside its model.
    holds_tasks = False

    def __init__(self, index: TensorIndex, options: Options, source: SourceFacts) -> None:
        index = parted(index, self.has_place)
        super().__init__(index, options, source)
        assert index.adapter is not None
        self.adapter: Adapter = index.adapter
        self.modules = self._left()

    def plan(self, *, only_reasons: bool = False) -> Plan:
        """The plan, or all reasons why there is none."""
        for text in self.adapter.unsupported:
            peft = MERGED_BY_PEFT if "peft_type" in self.adapter.document else ""
            self.refuse(text, NAME_BASE if text.endswith(BY_BASE) else peft)
        if self.index.unknown and not self.adapter.unsupported:
            names = ", ".join(quoted(tensor.name) for tensor in self.index.unknown[:3])
            text = f"no rule for {counted(len(self.index.unknown), 'tensor')} ({names})"
            self.refuse(text, "--drop GLOB leaves out what it names")
        if self.adapter.task is not None and not self.holds_tasks:
            self.refuse("the adapter of a task goes to GGUF: no other program loads it beside the model", "--to gguf")
        self._refuse_roles()
        if not self.modules and not self.reasons:
            self.refuse("no module is left")
        self.check()
        entries = [] if self.reasons else self.entries()
        pieces = self._pieces(entries)
        if self.reasons or only_reasons:
            return self.refused()
        return self.finish(pieces)

    def has_place(self, module: str, base: ModelConfig) -> bool:
        """Whether the target has one matrix for a module of the base."""
        return True

    @abstractmethod
    def check(self) -> None:
        """Note the target's own reasons to refuse."""

    @abstractmethod
    def entries(self) -> list[Entry]:
        """The tensors of the output, in order; reasons that come up are noted."""

    @abstractmethod
    def finish(self, pieces: Sequence[Piece]) -> Plan:
        """The plan."""

    def tensor(self, module: AdapterModule, role: Role) -> Tensor:
        """The source's tensor."""
        return self.index.tensors[f"{module.name}.{role.value}"]

    def stacked(self, module: AdapterModule) -> bool:
        """Whether the matrices have a leading axis of experts."""
        return Role.A in module.roles and len(self.tensor(module, Role.A).shape) == 3

    def placed(self, path: str) -> Outputs | None:
        """Layout of the target matrix's rows, ``None`` for canonical order."""
        outputs, why = placed(path, families_in(self), self.adapter.base)
        if why:
            self.refuse(why, NAME_BASE if why.endswith(BY_BASE) else "")
        return outputs

    def _left(self) -> tuple[AdapterModule, ...]:
        """Modules without the tensors that a flag leaves out."""
        found = []
        for module in self.adapter.modules.values():
            roles = []
            for role in module.roles:
                tensor = self.index.tensors.get(f"{module.name}.{role.value}")
                if tensor is not None and self.dropped(tensor.name, tensor.source):
                    self.leave_out(tensor.name, "--drop", tensor.nbytes)
                elif tensor is not None and tensor.name in self.source.copies:
                    self.leave_out(tensor.name, "it is the base's own", tensor.nbytes)
                else:
                    roles.append(role)
            if (Role.A in roles) != (Role.B in roles):
                self.refuse(f"--drop leaves half of {quoted(module.path)}")
            if roles:
                found.append(module._replace(roles=tuple(roles)))
        return tuple(found)

    def _refuse_roles(self) -> None:
        """Refuse kinds of matrices that the target cannot hold."""
        lacking: Counter[Role] = Counter(role for m in self.modules for role in m.roles if role not in self.roles)
        for role, count in lacking.items():
            modules = "1 module" if count == 1 else f"{count} modules"
            whole = role in (Role.SAVED_WEIGHT, Role.SAVED_BIAS)
            hint = MERGED
            if any(self.roles.intersection(m.roles) for m in self.modules):
                hint += f", --drop '*.{role.value}' leaves them out"
            if whole and (first := self._resized()):
                hint = f"{first}; then {MERGED}"
            elif role is Role.SAVED_WEIGHT and self.adapter.base_index is None:
                hint += "; copies of the base's matrices are left out where --base names it"
            self.refuse(f"{self.what} has no place for {_ROLE_NAMES[role]} of {modules}", hint)
        experts = [module for module in self.modules if ".experts." in module.name and not self.stacked(module)]
        if experts and self.index.format != self.format.removesuffix(" adapter"):
            one = f"{self.what}: {quoted(experts[0].path)} is one of many experts"
            if self.adapter.base is None:
                self.refuse(f"{one}, whose number follows from the base", NAME_BASE)
            else:
                self.refuse(f"{one}, and not all of its layer have a LoRA of one rank and scale")

    def _resized(self) -> str | None:
        """Way out of an embedding or a head of another size."""
        base, base_index = self.adapter.base, self.adapter.base_index
        for module in (EMBEDDING_MODULE, HEAD_MODULE):
            tensor = self.index.tensors.get(f"{module}.{Role.SAVED_WEIGHT.value}")
            if base is not None and tensor is not None and tensor.shape[0] != base.vocab_size:
                return resized_first(module, tensor.shape, (base.vocab_size, *tensor.shape[1:]), base_index)
        return None

    def _pieces(self, entries: Iterable[Entry]) -> list[Piece]:
        pieces = []
        wrong: Counter[tuple[str, DType]] = Counter()
        for entry in entries:
            dtype, reason = self._dtype(entry)
            if reason:
                wrong[reason, entry.source.dtype] += 1
            pieces.append(piece_of(entry, dtype))
        for (reason, own), count in wrong.items():
            hint = "--dequantize decodes them" if decodable(own) else "--dtype f32" if own is F64 else ""
            self.refuse(f"{reason}: {counted(count, 'tensor')} of type {own}", hint)
        return pieces

    def _dtype(self, entry: Entry) -> tuple[DType, str]:
        """The type that an entry gets, and why it cannot have one."""
        own = entry.source.dtype
        requested = _FLOAT_TYPES.get(self.options.dtype)
        if self.adapter.task is not None and self.options.dtype == "engine":  # as llama.cpp's converter writes them
            requested = F32
        if own.kind is Kind.BLOCK:
            if self.decoded(entry.source) and decodable(own):
                return requested or F32, ""
            moves = self._keeps_blocks(entry)
            return own, "" if moves else f"{self.what} does not hold these blocks as they are"
        target = requested or own
        if target not in WIDENS_TO_F32 or not writable(own, target):
            return own, f"{self.what} holds F32, F16 and BF16"
        return target, ""

    def _keeps_blocks(self, entry: Entry) -> bool:
        """Whether whole rows of blocks can stay what they are."""
        source = entry.source.layout
        alike = source.scale == entry.layout.scale and source.whole_rows and entry.layout.whole_rows
        return self.holds_blocks and alike and self.options.dtype in ("engine", "keep")


_ROLE_NAMES = {
    Role.A: "LoRA matrices",
    Role.B: "LoRA matrices",
    Role.BIAS: "LoRA biases",
    Role.MAGNITUDE: "DoRA magnitudes",
    Role.IA3: "IA3 factors",
    Role.ROWS: "rows of single tokens",
    Role.SAVED_WEIGHT: "whole weights",
    Role.SAVED_BIAS: "whole biases",
}


def as_rows(name: str, tensor: Tensor, *, scale: float = 1.0) -> Entry:
    """Stored as the canonical rows are."""
    rows, cols = tensor.layout.rows, tensor.layout.cols
    return Entry(name, tensor, replace(plain(rows, cols), scale=scale), tensor.shape)


def as_columns(name: str, tensor: Tensor, *, scale: float = 1.0) -> Entry:
    """Stored the other way round."""
    rows, cols = tensor.layout.rows, tensor.layout.cols
    return Entry(name, tensor, replace(transposed(rows, cols), scale=scale), (cols, rows))


def piece_of(entry: Entry, dtype: DType) -> Piece:
    """The entry as an array of the output that has no place yet."""
    target = Tensor(entry.source.name, entry.name, dtype, entry.shape, (), entry.layout)
    conversion = between(entry.source, target)
    every = (entry.source, *entry.more) if entry.more else ()
    runs = tuple(Run(tensor, between(tensor, target), 0, tensor.layout.rows) for tensor in every)
    return Piece(entry.name, entry.source.name, dtype, entry.shape, entry.layout, entry.source, conversion, runs)


def power_of_two(factor: float) -> bool:
    """Whether multiplying by a number changes no digit."""
    return factor > 0 and math.frexp(factor)[0] == 0.5


def best_scale(modules: Iterable[AdapterModule]) -> float:
    """Scale that changes the fewest digits."""
    scales = Counter(module.scale for module in modules)

    def fit(scale: float) -> tuple[int, int]:
        close = sum(count for other, count in scales.items() if power_of_two(other / scale))
        return close, scales[scale]

    return max(scales, key=fit) if scales else 1.0


def paths_in(
    planner: AdapterPlanner, scheme: str, *, same: bool, placed: Mapping[str, object] = MappingProxyType({})
) -> Mapping[str, str]:
    """Module -> path in a scheme; reasons for modules without one.

    Args:
        same: the source is of the same format: paths stay what they are, as do those for which no rule is known.
        placed: modules that have a place already.
    """
    index, modules = planner.index, planner.modules
    if same:
        return {module.name: module.path for module in modules}
    families = families_in(planner)
    paths = {}
    for module in modules:
        if module.name in placed:
            continue
        path = path_of(module.name, families, scheme)
        if path is None and index.metadata_kind is MetadataKind.TYPED:
            planner.refuse(f"no name is known for {quoted(module.path)} of {index.architecture!r}")
        elif path is None and _is_of(module, planner.adapter.base):
            planner.refuse(f"{planner.what} has no one matrix for {quoted(module.path)}", MERGED)
        paths[module.name] = path or module.path
    return paths


def _is_of(module: AdapterModule, base: ModelConfig | None) -> bool:
    return base is not None and matrix_shape(module.name, base) is not None


def families_in(planner: AdapterPlanner) -> tuple[str, ...]:
    """Families of the base: own, named, or fitting."""
    adapter, index = planner.adapter, planner.index
    if adapter.base is not None:
        return (adapter.base.family,)
    if index.metadata_kind is MetadataKind.TYPED:
        family = family_named(index.architecture)
        return (family.name,) if family else ()
    found = families_of(module.path for module in planner.modules)
    conv1d = adapter.document.get("fan_in_fan_out")  # peft's word for matrices that are stored [in, out]
    turned = transposing()
    return tuple(name for name in found if (name in turned) is conv1d) or found
