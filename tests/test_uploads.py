"""Outputs on another machine: the bytes of the local ones, published by the last step, or nothing is there."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from conftest import FIXTURES, Result
from outputs import contents, refused
from test_pooling import embedding_gemma

import ckconv as library
from ckconv.errors import ADDRESSES, OutputError
from ckconv.io import remote as http

Ckconv = Callable[..., Result]

QWEN2 = FIXTURES / "hf" / "qwen2-tied-bf16"
SHARDS = ("--max-shard-size", "50KB")


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(http, "PAUSES", (0.0, 0.0))
    system = pytest.importorskip("fsspec").filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def there(memory: Any) -> dict[str, bytes]:
    return {name.rpartition("/")[2]: memory.cat_file(name) for name in memory.find("/")}


@pytest.mark.parametrize("flags", ["m/ --to safetensors --checksums", "m/ --to mlx --record", "m/m.gguf"])
def test_an_output_elsewhere_is_the_local_one(flags: str, memory: Any, tmp_path: Path, ckconv: Ckconv) -> None:
    name, *further = flags.split()
    (tmp_path / "m").mkdir()
    local = f"{tmp_path}/{name}"
    assert ckconv("convert", QWEN2, local, *SHARDS, *further).code == 0
    done = ckconv("convert", QWEN2, f"memory://zoo/{name}", *SHARDS, *further)
    assert (done.code, done.err) == (0, "")
    assert f"memory://zoo/{name}" in done.out
    assert there(memory) == contents(tmp_path / "m")
    assert ckconv("diff", "memory://zoo/m" if name == "m/" else "memory://zoo/m/m-00001-of-00005.gguf", QWEN2).code == 0
    again = ckconv("convert", QWEN2, f"memory://zoo/{name}", *SHARDS, *further)
    assert (again.code, "error[output.exists]" in again.err) == (6, True)
    assert there(memory) == contents(tmp_path / "m")


def test_plans_and_pages_of_an_output_elsewhere_name_its_address(memory: Any, tmp_path: Path, ckconv: Ckconv) -> None:
    """The temporary file that it is made in is nobody's business."""
    for name in ("m.gguf", "m/m.gguf", "n/"):
        plan = ckconv("convert", QWEN2, f"memory://zoo/{name}", "--dry-run", *(("--to", "mlx") if name == "n/" else ()))
        assert (plan.code, plan.out.splitlines()[1].split()[0]) == (0, f"memory://zoo/{name}")
    assert (
        ckconv("convert", QWEN2, "memory://zoo/m.gguf", "--dry-run", "--json").json["target"] == "memory://zoo/m.gguf"
    )
    assert not there(memory)
    assert ckconv("convert", QWEN2, "memory://zoo/m.gguf", "--html", str(tmp_path / "p.html")).code == 0
    page = (tmp_path / "p.html").read_text()
    assert "memory://zoo/m.gguf" in page
    assert "ckconv-" not in page


def test_directories_of_an_output_are_directories_elsewhere(memory: Any, tmp_path: Path) -> None:
    """A file in one does not take the place of the model's own of that name."""
    root = embedding_gemma(tmp_path / "hf")
    library.convert(root, tmp_path / "m.gguf")
    for source, name in ((root, "copy"), (tmp_path / "m.gguf", "made")):
        library.convert(source, f"{tmp_path}/{name}/", to="safetensors")
        done = library.convert(source, f"memory://zoo/{name}/", to="safetensors")
        local = tmp_path / name
        found = {path.removeprefix(f"/zoo/{name}/"): memory.cat_file(path) for path in memory.find(f"/zoo/{name}")}
        assert found == contents(local)
        assert {str(path) for path in done.side_files} >= {f"memory://zoo/{name}/2_Dense/config.json"}
        assert library.diff(f"memory://zoo/{name}", local).same


