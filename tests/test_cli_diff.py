"""``ckconv diff``: what it prints and how it ends."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import Decoder, Tensors, save
from conftest import FIXTURES, Result
from family_cases import cases, checkpoint, recording
from gguf_builder import string
from gguf_copies import finish, gguf_copy
from models import Model

import ckconv as library

Run = Callable[..., Result]
SMALL = Decoder(layers=1)


def small(folder: Path, tensors: Tensors | None = None, **config: object) -> Path:
    return save(folder, SMALL.config(**config), SMALL.tensors() if tensors is None else tensors)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two models that share 12 of 14 tensors; a value differs by 3, each has a bias of its own, and a base differs."""
    tensors: Tensors = dict(SMALL.tensors())
    bias = "model.layers.0.self_attn.{}_proj.bias"
    norm = np.full(64, 2, np.float32)
    other = norm.copy()
    other[5] = 5
    a = small(tmp_path / "a", {**tensors, "model.norm.weight": norm, bias.format("q"): np.ones(64, np.float32)})
    b = small(
        tmp_path / "b",
        {**tensors, "model.norm.weight": other, bias.format("v"): np.ones(32, np.float32)},
        rope_theta=5e5,
    )
    return a, b


#: Of which a checkpoint says more than a GGUF has words for.
DOCUMENTS = ["generation_config.json", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"]
UNCOMPARED = f"  not compared, as only one format or model has words for it: {', '.join(DOCUMENTS)}"


def test_equal_models_end_with_0(ckconv: Run, tmp_path: Path) -> None:
    a, b = FIXTURES / "hf" / "llama-tied-bf16", tmp_path / "m.gguf"
    assert ckconv("convert", a, b).code == 0
    found = ckconv("diff", a, b)

    assert (found.code, found.err) == (0, "")
    assert found.out.splitlines() == [
        f"{a}  {b}",
        "the same model",
        "  20 tensors equal (5 stored in another type)",
        UNCOMPARED,
    ]


def test_equal_tensors_under_another_tokenizer_are_no_equal_models(ckconv: Run) -> None:
    """Whoever made this GGUF named another splitting of text than the tokenizer of the checkpoint does."""
    a, b = FIXTURES / "hf" / "llama-tied-bf16", FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
    found = ckconv("diff", a, b)
    assert found.code == 5
    assert "  tokenizer.ggml.pre: 'gpt-2' | 'llama-bpe'" in found.out.splitlines()
    assert found.out.splitlines()[1] == "the same tensors, not the same model"
    found = ckconv("diff", a, b, "--weights")
    assert (found.code, found.out.splitlines()[1]) == (0, "the same tensors")


@pytest.mark.parametrize("key", ["tokenizer.chat_template=EVIL", "tokenizer.ggml.eos_token_id=7", "general.license=x"])
def test_metadata_that_differs_is_named(ckconv: Run, tmp_path: Path, key: str) -> None:
    source = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
    assert ckconv("convert", source, tmp_path / "m.gguf", "--set-meta", key).code == 0
    for pair in ((source, tmp_path / "m.gguf"), (tmp_path / "m.gguf", source)):
        found = ckconv("diff", *pair)
        assert found.code == 5
        assert f"  {key.partition('=')[0]}: " in found.out
        assert ckconv("diff", *pair, "--weights").code == 0
    assert ckconv("diff", source, source).code == 0


@pytest.mark.parametrize(
    ("model_type", "change"),
    [
        ("llama", {"is_causal": False}),
        ("granite_next", {"model_type": "ministral"}),
        ("granite", {"embedding_multiplier": 12.0}),
        ("granite_next", {"rope_theta": 77.0}),
        ("qwen3_moe_next", {"norm_topk_prob": False}),
    ],
)
def test_configurations_that_differ_are_no_same_model(
    ckconv: Run, tmp_path: Path, model_type: str, change: dict[str, Any]
) -> None:
    """With and without rules of the architecture; the tensors are the same."""
    for folder, config in (("a", {}), ("b", change)):
        small(tmp_path / folder)
        path = tmp_path / folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": model_type, **config}))
    found = ckconv("diff", tmp_path / "a", tmp_path / "b")
    assert found.code == 5, found.out
    assert found.out.splitlines()[1].endswith("not the same model")
    assert ckconv("diff", tmp_path / "a", tmp_path / "a").code == 0
    assert ckconv("diff", tmp_path / "a", tmp_path / "b", "--weights").code == 0


def test_equality_with_mlx_triples_is_said_not_to_be_transitive(ckconv: Run) -> None:
    triple = FIXTURES / "mlx" / "llama-tied-bf16.q4g64"
    decoded = FIXTURES / "mlx-dequantized" / "llama-tied-bf16.q4g64.dequantized"
    found = ckconv("diff", triple, decoded)
    assert "which need not be equal to each other" in found.out
    assert found.out.splitlines()[1] == "the same tensors, not the same model", "only one has a tokenizer"
    assert "  tokenizer.json: there | missing" in found.out


def test_verbose_names_the_tensors_that_changed_their_type(ckconv: Run) -> None:
    found = ckconv("diff", "-v", FIXTURES / "hf" / "llama-tied-bf16", FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf")
    assert "    layers.0.attention_norm.weight  BF16 | F32" in found.out.splitlines()
    assert found.out.count("BF16 | F32") == 5


def test_different_models_end_with_5(ckconv: Run, pair: tuple[Path, Path]) -> None:
    a, b = pair
    found = ckconv("diff", a, b)

    assert (found.code, found.err) == (5, "")
    assert found.out.splitlines() == [
        f"{a}  {b}",
        "not the same model",
        "  11 tensors equal",
        "  1 differs",
        "    model.norm.weight (output_norm.weight)  F32  1 of 64 values, max |d| 3, relative 0.188",
        f"  1 only in {a}",
        "    model.layers.0.self_attn.q_proj.bias (layers.0.attention.q.bias)",
        f"  1 only in {b}",
        "    model.layers.0.self_attn.v_proj.bias (layers.0.attention.v.bias)",
        "  config rope_theta: 10000.0 | 500000.0",
    ]


def test_quiet_says_it_with_the_exit_status_only(ckconv: Run, pair: tuple[Path, Path]) -> None:
    a, b = pair
    assert ckconv("diff", "-q", a, b) == Result(5, "", "")
    assert ckconv("-q", "diff", a, a) == Result(0, "", "")


def test_json_is_one_document(ckconv: Run, pair: tuple[Path, Path]) -> None:
    a, b = pair
    found = ckconv("diff", "--json", a, b)

    assert (found.code, found.err) == (5, "")
    document = found.json
    assert document["different"][0].pop("relative_error") == pytest.approx(3 / 16, rel=0.01)
    assert document == {
        "schema": 2,
        "a": str(a),
        "b": str(b),
        "same": False,
        "equal": 11,
        "tolerance": 0.0,
        "retyped": [],
        "near": [],
        "different": [
            {
                "tensor": "output_norm.weight",
                "a": "F32",
                "b": "F32",
                "values": 1,
                "elements": 64,
                "max_error": 3.0,
                "reason": None,
            }
        ],
        "only_in_a": ["layers.0.attention.q.bias"],
        "only_in_b": ["layers.0.attention.v.bias"],
        "config": {"rope_theta": {"a": 10000.0, "b": 500000.0}},
        "weights_only": False,
        "facts": [],
        "not_compared": None,
        "uncompared": [],
    }


def test_json_of_equal_models(ckconv: Run) -> None:
    document = ckconv(
        "diff",
        "--json",
        "--weights",
        FIXTURES / "mlx" / "qwen3-tied-bf16.q4g64",
        FIXTURES / "mlx-dequantized" / "qwen3-tied-bf16.q4g64.dequantized",
    ).json
    assert (document["same"], document["equal"], document["different"], document["config"]) == (True, 24, [], {})
    assert len(document["retyped"]) == 15
    assert {"tensor": "layers.0.ffn.up.weight", "a": "MLX 4-bit group 64 BF16", "b": "BF16"} in document["retyped"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_json_has_no_nan_and_no_infinity(ckconv: Run, tmp_path: Path, value: float) -> None:
    tensors: Tensors = dict(SMALL.tensors())
    odd = tensors["model.norm.weight"].copy()
    odd[0] = value
    a, b = small(tmp_path / "a"), small(tmp_path / "b", {**tensors, "model.norm.weight": odd})

    (item,) = ckconv("diff", "--json", a, b).json["different"]
    assert (item["values"], item["max_error"], item["relative_error"]) == (1, None, None)
    assert f"1 of 64 values, max |d| {value:g}, relative {value:g}" in ckconv("diff", a, b).out


def test_long_lists_are_cut_unless_verbose(ckconv: Run, tmp_path: Path) -> None:
    decoder = Decoder(layers=3)
    a = save(tmp_path / "a", decoder.config(), decoder.tensors())
    b = save(tmp_path / "b", decoder.config(), {name: array + 1 for name, array in decoder.tensors().items()})

    short, long = ckconv("diff", a, b), ckconv("diff", "-v", a, b)
    assert short.code == long.code == 5
    assert "not the same model\n  0 tensors equal\n  30 differ, worst first: relative error up to " in short.out
    assert "    ... and 10 more (-v lists them)" in short.out
    assert short.out.count(" values, max |d|") == 20
    assert long.out.count(" values, max |d|") == 30
    assert "more" not in long.out


def test_names_that_would_act_on_a_terminal_are_escaped(ckconv: Run, tmp_path: Path) -> None:
    one = save(tmp_path / "a", {}, {"w\x1b[31m\n": np.ones(2, np.float32)})
    other = save(tmp_path / "b", {}, {"w": np.ones(2, np.float32)})
    found = ckconv("diff", one, other)

    assert found.code == 5
    assert r"w\x1b[31m\n" in found.out
    assert "\x1b" not in found.out


def test_a_converted_model_is_the_same_model(ckconv: Run, tmp_path: Path) -> None:
    """bump 3 packs heads, pads rows and has placeholders for biases and positions."""
    source = Model(hidden=48, heads=4, kv_heads=2, ffn=72, vocab=33, context=7).write(tmp_path / "m.gguf")
    assert ckconv("convert", "-q", source, tmp_path / "m.bump").code == 0

    found = ckconv("diff", source, tmp_path / "m.bump")
    assert (found.code, found.out.splitlines()[1:]) == (0, ["the same model", "  20 tensors equal"])
    hashes = [ckconv("inspect", "--json", "--hash", path).json["hash"] for path in (source, tmp_path / "m.bump")]
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize(
    ("family", "key"),
    [
        ("grovemoe", "experts_per_group"),
        ("deepseek_v32", "expert_gating_func"),
        ("gpt2", "context_length"),
        ("nemotron", "attention.layer_norm_epsilon"),
        ("gemma4_text", "attention.key_length_swa"),
    ],
)
def test_a_gguf_without_a_key_that_llama_cpp_needs_is_no_equal_model(
    family: str, key: str, ckconv: Run, tmp_path: Path
) -> None:
    case = next(case for case in recording(family).values() if case.get("converter"))
    source = checkpoint(case, tmp_path / "hf")
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 0
    name = f"{library.open_model(tmp_path / 'm.gguf').index.architecture}.{key}"
    data = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "less.gguf").write_bytes(data.replace(string(name), string("x" * len(name))))

    assert ckconv("diff", source, tmp_path / "m.gguf").code == 0
    for pair in ((source, tmp_path / "less.gguf"), (tmp_path / "less.gguf", source)):
        found = ckconv("diff", *pair)
        assert (found.code, name in found.out) == (5, True)


def test_a_gguf_without_the_window_of_a_checkpoint_is_no_equal_model(ckconv: Run, tmp_path: Path) -> None:
    """llama.cpp attends to everything there."""
    case = next(case for case in recording("mistral").values() if case.get("converter"))
    whole = checkpoint({**case, "config": {**case["config"], "sliding_window": None}}, tmp_path / "whole")
    slides = checkpoint({**case, "config": {**case["config"], "sliding_window": 8}}, tmp_path / "slides")
    assert ckconv("convert", whole, tmp_path / "m.gguf").code == 0

    assert ckconv("diff", whole, tmp_path / "m.gguf").code == 0
    found = ckconv("diff", tmp_path / "m.gguf", slides)
    assert (found.code, "config sliding_window: None | 8" in found.out) == (5, True)
    assert ckconv("convert", slides, tmp_path / "s.gguf", "--context", "8").code == 0
    assert "sliding_window" not in ckconv("diff", tmp_path / "s.gguf", slides).out  # nothing ever slides out of it


@pytest.mark.parametrize(
    ("source", "key", "value", "code"),
    [
        ("hf/phi3-bf16", "phi3.attention.sliding_window", "7", 5),
        *((f"hf/{name}-bf16", "general.size_label", "9B", 0) for name in ("phi3", "qwen3-tied")),
    ],
)
def test_verify_and_diff_say_the_same_of_a_key(
    source: str, key: str, value: str, code: int, ckconv: Run, tmp_path: Path
) -> None:
    whole, other = tmp_path / "m.gguf", tmp_path / "other.gguf"
    assert ckconv("convert", FIXTURES / source, whole).code == 0
    assert ckconv("convert", whole, other, "--set-meta", f"{key}={value}").code == 0
    for one in (whole, FIXTURES / source):
        assert [ckconv(command, other, one).code for command in ("verify", "diff")] == [code, code]


@pytest.mark.parametrize("family", ["exaone", "falcon"])
def test_a_number_under_another_of_the_familys_words_is_no_difference(family: str, ckconv: Run, tmp_path: Path) -> None:
    source = checkpoint(recording(family)["released"], tmp_path / "hf")
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 0

    assert ckconv("diff", source, tmp_path / "m.gguf").code == 0


def test_what_two_directories_call_a_model_is_shown_and_no_difference(ckconv: Run, tmp_path: Path) -> None:
    for name in ("one", "other"):
        assert ckconv("convert", small(tmp_path / name), tmp_path / f"{name}.gguf").code == 0
    found = ckconv("diff", tmp_path / "one.gguf", tmp_path / "other.gguf")

    assert (found.code, found.out.splitlines()[1]) == (0, "the same model")
    assert "  general.name: 'One' | 'Other'" in found.out.splitlines()


def test_a_missing_input_is_no_difference_and_a_model_against_its_rules_is_one(ckconv: Run, tmp_path: Path) -> None:
    good = small(tmp_path / "a")
    found = ckconv("diff", good, tmp_path / "none")
    assert found.code in (3, 6)
    assert str(tmp_path / "none") in found.err

    other = small(tmp_path / "b", intermediate_size=1)
    found = ckconv("diff", good, other)
    assert found.code == 5
    assert found.out.splitlines()[1:] == [
        "the same tensors, not the same model",
        "  12 tensors equal",
        "  config.json: 'intermediate_size': 96 | 1",
    ]


def test_a_model_without_rules_is_refused_against_one_with_rules(ckconv: Run, tmp_path: Path) -> None:
    good, bare = small(tmp_path / "a"), save(tmp_path / "b", {"model_type": "x\x1b"}, {"w": np.ones(2, np.float32)})
    found = ckconv("diff", good, bare)

    assert (found.code, found.out) == (4, "")
    assert r"error[model.architecture]" in found.err
    assert r"ckconv does not know the architecture 'x\x1b'" in found.err


def test_a_bump_whose_tensors_cannot_be_found_is_no_equal_of_anything(tmp_path: Path, ckconv: Run) -> None:
    """Version 3 needs its config.json; two of them without one have nothing in common but their ignorance."""
    model = Model().write(tmp_path / "m.gguf")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        assert ckconv("convert", model, tmp_path / name / "m.bump", "-q").code == 0
        (tmp_path / name / "config.json").unlink()
    damaged = bytearray((tmp_path / "b" / "m.bump").read_bytes())
    damaged[-1000] ^= 1
    (tmp_path / "b" / "m.bump").write_bytes(damaged)

    found = ckconv("diff", tmp_path / "a" / "m.bump", tmp_path / "b" / "m.bump")
    assert (found.code, found.out) == (3, "")
    assert "error[bump.config]" in found.err
    found = ckconv("inspect", "--hash", tmp_path / "a" / "m.bump")
    assert (found.code, found.out) == (3, "")
    assert ckconv("inspect", tmp_path / "a" / "m.bump").code == 0


def test_files_of_metadata_only_are_not_compared(tmp_path: Path, ckconv: Run) -> None:
    finish(gguf.GGUFWriter(tmp_path / "vocab.gguf", "other"), tmp_path / "vocab.gguf")
    for arguments in (
        ("diff", tmp_path / "vocab.gguf", tmp_path / "vocab.gguf"),
        ("inspect", "--hash", tmp_path / "vocab.gguf"),
    ):
        found = ckconv(*arguments)
        assert (found.code, found.out) == (4, "")
        assert "error[model.no-tensors]" in found.err


def test_a_tolerance_is_the_relative_error_that_counts_as_none(ckconv: Run, tmp_path: Path) -> None:
    decoder = Decoder(layers=2)
    errors = {"model.layers.0.mlp.up_proj.weight": 1e-6, "model.layers.1.mlp.up_proj.weight": 1e-3}
    tensors = {name: array * (1 + np.float32(errors.get(name, 0))) for name, array in decoder.tensors().items()}
    a = save(tmp_path / "a", decoder.config(), decoder.tensors())
    b = save(tmp_path / "b", decoder.config(), {name: array.astype(np.float32) for name, array in tensors.items()})

    none, some, all = (ckconv("diff", a, b, *flags) for flags in ((), ("--tolerance", "1e-5"), ("--tolerance", "0.1")))
    assert [found.code for found in (none, some, all)] == [5, 5, 0]
    lines = [line for line in none.out.splitlines() if "max |d|" in line and "  F32" in line]
    first, second = [line.split()[1].strip("()") for line in lines]
    assert (first, second) == ("layers.1.ffn.up.weight", "layers.0.ffn.up.weight"), "worst first"
    assert "  1 differs by at most the tolerance of 1e-05\n    model.layers.0.mlp.up_proj.weight (layers" in some.out
    assert "  1 differs\n    model.layers.1.mlp.up_proj.weight (layers.1.ffn.up.weight)" in some.out
    assert all.out.splitlines()[1] == "the same model within the tolerance"
    assert "  2 differ by at most the tolerance of 0.1, worst first: relative error up to 0.001 (layers.1" in all.out
    found = library.diff(a, b, tolerance=0.1)
    assert (found.same, len(found.near), found.to_dict()["near"][0]["tensor"]) == (True, 2, first)
    assert repr(found) == f"<Comparison: the same, {found.equal} equal, 2 near, 0 different>"


FLAG = "tokenizer.ggml.add_{}_token"


@pytest.mark.parametrize(
    ("name", "key", "value", "same"),
    [
        ("gemma3-text-bf16", "gemma3.rope.freq_base_swa", 10_000.0, True),  # llama_model_gemma3::load_arch_hparams
        ("gemma3-text-bf16", "gemma3.rope.freq_base_swa", 20_000.0, False),
        ("gemma3-text-bf16", "gemma3.attention.key_length", None, False),  # hidden / heads would be another size
        ("gemma3-text-bf16", "gemma3.attention.value_length", None, False),  # which llama.cpp does not load
        ("gemma3-text-bf16", "gemma3.embedding_length", None, False),  # without which nothing loads
        ("gemma3-text-bf16", "gemma3.new", 1.5, False),
        *(
            ("llama-tied-bf16", f"llama.rope.{key}", value, same)
            for key, value, same in (
                ("scaling.factor", 1.0, True),
                ("scaling.factor", 0.0, True),
                ("scaling.factor", 1, False),  # of another type: llama.cpp does not load it
                ("scaling.factor", 2.0, False),
                ("scaling.type", "none", True),
                ("scaling.type", "yarn", True),
                ("scaling.type", "other", False),
                ("scaling.original_context_length", 32, True),
                ("scaling.attn_factor", 1.0, True),
                ("scaling.attn_factor", 2.0, False),
                ("scaling.finetuned", True, True),
                ("scale_linear", 1.0, True),
            )
        ),
        *(("llama-tied-bf16", FLAG.format(flag), flag == "bos", True) for flag in ("bos", "eos", "sep")),
        *(("llama-tied-bf16", FLAG.format(flag), flag != "bos", False) for flag in ("bos", "eos", "sep")),
    ],
)
def test_a_key_that_one_gguf_lacks_is_what_llama_cpp_takes_for_it(
    ckconv: Run, tmp_path: Path, name: str, key: str, value: float | str | None, same: bool
) -> None:
    source = FIXTURES / "gguf" / f"{name}.auto.gguf"
    without = gguf_copy(source, tmp_path / "without.gguf", without=[key])
    said = gguf_copy(source, tmp_path / "with.gguf", keys={} if value is None else {key: value})

    assert ckconv("diff", without, said).code == ckconv("diff", said, without).code == (0 if same else 5)


@pytest.mark.parametrize(("kind", "adds"), [("t5", {"eos"}), ("bert", {"bos", "sep"}), ("llama", {"bos"})])
def test_flags_that_are_missing_are_those_of_the_kind_of_tokenizer(
    ckconv: Run, tmp_path: Path, kind: str, adds: set[str]
) -> None:
    a = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
    for flag in ("bos", "eos", "sep"):
        keys: dict[str, object] = {"tokenizer.ggml.model": kind}
        without = gguf_copy(a, tmp_path / "without.gguf", keys=keys)
        for value in (True, False):
            said = gguf_copy(a, tmp_path / "said.gguf", keys={**keys, FLAG.format(flag): value})
            assert ckconv("diff", without, said).code == (0 if value == (flag in adds) else 5)


@pytest.mark.parametrize(
    ("family", "case", "key", "value", "same"),
    [
        ("dots1", "groups", "dots1.expert_group_used_count", 1, False),  # GGML_ASSERT(hparams.n_group_used > 0)
        ("solar_open", "", "glm4moe.expert_group_used_count", None, True),  # of one group nothing is asserted
        ("smallthinker", "slides", "smallthinker.expert_gating_func", None, False),  # build_moe_ffn aborts
        ("dots1", "groups", "dots1.expert_gating_func", None, False),
        ("gemma", "", "gemma.rope.freq_base", 10_000.0, True),
        ("gemma", "", "gemma.rope.freq_base", 10_000, False),  # a u32, which llama_model_loader::get_key refuses
    ],
)
def test_a_gguf_that_llama_cpp_stops_at_is_no_equal_of_one_that_it_loads(
    tmp_path: Path, family: str, case: str, key: str, value: float | None, same: bool
) -> None:
    found = next(one for one in cases(family) if case in ("", one.name))
    source = checkpoint(found.recorded, tmp_path / "hf", found.tokenizer)
    library.convert(source, tmp_path / "m.gguf", options=library.Options(**found.options))
    without = gguf_copy(tmp_path / "m.gguf", tmp_path / "without.gguf", without=[key])
    other = source
    if value is not None:
        other = gguf_copy(without, tmp_path / "said.gguf", keys={key: value})

    assert (library.diff(without, other).same, library.diff(other, without).same) == (same, same)


BIASED = "attention_bias: as its tensors are | "


@pytest.mark.parametrize(
    ("case", "to", "says", "line"),
    [
        ("untied", "mlx", True, f"{BIASED}True, and no bias is there: mlx-lm does not load it"),
        ("untied", "safetensors", True, ""),  # transformers makes up zeros
        ("biases", "mlx", False, f"{BIASED}False, and biases are there: mlx-lm does not load it"),
        ("biases", "safetensors", False, f"{BIASED}False, and biases are there: transformers computes without"),
    ],
)
def test_biases_that_a_configuration_says_are_those_that_are_there(
    case: str, to: str, says: bool, line: str, ckconv: Run, tmp_path: Path
) -> None:
    found = next(one for one in cases("llama") if one.name == case)
    source = checkpoint(found.recorded, tmp_path / "hf", found.tokenizer)
    library.convert(source, tmp_path / "m.gguf")
    library.convert(source, tmp_path / "out", to=to)
    config = tmp_path / "out" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "attention_bias": says}))

    done = ckconv("diff", tmp_path / "m.gguf", tmp_path / "out")
    assert (done.code, line in done.out) == (5 if line else 0, True), done.out


