"""Pages of ``--html``: one design, no script, no request.

Light and dark, for screen, paper and screen readers.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ckconv.cli.describe import OUTSIDE, VECTORS, Description, layer_map, marks, overview, role_of, runs
from ckconv.cli.render import container, count, size
from ckconv.core.config import ModelConfig
from ckconv.core.tensors import Tensor, TensorIndex, parse
from ckconv.errors import CkconvError, OutputError, UsageError, VerifyError, counted, shown
from ckconv.formats import destination, detect
from ckconv.plan.probe import norms_of, size_of
from ckconv.publish.files import check_parent, write_whole

if TYPE_CHECKING:
    from ckconv.comparison.compare import Comparison, Difference
    from ckconv.comparison.verify import CheckResult
    from ckconv.conversion.run import Report

#: Grounds of the types, light and dark, told apart by who does not see red and green apart, too; each cell has its
#: character besides. What is written on them stands out by 7:1 at least.
COLORS = (
    ("#9bd3f5", "#0b4f76"), ("#f7d488", "#5c4300"), ("#e3b5f0", "#5f2472"), ("#b8c4ff", "#2b3a8c"),
    ("#b5e3b0", "#1f5219"), ("#ffb9a8", "#7a2413"), ("#d3d3d3", "#4a4a4a"),
)  # fmt: skip

#: Ground of the largest value of a heat map, light and dark; smaller ones are nearer to the page's.
HOT = ("#ffb27a", "#7a3000")

_STYLE = """
:root{color-scheme:light dark;--page:#fff;--ink:#1a1a1a;--line:#767676;--soft:#f2f2f2;LIGHT}
@media screen and (prefers-color-scheme:dark){:root{--page:#141414;--ink:#f0f0f0;--line:#8a8a8a;--soft:#242424;DARK}}
body{background:var(--page);color:var(--ink);font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:80rem;
padding:1rem;overflow-wrap:anywhere}
h1{overflow-wrap:anywhere;margin:.2rem 0}h2{margin:1.6rem 0 .4rem}p{margin:.4rem 0}
.card{display:grid;grid-template-columns:repeat(auto-fit,minmax(11rem,1fr));gap:.6rem;margin:1rem 0}
.card div{background:var(--soft);border-radius:.4rem;padding:.5rem .7rem;overflow-wrap:anywhere}
.card dt{font-size:.85rem}.card dd{margin:0;font-size:1.15rem;font-weight:600}
.verdict{border-left:.5rem solid var(--line);padding:.3rem .8rem;font-size:1.2rem;font-weight:600}
.ok{border-color:#1a7f37}.bad{border-color:#c62828}
table{border-collapse:collapse}th,td{border-bottom:1px solid var(--line);padding:.2rem .6rem;text-align:left;
vertical-align:top;font-weight:normal}
thead th{background:var(--soft);font-weight:600}th,td{overflow-wrap:break-word}.n{text-align:right;white-space:nowrap}
td:last-child{overflow-wrap:anywhere;min-width:8rem}td.n:last-child{min-width:0}
.wide{overflow-x:auto}.wide:focus-visible,summary:focus-visible{outline:3px solid var(--ink)}
ul.keys{list-style:none;padding:0;margin:.3rem 0}ul.keys li{display:inline-block;margin-right:1.2rem}
.key{display:inline-block;font-family:ui-monospace,monospace;margin-right:.3rem;min-width:1.4rem;text-align:center}
.flow{display:flex;flex-wrap:wrap;gap:.6rem}
.flow div{border:1px solid var(--line);border-radius:.4rem;padding:.3rem .7rem}
.flow ul{list-style:none;margin:0;padding:0;font-size:.9rem}
svg{display:block;max-width:none}svg text{fill:var(--ink);font:12px ui-monospace,monospace}
svg rect{stroke:var(--page);stroke-width:.5}.bar rect,circle{fill:var(--ink)}.hot{fill:var(--hot)}.fault{fill:#c62828}
polyline{fill:none;stroke:var(--ink);stroke-width:2}.axis{stroke:var(--line)}
.tree{width:100%;min-width:44rem;height:auto}.sizes{width:100%;height:24px}
summary{cursor:pointer;font-size:1.2rem;margin-top:.6rem}
@media print{.wide{overflow:visible}svg{max-width:100%}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""

#: No browser asks anybody for anything, whatever a model has in its metadata.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

#: Rows of a long table that are open: the rest opens when it is asked for.
_OPEN = 40

#: Sizes of pictures in pixels: the treemap, the cells of a map, the column of names before them, the line below.
_WIDTH, _HEIGHT, _CELL, _NAMES, _LINE = 1000.0, 300.0, 20, 170, 80

_PAGE_BEGINS = b"<!DOCTYPE html>"


# Where a page goes.


def check_new(path: Path, *, force: bool = False) -> None:
    """Refuse what :func:`write` would, before anything is done."""
    if str(path) == destination.STDOUT:
        raise UsageError("usage.target", "a page goes to a file, not to stdout")
    if not os.path.lexists(path):
        return
    if not path.is_file() or path.is_symlink() or not _is_page(path):
        text = "already exists and is no page: --force replaces pages only"
        raise OutputError("output.exists", text, path=path, hint="name another FILE for --html")
    if not force:
        raise OutputError("output.exists", "already exists", path=path, hint="--force replaces a page")


def _is_page(path: Path) -> bool:
    with path.open("rb") as file:  # it may be a model
        return file.read(len(_PAGE_BEGINS)) == _PAGE_BEGINS


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


def write(path: Path, text: str, *, force: bool = False) -> None:
    """Write a page to a new file, or over an older page.

    Raises:
        UsageError: ``usage.target``, it is stdout.
        OutputError: ``output.exists``, ``output.parent``, ``output.write``, ``output.space``.
    """
    check_new(path, force=force)
    check_parent(path)
    write_whole(path, text.encode("utf-8", "backslashreplace"))


# Pieces of a page.


def framed(title: str, body: Iterable[str]) -> str:
    """A whole page."""
    style = _STYLE
    grounds = {f"t{n}": pair for n, pair in enumerate(COLORS)} | {"hot": HOT}
    for mode, word in enumerate(("LIGHT", "DARK")):
        style = style.replace(word, ";".join(f"--{name}:{pair[mode]}" for name, pair in grounds.items()))
    style += "".join(f".t{n}{{background:var(--t{n});fill:var(--t{n})}}" for n in range(len(COLORS)))
    head = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>"
    )
    return "\n".join([head, *body, "</main>\n</body>\n</html>"]) + "\n"


def card(facts: Iterable[tuple[str, str]]) -> str:
    """The headline: a few facts, each in a box."""
    boxes = (f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in facts if text)
    return f'<dl class="card">{"".join(boxes)}</dl>'


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]], *, heading: bool = False) -> Iterator[str]:
    """A table that scrolls where it is wider than the page."""
    label, rows = escape(title), [*rows]
    numbers = [bool(rows) and all(_is_number(row[at]) for row in rows if at < len(row)) for at in range(len(head))]
    looks = [' class="n"' if number and at else "" for at, number in enumerate(numbers)]
    yield f"<h2>{label}</h2>" if heading else ""
    yield f'<div class="wide" tabindex="0" role="region" aria-label="{label}">\n<table><thead><tr>'
    heads = (f'<th scope="col"{look}>{escape(name)}</th>' for name, look in zip(head, looks, strict=True))
    yield "".join(heads) + "</tr></thead>\n<tbody>"
    for first, *rest in rows:
        texts = (f"{cell:,}" if isinstance(cell, int) else escape(str(cell)) for cell in rest)
        cells = "".join(f"<td{look}>{text}</td>" for text, look in zip(texts, looks[1:], strict=False))
        yield f'<tr><th scope="row">{escape(str(first))}</th>{cells}</tr>'
    yield "</tbody></table></div>"


def _is_number(cell: object) -> bool:
    return isinstance(cell, int) or re.fullmatch(r"[\d,.]+(e[-+]\d+)?( %| [kMGT]?B)?", str(cell)) is not None


def folded(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """A long table that opens when it is asked for."""
    yield f"<details><summary>{escape(title)}</summary>"
    yield from table(title, head, rows)
    yield "</details>"


def _long(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield from table(title, head, rows, heading=True) if len(rows) <= _OPEN else folded(title, head, rows)


def _picture(title: str, anchor: str, drawn: str, label: str, before: str = "") -> Iterator[str]:
    """Picture with heading in a scrolling frame; ``label`` says it in words."""
    yield f'<h2 id="{anchor}">{escape(title)}</h2>{before}'
    yield f'<div class="wide" tabindex="0" role="region" aria-label="{escape(title)}">'
    named = f'<svg role="img" aria-label="{escape(label)}"'
    yield f"{drawn.replace('<svg', named, 1)}</div>"


def _box(x: float, y: float, wide: float, high: float, look: str, title: str) -> str:
    place = f'x="{x:.2f}" y="{y:.2f}" width="{wide:.2f}" height="{high:.2f}"'
    return f"<rect {place} {look}><title>{escape(title)}</title></rect>"


class Cell(NamedTuple):
    """Cell of a map: look (attributes), character, and tooltip."""

    look: str
    mark: str
    title: str


def grid(rows: Mapping[str, Mapping[int, Cell]], layers: Sequence[int]) -> str:
    """SVG map: a row per role, a column per layer (-1: outside of layers)."""
    columns = {layer: _NAMES + _CELL * n for n, layer in enumerate(layers)}
    columns[-1] = _NAMES
    wide, high = _NAMES + _CELL * max(len(layers), 1) + 2, _CELL * (len(rows) + 1) + 4
    parts = [
        f'<text x="{columns[layer] + _CELL / 2:.0f}" y="14" text-anchor="middle">{layer}</text>'
        for n, layer in enumerate(layers)
        if n % 5 == 0
    ]
    for number, (role, cells) in enumerate(rows.items(), 1):
        y = _CELL * number
        parts.append(f'<text x="0" y="{y + 15}">{escape(role)}</text>')
        for layer, cell in cells.items():
            parts.append(_box(columns[layer], y, _CELL, _CELL, cell.look, cell.title))
            if cell.mark:
                x = columns[layer] + _CELL / 2
                parts.append(f'<text x="{x:.0f}" y="{y + 15}" text-anchor="middle">{escape(cell.mark)}</text>')
    return f'<svg width="{wide}" height="{high}">{"".join(parts)}</svg>'


def _line(name: str, values: Mapping[int, float], layers: Sequence[int]) -> str:
    """Curve of a number per layer below a map, whose label has the numbers."""
    top, foot = max(values.values()), _LINE + 12
    ends = ((12.0, f"{top:.2g}"), (float(foot), "0"))
    parts = [f'<text x="0" y="{foot}">{escape(name)}</text>']
    for y, text in ends:
        parts.append(f'<text x="{_NAMES - 6}" y="{y + 4:.0f}" text-anchor="end">{text}</text>')
        parts.append(f'<path class="axis" d="M{_NAMES} {y:.0f}h{_CELL * len(layers)}"/>')
    points = {}
    for number, layer in enumerate(layers):
        if layer in values:
            points[layer] = (_NAMES + _CELL * (number + 0.5), 12 + _LINE * (1 - values[layer] / top))
    parts.append(f'<polyline points="{" ".join(f"{x:.0f},{y:.1f}" for x, y in points.values())}"/>')
    for layer, (x, y) in points.items():
        title = f"<title>{escape(f'layer {layer}: {values[layer]:.3g}')}</title>"
        parts.append(f'<circle cx="{x:.0f}" cy="{y:.1f}" r="3.5">{title}</circle>')
        turned = f'transform="translate({x + 4:.0f} {foot + 8}) rotate(-90)" text-anchor="end"'
        parts.append(f"<text {turned}>{values[layer]:.3g}</text>")
    size = f'width="{_NAMES + _CELL * max(len(layers), 1) + 2}" height="{foot + 76}"'
    return f'<svg aria-hidden="true" {size}>{"".join(parts)}</svg>'


def _grounds(*models: TensorIndex) -> dict[str, str]:
    """Type -> class of its color, the same on a whole page."""
    types = dict.fromkeys(t.dtype.name for index in models for t in index.everything.values())
    return {name: f"t{number % len(COLORS)}" for number, name in enumerate(types)}


def _legend(grounds: Mapping[str, str]) -> str:
    keys = (
        f'<li><span class="key {grounds[name]}" aria-hidden="true">{escape(mark)}</span>{escape(name)}</li>'
        for name, mark in marks(tuple(grounds)).items()
    )
    return f'<ul class="keys">{"".join(keys)}</ul>'


def _treemap(index: TensorIndex, grounds: Mapping[str, str]) -> str:
    """Bytes as areas: layers are columns, roles are boxes."""
    columns: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    samples: dict[tuple[str, str, str], Tensor] = {}
    for name, tensor in index.everything.items():
        pattern, layer, _ = parse(name)
        group = f"layer {layer}" if layer is not None else OUTSIDE.get(name, "other")
        role = (
            role_of(pattern) if layer is not None and len(tensor.shape) > 1 else VECTORS if layer is not None else name
        )
        columns[group][role, tensor.dtype.name] += tensor.nbytes
        samples[group, role, tensor.dtype.name] = tensor
    total = sum(sum(column.values()) for column in columns.values()) or 1
    ends = {"embedding": -1, "other": 1, "head": 2}
    x, parts = 0.0, []
    for group, column in sorted(columns.items(), key=lambda item: ends.get(item[0], 0)):
        wide, y = _WIDTH * sum(column.values()) / total, 0.0
        for (role, dtype), nbytes in column.items():
            high = _HEIGHT * nbytes / (sum(column.values()) or 1)
            shape = " x ".join(map(str, samples[group, role, dtype].shape))
            title = f"{group}, {role}: {dtype}, {shape}, {size(nbytes)}"
            parts.append(_box(x, y, wide, high, f'class="{grounds[dtype]}"', title))
            label = f"{OUTSIDE.get(role, role)} {dtype}"
            if wide > 7.4 * len(label) and high > 15:
                parts.append(f'<text x="{x + 4:.1f}" y="{y + 13:.1f}">{escape(label)}</text>')
            y += high
        x += wide
    return f'<svg class="tree" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}">{"".join(parts)}</svg>'


def _types_of(index: TensorIndex) -> Counter[str]:
    """Type -> bytes."""
    found: Counter[str] = Counter()
    for tensor in index.everything.values():
        found[tensor.dtype.name] += tensor.nbytes
    return found


def _models(sides: Sequence[Side], grounds: Mapping[str, str]) -> Iterator[str]:
    """Pictures of each model: bytes as areas, types by layer."""
    for number, (title, index) in enumerate(sides):
        behind = f": {title}" if len(sides) > 1 else ""
        if not index.everything:
            continue
        sizes = ", ".join(f"{name} {size(nbytes)}" for name, nbytes in _types_of(index).most_common())
        yield from _picture(f"Bytes{behind}", f"tree{number}", _treemap(index, grounds), sizes, _legend(grounds))
        found = layer_map(index.everything)
        if not found.layers:
            continue
        mark = marks(tuple(grounds))
        rows: dict[str, dict[int, Cell]] = {
            role: {-1: Cell(f'class="{grounds[name]}"', mark[name], f"{role}: {name}")}
            for role, name in found.outside.items()
        }
        for role, row in found.rows.items():
            rows[role] = {
                layer: Cell(f'class="{grounds[name]}"', mark[name], f"layer {layer}, {role}: {name}")
                for layer, name in zip(found.layers, row, strict=True)
                if name
            }
        words = {
            role: "; ".join(
                f"{name} in {runs([n for n, has in zip(found.layers, row, strict=True) if has == name])}"
                for name in dict.fromkeys(filter(None, row))
            )
            for role, row in found.rows.items()
        }
        label = ". ".join(f"{role}: {text}" for role, text in words.items())
        yield from _picture(f"Types by layer{behind}", f"map{number}", grid(rows, found.layers), label)


def _one_layer(index: TensorIndex) -> Iterator[str]:
    """Matrices of the first layer with shapes, by block."""
    blocks: dict[str, list[str]] = defaultdict(list)
    first = next((layer for name in index.tensors if (layer := parse(name).layer) is not None), None)
    for name, tensor in index.tensors.items():
        pattern, layer, expert = parse(name)
        if layer == first is not None and not expert:
            block, _, rest = role_of(pattern).partition(".")
            times = f", {index.config.num_experts} experts" if expert is not None and index.config else ""
            shape = " x ".join(map(str, tensor.shape))
            blocks[block].append(f"{rest or block}: {shape}, {tensor.dtype.name}{times}")
    if blocks and index.config is not None:
        yield f"<h2>One layer of {index.config.num_layers:,}</h2>\n" + '<div class="flow">'
        for block, lines in blocks.items():
            items = "".join(f"<li>{escape(line)}</li>" for line in lines)
            yield f"<div><strong>{escape(block)}</strong><ul>{items}</ul></div>"
        yield "</div>"


# The page of one model.


def page(found: Description) -> str:
    """The page of ``inspect``."""
    return framed(found.overview.name, _parts(found))


def _layers(config: ModelConfig) -> str:
    """Number of layers, and how wide they are."""
    return f"{config.num_layers:,}, hidden {config.hidden_size:,}, {counted(config.num_heads, 'head')}"


def _parts(found: Description) -> Iterator[str]:
    index, o, grounds = found.index, found.overview, _grounds(found.index)
    config = index.config
    template = {None: "", True: "yes", False: "no"}[o.template]
    yield card(
        [
            ("file", index.path.name),
            ("format", container(index.format, index.version, "v")),
            ("architecture", index.architecture if index.adapter is None else f"{index.adapter.method} adapter"),
            ("parameters", count(o.parameters)),
            ("size", size(index.nbytes)),
            ("types", o.types),
            ("bits per weight", f"{o.bits:.2f}" if o.bits else ""),
            ("layers", _layers(config) if config else ""),
            ("context", f"{o.context:,} tokens" if o.context else ""),
            ("tokenizer", o.tokenizer),
            ("chat template", template if index.adapter is None else ""),
            *(("template does", text) for text in o.abilities[:1]),
            ("license", o.card.license_name or o.card.license),
            ("base model", ", ".join(o.card.base_models) or (index.adapter.base_name if index.adapter else "")),
            *_of_all(found),
            ("languages", ", ".join(o.card.languages)),
            ("carries", "; ".join(map(str, found.hazards))),
            *((f"KV cache, {cache.tokens:,} tokens", size(cache.nbytes)) for cache in o.caches),
            *((f"weights and cache, {c.tokens:,} tokens", size(index.nbytes + c.nbytes)) for c in o.caches[-1:]),
        ]
    )
    if found.targets:
        rows = [
            (
                target.name,
                "no" if target.reasons else "yes",
                "; ".join(
                    [*(f"{r.text} ({r.hint})" if r.hint else r.text for r in target.reasons), *target.notes]
                ),
            )
            for target in found.targets
        ]  # fmt: skip
        yield from table("Where it can go", ("target", "converts", "reasons and notes"), rows, heading=True)
    yield from _adapter(found)
    yield from _models([Side("", index)], grounds)
    yield from _one_layer(index)
    total = index.nbytes or 1
    types = [(name, tensors, size(nbytes), f"{100 * nbytes / total:.1f} %") for name, tensors, nbytes in found.types]
    yield from table("Types", ("type", "tensors", "size", "share"), types, heading=True)
    stored = [
        (t.name, found.canonical(t), t.dtype.name, " x ".join(map(str, t.shape)), t.extent.nbytes) for t in found.shown
    ]
    yield from folded(counted(len(stored), "tensor"), ("name", "canonical name", "type", "shape", "bytes"), stored)
    metadata = list(found.metadata())
    yield from folded(counted(len(metadata), "metadata key"), ("key", "type", "value"), metadata)


def _of_all(found: Description) -> Iterator[tuple[str, str]]:
    """Rank, alpha and scale of all modules, from the least to the largest."""
    columns = list(zip(*found.modules, strict=True))[3:6] if found.index.adapter is not None else []
    for name, values in zip(("rank", "alpha", "scale"), columns, strict=False):
        known = sorted({float(value) for value in values if _is_number(value)})
        yield name, f"{known[0]:g}" + (f" to {known[-1]:g}" if len(known) > 1 else "") if known else ""


def _adapter(found: Description) -> Iterator[str]:
    """Modules of an adapter, with the norms of their changes as a map."""
    if found.index.adapter is None:
        return
    norms = norms_of(found.index)
    rows = [(*row, f"{norms[row[0]]:.4g}" if row[0] in norms else "") for row in found.modules]
    top = max(norms.values(), default=0.0) or 1.0
    cells: dict[str, dict[int, Cell]] = {}
    for name, norm in norms.items():
        pattern, layer, _ = parse(name)
        look = f'class="hot" fill-opacity="{max(norm / top, 0.05):.3f}"'
        cells.setdefault(role_of(pattern), {})[-1 if layer is None else layer] = Cell(look, "", f"{name}: {norm:.4g}")
    layers = sorted({layer for row in cells.values() for layer in row if layer >= 0})
    if cells:
        before = (
            f"<p>Frobenius norm of scale x B x A: the stronger the color, the larger; the strongest is {top:.4g}.</p>"
        )
        label = "; ".join(f"{name} {norm:.3g}" for name, norm in norms.items())
        yield from _picture("Size of the change by module", "norms", grid(cells, layers), label, before)
    yield from _long(
        counted(len(rows), "module"), ("module", "path", "method", "rank", "alpha", "scale", "norm of the change"), rows
    )
    if found.index.adapter.unsupported:
        yield from table("Unsupported", ("what",), [(text,) for text in found.index.adapter.unsupported], heading=True)


# The page of two models.


class Side(NamedTuple):
    """A model, and what the page calls it."""

    title: str
    model: TensorIndex


def compared(one: TensorIndex, other: TensorIndex, *, weights: bool = False) -> tuple[Comparison | None, str]:
    """Compare two models with sizes of differences, or say why not."""
    from ckconv.comparison.compare import diff, require_comparable

    if one.adapter is not None or other.adapter is not None or not one.tensors:
        return None, "only whole models are compared value by value"
    try:
        require_comparable(one, other)
        return diff(one, other, weights=weights, spread=True), ""
    except CkconvError as error:
        return None, error.message


def pair_page(
    title: str,
    verdict: tuple[bool | None, str],
    facts: Sequence[tuple[str, object]],
    sides: Sequence[Side],
    found: Comparison | None = None,
    *,
    why: str = "",
    faults: Sequence[str] = (),
) -> str:
    """The page of what was compared.

    Args:
        verdict: whether it is right, and the sentence.
        facts: what was done.
        sides: one or two models.
        why: nothing was compared, the reason.
        faults: everything that is wrong.
    """
    return framed(title, _pair(verdict, facts, sides, found, why, faults))


def page_of_conversion(report: Report, *, directory: Path | None, config: Path | None) -> str:
    """Page of an output beside its source.

    Args:
        directory: that it is in, if it is one.
        config: where ``config.json`` went, if not beside it.
    """
    from ckconv.cli.report import summary

    plan = report.plan
    out = detect.open_index(
        directory or report.files[0].path, config_path=config, base=plan.options.base, follow_links=True
    )
    found, why = compared(plan.index, out)
    facts: list[tuple[str, object]] = [("tensors", summary(plan))]
    facts += [("left out", f"{left.name}: {left.reason}") for left in plan.left_out]
    facts += [("rounded", f"{name}: {counted(count, 'value')}") for name, count in report.changed.items()]
    facts += [("changed by adapters", f"{name}: at most {most:.3g}") for name, most in report.merged.items()]
    facts += [(f"sha256 of {each.path.name}", each.sha256 or each.payload_sha256) for each in report.files]
    facts += [("beside it", path.name) for path in report.side_files]
    facts += [("note", note) for note in plan.notes]
    source, target = shown(plan.index.path), shown(report.target)
    sides = [Side(source, plan.index), Side(target, out)]
    checked = report.verified is not None
    verdict = f"verified {counted(report.verified or 0, 'tensor')}" if checked else "not verified"
    return pair_page(f"{source} to {target}", (checked or None, verdict), facts, sides, found, why=why)


def page_of_verification(
    names: tuple[str, str | None], out: TensorIndex, source: TensorIndex | None, result: CheckResult | VerifyError
) -> str:
    """Page of a verification, passed or with every fault.

    Args:
        names: of the output and of its source.
    """
    facts: list[tuple[str, object]] = []
    faults: list[str] = []
    if isinstance(result, CkconvError):
        verdict, faults = (False, "not verified"), [result.message, *result.details]
    else:
        verdict = (True, f"verified {counted(result.found.tensors, 'tensor')}")
        facts += [("rounded", counted(result.found.rounded, "tensor"))] if result.found.rounded else []
        facts += [("payload sha256", result.found.payload_sha256)] if result.found.payload_sha256 else []
        facts += [("agrees", path.name) for path in (result.record, result.sums) if path]
    sides, found, why = [Side(names[0], out)], None, ""
    if source is not None:
        found, why = compared(source, out)
        sides.insert(0, Side(names[1] or "", source))
    title = names[0] if source is None else f"{names[0]} against {names[1]}"
    return pair_page(title, verdict, facts, sides, found, why=why, faults=faults)


def _pair(
    verdict: tuple[bool | None, str],
    facts: Sequence[tuple[str, object]],
    sides: Sequence[Side],
    found: Comparison | None,
    why: str,
    faults: Sequence[str],
) -> Iterator[str]:
    right, sentence = verdict
    look = {True: " ok", False: " bad", None: ""}[right]
    yield f'<p class="verdict{look}">{escape(sentence)}</p>'
    if faults:
        yield from table("What is wrong", ("number", "fault"), list(enumerate(faults, 1)), heading=True)
    grounds = _grounds(*(side.model for side in sides))
    yield from _before_and_after(sides, grounds)
    if found is not None:
        yield from _changes(found, sides, faults)
    rows = [*facts, *([("not compared", why)] if why else [])]
    yield from table("Result", ("fact", "value"), rows, heading=True) if rows else ()
    yield from _models(sides, grounds)
    names = [side.title for side in sides]
    if found is not None:
        yield from _differences(found, names)
    described = [Description(side.model, (), (), None, overview(side.model), ()) for side in sides]
    yield from _beside("Configuration", names, [each.config for each in described])
    metadata = [{key: text for key, _, text in each.metadata()} for each in described]
    yield from _beside("Metadata", names, metadata)


def _before_and_after(sides: Sequence[Side], grounds: Mapping[str, str]) -> Iterator[str]:
    """The size of each model as a bar, a color a type."""
    most = max((side.model.nbytes for side in sides), default=0) or 1
    parts: list[str] = []
    words: list[str] = []
    for title, model in sides:
        parameters, nbytes = size_of(model)
        bits = 8 * nbytes / parameters if parameters else 0.0
        share = f", {100 * model.nbytes / (sides[0].model.nbytes or 1):.1f} %" if model is not sides[0].model else ""
        words.append(f"{title}: {size(model.nbytes)}, {bits:.2f} bits per weight{share}")
        x, bars = 0.0, []
        for name, nbytes in _types_of(model).most_common():
            wide = _WIDTH * nbytes / most
            bars.append(_box(x, 0, wide, 24, f'class="{grounds[name]}"', f"{name}: {size(nbytes)}"))
            x += wide
        hidden = ' aria-hidden="true"' if parts else ""  # the first one is named by all words
        drawn = (
            f'<svg{hidden} class="sizes" viewBox="0 0 {_WIDTH:g} 24" preserveAspectRatio="none">{"".join(bars)}</svg>'
        )
        parts.append(f"<p>{escape(words[-1])}</p>{drawn}")
    yield from _picture("Sizes", "sizes", "".join(parts), "; ".join(words), _legend(grounds))


#: Name of the line below the map of changes.
_PER_LAYER = "error per layer"

#: Marks of a map that few maps have -> what they say.
_MARKS = {"?": "other shapes or no numbers", "!": "at fault"}


def _changes(found: Comparison, sides: Sequence[Side], faults: Sequence[str]) -> Iterator[str]:
    """Map of changes: equal, retyped, or how far away."""
    errors = {item.name: item for item in (*found.different, *found.near)}
    sizes = [e.relative_error for e in errors.values() if 0 < e.relative_error < math.inf]
    low, top = (min(sizes), max(sizes)) if sizes else (0.0, 0.0)
    steps = math.log(top / low) if top > low else 0.0
    retyped = {name: f"{one} to {other}" for name, one, other in found.retyped}
    only = {name: number for number, names in enumerate(found.only) for name in names}

    def cell(name: str) -> tuple[float, Cell]:
        if any(name in fault for fault in faults):
            return math.inf, Cell('class="fault"', "!", f"{name}: at fault")
        if name in only:
            return math.inf, Cell('class="t6"', "AB"[only[name]], f"{name}: only in {sides[only[name]].title}")
        item = errors.get(name)
        if item is None:
            what = f"the same values, {retyped[name]}" if name in retyped else "the same"
            return -1.0, Cell('fill="none"', "~" if name in retyped else "=", f"{name}: {what}")
        if item.reason or not item.relative_error < math.inf:
            return math.inf, Cell('class="hot"', "?", f"{name}: {item.reason or 'not finite'}")
        share = 0.2 + 0.8 * (math.log(item.relative_error / low) / steps if steps and item.relative_error else 1)
        title = f"{name}: relative error {item.relative_error:.3g}, max |d| {item.max_error:.3g}"
        return item.relative_error, Cell(f'class="hot" fill-opacity="{share:.3f}"', "", title)

    rows: dict[str, dict[int, tuple[float, Cell]]] = {}
    for name in dict.fromkeys(name for side in sides for name in side.model.tensors):
        pattern, layer, _ = parse(name)
        role = role_of(pattern) if layer is not None else OUTSIDE.get(name, name.removesuffix(".weight"))
        row, made = rows.setdefault(role, {}), cell(name)
        at = -1 if layer is None else layer
        row[at] = max(row.get(at, made), made, key=lambda pair: pair[0])
    layers = sorted({layer for row in rows.values() for layer in row if layer >= 0})
    seen = {made.mark for row in rows.values() for _, made in row.values()}
    scale = f" Color: relative error (RMS), from {low:.2g} (weak) to {top:.2g} (strong)." if sizes else ""
    marks = "".join(f", {mark} {what}" for mark, what in _MARKS.items() if mark in seen)
    before = f"<p>= the same, ~ the same values in another type, A or B only in the first or second{marks}.{scale}</p>"
    counts = f"{found.equal:,} the same, {len(found.different):,} differ, {len(found.near):,} within the tolerance"
    drawn = grid({role: {at: made for at, (_, made) in row.items()} for role, row in rows.items()}, layers)
    by_layer: dict[int, list[float]] = defaultdict(list)
    for name, tensor in sides[0].model.tensors.items():
        layer, error = parse(name).layer, errors[name].relative_error if name in errors else 0.0
        if layer is not None and len(tensor.shape) > 1 and name not in only and error < math.inf:
            by_layer[layer].append(error)
    means = {layer: sum(each) / len(each) for layer, each in by_layer.items()}
    if any(means.values()):
        before += "<p>Line: the mean relative error of a layer's matrices; the same values count as 0.</p>"
        counts += f". {_PER_LAYER}: " + ", ".join(f"{layer}: {mean:.3g}" for layer, mean in sorted(means.items()))
        drawn += _line(_PER_LAYER, means, layers)
    yield from _picture("What changed", "changes", drawn, counts, before)


def _differences(found: Comparison, names: Sequence[str]) -> Iterator[str]:
    yield from _histogram((*found.different, *found.near))
    for items, what in ((found.different, "other values"), (found.near, "values within the tolerance")):
        rows = [(each.name, *each.dtypes, each.values, each.elements, *_errors(each), each.reason) for each in items]
        head = ("tensor", *names, "values that differ", "of", "largest difference", "relative", "reason")
        if rows:
            yield from _long(f"{counted(len(rows), 'tensor')} with {what}", head, rows)
    if found.retyped:
        title = f"{counted(len(found.retyped), 'tensor')} with the same values in another type"
        yield from folded(title, ("tensor", *names), found.retyped)
    for only, name in zip(found.only, names, strict=True):
        if only:
            yield from _long(f"{counted(len(only), 'tensor')} only in {name}", ("tensor",), [(each,) for each in only])
    others = [(name, str(one), str(other)) for name, (one, other) in found.config.items()]
    others += [(fact.name, fact.found or "missing", fact.meant or "missing") for fact in found.facts]
    if others:
        yield from _long(f"{counted(len(others), 'other difference')}", ("what", *names), others)


def _errors(item: Difference) -> list[str]:
    return ["" if math.isnan(error) else f"{error:.3g}" for error in (item.max_error, item.relative_error)]


def _beside(title: str, names: Sequence[str], columns: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """Table with a row for each key, a column for each model."""
    rows: list[tuple[object, ...]] = []
    for key in dict.fromkeys(key for column in columns for key in column):
        cells = [column.get(key, "") for column in columns]
        rows.append((key, *cells, *(("yes" if cells[0] != cells[1] else "",) if len(cells) == 2 else ())))
    if rows:
        yield from _long(title, ("key", *names, *(("changed",) if len(names) == 2 else ())), rows)


def _histogram(different: Iterable[Difference]) -> Iterator[str]:
    """How many values are how far apart, in powers of two."""
    counts: Counter[int] = Counter()
    for item in different:
        counts.update(dict(item.spread))
    if not counts:
        return
    most = max(counts.values())
    yield '<h2 id="spread">Size of differences</h2>'
    yield '<div class="wide" tabindex="0" role="region" aria-label="Size of differences">\n<table><thead><tr>'
    yield from (f'<th scope="col">{name}</th>' for name in ("difference below", "values", "share"))
    yield "</tr></thead><tbody>"
    for power in range(min(counts), max(counts) + 1):
        bar = f'<rect width="{100 * counts[power] / most:.2f}%" height="14"></rect>'
        yield f'<tr><th scope="row">{math.ldexp(1.0, power):.3g}</th><td class="n">{counts[power]:,}</td>'
        yield f'<td><svg class="bar" width="320" height="14" aria-hidden="true">{bar}</svg></td></tr>'
    yield "</tbody></table></div>"
