"""Planning for any target: left-out tensors, engines' rules, reasons."""

from __future__ import annotations

import re
import shlex
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ckconv.core.config import FIELD_OF, LEFT_OUT, MAX_FLOAT32, Cause, ModelConfig, Modifier
from ckconv.core.layouts import DTYPES, F32, DType
from ckconv.core.lazy import replace
from ckconv.core.metadata import CONFIG_NAME, QUANTIZATION_KEYS, document_of, text_key
from ckconv.core.options import Options
from ckconv.core.tensors import (
    HEAD,
    DroppedTensor,
    MetadataKind,
    Tensor,
    TensorIndex,
    Tower,
    is_bias,
    parse,
    with_layer,
)
from ckconv.errors import an, and_more, counted, quoted, shown
from ckconv.families import catalog, huggingface_classes
from ckconv.families.expressions import SLIDING, ExpressionError
from ckconv.families.keys import CONSUMERS, MLX_LM, READERS, TRANSFORMERS, Parameter
from ckconv.families.names import BESIDE_TEXT, beside_text, is_beside_text, names_of
from ckconv.families.parameters import differ, own_document, scope_of
from ckconv.families.schema import DRAFTS, LLAMA_CPP, MTP, OF_FORMAT, Condition, Engine, Family, Loader
from ckconv.families.sizes import always, expected_layers, layers_of_nothing
from ckconv.families.towers import (
    comes_back,
    diffuses,
    has_names_of_diffusers,
    holds_drafts,
    is_of_diffusion,
    is_seen_by,
    sinusoids_of,
    tower_of_document,
)
from ckconv.plan.probe import SourceFacts, crossed, no_sinusoids, zeros
from ckconv.plan.steps import Change, Container, Omission, OutputFile, Plan, Reason, missing_tensors

# What planning has in common, whatever the target: what flags leave out or decode, and reasons that are gathered.

_OWN_HEAD = (
    "tie_word_embeddings is true, and another matrix than the embedding is stored as the head: it is the head, as for "
    "transformers 5; transformers 4 takes the embedding (--drop output.weight)"
)

#: Which of two values decoded matrices hold.
_EXACT = "decoded matrices hold codes times scales exactly; --dtype source rounds as the quantizer's library does"
_ROUNDED = "decoded matrices hold what the quantizer's library computes: products rounded to its type"

#: What holds a model without rules.
_COPIED = {
    MetadataKind.DOCUMENT: "--to safetensors copies it as it is; ",
    MetadataKind.TYPED: "--to safetensors --names gguf writes its tensors as they are called there; ",
}

#: Classes with outputs of their own, in place of a head.
_SCORING = r"For(SequenceClassification|TokenClassification|QuestionAnswering|MultipleChoice)$"

#: What becomes of a tower.
_WITH_TOWER = "ckconv convert MODEL.gguf MMPROJ.gguf DST/ makes a checkpoint of it and its tower"
_WITH_TEXT = "ckconv convert MODEL.gguf MMPROJ.gguf DST/ makes a checkpoint of it and its text model"

#: The key of ``config.json`` that names a class of diffusers.
_DIFFUSERS = "_class_name"

#: Keys that a note lists by name.
_SHOWN_KEYS = 8


#: Way out of what another tool quantized, and nobody reads, or reads alike.
ORIGINAL = "convert the original, unquantized checkpoint"


#: Kind of metadata -> the two that ``ckconv learn`` takes, of which the model is one.
_PAIR = {MetadataKind.DOCUMENT: "{} MODEL.gguf", MetadataKind.TYPED: "CHECKPOINT {}"}


def unknown_architecture(index: TensorIndex, options: Options) -> Reason:
    """Why a model without rules cannot be planned for.

    Raises:
        InputError, UnsupportedError: ``model.config``, there are rules, and it contradicts them.
    """
    if index.misfit is not None:
        raise index.misfit
    if index.quantizer:
        flag = " without --dequantize" if options.dequantize else " without --decode" if options.decode else ""
        return Reason(
            f"another tool quantized it, and ckconv cannot read that quantization: {index.quantizer}",
            f"{ORIGINAL}; --to safetensors{flag} copies this one as it is",
        )
    if index.facts.get("kind", "model") != "model":
        whole = index.facts["kind"] == "mmproj" and (not index.tower or comes_back(index.tower.family))
        hint = _WITH_TEXT if whole else ""
        return Reason(
            f"the source is no model but {quoted(str(index.facts['kind']))} (general.type), and not converted",
            hint,
        )
    configured = any(path.name == CONFIG_NAME for path in index.side_files)
    if _DIFFUSERS in index.metadata or diffuses(index.architecture) or (not configured and is_of_diffusion(index)):
        called = index.metadata.get(_DIFFUSERS)
        what = f"a model of diffusers ({called})" if isinstance(called, str) else "a diffusion model"
        why = f"the source is {what}, not a language model"
        if has_names_of_diffusers(index.stored):
            why += "; its tensors have the names of diffusers, and a GGUF has those of the original checkpoint"
        decoded = any(stored.dtype.block > 1 for stored in index.stored)
        return Reason(why, f"--to safetensors {'--dequantize decodes' if decoded else 'copies'} its values")
    document = document_of(index.metadata) if index.metadata_kind is MetadataKind.DOCUMENT else {}
    if why := catalog.drafts_for(document, index.architecture):
        known = any(map(catalog.asks_target, catalog.classes_of(document)))
        base = "--to gguf --base DIR, the directory of that model, converts it; " if known else ""
        drafter = catalog.drafter_of(document, index.architecture)
        lacks = f", and ckconv has no rules for such a drafter{catalog.without_rules(drafter)}"
        why += ", and has that model's tokenizer" if known else lacks
        return Reason(why, f"{base}--to safetensors copies it as it is" if document else "")
    if (seeing := tower_of_document(document)) and seeing.in_huggingface.text[0] and not text_key(document):
        table = seeing.parameters["text_hidden"].key_cells("hf")[0].head
        return Reason(
            f"config.json has no {table}, where the class of {an(seeing.model_type)} reads its text model alone",
            f"put that model's model_type and keys into {table}; --to safetensors copies it as it is",
        )
    what = (
        f"ckconv does not know the architecture {index.architecture!r}"
        if index.architecture
        else "no architecture is named"
    )
    if index.metadata_kind is MetadataKind.DOCUMENT:
        what += " (model_type)"
    if index.metadata_kind is MetadataKind.TYPED and catalog.families_of_gguf(index.architecture):
        what = f"no known {index.architecture} has that many experts ({index.architecture}.expert_count)"
    if index.metadata_kind is MetadataKind.DOCUMENT and not configured:
        missing = shown(index.files[0].parent / CONFIG_NAME)
        return Reason(
            f"there is no {missing}, which names the architecture",
            "put it there; --to safetensors copies the tensors as they are",
        )
    if index.metadata_kind is MetadataKind.OWN and not index.architecture:
        what = "no config.json beside it names an architecture"
    elif index.architecture and "expert_count" not in what:
        what += f"; {catalog.known_by(index.architecture, catalog.classes_of(index.metadata))}"
    copied = _COPIED.get(index.metadata_kind, "")
    pair = _PAIR.get(index.metadata_kind, "")
    learned = (
        f"; ckconv learn {pair.format(shlex.quote(shown(index.path)))} -o FILE makes it of the two" if pair else ""
    )
    return Reason(what, f"{copied}--family FILE names a file that describes its family{learned}")


