"""Adapters of peft: ``adapter_config.json`` and weights beside it.

Or ``adapter_model.bin``, which ``torch.save`` wrote. A tensor is named ``base_model.model.PATH.ENDING`` after its
module's path in the base model; the name of the adapter is not in it. Whole tensors (``modules_to_save``, biases, the
embeddings that peft saves along) have no ending of their own. Named adapters lie in sub-directories.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ckconv.core.config import ModelConfig
from ckconv.core.layouts import Layout, Strip, merged
from ckconv.core.lazy import replace
from ckconv.core.tensors import (
    Adapter,
    AdapterModule,
    DroppedTensor,
    Role,
    StoredTensor,
    Tensor,
    TensorIndex,
    effective_scale,
    parse,
    plain_tensor,
    with_layer,
)
from ckconv.errors import InputError, UnsupportedError, an, quoted
from ckconv.families.adapters import (
    OTHER_BASE,
    Collector,
    Outputs,
    Part,
    Shape,
    Side,
    Sides,
    experts_together,
    families_of,
    module_of,
    placed,
    sides_of,
    stored_at,
    vector,
)
from ckconv.families.catalog import FAMILIES
from ckconv.families.names import HF, NESTED, names_of
from ckconv.families.sizes import Sizes
from ckconv.formats.safetensors.adapter import (
    Base,
    Opener,
    adapter_index,
    check_fits,
    config_beside,
    positive,
    read_adapter_document,
    with_base,
)
from ckconv.formats.safetensors.container import (
    ADAPTER_CONFIG,
    PEFT_NAME,
    PEFT_PICKLE,
    PEFT_PREFIX,
    WRAPPERS,
    SafetensorsFile,
)
from ckconv.formats.safetensors.files import PickleReader, read_weights
from ckconv.io.json import PLAIN, Clock, Matcher, compiled, shown

# Which modules of the base peft changes: the selections and patterns of an ``adapter_config.json``.
#
# Sources, peft 0.21: ``check_target_module_exists`` of tuners/tuners_utils.py, ``get_pattern_key`` of utils/other.py,
# ``_check_target_module_feedforward`` of tuners/ia3/model.py.

#: What peft looks for a layer's number with.
_ANY_LAYER = r".*?\.[^.]*\.(?P<idx>\d+)\."
_LAYER = r"(?:^|.*?\.){}\.(?P<idx>\d+)\."
#: Digits of a layer's number.
_MAX_DIGITS = 9


class ModuleKeys:
    """``rank_pattern`` and ``alpha_pattern``: first matching key wins.

    A key may be an expression. Those that are plain are found by their text, so that a key for every module of a large
    model costs little.

    Args:
        field: of the configuration, for errors.

    Raises:
        InputError: ``adapter.config``, a key is not a regular expression.
        UnsupportedError: ``adapter.unsupported``, a key is one that is not matched here.
    """

    def __init__(self, keys: Iterable[str], field: str, clock: Clock) -> None:
        self._clock = clock
        self._others: list[tuple[int, Matcher]] = []
        #: length of a text -> positions where any character will do -> text -> the number of the first such key.
        self._plain: dict[int, dict[tuple[int, ...], dict[str, int]]] = {}
        for number, key in enumerate(keys):
            if PLAIN.fullmatch(key):
                text = key.replace("\\.", "\n")
                dots = tuple(at for at, char in enumerate(text) if char == ".")
                alike = self._plain.setdefault(len(text), {}).setdefault(dots, {})
                alike.setdefault(text.replace("\n", "."), number)
                continue
            self._others.append((number, compiled(key, field, clock, r"(.*\.)?({})$")))

    def first(self, module: str) -> int | None:
        """Number of the first key that names the module, or ``None``."""
        if "\n" in module:
            return None
        began = time.monotonic()
        best = min((number for end in _ends(module) for number in self._named(end)), default=None)
        self._clock.take(time.monotonic() - began)
        for number, pattern in self._others:
            if best is not None and number > best:
                break
            if pattern(module):
                return number
        return best

    def _named(self, end: str) -> Iterator[int]:
        """Plain keys that match this text."""
        for dots, keys in self._plain.get(len(end), {}).items():
            letters = list(end)
            for at in dots:
                letters[at] = "."
            number = keys.get("".join(letters))
            if number is not None:
                yield number


class Selection:
    """Modules that peft wraps when it loads the adapter.

    Args:
        document: the configuration, whose fields have the types that they should have.

    Raises:
        InputError, UnsupportedError: as :class:`ModuleKeys`.
    """

    def __init__(self, document: Mapping[str, Any], clock: Clock) -> None:
        self._excluded = _Names(document, "exclude_modules", clock)
        saved: list[str] = document.get("modules_to_save") or []
        self._saved = [compiled(name, "modules_to_save", clock, r"(^|.*\.){}($|\..*)") for name in saved]
        targets = document.get("target_modules")
        self._all = targets is None or targets == "all-linear"
        self._targets = _Names(document, "target_modules", clock)
        self._feedforward = _Names(document, "feedforward_modules", clock)
        layers = document.get("layers_to_transform")
        self._layers = None if layers is None or layers == [] else layers
        patterns = document.get("layers_pattern") or []
        patterns = [patterns] if isinstance(patterns, str) else patterns
        self._of_layer = [compiled(name, "layers_pattern", clock, _LAYER) for name in patterns]
        if self._layers is not None and not patterns:
            self._of_layer = [re.compile(_ANY_LAYER).match]

    def holds(self, module: str) -> bool:
        """Whether the module is one of the list."""
        if self._excluded.name(module) or any(matches(module) for matches in self._saved):
            return False
        if self._all or self._targets.is_whole(module):
            return True
        return self._targets.name(module) and (self._targets.expression or self._in_layers(module))

    def feedforward(self, module: str) -> bool:
        """Whether IA3 multiplies the module's inputs, not its outputs."""
        return self._feedforward.name(module, any_end=True)

    def _in_layers(self, module: str) -> bool:
        if self._layers is None:
            return True
        tried = (matches(module) for matches in self._of_layer)
        found = next((match["idx"] for match in tried if match), None)
        if found is None or len(found) > _MAX_DIGITS:
            return False
        return int(found) == self._layers if isinstance(self._layers, int) else int(found) in self._layers


