"""Staging directories that somebody made by hand and others cloned or unpacked: nothing outside of them is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from conftest import FIXTURES, Result
from kills import HIT

from ckconv.publish import locks
from ckconv.publish.kept import FINISHED, KEPT, Finished, Kept, lasting_name, remove_folder
from ckconv.publish.recovery import recover
from ckconv.publish.removal import remove_directory
from ckconv.publish.staging import Outputs, Room, Small

pytestmark = pytest.mark.needs("posix")

Ckconv = Callable[..., Result]

LLAMA = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
#: Writes three files, each to another directory, and kills itself at the n-th call that changes a name.
CHILD = (
    """
import os, signal, sys
from pathlib import Path
from ckconv.publish.staging import Outputs, Room, Small
at, place, side, number, count = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), signal.SIGKILL, 0
"""
    + HIT
    + """
rooms = {place / name: Room(3) for name in ("m.gguf", "n.gguf")}
with Outputs(rooms, {side: Small("config.json", b"new")}, force=True) as outputs:
    for path in rooms:
        os.pwrite(outputs.fds[path], b"new", 0)
    outputs.sync()
    for name in ("link", "rename", "replace", "mkdir", "unlink", "symlink", "rmdir"):
        setattr(os, name, hit(getattr(os, name)))
    outputs.publish()
"""
)

NAME = ".m.ckconv-00000000.tmp"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """What belongs to the user."""
    home = tmp_path / "home"
    for name in ("thesis.tex", "id_rsa", "folder/inner", "folder/deeper/innermost", ".d.ckconv-0.tmp"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    (home / "folder" / "empty").mkdir()
    (home / "folder" / "dangling").symlink_to("nothing")
    return home


@pytest.fixture
def cloned(tmp_path: Path) -> Path:
    """A directory that came from elsewhere."""
    (tmp_path / "repo").mkdir()
    return tmp_path / "repo"


def listing(place: Path) -> dict[str, str]:
    """Everything below: content of files, targets of links."""
    found = {}
    for path in place.rglob("*"):
        content = (
            str(path.readlink()) if path.is_symlink() else path.read_text("latin-1") if path.is_file() else "directory"
        )
        found[path.relative_to(place).as_posix()] = content
    return found


def put(staging: Path, links: dict[str, str | None], home: Path) -> None:
    """Links in a staging directory; without a target, a plain file."""
    for name, target in links.items():
        path = staging / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if target is None:
            path.write_text("plain")
        else:
            path.symlink_to(target.replace("HOME", str(home)))


HOSTILE: dict[str, dict[str, str | None]] = {
    "file taken away": {"d": "HOME", ".old/0000/x": "HOME/thesis.tex"},
    "file to be restored": {".old/0000/authorized_keys": "HOME/id_rsa"},
    "file to be restored, relative": {".old/0000/authorized_keys": "../../../../home/id_rsa"},
    "old is a link": {".old": "HOME", "d": "HOME"},
    "old is a link, staged plainly": {".old": "HOME", "d": None},
    "directory in old is a link": {".old/0000": "HOME/folder", "d": "HOME"},
    "directory in old is a link, staged plainly": {".old/0000": "HOME/folder", "d": None},
    "staged": {"d": "HOME/thesis.tex", ".old/0000/x": "HOME/nothing"},
    "staged in a directory": {"f/d": "HOME/thesis.tex", ".old/0000/x": "HOME/nothing"},
    "a directory of it is a link": {"f": "HOME/folder", ".old/0000/x": "HOME/nothing"},
    "name with dots": {"d": "HOME/folder/../thesis.tex", ".old/0000/x": "HOME/folder/../id_rsa"},
    "half of a temporary name": {"d": "HOME/.d.ckconv-0.tmp", ".old/0000/d": "HOME/.d.ckconv-0.tmp"},
    "finished": {".ckconv.finished": "HOME/folder", ".ckconv.unfinished": "HOME/folder"},
    "finished is a link to a file": {".ckconv.finished": "HOME/id_rsa", ".old/0000/x": "HOME/id_rsa"},
}


@pytest.mark.parametrize("links", HOSTILE.values(), ids=HOSTILE)
def test_links_that_no_run_made_lead_nowhere(links: dict[str, str | None], home: Path, cloned: Path) -> None:
    put(cloned / NAME, links, home)
    before = listing(home)
    assert recover([cloned]) == []
    assert listing(home) == before
    assert listing(cloned) == {}, "the rest of it is removed"


@pytest.mark.parametrize("links", HOSTILE.values(), ids=HOSTILE)
def test_links_lead_nowhere_where_they_cannot_be_removed(
    links: dict[str, str | None], home: Path, cloned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a directory that was unpacked read-only."""
    unlink = Path.unlink

    def refused(path: Path, missing_ok: bool = False) -> None:
        if path.is_relative_to(cloned / NAME):
            raise PermissionError(13, "Permission denied")
        unlink(path, missing_ok=missing_ok)

    put(cloned / NAME, links, home)
    before = listing(home)
    monkeypatch.setattr(Path, "unlink", refused)
    recover([cloned])
    assert listing(home) == before


