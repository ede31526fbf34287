"""Open models for programs: tensors, metadata and towers by name."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckconv.core.config import ModelConfig
from ckconv.core.late import NDArray, dataclass
from ckconv.core.layouts import WIDENS_TO_F32, DType
from ckconv.core.tensors import Identity, Tensor, TensorIndex, joined
from ckconv.errors import UnsupportedError, UsageError, counted, shown
from ckconv.formats import detect, format_of
from ckconv.io import as_path
from ckconv.io.files import Files

if TYPE_CHECKING:
    import numpy as np


# An open model as programs see it: tensors and metadata by name, read when they are asked for.


@dataclass(frozen=True, slots=True, repr=False)
class ModelTensor:
    """Tensor of an open model; data is read when it is asked for."""

    tensor: Tensor
    identities: Mapping[Path, Identity] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        return f"<ModelTensor {self.name}: {self.dtype}, {' x '.join(map(str, self.shape)) or 'a scalar'}>"

    @property
    def name(self) -> str:
        """The canonical name, or the file's own where there is no rule for it."""
        return self.tensor.name

    @property
    def source(self) -> str:
        """The name in the file."""
        return self.tensor.source

    @property
    def dtype(self) -> str:
        """The stored type: ``F32``, ``BF16``, ``Q4_K``."""
        return self.tensor.dtype.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Canonical shape in elements, outermost first."""
        return self.tensor.shape

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.tensor.nbytes

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 1

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = self.values()
        return values if dtype is None else values.astype(dtype, copy=False)

    def __getitem__(self, at: int | slice) -> NDArray[np.float32]:
        """Values of outermost rows, read alone: ``tensor[10:20]``."""
        count = len(self)
        if len(self.shape) < 2:
            part: NDArray[np.float32] = self.values()[at]
            return part
        if isinstance(at, slice):
            numbers = range(count)[at]
            start, stop = (min(numbers), max(numbers) + 1) if numbers else (0, 0)
            read = self._decoded(start, stop)
            return read[:: numbers.step]
        number = range(count)[at]
        one: NDArray[np.float32] = self._decoded(number, number + 1)[0]
        return one

    def rows(self) -> NDArray[np.uint8]:
        """Canonical rows as stored bytes, ``[rows, bytes of a row]``.

        Rows are un-permuted and un-packed; blocks stay as they are.

        Of blocks that hold values of several rows: the values, as float32.

        Raises:
            OutputError: ``input.changed``, the file is not what it was.
        """
        return self._rows()[0]

    def _rows(self, start: int = 0, stop: int | None = None) -> tuple[NDArray[np.uint8], DType]:
        from ckconv.io.rows import RowReader

        with Files(self.identities) as files:
            reader = RowReader(self.tensor, files)
            return reader.rows(start, self.tensor.layout.rows if stop is None else stop), reader.dtype

    def values(self) -> NDArray[np.float32]:
        """The canonical values, decoded exactly, in the tensor's shape.

        What a format adds to its values (1 to every norm of a Gemma in GGUF) is in them.

        Raises:
            UnsupportedError: ``tensor.values``, the type has no float32 values.
            OutputError: ``input.changed``, the file is not what it was.
        """
        return self._decoded(0, len(self))

    def _decoded(self, start: int, stop: int) -> NDArray[np.float32]:
        """Values of outermost rows ``start`` to ``stop``."""
        from ckconv.quant.convert import decodable, decode

        dtype = self.tensor.dtype
        if dtype not in WIDENS_TO_F32 and not decodable(dtype):
            raise UnsupportedError("tensor.values", f"{dtype} has no float32 values", tensor=self.name)
        whole = (start, stop) == (0, len(self))
        each = self.tensor.layout.rows // len(self) if not whole else 0
        rows = self._rows() if whole else self._rows(start * each, stop * each)
        return decode(*rows).reshape(stop - start, *self.shape[1:]) if not whole else decode(*rows).reshape(self.shape)


class Metadata(Mapping[str, Any]):
    """Key/value pairs of a file as Python values; arrays decode on access."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        value = getattr(value, "value", value)
        return value.decode() if hasattr(value, "decode") else value

    def type(self, key: str) -> str:
        """Type of a value in the file (``u32``, ``arr[i32]``); empty for none."""
        return str(getattr(self._values[key], "type", ""))

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Tensors(Mapping[str, ModelTensor]):
    """Tensors by canonical name, or by the name in the file."""

    def __init__(self, index: TensorIndex) -> None:
        self._tensors = {name: ModelTensor(tensor, index.identities) for name, tensor in index.everything.items()}

    def __getitem__(self, name: str) -> ModelTensor:
        if name in self._tensors:
            return self._tensors[name]
        found = next((tensor for tensor in self._tensors.values() if tensor.source == name), None)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class Model:
    """Open model of any format, headers only; ``index`` has all of it."""

    def __init__(self, index: TensorIndex) -> None:
        self.index = index
        self.metadata = Metadata(index.metadata)
        self.tensors: Mapping[str, ModelTensor] = Tensors(index)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open: files are read when values are asked for."""

    @property
    def format(self) -> str:
        """``gguf``, ``safetensors``, ``mlx`` or ``bump``."""
        return self.index.format

    @property
    def version(self) -> int:
        """The format's version, 0 where it has none."""
        return self.index.version

    @property
    def architecture(self) -> str:
        """The file's own word for it, empty where it has none."""
        return self.index.architecture

    @property
    def config(self) -> ModelConfig | None:
        """Canonical hyper-parameters; ``None`` for an unknown architecture."""
        return self.index.config

    def __repr__(self) -> str:
        what = f"{self.format} {self.architecture or 'model'}"
        return f"<{what} of {counted(len(self.tensors), 'tensor')}: {shown(self.index.path)}>"


