"""Record what whisper.cpp's converter makes of the models of tests/whisper_cases.py: SHA-256 of its files.

    python scripts/record_whisper.py WHISPER_CPP COMMIT OPENAI_WHISPER [QUANTIZE]

Args: a checkout of whisper.cpp, of which models/convert-h5-to-ggml.py is run, and its commit; one of openai-whisper, of
which it takes mel_filters.npz; its program whisper-quantize, without which what was recorded of it stays. Needs torch
and transformers.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from whisper_cases import BLOCKS, CASES, WHOLE, save  # noqa: E402

RECORD = ROOT / "tests" / "whisper_files.json"


def quantized(program: str, script: list[str], openai_whisper: str, made: Path) -> dict[str, str]:
    """SHA-256 of what whisper-quantize makes of the smallest model, by type."""
    folder = save(made / "whole", "english-80-f16", **WHOLE)
    subprocess.run([*script, str(folder), openai_whisper, str(made)], check=True, stdout=subprocess.DEVNULL)
    found = {}
    for kind in BLOCKS:
        command = [program, str(made / "ggml-model.bin"), str(made / kind), kind]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found[kind] = hashlib.sha256((made / kind).read_bytes()).hexdigest()
    return found


def main(whisper_cpp: str, commit: str, openai_whisper: str, quantize: str = "") -> None:
    """Record them."""
    script = Path(whisper_cpp) / "models" / "convert-h5-to-ggml.py"
    files = {}
    with tempfile.TemporaryDirectory() as made:
        for case, (_, _, dtype) in CASES.items():
            folder = save(Path(made) / case, case)
            more = ["f32"] if dtype == "float32" else []
            command = [sys.executable, str(script), str(folder), openai_whisper, made, *more]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            data = (Path(made) / f"ggml-model{'-f32' if more else ''}.bin").read_bytes()
            files[case] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        blocks = json.loads(RECORD.read_text())["quantised"]
        if quantize:
            blocks = quantized(quantize, [sys.executable, str(script)], openai_whisper, Path(made))
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy")}
    document = {"versions": {**versions, "whisper.cpp": commit}, "files": files, "quantised": blocks}
    RECORD.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
