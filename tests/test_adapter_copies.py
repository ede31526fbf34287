"""What peft saves besides an adapter: copies of saved modules and of the base, a vocabulary that grew, single rows."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import Decoder, Tensors, save, save_file
from gguf_copies import arrays_of
from safetensors.numpy import load_file

import ckconv
from ckconv import Options
from ckconv.comparison.compare import hash_index
from ckconv.errors import CkconvError
from ckconv.formats.detect import open_index
from ckconv.io import rows as merge

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

    assert np.array_equal(arrays_of(tmp_path / "m.gguf")["output.weight"], found[f"{HEAD}.weight"])
    assert np.array_equal(arrays_of(tmp_path / "m.gguf")["token_embd.weight"], found[f"{TABLE}.weight"])


def grown(rows: int) -> dict[str, dict[str, np.ndarray]]:
    """What peft saves of a vocabulary of another size: matrices whole, below a LoRA, below rows of tokens."""
    rng = np.random.default_rng(9)
    whole, a, b, new = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((rows, BASE.hidden), (4, BASE.hidden), (rows, 4), (2, BASE.hidden))
    )
    lora = {f"{HEAD}.base_layer.weight": whole, f"{HEAD}.lora_A.weight": a, f"{HEAD}.lora_B.weight": b}
    tokens = {
        f"{TABLE}.token_adapter.{name}": one
        for name, one in (("base_layer.weight", whole), ("trainable_tokens_delta", new))
    }
    return {"whole": copies(rows), "lora": lora, "tokens": tokens}


@pytest.mark.product("pairs")
@pytest.mark.parametrize("way", ["whole", "lora", "tokens"])
@pytest.mark.parametrize("more", [3, -4])
@pytest.mark.parametrize("form", ["hf", "gguf", "q8_0"])
def test_a_vocabulary_that_grew_says_what_to_do_first(tmp_path: Path, way: str, more: int, form: str) -> None:
    rows, model = BASE.vocab + more, base(tmp_path)
    named = {"embed_tokens": [rows - 1, 5]} if way == "tokens" else None
    targets = ("q_proj", "lm_head") if way == "lora" else ("q_proj",)
    source = adapter(tmp_path, grown(rows)[way], targets, trainable_token_indices=named)
    if form != "hf":
        quantize = {"quantize": form} if form == "q8_0" else {}
        ckconv.convert(model, tmp_path / "base.gguf", options=Options(**quantize))
        model = tmp_path / "base.gguf"
    runs = [lambda: ckconv.convert(model, tmp_path / "m.gguf", adapters=[(source, 1.0)])]
    if way != "tokens":
        runs.append(lambda: ckconv.convert(source, tmp_path / "a.gguf", options=Options(base=model)))
    for run in runs:
        with pytest.raises(CkconvError) as caught:
            run()
        assert f"resize_token_embeddings({rows})" in (caught.value.hint or "")
        assert ("--to hf" in caught.value.hint, "--dequantize" in caught.value.hint) == (form != "hf", form == "q8_0")


@pytest.mark.parametrize("way", ["whole", "lora", "tokens"])
def test_a_resized_base_takes_the_vocabulary_that_grew(tmp_path: Path, way: str) -> None:
    rows, found = BASE.vocab + 3, grown(BASE.vocab + 3)[way]
    larger = Decoder(vocab=rows)
    model = save(tmp_path / "base", larger.config(tie_word_embeddings=False), larger.tensors())
    named = {"embed_tokens": [rows - 1, 5]} if way == "tokens" else None
    targets = ("q_proj", "lm_head") if way == "lora" else ("q_proj",)
    source = adapter(tmp_path, found, targets, trainable_token_indices=named)
    ckconv.convert(model, tmp_path / "m.gguf", adapters=[(source, 1.0)])

    made, whole = arrays_of(tmp_path / "m.gguf"), next(iter(found.values()))
    if way == "whole":
        assert np.array_equal(made["output.weight"], whole)
    elif way == "lora":
        delta = 2 * found[f"{HEAD}.lora_B.weight"] @ found[f"{HEAD}.lora_A.weight"]
        assert np.allclose(made["output.weight"], whole + delta, atol=1e-5)
    else:
        whole = whole.copy()
        whole[[rows - 1, 5]] = found[f"{TABLE}.token_adapter.trainable_tokens_delta"]
        assert np.array_equal(made["token_embd.weight"], whole)


def test_equal_copies_of_embedding_and_head_leave_a_base_tied(tmp_path: Path) -> None:
    new = copies(BASE.vocab)[f"{HEAD}.weight"]
    source = adapter(tmp_path, {f"{HEAD}.weight": new, f"{TABLE}.weight": new})
    model = base(tmp_path, tied=True)
    for directory, tokens in ((source, "[1]"), (model, "[]")):
        (directory / "tokenizer.json").write_text(tokens)
    report = ckconv.convert(model, tmp_path / "m", to="safetensors", adapters=[(source, 1.0)])

    stored = load_file(tmp_path / "m" / "model.safetensors")
    assert np.array_equal(stored[f"{TABLE}.weight"], new)
    assert f"{HEAD}.weight" not in stored
    assert any("the tokenizer is the base's: that of the adapter's" in note for note in report.plan.index.merged)
    (model / "tokenizer.json").unlink()
    ckconv.convert(model, tmp_path / "base.gguf")
    report = ckconv.convert(tmp_path / "base.gguf", tmp_path / "m.gguf", adapters=[(source, 1.0)])
    assert report.plan.index.merged[0].endswith("the tokenizer is the base's")  # within its file


def test_a_base_that_only_a_name_says_need_not_fit(tmp_path: Path) -> None:
    """Its vocabulary grew afterwards: what works with the adapter's own files does."""
    found = grown(BASE.vocab + 3)["lora"]
    source = adapter(tmp_path, found, ("q_proj", "lm_head"), base_model_name_or_path=str(base(tmp_path)))
    ckconv.convert(source, tmp_path / "copy", to="peft")

    assert ckconv.diff(source, tmp_path / "copy").same
    assert len(open_index(source).tensors) == 5
    for to in ("gguf", "mlx"):
        with pytest.raises(CkconvError, match=r"\[adapter.base\].*the base has") as caught:
            ckconv.convert(source, tmp_path / "out", to=to)
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
    assert "where --base names it" in caught.value.details[0]


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
    assert "output.weight.lora_b" in arrays_of(tmp_path / "a.gguf")


