"""What every key of a configuration is, a table for each ``model_type`` that is known."""

from __future__ import annotations

from collections.abc import Mapping

from ckconv.core.key_table import Table
from ckconv.families.key_tables.gemma3 import GEMMA3, GEMMA3_TEXT
from ckconv.families.key_tables.gpt2 import GPT2
from ckconv.families.key_tables.llama import LLAMA
from ckconv.families.key_tables.mistral import MISTRAL
from ckconv.families.key_tables.mixtral import MIXTRAL
from ckconv.families.key_tables.phi3 import PHI3
from ckconv.families.key_tables.qwen import QWEN2, QWEN3, QWEN3_MOE
from ckconv.families.key_tables.whisper import WHISPER

#: ``model_type`` -> its keys.
KEYS: Mapping[str, Table] = {
    found.model_type: found
    for found in (
        LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3, QWEN3_MOE, GEMMA3_TEXT, GEMMA3, PHI3, GPT2, WHISPER,
    )
}  # fmt: skip
