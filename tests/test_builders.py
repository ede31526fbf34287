"""What tests are built with is not what they test."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

#: Modules beside the tests that build nothing: they run the command line, or the class under test.
HARNESS = {
    "hint_texts",
    "hints",
    "hints_noted",
    "conftest",
    "family_adapters",
    "family_directions",
    "orders",
    "outputs",
}

#: Words for types, in which cases are parametrised; nothing that makes bytes.
TYPES = {"BF16", "F16", "F32", "DType", "Quantization"}

BUILDERS = [path for path in sorted(Path(__file__).parent.glob("*.py")) if not path.stem.startswith("test_")]


@pytest.mark.parametrize("path", [path for path in BUILDERS if path.stem not in HARNESS], ids=lambda path: path.stem)
def test_a_builder_makes_its_bytes_without_ckconv(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {name.name for name in node.names if name.name.partition(".")[0] == "ckconv"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "ckconv":
            imported |= {name.name for name in node.names}
    assert imported <= TYPES
