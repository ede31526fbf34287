"""What a checkpoint says around its words: special tokens, what ends a text, what is put around one, chat templates.

Sources: ``SpecialVocab`` of gguf-py; ``llama_vocab::impl::load`` of llama.cpp's ``src/llama-vocab.cpp`` for the tokens
that it finds by their text; ``from_pretrained`` of transformers 5, which takes what is put around a text from
``tokenizer.json`` alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ckconv.core.metadata import Value, array, scalar
from ckconv.tokenizer.added import content_of
from ckconv.tokenizer.files import LeftOut, TokenizerFiles
from ckconv.tokenizer.vocabulary import ENDS_BY_TEXT, FOUND_AS, SPECIAL

_TEMPLATE_NAME = re.compile(r"[a-z0-9_]{1,64}")


def _word(settings: Mapping[str, Any], name: str) -> str:
    """BERT's kin call what they put around a text by other names."""
    other = {"bos": "cls", "eos": "sep"}.get(name, name)
    return content_of(settings, f"{name}_token") or content_of(settings, f"{other}_token")


def ended(files: TokenizerFiles, ids: Mapping[str, int]) -> tuple[TokenizerFiles, tuple[str, ...]]:
    """With the token for the end that the template puts behind a text, and a note.

    llama.cpp has one token for the end of a text and for what it puts behind one; gguf-py takes that of the template
    (``SpecialVocab._try_load_from_tokenizer_json``). Both have to be ends to llama.cpp by their text, so that a text
    ends after either, and a chat template that writes ``eos_token`` means the other.
    """
    own = _word(files.settings, "eos")
    try:
        _, last = _around((files.tokenizer or {}).get("post_processor"))
    except LeftOut:
        return files, ()
    if (
        not last
        or not own
        or last == own
        or not {last, own} <= ENDS_BY_TEXT & ids.keys()
        or "eos_token" in str(files.chat_template)
    ):
        return files, ()
    note = (
        f"llama.cpp has {last!r} for eos_token, as tokenizer.json appends it to a text; a text also ends after {own!r}"
    )
    return files._replace(settings={**files.settings, "eos_token": last}), (note,)


def special_ids(
    files: TokenizerFiles, ids: Mapping[str, int], own: Mapping[str, int], vocab_size: int
) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Ids by the words of the settings, else by ``config.json``, else the model's ``own``; and notes."""
    found: dict[str, int] = {}
    for name in SPECIAL:
        word = _word(files.settings, name)
        said = files.config.get(f"{name}_token_id")
        said = said[0] if isinstance(said, list) and said else said
        said = said if isinstance(said, int) and not isinstance(said, bool) else own.get(name, -1)
        number = ids.get(word, said) if word else said
        if 0 <= number < vocab_size:
            found[name] = number
    made = {f"tokenizer.ggml.{SPECIAL[name]}": scalar("u32", number) for name, number in found.items()}
    more, left = _other_ends(files, ids, found.get("eos"), vocab_size)
    notes = []
    if left:
        named = ", ".join(map(str, left[:5]))
        notes.append(
            f"generation ends after token {named} too, and a GGUF has no place for more than three such tokens"
        )
    ends = {*_numbers(files.generation.get("eos_token_id")), *(value for value in found.values())}
    apart = [n for n in _numbers(files.config.get("eos_token_id")) if n not in ends]
    if apart and files.generation.get("eos_token_id") is not None:
        named = ", ".join(map(str, apart[:5]))
        notes.append(f"config.json ends a text after token {named} too; generation_config.json does not, and counts")
    return made | more, tuple(notes)


def _numbers(said: object) -> list[int]:
    return [number for number in (said if isinstance(said, list) else [said]) if type(number) is int]


def _other_ends(
    files: TokenizerFiles, ids: Mapping[str, int], end: int | None, vocab_size: int
) -> tuple[dict[str, Value], list[int]]:
    """Keys for the tokens that end a text besides ``eos`` and those that llama.cpp finds; and those without a key.

    ``generation_config.json`` has the first word, as in transformers.
    """
    said = files.generation.get("eos_token_id")
    said = files.config.get("eos_token_id") if said is None else said
    found = {end, *(ids[text] for text in ENDS_BY_TEXT & ids.keys())}
    numbers = [n for n in _numbers(said) if 0 <= n < vocab_size]
    wanted = [number for number in dict.fromkeys(numbers) if number not in found]
    # A key takes the place of the token that llama.cpp would find by its text, so a free one comes first.
    keys = sorted(FOUND_AS, key=lambda key: not FOUND_AS[key].isdisjoint(ids))
    return {f"tokenizer.ggml.{key}": scalar("u32", number) for key, number in zip(keys, wanted, strict=False)}, wanted[
        len(keys) :
    ]


