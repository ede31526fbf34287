"""Write docs/families.md from what scripts/record_families.py recorded of each family; --check compares it instead."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import family_cases  # noqa: E402
import tower_cases  # noqa: E402

from ckconv.families.catalog import FAMILIES  # noqa: E402
from ckconv.families.towers import tower_family  # noqa: E402

PAGE = ROOT / "docs" / "families.md"

#: Column -> direction.
DIRECTIONS = {
    "HF → GGUF": "hf->gguf", "GGUF → HF": "gguf->hf", "HF → MLX": "hf->mlx", "MLX → GGUF": "mlx->gguf",
}  # fmt: skip
#: Column -> engine, and the directions whose outputs it computed.
ENGINES = {"llama.cpp": ("llama_cpp hf->gguf",), "mlx-lm": ("mlx_lm hf->mlx", "mlx_lm gguf->mlx")}

HEAD = """# Families

What became of every case in `tests/families`: a tiny model of random weights in each configuration, converted in
every direction. `make families` runs it all with transformers, llama.cpp and mlx-lm, and writes this page. A number is
how many configurations are right, and of how many, where some are refused; the reasons stand below. Right means:

- **HF → GGUF**: every tensor, its type and every key of the architecture are as llama.cpp's own converter writes them,
  byte for byte, and llama.cpp computes the logits that transformers does.
- **GGUF → HF**: every value of the checkpoint, under the same names; transformers finds no key missing and none too
  many, and computes the same logits.
- **HF → MLX**, and **GGUF → MLX**, which is held to the same: mlx-lm computes the logits that transformers does,
  of encoders mlx-embeddings their embeddings.
- **MLX → GGUF**: the same tensors and keys as from the checkpoint.
- **LoRA**: ways of adapters of the family that are right: PEFT → GGUF and PEFT → MLX used beside the model, and merged
  into a GGUF and an MLX model, compute what peft does; and back to PEFT they change every module by the same.
- **bump**: the versions of bump files that hold a model of the family.

*llama.cpp* and *mlx-lm*: the largest difference of a logit from transformers', all in float32; llama.cpp looks GELU up
in a table of 16-bit floats.

"""


def cell(outcomes: list[str]) -> str:
    """How many of a direction's outcomes are right."""
    right = sum(outcome.startswith("right") for outcome in outcomes)
    return "-" if not right else str(right) if right == len(outcomes) else f"{right} of {len(outcomes)}"


def largest(recorded: list[Mapping[str, Any]], runs: tuple[str, ...]) -> str:
    """The largest difference that was recorded of an engine."""
    said = [case["outcomes"].get(run, "").split() for case in recorded for run in runs]
    found = [float(words[1]) for words in said if len(words) == 2]
    return f"{max(found):.0e}" if found else "-"


def row(family: str) -> str:
    """A family's line of the table."""
    recorded = [case.recorded for case in family_cases.cases(family)]
    outcomes = [case["outcomes"] for case in recorded]
    directions = [cell([said[direction] for said in outcomes]) for direction in DIRECTIONS.values()]
    adapters = [
        said for one in family_cases.adapters(family) if one.recorded for said in one.recorded["outcomes"].values()
    ]
    bump = sorted(
        {
            word
            for said in outcomes
            if not said["bump"].startswith(("refused", "failed"))
            for word in said["bump"].split()
        }
    )
    engines = [largest(recorded, runs) for runs in ENGINES.values()]
    return f"| {' | '.join((family, *directions, cell(adapters), ', '.join(bump) or '-', *engines))} |"


def refusals(family: str) -> Iterator[str]:
    """What is refused, each sentence once."""
    seen = set()
    for case in family_cases.cases(family):
        for column, direction in DIRECTIONS.items():
            said = case.recorded["outcomes"][direction]
            sentence = re.split(r" cannot hold this model(?:: |, for [\d,]+ reasons; )", said, maxsplit=1)[-1]
            if said.startswith("refused: ") and (column.rpartition(" ")[2], sentence) not in seen:
                seen.add((column.rpartition(" ")[2], sentence))
                yield f"- **{family}** ({case.name}), {column}: {sentence.removeprefix('refused: ')}"


TOWERS = """
## What models see and hear with

`--mmproj` writes a file of each of these, every tensor and key as llama.cpp's own converter has them; where it rounds,
leaves something out or misnames it, `tests/test_towers.py` says so. *refused*: llama.cpp computes nothing right with
the file, which is read and not written. *back*: the file and its text model become the checkpoint again, every tensor
and every key that a class reads, and transformers computes the same logits of a picture or a sound (of Llama 4 its
class computes none, of Gemma 3n they were not computed); as which class of transformers it comes back; or why not.
*mlx-vlm*: a directory of it is written and read, every tensor as its own loader makes it of the checkpoint, and its
logits of a picture are within 1e-4 of transformers' (`tests/test_mlx_vlm.py`; of Gemma 3 with the mask of
transformers, and of `internvl_chat` and Qwen 3.5 MoE the tensors alone); *read*: it is read and not written, as the
class computes something else. `--drop tower` writes the text model by itself, for mlx-lm.

| tower | of | clip.projector_type | configurations | back | mlx-vlm |
|---|---|---|---|---|---|
"""


