"""Sources in S3: of a server on this machine."""

from __future__ import annotations

import os
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from test_remote import LLAMA, QWEN2, contents

from ckconv.io import remote as http

pytestmark = pytest.mark.s3


@dataclass
class Line:
    """What is between this process and a server.

    Attributes:
        waits: seconds before each piece of what is sent.
        cuts: so many connections are cut in the middle of a large request; all others go on.
    """

    port: int
    waits: float = 0.0
    cuts: int = 0
    was_cut: int = 0

    def __post_init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self.listening.accept()
                threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", self.port)) as far:
            back = threading.Thread(target=self._carry, args=(far, near, False), daemon=True)
            back.start()
            self._carry(near, far, True)
            back.join()

    def _carry(self, one: socket.socket, other: socket.socket, sending: bool) -> None:
        nbytes = 0
        with suppress(OSError):
            while data := one.recv(8 << 10):
                time.sleep(self.waits)
                nbytes += len(data)
                if sending and self.cuts and nbytes > 24 << 10:
                    self.cuts, self.was_cut = self.cuts - 1, self.was_cut + 1
                    break
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    s3fs = pytest.importorskip("s3fs")
    server.start()
    _, port = server.get_host_and_port()
    reset = urllib.request.Request(f"http://127.0.0.1:{port}/moto-api/reset", method="POST")
    urllib.request.urlopen(reset).close()  # what other tests have stored in this process
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "key-of-the-test",
        "AWS_SECRET_ACCESS_KEY": "secret-of-the-test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    system = s3fs.S3FileSystem(skip_instance_cache=True)
    system.mkdir("zoo")
    system.put(f"{QWEN2}/", "zoo/qwen2-tied-bf16/", recursive=True)
    system.put(str(LLAMA), "zoo/llama.gguf")
    yield "s3://zoo"
    server.stop()


def test_a_directory_and_a_file_in_s3(bucket: str, tmp_path: Path, ckconv) -> None:
    for source, name in ((f"{bucket}/qwen2-tied-bf16", "far"), (QWEN2, "near")):
        assert ckconv("convert", source, f"{tmp_path}/{name}/", "--to", "gguf", "--record").code == 0
    assert contents(tmp_path / "far") == contents(tmp_path / "near")
    assert ckconv("diff", f"{bucket}/llama.gguf", LLAMA).code == 0
    done = ckconv("inspect", f"{bucket}/none.gguf")
    assert (done.code, f"error[input.missing]: {bucket}/none.gguf" in done.err) == (3, True)
    assert "of-the-test" not in done.err


@pytest.fixture
def line(bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    import s3fs

    found = Line(urlsplit(os.environ["AWS_ENDPOINT_URL"]).port or 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", found.url)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(http, "PAUSES", (0.1, 0.1))
    monkeypatch.setattr(http, "_PART", 5 << 20)
    s3fs.S3FileSystem.clear_instance_cache()
    yield found
    s3fs.S3FileSystem.clear_instance_cache()
    found.listening.close()


def stored(bucket: str) -> dict[str, bytes]:
    import s3fs

    system = s3fs.S3FileSystem(skip_instance_cache=True)
    return {name.rpartition("/")[2]: system.cat_file(name) for name in system.find(f"{bucket}/out")}


def unfinished(bucket: str) -> int:
    import s3fs

    system = s3fs.S3FileSystem(skip_instance_cache=True)
    return len(system.call_s3("list_multipart_uploads", Bucket=bucket.removeprefix("s3://")).get("Uploads", []))


SHARDS = ("--to", "safetensors", "--max-shard-size", "50KB", "--checksums")


@pytest.mark.parametrize(("waits", "cuts"), [(0.0, 0), (0.002, 0), (0.0, 2)], ids=["fast", "slow", "dropping"])
def test_an_output_in_s3(waits: float, cuts: int, line: Line, bucket: str, tmp_path: Path, ckconv) -> None:
    line.waits, line.cuts = waits, cuts
    assert ckconv("convert", QWEN2, f"{tmp_path}/out/", *SHARDS).code == 0
    done = ckconv("convert", QWEN2, f"{bucket}/out/", *SHARDS)
    assert done.code == 0, done.err
    assert line.was_cut == cuts
    assert (stored(bucket), unfinished(bucket)) == (contents(tmp_path / "out"), 0)


def test_what_a_dropping_s3_takes_no_more_leaves_nothing(line: Line, bucket: str, ckconv) -> None:
    line.cuts = 10_000
    done = ckconv("convert", QWEN2, f"{bucket}/out/", *SHARDS)
    assert (done.code, "error[remote.write]" in done.err, "of-the-test" in done.err) == (6, True, False)
    line.cuts = 0
    assert (stored(bucket), unfinished(bucket)) == ({}, 0)
