"""Every hint is run on the input that produced it: what it says succeeds, or leads on to what does."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import family_cases
import hints
import numpy as np
import pytest
import whisper_cases
from checkpoints import Decoder, save
from conftest import FIXTURES, Result
from gguf_copies import gguf_copy
from hint_texts import hint_texts, listed
from hints import Misleading, Refusal, follow
from hints_noted import base_of
from products import shown
from safetensors.numpy import load_file, save_file

from ckconv import api
from ckconv.core.options import Options

sys.path.insert(0, str(FIXTURES.parent / "scripts"))
import golden

LLAMA = FIXTURES / "hf" / "llama-bias-f32"
TIED = FIXTURES / "hf" / "qwen2-tied-bf16"
GGUF = FIXTURES / "gguf" / "llama-bias-f32.f32.gguf"
Q4_K_M = FIXTURES / "kquants" / "llama64.Q4_K_M.gguf"
#: The largest float32, which is infinite in BF16.
MOST = float(np.finfo(np.float32).max)
LORA = FIXTURES / "lora" / "llama-r4-attn-mlp"


def told(line: str) -> list[str]:
    """The hints of a line of the golden file."""
    return re.split(r"(?: \||;) hint: ", line)[1:]


def refused_lines() -> list[str]:
    """Every line of the golden file with a hint that names a flag."""
    return [line for line in golden.GOLDEN.read_text().splitlines() if any(map(hints.said, told(line)))]


def kinds_of(line: str) -> set[tuple[str, ...]]:
    """What each hint says of a run of a folder; the numbers and the source in it count for nothing."""
    source, run, *_ = line.split("\t")
    return {(source.partition("/")[0], run, re.sub(r"[\d.,]+", "", hint.replace(source, ""))) for hint in told(line)}


#: Command -> how it ended: many lines of the golden file lead to the same one.
ENDED: dict[tuple[str, ...], Refusal] = {}


@pytest.fixture
def runner(ckconv: Callable[..., Result], tmp_path: Path) -> Callable[[list[str]], Refusal]:
    """Runs a command whose ``DST`` is a new place each time; once, where it is the same."""
    count = iter(range(1000))

    def call(arguments: list[str]) -> Refusal:
        if tuple(arguments) not in ENDED:
            ENDED[tuple(arguments)] = ended(arguments)
        return ENDED[tuple(arguments)]

    def ended(arguments: list[str]) -> Refusal:
        place = tmp_path / f"out-{next(count)}"
        made = [it.replace("DST", str(place / "m")) if it.startswith("DST") else it for it in arguments]
        place.mkdir()
        done = ckconv(*made, "--json")
        if done.code == 0:
            return Refusal(0)
        return hints.refusal(done.code, json.loads(done.err.splitlines()[-1])["error"])

    return call


@pytest.mark.parametrize(
    "line", shown(refused_lines(), kinds_of, lambda line: "-".join(line.split("\t")[:2]).replace("/", "-"))
)
def test_hints_of_the_golden_file_lead_on(line: str, runner: Any) -> None:
    source, name, *_ = line.split("\t")
    path = FIXTURES / source
    base = golden.base_of(path)
    arguments = ["convert", str(path), "DST/", *golden.QUANTIZED.get(path.parent.name, golden.RUNS)[name], *base]
    known = {"GLOB": "*", "N": "64", "DST": "DST.gguf", "ADAPTER": str(path)}
    if path.parent.name in ("lora", "gguf-lora"):
        known["BASE"] = str(base_of(path))

    assert follow(runner, arguments, known)


def _llama(folder: Path, *, drop: tuple[str, ...] = (), **changes: Any) -> Path:
    """A Llama whose config.json is changed."""
    copy = folder / "hf"
    copy.mkdir()
    for file in LLAMA.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    config = {**json.loads((copy / "config.json").read_text()), **changes}
    (copy / "config.json").write_text(json.dumps({key: item for key, item in config.items() if key not in drop}))
    return copy


def _tensors(folder: Path, config: dict[str, Any] | None, *names: str) -> Path:
    """A checkpoint of small matrices with these names."""
    folder.joinpath("hf").mkdir()
    save_file({name: np.ones((4, 4), np.float32) for name in names}, folder / "hf" / "model.safetensors")
    if config is not None:
        (folder / "hf" / "config.json").write_text(json.dumps(config))
    return folder / "hf"


def _valued(folder: Path, value: float, name: str = "model.layers.0.mlp.up_proj.weight", **changes: Any) -> Path:
    """A Llama with another value in a tensor."""
    copy = _llama(folder, **changes)
    tensors = load_file(copy / "model.safetensors")
    tensors[name][0, 0] = value
    save_file(tensors, copy / "model.safetensors")
    return copy


def _tied_minicpm3(folder: Path) -> Path:
    """One without a head of its own."""
    copy = family_cases.checkpoint(next(family_cases.cases("minicpm3")).recorded, folder / "hf")
    (file,) = copy.glob("*.safetensors")
    save_file({name: array for name, array in load_file(file).items() if name != "lm_head.weight"}, file)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    return copy


def _gemma_with_a_head(folder: Path) -> Path:
    """One whose head is the embedding, and stored."""
    tensors, gelu = Decoder().tensors(), "gelu_pytorch_tanh"
    config = Decoder().config("gemma", tie_word_embeddings=False, hidden_act=gelu, hidden_activation=gelu)
    return save(folder / "hf", config, {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]})


def _quantized(folder: Path) -> Path:
    """A GGUF of the Llama."""
    api.convert(LLAMA, folder / "q.gguf", options=Options(quantize="q8_0"))
    return folder / "q.gguf"


def _with_a_name(folder: Path) -> Path:
    """A GGUF of the Llama."""
    api.convert(LLAMA, folder / "n.gguf", options=Options(set_meta=(("general.name", "A model"),)), force=True)
    return folder / "n.gguf"


def _linked(folder: Path) -> Path:
    copy = _llama(folder)
    (copy / "model.safetensors").rename(folder / "elsewhere.safetensors")
    (copy / "model.safetensors").symlink_to(folder / "elsewhere.safetensors")
    return copy


#: What is refused -> what makes its input, the command behind that, and what its hint says.
CASES: dict[str, tuple[Callable[[Path], Path], list[str], str]] = {
    "no format": (lambda _: LLAMA, ["convert", "SRC", "DST"], "--to gguf, --to hf or --to mlx names one"),
    "no known ending": (lambda _: LLAMA, ["convert", "SRC", "DST.xyz"], "--to gguf, --to hf or --to mlx names one"),
    "a type of ggml, and no format": (
        lambda _: LLAMA, ["convert", "SRC", "DST", "--quantize", "q8_0"], "--to gguf names one",
    ),
    "a type of MLX, and no format": (
        lambda _: LLAMA, ["convert", "SRC", "DST", "--quantize", "affine:4:32"], "--to mlx names one",
    ),
    "names, and no format": (
        lambda _: LLAMA, ["convert", "SRC", "DST", "--names", "gguf"], "--to hf or --to mlx names one",
    ),
    "a version of the engine, and no format": (
        lambda _: LLAMA, ["convert", "SRC", "DST", "--bump-version", "5"], "--to bump names one",
    ),
    "quantized by a flag that is not given": (
        _quantized, ["verify", "SRC", str(LLAMA)], "--quantize q8_0 asks for these types",
    ),
    "a key that a flag sets that is not given": (
        _with_a_name, ["verify", "SRC", str(LLAMA)], "conversion: --set-meta 'general.name=A model'; or",
    ),
    "a place for an adapter": (
        lambda _: LORA, ["convert", "SRC", "DST/"], "--to gguf, --to mlx or --to peft names one",
    ),
    "a file edited in its own place": (
        _with_a_name, ["edit", "SRC", "SRC", "--set-meta", "general.name=A b"],
        "--in-place --set-meta 'general.name=A b' puts the new file in the place of SRC",
    ),
    "a head where the class has none": (
        _gemma_with_a_head, ["convert", "SRC", "DST/", "--to", "mlx"], "--tie leaves it out",
    ),
    "an adapter where a tower belongs": (
        lambda _: LLAMA, ["convert", "SRC", str(LORA), "DST.gguf"], f"--adapter {LORA} merges it",
    ),
    "an adapter to merge into": (
        lambda _: LORA, ["convert", "SRC", "DST.gguf", "--adapter", str(LORA)], "ckconv convert BASE DST --adapter",
    ),
    "norms that have to stay": (
        lambda _: LLAMA, ["convert", "SRC", "DST.gguf", "--drop", "*norm*"], "leave out --drop for it",
    ),
    "a base for a model's rows": (
        lambda _: FIXTURES / "gguf-lora" / "llama-r4-attn-mlp.f32.gguf", ["convert", "SRC", "DST/", "--to", "peft"],
        "--base BASE names the base model",
    ),
    "nothing to edit": (lambda _: GGUF, ["edit", "SRC", "DST.gguf"], "--set-meta KEY=VALUE, --drop-meta GLOB"),
    "F16 is too small": (
        lambda folder: _valued(folder, 1e30), ["convert", "SRC", "DST.gguf", "--dtype", "f16", "--allow-lossy"],
        "--dtype f32 or bf16 holds it",
    ),
    "BF16 is too small": (
        lambda folder: _valued(folder, MOST), ["convert", "SRC", "DST.gguf", "--dtype", "bf16", "--allow-lossy"],
        "--dtype f32 holds it",
    ),
    "no context length": (
        lambda folder: gguf_copy(GGUF, folder / "m.gguf", without=["llama.context_length"]),
        ["convert", "SRC", "DST/", "--to", "bump", "--dequantize"], "--context N sets one",
    ),
    "a tied head with a factor": (
        _tied_minicpm3, ["convert", "SRC", "DST/", "--to", "mlx"], "--untie writes a head",
    ),
    "whisper.cpp has no BF16": (
        lambda folder: whisper_cases.save(folder / "hf", "multilingual-128-f32"),
        ["convert", "SRC", "DST.bin", "--to", "whisper-ggml", "--dtype", "bf16"], "--dtype f32 holds every value",
    ),
    "rows of another order": (
        lambda _: GGUF, ["convert", "SRC", "DST/", "--to", "safetensors", "--rope-layout", "interleaved"],
        "--rope-layout split",
    ),
    "many sources": (
        lambda _: GGUF, ["convert", "SRC", "SRC", "SRC", "DST/", "--to", "bump"],
        "ckconv batch SRC --into DIR converts many models",
    ),
    "another base": (
        lambda _: LORA, ["convert", "SRC", "DST.gguf", "--base", str(FIXTURES / "hf" / "gpt2-hub-f32")],
        "--base BASE names the model it was made for",
    ),
    "a link out of the directory": (_linked, ["convert", "SRC", "DST.gguf"], "--follow-links reads what it links to"),
    "an architecture of no engine": (
        lambda folder: _tensors(folder, {"model_type": "bart"}, "model.shared.weight"),
        ["convert", "SRC", "DST/", "--to", "gguf"], "--to safetensors copies it as it is",
    ),
    "no config.json": (
        lambda folder: _tensors(folder, None, "model.norm.weight"), ["convert", "SRC", "DST/", "--to", "gguf"],
        "--to safetensors copies the tensors as they are",
    ),
    "a diffusion model": (
        lambda folder: _tensors(folder, None, "model.diffusion_model.out.2.weight"),
        ["convert", "SRC", "DST/", "--to", "mlx"], "--to safetensors copies its values",
    ),
    "another quantizer": (
        lambda folder: _tensors(folder, {"model_type": "llama"}, "model.layers.0.mlp.up_proj.weight._data"),
        ["convert", "SRC", "DST/", "--to", "gguf"], "--to safetensors copies this one as it is",
    ),
    "an adapter under a model's name": (
        lambda _: LORA, ["convert", "SRC", "DST.bump", "--base", str(LLAMA)],
        "--to peft DST/, --to gguf DST/, --to mlx DST/ converts it",
    ),
    "blocks that are to be kept": (
        lambda _: Q4_K_M, ["convert", "SRC", "DST.safetensors", "--dtype", "keep"],
        "without --dtype keep, --dequantize decodes them to FP32, --decode GLOB only",
    ),
    "a base with blocks that are to be kept": (
        lambda _: Q4_K_M, ["convert", "SRC", "DST.gguf", "--adapter", str(LORA), "--dtype", "keep"],
        "without --dtype keep, --dequantize decodes them to float32",
    ),
    "a flag of this output only": (
        lambda folder: _tensors(folder, None, "model.diffusion_model.out.2.weight"),
        ["convert", "SRC", "DST/", "--to", "mlx", "--quantize", "mxfp4"], "--to safetensors without --quantize copies",
    ),
    "a text part of an unknown whole": (
        lambda folder: _tensors(
            folder,
            {"model_type": "unheard_of", "text_config": json.loads((LLAMA / "config.json").read_text())},
            "model.text_decoder.layers.0.mlp.up_proj.weight", "model.connector.weight",
        ),
        ["convert", "SRC", "DST/", "--to", "gguf"], "--to safetensors copies it as it is",
    ),
}  # fmt: skip

#: What the placeholders of those hints stand for.
KNOWN = {
    "ADAPTER": str(LORA), "N": "64", "KEY=VALUE": "general.name=x", "BASE": str(LLAMA), "DST": "DST.gguf",
    "SRC": str(GGUF), "DIR": "DST.d", "TYPE": "q8_0",
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_hints_of_refusals_lead_on(name: str, tmp_path: Path, runner: Any) -> None:
    make, arguments, said = CASES[name]
    command = [str(make(tmp_path)) if it == "SRC" else it for it in arguments]
    first = runner(command)

    assert first.status
    assert said in first.hint
    known = {**KNOWN, "GLOB": "general.name" if command[0] == "edit" else "*"}
    assert follow(runner, command, known, without="FILE")  # a family's file: test_own_families.py


def test_a_hint_that_leads_nowhere_is_noticed() -> None:
    """The reason stays, the flag is none of the command, the way ends, or goes round in a circle."""

    def says(*hint: str) -> Any:
        answers = dict(enumerate(hint))
        return lambda arguments: Refusal(4, "x", frozenset({f"r{len(arguments)}"}), answers.get(len(arguments), ""))

    with pytest.raises(Misleading, match="convert has no --config"):
        follow(says("", "--config FILE names it"), ["convert"], {"FILE": "f"})
    with pytest.raises(Misleading, match="for good"):
        follow(says("", "--dequantize decodes it"), ["convert"])
    with pytest.raises(Misleading, match="same reasons"):
        follow(lambda _: Refusal(4, "x", frozenset({"r"}), "--dequantize decodes it"), ["convert"])
    with pytest.raises(Misleading, match="no other command"):
        follow(says("", "", "--dequantize decodes it"), ["convert", "--dequantize"])
    with pytest.raises(Misleading, match="nobody says what BASE is"):
        follow(says("", "--base BASE names it"), ["convert"])


def followed_there() -> list[str]:
    """Hints that a test of this file follows."""
    found = [hint for line in golden.GOLDEN.read_text().splitlines() for hint in told(line) if hints.said(hint)]
    return found + [said for _, _, said in CASES.values()]


def test_every_hint_that_is_not_followed_is_one_and_has_a_reason() -> None:
    """``scripts/hints.py`` finds those that are missing from the list."""
    assert sorted(listed().keys() - hint_texts().keys()) == []
    assert [pattern for pattern, reason in listed().items() if len(reason.split()) < 3] == []
