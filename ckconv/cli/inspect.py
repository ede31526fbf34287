"""``ckconv inspect PATH``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from ckconv.cli.flags import FormatName, flag
from ckconv.cli.render import ProgressLine, print_json, print_lines
from ckconv.cli.settings import CONTEXT, PATH, Settings, common_options, force_option, settings_of
from ckconv.core.tensors import TensorIndex
from ckconv.errors import UsageError
from ckconv.io import as_path, files
from ckconv.plan.probe import ids_beyond, numberless
from ckconv.system.signals import interruptible
from ckconv.tokenizer.source import abilities_of, equal_tokens_of, render, special_texts, templates_of


@click.command("inspect", context_settings=CONTEXT)
@click.argument("path", required=False)
@click.option(
    "--from",
    "source_format",
    type=FormatName(),
    help="Read PATH as this format.",
)
@click.option(
    "--tensors",
    metavar="[GLOB]",
    is_flag=False,
    flag_value="*",
    help="Only the tensors, all of them or those that match by canonical or source name.",
)
@click.option("--metadata", is_flag=True, help="Only the metadata.")
@click.option("--hash", "hashes", is_flag=True, help="Add a content hash per tensor and one for the model.")
@click.option(
    "--config",
    type=PATH,
    help="The config.json of a bump file, if not beside it.",
)
@click.option("--base", type=PATH, help="The model that an adapter was made for.")
@click.option("--full", is_flag=True, help="Arrays of the metadata with all of their elements.")
@click.option("--markdown", is_flag=True, help="Tables of Markdown, for a model card.")
@click.option("--template-test", is_flag=True, help="What the chat template makes of samples, in jinja2's sandbox.")
@flag("--follow-links")
@flag("--strict")
@flag("--family")
@click.option("--html", "page", metavar="FILE", type=PATH, help="Write the same as a page to FILE.")
@force_option
@common_options
@click.pass_context
@interruptible(last=True)
def command(
    context: click.Context,
    path: str | None,
    source_format: str | None,
    tensors: str | None,
    metadata: bool,
    hashes: bool,
    config: Path | None,
    base: Path | None,
    full: bool,
    markdown: bool,
    template_test: bool,
    follow_links: bool,
    strict: bool,
    family: tuple[Path, ...],
    page: Path | None,
    force: bool,
) -> None:
    """Show format, architecture, config, tensors and metadata of a file.

    - reads a header from a pipe.

    On a terminal it prints tables; in a pipe tab-separated lines whose first field says what they are.
    """
    from dataclasses import replace

    from ckconv.cli.describe import Description, describe
    from ckconv.families.catalog import own_families
    from ckconv.formats.detect import open_index

    settings = settings_of(context)
    if path is None and tensors not in (None, "*") and os.path.lexists(tensors):
        path, tensors = tensors, "*"  # PATH stands right behind --tensors
    if path is None:
        taken = f": --tensors took {tensors!r} for its GLOB" if tensors not in (None, "*") else ""
        raise UsageError("usage", f"argument PATH is missing{taken}", hint="ckconv inspect PATH --tensors GLOB")
    context.with_resource(own_families(family))
    piped = path == "-"
    if piped and hashes:
        raise UsageError("usage.hash", "--hash needs the tensors' data, and a pipe is read only as far as the header")
    if page is not None and (hashes or metadata):
        raise UsageError(
            "usage.flag", "--html excludes --hash and --metadata: the page always has the metadata, and never hashes"
        )
    if piped:
        index = open_index(Path("-"), format=source_format, source=files.PipeSource(sys.stdin.buffer))
    else:
        index = open_index(
            as_path(path), format=source_format, config_path=config, base=base, follow_links=follow_links
        )
    if strict:
        from ckconv.formats.hazards import noted

        noted(index, strict=True)
    tokens = "; ".join([*ids_beyond(index), *filter(None, [equal_tokens_of(index)])])
    index = replace(index, facts={**index.facts, "tokens": tokens}) if tokens else index
    found = None
    if hashes:
        from ckconv.comparison.compare import hash_index

        with ProgressLine(settings, str(path)) as line:
            line.begin("hashing", index.nbytes)
            found = hash_index(index, line)
        if why := numberless(index):
            index = replace(index, facts={**index.facts, "scales": why})
    if template_test:
        _test_templates(index, settings)
        return
    on_terminal = (settings.color or sys.stdout.isatty()) and not (settings.json or markdown)
    description: Description = describe(
        index,
        tensors=tensors,
        hashes=found,
        piped=piped,
        everywhere=on_terminal or markdown or settings.verbose or page is not None,
        full=full,
    )
    if tensors is not None and index.stored and not description.shown:
        raise UsageError("usage", f"--tensors {tensors!r} matches no tensor")
    if page is not None:
        from ckconv.cli.page import page as page_of, write

        write(page, page_of(description), force=force)
        if not settings.json:
            return
    if settings.quiet and not settings.json:
        return
    if settings.json:
        print_json(description.document())
    elif markdown:
        print_lines(description.markdown())
    elif on_terminal:
        from ckconv.cli.tables import print_tables

        every = settings.verbose or tensors is not None or hashes
        print_tables(
            description, settings, only_metadata=metadata, only_tensors=tensors is not None, every_tensor=every
        )
    else:
        print_lines(description.lines(only_metadata=metadata, only_tensors=tensors is not None))


def _test_templates(index: TensorIndex, settings: Settings) -> None:
    """Print what every chat template makes of the samples."""
    templates = dict(templates_of(index))
    if not templates:
        raise UsageError("usage", f"{index.path.name} has no chat template")
    found = [(name, text, [*render(text, special_texts(index))]) for name, text in templates.items()]
    if settings.json:
        documents = [
            {"template": name, **abilities_of(text)._asdict(), "samples": [one._asdict() for one in samples]}
            for name, text, samples in found
        ]
        print_json({"templates": documents})
        return
    for name, text, samples in found:
        print_lines([f"{name}: {abilities_of(text)}"])
        for one in samples:
            print_lines([f"--- {one.sample}" + (f": {one.error}" if one.error else ""), *one.text.splitlines()])
