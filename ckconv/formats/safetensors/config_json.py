"""Configuration of a checkpoint: the source's, with needed changes only."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ckconv.core import metadata
from ckconv.core.config import (
    ModelConfig,
    config_differences,
    rope_scaling_of,
    same_factors_always,
    scaled,
    scales_by_one,
)
from ckconv.core.layouts import DTYPES
from ckconv.core.lazy import NamedTuple, np, replace
from ckconv.core.options import Options
from ckconv.core.tensors import HEAD, ROPE_FREQUENCIES, MetadataKind, TensorIndex, stored_value
from ckconv.errors import InputError, UnsupportedError, UsageError, an, listed
from ckconv.families import catalog, towers
from ckconv.families.huggingface_classes import fit, is_on, is_padding, unaccepted
from ckconv.families.huggingface_config import huggingface_config, huggingface_family, text_config
from ckconv.families.keys import (
    CONSUMERS,
    MLX_LM as MLX_LM_READER,
    TABLES_OF_ROPE,
    TRANSFORMERS,
    Kind,
    ParameterCell,
    full_key,
)
from ckconv.families.names import NAMES_KEY
from ckconv.families.parameters import ZERO_IS_NONE, nested, own_document, scope_of, write
from ckconv.families.schema import MLX_LM, TRANSFORMERS as OF_CLASSES, Family
from ckconv.io.files import Files, open_source
from ckconv.io.rows import RowReader
from ckconv.plan.planner import engine_of
from ckconv.plan.steps import Reason
from ckconv.quant.codec import to_float32

# A document that goes from one library's hands into the other's: both must read the same out of it.
#
# transformers and mlx-lm look at different keys and take different defaults, so that a copy can be another model.

#: What the output says otherwise on purpose.
_ON_PURPOSE = ("family", "vocab_size")

#: Scaling that both libraries compute alike. Of ``longrope`` mlx-lm takes the long factors from the first token on,
#: transformers only for sequences longer than the original context.
_ALIKE = frozenset({"linear", "dynamic", "llama3", "yarn"})
_WINDOW = ("sliding_window", "layer_types")


def agreeing(
    document: Mapping[str, Any], config: ModelConfig, built: Mapping[str, Any], target: str, source: str
) -> dict[str, Any]:
    """Document, changed where the reader would take another model for it.

    Args:
        config: what the source's reader takes it for.
        built: a document made of ``config`` alone.
        target, source: formats.
    """
    reader, other = CONSUMERS[target], CONSUMERS[source]
    keys = _family(config).document.keys
    ignored = set(keys.misread(document, other, reader))
    made = {key: value for key, value in document.items() if key not in ignored}
    if reader == TRANSFORMERS:
        own = _factors(_family(config))
        made = {key: value for key, value in made.items() if key not in own}
        made |= {key: value for key, value in built.items() if key in own}
    if not _differences(made, config, reader):
        return made
    foreign = {name for name in keys.keys if keys.reads(name, reader) and not keys.reads(name, other)}
    foreign |= _misread(_family(config), reader)
    carried = foreign | {name for name, key in keys.keys.items() if key.kind is Kind.PARAMETER}
    made = {key: value for key, value in made.items() if key not in foreign}
    made |= {key: value for key, value in built.items() if key in carried and key != "max_position_embeddings"}
    found = _differences(made, config, reader)
    if found:
        raise UnsupportedError(
            "plan.refused",
            f"{target} cannot hold this model: {reader} would read another configuration out of config.json",
            details=found,
        )
    return made


def _factors(family: Family) -> set[str]:
    """Keys of what transformers computes, and mlx-lm does not."""
    factors = (cell.by for row in family.tensors.values() for cell in row.cells["hf"] if cell.by is not None)
    names = {name for factor in factors for name in factor.names if name in family.parameters}
    rows = (one for one in family.parameters.values() if one.folded and not one.read_only and "mlx_lm" in one.defaults)
    names |= {row.name for row in rows if not any(MLX_LM_READER in cell.readers for cell in row.key_cells("hf"))}
    return {cell.key for name in names for cell in family.parameters[name].key_cells("hf")}


def fitting(document: Mapping[str, Any], built: Mapping[str, Any], config: ModelConfig) -> dict[str, Any]:
    """Document without values of types that transformers' class refuses.

    Args:
        built: a document made of ``config`` alone, with what is there instead.
    """
    made = {**_nulls(config, built), **document}
    for key in _unaccepted(document, config):
        if built.get(key):
            made[key] = built[key]
        else:
            del made[key]
    return made


def check_fit(document: Mapping[str, Any], config: ModelConfig) -> None:
    """Raise ``plan.refused`` if transformers refuses the document."""
    names = unaccepted(document, str(document.get("model_type")), by_layer=_by_layer(config))
    found = [f"{key} = {reprlib.repr(document[key])}" for key in names]
    if found:
        what = f"transformers' {config.model_type} does not take what config.json would say: {', '.join(found)}"
        raise UnsupportedError("plan.refused", f"safetensors cannot hold this model: {what}")


def check_read(document: Mapping[str, Any], index: TensorIndex, output: ConfigDocument) -> None:
    """Raise ``plan.refused`` if a document is refused or is another model."""
    assert index.config is not None
    if CONSUMERS[output.format] == TRANSFORMERS:
        check_fit(document, index.config)
    config = replace(index.config, rope_scaling=dict(output.rope_scaling) if output.rope_scaling else None)
    family, consumer = _family(config), CONSUMERS[output.format]
    try:
        read = huggingface_config(document, family, (), Path("config.json"), consumer=consumer)
    except InputError as error:
        found = [f"config.json would not be read: {error.message}"]
    else:
        same = {name: getattr(config, name) for name in _ON_PURPOSE}
        made, own = replace(read, **same, modifiers=()), replace(config, modifiers=())
        found = catalog.read_otherwise(made, own, of=index.format, factors=False)
        other, row = huggingface_family(document), engine_of(catalog.FAMILIES[config.family], OF_CLASSES)
        if other is not None and other.name not in (config.family, row.written_as if row else ""):
            found.insert(0, f"no key of config.json says that it is {an(config.family)}: it would be {an(other.name)}")
    found += _unsaid_keys(index) if index.metadata_kind is MetadataKind.TYPED else []
    if found:
        details = found if len(found) > 1 else ()
        message = f"{output.format} cannot hold this model: {found[0]}"
        raise UnsupportedError("plan.refused", message, details=details, hint=catalog.copied_by(index.format) or None)


def _unsaid_keys(index: TensorIndex) -> list[str]:
    """Keys of a GGUF with other values than its hyper-parameters make.

    Rules of their own have RoPE's scaling, windows, the context, the number of words, and layers that are left out.
    """
    assert index.config is not None
    family, found = catalog.FAMILIES[index.config.family], []
    cells = [cell for row in family.parameters.values() for cell in row.key_cells("gguf")]
    unread = {cell.key for cell in cells if cell.unread or cell.of_no_use}
    unread |= {"block_count", "context_length", "vocab_size", "attention.sliding_window_pattern"}
    made = write(family, scope_of(family, index.config), "gguf").entries
    if index.config.num_layers != stored_value(
        index, full_key(index.architecture, "block_count")
    ):  # layers that predict further tokens are left out
        unread.add("nextn_predict_layers")
    for name, (_, value) in made.items():
        key = full_key(index.architecture, name)
        stored = stored_value(index, key)
        if (
            stored is not None
            and name not in unread
            and not name.startswith("rope.scaling.")
            and not (stored == 0 and name in ZERO_IS_NONE)
            and _another(stored, value)
        ):
            text = f"and a GGUF of what config.json would say has {reprlib.repr(value)}"
            found.append(f"{key} is {reprlib.repr(stored)}, {text}")
    return found


def _another(stored: Any, value: Any) -> bool:
    """Whether a key says another value than the one that would be written.

    A list may have more or fewer layers, a number stands for a list of equal ones, or says a pattern; numbers are as
    near as float32 goes through an expression.
    """
    ours, wanted = (list(one) if isinstance(one, list | tuple) else [one] for one in (stored, value))
    if not isinstance(stored, list) and len({*wanted}) > 1:
        return False
    for found, meant in zip(ours, wanted if len(wanted) > 1 else wanted * len(ours), strict=False):
        both = isinstance(found, int | float) and isinstance(meant, int | float)
        if found != meant and not (both and math.isclose(found, meant, rel_tol=1e-5)):
            return True
    return False


def unfit_notes(index: TensorIndex, target: str) -> Iterator[str]:
    """Notes about keys that :func:`fitting` removes.

    One about a context that no class reads comes first.

    Args:
        target: format.
    """
    config = index.config
    row = catalog.FAMILIES[config.family].parameters.get("context") if config else None
    if config is not None and row is not None and index.format == "gguf" and (cells := row.key_cells("hf")):
        default = row.defaults.get("transformers")
        taken = default.value({}) if default is not None and not default.names else None
        if all(cell.unread for cell in cells) and taken not in (None, config.context_length):
            keys = f"{cells[0].key} of config.json{catalog.bracketed(config, 'context_length', format='gguf')}"
            made = f"a GGUF that is made of the checkpoint has {taken:,}"
            yield f"no class reads {keys}, which is {config.context_length:,}: {made}"
    if config is None or index.format not in CONSUMERS or index.format == target or CONSUMERS[target] != TRANSFORMERS:
        return
    source = own_document(config)
    names = listed([f"{key} = {reprlib.repr(source[key])}" for key in _unaccepted(source, config)])
    if names:
        yield f"left out of config.json or put right, as transformers does not take it: {', '.join(names)}"


def _differences(document: Mapping[str, Any], config: ModelConfig, consumer: str) -> list[str]:
    family = _family(config)
    kind = (config.rope_scaling or {}).get("rope_type")
    alike = kind is None or kind in _ALIKE or same_factors_always(config.rope_scaling or {})
    if consumer == TRANSFORMERS and not alike:
        where = catalog.bracketed(config, "rope_scaling")
        return [f"rope_type is {kind!r}{where}, which is not known to be the same in transformers"]
    try:
        read = huggingface_config(document, family, (), Path("config.json"), consumer=consumer)
    except InputError as error:
        return [error.message]
    # The plan holds a window against the context, and few classes of mlx-lm know one.
    mlx = family.engines.get("mlx_lm")
    windowless = consumer == MLX_LM_READER and mlx is not None and "window" in mlx.ignores
    window = _WINDOW if windowless and config.sliding_window else ()
    same = {name: getattr(config, name) for name in (*_ON_PURPOSE, *window)}
    pair = replace(config, modifiers=(), context_length=read.context_length), replace(read, **same)
    own, reread = (catalog.without_aids(catalog.without_noted(each)) for each in pair)
    found = config_differences(own, reread, same_words=True)
    return [
        f"{name}{catalog.bracketed(config, name)} is {ours!r}, {consumer} reads {other!r}"
        for name, (ours, other) in found.items()
    ]


def _unaccepted(document: Mapping[str, Any], config: ModelConfig) -> list[str]:
    return unaccepted(document, _class_of(config), by_layer=_by_layer(config))


def _by_layer(config: ModelConfig) -> bool:
    """Say whether RoPE has a table for each kind of layer."""
    tables = (cell.of_rope and cell.key.count(".") > 1 for cell in _cells(config))
    return _family(config).document.rope.by_layer or any(tables)


def _nulls(config: ModelConfig, built: Mapping[str, Any]) -> dict[str, Any]:
    """Keys that are null against a default of the class."""
    return {cell.key: None for cell in _cells(config) if cell.unread and cell.key in built and built[cell.key] is None}


def _cells(config: ModelConfig) -> Iterator[ParameterCell]:
    """Values of the family's parameters in a document."""
    return (cell for row in _family(config).parameters.values() for cell in row.key_cells("hf"))


