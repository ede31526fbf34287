"""The options that decide what a conversion writes: `convert` does what they say, `verify` is told of them again."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ckconv.cli.settings import PATH, follow_links_option
from ckconv.errors import UsageError

if TYPE_CHECKING:
    from ckconv.plan.steps import Options

FORMATS = ["gguf", "safetensors", "mlx", "bump", "peft"]

Function = TypeVar("Function", bound=Callable[..., Any])

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


class Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes: ``5GB`` (5 x 10^9), ``512MiB`` (512 x 2^20) or plain digits."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The bytes; fails with a sentence."""
        found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]?I?B|)", str(value).strip().upper())
        if found is None or found[2] not in _UNITS or (size := int(float(found[1]) * _UNITS[found[2]])) < 1:
            self.fail(f"{value!r} is no size; 5GB, 512MiB or a number of bytes expected", param, ctx)
        return size


_OPTIONS = (
    click.option(
        "--bump-version",
        type=click.Choice(["auto", "3", "4", "5"]),
        default="auto",
        show_default=True,
        help="auto: 3 if it holds the model without loss, else 5; the choice is printed.",
    ),
    click.option(
        "--dtype",
        type=click.Choice(["engine", "keep", "f32", "f16", "bf16"]),
        default="engine",
        show_default=True,
        help="engine: what the target's engine loads, widened exactly where it must be;"
        " keep: the same types or refuse.",
    ),
    click.option(
        "--rope-layout",
        type=click.Choice(["engine", "source", "split", "interleaved"]),
        default="engine",
        show_default=True,
        help="Row order of Q and K in the output.",
    ),
    click.option(
        "--dtype-codes",
        type=click.Choice(["v3", "v4"]),
        default="v3",
        show_default=True,
        help="Numbering of the bump 3 dtype table: v3 has Q4_K 6 and Q6_K 7, v4 has 7 and 8.",
    ),
    click.option("--dequantize", is_flag=True, help="Decode quantised matrices to --dtype."),
    click.option(
        "--decode", multiple=True, metavar="GLOB", help="Decode only the quantised matrices named; repeatable."
    ),
    click.option("--allow-lossy", is_flag=True, help="Let --dtype f16 or bf16 change values."),
    click.option("--context", "context_length", type=click.IntRange(1, 1 << 30), help="Context length in the output."),
    click.option(
        "--drop", multiple=True, metavar="GLOB", help="Leave out tensors by canonical or source name; repeatable."
    ),
    click.option(
        "--template",
        type=click.Path(path_type=Path, exists=True, readable=False),
        help="The engine's template of the architecture, or their directory, to embed (bump 5).",
    ),
    click.option(
        "--adapter",
        "adapters",
        multiple=True,
        metavar="PATH[=WEIGHT]",
        help="Merge an adapter (PEFT, MLX or GGUF) into the float matrices of SRC,"
        " its change times WEIGHT; repeatable.",
    ),
    click.option(
        "--base",
        type=PATH,
        help="The model that an adapter was made for: any format, or a config.json.",
    ),
    follow_links_option,
    click.option(
        "--max-shard-size",
        type=Size(),
        metavar="SIZE",
        help="Split the output into files of at most SIZE of tensors (5GB).",
    ),
    click.option("--set-meta", multiple=True, metavar="KEY=VALUE", help="Metadata of the output; repeatable."),
    click.option(
        "--drop-meta", multiple=True, metavar="GLOB", help="Metadata keys that the output does not have; repeatable."
    ),
    click.option(
        "--fuse",
        multiple=True,
        type=click.Choice(["qkv", "gate-up"]),
        help="Store these matrices as one (safetensors, MLX); repeatable.",
    ),
    click.option(
        "--names",
        type=click.Choice(["hf", "canonical", "gguf", "max"]),
        default="hf",
        show_default=True,
        help="What tensors are called (safetensors, MLX); max: as MAX declares GPT-2.",
    ),
    click.option("--untie", is_flag=True, help="Store a tied output head as a tensor of its own."),
    click.option("--tie", is_flag=True, help="Leave out an output head that is byte for byte the embedding."),
)


def conversion_options(function: Function) -> Function:
    """Add them to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def options_of(flags: dict[str, Any]) -> Options:
    """The options that flags ask for.

    Raises:
        UsageError: flags that exclude each other, or a value that is none.
    """
    from ckconv.plan.steps import Options

    if (flags["dequantize"] or flags["decode"]) and flags["dtype"] == "keep":
        raise UsageError("usage.dtype", "--dequantize, --decode and --dtype keep exclude each other")
    if flags["tie"] and flags["untie"]:
        raise UsageError("usage.flag", "--tie and --untie exclude each other")
    return Options(
        dtype=flags["dtype"],
        rope_layout=flags["rope_layout"],
        dequantize=flags["dequantize"],
        decode=flags["decode"],
        allow_lossy=flags["allow_lossy"],
        context=flags["context_length"] or 0,
        drop=flags["drop"],
        bump_version=0 if flags["bump_version"] == "auto" else int(flags["bump_version"]),
        dtype_codes=flags["dtype_codes"],
        template=flags["template"],
        created=_source_date(),
        max_shard_bytes=flags["max_shard_size"] or 0,
        set_meta=tuple(_key_value(text) for text in flags["set_meta"]),
        drop_meta=flags["drop_meta"],
        fuse=flags["fuse"],
        names=flags["names"],
        tie="tie" if flags["tie"] else "untie" if flags["untie"] else "",
        base=flags["base"],
        follow_links=flags["follow_links"],
    )


def adapters_of(flags: dict[str, Any]) -> list[tuple[Path, float]]:
    """Path and weight of every adapter that is to be merged.

    Raises:
        UsageError: a weight is no number.
    """
    return [_adapter(text) for text in flags["adapters"]]


def _adapter(text: str) -> tuple[Path, float]:
    """``PATH`` or ``PATH=WEIGHT``; what is there as it stands is a path."""
    path, equals, weight = text.rpartition("=")
    if not equals or os.path.lexists(text):
        return Path(text), 1.0
    try:
        number = float(weight)
    except ValueError:
        number = math.nan
    if not path or not math.isfinite(number):
        raise UsageError("usage", f"--adapter {text!r}: PATH or PATH=WEIGHT expected, WEIGHT a number")
    return Path(path), number


def _key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError("usage", f"--set-meta {text!r}: KEY=VALUE expected")
    return key, value


def _source_date() -> int | None:
    """The date of a reproducible build (reproducible-builds.org), the only one that an output may carry."""
    text = os.environ.get("SOURCE_DATE_EPOCH")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 11):
        raise UsageError("usage.date", f"SOURCE_DATE_EPOCH is {text!r}, seconds since 1970 expected")
    return int(text)
