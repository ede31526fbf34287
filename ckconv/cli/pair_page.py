"""Two models as one page: their types by layer, how far values are apart, and everything else that they say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ckconv.cli.describe import Description
from ckconv.cli.layermap import layer_map, role_of
from ckconv.cli.overview import as_rows, overview
from ckconv.cli.page import LEVELS, folded, framed, mapped, table, write
from ckconv.core.tensors import parse
from ckconv.errors import CkconvError, counted, shown

if TYPE_CHECKING:
    from ckconv.api import Checked
    from ckconv.comparison.compare import Comparison
    from ckconv.comparison.difference import Difference
    from ckconv.conversion.run import Report
    from ckconv.core.tensors import TensorIndex
    from ckconv.errors import VerifyError

#: Rows of a long table that are open: the rest opens when it is asked for.
_OPEN = 40

#: The row of the map that is the largest of its column.
_ALL = "all of the layer"


class Side(NamedTuple):
    """One of the two, and what the page calls it."""

    title: str
    model: TensorIndex


def compared(one: TensorIndex, other: TensorIndex, *, weights: bool = False) -> tuple[Comparison | None, str]:
    """The comparison with the sizes of all differences; or why there is none."""
    from ckconv.comparison.compare import diff, require_comparable

    if one.adapter is not None or other.adapter is not None or not one.tensors:
        return None, "only whole models are compared value by value"
    try:
        require_comparable(one, other)
        return diff(one, other, weights=weights, spread=True), ""
    except CkconvError as error:
        return None, error.message


def write_pair(
    path: Path,
    title: str,
    facts: Sequence[tuple[str, object]],
    sides: Sequence[Side],
    found: Comparison | None = None,
    *,
    why: str = "",
    faults: Sequence[str] = (),
) -> None:
    """Write the page to a new file.

    Args:
        facts: what was done, and what came of it.
        sides: one or two models.
        why: nothing was compared, the reason.
        faults: everything that is wrong.

    Raises:
        UsageError, OutputError: as :func:`ckconv.cli.page.write`.
    """
    write(path, framed(title, _parts(facts, sides, found, why, faults)))


def page_of_conversion(page: Path, report: Report, *, directory: Path | None, config: Path | None) -> None:
    """What a conversion made, beside its source.

    Args:
        directory: that it is in, if it is one.
        config: where ``config.json`` went, if not beside it.
    """
    from ckconv.cli.report import summary
    from ckconv.formats.detect import open_index

    plan = report.plan
    out = open_index(directory or report.files[0].path, config_path=config, base=plan.options.base, follow_links=True)
    found, why = compared(plan.index, out)
    facts: list[tuple[str, object]] = [("tensors", summary(plan))]
    facts += [("left out", f"{left.name}: {left.reason}") for left in plan.left_out]
    facts += [("rounded", f"{name}: {counted(count, 'value')}") for name, count in report.changed.items()]
    facts += [("changed by adapters", f"{name}: at most {most:.3g}") for name, most in report.merged.items()]
    facts += [("verified", "no" if report.verified is None else f"{counted(report.verified, 'tensor')}")]
    facts += [(f"sha256 of {each.path.name}", each.sha256 or each.payload_sha256) for each in report.files]
    facts += [("beside it", path.name) for path in report.side_files]
    facts += [("note", note) for note in plan.notes]
    source = shown(plan.index.path)
    sides = [Side(source, plan.index), Side(report.target, out)]
    write_pair(page, f"{source} to {report.target}", facts, sides, found, why=why)


def page_of_verification(
    page: Path,
    names: tuple[str, str | None],
    out: TensorIndex,
    source: TensorIndex | None,
    result: Checked | VerifyError,
) -> None:
    """What was found right, or everything that is wrong.

    Args:
        names: of the output and of its source.
    """
    facts: list[tuple[str, object]] = []
    faults: list[str] = []
    if isinstance(result, CkconvError):
        facts.append(("verified", "no"))
        faults = [result.message, *result.details]
    else:
        facts.append(("verified", counted(result.found.tensors, "tensor")))
        facts += [("rounded", counted(result.found.rounded, "tensor"))] if result.found.rounded else []
        facts += [("payload sha256", result.found.payload_sha256)] if result.found.payload_sha256 else []
        facts += [("agrees", path.name) for path in (result.record, result.sums) if path]
    sides = [Side(names[0], out)]
    found, why = None, ""
    if source is not None:
        found, why = compared(source, out)
        sides.insert(0, Side(names[1] or "", source))
    write_pair(
        page,
        names[0] if source is None else f"{names[0]} against {names[1]}",
        facts,
        sides,
        found,
        why=why,
        faults=faults,
    )


def _parts(
    facts: Sequence[tuple[str, object]],
    sides: Sequence[Side],
    found: Comparison | None,
    why: str,
    faults: Sequence[str],
) -> Iterator[str]:
    rows = [*facts, *([("not compared", why)] if why else [])]
    yield from table("Result", ("fact", "value"), rows, heading=True)
    if faults:
        yield from table("What is wrong", ("number", "fault"), list(enumerate(faults, 1)), heading=True)
    described = [Description(side.model, (), (), None, overview(side.model), ()) for side in sides]
    names = [side.title for side in sides]
    yield from _beside("What they are", names, [dict(as_rows(each.overview)) for each in described])
    for number, side in enumerate(sides):
        yield from mapped(layer_map(side.model.tensors), f"Types by layer: {side.title}", f"map{number}")
    if found is not None:
        yield from _differences(found, names)
    yield from _beside("Types: tensors", names, [{name: n for name, n, _ in each.types} for each in described])
    yield from _beside("Types: bytes", names, [{name: n for name, _, n in each.types} for each in described])
    yield from _beside("Configuration", names, [each.config for each in described])
    metadata = [{key: text for key, _, text in each.metadata()} for each in described]
    yield from _beside("Metadata", names, metadata)


def _differences(found: Comparison, names: Sequence[str]) -> Iterator[str]:
    yield from _errors(found.different)
    yield from _histogram(found.different)
    if found.different:
        order = sorted(found.different, key=lambda item: -math.inf if math.isnan(item.max_error) else -item.max_error)
        rows = [(each.name, *each.dtypes, each.values, each.elements, *_sizes(each), each.reason) for each in order]
        head = ("tensor", *names, "values that differ", "of", "largest difference", "relative", "reason")
        yield from _long(f"{counted(len(rows), 'tensor')} with other values", head, rows)
    if found.retyped:
        yield from folded(
            f"{counted(len(found.retyped), 'tensor')} with the same values in another type",
            ("tensor", *names), found.retyped,
        )  # fmt: skip
    for only, name in zip(found.only, names, strict=True):
        if only:
            yield from _long(f"{counted(len(only), 'tensor')} only in {name}", ("tensor",), [(each,) for each in only])
    said = [(name, str(ours), str(theirs)) for name, (ours, theirs) in found.config.items()]
    said += [(fact.name, fact.mine or "missing", fact.meant or "missing") for fact in found.facts]
    if said:
        yield from _long(f"{counted(len(said), 'other difference')}", ("what", *names), said)


def _sizes(item: Difference) -> list[str]:
    return ["" if math.isnan(size) else f"{size:.3g}" for size in (item.max_error, item.relative_error)]


def _long(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield from table(title, head, rows, heading=True) if len(rows) <= _OPEN else folded(title, head, rows)


def _beside(title: str, names: Sequence[str], columns: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """A row a key, a column a model; of two, the last column says which rows differ."""
    keys = list(dict.fromkeys(key for column in columns for key in column))
    rows: list[tuple[object, ...]] = []
    for key in keys:
        cells = [column.get(key, "") for column in columns]
        differs = ("differs" if cells[0] != cells[1] else "",) if len(cells) == 2 else ()
        rows.append((key, *cells, *differs))
    if rows:
        yield from _long(title, ("key", *names, *(("same or not",) if len(names) == 2 else ())), rows)


def _errors(different: Iterable[Difference]) -> Iterator[str]:
    """The largest difference of every role by layer, and of the layer: a cell is a power of ten."""
    cells: dict[str, dict[int, float]] = {}
    for item in different:
        pattern, layer, _ = parse(item.name)
        if layer is not None and not math.isnan(item.max_error):
            for role in (role_of(pattern), _ALL):
                row = cells.setdefault(role, {})
                row[layer] = max(row.get(layer, 0.0), item.max_error)
    if not cells:
        return
    cells[_ALL] = cells.pop(_ALL)
    layers = sorted(cells[_ALL])
    top = max(cells[_ALL].values())
    title = "Largest difference by layer"
    yield f'<section aria-labelledby="errors"><h2 id="errors">{title}</h2>'
    yield "<p>A cell is the power of ten of the largest difference: -3 is 0.001 to 0.01. The stronger its color, the"
    yield "larger.</p>"
    yield f'<div class="wide" tabindex="0" role="region" aria-label="{title}">\n<table class="map">'
    numbers = "".join(f'<th scope="col">{layer}</th>' for layer in layers)
    yield f'<thead><tr><th scope="col">role</th>{numbers}</tr></thead>\n<tbody>'
    for role, row in cells.items():
        drawn = "".join(_cell(row.get(layer), top) for layer in layers)
        yield f'<tr><th scope="row">{escape(role)}</th>{drawn}</tr>'
    yield "</tbody></table></div></section>"


def _cell(error: float | None, top: float) -> str:
    if error is None:
        return '<td aria-label="none"></td>'
    power = _power(error)
    most = _power(top)
    below = most - power if isinstance(power, int) and isinstance(most, int) else 0
    level = max(0, LEVELS - 1 - below)
    return f'<td class="e{level}"><abbr title="{error:.3g}" aria-label="{error:.3g}">{power}</abbr></td>'


def _power(error: float) -> int | str:
    if not error:
        return "0"
    return math.floor(math.log10(error)) if math.isfinite(error) else "inf"


def _histogram(different: Iterable[Difference]) -> Iterator[str]:
    """How many values are how far apart, in powers of two."""
    counts: Counter[int] = Counter()
    for item in different:
        counts.update(dict(item.spread))
    if not counts:
        return
    title = "How far values are apart"
    most = max(counts.values())
    yield f'<section aria-labelledby="spread"><h2 id="spread">{title}</h2>'
    yield f'<div class="wide" tabindex="0" role="region" aria-label="{title}">\n<table><thead><tr>'
    yield from (f'<th scope="col">{name}</th>' for name in ("difference below", "values", "share"))
    yield "</tr></thead><tbody>"
    for power in range(min(counts), max(counts) + 1):
        width = 100 * counts[power] / most
        bar = f'<rect width="{width:.2f}%" height="14"></rect>'
        yield f'<tr><th scope="row">{math.ldexp(1.0, power):.3g}</th><td class="n">{counts[power]:,}</td>'
        yield f'<td><svg class="bar" width="320" height="14" aria-hidden="true">{bar}</svg></td></tr>'
    yield "</tbody></table></div></section>"
