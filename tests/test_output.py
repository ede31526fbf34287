"""Outputs: complete under their names or not there at all, and what was there before stays until then."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from outputs import descriptor, failing_at, names, no_links, one_file, refused, write

from ckconv.errors import Interrupted, OutputError
from ckconv.publish.files import Directory
from ckconv.system import allocates
from ckconv.system.signals import interruptible

resource = pytest.importorskip("resource")  # of POSIX


@pytest.fixture
def main(tmp_path: Path) -> Path:
    return tmp_path / "out.bump"


@pytest.fixture
def side(tmp_path: Path) -> Path:
    return tmp_path / "config.json"


def test_until_published_there_are_only_temporary_names(main: Path, side: Path) -> None:
    with one_file({side: b"{}"}, main=main, nbytes=5) as outputs:
        write(outputs, b"model")
        assert names(main.parent) == [outputs.staging.name]
        assert outputs.staging.name.startswith(".out.bump.")
        assert outputs.staging.name.endswith(".tmp")
        assert names(outputs.staging) == ["config.json", "out.bump"]
        assert outputs.staged(main).read_bytes() == b"model"
        assert outputs.staged(side).read_bytes() == b"{}"
        outputs.publish()
    assert (main.read_bytes(), side.read_bytes()) == (b"model", b"{}")
    assert names(main.parent) == ["config.json", "out.bump"]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o000, 0o222])
def test_new_files_have_the_permissions_of_any_new_file(main: Path, side: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with one_file({side: b"{}"}, main=main, nbytes=1) as outputs:
            outputs.publish()
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (main, side)] == [0o666 & ~mask] * 2


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_any_exception_leaves_nothing(main: Path, side: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), one_file({side: b"{}"}, main=main, nbytes=5):
        raise error
    assert names(main.parent) == []


def test_a_block_that_does_not_publish_leaves_nothing(main: Path) -> None:
    with one_file({}, main=main, nbytes=5) as outputs:
        write(outputs, b"model")
    assert names(main.parent) == []


def test_what_exists_is_refused_before_anything_is_written(main: Path) -> None:
    main.write_bytes(b"old")
    with refused("output.exists", "exists already") as caught, one_file({}, main=main, nbytes=1):
        pass
    assert caught[0].hint == "--force replaces it"
    assert names(main.parent) == ["out.bump"]
    assert main.read_bytes() == b"old"


def test_a_side_file_with_the_same_content_is_left_alone(main: Path, side: Path) -> None:
    side.write_bytes(b"{}")
    before = side.stat()
    with one_file({side: b"{}"}, main=main, nbytes=1) as outputs:
        outputs.publish()
    assert (side.stat().st_ino, side.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_such_a_side_file_survives_a_failure(main: Path, side: Path) -> None:
    side.write_bytes(b"{}")
    with one_file({side: b"{}"}, main=main, nbytes=1) as outputs:
        main.write_bytes(b"theirs")
        with refused("output.exists"):
            outputs.publish()
    assert (side.read_bytes(), main.read_bytes()) == (b"{}", b"theirs")


def test_a_side_file_with_other_content_is_refused_with_a_way_out(main: Path, side: Path) -> None:
    side.write_bytes(b"{ }")
    with refused("output.exists") as caught, one_file({side: b"{}"}, main=main, nbytes=1):
        pass
    assert caught[0].path == str(side)
    assert "--config-out" in (caught[0].hint or "")
    assert names(main.parent) == ["config.json"]


def test_force_replaces_all_of_it(main: Path, side: Path) -> None:
    main.write_bytes(b"old model")
    side.write_bytes(b"old")
    with one_file({side: b"{}"}, main=main, nbytes=5, force=True) as outputs:
        write(outputs, b"model")
        assert (main.read_bytes(), side.read_bytes()) == (b"old model", b"old")
        outputs.publish()
    assert (main.read_bytes(), side.read_bytes()) == (b"model", b"{}")
    assert names(main.parent) == ["config.json", "out.bump"]


def test_a_replaced_file_keeps_its_permissions(main: Path) -> None:
    main.write_bytes(b"secret")
    main.chmod(0o600)
    with one_file({}, main=main, nbytes=1, force=True) as outputs:
        outputs.publish()
    assert main.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("links", [True, False])
def test_with_force_a_failing_model_brings_the_old_side_files_back(
    main: Path, tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    main.write_bytes(b"old model")
    old, same, new = (tmp_path / name for name in ("config.json", "tokens.json", "new.json"))
    old.write_bytes(b"old")
    same.write_bytes(b"same")
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    with one_file({old: b"new", same: b"same", new: b"new"}, main=main, nbytes=5, force=True) as outputs:
        write(outputs, b"model")
        main.unlink()
        main.mkdir()
        with refused("output.write", "Is a directory"):
            outputs.publish()
    main.rmdir()
    assert (old.read_bytes(), same.read_bytes()) == (b"old", b"same")
    assert names(tmp_path) == ["config.json", "tokens.json"]


@pytest.mark.parametrize("force", [False, True])
def test_the_directories_reach_the_disk(
    main: Path, tmp_path: Path, force: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    synced: list[Path] = []
    monkeypatch.setattr(Directory, "sync", lambda directory: synced.append(directory.path))
    with one_file({tmp_path / "there" / "c": b""}, main=main, nbytes=1, force=force) as outputs:
        outputs.publish()
    assert {path for path in synced if not path.name.startswith(".")} == {tmp_path, tmp_path / "there"}


def test_a_new_directory_and_its_place_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(Directory, "sync", lambda directory: synced.append(directory.path.name))
    place = tmp_path / "dst"
    with one_file({}, main=place / "weights.bump", nbytes=1, directory=place) as outputs:
        outputs.publish()
    assert [name.startswith(".dst.") for name in synced] == [True, False]
    assert synced[1] == tmp_path.name


def test_a_signal_while_publishing_waits_for_its_end(main: Path, side: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def interrupted(source: str, target: str, **directories: int) -> None:
        link(source, target, **directories)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(os, "link", interrupted)
    with (
        pytest.raises(Interrupted, match="the output was complete") as caught,
        interruptible(),
        one_file({side: b"{}"}, main=main, nbytes=5) as outputs,
    ):
        outputs.publish()
    assert caught.value.exit_code == 143
    assert names(main.parent) == ["config.json", "out.bump"]


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_somebody_makes_meanwhile_is_not_touched(
    main: Path, side: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    with one_file({side: b"{}"}, main=main, nbytes=5) as outputs:
        write(outputs, b"model")
        main.write_bytes(b"theirs")
        with refused("output.exists", "was made by another process meanwhile"):
            outputs.publish()
    assert main.read_bytes() == b"theirs"
    assert names(main.parent) == ["out.bump"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EXDEV, errno.ENOTSUP])
def test_without_hard_links_files_are_published_all_the_same(
    main: Path, side: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refused)
    with one_file({side: b"{}"}, main=main, nbytes=5) as outputs:
        write(outputs, b"model")
        outputs.publish()
    assert (main.read_bytes(), side.read_bytes()) == (b"model", b"{}")
    assert names(main.parent) == ["config.json", "out.bump"]


@pytest.mark.parametrize("step", range(14))
@pytest.mark.parametrize("force", [False, True])
def test_a_failure_at_any_step_of_publishing_leaves_all_or_nothing(
    main: Path, side: Path, step: int, force: bool
) -> None:
    """The n-th link, rename or sync fails: afterwards everything is new or everything is as before."""
    before = {}
    if force:
        before = {"out.bump": b"old model", "config.json": b"old"}
        for name, data in before.items():
            (main.parent / name).write_bytes(data)
    with one_file({side: b"{}"}, main=main, nbytes=5, force=force) as outputs:
        write(outputs, b"model")
        with failing_at(step, "link", "replace", "fsync"), suppress(OutputError):
            outputs.publish()
    after = {name: (main.parent / name).read_bytes() for name in names(main.parent)}
    assert after in (before, {"out.bump": b"model", "config.json": b"{}"})


def test_a_link_is_followed_and_stays(main: Path, tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "model").write_bytes(b"old")
    main.symlink_to(real / "model")
    with refused("output.exists"), one_file({}, main=main, nbytes=1):
        pass
    with one_file({}, main=main, nbytes=3, force=True) as outputs:
        write(outputs, b"new")
        assert outputs.staging.parent == real
        outputs.publish()
    assert main.is_symlink()
    assert (real / "model").read_bytes() == b"new"


def test_a_circle_of_links_is_refused(main: Path) -> None:
    main.symlink_to(main.name)
    with refused("output.special"), one_file({}, main=main, nbytes=1, force=True):
        pass


@pytest.mark.parametrize("as_what", ["same", "link", "hard link", "side"])
def test_the_input_is_never_written_even_with_force(main: Path, tmp_path: Path, as_what: str) -> None:
    source = tmp_path / "model.gguf"
    source.write_bytes(b"GGUF")
    target = source if as_what == "same" else main
    if as_what == "link":
        main.symlink_to(source)
    elif as_what in ("hard link", "side"):
        os.link(source, main)
    others = {main: b"x"} if as_what == "side" else {}
    wanted = tmp_path / "other" if as_what == "side" else target
    with (
        refused("output.is-input", "model.gguf"),
        one_file(others, main=wanted, nbytes=1, force=True, inputs=[source]),
    ):
        pass
    assert source.read_bytes() == b"GGUF"


def test_a_directory_is_no_file(main: Path) -> None:
    main.mkdir()
    with refused("output.directory", "is a directory") as caught, one_file({}, main=main, nbytes=1, force=True):
        pass
    assert f"{main}/" in (caught[0].hint or "")


@pytest.mark.parametrize("kind", ["fifo", "socket"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if kind == "fifo":
        os.mkfifo("x")
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("x")
    with refused("output.special"), one_file({}, main=tmp_path / "x", nbytes=1, force=True):
        pass


def test_a_device_is_refused() -> None:
    with refused("output.special"), one_file({}, main=Path("/dev/null"), nbytes=1, force=True):
        pass


@pytest.mark.parametrize("make_file", [False, True])
def test_the_parent_must_be_a_directory(tmp_path: Path, make_file: bool) -> None:
    if make_file:
        (tmp_path / "a").write_bytes(b"")
    with refused("output.parent"), one_file({}, main=tmp_path / "a" / "b", nbytes=1):
        pass


@pytest.mark.parametrize("length", [200, 250, 255])
def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path: Path, length: int) -> None:
    with one_file({}, main=tmp_path / ("n" * length), nbytes=1) as outputs:
        outputs.publish()
    assert names(tmp_path) == ["n" * length]


def test_a_longer_name_is_refused(tmp_path: Path) -> None:
    with refused("output.write", "File name too long"), one_file({}, main=tmp_path / ("n" * 300), nbytes=1):
        pass


@pytest.mark.needs("user")
def test_a_directory_that_may_not_be_written_is_refused(main: Path) -> None:
    main.parent.chmod(0o555)
    with refused("output.write", "Permission denied"), one_file({}, main=main, nbytes=1):
        pass
    main.parent.chmod(0o755)


def test_too_little_space_is_found_with_both_numbers(main: Path) -> None:
    filesystem = os.statvfs(main.parent)
    need = filesystem.f_blocks * filesystem.f_frsize + 1000
    with refused("output.space", rf"needs {need:,} bytes, [\d,]+ are free") as caught:
        one_file({}, main=main, nbytes=need + 50, holes=[(10, 50)]).__enter__()
    assert caught[0].allowed == need
    assert names(main.parent) == []


@pytest.mark.needs("posix")
def test_holes_need_no_space(main: Path) -> None:
    hole = os.statvfs(main.parent).f_blocks
    with one_file({}, main=main, nbytes=hole + 8192, holes=[(4096, hole)]) as outputs:
        assert os.fstat(descriptor(outputs)).st_size == hole + 8192
        assert os.fstat(descriptor(outputs)).st_blocks * 512 < 1 << 20


@pytest.mark.needs("posix")
def test_the_blocks_are_taken_before_the_work(main: Path) -> None:
    with one_file({}, main=main, nbytes=8 << 20) as outputs:
        if allocates(descriptor(outputs)):
            assert os.fstat(descriptor(outputs)).st_blocks * 512 >= 8 << 20


@pytest.mark.needs("posix")
def test_a_file_system_that_cannot_set_blocks_aside_is_not_made_to(main: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """glibc would then write into every block, and every byte would be written twice."""
    asked: list[int] = []

    def emulated(fd: int, offset: int, nbytes: int) -> None:
        asked.append(nbytes)
        os.pwrite(fd, b"\0", offset + nbytes - 1)

    monkeypatch.setattr(os, "posix_fallocate", emulated)
    with one_file({}, main=main, nbytes=8 << 20):
        pass
    assert asked == [1]


@pytest.mark.needs("posix")
def test_a_limit_of_the_file_size_is_found_before_the_work(main: Path) -> None:
    code = f"""