def test_a_temporary_file_that_is_a_link_is_not_followed(home: Path, cloned: Path) -> None:
    """Two links in a row, the second one with the name that is asked for."""
    temp = cloned / "sub" / ".d.ckconv-00000000.tmp"
    temp.parent.mkdir()
    temp.symlink_to(home / "thesis.tex")
    links = {"d": str(temp), "thesis.tex": f"{home}/.thesis.tex.ckconv-00000000.tmp", ".old/0000/d": str(temp)}
    put(cloned / NAME, links, home)
    before = listing(home)
    assert recover([cloned]) == []
    assert listing(home) == before
    assert temp.is_symlink()


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("at", range(1, 32))
def test_a_killed_run_with_outputs_in_three_directories_is_undone(force: bool, at: int, tmp_path: Path) -> None:
    """One is behind a link, one has a name so long that its temporary one is cut off."""
    places = [tmp_path / "a" / "m.gguf", tmp_path / "b" / "real.gguf", tmp_path / "c" / f"{'ä' * 120}.json"]
    for place in places:
        place.parent.mkdir()
        if force:
            place.write_text("old")
    (tmp_path / "a" / "n.gguf").symlink_to(places[1])
    before = listing(tmp_path)
    command = [sys.executable, "-c", CHILD, str(at), str(tmp_path / "a"), str(places[2])]
    code = subprocess.run(command, check=False).returncode
    recover(sorted({place.parent for place in places}))
    after = before | {place.relative_to(tmp_path).as_posix(): "new" for place in places}
    found = {name: content for name, content in listing(tmp_path).items() if not name.endswith(locks.NAME)}
    assert found in ((before, after) if code else (after,))


def test_a_file_is_restored_under_no_other_name(home: Path, cloned: Path) -> None:
    temp = home / ".x.ckconv-00000000.tmp"
    temp.write_text("mine")
    put(cloned / NAME, {".old/0000/y": str(temp)}, home)
    recover([cloned])
    assert temp.read_text() == "mine"
    assert not (home / "y").exists()


def test_plain_files_replace_nothing(cloned: Path) -> None:
    (cloned / "config.json").write_text("mine")
    put(cloned / NAME, {"d": None, ".old/0000/config.json": None}, cloned)
    (told,) = recover([cloned])
    assert "others stand in their places now" in told
    assert (cloned / "config.json").read_text() == "mine"


def test_a_name_beside_it_that_is_a_link_to_a_directory_is_no_directory_of_the_output(home: Path, cloned: Path) -> None:
    """A file in the staging directory may be a second name of one of the user's."""
    put(cloned / NAME, {"d": None, "f/d": None, ".old/0000/x": None}, home)
    os.link(home / "folder" / "inner", cloned / NAME / "f" / "inner")
    (cloned / "f").symlink_to(home / "folder")
    before = listing(home)
    recover([cloned])
    assert listing(home) == before


@pytest.mark.parametrize("where", [FINISHED, KEPT, f"{KEPT}/0000", "f"])
def test_what_is_removed_is_not_removed_through_links(where: str, home: Path, cloned: Path) -> None:
    put(cloned / NAME, {where: "HOME/folder"}, home)
    before = listing(home)
    assert remove_directory(cloned / NAME) == []
    assert listing(home) == before
    (cloned / "f").symlink_to(home / "folder")
    assert remove_folder(cloned / "f") == [f"{cloned}/f is left over"]
    assert listing(home) == before


@pytest.mark.parametrize("where", [FINISHED, ".ckconv.unfinished", KEPT])
def test_whoever_goes_on_does_so_in_no_directory_that_a_link_leads_to(where: str, home: Path, cloned: Path) -> None:
    put(lasting_name(cloned / "m"), {where: "HOME/folder"}, home)
    (home / "folder" / ".list").write_text("")
    (cloned / "m").write_text("old")
    before = listing(home)
    kept = Kept("the same", 1)
    small = {cloned / "side": Small("side", b"side")}
    with Outputs({cloned / "m": Room(3, apart=True)}, small, force=True, kept=kept) as outputs:
        made = outputs.unfinished() / "m"
        made.write_bytes(b"new")
        kept.add(made, Finished("m", 3, sha256(b"new").hexdigest(), {}))
        outputs.take(cloned / "m", kept.place("m"))
        outputs.sync()
        outputs.publish()
    assert listing(home) == before
    assert listing(cloned) == {"m": "new", "side": "side"}


def test_a_list_of_finished_files_that_makes_no_sense_is_none(tmp_path: Path) -> None:
    for content in (
        b"[" * 100_000,
        b'{"fingerprint": "the same"}\n{"name": 5, "nbytes": 1, "sha256": "", "facts": {}}',
    ):
        staging = tmp_path / "m"
        (staging / FINISHED).mkdir(parents=True, exist_ok=True)
        (staging / FINISHED / ".list").write_bytes(content)
        kept = Kept("the same", 1)
        kept.begin(staging)
        assert kept.files == {}


def test_a_conversion_in_a_cloned_directory(ckconv: Ckconv, home: Path, cloned: Path) -> None:
    put(cloned / NAME, {"d": "HOME", ".old/0000/x": "HOME/thesis.tex"}, home)
    before = listing(home)
    assert ckconv("convert", LLAMA, cloned / "m.gguf", "--to", "gguf").code == 0
    assert listing(home) == before
    assert list(listing(cloned)) == ["m.gguf"]
