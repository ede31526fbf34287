"""Planning BUMPWGT5, and layout D of BUMPWGT4, which has the same payload: what the engine's v7 and v8 compute.

Sources: ``version/v7/scripts/convert_gguf_to_bump_v7.py`` for the layout, ``build_ir_v7.py`` and the templates for what
is taken; which types are computed rightly was measured, not promised.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ckconv.core.dtypes import F32, DType
from ckconv.core.tensors import TensorIndex
from ckconv.families.catalogue import families_of_engine
from ckconv.families.presence import used
from ckconv.formats.bump.engines import FOR_V7_AND_V8, TEMPLATED
from ckconv.formats.bump.plan import BumpPlanner
from ckconv.formats.bump.sliding import engine_reasons
from ckconv.formats.bump.slots import LOADED_BY_V5, LOADED_BY_V5_IN_LAYERS, SLOTS_V5, Slot, with_optional
from ckconv.formats.bump.spec import EXTENDED_HEADER_BYTES
from ckconv.formats.bump.write5 import Bump5, container
from ckconv.options import Options
from ckconv.plan.planner import HEAD
from ckconv.plan.probe import SourceFacts
from ckconv.plan.steps import Plan


class Bump5Planner(BumpPlanner):
    """The rules of the engine's template-driven runtime."""

    engine = TEMPLATED
    version = 5
    numbering = "v4"
    data_start = EXTENDED_HEADER_BYTES
    step = 1

    def __init__(self, index: TensorIndex, options: Options, source: SourceFacts) -> None:
        super().__init__(index, options, source)
        # An entry that no operation of the engine's template uses is a fault there, and so is one that is missing.
        self.present = set(used(self.family, TEMPLATED))
        head = index.tensors.get(HEAD)
        if head is not None and not source.head_is_embedding and not self.dropped(head.name, head.source):
            self.present.add(HEAD)
        self.table = with_optional(SLOTS_V5, self.present)
        self._template: dict[str, Any] | None = None
        if options.template is not None:
            from ckconv.formats.bump.template import read_template

            self._template = read_template(options.template, self.family.gguf)

    def _check_engine(self) -> None:
        if self.row is None:
            self.refuse(self.unknown_to_us(TEMPLATED))
        elif self.row.absent:
            known = ", ".join(family.name for family in families_of_engine(TEMPLATED))
            self.refuse(f"the engine has no template for {self.config.family} (ckconv knows those of {known})")
        elif self.row.slides:
            self.reasons += engine_reasons(self.config, self.geometry.context)

    def _slides(self) -> bool:
        return self.row is not None and self.row.slides

    def refused_type(self, source: DType, slot: Slot) -> str:
        """See :meth:`BumpPlanner.refused_type`."""
        in_layer = "{n}" in slot.name
        if source.name in LOADED_BY_V5 or (in_layer and source.name in LOADED_BY_V5_IN_LAYERS):
            return ""
        if source.name in LOADED_BY_V5_IN_LAYERS:
            return f"the engine has no correct kernel for a {source} {slot.name}"
        return f"the engine has no correct kernel for {source} matrices"

    def _check_rows(self, *, interleaved: bool) -> None:
        """A configuration can only say ``split`` against its template (``_resolve_rope_qk_kernel`` of v7 and v8)."""
        if interleaved and not self._rotates_pairs():
            self.refuse(
                f"Q and K rows would be interleaved, the template for {self.family.gguf} rotates split rows",
                "--rope-layout engine stores split rows, --template FILE may rotate interleaved ones",
            )
        elif not interleaved and self._rotates_pairs():
            self.notes.append(
                "Q and K rows are split: April's v7 and v8 go by rope_layout in the configuration, July's v8 only by a "
                "--template whose rope_qk kernel rotates split rows"
            )

    def _rotates_pairs(self) -> bool:
        default = self.row is not None and self.row.interleaved
        if self._template is None:
            return default
        from ckconv.formats.bump.template import template_interleaves

        return template_interleaves(self._template, default)

    def _finish(self, types: Mapping[str, DType], interleaved: bool) -> Plan:
        # What only a plan needs that is going to be carried out: `inspect` asks no more than whether there is one.
        from ckconv.formats.bump import documents5 as documents
        from ckconv.tokenizer.bump import MERGE_BYTES
        from ckconv.tokenizer.source import special_tokens_of, texts_of, tokenizer_of

        content = tokenizer_of(self.index, self.geometry.vocab) or {}
        table = with_optional(SLOTS_V5, self.present | content.keys())
        steps = tuple(self.steps(types, interleaved=interleaved, table=table, content=content))
        self._note(content, types[HEAD if HEAD in self.present else "token_emb"])
        facts = documents.Facts(
            config=self.config,
            geometry=self.geometry,
            steps=steps,
            tied=HEAD not in self.present,
            own_rope_layout="split" if self._rotates_pairs() and not interleaved else "",
            num_merges=len(content.get("vocab_merges", b"")) // MERGE_BYTES,
            total_vocab_bytes=len(content.get("vocab_strings", b"")),
            special_tokens=special_tokens_of(self.index),
            texts=texts_of(self.index),
            template=self._template,
            created=self.options.created,
        )
        manifest = documents.manifest(facts)
        metadata = documents.metadata(facts, manifest) if self.version == 5 else b""
        return Plan(
            self.index,
            "bump",
            self.version,
            self.options,
            (self.file(steps, len(metadata)),),
            tuple(self.left_out),
            notes=tuple(self.notes),
            rope_layout="interleaved" if interleaved else "split",
            errors=self.quantised.errors if self.options.quantize else None,
            contents=partial(
                container,
                Bump5(
                    self.version,
                    self.geometry,
                    self.codes(types),
                    facts.num_merges,
                    facts.total_vocab_bytes,
                    content,
                    manifest,
                    documents.config_json(facts),
                    metadata,
                ),
            ),
        )

    def _note(self, content: Mapping[str, bytes], head: DType) -> None:
        if not content:
            self.notes.append("the source has no tokenizer: none is embedded")
        if head is F32:  # without it the generated code calls gemv_blocked_serial, which the library lacks
            self.notes.append("the output head is FP32: the engine is built with --logits-layout full")
        if self.version == 4:
            self.notes.append(FOR_V7_AND_V8)
        if self._template is None:
            self.notes.append("no engine template is embedded (--template): the engine takes its own")
        elif self._template.get("name", self.family.gguf) != self.family.gguf:
            self.notes.append(f"the template calls itself {self._template['name']!r}, the model is {self.family.gguf}")


class Bump4Planner(Bump5Planner):
    """Layout D of version 4: the payload of version 5 without the metadata behind it."""

    version = 4