def rows_of(module: str, count: int = 2) -> dict[str, np.ndarray]:
    new = np.random.default_rng(count).standard_normal((count, BASE.hidden)).astype(np.float32)
    return {f"{module}.token_adapter.trainable_tokens_delta": new}


@pytest.mark.parametrize("tied", [False, True])
def test_rows_of_tokens_replace_those_of_the_base(tmp_path: Path, tied: bool) -> None:
    """``TrainableTokensLayer.merge``; what is tied stays so."""
    rows, model = rows_of(TABLE), base(tmp_path, tied=tied)
    source = adapter(tmp_path, rows, trainable_token_indices=[17, 5])
    report = ckconv.convert(model, tmp_path / "m.gguf", adapters=[(source, 1.0)])
    ckconv.convert(tmp_path / "m.gguf", tmp_path / "back", to="safetensors")

    found, old = arrays_of(tmp_path / "m.gguf"), BASE.tensors()
    wanted = old[f"{TABLE}.weight"].copy()
    wanted[[17, 5]] = next(iter(rows.values()))
    assert np.array_equal(found["token_embd.weight"], wanted)
    assert ("output.weight" in found) is not tied
    assert tied or np.array_equal(found["output.weight"], old["lm_head.weight"])
    assert report.verified


def test_rows_of_the_embedding_and_of_the_head(tmp_path: Path) -> None:
    named = {"embed_tokens": [5, 17], "lm_head": [3]}
    source = adapter(tmp_path, rows_of(TABLE) | rows_of(HEAD, 1), trainable_token_indices=named)
    ckconv.convert(base(tmp_path), tmp_path / "m.gguf", adapters=[(source, 1.0)])

    changed = arrays_of(tmp_path / "m.gguf")["output.weight"] != BASE.tensors()["lm_head.weight"]
    assert np.flatnonzero(changed.any(axis=1)).tolist() == [3]


