"""Hold what the libraries of other quantizers decode of ``--pack``'s outputs against what is recorded.

    pip install compressed-tensors==0.20.0 nvidia-modelopt==0.47.0 torch
    python scripts/check_packing.py

Every matrix has to be what its own library computes of the source (``library`` of ``fixtures/quantised/NAME.json``).
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from ckconv.cli import run  # noqa: E402

FIXTURES = ROOT / "fixtures" / "quantised"

#: Layout -> a fixture and what it is converted to before it is packed.
CASES: dict[str, dict[str, tuple[str, ...]]] = {
    "compressed-tensors": {
        "awq-g32": (), "gptq-4b-g32-asym-v1": (), "gptq-4b-g32-asym-v2": (), "gptq-8b-gall-sym": (),
        "ct-w4-g32-asym": ("--to", "mlx"), "ct-w4-g32-sym": ("--to", "gguf"), "ct-mxfp4": ("--to", "gguf"),
    },
    "modelopt": {"modelopt-nvfp4": ("--to", "gguf", "--tensor-scales")},
}  # fmt: skip

Arrays = dict[str, Any]


def by_compressed_tensors(config: dict[str, Any], module: str, arrays: Arrays) -> Any:
    """A matrix, as its ``decompress`` has it."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    said = QuantizationConfig.model_validate(config)
    schemes = said.config_groups.values()
    scheme = next(one for one in schemes if "Linear" in one.targets or module in one.targets)
    return BaseCompressor.get_value_from_registry(scheme.format).decompress(arrays, scheme)["weight"]


def by_modelopt(config: dict[str, Any], module: str, arrays: Arrays) -> Any:
    """A matrix, as ``NVFP4QTensor.dequantize`` has it."""
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    codes = arrays["weight"]
    packed = NVFP4QTensor((codes.shape[0], codes.shape[1] * 2), torch.float32, codes)
    numbers = {"scale": arrays["weight_scale"], "double_scale": arrays["weight_scale_2"]}
    return packed.dequantize(torch.float32, block_sizes={-1: 16}, **numbers)


DECODERS = {"compressed-tensors": by_compressed_tensors, "modelopt": by_modelopt}


def differing(layout: str, name: str, through: tuple[str, ...], place: Path) -> list[str]:
    """Matrices that are not what is recorded."""
    source, middle, out = FIXTURES / name, place / ("m.gguf" if "gguf" in through else "mlx"), place / "packed"
    if through and run(["convert", "-q", str(source), str(middle), *through]):
        return [name]
    dtype = ("--dtype", "bf16") if "mlx" in through else ()  # triples have float32 scales
    if run(["convert", "-q", str(middle if through else source), f"{out}/", "--to", "hf", "--pack", layout, *dtype]):
        return [name]
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    tensors = load_file(out / "model.safetensors")
    wrong = []
    for matrix, digest in json.loads((FIXTURES / f"{name}.json").read_text())["library"].items():
        module = matrix.removesuffix(".weight")
        arrays = {key[len(module) + 1 :]: tensor for key, tensor in tensors.items() if key.startswith(f"{module}.")}
        found = DECODERS[layout](config, module, arrays).detach().float() + 0  # -0 is recorded as 0
        if hashlib.sha256(found.numpy().tobytes()).hexdigest() != digest:
            wrong.append(matrix)
    return wrong


def main() -> int:
    """Run from the command line; 1 if a matrix is another."""
    found = {}
    for layout, cases in CASES.items():
        for name, through in cases.items():
            with tempfile.TemporaryDirectory() as place:
                found[name] = differing(layout, name, through, Path(place))
            print(f"{name:22} {layout:18} {'equal' if not found[name] else found[name]}")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
