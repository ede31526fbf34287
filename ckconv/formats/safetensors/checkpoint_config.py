"""The ``config.json`` of a checkpoint: the source's own where it has one, changed only where it must be."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ckconv.core.config import ModelConfig
from ckconv.core.dtypes import DTYPES
from ckconv.core.metadata import CONFIG_NAME, document_of, text_key, unquantised, without_stale
from ckconv.core.tensors import MetadataKind, TensorIndex
from ckconv.families.catalogue import FAMILIES
from ckconv.families.huggingface_classes import fit, is_on
from ckconv.families.huggingface_config import text_config
from ckconv.families.huggingface_types import is_padding
from ckconv.families.keys import CONSUMERS, TRANSFORMERS
from ckconv.families.loaders import MLX_LM
from ckconv.formats.safetensors.checkpoint_agreement import agreeing, check_fit, fitting
from ckconv.formats.safetensors.document import Facts, build_document
from ckconv.io.bytesource import open_source
from ckconv.plan.checks import engine_of
from ckconv.plan.planner import HEAD

#: Formats whose files are safetensors, with a configuration of one style.
CHECKPOINTS = ("safetensors", "mlx")
_TORCH_NAMES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_DTYPE_KEYS = ("dtype", "torch_dtype")
#: Under which keys a loader looks for a quantisation.
_QUANTIZATION_KEYS = {"mlx": ("quantization", "quantization_config"), "safetensors": ("quantization_config",)}

#: What mlx-lm's loader and tokenizer read of the outer document.
_OUTER = ("dtype", "torch_dtype", "eos_token_id", "bos_token_id", "pad_token_id", "tie_word_embeddings")

#: Keys that every class of mlx-lm cannot do without, or takes a default of its own for; those of Hugging Face can.
_MLX_NEEDS = ("rope_theta", "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "vocab_size")


#: What a document says of a model without a head of its own.
_TIED = {"tie_word_embeddings": True}


class Said(NamedTuple):
    """What there is to say of an output.

    Attributes:
        format: ``safetensors`` or ``mlx``.
        kept: every tensor has the name that it has in the source, and is stored as it is there.
        unpacked: what another quantiser packed is decoded.
        tied: there is no output head of its own.
        floats: names of the float types of the arrays.
        as_they_were: no tensor changes its type.
        present: canonical names.
        quantization: MLX's object, ``None`` where nothing is quantised.
        rope_scaling: in Hugging Face's words.
        context: context length, 0 for the source's.
    """

    format: str
    kept: bool
    unpacked: bool
    tied: bool
    floats: frozenset[str]
    as_they_were: bool
    present: tuple[str, ...]
    quantization: Mapping[str, Any] | None
    rope_scaling: Mapping[str, Any] | None
    context: int = 0


def config_json(index: TensorIndex, said: Said) -> bytes:
    """The bytes of ``config.json``; empty where the source has none and none can be made."""
    source, config = source_document(index), index.config
    unscaled = FAMILIES[config.family].document.rope.unscaled if config and said.format == "mlx" else {}
    if source:
        document = _changed(source, index, said)
        if unscaled and not document.get("rope_scaling"):
            document["rope_scaling"] = dict(unscaled)
        return _encoded(_wrapped(document, config, said), index)
    if config is None:
        return b""
    document = build_document(config, _facts(index, config, said))
    if unscaled and not document["rope_scaling"]:
        document["rope_scaling"] = dict(unscaled)
    if CONSUMERS[said.format] == TRANSFORMERS:
        check_fit(document, config)
    return _encoded(_wrapped(document | _named(config, said.format), config, said), index)


def _quantised(said: Said) -> dict[str, Any]:
    """What is said of the types of blocks, under the keys that the loader looks for."""
    found = said.quantization if not said.kept else None
    return {key: dict(found) for key in _QUANTIZATION_KEYS[said.format]} if found else {}


def _wrapped(document: dict[str, Any], config: ModelConfig | None, said: Said) -> dict[str, Any]:
    """With the types of blocks; around the text part the document of several modalities, where a class wants one."""
    row = engine_of(FAMILIES[config.family], MLX_LM) if config and said.format == "mlx" and not said.kept else None
    if row is not None and row.wrapped:
        outer = {key: document[key] for key in _OUTER if key in document}
        document = {**outer, "model_type": row.wrapped, "text_config": document}
    return document | _quantised(said)


def source_document(index: TensorIndex) -> dict[str, Any]:
    """The configuration that the source has of its own, or that its header says; empty where it has none."""
    if index.metadata_kind is not MetadataKind.DOCUMENT:
        return {}
    return document_of(index.metadata)


def widest(names: frozenset[str]) -> str:
    """The narrowest float type that holds every number of these types, in torch's words; empty for none."""
    if {"F16", "BF16"} <= names:
        return _TORCH_NAMES["F64" if "F64" in names else "F32"]
    return _TORCH_NAMES.get(max(names, key=lambda name: DTYPES[name].size, default=""), "")


