"""What the headers of a checkpoint's files say besides their tensors."""

from __future__ import annotations

from fnmatch import fnmatchcase

from ckconv.core.metadata import METADATA
from ckconv.core.tensors import TensorIndex
from ckconv.errors import UsageError
from ckconv.families.naming_schemes import NAMES_KEY
from ckconv.formats.safetensors.checkpoint_config import CHECKPOINTS
from ckconv.options import Options


def metadata_of(index: TensorIndex, options: Options, written_by: str) -> dict[str, str]:
    """The source's own metadata as flags change it, and what readers rely on.

    Args:
        written_by: the value of ``format``.

    Raises:
        UsageError: ``usage.meta``, metadata that the readers rely on is to be changed.
    """
    prefix = f"{METADATA}."
    own = {k.removeprefix(prefix): str(v) for k, v in index.metadata.items() if k.startswith(prefix)}
    own = own if index.format in CHECKPOINTS else {}
    reserved = {"format": written_by}
    if options.names != "hf":
        reserved[NAMES_KEY] = options.names
    elif NAMES_KEY in own:
        del own[NAMES_KEY]
    found = {k: v for k, v in own.items() if not any(fnmatchcase(k, glob) for glob in options.drop_meta)}
    found |= dict(options.set_meta)
    for key in ("format", NAMES_KEY):
        if key in dict(options.set_meta) or key in options.drop_meta:
            raise UsageError("usage.meta", f"{key} says how the tensors are to be read, and is not changed")
    return {**found, **reserved}
