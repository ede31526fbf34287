"""Section ``[engines]``: how the loader of an engine treats a family.

``llama_cpp``, ``transformers`` and ``mlx_lm`` are rows, as are ``bump3``, ``bump5`` and ``bump_trained`` (what
trains). No row: the engine is not known to compute the family, and the conversion is refused; ``absent``: the engine is
known to have nothing for it, or, with a sentence, to compute it wrong. Rows are not inherited.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckconv.core.named import NamedTuple
from ckconv.families.axes import expanded
from ckconv.families.expressions import Expression
from ckconv.families.fields import Fields, listed, texts

_HOLE = re.compile(r"\{(\w+)\}")


class Condition(NamedTuple):
    """Condition for an engine to compute a model right.

    Attributes:
        sentence: why it does not where it does not hold; ``{name}`` stands for a parameter's value. Empty for none.
        of: parameters whose keys are named behind the sentence.
        hint: what helps.
    """

    expression: Expression
    sentence: str = ""
    of: tuple[str, ...] = ()
    hint: str = ""

    def said(self, values: Mapping[str, Any]) -> str:
        """The sentence about these values, empty where the file has none."""
        return _HOLE.sub(lambda hole: _shown(values[hole[1]]), self.sentence)


def _shown(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


class Engine(NamedTuple):
    """One engine's row.

    Attributes:
        absent: the engine is known to have nothing for the family.
        why: what it does with such a model, where that is known.
        model_type: what its documents call the family, where it is not as Hugging Face's do.
        right_if: what must hold; otherwise the engine computes something else.
        same_if: what must hold for the engine to compute what transformers does; where it does not, a note says
            so, as nothing that a file could say would change it.
        unmeasured: why nobody knows that it computes what the others do; a note says so.
        needs: keys of the document that its class cannot do without, or takes a default of its own for.
        reads: keys that its class reads where another library's goes by another key.
        ignores: parameters that it does not look at, though the format has them.
        scaling: types of RoPE's scaling that it computes as transformers does; ``None`` for those of the engine.
        head_must_be_written: a tied output head is stored all the same.
        no_head: it has no output head but the embedding.
        optional: canonical names of tensors that it loads where they are, and does without.
        required: those that only some models of the family have, and that it does not do without.
        tensors: of a bump engine: canonical names of tensors that its operations use besides those of a Llama; all
            of them have to be there, and no others may.
        slots: of a bump engine: entries of a layer, where they are not a Llama's -> canonical names of the tensors that
            lie in each, in order; a layer has those of its kind. Besides, the zeros behind the last norm, where it has
            them.
        floats: those of them that are FP32 whatever the model's type is, besides vectors.
        interleaved: of a bump engine: it rotates interleaved rows of Q and K; otherwise split ones.
        slides: of a bump engine: it computes the sliding window, in every layer alike, all rotated by one base.
        written_as: of a bump engine: the family as which its models are written, entry for entry.
        neighbors: of a bump engine: RoPE rotates neighbors in every format of the family, and in the engine, so that
            rows stay as they are.
        biased: of the engine that trains: the family whose class has every bias, for a model with one that this
            family's has not.
        biases: of a bump engine: the only biases that it adds, where a model of the family may have others too.
        unnamed: of a bump engine: a file that names no family and has these tensors is taken for this family's.
        unadapted: canonical modules that it computes without the adapter of them.
        wrapped: ``model_type`` of the document around that of the family, which is its ``text_config``, where the class
            reads no other.
        scaled: of llama.cpp: it multiplies products of NVFP4 matrices with the scales beside them.
        transposed: of transformers: its class declares parameters of experts ``[in, out]`` (``is_transposed``).
        narrow: canonical tensors that llama.cpp's converter stores as other matrices, though in FP32 of other families.
    """

    name: str
    absent: bool = False
    why: str = ""
    model_type: str = ""
    right_if: tuple[Condition, ...] = ()
    same_if: tuple[Condition, ...] = ()
    unmeasured: str = ""
    needs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    ignores: tuple[str, ...] = ()
    scaling: tuple[str, ...] | None = None
    head_must_be_written: bool = False
    no_head: bool = False
    optional: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    interleaved: bool = False
    slides: bool = False
    written_as: str = ""
    neighbors: bool = False
    biased: str = ""
    biases: tuple[str, ...] | None = None
    unnamed: bool = False
    unadapted: tuple[str, ...] = ()
    narrow: tuple[str, ...] = ()
    wrapped: str = ""
    scaled: bool = False
    slots: tuple[tuple[str, tuple[str, ...]], ...] = ()
    floats: tuple[str, ...] = ()
    transposed: bool = False


_KNOWN = frozenset(
    {
        "model_type", "right_if", "same_if", "needs", "reads", "ignores", "scaling", "head_must_be_written", "no_head",
        "optional", "required", "unadapted", "narrow", "wrapped", "scaled", "transposed", "absent", "unmeasured",
    }
)  # fmt: skip
_OF_BUMP = frozenset(
    {"tensors", "interleaved", "slides", "as", "neighbors", "biased", "biases", "unnamed", "slots", "floats"}
)


def engine(path: Path, name: str, row: object) -> Engine:
    """Read one row."""
    reader = Fields(path)
    reader.where = f"engines.{name}"
    if row == "absent":
        return Engine(name, absent=True)
    fields = reader.fields(row, _KNOWN | (_OF_BUMP if name.startswith("bump") else frozenset()))
    if "absent" in fields:
        return Engine(name, absent=True, why=str(fields["absent"]))
    scaling = fields.get("scaling")
    return Engine(
        name,
        False,
        "",
        fields.get("model_type", ""),
        tuple(condition(reader, item) for item in listed(fields.get("right_if", []))),
        tuple(condition(reader, item) for item in listed(fields.get("same_if", []))),
        str(fields.get("unmeasured", "")),
        texts(fields.get("needs")),
        texts(fields.get("reads")),
        texts(fields.get("ignores")),
        None if scaling is None else texts(scaling),
        bool(fields.get("head_must_be_written")),
        bool(fields.get("no_head")),
        _names(fields.get("optional")),
        _names(fields.get("required")),
        _names(fields.get("tensors")),
        bool(fields.get("interleaved")),
        bool(fields.get("slides")),
        str(fields.get("as", "")),
        bool(fields.get("neighbors")),
        str(fields.get("biased", "")),
        _names(fields["biases"]) if "biases" in fields else None,
        bool(fields.get("unnamed")),
        _names(fields.get("unadapted")),
        _names(fields.get("narrow")),
        str(fields.get("wrapped", "")),
        bool(fields.get("scaled")),
        tuple((slot, tuple(expanded(tensors))) for slot, tensors in fields.get("slots", {}).items()),
        texts(fields.get("floats")),
        bool(fields.get("transposed")),
    )


def _names(value: object) -> tuple[str, ...]:
    return tuple(name for text in texts(value) for name in expanded(text))


def condition(reader: Fields, item: object) -> Condition:
    """A condition, of a row or by itself."""
    row = reader.fields({"if": item} if isinstance(item, str) else item, frozenset({"if", "else", "of", "hint"}))
    expression = reader.expression(row.get("if"))
    if expression is None:
        raise reader.fault("a condition without 'if'")
    return Condition(expression, str(row.get("else", "")), texts(row.get("of")), str(row.get("hint", "")))
