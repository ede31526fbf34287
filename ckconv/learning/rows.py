"""Rows of tensors that differ from those of the extended family."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from ckconv.core.tensors import StoredTensor, TensorIndex
from ckconv.errors import InputError
from ckconv.families import axes as shapes, expressions
from ckconv.families.schema import Cell, Family, TensorRow
from ckconv.formats.detect import open_index
from ckconv.learning.pair import (
    FAILS,
    FLOATS,
    NO_LAYER,
    Form,
    Guess,
    Hit,
    Name,
    Numbers,
    Pair,
    Traces,
    by_pattern,
    gguf_name,
    name_in,
    plainness,
    rows_of,
    sampled,
    written,
)

#: The head, which a model has or has not, whatever else it has.
_HEAD = "output"

_LEADING = "leading"


class Rows:
    """Compares what was traced with the rows of a family.

    Attributes:
        tensors, axes, layers, parameters, without, prefix: of the file.
        loaded: canonical tensors that only some models of the family have, and these pairs have.
        optional: those of them that only some of the pairs have.
        same: how many patterns the family's own rows describe, under its own names.
        open: what the pairs do not tell.
        asked: parameters that rows follow from.
    """

    def __init__(
        self, pairs: Sequence[Pair], traced: Traces, base: Family, families: Mapping[str, Family], guesses: Any
    ) -> None:
        self._pairs, self._traced, self._base, self._families = pairs, traced, base, families
        self._guesses: Mapping[tuple[str, int], Guess] = guesses
        self.tensors: dict[str, dict[str, Any]] = {}
        self.axes: dict[str, str] = {}
        self.layers: dict[str, str] = {}
        self.parameters: dict[str, Any] = {}
        self.without: list[str] = []
        self.loaded: list[str] = []
        self.optional: set[str] = set()
        self.same = 0
        self.open: list[str] = []
        self.foreign: dict[str, str] = {}
        self._fused: dict[tuple[Any, ...], list[tuple[str, str, Hit]]] = {}
        self._placed: dict[str, dict[str, Hit]] = {}
        self._one_sided: dict[tuple[str, str, int], Guess] = {}
        self.root, self.layer = prefixes(pairs[0].source)
        self.root = next((root for root, layer in base.prefixes["hf"] if layer == self.layer), self.root)
        own = (self.root, self.layer)
        self.prefix = {} if own == tuple(base.prefixes["hf"][0]) else {"hf": [{"root": self.root, "layer": self.layer}]}
        self._make()

    def _name(self, source: str) -> Name:
        return name_in(source, self.root, self.layer)

    def _make(self) -> None:
        for pattern in sorted(self._traced.found, key=lambda pattern: pattern.endswith(".bias")):
            self._place(pattern, self._traced.found[pattern])
        for row in self._base.tensors.values():
            gone = row.cells["gguf"] and row.name not in self._placed and row.name not in self.without
            if gone and row.name != _HEAD and self._there(row) is not False:
                self.without.append(row.name)
        stored = {each for source in self._pairs[0].source for each in spellings(self._name(source))}
        for row in self._base.tensors.values():  # kept for other classes, and not there
            if row.dropped and not row.cells["gguf"] and not any(one.name in stored for one in row.dropped.values()):
                self.without.append(row.name)
        for name in list(self._base.fused):
            if any(part in self.without and part not in self._placed for part in self._base.fused[name].parts):
                self.without.append(name)
        for name, patterns in self._placed.items():
            self._presence(name, patterns)
        for row in self._base.tensors.values():  # made of the configuration
            there = [any("=" + pattern == cell.name for cell in row.cells["gguf"] for pattern in pair.target)
                     for pair in self._pairs if not row.cells["hf"]]  # fmt: skip
            if any(there):
                self.loaded.append(row.name)
                self.optional |= set() if all(there) else {row.name}
        self._write_fused()
        self.tensors = {name: row for name, row in self.tensors.items() if row}

    def _in_every_layer(self, patterns: Sequence[str]) -> bool:
        """Whether tensors that some pair has are in all of its layers."""
        found = ((pair, pattern) for pair in self._pairs for pattern in patterns if pattern in pair.target)
        return all("{n}" not in pattern or len(pair.target[pattern]) >= pair.layers for pair, pattern in found)

    def _there(self, row: TensorRow) -> bool | None:
        """Whether the base would have the tensor; ``None`` if unsaid."""
        return None if row.when is None else self._value(row.when, 0)

    def _value(self, expression: expressions.Expression, number: int) -> Any:
        try:
            return bool(expression.value(self._guesses[self._base.name, number]))
        except FAILS:
            return None

    def _agreed(self, expression: expressions.Expression, number: int) -> bool | None:
        """Value of a condition in both files; ``None`` if they differ."""
        try:
            values = [bool(expression.value(self._guess(self._base.name, format, number))) for format in ("hf", "gguf")]
        except FAILS:
            return None
        return values[0] if values[0] == values[1] else None

    def _place(self, pattern: str, hits: Sequence[Hit]) -> None:
        """Find the row of a GGUF's tensor, or write one."""
        if pattern == f"{_HEAD}.bias":  # a row of its own: models without a head have it, too
            name, hit = f"{_HEAD}_bias", hits[0]
            self._placed[name] = {pattern: hit}
            if name not in self._base.tensors:
                axes = written(hit.form.axes[:1])
                self.tensors[name] = {"axes": axes, "hf": "=" + self._name(hit.source).whole, "gguf": "=" + pattern}
                head, module = self._base.tensors.get(_HEAD), self._name(hit.source).module
                if head is not None and head.bias is not None:
                    self._anew(_HEAD)
                    when = {"when": str(head.when)} if head.when is not None else {}
                    self.tensors[_HEAD] = {"axes": written(head.axes), **when, "hf": module, "gguf": _HEAD}
            return
        rows, exact = rows_of(self._base, pattern), rows_of(self._base, pattern, near=False)
        own = {(name, form_key(self._base, name, ours, cell)): ours  # of several names the first is written
               for name, cell in rows for ours in reversed(self._base.tensors[name].cells["hf"])}  # fmt: skip
        least = min(self._strange(hit.form)[0] for hit in hits)
        own = {(name, key): ours for (name, key), ours in own.items() if self._silent(name, ours) <= least}
        parts: dict[int, Hit] = {}
        for hit in hits:
            if shapes.segment_count(hit.form.gguf.axes or ()) > 1:
                parts.setdefault(hit.form.gguf.part, hit)
        for same_name in (True, False):
            placed = []
            for hit in hits:
                for (name, key), cell in own.items():
                    alike = self._name(hit.source)
                    if key == hit.form.key and exact:
                        right = cell.name.removeprefix("=") in (alike.module, alike.whole)
                        if right == same_name:
                            placed.append((name, cell, hit))
            wanted = max(1, len({name for name, _ in own} if len(parts) > 1 else ()))
            names = dict.fromkeys(name for name, _, _ in placed)
            if len(names) >= wanted and placed:
                for name in list(names)[: wanted if wanted > 1 else 1]:
                    _, cell, hit = next(each for each in placed if each[0] == name)
                    self._placed.setdefault(name, {})[pattern] = hit
                    if same_name:
                        self.same += 1
                    elif gguf_name(pattern).kind != "bias" or "hf" not in self.tensors.get(name, {}):
                        self._renamed(name, cell, hit, pattern)
                return
        best = min(
            hits,
            key=lambda hit: (
                hit.form.row not in {name for name, _ in rows},
                self._strange(hit.form),
                plainness(hit.form),
            ),
        )
        chosen = [best]
        if best.form.gguf.axes and shapes.segment_count(best.form.gguf.axes) > 1:
            fused = [hit for hit in hits if hit.form.family == best.form.family and hit.form.fused == best.form.fused]
            chosen = list({hit.form.gguf.part: hit for hit in fused}.values())
        parsed = gguf_name(pattern)
        for hit in chosen:
            name = rows[0][0] if rows and len(chosen) == 1 else hit.form.row
            weight = (one for one, placed in self._placed.items() if parsed.kind == "bias"
                      and any(gguf_name(each).module == parsed.module for each in placed))  # fmt: skip
            name = next(weight, name)
            layered = parsed.module.startswith("L.")
            taken = name in self._placed and gguf_name(next(iter(self._placed[name]))).module != parsed.module
            if taken or name.startswith("L.") != layered:
                name = "L." * layered + parsed.module.removeprefix("L.").replace("_", ".", 1)
            self._placed.setdefault(name, {})[pattern] = hit
            if gguf_name(pattern).kind == "bias" and len(self._placed[name]) > 1:
                continue
            self._letters(hit.form)
            if any(shapes.segment_count(cell.axes) > 1 for cell in (hit.form.hf, hit.form.gguf) if cell.axes):
                key = (hit.source if hit.form.hf.parts > 1 else "", pattern if hit.form.gguf.parts > 1 else "")
                self._fused.setdefault((*key, hit.form.fused), []).append((name, pattern, hit))
                self._anew(name)
            else:
                self._new(name, pattern, hit)

    def _renamed(self, name: str, cell: Cell, hit: Hit, pattern: str) -> None:
        """The base's row under another name in the checkpoint."""
        found = self._name(hit.source)
        plain = gguf_name(pattern).kind == found.kind != ""
        spelled = found.module if plain else "=" + found.whole
        row = self.tensors.setdefault(name, {})
        if shapes.segment_count(cell.axes or ()) > 1:
            row["hf"] = [{"name": spelled, "axes": written(cell.axes or ())}]
            self._fused.setdefault((hit.source, "", hit.form.fused), []).append((name, pattern, hit))
            self._anew(name)
        else:
            row["hf"] = [{"name": spelled, "axes": written(cell.axes)} if cell.axes else spelled]

    def _anew(self, name: str) -> None:
        """The base's row does not count."""
        if name in self._base.tensors and name not in self.without:
            self.without.append(name)

    def _new(self, name: str, pattern: str, hit: Hit) -> None:
        self._anew(name)
        parsed, ours = gguf_name(pattern), self._name(hit.source)
        plain = parsed.kind == ours.kind != ""
        cell: dict[str, Any] = {"name": parsed.module if plain else "=" + parsed.whole}
        cell |= {"axes": written(hit.form.gguf.axes)} if hit.form.gguf.axes else {}
        cell |= {"value": hit.form.gguf.value} if hit.form.gguf.value else {}
        source: dict[str, Any] = {"name": ours.module if plain else "=" + ours.whole}
        source |= {"axes": written(hit.form.hf.axes)} if hit.form.hf.axes else {}
        self.tensors[name] = {"axes": written(hit.form.axes), "hf": _short(source), "gguf": _short(cell)}

    def _write_fused(self) -> None:
        """Rows of tensors that one side stores as one."""
        for (source, pattern, fused), items in self._fused.items():
            items.sort(key=lambda item: max(item[2].form.hf.part, item[2].form.gguf.part))
            names = [name for name, _, _ in items]
            beside: dict[str, Any] = {}
            for name in names:
                own = self.tensors.pop(name, {})
                beside |= {field: own[field] for field in ("bias", "when", "layers") if field in own}
                self._anew(name)
            form = items[0][2].form
            ours = [self._name(hit.source).module for _, _, hit in items]
            targets = [gguf_name(each).module for _, each, _ in items]
            row: dict[str, Any] = {"axes": written(fused)}
            for field, spelled, cell, one in (("hf", ours, form.hf, source), ("gguf", targets, form.gguf, pattern)):
                text = spelled[0] if one else braced(spelled)
                if not (gguf_name(items[0][1]).kind and self._name(items[0][2].source).kind):
                    whole = self._name(items[0][2].source).whole if field == "hf" else gguf_name(items[0][1]).whole
                    text = "=" + (whole if one else text)
                other = bool(one) and cell.axes is not None and cell.axes != fused
                row[field] = {"name": text, "axes": written(cell.axes or ())} if other else text
            self.tensors[braced(names)] = {**row, **beside}

    def _strange(self, form: Form) -> tuple[int, int, int]:
        """Count parameters of its letters that are unsaid, unkeyed or foreign."""
        family = self._families[form.family]
        used = {letter.removeprefix("_") for shape in (form.fused, form.hf.axes, form.gguf.axes) if shape
                for letter in shapes.letters(shape)} & family.axes.keys()  # fmt: skip
        names = {name for letter in used for name in family.axes[letter].names} & family.parameters.keys()
        foreign = names - self._base.parameters.keys()
        keyed = {name for name in foreign for cell in family.parameters[name].key_cells("hf")
                 if cell.key in self._pairs[0].flat}  # fmt: skip
        return self._unsaid(form.family, names), len(foreign - keyed), len(foreign)

    def _unsaid(self, family: str, names: Collection[str]) -> int:
        return sum(self._guess(family, format)[name] is None for name in names for format in ("hf", "gguf"))

    def _silent(self, name: str, ours: Cell) -> int:
        row = self._base.tensors[name]
        return min(self._strange(Form(self._base.name, name, row.axes, row.fused_axes, ours, cell))[0]
                   for cell in row.cells["gguf"])  # fmt: skip

    def _guess(self, family: str, format: str, number: int = 0) -> Guess:
        key = family, format, number
        if key not in self._one_sided:
            self._one_sided[key] = Guess(self._families[family], self._pairs[number], format)
        return self._one_sided[key]

    def _letters(self, form: Form) -> None:
        """Take letters of another family's row over."""
        family = self._families[form.family]
        used = {letter.removeprefix("_") for shape in (form.fused, form.hf.axes, form.gguf.axes) if shape
                for letter in shapes.letters(shape) if not letter.isdigit()}  # fmt: skip
        for letter in sorted(used):
            expression = family.axes[letter]
            if letter in self._base.axes and str(self._base.axes[letter]) == str(expression):
                continue
            self.axes[letter] = str(expression)
            for name in sorted(expression.names):
                self.adopt(family, name)

    def adopt(self, family: Family, name: str) -> None:
        """Take another family's parameter over, and those that it follows from."""
        if name in self._base.parameters or name in self.foreign or name not in family.parameters:
            return
        self.foreign[name] = family.name
        row = family.parameters[name]
        keyed = any(cell.key in self._pairs[0].flat for cell in row.key_cells("hf"))
        needed = [] if keyed else [row.value, *row.defaults.values()]
        needed += [one for cells in row.cells.values() for cell in cells for one in (cell.read, cell.write, cell.when)]
        for other in sorted({each for one in needed if one for each in one.names}):
            self.adopt(family, other)

    def _presence(self, name: str, patterns: Mapping[str, Hit]) -> None:
        """Biases, layers and conditions of a row."""
        row = self._base.tensors.get(name) if name not in self.without else None
        entry = self.tensors.setdefault(name, {})
        weights = [pattern for pattern in patterns if gguf_name(pattern).kind != "bias"] or list(patterns)
        biases = [pattern for pattern in patterns if pattern not in weights]
        has = [any(pattern in pair.target for pattern in biases) for pair in self._pairs]
        expected = [self._agreed(row.bias, n) if row and row.bias else False for n in range(len(self._pairs))]
        if has != expected:
            entry["bias"] = all(has)
            if any(has) != all(has):
                entry["bias"] = self._switch(biases, has)
                if not entry["bias"]:
                    self.open.append(f"{name}.bias: only some of the pairs have it")
                    entry["bias"] = "true"
        if any(has):
            self.loaded.append(f"{name}.bias")
            self.optional |= set() if all(has) else {f"{name}.bias"}
        there = [any(pattern in pair.target for pattern in weights) for pair in self._pairs]
        if row is not None and row.when is not None and name != _HEAD:
            if [self._value(row.when, n) for n in range(len(self._pairs))] != there:
                entry["when"] = "true"
            if self._in_every_layer(weights):  # else nothing requires it of those that have none
                self.loaded.append(name if row.whole_name else f"{name}.weight")
            self.optional |= set() if all(there) else {f"{name}.weight"}
        elif any(there) != all(there) and name != _HEAD and (switch := self._switch(weights, there)):
            entry["when"] = switch
            self.loaded.append(f"{name}.weight")
            self.optional.add(f"{name}.weight")
        self._layered(name, row, entry, weights, there)

    def _switch(self, patterns: Sequence[str], there: Sequence[bool]) -> str:
        """Parameter of a key that says which pairs have a tensor, or ""."""
        words = set(re.split(r"[._]", patterns[0])) - {"weight", "attn"}
        found: dict[str, tuple[int, int]] = {}
        for key in {key for pair in self._pairs for key in pair.document}:
            values = [pair.document.get(key) for pair in self._pairs]
            known = all(isinstance(value, bool | None) for value in values)
            if known and [bool(value) for value in values] == [*there]:
                of = set(key.split("_"))
                of |= set("qkv") if "qkv" in of else set()
                found[key] = len(words & of), -len(of - words)
        best = [key for key, score in found.items() if score[0] and score == max(found.values())]
        if len(best) != 1:
            return ""
        rows = self._base.parameters.items()
        name = next((name for name, row in rows if any(cell.key == best[0] for cell in row.key_cells("hf"))), best[0])
        layers = next(layers for pair in self._pairs for each, layers in pair.target.items() if each in patterns)
        pattern = next(each for each in patterns if any(each in pair.target for pair in self._pairs))
        cell = {"present": pattern.replace("{n}", str(min(layers)))}
        default = {} if all(best[0] in pair.document for pair in self._pairs) else {"default": False}
        self.parameters.setdefault(name, {"hf": [best[0]], "gguf": [cell], **default})
        return name

    def _layered(
        self, name: str, row: TensorRow | None, entry: dict[str, Any], weights: list[str], there: list[bool]
    ) -> None:
        seen = []
        for n, pair in enumerate(self._pairs):
            layers = {k for pattern in weights for k in pair.target.get(pattern, {})}
            if there[n] and NO_LAYER not in layers:
                seen.append((n, pair, [k in layers for k in range(pair.layers)]))
        if seen:
            self._kinds(name, row, entry, seen)

    def _kinds(
        self, name: str, row: TensorRow | None, entry: dict[str, Any], seen: list[tuple[int, Pair, list[bool]]]
    ) -> None:
        """Which layers have it."""
        kinds = row.layers if row is not None else None

        def of(expression: expressions.Expression | None, number: int, pair: Pair) -> list[bool] | None:
            try:
                guess = self._guesses[self._base.name, number]
                return [expression is None or guess.kind(expression, n) for n in range(pair.layers)]
            except FAILS:
                return None

        if all(of(kinds, number, pair) == present for number, pair, present in seen):
            return
        if all(all(present) for _, _, present in seen):
            self.layers.setdefault("every_layer", f"{_LEADING}(layers, layers, true, false)")
            entry["layers"] = "every_layer"
            return
        found = min(self._alike(seen), default=None)
        if found is None:
            self.open.append(f"{name}: in layers that nothing of {self._base.name} tells apart")
            return
        *_, negated, kind, family = found
        if family != self._base.name:
            expression = self._families[family].layers[kind]
            if kind in self._base.layers or self.layers.get(kind, str(expression)) != str(expression):
                kind = f"{kind}_of_{family}"
            self.layers[kind] = str(expression)
            for each in sorted(expression.names):
                self.adopt(self._families[family], each)
        entry["layers"] = f"not {kind}" if negated else kind

    def _alike(self, seen: list[tuple[int, Pair, list[bool]]]) -> Iterator[tuple[int, int, bool, str, str]]:
        """Kinds of layers that hold for exactly these layers."""
        near = [self._base, *(one for one in self._families.values() if one is not self._base)]
        for family in near:
            for kind, expression in family.layers.items():
                for negated in (False, True):
                    try:
                        if all(self._guesses[family.name, n].kind(expression, k) == (there != negated)
                               for n, _, present in seen for k, there in enumerate(present)):  # fmt: skip
                            names = expression.names & family.parameters.keys()
                            if family is self._base or not self._unsaid(family.name, names):
                                yield (
                                    int(family is not self._base),
                                    self._unkeyed(family, names),
                                    negated,
                                    kind,
                                    family.name,
                                )
                    except FAILS:
                        continue

    def _unkeyed(self, family: Family, names: Collection[str]) -> int:
        """Count parameters without a key here; a kind without any is last."""
        keys = self._pairs[0].flat
        return sum(not any(cell.key in keys for cell in family.parameters[name].key_cells("hf"))
                   for name in names) if names else len(keys)  # fmt: skip