def put_around(files: TokenizerFiles, *, unigram: bool = False) -> tuple[bool, bool, tuple[str, ...]]:
    """Whether a beginning and an end are put around a text, and notes.

    Args:
        unigram: the tokenizer's class is T5's or XLM-R's, which put an end behind a text unless a file says otherwise.

    Raises:
        LeftOut: there is more to it.
    """
    settings = files.settings
    bos, eos = (settings.get(f"add_{what}_token") for what in ("bos", "eos"))
    of_settings = (bos is True if unigram and not files.moved else bos is not False, bool(unigram or eos is True), ())
    if files.tokenizer is None:
        return of_settings
    try:
        first, last = _template(files.tokenizer.get("post_processor"), settings)
    except LeftOut:
        if files.model is None:
            raise
        return of_settings  # what llama.cpp's converter takes beside a tokenizer.model
    notes = tuple(
        f"tokenizer_config.json says add_{what}_token = {str(asked).lower()}, tokenizer.json puts "
        f"{f'{token!r}' if token else 'no such token'} around a text, which is what counts"
        for what, token in (("bos", first), ("eos", last))
        if isinstance(asked := settings.get(f"add_{what}_token"), bool) and asked != bool(token)
    )
    return bool(first), bool(last), notes


def _template(processor: object, settings: Mapping[str, Any]) -> tuple[str, str]:
    """The tokens that a post-processor puts before and after a text: those that the settings name."""
    first, last = _around(processor)
    for what, token in (("bos", first), ("eos", last)):
        if token and token != _word(settings, what):
            raise LeftOut(f"it puts {token!r} around a text, which is not its {what}_token (tokenizer.json)")
    return first, last


def _around(processor: object) -> tuple[str, str]:
    """The tokens that a post-processor puts before and after a text."""
    first = last = ""
    members: list[object] = [processor] if isinstance(processor, dict) else []
    if isinstance(processor, dict) and processor.get("type") == "Sequence":
        inner = processor.get("processors")
        members = inner if isinstance(inner, list) else [None]
    for member in members:
        member = member if isinstance(member, dict) else {}
        kind = member.get("type")
        if kind == "ByteLevel":
            continue
        if kind in ("BertProcessing", "RobertaProcessing"):
            pairs = [pair for key in ("cls", "sep") if isinstance(pair := member.get(key), list) and pair]
            if len(pairs) == 2 and all(isinstance(pair[0], str) for pair in pairs):
                first, last = (pair[0] for pair in pairs)
                continue
        if kind != "TemplateProcessing":
            raise LeftOut(f"its post-processor is {kind!r} (tokenizer.json)")
        first, last = _ends(member.get("single"))
    return first, last


def _ends(single: object) -> tuple[str, str]:
    """The special tokens before and after the text; empty where there is none."""
    words: list[str] = []
    for part in single if isinstance(single, list) else ():
        special = part.get("SpecialToken") if isinstance(part, dict) else None
        words.append(str(special.get("id")) if isinstance(special, dict) else "")
    if words.count("") != 1 or len(words) - words.index("") > 2 or words.index("") > 1:
        raise LeftOut("its template puts more around a text than a beginning and an end (tokenizer.json)")
    at = words.index("")
    return (words[0] if at else ""), (words[-1] if at < len(words) - 1 else "")


def chat_templates(template: object) -> tuple[dict[str, Value], tuple[str, ...]]:
    """One template, or the default one and others by name (``SpecialVocab.add_to_gguf``); and notes."""
    if isinstance(template, str):
        return {"tokenizer.chat_template": scalar("str", _printable(template))}, ()
    made: dict[str, Value] = {}
    others: list[str] = []
    lost: list[str] = []
    for item in template if isinstance(template, list) else ():
        name, text = (item.get("name"), item.get("template")) if isinstance(item, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(text, str) or not _TEMPLATE_NAME.fullmatch(name):
            lost.append(repr(name))
        elif name == "default":
            made["tokenizer.chat_template"] = scalar("str", _printable(text))
        elif name not in others:
            others.append(name)
            made[f"tokenizer.chat_template.{name}"] = scalar("str", _printable(text))
    notes = (f"a GGUF has no place for the chat template {', '.join(lost[:3])}",) if lost else ()
    return ({"tokenizer.chat_templates": array("str", others), **made} if others else made), notes


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
