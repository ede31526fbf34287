"""What adapters are stored as: file names, keys and tensor endings of peft, mlx-lm and llama.cpp.

Sources: ``peft/utils/save_and_load.py`` and ``peft/tuners/lora`` of peft 0.21, ``mlx_lm/tuner`` of mlx-lm 0.32,
``src/llama-adapter.cpp`` and ``convert_lora_to_gguf.py`` of llama.cpp.
"""

from __future__ import annotations

CONFIG_NAME = "adapter_config.json"
PEFT_NAME = "adapter_model.safetensors"
PEFT_PICKLE = "adapter_model.bin"
MLX_NAME = "adapters.safetensors"

#: What every tensor's name begins with: the base model inside of a PeftModel.
PEFT_PREFIX = "base_model.model."

#: Keys of an adapter's GGUF.
GGUF_KIND = "adapter"
GGUF_TYPE_KEY = "adapter.type"
GGUF_ALPHA_KEY = "adapter.lora.alpha"
GGUF_ALORA_KEY = "adapter.alora.invocation_tokens"
GGUF_A, GGUF_B = ".lora_a", ".lora_b"

#: ``num_heads`` and ``num_kv_heads`` -> the keys of a model's GGUF. An adapter of ckconv carries them too where the
#: order of its rows follows from them, so that it can be read without its base; llama.cpp does not look at them.
HEAD_KEYS = {"num_heads": "{arch}.attention.head_count", "num_kv_heads": "{arch}.attention.head_count_kv"}
