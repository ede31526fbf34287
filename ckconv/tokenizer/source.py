"""A source's tokenizer, of any format: entries, special tokens, template."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckconv.core.lazy import NamedTuple
from ckconv.core.metadata import SETTINGS, TOKENIZER, as_read, tokenizer_root
from ckconv.core.tensors import MetadataKind, TensorIndex
from ckconv.errors import InputError, missing_package
from ckconv.system import limit_process
from ckconv.tokenizer.vocabulary import (
    SPECIAL,
    Inexact,
    content_of,
    encodable,
    equal_tokens,
    gguf_entries,
    huggingface_entries,
    value_in,
)

if TYPE_CHECKING:
    from subprocess import CompletedProcess

_MODEL_KEY = "tokenizer.ggml.model"
_TOKENS = "tokenizer.ggml.tokens"

#: Roles of tokens that the manifest and templates name.
_ROLES_OF_TOKENS = ("eos", "bos", "unk", "pad")

#: The manifest's key -> GGUF's, after ``tokenizer.ggml.``, and the type that its value has.
_GGUF_SPECIAL: dict[str, tuple[str, type]] = {
    **{f"{role}_token_id": (SPECIAL[role], int) for role in _ROLES_OF_TOKENS},
    **{key: (key, bool) for key in ("add_bos_token", "add_eos_token", "add_space_prefix")},
    "tokenizer_model": ("model", str),
}

#: Texts about a model that the manifest carries: its key, and GGUF's.
_GGUF_TEXTS: dict[str, str] = {
    "chat_template": "tokenizer.chat_template",
    "finetune": "general.finetune",
    "model_name": "general.name",
}


def gguf_keys(index: TensorIndex, vocab_size: int) -> Mapping[str, Any]:
    """The ``tokenizer.*`` keys of a source as a GGUF has them.

    None where it has no tokenizer that a GGUF can hold.

    Raises:
        InputError: ``tokenizer.json`` or ``tokenizer.model``, a file is malformed.
    """
    if index.metadata_kind is MetadataKind.TYPED:
        return index.metadata
    from ckconv.tokenizer.checkpoint import tokenizer_files
    from ckconv.tokenizer.gguf import keys_of_words

    try:
        return as_read(keys_of_words(tokenizer_files(index), vocab_size).metadata)
    except Inexact:
        return {}


def tokenizer_of(index: TensorIndex, keys: Mapping[str, Any], vocab_size: int) -> dict[str, bytes] | None:
    """Tokenizer entries of a source: slot name -> content, else ``None``.

    ``None`` where it has no tokenizer that fits.

    Args:
        keys: as :func:`gguf_keys` says; without words in them, those of a ``tokenizer.json`` are taken as they are.

    Raises:
        InputError: ``tokenizer.json``, the file is malformed.
        UnsupportedError: as :func:`ckconv.tokenizer.vocabulary.tokenizer_entries`.
    """
    if _MODEL_KEY in keys:
        return gguf_entries(keys, vocab_size)
    document = _beside(index, TOKENIZER)
    if document is None:
        return None
    from ckconv.tokenizer.checkpoint import added_tokens, tokenizer_files, words_of_document

    added = None
    with suppress(Inexact):
        found = added_tokens(tokenizer_files(index), words_of_document(document))
        added = {token.content: token.number for token in found.values()}
    return huggingface_entries(document, vocab_size, added)


def special_tokens_of(index: TensorIndex, keys: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Ids and switches of special tokens, under the manifest's names.

    Args:
        keys: as :func:`gguf_keys` says, where that is known; without words in them, the documents are asked.
    """
    keys = index.metadata if keys is None and index.metadata_kind is MetadataKind.TYPED else keys or {}
    if _MODEL_KEY in keys or index.metadata_kind is MetadataKind.TYPED:
        values = {ours: value_in(keys, f"tokenizer.ggml.{name}") for ours, (name, _) in _GGUF_SPECIAL.items()}
        return {
            key: encodable(value) if isinstance(value, str) else value
            for key, value in values.items()
            if type(value) is _GGUF_SPECIAL[key][1]
        }
    special: dict[str, Any] = {}
    for key in (f"{role}_token_id" for role in _ROLES_OF_TOKENS):
        value = index.metadata.get(key)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, int) and not isinstance(value, bool):
            special[key] = value
    settings = settings_of(index)
    switches = {key: settings.get(key) for key in ("add_bos_token", "add_eos_token")}
    # The engine's runner turns text into the letters of bytes only where it is told so.
    bytewise = {"tokenizer_model": "gpt2"} if _is_byte_level(_beside(index, TOKENIZER) or {}) else {}
    return {**special, **{key: value for key, value in switches.items() if isinstance(value, bool)}, **bytewise}


