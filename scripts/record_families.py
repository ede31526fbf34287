"""Record what transformers and llama.cpp's converter make of the cases of families, for tests that run without torch.

    python scripts/record_families.py [NAME ...]           write fixtures/families/NAME.json anew
    python scripts/record_families.py [NAME ...] --check   compute again and compare

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
    options     fields of ckconv.Options, for every conversion
    prompt      how many positions are computed, 24 unless said
    document    keys of config.json that released checkpoints have and save_pretrained does not write
    besides     tensors that outputs may have and the original has not: a tied head that llama.cpp wants written
    without     a list of keys of config.json that they do not have
    tolerance   of the logits of llama_cpp, mlx_lm, transformers; 1e-4 unless said
    converter   about llama.cpp's: { wrong = "why it is not asked" }, { document = {..} } (keys that it needs besides),
                { plain = true } (it reads config.json itself, not what transformers makes of it)

Every outcome is printed, a line a case. What is neither right nor expected is wrong, and the exit status is 1;
tests/test_families_cases.py says the same without torch. LLAMA_CPP_SOURCES names the folder of convert_hf_to_gguf.py
(the sdist of llama-cpp-python has it in vendor/llama.cpp), LLAMA_CPP_LIBRARY the libraries (scripts/fetch_oracles.sh).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import consumers  # noqa: E402
import family_cases  # noqa: E402
import numpy as np  # noqa: E402
from family_directions import Run, read_gguf  # noqa: E402

#: Names of safetensors' types in torch.
TYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass
class Programs:
    """Everything that is asked, each in a process of its own."""

    transformers: consumers.Consumer
    mlx_lm: consumers.Consumer
    llama_cpp: consumers.Consumer
    converter: consumers.Consumer | None


def saved(case: Any, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and ``name: [dtype, shape, mean]`` of what ``save_pretrained`` writes; a norm begins at 1 or at 0."""
    import torch
    import transformers
    from safetensors import safe_open

    transformers.logging.disable_progress_bar()
    made = getattr(transformers, case.model_class)
    torch.manual_seed(0)
    config = getattr(made, "config_class", made)(**deepcopy(case.overrides), dtype=case.dtype)  # it fills in tables
    transformers.AutoModelForCausalLM.from_config(config).to(getattr(torch, case.dtype)).save_pretrained(folder)
    found: dict[str, Any] = {}
    with safe_open(folder / "model.safetensors", "pt") as file:
        names = file.keys()
        for name in names:
            tensor = file.get_tensor(name)
            first = float(tensor.flatten()[0])
            constant = first and bool((tensor == first).all())
            kind = file.get_slice(name).get_dtype()
            found[name] = [kind, list(tensor.shape), *([first] if constant else [])]
    document = json.loads((folder / "config.json").read_text())
    document = {key: value for key, value in document.items() if key not in case.without}
    return {**document, **family_cases.without_null(case.document)}, found


def record(case: Any, programs: Programs, place: Path) -> dict[str, Any]:
    """What the tests hold a case against."""
    config, tensors = saved(case, place / "saved")
    made: dict[str, Any] = {"case": case.digest, "config": config, "tensors": tensors, "converter": {}, "proven": {}}
    folder = family_cases.checkpoint(made, place / "hf")
    rows = family_cases.kept(case, programs.transformers.logits(folder, case.tokens, strict=True))
    made["logits"] = [[float(f"{value:.7g}") for value in row] for row in rows]
    if "wrong" not in case.converter:
        assert programs.converter is not None, "LLAMA_CPP_SOURCES names the folder of convert_hf_to_gguf.py"
        kind = "f32" if case.dtype == "float32" else "auto"
        asked = {"model": str(folder), "out": str(place / "theirs.gguf"), "type": kind, "document": {}, "plain": False}
        said = programs.converter.ask(asked | family_cases.without_null(dict(case.converter)))
        if said:
            raise ValueError(f"llama.cpp's converter: {said}")
        made["converter"] = read_gguf(place / "theirs.gguf")
    return made


