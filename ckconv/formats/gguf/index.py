"""A GGUF's header -> the canonical index, as llama.cpp reads its keys."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckconv.core.config import (
    FIELD_OF,
    NUMBERS,
    REAL,
    WHOLE,
    Cause,
    Fail,
    ModelConfig,
    Modifier,
    build_config,
    checked_number,
    modifiers_of,
    shortest_float32,
)
from ckconv.core.layouts import F32
from ckconv.core.lazy import replace
from ckconv.core.metadata import Value
from ckconv.core.tensors import DroppedTensor, Extent, StoredTensor, TensorIndex, Tower
from ckconv.errors import InputError, UnsupportedError, counted, quoted
from ckconv.families.canonical import Canonical, FamilyFit, canonicalize, fitted, notes_on, plain_item
from ckconv.families.catalog import bracketed_of, family_of_gguf, gguf_words, llama_cpp_has
from ckconv.families.expressions import SLIDING, longrope_scale
from ckconv.families.keys import Kind, full_key
from ckconv.families.names import BESIDE_TEXT, beside_text, names_of
from ckconv.families.parameters import PER_LAYER, ExpressionError, ParameterError, Values
from ckconv.families.schema import SCALING_NUMBERS, Family
from ckconv.families.towers import (
    ORIGINAL_SHAPE,
    Diffusion,
    canonical_diffusion,
    diffuses,
    diffusion_of,
    tower_of_projector,
    tower_parameters,
    tower_tensors,
)
from ckconv.formats.gguf.entries import items, of_activations, tensors_of_keys
from ckconv.formats.gguf.read import ArrayRef, GgufFile, join_shards, read_gguf, read_header
from ckconv.formats.gguf.values import GGUF_KIND, header
from ckconv.io.files import ByteSource, NewHeader

if TYPE_CHECKING:
    from ckconv.formats.safetensors.adapter import Opener


# The hyper-parameters of a GGUF, as llama.cpp reads them.

#: Keys of a tokenizer -> their types (``llama_vocab::impl::load`` stops at another).
_TEXT, _FLAG, _ID = ("str", "a text"), ("bool", "true or false"), ("u32", "the number of a token")
_OF_TOKENS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("model", "pre"), _TEXT),
    **dict.fromkeys(("tokens", "merges"), ("arr[str]", "a list of texts")),
    "scores": ("arr[f32] arr[i32]", "a list of numbers"),
    "token_type": ("arr[i32]", "a list of whole numbers"),
    **dict.fromkeys(("add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix"), _FLAG),
    "remove_extra_whitespaces": _FLAG,
}

#: Turns of YaRN, of which there is a logarithm.
_ABOVE_ZERO = frozenset({"beta_fast", "beta_slow"})

#: Fields that are no plain number under a key, or none that GGUF has.
_SPECIAL = ("layer_types", "local_theta", "final_cap", "query_scalar")


def keys_of(architecture: str, name: str) -> tuple[str, str]:
    """Keys with the architecture's prefix, then without (early files)."""
    return full_key(architecture, name), name.removeprefix("/")


