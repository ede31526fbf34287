"""What mlx-embeddings computes: ``python mlx_embeddings_rows.py MODEL TOGETHER`` reads a JSON list of prompts.

It prints the hidden states of each, of all its tokens, computed in float32 with others of a batch, which are padded.
Only the module of the class is imported: the package itself wants those that load pictures.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types
from pathlib import Path

import mlx.core as mx


def main(folder: str, together: str) -> None:
    found = importlib.util.find_spec("mlx_embeddings")
    assert found is not None
    package = types.ModuleType("mlx_embeddings")
    package.__path__ = list(found.submodule_search_locations or ())
    sys.modules["mlx_embeddings"] = package
    mx.set_default_device(mx.cpu)
    document = json.loads((Path(folder) / "config.json").read_text())
    module = importlib.import_module(f"mlx_embeddings.models.{document['model_type'].replace('-', '_')}")
    model = module.Model(module.ModelArgs.from_dict(document))
    files = [mx.load(str(path)) for path in Path(folder).glob("model*.safetensors")]
    stored = {name: array for file in files for name, array in file.items()}
    model.load_weights([(name, array.astype(mx.float32)) for name, array in model.sanitize(stored).items()])
    model.eval()
    prompts, rows = json.load(sys.stdin), []
    for at in range(0, len(prompts), int(together)):
        part = prompts[at : at + int(together)]
        width = max(map(len, part))
        ids = mx.array([[*prompt, *[0] * (width - len(prompt))] for prompt in part])
        mask = mx.array([[1] * len(prompt) + [0] * (width - len(prompt)) for prompt in part])
        hidden = model(ids, attention_mask=mask).last_hidden_state
        rows += [hidden[n, : len(prompt)].tolist() for n, prompt in enumerate(part)]
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
