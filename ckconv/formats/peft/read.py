"""Adapters of peft: ``adapter_config.json`` and weights beside it.

Or ``adapter_model.bin``, which ``torch.save`` wrote. A tensor is named ``base_model.model.PATH.ENDING`` after its
module's path in the base model; the name of the adapter is not in it. Whole tensors (``modules_to_save``, biases, the
embeddings that peft saves along) have no ending of their own. Named adapters lie in sub-directories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ckconv.adapters.model import (
    Collector,
    Outputs,
    Part,
    Shape,
    experts_together,
    families_of,
    module_of,
    placed,
    vector,
)
from ckconv.core.config import ModelConfig
from ckconv.core.tensors import Adapter, Dropped, Role, StoredTensor, TensorIndex, effective_scale
from ckconv.errors import InputError, UnsupportedError, quoted
from ckconv.formats.peft.config import TOKENS, PeftConfig, add_experts, read_peft_config
from ckconv.formats.safetensors.adapter import Base, Opener, adapter_index, check_fits, with_base
from ckconv.formats.safetensors.container import ADAPTER_CONFIG, PEFT_NAME, PEFT_PICKLE, PEFT_PREFIX, SafetensorsFile
from ckconv.formats.safetensors.files import PickleReader, read_weights, regular_file

#: Ending of a tensor's name -> its role and whether it is the table that is looked up; the first that fits counts.
_ENDINGS: tuple[tuple[str, Role, bool], ...] = (
    (".lora_A.weight", Role.A, False),
    (".lora_B.weight", Role.B, False),
    (".lora_B.bias", Role.BIAS, False),
    # A is [rank, vocabulary] and B [hidden, rank]; the table changes by (B @ A).T (Embedding.get_delta_weight).
    (".lora_embedding_A", Role.B, True),
    (".lora_embedding_B", Role.A, True),
    (".lora_magnitude_vector", Role.MAGNITUDE, False),
    (".lora_magnitude_vector.weight", Role.MAGNITUDE, False),
    (".ia3_l", Role.IA3, False),
    (".token_adapter.trainable_tokens_delta", Role.ROWS, False),
    (".trainable_tokens_delta", Role.ROWS, False),
    # The base's matrix, of a vocabulary that grew; the rows of its tokens replace some of it.
    (".token_adapter.base_layer.weight", Role.SAVED_WEIGHT, False),
    (".base_layer.weight", Role.SAVED_WEIGHT, False),
    (".base_layer.bias", Role.SAVED_BIAS, False),
    (".weight", Role.SAVED_WEIGHT, False),
    (".bias", Role.SAVED_BIAS, False),
)
#: Beside the tensors of a saved module, which peft loads under the module's own name (``set_peft_model_state_dict``).
_COPIES = {
    ".modules_to_save": "what peft saves of the module once more",
    ".original_module": "the base's own, which peft does not load",
}
_VECTORS = (Role.MAGNITUDE, Role.IA3, Role.BIAS)


def open_peft(
    path: Path, *, opener: Opener, base: Path | None = None, follow_links: bool = False, read_pickle: PickleReader
) -> TensorIndex:
    """Read an adapter's configuration and header.

    Args:
        path: the directory, one that holds a single named adapter, or the file of tensors.
        opener: opens a base model.
        base: the base model, if not where the adapter says it is.
        follow_links: links out of the directory are followed.
        read_pickle: describes a file that ``torch.save`` wrote.

    Raises:
        InputError: ``adapter.*``, ``st.*`` or ``pt.*``: malformed, or not made for this base.
        UnsupportedError: ``adapter.unsupported``, no configuration or a method without rules; ``pt.content``.
    """
    root = _root(path)
    weights, pickled, config_path = (
        regular_file(root, name, follow_links=follow_links) for name in (PEFT_NAME, PEFT_PICKLE, ADAPTER_CONFIG)
    )
    if weights is None and pickled is None:
        raise InputError("adapter.config", f"there is no {PEFT_NAME}", path=root)
    if config_path is None:
        raise UnsupportedError(
            "adapter.unsupported",
            f"there is no {ADAPTER_CONFIG} beside the tensors, and only it holds rank and alpha",
            path=root,
        )
    config = read_peft_config(config_path)
    file = read_weights(weights or root / PEFT_PICKLE, read_pickle)

    def described(found_base: Base | None) -> TensorIndex:
        return _index(path, root, config_path, config, file, found_base)

    return with_base(base, config.base_name, opener, described)


def _index(
    path: Path, root: Path, config_path: Path, config: PeftConfig, file: SafetensorsFile, found_base: Base | None
) -> TensorIndex:
    model = found_base.config if found_base else None
    found, unknown, copies = _sorted(file.tensors)
    families = (model.family,) if model else families_of(found)
    collector = Collector(root)
    unsupported = list(config.unsupported)
    bare = config.document.get("target_parameters")
    for module, (parts, embedding) in found.items():
        if bare and add_experts(collector, config, module, parts, model):
            continue
        if bare and not config.selection.holds(module):
            unsupported.append(f"{quoted(module)} (target_parameters): it changes bare parameters, not modules")
        _add(collector, config, module, parts, embedding, families, model, unsupported)
    collected = collector.finish()
    if model is not None:
        collected = experts_together(collected, model)
    if model is not None and not unsupported:  # what has no rule has no shape to be held against either
        check_fits(collected.modules, collected.tensors, model, root, found_base.index if found_base else None)
    unsupported += [f"no rule for tensor {quoted(tensor.name)}" for tensor in unknown]
    method = {"IA3": "IA3", TOKENS: "trainable tokens"}.get(config.method, "DoRA" if config.dora else "LoRA")
    adapter = Adapter(
        method,
        config.base_name,
        collected.modules,
        tuple(unsupported),
        model,
        config.document,
        # A module that peft wraps or saves is one of its own, and the head keeps the base's matrix (peft 0.21).
        ties=config.ties,
        base_index=found_base.index if found_base else None,
    )
    more = {"rank_stabilised": "yes"} if config.rank_stabilised else {}
    return adapter_index(
        "peft", path, file, config_path, collected, adapter, unknown=unknown, dropped=copies, more=more
    )


def _root(path: Path) -> Path:
    """The adapter's directory: the one given, or the only named adapter in it."""
    if not path.is_dir():
        return path.parent
    if any((path / name).exists() for name in (ADAPTER_CONFIG, PEFT_NAME, PEFT_PICKLE)):
        return path
    named = sorted(entry for entry in path.iterdir() if (entry / ADAPTER_CONFIG).is_file())
    if len(named) != 1:
        names = ", ".join(quoted(entry.name) for entry in named[:5])
        message = f"holds {len(named)} adapters: {names}" if named else f"holds no {ADAPTER_CONFIG}"
        raise InputError("adapter.config", message, path=path, hint="name one of them" if named else None)
    return named[0]


