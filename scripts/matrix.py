"""Convert every kind of source to every format and back; write the table of docs/formats.md, or (--check) compare it.

A cell is what happened, not what ought to: ``exact`` is a conversion after which every tensor was found equal to its
source, ``identical`` a way back after which every file of the source was found again byte for byte.
"""

from __future__ import annotations

import argparse
import filecmp
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import ckconv  # noqa: E402
from ckconv.errors import CkconvError  # noqa: E402

PAGE = ROOT / "docs" / "formats.md"
_TABLE = re.compile(r"(<!-- matrix -->\n).*?(<!-- /matrix -->)", re.DOTALL)

#: What stands in the first column, and where it is; a split set is named by its first shard.
SOURCES: dict[str, str] = {
    "GGUF, BF16": "gguf/llama-tied-bf16.auto.gguf",
    "GGUF, FP32, three files": "gguf-split/llama-untied-f32-00001-of-00003.gguf",
    "GGUF, Q5_0 and Q8_0": "kquants/llama64.Q4_K_M.gguf",
    "GGUF, Gemma 3": "gguf/gemma3-text-bf16.auto.gguf",
    "GGUF, Phi 3": "gguf/phi3-bf16.auto.gguf",
    "GGUF, GPT-2": "gguf/gpt2-f32.f32.gguf",
    "Hugging Face, BF16": "hf/llama-tied-bf16",
    "Hugging Face, FP16, three files": "hf/llama-untied-f16-sharded",
    "Hugging Face, Qwen 3": "hf/qwen3-tied-bf16",
    "Hugging Face, GPT-2 of the hub": "hf/gpt2-hub-f32",
    "MLX, 4 bits, groups of 32, FP32": "mlx/llama-untied-f32.q4g32",
    "MLX, 4 bits, groups of 64, BF16": "mlx/llama-tied-bf16.q4g64",
}

#: Column -> format, version of it.
TARGETS: dict[str, tuple[str, int]] = {
    "GGUF": ("gguf", 0),
    "Hugging Face": ("safetensors", 0),
    "MLX": ("mlx", 0),
    "bump 3": ("bump", 3),
    "bump 5": ("bump", 5),
}


def converts(source: Path, place: Path, format: str, options: ckconv.Options) -> bool:
    """Convert; ``False`` where the target cannot hold the model so."""
    try:
        ckconv.convert(source, f"{place}/", to=format, options=options)
    except CkconvError as error:
        if error.exit_code != 4:
            raise
        return False
    return True


def cell(source: Path, format: str, version: int, place: Path) -> str:
    """What becomes of one conversion: as it is, then with ``--dequantize``."""
    if converts(source, place, format, ckconv.Options(bump_version=version)):
        return "exact"
    decoded = ckconv.Options(bump_version=version, dequantize=True)
    return "`--dequantize`" if converts(source, place, format, decoded) else "no"


def way_back(source: Path, bump: Path, place: Path) -> str:
    """Whether the bump file makes its source again."""
    model = ckconv.open_model(source)
    back = ckconv.convert(bump, f"{place}/", to=model.format)
    ours = {path.name: path for path in (*(file.path for file in back.files), *back.side_files)}
    folder = source if source.is_dir() else source.parent
    theirs = [*model.index.files, *model.index.side_files]
    same = all(
        filecmp.cmp(path, ours.get(path.name, ours[min(ours)]), shallow=False)
        if len(theirs) == 1
        else path.name in ours and filecmp.cmp(folder / path.name, ours[path.name], shallow=False)
        for path in theirs
    )
    return "identical" if same else "not identical"


def table() -> str:
    """The table in Markdown."""
    lines = [f"| from | {' | '.join(TARGETS)} | and back |", "|---|" + "---|" * (len(TARGETS) + 1)]
    for title, name in SOURCES.items():
        source = ROOT / "fixtures" / name
        cells, back = [], "-"
        with tempfile.TemporaryDirectory() as folder:
            for target, (format, version) in TARGETS.items():
                place = Path(folder) / target.replace(" ", "")
                cells.append(cell(source, format, version, place))
                if format == "bump" and place.exists() and back in ("-", "identical"):
                    back = way_back(source, place / "weights.bump", place / "back")
        lines.append(f"| {title} | {' | '.join(cells)} | {back} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Renew or check the table; exit 1 if it is not what happens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the table is out of date")
    options = parser.parse_args()
    text = PAGE.read_text()
    renewed = _TABLE.sub(lambda match: match[1] + table() + match[2], text)
    if options.check:
        return int(renewed != text)
    PAGE.write_text(renewed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
