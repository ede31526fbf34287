"""llama-quantize's recipes as data (``recipes.toml``).

They say which type each tensor of a model gets.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from ckconv.core.late import NamedTuple
from ckconv.core.layouts import DTYPES, F16, DType

#: Of tensors that belong to no layer: they come first, as in llama.cpp's order.
_NO_LAYER = -1

#: Categories whose tensors count by their layer where there are experts (``layer_info``).
_BY_LAYER = frozenset({"down", "gate", "up"})


class Model(NamedTuple):
    """Facts about a model that recipes depend on.

    Attributes:
        architecture: in GGUF.
    """

    architecture: str
    layers: int
    heads: int
    kv_heads: int
    experts: int
    importance: bool


class Matrix(NamedTuple):
    """A tensor of a GGUF: its name, and its shape, outermost first."""

    name: str
    shape: tuple[int, ...]


@cache
def table() -> Mapping[str, Any]:
    """The data."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


def names() -> tuple[str, ...]:
    """Names of the recipes."""
    return tuple(name.lower() for name in table()["recipes"])


def file_type(recipe: str) -> int:
    """The value of ``general.file_type``."""
    return int(table()["recipes"][recipe.upper()]["file_type"])


def needs_importance(recipe: str) -> frozenset[str]:
    """Types that take an importance matrix in this recipe, and in others not."""
    return frozenset(table()["recipes"].get(recipe.upper(), {}).get("needs", ()))


def base(recipe: str) -> str:
    """The type of most matrices."""
    return str(table()["recipes"][recipe.upper()]["base"])


def quantized(matrix: Matrix) -> bool:
    """llama-quantize does not leave this tensor as it is."""
    dimensions = next((len(matrix.shape) - at for at, length in enumerate(matrix.shape) if length > 1), 1)
    whole = matrix.name.endswith("weight") and dimensions > 1
    return whole and not any(part in matrix.name for part in table()["kept"])


def fallback(dtype: DType, columns: int) -> DType:
    """The type for rows of this length.

    Another type where the rows are not whole blocks.
    """
    if columns % dtype.block == 0:
        return dtype
    other = DTYPES[table()["fallback"].get(dtype.name, dtype.name)]
    return other if columns % other.block == 0 else F16


def mixed(recipe: str, matrices: Iterable[Matrix], given: Mapping[str, DType], model: Model) -> dict[str, DType]:
    """Name -> type of every tensor that is quantized.

    Args:
        given: types that were asked for by name; these tensors do not count among the layers, as with llama-quantize's
            ``--tensor-type``.
    """
    rows = dict(table()["recipes"][recipe.upper()])
    instead = table()["instead"].get(model.architecture, {})
    rows |= instead.get(recipe.upper(), {})
    ordered = sorted(matrices, key=lambda matrix: (_layer(matrix.name), matrix.name))
    categories = {matrix.name: _category(matrix.name) for matrix in ordered}
    tied = "output" not in categories.values()
    of_v, seen = Counter(categories.values())["v"], Counter[str]()
    found: dict[str, DType] = {}
    for matrix in filter(quantized, ordered):
        category, columns = categories[matrix.name], matrix.shape[-1]
        dtype = given.get(matrix.name)
        if dtype is None and (category == "output" or (tied and category == "embedding")):
            dtype = _head(rows, columns, instead)
        elif dtype is None:
            at, of = seen[category], of_v if category == "v" else model.layers
            if category in _BY_LAYER and model.experts > 1 and "low" not in rows:
                at = _layer(matrix.name)
            if "stacked" in rows and len(matrix.shape) > 2:
                dtype = DTYPES[rows["stacked"]]
            else:
                dtype = _type(recipe.upper(), rows, category, at, of, model)
            seen[category] += 1
        found[matrix.name] = fallback(dtype, columns)
    return found


class Picture(NamedTuple):
    """Names of a model that diffuses, by parts, or whole behind ``=``.

    Attributes:
        stays: matrices that stay floats.
        ends: those of the first block and of the last, where these have more bits.
    """

    stays: tuple[str, ...]
    ends: tuple[str, ...]


def of_pictures() -> tuple[str, ...]:
    """Names of the recipes that a model which diffuses is quantized with."""
    return tuple(name.lower() for name in table()["pictures"]["recipes"])


