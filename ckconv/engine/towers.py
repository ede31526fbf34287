"""Converting what a model sees with, which is a file of its own beside the text model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ckconv.engine.late import side_files
from ckconv.engine.run import Report, run
from ckconv.engine.targets import make_plan
from ckconv.formats import tower_format
from ckconv.formats.destination import Destination, destination
from ckconv.formats.detect import open_index
from ckconv.formats.huggingface.tower import tower_index
from ckconv.io.files import readable
from ckconv.options import Options
from ckconv.plan.choices import check_values
from ckconv.plan.steps import Plan

if TYPE_CHECKING:
    from ckconv.engine.transfer import Watcher


def prepare_tower(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, options: Options
) -> tuple[Plan, Destination]:
    """The plan of the file that llama.cpp loads beside a text model (``mmproj``), and where it goes.

    Args:
        options: of the text model; a tower takes its types, and what is left out.

    Raises:
        UnsupportedError: ``tower.unknown``, the source has no tower that is known.
        InputError: it is malformed.
    """
    place = destination(os.fspath(target), tower_format())
    index = tower_index(open_index(Path(source), follow_links=options.follow_links))
    own = Options(dtype=options.dtype, drop=options.drop, allow_lossy=options.allow_lossy, file_name=place.file_name)
    with readable(index.path):
        return make_plan(index, place.format, own), place


def convert_tower(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    options: Options | None = None,
    force: bool = False,
    verify: bool = True,
    checksums: bool = False,
    progress: Watcher | None = None,
) -> Report:
    """Write what a model sees with, as llama.cpp loads it beside the text model that :func:`convert` writes.

    Args:
        target: a GGUF file.
        options: ``dtype`` and ``drop`` have a say.
        force, verify, checksums, progress: as :func:`convert` has them.

    Raises:
        UnsupportedError: ``tower.unknown``, or every reason why llama.cpp would not compute the tower.
        InputError, OutputError, VerifyError: as :func:`convert`.
    """
    options = options or Options()
    check_values(options)
    plan, place = prepare_tower(source, target, options=options)
    late = side_files(plan, place, checksums=checksums)
    return run(plan, place, force=force, verify=verify, late=late, watcher=progress)
