"""Rows of parameters of a learned file, and the values that close it.

What a pair does not tell is closed at the value that it has: switches, words, numbers that are 0 or 1, and whatever
no rule of a shipped family explains. Another pair, or a person, opens it.
"""

from __future__ import annotations

import json
import re
from collections import ChainMap
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ckconv.core.metadata import text_key
from ckconv.families import axes as shapes, expressions
from ckconv.families.keys import ANY, NONE, TABLES_OF_ROPE, Kind, Parameter, ParameterCell
from ckconv.families.merge import is_unread, listed
from ckconv.families.schema import Family
from ckconv.learning.pair import FAILS, Guess, Pair
from ckconv.learning.rows import Rows

#: What a number is compared as: the metadata holds float32.
_NEAR = 1e-6

#: From here on two keys of one number are no coincidence, though every pair has the same.
_TELLING = 32

#: Words of a key that say nothing of what it is.
_PLAIN = {"", "num", "n", "count", "attention", "length", "size"}

#: Words of ``config.json`` -> those that the metadata has for the same.
_ALIKE = {"experts": "expert", "moe": "expert", "epsilon": "eps", "heads": "head", "layers": "block"}

#: Parameters that no file goes without a default of.
_BASES = ("rope_theta", "local_theta")

#: How rows read the part of a head that RoPE turns.
_SHARE = "int(it * head_dim)"


#: Layers of the model for which rules are told apart.
_DEEP = 64


class Question(NamedTuple):
    """Choice that the pairs leave open, and the file's answer so far."""

    key: str
    text: str