def _class_of(config: ModelConfig) -> str:
    """Class in transformers' words; mlx-lm's may have another's name."""
    row = _family(config).engines.get("mlx_lm")
    return _family(config).model_type if row is not None and row.model_type else config.model_type


def _family(config: ModelConfig) -> Family:
    family = catalog.family_of(config)
    assert family is not None
    return family


# ``config.json`` as transformers and mlx-lm read it, out of the canonical hyper-parameters.
#
# RoPE is written in both styles, ``rope_theta`` with ``rope_scaling`` and ``rope_parameters``: transformers 4 and most
# of mlx-lm's classes (0.32) know only the first, and take their own default where they find only the second.


class ConfigFacts(NamedTuple):
    """Facts of a document that no hyper-parameter says.

    Attributes:
        tied: there is no output head of its own.
        dtype: the type that the weights are to be loaded as, in torch's words; empty for none.
        switches: ``attention_bias`` and the like.
        rope_scaling: in Hugging Face's words.
        tokens: ids of special tokens, by key.
        context: context length, 0 for the model's own.
        reader: whose document it is.
    """

    tied: bool
    dtype: str
    switches: Mapping[str, bool] = {}
    rope_scaling: Mapping[str, Any] | None = None
    tokens: Mapping[str, int] = {}
    context: int = 0
    reader: str = ""


