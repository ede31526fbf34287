"""What peft calls the files and tensors of an adapter.

Sources: ``peft/utils/save_and_load.py`` and ``peft/tuners/lora`` of peft 0.21.
"""

from __future__ import annotations

PEFT_NAME = "adapter_model.safetensors"
PEFT_PICKLE = "adapter_model.bin"

#: What every tensor's name begins with: the base model inside of a PeftModel.
PEFT_PREFIX = "base_model.model."
