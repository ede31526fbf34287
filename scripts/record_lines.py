"""Record the keys that llama.cpp's converter makes of RWKV's and PLaMo's files: ``python scripts/record_lines.py``.

LLAMA_CPP_SOURCES names the folder of convert_hf_to_gguf.py; torch is needed. Files and settings are those of
``tests/tokenizer_lines.py``; ``fixtures/tokenizers/lines.json`` is written.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCES = os.environ["LLAMA_CPP_SOURCES"]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), SOURCES, str(Path(SOURCES) / "gguf-py")]

from llama_cpp_vocabulary import said_by  # noqa: E402
from tokenizer_lines import CASES, beside  # noqa: E402


def main() -> None:
    """One model of few rows for each file."""
    base: Any = importlib.import_module("conversion.base")
    gguf: Any = importlib.import_module("gguf")
    classes = {
        "rwkv": importlib.import_module("conversion.rwkv").Rwkv7Model,
        "plamo2": importlib.import_module("conversion.plamo").Plamo3Model,
    }
    made = {}
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            root = beside(Path(folder), case)
            known = classes[case.kind]
            writer = gguf.GGUFWriter(root / "out.gguf", "llama")
            model = SimpleNamespace(dir_model=root, hparams={"vocab_size": case.rows}, gguf_writer=writer)
            for method in ("_set_vocab_rwkv_world", "_set_vocab_plamo"):
                setattr(model, method, getattr(base.TextModel, method).__get__(model))
            known.set_vocab(model)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.close()
            fields = gguf.GGUFReader(root / "out.gguf").fields
            template = fields.get("tokenizer.chat_template")
            made[name] = {**said_by(root / "out.gguf"), "chat_template": template.contents() if template else None}
    (ROOT / "fixtures/tokenizers/lines.json").write_text(json.dumps(made, indent=1, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
