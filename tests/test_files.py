"""Source files while they are read: the ones whose headers were read, whole, and unchanged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import FIXTURES

import ckconv
from ckconv.comparison import diff
from ckconv.destination import destination
from ckconv.errors import OutputError
from ckconv.execute import run
from ckconv.files import Files
from ckconv.hashing import hash_index
from ckconv.model.index import TensorIndex
from ckconv.plan.steps import Options
from ckconv.plan.targets import make_plan
from ckconv.readers.detect import open_index
from ckconv.verification import verify_index

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


@pytest.mark.parametrize("change", [replaced, touched, longer])
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


def test_a_read_beyond_the_end_is_an_error(model: Path) -> None:
    size = model.stat().st_size
    with Files() as files, pytest.raises(OutputError, match="1 bytes early"):
        files.read_into(model, size - 3, bytearray(4))
