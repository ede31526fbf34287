"""``ckconv convert SRC DST``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ckconv.cli.flags import (
    MAP_NAME,
    FormatName,
    adapters_of,
    cluster_option,
    conversion_options,
    default_options,
    one_or_two,
    options_of,
    sources_and_output,
    where_it_counts,
    writing_options,
)
from ckconv.cli.render import ProgressLine, print_report_lines, say, size
from ckconv.cli.settings import (
    CONTEXT,
    PATH,
    Sections,
    Settings,
    common_options,
    flag_notes,
    forget_default,
    origins,
    page_option,
    settings_of,
)
from ckconv.core.lazy import replace
from ckconv.core.metadata import CONFIG_NAME, SideFile
from ckconv.core.options import Options, given_options
from ckconv.errors import CkconvError, OutputError, UnsupportedError, UsageError, code_of, counted, shown
from ckconv.formats import format_of, whole_format
from ckconv.formats.destination import ON_STDOUT, Destination, named_by_directory, without_say_beside
from ckconv.formats.safetensors.container import INDEX_SUFFIX
from ckconv.io.files import Files
from ckconv.plan.steps import Plan
from ckconv.system.signals import interruptible, noted

if TYPE_CHECKING:
    from ckconv.conversion.run import Report


#: Side file -> the flag that says where it goes.
_NAMED = {CONFIG_NAME: "config_out", "weights_manifest.json": "manifest"}

#: Flags of a source that is one model by itself.
_OF_ONE_FILE = ("mmproj", "side_files_only", "resume", "cluster")

_EXAMPLES = {
    "ckconv convert model.gguf model.bump": "for C-Kernel-Engine; every tensor is verified",
    "ckconv convert model/ model.gguf --quantize q4_k_m": "a checkpoint of Hugging Face for llama.cpp, quantized",
    "ckconv convert model.gguf model/ --to hf --dequantize": "back to a checkpoint; the blocks' own values in FP32",
    "ckconv convert model.gguf mmproj.gguf model/ --to hf": "text model and tower, one checkpoint again",
    "ckconv convert model/ mlx/ --to mlx --dry-run": "the plan with exact sizes; nothing is written",
}


@click.command("convert", cls=Sections, examples=_EXAMPLES, context_settings=CONTEXT)
@click.argument("paths", metavar="SRC [MMPROJ] DST", nargs=-1)
@click.option("-o", "--output", metavar="DST", help="The output, if it is not the last argument.")
@click.option("--from", "source_format", type=FormatName(), help="Read SRC as this format.")
@click.option("--to", type=FormatName(), help="Write this format, whatever DST is called.")
@conversion_options
@click.option("--config-out", type=PATH, help="Where config.json goes, if not beside DST.")
@click.option(
    "--manifest",
    type=PATH,
    help="Where weights_manifest.json goes, if not beside DST (bump 4, 5).",
)
@click.option(
    "--mmproj", type=PATH, metavar="FILE", help="Write projector and tower to FILE, a GGUF beside the text model's."
)
@click.option(
    "--record",
    is_flag=True,
    help="Write DST.ckconv.json (in a directory: ckconv.json; of a bump file: into DST.source.zip):"
    " options and digests, for ckconv verify.",
)
@click.option(
    "--attest",
    type=PATH,
    metavar="FILE",
    help="Write options and digests to FILE, as an unsigned in-toto statement with SLSA provenance.",
)
@click.option(
    "--side-files-only",
    is_flag=True,
    help="Write configuration, tokenizer and template, and no weights: what vLLM and transformers need beside a GGUF.",
)
@page_option("Write a page to FILE: source and output, and how far each tensor is apart.")
@click.option(
    "--resume",
    is_flag=True,
    help="Keep finished shards if the conversion ends early, and continue from those of an earlier run.",
)
@cluster_option
@writing_options
@common_options
@click.pass_context
def command(context: click.Context, /, paths: tuple[str, ...], output: str | None, **flags: Any) -> None:
    """Convert SRC to DST; DST's format from its name, or --to.

    Quantized blocks are decoded by --dequantize and --decode only. One exception: FP8 whose scales are powers of two
    becomes BF16 in a GGUF, which is exact. F16 and BF16 widen to FP32 where the target's engine wants that. What the
    target cannot hold exactly is refused (exit 4) before anything is written. SRC may be - for a pipe. DST may be - for
    stdout, tar:- for a tar archive of a directory there, or end in / for a directory. With MMPROJ, the tower beside a
    text model in a GGUF, DST is a checkpoint of both.
    """
    from ckconv.cli.report import print_plan
    from ckconv.conversion.planning import TOWER_HINT, at_work, prepare, prepare_tower
    from ckconv.conversion.run import outputs_of, run, uploading
    from ckconv.conversion.sidefiles import check_tower, last_files
    from ckconv.formats.model import check_alone

    settings = settings_of(context)
    sources, dst = sources_and_output(context, paths, output)
    src, seen = one_or_two(sources)
    if dst in ON_STDOUT and sys.stdout.isatty():
        raise UsageError("usage.target", "refusing to write a model to a terminal", hint="pipe it somewhere")
    if dst in ON_STDOUT and sys.__stdout__ is None:  # closed by the caller; what is there instead takes everything
        raise OutputError("output.write", "stdout is closed; the model cannot be written to it")
    if seen is not None:
        check_alone({f"--{name.replace('_', '-')}": flags[name] for name in _OF_ONE_FILE} | {"--html": flags["page"]})
    if flags["page"] is not None:
        _check_page(flags["page"], dst, flags)
    if flags["attest"] is not None and flags["dry_run"]:
        raise UsageError("usage.flag", "--attest states what was written: it excludes --dry-run")
    options, adapters = options_of(flags), adapters_of(flags)
    context.with_resource(at_work(options.families, flags["jobs"]))
    with interruptible(last=True):
        if flags["side_files_only"]:
            _side_files(src, dst, options, flags, settings)
            return
        lasting = flags["resume"] or flags["cluster"] is not None
        upload = context.with_resource(uploading(dst, replacing=flags["force"], lasting=lasting))
        dst = upload.local if upload else dst
        defaults = default_options(context)
        before = set(defaults)
        plan, target = where_it_counts(
            options,
            defaults,
            lambda options: prepare(
                src,
                dst,
                to=flags["to"],
                source_format=flags["source_format"],
                adapters=adapters,
                mmproj=seen,
                options=options,
            ),
        )
        for name in before - defaults:
            forget_default(context, name)
        plan = replace(plan, notes=(*flag_notes(context), *plan.notes), origins=origins(context))
        short = "-q" in context.find_root().meta.get("ckconv.words", ())
        if plan.format == "mlx" and not options.quantize and short and sys.stderr.isatty():  # a person, used to mlx_lm
            say("ckconv: note: -q is --quiet here; --quantize affine:4:64 quantizes\n")
        beside, force = flags["mmproj"], flags["force"]
        tower = None
        if beside:
            plan_of_tower, place = prepare_tower(src, beside, options=options)
            tower = plan_of_tower, place._replace(typed=False)  # beside DST no link is followed
            plan = replace(plan, notes=tuple(note.removesuffix(f"; {TOWER_HINT}") for note in plan.notes))
        try:
            for each in (plan, *([tower[0]] if tower else [])):
                each.check()
        except UnsupportedError as error:
            again = partial(prepare, src, dst, to=flags["to"], index=plan.index)
            error.details = (*error.details, *(() if adapters or seen else _ways_out(plan, again)))
            raise
        if flags["dry_run"]:
            print_plan(plan, shown(dst), settings, tower=tower)
            return
        named_files = {name: flags[key] for name, key in _NAMED.items() if flags[key]}
        wanted = [MAP_NAME] if flags["with_map"] else []
        named = {"checksums": flags["checksums"], "record": flags["record"], "attest": flags["attest"]}
        last = last_files(plan, target, adapters=adapters, **named)
        last_of_tower = last_files(*tower, checksums=flags["checksums"]) if tower else ()
        if tower or flags["page"] is not None:
            outputs = outputs_of(plan, target, named=named_files, on_request=wanted, last=last)
        if tower:
            check_tower(tower, outputs, last_of_tower, force=force)
        if flags["page"] is not None:
            from ckconv.cli.page import check_place

            outputs += outputs_of(*tower, named={}, on_request=(), last=last_of_tower) if tower else []
            check_place(flags["page"], outputs)
        shared = None
        if lasting:
            if dst in ON_STDOUT:
                raise UsageError("usage.target", "--resume and --cluster make files, and DST is stdout")
            from ckconv.conversion.cluster import connected, sharing
            from ckconv.conversion.resume import requested

            how = {"verify": not flags["no_verify"], "force": force}
            request = requested(plan, target, src, flags["source_format"], adapters, **how)
            executor = context.with_resource(connected(flags["cluster"])) if flags["cluster"] else None
            shared = sharing(request, executor=executor, resume=flags["resume"], jobs=flags["jobs"])
        with ProgressLine(settings, dst) as line:
            report = run(
                plan,
                target,
                force=force,
                verify=not flags["no_verify"],
                named=named_files,
                on_request=wanted,
                last=last,
                stdout=sys.stdout.fileno() if dst in ON_STDOUT else None,
                digests=settings.json or settings.verbose,
                watcher=line,
                shared=shared,
            )
            made, report = report, upload.publish(report, line) if upload else report
        if flags["page"] is not None:
            from ckconv.cli.page import page_of_conversion, write

            try:
                drawn = page_of_conversion(made, directory=target.directory, config=flags["config_out"])
                write(flags["page"], drawn, force=force)
            except CkconvError as error:
                error.details = (*error.details, f"the output is complete and there: {report.target}")
                raise
        if not (tower and settings.json):  # that is one document
            with noted():
                _print(report, None, settings, err=dst in ON_STDOUT)
        if tower:
            with ProgressLine(settings, str(beside)) as line:
                checked = not flags["no_verify"]
                done = run(*tower, force=force, verify=checked, last=last_of_tower, watcher=line)
            with noted():
                first, beside_it = (report, done) if settings.json else (done, None)
                _print(first, beside_it, settings, err=dst in ON_STDOUT)


#: What decoding does to values; and to those that a factor is multiplied with which is no power of two.
_EXACT = "every value is exact, in FP32"
_ROUNDED = "every value is what its library computes, rounded to FP32"

#: What may help a refused conversion, from what loses least: options, their flags, and what is lost.
_WAYS: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"pack": ""}, "without --pack", "the blocks stay as they are"),
    ({"pack": "compressed-tensors"}, "--pack compressed-tensors", "every number of the blocks is kept"),
    ({"engine": "july"}, "--engine july", "nothing is lost, and only that engine computes it"),
    ({"dequantize": True}, "--dequantize", f"{_EXACT}; the blocks are lost"),
    (
        {"dequantize": True, "dtype": "bf16", "allow_lossy": True},
        "--dequantize --dtype bf16 --allow-lossy",
        "values are rounded to 8 bits of precision; the blocks are lost",
    ),
    (
        {"dequantize": True, "quantize": "q8_0"},
        "--dequantize --quantize q8_0",
        "values are rounded to blocks of 8 bits; the blocks of SRC are lost",
    ),
)


def _ways_out(plan: Plan, again: Callable[..., tuple[Plan, Destination]]) -> Iterator[str]:
    """Flags that convert a refused quantized model, by what they lose.

    Args:
        again: plans the same conversion with other options.
    """
    if not any(tensor.dtype.block > 1 for tensor in plan.index.everything.values()):
        return
    from ckconv.plan.probe import products_are_exact

    for changes, flags, lost in _WAYS:
        given = {chosen.option.name for chosen in given_options(plan.options)}
        idle = "dtype" in changes and plan.options.quantize
        stays = given.isdisjoint(changes) is ("pack" in changes)  # another layout, where one is asked for
        if stays or idle or ("dequantize" in changes and plan.options.dtype == "keep"):
            continue  # what was asked for stays
        try:
            other, _ = again(options=replace(plan.options, **changes, file_name=""))
        except CkconvError:
            continue
        if not other.refusals and other.engines != ():  # a file that no engine computes helps nobody
            warning = (
                "" if other.record or not format_of(other.format).keeps_source else "; SRC cannot be restored from it"
            )
            if lost.startswith(_EXACT):
                exact = products_are_exact(plan.index)
                lost = lost.replace(_EXACT, _of_values(plan.options, exact=exact))
            yield f"way out: {flags}: {size(other.nbytes)}, {lost}{warning}"


def _of_values(options: Options, *, exact: bool) -> str:
    """Effect on values of decoding, with the further flags."""
    if options.quantize:
        return f"values are rounded to the blocks of --quantize {options.quantize}"
    if options.dtype in ("f16", "bf16") and options.allow_lossy:
        return f"values are rounded to {options.dtype.upper()}"
    text = _EXACT if exact else _ROUNDED
    return text if options.dtype == "engine" else text.replace("FP32", options.dtype.upper().replace("F32", "FP32"))


def _check_page(page: Path, dst: str, flags: dict[str, Any]) -> None:
    """Refuse a page that could not be written when the output is there."""
    from ckconv.cli.page import check_new

    if dst in ON_STDOUT or flags["dry_run"] or flags["side_files_only"]:
        raise UsageError("usage.flag", "--html shows an output: it excludes -, --dry-run and --side-files-only")
    check_new(page, force=flags["force"])


def _side_files(src: Path, dst: str, options: Options, flags: dict[str, Any], settings: Settings) -> None:
    check_flags(flags, options)
    plan, place = planned(src, dst, to=flags["to"], source_format=flags["source_format"], options=options)
    config, force, dry_run = flags["config_out"], flags["force"], flags["dry_run"]
    write_side_files(plan, place, settings, config=config, force=force, dry_run=dry_run)


def _print(report: Report, tower: Report | None, settings: Settings, *, err: bool) -> None:
    """Print the report; if that fails, the error says the output exists."""
    from ckconv.cli.report import print_report

    try:
        print_report(report, settings, tower=tower, err=err)
        (sys.stderr if err else sys.stdout).flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        message = f"the output is complete; only the report could not be printed: {error.strerror}"
        raise OutputError(code_of(error), message, path=report.target) from None


#: Flags about weights, and about files that tell of them, beside those of the table of options.
_ABOUT_WEIGHTS = (
    "adapters", "attest", "checksums", "cluster", "jobs", "manifest", "mmproj", "no_verify", "record", "resume",
    "with_map",
)  # fmt: skip


def check_flags(flags: Mapping[str, Any], options: Options) -> None:
    """Refuse flags that have no say where no weights are written."""
    names = {"adapters": "adapter", "with_map": "map"}
    given = [f"--{names.get(name, name).replace('_', '-')}" for name in _ABOUT_WEIGHTS if flags[name]]
    given += without_say_beside(options)
    if given:
        raise UsageError("usage.flag", f"{given[0]} is about weights, and --side-files-only writes none")


def planned(src: Path, dst: str, *, to: str | None, source_format: str | None, options: Options) -> Any:
    """Plan side files, whatever blocks the weights have.

    Raises:
        UnsupportedError: ``plan.refused``, the family, the configuration or the tokenizer has no form there.
        UsageError: ``usage.side-file``, the format has nothing beside its weights that is of use without them, or DST
            is not a directory.
    """
    from ckconv.conversion.planning import prepare

    to = to or (None if named_by_directory(dst) else whole_format())
    plan, place = prepare(src, dst, to=to, source_format=source_format, options=options)
    adapter = plan.index.adapter is not None
    if adapter or not format_of(place.format).described_beside:
        raise UsageError(
            "usage.side-file",
            f"{plan.format} has no files that are of use without its weights: they describe them, or are inside",
            hint=None if adapter else "--to hf writes what transformers and vLLM read beside a GGUF",
        )
    if place.directory is None:
        raise UsageError("usage.side-file", "side files have names of their own", hint="name a directory: DST/")
    if plan.refusals:
        decoded = replace(options, dequantize=True, allow_lossy=True)
        plan, place = prepare(src, dst, to=to, source_format=source_format, options=decoded)
    plan.check()
    return plan, place


def write_side_files(
    plan: Plan, place: Destination, settings: Settings, *, config: Path | None, force: bool, dry_run: bool
) -> None:
    """Publish the side files of a plan, all or none, and list them.

    Args:
        config: where ``config.json`` goes, if not into the directory.
    """
    from ckconv.cli.report import print_plan, print_report
    from ckconv.conversion.run import Report
    from ckconv.conversion.sidefiles import check_leftovers, gone_notes, left_documents
    from ckconv.publish.staging import Outputs, SmallFile

    started = time.monotonic()
    assert place.directory is not None
    container = plan.contents()
    plan = replace(plan, files=(), left_out=(), notes=container.notes)
    found: dict[str, SideFile] = {
        name: content
        for name, content in container.side_files.items()
        if name not in container.on_request and not name.endswith(INDEX_SUFFIX)
    }
    if config is not None and CONFIG_NAME not in found:
        raise UsageError("usage.side-file", f"{plan.target_name} has no {CONFIG_NAME}")
    side = {
        config if config is not None and name == CONFIG_NAME else place.directory / name: SmallFile(name, content)
        for name, content in found.items()
    }
    if not dry_run:
        inputs = (*plan.index.files, *plan.index.side_files)
        last = [path for path, small in side.items() if small.name == CONFIG_NAME]
        gone = left_documents(plan, place, list(side)) if force else []
        look = partial(check_leftovers, plan, place, (), side, gone)
        with (
            Files(plan.index.identities) as files,
            Outputs({}, side, directory=place.directory, force=force, inputs=inputs, last=last, gone=gone) as outputs,
        ):
            look()
            files.check_unchanged()
            outputs.publish(look)
        plan = plan.with_notes(*gone_notes(gone), *outputs.notes)
    paths = tuple(side)
    if settings.json:
        if dry_run:
            print_plan(plan, place.name, settings)
        else:
            print_report(Report(plan, place.name, (), paths, None, time.monotonic() - started), settings, err=False)
    elif not settings.quiet:
        print_report_lines(_lines(plan, place, paths, dry_run=dry_run), settings)


def _lines(plan: Plan, place: Destination, paths: Sequence[Path], *, dry_run: bool) -> list[str]:
    root = Path(place.name)
    names = ", ".join(path.relative_to(root).as_posix() if root in path.parents else path.name for path in paths)
    return [
        f"{place.name}  {counted(len(paths), 'file')} for {shown(plan.index.path.name)} ({plan.index.architecture}),"
        " no weights",
        f"  {names}",
        *(f"  note: {note}" for note in plan.notes),
        *(["nothing written"] if dry_run else []),
    ]
