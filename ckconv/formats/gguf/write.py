"""The bytes of a GGUF that are not tensors: metadata, tensor records and the padding before the data section."""

from __future__ import annotations

from collections.abc import Mapping

from ckconv.core.typed import Value
from ckconv.formats.gguf.plan import Gguf
from ckconv.formats.gguf.spec import Record, align_up, header
from ckconv.plan.container import Container, Frame
from ckconv.plan.steps import OutputFile, Plan


def container(plan: Plan) -> Container:
    """One frame a file; nothing lies beside a GGUF."""
    details = plan.details
    assert isinstance(details, Gguf)
    pairs = zip(plan.files, details.metadata, details.alignments, strict=True)
    return Container(tuple(Frame(prologue(file, metadata, alignment)) for file, metadata, alignment in pairs))


def prologue(file: OutputFile, metadata: Mapping[str, Value], alignment: int) -> bytes:
    """Everything before the data section, which begins where the first tensor lies."""
    start = file.steps[0].offset if file.steps else file.nbytes
    records = []
    for step in file.steps:
        type_id = step.target.dtype.ggml
        assert type_id is not None
        records.append(Record(step.slot, step.target.shape, type_id, step.offset - start))
    made = header(metadata, records)
    assert align_up(len(made), alignment) == start
    return made.ljust(start, b"\0")
