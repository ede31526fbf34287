"""Plans of checkpoints: rules that transformers and mlx-lm share."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ckconv.core.config import ModelConfig, scaled
from ckconv.core.layouts import DTYPES, F32, INTEGERS, DType, Kind
from ckconv.core.lazy import cached_property, replace
from ckconv.core.metadata import CONFIG_NAME, METADATA, UNWRITTEN, beside, document_of, text_key, text_of_card
from ckconv.core.options import Options
from ckconv.core.tensors import (
    EMBEDDING,
    GATE_UP,
    HEAD,
    PREFIX,
    ROPE_FREQUENCIES,
    DroppedTensor,
    MetadataKind,
    StoredTensor,
    Tensor,
    TensorIndex,
    chained,
    made,
    parse,
    parted,
    plain_tensor,
)
from ckconv.errors import an, counted
from ckconv.families import catalog
from ckconv.families.canonical import as_head
from ckconv.families.huggingface_classes import expected_of, fit, is_on, needs, switches_of
from ckconv.families.keys import CONSUMERS
from ckconv.families.names import (
    FUSIONS,
    GGUF,
    NAMES_KEY,
    PARAMS_NAME,
    REFERENCE,
    TRIPLED,
    is_beside_text,
    names_of,
    scheme_names,
    tables_of,
)
from ckconv.families.parameters import differ, nested, own_document, write
from ckconv.families.schema import TOWER, TRANSFORMERS, Family, Loader
from ckconv.families.sizes import Sizes, expected, has_transposed
from ckconv.families.towers import PREPROCESSOR, PROCESSOR, diffuses, taken_otherwise, tower_family, tower_within
from ckconv.formats.safetensors.config_json import (
    CHECKPOINTS,
    ConfigDocument,
    config_json,
    metadata_of,
    scaling_of,
    source_document,
    unfit_notes,
)
from ckconv.formats.safetensors.files import parts_beside
from ckconv.formats.safetensors.write import (
    BLOCKS,
    Checkpoint,
    Entry,
    Spelling,
    container,
    copied_piece,
    decoded_piece,
    lay_out,
    linear_layer,
    loading_notes,
    module_of,
    pooling_of_source,
    single_name,
    spare_of,
    tokenizer_plan,
)
from ckconv.io.files import card_of, own_texts
from ckconv.plan.planner import (
    ORIGINAL,
    Planner,
    drop_hint,
    modifier_reason,
    no_epsilon,
    row_notes,
    row_reasons,
    surplus_reasons,
    text_alone,
    unknown_architecture,
)
from ckconv.plan.probe import PLACEHOLDER, SourceFacts, no_exponentials, not_of_zeros, placeholders
from ckconv.plan.steps import DECODE, Module, Piece, Plan, Reason, decode_hint, missing_tensors, unmovable
from ckconv.quant.convert import Action, decodable, writable
from ckconv.quant.mlx import triple_of
from ckconv.tokenizer.vocabulary import token_ids

# The tensors of a checkpoint under the names that they have: copied, or packed matrices decoded.

#: What another quantizer says about the types of a checkpoint, which are others in another.
_QUANTIZER_NAMES = {"hf_quant_config.json", "quantize_config.json", "quant_config.json", "quanto_qmap.json"}


def carried_files(planner: CheckpointPlanner, copied: bool) -> dict[str, Path]:
    """The files beside the source that are true of the output, too, by name."""
    left = {CONFIG_NAME} if copied and not planner.unpacked else {CONFIG_NAME, *_QUANTIZER_NAMES}
    found = beside(planner.index)
    if planner.index.metadata.get(f"{METADATA}.{NAMES_KEY}") == REFERENCE and PARAMS_NAME in found:
        left.add(PARAMS_NAME)  # by it readers know tensors of its names
        planner.notes.append(
            f"{PARAMS_NAME} is left out: it is of the names and rows of the source; config.json says the same"
        )
    return {name: path for name, path in found.items() if name not in left}


def unpacks(planner: CheckpointPlanner) -> bool:
    """Say whether packed matrices are decoded; only some is refused."""
    index = planner.index
    found = {}
    for stored, tensor in index.packed.items():
        names = index.canonical_of.get(stored, ())
        if not any(planner.dropped(name) for name in (stored, tensor.name, *names)):
            decoded = any(planner.decoded(index.tensors[name]) for name in names)
            found[tensor.name] = decoded or planner.decoded(tensor)
    left = [name for name, decoded in found.items() if not decoded]
    if left and len(left) < len(found):
        planner.refuse(f"only some packed matrices would be decoded, and not {left[0]}", "--dequantize decodes all")
    unpacked = any(found.values())
    if left and not unpacked and planner.dtype not in ("engine", "keep"):
        planner.notes.append(
            f"--dtype is for floats: {counted(len(left), 'packed matrix', 'packed matrices')} stay as they are "
            "(--dequantize decodes them)"
        )
    return unpacked


def left_by_rules(planner: CheckpointPlanner, copied: bool) -> list[DroppedTensor]:
    """Tensors that the source's rules leave out."""
    return [item for item in planner.index.dropped if not (item.copied and copied and not planner.unpacked)]


