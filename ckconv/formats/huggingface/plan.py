"""Planning a checkpoint as transformers loads it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from struct import pack
from typing import Any, NamedTuple

from ckconv.core.config import ModelConfig
from ckconv.core.layouts import BF16, DTYPES, F32, DType, plain
from ckconv.core.metadata import within
from ckconv.core.tensors import EMBEDDING, GATE_UP, HEAD, PARTS, QKV, Tensor, TensorIndex, parse
from ckconv.errors import an, counted
from ckconv.families import catalog, schema
from ckconv.families.names import HF, NESTED, names_of
from ckconv.families.towers import USUAL, speech, speech_settings, speech_tensors
from ckconv.formats.safetensors import checkpoint, config_json
from ckconv.formats.safetensors.write import BLOCKS, Entry, StoredArray, module_of, parts_layout, planes
from ckconv.plan.planner import ORIGINAL, Planner
from ckconv.plan.steps import DECODE, Module, Piece, Plan, decode_hint
from ckconv.quant.mlx import Quantization, Triple, triple_of, triple_type
from ckconv.quant.packed import DIVISOR, FACTOR, INT, Scheme, inverse, is_scaled, packed_type, scheme_of, together
from ckconv.quant.repack import INTEGERS, TRIPLE, with_zeros

# Quantized matrices as other quantizers lay them out: which of their types holds one, its arrays, and what says so.
#
# Sources: ``compressors/{nvfp4,mx_pack,pack_quantized}.py`` of compressed-tensors 0.20; ``quantization/qtensor`` and
# ``torch/export/convert_hf_config.py`` of ModelOpt 0.47, which has no integers without activations.

COMPRESSED, MODELOPT = "compressed-tensors", "modelopt"

_NVFP4, _MXFP4_BLOCK = DTYPES["NVFP4"], DTYPES["MXFP4"]
_U8, _I32, _I64, _E4M3 = DTYPES["U8"], DTYPES["I32"], DTYPES["I64"], DTYPES["F8_E4M3"]


class Form(NamedTuple):
    """A type of a layout.

    Attributes:
        name: of compressed-tensors' formats.
        codes: suffix and type of the array of codes.
        scales: type of the scales; ``None`` for that of the matrix.
        weights: what the configuration says of the numbers.
    """

    name: str
    codes: tuple[str, DType]
    scales: DType | None
    weights: Mapping[str, Any]


_FP4 = {"num_bits": 4, "type": "float", "symmetric": True, "dynamic": False}
_MX = Form(
    "mxfp4-pack-quantized",
    ("weight_packed", _U8),
    _U8,
    {**_FP4, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"},
)
_NV = Form(
    "nvfp4-pack-quantized",
    ("weight_packed", _U8),
    _E4M3,
    {**_FP4, "strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"},
)
_MODELOPT = Form("NVFP4", ("weight", _U8), _E4M3, {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False})


def form_of(dtype: DType) -> Form:
    """The form of an output type in its layout."""
    scheme = scheme_of(dtype)
    if scheme is None:
        return _MX
    if scheme.codes != INT:
        return _NV if scheme.divisor else _MODELOPT
    group = {"strategy": "group", "group_size": scheme.group}
    weights = {"num_bits": scheme.bits, "type": "int", "symmetric": not scheme.zeros, "dynamic": False, **group}
    return Form("pack-quantized", ("weight_packed", _I32), None, weights)


def packed_as(layout: str, tensor: Tensor, number: DType | None = None, *, middle: bool = False) -> DType | None:
    """Type for every number of a quantized matrix; ``None`` if none.

    Args:
        number: type of the scales where the matrix has float32 ones, if it is to be another.
        middle: every zero point is the middle one, so that none is stored.
    """
    source = tensor.dtype
    if source is _NVFP4 or triple_of(source) == TRIPLE or is_scaled(source):
        return packed_type(DIVISOR if layout == COMPRESSED else FACTOR, tensor.shape[-1])
    if layout != COMPRESSED:
        return None
    if source in (_MXFP4_BLOCK, triple_type(_MXFP4)):
        return triple_type(_MXFP4)
    if source in INTEGERS:
        return packed_type(INTEGERS[source], tensor.shape[-1])
    if _is_symmetric(scheme_of(source), source):
        return source
    scheme = with_zeros(source)
    if scheme is None or scheme.group % 32:
        return None
    scales = number if number and scheme.number is F32 else scheme.number
    return packed_type(scheme._replace(number=scales, zeros=not middle), tensor.shape[-1])


def words_of(dtype: DType) -> int:
    """Rows whose zero points share a word; 1 where none are stored."""
    scheme = scheme_of(dtype)
    return together(scheme) if scheme and scheme.codes == INT and scheme.zeros else 1


def _is_symmetric(scheme: Scheme | None, dtype: DType) -> bool:
    """Whether groups are integers around zero in whole words."""
    if scheme is None or scheme.codes != INT or scheme.bits not in (4, 8):
        return False
    return not (scheme.zeros or scheme.ordered) and dtype.block == scheme.group and scheme.group % 32 == 0


def misplaced(entry: Entry) -> str:
    """Reason why a layout does not pack this module; empty if it does."""
    whole = entry.stored is None and not entry.shift and all(factor == 1 for factor in entry.factors)
    if not entry.name.endswith(".weight") or not whole:
        return "its class does not store it as the matrix [out, in] of a linear layer"
    return ""


def arrays_of(name: str, shape: tuple[int, ...], dtype: DType) -> list[StoredArray]:
    """Codes, scales and zero points of a module."""
    form, scheme, module = form_of(dtype), scheme_of(dtype), name.removesuffix(".weight")
    bits, group = (scheme.bits, scheme.group) if scheme else (4, 32)
    suffix, codes = form.codes
    scales = form.scales or (scheme.number if scheme else _U8)
    arrays = [
        StoredArray(f"{module}.{suffix}", codes, (*shape[:-1], shape[-1] * bits // 8 // codes.size)),
        StoredArray(f"{module}.weight_scale", scales, (*shape[:-1], shape[-1] // group)),
    ]
    if scheme and scheme.zeros:
        many, rows = together(scheme), math.prod(shape[:-1])
        arrays.append(StoredArray(f"{module}.weight_zero_point", _I32, (rows // many, shape[-1] // group), many))
    return arrays


def beside(entry: Entry, shape: tuple[int, ...], dtype: DType, factor: float) -> Module:
    """Further arrays of a module: a tensor scale, or its shape."""
    scheme, module = scheme_of(dtype), entry.name.removesuffix(".weight")
    if scheme is None:
        return ()
    if scheme.codes == INT:
        content = pack(f"<{len(shape)}q", *shape)
        return (_content(f"{module}.weight_shape", entry.canonical, _I64, (len(shape),), content, dtype),)
    if scheme.divisor:
        content = pack("<f", inverse(factor) or 0)  # 0 where it is refused
        return (_content(f"{module}.weight_global_scale", entry.canonical, F32, (1,), content, dtype),)
    return (_content(f"{module}.weight_scale_2", entry.canonical, F32, (), pack("<f", factor), dtype),)


def _content(name: str, canonical: str, dtype: DType, shape: tuple[int, ...], content: bytes, module: DType) -> Piece:
    layout = plain(math.prod(shape), 1)
    return Piece(name, canonical, dtype, shape, layout, None, None, module=module, content=content)


def quantization_of(layout: str, modules: Sequence[Module], head: str) -> dict[str, Any] | None:
    """``quantization_config``; ``None`` where nothing is packed.

    Args:
        head: what the class calls an output head that is the embedding, which is a linear layer, too.
    """
    forms: dict[str, list[str]] = {}
    found: dict[str, Form] = {}
    for module in modules:
        if module[0].module is not None:
            form = form_of(module[0].module)
            key = repr(form)
            found[key] = form
            forms.setdefault(key, []).append(module[0].name.rpartition(".")[0])
    if not found:
        return None
    dense = [m[0].name for m in modules if m[0].module is None and m[0].canonical != EMBEDDING and len(m[0].shape) > 1]
    ignored = [name.removesuffix(".weight") for name in (*dense, head) if name.endswith(".weight")]
    if layout == MODELOPT:
        group = {"targets": ["Linear"], "weights": dict(_MODELOPT.weights)}
        says = {"config_groups": {"group_0": group}, "ignore": ignored, "quant_algo": "W4A16_NVFP4"}
        return {**says, "producer": {"name": "modelopt"}, "quant_method": MODELOPT}
    kinds = [found[key] for key in forms]
    names = {form.name for form in kinds}
    groups = {
        f"group_{number}": {
            "format": found[key].name,
            "input_activations": None,
            "output_activations": None,
            "targets": ["Linear"] if len(forms) == 1 else forms[key],
            "weights": dict(found[key].weights),
        }
        for number, key in enumerate(forms)
    }
    return {
        "config_groups": groups,
        "format": kinds[0].name if len(names) == 1 else "mixed-precision",
        "ignore": ignored,
        "kv_cache_scheme": None,
        "quant_method": COMPRESSED,
        "quantization_status": "compressed",
    }


#: Blocks and scales of transformers' ``mxfp4``: the same numbers as ggml's and MLX's.
_MXFP4 = Triple(Quantization("mxfp4", 4, 32), BF16)

#: transformers 5.23 with compressed-tensors 0.20: packed ones end in an AttributeError of qwen3_moe, and of those that
#: are floats ``core_model_loading.convert`` finds none ("Ckpt contains: 0").
_EXPERTS = "transformers makes one tensor of a layer's experts, and does not in a checkpoint that is packed as"

#: Of a triple or a block of Q4_1.
_NO_ZERO = "groups have a bias that is not a code times their scale, so they have no zero point"

#: vLLM's ``process_weights_after_loading`` of NVFP4 (``compressed_tensors_w4a16_nvfp4.py``, ``modelopt.py``): the
#: largest ``weight_global_scale`` or ``weight_scale_2`` of matrices that it computes as one is taken for all of them.
#: SGLang does the same, and nothing else loads ModelOpt's.
_ONE_SCALE = {
    COMPRESSED: "vLLM takes the largest scale of scales of q, k and v, or of gate and up, for all of them: where they "
    "differ, as in {} here, it computes other values; transformers takes each matrix's own",
    MODELOPT: "vLLM and SGLang, which load modelopt, take the largest scale of scales of q, k and v, or of gate and "
    "up, for all of them, and in {} these differ",
}


class HuggingFacePlanner(checkpoint.CheckpointPlanner):
    """Planner of checkpoints that the classes of transformers load."""

    format = "safetensors"
    loader = schema.TRANSFORMERS
    scheme = "hf"
    written_by = "pt"
    always_index = False
    library = "transformers"

    def keeps_names(self) -> bool:
        """Whether the source has this layout already, and is copied."""
        method = within(self.document, "quantization_config", "quant_method")
        return super().keeps_names() and self.options.pack in ("", method)

    def _finish(self, modules: Sequence[Module], copied: bool, metadata: Mapping[str, str]) -> Plan:
        stays = self.index.packed and not self.unpacked if copied else any(one[0].module is not None for one in modules)
        if self.options.pack and not stays:
            self.notes.append(f"--pack {self.options.pack} packs nothing: all matrices of the output are floats")
        return super()._finish(modules, copied, metadata)

    def _floats(self, pieces: Sequence[Piece]) -> frozenset[str]:
        """Float type of activations: bfloat16 beside packed FP4."""
        found = super()._floats(pieces)
        forms = [form_of(piece.module) for piece in pieces if piece.module is not None]
        if self.options.pack != COMPRESSED or not any(form.scales for form in forms):
            return found
        if found - {BF16.name}:
            others = "--dtype bf16 stores the others so, too"
            self.notes.append(
                f"transformers computes FP4 of {COMPRESSED} in bfloat16, which config.json says; {others}"
            )
        return frozenset({BF16.name})

    def _renamed(self) -> Sequence[Module]:
        modules = super()._renamed()
        count = self._differing_scales(self.types) if self.options.pack else 0
        if count:
            message = _ONE_SCALE[self.options.pack].format(counted(count, "place"))
            self.refuse(message, DECODE) if self.options.pack == MODELOPT else self.notes.append(message)
        return modules

    def _differing_scales(self, types: Mapping[str, DType]) -> int:
        """Count of groups computed as one matrix whose scales differ."""
        wholes = {
            tuple(module.format(n=parse(name).layer) + ".weight" for module in PARTS[whole])
            for name in types
            for whole in (QKV, GATE_UP)
        }
        scaled = ([self.tensors[name] for name in parts if is_scaled(types.get(name, F32))] for parts in wholes)
        return sum(len({number for tensor in each for number in self._factors(tensor)}) > 1 for each in scaled)

    def _types(self, entries: Sequence[Entry]) -> dict[str, DType]:
        self._entries = {part: entry for entry in entries for part in entry.parts}
        if self.options.pack and any(entry.expert is not None for entry in entries):
            self.refuse(f"{_EXPERTS} {self.options.pack}", "--dequantize without --pack decodes all matrices")
        return super()._types(entries)

    def _block_type(self, tensor: Tensor) -> DType:
        """Type of blocks: MXFP4 stays where the class has it."""
        if self.in_blocks(tensor):
            return triple_type(_MXFP4)
        if not self.options.pack:
            return super()._block_type(tensor)
        number = DTYPES[self.dtype.upper()] if self.dtype in ("f16", "bf16") else None
        count, middle = 0, False
        if self.options.pack == COMPRESSED and with_zeros(tensor.dtype):
            count, middle = self.source.zeros.get(tensor.name, (count, middle))
        dtype = packed_as(self.options.pack, tensor, number, middle=middle)
        why = (_NO_ZERO, DECODE) if count else self._unpackable(tensor, dtype)
        if why:
            self.fault(*why, tensor.source, count)
        return dtype if dtype is not None and not why else tensor.dtype

    def _unpackable(self, tensor: Tensor, dtype: DType | None) -> tuple[str, str] | None:
        """Reason why the layout cannot hold a matrix, and what can."""
        layout, entry = self.options.pack, self._entries.get(tensor.name)
        if wrong := self.unsound(tensor):
            return wrong, ORIGINAL
        if dtype is None:
            elsewhere = layout != COMPRESSED and packed_as(COMPRESSED, tensor) is not None
            elsewhere = elsewhere and not (with_zeros(tensor.dtype) and self.source.zeros.get(tensor.name, (0,))[0])
            hint = f"--pack {COMPRESSED} keeps it; {DECODE}" if elsewhere else decode_hint(tensor.dtype)
            return f"{layout} has no type for the numbers of {tensor.dtype}", hint
        if tensor.name == EMBEDDING:
            return f"{layout} packs linear layers, and this is the embedding", DECODE
        if entry is not None and (why := misplaced(entry)):
            return f"{layout} cannot pack it: {why}", DECODE
        if (many := words_of(dtype)) and math.prod(tensor.shape[:-1]) % many:
            return f"{layout} has zero points of {many} rows in a word, and the rows are no multiple of that", DECODE
        numbers = self._factors(tensor)
        if entry is not None and any(self._factors(self.tensors[part]) != numbers for part in entry.parts):
            return "matrices that are stored as one have scales of scales of their own", DECODE
        inverted = scheme_of(dtype) == DIVISOR or (is_scaled(tensor.dtype) and tensor.dtype is not dtype)
        if inverted and not all(inverse(number) for number in numbers):
            does, better = ("divides", MODELOPT) if layout == COMPRESSED else ("multiplies", COMPRESSED)
            as_they_are = {name: other.dtype for name, other in self.tensors.items()}
            refused = better == MODELOPT and self._differing_scales(as_they_are)
            hint = DECODE if refused else f"--pack {better} writes it as it is; {DECODE}"
            return f"{layout} {does} by the scale of scales, and only a power of two has an exact inverse", hint
        return None

    def _factors(self, tensor: Tensor) -> list[float]:
        """The scale of scales of a matrix, or of each of stacked ones."""
        stacked = tensor.shape[0] if len(tensor.shape) > 2 else 1
        return self.source.factors.get(tensor.name, [math.nan]) if is_scaled(tensor.dtype) else [1.0] * stacked

    def _module(self, entry: Entry, parts: Sequence[Tensor], dtype: DType) -> Module:
        """Tensors of a module, plain or in a quantizer's layout."""
        if not self.options.pack or dtype.block == 1 or entry.packed:
            return module_of(entry, parts, dtype)
        shape, layout = parts_layout(entry, parts, dtype)
        made = planes(entry, parts, layout, dtype, arrays_of(entry.name, shape, dtype))
        return (*made, *beside(entry, shape, dtype, self._factors(parts[0])[0]))

    def in_blocks(self, tensor: Tensor) -> bool:
        """Whether the class has the tensor in blocks, and it is of that type."""
        o, pattern = self.options, parse(tensor.name).pattern
        known = self.family is not None and o.names == HF and not o.pack and pattern in names_of(self.family, HF).packed
        return known and tensor.dtype in (triple_type(_MXFP4), DTYPES["MXFP4"]) and not self.decoded(tensor)

    def _quantization(self, modules: Sequence[Module]) -> dict[str, Any] | None:
        if self.options.pack:
            assert self.family is not None
            head = names_of(self.family, HF).written.get(HEAD)
            return quantization_of(self.options.pack, modules, head.pattern if head and self.tied else "")
        packed = {module[0].name.removesuffix(BLOCKS[0]) for module in modules if module[0].module is not None}
        if not packed:
            return None
        dense = (module[0].name for module in modules if module[0].module is None and len(module[0].shape) > 1)
        paths = (name.removesuffix(".weight") for name in dense if name.endswith(".weight"))
        return {"modules_to_not_convert": _outside(paths, packed), "quant_method": "mxfp4"}


