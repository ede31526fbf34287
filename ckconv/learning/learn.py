"""``ckconv learn``: the nearest family and the differences of a pair."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ckconv.conversion.planning import at_work, prepare
from ckconv.conversion.run import run
from ckconv.core import __version__, metadata, tensors
from ckconv.core.options import Options
from ckconv.errors import CkconvError, InputError, UnsupportedError, UsageError, counted, missing_package, nearest
from ckconv.families.catalog import FAMILIES, both_hold, families_of_gguf
from ckconv.families.keys import ANY, NONE
from ckconv.families.merge import FOLDER, listed, merged, read_file, text
from ckconv.families.schema import Family, load
from ckconv.formats.detect import open_index
from ckconv.io.files import Files
from ckconv.learning.check import BothWays, check, check_names, in_one_line, keys_of_mlx, short
from ckconv.learning.keys import Keys, Question
from ckconv.learning.pair import FLOATS, Guess, Numbers, Pair, Tracer, Traces
from ckconv.learning.rows import Rows, cells, opened_directory, prefix_of, ranked, same_values
from ckconv.quant.convert import decodable

# -- Logits of a pair and of a model of other sizes, by two engines ----------------------------------------------------

# Each library runs in a process of its own: an assertion of llama.cpp ends it, and what the library holds is gone with
# it. No code of a checkpoint's repository runs.

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

_HINT = "--check pair compares no logits"

#: Environment of the libraries: nothing is fetched, and nothing is printed but the answer.
_QUIET = {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "PYTHONWARNINGS": "ignore", "TOKENIZERS_PARALLELISM": "false"}


class LogitDifference(NamedTuple):
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


def made_of(checkpoint: Path, model: Path, options: Options) -> None:
    """Convert a checkpoint to a GGUF."""
    with at_work(options.families, None):
        run(*prepare(checkpoint, str(model), options=options))


def measured(family: Path, pairs: Sequence[Pair], folder: Path) -> LogitDifference:
    """Compare logits of pairs, and of a model of other sizes.

    The family file converts that model both ways.

    Args:
        folder: for the model that is made.
    """
    off = max(_logit_distance(pair.checkpoint.path, pair.model.path, folder, _tokens(pair)) for pair in pairs)
    made, model = folder / "made", folder / "made.gguf"
    try:
        changed = _made(family, pairs[0], made)
        made_of(made, model, Options(families=(family,), dtype="f32"))
    except CkconvError as error:
        return LogitDifference(off, reason=error.message)
    found = check(family, Pair(open_index(made), open_index(model)))
    names = ", ".join(f"{key} {value}" for key, (_, value) in changed.items())
    if not found.right:
        wrong = [*found.back.different, *found.back.other, *found.parameters] or [found.back.error]
        raise InputError("learn.logits", f"of a model of other sizes ({names}) another one comes back: {wrong[0]}")
    try:
        other = _logit_distance(made, model, folder, _tokens(pairs[0]))
    except InputError as error:
        error.message = f"a model of other sizes ({names}): {error.message}"
        raise
    return LogitDifference(off, other, changed)


def _tokens(pair: Pair) -> list[int]:
    words = int(pair.document.get("vocab_size") or 256)
    return [(7 * n * n + 3 * n + 5) % words for n in range(_LENGTH)]


def _logit_distance(checkpoint: Path, model: Path, folder: Path, tokens: list[int]) -> float:
    """Largest difference of logits, in parts of the largest."""
    limit = max((_CLOSE[tensor.dtype.name] for index in (checkpoint, model) for tensor in open_index(index).stored
                 if tensor.dtype.name in _CLOSE and len(tensor.shape) > 1), default=None)  # fmt: skip
    if limit is None:
        raise _fault(
            f"the pair has no matrix of {', '.join(_CLOSE)}: how far apart its logits may be is not known", model
        )
    ours = _rows("transformers", checkpoint, folder, tokens)
    other = _rows("llama_cpp", model, folder, tokens)
    if ours.shape != other.shape:
        message = f"transformers has logits {list(ours.shape)}, llama.cpp {list(other.shape)}"
        raise _fault(message, model, None)
    off = float(np.abs(ours - other).max() / np.abs(ours).max())
    if not off <= limit:
        message = f"logits of llama.cpp and transformers are {off:.2g} of the largest apart; {limit:g} at most expected"
        hint = "--check pair writes the file, which says that nobody measured what llama.cpp computes"
        raise _fault(message, model, hint)
    return off


def _fault(message: str, model: str | Path, hint: str | None = _HINT) -> InputError:
    return InputError("learn.logits", message, path=model, hint=hint)


def _rows(library: str, model: Path, folder: Path, tokens: list[int]) -> np.ndarray:
    """Logits ``[positions, vocabulary]`` of a library."""
    rows = folder / "rows.npy"
    _ask(library, {"model": str(model), "tokens": tokens, "rows": str(rows)})
    return np.asarray(np.load(rows), np.float32)


def _ask(act: str, request: Mapping[str, Any]) -> Any:
    """Have a process of its own do something."""
    # -P: no module of the working directory takes the place of a library's.
    command = [sys.executable, "-P", "-c", f"from ckconv.learning.learn import main; main({act!r})"]
    env = {**os.environ, **_QUIET}
    try:
        done = subprocess.run(
            command, input=json.dumps(request), capture_output=True, text=True, check=False, env=env, timeout=_LONGEST
        )
    except subprocess.TimeoutExpired:
        answer = [None, f"it did not end within {_LONGEST:,} seconds"]
    else:
        last = done.stdout.strip().rpartition("\n")[2]
        whole = done.returncode == 0 and last
        answer = json.loads(last) if whole else [None, f"it ended with status {done.returncode}"]
    found, reason = answer
    if not reason:
        return found
    name = "llama.cpp" if act == "llama_cpp" else "transformers"
    raise _fault(f"{name} does not compute it: {reason}", request["model"])


def _made(family: Path, pair: Pair, made: Path) -> Mapping[str, tuple[Any, Any]]:
    """Make a checkpoint of other sizes with drawn values."""
    made.mkdir()
    beside = pair.checkpoint.path if pair.checkpoint.path.is_dir() else pair.checkpoint.path.parent
    for path in beside.iterdir():
        if path.suffix in _BESIDE and not path.name.endswith(".index.json") and path.stat().st_size <= _LARGEST:
            shutil.copyfile(path, made / path.name)
    sets = [dict(changed) for changed in _other_sizes(family, pair)]
    document = json.loads((made / "config.json").read_text())
    part = metadata.text_key(pair.checkpoint.metadata)
    request = {"model": str(made), "document": document, "part": part, "sets": sets, "tokens": _tokens(pair)}
    taken = _ask("make", request)
    return {key: (pair.flat.get(key, pair.document.get(key)), value) for key, value in sets[taken].items()}


def _other_sizes(family: Path, pair: Pair) -> Iterator[Mapping[str, Any]]:
    """Changes of config.json to try: all open ones, then fewer."""
    loaded = load(family)
    seen = loaded.document.keys.seen
    stated = {
        name: (cell.key, pair.flat[cell.key])
        for name, row in loaded.parameters.items()
        for cell in row.key_cells("hf")
        if cell.key in pair.flat and ANY in listed(seen.get(cell.key, ())) and not isinstance(pair.flat[cell.key], bool)
    }
    less = max(1, int(stated.get("hidden", ("", 0))[1]) // _WIDE)
    changes: dict[str, Any] = {}
    for name, (key, value) in stated.items():
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
    layers = stated.get("layers", ("", 0))
    if layers[0] in changes:
        for key, value in pair.document.items():
            if isinstance(value, list) and len(value) == layers[1]:
                changes[key] = (value * 2)[: changes[layers[0]]]
    stays: tuple[str, ...]
    for stays in ((), ("hidden",), ("hidden", "layers"), ("hidden", "layers", "window", "rope_theta")):
        fixed = {stated[name][0] for name in stays if name in stated}
        of_layers = {key for key, value in changes.items() if isinstance(value, list)} if "layers" in stays else set()
        yield {key: value for key, value in changes.items() if key not in fixed | of_layers}


# -- What runs in a process of its own ---------------------------------------------------------------------------------


def main(act: str) -> None:
    """Do what standard input asks, and print the answer."""
    request = json.load(sys.stdin)
    found, reason = None, ""
    try:
        found = {"transformers": _by_transformers, "llama_cpp": _by_llama_cpp, "make": _make}[act](request)
    except Exception as error:  # of any class, as a library's are
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
    print(f"\n{json.dumps([found, reason])}")  # noqa: T201 - the answer


def _by_transformers(request: Mapping[str, Any]) -> None:
    torch, transformers = import_module("torch"), import_module("transformers")
    config = transformers.AutoConfig.from_pretrained(request["model"], trust_remote_code=False)
    model, found = _class(config).from_pretrained(
        request["model"], dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    made_up = sorted(map(str, (*found["missing_keys"], *found["mismatched_keys"])))
    if made_up:
        raise ValueError(f"it makes up {', '.join(made_up[:3])}")
    np.save(request["rows"], _computed(model, request["tokens"]))


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


def _by_llama_cpp(request: Mapping[str, Any]) -> None:
    """Save the logits of llama-cpp-python.

    The cache is of float32, and attention no flash attention, so that nothing is rounded.
    """
    tokens = request["tokens"]
    model = import_module("llama_cpp").Llama(
        request["model"], n_ctx=64, n_batch=64, logits_all=True, type_k=0, type_v=0, flash_attn=False, n_gpu_layers=0,
        verbose=False,
    )  # fmt: skip
    model.eval(tokens)
    np.save(request["rows"], np.array(model.scores[: len(tokens)], np.float32))


def _make(request: Mapping[str, Any]) -> int:
    """Save a model of the first configuration that transformers takes."""
    torch, transformers = import_module("torch"), import_module("transformers")
    torch.manual_seed(0)
    place = Path(request["model"]) / "config.json"
    failure: Exception | None = None
    for number, changed in enumerate(request["sets"]):
        document = json.loads(json.dumps(request["document"]))
        for part in (document, document.get(request["part"]) or {}):
            part |= {key: "float32" for key in ("dtype", "torch_dtype") if key in part}
        for path, value in changed.items():
            table = document.get(request["part"]) or document
            *tables, key = path.split(".")
            for name in tables:
                table = table[name]
            table[key] = value
        place.write_text(json.dumps(document, indent=2))
        try:
            config = transformers.AutoConfig.from_pretrained(request["model"], trust_remote_code=False)
            with torch.device("meta"):
                outline = _class(config).from_config(config)
            if sum(parameter.numel() for parameter in outline.parameters()) > _MOST:
                raise ValueError(f"a model of other sizes has more than {_MOST:,} weights")
            model = _class(config).from_config(config, dtype=torch.float32, attn_implementation="eager")
            with torch.no_grad():
                for tensor in (each for each in model.state_dict().values() if each.is_floating_point()):
                    tensor.add_(torch.randn_like(tensor) * min(0.2, (tensor.shape or (1,))[-1] ** -0.5))
            _computed(model, request["tokens"])
            model.save_pretrained(request["model"])
        except Exception as error:
            failure = error
            continue
        place.write_text(json.dumps(document, indent=2))
        return number
    raise failure or ValueError("nothing of it is open")


# -- ``ckconv learn``: the nearest family and the differences of a pair ------------------------------------------------

#: How many of the nearest families are tried.
_TRIED = 16

#: How often a draft is mended by what a conversion with it says.
_ROUNDS = 6

#: What is compared with each other is bounded: a model has some 30 kinds of tensors, and some 60 keys.
_MOST_KINDS, _MOST_KEYS = 400, 1000

#: Types of tables that checkpoints have beside their weights.
_INDICES = ("I64", "BOOL")

#: Rules of a whole class, which no file inherits.
_STYLES = ("default",)

_SHOWN = 5

#: Way out where an MLX directory is another model, or of another form.
_WITHOUT = "without --mlx the file is made of the other two"


@dataclass
class LearnedFamily:
    """A family file, and what is known of it.

    Attributes:
        family: what it extends.
        traced, total: tensors of the GGUFs.
        same: patterns of tensors that the family's own rows describe, under its own names.
        checked: both directions of every pair.
        questions: what somebody has to answer.
        closed: keys that may have no other value.
        nbytes: how much was read to learn it.
        measured: logits, where they were asked for.
        mlx: both directions of the MLX directory.
    """

    text: str
    family: str
    traced: int
    total: int
    same: int
    checked: Sequence[BothWays]
    questions: Sequence[Question]
    closed: Sequence[str] = ()
    nbytes: int = 0
    tried: Sequence[str] = field(default_factory=tuple)
    measured: LogitDifference | None = None
    mlx: BothWays | None = None


def learn(
    pairs: Sequence[tuple[Path, Path]],
    name: str,
    *,
    base: str = "",
    rows: int = 8,
    values: bool = True,
    confirmed: Mapping[str, str] | None = None,
    logits: bool = False,
    mlx: Path | None = None,
    approximate: bool = False,
) -> LearnedFamily:
    """Make a family file of some pairs. Nothing is written.

    Args:
        name: what the family will be called.
        base: the family to extend, "" for the nearest.
        rows: how many rows of each tensor are compared.
        values: both directions are made and compared, byte by byte; names and keys alone otherwise.
        confirmed: key -> ``harmless``, ``any`` or ``fixed``: answers to questions.
        logits: those of the engines are compared, of the pairs and of a model of other sizes.
        mlx: a directory of the first pair's model, whose names are learned, too.
        approximate: GGUFs may be quantized: their tensors are those that are near the decoded values.

    Raises:
        InputError: ``learn.values``, the two files are no pair; ``learn.untraced``; ``learn.check``, the file does
            not make one of the other; ``learn.pair``; ``learn.logits``, what the engines compute of them differs.
        UnsupportedError: ``learn.type``, tensors are quantized; ``system.package``, an engine is not installed.
    """
    if logits:
        require()
    directory = opened_directory(mlx) if mlx is not None else None
    opened = [_opened(checkpoint, model, approximate) for checkpoint, model in pairs]
    _check_answers(opened, confirmed or {})
    shipped = {one: FAMILIES[one] for one in FAMILIES if FAMILIES[one].path.parent == FOLDER}
    families = {n: it for n, it in shipped.items() if it.gguf and "layers" in it.parameters and it.in_huggingface.names}
    guesses = {(one, n): Guess(family, pair) for one, family in families.items() for n, pair in enumerate(opened)}
    identities = {path: seen for pair in opened for index in (pair.checkpoint, pair.model)
                  for path, seen in index.identities.items()}  # fmt: skip
    with Files(identities) as files:
        numbers = Numbers(files)
        traced = Tracer(opened, families, numbers, rows, guesses).trace()
    _require_traced(opened, traced)
    tables = {one: _merged(one) for one in families}
    order = [base] if base else ranked(opened, traced, families, guesses)[:_TRIED]
    failed: list[tuple[int, str, str, Sequence[str]]] = []
    for one in order:
        for window in _windows(opened, tables, one):
            draft = _Draft(opened, traced, families, guesses, tables, one, name, confirmed or {}, window)
            found = draft.mended(values)
            if found is not None:
                found.nbytes, found.tried = numbers.nbytes, tuple(order)
                if directory is not None:
                    found = _with_names(found, draft, opened[0], directory, name, rows)
                return _compared(found, draft, opened, name) if logits else found
            failed.append((draft.wrong, one, draft.fault, draft.lost))
            if not re.search("slid|window|layer_types", draft.fault):
                break
    _, one, fault, lost = min(failed)
    lost = () if any("." in key for key in lost) else lost
    answers = " ".join(f"--confirm {key}=harmless" for key in lost)
    raise InputError(
        "learn.check",
        f"no family file was found that makes {opened[0].model.path.name} of {opened[0].checkpoint.path.name} and"
        f" back; the nearest extends {one}: {fault}",
        details=[f"extending {other}: {why}" for _, other, why, _ in sorted(failed)[1:_SHOWN]],
        hint=f"{answers} makes a file, if nothing depends on {'it' if len(lost) == 1 else 'them'}" if lost else None,
    )


@cache
def _merged(name: str) -> Mapping[str, Any]:
    """The merged file of a shipped family."""
    return merged(FOLDER / f"{name}.toml")


def _with_names(
    found: LearnedFamily, draft: _Draft, pair: Pair, directory: tensors.TensorIndex, name: str, rows: int
) -> LearnedFamily:
    """The same with the names of an MLX directory."""
    with tempfile.TemporaryDirectory(prefix="ckconv-learn-") as folder:
        path = Path(folder) / f"{name}.toml"
        path.write_text(found.text)
        with Files({**pair.checkpoint.identities, **directory.identities}) as files:
            same = same_values(pair, directory, Numbers(files), rows)
        draft.add_names(load(path), directory, same)
        path.write_text(draft.text(closed=False))
        try:
            draft.add_keys(load(path), keys_of_mlx(path, pair.checkpoint.path))
        except CkconvError as error:
            raise InputError(
                "learn.check", f"to MLX: {in_one_line(error)}", path=directory.path, hint=_WITHOUT
            ) from error
        path.write_text(draft.text())
        both = check_names(path, pair.checkpoint.path, directory.path)
    for way, direction in (("to MLX", both.forth), ("back from MLX", both.back)):
        if not direction.right:
            raise InputError("learn.check", f"{way}: {direction.fault}", path=directory.path, hint=_WITHOUT)
    return replace(found, mlx=both, text=draft.text())


def _compared(found: LearnedFamily, draft: _Draft, pairs: Sequence[Pair], name: str) -> LearnedFamily:
    """The same with logits compared; the file says so where they agree."""
    with tempfile.TemporaryDirectory(prefix="ckconv-learn-") as folder:
        path = Path(folder) / f"{name}.toml"
        path.write_text(found.text)
        result = measured(path, pairs, Path(folder))
    text = draft.text(measured=True) if result.other is not None else found.text
    return replace(found, measured=result, text=text)


def _check_answers(pairs: Sequence[Pair], confirmed: Mapping[str, str]) -> None:
    """Check that each answer is about a key that the files have."""
    known = {key for pair in pairs for keys in (pair.flat, pair.document, pair.keys) for key in keys}
    for key in confirmed:
        if key not in known:
            near = nearest(key, known)
            hint = f"did you mean {near}?" if near else None
            raise UsageError("usage.flag", f"--confirm {key}: neither config.json nor the GGUF has this key", hint=hint)


def _windows(pairs: Sequence[Pair], tables: Mapping[str, Mapping[str, Any]], base: str) -> list[Mapping[str, Any]]:
    """Rows on sliding layers to try: the base's, then other classes'.

    Of the others, those for which no GGUF has a key.
    """
    found: list[Mapping[str, Any]] = [{}]
    if any("sliding_window" in pair.document or "attention.sliding_window" in pair.keys for pair in pairs):
        for table in tables.values():
            rows = {name: row for name, row in table["parameters"].items() if name in ("layer_types", "windowed")}
            if "layer_types" in rows and not rows["layer_types"].get("gguf") and rows not in found:
                found.append(rows)
    own = {name: tables[base]["parameters"].get(name) for name in ("layer_types", "windowed")}
    return [rows for rows in found if not rows or any(own[name] != row for name, row in rows.items())]


def _opened(checkpoint: Path, model: Path, approximate: bool) -> Pair:
    """The two files of a pair."""
    ours, gguf = open_index(checkpoint), open_index(model)
    if ours.format != "safetensors" or gguf.format != "gguf" or not ours.metadata.get("model_type"):
        message = f"a checkpoint and a GGUF expected, got {ours.format} and {gguf.format}"
        raise InputError("learn.pair", message, path=checkpoint)
    for path, index, taken in ((model, gguf, FLOATS), (checkpoint, ours, (*FLOATS, *_INDICES))):
        odd = [tensor for tensor in index.stored if tensor.dtype.name not in taken]
        near = index is gguf and all(decodable(tensor.dtype) for tensor in odd)
        if near and approximate:
            continue
        if odd:
            kinds = ", ".join(sorted({tensor.dtype.name for tensor in odd}))
            raise UnsupportedError(
                "learn.type",
                f"{counted(len(odd), 'tensor')} of {len(index.stored)} are {kinds}, not F32, F16 or BF16",
                path=path,
                tensor=odd[0].name,
                hint="--approximate matches names and orders of rows by decoded values" if near else None,
            )
    pair = Pair(ours, gguf, near=approximate)
    for path, number, most, what in (
        (checkpoint, len(pair.source), _MOST_KINDS, "kinds of tensors"),
        (model, len(pair.target), _MOST_KINDS, "kinds of tensors"),
        (model, pair.layers, len(gguf.stored), "layers, more than its tensors"),
        (checkpoint, len(pair.flat), _MOST_KEYS, "keys in config.json"),
        (model, len(pair.keys), _MOST_KEYS, "metadata keys of its architecture"),
    ):
        if number > most:
            raise InputError("learn.pair", f"{number:,} {what}; {most:,} at most expected", path=path)
    return pair


def _require_traced(pairs: Sequence[Pair], traced: Traces) -> None:
    """Check that every tensor of the GGUFs was found in the checkpoint."""
    if not traced.untraced:
        return
    count = len(traced.untraced)
    of = f"{count} of {counted(count + len(traced.found), 'kind')} of tensors"
    names = [pattern.replace("{n}", "N") for pattern in traced.untraced]
    if count >= len(traced.found):
        raise InputError(
            "learn.values",
            f"{pairs[0].name} are no pair: {of} have their values in no tensor of the checkpoint, {names[0]} the first"
            " (another revision, a fine-tuned or a merged model)",
            path=pairs[0].model.path,
            details=names[1:_SHOWN],
        )
    raise InputError(
        "learn.untraced",
        f"{of} have their values in no tensor of {pairs[0].checkpoint.path.name}, as stored, transposed, with 1 added,"
        f" as an exponential, or in any order that a shipped family knows: {', '.join(names[:_SHOWN])}",
        path=pairs[0].model.path,
    )


class _Draft:
    """Family file in the making, mended by the results of conversions."""

    def __init__(
        self,
        pairs: Sequence[Pair],
        traced: Traces,
        families: Mapping[str, Family],
        guesses: Mapping[tuple[str, int], Guess],
        tables: Mapping[str, Mapping[str, Any]],
        base: str,
        name: str,
        confirmed: Mapping[str, str],
        window: Mapping[str, Any],
    ) -> None:
        self._window = window
        self._pairs, self._traced, self._base, self._name = pairs, traced, families[base], name
        self._rows = Rows(pairs, traced, self._base, families, guesses)
        self._keys = Keys(pairs, self._base, families, self._rows, tables, confirmed)
        self._more: dict[str, dict[str, Any]] = {"written": {}}
        self._mlx: dict[str, Any] = {}
        self.fault, self.wrong, self.lost = "", 1 << 20, tuple[str, ...]()

    def mended(self, values: bool) -> LearnedFamily | None:
        """File that makes every pair right both ways, or ``None``."""
        with tempfile.TemporaryDirectory(prefix="ckconv-learn-") as folder:
            path = Path(folder) / f"{self._name}.toml"
            for _ in range(_ROUNDS):
                try:
                    path.write_text(self.text())
                    load(path)
                except (CkconvError, ValueError) as error:
                    self.fault = str(error).replace(f"{path}: ", "")
                    return None
                found = [check(path, pair, values=False) for pair in self._pairs]
                if all(one.right for one in found):
                    found = [check(path, pair) for pair in self._pairs] if values else found
                    self._judge(found)
                    for one in found:
                        self.add_keys(load(path), one.back.more)
                    return self._learned(found) if all(one.right for one in found) else None
                self._judge(found)
                if not any(self._mend(one, pair) for one, pair in zip(found, self._pairs, strict=True)):
                    return None
        return None

    def _judge(self, found: Sequence[BothWays]) -> None:
        """Keep the first fault, and the keys that no metadata says."""
        self.lost = ()
        for one in found:
            for way, direction in (("to GGUF", one.forth), ("back", one.back)):
                if not direction.right:
                    self.wrong = len(direction.faults) + (1000 if direction.error else 0)
                    self.lost = () if direction.error or direction.different or way != "back" else (*direction.other,)
                    self.fault = f"{way}: {direction.fault}"
                    return
            if one.parameters:
                self.wrong = len(one.parameters)
                texts = [f"{name} is {short(a)} in the checkpoint, {short(b)} in the GGUF" for name, (a, b)
                         in one.parameters.items()]  # fmt: skip
                self.fault = "; ".join(texts[:3])
                return

    def _mend(self, found: BothWays, pair: Pair) -> bool:
        """Change what a conversion got wrong, and can be stated otherwise."""
        changed = False
        prefix = f"{pair.architecture}."
        for full, (there, _) in found.forth.other.items():
            key = full.removeprefix(prefix)
            rows = [*self._keys.writers(key), *(name for name, row in self._base.parameters.items()
                    for cell in row.key_cells("gguf") if cell.key == key)]  # fmt: skip
            kind = pair.types.get(key, "u32")
            typed = key if kind == "u32" else f"{key}:{kind}"
            before = changed
            for name in rows if there is None else rows[:1]:
                row = self._keys.parameters.setdefault(name, {})
                wanted: Any = [{"key": typed, "alias": True}] if there is None else [typed]
                if (cell := self._keys.only_in_some(key, name)) is not None:
                    wanted = [cell]
                if name == "vocabulary":
                    wanted = [{"shape": ["token_embd.weight", 0]}, *wanted]
                if isinstance(row, dict) and row.get("gguf") != wanted:
                    row["gguf"], changed = wanted, True
            if there is not None and changed == before:
                changed |= self._keys.again(key)
        for name, (ours, stored) in found.parameters.items():
            changed |= self._keys.fixed(name, ours, stored)
        for key, (there, made) in found.back.other.items():
            head = key.partition(".")[0]
            written = {key, head} & {*self._more["written"], *self._keys.modifiers} or self._keys.read(head)
            if there is not None and made is None and self._keys.written_as_read(key):
                changed = True
            elif there is not None and made is None and (not written or self._keys.only_read(key)):
                self._keys.seen[key] = there
                self._more["written"][head] = pair.document[head]
                changed = True
            elif there is not None and made is not None:
                changed |= self._keys.returned(key, there)
        if (found.forth.error or found.back.error) and not changed:
            return self._keys.pinned()
        return changed

    def _learned(self, found: Sequence[BothWays]) -> LearnedFamily:
        counts = [sum(len(pair.target[pattern]) for pattern in pair.target) for pair in self._pairs]
        closed = [key for key, values in self._keys.seen.items() if ANY not in listed(values)]
        questions = [*self._keys.questions, *(Question("", one) for one in self._rows.open)]
        questions += [Question("", self._approximate(found))] if self._pairs[0].near else []
        return LearnedFamily(
            self.text(), self._base.name, sum(counts), sum(counts), self._rows.same, found, questions, closed
        )

    def _approximate(self, found: Sequence[BothWays] = ()) -> str:
        """Say what a file is based on that was learned of rounded values."""
        types = {tensor.dtype.name for pair in self._pairs for tensor in pair.model.stored}
        most = max((way.distance for each in found for way in (each.forth, each.back)), default=0.0)
        rows = f"rows differ by up to {100 * most**0.5:.2g} % of their norm; " if most else ""
        return (
            f"learned from near values ({', '.join(sorted(types))}): names and orders of rows are those of what is"
            f" nearest; {rows}types and equal values are not known"
        )

    def add_names(self, family: Family, directory: tensors.TensorIndex, same: Mapping[str, str]) -> None:
        """Write the names of an MLX directory beside those of the checkpoint."""
        prefix = prefix_of(family, directory)
        if prefix != family.prefixes["mlx"][0]:
            self._rows.prefix = {**self._rows.prefix, "mlx": [dict(zip(("root", "layer"), prefix, strict=True))]}
        own = (self._rows.root, self._rows.layer)
        for row, cell in cells(family, [*self._rows.tensors], own, prefix, same):
            self._rows.tensors[row] = {**self._rows.tensors.get(row, {}), "mlx": cell}
        self._mlx = {"mlx_lm": {"unmeasured": "its names were learned from a directory, and no logits were compared"}}

    def add_keys(self, family: Family, made: Mapping[str, Any]) -> None:
        """Take keys for seen that config.json has for mlx-lm alone, or of a GGUF."""
        sizes = {name for expression in family.axes.values() for name in expression.names}
        keys = {name: {cell.key for cell in row.key_cells("hf")} for name, row in family.parameters.items()}
        free = {key for name, words in keys.items() for key in words
                if name in sizes or any(ANY in listed(self._keys.seen.get(other, ())) for other in words)}  # fmt: skip
        for key, value in made.items():
            if key not in self._keys.seen:
                self._keys.seen[key] = [*([ANY] if key in free else listed(value)), NONE]

    def text(self, *, measured: bool = False, closed: bool = True) -> str:
        """The file."""
        pair, rows, keys = self._pairs[0], self._rows, self._keys
        classes = pair.document.get("architectures") or ["?"]
        loaded = [name for name in rows.loaded if name not in rows.optional]
        what = "quantized conversion, by near values," if pair.near else "conversion,"
        why = f"the file was learned from a {what} and no logits were compared"
        seen = ["logits compared: llama.cpp's and transformers', and of a model of other sizes"] if measured else []
        engine: dict[str, Any] = {} if measured else {"unmeasured": why}
        own = self._base.engines.get("llama_cpp")
        engine |= {word: names for word, names in (("required", loaded), ("optional", sorted(rows.optional))) if names}
        engine |= {"head": "written"} if any(one.doubled for one in self._pairs) else {}
        engine |= {"narrow": list(own.narrow)} if own and own.narrow else {}
        config = {
            style: value for style, value in read_file(self._base.path).get("config", {}).items() if style in _STYLES
        }
        config |= {
            word: value for word, value in (("harmless", keys.harmless), ("written", self._more["written"])) if value
        }
        match, over = self._condition()
        return text(
            [
                f"Learned by ckconv {__version__} from {' and from '.join(one.name for one in self._pairs)}.",
                *(f"sha256 of headers: {_digest(one)}" for one in self._pairs),
                *(f"open: {question.text}" for question in keys.questions),
                *([f"open: {self._approximate()}"] if pair.near else []),
                *seen,
            ],
            {
                "extends": self._base.name,
                "without": sorted({*rows.without, *keys.without}),
                "gguf": {"arch": pair.architecture, "match": match, **({"over": over} if over else {})},
                "huggingface": {"model_type": pair.document["model_type"], "class": classes[0]},
            },
            {
                "prefix": rows.prefix,
                "axes": rows.axes,
                "layers": rows.layers,
                "tensors": rows.tensors,
                "parameters": {**self._window, **keys.parameters},
                "config": {**({"unknown": "refused"} if closed else {}), **config},
                "config.modifiers": keys.modifiers,
                "config.seen": keys.seen if closed else {},
                "metadata.seen": keys.metadata,
                "engines": {"llama_cpp": engine, "transformers": {}, **self._mlx},
            },
        )

    def _condition(self) -> tuple[str, list[str]]:
        """Condition that tells the GGUF from families of its architecture."""
        pair, over, atoms = self._pairs[0], list[str](), list[str]()
        for family in families_of_gguf(pair.architecture):
            other = str(family.in_gguf.condition or "true")
            for key in family.in_gguf.condition.probed_keys if family.in_gguf.condition else ():
                atom = f"has('{key}')" if pair.has(key) else f"not has('{key}')"
                if not both_hold(family.path, " and ".join([*atoms, atom]), other):
                    atoms.append(atom)
                    break
            else:
                if family.name != self._base.name:
                    over.append(family.name)
        return " and ".join(dict.fromkeys(atoms)) or "true", over


def _digest(pair: Pair) -> str:
    """SHA-256 of names, types and shapes of both files, and of the keys."""
    named = [(t.name, t.dtype.name, t.shape) for index in (pair.checkpoint, pair.model) for t in index.stored]
    return hashlib.sha256(repr((named, sorted(pair.flat.items(), key=str))).encode()).hexdigest()


__all__ = ["LearnedFamily", "learn", "replace"]