class Keys:
    """Explains every key of the metadata and of ``config.json``.

    Attributes:
        parameters, without, modifiers, harmless, seen, metadata: of the file.
        questions: what was chosen without evidence.
        explained: metadata keys that rules make of ``config.json``.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        base: Family,
        families: Mapping[str, Family],
        rows: Rows,
        tables: Mapping[str, Mapping[str, Any]],
        confirmed: Mapping[str, str],
    ) -> None:
        self._pairs, self._base, self._families, self._tables = pairs, base, families, tables
        self._confirmed = confirmed
        self.parameters: dict[str, Any] = dict(rows.parameters)
        self.without: list[str] = []
        self.modifiers: dict[str, Any] = {}
        self.harmless: list[str] = [key for key, word in confirmed.items() if word == "harmless"]
        self.questions: list[Question] = []
        self.explained: set[str] = set()
        self._claimed: set[str] = set()
        self._tied: set[str] = set()
        self._given: set[str] = set()
        self._repeated: dict[str, int] = {}
        self._open: set[str] = set()
        self._guesses = [Guess(base, pair, "hf") for pair in pairs]
        self._others: dict[tuple[str, int], Guess] = {}
        self._foreign = rows.foreign
        for name, family in rows.foreign.items():
            self._adopt(self._families[family], name)
        for key in dict.fromkeys(key for pair in pairs for key in pair.keys):
            self._metadata(key)
        self._sized(rows.without)
        self._missing()
        self._alone()
        self._configuration()
        self.seen = self._seen()
        self.metadata = self._metadata_seen()

    def _with(self, key: str) -> list[tuple[int, Pair]]:
        return [(n, pair) for n, pair in enumerate(self._pairs) if key in pair.keys]

    def _keyed(self, row: Parameter) -> list[ParameterCell]:
        return [cell for cell in row.key_cells("hf") if any(_has(pair, cell.key) for pair in self._pairs)]

    def _looked_at(self, row: Parameter) -> list[str]:
        """Keys of config.json that tell the parameter, fallbacks left out."""
        cells = self._keyed(row)
        return [cell.key for cell in [cell for cell in cells if not cell.instead] or cells]

    def _agrees(self, family: Family, name: str, key: str) -> bool:
        """Whether every file has, under the key, what config.json says."""
        for n, pair in self._with(key):
            if family is self._base:
                guess = self._guesses[n]
            else:
                guess = self._others.setdefault((family.name, n), Guess(family, pair, "hf"))
            cell = next(cell for cell in family.parameters[name].key_cells("gguf") if cell.key == key)
            try:
                value = guess[name]
                stored = guess.with_it(cell.write, value) if cell.write else value
            except FAILS:
                return False
            back = Guess(family, pair, "gguf")[name]
            if back is not None and not (cell.read or cell.write or same(value, back)):
                return False
            words = {word: own for own, word in cell.words.items()}
            stored = words.get(stored, stored) if isinstance(stored, str) else stored
            if stored is None or not same(stored, pair.keys[key]):
                return False
        return True

    def _metadata(self, key: str) -> None:
        owners, others = (_keyed_by(self._base, "gguf", key, alias=alias) for alias in (False, True))
        foreign = {name: self._families[family] for name, family in self._foreign.items()}
        adopted = {name: family for name, family in foreign.items() if name in _keyed_by(family, "gguf", key)}
        for name, family in adopted.items():
            if self._agrees(family, name, key):
                self._explain(family, name, key)
                return
        for name in owners:
            if self._agrees(self._base, name, key):
                self._explain(self._base, name, key)
                self._written(key, name, self._base, name)
                return
        if key == "vocab_size" and "vocabulary" in self._base.parameters:
            self._explain(self._base, "vocabulary", key)
            return
        owners = [*adopted, *owners]
        found = self._of_others(key, owners + others)
        if found is not None:
            family, name = found
            called = (*owners, *others, name)[0]
            if called in adopted:
                del self.parameters[called]
            self._adopt(family, name, called)
            self._explain(family, name, key)
            self._written(key, called, family, name)
            for n, pair in self._with(key):
                self._guesses[n].assume(called, Guess(family, pair, "hf")[name])
            return
        name = (*owners, *others, self._usual(key))[0]
        rule = self._rule(key)
        if rule:
            self.parameters[name] = {**self._cleared(name), "hf": [], "gguf": [self._typed(key)], "default": rule}
            self.explained.add(key)
            return
        self._by_value(key, name)
        for n, pair in self._with(key):
            self._guesses[n].assume(name, pair.keys[key])

    def _written(self, key: str, name: str, family: Family, other: str) -> None:
        """Add the key to a parameter that writes others: two keys of one number."""
        row = self.parameters.get(name)
        cells = row.get("gguf") if isinstance(row, dict) else None
        if cells is not None and not any(_key(cell).partition(":")[0] == key for cell in cells):
            raw = listed(self._tables[family.name]["parameters"][other]["gguf"])
            cells += [cell for cell in raw if _key(cell).partition(":")[0] == key][:1]

    def _typed(self, key: str) -> str:
        kind = self._with(key)[0][1].types[key]
        return key if kind == "u32" else f"{key}:{kind}"

    def _rule(self, key: str) -> str:
        """Default of some family's class for a missing key: ``4 * hidden``."""
        if any(_words(one) == _words(key) for one in self._pairs[0].flat):
            return ""
        for family in self._families.values():
            for row in family.parameters.values():
                expression = row.defaults.get("transformers") or row.value
                names = expression.names if expression else frozenset()
                fits = any(cell.key == key and not (cell.alias or cell.write) for cell in row.key_cells("gguf"))
                if fits and names and names <= self._base.parameters.keys() - {row.name} and expression is not None:
                    try:
                        if all(same(expression.value(self._guesses[n]), pair.keys[key]) for n, pair in self._with(key)):
                            return str(expression)
                    except FAILS:
                        continue
        return ""

    def _explain(self, family: Family, name: str, key: str) -> None:
        """Mark a key as made by a rule, and open the keys that the rule reads."""
        self.explained.add(key)
        row = family.parameters[name]
        rows, todo = {name: row}, [row]
        while todo:
            value = todo.pop().value
            for other in value.names if value else ():
                if other in family.parameters and other not in rows:
                    rows[other] = family.parameters[other]
                    todo.append(rows[other])
        for each in rows.values():
            self._claimed.update(cell.key for cell in self._keyed(each))
            self._open.update(self._looked_at(each))

    def _of_others(self, key: str, preferred: Sequence[str]) -> tuple[Family, str] | None:
        """A shipped family's row that says what every pair has."""
        best = None
        for family in self._families.values():
            for name in _keyed_by(family, "gguf", key, alias=False):
                keyed = self._keyed(family.parameters[name])
                if not keyed or any(self._taken(cell.key, name, preferred) for cell in keyed):
                    continue
                if self._agrees(family, name, key):
                    rank = (name not in preferred, len(json.dumps(self._tables[family.name]["parameters"].get(name))))
                    if best is None or rank < best[0]:
                        best = (rank, family, name)
        return best[1:] if best else None

    def _taken(self, key: str, name: str, preferred: Sequence[str]) -> bool:
        """Whether another parameter of the base reads the key of config.json."""
        return any(other not in (name, *preferred) for other in _keyed_by(self._base, "hf", key))

    def _usual(self, key: str) -> str:
        """Name that most families give the parameter of a metadata key."""
        names = [name for family in self._families.values() for name in _keyed_by(family, "gguf", key, alias=False)]
        return max(names, key=names.count) if names else re.sub(r"\W", "_", key)

    def _by_value(self, key: str, name: str) -> None:
        """Take the key of config.json with the same value, or a constant."""
        stated = self._with(key)
        value = stated[0][1].keys[key]
        type, typed = stated[0][1].types[key], self._typed(key)
        known = dict.fromkeys(one for _, pair in stated for one in pair.flat)
        alike = [one for one in known if all(same(pair.flat.get(one), pair.keys[key]) for _, pair in stated)]
        alike = [
            one for one in alike if not self._harmless(one) and self._free(one) and not self._says_another(one, key)
        ]
        if type != "f32":
            alike = [one for one in alike if not isinstance(stated[0][1].flat.get(one), float)]
        alike.sort(key=lambda one: (-len(_words(one) & _words(key)), one in self._claimed, len(one)))
        differs = len({json.dumps(pair.keys[key]) for _, pair in stated}) > 1
        telling = type not in ("bool", "str") and not isinstance(value, bool) and value not in (0, 1)
        related = [one for one in alike if _words(one) & _words(key)]
        free = [one for one in alike if one not in self._claimed]
        chosen = related or (alike if differs else free if telling and len(free) == 1 else [])
        if chosen and (differs or telling or _words(chosen[0]) == _words(key)):
            self.explained.add(key)
            readers = (other for other in _keyed_by(self._base, "hf", chosen[0]) if other != name)
            claimed = (other for other in self.parameters if other != name
                    and any(_key(cell) == chosen[0] for cell in self._own(other).get("hf", ())))  # fmt: skip
            holder = next(iter((*claimed, *(one for one in readers if self._stated(one)))), None)
            if holder is not None:
                self.parameters[name] = {"value": holder, "hf": [], "gguf": [typed]}
            else:
                if chosen[0].startswith("rope_parameters.") and name not in self._base.parameters:
                    name = f"rope_{chosen[0].rpartition('.')[2]}"  # the number of a scaling, by this name
                self.parameters[name] = {"hf": [chosen[0]], "gguf": [typed], **self._cleared(name)}
                if any(chosen[0] not in pair.flat for pair in self._pairs):
                    self.parameters[name]["optional"] = True
            self._claimed.add(chosen[0])
            if differs:
                self._open.add(chosen[0])
            elif len(alike) > 1 or not telling or not related:
                self._ask(
                    key,
                    f"{key} = {_shown(value)}: {' or '.join(alike[:4])}, or a constant? ({chosen[0]}, closed)",
                )
            else:
                self._open.add(chosen[0])
            return
        if differs:
            shown = ", ".join(_shown(pair.keys[key]) for _, pair in stated)
            self._ask(key, f"{key} = {shown}: no key of config.json says it")
            return
        constant = repr(value) if isinstance(value, str) else json.dumps(value).replace('"', "'")
        self.parameters[name] = {"value": constant, "hf": [], "gguf": [typed]}
        if name not in self._base.parameters:
            self.parameters[name].pop("hf")
        self._ask(key, f"{key} = {_shown(value)}: no key of config.json says it (taken: a constant)")

    def _stated(self, name: str) -> bool:
        """Whether the metadata of some pair has the parameter of the base."""
        cells = self._base.parameters[name].key_cells("gguf")
        return any(cell.key in pair.keys for cell in cells for pair in self._pairs)

    def pinned(self) -> bool:
        """Fix parameters that neither file says at the class's value."""
        changed = False
        for name, row in self._base.parameters.items():
            stated = self._stated(name) and "gguf" not in self._own(name)
            idle = not (row.value or self._keyed(row) or stated) and any(row.key_cells("hf"))
            own = self.parameters.get(name, {})
            free = isinstance(own, dict) and not (own.get("hf") or own.get("gguf") or "value" in own)
            constant = not any(default.names for default in row.defaults.values())
            if idle and free and constant and name not in (*_BASES, *self.without):
                value = self._guesses[0][name]
                if value is None or isinstance(value, bool | int | float | str):
                    self.parameters[name] = {"value": "null" if value is None else _text(value), "hf": [], "gguf": []}
                    changed = True
        return changed

    def _free(self, key: str) -> bool:
        """Whether the base has no rule for the key but a modifier."""
        row = self._base.document.keys.keys.get(key)
        return row is None or row.kind is Kind.MODIFIER or bool(_keyed_by(self._base, "hf", key))

    def _says_another(self, one: str, key: str) -> bool:
        """Whether a shipped family reads the key for another metadata key."""
        others = {
            cell.key
            for family in self._families.values()
            for name in _keyed_by(family, "hf", one)
            for cell in family.parameters[name].key_cells("gguf")
        }
        return key not in others and any(other in pair.keys for pair in self._pairs for other in others)

    def read(self, head: str) -> bool:
        """Whether some parameter or rule of RoPE reads a top-level key."""
        own = {_key(cell).partition(".")[0] for name in self.parameters for cell in self._own(name).get("hf", ())}
        base = {cell.head for row in self._base.parameters.values() for cell in row.key_cells("hf")}
        return head in {*own, *base, *TABLES_OF_ROPE}

    def only_read(self, key: str) -> bool:
        """Whether the base reads a key of config.json, and never writes it."""
        cells = [cell for row in self._base.parameters.values() for cell in row.key_cells("hf") if cell.key == key]
        return bool(cells) and all(cell.alias or cell.instead for cell in cells)

    def again(self, key: str) -> bool:
        """Take a metadata key by value, then as a constant beside the row."""
        tried = self._repeated.setdefault(key, 0)
        self._repeated[key] += 1
        if tried == 0:
            self._by_value(key, next(iter(self.writers(key)), self._usual(key)))
        elif tried == 1 and len({json.dumps(pair.keys[key]) for _, pair in self._with(key)}) == 1:
            for name in self.writers(key):
                own = {} if name in self._base.parameters else self._own(name)
                self.parameters[name] = {**own, "gguf": [{"key": key, "alias": True}]}
            value = _text(self._with(key)[0][1].keys[key])
            self.parameters[re.sub(r"\W", "_", key)] = {"value": value, "gguf": [self._typed(key)]}
        return tried < 2

    def only_in_some(self, key: str, name: str) -> Any:
        """Cell of a key that only some GGUFs have; ``None`` if nothing says which."""
        has = [key in pair.keys for pair in self._pairs]
        if any(has) == all(has):
            return None
        for family in self._families.values():
            row = family.parameters.get(name)
            for cell in row.key_cells("gguf") if row is not None else ():
                if (
                    cell.key == key
                    and cell.when is not None
                    and all(
                        same(self._stored(family, n, name, cell), pair.keys.get(key))
                        for n, pair in enumerate(self._pairs)
                    )
                ):
                    raw = self._tables[family.name]["parameters"][name]["gguf"]
                    return next(one for one in listed(raw) if _key(one).partition(":")[0] == key)
        row = self._base.parameters.get(name)
        if row and has == [any(_has(pair, cell.key) for cell in row.key_cells("hf")) for pair in self._pairs]:
            return {"key": self._typed(key), "when": f"'{name}' in stated"}
        return None

    def _stored(self, family: Family, number: int, name: str, cell: ParameterCell) -> Any:
        """Value that the cell of a family's parameter writes of config.json."""
        guess = self._others.setdefault((family.name, number), Guess(family, self._pairs[number], "hf"))
        try:
            value = guess[name]
            if value is None or (cell.when is not None and not guess.with_it(cell.when, value)):
                return None
            return guess.with_it(cell.write, value) if cell.write else value
        except FAILS:
            return None

    def writers(self, key: str) -> list[str]:
        """Rows of the file that have the metadata key."""
        return [name for name in self.parameters
                if any(_key(cell).partition(":")[0] == key for cell in self._own(name).get("gguf", ()))]  # fmt: skip

    def fixed(self, name: str, ours: Any, stored: Any) -> bool:
        """Fix a parameter that the two files are read to say differently."""
        row = self._base.parameters.get(name)
        if row is None or name in self._tied:
            return False
        self._tied.add(name)
        keyed = self._keyed(row)
        value = ours if keyed or stored is None else stored
        if not isinstance(value, bool | int | float | str | list | tuple):
            return False
        text = next((rule for cell in keyed if (rule := self._of_every_layer(cell.key))), _text(value))
        if keyed:
            self.parameters.setdefault(name, {})["gguf"] = [{"fixed": text, "else": f"no metadata says {name}"}]
        else:
            self.parameters[name] = {"value": text, "hf": [], "gguf": []}
        return True

    def written_as_read(self, key: str) -> bool:
        """Write a key under the name by which the base only reads."""
        for name in self._base.parameters:
            raw = self._tables[self._base.name]["parameters"].get(name)
            cells = raw.get("hf", []) if isinstance(raw, dict) else []
            named = [cell for cell in listed(cells) if _key(cell) == key]
            sized = any(cell.kind == "shape" for cell in self._base.parameters[name].cells.get("gguf", ()))
            stated = sized or self._stated(name)
            if named and name not in self._given and stated and "hf" not in self._own(name):
                self._given.add(name)
                others = [cell for cell in listed(cells) if _key(cell) != key and not _alias(cell)]
                there = [cell for cell in others if any(_has(pair, _key(cell)) for pair in self._pairs)]
                self.parameters[name] = {**self._own(name), "hf": [*there, _primary(named[0])]}
                return True
            if named and name not in self._given and (rule := self._of_every_layer(key)):
                self._given.add(name)
                self._follows(name, key, rule)
                return True
        return False

    def returned(self, key: str, value: Any) -> bool:
        """Write a key of config.json as found, not as the base makes it."""
        readers = _keyed_by(self._base, "hf", key)
        made = next((name for name in readers if self._base.parameters[name].value), "")
        if made and made not in self._given and all(value == pair.document.get(key) for pair in self._pairs):
            self._given.add(made)
            self.parameters[made] = {"value": _text(value), "hf": [key]}
            return True
        name = next(iter(readers), "")
        if name and name not in self._given:
            self._given.add(name)
            row = self.parameters.setdefault(name, {})
            if isinstance(row, dict) and any(self._base.parameters[name].key_cells("gguf")):
                row["hf"] = [key]
                return True
        rule = self._of_every_layer(key)
        if rule and self._own(name or key).get("value") != rule:
            self._follows(name or key, key, rule)
            return True
        if key in self.modifiers or "." in key or any(value != pair.document.get(key) for pair in self._pairs):
            return False
        if name:
            self.parameters[name] = {"value": _text(value), "hf": [], "gguf": []}
        self.modifiers[key] = {"neutral": [value], "written": True}
        self.seen[key] = value
        return True

    def _follows(self, name: str, key: str, rule: str) -> None:
        self.parameters[name] = {"value": rule, "hf": [key]} | ({"gguf": []} if name in self._base.parameters else {})

    def _of_every_layer(self, key: str) -> str:
        """Rule of shipped families for a list with an item a layer."""
        each = [pair.document.get(key) for pair in self._pairs]
        if not all(
            isinstance(value, list) and len(value) == pair.layers for value, pair in zip(each, self._pairs, strict=True)
        ):
            return ""
        found: dict[str, list[expressions.Expression]] = {}
        for family in self._families.values():
            for row in family.parameters.values():
                has_key = any(cell.key == key for cell in row.key_cells("hf"))
                for rule in (row.value, *row.defaults.values()) if has_key else ():
                    if rule is not None and rule.names <= self._base.parameters.keys() - {row.name}:
                        try:
                            if all(rule.value(guess) == one for guess, one in zip(self._guesses, each, strict=True)):
                                deep = rule.value(ChainMap({"layers": _DEEP}, self._guesses[0]))  # type: ignore[arg-type]
                                found.setdefault(json.dumps(deep), []).append(rule)
                        except FAILS:
                            continue
        rules = next(iter(found.values())) if len(found) == 1 else []
        items = {_text(item) for value in each for item in value or ()}
        if not found and len(items) == 1 and not any(isinstance(item, list | dict) for item in each[0] or ()):
            (item,) = items
            return f"spread(layers, {item})"
        return str(max(rules, key=lambda rule: (len(rule.names), -len(str(rule))))) if rules else ""

    def _cleared(self, name: str) -> dict[str, Any]:
        """Empty default and value, in place of the base's."""
        row = self._base.parameters.get(name)
        if name in _BASES:
            return {"default": 10000.0}  # every reader of files without it wants one; here none is without it
        if row is None:
            return {}
        return {"default": "absent"} | ({"value": "absent"} if row.value else {})

    def _alone(self) -> None:
        """Take keys away from rows of the base that new rows have."""
        for name, entry in list(self.parameters.items()):
            if not isinstance(entry, dict):
                continue
            for format in ("hf", "gguf"):
                keys = {_key(cell).partition(":")[0] for cell in entry.get(format, ()) if not _alias(cell)} - {""}
                for other, row in self._base.parameters.items():
                    taken = {cell.key for cell in row.key_cells(format) if not cell.alias}
                    if other == name or not keys & taken or format in self._own(other):
                        continue
                    cells = listed(self._tables[self._base.name]["parameters"][other][format])
                    left = [cell for cell in cells if _key(cell).partition(":")[0] not in keys]
                    self.parameters.setdefault(other, {})[format] = left
                    self.parameters[other]["optional"] = True
                    if format == "gguf" and not left and self._keyed(row) and not row.value:
                        value = self._guesses[0][other]  # the key stays, and is closed
                        if isinstance(value, bool | int | float | str):
                            self.parameters[other] = {"value": _text(value), "hf": [], "gguf": []}

    def _own(self, name: str) -> Mapping[str, Any]:
        row = self.parameters.get(name)
        return row if isinstance(row, dict) else {}

    def _sized(self, without: Sequence[str]) -> None:
        """Open keys from which sizes of tensors follow."""
        letters = {letter.removeprefix("_") for row in self._base.tensors.values() if row.cells["gguf"]
                   for letter in shapes.letters(row.fused_axes)}  # fmt: skip
        for letter in sorted(letters & self._base.axes.keys()):
            for name in self._base.axes[letter].names & self._base.parameters.keys() - self.parameters.keys():
                if self._guesses[0][name] is not None:
                    self._open.update(self._looked_at(self._base.parameters[name]))
        needed = {letter.removeprefix("_") for row in self._base.tensors.values() if row.name not in without
                for letter in shapes.letters(row.fused_axes)}  # fmt: skip
        for letter in sorted(letters & needed & self._base.axes.keys()):
            for name in self._base.axes[letter].names & self.parameters.keys():  # shapes tell another size
                own = self._own(name)
                keys, written = (
                    [_key(cell) for cell in own.get(each, ()) if not _alias(cell)] for each in ("hf", "gguf")
                )
                if len(keys) == 1 and written:
                    self._open.update(keys)
                    self.questions = [one for one in self.questions if one.key not in written]

    def _missing(self) -> None:
        """Fill parameters that the base wants and the configuration lacks."""
        for name, row in self._base.parameters.items():
            wanted = row.key_cells("hf") and not (row.value or row.optional or row.defaults.get("transformers"))
            if wanted and not self._keyed(row) and name not in self.parameters:
                value = Guess(self._base, self._pairs[0], "gguf")[name]
                if value is None or isinstance(value, bool | int | float):
                    self.parameters[name] = {"value": json.dumps(value or 0), "hf": []}
            cells = row.key_cells("gguf")
            required = cells and not (row.value or row.optional or row.defaults.get("llama_cpp"))
            if (
                required
                and name not in self.parameters
                and not any(c.key in pair.keys for c in cells for pair in self._pairs)
            ):
                value = self._guesses[0][name]
                if name == "vocabulary":
                    self.parameters[name] = {"gguf": [{"shape": ["token_embd.weight", 0]}]}
                elif value is not None and all(guess[name] == value for guess in self._guesses):
                    self.fixed(name, value, value)

    def _ask(self, key: str, text: str) -> None:
        if key not in self._confirmed:
            self.questions.append(Question(key, text))

    def _adopt(self, family: Family, name: str, called: str = "") -> None:
        """Take a row of another family over, without the defaults of its class."""
        called = called or name
        if called in self.parameters:
            return
        raw = self._tables[family.name]["parameters"][name]
        if not isinstance(raw, dict):
            self.parameters[called] = raw
            return
        row = json.loads(json.dumps(raw))
        keyed = {cell.key for cell in self._keyed(family.parameters[name])}
        row |= {format: listed(row[format]) for format in ("hf", "gguf") if format in row}
        if keyed:
            row["hf"] = [cell for cell in row["hf"] if _key(cell) in keyed]
            alone = len(row["hf"]) == 1
            row["hf"] = [cell if _alias(cell) and not alone else _primary(cell) for cell in row["hf"]]
            row.pop("default", None)
        for cell in row.get("gguf", ()):
            if is_unread(cell) and any(_key(cell).partition(":")[0] in pair.keys for pair in self._pairs):
                del cell["only"]
        row.pop("bump", None)
        if called in self._base.parameters:
            row.setdefault("hf", [])
        row = {**self._cleared(called), **row}
        self.parameters[called] = row
        for other in sorted(set(re.findall(r"[a-z_]\w*", json.dumps(row))) & set(family.parameters) - {name}):
            if other not in self._base.parameters:
                self._adopt(family, other)

    def _harmless(self, key: str) -> bool:
        keys = self._base.document.keys.keys
        row = keys.get(key, keys.get(key.partition(".")[0]))
        return key in self.harmless or (row is not None and row.kind is Kind.HARMLESS)

    def _configuration(self) -> None:
        """Close keys of config.json that no parameter reads."""
        own = {cell.head for row in self._base.parameters.values() for cell in row.key_cells("hf") if not cell.unread}
        added = {_key(cell).partition(".")[0] for row in self.parameters.values() if isinstance(row, dict)
                 for cell in row.get("hf", [])}  # fmt: skip
        left = {cell.head for name, row in self._base.parameters.items() if self._own(name).get("hf") == []
                for cell in row.key_cells("hf")} - added  # fmt: skip
        own -= left
        for key in dict.fromkeys(key for pair in self._pairs for key in pair.document):
            values = [pair.document.get(key) for pair in self._pairs]
            values = [value for n, value in enumerate(values) if value is not None and value not in values[:n]]
            row = None if key in left else self._base.document.keys.keys.get(key)
            if (
                not values
                or key in self.harmless
                or key in own | added
                or key in (*TABLES_OF_ROPE, text_key(self._pairs[0].checkpoint.metadata))
            ):
                continue
            if row is not None and row.kind is not Kind.MODIFIER:
                continue
            rule = "" if key in self._confirmed else self._of_every_layer(key)
            if rule and key not in self._base.parameters:
                self._follows(key, key, rule)
                continue
            if row is not None and all(row.is_neutral(value) for value in values):
                if not row.written:
                    self.modifiers[key] = {"neutral": values, "written": True}
                continue
            twin = self._twin(key) if len(self._pairs) > 1 and key not in self._confirmed else ""
            if twin:
                self._follows(key, key, twin)
                self._open.add(key)
                continue
            self.modifiers[key] = {"neutral": values, "written": True}
            shown = " and ".join(map(_shown, values))
            if row is not None:
                self._ask(key, f"{key} = {shown}, where {self._base.name} has {_shown(row.neutral[0])}")
            elif len(values) > 1 or self._confirmed.get(key) != "fixed":
                self._ask(key, f"{key} = {shown}: no key of the metadata says it; another value is refused")

    def _twin(self, key: str) -> str:
        """Parameter whose key alone has the same number in every pair."""
        numbers = [pair.document.get(key) for pair in self._pairs]
        if not all(isinstance(value, int | float) and value not in (0, 1) for value in numbers):
            return ""
        if len(set(numbers)) == 1 and (numbers[0] or 0) < _TELLING:
            return ""
        keys = {name: [_key(cell) for cell in self._own(name).get("hf", ())] for name in self.parameters
                if self._own(name).get("gguf")}  # fmt: skip
        keys |= {name: [cell.key for cell in self._keyed(row)] for name, row in self._base.parameters.items()
                 if name not in self.parameters and self._stated(name)}  # fmt: skip
        found = [name for name, own in keys.items() if any(
            [pair.flat.get(other) for pair in self._pairs] == numbers for other in own)]  # fmt: skip
        return found[0] if len(found) == 1 else ""

    def _seen(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        read = {_key(cell).partition(".")[0] for row in self.parameters.values() if isinstance(row, dict)
                for cell in row.get("hf", ())}  # fmt: skip
        for key in sorted({key for pair in self._pairs for key in pair.flat}):
            if self._harmless(key) and key.partition(".")[0] not in read | self.modifiers.keys():
                continue
            values = [pair.flat.get(key) for pair in self._pairs]
            found[key] = self._values(key, values, key in self._open or self._differs(key, values))
        return found

    def _differs(self, key: str, values: Sequence[Any]) -> bool:
        return key in self._claimed and len({json.dumps(value) for value in values if value is not None}) > 1

    def _metadata_seen(self) -> dict[str, Any]:
        found = {}
        for key in sorted({key for pair in self._pairs for key in pair.keys}):
            values = [pair.keys.get(key) for pair in self._pairs]
            found[key] = self._values(key, values, key in self.explained)
        return found

    def _values(self, key: str, values: Sequence[Any], free: bool) -> Any:
        """Values that a key may have: any number that a rule reads, or those."""
        there = [
            item
            for value in values
            if value is not None
            for item in (value if isinstance(value, list) and value else [value])
        ]
        missing = None in values
        number = all(isinstance(item, int | float) and not isinstance(item, bool) for item in there)
        if self._confirmed.get(key) == ANY or (free and number and any(item not in (0, 1) for item in there)):
            return [ANY, NONE] if missing else ANY
        distinct = [item for n, item in enumerate(there) if not any(_equal(item, other) for other in there[:n])]
        if missing:
            distinct.append(NONE)
        return distinct[0] if len(distinct) == 1 and distinct != [[]] else distinct


def _keyed_by(family: Family, format: str, key: str, *, alias: bool | None = None) -> list[str]:
    """Parameters of a family by a key; ``alias``: whether they only read it."""
    found = _by_key(family, format).get(key, ())
    return [*dict.fromkeys(name for name, reads in found if alias in (None, reads))]


@lru_cache(maxsize=512)
def _by_key(family: Family, format: str) -> Mapping[str, list[tuple[str, bool]]]:
    """Parameters of a family by key, each with whether the key is an alias."""
    found: dict[str, list[tuple[str, bool]]] = {}
    for name, row in family.parameters.items():
        for cell in row.key_cells(format):
            found.setdefault(cell.key, []).append((name, cell.alias))
    return found


def same(one: Any, other: Any) -> bool:
    """Whether values are equal, numbers as the metadata holds them."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other or abs(one - other) <= _NEAR * max(abs(one), abs(other))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _has(pair: Pair, key: str) -> bool:
    return key in pair.flat or pair.document.get(key) is not None


def _key(cell: Any) -> str:
    return str(cell if isinstance(cell, str) else cell.get("key", ""))


def _alias(cell: Any) -> bool:
    return isinstance(cell, dict) and (bool(cell.get("alias")) or is_unread(cell))


def _primary(cell: Any) -> Any:
    """A cell that is written, too."""
    if not isinstance(cell, dict):
        return cell
    found = {word: value for word, value in cell.items() if word not in ("alias", "instead")}
    return found | {"write": found.get("write", "it / head_dim")} if found.get("read") == _SHARE else found


def _words(key: str) -> set[str]:
    return {_ALIKE.get(word, word) for word in re.split(r"[_.]", key)} - _PLAIN


def _text(value: Any) -> str:
    """The value as an expression."""
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if isinstance(value, str) else text.replace("True", "true").replace("False", "false")


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