def _outside(paths: Iterable[str], packed: Iterable[str]) -> list[str]:
    """Shortest paths to unpacked modules alone; ``*`` for layers."""
    above = {start for path in packed for start in _starts(path)}
    return list(dict.fromkeys(next(start for start in _starts(path) if start not in above) for path in paths))


def _starts(path: str) -> list[str]:
    words = ["*" if word.isdecimal() else word for word in path.split(".")]
    return [".".join(words[:depth]) for depth in range(1, len(words) + 1)]


# Which planner makes a checkpoint of what is more than a text model.


def planner_of(index: TensorIndex) -> type[Planner] | None:
    """Planner of a model of two files or with speech; else ``None``."""
    if (
        index.config is not None
        and index.format not in config_json.CHECKPOINTS
        and index.config.family == speech().family
    ):
        return SpeechPlanner
    if index.tower is None or index.config is None:
        return None

    return HuggingFaceWholePlanner


# Planning a checkpoint of a file that whisper.cpp loads: its header is the configuration.


class SpeechPlanner(HuggingFacePlanner):
    """Planner of a speech model and its feature extractor."""

    def _check_class(self, family: schema.Family) -> None:
        """Check that the tensors are those of the class."""
        assert self.config is not None
        scope = self.config.scope
        wanted = {name for name, _ in speech_tensors(scope["layers"], scope["encoder_layers"])}
        self.refuse_missing(dict.fromkeys(sorted(wanted - self.tensors.keys()), 1))
        if self.index.facts.get("filters") != USUAL:
            self.refuse("the filters are not those of openai-whisper, which transformers computes anew")
        if not self.options.file_name:
            settings = speech_settings(scope["mels"])
            self.beside["preprocessor_config.json"] = (json.dumps(settings, indent=2, sort_keys=True) + "\n").encode()


# Planning a checkpoint of a text model and a tower that were two files: one model of transformers, as it was.


class HuggingFaceWholePlanner(checkpoint.WholePlanner, HuggingFacePlanner):
    """Planner of both as the class of transformers has them."""

    def check_seen_by(self, config: ModelConfig) -> None:
        """Check that the loader renames the text model's tensors."""
        embedding = names_of(catalog.FAMILIES[config.family], HF).written.get(EMBEDDING)
        if embedding is None or not embedding.pattern.startswith("model."):  # its loader renames no others
            self.refuse(
                f"the class loads text models whose tensors are called model.*, and {an(config.family)} has other names"
            )

    @property
    def tower_prefix(self) -> str:
        """As the text model's tensors have it."""
        return "model." if self._prefix.startswith("model.") else ""

    @property
    def _prefix(self) -> str:
        return self.seeing.in_huggingface.text[1]

    def text_name(self, name: str) -> str:
        """A text tensor's name within the class of both."""
        inner = dict(NESTED).get(self._prefix)
        if inner is None or not name.startswith(inner):
            return name
        return self._prefix + name.removeprefix(inner)
