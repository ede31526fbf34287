"""What llama.cpp's own converter makes of checkpoints: ``python llama_cpp_converter.py LLAMA_CPP_SOURCES``.

One line of JSON asks, ``{"model", "out", "type", "document", "plain", "arguments",
"vocabulary"}``, one answers: empty, or why there
is no file. Vocabularies are written as those of GPT-2, whatever class of tokenizer a family has, unless ``vocabulary``
asks for its own; and no list of words without a row, for which MiniMax's class wants files of a split checkpoint.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any


def main(sources: str) -> None:
    """Answer the lines of standard input."""
    sys.path[:0] = [sources, str(Path(sources) / "gguf-py")]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    program: Any = importlib.import_module("convert_hf_to_gguf")
    base: Any = importlib.import_module("conversion.base")
    importlib.import_module("conversion").load_all_models()
    # its tokenizer's loader reads config.json as a class that a model_type of a repository's code does not have
    importlib.import_module("transformers").PreTrainedConfig.max_position_embeddings = 0
    read = base.ModelBase.load_hparams
    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    importlib.import_module("conversion.minimax").MiniMaxText01Model._get_suppress_tokens = lambda self: None
    whole = {known: known.no_mtp for known in base.ModelBase._model_classes[base.ModelType.TEXT].values()}
    classes = {known: known.set_vocab for known in base.ModelBase._model_classes[base.ModelType.TEXT].values()}
    tables = [(known, name) for known in classes for name, table in vars(known).items() if table == {}]
    # names of one architecture's tensors (Arctic) are written into the table of all
    names: Any = importlib.import_module("gguf").TensorNameMap
    shared = dict(names.block_mappings_cfg)
    for line in sys.stdin:
        asked = json.loads(line)

        def load(folder: Path, is_mistral_format: bool, asked: dict[str, Any] = asked) -> Any:
            plain = json.loads((folder / "config.json").read_text())
            return {**(plain if asked["plain"] else read(folder, is_mistral_format)), **asked["document"]}

        base.ModelBase.load_hparams = staticmethod(load)
        names.block_mappings_cfg = dict(shared)
        for known, left in whole.items():
            known.no_mtp = left  # a flag of its command line stays on the class
        for known, name in tables:  # what RWKV's class has gathered of one model
            setattr(known, name, {})
        for known, own in classes.items():
            known.set_vocab = own if asked["vocabulary"] else lambda self: self._set_vocab_gpt2()
        sys.argv = ["convert_hf_to_gguf.py", asked["model"], "--outfile", asked["out"], "--outtype", asked["type"]]
        sys.argv += asked["arguments"]
        said = ""
        try:
            program.main()
        except (Exception, SystemExit) as error:
            said = f"{type(error).__name__}: {error}"[:600]
        print(json.dumps(said), file=out, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
