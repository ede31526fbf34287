"""The targets of this build, and the choice among them."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from ckconv.core.key_table import CONSUMERS
from ckconv.core.tensors import TensorIndex
from ckconv.errors import listed
from ckconv.formats.bump.engines import computed_by
from ckconv.options import Options
from ckconv.plan.applicable import check_options, check_version
from ckconv.plan.planner import Planner, unknown_architecture
from ckconv.plan.probe import SourceFacts, gather, gather_adapter
from ckconv.plan.steps import Plan, Reason

#: Target -> module and class that plan for it; a module is imported when there is something to plan.
PLANNERS: dict[str, tuple[str, str]] = {
    "bump 3": ("ckconv.formats.bump.plan3", "Bump3Planner"),
    "bump 4": ("ckconv.formats.bump.plan5", "Bump4Planner"),
    "bump 5": ("ckconv.formats.bump.plan5", "Bump5Planner"),
    "gguf": ("ckconv.formats.gguf.plan", "GgufPlanner"),
    "safetensors": ("ckconv.formats.safetensors.checkpoint", "CheckpointPlanner"),
    "mlx": ("ckconv.formats.mlx.plan", "MlxPlanner"),
    "peft": ("ckconv.formats.peft.plan", "PeftPlanner"),
    "gguf adapter": ("ckconv.formats.gguf.adapter_plan", "GgufAdapterPlanner"),
    "mlx adapter": ("ckconv.formats.mlx.adapter_plan", "MlxAdapterPlanner"),
}

#: What an adapter becomes where a target of this name is asked for.
ADAPTERS = {"peft": "peft", "gguf": "gguf adapter", "mlx": "mlx adapter"}

#: What `inspect` judges a model by.
TARGETS = ("bump 3", "bump 5")

#: What is tried in this order where no version is asked for.
_AUTO = (3, 5)


def judged(index: TensorIndex, target: str, source: SourceFacts) -> Plan:
    """Why a target cannot hold a model as it is, and notes; nothing of the model but its headers is looked at."""
    if index.adapter is not None:
        return _plan_adapter(index, target, Options())
    return _plan(index, target, Options(), source, only_reasons=True)


def make_plan(index: TensorIndex, to: str, options: Options) -> Plan:
    """Plan the conversion of ``index``. The plan may hold reasons to refuse: see :meth:`Plan.check`.

    Raises:
        InputError: the engine template or the source's tokenizer is malformed.
        UsageError: ``usage.flag``, an option has no say in the output.
    """
    check_options(index, to, options)
    plan = _make_plan(index, to, options)
    check_version(plan)
    return plan


def _make_plan(index: TensorIndex, to: str, options: Options) -> Plan:
    if index.adapter is not None or to == "peft":
        return _plan_adapter(index, to, options)
    if index.merged:
        plan = _make_bump(index, to, options) if to == "bump" else _plan(index, to, options, gather(index))
        notes = [f"merged {adapter}" for adapter in index.merged]
        if to == "bump" and options.source_record:
            notes.append("no source record is written: the values are not those of the source")
        return replace(plan, notes=(*plan.notes, *notes))
    if to != "bump":
        return _back(index, to, options) if index.format == "bump" else _plan(index, to, options, gather(index))
    plan = _make_bump(index, to, options)
    if plan.refusals or not options.source_record:
        return plan
    from ckconv.record.keep import with_record

    return with_record(plan)


def _plan_adapter(index: TensorIndex, to: str, options: Options) -> Plan:
    """An adapter's plan; for a target of models only, or a model that is to be an adapter, why there is none."""
    if index.adapter is None:
        return Plan(index, to, 0, options, refusals=(Reason("it holds adapters, and this is a model"),))
    if to not in ADAPTERS:
        hint = f"--to {', '.join(ADAPTERS)} convert it; --adapter merges it while a base model is converted"
        return Plan(index, to, 0, options, refusals=(Reason("it holds models, and this is an adapter", hint),))
    return _plan(index, ADAPTERS[to], options, SourceFacts() if to == "peft" else gather_adapter(index))