def copied_modules(planner: CheckpointPlanner) -> Sequence[Module]:
    """Stored tensors one by one; decoded matrices under dense names."""
    index = planner.index
    left = {item.stored.name for item in left_by_rules(planner, True)}
    modules: dict[str, list[Piece]] = {}
    arrays: dict[str, list[str]] = {}
    for array, matrix in index.packed.items():
        arrays.setdefault(matrix.name, []).append(array)
    scales = [s.name for s in index.stored if index.format == "mlx" and s.name.endswith(".scales")]
    quantized = {name.removesuffix(".scales") for name in scales}
    if not (index.canonical_of or left or arrays or quantized or planner.options.drop):
        types = [_copied_type(planner, stored) for stored in index.stored]
        planner.tied = HEAD not in index.tensors
        return made(len(types), lambda at: (copied_piece(index.stored[at], types[at]),))
    gone: list[str] = []
    for stored in index.stored:
        canonical, packed = index.canonical_of.get(stored.name, ()), index.packed.get(stored.name)
        if stored.name in left:
            continue
        together = arrays[packed.name] if packed else [stored.name]
        if _dropped(planner, stored, packed, canonical, together):
            gone += [name for name in canonical if name in index.tensors]
            if packed is None:
                planner.leave_out(stored.name, "--drop", stored.extent.nbytes)
            elif stored.name == together[0]:
                planner.leave_out(packed.name, "--drop", packed.nbytes)
            continue
        module, _, kind = stored.name.rpartition(".")
        name = canonical[0] if len(canonical) == 1 else stored.name
        grouped = module in quantized and kind in ("weight", "scales", "biases")
        if packed is not None:
            grouped, module = True, packed.name
            if planner.unpacked:
                if packed.name.endswith(BLOCKS[0]):  # classes have it in another order
                    planner.refuse(f"no rule says how {packed.name} is stored once it is decoded")
                named = canonical[0] if len(canonical) == 1 else packed.name
                dtype = planner.decoded_type(index.tensors.get(named, packed))
                modules.setdefault(module, [decoded_piece(named, packed, dtype)])
                continue
        dtype = stored.dtype if grouped else _copied_type(planner, stored)
        piece = copied_piece(stored, dtype, name)
        if index.config is None and index.format not in CHECKPOINTS and name in index.tensors:
            piece = piece._replace(shape=index.tensors[name].shape)  # that of a matrix before its rows were cut anew
        modules.setdefault(module if grouped else stored.name, []).append(piece)
    planner.tied = HEAD not in index.tensors or HEAD in gone
    _check_needed(planner, frozenset(gone))
    return [*map(tuple, modules.values())]


def _copied_type(planner: CheckpointPlanner, stored: StoredTensor) -> DType:
    if stored.dtype.ggml is not None and stored.dtype.kind is Kind.BLOCK:  # of a GGUF that nobody has rules for
        return planner.type_of(plain_tensor(stored.name, stored))
    return planner.plain_type(stored.name, stored.dtype)


def _check_needed(planner: CheckpointPlanner, gone: Collection[str]) -> None:
    """Refuse ``--drop`` of a tensor that the family's class has."""
    config, tensors = planner.index.config, planner.index.tensors
    if config is None or not gone:
        return
    document, consumer = own_document(config), CONSUMERS[planner.format]
    on = {key: is_on(config, key, document, consumer) for key in switches_of(config, consumer)}
    counts = Counter(parse(name).pattern for name in gone)
    there = Counter(parse(name).pattern for name in tensors)
    wanted = expected_of(config, on, consumer)
    if HEAD in gone and planner.doubles_head(planner.loader):
        wanted[HEAD] = 1
    over = {name: counts[name] - max(0, there[name] - count) for name, count in wanted.items()}
    planner.reasons += missing_tensors(over, dropped=counts)


def _dropped(
    planner: CheckpointPlanner,
    stored: StoredTensor,
    packed: Tensor | None,
    canonical: tuple[str, ...],
    together: Sequence[str],
) -> bool:
    """Say whether ``--drop`` names a tensor or all of its canonical names."""
    own = planner.dropped(stored.name)
    if (packed and planner.dropped(packed.name)) or (own and all(planner.dropped(name) for name in together)):
        return True
    if own and packed:
        planner.refuse(f"--drop names {stored.name}, and not the other arrays of {packed.name}")
    if canonical and all(planner.dropped(name) for name in canonical):
        return True
    if any(planner.dropped(name) for name in canonical):
        planner.refuse(f"{stored.name} holds more than one tensor, and --drop names only some of them")
    return False


# Why a checkpoint would not be loaded as what the source is: by flags, and by what the loader's classes hold.

#: Scaling whose angles follow from the model's context length (modeling_rope_utils.py).
_FOLLOWS_CONTEXT = frozenset({"dynamic", "longrope"})

#: How reasons begin of tensors that the family has no row for.
_NO_RULE = "no rule for"


def option_reasons(index: TensorIndex, config: ModelConfig, options: Options) -> Iterator[Reason]:
    """Reasons to refuse options."""
    family, layout = catalog.FAMILIES[config.family], options.rope_layout
    interleaved = any(tensor.layout.interleaved for tensor in index.tensors.values())
    if family.rope and (layout == "interleaved" or (layout == "source" and interleaved)):
        yield Reason(f"{layout} RoPE rows: what loads a checkpoint rotates half against half", "--rope-layout split")
    if options.names == "max" and not has_transposed(family):
        yield Reason(f"--names max is for matrices that Hugging Face stores [in, out], and {family.name} has none")
    if any(FUSIONS[what] == GATE_UP for what in options.fuse):
        if family.experts:
            yield Reason("--fuse gate-up: experts are not fused")
        elif "L.ffn.gate" not in family.tensors:
            yield Reason(f"--fuse gate-up: {family.name} has no gate")
    kind = (config.rope_scaling or {}).get("rope_type")
    if options.context not in (0, config.context_length) and kind in _FOLLOWS_CONTEXT:
        yield Reason(
            f"{scaled(str(kind), config)}, and follows from max_position_embeddings, which --context would change"
        )
    if options.context not in (0, config.context_length):
        if "position_embedding" in family.tensors:
            yield Reason(f"the position table has {config.context_length:,} rows, --context says {options.context:,}")
        elif not family.parameters["context"].key_cells("hf"):
            yield Reason(f"--context: no key of {an(family.name)}'s config.json says a context length")


