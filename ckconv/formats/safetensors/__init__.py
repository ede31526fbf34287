"""The safetensors container, and checkpoint directories of it."""