def spellings(name: Name) -> tuple[str, ...]:
    """Ways in which a cell may spell a tensor's name."""
    return name.module, f"={name.whole}", f"={name.module}"


def form_key(family: Family, name: str, ours: Cell, stored: Cell) -> tuple[Any, ...]:
    """The form of a family's own row."""
    row = family.tensors[name]
    return Form(family.name, name, row.axes, row.fused_axes, ours, stored).key


def prefixes(patterns: Collection[str]) -> tuple[str, str]:
    """Prefixes of the model's and of a layer's names."""
    starts = Counter(pattern[: pattern.index("{n}.") + 4] for pattern in patterns if "{n}." in pattern)
    layer = starts.most_common(1)[0][0] if starts else "{n}."
    above = layer.split(".")[:-3]
    return "".join(f"{part}." for part in above), layer


def braced(names: Sequence[str]) -> str:
    """``a.{q,k}.b`` of both names."""
    if len(set(names)) == 1:
        return names[0]
    start = _start(names)
    start = start[: max(start.rfind("."), start.rfind("_")) + 1]
    rest = [name[len(start) :] for name in names]
    end = _start([name[::-1] for name in rest])[::-1]
    cut = min((at for at in (end.find("."), end.find("_")) if at >= 0), default=len(end))
    end = end[cut:]
    return f"{start}{{{','.join(name[: len(name) - len(end)] for name in rest)}}}{end}"


