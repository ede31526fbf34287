"""``--quantize`` to ggml's types: the blocks that llama-quantize writes, and what it leaves as it is."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import Decoder, as_mixtral, bf16, save, save_gguf
from conftest import FIXTURES, Result
from family_cases import cases, checkpoint as checkpoint_of, families, stored_as
from gguf_copies import finish
from products import shown

import ckconv
from ckconv import Options
from ckconv.core.layouts import DTYPES, DType
from ckconv.errors import InputError, UnsupportedError, UsageError, VerifyError
from ckconv.io.imatrix import read_imatrix
from ckconv.quant import convert
from ckconv.verification.values import sampled

SMALL = Decoder(layers=1, hidden=64, ffn=64)
#: Rows that are whole blocks of K-quants.
WIDE = Decoder(hidden=256, head_dim=64, ffn=256, vocab=64)

#: What is converted -> ``ftype`` of llama-quantize, and whether it is to mix.
WORDS: dict[str, tuple[int, bool]] = {
    "q4_0": (2, True), "q4_1": (3, True), "q8_0": (7, True), "q5_0": (8, True), "q5_1": (9, True), "q2_k": (10, True),
    "q3_k_s": (11, True), "q3_k_m": (12, True), "q3_k_l": (13, True), "q4_k_s": (14, True), "q4_k_m": (15, True),
    "q5_k_s": (16, True), "q5_k_m": (17, True), "q6_k": (18, True), "iq4_nl": (25, True), "iq3_s": (26, True),
    "iq3_m": (27, True), "iq4_xs": (30, True), "tq1_0": (36, True), "tq2_0": (37, True), "mxfp4_moe": (38, True),
    "q3_k": (12, False), "q4_k": (15, False), "q5_k": (17, False), "q2_k,*=q2_k": (10, False),
    "iq4_nl,*=iq4_nl": (25, False), "iq4_xs,*=iq4_xs": (30, False), "tq2_0,*=tq2_0": (37, False),
}  # fmt: skip

#: Recipes that take an importance matrix.
WEIGHED = {
    "iq2_xxs": 19, "iq2_xs": 20, "q2_k_s": 21, "iq3_xs": 22, "iq3_xxs": 23, "iq1_s": 24, "iq2_s": 28, "iq2_m": 29,
}  # fmt: skip

#: Asked of llama.cpp: ``llama_quantize`` of conftest.
Quantizer = Callable[..., Path]


def checkpoint(root: Path, decoder: Decoder, model_type: str = "llama", **config: Any) -> Path:
    made = decoder.tensors()
    tensors = {k: bf16(v) if v.ndim > 1 else v for k, v in (as_mixtral(made) if decoder.experts else made).items()}
    if config.get("tie_word_embeddings"):
        del tensors["lm_head.weight"]
    return save(root, decoder.config(model_type, **config), tensors)


def tensors(path: Path) -> dict[str, tuple[str, str]]:
    """Name -> type and digest, by the gguf package's reader."""
    return {
        tensor.name: (tensor.tensor_type.name, hashlib.sha256(tensor.data.tobytes()).hexdigest())
        for tensor in gguf.GGUFReader(path).tensors
    }


def keys(path: Path) -> list[int]:
    fields = gguf.GGUFReader(path).fields
    return [int(fields[f"general.{key}"].contents()) for key in ("file_type", "quantization_version")]


