"""GGUF."""
