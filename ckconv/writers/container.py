"""What a format adds around the tensors, as bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Container:
    """The bytes of an output file that are not tensors.

    Attributes:
        header_bytes: bytes at the start that are only known at the end; the digest starts after them.
        header: makes them out of the digest of prologue and tensors.
        prologue: what stands between them and the first tensor.
        epilogue: what stands behind the last tensor, outside the digest.
        side_files: name -> content of what is published beside the model; a name, not a path.
        on_request: names of side files that are only written where they are asked for.
    """

    header_bytes: int
    header: Callable[[bytes], bytes]
    prologue: bytes
    epilogue: bytes = b""
    side_files: Mapping[str, bytes] = field(default_factory=dict)
    on_request: frozenset[str] = frozenset()
