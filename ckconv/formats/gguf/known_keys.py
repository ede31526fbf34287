"""Keys of a GGUF that readers know, by type, and short names.

The names are those that people give them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from ckconv.core.metadata import MadeArray, Value, as_read
from ckconv.errors import UsageError, quoted
from ckconv.families.catalog import families_of_gguf

KNOWN = Path(__file__).with_name("known_keys.toml")

TOKENS, MODEL = "tokenizer.ggml.tokens", "tokenizer.ggml.model"

#: Lists with an item for each token.
PER_TOKEN = (TOKENS, "tokenizer.ggml.scores", "tokenizer.ggml.token_type")

_TEMPLATE = "tokenizer.chat_template"
_PREFIX, _ID = "tokenizer.ggml.", "_token_id"

#: Role of a token, in the words of transformers -> what a GGUF calls it, spelled as there.
_ROLES = {
    **{role: role for role in ("bos", "eos", "eot", "eom", "mask", "fim_pre", "fim_suf", "fim_mid", "fim_pad")},
    "unk": "unknown",
    "pad": "padding",
    "sep": "seperator",
    "cls": "cls",
}
_NAMES = {f"{ours}{end}": f"{_PREFIX}{theirs}{_ID}" for ours, theirs in _ROLES.items() for end in ("_token", _ID)}


@cache
def _by_type() -> Mapping[str, tuple[str, ...]]:
    return {kind: tuple(keys.split()) for kind, keys in tomllib.loads(KNOWN.read_text("utf-8")).items()}


def _known(architecture: str) -> dict[str, str]:
    """Key, or glob of keys, -> type, of an architecture."""
    families = families_of_gguf(architecture)
    cells = (cell for family in families for row in family.parameters.values() for cell in row.key_cells("gguf"))
    rows = {f"{architecture}.{cell.key}": cell.type for cell in cells if not cell.key.startswith("/")}
    return {**rows, **{key: kind for kind, keys in _by_type().items() for key in keys}}


def type_of(key: str, architecture: str) -> str:
    """The type of a key; empty where no table has it."""
    found = _known(architecture)
    return found.get(key) or next((kind for glob, kind in found.items() if fnmatchcase(key, glob)), "")


def unknown_note(key: str, architecture: str) -> str:
    """A note about a key that no known reader reads; may be empty.

    Empty for an unknown architecture, too.
    """
    families = families_of_gguf(architecture)
    if type_of(key, architecture) or (not families and key.startswith(f"{architecture}.")):
        return ""
    read = [name for family in families for name in family.metadata.keys]
    if key in {f"{architecture}.{name}" for name in read}:
        return ""
    names = [*_known(architecture), *(f"{architecture}.{name}" for name in read)]
    from difflib import get_close_matches

    near = get_close_matches(key, names, n=1, cutoff=0.8)
    return f"no known reader looks at {key}{f'; did you mean {near[0]}?' if near else ''}"


def resolved(metadata: Mapping[str, Value], pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Pairs with full keys, and ids for tokens named by their text.

    Raises:
        UsageError: ``usage.meta``, the vocabulary has no such token.
    """
    return tuple(_resolved(metadata, key, text) for key, text in pairs)


def _resolved(metadata: Mapping[str, Value], short: str, text: str) -> tuple[str, str]:
    key = short if short in metadata else _TEMPLATE if short == "chat_template" else _NAMES.get(short, short)
    if not (key.startswith(_PREFIX) and key.endswith(_ID)) or text.lstrip("-").isdecimal():
        return key, text
    if text.partition(":")[0] in _by_type():  # u32:7
        return key, text
    if TOKENS not in metadata:
        raise UsageError("usage.meta", f"--set-meta {key}: the file has no tokens, so {quoted(text)} names none")
    tokens = list(_tokens(metadata))
    if text not in tokens:
        from difflib import get_close_matches

        near = get_close_matches(text, tokens, n=1)
        raise UsageError(
            "usage.meta",
            f"--set-meta {short}: no token is {quoted(text)}",
            hint=f"there is {quoted(near[0])}" if near else "give a token's text or its id",
        )
    return key, str(tokens.index(text))


def _tokens(metadata: Mapping[str, Value]) -> Iterator[str]:
    found = as_read({TOKENS: metadata[TOKENS]})[TOKENS].value
    return found.each() if isinstance(found, MadeArray) else iter(())
