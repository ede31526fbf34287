"""What becomes a GGUF, held against what llama.cpp's converter made of the same checkpoints, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import gguf_builder as hand
import numpy as np
import pytest
from checkpoints import Decoder, as_mixtral, bf16, save
from conftest import FIXTURES
from family_cases import cases, checkpoint

import ckconv
from ckconv import Options
from ckconv.errors import UnsupportedError, UsageError

SENTENCEPIECE = FIXTURES / "tokenizers" / "sentencepiece-bpe.model"

#: Checkpoint -> GGUF by llama.cpp, whether ``tokenizer.model`` is its tokenizer.
PAIRS = {
    "gemma3-text-bf16": ("gemma3-text-bf16.auto", True),
    "gpt2-hub-f32": ("gpt2-f32.f32", False),
    "llama-bias-f32": ("llama-bias-f32.f32", False),
    "llama-tied-bf16": ("llama-tied-bf16.auto", False),
    "llama-untied-f16-sharded": ("llama-untied-f16-sharded.auto", False),
    "phi3-bf16": ("phi3-bf16.auto", True),
    "qwen2-tied-bf16": ("qwen2-tied-bf16.auto", False),
    "qwen3-tied-bf16": ("qwen3-tied-bf16.auto", False),
}

#: Keys that only we write: what these tokenizers do, where llama.cpp would guess by the pre-tokenizer's name; the
#: unknown token of SentencePiece, which llama.cpp would otherwise take to be 0.
OURS = {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token", "tokenizer.ggml.unknown_token_id"}
#: Keys that only the converter writes: guesses from words of the directory's name; for gemma, always.
THEIRS = {"general.finetune", "general.basename", "tokenizer.ggml.add_space_prefix"}
#: The converter was told a pre-tokenizer's name; these tokenizers are defined as GPT-2's. A name is the directory's.
OTHER = {"tokenizer.ggml.pre", "general.name"}

Fields = dict[str, tuple[list[str], Any]]


def fields(path: Path) -> Fields:
    reader = gguf.GGUFReader(path)
    return {
        key: ([kind.name for kind in field.types], field.contents())
        for key, field in reader.fields.items()
        if not key.startswith("GGUF.")
    }


def tensors(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Name -> (type, dimensions, bytes), in file order."""
    return {
        tensor.name: (tensor.tensor_type.name, tuple(int(n) for n in tensor.shape), tensor.data.tobytes())
        for tensor in gguf.GGUFReader(path).tensors
    }


def copied(name: str, root: Path) -> Path:
    """A checkpoint that may be changed, with its tokenizer."""
    shutil.copytree(FIXTURES / "hf" / name, root)
    root.chmod(0o755)
    for path in root.iterdir():
        path.chmod(0o644)
    if PAIRS[name][1]:
        shutil.copy(SENTENCEPIECE, root / "tokenizer.model")
    return root


@pytest.mark.parametrize("name", PAIRS)
def test_a_checkpoint_becomes_what_llama_cpp_makes_of_it(name: str, tmp_path: Path) -> None:
    source = copied(name, tmp_path / name)
    ckconv.convert(source, tmp_path / "m.gguf")
    theirs = FIXTURES / "gguf" / f"{PAIRS[name][0]}.gguf"

    made, expected = tensors(tmp_path / "m.gguf"), tensors(theirs)
    assert made == expected
    assert list(made) == list(expected)

    ours, reference = fields(tmp_path / "m.gguf"), fields(theirs)
    assert ours.keys() - reference.keys() <= OURS
    assert reference.keys() - ours.keys() <= THEIRS
    differ = {key for key in ours.keys() & reference.keys() if ours[key] != reference[key]}
    assert differ <= OTHER


def test_twice_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        ckconv.convert(FIXTURES / "hf" / "llama-tied-bf16", tmp_path / name)

    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_mistral_is_a_llama_to_llama_cpp(tmp_path: Path) -> None:
    root = save(tmp_path / "hf", Decoder().config("mistral", sliding_window=None), Decoder().tensors())

    ckconv.convert(root, tmp_path / "m.gguf")

    assert fields(tmp_path / "m.gguf")["general.architecture"][1] == "llama"


# Types.

TIED = FIXTURES / "hf" / "llama-tied-bf16"
SPARSE = Decoder(experts=4)
MIXTRAL = as_mixtral(SPARSE.tensors())


