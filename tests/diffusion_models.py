"""Tensors of models that diffuse: names and shapes of published ones, small, with random values.

Sources of the names: ``openaimodel.py`` of latent diffusion (Stable Diffusion 1.5, XL), ``flux2/model.py``,
``hyvideo/modules/models.py``, ``wan/modules/model.py``, LTX-Video's ``transformer3d.py``, the classes of diffusers
0.42.1 (UNet2DConditionModel, QwenImageTransformer2DModel: compared name by name and shape by shape), and
``src/model/diffusion/z_image.hpp`` of stable-diffusion.cpp for Z-Image as ComfyUI publishes it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
from checkpoints import Raw, save_file

Shapes = dict[str, tuple[int, ...]]


def _linear(name: str, out: int, into: int, *, bias: bool = True) -> Shapes:
    return {f"{name}.weight": (out, into)} | ({f"{name}.bias": (out,)} if bias else {})


def _conv(name: str, out: int, into: int, kernel: int) -> Shapes:
    return {f"{name}.weight": (out, into, kernel, kernel), f"{name}.bias": (out,)}


def _norm(name: str, size: int) -> Shapes:
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def _residual(name: str, into: int, out: int, time: int) -> Shapes:
    skip = _conv(f"{name}.skip_connection", out, into, 1) if into != out else {}
    first = _norm(f"{name}.in_layers.0", into) | _conv(f"{name}.in_layers.2", out, into, 3)
    last = _norm(f"{name}.out_layers.0", out) | _conv(f"{name}.out_layers.3", out, out, 3)
    return first | _linear(f"{name}.emb_layers.1", out, time) | last | skip


def _attention(name: str, size: int, context: int, depth: int, *, linear: bool) -> Shapes:
    found = _norm(f"{name}.norm", size)
    for side in ("proj_in", "proj_out"):
        found |= _linear(f"{name}.{side}", size, size) if linear else _conv(f"{name}.{side}", size, size, 1)
    for block in (f"{name}.transformer_blocks.{n}" for n in range(depth)):
        for attention, width in (("attn1", size), ("attn2", context)):
            found |= _linear(f"{block}.{attention}.to_q", size, size, bias=False)
            found |= _linear(f"{block}.{attention}.to_k", size, width, bias=False)
            found |= _linear(f"{block}.{attention}.to_v", size, width, bias=False)
            found |= _linear(f"{block}.{attention}.to_out.0", size, size)
        found |= _linear(f"{block}.ff.net.0.proj", 8 * size, size) | _linear(f"{block}.ff.net.2", size, 4 * size)
        for n in (1, 2, 3):
            found |= _norm(f"{block}.norm{n}", size)
    return found


def unet(width: int, levels: tuple[int, ...], depths: tuple[int, ...], middle: int, context: int, label: int) -> Shapes:
    """A UNet of latent diffusion; ``label`` is the width of SDXL's vector, 0 for none."""
    time, linear = 4 * width, bool(label)
    found = _linear("time_embed.0", time, width) | _linear("time_embed.2", time, time)
    if label:
        found |= _linear("label_emb.0.0", time, label) | _linear("label_emb.0.2", time, time)
    found |= _conv("input_blocks.0.0", width, 4, 3)
    sizes, skips, into, at = [width * level for level in levels], [width], width, 1
    for level, (size, depth) in enumerate(zip(sizes, depths, strict=True)):
        for _ in range(2):
            found |= _residual(f"input_blocks.{at}.0", into, size, time)
            found |= _attention(f"input_blocks.{at}.1", size, context, depth, linear=linear) if depth else {}
            into, at = size, at + 1
            skips.append(size)
        if level < len(sizes) - 1:
            found |= _conv(f"input_blocks.{at}.0.op", size, size, 3)
            skips.append(size)
            at += 1
    for n in (0, 2):
        found |= _residual(f"middle_block.{n}", into, into, time)
    found |= _attention("middle_block.1", into, context, middle, linear=linear)
    at = 0
    for level, (size, depth) in reversed([*enumerate(zip(sizes, depths, strict=True))]):
        for n in range(3):
            found |= _residual(f"output_blocks.{at}.0", into + skips.pop(), size, time)
            found |= _attention(f"output_blocks.{at}.1", size, context, depth, linear=linear) if depth else {}
            if level and n == 2:
                found |= _conv(f"output_blocks.{at}.{2 if depth else 1}.conv", size, size, 3)
            into, at = size, at + 1
    return found | _norm("out.0", into) | _conv("out.2", 4, into, 3)