# Choose text model, tower or both of a multimodal checkpoint, to match the other side of a comparison.


def seen_alike(a: TensorIndex, b: TensorIndex) -> tuple[TensorIndex, TensorIndex]:
    """Two models, each as the part that the other is."""
    if not _stored_otherwise(a, b):
        return seen_as(b, a), seen_as(a, b)
    from ckconv.formats.huggingface.read import with_tower

    both = with_tower(a), with_tower(b)
    return both if all(index.tower for index in both) else (a, b)


def _stored_otherwise(a: TensorIndex, b: TensorIndex) -> bool:
    """Whether two directories store a tower differently."""
    if format_of(a.format).single or format_of(b.format).single:
        return False
    one, other = ({stored.name for stored in index.stored if stored.name.endswith(".scales")} for index in (a, b))
    return a.format != b.format or (a.format == "mlx" and one != other)


def seen_as(other: TensorIndex, index: TensorIndex) -> TensorIndex:
    """The part of ``index`` that ``other`` is.

    Raises:
        UnsupportedError: ``tower.unknown``, ``other`` has a tower, and ``index`` none that is known.
        InputError: ``model.config``.
    """
    if _stored_otherwise(other, index):
        from ckconv.formats.huggingface.read import with_tower

        return with_tower(index) if with_tower(other).tower else index
    tower = other.facts.get("kind") == "mmproj"
    if not (tower or other.tower) or index.tower is not None or format_of(index.format).single:
        return index
    from ckconv.formats.huggingface.read import tower_index

    found = tower_index(index)
    return found if tower else joined(index, found)


def of_task(index: TensorIndex, task: str) -> TensorIndex:
    """The adapter of a task, or without ``task`` the model.

    Raises:
        UsageError: ``usage.flag``, it has none.
    """
    if not task:
        return index
    from ckconv.formats.safetensors.adapter import adapter_of_task

    return adapter_of_task(index, task)


def with_mmproj(index: TensorIndex, mmproj: str | os.PathLike[str]) -> TensorIndex:
    """A text model, and the tower that is a file of its own.

    Raises:
        UsageError: ``usage``, one of the two is something else.
        UnsupportedError: ``plan.refused``, both are towers; ``tower.unknown``.
        InputError: ``model.config``, the tower's tensors have other shapes than its keys give them.
    """
    tower = detect.open_index(as_path(mmproj))
    _check_one_tower([index, tower])
    if tower.tower is None or tower.config is not None:
        if tower.facts.get("kind") == "mmproj" or tower.architecture == "clip":
            from ckconv.formats.gguf.index import unknown_tower

            why = unknown_tower(tower.path)
            message = f"{shown(mmproj)} is a tower that is not known"
            raise UnsupportedError("tower.unknown", message, details=[why] if why else [])
        message = f"{shown(mmproj)} is no tower, but the second of two sources must be a tower (mmproj)"
        merged = [f" --adapter {shlex.quote(shown(each.path))}" for each in (index, tower) if each.adapter is not None]
        base = "BASE" if index.adapter is not None else shlex.quote(shown(index.path))
        hint = f"ckconv convert {base} DST{''.join(merged)} merges it" if tower.adapter is not None else None
        raise UsageError("usage", message, hint=hint)
    if index.config is None or not format_of(index.format).single:
        raise UsageError(
            "usage", f"{shown(index.path)} is not a text model of a format that keeps the tower in a file of its own"
        )
    return joined(index, tower)


def check_one_tower(paths: Sequence[str | os.PathLike[str]]) -> None:
    """Refuse more than one tower among files, which are opened.

    Raises:
        UnsupportedError: ``plan.refused``.
        InputError: one cannot be read.
    """
    _check_one_tower([detect.open_index(as_path(path)) for path in paths])


def _check_one_tower(indexes: Sequence[TensorIndex]) -> None:
    towers = [shown(index.path) for index in indexes if index.facts.get("kind") == "mmproj"]
    if len(towers) > 1:
        message = f"{', '.join(towers[:-1])} and {towers[-1]} are {len(towers)} towers, and a checkpoint has one"
        text = next((shown(index.path) for index in indexes if index.config is not None), "MODEL.gguf")
        hint = f"ckconv convert {text} {towers[0]} DST/ takes the first"
        raise UnsupportedError("plan.refused", message, hint=hint)


def check_alone(asked: Mapping[str, object]) -> None:
    """Refuse an operation for one source where a tower lies beside it.

    Args:
        asked: what it is called -> whether it is asked for.

    Raises:
        UsageError: ``usage.flag``.
    """
    for name, wanted in asked.items():
        if wanted:
            raise UsageError("usage.flag", f"{name} is for one source, and a text model and its tower are two")
