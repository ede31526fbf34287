"""Servers on this machine that give files as others do: whole, in ranges, cut off, changed meanwhile."""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

from outputs import contents


@dataclass
class Server:
    """What it gives, and what it was asked.

    Attributes:
        files: path -> content.
        documents: path -> JSON.
        ranges: it knows of them.
        cuts: so many of its next answers end in the middle.
        refuses: so many of its next answers say that it is busy.
        token: without it nothing is given.
        size: what it says that the size of its files is, if not what it is.
        shifts: it gives what stands so many bytes behind a range's own, but of the first one.
        waits: how many of its answers it gives before it waits, and says nothing more until it may go on.
        targets: what it was asked for, as it came.
        elsewhere: files are on another server, as those of a hub are.
        marks: it says which state of a file it gives.
        answers: path -> what writes all of an answer, down to its status.
        certificate: file of a certificate and its key, with which it speaks TLS.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    documents: Mapping[str, Any] = field(default_factory=dict)
    ranges: bool = True
    cuts: int = 0
    refuses: int = 0
    token: str = ""
    size: str = ""
    shifts: int = 0
    waits: int = -1
    waiting: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    targets: list[str] = field(default_factory=list)
    elsewhere: str = ""
    marks: bool = True
    answers: Mapping[str, Callable[[IO[bytes]], None]] = field(default_factory=dict)
    certificate: Path | None = None
    url: str = ""
    asked: list[tuple[str, int]] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self.asked)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(server, self)

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    if server.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server.certificate)
        http.socket = context.wrap_socket(http.socket, server_side=True)
    threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
    server.url = f"http{'s' if server.certificate else ''}://127.0.0.1:{http.server_address[1]}"
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()


def answer(server: Server, request: BaseHTTPRequestHandler) -> None:
    path, _, _ = unquote(request.requestline.split(" ")[1]).partition("?")
    server.targets.append(request.requestline.split(" ")[1])
    if server.waits == len(server.targets) - 1:
        server.waiting.set()
        server.go_on.wait(60)
    server.headers.append(dict(request.headers))
    server.tokens.add(request.headers.get("Authorization"))
    if path in server.answers:
        request.close_connection = True
        with suppress(OSError):  # of one who has read enough
            server.answers[path](request.wfile)
        return
    document = server.documents.get(path)
    data = json.dumps(document).encode() if document is not None else server.files.get(path)
    found = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range") or "")
    status, headers = 200, {"ETag": f'"{hash(data)}"'} if server.marks else {}
    if server.refuses:
        server.refuses -= 1
        status, data = 503, b""
    elif data is None:
        status, data = 404, b""
    elif server.token and request.headers.get("Authorization") != f"Bearer {server.token}":
        status, data = 401, b""
    elif server.elsewhere and document is None:
        status, data, headers = 302, b"", {"Location": server.elsewhere + path}
    elif found and server.ranges and document is None:
        shift = server.shifts if int(found[1]) else 0
        start, end = int(found[1]) + shift, min(int(found[2]) + 1 + shift, len(data))
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{server.size or len(data)}"
        status, data = (206, data[start:end]) if start < end else (416, b"")
    request.send_response(status)
    for name, value in {**headers, "Content-Type": "application/json", "Content-Length": str(len(data))}.items():
        request.send_header(name, value)
    request.end_headers()
    server.asked.append((path, len(data)))
    if server.cuts and status == 206:
        server.cuts -= 1
        data = data[: len(data) // 2]
    if request.command == "GET":
        with suppress(ConnectionError):  # of one who has read enough
            request.wfile.write(data)


def hub(directory: Path, repository: str, commit: str) -> Server:
    """A hub with one repository."""
    files = contents(directory)
    listed = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
    document = {"id": repository, "sha": commit, "siblings": listed, "tags": [], "private": False, "downloads": 0}
    return Server(
        files={f"/{repository}/resolve/{commit}/{name}": data for name, data in files.items()},
        documents={
            f"/api/models/{repository}{behind}": document for behind in ("", "/revision/v1", f"/revision/{commit}")
        },
    )