def build_document(config: ModelConfig, facts: ConfigFacts) -> dict[str, Any]:
    """The document, its keys sorted as transformers sorts them."""
    family = catalog.FAMILIES[config.family]
    own = family.engines.get("transformers")
    if config.sliding_window is not None and own and own.written_as:
        family = catalog.FAMILIES[own.written_as]
    scope = {**scope_of(family, replace(config, tied=facts.tied)), "rope_scaling": facts.rope_scaling}
    document: dict[str, Any] = {
        "architectures": [family.hf_class],
        "model_type": family.model_type,
        **family.document.written,
        **{key.name: key.neutral[0] for key in family.document.keys.keys.values() if key.written},
        **_rows(family, scope),
        **_dtype(facts.dtype),
        **facts.switches,
        **facts.tokens,
    }
    if family.rope:
        document |= _rope(config, family, facts.rope_scaling, scope)
    if facts.context:
        document |= _contexts(family, config, facts.context)
    misread = _misread(family, facts.reader)
    return {key: value for key, value in sorted(document.items()) if key not in misread}


def _misread(family: Family, reader: str) -> set[str]:
    """Keys written for others that a reader takes for something else."""
    found: set[str] = set()
    for row in family.parameters.values():
        cells = row.key_cells("hf")
        own = {cell.key for cell in cells if cell.alias and not cell.instead and reader in cell.readers}
        found |= own & {cell.key for cell in cells if not cell.alias and reader not in cell.readers}
    return found