def loader_reasons(
    index: TensorIndex,
    config: ModelConfig,
    tensors: Collection[str],
    loader: Loader,
    *,
    loaded: bool,
    built: bool,
    context: int,
    dropped: Mapping[str, int],
    equal: bool,
    within: str = "",
) -> Iterator[Reason]:
    """Why the loader would make another model of the tensors, or none.

    Args:
        tensors: canonical names of those that are written.
        loaded: the source is of the same format, and was loaded as it is.
        built: the configuration is made out of hyper-parameters, so that they all have to be there.
        context: context length that is asked for, 0 for the source's.
        dropped: as :func:`ckconv.plan.steps.missing_tensors`.
        equal, within: as :func:`ckconv.plan.planner.row_reasons`.
    """
    present = [name for name in tensors if name != HEAD]
    yield from class_reasons(index.format, config, present, loader, built=built, context=context, dropped=dropped)
    if not loaded:
        yield from row_reasons(
            config,
            loader,
            context=context or config.context_length,
            tied=HEAD not in tensors,
            equal=equal,
            format=index.format,
            within=within,
        )


def _another_family(config: ModelConfig, present: Collection[str], loader: Loader) -> str:
    """Hint at families that a GGUF does not tell apart, whose tensors fit."""
    ways = []
    for family in catalog.families_of_gguf(catalog.FAMILIES[config.family].gguf):
        condition, row = family.in_gguf.condition, family.engines.get(loader.row)
        if condition is None or not condition.never_holds or row is None or row.absent:
            continue
        found = fit(replace(config, family=family.name), present, loader.name)
        if not found.missing and not found.surplus:
            ways.append(f"--family {family.name}")
    return f"{' or '.join(ways)} reads it as a model that has these tensors alone" if ways else ""


def class_reasons(
    format: str,
    config: ModelConfig,
    present: Collection[str],
    loader: Loader,
    *,
    built: bool,
    context: int,
    dropped: Mapping[str, int],
) -> Iterator[Reason]:
    """Reasons why the loader's class does not fit the tensors.

    Args:
        format: the source's.
        present: canonical names, without the output head.
        context: context length that is asked for, 0 for the source's.
        built: the configuration is made out of hyper-parameters, so that they all have to be there.
        dropped: as :func:`ckconv.plan.steps.missing_tensors`.
    """
    family = catalog.FAMILIES[config.family]
    found = fit(config, present, loader.name)
    of_layers = partial(catalog.layer_keys, config, format=format)
    missing = missing_tensors(
        found.missing, catalog.tensor_keys(config, format=format), dropped=dropped, of_layers=of_layers
    )
    hint = _another_family(config, present, loader) if built and found.missing and not dropped else ""
    yield from (one._replace(hint=hint or one.hint) for one in missing)
    for pattern, count in found.surplus.items():
        also = f" ({count} tensors)" if count > 1 else ""
        which = of_layers(pattern)
        kind = catalog.bracketed(config, "family", format=format) or (f" ({', '.join(which)})" if which else "")
        yield Reason(f"the {family.name} class{kind} of {loader.name} has no {pattern}{also}")
    if built and not config.norm_eps:
        yield no_epsilon(catalog.bracketed(config, "norm_eps", format=format))
    # A class of another program has a default of its own, or none; one without a key for it has no limit.
    limit = family.parameters.get("context")
    limited = limit is not None and limit.cells["hf"]
    if (
        limited
        and (built or CONSUMERS.get(format) not in (None, loader.name))
        and not (context or config.context_length)
    ):
        keys = catalog.bracketed(config, "context_length", format=format)
        yield Reason(f"the source names no context length{keys}", "--context N sets one")
    if not built:
        return
    if config.rotary_dim != config.head_dim and not family.turns_a_part:
        rotated = f"{config.rotary_dim} of {config.head_dim}{catalog.bracketed(config, 'rotary_dim', format=format)}"
        yield Reason(f"RoPE rotates {rotated} elements of a head, which the {family.name} class does not")


#: What torchao calls the list of a file's tensors in ``__metadata__`` (``flatten_tensor_state_dict``).
_TENSOR_NAMES = "tensor_names"
#: What ComfyUI calls the formats of its matrices there.
_LAYERS = "_quantization_metadata"


def _rest_metadata(metadata: Mapping[str, str], gone: Collection[str], *, packed: bool) -> dict[str, str]:
    """Metadata of torchao or ComfyUI for tensors that stay as they were.

    transformers wants an entry for each name in ``tensor_names`` (``is_metadata_torchao``).
    """
    made = {key: text for key, text in metadata.items() if key not in gone}
    names = made.pop(_TENSOR_NAMES, "")
    if not packed:
        made.pop(_LAYERS, None)
    if packed and names:
        with suppress(ValueError, TypeError):
            made[_TENSOR_NAMES] = json.dumps([name for name in json.loads(names) if name not in gone])
    return made


