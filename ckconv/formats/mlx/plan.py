"""Planning of MLX directories as mlx-lm or mlx-vlm loads them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from ckconv.core.config import ModelConfig, same_factors_always, scaled, without_sections, yarn_scale
from ckconv.core.layouts import BF16, DTYPES, F32, DType, Kind
from ckconv.core.lazy import cached_property, replace, table_of
from ckconv.core.metadata import QUANTIZATION_KEYS, text_key
from ckconv.core.options import Options
from ckconv.core.tensors import Tensor, TensorIndex, blocks_split, parse
from ckconv.errors import InputError, UsageError, an, counted
from ckconv.families import catalog, keys, parameters, towers
from ckconv.families.schema import DRAFTS, MLX_LM, MLX_VLM, Engine, Family, Loader
from ckconv.formats.safetensors.checkpoint import BESIDE, OF_THE_CLASS, CheckpointPlanner, WholePlanner
from ckconv.formats.safetensors.config_json import complete, strict
from ckconv.formats.safetensors.files import MODULES, PLAIN, modules_of
from ckconv.formats.safetensors.write import Entry
from ckconv.plan.planner import ORIGINAL, engine_of
from ckconv.plan.probe import SourceFacts
from ckconv.plan.quantizing import FLOATS, TypeRequest, names, parsed
from ckconv.plan.steps import DECODE, Module, Piece, Plan, Reason, decode_hint
from ckconv.quant.convert import Action, Conversion, Errors, QuantSettings, decodable, of_values, side_by_side
from ckconv.quant.mlx import LEAST_NVFP4, MODES, Quantization, Triple, quantization, triple_of, triple_type
from ckconv.quant.packed import is_scaled, nearest
from ckconv.quant.repack import BY_BLOCK, SCATTERED, SUPERBLOCKS, is_fp8, scattered, triple_for

# ``--quantize`` for MLX: which module gets what, as in ``quantize_model`` of mlx-lm's ``utils.py``.

#: Of the sizes that triples may have, those that MLX quantizes to (``mlx.core.quantize``).
_BITS, _GROUPS = (1, 2, 3, 4, 5, 6, 8), (32, 64, 128)

#: What mlx-lm's classes ask for single modules.
EIGHT = Quantization("affine", 8, 64)


#: Kind of the modules that no class has a quantized form of.
_DENSE = "dense"


@cache
def _modules() -> Mapping[str, Mapping[str, list[str]]]:
    return table_of(Path(__file__).with_name("modules.toml"))


def type_request(text: str) -> TypeRequest:
    """Parse the flag.

    Raises:
        UsageError: ``usage.quantize``, MLX has no such type.
    """
    request = parsed(text)
    for word in (request.word, *(word for _, word in request.rules)):
        if word not in FLOATS:
            quantization_of(word, text)
    return request


def quantization_of(word: str, text: str) -> Quantization:
    """``affine:4:64``, ``mxfp4``."""
    mode, *sizes = word.split(":")
    numbers = [int(size) if size.isdecimal() and len(size) < 5 else -1 for size in sizes]
    wanted = "affine:BITS:GROUP, mxfp4, mxfp8 or nvfp4"
    if mode not in MODES or len(numbers) not in (0, 2) or (mode == "affine") != (len(numbers) == 2):
        raise UsageError("usage.quantize", f"--quantize {text}: {word} is not a type of MLX; {wanted} expected")
    try:
        found = quantization(mode, *numbers)
    except InputError as error:
        raise UsageError("usage.quantize", f"--quantize {text}: {error.message}") from error
    if mode == "affine" and (found.bits not in _BITS or found.group_size not in _GROUPS):
        message = f"--quantize {text}: MLX quantizes to 1, 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128"
        raise UsageError("usage.quantize", message)
    return found


def default_of(
    module: str, model_type: str, general: Quantization, columns: int, dense: Sequence[str] = (_DENSE,)
) -> Quantization | None:
    """Default quantization of a module in mlx-lm, or ``None``."""
    floats = any(_is_among(kind, module, model_type) for kind in (*dense, "floats"))
    if floats or not general.divides(columns):
        return None
    return EIGHT if _is_among("eight", module, model_type) else general


def _is_among(kind: str, module: str, model_type: str) -> bool:
    return any(fnmatchcase(f".{module}", f"*.{end}") for end in _modules()[kind].get(model_type, ()))


def _no_codes(entry: Entry, parts: Sequence[Tensor], chosen: Quantization) -> str:
    """Why codes are not made of floats; empty where they are."""
    if any(factor != 1.0 for factor in entry.factors):
        return "the class multiplies its result by a factor, which codes cannot store"
    floats = all(part.dtype.block == 1 for part in parts)
    if floats and entry.stored and blocks_split(type_of(chosen, F32), entry.stored[1]):
        return "the class has columns of it for rows, and codes are made of its own rows"
    return ""


def type_of(q: Quantization, number: DType) -> DType:
    """The block type; ``number`` is that of affine scales and biases."""
    return triple_type(Triple(q, number if q.has_biases else BF16))


# What mlx-lm does with a ``rope_scaling``, and what it leaves out of it without a word.
#
# Source: ``initialize_rope`` of mlx_lm/models/rope_utils.py, 0.32.

#: Scaling that mlx-lm computes as transformers does -> the keys that it reads. It takes the long factors
#: of ``longrope`` from the first token on, transformers only for sequences longer than the original context.
_KEYS: Mapping[str, frozenset[str]] = {
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor"}),
    "llama3": frozenset({"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"}),
    "yarn": frozenset(
        {"factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}
    ),
    "longrope": frozenset({"long_factor", "short_factor", "original_max_position_embeddings"}),
}

#: What mlx-lm takes for a YaRN scaling without ``original_max_position_embeddings``.
_YARN_CONTEXT = 4096

_NAMES = frozenset({"rope_type", "type", "rope_theta"})


def weighed(scaling: Mapping[str, Any], *, latent: bool) -> Mapping[str, Any]:
    """YaRN whose cosines and sines mlx-lm multiplies as transformers does.

    ``YarnRoPE`` of mlx-lm's rope_utils.py makes the factor of ``mscale`` and ``mscale_all_dim``, whatever they are, as
    ``_compute_yarn_parameters`` of transformers does where both are above 0 and no ``attention_factor`` is there.

    Args:
        latent: ``mscale_all_dim`` weighs scores, too, and stays what it is.
    """
    growth = yarn_scale(scaling.get("factor") or 1) - 1
    if scaling.get("rope_type") != "yarn" or not growth:
        return scaling
    weight, one, whole = (scaling.get(key) for key in ("attention_factor", "mscale", "mscale_all_dim"))
    meant, whole = yarn_scale(scaling["factor"], weight, one, whole), whole or 0
    made = (growth * (1 if one is None else one) + 1) / (growth * whole + 1)
    if weight is None and math.isclose(made, meant, rel_tol=1e-6):
        return scaling
    whole = whole if latent else max(1.0, (2 / meant - 1) / growth)
    one = (meant * (growth * whole + 1) - 1) / growth
    others = {key: value for key, value in scaling.items() if key != "attention_factor"}
    return {**others, "mscale": one, **({"mscale_all_dim": whole} if whole else {})}


def rope_reasons(config: ModelConfig, scaling: Mapping[str, Any], row: Engine, loader: Loader) -> Iterator[Reason]:
    """Why the engine would rotate by other angles than the configuration says."""
    kind, engine = str(scaling.get("rope_type")), loader.name
    if row.scaling is not None and kind not in row.scaling:
        yield Reason(f"{scaled(kind, config)}, which {engine}'s {config.family} does not do")
        return
    if kind not in _KEYS:
        hint = without_sections(kind, config)
        yield Reason(f"{scaled(kind, config)}, which {engine} does not do as transformers does", hint)
        return
    if kind == "longrope" and not same_factors_always(scaling):
        original = scaling["original_max_position_embeddings"]
        yield Reason(f"{scaled(kind, config)}; {engine} uses the long factors for the first {original:,} tokens, too")
    if kind == "yarn" and not scaling.get("original_max_position_embeddings"):
        yield Reason(
            f"{scaled(kind, config)} and names no original_max_position_embeddings: {engine} takes {_YARN_CONTEXT}"
        )
    known = _KEYS[kind] | _NAMES | {*row.reads, *catalog.FAMILIES[config.family].document.rope.noted}
    for key, value in sorted(scaling.items()):
        if key not in known and not keys.ROPE_KEYS[kind].idle(key, value):
            yield Reason(f"{scaled(kind, config)} with {key} = {value!r}, which {engine} does not read")


class MlxPlanner(CheckpointPlanner):
    """Planner of directories that mlx-lm loads."""

    format = "mlx"
    loader = MLX_LM
    scheme = "mlx"
    written_by = "mlx"
    always_index = True
    library = "mlx"

    def __init__(self, index: TensorIndex, options: Options, source: SourceFacts) -> None:
        super().__init__(index, options, source)
        self._named: set[str] = set()
        self._unfit: dict[str, list[str]] = {}

    def keeps_names(self) -> bool:
        """Whether names are MLX's already, and are copied."""
        return (
            not self.options.quantize
            and super().keeps_names()
            and (self.config is not None or self.index.format == self.format)
        )

    def plain_type(self, name: str, source: DType) -> DType:
        """As for any checkpoint, of the types that mlx loads."""
        dtype = super().plain_type(name, source)
        # Source: ``dtype_from_safetensor_str`` of mlx/io/safetensors.cpp, 0.32.
        if dtype.kind is Kind.OPAQUE or dtype.name == "F64":
            self.fault(f"mlx loads no {dtype} tensors", "--dtype f32" if dtype.name == "F64" else "", name)
        return dtype

    def decoded_type(self, tensor: Tensor) -> DType:
        """As for any checkpoint, of matrices."""
        if side_by_side(tensor.dtype) and len(tensor.shape) < 2:  # FP8 is read as rows of a matrix, with their scales
            self.fault(f"a vector of {tensor.dtype} is no matrix", ORIGINAL, tensor.source)
        return super().decoded_type(tensor)

    def _block_type(self, tensor: Tensor) -> DType:
        """The triple that holds every number of the blocks.

        Scales and biases are float32 unless another type is asked for: with those MLX computes the values that GGUF
        holds, where with float16 it rounds every one of them.
        """
        if triple_of(tensor.dtype) is not None:
            if self.index.format != self.format and (why := self.unsound(tensor)):
                self.fault(why, ORIGINAL, tensor.source)
            return tensor.dtype
        requested = self.dtype
        triple = triple_for(tensor.dtype, F32 if requested in ("engine", "keep") else DTYPES[requested.upper()])
        if triple is None or requested == "keep":
            why = f"{tensor.dtype} {'has no exact form in MLX' if triple is None else 'is another type in MLX'}"
            why += nearest(tensor.dtype, mlx=True) if triple is None else ""
            if not decodable(tensor.dtype):
                why = f"ckconv neither decodes {tensor.dtype} nor packs it for MLX"
            self.fault(SCATTERED if scattered(tensor.dtype) else why, decode_hint(tensor.dtype), tensor.source)
            return tensor.dtype
        floats = is_fp8(tensor.dtype) or is_scaled(tensor.dtype)
        if floats and (count := self.source.unfit.get(tensor.name, {}).get(triple_type(triple), 0)):
            why = "scales are not powers of two, as MLX's mxfp8 wants them"
            if is_scaled(tensor.dtype):
                why = "scales times the global scale are not E4M3 numbers, as MLX's nvfp4 wants them"
            if wrong := self.unsound(tensor):
                self.fault(wrong, ORIGINAL, tensor.source)
            else:
                self.fault(why, DECODE, tensor.source, count)
            return tensor.dtype
        if not triple.quantization.divides(tensor.shape[-1]):
            self.fault(f"rows are not whole groups of {triple.quantization}", DECODE, tensor.source)
            return tensor.dtype
        return triple_type(triple)

    def _types(self, entries: Sequence[Entry]) -> dict[str, DType]:
        types = super()._types(entries)
        if self.options.quantize:
            self._quantize(entries, types)
        for entry in entries:
            if not any(triple_of(types[name]) for name in entry.parts):
                continue
            if any(_is_among(kind, entry.name.removesuffix(".weight"), self._class) for kind in self._dense):
                hint = self._but(self.tensors[entry.parts[0]]) if self.options.quantize else DECODE
                self.fault(f"{self.loader.name}'s class takes floats there, and no codes", hint, entry.name)
        return types

    @cached_property
    def _class(self) -> str:
        """Name of the class in mlx-lm, or behind ``mlx-vlm/`` in mlx-vlm."""
        if self.within or self.config is None:
            return f"mlx-vlm/{self.within}"
        family = catalog.FAMILIES[self.config.family]
        row = engine_of(family, self.loader)
        return (row.wrapped or row.model_type if row is not None else "") or family.model_type

    @cached_property
    def _dense(self) -> Sequence[str]:
        """Kinds of modules of which the class has no quantized form."""
        own = self.config.own if self.config is not None else {}
        return (_DENSE, *(["head"] if self.tied else ()), *(name for name in _modules() if own.get(name)))

    def _quantize(self, entries: Sequence[Entry], types: dict[str, DType]) -> None:
        """Put the types that ``--quantize`` asks for in the place of others."""
        for entry in entries:
            types |= self._quantized_to(entry, [self.tensors[name] for name in entry.parts])
        for text, left in self._unfit.items():
            self.notes.append(f"{text}: {left[0]} ({counted(len(left), 'tensor')})")

    def _quantized_to(self, entry: Entry, parts: Sequence[Tensor]) -> dict[str, DType]:
        """Types that ``--quantize`` asks for a matrix's parts; may be empty."""
        wanted = type_request(self.options.quantize)
        word = wanted.of(entry.name, *parts)
        module, _, kind = entry.name.rpartition(".")
        if kind != "weight" or entry.missing or len(parts[0].shape) < 2:
            return {}
        columns = parts[0].shape[-1]
        general = quantization_of(wanted.word, self.options.quantize)
        chosen = default_of(module, self._class, general, columns, self._dense)
        if word:
            self._named.update(glob for glob, _ in wanted.rules if any(names(glob, entry.name, part) for part in parts))
            chosen = None if word in FLOATS else quantization_of(word, self.options.quantize)
        elif not general.divides(columns) and columns > (least := general.group_size):  # a convolution's are shorter
            text = f"rows of {columns:,} are not whole groups of {least:,} and stay floats"
            if default_of(module, self._class, general, least, self._dense):
                self._unfit.setdefault(text, []).append(entry.name)
        if chosen is not None and (why := _no_codes(entry, parts, chosen)):  # it stays what it is
            if word:
                self.fault(why, self._but(parts[0]), entry.name)
            chosen = None
        if chosen is not None and not chosen.divides(columns):
            engine = self.loader.name
            hint = "" if word else f"{engine}'s class asks for that; --quantize GLOB=TYPE asks for another type"
            self.fault(f"rows of {columns:,} are not whole groups of {chosen}", hint, entry.name)
        if chosen is not None and chosen.mode == "nvfp4" and LEAST_NVFP4 not in self.notes:
            self.notes.append(LEAST_NVFP4)
        return {part.name: self._chosen(part, chosen, FLOATS.get(word)) for part in parts}

    def refuse_faults(self) -> None:
        """Refuse rules of ``--quantize`` that name nothing, too."""
        super().refuse_faults()
        for glob, word in type_request(self.options.quantize).rules if self.options.quantize else ():
            if glob not in self._named:
                self.refuse(f"--quantize {glob}={word} names no matrix that can be quantized")

    def _but(self, part: Tensor) -> str:
        """Hint of a rule behind the others, which keeps floats in a matrix."""
        glob = parse(part.name).pattern.replace("{n}", "*").replace("{e}", "*")
        number = part.dtype.name.lower()
        return f"--quantize '{self.options.quantize},{glob}={number if number in FLOATS else 'f32'}' keeps floats there"

    def _chosen(self, tensor: Tensor, chosen: Quantization | None, plain: DType | None) -> DType:
        """Type of a matrix that is quantized or of floats."""
        source, requested = tensor.dtype, self.dtype
        same = triple_of(source)
        if same is not None and chosen == same.quantization and not self.decoded(tensor):
            return source
        if source.kind is Kind.BLOCK and not self.decoded(tensor):
            why = f"--quantize rounds floats, and {source} is quantized already"
            self.fault(why, "--dequantize decodes it first", tensor.source)
        number = F32 if source.kind is Kind.BLOCK else source
        number = number if requested in ("engine", "keep") else DTYPES[requested.upper()]
        if chosen is None:
            return plain or number
        if not chosen.has_biases and number is not source and source.kind is not Kind.BLOCK:
            self.fault(f"{chosen.mode} is made of the source's own values", "leave out --dtype", tensor.source)
        return type_of(chosen, number)

    def _finish(self, modules: Sequence[Module], copied: bool, metadata: Mapping[str, str]) -> Plan:
        errors = Errors()
        if self.options.quantize:
            modules = [tuple(self._measured(piece, errors) for piece in module) for module in modules]
        plan = super()._finish(modules, copied, metadata)
        return replace(plan, errors=errors) if self.options.quantize else plan

    def _measured(self, piece: Piece, errors: Errors) -> Piece:
        """Piece whose conversions measure a module's error once."""
        if piece.conversion is None:
            return piece
        how = QuantSettings(errors=None if piece.conversion.plane else errors)

        def measured(conversion: Conversion, source: Tensor | None) -> Conversion:
            if source is not None and self.decoded(source):
                conversion = of_values(conversion)
            rounds = conversion.quantizes or conversion.action is Action.NARROW
            return conversion._replace(quantizing=how) if rounds else conversion

        runs = tuple(run._replace(conversion=measured(run.conversion, run.tensor)) for run in piece.runs)
        return piece._replace(conversion=measured(piece.conversion, piece.source), runs=runs)

    def _renamed(self) -> Sequence[Module]:
        modules = super()._renamed()
        stored = ((self.tensors[name], dtype) for name, dtype in self.types.items())
        self.note_growth((tensor.dtype, dtype) for tensor, dtype in stored if not self.decoded(tensor))
        numbers = {
            triple.number
            for name, dtype in self.types.items()
            if (triple := triple_of(dtype)) and triple.quantization.has_biases and not self._rounded(name, dtype)
        }
        if F32 in numbers:
            self.notes.append("scales and biases are float32, so that MLX computes exactly what the blocks hold")
        elif numbers:
            self.notes.append(
                "with scales and biases of this type MLX rounds every value; with float32 ones it does not"
            )
        return modules

    def _rounded(self, name: str, dtype: DType) -> bool:
        """Whether a tensor's numbers are not those of the source's blocks."""
        source = self.tensors[name]
        return source.dtype is dtype or source.dtype.kind is not Kind.BLOCK or self.decoded(source)

    def _check_class(self, family: Family) -> None:
        """The loader's class computes what the configuration says."""
        super()._check_class(family)
        config = self.config
        assert config is not None
        if self.options.names in ("canonical", "gguf"):
            return
        if "norm_eps" in family.parameters and not config.norm_eps:
            self.refuse(f"{self.loader.name} wants an epsilon above 0 for norms (rms_norm_eps, layer_norm_epsilon)")
        row = self._row(family)
        if self.rope_scaling and row is not None:
            if self.loader is MLX_LM:
                self.rope_scaling = weighed(self.rope_scaling, latent="kv_rank" in config.own)
            self.reasons += rope_reasons(config, self.rope_scaling, row, self.loader)
        behind = [module.path for module in modules_of(self.index.path) if module.kind not in PLAIN] or [*self.behind]
        if behind:
            self.notes.append(f"{self.loader.name} does not compute {', '.join(behind)}, which {MODULES} names")

    def _row(self, family: Family) -> Engine | None:
        """Row of the loader in the model's family."""
        return engine_of(family, self.loader)

    def _quantization(self, modules: Sequence[Module]) -> dict[str, Any] | None:
        """The most common quantization, and by name the modules that have another."""
        found: dict[str, Quantization] = {}
        for piece in (module[0] for module in modules):
            triple = triple_of(piece.module) if piece.module is not None else None
            if triple is not None:
                found[piece.name.removesuffix(".weight")] = triple.quantization
        if not found:
            return None
        common = Counter(found.values()).most_common(1)[0][0]
        if self.options.quantize:
            common = quantization_of(type_request(self.options.quantize).word, self.options.quantize)
        return {**_entry(common), **{name: _entry(q) for name, q in sorted(found.items()) if q != common}}