class _Names:
    """List of path endings, or an expression for a whole path."""

    def __init__(self, document: Mapping[str, Any], field: str, clock: Clock) -> None:
        names = document.get(field) or []
        self.expression = isinstance(names, str)
        self._pattern = compiled(names, field, clock, None) if isinstance(names, str) else None
        self._names = frozenset([] if isinstance(names, str) else names)

    def is_whole(self, module: str) -> bool:
        """Whether the path itself is in the list."""
        return module in self._names

    def name(self, module: str, *, any_end: bool = False) -> bool:
        """Whether the expression or list names the path."""
        if self._pattern is not None:
            return self._pattern(module) is not None
        if any_end:
            return any(module[at:] in self._names for at in range(len(module) + 1))
        return any(end in self._names for end in _ends(module))


def _ends(module: str) -> Iterator[str]:
    """The path, and what comes after each of its dots."""
    yield module
    for at, char in enumerate(module):
        if char == ".":
            yield module[at + 1 :]


# peft's ``adapter_config.json``: which modules it selects, and each one's rank, alpha and scale.
#
# The rules are peft's own (0.21): ``LoraLayer.update_layer`` for the scale; those of modules are in
# :mod:`ckconv.formats.peft.read`.

#: Keys under which a method of peft is another one than plain LoRA -> what to say of it.
_VARIANTS: dict[str, str] = {
    "layer_replication": "layers of the base are stacked anew",
    "use_qalora": "inputs are pooled in groups",
    "alora_invocation_tokens": "it is active only after certain tokens",
    "arrow_config": "it routes between adapters",
    "use_bdlora": "its matrices are block-diagonal",
    "monteclora_config": "its scales are sampled",
    "kasa_config": "it truncates the base's singular values",
    "velora_config": "it has parts of its own",
}

#: Starts of ``init_lora_weights`` with which peft changes the base model before the adapter is added to it.
_CHANGES_BASE = ("pissa", "corda", "olora", "loftq", "lora_ga")

#: Rows of a table or a head are replaced, and nothing else changes (peft's TrainableTokensConfig).
TOKENS = "TRAINABLE_TOKENS"
METHODS = ("LORA", "IA3", TOKENS)


