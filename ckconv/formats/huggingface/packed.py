"""Matrices that another quantiser packed: which stored arrays are one, and what the configuration says of them.

The tensors are the truth: a packing is known by the names and types of its arrays, and ``quantization_config`` has to
agree with them. Nothing but an index of groups is read of their data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ckconv.core.layouts import plain
from ckconv.core.tensors import Dropped, Packed, StoredTensor, Tensor, matrix_of
from ckconv.errors import Faults, InputError, OutputError, counted, quoted
from ckconv.families.canonical import Item, plain_item
from ckconv.families.huggingface_tensors import foreign_quantizer
from ckconv.formats.huggingface.packed_settings import check_ignored, quantization_config, settings_of
from ckconv.io.bytesource import FileSource, open_source
from ckconv.quant.mlx import Triple
from ckconv.quant.packed import NOT_WEIGHTS, Scheme, packed_type
from ckconv.quant.packings import ACTIVATIONS, PACKINGS, Declared, Misfit, Module, Packing, Unread
from ckconv.quant.triples import triple_type

#: Suffixes that only packed modules have.
_OWN = tuple({s.removesuffix("?") for p in PACKINGS for s in p.arrays} - {".weight", ".scales"})

_KNOWN = frozenset(method for packing in PACKINGS for method in packing.methods)


class Found(NamedTuple):
    """What the arrays of a checkpoint are.

    Attributes:
        items: every tensor, packed or not, in order; each array of a module once. None where nothing is packed.
        packed: stored name of an array -> the matrix that it is part of.
        dropped: what is about activations.
        words: the quantisers and their types, for people; empty where nothing is quantised.
        unread: the same where there is something among it that cannot be read: then nothing is packed.
    """

    items: Sequence[Item] = ()
    packed: Mapping[str, Tensor] = {}
    dropped: tuple[Dropped, ...] = ()
    words: str = ""
    unread: str = ""


def packed_items(stored: Sequence[StoredTensor], config: Mapping[str, Any], root: Path) -> Found:
    """Group the stored arrays of a checkpoint.

    Args:
        root: the directory, for errors and for configurations of quantisers beside ``config.json``.

    Raises:
        InputError: ``quant.arrays`` or ``quant.config``, arrays do not fit together or the configuration.
    """
    settings = quantization_config(config, root)
    method = str(settings.get("quant_method") or "")
    # Of the many tensors that a checkpoint may have, most are of one that nobody packed.
    modules = dict(_modules(stored, method)) if any(tensor.name.endswith(_OWN) for tensor in stored) else {}
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
            found = packing.fit(arrays, Declared(method, settings_of(module, settings), integers))
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
    for alone in rest:
        if alone.name.endswith(_OWN):
            faults.add("quant.arrays", f"{quoted(alone.name)} belongs to no quantised matrix", tensor=alone.name)
    check_ignored(settings, stored, modules, faults)
    faults.check()
    others = [tensor for tensor in rest if tensor not in about]
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
    return Found([item for item in named if item], packed, dropped, words)


def _tensor(name: str, found: Module) -> Tensor:
    """The matrix that a module is."""
    if found.unpack is None:
        assert isinstance(found.scheme, Triple)
        dtype = triple_type(found.scheme)
        planes = tuple(array.tensor for array in found.arrays if array is not None)
        return Tensor(name, name, dtype, found.shape, (), plain(*matrix_of(found.shape, dtype)), planes)
    assert isinstance(found.scheme, Scheme)
    dtype = packed_type(found.scheme, found.shape[-1])
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
        for packing in PACKINGS:
            for suffix in packing.required:
                module = tensor.name.removesuffix(suffix)
                if module != tensor.name and module not in seen and (found := _found(module, by_name, method)):
                    seen.add(module)
                    yield module, found


def _found(
    module: str, by_name: Mapping[str, StoredTensor], method: str
) -> tuple[Packing, dict[str, StoredTensor]] | None:
    """The packing that the arrays look like; of those with these names and types the declared one, if none does."""
    fitting = []
    for packing in PACKINGS:
        if packing.declared and method not in packing.methods:
            continue
        arrays = {s: by_name[module + s] for s in packing.suffixes if module + s in by_name}
        if packing.required <= arrays.keys() and all(a.dtype in packing.types(s) for s, a in arrays.items()):
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
