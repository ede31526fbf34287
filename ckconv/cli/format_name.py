"""The words that flags take: of a format, and any others, in any case and by the names that other tools have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

from ckconv.formats import ALIASES, named, names


class Word(click.Choice[str]):
    """Parameter type: a word of a list, or its alias, in any case.

    Args:
        aliases: what other tools call it -> the word.
    """

    def __init__(self, words: Iterable[str], aliases: Mapping[str, str] | None = None) -> None:
        super().__init__([*words], case_sensitive=False)
        self._aliases = aliases or {}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The word as the table has it."""
        return super().convert(self._aliases.get(str(value).lower(), value), param, ctx)


class FormatName(Word):
    """A format, by its name or by another one that people have for it."""

    def __init__(self) -> None:
        super().__init__([*names(), *ALIASES])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Its name."""
        return named(super().convert(value, param, ctx))