@dataclass
class Proofs:
    """Checkpoints that ckconv wrote, loaded and computed by transformers; kept as digests of their config.json."""

    case: Any
    program: consumers.Consumer
    wanted: np.ndarray
    found: dict[str, str] = field(default_factory=dict)

    def __call__(self, direction: str, folder: Path) -> str:
        """Empty where the directory is the same model to transformers."""
        try:
            rows = self.program.logits(folder, self.case.tokens, strict=True)
        except consumers.DoesNotRun as error:
            return f"transformers: {error}"
        off = float(np.abs(family_cases.kept(self.case, rows) - self.wanted).max())
        if not off <= self.case.limit("transformers"):
            return f"transformers' logits are off by {off:.2g}"
        self.found[direction] = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
        return ""


def run(case: Any, programs: Programs, recorded: dict[str, Any], place: Path) -> list[str]:
    """Every outcome is recorded; those that are neither right nor expected."""
    proofs = Proofs(case, programs.transformers, np.array(recorded["logits"], np.float32))
    running = Run(case, place, proofs, recorded)
    outcomes = running.outcomes({"llama_cpp": programs.llama_cpp, "mlx_lm": programs.mlx_lm})
    wrong = [f"{direction}: {said}" for direction, said in running.unexpected(outcomes).items()]
    outcomes["bump"] = running.bump()
    recorded["proven"] = proofs.found
    recorded["outcomes"] = outcomes
    return wrong


def moved(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[str]:
    """What is not as it was recorded."""
    if not theirs:
        yield "not recorded as it stands now"
        return
    off = float(np.abs(np.array(ours["logits"]) - np.array(theirs["logits"])).max())
    if not off < 1e-4:
        yield f"logits moved by {off:.2g}"
    yield from (f"{key} moved" for key in ("config", "tensors", "converter", "proven") if ours[key] != theirs[key])
    refused = [{key: said for key, said in one["outcomes"].items() if " " not in key} for one in (ours, theirs)]
    yield from (f"{key} moved: {refused[0][key]}" for key in refused[0] if refused[0][key] != refused[1].get(key))


def written(made: Any, depth: int = 0) -> str:
    """JSON, a line for each entry down to that of one tensor, key or row of logits."""
    if isinstance(made, dict) and depth < 4 and made:
        lines = (f"{json.dumps(key)}: {written(value, depth + 1)}" for key, value in made.items())
        return "{\n" + ",\n".join(" " * (depth + 1) + line for line in lines) + "\n" + " " * depth + "}"
    return json.dumps(made, separators=(",", ":") if depth > 2 else None)


def main() -> int:
    """Run from the command line; 1 if something is wrong, or moved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--check", action="store_true")
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
            wrong |= family_recorded(family, programs, check=asked.check)
    return wrong


def family_recorded(family: str, programs: Programs, *, check: bool) -> int:
    """All cases of a family; 1 if something is wrong, or moved."""
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "torch", "mlx-lm")}
    made: dict[str, Any] = {"versions": versions}
    wrong = 0
    for case in family_cases.cases(family):
        with tempfile.TemporaryDirectory() as folder:
            try:
                ours = record(case, programs, Path(folder))
                said = run(case, programs, ours, Path(folder) / "run")
            except (ValueError, consumers.DoesNotRun) as error:
                print(f"{case}: WRONG {error}")
                wrong = 1
                continue
        said += moved(ours, case.recorded) if check else []
        print(f"{case}: {'; '.join(f'{key} {value[:100]}' for key, value in ours['outcomes'].items())}", flush=True)
        for line in said:
            print(f"{case}: WRONG {line}", flush=True)
        wrong |= bool(said)
        made[case.name] = ours
    if not check:
        (family_cases.RECORDS / f"{family}.json").write_text(written(made) + "\n")
    return wrong


if __name__ == "__main__":
    raise SystemExit(main())
