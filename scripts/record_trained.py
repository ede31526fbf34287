"""Record what transformers computes of models trained in C-Kernel-Engine, for tests that run without torch.

    python scripts/record_trained.py           write fixtures/logits/trained.* anew
    python scripts/record_trained.py --check   compute again and compare

The classes are filled by hand from the entries of a manifest, by the rules that the engine's losses were held against;
nothing of ckconv is used. The logits of a GGUF with blocks are those of transformers' own reader of GGUF.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import numpy as np  # noqa: E402
import recorded  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from kept_arrays import moved  # noqa: E402
from trained_cases import CASES, PROMPT, Case  # noqa: E402

FOLDER = ROOT / "fixtures" / "logits"
ARRAYS, FACTS = FOLDER / "trained.npz", FOLDER / "trained.json"
BLOCKS = ROOT / "fixtures" / "kquants" / "llama64.Q4_K_M.gguf"

#: What two machines may differ by.
TOLERANCE = 1e-5

CLASSES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, {"attention_bias": True}),
}

_VECTORS = {"ln1_gamma": "input_layernorm.weight", "ln2_gamma": "post_attention_layernorm.weight",
            "q_norm": "self_attn.q_norm.weight", "k_norm": "self_attn.k_norm.weight"}  # fmt: skip
_LINEAR = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
           "2": "mlp.down_proj"}  # fmt: skip


def halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of which neighbors are rotated together, in the order in which transformers rotates halves."""
    return np.concatenate([part for head in np.split(rows, heads) for part in (head[::2], head[1::2])])


def filled(path: Path, case: Case) -> Any:
    """A class of transformers with the weights of a file."""
    manifest = json.loads(path.with_name(f"{path.stem}_manifest.json").read_text())
    c, data = manifest["config"], path.read_bytes()
    t = {e["name"]: np.frombuffer(data, "<f4", e["size"] // 4, e["offset"]).reshape(e["shape"])
         for e in manifest["entries"]}  # fmt: skip
    t = {name: np.zeros_like(array) if name.endswith(case.drop or ("\0",)) else array for name, array in t.items()}
    # Qwen2ForCausalLM has fewer biases than qwen2 trains; Llama's class has them all, and rotates halves as well.
    config_class, model_class, switches = CLASSES["qwen3" if c["model"] == "qwen3" else "llama"]
    model = model_class(config_class(
        vocab_size=c["vocab_size"], hidden_size=c["embed_dim"], intermediate_size=c["intermediate_size"],
        num_hidden_layers=c["num_layers"], num_attention_heads=c["num_heads"], num_key_value_heads=c["num_kv_heads"],
        head_dim=c["head_dim"], max_position_embeddings=c["context_len"], rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": c["rope_theta"]}, tie_word_embeddings=False,
        attn_implementation="eager", **switches,
    ))  # fmt: skip
    state = {"model.embed_tokens.weight": t["token_emb"], "model.norm.weight": t["final_ln_weight"],
             "lm_head.weight": t["output.weight"]}  # fmt: skip
    heads = {"q": c["num_heads"], "k": c["num_kv_heads"]}
    for n in range(c["num_layers"]):
        ours, theirs = f"layer.{n}.", f"model.layers.{n}."
        vectors = _VECTORS if c["model"] == "qwen3" else dict(list(_VECTORS.items())[:2])
        state |= {theirs + name: t[ours + kind] for kind, name in vectors.items()}
        for letter, name in _LINEAR.items():
            for kind, what in (("w", "weight"), ("b", "bias")):
                rows = t[ours + kind + letter]
                turned = letter in heads and c["model"] == "llama"
                state[f"{theirs}{name}.{what}"] = halves(rows, heads[letter]) if turned else rows
        for kind, what in (("w", "weight"), ("b", "bias")):
            gate, up = np.split(t[f"{ours}{kind}1"], 2)
            state |= {f"{theirs}mlp.gate_proj.{what}": gate, f"{theirs}mlp.up_proj.{what}": up}
    for name, module in model.named_modules():  # biases that the class has not
        if isinstance(module, torch.nn.Linear) and module.bias is None and f"{name}.bias" in state:
            module.bias = torch.nn.Parameter(torch.zeros(module.out_features))
    model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in state.items()}, strict=True)
    return model


def logits(model: Any, prompt: tuple[int, ...]) -> np.ndarray:
    """``[positions, vocabulary]``."""
    with torch.no_grad():
        return np.asarray(model.eval()(input_ids=torch.tensor([prompt]), use_cache=False).logits[0].numpy())


def main() -> int:
    """Run from the command line; 1 if a number moved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    arrays, inputs = {}, {}
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = case.source(Path(folder))
            arrays[name] = logits(filled(path, case), PROMPT)
            inputs[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    blocks = transformers.AutoModelForCausalLM.from_pretrained(
        BLOCKS.parent, gguf_file=BLOCKS.name, dtype=torch.float32, attn_implementation="eager"
    )
    arrays[BLOCKS.name] = logits(blocks, recorded.PROMPT)[recorded.FACTS["rows"]]
    inputs[BLOCKS.name] = hashlib.sha256(BLOCKS.read_bytes()).hexdigest()
    if not asked.check:
        np.savez_compressed(ARRAYS, **arrays)  # type: ignore[arg-type]
        versions = {name: importlib.metadata.version(name) for name in ("transformers", "torch")}
        FACTS.write_text(json.dumps({"versions": versions, "inputs": inputs}, indent=1) + "\n")
        return 0
    return moved(arrays, ARRAYS, TOLERANCE)


if __name__ == "__main__":
    raise SystemExit(main())
