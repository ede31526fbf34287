"""The base model of an adapter: its hyper-parameters, and whether the adapter fits it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ckconv.adapters.model import matrix_shape
from ckconv.core.config import ModelConfig
from ckconv.core.metadata import CONFIG_NAME
from ckconv.core.tensors import AdapterModule, Role, Tensor, TensorIndex
from ckconv.errors import Faults, InputError, UnsupportedError, quoted
from ckconv.families.huggingface_config import huggingface_config, huggingface_family
from ckconv.formats.safetensors.files import CONFIG_DOCUMENT
from ckconv.io.json import read_object

#: Opens a model of any format: given by who opens an adapter, as no reader knows the others.
Opener = Callable[[Path], TensorIndex]


@dataclass(frozen=True, slots=True)
class Base:
    """The base model: its hyper-parameters, and its tensors where it is more than a ``config.json``."""

    config: ModelConfig
    index: TensorIndex | None = None


def find_base(base: Path | None, named: str, opener: Opener) -> Base | None:
    """The base model that was asked for, else the one that the adapter names.

    Args:
        base: a model of any format, or a directory that holds its ``config.json``.
        named: what the adapter calls it; looked for in the file system, as peft does, and nowhere else.

    Raises:
        InputError: the model asked for cannot be read.
        UnsupportedError: ``model.architecture``, no rules are known for it.
    """
    if base is not None:
        found = _read(base, opener)
        if found is None:
            raise UnsupportedError("model.architecture", "ckconv does not know its architecture", path=base)
        return found
    # The name is the training machine's: here it may be one that may not be read, or is too long for this system.
    try:
        return _read(Path(named), opener) if named and Path(named).is_dir() else None
    except (InputError, UnsupportedError, OSError, ValueError):
        return None


def _read(path: Path, opener: Opener) -> Base | None:
    """A model of any format; a ``config.json`` will do, without weights."""
    if path.name == CONFIG_NAME:
        return _from_document(path)
    try:
        index = opener(path)
        return Base(index.config, index) if index.config else None
    except InputError as error:
        if error.code != "hf.no-weights" or not (path / CONFIG_NAME).is_file():
            raise
    return _from_document(path / CONFIG_NAME)


def _from_document(path: Path) -> Base | None:
    document = read_object(path, CONFIG_DOCUMENT)
    family = huggingface_family(document)
    return Base(huggingface_config(document, family, (), path)) if family else None


def check_fits(
    modules: Mapping[str, AdapterModule], tensors: Mapping[str, Tensor], config: ModelConfig, path: Path
) -> None:
    """Every module is one of the base model's, and its LoRA has the base matrix's shape.

    Raises:
        InputError: ``adapter.base``, with every fault.
    """
    faults = Faults(path)
    for module in modules.values():
        shape = matrix_shape(module.name, config)
        if shape is None and (".experts." in module.name or Role.B not in module.roles):
            continue  # one of many experts has no matrix of its own; a norm is none
        if shape is None:
            message = f"no base tensor for {quoted(module.path)}"
            faults.add("adapter.base", message, tensor=module.path, hint="--base BASE names the model it was made for")
            continue
        if Role.B not in module.roles:
            continue
        a, b = tensors[f"{module.name}.{Role.A.value}"], tensors[f"{module.name}.{Role.B.value}"]
        made = (*b.shape[:-1], a.shape[-1])
        if made != shape:
            message = f"{quoted(module.path)} changes a matrix of {list(made)}, the base has {list(shape)}"
            faults.add("adapter.base", message, tensor=module.path, found=list(made), allowed=list(shape))
    faults.check()
