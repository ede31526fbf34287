"""Planning a GGUF of a model that diffuses: tensors under their own names, in their own order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from ckconv.core.dtypes import BF16, F32, DType
from ckconv.core.metadata import Value, scalar
from ckconv.core.tensors import StoredTensor, plain_tensor
from ckconv.families.diffusion import Diffusion, diffusion_of
from ckconv.families.gguf_metadata import type_keys
from ckconv.formats.gguf.entries import Entry
from ckconv.formats.gguf.plan import GgufPlanner

#: Tensors of so many elements and fewer are FP32, and those of one axis (``handle_tensors`` of city96's
#: ``tools/convert.py``); those of F16 stay what they are.
_SMALL = 1024
#: Axes of a tensor of ggml (``GGML_MAX_DIMS`` of ``ggml.h``).
_MOST_AXES = 4


class DiffusionPlanner(GgufPlanner):
    """Plans it."""

    @cached_property
    def _model(self) -> Diffusion:
        found = diffusion_of({stored.name for stored in self.index.stored})
        assert found is not None
        return found

    def _entries(self) -> list[Entry]:
        entries = []
        for stored in self.index.stored:
            if self.dropped(stored.name):
                self.leave_out(stored.name, "--drop", stored.extent.nbytes)
            elif any(part in stored.name for part in self._model.ignored):
                self.leave_out(stored.name, "no weight of the model", stored.extent.nbytes)
            elif len(stored.shape) > _MOST_AXES:
                axes = f"GGUF has tensors of {_MOST_AXES} axes at most, and {stored.name} has {len(stored.shape)}"
                self.refuse(axes, "--to safetensors copies the model as it is")
            else:
                tensor = plain_tensor(stored.name, stored)
                fp32 = stored.dtype in (F32, BF16) and self._is_full(stored)
                entries.append(Entry(stored.name, stored.name, (tensor,), stored.shape, tensor.layout, fp32))
        return entries

    def _is_full(self, stored: StoredTensor) -> bool:
        small = len(stored.shape) <= 1 or math.prod(stored.shape) <= _SMALL
        return small or any(part in stored.name for part in self._model.full)

    def _metadata(self, entries: Sequence[Entry], types: Sequence[DType]) -> dict[str, Value]:
        architecture = {"general.architecture": scalar("str", self._model.name)}
        return architecture | type_keys(self._file_type(entries, types))
