"""``inspect`` on a terminal: headline, map of types by layer, tables."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ckconv.cli.describe import Description, LayerMap, layer_map, marks, repeated
from ckconv.cli.render import NARROWEST, container, count, printable, size
from ckconv.cli.settings import Settings
from ckconv.conversion.planning import Target
from ckconv.errors import counted

#: Between two columns of a table.
_GAP = 2

#: What less is told where nobody says otherwise: end at once where all fits on the screen, keep colors.
_LESS = "-FRX"

#: What people call a target.
_TARGETS = {"gguf": "GGUF", "safetensors": "Hugging Face", "mlx": "MLX", "peft": "PEFT"}


class Column(NamedTuple):
    """A column of the tensors' table.

    Attributes:
        right: numbers stand there.
        leaves: of columns that do not fit, the one with the highest number goes first; 0 stays.
    """

    title: str
    cells: Sequence[str]
    right: bool = False
    leaves: int = 0

    @property
    def width(self) -> int:
        """Characters of the widest cell."""
        return max(len(cell) for cell in (self.title, *self.cells))


def print_tables(
    description: Description, settings: Settings, *, only_metadata: bool, only_tensors: bool, every_tensor: bool
) -> None:
    """Print the sections that were asked for; all tensors through the pager."""
    # Without a color system there is no bold either: whoever says no to colors wants no escapes.
    forced = True if settings.color else None
    colors: Literal["auto"] | None = "auto" if settings.color else None
    console = Console(force_terminal=forced, color_system=colors, highlight=False, emoji=False, markup=False)
    console.width = max(console.width, NARROWEST)
    if every_tensor and sys.stdout.isatty():
        os.environ.setdefault("LESS", _LESS)
        with console.pager(styles=settings.color):
            _print(console, description, only_metadata, only_tensors, True)
    else:
        _print(console, description, only_metadata, only_tensors, every_tensor)


def _print(console: Console, d: Description, only_metadata: bool, only_tensors: bool, every_tensor: bool) -> None:
    everything = not (only_metadata or only_tensors)
    if everything:
        _headline(console, d)
        _targets(console, d.targets)
        _modules(console, d)
        _shape_of_model(console, d)
    if every_tensor and (only_tensors or not only_metadata):
        _tensors(console, d)
    if only_metadata or (every_tensor and not only_tensors):
        _metadata(console, d)
    if d.hashes and (only_tensors or not only_metadata):
        console.print(Text(f"model hash  {d.hashes.model}"))
    if everything and not every_tensor:
        console.print(Text("-v: every tensor and all metadata; --tensors, --metadata: only those", style="dim"))


def _table(*columns: str, right: tuple[str, ...] = (), whole: tuple[str, ...] = ()) -> Table:
    """Table whose numbers are never folded; names are."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=column in (*right, *whole))
    return table


def _headline(console: Console, d: Description) -> None:
    """Print name, sizes and types first."""
    index, o = d.index, d.overview
    quantized = f"{o.types}, {o.bits:.3g} bits per weight" if o.types else ""
    family = index.architecture if index.adapter is None else f"{index.adapter.method} adapter"
    words = (o.name, family, f"{count(o.parameters)} parameters", quantized, size(index.nbytes))
    for line in _packed([printable(word) for word in words if word], console.width):
        console.print(Text(line, style="bold"))
    for name, text in _facts(d):
        if text:
            _hung(console, Text.assemble((f"  {name:<15}", "dim")), text)
    console.print()


def _packed(words: Sequence[str], width: int) -> list[str]:
    """Words in as few lines as the width asks for; none is broken."""
    lines = [""]
    for word in words:
        longer = f"{lines[-1]}  {word}" if lines[-1] else word
        lines = [*lines[:-1], longer] if len(longer) <= width or not lines[-1] else [*lines, word]
    return lines


