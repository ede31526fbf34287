"""Servers that lie, never end, send readers elsewhere or swap files: an error soon, and nothing left."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest
from conftest import FIXTURES, Result
from remote_servers import Server, serving

from ckconv.formats.locate import located
from ckconv.io import remote as http, standins as elsewhere

Ckconv = Callable[..., Result]

pytestmark = pytest.mark.attack

LLAMA = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
FOUND = b"HTTP/1.1 206 Partial Content\r\nETag: x\r\nContent-Range: bytes 0-65535/1000000\r\n"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(http, "PAUSES", (0.0,))
    monkeypatch.setattr(elsewhere, "_CACHE", elsewhere.RangeCache())
    with serving(Server(files={"/m.gguf": LLAMA.read_bytes()})) as found:
        yield found


def endless(begin: bytes, then: bytes) -> Callable[[IO[bytes]], None]:
    """As much as the reader takes; at most 200 MB."""

    def answer(to: IO[bytes]) -> None:
        to.write(begin)
        many = then * (1 + 65536 // len(then))
        for _ in range(200_000_000 // len(many)):
            to.write(many)

    return answer


def dripping(begin: bytes) -> Callable[[IO[bytes]], None]:
    """A byte every hundredth of a second."""

    def answer(to: IO[bytes]) -> None:
        to.write(begin)
        for _ in range(6_000):
            to.write(b"x")
            time.sleep(0.01)

    return answer


ANSWERS = {
    "a line of status without end": endless(b"", b"x"),
    "a header without end": endless(b"HTTP/1.1 200 OK\r\nX: ", b"x"),
    "headers without end": endless(b"HTTP/1.1 200 OK\r\n", b"X: " + b"x" * 8_000 + b"\r\n"),
    "to be continued without end": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "what follows the chunks without end": endless(
        FOUND + b"Transfer-Encoding: chunked\r\n\r\n10000\r\n" + bytes(65536) + b"\r\n0\r\n", b"X: x\r\n"
    ),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_without_end(kind: str, server: Server, ckconv: Ckconv) -> None:
    server.answers = {"/x.gguf": ANSWERS[kind]}
    tracemalloc.start()
    done = ckconv("inspect", f"{server.url}/x.gguf")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (done.code, f"error[remote.read]: {server.url}/x.gguf: cannot be read, after 2 tries: " in done.err) == (
        6,
        True,
    )
    assert len(done.err) < 500
    assert most < 16 << 20


def test_the_page_of_another_place_need_not_end(server: Server, ckconv: Ckconv) -> None:
    server.answers = {"/x.gguf": endless(b"HTTP/1.1 302 Found\r\nLocation: /m.gguf\r\n\r\n", b"x")}
    assert ckconv("inspect", f"{server.url}/x.gguf").code == 0


@pytest.mark.parametrize("begin", [b"", FOUND + b"X: ", FOUND + b"\r\n"], ids=["status", "header", "content"])
def test_a_byte_now_and_then(begin: bytes, server: Server, ckconv: Ckconv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "TIMEOUT", 0.3)
    server.answers = {"/x.gguf": dripping(begin)}
    began = time.monotonic()
    done = ckconv("inspect", f"{server.url}/x.gguf")
    assert (done.code, "bytes came in 0 seconds" in done.err) == (6, True)
    assert time.monotonic() - began < 20


def test_a_fast_server_may_think_for_long(server: Server, ckconv: Ckconv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "TIMEOUT", 2.0)
    data = LLAMA.read_bytes()

    def late(to: IO[bytes]) -> None:
        time.sleep(1.5)
        to.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data))
        to.write(data)

    server.answers = {"/x.gguf": late}
    assert ckconv("inspect", f"{server.url}/x.gguf").code == 0


def test_the_user_says_how_long(server: Server) -> None:
    server.waits = 1
    command = [sys.executable, "-m", "ckconv", "convert", f"{server.url}/m.gguf", "-n", "x.gguf", "--timeout", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    server.go_on.set()
    assert (done.returncode, "the 3 s of --timeout are over" in done.stderr) == (143, True)


# Which file it is


def test_a_server_that_does_not_say_whether_a_file_changed(server: Server, tmp_path: Path, ckconv: Ckconv) -> None:
    server.marks = False
    done = ckconv("convert", f"{server.url}/m.gguf", tmp_path / "m.bump")
    assert (done.code, list(tmp_path.iterdir())) == (4, [])
    assert f"error[remote.changes]: {server.url}/m.gguf: the server gives neither ETag nor Last-Modified" in done.err
    assert "hint: download it first" in done.err
    server.ranges = False  # one answer is one file
    assert ckconv("convert", f"{server.url}/m.gguf", tmp_path / "m.bump").code == 0


def test_a_whole_file_that_changes_is_noticed_without_a_mark(server: Server) -> None:
    server.marks = server.ranges = False
    file = http.HttpFile(f"{server.url}/m.gguf")
    assert file.fetch(0, 4) == b"GGUF"
    server.files["/m.gguf"] = server.files["/m.gguf"][:-1] + b"x"
    with pytest.raises(http.OutputError, match="changed while it was being read"):
        file.fetch(0, 4)


def test_a_file_system_that_does_not_say_whether_a_file_changed(
    ckconv: Ckconv, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.pipe_file("/models/m.gguf", LLAMA.read_bytes())
    monkeypatch.setattr("ckconv.io.remote._MARKS", ())
    try:
        done = ckconv("inspect", "memory://models/m.gguf")
        assert (done.code, "error[remote.changes]: memory://models/m.gguf" in done.err) == (4, True)
    finally:
        memory.rm("/models", recursive=True)


# Where it sends its readers


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", path, "-out", path.with_suffix(".crt")),
        ],
        check=True,
        capture_output=True,
    )
    path.write_bytes(path.read_bytes() + path.with_suffix(".crt").read_bytes())
    return path


@pytest.fixture
def secure(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serving(Server(certificate=certificate, files={"/m.gguf": LLAMA.read_bytes()})) as found:
        yield found


def test_https_stays_https(server: Server, secure: Server, ckconv: Ckconv) -> None:
    assert ckconv("inspect", f"{secure.url}/m.gguf").code == 0
    secure.elsewhere = server.url
    done = ckconv("inspect", f"{secure.url}/m.gguf")
    assert (done.code, server.asked) == (4, [])
    assert (
        f"error[remote.redirect]: {secure.url}/m.gguf: the server sends readers on to {server.url}/m.gguf" in done.err
    )
    server.elsewhere = secure.url  # better than what was asked for
    secure.elsewhere = ""
    assert ckconv("inspect", server.url.replace("://", "://user:PASSWORD@") + "/m.gguf").code == 0
    assert secure.tokens == {None}


def test_a_certificate_that_nobody_vouches_for(secure: Server, ckconv: Ckconv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    monkeypatch.setattr(http, "PAUSES", ())
    done = ckconv("inspect", f"{secure.url}/m.gguf")
    assert (done.code, secure.asked, "CERTIFICATE_VERIFY_FAILED" in done.err) == (6, [], True)


@pytest.mark.parametrize("scheme", ["ftp", "file", "data", "gopher"])
def test_readers_are_not_sent_to_other_systems(scheme: str, server: Server, tmp_path: Path, ckconv: Ckconv) -> None:
    (tmp_path / "m.gguf").write_bytes(LLAMA.read_bytes())
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0)
        port = other.getsockname()[1]
        server.elsewhere = {"file": f"file://{tmp_path}", "data": "data:,"}.get(scheme, f"{scheme}://127.0.0.1:{port}")
        done = ckconv("inspect", f"{server.url}/m.gguf")
        with pytest.raises(BlockingIOError):
            other.accept()
    assert (done.code in (3, 4), "error[remote.redirect]" in done.err or "HTTP status 302" in done.err) == (True, True)


def test_a_ring_of_places(server: Server, ckconv: Ckconv) -> None:
    server.elsewhere = server.url
    done = ckconv("inspect", f"{server.url}/m.gguf")
    assert (done.code, "HTTP status 302" in done.err, len(server.asked) < 20) == (3, True, True)


def test_the_password_of_a_proxy_stays_with_it(server: Server, ckconv: Ckconv, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def proxy(listening: socket.socket) -> None:
        answer = f"HTTP/1.1 302 Found\r\nLocation: {server.url}/m.gguf\r\nConnection: close\r\n\r\n"
        with suppress(OSError):  # it is closed
            while True:
                connection, _ = listening.accept()
                with connection:
                    seen.append(connection.recv(1 << 16).decode())
                    connection.sendall(answer.encode())

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=proxy, args=(listening,), daemon=True).start()
        monkeypatch.setenv("http_proxy", f"http://user:PASSWORD@127.0.0.1:{listening.getsockname()[1]}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        http._opener.cache_clear()
        try:
            assert ckconv("inspect", "http://models.example/m.gguf").code == 0
        finally:
            http._opener.cache_clear()
            listening.shutdown(socket.SHUT_RDWR)
    assert "Proxy-Authorization: Basic dXNlcjpQQVNTV09SRA==" in seen[0]
    assert not any("PASSWORD" in str(found) or "Proxy-Authorization" in found for found in server.headers)


# How many files it names


def index(server: Server, number: int, nbytes: int) -> str:
    names = [f"part{n}.safetensors" for n in range(number)]
    document = {"metadata": {}, "weight_map": {f"t{n}": name for n, name in enumerate(names)}}
    server.files = {f"/{name}": bytes(nbytes) for name in names}
    server.files["/model.safetensors.index.json"] = json.dumps(document).encode()
    return f"{server.url}/model.safetensors.index.json"


def test_an_index_of_too_many_files_asks_for_none(server: Server, ckconv: Ckconv) -> None:
    url = index(server, 10_001, 0)
    done = ckconv("inspect", url)
    assert (done.code, f"error[input.format]: {url}: holds 10,001 files, which is not a model" in done.err) == (3, True)
    assert {path for path, _ in server.asked} == {"/model.safetensors.index.json"}
    done = ckconv("inspect", f"{server.url}/m-00001-of-10001.gguf")
    assert (done.code, "holds 10,001 files" in done.err) == (3, True)


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "no ranges"])
def test_many_files_take_little_memory(ranges: bool, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere, "MAX_CACHED", 1 << 20)
    url = index(server, 200, 1 << 17)
    server.ranges = ranges
    tracemalloc.start()
    located(Path(url))
    now, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert now < 4 << 20


def test_a_file_and_a_folder_of_one_name(ckconv: Ckconv) -> None:
    """As a bucket has them."""
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.pipe_file("/models/m.gguf/x", b"x")
    memory.store["/models/m.gguf"] = memory.store["/models/m.gguf/x"]
    try:
        done = ckconv("inspect", "memory://models")
        assert (done.code, "error[index.path]: memory://models: lists 'm.gguf/x'" in done.err) == (3, True)
    finally:
        memory.store.clear()