@pytest.mark.parametrize(
    ("options", "matrices", "vectors", "file_type"),
    [
        (Options(), "BF16", "F32", 32),
        (Options(dtype="f32"), "F32", "F32", 0),
        (Options(dtype="f16", allow_lossy=True), "F16", "F32", 1),
    ],
)
def test_matrices_have_the_type_asked_for(
    options: Options, matrices: str, vectors: str, file_type: int, tmp_path: Path
) -> None:
    ckconv.convert(TIED, tmp_path / "m.gguf", options=options)

    for kind, shape, _ in tensors(tmp_path / "m.gguf").values():
        assert kind == (matrices if len(shape) > 1 else vectors)
    assert fields(tmp_path / "m.gguf")["general.file_type"] == (["UINT32"], file_type)


@pytest.mark.parametrize("family", ["llama", "mixtral", "gemma3n", "bert"])
def test_kept_types_that_llama_cpp_aborts_at_are_refused(family: str, tmp_path: Path) -> None:
    """Vectors, routers and what else its kernels add or multiply in FP32."""
    recorded = next(cases(family)).recorded
    vectors = "F16" if family == "llama" else "F32"
    types = {name: ["F16" if len(row[1]) > 1 else vectors, *row[1:]] for name, row in recorded["tensors"].items()}
    source = checkpoint({**recorded, "tensors": types}, tmp_path / "hf")

    with pytest.raises(UnsupportedError) as caught:
        ckconv.convert(source, tmp_path / "m.gguf", options=Options(dtype="keep"))
    assert "llama.cpp computes with F32 here, and aborts at F16" in str(caught.value)
    assert "leave out --dtype keep" in str(caught.value.hint)

    ckconv.convert(source, tmp_path / "m.gguf")
    ckconv.convert(tmp_path / "m.gguf", tmp_path / "n.gguf", options=Options(dtype="keep"))


def test_a_value_that_would_change_stops_the_conversion(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="f16 cannot hold"):
        ckconv.convert(TIED, tmp_path / "m.gguf", options=Options(dtype="f16"))

    assert list(tmp_path.iterdir()) == []


def test_the_router_stays_fp32(tmp_path: Path) -> None:
    stored = {name: bf16(np.asarray(array)) for name, array in MIXTRAL.items()}
    ckconv.convert(save(tmp_path / "hf", SPARSE.config("mixtral"), stored), tmp_path / "m.gguf")

    made = tensors(tmp_path / "m.gguf")
    assert made["blk.0.ffn_gate_inp.weight"][:2] == ("F32", (64, 4))
    assert made["blk.0.ffn_down_exps.weight"][:2] == ("BF16", (64, 64, 4))


def test_types_of_a_gguf_follow_what_is_asked_and_file_type_follows_them(tmp_path: Path) -> None:
    source = FIXTURES / "kquants" / "llama64.Q4_K_M.gguf"
    ckconv.convert(source, tmp_path / "m.gguf", options=Options(decode=("*attention*",)))

    before, after = tensors(source), tensors(tmp_path / "m.gguf")
    assert {name for name in after if after[name] != before[name]} == {
        n for n in before if "attn_" in n and "norm" not in n
    }
    assert after["blk.0.attn_v.weight"][0] == "F32"
    reference = gguf.quants.dequantize(
        next(t for t in gguf.GGUFReader(source).tensors if t.name == "blk.0.attn_v.weight").data,
        gguf.GGMLQuantizationType[before["blk.0.attn_v.weight"][0]],
    )
    assert after["blk.0.attn_v.weight"][2] == reference.tobytes()
    ckconv.convert(source, tmp_path / "f.gguf", options=Options(dequantize=True))
    assert fields(tmp_path / "f.gguf")["general.file_type"][1] == 0
    assert fields(source)["general.file_type"][1] != 0


def test_what_no_gguf_block_holds_is_counted_and_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as info:
        ckconv.convert(FIXTURES / "mlx" / "llama-untied-f32.q4g32", tmp_path / "m.gguf")

    assert "groups have numbers that no Q4_0 or Q4_1 or Q5_0 or Q5_1 or Q8_0 block holds" in str(info.value)
    assert "--dequantize" in str(info.value.hint)


# The output head.


def test_a_tied_head_is_given_a_tensor_and_taken_it_again(tmp_path: Path) -> None:
    ckconv.convert(TIED, tmp_path / "untied.gguf", options=Options(tie="untie"))
    ckconv.convert(TIED, tmp_path / "plain.gguf")
    ckconv.convert(tmp_path / "untied.gguf", tmp_path / "tied.gguf", options=Options(tie="tie"))

    made, plain = tensors(tmp_path / "untied.gguf"), tensors(tmp_path / "plain.gguf")
    assert made["output.weight"] == made["token_embd.weight"] == plain["token_embd.weight"]
    assert made.keys() - plain.keys() == {"output.weight"}
    assert tensors(tmp_path / "tied.gguf") == plain


