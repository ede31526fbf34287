"""Record what torch.save writes: fixtures/pytorch/*.bin, and the same tensors in tensors.safetensors.

    python scripts/record_pytorch.py           write the fixtures anew
    python scripts/record_pytorch.py --check   read those that are there with torch, and compare

Needs torch and safetensors.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "pytorch"
#: Types that only the archive's form has.
_NEW = ("uint16", "float8_e4m3fn")
_TYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", *_NEW)


def state() -> dict[str, torch.Tensor]:
    """A tensor of every type, a module's, one of no axis, one of none, a part of another's storage, and a parameter."""
    numbers = torch.arange(-6, 6).reshape(3, 4)
    found = {name: numbers.to(torch.float32).abs().to(getattr(torch, name)) for name in _TYPES}
    module = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(module.weight, 0.5)
    torch.nn.init.constant_(module.bias, -1.0)
    made: dict[str, torch.Tensor] = module.state_dict()
    made |= found
    made |= {"scalar": torch.tensor(7.0), "empty": torch.zeros(0, 4), "part": found["float32"][1:]}
    made["parameter"] = torch.nn.Parameter(torch.ones(2, 2))
    return made


def main() -> None:
    """Write, or compare."""
    if "--check" in sys.argv[1:]:
        wanted = load_file(FOLDER / "tensors.safetensors")
        for path in (FOLDER / "archive.bin", FOLDER / "legacy.bin"):
            for name, tensor in torch.load(path, weights_only=True).items():
                assert torch.equal(tensor.float(), wanted[name].float()), (path, name)
        return
    FOLDER.mkdir(exist_ok=True)
    made = state()
    save_file({name: tensor.detach().clone() for name, tensor in made.items()}, FOLDER / "tensors.safetensors")
    torch.save(made, FOLDER / "archive.bin")
    for name in _NEW:
        del made[name]
    torch.save(made, FOLDER / "legacy.bin", _use_new_zipfile_serialization=False)
    torch.save({"turned": torch.arange(6.0).reshape(2, 3).T}, FOLDER / "turned.bin")


if __name__ == "__main__":
    main()
