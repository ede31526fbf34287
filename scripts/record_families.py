"""Record what transformers and llama.cpp's converter make of the cases of families, for tests that run without torch.

    python scripts/record_families.py [NAME ...]           write fixtures/families/NAME.json anew
    python scripts/record_families.py [NAME ...] --check   compute again and compare
    python scripts/record_families.py [NAME ...] --adapters   record adapters only

A case is a table of tests/families/NAME.toml:

    class = "Gemma2ForCausalLM"         # of transformers; that of the configuration where another's class computes it
    tolerance = { llama_cpp = 2e-3 }    # why: its GELU is a table of 16-bit floats
    [base]                              # arguments of the configuration class, the same in every case: tiny sizes, none
    hidden_size = 24                    # of them equal, so that a transposed or permuted matrix shows
    [case.tied]                         # overrides of [base]; "null" is None. vocab_size is 384 unless said
    tie_word_embeddings = true
    dtype = "bfloat16"                  # of the stored weights; float32 unless said
    [case.window]
    expect = { mlx = "refused: part of the sentence" }     # directions that are right to be refused

What a case, [base] or the file may say besides:

    expect      by direction ("hf->gguf", "gguf->hf", "hf->mlx", "gguf->mlx", "mlx->gguf", "hf->hf"), or for all that
                have to do with a format: gguf, hf, mlx
    options     fields of ckconv.Options, for every conversion; base = "." is the checkpoint itself, of a drafter
    prompt      how many positions are computed, 24 unless said
    document    keys of config.json that released checkpoints have and save_pretrained does not write
    besides     tensors and keys that outputs may have and the original has not: a tied head that llama.cpp wants
    stored      tensors that released checkpoints have and save_pretrained does not write, and their shapes; names may
                count, as those of a class of a repository do; an empty shape takes those away that a glob names
    reference   "llama_cpp": the class is code of its repository. The configuration is config.json, and "stored" of the
                file and of the case has all tensors: "{num_hidden_layers}" in a name is one for each layer,
                "{first_k_dense_replace:num_hidden_layers}" from the first on, a size may be an expression over the
                configuration and n, the layer (of size 0 there is none), an empty shape takes a tensor away. The logits
                are llama.cpp's, of its own converter's file; a checkpoint that comes back is right if the converter
                makes the same of it. "mlx_lm": those of mlx-lm, of what llama.cpp does not compute
                "none": as "llama_cpp", and nobody computes it alone, as a drafter
    columns     the only logits that are compared, where engines leave out others
    alike       parts of names of tensors whose rows are all the first
    renamed     parts of names that save_pretrained writes, and what released checkpoints have there
    without     a list of keys of config.json that they do not have
    tolerance   of the logits of llama_cpp, mlx_lm, transformers; 1e-4 unless said
    converter   about llama.cpp's: { wrong = "why it is not asked" }, { document = {..} } (keys that it needs besides),
                { plain = true } (it reads config.json itself, not what transformers makes of it),
                { otherwise = [..] } (keys that it writes with a value that llama.cpp does not compute right,
                and tensors whose values it changes where nothing depends on it),
                { arguments = [..] } (of its command line besides), { vocabulary = true } (its own rule for them)
    tokenizer   name of a file beside the checkpoint -> where it lies in fixtures; OLMo 2's unless said

A LoRA is converted and merged, too: of all linear modules, on the first case, unless tables [adapter.NAME] say others:
`case`, `expect` (by direction, "peft->gguf", "peft->mlx", "merged->gguf", "merged->mlx", "gguf->peft", "mlx->peft", or
by format), and arguments of peft's LoraConfig.

Every outcome is printed, a line a case. What is neither right nor expected is wrong, and the exit status is 1;
tests/test_families_cases.py says the same without torch. LLAMA_CPP_SOURCES names the folder of convert_hf_to_gguf.py
(the sdist of llama-cpp-python has it in vendor/llama.cpp), LLAMA_CPP_LIBRARY the libraries (scripts/fetch_oracles.sh).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import inspect
import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import consumers  # noqa: E402
import family_cases  # noqa: E402
import numpy as np  # noqa: E402
from family_adapters import DIRECTIONS as USED, AdapterRun  # noqa: E402
from family_directions import Run, read_gguf, rounded  # noqa: E402

#: Names of safetensors' types in torch.
TYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass
class Programs:
    """Everything that is asked, each in a process of its own."""

    transformers: consumers.Consumer
    mlx_lm: consumers.Consumer
    llama_cpp: consumers.Consumer
    converter: consumers.Consumer | None


def described(case: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same of a case whose tensors it names itself; scales of norms are about 1."""
    config = {"architectures": [case.model_class], "torch_dtype": case.dtype, **case.overrides}
    kind = next(kind for kind, dtype in TYPES.items() if dtype == case.dtype)
    found: dict[str, Any] = {}
    for name, shape in case.named:
        if name == "d2t":
            found[name] = ["I64", shape, config["vocab_size"], "ids"]
            continue
        found[name] = [kind, shape, *([1.0] if len(shape) == 1 and name.endswith(("weight", "_g")) else [])]
    document = {key: value for key, value in config.items() if key not in case.without}
    return {**document, **family_cases.without_null(case.document)}, found