def test_a_head_that_is_another_matrix_cannot_be_tied(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="not byte for byte the embedding"):
        ckconv.convert(FIXTURES / "hf" / "llama-bias-f32", tmp_path / "m.gguf", options=Options(tie="tie"))


def test_a_head_that_contradicts_the_configuration_is_the_head_as_for_transformers(tmp_path: Path) -> None:
    """``tie_weights`` of transformers 5 ties no matrices that differ; 4 does, so a note says how to get that."""
    root = save(tmp_path / "hf", Decoder().config(tie_word_embeddings=True), Decoder().tensors())

    notes = ckconv.convert(root, tmp_path / "m.gguf").plan.notes
    assert [note for note in notes if "transformers 4 takes the embedding (--drop output.weight)" in note]
    assert "output.weight" in tensors(tmp_path / "m.gguf")
    ckconv.convert(root, tmp_path / "t.gguf", options=Options(drop=("output.weight",)))
    assert "output.weight" not in tensors(tmp_path / "t.gguf")


@pytest.mark.parametrize("to", ["mlx", "bump"])
def test_a_head_that_contradicts_the_configuration_is_said_to_be_no_embedding(tmp_path: Path, to: str) -> None:
    root = save(tmp_path / "hf", Decoder().config(tie_word_embeddings=True), Decoder().tensors())

    ckconv.convert(root, f"{tmp_path}/out/", to=to)
    assert json.loads((tmp_path / "out/config.json").read_text())["tie_word_embeddings"] is False


def test_a_head_that_mlx_lm_takes_no_notice_of_is_refused(tmp_path: Path) -> None:
    config = Decoder().config(tie_word_embeddings=True)
    root = save(tmp_path / "mlx", config, Decoder().tensors(), metadata={"format": "mlx"})

    with pytest.raises(UnsupportedError, match="ties the output head") as info:
        ckconv.convert(root, tmp_path / "m.gguf")
    assert "--drop output.weight" in str(info.value.hint)
    ckconv.convert(root, tmp_path / "m.gguf", options=Options(drop=("output.weight",)))
    assert "output.weight" not in tensors(tmp_path / "m.gguf")


def test_a_head_that_is_missing_is_refused(tmp_path: Path) -> None:
    stored = {name: array for name, array in Decoder().tensors().items() if name != "lm_head.weight"}

    with pytest.raises(UnsupportedError, match="but there is none"):
        ckconv.convert(save(tmp_path / "hf", Decoder().config(), stored), tmp_path / "m.gguf")


# RoPE.

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip


def decoder(root: Path, model_type: str = "llama", **changes: Any) -> Path:
    return save(root, Decoder().config(model_type, **changes), Decoder().tensors())


def test_llama_3_scaling_is_a_tensor_of_factors(tmp_path: Path) -> None:
    ckconv.convert(decoder(tmp_path / "hf", rope_scaling=LLAMA3), tmp_path / "m.gguf")

    kind, shape, data = tensors(tmp_path / "m.gguf")["rope_freqs.weight"]
    assert (kind, shape) == ("F32", (8,))
    factors = np.frombuffer(data, np.float32)
    wavelengths = 2 * np.pi * 10_000.0 ** (np.arange(8) / 8)
    assert np.array_equal(factors[wavelengths < 8192 / 4], np.ones(6, np.float32))
    assert (factors[wavelengths > 8192] == 8).all()
    assert (np.diff(factors) >= 0).all()
    assert not any("rope.scaling" in key for key in fields(tmp_path / "m.gguf"))
    assert ckconv.verify(tmp_path / "m.gguf", tmp_path / "hf").tensors == 22


def test_llama_3_scaling_may_be_dropped_by_name(tmp_path: Path) -> None:
    source = decoder(tmp_path / "hf", rope_scaling=LLAMA3)

    report = ckconv.convert(source, tmp_path / "m.gguf", options=Options(drop=("rope_frequencies",)))

    assert "rope_freqs.weight" not in tensors(tmp_path / "m.gguf")
    assert [left.name for left in report.plan.left_out] == ["rope_frequencies"]


