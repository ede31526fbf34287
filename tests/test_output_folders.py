"""Side files in directories inside an output: staged, checked and published as the others, or nothing of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from kills import HIT
from outputs import failing_at, refused

from ckconv.errors import OutputError
from ckconv.publish.files import LOCK
from ckconv.publish.journal import recover
from ckconv.publish.staging import LargeFile, Outputs, SmallFile

MODEL, SIDE, PART = "model.safetensors", "modules.json", "1_Pooling/config.json"
NEW = {MODEL: b"new model", SIDE: b"new list", PART: b"new part"}
OLD = {"notes": b"mine", MODEL: b"old model", SIDE: b"old list", PART: b"old part"}

#: Writes NEW into a directory, and kills itself at the n-th of some calls from the beginning on.
CHILD = (
    """
import os, signal, sys
from pathlib import Path
from test_output_folders import outputs, write
place, at, number, count = Path(sys.argv[1]), int(sys.argv[2]), signal.SIGKILL, 0
"""
    + HIT
    + """
for name in ("link", "replace", "rename", "mkdir", "unlink", "rmdir"):
    setattr(os, name, hit(getattr(os, name)))
with outputs(place, force=True) as made:
    write(made, place)
    made.publish()
"""
)


def outputs(place: Path, *, force: bool = False) -> Outputs:
    small = {place / name: SmallFile(name, NEW[name]) for name in (SIDE, PART)}
    return Outputs(
        {place / MODEL: LargeFile(len(NEW[MODEL]))}, small, directory=place, force=force, last=[place / MODEL]
    )


def write(made: Outputs, place: Path) -> None:
    os.pwrite(made.fds[place / MODEL], NEW[MODEL], 0)
    made.fds.sync()


def put(place: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)


def found(place: Path) -> dict[str, bytes]:
    files = [path for path in place.rglob("*") if path.is_file()] if place.is_dir() else []
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in files if path.name != LOCK}


@pytest.mark.parametrize("is_there", [False, True], ids=["new", "empty"])
def test_a_directory_appears_complete_with_those_inside(tmp_path: Path, is_there: bool) -> None:
    place = tmp_path / "dst"
    if is_there:
        place.mkdir()
    with outputs(place) as made:
        write(made, place)
        assert found(place) == {}
        assert found(made.staging) == NEW
        made.publish()
    assert found(place) == NEW
    assert [path.name for path in tmp_path.iterdir()] == ["dst"]


@pytest.mark.parametrize("before", [{"notes": b"mine"}, OLD], ids=["none of them", "all of them"])
def test_into_a_directory_with_files_they_go_one_by_one(tmp_path: Path, before: dict[str, bytes]) -> None:
    put(tmp_path, before)
    with outputs(tmp_path, force=True) as made:
        write(made, tmp_path)
        made.publish()
    assert found(tmp_path) == {**before, **NEW}


def test_a_block_that_does_not_publish_leaves_no_directory(tmp_path: Path) -> None:
    put(tmp_path, {"notes": b"mine"})
    with outputs(tmp_path, force=True) as made:
        write(made, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_a_directory_that_was_there_and_empty_stays(tmp_path: Path) -> None:
    (tmp_path / "1_Pooling").mkdir()
    with outputs(tmp_path, force=True) as made:
        write(made, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["1_Pooling"]


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_is_no_directory_of_the_output_is_refused(tmp_path: Path, kind: str) -> None:
    place, elsewhere = tmp_path / "dst", tmp_path / "elsewhere"
    put(place, {"notes": b"mine"})
    elsewhere.mkdir()
    if kind == "file":
        (place / "1_Pooling").write_bytes(b"x")
    else:
        (place / "1_Pooling").symlink_to(elsewhere)
    before = found(place)
    with refused("output.parent", "a directory of that name is part of the output"), outputs(place, force=True):
        pass
    assert (found(place), list(elsewhere.iterdir())) == (before, [])


@pytest.mark.parametrize("step", range(30))
@pytest.mark.parametrize("before", [{"notes": b"mine"}, OLD], ids=["none of them", "all of them"])
@pytest.mark.needs("posix")
def test_failure_at_any_step_leaves_all_or_nothing(tmp_path: Path, before: dict[str, bytes], step: int) -> None:
    put(tmp_path, before)
    notes: list[str] = []
    with suppress(OutputError), outputs(tmp_path, force=True) as made:
        write(made, tmp_path)
        with failing_at(step, "link", "replace", "rename", "unlink", "fsync"):
            try:
                made.publish()
            finally:
                notes = made.notes
    after = found(tmp_path)
    hidden = [name for name in after if "/." in f"/{name}"]
    assert not hidden or notes, "what could not be removed is said"
    assert {name: after[name] for name in after if name not in hidden} in (before, {**before, **NEW})


@pytest.mark.parametrize("at", range(1, 60, 3))
@pytest.mark.parametrize("before", [{"notes": b"mine"}, OLD], ids=["none of them", "all of them"])
@pytest.mark.needs("posix")
def test_killed_at_any_step_the_next_run_undoes_it(tmp_path: Path, before: dict[str, bytes], at: int) -> None:
    place = tmp_path / "dst"
    put(place, before)
    paths = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
    child = subprocess.run([sys.executable, "-c", CHILD, str(place), str(at)], env=os.environ | paths, check=False)
    assert child.returncode in (0, -signal.SIGKILL)

    recover([place, tmp_path])

    assert found(place) in (before, {**before, **NEW})
    assert [path for path in place.rglob("*") if path.is_dir() and not any(path.iterdir())] == []
    hidden = [path for path in place.rglob(".*") if path.name != LOCK]
    assert (hidden, sorted(path.name for path in tmp_path.iterdir())) == ([], ["dst"])