class Sources:
    """Checkpoints, and the GGUFs of their floats: each is made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, tuple[Path, Path]] = {}

    def of(self, decoder: Decoder, model_type: str = "llama", **config: Any) -> tuple[Path, Path]:
        found = self._made.get(asked := repr((decoder, model_type, config)))
        if not found:
            place = self._folder / str(len(self._made))
            found = self._made[asked] = checkpoint(place / "hf", decoder, model_type, **config), place / "plain.gguf"
            ckconv.convert(*found, options=Options())
        return found


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    return Sources(tmp_path_factory.mktemp("sources"))


@pytest.mark.parametrize("word", WORDS)
def test_every_block_and_key_is_llama_quantizes(
    word: str, sources: Sources, llama_quantize: Quantizer, tmp_path: Path
) -> None:
    file_type, mixes = WORDS[word]
    source, plain = sources.of(WIDE)
    theirs = llama_quantize(plain, tmp_path / "q.gguf", file_type, *([] if mixes else ["pure"]))

    ckconv.convert(source, tmp_path / "ours.gguf", options=Options(quantize=word))

    assert tensors(tmp_path / "ours.gguf") == tensors(theirs)
    assert keys(tmp_path / "ours.gguf") == keys(theirs) == [file_type, 2]


#: Many layers of rows of 32: every type falls back to another of its own, so that the files are small.
DEEP: dict[str, tuple[Decoder, str, dict[str, Any]]] = {
    "18 layers, a head": (Decoder(layers=18, hidden=32, head_dim=8, ffn=32), "llama", {}),
    "9 layers, tied": (Decoder(layers=9, hidden=32, head_dim=8, ffn=32), "llama", {"tie_word_embeddings": True}),
    "8 experts": (Decoder(layers=10, hidden=32, head_dim=8, ffn=32, experts=8, expert_ffn=32), "mixtral", {}),
    "4 experts": (Decoder(layers=5, hidden=32, head_dim=8, ffn=32, experts=4, expert_ffn=64), "mixtral", {}),
    "rows of 48": (Decoder(layers=3, hidden=48, head_dim=8, heads=6, ffn=96), "llama", {}),
}


@pytest.mark.product("values")
@pytest.mark.parametrize("model", DEEP)
@pytest.mark.parametrize("word", [word for word, (_, mixes) in WORDS.items() if mixes])
def test_the_types_of_every_layer_are_llama_quantizes(
    model: str, word: str, sources: Sources, llama_quantize: Quantizer, tmp_path: Path
) -> None:
    decoder, model_type, config = DEEP[model]
    source, plain = sources.of(decoder, model_type, **config)
    theirs = llama_quantize(plain, tmp_path / "q.gguf", WORDS[word][0])

    ckconv.convert(source, tmp_path / "ours.gguf", options=Options(quantize=word), verify=False)

    assert tensors(tmp_path / "ours.gguf") == tensors(theirs)


def _has_types(family: str) -> bool:
    """Whether the first model of a family is written whole: what is refused or left out has no types."""
    case = next(cases(family))
    return not case.options and case.expected("hf->gguf") == "right"


@pytest.mark.parametrize("family", shown(filter(_has_types, families()), stored_as))
def test_every_architecture_has_the_types_that_llama_quantize_gives(
    family: str, llama_quantize: Quantizer, tmp_path: Path
) -> None:
    """Of one model of a family: what stays floats, and every block."""
    case = next(cases(family))
    source = checkpoint_of(case.recorded, tmp_path / "hf", case.tokenizer)
    ckconv.convert(source, tmp_path / "plain.gguf", options=Options(), verify=False)
    theirs = llama_quantize(tmp_path / "plain.gguf", tmp_path / "q.gguf", WORDS["q4_k_m"][0])
    ckconv.convert(source, tmp_path / "ours.gguf", options=Options(quantize="q4_k_m"), verify=False)

    assert tensors(tmp_path / "ours.gguf") == tensors(theirs)


@pytest.mark.parametrize("word", ["q3_k_m", "q4_k_m"])
def test_v_of_a_model_of_80_layers_has_more_bits(
    word: str, sources: Sources, llama_quantize: Quantizer, tmp_path: Path
) -> None:
    source, plain = sources.of(Decoder(layers=80, hidden=32, head_dim=8, ffn=32, vocab=8))
    theirs = llama_quantize(plain, tmp_path / "q.gguf", WORDS[word][0])

    ckconv.convert(source, tmp_path / "ours.gguf", options=Options(quantize=word), verify=False)

    assert tensors(tmp_path / "ours.gguf") == tensors(theirs)


@pytest.mark.parametrize("name", ["gpt2-hub-f32", "phi3-bf16", "qwen3-tied-bf16", "gemma3-text-bf16"])
def test_fused_transposed_and_tied_matrices_are_as_llama_quantize_has_them(
    name: str, llama_quantize: Quantizer, tmp_path: Path
) -> None:
    ckconv.convert(FIXTURES / "hf" / name, tmp_path / "plain.gguf")
    theirs = llama_quantize(tmp_path / "plain.gguf", tmp_path / "q.gguf", 15)

    ckconv.convert(FIXTURES / "hf" / name, tmp_path / "ours.gguf", options=Options(quantize="Q4_K_M"))

    assert tensors(tmp_path / "ours.gguf") == tensors(theirs)


def test_q4_k_m_gives_half_of_the_layers_more_bits(tmp_path: Path) -> None:
    """Recorded from llama-quantize: rows of 32 are Q5_0 where they would be Q4_K, and Q8_0 where Q6_K."""
    source = checkpoint(tmp_path / "hf", DEEP["18 layers, a head"][0])

    ckconv.convert(source, tmp_path / "m.gguf", options=Options(quantize="q4_k_m"))

    found = tensors(tmp_path / "m.gguf")
    more = [n for n in range(18) if found[f"blk.{n}.ffn_down.weight"][0] == "Q8_0"]
    assert more == [n for n in range(18) if found[f"blk.{n}.attn_v.weight"][0] == "Q8_0"]
    assert more == [0, 1, 4, 7, 10, 13, 15, 16, 17]
    assert {found[f"blk.{n}.{m}.weight"][0] for n in range(18) for m in ("attn_q", "ffn_up")} == {"Q5_0"}
    assert (found["output.weight"][0], found["token_embd.weight"][0]) == ("Q8_0", "Q5_0")


@pytest.mark.parametrize("word", ["q4_k_m", "q8_0"])
def test_a_bump_holds_the_entries_of_the_one_made_from_llama_quantizes_gguf(
    word: str, sources: Sources, llama_quantize: Quantizer, tmp_path: Path, ckconv: Callable[..., Result]
) -> None:
    source, plain = sources.of(WIDE)
    quantized = llama_quantize(plain, tmp_path / "q.gguf", WORDS[word][0])
    ckconv("convert", quantized, f"{tmp_path}/theirs/", "--to", "bump")

    made = ckconv("convert", source, f"{tmp_path}/ours/", "--to", "bump", "--quantize", word)

    assert made.code == 0, made.err
    assert entries(tmp_path / "ours") == entries(tmp_path / "theirs")


def entries(folder: Path) -> dict[str, tuple[str, bytes]]:
    """Name -> type and bytes of every entry but the tokenizer's, by the manifest."""
    data = (folder / "weights.bump").read_bytes()
    listed = json.loads((folder / "weights_manifest.json").read_text())["entries"]
    return {
        entry["name"]: (entry["dtype"], data[entry["file_offset"] : entry["file_offset"] + entry["size"]])
        for entry in listed
        if not entry["name"].startswith("vocab_")
    }


