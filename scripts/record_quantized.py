"""Record what other quantizers' own libraries make of their checkpoints: fixtures/quantised/NAME and NAME.json.

    python scripts/record_quantized.py MODELS NAME...           copy these models, and write the digests of their values
    python scripts/record_quantized.py MODELS --check NAME...   compare with what is there

``MODELS/NAME`` has, beside the checkpoint, ``dequant.safetensors``: every matrix as the library of the format decodes
it (GPTQModel's ``TorchLinear.dequantize_weight``, AutoAWQ's ``dequantize_gemm``, compressed-tensors' ``decompress``,
transformers' ``dequantize=True``), by its dense name. A digest is the SHA-256 of the values as float32, -0 as 0.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "quantised"
FILES = ("config.json", "model.safetensors")


def digests(path: Path) -> dict[str, str]:
    """Name -> digest of every tensor of a file."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    found = {}
    for name, facts in sorted(header.items()):
        start, stop = (8 + size + at for at in facts["data_offsets"])
        values = _floats(facts["dtype"], data[start:stop]) + np.float32(0)
        found[name] = hashlib.sha256(values.tobytes()).hexdigest()
    return found


def _floats(dtype: str, data: bytes) -> np.ndarray:
    if dtype == "BF16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, {"F16": np.float16, "F32": np.float32}[dtype]).astype(np.float32)


def main() -> int:
    """Write, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--check", action="store_true", help="compare, and change nothing")
    asked = parser.parse_args()
    wrong = 0
    for name in asked.names:
        source, out, said = asked.models / name, FIXTURES / name, FIXTURES / f"{name}.json"
        found = {"library": digests(source / "dequant.safetensors")}
        files = [source / file for file in FILES]
        if asked.check:
            alike = all((out / path.name).read_bytes() == path.read_bytes() for path in files)
            if not alike or json.loads(said.read_text()) != found:
                wrong += 1
                print(f"{name}: another")
            continue
        out.mkdir(exist_ok=True)
        for path in files:
            shutil.copyfile(path, out / path.name)
        said.write_text(json.dumps(found, indent=1) + "\n")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
