"""Read a state dict of ``torch.save`` without executing its pickle.

No value is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ckconv.core.tensors import Extent, StoredTensor
from ckconv.errors import Faults, InputError, UnsupportedError, quoted
from ckconv.formats.pytorch.archive import read_saved
from ckconv.formats.pytorch.spec import CONTAINERS, MAX_TENSORS
from ckconv.formats.pytorch.unpickle import Malformed, View
from ckconv.formats.safetensors.container import SafetensorsFile
from ckconv.formats.safetensors.spec import MAX_DIMS, MAX_NAME, PICKLE_METADATA
from ckconv.io.files import ByteSource, open_source


def read_pytorch(path: Path, *, source: ByteSource | None = None) -> SafetensorsFile:
    """The tensors of a state dict, in the order of their values.

    Args:
        path: the file, also where ``source`` is given.
        source: what to read from; left open.

    Raises:
        InputError: ``pt.pickle``, it is malformed, or its pickle names what makes no tensor; ``pt.tensor``, a tensor
            lies outside of its storage; and those of ``open_source``.
        UnsupportedError: ``pt.content``, it holds other things than tensors, or tensors that are views with gaps.
    """
    opened = open_source(path) if source is None else source
    try:
        saved = read_saved(opened)
    except Malformed as error:
        raise InputError("pt.pickle", str(error), path=path) from None
    finally:
        if source is None:
            opened.close()
    value = _model(saved.value, path)
    if not isinstance(value, dict) or not value:
        what = "no tensors" if value == {} else f"a {type(value).__name__}, not a dict of tensors"
        raise UnsupportedError("pt.content", f"holds {what}", path=path)
    if len(value) > MAX_TENSORS:
        message = f"lists {len(value):,} tensors; {MAX_TENSORS:,} are allowed"
        raise InputError("pt.pickle", message, path=path, found=len(value), allowed=MAX_TENSORS)
    tensors, faults = [], Faults(path)
    for name, view in value.items():
        if not isinstance(name, str) or not isinstance(view, View):
            what = "a tensor" if isinstance(view, View) else f"a {type(view).__name__}"
            raise UnsupportedError(
                "pt.content", f"holds {what} under {quoted(str(name))}, not only tensors by name", path=path
            )
        stored = _stored(name, view, saved.storages.get(view.storage.key), faults)
        if stored:
            tensors.append(stored)
    faults.check()
    tensors.sort(key=lambda stored: stored.extent.offset)
    return SafetensorsFile(path, PICKLE_METADATA, tuple(tensors), 0, 0, opened.size)


def _model(value: Any, path: Path) -> Any:
    """The model within the state of a training run; else the value itself."""
    held = [value[key] for key in CONTAINERS if key in value] if isinstance(value, dict) else []
    found = next((each for each in held if isinstance(each, dict) and each and _tensors(each)), value)
    if found is not value and value.get("param_shapes") and not all(0 not in view.shape for view in found.values()):
        message, hint = "holds no values of the model, which DeepSpeed has cut", "name the directory that it is in"
        raise UnsupportedError("pt.content", message, path=path, hint=hint)
    return found


def _tensors(value: dict[Any, Any]) -> bool:
    return all(isinstance(view, View) for view in value.values())


def extent_of(name: str, view: View, held: Extent | None, path: Path) -> Extent:
    """The run of bytes that a tensor is.

    Raises:
        InputError: ``pt.tensor``.
        UnsupportedError: ``pt.content``.
    """
    faults = Faults(path)
    stored = _stored(name, view, held, faults)
    faults.check()
    assert stored is not None
    return stored.extent


def _stored(name: str, view: View, held: Extent | None, faults: Faults) -> StoredTensor | None:
    """Tensor as a run of bytes; ``None`` with a fault noted where it is none."""
    storage, dtype = view.storage, view.dtype
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME or len(view.shape) > MAX_DIMS:
        faults.add("pt.tensor", f"tensor {quoted(name)} has too long a name, or too many dimensions", tensor=name)
        return None
    elements, strides = 1, []
    for length in reversed(view.shape):
        strides.append(elements)
        elements *= length
    start = view.offset * dtype.size
    nbytes = elements * dtype.size
    declared = storage.elements * (storage.dtype.size if storage.dtype else 1)
    if held is None or held.nbytes < declared or start + nbytes > declared:
        there = "is missing" if held is None else f"has {held.nbytes:,} bytes"
        faults.add(
            "pt.tensor",
            f"tensor {quoted(name)} needs bytes {start:,} to {start + nbytes:,} of a storage that {there}",
            tensor=name,
        )
        return None
    apart = any(
        length > 1 and stride != wanted
        for length, stride, wanted in zip(view.shape, view.strides, reversed(strides), strict=True)
    )
    if apart and elements:
        raise UnsupportedError(
            "pt.content",
            f"tensor {quoted(name)} is a view whose values do not lie one after the other",
            path=held.path,
            tensor=name,
            hint="save it contiguous (torch: tensor.contiguous())",
        )
    return StoredTensor(name, dtype, view.shape, Extent(held.path, held.offset + start, nbytes))