def _sorted(
    tensors: Sequence[StoredTensor],
) -> tuple[dict[str, tuple[dict[Role, Part], bool]], Sequence[StoredTensor], tuple[Dropped, ...]]:
    """Tensors by module path and role; unknown ones; copies."""
    found: dict[str, tuple[dict[Role, Part], bool]] = {}
    unknown: list[StoredTensor] = []
    copies: list[Dropped] = []
    names = {stored.name for stored in tensors}
    for stored in tensors:
        module, _, kind = stored.name.rpartition(".")
        copied = next((ending for ending in _COPIES if module.endswith(ending)), "")
        if copied and f"{module.removesuffix(copied)}.{kind}" in names:
            copies.append(Dropped(stored, _COPIES[copied]))
            continue
        name = stored.name.removeprefix(PEFT_PREFIX)
        ending = next((row for row in _ENDINGS if name.endswith(row[0])), None)
        if ending is None or ".lora_" in name.removesuffix(ending[0]):
            unknown.append(stored)
            continue
        suffix, role, embedding = ending
        parts, other = found.get(name.removesuffix(suffix), ({}, False))
        if role in parts:
            unknown.append(stored)
            continue
        part = Part(stored, transposed=embedding)
        parts[role] = vector(part) if role in _VECTORS else part
        found[name.removesuffix(suffix)] = parts, other or embedding
    return found, tuple(unknown), tuple(copies)


