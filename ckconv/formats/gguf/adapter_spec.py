"""What an adapter is in a GGUF: keys and endings of names.

Sources: ``src/llama-adapter.cpp`` and ``convert_lora_to_gguf.py`` of llama.cpp.
"""

from __future__ import annotations

#: Keys of an adapter's GGUF.
GGUF_KIND = "adapter"
GGUF_TYPE_KEY = "adapter.type"
GGUF_ALPHA_KEY = "adapter.lora.alpha"
GGUF_ALORA_KEY = "adapter.alora.invocation_tokens"
GGUF_A, GGUF_B = ".lora_a", ".lora_b"

#: ``num_heads`` and ``num_kv_heads`` -> the keys of a model's GGUF. An adapter of ckconv carries them too where the
#: order of its rows follows from them, so that it can be read without its base; llama.cpp does not look at them.
HEAD_KEYS = {"num_heads": "{arch}.attention.head_count", "num_kv_heads": "{arch}.attention.head_count_kv"}
