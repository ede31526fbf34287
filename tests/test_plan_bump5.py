"""Which bump version is chosen, what versions 4 and 5 refuse and why, and what they make of each type."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import pytest
from bump5_expected import expected_bump5
from conftest import FIXTURES
from gguf import GGMLQuantizationType as Q
from models import Model

from ckconv.plan.steps import joined

QK = {"head_dim": 16, "qk_norm": True}
UNTIED = "the output head is not tied to the embeddings and bump 3 has no slot for it"


def convert(ckconv, model: Model, folder: Path, *flags: object):
    source = model.write(folder / "m.gguf")
    return ckconv("convert", source, folder / "m.bump", *flags)


def test_auto_takes_3_where_it_holds_the_model(tmp_path: Path, ckconv) -> None:
    result = convert(ckconv, Model(), tmp_path)
    assert result.code == 0
    assert "note: bump 3 was chosen: it holds the model without loss" in result.out


def test_auto_takes_5_where_3_does_not_and_says_why(tmp_path: Path, ckconv) -> None:
    result = convert(ckconv, Model(arch="qwen3", **QK, head="own"), tmp_path)
    assert result.code == 0
    assert "bump v5" in result.out
    assert f"note: bump 5 was chosen; bump 3 cannot hold the model: {UNTIED} (and 2 more)" in result.out


KQ = {"hidden": 256, "ffn": 256}
NO_ENGINE = (
    "by the codes 6 and 7: no known engine computes it. The engine of January 2026 has another Q4_K than ggml's, "
    "April's v1 runtime wants --dtype-codes v4, v7 and v8 want bump 5"
)


@pytest.mark.parametrize("matrix", [Q.Q4_K, Q.Q6_K])
def test_auto_takes_5_for_k_quants(matrix: Q, tmp_path: Path, ckconv) -> None:
    result = convert(ckconv, Model(**KQ, matrix=matrix), tmp_path)
    assert (result.code, "bump v5" in result.out) == (0, True)
    assert f"note: bump 5 was chosen; bump 3 cannot hold the model: {matrix.name} by the code" in result.out


def test_auto_takes_3_where_the_k_quants_are_decoded(tmp_path: Path, ckconv) -> None:
    assert "bump v3" in convert(ckconv, Model(**KQ, matrix=Q.Q4_K), tmp_path, "--dequantize").out


def test_auto_refuses_k_quants_that_only_bump_3_has_a_place_for(tmp_path: Path, ckconv) -> None:
    """No engine computes them right there; --bump-version 3 asks for the file all the same."""
    model, flags = Model(arch="qwen2", **KQ, matrix=Q.Q4_K), ("--rope-layout", "interleaved")
    result = convert(ckconv, model, tmp_path, *flags)
    assert result.code == 4
    assert f"bump 3: Q4_K {NO_ENGINE}" in result.err
    assert "--bump-version 3 writes it all the same" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
    result = convert(ckconv, model, tmp_path, *flags, "--bump-version", 3)
    assert result.code == 0
    assert "note: Q and K rows are interleaved: every engine of bump 3 rotates split rows" in result.out


WHO = {
    "Q4_K and Q6_K": (Model(**KQ, matrix=Q.Q4_K, types={"ffn_down.weight": Q.Q6_K}), (), f"Q4_K and Q6_K {NO_ENGINE}"),
    "Q6_K": (
        Model(**KQ, matrix=Q.Q6_K),
        (),
        "Q6_K by the code 7: only the engine of January 2026 computes it. April's v1 runtime takes it for Q4_K and "
        "computes NaN: it wants --dtype-codes v4; v7 and v8 want bump 5",
    ),
    "Q4_K, codes of April": (
        Model(**KQ, matrix=Q.Q4_K),
        ("--dtype-codes", "v4"),
        "Q4_K by the codes 7 and 8: only the v1 runtime of April 2026 computes it; v7 and v8 want bump 5",
    ),
}


@pytest.mark.parametrize("name", WHO)
def test_report_and_inspect_say_who_computes_k_quants_in_bump_3(name: str, tmp_path: Path, ckconv) -> None:
    model, flags, sentence = WHO[name]
    result = convert(ckconv, model, tmp_path, "--bump-version", 3, *flags)
    assert f"  note: {sentence}\n" in result.out
    assert f"container\tnote\t{sentence}\n" in ckconv("inspect", tmp_path / "m.bump").out


def test_inspect_of_the_source_says_who_computes_its_k_quants(tmp_path: Path, ckconv) -> None:
    source = Model(**KQ, matrix=Q.Q4_K).write(tmp_path / "m.gguf")
    lines = ckconv("inspect", source).out.splitlines()
    assert {"target\tbump 3\tyes", "target\tbump 5\tyes", f"note\tbump 3\tQ4_K {NO_ENGINE}"} <= set(lines)
    notes = [target["notes"] for target in json.loads(ckconv("inspect", source, "--json").out)["targets"]]
    assert [f"Q4_K {NO_ENGINE}"] in notes


def test_floats_are_right_in_every_engine_of_bump_3(tmp_path: Path, ckconv) -> None:
    said = "note: computed right by the engine of January 2026 and of April 2026"
    assert said in convert(ckconv, Model(), tmp_path, "--bump-version", 3).out
    shown = ckconv("inspect", tmp_path / "m.bump").out
    assert "container\tengines\tjanuary, april\n" in shown
    assert "note\t" not in shown


ACCEPTED: dict[str, tuple[Model, dict[str, str]]] = {
    "Q5_K in all layers": (
        Model(**KQ, matrix=Q.Q5_K, types={"token_embd.weight": Q.Q6_K}),
        {"token_emb": "q6_k", "layer.0.wq": "q5_k", "layer.1.w1": "q5_k", "layer.1.w2": "q5_k"},
    ),
    "Q5_K in some, FP32 embedding": (
        Model(**KQ, matrix=Q.Q4_K, types={"token_embd.weight": Q.F32, "ffn_down.weight": Q.Q5_K}),
        {"token_emb": "fp32", "layer.0.wq": "q4_k", "layer.0.w2": "q5_k"},
    ),
    "Q5_0 beside a Q6_K embedding": (
        Model(**KQ, matrix=Q.Q5_0, types={"token_embd.weight": Q.Q6_K}),
        {"token_emb": "q6_k", "layer.0.wq": "q5_0"},
    ),
    "Q5_1 beside a Q4_K head": (
        Model(**KQ, head="own", types={"ffn_down.weight": Q.Q5_1, "output.weight": Q.Q4_K}),
        {"token_emb": "fp32", "output.weight": "q4_k", "layer.0.w2": "q5_1"},
    ),
}


@pytest.mark.product("values")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("name", ACCEPTED)
def test_types_that_the_engine_computes_right_are_copied(name: str, version: int, tmp_path: Path, ckconv) -> None:
    model, expected = ACCEPTED[name]
    result = convert(ckconv, model, tmp_path, "--bump-version", version)
    assert result.code == 0
    bytes_of, _ = expected_bump5(tmp_path / "m.gguf", version=version)
    assert (tmp_path / "m.bump").read_bytes()[: len(bytes_of)] == bytes_of
    assert expected.items() <= entries(tmp_path).items()


DECODING = {
    "one tensor of many": (
        Model(**KQ, matrix=Q.Q4_K, types={"token_embd.weight": Q.Q5_K}),
        "--decode 'token_embd.weight' decodes it to FP32",
    ),
    "some matrices of the layers": (
        Model(**KQ, matrix=Q.Q8_0, types={"ffn_down.weight": Q.Q4_1, "attn_v.weight": Q.Q4_1}),
        "--decode 'blk.*.attn_v.weight' --decode 'blk.*.ffn_down.weight' decodes them to FP32",
    ),
    "all matrices of the layers": (
        Model(matrix=Q.Q4_1, types={"token_embd.weight": Q.Q8_0}),
        "--decode 'blk.*' decodes them to FP32",
    ),
    "every matrix": (Model(matrix=Q.Q4_0), "--dequantize decodes them to FP32"),
}


@pytest.mark.parametrize("name", DECODING)
def test_the_hint_decodes_what_is_refused_and_nothing_else(name: str, tmp_path: Path, ckconv) -> None:
    model, hint = DECODING[name]
    refused = convert(ckconv, model, tmp_path, "--bump-version", 5)
    assert (refused.code, f"hint: {hint}\n" in refused.err) == (4, True)
    flags = hint.partition(" decodes ")[0].replace("'", "").split()
    before = {t.name: t.tensor_type for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    assert convert(ckconv, model, tmp_path, "--bump-version", 5, *flags).code == 0
    kept = [kind for kind in before.values() if kind in (Q.Q8_0, Q.Q4_K)]
    assert bool(kept) == bool({"q8_0", "q4_k"} & set(entries(tmp_path).values()))


def test_a_flag_that_decodes_one_tensor_and_several_is_named_once() -> None:
    it, them = "--dequantize decodes it to FP32", "--dequantize decodes them to FP32"
    assert joined([it, "--tie", them, it, "--tie"]) == [them, "--tie"]
    assert joined([it, it]) == [it]


def test_neither_holds_it_and_both_say_why(tmp_path: Path, ckconv) -> None:
    model = Model(head="own", types={"ffn_down.weight": Q.Q4_0}, extra_tensors={"rope_freqs.weight": (8,)})
    result = convert(ckconv, model, tmp_path)
    assert result.code == 4
    for text in (
        "bump cannot hold this model, for 4 reasons",
        "  rope_freqs.weight scales RoPE (Llama 3.1 style), which the engine does not do",
        f"  bump 3: {UNTIED}",
        "  bump 3: the engine loads F32, Q4_K and Q6_K matrices, not Q4_0: blk.0.ffn_down.weight and 1 more",
        "  bump 5: the engine has no correct kernel for Q4_0 matrices: blk.0.ffn_down.weight and 1 more",
        "--drop rope_frequencies leaves the scaling out, and changes the logits from the first tokens on",
        "--dequantize decodes them to FP32",
    ):
        assert text in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_version_3_names_the_version_that_holds_the_model(tmp_path: Path, ckconv) -> None:
    result = convert(ckconv, Model(head="own"), tmp_path, "--bump-version", 3)
    assert (result.code, UNTIED in result.err) == (4, True)
    assert "hint: --bump-version 5 holds it" in result.err


def test_version_3_names_none_where_5_does_not_hold_it(tmp_path: Path, ckconv) -> None:
    result = convert(ckconv, Model(extra_tensors={"odd.weight": (3,)}), tmp_path, "--bump-version", 3)
    assert (result.code, "--bump-version" in result.err) == (4, False)


REFUSED: dict[str, tuple[Model, str]] = {
    "Q4_0": (
        Model(matrix=Q.Q4_0),
        "the engine has no correct kernel for Q4_0 matrices: token_embd.weight and 14 more",
    ),
    "Q4_1": (
        Model(types={"attn_k.weight": Q.Q4_1}),
        "no correct kernel for Q4_1 matrices: blk.0.attn_k.weight and 1 more",
    ),
    "Q5_K embedding": (
        Model(hidden=256, ffn=256, types={"token_embd.weight": Q.Q5_K}),
        "the engine has no correct kernel for a Q5_K token_emb: token_embd.weight",
    ),
    "Q5_0 embedding": (
        Model(types={"token_embd.weight": Q.Q5_0}),
        "the engine of April 2026 has no correct kernel for a Q5_0 token_emb: token_embd.weight",
    ),
    "Q5_1 tied head": (
        Model(head="tied", types={"token_embd.weight": Q.Q5_1}),
        "the engine has no correct kernel for a Q5_1 token_emb: token_embd.weight",
    ),
    "gate and up of two types": (
        Model(types={"ffn_up.weight": Q.Q8_0}),
        "gate and up share one type in layer.{n}.w1: blk.0.ffn_gate.weight is F32 and blk.0.ffn_up.weight is Q8_0",
    ),
    "QK-norm in a llama": (Model(qk_norm=True), "no slot for blk.{n}.attn_q_norm.weight (2 tensors)"),
    "qwen3 without QK-norm": (Model(arch="qwen3"), "no tensor for layers.{n}.attention.k_norm.weight in 2 layers"),
    "gemma3 without post norms": (
        Model(arch="gemma3", **QK),
        "no tensor for layers.{n}.post_ffn_norm.weight in 2 layers",
    ),
    "rope scaling": (
        Model(extra_keys={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}),
        "RoPE is scaled (linear by rope.scaling.type, rope.scaling.factor, rope.scale_linear)",
    ),
    "rope frequencies": (Model(extra_tensors={"rope_freqs.weight": (8,)}), "rope_freqs.weight scales RoPE"),
    "partial rotation": (
        Model(extra_keys={"llama.rope.dimension_count": 8}),
        "RoPE rotates 8 of 16 elements of a head; the engine rotates all",
    ),
}


@pytest.mark.product("values")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, version: int, tmp_path: Path, ckconv) -> None:
    model, text = REFUSED[name]
    result = convert(ckconv, model, tmp_path, "--bump-version", version)
    assert result.code == 4
    assert f"error[plan.refused]: {tmp_path}/m.gguf: bump {version} cannot hold this model" in result.err
    assert text in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_window_that_the_engine_does_not_have(version: int, tmp_path: Path, ckconv) -> None:
    source = configured(tmp_path, model_type="mistral", sliding_window=16)
    flags = ("--bump-version", version)
    result = ckconv("convert", source, tmp_path / "m.bump", *flags)
    assert result.code == 4
    assert "attention slides over 16 tokens (sliding_window), the engine attends to all 256" in result.err
    assert "hint: --context 16 makes them the same" in result.err
    assert ckconv("convert", source, tmp_path / "m.bump", *flags, "--context", 16).code == 0


def configured(folder: Path, **changes: object) -> Path:
    """The small llama of the fixtures with another configuration."""
    shutil.copytree(FIXTURES / "hf/llama-tied-bf16", folder / "hf")
    document = json.loads((folder / "hf/config.json").read_text())
    (folder / "hf/config.json").write_text(json.dumps({**document, **changes}))
    return folder / "hf"


def test_a_family_that_the_engine_has_nothing_for_is_refused_for_one_reason(tmp_path: Path, ckconv) -> None:
    result = ckconv("convert", FIXTURES / "gguf/gpt2-f32.f32.gguf", tmp_path / "m.bump", "--bump-version", 5)
    assert result.code == 4
    assert result.err.endswith(
        "bump 5 cannot hold this model: the engine has RoPE, RMSNorm and a gated MLP, and gpt2 has none of them\n"
    )


NUMBERS: dict[str, tuple[str, float, str, str]] = {
    "a base that float32 has as 0": ("rope_theta", 1e-46, "the base of RoPE is 1e-46, which float32 cannot hold", ""),
    "a base beyond float32": ("rope_theta", 1e39, "the base of RoPE is 1e+39, which float32 cannot hold", ""),
    "an epsilon that float32 has as 0": (
        "rms_norm_eps",
        1e-50,
        "the epsilon of the norms is 1e-50, which float32 cannot hold",
        "",
    ),
    "a context of 2^31": (
        "max_position_embeddings",
        1 << 31,
        "the context length is 2,147,483,648, a header holds 2,147,483,647",
        "hint: --context N sets",
    ),
}


@pytest.mark.product("values")
@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_the_engine_reads_as_others(name: str, version: int, tmp_path: Path, ckconv) -> None:
    key, value, text, hint = NUMBERS[name]
    source = configured(tmp_path, **{key: value})
    result = ckconv("convert", source, tmp_path / "m.bump", "--bump-version", version)
    assert (result.code, text in result.err, hint in result.err) == (4, True, True)


@pytest.mark.parametrize("context", [1_000_000, (1 << 31) - 1])
def test_a_context_that_makes_zeros_of_many_times_the_model(context: int, tmp_path: Path, ckconv) -> None:
    """Bump 3 has a slot for learned positions: 550 GB of zeros for a number in a header."""
    model = Model(context=context)
    result = convert(ckconv, model, tmp_path, "--bump-version", 3)
    assert result.code == 4
    assert f"a context of {context:,} makes {context * 256:,} bytes of zeros" in result.err
    assert "hint: --context N sets the context length" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
    assert "bump v5" in convert(ckconv, model, tmp_path).out, "which has no such slot"
    assert convert(ckconv, model, tmp_path, "--bump-version", 3, "--context", 64, "--force").code == 0


def test_some_megabytes_of_zeros_are_fine(tmp_path: Path, ckconv) -> None:
    model = Model(context=131072)
    assert convert(ckconv, model, tmp_path, "--bump-version", 3).code == 0


def entries(folder: Path) -> dict[str, str]:
    manifest = json.loads((folder / "weights_manifest.json").read_text())
    return {entry["name"]: entry["dtype"] for entry in manifest["entries"]}


@pytest.mark.parametrize("kind", [Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.F16, Q.BF16])
def test_keep_writes_any_type_that_has_a_code(kind: Q, tmp_path: Path, ckconv) -> None:
    result = convert(ckconv, Model(matrix=kind, head="own"), tmp_path, "--bump-version", 5, "--dtype", "keep")
    assert result.code == 0
    word = {"F16": "fp16"}.get(kind.name, kind.name.lower())
    assert {entries(tmp_path)[name] for name in ("token_emb", "output.weight", "layer.1.w1")} == {word}


def test_keep_refuses_a_type_without_a_code(tmp_path: Path, ckconv) -> None:
    (source,) = (FIXTURES / "mlx").glob("llama-tied-bf16.q4g64")
    result = ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 5, "--dtype", "keep")
    assert result.code == 4
    assert "MLX 4-bit group 64 BF16 has no code in the dtype table" in result.err


@pytest.mark.parametrize("kind", [Q.Q4_0, Q.Q8_0])
def test_dequantize_decodes_what_is_refused(kind: Q, tmp_path: Path, ckconv) -> None:
    model = Model(hidden=256, ffn=256, matrix=kind, head="own")
    result = convert(ckconv, model, tmp_path, "--bump-version", 5, "--dequantize")
    assert result.code == 0
    assert set(entries(tmp_path).values()) == {"fp32"}


@pytest.mark.parametrize("layout", ["engine", "interleaved"])
@pytest.mark.parametrize("version", [3, 5])
def test_odd_heads_form_no_pairs(version: int, layout: str, tmp_path: Path, ckconv) -> None:
    model = Model(arch="qwen2", hidden=36, ffn=40)
    result = convert(ckconv, model, tmp_path, "--bump-version", version, "--rope-layout", layout)
    assert (result.code, "heads of 9 elements cannot form RoPE pairs" in result.err) == (4, True)


def test_drop_rope_frequencies(tmp_path: Path, ckconv) -> None:
    model = Model(head="own", extra_tensors={"rope_freqs.weight": (8,)})
    result = convert(ckconv, model, tmp_path, "--drop", "rope_frequencies")
    assert result.code == 0
    assert "left out rope_freqs.weight (rope_frequencies): asked for by --drop" in result.out


def test_head_that_is_the_embedding_is_tied(tmp_path: Path, ckconv) -> None:
    assert convert(ckconv, Model(head="copy"), tmp_path, "--bump-version", 5).code == 0
    assert "output.weight" not in entries(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is True


def test_a_template_has_no_place_in_version_3(tmp_path: Path, ckconv) -> None:
    template = tmp_path / "t.json"
    template.write_text("{}")
    result = convert(ckconv, Model(), tmp_path, "--bump-version", 3, "--template", template)
    assert (result.code, "bump 3 has no place for an engine template" in result.err) == (4, True)
    assert convert(ckconv, Model(), tmp_path, "--template", template).code == 0
    assert "bump v5" in ckconv("verify", tmp_path / "m.bump").out


def test_inspect_says_what_each_version_does_not_hold(tmp_path: Path, ckconv) -> None:
    source = Model(head="own").write(tmp_path / "m.gguf")
    lines = ckconv("inspect", source).out.splitlines()
    assert {"target\tbump 3\tno", "target\tbump 5\tyes"} <= set(lines)
    assert f"reason\tbump 3\t{UNTIED}\t" in lines


def test_mlx_triples_whose_numbers_fit_are_repacked(tmp_path: Path, ckconv) -> None:
    """4-bit groups with bfloat16 scales: Q5_1 holds their very numbers; an embedding may not be Q5_1."""
    source = FIXTURES / "mlx/llama-tied-bf16.q4g64"
    refused = ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 5)
    assert refused.code == 4
    assert "103 groups have numbers that no Q8_0 block holds: model.embed_tokens.weight" in refused.err
    flags = ("--bump-version", 5, "--decode", "token_embedding.weight")
    result = ckconv("convert", source, tmp_path / "m.bump", *flags)
    assert result.code == 0
    assert (entries(tmp_path)["token_emb"], entries(tmp_path)["layer.1.wq"]) == ("fp32", "q5_1")
    assert "verified 20/20" in result.out


def test_mlx_triples_whose_numbers_do_not_fit_are_counted(tmp_path: Path, ckconv) -> None:
    source = FIXTURES / "mlx/llama-untied-f32.q4g32"
    result = ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 5)
    assert result.code == 4
    assert "groups have numbers that no Q5_0 or Q5_1 or Q8_0 block holds: model.layers.0." in result.err


def test_inspect_says_what_it_does_not_read_of_mlx_triples(tmp_path: Path, ckconv) -> None:
    source = FIXTURES / "mlx/llama-tied-bf16.q4g64"
    note = "if its blocks hold the numbers of every quantized group: convert --dry-run reads them and says so"
    assert f"note\tbump 5\t{note}\n" in ckconv("inspect", source).out
    dry = ckconv(
        "convert", source, tmp_path / "m.bump", "--bump-version", 5, "--decode", "token_embedding.weight", "-n"
    )
    assert (dry.code, note in dry.out) == (0, False)
