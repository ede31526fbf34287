"""Tensors of one number that are a metadata key in GGUF: an array with the number of every layer (xIELU's)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ckconv.core.config import ModelConfig
from ckconv.core.dtypes import F32
from ckconv.core.layouts import plain
from ckconv.core.metadata import Value, array
from ckconv.core.tensors import Extent, Tensor, TensorIndex, parse, with_layer
from ckconv.errors import InputError
from ckconv.families import axes as shapes
from ckconv.families.names import canonical_pattern
from ckconv.families.schema import Family
from ckconv.families.sizes import Sizes
from ckconv.formats.gguf.read import ArrayRef, GgufFile
from ckconv.io.files import Files


def key_patterns(family: Family) -> dict[str, str]:
    """Canonical pattern of such a tensor -> its key."""
    rows = (row for row in family.tensors.values() if row.key)
    return {canonical_pattern(family, row.name, "" if row.whole_name else "weight"): row.key for row in rows}


def tensors_of_keys(file: GgufFile, family: Family, config: ModelConfig) -> Iterator[Tensor]:
    """The tensors that a file's keys are, where their numbers lie in the header.

    Raises:
        InputError: ``model.config``, a key has another type, or not a number a layer.
    """
    sizes = Sizes(family, config.scope)
    for row in (row for row in family.tensors.values() if row.key):
        found = file.metadata.get(row.key)
        if found is None:
            continue
        numbers, count = found.value, sizes.layers(row)
        if not isinstance(numbers, ArrayRef) or numbers.type != "f32" or numbers.count != count:
            raise InputError("model.config", f"{row.key} must be a list of {count:,} numbers (f32)", path=file.path)
        pattern = canonical_pattern(family, row.name, "" if row.whole_name else "weight")
        shape = shapes.sizes(row.axes, sizes.of(row, None))
        for layer in range(count):
            extent = Extent(file.files[0], numbers.offset + layer * F32.size, F32.size)
            yield Tensor(with_layer(pattern, layer), f"{row.key}[{layer}]", F32, shape, (extent,), plain(1, 1))


def keys_of_tensors(index: TensorIndex, family: Family) -> Mapping[str, Value]:
    """The keys that a model's tensors are."""
    patterns = key_patterns(family)
    numbers: dict[str, dict[int, float]] = {}
    if patterns:
        from ckconv.io.rows import RowReader
        from ckconv.quant.codec import to_float32

        with Files(index.identities) as files:
            for tensor in index.tensors.values():
                name = parse(tensor.name)
                if name.pattern in patterns and name.layer is not None:
                    [[number]] = to_float32(RowReader(tensor, files).rows(0, 1), tensor.dtype)
                    numbers.setdefault(patterns[name.pattern], {})[name.layer] = float(number)
    return {key: array("f32", [layers[n] for n in sorted(layers)]) for key, layers in numbers.items()}