def _start(names: Sequence[str]) -> str:
    """Longest common beginning."""
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in alike)


def _short(cell: dict[str, Any]) -> Any:
    return cell["name"] if len(cell) == 1 else cell


def ranked(
    pairs: Sequence[Pair], traced: Traces, families: Mapping[str, Family], guesses: Mapping[tuple[str, int], Guess]
) -> list[str]:
    """Families by nearness: rows and names of tensors, then keys."""
    pair, (root, layer) = pairs[0], prefixes(pairs[0].source)
    rotary = any("rope_theta" in key for key in pair.flat)
    alike: dict[str, dict[tuple[Any, ...], list[Name]]] = {}
    for pattern, hits in traced.found.items():
        by_key = alike[pattern] = {}
        for hit in hits:
            by_key.setdefault(hit.form.key, []).append(name_in(hit.source, root, layer))
    scores = {}
    for name, family in families.items():
        score, used = 8.0 if family.gguf == pair.architecture else 0.0, set()
        for pattern, by_key in alike.items():
            rows, best = rows_of(family, pattern), -0.5
            for row, cell in rows:
                for ours in family.tensors[row].cells["hf"]:
                    found = by_key.get(form_key(family, row, ours, cell))
                    if found:
                        used.add(row)
                        same = any(ours.name.removeprefix("=") in (one.module, one.whole) for one in found)
                        best = max(best, 3 if same else 1.5)
            score += best if rows else -2
        spare = (row for row in family.tensors.values() if row.cells["gguf"] and row.name not in used and not row.when)
        score -= sum(1 for row in spare if row.name != _HEAD)
        score += sum(_keys(pair, family))
        score -= 15 if rotary != family.rope else 0
        scores[name] = score
    return sorted(scores, key=lambda name: -scores[name])


