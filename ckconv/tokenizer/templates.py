"""Chat templates: abilities by the text, samples in jinja2's sandbox.

Sources: ``apply_chat_template`` and ``_compile_jinja_template`` of transformers (variables, ``trim_blocks``,
``lstrip_blocks``, ``raise_exception``, ``tojson``, ``strftime_now``).
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ckconv.errors import missing_package
from ckconv.system import limit_process

if TYPE_CHECKING:
    from subprocess import CompletedProcess

_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
_CODE = re.compile(r"\{[{%](.*?)[%}]\}", re.DOTALL)
_WORD = re.compile(r"['\"]([a-z]+)['\"]")
_NAME = re.compile(r"\b[a-zA-Z_]\w*\b")
_REFUSES_SYSTEM = re.compile(r"raise_exception\(\s*(?:'[^']*[Ss]ystem|\"[^\"]*[Ss]ystem)")

#: Roles that messages have somewhere.
_ROLES = ("system", "developer", "user", "assistant", "tool", "ipython", "observation", "function")
_TOOLS = frozenset({"tools", "custom_tools", "builtin_tools", "xml_tools", "python_tools"})
_THINKING = frozenset({"enable_thinking", "thinking", "reasoning_content", "reasoning_effort", "thinking_budget"})

#: Seconds and bytes of memory that a template may take, and characters that it may make.
_SECONDS, _MEMORY, _MOST = 10, 1 << 30, 20_000

_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Say the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_ASKED = {"role": "user", "content": "How warm is it in Oslo?"}

#: Name of a sample -> what the template is given.
SAMPLES: Mapping[str, Mapping[str, Any]] = {
    "user": {"messages": [_ASKED]},
    "system and user": {"messages": [{"role": "system", "content": "Be brief."}, _ASKED]},
    "several turns": {"messages": [_ASKED, {"role": "assistant", "content": "5 degrees."}, _ASKED]},
    "tools": {"messages": [_ASKED], "tools": [_TOOL]},
    "thinking": {"messages": [_ASKED], "enable_thinking": True},
}


class Abilities(NamedTuple):
    """Abilities of a template, as far as the text says.

    Attributes:
        roles: those that it tells apart; ``any`` where it writes the role as it stands.
        system: it takes a system message; false where it refuses one or has no word for it.
        tools: it writes definitions of tools.
        thinking: the variables by which thinking is asked for or kept.
        prompt: it can end with the opening of the answer (``add_generation_prompt``).
    """

    roles: tuple[str, ...]
    system: bool
    tools: bool
    thinking: tuple[str, ...]
    prompt: bool

    def __str__(self) -> str:
        words = [f"roles {', '.join(self.roles)}" if self.roles else "one form for all roles"]
        words += [] if self.system else ["no system message"]
        words += ["tools" if self.tools else "no tools"]
        words += [f"thinking ({', '.join(self.thinking)})"] if self.thinking else []
        return "; ".join(words)


def abilities_of(template: str) -> Abilities:
    """Read what a chat template does off its text; nothing is executed."""
    code = " ".join(_CODE.findall(_COMMENT.sub("", template)))
    words, names = {*_WORD.findall(code)}, {*_NAME.findall(code)}
    # A template that writes message['role'] as it stands takes every role.
    generic = re.search(r"\{\{[^}]*(?:\[['\"]role['\"]\]|\.role\b)", template) is not None
    roles = (*(role for role in _ROLES if role in words), *(("any",) if generic else ()))
    system = ("system" in roles or generic) and _REFUSES_SYSTEM.search(code) is None
    thinking = tuple(sorted((names | words) & _THINKING))
    return Abilities(roles, system, bool(names & _TOOLS), thinking, "add_generation_prompt" in names)


class Rendered(NamedTuple):
    """A sample as the template writes it, or why it does not."""

    sample: str
    text: str
    error: str


def render(template: str, tokens: Mapping[str, str]) -> Iterator[Rendered]:
    """Render the samples in jinja2's sandbox.

    Each has a process of its own, with limits of time and memory.

    Args:
        tokens: ``bos_token`` and the like, by name.

    Raises:
        UnsupportedError: ``system.package``, jinja2 is not installed.
    """
    from importlib.util import find_spec
    from subprocess import TimeoutExpired, run

    if find_spec("jinja2") is None:
        raise missing_package("rendering a chat template", "jinja2")
    for name, variables in SAMPLES.items():
        given = json.dumps({"template": template, "variables": {**tokens, **variables, "add_generation_prompt": True}})
        # -P: no module of the working directory, which may be the model's, takes the place of a library's.
        command = [sys.executable, "-P", "-c", "from ckconv.tokenizer.templates import main; main()"]
        try:
            done = run(command, input=given, capture_output=True, text=True, timeout=_SECONDS, check=False)
            found = json.loads(done.stdout) if done.returncode == 0 else {"error": _end(done)}
        except TimeoutExpired:
            found = {"error": f"it takes more than {_SECONDS} seconds"}
        yield Rendered(name, found.get("text", ""), found.get("error", ""))


def _end(done: CompletedProcess[str]) -> str:
    """Reason of a rendering process that ended without an answer."""
    last = done.stderr.strip().rpartition("\n")[2]
    if "MemoryError" in last:
        return "it takes too much memory"
    if -done.returncode in (signal.SIGKILL, getattr(signal, "SIGXCPU", None)):
        return f"it takes more than {_SECONDS} seconds"
    return f"rendering ended with status {done.returncode}{f': {last}' if last else ''}"


def main() -> None:
    """Render what stdin says; the process that :func:`render` starts."""
    import datetime

    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    limit_process(_MEMORY, _SECONDS)

    class Generation(Extension):
        """Tag ``{% generation %}`` of transformers: the body as it stands."""

        tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Write JSON as the filter of transformers' chat_template_utils.py does."""
        form: dict[str, Any] = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
        return json.dumps(value, ensure_ascii=ensure_ascii, **form)

    given = json.load(sys.stdin)
    space = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    space.filters["tojson"] = tojson
    space.globals |= {"raise_exception": refuse, "strftime_now": datetime.datetime(2026, 1, 1).strftime}
    text = ""
    try:
        for part in space.from_string(given["template"]).generate(**given["variables"]):
            text += part
            if len(text) > _MOST:
                text = f"{text[:_MOST]}... (cut)"
                break
        found = {"text": text}
    except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        found = {"error": f"{error}"}
    sys.stdout.write(json.dumps(found))
