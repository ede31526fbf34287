"""Files of an earlier output that loaders would read with the new one.

Weights are not ours to remove: nothing is written beside them. Documents are: ``force`` replaces an output, and one
that the new output does not have is replaced by nothing.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from ckconv.conversion import sidefiles as checksums
from ckconv.core.metadata import CONFIG_NAME, root_of
from ckconv.core.tensors import TensorIndex
from ckconv.errors import InputError, OutputError, UsageError, listed
from ckconv.formats import FORMATS, format_of, load
from ckconv.formats.destination import Destination
from ckconv.plan.steps import Along, Plan
from ckconv.publish.files import failing, holds
from ckconv.publish.staging import Small
from ckconv.record import CONVERSION_NAME, CONVERSION_SUFFIX, record_path


def check_leftovers(
    plan: Plan,
    target: Destination,
    rooms: Collection[Path],
    side: Mapping[Path, Small],
    gone: Collection[Path] = (),
) -> None:
    """Refuse to write beside files that would be read along with the output.

    Args:
        rooms, side: everything that is going to be written.
        gone: what is taken away.

    Raises:
        OutputError: ``output.exists``, naming all of them.
    """
    directory = target.parent
    if directory is None or not directory.is_dir():  # it is going to be made
        return
    along, written = _along(plan, directory), {*rooms, *side, *gone}
    documents = _there(directory, along.documents, written)
    read = "loaders would take it for part of the output"
    for left, why in (
        (_there(directory, along.weights, written), read),
        (_described(target, written, side, gone), f"the {CONFIG_NAME} there would be of another model"),
        (documents, read),
    ):
        if left:
            some = left[0] + (f" and {len(left) - 1} more" if len(left) > 1 else "")
            hint = "remove what is left over, or name another directory"
            if left is documents:
                hint = f"--force removes {'it' if len(left) == 1 else 'them'}; or {hint}"
            message = f"{some} would remain, and {why}"
            raise OutputError("output.exists", message, path=directory, hint=hint, details=listed(left[1:]))


def left_documents(plan: Plan, target: Destination, written: Collection[Path]) -> list[Path]:
    """Documents of an earlier output, which the new one removes.

    Args:
        written: everything that is going to be written.
    """
    directory = target.parent
    if directory is None or not directory.is_dir():
        return []
    return [directory / name for name in _there(directory, _along(plan, directory).documents, written)]


def gone_notes(gone: Collection[Path]) -> list[str]:
    """Notes about documents that were removed."""
    names, them = ", ".join(path.name for path in gone), "it" if len(gone) == 1 else "them"
    return [f"removed, as loaders would take {them} for part of the output: {names}"] if gone else []


def _along(plan: Plan, directory: Path) -> Along:
    """Names of files that loaders read along with the output."""
    place = format_of(plan.format).takes_along
    along: Along = load(place)(plan, directory) if place is not None else Along()
    root = root_of(plan.index)
    if along.documents and not format_of(plan.index.format).single and root.is_dir() and root.samefile(directory):
        return along._replace(documents=())
    return along


def _there(directory: Path, patterns: Iterable[str], written: Collection[Path]) -> list[str]:
    """Names in a directory that match a pattern and are not written."""
    found: set[str] = set()
    with failing(directory):
        for folder in {os.path.dirname(pattern) for pattern in patterns}:
            globs = [os.path.basename(pattern) for pattern in patterns if os.path.dirname(pattern) == folder]
            paths = (directory / folder).iterdir() if (directory / folder).is_dir() else ()
            found |= {
                os.path.join(folder, path.name)
                for path in paths
                if path not in written
                and any(fnmatchcase(path.name, glob) for glob in globs)
                and not (path.is_dir() and not path.is_symlink())
            }
    return sorted(found)


def _described(
    target: Destination, written: Collection[Path], side: Mapping[Path, Small], gone: Collection[Path]
) -> list[str]:
    """Weights of an earlier output that the new configuration would describe."""
    directory = target.parent
    assert directory is not None
    path = directory / CONFIG_NAME
    config = side.get(path)
    same = path not in gone if config is None else holds(path, config.content)
    if same or not (target.directory or os.path.lexists(path)):
        return []
    with failing(directory):
        found = [name for format in FORMATS if format.configured for name in load(format.configured)(directory)]
    return sorted(name for name in found if directory / name not in written)


def stale_lists(target: Destination, written: Collection[Path]) -> list[str]:
    """Notes about lists of digests of an earlier output.

    Args:
        written: everything that is going to be written.
    """
    assert target.parent is not None
    names = (checksums.IN_DIRECTORY, CONVERSION_NAME)
    if not target.directory:
        names = (f"{target.file_name}{checksums.SUFFIX}", f"{target.file_name}{CONVERSION_SUFFIX}")
    left = [path for path in (target.parent / name for name in names) if path not in written and os.path.lexists(path)]
    return [f"{path.name} is already there and is not part of this output: remove it" for path in left]


def check_in_place(index: TensorIndex, place: Destination) -> bool:
    """Whether ``NAME.sha256`` lies beside it and has to be renewed.

    Raises:
        UsageError: ``usage.in-place``, the model is no single file, or other files speak of its bytes, or may.
    """
    hint = "name a DST instead of --in-place"
    if place.file is None or len(index.files) != 1 or index.files[0].name != place.file.name:
        raise UsageError("usage.in-place", "only a model that is one file is edited in place", hint=hint)
    path = place.file
    if path.is_symlink():
        raise UsageError("usage.in-place", f"{path} is a link, which the new file would replace", hint=hint)
    own = (path.with_name(f"{path.name}{CONVERSION_SUFFIX}"), record_path(path))
    speaking = [f"{other.name} beside it describes its present bytes" for other in own if os.path.lexists(other)]
    for name, names_in in ((checksums.IN_DIRECTORY, checksums.names_in), (CONVERSION_NAME, _outputs_of)):
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
    from ckconv.record.conversion import read_record

    return [name for name, _ in read_record(record).outputs]
