"""Outputs of several large files, and side files that belong elsewhere: all of them appear, or none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from outputs import failing_at, names, no_links, refused

from ckconv.errors import OutputError
from ckconv.publish.staging import LargeFile, Outputs, SmallFile

SHARDS = [f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
NEW = {**{name: name.encode() for name in SHARDS}, "config.json": b"{}"}
OLD = {name: b"old " + content for name, content in NEW.items()}


def shards(place: Path, *, directory: Path | None = None, force: bool = False) -> Outputs:
    """Three files and a side file, to be filled by :func:`fill`."""
    large = {place / name: LargeFile(len(NEW[name])) for name in SHARDS}
    small = {place / "config.json": SmallFile("config.json", NEW["config.json"])}
    return Outputs(large, small, directory=directory, force=force)


def fill(outputs: Outputs) -> None:
    for path, fd in outputs.fds.items():
        os.pwrite(fd, NEW[path.name], 0)
    outputs.fds.sync()


def put(place: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (place / name).write_bytes(content)


def found(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() if path.is_file() else b"directory" for path in place.iterdir()}


def test_all_lie_under_their_own_names_in_one_directory_until_they_are_published(tmp_path: Path) -> None:
    with shards(tmp_path) as outputs:
        fill(outputs)
        assert names(tmp_path) == [outputs.staging.name]
        assert found(outputs.staging) == NEW
        assert outputs.staged(tmp_path / SHARDS[1]) == outputs.staging / SHARDS[1]
        outputs.publish()
    assert found(tmp_path) == NEW


def test_side_files_get_their_names_first_and_the_last_file_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[str] = []
    link = os.link

    def linked(source: str, target: str, **directories: int) -> None:
        link(source, target, **directories)
        named.append(Path(target).name)

    monkeypatch.setattr(os, "link", linked)
    with shards(tmp_path) as outputs:
        fill(outputs)
        outputs.publish()
    assert named == ["config.json", *SHARDS]


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("force", [True, False])
def test_failure_at_the_second_of_three_brings_the_first_back(
    tmp_path: Path, force: bool, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if force:
        put(tmp_path, OLD)
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    with shards(tmp_path, force=force) as outputs:
        fill(outputs)
        (tmp_path / SHARDS[1]).unlink(missing_ok=True)
        (tmp_path / SHARDS[1]).mkdir()
        with refused(*(("output.write", "Is a directory") if force else ("output.exists", "meanwhile"))) as caught:
            outputs.publish()
    assert caught[0].path == str(tmp_path / SHARDS[1])
    (tmp_path / SHARDS[1]).rmdir()
    assert found(tmp_path) == ({name: OLD[name] for name in OLD if name != SHARDS[1]} if force else {})


@pytest.mark.product("pairs")
@pytest.mark.parametrize("step", range(28))
@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("before", [{}, OLD, {SHARDS[0]: b"old"}, {SHARDS[2]: b"old", "notes": b"mine"}])
@pytest.mark.needs("posix")
def test_failure_at_any_step_leaves_all_or_nothing(
    tmp_path: Path, before: dict[str, bytes], links: bool, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The n-th link, rename, removal or sync fails: afterwards everything is new or everything is as before."""
    put(tmp_path, before)
    with shards(tmp_path, force=bool(before)) as outputs:
        fill(outputs)
        if not links:
            monkeypatch.setattr(os, "link", no_links)
        with failing_at(step, "link", "replace", "rename", "unlink", "fsync"), suppress(OutputError):
            outputs.publish()
    after = found(tmp_path)
    if after not in (before, {**before, **NEW}):
        left = [name for name in after if name.startswith(".")]
        assert len(left) == 1, "one removal failed"
        assert any(f"/{left[0]}" in note for note in outputs.notes), "and it is said"
        del after[left[0]]
    assert after in (before, {**before, **NEW})


def test_force_leaves_files_of_another_split_alone(tmp_path: Path) -> None:
    put(tmp_path, {**OLD, "m-00001-of-00002.gguf": b"other"})
    with shards(tmp_path, force=True) as outputs:
        fill(outputs)
        outputs.publish()
    assert found(tmp_path) == {**NEW, "m-00001-of-00002.gguf": b"other"}


@pytest.mark.parametrize("name", SHARDS)
def test_one_file_that_exists_refuses_the_set(tmp_path: Path, name: str) -> None:
    put(tmp_path, {name: b"old"})
    with refused("output.exists", "exists already") as caught, shards(tmp_path):
        pass
    assert caught[0].path == str(tmp_path / name)
    assert found(tmp_path) == {name: b"old"}


