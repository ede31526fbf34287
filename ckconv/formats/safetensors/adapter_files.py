"""The files of an adapter directory, of peft's and of mlx-lm's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """What the writer of a directory needs besides the steps: the header of the tensors, and the configuration."""

    headers: tuple[bytes, ...]
    config_json: bytes


def config_bytes(document: Mapping[str, Any]) -> bytes:
    """A configuration as peft and mlx-lm write it."""
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "surrogateescape")
