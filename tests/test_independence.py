"""Bugs put into the half that writes: ``convert`` publishes none of them, and ``verify OUT SRC`` finds each.

The planner counts as what writes. A bug stays in place while the same process converts and verifies, so whatever writer
and proof share would have it on both sides. The last test puts one bit into what every function of the writer's half
returns, whatever functions there are.
"""

from __future__ import annotations

import importlib
import io
import json
import math
import pkgutil
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import family_cases
import numpy as np
import pytest
from checkpoints import Decoder, save, save_gguf
from embedding_cases import EMBEDDINGS
from gguf_copies import gguf_copy
from products import shown
from safetensors.numpy import save_file
from test_diffusion import original
from test_floors import FILES, FLOOR_OF, WRITES, box, existing
from test_quantize import save_dat
from tower_cases import checkpoint, recorded_tower, seen_by_mlx_vlm, with_tokens
from whisper_cases import save as save_whisper

import ckconv
from ckconv.api import convert_tower
from ckconv.cli import run
from ckconv.comparison import verify
from ckconv.core import metadata as typed
from ckconv.core.metadata import pieces_of
from ckconv.errors import VerifyError
from ckconv.verification import statements, tensors
from ckconv.verification.content import items_of

FIXTURES = Path(__file__).parent.parent / "fixtures"
LAYOUTS = FIXTURES / "tokenizers/layouts"

#: Functions beside what writes that whoever reads needs: bytes are waited for, files opened.
READS = r"conversion/write:((GrowingOutput|Progress)\..+|compare\.<locals>\..+)"

#: Told the function that has the bug, what stands in its place.
Bug = Callable[[Callable[..., Any]], Callable[..., Any]]


class Case(NamedTuple):
    """One bug.

    Attributes:
        name: what is wrong, for people.
        where: the function, by its name, or ``Class.method``; behind ``module:`` where several are called so.
        bug: what becomes of it.
        source: what is converted, of the fixtures.
        asked: the options of the conversion.
        config: keys of the source's config.json that are others.
    """

    name: str
    where: str
    bug: Bug
    source: str
    asked: Sequence[str]
    config: Mapping[str, Any] = {}


@cache
def modules() -> list[ModuleType]:
    """Every module of the package."""
    names = (found.name for found in pkgutil.walk_packages(ckconv.__path__, "ckconv."))
    return [importlib.import_module(name) for name in names if not name.endswith("__main__")]


def places(where: str) -> list[tuple[Any, str]]:
    """Everything that has this function under a name of its own: where it is defined, and where it is imported."""
    home, _, where = where.rpartition(":")
    owner, _, name = where.rpartition(".")
    found = [module for module in modules() if owner and hasattr(module, owner)]
    if owner:
        return [(getattr(found[0], owner), name)]
    writing = [m for m in modules() if not m.__name__.startswith("ckconv.verification") and m.__name__.endswith(home)]
    own = [m for m in writing if getattr(getattr(m, name, None), "__module__", "") == m.__name__]
    assert len(own) == 1, f"{where}: {[module.__name__ for module in own]}"
    real = getattr(own[0], name)
    return [(module, name) for module in modules() if getattr(module, name, None) is real]


@contextmanager
def broken(where: str, bug: Bug) -> Iterator[list[int]]:
    """The function has the bug in the block, wherever it is called; how often it was."""
    found, calls = places(where), [0]
    owner, name = found[0]
    real = owner.__dict__[name]
    plain = real.fget if isinstance(real, property) else real
    wrong = bug(plain)

    def counted(*args: Any, **flags: Any) -> Any:
        calls[0] += 1
        return wrong(*args, **flags)

    fake: Any = property(counted) if isinstance(real, property) else counted
    for place, _ in found:
        setattr(place, name, fake)
    forget(plain.__module__)
    try:
        yield calls
    finally:
        for place, _ in found:
            setattr(place, name, real)
        forget(plain.__module__)


def forget(home: str) -> None:
    """Nothing that was computed with functions of a module is remembered: what stands below it has none of them."""
    for module, remembers in caches():
        if floor(module) >= floor(home):
            remembers.cache_clear()


@cache
def caches() -> list[tuple[str, Any]]:
    """Functions of the package that remember what they returned, with their modules."""
    every = ((module.__name__, value) for module in modules() for value in vars(module).values())
    return [(name, value) for name, value in every if hasattr(value, "cache_clear") and value.__module__ == name]


@cache
def floor(module: str) -> int:
    """On which floor of tests/test_floors.py a module stands: none imports what stands above it."""
    return FLOOR_OF[box(existing(module))]


def command(*arguments: str) -> tuple[int, str]:
    """Exit status, and everything that was printed."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        status = run([*arguments, "--jobs", "1"])
    return status, printed.getvalue()


# -- Bugs -------------------------------------------------------------------------------------------------------------


def touched(change: Callable[[Any], Any]) -> Bug:
    """What it returns is changed."""

    def bug(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **flags: change(real(*args, **flags))

    return bug


def of_first(change: Callable[[Any], Any]) -> Bug:
    """Of a tuple that is returned the first is changed."""
    return touched(lambda made: (change(made[0]), *made[1:]))


def changed(values: Any, change: Callable[[Any], None]) -> Any:
    """A copy of an array with a change."""
    made = np.array(values)
    change(made)
    return made


def with_first(made: Any, value: Callable[[Any], Any]) -> Any:
    """An array whose first element is another one."""

    def change(array: Any) -> None:
        array.reshape(-1)[:1] = value(array.reshape(-1)[:1])

    return changed(made, change)


def one_up(made: Any) -> Any:
    """The lowest bit of the first byte is the other one."""
    return changed(
        made, lambda array: array.reshape(-1).view(np.uint8).__setitem__(0, array.reshape(-1).view(np.uint8)[0] ^ 1)
    )


def swapped_rows(made: Any) -> Any:
    """The first two rows change places."""
    return changed(made, lambda array: array.__setitem__(slice(0, 2), array[1::-1].copy())) if len(made) > 1 else made


def from_too_far(real: Callable[..., Any]) -> Callable[..., Any]:
    """What is copied is copied from 64 bytes behind where it is."""

    def wrong(step: Any) -> Any:
        found = real(step)
        if not found or found[0].nbytes < 8192:
            return found
        return (found[0]._replace(offset=found[0].offset + 64), *found[1:])

    return wrong


def exchanged(one: str, other: str) -> Bug:
    """The plan takes one tensor for another, and the other for the one."""

    def wrong(plan: Any) -> Any:

        files = []
        for file in plan.files:
            steps, at = list(file.steps), {step.target.name: n for n, step in enumerate(file.steps)}
            if one in at and other in at:
                first, second = steps[at[one]], steps[at[other]]
                steps[at[one]] = replace(first, source=second.source, runs=second.runs)
                steps[at[other]] = replace(second, source=first.source, runs=first.runs)
            files.append(file._replace(steps=tuple(steps)))
        return replace(plan, files=tuple(files))

    return touched(wrong)


def by_runs(real: Callable[..., Any]) -> Callable[..., Any]:
    """What is put together of several tensors is put together in reverse: experts, or q, k and v."""

    def wrong(*args: Any) -> Any:
        plan = real(*args)
        files = tuple(
            file._replace(steps=tuple(replace(step, runs=tuple(reversed(step.runs))) for step in file.steps))
            for file in plan.files
        )
        return replace(plan, files=files)

    return wrong


def other_extents(real: Callable[..., Any]) -> Callable[..., Any]:
    """Of a tensor that is stored as several runs, an expert each, the last two change places."""

    def wrong(*args: Any) -> Any:
        plan = real(*args)

        def step_of(step: Any) -> Any:
            if step.source is None or len(step.source.extents) < 2:
                return step
            *first, one, other = step.source.extents
            return replace(step, source=replace(step.source, extents=(*first, other, one)))

        files = tuple(file._replace(steps=tuple(map(step_of, file.steps))) for file in plan.files)
        return replace(plan, files=files)

    return wrong


def other_runs(real: Callable[..., Any]) -> Callable[..., Any]:
    """Experts that become tensors of their own: the first two change places."""

    def wrong(*args: Any) -> Any:
        plan = real(*args)
        (file,) = plan.files
        steps = list(file.steps)
        one, other = [n for n, step in enumerate(steps) if len(step.runs) == 1][:2]
        steps[one], steps[other] = (
            replace(steps[one], source=steps[other].source, runs=steps[other].runs),
            replace(steps[other], source=steps[one].source, runs=steps[one].runs),
        )
        return replace(plan, files=(file._replace(steps=tuple(steps)),))

    return wrong


def untransposed(real: Callable[..., Any]) -> Callable[..., Any]:
    """What is to be transposed is written as it is."""

    def wrong(*args: Any) -> Any:
        plan = real(*args)

        def step_of(step: Any) -> Any:
            if not step.transposed or step.runs:
                return step
            return replace(step, target=replace(step.target, layout=step.source.layout))

        files = tuple(file._replace(steps=tuple(map(step_of, file.steps))) for file in plan.files)
        return replace(plan, files=files)

    return wrong


def left_out(name: str) -> Bug:
    """A tensor is left out, as if a flag had asked for that."""
    return lambda real: lambda planner, *names: name in names or real(planner, *names)


def names_exchanged(real: Callable[..., Any]) -> Callable[..., Any]:
    """The first two files have each other's names."""

    def wrong(*args: Any) -> Any:
        plan = real(*args)
        one, other, *rest = plan.files
        return replace(plan, files=(one._replace(name=other.name), other._replace(name=one.name), *rest))

    return wrong


def rounded_down(group: int, codes: int) -> Bug:
    """Values are rounded to the code below them, not to the nearest one."""

    def bug(real: Callable[..., Any]) -> Callable[..., Any]:
        def wrong(floats: Any, *more: Any, **flags: Any) -> Any:
            grouped = floats.reshape(len(floats), -1, group)
            step = (grouped.max(-1, keepdims=True) - grouped.min(-1, keepdims=True)) / codes
            return real((grouped - step / 2).astype(np.float32).reshape(floats.shape), *more, **flags)

        return wrong

    return bug


def multiplied(factor: float) -> Bug:
    """Values of the first argument are."""
    return lambda real: lambda floats, *more, **flags: real(floats * np.float32(factor), *more, **flags)


def plane(number: int, change: Callable[[Any], Any]) -> Bug:
    """Of what is packed again one array is changed."""

    def bug(real: Callable[..., Any]) -> Callable[..., Any]:
        def wrong(*args: Any, **flags: Any) -> Any:
            made = real(*args, **flags)
            planes = list(made.planes)
            planes[number] = change(planes[number]) if planes[number].size else planes[number]
            return made._replace(planes=tuple(planes))

        return wrong

    return bug


def adapted(change: Callable[[Any], Any]) -> Bug:
    """What an adapter adds to a matrix is changed."""
    return touched(lambda made: [change(each) for each in made])


def one_zero_up(made: Any) -> Any:
    """Every zero point is one more."""
    zeros, found = made
    return zeros + np.int16(1), found


HF, QWEN, UNTIED = "hf/llama-tied-bf16", "hf/qwen2-tied-bf16", "hf/llama-bias-f32"
KQUANTS, TRIPLES, SHARDED = "kquants/llama64.Q4_K_M.gguf", "mlx/llama-tied-bf16.q4g64", "hf/llama-untied-f16-sharded"
GGUF, PLAIN, MLX = ("--to", "gguf"), ("--to", "safetensors"), ("--to", "mlx")
DECODED = ("--dequantize", "--dtype", "f32")
LORA = ("--adapter", str(FIXTURES / "lora" / "llama-r4-attn-mlp"))
QKV = tuple(f"layers.0.attention.{which}.weight" for which in "qkv")
SCALED = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 10000.0,
}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 64,
    "rope_theta": 10000.0,
}

