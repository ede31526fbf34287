"""Cases of families: ``tests/families/NAME.toml``, one configuration a case, and what is recorded of each.

A checkpoint is made again from names, shapes and a seed, without torch: ``scripts/record_families.py`` wrote down what
``save_pretrained`` calls the tensors, and what transformers and llama.cpp's converter make of them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import Array, Tensors, bf16, save_file

ROOT = Path(__file__).resolve().parents[1]
CASES, RECORDS = ROOT / "tests" / "families", ROOT / "fixtures" / "families"
TOKENIZER = {name: f"zoo/olmo2/{name}" for name in ("tokenizer.json", "tokenizer_config.json")}

#: Positions of a prompt, unless a case says otherwise; the tokenizer has so many words.
LENGTH, VOCABULARY = 24, 384
#: What the size of a tensor may be worked out with, beside keys of the configuration.
_SIZES = {"__builtins__": {"int": int, "len": len, "sum": sum, "max": max, "min": min}}
#: Every so many of the vocabulary's logits are kept, at so many positions.
STRIDE, KEPT = 6, 5

#: Directions that an entry of ``expect`` is about, where it names a format only.
GROUPS = {"gguf": ("hf->gguf", "mlx->gguf"), "hf": ("gguf->hf", "hf->hf"), "mlx": ("hf->mlx", "gguf->mlx")}
DIRECTIONS = ("hf->gguf", "hf->hf", "gguf->hf", "hf->mlx", "gguf->mlx", "mlx->gguf")

NO_SOURCE = "nothing to convert"

#: How far logits of float32 may be from transformers', unless ``tolerance`` says otherwise.
CLOSE = 1e-4

#: Sections of a case that are no keys of the configuration class.
RESERVED = (
    "dtype",
    "expect",
    "options",
    "prompt",
    "converter",
    "document",
    "without",
    "tolerance",
    "besides",
    "stored",
    "tokenizer",
    "renamed",
    "reference",
    "ranks",
    "columns",
    "alike",
)
#: TOML has no null.
NULL = "null"


@dataclass(frozen=True)
class Case:
    """One configuration of a family.

    Attributes:
        overrides: arguments of the configuration class.
        dtype: of the stored weights.
        expect: direction -> ``refused: part of the sentence``, for those that are right to be refused.
        options: fields of :class:`ckconv.Options`, for every conversion.
        prompt: how many positions are computed.
        converter: of llama.cpp's converter. ``wrong``: why it is not asked; ``document``: keys that it needs besides;
            ``plain``: it reads config.json itself, not what transformers makes of it.
        document: keys of config.json that are other than ``save_pretrained`` writes them.
        without: keys of config.json that are left out.
        tolerance: engine -> how far its logits may be off.
        stored: name -> shape of tensors that released checkpoints have and save_pretrained does not write.
        tokenizer: name of each file -> where it lies in fixtures.
        renamed: what save_pretrained calls tensors otherwise than released checkpoints -> theirs, parts of names.
        reference: the engine whose logits the others are held against; ``none`` of a drafter, which has none alone.
        ranks: the logits by whose softmax llama.cpp ranks texts, where it gives no others.
        columns: the only logits that are compared, where engines leave out others.
        alike: parts of names of tensors whose rows are all the first.
        besides: tensors and keys that outputs may have and the original has not: a tied head that llama.cpp wants.
    """

    family: str
    name: str
    model_class: str
    overrides: Mapping[str, Any]
    dtype: str = "float32"
    expect: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    prompt: int = LENGTH
    converter: Mapping[str, Any] = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    tolerance: Mapping[str, float] = field(default_factory=dict)
    besides: tuple[str, ...] = ()
    stored: Mapping[str, list[Any]] = field(default_factory=dict)
    tokenizer: Mapping[str, str] = field(default_factory=lambda: TOKENIZER)
    renamed: Mapping[str, str] = field(default_factory=dict)
    reference: str = "transformers"
    ranks: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    alike: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.family}-{self.name}"

    @property
    def named(self) -> Iterator[tuple[str, list[Any]]]:
        """Tensors of ``stored``, one for each number in a name, and their shapes."""
        for pattern, sizes in self.stored.items():
            bounds = re.findall(r"{(?:(\w+):)?(\w+)}", pattern)
            starts = [int(one) if one.isdecimal() else self.overrides.get(one, 0) for one, _ in bounds]
            counts = [range(start, self.overrides[stop]) for start, (_, stop) in zip(starts, bounds, strict=True)]
            for numbers in itertools.product(*counts):
                here = {**self.overrides, "n": (*numbers, 0)[0]}
                shape = [int(eval(str(size), _SIZES, here)) for size in sizes]
                if 0 not in shape:
                    yield re.sub(r"{[\w:]+}", "{}", pattern).format(*numbers), shape

    @property
    def tokens(self) -> tuple[int, ...]:
        """What the engines are asked to compute."""
        return tuple((7 * i * i + 3 * i + 5) % self.overrides["vocab_size"] for i in range(self.prompt))

    @property
    def positions(self) -> list[int]:
        """Those whose logits are kept, the last among them."""
        return sorted({round(i) for i in np.linspace(1, self.prompt - 1, KEPT)})

    @property
    def digest(self) -> str:
        """Of all that a recording follows from."""
        said = [self.model_class, self.overrides, self.dtype, self.prompt, self.converter, self.document, self.without]
        said += [each for each in (self.stored, self.renamed, self.ranks, self.columns, self.alike) if each]
        said += [self.tokenizer] if self.tokenizer is not TOKENIZER else []
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def recorded(self) -> dict[str, Any]:
        """What is written down of it; empty for nothing, or for what it was before it changed."""
        found: dict[str, Any] = recording(self.family).get(self.name, {})
        return found if found.get("case") == self.digest else {}

    def expected(self, direction: str) -> str:
        """``right``, or the refusal that is right."""
        first = direction.partition("->")[0]
        if first in ("gguf", "mlx") and self.expected(f"hf->{first}") != "right":
            return NO_SOURCE
        group = next((name for name, members in GROUPS.items() if direction in members), "")
        return self.expect.get(direction, self.expect.get(group, "right"))

    def limit(self, engine: str) -> float:
        """How far the logits of an engine may be off."""
        return self.tolerance.get(engine, CLOSE)


def stored_as(family: str) -> set[str]:
    """What a family's file extends, and the words for how its values and rows are stored: ``neg_exp``, ``(I|I)``."""
    text = (ROOT / "ckconv" / "families" / f"{family}.toml").read_text()
    extended = tomllib.loads(text.partition("\n[")[0]).get("extends", ())
    names = [extended] if isinstance(extended, str) else extended
    return {*names, *re.findall(r"value = \"[a-z_]+\"|[(][\w|]+[)]", text)}