def _facts(d: Description) -> Iterable[tuple[str, str]]:
    index, o, c = d.index, d.overview, d.index.config
    files = f"{len(index.files)} files" if len(index.files) > 1 else ""
    place = (index.path.name or str(index.path), container(index.format, index.version, "v"), files)
    yield "file", ", ".join(word for word in (*place, counted(len(index.stored), "tensor")) if word)
    yield "merged", ", ".join(index.merged)
    if c is not None:
        heads = f"{c.num_heads:,}/{c.num_kv_heads:,}" if c.num_kv_heads != c.num_heads else f"{c.num_heads:,}"
        experts = f", {c.num_experts:,} experts, {c.experts_used:,} used" if c.num_experts else ""
        yield "layers", f"{c.num_layers:,}, hidden {c.hidden_size:,}, heads {heads} of {c.head_dim:,}{experts}"
    yield "besides", "; ".join(o.heads)
    window = f", window of {c.sliding_window:,}" if c is not None and c.sliding_window else ""
    yield "context", f"{o.context:,} tokens{window}" if o.context else ""
    template = {None: "", True: ", chat template", False: ", no chat template"}[o.template]
    template += f" ({o.abilities[0]})" if o.abilities else ""
    words = f", {c.vocab_size:,} entries" if c is not None and c.vocab_size else ""
    if index.adapter is None:
        yield "tokenizer", f"{o.tokenizer}{words}{template}" if o.tokenizer else "none"
    named = f"{o.card.license_name} ({o.card.license})" if o.card.license_name else o.card.license
    yield "license", " ".join(word for word in (named, o.card.license_link) if word)
    yield "carries", "; ".join(map(str, d.hazards))
    yield "base model", ", ".join(o.card.base_models)
    yield "languages", ", ".join(o.card.languages)
    caches = ", ".join(f"{size(cache.nbytes)} at {cache.tokens:,} tokens" for cache in o.caches)
    if index.adapter is None:
        yield "memory", f"{size(index.nbytes)} of weights" + (f" + KV cache in F16: {caches}" if caches else "")


def _targets(console: Console, targets: Sequence[Target]) -> None:
    """Where it can go: yes, or the first reason with its flag."""
    width = max((len(_TARGETS.get(t.name, t.name)) for t in targets), default=0)
    for target in targets:
        start = Text(f"  {_TARGETS.get(target.name, target.name):<{width}}  ")
        if target.reasons:
            start.append("no   ", style="yellow")
            first, more = target.reasons[0], len(target.reasons) - 1
            text = first.text + (f" ({first.hint})" if first.hint else "")
            text += f"; {counted(more, 'more reason')}" if more else ""
        else:
            start.append("yes  " if target.notes else "yes", style="green")
            text = "; ".join(target.notes)
        _hung(console, start, text)
    if targets:
        console.print()


