"""GGUF adapters as llama.cpp loads them: LoRA, one alpha for a file."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from ckconv.core.config import FIELD_OF, ModelConfig
from ckconv.core.layouts import float32, headed, plain
from ckconv.core.lazy import replace
from ckconv.core.metadata import Value, scalar
from ckconv.core.tensors import (
    BY_BASE,
    PARTS,
    Adapter,
    AdapterModule,
    Role,
    StoredTensor,
    Tensor,
    TensorIndex,
    effective_scale,
    parse,
)
from ckconv.errors import InputError, an, quoted
from ckconv.families.adapters import (
    AdapterModules,
    Collector,
    Part,
    Shape,
    family_named,
    family_of,
    gguf_module_of,
    gguf_name_of,
    placed_in_gguf,
    weight_pattern,
)
from ckconv.families.catalog import FAMILIES
from ckconv.families.names import heads_of, interleaves
from ckconv.families.schema import LLAMA_CPP, Family
from ckconv.families.sizes import is_regrouped
from ckconv.formats.gguf import values
from ckconv.formats.gguf.keys import container, copied, edited, mistyped_notes
from ckconv.formats.gguf.read import GgufFile
from ckconv.formats.safetensors.adapter import Opener, check_fits, find_base
from ckconv.io.json import shown
from ckconv.plan.adapters import MERGED, NAME_BASE, AdapterPlanner, Entry, as_columns, as_rows, power_of_two
from ckconv.plan.steps import OutputFile, Piece, Plan

# GGUF adapters as llama.cpp loads them: ``NAME.lora_a`` and ``NAME.lora_b`` beside the name of each base tensor.
#
# In numpy order ``lora_a`` is ``[rank, in]`` and ``lora_b`` ``[out, rank]``, its rows in the order of the base's, which
# for Llama's q and k depends on the number of heads; of ``token_embd.weight`` ``lora_a`` is ``[vocabulary, rank]`` and
# ``lora_b`` ``[hidden, rank]``; of experts they are ``[experts, rank, in]`` and ``[experts, out, rank]``
# (``build_lora_mm_id``). There is one alpha for all; the scale is alpha / rank, and 1 where there is no alpha
# (``llama_adapter_lora_weight::get_scale``).

_NAME_KEY = "general.base_model.0.name"

EMBEDDING = "token_embedding"


def gguf_adapter(file: GgufFile, path: Path, *, opener: Opener, base: Path | None = None) -> TensorIndex:
    """The index of an adapter.

    Args:
        file: what the header says.
        opener: opens a base model.
        base: the base model; the rows of Llama's q and k cannot be put in order without its head counts.

    Raises:
        InputError: ``adapter.rank``, ``adapter.scale``, ``adapter.base``.
    """
    architecture, base_name = _text(file, "general.architecture"), _text(file, _NAME_KEY)
    found_base = find_base(base, "", opener)
    model = found_base.config if found_base else None
    family = FAMILIES[model.family] if model else family_named(architecture)
    if model is not None and family is not None and family.gguf != architecture:
        message = f"is made for {architecture!r}, the base is {family.gguf!r}"
        raise InputError("adapter.base", message, path=path, found=architecture, allowed=family.gguf)
    alpha = _alpha(file, path)
    unsupported = [] if _text(file, values.GGUF_TYPE_KEY) == "lora" else [f"{values.GGUF_TYPE_KEY} is not 'lora'"]
    if values.GGUF_ALORA_KEY in file.metadata:
        unsupported.append(f"{values.GGUF_ALORA_KEY}: it is active only after certain tokens")
    collected, unknown = _collect(file, path, alpha, family)
    unsupported += [f"no rule for tensor {quoted(tensor.name)}" for tensor in unknown]
    scope = model.scope if model else None
    regrouped = [name for name in collected.modules if family and is_regrouped(family, name, scope)]
    if regrouped and model is None:
        unsupported.append(f"rows or columns of {regrouped[0]} are in an order of GGUF's own, {BY_BASE}")
    elif regrouped and family and model:
        collected, odd = _regrouped(collected, regrouped, family, model)
        unsupported += [f"{name} is in an order of GGUF's own that no adapter can be in" for name in odd]
    if family and interleaves(family):
        collected, lost = _in_order(collected, file, model, family, path)
        if lost:
            unsupported.append(f"rows of {len(lost)} lora_b ({lost[0]}, ...) are in the order of heads, {BY_BASE}")
            unknown += tuple(tensor for tensor in file.tensors if tensor.name in lost)
    check_fits(collected, found_base, path)
    adapter = Adapter("LoRA", base_name, collected.modules, tuple(unsupported), model)
    facts = {"kind": "adapter", "method": "LoRA", "modules": len(adapter.modules), "alignment": file.alignment}
    return file.indexed(
        path,
        architecture=architecture,
        config=None,
        tensors=collected.tensors,
        canonical_of=collected.canonical_of,
        unknown=unknown,
        facts={**facts, **({"base": base_name} if base_name else {}), "data_offset": file.data_offset},
        adapter=adapter,
    )


def _collect(
    file: GgufFile, path: Path, alpha: float | None, family: Family | None
) -> tuple[AdapterModules, tuple[StoredTensor, ...]]:
    pairs: dict[str, dict[str, StoredTensor]] = {}
    unknown: list[StoredTensor] = []
    for stored in file.tensors:
        ending = next((ending for ending in (values.GGUF_A, values.GGUF_B) if stored.name.endswith(ending)), None)
        if ending is None:
            unknown.append(stored)
        else:
            pairs.setdefault(stored.name.removesuffix(ending), {})[ending] = stored
    collector = Collector(path)
    for name, pair in pairs.items():
        module = gguf_module_of(name, family) or name
        if module == EMBEDDING:
            roles = {values.GGUF_A: (Role.B, False), values.GGUF_B: (Role.A, True)}
        else:
            roles = {values.GGUF_A: (Role.A, False), values.GGUF_B: (Role.B, False)}
        parts = {roles[ending][0]: Part(stored, transposed=roles[ending][1]) for ending, stored in pair.items()}
        # llama.cpp takes the rank from the tensor.
        b = pair.get(values.GGUF_B)
        rank = b.shape[-1] if b is not None and b.shape and b.shape[-1] else 1
        scale = 1.0 if alpha is None else effective_scale(alpha, rank)
        collector.add(module, name, parts, Shape(scale, None, alpha), embedding=module == EMBEDDING)
    return collector.finish(), tuple(unknown)


def _regrouped(
    collected: AdapterModules, names: list[str], family: Family, model: ModelConfig
) -> tuple[AdapterModules, list[str]]:
    """Adapter in GGUF's row and column order, and modules that have none."""
    tensors, odd = dict(collected.tensors), []
    for name in names:
        outputs = placed_in_gguf(collected.modules[name].path, family, model)
        a, b = (tensors[f"{name}.{role.value}"] for role in (Role.A, Role.B))
        if outputs is None or len(b.shape) != 2 or b.shape[0] != outputs.rows:
            odd.append(name)
            continue
        layout = outputs.layout(b.shape[1])
        tensors[b.name] = replace(b, layout=replace(layout, scale=b.layout.scale))
        tensors[a.name] = replace(a, layout=outputs.layout_of_a(*a.shape))
    return collected._replace(tensors=tensors), odd


