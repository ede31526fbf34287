"""Towers whose classes are code of their repositories: libmtmd, and what that code computes, without it.

DeepSeek-OCR's two towers, and a Gemma 3n's MobileNetV5, which is timm's, are run in files of two types, and nothing
computes them a second time here.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_libmtmd import computed, made
from tower_cases import checkpoint, recorded_tower, with_tokens

#: Case -> height and width of a picture.
PICTURES = {"kimi_vl-f16": (112, 168), "kimi_k25-f16": (112, 168), "dots_ocr-f16": (16, 16), "cogvlm-f16": (16, 16)}


class Tower:
    """The stored matrices, and what several codes have."""

    def __init__(self, root: Path) -> None:
        from safetensors.torch import load_file

        self.stored = {key: value.float() for key, value in load_file(root / "model.safetensors").items()}

    def linear(self, name: str, states: Any) -> Any:
        found = states @ self.stored[f"{name}.weight"].T
        return found + self.stored.get(f"{name}.bias", 0)

    def norm(self, name: str, states: Any, eps: float = 1e-5) -> Any:
        states = states - states.mean(-1, keepdim=True)
        return self.rms(name, states, eps) + self.stored[f"{name}.bias"]

    def rms(self, name: str, states: Any, eps: float) -> Any:
        return states * (states.square().mean(-1, keepdim=True) + eps) ** -0.5 * self.stored[f"{name}.weight"]

    def patches(self, name: str, pixels: Any, size: int) -> Any:
        import torch

        kernel, bias = self.stored[f"{name}.weight"], self.stored[f"{name}.bias"]
        return torch.nn.functional.conv2d(pixels, kernel, bias, stride=size)[0]


def attend(qkv: Any, heads: int, turned: Any = lambda states: states) -> Any:
    """Attention of all to all, of Q, K and V side by side."""
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(1, 2, 0, 3)
    q, k = turned(q), turned(k)
    return ((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(0, 1).flatten(1)


def squares(states: Any, rows: int, columns: int) -> Any:
    """Parts of a picture in squares of four."""
    return states.unflatten(0, (rows // 2, 2, columns // 2, 2)).transpose(1, 2).flatten(0, 3)


def kimi(tower: Tower, pixels: Any, projector: tuple[str, str, str], how: dict[str, Any]) -> Any:
    """MoonViT and its projector (modeling_kimi_vl.py, modeling_kimi_k25.py); how: positions are interpolated."""
    import torch

    gelu, interpolate = torch.nn.functional.gelu, torch.nn.functional.interpolate
    parts = tower.patches("vision_tower.patch_embed.proj", pixels, 14)
    rows, columns = parts.shape[1:]
    table = tower.stored["vision_tower.patch_embed.pos_emb.weight"].permute(2, 0, 1)[None]
    states = (parts + interpolate(table, size=(rows, columns), **how)[0]).flatten(1).T
    turns = 10000 ** (-torch.arange(0, 8, 4) / 8)
    y, x = (place.flatten()[:, None] * turns for place in torch.meshgrid(
        torch.arange(rows), torch.arange(columns), indexing="ij"))  # fmt: skip
    spun = torch.polar(torch.ones(len(x), 4), torch.stack([x, y], -1).flatten(1))

    def turned(states: Any) -> Any:
        return torch.view_as_real(torch.view_as_complex(states.unflatten(-1, (-1, 2)).contiguous()) * spun).flatten(-2)

    for n in range(3):
        block = f"vision_tower.encoder.blocks.{n}"
        qkv = tower.linear(f"{block}.wqkv", tower.norm(f"{block}.norm0", states))
        states = states + tower.linear(f"{block}.wo", attend(qkv, 2, turned))
        inner = gelu(tower.linear(f"{block}.mlp.fc0", tower.norm(f"{block}.norm1", states)), approximate="tanh")
        states = states + tower.linear(f"{block}.mlp.fc1", inner)
    states = squares(tower.norm("vision_tower.encoder.final_layernorm", states), rows, columns)
    norm, up, down = projector
    states = tower.norm(norm, states).unflatten(0, (-1, 4)).flatten(1)
    return tower.linear(down, gelu(tower.linear(up, states)))


def dots_ocr(tower: Tower, pixels: Any) -> Any:
    """The tower of dots.ocr (modeling_dots_vision.py)."""
    import torch

    start = "vision_tower.patch_embed.patchifier"
    parts = tower.patches(f"{start}.proj", pixels, 4)
    rows, columns = parts.shape[1:]
    states = tower.rms(f"{start}.norm", squares(parts.flatten(1).T, rows, columns), 1e-5)
    places = torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"), -1).flatten(0, 1)
    turns = 10000 ** (-torch.arange(0, 4, 2) / 4)
    angles = (squares(places, rows, columns)[:, :, None] * turns).flatten(1).repeat(1, 2)

    def turned(states: Any) -> Any:
        low, high = states.chunk(2, -1)
        return states * angles.cos() + torch.cat([-high, low], -1) * angles.sin()

    for n in range(3):
        block = f"vision_tower.blocks.{n}"
        qkv = tower.linear(f"{block}.attn.qkv", tower.rms(f"{block}.norm1", states, 1e-5))
        states = states + tower.linear(f"{block}.attn.proj", attend(qkv, 2, turned))
        inner = tower.rms(f"{block}.norm2", states, 1e-5)
        gate = torch.nn.functional.silu(tower.linear(f"{block}.mlp.fc1", inner))
        states = states + tower.linear(f"{block}.mlp.fc2", gate * tower.linear(f"{block}.mlp.fc3", inner))
    states = tower.norm("vision_tower.merger.ln_q", tower.rms("vision_tower.post_trunk_norm", states, 1e-5), 1e-6)
    inner = tower.linear("vision_tower.merger.mlp.0", states.unflatten(0, (-1, 4)).flatten(1))
    return tower.linear("vision_tower.merger.mlp.2", torch.nn.functional.gelu(inner))


def cogvlm(tower: Tower, pixels: Any) -> Any:
    """CogVLM's EVA and GLU (visual.py); GELU is x * sigmoid(1.702 x) within layers, as a note says of llama.cpp."""
    import torch

    start = "model.vision"
    parts = tower.patches(f"{start}.patch_embedding.proj", pixels, 4).flatten(1).T
    states = torch.cat([tower.stored[f"{start}.patch_embedding.cls_embedding"], parts])
    states = states + tower.stored[f"{start}.patch_embedding.position_embedding.weight"]
    for n in range(3):
        layer = f"{start}.transformer.layers.{n}"
        found = attend(tower.linear(f"{layer}.attention.query_key_value", states), 2)
        found = tower.linear(f"{layer}.attention.dense", found)
        states = states + tower.norm(f"{layer}.input_layernorm", found, 1e-6)
        inner = tower.linear(f"{layer}.mlp.fc1", states)
        found = tower.linear(f"{layer}.mlp.fc2", inner * torch.sigmoid(1.702 * inner))
        states = states + tower.norm(f"{layer}.post_attention_layernorm", found, 1e-6)
    start += ".linear_proj"
    states = tower.norm(f"{start}.norm1", tower.linear(f"{start}.linear_proj", states[1:]))
    states = torch.nn.functional.gelu(states)
    gate = torch.nn.functional.silu(tower.linear(f"{start}.gate_proj", states))
    states = tower.linear(f"{start}.dense_4h_to_h", gate * tower.linear(f"{start}.dense_h_to_4h", states))
    ends = (tower.stored[f"model.vision.{name}"][0] for name in ("boi", "eoi"))
    return torch.cat([next(ends), states, next(ends)])