def families() -> list[str]:
    """Those that have cases."""
    return sorted(path.stem for path in CASES.glob("*.toml"))


@cache
def document_of(family: str) -> dict[str, Any]:
    """The file of a family's cases."""
    return tomllib.loads((CASES / f"{family}.toml").read_text())


def cases(*names: str) -> Iterator[Case]:
    """Every case of these families, or of all."""
    for family in names or families():
        document = document_of(family)
        shared = {key: document[key] for key in RESERVED if key in document} | document.get("base", {})
        for name, own in document["case"].items():
            said = shared | own
            if "reference" in said and "stored" in own:  # all tensors, for which the file may have rows
                said["stored"] = {
                    name: shape for name, shape in (shared.get("stored", {}) | own["stored"]).items() if shape
                }
            about = {key: said.pop(key) for key in RESERVED if key in said}
            about |= {key: tuple(about.get(key, ())) for key in ("without", "besides", "ranks", "columns", "alike")}
            yield Case(family, name, document["class"], without_null({"vocab_size": VOCABULARY, **said}), **about)


@dataclass(frozen=True)
class AdapterCase:
    """A LoRA on the model of a case: ``[adapter.NAME]``; without one, of all linear modules, on the first case.

    Attributes:
        said: arguments of peft's ``LoraConfig``.
        expect: as a case's, of the adapter's own directions.
    """

    case: Case
    name: str
    said: Mapping[str, Any]
    expect: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.case}-{self.name}"

    @property
    def digest(self) -> str:
        """Of all that a recording follows from."""
        said = json.dumps([self.case.digest, self.said], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    @property
    def recorded(self) -> dict[str, Any]:
        """What is written down of it; empty for nothing, or for what it was before it changed."""
        found: dict[str, Any] = recording(self.case.family).get("adapters", {}).get(self.name, {})
        return found if found.get("case") == self.digest else {}

    def expected(self, direction: str) -> str:
        """``right``, the refusal that is right, or that the base is refused already."""
        format = "mlx" if "mlx" in direction else "gguf"
        back = direction.endswith("->peft") and self.expected(f"peft->{format}") != "right"
        if back or self.case.expected(f"hf->{format}") != "right":
            return NO_SOURCE
        return self.expect.get(direction, self.expect.get(format, "right"))


def adapters(*names: str) -> Iterator[AdapterCase]:
    """Every adapter of these families, or of all."""
    for family in names or families():
        document = document_of(family)
        found = {case.name: case for case in cases(family)}
        for name, row in document.get("adapter", {"linear": {}}).items():
            said = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **row}
            case, expect = said.pop("case", next(iter(found))), said.pop("expect", {})
            yield AdapterCase(found[case], name, without_null(said), expect)


