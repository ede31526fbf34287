"""Values that transformers' configuration classes take, which mlx-lm's do not ask for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import FIXTURES
from family_cases import cases, families
from gguf_copies import gguf_copy
from test_config_edits import edited, gemma3, model
from test_plan_checkpoint import config_of

import ckconv
from ckconv.errors import UnsupportedError
from ckconv.families.catalog import FAMILIES
from ckconv.families.expressions import ExpressionError
from ckconv.families.huggingface_classes import unaccepted
from ckconv.families.keys import READERS
from ckconv.families.parameters import ConfigSource, ParameterError, Values

#: What scripts/record_config_types.py found.
RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "config_types.json").read_text())

#: Keys whose values are held to more than their type: torch's names, labels by number, as many as layers, what a model
#: is run with.
_NARROWER = frozenset({"dtype", "id2label", "is_encoder_decoder", "layer_types", "mlp_layer_types", "return_dict"})

#: Objects that become instances of other classes, whose sizes they are.
_MADE = frozenset({"attn_config", "ffn_config", "d_model", "text_config", "vision_config"})


@pytest.mark.parametrize("model_type", RECORDED["refused"])
def test_what_a_class_does_not_take_is_known(model_type: str) -> None:
    recorded = {key: names.split() for names, keys in RECORDED["refused"][model_type].items() for key in keys.split()}
    keys = set(recorded) - _MADE
    refused = {(key, name) for key in keys for name in recorded[key]}
    ours = {
        (key, name)
        for key in keys
        for name, value in RECORDED["probes"].items()
        if key in unaccepted({key: value}, model_type)
    }
    assert refused - ours == set()
    assert {key for key, _ in ours - refused} <= _NARROWER


def test_a_class_that_is_not_recorded_takes_everything() -> None:
    assert unaccepted({"hidden_size": "wide", "num_attention_heads": 0}, "unheard_of") == []


def as_mlx(root: Path, **changes: Any) -> Path:
    return model(root, mlx=True, **changes)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention_dropout", "none"),
        ("initializer_range", 1),
        ("pad_token_id", 1.5),
        ("id2label", ["a"]),
        ("use_return_dict", True),
    ],
)
def test_a_harmless_value_that_transformers_does_not_take_is_left_out(tmp_path: Path, key: str, value: object) -> None:
    plan = ckconv.convert(as_mlx(tmp_path, **{key: value}), f"{tmp_path}/out/", to="safetensors").plan

    assert key not in config_of(tmp_path / "out")
    assert f"left out of config.json or put right, as transformers does not take it: {key} = {value!r}" in plan.notes


@pytest.mark.parametrize(
    ("changes", "written"),
    [
        ({"use_cache": "yes"}, True),
        ({"torch_dtype": "float"}, "float32"),
        ({"rms_norm_eps": 1}, 1.0),
        ({"tie_word_embeddings": None}, False),
        ({"num_key_value_heads": 2}, 2),
    ],
)
def test_a_number_of_another_type_is_written_as_transformers_takes_it(
    tmp_path: Path, changes: dict[str, Any], written: object
) -> None:
    ckconv.convert(as_mlx(tmp_path, **changes), f"{tmp_path}/out/", to="safetensors")

    (found,) = [config_of(tmp_path / "out")[key] for key in changes]
    assert (found, type(found)) == (written, type(written))


def test_a_scaling_of_rope_that_gpt2_does_not_read_is_left_out(tmp_path: Path) -> None:
    source = edited(tmp_path, FIXTURES / "hf/gpt2-hub-f32")
    ckconv.convert(source, f"{tmp_path}/mlx/", to="mlx")
    path = tmp_path / "mlx" / "config.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "rope_scaling": {"rope_type": "llama3", "factor": 8.0}})
    )

    ckconv.convert(tmp_path / "mlx", f"{tmp_path}/out/", to="safetensors")
    assert "rope_scaling" not in config_of(tmp_path / "out")


def test_a_number_that_transformers_does_not_take_at_all_is_refused(tmp_path: Path) -> None:
    """``query_pre_attn_scalar`` is a whole number for ``Gemma3TextConfig``, and any for mlx-lm's class."""
    hugging = gemma3(tmp_path)
    ckconv.convert(hugging, f"{tmp_path}/mlx/", to="mlx")
    path = tmp_path / "mlx" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "query_pre_attn_scalar": 16.5}))

    with pytest.raises(UnsupportedError, match=r"does not take .* query_pre_attn_scalar = 16\.5"):
        ckconv.convert(tmp_path / "mlx", f"{tmp_path}/out/", to="safetensors")


@pytest.mark.parametrize("layers", [["full_attention"], "full", ["wide", "wide"]])
def test_a_list_of_layers_that_mlx_lm_does_not_read_is_left_out(tmp_path: Path, layers: object) -> None:
    source = model(tmp_path, "qwen2", mlx=True, layer_types=layers)

    ckconv.convert(source, f"{tmp_path}/out/", to="safetensors")
    assert "layer_types" not in config_of(tmp_path / "out")


