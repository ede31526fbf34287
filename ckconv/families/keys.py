"""Role of each configuration and metadata key for its readers.

A key is a parameter, harmless, or a modifier with its neutral values; one that is none of these nobody is known to
read: a report names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from ckconv.core.named import NamedTuple
from ckconv.families.expressions import Expression


def full_key(architecture: str, name: str) -> str:
    """Metadata key behind its architecture, unless it starts with ``/``."""
    return name.removeprefix("/") if name.startswith("/") else f"{architecture}.{name}"


class Kind(Enum):
    """Role of a key.

    PARAMETER: a hyper-parameter, or what a rule of its own looks at; carried.
    HARMLESS: nothing that is computed depends on it.
    MODIFIER: changes what is computed, unless it has a neutral value; refused where it cannot be carried.
    """

    PARAMETER = "parameter"
    HARMLESS = "harmless"
    MODIFIER = "modifier"


#: Who loads a checkpoint: what computes a model of Hugging Face's format, and what one of MLX's.
TRANSFORMERS, MLX_LM = "transformers", "mlx-lm"
BOTH = (TRANSFORMERS, MLX_LM)

#: Format of a checkpoint -> who loads it.
CONSUMERS: Mapping[str, str] = {"safetensors": TRANSFORMERS, "mlx": MLX_LM}

#: Word of a family file -> who reads a key.
READERS: Mapping[str, tuple[str, ...]] = {"transformers": (TRANSFORMERS,), "mlx_lm": (MLX_LM,), "both": BOTH}


class Key(NamedTuple):
    """One key.

    Attributes:
        readers: whose classes read it; another one computes the same whatever its value is.
        neutral: of a modifier, the values that change nothing; ``None`` also stands for a key that is not there.
        same_as: of a modifier, the parameters whose value changes nothing.
        written: of a modifier, a document that is made says its first neutral value.
    """

    name: str
    kind: Kind
    readers: tuple[str, ...] = BOTH
    neutral: tuple[object, ...] = ()
    same_as: Expression | None = None
    written: bool = False

    def is_neutral(self, value: object) -> bool:
        """The value changes nothing. ``true`` is not 1 here, and ``0.0`` is 0."""
        return any(
            value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in self.neutral
        )


#: Words of ``seen`` in place of a value: any, and none.
ANY, NONE = "any", "absent"


class Keys(NamedTuple):
    """The keys of one family, or of one type of RoPE's scaling, by name.

    Attributes:
        seen: key -> its values in the models that the file was made of, :data:`ANY` or :data:`NONE` among them; of a
            list, its items. Empty for a file that is not closed so.
    """

    name: str
    keys: Mapping[str, Key]
    seen: Mapping[str, Sequence[Any]] = {}

    def reads(self, name: str, consumer: str) -> bool:
        """The consumer's class looks at this key, or at the table that it is in."""
        key = self.keys.get(name, self.keys.get(name.partition(".")[0]))
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
        """Modifiers that only the reader of the output would notice."""
        for name in self.active(document, target):
            if source not in self.keys[name].readers:
                yield name

    def unseen(self, said: Mapping[str, Any]) -> Iterator[str]:
        """Values unlike those of all models of the file: "key = value, ..."."""
        if not self.seen:
            return
        for name in sorted({*said, *self.seen}):
            key = self.keys.get(name, self.keys.get(name.partition(".")[0]))
            value, values = said.get(name), self.seen.get(name, (NONE,))
            if key is not None and key.kind is Kind.HARMLESS:
                continue
            items = value if isinstance(value, list) and value else [NONE if value is None else value]
            if not all(_among(item, values) for item in items):
                meant = ", ".join("nothing" if one == NONE else repr(one) for one in values)
                found = "nothing" if value is None else repr(value)
                yield f"{name} = {found}, where {self.name} was seen with {meant},"

    def unknown(self, document: Iterable[str]) -> list[str]:
        """Keys that are in no row."""
        return sorted(name for name in document if name not in self.keys)


def _among(value: Any, values: Sequence[Any]) -> bool:
    if ANY in values and value != NONE:
        return True
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values)
