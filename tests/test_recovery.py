"""Runs that are killed, and runs that meet: what they leave is all old or all new, and the next run cleans it up."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import FIXTURES, Result
from kills import HIT
from outputs import refused

from ckconv.publish.files import LOCK, Directory, locked
from ckconv.publish.journal import REPLACED, recover
from ckconv.publish.staging import LargeFile, Outputs, SmallFile

Ckconv = Callable[..., Result]

LLAMA = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
NAMES = ["config.json", "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
OLD = {name: b"old " + name.encode() for name in NAMES}

#: Writes ``content + name`` into three files and sends itself a signal at the n-th of some calls while they are named.
CHILD = (
    """
import os, sys
from pathlib import Path
from ckconv.publish.staging import Outputs, LargeFile, SmallFile
place, content, call, number, at = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
side, one, two = (place / name for name in sys.argv[6:])
size = len(content) + len(one.name)
count = 0
"""
    + HIT
    + """
small = {side: SmallFile(side.name, (content + side.name).encode())}
with Outputs({one: LargeFile(size), two: LargeFile(size)}, small, force=True, last=[two, one]) as outputs:
    for path, fd in ((one, outputs.fds[one]), (two, outputs.fds[two])):
        os.pwrite(fd, (content + path.name).encode(), 0)
    outputs.fds.sync()
    for name in call.split(","):
        setattr(os, name, hit(getattr(os, name)))
    outputs.publish()
"""
)


def new(content: str) -> dict[str, bytes]:
    return {name: (content + name).encode() for name in NAMES}


def start(place: Path, content: str, call: str = "link", number: int = 0, at: int = 0) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", CHILD, str(place), content, call, str(number), str(at), *NAMES]
    return subprocess.Popen(command)


def found(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in place.iterdir() if not path.name.startswith(".")}


def hidden(place: Path) -> list[str]:
    return [path.name for path in place.iterdir() if path.name.startswith(".")]


@pytest.fixture(params=[{}, OLD], ids=["fresh", "force"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "dst"
    folder.mkdir()
    for name, content in request.param.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("at", range(1, 24))
@pytest.mark.needs("posix")
def test_killed_at_any_step_of_naming_nothing_is_mixed_and_the_next_run_undoes_it(place: Path, at: int) -> None:
    before, after = found(place), new("new ")
    child = start(place, "new ", "link,replace,rename,mkdir,unlink,rmdir", signal.SIGKILL, at)
    assert child.wait(60) in (0, -signal.SIGKILL)
    left = found(place)
    assert left in (before, after) or NAMES[1] not in left, "without its first shard nothing of a split is loaded"
    sides = [{name: state.get(name) for name in left} for state in (before, after)]
    assert left in sides, "a part of the old one or a part of the new one"

    told, stuck = recover([place])

    assert found(place) in (before, after)
    assert [name for name in hidden(place) if name != LOCK] == []
    assert stuck == []
    assert all("had been removed by a run that was killed; it is restored" in sentence for sentence in told)


@pytest.mark.parametrize("at", range(1, 30))
@pytest.mark.needs("posix")
def test_killed_where_files_have_one_name_only_the_next_run_undoes_it_all(place: Path, at: int) -> None:
    """Without hard links a name is claimed by an empty file first, which is nobody else's."""
    before, after = found(place), new("new ")
    refused = """
def refused(*arguments, **options):
    raise PermissionError(1, os.strerror(1))
os.link = refused
"""
    code = CHILD.replace("count = 0\n", f"count = 0\n{refused}")
    command = [sys.executable, "-c", code, str(place), "new ", "open,replace,rename,unlink", str(int(signal.SIGKILL))]
    assert subprocess.run([*command, str(at), *NAMES], check=False).returncode in (0, -signal.SIGKILL)

    _, stuck = recover([place])

    assert found(place) in (before, after)
    assert [name for name in hidden(place) if name != LOCK] == []
    assert stuck == []


@pytest.mark.parametrize("at", range(1, 28))
@pytest.mark.needs("posix")
def test_what_is_replaced_by_nothing_is_there_again_after_a_killed_run(tmp_path: Path, at: int) -> None:
    before, after = {**OLD, "gone": b"old"}, new("new ")
    for name, text in before.items():
        (tmp_path / name).write_bytes(text)
    code = CHILD.replace("last=[two, one]", "last=[two, one], gone=[place / 'gone']")
    command = [
        sys.executable,
        "-c",
        code,
        str(tmp_path),
        "new ",
        "link,replace,rename,mkdir,unlink,rmdir",
        str(int(signal.SIGKILL)),
    ]
    assert subprocess.run([*command, str(at), *NAMES], check=False).returncode in (0, -signal.SIGKILL)
    left = found(tmp_path)
    assert left in [{name: state.get(name) for name in left} for state in (before, after)]

    recover([tmp_path])

    assert found(tmp_path) in (before, after)
    assert [name for name in hidden(tmp_path) if name != LOCK] == []