def _blocks(count: int, prefix: str, block: Shapes) -> Shapes:
    return {f"{prefix}.{n}.{name}": shape for n in range(count) for name, shape in block.items()}


def flux2() -> Shapes:
    size, mlp, head = 128, 384, 64
    norms: Shapes = {"norm.query_norm.scale": (head,), "norm.key_norm.scale": (head,)}
    double: Shapes = {}
    for side in ("img", "txt"):
        double |= {f"{side}_attn.{name}": shape for name, shape in norms.items()}
        double |= {f"{side}_attn.qkv.weight": (3 * size, size), f"{side}_attn.proj.weight": (size, size)}
        double |= {f"{side}_mlp.0.weight": (2 * mlp, size), f"{side}_mlp.2.weight": (size, mlp)}
    single = norms | {"linear1.weight": (3 * size + 2 * mlp, size), "linear2.weight": (size, size + mlp)}
    around: Shapes = {"img_in.weight": (size, 32), "txt_in.weight": (size, 96)}
    for module in ("time_in", "guidance_in"):
        around |= {f"{module}.in_layer.weight": (size, 256), f"{module}.out_layer.weight": (size, size)}
    around |= {f"double_stream_modulation_{side}.lin.weight": (6 * size, size) for side in ("img", "txt")}
    around |= {"single_stream_modulation.lin.weight": (3 * size, size)}
    around |= {"final_layer.linear.weight": (32, size), "final_layer.adaLN_modulation.1.weight": (2 * size, size)}
    return around | _blocks(1, "double_blocks", double) | _blocks(2, "single_blocks", single)


def z_image() -> Shapes:
    size, mlp, head, context = 128, 320, 64, 96
    plain: Shapes = {
        "attention.qkv.weight": (3 * size, size), "attention.out.weight": (size, size),
        "attention.q_norm.weight": (head,), "attention.k_norm.weight": (head,), "feed_forward.w1.weight": (mlp, size),
        "feed_forward.w2.weight": (size, mlp), "feed_forward.w3.weight": (mlp, size), "attention_norm1.weight": (size,),
        "attention_norm2.weight": (size,), "ffn_norm1.weight": (size,), "ffn_norm2.weight": (size,),
    }  # fmt: skip
    modulated = plain | _linear("adaLN_modulation.0", 4 * size, size)
    around = {"x_pad_token": (1, 1088), "cap_pad_token": (1, 1088), "cap_embedder.0.weight": (context,)}
    around |= _linear("x_embedder", size, 64) | _linear("cap_embedder.1", size, context)
    around |= _linear("t_embedder.mlp.0", 256, 256) | _linear("t_embedder.mlp.2", size, 256)
    around |= _linear("final_layer.linear", 64, size) | _linear("final_layer.adaLN_modulation.1", size, size)
    within = _blocks(1, "noise_refiner", modulated) | _blocks(1, "context_refiner", plain)
    return around | within | _blocks(2, "layers", modulated)


def qwen_image() -> Shapes:
    size, head, context = 128, 64, 96
    block: Shapes = {}
    for side in ("img", "txt"):
        block |= _linear(f"{side}_mod.1", 6 * size, size) | _linear(f"{side}_mlp.net.0.proj", 4 * size, size)
        block |= _linear(f"{side}_mlp.net.2", size, 4 * size)
    for name in ("to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj", "to_out.0", "to_add_out"):
        block |= _linear(f"attn.{name}", size, size)
    block |= {f"attn.norm_{name}.weight": (head,) for name in ("q", "k", "added_q", "added_k")}
    around: Shapes = {"txt_norm.weight": (context,)}
    around |= _linear("img_in", size, 64) | _linear("txt_in", size, context) | _linear("proj_out", 64, size)
    around |= _linear("norm_out.linear", 2 * size, size)
    for n, into in ((1, 256), (2, size)):
        around |= _linear(f"time_text_embed.timestep_embedder.linear_{n}", size, into)
    return around | _blocks(2, "transformer_blocks", block)