def test_rows_of_a_tied_head_alone_take_a_base_with_a_head(tmp_path: Path) -> None:
    """peft computes with a head of its own until it merges, which changes the embedding too."""
    source, model = adapter(tmp_path, rows_of(HEAD, 1), trainable_token_indices={"lm_head": [3]}), None
    model = base(tmp_path, tied=True)
    with pytest.raises(CkconvError) as caught:
        ckconv.convert(model, tmp_path / "m.gguf", adapters=[(source, 1.0)])
    assert "--untie" in (caught.value.hint or "")

    ckconv.convert(model, tmp_path / "untied", to="safetensors", options=Options(tie="untie"))
    ckconv.convert(tmp_path / "untied", tmp_path / "m.gguf", adapters=[(source, 1.0)])
    found, old = arrays_of(tmp_path / "m.gguf"), BASE.tensors()[f"{TABLE}.weight"]
    assert np.array_equal(found["token_embd.weight"], old)
    assert np.array_equal(found["output.weight"][3], next(iter(rows_of(HEAD, 1).values()))[0])


def test_an_adapter_of_rows_is_merged_only(tmp_path: Path) -> None:
    source = adapter(tmp_path, rows_of(TABLE), trainable_token_indices=[5, 17])
    with pytest.raises(CkconvError) as caught:
        ckconv.convert(source, tmp_path / "a.gguf", options=Options(base=base(tmp_path)))
    assert "rows of single tokens" in caught.value.message
    assert "--adapter ADAPTER merges it" in (caught.value.hint or "")

    ckconv.convert(source, tmp_path / "a.gguf", options=Options(base=tmp_path / "base", drop=("*.rows",)))
    assert set(arrays_of(tmp_path / "a.gguf")) == {"blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b"}


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ([5], "names 1 rows"),
        ([5, 5], "none of them twice"),
        ([5, -1], "none of them twice"),
        ([5, BASE.vocab], f"[{BASE.vocab + 1}, {BASE.hidden}]"),
        ({"lm_head": [5, 17]}, "names 0 rows"),
    ],
)
def test_rows_that_have_no_place_are_refused(tmp_path: Path, named: object, said: str) -> None:
    source = adapter(tmp_path, rows_of(TABLE), trainable_token_indices=named)
    with pytest.raises(CkconvError) as caught:
        ckconv.convert(base(tmp_path), tmp_path / "m.gguf", adapters=[(source, 1.0)])
    assert said in caught.value.message


def test_a_row_in_the_place_of_another_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = adapter(tmp_path, rows_of(TABLE), trainable_token_indices=[5, 17])
    right = merge._Replaced.apply

    def swapped(self: merge._Replaced, values: np.ndarray, canonical: np.ndarray) -> np.ndarray:
        self._order = np.array([1, 0])
        return right(self, values, canonical)

    monkeypatch.setattr(merge._Replaced, "apply", swapped)
    with pytest.raises(CkconvError, match=r"token_embd\.weight"):
        ckconv.convert(base(tmp_path), tmp_path / "m.gguf", adapters=[(source, 1.0)])