def test_linear_and_yarn_scaling_are_keys(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32}
    ckconv.convert(decoder(tmp_path / "a", rope_scaling={"type": "linear", "factor": 2.0}), tmp_path / "a.gguf")
    unbiased = Options(drop=("*.attention.?.bias",))
    ckconv.convert(decoder(tmp_path / "b", "qwen2", rope_scaling=yarn), tmp_path / "b.gguf", options=unbiased)

    a, b = fields(tmp_path / "a.gguf"), fields(tmp_path / "b.gguf")
    assert {key: value for key, value in a.items() if "scaling" in key} == {
        "llama.rope.scaling.type": (["STRING"], "linear"),
        "llama.rope.scaling.factor": (["FLOAT32"], 2.0),
    }
    assert {key: value for key, value in b.items() if "scaling" in key} == {
        "qwen2.rope.scaling.type": (["STRING"], "yarn"),
        "qwen2.rope.scaling.factor": (["FLOAT32"], 4.0),
        "qwen2.rope.scaling.original_context_length": (["UINT32"], 64),
        "qwen2.rope.scaling.yarn_beta_fast": (["FLOAT32"], 32.0),
    }


@pytest.mark.parametrize(
    ("model_type", "changes", "reason"),
    [
        ("qwen2", {"rope_scaling": LLAMA3}, "rope_type llama3 .*, which llama.cpp does not do for qwen2"),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_slow": 2}}, "beta_slow = 2, .* llama 1"),
        (
            "qwen2",
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 16}},
            "beta_fast = 16, .* qwen2 32",
        ),
        ("llama", {"hidden_act": "gelu"}, "hidden_act = 'gelu' changes the computation"),
        (
            "mistral",
            {"sliding_window": 16},
            r"attention slides over 16 tokens \(sliding_window\), llama.cpp attends to all 128",
        ),
    ],
)
def test_what_llama_cpp_would_compute_otherwise_is_refused(
    model_type: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=reason) as info:
        ckconv.convert(decoder(tmp_path / "hf", model_type, **changes), tmp_path / "m.gguf")

    assert (info.value.code, info.value.exit_code) == ("plan.refused", 4)


def test_all_reasons_are_given_at_once(tmp_path: Path) -> None:
    source = decoder(tmp_path / "hf", "mistral", sliding_window=16, hidden_act="gelu", rope_scaling={"type": "su"})

    with pytest.raises(UnsupportedError) as info:
        ckconv.convert(source, tmp_path / "m.gguf")

    assert len(info.value.details) == 3


def test_a_shorter_context_takes_the_window_out_of_play(tmp_path: Path) -> None:
    source = decoder(tmp_path / "hf", "mistral", sliding_window=16)

    ckconv.convert(source, tmp_path / "m.gguf", options=Options(context=16))

    assert fields(tmp_path / "m.gguf")["llama.context_length"] == (["UINT32"], 16)


def test_experts_that_are_not_renormalized_are_refused(tmp_path: Path) -> None:
    sparse = Decoder(experts=4, qk_norm=True)

    with pytest.raises(UnsupportedError, match="norm_topk_prob"):
        ckconv.convert(save(tmp_path / "hf", sparse.config("qwen3_moe"), sparse.tensors()), tmp_path / "m.gguf")


@pytest.mark.parametrize("order", ["split", "interleaved"])
def test_rows_lie_as_every_reader_of_gguf_takes_them_to(order: str, tmp_path: Path) -> None:
    source, other = ("llama-tied-bf16", "split") if order == "split" else ("qwen2-tied-bf16", "interleaved")

    with pytest.raises(UnsupportedError, match="does not say how its Q and K rows lie"):
        ckconv.convert(FIXTURES / "hf" / source, tmp_path / "m.gguf", options=Options(rope_layout=other))


