"""Expressions of family files: syntax trees, never run, and functions.

Names are parameters, ``n`` the layer, ``it`` the value that a cell reads or writes; ``true``, ``false`` and ``null``
are constants. Allowed besides: numbers, strings, lists, tables, ``+ - * / // % **``, comparisons, ``in``,
``and or not``, ``x if c else y``, ``a[i]``, ``a[:n]``, ``f'{x}'``, ``[x for name in items if c]``, calls of
:data:`FUNCTIONS`.
"""

from __future__ import annotations

import _ast as ast  # the nodes alone: to import ast takes longer than to parse a family's expressions
import math
import operator
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ckconv.core.config import LLAMA3_NUMBERS, MAX_LAYERS, llama3_candidates, shortest_float32, yarn_scale
from ckconv.core.lazy import NamedTuple, np

# -- Functions for expressions of family files, pure in their parameters -----------------------------------------------

SLIDING, FULL = "sliding_attention", "full_attention"
#: Gemma 3's period, where nothing else is stated.
PERIOD = 6


def upto(count: int) -> list[int]:
    """Numbers from 0 on, so many."""
    return list(range(count))


def spread(count: int, it: Any) -> list[Any]:
    """List for every layer, made of a list or a single value."""
    return it if isinstance(it, list) else [it] * count


def of_kind(items: list[Any], kinds: Sequence[str], kind: str) -> Any:
    """Common item of all layers of a kind, or of all layers without any."""
    found = [item for item, own in zip(items, kinds, strict=True) if own == kind] or items
    if found.count(found[0]) < len(found):
        raise ValueError(f"{kind} layers have {found}")
    return found[0]


def overridden(table: dict[Any, dict[str, Any]], kinds: Sequence[str], kind: str, key: str, other: Any) -> Any:
    """``per_layer_config`` value of all layers of a kind, else a default."""
    if not all(str(layer).isdecimal() and isinstance(row, dict | None) for layer, row in table.items()):
        raise ValueError("per_layer_config does not name layers")
    own = {int(layer): row for layer, row in table.items() if row}
    if any(layer >= len(kinds) for layer in own):
        raise ValueError(f"per_layer_config names layer {max(own)}, and the last one is {len(kinds) - 1}")
    if any(kinds[layer] != kind for layer in own):
        raise ValueError(f"per_layer_config names layers that are not {kind}")
    return of_kind([own.get(n, {}).get(key, other) for n in range(len(kinds))], kinds, kind)


def whole(it: Any, low: int, high: int = (1 << 31) - 1) -> Any:
    """``it``, a whole number from ``low`` to ``high``, or a list of such."""
    if not all(type(number) is int and low <= number <= high for number in (it if isinstance(it, list) else [it])):
        raise ExpressionError("", f"whole numbers from {low:,} to {high:,} are expected")
    return it


def every(count: int, period: int, one: Any, other: Any, start: int = -1) -> list[Any]:
    """``count`` items ``one``, with ``other`` at every ``period``-th.

    Args:
        start: the first of those, ModernBERT's 0; the last of the first period otherwise.
    """
    return [one if (n - start) % period else other for n in range(count)]


def slides(count: int, pattern: int | list[bool]) -> list[str]:
    """Kinds of layers from a period (0: all slide) or from flags."""
    if isinstance(pattern, list):
        return [SLIDING if n < len(pattern) and pattern[n] else FULL for n in range(count)]
    return every(count, pattern, SLIDING, FULL) if pattern else [SLIDING] * count


def stride(items: list[Any], item: Any) -> int:
    """Regular distance between positions of an item in a list."""
    start = items.index(item) if item in items else len(items)
    for period in range(start + 1, len(items) + 2):
        if [found == item for found in items] == every(len(items), period, False, True, start):
            return period
    raise ValueError(f"{item} does not come in regular steps")


