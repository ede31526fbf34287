"""Which modules of the base peft changes: the selections and patterns of an ``adapter_config.json``.

Sources, peft 0.21: ``check_target_module_exists`` of tuners/tuners_utils.py, ``get_pattern_key`` of utils/other.py,
``_check_target_module_feedforward`` of tuners/ia3/model.py. peft compiles most of these as regular expressions; here
they are matched without backtracking (:mod:`ckconv.formats.peft.patterns`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ckconv.errors import InputError, UnsupportedError, quoted
from ckconv.formats.peft.pattern_syntax import NoPattern, NotMatched
from ckconv.formats.peft.patterns import Pattern, Steps

#: Every character of such an expression stands for one character: for itself, or ``.`` for any one.
_PLAIN = re.compile(r"(?:[A-Za-z0-9_.\-]|\\\.)*", re.ASCII)

#: What peft looks for a layer's number with. Every dot is the end of at most one try, so nothing is read twice.
_ANY_LAYER = re.compile(r".*?\.[^.]*\.(\d+)\.")
_LAYER = r"(?:^|.*?\.){}\.(\d+)\."
#: Digits of a layer's number.
_MAX_DIGITS = 9


class ModuleKeys:
    """``rank_pattern`` and ``alpha_pattern``: the first key that is the end of a module's path decides.

    A key may be an expression. Those that are plain are found by their text, so that a key for every module of a large
    model costs little.

    Args:
        field: of the configuration, for errors.

    Raises:
        InputError: ``adapter.config``, a key is not a regular expression.
        UnsupportedError: ``adapter.unsupported``, a key is one that is not matched here.
    """

    def __init__(self, keys: Iterable[str], field: str, steps: Steps) -> None:
        self._steps = steps
        self._others: list[tuple[int, Pattern]] = []
        #: length of a text -> places where any character will do -> text -> the number of the first such key.
        self._plain: dict[int, dict[tuple[int, ...], dict[str, int]]] = {}
        for number, key in enumerate(keys):
            if _PLAIN.fullmatch(key):
                text = key.replace("\\.", "\n")
                dots = tuple(at for at, char in enumerate(text) if char == ".")
                alike = self._plain.setdefault(len(text), {}).setdefault(dots, {})
                alike.setdefault(text.replace("\n", "."), number)
                continue
            self._others.append((number, _pattern(key, field, steps, r"(.*\.)?({})$")))

    def first(self, module: str) -> int | None:
        """The number of the first key that names the module, ``None`` if no key does."""
        if "\n" in module:
            return None
        best = min((number for end in _ends(module) for number in self._named(end)), default=None)
        for number, pattern in self._others:
            if best is not None and number > best:
                break
            if pattern.matches(module):
                return number
        return best

    def _named(self, end: str) -> Iterator[int]:
        """Plain keys that match this text."""
        for dots, keys in self._plain.get(len(end), {}).items():
            self._steps.take(1 + len(dots))
            letters = list(end)
            for at in dots:
                letters[at] = "."
            number = keys.get("".join(letters))
            if number is not None:
                yield number


class Selection:
    """The modules that peft puts a layer of its own around when it loads the adapter.

    Args:
        document: the configuration, whose fields have the types that they should have.

    Raises:
        InputError, UnsupportedError: as :class:`ModuleKeys`.
    """

    def __init__(self, document: Mapping[str, Any], steps: Steps) -> None:
        self._steps = steps
        self._excluded = _Names(document, "exclude_modules", steps)
        saved: list[str] = document.get("modules_to_save") or []
        self._saved = [_pattern(name, "modules_to_save", steps, r"(^|.*\.){}($|\..*)") for name in saved]
        targets = document.get("target_modules")
        self._all = targets is None or targets == "all-linear"
        self._targets = _Names(document, "target_modules", steps)
        self._feedforward = _Names(document, "feedforward_modules", steps)
        layers = document.get("layers_to_transform")
        self._layers = None if layers is None or layers == [] else layers
        patterns = document.get("layers_pattern") or []
        patterns = [patterns] if isinstance(patterns, str) else patterns
        self._of_layer = [_layer(name, steps) for name in patterns]

    def holds(self, module: str) -> bool:
        """The module is one of them."""
        if self._excluded.name(module) or any(pattern.matches(module) for pattern in self._saved):
            return False
        if self._all or self._targets.is_whole(module):
            return True
        return self._targets.name(module) and (self._targets.expression or self._in_layers(module))

    def feedforward(self, module: str) -> bool:
        """IA3 multiplies the module's inputs, not its outputs."""
        return self._feedforward.name(module, any_end=True)

    def _in_layers(self, module: str) -> bool:
        if self._layers is None:
            return True
        self._steps.take(len(self._of_layer) + 1)
        tried = (pattern.match(module) for pattern in self._of_layer or (_ANY_LAYER,))
        found = next((match[1] for match in tried if match), None)
        if found is None or len(found) > _MAX_DIGITS:
            return False
        return int(found) == self._layers if isinstance(self._layers, int) else int(found) in self._layers


class _Names:
    """A field that is a list of ends of paths, or an expression for a whole path."""

    def __init__(self, document: Mapping[str, Any], field: str, steps: Steps) -> None:
        names = document.get(field) or []
        self.expression = isinstance(names, str)
        self._pattern = _pattern(names, field, steps) if isinstance(names, str) else None
        self._names = frozenset([] if isinstance(names, str) else names)

    def is_whole(self, module: str) -> bool:
        """The path itself is in the list."""
        return module in self._names

    def name(self, module: str, *, any_end: bool = False) -> bool:
        """The expression matches the path, or an end of it is in the list: one behind a dot, or any."""
        if self._pattern is not None:
            return self._pattern.fully_matches(module)
        if any_end:
            return any(module[at:] in self._names for at in range(len(module) + 1))
        return any(end in self._names for end in _ends(module))


def _ends(module: str) -> Iterator[str]:
    """The path, and what comes after each of its dots."""
    yield module
    for at, char in enumerate(module):
        if char == ".":
            yield module[at + 1 :]


def _pattern(text: str, field: str, steps: Steps, around: str = "{}") -> Pattern:
    """An expression, put into the one that peft puts it into. It has to be one by itself."""
    try:
        alone = Pattern(text, steps)
        return alone if around == "{}" else Pattern(around.format(text), steps)
    except NoPattern as error:
        message = f"{quoted(text)} of {field} is not a regular expression: {error}"
        raise InputError("adapter.config", message, path=steps.path) from None
    except NotMatched as error:
        message = f"{quoted(text)} of {field} is an expression that ckconv does not match: {error}"
        raise UnsupportedError("adapter.unsupported", message, path=steps.path) from None


def _layer(name: str, steps: Steps) -> re.Pattern[str]:
    """An expression that finds the number of a layer; only a plain name is put into it."""
    _pattern(name, "layers_pattern", steps)
    if not _PLAIN.fullmatch(name):
        message = f"{quoted(name)} of layers_pattern is more than a name, which ckconv does not match"
        raise UnsupportedError("adapter.unsupported", message, path=steps.path)
    return re.compile(_LAYER.format(name))
