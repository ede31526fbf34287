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

if TYPE_CHECKING:
    from ckconv.comparison import Comparison as Comparison
    from ckconv.errors import CkconvError as CkconvError
    from ckconv.execute import Report as Report
    from ckconv.library import Model as Model
    from ckconv.library import ModelTensor as ModelTensor
    from ckconv.library import convert as convert
    from ckconv.library import diff as diff
    from ckconv.library import open_model as open_model
    from ckconv.library import verify as verify
    from ckconv.plan.steps import Options as Options
    from ckconv.verification import Verified as Verified

__version__ = "0.1.0"

_HOMES = {
    "CkconvError": "ckconv.errors",
    "Comparison": "ckconv.comparison",
    "Model": "ckconv.library",
    "ModelTensor": "ckconv.library",
    "Options": "ckconv.plan.steps",
    "Report": "ckconv.execute",
    "Verified": "ckconv.verification",
    "convert": "ckconv.library",
    "diff": "ckconv.library",
    "open_model": "ckconv.library",
    "verify": "ckconv.library",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ckconv' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