class Planner(ABC):
    """Collects every reason to refuse before it gives up."""

    #: What the target is called in a plan; its version, 0 where it has none.
    format: str
    version: int = 0
    #: The tower that is written beside the text model.
    seeing: Family | None = None
    #: Parts that text models do not have are left out; else what has no rule is refused.
    leaves_parts = True

    def __init__(self, index: TensorIndex, options: Options, source: SourceFacts) -> None:
        self.options, self.source = options, source
        config, self._last = index.config, 0
        self._no_drafts = self._without_drafts(index)
        if config is not None and config.own.get(DRAFTS) and (MTP in options.drop or self._no_drafts):
            self._last = config.num_layers
            index = replace(index, config=replace(config, own={**config.own, DRAFTS: False}))
        elif config is not None and (sizes := self.sizes_left_out(config)):
            index = replace(index, config=replace(config, own={**config.own, **dict.fromkeys(sizes, 0)}))
        self.index = index
        self.notes: list[str] = [*index.notes, *filter(None, [index.once(zeroed_biases)])]
        if self._last and MTP not in options.drop:
            self.notes.append(f"the layers that predict further tokens are left out: {self._no_drafts}")
        self._scoring = next((name for name in catalog.classes_of(index.metadata) if re.search(_SCORING, name)), "")
        if (
            self._scoring
            and config
            and not index.unknown
            and "labels" not in catalog.FAMILIES[config.family].parameters
        ):
            self.notes.append(
                f"{self._scoring} scores, and no tensor of its scores is there: this is the model without them"
            )
        self.left_out: list[Omission] = []
        self.reasons: list[Reason] = []
        self._faults: dict[tuple[str, str], list[str]] = {}
        self._groups: Counter[str] = Counter()
        self.changes: tuple[Change, ...] = ()
        if options.dtype == "source" and not (options.dequantize or options.decode):
            self.refuse("--dtype source is the type of matrices that are decoded", "--dequantize decodes them all")

    @property
    def dtype(self) -> str:
        """The type that is asked for of what is not decoded."""
        return "engine" if self.options.dtype == "source" else self.options.dtype

    def decoded_as(self, tensor: Tensor) -> DType:
        """The float type of decoded blocks: FP32, exact, or as a flag asks."""
        from ckconv.quant.repack import library_type, rounds

        requested, library = self.options.dtype, library_type(tensor.dtype)
        note = {"engine": _EXACT, "keep": _EXACT, "f32": _EXACT, "source": _ROUNDED}.get(requested)
        rounded = note is _EXACT and rounds(tensor.dtype)
        if note and library is not F32 and tensor.packed and not rounded and note not in self.notes:
            self.notes.append(note)
        if requested == "source":
            return library
        return F32 if requested in ("engine", "keep") else DTYPES[requested.upper()]

    @abstractmethod
    def plan(self, *, only_reasons: bool = False) -> Plan:
        """Make the plan, without files where refused or ``only_reasons``."""

    def refuse_headless(self, text: str, word: str) -> None:
        """Refuse a model without a head that the key ``word`` does not tie."""
        if self._scoring:
            hint = f"--to {self.index.format} copies it as it is"
            self.refuse(f"there is no output head: {self._scoring} scores texts", hint)
        else:
            config = self.index.config
            if word == "tie_word_embeddings" and config is not None and text_key(config.raw):
                word = huggingface_classes.tying_key(config.raw)
            self.refuse(text, word and f'"{word}": true in config.json says that it is')

    def refuse_crossed(self, tensors: Mapping[str, Tensor]) -> None:
        """Refuse least values above the most, where ggml computes one side.

        ``torch.clamp`` and MLX give the most, ggml its CPU the least and its CUDA the most
        (``ggml_compute_forward_clamp_f32``, ``op_clamp``).
        """
        if (first := next(crossed(self.index, tensors), None)) is not None:
            tensor, low, high = first
            text = f"{tensor.source} is {low:.9g}, above the {high:.9g} of its maximum"
            self.refuse(
                f"{text}: transformers computes the maximum then, and llama.cpp on a CPU the minimum",
                f"with {high:.9g} for both every program computes the maximum",
            )

    def refuse_positions(self, index: TensorIndex, tower: Tower) -> None:
        """Refuse a table of positions that is not the one of the class."""
        for name in no_sinusoids(index, sinusoids_of(tower)):
            self.refuse(f"{name} is no table of sines and cosines of positions, and those are what the class computes")

    def refuse(self, text: str, hint: str = "") -> None:
        """Note a reason."""
        self.reasons.append(Reason(text, hint))

    def fault(self, why: str, hint: str, name: str, groups: int = 0) -> None:
        """Note a reason against a tensor, which may be one against several.

        Args:
            groups: how many of its groups the reason counts, where it is of those.
        """
        self._faults.setdefault((why, hint), []).append(name)
        self._groups[why] += groups

    def refuse_faults(self) -> None:
        """Refuse what :meth:`fault` has noted since."""
        for (why, hint), names in self._faults.items():
            count = f"{self._groups[why]:,} " if self._groups[why] else ""
            self.refuse(f"{count}{why}: {and_more(names)}", hint)
        self._faults.clear()
        self._groups.clear()

    def refused(self) -> Plan:
        """The plan of a model that cannot be held."""
        return self._with(refusals=tuple(self.reasons))

    def made(self, files: Iterable[OutputFile], contents: Callable[[], Container], **more: Any) -> Plan:
        """The plan of what was found to be possible.

        Args:
            more: further fields.
        """
        left, changes = tuple(self.left_out), self.changes
        return self._with(files=tuple(files), left_out=left, contents=contents, changes=changes, **more)

    def _with(self, **more: Any) -> Plan:
        return Plan(self.index, self.format, self.version, self.options, notes=tuple(self.notes), **more)

    def dropped(self, *names: str) -> bool:
        """Whether a flag or the target leaves out the tensor."""
        return any(fnmatchcase(name, glob) for name in names for glob in self.options.drop) or any(
            map(self._is_left, names)
        )

    def part(self, name: str) -> str:
        """Glob of the part without rules that a tensor belongs to, or its pattern."""
        config, head = self.index.config, name.partition(".")[0]
        alone = f"{head}.*" if head in self.index.once(_unruled_heads) else parse(name).pattern
        return beside_text(config.raw if config else {}, name) or alone

    def sizes_left_out(self, config: ModelConfig) -> list[str]:
        """Parameters of the linear layers behind the model that a flag leaves out."""
        gone = [
            name.removesuffix("weight")
            for name in catalog.FAMILIES[config.family].in_huggingface.modules
            if self.dropped(name)
        ]
        return [name for name in config.own if name.startswith(tuple(name.replace(".", "_") for name in gone))]

    def refuse_parted(self) -> None:
        """Refuse to leave out only some of the linear layers behind a model."""
        there = catalog.layers_behind(self.index).values()
        remaining = [tensor.name for tensor in there if not self.dropped(tensor.name, tensor.source)]
        if remaining and len(remaining) < len(there):
            gone = ", ".join(tensor.name for tensor in there if tensor.name not in remaining)
            hint = " ".join(f"--drop '{name}'" for name in remaining)
            self.refuse(
                f"--drop leaves out {gone} of the layers behind the model, and not {', '.join(remaining)}",
                f"{hint} leaves out the rest",
            )

    def _without_drafts(self, index: TensorIndex) -> str:
        """Why layers that predict further tokens are left out, or empty."""
        if not holds_drafts(self.format, index.config, self.seeing):
            return "the target has no place for them"
        loader = OF_FORMAT.get(self.format) if self.format != index.format and index.config else None
        row = engine_of(catalog.FAMILIES[index.config.family], loader) if loader and index.config else None
        return row.drafts if row is not None else ""

    def _is_left(self, canonical: str) -> bool:
        """Whether a tensor belongs to a layer behind the last that is left out."""
        layer = parse(canonical).layer if self._last else None
        return layer is not None and layer >= self._last and canonical.startswith("layers.")

    def note_unread(self) -> None:
        """Note the source's keys that llama.cpp does not read: no output has any."""
        config = self.index.config
        if config is not None and config.unread and self.index.metadata_kind is MetadataKind.TYPED:
            shown = config.unread[:_SHOWN_KEYS]
            more = f" and {len(config.unread) - len(shown):,} more" if len(config.unread) > len(shown) else ""
            keys = ", ".join(key if key.isprintable() else quoted(key) for key in shown)
            self.notes.append(
                f"left out, as llama.cpp does not read them in {an(self.index.architecture)}: {keys}{more}"
            )

    def dropped_patterns(self, tensors: Mapping[str, Tensor]) -> Counter[str]:
        """Pattern of a canonical name -> how many tensors a flag leaves out."""
        if not self.options.drop:
            return Counter()
        return Counter(parse(it.name).pattern for it in tensors.values() if self.dropped(it.name, it.source))

    def refuse_missing(
        self, counts: Mapping[str, int], keys: str = "", hint: str = "", lost: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        """Note missing tensors of the target.

        As :func:`ckconv.plan.steps.missing_tensors` finds them.

        Args:
            lost: pattern -> layers, of those without which the target computes a model, if a flag asks for it.
        """
        dropped, config = self.dropped_patterns(self.index.tensors), self.index.config
        for pattern, count in counts.items():
            layers, flag = (lost or {}).get(pattern, ()), ""
            named = map(parse, self.index.tensors) if layers else ()
            if there := sorted(name.layer or 0 for name in named if name.pattern == pattern):  # they were trained
                self.refuse(
                    f"no tensor for {pattern} in {_layers(layers)}, which {_layers(there)} "
                    f"{'has' if len(there) == 1 else 'have'}: the source is incomplete"
                )
                continue
            if layers:
                flag = f"--drop '{pattern.replace('{n}', '*')}' makes a model without them"
            also = catalog.layer_keys(config, pattern, self.index.format) if config is not None else []
            found = missing_tensors({pattern: count}, keys, dropped=dropped, of_layers={pattern: also}.__getitem__)
            self.reasons += [one._replace(hint=flag or hint or one.hint) for one in found]

    def lost(self) -> dict[str, list[int]]:
        """:func:`lost_tensors` that no flag leaves out."""
        found = self.index.once(lost_tensors)
        left = {pattern: [n for n in ns if not self.dropped(with_layer(pattern, n))] for pattern, ns in found.items()}
        return {pattern: layers for pattern, layers in left.items() if layers}

    def bare_layers(self, config: ModelConfig, tensors: Iterable[str]) -> int:
        """How many layers have no tensor, where the family has one for them."""
        bare = config.num_layers - len({parse(name).layer for name in tensors} - {None})
        return bare - layers_of_nothing(catalog.FAMILIES[config.family], config.scope) if bare > 0 else 0

    def refuse_bare(self, layers: int, bare: int, keys: str) -> None:
        """Note layers that are ``bare``: without tensors.

        Or without any that a flag does not leave out.

        Args:
            keys: what says how many layers there are, in brackets.
        """
        empty = min(bare, max(0, layers - len({parse(name).layer for name in self.index.tensors} - {None})))
        if empty:
            self.refuse(f"{empty:,} of {layers:,} layers{keys} {'has' if empty == 1 else 'have'} no tensors")
        if bare > empty:
            self.refuse(f"--drop leaves out all tensors of {bare - empty:,} of {layers:,} layers")

    def keeps_head(self) -> bool:
        """Whether a stored head counts though the configuration ties it.

        It is not the embedding; a note says so.

        transformers 5 ties no two matrices that differ (``PreTrainedModel.tie_weights``), mlx-lm does.
        """
        index = self.index
        tied = index.config is not None and index.config.tied and HEAD in index.tensors and not index.merged
        own = index.config is not None and catalog.tie_word(index.config) not in (
            "",
            "tie_word_embeddings",
        )  # class of its own
        stored = tied and not own and CONSUMERS.get(index.format) == TRANSFORMERS and not self.source.head_is_embedding
        if stored and not self.dropped(HEAD, index.tensors[HEAD].source) and _OWN_HEAD not in self.notes:
            self.notes.append(_OWN_HEAD)
        return bool(stored)

    def head_is_loaders(self) -> bool:
        """Whether the head is a copy only because the source's engine ties none."""
        loader = OF_FORMAT.get(self.index.format)
        twice = loader is not None and self.doubles_head(loader) and self.options.tie != "untie"
        return twice and HEAD in self.index.tensors and self.source.head_is_embedding

    def is_tied(self) -> bool:
        """Whether the source's head is the embedding, or should be."""
        config = self.index.config
        return self.head_is_loaders() or (config is not None and bool(config.tied) and not self.keeps_head())

    def unties(self, format: str) -> bool:
        """Whether a flag asks for a head of its own.

        Refused where the class has none.

        Args:
            format: whose names are written (``gguf``, ``hf``).
        """
        config = self.index.config
        if self.options.tie != "untie" or config is None:
            return self.options.tie == "untie"
        if HEAD in names_of(catalog.FAMILIES[config.family], format).written:
            return True
        self.refuse(f"--untie: {an(config.family)} has no output head", "leave out --untie")
        return False

    def doubles_head(self, loader: Loader) -> bool:
        """Whether the engine loads the embedding twice, as it ties no heads."""
        row = engine_of(catalog.FAMILIES[self.index.config.family], loader) if self.index.config else None
        return row is not None and row.head == "written"

    def note_growth(self, types: Iterable[tuple[DType, DType]]) -> None:
        """Note exact re-packings that take more bits per weight.

        They are larger than need be where another target is possible.

        Args:
            types: of every tensor, its type in the source and in the output.
        """
        pairs = Counter(pair for pair in types if pair[0].block > 1)
        if not pairs:
            return
        from ckconv.quant.repack import bits_a_weight, grown

        alike = Counter[tuple[str, str]]()  # rows of other lengths may be other types under one name
        for (one, other), count in pairs.items():
            alike[one.name, other.name] += count
        named = {(one.name, other.name): (one, other) for one, other in pairs if grown(one, other)}
        for (one, other), count in ((named[key], alike[key]) for key in alike if key in named):
            are = "is" if count == 1 else "are"
            self.notes.append(
                f"{counted(count, 'tensor')} of {one} ({bits_a_weight(one):.1f} bits a weight) {are} "
                f"{other} ({bits_a_weight(other):.1f}): no smaller type holds them exactly"
            )

    def unsound(self, tensor: Tensor) -> str:
        """Why scales that are no numbers are refused; empty where none is."""
        if tensor.packed:
            count = self.source.no_number.get(tensor.name, 0)
        else:
            count = self.source.unfit.get(tensor.name, {}).get(tensor.dtype, 0)
        return f"the scale of {counted(count, 'group')} is not a finite number" if count else ""

    def leave_out(self, name: str, reason: str, nbytes: int) -> None:
        """Note a source tensor that is not written."""
        if MTP not in self.options.drop and self._is_left(name):
            reason = f"of a layer that predicts further tokens: {self._no_drafts}"
        self.left_out.append(Omission(name, reason, nbytes))

    def leave_out_by_rules(self, items: Iterable[DroppedTensor] | None = None) -> None:
        """Note the tensors that the source's rules leave out, or these of them."""
        for item in self.index.dropped if items is None else items:
            self.leave_out(item.stored.name, item.reason, item.stored.extent.nbytes)

    def remaining(self, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
        """The tensors that no flag leaves out; the others are noted."""
        for tensor in tensors:
            if self.dropped(tensor.name, tensor.source):
                self.leave_out(tensor.name, "--drop", tensor.nbytes)
            else:
                yield tensor

    def unruled(self) -> Iterator[str]:
        """Names without a rule, of parts that stay; the others are noted."""
        config = self.index.config if self.leaves_parts else None
        for stored in self.index.unknown:
            if self.dropped(stored.name, *self.index.canonical_of.get(stored.name, ())):
                self.leave_out(stored.name, "--drop", stored.extent.nbytes)
            elif config is not None and is_beside_text(config.raw, stored.name):
                self.leave_out(stored.name, BESIDE_TEXT, stored.extent.nbytes)
            else:
                yield stored.name

    def decoded(self, tensor: Tensor) -> bool:
        """Whether a flag asks for this tensor's blocks to be decoded."""
        return self.options.decodes(tensor)


# What an engine's row in a family file says about a model: why the engine would compute something else.
#
# Defaults are closed: a family without a row for the engine is refused, and so is a parameter that the engine's format
# has no key for, or that its class does not look at.

#: Sentences about these need more than a key and a value.
_WINDOW = "window"


#: Ways out of keys and classes that are not known, and of two numbers.
_WITHOUT_KEY = "take it out of config.json, or list it as harmless in the family's file, if it changes nothing"
_WITHOUT_QUANTIZATION = "if the values are the model's as they are: ckconv edit SRC DST/ --drop-meta {key}"
_WITHOUT_VALUE = "if the model computes without it: ckconv edit SRC DST/ --drop-meta {key}"
_WITHOUT_CODE = "take auto_map and architectures out of config.json, if the code computes the same"
_ONE_NUMBER = (
    "config.json has to say the number that mlx-lm takes, where what mlx-lm computes is right; else convert the "
    "checkpoint that the directory was made of"
)


def modifier_reason(modifier: Modifier, config: ModelConfig | None, engine: str, otherwise: str = "") -> Reason:
    """Why a key that changes the computation is refused.

    Args:
        engine: what computes without it, by name.
        otherwise: that it does, where there is more to say.
    """
    if modifier.cause is Cause.UNKNOWN_KEY:
        return Reason(modifier, _WITHOUT_KEY)
    if modifier.cause is Cause.FOREIGN_CLASS:
        return Reason(modifier, _WITHOUT_CODE)
    key = modifier.key
    if key in QUANTIZATION_KEYS:  # of a known layout it would be read
        return Reason(
            f"{key} declares a quantization, and no tensor is quantized", _WITHOUT_QUANTIZATION.format(key=key)
        )
    own = own_document(config) if config is not None else {}
    read = key in huggingface_classes.defaults_of_mlx(own)
    known = "reads it, and is not known to compute the same" if read and engine == MLX_LM else "does not know it"
    otherwise = otherwise or f"; {engine} {known}"
    if modifier.cause is Cause.TWO_NUMBERS:
        return Reason(f"{modifier}, changes the computation{otherwise}", _ONE_NUMBER)
    top = re.fullmatch(r"\w+", key)  # of a document; edit takes no keys out of tables of RoPE
    stray = modifier.cause is Cause.STRAY or (
        not read and huggingface_classes.default_of(own, key) is huggingface_classes.UNREAD
    )  # no class computes with it
    hint = _WITHOUT_VALUE.format(key=key) if top and stray else ""
    return Reason(f"{modifier} changes the computation{otherwise}", hint)


def engine_of(family: Family, loader: Loader) -> Engine | None:
    """The row, or that of an engine whose models it has; ``None`` if none."""
    return family.engines.get(loader.row) or family.engines.get(loader.alike.row)


def text_alone(config: ModelConfig | None, loader: Loader, way: str = "--drop tower writes") -> str:
    """Hint at the text model without its tower; empty if that is refused."""
    row = engine_of(catalog.FAMILIES[config.family], loader) if config else None
    if config is not None and row is not None:
        alone = row_reasons(config, loader, context=config.context_length, tied=bool(config.tied), equal=True)
        if row.absent or not all(reason.hint for reason in alone):
            return ""
    return f"{way} the text model alone"


def row_reasons(
    config: ModelConfig, loader: Loader, *, context: int, tied: bool, equal: bool, format: str = "", within: str = ""
) -> Iterator[Reason]:
    """Why the engine would compute something else than the model.

    Args:
        context: context length in the output.
        tied: the output has no head of its own.
        equal: the head is byte for byte the embedding, or there is none.
        format: the source's.
        within: ``model_type`` of the document of which the model's is the text part: a tower's file names the families
            that its class has within it.
    """
    family = catalog.FAMILIES[config.family]
    row = engine_of(family, loader)
    if row is None or (row.absent and not within):
        hint = f'a family file of your own says so by a row: [engines] {loader.row} = {{unmeasured = "why"}}'
        if row is not None:
            whole = loader.name == TRANSFORMERS and OF_FORMAT.get(format) is LLAMA_CPP and is_seen_by(family.name)
            hint = _WITH_TOWER if whole and config.own.get("deepstack", 1) else ""  # of Qwen 3 Omni no tower is known
        yield Reason(_unknown(family, loader, row, format), hint)
        return
    if row.head == "none" and not tied:
        keys = catalog.bracketed(config, "tied", format=format)
        text = f"{loader.name}'s {family.name} has no output head of its own{keys}"
        yield Reason(text, "--tie leaves it out" if equal else "")
    scope = {**scope_of(family, config), "context": context, "tied": tied, "one_matrix": equal}
    for condition in row.right_if:
        yield from _condition(condition, config, loader, scope, format)
    if SLIDING in (config.layer_types or ()) and not config.sliding_window:
        keys = catalog.bracketed(config, "layer_types", "sliding_window", format=format)
        yield Reason(f"layers slide, and the source names no window{keys}")
    for name, parameter in family.parameters.items():
        value = scope[name] if name in FIELD_OF or name in family.own else None
        if name in row.ignores or _is_lost(name, parameter, family, loader):
            yield from _ignored(name, parameter, family, config, loader, value, context, format)
        yield from _assumed(name, parameter, config, loader, scope, format)
        number = loader.of_metadata and parameter.kind == "f32" and name not in ("rope_theta", "norm_eps")
        if number and isinstance(value, float) and abs(value) > MAX_FLOAT32:
            yield Reason(f"{_key(name, config, format)} is {value:g}, which float32 cannot hold")


def row_notes(config: ModelConfig, loader: Loader, *, context: int, tied: bool) -> Iterator[str]:
    """Where the engine computes something else whatever a file says.

    Args:
        context: context length in the output.
        tied: the output has no head of its own.
    """
    family = catalog.FAMILIES[config.family]
    row = engine_of(family, loader)
    scope = {**scope_of(family, config), "context": context, "tied": tied, "one_matrix": bool(config.tied)}
    if row and row.unmeasured:
        yield f"that {loader.name} computes {family.name} right was not measured: {row.unmeasured}"
    for condition in row.same_if if row else ():
        yield from (reason.text for reason in _condition(condition, config, loader, scope, ""))


def _unknown(family: Family, loader: Loader, row: Engine | None, format: str) -> str:
    if row is not None:
        alike = catalog.alike_in_gguf(family) if OF_FORMAT.get(format) is LLAMA_CPP else []
        names = f"{' or '.join(alike)}, whose GGUFs are the same" if len(alike) > 1 else f"{family.name} (model_type)"
        return f"{loader.name} has no {loader.has} for {names}{row.why and f': {row.why}'}"
    return f"ckconv does not know what {loader.name} computes of {an(family.name)} (model_type)"


def _condition(
    condition: Condition, config: ModelConfig, loader: Loader, scope: Mapping[str, Any], format: str
) -> Iterator[Reason]:
    try:
        if condition.expression.value(scope):
            return
    except ExpressionError as error:
        of = catalog.bracketed(config, *sorted(error.names))
        yield Reason(f"ckconv does not know what {loader.name} computes of {an(config.family)}{of}")
        return
    names = condition.of
    sentence = condition.message(scope)
    if not sentence:
        names = names or tuple(sorted(condition.expression.names))
        values = ", ".join(f"{name} is {_shown(scope[name])}" for name in names if name in scope)
        sentence = f"{loader.name} does not compute {config.family} right with these numbers: {values}"
    yield Reason(f"{sentence}{catalog.bracketed(config, *names, format=format)}", condition.way_out(scope))


def _is_lost(name: str, parameter: Parameter, family: Family, loader: Loader) -> bool:
    """Whether the engine's format or class has no place for a parameter."""
    if (
        parameter.value is not None
        or name in LEFT_OUT
        or parameter.folded
        or any(cell.kind == "shape" for cell in parameter.cells.get(loader.column, ()))  # a tensor says it
        or not (name in family.own or name in (_WINDOW, "final_cap", "query_scalar"))
    ):
        return False
    if loader.of_metadata:
        cells = parameter.cells.get(loader.column, ())
        return bool(parameter.cells.get("hf")) and all(cell.kind == "key" and cell.unread for cell in cells)
    return not any(
        set(READERS[loader.alike.row]) & set(cell.readers) and not cell.unread for cell in parameter.key_cells("hf")
    )


def _ignored(
    name: str,
    parameter: Parameter,
    family: Family,
    config: ModelConfig,
    loader: Loader,
    value: Any,
    context: int,
    format: str,
) -> Iterator[Reason]:
    if name == _WINDOW:
        if value and value < context:
            yield Reason(
                f"attention slides over {value:,} tokens ({catalog.window_words(config)}), "
                f"{loader.name} attends to all {context:,}",
                f"--context {value} makes them the same",
            )
        return
    default = parameter.defaults.get(loader.alike.row)
    taken = default.value(scope_of(family, config)) if default is not None else None
    if value is not None and (value if taken is None else differ(value, taken)):
        key = _key(name, config, format)
        yield Reason(f"{key} = {_shown(value)} changes the computation; {loader.name} does not know it")


def _assumed(
    name: str, parameter: Parameter, config: ModelConfig, loader: Loader, scope: Mapping[str, Any], format: str
) -> Iterator[Reason]:
    """A value that the loader takes for granted, and the model has another."""
    for cell in parameter.cells.get(loader.column, ()):
        if cell.kind != "fixed" or cell.folded or cell.expression is None:
            continue
        value, taken = scope[name], cell.expression.value(scope)
        if differ(value, taken):
            text = f"{_key(name, config, format)} = {_shown(value)}, {loader.name} takes {_shown(taken)}"
            yield Reason(cell.sentence or text)


def _key(name: str, config: ModelConfig, format: str) -> str:
    """Key that says a parameter, of the source where it has one."""
    family = catalog.FAMILIES[config.family]
    words = (*catalog.document_words(family, name), *(cell.key for cell in family.parameters[name].key_cells("hf")))
    return next(iter((*catalog.field_keys(config, name, format), *words)), name)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


# What the source's own reader leaves out: tensors that its class does not have.
#
# transformers ignores them with a warning at most; a target's engine would compute with them.


def surplus_reasons(index: TensorIndex, dropped: Callable[..., bool]) -> Iterator[Reason]:
    """Reasons for tensors that the configured class has no place for."""
    config, consumer = index.config, CONSUMERS.get(index.format)
    if config is None or consumer is None or not catalog.FAMILIES[config.family].known_classes:
        return
    document, switches = own_document(config), huggingface_classes.switches_of(config, consumer)
    expected = huggingface_classes.expected_of(
        config, {key: huggingface_classes.is_on(config, key, document, consumer) for key in switches}, consumer
    )
    found: dict[str, list[str]] = defaultdict(list)
    free = {HEAD, *catalog.FAMILIES[config.family].rows}
    for tensor in index.tensors.values():
        surplus = tensor.name not in free and parse(tensor.name).pattern not in expected
        if surplus and not dropped(tensor.name, tensor.source):
            found[parse(tensor.source).pattern].append(tensor.name)
    for pattern, names in found.items():
        also = f" ({counted(len(names), 'tensor')})" if len(names) > 1 else ""
        glob = pattern.replace("{n}", "*").replace("{e}", "*")
        kind = f"{config.model_type} class (model_type) of {consumer}"
        yield Reason(
            f"the {kind} has no {pattern}{also}{_switch(switches, names[0])}, and computes without",
            f"--drop '{glob}' leaves out what it ignores",
        )


def _layers(layers: Sequence[int]) -> str:
    """``layer 1``, ``layers 0, 2 and 3``; of many, the first."""
    if len(layers) == 1:
        return f"layer {layers[0]}"
    shown = [str(layer) for layer in layers[:_SHOWN_KEYS]]
    rest = len(layers) - len(shown)
    last = f"{rest} more" if rest else shown.pop()
    return f"layers {', '.join(shown)} and {last}"


def lost_tensors(index: TensorIndex) -> Mapping[str, Sequence[int]]:
    """Canonical pattern -> layers, of tensors that only the class has.

    transformers makes them up: biases as zeros, matrices at random; mlx-lm loads no such model. Of a bump file they are
    those that models of its family always have: its engine's early scripts leave biases out. Where a key says that
    there are biases, and none is there, they are zeros that nothing has trained.
    """
    config = index.config
    if config is None or index.metadata_kind is MetadataKind.TYPED or not catalog.FAMILIES[config.family].known_classes:
        return {}
    consumer, document = CONSUMERS.get(index.format, TRANSFORMERS), own_document(config)
    there = huggingface_classes.fit(config, index.tensors, consumer).switches
    on = {key: found and huggingface_classes.is_on(config, key, document, consumer) for key, found in there.items()}
    counts = Counter(parse(name).pattern for name in index.tensors)
    wanted = huggingface_classes.expected_layers_of(config, on, consumer)
    return {
        pattern: [layer for layer in layers if with_layer(pattern, layer) not in index.tensors]
        for pattern, layers in wanted.items()
        if counts[pattern] < len(layers)
    }


def zeroed_biases(index: TensorIndex) -> str:
    """Note on zeros in place of biases that a family has; or empty.

    Source: ``convert_hf_to_bump.py`` and ``convert_gguf_to_bump.py`` of January 2026.
    """
    config = index.config
    if config is None or index.metadata_kind is not MetadataKind.OWN or not index.version:
        return ""
    biases = always(catalog.FAMILIES[config.family], "hf")
    placed = [one for one in index.tensors.values() if one.may_be_absent and parse(one.name).pattern in biases]
    empty = zeros(index, placed)
    there = {parse(one.name).pattern for one in placed if one.name not in empty}
    found = sorted({parse(name).pattern for name in empty} - there)
    if not found:
        return ""
    return (
        f"zeros stand for {', '.join(found)}, which every {config.family} has: scripts of the engine leave them out; "
        "where the model had others, convert what the file was made of"
    )


def drop_flags(index: TensorIndex, pattern: str) -> str:
    """Flags that drop tensors without a rule, and none that has one."""
    unknown, others = index.once(_unruled)
    alone = unknown.get(pattern, ()) if pattern in others else ()
    layers = sorted({str(parse(name).layer) for name in alone}) or ["*"]
    globs = [pattern.replace("{n}", layer).replace("{e}", "*") for layer in layers]
    return " ".join(f"--drop '{glob}'" for glob in globs)


def _unruled(index: TensorIndex) -> tuple[dict[str, list[str]], set[str]]:
    """Names without a rule by pattern, and the patterns of all other names."""
    unknown = {stored.name: parse(stored.name).pattern for stored in index.unknown}
    names = defaultdict(list)
    for name, pattern in unknown.items():
        names[pattern].append(name)
    return names, {parse(one.name).pattern for one in index.stored if one.name not in unknown}


def no_epsilon(keys: str) -> Reason:
    """Reason for norms without an epsilon.

    Args:
        keys: where the source would say it; none of a bump file, whose config.json is no part of it.
    """
    return Reason(f"the source names no epsilon for its norms{keys}", "" if keys else "put config.json beside it")


def drop_hint(index: TensorIndex, family: Family, pattern: str, *, unruled: bool) -> str:
    """Way out of tensors that a family does not have.

    Args:
        unruled: no format of the family has it; else a bump file may, in which scripts of its engine put more.
    """
    if not unruled and index.metadata_kind is not MetadataKind.OWN:
        return ""
    unknown, ruled = index.once(_unruled)
    if missed := index.once(_missed).get(frozenset(parse(name).layer for name in unknown.get(pattern, ()))):
        from difflib import SequenceMatcher

        alike = max(missed, key=lambda name: SequenceMatcher(None, name, pattern).ratio())
        return f"if it is {alike} by another name, rename it in the file"
    more = ""
    for one in catalog.families_of_model_type(index.config.model_type) if index.config else ():
        stored = names_of(one, "hf").stored if "labels" in one.parameters else {}
        if ruled <= stored.keys() and any(fnmatchcase(name, pattern) for name in stored):
            more = f", and makes {an(family.name)} of what may be {an(one.name)}"
    return f"{drop_flags(index, pattern)} leaves out what {family.name} does not have{more}"


def _unruled_heads(index: TensorIndex) -> frozenset[str]:
    """First words of several names, of which no tensor has a rule.

    But not where one may be what the family has by another name, nor of a GGUF, whose words are few.
    """
    if index.metadata_kind is MetadataKind.TYPED:
        return frozenset()
    unknown, others = index.once(_unruled)
    known = {pattern.partition(".")[0] for pattern in others}
    layers: dict[str, list[frozenset[int | None]]] = defaultdict(list)
    for pattern, names in unknown.items():
        layers[pattern.partition(".")[0]].append(frozenset(parse(name).layer for name in names))
    missed = index.once(_missed).keys()
    return frozenset(head for head, of in layers.items() if len(of) > 1 and head not in known and missed.isdisjoint(of))


def _missed(index: TensorIndex) -> dict[frozenset[int | None], list[str]]:
    """Layers -> tensors that a family has in them, and the source lacks."""
    found: dict[frozenset[int | None], list[str]] = defaultdict(list)
    if index.config is not None:
        family = catalog.FAMILIES[index.config.family]
        written, wanted = names_of(family, "hf").written, expected_layers(family, "hf", index.config.scope)
        for pattern, layers in ((one, layers) for one, layers in wanted.items() if not is_bias(one)):
            named = [(layer, with_layer(pattern, layer)) for layer in layers] if "{n}" in pattern else [(None, pattern)]
            if lost := frozenset(layer for layer, name in named if name not in index.tensors):
                found[lost].append(written[pattern].pattern if pattern in written else pattern)
    return found


def _switch(switches: Mapping[str, frozenset[str]], name: str) -> str:
    pattern = parse(name).pattern
    return next((f" unless {key} is true" for key, patterns in switches.items() if pattern in patterns), "")


# Tensors whose names are not those of the family that config.json names: one reason, where there would be many.

#: Names that a reason shows.
_SHOWN = 3

#: What peft's layers call their arrays, which the state of a model that was not merged has among its own.
_OF_PEFT = r"\.(base_layer|lora_[AB]|lora_embedding_[AB]|lora_magnitude_vector)\."


def foreign_names(index: TensorIndex) -> Reason | None:
    """Why names of tensors are not those of the known family.

    ``None`` where it has those of a layer, and none of layers of an adapter.
    """
    config = index.config
    if config is None or index.adapter is not None or not index.unknown:
        return None
    if adapting := [stored.name for stored in index.unknown if re.search(_OF_PEFT, stored.name)]:
        return Reason(
            f"layers of an adapter are in it, which was not merged: {counted(len(adapting), 'tensor')}, the first "
            f"{quoted(adapting[0])}",
            "merge_and_unload() of peft's PeftModel merges it, and save_pretrained() writes the model; "
            "--to safetensors copies this one as it is",
        )
    text = [stored.name for stored in index.unknown if not is_beside_text(config.raw, stored.name)]
    layers = {name for name in index.tensors if parse(name).layer is not None}
    if layers or not any(parse(name).layer is not None for name in text):
        return None
    if reason := _wrapper(config.raw, config):
        return reason
    more = ", ..." if len(text) > _SHOWN else ""
    some = ", ".join(map(quoted, text[:_SHOWN])) + more
    return Reason(
        f"none of {counted(len(text), 'tensor')} has a name of {an(config.family)}, as config.json says: {some}"
    )


def _wrapper(raw: Mapping[str, Any], config: ModelConfig) -> Reason | None:
    """A model of several parts, of which only the text part is known."""
    outer = raw.get("model_type")
    if not isinstance(raw.get("text_config"), dict) or not isinstance(outer, str) or outer == config.model_type:
        return None
    return Reason(
        f"ckconv does not know the architecture {outer!r} (model_type), whose text part is {an(config.family)}; "
        f"{catalog.known_by(outer, catalog.classes_of(raw))}",
        "--to safetensors copies it as it is",
    )