def _hung(console: Console, start: Text, text: str) -> None:
    """Print a text behind its subject, with a hanging indent."""
    width = max(console.width - len(start), NARROWEST // 3)
    lines = textwrap.wrap(printable(text), width, break_long_words=False, break_on_hyphens=False) or [""]
    console.print(start + Text(lines[0]), soft_wrap=True)
    for line in lines[1:]:
        console.print(Text(" " * len(start) + line), soft_wrap=True)


def _shape_of_model(console: Console, d: Description) -> None:
    """Print the map of types, and equal layers in one line."""
    tensors = d.index.everything
    for line in _map_lines(layer_map(tensors), console.width):
        console.print(line, no_wrap=True)
    console.print()
    rows = repeated(tensors)
    _columns(
        console,
        Column("tensors", [row.name for row in rows]),
        Column("type", [row.types for row in rows]),
        Column("shape", [row.shape for row in rows], right=True, leaves=1),
        Column("bytes", [f"{row.nbytes:,}" for row in rows], right=True),
    )
    console.print()


def _modules(console: Console, d: Description) -> None:
    """Print the modules of an adapter, with rank and scale."""
    if d.index.adapter is None:
        return
    table = _table("module", "path", "method", "rank", "alpha", "scale", right=("rank", "alpha", "scale"))
    for row in d.modules:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    console.print(table)
    for text in d.index.adapter.unsupported:
        console.print(Text(printable(f"  unsupported: {text}"), style="yellow"))
    console.print()


def _tensors(console: Console, d: Description) -> None:
    shown = d.shown

    def cells(of: Literal["canonical", "hash"]) -> list[str]:
        return [d.canonical(t) or "-" if of == "canonical" else d.hash_of(t) for t in shown]

    columns = [
        Column("tensor", [t.name for t in shown]),
        Column("canonical", cells("canonical"), leaves=3),
        Column("type", [t.dtype.name for t in shown]),
        Column("shape", [" x ".join(map(str, t.shape)) for t in shown], right=True, leaves=1),
        Column("bytes", [f"{t.extent.nbytes:,}" for t in shown], right=True, leaves=2),
        Column("offset", [f"{t.extent.offset:,}" for t in shown], right=True, leaves=4),
    ]
    if d.hashes:
        columns.append(Column("hash", cells("hash")))
    _columns(console, *columns)
    console.print()


def _columns(console: Console, *columns: Column) -> None:
    """A table that fits by leaving columns out; what stays is never folded."""
    columns = tuple(c._replace(cells=[printable(cell) for cell in c.cells]) for c in columns)
    shown = [*columns]
    while sum(c.width + _GAP for c in shown) - _GAP > console.width and any(c.leaves for c in shown):
        shown.remove(max(shown, key=lambda c: c.leaves))

    def line(values: Sequence[str]) -> str:
        texts = (f"{v:>{c.width}}" if c.right else f"{v:<{c.width}}" for v, c in zip(values, shown, strict=True))
        return (" " * _GAP).join(texts).rstrip()

    console.print(Text(line([c.title for c in shown]), style="bold"), soft_wrap=True)
    for row in zip(*(c.cells for c in shown), strict=True):
        console.print(Text(line(row)), soft_wrap=True)


def _metadata(console: Console, d: Description) -> None:
    table = _table("key", "type", "value")
    for row in d.metadata():
        table.add_row(*(Text(printable(cell)) for cell in row))
    if table.row_count:
        console.print(table)
        console.print()


#: Colors that can be told apart on a light and on a dark ground, also by who does not see red and green apart.
_COLORS = ("cyan", "yellow", "magenta", "blue", "green", "red", "bright_black")


_NONE = "."


def _map_lines(table: LayerMap, width: int) -> Iterator[Text]:
    """Map of types as text, in parts as wide as the terminal."""
    from rich.text import Text

    if not table.rows or len(table.layers) < 2:
        return
    mark = marks(table.types)
    color = {name: _COLORS[number % len(_COLORS)] for number, name in enumerate(table.types)}
    names = max(len(role) for role in (*table.rows, *table.outside)) + 2
    room = max(width - names, 8)
    for start in range(0, len(table.layers), room):
        part = table.layers[start : start + room]
        yield Text(f"{'':{names}}{_ruler(part)}", style="dim")
        for role, row in table.rows.items():
            line = Text(f"{printable(role):<{names}}")
            for name in row[start : start + room]:
                line.append(mark[name] if name else _NONE, style=color[name] if name else "dim")
            yield line
    for role, name in table.outside.items():
        yield Text(f"{role:<{names}}").append(mark[name], style=color[name])
    legend = Text(" " * names)
    for name in table.types:
        legend.append(mark[name], style=color[name])
        legend.append(f" {name}  ")
    yield legend


def _ruler(layers: Sequence[int]) -> str:
    """The number of every tenth layer, and of the first, where it begins."""
    marks = [" "] * len(layers)
    free = 0
    for at, layer in enumerate(layers):
        text = str(layer)
        if at >= free and (at == 0 or layer % 10 == 0) and at + len(text) <= len(layers):
            marks[at : at + len(text)] = text
            free = at + len(text) + 1
    return "".join(marks)
