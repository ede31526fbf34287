"""DeepSeek V4: tables of whole numbers, I64 in a checkpoint and I32 in a GGUF; its two tables of RoPE; its experts."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import family_cases
import gguf
import numpy as np
import pytest
from checkpoints import save_file
from safetensors_builder import tensors_of
from test_packed_floats import DEEPSEEK, deepseek

import ckconv
from ckconv.comparison.compare import hash_index
from ckconv.core.layouts import DTYPES
from ckconv.errors import UnsupportedError, VerifyError
from ckconv.formats.detect import open_index
from ckconv.quant.convert import Conversion

CASE = next(family_cases.cases("deepseek_v4"))
TABLE, STORED = "layers.1.ffn.gate.tid2eid", "blk.1.ffn_gate_tid2eid.weight"


def checkpoint(folder: Path, change: Callable[[np.ndarray], Any] = lambda table: table) -> Path:
    """The first case with another table."""
    source = family_cases.checkpoint(CASE.recorded, folder)
    tensors = family_cases.tensors(CASE.recorded)
    tensors[TABLE] = change(tensors[TABLE])
    save_file(source / "model.safetensors", tensors, {"format": "pt"})
    return source


def place_of(path: Path, row: int, column: int) -> int:
    """Where an element of the table is in a GGUF."""
    (tensor,) = (tensor for tensor in open_index(path).stored if tensor.name == STORED)
    return tensor.extent.offset + 4 * (row * tensor.shape[1] + column)


def test_i64_becomes_i32_and_i64_again(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")
    ckconv.convert(source, tmp_path / "model.gguf")
    ckconv.convert(tmp_path / "model.gguf", tmp_path / "back", to="safetensors")
    (stored,) = (tensor for tensor in open_index(tmp_path / "model.gguf").stored if tensor.name == STORED)
    assert stored.dtype.name == "I32"
    assert tensors_of(tmp_path / "back")[TABLE] == tensors_of(source)[TABLE]
    assert ckconv.diff(source, tmp_path / "model.gguf").same


def test_the_model_has_one_hash_in_both_formats(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")
    ckconv.convert(source, tmp_path / "model.gguf")
    assert hash_index(open_index(source)) == hash_index(open_index(tmp_path / "model.gguf"))


def test_one_number_that_is_another_is_found(tmp_path: Path) -> None:
    source, model = checkpoint(tmp_path / "hf"), tmp_path / "model.gguf"
    ckconv.convert(source, model)
    data = bytearray(model.read_bytes())
    data[place_of(model, 200, 1)] ^= 1
    model.write_bytes(data)
    with pytest.raises(VerifyError, match="row 200 is not what the source holds"):
        ckconv.verify(model, source)
    (found,) = ckconv.diff(source, model).different
    assert (found.name, found.values, found.max_error) == ("layers.1.ffn.router_table", 1, 1.0)


def test_a_writer_that_changes_numbers_publishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apply = Conversion._apply

    def one_more(self: Conversion, rows: np.ndarray) -> tuple[np.ndarray, int]:
        made, changed = apply(self, rows)
        if self.target is not DTYPES["I32"]:
            return made, changed
        return (made.view("<i4") + 1).view(np.uint8), changed

    source = checkpoint(tmp_path / "hf")
    monkeypatch.setattr(Conversion, "_apply", one_more)
    with pytest.raises(VerifyError, match="column 0 is"):
        ckconv.convert(source, tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda table: np.where(np.arange(table.size).reshape(table.shape) == 401, 3_000_000_000, table),
            f"element 401 is 3,000,000,000, which no I32 holds: {TABLE}",
        ),
        (
            lambda table: np.where(np.arange(table.size).reshape(table.shape) == 7, -(2**31) - 1, table),
            f"element 7 is -2,147,483,649, which no I32 holds: {TABLE}",
        ),
        (
            lambda table: np.where(np.arange(table.size).reshape(table.shape) == 7, 6, table),
            f"element 7 is 6, which is no expert of the model: {TABLE}",
        ),
        (lambda table: table.astype(np.float32), f"llama.cpp wants whole numbers here, and not F32: {TABLE}"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, change: Callable[[np.ndarray], Any], sentence: str) -> None:
    source = checkpoint(tmp_path / "hf", change)
    with pytest.raises(UnsupportedError) as refused:
        ckconv.convert(source, tmp_path / "model.gguf")
    assert sentence in str(refused.value)


def test_i64_that_no_row_calls_a_table_is_refused(tmp_path: Path) -> None:
    case = next(family_cases.cases("olmo2"))
    source, tensors = family_cases.checkpoint(case.recorded, tmp_path / "hf"), family_cases.tensors(case.recorded)
    name = next(name for name in tensors if name.endswith("mlp.up_proj.weight"))
    tensors[name] = np.asarray(tensors[name]).astype(np.int64)
    save_file(source / "model.safetensors", tensors, {"format": "pt"})
    with pytest.raises(UnsupportedError, match="loads no I64 here"):
        ckconv.convert(source, tmp_path / "model.gguf")


@pytest.mark.parametrize("asked", ["f16", "keep"])
def test_a_type_that_is_asked_for_floats_leaves_tables(tmp_path: Path, asked: str) -> None:
    options = ckconv.Options(dtype=asked, allow_lossy=True)
    ckconv.convert(checkpoint(tmp_path / "hf"), tmp_path / "model.gguf", options=options)
    assert {t.dtype.name for t in open_index(tmp_path / "model.gguf").stored if t.name == STORED} == {"I32"}


def test_both_styles_of_keys_are_one_model(tmp_path: Path) -> None:
    """``rope_parameters`` of two tables, and the keys of a release."""
    source = checkpoint(tmp_path / "hf")
    ckconv.convert(source, tmp_path / "release.gguf")
    document = json.loads((source / "config.json").read_text())
    part = document.pop("qk_rope_head_dim") / document["head_dim"]
    kinds = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    document["layer_types"] = [kinds[ratio] for ratio in document.pop("compress_ratios")]
    document["mlp_layer_types"] = ["hash_moe"] * document.pop("num_hash_layers") + ["moe"] * 2
    main = {"rope_type": "default", "rope_theta": document["rope_theta"], "partial_rotary_factor": part}
    compress = {**main, "rope_theta": document["compress_rope_theta"]}
    document |= {"partial_rotary_factor": part, "rope_parameters": {"main": main, "compress": compress}}
    (source / "config.json").write_text(json.dumps(document))
    ckconv.convert(source, tmp_path / "saved.gguf")
    assert ckconv.diff(tmp_path / "release.gguf", tmp_path / "saved.gguf").same


def test_a_bias_of_a_layer_with_a_table_is_left_out(tmp_path: Path) -> None:
    """DeepseekV4HashRouter has none, and DeepseekV4Model of llama.cpp's converter drops it."""
    source, bias = checkpoint(tmp_path / "plain" / "hf"), "layers.1.ffn.gate.bias"
    ckconv.convert(source, tmp_path / "plain.gguf")
    tensors = family_cases.tensors(CASE.recorded)
    tensors[bias] = np.ones(np.shape(tensors["layers.2.ffn.gate.bias"]), np.float32)
    source = family_cases.checkpoint(CASE.recorded, tmp_path / "hf")
    save_file(source / "model.safetensors", tensors, {"format": "pt"})
    ckconv.convert(source, tmp_path / "model.gguf")
    assert ckconv.diff(tmp_path / "plain.gguf", tmp_path / "model.gguf").same
    ckconv.convert(source, tmp_path / "again", to="hf")
    assert bias in tensors_of(tmp_path / "again" / "model.safetensors")


