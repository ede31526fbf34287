"""Defaults of transformers' configuration classes for missing keys.

transformers_defaults.json has the values of the classes' fields (``scripts/record_config_defaults.py``). A key without
a row, and every key of a class that is not recorded, is taken for one that has to be there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

DEFAULTS = Path(__file__).with_name("transformers_defaults.json")

#: Value of a key that nothing is known of: no document says it.
UNKNOWN = object()

#: Value of a key that a recorded class does not read.
UNREAD = object()


@cache
def _recorded() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(DEFAULTS.read_text())["defaults"]
    return found


def is_recorded(document: Mapping[str, Any]) -> bool:
    """The class of this document is one of transformers' that are recorded."""
    return str(document.get("model_type")) in _recorded()


def default_of(document: Mapping[str, Any], key: str) -> Any:
    """Default of the document's class for a missing key, or ``UNKNOWN``.

    Args:
        document: that of a text model, or of the part of one that has the key.
    """
    of_class = _recorded().get(str(document.get("model_type")), {})
    value = of_class.get(key, UNREAD if of_class else UNKNOWN)
    if value == "= ?":
        return UNKNOWN
    if not (isinstance(value, str) and value.startswith("= ")):
        return value

    def said(name: str) -> Any:
        return document.get(name, of_class.get(name))

    numbers = [said(name) for name in value.removeprefix("= ").split(" // ")]
    if len(numbers) == 1:
        return numbers[0]
    whole = all(isinstance(number, int) for number in numbers) and numbers[1] > 0
    return numbers[0] // numbers[1] if whole else UNKNOWN
