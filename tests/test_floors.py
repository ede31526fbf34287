"""The house: which part of the package may import which, and what may be named and called where.

Every import counts, those within functions and under ``TYPE_CHECKING`` too. Lists of what is not yet as it should be
may only shrink: what they name and is mended fails as well, until its line is removed.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "ckconv"

#: From the ground up. What stands on one floor does not import each other, so there is no circle; of the formats,
#: each with a folder of its own, ``safetensors`` is the container of others.
FLOORS = (
    ("errors",),
    ("system",),
    ("core",),
    ("quant",),
    ("io", "families"),
    ("tokenizer", "plan", "publish"),
    ("formats/safetensors",),
    (
        "formats/gguf",
        "formats/huggingface",
        "formats/mlx",
        "formats/peft",
        "formats/bump",
        "formats/pytorch",
        "formats/whisper_ggml",
    ),
    ("formats",),
    ("record",),
    ("verification",),
    ("conversion",),
    ("comparison",),
    ("learning",),
    ("api",),
    ("cli",),
    ("__init__",),
    ("__main__",),
)
FLOOR_OF = {box: floor for floor, boxes in enumerate(FLOORS) for box in boxes}

#: Boxes and arrows are counted at the top of the package, where ``formats`` is one.
MOST_BOXES, MOST_ARROWS = 19, 100
MOST_LINES = 1000
#: Of a family file: a change of one key is a change of one line.
MOST_COLUMNS = 120

#: What differs between operating systems.
SYSTEM_MODULES = {"fcntl", "resource", "select", "ctypes", "msvcrt", "pwd", "grp", "platform"}
SYSTEM_CALLS = {
    *("os.pread", "os.preadv", "os.pwrite", "os.pwritev", "os.posix_fadvise", "os.posix_fallocate", "os.sendfile"),
    *("os.fsync", "os.fdatasync", "os.statvfs", "os.copy_file_range", "os.SEEK_DATA", "os.SEEK_HOLE"),
    *("os.geteuid", "os.getuid", "os.kill", "os.mkfifo", "os.fchmod", "os.name", "os.uname", "sys.platform"),
    *("os.O_CLOEXEC", "os.O_NONBLOCK", "os.O_NOFOLLOW", "os.O_DIRECTORY", "os.O_BINARY", "signal.SIGHUP"),
}

#: What makes an output, planners included: nothing that says "verified" may have any of it.
WRITES = re.compile(
    r"(engine|convert|conversion|publish)/|plan/|(.*/)?(\w*plan\w*|write\w*|merged|trained)$|"
    r"io/(stored|joined|together|remote)|tokenizer/"
)

#: What compares two models plans a source again, to hold all that an output says against all that a plan writes; what
#: is proved of tensors and statements is proved before, by :mod:`ckconv.verification` (tests/test_independence.py).
PLANS_AGAIN = {
    "comparison/verify": (
        "conversion/planning, conversion/sidefiles, conversion/write, plan/steps, tokenizer/vocabulary"
    ),
}

#: Where rows are computed a second time with the functions that computed them. :mod:`ckconv.verification.values` looks
#: at some rows with other ones, and has nothing of :mod:`ckconv.quant` but what a type stands for.
COMPUTED_TWICE = {"verification/tensors"}
WORDS_OF_TYPES = {"scheme_of", "Scheme", "triple_of"}

#: Module -> words in it that are the name of a format, too: a scheme of names, and a key of the source record.
FORMATS: dict[str, str] = {
    "core/options": "gguf",
    "record/read": "bump",
    "verification/documents": "gguf",
    "verification/statements": "gguf",
}


def name_of(path: Path) -> str:
    """``core/plan`` of ``ckconv/core/plan.py``, ``core`` of ``ckconv/core/__init__.py``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "/".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


FILES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


#: Nodes are many and stay: to look through them again and again takes two thirds of the time.
pytestmark = pytest.mark.usefixtures("no_collection")


@cache
def nodes_of(module: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(FILES[module].read_text())))


@cache
def imports(module: str) -> frozenset[str]:
    """The modules of the package that a module imports, anywhere in it, by name or by a string with its name."""
    found = set()
    for node in nodes_of(module):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if existing(name) else f"{node.module}" for name in names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("ckconv."):
            names = [node.value]
        found.update(existing(name) for name in names if name.split(".")[0] == "ckconv")
    return frozenset(found - {module, ""})


def existing(dotted: str) -> str:
    """The module of that dotted name; empty for none."""
    name = dotted.removeprefix("ckconv.").replace(".", "/") if dotted != "ckconv" else "__init__"
    return name if name in FILES and dotted.split(".")[0] == "ckconv" else ""


@cache
def box(module: str) -> str:
    """``core`` of ``core/plan``; each format is a box of its own."""
    parts = module.split("/")
    return "/".join(parts[:2]) if parts[0] == "formats" and len(parts) > 1 and is_folder(parts) else parts[0]


def is_folder(parts: list[str]) -> bool:
    return (PACKAGE / parts[0] / parts[1]).is_dir()


def arrows() -> Iterator[tuple[str, str]]:
    for module in FILES:
        for imported in imports(module):
            yield module, imported


