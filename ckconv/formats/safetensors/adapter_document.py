"""``adapter_config.json`` of peft and of mlx-lm, as JSON."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from ckconv.errors import InputError
from ckconv.formats.safetensors.spec import MAX_JSON
from ckconv.io.json import Document, parse_object, read_document

_DOCUMENT = Document("adapter configuration", "adapter.config", "adapter.config", MAX_JSON)

_NOT_FINITE = re.compile(rb'"(r|lora_alpha|rank|scale|alpha)"\s*:\s*(-?(?:NaN|Infinity))')


def read_adapter_document(path: Path) -> dict[str, Any]:
    """The configuration of an adapter of any kind, as JSON.

    Raises:
        InputError: ``adapter.config``, malformed; ``adapter.scale``, a scale that is NaN or infinite.
    """
    data = read_document(path, _DOCUMENT)
    try:
        return parse_object(data, _DOCUMENT, path)
    except InputError as error:
        found = _NOT_FINITE.search(data) if error.code == _DOCUMENT.code else None
        if found:
            what, value = (group.decode() for group in found.groups())
            raise InputError("adapter.scale", f"{what} is {value}; it must be a number above 0", path=path) from None
        raise


def positive(value: object) -> float | None:
    """A finite number above 0, ``None`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number > 0 else None