def test_the_same_rows_elsewhere_are_another_adapter(tmp_path: Path) -> None:
    one = adapter(tmp_path, rows_of(TABLE), trainable_token_indices=[5, 17])
    (tmp_path / "more").mkdir()
    other = adapter(tmp_path / "more", rows_of(TABLE), trainable_token_indices=[5, 18])
    assert hash_index(open_index(one)).model != hash_index(open_index(other)).model
    assert not ckconv.diff(one, other).same


def of_tokens(root: Path, changed: dict[str, np.ndarray], **said: Any) -> Path:
    """An adapter of rows alone, as peft's TrainableTokensConfig saves it."""
    document = {"peft_type": "TRAINABLE_TOKENS", "target_modules": ["embed_tokens"], "token_indices": [17, 5], **said}
    (root / "adapter").mkdir()
    (root / "adapter" / "adapter_config.json").write_text(json.dumps(document))
    named = {f"base_model.model.{name}.trainable_tokens_delta": array for name, array in changed.items()}
    save_file(root / "adapter" / "adapter_model.safetensors", named)
    return root / "adapter"


ROWS = np.random.default_rng(2).standard_normal((2, BASE.hidden)).astype(np.float32)


@pytest.mark.parametrize("tied", [False, True])
def test_an_adapter_of_trainable_tokens_is_merged(tmp_path: Path, tied: bool) -> None:
    """``TrainableTokensModel``: a tied head is wrapped with the embedding, and saved beside it."""
    source = of_tokens(tmp_path, {TABLE: ROWS, **({HEAD: ROWS} if tied else {})})
    ckconv.convert(base(tmp_path, tied=tied), tmp_path / "m.gguf", adapters=[(source, 1.0)])

    found, wanted = arrays_of(tmp_path / "m.gguf"), BASE.tensors()[f"{TABLE}.weight"].copy()
    wanted[[17, 5]] = ROWS
    assert np.array_equal(found["token_embd.weight"], wanted)
    assert ("output.weight" in found) is not tied


@pytest.mark.parametrize(
    ("tied", "changed", "more", "said"),
    [
        (False, {TABLE: ROWS, HEAD: ROWS}, {}, "does not select 'lm_head'"),
        (True, {TABLE: ROWS, HEAD: -ROWS}, {}, "its embedding and its output head differently"),
        (False, {TABLE: ROWS[:1]}, {}, "names 2 rows"),
        (False, {TABLE: ROWS}, {"token_indices": [5, 5]}, "none of them twice"),
        (False, {TABLE: ROWS}, {"target_modules": ["q_proj"]}, "does not select 'model.embed_tokens'"),
        (False, {TABLE: ROWS}, {"peft_type": "VERA"}, "peft_type is 'VERA'; LORA, IA3, TRAINABLE_TOKENS"),
    ],
)
def test_trainable_tokens_that_peft_loads_otherwise_are_refused(
    tmp_path: Path, tied: bool, changed: dict[str, np.ndarray], more: dict[str, Any], said: str
) -> None:
    source = of_tokens(tmp_path, changed, **more)
    with pytest.raises(CkconvError) as caught:
        ckconv.convert(base(tmp_path, tied=tied), tmp_path / "m.gguf", adapters=[(source, 1.0)])
    assert said in caught.value.message


@pytest.mark.parametrize("method", ["TRAINABLE_TOKENS", "IA3"])
def test_matrices_of_lora_are_none_of_another_method(tmp_path: Path, method: str) -> None:
    source = adapter(tmp_path, {}, peft_type=method)
    with pytest.raises(CkconvError) as caught:
        ckconv.convert(base(tmp_path), tmp_path / "m.gguf", adapters=[(source, 1.0)])
    assert "has tensors of another method than its configuration's" in str(caught.value)


