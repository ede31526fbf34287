"""Every hint in the package, by its syntax trees and family files: patterns that match what is printed."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import ckconv

ROOT = Path(ckconv.__file__).parent

#: Pattern, and why no test follows it.
NOT_FOLLOWED = Path(__file__).with_name("hints_not_followed.tsv")

#: Calls whose second argument is a hint.
_SECOND = ("refuse", "Reason")


@cache
def _trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(ROOT.rglob("*.py"))}


@cache
def _functions() -> dict[str, list[tuple[Path, ast.FunctionDef]]]:
    found: dict[str, list[tuple[Path, ast.FunctionDef]]] = {}
    for path, tree in _trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                found.setdefault(node.name, []).append((path, node))
    return found


def hint_texts() -> dict[str, str]:
    """Pattern of each hint -> the file that it is in."""
    found: dict[str, str] = {}
    for path, tree in _trees().items():
        for node in ast.walk(tree):
            for given in _given(node):
                for pattern in _patterns(given, path, set()):
                    if re.search(r"[a-z]{2}", re.sub(r"\.\+", "", pattern)):
                        found.setdefault(pattern, str(path.relative_to(ROOT)))
    for path in sorted((ROOT / "families").rglob("*.toml")):
        whole = re.sub(r"\\\n\s*", "", path.read_text(encoding="utf-8"))  # lines that go on
        for text in re.findall(r'\bhint = "+([^"]+)"', whole):
            found.setdefault(_of_template(text), str(path.relative_to(ROOT)))
    return found


def listed() -> dict[str, str]:
    """Pattern of a hint that no test follows -> why."""
    lines = NOT_FOLLOWED.read_text(encoding="utf-8").splitlines()
    return {pattern: reason for pattern, _, reason in (line.partition("\t") for line in lines)}


def _given(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions of hints in a node."""
    if isinstance(node, ast.Call):
        yield from (keyword.value for keyword in node.keywords if keyword.arg == "hint")
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        planned = name == "_fault" and isinstance(node.func, ast.Attribute) and len(node.args) > 2  # of a plan
        if (name in _SECOND and len(node.args) > 1) or planned:
            yield node.args[1]
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        named = [it.id if isinstance(it, ast.Name) else getattr(it, "attr", "") for it in targets]
        if any(name in ("hint", "_HINT") for name in named):
            yield node.value


def _patterns(node: ast.expr, path: Path, seen: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str) and node.value:
            yield re.escape(node.value)
    elif isinstance(node, ast.JoinedStr):
        yield from _joined(node.values, path, seen)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _joined([node.left, node.right], path, seen)
    elif isinstance(node, ast.IfExp):
        yield from _patterns(node.body, path, seen)
        yield from _patterns(node.orelse, path, seen)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _patterns(value, path, seen)
    elif isinstance(node, ast.Name) and node.id.isupper():
        text = getattr(_module(path), node.id, None)
        if isinstance(text, str):
            yield _of_template(text)
    elif isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "format" and isinstance(node.func, ast.Attribute):
            yield from _patterns(node.func.value, path, seen)
        if name in _functions() and name not in seen:
            for place, function in _functions()[name]:
                for inner in ast.walk(function):
                    if isinstance(inner, ast.Return) and inner.value is not None:
                        yield from _patterns(inner.value, place, {*seen, name})


def _joined(parts: Sequence[ast.expr], path: Path, seen: set[str]) -> Iterator[str]:
    """Patterns of a text in parts: one for each way through its conditional expressions."""
    for ways in itertools.product(*(_ways(part, path, seen) for part in parts)):
        yield re.sub(r"(\.\+)+", ".+", "".join(ways))


def _ways(part: ast.expr, path: Path, seen: set[str]) -> list[str]:
    if isinstance(part, ast.FormattedValue):
        part = part.value
    if isinstance(part, ast.IfExp):
        return [*_ways(part.body, path, seen), *_ways(part.orelse, path, seen)]
    if isinstance(part, ast.Constant):
        return [re.escape(part.value) if isinstance(part.value, str) else ".+"]
    if isinstance(part, ast.JoinedStr | ast.BinOp) or (isinstance(part, ast.Name) and part.id.isupper()):
        return [*_patterns(part, path, seen)] or [".+"]
    return [".+"]


def _of_template(text: str) -> str:
    return re.sub(r"\\{\w*\\}", ".+", re.escape(text))


def _module(path: Path) -> object:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return importlib.import_module(".".join(parts if parts[-1] != "__init__" else parts[:-1]))
