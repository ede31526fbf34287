"""Which flags have a say in which outputs: one that has none is an error of the user's, not a flag to ignore."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from ckconv.core.tensors import TensorIndex
from ckconv.errors import UsageError
from ckconv.formats import FORMATS, format_of
from ckconv.options import Options, asked
from ckconv.plan.planner import HEAD, ROPE_FREQUENCIES
from ckconv.plan.quantising import parsed
from ckconv.plan.steps import Plan

#: Options that have a say in what lies beside weights, or in what is read for it.
_BESIDE = frozenset({"dtype", "context", "follow_links", "families", "source_record", "created", "file_name"})


def without_say_beside(options: Options) -> list[str]:
    """The flags that mean nothing where no weights are written."""
    return [given.flag for given in asked(options) if given.option.name not in _BESIDE]


def check_options(index: TensorIndex, to: str, options: Options) -> None:
    """Refuse options that have no say in the output.

    Raises:
        UsageError: ``usage.flag``.
    """
    adapter = index.adapter is not None
    output, said = (f"{to} adapter", "the source is an adapter") if adapter else (to, f"the output is {to}")
    for given in asked(options):
        outputs = _outputs_with(given.option.name)
        if given.option.limited and output not in outputs:
            raise UsageError("usage.flag", f"{given.flag} is for {_listed(outputs)}, and {said}")
    if options.base is not None and index.adapter is None:
        raise UsageError("usage.flag", f"--base is for an adapter to be converted, and {index.path.name} is a model")
    if index.adapter is None:
        _check_globs(index, options)


def _outputs_with(option: str) -> list[str]:
    """The outputs that an option has a say in, versions apart."""
    found = (
        output.name if output.adapter else format.name
        for format in FORMATS
        for output in format.outputs
        if option in output.options
    )
    return list(dict.fromkeys(found))


def _check_globs(index: TensorIndex, options: Options) -> None:
    """A glob that names nothing is a name that was not written right."""
    if options.imatrix is not None and not options.quantize:
        raise UsageError("usage.flag", "--imatrix is for --quantize, which is not given")
    if not (options.drop or options.quantize or options.decode):
        return
    everything = index.everything.values()
    names = {name for tensor in everything for name in (tensor.name, tensor.source)}
    # What scales RoPE may be a tensor, or said by the configuration alone; what a rule drops anyway has a name too.
    known = {*names, *(stored.name for stored in index.stored), ROPE_FREQUENCIES, HEAD}
    known.update(name for found in index.canonical_of.values() for name in found)
    for glob in options.drop:
        if not any(fnmatchcase(name, glob) for name in known):
            raise UsageError("usage.flag", f"--drop {glob} names no tensor of {index.path.name}")
    for glob, _ in parsed(options.quantize).rules if options.quantize else ():
        if not any(fnmatchcase(name, glob) for name in names):
            raise UsageError("usage.flag", f"--quantize: {glob} names no tensor of {index.path.name}")
    for glob in options.decode:
        if not any(fnmatchcase(name, glob) for name in names):
            raise UsageError("usage.flag", f"--decode {glob} names no tensor of {index.path.name}")


def check_version(plan: Plan) -> None:
    """Refuse options that have a say in other versions of the output only.

    Raises:
        UsageError: ``usage.flag``.
    """
    outputs = format_of(plan.format).outputs
    if format_of(plan.format).choose is None or (plan.refusals and not plan.version):
        return
    for given in asked(plan.options):
        having = [output for output in outputs if given.option.name in output.options]
        if given.option.limited and plan.version not in [output.version for output in having]:
            hint = " or ".join(f"--{plan.format}-version {o.version}" for o in having) if plan.version else None
            message = f"{given.flag} is for {_listed([o.name for o in having])}, and the output is {plan.target_name}"
            raise UsageError("usage.flag", message, hint=hint)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