TENSORS = [
    Case("rows of a head in another order", "io.stored:_box", of_first(swapped_rows), HF, GGUF),
    Case("rows of a head moved to other places", "io.stored:_chunk", of_first(one_up), HF, GGUF),
    Case("copied from 64 bytes too far", "Step.copied", from_too_far, HF, GGUF),
    Case("v taken for k", "make_plan", exchanged(QKV[1], QKV[2]), HF, GGUF),
    Case("k of another layer", "make_plan", exchanged(QKV[1], "layers.1.attention.k.weight"), HF, GGUF),
    Case(
        "a norm of another layer",
        "make_plan",
        exchanged("layers.0.ffn_norm.weight", "layers.1.ffn_norm.weight"),
        HF,
        GGUF,
    ),
    Case(
        "a bias of another layer",
        "make_plan",
        exchanged("layers.0.attention.q.bias", "layers.1.attention.q.bias"),
        QWEN,
        GGUF,
    ),
    Case(
        "head and embedding exchanged", "make_plan", exchanged("token_embedding.weight", "output.weight"), UNTIED, GGUF
    ),
    Case("experts stacked in another order", "make_plan", other_extents, "experts/mixtral", GGUF),
    Case(
        "experts taken apart in another order",
        "make_plan",
        other_runs,
        "experts/mixtral.f32.gguf",
        PLAIN,
    ),
    Case("q, k and v fused in reverse", "make_plan", by_runs, HF, (*PLAIN, "--fuse", "qkv")),
    Case("a transposition that is none", "make_plan", untransposed, "hf/gpt2-hub-f32", GGUF),
    Case(
        "two shards exchanged, safetensors",
        "make_plan",
        names_exchanged,
        SHARDED,
        (*PLAIN, "--max-shard-size", "200KB"),
    ),
    *(
        Case(f"the head left out, {asked[1]}", "Planner.dropped", left_out("output.weight"), SHARDED, asked)
        for asked in (GGUF, PLAIN, MLX)
    ),
    Case("two shards exchanged, gguf", "make_plan", names_exchanged, SHARDED, (*GGUF, "--max-shard-size", "200KB")),
    Case("two rows exchanged while widening", "_converted", of_first(swapped_rows), HF, (*GGUF, "--dtype", "f32")),
    Case(
        "rows put together in reverse",
        "JoinedRows._joined",
        lambda real: lambda self, rows, *more: real(self, rows[::-1], *more),
        HF,
        (*PLAIN, "--fuse", "qkv", "--dtype", "f32"),
    ),
    Case(
        "norms of Gemma without their one",
        "quant.convert:shifted",
        lambda real: lambda floats, shift: floats,
        "hf/gemma3-text-bf16",
        GGUF,
    ),
    Case(
        "factors of RoPE in reverse",
        "core.config:rope_factors",
        touched(lambda made: made[::-1]),
        HF,
        GGUF,
        {"rope_scaling": SCALED},
    ),
    Case(
        "K-quants: a value of every piece x 1.5",
        "quant.convert:decode",
        touched(lambda v: with_first(v, lambda x: x * 1.5)),
        KQUANTS,
        (*GGUF, *DECODED),
    ),
    Case("K-quants: one bit of a value", "to_float32", touched(one_up), KQUANTS, (*GGUF, *DECODED)),
    Case(
        "float16 for float32: one bit", "from_float32", of_first(one_up), HF, (*GGUF, "--dtype", "f16", "--allow-lossy")
    ),
    Case(
        "MLX: a wrong value",
        "quant.mlx:decode",
        touched(lambda v: with_first(v, lambda x: x * 1.5)),
        TRIPLES,
        (*GGUF, *DECODED),
    ),
    Case(
        "MLX: codes in another order",
        "quant.codec:unpack",
        touched(lambda codes: codes[:, ::-1].copy()),
        TRIPLES,
        (*GGUF, *DECODED),
    ),
    Case("MLX in GGUF's blocks: a scale one up", "Recipe.to_blocks", plane(0, one_up), TRIPLES, GGUF),
    Case("GGUF's blocks in MLX: a scale one up", "Recipe.to_triple", plane(1, one_up), KQUANTS, MLX),
    Case("GGUF's blocks in MLX: a bias one up", "Recipe.to_triple", plane(2, one_up), KQUANTS, MLX),
    Case("MXFP4: a scale doubled", "Recipe.to_blocks", plane(0, one_up), "quantised/gptoss-mxfp4", GGUF),
    Case("AWQ: zero points one up", "affine:_zeros", touched(one_zero_up), "quantised/awq-g32", GGUF),
    Case("AWQ: rows of a word in another order", "along_rows", touched(swapped_rows), "quantised/awq-g32", GGUF),
    Case("GPTQ: zero points one up", "affine:_zeros", touched(one_zero_up), "quantised/gptq-4b-g32-asym-v1", GGUF),
    Case(
        "GPTQ decoded: a wrong value",
        "packed:decode",
        touched(lambda v: with_first(v, lambda x: x + 1)),
        "quantised/gptq-4b-g32-sym-descact",
        (*PLAIN, "--dequantize"),
    ),
    Case(
        "FP8 decoded: scales of other blocks",
        "packed:scale_values",
        touched(lambda v: v[::-1].copy()),
        "quantised/ct-fp8-channel-dynamic",
        (*PLAIN, "--dequantize"),
    ),
    Case(
        "FP8 decoded: values of other codes",
        "core.layouts:e4m3",
        touched(lambda v: with_first(v, lambda x: x + 1)),
        "quantised/fp8-block",
        (*PLAIN, "--dequantize"),
    ),
    Case(
        "nf4 decoded: a wrong place in the table",
        "packed:_table",
        touched(lambda v: v[::-1].copy()),
        "quantised/bnb-nf4",
        (*PLAIN, "--dequantize"),
    ),
    Case(
        "nf4 decoded: scales of other blocks",
        "packings.floats:_scales",
        touched(lambda v: v[::-1].copy()),
        "quantised/bnb-nf4-double",
        (*PLAIN, "--dequantize"),
    ),
    Case(
        "int8 decoded: signs",
        "packed:rows_of",
        lambda real: lambda *parts: real(parts[0] ^ np.uint8(0x80), *parts[1:]),
        "quantised/ct-w8a8-int8",
        (*PLAIN, "--dequantize"),
    ),
    Case(
        "NVFP4 without its second scale",
        "packed:numbers",
        touched(lambda found: found._replace(factors=np.ones_like(found.factors))),
        "quantised/ct-nvfp4",
        (*PLAIN, "--dequantize"),
    ),
    Case(
        "NVFP4: a second scale inverted",
        "_to_factor",
        plane(
            0,
            lambda rows: changed(
                rows, lambda array: array[:, -4:].__setitem__(slice(None), np.float32([2.0]).view(np.uint8))
            ),
        ),
        "quantised/ct-nvfp4",
        (*GGUF, "--tensor-scales"),
    ),
    Case(
        "packed for compressed-tensors: scales moved",
        "packed:plane",
        touched(lambda made: np.roll(made, 1, axis=0)),
        "quantised/awq-g32",
        ("--to", "hf", "--pack", "compressed-tensors", "--decode", "*emb*"),
    ),
    Case("Q8_0 rounded down", "_q8_0", rounded_down(32, 255), HF, (*GGUF, "--quantize", "q8_0")),
    Case(
        "Q5_1 rounded down",
        "_by_library",
        rounded_down(32, 31),
        HF,
        (*GGUF, "--quantize", "q5_1"),
    ),
    Case(
        "Q8_0 of merged values rounded down",
        "_q8_0",
        rounded_down(32, 255),
        HF,
        (*GGUF, *LORA, "--quantize", "q8_0"),
    ),
    Case(
        "Q4_0 of merged values rounded down",
        "_by_library",
        rounded_down(32, 15),
        HF,
        (*GGUF, *LORA, "--quantize", "q4_0"),
    ),
    Case("MLX's affine rounded down", "quantize_triple", rounded_down(32, 15), HF, (*MLX, "--quantize", "affine:4:32")),
    Case("MLX's mxfp4 rounded down", "quantize_triple", rounded_down(32, 15), HF, (*MLX, "--quantize", "mxfp4")),
    Case("MLX's mxfp8 of wide scales", "mlx:_scales", multiplied(2), HF, (*MLX, "--quantize", "mxfp8")),
    Case("MLX's nvfp4 of wide scales", "mlx:_scales", multiplied(1.2), HF, (*MLX, "--quantize", "nvfp4")),
    Case("MLX's affine of wide groups", "mlx:_pairs", multiplied(1.2), HF, (*MLX, "--quantize", "affine:4:32")),
    Case(
        "an adapter merged twice",
        "merge_adapters",
        lambda real: lambda base, adapters, **flags: real(base, [*adapters, *adapters], **flags),
        HF,
        (*GGUF, *LORA),
    ),
    Case(
        "an adapter merged with another scale",
        "_of_weight",
        adapted(lambda change: change._replace(scale=change.scale * 2)),
        HF,
        (*GGUF, *LORA),
    ),
    Case(
        "an adapter that is not merged",
        "plan.adapters:_changed",
        lambda real: lambda tensor, *more: None if "layers.1" in tensor.name else real(tensor, *more),
        HF,
        (*GGUF, *LORA),
    ),
    Case(
        "an adapter's rows in another order",
        "_Added.apply",
        lambda real: lambda self, values, rows: real(self, values, rows[::-1].copy()),
        HF,
        (*PLAIN, *LORA),
    ),
]


def listed(key: str, change: Callable[[list[Any]], list[Any]]) -> Bug:
    """An array of the metadata is another one."""

    def wrong(keys: dict[str, Any]) -> dict[str, Any]:
        return keys | {key: typed.array(keys[key].type[4:-1], change(items_of(keys[key])))}

    return touched(wrong)


def shifted_by_one(items: list[Any]) -> list[Any]:
    return [*items[1:], items[0]]


def keyed(key: str, *value: Any) -> Bug:
    """A key of the metadata is another one, or none."""

    def wrong(keys: dict[str, Any]) -> dict[str, Any]:
        assert key in keys
        return {
            name: typed.scalar(old.type, value[0]) if name == key else old
            for name, old in keys.items()
            if value or name != key
        }

    return touched(wrong)


def documented(key: str, *value: Any) -> Bug:
    """A key of config.json is another one, or none."""

    def wrong(data: bytes) -> bytes:
        document = json.loads(data)
        assert key in document or value
        document.pop(key, None)
        return json.dumps(document | ({key: value[0]} if value else {}), indent=2).encode()

    return touched(wrong)


def of_tokens(real: Callable[..., Any]) -> Callable[..., Any]:
    """The words are shifted by one."""
    return lambda vocabulary, tokens, *more: real(vocabulary, shifted_by_one(list(tokens)), *more)


MADE, COPIED, CONFIG = "GgufPlanner._metadata", "GgufPlanner._copied", "safetensors.config_json:config_json"
GEMMA, AUTO = "gguf/gemma3-text-bf16.auto.gguf", "gguf/llama-tied-bf16.auto.gguf"
BIASED = "gguf/llama-bias-f32.f32.gguf"


def keyed_in(key: str, value: Any = None) -> Bug:
    """A document is without a key, or has another value under it."""
    return touched(lambda made: {k: v for k, v in made.items() if k != key} | ({} if value is None else {key: value}))


def in_entries(name: str, change: Callable[[bytes], bytes]) -> Bug:
    """One of the entries of words that a bump file has is changed."""
    return touched(lambda made: {**made, name: change(made[name])})


def without_decoder(real: Callable[..., Any]) -> Callable[..., Any]:
    """The document of a tokenizer says no decoder."""

    def wrong(*args: Any) -> Any:
        data = b"".join(pieces_of(real(*args)))
        return json.dumps(json.loads(data) | {"decoder": None}).encode()

    return wrong


def only_first_end(real: Callable[..., Any]) -> Callable[..., Any]:
    """Ends that only their text says are left out."""

    def wrong(made: Any, tokens: Any, types: Any) -> Any:
        ends = real(made, tokens, types).get("eos_token_id")
        return {**made, "eos_token_id": ends[0] if isinstance(ends, list) else 7}

    return wrong


