"""Record what transformers and peft compute from the fixtures, for tests that run without torch.

    python scripts/record_logits.py           write fixtures/logits anew
    python scripts/record_logits.py --check   compute again and compare

Everything is computed in float32 from the stored weights: a model of another type has its weights widened first, and
its RoPE frequencies are never rounded.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import consumers  # noqa: E402
import numpy as np  # noqa: E402
from kept_arrays import moved  # noqa: E402

import ckconv  # noqa: E402

FIXTURES = ROOT / "fixtures"
ARRAYS, FACTS = FIXTURES / "logits" / "transformers.npz", FIXTURES / "logits" / "transformers.json"

#: Longer than the window of the Gemma among the fixtures, which is 32.
PROMPT = tuple((7 * i * i + 3 * i + 5) % 384 for i in range(48))
#: The positions that are kept.
ROWS = tuple(range(3, len(PROMPT), 4))
#: What two machines may differ by.
TOLERANCE = 1e-5

#: Bases that adapters call by a name that no checkpoint of the fixtures has.
SAME_WEIGHTS = {"gpt2-f32": "gpt2-hub-f32"}


@dataclass(frozen=True)
class Recording:
    """One model, or one adapter on its model."""

    name: str
    model: Path
    adapter: Path | None = None

    @property
    def inputs(self) -> list[Path]:
        """Every file that the numbers follow from."""
        folders = [self.model, self.adapter] if self.adapter else [self.model]
        kept = ("config.json", "adapter_config.json")
        return [
            f for folder in folders for f in sorted(folder.iterdir()) if f.suffix == ".safetensors" or f.name in kept
        ]


def recordings(untied: Path) -> Iterator[Recording]:
    """What is recorded; ``untied`` is the checkpoint of the one base that the fixtures have as a GGUF only."""
    models = [path for kind in ("hf", "experts") for path in sorted((FIXTURES / kind).iterdir())]
    for model in models:
        if list(model.glob("*.safetensors")):
            yield Recording(model.name, model)
    for adapter in sorted(path for kind in ("lora", "adapters") for path in (FIXTURES / kind).iterdir()):
        config = adapter / "adapter_config.json"
        base = json.loads(config.read_text()).get("base_model_name_or_path") if config.is_file() else None
        if base:
            model = untied if base == "llama-untied-f32" else FIXTURES / "hf" / SAME_WEIGHTS.get(base, base)
            yield Recording(f"{adapter.parent.name}/{adapter.name}", model, adapter)


def main() -> int:
    """Run from the command line; 1 if a number moved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    program = consumers.transformers()
    arrays: dict[str, np.ndarray] = {}
    inputs: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        untied = Path(folder) / "llama-untied-f32"
        ckconv.convert(FIXTURES / "gguf-split" / "llama-untied-f32-00001-of-00003.gguf", untied, to="safetensors")
        for one in recordings(untied):
            rows = program.logits(one.model, PROMPT, adapter=one.adapter)
            arrays[one.name] = rows[list(ROWS)]
            hashes = {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in one.inputs}
            inputs[one.name] = {f"{file.parent.name}/{file.name}": digest for file, digest in hashes.items()}
    program.close()
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "peft", "torch")}
    facts = {"versions": versions, "prompt": PROMPT, "rows": ROWS, "inputs": inputs}
    if not asked.check:
        np.savez_compressed(ARRAYS, **arrays)  # type: ignore[arg-type]
        FACTS.write_text(json.dumps(facts, indent=1) + "\n")
        return 0
    return moved(arrays, ARRAYS, TOLERANCE)


if __name__ == "__main__":
    raise SystemExit(main())