def _in_order(
    collected: AdapterModules, file: GgufFile, model: ModelConfig | None, family: Family, path: Path
) -> tuple[AdapterModules, list[str]]:
    """Adapter with Q and K rows in llama.cpp's order, and tensors left out."""
    tensors = dict(collected.tensors)
    lost: list[str] = []
    for name in collected.modules:
        field = FIELD_OF.get(heads_of(family, weight_pattern(name)) or "")
        if field is None:
            continue
        heads = getattr(model, field) if model else _heads(file, field, family.gguf)
        tensor = tensors[f"{name}.{Role.B.value}"]
        if heads is None:
            lost.append(tensor.source)
            del tensors[tensor.name]
            continue
        tensors[tensor.name] = _interleaved(tensor, heads, path)
    return collected._replace(tensors=tensors), lost


def _interleaved(tensor: Tensor, heads: int, path: Path) -> Tensor:
    rows, rank = tensor.shape
    if not heads or rows % heads or rows // heads % 2:
        message = f"{quoted(tensor.source)} has {rows:,} rows, which are not those of {heads} heads"
        raise InputError("adapter.base", message, path=path, tensor=tensor.source, found=rows, allowed=heads)
    layout = headed(heads, rows // heads, rank, interleaved=True)
    return replace(tensor, layout=replace(layout, scale=tensor.layout.scale))


def _heads(file: GgufFile, field: str, architecture: str) -> int | None:
    value = file.metadata.get(values.HEAD_KEYS[field].format(arch=architecture))
    return value.value if value is not None and isinstance(value.value, int) else None


def _alpha(file: GgufFile, path: Path) -> float | None:
    found = file.metadata.get(values.GGUF_ALPHA_KEY)
    if found is None:
        return None
    value = found.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        text = shown(value) if isinstance(value, int | float | str) else found.type
        raise InputError("adapter.scale", f"{values.GGUF_ALPHA_KEY} is {text}; it must be an f32 above 0", path=path)
    return float(value)


def _text(file: GgufFile, key: str) -> str:
    found = file.metadata.get(key)
    return found.value if found is not None and isinstance(found.value, str) else ""


# GGUF adapters as llama.cpp loads them: LoRA only, one alpha for all modules, ranks from the tensors.

_FILE_NAME = "adapter.gguf"
_EMBEDDING, _POSITIONS, _HEAD = "token_embedding", "position_embedding", "output"


class GgufAdapterPlanner(AdapterPlanner):
    """Plans one GGUF."""

    format = "gguf adapter"
    holds_tasks = True
    holds_blocks = True
    what = "GGUF"
    roles = frozenset({Role.A, Role.B})

    def has_place(self, module: str, base: ModelConfig) -> bool:
        """Whether GGUF has a name for a module."""
        return gguf_name_of(module, FAMILIES[base.family]) is not None

    def check(self) -> None:
        """Check that the base model is known, which decides names and orders."""
        self.family = self._family()
        if self.family is None:
            return
        for module in self.modules:
            if ".experts." not in module.name and module.rank:
                self._check_module(module, self.family)
        rotated = [m for m in self.modules if _heads_field(m, self.family)]
        if rotated and self.adapter.base is None and self.index.format != "gguf":
            self.refuse(f"the rows of {quoted(rotated[0].path)} are stored by heads of the base model", NAME_BASE)

    def _family(self) -> Family | None:
        family = family_of(self.adapter)
        if family is not None:
            if not family.gguf:
                self.refuse(f"llama.cpp has no {family.name}")
            return family
        if self.index.format == "gguf":
            return family_named(self.index.architecture)
        self.refuse("the architecture, which a GGUF names, follows from the base model", NAME_BASE)
        return None

    def _check_module(self, module: AdapterModule, family: Family) -> None:
        base = self.adapter.base
        scope = base.scope if base is not None else None
        if module.name == _POSITIONS:
            self.refuse("llama.cpp does not change position embeddings")
        elif _unadapted(module, family) and self.index.format != "gguf":
            why = f"llama.cpp computes {module.name} of {an(family.gguf)} without its adapter"
            if self.adapter.task is None:
                self.refuse(why, MERGED)
            else:  # of a model that is published with it; as llama.cpp's converter makes it
                self.notes.append(f"{why}; {MERGED}")
        elif gguf_name_of(module.name, family) is None and self.index.format != "gguf":
            several = ", which is several matrices there" if parse(module.name).pattern in PARTS else ""
            self.refuse(f"GGUF has no name for {quoted(module.path)}{several}", MERGED)
        elif self.index.format != "gguf" and base is None and is_regrouped(family, module.name, scope):
            self.refuse(f"GGUF has rows or columns of {module.name} in another order than the adapter", NAME_BASE)
        elif module.name == _EMBEDDING and base is not None and base.tied:
            self.refuse("the base is tied, so llama.cpp would take the change of its embedding for one of its head")
        elif module.name == _HEAD and base is not None and base.tied:
            self.refuse(
                "the base is tied: its GGUF has no output head that could change",
                f"{MERGED}, ckconv convert BASE DST --untie makes a base that has one",
            )

    def entries(self) -> list[Entry]:
        """A pair of tensors for each module."""
        self.alpha = self._alpha()
        found: list[Entry] = []
        for module in self.modules:
            name = gguf_name_of(module.name, self.family) if self.family else None
            name = name or module.path
            a, b = self.tensor(module, Role.A), self.tensor(module, Role.B)
            scale = 1.0 if self.alpha is None else effective_scale(self.alpha, module.rank)
            if module.embedding:
                found += [as_rows(name + values.GGUF_A, b, scale=scale), as_columns(name + values.GGUF_B, a)]
            else:
                found += self._pair(name, module, a, b, scale)
        return found

    def _pair(self, name: str, module: AdapterModule, a: Tensor, b: Tensor, scale: float) -> list[Entry]:
        """The two, with rows and columns where those of the base's matrix are."""
        base, family = self.adapter.base, self.family
        entries = [as_rows(name + values.GGUF_A, a), self._by_heads(name + values.GGUF_B, module, b, scale)]
        if base is None or family is None or not is_regrouped(family, module.name, base.scope):
            return entries
        outputs = placed_in_gguf(name, family, base)
        if outputs is None or len(b.shape) != 2:
            self.refuse(f"{module.name} is in an order of GGUF's own that no adapter can be in", MERGED)
            return entries
        layout = replace(outputs.layout(module.rank), scale=scale)
        return [entries[0]._replace(layout=outputs.layout_of_a(*a.shape)), entries[1]._replace(layout=layout)]

    def _by_heads(self, name: str, module: AdapterModule, b: Tensor, scale: float) -> Entry:
        """``lora_b`` with its rows where the rows of the base's matrix are."""
        layout = plain(b.layout.rows, b.layout.cols)
        field = _heads_field(module, self.family)
        if field:
            heads = getattr(self.adapter.base, field) if self.adapter.base else b.layout.heads
            layout = headed(heads, b.layout.rows // heads, b.layout.cols, interleaved=True)
        return Entry(name, b, replace(layout, scale=scale), b.shape)

    def _alpha(self) -> float | None:
        """Alpha that is right for most scales, directly or by a power of two."""
        modules = [module for module in self.modules if module.rank]
        if self.index.format == "gguf":
            return next((module.alpha for module in modules), None)
        return max(_candidates(modules), key=lambda alpha: _fit(alpha, modules))

    def finish(self, pieces: Sequence[Piece]) -> Plan:
        """One file: header, then tensors, each at a multiple of the alignment."""
        metadata = self._metadata()
        alignment = self.index.facts["alignment"] if self.index.format == "gguf" else values.DEFAULT_ALIGNMENT
        offset = values.align_up(
            values.header_bytes(metadata, [(piece.name, len(piece.shape)) for piece in pieces]), alignment
        )
        steps = []
        for piece in pieces:
            steps.append(piece.step(offset))
            offset = values.align_up(offset + piece.nbytes, alignment)
        file = OutputFile(self.options.file_name or _FILE_NAME, offset, tuple(steps))
        rows = "interleaved" if self.family and interleaves(self.family) else "split"
        return self.made((file,), partial(container, [file], [metadata], [alignment]), rope_layout=rows)

    def _metadata(self) -> dict[str, Value]:
        """Metadata with flags applied: a GGUF's own, or keys llama.cpp needs."""
        architecture = self.family.gguf if self.family else self.index.architecture
        found = copied(self.index.metadata) if self.index.format == "gguf" else self._made_metadata(architecture)
        if self.family and interleaves(self.family):
            found |= self._head_counts(architecture)
        ruled, own = self.family is not None, self.index.format == "gguf"
        made = edited(self, found, architecture, ruled=ruled, own=own)
        self.notes += mistyped_notes(made, "adapter", "") if own else ()
        return made

    def _made_metadata(self, architecture: str) -> dict[str, Value]:
        found = {
            "general.architecture": scalar("str", architecture),
            "general.type": scalar("str", values.GGUF_KIND),
            values.GGUF_TYPE_KEY: scalar("str", "lora"),
        }
        if self.adapter.base_name:
            found["general.base_model.count"] = scalar("u32", 1)
            found["general.base_model.0.name"] = scalar("str", self.adapter.base_name)
        if self.alpha is not None:
            found[values.GGUF_ALPHA_KEY] = scalar("f32", self.alpha)
        for key, text in zip(values.GGUF_TASK_KEYS, self.adapter.task or (), strict=False):
            if text:  # an empty text is not written there
                found[key] = scalar("str", text)
        found["general.quantization_version"] = scalar("u32", 2)
        return found

    def _head_counts(self, architecture: str) -> dict[str, Value]:
        """Numbers of heads, by which readers order rows of q and k."""
        counts = {}
        for module in self.modules:
            field = _heads_field(module, self.family)
            if field:
                base = self.adapter.base
                counts[field] = getattr(base, field) if base else self.tensor(module, Role.B).layout.heads
        return {
            values.HEAD_KEYS[field].format(arch=architecture): scalar("u32", n) for field, n in sorted(counts.items())
        }


def _unadapted(module: AdapterModule, family: Family) -> bool:
    row = family.engines.get(LLAMA_CPP.row)
    name = parse(f"{module.name}.weight").pattern.removesuffix(".weight").replace("layers.{n}.", "L.")
    return row is not None and name in row.unadapted


def _heads_field(module: AdapterModule, family: Family | None) -> str | None:
    """The field that counts the heads of an interleaved matrix."""
    return FIELD_OF.get(heads_of(family, weight_pattern(module.name)) or "") if family else None


def _candidates(modules: Sequence[AdapterModule]) -> list[float]:
    """Candidates for alpha: declared, scale times rank, and its neighbors."""
    found: dict[float, None] = {}
    for module in modules:
        product = float32(module.scale * module.rank)
        own = [] if module.alpha is None else [float32(module.alpha)]
        for alpha in (*own, product, *_neighbors(product)):
            if effective_scale(alpha, module.rank) == module.scale:
                found.setdefault(alpha)
        found.setdefault(product)
    return [alpha for alpha in found if 0 < alpha < math.inf]


def _neighbors(value: float) -> tuple[float, float]:
    """The float32 numbers next to a positive one."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    below, above = (struct.unpack("<f", struct.pack("<I", bits + step))[0] for step in (-1, 1))
    return float(below), float(above)


def _fit(alpha: float, modules: Iterable[AdapterModule]) -> tuple[int, int]:
    """Count modules that keep their digits, and that do not change."""
    factors = [module.scale / effective_scale(alpha, module.rank) for module in modules]
    return sum(map(power_of_two, factors)), factors.count(1.0)
