"""Staging directories that somebody made by hand and others cloned or unpacked: nothing outside of them is touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from conftest import FIXTURES, Result
from kills import HIT

from ckconv.publish.files import LOCK, Directory
from ckconv.publish.journal import CONVERSION, NAME as JOURNAL, REPLACED, discard, lasting_name, recover

pytestmark = [pytest.mark.attack, pytest.mark.needs("posix")]

Ckconv = Callable[..., Result]

LLAMA = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
QWEN2 = FIXTURES / "hf" / "qwen2-tied-bf16"
#: Writes three files, each to another directory, and kills itself at the n-th call that changes a name.
CHILD = (
    """
import os, signal, sys
from pathlib import Path
from ckconv.publish.staging import Outputs, LargeFile, SmallFile
at, number, count = int(sys.argv[1]), signal.SIGKILL, 0
one, two, side = map(Path, sys.argv[2:])
"""
    + HIT
    + """
rooms = {one: LargeFile(3), two: LargeFile(3)}
with Outputs(rooms, {side: SmallFile("config.json", b"new")}, force=True) as outputs:
    for path in rooms:
        os.pwrite(outputs.fds[path], b"new", 0)
    outputs.fds.sync()
    for name in ("link", "rename", "replace", "mkdir", "unlink", "rmdir", "open"):
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
    """Links in a staging directory, and its journal; without a target, a plain file."""
    for name, target in links.items():
        path = staging / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if target is None:
            path.write_text("plain")
        elif name == JOURNAL and not target.startswith("HOME"):
            path.write_text(target)
        else:
            path.symlink_to(target.replace("HOME", str(home)))


def journal(
    take: Sequence[Sequence[str]] = (),
    give: Sequence[Sequence[str]] = (),
    folders: Sequence[str] = (),
    group: Sequence[str] = (),
) -> str:
    """A journal that somebody wrote by hand."""
    return json.dumps({"take": take, "give": [[place, 1] for place in give], "folders": folders, "group": group})


HOSTILE: dict[str, dict[str, str | None]] = {
    "journal is a link": {JOURNAL: "HOME/thesis.tex", "d": None},
    "journal is a directory": {f"{JOURNAL}/x": "HOME/thesis.tex"},
    "replaced is a link": {JOURNAL: journal([["inner"]], [["d"]]), REPLACED: "HOME/folder", "d": None},
    "directory in replaced is a link": {
        JOURNAL: journal([["f", "inner"]], [["d"]]),
        f"{REPLACED}/f": "HOME/folder",
        "d": None,
    },
    "staged is a link": {JOURNAL: journal([], [["d"]]), "d": "HOME/thesis.tex"},
    "directory staged is a link": {JOURNAL: journal([], [["f", "inner"]]), "f": "HOME/folder"},
    "finished": {CONVERSION: "HOME/id_rsa", ".x.json": "HOME/id_rsa"},
    "finished is a directory elsewhere": {CONVERSION: "HOME/folder"},
    "of a version before": {"d": "HOME", ".old/0000/x": "HOME/thesis.tex", ".old/0001": "HOME/folder"},
    "no document": {JOURNAL: "[" * 100_000, "d": None},
    "no list": {JOURNAL: json.dumps({"take": 5, "give": {}, "folders": None, "group": "x"}), "d": None},
}

#: Names that are none: each would lead elsewhere.
NAMES = ["../home/thesis.tex", "/etc/hostname", "..", ".", "", "a/b", "a\0b", 5, None, ["x"]]


@pytest.mark.parametrize("links", HOSTILE.values(), ids=HOSTILE)
def test_links_that_no_run_made_lead_nowhere(links: dict[str, str | None], home: Path, cloned: Path) -> None:
    put(cloned / NAME, links, home)
    before = listing(home)
    assert recover([cloned]) == ([], [])
    assert listing(home) == before
    assert listing(cloned) == {}, "the rest of it is removed"


@pytest.mark.product("values")
@pytest.mark.parametrize("where", ["take", "give", "folders"])
@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_a_journal_names_nothing_outside_of_its_directory(name: object, where: str, home: Path, cloned: Path) -> None:
    document = json.loads(journal([], [["d"]]))
    document[where].append({"take": [name], "give": [[name], 1], "folders": name}[where])
    put(cloned / NAME, {JOURNAL: json.dumps(document), "d": None}, home)
    (cloned / "mine").write_text("mine")
    before = listing(home)
    assert recover([cloned]) == ([], [])
    assert (listing(home), listing(cloned)) == (before, {"mine": "mine"})


def test_a_journal_speaks_for_no_directory_that_does_not_speak_for_it(home: Path, cloned: Path) -> None:
    """Another user's own dead run may be named in a journal that was cloned."""
    theirs = home / NAME
    put(theirs, {JOURNAL: journal([["thesis.tex"]], [["d"]]), "d": None, f"{REPLACED}/thesis.tex": None}, home)
    group = [str(cloned / NAME), str(theirs)]
    put(cloned / NAME, {JOURNAL: journal([], [["d"]], group=group), "d": None}, home)
    before = listing(home)
    assert recover([cloned]) == ([], [])
    assert listing(home) == before