@pytest.mark.parametrize("where", ["behind", "within"])
def test_kinds_of_layers_beside_ratios(tmp_path: Path, where: str) -> None:
    """DeepseekV4Config takes ``layer_types``, as far as there are layers; llama.cpp's converter takes the ratios."""
    source = checkpoint(tmp_path / "hf")
    document = json.loads((source / "config.json").read_text())
    kinds = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    document["layer_types"] = [kinds[ratio] for ratio in document["compress_ratios"]]
    document["compress_ratios"] += [0]
    if where == "within":
        document["layer_types"][0] = kinds[128]
    (source / "config.json").write_text(json.dumps(document))
    if where == "within":
        with pytest.raises(UnsupportedError, match=r"takes layer_types, and llama\.cpp compress_ratios"):
            ckconv.convert(source, tmp_path / "model.gguf")
        return
    ckconv.convert(source, tmp_path / "model.gguf")
    document.pop("layer_types")
    (source / "config.json").write_text(json.dumps(document))
    ckconv.convert(source, tmp_path / "plain.gguf")
    assert ckconv.diff(tmp_path / "plain.gguf", tmp_path / "model.gguf").same


def test_one_table_of_rope_has_neither_base_nor_part_of_a_head(tmp_path: Path) -> None:
    """DeepseekV4Config takes those at the top of the document, where it makes two tables of the one."""
    source = checkpoint(tmp_path / "hf")
    document = json.loads((source / "config.json").read_text())
    ckconv.convert(source, tmp_path / "plain.gguf")
    document["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    (source / "config.json").write_text(json.dumps(document))
    ckconv.convert(source, tmp_path / "same.gguf")
    assert ckconv.diff(tmp_path / "plain.gguf", tmp_path / "same.gguf").same
    document["rope_parameters"]["rope_theta"] = 5000.0
    (source / "config.json").write_text(json.dumps(document))
    with pytest.raises(UnsupportedError, match=r"5000\.0 beside 10000\.0, which the class takes"):
        ckconv.convert(source, tmp_path / "other.gguf")


@pytest.mark.parametrize(
    ("table", "change", "sentence"),
    [
        ("compress", {"attention_factor": 2.0}, "attention_factor = 2.0"),
        ("compress", {"attention_factor": None}, "no attention_factor, for which the class takes another"),
        ("compress", {"rope_type": "linear"}, "a scaling that is not YaRN"),
        ("compress", {"partial_rotary_factor": 0.5}, "main.partial_rotary_factor = 0.25 beside 0.5 of compress"),
        ("compress", {"rope_theta": None}, "compress has no rope_theta"),
        ("main", {"rope_type": "yarn"}, "main.rope_type = 'yarn'"),
    ],
)
def test_what_llama_cpp_does_not_turn_is_refused(
    tmp_path: Path, table: str, change: dict[str, Any], sentence: str
) -> None:
    source = checkpoint(tmp_path / "hf")
    document = json.loads((source / "config.json").read_text())
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 160000.0}
    tables: dict[str, dict[str, Any]] = {"main": {"rope_type": "default", "rope_theta": 10000.0}, "compress": yarn}
    yarn["attention_factor"] = 1.0
    tables = {name: {**own, "partial_rotary_factor": 0.25} for name, own in tables.items()}
    document["rope_parameters"] = {**tables, table: {**tables[table], **change}}
    (source / "config.json").write_text(json.dumps(document))
    with pytest.raises(UnsupportedError) as refused:
        ckconv.convert(source, tmp_path / "model.gguf")
    assert sentence in str(refused.value)


