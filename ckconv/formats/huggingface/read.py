"""Canonical index of a checkpoint's headers and configuration."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

from ckconv.core.config import ModelConfig
from ckconv.core.layouts import DTYPES, DType, Kind, plain
from ckconv.core.lazy import NamedTuple, np, replace
from ckconv.core.metadata import (
    CONFIG_NAME,
    THINKER,
    WHOLE,
    document_of,
    joined_metadata,
    root_of,
    table_within,
    text_key,
    unquantized,
    without_stale,
)
from ckconv.core.tensors import (
    EMBEDDING,
    HEAD,
    DroppedTensor,
    MetadataKind,
    Name,
    PackedMatrix,
    StoredTensor,
    Tensor,
    TensorIndex,
    cut,
    matrix_of,
    parse,
    plain_tensor,
    with_layer,
)
from ckconv.errors import Faults, InputError, OutputError, UnsupportedError, an, counted, quoted
from ckconv.families import parameters, schema, sizes
from ckconv.families.canonical import Canonical, FamilyFit, Item, canonicalize, fitted, notes_on, plain_item
from ckconv.families.catalog import FAMILIES, bracketed, bracketed_of, classes_of, drafter_of, llama_cpp_has
from ckconv.families.huggingface_config import huggingface_config, huggingface_family
from ckconv.families.keys import CONSUMERS
from ckconv.families.names import (
    HF,
    NAMES_KEY,
    NESTED,
    OTHER_SCHEMES,
    REFERENCE,
    TEXT_PART,
    draft_name,
    is_beside_text,
    names_of,
    scheme_names,
)
from ckconv.families.towers import canonical_diffusion, diffusion_of, tower_of_document, tower_parameters, tower_tensors
from ckconv.formats.safetensors.container import MAX_JSON, WRAPPERS, is_pickle, read_safetensors
from ckconv.formats.safetensors.files import LINEAR, CheckpointFiles, computes_plainly, ends_with_layers
from ckconv.io.files import FileSource, open_source, text_of_card
from ckconv.io.json import Clock, Document, Matcher, compiled, parse_object, read_object
from ckconv.plan.planner import ORIGINAL
from ckconv.quant.mlx import MAX_COLUMNS, MODES, Quantization, Triple, quantization, triple_type
from ckconv.quant.packed import NOT_WEIGHTS, packed_type
from ckconv.quant.packings import ACTIVATIONS, PACKINGS, described
from ckconv.quant.packings.integers import HQQ_BESIDE
from ckconv.quant.packings.module import MAX_WHOLE, Conflict, Module, PackConfig, Packing, Unread, check_bounded
from ckconv.tokenizer.checkpoint import token_ids_beside

# -- MLX directories: which stored arrays are one quantized matrix -----------------------------------------------------
# Whether a module is quantized is decided by its ``.scales``, as mlx-lm's loader does; ``config.json`` says how, with
# overrides per module. What the shapes say must agree with it.


def is_mlx(config: Mapping[str, Any] | None, metadata: Mapping[str, str], names: Iterable[str]) -> bool:
    """Whether MLX wrote the checkpoint, by files or configuration.

    Files that torch wrote are MLX's only where they hold what that key is about: transformers does not read it.
    """
    if metadata.get("format") == "mlx":
        return True
    quantized = metadata.get("format") != "pt" or any(name.endswith(".scales") for name in names)
    return quantized and isinstance((config or {}).get("quantization"), dict)


def mlx_items(stored: Sequence[StoredTensor], config: Mapping[str, Any], path: Path) -> list[Item]:
    """Group the stored arrays of an MLX checkpoint."""
    by_name = {tensor.name: tensor for tensor in stored}
    modules = {name.removesuffix(".scales") for name in by_name if name.endswith(".scales")}
    settings = table_within(config, "quantization")
    faults = Faults(path)
    items: list[Item] = []
    taken: set[str] = set()
    known = huggingface_family(config) is not None
    for tensor in stored:
        module, _, kind = tensor.name.rpartition(".")
        if module not in modules or kind not in ("weight", "scales", "biases"):
            items.append(plain_item(tensor))
        elif module not in taken:
            taken.add(module)
            triple = _triple(module, by_name, settings, known, path, faults)
            if triple:
                items.append(triple)
    dense = {tensor.name.removesuffix(".weight") for tensor in stored} - modules
    for name, value in settings.items():
        if isinstance(value, dict) and name in dense:
            faults.add("mlx.quant", f"{quoted(name)} has a quantization entry and no scales", tensor=name)
    faults.check()
    return items


def _settings_of(module: str, settings: Mapping[str, Any], path: Path) -> Quantization:
    """Settings of a module, its own or the general ones."""
    entry = settings.get(module)
    chosen = entry if isinstance(entry, dict) else settings
    return quantization(
        chosen.get("mode"), chosen.get("bits"), chosen.get("group_size"), path=path, tensor=f"{module}.weight"
    )


def _inferred(
    q: Quantization, weight: StoredTensor, scales: StoredTensor, biases: StoredTensor | None, *, known: bool
) -> list[Quantization]:
    """Say how a module without an entry may be quantized, the likely first.

    That need not be ``q``, the general settings: entries are lost, or name modules otherwise. Arrays of few bits and
    long groups are stored as others of the other way round: mlx-lm's loader (``infer_quant_config``) knows the columns
    from the class, and here the family's shape chooses. Without a family, only what leaves no choice is taken.
    """
    every = (
        Quantization(mode, bits, group)
        for mode, rules in MODES.items()
        for bits in rules.allowed_bits
        for group in ((32, 64, 128) if rules.any_group else (rules.group_size,))
    )
    beside = biases is not None
    found = [one for one in {q: None, **dict.fromkeys(every)} if one.has_biases == beside]
    found = [one for one in found if _fits(weight, scales, biases, one)]
    if known:
        return sorted(found, key=lambda one: (one != q, one.group_size != q.group_size)) or [q]
    return [q] if q in found or len(found) != 1 else found


def _triple(
    module: str,
    by_name: Mapping[str, StoredTensor],
    settings: Mapping[str, Any],
    known: bool,
    path: Path,
    faults: Faults,
) -> Item | None:
    name = f"{module}.weight"
    weight, scales, biases = (by_name.get(f"{module}.{kind}") for kind in ("weight", "scales", "biases"))
    assert scales is not None
    if weight is None:
        faults.add("mlx.quant", f"{quoted(module)} has scales and no weight", tensor=scales.name)
        return None
    if not settings:
        raise InputError(
            "mlx.quant", f"{quoted(module)} has scales, config.json has no quantization", path=path, tensor=name
        )
    if settings.get(module) is False:
        faults.add("mlx.quant", f"{quoted(module)} has scales, its quantization entry is false", tensor=name)
        return None
    q = _settings_of(module, settings, path)
    q, *more = [q] if module in settings else _inferred(q, weight, scales, biases, known=known)
    number = scales.dtype if q.has_biases else DTYPES["BF16"]
    arrays = [array for array in (weight, scales, biases) if array is not None]
    if q.has_biases and biases is None:
        faults.add("mlx.quant", f"{quoted(module)} has no biases, which {q} needs", tensor=name)
    elif not q.has_biases and biases is not None:
        faults.add("mlx.quant", f"{quoted(module)} has biases, which {q} does not have", tensor=name)
    elif not _fits(weight, scales, biases, q):
        shapes = f"weight {list(weight.shape)} {weight.dtype} with scales {list(scales.shape)} {scales.dtype}"
        faults.add("mlx.quant", f"{quoted(name)}: {shapes} is not {q}", tensor=name)
    elif (columns := q.columns(weight.shape[-1] * 4)) > MAX_COLUMNS:
        what = f"{quoted(name)} has rows of {columns:,} columns; {MAX_COLUMNS:,} are read at once"
        faults.add("mlx.quant", what, tensor=name, found=columns, allowed=MAX_COLUMNS)
    else:
        planes, rows = tuple(_plane(array) for array in arrays), weight.shape[:-1]
        widths = {one: one.columns(weight.shape[-1] * 4) for one in (q, *more)}
        tensor, *others = (
            Tensor(
                name, name, triple_type(Triple(one, number)), (*rows, cols), (), plain(math.prod(rows), cols), planes
            )
            for one, cols in widths.items()
            if cols <= MAX_COLUMNS
        )
        return Item(tensor, tuple(arrays), tuple(others))
    return None


def _plane(stored: StoredTensor) -> Tensor:
    rows, cols = math.prod(stored.shape[:-1]), stored.shape[-1]
    return Tensor(stored.name, stored.name, stored.dtype, (rows, cols), (stored.extent,), plain(rows, cols))


def _fits(weight: StoredTensor, scales: StoredTensor, biases: StoredTensor | None, q: Quantization) -> bool:
    """Whether the arrays fit the quantization of one matrix."""
    if weight.dtype is not DTYPES["U32"] or len(weight.shape) < 2 or len(weight.shape) != len(scales.shape):
        return False
    columns = weight.shape[-1] * 32 // q.bits
    if not q.divides(columns) or q.row_bytes(columns) != weight.shape[-1] * 4:
        return False
    numbers: DType = scales.dtype
    right = numbers.kind is Kind.FLOAT and numbers.name != "F64" if q.has_biases else numbers is DTYPES["U8"]
    same = biases is None or (biases.dtype is numbers and biases.shape == scales.shape)
    return right and same and scales.shape == (*weight.shape[:-1], columns // q.group_size)


# -- Tensors of foreign quantizers in a checkpoint, recognized by name -------------------------------------------------

#: Endings of tensors that other quantizers write -> what they are called.
FOREIGN_QUANTIZERS: tuple[tuple[str, str], ...] = (
    (".qzeros", "GPTQ or AWQ"),
    (".g_idx", "GPTQ"),
    (".qweight", "GPTQ or AWQ"),
    (".q_scale_max", "EXL2"),
    (".trellis", "EXL3"),
    (".absmax", "bitsandbytes"),
    (".quant_map", "bitsandbytes"),
    (".nested_absmax", "bitsandbytes"),
    (".SCB", "bitsandbytes"),
    (".weight_scale_inv", "block-scaled FP8"),
    (".weight_scale", "FP8 or compressed-tensors"),
    (".weight_packed", "compressed-tensors"),
    ("._data", "a quanto format"),
    ("._scale", "a scaled format"),
    (".input_scale", "FP8"),
)
_FOREIGN = tuple(ending for ending, _ in FOREIGN_QUANTIZERS)


def foreign_quantizer(tensors: Sequence[StoredTensor], settings: Mapping[str, Any]) -> str:
    """Name of the foreign quantizer of these tensors; empty for none.

    It calls itself ``quant_method``, which counts beside names that are known or numbers that are no floats: with that
    word alone the loader quantizes, and the checkpoint holds plain matrices. Names alone only suggest who it was.
    """
    method = settings.get("quant_method")
    method = method if isinstance(method, str) else ""
    names = [tensor.name for tensor in tensors if tensor.name.endswith(_FOREIGN)]
    found = Counter(what for ending, what in FOREIGN_QUANTIZERS for name in names if name.endswith(ending))
    what, count = next(iter(found.most_common(1)), ("", 0))
    if method and method.lower() not in what.lower():
        packed = "bitsandbytes" in method.lower()  # Params4bit: a column, in the type of bnb_4bit_quant_storage
        numbers = (
            (one.dtype.kind is not Kind.FLOAT and one.dtype.name != "I64")  # positions
            or (packed and one.name.endswith(".weight") and one.shape[1:] == (1,))
            for one in tensors
        )
        count = sum(found.values()) or sum(numbers)
        what = "quantized numbers"
    if not count:
        return ""
    return f"{counted(count, 'tensor')} of {what}" + (f" (quant_method {quoted(method)})" if method else "")


#: Types of a matrix that says nothing without scales, or biases: FP8 where others have some, else it is cast.
_CODES = frozenset(DTYPES[name] for name in ("U8", "I8", "I32", "U32", "F8_E4M3", "F8_E5M2"))


def _bare_codes(tensors: Sequence[StoredTensor]) -> str:
    """Matrices of codes that no array of scales goes with, in words."""
    codes = [one for one in tensors if one.name.endswith(".weight") and len(one.shape) > 1 and one.dtype in _CODES]
    if not codes:
        return ""
    column = all(one.dtype is DTYPES["U8"] and one.shape[1:] == (1,) for one in codes)  # as Params4bit lies
    what = "4-bit codes of bitsandbytes without absmax and quant_state" if column else "codes without what decodes them"
    first = f"{codes[0].name} is {codes[0].dtype} {list(codes[0].shape)}"
    return f"{counted(len(codes), 'tensor')} of {what} ({first})"


# -- Matrices packed by another quantizer: arrays and declarations -----------------------------------------------------

# What the configuration declares of a quantization, wherever it says it, and of which modules.

#: Keys with names of modules that are not quantized.
_IGNORED = ("ignore", "modules_to_not_convert", "exclude_modules")

_OF_QUANTIZER = Document("configuration of a quantizer", "quant.config", "quant.config", MAX_JSON)

#: Keys of AutoAWQ's own file -> those of ``quantization_config``.
_OLD_KEYS = {"w_bit": "bits", "q_group_size": "group_size"}

#: Configurations of quantizers beside ``config.json``, from which they were left out, and the method that they are of.
BESIDE = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}


def quantization_config(config: Mapping[str, Any], root: Path) -> Mapping[str, Any]:
    """The declared quantization, with ``quant_method`` if known."""
    for place in (config, config.get("text_config")):
        for key in ("quantization_config", "compression_config"):
            if declared := table_within(place, key):
                return declared
    for name, method in BESIDE.items():
        if (root / name).is_file():
            found = read_object(root / name, _OF_QUANTIZER)
            found = {**found, **table_within(found, "quantization")}
            renamed = {_OLD_KEYS.get(key, key): value for key, value in found.items()}
            return {"quant_method": "awq" if "w_bit" in found else method, **renamed}
    return {}


def settings_of(module: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Declared settings of one module, by its quantizer's rules.

    Raises:
        Conflict: it is declared that the module is not quantized.
    """
    groups = settings.get("config_groups")
    for key in ("dynamic", "extra_config"):  # of GPTQModel, of auto-round
        if isinstance(settings.get(key), dict):
            return {**settings, **_overrides(module, settings[key])}
    if not isinstance(groups, dict):
        return settings
    chosen = [group for group in groups.values() if isinstance(group, dict)]
    group = min(chosen, key=lambda group: _rank(module, _list(group.get("targets"))), default={})
    weights = table_within(group, "weights")
    form = group.get("format") or settings.get("format")
    blocks = {key: settings[key] for key in ("weight_block_size",) if key in settings}  # of FP8 beside the groups
    return {**blocks, **weights, "bits": weights.get("num_bits"), "format": form}