@pytest.mark.parametrize("to", ["gguf", "mlx", "safetensors"])
def test_an_adapter_in_the_directory_of_its_model_is_said_and_merged_where_it_is_named(to: str, tmp_path: Path) -> None:
    """transformers loads both (unsloth 1061, 1848), so the model alone is another one."""
    model = base(tmp_path)
    for file in adapter(tmp_path, {}).iterdir():
        file.rename(model / file.name)
    named = model / "adapter_config.json"
    said = (
        "adapter_config.json is beside the model: transformers loads its adapter, too, "
        f"and ckconv where --adapter {named} names it"
    )
    assert said in ckconv.convert(model, tmp_path / "alone", to=to).plan.notes

    ckconv.convert(model, tmp_path / "both", to=to, adapters=[(named, 1.0)])
    found = ckconv.diff(tmp_path / "alone", tmp_path / "both", weights=True)
    assert sorted(one.name for one in found.different) == ["layers.0.attention.q.weight"]


@pytest.mark.live
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of the two libraries about each other
@pytest.mark.filterwarnings("ignore:Model with")  # peft, of a tied base
@pytest.mark.parametrize("alone", [False, True])
def test_as_peft_merges(tmp_path: Path, alone: bool) -> None:
    peft, torch, transformers = (pytest.importorskip(name) for name in ("peft", "torch", "transformers"))
    model = base(tmp_path, tied=True)
    load = partial(transformers.AutoModelForCausalLM.from_pretrained, model, dtype=torch.float32)
    lora = {"r": 4, "target_modules": ["q_proj"], "trainable_token_indices": [17, 5], "task_type": "CAUSAL_LM"}
    wrapped = peft.get_peft_model(
        load(), peft.TrainableTokensConfig(token_indices=[17, 5]) if alone else peft.LoraConfig(**lora)
    )
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in wrapped.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    wrapped.save_pretrained(tmp_path / "adapter")
    merged = peft.PeftModel.from_pretrained(load(), tmp_path / "adapter").merge_and_unload()

    ckconv.convert(model, tmp_path / "m.gguf", adapters=[(tmp_path / "adapter", 1.0)])
    table = merged.get_input_embeddings().weight
    assert np.array_equal(arrays_of(tmp_path / "m.gguf")["token_embd.weight"], table.detach().numpy())
    assert merged.get_output_embeddings().weight is table


def of_no_base(path: Path) -> Path:
    """A GGUF of a LoRA of Llama's Q, as llama.cpp's converter writes it: without the base's number of heads."""
    rng = np.random.default_rng(3)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    for part, shape in (("a", (4, BASE.hidden)), ("b", (BASE.heads * BASE.head_dim, 4))):
        writer.add_tensor(f"blk.0.attn_q.weight.lora_{part}", rng.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_copy_of_an_adapter_needs_no_base(tmp_path: Path) -> None:
    source, out = of_no_base(tmp_path / "a.gguf"), tmp_path / "b.gguf"
    ckconv.convert(source, out)
    assert out.read_bytes() == source.read_bytes()
    assert ckconv.verify(out, source).tensors == 2
    named = Options(set_meta=(("general.name", "mine"),))
    ckconv.convert(source, tmp_path / "c.gguf", options=named)
    assert ckconv.verify(tmp_path / "c.gguf", source, options=named).tensors == 2
    rows = gguf.GGUFReader(tmp_path / "c.gguf").tensors[1].data
    assert rows.tobytes() == gguf.GGUFReader(source).tensors[1].data.tobytes()


def test_rows_of_another_copy_are_found(tmp_path: Path) -> None:
    source, out = of_no_base(tmp_path / "a.gguf"), tmp_path / "b.gguf"
    data = bytearray(source.read_bytes())
    data[-4:] = b"\0\0\x80\x3f"
    out.write_bytes(data)
    with pytest.raises(CkconvError, match=r"attn_q\.weight\.lora_b"):
        ckconv.verify(out, source)


def test_another_type_needs_the_base(tmp_path: Path) -> None:
    with pytest.raises(CkconvError, match="order of heads, which follows from the base model"):
        ckconv.convert(of_no_base(tmp_path / "a.gguf"), tmp_path / "b.gguf", options=Options(dtype="bf16"))