def _keys(pair: Pair, family: Family) -> Iterator[float]:
    cells = {cell.key: row for row in family.parameters.values() for cell in row.key_cells("gguf")}
    ours = {cell.key for row in family.parameters.values() for cell in row.key_cells("hf")}
    for key in pair.keys:
        row = cells.get(key)
        stated = row is not None and (row.value or any(cell.key in pair.flat for cell in row.key_cells("hf")))
        yield 0.6 if stated else 0.1 if row is not None or key in family.metadata.keys else -0.6
    for key in pair.document:
        yield 0.05 if key in family.document.keys.keys or key in ours else -0.3
    for key in ours:
        yield 0 if key in pair.flat or key in pair.document else -0.1


# -- Names of a checkpoint's tensors in an MLX directory, by values ----------------------------------------------------

#: Prefixes of a model's and of a layer's names.
Prefix = tuple[str, str]


def prefix_of(family: Family, index: TensorIndex) -> Prefix:
    """Prefixes in the directory: the family's, unless layers have another."""
    own, seen = family.prefixes["mlx"][0], prefixes(by_pattern(index.stored))
    return own if own[1] == seen[1] else seen


def opened_directory(directory: Path) -> TensorIndex:
    """An MLX directory whose values can be compared."""
    index = open_index(directory)
    if index.format != "mlx":
        raise InputError("learn.pair", f"an MLX directory expected, got {index.format}", path=directory)
    odd = sorted({tensor.dtype.name for tensor in index.stored} - {*FLOATS})
    if odd:
        message = f"tensors are {', '.join(odd)}, too; F32, F16 or BF16 expected"
        raise InputError("learn.pair", message, path=directory)
    return index


