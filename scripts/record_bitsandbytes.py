"""Make checkpoints with bitsandbytes, and record the values that it has of them: fixtures/quantised/bnb-*.

    python scripts/record_bitsandbytes.py           write them anew (needs transformers and bitsandbytes)
    python scripts/record_bitsandbytes.py --check   compute the values of those that are there, and compare

transformers quantizes ``fixtures/hf/qwen2-tied-bf16`` when it loads it, and saves it. ``NAME.json`` has the SHA-256 of
every matrix as ``bitsandbytes.functional`` decodes it, as float32, -0 as 0, and the versions of both packages.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import bitsandbytes
import torch
import transformers
from bitsandbytes.functional import QuantState, dequantize_4bit, int8_vectorwise_dequant
from safetensors.torch import load_file, save_file

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
SOURCE = FIXTURES / "hf" / "qwen2-tied-bf16"

#: Name -> what transformers is asked for.
KINDS: dict[str, dict[str, Any]] = {
    "bnb-nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "bnb-nf4-double": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "bnb-fp4-double": {
        "load_in_4bit": True, "bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": True,
        "bnb_4bit_quant_storage": torch.bfloat16,
    },
    "bnb-int8": {"load_in_8bit": True},
}  # fmt: skip


def values(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Every quantized matrix, decoded."""
    found = {}
    for name in tensors:
        if not name.endswith(".weight"):
            continue
        state = {key: tensors[key] for key in tensors if key.startswith(f"{name}.")}
        if state:
            found[name] = dequantize_4bit(tensors[name], QuantState.from_dict(state, torch.device("cpu")))
        elif (scales := tensors.get(name.removesuffix("weight") + "SCB")) is not None:
            found[name] = int8_vectorwise_dequant(tensors[name], scales)
    return found


def recorded(directory: Path) -> dict[str, Any]:
    """What ``NAME.json`` says."""
    decoded = values(load_file(directory / "model.safetensors"))
    digests = {
        name: hashlib.sha256((value.float() + 0.0).numpy().tobytes()).hexdigest()
        for name, value in sorted(decoded.items())
    }
    versions = {package.__name__: package.__version__ for package in (bitsandbytes, transformers)}
    return {"library": digests, "versions": versions}


def main() -> int:
    """Write, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, and change nothing")
    wrong, asked = 0, parser.parse_args()
    for name, kind in KINDS.items():
        out, said = FIXTURES / "quantised" / name, FIXTURES / "quantised" / f"{name}.json"
        if not asked.check:
            how = transformers.BitsAndBytesConfig(**kind)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                SOURCE, quantization_config=how, dtype=torch.bfloat16, device_map="cpu"
            )
            out.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory() as made:
                model.save_pretrained(made)
                (out / "config.json").write_bytes((Path(made) / "config.json").read_bytes())
                save_file(load_file(Path(made) / "model.safetensors"), out / "model.safetensors", {"format": "pt"})
            said.write_text(json.dumps(recorded(out), indent=1) + "\n")
        elif json.loads(said.read_text())["library"] != recorded(out)["library"]:
            wrong += 1
            print(f"{name}: another")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
