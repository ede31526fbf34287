"""What mlx-lm calls the files of an adapter. Source: ``mlx_lm/tuner`` of mlx-lm 0.32."""

from __future__ import annotations

MLX_NAME = "adapters.safetensors"