def strings(module: str) -> Iterator[str]:
    """The strings of a module that are no docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = nodes_of(module)
    told = {id(node.body[0].value) for node in nodes if isinstance(node, documented) and ast.get_docstring(node)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield node.value


def only(found: Iterable[tuple[str, str]], listed: Mapping[str, str]) -> None:
    """Exactly what is listed is there."""
    there = set(found)
    expected = {(module, what) for module, names in listed.items() for what in names.split(", ")}
    new, mended = sorted(there - expected), sorted(expected - there)
    assert not new, f"not as it should be: {new}"
    assert not mended, f"mended, so its line in the list goes: {mended}"


def test_every_module_stands_on_a_floor() -> None:
    assert {box(module) for module in FILES} <= set(FLOOR_OF)


def test_imports_go_downward() -> None:
    assert {(a, b) for a, b in arrows() if box(a) != box(b) and FLOOR_OF[box(a)] <= FLOOR_OF[box(b)]} == set()


def test_no_circle_of_imports() -> None:
    """Floors rule them out between folders; modules of one folder count here, too."""
    direct = {module: imports(module) for module in FILES}
    reached = {module: set(found) for module, found in direct.items()}
    for middle in FILES:
        for module in FILES:
            if middle in reached[module]:
                reached[module] |= reached[middle]
    assert {module for module in FILES if module in reached[module]} == set()


def test_what_verifies_has_nothing_of_what_writes() -> None:
    """Neither by itself nor by what it imports within its own folder; readers of files are another matter."""
    found = {(a, b) for a, b in arrows() if box(a) == "verification" and WRITES.match(b)}
    assert found == set()


def test_what_verifies_loads_nothing_of_what_writes() -> None:
    """Nor do the modules that it imports."""
    names = sorted(f"ckconv.{module.replace('/', '.')}" for module in FILES if box(module) == "verification")
    code = f"import sys, {', '.join(names)}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert len(names) < len(loaded)
    assert {name for name in map(existing, loaded) if WRITES.match(name)} == set()


def test_what_compares_has_of_what_writes_what_plans_again() -> None:
    only(((a, b) for a, b in arrows() if box(a) == "comparison" and WRITES.match(b)), PLANS_AGAIN)


def test_a_second_implementation_has_nothing_of_the_first() -> None:
    found = set()
    for module in (module for module in FILES if box(module) == "verification" and module not in COMPUTED_TWICE):
        for node in nodes_of(module):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("ckconv.quant"):
                found |= {(module, alias.name) for alias in node.names if alias.name not in WORDS_OF_TYPES}
    assert found == set()


def test_boxes_and_arrows_are_few() -> None:
    top = {module.split("/")[0] for module in FILES}
    pairs = {(a.split("/")[0], b.split("/")[0]) for a, b in arrows()}
    assert len(top) <= MOST_BOXES
    assert len({pair for pair in pairs if pair[0] != pair[1]}) <= MOST_ARROWS


def test_only_the_probe_of_the_planner_reads() -> None:
    assert {(a, b) for a, b in arrows() if box(a) == "plan" and box(b) == "io" and a != "plan/probe"} == set()


def families() -> set[str]:
    """What families are called: their files, and the architectures in them. Fragments, which are none, go without."""
    found: set[str] = set()
    for path in (PACKAGE / "families").glob("*.toml"):
        document = tomllib.loads(path.read_text())
        if "huggingface" not in document:
            continue
        for form, key in (("gguf", "arch"), ("huggingface", "model_type")):
            names = document.get(form, {}).get(key, [])
            found.update([names] if isinstance(names, str) else names)
        found.add(path.stem)
    return found


def test_families_are_named_in_their_folder_only() -> None:
    pattern = re.compile(rf"(?<![\w.-])({'|'.join(sorted(families(), key=len, reverse=True))})(?![\w-]|\.\w)")
    found = set()
    for module in FILES:
        if box(module) not in ("families", "tokenizer"):
            found |= {(module, match) for text in strings(module) for match in pattern.findall(text)}
    assert found == set()


def test_formats_are_named_in_their_folder_and_in_the_command_line_only() -> None:
    """Family files have a column a format, and are learned of two of them."""
    names = {"gguf", "safetensors", "mlx", "peft", "bump", "huggingface", "gguf adapter", "mlx adapter"}
    found = set()
    for module in FILES:
        if not box(module).startswith(("formats", "cli", "families", "learning")):
            found |= {(module, text) for text in strings(module) if text in names}
    only(found, FORMATS)


def test_what_differs_between_systems_is_called_in_its_two_modules() -> None:
    found = set()
    for module in FILES:
        for node in nodes_of(module):
            if isinstance(node, ast.Import):
                found |= {(module, alias.name) for alias in node.names if alias.name in SYSTEM_MODULES}
            elif isinstance(node, ast.ImportFrom) and node.module in {"os", "signal", *SYSTEM_MODULES}:
                found |= {(module, f"{node.module}.{alias.name}") for alias in node.names}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                name = f"{node.value.id}.{node.attr}"
                found |= {(module, name)} & {(module, call) for call in SYSTEM_CALLS}
    assert {pair for pair in found if pair[0] not in ("system", "system/portable")} == set()


def test_files_are_short() -> None:
    assert {module for module, path in FILES.items() if path.read_text().count("\n") > MOST_LINES} == set()


def test_lines_of_family_files_are_short() -> None:
    files = sorted((PACKAGE / "families").rglob("*.toml"))
    lines = [(path.stem, n, line) for path in files for n, line in enumerate(path.read_text().splitlines(), 1)]
    assert [(name, n) for name, n, line in lines if len(line) > MOST_COLUMNS] == []
