"""What every key of a configuration is, a table for each ``model_type`` that is known."""

from __future__ import annotations

from collections.abc import Mapping

from ckconv.model.keys.gemma3 import GEMMA3, GEMMA3_TEXT
from ckconv.model.keys.gpt2 import GPT2
from ckconv.model.keys.llama import LLAMA
from ckconv.model.keys.mistral import MISTRAL
from ckconv.model.keys.mixtral import MIXTRAL
from ckconv.model.keys.phi3 import PHI3
from ckconv.model.keys.qwen import QWEN2, QWEN3, QWEN3_MOE
from ckconv.model.keys.table import Table
from ckconv.model.keys.whisper import WHISPER

#: ``model_type`` -> its keys.
KEYS: Mapping[str, Table] = {
    found.model_type: found
    for found in (
        LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3, QWEN3_MOE, GEMMA3_TEXT, GEMMA3, PHI3, GPT2, WHISPER,
    )
}  # fmt: skip
