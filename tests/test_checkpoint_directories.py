"""Checkpoints as other programs leave them: what a loader reads, and the rest is a note or a refusal with a way out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import family_cases
import gguf
import gguf.quants
import numpy as np
import pytest
from checkpoints import Decoder, save
from gguf_builder import Q4_0, Q4_K, Tensor, gguf as made_gguf
from gguf_copies import arrays_of
from models import Model
from safetensors.numpy import load_file

MODEL = Decoder(layers=2)
INDEX = "model.safetensors.index.json"
Run = Callable[..., Any]


def same(one: Path, other: Path) -> None:
    ours, theirs = arrays_of(one), arrays_of(other)
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture
def plain(tmp_path: Path, ckconv: Run) -> Path:
    """The GGUF of the model."""
    source = save(tmp_path / "plain", MODEL.config(), MODEL.tensors())
    assert ckconv("convert", source, tmp_path / "plain.gguf").code == 0
    return tmp_path / "plain.gguf"


def of_index(root: Path, change: Any) -> Path:
    index = json.loads((root / INDEX).read_text())
    change(index)
    (root / INDEX).write_text(json.dumps(index))
    return root


def test_a_total_that_is_wrong_in_both_is_no_fault_of_a_copy(tmp_path: Path, ckconv: Run) -> None:
    """DeepSeek V3's index says half of its size; no loader reads it."""

    def wrong(index: dict[str, Any]) -> None:
        index["metadata"]["total_size"] = 7

    source = save(tmp_path / "hf", MODEL.config(), MODEL.tensors(), shards=2, metadata={"format": "pt"})
    copy = of_index(shutil.copytree(source, tmp_path / "copy"), wrong)
    found = ckconv("verify", copy, source)
    assert (found.code, "'metadata.total_size' is 7" in found.err) == (5, True), found.err

    of_index(source, wrong)
    assert ckconv("verify", copy, source).code == 0


@pytest.mark.parametrize("said", [None, {"made": "by hand"}])
def test_a_copy_without_the_library_that_its_source_lacks_is_the_source(
    said: dict[str, str] | None, tmp_path: Path, ckconv: Run
) -> None:
    source = save(tmp_path / "hf", MODEL.config(), MODEL.tensors(), metadata=said)
    assert ckconv("verify", shutil.copytree(source, tmp_path / "copy"), source).code == 0
    named = save(tmp_path / "pt", MODEL.config(), MODEL.tensors(), metadata={**(said or {}), "format": "pt"})
    found = ckconv("verify", tmp_path / "copy", named)
    assert (found.code, "__metadata__.format is missing" in found.err) == (5, True), found.err