class CheckpointPlanner(Planner):
    """Planner of a checkpoint under the loader's names, or those asked for.

    Attributes:
        loader: what loads it.
        scheme: what ``--names hf`` means here.
        written_by: the value of ``format`` in the files' metadata.
        always_index: a single file has an index, too.
        library: what a model card calls the library that loads it.
        within: ``model_type`` of the document around the text model's; empty where that stands alone.
        drafts: beginning of names of layers that predict further tokens, and their file, where it is their own.
    """

    loader: Loader
    scheme: str
    written_by: str
    always_index: bool
    library: str
    within: str = ""
    drafts: tuple[str, str] = ("", "")

    def __init__(self, index: TensorIndex, options: Options, source: SourceFacts) -> None:
        super().__init__(index, options, source)
        self.config = self.index.config
        self.family: Family | None = catalog.FAMILIES[self.config.family] if self.config else None
        self.document = source_document(index)
        self.tensors, self.types = dict[str, Tensor](), dict[str, DType]()
        self.tied = True
        self.whole, self.beside = index, dict[str, bytes]()  # with what stands beside the text model, if anything does
        self.rope_scaling: Mapping[str, Any] | None = None
        self.behind = dict[str, Module]()

    def plan(self, *, only_reasons: bool = False) -> Plan:
        """Plan of the files, or reasons to refuse without files.

        Raises:
            UsageError: ``usage.meta``, metadata that the readers rely on is to be changed.
        """
        metadata = metadata_of(self.index, self.options, self.written_by)
        copied = self.keeps_names()
        if self.config is None and not copied:
            self.reasons.append(unknown_architecture(self.index, self.options))
            return self.refused()
        self.leave_out_by_rules(left_by_rules(self, copied))
        if self.config is not None:
            self.reasons += option_reasons(self.index, self.config, self.options)
        modules = copied_modules(self) if copied else self._renamed()
        if self.config is not None and not self.reasons and (not copied or self.options.context):
            stray = text_key(self.document)  # of a text model, whose document nothing but a copy can have
            of_stray = (one for one in self.config.modifiers if one.key == stray)
            self.reasons += [modifier_reason(one, self.config, self.loader.name) for one in of_stray]
        self.refuse_faults()
        if not (modules or self.reasons):
            self.refuse("--drop leaves out every tensor")
        return self.refused() if self.reasons or only_reasons else self._finish(modules, copied, metadata)

    def keeps_names(self) -> bool:
        """Whether tensors keep their names, and are stored as they are."""
        o, source = self.options, self.index
        if source.metadata_kind is MetadataKind.TYPED and self.config is None and o.names == GGUF:
            return True
        if source.format not in CHECKPOINTS and self.config is None and diffuses(source.architecture):
            return bool(o.dequantize) or all(stored.dtype.kind is Kind.FLOAT for stored in source.stored)
        if source.format not in CHECKPOINTS or o.names != "hf" or o.fuse or o.tie or source.merged or TOWER in o.drop:
            return False
        if self.config is None:
            if source.misfit is not None and source.format != self.format:
                return False  # a file may contradict its rules; what is made for another library does not
            decodes = bool(o.dequantize or o.decode)
            same = source.format == self.format and not (decodes and not source.packed)
            return (same or not self._quantized()) and not (decodes and source.quantizer)
        spelled = source.metadata.get(f"{METADATA}.{NAMES_KEY}", "hf")
        decoding = any(triple_of(t.dtype) and self.decoded(t) for t in source.tensors.values())
        return not decoding and source.format == self.format and spelled == "hf" and self._fused_as_its_class()

    def _fused_as_its_class(self) -> bool:
        """Say whether the source fuses as the family's class does."""
        assert self.config is not None
        assert self.family is not None
        written, present = names_of(self.family, "hf").written, Sizes(self.family, self.config.scope).present
        stored = ((names, written.get(parse(names[0]).pattern)) for names in self.index.canonical_of.values() if names)
        return all(row is None or (len(names) > 1) == (len(present(row.parts)) > 1) for names, row in stored)

    def _quantized(self) -> bool:
        """Whether the source has modules of several arrays."""
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
        wholes = {parse(entry.canonical).pattern.rpartition(".")[0] for entry in entries}
        mixture = self.family.experts or "L.ffn.gate" not in self.family.tensors
        for what in self.options.fuse:
            if FUSIONS[what] not in wholes and not (FUSIONS[what] == GATE_UP and mixture):
                text = f"--fuse {what}: {an(self.family.name)} has no matrix that holds them under these names"
                self.refuse(text, f"leave out --fuse {what}")
        self.types = self._types(entries)
        modules = []
        for entry in entries:
            if entry.missing:
                self.refuse(f"{entry.name} is made of {len(entry.parts)} tensors, and there is no {entry.missing[0]}")
                continue
            types = {self.types[part]: part for part in entry.parts}
            if len(types) > 1:
                mixed = " and ".join(f"{self.tensors[part].source} is {dtype}" for dtype, part in types.items())
                self.fault("the parts of a fused tensor share one type", DECODE, f"{entry.name} ({mixed})")
                continue
            parts, dtype = [self.tensors[part] for part in entry.parts], next(iter(types))
            if why := unmovable(parts, entry.stored[1] if entry.stored else None, dtype):
                self.fault(why, DECODE, entry.name)
            else:
                modules.append(self._module(entry, parts, dtype))
        if self.options.names == "hf" and modules:
            row = self.family, self.scheme, self.config.scope, self.spare_type
            spare = [*spare_of(*row, self.index.dropped, self.plain_type)]
            if named := ", ".join(piece.name for module in spare for piece in module if piece.source is None):
                self.notes.append(f"zeros stand for {named}, which the class would fill at random if they were missing")
            written = {piece.canonical for module in spare for piece in module}
            self.left_out[:] = [item for item in self.left_out if item.name not in written]
            modules += spare
        return modules

    def _select(self) -> None:
        """Select tensors to write; note those left out, and reasons to refuse."""
        assert self.family is not None
        assert self.config is not None
        zero_filled = placeholders(self.index, scheme_names(self.family, self.scheme).written)
        for tensor in self.remaining(self.index.tensors.values()):
            if tensor.name in zero_filled and not needs(self.family, tensor.name):
                self.leave_out(tensor.name, PLACEHOLDER, tensor.nbytes)
            elif tensor.name not in {ROPE_FREQUENCIES, *self.family.rows}:
                self.tensors[tensor.name] = tensor
        self.refuse_parted()
        for folder, linear in catalog.layers_behind(self.index).items() if self.index.format == "gguf" else ():
            if not self.dropped(linear.name, linear.source):
                self.behind[folder] = self._linear(linear)
        if self.behind and self.options.file_name:
            self.refuse(f"{', '.join(self.behind)} are directories beside the tensors", "name a directory (DST/)")
        self._refuse_grouped(_NO_RULE, [*map(self.part, self.unruled())])
        for name in not_of_zeros(self.index):
            text = f"{name} begins with an adapter that is not of zeros, and a checkpoint has no place for it"
            self.refuse(text, catalog.copied_by("gguf"))
            break
        for name, value in no_exponentials(self.index):
            text = f"{name} has {value:.9g}, and a checkpoint the logarithms of decays: no number has that exponential"
            self.refuse(text, catalog.copied_by("gguf"))
            break
        scaling = scaling_of(self.index, self.config, drop=self.dropped(ROPE_FREQUENCIES))
        self.rope_scaling = scaling.document
        if scaling.left_out:
            self.leave_out(ROPE_FREQUENCIES, scaling.left_out, self.index.tensors[ROPE_FREQUENCIES].nbytes)
        self.reasons += scaling.reasons
        self._place_head()

    def _place_head(self) -> None:
        """The output head: its own tensor, or the embedding's rows."""
        assert self.config is not None
        wanted = self.options.names == "max" or self.doubles_head(self.loader) or self.unties("hf")
        requested = "untie" if wanted else "" if self.options.tie == "untie" else self.options.tie
        head, embedding = self.tensors.get(HEAD), self.tensors.get(EMBEDDING)
        lost = (
            self.config.tied is False
            and HEAD not in self.index.tensors
            and self.options.tie != "untie"
            and self.options.names != "max"
        )
        if head is None and requested == "untie" and embedding is not None and not lost:
            self.tensors[HEAD] = replace(as_head(embedding, self.config), name=HEAD)
        elif head is None and self.config.tied is False and HEAD not in self.index.tensors:
            word = catalog.tie_word(self.config)
            text = f"it is not tied to the embedding ({word})" if word else "the class has one of its own"
            self.refuse_headless(f"there is no output head, and {text}", word)
        elif head is not None and requested != "untie" and (requested == "tie" or self.is_tied()):
            if self.source.head_is_embedding:
                del self.tensors[HEAD]
                self.leave_out(HEAD, "byte for byte the embedding: tied", head.nbytes)
            else:
                word = catalog.tie_word(self.config) or "tie_word_embeddings"
                why = "--tie leaves it out" if requested == "tie" else f"{word} says that it is"
                hint = "" if requested == "tie" else "--untie writes it"
                if requested != "tie" and word != "tie_word_embeddings":  # its class computes without the head
                    hint = "--drop output.weight ties it"
                self.refuse(f"{head.source} is not byte for byte the embedding, and {why}", hint)
        self.tied = HEAD not in self.tensors

    def _linear(self, tensor: Tensor) -> Module:
        """Linear layer behind the model."""
        dtype, blocks = tensor.dtype, tensor.dtype.kind is Kind.BLOCK
        if blocks and not self.decoded(tensor):
            self.fault("sentence-transformers has linear layers of floats", decode_hint(dtype), tensor.source)
            return ()
        return linear_layer(tensor, self.decoded_type(tensor) if blocks else self.plain_type(tensor.source, dtype))

    @property
    def spare_type(self) -> DType:
        """Type of zeros: the embedding's, or another float type."""
        types = (self.types.get(EMBEDDING, F32), *self.types.values())
        return next((dtype for dtype in types if dtype.kind is Kind.FLOAT), F32)

    @cached_property
    def unpacked(self) -> bool:
        """Whether packed matrices are decoded, where tensors keep their names."""
        return unpacks(self)

    def _types(self, entries: Sequence[Entry]) -> dict[str, DType]:
        """The type of every tensor that ``entries`` are made of."""
        shift = {part: entry.shift for entry in entries for part in entry.parts}
        return {name: self.type_of(it, shift.get(name, 0)) for name, it in self.tensors.items()}

    def type_of(self, tensor: Tensor, shift: float = 0) -> DType:
        """Type in the output; a refused type stands for itself."""
        if tensor.dtype in INTEGERS and self.family and parse(tensor.name).pattern in tables_of(self.family):
            return DTYPES["I64"]
        if tensor.dtype.kind is not Kind.BLOCK:
            higher = shift > tensor.layout.shift and self.dtype in ("engine", "keep")
            return F32 if higher else self.plain_type(tensor.source, tensor.dtype)  # 1 + w has more digits than w
        return self.decoded_type(tensor) if self.decoded(tensor) else self._block_type(tensor)

    def decoded_type(self, tensor: Tensor) -> DType:
        """The type that blocks are decoded to."""
        if not decodable(tensor.dtype):
            self.fault(f"no decoder for {tensor.dtype}", "", tensor.source)
        if why := self.unsound(tensor):
            self.fault(why, ORIGINAL, tensor.source)
        return self.decoded_as(tensor)

    def plain_type(self, name: str, source: DType) -> DType:
        """The type in the output of an array that stands for itself."""
        requested = self.dtype
        if source.kind is not Kind.FLOAT or requested in ("engine", "keep"):
            return source
        target = DTYPES[requested.upper()]
        if not writable(source, target):
            self.fault(f"{source} cannot become {target} exactly", "", name)
        return target

    _module = staticmethod(module_of)

    def _block_type(self, tensor: Tensor) -> DType:
        what = f"matrices of {tensor.dtype}" if triple_of(tensor.dtype) else f"{tensor.dtype} type"
        self.fault(f"{self.format} has no {what}", decode_hint(tensor.dtype), tensor.source)
        return tensor.dtype

    def in_blocks(self, tensor: Tensor) -> bool:
        """Whether the tensor is written in its family's form for blocks."""
        return False

    def _refuse_grouped(self, what: str, patterns: Sequence[str]) -> None:
        for pattern, count in Counter(patterns).items():
            whose = catalog.of_source(self.config, self.index.format, pattern)
            also = f" ({count} tensors)" if count > 1 else ""
            family, unruled = self.family, what == _NO_RULE
            hint = "" if family is None else drop_hint(self.index, family, pattern, unruled=unruled)
            self.refuse(f"{what} {pattern}{also}{whose}", hint)

    def _check_class(self, family: Family) -> None:
        """Check that the tensors are those of the class that loads them."""
        assert self.config is not None
        if CONSUMERS.get(self.index.format) not in (None, self.loader.alike.name):
            self.reasons += surplus_reasons(self.index, self.dropped)
            for modifier in self.config.modifiers:
                self.reasons.append(modifier_reason(modifier, self.config, self.loader.name))
        if self.options.names not in ("canonical", "gguf"):
            context, built, tied = self.options.context, not self.document, HEAD not in self.tensors
            model = self.index, self.config, self.tensors, self.loader
            self.reasons += loader_reasons(
                *model,
                loaded=self.index.format == self.format and TOWER not in self.options.drop,
                built=built,
                context=context,
                dropped=self.dropped_patterns(self.index.tensors),
                equal=self.source.head_is_embedding or HEAD not in self.index.tensors,
                within=self.within,
            )
            self.notes += row_notes(self.config, self.loader, context=context or self.config.context_length, tied=tied)

    def _finish(self, modules: Sequence[Module], copied: bool, metadata: Mapping[str, str]) -> Plan:
        o = self.options
        if packed := self.index.packed:
            written = {piece.name for module in modules for piece in module}
            gone = {tensor.source for name, tensor in packed.items() if name not in written}
            if gone := gone | {item.name for item in self.left_out}:
                there = not self.unpacked and any(name in written for name in packed)
                metadata = _rest_metadata(metadata, gone, packed=there)
        shards = lay_out(
            modules,
            o.file_name or single_name(self.index.files[0].name, copied and self.config is None),
            o.max_shard_bytes,
            metadata,
            always_index=self.always_index and not o.file_name,
            behind=self.behind,
            drafts=self.drafts,
        )
        document = self._document(modules, copied)
        self.notes += unfit_notes(self.index, self.format)
        carried = {} if o.file_name else carried_files(self, copied)
        self.notes += loading_notes(self.family, o, self.loader, self.scheme)
        if any(piece.name.startswith(TRIPLED) for piece in chained(modules)):
            way = f"save the tensors under name.replace({TRIPLED!r}, 'model.language_model.')"
            self.notes.append(f"transformers makes up what is called {TRIPLED}*, as 5.3 to 5.5.1 saved it: {way}")
        self.note_unread()
        if parts := parts_beside(self.index.path, carried):
            names = ", ".join(f"{name}/" for name in parts[:5])
            self.notes.append(f"{names} of the source, part of the model, is not copied: copy it beside the tensors")
        tokenizer = tokenizer_plan(self.index, o)
        pooling, pooling_notes = pooling_of_source(self.index, o, self.behind)
        self.notes += (*tokenizer.notes, *pooling_notes)
        without = self.index.metadata_kind is not MetadataKind.DOCUMENT and not o.file_name
        card = text_of_card(card_of(self.index), own_texts(self.index), self.library) if without else ""
        absent = {item.name for item in self.left_out} | {module[0].canonical for module in self.behind.values()}
        parameters = sum(tensor.elements for name, tensor in self.whole.everything.items() if name not in absent)
        stands = Checkpoint(shards, document, parameters, carried, tokenizer, card, {**pooling, **self.beside})
        rope = "split" if self.family and self.family.rope else ""
        plan = replace(self.made(shards.files, partial(container, stands), rope_layout=rope), index=self.whole)
        if not (o.set_meta or o.drop_meta):
            return plan
        from ckconv.formats.safetensors.document_edits import with_edits

        return with_edits(plan)

    def _document(self, modules: Sequence[Module], copied: bool) -> bytes:
        return config_json(self.index, self.config_document(modules, copied))

    def config_document(self, modules: Sequence[Module], copied: bool) -> ConfigDocument:
        """Facts of the output's own tensors for the document."""
        pieces = chained(modules)
        as_they_were = all(
            c is not None and c.action is Action.COPY
            for p in pieces
            for c in (p.conversion, *(run.conversion for run in p.runs))
        )
        return ConfigDocument(
            format=self.format,
            copied=copied,
            unpacked=copied and self.unpacked,
            tied=self.tied,
            floats=self._floats(pieces),
            as_they_were=as_they_were,
            present=tuple(self.tensors),
            quantization=None if copied else self._quantization(modules),
            rope_scaling=self.rope_scaling,
            context=self.options.context,
        )

    def _floats(self, pieces: Sequence[Piece]) -> frozenset[str]:
        """Names of the float types of what is written."""
        return frozenset(one.dtype.name for one in pieces if one.dtype.kind is Kind.FLOAT and one.content is None)

    def _quantization(self, modules: Sequence[Module]) -> dict[str, Any] | None:
        """MLX's object for ``config.json``; ``None`` where nothing is quantized."""
        return None