def gguf_config(file: GgufFile, architecture: str, family: Family) -> ModelConfig:
    """Read the hyper-parameters.

    Raises:
        InputError: ``model.config``, a field is missing, absurd, or contradicts another.
        UnsupportedError: ``model.config``, one differs from layer to layer.
    """
    fail = _fail(file)
    values: dict[str, int | float] = {}
    names: dict[str, str] = dict.fromkeys(NUMBERS, "")
    for name, row in family.parameters.items():
        field = FIELD_OF.get(name, "")
        if field not in NUMBERS:
            continue
        cells = sorted(row.key_cells("gguf"), key=lambda cell: cell.unread)
        names[field] = f"{architecture}.{cells[0].key}" if cells else field
        for cell in cells:
            stored = [key for key in keys_of(architecture, cell.key) if file.value(key) is not None]
            key, value = (stored[0], file.value(stored[0])) if stored else ("", None)
            if value is None or (cell.unread and field in values):
                continue
            if value == 0 and not cell.read and _counts(field, family, values):
                raise fail(f"{key} is 0")
            first, names[field] = names[field], key
            if cell.read and not cell.unread:
                value = _read(file, architecture, family, name, fail)
                if "it" not in cell.read.names:  # what it is made of is at fault
                    keys = (word for one in sorted(cell.read.names) for word in gguf_words(family, one))
                    key = next(keys, key)
                elif isinstance(value, int) and value < 0:
                    others = [word for one in sorted(cell.read.names) for word in gguf_words(family, one)]
                    given = {one: file.value(one) for one in (key, *others)}
                    shown = ", ".join(f"{one} is {it}" for one, it in given.items() if it is not None)
                    raise fail(f"{shown}: no {field} follows from it")
            number = checked_number(key, _uniform(file, key, value), NUMBERS[field], fail)
            if values.setdefault(field, number) != number:
                raise fail(f"{first} is {values[field]}, {key} is {number}")
    shapes = {tensor.name: tensor.shape for tensor in file.tensors}
    vocab = shapes.get("token_embd.weight", (0,))[0]
    _check_tokens(file, vocab, fail)
    idle = {}
    if values.get("vocab_size", vocab) != vocab and _token_count(file) > 0:  # llama.cpp counts those (llama_vocab)
        idle = {"vocab_size": names["vocab_size"]}
        del values["vocab_size"]
    positions = shapes.get("position_embd.weight", (0,))[0]
    made = build_config(
        family.name,
        family.model_type,
        values,
        names,
        fail,
        vocab_size=vocab or _token_count(file),
        position_rows=positions,
        rope=family.rope,
        experts=family.experts,
    )
    made = _classified(file, architecture, family, _window(family, made))
    made = replace(made, unread=(*made.unread, *idle.values()))
    return _completed(file, architecture, family, made, fail)


def _counts(field: str, family: Family, values: Mapping[str, float]) -> bool:
    """Whether 0 under a key is a fault, and no number left unsaid.

    llama.cpp takes it as it is (``load_hparams``): nothing turns, there is no position, or no row of K and V.
    """
    attends = field in ("num_kv_heads", "rotary_dim") and values.get("num_heads", 0) > 0
    turns = field != "rotary_dim" or family.rope
    return NUMBERS[field].required or field == "context_length" or (attends and turns)


def config_of_keys(
    path: Path, family: Family, metadata: Mapping[str, Value], tensors: Sequence[tuple[str, tuple[int, ...], bytes]]
) -> ModelConfig:
    """Read the hyper-parameters of a GGUF that is not written yet.

    Its ``family`` is the one that keys and tensors tell, or the given one where they tell none or a tokenizer tells.

    Args:
        path: what errors name.
        tensors: name, shape and, of numbers that no tensor of the source is, content.
    """
    data = header(metadata, ())
    stored = []
    for name, shape, content in tensors:
        stored.append(StoredTensor(name, F32, shape, Extent(path, len(data), len(content))))
        data += content
    source = NewHeader(path, data)
    shard = read_header(NewHeader(path, header(metadata, ())))._replace(tensors=stored, source=source, size=source.size)
    file = GgufFile(path, (shard,))
    config = gguf_config(file, family.gguf, family)
    keys = family.in_gguf.condition.probed_keys if family.in_gguf.condition is not None else ()
    tells = any(key.startswith("=") for key in keys) and not any(key.startswith("/tokenizer.") for key in keys)
    found = _family(file, family.gguf) if tells else None
    if found is not None and found.in_gguf.condition == family.in_gguf.condition:
        found = None  # nothing in a GGUF tells the two apart
    return replace(config, family=found.name) if found is not None else config


def _read(file: GgufFile, architecture: str, family: Family, name: str, fail: Fail) -> object:
    """A number that the family's row makes of a list over layers."""
    try:
        return Values(family, KeySource(file, architecture))[name]
    except (ParameterError, ExpressionError) as error:
        raise fail(f"{architecture}.{error}") from None


def _window(family: Family, config: ModelConfig) -> ModelConfig:
    """Drop a window shorter than the context that llama.cpp does not read."""
    row = family.parameters.get("window")
    read = row is not None and any(not cell.unread for cell in row.key_cells("gguf"))
    if read or not config.sliding_window or config.sliding_window >= config.context_length > 0:
        return config
    return replace(config, sliding_window=None)


def _fail(file: GgufFile) -> Fail:
    return lambda message: InputError("model.config", message, path=file.path)


