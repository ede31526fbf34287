"""Clusters of Dask and Ray on this machine, of two workers, one of which is killed in the middle."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import FIXTURES, Result
from test_executors import contents

Ckconv = Callable[..., Result]

pytestmark = [pytest.mark.cluster, pytest.mark.needs("posix")]

QWEN2 = FIXTURES / "hf" / "qwen2-tied-bf16"
LLAMA = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"

#: What a worker runs before all else: while it writes a file and another one is there, it takes that away and dies.
DYING = """
import os, signal
from ckconv.conversion import pipeline
real = pipeline.write_file

def write(*given):
    found = real(*given)
    try:
        os.unlink(os.environ["CKCONV_TEST_MARK"])
    except FileNotFoundError:
        return found
    os.kill(os.getpid(), signal.SIGKILL)

pipeline.write_file = write
"""


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """While it is there, whoever writes next takes it away and dies."""
    (tmp_path / "mark").touch()
    return tmp_path / "mark"


def environment(mark: Path) -> dict[str, str]:
    """That of processes in which ``DYING`` is run at their start."""
    (mark.parent / "site").mkdir()
    (mark.parent / "site" / "sitecustomize.py").write_text(DYING)
    path = os.pathsep.join([str(mark.parent / "site"), str(FIXTURES.parent), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "CKCONV_TEST_MARK": str(mark), "PYTHONPATH": path}


@contextmanager
def running(*commands: list[str], env: dict[str, str], place: Path) -> Iterator[Path]:
    """Processes that end with the block; what they say is in a file."""
    started = []
    with open(place / "said", "wb") as said:
        try:
            for command in commands:
                process = subprocess.Popen(command, env=env, stdout=said, stderr=said, cwd=place)
                started.append(process)
            yield place / "said"
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(30)


def said(place: Path, pattern: str) -> str:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        found = re.search(pattern, place.read_text())
        if found:
            return found[1]
        time.sleep(0.1)
    raise AssertionError(place.read_text())


@pytest.fixture
def dask(tmp_path: Path, mark: Path) -> Iterator[str]:
    pytest.importorskip("distributed")
    env = environment(mark)
    scheduler = [sys.executable, "-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    with running(scheduler, env=env, place=tmp_path) as output:
        address = said(output, r"Scheduler at:\s+tcp://(127\.0\.0\.1:\d+)")
        worker = [sys.executable, "-m", "dask", "worker", f"tcp://{address}", "--nworkers", "2", "--nthreads", "1"]
        (tmp_path / "workers").mkdir()
        with running([*worker, "--no-dashboard"], env=env, place=tmp_path / "workers"):
            yield f"dask://{address}"


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture
def ray(tmp_path: Path, mark: Path) -> Iterator[str]:
    pytest.importorskip("ray")
    program = Path(sys.executable).with_name("ray")
    port = free_port()
    env = {**environment(mark), "RAY_DISABLE_IMPORT_WARNING": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [program, "start", "--head", "--node-ip-address=127.0.0.1", f"--port={free_port()}", "--num-cpus=2"]
    command += [f"--ray-client-server-port={port}", "--include-dashboard=false", "--disable-usage-stats", "--block"]
    with running([str(part) for part in command], env=env, place=tmp_path) as output:
        said(output, r"(Ray runtime started)")
        yield f"ray://127.0.0.1:{port}"


@pytest.fixture(params=["dask", "ray"])
def cluster(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def test_files_and_models_by_a_cluster_of_which_one_dies(
    cluster: str, mark: Path, tmp_path: Path, ckconv: Ckconv
) -> None:
    shards = ("--to", "safetensors", "--max-shard-size", "50KB", "--checksums")
    assert ckconv("convert", QWEN2, f"{tmp_path}/one/", *shards).code == 0
    done = ckconv("convert", QWEN2, f"{tmp_path}/two/", *shards, "--cluster", cluster, "--json")
    assert done.code == 0, done.err
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert not mark.exists()
    mark.touch()  # this process does not die of it
    for into, flags in (("near", []), ("far", ["--cluster", cluster])):
        found = ckconv("batch", QWEN2, LLAMA, "--to", "mlx", "--into", tmp_path / into, *flags)
        assert found.code == 0, found.err
        assert {json.loads(line)["status"] for line in found.out.splitlines()} == {"converted"}
    assert not mark.exists()
    for name in (QWEN2.name, LLAMA.stem):
        assert contents(tmp_path / "near" / name) == contents(tmp_path / "far" / name)
    hidden = [path.name for path in tmp_path.rglob(".*ckconv*")]
    assert hidden == []


def test_where_nobody_answers(tmp_path: Path, ckconv: Ckconv, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    from ckconv.conversion import cluster

    monkeypatch.setattr(cluster, "_PATIENCE", 1)
    address = f"dask://127.0.0.1:{free_port()}"
    done = ckconv("convert", QWEN2, f"{tmp_path}/m/", "--to", "mlx", "--cluster", address)
    assert (done.code, "error[cluster.worker]" in done.err) == (6, True)
    assert list(tmp_path.iterdir()) == []
