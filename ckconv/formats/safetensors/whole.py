"""Planning of a text model and its tower as one checkpoint."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ckconv.core.config import ModelConfig
from ckconv.core.dtypes import DType, Kind
from ckconv.core.metadata import QUANTIZATION_KEYS, document_of
from ckconv.core.tensors import EMBEDDING, PREFIX, StoredTensor, Tensor, TensorIndex, parse, parted
from ckconv.errors import an
from ckconv.families.parameters import differ, nested, write
from ckconv.families.schema import TRANSFORMERS
from ckconv.families.sizes import expected
from ckconv.families.towers import PREPROCESSOR, PROCESSOR, taken_otherwise, tower_family, tower_within
from ckconv.formats.safetensors.arrays import Entry, Spelling, module_of, spare_of
from ckconv.formats.safetensors.checkpoint import CheckpointPlanner
from ckconv.formats.safetensors.config_json import CHECKPOINTS
from ckconv.options import Options
from ckconv.plan.probe import SourceFacts
from ckconv.plan.steps import Module, Plan, missing_tensors
from ckconv.tokenizer.vocabulary import token_ids

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

    def __init__(self, index: TensorIndex, options: Options, source: SourceFacts) -> None:
        text, self._seen = parted(index)
        super().__init__(text, options, source)
        assert index.tower is not None
        self.whole, self._tower = index, tower_within(index.tower, text.config.family if text.config else "")
        self.seeing = tower_family(self._tower.family)
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
            self.refuse(f"{self.loader.name} has no class for {self.within} (model_type): {row.why}")
        elif self.config is not None:
            self._check_text(self.config)
        return super().plan(only_reasons=only_reasons)

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
        tensors = {
            name: tensor for name, tensor in self._seen.items() if name not in embedded and not self._left(tensor)
        }
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
        missing = {name: count - there[name] for name, count in wanted.items()}
        alone = "--drop tower writes" if self.index.format in CHECKPOINTS else "leave MMPROJ out to write"
        hint = f"{alone} the text model alone" if all_there != there else ""
        self.reasons += [one._replace(hint=hint) for one in missing_tensors(missing, dropped=all_there - there)]
        modules = []
        for entry in entries:
            parts = [tensors[part] for part in entry.parts if part in tensors]
            if len(parts) == len(entry.parts):
                named = entry._replace(name=prefix + entry.name, canonical=PREFIX + entry.canonical)
                modules.append(module_of(named, parts, self.type_beside(named, parts)))
        row = family, scheme, self._tower.parameters, self.spare_type
        for (piece,) in spare_of(*row, (), self.plain_type):
            modules.append((piece._replace(name=prefix + piece.name),))
            self.notes.append(f"zeros stand for {prefix + piece.name}, which nothing that the text model sees needs")
        return modules

    def leave_out_part(self, stored: StoredTensor) -> bool:
        """No part is left out for a whole: what has no name is refused."""
        return False

    def _left(self, tensor: Tensor) -> bool:
        """A flag leaves the tensor out."""
        left = self.dropped(tensor.name, tensor.source)
        if left:
            self.leave_out(tensor.name, "--drop", tensor.nbytes)
        return left

    def type_beside(self, entry: Entry, parts: Sequence[Tensor]) -> DType:
        """Type of a tensor of the tower."""
        types = [self.type_of(part, entry.shift) for part in parts]
        if len({*types}) > 1:
            mixed = " and ".join(f"{part.source} is {dtype}" for part, dtype in zip(parts, types, strict=True))
            self.refuse(f"what the class has as one tensor has two types: {mixed}")
        return types[0]

    # Documents

    def _document(self, modules: Sequence[Module], kept: bool) -> bytes:
        text = json.loads(super()._document(modules, kept))
        if self.index.format in CHECKPOINTS:
            whole = {
                key: value for key, value in document_of(self.index.metadata).items() if key not in QUANTIZATION_KEYS
            }
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
