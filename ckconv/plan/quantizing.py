"""``--quantize TYPE[,GLOB=TYPE...]``: the type of each tensor."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckconv.core.config import ModelConfig
from ckconv.core.layouts import BF16, DTYPES, F16, F32, GGML_BLOCKS, DType, Kind
from ckconv.core.lazy import Floats, NamedTuple, table_of
from ckconv.core.options import OPTIONS, Option, Options, Takes, given_options
from ckconv.core.tensors import Tensor
from ckconv.errors import UsageError, counted, missing_package
from ckconv.families.catalog import FAMILIES
from ckconv.quant.convert import (
    GGML_TYPES,
    NEEDS_IMPORTANCE,
    SPEED,
    UNLIKE,
    Conversion,
    Errors,
    QuantSettings,
    Run,
    decodable,
    ggml_python_differs,
    has_library,
    missing_quantizer,
    needs_library,
    of_values,
)
from ckconv.quant.mlx import LEAST_NVFP4, MODES

# -- llama-quantize's recipes, plan/recipes.toml -----------------------------------------------------------------------

# A recipe says which type each tensor of a model gets.

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
def recipes() -> Mapping[str, Any]:
    """The data."""
    return table_of(Path(__file__).with_name("recipes.toml"))


def recipe_names() -> tuple[str, ...]:
    """Names of the recipes."""
    return tuple(name.lower() for name in recipes()["recipes"])


def file_type(recipe: str) -> int:
    """The value of ``general.file_type``."""
    return int(recipes()["recipes"][recipe.upper()]["file_type"])


def needs_importance(recipe: str) -> frozenset[str]:
    """Types that take an importance matrix in this recipe, and in others not."""
    return frozenset(recipes()["recipes"].get(recipe.upper(), {}).get("needs", ()))


def base_type(recipe: str) -> str:
    """The type of most matrices."""
    return str(recipes()["recipes"][recipe.upper()]["base"])


def quantized(matrix: Matrix) -> bool:
    """Whether llama-quantize does not leave this tensor as it is."""
    dimensions = next((len(matrix.shape) - at for at, length in enumerate(matrix.shape) if length > 1), 1)
    whole = matrix.name.endswith("weight") and dimensions > 1
    return whole and not any(part in matrix.name for part in recipes()["kept"])


def fallback(dtype: DType, columns: int) -> DType:
    """Type for rows of ``columns``: a fallback if these are no whole blocks."""
    if columns % dtype.block == 0:
        return dtype
    other = DTYPES[recipes()["fallback"].get(dtype.name, dtype.name)]
    return other if columns % other.block == 0 else F16


def mixed(recipe: str, matrices: Iterable[Matrix], given: Mapping[str, DType], model: Model) -> dict[str, DType]:
    """Name -> type of every tensor that is quantized.

    Args:
        given: types that were asked for by name; these tensors do not count among the layers, as with llama-quantize's
            ``--tensor-type``.
    """
    rows = dict(recipes()["recipes"][recipe.upper()])
    instead = recipes()["instead"].get(model.architecture, {})
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
    return tuple(name.lower() for name in recipes()["pictures"]["recipes"])


def of_pictures_types() -> frozenset[str]:
    """Names of the types that these make."""
    rows = recipes()["pictures"]["recipes"]
    return frozenset(base_type(name) for name in rows)


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
    rows = recipes()["pictures"]["recipes"].get(recipe.upper(), {})
    base = base_type(recipe) if recipe in recipe_names() else recipe.upper()
    seen = Counter[str]()
    found: dict[str, DType] = {}
    left: dict[str, DType] = {}
    for matrix in matrices:
        lengths = [length for length in matrix.shape if length > 1]
        if len(lengths) != 2 or not quantized(matrix) or _has(matrix.name, model.stays):
            continue
        part = next((part for part, of in recipes()["pictures"]["parts"].items() if _has(matrix.name, of)), "")
        ends = "ends" in rows and _has(matrix.name, model.ends)
        choices = rows.get("ends" if ends else part, ())
        chosen = next((name for condition, name in choices if _holds(condition, seen[part], 0, _NO_MODEL)), base)
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
        return DTYPES["Q5_K" if recipe in recipes()["eight"]["attention"] else base]
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
        for architecture, layers, *own in recipes()["seventy"]
    )


def _category(name: str) -> str:
    for category, part in recipes()["categories"]:
        if name == part[1:] if part.startswith("=") else part in name:
            return str(category)
    return ""


def _layer(name: str) -> int:
    root, _, rest = name.partition(".")
    number = rest.partition(".")[0]
    return int(number) if root == "blk" and number.isdecimal() else _NO_LAYER


if TYPE_CHECKING:
    from ckconv.plan.planner import Planner


# -- The flag ----------------------------------------------------------------------------------------------------------

#: Float types that a tensor named by a glob may keep, or be rounded to.
FLOATS = {"f32": F32, "f16": F16, "bf16": BF16}

#: Million weights a second of the other types, and how many seconds are worth a line.
_FAST, _LONG = 30.0, 120

_GGML_WORDS = "a type of ggml (q4_k: all matrices) or a recipe (q4_k_m)"
_MLX_WORDS = "affine:BITS:GROUP, mxfp4, mxfp8 or nvfp4"


class TypeRequest(NamedTuple):
    """The value of the flag, in lower case.

    Attributes:
        word: the type, or the recipe, of all that no glob names.
        rules: (glob, type), of which the last that matches counts.
    """

    word: str
    rules: tuple[tuple[str, str], ...] = ()

    def of(self, written: str, *tensors: Tensor) -> str:
        """Type that a glob asks for an output tensor; empty where none does."""
        return next((word for glob, word in reversed(self.rules) if names(glob, written, *tensors)), "")


def names(glob: str, written: str, *tensors: Tensor) -> bool:
    """Whether a glob matches an output, source or canonical name."""
    return any(fnmatchcase(name, glob) for name in (written, *(name for t in tensors for name in (t.name, t.source))))


def parsed(text: str) -> TypeRequest:
    """Parse the value of the flag."""
    first, *rest = text.split(",")
    rules = []
    for item in rest:
        glob, equals, word = item.rpartition("=")
        if not equals or not glob or not word:
            raise UsageError("usage.quantize", f"--quantize {text}: GLOB=TYPE expected after a comma, not {item!r}")
        rules.append((glob.strip(), word.strip().lower()))
    wanted = TypeRequest(first.strip().lower(), tuple(rules))
    for word in (wanted.word, *(word for _, word in rules)):
        if not (word in GGML_TYPES or word in FLOATS or word in recipe_names() or word.partition(":")[0] in MODES):
            hint = f"for a GGUF or a bump file {_GGML_WORDS}; for MLX {_MLX_WORDS}"
            made = UNLIKE.get(word.upper(), f"nothing here quantizes floats to {word.upper()} as llama-quantize does")
            why = made if word.upper() in GGML_BLOCKS else f"there is no type {word!r}"
            near = "iq1_s and iq2_xxs, with --imatrix FILE, are the types next to it"
            raise UsageError(
                "usage.quantize", f"--quantize {text}: {why}", hint=near if word.upper() in UNLIKE else hint
            )
    if wanted.word in FLOATS:
        raise UsageError("usage.quantize", f"--quantize {text}: --dtype {wanted.word} makes all tensors {wanted.word}")
    return wanted


def picture_request(text: str) -> TypeRequest:
    """The same for a model that diffuses."""
    request = ggml_request(text)
    for word in (request.word, *(word for _, word in request.rules)):
        if word not in FLOATS and word not in of_pictures() and word.upper() not in of_pictures_types():
            message = f"--quantize {text}: the quantizer of ComfyUI-GGUF makes no {word} of a model that diffuses"
            hint = f"one of {', '.join(of_pictures())}"
            raise UsageError("usage.quantize", message, hint=hint)
    return request


def ggml_request(text: str) -> TypeRequest:
    """The same for a target that has ggml's types."""
    request = parsed(text)
    for word in (request.word, *(word for _, word in request.rules)):
        if word not in GGML_TYPES and word not in FLOATS and word not in recipe_names():
            message = f"--quantize {text}: {word} is a type of MLX, and the output takes {_GGML_WORDS}"
            raise UsageError("usage.quantize", message)
    for glob, word in request.rules:
        if word not in GGML_TYPES and word not in FLOATS:
            message = f"--quantize {text}: {word} is a recipe for a whole model, {glob} takes a type (q6_k)"
            raise UsageError("usage.quantize", message)
    return request


