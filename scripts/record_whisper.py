"""Record what whisper.cpp's converter makes of the models of tests/whisper_cases.py: SHA-256 of its files.

    python scripts/record_whisper.py WHISPER_CPP COMMIT OPENAI_WHISPER

Args: a checkout of whisper.cpp, of which models/convert-h5-to-ggml.py is run, and its commit; one of openai-whisper, of
which it takes mel_filters.npz. Needs torch and transformers.
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

from whisper_cases import CASES, save  # noqa: E402


def main(whisper_cpp: str, commit: str, openai_whisper: str) -> None:
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
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy")}
    document = {"versions": {**versions, "whisper.cpp": commit}, "files": files}
    (ROOT / "tests" / "whisper_files.json").write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
