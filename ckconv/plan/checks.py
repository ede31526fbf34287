"""What an engine's row in a family file says about a model: why the engine would compute something else.

Defaults are closed: a family without a row for the engine is refused, and so is a parameter that the engine's format
has no key for, or that its class does not look at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ckconv.core.config import FIELD_OF, LEFT_OUT, MAX_FLOAT32, ModelConfig
from ckconv.families.catalogue import FAMILIES
from ckconv.families.engine_rows import Condition, Engine
from ckconv.families.expressions import ExpressionError
from ckconv.families.keys import NO_CLASS, NOT_KNOWN, READERS
from ckconv.families.loaders import Loader
from ckconv.families.parameter_rows import Parameter
from ckconv.families.parameters import differ, scope_of
from ckconv.families.schema import Family
from ckconv.families.words import document_words, said, window_words
from ckconv.plan.steps import Reason

#: Sentences about these need more than a key and a value.
_WINDOW = "window"


#: Ways out of keys and classes that are not known, and of two numbers.
_WITHOUT_KEY = "take it out of config.json, or list it as harmless in the family's file, if it changes nothing"
_WITHOUT_CODE = "take auto_map and architectures out of config.json, if the code computes the same"
_ONE_NUMBER = (
    "config.json has to say the number that mlx-lm takes, where what mlx-lm computes is right; else convert the "
    "checkpoint that the directory was made of"
)


def modifier_reason(modifier: str, otherwise: str) -> Reason:
    """Why a key that changes the computation is refused.

    Args:
        otherwise: what computes without it.
    """
    if f", {NOT_KNOWN} " in modifier:
        return Reason(modifier, _WITHOUT_KEY)
    if f", {NO_CLASS} " in modifier:
        return Reason(modifier, _WITHOUT_CODE)
    disagrees = modifier.endswith(", which mlx-lm takes")
    return Reason(
        f"{modifier}{',' if disagrees else ''} changes the computation{otherwise}", _ONE_NUMBER if disagrees else ""
    )


def engine_of(family: Family, loader: Loader) -> Engine | None:
    """The row; ``None`` where there is none."""
    return family.engines.get(loader.row)


def row_reasons(
    config: ModelConfig, loader: Loader, *, context: int, tied: bool, equal: bool, format: str = "", within: str = ""
) -> Iterator[Reason]:
    """Why the engine would compute something else than the model.

    Args:
        context: context length in the output.
        tied: the output has no head of its own.
        equal: the head is byte for byte the embedding.
        format: the source's.
        within: ``model_type`` of the document of which the model's is the text part: a tower's file names the families
            that its class has within it.
    """
    family = FAMILIES[config.family]
    row = engine_of(family, loader)
    if row is None or (row.absent and not within):
        yield Reason(_unknown(family, loader, row))
        return
    if row.no_head and not tied:
        text = f"{loader.name}'s {family.name} has no output head of its own{said(config, 'tied', format=format)}"
        yield Reason(text, "--tie leaves it out" if equal else "")
    scope = {**scope_of(family, config), "context": context, "tied": tied, "one_matrix": bool(config.tied)}
    for condition in row.right_if:
        yield from _condition(condition, config, loader, scope, format)
    for name, parameter in family.parameters.items():
        value = scope[name] if _is_carried(name, family) else None
        if name in row.ignores or _is_lost(name, parameter, family, loader):
            yield from _ignored(name, parameter, family, config, loader, value, context)
        yield from _assumed(name, parameter, family, loader, scope)
        number = loader.of_metadata and parameter.kind == "f32" and name not in ("rope_theta", "norm_eps")
        if number and isinstance(value, float) and abs(value) > MAX_FLOAT32:
            yield Reason(f"{_key(name, family)} is {value:g}, which float32 cannot hold")


def row_notes(config: ModelConfig, loader: Loader, *, context: int, tied: bool) -> Iterator[str]:
    """Where the engine computes something else whatever a file says.

    Args:
        context: context length in the output.
        tied: the output has no head of its own.
    """
    family = FAMILIES[config.family]
    row = engine_of(family, loader)
    scope = {**scope_of(family, config), "context": context, "tied": tied, "one_matrix": bool(config.tied)}
    if row and row.unmeasured:
        yield f"that {loader.name} computes {family.name} right was not measured: {row.unmeasured}"
    for condition in row.same_if if row else ():
        yield from (reason.text for reason in _condition(condition, config, loader, scope, ""))


def _unknown(family: Family, loader: Loader, row: Engine | None) -> str:
    if row is not None:
        return f"{loader.name} has no {loader.has} for {family.name} (model_type){row.why and f': {row.why}'}"
    return f"ckconv does not know what {loader.name} computes of a {family.name} (model_type)"


def _condition(
    condition: Condition, config: ModelConfig, loader: Loader, scope: Mapping[str, Any], format: str
) -> Iterator[Reason]:
    try:
        if condition.expression.value(scope):
            return
    except ExpressionError as error:
        yield Reason(
            f"what {loader.name} computes of a {config.family} is not known{said(config, *sorted(error.names))}"
        )
        return
    names = condition.of
    sentence = condition.said(scope)
    if not sentence:
        names = names or tuple(sorted(condition.expression.names))
        values = ", ".join(f"{name} is {_shown(scope[name])}" for name in names if name in scope)
        sentence = f"{loader.name} does not compute {config.family} right with these numbers: {values}"
    yield Reason(f"{sentence}{said(config, *names, format=format)}", condition.hint)


def _is_carried(name: str, family: Family) -> bool:
    return name in FIELD_OF or name in family.own


def _is_lost(name: str, parameter: Parameter, family: Family, loader: Loader) -> bool:
    """The source may say it, and the engine's format or class has nothing for it."""
    if (
        parameter.value is not None
        or name in LEFT_OUT
        or parameter.folded
        or not (name in family.own or name in (_WINDOW, "final_cap", "query_scalar"))
    ):
        return False
    if loader.of_metadata:
        cells = parameter.cells.get(loader.column, ())
        return bool(parameter.cells.get("hf")) and all(cell.kind == "key" and cell.unread for cell in cells)
    return not any(
        set(READERS[loader.row]) & set(cell.readers) and not cell.unread for cell in parameter.key_cells("hf")
    )