def _overrides(module: str, dynamic: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of the name, or of the first expression that matches.

    Sources: ``dynamic_get`` of GPTQModel's ``config.py``; ``get_layer_config`` of auto-round's ``convert_model.py``.
    """
    if isinstance(dynamic.get(module), dict):
        return cast(Mapping[str, Any], dynamic[module])
    for pattern, own in dynamic.items():
        if _matches(pattern.removeprefix("-:").removeprefix("+:"), module):
            if pattern.startswith("-:"):
                raise Conflict(f"quantization_config.dynamic says {quoted(pattern)}: not quantized")
            return table_within(own)
    return {}


def _rank(module: str, targets: Sequence[str]) -> int:
    """Rank of a target: names, then expressions, then classes."""
    if module in targets:
        return 0
    if any(_names(target, module) for target in targets):
        return 1
    return 2 if any(target.isidentifier() and target[0].isupper() for target in targets) else 3


def _list(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _names(entry: str, module: str) -> bool:
    """Whether an entry of a list of modules names this one."""
    if entry == module or f".{entry}." in f".{module}." or fnmatchcase(module, entry):
        return True
    return _matches(entry.removeprefix("re:"), module)


def _matches(expression: str, module: str) -> bool:
    return bool(_pattern(expression)(module))


@lru_cache(4096)
def _pattern(expression: str) -> Matcher:
    try:
        return compiled(expression, "quantization_config", Clock(code="quant.config"), "{}")
    except InputError:
        return lambda _: None


def check_ignored(settings: Mapping[str, Any], modules: Mapping[str, Any], faults: Faults) -> None:
    """Check that lists of unquantized modules name no quantized one.

    Modules that are not there may be listed: a head that is tied, a tower or layers that a derived model has not.
    """
    for key in _IGNORED:
        for entry in sorted({*_list(settings.get(key))} & {*modules}):
            faults.add(
                "quant.config", f"quantization_config.{key} names {quoted(entry)}, which is quantized", tensor=entry
            )


# Matrices that another quantizer packed: which stored arrays are one, and what the configuration says of them.
#
# The tensors are the truth: a packing is known by the names and types of its arrays, and ``quantization_config`` has to
# agree with them. Nothing but an index of groups is read of their data.

#: Suffixes that only packed modules have, and a type.
_OWN = tuple({s.removesuffix("?") for p in PACKINGS for s in p.arrays} - {".weight", ".scale", ".scales", *HQQ_BESIDE})
_POWERS = DTYPES["F8_E8M0"]

#: Where it is said that a matrix is another one times a rotation, which engines have to compute of activations, too.
_ROTATED = ("rotation_config", "transform_config")

_KNOWN = frozenset(method for packing in PACKINGS for method in packing.methods)

#: Packing, suffixes that a module cannot do without, and all: a checkpoint has a hundred thousand names to look up.
_SUFFIXES = tuple((packing, packing.required, packing.suffixes) for packing in PACKINGS)
_REQUIRED = tuple(sorted({suffix for _, required, _ in _SUFFIXES for suffix in required}))


class PackedModules(NamedTuple):
    """Packed modules of a checkpoint.

    Attributes:
        items: every tensor, packed or not, in order; each array of a module once. None where nothing is packed.
        packed: stored name of an array -> the matrix that it is part of.
        dropped: what is about activations.
        words: the quantizers and their types, for people; empty where nothing is quantized.
        unread: the same where there is something among it that cannot be read: then nothing is packed.
        notes: what a user should know of them.
    """

    items: Sequence[Item] = ()
    packed: Mapping[str, Tensor] = {}
    dropped: tuple[DroppedTensor, ...] = ()
    words: str = ""
    unread: str = ""
    notes: tuple[str, ...] = ()


def packed_items(
    stored: Sequence[StoredTensor], config: Mapping[str, Any], root: Path, headers: Sequence[Mapping[str, str]]
) -> PackedModules:
    """Group the stored arrays of a checkpoint.

    Args:
        headers: ``__metadata__`` of the files.
        root: the directory, for errors and for configurations of quantizers beside ``config.json``.

    Raises:
        InputError: ``quant.arrays`` or ``quant.config``, arrays do not fit together or the configuration.
    """
    settings = quantization_config(config, root)
    method = str(settings.get("quant_method") or "")
    # Of the many tensors that a checkpoint may have, most are of one that nobody packed.
    layers = described.layers_of(headers)
    own = any(tensor.name.endswith(_OWN) or tensor.dtype is _POWERS for tensor in stored)
    marked = layers is not None or (own and any(tensor.name.endswith(described.DESCRIPTION) for tensor in stored))
    method = method or described.COMFYUI * marked
    modules = dict(_modules(stored, method)) if own else {}
    if method in ("", described.COMFYUI):
        taken = {array.name for _, arrays in modules.values() for array in arrays.values()}
        lost = described.without_scale(stored, taken, layers or {})
        if lost:
            return PackedModules(words=lost, unread=lost)
        modules |= described.alone(stored, taken)
    for key in _ROTATED:
        if modules and settings.get(key):
            words = f"a model whose weights and activations are rotated ({key})"
            return PackedModules(words=words, unread=words)
    if not modules or (method and method not in _KNOWN):
        whole = [one for one in stored if one.dtype.kind is Kind.INTEGER]
        foreign = foreign_quantizer(stored, settings) or _bare_codes(whole)
        return PackedModules(words=foreign, unread=foreign)
    plain_items = [plain_item(tensor) for tensor in stored]
    faults = Faults(root)
    unread: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    packed: dict[str, Tensor] = {}
    items: dict[str, Item] = {}
    integers = _Integers()
    for module, (packing, arrays) in modules.items():
        name = module + packing.dense
        try:
            if method and method not in packing.methods:
                raise Conflict(
                    f"quantization_config says quant_method {quoted(method)}, and it is stored as {packing.name}"
                )
            header = _header_of(name, headers) if layers is None else described.facts_of(module, layers)
            pack_config = PackConfig(method, settings_of(module, settings), integers, header)
            found = check_bounded(packing.fit(arrays, pack_config))
        except Conflict as error:
            faults.add("quant.arrays", f"{quoted(module)}: {error}", tensor=name, hint=ORIGINAL)
            continue
        except Unread as error:
            unread[str(error)] += 1
            continue
        tensor = _tensor(name, found)
        kinds[f"{packing.name}, {found.words}"] += 1
        items[next(iter(arrays.values())).name] = Item(tensor, tuple(arrays.values()))
        packed |= {array.name: tensor for array in arrays.values()}
    integers.close()
    arrays_of_modules = {array.name for _, arrays in modules.values() for array in arrays.values()}
    rest = [tensor for tensor in stored if tensor.name not in arrays_of_modules]
    about = [tensor for tensor in rest if tensor.name.endswith(ACTIVATIONS)]
    for alone in rest:
        if alone.name.endswith(_OWN) or (alone.name.endswith(".scale") and alone.dtype is _POWERS):
            faults.add(
                "quant.arrays", f"{quoted(alone.name)} belongs to no quantized matrix", tensor=alone.name, hint=ORIGINAL
            )
    check_ignored(settings, modules, faults)
    faults.check()
    others = [tensor for tensor in rest if not tensor.name.endswith(ACTIVATIONS)]
    unnamed = (_bare_codes(rest), *(f"{n} of {what}" for what, n in unread.items()))
    foreign = foreign_quantizer(others, {}) or ", ".join(filter(None, unnamed))
    if foreign:
        return PackedModules(plain_items, words=foreign, unread=foreign)
    left = {tensor.name for tensor in about}
    named = [
        items.get(item.tensor.name) or (item if item.tensor.name not in packed else None)
        for item in plain_items
        if item.tensor.name not in left
    ]
    words = "; ".join(f"{kind}: {counted(n, 'matrix', 'matrices')}" for kind, n in kinds.items())
    dropped = tuple(DroppedTensor(tensor, NOT_WEIGHTS, copied=True) for tensor in about)
    bare = [
        array.name for packing, arrays in modules.values() if packing is described.ALONE for array in arrays.values()
    ]
    scaled = sum(bool(arrays.keys() & {".weight_scale", ".scale_weight"}) for _, arrays in modules.values())
    notes = tuple[str, ...]()
    if bare and scaled:
        few = f"{bare[0]} and {len(bare) - 1} more have" if len(bare) > 1 else f"{bare[0]} has"
        notes = (
            f"{few} no scale, beside {counted(scaled, 'matrix', 'matrices')} with one: codes are taken for values",
        )
    return PackedModules([item for item in named if item], packed, dropped, words, notes=notes)


def _header_of(name: str, headers: Sequence[Mapping[str, str]]) -> Mapping[str, Any]:
    """JSON object of the headers about a matrix; empty for anything else."""
    try:
        found = json.loads(next((header[name] for header in headers if name in header), "{}"))
    except (ValueError, RecursionError):
        found = {}
    return table_within(found)


def _tensor(name: str, found: Module) -> Tensor:
    """The matrix that a module is."""
    if found.unpack is None:
        assert isinstance(found.scheme, Triple)
        dtype = triple_type(found.scheme)
        planes = tuple(array.tensor for array in found.arrays if array is not None)
        return Tensor(name, name, dtype, found.shape, (), plain(*matrix_of(found.shape, dtype)), planes)
    kind = found.scheme
    dtype = triple_type(kind) if isinstance(kind, Triple) else packed_type(kind, found.shape[-1])
    rows, columns = matrix_of(found.shape, dtype)
    whole = PackedMatrix(rows, found.arrays, found.unpack)
    return Tensor(name, name, dtype, found.shape, (), plain(rows, columns), packed=(whole,))


def _modules(
    stored: Sequence[StoredTensor], method: str
) -> Iterator[tuple[str, tuple[Packing, dict[str, StoredTensor]]]]:
    """Name of a module -> its packing and its arrays by suffix."""
    by_name = {tensor.name: tensor for tensor in stored}
    seen: set[str] = set()
    for tensor in stored:
        if not tensor.name.endswith(_REQUIRED):
            continue
        for suffix in _REQUIRED:
            module = tensor.name.removesuffix(suffix)
            if module != tensor.name and module not in seen and (found := _found(module, by_name, method)):
                seen.add(module)
                yield module, found


def _found(
    module: str, by_name: Mapping[str, StoredTensor], method: str
) -> tuple[Packing, dict[str, StoredTensor]] | None:
    """Packing of the arrays; of several fitting ones the declared."""
    fitting = []
    there = {s for s in _REQUIRED if module + s in by_name}
    for packing, required, suffixes in _SUFFIXES:
        if not required <= there:
            continue
        if (packing.declared or method == described.COMFYUI) and method not in packing.methods:
            continue
        arrays = {s: by_name[module + s] for s in suffixes if module + s in by_name}
        if all(a.dtype in packing.types(s) for s, a in arrays.items()):
            if packing.like(arrays):
                return packing, arrays
            fitting.append((packing, arrays))
    return next((each for each in fitting if method in each[0].methods), next(iter(fitting), None))


class _Integers:
    """Reads small arrays of integers, of one file after the other."""

    def __init__(self) -> None:
        self._source: FileSource | None = None

    def __call__(self, stored: StoredTensor) -> Any:
        if stored.extent.nbytes > MAX_WHOLE:
            raise Unread(f"arrays of {stored.extent.nbytes:,} bytes for any row ({MAX_WHOLE:,} are read at once)")
        try:
            if self._source is None or self._source.path != stored.extent.path:
                self.close()
                self._source = open_source(stored.extent.path)
            data = self._source.read_whole(stored.extent.offset, stored.extent.nbytes)
        except (InputError, OutputError):  # there may be headers only
            return None
        return np.frombuffer(data, f"<i{stored.dtype.size}")

    def close(self) -> None:
        if self._source is not None:
            self._source.close()


#: Why tensors are left out that no part which thinks has: the talker's, and what makes sounds of its tokens.
_SPEAKS = "of the parts that speak, which no other format has"
_SPEAKING = ("talker.", "token2wav.", "code2wav.")

# -- Canonical index of a checkpoint's headers and configuration -------------------------------------------------------

#: Stored arrays, ``config.json`` and the path, for errors -> the tensors that they are.
Group = Callable[[Sequence[StoredTensor], Mapping[str, Any], Path], list[Item]]


def index_checkpoint(
    path: Path, checkpoint: CheckpointFiles, group: Group | None = None, drop: Sequence[str] = ()
) -> TensorIndex:
    """The index of headers and a configuration that were read.

    Args:
        group: which stored arrays are one matrix, in a checkpoint of MLX's.
        drop: globs of tensors that need not fit the family's rules.

    Raises:
        InputError: ``mlx.quant``.
    """
    config, mlx = checkpoint.config, group is not None
    whole = WHOLE in (config or {})
    architecture = str(config.get("model_type", "")) if config else ""
    if group is not None:
        found = PackedModules(group(checkpoint.tensors, config, path) if config is not None else [])
    else:
        found = packed_items(
            checkpoint.tensors, config or {}, checkpoint.root, [shard.metadata for shard in checkpoint.shards]
        )
    if found.packed and config is not None and (known := huggingface_family(config)) and sizes.has_transposed(known):
        # A quantizer may store what a Conv1D multiplies with as it is, or as that of a Linear, [out, in].
        found = PackedModules(words=found.words, unread=f"{found.words} of modules that are stored [in, out]")
    # Without the values of its matrices a model has no canonical tensors, whatever its family.
    drafter = drafter_of(config or {})
    is_model = config and not found.unread
    family = huggingface_family({**(config or {}), "called": _called(checkpoint)}) if is_model else None
    if family and drafter:
        asks = family.asks_target and not checkpoint.target
        family = None if asks or drafter not in family.in_huggingface.classes else family
    scheme = checkpoint.shards[0].metadata.get(NAMES_KEY, "hf")
    left = {item.stored.name for item in found.dropped}
    rest = tuple(stored for stored in checkpoint.tensors if stored.name not in left) if left else checkpoint.tensors
    model, canonical, misfit = FamilyFit(None, Canonical({}, {}, (), rest))
    if config is not None and family:
        known, model_config = family, unquantized(config) if found.packed else config
        model_config = model_config if mlx else without_stale(model_config, checkpoint.tensors)
        scheme = scheme if scheme in (*OTHER_SCHEMES, REFERENCE) else "mlx" if mlx else "hf"

        def made(globs: Sequence[str]) -> tuple[ModelConfig, Canonical]:
            consumer, stored = CONSUMERS["mlx" if mlx else "safetensors"], (*_named(found, checkpoint.tensors), *shared)
            stored = _of_class(stored, known, scheme) if scheme in OTHER_SCHEMES else stored
            stored = tuple(one for one in stored if one.name.startswith(THINKER)) if whole else stored
            model = huggingface_config(model_config, known, stored, path, consumer=consumer)
            items = [*(found.items or map(plain_item, checkpoint.tensors)), *map(plain_item, shared)]
            read = partial(
                canonicalize,
                items,
                known,
                scheme_names(known, scheme),
                model,
                bracketed_of(model),
                path=path,
                layers=f"the number of layers{bracketed(model, 'num_layers')}",
                drop=globs,
            )
            beside = text_key(model_config) or isinstance(model_config.get("vision_config"), dict)
            nested = NESTED if beside or architecture.endswith(TEXT_PART) else ()
            nested = (*_nested_in_mlx(model_config), *nested) if mlx else nested
            nested = (*nested, (THINKER, "")) if whole else nested
            canonical = read(nested=nested)
            heads = [tensor.source for tensor in canonical.tensors.values()]
            bare = all(parse(name).layer is None for name in canonical.tensors)
            for start in _starts(canonical.unknown) if bare else ():
                inner = read(nested=((start, ""),))
                if inner.tensors and not inner.unknown:
                    raise _prefixed(start, heads, known.name, path)
            for one in canonical.unknown:
                word = next((word for word in WRAPPERS if word in one.name), "")
                if word and not any(fnmatchcase(one.name, glob) for glob in globs):
                    message = f"names hold {quoted(word)}, as a model's within torch's wrapper do: {quoted(one.name)}"
                    hint = f"save the model itself, or its tensors under name.replace({word!r}, '')"
                    raise UnsupportedError("model.config", message, path=path, hint=hint)
            return model, _once(canonical, model, {tensor.name for tensor in shared})

        shared = [] if found.items else _shared(checkpoint)
        model, canonical, misfit = fitted(made, rest, drop)
    elif not (mlx or found.unread) and (diffusing := diffusion_of(checkpoint.tensors)):
        architecture = architecture or diffusing.name
        canonical = canonical_diffusion(diffusing, found.items or map(plain_item, checkpoint.tensors))
    of_whole = [one for one in canonical.unknown if one.name.startswith(_SPEAKING)] if whole else []
    speaking = [DroppedTensor(one, _SPEAKS, copied=True, name=one.name) for one in of_whole] if model else []
    gone = {item.stored.name for item in speaking}
    canonical = canonical._replace(
        dropped=(*canonical.dropped, *found.dropped, *speaking),
        unknown=[one for one in canonical.unknown if one.name not in gone] if gone else canonical.unknown,
    )
    index = TensorIndex(
        format="mlx" if mlx else "safetensors",
        version=0,
        path=path,
        files=tuple(shard.path for shard in checkpoint.shards),
        architecture=architecture,
        config=model,
        stored=checkpoint.tensors,
        **canonical._asdict(),
        metadata_kind=MetadataKind.DOCUMENT,
        metadata=_metadata(checkpoint),
        facts=_facts(checkpoint, config, found.words),
        packed=found.packed,
        quantizer=found.unread,
        side_files=checkpoint.side_files,
        target=checkpoint.target,
        shard_index=checkpoint.index_path,
        notes=(*checkpoint.notes, *found.notes, *_stale(config or {}, checkpoint.tensors, mlx=mlx), *notes_on(misfit)),
        misfit=misfit,
    )
    ranking = _embeddings(index, family.in_huggingface.embeddings) if family and model else {}
    return replace(index, tensors={**index.tensors, **ranking}) if ranking else index


def _nested_in_mlx(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Beginnings of names in mlx-vlm's class -> in the text model."""
    seeing = tower_of_document(document)
    row = seeing.engines.get(schema.MLX_VLM.row) if seeing else None
    yield from ((inside, start) for start, inside in (row.names if row else ()))


def with_modules(index: TensorIndex) -> TensorIndex:
    """Index with the linear layers of sentence-transformers' directories.

    They are those of the family, in its order, and nothing but a normalization is behind them (``build_dense_out`` of
    llama.cpp's ``llama-graph.cpp``).

    Raises:
        InputError: ``st.*``, ``model.config``, a file is malformed.
    """
    if index.config is None:
        return index
    family = FAMILIES[index.config.family]
    wanted = family.in_huggingface.modules
    if not wanted or not ends_with_layers(root_of(index), [*wanted.values()]):
        return index
    tensors, own = dict(index.tensors), dict(index.config.own)
    for name, folder in wanted.items():
        files = {path.name: path for path in index.part_files if path.parent.name == folder}
        if not files.keys() >= {CONFIG_NAME, "model.safetensors"}:
            continue
        settings, stored = (
            read_object(files[CONFIG_NAME], _DOCUMENT),
            read_safetensors(files["model.safetensors"]).tensors,
        )
        if computes_plainly(settings) and [one.name for one in stored] == [LINEAR] and len(stored[0].shape) == 2:
            meant = tuple(settings.get(key) for key in ("out_features", "in_features"))
            if meant != stored[0].shape:
                text = f"out_features and in_features are {meant}, and {LINEAR} beside it is {stored[0].shape}"
                raise InputError("model.config", text, path=files[CONFIG_NAME])
            linear = plain_tensor(name, stored[0])
            tensors[name] = replace(linear, source=f"{folder}/{linear.source}")
            module = name.removesuffix(".weight")
            sizes = {f"{module}_out": stored[0].shape[0], f"{module}_in": stored[0].shape[1]}
            own |= {name: size for name, size in sizes.items() if name in family.parameters}
    if len(tensors) == len(index.tensors):
        return index
    return replace(index, tensors=tensors, config=replace(index.config, own=own))


def _called(checkpoint: CheckpointFiles) -> str:
    """Names of a model: directory, configuration, titles of its card.

    Source: ``_is_qwen3_reranker`` of llama.cpp's ``conversion/qwen.py``, which knows a reranker by it.
    """
    titles = (line for line in text_of_card(checkpoint.side_files).splitlines() if line.startswith("# "))
    named = (checkpoint.root.name, str((checkpoint.config or {}).get("_name_or_path", "")), *titles)
    return "\n".join(named).lower()


def _named(found: PackedModules, stored: Sequence[StoredTensor]) -> Sequence[StoredTensor]:
    """Stored tensors, packed ones under their dense names."""
    if not found.packed:
        return stored
    whole = (
        StoredTensor(item.tensor.source, item.tensor.dtype, item.tensor.shape, item.stored[0].extent)
        for item in found.items
        if item.tensor.packed or item.tensor.planes
    )
    return (*(tensor for tensor in stored if tensor.name not in found.packed), *whole)


def _of_class(stored: Sequence[StoredTensor], family: schema.Family, scheme: str) -> tuple[StoredTensor, ...]:
    """Stored tensors under the names of the family's class."""
    named, written = scheme_names(family, scheme).stored, names_of(family, HF).written
    names = [parse(one.name) for one in stored]
    drafts = (one.layer or 0 for one in names if (row := named.get(one.pattern)) and ".draft." in row.canonical)
    first = min(drafts, default=0)

    def called(name: Name) -> str:
        found = named.get(name.pattern)
        own = written.get(found.canonical) if found is not None else None
        if own is None or own.parts[0].stack:
            return with_layer(name.pattern, name.layer).replace("{e}", str(name.expert))
        plain, canonical = with_layer(own.pattern, name.layer), with_layer(own.canonical, name.layer)
        return draft_name(plain, canonical, family, first) if ".draft." in canonical else plain

    return tuple(one._replace(name=called(name)) for one, name in zip(stored, names, strict=True))


def _starts(unknown: Sequence[StoredTensor]) -> Iterator[str]:
    """Common beginnings of names without a row, the shortest first."""
    names = [tensor.name for tensor in unknown] or [""]
    for at, (letter, other) in enumerate(zip(min(names), max(names), strict=False)):
        if letter != other:
            return
        if letter == ".":
            yield names[0][: at + 1]


def _prefixed(start: str, others: Sequence[str], family: str, path: Path) -> UnsupportedError:
    """Reason for names stored within another module's prefix."""
    but = f" but {quoted(others[0])}" if len(others) == 1 else " of a layer" if others else ""
    every = f"every name{but}"
    message = f"{every} starts with {quoted(start)}: without it they are those of {an(family)}"
    hint = f"save the model itself, or its tensors under name.removeprefix({start!r})"
    return UnsupportedError("model.config", message, path=path, hint=hint)


def _shared(checkpoint: CheckpointFiles) -> list[StoredTensor]:
    """Tensors that safetensors stores once for several names.

    The header's ``__metadata__`` says by which name (``_remove_duplicate_names`` of ``safetensors/torch.py``).
    """
    stored = {tensor.name: tensor for tensor in checkpoint.tensors}
    pairs = [item for shard in checkpoint.shards for item in shard.metadata.items()]
    return [stored[own]._replace(name=name) for name, own in pairs if own in stored and name not in stored]


def _once(canonical: Canonical, model: ModelConfig, shared: Container[str]) -> Canonical:
    """Embedding stored as a tied head alone, unknown names left out.

    transformers ties either to the other (``tie_weights``).
    """
    tensors, canonical_of = dict(canonical.tensors), dict(canonical.canonical_of)
    head, embedding = tensors.get(HEAD), tensors.get(EMBEDDING)
    if head is not None and model.tied is not False:
        tied = embedding is None and model.tied
        if tied or (embedding is not None and embedding.source in shared and embedding.extents == head.extents):
            tensors = {EMBEDDING if name == HEAD else name: it for name, it in tensors.items() if name != EMBEDDING}
            tensors[EMBEDDING] = replace(head, name=EMBEDDING)
            canonical_of[head.source] = (EMBEDDING,)
    return canonical._replace(
        tensors=tensors,
        canonical_of={name: names for name, names in canonical_of.items() if name not in shared},
        dropped=tuple(item for item in canonical.dropped if item.stored.name not in shared),
        unknown=tuple(stored for stored in canonical.unknown if stored.name not in shared),
    )


def _stale(config: Mapping[str, Any], stored: Sequence[StoredTensor], *, mlx: bool) -> Iterator[str]:
    """Whether config.json calls a checkpoint of floats quantized."""
    keys = [] if mlx else sorted(config.keys() - without_stale(config, stored).keys())
    if keys:
        yield f"config.json has {' and '.join(keys)}, and no tensor is quantized: nothing is taken from there"


def _metadata(checkpoint: CheckpointFiles) -> dict[str, Any]:
    """The headers' own ``__metadata__`` and the configuration, each key once."""
    header: dict[str, str] = {}
    for shard in checkpoint.shards:
        header.update(shard.metadata)
    return joined_metadata(header, checkpoint.config or {})


def _facts(checkpoint: CheckpointFiles, config: dict[str, Any] | None, quantizer: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": "model", "shards": len(checkpoint.shards)}
    if any(is_pickle(shard.path.name) for shard in checkpoint.shards):
        facts["saved_by"] = "torch.save"
    if checkpoint.side_files:
        facts["side_files"] = ", ".join(side.name for side in checkpoint.side_files)
    if quantizer:
        facts["quantizer"] = quantizer
    if config is None and not checkpoint.notes:
        facts["note"] = "no config.json: tensors keep the names of the file"
    return facts


# The tower of a checkpoint that sees, as an index of its own.

#: Files that say how pictures are prepared -> the table in them that says it where it is not the document; the later
#: one counts (``MmprojModel.__init__`` of llama.cpp's ``conversion/base.py``).
_SETTINGS = {"preprocessor_config.json": "media_proc_cfg", "processor_config.json": "image_processor"}
#: Format of a checkpoint -> whose names its tensors have: transformers', or mlx-vlm's.
_NAMES = {"safetensors": "hf", "mlx": "mlx"}

_DOCUMENT = Document("preprocessor's configuration", "model.config", "model.config", MAX_JSON)


def tower_index(index: TensorIndex, documents: Mapping[str, bytes] | None = None) -> TensorIndex:
    """The tower alone, of a checkpoint of text and tower.

    Args:
        documents: the contents of side files, where these are no files.

    Raises:
        UnsupportedError: ``tower.unknown``, there is none, or none that is known.
        InputError: ``model.config``; ``mlx.quant``.
    """
    document = document_of(index.metadata)
    family = tower_of_document(document) if index.format in _NAMES else None
    if family is None:
        whole = {**document, **(document.get(WHOLE) or {})}  # which speaks, too
        what = quoted(str(whole.get("model_type") or index.architecture))
        message = f"ckconv knows no tower of a {what}{llama_cpp_has('towers', classes_of(whole))}"
        raise UnsupportedError("tower.unknown", message, path=index.path)
    beside = [stored for stored in index.stored if is_beside_text(document, stored.name)]
    if not beside:
        message = "config.json says a tower, and no tensor of it is there"
        raise UnsupportedError("tower.unknown", message, path=index.path)
    source = parameters.ConfigSource({**document, parameters.PREPROCESSOR: _settings(index, documents)})
    tower = tower_parameters(family, source, index.path)
    items = mlx_items(beside, document, index.path) if index.format == "mlx" else map(plain_item, beside)
    found = tower_tensors(items, tower, _NAMES[index.format], index.path)
    embedded = _embeddings(index, family.in_huggingface.embeddings)
    return replace(
        index,
        config=None,
        stored=tuple(beside),
        **found._replace(tensors={**found.tensors, **embedded})._asdict(),
        packed={},
        side_files=(),
        facts={**index.facts, "kind": "mmproj"},
        tower=tower,
    )


def _embeddings(index: TensorIndex, wanted: Mapping[str, str | list[str]]) -> dict[str, Tensor]:
    """Rows of the text model's embedding or head that stand for tensors."""
    found = {}
    for name, tokens in wanted.items():
        listed = [tokens] if isinstance(tokens, str) else tokens
        whole = index.tensors.get(EMBEDDING if isinstance(tokens, str) or HEAD not in index.tensors else HEAD)
        if whole is None or whole.merge or whole.dtype.kind is not Kind.FLOAT or whole.layout.scale != 1.0:
            continue
        (count, width), ids = whole.shape, token_ids_beside(index, listed)
        rows, nbytes = [ids.get(token, -1) for token in listed], whole.dtype.nbytes(width)
        if not all(0 <= row < count for row in rows):
            continue
        shape = (width,) if isinstance(tokens, str) else (len(rows), width)
        extents = (one for row in rows for one in cut(whole.extents, row * nbytes, (row + 1) * nbytes))
        layout = plain(*matrix_of(shape, whole.dtype))
        found[name] = replace(whole, name=name, shape=shape, extents=tuple(extents), layout=layout)
    return found


def _settings(index: TensorIndex, documents: Mapping[str, bytes] | None) -> Mapping[str, Any]:
    """How pictures are prepared."""
    found: dict[str, Any] = {}
    for name, table in _SETTINGS.items():
        path = next((side for side in index.side_files if side.name == name), Path(index.path) / name)
        if (name in documents) if documents is not None else path.is_file():
            keys = read_object(path, _DOCUMENT) if documents is None else parse_object(documents[name], _DOCUMENT, path)
            found |= {**keys, **table_within(keys, table)}
    return found
