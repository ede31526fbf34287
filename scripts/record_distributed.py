"""Save a model as torch.distributed does: fixtures/pytorch/distributed, and its tensors as safetensors beside it.

    python scripts/record_distributed.py

Four processes (gloo) on this machine hold a Llama of one layer: rows are shared by two of them, and the two halves of
each by rows or by columns, as FSDP and tensor parallelism have it; a step of an optimizer, and a number, go along.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed
import torch.distributed.checkpoint
import torch.multiprocessing
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

OUT = Path(__file__).resolve().parent.parent / "fixtures" / "pytorch" / "distributed"
HIDDEN, FFN, VOCAB = 32, 48, 40

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1, "hidden_size": HIDDEN,
    "intermediate_size": FFN, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "torch_dtype": "float32",
    "hidden_act": "silu",
}  # fmt: skip
SHAPES = {
    "embed_tokens": (VOCAB, HIDDEN), "norm": (HIDDEN,), "layers.0.input_layernorm": (HIDDEN,),
    "layers.0.post_attention_layernorm": (HIDDEN,), "layers.0.self_attn.q_proj": (HIDDEN, HIDDEN),
    "layers.0.self_attn.k_proj": (HIDDEN // 2, HIDDEN), "layers.0.self_attn.v_proj": (HIDDEN // 2, HIDDEN),
    "layers.0.self_attn.o_proj": (HIDDEN, HIDDEN), "layers.0.mlp.gate_proj": (FFN, HIDDEN),
    "layers.0.mlp.up_proj": (FFN, HIDDEN), "layers.0.mlp.down_proj": (HIDDEN, FFN),
}  # fmt: skip


def model() -> dict[str, torch.Tensor]:
    """The tensors, whole."""
    torch.manual_seed(1)
    return {f"model.{name}.weight": torch.randn(shape) for name, shape in SHAPES.items()}


def save(rank: int) -> None:
    """What one of the processes does."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29561")
    torch.distributed.init_process_group("gloo", rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    state = {}
    for name, tensor in model().items():
        inner = Replicate() if tensor.ndim == 1 else Shard(1 if "o_proj" in name or "down" in name else 0)
        state[name] = distribute_tensor(tensor, mesh, [Shard(0), inner])
    name, weight = next(iter(state.items()))
    saved = {"model": state, "optim": {"state": {name: {"exp_avg": weight}}, "lr": 0.1}, "step": 7}
    torch.distributed.checkpoint.save(saved, checkpoint_id=OUT)
    torch.distributed.destroy_process_group()


def main() -> int:
    """Write the fixture."""
    torch.multiprocessing.spawn(save, nprocs=4)
    (OUT / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    save_file(model(), OUT.with_suffix(".safetensors"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
