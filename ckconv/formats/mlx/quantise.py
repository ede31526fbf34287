"""``--quantize`` for MLX: which module gets what, as in ``quantize_model`` of mlx-lm's ``utils.py``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ckconv.core.dtypes import BF16, DType
from ckconv.errors import InputError, UsageError
from ckconv.plan.quantising import FLOATS, Asked, parsed
from ckconv.quant.mlx import MODES, Quantization, Triple, quantization
from ckconv.quant.triples import triple_type

#: Of the sizes that triples may have, those that MLX quantises to (``mlx.core.quantize``).
_BITS, _GROUPS = (1, 2, 3, 4, 5, 6, 8), (32, 64, 128)

#: What mlx-lm's classes ask for single modules.
EIGHT = Quantization("affine", 8, 64)


@cache
def _modules() -> Mapping[str, Mapping[str, list[str]]]:
    return tomllib.loads(Path(__file__).with_name("modules.toml").read_text("utf-8"))


def asked_of(text: str) -> Asked:
    """What the flag says.

    Raises:
        UsageError: ``usage.quantize``, MLX has no such type.
    """
    asked = parsed(text)
    for word in (asked.word, *(word for _, word in asked.rules)):
        if word not in FLOATS:
            quantization_of(word, text)
    return asked


def quantization_of(word: str, text: str) -> Quantization:
    """``affine:4:64``, ``mxfp4``.

    Raises:
        UsageError: ``usage.quantize``.
    """
    mode, *sizes = word.split(":")
    numbers = [int(size) if size.isdecimal() and len(size) < 5 else -1 for size in sizes]
    wanted = "affine:BITS:GROUP, mxfp4, mxfp8 or nvfp4"
    if mode not in MODES or len(numbers) not in (0, 2) or (mode == "affine") != (len(numbers) == 2):
        raise UsageError("usage.quantize", f"--quantize {text}: {word} is not a type of MLX; {wanted} expected")
    try:
        found = quantization(mode, *numbers)
    except InputError as error:
        raise UsageError("usage.quantize", f"--quantize {text}: {error.message}") from error
    if mode == "affine" and (found.bits not in _BITS or found.group_size not in _GROUPS):
        message = f"--quantize {text}: MLX quantises to 1, 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128"
        raise UsageError("usage.quantize", message)
    return found


def default_of(module: str, model_type: str, general: Quantization, columns: int) -> Quantization | None:
    """What mlx-lm makes of a module that nobody named; ``None`` where it stays as it is."""
    if not general.divides(columns) or _is_among("dense", module, model_type):
        return None
    return EIGHT if _is_among("eight", module, model_type) else general


def _is_among(kind: str, module: str, model_type: str) -> bool:
    ends = _modules()[kind].get(model_type, ())
    return any(module == end or module.endswith(f".{end}") for end in ends)


def type_of(q: Quantization, number: DType) -> DType:
    """The block type; ``number`` is that of affine scales and biases."""
    return triple_type(Triple(q, number if q.has_biases else BF16))
