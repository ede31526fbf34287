"""Write docs/screenshots: what real terminals (tmux) show, as SVG, and pages in Chromium, where there is one.

With --pyodide FOLDER the viewer, too.
"""

from __future__ import annotations

import argparse
import io
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from html import escape
from pathlib import Path

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]

PICTURES = ROOT / "docs/screenshots"
MODELS = ("kquants/llama64.Q4_K_M.gguf", "gguf/llama-tied-bf16.auto.gguf")
MODEL, SOURCE = (Path(name).name for name in MODELS)

#: Name of a picture -> what is typed, in this order, in one folder.
COMMANDS = {
    "inspect": f"ckconv inspect {MODEL}",
    "dry-run": f"ckconv convert {SOURCE} model.bump --dry-run",
    "convert": f"ckconv convert {SOURCE} model.bump",
    "verify": f"ckconv verify model.bump {SOURCE}",
    "diff": f"ckconv diff model.bump {SOURCE}",
}

WIDTHS = (80, 120)

#: Those of a terminal, by number.
COLORS = ("ink", "red", "green", "yellow", "blue", "magenta", "cyan", "ink")

#: As light or dark as the reader's system is.
STYLE = """
:root{--ground:#fff;--ink:#1a1a1a;--soft:#595959;--red:#a40000;--green:#1b6b16;--yellow:#7a5200;--blue:#1c4fb0;
--magenta:#7a2a8a;--cyan:#00646e}
@media(prefers-color-scheme:dark){:root{--ground:#141414;--ink:#f0f0f0;--soft:#b0b0b0;--red:#ff8a80;--green:#8fdc8a;
--yellow:#f0cf70;--blue:#9dbcff;--magenta:#e3a8f0;--cyan:#7ad9e3}}
rect{fill:var(--ground)}
text{fill:var(--ink);font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre}
"""


def shown(command: str, width: int, place: Path) -> str:
    """What a terminal of ``width`` columns shows of a command, with its colors."""
    with tempfile.TemporaryDirectory() as apart:
        return captured(["tmux", "-S", f"{apart}/socket"], command, width, place)


def captured(tmux: list[str], command: str, width: int, place: Path) -> str:
    """The same, by a server of tmux that is this command's own."""
    words = shlex.join([sys.executable, "-m", *shlex.split(command)])
    # The script ends no sooner than its screen is read: tmux closes a terminal whose command has ended.
    line = f"cd {shlex.quote(str(place))} && PYTHONPATH={shlex.quote(str(ROOT))} {words}; touch done; sleep 100"
    subprocess.run([*tmux, "-f", os.devnull, "new-session", "-d", "-x", str(width), "-y", "100", line], check=True)
    while not (place / "done").exists():
        time.sleep(0.1)
    time.sleep(0.5)  # tmux reads what was written
    screen = subprocess.run([*tmux, "capture-pane", "-e", "-p"], stdout=subprocess.PIPE, text=True, check=True).stdout
    subprocess.run([*tmux, "kill-server"], check=True)
    (place / "done").unlink()
    return screen.rstrip()


def drawn(command: str, screen: str, width: int) -> str:
    """An SVG of a screen: text that can be searched, copied and read aloud."""
    lines = Text.from_ansi(f"\x1b[1m$ {command}\x1b[0m\n{screen}").split("\n")
    high, wide = 20 * len(lines) + 20, 8.5 * width + 20
    console = Console(file=io.StringIO())
    rows = []
    for number, line in enumerate(lines):
        spans = "".join(
            f"<tspan{look(part)}>{escape(part.text)}</tspan>" for part in line.render(console) if part.text != "\n"
        )
        rows.append(f'<text x="10" y="{20 * number + 24}">{spans}</text>\n')
    size = f'viewBox="0 0 {wide:g} {high}" width="{wide:g}" height="{high}"'
    title = f"<title>{escape(command)}, in {width} columns</title>\n"
    ground = f'<rect width="{wide:g}" height="{high}"/>\n'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n{title}<style>{STYLE}</style>\n'
    return f"{head}{ground}{''.join(rows)}</svg>\n"


def look(part: Segment) -> str:
    """Attributes of a run of characters that look alike."""
    if part.style is None:
        return ""
    said = ["font-weight:bold"] if part.style.bold else []
    if part.style.dim:
        said.append("fill:var(--soft)")
    elif part.style.color and part.style.color.number is not None:
        said.append(f"fill:var(--{COLORS[part.style.color.number % 8]})")
    return f' style="{";".join(said)}"' if said else ""


def terminals() -> None:
    """Every command at every width."""
    for width in WIDTHS:
        with tempfile.TemporaryDirectory() as name:
            place = Path(name)
            for model in MODELS:
                shutil.copy(ROOT / "fixtures" / model, place)
            for title, command in COMMANDS.items():
                screen = shown(command, width, place)
                (PICTURES / f"{title}-{width}.svg").write_text(drawn(command, screen, width))


def browser(pyodide: Path) -> None:
    """The viewer with a model in it."""
    from browser import chromium
    from viewer import build, server

    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        build(place / "served", pyodide)
        with server(place / "served", 0) as served:
            threading.Thread(target=served.serve_forever, daemon=True).start()
            with chromium(place) as tab:
                tab.call(
                    "Emulation.setDeviceMetricsOverride", width=1000, height=1700, deviceScaleFactor=1, mobile=False
                )
                tab.open(f"http://127.0.0.1:{served.server_port}/")
                tab.drop(ROOT / "fixtures" / MODELS[0])
                tab.until("!document.querySelector('#page').hidden")
                tab.until("new Promise(drawn => setTimeout(() => drawn(true), 1000))")
                (PICTURES / "viewer.webp").write_bytes(tab.picture(format="webp", quality=60))
            served.shutdown()


#: Name of a picture -> the command that writes a page, with PAGE for where.
PAGES = {
    "page-inspect": f"inspect {MODELS[0]} --html PAGE",
    "page-convert": "convert hf/qwen2-tied-bf16 out.gguf --quantize q8_0 --html PAGE",
    "page-adapter": "inspect lora/llama-r4-attn-mlp --html PAGE",
}


def pages() -> None:
    """Pages of --html, on a wide light screen and on a narrow dark one."""
    from browser import chromium

    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for folder in ("hf", "lora", "kquants"):
            (place / folder).symlink_to(ROOT / "fixtures" / folder)
        with chromium(place / "profile") as tab:
            for title, command in PAGES.items():
                words = shlex.split(command.replace("PAGE", f"{title}.html"))
                environment = {**os.environ, "PYTHONPATH": str(ROOT)}
                subprocess.run([sys.executable, "-m", "ckconv", *words], cwd=place, env=environment, check=True)
                for width, mode in ((1280, "light"), (400, "dark")):
                    scheme = [{"name": "prefers-color-scheme", "value": mode}]
                    tab.call("Emulation.setEmulatedMedia", features=scheme)
                    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
                    tab.call("Emulation.setDeviceMetricsOverride", **size)
                    tab.open((place / f"{title}.html").as_uri())
                    picture = tab.picture(format="webp", quality=50)
                    (PICTURES / f"{title}-{width}.webp").write_bytes(picture)


def main() -> None:
    """Write all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pyodide", type=Path, help="a folder of npm's package pyodide; without it no browser runs")
    arguments = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    terminals()
    if shutil.which("chromium"):
        pages()
    if arguments.pyodide is not None:
        browser(arguments.pyodide)


if __name__ == "__main__":
    main()