def towers() -> str:
    """A line for each tower, those that share a projector beside each other."""
    counts = Counter(name.rpartition("-")[0] for name in tower_cases.recordings())
    lines, known = [], set[object]()
    for name, count in counts.items():
        family = tower_family(name)
        projector = family.parameters["kind"].value
        row, text = family.engines.get("transformers"), family.in_huggingface.text[0]
        back = (f"as `{row.written_as}`" if row.written_as else row.why) if row and row.absent else ""
        if text and not any(one in FAMILIES for one in text):
            back = f"its text model ({', '.join(text)}) is not known"
        assert projector is not None
        seen = family.engines.get("mlx_vlm")
        both = "-" if seen is None else "read" if seen.absent else "yes"
        never = any(condition.expression.text == "false" for condition in family.engines["llama_cpp"].right_if)
        written = "refused" if never else str(count)
        cells = (name, family.hf_class, f"`{projector.value({})}`", written, back or "yes", both)
        rows = [family.parameters[what].value for what in ("kind", "ear_kind") if what in family.parameters]
        known |= {row.value({}) for row in rows if row is not None}
        lines.append(f"| {' | '.join(cells)} |\n")
    others = ", ".join(f"`{name}`" for name in LLAMA_CPP["projectors"].split() if name not in known)
    rest = f"Other values of `clip.projector_type` that llama.cpp knows: {others}."
    lines = [*sorted(lines), "\n", f"{textwrap.fill(rest, 118, break_on_hyphens=False)}\n"]
    return TOWERS + "".join(lines)


LLAMA_CPP = tomllib.loads((ROOT / "ckconv/families/other_programs/architectures.toml").read_text())

#: What stands in the way -> architectures of llama.cpp's converter, by the names that a GGUF has.
REST = {
    "llama.cpp's converter (of llama-cpp-python 0.3.36) does not end on it: RecursionError": "baichuan",
    "its values are rounded to three on the way, and its layers have SiLU where those of released models have ReLU^2": (
        "bitnet"
    ),
    "it makes sounds": "pockettts qwen3tts wavtokenizer-dec",
    "it has indexers or hyper-connections, and nobody has written their rows in its file yet": (
        "dots3note glm5-next hy_v4"
    ),
    "nobody has written its file yet; `ckconv learn` tries to make one of a checkpoint and its GGUF": ("grok kimi-k3"),
}


def rest() -> str:
    """What llama.cpp's converter knows, and no family is written for."""
    known = {family.gguf for family in FAMILIES.values()}
    lines = []
    for why, names in REST.items():
        assert not known & set(names.split()), known & set(names.split())
        lines.append(f"- {', '.join(f'`{name}`' for name in names.split())}: {why}\n")
    count = sum(len(names.split()) for names in REST.values())
    return f"\n## What llama.cpp converts and ckconv does not\n\n{count} architectures:\n\n" + "".join(lines)


def right(family: str, *directions: str) -> bool:
    """In one configuration at least every one of these directions is right."""
    outcomes = [case.recorded["outcomes"] for case in family_cases.cases(family)]
    return any(all(said[direction] == "right" for direction in directions) for said in outcomes)


def counted(families: list[str]) -> str:
    """How many families go where."""
    back = sum(right(family, "hf->gguf", "gguf->hf") for family in families)
    mlx = sum(right(family, "hf->mlx") for family in families)
    configurations = sum(1 for _ in family_cases.cases())
    return (
        f"{len(families)} families in {configurations} configurations: {back} are right from HF to GGUF and back, "
        f"{mlx} from HF to MLX.\n\n"
    )


def page() -> str:
    """The whole page."""
    families = family_cases.families()
    columns = ["family", *DIRECTIONS, "LoRA", "bump", *ENGINES]
    table = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *map(row, families)]
    refused = [line for family in families for line in refusals(family)]
    return (
        HEAD
        + counted(families)
        + "\n".join(table)
        + "\n"
        + towers()
        + rest()
        + "\n## What is refused\n\n"
        + "\n".join(refused)
        + "\n"
    )


def main() -> int:
    """Run from the command line; 1 if the page is not what it would be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    made = page()
    if parser.parse_args().check:
        return int(PAGE.read_text() != made)
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
