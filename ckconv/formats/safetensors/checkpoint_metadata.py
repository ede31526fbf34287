"""What the headers of a checkpoint's files say besides their tensors."""

from __future__ import annotations

from fnmatch import fnmatchcase

from ckconv.core.metadata import METADATA
from ckconv.core.tensors import TensorIndex
from ckconv.errors import UsageError
from ckconv.families.naming_schemes import NAMES_KEY
from ckconv.formats.safetensors.checkpoint_config import CHECKPOINTS, source_document
from ckconv.options import Options


def metadata_of(index: TensorIndex, options: Options, written_by: str) -> dict[str, str]:
    """The source's own metadata as flags change it, and what readers rely on.

    Args:
        written_by: the value of ``format``.

    Raises:
        UsageError: ``usage.meta``, metadata that the readers rely on is to be changed.
    """
    own = own_metadata(index)
    reserved = {"format": written_by}
    if options.names != "hf":
        reserved[NAMES_KEY] = options.names
    elif NAMES_KEY in own:
        del own[NAMES_KEY]
    pairs = {name: text for key, text in options.set_meta if (name := header_key(index, key))}
    for key in ("format", NAMES_KEY):
        if key in pairs or key in options.drop_meta:
            raise UsageError("usage.meta", f"{key} says how the tensors are to be read, and is not changed")
    kept = {
        key: text
        for key, text in own.items()
        if not any(fnmatchcase(name, glob) for name in (key, f"{METADATA}.{key}") for glob in options.drop_meta)
    }
    return {**kept, **pairs, **reserved}


def own_metadata(index: TensorIndex) -> dict[str, str]:
    """What the headers of a checkpoint say themselves; nothing for another format."""
    prefix = f"{METADATA}."
    own = {k.removeprefix(prefix): str(v) for k, v in index.metadata.items() if k.startswith(prefix)}
    return own if index.format in CHECKPOINTS else {}


def header_key(index: TensorIndex, key: str) -> str:
    """The key of the headers that a flag names (``__metadata__.KEY``); empty where it names one of a document.

    Without a document, every key is one of the headers.
    """
    bare = key.removeprefix(f"{METADATA}.")
    described = bool(source_document(index)) or index.config is not None
    return bare if bare != key or bare in own_metadata(index) or not described else ""