# Planning of a text model and its tower, under the names of mlx-vlm's classes.


def planner_of(index: TensorIndex) -> type[MlxWholePlanner] | None:
    """Planner of a text model with its tower; else ``None``."""
    return MlxWholePlanner if index.tower is not None and index.config is not None else None


class MlxWholePlanner(WholePlanner, MlxPlanner):
    """Planner of directories that mlx-vlm loads."""

    loader = MLX_VLM

    def __init__(self, index: TensorIndex, options: Options, source: SourceFacts) -> None:
        super().__init__(index, options, source)
        if self.family is not None and self.config is not None and self.config.own.get(DRAFTS):
            self.drafts = self.family.of_drafts, self.seeing.engines[self.loader.row].drafts

    def _row(self, family: Family) -> Engine | None:
        """Row of the whole, which says the scalings of its text model."""
        return self.seeing.engines.get(self.loader.row)

    @property
    def text_alone(self) -> str:
        """Flag that writes the text model without the tower."""
        alone = super().text_alone
        return alone and f"{alone}, for mlx-lm"

    def check_seen_by(self, config: ModelConfig) -> None:
        """Check that mlx-vlm computes both as transformers does."""
        row, text = self.seeing.engines.get(self.loader.row), self.text_alone
        if row is None:
            self.refuse(f"ckconv does not know what mlx-vlm computes of {an(self.within)} (model_type)", text)
            return
        if row.text and config.family not in row.text:
            known = ", ".join(row.text)  # of others it is not known what the class does
            self.refuse(f"ckconv writes mlx-vlm's {self.within} with {known} within it, not with {config.family}", text)
        scope = self._scope(config)
        for condition in row.right_if:
            if not condition.expression.value(scope):
                self.refuse(condition.message(scope), condition.hint or text)
        for modifier in self._tower.modifiers:
            self.refuse(f"{modifier} of the tower changes the computation, and mlx-vlm has no place for it", text)
        self.notes += [one.message(scope) for one in row.same_if if not one.expression.value(scope)]
        self.notes.append("; ".join(filter(None, ("mlx-vlm loads the text model and the tower", text))))

    def _scope(self, config: ModelConfig) -> Mapping[str, Any]:
        """Parameters of the tower, and with ``text_`` those of the text model.

        ``text`` is its family.
        """
        own = parameters.scope_of(catalog.FAMILIES[config.family], config)
        text = {"text": config.family, "text_window": None, **{f"text_{name}": own[name] for name in own}}
        return {**text, **self._tower.parameters}

    @property
    def _unread(self) -> frozenset[str]:
        """Keys of a text model that transformers' class does not read."""
        if self.config is None or keys.CONSUMERS.get(self.index.format) != keys.TRANSFORMERS:
            return frozenset()
        return keys.unread_by(keys.TRANSFORMERS, catalog.FAMILIES[self.config.family].parameters.values())

    def type_beside(self, entry: Entry, parts: Sequence[Tensor]) -> DType:
        """Type of a tensor of the tower: codes where mlx-vlm quantizes it, too."""
        if self.options.quantize and _is_among("beside", entry.name.removesuffix(".weight"), self._class):
            return next(iter(self._quantized_to(entry, parts).values()))
        return super().type_beside(entry, parts)

    def text_name(self, name: str) -> str:
        """A text tensor's name within the class of both."""
        own = self.drafts[0] and name.startswith(self.drafts[0])
        return name if own else towers.name_within(self.seeing.engines.get(self.loader.row), name)

    def encoded(self, whole: dict[str, Any], text: Mapping[str, Any], modules: Sequence[Module]) -> bytes:
        """Bytes of a document with every key, as mlx-vlm has other defaults."""
        row, config = self.seeing.engines[self.loader.row], self.config
        assert config is not None
        quantized = {key: text[key] for key in QUANTIZATION_KEYS if key in text}
        key = text_key(whole)
        inner, own = whole.get(key, {}), text.get(key, text)
        own = {name: value for name, value in own.items() if not key or name in inner or name not in whole}
        named = catalog.FAMILIES[config.family].in_huggingface.names  # another was told by its class
        kind = {name: inner[name] for name in ("model_type",) if inner.get(name) in named}
        given = complete(self.index, config, self.config_document(modules, False))
        tables = {
            name: {**(given.get(name) or {}), **(it or {}), **own[name]}
            for name, it in inner.items()
            if isinstance(own.get(name), dict)
        }
        # Of a class that divides the width by the heads it would be a number that no other reader is told.
        given = given if "head_dim" in row.needs else {name: one for name, one in given.items() if name != "head_dim"}
        made = {**given, **own, **tables, **kind}
        made = {name: value for name, value in made.items() if name not in (*OF_THE_CLASS, *QUANTIZATION_KEYS)}
        table = made.get("rope_parameters")
        if "rope_scaling" in row.needs and isinstance(table, dict) and not made.get("rope_scaling"):
            scaling = {name: value for name, value in table.items() if name != "rope_theta"}
            made["rope_scaling"] = {**scaling, "type": scaling.get("rope_type", "default")}
        for name, value in parameters.nested(self.written.entries).items():
            if isinstance(value, dict) and name not in BESIDE:
                given = {inner: number for inner, number in value.items() if number is not None}
                own = whole.get(name, {})
                known = own.get("model_type") in (self.within, given.get("model_type"))  # others stop the class
                whole[name] = {**given, **{key: it for key, it in own.items() if known or key != "model_type"}}
        if self.doubles_head(self.loader) and config.tied:
            whole["tie_word_embeddings"] = made["tie_word_embeddings"] = True  # of the model: the class has a copy
        if row.at_top:  # but for tokens of pictures, which the class has of the whole
            of_whole = {"model_type", *self.seeing.in_huggingface.tokens} & whole.keys()
            whole |= {name: value for name, value in made.items() if name not in of_whole}
        if key:
            whole = {name: value for name, value in whole.items() if name in made or name not in self._unread}
            whole[key] = made
        scope = self._scope(config)
        for path, expression in row.says.items():
            table, _, name = path.rpartition(".")
            (whole[table] if table else whole)[name] = expression.value(scope)
        for table, taken in row.only.items():
            whole[table] = {name: value for name, value in whole[table].items() if name in taken}
        return super().encoded(strict({**whole, **quantized}), text, modules)


def _entry(quantization: Quantization) -> dict[str, Any]:
    return {"group_size": quantization.group_size, "bits": quantization.bits, "mode": quantization.mode}


# Quantized matrices of MLX, named by the block type of ggml that has the same numbers.

#: What a model of MLX may have, and what becomes an MLX matrix without being decoded.
BLOCKS = tuple(dtype.name for dtype in BY_BLOCK)
EXACT_BLOCKS = (*BLOCKS, *(dtype.name for dtype in SUPERBLOCKS if dtype not in BY_BLOCK))
