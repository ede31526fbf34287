"""Source files while they are read: the ones whose headers were read, whole, and unchanged."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import FIXTURES, Result

import ckconv
from ckconv.comparison.compare import diff, hash_index
from ckconv.comparison.verify import verify_index
from ckconv.conversion.planning import make_plan
from ckconv.conversion.run import run
from ckconv.core.options import Options
from ckconv.core.tensors import TensorIndex
from ckconv.errors import OutputError
from ckconv.formats import detect
from ckconv.formats.destination import destination
from ckconv.formats.detect import open_index
from ckconv.io.files import Files
from ckconv.publish import staging

MODEL = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copy(MODEL, tmp_path / "model.gguf"))


def replaced(path: Path) -> None:
    """Another file gets the name, as a download does when it is complete."""
    other = path.with_suffix(".new")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    other.write_bytes(data)
    other.replace(path)


def touched(path: Path) -> None:
    """The same file, written to."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def changed_in_secret(path: Path) -> None:
    """The same file, written to, with the modification time set back."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def longer(path: Path) -> None:
    status = path.stat()
    with path.open("ab") as file:
        file.write(b"\0")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def converted(index: TensorIndex) -> None:
    plan = make_plan(index, "bump", Options())
    run(plan, destination(str(index.path.parent / "out.bump"), None))


USES: dict[str, Callable[[TensorIndex], object]] = {
    "convert": converted,
    "verify": lambda index: verify_index(index, index),
    "diff": lambda index: diff(index, index),
    "hash": hash_index,
    "values": lambda index: ckconv.Model(index).tensors["token_embedding.weight"].values(),
    "rows": lambda index: ckconv.Model(index).tensors["token_embedding.weight"].rows(),
}


@pytest.mark.parametrize("change", [replaced, touched, changed_in_secret, longer])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_data_of_another_file_than_the_header_is_refused(
    model: Path, use: Callable[[TensorIndex], object], change: Callable[[Path], None]
) -> None:
    index = open_index(model)
    use(index)
    for output in model.parent.glob("out.bump*"):
        output.unlink()
    change(model)

    with pytest.raises(OutputError, match="not the one whose header was read") as info:
        use(index)

    assert (info.value.code, info.value.exit_code) == ("input.changed", 6)
    assert not list(model.parent.glob("*out.bump*"))


def test_a_file_that_is_replaced_while_it_is_open_stays_the_one_that_was_opened(model: Path) -> None:
    before = model.read_bytes()
    with Files(open_index(model).identities) as files:
        files.fd(model)
        replaced(model)
        buffer = bytearray(len(before))
        files.read_into(model, 0, buffer)
        files.check_unchanged()

    assert buffer == before


def test_a_file_that_is_written_to_while_it_is_open_is_noticed(model: Path) -> None:
    with Files() as files:
        files.fd(model)
        touched(model)

        with pytest.raises(OutputError, match="changed while it was being read"):
            files.check_unchanged()


@pytest.mark.parametrize("change", [touched, changed_in_secret, longer])
@pytest.mark.parametrize("flags", [(), ("--no-verify",)])
def test_a_source_that_is_changed_while_it_is_converted_is_said_to_be(
    model: Path,
    flags: tuple[str, ...],
    change: Callable[[Path], None],
    ckconv: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def changing(*arguments: object, **options: object) -> None:
        allocate(*arguments, **options)
        change(model)

    allocate = staging.allocate
    monkeypatch.setattr(staging, "allocate", changing)
    result = ckconv("convert", model, model.parent / "out.gguf", *flags)
    assert (result.code, [path.name for path in model.parent.iterdir()]) == (6, ["model.gguf"])
    assert "error[input.changed]" in result.err


def test_a_file_that_is_swapped_between_its_header_and_the_end_of_the_opening_is_noticed(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the header was read from is known by its descriptor; its name leads to another file meanwhile."""

    def opening(path: Path, *arguments: object) -> TensorIndex:
        index = real(path, *arguments)
        replaced(path)
        return index

    real = detect._open
    monkeypatch.setattr(detect, "_open", opening)
    index = open_index(model)
    with pytest.raises(OutputError, match="not the one whose header was read") as info:
        hash_index(index)
    assert info.value.exit_code == 6


@pytest.mark.parametrize(("fifo", "said"), [(True, "now it is a FIFO"), (False, "is not there any more")])
def test_a_file_that_is_gone_after_its_header_was_read_has_changed(fifo: bool, said: str, model: Path) -> None:
    """A FIFO in its place hangs nothing."""
    index = open_index(model)
    model.unlink()
    if fifo:
        os.mkfifo(model)
    with pytest.raises(OutputError, match=said) as info:
        hash_index(index)
    assert (info.value.code, info.value.exit_code) == ("input.changed", 6)


def test_an_error_of_closing_a_source_is_no_error(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closing(fd: int) -> None:
        close(fd)
        raise OSError(errno.EIO, "Input/output error")

    close = os.close
    with Files() as files:
        files.fd(model)
        monkeypatch.setattr(os, "close", closing)


def test_a_read_beyond_the_end_is_an_error(model: Path) -> None:
    size = model.stat().st_size
    with Files() as files, pytest.raises(OutputError, match="1 bytes early"):
        files.read_into(model, size - 3, bytearray(4))
