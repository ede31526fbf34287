"""The plan as data: what a conversion writes, in order, with exact sizes; what it leaves out, and why it refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ckconv.conversions import Action, Conversion
from ckconv.errors import UnsupportedError, listed
from ckconv.model.index import Tensor, TensorIndex


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for; the defaults are what the target's engine loads and computes correctly.

    Attributes:
        dtype: ``engine``, ``keep``, ``f32``, ``f16`` or ``bf16``.
        rope_layout: ``engine``, ``source``, ``split`` or ``interleaved``.
        dequantize: decode quantised matrices.
        decode: globs over canonical and source names of quantised matrices to decode.
        allow_lossy: steps may change values.
        context: context length in the output, 0 for the source's.
        drop: globs over canonical and source names of tensors to leave out.
        bump_version: 0 for the best that holds the model.
        template: the engine's template, or a directory of them, to be embedded in a bump 5 file.
        created: seconds since 1970 that a bump 5 file is dated with; ``None`` leaves it undated.
        dtype_codes: numbering of the bump 3 dtype table, ``v3`` or ``v4``.
    """

    dtype: str = "engine"
    rope_layout: str = "engine"
    dequantize: bool = False
    decode: tuple[str, ...] = ()
    allow_lossy: bool = False
    context: int = 0
    drop: tuple[str, ...] = ()
    bump_version: int = 0
    dtype_codes: str = "v3"
    template: Path | None = None
    created: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One run of output bytes.

    Attributes:
        slot: the target's name for the entry.
        target: the tensor as the target stores it; its extent's offset is relative to the output file.
        source: where the rows come from; ``None`` writes ``content``, or zeros.
        conversion: what happens to the values, ``None`` with no source.
        content: the bytes themselves, for an entry that is no tensor.
    """

    slot: str
    target: Tensor
    source: Tensor | None
    conversion: Conversion | None
    content: bytes | None = None

    @property
    def offset(self) -> int:
        """Byte offset in the output file."""
        return self.target.extents[0].offset

    @property
    def nbytes(self) -> int:
        """Bytes in the output file, padding included."""
        return self.target.nbytes

    @property
    def action(self) -> Action:
        """What happens to the values."""
        if self.content is not None:
            return Action.CONTENT
        return self.conversion.action if self.conversion else Action.ZERO

    @property
    def blank(self) -> bool:
        """Zeros that stand for a tensor which the model does not have."""
        return self.action is Action.ZERO

    @property
    def one_run(self) -> bool:
        """The source's bytes are the target's bytes: the fast path."""
        return (
            self.source is not None
            and self.action is Action.COPY
            and not self.source.planes
            and self.source.layout.same_bytes_as(self.target.layout)
        )

    @property
    def reordered(self) -> bool:
        """Rows change places between RoPE orders."""
        return self.source is not None and self.source.layout.interleaved != self.target.layout.interleaved


@dataclass(frozen=True, slots=True)
class Left:
    """A source tensor that is not written, and the rule or flag that allows it."""

    name: str
    reason: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why a target cannot hold a model, and the flag that changes it, if any."""

    text: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about an output but its bytes.

    Attributes:
        nbytes: exact size of the model file.
        steps: the payload in file order, back to back.
        left_out: source tensors not written.
        refusals: reasons not to do it; nothing may be written if there is one.
        notes: facts worth a line in the report.
        rope_layout: ``split`` or ``interleaved`` rows in the output, empty for a model without RoPE.
        alternative: the flag with which the model can be held, where this target refuses it.
        details: what the target's writer needs besides.
    """

    index: TensorIndex
    format: str
    version: int
    options: Options
    nbytes: int
    steps: tuple[Step, ...]
    left_out: tuple[Left, ...] = ()
    refusals: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()
    rope_layout: str = ""
    alternative: str = ""
    details: Any = field(default=None)

    @property
    def target_name(self) -> str:
        """``bump 3``."""
        return f"{self.format} {self.version}" if self.version else self.format

    def check(self) -> None:
        """Raise ``plan.refused`` with every reason, if there is one.

        Raises:
            UnsupportedError: exit 4.
        """
        if not self.refusals:
            return
        hints = list(dict.fromkeys(reason.hint for reason in self.refusals if reason.hint))
        hints += [self.alternative] if self.alternative else []
        texts = [reason.text for reason in self.refusals]
        one = len(texts) == 1
        raise UnsupportedError(
            "plan.refused",
            f"{self.target_name} cannot hold this model: {texts[0]}"
            if one
            else f"{self.target_name} cannot hold this model, for {len(texts)} reasons",
            path=self.index.path,
            hint="; ".join(hints) or None,
            details=() if one else listed(texts),
        )