def _uniform(file: GgufFile, key: str, value: object) -> object:
    """The one value of a per-layer array; differing values are refused."""
    if not isinstance(value, ArrayRef):
        return value
    layers = file.value(f"{key.partition('.')[0]}.block_count")
    if not key.endswith(PER_LAYER):
        raise _fail(file)(f"{key} must be a number, got a list of {value.count:,}")
    if isinstance(layers, int) and value.count != layers:
        raise _fail(file)(f"{key} has {counted(value.count, 'number')}, for {counted(layers, 'layer')}")
    elements = value.decode()
    if not elements or any(element != elements[0] for element in elements):
        raise UnsupportedError(
            "model.config", f"{key} differs from layer to layer, which no known architecture does", path=file.path
        )
    return elements[0]


def _token_count(file: GgufFile) -> int:
    tokens = file.value("tokenizer.ggml.tokens")
    return tokens.count if isinstance(tokens, ArrayRef) else 0


def _check_tokens(file: GgufFile, vocab: int, fail: Any) -> None:
    for key, found in file.metadata.items():
        _, dot, name = key.partition("tokenizer.ggml.")
        wanted, words = _ID if name.endswith("_token_id") else _OF_TOKENS.get(name, ("", ""))
        if not dot or not wanted:
            continue
        value = found.value
        if found.type not in wanted.split() and not (name.endswith("_token_id") and type(value) is int and value >= 0):
            shown = f"{found.type} of {value.count:,}" if isinstance(value, ArrayRef) else reprlib.repr(value)
            raise fail(f"{key} must be {words}, got {shown}")
    tokens = _token_count(file)
    if vocab and tokens > vocab:
        raise fail(f"tokenizer.ggml.tokens has {tokens:,} entries, token_embd.weight {vocab:,} rows")


def _classified(file: GgufFile, architecture: str, family: Family, config: ModelConfig) -> ModelConfig:
    """Add modifiers, unread keys and the scaling of RoPE."""
    table, prefix = family.metadata.keys, f"{architecture}."
    rotary = config.rope_theta is not None
    scaling, unknown = _rope_scaling(file, architecture, family, config) if rotary else (None, "")
    scope = Values(family, KeySource(file, architecture), given=replace(config, rope_scaling=scaling).scope)
    modifiers, unread = list[str](), list[str]()
    unscaled = file.value(f"{prefix}rope.scaling.type") == "none"
    closed = family.document.closed or architecture not in family.in_gguf.names
    tensors = {row.key for row in family.tensors.values()}
    for name in (name for name in file.metadata if name not in tensors):
        key = table.get(name.removeprefix(prefix))
        if key is None and name.startswith(prefix) and closed:
            text = f"{name}, {Cause.UNKNOWN_KEY.value} {family.name},"
            modifiers.append(Modifier(text, Cause.UNKNOWN_KEY))
        elif key is None and name.startswith(prefix):
            unread.append(name)
        elif key is not None and key.kind is Kind.MODIFIER:
            value = file.value(name)
            if unscaled and name.removeprefix(prefix) in ("rope.scaling.factor", "rope.scale_linear"):
                continue  # "never scale if scaling type is none" (llama_context)
            try:
                neutral = (key.same_as.value(scope),) if key.same_as else key.neutral
            except ExpressionError:  # of a number that is none
                neutral = ()
            if isinstance(value, ArrayRef):
                if _decoded(file, name) not in neutral:
                    modifiers.append(f"{name}, an array,")
            elif _number(value) not in map(_number, neutral):
                modifiers.append(f"{name} = {value}")
    modifiers += _of_sliding(file, architecture, family, config)
    own = {name.removeprefix(prefix): _decoded(file, name) for name in file.metadata if name.startswith(prefix)}
    modifiers += family.metadata.unseen(own)
    modifiers += [unknown] if unknown else []
    return replace(config, modifiers=modifiers_of(modifiers), unread=tuple(unread), rope_scaling=scaling)


def _of_sliding(file: GgufFile, architecture: str, family: Family, config: ModelConfig) -> list[str]:
    """Sizes of heads in layers that slide.

    llama.cpp reads them for every architecture (``load_hparams``).
    """
    if not config.sliding_window:
        return []
    sizes = dict.fromkeys(("attention.key_length_swa", "attention.value_length_swa"), config.head_dim)
    sizes["rope.dimension_count_swa"] = config.rotary_dim
    rows = family.metadata.keys
    found = {name: file.value(f"{architecture}.{name}") for name in sizes}
    return [
        f"{architecture}.{name} = {value}"
        for name, value in found.items()
        if value not in (None, sizes[name]) and name in rows and rows[name].kind is Kind.HARMLESS
    ]


