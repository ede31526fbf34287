"""Make checkpoints with the libraries of quantizers, and record the values that these have of them.

    python scripts/record_packings.py [NAME...]           write fixtures/quantised/NAME anew
    python scripts/record_packings.py --check [NAME...]   compute the values of those that are there, and compare

The matrices are those of ``fixtures/hf/qwen2-tied-bf16``, rounded to the nearest here and packed by the library:
auto-round 0.16, compressed-tensors 0.20, GPTQModel 7.7, torchao 0.18, amd-quark 0.13, hqq 0.2.8, comfy-kitchen 0.2.40;
what is there of them is used.
``NAME.json`` has the SHA-256 of every matrix as the library decodes it, as float32, -0 as 0, and its version.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
SOURCE = FIXTURES / "hf" / "qwen2-tied-bf16"
GROUP = 32

#: Arrays of a module, without its name.
Arrays = dict[str, torch.Tensor]


def rounded(weight: torch.Tensor, bits: int, group: int = GROUP) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zero points ``[R, G]`` with which a matrix is rounded to integers from 0 on."""
    grouped = weight.float().reshape(len(weight), -1, group)
    low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    scale = ((high - low) / (2**bits - 1)).clamp(min=1e-5).half().float()
    zero = (-low / scale).round().clamp(1, 2**bits - 1)
    return scale, zero


def _linear(weight: torch.Tensor) -> torch.nn.Linear:
    made = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    made.weight.data = weight.float()
    return made


def _buffers(module: torch.nn.Module, names: str) -> Arrays:
    return {name: getattr(module, name).clone() for name in names.split()}


def auto_round(bits: int, form: str) -> tuple[Any, ...]:
    """Its own classes; decoded by what they multiply with, as a product with the identity."""

    def layer(rows: int, columns: int) -> Any:
        if form == "auto_round:auto_awq":
            from auto_round.export.export_to_awq.utils import WQLinear_GEMM

            return WQLinear_GEMM(bits, GROUP, columns, rows, False, "cpu")
        if form == "auto_round:auto_gptq":
            from auto_round_extension.torch.qlinear_torch_zp import QuantLinear
        else:
            from auto_round_extension.torch.qlinear_torch import QuantLinear
        return QuantLinear(bits, GROUP, columns, rows, False)

    def pack(weight: torch.Tensor) -> Arrays:
        scale, zero = rounded(weight, bits)
        made = layer(*weight.shape)
        if form == "auto_round:auto_awq":
            made = made.from_linear(_linear(weight), bits, GROUP, scales=scale.t().contiguous(), zeros=zero.t())
        else:
            made.device = "cpu"
            made.pack(_linear(weight), scale, zero, None, device="cpu")
        return _buffers(made, "qweight qzeros scales")

    def unpack(arrays: Arrays) -> torch.Tensor:
        rows, columns = arrays["scales"].shape[1], arrays["scales"].shape[0] * GROUP
        made = layer(rows, columns)
        for name, array in arrays.items():
            setattr(made, name, array)
        if form == "auto_round:auto_awq":
            from auto_round.export.export_to_awq.utils import dequantize_gemm

            return dequantize_gemm(*(arrays[name] for name in ("qweight", "qzeros", "scales")), bits, GROUP).t()
        return made(torch.eye(columns, dtype=torch.float16)).t()

    settings = {"quant_method": "auto-round", "bits": bits, "group_size": GROUP, "sym": False, "packing_format": form}
    return "auto-round", settings, pack, unpack


