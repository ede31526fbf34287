"""What a key of a ``config.json`` is to those who read it: the row type of the tables in this package.

A family's table has a row for every key that its classes read. One that is in no table is nobody's: a report names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ckconv.core.key_kinds import Kind

#: Who loads a checkpoint: what computes a model of Hugging Face's format, and what one of MLX's.
TRANSFORMERS, MLX_LM = "transformers", "mlx-lm"
BOTH = (TRANSFORMERS, MLX_LM)

#: Format of a checkpoint -> who loads it.
CONSUMERS: Mapping[str, str] = {"safetensors": TRANSFORMERS, "mlx": MLX_LM}


@dataclass(frozen=True, slots=True)
class Key:
    """One key.

    Attributes:
        readers: whose classes read it; another one computes the same whatever its value is.
        neutral: of a modifier, the values that change nothing; ``None`` also stands for a key that is not there. The
            first is what says so where the key has to be written.
        source: where the fact was read.
    """

    name: str
    kind: Kind
    readers: tuple[str, ...]
    neutral: tuple[object, ...] = ()
    source: str = ""

    def is_neutral(self, value: object) -> bool:
        """The value changes nothing. ``true`` is not 1 here, and ``0.0`` is 0."""
        return any(
            value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in self.neutral
        )


Rows = tuple[Key, ...]


def parameters(*names: str, readers: tuple[str, ...] = BOTH, source: str = "") -> Rows:
    """Keys that are carried."""
    return tuple(Key(name, Kind.PARAMETER, readers, source=source) for name in names)


def harmless(*names: str, source: str) -> Rows:
    """Keys that change nothing."""
    return tuple(Key(name, Kind.HARMLESS, BOTH, source=source) for name in names)


def modifier(name: str, *neutral: object, readers: tuple[str, ...] = (TRANSFORMERS,), source: str) -> Rows:
    """A key that changes what ``readers`` compute, but for its neutral values and where it is absent."""
    return (Key(name, Kind.MODIFIER, readers, (*neutral, None), source),)


@dataclass(frozen=True, slots=True)
class Table:
    """The keys of one ``model_type``, by name."""

    model_type: str
    keys: Mapping[str, Key]

    def reads(self, name: str, consumer: str) -> bool:
        """The consumer's class looks at this key."""
        key = self.keys.get(name)
        return key is not None and key.kind is not Kind.HARMLESS and consumer in key.readers

    def idle(self, name: str, value: object) -> bool:
        """Nothing is changed by this key: nobody reads it, or not with this value."""
        key = self.keys.get(name)
        return value is None or key is None or key.kind is Kind.HARMLESS or key.is_neutral(value)

    def active(self, document: Mapping[str, Any], consumer: str) -> Iterator[str]:
        """Modifiers of the document that change what this consumer computes."""
        for key in self.keys.values():
            read = key.kind is Kind.MODIFIER and consumer in key.readers and key.name in document
            if read and not key.is_neutral(document[key.name]):
                yield key.name

    def misread(self, document: Mapping[str, Any], source: str, target: str) -> Iterator[str]:
        """Modifiers of the document that mean nothing to the one who reads the source, and something to the other."""
        for name in self.active(document, target):
            if source not in self.keys[name].readers:
                yield name

    def unknown(self, document: Iterable[str]) -> list[str]:
        """Keys that are in no row."""
        return sorted(name for name in document if name not in self.keys)


def table(model_type: str, *rows: Rows) -> Table:
    """A table of rows; a later row of the same name takes the place of an earlier one."""
    return Table(model_type, {key.name: key for group in rows for key in group})