#: What is wrong with documents that are made of a GGUF's tokenizer.
TOKENIZERS: list[tuple[str, str, Bug, str]] = [
    ("tokenizer.json is none", "tokenizer.huggingface:_texts", lambda real: lambda *args: iter(["{"]), AUTO),
    ("steps of a text", "tokenizer.vocabulary:_member", keyed_in("invert", True), AUTO),
    ("a letter more in a step", "tokenizer.vocabulary:_member", keyed_in("behavior", "Removed"), AUTO),
    ("no decoder of bytes", "tokenizer.huggingface:byte_level", without_decoder, AUTO),
    ("a special token is a word", "tokenizer.huggingface:added_tokens", touched(lambda made: made[1:]), AUTO),
    ("a beginning around a text", "tokenizer.huggingface:around", touched(lambda made: None), AUTO),
    ("settings add an end", "tokenizer.huggingface:tokenizer_config", keyed_in("add_eos_token", "add_eos_token"), AUTO),
    ("settings without a length", "tokenizer.huggingface:tokenizer_config", keyed_in("model_max_length"), AUTO),
    (
        "settings with another length",
        "tokenizer.huggingface:tokenizer_config",
        keyed_in("model_max_length", 77),
        AUTO,
    ),
    ("settings without a role", "tokenizer.huggingface:tokenizer_config", keyed_in("eos_token"), AUTO),
    ("another end of generation", "tokenizer.huggingface:generation_config", keyed_in("eos_token_id", 7), AUTO),
    (
        "tokenizer.model is none",
        "tokenizer.checkpoint:encode_sentencepiece",
        touched(lambda data: data[:14] + b"x" + data[15:]),
        GEMMA,
    ),
    ("no end of generation but one", "tokenizer.huggingface:also_ending", only_first_end, GEMMA),
    ("merges in reverse", "tokenizer.huggingface:merges_of", touched(lambda made: iter([*made][::-1])), GEMMA),
]

#: What is wrong beside the matrices of an adapter.
OF_QWEN, OF_LLAMA = ("lora/qwen2-r4-all", ("--base", str(FIXTURES / QWEN))), ("lora/mlx-lora", ())
ADAPTERS: list[tuple[str, str, Bug, tuple[str, Sequence[str]], str]] = [
    *(
        (f"{key} is {value}", "PeftPlanner._document", keyed_in(key, value), OF_LLAMA, "peft")
        for key, value in [
            *[("bias", "all"), ("use_dora", True), ("use_rslora", True), ("fan_in_fan_out", True)],
            *((key, None) for key in ("target_modules", "task_type", "base_model_name_or_path", "lora_alpha")),
        ]
    ),
    ("a module that is not there", "PeftPlanner._document", keyed_in("target_modules", ["q_proj"]), OF_LLAMA, "peft"),
    *(
        (f"{key} is {value}", "MlxAdapterPlanner._document", keyed_in(key, value), OF_QWEN, "mlx")
        for key, value in [
            *[("num_layers", 1), ("model", "another"), ("fine_tune_type", "dora")],
            ("lora_parameters", {"rank": 4, "scale": 2.0, "dropout": 0.5, "keys": ["self_attn.q_proj"]}),
        ]
    ),
    *(
        (f"{key} {value}", "GgufAdapterPlanner._metadata", keyed(key, *value), OF_QWEN, "gguf")
        for key, value in [
            *[("adapter.lora.alpha", ()), ("adapter.lora.alpha", (9.0,)), ("general.architecture", ("llama",))],
            *[("general.type", ()), ("adapter.type", ("x",)), ("general.base_model.0.name", ())],
        ]
    ),
    *(
        (
            f"a copy without {key}",
            "safetensors.adapter:container",
            lambda real, key=key: lambda shards, said: real(shards, {k: v for k, v in said.items() if k != key}),
            source,
            to,
        )
        for key, source, to in [("target_modules", OF_QWEN, "peft"), ("num_layers", OF_LLAMA, "mlx")]
    ),
    *(
        (
            "matrices of two layers exchanged",
            "make_plan",
            exchanged(*(f"layers.{n}.attention.q.lora_{side}" for n in (0, 1))),
            OF_QWEN,
            to,
        )
        for side in "ab"
        for to in ("mlx", "gguf")
    ),
]

#: Keys of config.json that are no hyper-parameter, or are told by tensors -> another value.
OF_CLASSES = [
    *[("hidden_act", "another"), ("use_cache", False), ("attention_bias", True), ("mlp_bias", True)],
    *[("dtype", "float64"), ("architectures", []), ("attention_dropout", 1.0), ("no_such_key", 1)],
]

#: Keys of documents that a GGUF becomes, and what they are instead; a key alone is left out.
OF_A_GGUF: list[tuple[str, tuple[Any, ...], str, tuple[Sequence[str], ...]]] = [
    ("model_type", ("another",), AUTO, (PLAIN, MLX)),
    ("rope_parameters", ({"rope_theta": 10000.0, "rope_type": "another"},), AUTO, (PLAIN, MLX)),
    ("rope_parameters", ({"rope_theta": 10001.0, "rope_type": "default"},), AUTO, (PLAIN, MLX)),
    ("attn_logit_softcapping", (7.0,), GEMMA, (PLAIN,)),
    ("attention_bias", (), BIASED, (PLAIN, MLX)),
    ("mlp_bias", (), BIASED, (PLAIN, MLX)),
    ("tie_word_embeddings", (), BIASED, (MLX,)),
]

GENERATION = "tokenizer.huggingface:generation_config"
BUMP, QWEN3 = ("--to", "bump", "--bump-version", "5"), "hf/qwen3-tied-bf16"
BUMP_CONFIG, ENTRIES = "bump.write:_config", "tokenizer.vocabulary:tokenizer_entries"
ENGINE = ("embed_dim", "attn_out_dim", "vocab_size", "rotary_dim", "rms_eps", "rope_scaling_type", "head_dim")

CONTENT = [
    *(
        Case(f"{name}, {kind}", where, bug(), source, GGUF)
        for kind, where, source in (("made", MADE, HF), ("copied", COPIED, AUTO))
        for name, bug in {
            "tokens shifted by one": lambda: listed("tokenizer.ggml.tokens", shifted_by_one),
            "merges shifted by one": lambda: listed("tokenizer.ggml.merges", shifted_by_one),
            "types of tokens shifted by one": lambda: listed("tokenizer.ggml.token_type", shifted_by_one),
            "another context": lambda: keyed("llama.context_length", 77),
            "no context": lambda: keyed("llama.context_length"),
            "no size of RoPE": lambda: keyed("llama.rope.dimension_count"),
            "another base of RoPE": lambda: keyed("llama.rope.freq_base", 10001.0),
            "a norm's number rounded": lambda: keyed("llama.attention.layer_norm_rms_epsilon", 1.1e-6),
            "no pre-tokenizer": lambda: keyed("tokenizer.ggml.pre"),
            "no types of tokens": lambda: keyed("tokenizer.ggml.token_type"),
            "no merges": lambda: keyed("tokenizer.ggml.merges"),
            "no beginning": lambda: keyed("tokenizer.ggml.bos_token_id"),
            "another end": lambda: keyed("tokenizer.ggml.eos_token_id", 7),
            "no padding": lambda: keyed("tokenizer.ggml.padding_token_id"),
            "no model of the tokenizer": lambda: keyed("tokenizer.ggml.model"),
        }.items()
    ),
    Case("no size of a head's values", MADE, keyed("qwen3.attention.value_length"), QWEN3, GGUF),
    Case("no length of a table of positions", MADE, keyed("gpt2.context_length"), "hf/gpt2-hub-f32", GGUF),
    Case(
        "no factor of LongRoPE",
        MADE,
        keyed("phi3.rope.scaling.attn_factor"),
        "hf/phi3-bf16",
        GGUF,
        {"rope_parameters": LONG, "original_max_position_embeddings": 64},
    ),
    Case("no rows of a model without words", MADE, keyed("phi3.vocab_size"), "hf/phi3-bf16", GGUF),
    *(
        Case(f"{key} is {value or 'missing'}", MADE, keyed(key, *value), HF, GGUF)
        for key, value in [
            *(("general.name", value) for value in ((), ("phi-3",))),
            *[("general.file_type", (2,)), ("general.type", ("another",)), ("general.quantization_version", ())],
        ]
    ),
    Case("another size of a head's values", MADE, keyed("llama.attention.value_length", 17), HF, GGUF),
    Case("another number of words", MADE, keyed("llama.vocab_size", 7), HF, GGUF),
    *(
        Case(f"config.json: another {key}", CONFIG, documented(key, value), source, MLX)
        for key, value, source in (
            ("model_type", "another", HF),
            ("quantization_config", {"group_size": 32, "bits": 8}, KQUANTS),
            *((key, value, source) for source in (HF, AUTO) for key, value in OF_CLASSES),
        )
    ),
    *(
        Case(f"config.json of {source} {asked[1]}: {key} is {value or 'missing'}", CONFIG, bug, source, asked)
        for key, value, source, all_asked in OF_A_GGUF
        for bug in (documented(key, *value),)
        for asked in all_asked
    ),
    *(
        Case(f"generation_config.json without {key}", GENERATION, keyed_in(key), AUTO, PLAIN)
        for key in ("bos_token_id", "eos_token_id", "pad_token_id")
    ),
    Case("no generation_config.json", GENERATION, touched(lambda made: {}), AUTO, MLX),
    Case("no kind of tokenizer", MADE, keyed("tokenizer.ggml.model"), "hf/phi3-bf16", GGUF),
    Case("another pre-tokenizer", MADE, keyed("tokenizer.ggml.pre", "qwen2"), HF, GGUF),
    Case("a beginning that nobody puts", MADE, keyed("tokenizer.ggml.add_bos_token", True), HF, GGUF),
    Case("an end that nobody puts", MADE, keyed("tokenizer.ggml.add_eos_token", True), HF, GGUF),
    Case("scores shifted by one", COPIED, listed("tokenizer.ggml.scores", shifted_by_one), GEMMA, GGUF),
    Case("a beginning that is not added", COPIED, keyed("tokenizer.ggml.add_bos_token"), GEMMA, GGUF),
    *(
        Case(f"config.json without {key}, {source} {asked[1]}", CONFIG, documented(key), source, asked)
        for source, asked in ((HF, PLAIN), (HF, MLX), (AUTO, PLAIN))
        for key in ("architectures", "vocab_size", "max_position_embeddings", "eos_token_id", "pad_token_id")
        if (source, key) != (AUTO, "eos_token_id")  # which the class takes to be 2, as it is
    ),
    *(
        Case(f"config.json without {key}", CONFIG, documented(key), HF, PLAIN)
        for key in ("hidden_act", "bos_token_id", "tie_word_embeddings", "rms_norm_eps", "num_key_value_heads")
    ),
    Case(
        "config.json without a type",
        CONFIG,
        touched(lambda data: re.sub(rb'"(torch_)?dtype": "\w+",', b"", data)),
        AUTO,
        PLAIN,
    ),
    Case("config.json without a window", CONFIG, documented("sliding_window"), "hf/gemma3-text-bf16", PLAIN),
    *(
        Case(f"config.json without {key}, which mlx-lm does not do without", CONFIG, documented(key), source, MLX)
        for source, keys in (
            (HF, ["head_dim"]),
            ("hf/gpt2-hub-f32", ["n_ctx", "n_positions", "layer_norm_epsilon"]),
            ("hf/phi3-bf16", ["partial_rotary_factor"]),
            ("hf/gemma3-text-bf16", ["num_attention_heads", "rope_local_base_freq"]),
        )
        for key in keys
    ),
    Case("config.json with another window", CONFIG, documented("sliding_window", 31), "hf/gemma3-text-bf16", PLAIN),
    Case("tokenizer.json: tokens shifted by one", "tokenizer.huggingface:byte_level", of_tokens, AUTO, PLAIN),
    *(
        Case(f"{name}, {asked[1]}", where, bug, source, asked)
        for name, where, bug, source in TOKENIZERS
        for asked in (PLAIN, MLX)
    ),
    *(
        Case(f"{to} adapter: {name}", where, bug, source, ("--to", to, *asked))
        for name, where, bug, (source, asked), to in ADAPTERS
    ),
    *(
        Case(f"bump: {key} is {'missing' if value is None else value}", BUMP_CONFIG, keyed_in(key, value), AUTO, BUMP)
        for key, value in [*((key, None) for key in ENGINE), ("rope_theta", 1.0), ("rope_attn_factor", 2.0)]
    ),
    Case("bump: no count of merges", "bump.write:manifest", keyed_in("num_merges"), AUTO, BUMP),
    Case("bump: norms of Q and K are not said", "bump.write:manifest", keyed_in("has_qk_norm", False), QWEN3, BUMP),
    Case("bump: no types of matrices", "bump.write:_summary", touched(lambda made: None), AUTO, BUMP),
    Case("mlx: no rope_theta", CONFIG, documented("rope_theta"), "zoo/granite", MLX),
    Case("mlx: no tie_word_embeddings", CONFIG, documented("tie_word_embeddings"), "zoo/olmo2", MLX),
    Case("bump: no rms_norm_eps", "bump.write:config_json", keyed_in("rms_norm_eps"), HF, BUMP),
    *(
        Case(f"bump: {name} of words", ENTRIES, in_entries(name, change), AUTO, BUMP)
        for name, change in (
            ("vocab_offsets", lambda data: data[4:] + data[:4]),
            ("vocab_strings", lambda data: data.replace(b"a", b"b", 1)),
            ("vocab_types", lambda data: bytes([data[0] ^ 1]) + data[1:]),
            ("vocab_merges", lambda data: data[12:-8] + data[:12] + data[-8:]),
        )
    ),
]