def test_mlx_lm_gets_what_its_class_cannot_do_without(tmp_path: Path) -> None:
    """``ModelArgs`` of mlx_lm/models/qwen3_moe.py has no default; no layer of the model has that size."""
    source = model(tmp_path, "qwen3_moe", norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[])
    document = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({k: v for k, v in document.items() if k != "intermediate_size"}))

    ckconv.convert(source, f"{tmp_path}/out/", to="mlx")
    assert config_of(tmp_path / "out")["intermediate_size"] > 0


def test_factors_that_no_type_asks_for_do_not_reach_phi_3s_class() -> None:
    listed = {"rope_type": "default", "long_factor": [2.0, 3.0]}

    assert unaccepted({"rope_parameters": listed}, "phi3") == ["rope_parameters"]
    assert unaccepted({"rope_parameters": {**listed, "rope_type": "longrope"}}, "phi3") == []
    assert unaccepted({"rope_parameters": {"rope_type": "default"}, "rope_scaling": None}, "phi3") == []


@pytest.mark.parametrize(
    "said",
    [
        {"pad_token_id": 99_999},
        {"return_dict": False},
        {"is_encoder_decoder": True},
    ],
)
def test_what_a_class_of_transformers_is_not_built_with_is_left_out(tmp_path: Path, said: dict[str, Any]) -> None:
    """``torch.nn.Embedding`` wants a row for padding; tuples have no ``last_hidden_state``; a decoder is no encoder."""
    plan = ckconv.convert(as_mlx(tmp_path, **said), f"{tmp_path}/out/", to="safetensors").plan

    (key, value), *_ = said.items()
    assert key not in config_of(tmp_path / "out")
    assert f"left out of config.json or put right, as transformers does not take it: {key} = {value!r}" in plan.notes


def test_a_table_of_rope_by_kind_of_layer_is_put_right_for_a_class_that_has_one_rope() -> None:
    """``nested_rope_parameter_keys`` takes it for tables of every kind, and the class then misses ``rope_type``."""
    table = {"rope_theta": 1e4, "full_attention": {"rope_theta": 1.0}}
    assert unaccepted({"rope_parameters": table}, "qwen2") == ["rope_parameters"]
    assert unaccepted({"rope_parameters": table}, "gemma3_text", by_layer=True) == []
    assert unaccepted({"rope_parameters": table}, "llama") == []


def test_phi3_says_that_there_is_no_padding_where_its_class_would_take_one_behind_the_vocabulary(
    tmp_path: Path,
) -> None:
    ckconv.convert(FIXTURES / "hf/phi3-bf16", f"{tmp_path}/mlx/", to="mlx")
    path = tmp_path / "mlx" / "config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "pad_token_id"}))

    ckconv.convert(tmp_path / "mlx", f"{tmp_path}/out/", to="safetensors")
    written = config_of(tmp_path / "out")
    assert "pad_token_id" in written
    assert written["pad_token_id"] is None


def test_a_padding_token_of_a_gguf_that_is_no_token_is_not_said(tmp_path: Path) -> None:
    beyond = {"tokenizer.ggml.padding_token_id": 99999}
    source = gguf_copy(FIXTURES / "gguf/llama-tied-bf16.auto.gguf", tmp_path / "model.gguf", keys=beyond)

    ckconv.convert(source, f"{tmp_path}/out/", to="safetensors")
    assert "pad_token_id" not in config_of(tmp_path / "out")


@pytest.mark.parametrize("family", families())
def test_a_number_of_a_family_is_no_list_of_one(family: str) -> None:
    """``block_size: [16]`` of a drafter became an array of its GGUF, which llama.cpp does not read."""
    rows = [row for row in FAMILIES[family].parameters.values() if row.is_single]
    cells = [(row.name, cell.key) for row in rows for cell in row.key_cells("hf") if not (cell.unread or cell.instead)]
    for case in cases(family):
        document = case.recorded.get("config", {})
        said = {(name, key): ConfigSource(document).value(key) for name, key in cells}
        for (name, key), value in said.items():
            if isinstance(value, int | float) and "." not in key:
                source = ConfigSource({**document, key: [value]})
                readers = [reader for reader in ("transformers", "mlx_lm") if _reads(family, name, key, reader)]
                for reader in readers:
                    with pytest.raises((ParameterError, ExpressionError)):
                        Values(FAMILIES[family], source, reader)[name]


def _reads(family: str, name: str, key: str, reader: str) -> bool:
    cells = FAMILIES[family].parameters[name].key_cells("hf")
    return FAMILIES[family].parameters[name].value is None and any(
        cell.key == key and READERS[reader][0] in cell.readers and (cell.read is None or "it" in cell.read.names)
        for cell in cells
    )
