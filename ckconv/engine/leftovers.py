"""Files of an earlier output that loaders would take for part of the new one, which is then another model.

They are not ours to remove.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path

from ckconv.engine import checksums
from ckconv.errors import OutputError, listed
from ckconv.formats import format_of, load
from ckconv.formats.destination import Destination
from ckconv.output.filesystem import failing
from ckconv.plan.steps import Plan
from ckconv.record import conversion

_HINT = "remove what is left over, or name another directory"


def check_leftovers(plan: Plan, directory: Path, written: Collection[Path]) -> None:
    """Refuse to write beside files that would be read along with the output.

    Args:
        written: everything that is going to be written.

    Raises:
        OutputError: ``output.exists``, naming all of them.
    """
    names = {path.name for path in written if path.parent == directory}
    taken = format_of(plan.format).takes_along
    patterns, flag = load(taken)(plan, directory) if taken is not None else ((), "")
    hint = f"{flag}; or {_HINT}" if flag else _HINT
    if not patterns or not directory.is_dir():  # it is going to be made
        return
    with failing(directory):
        left = sorted(p.name for p in directory.iterdir() if p.name not in names and _among(p.name, patterns))
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        message = f"{left[0]}{more} would remain, and loaders would take it for part of the output"
        raise OutputError("output.exists", message, path=directory, hint=hint, details=listed(left[1:]))


def stale_lists(target: Destination, written: Collection[Path]) -> list[str]:
    """What to say of lists of digests of an earlier output, which the new one does not agree with.

    Args:
        written: everything that is going to be written.
    """
    assert target.parent is not None
    names = (checksums.IN_DIRECTORY, conversion.IN_DIRECTORY)
    if not target.directory:
        names = (f"{target.file_name}{checksums.SUFFIX}", f"{target.file_name}{conversion.SUFFIX}")
    left = [path for path in (target.parent / name for name in names) if path not in written and os.path.lexists(path)]
    return [f"{path.name} is already there and is not part of this output: remove it" for path in left]


def _among(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