def test_directory_gets_its_name_by_one_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "dst"
    with shards(place, directory=place) as outputs:
        fill(outputs)
        assert found(outputs.staging) == NEW
        inode = outputs.staging.stat().st_ino
        monkeypatch.setattr(os, "link", no_links)
        monkeypatch.setattr(os, "replace", no_links)
        outputs.publish()
    assert place.stat().st_ino == inode
    assert found(place) == NEW
    assert names(tmp_path) == ["dst"]


def test_empty_directory_keeps_its_permissions(tmp_path: Path) -> None:
    place = tmp_path / "dst"
    place.mkdir()
    place.chmod(0o2750)
    with shards(place, directory=place) as outputs:
        fill(outputs)
        outputs.publish()
    assert place.stat().st_mode & 0o7777 == 0o2750
    assert found(place) == NEW


@pytest.mark.parametrize("fails", [False, True])
def test_directory_in_which_somebody_stands_is_filled_and_not_replaced(
    tmp_path: Path, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    inode = tmp_path.stat().st_ino
    with shards(Path(), directory=Path()) as outputs:
        fill(outputs)
        if not fails:
            outputs.publish()
    assert tmp_path.stat().st_ino == inode
    assert found(tmp_path) == ({} if fails else NEW)


def test_set_that_does_not_fit_is_refused_as_a_whole(tmp_path: Path) -> None:
    filesystem = os.statvfs(tmp_path)
    half = filesystem.f_blocks * filesystem.f_frsize // 2 + 1
    with refused("output.space", rf"needs {3 * half:,} bytes for 3 files, [\d,]+ are free") as caught:
        Outputs({tmp_path / name: LargeFile(half) for name in SHARDS}, {}).__enter__()
    assert caught[0].path == str(tmp_path)
    assert names(tmp_path) == []


@pytest.mark.needs("posix")
def test_every_file_reaches_the_disk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def spied(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", spied)
    with shards(tmp_path) as outputs:
        fill(outputs)
        staged = [path.stat().st_ino for path in outputs.staging.iterdir()]
        outputs.publish()
        assert [synced.count(inode) for inode in staged] == [1] * len(staged)
        assert tmp_path.stat().st_ino in synced


KILLED = """
import os, signal, sys
from pathlib import Path
from ckconv.publish.staging import Outputs, LargeFile, SmallFile
place = Path(sys.argv[1])
large = {place / f"m-0000{n}-of-00003.gguf": LargeFile(1 << 20) for n in (1, 2, 3)}
outputs = Outputs(large, {place / "config.json": SmallFile("config.json", b"{}")}, force=True)
with outputs:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_outright_leaves_one_temporary_name(tmp_path: Path) -> None:
    put(tmp_path, OLD)
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)])
    assert done.returncode == -signal.SIGKILL
    (left,) = set(names(tmp_path)) - OLD.keys()
    assert left.startswith(".")
    assert left.endswith(".tmp")
    assert names(tmp_path / left) == sorted(NEW)
    assert {name: (tmp_path / name).read_bytes() for name in OLD} == OLD
    with shards(tmp_path, force=True) as outputs:
        fill(outputs)
        outputs.publish()
    assert {name: (tmp_path / name).read_bytes() for name in NEW} == NEW, "what is left is in nobody's way"


# --- side files and links that lead elsewhere


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A directory on another file system, where there is one; else just another directory."""
    shared = Path("/dev/shm")
    if not (shared.is_dir() and os.access(shared, os.W_OK) and shared.stat().st_dev != tmp_path.stat().st_dev):
        (tmp_path / "elsewhere").mkdir()
        yield tmp_path / "elsewhere"
        return
    with tempfile.TemporaryDirectory(dir=shared) as name:
        yield Path(name)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


@pytest.mark.parametrize("in_directory", [False, True])
@pytest.mark.needs("posix")
def test_side_file_elsewhere_is_staged_under_the_name_that_readers_know(
    here: Path, elsewhere: Path, in_directory: bool
) -> None:
    place = here / "dst" if in_directory else here
    side = elsewhere / "c.json"
    small = {side: SmallFile("config.json", b"{}")}
    with Outputs({place / "m": LargeFile(1)}, small, directory=place if in_directory else None) as outputs:
        assert outputs.staged(side) == outputs.staging / "config.json"
        assert outputs.staged(side).read_bytes() == b"{}"
        assert len(names(elsewhere)) == 1
        assert names(elsewhere)[0].startswith(".c.json.")
        outputs.publish()
    assert found(elsewhere) == {"c.json": b"{}"}
    assert found(place) == {"m": b"\0"}
    assert names(here) == (["dst"] if in_directory else ["m"])


@pytest.mark.parametrize("force", [False, True])
def test_side_file_elsewhere_that_is_there_is_neither_written_nor_removed(
    here: Path, elsewhere: Path, force: bool
) -> None:
    side = elsewhere / "c.json"
    side.write_bytes(b"{}")
    before = side.stat()
    with Outputs({here / "m": LargeFile(1)}, {side: SmallFile("config.json", b"{}")}, force=force) as outputs:
        assert names(elsewhere) == ["c.json"]
        assert outputs.staged(side).read_bytes() == b"{}"
        outputs.publish()
    assert (side.stat().st_ino, side.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("force", [False, True])
def test_side_file_that_changed_meanwhile(here: Path, elsewhere: Path, force: bool) -> None:
    side = elsewhere / "c.json"
    side.write_bytes(b"{}")
    with Outputs({here / "m": LargeFile(1)}, {side: SmallFile("config.json", b"{}")}, force=force) as outputs:
        side.write_bytes(b"theirs")
        if force:
            outputs.publish()
        else:
            with refused("output.exists", "meanwhile"):
                outputs.publish()
    assert found(elsewhere) == {"c.json": b"{}" if force else b"theirs"}
    assert names(here) == (["m"] if force else [])


def test_failure_leaves_nothing_elsewhere(here: Path, elsewhere: Path) -> None:
    with pytest.raises(RuntimeError), Outputs({here / "m": LargeFile(1)}, {elsewhere / "c": SmallFile("c", b"")}):
        raise RuntimeError
    assert names(here) + names(elsewhere) == []


@pytest.mark.parametrize("name", [SHARDS[1], "config.json"])
def test_a_file_of_the_set_that_is_a_link_is_replaced_and_not_followed(here: Path, elsewhere: Path, name: str) -> None:
    put(here, OLD)
    (here / name).unlink()
    (here / name).symlink_to(elsewhere / "blob")
    (elsewhere / "blob").write_bytes(b"mine")
    with refused("output.exists"), shards(here):
        pass
    with shards(here, force=True) as outputs:
        fill(outputs)
        outputs.publish()
    assert not (here / name).is_symlink()
    assert (found(here), found(elsewhere)) == (NEW, {"blob": b"mine"})


def test_a_link_of_the_set_is_there_again_where_it_is_not_published(here: Path, elsewhere: Path) -> None:
    put(here, OLD)
    (here / "config.json").unlink()
    (here / "config.json").symlink_to(elsewhere / "blob")
    with shards(here, force=True) as outputs:
        fill(outputs)
        (here / SHARDS[1]).unlink()
        (here / SHARDS[1]).mkdir()
        with refused("output.write", "Is a directory"):
            outputs.publish()
    assert (here / "config.json").readlink() == elsewhere / "blob"


def test_two_outputs_that_a_link_makes_one_are_refused(here: Path) -> None:
    (here / "sub").symlink_to(here)
    with (
        refused("output.special", "is the same file as"),
        Outputs({here / "m": LargeFile(1)}, {here / "sub" / "m": SmallFile("config.json", b"{}")}),
    ):
        pass
    assert names(here) == ["sub"]


def test_model_that_is_called_like_a_side_file(here: Path, elsewhere: Path) -> None:
    model = here / "config.json"
    with Outputs({model: LargeFile(5)}, {elsewhere / "c": SmallFile("config.json", b"{}")}) as outputs:
        os.pwrite(outputs.fds[model], b"model", 0)
        assert (outputs.staging / "config.json").read_bytes() == b"{}"
        assert outputs.staged(model).read_bytes() == b"model"
        outputs.publish()
    assert (found(here), found(elsewhere)) == ({"config.json": b"model"}, {"c": b"{}"})


def test_side_files_of_a_directory_may_change_names(tmp_path: Path) -> None:
    place = tmp_path / "dst"
    small = {place / "b": SmallFile("a", b"A"), place / "a": SmallFile("b", b"B"), place / "z": SmallFile("m", b"M")}
    with Outputs({place / "m": LargeFile(5)}, small, directory=place) as outputs:
        os.pwrite(outputs.fds[place / "m"], b"model", 0)
        assert (outputs.staging / "a").read_bytes() == b"A"
        outputs.publish()
    assert found(place) == {"a": b"B", "b": b"A", "z": b"M", "m": b"model"}


def test_side_files_alone(here: Path) -> None:
    """As beside a model that goes to a pipe."""
    with Outputs({}, {here / "c.json": SmallFile("config.json", b"{}")}) as outputs:
        assert outputs.fds == {}
        assert names(here) == [outputs.staging.name]
        outputs.publish()
    assert found(here) == {"c.json": b"{}"}
    before = here.stat().st_mtime_ns
    with Outputs({}, {here / "c.json": SmallFile("config.json", b"{}")}) as outputs:
        outputs.publish()
    assert here.stat().st_mtime_ns == before, "nothing to write"


def test_nothing_at_all(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    with Outputs({}, {}) as outputs:
        assert (outputs.fds, names(here)) == ({}, [])
        outputs.publish()
    assert names(here) == []
