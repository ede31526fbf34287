"""Files of an output made by other processes: the bytes of one process, and nothing half-written where one dies."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from conftest import FIXTURES, Result
from outputs import contents

import ckconv
from ckconv.conversion import cluster, pipeline, write as writing
from ckconv.conversion.planning import prepare
from ckconv.conversion.resume import fingerprint, requested
from ckconv.core.options import Options
from ckconv.errors import OutputError, UnsupportedError, VerifyError
from ckconv.system import MOVES_OPEN

QWEN2 = FIXTURES / "hf" / "qwen2-tied-bf16"
GGUF = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"


@pytest.fixture
def ckconv_run(ckconv: Callable[..., Result]) -> Callable[..., Result]:
    return ckconv


def die_once(marks: str) -> None:
    """In a worker: for each file that is there, one of them dies in the middle of a piece."""
    real = pipeline.write_file

    def write(*given: Any) -> Any:
        found = real(*given)
        for mark in Path(marks).iterdir():
            try:
                mark.unlink()
            except FileNotFoundError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    pipeline.write_file = write


def other_version() -> None:
    from ckconv.conversion import resume

    resume.__version__ = "0.0.0"


def flip() -> None:
    """In a worker: a byte of what is written is another one."""
    real = writing.write_some

    def write(fd: int, data: Any, at: int) -> int:
        wrote = real(fd, data, at)
        os.pwrite(fd, bytes([data[wrote - 1] ^ 1]), at + wrote - 1)
        return wrote

    writing.write_some = write


def pool(workers: int = 2, arm: Callable[..., None] | None = None, *given: object) -> ProcessPoolExecutor:
    """Processes that import everything once for all of them, where the system has that."""
    context = multiprocessing.get_context("forkserver" if MOVES_OPEN else "spawn")
    if MOVES_OPEN:
        context.set_forkserver_preload([__name__, "ckconv.io.stored", "ckconv.verification.tensors"])
        with patch.dict(
            os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))
        ):  # Python 3.11's server has none
            forkserver.ensure_running()
    return ProcessPoolExecutor(workers, context, arm, given)


OPTIONS = Options(max_shard_bytes=50_000)


@pytest.mark.parametrize(
    ("target", "to", "options"),
    [
        ("m/", "safetensors", OPTIONS),
        ("m.gguf", None, OPTIONS),
        ("m/", "mlx", Options(max_shard_bytes=50_000, dtype="f32")),
        ("m.gguf", None, Options(max_shard_bytes=30_000, quantize="q8_0")),
    ],
)
def test_workers_write_what_one_process_does(
    target: str, to: str | None, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one = ckconv.convert(QWEN2, f"{tmp_path}/one/{target}", to=to, options=options, checksums=True)
    monkeypatch.chdir(tmp_path / "two")  # workers are elsewhere
    with pool() as executor:
        two = ckconv.convert(QWEN2, target, to=to, options=options, checksums=True, executor=executor)
    places = [tmp_path / name / ("m" if target == "m/" else "") for name in ("one", "two")]
    assert contents(places[0]) == contents(places[1])
    assert len(one.files) > 2
    assert [(f.nbytes, f.sha256) for f in one.files] == [(f.nbytes, f.sha256) for f in two.files]
    assert (one.verified, one.changed) == (two.verified, two.changed)
    errors = [report.plan.errors and report.plan.errors.of_types for report in (one, two)]
    assert (errors[0] is None) == (errors[1] is None)
    for name, error in (errors[0] or {}).items():
        assert error == pytest.approx((errors[1] or {})[name])


@pytest.mark.needs("posix")
@pytest.mark.parametrize(("deaths", "resume"), [(1, False), (3, True)])
def test_what_a_worker_dies_over_is_made_again(deaths: int, resume: bool, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    for number in range(deaths):
        (marks / str(number)).touch()
    ckconv.convert(QWEN2, f"{tmp_path}/one/", to="safetensors", options=OPTIONS)
    with pool(2, die_once, str(marks)) as executor:
        done = ckconv.convert(
            QWEN2, f"{tmp_path}/two/", to="safetensors", options=OPTIONS, executor=executor, resume=resume
        )
    assert list(marks.iterdir()) == []
    assert done.verified == 26
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["marks", "one", "two"]


@pytest.mark.needs("posix")
def test_work_that_all_die_over_is_given_up(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    for number in range(30):
        (marks / str(number)).touch()
    with pool(2, die_once, str(marks)) as executor, pytest.raises(OutputError, match="workers died") as error:
        ckconv.convert(QWEN2, f"{tmp_path}/m/", to="safetensors", options=OPTIONS, executor=executor)
    assert error.value.code == "cluster.worker"
    assert [path.name for path in tmp_path.iterdir()] == ["marks"]


def test_a_worker_with_another_version_is_refused(tmp_path: Path) -> None:
    with pool(1, other_version) as executor, pytest.raises(OutputError) as error:
        ckconv.convert(QWEN2, f"{tmp_path}/m/", to="safetensors", options=OPTIONS, executor=executor)
    assert error.value.code == "cluster.version"
    assert list(tmp_path.iterdir()) == []


def test_what_a_worker_writes_wrongly_is_not_published(tmp_path: Path) -> None:
    with pool(1, flip) as executor, pytest.raises(VerifyError) as error:
        ckconv.convert(QWEN2, f"{tmp_path}/m/", to="safetensors", options=OPTIONS, executor=executor)
    assert error.value.path == f"{tmp_path}/m/"
    assert list(tmp_path.iterdir()) == []


def test_what_values_lose_is_refused_with_the_tensor(tmp_path: Path) -> None:
    options = Options(max_shard_bytes=50_000, dtype="f16")
    raised = []
    for executor in (None, pool(1)):
        with pytest.raises(UnsupportedError) as error:
            ckconv.convert(QWEN2, f"{tmp_path}/m/", to="safetensors", options=options, executor=executor)
        raised.append((error.value.code, error.value.hint))
        if executor is not None:
            executor.shutdown()
    assert raised[0] == raised[1]
    assert list(tmp_path.iterdir()) == []


class Elsewhere(Executor):
    """Does what it is told where the files are not."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        (job,) = args
        found: Future[Any] = Future()
        try:
            place = job.request.target._replace(directory=Path("/nowhere/at/all/m"))
            found.set_result(fn(job._replace(request=job.request._replace(target=place))))
        except OutputError as error:
            found.set_exception(error)
        return found