def same_values(pair: Pair, index: TensorIndex, numbers: Numbers, rows: int) -> Mapping[str, str]:
    """Pattern of a checkpoint's names -> that of the tensors with its values.

    Experts may be stacked in one tensor.
    """
    left, found = dict(by_pattern(index.stored)), dict[str, str]()
    for pattern, layers in pair.source.items():
        near = sorted(left, key=lambda one: -SequenceMatcher(None, pattern, one, autojunk=False).ratio())
        for other in near:
            if _equal(layers, left[other], numbers, rows):
                found[pattern] = other
                del left[other]
                break
    return found


def _equal(
    ours: Mapping[int, Sequence[StoredTensor]],
    stored: Mapping[int, Sequence[StoredTensor]],
    numbers: Numbers,
    rows: int,
) -> bool:
    if ours.keys() != stored.keys():
        return False
    for layer in sorted({min(ours), max(ours)}):
        experts, whole = ours[layer], stored[layer][0]
        shape = (len(experts), *experts[0].shape) if len(experts) > 1 else experts[0].shape
        if len(stored[layer]) > 1 or tuple(whole.shape) != tuple(shape):
            return False
        each = math.prod(experts[0].shape)
        positions = sampled(each * len(experts), rows)
        meant = numbers.at(whole, positions)
        for number in np.unique(positions // each).tolist():
            mask = positions // each == number
            if not np.array_equal(numbers.at(experts[number], positions[mask] % each), meant[mask], equal_nan=True):
                return False
    return True


def cells(
    family: Family, own: Collection[str], prefix: Prefix, mlx: Prefix, found: Mapping[str, str]
) -> Iterator[tuple[str, Any]]:
    """Rows of a family file -> their cells, where the name is another one.

    Args:
        own: rows that the file writes; several tensors may be one row there.
    """
    each = dict(_cells(family, prefix, mlx, found))
    for key in own:
        names = [*shapes.expanded(key)]
        if len(names) > 1 and all(name in each for name in names):
            parts = [each.pop(name) for name in names]
            yield key, [{**parts[0], "name": braced([cell["name"] for cell in parts])}]
    for name, cell in each.items():
        yield name, [cell]


def _cells(
    family: Family, prefix: Prefix, mlx: Prefix, found: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, str]]]:
    for row in family.tensors.values():
        for cell in row.cells["hf"]:
            other = found.get(_pattern(cell, *prefix))
            if other is None:
                continue
            name = name_in(other, *mlx)
            spelled = "=" + name.whole if cell.name.startswith("=") else name.module
            axes = row.axes if cell.stack or cell.axes is None else cell.axes
            now = row.cells["mlx"][0] if row.cells["mlx"] else None
            if now is None or (now.name, now.axes or row.axes, bool(now.stack)) != (spelled, axes, False):
                yield row.name, {"name": spelled} | ({"axes": written(axes)} if axes != row.axes else {})
            break


def _pattern(cell: Cell, root: str, layer: str) -> str:
    """Pattern of the stored names of a row's weight."""
    name = cell.name.removeprefix("=")
    for letter, prefix in (("L.", layer), ("M.", root)):
        if name.startswith(letter):
            name = prefix + name.removeprefix(letter)
    return name if cell.name.startswith("=") else f"{name}.weight"
