"""Which flags have a say in which outputs: one that has none is an error of the user's, not a flag to ignore."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from ckconv.core.tensors import TensorIndex
from ckconv.errors import UsageError
from ckconv.options import Options, asked
from ckconv.plan.planner import HEAD, ROPE_FREQUENCIES
from ckconv.plan.steps import Plan

_CHECKPOINTS = ("safetensors", "mlx")
_MODELS = ("bump", "gguf", *_CHECKPOINTS)
_FILES = ("gguf", *_CHECKPOINTS)

#: Option -> the outputs that it changes, the versions of bump apart.
_OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "bump_version": ("bump",),
    "dtype_codes": ("bump",),
    "template": ("bump",),
    "context": _MODELS,
    "rope_layout": _MODELS,
    "max_shard_bytes": _FILES,
    "set_meta": (*_FILES, "gguf adapter"),
    "drop_meta": (*_FILES, "gguf adapter"),
    "tie": _FILES,
    "fuse": _CHECKPOINTS,
    "names": _CHECKPOINTS,
}

#: Option that only some versions of bump have -> those.
_BUMP_VERSIONS: Mapping[str, tuple[int, ...]] = {"dtype_codes": (3,)}


def check_options(index: TensorIndex, to: str, options: Options) -> None:
    """Refuse options that have no say in the output.

    Raises:
        UsageError: ``usage.flag``.
    """
    output = f"{to} adapter" if index.adapter is not None else to
    for given in asked(options):
        outputs = _OUTPUTS.get(given.option.name, (output,))
        if output not in outputs:
            raise UsageError("usage.flag", f"{given.flag} is for {_listed(outputs)}, and the output is {output}")
    if options.base is not None and index.adapter is None:
        raise UsageError("usage.flag", f"--base is for an adapter to be converted, and {index.path.name} is a model")
    if index.adapter is None:
        _check_globs(index, options)


def _check_globs(index: TensorIndex, options: Options) -> None:
    """A glob that names nothing is a name that was not written right."""
    everything = index.everything.values()
    names = {name for tensor in everything for name in (tensor.name, tensor.source)}
    # What scales RoPE may be a tensor, or said by the configuration alone; what a rule drops anyway has a name too.
    known = {*names, *(stored.name for stored in index.stored), ROPE_FREQUENCIES, HEAD}
    for glob in options.drop:
        if not any(fnmatchcase(name, glob) for name in known):
            raise UsageError("usage.flag", f"--drop {glob} names no tensor of {index.path.name}")
    for glob in options.decode:
        if not any(fnmatchcase(name, glob) for name in names):
            raise UsageError("usage.flag", f"--decode {glob} names no tensor of {index.path.name}")


def check_version(plan: Plan) -> None:
    """Refuse options that have no say in this version of bump.

    Raises:
        UsageError: ``usage.flag``.
    """
    if plan.format != "bump" or not plan.version:
        return
    for given in asked(plan.options):
        versions = _BUMP_VERSIONS.get(given.option.name, (plan.version,))
        if plan.version not in versions:
            known = _listed([f"bump {version}" for version in versions])
            hint = " or ".join(f"--bump-version {version}" for version in versions)
            raise UsageError(
                "usage.flag", f"{given.flag} is for {known}, and the output is bump {plan.version}", hint=hint
            )


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