def test_experts_of_four_bits_are_the_blocks_of_a_gguf(tmp_path: Path) -> None:
    """As released: experts in FP4 and attention in FP8, with scales in E8M0, which llama.cpp's converter moves, too."""
    recorded = copy.deepcopy(CASE.recorded)
    recorded["config"] |= {"hidden_size": 32, "moe_intermediate_size": 32, "quantization_config": DEEPSEEK}
    for name, (_, shape, *_) in recorded["tensors"].items():
        four = 96 if "hc_" in name else 24
        shape[:] = [32, 32] if "experts." in name else [size * 4 // 3 if size == four else size for size in shape]
    source, tensors = family_cases.checkpoint(recorded, tmp_path / "hf"), family_cases.tensors(recorded)
    meant: dict[str, np.ndarray] = {}
    for seed, name in enumerate(name for name in list(tensors) if ".ffn.experts." in name or ".wkv." in name):
        module, shape = name.removesuffix(".weight"), tensors.pop(name).shape
        arrays, meant[name] = deepseek(module, shape, seed, bits=4 if "experts" in name else 8)
        tensors |= arrays
    save_file(source / "model.safetensors", tensors, {"format": "pt"})
    ckconv.convert(source, tmp_path / "model.gguf")

    made = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    experts, kv = made["blk.1.ffn_gate_exps.weight"], made["blk.1.attn_kv.weight"]
    assert (experts.tensor_type.name, kv.tensor_type.name) == ("MXFP4", "BF16")
    values = gguf.quants.dequantize(experts.data, experts.tensor_type)
    assert np.array_equal(values, [meant[f"layers.1.ffn.experts.{n}.w1.weight"] for n in range(6)])
    assert np.array_equal(gguf.quants.dequantize(kv.data, kv.tensor_type), meant["layers.1.attn.wkv.weight"])
