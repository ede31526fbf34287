"""Options that meet: right in the output and for ``verify OUT SRC``, or refused.

``scripts/combinations.py`` tries more of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import FIXTURES
from family_cases import cases, checkpoint
from gguf_copies import gguf_copy
from safetensors_builder import numbers, tensors_of

from ckconv.formats.gguf.read import read_gguf
from ckconv.tokenizer.checkpoint import CONTROL, USER_DEFINED

LLAMA = FIXTURES / "gguf/llama-tied-bf16.auto.gguf"
GPT2 = FIXTURES / "hf/gpt2-hub-f32"


def recorded(family: str, folder: Path, name: str = "") -> Path:
    """The checkpoint of a case, the first of its family where none is named."""
    found = next(case for case in cases(family) if name in ("", case.name))
    return checkpoint(found.recorded, folder)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("apertus", "--to mlx --quantize affine:4:32"),  # numbers of an activation are tensors without axes
        ("qwen2_5_vl", "--to hf --fuse gate-up"),  # the tower is left out, of a class that is not without it
        ("gemma4_assistant", "--to hf --pack modelopt"),  # the class is of a nested document, drafts or not
        ("minimax", "--to hf --names gguf"),  # one name of GGUF is a matrix here and a fused one there
        ("mamba", "--to gguf --dtype bf16 --allow-lossy"),
        ("llada", "--to hf --untie"),  # its own key says whether the head is the embedding
        ("nemotron_nas", "--to hf --names canonical --fuse qkv"),  # heads of K and V are other in every layer
        ("qwen3_vl_moe", "--to hf --names canonical"),  # the tower's part says how many layers its pictures go into
        ("jina_bert_v3", "--to hf --context 60"),  # positions in front of the first count, too
        ("talkie", "--to mlx --quantize nvfp4"),  # Q and K are stored with another sign
    ],
)
def test_what_is_published_is_what_verify_expects(family: str, options: str, tmp_path: Path, ckconv) -> None:
    source, out = recorded(family, tmp_path / "source"), tmp_path / "out"
    made = ckconv("convert", source, f"{out}/", *options.split())
    assert made.code == 0, made.err
    opened = next(out.glob("*.gguf"), out)
    again = ckconv("verify", opened, source, *options.split()[2:])
    assert again.code == 0, again.err


@pytest.mark.parametrize(
    ("family", "to", "document", "key"),
    [("granitehybrid", "mlx", "tokenizer_config.json", "model_max_length"), ("t5", "hf", "config.json", "n_positions")],
)
def test_another_context_of_a_gguf_without_rotation(
    family: str, to: str, document: str, key: str, tmp_path: Path, ckconv
) -> None:
    """No class reads the context; documents say it all the same."""
    ckconv("convert", recorded(family, tmp_path / "source"), tmp_path / "m.gguf")
    made = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/out/", "--to", to, "--context", "64")
    assert made.code == 0, made.err
    assert json.loads((tmp_path / "out" / document).read_text())[key] == 64


@pytest.mark.parametrize(
    ("family", "name", "to", "edit", "found"),
    [
        ("minicpm3", "longrope", "hf", "--set-meta rope_theta=12345.0", {12345.0}),
        ("minicpm3", "longrope", "hf", "--drop-meta rope_theta", set()),
        ("gpt_oss", "yarn", "hf", "--set-meta factor=3.0", {3.0}),
        *(
            (*("gpt_oss", "yarn", to), f"--set-meta {table}.{word}={value}", {value})
            for to in ("hf", "mlx")
            for table in ("rope_scaling", "rope_parameters")
            for word, value in (("factor", 3.0), ("attention_factor", 1.5))
        ),
        ("ministral3", "bfloat16", "mlx", "--set-meta rope_parameters.rope_theta=5000.0", {5000.0}),
    ],
)
def test_a_word_of_rope_is_edited_in_every_table(
    family: str, name: str, to: str, edit: str, found: set[float], tmp_path: Path, ckconv
) -> None:
    ckconv("convert", recorded(family, tmp_path / "source", name), tmp_path / "m.gguf")
    made = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/out/", "--to", to, *edit.split())
    assert made.code == 0, made.err
    document = json.loads((tmp_path / "out/config.json").read_text())
    word = edit.split()[1].partition("=")[0].rpartition(".")[2]
    tables = [document, document["rope_parameters"], document.get("rope_scaling") or {}]
    assert {table[word] for table in tables if word in table} == found


@pytest.mark.parametrize(("more", "status"), [("", 2), (" --drop-meta rope_parameters", 0)])
def test_a_table_of_rope_is_not_dropped_while_another_contradicts_it(
    more: str, status: int, tmp_path: Path, ckconv
) -> None:
    ckconv("convert", recorded("gpt_oss", tmp_path / "source", "yarn"), tmp_path / "m.gguf")
    edit = f"--drop-meta rope_scaling{more}".split()
    made = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/out/", "--to", "mlx", *edit)
    assert (made.code, "--drop-meta rope_parameters" in made.err) == (status, not more), made.err


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_logarithms_of_decays_are_rounded_once(dtype: str, tmp_path: Path, ckconv) -> None:
    """GGUF has ``-exp(A_log)``; what is rounded is A_log."""
    ckconv("convert", recorded("mamba", tmp_path / "source"), tmp_path / "m.gguf")
    made = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/out/", "--to", "hf", "--dtype", dtype, "--allow-lossy")
    assert made.code == 0, made.err

    wanted, found = tensors_of(tmp_path / "source"), tensors_of(tmp_path / "out")
    for name in (name for name in wanted if name.endswith("A_log")):
        exact, rounded = (numbers(tensors[name][0], tensors[name][2]) for tensors in (wanted, found))
        steps = np.abs(exact - rounded) / np.spacing(np.abs(exact).astype(np.float16)).astype(np.float64)
        assert steps.max() <= (4.01 if dtype == "bf16" else 0.51)


def test_a_decay_that_is_another_is_found(tmp_path: Path, ckconv) -> None:
    source = recorded("mamba", tmp_path / "source")
    ckconv("convert", source, tmp_path / "m.gguf")
    lossy = ("--dtype", "bf16", "--allow-lossy")
    ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/out/", "--to", "hf", *lossy)
    path = tmp_path / "out" / "model.safetensors"
    data = bytearray(path.read_bytes())
    entry = next(entry for name, entry in tensors_of(path).items() if name.endswith("A_log"))
    data[data.index(entry[2])] ^= 1
    path.write_bytes(data)
    found = ckconv("verify", tmp_path / "out", tmp_path / "m.gguf", *lossy)
    assert (found.code, "A_log" in found.err) == (5, True)


@pytest.mark.parametrize("target", ["out.gguf", "out/ --to hf"])
def test_a_class_without_a_head_is_not_untied(target: str, tmp_path: Path, ckconv) -> None:
    name, *to = target.split()
    found = ckconv("convert", recorded("bert", tmp_path / "source"), f"{tmp_path}/{name}", *to, "--untie")
    assert (found.code, "--untie: a bert has no output head\nhint: leave out --untie" in found.err) == (4, True)


def test_eight_bits_of_bfloat16_are_as_far_as_their_scales(tmp_path: Path, ckconv) -> None:
    """Scales and biases have eight digits, as the codes have: their rounding is most of the error."""
    source = recorded("gemma4_text", tmp_path / "source", "keys_are_values")
    assert ckconv("convert", source, f"{tmp_path}/dense/", "--to", "mlx", "--dtype", "bf16", "--allow-lossy").code == 0
    made = ckconv("convert", tmp_path / "dense", f"{tmp_path}/out/", "--to", "mlx", "--quantize", "affine:8:64")
    assert made.code == 0, made.err


def test_verify_with_another_type_says_what_is_another(tmp_path: Path, ckconv) -> None:
    ckconv("convert", GPT2, f"{tmp_path}/out/", "--to", "mlx", "--quantize", "affine:4:32")
    found = ckconv("verify", tmp_path / "out", GPT2, "--quantize", "mxfp4")
    assert (found.code, "'quantization.mode' is 'affine'; expected 'mxfp4'" in found.err) == (5, True)


def test_a_restored_source_is_verified_against_what_was_rounded(tmp_path: Path, ckconv) -> None:
    """A flipped bit of it is still found."""
    bump, back = tmp_path / "m.bump", tmp_path / "back"
    llama = FIXTURES / "hf/llama-bias-f32"
    assert ckconv("convert", llama, bump, "--dtype", "bf16", "--allow-lossy", "--source-record").code == 0
    assert ckconv("convert", bump, f"{back}/", "--to", "hf").code == 0
    assert ckconv("verify", back, bump).code == 0
    path = back / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert ckconv("verify", back, bump).code == 5


def test_the_numbering_of_types_counts_where_it_says_something(tmp_path: Path, ckconv) -> None:
    options = ("--bump-version", "3", "--engine", "april")
    assert ckconv("convert", LLAMA, tmp_path / "m.bump", *options).code == 0
    found = ckconv("verify", tmp_path / "m.bump", LLAMA, *options)
    assert found.code == 0, found.err


@pytest.mark.parametrize("rounded", [("--dtype", "bf16", "--allow-lossy"), ("--quantize", "q8_0")])
def test_a_bump_file_of_a_bump_file_is_verified_by_its_own_options(
    rounded: tuple[str, ...], tmp_path: Path, ckconv
) -> None:
    one, other = tmp_path / "one" / "m.bump", tmp_path / "other" / "m.bump"
    one.parent.mkdir()
    other.parent.mkdir()
    made = ckconv("convert", FIXTURES / "hf/llama-bias-f32", one, *rounded)
    assert (made.code, "holds the model without loss" in made.out) == (0, False), made.err
    assert ckconv("convert", one, other).code == 0
    found = ckconv("verify", other, one)
    assert found.code == 0, found.err


@pytest.mark.parametrize("target", ["m.gguf", "m/ --to hf", "m/ --to mlx"])
def test_what_an_adapter_changes_is_rounded_once(target: str, tmp_path: Path, ckconv) -> None:
    """BF16 and an adapter make F16, of which more digits are right than BF16 has."""
    base, lora = FIXTURES / "hf/qwen2-tied-bf16", FIXTURES / "lora/qwen2-r4-all"
    name, *to = target.split()
    options = (*to, "--dtype", "f16", "--allow-lossy", "--adapter", lora)
    made = ckconv("convert", base, f"{tmp_path}/{name}", *options)
    assert made.code == 0, made.err
    exact = ckconv("convert", base, f"{tmp_path}/exact/", "--to", "hf", "--dtype", "f32", "--adapter", lora)
    assert exact.code == 0, exact.err
    if to[-1:] == ["hf"]:
        name = "model.layers.0.self_attn.q_proj.weight"
        (_, _, half), (_, _, whole) = (tensors_of(tmp_path / place)[name] for place in ("m", "exact"))
        assert half == np.frombuffer(whole, "<f4").astype("<f2").tobytes()


def test_a_family_that_the_engine_does_not_train_is_refused_whatever_may_be_lost(tmp_path: Path, ckconv) -> None:
    options = ("--trainable", "--dtype", "bf16", "--allow-lossy")
    found = ckconv("convert", recorded("mimo", tmp_path / "source"), tmp_path / "m.bump", *options)
    assert (found.code, "ckconv does not know how the engine trains a mimo" in found.err) == (4, True)


def test_a_class_that_config_json_cannot_name_is_refused(tmp_path: Path, ckconv) -> None:
    ckconv("convert", recorded("jina_bert_code", tmp_path / "source"), tmp_path / "m.gguf")
    found = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/out/", "--to", "hf", "--names", "canonical")
    assert (found.code, "no key of config.json says that it is a jina_bert_code" in found.err) == (4, True)


@pytest.mark.parametrize(
    ("key", "at", "value", "said"),
    [
        ("partial_rotary_factors", 3, 1.6, "mlx-lm turns an even number of a head's elements (partial_rotary_factors)"),
        ("swiglu_limits", 0, -1, "swiglu_limits is no number of 0 or more for every layer"),
        ("swiglu_limits_shared", 0, [0.03], "computes of a step3p5 (swiglu_limits_shared)"),
    ],
)
def test_an_item_of_a_list_that_mlx_lm_does_not_compute_with_is_named(
    key: str, at: int, value: object, said: str, tmp_path: Path, ckconv
) -> None:
    source = recorded("step3p5", tmp_path / "source", "clamped")
    config = json.loads((source / "config.json").read_text())
    config[key][at] = value
    (source / "config.json").write_text(json.dumps(config))
    found = ckconv("convert", source, f"{tmp_path}/out/", "--to", "mlx")
    assert (found.code, said in found.err) == (4, True), found.err


@pytest.mark.parametrize(
    ("source", "edits", "to", "code", "said"),
    [
        (  # mlx-lm's Phi turns 0.4 of a head
            "phi/half/mlx",
            {"partial_rotary_factor": ...},
            "gguf",
            3,
            "0.4, which turns 3 of 8 elements of a head, not pairs; mlx-lm takes that where config.json says nothing",
        ),
    ],
)
def test_keys_of_a_checkpoint(
    source: str, edits: dict[str, Any], to: str, code: int, said: str, tmp_path: Path, ckconv
) -> None:
    """The first is a case, and what it goes through."""
    family, name, *through = source.split("/")
    opened = recorded(family, tmp_path / "hf", name)
    for each in through:
        made = ckconv("convert", opened, f"{tmp_path}/{each}/", "--to", each)
        assert made.code == 0, made.err
        opened = tmp_path / each
    config = {**json.loads((opened / "config.json").read_text()), **edits}
    (opened / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))
    found = ckconv("convert", opened, f"{tmp_path}/out/", "--to", to)
    assert (found.code, said in found.out + found.err) == (code, True), found.out + found.err


def test_a_token_that_looks_special_is_one_for_llama_cpp_alone(tmp_path: Path, ckconv) -> None:
    """llama.cpp's converter goes by its text, tokenizer.json by ``special``; the record has the file as it was."""
    source = recorded("llama", tmp_path / "hf", "llama3")
    document = json.loads((source / "tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    for number, (content, special) in enumerate({"<|x|>": False, "<|y|>": True, "<z>": False}.items(), 377):
        document["added_tokens"].append({"id": number, "content": content, "special": special, **flags})
    (source / "tokenizer.json").write_text(json.dumps(document))

    made = ckconv("convert", source, tmp_path / "m.gguf", "--source-record")
    assert "note: '<|x|>', not special in the tokenizer's file, is a control token here" in made.out
    kinds = read_gguf(tmp_path / "m.gguf").metadata["tokenizer.ggml.token_type"].value.decode()
    assert kinds[377:380] == [CONTROL, CONTROL, USER_DEFINED]

    assert ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/back/", "--to", "hf").code == 0
    assert json.loads((tmp_path / "back/tokenizer.json").read_text()) == document


@pytest.mark.parametrize(
    ("case", "key", "value", "said"),
    [
        ("deepseek_v4/released", "deepseek4.swiglu_clamp_exp", None, "deepseek4.swiglu_clamp_exp is missing"),
        (
            "deepseek_v4/released",
            "deepseek4.swiglu_clamp_exp",
            [10.0] * 3,
            "has 3 numbers, and llama.cpp wants one",
        ),
        ("deepseek_v4/released", "deepseek4.swiglu_clamp_shexp", [10.0] * 5, "has 5 numbers, and llama.cpp wants one"),
        ("bailing_hybrid/clamped", "bailingmoe3.swiglu_clamp_exp", [1.0] * 5, "has 5 numbers, and llama.cpp wants one"),
    ],
)
def test_a_list_over_layers_has_a_number_for_each(
    case: str, key: str, value: list[float] | None, said: str, tmp_path: Path, ckconv
) -> None:
    family, _, name = case.partition("/")
    ckconv("convert", recorded(family, tmp_path / "hf", name), tmp_path / "m.gguf")
    keys = {} if value is None else {key: value}
    gguf_copy(tmp_path / "m.gguf", tmp_path / "n.gguf", keys=keys, without=[] if keys else [key])
    found = ckconv("convert", tmp_path / "n.gguf", f"{tmp_path}/out/", "--to", "hf")
    assert (found.code, said in found.err) == (3, True), found.err
    assert ckconv("convert", tmp_path / "n.gguf", tmp_path / "copy.gguf").code == 0


def test_a_key_that_is_set_to_what_no_family_reads_is_set_in_a_copy_and_refused_elsewhere(
    tmp_path: Path, ckconv
) -> None:
    source, set_meta = recorded("mimo_v2_flash", tmp_path / "hf"), ("--set-meta", "mimo2.rope.dimension_count=7")
    ckconv("convert", source, tmp_path / "m.gguf")
    assert ckconv("edit", tmp_path / "m.gguf", tmp_path / "n.gguf", *set_meta).code == 0
    assert read_gguf(tmp_path / "n.gguf").metadata["mimo2.rope.dimension_count"].value == 7
    assert ckconv("verify", tmp_path / "n.gguf", tmp_path / "m.gguf", *set_meta).code == 0
    assert "mimo2.rope.dimension_count is 7" in ckconv("verify", tmp_path / "n.gguf", tmp_path / "m.gguf").err

    found = ckconv("convert", source, tmp_path / "o.gguf", *set_meta)
    said = (
        "--set-meta of mimo2.rope.dimension_count would make a model that is not read: mimo2.rope.dimension_count is 7"
    )
    assert (found.code, said in found.err) == (2, True), found.err


@pytest.mark.parametrize("family", ["t5", "umt5_encoder", "modernbert", "nemotron", "stablelm"])
def test_keys_that_llama_cpps_converter_writes_for_nobody_are_no_loss(family: str, tmp_path: Path, ckconv) -> None:
    name = {"stablelm": "quarter", "nemotron": "half"}.get(family, "")
    ckconv("convert", recorded(family, tmp_path / "hf", name), tmp_path / "m.gguf")
    found = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/out/", "--to", "hf")
    assert (found.code, "left out, as llama.cpp" in found.out) == (0, False), found.out + found.err


@pytest.mark.parametrize(
    ("family", "key", "said"),
    [
        ("qwen4_exp", "qwen4exp.rope.dimension_sections", "rope.dimension_sections is missing"),
        ("qwen2_vl", "qwen2vl.rope.dimension_sections", "rope.dimension_sections is missing"),
    ],
)
def test_a_gguf_that_llama_cpp_does_not_load_is_no_model(
    family: str, key: str, said: str, tmp_path: Path, ckconv
) -> None:
    source = recorded(family, tmp_path / "hf", {"qwen4_exp": "parts"}.get(family, ""))
    ckconv("convert", source, tmp_path / "m.gguf")
    gguf_copy(tmp_path / "m.gguf", tmp_path / "n.gguf", without=[key])
    found = ckconv("convert", tmp_path / "n.gguf", f"{tmp_path}/out/", "--to", "hf")
    assert (found.code, said in found.err) == (3, True), found.err


@pytest.mark.parametrize("family", ["mamba", "mamba2", "rwkv7"])
def test_heads_of_what_does_not_attend_are_any_number(family: str, tmp_path: Path, ckconv) -> None:
    """llama.cpp wants the key, and looks at no head of such models."""
    ckconv("convert", recorded(family, tmp_path / "hf"), tmp_path / "m.gguf")
    gguf_copy(tmp_path / "m.gguf", tmp_path / "n.gguf", keys={f"{family}.attention.head_count": 1})
    for name in "mn":
        made = ckconv("convert", tmp_path / f"{name}.gguf", f"{tmp_path}/{name}/", "--to", "hf")
        assert made.code == 0, made.err
    assert (tmp_path / "m/config.json").read_text() == (tmp_path / "n/config.json").read_text()


@pytest.mark.parametrize(("family", "what"), [("mamba2", "qkv"), ("deepseek_v3", "qkv")])
def test_matrices_that_a_family_does_not_have_are_not_fused(family: str, what: str, tmp_path: Path, ckconv) -> None:
    source = recorded(family, tmp_path / "hf")
    to = ("convert", source, f"{tmp_path / 'out'}/", "--to", "hf")

    refused = ckconv(*to, "--fuse", what)

    said = f"--fuse {what}: a {family} has no matrix that holds them under these names"
    assert (refused.code, said in refused.err, f"hint: leave out --fuse {what}" in refused.err) == (4, True, True)
    assert ckconv(*to).code == 0


@pytest.mark.parametrize("start", ["hf", "gguf", "mlx"])
@pytest.mark.parametrize("names", ["gguf", "canonical"])
def test_names_of_ckconv_want_tensors_and_a_family(start: str, names: str, tmp_path: Path, ckconv) -> None:
    source = recorded("phi", tmp_path / "hf")
    if start != "hf":
        source = tmp_path / {"gguf": "m.gguf", "mlx": "m"}[start]
        ckconv("convert", tmp_path / "hf", source, "--to", start)
    command = ("convert", source, f"{tmp_path}/out/", "--to", "mlx", "--names", names)

    found = ckconv(*command, "--drop", "*weight*", "--drop", "*bias*")
    assert (found.code, "--drop leaves out every tensor" in found.err) == (4, True), found.err
    found = ckconv(*command, "--set-meta", "model_type=1e-6")
    assert (found.code, "--set-meta of model_type would make a model of no known family" in found.err) == (2, True)

    assert ckconv(*command).code == 0  # the way out