def test_what_a_bump_engine_does_not_compute_is_refused(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf", WIDE)

    with pytest.raises(UnsupportedError, match="no correct kernel for Q4_1 matrices"):
        ckconv.convert(source, tmp_path / "m.bump", options=Options(quantize="q4_1", bump_version=5))


def test_the_last_glob_that_matches_counts_and_floats_may_stay(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf", SMALL)
    word = "q8_0,layers.*.ffn.*=q4_0,layers.0.ffn.up.weight=Q5_1,model.layers.0.self_attn.q_proj.weight=bf16"

    ckconv.convert(source, tmp_path / "m.gguf", options=Options(quantize=word))

    assert {name: kind for name, (kind, _) in tensors(tmp_path / "m.gguf").items()} == {
        "token_embd.weight": "Q8_0", "output.weight": "Q8_0", "output_norm.weight": "F32",
        "blk.0.attn_norm.weight": "F32", "blk.0.ffn_norm.weight": "F32", "blk.0.attn_q.weight": "BF16",
        "blk.0.attn_k.weight": "Q8_0", "blk.0.attn_v.weight": "Q8_0", "blk.0.attn_output.weight": "Q8_0",
        "blk.0.ffn_gate.weight": "Q4_0", "blk.0.ffn_up.weight": "Q5_1", "blk.0.ffn_down.weight": "Q4_0",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("q4_x", "there is no type 'q4_x'"),
        ("iq1_m", "llama.cpp sums in another order for IQ1_M since September 2026"),
        ("q8_1", "nothing here quantizes floats to Q8_1 as llama-quantize does"),
        ("q4_k,foo", "GLOB=TYPE expected after a comma, not 'foo'"),
        ("q4_k,layers.9.*=q8_0", "layers.9.* names no tensor of hf"),
        ("q4_k,lm_head.weight=q4_k_m", "q4_k_m is a recipe for a whole model, lm_head.weight takes a type"),
        ("affine:4:64", "affine:4:64 is a type of MLX"),
        ("f16", "--dtype f16 makes all tensors f16"),
    ],
)
def test_words_that_ask_for_nothing_are_usage_errors(word: str, sentence: str, tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf", SMALL)

    with pytest.raises(UsageError) as caught:
        ckconv.convert(source, tmp_path / "m.gguf", options=Options(quantize=word))

    assert sentence in caught.value.message


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("q8_0,*norm.weight=q4_0", "names only tensors that llama.cpp does not quantize"),
        ("iq2_xxs", "IQ2_XXS needs an importance matrix"),
    ],
)
def test_what_cannot_be_done_is_refused(word: str, sentence: str, tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf", WIDE)

    with pytest.raises(UnsupportedError, match=sentence.replace("*", r"\*")):
        ckconv.convert(source, tmp_path / "m.gguf", options=Options(quantize=word))


def test_blocks_are_quantized_again_only_where_they_are_decoded_on_purpose(tmp_path: Path) -> None:
    values = SMALL.tensors()["model.layers.0.mlp.up_proj.weight"]
    q8 = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    blocks = {"blk.0.ffn_up.weight": (q8, gguf.GGMLQuantizationType.Q8_0)}
    source = save_gguf(tmp_path / "m.gguf", SMALL, "llama", permuted=True, blocks=blocks)

    with pytest.raises(UnsupportedError) as caught:
        ckconv.convert(source, tmp_path / "a.gguf", options=Options(quantize="q4_1"))
    ckconv.convert(source, tmp_path / "b.gguf", options=Options(quantize="q4_1", dequantize=True))
    ckconv.convert(source, tmp_path / "c.gguf", options=Options(quantize="q8_0"))

    assert "Q8_0 is quantized already: blk.0.ffn_up.weight" in caught.value.message
    assert caught.value.hint == "--dequantize decodes it first"
    decoded = gguf.quants.dequantize(q8, gguf.GGMLQuantizationType.Q8_0)
    again = gguf.quants.quantize(decoded, gguf.GGMLQuantizationType.Q4_1)
    name, digest = "blk.0.ffn_up.weight", hashlib.sha256
    assert tensors(tmp_path / "b.gguf")[name] == ("Q4_1", digest(again.tobytes()).hexdigest())
    assert tensors(tmp_path / "c.gguf")[name] == ("Q8_0", digest(q8.tobytes()).hexdigest())


def decoded(shape: tuple[int, ...]) -> np.ndarray:
    """Numbers that blocks held before."""
    rows = np.random.default_rng(3).standard_normal(shape, np.float32)
    kind = gguf.GGMLQuantizationType.Q4_1
    return gguf.quants.dequantize(gguf.quants.quantize(rows, kind), kind)


def drawn(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers as matrices hold them that are not of a normal distribution around 0."""
    rng = np.random.default_rng(5)
    normal = rng.standard_normal(shape)
    made = {
        "decoded": lambda: decoded(shape),
        "pruned": lambda: normal * (rng.random(shape) < 0.05),
        "ternary": lambda: rng.integers(-1, 2, shape) * 0.03,
        "powers": lambda: np.exp2(rng.integers(-8, 3, shape)),
        "heavy tails": lambda: rng.standard_t(2, shape),
        "positive": lambda: np.abs(normal),
        "far from 0": lambda: 5 + 0.01 * normal,
        "constant": lambda: np.full(shape, 0.37),
        "columns": lambda: normal * np.exp(3 * rng.standard_normal(shape[1])),
        "small": lambda: normal * 3.3e-5,
        "denormal": lambda: normal * 1e-40,
        "diagonal": lambda: np.eye(*shape),
        "groups": lambda: np.repeat(rng.standard_normal((shape[0], shape[1] // 32)), 32, axis=1),
        "two values": lambda: np.where(normal < 0, -1, 1),
    }[kind]()
    return made.astype(np.float32)


DRAWN = (
    "decoded", "pruned", "ternary", "powers", "heavy tails", "positive", "far from 0", "constant", "columns",
    "small", "denormal", "diagonal", "groups", "two values",
)  # fmt: skip


@pytest.mark.parametrize(
    "word",
    [
        *("q4_0", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "affine:2:32", "affine:8:128"),
        *("q4_1 weighed", "q5_0 weighed", "q3_k weighed", "q6_k weighed", "iq4_xs weighed"),
    ],
)
def test_matrices_of_any_distribution_are_quantized_and_verified(word: str, tmp_path: Path) -> None:
    word, _, weighed = word.partition(" ")
    tensors = WIDE.tensors()
    matrices = [name for name in sorted(tensors) if "layers" in name and tensors[name].ndim > 1]
    assert len(matrices) >= len(DRAWN)
    tensors |= {name: drawn(kind, tensors[name].shape) for name, kind in zip(matrices, DRAWN, strict=False)}
    source = save(tmp_path / "hf", WIDE.config(), tensors)
    imatrix = None
    if weighed:  # every other channel counts nothing, another nearly all
        ckconv.convert(source, tmp_path / "plain.gguf")
        sums = sums_of(tmp_path / "plain.gguf")
        for each, _ in sums.values():
            each[:, ::2], each[:, 5] = 0, 1e4
        imatrix = save_imatrix(tmp_path / "imatrix.gguf", sums)

    out = tmp_path / ("m.gguf" if ":" not in word else "m-mlx")
    options = Options(quantize=word, imatrix=imatrix)
    made = ckconv.convert(source, out, to="gguf" if ":" not in word else "mlx", options=options)

    assert made.verified == len(tensors)


def without_a_row(values: np.ndarray) -> np.ndarray:
    return np.where(np.arange(len(values))[:, None] == 1, 0, values)


def rounded_down(values: np.ndarray) -> np.ndarray:
    groups = values.reshape(len(values), -1, 32)
    return (groups - np.ptp(groups, axis=2, keepdims=True) / 30).reshape(values.shape)


BUGS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "larger": lambda values: values * 1.03, "half as large": lambda values: values / 2, "row": without_a_row,
    "down": rounded_down, "alike": lambda values: values,
    "end": lambda values: np.where(np.arange(values.shape[1]) < values.shape[1] - 32, values, 0),
}  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [
        *("q2_k larger", "q2_k row", "q3_k larger", "q4_k row", "iq4_nl larger", "iq3_s half as large", "iq3_s row"),
        *("mxfp4 larger", "tq2_0 larger", "nvfp4 row", "q1_0 larger", "iq3_s larger", "iq4_nl end"),
        *("q4_0 larger weighed", "q4_0 down weighed", "q5_1 row weighed", "q6_k down weighed", "iq2_xxs row weighed"),
        *("q4_k alike weighed", "iq2_xs larger weighed"),
    ],
)
def test_a_quantizer_that_is_wrong_twice_is_found(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    word, _, bug = case.partition(" ")
    name, weighed = word.upper(), bug.endswith(" weighed")
    source = save(tmp_path / "hf", WIDE.config(), WIDE.tensors())
    imatrix = None
    if weighed:
        ckconv.convert(source, tmp_path / "plain.gguf")
        imatrix = save_imatrix(tmp_path / "imatrix.gguf", sums_of(tmp_path / "plain.gguf"))
    real, change = convert._by_library, BUGS[bug.removesuffix(" weighed")]

    def wrong(floats: np.ndarray, dtype: DType, importance: np.ndarray | None) -> np.ndarray:
        changed = change(floats) if dtype.name == name else floats
        counts = None if bug.startswith("alike") else importance
        return real(np.ascontiguousarray(changed, np.float32), dtype, counts)

    monkeypatch.setattr(convert, "_by_library", wrong)
    with pytest.raises(VerifyError, match="row "):
        ckconv.convert(source, tmp_path / "m.gguf", options=Options(quantize=word, imatrix=imatrix))


@pytest.mark.parametrize(("experts", "columns"), [(64, 256), (256, 1024)])
def test_rows_of_each_expert_are_looked_at(experts: int, columns: int) -> None:
    looked_at = sampled(experts * 48, columns, packed=False, parts=experts)

    assert {*(looked_at // 48).tolist()} == {*range(experts)} if experts == 64 else len(looked_at) == 256


def test_values_that_ggml_makes_others_of_are_refused(tmp_path: Path) -> None:
    """An empty group of IQ3_S moves those behind it."""
    tensors = WIDE.tensors()
    matrix = tensors["model.layers.0.mlp.up_proj.weight"]
    matrix[...] = drawn("pruned", matrix.shape)
    source = save(tmp_path / "hf", WIDE.config(), tensors)

    with pytest.raises(UnsupportedError, match="32 zeros"):
        ckconv.convert(source, tmp_path / "m.gguf", options=Options(quantize="iq3_s"))


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (np.inf, "q8_0"), (np.nan, "q8_0"), (3e38, "q8_0"), (1e37, "q6_k"), (1e30, "q3_k"), (1e37, "iq4_xs"),
        (1e4, "nvfp4"),
    ],
)  # fmt: skip
def test_values_that_no_block_holds_are_refused(value: float, word: str, tmp_path: Path) -> None:
    model = SMALL if word == "q8_0" else WIDE
    tensors = model.tensors()
    tensors["model.layers.0.mlp.up_proj.weight"][3, 5] = value
    source = save(tmp_path / "hf", model.config(), tensors)

    with pytest.raises(UnsupportedError) as caught:
        ckconv.convert(source, tmp_path / "m.gguf", options=Options(quantize=word))

    assert caught.value.code == "quantize.value"
    assert caught.value.tensor == "model.layers.0.mlp.up_proj.weight"
    assert not (tmp_path / "m.gguf").exists()
    assert caught.value.hint is not None
    assert ckconv.convert(source, tmp_path / "m.gguf", options=Options(quantize=caught.value.hint.split()[1])).verified


@pytest.mark.parametrize("word", ["affine:4:32", "mxfp4", "mxfp8"])
def test_values_that_blocks_of_mlx_hold_are_quantized(word: str, tmp_path: Path) -> None:
    tensors = WIDE.tensors()
    tensors["model.layers.0.mlp.up_proj.weight"][3, 5] = 1e12
    source = save(tmp_path / "hf", WIDE.config(), tensors)

    report = ckconv.convert(source, tmp_path / "m-mlx", to="mlx", options=Options(quantize=word))

    (error,) = report.to_dict()["quantised"].values()
    assert 0 < error["largest"] < 2e11


def test_blocks_that_take_an_importance_matrix_are_not_compared_without_it(tmp_path: Path) -> None:
    source, word = save(tmp_path / "hf", WIDE.config(), WIDE.tensors()), "iq2_xxs"
    ckconv.convert(source, tmp_path / "plain.gguf")
    imatrix = save_imatrix(tmp_path / "imatrix.gguf", sums_of(tmp_path / "plain.gguf"))
    ckconv.convert(source, tmp_path / "m.gguf", options=Options(quantize=word, imatrix=imatrix))

    with pytest.raises(UnsupportedError, match="IQ2_XXS needs an importance matrix"):
        ckconv.verify(tmp_path / "m.gguf", source, weights=True)


@pytest.mark.parametrize("to", ["gguf", "mlx"])
def test_a_note_says_what_becomes_zeros_in_nvfp4(to: str, tmp_path: Path) -> None:
    tensors = WIDE.tensors()
    tensors["model.layers.0.mlp.up_proj.weight"][...] = 0.0058
    source = save(tmp_path / "hf", WIDE.config(), tensors)

    report = ckconv.convert(source, tmp_path / "out", to=to, options=Options(quantize="nvfp4"))

    assert [note for note in report.plan.notes if "0.0059 become zeros" in note]


def test_values_of_which_ggml_ends_the_process_are_refused() -> None:
    values = np.random.default_rng(0).standard_normal((2, 512)).astype(np.float32) * np.float32(1e15)

    with pytest.raises(UnsupportedError, match="beyond the range of IQ2_XS"):
        convert.quantize(values, DTYPES["IQ2_XS"], np.ones(512, np.float32))


@pytest.mark.parametrize(("word", "size"), [("iq2_xxs", 1), ("q6_k", 1), ("q6_k", 1e-3)])
def test_values_that_count_beyond_any_sum_are_refused(word: str, size: float, tmp_path: Path) -> None:
    """Of IQ2_XXS ggml ended the process, and made zeros of others."""
    tensors = {name: values * np.float32(size) for name, values in WIDE.tensors().items()}
    source = save(tmp_path / "hf", WIDE.config(), tensors)
    ckconv.convert(source, tmp_path / "plain.gguf")
    sums = sums_of(tmp_path / "plain.gguf")
    for each, _ in sums.values():
        each *= 1e36
    imatrix = save_imatrix(tmp_path / "imatrix.gguf", sums)

    with pytest.raises(UnsupportedError, match="have sums beyond float32's range"):
        ckconv.convert(source, tmp_path / "m.gguf", options=Options(quantize=word, imatrix=imatrix))


def test_the_report_says_how_far_values_moved(tmp_path: Path, ckconv: Callable[..., Result]) -> None:
    source = checkpoint(tmp_path / "hf", SMALL)

    told = ckconv("convert", source, tmp_path / "m.gguf", "--quantize", "q8_0", "--json").json["quantised"]

    before = {k: v for k, v in SMALL.tensors().items() if v.ndim > 1}
    rounded = {k: bf16(v).data for k, v in before.items()}
    values = [(np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32) for data in rounded.values()]
    moved = np.concatenate([once(flat.reshape(-1, 64)) - flat.reshape(-1, 64) for flat in values]).astype(np.float64)
    assert list(told) == ["Q8_0"]
    assert told["Q8_0"]["values"] == moved.size
    assert told["Q8_0"]["largest"] == np.abs(moved).max()
    assert told["Q8_0"]["rms"] == pytest.approx(np.sqrt(np.square(moved).mean()))


def test_of_many_values_a_sixteenth_says_how_far_they_moved(tmp_path: Path, ckconv: Callable[..., Result]) -> None:
    large = replace(SMALL, hidden=256, head_dim=64, ffn=1024)
    source = checkpoint(tmp_path / "hf", large)

    told = ckconv("convert", source, tmp_path / "m.gguf", "--quantize", "q8_0", "--json").json["quantised"]["Q8_0"]

    before = [v for v in large.tensors().values() if v.ndim > 1]
    moved = [once(v.reshape(-1, 64)) - v.reshape(-1, 64) for v in before]
    assert told["values"] == sum(v.size if v.size < 1 << 16 else v.size // 16 for v in before)
    assert told["largest"] <= max(np.abs(v).max() for v in moved)
    assert told["rms"] == pytest.approx(np.sqrt(np.mean(np.square(np.concatenate(moved)))), rel=0.03)


@pytest.mark.parametrize("row", [0, 9])
def test_a_value_beyond_a_type_is_found_in_each_of_many_rows(row: int) -> None:
    """The scale of these would be infinite."""
    values = np.full((16, 1 << 13), 1e30, np.float32)
    values[np.arange(16) != row] = 1
    floats, blocks = values, convert.quantize(np.minimum(values, 1), DTYPES["Q4_0"]).reshape(16, -1)
    blocks[row, :2] = np.array([np.inf], np.float16).view(np.uint8)

    with pytest.raises(UnsupportedError, match=r"values up to 1e\+30 are beyond the range of Q4_0"):
        convert.Errors().add(DTYPES["Q4_0"], floats, blocks)


def once(rows: np.ndarray) -> np.ndarray:
    """Through Q8_0 and back."""
    kind = gguf.GGMLQuantizationType.Q8_0
    return gguf.quants.dequantize(gguf.quants.quantize(rows, kind), kind)


def test_verification_quantizes_again(tmp_path: Path, ckconv: Callable[..., Result]) -> None:
    source, out = checkpoint(tmp_path / "hf", SMALL), tmp_path / "m.gguf"
    ckconv("convert", source, out, "--quantize", "q4_0", "--record")

    sound = ckconv("verify", out, source)
    data = bytearray(out.read_bytes())
    data[-100] ^= 1
    out.write_bytes(data)
    broken = ckconv("verify", out, source, "--weights")

    assert sound.code == 0, sound.err
    assert broken.code == 5


@pytest.mark.parametrize("name", sorted(convert.IN_NUMPY))
def test_both_libraries_give_the_same_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("libgguf")
    rows = np.random.default_rng(3).standard_normal((64, 512)).astype(np.float32) * np.float32(0.05)
    rows[0], rows[1, ::2], rows[2, :32] = 0, -0.0, 7
    dtype = convert.GGML_TYPES[name.lower()]
    by_library = convert.quantize(rows, dtype)

    monkeypatch.setattr(convert, "has_library", lambda: False)

    assert convert.quantize(rows, dtype).tobytes() == by_library.tobytes()


def test_q8_0_is_as_libgguf_makes_it() -> None:
    """Halves of a step, of every size that float32 has, zeros of both signs, and scales that are no normal numbers."""
    libgguf = pytest.importorskip("libgguf")
    steps = np.arange(-254, 255, dtype=np.float32) / 2
    near = np.stack([steps, np.nextafter(steps, np.float32(1e9)), np.nextafter(steps, np.float32(-1e9))])
    near = np.pad(near, ((0, 0), (0, 35))).reshape(-1, 32)
    near[:, 0] = 127
    powers = np.float32(2) ** np.arange(-140, 15, 5, dtype=np.float32)
    rows = np.concatenate([*(near * power for power in powers), np.zeros((2, 32), np.float32)])
    rows[-1, ::2] = -0.0
    expected = np.empty((len(rows), 34), np.uint8)
    libgguf.quantize_rows_into_raw(8, rows, expected, len(rows), 32, None)

    made = convert.quantize(rows, DTYPES["Q8_0"])

    assert made.tobytes() == expected.tobytes()


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_q8_0_of_so_few_blocks_leaves_its_values_alone(blocks: int) -> None:
    values = np.linspace(-127, 127, 32 * blocks, dtype=np.float32).reshape(blocks, 32)
    before = values.copy()
    values.flags.writeable = False

    made = convert.quantize(values, DTYPES["Q8_0"])

    assert made.tobytes() == gguf.quants.quantize(before, gguf.GGMLQuantizationType.Q8_0).tobytes()
    assert (made.shape, values.tobytes()) == ((blocks, 34), before.tobytes())


@pytest.mark.needs("ggml_python")
@pytest.mark.parametrize("name", sorted(convert.CHECKSUMS))
@pytest.mark.parametrize("weighted", [False, True])
def test_ggml_python_gives_the_bytes_of_libgguf(name: str, weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((64, 512)).astype(np.float32) * np.float32(0.05)
    rows[0], rows[1, ::2], rows[2, :32], rows[3] = 0, -0.0, 7, 1e-30
    importance = rng.random(512, np.float32) if weighted else None
    dtype = convert.GGML_TYPES[name.lower()]
    assert convert.quantizer_of(dtype).startswith("ggml-python ")
    made = convert.quantize(rows, dtype, importance)

    monkeypatch.setattr(convert, "by_ggml_python", lambda *_: None)

    assert convert.quantize(rows, dtype, importance).tobytes() == made.tobytes()


@pytest.fixture
def fresh() -> Iterator[None]:
    """What is known of ggml-python is looked at anew, and again behind the test."""
    for cached in (convert._ggml_python, convert._makes):
        cached.cache_clear()
    yield
    for cached in (convert._ggml_python, convert._makes):
        cached.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_a_library_that_makes_other_blocks_is_not_used_and_a_note_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("libgguf")
    source = checkpoint(tmp_path / "hf", WIDE)
    ckconv.convert(source, tmp_path / "right.gguf", options=Options(quantize="q4_k"))
    convert._makes.cache_clear()
    monkeypatch.setattr(convert, "_ggml_python", lambda: lambda *_: 0)  # one that leaves blocks as they are

    report = ckconv.convert(source, tmp_path / "made.gguf", options=Options(quantize="q4_k"))

    assert "ggml-python makes other blocks of Q4_K than llama.cpp, and libgguf makes them" in report.plan.notes
    assert (tmp_path / "made.gguf").read_bytes() == (tmp_path / "right.gguf").read_bytes()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("broken", [b"", b"\x7fELF no library", None])
def test_a_library_that_does_not_load_is_not_used(
    broken: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ggml" / "lib").mkdir(parents=True)
    (tmp_path / "ggml" / "__init__.py").touch()
    if broken is not None:
        (tmp_path / "ggml" / "lib" / "libggml-base.so").write_bytes(broken)
    monkeypatch.syspath_prepend(tmp_path)

    assert not convert.ggml_python_differs(convert.GGML_TYPES["q4_k"])
    assert convert.by_ggml_python(np.ones((1, 256), np.float32), convert.GGML_TYPES["q4_k"], None) is None


def test_a_report_says_what_made_the_blocks(tmp_path: Path, ckconv: Callable[..., Result]) -> None:
    source = checkpoint(tmp_path / "hf", WIDE)
    command = ("convert", source, tmp_path / "m.gguf", "--quantize", "q8_0", "--force")
    by = convert.quantizer_of(convert.GGML_TYPES["q8_0"])

    assert json.loads(ckconv(*command, "--json").out)["quantised"]["Q8_0"]["by"] == by
    assert f", made by {by}" in ckconv(*command, "-v").out
    assert "made by" not in ckconv(*command).out


def test_a_type_that_takes_libgguf_is_refused_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "has_library", lambda: False)
    source = checkpoint(tmp_path / "hf", WIDE)

    with pytest.raises(UnsupportedError, match="quantizing to Q4_K needs the package libgguf, which") as caught:
        ckconv.convert(source, tmp_path / "m.gguf", options=Options(quantize="q4_k"))
    assert (caught.value.code, caught.value.hint) == ("system.package", "pip install libgguf")


#: What is quantized already -> types that its groups could be packed into again; some of them would fit, others not.
REPACKED = [
    ("mlx/llama-tied-bf16.q4g64", "q8_0", {}),
    ("mlx/llama-tied-bf16.q4g64", "q4_0,*=q4_1", {"adapters": [(FIXTURES / "lora" / "llama-r4-attn-mlp", 1.0)]}),
    ("mlx/llama-untied-f32.q4g32", "q4_1", {}),
    ("quantised/awq-g32", "q4_0", {}),
]


@pytest.mark.parametrize(("name", "word", "merged"), REPACKED, ids=lambda value: str(value)[:30])
def test_what_is_decoded_and_quantized_at_once_is_as_in_two_steps(
    name: str, word: str, merged: dict[str, Any], tmp_path: Path
) -> None:
    """Groups that have an exact way into the blocks were packed into them, or refused, whatever --dequantize said."""
    source, both = FIXTURES / name, Options(quantize=word, dequantize=True)

    ckconv.convert(source, tmp_path / "m.gguf", options=both, **merged)
    ckconv.convert(source, tmp_path / "floats.gguf", options=Options(dequantize=True), **merged)
    ckconv.convert(tmp_path / "floats.gguf", tmp_path / "two.gguf", options=Options(quantize=word))

    assert tensors(tmp_path / "m.gguf") == tensors(tmp_path / "two.gguf")
    assert ckconv.verify(tmp_path / "m.gguf", source, options=both, **merged).rounded
    if not merged:  # nobody says that blocks were decoded: either way is right
        assert ckconv.verify(tmp_path / "m.gguf", source, weights=True).rounded


def test_a_bump_file_of_decoded_groups_is_as_in_two_steps(tmp_path: Path) -> None:
    source = FIXTURES / "mlx/llama-tied-bf16.q4g64"

    ckconv.convert(source, tmp_path / "m.bump", options=Options(quantize="q8_0", dequantize=True))
    ckconv.convert(source, tmp_path / "floats.gguf", options=Options(dequantize=True))
    ckconv.convert(tmp_path / "floats.gguf", tmp_path / "two.bump", options=Options(quantize="q8_0"))
    ckconv.convert(tmp_path / "m.bump", f"{tmp_path}/again/")

    assert ckconv.diff(tmp_path / "m.bump", tmp_path / "two.bump", weights=True).same
    back = tmp_path / "again" / "model.safetensors"
    assert back.read_bytes() == (source / "model.safetensors").read_bytes()


# -- Importance matrices of llama-imatrix, in both of its forms: they count as with llama-quantize --------------------

EXPERTS = Decoder(layers=1, hidden=256, head_dim=64, ffn=256, vocab=32, experts=4, expert_ffn=256)

Sums = Mapping[str, tuple[np.ndarray, np.ndarray]]


def sums_of(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Sums ``[experts, columns]`` and counts for every matrix of a GGUF, from a seed; one expert was never asked."""
    pytest.importorskip("libgguf")
    rng, found = np.random.default_rng(5), {}
    for tensor in gguf.GGUFReader(path).tensors:
        shape = [int(n) for n in tensor.shape]
        if len(shape) > 1:
            experts = shape[2] if len(shape) == 3 else 1
            counts = np.arange(experts, dtype=np.float32) * 3 if experts > 1 else np.array([7], np.float32)
            found[tensor.name] = (rng.random((experts, shape[0])).astype(np.float32) * counts[:, None] * 40, counts)
    return found


def means(sums: Sums) -> dict[str, np.ndarray]:
    return {
        name: np.concatenate([row / n if n else np.ones_like(row) for row, n in zip(each, counts, strict=True)])
        for name, (each, counts) in sums.items()
    }


def save_imatrix(path: Path, sums: Sums) -> Path:
    writer = gguf.GGUFWriter(path, "")
    writer.add_string("general.type", "imatrix")
    writer.add_array("imatrix.datasets", ["some.txt"])
    writer.add_uint32("imatrix.chunk_count", 3)
    writer.add_uint32("imatrix.chunk_size", 512)
    for name, (each, counts) in sums.items():
        writer.add_tensor(f"{name}.in_sum2", each)
        writer.add_tensor(f"{name}.counts", counts.reshape(-1, 1))
    return finish(writer, path)


def save_dat(path: Path, numbers: Mapping[str, np.ndarray], calls: int) -> Path:
    data = struct.pack("<i", len(numbers))
    for name, values in numbers.items():
        data += struct.pack(f"<i{len(name)}sii", len(name), name.encode(), calls, values.size)
        data += (values * np.float32(calls)).astype(np.float32).tobytes()
    path.write_bytes(data + struct.pack("<ii4s", 3, 4, b"some"))
    return path


@pytest.mark.parametrize("decoder", [WIDE, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize("word", ["q4_k_m", "q4_0", "q5_0", "iq4_xs"])
def test_every_block_is_llama_quantizes_with_the_same_importance(
    word: str, decoder: Decoder, sources: Sources, llama_quantize: Quantizer, tmp_path: Path
) -> None:
    source, plain = sources.of(decoder, "mixtral" if decoder.experts else "llama")
    sums = sums_of(plain)
    np.savez(tmp_path / "i.npz", **means(sums))
    theirs = llama_quantize(plain, tmp_path / "q.gguf", WORDS[word][0], str(tmp_path / "i.npz"))
    imatrix = save_imatrix(tmp_path / "imatrix.gguf", sums)

    ckconv.convert(source, tmp_path / "ours.gguf", options=Options(quantize=word, imatrix=imatrix))

    assert tensors(tmp_path / "ours.gguf") == tensors(theirs)


def test_the_older_form_says_the_same(tmp_path: Path) -> None:
    values = {"blk.0.attn_q.weight": np.arange(1, 65, dtype=np.float32) / 8}

    found = read_imatrix(save_dat(tmp_path / "imatrix.dat", values, 4))

    assert list(found.matrices) == list(values)
    assert np.array_equal(found.matrices["blk.0.attn_q.weight"], values["blk.0.attn_q.weight"])
    assert (found.dataset, found.chunks) == ("some", 3)
    (tmp_path / "imatrix.dat").write_bytes((tmp_path / "imatrix.dat").read_bytes()[:-12])
    assert read_imatrix(tmp_path / "imatrix.dat")[1:] == ("", 0)


def test_a_gguf_says_what_its_blocks_were_weighed_by(sources: Sources, tmp_path: Path) -> None:
    """Keys and their types of ``tools/quantize/quantize.cpp``; of the file its name, which is no place on a disk."""
    source, plain = sources.of(WIDE)
    sums = sums_of(plain)
    weighed = Options(quantize="q4_0", imatrix=save_imatrix(tmp_path / "imatrix.gguf", sums))

    ckconv.convert(source, tmp_path / "m.gguf", options=weighed)
    ckconv.convert(plain, tmp_path / "again.gguf", options=weighed)

    for name in ("m", "again"):
        fields = gguf.GGUFReader(tmp_path / f"{name}.gguf").fields
        assert {key: (field.types[0].name, field.contents()) for key, field in fields.items() if "imatrix" in key} == {
            "quantize.imatrix.file": ("STRING", "imatrix.gguf"),
            "quantize.imatrix.dataset": ("STRING", "some.txt"),
            "quantize.imatrix.entries_count": ("UINT32", len(sums)),
            "quantize.imatrix.chunks_count": ("UINT32", 3),
        }


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"dequantize": True, "quantize": "q8_0"}, {}),
        ({"dequantize": True}, {}),
        ({"quantize": "q4_0"}, {"file": "imatrix.gguf", "dataset": "some.txt", "chunks_count": 3}),
        ({"dequantize": True, "quantize": "q4_1", "imatrix": "i.dat"}, {"file": "i.dat"}),
    ],
)
def test_blocks_that_are_made_anew_are_weighed_by_no_older_matrix(
    asked: dict[str, Any], said: dict[str, Any], sources: Sources, tmp_path: Path
) -> None:
    source, plain = sources.of(WIDE)
    older = save_imatrix(tmp_path / "imatrix.gguf", sums_of(plain))
    ckconv.convert(source, tmp_path / "m.gguf", options=Options(quantize="q4_0", imatrix=older))
    whole = save_dat(tmp_path / "i.dat", means(sums_of(plain)), 1)
    whole.write_bytes(whole.read_bytes()[:-12])  # as older versions of llama-imatrix write it: without a data set
    options = Options(**(asked | ({"imatrix": whole} if "imatrix" in asked else {})))

    ckconv.convert(tmp_path / "m.gguf", tmp_path / "again.gguf", options=options)

    fields = gguf.GGUFReader(tmp_path / "again.gguf").fields
    found = {key.removeprefix("quantize.imatrix."): field.contents() for key, field in fields.items()}
    entries = {"entries_count": len(sums_of(plain))} if said else {}
    assert {key: found[key] for key in found if f"quantize.imatrix.{key}" in fields} == said | entries
    assert ckconv.verify(tmp_path / "again.gguf", tmp_path / "m.gguf", options=options)


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text there")
def test_a_name_that_is_no_text_has_a_question_mark_in_the_gguf(sources: Sources, tmp_path: Path) -> None:
    source, plain = sources.of(WIDE)
    imatrix = save_imatrix(tmp_path / "imatrix.gguf", sums_of(plain)).rename(tmp_path / os.fsdecode(b"\xff.gguf"))

    ckconv.convert(source, tmp_path / "m.gguf", options=Options(quantize="q4_0", imatrix=imatrix))

    assert gguf.GGUFReader(tmp_path / "m.gguf").fields["quantize.imatrix.file"].contents() == "?.gguf"