def _back(index: TensorIndex, to: str, options: Options) -> Plan:
    """Out of a bump file: its source again, where the record beside it makes that, else what the index says."""
    from ckconv.record.restore import restoring_plan

    plan, note = restoring_plan(index, to, options)
    if plan is None:
        plan = _plan(index, to, options, gather(index))
        plan = replace(plan, notes=(*plan.notes, note)) if note else plan
    return plan


def _make_bump(index: TensorIndex, to: str, options: Options) -> Plan:
    source = gather(index)
    if options.bump_version:
        plan = _plan(index, f"{to} {options.bump_version}", options, source)
        if plan.refusals and options.bump_version == 3:
            newer = _plan(index, f"{to} 5", options, source, only_reasons=True)
            return plan if newer.refusals else replace(plan, alternative="--bump-version 5 holds it")
        return plan
    plans: list[Plan] = []
    for version in _AUTO:
        plan = _unless_k_quants(_plan(index, f"{to} {version}", options, source))
        if not plan.refusals:
            return replace(plan, notes=(*plan.notes, _why(plan, plans)))
        plans.append(plan)
    return _refused(index, options, plans)


def _unless_k_quants(plan: Plan) -> Plan:
    """A bump 3 file with K-quants, which at most one snapshot of the engine computes, has to be asked for."""
    who = computed_by([step.target.dtype.name for step in plan.steps], plan.options.dtype_codes)
    if plan.version != 3 or not who:
        return plan
    return replace(plan, files=(), refusals=(Reason(who, "--bump-version 3 writes it all the same"),))


def _plan(
    index: TensorIndex, target: str, options: Options, source: SourceFacts, *, only_reasons: bool = False
) -> Plan:
    module, name = PLANNERS[target]
    format, _, version = target.partition(" ")
    if format == "bump":
        if index.config is None:
            return Plan(index, format, int(version), options, refusals=(unknown_architecture(index),))
        bump: Planner = getattr(import_module(module), name)(index, index.config, options, source)
        return _noted(bump.plan(only_reasons=only_reasons))
    planner: Planner = getattr(import_module(module), name)(index, options, source)
    return _noted(planner.plan(only_reasons=only_reasons))


def _noted(plan: Plan) -> Plan:
    """With the keys that nobody reads, where another reader than the source's gets the configuration."""
    index = plan.index
    if index.format not in CONSUMERS or plan.format == index.format or index.config is None:
        return plan
    config, notes = index.config, list(plan.notes)
    if config.unread:
        names = ", ".join(listed([*config.unread]))
        notes.append(f"no class of {config.model_type} is known to read these keys of config.json: {names}")
    if config.overruled:
        keys = "; ".join(listed([*config.overruled]))
        notes.append(f"{CONSUMERS[index.format]} does not read everything that config.json says: {keys}")
    return replace(plan, notes=tuple(notes))


def _why(plan: Plan, refused: list[Plan]) -> str:
    """Why this version was chosen."""
    if not refused:
        return f"{plan.target_name} was chosen: it holds the model without loss"
    first = refused[0].refusals
    more = f" (and {len(first) - 1} more)" if len(first) > 1 else ""
    return f"{plan.target_name} was chosen; {refused[0].target_name} cannot hold the model: {first[0].text}{more}"


def _refused(index: TensorIndex, options: Options, plans: list[Plan]) -> Plan:
    """No version holds the model: the reasons of each, those that they share once."""
    shared = [reason for reason in plans[0].refusals if all(reason in plan.refusals for plan in plans)]
    reasons = list(shared)
    for plan in plans:
        reasons += [replace(r, text=f"{plan.target_name}: {r.text}") for r in plan.refusals if r not in shared]
    return Plan(index, "bump", 0, options, refusals=tuple(reasons))