def _dtype(name: str) -> dict[str, str]:
    # transformers 5 and late 4 read "dtype", older ones "torch_dtype".
    return {"dtype": name, "torch_dtype": name} if name else {}


def _rows(family: Family, scope: Mapping[str, Any]) -> dict[str, Any]:
    """Keys that rows of parameters write, but for tables of RoPE."""
    entries = write(family, scope, "hf").entries
    of_rope = {path for path in entries if family.rope and path.startswith("rope_") and "." in path}
    return nested({path: value for path, value in entries.items() if path not in of_rope})


def _keys_of_context(family: Family) -> list[str]:
    rows = [
        row
        for row in family.parameters.values()
        if row.name == "context" or (row.value and row.value.names == {"context"})
    ]
    return [cell.key for row in rows for cell in row.key_cells("hf") if not cell.alias]


def _rope(
    config: ModelConfig, family: Family, scaling: Mapping[str, Any] | None, scope: Mapping[str, Any]
) -> dict[str, Any]:
    if not scaling and (family.document.rope.read_theta or family.document.keys.unknown(["rope_parameters"])):
        return {}  # the class has a key of its own for the base, and scales nothing
    parameters = {"rope_theta": config.rope_theta, **(scaling or {"rope_type": "default"})}
    entries = write(family, scope, "hf").entries
    for path, (_, value) in entries.items():
        table_name, _, key = path.partition(".")
        if table_name == "rope_parameters" and value is not None and "." not in key:
            parameters.setdefault(key, value)
    if family.document.rope.by_layer:
        local = {"rope_theta": scope["local_theta"], "rope_type": "default"}
        parameters = {"full_attention": parameters, "sliding_attention": local}
        for path, (_, value) in entries.items():
            table_name, _, rest = path.partition(".")
            kind, _, key = rest.partition(".")
            if table_name == "rope_parameters" and kind in parameters and key and value is not None:
                parameters[kind].setdefault(key, value)
        if family.document.rope.mlx_lm == "only_rope_parameters":
            return {"rope_parameters": parameters}  # no class reads the older table
    table = dict(scaling) if scaling else None
    if table and table["rope_type"] == "longrope":
        table["type"] = "longrope"  # which mlx-lm's class asks for, as transformers before 4.43
    if table and "partial_rotary_factor" in parameters.keys() - entries.keys():  # it takes the place of the other there
        table["partial_rotary_factor"] = parameters["partial_rotary_factor"]
    return {"rope_parameters": parameters, "rope_scaling": table}


# The ``config.json`` of a checkpoint: the source's own where it has one, changed only where it must be.

#: Formats whose files are safetensors, with a configuration of one style.
CHECKPOINTS = ("safetensors", "mlx")
_TORCH_NAMES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_DTYPE_KEYS = ("dtype", "torch_dtype")
#: Under which keys a loader looks for a quantization.
_QUANTIZATION_KEYS = {"mlx": ("quantization", "quantization_config"), "safetensors": ("quantization_config",)}

#: What mlx-lm's loader and tokenizer read of the outer document.
_OUTER = ("dtype", "torch_dtype", "eos_token_id", "bos_token_id", "pad_token_id", "tie_word_embeddings")

#: Keys that every class of mlx-lm cannot do without, or takes a default of its own for; those of Hugging Face can.
_MLX_NEEDS = (
    "model_type",
    "rope_theta",
    "num_key_value_heads",
    "max_position_embeddings",
    "rms_norm_eps",
    "vocab_size",
)


#: What a document says of a model without a head of its own.
_TIED = {"tie_word_embeddings": True}


class ConfigDocument(NamedTuple):
    """The document of an output, and notes about it.

    Attributes:
        format: ``safetensors`` or ``mlx``.
        copied: every tensor has the name that it has in the source, and is stored as it is there.
        unpacked: what another quantizer packed is decoded.
        tied: there is no output head of its own.
        floats: names of the float types of the arrays.
        as_they_were: no tensor changes its type.
        present: canonical names.
        quantization: MLX's object, ``None`` where nothing is quantized.
        rope_scaling: in Hugging Face's words.
        context: context length, 0 for the source's.
    """

    format: str
    copied: bool
    unpacked: bool
    tied: bool
    floats: frozenset[str]
    as_they_were: bool
    present: tuple[str, ...]
    quantization: Mapping[str, Any] | None
    rope_scaling: Mapping[str, Any] | None
    context: int = 0


