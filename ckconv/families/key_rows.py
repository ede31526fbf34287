"""Sections ``[config]`` and ``[metadata]``: keys without a parameter.

``carried`` (key -> ``transformers``, ``mlx_lm`` or ``both``) are keys that a rule of a reader looks at; ``modifiers``
(key -> a neutral value, a list of them, or a table of ``neutral``, ``only`` and ``written``) change what is computed
but for their neutral values: a text in ``[metadata]`` is an expression over the parameters; ``harmless`` change
nothing. ``seen`` (key -> values) closes the section: no other key, and no other value. ``[config]`` has further tables:
``written`` (key -> constant of every document that is made), ``rope`` and ``window``, and ``unknown``: whether a key
without a row is ``refused`` (what a user's file is taken for) or ``noted``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ckconv.core.named import NamedTuple
from ckconv.families.fields import Fields, listed, texts
from ckconv.families.functions import PERIOD
from ckconv.families.keys import READERS, Key, Keys, Kind
from ckconv.families.merge import FOLDER
from ckconv.families.parameter_rows import Parameter

_SECTION = frozenset({"carried", "modifiers", "harmless"})


#: Where a class of mlx-lm looks for RoPE.
MLX_ROPE = ("top", "rope_parameters", "only_rope_parameters", "base", "nowhere")


class RopeStyle(NamedTuple):
    """How a configuration says RoPE.

    Attributes:
        by_layer: ``rope_parameters`` has a table for each kind of layer (``full_attention``, ``sliding_attention``).
        types: the only types of scaling that transformers' class takes, if it does not take all.
        mlx_lm: where mlx-lm's class looks for the scaling: at the "top" of the document, in "rope_parameters" too,
            there and nowhere else ("only_rope_parameters"), or "nowhere"; "base": for nothing but the base, in both.
        default: the table that transformers' class takes where there is no ``rope_parameters``.
        unscaled: the scaling that scales nothing, for a class of mlx-lm that wants one.
        alpha: a key of this name stretches the base, whatever the length of a sequence.
        whole: mlx-lm's class turns whole heads, whatever part is said.
        noted: keys of a scaling that engines compute without, as notes of their rows say (``same_if``).
        part: who reads -> the part of a head that its class turns where nothing is said; 1 for others.
        theta, share: what the classes call the base and that part at the top of the document.
        counted: what they call the number of elements of a head that they turn, "" where none has a key for it.
    """

    by_layer: bool = False
    types: tuple[str, ...] = ()
    mlx_lm: str = "top"
    default: Mapping[str, Any] = {}
    unscaled: Mapping[str, Any] = {}
    part: Mapping[str, float] = {}
    theta: str = "rope_theta"
    share: str = "partial_rotary_factor"
    counted: str = ""
    alpha: bool = False
    noted: tuple[str, ...] = ()
    whole: bool = False


class WindowStyle(NamedTuple):
    """Rules for sliding layers, by library; "" for no window.

    Attributes:
        family: whose class is written for a model that has a window, where it is not the family's own.
        period: every such layer has full attention, where the document does not say which.
    """

    transformers: str = ""
    mlx_lm: str = ""
    family: str = ""
    period: int = PERIOD


#: Rules of windows: every layer slides; where a switch is on, every layer or those that are listed; those that are
#: listed, else a period; those that are listed, else the default of ``layer_types``.
WINDOWS = ("", "all", "switch", "switch_by_layer", "listed", "period", "by_layer")


class Document(NamedTuple):
    """The section ``[config]``.

    Attributes:
        keys: every key of a document.
        written: constants of a document that is made.
        within: what the class takes for keys that a table within another document leaves out, as released ones do.
        closed: a key that no row has is refused, in metadata too; else a note names it.
    """

    keys: Keys
    written: Mapping[str, Any] = {}
    within: Mapping[str, Any] = {}
    rope: RopeStyle = RopeStyle()
    window: WindowStyle = WindowStyle()
    closed: bool = False


class KeyRows(Fields):
    """Reads the two sections."""

    def document(self, name: str, row: Mapping[str, Any], parameters: Iterable[Parameter]) -> Document:
        """``[config]``."""
        self.where = "config"
        self.fields(row, _SECTION | {"written", "within", "rope", "window", "unknown", "seen"})
        cells = [cell for parameter in parameters for cell in parameter.key_cells("hf") if not cell.unread]
        readers: dict[str, set[str]] = {}
        for cell in cells:
            readers.setdefault(cell.head, set()).update(cell.readers)
        own = {key: tuple(who for who in READERS["both"] if who in found) for key, found in readers.items()}
        if row.get("rope", {}).get("mlx_lm") in ("base", "nowhere"):
            own["rope_scaling"] = READERS["transformers"]
        return Document(
            Keys(name, self._keys(row, own, expressions=False), self._seen(row)),
            dict(row.get("written", {})),
            dict(row.get("within", {})),
            self._rope(row.get("rope", {})),
            self._window(row.get("window", {})),
            self.word(
                row, "unknown", {"refused": True, "noted": False}, "noted" if self.path.parent == FOLDER else "refused"
            ),
        )

    def metadata(self, name: str, row: Mapping[str, Any], parameters: Iterable[Parameter]) -> Keys:
        """``[metadata]``; a derived parameter's key must equal its value."""
        self.where = "metadata"
        self.fields(row, _SECTION | {"seen"})
        read = ((p, cell) for p in parameters for cell in p.key_cells("gguf") if not cell.unread)
        cells = [(p, cell) for p, cell in read if not cell.key.startswith("/")]  # others are the tokenizer's
        found = self._keys(row, {cell.key: READERS["both"] for _, cell in cells}, expressions=True)
        derived = {cell.key: Key(cell.key, Kind.MODIFIER, same_as=p.value) for p, cell in cells if p.value and cell.key}
        return Keys(name, {**found, **derived}, self._seen(row))

    def _seen(self, row: Mapping[str, Any]) -> dict[str, list[Any]]:
        return {key: listed(values) for key, values in row.get("seen", {}).items()}

    def _keys(self, row: Mapping[str, Any], own: Mapping[str, tuple[str, ...]], *, expressions: bool) -> dict[str, Key]:
        found = {key: Key(key, Kind.PARAMETER, readers) for key, readers in own.items()}
        for key, who in row.get("carried", {}).items():
            if who not in READERS:
                raise self.fault(f"carried.{key} is {who!r} (known: {', '.join(READERS)})")
            also = found[key].readers if key in found else ()
            found[key] = Key(
                key, Kind.PARAMETER, tuple(one for one in READERS["both"] if one in (*also, *READERS[who]))
            )
        for key, value in row.get("modifiers", {}).items():
            self._only_once(found, key)
            found[key] = self._modifier(key, value, expressions)
        for key in row.get("harmless", []):
            self._only_once(found, key)
            found[key] = Key(key, Kind.HARMLESS)
        return found

    def _only_once(self, found: Mapping[str, Key], key: str) -> None:
        if key in found:
            raise self.fault(f"{key} is given two meanings")

    def _modifier(self, key: str, value: Any, expressions: bool) -> Key:
        if expressions and isinstance(value, str):
            return Key(key, Kind.MODIFIER, same_as=self.expression(value))
        table = value if isinstance(value, dict) else {"neutral": value}
        self.fields(table, frozenset({"neutral", "only", "written"}))
        readers = READERS["both"] if expressions else self.word(table, "only", READERS, "transformers")
        neutral = tuple(listed(table.get("neutral", [])))
        return Key(
            key,
            Kind.MODIFIER,
            readers,
            neutral if expressions else (*neutral, None),
            written=bool(table.get("written")),
        )

    def _rope(self, row: Mapping[str, Any]) -> RopeStyle:
        self.where = "config.rope"
        self.fields(row, frozenset(RopeStyle._fields))
        place = self.word(row, "mlx_lm", dict(zip(MLX_ROPE, MLX_ROPE, strict=True)), "top")
        part = {READERS[who][0]: number for who, number in row.get("part", {}).items() if who in READERS}
        default, unscaled = (row.get(name, {}) for name in ("default", "unscaled"))
        theta, share = (row.get(name, RopeStyle._field_defaults[name]) for name in ("theta", "share"))
        types, alpha, noted = texts(row.get("types")), bool(row.get("alpha")), texts(row.get("noted"))
        counted = str(row.get("counted", ""))
        own, whole = bool(row.get("by_layer")), bool(row.get("whole"))
        return RopeStyle(own, types, place, default, unscaled, part, theta, share, counted, alpha, noted, whole)

    def _window(self, row: Mapping[str, Any]) -> WindowStyle:
        self.where = "config.window"
        self.fields(row, frozenset({"transformers", "mlx_lm", "family", "period"}))
        known = {word: word for word in WINDOWS}
        one, other = (self.word(row, who, known, "") for who in ("transformers", "mlx_lm"))
        return WindowStyle(one, other, str(row.get("family", "")), row.get("period", PERIOD))