def test_what_a_live_run_has_staged_is_not_touched(tmp_path: Path) -> None:
    with Outputs({tmp_path / "m": LargeFile(3)}, {}) as outputs:
        os.pwrite(outputs.fds[tmp_path / "m"], b"mod", 0)
        assert recover([tmp_path]) == ([], [])
        outputs.publish()
    assert found(tmp_path) == {"m": b"mod"}


@pytest.mark.needs("posix")
def test_what_has_the_name_by_now_is_not_replaced_by_what_a_killed_run_took_away(tmp_path: Path) -> None:
    for name, content in OLD.items():
        (tmp_path / name).write_bytes(content)
    assert start(tmp_path, "new ", "link", signal.SIGKILL, 1).wait(60) == -signal.SIGKILL
    (tmp_path / NAMES[1]).write_bytes(b"mine")

    _, (told,) = recover([tmp_path])

    assert "others stand in their places" in told
    assert found(tmp_path) == {NAMES[1]: b"mine"}
    (kept,) = hidden(tmp_path)
    assert sorted(path.name for path in (tmp_path / kept / REPLACED).iterdir()) == NAMES


def test_leftovers_of_another_kind_are_nobodys(tmp_path: Path) -> None:
    (tmp_path / ".m.0123abcd.tmp").mkdir()
    (tmp_path / ".m.ckconv-0123abcd.tmp").write_bytes(b"a file")
    assert recover([tmp_path]) == ([], [])
    assert len(hidden(tmp_path)) == 2


@pytest.mark.parametrize("at", range(1, 4))
@pytest.mark.parametrize("call", ["link", "replace"])
@pytest.mark.needs("posix")
def test_two_runs_that_replace_the_same_files_take_turns(tmp_path: Path, call: str, at: int) -> None:
    """One of them stands still in the middle of naming; the other waits for it."""
    for name, content in OLD.items():
        (tmp_path / name).write_bytes(content)
    one = start(tmp_path, "one ", call, signal.SIGSTOP, at)
    assert os.WIFSTOPPED(os.waitpid(one.pid, os.WUNTRACED)[1])
    other = start(tmp_path, "other ")
    time.sleep(0.5)
    assert other.poll() is None
    os.kill(one.pid, signal.SIGCONT)
    assert (one.wait(60), other.wait(60)) == (0, 0)
    assert found(tmp_path) == new("other ")
    assert hidden(tmp_path) == []