def letters(kinds: Sequence[str]) -> str:
    """Shortest repeated pattern of L (sliding) and G, as in Exaone 4."""
    all_of_them = "".join("L" if kind == SLIDING else "G" for kind in kinds)
    rounds = (all_of_them[:n] for n in range(1, len(kinds) + 1))
    return next(one for one in rounds if (one * len(kinds))[: len(kinds)] == all_of_them)


def longrope_scale(stretch: float, original: int) -> float:
    """Factor of LongRoPE on cosines and sines, as in transformers."""
    return shortest_float32(math.sqrt(1 + math.log(stretch) / math.log(original))) if stretch > 1 else 1.0


def yarn_attention(stored: float, taken: float) -> float | None:
    """Shortest ``attention_factor`` that gives llama.cpp's float32 factor."""
    if stored == 1:
        return None
    shortest = (float(f"{stored * taken:.{digits}g}") for digits in range(1, 17))
    return next((it for it in shortest if shortest_float32(it / taken) == stored), stored * taken)


def commas(it: str | list[int]) -> list[int] | str:
    """Whole numbers of a text, between commas, or the text of numbers."""
    if isinstance(it, str):
        return [int(number) for number in it.split(",") if number.strip()]
    return ",".join(str(number) for number in it)


def llama3_factors(theta: float, turned: int, size: int, factor: float, low: float, high: float, context: int) -> Any:
    """Divisors of frequencies by Llama 3's rule, 1 behind those that turn.

    In float64, as ``step3.py`` of llama.cpp's converter has them; those of ``LlamaModel`` are float32 throughout.

    Args:
        turned: elements of a head that turn.
        size: number of divisors.
    """
    powers = np.arange(0, turned, 2, dtype=np.float32) / np.float32(turned)
    made: list[float] = []
    for frequency in np.float32(1) / np.float32(theta) ** powers:
        wave = 2 * math.pi / float(frequency)
        smooth = (context / wave - low) / (high - low)
        between = factor if wave > context / low else 1.0 / ((1.0 - smooth) / factor + smooth)
        made.append(shortest_float32(1.0 if wave < context / high else between))
    return made + [1.0] * (size - len(made))


def llama3_numbers(factors: list[float], theta: float, turned: int) -> dict[str, Any] | None:
    """Inverse of :func:`llama3_factors`; ``None`` of what is made otherwise."""
    found = llama3_candidates(np.array(factors[: turned // 2]), theta, turned) if len({*factors}) > 1 else ()
    exact = (it for it in found if factors == llama3_factors(theta, turned, len(factors), *it))
    return next((dict(zip(LLAMA3_NUMBERS, numbers, strict=True)) for numbers in exact), None)


def llama3(turned: int, theta: float, *given: Any) -> Any:
    """Divisors by factor, bounds and context of Llama 3, or those of divisors."""
    return llama3_factors(theta, turned, turned, *given) if len(given) > 1 else llama3_numbers(given[0], theta, turned)


def others(table: object, known: list[str]) -> list[str]:
    """Keys of a table that are not among known ones, and say something."""
    return sorted(key for key, value in table.items() if key not in known and value) if isinstance(table, dict) else []


def items(table: object) -> list[str]:
    """Items of ``id2label`` by number, without gaps."""
    if not isinstance(table, dict) or not table or {str(key) for key in table} != set(map(str, range(len(table)))):
        raise ValueError("a label for every number from 0 on is expected")
    return [str(table.get(str(n), table.get(n))) for n in range(len(table))]


BY_NAME: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        *(upto, spread, every, of_kind, stride, slides, letters, commas, items, others, overridden),
        *(longrope_scale, yarn_scale, yarn_attention, llama3),
    )
}


# -- Expressions of family files, parsed into a syntax tree, never run -------------------------------------------------

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
    "int": int,
    "min": min,
    "max": max,
    "len": len,
    "whole": whole,
    **BY_NAME,
}

