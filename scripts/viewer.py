"""Build the folder that serves docs/viewer: the page, Pyodide, and the wheels of this tree, click and PyYAML."""

from __future__ import annotations

import argparse
import functools
import http.server
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent

#: What pyodide.mjs loads, of npm's package.
PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")

#: The model behind the button of the page.
EXAMPLE = "fixtures/kquants/llama64.Q4_K_M.gguf"


def fetched(place: Path) -> Path:
    """The package pyodide, as npm puts it below ``place``."""
    npm = shutil.which("npm") or sys.exit("npm is not installed; --pyodide names a folder of its package pyodide")
    subprocess.run([npm, "install", "--silent", "--no-save", "--prefix", place, "pyodide"], check=True)
    return place / "node_modules/pyodide"


def build(folder: Path, pyodide: Path | None) -> None:
    """Write all that the page needs to ``folder``, which is made, or made anew where a page of ours is in it."""
    with tempfile.TemporaryDirectory() as place:
        pyodide = pyodide or fetched(Path(place))
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", place]
        subprocess.run([*pip, str(ROOT), "click>=8.1"], check=True)
        (folder / "pyodide").mkdir(parents=True, exist_ok=True)
        for source in (ROOT / "docs/viewer").iterdir():
            shutil.copyfile(source, folder / source.name)
        shutil.copyfile(ROOT / EXAMPLE, folder / "example.gguf")
        for name in PYODIDE:
            shutil.copyfile(pyodide / name, folder / "pyodide" / name)
        for name in ("ckconv", "click"):
            (wheel,) = Path(place).glob(f"{name}-*.whl")
            shutil.copyfile(wheel, folder / f"{name}.whl")
        with zipfile.ZipFile(folder / "yaml.whl", "w", zipfile.ZIP_DEFLATED) as archive:  # without its compiled half
            for source in sorted(Path(yaml.__file__).parent.glob("*.py")):
                archive.write(source, f"yaml/{source.name}")


def server(folder: Path, port: int) -> http.server.ThreadingHTTPServer:
    """A server of ``folder`` for this machine only."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    return http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)


def main() -> None:
    """Build, and serve what was built with --serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where it goes: any web server can serve it as it stands")
    parser.add_argument("--pyodide", type=Path, help="a folder of npm's package pyodide; without it npm fetches one")
    parser.add_argument("--serve", type=int, metavar="PORT", help="then serve it on this machine")
    arguments = parser.parse_args()
    build(arguments.folder, arguments.pyodide)
    if arguments.serve is not None:
        with server(arguments.folder, arguments.serve) as http_server:
            print(f"http://127.0.0.1:{http_server.server_port}/", flush=True)
            http_server.serve_forever()


if __name__ == "__main__":
    main()
