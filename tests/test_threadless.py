"""Where no thread can be started, one piece of work follows the other, with the same bytes and the same words."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import FIXTURES
from outputs import contents

import ckconv
from ckconv.conversion import write
from ckconv.core.options import Options
from ckconv.errors import VerifyError

RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bump 5": ("gguf/qwen3-tied-bf16.auto.gguf", "m.bump", {}),
    "decoded": ("kquants/llama64.Q4_K_M.gguf", "m/", {"dequantize": True, "max_shard_bytes": 60_000}),
    "gguf": ("hf/llama-tied-bf16", "m.gguf", {}),
}


def converted(what: str, folder: Path) -> Any:
    source, target, options = RUNS[what]
    folder.mkdir()
    to = "safetensors" if target == "m/" else None
    done = ckconv.convert(FIXTURES / source, f"{folder}/{target}", to=to, jobs=3, options=Options(**options))
    files = contents(folder)
    return files, done.verified, done.changed


@pytest.fixture
def threadless(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)


@pytest.mark.parametrize("what", RUNS)
def test_the_output_is_the_same(what: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with_threads = converted(what, tmp_path / "with")
    request.getfixturevalue("threadless")
    assert converted(what, tmp_path / "without") == with_threads


@pytest.mark.usefixtures("threadless")
@pytest.mark.parametrize("what", RUNS)
def test_what_is_wrong_is_found(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = write.write_some

    def flipping(fd: int, data: Any, at: int) -> int:
        return real(fd, bytes([data[0] ^ 1, *data[1:]]), at)

    monkeypatch.setattr(write, "write_some", flipping)
    with pytest.raises(VerifyError):
        converted(what, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