class PeftConfig(NamedTuple):
    """A configuration, proved sound.

    Attributes:
        method: one of :data:`METHODS`.
        dora: rows of the merged matrix get norms of their own.
        ties: the embedding and the head of a tied base change together.
        rows: end of a module's path -> the rows of it that are replaced; of the embedding where it is empty.
        unsupported: settings that change the computation and have no rule here.
    """

    document: Mapping[str, Any]
    method: str
    rank: int
    alpha: float
    ranks: tuple[int, ...]
    rank_keys: ModuleKeys
    alphas: tuple[float, ...]
    alpha_keys: ModuleKeys
    selection: Selection
    rank_stabilised: bool
    dora: bool
    ties: bool
    base_name: str
    rows: Mapping[str, tuple[int, ...]]
    unsupported: tuple[str, ...]

    def rank_of(self, module: str) -> int:
        """The rank of a module by its path in the base model."""
        number = self.rank_keys.first(module)
        return self.rank if number is None else self.ranks[number]

    def rows_of(self, module: str) -> tuple[int, ...]:
        """Which rows of a module are replaced, by its path in the base model."""
        return next((rows for end, rows in self.rows.items() if f".{module}".endswith(f".{end}" if end else "")), ())

    def alpha_of(self, module: str) -> float:
        """The alpha of a module by its path in the base model."""
        number = self.alpha_keys.first(module)
        return self.alpha if number is None else self.alphas[number]


def read_peft_config(path: Path) -> PeftConfig:
    """Read and validate a configuration.

    Raises:
        InputError: ``adapter.config``, malformed; ``adapter.scale``, a rank or alpha that is none.
        UnsupportedError: ``adapter.unsupported``, a method without rules.
    """
    document = read_adapter_document(path)
    method = document.get("peft_type")
    if method not in METHODS:
        raise UnsupportedError(
            "adapter.unsupported",
            f"peft_type is {shown(method)}; {', '.join(METHODS)} are supported",
            path=path,
            found=method if isinstance(method, str) else None,
            allowed=METHODS,
        )
    config = _Fields(document, path)
    lora = method == "LORA"
    clock = Clock(path)
    ranks, alphas = config.entries("rank_pattern"), config.entries("alpha_pattern")
    return PeftConfig(
        document=document,
        method=method,
        rank=config.rank("r", document.get("r", 8)) if lora else 0,
        alpha=config.alpha("lora_alpha", document.get("lora_alpha", 8)) if lora else 0.0,
        ranks=tuple(config.rank(f"rank_pattern of {quoted(key)}", v) for key, v in ranks.items()),
        rank_keys=ModuleKeys(ranks, "rank_pattern", clock),
        alphas=tuple(config.alpha(f"alpha_pattern of {quoted(key)}", v) for key, v in alphas.items()),
        alpha_keys=ModuleKeys(alphas, "alpha_pattern", clock),
        selection=Selection(document, clock),
        rank_stabilised=config.flag("use_rslora"),
        dora=config.flag("use_dora"),
        # TrainableTokensModel.inject_adapter puts the embedding's layer around a tied head, too.
        ties=config.flag("ensure_weight_tying") or method == TOKENS,
        base_name=config.base_name(),
        rows=config.rows("token_indices" if method == TOKENS else "trainable_token_indices"),
        unsupported=_unsupported(document),
    )


