"""Pages that need nothing else, no script, no font, no request to anywhere; and what ``inspect`` knows as one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from ckconv.cli.describe import Description
from ckconv.cli.layermap import LayerMap, layer_map, marks
from ckconv.cli.overview import as_rows
from ckconv.cli.render import container
from ckconv.errors import OutputError, UsageError, counted
from ckconv.formats.destination import STDOUT
from ckconv.publish.checks import check_parent
from ckconv.publish.files import close_written, create, failing, removed

#: Grounds of the types, light and dark, told apart by who does not see red and green apart, too; each cell has its
#: character besides. What is written on them stands out by 7:1 at least.
COLORS = (
    ("#9bd3f5", "#0b4f76"), ("#f7d488", "#5c4300"), ("#e3b5f0", "#5f2472"), ("#b8c4ff", "#2b3a8c"),
    ("#b5e3b0", "#1f5219"), ("#ffb9a8", "#7a2413"), ("#d3d3d3", "#4a4a4a"),
)  # fmt: skip

#: Grounds of differences, light and dark, from none to the largest; a cell has its number besides.
SHADES = (
    ("#f4f4f4", "#1e1e1e"), ("#e3eefa", "#1c2b36"), ("#cfe2f5", "#183648"), ("#b5d3f0", "#143f59"),
    ("#9bc4ea", "#0f4768"), ("#82b4e4", "#0b4f76"),
)  # fmt: skip

#: How many there are.
LEVELS = len(SHADES)

_STYLE = """
:root{color-scheme:light dark;--page:#fff;--ink:#1a1a1a;--line:#8a8a8a;--soft:#f2f2f2;LIGHT}
@media (prefers-color-scheme:dark){:root{--page:#141414;--ink:#f0f0f0;--line:#8a8a8a;--soft:#242424;DARK}}
body{background:var(--page);color:var(--ink);font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:75rem;
padding:1rem}
table{border-collapse:collapse}caption{text-align:left}
th,td{border-bottom:1px solid var(--line);padding:.2rem .6rem;text-align:left;vertical-align:top}
td{overflow-wrap:anywhere}td.n{text-align:right;white-space:nowrap}thead th{background:var(--soft)}
.wide{overflow-x:auto}.wide:focus-visible,summary:focus-visible,a:focus-visible{outline:3px solid var(--ink)}
.map th,.map td{border:1px solid var(--page);padding:0 .25rem;text-align:center;font-family:ui-monospace,monospace}
.map tbody th,.map thead th:first-child{text-align:left;font-weight:normal}
.key{display:inline-block;font-family:ui-monospace,monospace;margin-right:.3rem;min-width:1.4rem;text-align:center}
ul.keys{list-style:none;padding:0}ul.keys li{display:inline-block;margin-right:1.2rem}
summary{cursor:pointer;font-size:1.2rem}
.bar rect{fill:var(--ink)}
"""

_REPLACES_NOTHING = "already exists, and a page never replaces a file"

#: No browser asks anybody for anything, whatever a model has in its metadata.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def write_page(path: Path, description: Description) -> None:
    """Write the page of a model to a new file; see :func:`write`."""
    write(path, page(description))


def check_new(path: Path) -> None:
    """Refuse what :func:`write` would, before anything is done.

    Raises:
        UsageError, OutputError: see there.
    """
    if str(path) == STDOUT:
        raise UsageError("usage.target", "a page goes to a file, not to stdout")
    if os.path.lexists(path):
        raise OutputError("output.exists", _REPLACES_NOTHING, path=path)


def check_place(path: Path, outputs: Iterable[Path]) -> None:
    """Refuse a page that has no place when ``outputs`` are there.

    Raises:
        UsageError: ``usage.target``, a file would be both.
        OutputError: ``output.parent``; ``output.write``, nobody may write there.
    """
    taken = {os.path.realpath(other) for other in outputs}
    if os.path.realpath(path) in taken:
        message = f"{path} would be both the page and a file of the output"
        raise UsageError("usage.target", message, hint="name another FILE for --html")
    if os.path.realpath(path.parent) in taken and not path.parent.exists():
        return  # it is made with the output
    check_parent(path)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutputError("output.write", "cannot be written: nobody may make a file there", path=path)


def write(path: Path, text: str) -> None:
    """Write a page to a new file.

    Raises:
        UsageError: ``usage.target``, it is stdout.
        OutputError: ``output.exists``, ``output.parent``, ``output.write``, ``output.space``.
    """
    check_new(path)
    check_parent(path)
    content = text.encode("utf-8", "backslashreplace")
    with failing(path):
        try:
            fd = create(path)
        except FileExistsError:
            raise OutputError("output.exists", _REPLACES_NOTHING, path=path) from None
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(content)
            close_written(fd)
        except BaseException:
            removed(path)
            raise


def page(description: Description) -> str:
    """The whole page of a model."""
    return framed(description.overview.name, _parts(description))


def framed(title: str, body: Iterable[str]) -> str:
    """A whole page."""
    return "\n".join([*_head(escape(title)), *body, "</main>\n</body>\n</html>"]) + "\n"


def _head(title: str) -> Iterator[str]:
    style = _STYLE
    grounds = {f"t{n}": pair for n, pair in enumerate(COLORS)} | {f"e{n}": pair for n, pair in enumerate(SHADES)}
    for mode, word in enumerate(("LIGHT", "DARK")):
        style = style.replace(word, ";".join(f"--{name}:{pair[mode]}" for name, pair in grounds.items()))
    style += "".join(f".{name}{{background:var(--{name})}}" for name in grounds)
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>"


def _parts(found: Description) -> Iterator[str]:
    index = found.index
    facts = [
        ("format", container(index.format, index.version)),
        ("architecture", index.architecture or ""),
        *as_rows(found.overview),
    ]
    facts += [("parameters", index.parameters), ("bytes", index.nbytes)]
    facts += [("carries", hazard) for hazard in found.hazards]
    yield from table("What it is", ("fact", "value"), [row for row in facts if row[1] != ""], heading=True)
    if found.targets:
        rows = [
            (target.name, "no" if target.reasons else "yes", "; ".join(reason.text for reason in target.reasons))
            for target in found.targets
        ]
        yield from table("Where it can go", ("target", "converts", "reasons"), rows, heading=True)
    yield from mapped(layer_map(index.tensors), "Types by layer", "map")
    yield from table("Types", ("type", "tensors", "bytes"), found.types, heading=True)
    stored = [
        (t.name, found.canonical(t), t.dtype.name, " x ".join(map(str, t.shape)), t.extent.nbytes) for t in found.shown
    ]
    yield from folded(counted(len(stored), "tensor"), ("name", "canonical name", "type", "shape", "bytes"), stored)
    metadata = list(found.metadata())
    yield from folded(counted(len(metadata), "metadata key"), ("key", "type", "value"), metadata)


def mapped(table: LayerMap, title: str, anchor: str) -> Iterator[str]:
    """The types of roles by layer; a cell says its type to who cannot see its color."""
    label = escape(title)
    if not table.rows:
        return
    mark = marks(table.types)
    ground = {name: f"t{number % len(COLORS)}" for number, name in enumerate(table.types)}
    yield f'<section aria-labelledby="{anchor}"><h2 id="{anchor}">{label}</h2>\n<ul class="keys">'
    for name in table.types:
        yield f'<li><span class="key {ground[name]}" aria-hidden="true">{escape(mark[name])}</span>{escape(name)}</li>'
    yield f'</ul>\n<div class="wide" tabindex="0" role="region" aria-label="{label}">\n<table class="map">'
    numbers = "".join(f'<th scope="col">{layer}</th>' for layer in table.layers)
    yield f'<thead><tr><th scope="col">role</th>{numbers}</tr></thead>\n<tbody>'
    for role, row in table.rows.items():
        cells = (
            f'<td class="{ground[name]}"><abbr title="{escape(name)}" aria-label="{escape(name)}">'
            f"{escape(mark[name])}</abbr></td>"
            if name
            else '<td aria-label="none"></td>'
            for name in row
        )
        yield f'<tr><th scope="row">{escape(role)}</th>{"".join(cells)}</tr>'
    yield "</tbody></table></div></section>"


def folded(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """A long table that opens when it is asked for."""
    yield f"<details><summary>{escape(title)}</summary>"
    yield from table(title, head, rows)
    yield "</details>"


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]], *, heading: bool = False) -> Iterator[str]:
    """A table that scrolls where it is wider than the page."""
    label = escape(title)
    yield f"<h2>{label}</h2>" if heading else ""
    yield f'<div class="wide" tabindex="0" role="region" aria-label="{label}">\n<table><thead><tr>'
    yield "".join(f'<th scope="col">{escape(name)}</th>' for name in head) + "</tr></thead>\n<tbody>"
    for first, *rest in rows:
        cells = "".join(
            f'<td class="n">{cell:,}</td>' if isinstance(cell, int) else f"<td>{escape(str(cell))}</td>"
            for cell in rest
        )
        yield f'<tr><th scope="row">{escape(str(first))}</th>{cells}</tr>'
    yield "</tbody></table></div>"
