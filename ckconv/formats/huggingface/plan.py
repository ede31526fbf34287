"""Planning a checkpoint as transformers loads it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ckconv.core.dtypes import BF16, DTYPES, DType
from ckconv.core.names import parse
from ckconv.core.tensors import Tensor
from ckconv.families.loaders import TRANSFORMERS
from ckconv.families.names import HF, names_of
from ckconv.formats.safetensors.checkpoint import CheckpointPlanner
from ckconv.formats.safetensors.checkpoint_pieces import BLOCKS
from ckconv.plan.pieces import Module
from ckconv.quant.mlx import Quantization, Triple
from ckconv.quant.triples import triple_type

#: Blocks and scales of transformers' ``mxfp4``: the same numbers as ggml's and MLX's.
_MXFP4 = Triple(Quantization("mxfp4", 4, 32), BF16)


class HuggingFacePlanner(CheckpointPlanner):
    """What the classes of transformers load."""

    format = "safetensors"
    loader = TRANSFORMERS
    scheme = "hf"
    written_by = "pt"
    always_index = False
    library = "transformers"

    def _block_type(self, tensor: Tensor) -> DType:
        """Blocks of MXFP4 stay what they are where the family's class has them."""
        return triple_type(_MXFP4) if self.in_blocks(tensor) else super()._block_type(tensor)

    def in_blocks(self, tensor: Tensor) -> bool:
        """The family's class has the tensor in blocks, and it is of that type."""
        assert self.family is not None
        known = self.options.names == HF and parse(tensor.name).pattern in names_of(self.family, HF).packed
        return known and tensor.dtype in (triple_type(_MXFP4), DTYPES["MXFP4"]) and not self.decoded(tensor)

    def _quantization(self, modules: Sequence[Module]) -> dict[str, Any] | None:
        packed = {module[0].name.removesuffix(BLOCKS[0]) for module in modules if module[0].module is not None}
        if not packed:
            return None
        dense = (module[0].name for module in modules if module[0].module is None and len(module[0].shape) > 1)
        paths = (name.removesuffix(".weight") for name in dense if name.endswith(".weight"))
        return {"modules_to_not_convert": _outside(paths, packed), "quant_method": "mxfp4"}


def _outside(paths: Iterable[str], packed: Iterable[str]) -> list[str]:
    """The shortest paths that lead to these modules and to none of the packed ones; ``*`` for the layers."""
    above = {start for path in packed for start in _starts(path)}
    return list(dict.fromkeys(next(start for start in _starts(path) if start not in above) for path in paths))


def _starts(path: str) -> list[str]:
    words = ["*" if word.isdecimal() else word for word in path.split(".")]
    return [".".join(words[:depth]) for depth in range(1, len(words) + 1)]