def source_of(case: Case, place: Path) -> str:
    """What is converted."""
    source = FIXTURES / case.source
    if not case.config:
        return str(source)
    shutil.copytree(source, place)
    document = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(document | dict(case.config)))
    return str(place)


def flags_of(case: Case) -> list[str]:
    """The options as ``verify`` has them: how the output is cut and what it is shows in it."""
    shown = [n for n, word in enumerate(case.asked) if word in ("--to", "--max-shard-size")]
    return [word for n, word in enumerate(case.asked) if n not in shown and n - 1 not in shown]


@pytest.mark.parametrize("case", [*TENSORS, *CONTENT], ids=lambda case: case.name)
def test_no_bug_of_the_writer_is_published(case: Case, tmp_path: Path) -> None:
    source = source_of(case, tmp_path / "source")
    with broken(case.where, case.bug) as calls:
        status, printed = command("convert", source, f"{tmp_path}/found/", *case.asked, "--no-source-record")
        assert calls[0], f"{case.where} is not called"
        assert status == 5, printed
        assert not (tmp_path / "found").exists()


def kinds_of(case: Case) -> set[object]:
    """Where a bug is, in a conversion of a source to a target; of tensors each bug is one of its own."""
    return {(case.where, case.source, tuple(case.asked), case.name if case in TENSORS else "")}


@pytest.mark.parametrize("case", shown([*TENSORS, *CONTENT], kinds_of, lambda case: case.name))
def test_verify_finds_each_bug_of_the_writer(case: Case, tmp_path: Path) -> None:
    source = source_of(case, tmp_path / "source")
    with broken(case.where, case.bug):
        unchecked = "--no-source-record", "--no-verify"
        status, printed = command("convert", source, f"{tmp_path}/out/", *case.asked, *unchecked)
        assert status == 0, printed
        status, printed = command("verify", f"{tmp_path}/out", source, *flags_of(case))
        assert status == 5, printed


