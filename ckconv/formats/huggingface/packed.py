"""Matrices packed by another quantizer: arrays and declarations."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, cast

from ckconv.core.dtypes import DTYPES, Kind
from ckconv.core.layouts import plain
from ckconv.core.tensors import Dropped, Packed, StoredTensor, Tensor, matrix_of
from ckconv.errors import Faults, InputError, OutputError, counted, quoted
from ckconv.families.canonical import Item, plain_item
from ckconv.formats.safetensors.container import MAX_JSON
from ckconv.io.files import FileSource, open_source
from ckconv.io.json import Document, read_object
from ckconv.quant.mlx import Triple, triple_type
from ckconv.quant.packed import NOT_WEIGHTS, packed_type
from ckconv.quant.packings import ACTIVATIONS, PACKINGS, comfyui, hqq
from ckconv.quant.packings.module import MAX_WHOLE, Declared, Misfit, Module, Packing, Unread, check_bounded

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
    (".input_scale", "FP8"),
    (".weight_packed", "compressed-tensors"),
    ("._scale", "a scaled format"),
    ("._data", "a quanto format"),
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
    found = Counter(what for name in names for ending, what in FOREIGN_QUANTIZERS if name.endswith(ending))
    what, count = next(iter(found.most_common(1)), ("", 0))
    if method and method.lower() not in what.lower():
        count = sum(found.values()) or sum(tensor.dtype.kind is not Kind.FLOAT for tensor in tensors)
        what = "quantized numbers"
    if not count:
        return ""
    return f"{counted(count, 'tensor')} of {what}" + (f" (quant_method {quoted(method)})" if method else "")


# -- Matrices packed by another quantizer: arrays and declarations -----------------------------------------------------

# What the configuration declares of a quantization, wherever it says it, and of which modules.

#: Keys with names of modules that are not quantized.
_IGNORED = ("ignore", "modules_to_not_convert", "exclude_modules")

_DOCUMENT = Document("configuration of a quantizer", "quant.config", "quant.config", MAX_JSON)

#: Keys of AutoAWQ's own file -> those of ``quantization_config``.
_OLD_KEYS = {"w_bit": "bits", "q_group_size": "group_size"}

#: Configurations of quantizers beside ``config.json``, from which they were left out, and the method that they are of.
BESIDE = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}


def quantization_config(config: Mapping[str, Any], root: Path) -> Mapping[str, Any]:
    """The declared quantization, with ``quant_method`` if known."""
    text = config.get("text_config")
    for place in (config, text if isinstance(text, dict) else {}):
        for key in ("quantization_config", "compression_config"):
            if isinstance(place.get(key), dict) and place[key]:
                return cast(Mapping[str, Any], place[key])
    for name, method in BESIDE.items():
        if (root / name).is_file():
            found = read_object(root / name, _DOCUMENT)
            inner = found.get("quantization")
            found = {**found, **inner} if isinstance(inner, dict) else found
            renamed = {_OLD_KEYS.get(key, key): value for key, value in found.items()}
            return {"quant_method": "awq" if "w_bit" in found else method, **renamed}
    return {}


def settings_of(module: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Declared settings of one module, by its quantizer's rules.

    Raises:
        Misfit: it is declared that the module is not quantized.
    """
    groups = settings.get("config_groups")
    for key in ("dynamic", "extra_config"):  # of GPTQModel, of auto-round
        if isinstance(settings.get(key), dict):
            return {**settings, **_overrides(module, settings[key])}
    if not isinstance(groups, dict):
        return settings
    chosen = [group for group in groups.values() if isinstance(group, dict)]
    group = min(chosen, key=lambda group: _rank(module, _list(group.get("targets"))), default={})
    weights = group.get("weights")
    weights = weights if isinstance(weights, dict) else {}
    form = group.get("format") or settings.get("format")
    return {**weights, "bits": weights.get("num_bits"), "format": form}


