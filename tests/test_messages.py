"""The form of messages: a subject, no pronoun in its place, no capital, no full stop, and of a refusal a way out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parent.parent / "ckconv"

pytestmark = pytest.mark.usefixtures("no_collection")

CLASSES = {"CkconvError", "UsageError", "InputError", "UnsupportedError", "VerifyError", "OutputError"}

#: Calls whose first argument is a reason of a refusal.
REASONS = {"Reason", "refuse"}

#: Words in place of a subject.
PRONOUN = re.compile(r"(it|its|they|their|this|that|these|those|what|which|who|whoever|one|others?|such|so)\b", re.I)
#: A message that begins so says it of its file, which stands before it.
VERB = re.compile(
    r"(is|are|has|have|was|were|exists|needs|holds|keeps|cannot|may|must|does|differs|ends|goes|lacks|leads|lists)\b"
)
#: Names that have a capital wherever they stand.
NAMES = re.compile(r"(GGUF|MLX|FP32|SOURCE_DATE_EPOCH|RoPE|Q and K)\b")

#: What a refusal (exit 4) without a hint says -> why nothing leads out of it.
NO_WAY_OUT = {
    "holds no tensors, only metadata": "there is nothing to convert",
    "{error}{self.": "a configuration that contradicts the tensors is no model",
    "tensor {quoted(tensor.source)} is {tensor.dtype}, {why}": "blocks cannot be multiplied, nor decoded before",
    "ckconv reads no bump file of": "what the engine computes of it was not measured",
    "is bump 2, FP32 without types": "the sentence names what reads it",
    "is FP32 without a header, in the order of bump 3": "the sentence names what reads it",
    "holds no weights, but zeros": "there is nothing to convert",
    "ckconv does not know the model_type": "a bump file has no names of its own under which to be copied",
    "was trained in the engine as": "the engine trains no others",
    "is an adapter, not the model that an adapter changes": "which model is meant, the user knows",
    "differs from layer to layer, which": "no architecture is so",
    "ckconv knows no tower of": "the text model goes without the flag that was given",
    "config.json says a tower, and no tensor of it": "there is nothing to convert",
    "holds no array": "there is nothing to convert",
    "fine_tune_type is": "the sentence lists what is supported",
    "peft_type is": "the sentence lists what is supported",
    "is a tower that is not known": "a detail names it",
    "tensors, and none of a model": "there is nothing to convert",
    "beside the tensors, and only it holds": "the file is lost, and its numbers stand nowhere else",
    "ckconv does not know its architecture": "of the base, for which nothing else may stand",
    "would read another configuration out of": "a backstop: details name the keys",
    "safetensors cannot hold this model: {what}": "a backstop: the sentence names the keys",
    "of {field} is an expression that": "the sentence lists what is matched",
    "has no float32 values": "only a program that asks for values meets it",
    "the adapters make row": "the numbers are the adapters' own",
    "{tensor.source}: {why}": "a backstop of what plans refuse with their ways out",
    "bytes, which no file has": "the server is wrong",
    "is a norm that its format stores shifted": "peft would add to the norm as the checkpoint has it",
    "the output has more than": "no file is that long",
    "the value {bad} cannot be quantized": "the writer, which knows the tensor, adds --quantize TYPE,TENSOR=f32",
    "are beyond the range of": "the writer, which knows the tensor, adds --quantize TYPE,TENSOR=f32",
    "zeros side by side": "the writer, which knows the tensor, adds --quantize TYPE,TENSOR=f32",
    "have sums beyond float32's range": "the importance matrix is malformed",
    "the value {largest} is beyond the range of {F32}": "no target has a larger type",
    "are not whole groups of": "a backstop: plans ask before",
    "tokens do not fit into 2 GiB": "a bump file has no more room",
    "a token has type {bad}": "a bump file has a byte for it",
}


class Message(NamedTuple):
    """A message as it stands in the code; ``given``: the keywords beside it."""

    place: str
    kind: str
    text: str
    given: frozenset[str]

    def faults(self) -> Iterator[str]:
        """What is wrong with its form."""
        if PRONOUN.match(self.text):
            yield "a pronoun is no subject"
        if self.text.endswith((".", "!")):
            yield "a full stop"
        if self.text[:1].isupper() and not NAMES.match(self.text):
            yield "a capital"
        of_file = {"path", "None"} & self.given or self.kind in REASONS or self.place.startswith("formats/bump")
        if VERB.match(self.text) and not of_file:
            yield "a verb, and no file before it"
        if self.kind == "UnsupportedError" and not {"hint", "None"} & self.given and not self.reason:
            yield "no hint, and no reason for none in NO_WAY_OUT"

    @property
    def reason(self) -> str:
        """Fragment of :data:`NO_WAY_OUT` that it has."""
        return next((fragment for fragment in NO_WAY_OUT if fragment in self.text), "")


def _texts(node: ast.expr, values: list[ast.Assign]) -> Iterator[str]:
    """Texts that an expression may be, a name for what was put into it last; of other expressions none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        parts = [(part, getattr(part, "value", "")) for part in node.values]
        yield "".join(value if isinstance(part, ast.Constant) else f"{{{ast.unparse(value)}}}" for part, value in parts)
    elif isinstance(node, ast.IfExp):
        yield from (*_texts(node.body, values), *_texts(node.orelse, values))
    elif isinstance(node, ast.Name):
        given = [one for one in values if ast.unparse(one.targets[0]) == node.id and one.lineno <= node.lineno]
        yield from _texts(given[-1].value, []) if given else ()


@cache
def messages() -> list[Message]:
    """Second arguments of the error classes, and reasons of plans, as far as they are texts."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            nodes = [*ast.walk(function)]
            values = sorted((one for one in nodes if isinstance(one, ast.Assign)), key=lambda one: one.lineno)
            for node in nodes:
                kind = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
                if isinstance(node, ast.Call) and len(node.args) > (kind in CLASSES) and kind in CLASSES | REASONS:
                    given = frozenset(str(keyword.arg) for keyword in node.keywords)
                    place = f"{path.relative_to(PACKAGE).as_posix()}:{node.lineno}"
                    for text in _texts(node.args[kind in CLASSES], values):
                        found[place, text] = Message(place, kind, text, given)
    return [*found.values()]


def test_the_linter_refuses_what_it_is_for() -> None:
    for text, given, fault in [
        ("it holds nothing", {"path"}, "a pronoun is no subject"),
        ("the file is empty.", {"path"}, "a full stop"),
        ("Missing argument 'SRC'", set(), "a capital"),
        ("holds nothing", set(), "a verb, and no file before it"),
    ]:
        assert [*Message("a.py:1", "InputError", text, frozenset(given)).faults()] == [fault]
    assert [*Message("a.py:1", "UnsupportedError", "x is y", frozenset()).faults()] != []
    assert [*Message("a.py:1", "UnsupportedError", "x is y", frozenset({"hint"})).faults()] == []


def test_every_message_has_a_subject_and_every_refusal_a_way_out() -> None:
    assert len(messages()) > 600
    assert [f"{one.place}: {one.text}: {fault}" for one in messages() for fault in one.faults()] == []


def test_every_reason_for_no_way_out_is_of_a_message_without_one() -> None:
    used = {one.reason for one in messages() if one.kind == "UnsupportedError" and "hint" not in one.given}
    assert sorted(NO_WAY_OUT.keys() - used) == []
