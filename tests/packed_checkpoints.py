"""Checkpoints as other quantizers store them, packed by rules written down here, with the values that they stand for.

Codes, scales and zero points are drawn; :class:`Matrix` is what they are, and a function a layout makes arrays of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import Decoder, Raw, Tensors, bf16, save
from safetensors_builder import tensors_of

#: Codes and their bits -> words of 32 bits.
Words = Callable[[np.ndarray, int], np.ndarray]

#: Linear layers of a decoder, by the end of their names.
LINEAR = ("_proj.weight",)


@dataclass(frozen=True)
class Matrix:
    """Integers ``[rows, columns]`` with scales and zero points ``[rows, groups]``."""

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    bits: int
    order: np.ndarray

    @property
    def values(self) -> np.ndarray:
        """(code - zero) * scale, exactly."""
        codes, zeros = self.codes.astype(np.float64), self.zeros.astype(np.float64)
        return (codes - zeros[:, self.order]) * self.scales.astype(np.float64)[:, self.order]


def drawn(shape: tuple[int, int], bits: int, group: int, *, seed: int, symmetric: bool = False, scattered: bool = False,
          lowest: int = 1, coarse: bool = False) -> Matrix:  # fmt: skip
    """Numbers of a matrix; scales are float16 with eight significant bits, so that bfloat16 holds them, too.

    With ``coarse`` they have seven, so that float16 holds them times a zero point of four bits.
    """
    rng = np.random.default_rng(seed)
    rows, columns = shape
    groups = columns // group
    scales = bf16_values(rng.uniform(0.001, 0.1, (rows, groups)).astype(np.float32)).astype(np.float16)
    scales = (scales.view(np.uint16) & np.uint16(0xFFF0 if coarse else 0xFFFF)).view(np.float16)
    zeros = rng.integers(lowest, 1 << bits, (rows, groups)) if not symmetric else np.full((rows, groups), 1 << bits - 1)
    order = np.arange(columns) // group
    if scattered:
        rng.shuffle(order)
    return Matrix(rng.integers(0, 1 << bits, shape), scales, zeros, bits, order)


def bf16_values(values: np.ndarray) -> np.ndarray:
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def words(codes: np.ndarray, bits: int, order: tuple[int, ...] = ()) -> np.ndarray:
    """Codes ``[n, m]`` -> int32 ``[n, m * bits / 32]``, a stream of bits: code ``i`` of eight at place ``order[i]``."""
    taken = codes.astype(np.uint8)
    if order:
        taken = taken.reshape(len(codes), -1, len(order))
        taken = taken[..., np.argsort(order)].reshape(codes.shape)
    each = taken[..., None] >> np.arange(bits, dtype=np.uint8) & 1
    return np.packbits(each.reshape(len(codes), -1), axis=1, bitorder="little").view(np.int32)


def whole_words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes ``[n, m]`` -> int32, as many whole ones in a word as it holds, lowest first."""
    many = 32 // bits
    taken = np.pad(codes, ((0, 0), (0, -codes.shape[1] % many))).reshape(len(codes), -1, many).astype(np.uint64)
    return (taken << np.arange(many, dtype=np.uint64) * np.uint64(bits)).sum(-1).astype(np.uint32).view(np.int32)


