"""Whether a file may get a new one in its stead: what lies beside it must not speak of the old one's bytes."""

from __future__ import annotations

import os
from pathlib import Path

from ckconv.core.tensors import TensorIndex
from ckconv.engine import checksums
from ckconv.errors import UsageError
from ckconv.formats.destination import Destination
from ckconv.record import conversion
from ckconv.record.schema import record_path


def check_in_place(index: TensorIndex, place: Destination) -> bool:
    """Whether a list of its digest alone lies beside it, which is to be written anew.

    Raises:
        UsageError: ``usage.in-place``, the model is no single file, or other files speak of its bytes.
    """
    hint = "name another place: ckconv edit SRC DST"
    if place.file is None or len(index.files) != 1 or index.files[0].name != place.file.name:
        raise UsageError("usage.in-place", "only a model that is one file is edited in place", hint=hint)
    path = place.file
    if path.is_symlink():
        raise UsageError("usage.in-place", f"{path} is a link, which the new file would replace", hint=hint)
    own = (path.with_name(f"{path.name}{conversion.SUFFIX}"), record_path(path))
    lists = [path.with_name(name) for name in (checksums.IN_DIRECTORY, conversion.IN_DIRECTORY)]
    speaking = [other for other in own if os.path.lexists(other)]
    speaking += [other for other in lists if other.is_file() and path.name in other.read_text("utf-8", "replace")]
    if speaking:
        message = f"{speaking[0].name} beside it describes its present bytes"
        raise UsageError("usage.in-place", message, path=Path(path), hint=hint)
    return os.path.lexists(path.with_name(f"{path.name}{checksums.SUFFIX}"))
