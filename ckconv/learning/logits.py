"""Logits of a pair and of a model of other sizes, by two engines.

Each library runs in a process of its own: an assertion of llama.cpp ends it, and what the library holds is gone with
it. No code of a checkpoint's repository runs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ckconv.core.metadata import text_key
from ckconv.errors import CkconvError, InputError, missing_package
from ckconv.families.keys import ANY
from ckconv.families.merge import listed
from ckconv.families.schema import load
from ckconv.formats.detect import open_index
from ckconv.learning.check import check
from ckconv.learning.pair import Pair
from ckconv.options import Options

#: Positions that are computed.
_LENGTH = 24

#: How far logits may be apart, in parts of the largest: of float32, whose GELU llama.cpp takes from a table of 16-bit
#: floats; of halves, to which it rounds what it multiplies them with.
_CLOSE = {"F32": 2e-3, "BF16": 5e-2, "F16": 5e-2}

#: Elements of the model that is made; a wider one is made narrower.
_MOST, _WIDE, _DEEP, _MANY = 400_000_000, 512, 8, 32

#: Files beside weights that are copied: those of the tokenizer.
_BESIDE = (".json", ".txt", ".model", ".jinja")
_LARGEST = 64 << 20

#: Seconds that a library has for a model.
_LONGEST = 3600

_WITHOUT = "--check pair compares no logits"

#: Environment of the libraries: nothing is fetched, and nothing is said but the answer.
_QUIET = {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "PYTHONWARNINGS": "ignore", "TOKENIZERS_PARALLELISM": "false"}

#: Makes a GGUF of a checkpoint: ``convert(source, target, options=...)``.
Convert = Callable[..., Any]


class Measured(NamedTuple):
    """Differences of logits.

    Attributes:
        pair: largest difference of the pair's logits, in parts of the largest logit.
        other: the same of the model that was made; ``None`` without one.
        changed: key of its config.json -> value in the pair and in that model.
        reason: why no such model was made.
    """

    pair: float
    other: float | None = None
    changed: Mapping[str, tuple[Any, Any]] = {}
    reason: str = ""


def require() -> None:
    """Check that the libraries are installed.

    Raises:
        UnsupportedError: ``system.package``.
    """
    missing = [module for module in ("torch", "transformers", "llama_cpp") if find_spec(module) is None]
    if missing:
        raise missing_package("--check all", *missing)


def measured(family: Path, pairs: Sequence[Pair], folder: Path, convert: Convert) -> Measured:
    """Compare logits of pairs, and of a model of other sizes.

    The family file converts that model both ways.

    Args:
        folder: for the model that is made.
    """
    off = max(_apart(pair.checkpoint.path, pair.model.path, folder, _tokens(pair)) for pair in pairs)
    made, model = folder / "made", folder / "made.gguf"
    try:
        changed = _made(family, pairs[0], made)
        convert(made, model, options=Options(families=(family,), dtype="f32"))
    except CkconvError as error:
        return Measured(off, reason=error.message)
    found = check(family, Pair(open_index(made), open_index(model)))
    names = ", ".join(f"{key} {value}" for key, (_, value) in changed.items())
    if not found.right:
        wrong = [*found.back.different, *found.back.other, *found.parameters] or [found.back.error]
        raise InputError("learn.logits", f"of a model of other sizes ({names}) another one comes back: {wrong[0]}")
    try:
        other = _apart(made, model, folder, _tokens(pairs[0]))
    except InputError as error:
        error.message = f"a model of other sizes ({names}): {error.message}"
        raise
    return Measured(off, other, changed)


def _tokens(pair: Pair) -> list[int]:
    words = int(pair.document.get("vocab_size") or 256)
    return [(7 * n * n + 3 * n + 5) % words for n in range(_LENGTH)]


def _apart(checkpoint: Path, model: Path, folder: Path, tokens: list[int]) -> float:
    """Largest difference of logits, in parts of the largest."""
    limit = max((_CLOSE[tensor.dtype.name] for index in (checkpoint, model) for tensor in open_index(index).stored
                 if tensor.dtype.name in _CLOSE and len(tensor.shape) > 1), default=None)  # fmt: skip
    if limit is None:
        raise InputError(
            "learn.logits",
            f"the pair has no matrix of {', '.join(_CLOSE)}: how far apart its logits may be is not known",
            path=model,
            hint=_WITHOUT,
        )
    ours = _rows("transformers", checkpoint, folder, tokens)
    theirs = _rows("llama_cpp", model, folder, tokens)
    if ours.shape != theirs.shape:
        message = f"transformers has logits {list(ours.shape)}, llama.cpp {list(theirs.shape)}"
        raise InputError("learn.logits", message, path=model)
    off = float(np.abs(ours - theirs).max() / np.abs(ours).max())
    if not off <= limit:
        raise InputError(
            "learn.logits",
            f"logits of llama.cpp and transformers are {off:.2g} of the largest apart; {limit:g} at most expected",
            path=model,
            hint="--check pair writes the file, which says that nobody measured what llama.cpp computes",
        )
    return off


def _rows(library: str, model: Path, folder: Path, tokens: list[int]) -> np.ndarray:
    """Logits ``[positions, vocabulary]`` of a library."""
    rows = folder / "rows.npy"
    _ask(library, {"model": str(model), "tokens": tokens, "rows": str(rows)})
    return np.asarray(np.load(rows), np.float32)


def _ask(act: str, asked: Mapping[str, Any]) -> Any:
    """Have a process of its own do something."""
    # -P: no module of the working directory takes the place of a library's.
    command = [sys.executable, "-P", "-c", f"from ckconv.learning.logits import main; main({act!r})"]
    env = {**os.environ, **_QUIET}
    try:
        done = subprocess.run(
            command, input=json.dumps(asked), capture_output=True, text=True, check=False, env=env, timeout=_LONGEST
        )
    except subprocess.TimeoutExpired:
        answer = [None, f"it did not end within {_LONGEST:,} seconds"]
    else:
        last = done.stdout.strip().rpartition("\n")[2]
        whole = done.returncode == 0 and last
        answer = json.loads(last) if whole else [None, f"it ended with status {done.returncode}"]
    found, said = answer
    if not said:
        return found
    name = "llama.cpp" if act == "llama_cpp" else "transformers"
    raise InputError(
        "learn.logits",
        f"{name} does not compute it: {said}",
        path=asked["model"],
        hint=_WITHOUT,
    )


def _made(family: Path, pair: Pair, made: Path) -> Mapping[str, tuple[Any, Any]]:
    """Make a checkpoint of other sizes with drawn values."""
    made.mkdir()
    beside = pair.checkpoint.path if pair.checkpoint.path.is_dir() else pair.checkpoint.path.parent
    for path in beside.iterdir():
        if path.suffix in _BESIDE and not path.name.endswith(".index.json") and path.stat().st_size <= _LARGEST:
            shutil.copyfile(path, made / path.name)
    sets = [dict(changed) for changed in _other_sizes(family, pair)]
    document = json.loads((made / "config.json").read_text())
    part = text_key(pair.checkpoint.metadata)
    asked = {"model": str(made), "document": document, "part": part, "sets": sets, "tokens": _tokens(pair)}
    taken = _ask("make", asked)
    return {key: (pair.flat.get(key, pair.document.get(key)), value) for key, value in sets[taken].items()}


def _other_sizes(family: Path, pair: Pair) -> Iterator[Mapping[str, Any]]:
    """Changes of config.json to try: all open ones, then fewer."""
    loaded = load(family)
    seen = loaded.document.keys.seen
    said = {
        name: (cell.key, pair.flat[cell.key])
        for name, row in loaded.parameters.items()
        for cell in row.key_cells("hf")
        if cell.key in pair.flat and ANY in listed(seen.get(cell.key, ())) and not isinstance(pair.flat[cell.key], bool)
    }
    less = max(1, int(said.get("hidden", ("", 0))[1]) // _WIDE)
    changes: dict[str, Any] = {}
    for name, (key, value) in said.items():
        if name == "hidden":
            changes[key] = value * 2 if less == 1 else value // less
        elif "ffn" in name and isinstance(value, int):
            changes[key] = value // less + 8
        elif name == "layers":
            changes[key] = value * 2 if value * 2 <= _DEEP else _DEEP
        elif name in ("context", "norm_eps", "rope_theta"):
            changes[key] = value * 2
        elif name == "window":
            changes[key] = min(value - 1, _LENGTH // 3)
        elif name == "experts" and value > _MANY:
            changes[key] = value // (value // _MANY)
    layers = said.get("layers", ("", 0))
    if layers[0] in changes:
        for key, value in pair.document.items():
            if isinstance(value, list) and len(value) == layers[1]:
                changes[key] = (value * 2)[: changes[layers[0]]]
    kept: tuple[str, ...]
    for kept in ((), ("hidden",), ("hidden", "layers"), ("hidden", "layers", "window", "rope_theta")):
        fixed = {said[name][0] for name in kept if name in said}
        of_layers = {key for key, value in changes.items() if isinstance(value, list)} if "layers" in kept else set()
        yield {key: value for key, value in changes.items() if key not in fixed | of_layers}


# -- What runs in a process of its own ---------------------------------------------------------------------------------


def main(act: str) -> None:
    """Do what standard input asks, and print the answer."""
    asked = json.load(sys.stdin)
    found, said = None, ""
    try:
        found = {"transformers": _by_transformers, "llama_cpp": _by_llama_cpp, "make": _make}[act](asked)
    except Exception as error:  # of any class, as a library's are
        said = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
    print(f"\n{json.dumps([found, said])}")  # noqa: T201 - the answer


def _by_transformers(asked: Mapping[str, Any]) -> None:
    torch, transformers = import_module("torch"), import_module("transformers")
    config = transformers.AutoConfig.from_pretrained(asked["model"], trust_remote_code=False)
    model, found = _class(config).from_pretrained(
        asked["model"], dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    made_up = sorted(map(str, (*found["missing_keys"], *found["mismatched_keys"])))
    if made_up:
        raise ValueError(f"it makes up {', '.join(made_up[:3])}")
    np.save(asked["rows"], _computed(model, asked["tokens"]))


def _class(config: Any) -> Any:
    transformers = import_module("transformers")
    text = transformers.AutoModelForCausalLM
    known = type(config) in text._model_mapping
    return text if known else transformers.AutoModelForImageTextToText


def _computed(model: Any, tokens: list[int]) -> np.ndarray:
    torch = import_module("torch")
    with torch.no_grad():
        logits = model.eval()(input_ids=torch.tensor([tokens]), use_cache=False).logits
    return np.asarray(logits[0].float().numpy())


def _by_llama_cpp(asked: Mapping[str, Any]) -> None:
    """Save the logits of llama-cpp-python.

    The cache is of float32, and attention no flash attention, so that nothing is rounded.
    """
    tokens = asked["tokens"]
    model = import_module("llama_cpp").Llama(
        asked["model"], n_ctx=64, n_batch=64, logits_all=True, type_k=0, type_v=0, flash_attn=False, n_gpu_layers=0,
        verbose=False,
    )  # fmt: skip
    model.eval(tokens)
    np.save(asked["rows"], np.array(model.scores[: len(tokens)], np.float32))


def _make(asked: Mapping[str, Any]) -> int:
    """Save a model of the first configuration that transformers takes."""
    torch, transformers = import_module("torch"), import_module("transformers")
    torch.manual_seed(0)
    place = Path(asked["model"]) / "config.json"
    said: Exception | None = None
    for number, changed in enumerate(asked["sets"]):
        document = json.loads(json.dumps(asked["document"]))
        for part in (document, document.get(asked["part"]) or {}):
            part |= {key: "float32" for key in ("dtype", "torch_dtype") if key in part}
        for path, value in changed.items():
            table = document.get(asked["part"]) or document
            *tables, key = path.split(".")
            for name in tables:
                table = table[name]
            table[key] = value
        place.write_text(json.dumps(document, indent=2))
        try:
            config = transformers.AutoConfig.from_pretrained(asked["model"], trust_remote_code=False)
            with torch.device("meta"):
                outline = _class(config).from_config(config)
            if sum(parameter.numel() for parameter in outline.parameters()) > _MOST:
                raise ValueError(f"a model of other sizes has more than {_MOST:,} weights")
            model = _class(config).from_config(config, dtype=torch.float32, attn_implementation="eager")
            with torch.no_grad():
                for tensor in (each for each in model.state_dict().values() if each.is_floating_point()):
                    tensor.add_(torch.randn_like(tensor) * min(0.2, (tensor.shape or (1,))[-1] ** -0.5))
            _computed(model, asked["tokens"])
            model.save_pretrained(asked["model"])
        except Exception as error:
            said = error
            continue
        place.write_text(json.dumps(document, indent=2))
        return number
    raise said or ValueError("nothing of it is open")