def _decoded(file: GgufFile, name: str) -> Any:
    """The value under a key, or a list; of a float32 the shortest decimal."""
    found = file.value(name)
    return [_number(item) for item in found.decode()] if isinstance(found, ArrayRef) else _number(found)


def _rope_scaling(
    file: GgufFile, architecture: str, family: Family, config: ModelConfig
) -> tuple[dict[str, Any] | None, str]:
    """The scaling in Hugging Face's words, and what of it has none.

    llama.cpp takes a factor without a type for a linear one, ``rope.scale_linear`` where there is no factor, 0 for 1,
    and YaRN without an original context to start from the model's (``load_hparams``).
    """

    def found(name: str) -> tuple[str, object]:
        return next(
            ((key, value) for key in keys_of(architecture, name) if (value := file.value(key)) is not None),
            (f"{architecture}.{name}", None),
        )

    def number(name: str, integer: bool) -> float | None:
        key, value = found(name)
        return None if value is None else checked_number(key, value, WHOLE if integer else REAL, _fail(file))

    factor = number("rope.scaling.factor", False)
    factor = number("rope.scale_linear", False) if factor is None else factor
    original = number("rope.scaling.original_context_length", True)
    key, kind = found("rope.scaling.type")
    start = int(original or config.context_length)
    given = {"rope_type": kind or "default", "rope_original": start, "rope_factor": factor}
    numbers = _scaling_numbers(file, architecture, family, {**config.scope, **given})
    sets = numbers.keys() & {"long_factor", "short_factor"}
    if original == 0 and (sets or kind == "yarn"):
        raise _fail(file)(f"{found('rope.scaling.original_context_length')[0]} is 0")
    if len(sets) == 2 and start > 1 and kind in (None, "linear", "longrope") and factor in (None, 0, 1):
        taken = longrope_scale(config.context_length / start, start)
        if (
            taken != 1 and found("rope.scaling.attn_factor")[1] is None
        ):  # llama.cpp has 1, and not what a class computes
            numbers["attention_factor"] = 1.0
        return {"rope_type": "longrope", **numbers, "original_max_position_embeddings": start}, ""
    if sets:
        return None, f"{architecture}.rope.scaling with {', '.join(sorted(numbers))} of a scaling that is not longrope"
    if kind not in (None, "none", "linear", "yarn"):
        return None, f"{key} = {kind}"
    if "attention_factor" in numbers and kind != "yarn":
        attention, value = found("rope.scaling.attn_factor")
        return None, f"{attention} = {value} of a scaling that is not yarn"
    if kind == "none" or (factor in (None, 0, 1) and "attention_factor" not in numbers):
        return None, ""
    if kind == "yarn" and float(factor or 1) < 1:
        return None, f"{key} = yarn with a factor of {factor:g}"  # whose logarithm llama.cpp weighs attention by
    scaling: dict[str, Any] = {"rope_type": kind or "linear", "factor": shortest_float32(float(factor or 1))}
    if kind == "yarn":
        scaling |= numbers
        scaling["original_max_position_embeddings"] = start
    return scaling, ""


