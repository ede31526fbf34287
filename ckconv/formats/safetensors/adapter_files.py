"""The files of an adapter directory, of peft's and of mlx-lm's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ckconv.formats.safetensors.reference import check_opens
from ckconv.formats.safetensors.shards import Shards
from ckconv.formats.safetensors.spec import ADAPTER_CONFIG
from ckconv.plan.container import Container


def container(shards: Shards, document: Mapping[str, Any]) -> Container:
    """One file of tensors, and the configuration beside it."""
    files = {ADAPTER_CONFIG: config_bytes(document)}
    return Container(shards.frames, side_files=files, keys=shards.keys, check=check_opens)


def config_bytes(document: Mapping[str, Any]) -> bytes:
    """A configuration as peft and mlx-lm write it."""
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "surrogateescape")