def test_tensors_without_a_place_or_that_are_missing_are_refused(tmp_path: Path) -> None:
    stored = Decoder().tensors()
    stored["model.layers.0.self_attn.q_norm.weight"] = np.ones(16, np.float32)
    stored["extra.weight"] = np.ones(4, np.float32)
    del stored["model.layers.1.mlp.up_proj.weight"]
    root = save(tmp_path / "hf", Decoder().config(), stored)

    with pytest.raises(UnsupportedError) as info:
        ckconv.convert(root, tmp_path / "m.gguf")

    assert info.value.details == (
        "ckconv has no rule of llama for model.layers.{n}.self_attn.q_norm.weight of a llama (model_type);"
        " hint: --drop 'model.layers.*.self_attn.q_norm.weight' leaves out what llama does not have",
        "ckconv has no rule of llama for extra.weight of a llama (model_type);"
        " hint: --drop 'extra.weight' leaves out what llama does not have",
        "no tensor for layers.{n}.ffn.up.weight in 1 layer (num_hidden_layers, model_type)",
    )
    assert info.value.hint is None  # --drop of the first two would not bring the third

    stored["model.layers.1.mlp.up_proj.weight"] = stored["model.layers.0.mlp.up_proj.weight"]
    with pytest.raises(UnsupportedError) as info:
        ckconv.convert(save(tmp_path / "whole", Decoder().config(), stored), tmp_path / "m.gguf")
    assert (
        "--drop 'model.layers.*.self_attn.q_norm.weight' leaves out what llama does not have" in info.value.details[0]
    )


def test_whisper_has_no_architecture_in_llama_cpp(tmp_path: Path) -> None:
    names = json.loads((FIXTURES / "hf" / "whisper-f32" / "names.json").read_text())
    config = json.loads((FIXTURES / "hf" / "whisper-f32" / "config.json").read_text())
    stored = {name: np.zeros(shape, np.float32) for name, (_, shape) in names.items()}

    with pytest.raises(UnsupportedError, match="no architecture for whisper"):
        ckconv.convert(save(tmp_path / "hf", config, stored), tmp_path / "m.gguf")


def test_a_bump_without_its_record_becomes_a_gguf_of_the_same_tensors(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    reference = FIXTURES / "gguf" / "qwen2-tied-bf16.auto.gguf"
    options = Options(dtype="keep", bump_version=3, source_record=False)
    ckconv.convert(reference, tmp_path / "b" / "m.bump", options=options)
    report = ckconv.convert(tmp_path / "b" / "m.bump", tmp_path / "m.gguf")

    made, expected = tensors(tmp_path / "m.gguf"), tensors(reference)
    assert made == expected
    ours, theirs = fields(tmp_path / "m.gguf"), fields(reference)
    assert {key for key in theirs if key.startswith("qwen2.") and ours.get(key) != theirs[key]} == set()
    assert ours["tokenizer.ggml.model"][1] == "no_vocab"
    assert any("the tokenizer is left out" in note for note in report.plan.notes)


# Metadata that flags change.

SOURCE = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"


def edited(path: Path, *pairs: tuple[str, str], drop: tuple[str, ...] = ()) -> Fields:
    ckconv.convert(SOURCE, path / "m.gguf", options=Options(set_meta=pairs, drop_meta=drop))
    assert tensors(path / "m.gguf") == tensors(SOURCE)
    return fields(path / "m.gguf")


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        (("general.name", "7"), (["STRING"], "7")),
        (("llama.rope.freq_base", "5e5"), (["FLOAT32"], 500_000.0)),
        (("tokenizer.ggml.add_bos_token", "true"), (["BOOL"], True)),
        (("general.author", "A: B"), (["STRING"], "A: B")),
        (("x.count", "7"), (["UINT32"], 7)),
        (("x.below", "-7"), (["INT32"], -7)),
        (("x.half", "0.5"), (["FLOAT32"], 0.5)),
        (("x.typed", "u16:7"), (["UINT16"], 7)),
        (("x.text", "str:7"), (["STRING"], "7")),
        (("x.tags", 'arr[str]:["a", "b"]'), (["ARRAY", "STRING"], ["a", "b"])),
    ],
)
def test_a_key_is_set_in_its_own_type(pair: tuple[str, str], expected: object, tmp_path: Path) -> None:
    made = edited(tmp_path, pair)

    assert made.pop(pair[0]) == expected
    before = fields(SOURCE)
    before.pop(pair[0], None)
    assert made == before


def test_keys_are_dropped_by_glob(tmp_path: Path) -> None:
    assert fields(SOURCE).keys() - edited(tmp_path, drop=("general.size*", "*.padding_token_id")).keys() == {
        "general.size_label",
        "tokenizer.ggml.padding_token_id",
    }


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        (("general.alignment", "64"), "the tensors decide it"),
        (("llama.block_count", "3"), "the tensors decide it"),
        (("split.count", "3"), "the tensors decide it"),
        (("llama.context_length", "long"), "is not of type u32"),
        (("llama.context_length", "-1"), "is not of type u32"),
        (("x.y", "u8:256"), "is not of type u8"),
        (("tokenizer.ggml.tokens", "x"), r"is not of type arr\[str\]"),
    ],
)
def test_what_cannot_be_set(pair: tuple[str, str], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=reason):
        edited(tmp_path, pair)


