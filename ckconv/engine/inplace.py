"""Whether a file may get a new one in its stead: what lies beside it must not speak of the old one's bytes."""

from __future__ import annotations

import os
from pathlib import Path

from ckconv.core.tensors import TensorIndex
from ckconv.engine import checksums
from ckconv.errors import InputError, UsageError
from ckconv.formats.destination import Destination
from ckconv.record import conversion
from ckconv.record.schema import record_path


def check_in_place(index: TensorIndex, place: Destination) -> bool:
    """Whether ``NAME.sha256`` lies beside it and has to be renewed.

    Raises:
        UsageError: ``usage.in-place``, the model is no single file, or other files speak of its bytes, or may.
    """
    hint = "name another place: ckconv edit SRC DST"
    if place.file is None or len(index.files) != 1 or index.files[0].name != place.file.name:
        raise UsageError("usage.in-place", "only a model that is one file is edited in place", hint=hint)
    path = place.file
    if path.is_symlink():
        raise UsageError("usage.in-place", f"{path} is a link, which the new file would replace", hint=hint)
    own = (path.with_name(f"{path.name}{conversion.SUFFIX}"), record_path(path))
    speaking = [f"{other.name} beside it describes its present bytes" for other in own if os.path.lexists(other)]
    for name, names_in in ((checksums.IN_DIRECTORY, checksums.names_in), (conversion.IN_DIRECTORY, _outputs_of)):
        other = path.with_name(name)
        try:
            if other.is_file() and path.name in map(os.path.normpath, names_in(other)):
                speaking.append(f"{name} beside it describes its present bytes")
        except InputError as error:
            speaking.append(f"{name} beside it may describe its present bytes: {error.message}")
    if speaking:
        raise UsageError("usage.in-place", speaking[0], path=Path(path), hint=hint)
    return os.path.lexists(path.with_name(f"{path.name}{checksums.SUFFIX}"))


def _outputs_of(record: Path) -> list[str]:
    return [name for name, _ in conversion.read_record(record).outputs]
