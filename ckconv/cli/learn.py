"""``ckconv learn CHECKPOINT MODEL.gguf ... -o NEW.toml``."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ckconv.cli.render import print_json, print_report_lines
from ckconv.cli.settings import CONTEXT, PATH, Integer, Settings, common_options, settings_of
from ckconv.errors import UsageError, shown

if TYPE_CHECKING:
    from ckconv.learning.learn import LearnedFamily

#: Exit status of a file that leaves questions.
OPEN = 7

_ANSWERS = ("harmless", "any", "fixed")


@click.command("learn", context_settings=CONTEXT)
@click.argument("models", type=PATH, nargs=-1, required=True, metavar="CHECKPOINT MODEL.gguf ...")
@click.option("-o", "--output", type=PATH, required=True, metavar="NEW.toml", help="Where the family file goes.")
@click.option("-f", "--force", is_flag=True, help="Replace an existing file.")
@click.option("--base", default="", metavar="FAMILY", help="The family to extend, instead of the nearest.")
@click.option("--rows", type=Integer(min=1), default=8, show_default=True, help="Rows compared of each tensor.")
@click.option(
    "--check",
    type=click.Choice(["none", "pair", "all"]),
    default="pair",
    show_default=True,
    help="pair: convert each pair both ways, keep nothing, and compare every byte; none: compare names and keys alone;"
    " all: compare logits of transformers and llama.cpp, too, of the pair and of a model of other sizes.",
)
@click.option(
    "--mlx", type=PATH, metavar="DIR", help="An MLX directory of the first model: its names are learned, too."
)
@click.option(
    "--approximate",
    is_flag=True,
    help="Take a quantized GGUF: names and orders of rows are learned from values that are near.",
)
@click.option(
    "--confirm",
    multiple=True,
    metavar="KEY=ANSWER",
    help="Answer a question: harmless (nothing depends on it), any (whatever value), fixed (as seen); repeatable.",
)
@common_options
@click.pass_context
def command(
    context: click.Context,
    models: tuple[Path, ...],
    output: Path,
    force: bool,
    base: str,
    rows: int,
    check: str,
    mlx: Path | None,
    approximate: bool,
    confirm: tuple[str, ...],
) -> int:
    """Make a family file out of a checkpoint and its GGUF.

    A checkpoint of a family that ckconv knows may stand for the GGUF: names of a renamed fork are learned. Tensors are
    matched by their values. The file extends the nearest family that ckconv knows; what the pair does not tell is
    refused in other models. Exit 0 if nothing is left open, 7 if the file leaves questions, 3 without a file.
    """
    from ckconv.families.catalog import FAMILIES
    from ckconv.learning.learn import learn
    from ckconv.publish.files import check_target, followed, write_whole
    from ckconv.system.signals import interruptible

    settings = settings_of(context)
    if len(models) % 2:
        raise UsageError("usage", "learn takes pairs: CHECKPOINT MODEL.gguf", hint="ckconv learn --help")
    if output.suffix != ".toml" or not re.fullmatch(r"(?a:[A-Za-z0-9][\w.-]{0,63})", output.stem):
        raise UsageError("usage.target", f"-o {shown(output)}: a name of letters, digits, '_', '-' in .toml expected")
    if base and base not in FAMILIES:
        raise UsageError("usage.flag", f"--base {base}: no family (ckconv formats lists them)")
    if approximate and check == "all":
        message = "--approximate: logits of a quantized GGUF are others; --check pair or none expected"
        raise UsageError("usage.flag", message)
    place = followed(output, force=force)
    check_target(place, None, force=force, inputs=())
    answers = dict(one.rpartition("=")[::2] for one in confirm)
    wrong = next((one for one in confirm if one.rpartition("=")[2] not in _ANSWERS), None)
    if wrong is not None:
        raise UsageError("usage.flag", f"--confirm {wrong}: KEY={'|'.join(_ANSWERS)} expected")
    with interruptible(), tempfile.TemporaryDirectory(prefix=".ckconv-learn-", dir=output.parent) as folder:
        found = learn(
            [(ours, _gguf_of(gguf, Path(folder))) for ours, gguf in zip(models[::2], models[1::2], strict=True)],
            output.stem,
            base=base,
            rows=rows,
            values=check != "none",
            confirmed=answers,
            logits=check == "all",
            mlx=mlx,
            approximate=approximate,
        )
        write_whole(place, found.text.encode())
    _print(found, output, settings, checked=check != "none")
    return OPEN if found.questions else 0


def _gguf_of(model: Path, folder: Path) -> Path:
    """The GGUF of a pair, made of a checkpoint where the family is known."""
    from ckconv.core.options import Options
    from ckconv.formats.detect import open_index
    from ckconv.learning.learn import made_of

    if open_index(model).format != "safetensors":
        return model
    made = folder / f"{model.resolve().name}.gguf"
    made_of(model, made, Options())
    return made


def _print(found: LearnedFamily, output: Path, settings: Settings, *, checked: bool) -> None:
    if settings.json:
        print_json(_document(found, output))
        return
    if settings.quiet:
        return
    forth, back = found.checked[0].forth, found.checked[0].back
    tensors = f"{found.traced}/{found.total} tensors traced"
    lines = [f"{shown(output)}  extends {found.family}, {tensors}, {found.same} kinds as there"]
    blocks = any(way.distance for each in found.checked for way in (each.forth, each.back))
    what = "by names and shapes" if not checked else "near the blocks' values" if blocks else "byte for byte"
    for number, each in enumerate(found.checked, 1):
        forth, back = each.forth, each.back
        pair = f"pair {number}: " if len(found.checked) > 1 else ""
        lines.append(
            f"  {pair}made {what}: GGUF {forth.tensors}/{forth.total}, keys {forth.keys}/{forth.of};"
            f" back {back.tensors}/{back.total}, keys {back.keys}/{back.of}"
        )
    if found.mlx is not None:
        forth, back = found.mlx.forth, found.mlx.back
        lines.append(f"  made byte for byte: MLX {forth.tensors}/{forth.total}; back {back.tensors}/{back.total}")
    near = sum(len(way.near) for each in found.checked for way in (each.forth, each.back))
    if near:
        lines.append(f"  {near} of them are computed (1 + w, exponentials) and differ in the last bits")
    for name, why in found.checked[0].forth.left_out.items():
        lines.append(f"  left out of the GGUF: {shown(name)}: {why}")
    lines += [f"  ? {question.text}" for question in found.questions]
    if found.closed:
        lines.append(f"  refused with another value: {', '.join(found.closed)}")
        lines.append("  another pair opens them; so does --confirm KEY=any")
    lines += _of_logits(found)
    print_report_lines(lines, settings)


def _of_logits(found: LearnedFamily) -> Iterator[str]:
    of = found.measured
    if of is not None:
        yield f"  logits of llama.cpp and transformers: {of.pair:.1g} of the largest apart"
    if of is not None and of.other is not None:
        changed = ", ".join(f"{key} {shown(str(value))}" for key, (_, value) in of.changed.items())
        yield f"  of a model of other sizes, too: {of.other:.1g} ({changed})"
    elif of is not None:
        yield f"  no model of other sizes was made: {of.reason}"
        yield "  what llama.cpp computes of other sizes was not compared (unmeasured)"
    else:
        yield "  what llama.cpp computes of such a file was not compared (unmeasured)"


def _document(found: LearnedFamily, output: Path) -> dict[str, Any]:
    return {
        "file": shown(output),
        "extends": found.family,
        "tensors": {"traced": found.traced, "of": found.total},
        "pairs": [
            {
                way: {
                    "tensors": one.tensors,
                    "of": one.total,
                    "near": len(one.near),
                    "apart": one.distance,
                    "keys": one.keys,
                    "of_keys": one.of,
                }
                for way, one in (("gguf", each.forth), ("checkpoint", each.back))
            }
            for each in found.checked
        ],
        "questions": [{"key": question.key, "text": question.text} for question in found.questions],
        "closed": list(found.closed),
        "left_out": dict(found.checked[0].forth.left_out),
        "bytes_read": found.nbytes,
        "mlx": found.mlx and {"tensors": found.mlx.forth.tensors, "back": found.mlx.back.tensors},
        "logits": found.measured and found.measured._asdict(),
    }
