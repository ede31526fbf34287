"""GGUF adapters as llama.cpp loads them: ``NAME.lora_a`` and ``NAME.lora_b`` beside the name of each base tensor.

In numpy order ``lora_a`` is ``[rank, in]`` and ``lora_b`` ``[out, rank]``, its rows in the order of the base's, which
for Llama's q and k depends on the number of heads; of ``token_embd.weight`` ``lora_a`` is ``[vocabulary, rank]`` and
``lora_b`` ``[hidden, rank]``; of experts they are ``[experts, rank, in]`` and ``[experts, out, rank]``
(``build_lora_mm_id``). There is one alpha for all; the scale is alpha / rank, and 1 where there is no alpha
(``llama_adapter_lora_weight::get_scale``).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ckconv.adapters.names import family_named, gguf_module_of, placed_in_gguf, weight_pattern
from ckconv.adapters.read import Collected, Collector, Part, Shape
from ckconv.core.config import FIELD_OF, ModelConfig
from ckconv.core.layouts import headed
from ckconv.core.tensors import BY_BASE, Adapter, MetadataKind, Role, StoredTensor, Tensor, TensorIndex, effective_scale
from ckconv.errors import InputError, quoted
from ckconv.families.catalogue import FAMILIES
from ckconv.families.kinds import is_regrouped
from ckconv.families.names import heads_of, interleaves
from ckconv.families.schema import Family
from ckconv.formats.gguf.read import GgufFile
from ckconv.formats.gguf.spec import GGUF_A, GGUF_ALORA_KEY, GGUF_ALPHA_KEY, GGUF_B, GGUF_TYPE_KEY, HEAD_KEYS
from ckconv.formats.safetensors.adapter_base import Opener, check_fits, find_base
from ckconv.io.json import shown

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
        message = f"it is made for {architecture!r}, the base is {family.gguf!r}"
        raise InputError("adapter.base", message, path=path, found=architecture, allowed=family.gguf)
    alpha = _alpha(file, path)
    unsupported = [] if _text(file, GGUF_TYPE_KEY) == "lora" else [f"{GGUF_TYPE_KEY} is not 'lora'"]
    if GGUF_ALORA_KEY in file.metadata:
        unsupported.append(f"{GGUF_ALORA_KEY}: it is active only after certain tokens")
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
    if model is not None:
        check_fits(collected.modules, collected.tensors, model, path)
    adapter = Adapter("LoRA", base_name, collected.modules, tuple(unsupported), model)
    facts = {"kind": "adapter", "method": "LoRA", "modules": len(adapter.modules), "alignment": file.alignment}
    return TensorIndex(
        format="gguf",
        version=file.version,
        path=path,
        files=file.files,
        architecture=architecture,
        config=None,
        stored=file.tensors,
        tensors=collected.tensors,
        canonical_of=collected.canonical_of,
        unknown=unknown,
        metadata_kind=MetadataKind.TYPED,
        metadata=file.metadata,
        facts={**facts, **({"base": base_name} if base_name else {}), "data_offset": file.data_offset},
        adapter=adapter,
    )


def _collect(
    file: GgufFile, path: Path, alpha: float | None, family: Family | None
) -> tuple[Collected, tuple[StoredTensor, ...]]:
    pairs: dict[str, dict[str, StoredTensor]] = {}
    unknown: list[StoredTensor] = []
    for stored in file.tensors:
        ending = next((ending for ending in (GGUF_A, GGUF_B) if stored.name.endswith(ending)), None)
        if ending is None:
            unknown.append(stored)
        else:
            pairs.setdefault(stored.name.removesuffix(ending), {})[ending] = stored
    collector = Collector(path)
    for name, pair in pairs.items():
        module = gguf_module_of(name, family) or name
        if module == EMBEDDING:
            roles = {GGUF_A: (Role.B, False), GGUF_B: (Role.A, True)}
        else:
            roles = {GGUF_A: (Role.A, False), GGUF_B: (Role.B, False)}
        parts = {roles[ending][0]: Part(stored, transposed=roles[ending][1]) for ending, stored in pair.items()}
        # llama.cpp takes the rank from the tensor.
        b = pair.get(GGUF_B)
        rank = b.shape[-1] if b is not None and b.shape and b.shape[-1] else 1
        scale = 1.0 if alpha is None else effective_scale(alpha, rank)
        collector.add(module, name, parts, Shape(scale, None, alpha), embedding=module == EMBEDDING)
    return collector.finish(), tuple(unknown)


def _regrouped(
    collected: Collected, names: list[str], family: Family, model: ModelConfig
) -> tuple[Collected, list[str]]:
    """Give the rows and columns of these modules the order that GGUF has of them; the names of those it cannot."""
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
    collected: Collected, file: GgufFile, model: ModelConfig | None, family: Family, path: Path
) -> tuple[Collected, list[str]]:
    """Give the rows of q and k the order that llama.cpp's converter stores them in; the names of those it cannot."""
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
    value = file.metadata.get(HEAD_KEYS[field].format(arch=architecture))
    return value.value if value is not None and isinstance(value.value, int) else None


def _alpha(file: GgufFile, path: Path) -> float | None:
    found = file.metadata.get(GGUF_ALPHA_KEY)
    if found is None:
        return None
    value = found.value
    if found.type != "f32" or not isinstance(value, float) or not 0 < value < float("inf"):
        text = shown(value) if isinstance(value, int | float | str) else found.type
        raise InputError("adapter.scale", f"{GGUF_ALPHA_KEY} is {text}; it must be an f32 above 0", path=path)
    return value


def _text(file: GgufFile, key: str) -> str:
    found = file.metadata.get(key)
    return found.value if found is not None and isinstance(found.value, str) else ""