class Faulty:
    """A system some of whose calls fail, and that notes what is opened to be written, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, memory: Any) -> None:
        self.fails: list[str] = []
        self.flips = ""
        self.opened: list[str] = []
        real = memory.open

        def opened(path: str, mode: str = "rb", **flags: Any) -> Any:
            name = path.rpartition("/")[2]
            if mode == "wb":
                self.opened.append(name)
                if name in self.fails:
                    self.fails.remove(name)
                    real(path, mode, **flags).write(b"half")
                    raise ConnectionResetError("secret of the address")
            elif name == self.flips:
                memory.store[memory._strip_protocol(path)].write(b"x")
            return real(path, mode, **flags)

        monkeypatch.setattr(memory, "open", opened)


def test_what_is_cut_off_is_sent_again_and_then_given_up(
    memory: Any, tmp_path: Path, ckconv: Ckconv, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = Faulty(monkeypatch, memory)
    arguments = ("convert", QWEN2, "memory://zoo/m/", "--to", "safetensors", *SHARDS)
    system.fails = ["model-00003-of-00005.safetensors"] * 3
    done = ckconv(*arguments)
    assert (done.code, "error[remote.write]" in done.err, "secret" in done.err) == (6, True, False)
    assert there(memory) == {}
    system.fails, system.opened = ["model-00003-of-00005.safetensors"] * 2, []
    assert ckconv(*arguments).code == 0
    assert system.opened[-1] == "model.safetensors.index.json"
    assert ckconv("convert", QWEN2, f"{tmp_path}/m/", "--to", "safetensors", *SHARDS).code == 0
    assert there(memory) == contents(tmp_path / "m")


def test_what_arrives_otherwise_is_not_published(memory: Any, ckconv: Ckconv, monkeypatch: pytest.MonkeyPatch) -> None:
    Faulty(monkeypatch, memory).flips = "model-00002-of-00005.safetensors"
    done = ckconv("convert", QWEN2, "memory://zoo/m/", "--to", "safetensors", *SHARDS)
    assert (done.code, "error[verify.file]" in done.err) == (5, True)
    assert there(memory) == {}


def test_what_somebody_else_makes_meanwhile_is_neither_replaced_nor_removed(tmp_path: Path) -> None:
    """Where the system shows a file only when it is complete."""
    pytest.importorskip("fsspec")
    (tmp_path / "there").mkdir()
    (tmp_path / "one").write_bytes(b"one")
    (tmp_path / "two").write_bytes(b"two")
    sending = http.Uploads(f"file://{tmp_path}/there")
    for name in ("one", "two"):
        sending.send(tmp_path / name, name, lambda nbytes: None)
    assert contents(tmp_path / "there") == {}
    (tmp_path / "there" / "two").write_bytes(b"mine")
    with refused("output.exists", "exists already"):
        sending.publish([(name, sha256(name.encode()).hexdigest()) for name in ("one", "two")])
    assert sending.remove() == []
    assert contents(tmp_path / "there") == {"two": b"mine"}


def test_a_server_that_does_not_answer_at_once(ckconv: Ckconv) -> None:
    pytest.importorskip("fsspec")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        done = ckconv("convert", QWEN2, f"ftp://me:secret@127.0.0.1:{nobody.getsockname()[1]}/m.gguf")
    assert (done.code, "error[remote.write]" in done.err, "secret" in done.err) == (6, True, False)


def test_a_signal_leaves_nothing(memory: Any, ckconv: Ckconv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http.Uploads, "publish", lambda self, digests: os.kill(os.getpid(), signal.SIGTERM))
    done = ckconv("convert", QWEN2, "memory://zoo/m/", "--to", "safetensors", *SHARDS)
    assert (done.code, there(memory)) == (143, {})


def test_nothing_is_remembered_of_a_directory_that_is_gone(memory: Any) -> None:
    before = dict(ADDRESSES)
    library.convert(QWEN2, "memory://zoo/m.gguf")
    with pytest.raises(OutputError):
        library.convert(QWEN2, "memory://zoo/m.gguf")
    assert before == ADDRESSES


def test_a_model_elsewhere_is_shown_with_its_address(memory: Any) -> None:
    library.convert(QWEN2, "memory://zoo/m.gguf")
    model = library.open_model("memory://zoo/m.gguf")
    assert repr(model) == f"<gguf qwen2 of {len(model.tensors)} tensors: memory://zoo/m.gguf>"


def test_what_cannot_be_asked_of_an_output_elsewhere(memory: Any, ckconv: Ckconv) -> None:
    for flag in ("--force", "--resume"):
        done = ckconv("convert", QWEN2, "memory://zoo/m/", "--to", "mlx", flag)
        assert (done.code, "error[usage.target]" in done.err) == (2, True)
    for address in ("https://host/m/", "hf://owner/m/"):
        done = ckconv("convert", QWEN2, address, "--to", "mlx")
        assert (done.code, "can be read, but not written" in done.err) == (2, True)
    for arguments in (
        ("batch", QWEN2, "--to", "mlx", "--into", "memory://zoo/all"),
        ("convert", QWEN2, "memory://zoo/m/", "--to", "mlx", "--html", "memory://zoo/page.html"),
        ("convert", QWEN2, "memory://zoo/m/", "--to", "hf", "--side-files-only"),
    ):
        done = ckconv(*arguments)
        assert (done.code, "local path" in done.err, "mkdir" in done.err) == (2, True, False)
    done = ckconv("convert", QWEN2, "nosuchsystem://zoo/m/", "--to", "mlx")
    assert (done.code, "error[usage.remote]" in done.err) == (2, True)
    said = ckconv("convert", QWEN2, "memory://zoo/n/", "--to", "mlx", "--json").json
    assert [file["path"] for file in said["files"]] == ["memory://zoo/n/model.safetensors"]
    report = library.convert(QWEN2, "memory://zoo/m/", to="mlx")
    assert (report.target, report.verified) == ("memory://zoo/m/", 26)
    assert "config.json" in there(memory)