@pytest.mark.parametrize(
    ("where", "key", "value"),
    [
        ("bump.write:manifest", "tokenizer_contract", {"bos": 1}),
        ("bump.write:manifest", "chat_contract", {"template": "x"}),
        *((BUMP_CONFIG, "ckconv_engines", value) for value in (None, ["january"], ["april", "may"])),
    ],
)
def test_a_bump_file_says_nothing_that_the_engine_says_later(where: str, key: str, value: Any, tmp_path: Path) -> None:
    with broken(where, keyed_in(key, value)) as calls:
        status, printed = command("convert", str(FIXTURES / AUTO), f"{tmp_path}/out/", *BUMP)
    assert (calls[0] > 0, status, key in printed) == (True, 5, True), printed


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Functions that run while tensors or statements are compared, ``module:Class.method``; filled as they do."""
    found: set[str] = set()
    names = {str(path): name for name, path in FILES.items()}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename in names:
            found.add(f"{names[frame.f_code.co_filename]}:{frame.f_code.co_qualname}")

    def noted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **flags: Any) -> Any:
            sys.setprofile(note)
            try:
                made = real(*args, **flags)
                return iter([*made]) if isinstance(made, Iterator) else made
            finally:
                sys.setprofile(None)

        return call

    monkeypatch.setattr(tensors.TensorComparison, "run", noted(tensors.TensorComparison.run))
    for module in (statements, verify):
        monkeypatch.setattr(module, "faults_of", noted(statements.faults_of))
    return found


@pytest.mark.parametrize(
    "asked", sorted({(case.source, *case.asked) for case in [*TENSORS, *CONTENT] if not case.config}), ids=" ".join
)
def test_without_a_bug_each_is_published_and_what_verifies_runs_nothing_of_what_writes(
    asked: Sequence[str], tmp_path: Path, entered: set[str]
) -> None:
    """What the bugs are put into is right without them, and proved by functions of readers alone."""
    source = str(FIXTURES / asked[0])
    status, printed = command("convert", source, f"{tmp_path}/out/", *asked[1:], "--no-source-record")
    assert status == 0, printed
    assert {"verification/tensors:TensorComparison.run", "verification/statements:faults_of"} <= entered
    case = Case("", "", touched(id), asked[0], asked[1:])
    status, printed = command("verify", f"{tmp_path}/out", source, *flags_of(case))
    assert status == 0, printed
    assert {name for name in entered if WRITES.match(name.partition(":")[0]) and not re.fullmatch(READS, name)} == set()


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_scaling_that_does_not_give_the_factors_of_the_source_is_found(factor: float, tmp_path: Path) -> None:
    """A GGUF has a tensor of factors; config.json, which has none, says what they follow from."""
    source = save_gguf(
        tmp_path / "m.gguf", Decoder(), "llama", permuted=True, extra={"rope_freqs.weight": np.full(8, 4.0, np.float32)}
    )
    other = touched(lambda found: {**found, "factor": found["factor"] * factor})
    with broken("safetensors.config_json:_recovered", other) as calls:
        status, printed = command("convert", str(source), f"{tmp_path}/found/", *PLAIN)
        assert (calls[0] > 0, status) == (True, 0 if factor == 1 else 5), printed
        command("convert", str(source), f"{tmp_path}/out/", *PLAIN, "--no-verify")
        assert command("verify", f"{tmp_path}/out", str(source))[0] == status


@pytest.mark.product("values")
@pytest.mark.parametrize(
    "found", [{}, {"tokenizer.chat_template": typed.scalar("str", "another")}], ids=["none", "another"]
)
@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "of settings"),
        ({}, [{"name": "rag", "template": "R"}, {"name": "default", "template": "of settings"}]),
        ({}, [{"name": ["no name"], "template": "R"}, {"name": "default", "template": "of settings"}]),
        ({}, [{"name": "default", "template": "of settings"}, *({"name": "rag", "template": t} for t in ("R", None))]),
        ({"chat_template.jinja": "of a file"}, "of settings"),
        ({"chat_template.json": '{"chat_template": "of a document"}'}, None),
        ({"chat_template.jinja": "of a file", "additional_chat_templates/rag.jinja": "R"}, None),
        ({"chat_template.jinja": "of a file", "additional_chat_templates/default.jinja": "of another"}, None),
        ({"chat_template.jinja": "two\r\nlines"}, None),
        ({"additional_chat_templates/rag.jinja": "R"}, "of settings"),
        (
            {
                f"additional_chat_templates/{name}.jinja": "R"
                for name in ("default", *"abcdefghijklmnopqrstuvwxyz0123456789")
            },
            None,
        ),
    ],
)
def test_a_gguf_has_the_chat_template_that_transformers_takes(
    files: Mapping[str, str], said: Any, found: Mapping[str, Any], tmp_path: Path
) -> None:
    source = Path(shutil.copytree(FIXTURES / HF, tmp_path / "source"))
    settings = json.loads((source / "tokenizer_config.json").read_text())
    (source / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": said}))
    for name, text in files.items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_bytes(text.encode())
    assert command("convert", str(source), f"{tmp_path}/m.gguf")[0] == 0
    with broken("tokenizer.gguf_words:chat_templates", touched(lambda made: (found, made[1]))) as calls:
        status, printed = command("convert", str(source), f"{tmp_path}/n.gguf")
        assert (calls[0] > 0, status) == (True, 5), printed


def test_a_key_is_named_once(tmp_path: Path) -> None:
    with broken(MADE, keyed("tokenizer.ggml.pre")):
        assert command("convert", str(FIXTURES / HF), f"{tmp_path}/m.gguf")[1].count("tokenizer.ggml.pre ") == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.logit_scale", typed.scalar("f32", 3.0)),
        ("llama.pooling_type", typed.scalar("u32", 1)),
        ("llama.no_such_key", typed.scalar("u32", 1)),
        ("tokenizer.ggml.model", typed.scalar("str", "bert")),
        ("tokenizer.ggml.add_space_prefix", typed.scalar("bool", True)),
        ("tokenizer.ggml.eot_token_id", typed.scalar("u32", 7)),
        ("tokenizer.ggml.seperator_token_id", typed.scalar("u32", 7)),
        ("tokenizer.ggml.fim_pre_token_id", typed.scalar("u32", 7)),
        ("tokenizer.ggml.no_such_key", typed.scalar("u32", 7)),
        ("tokenizer.chat_template", typed.scalar("str", "of nobody")),
        ("tokenizer.huggingface.json", typed.scalar("str", "{}")),
        ("qwen2.block_count", typed.scalar("u32", 2)),
        ("adapter.lora.alpha", typed.scalar("f32", 2.0)),
        ("general.sampling.temp", typed.scalar("f32", 3.0)),
        ("general.license", typed.scalar("str", "mit")),
        ("llama.block_count", typed.scalar("u64", 2)),  # llama.cpp stops at another type
        ("llama.attention.head_count", typed.scalar("i32", 4)),
        ("tokenizer.ggml.eos_token_id", typed.scalar("u64", 2)),
    ],
)
def test_a_gguf_has_no_key_that_nothing_says(key: str, value: object, tmp_path: Path) -> None:
    with broken(MADE, keyed_in(key, value)):
        status, printed = command("convert", str(FIXTURES / HF), f"{tmp_path}/m.gguf")
        assert (status, key in printed) == (5, True), printed


CARD = """---
license: other
license_name: tiny-license
license_link: LICENSE
language: [en, "no"]
base_model: Some-Org/tiny-base-1b
datasets: [one/set-of-texts, alone]
tags: [chat, small]
model_author: Somebody
model_version: v2
---
"""


@pytest.mark.parametrize(
    ("key", "bug"),
    [
        *(
            (f"general.{key}", bug)
            for key in (
                *("license", "license.name", "license.link", "author", "version", "base_model.0.name"),
                *("base_model.0.organization", "base_model.0.repo_url", "dataset.0.repo_url", "dataset.1.name"),
            )
            for bug in (keyed(f"general.{key}"), keyed(f"general.{key}", "another"))
        ),
        *((f"general.{key}", listed(f"general.{key}", lambda items: items[1:])) for key in ("languages", "tags")),
        *((f"general.{key}.count", keyed(f"general.{key}.count", 3)) for key in ("base_model", "dataset")),
        *(
            (f"general.{key}", keyed_in(f"general.{key}", typed.scalar(kind, value)))
            for key, kind, value in [
                *[("organization", "str", "nobody's"), ("url", "str", "https://nowhere.example")],
                *[("base_model.1.name", "str", "x"), ("sampling.temp", "f32", 3.0)],
            ]
        ),
    ],
)
def test_a_gguf_says_what_the_card_of_its_source_does(key: str, bug: Bug, tmp_path: Path) -> None:
    source = Path(shutil.copytree(FIXTURES / HF, tmp_path / "source"))
    (source / "README.md").write_text(CARD)
    with broken(MADE, bug) as calls:
        status, printed = command("convert", str(source), f"{tmp_path}/m.gguf")
        assert (calls[0] > 0, status, key in printed) == (True, 5, True), printed
        assert command("convert", str(source), f"{tmp_path}/m.gguf", "--no-verify")[0] == 0
        assert command("verify", f"{tmp_path}/m.gguf", str(source))[0] == 5
    status, printed = command("convert", str(source), f"{tmp_path}/m.gguf", "--force")
    assert (status, "verified" in printed) == (0, True), printed
    assert command("verify", f"{tmp_path}/m.gguf", str(source))[0] == 0


@pytest.mark.parametrize(
    ("source", "bug"),
    [
        (source, bug)
        for source in (HF, AUTO)
        for key, value in (("file", "another"), ("dataset", "another"), ("entries_count", 7), ("chunks_count", 7))
        for bug in (keyed(f"quantize.imatrix.{key}"), keyed(f"quantize.imatrix.{key}", value))
    ],
)
def test_a_gguf_says_what_its_blocks_were_weighed_by(source: str, bug: Bug, tmp_path: Path) -> None:
    columns = np.arange(1, 65, dtype=np.float32) / 8
    weights = save_dat(tmp_path / "i.dat", {"blk.0.attn_q.weight": columns, "blk.0.attn_k.weight": columns}, 4)
    asked = "--quantize", "q4_0", "--imatrix", str(weights)
    with broken(MADE, bug) as calls:
        status, printed = command("convert", str(FIXTURES / source), f"{tmp_path}/m.gguf", *asked)
        assert (calls[0] > 0, status, "quantize.imatrix." in printed) == (True, 5, True), printed
        assert command("convert", str(FIXTURES / source), f"{tmp_path}/m.gguf", *asked, "--no-verify")[0] == 0
        assert command("verify", f"{tmp_path}/m.gguf", str(FIXTURES / source), *asked)[0] == 5
    status, printed = command("convert", str(FIXTURES / source), f"{tmp_path}/m.gguf", *asked, "--force")
    assert (status, "verified" in printed) == (0, True), printed
    assert command("convert", f"{tmp_path}/m.gguf", f"{tmp_path}/copy.gguf")[0] == 0
    with broken(MADE, keyed("quantize.imatrix.file", "another")):
        assert command("convert", f"{tmp_path}/m.gguf", f"{tmp_path}/other.gguf")[0] == 5


@pytest.mark.product("values")
@pytest.mark.parametrize(
    ("key", "bug"),
    [
        *(
            (key, keyed(key, *value))
            for key, value in [
                *[("general.name", ()), ("general.name", ("x",)), ("general.type", ("x",))],
                *[("general.quantization_version", (7,)), ("general.file_type", (7,))],
            ]
        ),
        *(
            (key, keyed_in(key, typed.scalar(kind, value)))
            for key, kind, value in [
                *[
                    ("general.license", "str", "mit"),
                    ("llama.no_such_key", "u32", 1),
                    ("llama.logit_scale", "f32", 3.0),
                ],
                *[("tokenizer.ggml.fim_pre_token_id", "u32", 7), ("tokenizer.ggml.eos_token_id", "u32", 7)],
                *[("llama.block_count", "u64", 2), ("llama.pooling_type", "u32", 1)],
                *[("tokenizer.chat_template", "str", "x"), ("tokenizer.ggml.model", "str", "gpt2")],
            ]
        ),
    ],
)
@pytest.mark.parametrize("version", ["3", "5"])
def test_a_gguf_out_of_a_bump_file_says_what_that_does(version: str, key: str, bug: Bug, tmp_path: Path) -> None:
    asked = "--to", "bump", "--bump-version", version, "--no-source-record"
    assert command("convert", str(FIXTURES / AUTO), f"{tmp_path}/m.bump", *asked)[0] == 0
    with broken(MADE, bug) as calls:
        status, printed = command("convert", f"{tmp_path}/m.bump", f"{tmp_path}/m.gguf")
        assert (calls[0] > 0, status, key in printed) == (True, 5, True), printed
        assert command("convert", f"{tmp_path}/m.bump", f"{tmp_path}/m.gguf", "--no-verify")[0] == 0
        assert command("verify", f"{tmp_path}/m.gguf", f"{tmp_path}/m.bump")[0] == 5
    status, printed = command("convert", f"{tmp_path}/m.bump", f"{tmp_path}/m.gguf", "--force")
    assert (status, "verified" in printed) == (0, True), printed


@pytest.mark.parametrize(
    ("key", "bug"),
    [
        *(
            (f"general.{key}", keyed(f"general.{key}", *value))
            for key, value in [
                *[("architecture", ("sdxl",)), ("architecture", ()), ("file_type", (7,))],
                *[("quantization_version", (7,)), ("quantization_version", ())],
            ]
        ),
        *(
            (key, keyed_in(key, typed.scalar("str", "x")))
            for key in ("general.type", "general.author", "flux.no_such_key")
        ),
    ],
)
def test_a_gguf_of_a_model_that_diffuses_has_no_other_keys(key: str, bug: Bug, tmp_path: Path) -> None:
    source = tmp_path / "flux.safetensors"
    save_file(original(np.float16), source)
    with broken("DiffusionPlanner._metadata", bug) as calls:
        status, printed = command("convert", str(source), f"{tmp_path}/m.gguf")
        assert (calls[0] > 0, status, key in printed) == (True, 5, True), printed
        assert command("convert", str(source), f"{tmp_path}/m.gguf", "--no-verify")[0] == 0
        assert command("verify", f"{tmp_path}/m.gguf", str(source))[0] in (3, 5)  # none is read without the key
    status, printed = command("convert", str(source), f"{tmp_path}/m.gguf", "--force")
    assert (status, "verified" in printed) == (0, True), printed


@pytest.mark.parametrize(
    ("family", "to"),
    [
        *((name, "hf") for name in ("lille", "qwen", "neo_bert", "bailing_hybrid-all_linear")),
        *((name, "mlx") for name in ("lille", "gptj")),
    ],
)
def test_a_context_is_said_in_the_word_of_the_family(family: str, to: str, tmp_path: Path) -> None:
    case = next(case for case in family_cases.cases(family.partition("-")[0]) if str(case).startswith(family))
    source = family_cases.checkpoint(case.recorded, tmp_path / "source", case.tokenizer)
    status, printed = command("convert", str(source), f"{tmp_path}/out/", "--to", to, "--context", "16")
    assert (status, "verified" in printed) == (0, True), printed


@pytest.mark.product("values")
@pytest.mark.parametrize(("source", "asked"), [(HF, PLAIN), (TRIPLES, MLX)])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[
            ("attention_bias", True),
            ("mlp_bias", True),
            ("use_cache", False),
            ("no_such_key", 1),
            ("pretraining_tp", 2),
        ],
        *[("partial_rotary_factor", 0.5), ("vision_config", {"hidden_size": 8}), ("sliding_window", 7)],
        *[("attn_logit_softcapping", 7.0), ("is_encoder_decoder", True), ("initializer_range", 0.5)],
        *[("dtype", "float64"), ("torch_dtype", "int8"), ("transformers_version", "9"), ("_name_or_path", "x")],
        *[("architectures", ["OtherForCausalLM"]), ("rope_scaling", {"rope_type": "linear", "factor": 2.0})],
    ],
)
def test_a_copy_of_a_checkpoint_says_what_its_source_does(
    source: str, asked: Sequence[str], key: str, value: Any, tmp_path: Path
) -> None:
    with broken(CONFIG, added(key, value)) as calls:
        status, printed = command("convert", str(FIXTURES / source), f"{tmp_path}/out/", *asked)
        assert (calls[0] > 0, status, key in printed) == (True, 5, True), printed


@pytest.mark.parametrize("key", ["bos_token_id", "eos_token_id", "decoder_start_token_id"])
@pytest.mark.parametrize("to", ["hf", "mlx"])
def test_a_document_out_of_a_bump_file_has_no_role_that_it_does_not_say(to: str, key: str, tmp_path: Path) -> None:
    assert command("convert", str(FIXTURES / AUTO), f"{tmp_path}/m.bump", *BUMP, "--no-source-record")[0] == 0
    with broken(CONFIG, added(key, 7)) as calls:
        status, printed = command("convert", f"{tmp_path}/m.bump", f"{tmp_path}/out/", "--to", to)
        assert (calls[0] > 0, status, key in printed) == (True, 5, True), printed
    status, printed = command("convert", f"{tmp_path}/m.bump", f"{tmp_path}/out/", "--to", to)
    assert (status, "verified" in printed) == (0, True), printed


@pytest.mark.parametrize("source", [HF, AUTO])
@pytest.mark.parametrize(
    "key", ["quantize.imatrix.file", "llama.pooling_type", "no.such_key", "tokenizer.ggml.eot_token_id"]
)
def test_a_gguf_has_no_key_besides(source: str, key: str, tmp_path: Path) -> None:
    value = typed.scalar("u32", 7) if key.endswith(("type", "id")) else typed.scalar("str", "x")
    with broken(MADE, keyed_in(key, value)) as calls:
        status, printed = command("convert", str(FIXTURES / source), f"{tmp_path}/m.gguf")
        assert (calls[0] > 0, status, key in printed) == (True, 5, True), printed


@pytest.mark.parametrize(
    "key",
    [
        *("llama.block_count", "tokenizer.ggml.model", "general.author", "general.sampling.temp"),
        *("quantize.imatrix.file", "adapter.type", "clip.no_such_key", "no.such_key"),
    ],
)
def test_an_mmproj_has_no_key_that_nothing_says(key: str, tmp_path: Path) -> None:
    source = checkpoint(recorded_tower("gemma3-bf16"), tmp_path / "source")
    (source / "README.md").write_text(CARD)  # whose words are the text model's
    convert_tower(source, tmp_path / "m.gguf")
    assert command("verify", f"{tmp_path}/m.gguf", str(source))[0] == 0
    assert command("convert", f"{tmp_path}/m.gguf", f"{tmp_path}/copy.gguf")[0] == 0
    value = typed.scalar("f32", 3.0) if key.endswith("temp") else typed.scalar("str", "x")
    with broken("TowerPlanner._metadata", keyed_in(key, value)), pytest.raises(VerifyError, match=key):
        convert_tower(source, tmp_path / "found.gguf")
    with broken(COPIED, keyed_in(key, value)) as calls:
        status, printed = command("convert", f"{tmp_path}/m.gguf", f"{tmp_path}/other.gguf")
        assert (calls[0] > 0, status, key in printed) == (True, 5, True), printed


@pytest.mark.parametrize("value", [(), (4,)], ids=["dropped", "another"])
def test_a_copy_of_an_mmproj_says_what_its_source_does(value: Sequence[Any], tmp_path: Path) -> None:
    convert_tower(checkpoint(recorded_tower("gemma3-bf16"), tmp_path / "source"), tmp_path / "m.gguf")
    with broken(COPIED, keyed("clip.vision.block_count", *value)) as calls:
        status, printed = command("convert", f"{tmp_path}/m.gguf", f"{tmp_path}/other.gguf")
        assert (calls[0] > 0, status) == (True, 5), printed  # without the key no tensor has its name


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("gemma3-bf16", "clip.has_vision_encoder", ()),
        ("gemma3-bf16", "clip.vision.attention.layer_norm_epsilon", ()),
        ("gemma3-bf16", "general.file_type", (2,)),
        ("gemma3-bf16", "general.name", ("phi-3",)),
        ("llava-f16", "clip.vision.block_count", (3,)),
        ("llava-f16", "clip.has_llava_projector", (False,)),
        ("qwen2_vl-f16", "clip.vision.feed_forward_length", (9,)),
        ("minicpmv4_6-f16", "clip.vision.projector.scale_factor", (2,)),
        ("gemma4_hearing-bf16", "clip.audio.projector_type", ("x",)),
        ("gemma4_hearing-bf16", "clip.audio.num_mel_bins", (80,)),
        ("ultravox-bf16", "clip.has_audio_encoder", ()),
    ],
)
def test_an_mmproj_has_the_numbers_of_its_tower(name: str, key: str, value: Sequence[Any], tmp_path: Path) -> None:
    source = checkpoint(recorded_tower(name), tmp_path / "source")
    with broken("TowerPlanner._metadata", keyed(key, *value)):
        with pytest.raises(VerifyError, match=key):
            convert_tower(source, tmp_path / "found.gguf")
        convert_tower(source, tmp_path / "m.gguf", verify=False)
        assert command("verify", f"{tmp_path}/m.gguf", str(source))[0] == 5


@pytest.mark.parametrize("value", [(), (2,)], ids=["dropped", "another"])
@pytest.mark.parametrize("number", [0, 10], ids=lambda n: str(EMBEDDINGS[n]))
def test_a_gguf_pools_as_the_modules_say(number: int, value: Sequence[int], tmp_path: Path) -> None:
    source = EMBEDDINGS[number].source(tmp_path / "source")
    (key,) = (f"{name}.pooling_type" for name in ("bert", "t5encoder") if name[:2] == str(EMBEDDINGS[number])[:2])
    with broken(MADE, keyed(key, *value)):
        assert command("convert", str(source), f"{tmp_path}/m.gguf")[0] == 5


@pytest.mark.parametrize(
    "name", ["a b--c", "models--org--Name", "Qwen--Qwen2-7B", "---", "_", "org--", "\xdfmodel", "\ufb01ne"]
)
def test_a_name_out_of_any_directory_is_no_fault(name: str, tmp_path: Path) -> None:
    source = shutil.copytree(FIXTURES / HF, tmp_path / name)
    assert command("convert", str(source), f"{tmp_path}/m.gguf")[0] == 0


def test_a_name_has_the_capitals_that_ckconv_gives_it(tmp_path: Path) -> None:
    """Other programs, which write other keys, spell names otherwise."""
    assert command("convert", str(FIXTURES / HF), f"{tmp_path}/m.gguf")[0] == 0
    data = (tmp_path / "m.gguf").read_bytes()
    assert b"Llama Tied" in data
    (tmp_path / "other.gguf").write_bytes(data.replace(b"Llama Tied", b"LLama Tied"))
    status, printed = command("verify", f"{tmp_path}/other.gguf", str(FIXTURES / HF))
    assert (status, "general.name" in printed) == (5, True), printed
    gguf_copy(tmp_path / "other.gguf", tmp_path / "theirs.gguf", keys={"general.basename": "llama"})
    assert command("verify", f"{tmp_path}/theirs.gguf", str(FIXTURES / HF))[0] == 0


@pytest.mark.parametrize(("key", "end"), [("tokens", "\n"), ("merges", "\n"), ("merges", "\r\n")])
def test_a_gguf_has_the_words_of_two_files(key: str, end: str, tmp_path: Path) -> None:
    source = Path(shutil.copytree(FIXTURES / HF, tmp_path / "source"))
    model = json.loads((source / "tokenizer.json").read_text())["model"]
    (source / "tokenizer.json").unlink()
    (source / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = (pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"])
    (source / "merges.txt").write_text(end.join(["#version: 0.2", *merges, ""]), newline="")
    settings = json.loads((source / "tokenizer_config.json").read_text())
    (source / "tokenizer_config.json").write_text(json.dumps({**settings, "tokenizer_class": "Qwen2Tokenizer"}))
    arguments = "convert", str(source), f"{tmp_path}/m.gguf", "--force"
    assert command(*arguments)[0] == 0
    with broken(MADE, listed(f"tokenizer.ggml.{key}", shifted_by_one)):
        assert command(*arguments)[0] == 5


@pytest.mark.parametrize("to", ["hf", "mlx"])
def test_a_gguf_that_names_no_end_is_no_fault(to: str, tmp_path: Path) -> None:
    gguf_copy(FIXTURES / "gguf/llama-tied-bf16.auto.gguf", tmp_path / "m.gguf", without=["tokenizer.ggml.eos_token_id"])
    status, printed = command("convert", f"{tmp_path}/m.gguf", f"{tmp_path}/out/", "--to", to)
    assert (status, "verified" in printed) == (0, True), printed


@pytest.mark.parametrize("to", ["hf", "mlx"])
@pytest.mark.parametrize("ends", [2, [2, 5, 7]])
def test_every_end_of_generation_that_a_gguf_names_is_there(ends: Any, to: str, tmp_path: Path) -> None:
    edit = "--set-meta", "tokenizer.ggml.eot_token_id=5"
    assert command("convert", str(FIXTURES / AUTO), f"{tmp_path}/m.gguf", *edit)[0] == 0
    with broken(GENERATION, keyed_in("eos_token_id", ends)):
        status, printed = command("convert", f"{tmp_path}/m.gguf", f"{tmp_path}/out/", "--to", to)
    assert (status, "eos_token_id" in printed) == (5, True), printed


@pytest.mark.parametrize("role", ["bos", "seperator"])
def test_a_gguf_has_the_tokens_that_bert_puts_around_a_text(role: str, tmp_path: Path) -> None:
    source = EMBEDDINGS[0].source(tmp_path / "source")
    with broken(MADE, keyed(f"tokenizer.ggml.{role}_token_id")):
        assert command("convert", str(source), f"{tmp_path}/m.gguf")[0] == 5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("image_token_index", 3), ("dtype", "float64"), ("hidden_size", None), ("text_config.model_type", None)],
        *[("text_config.mm_tokens_per_image", 17), ("text_config.max_position_embeddings", 65)],
        *[("vision_config.model_type", "another"), ("vision_config.attention_dropout", 1.0)],
        *[("text_config.rope_theta", None), ("text_config.tie_word_embeddings", False)],
    ],
)
def test_every_part_of_a_document_of_mlx_vlm_is_that_of_the_source(key: str, value: Any, tmp_path: Path) -> None:
    name = "mistral3-f16" if key in ("text_config.rope_theta", "text_config.tie_word_embeddings") else "gemma3-f16"
    source = with_tokens(seen_by_mlx_vlm(name), tmp_path / "source")
    part, _, word = key.rpartition(".")

    def wrong(data: bytes) -> bytes:
        document = json.loads(data)
        table = document[part] if part else document
        assert word in table
        del table[word]
        table |= {word: value} if value is not None else {}
        return json.dumps(document, indent=2).encode()

    with broken("MlxWholePlanner.encoded", touched(wrong)) as calls:
        status, printed = command("convert", str(source), f"{tmp_path}/out/", *MLX)
    assert (calls[0] > 0, status) == (True, 5), printed


@pytest.mark.parametrize(("key", "value"), [("hop_length", 161), ("feature_size", 81), ("n_fft", None)])
def test_a_document_says_how_whisper_hears(key: str, value: int | None, tmp_path: Path) -> None:
    model = save_whisper(tmp_path / "source", "english-80-f16")
    assert command("convert", str(model), f"{tmp_path}/m.bin", "--to", "whisper-ggml")[0] == 0

    with broken("families.towers:speech_settings", keyed_in(key, value)):
        assert command("convert", f"{tmp_path}/m.bin", f"{tmp_path}/out/", "--to", "hf")[0] == 5


@pytest.mark.parametrize(
    ("name", "part", "change"),
    [
        ("gemma3-f16", "text_config", {"rope_theta": 1e4}),  # which rope_parameters overrule
        ("qwen3_vl-bf16", "vision_config", {"hidden_act": ...}),  # the class's own, not the text's
        ("qwen2_5_vl-bf16", "vision_config", {"attention_window": math.inf}),
        ("gemma4_unified-bf16", "text_config", {"rope_parameters": None}),
        ("smolvlm-bf16", "text_config", {"dtype": "bfloat16"}),
        ("qwen3_vl_moe-f16", "text_config", {"torch_dtype": "bfloat16"}),
    ],
)
def test_a_document_of_mlx_vlm_follows_what_classes_make_of_the_source(
    name: str, part: str, change: dict[str, Any], tmp_path: Path
) -> None:
    source = with_tokens(seen_by_mlx_vlm(name), tmp_path / "source")
    document = json.loads((source / "config.json").read_text())
    made = document[part] | change
    document[part] = {key: value for key, value in made.items() if value is not ...}
    (source / "config.json").write_text(json.dumps(document))

    status, printed = command("convert", str(source), f"{tmp_path}/out/", *MLX)

    assert status == 0, printed


@pytest.mark.parametrize(
    ("source", "gone"),
    [
        *(
            (GEMMA, name)
            for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "generation_config.json")
        ),
        *(("pooled", name) for name in ("tokenizer.json", "modules.json", "1_Pooling/config.json")),
        *((HF, name) for name in ("tokenizer.json", "tokenizer_config.json")),  # which go along as they are
    ],
)
def test_no_file_beside_a_checkpoint_is_dropped(source: str, gone: str, tmp_path: Path) -> None:
    path = FIXTURES / source
    if source == "pooled":
        path = tmp_path / "m.gguf"
        assert command("convert", str(EMBEDDINGS[0].source(tmp_path / "source")), str(path))[0] == 0

    def without(made: Any) -> Any:
        assert gone in made.side_files
        return made._replace(side_files={name: file for name, file in made.side_files.items() if name != gone})

    with broken("safetensors.write:container", touched(without)) as calls:
        status, printed = command("convert", str(path), f"{tmp_path}/out/", *(MLX if source == HF else PLAIN))
        assert (calls[0] > 0, status) == (True, 5), printed


@pytest.mark.parametrize("key", ["chat_template", "chat_template.rag", "chat_templates"])
@pytest.mark.parametrize("change", ["dropped", "another"])
def test_a_gguf_has_every_chat_template(key: str, change: str, tmp_path: Path) -> None:
    source = Path(shutil.copytree(FIXTURES / HF, tmp_path / "source"))
    settings = json.loads((source / "tokenizer_config.json").read_text())
    named = [{"name": name, "template": name} for name in ("default", "rag", "no name", "tools")]
    (source / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": named}))
    assert command("convert", str(source), f"{tmp_path}/m.gguf")[0] == 0
    key = f"tokenizer.{key}"
    other = listed(key, shifted_by_one) if key.endswith("s") else keyed(key, "another")
    with broken(MADE, keyed(key) if change == "dropped" else other):
        in_order = key.endswith("s") and change == "another"  # which says nothing
        assert command("convert", str(source), f"{tmp_path}/n.gguf")[0] == (0 if in_order else 5)


@pytest.mark.parametrize(
    ("name", "file", "key", "value"),
    [
        ("layouts/pieces.json", "tokenizer.json", "add_space_prefix", False),
        ("sentencepiece-bpe.model", "tokenizer.model", "add_space_prefix", False),
        *(
            ("sentencepiece-rules.model", file, key, value)
            for file in ("spiece.model", "sentencepiece.bpe.model")
            for key, value in [
                ("add_space_prefix", None),
                ("add_space_prefix", False),
                ("remove_extra_whitespaces", None),
                ("remove_extra_whitespaces", False),
                ("precompiled_charsmap", None),
                ("precompiled_charsmap", shifted_by_one),
            ]
        ),
        ("wordpiece.json", "tokenizer.json", "normalizer.lowercase", False),
        ("wordpiece.json", "tokenizer.json", "normalizer.strip_accents", False),
    ],
)
def test_a_gguf_says_what_is_done_to_a_text_first(name: str, file: str, key: str, value: Any, tmp_path: Path) -> None:
    """By a document, or by a model alone."""
    model = Decoder(layers=1, vocab=1024)
    save(tmp_path / "source", model.config("llama"), model.tensors())
    shutil.copy(FIXTURES / "tokenizers" / name, tmp_path / "source" / file)
    roles = {"cls": "[CLS]", "sep": "[SEP]"} if "piece.json" in name else {"bos": "<s>"}
    (tmp_path / "source/tokenizer_config.json").write_text(
        json.dumps({f"{role}_token": text for role, text in roles.items()})
    )
    arguments = "convert", f"{tmp_path}/source", f"{tmp_path}/m.gguf", "--force"
    assert command(*arguments)[0] == 0
    key = f"tokenizer.ggml.{key}"

    said = {} if value is None else {key: typed.scalar("bool", value)}
    other = touched(lambda keys: {name: old for name, old in keys.items() if name != key} | said)
    with broken(MADE, listed(key, value) if callable(value) else other):
        assert command(*arguments)[0] == 5


@pytest.mark.parametrize("key", ["tokens", "scores"])
@pytest.mark.parametrize("beside", [(), ("pieces.json",)], ids=["alone", "beside tokenizer.json"])
@pytest.mark.parametrize("name", ["tokenizer.model", "spiece.model", "sentencepiece.bpe.model"])
def test_a_gguf_has_the_pieces_of_a_sentencepiece_model(
    name: str, beside: Sequence[str], key: str, tmp_path: Path
) -> None:
    model = Decoder(layers=1, vocab=321)
    save(tmp_path / "source", model.config("llama"), model.tensors())
    shutil.copy(LAYOUTS / "pieces.model", tmp_path / "source" / name)
    for document in beside:
        shutil.copy(LAYOUTS / document, tmp_path / "source/tokenizer.json")
        (tmp_path / "source/tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    arguments = "convert", f"{tmp_path}/source", f"{tmp_path}/m.gguf", "--force"
    assert command(*arguments)[0] == 0
    with broken(
        MADE, listed(f"tokenizer.ggml.{key}", lambda items: [*items[:300], items[301], items[300], *items[302:]])
    ):
        moved = bool(beside) and name == "sentencepiece.bpe.model"  # other words than tokenizer.json, which counts
        assert command(*arguments)[0] == (0 if moved and key == "scores" else 5)


@pytest.mark.product("values")
@pytest.mark.parametrize(
    "processor",
    [
        {"type": "TemplateProcessing", "single": None},
        {"type": "TemplateProcessing", "single": "$A </s>"},
        {"type": "TemplateProcessing", "single": []},
        {"type": "TemplateProcessing", "single": [{"SpecialToken": None}]},
        {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": 3}}, {"Sequence": {"id": "A"}}]},
        {"type": "BertProcessing"},
        {"type": "Sequence", "processors": 3},
        3,
    ],
    ids=str,
)
@pytest.mark.parametrize("to", ["gguf", "bump"])
def test_what_is_put_around_a_text_in_other_words_is_no_fault(processor: Any, to: str, tmp_path: Path) -> None:
    model = Decoder(layers=1, vocab=305)
    save(tmp_path / "source", model.config("llama"), model.tensors())
    document = json.loads((LAYOUTS / "bpe.json").read_text())
    (tmp_path / "source/tokenizer.json").write_text(json.dumps({**document, "post_processor": processor}))
    status, printed = command("convert", f"{tmp_path}/source", f"{tmp_path}/m.{to}")
    assert status == 0, printed


@pytest.mark.product("values")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("added_tokens", [3]),
        ("added_tokens", [{"id": 5}]),
        ("added_tokens", {"a": 1}),
        ("added_tokens", [{"id": 5, "content": 7}]),
        ("added_tokens", [{"id": 300, "content": "zz"}]),
        ("merges", [3]),
        ("vocab", ["a", "b"]),
        ("vocab", [["a", "x"], []]),
        ("zz", "3"),
        ("zz", -1),
        ("zz", 300),
    ],
    ids=str,
)
@pytest.mark.parametrize("to", ["gguf", "bump"])
def test_words_in_other_forms_are_no_fault(key: str, value: Any, to: str, tmp_path: Path) -> None:
    """What no library reads is left out, or taken as far as it is read."""
    model = Decoder(layers=1, vocab=305)
    save(tmp_path / "source", model.config("llama"), model.tensors())
    document = json.loads((LAYOUTS / "bpe.json").read_text())
    words = document["model"]["vocab"]
    {"added_tokens": document, "zz": words}.get(key, document["model"])[key] = value
    if isinstance(value, list) and value[0] == {"id": 300, "content": "zz"}:
        words["zz"] = 300  # the text of another word, too
    (tmp_path / "source/tokenizer.json").write_text(json.dumps(document))
    status, printed = command("convert", f"{tmp_path}/source", f"{tmp_path}/m.{to}")
    assert status in (0, 3), printed


@pytest.mark.parametrize("change", ["cut off", "no length", "no text", "a piece more"])
def test_a_sentencepiece_model_of_other_words_is_no_fault(change: str, tmp_path: Path) -> None:
    """``tokenizer.json`` counts, whose merges become scores."""
    model = Decoder(layers=1, vocab=320)
    save(tmp_path / "source", model.config("llama"), model.tensors())
    data, document = (LAYOUTS / "pieces.model").read_bytes(), json.loads((LAYOUTS / "pieces.json").read_text())
    pieces = {"cut off": data[:114], "no length": b"\n", "no text": data[:4] + b"\xff" + data[5:]}.get(change, data)
    if change == "a piece more":
        last = max(document["model"]["vocab"], key=document["model"]["vocab"].get)
        del document["model"]["vocab"][last]
        document["model"]["merges"] = [pair for pair in document["model"]["merges"] if "".join(pair) != last]
    (tmp_path / "source/tokenizer.model").write_bytes(pieces)
    (tmp_path / "source/tokenizer.json").write_text(json.dumps(document))
    status, printed = command("convert", f"{tmp_path}/source", f"{tmp_path}/m.gguf")
    assert (status, "verified" in printed) == (0, True), printed


def within(path: str, value: Any = None) -> Bug:
    """A key inside of tables of config.json is left out, or has another value."""

    def wrong(data: bytes) -> bytes:
        document = json.loads(data)
        *tables, key = path.split(".")
        table = document
        for name in tables:
            table = table[name]
        assert table.pop(key) != value or value is None
        table |= {} if value is None else {key: value}
        return json.dumps(document, indent=2).encode()

    return touched(wrong)


def gguf_of(case: str, place: Path) -> str:
    """A recorded case of a family as a GGUF."""
    family, _, name = case.partition("-")
    (found,) = (one for one in family_cases.cases(family) if one.name == name)
    source = family_cases.checkpoint(found.recorded, place / "source")
    assert command("convert", str(source), f"{place}/m.gguf")[0] == 0
    return f"{place}/m.gguf"


@pytest.mark.parametrize(
    ("case", "to", "path", "value"),
    [
        *(
            ("dbrx-one_key_for_all", "mlx", path, value)
            for path, value in [
                *[("attn_config.clip_qkv", None), ("attn_config.rope_theta", None), ("ffn_config.hidden_size", 25)],
                *[("ffn_config.ffn_act_fn.name", "another"), ("ffn_config.moe_normalize_expert_weights", None)],
            ]
        ),
        ("dbrx-one_key_for_all", "hf", "ffn_config.ffn_act_fn.name", None),
        ("deepseek_v2-plain", "mlx", "rope_scaling", None),
        ("deepseek_v2-plain", "mlx", "rope_scaling.factor", 2.0),
        ("lfm2-adjusted", "mlx", "rope_parameters.rope_theta", None),
        ("gemma4_text-double_wide", "mlx", "rope_parameters.sliding_attention.rope_theta", 7.0),
        ("gemma4_text-double_wide", "mlx", "max_position_embeddings", 77),
        ("granitehybrid-released", "mlx", "time_step_limit", None),
        ("granitehybrid-released", "mlx", "mamba_d_head", None),
        ("gemma3n-sparse", "mlx", "model_type", None),
        ("gemma3n-sparse", "mlx", "text_config.attention_bias", True),
        ("llama4-every_layer_has_experts", "mlx", "text_config.model_type", None),
        ("llama4-every_layer_has_experts", "mlx", "text_config.model_type", "another"),
        ("llama4-every_layer_has_experts", "mlx", "text_config.attn_temperature_tuning", None),
        ("qwen3_vl_moe-untied", "mlx", "text_config.tie_word_embeddings", None),
        ("minimax_m3-plain", "hf", "eos_token_id", None),
        ("laguna-heads", "mlx", "attention_bias", True),
        ("nemotron_h-untied", "hf", "mamba_proj_bias", True),
        ("openelm-widths", "mlx", "share_input_output_layers", False),
        ("dots1-untied", "hf", "sliding_window", None),
        *(("gemma4_assistant-plain", "hf", "backbone_hidden_size", value) for value in (None, 31)),
        ("gemma4_assistant-plain", "hf", "tie_word_embeddings", False),
        ("gemma4_assistant-plain", "hf", "dtype", "another"),
        ("gemma4_assistant-plain", "hf", "text_config.eos_token_id", None),
        ("gemma4_assistant-plain", "hf", "bos_token_id", None),
        ("bailing_moe_v2-sigmoids", "mlx", "use_qk_norm", None),
        ("glm-whole_heads", "hf", "max_position_embeddings", 33),
        ("nemotron_h-untied", "mlx", "max_position_embeddings", 33),
        *((f"nemotron_h{kind}-untied", "mlx", "time_step_min", None) for kind in ("", "_moe")),
        ("dots1-untied", "mlx", "scoring_func", None),
        ("plamo2-plain", "mlx", "attention_window_size", None),
        *(("minimax_m3-plain", "mlx", "text_config.rotary_dim", value) for value in (None, 3)),
        *(
            (case, to, path, value)
            for to in ("hf", "mlx")
            for case, path, value in [
                ("deepseek_v2-plain", "n_group", 2),
                ("deepseek_v2-plain", "topk_group", None),
                ("deepseek_v2-plain", "topk_method", "another"),
                *(("falcon_h1-plain", f"{key}_multiplier", 2.0) for key in ("key", "lm_head", "ssm_in")),
                ("falcon_h1-plain", "mlp_multipliers", [1.0]),
                ("gemma3-tied", "layer_types", ["sliding_attention"]),
            ]
        ),
        ("t5_encoder-relu", "hf", "layer_norm_epsilon", None),
        ("t5_encoder-relu", "hf", "layer_norm_epsilon", 2e-6),
        ("step3p5-plain", "hf", "num_nextn_predict_layers", 1),
        *(("bailing_hybrid-released", "hf", "num_nextn_predict_layers", value) for value in (None, 1)),
        ("qwen4_exp-one_table", "hf", "indexer_kv_heads", None),
    ],
)
def test_tables_of_a_document_say_what_rows_of_the_family_do(
    case: str, to: str, path: str, value: Any, tmp_path: Path
) -> None:
    gguf = gguf_of(case, tmp_path)
    with broken(CONFIG, within(path, value)) as calls:
        status, printed = command("convert", gguf, f"{tmp_path}/out/", "--to", to)
    assert (calls[0] > 0, status) == (True, 5), printed


def added(key: str, value: Any) -> Bug:
    """A document says something more."""
    return touched(lambda data: json.dumps({**json.loads(data), key: value}).encode())


def beside(file: str, key: str, value: Any) -> Bug:
    """So does one beside config.json, of those that a tokenizer becomes."""
    return of_first(lambda files: {**files, file: json.dumps({**json.loads(files[file]), key: value}).encode()})


@pytest.mark.parametrize(
    ("source", "where", "bug", "key"),
    [
        *(
            (AUTO, CONFIG, added(key, value), key)
            for key, value in [
                *[("auto_map", {"AutoModel": "another.Model"}), ("pretraining_tp", 2), ("is_encoder_decoder", True)],
                *[("decoder_start_token_id", 3), ("bos_token_id", [1, 2]), ("partial_rotary_factor", 0.5)],
            ]
        ),
        *(
            (source, CONFIG, added(key, value), key)
            for source in (AUTO, HF)
            for key, value in [
                ("quantization", {"bits": 4, "group_size": 64}),
                ("quantization_config", {"quant_method": "gptq", "bits": 4}),
                ("vision_config", {"hidden_size": 8}),
            ]
        ),
        *(
            (AUTO, "files_from_gguf", beside(file, key, value), key)
            for file, key, value in [
                ("generation_config.json", "temperature", 0.1),
                ("generation_config.json", "suppress_tokens", [1]),
                ("tokenizer_config.json", "add_prefix_space", True),
                ("tokenizer_config.json", "padding_side", "left"),
            ]
        ),
    ],
)
def test_a_document_says_nothing_that_its_source_does_not(
    source: str, where: str, bug: Bug, key: str, tmp_path: Path
) -> None:
    """No class reads a plain matrix as blocks, nor begins a text in another way, because nobody said so."""
    with broken(where, bug) as calls:
        status, printed = command("convert", str(FIXTURES / source), f"{tmp_path}/out/", *MLX)
    assert (calls[0] > 0, status, key in printed) == (True, 5, True), printed


@pytest.mark.parametrize(
    ("case", "to", "flags"),
    [
        *(("gpt_oss-yarn", "mlx", ("--set-meta", f"rope_scaling.{key}=2.0")) for key in ("mscale", "mscale_all_dim")),
        ("glm-whole_heads", "hf", ("--context", "16")),
        ("nemotron_h-untied", "hf", ("--context", "16")),
        ("nemotron_h-untied", "mlx", ("--set-meta", "max_position_embeddings=16")),
        ("gemma4_assistant-plain", "hf", ("--set-meta", "eos_token_id=3")),
        ("gemma3n-sparse", "mlx", ("--set-meta", "eos_token_id=3")),
    ],
)
def test_what_an_option_asks_of_a_document_is_no_fault(
    case: str, to: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    status, printed = command("convert", gguf_of(case, tmp_path), f"{tmp_path}/out/", "--to", to, *flags)
    assert (status, "verified" in printed) == (0, True), printed


@pytest.mark.parametrize(
    ("source", "to", "where", "key", "value", "edit"),
    [
        *(
            ("hf/llama-tied-bf16", "gguf", MADE, f"llama.{key}", value, "general.author=somebody")
            for key, value in [
                *[("rope.freq_base", 7.0), ("attention.layer_norm_rms_epsilon", 7.0), ("context_length", 77)],
            ]
        ),
        (
            "hf/llama-tied-bf16",
            "gguf",
            MADE,
            "llama.rope.freq_base",
            7.0,
            "llama.attention.layer_norm_rms_epsilon=0.1",
        ),
        *(("hf/llama-tied-bf16", "mlx", CONFIG, key, 7.0, "pad_token_id=0") for key in ("rms_norm_eps", "rope_theta")),
        *(
            ("gpt_oss-yarn", "hf", CONFIG, f"{table}.factor", 3.0, "rope_scaling.beta_fast=16.0")
            for table in ("rope_parameters", "rope_scaling")
        ),
    ],
)
def test_an_option_for_one_key_excuses_no_other(
    source: str, to: str, where: str, key: str, value: Any, edit: str, tmp_path: Path
) -> None:
    path = str(FIXTURES / source) if "/" in source else gguf_of(source, tmp_path)
    asked = "convert", path, f"{tmp_path}/out/", "--to", to, "--set-meta", edit
    with broken(where, keyed(key, value) if where == MADE else within(key, value)) as calls:
        status, printed = command(*asked)
        assert (calls[0] > 0, status) == (True, 5), printed
    assert command(*asked)[0] == 0


EDITED, PUTS, READINGS, PLACES = "gguf.keys:edited", "_Edits.set", "_Edits._value", "_Edits._put"
#: Short names of keys.
KEYS_OF = {"eos_token": "tokenizer.ggml.eos_token_id", "chat_template": "tokenizer.chat_template"}


def unsaid(key: str) -> Callable[[Any], Any]:
    """Metadata without a key."""
    return lambda said: {name: value for name, value in said.items() if name != key}


def unnumbered(real: Callable[..., Any]) -> Callable[..., Any]:
    """A token is named by its text alone: its number stays what it was."""
    return lambda edits, place, new: None if place.path[-1].endswith("_id") else real(edits, place, new)


def another(key: str, value: Any) -> Bug:
    """A key of the metadata has another value, if it is there."""
    return touched(lambda keys: {n: typed.scalar(old.type, value) if n == key else old for n, old in keys.items()})


def ignored(real: Callable[..., Any]) -> Callable[..., Any]:
    """The option has no effect: what is the first argument comes back."""
    return lambda first, *_: first


@pytest.mark.parametrize(
    ("source", "to", "edit", "where", "bug"),
    [
        *(
            (source, "gguf", f"{key}={asked}", EDITED, another(KEYS_OF.get(key, key), value))
            for source in (AUTO, "hf/llama-tied-bf16")
            for key, asked, value in (
                ("llama.rope.freq_base", "7.0", 7.0000005),
                ("tokenizer.ggml.eos_token_id", "5", 2),
                ("llama.pooling_type", "u32:2", 1),
                ("general.license", "mit", "apache-2.0"),
                ("eos_token", "<unk>", 2),
                ("chat_template", "asked for", "another"),
            )
        ),
        *(
            ("hf/llama-tied-bf16", to, edit, *bug)
            for to in ("hf", "mlx")
            for edit in ("rms_norm_eps=0.5", "temperature=0.5", "model_max_length=77", "attention_dropout=0.25")
            for bug in ((PUTS, ignored), (READINGS, touched(lambda value: value + 1)))
        ),
        *((AUTO, "hf", "rope_theta=7.0", *bug) for bug in ((PUTS, ignored), (READINGS, touched(lambda v: v + 1)))),
        *(
            (source, to, edit, PUTS, ignored)
            for source in (AUTO, "hf/llama-tied-bf16")
            for to in ("hf", "mlx")
            for edit in ("eos_token=<unk>", "chat_template=asked for")
        ),
        *(("hf/llama-tied-bf16", to, "eos_token=<unk>", PLACES, unnumbered) for to in ("hf", "mlx")),
        *(
            ("hf/llama-tied-bf16", to, "__metadata__.by=me", "config_json:metadata_of", touched(unsaid("by")))
            for to in ("hf", "mlx")
        ),
        ("gguf-lora/qwen2-r4-all.f32.gguf", "gguf", "general.author=me", EDITED, touched(unsaid("general.author"))),
    ],
)
def test_a_value_that_was_asked_for_is_the_one_that_is_there(
    source: str, to: str, edit: str, where: str, bug: Bug, tmp_path: Path
) -> None:
    asked = str(FIXTURES / source), f"{tmp_path}/out/", "--to", to, "--set-meta", edit
    with broken(where, bug) as calls:
        status, printed = command("convert", *asked)
        assert (calls[0] > 0, status, edit.partition("=")[0] in printed) == (True, 5, True), printed
        assert command("convert", *asked, "--no-verify")[0] == 0
        out = next(Path(f"{tmp_path}/out").glob("*.gguf")) if to == "gguf" else f"{tmp_path}/out"
        assert command("verify", str(out), str(FIXTURES / source), "--set-meta", edit)[0] == 5
    status, printed = command("convert", *asked, "--force")
    assert (status, "verified" in printed) == (0, True), printed


@pytest.mark.parametrize(
    ("case", "path", "value"),
    [
        *(("falcon_h1-plain", f"{key}_multiplier", 2.0) for key in ("attention_in", "embedding", "key", "lm_head")),
        ("falcon_h1-plain", "ssm_multipliers", [1.0, 1.0, 1.0, 1.0]),
        ("falcon_h1-plain", "mamba_norm_before_gate", True),
        ("falcon_h1-plain", "mamba_expand", 3),
        ("qwen3moe-untied", "intermediate_size", 41),
        ("deepseek_v3-plain", "scoring_func", "another"),
    ],
)
def test_words_of_a_document_for_mlx_lm_are_those_of_a_checkpoint(
    case: str, path: str, value: Any, tmp_path: Path
) -> None:
    """Those too that no reader of hyper-parameters has."""
    gguf_of(case, tmp_path)
    with broken(CONFIG, within(path, value)) as calls:
        status, printed = command("convert", f"{tmp_path}/source", f"{tmp_path}/out/", *MLX)
    assert (calls[0] > 0, status, path in printed) == (True, 5, True), printed


@pytest.mark.parametrize(
    ("case", "to", "asked"),
    [
        ("arctic-plain", "hf", ("--set-meta", "hidden_act=another")),
        ("glm_ocr-untied", "hf", ("--set-meta", "text_config.hidden_act=another")),
        ("gemma4_text-shared", "mlx", ("--drop-meta", "sliding_window")),
        ("qwen3_classifier-three_labels", "hf", ("--set-meta", "label2id.positive=3")),
    ],
)
def test_what_an_option_asks_of_a_checkpoint_is_no_fault(
    case: str, to: str, asked: tuple[str, ...], tmp_path: Path
) -> None:
    gguf_of(case, tmp_path)
    source = f"{tmp_path}/source"
    status, printed = command("convert", source, f"{tmp_path}/out/", "--to", to, *asked)
    assert (status, "verified" in printed) == (0, True), printed
    assert [command("verify", f"{tmp_path}/out", source, *flags)[0] for flags in (asked, ())] == [0, 5]


@pytest.mark.parametrize("wrong", [False, True])
def test_a_value_is_set_wherever_a_document_says_it(wrong: bool, tmp_path: Path) -> None:
    """Two readers have two places for it."""
    source = Path(shutil.copytree(FIXTURES / "hf/llama-tied-bf16", tmp_path / "source"))
    document = json.loads((source / "config.json").read_text())
    base = document["rope_theta"]
    document["rope_parameters"] = {"rope_type": "default", "rope_theta": base}
    (source / "config.json").write_text(json.dumps(document))
    asked = str(source), f"{tmp_path}/out/", "--to", "hf", "--set-meta", "rope_theta=7.0"
    with broken("_Edits._there", touched(lambda found: found[:1]) if wrong else lambda real: real):
        status, printed = command("convert", *asked)
    assert (status, "expected 7.0" in printed) == (5 if wrong else 0, wrong), printed


def test_a_part_of_a_head_in_other_digits_is_no_fault(tmp_path: Path) -> None:
    gguf_of("mimo_v2_flash-plain", tmp_path)
    assert command("convert", f"{tmp_path}/source", f"{tmp_path}/mlx/", *MLX)[0] == 0
    status, printed = command("convert", f"{tmp_path}/mlx", f"{tmp_path}/out/", "--to", "hf")
    assert (status, "verified" in printed) == (0, True), printed


@pytest.mark.parametrize("to", ["hf", "mlx"])
def test_a_context_is_said_in_every_word_for_it(to: str, tmp_path: Path) -> None:
    asked = "convert", gguf_of("glm-whole_heads", tmp_path), f"{tmp_path}/out/", "--to", to, "--context", "16"
    with broken(CONFIG, within("max_position_embeddings", 33)):
        assert command(*asked)[0] == 5
    assert command(*asked)[0] == 0
    document = json.loads((tmp_path / "out/config.json").read_text())
    assert (document["max_position_embeddings"], document["seq_length"]) == (16, 16)
