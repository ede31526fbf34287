"""The tables of releases in docs/formats.md: types by place, types beside each other, families.

``python scripts/releases_table.py``
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ckconv.formats.bump.releases import (  # noqa: E402
    releases,
    table_of_families,
    table_of_mixes,
    table_of_types,
)

PAGE = ROOT / "docs" / "formats.md"
TYPES, MIXES, FAMILIES = "| type of a matrix |", "| in one layer |", "| family | in bump 5 |"

#: What the engine does with a type -> in layers and a head of its own, and in the embedding.
PLACES = {
    "everywhere": ("right", "right"),
    "all but embeddings": ("right", "refused"),
    "widened": ("widened to F32", "widened to F32"),
    "": ("refused", "refused"),
}
#: Types of floats and blocks that a bump 5 file has a word for, and those that stand for the rest.
SHOWN = ("F32", "BF16", "F16", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q5_0", "Q5_1", "Q4_0", "Q4_1")


def types() -> str:
    """A row a type: by release, in layers and a head of its own, and in the embedding."""
    newer = {name: release for name, release in releases().items() if 5 in release.versions}
    heads = [f"{release.title}: {place}" for release in newer.values() for place in ("layers, own head", "embedding")]
    lines = [f"{TYPES} {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    found = table_of_types()
    for name in SHOWN:
        cells = [cell for release in newer for cell in PLACES[found[release][name]]]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, f"| others | {' | '.join(['refused'] * len(heads))} |"])


def mixes() -> str:
    """A row a rule: what does not stand beside each other, of which template, in which release."""
    rows = [
        f"| {what} | {circuit or 'all others'} | {releases()[release].title} |"
        for release, circuit, what in table_of_mixes()
    ]
    return "\n".join([f"{MIXES} template | refused for |", "|---|---|---|", *rows])


def families() -> str:
    """A row a family that goes to bump 5: with which types it was run in a release, or whose entries it has."""
    newer = [release for release in releases().values() if 5 in release.versions]
    lines = [f"{FAMILIES} {' | '.join(release.title for release in newer)} |", f"|---|---|{'---|' * len(newer)}"]
    for name, (template, said) in sorted(table_of_families().items()):
        lines.append(f"| {name} | {template} | {' | '.join(said[release.name] for release in newer)} |")
    return "\n".join(lines)


def main() -> None:
    """Write the tables where they stand."""
    text = PAGE.read_text()
    for start, made in ((TYPES, types()), (MIXES, mixes()), (FAMILIES, families())):
        at = text.index(start)
        text = text[:at] + made + text[text.index("\n\n", at) :]
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
