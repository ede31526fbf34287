"""Checkpoints of transformers."""
