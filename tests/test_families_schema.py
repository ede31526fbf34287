"""What a family file may not say, each with its sentence; expressions and axes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from orders import to_canonical, to_stored

from ckconv.core.layouts import F32
from ckconv.errors import InputError
from ckconv.families.axes import AxesError, expanded, move, of_part, parse
from ckconv.families.catalog import families_of_engine, family_without_name
from ckconv.families.expressions import FUNCTIONS, ExpressionError, parse as expression
from ckconv.families.merge import ENGINE_FIELDS, FOLDER, KEY_FIELDS, ROW_FIELDS, SECTIONS, merged, misformed
from ckconv.families.schema import load
from ckconv.families.sizes import Kind, stored_layout

OLMO2 = (FOLDER / "olmo2.toml").read_text()


def sentence(tmp_path: Path, text: str) -> str:
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load(path)
    assert (caught.value.code, caught.value.path) == ("family.file", str(path))
    return caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tensors", "no TOML: "),
        ("[tensor]", "there is no section 'tensor' (known: axes, config, "),
        (
            'extends = "llama"\n[parameters]\ntied = false\n[defaults]\nmlx_lm = { tied = true }',
            "defaults.mlx_lm.tied: parameters.tied says its value already",
        ),
        (
            'extends = "llama"\n[defaults]\nllama = { tied = true }',
            "parameters.tied: there is no field 'llama' (known: llama_cpp, mlx_lm, transformers)",
        ),
        ('extends = "nothing"', "extends 'nothing', and there is no such family"),
        ('extends = "../llama"', "extends '../llama', and there is no such family"),
        ('extends = "llama"\nwithout = ["L.nothing.*"]', "without 'L.nothing.*': nothing inherited has that name"),
        (
            'extends = "llama"\n[tensors]\n"L.x" = { axes = "H", hf = "L.x", gguf = "L.x", turned = true }',
            "tensors.L.x: there is no field 'turned'",
        ),
        (
            'extends = "llama"\n[tensors]\n"L.x" = { axes = "H Z", hf = "L.x", gguf = "L.x" }',
            "tensors.L.x: there is no axis 'Z'",
        ),
        (
            'extends = "llama"\n[tensors]\n"L.x" = { axes = "H", hf = "L.x" }',
            'tensors.L.x: gguf is missing: gguf = "NAME", or gguf = "absent" where the format has none',
        ),
        *(
            (
                f'extends = "llama"\n[tensors]\n"L.x" = {{ axes = "H", hf = "{hf}", gguf = "{gguf}" }}',
                f"tensors.L.x: {wrong} would be a name of every layer's: {format} = 'L.x' has its number",
            )
            for hf, gguf, format, wrong in (("M.x", "L.x", "hf", "M.x"), ("L.x", "x", "gguf", "x"))
        ),
        (
            'extends = "llama"\n[tensors]\n"L.x" = { axes = "H V", hf = "L.x", gguf = { name = "L.x", axes = "H I" } }',
            "tensors.L.x: L.x: the stored shape has no axis 'V'",
        ),
        (
            'extends = "llama"\n[tensors]\n"L.x" = { axes = "H", hf = "L.x", gguf = { name = "L.x", value = "two" } }',
            "tensors.L.x: there is no value operation 'two' (known: add_one, neg_exp, exp, softplus, whole, experts, "
            "counted)",
        ),
        (
            'extends = "llama"\n[tensors]\n"L.x" = { axes = "H", hf = "L.x", gguf = { name = "L.x", value = 1e39 } }',
            "tensors.L.x: 1e+39 is no number above 0 and below 2 that can be added",
        ),
        (  # the number of neg_exp: what is stored would be an exponential
            'extends = "llama"\n[tensors]\n"L.x" = { axes = "H", hf = "L.x", gguf = { name = "L.x", value = 2.0 } }',
            "tensors.L.x: 2.0 is no number above 0 and below 2 that can be added",
        ),
        (
            'extends = "llama"\n[tensors]\n"L.{x,y}" = '
            '{ axes = "(H|H)", hf = "L.x", gguf = { name = "L.x", axes = "(H|H)", map = "{1,2}" } }',
            "tensors.L.{x,y}: map '2': a segment of 2, counted from 0, expected",
        ),
        (
            'extends = "llama"\n[tensors]\n"L.x" = '
            '{ axes = "H", hf = "L.x", gguf = { name = "L.x", instead = "L.z" } }',
            "tensors.L.x: there is no row 'L.z' to stand instead",
        ),
        (
            'extends = "llama"\n[tensors]\n"L.x" = '
            '{ axes = "H", hf = { name = "L.x", value = "add_one" }, gguf = "L.x" }',
            "tensors.L.x: hf holds the values themselves, without add_one",
        ),
        (
            'extends = "llama"\n[tensors]\n"L.x" = { axes = "H", hf = { name = "L.x", when = "tied" }, gguf = "L.x" }',
            "tensors.L.x: there is no field 'when' (known: as, axes, by, name, part, parts, value)",
        ),
        (
            'extends = "llama"\n[tensors]\n"L.x" = '
            '{ axes = "(A D) H", hf = { name = "L.x", axes = "(D R) H" }, gguf = "L.x" }',
            "tensors.L.x: L.x: the stored shape has no axis 'A'",
        ),
        (
            'extends = "llama"\n[tensors]\n"L.x" = '
            '{ axes = "H", hf = { name = "L.x", axes = "(_o|H)" }, gguf = "L.x" }',
            "tensors.L.x: there is no axis '_o'",
        ),
        (
            'extends = "llama"\n[tensors]\n"L.x" = { axes = "H A", hf = "L.x.{A}", gguf = "L.x" }',
            "tensors.L.x: L.x.{A}: only the first axis is stored one by one, and not in gguf",
        ),
        (
            'extends = "llama"\n[tensors]\n"x" = { axes = "H", hf = { name = "x", dropped = "", y = 3 }, gguf = "x" }',
            "tensors.x: there is no field 'y' (known: dropped, name, part, parts, value)",
        ),
        (
            'extends = "llama"\n[tensors]\n'
            '"x" = { axes = "H", hf = { name = "x", dropped = "", value = "zeroes" }, gguf = "x" }',
            "tensors.x: a tensor that is dropped has no value 'zeroes' (known: copied, sinusoids, zeros)",
        ),
        (
            'extends = "llama"\n[tensors]\n"L.{a,b}" = { axes = "H", hf = "L.{x,y,z}", gguf = "L.x" }',
            "tensors.L.{a,b}: 'L.{x,y,z}' is written for 3 tensors, the row for 2",
        ),
        (
            'extends = "llama"\n[tensors]\n"L.x" = { axes = "H", layers = "sparse", hf = "L.x", gguf = "L.x" }',
            "tensors.L.x: there is no layer kind 'sparse' (known: none; a new one is a row of [layers])",
        ),
        (
            'extends = "llama"\n[parameters]\nx = { hf = "x", gguf = "x:f99" }',
            "parameters.x: there is no type 'f99' of keys (known: u32, ",
        ),
        (
            'extends = "llama"\n[parameters]\nx = { hf = "x", required = true }',
            "parameters.x: there is no field 'required' (known: ",
        ),
        (
            'extends = "llama"\n[parameters]\nx = "__import__(1)"',
            "parameters.x: '__import__(1)' calls something that is not a function of family files",
        ),
        ('extends = "llama"\n[engines.mlx_lm]\nklass = "x"', "engines.mlx_lm: there is no field 'klass' (known: "),
    ],
)  # fmt: skip
def test_a_fault_of_a_file_is_one_sentence_with_the_key(tmp_path: Path, text: str, message: str) -> None:
    assert sentence(tmp_path, text).startswith(message)


def test_a_file_that_extends_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('extends = "b"')
    (tmp_path / "b.toml").write_text('extends = "a"')
    with pytest.raises(InputError, match="extends forms a circle, or goes too deep"):
        merged(tmp_path / "a.toml", folder=tmp_path)


def test_a_relative_changes_one_field_of_a_row(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('extends = "llama"\n[tensors]\n"L.attention.q" = { gguf.name = "L.attn_query" }\n')
    one, own = load(FOLDER / "llama.toml").tensors["L.attention.q"], load(path).tensors["L.attention.q"]

    assert own.cells["gguf"][0].name == "L.attn_query"
    assert (own.cells["gguf"][0].axes, own.cells["hf"]) == (one.cells["gguf"][0].axes, one.cells["hf"])


def test_engines_are_not_inherited(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('extends = "llama"\n')
    assert load(FOLDER / "olmo2.toml").engines.keys() == {"llama_cpp", "mlx_lm", "transformers", "bump3", "bump5"}
    assert load(path).engines == {}


# Expressions


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("hidden / heads", 16.0),
        ("hidden // 5 + 2 ** 3", 20),
        ("'a' in ['a', 'b'] and not tied", True),
        ("x if tied else null", None),
        ("min(heads, 2, int(7.9))", 2),
        ("spread(3, 'a')[2]", "a"),
        ("[n < 1 for n in upto(3)]", [True, False, False]),
        ("hidden ** 0.5", 8.0),
        ("'8' in f'{[7, hidden // 8]}'", True),
        ("every(4, 2, 's', 'f')", ["s", "f", "s", "f"]),
        ("1 < heads <= 4", True),
        ("-heads", -4),
        ("[n * heads for n in upto(3)]", [0, 4, 8]),
        ("[{'x': w, 'y': n}['x'] // x for w in [6, 8]]", [6, 8]),
        ("{f'{m}': m for m in upto(9)[:5] if m % heads == x}", {"1": 1}),
    ],
)
def test_expressions_compute(text: str, value: object) -> None:
    assert expression(text).value({"hidden": 64, "heads": 4, "tied": False, "x": 1, "n": 7}) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "1 +", "lambda: 1", "[x for x in y if upto(x)]", "[x for x, z in y]", "[x for x in y for z in x]",
        "[x for x in x]", "[x for x in y][0] == x",
        "{x for x in y}", "[[z for z in x] for x in y]", "[upto(9) for x in y]", "(x for x in y)", "a.b",
        "a := 1", "f'{a!r}'", "{**a}",
        "b'x'", "open('x')", "min(*a)", "min(a=1)", "(" * 300, "1" * 600,
    ],
)  # fmt: skip
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        expression(text)


@pytest.mark.parametrize(
    "text", ["9 ** 9 ** 9", "(0 - 1) ** 0.5", "'a' * 1000", "[1] * 9", "1 / 0", "missing", "len(1)", "'a' < 1"]
)
def test_what_has_no_value_says_so(text: str) -> None:
    with pytest.raises(ExpressionError):
        expression(text).value({})


# Axes

SIZES = {"A": 3, "R": 2, "D": 4, "d": 2, "H": 5, "E": 2, "P": 3, "v": 2}


def moved(stored: str, canonical: str, part: int = 0):
    return move(parse(stored), parse(canonical), part, SIZES.__getitem__)


@pytest.mark.parametrize(
    ("stored", "canonical", "part", "order"),  # in order, interleaved, whole rows
    [
        ("(A d 2) H", "(A 2 d) H", 0, (False, True, True)),
        ("H (A D)", "(A D) H", 0, (False, False, False)),
        ("(A (P|v)) H", "A P H", 0, (False, False, True)),
        ("(A (P|v)) H", "A v H", 1, (False, False, True)),
        ("((A D)|(R D)|(R D)) H", "(R D) H", 2, (False, False, True)),
        ("H ((A D)|(R D))", "(R D) H", 1, (False, False, False)),
        ("H 1 d", "H d", 0, (True, False, True)),
        ("(_o|H) A", "H A", 0, (False, False, True)),
        ("(H (1|1)) A", "H A", 1, (False, False, True)),
        ("E H A", "E A H", 0, (False, False, False)),
    ],
)
def test_values_come_back_from_every_order(stored: str, canonical: str, part: int, order: tuple[bool, ...]) -> None:
    sizes = {**SIZES, "o": 2}
    found = move(parse(stored), parse(canonical), part, sizes.__getitem__)
    values = np.arange(np.prod(found.canonical), dtype=np.float32).reshape(found.canonical) + 1
    into = np.zeros(found.stored, np.float32)
    to_stored(found, values, into)

    assert np.array_equal(to_canonical(found, into), values)
    assert np.count_nonzero(into) == values.size
    layout = stored_layout((Kind(found.stored, found.canonical, found.first, found.axes),), F32)
    assert (layout.in_order, layout.interleaved, layout.whole_rows) == order


@given(st.permutations(["A", "R", "D", "H"]), st.permutations(["A", "R", "D", "H"]))
def test_every_permutation_has_an_inverse(one: list[str], other: list[str]) -> None:
    found = moved(" ".join(one), " ".join(other))
    values = np.arange(120).reshape(found.canonical)
    into = np.zeros(found.stored, values.dtype)
    to_stored(found, values, into)
    assert np.array_equal(into, np.einsum("".join(other) + "->" + "".join(one), values))
    assert np.array_equal(to_canonical(found, into), values)


@pytest.mark.parametrize(
    ("stored", "canonical", "run"),
    [("(A D) H", "(A D) H", 5), ("(A d 2) H", "(A 2 d) H", 5), ("H D", "D H", 1), ("H (A R D)", "H (R A D)", 4)],
)
def test_the_run_is_what_stays_together(stored: str, canonical: str, run: int) -> None:
    found = moved(stored, canonical)
    assert stored_layout((Kind(found.stored, found.canonical, found.first, found.axes),), F32).run == run


@pytest.mark.parametrize("text", ["A (B", "A )", "A |", "(A|) H", "A-B"])
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(AxesError):
        parse(text)


def test_braces_go_in_step() -> None:
    assert expanded("L.{q,k}") == ["L.q", "L.k"]
    assert expanded("L.{a,b}.{n}.{E}.{x,y}") == ["L.a.{n}.{E}.x", "L.b.{n}.{E}.y"]
    with pytest.raises(AxesError, match="braces with different counts"):
        expanded("{a,b}.{x,y,z}")
    assert of_part(parse("(A D|R D) H"), 1) == parse("(R D) H")


def test_an_engine_may_be_known_to_have_nothing_for_a_family(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('extends = "llama"\nengines = { bump3 = "absent", bump5 = { tensors = ["L.{a,b}.weight"] } }')
    engines = load(path).engines
    assert engines["bump3"].absent
    assert not engines["bump5"].absent
    assert engines["bump5"].tensors == ("L.a.weight", "L.b.weight")


def test_the_families_that_the_engine_of_bump_5_has_a_template_for() -> None:
    found = {family.name for family in families_of_engine("bump5")}
    assert found == {"llama", "qwen2", "qwen3", "gemma3", "glm4", "nemotron_h", "qwen3_5", "qwen3_vl"}


NORMS = [f"layers.{{n}}.attention.{x}_norm.weight" for x in "qk"]
POST = [f"layers.{{n}}.post_{x}_norm.weight" for x in ("attention", "ffn")]


@pytest.mark.parametrize(
    ("present", "family"), [([], "llama"), (NORMS, "qwen3"), ([*NORMS, *POST], "gemma3"), (POST, "gemma3")]
)
def test_a_bump_file_that_names_no_family_is_taken_for_the_one_with_its_norms(present: list[str], family: str) -> None:
    assert family_without_name("bump5", ["output.weight", *present]) == family
    assert family_without_name("bump3", []) == "llama"


def words_of_files() -> set[str]:
    """Every field that a family file may have: those whose form is checked, and those of its rows."""
    forms = (FOLDER / "merge.py").read_text().partition("\ndef _layer")[2].partition("def misformed")[0]
    sections = SECTIONS - {"axes", "gguf", "layers", "prefix", "tensors"}  # which are fields, too
    words = {*ROW_FIELDS, *ENGINE_FIELDS, *KEY_FIELDS} | set(re.findall(r'"([a-z_]+)"', forms))
    return (words | {"drafts"}) - sections


def said(table: object) -> Iterator[str]:
    for key, value in table.items() if isinstance(table, dict) else ():
        yield key
        yield from said(value)
    for item in table if isinstance(table, list) else ():
        yield from said(item)


def test_the_page_has_an_example_of_each_of_the_few_words_of_a_family_file() -> None:
    """The page's own examples are read as a file is; a word that no example has is one that nobody finds."""
    page = (FOLDER.parents[1] / "docs" / "adding-a-family.md").read_text()
    examples = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)]

    assert words_of_files() - {word for table in examples for word in said(table)} == set()
    assert len(words_of_files()) <= 80
    assert len(FUNCTIONS) <= 20
    rows = re.findall(r"^(\S.*?)  ->  (.*)$", page, re.MULTILINE)
    assert [row for row in rows if repr(expression(row[0]).value({})) != row[1]] == []
    assert set(re.findall(r"\b(\w+)\(", " ".join(row[0] for row in rows))) == FUNCTIONS.keys()
    assert [misformed(table) for table in examples] == [None] * len(examples)
