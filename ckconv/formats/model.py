"""An open model as programs see it: tensors and metadata by name, read when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckconv.core.config import ModelConfig
from ckconv.core.tensors import Identity, Tensor, TensorIndex
from ckconv.errors import counted, shown
from ckconv.io.files import Files

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckconv.core.dtypes import DType


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """One tensor of an open model; its data is read when it is asked for."""

    tensor: Tensor
    identities: Mapping[Path, Identity] = field(default_factory=dict, repr=False)

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

    def rows(self) -> NDArray[np.uint8]:
        """The canonical rows as stored bytes, ``[rows, bytes of a row]``: un-permuted, un-packed, blocks as they are.

        Of blocks that hold values of several rows: the values, as float32.

        Raises:
            OutputError: ``input.changed``, the file is not what it was.
        """
        return self._rows()[0]

    def _rows(self) -> tuple[NDArray[np.uint8], DType]:
        from ckconv.io.rows import RowReader

        with Files(self.identities) as files:
            reader = RowReader(self.tensor, files)
            return reader.rows(0, self.tensor.layout.rows), reader.dtype

    def values(self) -> NDArray[np.float32]:
        """The canonical values, decoded exactly, in the tensor's shape.

        What a format adds to its values (1 to every norm of a Gemma in GGUF) is in them.

        Raises:
            UnsupportedError: ``tensor.values``, the type has no float32 values.
            OutputError: ``input.changed``, the file is not what it was.
        """
        from ckconv.core.dtypes import WIDENS_TO_F32
        from ckconv.errors import UnsupportedError
        from ckconv.quant.convert import decodable, decode

        dtype = self.tensor.dtype
        if dtype not in WIDENS_TO_F32 and not decodable(dtype):
            raise UnsupportedError("tensor.values", f"{dtype} has no float32 values", tensor=self.name)
        return decode(*self._rows()).reshape(self.shape)


class Metadata(Mapping[str, Any]):
    """A file's own key/value pairs as Python values. An array of a GGUF is decoded when its key is asked for."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        value = getattr(value, "value", value)
        return value.decode() if hasattr(value, "decode") else value

    def type(self, key: str) -> str:
        """The type that the file gives a value (``u32``, ``str``, ``arr[i32]``); empty where it gives none."""
        return str(getattr(self._values[key], "type", ""))

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Model:
    """A model of any format, opened: headers only. ``index`` is everything that is known of it."""

    def __init__(self, index: TensorIndex) -> None:
        self.index = index
        self.metadata = Metadata(index.metadata)
        self.tensors: Mapping[str, ModelTensor] = {
            name: ModelTensor(t, index.identities) for name, t in index.everything.items()
        }

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
        """Canonical hyper-parameters, ``None`` where the architecture is not known."""
        return self.index.config

    def __repr__(self) -> str:
        what = f"{self.format} {self.architecture or 'model'}"
        return f"<{what} of {counted(len(self.tensors), 'tensor')}: {shown(self.index.path)}>"