class _Fields:
    """Fields of a document, each checked."""

    def __init__(self, document: Mapping[str, Any], path: Path) -> None:
        self._document, self._path = document, path
        for key in ("target_modules", "exclude_modules", "modules_to_save", "feedforward_modules", "layers_pattern"):
            self._names(key, document.get(key))
        self._layers(document.get("layers_to_transform"))

    def rank(self, what: str, value: object) -> int:
        number = positive(value)
        if number is None or not isinstance(value, int) or value > 1 << 24:
            raise self._fault("adapter.scale", f"{what} is {shown(value)}; it must be a whole number above 0")
        return value

    def alpha(self, what: str, value: object) -> float:
        number = positive(value)
        if number is None:
            zero = type(value) in (int, float) and value == 0
            more = ": what has it changes nothing, so leave out its tensors, or the adapter" if zero else ""
            raise self._fault("adapter.scale", f"{what} is {shown(value)}; it must be a number above 0{more}")
        return number

    def entries(self, key: str) -> dict[str, Any]:
        value = self._document.get(key) or {}
        if not isinstance(value, dict):
            raise self._fault("adapter.config", f"{key} is {shown(value)}; it must be an object")
        return value

    def flag(self, key: str) -> bool:
        value = self._document.get(key)
        if value not in (None, True, False):
            raise self._fault("adapter.config", f"{key} is {shown(value)}; it must be true or false")
        return bool(value)

    def base_name(self) -> str:
        value = self._document.get("base_model_name_or_path")
        return value if isinstance(value, str) else ""

    def rows(self, key: str) -> dict[str, tuple[int, ...]]:
        value = self._document.get(key) or {}
        rows = value if isinstance(value, dict) else {"": value}
        for found in rows.values():
            whole = isinstance(found, list) and all(type(row) is int and row >= 0 for row in found)
            if not whole or len(set(found)) < len(found):
                message = f"{key} has {shown(found)}; it must be a list of rows, none of them twice"
                raise self._fault("adapter.config", message)
        return {module: tuple(found) for module, found in rows.items()}

    def _names(self, key: str, value: object) -> None:
        if value is None:
            return
        if isinstance(value, str) and key != "modules_to_save":
            return
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            wanted = "a list of strings" if key == "modules_to_save" else "a string or a list of strings"
            raise self._fault("adapter.config", f"{key} is {shown(value)}; it must be {wanted}")

    def _layers(self, value: object) -> None:
        numbers = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(number) is int for number in numbers):
            raise self._fault("adapter.config", f"layers_to_transform is {shown(value)}; layers are whole numbers")

    def _fault(self, code: str, message: str) -> InputError:
        return InputError(code, message, path=self._path)


def _unsupported(document: Mapping[str, Any]) -> tuple[str, ...]:
    found = [f"{key} is {shown(document[key])}: {what}" for key, what in _VARIANTS.items() if document.get(key)]
    start = document.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        found.append(
            f"init_lora_weights is {quoted(start)}: it belongs to a base that peft changes first "
            "(peft's save_pretrained with path_initial_model_for_weight_conversion saves it as plain LoRA)"
        )
    return tuple(found)


# LoRA of bare parameters: ``target_parameters`` of peft, with which it changes the experts of a mixture.
#
# transformers 5 holds all experts of a layer as parameters ``[experts, .., ..]`` of one module. peft wraps the module
# once for each that is selected, the first one innermost, so that a parameter is known by its sizes. ``lora_A`` is
# ``[experts * rank, in]`` and ``lora_B`` ``[out, rank * experts]``, the experts innermost; ``in`` is the last axis of
# the parameter, or the middle one where its class says ``is_transposed`` (``ParamWrapper`` of peft 0.21,
# tuners/lora/layer.py). Either is read where sizes tell them apart.

#: What peft puts around a module once more, for each of its parameters but the last.
_WRAPPED = ".base_layer"


class Parameter(NamedTuple):
    """A parameter of experts in one layer.

    Attributes:
        path: of the parameter.
        shape: experts, and its two axes.
        modules: canonical names of what it holds, in order, and where those lie in it.
    """

    path: str
    shape: tuple[int, int, int]
    modules: Mapping[str, Sides]

    @property
    def turned(self) -> bool:
        """Whether outputs lie along the last axis."""
        return next(iter(self.modules.values())).turned


def parameters_of(module: str, model: ModelConfig) -> Iterator[Parameter]:
    """The parameters of experts that the module at a path has in transformers."""
    family = FAMILIES[model.family]
    sizes = Sizes(family, model.scope)
    packed = {found.pattern for found in names_of(family, HF).packed.values()}
    for prefix, instead in (("", ""), *NESTED):
        name = parse(f"{instead}{module.removeprefix(prefix)}")
        if not module.startswith(prefix) or name.layer is None:
            continue
        for pattern, found in names_of(family, HF).stored.items():
            row = found.parts[0].row
            plain = pattern not in packed and all(not part.stack and not part.value for part in found.parts)
            if pattern.rpartition(".")[0] != name.pattern or not plain or not sizes.has(row, name.layer):
                continue
            kinds = [sizes.kind(part, name.layer) for part in found.parts]
            sides = [sides_of(kind) for kind in kinds]
            known = [side for side in sides if side is not None]
            if len(kinds[0].whole) != 3 or len(known) < len(sides) or len({side.turned for side in known}) > 1:
                continue
            called = (with_layer(part.canonical.removesuffix(".weight"), name.layer) for part in found.parts)
            experts, first, second = kinds[0].whole
            path = f"{module}.{pattern.rpartition('.')[2]}"
            yield Parameter(path, (experts, first, second), dict(zip(called, known, strict=True)))


