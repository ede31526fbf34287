"""Each direction that a case of a family is converted in, and what became of it.

An outcome is ``right``, ``refused: the message``, or says what is wrong. Whatever is compared was recorded from
transformers, or from llama.cpp's own converter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import consumers
import gguf
import numpy as np
from family_cases import DIRECTIONS, NO_SOURCE, Case, agrees, checkpoint, kept
from safetensors_builder import numbers, tensors_of

import ckconv
from ckconv.errors import CkconvError
from ckconv.formats.mlx.plan import EIGHT, default_of, quantization_of

#: Engine -> the directions whose outputs it computes.
ENGINES = {"llama_cpp": ("hf->gguf",), "mlx_lm": ("hf->mlx", "gguf->mlx")}

#: What the document of a converted checkpoint is: its digest is recorded once transformers has loaded and computed it.
Proof = Callable[[str, Path], str]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def read_gguf(path: Path) -> dict[str, Any]:
    """Tensors and the architecture's keys, read by the gguf package."""
    reader = gguf.GGUFReader(path)
    found = {}
    for tensor in reader.tensors:
        exponentials = tensor.name.endswith("ssm_a")
        data = tensor.data.ravel().tolist() if exponentials else digest(tensor.data.tobytes())
        found[tensor.name] = [tensor.tensor_type.name, [int(n) for n in reversed(tensor.shape)], data]
    outside = ("general.", "tokenizer.", "GGUF.", "split.")
    keys = {
        key: ["/".join(kind.name for kind in f.types), f.contents()]
        for key, f in reader.fields.items()
        if not key.startswith(outside)
    }
    keys["general.architecture"] = ["STRING", reader.fields["general.architecture"].contents()]
    return {"keys": keys, "tensors": found}


def other_tensors(made: Path, wanted: Path, besides: tuple[str, ...] = (), lost: Collection[str] = ()) -> str:
    """Which tensors of two checkpoints differ in name, shape or value; a wider type of equal values does not count.

    Args:
        besides, lost: those that only the first, or only the second may have.
    """
    ours, theirs = tensors_of(made), tensors_of(wanted)
    ours = {name: entry for name, entry in ours.items() if name in theirs or name not in besides}
    theirs = {name: entry for name, entry in theirs.items() if name in ours or name not in lost}
    for name in {*besides} & ours.keys() & theirs.keys():  # zeros stand for it, or for rows that nothing reads
        del ours[name], theirs[name]
    if ours.keys() != theirs.keys():
        return f"other tensors: {differing(dict.fromkeys(theirs), dict.fromkeys(ours))}"
    wrong = [
        name
        for name, (dtype, shape, data) in theirs.items()
        if shape != ours[name][1] or not np.array_equal(numbers(dtype, data), numbers(ours[name][0], ours[name][2]))
    ]
    return f"other values: {', '.join(wrong[:4])}" if wrong else ""


def differing(wanted: Mapping[str, Any], made: Mapping[str, Any]) -> str:
    """What a mapping lacks, has besides, or has otherwise."""
    lacking = [f"no {key} {shown(wanted[key])}" for key in wanted if key not in made]
    more = [f"{key} {shown(made[key])} besides" for key in made if key not in wanted]
    other = [
        f"{key} {shown(made[key])}, not {shown(wanted[key])}"
        for key in wanted
        if key in made and made[key] != wanted[key]
    ]
    found = [*lacking, *more, *other]
    return "; ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")


