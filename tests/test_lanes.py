"""Files of one output that are written side by side: what is written and said does not depend on how many are."""

from __future__ import annotations

import _thread
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from checkpoints import Decoder, save
from conftest import FIXTURES
from outputs import contents
from test_jobs import left_of
from test_quantize import WIDE, checkpoint

import ckconv
from ckconv.conversion import pipeline, write
from ckconv.core.options import Options
from ckconv.errors import CkconvError, Interrupted, OutputError, UnsupportedError, VerifyError
from ckconv.io import digests
from ckconv.publish import staging
from ckconv.system import ELSEWHERE
from ckconv.system.signals import interruptible

#: ``jobs`` -> lanes of an output of many files.
ONE, THREE = 1, 3

CONVERSIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a copy": ("", "safetensors", {"max_shard_bytes": 60_000}),
    "widened": ("", "safetensors", {"max_shard_bytes": 100_000, "dtype": "f32"}),
    "to a split GGUF": ("", "gguf", {"max_shard_bytes": 60_000}),
    "to MLX": ("", "mlx", {"max_shard_bytes": 60_000}),
    "decoded": ("kquants/llama64.Q4_K_M.gguf", "safetensors", {"max_shard_bytes": 60_000, "dequantize": True}),
    "packed again": ("quantised/awq-g32", "gguf", {"max_shard_bytes": 10_000}),
}


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("floats"), WIDE)


def source_of(name: str, floats: Path) -> Path:
    path = CONVERSIONS[name][0]
    return FIXTURES / path if path else floats


def converted(source: Path, folder: Path, to: str, jobs: int, options: dict[str, Any], **more: Any) -> Any:
    """What is in every file, and what the report says."""
    folder.mkdir()
    target = f"{folder}/out.gguf" if to == "gguf" else f"{folder}/out/"
    report = ckconv.convert(source, target, to=to, jobs=jobs, options=Options(**options), **more)
    files = contents(folder)
    said = [(file.path.name, file.nbytes, file.sha256) for file in report.files]
    return files, said, report.changed, report.merged, report.verified


class Lanes:
    """How many files are being written at once; each waits until there are ``wanted``, so that no load hides them."""

    def __init__(self) -> None:
        self.wanted, self.most = 1, 0
        self.begun, self.changed = 0, threading.Condition()

    def writing(self, real: Any, *given: Any) -> Any:
        with self.changed:
            self.begun += 1
            self.most = max(self.most, self.begun)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.most >= self.wanted, timeout=30)
        try:
            return real(*given)
        finally:
            with self.changed:
                self.begun -= 1


