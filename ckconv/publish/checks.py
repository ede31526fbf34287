"""Checks of the places of outputs, before anything is written."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ckconv.errors import OutputError
from ckconv.publish.files import SideFile, failing, holds, write_error
from ckconv.system import free_space, is_own

#: Side file -> the flag of ``convert`` that says where it goes.
_PLACE_FLAGS = {"config.json": "--config-out", "weights_manifest.json": "--manifest"}


def check_place(directory: Path) -> None:
    """Check that files can be put into a directory, or it can be made.

    Raises:
        OutputError: ``output.parent``; ``output.exists``, it is not a directory.
    """
    check_parent(directory)
    if os.path.lexists(directory) and not directory.is_dir():
        raise OutputError("output.exists", "exists and is not a directory", path=directory)


def check_directory(directory: Path, *, force: bool) -> bool:
    """Whether ``directory`` is made anew and gets its name in one step.

    Else its files get their names one by one.

    Raises:
        OutputError: ``output.parent``; ``output.exists``, it is not a directory, or not empty and not to be filled.
    """
    check_place(directory)
    if not os.path.lexists(directory):
        return True
    with failing(directory):
        empty = not any(directory.iterdir())
    if not empty and not force:
        raise OutputError(
            "output.exists",
            "the directory exists and is not empty",
            path=directory,
            hint="--force writes into it; files of the same name are replaced",
        )
    return empty and _is_replaceable(directory)


def followed(path: Path, *, force: bool, typed: bool = True) -> Path:
    """The place of an output: where a named link leads, with ``force``.

    Args:
        typed: as it stands, and not made of something else, which may be no link at all.

    Raises:
        OutputError: ``output.exists``, it is a link that is not followed; ``output.special``, it is one that goes in a
            circle, or that another user has made, who may have put it there for this.
    """
    with failing(path):
        if not os.path.islink(path):  # noqa: PTH114 - never raises
            return path
        real, link = Path(os.path.realpath(path)), path.lstat()
        leads = f"is a link to {path.readlink()}{'' if os.path.lexists(real) else ', which is not there'}"
    if real.is_symlink():
        raise OutputError("output.special", "is a link that goes in a circle", path=path)
    if link.st_uid and not is_own(link):
        raise OutputError("output.special", f"is a link of another user to {real}", path=path, hint="name that place")
    if not typed:
        raise OutputError("output.exists", leads, path=path, hint="remove the link, or name another place")
    if not force:
        hint = f"--force writes there; or name {shlex.quote(str(real))}, or remove the link"
        raise OutputError("output.exists", leads, path=path, hint=hint)
    return real


def check_folder(path: Path) -> None:
    """Check that a directory inside an output is one, or can be made.

    Raises:
        OutputError: ``output.parent``.
    """
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        what = "is a link" if path.is_symlink() else "is not a directory"
        raise OutputError("output.parent", f"{what}, and a directory of that name is part of the output", path=path)


def _is_replaceable(directory: Path) -> bool:
    """Whether a new directory can take the place of this one."""
    with suppress(OSError):
        here = directory.samefile(os.curdir)
        return not here and not directory.is_mount() and os.access(directory.parent, os.W_OK | os.X_OK)
    return False


def check_target(target: Path, content: SideFile | None, *, force: bool, inputs: Iterable[Path]) -> None:
    """Check that a file can be made or replaced.

    Args:
        content: what a side file is going to hold; one that holds it already is fine.
        force: replace what is there.
        inputs: files that are never replaced.

    Raises:
        OutputError: ``output.exists``, ``output.directory``, ``output.parent``, ``output.special``,
            ``output.is-input`` or ``output.write``.
    """
    check_parent(target)
    try:
        found = target.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise write_error(error, target) from error
    for source in inputs:
        with suppress(OSError):
            if os.path.samestat(found, source.stat()):
                message = f"is the input {source}, which is never written to"
                raise OutputError("output.is-input", message, path=target, hint="name another place")
    with suppress(OSError):
        if os.path.samestat(found, read := os.fstat(0)) and stat.S_ISREG(read.st_mode):
            message = "is the file that standard input reads, which is never written to"
            raise OutputError("output.is-input", message, path=target)
    if stat.S_ISDIR(found.st_mode):
        raise OutputError(
            "output.directory", "is a directory", path=target, hint=f"name a file in it, or {target}/ for all of them"
        )
    is_link = stat.S_ISLNK(found.st_mode)
    if not (stat.S_ISREG(found.st_mode) or is_link):
        raise OutputError("output.special", "exists and is not a regular file", path=target)
    if force or (content is not None and holds(target, content)):
        return
    if is_link:
        message = f"is a link to {target.readlink()}, and no file of an output is written through one"
        raise OutputError("output.exists", message, path=target, hint="--force replaces the link; or remove it")
    hint = "--force replaces it"
    if content is not None:
        flag = _PLACE_FLAGS.get(target.name)
        elsewhere = f", or another place for it ({flag})" if flag else ""
        hint = f"name a directory for the output (DST/){elsewhere}; {hint}"
    raise OutputError("output.exists", "exists already", path=target, hint=hint)


def check_gone(targets: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Check that nothing is taken away that is read.

    Raises:
        OutputError: ``output.is-input``.
    """
    inputs = tuple(inputs)
    for target in targets:
        for source in inputs:
            with suppress(OSError):
                if target.samefile(source):
                    message = f"is the input {source}, and loaders would take it for part of the output"
                    raise OutputError("output.is-input", message, path=target, hint="name another directory")


def check_apart(targets: Iterable[Path]) -> None:
    """Check that no two outputs are one file, as links may make them.

    Raises:
        OutputError: ``output.special``.
    """
    seen: dict[str, Path] = {}
    for target in targets:
        other = seen.setdefault(os.path.join(os.path.realpath(target.parent), target.name), target)
        if other is not target:
            raise OutputError("output.special", f"is the same file as {other}", path=target)


def check_room(needs: Iterable[tuple[Path, Path, int]]) -> None:
    """Check that every file system has room for what goes there.

    Args:
        needs: (directory, target, bytes) of each file; of several on a file system the error names the directory.

    Raises:
        OutputError: ``output.space``, with the bytes that are free and that are needed.
    """
    per_device: dict[int, list[tuple[Path, Path, int]]] = {}
    for parent, target, nbytes in needs:
        per_device.setdefault(parent.stat().st_dev, []).append((parent, target, nbytes))
    for files in per_device.values():
        free, need = free_space(files[0][0]), sum(nbytes for _, _, nbytes in files)
        if free is not None and need > free:
            _, path, _ = max(files, key=lambda file: file[2])
            what = "" if len(files) == 1 else f" for {len(files):,} files"
            raise OutputError(
                "output.space",
                f"needs {need:,} bytes{what}, {free:,} are free",
                path=path.parent if what else path,
                found=free,
                allowed=need,
            )


def check_parent(path: Path) -> None:
    """Check that the directory which is to hold ``path`` is there.

    Raises:
        OutputError: ``output.parent``.
    """
    with failing(path):
        if path.parent.is_dir():
            return
    there = os.path.lexists(path.parent)
    message = f"{path.parent} is not a directory" if there else f"the directory {path.parent} does not exist"
    hint = None if there else f"mkdir -p {shlex.quote(str(path.parent))}"
    raise OutputError("output.parent", message, path=path, hint=hint)