def config_json(index: TensorIndex, output: ConfigDocument) -> bytes:
    """Bytes of ``config.json``; empty where none can be made."""
    source, config = source_document(index), index.config
    row = engine_of(catalog.FAMILIES[config.family], MLX_LM) if config and output.format == "mlx" else None
    wanted = row.written if row else {}
    if source:
        document = _changed(source, index, output)
        document |= {key: value for key, value in wanted.items() if not document.get(key)}
        return _encoded(_wrapped(document, config, output, _around(source, index, output)), index)
    if config is None:
        return b""
    document = build_document(config, _facts(index, config, output))
    document |= {key: value for key, value in wanted.items() if not document.get(key)}
    check_read(document, index, output)
    return _encoded(_wrapped(document | _named(config, output.format), config, output, {}), index)


def complete(index: TensorIndex, config: ModelConfig, output: ConfigDocument) -> dict[str, Any]:
    """Document of a text model with every key, said by the source or not."""
    return build_document(config, _facts(index, config, output))


def _quantized(output: ConfigDocument) -> dict[str, Any]:
    """Keys of the loader about types of blocks."""
    found = output.quantization if not output.copied else None
    return {key: dict(found) for key in _QUANTIZATION_KEYS[output.format]} if found else {}


def _around(source: Mapping[str, Any], index: TensorIndex, output: ConfigDocument) -> dict[str, Any]:
    """Keys beside the text part, which its class does not read.

    Empty where no class around it is written again.
    """
    key, made = metadata.text_key(source), output.format == index.format == "mlx" and not output.copied
    row = engine_of(catalog.FAMILIES[index.config.family], MLX_LM) if index.config and made else None
    return {word: it for word, it in source.items() if word != key} if key and row and row.wrapped else {}


def _wrapped(
    document: dict[str, Any], config: ModelConfig | None, output: ConfigDocument, around: Mapping[str, Any]
) -> dict[str, Any]:
    """Document with types of blocks, in the one of a multimodal class.

    Args:
        around: keys of that class's own.
    """
    loader = MLX_LM if output.format == "mlx" else None if metadata.text_key(document) else OF_CLASSES
    row = engine_of(catalog.FAMILIES[config.family], loader) if config and loader and not output.copied else None
    if row is not None and row.wrapped:
        outer = {key: document[key] for key in (*_OUTER, *catalog.TAKEN) if key in document}
        document = {**metadata.unquantized(around), **outer, "model_type": row.wrapped, "text_config": document}
    return document | _quantized(output)


def source_document(index: TensorIndex) -> dict[str, Any]:
    """Configuration of the source or its header; empty for none."""
    if index.metadata_kind is not MetadataKind.DOCUMENT:
        return {}
    return metadata.document_of(index.metadata)


def widest(names: frozenset[str]) -> str:
    """Narrowest float type that holds all, in torch's words; empty for none."""
    if {"F16", "BF16"} <= names:
        return _TORCH_NAMES["F64" if "F64" in names else "F32"]
    return _TORCH_NAMES.get(max(names, key=lambda name: DTYPES[name].size, default=""), "")


def _facts(index: TensorIndex, config: ModelConfig, output: ConfigDocument) -> ConfigFacts:
    """Facts for a document that is built from other sayings of the source."""
    from ckconv.tokenizer.source import special_tokens_of

    document = source_document(index)
    switches: Mapping[str, bool] = {}
    if catalog.FAMILIES[config.family].known_classes:
        switches = fit(config, output.present, TRANSFORMERS).switches
    tokens = {} if document else special_tokens_of(index)
    rows = catalog.FAMILIES[config.family].parameters
    # with an id that a parameter is, the class computes, whatever ends a text
    named = (name for name, value in config.own.items() if value is not None)
    computed = {cell.key for name in named for cell in rows[name].key_cells("hf")}
    ids: dict[str, int] = {
        key: tokens[key]
        for key in ("bos_token_id", "eos_token_id", "pad_token_id")
        if key in tokens and key not in computed
    }
    if not is_padding(ids.get("pad_token_id"), config.vocab_size):
        del ids["pad_token_id"]
    reader = CONSUMERS[output.format]
    return ConfigFacts(output.tied, widest(output.floats), switches, output.rope_scaling, ids, output.context, reader)