def parameter_with(module: str, model: ModelConfig) -> Parameter | None:
    """Parameter of a stack of experts, as transformers 5 spells it."""
    family, name = FAMILIES[model.family], parse(module)
    for pattern, found in sorted(names_of(family, HF).stored.items(), key=lambda one: one[0].endswith(".weight")):
        names = [part.canonical.removesuffix(".weight") for part in found.parts]
        path = with_layer(pattern, name.layer).rpartition(".")[0]
        if name.pattern in names and not any(part.stack for part in found.parts):
            for parameter in parameters_of(path, model):
                if module in parameter.modules:
                    return parameter
    return None


def is_transposed(model: ModelConfig) -> bool:
    """Whether the class declares experts ``[in, out]``."""
    row = FAMILIES[model.family].engines.get("transformers")
    return row is not None and row.transposed


def add_experts(
    collector: Collector, config: PeftConfig, path: str, parts: Mapping[Role, Part], model: ModelConfig | None
) -> bool:
    """Add the change of a parameter of experts; ``False`` if unknown."""
    module = path.removesuffix(_WRAPPED)
    while module.endswith(_WRAPPED):
        module = module.removesuffix(_WRAPPED)
    if model is None or parts.keys() != {Role.A, Role.B}:
        return False
    a, b = parts[Role.A].stored, parts[Role.B].stored
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1]:
        return False
    widths = (a.shape[1], b.shape[0])
    for parameter in parameters_of(module, model):
        experts, first, second = parameter.shape
        if a.shape[0] % experts or widths not in ((first, second), (second, first)):
            continue
        in_middle = widths == (first, second) and (first != second or is_transposed(model))
        rank = a.shape[0] // experts
        if config.rank_of(parameter.path) != rank:
            declared = config.rank_of(parameter.path)
            message = f"{parameter.path}: lora_A and lora_B have rank {rank}, r makes it {declared}"
            collector.faults.add("adapter.rank", message, tensor=path, found=rank, allowed=declared)
            return True
        alpha = config.alpha_of(parameter.path)
        scale = effective_scale(alpha, rank, rank_stabilised=config.rank_stabilised)
        if not 0 < scale < float("inf"):
            message = f"{quoted(parameter.path)}: alpha {alpha} and rank {rank} make a scale that float32 cannot hold"
            collector.faults.add("adapter.scale", message, tensor=path)
        for name, sides in parameter.modules.items():
            # lora_A lies along the axis that peft takes for inputs, whatever it is to the model
            of_a, of_b = (a, b) if sides.turned == in_middle else (b, a)
            layouts = matrices(sides, experts, rank, swapped=of_a is b, widths=widths)
            made = {
                role: _tensor(plain_tensor(f"{name}.{role.value}", stored), experts, layout)
                for role, stored, layout in zip((Role.A, Role.B), (of_a, of_b), layouts, strict=True)
            }
            made[Role.B] = replace(made[Role.B], layout=replace(made[Role.B].layout, scale=scale))
            collector.add_made(AdapterModule(name, module, (Role.A, Role.B), rank, alpha, scale), made)
        return True
    return False