def saved(case: Any, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and ``name: [dtype, shape, mean]`` of what ``save_pretrained`` writes; a norm begins at 1 or at 0."""
    if case.reference != "transformers":
        return described(case)
    import torch
    import transformers
    import transformers_logits
    from safetensors import safe_open

    transformers.logging.disable_progress_bar()
    made = getattr(transformers, case.model_class)
    torch.manual_seed(0)
    config = getattr(made, "config_class", made)(**deepcopy(case.overrides), dtype=case.dtype)  # it fills in tables
    encoder = "CausalLM" not in case.model_class and hasattr(made, "config_class") and "LMHead" not in case.model_class
    unpooled = {"add_pooling_layer": False} if "add_pooling_layer" in inspect.signature(made).parameters else {}
    model = made(config, **unpooled) if encoder else transformers_logits.auto_class(config).from_config(config)
    model.to(getattr(torch, case.dtype)).save_pretrained(folder)
    found: dict[str, Any] = {}
    with safe_open(folder / "model.safetensors", "pt") as file:
        names = file.keys()
        for name in names:
            tensor = file.get_tensor(name)
            first = float(tensor.flatten()[0])
            constant = first and bool((tensor == first).all())
            kind = file.get_slice(name).get_dtype()
            for theirs, released in case.renamed.items():
                name = name.replace(theirs, released)
            found[name] = [kind, list(tensor.shape), *([first] if constant else [])]
            if kind == "I64":
                below = [config.n_routed_experts, "below"] if len(tensor.shape) > 1 else [tensor.tolist()]
                found[name] = [kind, list(tensor.shape), *below]
            if len(tensor.shape) > 1 and any(part in name for part in case.alike):
                found[name] = [kind, list(tensor.shape), first if constant else 0.0, "alike"]
    kind = next(kind for kind, dtype in TYPES.items() if dtype == case.dtype)
    found |= {name: [kind, shape] for name, shape in case.named}
    gone = [glob for glob, shape in case.stored.items() if not shape]
    found = {name: what for name, what in found.items() if not any(fnmatchcase(name, glob) for glob in gone)}
    document = json.loads((folder / "config.json").read_text())
    document = {key: value for key, value in document.items() if key not in case.without}
    return {**document, **family_cases.without_null(case.document)}, found


def record(case: Any, programs: Programs, place: Path, *, check: bool) -> dict[str, Any]:
    """What the tests hold a case against; a check takes the version of transformers that is recorded."""
    config, tensors = saved(case, place / "saved")
    if check and case.recorded and "transformers_version" in config:
        config["transformers_version"] = case.recorded["config"].get("transformers_version")
    made: dict[str, Any] = {"case": case.digest, "config": config, "tensors": tensors, "converter": {}, "proven": {}}
    folder = family_cases.checkpoint(made, place / "hf", case.tokenizer)
    if case.reference == "transformers":
        made["logits"] = written_down(case, programs.transformers.logits(folder, case.tokens, strict=not case.stored))
    elif case.reference == "none":
        made["logits"] = []
    else:
        own = case.reference == "mlx_lm"
        asked = folder if own else converted(case, programs, folder, place / "wide.gguf", "f32")
        made["logits"] = written_down(case, getattr(programs, case.reference).logits(asked, case.tokens))
    if "wrong" not in case.converter:
        made["converter"] = read_gguf(converted(case, programs, folder, place / "theirs.gguf"))
        tasks = {path.name[len("lora-") : -len("-theirs.gguf")]: path for path in place.glob("lora-*-theirs.gguf")}
        made |= {"tasks": {name: read_gguf(tasks[name]) for name in sorted(tasks)}} if tasks else {}
    return made


def converted(case: Any, programs: Programs, folder: Path, out: Path, kind: str = "") -> Path:
    """What llama.cpp's converter makes of a checkpoint."""
    assert programs.converter is not None, "LLAMA_CPP_SOURCES names the folder of convert_hf_to_gguf.py"
    kind = kind or ("f32" if case.dtype == "float32" else "auto")
    asked = {"model": str(folder), "out": str(out), "type": kind, "document": {}, "arguments": [], "vocabulary": False}
    asked["arguments"] = ["--target-model-dir", str(folder)] if "base" in case.options else []
    asked |= {"plain": case.reference != "transformers"}
    said = programs.converter.ask(asked | family_cases.without_null(dict(case.converter)))
    if said:
        raise ValueError(f"llama.cpp's converter: {said}")
    return out


def record_adapter(adapter: Any, programs: Programs, base: Path, place: Path) -> dict[str, Any]:
    """What the tests hold an adapter against: tensors and configuration as peft saves them, and the logits."""
    import peft
    import torch
    import transformers
    import transformers_logits
    from safetensors import safe_open

    model = transformers_logits.auto_class(transformers.AutoConfig.from_pretrained(base)).from_pretrained(base)
    said = deepcopy(dict(adapter.said))
    if said["target_modules"] == "all-linear":  # peft's own word means experts, too
        known = (torch.nn.Linear, transformers.pytorch_utils.Conv1D)
        found = {name: module for name, module in model.named_modules() if isinstance(module, known)}
        said["target_modules"] = [name for name in found if found[name] is not model.get_output_embeddings()]
    made = peft.get_peft_model(model, peft.LoraConfig(**said))
    made.peft_config["default"].base_model_name_or_path = str(adapter.case)
    made.save_pretrained(place / "saved")
    with safe_open(place / "saved" / "adapter_model.safetensors", "pt") as file:
        names = file.keys()
        tensors = {name: ["F32", list(file.get_slice(name).get_shape())] for name in names}
    document = json.loads((place / "saved" / "adapter_config.json").read_text())
    kept = {key: sorted(value) if isinstance(value, list) else value for key, value in document.items()}
    recorded: dict[str, Any] = {"case": adapter.digest, "config": kept, "tensors": tensors}
    folder = family_cases.adapter(recorded, place / "peft")
    rows = programs.transformers.logits(base, adapter.case.tokens, adapter=folder)
    recorded["logits"] = written_down(adapter.case, rows)
    return recorded


def written_down(case: Any, rows: np.ndarray) -> list[list[float]]:
    """The logits that are kept, to seven digits."""
    return [[float(f"{value:.7g}") for value in row] for row in family_cases.kept(case, rows)]


@dataclass
class Proofs:
    """Checkpoints that ckconv wrote, loaded and computed by transformers; kept as digests of their config.json."""

    case: Any
    programs: Programs
    recorded: Mapping[str, Any]
    found: dict[str, str] = field(default_factory=dict)

    def __call__(self, direction: str, folder: Path) -> str:
        """Empty where the directory is the same model to transformers."""
        wrong = self._converted(folder) if self.case.reference in ("llama_cpp", "none") else self._computed(folder)
        if wrong:
            return wrong
        self.found[direction] = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
        return ""

    def _computed(self, folder: Path) -> str:
        try:
            program = getattr(self.programs, self.case.reference)
            rows = program.logits(folder, self.case.tokens, strict=not self.case.stored)
        except consumers.DoesNotRun as error:
            return f"{self.case.reference}: {error}"
        wanted = np.array(self.recorded["logits"], np.float32)
        off = float(np.abs(family_cases.kept(self.case, rows) - wanted).max())
        return "" if off <= self.case.limit("transformers") else f"logits are off by {off:.2g}"

    def _converted(self, folder: Path) -> str:
        if not (wanted := self.recorded["converter"]):  # its file is computed otherwise: the tensors are the proof
            return ""
        try:
            made = read_gguf(converted(self.case, self.programs, folder, folder.with_suffix(".again.gguf")))
        except ValueError as error:
            return str(error)
        made["keys"] = {key: value for key, value in made["keys"].items() if key in wanted["keys"]}  # it may say more
        other = self.case.converter.get("otherwise", ())
        made["tensors"] |= {name: it for name, it in wanted["tensors"].items() if name in other}
        return "" if same(made, wanted) else "llama.cpp's converter makes another file of it"


def run(case: Any, programs: Programs, recorded: dict[str, Any], place: Path) -> list[str]:
    """Every outcome is recorded; those that are neither right nor expected."""
    proofs = Proofs(case, programs, recorded)
    running = Run(case, place, proofs, recorded)
    outcomes = running.outcomes({"llama_cpp": programs.llama_cpp, "mlx_lm": programs.mlx_lm})
    wrong = [f"{direction}: {said}" for direction, said in running.unexpected(outcomes).items()]
    outcomes["bump"] = running.bump()
    recorded["proven"] = proofs.found
    recorded["outcomes"] = outcomes
    return wrong


def same(ours: Any, theirs: Any) -> bool:
    """Whether two recorded parts are alike, but for exponentials, whose last bits are another machine's."""
    if not (ours and theirs and "tensors" in ours and "tensors" in theirs):
        return bool(ours == theirs)
    return bool(ours["keys"] == theirs["keys"] and rounded(ours["tensors"], theirs["tensors"]) == theirs["tensors"])


def moved(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[str]:
    """What is not as it was recorded."""
    if not theirs:
        yield "not recorded as it stands now"
        return
    wanted = np.array(theirs["logits"])
    off = float(np.abs(np.array(ours["logits"]) - wanted).max(initial=0.0))
    if not off < 1e-4 * max(1.0, float(np.abs(wanted).max(initial=0.0))):  # another machine adds in another order
        yield f"logits moved by {off:.2g}"
    parts = ("config", "tensors", "converter", "proven")
    yield from (f"{key} moved" for key in parts if not same(ours.get(key), theirs.get(key)))
    # The sentence of a refusal is its author's; a case's `expect` says what has to stand in it. How far a right one is
    # off is held to the tolerance.
    became = [
        {key: re.split("[: ]", said)[0] for key, said in one["outcomes"].items() if " " not in key}
        for one in (ours, theirs)
    ]
    yield from (f"{key} moved: {ours['outcomes'][key]}" for key in became[0] if became[0][key] != became[1].get(key))


def written(made: Any, depth: int = 0) -> str:
    """JSON, a line for each entry down to that of one tensor, key or row of logits."""
    if isinstance(made, dict) and depth < 4 and made:
        lines = (f"{json.dumps(key)}: {written(value, depth + 1)}" for key, value in made.items())
        return "{\n" + ",\n".join(" " * (depth + 1) + line for line in lines) + "\n" + " " * depth + "}"
    return json.dumps(made, separators=(",", ":") if depth > 2 else None)


def main() -> int:
    """Run from the command line; 1 if something is wrong, or moved."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "PYTHONWARNINGS": "ignore"}
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--adapters", action="store_true", help="adapters only; cases stay as they are recorded")
    asked = parser.parse_args()
    wrong = 0
    with ExitStack() as stack:
        sources = os.environ.get("LLAMA_CPP_SOURCES", "")
        converter = consumers.Consumer("../scripts/llama_cpp_converter.py", sources) if sources else None
        programs = Programs(consumers.transformers(), consumers.mlx_lm(), consumers.llama_cpp(), converter)
        for program in vars(programs).values():
            if program is not None:
                stack.enter_context(program)
        for family in asked.names or family_cases.families():
            wrong |= family_recorded(family, programs, check=asked.check, only_adapters=asked.adapters)
    return wrong


def family_recorded(family: str, programs: Programs, *, check: bool, only_adapters: bool) -> int:
    """All cases of a family, and its adapters; 1 if something is wrong, or moved."""
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "torch", "peft", "mlx-lm")}
    made: dict[str, Any] = {"versions": versions, "adapters": {}}
    wrong = 0
    for case in family_cases.cases(family):
        if only_adapters:
            made[case.name] = case.recorded
        else:
            wrong |= case_recorded(case, programs, made, check)
    for adapter in family_cases.adapters(family):
        if made.get(adapter.case.name) and any(adapter.expected(name) != family_cases.NO_SOURCE for name in USED):
            wrong |= adapter_recorded(adapter, programs, made, check)
    if not check:
        (family_cases.RECORDS / f"{family}.json").write_text(written(made) + "\n")
    return wrong


def case_recorded(case: Any, programs: Programs, made: dict[str, Any], check: bool) -> int:
    """One case, into what is made of the family; 1 if something is wrong, or moved."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            ours = record(case, programs, Path(folder), check=check)
            wrong = run(case, programs, ours, Path(folder) / "run")
        except (ValueError, consumers.DoesNotRun) as error:
            print(f"{case}: WRONG {error}", flush=True)
            return 1
    made[case.name] = ours
    return told(case, ours, [*wrong, *(moved(ours, case.recorded) if check else ())])


def adapter_recorded(adapter: Any, programs: Programs, made: dict[str, Any], check: bool) -> int:
    """One adapter, the same."""
    with tempfile.TemporaryDirectory() as folder:
        base = Run(adapter.case, Path(folder) / "run", lambda direction, place: "", made[adapter.case.name])
        try:
            ours = record_adapter(adapter, programs, base.source, Path(folder))
        except (ValueError, consumers.DoesNotRun) as error:
            print(f"{adapter}: WRONG {error}", flush=True)
            return 1
        running = AdapterRun(adapter, base, Path(folder) / "adapted", ours)
        ours["outcomes"] = running.outcomes({"llama_cpp": programs.llama_cpp, "mlx_lm": programs.mlx_lm})
    made["adapters"][adapter.name] = ours
    wrong = [f"{direction}: {said}" for direction, said in running.unexpected(ours["outcomes"]).items()]
    return told(adapter, ours, [*wrong, *(moved(ours, adapter.recorded) if check else ())])


def told(name: object, ours: Mapping[str, Any], wrong: list[str]) -> int:
    """Print every outcome in one line, and what is wrong in one each."""
    print(f"{name}: {'; '.join(f'{key} {value[:100]}' for key, value in ours['outcomes'].items())}", flush=True)
    for line in wrong:
        print(f"{name}: WRONG {line}", flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