def test_mlx_lm_says_how_it_opened_a_model_that_it_converts(tmp_path: Path, ckconv: Run) -> None:
    """transformers 5 stores arguments of ``from_pretrained``, and mlx-lm counts elements in ways of its own."""
    source, out = save(tmp_path / "hf", MODEL.config(), MODEL.tensors(), shards=2), tmp_path / "mlx"
    (source / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    assert ckconv("convert", source, f"{out}/", "--to", "mlx", "--max-shard-size", "100KB").code == 0
    of_index(out, lambda index: index["metadata"].update(total_parameters=7))
    for key, code in (("is_local", 0), ("local_files_only", 0), ("backend", 0), ("add_eos_token", 5)):
        (out / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", key: True}))
        found = ckconv("verify", out, source)
        assert (found.code, f"'{key}' is True" in found.err) == (code, code == 5), found.err


@pytest.mark.parametrize(("key", "code"), [("clip_qkv", 0), ("rope_traditional", 5)])
def test_mlx_lm_keeps_what_its_source_says_nothing_of(key: str, code: int, tmp_path: Path, ckconv: Run) -> None:
    source = save(tmp_path / "hf", {**MODEL.config(), "clip_qkv": None}, MODEL.tensors())
    assert ckconv("convert", source, f"{tmp_path}/m/", "--to", "mlx").code == 0
    config = tmp_path / "m/config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), key: None}))

    assert ckconv("verify", tmp_path / "m", source).code == code


def test_a_key_that_happens_to_be_called_whole_stays_one(tmp_path: Path, ckconv: Run) -> None:
    source = save(tmp_path / "hf", {**MODEL.config(), "whole": {"a": 1}}, MODEL.tensors())
    assert ckconv("convert", source, f"{tmp_path}/m/", "--to", "mlx").code == 0
    made = json.loads((tmp_path / "m" / "config.json").read_text())
    assert (made["whole"], made["model_type"], "thinker_config" in made) == ({"a": 1}, "llama", False)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("to", ["gguf", "mlx", "safetensors"])
def test_an_index_is_read_for_the_names_of_files_alone(
    shards: int, to: str, plain: Path, tmp_path: Path, ckconv: Run
) -> None:
    def stale(index: dict[str, Any]) -> None:
        index["metadata"]["total_size"] = 48_000_000
        index["weight_map"] = {name: f"model-{n % 9:05}-of-00010.safetensors" for n, name in enumerate(MODEL.tensors())}

    def absent(index: dict[str, Any]) -> None:
        index["metadata"]["total_size"] = 7
        index["weight_map"]["mtp.fc.weight"] = "model-00002-of-00002.safetensors"

    made = save(tmp_path / "of", MODEL.config(), MODEL.tensors(), shards=shards)
    if shards == 1:
        (made / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": {"a": "model-00001-of-00010.safetensors"}}))
    notes = {}
    for change in (absent, stale):
        source = of_index(made, change) if shards > 1 or change is stale else made
        done = ckconv(
            "convert", source, tmp_path / f"out-{change.__name__}{'.gguf' if to == 'gguf' else '/'}", "--to", to
        )
        assert done.code == 0
        notes[change.__name__] = done.out
        assert (
            ckconv(
                "diff", "--weights", tmp_path / f"out-{change.__name__}{'.gguf' if to == 'gguf' else ''}", plain
            ).code
            == 0
        )
    assert f"{INDEX} names none of the files that are there, and is not read" in notes["stale"]
    if shards > 1:
        assert "lacks 1 tensor that the index lists there: 'mtp.fc.weight'" in notes["absent"]


@pytest.mark.parametrize("alias", [True, False])
@pytest.mark.parametrize("to", ["gguf", "mlx", "safetensors", "bump"])
def test_a_tied_model_may_have_its_head_alone(alias: bool, to: str, tmp_path: Path, ckconv: Run) -> None:
    tensors = MODEL.tensors()
    tied, head = {**tensors}, {**tensors}
    del tied["lm_head.weight"]
    head["lm_head.weight"] = head.pop("model.embed_tokens.weight")
    config = MODEL.config(tie_word_embeddings=True)
    said = {"model.embed_tokens.weight": "lm_head.weight"} if alias else None
    one, other = save(tmp_path / "tied", config, tied), save(tmp_path / "head", config, head, metadata=said)

    for source in (one, other):
        done = ckconv("convert", source, f"{tmp_path}/{source.name}.out/", "--to", to)
        assert (done.code, "dropped 0" in done.out) == (0, True)

    assert ckconv("diff", "--weights", tmp_path / "tied.out", tmp_path / "head.out").code == 0
    assert ckconv("verify", tmp_path / "head.out", other, *(["--weights"] if to == "bump" else [])).code == 0


def test_names_that_share_one_tensor_are_read_by_every_one_of_them(tmp_path: Path, ckconv: Run) -> None:
    """``save_model`` keeps the first name by the alphabet, of T5 the decoder's."""
    source = Path(__file__).parent.parent / "fixtures" / "hf" / "gpt2-hub-f32"
    from safetensors.numpy import load_file

    tensors = load_file(source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    other = {("a.first" if name == "wte.weight" else name): array for name, array in tensors.items()}
    made = save(tmp_path / "shared", config, other, metadata={"wte.weight": "a.first", "lm_head.weight": "a.first"})

    assert ckconv("convert", made, tmp_path / "shared.gguf", "--drop", "a.first").code == 0
    assert ckconv("convert", source, tmp_path / "plain.gguf").code == 0
    same(tmp_path / "shared.gguf", tmp_path / "plain.gguf")


@pytest.mark.parametrize("glob", ["model.layers.1.*", "layers.1.*"])
@pytest.mark.parametrize("to", ["gguf", "mlx", "safetensors", "bump"])
def test_layers_behind_the_last_go_by_drop(glob: str, to: str, tmp_path: Path, ckconv: Run) -> None:
    short = Decoder(layers=1)
    source = save(tmp_path / "long", MODEL.config(num_hidden_layers=1), MODEL.tensors())
    one = save(tmp_path / "short", short.config(), {k: v for k, v in MODEL.tensors().items() if ".layers.1." not in k})

    refused = ckconv("convert", source, f"{tmp_path}/no/", "--to", to if to != "safetensors" else "gguf")
    assert refused.code == 3
    assert "hint: --drop 'model.layers.1.*' leaves them out" in refused.err
    assert ckconv("inspect", source).code == ckconv("verify", source).code == 0
    assert ckconv("convert", source, f"{tmp_path}/out/", "--to", to, "--drop", glob).code == 0
    assert ckconv("convert", one, f"{tmp_path}/want/", "--to", to).code == 0
    assert ckconv("diff", "--weights", tmp_path / "out", tmp_path / "want").code == 0


@pytest.mark.parametrize("part", [".", ".input_layernorm."])
def test_a_layer_under_another_number_is_not_one_too_many(part: str, tmp_path: Path, ckconv: Run) -> None:
    tensors = {name.replace(f".layers.1{part}", f".layers.7{part}"): it for name, it in MODEL.tensors().items()}
    refused = ckconv("convert", save(tmp_path / "hf", MODEL.config(), tensors), tmp_path / "m.gguf")

    assert (refused.code, "--drop" in refused.err) == (3, False)
    assert "name layer 7 ('model.layers.7.input_layernorm.weight'), and layer 1 has none of that name" in refused.err
    assert "hint: rename them if they are its tensors: the layers are 0 to 1" in refused.err


def test_a_tensor_that_only_the_index_lists_may_be_dropped(tmp_path: Path, ckconv: Run) -> None:
    made = save(tmp_path / "of", MODEL.config(), MODEL.tensors(), shards=2)
    of_index(made, lambda index: index["weight_map"].update({"mtp.fc.weight": "model-00002-of-00002.safetensors"}))

    assert ckconv("convert", made, tmp_path / "m.gguf", "--drop", "mtp.fc.weight").code == 0
    assert ckconv("convert", made, tmp_path / "n.gguf", "--drop", "mtp.fd.weight").code == 2


@pytest.mark.parametrize("to", ["safetensors", "mlx"])
def test_a_tensor_of_a_gguf_that_no_row_has_goes_by_drop(to: str, tmp_path: Path, ckconv: Run) -> None:
    source = Model(layers=1, extra_tensors={"blk.0.extra.weight": (64,)}).write(tmp_path / "m.gguf")

    refused = ckconv("convert", source, f"{tmp_path}/out/", "--to", to)
    assert (refused.code, "hint: --drop 'blk.*.extra.weight' leaves out what " in refused.err) == (4, True)
    assert ckconv("convert", source, f"{tmp_path}/out/", "--to", to, "--drop", "blk.*.extra.weight").code == 0


def test_a_gguf_with_layers_behind_its_last_is_a_file_and_goes_by_drop(tmp_path: Path, ckconv: Run) -> None:
    source = Model(layers=1, extra_tensors={"blk.1.attn_norm.weight": (64,)}).write(tmp_path / "m.gguf")

    refused = ckconv("convert", source, f"{tmp_path}/hf/", "--to", "safetensors")
    assert (refused.code, "--drop 'blk.1.*' leaves them out" in refused.err) == (3, True)
    assert ckconv("convert", source, f"{tmp_path}/hf/", "--to", "safetensors", "--drop", "blk.1.*").code == 0
    assert ckconv("convert", source, tmp_path / "copy.gguf").code == 0
    assert (tmp_path / "copy.gguf").read_bytes() == source.read_bytes()
    assert ckconv("edit", source, tmp_path / "e.gguf", "--set-meta", "general.name=x").code == 0
    assert ckconv("convert", source, f"{tmp_path}/names/", "--to", "safetensors", "--names", "gguf").code == 0
    assert ckconv("convert", source, tmp_path / "s.gguf", "--max-shard-size", "60KB").code == 0


DOUBLES = {name: array.astype(np.float64) for name, array in MODEL.tensors().items()}


@pytest.mark.parametrize("to", ["gguf", "mlx", "safetensors", "bump"])
def test_float64_is_narrowed_where_every_value_allows_it(to: str, tmp_path: Path, ckconv: Run) -> None:
    source = save(tmp_path / "f64", MODEL.config(), DOUBLES)
    single = save(tmp_path / "f32", MODEL.config(), MODEL.tensors())
    if to != "safetensors":
        refused = ckconv("convert", source, f"{tmp_path}/no/", "--to", to)
        assert (refused.code, "F64" in refused.err) == (4, True)

    assert ckconv("convert", source, f"{tmp_path}/out/", "--to", to, "--dtype", "f32").code == 0
    assert ckconv("convert", single, f"{tmp_path}/want/", "--to", to).code == 0

    assert ckconv("diff", "--weights", tmp_path / "out", tmp_path / "want").code == 0
    assert ckconv("diff", "--weights", tmp_path / "out", source).code == 0


@pytest.mark.parametrize(("to", "dtype"), [("gguf", "f32"), ("gguf", "bf16"), ("mlx", "f16"), ("safetensors", "f32")])
def test_float64_is_rounded_where_that_is_allowed(to: str, dtype: str, tmp_path: Path, ckconv: Run) -> None:
    finer = {name: array + 1e-9 for name, array in DOUBLES.items()}
    source = save(tmp_path / "f64", MODEL.config(), finer)
    flags = ("--to", to, "--dtype", dtype)

    refused = ckconv("convert", source, f"{tmp_path}/out/", *flags)
    assert (refused.code, "error[plan.lossy]" in refused.err) == (4, True)
    assert ckconv("convert", source, f"{tmp_path}/out/", *flags, "--allow-lossy").code == 0

    assert ckconv("diff", "--weights", tmp_path / "out", source).code == 5
    if (to, dtype) == ("gguf", "f32"):
        found = arrays_of(tmp_path / "out/model.gguf")["token_embd.weight"]
        assert np.array_equal(found, finer["model.embed_tokens.weight"].astype(np.float32))


def test_float64_beyond_float32_is_never_infinite(tmp_path: Path, ckconv: Run) -> None:
    huge = {**DOUBLES, "model.norm.weight": DOUBLES["model.norm.weight"] * 1e300}
    source = save(tmp_path / "f64", MODEL.config(), huge)
    found = ckconv("convert", source, tmp_path / "m.gguf", "--dtype", "f32", "--allow-lossy")
    assert (found.code, "error[plan.range]" in found.err) == (4, True)


def test_float64_is_quantized(tmp_path: Path, ckconv: Run) -> None:
    for name, tensors in (("f64", DOUBLES), ("f32", MODEL.tensors())):
        source = save(tmp_path / name, MODEL.config(), tensors)
        assert ckconv("convert", source, tmp_path / f"{name}.gguf", "--quantize", "q8_0", "--dtype", "f32").code == 0
    same(tmp_path / "f64.gguf", tmp_path / "f32.gguf")


@pytest.mark.parametrize("format", ["pt", "mlx"])
def test_a_word_of_quantization_beside_floats_says_nothing(
    format: str, tmp_path: Path, plain: Path, ckconv: Run
) -> None:
    said = {key: {"group_size": 32, "bits": 4} for key in ("quantization", "quantization_config")}
    source = save(tmp_path / "hf", MODEL.config(**said), MODEL.tensors(), metadata={"format": format})

    done = ckconv("convert", source, tmp_path / "m.gguf")
    assert done.code == 0
    assert ("no tensor is quantized" in done.out) == (format == "pt")
    same(tmp_path / "m.gguf", plain)
    assert ckconv("convert", source, f"{tmp_path}/out/", "--to", "safetensors").code == 0
    assert "quantization" not in (tmp_path / "out/config.json").read_text()


def test_a_method_that_a_loader_would_apply_to_floats_is_no_word_of_mlxs(tmp_path: Path, ckconv: Run) -> None:
    said = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    source = save(tmp_path / "hf", MODEL.config(**said), MODEL.tensors())
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 4


@pytest.mark.parametrize("matrix", [gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q4_K])
def test_a_gguf_that_nothing_knows_goes_to_safetensors_under_its_own_names(
    matrix: gguf.GGMLQuantizationType, tmp_path: Path, ckconv: Run
) -> None:
    from safetensors.numpy import load_file

    source = Model(arch="weird7", hidden=256, ffn=256, matrix=matrix, extra_tensors={"odd.thing": (3,)}).write(
        tmp_path / "m.gguf"
    )
    quantized = matrix is gguf.GGMLQuantizationType.Q4_K
    flags = ("--to", "safetensors", "--names", "gguf")

    without = ckconv("convert", source, f"{tmp_path}/no/", "--to", "safetensors")
    assert (without.code, "--to safetensors --names gguf writes" in without.err) == (4, True)
    if quantized:
        refused = ckconv("convert", source, f"{tmp_path}/no/", *flags)
        assert (refused.code, "--dequantize" in refused.err) == (4, True)
        flags = (*flags, "--dequantize")
    assert ckconv("convert", source, f"{tmp_path}/out/", *flags).code == 0

    found, wanted = load_file(tmp_path / "out/model.safetensors"), gguf.GGUFReader(source).tensors
    assert found.keys() == {tensor.name for tensor in wanted}
    for tensor in wanted:
        with np.errstate(all="ignore"):
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(found[tensor.name], values, equal_nan=True)
    assert ckconv("verify", tmp_path / "out", source, *flags[2:]).code == 0


@pytest.mark.product("values")
@pytest.mark.parametrize(
    ("start", "but"),
    [
        *((start, "") for start in ("_orig_mod.", "base_model.model.", "module.", "student.")),
        ("model.language_model.", " but 'lm_head.weight'"),  # of a model that sees
    ],
)
@pytest.mark.parametrize("to", ["gguf", "mlx", "bump"])
def test_names_within_another_module_are_one_reason(start: str, but: str, to: str, tmp_path: Path, ckconv: Run) -> None:
    tensors = {name if name in but else start + name: array for name, array in MODEL.tensors().items()}
    if but:
        tensors = {name.replace(f"{start}model.", start): array for name, array in tensors.items()}
    source = save(tmp_path / "hf", MODEL.config(), tensors)

    refused = ckconv("convert", source, f"{tmp_path}/out/", "--to", to)

    assert (refused.code, refused.err.count("\n")) == (4, 2)
    assert f"every name{but} starts with {start!r}: without it they are those of a llama" in refused.err
    assert f"hint: save the model itself, or its tensors under name.removeprefix({start!r})" in refused.err
    renamed = save(tmp_path / "renamed", MODEL.config(), {k.removeprefix(start): v for k, v in tensors.items()})
    assert ckconv("convert", renamed, f"{tmp_path}/out/", "--to", to).code == 0
    assert ckconv("convert", source, f"{tmp_path}/copy/", "--to", "safetensors").code == 0


@pytest.mark.product("values")
@pytest.mark.parametrize("word", ["_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod."])
@pytest.mark.parametrize("to", ["gguf", "mlx", "bump"])
def test_words_of_wrappers_within_names_are_one_reason(word: str, to: str, tmp_path: Path, ckconv: Run) -> None:
    tensors = {name.replace(".self_attn.", f".{word}self_attn."): array for name, array in MODEL.tensors().items()}
    source = save(tmp_path / "hf", MODEL.config(), tensors)

    refused = ckconv("convert", source, f"{tmp_path}/out/", "--to", to)

    assert (refused.code, refused.err.count("\n")) == (4, 2)
    assert f"names hold {word!r}, as a model's within torch's wrapper do" in refused.err
    assert f"hint: save the model itself, or its tensors under name.replace({word!r}, '')" in refused.err
    renamed = save(tmp_path / "renamed", MODEL.config(), {name.replace(word, ""): it for name, it in tensors.items()})
    assert ckconv("convert", renamed, f"{tmp_path}/out/", "--to", to).code == 0
    assert ckconv("convert", source, f"{tmp_path}/copy/", "--to", "safetensors").code == 0


def test_a_name_with_such_a_word_is_dropped_by_its_flag(tmp_path: Path, ckconv: Run) -> None:
    tensors = MODEL.tensors()
    source = save(tmp_path / "hf", MODEL.config(), {**tensors, "x._orig_mod.y": next(iter(tensors.values()))})
    assert ckconv("convert", source, tmp_path / "m.gguf", "--drop", "*_orig_mod.*").code == 0


def test_blocks_of_an_architecture_that_nobody_knows_are_decoded(tmp_path: Path, ckconv: Run) -> None:
    """Under the names of the GGUF; what is verified needs no flags."""
    path, out = tmp_path / "m.gguf", tmp_path / "out"
    path.write_bytes(
        made_gguf([("general.architecture", "str", "other")], [sound(64, Q4_0, 18), sound(256, Q4_K, 144)])
    )
    done = ckconv("convert", path, f"{out}/", "--to", "safetensors", "--names", "gguf", "--dequantize")
    assert done.code == 0, done.err
    found = load_file(out / "model.safetensors")
    for tensor in gguf.GGUFReader(path).tensors:
        assert np.array_equal(found[tensor.name], gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    assert ckconv("verify", out, path).code == 0


def sound(columns: int, type_id: int, nbytes: int) -> Tensor:
    """Three rows of a block or two, whose halves are numbers."""
    rows = np.random.default_rng(4).integers(0, 256, (3 * columns // {Q4_0: 32, Q4_K: 256}[type_id], nbytes), np.uint8)
    rows[:, 1] = rows[:, 3] = 0x2C
    return Tensor(f"{type_id}.weight", (columns, 3), type_id, data=rows.tobytes())


@pytest.mark.parametrize("to", ["gguf", "mlx"])
def test_a_part_beside_the_model_has_one_flag(to: str, tmp_path: Path, ckconv: Run) -> None:
    """As the value head of trl's models, of two arrays."""
    head = {"v_head.summary.weight": np.ones((1, 64), "f4"), "v_head.summary.bias": np.zeros(1, "f4")}
    source = save(tmp_path / "hf", MODEL.config(), MODEL.tensors() | head)
    refused = ckconv("convert", source, f"{tmp_path}/out/", "--to", to)
    assert (refused.code, refused.err.count("\n")) == (4, 2)
    assert "no rule" in refused.err
    assert "hint: --drop 'v_head.*' leaves out what llama does not have\n" in refused.err
    assert ckconv("convert", source, f"{tmp_path}/out/", "--to", to, "--drop", "v_head.*").code == 0


def test_a_flag_that_makes_another_model_says_so(tmp_path: Path, ckconv: Run) -> None:
    """Of a reranker whose config.json has the class of the embeddings."""
    case = next(family_cases.cases("jina_bert_classifier"))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"architectures": ["JinaBertForMaskedLM"]}))
    hint = "leaves out what jina_bert does not have, and makes a jina_bert of what may be a jina_bert_classifier"

    for to in ("gguf", "mlx"):
        refused = ckconv("convert", source, f"{tmp_path}/out/", "--to", to)
        assert (refused.code, f"--drop 'classifier.*' {hint}" in refused.err) == (4, True)
    dropped = ckconv("convert", source, tmp_path / "m.gguf", "--drop", "classifier.*")
    assert dropped.code == 0, dropped.err
    assert not [tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors if "cls" in tensor.name]


def test_layers_within_another_module_are_one_reason(tmp_path: Path, ckconv: Run) -> None:
    """As transformers 5 saved Nomic BERTs (its issue 46650): embeddings keep their names."""
    from safetensors.numpy import load_file, save_file

    case = next(family_cases.cases("nomic_bert"))
    file = family_cases.checkpoint(case.recorded, tmp_path / "hf") / "model.safetensors"
    right = load_file(file)
    save_file(
        {name.replace("encoder.", "encoder.encoder.") if "layers" in name else name: it for name, it in right.items()},
        file,
    )

    refused = ckconv("convert", file.parent, tmp_path / "m.gguf")

    assert (refused.code, refused.err.count("\n")) == (4, 2)
    assert "every name of a layer starts with 'encoder.': without it they are those of a nomic_bert" in refused.err
    assert "hint: save the model itself, or its tensors under name.removeprefix('encoder.')" in refused.err
    save_file({name.removeprefix("encoder."): it for name, it in load_file(file).items()}, file)
    assert load_file(file).keys() == right.keys()
    assert ckconv("convert", file.parent, tmp_path / "m.gguf").code == 0


def test_a_copy_of_names_that_transformers_does_not_load_says_so(tmp_path: Path, ckconv: Run) -> None:
    """As it saved a Qwen 3.5 (its issue 45216); what a model sees with has one word more, which it does load."""
    from safetensors.numpy import load_file, save_file

    case = next(family_cases.cases("qwen3_5"))
    file = family_cases.checkpoint(case.recorded, tmp_path / "hf") / "model.safetensors"
    right = load_file(file)
    word, within = "model.language_model.", "model.language_model.language_model.language_model."
    renamed = {name.replace("model.", within, 1): tensor for name, tensor in right.items()}
    assert any(name.startswith(within + "layers.") for name in renamed)
    save_file(renamed, file)

    found = ckconv("convert", file.parent, f"{tmp_path}/copy/", "--to", "safetensors")

    assert (found.code, f"transformers makes up what is called {within}*" in found.out) == (0, True)
    assert f"name.replace({within!r}, {word!r})" in found.out
    save_file({name.replace(within, word): tensor for name, tensor in load_file(file).items()}, file)
    found = ckconv("convert", file.parent, f"{tmp_path}/right/", "--to", "safetensors")
    assert (found.code, "transformers makes up" in found.out) == (0, False)