def _changed(source: Mapping[str, Any], index: TensorIndex, output: ConfigDocument) -> dict[str, Any]:
    """The source's document with what has to be different."""
    document, config = dict(source), index.config
    nested = metadata.text_table(document)
    family = catalog.FAMILIES[config.family] if config else None
    row = engine_of(family, OF_CLASSES) if family and output.format != "mlx" else None
    of_both = row is not None and row.wrapped == document.get("model_type")  # a class whose document is nested
    tower = towers.tower_beside(document)
    if not output.copied and config and family and (tower or metadata.text_key(document)) and not of_both:
        beside = {*_around(source, index, output), metadata.WHOLE} - {*_OUTER, *catalog.TAKEN}
        own = (key for key in document if tower and towers.of_a_tower(tower, key))
        beside |= {key for key in own if key not in family.document.keys.keys} | ({"auto_map"} if tower else set())
        carried = {key: value for key, value in document.items() if key not in beside and not key.endswith("_config")}
        document = {**carried, **nested, "architectures": [family.hf_class], "model_type": family.model_type}
        document |= _of_tower(family, config)
    if not output.copied:
        words = [word for word in catalog.document_words(family, "tied") if word in document] if family else []
        words = words or [catalog.tie_word(config) if config else "tie_word_embeddings"]
        document |= {word: output.tied for word in words if word}
    elif output.tied and config is not None and config.tied is False and HEAD in index.tensors:  # --drop
        text = metadata.text_key(document)
        document |= {key: document[key] | _TIED for key in [text] if text} | _TIED
    if output.unpacked or not output.copied:
        document = metadata.unquantized(document)
    if output.format == "safetensors":
        document = metadata.without_stale(document, index.stored)
    if not output.as_they_were:
        for key in [key for key in _DTYPE_KEYS if key in document] or _DTYPE_KEYS:
            document[key] = widest(output.floats)
    context = output.context
    if not context and output.format != index.format and config is not None:
        context = _context_of_class(text_config(document), config)
    if context:
        document = _with_context(document, config, context)
    if output.format != index.format and config is not None:
        document |= _named(config, output.format)
        document |= _class_left(document, catalog.FAMILIES[config.family])
        facts = _facts(index, config, output)
        if output.format == "mlx":
            _complete(document, config, facts)
        document |= _switched(document, config, output)
        built = build_document(config, facts) if catalog.FAMILIES[config.family].known_classes else {}
        if CONSUMERS[output.format] == TRANSFORMERS:
            document = fitting(document, built, config)
        if built:
            document = agreeing(document, config, built, output.format, index.format)
        if output.format == "mlx":
            _add_needed(document, config, built)
        if CONSUMERS[output.format] == TRANSFORMERS:
            check_fit(document, config)
    return document


def _written(family: Family, config: ModelConfig) -> dict[str, Any]:
    """Keys that the rows of a family write, without those of RoPE."""
    return _rows(family, {**scope_of(family, config), "rope_scaling": config.rope_scaling})


def _of_tower(family: Family, config: ModelConfig) -> dict[str, Any]:
    """Keys of a text model that only the part about its tower says."""
    rows = [row.key_cells("hf") for row in family.parameters.values()]
    keys = {cell.key for cells in rows for cell in cells if any(one.key.startswith("vision_config.") for one in cells)}
    if not keys:
        return {}
    return {key: value for key, value in _written(family, config).items() if key in keys}


def _class_left(document: Mapping[str, Any], family: Family) -> dict[str, list[str]]:
    """Class without the head for training that another format does not hold."""
    others = [] if "output" in family.tensors else [[name] for name in family.in_huggingface.classes[1:]]
    return {"architectures": [family.hf_class]} if document.get("architectures") in others else {}


def _named(config: ModelConfig, format: str) -> dict[str, str]:
    """Names of the model, where mlx-lm's class goes by another."""
    family = catalog.FAMILIES[config.family]
    row = engine_of(family, MLX_LM)
    if row is None or not row.model_type:
        model_type = text_config(config.raw).get("model_type", family.model_type)
        # The class of text and pictures, which has the shorter name, reads sizes of its text_config alone.
        alone = family.model_type == f"{model_type}_text" and not metadata.text_key(config.raw)
        return {} if model_type in family.in_huggingface.names and not alone else {"model_type": family.model_type}
    return {"model_type": row.model_type if format == "mlx" else family.model_type}


def _switched(document: Mapping[str, Any], config: ModelConfig, output: ConfigDocument) -> dict[str, bool]:
    """Switches of biases: those that start at zero do not count."""
    if not catalog.FAMILIES[config.family].known_classes:
        return {}
    consumer = CONSUMERS[output.format]
    fitted = fit(config, output.present, consumer).switches
    return {key: there for key, there in fitted.items() if is_on(config, key, document, consumer) != there}


def _context_of_class(document: Mapping[str, Any], config: ModelConfig) -> int:
    """Context length of the source's class, 0 where a key says another."""
    row = catalog.FAMILIES[config.family].parameters.get("context")
    cells = [cell for cell in row.key_cells("hf") if not cell.unread] if row else []
    stated = any(document.get(cell.key) is not None for cell in cells)
    return config.context_length if cells and not stated else 0


