"""What options may be. The command line offers nothing else; a program may say anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ckconv.core.tensors import Tensor
from ckconv.errors import UsageError
from ckconv.plan.steps import Options

_CHOICES: Mapping[str, tuple[object, ...]] = {
    "dtype": ("engine", "keep", "f32", "f16", "bf16"),
    "rope_layout": ("engine", "source", "split", "interleaved"),
    "bump_version": (0, 3, 4, 5),
    "dtype_codes": ("v3", "v4"),
    "names": ("hf", "canonical", "gguf", "max"),
    "tie": ("", "tie", "untie"),
}

#: Options that hold any number of values, each of which is one of these; of a word or a glob where there are none.
_LISTS: Mapping[str, tuple[str, ...]] = {"fuse": ("qkv", "gate-up"), "drop": (), "decode": (), "drop_meta": ()}

#: Option -> its flag, where that is not its name.
_FLAGS: Mapping[str, str] = {"max_shard_bytes": "--max-shard-size"}

#: Option -> the least number that it may be, which is what it is by default, and one more than the largest.
_NUMBERS: Mapping[str, tuple[int, int]] = {"context": (0, (1 << 30) + 1), "max_shard_bytes": (0, 1 << 63)}


def check_values(options: Options) -> None:
    """Refuse what no option can be.

    Raises:
        UsageError: ``usage``.
    """
    for name, choices in _CHOICES.items():
        value = getattr(options, name)
        if value not in choices:
            raise _fault(name, value, f"one of {', '.join(map(repr, choices))}")
    for name, words in _LISTS.items():
        value = getattr(options, name)
        # A lone word would be taken for its letters.
        if not isinstance(value, (tuple, list)) or not all(isinstance(item, str) for item in value):
            raise _fault(name, value, "a tuple of words")
        for item in value:
            if words and item not in words:
                raise _fault(name, item, f"{' or '.join(map(repr, words))}")
    for name, (least, end) in _NUMBERS.items():
        value = getattr(options, name)
        if not isinstance(value, int) or not least <= value < end:
            raise _fault(name, value, f"a whole number from {least:,} to {end - 1:,}")
    for pair in options.set_meta:
        if not isinstance(pair, tuple) or [type(text) for text in pair] != [str, str]:
            raise _fault("set_meta", pair, "pairs of a key and a value, both words")


def stores_float32(to: str, options: Options, tensor: Tensor) -> bool:
    """The target ``to`` holds a tensor of floats as float32, whatever the type of the source is."""
    if to == "bump" and (options.dtype == "engine" or len(tensor.shape) == 1):
        return True
    if to == "gguf" and options.dtype != "keep" and len(tensor.shape) == 1:
        return True
    return options.dtype == "f32"


@dataclass(frozen=True, slots=True)
class Asked:
    """An option that is not what it is by default."""

    name: str
    value: Any

    @property
    def flag(self) -> str:
        """As the command line has it."""
        return f"--{self.value}" if self.name == "tie" else _FLAGS.get(self.name, f"--{self.name.replace('_', '-')}")


def asked(options: Options, names: Iterable[str]) -> Iterator[Asked]:
    """The options among ``names`` that somebody asked for, in their order."""
    defaults = Options()
    for name in names:
        value = getattr(options, name)
        if value != getattr(defaults, name):
            yield Asked(name, value)


def _fault(name: str, value: object, expected: str) -> UsageError:
    return UsageError("usage", f"{name} is {repr(value)[:80]}, {expected} expected")
