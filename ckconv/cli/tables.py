"""``inspect`` on a terminal."""

from __future__ import annotations

from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ckconv.cli.describe import Description
from ckconv.cli.render import container, count, printable, size
from ckconv.cli.settings import Settings
from ckconv.errors import counted

#: Columns of a table at least: on a narrower terminal its own wrapping reads better than folded names.
_NARROWEST = 80


def print_tables(description: Description, settings: Settings, *, only_metadata: bool, only_tensors: bool) -> None:
    """Print the sections that were asked for."""
    # Without a colour system there is no bold either: whoever says no to colours wants no escapes.
    console = Console(color_system="auto" if settings.color else None, highlight=False, emoji=False, markup=False)
    console.width = max(console.width, _NARROWEST)
    if not (only_metadata or only_tensors):
        _overview(console, description)
    if not only_metadata:
        _tensors(console, description)
    if not only_tensors:
        _metadata(console, description)
    if not (only_metadata or only_tensors):
        _targets(console, description)
    if description.hashes and not only_metadata:
        console.print(Text(f"model hash  {description.hashes.model}"))


def _table(*columns: str, right: tuple[str, ...] = (), whole: tuple[str, ...] = ()) -> Table:
    """Numbers go to the ``right``; they and what else is to stay ``whole`` are never folded, names are."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=column in (*right, *whole))
    return table


def _overview(console: Console, d: Description) -> None:
    index = d.index
    words = (
        index.path.name or str(index.path),
        container(index.format, index.version, "v"),
        index.architecture,
        size(index.nbytes),
        counted(len(index.stored), "tensor"),
        f"{count(index.parameters)} parameters",
    )
    console.print(Text(printable("  ".join(word for word in words if word)), style="bold"))
    for name, facts in (("container", d.facts), ("config", d.config)):
        if facts:
            line = "  ".join(
                f"{key} {value:,}" if isinstance(value, int) else f"{key} {value}" for key, value in facts.items()
            )
            console.print(Text(printable(f"  {name}: {line}")), soft_wrap=False)
    console.print()
    _modules(console, d)
    table = _table("type", "tensors", "bytes", right=("tensors", "bytes"))
    for name, tensors, nbytes in d.types:
        table.add_row(name, f"{tensors:,}", f"{nbytes:,}")
    console.print(table)
    console.print()


def _modules(console: Console, d: Description) -> None:
    """What an adapter changes, and by how much."""
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
    table = _table(
        "tensor", "canonical", "type", "shape", "bytes", "offset", right=("shape", "bytes", "offset"), whole=("type",)
    )
    if d.hashes:
        table.add_column("hash", overflow="fold")
    for t in d.shown:
        cells = [
            t.name,
            d.canonical(t) or "-",
            t.dtype.name,
            " x ".join(map(str, t.shape)),
            f"{t.extent.nbytes:,}",
            f"{t.extent.offset:,}",
        ]
        if d.hashes:
            cells.append(d.hash_of(t))
        table.add_row(*(Text(printable(cell)) for cell in cells))
    console.print(table)
    console.print()


def _metadata(console: Console, d: Description) -> None:
    table = _table("key", "type", "value")
    for row in d.metadata():
        table.add_row(*(Text(printable(cell)) for cell in row))
    if table.row_count:
        console.print(table)
        console.print()


def _targets(console: Console, d: Description) -> None:
    for target in d.targets:
        if not target.reasons:
            console.print(Text(f"{target.name}: yes", style="green"))
            for note in target.notes:
                console.print(Text(printable(f"  note: {note}")))
            continue
        console.print(Text(f"{target.name}: no, because", style="yellow"))
        for reason in target.reasons:
            console.print(Text(printable(f"  {reason.text}") + (f"  ({reason.hint})" if reason.hint else "")))
