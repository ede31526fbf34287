"""Write docs/ckconv.1, the manual page, from the parser; --check only says whether it is current."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ckconv.cli.commands import VERBS, main  # noqa: E402
from ckconv.cli.settings import GROUPS, Sections  # noqa: E402
from ckconv.core import __version__  # noqa: E402

PAGE = ROOT / "docs/ckconv.1"

_EXIT = {
    "0": "done and, unless told otherwise, verified; diff: the same model",
    "1": "a bug in ckconv",
    "2": "wrong use",
    "3": "the input is malformed or truncated",
    "4": "the input is fine but unsupported, or the conversion would lose something",
    "5": "the verification failed, or diff found differences",
    "6": "the output was refused or could not be written",
    "130, 143": "interrupted; temporary files are removed",
}

_VARIABLES = {
    "CKCONV_FLAG": "the default of --FLAG; CKCONV_CONFIG names a file of defaults instead of ckconv.toml",
    "FORCE_COLOR": "color in a pipe, too",
    "NO_COLOR": "no color",
    "PAGER": "shows long listings of inspect on a terminal",
    "SOURCE_DATE_EPOCH": "the date that a bump 5 file carries; without it, none",
}

_FILES = {
    "ckconv.toml": "defaults of flags, of the directory or one above it; [preset.NAME] those of --preset NAME",
    "pyproject.toml": "the same in its table [tool.ckconv]",
    "DST.source.zip": "what restores the source of a bump file byte for byte, or of a GGUF with --source-record",
    "DST.ckconv.json, DST.sha256": "the record and the checksums of an output, with --record and --checksums",
}

_SEE_ALSO = "sha256sum(1), unzip(1)"


def escaped(text: str) -> str:
    """Text that troff prints as it stands."""
    text = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


def term(name: str, meaning: str) -> list[str]:
    """A term and, indented, what it means."""
    return [".TP", f".B {escaped(name)}", escaped(meaning)]


def paragraphs(text: str) -> list[str]:
    """Paragraphs that blank lines part."""
    return [line for part in text.split("\n\n") for line in (".PP", escaped(part))]


def options(command: click.Command) -> list[str]:
    """The flags of a command, in the order of its help."""
    found = [parameter for parameter in command.params if isinstance(parameter, click.Option) and not parameter.hidden]
    order = [flag for flags in GROUPS.values() for flag in flags]
    known = {flag: at for at, flag in enumerate(order)}
    if isinstance(command, Sections):
        found.sort(key=lambda option: min(known.get(flag, len(order)) for flag in option.opts))
    lines = []
    for option in found:
        takes = "" if option.is_flag else " " + option.make_metavar(click.Context(command))
        default = option.default if option.show_default and isinstance(option.default, str) else None
        meaning = (option.help or "") + (f" [default: {default}]" if default else "")
        lines += term(", ".join(sorted(option.opts, key=len)) + takes, meaning)
    return lines


def page() -> str:
    """The whole page."""
    context = click.Context(main, info_name="ckconv")
    lines = [
        f'.TH CKCONV 1 "" "ckconv {__version__}" "User Commands"',
        ".SH NAME",
        "ckconv \\- convert model weights between GGUF, safetensors, MLX, PEFT and bump files, exactly",
        ".SH SYNOPSIS",
    ]
    commands = [(verb, command) for verb in VERBS if (command := main.get_command(context, verb))]
    for verb, command in commands:
        usage = " ".join(command.collect_usage_pieces(click.Context(command, info_name=verb)))
        lines += [f".B ckconv {verb}", escaped(usage), ".br"]
    lines += [".SH DESCRIPTION", *paragraphs(main.help or "")[1:], ".SH COMMANDS"]
    for verb, command in commands:
        lines += [f".SS ckconv {verb}", *paragraphs(command.help or "")[1:], *options(command)]
        examples = command.examples if isinstance(command, Sections) else {}
        for line, meaning in examples.items():
            lines += [".PP", escaped(f"{meaning[0].upper()}{meaning[1:]}:"), ".EX", f"    {escaped(line)}", ".EE"]
    for title, terms in (("EXIT STATUS", _EXIT), ("ENVIRONMENT", _VARIABLES), ("FILES", _FILES)):
        lines += [f".SH {title}", *(line for item in terms.items() for line in term(*item))]
    lines += [".SH SEE ALSO", escaped(_SEE_ALSO)]
    return "\n".join(lines) + "\n"


def command_line() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if the page is not current")
    if parser.parse_args().check:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page():
            return 0
        print("docs/ckconv.1 is not what the parser says: run scripts/manpage.py", file=sys.stderr)
        return 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(command_line())
