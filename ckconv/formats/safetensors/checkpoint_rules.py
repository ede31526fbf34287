"""Why a checkpoint would not be loaded as what the source is: by flags, and by what the loader's classes hold."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from ckconv.core.config import ModelConfig, scaled
from ckconv.core.tensors import GATE_UP, TensorIndex
from ckconv.families.catalogue import FAMILIES
from ckconv.families.huggingface_classes import fit
from ckconv.families.kinds import has_transposed
from ckconv.families.loaders import Loader
from ckconv.families.naming_schemes import FUSIONS, fuses_otherwise
from ckconv.families.schema import Family
from ckconv.families.words import said, tensors_said
from ckconv.options import Options
from ckconv.plan.checks import row_reasons
from ckconv.plan.planner import HEAD
from ckconv.plan.steps import Reason, missing_tensors

#: Scaling whose angles follow from the model's context length (modeling_rope_utils.py).
_FOLLOWS_CONTEXT = frozenset({"dynamic", "longrope"})

#: What a loader does that finds tensors under other names.
_UNFOUND = {
    "transformers": ", and computes with random numbers for those that it does not find",
    "mlx-lm": ", and refuses others",
}


def option_reasons(index: TensorIndex, config: ModelConfig, options: Options) -> Iterator[Reason]:
    """What is asked for and cannot be."""
    family, layout = FAMILIES[config.family], options.rope_layout
    interleaved = any(tensor.layout.interleaved for tensor in index.tensors.values())
    if family.rope and (layout == "interleaved" or (layout == "source" and interleaved)):
        yield Reason(f"{layout} RoPE rows: what loads a checkpoint rotates half against half", "--rope-layout split")
    if options.names == "max" and not has_transposed(family):
        yield Reason(f"--names max is for matrices that Hugging Face stores [in, out], and {family.name} has none")
    if any(FUSIONS[what] == GATE_UP for what in options.fuse):
        if family.experts:
            yield Reason("--fuse gate-up: experts are not fused")
        elif "L.ffn.gate" not in family.tensors:
            yield Reason(f"--fuse gate-up: {family.name} has no gate")
    kind = (config.rope_scaling or {}).get("rope_type")
    if options.context not in (0, config.context_length) and kind in _FOLLOWS_CONTEXT:
        yield Reason(
            f"{scaled(str(kind), config)}, and follows from max_position_embeddings, which --context would change"
        )
    if options.context and not family.rope and options.context != config.context_length:
        yield Reason(f"the position table has {config.context_length:,} rows, --context says {options.context:,}")


def loader_reasons(
    index: TensorIndex,
    config: ModelConfig,
    tensors: Collection[str],
    loader: Loader,
    *,
    target: str,
    built: bool,
    context: int,
    dropped: Mapping[str, int],
    within: str = "",
) -> Iterator[Reason]:
    """Why the loader would make another model of the tensors, or none.

    Args:
        tensors: canonical names of those that are written.
        target: format; a source of the same one was loaded as it is.
        built: the configuration is made out of hyper-parameters, so that they all have to be there.
        context: context length that is asked for, 0 for the source's.
        dropped: as :func:`ckconv.plan.steps.missing_tensors`.
        within: as :func:`ckconv.plan.checks.row_reasons`.
    """
    present = [name for name in tensors if name != HEAD]
    yield from class_reasons(index.format, config, present, loader.name, built=built, context=context, dropped=dropped)
    if index.format != target:
        length, tied = context or config.context_length, HEAD not in tensors
        yield from row_reasons(config, loader, context=length, tied=tied, format=index.format, within=within)


def loading_notes(family: Family | None, options: Options, loader: Loader, scheme: str) -> Iterator[str]:
    """That the loader does not load what other names, or other fused tensors, are asked for.

    Args:
        scheme: what ``--names hf`` means here.
    """
    fused = family is not None and fuses_otherwise(family, scheme, [FUSIONS[what] for what in options.fuse])
    if fused or options.names in ("canonical", "gguf"):
        what = f"the names of --names hf, fused as its classes are{_UNFOUND.get(loader.name, '')}"
        yield f"{loader.name} does not load this output: it looks for tensors under {what}"


def class_reasons(
    format: str,
    config: ModelConfig,
    present: Collection[str],
    loader: str,
    *,
    built: bool,
    context: int,
    dropped: Mapping[str, int],
) -> Iterator[Reason]:
    """Reasons why the loader's model class does not fit: tensors missing, and tensors it has no place for.

    Args:
        format: the source's.
        present: canonical names, without the output head.
        loader: ``transformers`` or ``mlx-lm``.
        context: context length that is asked for, 0 for the source's.
        built: the configuration is made out of hyper-parameters, so that they all have to be there.
        dropped: as :func:`ckconv.plan.steps.missing_tensors`.
    """
    family = FAMILIES[config.family]
    found = fit(config, present, loader)
    yield from missing_tensors(found.missing, tensors_said(config, format=format), dropped=dropped)
    for pattern, count in found.surplus.items():
        also = f" ({count} tensors)" if count > 1 else ""
        kind = said(config, "family", format=format)
        yield Reason(f"the {family.name} class{kind} of {loader} has no {pattern}{also}")
    if not built:
        return
    if not config.norm_eps:
        yield Reason(f"the source names no epsilon for its norms{said(config, 'norm_eps', format=format)}")
    if not (context or config.context_length):
        keys = said(config, "context_length", format=format)
        yield Reason(f"the source names no context length{keys}", "--context N sets one")
    if config.rotary_dim != config.head_dim and not family.turns_a_part:
        rotated = f"{config.rotary_dim} of {config.head_dim}{said(config, 'rotary_dim', format=format)}"
        yield Reason(f"RoPE rotates {rotated} elements of a head, which the {family.name} class does not")
