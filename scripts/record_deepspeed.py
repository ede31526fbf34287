"""Save a model as DeepSpeed does: fixtures/pytorch/deepspeed-N of ZeRO N, by two processes.

    python scripts/record_deepspeed.py          needs deepspeed (on a processor: DS_ACCELERATOR=cpu)

The model is that of ``record_distributed.py``; two steps of an optimizer go along. ``deepspeed-N.safetensors`` has what
DeepSpeed's own ``zero_to_fp32.py`` joins them to.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import torch
import torch.multiprocessing
from record_distributed import CONFIG
from safetensors.torch import save_file

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "pytorch"
STAGES = (1, 3)


def save(rank: int, stage: int) -> None:
    """What one of the processes does."""
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT="29563", RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2",
        DS_ACCELERATOR="cpu",
    )  # fmt: skip
    import deepspeed
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(2)
    deepspeed.init_distributed("gloo")
    model = AutoModelForCausalLM.from_config(LlamaConfig(**{**CONFIG, "tie_word_embeddings": True})).float()
    model.model.norm.weight.requires_grad_(False)
    config = {
        "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}, "bf16": {"enabled": False},
        "zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True,
    }  # fmt: skip
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.5)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, optimizer=optimizer, config=config)
    for _ in range(2):
        engine.backward(engine(input_ids=torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss)
        engine.step()
    engine.save_checkpoint(str(FOLDER / f"deepspeed-{stage}"), tag="step")
    torch.distributed.destroy_process_group()


def main() -> int:
    """Write the fixtures."""
    for stage in STAGES:
        out = FOLDER / f"deepspeed-{stage}"
        shutil.rmtree(out, ignore_errors=True)
        torch.multiprocessing.spawn(save, (stage,), nprocs=2)
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        joined = get_fp32_state_dict_from_zero_checkpoint(str(out))
        save_file({name: tensor.clone() for name, tensor in joined.items()}, out.with_suffix(".safetensors"))
        for script in out.glob("*.py"):
            script.unlink()
        (out / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
