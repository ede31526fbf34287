"""Sources that are on another machine: the same bytes as of a local file, by ranges, or an error and nothing left."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import FIXTURES
from gguf_builder import pair
from outputs import contents
from remote_servers import Server, hub, serving

import ckconv as ckconv_package
from ckconv import errors
from ckconv.io import remote as http, standins as elsewhere

ROOT = Path(__file__).parent.parent
LLAMA, QWEN2 = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf", FIXTURES / "hf" / "qwen2-tied-bf16"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(http, "PAUSES", (0.0, 0.0, 0.0))
    with serving(Server(files={"/m.gguf": LLAMA.read_bytes()})) as found:
        yield found


@pytest.fixture(params=[1 << 12, 4 << 20], ids=["small pieces", "one piece"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEAST", "PIECE"):
        monkeypatch.setattr(elsewhere, name, min(getattr(elsewhere, name), request.param))
    monkeypatch.setattr(elsewhere, "MAX_CACHED", 8 * request.param)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "no ranges"])
@pytest.mark.parametrize("to", ["bump", "gguf", "safetensors"])
def test_an_output_is_that_of_the_local_file(to: str, ranges: bool, server: Server, tmp_path: Path, ckconv) -> None:
    server.ranges = ranges
    (tmp_path / "model").mkdir()  # what a file lies in gives it its name, where nothing else does
    (tmp_path / "model" / "m.gguf").write_bytes(LLAMA.read_bytes())
    for source, name in ((f"{server.url}/m.gguf", "far"), (tmp_path / "model" / "m.gguf", "near")):
        done = ckconv("convert", source, f"{tmp_path}/{name}/", "--to", to, "--record", "--checksums")
        assert (done.code, done.err) == (0, "")
    assert contents(tmp_path / "far") == contents(tmp_path / "near")
    assert ckconv("verify", tmp_path / "far", f"{server.url}/m.gguf").code == 0
    assert ckconv("diff", f"{server.url}/m.gguf", LLAMA).code == 0


def test_messages_and_documents_name_the_address(server: Server, ckconv) -> None:
    address = f"{server.url}/m.gguf"
    assert ckconv("inspect", "--json", f"{address}?signature=secret").json["path"] == address
    assert ckconv("inspect", address).out.startswith(f"model\t{address}\t")
    server.files["/cut.gguf"] = server.files["/m.gguf"][:1000]
    done = ckconv("inspect", f"{server.url}/cut.gguf?signature=secret")
    assert (done.code, "secret" in done.err) == (3, False)
    assert f"error[gguf.array]: {server.url}/cut.gguf: " in done.err


def large(vocabulary: int) -> bytes:
    """A GGUF with so many tokens and merges, in front of 40 MB of tensors."""
    tokens = [f"token{n:08}" for n in range(vocabulary)]

    def strings(key: str, values: list[str]) -> bytes:
        items = b"".join(struct.pack("<Q", len(value)) + value.encode() for value in values)
        name = struct.pack("<Q", len(key)) + key.encode()
        return name + struct.pack("<IIQ", 9, 8, len(values)) + items

    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 3) + pair("general.architecture", "str", "unheard-of")
    header += strings("tokenizer.ggml.tokens", tokens) + strings("tokenizer.ggml.merges", tokens)
    header += struct.pack("<Q", 1) + b"x" + struct.pack("<IQIQ", 1, 10_000_000, 0, 0)
    return header + bytes(-len(header) % 32) + bytes(40_000_000)


@pytest.mark.parametrize(
    "command", [("inspect",), ("convert", "out.gguf", "--dry-run")], ids=lambda command: command[0]
)
def test_a_header_of_150_000_tokens_takes_twelve_requests_and_eight_megabytes(
    command: tuple[str, ...], server: Server, ckconv
) -> None:
    server.files["/large.gguf"] = large(150_000)
    verb, *more = command
    assert ckconv(verb, f"{server.url}/large.gguf", *more).code == 0
    assert len(server.asked) <= 12
    assert server.nbytes <= 8_000_000


@pytest.mark.parametrize("trouble", ["cuts", "refuses"])
def test_a_cut_connection_and_a_busy_server_are_asked_again(
    trouble: str, server: Server, tmp_path: Path, ckconv
) -> None:
    setattr(server, trouble, 2)
    assert ckconv("convert", f"{server.url}/m.gguf", tmp_path / "m.gguf").code == 0
    assert getattr(server, trouble) == 0

    setattr(server, trouble, 1000)
    done = ckconv("convert", f"{server.url}/m.gguf", tmp_path / "n.gguf")
    assert done.code == 6
    assert f"error[remote.read]: {server.url}/m.gguf: cannot be read, after 4 tries" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_a_source_that_changes_under_the_reader(
    server: Server, tmp_path: Path, ckconv, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckconv.conversion import pipeline

    really = pipeline.write_file

    def write_file(*given: Any) -> Any:
        server.files["/m.gguf"] = server.files["/m.gguf"][:-1] + b"x"
        return really(*given)

    server.files["/m.gguf"] = large(10)
    monkeypatch.setattr(pipeline, "write_file", write_file)
    done = ckconv("convert", f"{server.url}/m.gguf", tmp_path / "m.gguf")
    assert (done.code, list(tmp_path.iterdir())) == (6, [])
    assert f"error[input.changed]: {server.url}/m.gguf: changed while it was being read" in done.err


def test_what_is_not_there_or_not_given(server: Server, ckconv, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "error[input.missing]" in ckconv("inspect", f"{server.url}/n.gguf").err
    assert "error[input.directory]" in ckconv("inspect", f"{server.url}/").err
    server.token = "secret"
    done = ckconv("inspect", f"{server.url}/m.gguf")
    assert (done.code, "error[input.unreadable]" in done.err, "HTTP status 401" in done.err) == (3, True, True)
    server.token, server.ranges = "", False
    monkeypatch.setattr(http, "WHOLE", 1000)
    done = ckconv("inspect", f"{server.url}/m.gguf")
    assert (done.code, "error[remote.ranges]" in done.err) == (4, True)


def test_the_other_shards_of_a_set(server: Server, tmp_path: Path, ckconv) -> None:
    assert ckconv("convert", LLAMA, tmp_path / "m.gguf", "--max-shard-size", "100KB").code == 0
    shards = sorted(tmp_path.iterdir())
    server.files = {f"/{path.name}": path.read_bytes() for path in shards}
    assert len(shards) > 1
    assert ckconv("diff", f"{server.url}/{shards[1].name}", LLAMA).code == 0


def test_outputs_are_local(server: Server, ckconv) -> None:
    done = ckconv("convert", LLAMA, f"{server.url}/m.gguf")
    assert (done.code, "can be read, but not written" in done.err) == (2, True)


def test_files_of_fsspec(tmp_path: Path, ckconv) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for path in QWEN2.iterdir():
        memory.pipe_file(f"/models/qwen2-tied-bf16/{path.name}", path.read_bytes())
    try:
        for source, name in (("memory://models/qwen2-tied-bf16", "far"), (QWEN2, "near")):
            assert ckconv("convert", source, f"{tmp_path}/{name}/", "--to", "gguf", "--record").code == 0
        assert contents(tmp_path / "far") == contents(tmp_path / "near")
        done = ckconv("inspect", "memory://models/nothing")
        assert (done.code, "error[input.missing]: memory://models/nothing" in done.err) == (3, True)
        one = "memory://models/qwen2-tied-bf16/model.safetensors"
        assert ckconv("inspect", "--json", one).json["path"] == one
    finally:
        memory.rm("/models", recursive=True)
    done = ckconv("inspect", "nosuch://x/y")
    assert (done.code, "error[usage.remote]" in done.err) == (2, True)


def ran(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: where the hub is, its library asks once."""
    return subprocess.run(
        [sys.executable, "-m", "ckconv", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        check=False,
    )


def test_a_repository_of_the_hub(tmp_path: Path, ckconv) -> None:
    pytest.importorskip("huggingface_hub")
    source = tmp_path / "qwen2-tied-bf16"
    shutil.copytree(QWEN2, source)
    for name in ("USE_POLICY.md", "LICENSE.md"):
        (source / name).write_text(name)
    with serving(hub(source, "org/qwen2-tied-bf16", COMMIT)) as files, serving(Server(token="secret")) as front:
        front.files, front.documents, front.elsewhere = files.files, files.documents, files.url
        environment = {"HF_ENDPOINT": front.url, "HF_TOKEN": "secret", "HF_HOME": str(tmp_path / "home")}
        done = ran("convert", "hf://org/qwen2-tied-bf16", f"{tmp_path}/far/", "--to", "gguf", **environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert ckconv("convert", QWEN2, f"{tmp_path}/near/", "--to", "gguf").code == 0
        assert contents(tmp_path / "far") == contents(tmp_path / "near")
        done = ran("convert", "hf://org/qwen2-tied-bf16", f"{tmp_path}/mlx/", "--to", "mlx", **environment)
        assert (done.returncode, {"USE_POLICY.md", "LICENSE.md"} <= contents(tmp_path / "mlx").keys()) == (0, True)
        assert files.tokens == {None}, "the token is for the hub, not for where it sends its readers"
        found = ran("inspect", "hf://org/qwen2-tied-bf16@v1", "--json", **environment)
        assert json.loads(found.stdout)["path"] == "hf://org/qwen2-tied-bf16@v1"
        missing = ran("inspect", "hf://org/other", **environment)
        assert (missing.returncode, "error[input.missing]: hf://org/other" in missing.stderr) == (3, True)
        refused = ran("inspect", "hf://org/qwen2-tied-bf16", **{**environment, "HF_TOKEN": "other"})
        assert (refused.returncode, "error[input.unreadable]" in refused.stderr) == (3, True)
        assert "other" not in refused.stderr


def test_only_the_hub_needs_its_package(server: Server) -> None:
    """HTTP needs no package, and every other scheme none but its own; a fresh environment has none of them."""
    start = "import sys; sys.modules.update(huggingface_hub=None, fsspec=None); from ckconv.cli import run"
    expected = {
        f"{server.url}/m.gguf": (0, ""),
        "hf://org/model": (4, "hf: needs the package huggingface_hub"),
        "s3://bucket/m.gguf": (4, "s3: needs the packages fsspec and s3fs"),
        "memory://m.gguf": (4, "memory: needs the package fsspec"),
    }
    for address, (status, said) in expected.items():
        command = [sys.executable, "-c", f"{start}; sys.exit(run(['inspect', {address!r}]))"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, said in done.stderr) == (status, True), done.stderr


def test_the_end_of_the_process_does_not_wait_for_a_slow_server() -> None:
    """A server that takes the request and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        command = [sys.executable, "-m", "ckconv", "inspect", f"http://127.0.0.1:{silent.getsockname()[1]}/m.gguf"]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
            connection, _ = silent.accept()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
            connection.close()
    assert (process.returncode, "Traceback" in errors) == (130, False)


@pytest.mark.parametrize("behind", [16, -16], ids=["another range", "one that begins before"])
def test_an_answer_of_another_range_is_none(behind: int, server: Server, tmp_path: Path, ckconv) -> None:
    server.files["/m.gguf"] = large(10)
    server.shifts = behind
    done = ckconv("convert", f"{server.url}/m.gguf", tmp_path / "n.gguf")
    assert (done.code, list(tmp_path.iterdir())) == (6, [])
    assert "cannot be read, after 4 tries: the server sent another range than" in done.err


@pytest.mark.parametrize("size", ["9" * 30, str(2**63 - 1), str(1 << 44), "9" * 5000])
def test_a_size_that_no_file_has_is_none(size: str, server: Server, tmp_path: Path, ckconv) -> None:
    server.size = size
    done = ckconv("convert", f"{server.url}/m.gguf", tmp_path / "n.gguf")
    assert (done.code, list(tmp_path.iterdir())) == (4, [])
    assert "error[remote.ranges]" in done.err


def test_a_thread_that_is_not_to_be_had_is_the_systems(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    file = http.HttpFile(f"{server.url}/m.gguf")
    reader = elsewhere.RangeReader(file)
    monkeypatch.setattr(elsewhere, "_CACHE", elsewhere.RangeCache())
    monkeypatch.setattr("ckconv.io.standins.threading.Thread.start", none)
    with pytest.raises(errors.OutputError, match="a thread cannot be started: can't start new thread") as caught:
        reader.read(0, 4, in_order=False)
    assert caught.value.code == "system"


def test_a_server_without_ranges_gives_every_file_once(server: Server, tmp_path: Path, ckconv) -> None:
    server.ranges = False
    assert ckconv("convert", f"{server.url}/m.gguf", tmp_path / "m.gguf").code == 0
    assert len(server.asked) == 1


def test_what_failed_is_fetched_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    file = http.HttpFile(f"{server.url}/m.gguf")
    monkeypatch.setattr(elsewhere, "_CACHE", elsewhere.RangeCache())
    reader = elsewhere.RangeReader(file)
    really = file.fetch

    def broken(*_: int) -> bytes:
        raise RuntimeError

    file.fetch = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        reader.read(0, 4, in_order=False)
    file.fetch = really  # type: ignore[method-assign]
    assert reader.read(0, 4, in_order=False) == b"GGUF"


def test_a_checkpoint_whose_index_names_its_files(server: Server, tmp_path: Path, ckconv) -> None:
    place = tmp_path / "model"
    assert ckconv("convert", QWEN2, f"{place}/", "--to", "safetensors", "--max-shard-size", "100KB").code == 0
    shard = sorted(place.glob("*.safetensors"))[0].name
    index = "model.safetensors.index.json"
    server.files = {f"/model/{path.name}": path.read_bytes() for path in place.iterdir()}
    assert ckconv("convert", place, tmp_path / "near.gguf", "--record").code == 0
    for name in (shard, index):
        url = f"{server.url}/model/{name}"
        assert ckconv("convert", url, tmp_path / "far.gguf", "--force", "--record").code == 0
        assert (tmp_path / "far.gguf").read_bytes() == (tmp_path / "near.gguf").read_bytes()
        assert ckconv("diff", f"{url}?signature=SECRET", place).code == 0
    weights = json.loads(server.files[f"/model/{index}"])
    for other in ("../etc/passwd", "/etc/passwd", "a?b", 5):
        named = {**weights, "weight_map": {**weights["weight_map"], "x": other}}
        server.files[f"/model/{index}"] = json.dumps(named).encode()
        done = ckconv("inspect", f"{server.url}/model/{shard}?signature=SECRET")
        assert (done.code, "error[index.path]" in done.err, "SECRET" in done.err) == (3, True, False)
    del server.files[f"/model/{index}"]
    assert ckconv("diff", f"{server.url}/model/{shard}", place).code == 0
    del server.files[f"/model/{sorted(place.glob('*.safetensors'))[-1].name}"]
    done = ckconv("inspect", f"{server.url}/model/{shard}")
    assert (done.code, "error[input.missing]" in done.err) == (3, True)


def test_workers_and_later_runs_see_whether_a_remote_source_is_the_same(server: Server, tmp_path: Path) -> None:
    def of_file() -> int:
        place = elsewhere.stand_in("x", "m", {"m.gguf": http.HttpFile(f"{server.url}/m.gguf")})
        return (place / "m.gguf").stat().st_mtime_ns

    options = ckconv_package.Options(max_shard_bytes=50_000)
    ckconv_package.convert(f"{server.url}/m.gguf", f"{tmp_path}/near/", to="mlx", options=options)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        ckconv_package.convert(
            f"{server.url}/m.gguf", f"{tmp_path}/far/", to="mlx", options=options, executor=executor, resume=True
        )
    assert contents(tmp_path / "far") == contents(tmp_path / "near")
    before = of_file()
    assert of_file() == before
    server.files["/m.gguf"] = server.files["/m.gguf"][:-1] + b"x"
    assert of_file() != before


def test_one_file_of_a_checkpoint_is_no_model(tmp_path: Path, ckconv) -> None:
    place = tmp_path / "shards"
    assert ckconv("convert", QWEN2, f"{place}/", "--to", "safetensors", "--max-shard-size", "100KB").code == 0
    shard = sorted(place.glob("*.safetensors"))[0]
    index = place / "model.safetensors.index.json"
    whole = ckconv("convert", place, tmp_path / "whole.gguf")
    assert (ckconv("convert", shard, tmp_path / "part.gguf").code, whole.code) == (0, 0)
    assert (tmp_path / "part.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    index.unlink()
    assert ckconv("convert", shard, tmp_path / "all.gguf").code == 0
    assert (tmp_path / "all.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    sorted(place.glob("*.safetensors"))[-1].unlink()
    done = ckconv("convert", shard, tmp_path / "none.gguf")
    assert (done.code, "error[index.missing]" in done.err) == (3, True)


@pytest.mark.parametrize(
    ("path", "public"),
    [
        ("http://u:PW@h/x.gguf", "http://h/x.gguf"),
        ("http:/u:PW@h:80/a b.gguf?sig=S", "http://h:80/a b.gguf"),
        ("http:u:PW@h/x", "http://h/x"),
        ("HTTPS://u:P/W@h/x@y", "HTTPS://y"),
        ("http://u:P?W@h/x", "http://h/x"),
        ("http://h:80/@me/x.gguf", "http://h:80/@me/x.gguf"),
        ("http://[::1]:80/@me/x.gguf", "http://[::1]:80/@me/x.gguf"),
        ("hf://owner/name@v1/x.gguf", "hf://owner/name@v1/x.gguf"),
        ("zip://x::http://u:PW@h/f.zip", "zip://x::http://h/f.zip"),
        ("file:///a/b", "file:///a/b"),
        ("a/b?c", "a/b?c"),
    ],
)
def test_what_an_address_is_called(path: str, public: str) -> None:
    assert errors.shown(path) == public
    assert errors.InputError("input.missing", "x", path=path).path == public


@pytest.mark.parametrize("arguments", [("inspect",), ("verify",), ("verify", "--json"), ("diff", str(LLAMA))])
def test_who_asks_stands_in_no_message(arguments: tuple[str, ...], server: Server, ckconv) -> None:
    server.files["/a b.gguf"] = server.files["/m.gguf"]
    front = server.url.replace("://", "://user:PASSWORD@")
    for name in ("m.gguf", "none.gguf", "a b.gguf", "mod\u00e8le.gguf"):
        done = ckconv(*arguments, f"{front}/{name}?sig=SIGNATURE")
        assert done.code == (0 if f"/{name}" in server.files else 3)
        for secret in ("PASSWORD", "SIGNATURE", "ckconv-"):
            assert secret not in done.out + done.err
    assert server.tokens == {"Basic dXNlcjpQQVNTV09SRA=="}


def test_a_password_stays_with_its_server(server: Server, ckconv) -> None:
    with serving(Server(elsewhere=server.url, files=server.files)) as front:
        assert ckconv("inspect", front.url.replace("://", "://user:PASSWORD@") + "/m.gguf").code == 0
        assert (front.tokens, server.tokens) == ({"Basic dXNlcjpQQVNTV09SRA=="}, {None})


@pytest.mark.parametrize(
    "address", ["http://[::1/x.gguf", "https://h../x.gguf", "http://u:PW@h:x/x.gguf", "http://h:x/y"]
)
def test_what_is_no_address(address: str, ckconv) -> None:
    done = ckconv("inspect", address)
    assert (done.code, "is not an address" in done.err, "PW" in done.err) == (3, True, False)


@pytest.mark.parametrize("name", ["a/b--c", "a/b.git"])
def test_what_is_no_name_of_a_repository(name: str, ckconv) -> None:
    pytest.importorskip("huggingface_hub")
    done = ckconv("inspect", f"hf://{name}")
    assert (done.code, f"error[input.missing]: hf://{name}: is not the name of a repository" in done.err) == (3, True)


def test_what_a_file_system_raises_is_an_error_of_it(tmp_path: Path, ckconv, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.setattr(http, "PAUSES", (0.0,))
    (tmp_path / "x").write_bytes(b"none")
    done = ckconv("inspect", f"zip://x::{tmp_path}/x")
    assert (done.code, "error[remote.read]: zip://x::" in done.err, "BadZipFile" in done.err) == (6, True, True)
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"ftp://127.0.0.1:{gone.getsockname()[1]}/x"
    done = ckconv("inspect", address)
    assert (done.code, f"error[remote.read]: {address}: cannot be read, after 2 tries" in done.err) == (6, True)


@pytest.mark.parametrize("scheme", ["file", "local"])
def test_a_file_of_this_machine_is_named_from_its_root(scheme: str, ckconv) -> None:
    pytest.importorskip("fsspec")
    assert ckconv("diff", f"{scheme}://{LLAMA}", LLAMA).code == 0


def test_the_text_of_an_address_stays_as_it_is(server: Server, ckconv) -> None:
    assert ckconv("inspect", f"{server.url}//m.gguf").code == 3
    server.files["//m.gguf"] = server.files["/m.gguf"]
    assert ckconv("diff", f"{server.url}//m.gguf?sig=a//b/./c/", LLAMA).code == 0
    assert "/" + "/m.gguf?sig=a//b/./c/" in server.targets


def test_files_beside_are_named_by_their_address(ckconv) -> None:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.pipe_file("/models/one/m.gguf", LLAMA.read_bytes())
    try:
        done = ckconv("verify", "memory://models/one/m.gguf", "--config", "memory://models/one/config.json")
        assert "ckconv-" not in done.err
    finally:
        memory.rm("/models", recursive=True)


@pytest.mark.parametrize("verb", ["inspect", "verify"])
def test_a_signal_leaves_no_stand_ins(verb: str, tmp_path: Path) -> None:
    with serving(Server(files={"/m.gguf": large(300_000)}, waits=1)) as server:
        command = [sys.executable, "-m", "ckconv", verb, f"{server.url}/m.gguf"]
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, env=environment, text=True) as process:
            assert server.waiting.wait(60)
            assert len(list(tmp_path.glob("ckconv-*"))) == 1
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=30)
            server.go_on.set()
    assert (process.returncode, list(tmp_path.iterdir()), "Traceback" in said) == (143, [], False)