def test_verification_and_records_need_the_same_file(
    sources: Sources, tmp_path: Path, ckconv: Callable[..., Result]
) -> None:
    (source, plain), out = sources.of(WIDE), tmp_path / "m.gguf"
    imatrix = save_imatrix(tmp_path / "imatrix.gguf", sums_of(plain))
    made = ckconv("convert", source, out, "--quantize", "q4_k", "--imatrix", imatrix, "--record")

    without, with_it = ckconv("verify", out, source), ckconv("verify", out, source, "--imatrix", imatrix)

    assert (made.code, without.code, with_it.code) == (0, 2, 0), with_it.err
    assert "--imatrix imatrix.gguf was given: name it again" in without.err


def test_a_bump_holds_the_blocks_of_the_gguf(sources: Sources, tmp_path: Path, ckconv: Callable[..., Result]) -> None:
    source, plain = sources.of(WIDE)
    asked = ["--quantize", "q4_k_m", "--imatrix", save_imatrix(tmp_path / "i.gguf", sums_of(plain))]
    ckconv("convert", source, tmp_path / "m.gguf", *asked)

    made = ckconv("convert", source, f"{tmp_path}/b/", "--to", "bump", *asked)
    compared = ckconv("diff", tmp_path / "m.gguf", f"{tmp_path}/b/weights.bump", "--weights")

    assert (made.code, compared.code) == (0, 0), made.err