@pytest.mark.parametrize("links", HOSTILE.values(), ids=HOSTILE)
def test_links_lead_nowhere_where_they_cannot_be_removed(
    links: dict[str, str | None], home: Path, cloned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a directory that was unpacked read-only."""

    def refused(path: str, **options: int) -> None:
        raise PermissionError(13, "Permission denied")

    put(cloned / NAME, links, home)
    before = listing(home)
    with monkeypatch.context() as patch:
        for call in ("unlink", "rename", "replace", "rmdir"):
            patch.setattr(os, call, refused)
        recover([cloned])
    assert listing(home) == before


@pytest.mark.product("values")
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("at", range(1, 90, 2))
def test_a_killed_run_with_outputs_in_three_directories_is_undone(force: bool, at: int, tmp_path: Path) -> None:
    """One of them has a name so long that its temporary one is cut off."""
    places = [tmp_path / "a" / "m.gguf", tmp_path / "b" / "n.gguf", tmp_path / "c" / f"{'ä' * 120}.json"]
    for place in places:
        place.parent.mkdir()
        if force:
            place.write_text("old")
    before = listing(tmp_path)
    command = [sys.executable, "-c", CHILD, str(at), *map(str, places)]
    code = subprocess.run(command, check=False).returncode
    recover(sorted({place.parent for place in places}))
    after = before | {place.relative_to(tmp_path).as_posix(): "new" for place in places}
    found = {name: content for name, content in listing(tmp_path).items() if not name.endswith(LOCK)}
    assert found in ((before, after) if code else (after,))


def test_plain_files_replace_nothing(cloned: Path) -> None:
    (cloned / "config.json").write_text("mine")
    put(
        cloned / NAME,
        {JOURNAL: journal([["config.json"]], [["d"]]), "d": None, f"{REPLACED}/config.json": None},
        cloned,
    )
    told, (stuck,) = recover([cloned])
    assert (told, "others stand in their places now" in stuck) == ([], True)
    assert (cloned / "config.json").read_text() == "mine"


def test_what_a_run_of_a_version_before_replaced_is_not_removed(cloned: Path) -> None:
    put(cloned / NAME, {"d": None, ".old/0000/config.json": None}, cloned)
    told, (stuck,) = recover([cloned])
    assert (told, ".old holds files that a run replaced" in stuck) == ([], True)
    assert (cloned / NAME / ".old" / "0000" / "config.json").read_text() == "plain"


def test_a_name_beside_it_that_is_a_link_to_a_directory_is_no_directory_of_the_output(home: Path, cloned: Path) -> None:
    """A file in the staging directory may be a second name of one of the user's."""
    places = [["f", "inner"]]
    text = journal(places, places, ["f"])
    inode = (home / "folder" / "inner").stat().st_ino
    put(cloned / NAME, {JOURNAL: text.replace(", 1]", f", {inode}]"), "f/d": None, f"{REPLACED}/f/inner": None}, home)
    os.link(home / "folder" / "inner", cloned / NAME / "f" / "inner")
    (cloned / "f").symlink_to(home / "folder")
    before = listing(home)
    recover([cloned])
    assert listing(home) == before


@pytest.mark.parametrize("where", [CONVERSION, REPLACED, f"{REPLACED}/0000", "f"])
def test_what_is_removed_is_not_removed_through_links(where: str, home: Path, cloned: Path) -> None:
    put(cloned / NAME, {where: "HOME/folder"}, home)
    before = listing(home)
    with Directory(cloned) as here, Directory(Path(NAME), here) as staged:
        assert discard(here, staged) == []
    assert listing(home) == before
    assert listing(cloned) == {}


@pytest.mark.parametrize("where", [CONVERSION, ".publish", "FIRST", ".FIRST.json", ".FIRST.lock", ".FIRST.json.new"])
@pytest.mark.parametrize("target", ["id_rsa", "folder", "nothing"])
def test_whoever_goes_on_writes_nothing_where_a_link_leads(
    where: str, target: str, ckconv: Ckconv, home: Path, cloned: Path
) -> None:
    name = where.replace("FIRST", "model-00001-of-00005.safetensors")
    put(cloned / lasting_name("m"), {name: f"HOME/{target}"}, home)
    before = listing(home)
    done = ckconv("convert", QWEN2, f"{cloned}/m/", "--to", "mlx", "--max-shard-size", "50KB", "--resume")
    assert done.code in (0, 6), done.err
    assert listing(home) == before
    if done.code == 0:
        assert list(cloned.iterdir()) == [cloned / "m"]
        assert not any(path.is_symlink() for path in (cloned / "m").iterdir())


def test_a_conversion_in_a_cloned_directory(ckconv: Ckconv, home: Path, cloned: Path) -> None:
    put(cloned / NAME, {"d": "HOME", f"{REPLACED}/x": "HOME/thesis.tex", JOURNAL: journal([["y"]], [["d"]])}, home)
    before = listing(home)
    assert ckconv("convert", LLAMA, cloned / "m.gguf", "--to", "gguf").code == 0
    assert listing(home) == before
    assert list(listing(cloned)) == ["m.gguf"]
