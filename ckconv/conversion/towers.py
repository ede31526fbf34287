"""Conversion of a vision or audio tower (``mmproj``), a file of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ckconv.conversion.follow import watching
from ckconv.conversion.library import StrPath, pythonic
from ckconv.conversion.planning import TOWER_HINT, make_plan, tower_options
from ckconv.conversion.run import Report, run
from ckconv.conversion.sidefiles import late_files
from ckconv.errors import UsageError
from ckconv.formats import FORMATS, format_of, tower_format
from ckconv.formats.destination import Destination, destination, says_nothing
from ckconv.formats.detect import open_index
from ckconv.formats.huggingface.read import tower_index
from ckconv.io.addresses import as_path
from ckconv.io.files import readable
from ckconv.options import Options
from ckconv.plan.quantizing import check_values
from ckconv.plan.steps import Late, Plan
from ckconv.publish.files import check_target, followed
from ckconv.verification.tensors import Progress


def prepare_tower(source: StrPath, target: StrPath, *, options: Options) -> tuple[Plan, Destination]:
    """The plan of a tower's file (``mmproj``), and where it goes.

    Args:
        options: of the text model; a tower takes its types, and what is left out.

    Raises:
        UsageError: ``usage.target``, no such file is written there.
        UnsupportedError: ``tower.unknown``, the source has no tower that is known.
        InputError: it is malformed.
    """
    to, name = tower_format(), "" if says_nothing(os.fspath(target)) else Path(target).name
    for ending in (ending for format in FORMATS if format.name != to for ending in format.endings):
        if name.lower().endswith(ending):
            message = f"{name!r} ends in {ending}, and a tower is a {format_of(to).suffix}"
            raise UsageError("usage.target", message)
    place = destination(os.fspath(target), to)
    if place.parent is None:
        raise UsageError("usage.target", "a tower is a file beside the text model, not on stdout", hint="name a GGUF")
    index = tower_index(open_index(as_path(source), follow_links=options.follow_links))
    own = replace(tower_options(options), file_name=place.file_name)
    with readable(index.path):
        return make_plan(index, place.format, own), place


def check_beside(
    tower: tuple[Plan, Destination], outputs: Sequence[Path], late: Sequence[Late], *, force: bool
) -> None:
    """Check that a tower can be written when its text model is there.

    Args:
        outputs: everything that is written of the text model.
        late: files beside the tower.
    """
    plan, place = tower
    assert place.parent is not None
    own = [place.parent / file.name for file in plan.files]
    for path in (*own, *(item.path for item in late)):
        if any(_is_same(path, other) for other in outputs):
            message = f"{path} would be both a file of the tower and one of the text model"
            raise UsageError("usage.target", message, hint="name another FILE for --mmproj")
        if path in own:
            followed(path, force=force, typed=False)
        if path.parent.exists() or not any(_is_same(path.parent, other) for other in outputs):
            check_target(path, None, force=force, inputs=plan.index.files)


def _is_same(one: Path, other: Path) -> bool:
    with suppress(OSError):
        return one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)


def without_hint(plan: Plan) -> Plan:
    """A text model's plan without the hint how its tower would be written."""
    return replace(plan, notes=tuple(note.removesuffix(f"; {TOWER_HINT}") for note in plan.notes))


@pythonic
def convert_tower(
    source: StrPath,
    target: StrPath,
    *,
    options: Options | None = None,
    force: bool = False,
    verify: bool = True,
    checksums: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Write a model's tower, which llama.cpp loads beside the text model.

    Args:
        target: a GGUF file.
        options: those of types, and ``drop``, have a say.
        force, verify, checksums, progress: as :func:`convert` has them.

    Raises:
        UsageError: ``usage.target``, the target is stdout, or named as a file of another format.
        UnsupportedError: ``tower.unknown``, or every reason why llama.cpp would not compute the tower.
        InputError, OutputError, VerifyError: as :func:`convert`.
    """
    options = options or Options()
    check_values(options)
    plan, place = prepare_tower(source, target, options=options)
    late = late_files(plan, place, checksums=checksums)
    return run(plan, place, force=force, verify=verify, late=late, watcher=watching(progress))