def _add(
    collector: Collector,
    config: PeftConfig,
    module: str,
    parts: dict[Role, Part],
    embedding: bool,
    families: tuple[str, ...],
    model: ModelConfig | None,
    unsupported: list[str],
) -> None:
    name = module_of(module, families, model) or module
    outputs, why = placed(module, families, model)
    unsupported += [why] if why else _moved(module, parts, outputs)
    if not (Role.A in parts or Role.B in parts):
        beside = {Role.MAGNITUDE, Role.BIAS} & parts.keys()
        replaced = config.rows_of(module)
        if Role.ROWS in parts:
            unsupported += _rows(module, parts, len(replaced))
            if config.method == TOKENS:
                # As of LoRA, the head of a tied base is wrapped with the embedding.
                tied = name == "output" and (model is None or model.tied is not False)
                unsupported += [] if tied or config.selection.holds(module) else [_ignored(module)]
        elif beside or (Role.IA3 in parts and config.method != "IA3") or config.method == TOKENS:
            unsupported.append(f"{quoted(module)} has tensors of another method than its configuration's")
        elif Role.IA3 in parts and not config.selection.holds(module):
            unsupported.append(_ignored(module))
        feedforward = config.selection.feedforward(module)
        collector.add(name, module, parts, Shape(1.0), feedforward=feedforward, replaced=replaced)
        return
    if Role.ROWS in parts:
        unsupported += _rows(module, parts, 0)
    if config.method != "LORA" or config.dora != (Role.MAGNITUDE in parts):
        unsupported.append(f"{quoted(module)} has tensors of another method than its configuration's")
    bare = bool(config.document.get("target_parameters"))
    # peft puts a layer around the head as well where the embedding is selected and the two are to stay tied.
    with_embedding = config.ties and name == "output"
    if not (bare or with_embedding or config.selection.holds(module)):
        unsupported.append(_ignored(module))
    rank, alpha = (config.rank_of(module), config.alpha_of(module)) if config.method == "LORA" else (1, 1.0)
    scale = effective_scale(alpha, rank, rank_stabilised=config.rank_stabilised)
    if not 0 < scale < float("inf"):
        message = f"{module}: alpha {alpha} and rank {rank} make a scale that float32 cannot hold"
        collector.faults.add("adapter.scale", message, tensor=module)
    given = "rank_pattern" if rank != config.rank else "r"
    # The matrices of a bare parameter, of all experts say, have the rank as often as there are experts.
    stated = None if config.method != "LORA" or (bare and not config.selection.holds(module)) else rank
    collector.add(name, module, parts, Shape(scale, stated, alpha, given), embedding=embedding, outputs=outputs)


def _moved(module: str, parts: Mapping[Role, Part], outputs: Outputs | None) -> list[str]:
    """Reasons for parts of a matrix whose moved rows have no rule."""
    odd = parts.keys() - {Role.A, Role.B}
    return [f"{quoted(module)} is stored head by head, and only LoRA of it has rules"] if odd and outputs else []


def _rows(module: str, parts: Mapping[Role, Part], named: int) -> list[str]:
    """Reason why single rows of a module cannot replace the base's."""
    stored = parts[Role.ROWS].stored
    if parts.keys() - {Role.ROWS, Role.SAVED_WEIGHT}:
        return [f"{quoted(module)} has rows of its own (of single tokens) beside other changes"]
    if len(stored.shape) != 2 or stored.shape[0] != named:
        return [f"{quoted(stored.name)} is {list(stored.shape)}, the configuration names {named} rows of it"]
    return []


def _ignored(module: str) -> str:
    return f"the configuration does not select {quoted(module)}, so peft ignores its tensors"