def _ignored(
    name: str, parameter: Parameter, family: Family, config: ModelConfig, loader: Loader, value: Any, context: int
) -> Iterator[Reason]:
    if name == _WINDOW:
        if value and value < context:
            yield Reason(
                f"attention slides over {value:,} tokens ({window_words(config)}), "
                f"{loader.name} attends to all {context:,}",
                f"--context {value} makes them the same",
            )
        return
    default = parameter.defaults.get(loader.row)
    taken = default.value(scope_of(family, config)) if default is not None else None
    if value is not None and (value if taken is None else differ(value, taken)):
        yield Reason(f"{_key(name, family)} = {_shown(value)} changes the computation; {loader.name} does not know it")


def _assumed(
    name: str, parameter: Parameter, family: Family, loader: Loader, scope: Mapping[str, Any]
) -> Iterator[Reason]:
    """A value that the loader takes for granted, and the model has another."""
    for cell in parameter.cells.get(loader.column, ()):
        if cell.kind != "fixed" or cell.folded or cell.expression is None:
            continue
        value, taken = scope[name], cell.expression.value(scope)
        if differ(value, taken):
            said = f"{_key(name, family)} = {_shown(value)}, {loader.name} takes {_shown(taken)}"
            yield Reason(cell.sentence or said)


def _key(name: str, family: Family) -> str:
    row = family.parameters[name]
    return next(iter((*document_words(family, name), *(cell.key for cell in row.key_cells("hf")))), name)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