@pytest.mark.product("values")
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", CONVERSIONS)
def test_bytes_and_report_do_not_depend_on_the_number(
    name: str, verify: bool, floats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, to, options = CONVERSIONS[name]
    lanes, real = Lanes(), pipeline.write_file
    monkeypatch.setattr(pipeline, "write_file", lambda *given: lanes.writing(real, *given))
    alone = converted(source_of(name, floats), tmp_path / "one", to, ONE, options, verify=verify)
    assert lanes.most == 1
    assert len(alone[1]) > 3
    lanes.wanted = 3
    assert converted(source_of(name, floats), tmp_path / "three", to, THREE, options, verify=verify) == alone
    assert lanes.most == 3


def test_a_server_that_another_conversion_asked_does_not_make_this_one_slow(
    floats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ELSEWHERE, (0, 0), lambda offset, nbytes, *, in_order: bytes(nbytes))
    lanes, real = Lanes(), pipeline.write_file
    lanes.wanted = 3
    monkeypatch.setattr(pipeline, "write_file", lambda *given: lanes.writing(real, *given))
    converted(floats, tmp_path / "out", "safetensors", THREE, {"max_shard_bytes": 60_000})
    assert lanes.most == 3


@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_byte_that_was_written_wrongly_is_found_in_any_file(
    name: str, floats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, to, options = CONVERSIONS[name]
    right = converted(source_of(name, floats), tmp_path / "right", to, THREE, options)
    real, size = write.write_some, [0]

    def flipping(fd: int, data: Any, at: int) -> int:
        if len(data) > 64 and os.fstat(fd).st_size == size[0]:
            data = bytes(data[:-3]) + bytes([data[-3] ^ 1]) + bytes(data[-2:])
        return real(fd, data, at)

    monkeypatch.setattr(write, "write_some", flipping)
    for number, (_, size[0], _) in enumerate(right[1]):
        with pytest.raises(VerifyError):
            converted(source_of(name, floats), tmp_path / str(number), to, THREE, options)
        assert not any((tmp_path / str(number)).rglob("*"))


def test_faults_are_said_in_the_order_of_the_output(
    floats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = write.write_some

    def flipping(fd: int, data: Any, at: int) -> int:
        if len(data) > 64:
            data = bytes(data[:-3]) + bytes([data[-3] ^ 1]) + bytes(data[-2:])
        return real(fd, data, at)

    monkeypatch.setattr(write, "write_some", flipping)
    said = []
    for jobs in (ONE, THREE):
        with pytest.raises(VerifyError) as raised:
            converted(floats, tmp_path / str(jobs), "safetensors", jobs, {"max_shard_bytes": 60_000})
        said.append((raised.value.message, raised.value.tensor, raised.value.details))
    assert said[0] == said[1]
    assert len(said[0][2]) > 3


def test_what_no_lane_could_compare_is_compared_in_the_end(
    floats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader may need values of another file to know what is in one."""
    monkeypatch.setattr(write.OutputReader, "early", lambda *_: None)
    options = {"max_shard_bytes": 60_000}
    one = converted(floats, tmp_path / "one", "safetensors", ONE, options)
    assert converted(floats, tmp_path / "three", "safetensors", THREE, options) == one
    real = write.write_some

    def flipping(fd: int, data: Any, at: int) -> int:
        return real(fd, bytes(data[:-3]) + bytes([data[-3] ^ 1]) + bytes(data[-2:]), at)

    monkeypatch.setattr(write, "write_some", flipping)
    with pytest.raises(VerifyError):
        converted(floats, tmp_path / "wrong", "safetensors", THREE, options)


def spoilt(root: Path, names: list[str], value: float) -> Path:
    """A checkpoint of float32 with such a value in some of its tensors."""
    tensors = {name: array.astype(np.float32) for name, array in WIDE.tensors().items()}
    for name in names:
        tensors[name].flat[0] = value
    return save(root, WIDE.config("llama", torch_dtype="float32"), tensors)


NAMES = [f"model.layers.{layer}.mlp.{part}_proj.weight" for layer in (0, 1) for part in ("down", "gate", "up")]


@pytest.mark.parametrize(("value", "code"), [(1e30, "plan.range"), (1e-30, "plan.lossy")])
def test_the_refusal_is_the_same(value: float, code: str, tmp_path: Path) -> None:
    """Of errors that end the work that of the first file counts, of values that are lost all are counted."""
    source = spoilt(tmp_path / "source", NAMES, value)
    options = {"max_shard_bytes": 150_000, "dtype": "f16", "allow_lossy": value > 1}
    said = []
    for jobs in (ONE, THREE, THREE, THREE):
        folder = tmp_path / f"{len(said)}"
        with pytest.raises(UnsupportedError) as raised:
            converted(source, folder, "safetensors", jobs, options)
        said.append((raised.value.code, raised.value.message, raised.value.tensor, raised.value.details))
        assert list(folder.iterdir()) == []
    assert said == [said[0]] * 4
    assert said[0][0] == code


def test_a_disk_that_is_full_ends_all_of_it(floats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = write.write_some, [0]

    def full(fd: int, data: Any, at: int) -> int:
        calls[0] += 1
        if calls[0] > 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, at)

    monkeypatch.setattr(write, "write_some", full)
    before = _thread._count()
    with pytest.raises(OutputError) as raised:
        converted(floats, tmp_path / "out", "safetensors", THREE, {"max_shard_bytes": 60_000})
    assert raised.value.code == "output.space"
    assert list((tmp_path / "out").iterdir()) == []
    assert left_of(before) == 0


def test_an_input_that_changes_while_another_thread_reads_it(
    floats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for file in floats.iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    real = pipeline.write_file

    def changing(*given: Any) -> Any:
        found = real(*given)
        os.utime(source / "model.safetensors", ns=(1, 1))
        return found

    monkeypatch.setattr(pipeline, "write_file", changing)
    with pytest.raises(OutputError) as raised:
        converted(source, tmp_path / "out", "safetensors", THREE, {"max_shard_bytes": 60_000})
    assert raised.value.code == "input.changed"
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("number", [1, 4])
def test_a_signal_leaves_nothing_behind(
    number: int, floats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, begun = pipeline.write_file, list[None]()

    def signaled(*given: Any) -> Any:
        begun.append(None)
        if len(begun) == number:
            signal.raise_signal(signal.SIGTERM)
        return real(*given)

    monkeypatch.setattr(pipeline, "write_file", signaled)
    before = _thread._count()
    with pytest.raises(Interrupted), interruptible():
        converted(floats, tmp_path / "out", "safetensors", THREE, {"max_shard_bytes": 60_000})
    assert list((tmp_path / "out").iterdir()) == []
    assert left_of(before) == 0


def test_more_files_than_descriptors(floats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"max_shard_bytes": 10_000}
    one = converted(floats, tmp_path / "one", "safetensors", ONE, options)
    monkeypatch.setattr(staging, "MAX_OPEN", 1)
    assert converted(floats, tmp_path / "three", "safetensors", THREE, options) == one
    assert len(one[1]) > 6


def test_a_watcher_hears_of_every_byte_in_its_own_thread(floats: Path, tmp_path: Path) -> None:
    class Watcher:
        def __init__(self) -> None:
            self.total, self.done, self.threads, self.phases = 0, 0, set[int](), list[str]()

        def begin(self, phase: str, total: int) -> None:
            self.phases.append(phase)
            self.total = total

        def __call__(self, nbytes: int, name: str) -> None:
            self.done += nbytes
            self.threads.add(threading.get_ident())

    for jobs in (ONE, THREE):
        watcher = Watcher()
        converted(floats, tmp_path / str(jobs), "safetensors", jobs, {"max_shard_bytes": 60_000}, progress=watcher)
        assert watcher.done == watcher.total
        assert watcher.threads == {threading.get_ident()}
        assert watcher.phases == ["writing"]


def test_a_watcher_that_has_enough_ends_it_at_once(floats: Path, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    class Watcher:
        def begin(self, phase: str, total: int) -> None:
            pass

        def __call__(self, nbytes: int, name: str) -> None:
            raise Enough

    with pytest.raises(Enough):
        converted(floats, tmp_path / "out", "safetensors", THREE, {"max_shard_bytes": 60_000}, progress=Watcher())
    assert list((tmp_path / "out").iterdir()) == []


def test_the_first_file_that_cannot_be_read_back_is_named(
    floats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = digests.read_into
    big, small = {"max_shard_bytes": 60_000}, list[str]()

    def failing(fd: int, *given: Any) -> int:
        if os.fstat(fd).st_size in sizes:
            raise OSError(errno.EIO, "no such luck")
        return real(fd, *given)

    right = converted(floats, tmp_path / "right", "safetensors", ONE, big)[1]
    sizes = {nbytes for name, nbytes, _ in right if not name.startswith("model-00001")}
    monkeypatch.setattr(digests, "read_into", failing)
    for jobs in (ONE, THREE):
        with pytest.raises(CkconvError, match="no such luck") as raised:
            converted(floats, tmp_path / str(jobs), "safetensors", jobs, big)
        small.append(Path(str(raised.value.path)).name)
    assert small[0] == small[1]


@pytest.mark.needs("posix")
def test_many_lanes_do_with_the_descriptors_of_one(tmp_path: Path) -> None:
    """macOS gives a process 256."""
    many = Decoder(hidden=64, head_dim=16, ffn=64, vocab=64, layers=16)
    source = ckconv.convert(
        checkpoint(tmp_path / "floats", many),
        f"{tmp_path}/source/",
        to="safetensors",
        options=Options(max_shard_bytes=10_000),
    )
    assert len(source.files) > 100
    command = "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200));"
    command += "import ckconv; from ckconv.core.options import Options;"
    command += (
        "ckconv.convert(sys.argv[1], sys.argv[2], to='safetensors', jobs=64, options=Options(max_shard_bytes=9_000))"
    )
    run = [sys.executable, "-c", command, f"{tmp_path}/source", f"{tmp_path}/out/"]
    assert subprocess.run(run, capture_output=True, text=True, check=False).stderr == ""


@pytest.mark.parametrize("jobs", [ONE, THREE])
def test_the_reference_reader_is_asked_of_each_file_once_and_by_one_thread_at_a_time(
    jobs: int, floats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, at_once = list[str](), list[int]()
    busy, real = threading.Semaphore(100), safetensors.safe_open

    def slow(path: Path, framework: str) -> Any:
        with busy:
            at_once.append(100 - busy._value)
            asked.append(path.name)
            time.sleep(0.01)
        return real(path, framework)

    monkeypatch.setattr(safetensors, "safe_open", slow)
    _, said, *_ = converted(floats, tmp_path / "out", "safetensors", jobs, {"max_shard_bytes": 60_000})
    assert sorted(asked) == sorted(name for name, *_ in said)
    assert set(at_once) == {1}


@pytest.mark.parametrize("jobs", [ONE, THREE])
def test_the_first_file_that_the_reference_reader_refuses_is_named(
    jobs: int, floats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = safetensors.safe_open

    def refuses(path: Path, framework: str) -> Any:
        if "00001" not in path.name.partition("-of-")[0]:
            raise safetensors.SafetensorError(path.name)
        return real(path, framework)

    monkeypatch.setattr(safetensors, "safe_open", refuses)
    with pytest.raises(VerifyError, match="model-00002-of"):
        converted(floats, tmp_path / "out", "safetensors", jobs, {"max_shard_bytes": 60_000})