from pathlib import Path
from ckconv.errors import OutputError
from ckconv.publish.staging import Outputs, LargeFile
try:
    Outputs({{Path({str(main)!r}): LargeFile(1 << 20)}}, {{}}).__enter__()
except OutputError as error:
    print(error.code, error.message)
"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19)),
    )
    assert result.stdout == "output.space cannot be written: File too large\n"
    assert names(main.parent) == []


def test_a_new_directory_appears_complete(tmp_path: Path) -> None:
    place = tmp_path / "dst"
    with one_file({place / "config.json": b"{}"}, main=place / "weights.bump", nbytes=5, directory=place) as outputs:
        write(outputs, b"model")
        assert not place.exists()
        outputs.publish()
    assert names(place) == ["config.json", "weights.bump"]
    assert names(tmp_path) == ["dst"]


def test_an_empty_directory_is_filled(tmp_path: Path) -> None:
    place = tmp_path / "dst"
    place.mkdir()
    with one_file({}, main=place / "weights.bump", nbytes=5, directory=place) as outputs:
        outputs.publish()
    assert names(tmp_path / "dst") == ["weights.bump"]


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("there", [False, True])
def test_a_directory_that_is_a_link_is_filled_and_the_report_names_the_real_one(
    tmp_path: Path, there: bool, force: bool
) -> None:
    real, link = tmp_path / "dst", tmp_path / "link"
    if there:
        real.mkdir()
    link.symlink_to(real)
    if not force:
        gone = "" if there else ", which is not there"
        with refused("output.exists", f"is a link to {real}{gone}") as caught:
            one_file({}, main=link / "weights.bump", nbytes=5, directory=link).__enter__()
        assert "--force" in (caught[0].hint or "")
        return
    with one_file({}, main=link / "weights.bump", nbytes=5, directory=link, force=force) as outputs:
        outputs.publish()
    assert (names(real), link.readlink()) == (["weights.bump"], real)
    assert outputs.notes == [f"{link} is a link: the output is {real}"]


