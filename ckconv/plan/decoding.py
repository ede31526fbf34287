"""The flag that decodes the blocks which a target refuses, and leaves those alone that it takes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase

from ckconv.core.names import parse

#: Globs that a hint names at most.
_SHOWN = 3


def decoding_hint(refused: Collection[str], kept: Collection[str]) -> str:
    """What to say of the tensors ``refused``.

    Args:
        refused, kept: names of quantised tensors that the target refuses, and of those that it takes.
    """
    them = "it" if len(refused) == 1 else "them"
    if not kept:
        return f"--dequantize decodes {them} to FP32"
    for globs in _globs(refused):
        if len(globs) <= _SHOWN and not any(fnmatchcase(name, glob) for name in kept for glob in globs):
            flags = " ".join(f"--decode '{glob}'" for glob in globs)
            return f"{flags} decodes {them} to FP32"
    return "--decode GLOB decodes to FP32 what it names, --dequantize every quantised tensor"


def _globs(names: Collection[str]) -> Iterator[list[str]]:
    """Globs that match all of ``names``: one for each name without its layer, or one for all."""
    yield sorted({parse(name).pattern.replace("{n}", "*").replace("{e}", "*") for name in names})
    roots = {name.partition(".")[0] for name in names}
    if len(roots) == 1:
        yield [f"{roots.pop()}.*"]