def _is_byte_level(document: Mapping[str, Any]) -> bool:
    """Whether letters of ``tokenizer.json`` stand for bytes."""
    parts = [document.get("pre_tokenizer"), document.get("decoder")]
    inner = [part.get(name) for part in parts if isinstance(part, dict) for name in ("pretokenizers", "decoders")]
    steps = [*parts, *(step for steps in inner if isinstance(steps, list) for step in steps)]
    return any(isinstance(step, dict) and step.get("type") == "ByteLevel" for step in steps)


def _token_count(index: TensorIndex) -> int:
    count = getattr(value_in(index.metadata, _TOKENS), "count", 0)
    return count if isinstance(count, int) else 0


def equal_tokens_of(index: TensorIndex, so: str = "llama.cpp does not load the file") -> str:
    """Which two tokens of a GGUF are one text, and what follows; or empty."""
    tokens = value_in(index.metadata, _TOKENS) if index.metadata_kind is MetadataKind.TYPED else None
    same = equal_tokens(tokens.each()) if tokens is not None and getattr(tokens, "type", "") == "str" else None
    return f"tokens {same[0]:,} and {same[1]:,} are both {same[2]!r}: {so}" if same else ""


def texts_of(index: TensorIndex) -> dict[str, str]:
    """Chat template and what the model calls itself, where the source says."""
    if index.metadata_kind is MetadataKind.TYPED:
        found = {key: value_in(index.metadata, name) for key, name in _GGUF_TEXTS.items()}
    else:
        found = {"chat_template": _default_template(index)}
    return {key: encodable(value) for key, value in found.items() if isinstance(value, str) and value.strip()}


def _default_template(index: TensorIndex) -> object:
    """The chat template that transformers takes where nobody names one."""
    if index.metadata_kind is not MetadataKind.DOCUMENT:
        return None
    from ckconv.tokenizer.checkpoint import chat_template

    template = chat_template(tokenizer_root(index), settings_of(index))
    named = template if isinstance(template, list) else []
    default = (item.get("template") for item in named if isinstance(item, dict) and item.get("name") == "default")
    return template if isinstance(template, str) else next(default, None)


def templates_of(index: TensorIndex) -> Iterator[tuple[str, str]]:
    """Name and text of every chat template.

    Raises:
        InputError: a document beside a checkpoint is malformed.
    """
    for key, item in index.metadata.items():
        value = getattr(item, "value", item)
        if "chat_template" in key and isinstance(value, str):
            yield key, value
    if index.metadata_kind is MetadataKind.DOCUMENT:
        from ckconv.tokenizer.checkpoint import chat_template

        found = chat_template(tokenizer_root(index), settings_of(index))
        for item in found if isinstance(found, list) else [{"template": found}]:
            if isinstance(item, dict) and isinstance(item.get("template"), str):
                yield f"chat_template {item.get('name', '')}".rstrip(), item["template"]


def special_texts(index: TensorIndex) -> dict[str, str]:
    """Texts of special tokens that the model names: ``bos_token``, ..."""
    found: dict[str, str] = {}
    if index.metadata_kind is MetadataKind.TYPED:
        tokens, count = value_in(index.metadata, _TOKENS), _token_count(index)
        for role in _ROLES_OF_TOKENS:
            number = value_in(index.metadata, f"tokenizer.ggml.{SPECIAL[role]}")
            if isinstance(number, int) and 0 <= number < count:
                found[f"{role}_token"] = tokens.head(number + 1)[-1]
    elif index.metadata_kind is MetadataKind.DOCUMENT:
        settings = settings_of(index)
        named = (f"{role}_token" for role in _ROLES_OF_TOKENS)
        found = {key: content_of(settings, key) for key in named if settings.get(key) is not None}
    return found


