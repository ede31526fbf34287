"""README.md and docs/: examples print what they say, links lead somewhere, and nothing is undocumented."""

from __future__ import annotations

import doctest
import inspect
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

import ckconv as library
from ckconv import errors
from ckconv.cli.commands import VERBS, main
from ckconv.core.options import OPTIONS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DOCS = {path.name: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{name}" for name in DOCS)])
def test_examples_print_what_they_say(page: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/readme.py", "--check", ROOT / page],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_examples_of_the_library_are_typed(tmp_path: Path) -> None:
    """With the cache of `make check`, where there is one."""
    text = (ROOT / "docs/library.md").read_text()
    blocks = re.findall(r"^```pycon\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    lines = [example.source for block in blocks for example in doctest.DocTestParser().get_examples(block)]
    (tmp_path / "recipes.py").write_text("".join(lines))
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file",
        ROOT / "pyproject.toml",
        tmp_path / "recipes.py",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, len(lines) > 30) == (0, True), done.stdout


def test_the_page_about_the_code_names_files_that_there_are() -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)+\w+\.py)`", DOCS["architecture.md"]))
    assert len(named) > 30
    assert sorted(path for path in named if not any((ROOT / top / path).is_file() for top in ("ckconv", "."))) == []


def test_the_page_about_the_code_has_two_pages() -> None:
    lines = DOCS["architecture.md"].splitlines()
    assert (len(lines) <= 110, [line for line in lines if len(line) > 110]) == (True, [])


def test_the_readme_opens_with_two_commands() -> None:
    block = re.search(r"^```sh\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    assert block is not None
    commands = block[1].splitlines()
    assert len(commands) == 2
    assert "ckconv convert" in commands[0]
    assert "pytest" in commands[1]


