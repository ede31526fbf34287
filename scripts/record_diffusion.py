#!/usr/bin/env python3
"""Record what city96's converter makes of models that diffuse: SHA-256 of its GGUFs.

``git clone --branch auto_convert https://github.com/city96/ComfyUI-GGUF`` (commit 4dfc025), then
``scripts/record_diffusion.py ComfyUI-GGUF/tools``; needs torch, gguf, safetensors and tqdm. Tensors of five axes are
put back by ``fix_5d_tensors.py``, as its README asks for. ``tests/diffusion_models.py`` makes the models.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from gguf import LlamaFileType

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "fixtures" / "diffusion" / "converted.tsv"


def main(tools: Path) -> None:
    """Run it over every model and type."""
    sys.path[:0] = [str(tools), str(ROOT / "tests")]
    names = ("convert", "fix_5d_tensors", "diffusion_models")
    convert, fix_5d_tensors, models = (import_module(name) for name in names)

    # Its own makes an int of an array, which NumPy 2.4 does not.
    file_type = "general.file_type"
    vars(fix_5d_tensors)["get_file_type"] = lambda reader: LlamaFileType(reader.get_field(file_type).contents())
    lines = []
    for name, (_, shapes) in models.MODELS.items():
        for dtype in (*models.TYPES, *(["F8_E4M3"] if name in models.IN_FP8 else [])):
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
                source = models.save_model(Path(folder) / "model.safetensors", shapes(), dtype)
                made = Path(folder) / "made.gguf"
                _, architecture, apart = convert.convert_file(str(source), str(made), allow_fp32=dtype == "F32")
                if apart:
                    whole = made.with_name("whole.gguf")
                    fix_5d_tensors.apply_5d_fix(str(made), str(whole), fix=apart)
                    made = whole
                lines.append(f"{name}\t{dtype}\t{architecture.arch}\t{hashlib.sha256(made.read_bytes()).hexdigest()}\n")
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_text("".join(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
