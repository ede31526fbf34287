"""docs/viewer in a real browser: what it shows is what ``inspect --html`` writes here, and it asks nobody."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Tab, chromium, requests

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "docs/viewer").iterdir())
GGUF = "gguf/llama-tied-bf16.auto.gguf"
SAFETENSORS = "hf/llama-tied-bf16/model.safetensors"
in_a_browser = pytest.mark.needs("pyodide", "chromium")


def test_the_page_is_small_and_names_no_other_place() -> None:
    assert [path.name for path in FILES] == ["index.html", "viewer.js", "worker.js"]
    assert sum(path.stat().st_size for path in FILES) < 12_000
    assert not [path.name for path in FILES if re.search(r"https?:|//\w+\.\w", path.read_text())]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("served")
    command = [sys.executable, ROOT / "scripts/viewer.py", folder, "--pyodide", os.environ["PYODIDE"], "--serve", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.terminate()


@pytest.fixture(scope="module")
def tab(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """The page; whatever is done with it, no other machine is asked for anything."""
    place = tmp_path_factory.mktemp("browser")
    with chromium(place) as tab:
        begin(tab, address)
        yield tab
    asked = requests(place)
    assert {f"{address}{name}" for name in ("ckconv.whl", "click.whl", "pyodide/python_stdlib.zip")} <= asked
    assert not [url for url in asked if not url.startswith(address)]


def begin(tab: Tab, address: str) -> None:
    tab.open(address)
    tab.until("document.querySelector('#status').textContent === 'Ready.'")


def shown(tab: Tab, name: str) -> str:
    tab.until(f"document.querySelector('#status').textContent.startsWith('{name}: ')")
    assert tab.value("document.querySelector('#error').textContent") == ""
    return str(tab.value("document.querySelector('#page').srcdoc"))


def expected(tmp_path: Path, *sources: Path) -> str:
    """What ckconv writes here of the same files in a folder of the same name, with what Pyodide has of packages."""
    (tmp_path / "model").mkdir()
    for source in sources:
        (tmp_path / "model" / source.name).write_bytes(source.read_bytes())
    path = f"model/{sources[0].name}" if len(sources) == 1 else "model"
    command = [sys.executable, "-m", "ckconv", "inspect", path, "--html", "here.html"]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    return (tmp_path / "here.html").read_text("utf-8")


@in_a_browser
@pytest.mark.parametrize("name", [GGUF, SAFETENSORS])
def test_a_dropped_file_is_shown_as_inspect_shows_it(tab: Tab, fixtures: Path, tmp_path: Path, name: str) -> None:
    tab.drop(fixtures / name)
    assert shown(tab, Path(name).name) == expected(tmp_path, fixtures / name)
    assert tab.value("document.querySelector('#save').download") == f"{Path(name).name}.html"


@in_a_browser
def test_files_of_a_model_are_shown_together(tab: Tab, fixtures: Path, tmp_path: Path) -> None:
    files = sorted((fixtures / "hf/llama-untied-f16-sharded").iterdir())
    tab.choose("#files", *files)
    assert shown(tab, f"{len(files)} files") == expected(tmp_path, *files)


@in_a_browser
def test_of_a_large_file_only_slices_are_read(tab: Tab, tmp_path: Path) -> None:
    size = 6_144_000_000
    header = json.dumps({"w": {"dtype": "F32", "shape": [1_500_000, 1024], "data_offsets": [0, size]}}).encode()
    with (tmp_path / "huge.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    tab.drop(tmp_path / "huge.safetensors")
    assert "1500000 x 1024" in shown(tab, "huge.safetensors")
    said = tab.value("document.querySelector('#status').textContent")
    assert re.fullmatch(r"huge\.safetensors: at most [\d.]+ k?B of 6\.1 GB were read\.", said)


@in_a_browser
def test_an_example_is_shown_and_compared_with_another_model(tab: Tab, address: str, fixtures: Path) -> None:
    begin(tab, address)
    tab.value("document.querySelector('#example').click()")
    shown(tab, "example.gguf")
    tab.choose("#others", fixtures / GGUF)
    tab.until(f"document.querySelector('#status').textContent.startsWith('example.gguf and {Path(GGUF).name}: ')")
    rows = str(tab.value("document.querySelector('#changes').innerText"))
    assert "rms_norm" not in rows
    assert "token_embedding.weight" in rows
    assert "BF16 384 x 64" in rows
    tab.choose("#others", fixtures / "kquants/llama64.Q4_K_M.gguf")
    tab.until("document.querySelector('#status').textContent.includes('no differences in names')")
    assert tab.value("document.querySelector('#changes').hidden")


@in_a_browser
@pytest.mark.parametrize("name", ["lora/llama-r4-attn-mlp", "mlx/qwen3-tied-bf16.q4g64"])
def test_every_directory_that_inspect_takes_is_shown(tab: Tab, fixtures: Path, tmp_path: Path, name: str) -> None:
    if not (fixtures / name).is_dir():
        name = next(
            path.relative_to(fixtures).as_posix() for path in sorted((fixtures / "mlx").iterdir()) if path.is_dir()
        )
    files = [path for path in sorted((fixtures / name).iterdir()) if path.is_file()]
    card = tmp_path / "card" / "README.md"
    card.parent.mkdir()
    card.write_text("---\nlicense: mit\nbase_model: someone/llama\n---\n# A model\n")
    files = [path for path in files if path.name != card.name] + [card]
    tab.choose("#files", *files)
    assert "Types by layer" in shown(tab, f"{len(files)} files") or "rank" in shown(tab, f"{len(files)} files")


@in_a_browser
def test_what_is_no_model_is_an_error_and_the_next_file_is_shown(tab: Tab, fixtures: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no model")
    (tmp_path / "cut.gguf").write_bytes((fixtures / GGUF).read_bytes()[:5000])
    for name, code in (("notes.txt", "input.format"), ("cut.gguf", "gguf.")):
        tab.drop(tmp_path / name)
        said = tab.until(f"[document.querySelector('#error').textContent].find(text => text.includes('{name}'))")
        assert said.startswith(f"ckconv: error[{code}")
        assert "\n" not in said
        assert tab.value("document.querySelector('#page').hidden")
    tab.drop(fixtures / GGUF)
    assert "Types by layer" in shown(tab, Path(GGUF).name)


@in_a_browser
def test_the_page_is_used_by_keyboard_and_read_by_a_screen_reader(tab: Tab, address: str, fixtures: Path) -> None:
    begin(tab, address)
    tab.drop(fixtures / GGUF)
    shown(tab, Path(GGUF).name)
    for element in ("files", "example", "save", "others", "page"):
        tab.press("Tab")
        tab.until(f"document.activeElement.id === '{element}'")
    told = {
        (node["role"]["value"], node["name"]["value"])
        for node in tab.call("Accessibility.getFullAXTree")["nodes"]
        if not node["ignored"] and "name" in node
    }
    assert ("button", "Drop a file here, or the files of one model, or choose them:") in told
    assert ("link", "Save this page") in told
    assert ("Iframe", "What the model has") in told
    assert [node for node in told if node[0] == "StaticText" and f"{Path(GGUF).name}: " in node[1]]


@in_a_browser
@pytest.mark.parametrize(("scheme", "ground"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 20, 20)")])
def test_light_and_dark(tab: Tab, scheme: str, ground: str) -> None:
    tab.prefer(scheme)
    assert tab.value("getComputedStyle(document.body).backgroundColor") == ground


@in_a_browser
def test_what_a_model_says_of_itself_runs_nothing(tab: Tab) -> None:
    assert tab.value("document.querySelector('#page').sandbox.length") == 0
    assert tab.value("document.querySelector('#page').hasAttribute('sandbox')")
