"""What a model card says of a model: the front matter of a README.md, or the ``general.*`` keys of typed metadata.

Sources: "Model card metadata" of the hub's documentation (``modelcard.md`` of huggingface/hub-docs); ``Keys.General``
of gguf-py, and ``Metadata`` there, which has base models and datasets as ``organization``, ``name`` and ``repo_url``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

#: Between these lines stands what is YAML.
_FRONT_MATTER = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)

#: Where the hub has a model, and a dataset.
_HUB = "https://huggingface.co/"
_DATASETS = f"{_HUB}datasets/"

#: Models and datasets that a card names at most; more are no card.
_MOST = 64


class Card(NamedTuple):
    """What is said of a model. Models and datasets are ``ORGANIZATION/NAME``, or a name alone."""

    license: str = ""
    license_name: str = ""
    license_link: str = ""
    base_models: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()


#: Field -> its key in the front matter, and behind ``general.``.
_TEXTS: Mapping[str, tuple[str, str]] = {
    "license": ("license", "license"),
    "license_name": ("license_name", "license.name"),
    "license_link": ("license_link", "license.link"),
}
_LISTS: Mapping[str, tuple[str, str]] = {"languages": ("language", "languages"), "tags": ("tags", "tags")}
#: The same of lists whose items have keys of their own, and where the hub has them.
_NAMED: Mapping[str, tuple[str, str, str]] = {
    "base_models": ("base_model", "base_model", _HUB),
    "datasets": ("datasets", "dataset", _DATASETS),
}


def card_of_text(text: str) -> Card:
    """The card of a README.md; an empty one where it has no front matter, or none that is YAML."""
    front = _FRONT_MATTER.match(text)
    if front is None:
        return Card()
    import yaml

    try:
        said = yaml.load(front[1], Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError, ValueError):
        return Card()
    if not isinstance(said, dict):
        return Card()
    found: dict[str, Any] = {field: _text(said.get(key)) for field, (key, _) in _TEXTS.items()}
    found |= {field: _texts(said.get(key)) for field, (key, *_) in (*_LISTS.items(), *_NAMED.items())}
    return Card(**found)


def text_of_card(card: Card, more: Mapping[str, str]) -> str:
    """A README.md that says it; empty where there is nothing to say.

    Args:
        more: keys that stand at the end (``library_name``).
    """
    said: dict[str, Any] = {key: getattr(card, field) for field, (key, _) in _TEXTS.items()}
    lists = {key: [*getattr(card, field)] for field, (key, *_) in (*_NAMED.items(), *_LISTS.items())}
    said = {key: value for key, value in (said | lists).items() if value}
    if not said:
        return ""
    import yaml

    return f"---\n{yaml.safe_dump({**said, **more}, sort_keys=False, allow_unicode=True)}---\n"


def card_of_keys(keys: Mapping[str, Any]) -> Card:
    """The card of ``general.*`` keys, whose arrays are lists."""
    found: dict[str, Any] = {field: _text(keys.get(f"general.{key}")) for field, (_, key) in _TEXTS.items()}
    found |= {field: _texts(keys.get(f"general.{key}")) for field, (_, key) in _LISTS.items()}
    found |= {field: (*_items(keys, f"general.{key}", place),) for field, (_, key, place) in _NAMED.items()}
    return Card(**found)


def keys_of_card(card: Card) -> dict[str, str | int | list[str]]:
    """The ``general.*`` keys that say it, as llama.cpp's converter has them."""
    keys: dict[str, str | int | list[str]] = {}
    for field, (_, key) in _TEXTS.items():
        keys[f"general.{key}"] = getattr(card, field)
    for field, (_, key, place) in _NAMED.items():
        items = getattr(card, field)
        keys[f"general.{key}.count"] = len(items)
        for number, item in enumerate(items):
            organization, _, name = item.rpartition("/")
            start = f"general.{key}.{number}"
            keys |= {f"{start}.name": _title(name), f"{start}.organization": _title(organization)}
            keys[f"{start}.repo_url"] = f"{place}{item}" if organization else ""
    for field, (_, key) in _LISTS.items():
        keys[f"general.{key}"] = [*getattr(card, field)]
    return {key: value for key, value in keys.items() if value}


def _items(keys: Mapping[str, Any], start: str, place: str) -> Iterator[str]:
    """The hub's name where a key has it, which the title of it does not say again."""
    count = keys.get(f"{start}.count")
    for number in range(min(count, _MOST) if isinstance(count, int) else 0):
        said = {key: _text(keys.get(f"{start}.{number}.{key}")) for key in ("repo_url", "organization", "name")}
        url = said["repo_url"].rstrip("/")
        if url.startswith(place) and url.removeprefix(place).count("/") == 1:
            yield url.removeprefix(place)
        elif said["name"]:
            yield said["name"]


def _title(word: str) -> str:
    """``smol-lm2 v2`` -> ``Smol Lm2 v2``: words of lower case are capitalised, versions and numbers are not."""
    return " ".join(
        part.title() if part.islower() and not re.match(r"^(v\d+(?:\.\d+)*|\d.*)$", part) else part
        for part in word.replace("-", " ").split()
    )


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _texts(value: Any) -> tuple[str, ...]:
    """Texts, one alone as a list of it. YAML takes the code of Norwegian for a truth value."""
    values = value if isinstance(value, list) else [value]
    values = ["no" if item is False else item for item in values]
    return tuple(dict.fromkeys(item.strip() for item in values[:_MOST] if isinstance(item, str) and item.strip()))
