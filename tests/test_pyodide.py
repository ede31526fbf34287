"""Without threads, hard links, numpy and rich: as in Pyodide, here and in Node."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODEL, GEMMA = "llama-tied-bf16.auto.gguf", "gemma3-text-bf16.auto.gguf"
QUANTIZED = "llama64.Q4_K_M.gguf"

#: Runs a command line where nothing of what Pyodide lacks can be had.
BARE = """
import os, sys
del os.link
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "rich", "safetensors", "gguf", "tqdm"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
import _thread
def start(*_):
    raise RuntimeError("can't start new thread")
_thread.start_new_thread = start
from ckconv.cli import run
sys.exit(run(sys.argv[1:]))
"""

#: The same in Node, with the folders of ckconv, click and the models mounted.
NODE = """
const [pyodide, ckconv, packages, work, ...args] = process.argv.slice(2);
const { loadPyodide } = await import(`${pyodide}/pyodide.mjs`);
const py = await loadPyodide();
for (const [at, root] of [["/ckconv", ckconv], ["/packages/click", packages], ["/work", work]]) {
  py.FS.mkdirTree(at);
  py.FS.mount(py.FS.filesystems.NODEFS, { root }, at);
}
process.exit(py.runPython(`
import os, sys
sys.path[:0] = ["/ckconv", "/packages"]
os.chdir("/work")
from ckconv.cli import run
run(${JSON.stringify(args)})`));
"""


@pytest.fixture(params=["here", pytest.param("node", marks=pytest.mark.needs("pyodide"))])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ran(way: str, work: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    if way == "here":
        command = [sys.executable, "-c", BARE, *arguments]
    else:
        (work / "run.mjs").write_text(NODE)
        click = importlib.util.find_spec("click")
        assert click is not None
        assert click.origin is not None
        folders = [os.environ["PYODIDE"], str(ROOT), str(Path(click.origin).parent), str(work)]
        command = ["node", "run.mjs", *folders, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CKCONV_PORTABLE": "1", "CKCONV_NO_THREADS": "1"}
    return subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def work(fixtures: Path, tmp_path: Path) -> Path:
    (tmp_path / MODEL).write_bytes((fixtures / "gguf" / MODEL).read_bytes())
    return tmp_path


def test_a_model_is_shown(way: str, work: Path) -> None:
    done = ran(way, work, "inspect", MODEL, "--json")
    assert (done.returncode, json.loads(done.stdout)["architecture"]) == (0, "llama"), done.stderr
    assert ran(way, work, "inspect", MODEL, "--html", "page.html").returncode == 0
    assert "Types by layer" in (work / "page.html").read_text()


def test_a_copy_is_written_read_again_and_verified(way: str, work: Path, fixtures: Path) -> None:
    done = ran(way, work, "convert", MODEL, "out.gguf", "--record", "--checksums")
    assert (done.returncode, "verified 20/20" in done.stdout) == (0, True), done.stderr
    there = subprocess.run(
        [sys.executable, "-m", "ckconv", "convert", MODEL, "same.gguf", "-q"],
        cwd=work,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert there.returncode == 0
    assert (work / "out.gguf").read_bytes() == (work / "same.gguf").read_bytes()
    assert ran(way, work, "verify", "out.gguf").returncode == 0
    again = ran(way, work, "convert", MODEL, "out.gguf")
    assert (again.returncode, "output.exists" in again.stderr) == (6, True)


@pytest.mark.parametrize("arguments", [("convert", MODEL, "out.bump"), ("diff", MODEL, "other.gguf")])
def test_what_computes_says_what_it_needs(way: str, work: Path, fixtures: Path, arguments: tuple[str, ...]) -> None:
    data = (fixtures / "kquants" / QUANTIZED).read_bytes()
    (work / QUANTIZED).write_bytes(data)
    (work / "other.gguf").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    done = ran(way, work, *arguments)
    assert (done.returncode, "error[system.package]: this needs the package numpy" in done.stderr) == (4, True)
    assert not (work / "out.bump").exists()
    assert not [path for path in work.iterdir() if path.name.startswith(".")]