# -- A text model and its tower as one checkpoint ----------------------------------------------------------------------

#: What the text part's document says that stands around it, in the document of the whole.
OUTER = ("dtype", "torch_dtype", "tie_word_embeddings")
OF_THE_CLASS = ("architectures", "dtype", "torch_dtype")

#: Tables of the tower's rows that are documents of their own.
BESIDE = {PREPROCESSOR: "preprocessor_config.json", PROCESSOR: "processor_config.json"}

_PREPARED = (
    "preprocessor_config.json says what the mmproj does; how large pictures may be, and by which filter they are "
    "resized, is left to the class"
)


class WholePlanner(CheckpointPlanner):
    """Planner of a text model within its whole, and the tower."""

    leaves_parts = False

    def __init__(self, index: TensorIndex, options: Options, source: SourceFacts) -> None:
        text, self._seen = parted(index)
        assert index.tower is not None
        self._tower = tower_within(index.tower, text.config.family if text.config else "")
        self.seeing: Family = tower_family(self._tower.family)
        super().__init__(text, options, source)
        self.whole = index
        self.within = self.seeing.model_type
        self.written = write(self.seeing, self._tower.parameters, "hf")
        self._tokens: dict[str, int] = {}

    def plan(self, *, only_reasons: bool = False) -> Plan:
        """The plan.

        Raises:
            UsageError: ``usage.meta``, as of any checkpoint.
        """
        if self.options.names != "hf" or self.options.fuse:
            self.refuse("--names and --fuse are for text models: the class has one name for each tensor")
        if self.options.file_name:
            why = "a text model with its tower is a directory: a file beside the tensors says how pictures are prepared"
            self.refuse(why, "name a directory (DST/)")
        row = self.seeing.engines.get(self.loader.row)
        if row is not None and row.absent:
            two = f"MODEL.gguf --mmproj MMPROJ.gguf writes two files, and of those ckconv makes {an(row.written_as)}"
            why = f"{self.loader.name} gets no {self.within} (model_type): {row.why}"
            self.refuse(why, two if row.written_as else self.text_alone)
        elif self.config is not None:
            self._check_text(self.config)
        return super().plan(only_reasons=only_reasons)

    @property
    def text_alone(self) -> str:
        """Flag that writes the text model without the tower."""
        way = "--drop tower writes" if self.index.format in CHECKPOINTS else "leave MMPROJ out to write"
        return text_alone(self.config, self.loader.alike, way)

    def keeps_names(self) -> bool:
        """Whether tensors are copied: a copy is none of a text model and a tower."""
        return False

    def _check_text(self, config: ModelConfig) -> None:
        """The two files are of one model."""
        text, tower = self._halves()
        families = self.seeing.in_huggingface.text[0]
        if families and config.family not in families:
            self.refuse(f"{tower} is of {an(self.within)}, and {text} is {an(config.family)}")
        self.check_seen_by(config)
        width = self._tower.parameters["text_hidden"]
        if width != config.hidden_size:
            self.refuse(f"{tower} is of a text model of {width:,} elements, and {text} has {config.hidden_size:,}")
        layers = self._tower.parameters.get("deepstack")
        own = config.own.get("deepstack") or 0
        if layers is not None and len(layers) != own:
            self.refuse(f"{text} takes {own} layers of {tower}, which has {len(layers)}")
        patterns = {parse(name).pattern for name in self.index.tensors}
        if lacked := [name for name in self._tower.parameters.get("lacked") or () if name in patterns]:
            self.refuse(f"{text} has {' and '.join(lacked)}, which the text model of {an(self.within)} has not")
        eps = self._tower.parameters.get("text_eps")
        if eps is not None and differ(eps, config.norm_eps):
            self.refuse(
                f"the class takes rms_norm_eps of the text model, {config.norm_eps:g}, for the projector's norm, and "
                f"llama.cpp computes that with {eps:g}"
            )
        if self.index.format in CHECKPOINTS:  # whose document says it
            return
        for sentence in taken_otherwise(self._tower, self.written, "hf", TRANSFORMERS.name):
            self.refuse(sentence)
        self.refuse_crossed(self._seen)
        self.refuse_positions(self.whole, self._tower)
        wanted = self.seeing.in_huggingface.tokens
        self._tokens = token_ids(self.index.metadata, wanted.values())
        missing = [token for token in wanted.values() if token not in self._tokens]
        if missing:
            self.refuse(f"the vocabulary has no {', '.join(missing)}, by which the class knows where a picture stands")

    def _halves(self) -> tuple[str, str]:
        """Words for the text model and the tower."""
        if self.index.format in CHECKPOINTS:
            return "the text model", "the tower"
        files = self.whole.files
        return f"the text model of {files[0].name}", f"the tower of {files[-1].name}"

    @abstractmethod
    def check_seen_by(self, config: ModelConfig) -> None:
        """Check that the class loads a text model of this kind within the whole."""

    @abstractmethod
    def text_name(self, name: str) -> str:
        """A text tensor's name within the class of both."""

    @property
    def tower_prefix(self) -> str:
        """Beginning of names before those of the tower's rows."""
        return ""

    def _renamed(self) -> list[Module]:
        modules = [tuple(piece._replace(name=self.text_name(piece.name)) for piece in m) for m in super()._renamed()]
        return [*modules, *self._modules()]

    def _modules(self) -> list[Module]:
        """The tensors of the tower."""
        family, scheme, prefix = self.seeing, self.scheme, self.tower_prefix
        embedded = family.in_huggingface.embeddings
        seen = (tensor for name, tensor in self._seen.items() if name not in embedded)
        tensors = {tensor.name.removeprefix(PREFIX): tensor for tensor in self.remaining(seen)}
        types = {name: tensor.dtype for name, tensor in self.tensors.items()}
        for tensor in (self._seen[name] for name in embedded if name in self._seen):
            kinds = {found[EMBEDDING].kind for found in (types, self.types) if EMBEDDING in found}
            if kinds - {Kind.FLOAT}:  # else compared
                self.leave_out(tensor.name, "a row of the text model's embedding, which is quantized", tensor.nbytes)
        entries, nameless = Spelling(family, self._tower.parameters, scheme).entries(tensors)
        self._refuse_grouped("no name for", [parse(name).pattern for name in nameless])
        own = self._seen.keys() - embedded.keys()
        there, all_there = (Counter(PREFIX + parse(name).pattern for name in names) for names in (tensors, own))
        wanted = {PREFIX + name: count for name, count in expected(family, scheme, self._tower.parameters).items()}
        for name in sorted(there.keys() - wanted.keys()):
            self.refuse(f"a {self.within} of this configuration has no {name}", self.text_alone)
        missing = {name: count - there[name] for name, count in wanted.items()}
        hint = self.text_alone if all_there != there else ""
        self.reasons += [one._replace(hint=hint) for one in missing_tensors(missing, dropped=all_there - there)]
        modules = []
        for entry in entries:
            parts = [tensors[part] for part in entry.parts if part in tensors]
            if len(parts) == len(entry.parts):
                named = entry._replace(name=prefix + entry.name, canonical=PREFIX + entry.canonical)
                modules.append(module_of(named, parts, self.type_beside(named, parts)))
        row = family, scheme, self._tower.parameters, self.spare_type
        going = {
            it.name: it for it in self._going_along({prefix + name for name in scheme_names(family, scheme).zeros})
        }
        modules += [(copied_piece(it, self.plain_type(it.name, it.dtype)),) for it in going.values()]
        self.left_out[:] = [item for item in self.left_out if item.name not in going]
        for (piece,) in spare_of(*row, (), self.plain_type):
            if prefix + piece.name in going:
                continue
            modules.append((piece._replace(name=prefix + piece.name),))
            self.notes.append(f"zeros stand for {prefix + piece.name}, which nothing that the text model sees needs")
        return modules

    def _going_along(self, spare: Collection[str]) -> list[StoredTensor]:
        """Tensors of the tower that nothing sees, and a copy keeps.

        Args:
            spare: names for which zeros would stand.
        """
        if self.index.format != self.format:
            return []
        document = document_of(self.index.metadata)
        found = [it.stored for it in self.whole.dropped if it.copied or it.stored.name in spare]
        return [it for it in found if is_beside_text(document, it.name) and not self.dropped(it.name)]

    def type_beside(self, entry: Entry, parts: Sequence[Tensor]) -> DType:
        """Type of a tensor of the tower."""
        types = [self.type_of(part, entry.shift) for part in parts]
        if len({*types}) > 1:
            mixed = " and ".join(f"{part.source} is {dtype}" for part, dtype in zip(parts, types, strict=True))
            self.refuse(f"parts of one tensor of the class have two types: {mixed}")
        return types[0]

    # Documents

    def _document(self, modules: Sequence[Module], copied: bool) -> bytes:
        text = json.loads(super()._document(modules, copied))
        if self.index.format in CHECKPOINTS:
            whole = {key: value for key, value in document_of(self.index.metadata).items() if key not in UNWRITTEN}
            whole |= {**{key: text[key] for key in OUTER if key in text}, "model_type": self.within}
            return self.encoded(whole, text, modules)
        tables = nested(self.written.entries)
        inner = {key: value for key, value in text.items() if key not in OF_THE_CLASS}
        document = {
            **{key: text[key] for key in OUTER if key in text},
            **{key: value for key, value in tables.items() if key not in BESIDE},
            **{key: self._tokens[token] for key, token in self.seeing.in_huggingface.tokens.items()},
            "architectures": [self.seeing.hf_class],
            "model_type": self.within,
            "text_config": {**inner, **tables.get("text_config", {})},
        }
        self.beside |= {file: _encoded(tables[table]) for table, file in BESIDE.items() if table in tables}
        row = self.seeing.engines.get(TRANSFORMERS.row)
        self.notes += [_PREPARED, *(condition.sentence for condition in (row.same_if if row else ()))]
        return self.encoded(document, text, modules)

    def encoded(self, whole: dict[str, Any], text: Mapping[str, Any], modules: Sequence[Module]) -> bytes:
        """Bytes of the document of the whole.

        Args:
            text: the document of the text model by itself.
        """
        return _encoded(whole)


def _encoded(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()