@pytest.mark.live
@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.skipif(not importlib.util.find_spec("xllamacpp"), reason="xllamacpp is not installed")
def test_libmtmd_sees_what_the_code_of_a_repository_computes(name: str, tmp_path: Path) -> None:
    import torch

    source = checkpoint(recorded_tower(name), tmp_path / "source")
    picture = np.random.default_rng(1).integers(0, 256, (*PICTURES[name], 3), dtype=np.uint8)
    found, _, _ = computed(name, source, picture, tmp_path, made("lighton_ocr-f16", tmp_path / "other"))

    prepared = json.loads((source / "preprocessor_config.json").read_text())
    seen = (picture / 255 - prepared["image_mean"]) / prepared["image_std"]
    pixels = torch.tensor(seen, dtype=torch.float32).permute(2, 0, 1)[None]
    tower, family = Tower(source), name.partition("-")[0]
    if family == "dots_ocr":
        wanted = dots_ocr(tower, pixels)
    elif family == "cogvlm":
        wanted = cogvlm(tower, pixels)
    else:
        how: dict[str, Any] = {"mode": "bilinear", "antialias": True}  # bicubic in the class, as a note says
        projector = (
            "multi_modal_projector.pre_norm",
            "multi_modal_projector.linear_1",
            "multi_modal_projector.linear_2",
        )
        if family == "kimi_k25":
            projector = ("mm_projector.pre_norm", "mm_projector.proj.0", "mm_projector.proj.2")
            how = {"mode": "bicubic"}
        wanted = kimi(tower, pixels, projector, how)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted.numpy()).max() < 3e-3 * wanted.abs().max()


#: Case -> side of a picture.
UNCOMPARED = {"gemma3n-bf16": 768, "deepseek_ocr-bf16": 1024}


@pytest.mark.live
@pytest.mark.parametrize("name", UNCOMPARED)
@pytest.mark.skipif(not importlib.util.find_spec("xllamacpp"), reason="xllamacpp is not installed")
def test_libmtmd_loads_files_of_two_types_and_sees_the_same(name: str, tmp_path: Path) -> None:
    source = with_tokens(recorded_tower(name), tmp_path / "source")
    other = None if name.startswith("gemma3n") else made("lighton_ocr-f16", tmp_path / "other")
    picture = np.random.default_rng(1).integers(0, 256, (UNCOMPARED[name], UNCOMPARED[name], 3), dtype=np.uint8)
    seen = []
    for dtype in ("engine", "f16"):
        (tmp_path / dtype).mkdir()
        seen.append(computed(name, source, picture, tmp_path / dtype, other, dtype)[0])

    assert np.isfinite(seen).all()
    assert np.abs(seen[0] - seen[1]).max() < 2e-2 * np.abs(seen[1]).max()