@pytest.mark.parametrize("glob", ["general.architecture", "llama.*", "*.tokens", "nothing.*"])
def test_what_cannot_be_dropped(glob: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        edited(tmp_path, drop=(glob,))


def test_a_gguf_gets_another_context_length(tmp_path: Path) -> None:
    ckconv.convert(SOURCE, tmp_path / "m.gguf", options=Options(context=99))

    assert fields(tmp_path / "m.gguf")["llama.context_length"] == (["UINT32"], 99)


def test_a_context_needs_the_architecture_that_its_key_begins_with(tmp_path: Path) -> None:
    source = tmp_path / "source.gguf"
    source.write_bytes(SOURCE.read_bytes().replace(b"general.architecture", b"general.architectur_"))

    ckconv.convert(source, tmp_path / "copy.gguf")
    with pytest.raises(UnsupportedError, match=r"has no general\.architecture, by which the key of the context"):
        ckconv.convert(source, tmp_path / "m.gguf", options=Options(context=99))


def test_part_of_what_is_stored_as_one_cannot_be_dropped(tmp_path: Path) -> None:
    source = FIXTURES / "gguf" / "phi3-bf16.auto.gguf"

    with pytest.raises(UnsupportedError, match=r"a part of blk\.0\.attn_qkv\.weight"):
        ckconv.convert(source, tmp_path / "m.gguf", options=Options(drop=("layers.0.attention.q.weight",)))


def test_what_llama_cpp_needs_cannot_be_dropped_from_a_gguf(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"no llama without blk\.1\.ffn_up\.weight"):
        ckconv.convert(SOURCE, tmp_path / "m.gguf", options=Options(drop=("blk.1.ffn_up.weight",)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rope_theta": 1e300}, r"rope_theta is 1e\+300, which float32 cannot hold"),
        ({"rope_scaling": {"type": "linear", "factor": 1e300}}, "names no factor"),
        ({"rope_theta": 1e-46}, "rope_theta is 1e-46, which float32 cannot hold"),
    ],
)
def test_numbers_that_gguf_cannot_hold_are_refused(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        ckconv.convert(decoder(tmp_path / "hf", **changes), tmp_path / "m.gguf")


def test_an_unknown_architecture_keeps_everything_and_is_not_narrowed(tmp_path: Path) -> None:
    metadata = [("general.architecture", "str", "other")]
    source = tmp_path / "s.gguf"
    source.write_bytes(hand.gguf(metadata, [hand.Tensor("norm", (4,), hand.F16), hand.Tensor("w", (4, 4), hand.F16)]))

    ckconv.convert(source, tmp_path / "same.gguf")
    assert (tmp_path / "same.gguf").read_bytes() == source.read_bytes()
    ckconv.convert(source, tmp_path / "wide.gguf", options=Options(dtype="f32"))
    assert {kind for kind, _, _ in tensors(tmp_path / "wide.gguf").values()} == {"F32"}
    with pytest.raises(UnsupportedError, match="so it cannot tell which of its tensors must stay FP32"):
        ckconv.convert(source, tmp_path / "m.gguf", options=Options(dtype="bf16"))


@pytest.mark.parametrize(
    ("table", "key", "number", "said"),
    [("rope_scaling", "beta_fast", 1.0, "32"), ("rope_parameters", "beta_slow", 2, "1")],
)
def test_ends_of_a_yarn_ramp_that_llama_cpp_takes_by_a_flag_are_refused_with_the_flag(
    table: str, key: str, number: float, said: str, tmp_path: Path
) -> None:
    """Kimi K2 says 1.0; llama.cpp has 32 for every model, and the number of ``--yarn-beta-fast`` where there is one."""
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, key: number}
    source = save(tmp_path / "hf", Decoder().config(**{table: yarn}), Decoder().tensors())

    with pytest.raises(UnsupportedError) as info:
        ckconv.convert(source, tmp_path / "m.gguf")
    assert info.value.hint == (
        f"ckconv edit SRC DST/ --set-meta {table}.{key}={said} makes it {said}, "
        f"and llama.cpp's --yarn-{key.replace('_', '-')} {number:g} computes the model"
    )
    ckconv.edit(source, tmp_path / "other", set_meta=[(f"{table}.{key}", said)])
    ckconv.convert(tmp_path / "other", tmp_path / "m.gguf")
