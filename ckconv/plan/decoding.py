"""The flag that decodes the blocks which a target refuses, and leaves those alone that it takes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from fnmatch import fnmatchcase

from ckconv.core.dtypes import DType
from ckconv.core.tensors import parse
from ckconv.quant.convert import decodable

#: Globs that a hint names at most.
_SHOWN = 3

#: The flags, where nothing is said of the tensors that are refused.
DECODE = "--dequantize decodes them to FP32, --decode GLOB only the ones it names"


def decode_hint(dtype: DType) -> str:
    """:data:`DECODE`, for blocks that have a decoder."""
    return DECODE if decodable(dtype) else ""


_IT, _THEM, _ALL = " decodes it to FP32", " decodes them to FP32", "--dequantize"


def decoding_hint(refused: Collection[str], kept: Collection[str]) -> str:
    """What to say of the tensors ``refused``.

    Args:
        refused, kept: names of quantised tensors that the target refuses, and of those that it takes.
    """
    them = len(refused) > 1
    if not kept:
        return _ALL + (_THEM if them else _IT)
    for globs in _globs(refused):
        if len(globs) <= _SHOWN and not any(fnmatchcase(name, glob) for name in kept for glob in globs):
            return decode(globs, several=them)
    return "--decode GLOB decodes to FP32 what it names, --dequantize every quantised tensor"


def decode(globs: Iterable[str], *, several: bool) -> str:
    """The flags that decode what the globs name, one matrix or ``several``."""
    return " ".join(f"--decode '{glob}'" for glob in globs) + (_THEM if several else _IT)


def joined(hints: Iterable[str]) -> list[str]:
    """The hints of several reasons, each flag once."""
    found: dict[str, str] = {}
    for hint in hints:
        flag = hint.removesuffix(_IT).removesuffix(_THEM)
        found[flag] = hint if found.get(flag, hint) == hint else flag + _THEM
    return list(found.values())


def _globs(names: Collection[str]) -> Iterator[list[str]]:
    """Globs that match all of ``names``: one for each name without its layer, or one for all."""
    yield sorted({parse(name).pattern.replace("{n}", "*").replace("{e}", "*") for name in names})
    roots = {name.partition(".")[0] for name in names}
    if len(roots) == 1:
        yield [f"{roots.pop()}.*"]
