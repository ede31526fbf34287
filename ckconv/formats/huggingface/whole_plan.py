"""Planning a checkpoint of a text model and a tower that were two files: one model of transformers, as it was."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ckconv.core.dtypes import F32, Kind
from ckconv.core.metadata import QUANTIZATION_KEYS, document_of
from ckconv.core.tensors import PREFIX, Tensor, TensorIndex, parse, parted
from ckconv.families.catalogue import FAMILIES
from ckconv.families.loaders import TRANSFORMERS
from ckconv.families.names import HF, names_of
from ckconv.families.naming_schemes import NESTED
from ckconv.families.parameters import differ, nested, write
from ckconv.families.presence import expected
from ckconv.families.towers import PREPROCESSOR, PROCESSOR, taken_otherwise, tower_family
from ckconv.formats.huggingface.plan import HuggingFacePlanner
from ckconv.formats.safetensors.checkpoint_config import CHECKPOINTS
from ckconv.formats.safetensors.checkpoint_names import Spelling
from ckconv.formats.safetensors.checkpoint_pieces import module_of, spare_of
from ckconv.options import Options
from ckconv.plan.pieces import Module
from ckconv.plan.planner import EMBEDDING
from ckconv.plan.probe import SourceFacts
from ckconv.plan.steps import Plan, missing_tensors
from ckconv.tokenizer.vocabulary import token_ids

#: What the text part's document says that stands around it, in the document of the whole.
_OUTER = ("dtype", "torch_dtype", "tie_word_embeddings")
_OF_THE_CLASS = ("architectures", "dtype", "torch_dtype")

#: Tables of the tower's rows that are documents of their own.
_BESIDE = {PREPROCESSOR: "preprocessor_config.json", PROCESSOR: "processor_config.json"}

_PREPARED = (
    "preprocessor_config.json says what the mmproj does; how large pictures may be, and by which filter they are "
    "resized, is left to the class"
)


class WholePlanner(HuggingFacePlanner):
    """The text model under the names that it has within the class of both, and the tower beside it."""

    def __init__(self, index: TensorIndex, options: Options, source: SourceFacts) -> None:
        text, self._seen = parted(index)
        super().__init__(text, options, source)
        assert index.tower is not None
        self.whole, self._tower = index, index.tower
        self._family = tower_family(self._tower.family)
        self.within = self._family.model_type
        self._written = write(self._family, self._tower.parameters, "hf")

    def plan(self, *, only_reasons: bool = False) -> Plan:
        """The plan.

        Raises:
            UsageError: ``usage.meta``, as of any checkpoint.
        """
        if self.options.names != "hf" or self.options.fuse:
            self.refuse("--names and --fuse are for text models: the class has one name for each tensor")
        row = self._family.engines.get(TRANSFORMERS.row)
        if row is not None and row.absent:
            self.refuse(f"transformers has no class for {self.within} (model_type): {row.why}")
        else:
            self._check_text()
        return super().plan(only_reasons=only_reasons)

    def _check_text(self) -> None:
        """The two files are of one model."""
        (families, _), config = self._family.in_huggingface.text, self.config
        if config is None:
            return
        if families and config.family not in families:
            self.refuse(f"the tower is of a {self.within}, and the text model is a {config.family}")
        embedding = names_of(FAMILIES[config.family], HF).written.get(EMBEDDING)
        if embedding is None or not embedding.pattern.startswith("model."):  # its loader renames no others
            self.refuse(
                f"the class loads text models whose tensors are called model.*, and a {config.family} has other names"
            )
        width = self._tower.parameters["text_hidden"]
        if width != config.hidden_size:
            self.refuse(
                f"the tower makes {width:,} values of a picture's part, the text model has {config.hidden_size:,}"
            )
        layers = self._tower.parameters.get("deepstack")
        if layers is not None and len(layers) != config.own.get("deepstack"):
            own = config.own.get("deepstack")
            self.refuse(f"the text model takes {own} layers of the tower, which has {len(layers)}")
        eps = self._tower.parameters.get("text_eps")
        if eps is not None and differ(eps, config.norm_eps):
            self.refuse(
                f"the class takes rms_norm_eps of the text model, {config.norm_eps:g}, for the projector's norm, and "
                f"llama.cpp computes that with {eps:g}"
            )
        if self.index.format in CHECKPOINTS:  # whose document says it
            return
        for sentence in taken_otherwise(self._tower, self._written, "hf", "transformers"):
            self.refuse(sentence)
        wanted = self._family.in_huggingface.tokens
        self._tokens = token_ids(self.index.metadata, wanted.values())
        missing = [token for token in wanted.values() if token not in self._tokens]
        if missing:
            self.refuse(f"the vocabulary has no {', '.join(missing)}, by which the class knows where a picture stands")

    def _renamed(self) -> list[Module]:
        modules = [tuple(piece._replace(name=self._nested(piece.name)) for piece in m) for m in super()._renamed()]
        return [*modules, *self._modules()]

    def _modules(self) -> list[Module]:
        """The tensors of the tower."""
        family = self._family
        embedded = family.in_huggingface.embeddings
        tensors = {
            name: tensor for name, tensor in self._seen.items() if name not in embedded and not self._left(tensor)
        }
        for tensor in (self._seen[name] for name in embedded if name in self._seen):
            if EMBEDDING in self.tensors and self.tensors[EMBEDDING].dtype.kind is not Kind.FLOAT:  # else compared
                self.leave_out(tensor.name, "a row of the text model's embedding, which is quantised", tensor.nbytes)
        prefix = "model." if self._prefix.startswith("model.") else ""
        entries, nameless = Spelling(family, self._tower.parameters, "hf").entries(tensors)
        self._refuse_grouped("no name for", [parse(name).pattern for name in nameless])
        there = Counter(parse(name).pattern for name in tensors)
        wanted = expected(family, "hf", self._tower.parameters)
        missing, left = {name: count - there[name] for name, count in wanted.items()}, self.dropped_patterns(self._seen)
        self.reasons += missing_tensors(missing, dropped=left)
        modules = []
        for entry in entries:
            parts = [tensors[part] for part in entry.parts if part in tensors]
            if len(parts) == len(entry.parts):
                dtype = self._type_of(parts, entry.shift)
                named = entry._replace(name=prefix + entry.name, canonical=PREFIX + entry.canonical)
                modules.append(module_of(named, parts, dtype))
        dtype = self.types.get(EMBEDDING, F32)
        for (piece,) in spare_of(family, "hf", self._tower.parameters, dtype, (), self.plain_type):
            modules.append((piece._replace(name=prefix + piece.name),))
            self.notes.append(f"zeros stand for {prefix + piece.name}, which nothing that the text model sees needs")
        return modules

    def _left(self, tensor: Tensor) -> bool:
        """A flag leaves the tensor out."""
        left = self.dropped(tensor.name, tensor.source)
        if left:
            self.leave_out(tensor.name, "--drop", tensor.nbytes)
        return left

    def _type_of(self, parts: Sequence[Tensor], shift: int) -> Any:
        types = [self.type_of(part, shift) for part in parts]
        if len({*types}) > 1:
            mixed = " and ".join(f"{part.source} is {dtype}" for part, dtype in zip(parts, types, strict=True))
            self.refuse(f"what the class has as one tensor has two types: {mixed}")
        return types[0]

    @property
    def _prefix(self) -> str:
        return self._family.in_huggingface.text[1]

    def _nested(self, name: str) -> str:
        """A text tensor's name within the class of both."""
        inner = dict(NESTED).get(self._prefix)
        if inner is None or not name.startswith(inner):
            return name
        return self._prefix + name.removeprefix(inner)

    # Documents

    def _document(self, modules: Sequence[Module], kept: bool) -> bytes:
        text = json.loads(super()._document(modules, kept))
        if self.index.format in CHECKPOINTS:
            whole = {
                key: value for key, value in document_of(self.index.metadata).items() if key not in QUANTIZATION_KEYS
            }
            return _encoded({**whole, **{key: text[key] for key in _OUTER if key in text}})
        tables = nested(self._written.entries)
        inner = {key: value for key, value in text.items() if key not in _OF_THE_CLASS}
        document = {
            **{key: text[key] for key in _OUTER if key in text},
            **{key: value for key, value in tables.items() if key not in _BESIDE},
            **{key: self._tokens[token] for key, token in self._family.in_huggingface.tokens.items()},
            "architectures": [self._family.hf_class],
            "model_type": self.within,
            "text_config": {**inner, **tables.get("text_config", {})},
        }
        self.beside |= {file: _encoded(tables[table]) for table, file in _BESIDE.items() if table in tables}
        row = self._family.engines.get(TRANSFORMERS.row)
        self.notes += [_PREPARED, *(condition.sentence for condition in (row.same_if if row else ()))]
        return _encoded(document)


def _encoded(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()