def rounded(made: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors whose numbers are written down, with those of others that are at most four units in the last place off.

    They are exponentials, which every library rounds in its own way.
    """
    found = dict(made)
    for name in made.keys() & wanted.keys():
        ours, theirs = made[name][2], wanted[name][2]
        if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
            units = np.array(ours, np.float32).view(np.int32) - np.array(theirs, np.float32).view(np.int32)
            halves = np.array(ours, np.float16), np.array(theirs, np.float16)  # of an FP16 checkpoint, in that type
            near = np.abs(halves[0].view(np.int16) - halves[1].view(np.int16)).max() <= 1
            if np.abs(units).max() <= 4 or (near and (halves[1] == np.array(theirs)).all()):
                found[name] = [*made[name][:2], theirs]
    return found


def shown(value: Any) -> str:
    return "" if value is None else json.dumps(value)[:80]


def close(case: Case, engine: str, rows: np.ndarray, recorded: Mapping[str, Any]) -> str:
    """``right``, with the largest difference of computed logits from the recorded ones, or what is wrong."""
    wanted, found = np.array(recorded["logits"], np.float32), kept(case, rows)
    if case.ranks and engine == "llama_cpp":
        wanted = np.exp(wanted) / np.exp(wanted).sum(1, keepdims=True)
    columns = wanted.shape[1]
    if found.shape[1] < columns:
        return f"{found.shape[1]} of {columns} logits"
    off = float(np.abs(found[:, :columns] - wanted).max())
    allowed = case.limit(engine) * min(1.0, float(wanted.std()))  # some families divide their logits
    return f"right {off:.1g}" if off <= allowed else f"off by {off:.2g}, {allowed:.1g} is allowed"


def said(error: CkconvError) -> str:
    """The error in one line, without its path."""
    words = "; ".join((error.message, *error.details))
    return f"{'refused' if error.exit_code == 4 else 'failed'}: {words}"


@dataclass
class Run:
    """A case, converted in every direction, each result in a folder of its own.

    Attributes:
        proof: what is said of the directory of a direction that makes a checkpoint; empty where it is right.
        recorded: what the case was recorded with.
        verify: whether what is written is compared with the source.
    """

    case: Case
    place: Path
    proof: Proof
    recorded: Mapping[str, Any]
    verify: bool = True
    made: dict[str, str] = field(default_factory=dict)

    @cached_property
    def base(self) -> Path:
        """A directory of the model that a drafter drafts for: its tokenizer, and as many layers as the drafter says."""
        drafter = self.recorded["config"]
        size = drafter.get("target_hidden_size", drafter["hidden_size"])
        config = {**drafter, "num_hidden_layers": drafter["num_target_layers"], "hidden_size": size}
        return checkpoint({**self.recorded, "config": config}, self.place / "base", self.case.tokenizer)

    @cached_property
    def source(self) -> Path:
        return checkpoint(self.recorded, self.place / "source", self.case.tokenizer)

    @cached_property
    def gguf(self) -> dict[str, Any]:
        """What the checkpoint became."""
        return read_gguf(self.result("hf->gguf"))

    def convert(self, direction: str) -> str:
        """Convert; empty, or why not. Every step before is done first."""
        if direction not in self.made:
            self.made[direction] = self._convert(direction)
        return self.made[direction]

    def result(self, direction: str) -> Path:
        """What a conversion wrote."""
        name = direction.replace("->", "-")
        return self.place / (f"{name}.gguf" if direction.endswith("gguf") else name)

    def _convert(self, direction: str) -> str:
        first, _, last = direction.partition("->")
        source = self.source
        if first != "hf":
            if self.convert(f"hf->{first}"):
                return NO_SOURCE
            source = self.result(f"hf->{first}")
        to = {"hf": "safetensors"}.get(last, last)
        try:
            options = ckconv.Options(**self.options(direction))
            ckconv.convert(source, self.result(direction), to=to, jobs=1, verify=self.verify, options=options)
        except CkconvError as error:
            return said(error)
        return ""

    def options(self, direction: str = "") -> dict[str, Any]:
        """Of every conversion of the case; what is dropped is in the checkpoint only, and its copy has it."""
        found = {key: tuple(value) if isinstance(value, list) else value for key, value in self.case.options.items()}
        if direction not in ("", "hf->gguf", "hf->mlx"):
            found.pop("drop", None)
        if found.pop("base", None) and direction in ("", "hf->gguf"):
            found["base"] = self.base
        return found

    def outcome(self, direction: str) -> str:
        """What became of a direction."""
        return self.convert(direction) or self._wrong(direction) or "right"

    def _wrong(self, direction: str) -> str:
        made = self.result(direction)
        if direction == "hf->gguf":
            theirs = self.recorded["converter"]
            if not theirs:
                return ""
            return self._other_gguf(self._without_besides(theirs, theirs), self._without_besides(self.gguf, theirs))
        if direction == "mlx->gguf":
            if self.convert("hf->gguf"):
                return "the checkpoint itself is refused"
            return self._other_gguf(self.gguf, read_gguf(made))
        if direction.endswith("->hf"):
            lost = [name for name, _ in self.case.named] if self.case.reference == "transformers" else ()
            other = other_tensors(made, self.source, self.case.besides, lost) or self.proof(direction, made)
            return other or (self._refused_again(made) if direction == "gguf->hf" else "")
        return ""

    def _refused_again(self, made: Path) -> str:
        """Why the checkpoint that a GGUF became is no source of a GGUF; empty where it is."""
        options = self.options("gguf->hf") | {key: it for key, it in self.options().items() if key == "base"}
        plan = ckconv.dry_run(made, self.place / "again.gguf", options=ckconv.Options(**options))
        return f"what came back is refused: {plan.refusals[0]}" if plan.refusals else ""

    def _without_besides(self, made: dict[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
        besides = set(self.case.besides) - wanted["tensors"].keys() - wanted["keys"].keys()
        besides |= {*self.case.converter.get("otherwise", ())}
        return {part: {name: found for name, found in made[part].items() if name not in besides} for part in made}

    def _other_gguf(self, wanted: Mapping[str, Any], made: Mapping[str, Any]) -> str:
        tensors = rounded(made["tensors"], wanted["tensors"])
        return differing(wanted["tensors"], tensors) or differing(wanted["keys"], made["keys"])

    def outcomes(self, engines: Mapping[str, consumers.Consumer], asked: Sequence[str] = DIRECTIONS) -> dict[str, str]:
        """What became of the directions, and of what engines compute of the right ones."""
        found = {direction: self.outcome(direction) for direction in asked}
        for name, directions in ENGINES.items() if self.case.reference != "none" else ():
            for direction in directions:
                if name in engines and found.get(direction) == "right":
                    found[f"{name} {direction}"] = self.computes(name, engines[name], direction)
        return found

    def unexpected(self, outcomes: Mapping[str, str]) -> dict[str, str]:
        """What is neither right nor expected; what a wrong one was to be the source of is not said besides."""
        wanted = {direction: self.case.expected(direction) for direction in outcomes}
        return {
            direction: f"{outcome} ({wanted[direction]} is expected)" if wanted[direction] != "right" else outcome
            for direction, outcome in outcomes.items()
            if outcome != NO_SOURCE and not agrees(outcome, wanted[direction])
        }

    def computes(self, name: str, engine: consumers.Consumer, direction: str) -> str:
        """What an engine computes of an output: ``right``, with the largest difference, or what is wrong."""
        try:
            rows = engine.logits(self.for_engine(name, direction), self.case.tokens)
        except consumers.DoesNotRun as error:
            return f"does not run: {error}"
        return close(self.case, name, rows, self.recorded)

    def for_engine(self, engine: str, direction: str) -> Path:
        """The output; llama.cpp rounds what it multiplies BF16 and F16 by, so it is asked about the same in float32."""
        if engine != "llama_cpp" or self.case.dtype == "float32":
            return self.result(direction)
        wide = self.place / "wide.gguf"
        ckconv.convert(self.source, wide, verify=False, options=ckconv.Options(**self.options(), dtype="f32"))
        return wide

    def bump(self) -> str:
        """Versions of bump files that hold the model, or why none does."""
        held, refusal = [], ""
        for version in (3, 5):
            options = ckconv.Options(**self.options(), bump_version=version, source_record=False)
            try:
                ckconv.convert(self.source, self.place / f"{version}.bump", options=options)
                held.append(str(version))
            except CkconvError as error:
                refusal = said(error)
        return " ".join(held) or refusal


#: Modules of a class that leaves them out in some layers: they have codes in every layer here.
_IN_SOME_LAYERS = ("attention.q_proj", "attention.g_proj")


def otherwise_than_the_class(folder: Path) -> list[tuple[str, str, str]]:
    """Modules of the class that ckconv quantizes otherwise: path, what ckconv makes of it, what is asked for.

    A matrix that is no ``nn.Linear`` is quantized by nobody; of others ``quant_predicate`` says what is asked for.

    Raises:
        ValueError: the class is of another program than mlx-lm.
    """
    from mlx_lm import utils

    model, config = utils.load_model(folder, lazy=True)
    name = config["model_type"]
    found = quantized_otherwise(model, name)
    return [one for one in found if not (name == "bailing_moe_v3" and one[0].endswith(_IN_SOME_LAYERS))]


def quantized_otherwise(model: Any, name: str) -> Iterator[tuple[str, str, str]]:
    """The same of a loaded class, of the name that ckconv has for it."""
    general = quantization_of("affine:4:32", "")
    asked = getattr(model, "quant_predicate", None) or (lambda path, module: True)
    for path, module in model.named_modules():
        matrix = module.get("weight")
        if matrix is None or matrix.ndim < 2 or "Conv" in type(module).__name__:
            continue
        said = hasattr(module, "to_quantized") and asked(path, module)
        theirs = EIGHT if isinstance(said, dict) else general if said else None
        ours = default_of(path, name, general, 64)
        if ours != theirs:
            yield path, str(ours), str(theirs)
