"""``ckconv formats``."""

from __future__ import annotations

from pathlib import Path

import click

from ckconv.cli.render import print_json, print_lines, print_report_lines
from ckconv.cli.settings import CONTEXT, common_options, settings_of
from ckconv.errors import CkconvError, UsageError, quoted
from ckconv.families.catalog import FAMILIES, own_families, text_of

_SCHEMAS = Path(__file__).parent / "schemas"


def _no_family(name: str) -> CkconvError:
    return UsageError("usage", f"--family {quoted(name)}: neither a file nor one of the families {', '.join(FAMILIES)}")


@click.command("formats", context_settings=CONTEXT)
@click.option(
    "--family",
    metavar="NAME",
    help="Print the family file of NAME, to start your own from; a FILE is checked, and listed with the others.",
)
@click.option(
    "--resolved",
    is_flag=True,
    help="With --family: print its rows with all that it extends merged in, and the files that each comes from.",
)
@click.option(
    "--schema",
    type=click.Choice(sorted(path.stem for path in _SCHEMAS.glob("*.json"))),
    help="Print the JSON Schema of what a command prints with --json.",
)
@common_options
@click.pass_context
def command(context: click.Context, family: str | None, resolved: bool, schema: str | None) -> None:
    """List directions, architectures and tensor types of this build."""
    if schema is not None:
        print_lines((_SCHEMAS / f"{schema}.json").read_text("utf-8").splitlines())
        return
    from ckconv.core.layouts import DTYPES, Kind
    from ckconv.families.names import interleaves
    from ckconv.formats import FORMATS, adapter_outputs, model_outputs, names
    from ckconv.formats.bump.releases import COMPUTED, LOADED_BY_V3, table_of_families, table_of_mixes, table_of_types
    from ckconv.formats.destination import passed_types
    from ckconv.quant.convert import decodable

    if resolved:
        from ckconv.families import merge as rows
        from ckconv.families.merge import FOLDER

        if family is None:
            raise UsageError("usage", "--resolved prints the rows of one family: add --family NAME")
        if family not in FAMILIES:
            if not Path(family).exists():
                raise _no_family(family)
            context.with_resource(own_families([Path(family)]))  # which checks it
        print_lines([*rows.resolved(FOLDER / f"{family}.toml" if family in FAMILIES else Path(family))])
        return
    if family is not None:
        text = text_of(family)
        if text is not None:
            print_lines(text.splitlines())
            return
        if not Path(family).exists():
            raise _no_family(family)
        context.with_resource(own_families([Path(family)]))
    engines = table_of_types()
    passed, adapters = passed_types(), list(adapter_outputs())
    sources = [format.name for format in FORMATS if format.read is not None]
    targets = [output.name for output in model_outputs()]

    if settings_of(context).json:
        print_json(
            {
                "reads": names(),
                "writes": [output.name for format in FORMATS for output in format.outputs],
                "directions": [
                    {"from": source, "to": target, "keeps_blocks": list(types)}
                    for (source, target), types in passed.items()
                ],
                "adapters": adapters,
                "architectures": [
                    {
                        "name": f.name,
                        "gguf": f.gguf,
                        "model_type": f.model_type,
                        "rope_interleaved_in_gguf": interleaves(f),
                    }
                    for f in FAMILIES.values()
                ],
                "bump5_families": [
                    {"name": name, "template": template, "engines": runs}
                    for name, (template, runs) in table_of_families().items()
                ],
                "bump5_mixes": [
                    {"engine": release, "template": circuit or None, "refused": what}
                    for release, circuit, what in table_of_mixes()
                ],
                "types": [
                    {
                        "name": t.name,
                        "block_elements": t.block,
                        "block_bytes": t.size,
                        "ggml": t.ggml,
                        "safetensors": t.safetensors,
                        "bump_v3": t.bump_v3,
                        "bump_v4": t.bump_v4,
                        "bump3_engine_loads": t.name in LOADED_BY_V3,
                        "bump5_engine_computes": t.name in COMPUTED,
                        "engines": {release: words[t.name] or None for release, words in engines.items()},
                        "decodes": decodable(t) or t.kind is Kind.FLOAT,
                    }
                    for t in DTYPES.values()
                ],
            }
        )
        return
    lines = [
        "models: floats go to every format that holds the family; this many block types go without being decoded",
        "  from         " + "".join(f"  {target:>4}" for target in targets),
    ]
    for source in sources:
        counts = ("all" if source == to else str(len(passed[source, to]) or "-") for to in targets)
        lines.append(
            f"  {source:<13}" + "".join(f"  {n:>{max(len(to), 4)}}" for n, to in zip(counts, targets, strict=True))
        )
    lines += [
        f"  to mlx and back: {', '.join(passed['mlx', 'gguf'])}, where every number fits",
        f"adapters: between {', '.join(adapters)}, and merged into a model during its conversion",
        "",
        "architectures",
    ]
    wide, gguf = (max(map(len, words)) for words in (FAMILIES, [f.gguf or "" for f in FAMILIES.values()]))
    lines += [
        f"  {f.name:<{wide}}  GGUF {f.gguf or '-':<{gguf}}  Hugging Face {f.model_type}" for f in FAMILIES.values()
    ]
    lines += [
        "",
        f"  {'type':<12}{'block':>6}{'bytes':>7}{'ggml':>6}"
        f"  {'safetensors':<12}{'bump v3':>8}{'bump v4':>8}  --engine "
        + "".join(f"{release:<18}" for release in engines).rstrip(),
    ]
    for t in DTYPES.values():
        cells = ("-" if value is None else str(value) for value in (t.ggml, t.safetensors, t.bump_v3, t.bump_v4))
        ggml, st, v3, v4 = cells
        words = "".join(f"{of[t.name]:<18}" for of in engines.values())
        lines.append(
            f"  {t.name:<12}{t.block:>6}{t.size:>7}{ggml:>6}  {st:<12}{v3:>8}{v4:>8}           {words}".rstrip()
        )
    lines += ["", "bump 5, refused in one layer, by --engine"]
    lines += [f"  {release:<8} {circuit or 'all others':<12} {what}" for release, circuit, what in table_of_mixes()]
    lines += ["", "bump 5 by family: the types of matrices that were run, by --engine"]
    for name, (template, runs) in table_of_families().items():
        lines.append(f"  {name:<10} as {template}")
        lines += [f"    {release:<8} {what}" for release, what in runs.items()]
    print_report_lines(lines, settings_of(context))
