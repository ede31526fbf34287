"""Planning an ``mmproj``: the tower of a model that sees, as llama.cpp loads it beside the text model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from ckconv.core.dtypes import F16, DType
from ckconv.core.metadata import Value
from ckconv.core.tensors import Tower, parse, with_layer
from ckconv.errors import InputError, listed
from ckconv.families.expressions import ExpressionError
from ckconv.families.gguf_metadata import general_keys, keys_of_entries, size_label, type_keys
from ckconv.families.loaders import LLAMA_CPP
from ckconv.families.names import names_of
from ckconv.families.parameters import Written, write
from ckconv.families.presence import expected, narrow
from ckconv.families.schema import Family
from ckconv.families.sizes import Scope
from ckconv.families.towers import PREPROCESSOR, taken_otherwise, tower_family
from ckconv.formats.gguf.entries import Entry, entry_of, is_fp32
from ckconv.formats.gguf.plan import GgufPlanner
from ckconv.plan.steps import Plan, missing_tensors
from ckconv.tokenizer.gguf import TokenizerKeys

#: Kernels over pixels, and what merges parts of a picture: ``tensor_force_quant`` of ``MmprojModel`` stores them as F16
#: in a file of F16 and as F32 in any other, as BF16 in none. A family's row ``narrow`` names what may be F16.
_PIXELS = ("v.patch_embd.", "mm.patch_merger.")


class TowerPlanner(GgufPlanner):
    """Plans an mmproj."""

    def plan(self, *, only_reasons: bool = False) -> Plan:
        """The plan.

        Raises:
            UsageError: ``usage.meta``, as of any GGUF.
            InputError: ``model.config``, what the file would say cannot be computed from the parameters.
        """
        if self.options.quantize:
            self.refuse("--quantize is for the text model: a tower is written in the types that it has")
        try:
            return super().plan(only_reasons=only_reasons)
        except ExpressionError as error:
            raise InputError("model.config", str(error), path=self.index.path) from None

    @cached_property
    def _tower(self) -> Tower:
        assert self.index.tower is not None
        return self.index.tower

    @cached_property
    def _written(self) -> Written:
        return write(tower_family(self._tower.family), self._tower.parameters, "gguf")

    def _entries(self) -> list[Entry]:
        family, index = tower_family(self._tower.family), self.index
        scope = Scope(family, self._tower.parameters)
        for sentence in taken_otherwise(self._tower, self._written, "gguf", "llama.cpp"):
            self.refuse(sentence)
        row = family.engines[LLAMA_CPP.row]
        for take, conditions in ((self.refuse, row.right_if), (self.notes.append, row.same_if)):
            for condition in conditions:
                if not condition.expression.value(self._tower.parameters):
                    take(condition.said(self._tower.parameters))
        for modifier in self._tower.modifiers:
            self.refuse(f"{modifier} of the tower changes the computation, and llama.cpp has no place for it")
        self._note_keys(family)
        for item in index.dropped:
            self.leave_out(item.stored.name, item.reason, item.stored.extent.nbytes)
        surplus: Counter[str] = Counter()
        for stored in index.unknown:
            if self.dropped(stored.name):
                self.leave_out(stored.name, "--drop", stored.extent.nbytes)
            else:
                surplus[parse(stored.name).pattern] += 1
        for pattern, count in surplus.items():
            more = f" ({count} tensors)" if count > 1 else ""
            glob = pattern.replace("{n}", "*").replace("{e}", "*")
            self.refuse(
                f"llama.cpp's tower of {family.model_type} has no place for {pattern}{more}", f"--drop '{glob}'"
            )
        entries = self._placed_tensors(scope)
        there = Counter(parse(name).pattern for name in index.tensors)
        wanted = expected(family, "gguf", self._tower.parameters)
        for pattern in there - Counter(wanted):
            self.refuse(f"there is a {pattern}, and the class has none with what config.json says")
        self.reasons += missing_tensors({name: count - there[name] for name, count in wanted.items()})
        return entries

    def _note_keys(self, family: Family) -> None:
        """Keys that are not carried."""
        beside = f"{PREPROCESSOR}."
        keys = [*self._tower.unread]
        for file, named in (
            ("config.json", [key for key in keys if not key.startswith(beside)]),
            ("preprocessor_config.json", [key.removeprefix(beside) for key in keys if key.startswith(beside)]),
        ):
            if named:
                unread = ", ".join(listed(named))
                self.notes.append(f"no known class of {family.model_type} reads these keys of {file}: {unread}")
        if self._tower.others:
            others = ", ".join(other.removeprefix(beside) for other in self._tower.others)
            self.notes.append(f"llama.cpp takes what the model says, not preprocessor_config.json: {others}")

    def _placed_tensors(self, scope: Scope) -> list[Entry]:
        """The tensors under the names of GGUF."""
        family, tensors = tower_family(self._tower.family), self.index.tensors
        written, entries = names_of(family, "gguf").written, dict[str, Entry]()
        for name in map(parse, tensors):
            held, number = written[name.pattern], name.layer
            if held.numbers is not None and number is not None:
                number = held.numbers.value(scope)[number]
            called = with_layer(held.pattern, number)
            parts = [tensors[part] for one in held.names if (part := with_layer(one, name.layer)) in tensors]
            if len(parts) == len(held.names):
                short = name.pattern in narrow(family, LLAMA_CPP.row) and all(part.dtype is F16 for part in parts)
                named = name.pattern in narrow(family, LLAMA_CPP.row) or called.startswith(_PIXELS)
                fp32 = not short and (named or is_fp32(called))
                entries.setdefault(called, entry_of(called, parts, family, scope, fp32=fp32))
        return list(entries.values())

    def _metadata(self, entries: Sequence[Entry], types: Sequence[DType]) -> dict[str, Value]:
        family = tower_family(self._tower.family)
        label = size_label(sum(tensor.elements for entry in entries for tensor in entry.parts), 0, 0)
        return {
            **general_keys(family, self._name(TokenizerKeys({}, ())), label, "mmproj"),
            **keys_of_entries(family, self._written.entries),
            **type_keys(self._file_type(entries, types)),
        }
