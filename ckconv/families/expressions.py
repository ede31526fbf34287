"""Expressions of family files, parsed into a syntax tree, never run.

Names are parameters, ``n`` the layer, ``it`` the value that a cell reads or writes; ``true``, ``false`` and ``null``
are constants. Allowed besides: numbers, strings, lists, ``+ - * / // % **``, comparisons, ``in``, ``and or not``,
``x if c else y``, ``a[i]``, calls of :data:`FUNCTIONS`.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from ckconv.core.config import MAX_LAYERS
from ckconv.core.named import NamedTuple
from ckconv.families.functions import BY_NAME

#: The longest expression of a file; a user's file is read with the same bound.
MAX_LENGTH = 500

#: No power in a family file is near this; ``9 ** 9 ** 9`` would not end.
_MAX_EXPONENT = 64
_LARGEST = 1 << 128

_CONSTANTS: dict[str, object] = {"true": True, "false": False, "null": None}


class ExpressionError(ValueError):
    """Error in an expression, or the reason for its missing value.

    Attributes:
        why: the same for who has not written the expression, "" for nothing but that it has no value.
        names: the parameters that it asks for.
    """

    def __init__(self, message: str, why: str = "", names: frozenset[str] = frozenset()) -> None:
        super().__init__(message)
        self.why, self.names = why, names


#: Functions of expressions.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sqrt": math.sqrt,
    "log": math.log,
    "int": int,
    "float": float,
    "min": min,
    "max": max,
    "len": len,
    **BY_NAME,
}

#: Functions that whoever asks for a value gives along with the names: ``has('expert_count')``.
GIVEN = ("has",)

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.Not: operator.not_, ast.USub: operator.neg}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}


class Expression(NamedTuple):
    """One parsed expression.

    Attributes:
        text: as the file has it, for messages.
        names: the parameters that it asks for.
    """

    text: str
    names: frozenset[str]
    tree: ast.expr

    @property
    def asked(self) -> list[str]:
        """Metadata keys in calls of ``has``: ``has('expert_count')``."""
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        of = [call.args for call in calls if isinstance(call.func, ast.Name) and call.func.id in GIVEN]
        return [str(word.value) for words in of for word in words if isinstance(word, ast.Constant)]

    def value(self, names: Mapping[str, Any]) -> Any:
        """The value, with the parameters looked up in ``names``.

        Raises:
            ExpressionError: a parameter is not there, or the operation has no result.
        """
        try:
            return _value(self.tree, names)
        except (ArithmeticError, AttributeError, TypeError, ValueError, LookupError) as error:
            if isinstance(error, ExpressionError):
                raise
            why = str(error) if type(error) is ValueError else ""
            raise ExpressionError(f"{self.text!r} has no value: {error}", why, self.names) from None

    def __str__(self) -> str:
        return self.text


@lru_cache(maxsize=1024)
def parse(text: str) -> Expression:
    """Parse ``text``.

    Raises:
        ExpressionError: it is no expression, or holds what is not allowed.
    """
    if "\\" in text:  # ast warns of some on stderr
        raise ExpressionError("an expression with a backslash")
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"an expression of {len(text)} characters; at most {MAX_LENGTH} are allowed")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExpressionError(f"{text!r} is not an expression") from None
    names: set[str] = set()
    for node in ast.walk(tree):
        _check(node, text, names)
    return Expression(text, frozenset(names), tree)


def _check(node: ast.AST, text: str, names: set[str]) -> None:
    if isinstance(node, ast.Name):
        if node.id not in _CONSTANTS and node.id not in FUNCTIONS and node.id not in GIVEN:
            names.add(node.id)
    elif isinstance(node, ast.Constant):
        if not isinstance(node.value, (int, float, str)):
            raise ExpressionError(f"{text!r} holds {node.value!r}; numbers, strings and lists are allowed")
    elif isinstance(node, ast.Call):
        known = (*FUNCTIONS, *GIVEN)
        if not isinstance(node.func, ast.Name) or node.func.id not in known or node.keywords:
            raise ExpressionError(
                f"{text!r} calls something that is not a function of family files ({', '.join(known)})"
            )
    elif not isinstance(node, _ALLOWED):
        raise ExpressionError(f"{text!r} holds {type(node).__name__}, which expressions do not have")


_ALLOWED = (
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Subscript, ast.List, ast.Load, ast.And, ast.Or,
    *_BINARY, *_UNARY, *_COMPARE,
)  # fmt: skip


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return _name(node.id, names)
        case ast.List():
            return [_value(item, names) for item in node.elts]
        case ast.UnaryOp():
            return _UNARY[type(node.op)](_value(node.operand, names))
        case ast.BinOp():
            return _binary(node, names)
        case ast.BoolOp():
            stop = isinstance(node.op, ast.Or)
            result: Any = not stop
            for part in node.values:
                result = _value(part, names)
                if bool(result) is stop:
                    break
            return result
        case ast.Compare():
            return _compare(node, names)
        case ast.IfExp():
            return _value(node.body if _value(node.test, names) else node.orelse, names)
        case ast.Subscript():
            return _value(node.value, names)[_value(node.slice, names)]
        case ast.Call():
            assert isinstance(node.func, ast.Name)
            function = FUNCTIONS.get(node.func.id) or _name(node.func.id, names)
            arguments = [_value(argument, names) for argument in node.args]
            if node.func.id in BY_NAME and arguments and isinstance(arguments[0], int) and arguments[0] > MAX_LAYERS:
                raise ExpressionError(f"a list of {arguments[0]:,} items; {MAX_LAYERS:,} are allowed")
            return function(*arguments)
    raise AssertionError(type(node).__name__)


def _name(name: str, names: Mapping[str, Any]) -> Any:
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    try:
        return names[name]
    except KeyError:
        raise ExpressionError(f"no parameter {name!r}") from None


def _binary(node: ast.BinOp, names: Mapping[str, Any]) -> Any:
    left, right = _value(node.left, names), _value(node.right, names)
    if isinstance(node.op, ast.Pow) and not (isinstance(right, (int, float)) and abs(right) <= _MAX_EXPONENT):
        raise ExpressionError(f"an exponent of {right!r}; at most {_MAX_EXPONENT}")
    if not all(isinstance(operand, (int, float)) for operand in (left, right)):
        raise ExpressionError(f"no arithmetic with {left!r} and {right!r}")
    result = _BINARY[type(node.op)](left, right)
    if isinstance(result, int) and abs(result) > _LARGEST:
        raise ExpressionError("a number of more than 128 bits")
    return result


def _compare(node: ast.Compare, names: Mapping[str, Any]) -> bool:
    left = _value(node.left, names)
    for op, operand in zip(node.ops, node.comparators, strict=True):
        right = _value(operand, names)
        if not _COMPARE[type(op)](left, right):
            return False
        left = right
    return True
