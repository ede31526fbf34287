"""What peft saves besides an adapter: copies of saved modules and of the base, a vocabulary that grew, single rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import Decoder, Tensors, save, save_file

import ckconv
from ckconv import Options
from ckconv.errors import CkconvError

BASE = Decoder()
HEAD, TABLE, Q = "lm_head", "model.embed_tokens", "model.layers.0.self_attn.q_proj"


def base(root: Path, *, tied: bool = False) -> Path:
    stored = {name: array for name, array in BASE.tensors().items() if not (tied and name == "lm_head.weight")}
    return save(root / "base", BASE.config(tie_word_embeddings=tied), stored)


def adapter(root: Path, more: dict[str, np.ndarray], targets: tuple[str, ...] = ("q_proj",), **said: Any) -> Path:
    """A LoRA of Q, as peft 0.21 writes it, with other tensors beside it."""
    rng = np.random.default_rng(3)
    shapes = {f"{Q}.lora_A.weight": (4, BASE.hidden), f"{Q}.lora_B.weight": (BASE.heads * BASE.head_dim, 4)}
    stored: Tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    (root / "adapter").mkdir()
    document = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": list(targets), **said}
    (root / "adapter" / "adapter_config.json").write_text(json.dumps(document))
    named = {f"base_model.model.{name}": array for name, array in {**stored, **more}.items()}
    save_file(root / "adapter" / "adapter_model.safetensors", named)
    return root / "adapter"


def tensors(path: Path) -> dict[str, np.ndarray]:
    return {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}


def copies(rows: int) -> dict[str, np.ndarray]:
    """Both saved modules three times over (``save_embedding_layers``)."""
    new = np.random.default_rng(5).standard_normal((rows, BASE.hidden)).astype(np.float32)
    old = np.zeros((rows, BASE.hidden), np.float32)
    ways = {".weight": new, ".modules_to_save.weight": new, ".original_module.weight": old}
    return {f"{module}{ending}": array for module in (HEAD, TABLE) for ending, array in ways.items()}


def test_copies_of_saved_modules_are_left_out(tmp_path: Path) -> None:
    found = copies(BASE.vocab)
    source = adapter(tmp_path, found, modules_to_save=["embed_tokens", "lm_head"])
    ckconv.convert(base(tmp_path), tmp_path / "m.gguf", adapters=[(source, 1.0)])

    assert np.array_equal(tensors(tmp_path / "m.gguf")["output.weight"], found[f"{HEAD}.weight"])
    assert np.array_equal(tensors(tmp_path / "m.gguf")["token_embd.weight"], found[f"{TABLE}.weight"])


def test_a_vocabulary_that_grew_says_what_to_do_first(tmp_path: Path) -> None:
    source = adapter(tmp_path, copies(BASE.vocab + 3), modules_to_save=["embed_tokens", "lm_head"])
    model = base(tmp_path)
    for run in (
        lambda: ckconv.convert(model, tmp_path / "m.gguf", adapters=[(source, 1.0)]),
        lambda: ckconv.convert(source, tmp_path / "a.gguf", options=Options(base=model)),
    ):
        with pytest.raises(CkconvError) as caught:
            run()
        assert f"resize_token_embeddings({BASE.vocab + 3})" in (caught.value.hint or "")


@pytest.mark.parametrize("to", ["gguf", "mlx"])
def test_what_equals_the_base_is_left_out(tmp_path: Path, to: str) -> None:
    held = BASE.tensors()
    source = adapter(tmp_path, {f"{module}.weight": held[f"{module}.weight"] for module in (HEAD, TABLE)})
    report = ckconv.convert(source, tmp_path / "made", to=to, options=Options(base=base(tmp_path)))

    left = {item.name for item in report.plan.left_out}
    assert left == {"output.saved_weight", "token_embedding.saved_weight"}


def test_without_the_base_the_hint_names_it(tmp_path: Path) -> None:
    held = BASE.tensors()
    source = adapter(tmp_path, {f"{HEAD}.weight": held[f"{HEAD}.weight"]})

    with pytest.raises(CkconvError) as caught:
        ckconv.convert(source, tmp_path / "a.gguf")
    assert "where --base names it" in (caught.value.hint or "")


def test_the_head_of_a_tied_base_has_one_reason_and_a_way_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    lora = {
        f"{HEAD}.lora_A.weight": rng.standard_normal((4, BASE.hidden)).astype(np.float32),
        f"{HEAD}.lora_B.weight": rng.standard_normal((BASE.vocab, 4)).astype(np.float32),
        f"{HEAD}.base_layer.weight": BASE.tensors()[f"{TABLE}.weight"],
    }
    source, model = adapter(tmp_path, lora, ("q_proj", "lm_head")), base(tmp_path, tied=True)

    with pytest.raises(CkconvError) as caught:
        ckconv.convert(source, tmp_path / "a.gguf", options=Options(base=model))
    assert "the base is tied" in caught.value.message
    assert not caught.value.details
    assert "--untie" in (caught.value.hint or "")
    ckconv.convert(model, tmp_path / "b.gguf", options=Options(tie="untie"))
    ckconv.convert(source, tmp_path / "a.gguf", options=Options(base=tmp_path / "b.gguf"))
    assert "output.weight.lora_b" in tensors(tmp_path / "a.gguf")


def test_single_rows_are_refused_with_what_merges_them(tmp_path: Path) -> None:
    rows = {f"{TABLE}.token_adapter.trainable_tokens_delta": np.ones((2, BASE.hidden), np.float32)}
    source = adapter(tmp_path, rows, trainable_token_indices=[5, 17])

    with pytest.raises(CkconvError) as caught:
        ckconv.convert(base(tmp_path), tmp_path / "m.gguf", adapters=[(source, 1.0)])
    assert "trainable_token_indices" in caught.value.message
    assert "merge_and_unload()" in (caught.value.hint or "")