def _overrides(module: str, dynamic: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of the name, or of the first expression that matches.

    Sources: ``dynamic_get`` of GPTQModel's ``config.py``; ``get_layer_config`` of auto-round's ``convert_model.py``.
    """
    if isinstance(dynamic.get(module), dict):
        return cast(Mapping[str, Any], dynamic[module])
    for pattern, own in dynamic.items():
        if _matches(pattern.removeprefix("-:").removeprefix("+:"), module):
            if pattern.startswith("-:"):
                raise Misfit(f"quantization_config.dynamic says {quoted(pattern)}: not quantized")
            return own if isinstance(own, dict) else {}
    return {}


def _rank(module: str, targets: Sequence[str]) -> int:
    """Rank of a target: names, then expressions, then classes."""
    if module in targets:
        return 0
    if any(_names(target, module) for target in targets):
        return 1
    return 2 if any(_is_class(target) for target in targets) else 3


def _is_class(entry: str) -> bool:
    return entry.isidentifier() and entry[0].isupper()


def _list(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _names(entry: str, module: str) -> bool:
    """Whether an entry of a list of modules names this one."""
    if entry == module or f".{entry}." in f".{module}." or fnmatchcase(module, entry):
        return True
    return _matches(entry.removeprefix("re:"), module)


def _matches(expression: str, module: str) -> bool:
    try:
        return re.match(expression, module) is not None
    except (re.error, RecursionError, OverflowError):
        return False


def check_ignored(
    settings: Mapping[str, Any], stored: Sequence[StoredTensor], modules: Mapping[str, Any], faults: Faults
) -> None:
    """Check that lists of unquantized modules name such modules.

    A head is listed by habit, tied or not; names of classes are about no module in particular.
    """
    paths = {tensor.name.rpartition(".")[0] for tensor in stored}
    paths |= {path.rpartition(".")[0] for path in paths}
    for key in _IGNORED:
        entries = _list(settings.get(key))
        named = [entry for entry in entries if entry != "lm_head" and not _is_class(entry)]
        if named and not any(_names(entry, path) for entry in entries for path in paths):
            what = f"quantization_config.{key} names no module that is there: {quoted(named[0])}"
            faults.add("quant.config", what, found=len(named))
        for entry in sorted({*entries} & {*modules}):
            faults.add(
                "quant.config", f"quantization_config.{key} names {quoted(entry)}, which is quantized", tensor=entry
            )


# Matrices that another quantizer packed: which stored arrays are one, and what the configuration says of them.
#
# The tensors are the truth: a packing is known by the names and types of its arrays, and ``quantization_config`` has to
# agree with them. Nothing but an index of groups is read of their data.

#: Types of a matrix that says nothing without its scales, in a checkpoint whose others have some.
_CODES = frozenset(DTYPES[name] for name in ("U8", "I8", "I32", "F8_E4M3", "F8_E5M2"))

#: Suffixes that only packed modules have, and a type.
_OWN = tuple({s.removesuffix("?") for p in PACKINGS for s in p.arrays} - {".weight", ".scale", ".scales", *hqq.BESIDE})
_POWERS = DTYPES["F8_E8M0"]

#: Where it is said that a matrix is another one times a rotation, which engines have to compute of activations, too.
_ROTATED = ("rotation_config", "transform_config")

_KNOWN = frozenset(method for packing in PACKINGS for method in packing.methods)

#: Packing, suffixes that a module cannot do without, and all: a checkpoint has a hundred thousand names to look up.
_SUFFIXES = tuple((packing, packing.required, packing.suffixes) for packing in PACKINGS)
_REQUIRED = tuple(sorted({suffix for _, required, _ in _SUFFIXES for suffix in required}))


class Found(NamedTuple):
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
    dropped: tuple[Dropped, ...] = ()
    words: str = ""
    unread: str = ""
    notes: tuple[str, ...] = ()


def packed_items(
    stored: Sequence[StoredTensor], config: Mapping[str, Any], root: Path, headers: Sequence[Mapping[str, str]]
) -> Found:
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
    layers = comfyui.layers_of(headers)
    own = any(tensor.name.endswith(_OWN) or tensor.dtype is _POWERS for tensor in stored)
    marked = layers is not None or (own and any(tensor.name.endswith(comfyui.SAID) for tensor in stored))
    method = method or comfyui.METHOD * marked
    modules = dict(_modules(stored, method)) if own else {}
    if method in ("", comfyui.METHOD):
        taken = {array.name for _, arrays in modules.values() for array in arrays.values()}
        lost = comfyui.without_scale(stored, taken, layers or {})
        if lost:
            return Found(words=lost, unread=lost)
        modules |= comfyui.alone(stored, taken)
    for key in _ROTATED:
        if modules and settings.get(key):
            words = f"a model whose weights and activations are rotated ({key})"
            return Found(words=words, unread=words)
    if not modules or (method and method not in _KNOWN):
        foreign = foreign_quantizer(stored, settings)
        return Found(words=foreign, unread=foreign)
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
                raise Misfit(
                    f"quantization_config says quant_method {quoted(method)}, and it is stored as {packing.name}"
                )
            header = _said_of(name, headers) if layers is None else comfyui.said_of(module, layers)
            said = Declared(method, settings_of(module, settings), integers, header)
            found = check_bounded(packing.fit(arrays, said))
        except Misfit as error:
            faults.add("quant.arrays", f"{quoted(module)}: {error}", tensor=name)
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
    codes = [one for one in rest if one.name.endswith(".weight") and len(one.shape) > 1 and one.dtype in _CODES]
    if codes:
        unread[f"codes without scales ({codes[0].name})"] += len(codes)
    for alone in rest:
        if alone.name.endswith(_OWN) or (alone.name.endswith(".scale") and alone.dtype is _POWERS):
            faults.add("quant.arrays", f"{quoted(alone.name)} belongs to no quantized matrix", tensor=alone.name)
    check_ignored(settings, stored, modules, faults)
    faults.check()
    others = [tensor for tensor in rest if not tensor.name.endswith(ACTIVATIONS)]
    foreign = foreign_quantizer(others, {}) or ", ".join(f"{n} of {what}" for what, n in unread.items())
    if foreign:
        return Found(plain_items, words=foreign, unread=foreign)
    left = {tensor.name for tensor in about}
    named = [
        items.get(item.tensor.name) or (item if item.tensor.name not in packed else None)
        for item in plain_items
        if item.tensor.name not in left
    ]
    words = "; ".join(f"{kind}: {counted(n, 'matrix', 'matrices')}" for kind, n in kinds.items())
    dropped = tuple(Dropped(tensor, NOT_WEIGHTS, copied=True) for tensor in about)
    bare = [array.name for packing, arrays in modules.values() if packing is comfyui.ALONE for array in arrays.values()]
    scaled = sum(bool(arrays.keys() & {".weight_scale", ".scale_weight"}) for _, arrays in modules.values())
    notes = tuple[str, ...]()
    if bare and scaled:
        few = f"{bare[0]} and {len(bare) - 1} more have" if len(bare) > 1 else f"{bare[0]} has"
        notes = (
            f"{few} no scale, beside {counted(scaled, 'matrix', 'matrices')} with one: codes are taken for values",
        )
    return Found([item for item in named if item], packed, dropped, words, notes=notes)


def _said_of(name: str, headers: Sequence[Mapping[str, str]]) -> Mapping[str, Any]:
    """JSON object of the headers about a matrix; empty for anything else."""
    try:
        found = json.loads(next((header[name] for header in headers if name in header), "{}"))
    except (ValueError, RecursionError):
        found = {}
    return found if isinstance(found, dict) else {}


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
    whole = Packed(rows, found.arrays, found.unpack)
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
        if (packing.declared or method == comfyui.METHOD) and method not in packing.methods:
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
        import numpy as np

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
