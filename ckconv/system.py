"""What differs between operating systems."""

from __future__ import annotations

#: Descriptors that are open at a time: a checkpoint may have hundreds of shards, a process 256 descriptors (macOS).
MAX_OPEN = 48