def _contexts(family: Family, config: ModelConfig, context: int) -> dict[str, Any]:
    """Keys of this context length; RoBERTa counts positions in front, too."""
    written = _written(family, replace(config, context_length=context))
    return {key: written.get(key, context) for key in _keys_of_context(family)}


def _with_context(source: Mapping[str, Any], config: ModelConfig | None, context: int) -> dict[str, Any]:
    """Document with another context length; RoPE's angles stay."""
    document = dict(source)
    if key := metadata.text_key(document):
        return {**document, key: _with_context(document[key], config, context)}
    own = _contexts(catalog.FAMILIES[config.family], config, context) if config else {}
    row = catalog.FAMILIES[config.family].parameters.get("context") if config else None
    aliases = [cell.key for cell in row.key_cells("hf") if cell.alias] if row else []
    words = [key for key in dict.fromkeys(("max_position_embeddings", *own, *aliases)) if key in document]
    words = words or [*own][:1] or ["max_position_embeddings"]
    document |= {word: own.get(word, context) for word in words}
    scaling = (config.rope_scaling if config else None) or {}
    numbers = {key: scaling[key] for key in ("factor", "original_max_position_embeddings") if key in scaling}
    for name in TABLES_OF_ROPE:
        if isinstance(document.get(name), dict):
            document[name] = _with_numbers(document[name], scaling.get("rope_type"), numbers)
    return document