def without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_null(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_null(item) for item in value]
    return None if value == NULL else value


@cache
def recording(family: str) -> dict[str, Any]:
    path = RECORDS / f"{family}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def values(name: str, shape: tuple[int, ...], mean: float = 0.0, rows: str = "") -> np.ndarray:
    """A tensor's values, from its name alone.

    Matrices keep the size of what they multiply, so that attention and routers choose. Whatever has one axis, and
    decays of states, lie on a grid of 2^-12: adding 1 and taking it away is exact in float32, and so is the logarithm
    of the exponential.
    """
    if rows == "alike":
        return np.broadcast_to(values(name, shape[1:], mean), shape)
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    if rows == "ids":  # of so many, in order, each less its place
        ids = np.sort(np.random.default_rng(seed).permutation(int(mean))[: shape[0]])
        return ids - np.arange(shape[0])
    if rows == "below":  # numbers of experts, in every row others
        return np.random.default_rng(seed).random((shape[0], int(mean))).argsort(axis=1)[:, : shape[1]]
    drawn = np.random.default_rng(seed).standard_normal(shape, np.float32)
    if len(shape) > 1 and not mean and not name.endswith("A_log"):
        return drawn * np.float32(shape[-1] ** -0.5)
    return np.round((mean + drawn * np.float32(0.2)) * np.float32(4096)) / np.float32(4096)


def stored(array: np.ndarray, dtype: str) -> Array:
    """The values in a type of safetensors."""
    kinds = {"F32": np.float32, "F16": np.float16, "I64": np.int64}
    return bf16(array) if dtype == "BF16" else array.astype(kinds[dtype])


def tensors(recorded: Mapping[str, Any]) -> Tensors:
    """The checkpoint's tensors: ``name: [dtype, shape]`` or ``[dtype, shape, mean]``, and "alike" for equal rows.

    Of a table of whole numbers ``mean`` is what they are "below", or how many "ids" there are, or all of them.
    """
    return {
        name: np.array(*mean) if dtype == "I64" and len(mean) == 1 else stored(values(name, tuple(shape), *mean), dtype)
        for name, (dtype, shape, *mean) in recorded["tensors"].items()
    }


def document_text(document: Mapping[str, Any]) -> str:
    """As ``PretrainedConfig.to_json_string`` writes it."""
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def adapter(recorded: Mapping[str, Any], root: Path) -> Path:
    """Make the directory of a recorded adapter."""
    root.mkdir(parents=True)
    (root / "adapter_config.json").write_text(document_text(recorded["config"]))
    save_file(root / "adapter_model.safetensors", tensors(recorded), {"format": "pt"})
    return root


def checkpoint(recorded: Mapping[str, Any], root: Path, tokenizer: Mapping[str, str] = TOKENIZER) -> Path:
    """Make the checkpoint directory of a recorded case."""
    root.mkdir(parents=True)
    (root / "config.json").write_text(document_text(recorded["config"]))
    save_file(root / "model.safetensors", tensors(recorded), {"format": "pt"})
    for name, place in tokenizer.items():
        shutil.copyfile(ROOT / "fixtures" / place, root / name)
    return root


def agrees(outcome: str, expected: str) -> bool:
    """An outcome begins with the expected word; behind ``refused: `` a part of the sentence is enough."""
    word, _, part = expected.partition(": ")
    return outcome.split(":")[0].split()[0] == word.split()[0] and part in outcome


def kept(case: Case, rows: np.ndarray) -> np.ndarray:
    """The logits that are written down, of all that an engine computed."""
    if case.columns:
        return rows[case.positions][:, case.columns]
    if case.ranks:
        return rows[case.positions] if rows.shape[1] == len(case.ranks) else rows[case.positions][:, case.ranks]
    return rows[case.positions, :: STRIDE if rows.shape[1] > STRIDE else 1]