def settings_of(index: TensorIndex) -> Mapping[str, Any]:
    """``tokenizer_config.json`` of a checkpoint; empty where there is none.

    Raises:
        InputError: ``tokenizer.json``, it is malformed.
    """
    return _beside(index, SETTINGS) or {}


def _beside(index: TensorIndex, name: str) -> Mapping[str, Any] | None:
    """A JSON document of a checkpoint, if it is there."""
    if index.metadata_kind is not MetadataKind.DOCUMENT:
        return None
    return _read(tokenizer_root(index) / name)


def _read(path: Path) -> Mapping[str, Any] | None:
    from ckconv.io.json import Document, read_object

    try:
        return read_object(path, Document("tokenizer", TOKENIZER, TOKENIZER, 64 << 20)) if path.is_file() else None
    except InputError as error:
        error.code = TOKENIZER
        raise


# -- Chat templates: abilities by the text, samples in jinja2's sandbox ------------------------------------------------

# Sources: ``apply_chat_template`` and ``_compile_jinja_template`` of transformers (variables, ``trim_blocks``,
# ``lstrip_blocks``, ``raise_exception``, ``tojson``, ``strftime_now``).

_COMMENT = r"(?s)\{#.*?#\}"
_PROGRAM = r"(?s)\{[{%](.*?)[%}]\}"
_WORD = r"['\"]([a-z]+)['\"]"
_NAME = r"\b[a-zA-Z_]\w*\b"
_REFUSES_SYSTEM = r"raise_exception\(\s*(?:'[^']*[Ss]ystem|\"[^\"]*[Ss]ystem)"

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
_QUESTION = {"role": "user", "content": "How warm is it in Oslo?"}

#: Name of a sample -> what the template is given.
SAMPLES: Mapping[str, Mapping[str, Any]] = {
    "user": {"messages": [_QUESTION]},
    "system and user": {"messages": [{"role": "system", "content": "Be brief."}, _QUESTION]},
    "several turns": {"messages": [_QUESTION, {"role": "assistant", "content": "5 degrees."}, _QUESTION]},
    "tools": {"messages": [_QUESTION], "tools": [_TOOL]},
    "thinking": {"messages": [_QUESTION], "enable_thinking": True},
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
    code = " ".join(re.findall(_PROGRAM, re.sub(_COMMENT, "", template)))
    words, names = {*re.findall(_WORD, code)}, {*re.findall(_NAME, code)}
    # A template that writes message['role'] as it stands takes every role.
    generic = re.search(r"\{\{[^}]*(?:\[['\"]role['\"]\]|\.role\b)", template) is not None
    roles = (*(role for role in _ROLES if role in words), *(("any",) if generic else ()))
    system = ("system" in roles or generic) and re.search(_REFUSES_SYSTEM, code) is None
    thinking = tuple(sorted((names | words) & _THINKING))
    return Abilities(roles, system, bool(names & _TOOLS), thinking, "add_generation_prompt" in names)


class RenderedSample(NamedTuple):
    """A sample as the template writes it, or why it does not."""

    sample: str
    text: str
    error: str


def render(template: str, tokens: Mapping[str, str]) -> Iterator[RenderedSample]:
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
        command = [sys.executable, "-P", "-c", "from ckconv.tokenizer.source import main; main()"]
        try:
            done = run(command, input=given, capture_output=True, text=True, timeout=_SECONDS, check=False)
            found = json.loads(done.stdout) if done.returncode == 0 else {"error": _end(done)}
        except TimeoutExpired:
            found = {"error": f"it takes more than {_SECONDS} seconds"}
        yield RenderedSample(name, found.get("text", ""), found.get("error", ""))


def _end(done: CompletedProcess[str]) -> str:
    """Reason of a rendering process that ended without an answer."""
    last = done.stderr.strip().rpartition("\n")[2]
    if "MemoryError" in last:
        return "it takes too much memory"
    import signal

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