def test_a_worker_without_the_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError) as error:
        ckconv.convert(QWEN2, f"{tmp_path}/m/", to="safetensors", options=OPTIONS, executor=Elsewhere())
    assert error.value.code == "cluster.place"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.needs("posix")
def test_a_batch_whose_workers_die(
    tmp_path: Path, ckconv_run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    (marks / "0").touch()

    @contextmanager
    def crew(address: str) -> Iterator[Executor]:
        assert address == "dask://here:1"
        with pool(2, die_once, str(marks)) as executor:
            yield executor

    monkeypatch.setattr(cluster, "connected", crew)
    sources = [QWEN2, GGUF, FIXTURES / "hf" / "none"]
    for into, flags in (("one", []), ("two", ["--cluster", "dask://here:1"])):
        done = ckconv_run("batch", *sources, "--to", "mlx", "--into", tmp_path / into, *flags)
        assert done.code == 3
        found = sorted((line["status"], Path(line["source"]).name) for line in map(json.loads, done.out.splitlines()))
        assert found == [("converted", GGUF.name), ("converted", QWEN2.name), ("failed", "none")]
        assert done.err.count("error[") == 1
    for name in (QWEN2.name, GGUF.stem):
        assert contents(tmp_path / "one" / name) == contents(tmp_path / "two" / name)
    again = ckconv_run("batch", *sources[:2], "--to", "mlx", "--into", tmp_path / "two", "--cluster", "dask://here:1")
    assert [json.loads(line)["status"] for line in again.out.splitlines()] == ["there", "there"]
    assert list(marks.iterdir()) == []


def test_what_is_no_cluster_is_refused(ckconv_run: Callable[..., Result], tmp_path: Path) -> None:
    for address in ("spark://here:1", "dask://here", "dask://", "local://", "local://0", "local://100", "local://h:1"):
        done = ckconv_run("convert", QWEN2, f"{tmp_path}/m/", "--to", "mlx", "--cluster", address)
        assert (done.code, "error[usage.cluster]" in done.err) == (2, True)


def test_what_a_reader_needs_of_other_files_is_compared_with_the_whole(tmp_path: Path) -> None:
    """Factors of the frequencies, which are a part of the configuration, are tensors of a GGUF."""
    source = Path(shutil.copytree(FIXTURES / "hf" / "phi3-bf16", tmp_path / "source"))
    config = json.loads((source / "config.json").read_text())
    half = config["hidden_size"] // config["num_attention_heads"] // 2
    config["original_max_position_embeddings"] = config["max_position_embeddings"] // 2
    config["rope_scaling"] = {"type": "longrope", "short_factor": [1.0] * half, "long_factor": [2.0] * half}
    (source / "config.json").write_text(json.dumps(config))
    one, two = tmp_path / "one", tmp_path / "two"
    for place in (one, two):
        place.mkdir()
    done = ckconv.convert(source, one / "m.gguf", options=OPTIONS)
    with ThreadPoolExecutor(1) as executor:
        shared = ckconv.convert(source, two / "m.gguf", options=OPTIONS, executor=executor)
    assert len(done.files) > 2
    assert shared.verified == done.verified
    assert contents(one) == contents(two)


def test_threads_of_one_worker_do_not_mix_what_values_lose(tmp_path: Path) -> None:
    options = Options(max_shard_bytes=20_000, quantize="q8_0")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one = ckconv.convert(QWEN2, tmp_path / "one" / "m.gguf", options=options)
    with ThreadPoolExecutor(4) as executor:
        two = ckconv.convert(QWEN2, tmp_path / "two" / "m.gguf", options=options, executor=executor)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert one.plan.errors is not None
    assert two.plan.errors is not None
    mixed = two.plan.errors.of_types
    assert {name: tuple(error) for name, error in mixed.items()} == {
        name: pytest.approx(tuple(error)) for name, error in one.plan.errors.of_types.items()
    }


def test_a_worker_that_lives_on_converts_a_source_that_was_saved_again(tmp_path: Path) -> None:
    source = shutil.copytree(QWEN2, tmp_path / "source")
    weights = source / "model.safetensors"
    data, status = weights.read_bytes(), weights.stat()
    with ThreadPoolExecutor(1) as executor:
        for name, kept in (("one", False), ("two", False), ("three", True)):
            ckconv.convert(source, f"{tmp_path / name}/", to="mlx", options=OPTIONS, executor=executor)
            weights.unlink()
            weights.write_bytes(data)
            times = (status.st_atime_ns, status.st_mtime_ns if kept else status.st_mtime_ns + 1)
            os.utime(weights, ns=times)
            status = weights.stat()
        ckconv.convert(source, f"{tmp_path / 'four'}/", to="mlx", options=OPTIONS, executor=executor)
    assert contents(tmp_path / "one") == contents(tmp_path / "four")


class Dropping(Executor):
    """Whoever gives work to workers goes away."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        found: Future[Any] = Future()
        found.cancel()
        found.set_running_or_notify_cancel()
        return found


def test_work_that_is_dropped_ends_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="the workers are gone") as refused:
        ckconv.convert(QWEN2, f"{tmp_path}/m/", to="safetensors", options=OPTIONS, executor=Dropping())
    assert refused.value.code == "cluster.worker"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OutputError) as again:
        ckconv.convert(QWEN2, f"{tmp_path}/m/", to="safetensors", options=OPTIONS, executor=Dropping())
    assert again.value is not refused.value, "each conversion has an error of its own"


def test_a_signal_while_workers_work_leaves_nothing(tmp_path: Path, ckconv_run: Callable[..., Result]) -> None:
    class Idle(Executor):
        """Nothing ever ends, and the user gives up."""

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            signal.raise_signal(signal.SIGINT)
            waiting.append(Future())
            return waiting[-1]

    waiting: list[Future[Any]] = []

    @contextmanager
    def connected(address: str) -> Iterator[Executor]:
        yield Idle()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "connected", connected)
        flags = ("--max-shard-size", "50KB", "--cluster", "dask://there:1")
        done = ckconv_run("convert", QWEN2, f"{tmp_path}/m/", "--to", "safetensors", *flags)
    assert (done.code, "interrupted; nothing was left behind" in done.err) == (130, True)
    assert list(tmp_path.iterdir()) == []
    assert all(future.cancelled() for future in waiting)


def local(out: Path, source: Path, *flags: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ckconv", "convert", str(source), f"{out}/", "--to", "mlx", *flags]
    return subprocess.Popen([*command, "--cluster", "local://2"], start_new_session=True, stderr=subprocess.PIPE)


def test_processes_of_this_machine_write_the_bytes_of_one(ckconv_run: Callable[..., Result], tmp_path: Path) -> None:
    for into, flags in (("one", []), ("two", ["--cluster", "local://2"])):
        done = ckconv_run(
            "convert", QWEN2, f"{tmp_path / into}/", "--to", "mlx", "--max-shard-size", "50KB", "-q", *flags
        )
        assert (done.code, done.err) == (0, "")
    assert len(contents(tmp_path / "one")) > 3
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_what_ends_the_caller_ends_its_processes(number: int, tmp_path: Path) -> None:
    """A terminal sends its signal to all of them: only the caller speaks. Who is killed can say nothing."""
    out = tmp_path / "out"
    with local(out, QWEN2, "--max-shard-size", "5KB") as caller:
        until = time.monotonic() + 30
        while not any(tmp_path.glob(".out.*/*")) and time.monotonic() < until:
            time.sleep(0.01)
        if number == signal.SIGINT:
            os.killpg(caller.pid, number)
        else:
            caller.kill()
        said = caller.stderr.read().decode() if caller.stderr and number == signal.SIGINT else ""
        caller.wait()
    assert "Traceback" not in said
    if number == signal.SIGINT:
        assert caller.returncode == 130
        assert list(tmp_path.iterdir()) == []
    until = time.monotonic() + 30
    while alive(caller.pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(caller.pid)
    assert not out.exists()


@pytest.mark.parametrize("name", ["quantised/awq-g32", "hf/llama-tied-bf16"])
@pytest.mark.parametrize("target", ["out.gguf", "out/"])
def test_a_source_that_was_named_from_here_is_the_one_that_another_process_opens(
    name: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir((FIXTURES / name).parent)
    source = Path(name).name
    to = "safetensors" if target.endswith("/") else None
    plan, place = prepare(source, target, to=to, options=Options(max_shard_bytes=100_000))
    request = requested(plan, place, source, None, [], verify=True, force=False)
    there = request.planned()
    found = [fingerprint(one, one.contents(), request) for one in (plan, there)]
    assert found[0] == found[1]
