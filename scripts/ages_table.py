"""The table of families and ages in docs/formats.md, out of the files of both: ``python scripts/ages_table.py``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ckconv.families.ages import Age, ages  # noqa: E402
from ckconv.families.catalogue import FAMILIES, told_by_architecture  # noqa: E402

PAGE = ROOT / "docs" / "formats.md"
START, END = "| family | in bump 5 |", "\n\n"


def table() -> str:
    """A row a family that goes to bump 5: where it was run, and where its entries are those of one that was."""
    newer = [age for age in ages().values() if 5 in age.versions]
    lines = [
        f"{START} {' | '.join(age.title for age in newer)} |",
        f"|---|---|{'---|' * len(newer)}",
    ]
    for name in sorted(FAMILIES):
        row = FAMILIES[name].engines.get("bump5")
        told = row.written_as if row and row.written_as else told_by_architecture(name)
        if (row and row.absent) or "bump5" not in FAMILIES[told].engines or FAMILIES[told].engines["bump5"].absent:
            continue
        template = FAMILIES[told].gguf
        lines.append(f"| {name} | {template} | {' | '.join(_cell(age, name, template) for age in newer)} |")
    return "\n".join(lines)


def _cell(age: Age, name: str, template: str) -> str:
    circuit = age.circuits.get(template)
    if circuit is None or circuit.wrong:
        return "refused"
    biases = FAMILIES[name].parameters.get("attention_bias")
    doubled = bool(age.added_twice) and biases is not None and str(biases.value) == "true"
    kinds = (
        "blocks" if circuit.floats or doubled else ", ".join((*(t for t in ("F32", "BF16") if age.keeps(t)), "blocks"))
    )
    return f"right: {kinds}" if name in age.run else f"as {template}" if name != template else "under conditions"


def main() -> None:
    """Write the table where it stands."""
    text = PAGE.read_text()
    start = text.index(START)
    PAGE.write_text(text[:start] + table() + text[text.index(END, start) :])


if __name__ == "__main__":
    main()
