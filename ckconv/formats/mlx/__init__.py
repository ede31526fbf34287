"""Checkpoints and adapters of mlx-lm."""