def test_the_readme_installs_what_the_project_names() -> None:
    """One line, from the repository of pyproject.toml; nothing says that a package of ckconv's name is on an index."""
    home = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Homepage"]
    block = re.search(r"^```\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    assert block is not None
    assert block[1].split("#")[0].strip() == f"uv tool install git+{home}"
    texts = [
        path.read_text()
        for path in [*(ROOT / "ckconv").rglob("*.py"), ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    ]
    assert not [text for text in texts if re.search(r"pip install '?ckconv|ckconv\[", text)]


def test_commands_of_the_readmes_table_parse() -> None:
    commands = re.findall(r"`(ckconv [^`]+)`", README.partition("## From a checkout")[0])
    assert len(commands) > 10
    for line in commands:
        _, verb, *arguments = shlex.split(line.replace("\\|", "|"))
        command = main.get_command(click.Context(main), verb)
        assert command is not None
        assert command.make_context(verb, arguments, parent=click.Context(main)).params


def test_the_readme_is_short_and_leads_to_every_page() -> None:
    assert README.count("\n") <= 150
    assert not [name for name in DOCS if f"](docs/{name})" not in README]


def anchors(text: str) -> set[str]:
    """Names of a page's headings, as GitHub makes them."""
    without_code = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", without_code, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        other = page.parent / name if name else page
        if not other.exists() or (anchor and anchor not in anchors(other.read_text())):
            dead.append(target)
    assert not dead


def sections() -> dict[str, str]:
    """Verb -> its section of docs/cli.md; the flags that every verb has are under ``every``."""
    found = {}
    for part in DOCS["cli.md"].split("\n## ")[1:]:
        heading, _, text = part.partition("\n")
        words = heading.split()
        if words[0] == "ckconv":
            found[words[1]] = text
        elif heading == "Flags of every command":
            found["every"] = text
    return found


def flags(command: click.Command) -> set[str]:
    return {flag for parameter in command.params if isinstance(parameter, click.Option) for flag in parameter.opts}


def test_every_command_has_its_section() -> None:
    assert set(sections()) == {*VERBS, "every"}


@pytest.mark.parametrize("verb", VERBS)
def test_the_flags_described_are_the_flags_that_there_are(verb: str) -> None:
    command = main.get_command(click.Context(main), verb)
    assert command is not None
    described = {
        name: set(re.findall(r"`(-[-\w]+)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)))
        for name, text in sections().items()
    }
    everywhere = described["every"] - {"--version", "-h", "--help"}
    assert not flags(command) - described[verb] - everywhere
    assert everywhere <= flags(command)
    tables = set(re.findall(r"`(--?[-\w]+)", "\n".join(re.findall(r"^\| (`.+?) \|", sections()[verb], re.MULTILINE))))
    assert not tables - flags(command)


def test_the_first_lines_name_every_command() -> None:
    block = re.search(r"^```\n(.*?)^```$", DOCS["cli.md"], re.DOTALL | re.MULTILINE)
    assert block is not None
    assert set(re.findall(r"^ckconv (\w+)", block[1], re.MULTILINE)) == set(VERBS)


#: Flags of the command line that the library has under other names, or as attributes of what it returns.
_ELSEWHERE = {
    "--from": {"convert": "source_format", "inspect": "format"},
    "--adapter": {"convert": "adapters", "verify": "adapters"},
    "--no-verify": {"convert": "verify"},
    "--cluster": {"convert": "executor"},
    "--family": {"diff": "families", "inspect": "families"},
}


@pytest.mark.parametrize("verb", ["convert", "verify", "diff", "inspect"])
def test_what_only_the_command_line_has_is_listed(verb: str) -> None:
    function = getattr(library, "open_model" if verb == "inspect" else verb)
    has = set(inspect.signature(function).parameters)
    options = {option.flag for option in OPTIONS} if "options" in has else set()
    command = main.get_command(click.Context(main), verb)
    assert command is not None
    of_every = set(re.findall(r"`(-[-\w]+)", sections()["every"])) | {"--tensors", "--metadata"}
    lacking = {
        flag
        for flag in flags(command) - options - of_every
        if flag.startswith("--") and _ELSEWHERE.get(flag, {}).get(verb, flag[2:].replace("-", "_")) not in has
    }
    row = re.search(rf"^\| `{verb}` \| (.*) \|$", DOCS["library.md"], re.MULTILINE)
    assert row is not None
    assert set(re.findall(r"`(--[a-z-]+)`", row[1])) == lacking


def test_the_manual_page_is_what_the_parser_says() -> None:
    """``scripts/manpage.py`` writes it anew."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/manpage.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_exit_status_is_described() -> None:
    classes = [errors.UsageError, errors.InputError, errors.UnsupportedError, errors.VerifyError, errors.OutputError]
    for number in [0, *(kind.exit_code for kind in classes), errors.CkconvError.exit_code, "130, 143"]:
        assert re.search(rf"^\| {number}", DOCS["errors.md"], re.MULTILINE), number


#: Codes without a dot; everything else that looks like one has it.
SINGLE = {"usage", "system", "internal", "interrupted"}


def test_the_error_codes_described_are_the_error_codes_that_there_are() -> None:
    """A code is a promise: scripts branch on it."""
    source = "".join(path.read_text() for path in (ROOT / "ckconv").rglob("*.py"))
    described = set(
        re.findall(r"`([a-z]+(?:\.[a-z][a-z-]+)?)`", "".join(re.findall(r"^\| (`.*?) \|", DOCS["errors.md"], re.M)))
    )
    groups = "|".join(sorted({code.partition(".")[0] for code in described if "." in code}))
    # Names of tensors, files and metadata keys that look like codes.
    names = {"adapter.gguf", "adapter.type", "model.gguf", "model.safetensors", "tokenizer.tiktoken", "output.bias"}
    names |= {"gguf.match", "output.weight", "tensor.name", "tokenizer.jsonl"}
    codes = set(re.findall(rf'"((?:{groups})\.[a-z][a-z-]+)"', source)) - names
    assert len(codes) > 100
    assert codes | SINGLE == described


def test_the_arguments_and_errors_of_the_library_are_described() -> None:
    import inspect

    import ckconv

    page = DOCS["library.md"]
    arguments = inspect.signature(ckconv.convert).parameters.keys() - {"source", "target"}
    classes = {kind.__name__ for kind in errors.CkconvError.__subclasses__()}
    assert [name for name in sorted(arguments | classes) if not re.search(rf"`(ckconv\.)?{name}`", page)] == ["options"]