class GgufTensor(NamedTuple):
    """One tensor of a GGUF, and the source tensors that it is made of."""

    matrix: Matrix
    parts: tuple[Tensor, ...]


class TypePlan:
    """Types that ``--quantize`` gives the tensors of one output.

    Nothing where the flag is not given. Without ``f16``, rows that would fall back to it stay floats.

    Attributes:
        types: name in GGUF -> type.
        file_type: of the recipe, ``None`` where the tensors say it.
        errors: how far values move, once they do.
    """

    def __init__(
        self,
        planner: Planner,
        placed: Sequence[GgufTensor],
        config: ModelConfig | None,
        picture: Picture | None = None,
        *,
        f16: bool = True,
    ) -> None:
        self.types: dict[str, DType] = {}
        self.file_type: int | None = None
        self.errors = Errors()
        self._importance: dict[str, Floats] = {}
        self._planner = planner
        if not planner.options.quantize or (config is None and picture is None):
            return
        request = (picture_request if picture else ggml_request)(planner.options.quantize)
        words = {p.matrix.name: request.of(p.matrix.name, *p.parts) for p in placed}
        given = {name: (GGML_TYPES | FLOATS)[word] for name, word in words.items() if word}
        matrices = [p.matrix for p in placed]
        self._weigh(placed)
        if request.word in recipe_names():
            self.file_type = file_type(request.word)
        if picture is not None:
            self.types, left = pictured(request.word, matrices, given, picture)
            for block, tensors in _by_block(left).items():
                text = f"rows that are not whole blocks of {block:,} stay floats: {tensors[0]}"
                planner.notes.append(f"{text} ({counted(len(tensors), 'tensor')})")
        elif config is not None and request.word in recipe_names():
            self.types = mixed(request.word, matrices, given, _model(config, bool(planner.source.importance)))
        else:
            base = GGML_TYPES[request.word]
            self.types = {m.name: fallback(given.get(m.name, base), m.shape[-1]) for m in matrices if quantized(m)}
        fallen = {name for name, dtype in self.types.items() if dtype is F16 and given.get(name) is not F16}
        self._left = set() if f16 else fallen
        self._check(request, placed, given)
        self.types = {name: dtype for name, dtype in self.types.items() if name not in self._left}

    def _weigh(self, placed: Sequence[GgufTensor]) -> None:
        """Find an importance matrix of the right size for each tensor.

        A wrong size is refused, except for an embedding: llama-quantize ignores that.
        """
        given = self._planner.source.importance
        for matrix, _ in placed:
            experts = matrix.shape[0] if len(matrix.shape) == 3 else 1
            numbers, wanted = given.get(matrix.name), experts * matrix.shape[-1]
            if numbers is not None and numbers.size == wanted:
                self._importance[matrix.name] = numbers.reshape(experts, -1)
            elif numbers is not None and quantized(matrix) and not matrix.name.endswith("token_embd.weight"):
                text = f"the importance matrix has {numbers.size:,} numbers for {matrix.name}, which takes {wanted:,}"
                self._planner.refuse(text)
        if given and not self._importance:
            self._planner.refuse("the importance matrix names no tensor of the model")
        if given and not has_library():
            raise missing_package("an importance matrix", "libgguf")

    def _check(self, request: TypeRequest, placed: Sequence[GgufTensor], given: Mapping[str, DType]) -> None:
        planner = self._planner
        fallen: dict[str, list[str]] = {}
        for item in placed:
            dtype = self.types.get(item.matrix.name)
            if dtype is None:
                continue
            for part in item.parts:
                for why, hint in _reasons(planner, part, dtype):
                    planner.fault(why, hint, part.source)
            if self._needs_importance(request, dtype, item.matrix.name) and item.matrix.name not in self._importance:
                why = f"{dtype} needs an importance matrix, and there is none for it"
                planner.fault(why, "--imatrix FILE names one", item.matrix.name)
            wanted = given.get(item.matrix.name)
            columns, block = item.matrix.shape[-1], (wanted or _base(request)).block
            if columns % block:
                fate = "stay floats" if item.matrix.name in self._left else f"become {dtype}"
                text = f"rows of {columns:,} are not whole blocks of {block:,} and {fate}"
                fallen.setdefault(text, []).append(item.matrix.name)
        planner.refuse_faults()
        for text, tensors in fallen.items():
            planner.notes.append(f"{text}: {tensors[0]} ({counted(len(tensors), 'tensor')})")
        for dtype in {dtype.name: dtype for dtype in self.types.values()}.values():
            if ggml_python_differs(dtype):
                planner.notes.append(
                    f"ggml-python makes other blocks of {dtype} than llama.cpp, and libgguf makes them"
                )
            if dtype.name == "NVFP4":
                planner.notes.append(LEAST_NVFP4)
        seconds = sum(
            math.prod(item.matrix.shape) / (SPEED.get(self.types[item.matrix.name].name, _FAST) * 1e6)
            for item in placed
            if item.matrix.name in self.types
        )
        if seconds >= _LONG:
            hours = f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{seconds / 60:.0f} minutes"
            planner.notes.append(f"quantizing takes about {hours} on one processor")
        for glob, word in request.rules:
            if not any(names(glob, p.matrix.name, *p.parts) for p in placed if p.matrix.name in self.types):
                planner.refuse(f"--quantize {glob}={word} names only tensors that llama.cpp does not quantize")

    @staticmethod
    def _needs_importance(request: TypeRequest, dtype: DType, name: str) -> bool:
        ends = name in ("token_embd.weight", "output.weight")
        return dtype.name in NEEDS_IMPORTANCE or (dtype.name in needs_importance(request.word) and not ends)

    def conversion(self, name: str, plain: Conversion) -> Conversion:
        """Conversion that decodes and quantizes the GGUF tensor ``name``."""
        if name not in self.types or self.types[name] is not plain.target or plain.source is plain.target:
            return plain
        weights = self._importance.get(name)
        how = QuantSettings(weights[0] if weights is not None else None, self.errors)
        return of_values(plain)._replace(quantizing=how)

    def runs(self, name: str, runs: Sequence[Run]) -> tuple[Run, ...]:
        """The rows of each expert apart, where each has an importance of its own."""
        weights = self._importance.get(name)
        if name not in self.types or weights is None or len(weights) == 1:
            return tuple(runs)
        return tuple(piece for run in runs for piece in _by_expert(run, weights))

    def importance(self, placed: Sequence[GgufTensor]) -> dict[str, Floats]:
        """Importance of columns, by the canonical name of every tensor."""
        of = self._planner.index.canonical_of
        return {
            canonical: self._importance[item.matrix.name]
            for item in placed
            if item.matrix.name in self.types and item.matrix.name in self._importance
            for part in item.parts
            for canonical in (of.get(part.source, ()) if part.name not in self._planner.index.tensors else (part.name,))
        }


