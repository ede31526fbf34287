"""A step of training in two processes, sharded by FSDP2 and saved by torch.distributed.checkpoint, with its logits.

``python fsdp_run.py MODEL FOLDER PROMPT``: MODEL is a checkpoint of transformers, PROMPT a list in JSON. FOLDER gets
what ``torch.distributed.checkpoint`` saves of model and optimizer, config.json, and ``logits.npy`` of what was trained.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM

PROCESSES = 2


def train(rank: int, model_path: str, folder: str, prompt: list[int]) -> None:
    """What one of the processes does."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=PROCESSES)
    mesh = init_device_mesh("cpu", (PROCESSES,))
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32, attn_implementation="eager")
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.tensor([prompt])
    model(tokens, labels=tokens).loss.backward()
    optimizer.step()
    with torch.no_grad():
        rows = model(tokens).logits[0].float().numpy()
    states = get_state_dict(model, optimizer)
    dcp.save(dict(zip(("model", "optimizer"), states, strict=True)), checkpoint_id=folder)
    if rank == 0:
        np.save(Path(folder) / "logits.npy", rows)
        shutil.copy(Path(model_path) / "config.json", folder)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, (sys.argv[1], sys.argv[2], json.loads(sys.argv[3])), PROCESSES)
