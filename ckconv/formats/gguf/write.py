"""The bytes of a GGUF that are not tensors: metadata, tensor records and the padding before the data section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ckconv.core.metadata import Value, numbered
from ckconv.core.tensors import made
from ckconv.formats.gguf.keys import SPLIT_KEYS
from ckconv.formats.gguf.spec import VERSION, Record, align_up, header
from ckconv.plan.container import Container, Frame
from ckconv.plan.steps import OutputFile


def container(
    files: Sequence[OutputFile], metadata: Sequence[Mapping[str, Value]], alignments: Sequence[int]
) -> Container:
    """One frame a file; nothing lies beside a GGUF.

    Args:
        metadata: of each file.
        alignments: of each file, in bytes.
    """
    frames = tuple(Frame(prologue(*parts)) for parts in zip(files, metadata, alignments, strict=True))
    return Container(frames, keys=keys_of(metadata))


def keys_of(metadata: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
    """What a GGUF, or a set of them, declares."""
    keys: dict[str, Any] = {"version": VERSION}
    for number, own in enumerate(metadata):
        keys |= {numbered(key, number): value for key, value in own.items() if not key.startswith(SPLIT_KEYS)}
    return keys


def prologue(file: OutputFile, metadata: Mapping[str, Value], alignment: int) -> bytes:
    """Everything before the data section, which begins where the first tensor lies."""
    start = file.steps[0].offset if file.steps else file.nbytes

    def record(at: int) -> Record:
        step = file.steps[at]
        type_id = step.target.dtype.ggml
        assert type_id is not None
        return Record(step.slot, step.target.shape, type_id, step.offset - start)

    found = header(metadata, made(len(file.steps), record), start)
    assert len(found) == start == align_up(start, alignment)
    return found
