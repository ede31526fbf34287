"""Checks of a whole family file: rows against each other, and names.

A user's file is checked whenever it is read, the shipped ones by a test.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from ckconv.families import axes as shapes
from ckconv.families.axes import AxesError
from ckconv.families.expressions import Expression, ExpressionError
from ckconv.families.merge import FORMATS, fault
from ckconv.families.names import Stored, names_of
from ckconv.families.schema import Family

#: Parameters without which nothing is known of a model's size.
REQUIRED = ("layers", "hidden", "heads", "vocabulary")

#: What expressions may ask for besides parameters: the layer, the stored value, the parameters that a source says,
#: and what is known of an output.
_GIVEN = frozenset({"n", "it", "stated", "context", "tied", "one_matrix"})

#: Parameters that follow from each other; more would be too deep to compute.
_MOST_STEPS = 64


def check_family(family: Family) -> None:
    """Refuse a file whose rows contradict each other.

    Raises:
        InputError: ``family.file``, with the key at fault.
    """
    for key, message in _faults(family):
        raise fault(family.path, f"{key}: {message}")


def _faults(family: Family) -> Iterator[tuple[str, str]]:
    for word, found in (
        ("model_type", family.in_huggingface.names),
        ("class", family.in_huggingface.classes),
    ):
        if not found:
            yield f"huggingface.{word}", "missing; a family has one"
    if "hf" not in family.prefixes:
        yield "prefix.hf", "missing; rows with M. and L. need it"
    for name in REQUIRED:
        if name not in family.parameters:
            yield f"parameters.{name}", "there is none, and without it no model can be read"
    if "by_layer" in family.document.window and "layer_types" not in family.parameters:
        yield "config.window", "there is no parameter 'layer_types', which 'by_layer' takes the default of"
    for name in ("rope_theta", "local_theta"):
        if name in family.parameters and "transformers" not in family.parameters[name].defaults:
            yield f"parameters.{name}", "no default for transformers, which reads files that do not say it"
    known = family.parameters.keys() | _GIVEN
    for key, expression in _expressions(family):
        for name in sorted(expression.names - known):
            yield key, f"{str(expression)!r} asks for {name!r}, and there is no such parameter"
    steps: dict[str, int] = {}
    for name in family.parameters:
        try:
            _steps(family, name, steps, ())
        except ExpressionError as error:
            yield f"parameters.{name}", str(error)
    for format in FORMATS:
        yield from _place_faults(family, format)


def _expressions(family: Family) -> Iterator[tuple[str, Expression]]:
    """Key and expression of everything that is computed."""
    used = {letter for row in family.tensors.values() for letter in shapes.letters(row.fused_axes)}
    yield from ((f"axes.{letter}", expression) for letter, expression in family.axes.items() if letter in used)
    kinds = [one for row in family.tensors.values() for one in (row.layers, row.spare) if one]
    asked = {name for one in (*kinds, *family.layers.values()) for name in one.names}
    yield from ((f"layers.{name}", one) for name, one in family.layers.items() if name in asked)
    for letter, stack in family.stacks.items():
        yield f"stacks.{letter}.count", stack.count
    for name, row in family.tensors.items():
        yield from ((f"tensors.{name}", one) for one in (row.bias, row.when) if one)
    for name, parameter in family.parameters.items():
        both = [cell for cells in parameter.cells.values() for cell in cells]
        computed = [one for cell in both for one in (cell.expression, cell.read, cell.write, cell.when)]
        everything = (parameter.value, *parameter.defaults.values(), *computed)
        yield from ((f"parameters.{name}", one) for one in everything if one)
    for name, engine in family.engines.items():
        for condition in (*engine.right_if, *engine.same_if):
            yield f"engines.{name}.right_if", condition.expression


def _steps(family: Family, name: str, known: dict[str, int], above: tuple[str, ...]) -> int:
    """How many parameters a parameter follows from, one after the other.

    Raises:
        ExpressionError: it leads back to itself, or too far.
    """
    if name in above or len(above) > _MOST_STEPS:
        raise ExpressionError(f"it depends on itself: {' -> '.join((*above, name)[-8:])}")
    if name not in known:
        parameter = family.parameters.get(name)
        asked = (parameter.value, *parameter.defaults.values()) if parameter else ()
        others = {other for expression in asked if expression for other in expression.names}
        known[name] = 1 + max((_steps(family, other, known, (*above, name)) for other in sorted(others)), default=0)
    return known[name]


def _place_faults(family: Family, format: str) -> Iterator[tuple[str, str]]:
    """Places claimed twice in a format, and fused segments without a row."""
    try:
        names = names_of(family, format)
    except AxesError as error:
        yield f"tensors ({format})", str(error)
        return
    for pattern, found in names.stored.items():
        if found in names.written.values() or found in names.packed.values():
            yield from _segment_faults(family, format, pattern, found)
    for pattern, choices in names.choices.items():
        for one, other in itertools.combinations([choice.parts[0].row.name for choice in choices], 2):
            if one != other and not _exclusive(family, one, other):
                yield f"tensors.{other}", f"{one} is {pattern} too ({format})"


def _segment_faults(family: Family, format: str, pattern: str, found: Stored) -> Iterator[tuple[str, str]]:
    last = found.parts[-1]
    key = f"tensors.{last.row.name}"
    fused = {part.stored for part in found.parts if shapes.segment_count(part.stored) > 1}
    if len(fused) > 1:
        yield key, f"{pattern} is described in two ways ({format}; {found.parts[0].row.name} has it too)"
        return
    taken: dict[int, str] = {}
    for part in found.parts:
        other = taken.setdefault(part.number, part.row.name)
        if other != part.row.name and not _exclusive(family, other, part.row.name):
            yield f"tensors.{part.row.name}", f"{other} is {pattern} too ({format})"
    for number in range(shapes.segment_count(last.stored)):
        if number not in taken:
            yield key, f"segment {number + 1} of {pattern} has no row ({format})"


def _exclusive(family: Family, one: str, other: str) -> bool:
    """Two rows whose conditions differ: no model has both."""
    rows = [family.tensors[name] for name in (one, other)]
    first, second = ((str(row.when or ""), str(row.layers or "")) for row in rows)
    return first != second