def ltx_video() -> Shapes:
    size, context = 64, 96
    block: Shapes = {"scale_shift_table": (6, size)}
    for attention in ("attn1", "attn2"):
        for name in ("to_q", "to_k", "to_v", "to_out.0"):
            block |= _linear(f"{attention}.{name}", size, size)
        block |= {f"{attention}.q_norm.weight": (size,), f"{attention}.k_norm.weight": (size,)}
    block |= _linear("ff.net.0.proj", 4 * size, size) | _linear("ff.net.2", size, 4 * size)
    around: Shapes = {"scale_shift_table": (2, 1024)}
    around |= _linear("patchify_proj", size, 128) | _linear("proj_out", 128, size)
    around |= _linear("adaln_single.linear", 6 * size, size)
    for n, into in ((1, 256), (2, size)):
        around |= _linear(f"adaln_single.emb.timestep_embedder.linear_{n}", size, into)
        around |= _linear(f"caption_projection.linear_{n}", size, context if n == 1 else size)
    return around | _blocks(28, "transformer_blocks", block)


def hunyuan_video() -> Shapes:
    size, head, mlp, text = 128, 64, 512, 96
    refiner = _norm("norm1", size) | _norm("norm2", size) | _linear("self_attn_qkv", 3 * size, size)
    refiner |= _linear("self_attn_proj", size, size) | _linear("mlp.fc1", mlp, size) | _linear("mlp.fc2", size, mlp)
    refiner |= _linear("adaLN_modulation.1", 2 * size, size)
    double: Shapes = {}
    for side in ("img", "txt"):
        double |= _linear(f"{side}_mod.linear", 6 * size, size) | _linear(f"{side}_attn_qkv", 3 * size, size)
        double |= {f"{side}_attn_{one}_norm.weight": (head,) for one in "qk"} | _linear(f"{side}_attn_proj", size, size)
        double |= _linear(f"{side}_mlp.fc1", mlp, size) | _linear(f"{side}_mlp.fc2", size, mlp)
    single = _linear("linear1", 3 * size + mlp, size) | _linear("linear2", size, size + mlp)
    single |= {"q_norm.weight": (head,), "k_norm.weight": (head,)} | _linear("modulation.linear", 3 * size, size)
    around: Shapes = {"img_in.proj.weight": (size, 16, 1, 2, 2), "img_in.proj.bias": (size,)}
    around |= _linear("txt_in.input_embedder", size, text) | _linear("vector_in.in_layer", size, 64)
    around |= _linear("txt_in.c_embedder.linear_1", size, text) | _linear("txt_in.c_embedder.linear_2", size, size)
    around |= _linear("vector_in.out_layer", size, size) | _linear("final_layer.linear", 64, size)
    around |= _linear("final_layer.adaLN_modulation.1", 2 * size, size)
    for module in ("txt_in.t_embedder", "time_in", "guidance_in"):
        around |= _linear(f"{module}.mlp.0", size, 256) | _linear(f"{module}.mlp.2", size, size)
    found = around | _blocks(2, "txt_in.individual_token_refiner.blocks", refiner)
    return found | _blocks(1, "double_blocks", double) | _blocks(1, "single_blocks", single)


def wan() -> Shapes:
    size, mlp = 128, 256
    block: Shapes = {"modulation": (1, 6, size + 64)} | _norm("norm3", size)
    for attention in ("self_attn", "cross_attn"):
        for name in "qkvo":
            block |= _linear(f"{attention}.{name}", size, size)
        block |= {f"{attention}.norm_q.weight": (size,), f"{attention}.norm_k.weight": (size,)}
    block |= _linear("ffn.0", mlp, size) | _linear("ffn.2", size, mlp)
    around: Shapes = {"patch_embedding.weight": (size, 16, 1, 2, 2), "patch_embedding.bias": (size,)}
    around |= _linear("text_embedding.0", size, 96) | _linear("text_embedding.2", size, size)
    around |= _linear("time_embedding.0", size, 64) | _linear("time_embedding.2", size, size)
    around |= _linear("time_projection.1", 6 * size, size) | _linear("head.head", 64, size)
    return around | {"head.modulation": (1, 2, size)} | _blocks(1, "blocks", block)