def of_pictures_types() -> frozenset[str]:
    """Names of the types that these make."""
    rows = table()["pictures"]["recipes"]
    return frozenset(base(name) for name in rows)


def pictured(
    recipe: str, matrices: Iterable[Matrix], given: Mapping[str, DType], model: Picture
) -> tuple[dict[str, DType], dict[str, DType]]:
    """Name -> type of every tensor of such a model that is quantized.

    Args:
        recipe: or a type, which all of them get.
        matrices: in the order of the file, by which V counts.

    Returns:
        The types, and those of matrices whose rows are no whole blocks of it: they stay floats.
    """
    rows = table()["pictures"]["recipes"].get(recipe.upper(), {})
    base_type = base(recipe) if recipe in names() else recipe.upper()
    seen = Counter[str]()
    found: dict[str, DType] = {}
    left: dict[str, DType] = {}
    for matrix in matrices:
        lengths = [length for length in matrix.shape if length > 1]
        if len(lengths) != 2 or not quantized(matrix) or _has(matrix.name, model.stays):
            continue
        part = next((part for part, of in table()["pictures"]["parts"].items() if _has(matrix.name, of)), "")
        ends = "ends" in rows and _has(matrix.name, model.ends)
        choices = rows.get("ends" if ends else part, ())
        chosen = next((name for condition, name in choices if _holds(condition, seen[part], 0, _NO_MODEL)), base_type)
        seen[part] += 1
        dtype = given.get(matrix.name, DTYPES[chosen])
        (left if matrix.shape[-1] % dtype.block else found)[matrix.name] = dtype
    return found, left


def _has(name: str, parts: Iterable[str]) -> bool:
    return any(name == part[1:] if part[:1] == "=" else fnmatchcase(name, f"*{part}*") for part in parts)


_NO_MODEL = Model("", 0, 0, 0, 0, importance=False)


def _head(rows: Mapping[str, Any], columns: int, instead: Mapping[str, Any]) -> DType:
    base = DTYPES[rows["base"]]
    if "output" in instead or columns % base.block or base.name == "Q8_0":
        return DTYPES["Q8_0"]
    return DTYPES[rows.get("head", "Q6_K")]


def _type(recipe: str, rows: Mapping[str, Any], category: str, at: int, of: int, model: Model) -> DType:
    base, low = rows["base"], "low" in rows
    if model.experts == 8 and category in ("v", "k") and not low:
        return DTYPES["Q8_0"]
    if model.experts == 8 and category == "attention" and not low:
        return DTYPES["Q5_K" if recipe in table()["eight"]["attention"] else base]
    chosen = next((name for condition, name in rows.get(category, ()) if _holds(condition, at, of, model)), base)
    if category == "v" and chosen in ("Q3_K", "Q4_K") and _is_70b(model) and not low:
        chosen = "Q5_K"
    return DTYPES[chosen]


def _holds(condition: str, at: int, of: int, model: Model) -> bool:
    return all(_word_holds(word, at, of, model) for word in condition.split())


def _word_holds(word: str, at: int, of: int, model: Model) -> bool:
    name, sign, number = word.partition(next((sign for sign in "</=>" if sign in word), " "))
    if sign == "<":
        return at < int(number)
    if sign == "/":
        return at < of // int(number)
    if name == "experts":
        return model.experts == int(number) if sign == "=" else model.experts > int(number)
    return {
        "more": at < of // 8 or at >= 7 * of // 8 or (at - of // 8) % 3 == 2,
        "inner": of // 8 <= at < 7 * of // 8,
        "weighed": model.importance,
        "unweighed": not model.importance,
        "shared": model.heads >= 4 * max(model.kv_heads, 1),
    }[name]


def _is_70b(model: Model) -> bool:
    return any(
        (model.architecture, model.layers) == (architecture, layers) and not (own and model.heads == model.kv_heads)
        for architecture, layers, *own in table()["seventy"]
    )


def _category(name: str) -> str:
    for category, part in table()["categories"]:
        if name == part[1:] if part.startswith("=") else part in name:
            return str(category)
    return ""


def _layer(name: str) -> int:
    root, _, rest = name.partition(".")
    number = rest.partition(".")[0]
    return int(number) if root == "blk" and number.isdecimal() else _NO_LAYER
