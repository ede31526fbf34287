"""What the configuration declares of a quantisation, wherever it says it, and of which modules."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from ckconv.core.tensors import StoredTensor
from ckconv.errors import Faults, quoted
from ckconv.formats.safetensors.spec import MAX_JSON
from ckconv.io.json import Document, read_object
from ckconv.quant.packings import Misfit

#: Keys with names of modules that are not quantised.
_IGNORED = ("ignore", "modules_to_not_convert", "exclude_modules")

_DOCUMENT = Document("configuration of a quantiser", "quant.config", "quant.config", MAX_JSON)

#: Keys of AutoAWQ's own file -> those of ``quantization_config``.
_OLD_KEYS = {"w_bit": "bits", "q_group_size": "group_size"}

#: Configurations of quantisers beside ``config.json``, from which they were left out, and the method that they are of.
BESIDE = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}


def quantization_config(config: Mapping[str, Any], root: Path) -> Mapping[str, Any]:
    """What is declared of the quantisation, wherever: with ``quant_method``, where that is known."""
    text = config.get("text_config")
    for place in (config, text if isinstance(text, dict) else {}):
        for key in ("quantization_config", "compression_config"):
            if isinstance(place.get(key), dict) and place[key]:
                return cast(Mapping[str, Any], place[key])
    for name, method in BESIDE.items():
        if (root / name).is_file():
            found = read_object(root / name, _DOCUMENT)
            inner = found.get("quantization")
            found = {**found, **inner} if isinstance(inner, dict) else found
            renamed = {_OLD_KEYS.get(key, key): value for key, value in found.items()}
            return {"quant_method": "awq" if "w_bit" in found else method, **renamed}
    return {}


def settings_of(module: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is declared of one module: of compressed-tensors the ``weights`` of its group, of GPTQModel its overrides.

    Raises:
        Misfit: it is declared that the module is not quantised.
    """
    groups, dynamic = settings.get("config_groups"), settings.get("dynamic")
    if isinstance(dynamic, dict):
        return {**settings, **_overrides(module, dynamic)}
    if not isinstance(groups, dict):
        return settings
    chosen = [group for group in groups.values() if isinstance(group, dict)]
    group = min(chosen, key=lambda group: _rank(module, _list(group.get("targets"))), default={})
    weights = group.get("weights")
    weights = weights if isinstance(weights, dict) else {}
    form = group.get("format") or settings.get("format")
    return {**weights, "bits": weights.get("num_bits"), "format": form}


def _overrides(module: str, dynamic: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the first expression says that the name begins with (``dynamic_get`` of GPTQModel's ``config.py``)."""
    for pattern, own in dynamic.items():
        if _matches(pattern.removeprefix("-:").removeprefix("+:"), module):
            if pattern.startswith("-:"):
                raise Misfit(f"quantization_config.dynamic says {quoted(pattern)}: not quantised")
            return own if isinstance(own, dict) else {}
    return {}


def _rank(module: str, targets: Sequence[str]) -> int:
    """Names count before expressions, and those before classes (``match_named_modules`` of compressed-tensors)."""
    if module in targets:
        return 0
    if any(_names(target, module) for target in targets):
        return 1
    return 2 if any(_is_class(target) for target in targets) else 3


def _is_class(entry: str) -> bool:
    return entry.isidentifier() and entry[0].isupper()


def _list(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _names(entry: str, module: str) -> bool:
    """An entry of a list of modules is about this one: by name, part of one, glob or regular expression."""
    if entry == module or f".{entry}." in f".{module}." or fnmatchcase(module, entry):
        return True
    return _matches(entry.removeprefix("re:"), module)


def _matches(expression: str, module: str) -> bool:
    try:
        return re.match(expression, module) is not None
    except (re.error, RecursionError, OverflowError):
        return False


def check_ignored(
    settings: Mapping[str, Any], stored: Sequence[StoredTensor], modules: Mapping[str, Any], faults: Faults
) -> None:
    """Lists of what is not quantised name modules that are there, and none that is quantised.

    A head is listed by habit, tied or not; names of classes are about no module in particular.
    """
    paths = {tensor.name.rpartition(".")[0] for tensor in stored}
    paths |= {path.rpartition(".")[0] for path in paths}
    for key in _IGNORED:
        entries = _list(settings.get(key))
        named = [entry for entry in entries if entry != "lm_head" and not _is_class(entry)]
        if named and not any(_names(entry, path) for entry in entries for path in paths):
            what = f"quantization_config.{key} names no module that is there: {quoted(named[0])}"
            faults.add("quant.config", what, found=len(named))
        for entry in sorted({*entries} & {*modules}):
            faults.add(
                "quant.config", f"quantization_config.{key} names {quoted(entry)}, which is quantised", tensor=entry
            )