def _scaling_numbers(file: GgufFile, architecture: str, family: Family, given: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of RoPE scaling other than type, factor, original context."""
    values = Values(family, KeySource(file, architecture), given=given)
    names = family.parameters.keys() & SCALING_NUMBERS
    try:
        found = {name.removeprefix("rope_"): values[name] for name in sorted(names) if values[name] is not None}
        for number in found.keys() & _ABOVE_ZERO:
            if found[number] <= 0:
                key = gguf_words(family, f"rope_{number}")[0]
                raise _fail(file)(f"{key} must be above 0, got {found[number]}")
        return found
    except (ParameterError, ExpressionError) as error:
        raise _fail(file)(f"{architecture}.{error}") from None


class KeySource:
    """Metadata by a family's key names, stored with a prefix or without."""

    format = "gguf"

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self._file, self._architecture = file, architecture

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        return self.value(key) is not None

    def value(self, key: str) -> Any:
        """The value of a key."""
        for name in keys_of(self._architecture, key):
            found = self._file.value(name)
            if found is not None:
                return _decoded(self._file, name)
        return None

    def numbers(self, tensor: str) -> list[float] | None:
        """The values of a stored vector."""
        values = self._file.vector(tensor)
        return None if values is None else [shortest_float32(value) for value in values]

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        """The shape of a stored tensor."""
        return next((found.shape for found in self._file.tensors if found.name == tensor), None)


def _completed(file: GgufFile, architecture: str, family: Family, config: ModelConfig, fail: Fail) -> ModelConfig:
    """With what only some families have."""
    special = [name for name in _SPECIAL if name in family.parameters]
    given = {name: value for name, value in config.scope.items() if name not in special}
    values = Values(family, KeySource(file, architecture), given=given)
    try:
        for name in special:
            if name != "layer_types" and values[name] is not None:
                key = next(iter(gguf_words(family, name)), name)
                if not checked_number(key, values[name], REAL, fail) and name in ("local_theta", "query_scalar"):
                    raise fail(f"{key} is 0")
        found: dict[str, Any] = {
            FIELD_OF[name]: tuple(it) if isinstance(it := values[name], list) else _number(it) for name in special
        }
        kinds = found.get("layer_types")
        if kinds is not None and not isinstance(kinds, tuple):
            raise fail(f"layer_types is {kinds!r}, and no list over layers: {family.path.name} says how it is read")
        if kinds and SLIDING not in kinds:
            found["sliding_window"] = None
        own = {name: _number(values[name]) for name in family.own}
        for name in sorted(own.keys() & family.sizes):
            if not isinstance(own[name], list | None):  # kinds of layers are a list
                checked_number(next(iter(gguf_words(family, name)), name), own[name], WHOLE, fail)
        head = config.scope["head_dim"]
        # A whole head that is no number of pairs stays readable, as its container is sound: planners refuse it.
        part = config.rotary_dim if family.rope and config.rotary_dim not in (0, head) else None
        for name, turned in (("rope_dim", part), ("local_dim", own.get("local_dim"))):
            if turned is not None and not (2 <= turned <= head and turned % 2 == 0):
                key = next(iter(gguf_words(family, name)), f"{architecture}.rope.dimension_count")
                size = f"{architecture}.attention.key_length"
                size = size if size in file.metadata else f"{architecture}.embedding_length / attention.head_count"
                text = f"which is no number of pairs within the {head} elements of a head ({size})"
                raise fail(f"{key} is {turned}, {text}")
        return replace(config, **found, own=own)
    except (ParameterError, ExpressionError) as error:
        raise fail(f"{architecture}.{error}") from None


def _number(value: Any) -> Any:
    return shortest_float32(value) if isinstance(value, float) else value


# A GGUF's header -> the canonical index.

#: Words for what is no model (``GGUFType`` of gguf-py).
_OTHER_KINDS = frozenset({"adapter", "imatrix", "mmproj"})

#: Axes that a shape in a key may have.
_MOST_AXES = 8


def open_gguf(
    path: Path,
    *,
    source: ByteSource | None = None,
    opener: Opener | None = None,
    base: Path | None = None,
    drop: Sequence[str] = (),
) -> TensorIndex:
    """Read the header of a GGUF and apply its family's rules.

    Of a split set, all shards.

    Args:
        opener: opens an adapter's ``base`` model.
        drop: globs of tensors that need not fit the family's rules.

    Raises:
        InputError: the file is malformed (``gguf.*``).
    """
    file = read_gguf(path, source=source)
    if file.value("general.type") == GGUF_KIND:
        from ckconv.formats.gguf.adapter import gguf_adapter

        return gguf_adapter(file, path, opener=opener or open_gguf, base=base)
    return index_gguf(path, file, drop)


def index_of_headers(path: Path, sources: Sequence[ByteSource], config: ByteSource | None = None) -> TensorIndex:
    """The index of a GGUF of whose files only headers are there."""
    return index_gguf(path, join_shards(path, tuple(read_header(source) for source in sources)))


def index_gguf(path: Path, file: GgufFile, drop: Sequence[str] = ()) -> TensorIndex:
    """The index of headers that were read."""
    architecture = str(file.value("general.architecture") or "")
    kind = str(file.value("general.type") or "model")
    if kind not in _OTHER_KINDS and any(tensor.name == "token_embd.weight" for tensor in file.tensors):
        kind = "model"  # llama.cpp's loader of models does not look at general.type
    family = _family(file, architecture) if kind == "model" else None
    towers = [tensor for tensor in file.tensors if beside_text({}, tensor.name)] if family else []
    beside = (*of_activations(file.tensors), *(DroppedTensor(tensor, BESIDE_TEXT, copied=True) for tensor in towers))
    left = {dropped.stored.name for dropped in beside}
    config, canonical, misfit = FamilyFit(None, Canonical({}, {}, (), file.tensors))
    if family:
        config, canonical, misfit = fitted(partial(_made, file, family, left), file.tensors, drop)
    tower, named = _tower(path, file) if kind == "mmproj" else (None, None)
    if family is None and diffuses(architecture):
        model = diffusion_of(file.tensors) or Diffusion(architecture)
        named = canonical_diffusion(model, map(plain_item, file.tensors), partial(_original_shape, file))
    canonical = named or canonical
    shards = {"shards": len(file.files)} if len(file.files) > 1 else {}
    return file.indexed(
        path,
        architecture=architecture,
        config=config,
        **canonical._replace(dropped=(*canonical.dropped, *beside))._asdict(),
        facts={"kind": kind, "alignment": file.alignment, "data_offset": file.data_offset, **shards},
        tower=tower,
        misfit=misfit,
        notes=notes_on(misfit),
    )


def _original_shape(file: GgufFile, stored: StoredTensor) -> tuple[int, ...]:
    """Shape of a tensor before its rows were cut anew; empty without a key."""
    key = f"{ORIGINAL_SHAPE}{stored.name}"
    found = file.value(key)
    if found is None:
        return ()
    axes = found.decode() if isinstance(found, ArrayRef) and found.type == "i32" and found.count <= _MOST_AXES else []
    sizes = tuple(axis for axis in axes if isinstance(axis, int) and axis > 0)
    elements = math.prod(stored.shape)
    if len(sizes) != len(axes) or math.prod(sizes) != elements or not axes:
        what = f"{axes}" if axes else "no list of i32"
        message = f"{key} is {what}, and the tensor has {elements:,} elements"
        raise InputError("gguf.shape", message, path=file.path, tensor=stored.name)
    return sizes


def _made(file: GgufFile, family: Family, left: Container[str], drop: Sequence[str]) -> tuple[ModelConfig, Canonical]:
    architecture = str(file.value("general.architecture") or "")
    config = gguf_config(file, architecture, family)
    canonical = canonicalize(
        items([tensor for tensor in file.tensors if tensor.name not in left]),
        family,
        names_of(family, "gguf"),
        config,
        bracketed_of(config, "gguf"),
        layers=f"{architecture}.block_count",
        drop=drop,
    )
    keyed = {tensor.name: tensor for tensor in tensors_of_keys(file, family, config)}
    return config, canonical._replace(tensors={**canonical.tensors, **keyed})


def _tower(path: Path, file: GgufFile) -> tuple[Tower | None, Canonical | None]:
    """Tower of an mmproj; ``None`` for unknown names: the file is copied."""
    with suppress(InputError, UnsupportedError):
        return _known_tower(path, file)
    return None, None


def unknown_tower(path: Path) -> str:
    """Why the tower of an mmproj is not known; may be empty.

    Empty where no tower has its projector.

    Raises:
        InputError: ``model.config``, a tensor has another shape than the file's keys give it.
    """
    file = read_gguf(path)
    try:
        found, _ = _known_tower(path, file)
    except (InputError, UnsupportedError) as error:
        if error.tensor:
            raise
        return error.message
    name = _projector(file)
    known = llama_cpp_has("projectors", [name])
    return "" if found else f"ckconv does not know clip.projector_type {quoted(name)}{known}"


def _projector(file: GgufFile) -> str:
    """Projector of a tower; the eyes' where a file has eyes and ears."""
    keys = ("clip.projector_type", "clip.vision.projector_type", "clip.audio.projector_type")
    return next((str(name) for key in keys if (name := file.value(key))), "")


def _known_tower(path: Path, file: GgufFile) -> tuple[Tower | None, Canonical | None]:
    def has(name: str) -> bool:
        if name.startswith("="):
            return any(tensor.name == name[1:] for tensor in file.tensors)
        found = KeySource(file, "clip").value(name)
        return any(found) if isinstance(found, list) else found is not None

    family = tower_of_projector(_projector(file), has)
    if family is None:
        return None, None
    tower = tower_parameters(family, KeySource(file, family.gguf), path)
    return tower, tower_tensors(items(file.tensors), tower, "gguf", path)


def _family(file: GgufFile, architecture: str) -> Family | None:
    def has(name: str) -> bool:
        if name.startswith("="):
            return any(tensor.name == name[1:] for tensor in file.tensors)
        if name.startswith("!"):
            return any(file.value(key) is False for key in keys_of(architecture, name[1:]))
        return any(file.value(key) for key in keys_of(architecture, name))

    return family_of_gguf(architecture, has)