def test_what_two_formats_do_not_both_say_is_named(ckconv: Run, tmp_path: Path) -> None:
    source = FIXTURES / "hf" / "qwen2-tied-bf16"
    bare = shutil.copytree(source, tmp_path / "bare", ignore=shutil.ignore_patterns("*token*"))
    library.convert(source, tmp_path / "m.gguf")
    library.convert(source, tmp_path / "mlx", to="mlx")
    for one, other, names in (
        (source, tmp_path / "m.gguf", DOCUMENTS),
        (bare, tmp_path / "m.gguf", ["generation_config.json", "tokenizer.ggml.tokens", *DOCUMENTS[2:]]),
        (bare, tmp_path / "mlx", DOCUMENTS[1:]),
        (source, tmp_path / "mlx", []),
    ):
        found = ckconv("diff", one, other)
        assert (found.code, library.diff(other, one).uncompared) == (0, tuple(names))
        line = f"  not compared, as only one format or model has words for it: {', '.join(names)}"
        assert (line in found.out.splitlines()) is bool(names)


def test_what_a_header_says_of_a_packing_is_the_tensors_matter(tmp_path: Path, ckconv: Callable[..., Result]) -> None:
    """torchao says in ``__metadata__`` how each matrix is stored."""
    source, made = FIXTURES / "quantised" / "torchao-nvfp4", tmp_path / "made"
    assert ckconv("convert", source, f"{made}/", "--to", "hf", "--dequantize", "--dtype", "source").code == 0
    assert ckconv("edit", made, f"{tmp_path}/noted/", "--set-meta", "__metadata__.note=hi").code == 0

    same, noted = ckconv("diff", made, source), ckconv("diff", tmp_path / "noted", source)

    assert (same.code, "the same model" in same.out) == (0, True), same.out + same.err
    assert (noted.code, "__metadata__.note" in noted.out, "NVFP4" in noted.out) == (5, True, False), noted.out