def _with_numbers(table: Mapping[str, Any], kind: object, numbers: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(table.get("full_attention"), dict):
        return {**table, "full_attention": _with_numbers(table["full_attention"], kind, numbers)}
    return {**table, **numbers} if kind and table.get("rope_type", table.get("type")) == kind else dict(table)


def _complete(document: dict[str, Any], config: ModelConfig, facts: ConfigFacts) -> None:
    """Add keys that mlx-lm needs, in the words that mlx-lm reads."""
    built = build_document(config, facts)
    row = engine_of(catalog.FAMILIES[config.family], MLX_LM)
    needs = row.needs if row else ()
    kinds = _family(config).document.keys.keys
    idle = [key for key, it in document.items() if it is None and key in kinds and kinds[key].kind is Kind.MODIFIER]
    if not config.rope_scaling and document.get("rope_scaling"):
        del document["rope_scaling"]  # it scales nothing, and mlx-lm wants to know how
    for key in idle:
        del document[key]  # a class with a default for it wants no null
    for key in (*_MLX_NEEDS, *needs, *(key for key in idle if key in built)):
        if document.get(key) is None and (built.get(key) is not None or key in built.keys() & needs):
            document[key] = built[key]  # null is said where a class has no default
    if config.rope_scaling and not document.get("rope_scaling") and "rope_scaling" in built:
        document["rope_scaling"] = built["rope_scaling"]
    for key in row.reads if row else ():
        if key in built:
            document[key] = built[key]


def _add_needed(document: dict[str, Any], config: ModelConfig, built: Mapping[str, Any]) -> None:
    """Add keys that mlx-lm's class asks for, and the source's does not."""
    row = engine_of(catalog.FAMILIES[config.family], MLX_LM)
    needs = row.needs if row else ()
    document |= {key: built[key] for key in needs if key in built and key not in document}
    if "rope_scaling.type" in needs and config.rope_scaling:  # rope_type is the word since transformers 4.43
        document["rope_scaling"] = {**document["rope_scaling"], "type": config.rope_scaling["rope_type"]}


def _text(document: Mapping[str, Any]) -> str:
    """Text that is equal for equal documents; 1 is not 1.0 there."""
    return json.dumps(document, sort_keys=True)


def _encoded(document: Mapping[str, Any], index: TensorIndex) -> bytes:
    """The document as bytes: the source's own file, if it says the same."""
    source = source_document(index)
    if source and _text(document) == _text(source):
        for path in index.side_files:
            if path.name == metadata.CONFIG_NAME:
                with open_source(path) as file:
                    return file.read_at(0, file.size or 0)
    written = {key: strict(value) for key, value in metadata.closed(_limits(document, index.config)).items()}
    return (json.dumps(written, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _limits(document: Mapping[str, Any], config: ModelConfig | None) -> dict[str, Any]:
    """Document with the family's numbers for values that JSON lacks."""
    if config is None:
        return dict(document)
    known = catalog.FAMILIES[config.family].document
    made = dict(document)
    for key, value in document.items():
        if key in known.written and strict(value) != value and known.keys.idle(key, value):
            made[key] = known.written[key]
    return made


def strict(value: Any) -> Any:
    """Strict JSON; numbers that are not finite as transformers 5 has them."""
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [strict(item) for item in value]
    finite = not isinstance(value, float) or math.isfinite(value)
    return value if finite else {"__float__": json.dumps(value)}


# How the source scales RoPE, in Hugging Face's words, and what of it has none.


class Scaling(NamedTuple):
    """RoPE scaling of a source, in Hugging Face's words.

    Attributes:
        document: ``rope_scaling`` of a ``config.json``; ``None`` for none.
        left_out: why the source's tensor of factors is not written; empty where there is none.
        reasons: why a configuration cannot say what the source computes.
    """

    document: Mapping[str, Any] | None = None
    left_out: str = ""
    reasons: tuple[Reason, ...] = ()


def scaling_of(index: TensorIndex, config: ModelConfig, *, drop: bool) -> Scaling:
    """Recover RoPE's scaling, or take that of the document.

    Args:
        drop: a flag leaves the tensor of factors out.
    """
    document, left_out = config.rope_scaling, ""
    family = catalog.family_of(config)
    reasons: list[Reason] = []
    way_out = "--drop rope_frequencies leaves it out, which is a loss"
    if ROPE_FREQUENCIES in index.tensors and not drop:  # what the keys of a GGUF scale besides stays
        found, source = _recovered(index, config), index.tensors[ROPE_FREQUENCIES].source
        left_out = "follows from rope_scaling in config.json" if found else "every factor is 1: nothing is scaled"
        if found is None:
            text = f"{source} is neither Llama 3's scaling nor a linear one: no rope_scaling gives these factors"
            reasons.append(Reason(text, way_out))
        elif found and document and index.format == "gguf":
            kind = document["rope_type"]
            reasons.append(Reason(f"{source} scales RoPE, and rope.scaling.type = {kind} once more", way_out))
        document = found or document
    if index.format == "gguf":
        changes = "changes the computation; no key of a config.json says it"
        reasons += [Reason(f"{modifier} {changes}") for modifier in config.modifiers]
        kind = document.get("rope_type") if document else None
        types = family.document.rope.types if family else None
        if document and types is not None and kind not in types and (types or not scales_by_one(document)):
            known = f"knows {', '.join(types)} only" if types else "scales nothing"
            reasons.append(Reason(f"{scaled(str(kind), config)}; transformers' {config.family} {known}"))
    elif index.format == "bump":
        reasons += [Reason(f"{modifier} changes the computation") for modifier in config.modifiers]
    return Scaling(document, left_out, tuple(reasons))


def _recovered(index: TensorIndex, config: ModelConfig) -> dict[str, Any] | None:
    tensor = index.tensors[ROPE_FREQUENCIES]
    if tensor.dtype.name != "F32" or tensor.shape != (config.rotary_dim // 2,) or config.rope_theta is None:
        return None
    with Files(index.identities) as files:
        factors = to_float32(RowReader(tensor, files).rows(0, tensor.layout.rows), tensor.dtype).reshape(-1)
    return rope_scaling_of(np.ascontiguousarray(factors), config.rope_theta, config.rotary_dim)


# What the headers of a checkpoint's files say besides their tensors.


def metadata_of(index: TensorIndex, options: Options, written_by: str) -> dict[str, str]:
    """The source's own metadata as flags change it, and what readers rely on.

    Args:
        written_by: the value of ``format``.
    """
    own = own_metadata(index)
    reserved = {"format": written_by}
    if options.names != "hf":
        reserved[NAMES_KEY] = options.names
    elif NAMES_KEY in own:
        del own[NAMES_KEY]
    pairs = {name: text for key, text in options.set_meta if (name := header_key(index, key))}
    for key in ("format", NAMES_KEY):
        if key in pairs or key in options.drop_meta:
            raise UsageError("usage.meta", f"{key} says how the tensors are to be read, and is not changed")
    remaining = {
        key: text
        for key, text in own.items()
        if not any(
            fnmatchcase(name, glob) for name in (key, f"{metadata.METADATA}.{key}") for glob in options.drop_meta
        )
    }
    return {**remaining, **pairs, **reserved}


def own_metadata(index: TensorIndex) -> dict[str, str]:
    """Metadata in the headers of a checkpoint; nothing for other formats."""
    prefix = f"{metadata.METADATA}."
    own = {k.removeprefix(prefix): str(v) for k, v in index.metadata.items() if k.startswith(prefix)}
    return own if index.format in CHECKPOINTS else {}


def header_key(index: TensorIndex, key: str) -> str:
    """Header key that a flag names (``__metadata__.KEY``), or empty."""
    bare = key.removeprefix(f"{metadata.METADATA}.")
    described = bool(source_document(index)) or index.config is not None
    return bare if bare != key or bare in own_metadata(index) or not described else ""