def gptqmodel(bits: int, form: str) -> tuple[Any, ...]:
    """Codes as ``planar_packing.py`` lays them out, version 2; the package itself wants more than it takes to do so."""
    place = importlib.util.find_spec("gptqmodel")
    assert place is not None
    assert place.submodule_search_locations is not None
    path = Path(place.submodule_search_locations[0]) / "utils" / "planar_packing.py"
    spec = importlib.util.spec_from_file_location("planar_packing", path)
    assert spec is not None
    assert spec.loader is not None
    planar = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(planar)

    def pack(weight: torch.Tensor) -> Arrays:
        scale, zero = rounded(weight, bits)
        codes = (weight.float().reshape(len(weight), -1, GROUP) / scale[..., None]).round() + zero[..., None]
        codes = codes.clamp(0, 2**bits - 1).reshape(weight.shape)
        return {
            "qweight": planar.planar_pack_rows(codes.t().int(), bits),
            "qzeros": planar.planar_pack_cols(zero.t().int(), bits),
            "scales": scale.t().half().contiguous(),
            "g_idx": (torch.arange(weight.shape[1]) // GROUP).int(),
        }

    def unpack(arrays: Arrays) -> torch.Tensor:
        zeros = planar.planar_unpack_cols(arrays["qzeros"], bits)
        codes = planar.planar_unpack_rows(arrays["qweight"], bits)
        group = arrays["g_idx"].long()
        return (arrays["scales"][group] * (codes - zeros[group])).t()  # _dequantize_from_codes

    settings = {
        "quant_method": "gptq", "bits": bits, "group_size": GROUP, "sym": False, "desc_act": False,
        "checkpoint_format": form,
    }  # fmt: skip
    return "gptqmodel", settings, pack, unpack


def compressed(bits: int, symmetric: bool) -> tuple[Any, ...]:
    """``PackedQuantizationCompressor``, both ways."""
    weights = {
        "num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": GROUP,
        "dynamic": False,
    }  # fmt: skip

    def scheme() -> Any:
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

        return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))

    def pack(weight: torch.Tensor) -> Arrays:
        from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor

        scale, zero = rounded(weight, bits)
        middle = 2 ** (bits - 1)
        zero = torch.full_like(zero, middle) if symmetric else zero
        state = {
            "weight": weight,
            "weight_scale": scale.bfloat16(),
            "weight_zero_point": (zero - middle).to(torch.int8),
        }
        return dict(PackedQuantizationCompressor.compress(state, scheme()))

    def unpack(arrays: Arrays) -> torch.Tensor:
        from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor

        return PackedQuantizationCompressor.decompress(dict(arrays), scheme())["weight"]

    settings = {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
        "quantization_status": "compressed", "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }  # fmt: skip
    return "compressed-tensors", settings, pack, unpack


def _tiled(codes: torch.Tensor) -> torch.Tensor:
    """Codes ``[R, C]`` as ``_convert_weight_to_int4pack`` packs them on a GPU: the loop of PyTorch's ``int4mm.cu``."""
    rows, columns = codes.shape
    pairs = (codes[:, ::2] << 4 | codes[:, 1::2]).tolist()
    words = torch.zeros(rows // 8, columns // 128, 32, 4, dtype=torch.int64)
    for tile, outer, lane, inner in itertools.product(*map(range, words.shape)):
        base = (outer * 8 + 2 * inner) * 8
        bytes_ = [pairs[8 * tile + lane // 4][base + step + lane % 4] for step in (0, 4, 8, 12)]
        word = sum((byte >> 4) << 4 * n | (byte & 15) << 16 + 4 * n for n, byte in enumerate(bytes_))
        words[tile, outer, lane, inner] = word - (word >> 31 << 32)
    return words.int()


def _untiled(words: torch.Tensor) -> torch.Tensor:
    """The way back, the loop of ``_dequantize_int4_kernel`` in torchao's ``tensor_core_tiled_layout.cu``."""
    codes = torch.zeros(words.shape[0] * 8, words.shape[1] * 128, dtype=torch.int64)
    for tile, outer, lane, inner in itertools.product(*map(range, words.shape)):
        word = int(words[tile, outer, lane, inner]) & 0xFFFFFFFF
        base = (outer * 8 + 2 * inner) * 16 + lane % 4 * 2
        for n, at in enumerate((base, base + 8, base + 16, base + 24)):
            row = codes[8 * tile + lane // 4]
            row[at], row[at + 1] = word >> 4 * n & 15, word >> 16 + 4 * n & 15
    return codes


def torchao_int4(kind: str) -> tuple[Any, ...]:
    """Its classes of 4 bits, which only a GPU computes with.

    Codes of ``Int4Tensor`` are packed as MSLK's ``pack_int4`` does, and decoded as its ``bf16i4bf16_rowwise``.
    """
    said: dict[str, str] = {}

    def pack(weight: torch.Tensor) -> Arrays:
        from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
        from torchao.quantization import Int4Tensor, Int4TilePackedTo4dTensor
        from torchao.quantization.utils import pack_tinygemm_scales_and_zeros

        full = (-weight.shape[0] % 8, -weight.shape[1] % 1024) if kind == "tiles" else (0, 0)
        padded = torch.nn.functional.pad(weight.float(), (0, full[1], 0, full[0]))
        grouped = padded.reshape(len(padded), -1, GROUP)
        low, high = grouped.amin(-1), grouped.amax(-1)
        scale = (high - low).clamp(min=1e-6) / 15
        codes = ((grouped - low[..., None]) / scale[..., None]).round().clamp(0, 15).reshape(padded.shape).long()
        scale, zero = scale.bfloat16(), (low + 8 * scale).bfloat16()
        shape = weight.shape
        if kind == "tiles":
            both = pack_tinygemm_scales_and_zeros(scale, zero, torch.bfloat16)
            made = Int4TilePackedTo4dTensor(_tiled(codes), both, [1, GROUP], shape)
        else:
            signed = (codes - 8).to(torch.int8)
            halves = (signed[:, ::2] & 15) | (signed[:, 1::2] << 4)
            made = Int4Tensor(halves, scale.t().contiguous(), zero.t().contiguous(), [1, GROUP], shape)
        arrays, texts = flatten_tensor_state_dict({"x.weight": made})
        said["weight"] = texts["x.weight"]
        return {name.removeprefix("x."): array for name, array in arrays.items()}

    def unpack(arrays: Arrays) -> torch.Tensor:
        packed, shape = arrays["_weight_qdata"], arrays.get("shape")
        if kind == "tiles":
            codes = _untiled(packed) - 8
            scale, zero = (part[..., 0].t() for part in arrays["_weight_scale_and_zero"].split(1, 2))
        else:
            codes = torch.stack([packed << 4 >> 4, packed >> 4], 2).reshape(len(packed), -1)
            scale, zero = arrays["_weight_scale"].t(), arrays["_weight_zero_point"].t()
        wide = [part.float().repeat_interleave(GROUP, 1) for part in (scale, zero)]
        values = (codes.float() * wide[0] + wide[1]).bfloat16()
        return values if shape is None else values[: shape[0], : shape[1]]

    form = {"tiles": "tile_packed_to_4d", "plain": "plain"}[kind]
    data = {"group_size": GROUP, "int4_packing_format": {"_type": "Int4PackingFormat", "_data": form.upper()}}
    types = {"default": {"_type": "Int4WeightOnlyConfig", "_data": data}}
    return "torchao", {"quant_method": "torchao", "quant_type": types}, pack, unpack, said


def torchao_mx(kind: str) -> tuple[Any, ...]:
    """MXTensor and NVFP4Tensor as its configurations make them, with scales in blocks; its ``dequantize``."""
    said: dict[str, str] = {}

    def pack(weight: torch.Tensor) -> Arrays:
        from torchao.prototype.mx_formats.mx_tensor import MXTensor
        from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
        from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

        weight = weight.bfloat16()
        if kind == "nvfp4":
            factor = per_tensor_amax_to_scale(weight.abs().max().float())
            made = NVFP4Tensor.to_nvfp4(weight, per_tensor_scale=factor, is_swizzled_scales=True)
        else:
            number = torch.float8_e4m3fn if kind == "mxfp8" else torch.float4_e2m1fn_x2
            made = MXTensor.to_mx(weight, number, 32, is_swizzled_scales=True)
        arrays, texts = flatten_tensor_state_dict({"x.weight": made})
        said["weight"] = texts["x.weight"]
        return {name.removeprefix("x."): array for name, array in arrays.items()}

    def unpack(arrays: Arrays) -> torch.Tensor:
        from torchao.prototype.mx_formats.mx_tensor import MXTensor
        from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
        from torchao.quantization.quantize_.common import KernelPreference

        codes, scale = arrays["_weight_qdata"], arrays["_weight_scale"]
        if kind == "nvfp4":
            factor = arrays["_weight_per_tensor_scale"]
            made = NVFP4Tensor(codes, scale, 16, torch.bfloat16, factor, is_swizzled_scales=True)
        else:
            number = torch.float8_e4m3fn if kind == "mxfp8" else torch.float4_e2m1fn_x2
            how = KernelPreference.EMULATED
            made = MXTensor(codes, scale, number, 32, torch.bfloat16, how, None, is_swizzled_scales=True)
        return made.dequantize(torch.float32)

    name = "NVFP4WeightOnlyConfig" if kind == "nvfp4" else "MXDynamicActivationMXWeightConfig"
    types = {"default": {"_type": name, "_data": {}}}
    return "torchao", {"quant_method": "torchao", "quant_type": types}, pack, unpack, said


def torchao(kind: str) -> tuple[Any, ...]:
    """``flatten_tensor_state_dict`` names the arrays; of float32 scales values are not rounded to the model's type."""

    def pack(weight: torch.Tensor) -> Arrays:
        from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
        from torchao.quantization import Float8Tensor, Int8Tensor, IntxUnpackedToInt8Tensor
        from torchao.quantization.granularity import PerRow

        weight = weight.bfloat16()
        if kind == "int4":
            made = IntxUnpackedToInt8Tensor.from_hp(weight, (1, GROUP), torch.int4)
        elif kind == "int8":
            made = Int8Tensor.from_hp(weight, PerRow())
        else:
            made = Float8Tensor.from_hp(weight, granularity=PerRow())
        arrays, _ = flatten_tensor_state_dict({"x.weight": made})
        return {name.removeprefix("x."): array for name, array in arrays.items()}

    def unpack(arrays: Arrays) -> torch.Tensor:
        from torchao.quantization.quant_primitives import _dequantize_affine_float8, dequantize_affine

        codes, scale, zero = (arrays.get(f"_weight_{name}") for name in ("qdata", "scale", "zero_point"))
        assert codes is not None
        assert scale is not None
        if kind == "float8":
            return _dequantize_affine_float8(codes, scale)
        block = (1, codes.shape[1] // scale.shape[1])
        dtype = torch.float32 if scale.dtype is torch.float32 else torch.bfloat16
        return dequantize_affine(codes, block, scale, zero, torch.int8, -128, 127, output_dtype=dtype)

    data = {"weight_dtype": {"_data": "int4", "_type": "torch.dtype"}} if kind == "int4" else {}
    types = {"default": {"_type": "IntxWeightOnlyConfig" if data else "Int8WeightOnlyConfig", "_data": data}}
    settings = {"quant_method": "torchao", "quant_type": types, "modules_to_not_convert": None}
    return "torchao", settings, pack, unpack


def quark(kind: str) -> tuple[Any, ...]:
    """``Pack_4_bits`` of its ``pack.py``; value = (code - zero) * scale, as ``dequantize`` of its kernels has it."""

    def packer() -> Any:
        from quark.torch.utils.pack import Pack_4_bits

        return Pack_4_bits("per_group", kind)

    def pack(weight: torch.Tensor) -> Arrays:
        scale, zero = rounded(weight, 4)
        zero = zero - 8 if kind == "int4" else zero
        low = -8 if kind == "int4" else 0
        codes = (weight.float().reshape(len(weight), -1, GROUP) / scale[..., None]).round() + zero[..., None]
        codes = codes.clamp(low, low + 15).reshape(weight.shape)
        return {
            "weight": packer().pack(codes.to(torch.int32), True),
            "weight_scale": scale.t().bfloat16().contiguous(),
            "weight_zero_point": packer().pack(zero.to(torch.int32), True),
        }

    def unpack(arrays: Arrays) -> torch.Tensor:
        codes, zero = (packer().unpack(arrays[name], True) for name in ("weight", "weight_zero_point"))
        scale = arrays["weight_scale"].t()
        spread = [part.repeat_interleave(GROUP, 1) for part in (zero, scale)]
        return ((codes.int() - spread[0].int()).to(torch.bfloat16) * spread[1]).contiguous()

    settings = {
        "quant_method": "quark", "export": {"pack_method": "reorder", "weight_format": "real_quantized"},
        "global_quant_config": {"weight": {"dtype": kind, "qscheme": "per_group", "group_size": GROUP, "ch_axis": 1}},
        "layer_quant_config": {},
    }  # fmt: skip
    return "amd-quark", settings, pack, unpack


def hqq(bits: int, axis: int, number: str) -> tuple[Any, ...]:
    """Its own layer, both ways; without its search for better scales."""
    dtype = getattr(torch, number)

    def pack(weight: torch.Tensor) -> Arrays:
        from hqq.core.quantize import BaseQuantizeConfig, HQQLinear

        how = BaseQuantizeConfig(nbits=bits, group_size=GROUP, axis=axis)
        how["weight_quant_params"]["optimize"] = False
        return dict(HQQLinear(_linear(weight), how, compute_dtype=dtype, device="cpu").state_dict())

    def unpack(arrays: Arrays) -> torch.Tensor:
        from hqq.core.quantize import HQQLinear

        made = HQQLinear(None, None, compute_dtype=dtype, device="cpu", initialize=False)
        made.load_state_dict(dict(arrays))
        return made.dequantize()

    return "hqq", {"quant_method": "hqq"}, pack, unpack


def comfyui(kind: str) -> tuple[Any, ...]:
    """comfy-kitchen's layouts, both ways, in float32; ``old`` under the names of before, with their marker."""
    form = {"fp8": "float8_e4m3fn", "fp8-old": "float8_e4m3fn", "int8": "int8_tensorwise"}.get(kind, kind)
    mark = torch.tensor(list(json.dumps({"format": form}).encode()), dtype=torch.uint8)
    scale = "scale_weight" if kind == "fp8-old" else "weight_scale"

    def layout() -> Any:
        import comfy_kitchen.tensor as kitchen

        names = {"nvfp4": "CoreNVFP4", "mxfp8": "CoreMXFP8", "int8_tensorwise": "WiseINT8"}
        return getattr(kitchen, f"Tensor{names.get(form, 'CoreFP8')}Layout")

    def pack(weight: torch.Tensor) -> Arrays:
        how = {"per_channel": True} if kind == "int8" else {}
        codes, said = layout().quantize(weight.float(), **how)
        numbers = said.scale.view(torch.uint8) if kind == "mxfp8" else said.scale
        if kind == "nvfp4":
            return {"weight": codes, scale: said.block_scale, "weight_scale_2": numbers, "comfy_quant": mark.clone()}
        return {"weight": codes, scale: numbers} | ({"comfy_quant": mark.clone()} if kind != "fp8-old" else {})

    def unpack(arrays: Arrays) -> torch.Tensor:
        numbers, shape = arrays[scale], tuple(arrays["weight"].shape)
        said = {"orig_dtype": torch.float32, "orig_shape": shape}
        if kind == "nvfp4":
            made = layout().Params(scale=arrays["weight_scale_2"], block_scale=numbers, **said)
        else:
            made = layout().Params(scale=numbers.view(torch.float8_e8m0fnu) if kind == "mxfp8" else numbers, **said)
        return layout().dequantize(arrays["weight"], made)

    return "comfy-kitchen", {}, pack, unpack


KINDS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "autoround-3b": lambda: auto_round(3, "auto_round:auto_gptq"),
    "autoround-5b": lambda: auto_round(5, "auto_round"),
    "autoround-awq-4b": lambda: auto_round(4, "auto_round:auto_awq"),
    "autoround-awq-6b": lambda: auto_round(6, "auto_round:auto_awq"),
    "gptq-p-3b": lambda: gptqmodel(3, "gptq_p"),
    "ct-w3-asym": lambda: compressed(3, False),
    "ct-w6-sym": lambda: compressed(6, True),
    "torchao-int4": lambda: torchao("int4"),
    "torchao-int8": lambda: torchao("int8"),
    "torchao-float8": lambda: torchao("float8"),
    "torchao-int4-plain": lambda: torchao_int4("plain"),
    "torchao-int4-tiles": lambda: torchao_int4("tiles"),
    "torchao-mxfp4": lambda: torchao_mx("mxfp4"),
    "torchao-mxfp8": lambda: torchao_mx("mxfp8"),
    "torchao-nvfp4": lambda: torchao_mx("nvfp4"),
    "comfyui-fp8": lambda: comfyui("fp8"),
    "comfyui-fp8-old": lambda: comfyui("fp8-old"),
    "comfyui-int8": lambda: comfyui("int8"),
    "comfyui-mxfp8": lambda: comfyui("mxfp8"),
    "comfyui-nvfp4": lambda: comfyui("nvfp4"),
    "quark-int4": lambda: quark("int4"),
    "hqq-4b": lambda: hqq(4, 1, "float16"),
    "hqq-3b-across": lambda: hqq(3, 0, "bfloat16"),
    "hqq-2b": lambda: hqq(2, 1, "bfloat16"),
}


def recorded(directory: Path, library: str, unpack: Callable[[Arrays], torch.Tensor]) -> dict[str, Any]:
    """What ``NAME.json`` says."""
    modules: dict[str, Arrays] = {}
    for name, array in load_file(directory / "model.safetensors").items():
        module, _, suffix = name.rpartition(".")
        if "_proj" in module and suffix != "bias":
            modules.setdefault(module, {})[suffix] = array
    for module, weight in load_file(SOURCE / "model.safetensors").items():
        if (arrays := modules.get(module.removesuffix(".weight"))) and "_weight_scale_and_zero" in arrays:
            arrays["shape"] = torch.tensor(weight.shape)  # tiles are filled up
    digests = {
        f"{module}.weight": hashlib.sha256((unpack(arrays).float() + 0.0).contiguous().numpy().tobytes()).hexdigest()
        for module, arrays in sorted(modules.items())
    }
    return {"library": digests, "versions": {library: importlib.metadata.version(library)}}


def main() -> int:
    """Write, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--check", action="store_true", help="compare, and change nothing")
    wrong, asked = 0, parser.parse_args()
    for name, kind in KINDS.items():
        if asked.names and name not in asked.names:
            continue
        out, said = FIXTURES / "quantised" / name, FIXTURES / "quantised" / f"{name}.json"
        library, settings, pack, unpack, *texts = kind()
        if not asked.check:
            out.mkdir(exist_ok=True)
            made: Arrays = {}
            header = {"format": "pt"}
            for key, weight in load_file(SOURCE / "model.safetensors").items():
                if key.endswith("_proj.weight"):
                    module = key.removesuffix(".weight")
                    made |= {f"{module}.{suffix}": array.contiguous() for suffix, array in pack(weight).items()}
                    header |= {f"{module}.{suffix}": text for own in texts for suffix, text in own.items()}
                else:
                    made[key] = weight
            if name.endswith("-old"):
                made["scaled_fp8"] = torch.zeros(2, dtype=torch.float8_e4m3fn)
            save_file(made, out / "model.safetensors", header)
            config = json.loads((SOURCE / "config.json").read_text()) | (
                {"quantization_config": settings} if settings else {}
            )
            (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
            said.write_text(json.dumps(recorded(out, library, unpack), indent=1) + "\n")
        elif json.loads(said.read_text())["library"] != recorded(out, library, unpack)["library"]:
            wrong += 1
            print(f"{name}: another")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
