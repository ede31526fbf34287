"""``ckconv convert SRC DST``."""

from __future__ import annotations

import math
import os
import re
import sys
from pathlib import Path
from typing import Any

import click

from ckconv.cli.progress import ProgressLine
from ckconv.cli.settings import CONTEXT, PATH, common_options, settings_of
from ckconv.errors import OutputError, UsageError

FORMATS = ["gguf", "safetensors", "mlx", "bump", "peft"]
TARGETS = ["gguf", "safetensors", "mlx", "bump", "peft"]

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


#: Side file -> the flag that says where it goes.
_PLACES = {"config.json": "config_out", "weights_manifest.json": "manifest"}
_MAP_NAME = "weights_manifest.map"


class Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes: ``5GB`` (5 x 10^9), ``512MiB`` (512 x 2^20) or plain digits."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The bytes; fails with a sentence."""
        found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]?I?B|)", str(value).strip().upper())
        if found is None or found[2] not in _UNITS or (size := int(float(found[1]) * _UNITS[found[2]])) < 1:
            self.fail(f"{value!r} is no size; 5GB, 512MiB or a number of bytes expected", param, ctx)
        return size


@click.command("convert", context_settings=CONTEXT)
@click.argument("src", type=PATH)
@click.argument("dst")
@click.option("--from", "source_format", type=click.Choice(FORMATS), help="Read SRC as this format.")
@click.option("--to", type=click.Choice(TARGETS), help="Write this format, whatever DST is called.")
@click.option(
    "--bump-version",
    type=click.Choice(["auto", "3", "4", "5"]),
    default="auto",
    show_default=True,
    help="auto: 3 if it holds the model without loss, else 5; the choice is printed.",
)
@click.option(
    "--dtype",
    type=click.Choice(["engine", "keep", "f32", "f16", "bf16"]),
    default="engine",
    show_default=True,
    help="engine: what the target's engine loads, widened exactly where it must be; keep: the same types or refuse.",
)
@click.option(
    "--rope-layout",
    type=click.Choice(["engine", "source", "split", "interleaved"]),
    default="engine",
    show_default=True,
    help="Row order of Q and K in the output.",
)
@click.option(
    "--dtype-codes",
    type=click.Choice(["v3", "v4"]),
    default="v3",
    show_default=True,
    help="Numbering of the bump 3 dtype table: v3 has Q4_K 6 and Q6_K 7, v4 has 7 and 8.",
)
@click.option("--dequantize", is_flag=True, help="Decode quantised matrices to --dtype.")
@click.option("--decode", multiple=True, metavar="GLOB", help="Decode only the quantised matrices named; repeatable.")
@click.option("--allow-lossy", is_flag=True, help="Let --dtype f16 or bf16 change values.")
@click.option("--context", "context_length", type=click.IntRange(1, 1 << 30), help="Context length in the output.")
@click.option(
    "--drop", multiple=True, metavar="GLOB", help="Leave out tensors by canonical or source name; repeatable."
)
@click.option("--config-out", type=PATH, help="Where config.json goes, if not beside DST.")
@click.option(
    "--manifest",
    type=PATH,
    help="Where weights_manifest.json goes, if not beside DST (bump 4, 5).",
)
@click.option("--map", "with_map", is_flag=True, help="Write weights_manifest.map beside DST (bump 4, 5).")
@click.option(
    "--template",
    type=click.Path(path_type=Path, exists=True, readable=False),
    help="The engine's template of the architecture, or their directory, to embed (bump 5).",
)
@click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="PATH[=WEIGHT]",
    help="Merge an adapter (PEFT, MLX or GGUF) into the float matrices of SRC, its change times WEIGHT; repeatable.",
)
@click.option(
    "--base",
    type=PATH,
    help="The model that an adapter was made for: any format, or a config.json.",
)
@click.option(
    "--max-shard-size",
    type=Size(),
    metavar="SIZE",
    help="Split the output into files of at most SIZE of tensors (5GB).",
)
@click.option("--set-meta", multiple=True, metavar="KEY=VALUE", help="Metadata of the output; repeatable.")
@click.option(
    "--drop-meta", multiple=True, metavar="GLOB", help="Metadata keys that the output does not have; repeatable."
)
@click.option(
    "--fuse",
    multiple=True,
    type=click.Choice(["qkv", "gate-up"]),
    help="Store these matrices as one (safetensors, MLX); repeatable.",
)
@click.option(
    "--names",
    type=click.Choice(["hf", "canonical", "gguf", "max"]),
    default="hf",
    show_default=True,
    help="What tensors are called (safetensors, MLX); max: as MAX declares GPT-2.",
)
@click.option("--untie", is_flag=True, help="Store a tied output head as a tensor of its own.")
@click.option("--tie", is_flag=True, help="Leave out an output head that is byte for byte the embedding.")
@click.option(
    "--checksums", is_flag=True, help="Write DST.sha256 (in a directory: SHA256SUMS) of all files for sha256sum -c."
)
@click.option(
    "--no-source-record",
    "source_record",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Write no DST.source.zip, which makes SRC again byte for byte; and look at none beside SRC.",
)
@click.option("--no-verify", is_flag=True, help="Do not read the output again to compare every tensor.")
@click.option("-n", "--dry-run", is_flag=True, help="Print the plan with exact sizes; write nothing.")
@click.option("-f", "--force", is_flag=True, help="Replace an existing output, atomically.")
@common_options
@click.pass_context
def command(context: click.Context, /, src: Path, dst: str, **flags: Any) -> None:
    """Convert SRC to DST; DST's format from its name, or --to.

    Quantised blocks are never decoded unless --dequantize or --decode says so; F16 and BF16 widen to FP32 exactly where
    the target's engine wants that. What the target cannot hold exactly is refused (exit 4) before anything is written.
    DST may be - for stdout, or end in / for a directory.
    """
    from ckconv.cli.report import print_plan, print_report
    from ckconv.destination import STDOUT
    from ckconv.execute import run
    from ckconv.library import prepare, side_files
    from ckconv.plan.steps import Options
    from ckconv.signals import deferred, interruptible

    settings = settings_of(context)
    if (flags["dequantize"] or flags["decode"]) and flags["dtype"] == "keep":
        raise UsageError("usage.dtype", "--dequantize, --decode and --dtype keep exclude each other")
    if flags["tie"] and flags["untie"]:
        raise UsageError("usage.flag", "--tie and --untie exclude each other")
    if dst == STDOUT and sys.stdout.isatty():
        raise UsageError("usage.target", "refusing to write a model to a terminal", hint="pipe it somewhere")
    if dst == STDOUT and sys.__stdout__ is None:  # closed by the caller; what is there instead takes everything
        raise OutputError("output.write", "stdout is closed, and the model was to go there")
    options = Options(
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
        source_record=flags["source_record"],
        base=flags["base"],
    )
    adapters = [_adapter(text) for text in flags["adapters"]]
    with interruptible(last=True):
        plan, target = prepare(
            src, dst, to=flags["to"], source_format=flags["source_format"], adapters=adapters, options=options
        )
        if flags["dry_run"]:
            plan.check()
            print_plan(plan, dst, settings)
            return
        with ProgressLine(settings) as line:
            report = run(
                plan,
                target,
                force=flags["force"],
                verify=not flags["no_verify"],
                places={name: flags[flag] for name, flag in _PLACES.items() if flags[flag]},
                on_request=[_MAP_NAME] if flags["with_map"] else [],
                late=side_files(plan, target, checksums=flags["checksums"]),
                stdout=sys.stdout.fileno() if dst == STDOUT else None,
                watcher=line,
            )
        with deferred():
            print_report(report, settings, err=dst == STDOUT)


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