#: Those that are quick enough to be called for every item of a list.
_OF_ITEMS = frozenset({"int", "min", "max", "len", "others", "spread"})

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
    def probed_keys(self) -> list[str]:
        """Metadata keys in calls of ``has``: ``has('expert_count')``."""
        calls = [node for node in _nodes(self.tree) if isinstance(node, ast.Call)]
        of = [call.args for call in calls if isinstance(call.func, ast.Name) and call.func.id in GIVEN]
        return [str(word.value) for words in of for word in words if isinstance(word, ast.Constant)]

    @property
    def never_holds(self) -> bool:
        """Whether it is ``false``, whatever a model says."""
        return self.text == "false"

    @property
    def of_lists(self) -> bool:
        """Whether it makes or takes a list."""
        return _of_lists(self)

    def value(self, names: Mapping[str, Any]) -> Any:
        """The value, with the parameters looked up in ``names``.

        Raises:
            ExpressionError: a parameter is not there, or the operation has no result.
        """
        try:
            return _value(self.tree, names)
        except (ArithmeticError, AttributeError, TypeError, ValueError, LookupError) as error:
            if isinstance(error, ExpressionError):
                raise ExpressionError(str(error), error.why, self.names) from None
            why = str(error) if type(error) is ValueError else ""
            raise ExpressionError(f"{self.text!r} has no value: {error}", why, self.names) from None

    def __str__(self) -> str:
        return self.text


@lru_cache(maxsize=1024)
def _of_lists(expression: Expression) -> bool:
    nodes = _nodes(expression.tree)
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    made = any(isinstance(node, ast.List | ast.ListComp | ast.Subscript) for node in nodes)
    return made or not called.isdisjoint({*BY_NAME, "len"})


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
        tree: ast.expr = compile(text.strip(), "", "eval", ast.PyCF_ONLY_AST).body  # type: ignore[attr-defined]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExpressionError(f"{text!r} is not an expression") from None
    names: set[str] = set()
    nodes = _nodes(tree)
    for node in nodes:
        _check(node, text, names)
    return Expression(text, frozenset(names - _own_names(nodes, text)), tree)


def _nodes(tree: ast.AST) -> list[ast.AST]:
    """A node and all below it."""
    found = [tree]
    for node in found:  # which becomes longer
        parts = (getattr(node, field) for field in node._fields)
        found += (it for part in parts for it in (part if type(part) is list else (part,)) if isinstance(it, ast.AST))
    return found


#: A list, or a table, that is made of the items of another.
_MADE = (ast.ListComp, ast.DictComp)


def _for_items(node: ast.ListComp | ast.DictComp) -> list[ast.AST]:
    """Nodes that are computed for every item."""
    parts = (node.elt,) if isinstance(node, ast.ListComp) else (node.key, node.value)
    return [one for part in (*parts, *node.generators[0].ifs) for one in _nodes(part)]


def _own_names(nodes: Sequence[ast.AST], text: str) -> set[str]:
    """Names that lists give to the items that they are made of."""
    made = [node for node in nodes if isinstance(node, _MADE)]
    if not made:
        return set()
    for node in made:
        one, inner = node.generators[0], _for_items(node)
        plain = len(node.generators) == 1 and isinstance(one.target, ast.Name)
        calls = (call.func for call in inner if isinstance(call, ast.Call))
        quick = all(isinstance(called, ast.Name) and called.id in _OF_ITEMS for called in calls)
        if not plain or not quick or any(isinstance(one, _MADE) for one in inner):
            raise ExpressionError(f"{text!r}: a list that is made of another is [x for name in items]; x makes no list")
    items = {node.generators[0].target.id for node in made if isinstance(node.generators[0].target, ast.Name)}
    inner = [one for node in made for one in (node.generators[0].target, *_for_items(node))]
    outer = (one for one in nodes if isinstance(one, ast.Name) and not any(one is each for each in inner))
    if twice := next((name.id for name in outer if name.id in items), ""):
        raise ExpressionError(
            f"{text!r}: {twice!r} is the name of an item, and of something else; another name expected"
        )
    return items


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
    elif (
        not isinstance(node, _ALLOWED)
        or (isinstance(node, ast.Dict) and None in node.keys)
        or (isinstance(node, ast.FormattedValue) and (node.conversion >= 0 or node.format_spec))
    ):
        raise ExpressionError(f"{text!r} holds {type(node).__name__}, which expressions do not have")