def _facts(index: TensorIndex, config: ModelConfig, said: Said) -> Facts:
    """What a document says that is built, out of what the source says elsewhere."""
    from ckconv.tokenizer.source import special_tokens_of

    document = source_document(index)
    switches: Mapping[str, bool] = {}
    if FAMILIES[config.family].known_classes:
        switches = fit(config, said.present, TRANSFORMERS).switches
    tokens = {} if document else special_tokens_of(index)
    ids: dict[str, int] = {
        key: tokens[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in tokens
    }
    if not is_padding(ids.get("pad_token_id"), config.vocab_size):
        del ids["pad_token_id"]
    return Facts(said.tied, widest(said.floats), switches, said.rope_scaling, ids, said.context)


def _changed(source: Mapping[str, Any], index: TensorIndex, said: Said) -> dict[str, Any]:
    """The source's document with what has to be different."""
    document, config = dict(source), index.config
    nested = document.get(text_key(document))
    if not said.kept and config is not None and isinstance(nested, dict):
        family = FAMILIES[config.family]
        kept = {key: value for key, value in document.items() if not key.endswith("_config")}
        document = {**kept, **nested, "architectures": [family.hf_class], "model_type": family.model_type}
    if not said.kept:
        document["tie_word_embeddings"] = said.tied
    elif said.tied and config is not None and config.tied is False and HEAD in index.tensors:  # --drop
        text = text_key(document)
        document |= {key: document[key] | _TIED for key in [text] if text} | _TIED
    if said.unpacked or not said.kept:
        document = unquantised(document)
    if said.format == "safetensors":
        document = without_stale(document, index.stored)
    if not said.as_they_were:
        for key in [key for key in _DTYPE_KEYS if key in document] or _DTYPE_KEYS:
            document[key] = widest(said.floats)
    if said.context:
        document = _with_context(document, config, said.context)
    if said.format != index.format and config is not None:
        document |= _named(config, said.format)
        facts = _facts(index, config, said)
        if said.format == "mlx":
            _complete(document, config, facts)
        document |= _switched(document, config, said)
        built = build_document(config, facts) if FAMILIES[config.family].known_classes else {}
        if CONSUMERS[said.format] == TRANSFORMERS:
            document = fitting(document, built, config)
        if built:
            document = agreeing(document, config, built, said.format, index.format)
        if CONSUMERS[said.format] == TRANSFORMERS:
            check_fit(document, config)
    return document


def _named(config: ModelConfig, format: str) -> dict[str, str]:
    """What the document calls the model, where mlx-lm's class goes by another name, or the source's is nobody's."""
    family = FAMILIES[config.family]
    row = engine_of(family, MLX_LM)
    if row is None or not row.model_type:
        said = text_config(config.raw).get("model_type", family.model_type)
        return {} if said in family.in_huggingface.names else {"model_type": family.model_type}
    return {"model_type": row.model_type if format == "mlx" else family.model_type}


def _switched(document: Mapping[str, Any], config: ModelConfig, said: Said) -> dict[str, bool]:
    """Biases that the source's reader starts at zero are none, and mlx-lm does not load a model that lacks them."""
    if not FAMILIES[config.family].known_classes:
        return {}
    consumer = CONSUMERS[said.format]
    fitted = fit(config, said.present, consumer).switches
    return {key: there for key, there in fitted.items() if is_on(config, key, document, consumer) != there}


def _with_context(source: Mapping[str, Any], config: ModelConfig | None, context: int) -> dict[str, Any]:
    """Another context length, beside the one that RoPE was scaled from: the angles stay what they are."""
    document = dict(source)
    if key := text_key(document):
        return {**document, key: _with_context(document[key], config, context)}
    document["max_position_embeddings"] = context
    scaling = (config.rope_scaling if config else None) or {}
    numbers = {key: scaling[key] for key in ("factor", "original_max_position_embeddings") if key in scaling}
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(document.get(name), dict):
            document[name] = _with_numbers(document[name], scaling.get("rope_type"), numbers)
    return document


def _with_numbers(table: Mapping[str, Any], kind: object, numbers: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(table.get("full_attention"), dict):
        return {**table, "full_attention": _with_numbers(table["full_attention"], kind, numbers)}
    return {**table, **numbers} if kind and table.get("rope_type", table.get("type")) == kind else dict(table)


def _complete(document: dict[str, Any], config: ModelConfig, facts: Facts) -> None:
    """Add what mlx-lm needs and the document does not say in the words that mlx-lm reads."""
    built = build_document(config, facts)
    row = engine_of(FAMILIES[config.family], MLX_LM)
    needs = row.needs if row else ()
    for key in (*_MLX_NEEDS, *needs):
        if document.get(key) is None and (built.get(key) is not None or key in built.keys() & needs):
            document[key] = built[key]  # null is said where a class has no default
    if config.rope_scaling and not document.get("rope_scaling"):
        document["rope_scaling"] = built["rope_scaling"]
    elif not config.rope_scaling and document.get("rope_scaling"):
        del document["rope_scaling"]  # it scales nothing, and mlx-lm wants to know how
    for key in row.reads if row else ():
        if key in built:
            document[key] = built[key]


def _text(document: Mapping[str, Any]) -> str:
    """Equal for documents that say the same: 1 and 1.0 are not, for classes that want a float."""
    return json.dumps(document, sort_keys=True)


def _encoded(document: Mapping[str, Any], index: TensorIndex) -> bytes:
    """The document as bytes: the source's own file, if it says the same."""
    source = source_document(index)
    if source and _text(document) == _text(source):
        for path in index.side_files:
            if path.name == CONFIG_NAME:
                with open_source(path) as file:
                    return file.read_at(0, file.size or 0)
    written = {key: strict(value) for key, value in _limits(document, index.config).items()}
    return (json.dumps(written, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _limits(document: Mapping[str, Any], config: ModelConfig | None) -> dict[str, Any]:
    """The document with the numbers that the family has for values that change nothing and JSON does not hold."""
    if config is None:
        return dict(document)
    said = FAMILIES[config.family].document
    made = dict(document)
    for key, value in document.items():
        if key in said.written and strict(value) != value and said.keys.idle(key, value):
            made[key] = said.written[key]
    return made


def strict(value: Any) -> Any:
    """What strict JSON holds: a number that is not finite as transformers 5 writes it, and both libraries read it."""
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [strict(item) for item in value]
    finite = not isinstance(value, float) or math.isfinite(value)
    return value if finite else {"__float__": json.dumps(value)}