def test_a_directory_with_files_is_refused_and_with_force_keeps_the_others(tmp_path: Path) -> None:
    place = tmp_path / "dst"
    place.mkdir()
    (place / "notes.txt").write_bytes(b"mine")
    (place / "weights.bump").write_bytes(b"old")
    with refused("output.exists", "not empty"), one_file({}, main=place / "weights.bump", nbytes=5, directory=place):
        pass
    with one_file({}, main=place / "weights.bump", nbytes=5, directory=place, force=True) as outputs:
        write(outputs, b"model")
        outputs.publish()
    assert names(place) == ["notes.txt", "weights.bump"]
    assert (place / "weights.bump").read_bytes() == b"model"


def test_a_side_file_outside_the_new_directory_goes_where_it_belongs(tmp_path: Path) -> None:
    place = tmp_path / "dst"
    with one_file({tmp_path / "c.json": b"{}"}, main=place / "weights.bump", nbytes=5, directory=place) as outputs:
        outputs.publish()
    assert names(tmp_path) == ["c.json", "dst"]


def test_a_directory_that_somebody_makes_meanwhile_is_not_touched(tmp_path: Path) -> None:
    place = tmp_path / "dst"
    side = tmp_path / "c.json"
    with one_file({side: b"{}"}, main=place / "weights.bump", nbytes=5, directory=place) as outputs:
        place.mkdir(exist_ok=True)
        (place / "theirs").write_bytes(b"")
        with refused("output.exists", "another process meanwhile"):
            outputs.publish()
    assert names(tmp_path) == ["dst"]
    assert names(place) == ["theirs"]