_ALLOWED = (
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Subscript, ast.List, ast.Load, ast.And, ast.Or,
    ast.Dict, ast.ListComp, ast.DictComp, ast.comprehension, ast.Store, ast.Slice, ast.JoinedStr, ast.FormattedValue,
    *_BINARY, *_UNARY, *_COMPARE,
)  # fmt: skip


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    return _OF_NODES[type(node)](node, names)


def _dictionary(node: ast.Dict, names: Mapping[str, Any]) -> dict[Any, Any]:
    return {_value(key, names): _value(item, names) for key, item in zip(node.keys, node.values, strict=True) if key}


def _either(node: ast.BoolOp, names: Mapping[str, Any]) -> Any:
    stop = isinstance(node.op, ast.Or)
    result: Any = not stop
    for part in node.values:
        result = _value(part, names)
        if bool(result) is stop:
            break
    return result


def _called(node: ast.Call, names: Mapping[str, Any]) -> Any:
    assert isinstance(node.func, ast.Name)
    function = FUNCTIONS.get(node.func.id) or _name(node.func.id, names)
    arguments = [_value(argument, names) for argument in node.args]
    if node.func.id in BY_NAME and arguments and isinstance(arguments[0], int) and arguments[0] > MAX_LAYERS:
        raise ExpressionError(f"a list of {arguments[0]:,} items; {MAX_LAYERS:,} are allowed")
    return function(*arguments)


def _made_of(node: ast.ListComp | ast.DictComp, names: Mapping[str, Any]) -> list[Any] | dict[Any, Any]:
    """A list, or a table, of what expressions are for each item of another."""
    (one,) = node.generators
    assert isinstance(one.target, ast.Name)
    items = _value(one.iter, names)
    if not isinstance(items, list | tuple | str) or len(items) > MAX_LAYERS:
        raise ExpressionError(f"no list of at most {MAX_LAYERS:,} items to make another of")
    scopes = [ChainMap({one.target.id: item}, names) for item in items]  # type: ignore[arg-type]
    scopes = [scope for scope in scopes if all(_value(test, scope) for test in one.ifs)] if one.ifs else scopes
    if isinstance(node, ast.DictComp):
        return {_value(node.key, scope): _value(node.value, scope) for scope in scopes}
    return [_value(node.elt, scope) for scope in scopes]


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
    if isinstance(result, complex):
        raise ExpressionError(f"no power {right!r} of {left!r}")
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


#: How the value of a node of each class is found: of many thousands in a conversion.
_OF_NODES: dict[type[ast.expr], Callable[[Any, Mapping[str, Any]], Any]] = {
    ast.Constant: lambda node, names: node.value,
    ast.Name: lambda node, names: _name(node.id, names),
    ast.List: lambda node, names: [_value(item, names) for item in node.elts],
    ast.Dict: _dictionary,
    ast.ListComp: _made_of,
    ast.DictComp: _made_of,
    ast.Slice: lambda node, names: slice(*(it and _value(it, names) for it in (node.lower, node.upper, node.step))),
    ast.JoinedStr: lambda node, names: "".join(str(_value(part, names)) for part in node.values),
    ast.FormattedValue: lambda node, names: _value(node.value, names),
    ast.UnaryOp: lambda node, names: _UNARY[type(node.op)](_value(node.operand, names)),
    ast.BinOp: _binary,
    ast.BoolOp: _either,
    ast.Compare: _compare,
    ast.IfExp: lambda node, names: _value(node.body if _value(node.test, names) else node.orelse, names),
    ast.Subscript: lambda node, names: _value(node.value, names)[_value(node.slice, names)],
    ast.Call: _called,
}