@pytest.mark.parametrize(
    "data",
    [b"", b"\1\0\0\0", b"GGUF", struct.pack("<i", 9) + b"\xff" * 40, struct.pack("<ii1sii2f", 1, 1, b"q", 1, 2, 1, -1)],
)
def test_what_is_no_importance_matrix_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "i.dat").write_bytes(data)

    with pytest.raises(InputError) as caught:
        read_imatrix(tmp_path / "i.dat")

    assert caught.value.code == "quantize.imatrix"


@pytest.mark.needs("posix")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "i.dat")

    with pytest.raises(InputError) as caught:
        read_imatrix(tmp_path / "i.dat")

    assert caught.value.code == "input.special"


@pytest.mark.parametrize("field", ["entries", "name", "numbers"])
def test_a_field_that_announces_more_than_is_there_reads_nothing(field: str, tmp_path: Path) -> None:
    """The file is of four gigabytes, all of them zeros but for the field."""
    fields = {"entries": [1, 1 << 20], "name": [1, -1], "numbers": [1, 0, 1, (1 << 30) - 1]}[field]
    with (tmp_path / "i.dat").open("wb") as file:
        file.write(struct.pack(f"<{len(fields)}i", *fields))
        file.truncate(4 << 30)

    tracemalloc.start()
    try:
        with pytest.raises(InputError) as caught:
            read_imatrix(tmp_path / "i.dat")
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()

    assert caught.value.code == "quantize.imatrix"