@pytest.mark.needs("posix")
def test_whoever_waits_too_long_says_so_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = Outputs({tmp_path / "m": LargeFile(1)}, {})
    outputs.__enter__()
    monkeypatch.setattr("ckconv.publish.files.PATIENCE", 0.0)
    with locked([tmp_path]):
        with refused("output.busy", "another run of ckconv"):
            outputs.publish()
        outputs.__exit__(None, None, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.needs("posix")
def test_what_can_neither_be_named_nor_undone_is_said_with_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk whose file system writes anew what it changes."""
    for name, content in OLD.items():
        (tmp_path / name).write_bytes(content)
    side = tmp_path / NAMES[0]
    outputs = Outputs(
        {tmp_path / name: LargeFile(1) for name in NAMES[1:]}, {side: SmallFile(side.name, b"")}, force=True
    )

    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def full_from_now_on(*arguments: object, **options: object) -> None:
        monkeypatch.setattr(os, "replace", full)
        full()

    def publish() -> None:
        with outputs:
            monkeypatch.setattr(os, "link", full_from_now_on)
            outputs.publish()

    with refused("output.space") as caught:
        publish()
    details = caught[0].details
    for name in NAMES:
        assert any(
            f"the former {tmp_path / name} is now " in detail and "not be restored" in detail for detail in details
        )
    monkeypatch.undo()
    assert len(recover([tmp_path])[0]) == len(NAMES)
    assert found(tmp_path) == OLD
    assert hidden(tmp_path) == []


@pytest.mark.needs("posix")
def test_a_file_that_cannot_be_removed_is_noted_in_the_report(
    ckconv: Ckconv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rmdir = os.rmdir

    def stuck(path: str, **options: int) -> None:
        if str(path).endswith(".tmp"):
            raise OSError(errno.EBUSY, "Device or resource busy")
        rmdir(path, **options)

    monkeypatch.setattr(os, "rmdir", stuck)
    result = ckconv("convert", LLAMA, tmp_path / "m.bump")
    (left,) = hidden(tmp_path)
    assert result.code == 0
    assert f"/{left} is left over; it could not be removed: Device or resource busy" in result.out


def test_a_directory_that_does_not_reach_the_disk_says_that_the_output_is_there(
    ckconv: Ckconv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckconv.publish import staging

    sync, naming = Directory.sync, [False]

    def failing(directory: Directory) -> None:
        """Only when everything has its name."""
        if naming[0] and not directory.path.name.startswith("."):
            raise OSError(errno.EIO, "Input/output error")
        sync(directory)

    def declared(sentence: str | None) -> None:
        naming[0] = sentence is not None

    monkeypatch.setattr(Directory, "sync", failing)
    monkeypatch.setattr(staging, "declare", declared)
    for target in (tmp_path / "m.bump", f"{tmp_path}/dst/"):
        result = ckconv("convert", LLAMA, target, "--to", "bump")
        assert result.code == 6
        assert "the output is complete and there, but its name could not be synced to the disk" in result.err
        assert ckconv("verify", target).code == 0
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("version", ["3", "4", "5"])
def test_a_system_that_takes_half_of_what_it_is_given_changes_nothing(
    ckconv: Ckconv, tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(fd: int, data: memoryview, offset: int) -> int:
        return pwrite(fd, memoryview(data)[: (len(data) + 1) // 2], offset)

    pwrite = os.pwrite
    assert ckconv("convert", LLAMA, f"{tmp_path}/a/", "--to", "bump", "--bump-version", version).code == 0
    monkeypatch.setattr(os, "pwrite", half)
    assert ckconv("convert", LLAMA, f"{tmp_path}/b/", "--to", "bump", "--bump-version", version).code == 0
    assert found(tmp_path / "a") == found(tmp_path / "b")


def test_a_staging_directory_that_cannot_be_read_is_an_error_of_the_output(
    ckconv: Ckconv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: str | Path = ".") -> list[str]:
        if str(path).endswith(".tmp"):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return listdir(path)

    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", failing)
    result = ckconv("convert", FIXTURES / "hf" / "llama-tied-bf16", f"{tmp_path}/out/", "--to", "mlx")
    assert result.code == 6
    assert "error[input." not in result.err


@pytest.mark.parametrize(("call", "step"), [("listdir", 1), ("scandir", 1), ("stat", 3)])
def test_a_device_that_fails_once_is_no_fault_of_the_input_or_of_what_was_written(
    call: str, step: int, ckconv: Ckconv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def failing(path: Any = ".", *arguments: Any, **options: Any) -> Any:
        nonlocal calls
        if str(path).startswith(str(tmp_path)):
            calls += 1
            if calls == at:
                raise OSError(errno.EIO, "Input/output error", str(path))
        return real(path, *arguments, **options)

    real = getattr(os, call)
    source = tmp_path / "lora"
    shutil.copytree(FIXTURES / "lora" / "llama-r4-attn-mlp", source)
    monkeypatch.setattr(os, call, failing)
    at = 1
    while at == 1 or calls >= at - step:
        calls = 0
        out = tmp_path / f"out{at}"
        result = ckconv("convert", source, f"{out}/", "--to", "peft", "-q")
        assert result.code in (0, 6), (at, result.err)
        at += step


@pytest.mark.parametrize("command", ["convert", "verify"])
def test_a_record_that_cannot_be_looked_for_is_not_taken_for_missing(
    command: str, ckconv: Ckconv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if str(path).endswith((".source.zip", ".ckconv.json", ".sha256")):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return real(path, *arguments, **options)

    bump = tmp_path / "m.bump"
    assert ckconv("convert", LLAMA, bump, "-q").code == 0
    real = os.stat
    monkeypatch.setattr(os, "stat", failing)
    result = ckconv(command, bump, *([tmp_path / "back.gguf"] if command == "convert" else []))
    assert (result.code, "[system]" in result.err) == (6, True), result.err
    assert not (tmp_path / "back.gguf").exists()


@pytest.mark.needs("posix")
def test_without_locks_who_reads_says_where_the_files_of_a_killed_run_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ckconv: Ckconv
) -> None:
    """Nobody can know then whether it lives."""
    import fcntl

    for name, text in OLD.items():
        (tmp_path / name).write_bytes(text)
    assert start(tmp_path, "new ", "link", signal.SIGKILL, 2).wait(60) == -signal.SIGKILL
    (staging,) = (name for name in hidden(tmp_path) if name != LOCK)

    def refused(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    before = found(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refused)
        done = ckconv("inspect", tmp_path)
    sentence = "has files of this directory, which a run of ckconv was replacing: wait for it, or move them back"
    assert (done.code, f"{tmp_path / staging / REPLACED} {sentence}" in done.err) == (3, True), done.err
    assert found(tmp_path) == before
    ckconv("inspect", tmp_path)
    assert found(tmp_path) == OLD
