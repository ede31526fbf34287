"""What needs torch: transformers and peft compute the outputs now. ``make oracles`` runs these.

``CKCONV_REFERENCE`` may name folders with ``hf/NAME`` and, by llama.cpp's own converter, ``gguf/NAME.TYPE.gguf``: those
models are held against llama.cpp to the bit, besides the fixtures, which lie in such folders.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import consumers
import numpy as np
import pytest
from conftest import FIXTURES
from recorded import EXACT, GELU, PROMPT, limit, off
from test_logits import TWINS

import ckconv
from ckconv import Options
from ckconv.errors import UnsupportedError

pytestmark = pytest.mark.live

FOLDERS = [FIXTURES, *(Path(name) for name in os.environ.get("CKCONV_REFERENCE", "").split(os.pathsep) if name)]
PAIRS = [(hf, theirs) for root in FOLDERS for hf in sorted((root / "hf").iterdir()) if any(hf.glob("*.safetensors"))
         for theirs in sorted((root / "gguf").glob(f"{hf.name}.*.gguf"))]  # fmt: skip
BLOCKS = [path for root in FOLDERS if (root / "kquants").is_dir() for path in sorted((root / "kquants").glob("*.gguf"))]


@pytest.fixture(scope="module")
def transformers() -> Iterator[consumers.Consumer]:
    with consumers.transformers() as program:
        yield program


@pytest.mark.parametrize("through", ["safetensors", "mlx"])
@pytest.mark.parametrize("checkpoint", [pytest.param(path, id=path.name) for path in TWINS])
def test_transformers_computes_the_same_from_llama_cpps_own_gguf(
    checkpoint: Path, through: str, transformers: consumers.Consumer, tmp_path: Path
) -> None:
    ckconv.convert(FIXTURES / TWINS[checkpoint], tmp_path / "middle", to=through)
    ckconv.convert(tmp_path / "middle", tmp_path / "hf", to="safetensors")

    assert off(transformers.logits(tmp_path / "hf", PROMPT), checkpoint.name) < EXACT


@pytest.mark.parametrize("adapter", ["lora/gpt2-r4", "lora/qwen2-r4-all"])
def test_peft_computes_the_same_after_a_way_through_gguf_and_mlx(
    adapter: str, transformers: consumers.Consumer, tmp_path: Path
) -> None:
    name = {"lora/gpt2-r4": "gpt2-hub-f32", "lora/qwen2-r4-all": "qwen2-tied-bf16"}[adapter]
    base = FIXTURES / "hf" / name
    options = Options(base=base, allow_lossy=True)
    ckconv.convert(FIXTURES / adapter, tmp_path / "a.gguf", options=options)
    ckconv.convert(tmp_path / "a.gguf", tmp_path / "mlx", to="mlx", options=options)
    ckconv.convert(tmp_path / "mlx", tmp_path / "peft", to="peft", options=options)

    assert off(transformers.logits(base, PROMPT, adapter=tmp_path / "peft"), adapter) < EXACT


def refused(source: Path, target: Path, options: Options) -> bool:
    """Convert; whether the target cannot hold the model."""
    try:
        ckconv.convert(source, target, options=options)
    except UnsupportedError:
        return True
    return False


@pytest.mark.parametrize(("hf", "theirs"), PAIRS, ids=[theirs.name for _, theirs in PAIRS])
def test_a_reference_model_is_refused_or_computes_what_llama_cpps_own_gguf_does(
    hf: Path, theirs: Path, llama_cpp: consumers.Consumer, transformers: consumers.Consumer, tmp_path: Path
) -> None:
    # llama.cpp attends to everything: up to the window it computes the same.
    context = {"mistral": 32}.get(hf.name, 0)
    if refused(hf, tmp_path / "m.gguf", Options(context=context)):
        return
    assert np.array_equal(llama_cpp.logits(tmp_path / "m.gguf", PROMPT[:32]), llama_cpp.logits(theirs, PROMPT[:32]))

    ckconv.convert(hf, tmp_path / "f32.gguf", options=Options(context=context, dtype="f32"))
    made, wanted = llama_cpp.logits(tmp_path / "f32.gguf", PROMPT[:32]), transformers.logits(hf, PROMPT[:32])
    # The Gemma among the references has seven layers, and in each the table of GELU rounds.
    allowed = 2 * GELU if limit(hf.name) == GELU else EXACT
    assert np.abs(made[:, : wanted.shape[1]] - wanted).max() < allowed


@pytest.mark.parametrize("theirs", BLOCKS, ids=[path.name for path in BLOCKS])
def test_a_quantized_reference_is_copied_to_the_bit(
    theirs: Path, llama_cpp: consumers.Consumer, tmp_path: Path
) -> None:
    report = ckconv.convert(theirs, tmp_path / "m.gguf", options=Options(max_shard_bytes=200_000))

    assert np.array_equal(llama_cpp.logits(report.files[0].path, PROMPT), llama_cpp.logits(theirs, PROMPT))


def test_a_run_of_fsdp_computes_what_its_model_did(
    transformers: consumers.Consumer, llama_cpp: consumers.Consumer, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    model = FIXTURES / "hf" / "llama-untied-f16-sharded"
    script = Path(__file__).with_name("fsdp_run.py")
    subprocess.run([sys.executable, script, model, run, json.dumps(PROMPT)], check=True, capture_output=True)
    assert len(list(run.glob("*.distcp"))) == 2, "each process has saved its shards"
    theirs, before = np.load(run / "logits.npy"), transformers.logits(model, PROMPT)

    ckconv.convert(run, f"{tmp_path / 'hf'}/", to="safetensors")
    ckconv.convert(run, tmp_path / "m.gguf")

    assert np.abs(theirs - before).max() > 0.01, "the step has changed it"
    assert np.abs(transformers.logits(tmp_path / "hf", PROMPT) - theirs).max() < EXACT
    assert np.abs(llama_cpp.logits(tmp_path / "m.gguf", PROMPT) - theirs).max() < EXACT