def test_one_of_another_model_is_refused(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf", WIDE)
    imatrix = save_dat(tmp_path / "i.dat", {"blk.0.attn_q.weight": np.ones(64, np.float32)}, 1)

    with pytest.raises(UnsupportedError) as caught:
        ckconv.convert(source, tmp_path / "m.gguf", options=Options(quantize="q4_0", imatrix=imatrix))
    with pytest.raises(UsageError, match="--imatrix is for --quantize"):
        ckconv.convert(source, tmp_path / "m.gguf", options=Options(imatrix=imatrix))

    said = " ".join([caught.value.message, *caught.value.details])
    assert "has 64 numbers for blk.0.attn_q.weight, which takes 256" in said


#: Rows of whole blocks, a layer of every kind that a recipe tells apart.
LAYERS: dict[str, tuple[Decoder, str]] = {
    "8 layers": (Decoder(layers=8, hidden=256, head_dim=32, heads=8, kv_heads=4, ffn=256, vocab=32), "llama"),
    "8 heads, 2 of K and V": (
        Decoder(layers=1, hidden=256, head_dim=32, heads=8, kv_heads=2, ffn=256, vocab=32),
        "llama",
    ),
    "8 experts": (
        Decoder(layers=1, hidden=256, head_dim=64, ffn=256, vocab=32, experts=8, expert_ffn=256),
        "mixtral",
    ),
}


@pytest.mark.parametrize(
    ("word", "model"),
    [
        *(("q2_k_s", model) for model in LAYERS if model != "8 heads, 2 of K and V"),
        *((word, "8 heads, 2 of K and V") for word in WEIGHED if word != "iq1_s"),
        ("iq3_xs", "8 layers"), ("iq2_xxs", "8 experts"),
    ],
)  # fmt: skip
def test_recipes_of_few_bits_mix_as_llama_quantizes(
    word: str, model: str, sources: Sources, llama_quantize: Quantizer, tmp_path: Path
) -> None:
    decoder, model_type = LAYERS[model]
    source, plain = sources.of(decoder, model_type)
    sums = sums_of(plain)
    np.savez(tmp_path / "i.npz", **means(sums))
    theirs = llama_quantize(plain, tmp_path / "q.gguf", WEIGHED[word], str(tmp_path / "i.npz"))
    asked = Options(quantize=word, imatrix=save_imatrix(tmp_path / "imatrix.gguf", sums))

    ckconv.convert(source, tmp_path / "ours.gguf", options=asked, verify=False)

    assert tensors(tmp_path / "ours.gguf") == tensors(theirs)
