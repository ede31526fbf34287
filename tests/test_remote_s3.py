"""Sources in S3: of a server on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from test_remote import LLAMA, QWEN2, contents

pytestmark = pytest.mark.s3


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    s3fs = pytest.importorskip("s3fs")
    server.start()
    _, port = server.get_host_and_port()
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
