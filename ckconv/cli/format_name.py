"""The flags that name a format."""

from __future__ import annotations

from typing import Any

import click

from ckconv.formats import ALIASES, named, names


class FormatName(click.Choice[str]):
    """A format, by its name or by another one that people have for it."""

    def __init__(self) -> None:
        super().__init__([*names(), *ALIASES])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Its name."""
        return named(super().convert(value, param, ctx))
