"""Model with adapters merged in: an index with computed tensors."""

from __future__ import annotations

import filecmp
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ckconv.adapters.model import EMBEDDING_MODULE, HEAD_MODULE, Change, changes_of, resized_first
from ckconv.core.config import ModelConfig
from ckconv.core.dtypes import F32, F64, WIDENS_TO_F32, DType
from ckconv.core.layouts import plain
from ckconv.core.tensors import (
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
from ckconv.errors import InputError, UnsupportedError, counted, listed, quoted
from ckconv.families.catalog import rows_of_head
from ckconv.io.files import Files, head_is_embedding

# What becomes of a tied base, whose output head is its embedding, when adapters change one of the two or both.

_HEAD_TENSOR, _EMBEDDING_TENSOR = f"{HEAD_MODULE}.weight", f"{EMBEDDING_MODULE}.weight"


def untied(base: TensorIndex, adapters: Sequence[TensorIndex], config: ModelConfig) -> TensorIndex:
    """Base with a head of its own, where adapters change a tied one."""
    apart, together, rows_of_head = False, False, False
    for index in adapters:
        known = index.adapter
        assert known is not None
        for name in known.modules.keys() & {EMBEDDING_MODULE, HEAD_MODULE}:
            rows = Role.ROWS in known.modules[name].roles  # of the embedding, peft replaces those of a tied head too
            apart |= not known.ties and not rows
            together |= (known.ties or rows) and name == EMBEDDING_MODULE
            rows_of_head |= rows and name == HEAD_MODULE
    if not (apart or together or rows_of_head) or not _is_tied(base, config):
        return base
    if rows_of_head:
        raise UnsupportedError(
            "adapter.unsupported",
            "the base is tied, and the adapter replaces rows of its output head that are not its embedding's",
            path=base.path,
            hint="ckconv convert BASE DST --untie makes a base with a head of its own; merge the adapter into that",
        )
    if apart and together:
        raise UnsupportedError(
            "adapter.unsupported",
            "the base is tied; of the changes some are of its embedding and its output head together, others of one",
            path=base.path,
        )
    tensors = dict(base.tensors)
    if together:
        tensors.pop(_HEAD_TENSOR, None)  # the one matrix that both are changes with the embedding
        return replace(base, tensors=tensors)
    if _HEAD_TENSOR not in base.tensors:
        tensors[_HEAD_TENSOR] = replace(tensors[_EMBEDDING_TENSOR], name=_HEAD_TENSOR)
    return replace(base, tensors=tensors, config=replace(config, tied=False))


def said_once(index: TensorIndex, base: TensorIndex, config: ModelConfig) -> TensorIndex:
    """Adapter of a tied base with one change of embedding and head.

    peft saves both where it keeps them tied (``ensure_weight_tying``), and where the vocabulary grew.
    """
    known = index.adapter
    assert known is not None
    head, embedding = known.modules.get(HEAD_MODULE), known.modules.get(EMBEDDING_MODULE)
    if head is None or embedding is None or not _is_tied(base, config):
        return index
    alike = (head.roles, head.scale, head.replaced) == (embedding.roles, embedding.scale, embedding.replaced)
    if alike:
        from ckconv.io.rows import same_values

        pairs = [
            [index.tensors[f"{module}.{role.value}"] for module in (HEAD_MODULE, EMBEDDING_MODULE)]
            for role in head.roles
        ]
        with Files(index.identities) as files:
            alike = all(same_values(one, other, files) for one, other in pairs)
    if not alike and not known.ties:
        return index
    if not alike:
        raise UnsupportedError(
            "adapter.unsupported",
            "the base is tied, and the adapter changes its embedding and its output head differently",
            path=index.path,
        )
    modules = {name: module for name, module in known.modules.items() if name != HEAD_MODULE}
    return replace(index, adapter=replace(known, modules=modules, ties=True))


def _is_tied(base: TensorIndex, config: ModelConfig) -> bool:
    return _HEAD_TENSOR not in base.tensors or (config.tied is not False and head_is_embedding(base))


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
    if config is None:
        raise UnsupportedError(
            "adapter.unsupported",
            f"merging an adapter takes the architecture's rules, and ckconv has none for {quoted(base.architecture)}",
            path=base.path,
        )
    _check_supported(adapters)
    adapters = [replace(adapter, index=said_once(adapter.index, base, config)) for adapter in adapters]
    base = untied(base, [adapter.index for adapter in adapters], config)
    _check_there(base, adapters, config)
    tensors = dict(base.tensors)
    quantized: list[str] = []
    for name, tensor in base.tensors.items():
        made = _changed(tensor, base, adapters, config)
        if made is None:
            continue
        if made.merge is not None and made.dtype is F64:
            raise UnsupportedError(
                "adapter.unsupported",
                f"{tensor.source} is F64, and what an adapter changes is computed in float32",
                path=base.path,
                hint="ckconv convert BASE DST/ --to hf --dtype f32 makes a base of float32",
            )
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
    own, other = (index.files[0].parent / "tokenizer.json" for index in (adapter, base))
    return own.is_file() and not (other.is_file() and filecmp.cmp(own, other, shallow=False))


def _is_called(name: str, base: TensorIndex) -> bool:
    """Whether the base may be the model that an adapter names.

    Not compared: who published it, letter case, and what a file name adds, as the type of a quantized copy.
    """
    said = [getattr(value, "value", value) for value in map(base.metadata.get, _NAME_KEYS)]
    names = [_plain(text) for text in (base.path.absolute().name, *said) if isinstance(text, str)]
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
            raise InputError(
                "adapter.base", f"is a {adapter.index.format} model, not an adapter", path=adapter.index.path
            )
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
            raise UnsupportedError(
                "adapter.unsupported",
                faults[0],
                path=adapter.index.path,
                details=listed(faults[1:]),
                hint=MERGED_BY_PEFT if by_peft else None,
            )


def _check_there(base: TensorIndex, adapters: Sequence[Adapting], config: ModelConfig) -> None:
    """Every tensor of every adapter changes a tensor of the base."""
    for adapter in adapters:
        known = adapter.index.adapter
        assert known is not None
        used = {change.module.name for name in base.tensors for change in changes_of(adapter.index, name, config)}
        missing = [module for module in known.modules.values() if module.name not in used]
        if missing:
            raise InputError(
                "adapter.base",
                f"no base tensor for {quoted(missing[0].path)}",
                path=adapter.index.path,
                details=listed([quoted(module.path) for module in missing[1:]]),
                hint="the head of a tied model is its embedding" if missing[0].name == "output" else None,
            )
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
        drop = (
            f"ckconv convert ADAPTER DST/ --to peft --drop '*.{Role.BIAS.value}' leaves it out; merge what that makes"
        )
        raise InputError(
            "adapter.base",
            f"{quoted(module.path)} has a bias, the base has none there",
            path=adapter.index.path,
            hint=drop if Role.BIAS in module.roles else None,
        )


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
    magnitude = tensors.get(Role.MAGNITUDE)
    return [
        Delta(
            tensors[Role.A],
            tensors[Role.B],
            change.module.scale * adapter.weight,
            _column(magnitude) if magnitude else None,
        )
    ]


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
        raise InputError(
            "adapter.base",
            f"{quoted(change.module.path)} is {list(shape)}, {tensor.source} of the base is {list(tensor.shape)}",
            path=adapter.index.path,
            tensor=tensor.source,
            hint=resized_first(change.module.name, shape, tensor.shape, base),
        )