def _by_block(types: Mapping[str, DType]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for name, dtype in types.items():
        found.setdefault(dtype.block, []).append(name)
    return found


def _model(config: ModelConfig, importance: bool) -> Model:
    family = FAMILIES[config.family]
    return Model(family.gguf, config.num_layers, config.num_heads, config.num_kv_heads, config.num_experts, importance)


def _by_expert(run: Run, weights: Floats) -> Iterable[Run]:
    rows = run.tensor.layout.rows // len(weights)
    for start in range(run.start, run.stop, rows):
        how = run.conversion.quantizing
        settings = QuantSettings(weights[start // rows], how.errors if how else None)
        yield Run(run.tensor, run.conversion._replace(quantizing=settings), start, min(start + rows, run.stop))


def _base(request: TypeRequest) -> DType:
    return GGML_TYPES[recipes()["recipes"].get(request.word.upper(), {}).get("base", request.word).lower()]


def _reasons(planner: Planner, part: Tensor, dtype: DType) -> Iterable[tuple[str, str]]:
    if part.dtype.kind is Kind.BLOCK and part.dtype is not dtype and not planner.decoded(part):
        yield f"--quantize rounds floats, and {part.dtype} is quantized already", "--dequantize decodes it first"
    elif part.dtype.kind is Kind.BLOCK and part.dtype is not dtype and not decodable(part.dtype):
        yield f"no decoder for {part.dtype}", ""
    elif part.dtype.kind not in (Kind.BLOCK, Kind.FLOAT):
        yield f"--quantize rounds F32, F16 and BF16, not {part.dtype}", ""
    if needs_library(dtype):
        raise missing_package(f"quantizing to {dtype}", "libgguf")
    if missing := missing_quantizer(dtype):
        yield missing, ""


# -- Values of options that a program gives ----------------------------------------------------------------------------
# The command line offers nothing else; a program may say anything.

#: One more than the latest second that a file may be dated with, in the year 5138: one of eleven digits.
_LATEST = 10**11


def check_values(options: Options) -> None:
    """Refuse what no option can be.

    Raises:
        UsageError: ``usage``; ``usage.dtype``, options that exclude each other.
    """
    for option in OPTIONS:
        _check(option, getattr(options, option.name))
    if not isinstance(options.file_name, str):
        raise _fault("file_name", options.file_name, "a word")
    created = options.created
    if created is not None and not (type(created) is int and 0 <= created < _LATEST):
        raise _fault("created", created, "a whole number of seconds since 1970")
    given = list(given_options(options))
    for one in given:
        for other in given:
            if one.excludes(other.option):
                message = f"{other.flag} and {one.shown} exclude each other"
                raise UsageError("usage.dtype", message, found=(other.option.name, one.option.name))


def _check(option: Option, value: object) -> None:
    if option.takes in (Takes.WORD, Takes.NOTHING):
        choices = _choices(option)
        if not any(type(value) is type(word) and value == word for word in (*choices, option.default)):
            raise _fault(option.name, value, f"one of {', '.join(map(repr, choices))}")
    elif option.takes in (Takes.WORDS, Takes.GLOB):
        # A lone word would be taken for its letters.
        if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
            raise _fault(option.name, value, "a tuple of words")
        for item in value:
            if option.words and item not in option.words:
                raise _fault(option.name, item, f"{' or '.join(map(repr, option.words))}")
    elif option.takes is Takes.TEXT:
        if not isinstance(value, str):
            raise _fault(option.name, value, "a text")
    elif option.takes is Takes.TYPES:
        if not isinstance(value, str):
            raise _fault(option.name, value, "a type by name")
        if value:
            parsed(value)
    elif option.takes is Takes.FILES:
        if not isinstance(value, tuple) or not all(isinstance(item, Path) for item in value):
            raise _fault(option.name, value, "a tuple of paths")
    elif option.takes in (Takes.PATH, Takes.EXISTING):
        if not isinstance(value, Path) and value is not None:
            raise _fault(option.name, value, "a path")
    elif option.takes in (Takes.NUMBER, Takes.SIZE):
        if type(value) is not int or not 0 <= value <= option.most:
            raise _fault(option.name, value, f"a whole number from 0 to {option.most:,}")
    elif option.takes is Takes.PAIR:
        for pair in value if isinstance(value, tuple) else (value,):
            if not isinstance(pair, tuple) or [type(text) for text in pair] != [str, str]:
                raise _fault(option.name, pair, "pairs of a key and a value, both words")


def _choices(option: Option) -> list[object]:
    if option.words:
        return list(option.words.values())
    return sorted({option.default, *(row.gives for row in OPTIONS if row.name == option.name)}, key=str)


def _fault(name: str, value: object, expected: str) -> UsageError:
    return UsageError("usage", f"{name} is {repr(value)[:80]}, {expected} expected")