def test_a_failing_directory_leaves_nothing(tmp_path: Path) -> None:
    place = tmp_path / "dst"
    with pytest.raises(RuntimeError), one_file({}, main=place / "weights.bump", nbytes=5, directory=place):
        raise RuntimeError
    assert names(tmp_path) == []


CHILD = """
import os, sys
from pathlib import Path
from ckconv.errors import Interrupted
from ckconv.publish.staging import Outputs, LargeFile, SmallFile
from ckconv.publish.files import Directory
from ckconv.system.signals import interruptible
place = Path(sys.argv[1])
data = bytes(range(256)) * 4096
try:
    with interruptible():
        sys.stdout.write("ready\\n"); sys.stdout.flush()
        while True:
            main, side = place / "out.bump", place / "config.json"
            with Outputs({main: LargeFile(4 << 20)}, {side: SmallFile("config.json", b"{}")}, force=True) as outputs:
                for number in range(4):
                    os.pwrite(outputs.fds[main], data, number * len(data))
                outputs.publish()
except Interrupted as error:
    sys.exit(error.exit_code)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_at_any_moment_leaves_complete_files_only(tmp_path: Path, number: signal.Signals) -> None:
    for turn in range(6):
        place = tmp_path / str(turn)
        place.mkdir()
        with subprocess.Popen([sys.executable, "-c", CHILD, str(place)], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(turn * 0.0137)
            child.send_signal(number)
            status = child.wait(20)
        assert status == (-number if number == signal.SIGKILL else 128 + number)
        left = {}
        for path in place.iterdir():
            if number == signal.SIGKILL and path.name.startswith("."):
                continue
            left[path.name] = path.read_bytes()
        whole = {"out.bump": bytes(range(256)) * 16384, "config.json": b"{}"}
        allowed = [{}, whole] + ([{"config.json": b"{}"}] if number == signal.SIGKILL else [])
        assert left in allowed