def _tensor(stored: Tensor, experts: int, layout: Layout) -> Tensor:
    return replace(stored, shape=(experts, layout.rows // experts, layout.cols), layout=layout)


def matrices(sides: Sides, experts: int, rank: int, *, swapped: bool, widths: tuple[int, int]) -> tuple[Layout, Layout]:
    """Layouts of stacked experts in ``lora_A`` and ``lora_B``.

    Args:
        swapped: the first lies in ``lora_B``, the second in ``lora_A``.
        widths: of ``lora_A`` and ``lora_B``.
    """
    of_a = (rank * widths[0], widths[0], 1), (experts * rank, widths[0])
    of_b = (1, experts, rank * experts), (widths[1], rank * experts)
    first, second = (of_b, of_a) if swapped else (of_a, of_b)
    return _first(sides.inputs, experts, rank, *first), _second(sides.outputs, experts, rank, *second)


#: Elements from one expert, one column of the rank, one input or output to the next.
_Steps = tuple[int, int, int]


def _first(side: Side, experts: int, rank: int, steps: _Steps, stored: tuple[int, int]) -> Layout:
    each, column, along = steps
    cols = _count(side)
    strip = Strip(side.first * along, merged([(experts, each), (rank, column)]), merged(side.spread(along)))
    return Layout(experts * rank, cols, *stored, (strip,), shared=experts * rank * cols != stored[0] * stored[1])


def _second(side: Side, experts: int, rank: int, steps: _Steps, stored: tuple[int, int]) -> Layout:
    each, column, along = steps
    rows = experts * _count(side)
    strip = Strip(side.first * along, merged([(experts, each), *side.spread(along)]), merged([(rank, column)]))
    return Layout(rows, rank, *stored, (strip,), shared=rows * rank != stored[0] * stored[1])


def _count(side: Side) -> int:
    return math.prod(count for count, _ in side.axes)


# -- Reading -----------------------------------------------------------------------------------------------------------

#: Ending of a tensor's name -> its role and whether it is the table that is looked up; the first that fits counts.
_ENDINGS: tuple[tuple[str, Role, bool], ...] = (
    (".lora_A.weight", Role.A, False),
    (".lora_B.weight", Role.B, False),
    (".lora_B.bias", Role.BIAS, False),
    # A is [rank, vocabulary] and B [hidden, rank]; the table changes by (B @ A).T (Embedding.get_delta_weight).
    (".lora_embedding_A", Role.B, True),
    (".lora_embedding_B", Role.A, True),
    (".lora_magnitude_vector", Role.MAGNITUDE, False),
    (".lora_magnitude_vector.weight", Role.MAGNITUDE, False),
    (".ia3_l", Role.IA3, False),
    (".token_adapter.trainable_tokens_delta", Role.ROWS, False),
    (".trainable_tokens_delta", Role.ROWS, False),
    # The base's matrix, of a vocabulary that grew; the rows of its tokens replace some of it.
    (".token_adapter.base_layer.weight", Role.SAVED_WEIGHT, False),
    (".base_layer.weight", Role.SAVED_WEIGHT, False),
    (".base_layer.bias", Role.SAVED_BIAS, False),
    (".weight", Role.SAVED_WEIGHT, False),
    (".bias", Role.SAVED_BIAS, False),
)
#: Beside the tensors of a saved module, which peft loads under the module's own name (``set_peft_model_state_dict``).
_COPIES = {
    ".modules_to_save": "what peft saves of the module once more",
    ".original_module": "the base's own, which peft does not load",
}
#: What names hold of an adapter that was saved within torch's wrapper or twice within peft's -> what they should hold.
_WRAPPED_IN = {**dict.fromkeys(WRAPPERS, ""), PEFT_PREFIX * 2: PEFT_PREFIX}
_VECTORS = (Role.MAGNITUDE, Role.IA3, Role.BIAS)


def open_peft(
    path: Path, *, opener: Opener, base: Path | None = None, follow_links: bool = False, read_pickle: PickleReader
) -> TensorIndex:
    """Read an adapter's configuration and header.

    Args:
        path: the directory, one that holds a single named adapter, or the file of tensors.
        opener: opens a base model.
        base: the base model, if not where the adapter says it is.
        follow_links: links out of the directory are followed.
        read_pickle: describes a file that ``torch.save`` wrote.

    Raises:
        InputError: ``adapter.*``, ``st.*`` or ``pt.*``: malformed, or not made for this base.
        UnsupportedError: ``adapter.unsupported``, no configuration or a method without rules; ``pt.content``.
    """
    root = _root(path)
    weights, config_path = config_beside(
        root, PEFT_NAME, "rank and alpha", follow_links=follow_links, pickle=PEFT_PICKLE
    )
    config = read_peft_config(config_path)
    file = read_weights(weights, read_pickle)
    for word, instead in _WRAPPED_IN.items():
        if name := next((tensor.name for tensor in file.tensors if word in tensor.name), ""):
            message = f"names hold {quoted(word)}, and peft ignores tensors of such names: {quoted(name)}"
            hint = f"save the adapter's tensors under name.replace({word!r}, {instead!r})"
            raise UnsupportedError("adapter.unsupported", message, path=root, hint=hint)

    def described(found_base: Base | None) -> TensorIndex:
        return _index(path, root, config_path, config, file, found_base)

    return with_base(base, config.base_name, opener, described)


def _index(
    path: Path, root: Path, config_path: Path, config: PeftConfig, file: SafetensorsFile, found_base: Base | None
) -> TensorIndex:
    model = found_base.config if found_base else None
    found, unknown, copies = _sorted(file.tensors)
    families = (model.family,) if model else families_of(found)
    collector = Collector(root)
    unsupported = list(config.unsupported)
    bare = config.document.get("target_parameters")
    for module, (parts, embedding) in found.items():
        if bare and add_experts(collector, config, module, parts, model):
            continue
        if bare and not config.selection.holds(module):
            unsupported.append(f"{quoted(module)} (target_parameters): it changes bare parameters, not modules")
        _add(collector, config, module, parts, embedding, families, model, unsupported)
    collected = collector.finish()
    if model is not None:
        collected = experts_together(collected, model)
    if not unsupported:  # what has no rule has no shape to be compared with either
        check_fits(collected, found_base, root)
    unsupported += [f"no rule for tensor {quoted(tensor.name)}" for tensor in unknown]
    method = {"IA3": "IA3", TOKENS: "trainable tokens"}.get(config.method, "DoRA" if config.dora else "LoRA")
    adapter = Adapter(
        method,
        config.base_name,
        collected.modules,
        tuple(unsupported),
        model,
        config.document,
        # A module that peft wraps or saves is one of its own, and the head keeps the base's matrix (peft 0.21).
        ties=config.ties,
        base_index=found_base.index if found_base else None,
    )
    more = {"rank_stabilised": "yes"} if config.rank_stabilised else {}
    return adapter_index(
        "peft", path, file, config_path, collected, adapter, unknown=unknown, dropped=copies, more=more
    )


def _root(path: Path) -> Path:
    """The adapter's directory: the one given, or the only named adapter in it."""
    if not path.is_dir():
        return path.parent
    if any((path / name).exists() for name in (ADAPTER_CONFIG, PEFT_NAME, PEFT_PICKLE)):
        return path
    named = sorted(entry for entry in path.iterdir() if (entry / ADAPTER_CONFIG).is_file())
    if len(named) != 1:
        names = ", ".join(quoted(entry.name) for entry in named[:5])
        message = f"holds {len(named)} adapters: {names}" if named else f"holds no {ADAPTER_CONFIG}"
        raise InputError("adapter.config", message, path=path, hint="name one of them" if named else None)
    return named[0]


def _sorted(
    tensors: Sequence[StoredTensor],
) -> tuple[dict[str, tuple[dict[Role, Part], bool]], Sequence[StoredTensor], tuple[DroppedTensor, ...]]:
    """Tensors by module path and role; unknown ones; copies."""
    found: dict[str, tuple[dict[Role, Part], bool]] = {}
    unknown: list[StoredTensor] = []
    copies: list[DroppedTensor] = []
    names = {stored.name for stored in tensors}
    for stored in tensors:
        module, _, kind = stored.name.rpartition(".")
        copied = next((ending for ending in _COPIES if module.endswith(ending)), "")
        if copied and f"{module.removesuffix(copied)}.{kind}" in names:
            copies.append(DroppedTensor(stored, _COPIES[copied]))
            continue
        name = stored.name.removeprefix(PEFT_PREFIX)
        ending = next((row for row in _ENDINGS if name.endswith(row[0])), None)
        if ending is None or ".lora_" in name.removesuffix(ending[0]):
            unknown.append(stored)
            continue
        suffix, role, embedding = ending
        parts, other = found.get(name.removesuffix(suffix), ({}, False))
        if role in parts:
            unknown.append(stored)
            continue
        part = Part(stored, transposed=embedding)
        parts[role] = vector(part) if role in _VECTORS else part
        found[name.removesuffix(suffix)] = parts, other or embedding
    return found, tuple(unknown), tuple(copies)


def _add(
    collector: Collector,
    config: PeftConfig,
    module: str,
    parts: dict[Role, Part],
    embedding: bool,
    families: tuple[str, ...],
    model: ModelConfig | None,
    unsupported: list[str],
) -> None:
    name = module_of(module, families, model) or module
    outputs, why = placed(module, families, model)
    unsupported += [why] if why else _moved(module, parts, outputs)
    if model is not None and _is_joined(module, model):
        message = f"{quoted(module)} is no module of {an(model.family)}, whose class has its matrices apart"
        collector.faults.add("adapter.base", message, tensor=module, hint=OTHER_BASE)
    if not (Role.A in parts or Role.B in parts):
        beside = {Role.MAGNITUDE, Role.BIAS} & parts.keys()
        replaced = config.rows_of(module)
        if Role.ROWS in parts:
            unsupported += _rows(module, parts, len(replaced))
            if config.method == TOKENS:
                # As of LoRA, the head of a tied base is wrapped with the embedding.
                tied = name == "output" and (model is None or model.tied is not False)
                unsupported += [] if tied or config.selection.holds(module) else [_ignored(module)]
        elif beside or (Role.IA3 in parts and config.method != "IA3") or config.method == TOKENS:
            unsupported.append(f"{quoted(module)} has tensors of another method than its configuration's")
        elif Role.IA3 in parts and not config.selection.holds(module):
            unsupported.append(_ignored(module))
        feedforward = config.selection.feedforward(module)
        collector.add(name, module, parts, Shape(1.0), feedforward=feedforward, replaced=replaced)
        return
    if Role.ROWS in parts:
        unsupported += _rows(module, parts, 0)
    if config.method != "LORA" or config.dora != (Role.MAGNITUDE in parts):
        unsupported.append(f"{quoted(module)} has tensors of another method than its configuration's")
    bare = bool(config.document.get("target_parameters"))
    # peft puts a layer around the head as well where the embedding is selected and the two are to stay tied.
    with_embedding = config.ties and name == "output"
    if not (bare or with_embedding or config.selection.holds(module)):
        unsupported.append(_ignored(module))
    rank, alpha = (config.rank_of(module), config.alpha_of(module)) if config.method == "LORA" else (1, 1.0)
    scale = effective_scale(alpha, rank, rank_stabilised=config.rank_stabilised)
    if not 0 < scale < float("inf"):
        message = f"{module}: alpha {alpha} and rank {rank} make a scale that float32 cannot hold"
        collector.faults.add("adapter.scale", message, tensor=module)
    given = "rank_pattern" if rank != config.rank else "r"
    # The matrices of a bare parameter, of all experts say, have the rank as often as there are experts.
    stated = None if config.method != "LORA" or (bare and not config.selection.holds(module)) else rank
    collector.add(name, module, parts, Shape(scale, stated, alpha, given), embedding=embedding, outputs=outputs)


def _moved(module: str, parts: Mapping[Role, Part], outputs: Outputs | None) -> list[str]:
    """Reasons for parts of a matrix whose moved rows have no rule."""
    odd = parts.keys() - {Role.A, Role.B}
    return [f"{quoted(module)} is stored head by head, and only LoRA of it has rules"] if odd and outputs else []


def _is_joined(module: str, model: ModelConfig) -> bool:
    """Whether files alone have several matrices at a path as one."""
    found = stored_at(module, model)[1]
    of_class = names_of(FAMILIES[model.family], HF).always_fused
    return found is not None and len(found.parts) > 1 and all(one.canonical != found.canonical for one in of_class)


def _rows(module: str, parts: Mapping[Role, Part], named: int) -> list[str]:
    """Reason why single rows of a module cannot replace the base's."""
    stored = parts[Role.ROWS].stored
    if parts.keys() - {Role.ROWS, Role.SAVED_WEIGHT}:
        return [f"{quoted(module)} has rows of its own (of single tokens) beside other changes"]
    if len(stored.shape) != 2 or stored.shape[0] != named:
        return [f"{quoted(stored.name)} is {list(stored.shape)}, the configuration names {named} rows of it"]
    return []


def _ignored(module: str) -> str:
    return f"the configuration does not select {quoted(module)}, so peft ignores its tensors"
