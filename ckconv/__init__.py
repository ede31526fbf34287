"""ckconv converts model weights between formats, exactly, and back.

The library in a few names, each imported when it is first used::

    import ckconv

    model = ckconv.open_model("model.gguf")
    report = ckconv.convert("model.gguf", "out.bump")
    ckconv.verify("out.bump", "model.gguf")
    ckconv.diff("model.gguf", "checkpoint/").same

Nothing is printed. Whatever goes wrong is a :class:`CkconvError` with code, path, tensor, offset and hint.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ckconv.core.version import __version__

if TYPE_CHECKING:
    from ckconv.api import convert as convert
    from ckconv.api import diff as diff
    from ckconv.api import dry_run as dry_run
    from ckconv.api import edit as edit
    from ckconv.api import hash as hash
    from ckconv.api import open_model as open_model
    from ckconv.api import targets as targets
    from ckconv.api import verify as verify
    from ckconv.comparison.compare import Comparison as Comparison
    from ckconv.comparison.verify import Verified as Verified
    from ckconv.conversion.run import Report as Report
    from ckconv.conversion.towers import convert_tower as convert_tower
    from ckconv.errors import CkconvError as CkconvError
    from ckconv.formats.model import Model as Model
    from ckconv.formats.model import ModelTensor as ModelTensor
    from ckconv.options import Options as Options

_HOMES = {
    "CkconvError": "ckconv.errors",
    "Comparison": "ckconv.comparison.compare",
    "Model": "ckconv.formats.model",
    "ModelTensor": "ckconv.formats.model",
    "Options": "ckconv.options",
    "Report": "ckconv.conversion.run",
    "Verified": "ckconv.comparison.verify",
    "convert": "ckconv.api",
    "convert_tower": "ckconv.conversion.towers",
    "diff": "ckconv.api",
    "edit": "ckconv.api",
    "hash": "ckconv.api",
    "open_model": "ckconv.api",
    "dry_run": "ckconv.api",
    "targets": "ckconv.api",
    "verify": "ckconv.api",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ckconv' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