def _of_diffusers(shapes: Shapes) -> Shapes:
    """The names that diffusers' UNet has around its blocks, with a few of its blocks."""
    found = _linear("time_embedding.linear_1", 128, 32) | _linear("time_embedding.linear_2", 128, 128)
    found |= _conv("conv_in", 32, 4, 3) | _conv("conv_out", 4, 32, 3) | _norm("conv_norm_out", 32) | shapes
    for name in ("down_blocks.0.downsamplers.0.conv", "mid_block.resnets.0.conv1", "up_blocks.0.upsamplers.0.conv"):
        found |= _conv(name, 32, 32, 3)
    return found


def _beside(shapes: Shapes) -> Shapes:
    """A checkpoint of everything: the UNet under its prefix, VAE and text encoder beside it."""
    vae = _conv("first_stage_model.encoder.conv_in", 32, 3, 3) | _conv("first_stage_model.decoder.conv_out", 3, 32, 3)
    text = "cond_stage_model.transformer.text_model.embeddings.token_embedding.weight"
    return {f"model.diffusion_model.{name}": shape for name, shape in shapes.items()} | vae | {text: (64, 48)}


def sd15() -> Shapes:
    return unet(32, (1, 2, 4, 4), (1, 1, 1, 0), 1, 48, 0)


def sdxl() -> Shapes:
    return unet(32, (1, 2, 4), (0, 1, 2), 2, 64, 176)


#: Name -> ``general.architecture``, tensors.
MODELS: Mapping[str, tuple[str, Callable[[], Shapes]]] = {
    "sd1.5": ("sd1", sd15),
    "sd1.5 of diffusers": ("sd1", lambda: _of_diffusers({})),
    "sd1.5 with VAE and text encoder": ("sd1", lambda: _beside(sd15())),
    "sdxl": ("sdxl", sdxl),
    "sdxl of diffusers": ("sdxl", lambda: _of_diffusers(_linear("add_embedding.linear_1", 128, 176))),
    "flux 2": ("flux", flux2),
    "z-image": ("lumina2", z_image),
    "qwen-image": ("qwen_image", qwen_image),
    "ltx-video": ("ltxv", ltx_video),
    "hunyuan-video": ("hyvid", hunyuan_video),
    "wan": ("wan", wan),
}

TYPES = ("F32", "F16", "BF16")
#: Models that are made in FP8, too: with rows that are cut, with and without names of diffusers, with five axes.
IN_FP8 = ("sd1.5", "sd1.5 of diffusers", "flux 2", "z-image", "qwen-image", "wan")


def save_model(path: Path, shapes: Shapes, dtype: str) -> Path:
    """Write a file of safetensors, by name as the library does; values follow from names alone."""
    tensors = {}
    for name, shape in sorted(shapes.items()):
        tensors[name] = Raw(dtype, shape, _rounded(_values(name, shape), dtype).tobytes())
    return save_file(path, tensors)


@lru_cache(maxsize=1024)  # of the models that are made last, in one type after another
def _values(name: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32)


def _rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Nearest values of another type, of two the even one."""
    if dtype == "BF16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    if dtype == "F8_E4M3":
        codes = np.arange(0x7F)
        exponent, mantissa = codes >> 3, codes & 7
        positive = np.where(exponent, np.ldexp(8.0 + mantissa, exponent - 10), np.ldexp(mantissa, -9))
        nearest = np.searchsorted((positive[1:] + positive[:-1]) / 2, np.abs(values))
        return (nearest + 128 * (values < 0)).astype(np.uint8)
    return values.astype({"F32": np.float32, "F16": np.float16}[dtype])