def planes(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes ``[n, m]`` -> int32, of 32 codes first the low two or four bits of each, then what is above."""
    found, low = codes.reshape(len(codes), -1, 32).astype(np.uint8), 0
    parts = []
    for width in {3: (2, 1), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1)}[bits]:
        each = found[..., None] >> np.arange(low, low + width, dtype=np.uint8) & 1
        parts.append(np.packbits(each.reshape(*found.shape[:2], -1), axis=2, bitorder="little"))
        low += width
    return np.concatenate(parts, axis=2).reshape(len(codes), -1).view(np.int32)


def gptq(matrix: Matrix, module: str, *, version: int = 1, index: bool = True, pack: Words = words) -> Tensors:
    """AutoGPTQ's and GPTQModel's layout; version 1 stores zero points less one."""
    made: Tensors = {
        f"{module}.qweight": np.ascontiguousarray(pack(matrix.codes, matrix.bits).T),
        f"{module}.qzeros": pack(matrix.zeros.T - (version == 1), matrix.bits),
        f"{module}.scales": np.ascontiguousarray(matrix.scales.T),
    }
    if index:
        made[f"{module}.g_idx"] = matrix.order.astype(np.int32)
    return made


def awq(matrix: Matrix, module: str) -> Tensors:
    """AutoAWQ's layout for GEMM: words along the output, of which neighbors are four places apart."""
    interleaved = (0, 4, 1, 5, 2, 6, 3, 7)
    return {
        f"{module}.qweight": words(matrix.codes.T, matrix.bits, interleaved),
        f"{module}.qzeros": words(matrix.zeros.T, matrix.bits, interleaved),
        f"{module}.scales": np.ascontiguousarray(matrix.scales.T),
    }


def pack_quantized(matrix: Matrix, module: str, *, zeros: bool, index: bool, old: bool = False) -> Tensors:
    """compressed-tensors' words; rows and columns are filled up to whole words."""
    rows, columns = matrix.codes.shape
    pack, many = (whole_words, 1) if old else (words, 32 if matrix.bits in (3, 5, 6, 7) else 32 // matrix.bits)
    made: Tensors = {
        f"{module}.weight_packed": pack(np.pad(matrix.codes, ((0, 0), (0, -columns % many))), matrix.bits),
        f"{module}.weight_scale": bf16(matrix.scales.astype(np.float32)),
        f"{module}.weight_shape": np.array(matrix.codes.shape, np.int64),
    }
    if zeros:
        filled = np.pad(matrix.zeros, ((0, -rows % many), (0, 0)))
        made[f"{module}.weight_zero_point"] = np.ascontiguousarray(pack(filled.T, matrix.bits).T)
    if index:
        made[f"{module}.weight_g_idx"] = matrix.order.astype(np.int32)
    return made


def int_quantized(matrix: Matrix, module: str, *, zeros: bool) -> Tensors:
    """compressed-tensors' bytes, signed."""
    made: Tensors = {
        f"{module}.weight": (matrix.codes - 128).astype(np.int8),
        f"{module}.weight_scale": bf16(matrix.scales.astype(np.float32)),
    }
    if zeros:
        made[f"{module}.weight_zero_point"] = (matrix.zeros - 128).astype(np.int8)
    return made


def fp8_values() -> np.ndarray:
    """What the 256 codes of E4M3 are."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    size = np.where(exponent, (8 + mantissa) * 2.0 ** (exponent - 10.0), mantissa * 2.0**-9)
    return np.where(code & 127 == 127, np.nan, np.where(code > 127, -size, size))


def fp8(
    shape: tuple[int, int], block: tuple[int, int], *, seed: int, powers: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, scales of blocks, and their products in float32; ``powers`` of two are what ue8m0 scales are."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 0x7F, shape).astype(np.uint8) | rng.integers(0, 2, shape).astype(np.uint8) << 7
    grid = tuple(-(-n // size) for n, size in zip(shape, block, strict=True))
    scales = rng.uniform(1e-4, 1e-2, grid).astype(np.float32)
    scales = np.exp2(np.floor(np.log2(scales))) if powers else scales
    spread = np.repeat(np.repeat(scales, block[0], 0), block[1], 1)[: shape[0], : shape[1]]
    return codes, scales, fp8_values()[codes].astype(np.float32) * spread


def model(root: Path, decoder: Decoder, pack: Callable[[str, tuple[int, int], int], tuple[Tensors, np.ndarray]],
          settings: dict[str, Any] | None, *, shards: int = 1, header: Callable[[tuple[int, int]], Any] | None = None,
          **config: Any) -> dict[str, np.ndarray]:  # fmt: skip
    """Write a checkpoint whose linear layers are packed; what every matrix is, by its dense name.

    ``header`` gives what ``__metadata__`` says of a matrix of this shape.
    """
    tensors: Tensors = {}
    metadata = {"format": "pt"}
    values: dict[str, np.ndarray] = {}
    for seed, (name, array) in enumerate(decoder.tensors().items()):
        if name.endswith(LINEAR):
            arrays, values[name] = pack(name.removesuffix(".weight"), array.shape, seed)
            tensors |= arrays
            metadata |= {name: json.dumps(header(array.shape))} if header else {}
        else:
            tensors[name] = bf16(array)
            values[name] = bf16_values(array)
    facts = {"torch_dtype": "bfloat16", "quantization_config": settings or ...}
    save(root, decoder.config(**{**facts, **config}), tensors, shards=shards, metadata=metadata)
    return values


def _gptq(module: str, shape: tuple[int, int], seed: int, *, bits: int, group: int, version: int, pack: Words = words,
          **how: Any) -> Any:  # fmt: skip
    how = {"lowest": 1 if version == 1 else 0, **how}  # version 1 cannot store 0
    matrix = drawn(shape, bits, shape[1] if group == -1 else group, seed=seed, **how)
    return gptq(matrix, module, version=version, pack=pack), matrix.values


def _fp8(module: str, shape: tuple[int, int], seed: int, *, block: tuple[int, int], powers: bool) -> Any:
    codes, scales, values = fp8(shape, block, seed=seed, powers=powers)
    weight = Raw("F8_E4M3", shape, codes.tobytes())
    return {f"{module}.weight": weight, f"{module}.weight_scale_inv": scales}, values


def gptq_model(root: Path, decoder: Decoder, *, bits: int = 4, group: int = 32, version: int = 1, shards: int = 1,
               model_type: str = "llama", auto_round: str = "", **how: Any) -> dict[str, np.ndarray]:  # fmt: skip
    form = "gptq_p" if how.get("pack") is planes else "gptq" if version == 1 else "gptq_v2"
    settings = {
        "quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": how.get("scattered", False),
        "sym": how.get("symmetric", False), "checkpoint_format": form,
    }  # fmt: skip
    if auto_round:
        settings = {"quant_method": "auto-round", "bits": bits, "group_size": group, "packing_format": auto_round}
    pack = partial(_gptq, bits=bits, group=group, version=version, **how)
    return model(root, decoder, pack, settings, shards=shards, model_type=model_type)


def fp8_model(root: Path, decoder: Decoder, *, block: tuple[int, int], powers: bool = False, shards: int = 1,
              model_type: str = "llama") -> dict[str, np.ndarray]:  # fmt: skip
    settings = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [*block]}
    pack = partial(_fp8, block=block, powers=powers)
    return model(root, decoder, pack, settings, shards=shards, model_type=model_type)


def awq_model(root: Path, decoder: Decoder, *, bits: int = 4, group: int = 32, shards: int = 1,
              auto_round: bool = False, **config: Any) -> dict[str, np.ndarray]:  # fmt: skip
    def pack(module: str, shape: tuple[int, int], seed: int) -> Any:
        matrix = drawn(shape, bits, group, seed=seed, lowest=0)
        return awq(matrix, module), matrix.values

    settings = {"quant_method": "awq", "bits": bits, "group_size": group, "zero_point": True, "version": "gemm"}
    if auto_round:
        settings = {"quant_method": "auto-round", "bits": bits, "packing_format": "auto_round:auto_awq"}
    return model(root, decoder, pack, settings, shards=shards, **config)


def compressed_model(root: Path, decoder: Decoder, *, form: str = "pack-quantized", bits: int = 4, group: int = 32,
                     symmetric: bool = True, scattered: bool = False, coarse: bool = False, shards: int = 1,
                     old: bool = False, **config: Any) -> dict[str, np.ndarray]:  # fmt: skip
    def pack(module: str, shape: tuple[int, int], seed: int) -> Any:
        columns = shape[1] if group == -1 else group
        how = {"symmetric": symmetric, "scattered": scattered, "lowest": 0, "coarse": coarse}
        matrix = drawn(shape, bits, columns, seed=seed, **how)
        if form == "int-quantized":
            return int_quantized(matrix, module, zeros=not symmetric), matrix.values
        return pack_quantized(matrix, module, zeros=not symmetric, index=scattered, old=old), matrix.values

    weights = {
        "num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "channel" if group == -1 else "group",
        "group_size": None if group == -1 else group, "actorder": "group" if scattered else None,
    }  # fmt: skip
    return model(root, decoder, pack, compressed_settings(form, weights), shards=shards, **config)


def compressed_settings(form: str, weights: dict[str, Any]) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"], "config_groups": groups}


def scaled_fp8_model(root: Path, decoder: Decoder, *, strategy: str, shards: int = 1,
                     **config: Any) -> dict[str, np.ndarray]:  # fmt: skip
    """Scales of rows or of the matrix, beside scales of activations."""

    def pack(module: str, shape: tuple[int, int], seed: int) -> Any:
        block = (1, shape[1]) if strategy == "channel" else shape
        codes, scales, _ = fp8(shape, block, seed=seed)
        scales = bf16_values(scales)
        made = {
            f"{module}.weight": Raw("F8_E4M3", shape, codes.tobytes()),
            f"{module}.weight_scale": bf16(scales if strategy == "channel" else scales[0]),
            f"{module}.input_scale": bf16(np.ones(1, np.float32)),
        }
        return made, fp8_values()[codes] * scales.astype(np.float64)

    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy}
    return model(root, decoder, pack, compressed_settings("float-quantized", weights), shards=shards, **config)


def bitnet_model(root: Path, decoder: Decoder, *, times: bool = False, **config: Any) -> dict[str, np.ndarray]:
    """Four rows of -1, 0 and 1 in a byte, a quarter of the matrix apart; the scale divides, or is multiplied with."""

    def pack(module: str, shape: tuple[int, int], seed: int) -> Any:
        rng = np.random.default_rng(seed)
        ternary, scale = rng.integers(-1, 2, shape), bf16_values(rng.uniform(0.5, 80, 1).astype(np.float32))
        quarters = (ternary + 1).astype(np.uint8).reshape(4, -1, shape[1])
        weight = quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6
        return (
            {f"{module}.weight": weight, f"{module}.weight_scale": bf16(scale)},
            ternary * (scale if times else 1 / scale),
        )

    kind = {"linear_class": "autobitlinear", "quantization_mode": "offline"} if times else {}
    return model(root, decoder, pack, {"quant_method": "bitnet", "modules_to_not_convert": None, **kind}, **config)


#: What the four-bit codes of bitsandbytes are: float32, as its ``quant_map`` stores them.
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334),
    *(-0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
FP4 = tuple(n / 12 for n in (0.0, 0.0625, 8, 12, 4, 6, 2, 3, -0.0, -0.0625, -8, -12, -4, -6, -2, -3))


def bitsandbytes_model(root: Path, decoder: Decoder, *, kind: str = "nf4", block: int = 64, double: int = 0,
                       storage: str = "U8", **config: Any) -> dict[str, np.ndarray]:  # fmt: skip
    """Four bits with a scale for so many of them, in whatever row; ``double`` of the scales share one, if any."""

    def pack(module: str, shape: tuple[int, int], seed: int) -> Any:
        rng, size = np.random.default_rng(seed), shape[0] * shape[1]
        codes, table = rng.integers(0, 16, size), np.array({"nf4": NF4, "fp4": FP4}[kind], np.float32)
        blocks = -(-size // block)
        state: dict[str, Any] = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": list(shape)}
        scales = rng.uniform(0.01, 1, blocks).astype(np.float32)
        made: Tensors = {".absmax": scales}
        if double:
            inner = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
            outer = rng.uniform(0.1, 1, -(-blocks // double)).astype(np.float32)
            made = {".absmax": rng.integers(0, 256, blocks).astype(np.uint8), ".nested_absmax": outer,
                    ".nested_quant_map": inner}  # fmt: skip
            state |= {"nested_blocksize": double, "nested_dtype": "float32", "nested_offset": 0.3}
            scales = inner[made[".absmax"]] * outer[np.arange(blocks) // double] + np.float32(0.3)
        packed = (codes[::2] << 4 | codes[1::2]).astype(np.uint8)
        each = {"U8": 1, "BF16": 2}[storage]
        made |= {
            "": Raw(storage, (len(packed) // each, 1), packed.tobytes()),
            ".quant_map": table,
            f".quant_state.bitsandbytes__{kind}": np.frombuffer(json.dumps(state).encode(), np.uint8),
        }
        values = table[codes] * np.repeat(scales, block)[:size]
        return {f"{module}.weight{suffix}": array for suffix, array in made.items()}, values.reshape(shape)

    said = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}
    return model(root, decoder, pack, said, **config)


def bitsandbytes_int8_model(root: Path, decoder: Decoder, **config: Any) -> dict[str, np.ndarray]:
    """Bytes, which are parts of 127 of their row's scale."""

    def pack(module: str, shape: tuple[int, int], seed: int) -> Any:
        rng = np.random.default_rng(seed)
        codes, scales = rng.integers(-127, 128, shape), rng.uniform(0.1, 1, shape[0]).astype(np.float32)
        made = {"weight": codes.astype(np.int8), "SCB": scales, "weight_format": np.zeros((), np.uint8)}
        values = codes.astype(np.float32) * scales[:, None] * np.float32(7.874015718698502e-3)
        return {f"{module}.{name}": array for name, array in made.items()}, values

    return model(root, decoder, pack, {"quant_method": "bitsandbytes", "load_in_8bit": True}, **config)


def torchao_model(root: Path, decoder: Decoder, *, bits: int = 8, group: int = -1, zeros: bool = False,
                  wide: bool = False, **config: Any) -> dict[str, np.ndarray]:  # fmt: skip
    """Signed bytes ``[R, C]`` with scales of groups; ``wide`` ones are float32."""

    def pack(module: str, shape: tuple[int, int], seed: int) -> Any:
        columns = shape[1] if group == -1 else group
        matrix = drawn(shape, bits, columns, seed=seed, symmetric=not zeros, lowest=0)
        middle, scales = 1 << bits - 1, matrix.scales.astype(np.float32)
        made = {"qdata": (matrix.codes - middle).astype(np.int8), "scale": scales if wide else bf16(scales)}
        if zeros:
            made["zero_point"] = (matrix.zeros - middle).astype(np.int8)
        return {f"{module}._weight_{name}": array for name, array in made.items()}, matrix.values

    kind = {"_type": "IntxWeightOnlyConfig", "_data": {"weight_dtype": {"_type": "torch.dtype", "_data": f"int{bits}"}}}
    return model(root, decoder, pack, {"quant_method": "torchao", "quant_type": {"default": kind}}, **config)


def torchao_float8_model(root: Path, decoder: Decoder, *, rows: bool = True, **config: Any) -> dict[str, np.ndarray]:
    def pack(module: str, shape: tuple[int, int], seed: int) -> Any:
        codes, scales, values = fp8(shape, (1, shape[1]) if rows else shape, seed=seed)
        weight = Raw("F8_E4M3", shape, codes.tobytes())
        return {f"{module}._weight_qdata": weight, f"{module}._weight_scale": scales}, values

    return model(root, decoder, pack, {"quant_method": "torchao", "quant_type": {}}, **config)


def torchao_offsets_model(root: Path, decoder: Decoder, *, tiles: bool = False, group: int = 32, said: bool = True,
                          symmetric: bool = False, **config: Any) -> dict[str, np.ndarray]:  # fmt: skip
    """Codes of 4 bits around 8, with numbers that are added: two in a byte, or as tensor cores take them.

    Scales have four significant bits, and the numbers that are added are halves of them.
    """

    def pack(module: str, shape: tuple[int, int], seed: int) -> Any:
        rng = np.random.default_rng(seed)
        rows, columns = (-(-shape[0] // 8) * 8, -(-shape[1] // 1024) * 1024) if tiles else shape
        codes = rng.integers(0, 16, (rows, columns)).astype(np.uint8)
        scale = (rng.integers(8, 16, (rows, columns // group)) * 2.0 ** rng.integers(-12, -9)).astype(np.float32)
        zero = (0 if symmetric else rng.integers(-8, 8, scale.shape) + 0.5) * scale.astype(np.float32)
        values = (codes - 8.0) * scale.repeat(group, 1) + zero.astype(np.float32).repeat(group, 1)
        numbers = [bf16(np.ascontiguousarray(part.T.astype(np.float32))) for part in (scale, zero)]
        if not tiles:
            made = {"qdata": nibbles(codes ^ 8).view(np.int8), "scale": numbers[0], "zero_point": numbers[1]}
        else:
            both = np.stack([np.frombuffer(part.data, np.uint16).reshape(part.shape) for part in numbers], 2)
            # row of eight, tile, word, eighth, lane, half -> row tile, column tile, row, lane, word, half, eighth
            each = codes.reshape(rows // 8, 8, columns // 128, 4, 4, 4, 2).transpose(0, 2, 1, 5, 3, 6, 4)
            shifts = 4 * np.arange(8, dtype=np.uint32)
            words_ = (each.reshape(-1, 8).astype(np.uint32) << shifts).sum(1, dtype=np.uint32).view(np.int32)
            made = {
                "qdata": words_.reshape(rows // 8, columns // 128, 32, 4),
                "scale_and_zero": Raw("BF16", both.shape, both.tobytes()),
            }
        return {f"{module}._weight_{name}": array for name, array in made.items()}, values[: shape[0], : shape[1]]

    def header(shape: tuple[int, int]) -> Any:
        name = "Int4TilePackedTo4dTensor" if tiles else "Int4Tensor"
        return {"_type": name, "_data": {"block_size": [1, group], "shape": shape}} if said else {}

    return model(root, decoder, pack, {"quant_method": "torchao", "quant_type": {}}, header=header, **config)


def nibbles(codes: np.ndarray) -> np.ndarray:
    """Two codes a byte, the first in the lower half."""
    packed: np.ndarray = codes[:, ::2] | codes[:, 1::2] << 4
    return packed


def in_blocks(scales: np.ndarray) -> np.ndarray:
    """Scales ``[R, G]`` in blocks of 128 rows and 4 groups, filled up: those of rows 32 apart are neighbors."""
    rows, groups = scales.shape
    filled = np.pad(scales, ((0, -rows % 128), (0, -groups % 4)))
    each = filled.reshape(len(filled) // 128, 4, 32, -1, 4).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(each).reshape(len(filled) // 4, -1)


def torchao_mx_model(root: Path, decoder: Decoder, *, kind: str = "mxfp4", blocks: bool = False, factor: bool = False,
                     **config: Any) -> dict[str, np.ndarray]:  # fmt: skip
    """MXTensor and NVFP4Tensor, with scales in rows or in blocks."""
    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)

    def pack(module: str, shape: tuple[int, int], seed: int) -> Any:
        rng = np.random.default_rng(seed)
        size = 16 if kind == "nvfp4" else 32
        low, high = (8, 0x7F) if kind == "nvfp4" else (100, 130)
        scales = rng.integers(low, high, (shape[0], shape[1] // size)).astype(np.uint8)
        number = fp8_values()[scales].astype(np.float32) if kind == "nvfp4" else np.exp2(scales - np.float32(127))
        stored = in_blocks(scales) if blocks else scales
        made = {"scale": Raw("F8_E4M3" if kind == "nvfp4" else "F8_E8M0", stored.shape, stored.tobytes())}
        if factor:
            made["per_tensor_scale"] = one = np.array(rng.uniform(1e-4, 1e-2), np.float32)
            number = number * one
        if kind == "mxfp8":
            codes = rng.integers(0, 0x7F, shape).astype(np.uint8) | rng.integers(0, 2, shape).astype(np.uint8) << 7
            made["qdata"], table = Raw("F8_E4M3", shape, codes.tobytes()), fp8_values().astype(np.float32)
        else:
            codes = rng.integers(0, 16, shape).astype(np.uint8)
            made["qdata"], table = nibbles(codes), e2m1
        return {f"{module}._weight_{name}": array for name, array in made.items()}, table[codes] * number.repeat(
            size, 1
        )

    return model(root, decoder, pack, {"quant_method": "torchao", "quant_type": {}}, **config)


def comfyui_model(root: Path, decoder: Decoder, *, kind: str = "float8_e4m3fn", said: str = "array", rows: bool = False,
                  **config: Any) -> dict[str, np.ndarray]:  # fmt: skip
    """Every ``format`` of ComfyUI, said in an array, in the header, or in neither: names of before, or no scale."""
    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    scale_name = "scale_weight" if said == "old" else "weight_scale"
    mark = np.frombuffer(json.dumps({"format": kind}).encode(), np.uint8)
    layers: list[str] = []

    def pack(module: str, shape: tuple[int, int], seed: int) -> Any:
        layers.append(module)
        rng = np.random.default_rng(seed)
        if kind in ("mxfp8", "nvfp4"):
            size, low, high = (16, 8, 0x7F) if kind == "nvfp4" else (32, 100, 130)
            scales = rng.integers(low, high, (shape[0], shape[1] // size)).astype(np.uint8)
            number = fp8_values()[scales].astype(np.float32) if kind == "nvfp4" else np.exp2(scales - np.float32(127))
            stored = in_blocks(scales).reshape(-(-shape[0] // 128) * 128, -1)
            made: Tensors = {scale_name: Raw("F8_E4M3" if kind == "nvfp4" else "U8", stored.shape, stored.tobytes())}
            if kind == "nvfp4":
                made["weight_scale_2"] = factor = np.array(rng.uniform(1e-4, 1e-2), np.float32)
                codes = rng.integers(0, 16, shape).astype(np.uint8)
                made["weight"] = codes[:, ::2] << 4 | codes[:, 1::2]
                values = e2m1[codes] * (number * factor).repeat(16, 1)
            else:
                codes, _, _ = fp8(shape, shape, seed=seed)
                made["weight"] = Raw("F8_E4M3", shape, codes.tobytes())
                values = fp8_values()[codes].astype(np.float32) * number.repeat(32, 1)
        else:
            if kind == "float8_e5m2":
                codes = rng.integers(0, 0x7C, shape).astype(np.uint8) | rng.integers(0, 2, shape).astype(np.uint8) << 7
                plain = (codes.astype(np.uint16) << 8).view(np.float16).astype(np.float32)
                made = {"weight": Raw("F8_E5M2", shape, codes.tobytes())}
            elif kind == "int8_tensorwise":
                codes = rng.integers(-127, 128, shape).astype(np.int8)
                made, plain = {"weight": codes}, codes.astype(np.float32)
            else:
                codes, _, _ = fp8(shape, shape, seed=seed)
                made, plain = {"weight": Raw("F8_E4M3", shape, codes.tobytes())}, fp8_values()[codes].astype(np.float32)
            scale = rng.uniform(1e-4, 1e-2, (shape[0], 1) if rows else ()).astype(np.float32)
            made |= {} if said == "nothing" else {scale_name: scale}
            values = plain if said == "nothing" else plain * scale
        made |= {"comfy_quant": mark} if said == "array" else {}
        made |= {"scale_input": np.array(2, np.float32)} if said == "old" else {}
        return {f"{module}.{name}": array for name, array in made.items()}, values

    found = model(root, decoder, pack, None, **config)

    def change(tensors: Tensors, document: dict[str, Any]) -> None:
        if said == "old":
            tensors["scaled_fp8"] = Raw("F8_E4M3", (2,), bytes(2))
        if said == "header":
            layers_ = {"layers": {name: {"format": kind} for name in layers}}
            document["metadata"] = {"_quantization_metadata": json.dumps(layers_)}

    rewritten(root, change)
    return found


def quark_model(root: Path, decoder: Decoder, *, kind: str = "int4", ordered: bool = False,
                **config: Any) -> dict[str, np.ndarray]:  # fmt: skip
    """AWQ's words under other names, of two's complements if they are signed; or FP8 with a scale a row."""

    def pack(module: str, shape: tuple[int, int], seed: int) -> Any:
        if kind == "fp8_e4m3":
            codes, scales, values = fp8(shape, (1, shape[1]), seed=seed)
            weight = Raw("F8_E4M3", shape, codes.tobytes())
            return {f"{module}.weight": weight, f"{module}.weight_scale": scales[:, 0]}, values
        matrix, places = drawn(shape, 4, 32, seed=seed, lowest=0), () if ordered else (0, 4, 1, 5, 2, 6, 3, 7)
        flip = 8 if kind == "int4" else 0
        return {
            f"{module}.weight": words(matrix.codes.T ^ flip, 4, places),
            f"{module}.weight_zero_point": words(matrix.zeros.T ^ flip, 4, places),
            f"{module}.weight_scale": bf16(matrix.scales.T.astype(np.float32)),
        }, matrix.values

    said = {"dtype": kind, "group_size": 32, "qscheme": "per_group"}
    settings = {
        "quant_method": "quark", "global_quant_config": {"weight": said},
        "export": {"pack_method": "order" if ordered else "reorder", "weight_format": "real_quantized"},
    }  # fmt: skip
    return model(root, decoder, pack, settings, **config)


def hqq(module: str, shape: tuple[int, int], seed: int, *, bits: int = 4, group: int = 32, axis: int = 1,
        floats: bool = False) -> tuple[Tensors, np.ndarray]:  # fmt: skip
    """Codes in parts of the matrix, and zero points of float16, with settings as arrays beside them."""
    rng = np.random.default_rng(seed)
    lines = (-1, group) if axis else (group, -1)
    codes = rng.integers(0, 1 << bits, shape).reshape(lines)
    many = (len(codes), 1) if axis else (1, codes.shape[1])
    scale, zero = (rng.uniform(low, high, many).astype(np.float16) for low, high in ((0.01, 0.1), (0, 1 << bits)))
    values = ((codes.astype(np.float16) - zero) * scale).reshape(shape)
    parts, dtype = (10, np.uint32) if bits == 3 else (8 // bits, np.uint8)
    padded = np.pad(codes, ((0, -len(codes) % parts), (0, 0))).reshape(parts, -1, codes.shape[1]).astype(dtype)
    packed = np.zeros(padded.shape[1:], dtype)
    for part in padded:
        packed = packed << dtype(bits % 8) | part
    raw = Raw("I32" if bits == 3 else "U8", packed.shape, packed.tobytes())
    if floats:
        raw = Raw("F16", (packed.shape[0], packed.shape[1] // 2), packed.tobytes())
    said = {"packing": f"{bits}bit_{'32' if bits == 3 else 'u8'}", "compute_dtype": "torch.float16"}
    return {
        f"{module}.W_q": raw, f"{module}.scale": scale, f"{module}.zero": zero,
        f"{module}.shape": np.array(shape), f"{module}.axis": np.array(axis, np.int32),
        f"{module}.group_size": np.array(group, np.int32), f"{module}.nbits": np.array(bits, np.int32),
        **{f"{module}.{key}": np.frombuffer(text.encode(), np.uint8) for key, text in said.items()},
    }, values.astype(np.float64)  # fmt: skip


def hqq_model(root: Path, decoder: Decoder, *, bits: int = 4, group: int = 32, axis: int = 1, floats: bool = False,
              **config: Any) -> dict[str, np.ndarray]:  # fmt: skip
    pack = partial(hqq, bits=bits, group=group, axis=axis, floats=floats)
    return model(root, decoder, pack, {"quant_method": "hqq"}, **config)


def arrays_of(source: Path) -> dict[str, Raw]:
    """Every array of a checkpoint of one file, as bytes."""
    return {name: Raw(*entry) for name, entry in tensors_of(source / "model.safetensors").items()}


def rewritten(source: Path, change: Callable[[Tensors, dict[str, Any]], None]) -> None:
    """Change the arrays, the configuration or, by its key ``metadata``, the header of a checkpoint of one file."""
    tensors: Tensors = {**arrays_of(source)}
    config = json.loads((source / "config.json").read_text())
    with (source / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))["__metadata__"]
    change(tensors, config)
    save(source, config, tensors, metadata=header | config.pop("metadata", {}))
