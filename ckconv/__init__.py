"""Convert model weights between formats, exactly, and back.

Each name is imported when it is first used; ``help(ckconv.convert)`` tells more.

    open_model(path)               a model: format, config, metadata, tensors with values
    convert(source, target)        write it in another format, verified; target may be a file object
    iter_tensors(source, to="mlx") (name, array) in a target's names and order, without files
    dry_run(source, target)        the plan of a conversion: sizes, notes, refusals
    targets(path)                  format -> why it cannot hold the model
    verify(path, source)           checksums; with source every tensor and key
    diff(a, b, tolerance=0)        compare two models of any formats
    edit(source, target)           other metadata, the same tensors
    hash(path)                     one digest of the values, the same in every format
    batch(sources, into, to=...)   many models, (source, report or error) each
    convert_tower(source, target)  the vision or audio part, for llama.cpp

    Options        what convert may be told: Options(quantize="q4_k_m", dequantize=True)
    Model, ModelTensor, Report, Comparison, Verified     what these functions return
    CkconvError    code, message, path, tensor, offset, hint, details; a missing file is a FileNotFoundError, too

Nothing is printed. docs/library.md has recipes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ckconv.core import __version__ as __version__

if TYPE_CHECKING:
    from ckconv.api import (
        Model as Model,
        ModelTensor as ModelTensor,
        batch as batch,
        convert as convert,
        convert_tower as convert_tower,
        diff as diff,
        dry_run as dry_run,
        edit as edit,
        hash as hash,
        iter_tensors as iter_tensors,
        open_model as open_model,
        targets as targets,
        verify as verify,
    )
    from ckconv.comparison.compare import Comparison as Comparison
    from ckconv.comparison.verify import Verified as Verified
    from ckconv.conversion.run import Report as Report
    from ckconv.core.options import Options as Options
    from ckconv.errors import CkconvError as CkconvError

_HOMES = {
    "CkconvError": "ckconv.errors",
    "Comparison": "ckconv.comparison.compare",
    "Model": "ckconv.api",
    "ModelTensor": "ckconv.api",
    "Options": "ckconv.core.options",
    "Report": "ckconv.conversion.run",
    "Verified": "ckconv.comparison.verify",
    "batch": "ckconv.api",
    "convert": "ckconv.api",
    "convert_tower": "ckconv.api",
    "diff": "ckconv.api",
    "edit": "ckconv.api",
    "hash": "ckconv.api",
    "iter_tensors": "ckconv.api",
    "open_model": "ckconv.api",
    "dry_run": "ckconv.api",
    "targets": "ckconv.api",
    "verify": "ckconv.api",
}


class _Names(list[str]):
    """Names for ``import *``.

    ``help()`` asks whether each is in the list, gets no, and shows the docstring alone.
    """

    def __contains__(self, name: object) -> bool:
        return False


#: ``hash`` would take the place of Python's own.
__all__ = _Names(name for name in _HOMES if name != "hash")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ckconv' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(["__version__", *_HOMES])
