"""Layers that predict further tokens in directories of mlx-vlm, which drafts with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from checkpoints import save_file
from conftest import Result
from family_cases import cases, checkpoint
from family_directions import differing, read_gguf
from outputs import contents
from safetensors import deserialize
from safetensors.numpy import load_file
from test_draft_logits import drafted
from test_mlx_vlm import raw
from test_numpy_logits import read
from tower_cases import seen_by_mlx_vlm, with_tokens

from ckconv.api import convert, convert_tower, verify
from ckconv.core.options import Options

CASES = ("qwen3_5-f16", "qwen3_5_moe-bf16")
DRAFTS = "mtp.safetensors"


def drafting(name: str) -> Any:
    """A recorded model, and behind its last layer another one, as released files call it."""
    recorded = seen_by_mlx_vlm(name)
    config, tensors = recorded["config"]["text_config"], recorded["tensors"]
    last, width = f"model.language_model.layers.{config['num_hidden_layers'] - 1}.", config["hidden_size"]
    kind = next(iter(tensors.values()))[0]
    layer = {key.replace(last, "mtp.layers.0."): one for key, one in tensors.items() if key.startswith(last)}
    norms = {f"mtp.{one}.weight": [kind, [width]] for one in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}
    tensors |= {**layer, **norms, "mtp.fc.weight": [kind, [width, 2 * width]]}
    config["mtp_num_hidden_layers"] = 1
    return json.loads(json.dumps(recorded))


def names_in(file: Path) -> list[str]:
    """Names of tensors."""
    return [name for name, _ in deserialize(file.read_bytes())]


def wide(name: str) -> Any:
    """The same of rows that are whole groups."""
    recorded = drafting(name)
    sizes = {24: 64, 40: 96, 192: 512, 48: 128, 96: 256}
    for key, (_, shape) in recorded["tensors"].items():
        if "visual" not in key or "merger.linear_fc2" in key:
            shape[:] = [sizes.get(size, size) for size in shape]
    text = recorded["config"]["text_config"]
    text |= {"hidden_size": 64, "head_dim": 64, "intermediate_size": 96}
    text["rope_parameters"]["mrope_section"] = [4, 2, 2]
    recorded["config"]["vision_config"]["out_hidden_size"] = 64
    return recorded


@pytest.mark.parametrize("name", CASES)
def test_they_stand_in_a_file_of_their_own_and_come_back(
    name: str, ckconv: Callable[..., Result], tmp_path: Path
) -> None:
    source = with_tokens(drafting(name), tmp_path / "source")

    convert(source, f"{tmp_path}/mlx/", to="mlx")
    convert(tmp_path / "mlx", f"{tmp_path}/back/", to="hf")
    convert(tmp_path / "mlx", f"{tmp_path}/copy/", to="mlx")
    for of in ("source", "mlx"):
        convert(tmp_path / of, tmp_path / f"{of}.gguf")

    stored, before, after = read(tmp_path / "mlx", DRAFTS), read(source), read(tmp_path / "back")
    assert [key for key in stored if not key.startswith("mtp.")] == []
    assert not [key for key in raw(tmp_path / "mlx") if "mtp." in key]
    plain = {key for key in stored if ".switch_mlp." not in key}  # as Qwen3_5MTPDraftModel.sanitize makes them
    assert plain == {key for key in before if key.startswith("mtp.") and ".experts." not in key}
    assert [key for key in plain if not np.array_equal(stored[key], before[key] + (before[key].ndim == 1))] == []
    assert before.keys() == after.keys()
    assert [key for key in before if not np.array_equal(before[key], after[key])] == []
    assert json.loads((tmp_path / "back" / "config.json").read_text())["text_config"]["mtp_num_hidden_layers"] == 1
    wanted, found = (read_gguf(tmp_path / f"{of}.gguf") for of in ("source", "mlx"))
    assert (differing(wanted["tensors"], found["tensors"]), differing(wanted["keys"], found["keys"])) == ("", "")
    for one, other in (("mlx", "source"), ("back", "mlx"), ("copy", "mlx"), ("mlx.gguf", "mlx")):
        verify(tmp_path / one, tmp_path / other)
    assert ckconv("diff", tmp_path / "mlx", source).code == 0


@pytest.mark.parametrize("name", CASES)
def test_two_files_become_the_directory(name: str, tmp_path: Path) -> None:
    source = with_tokens(drafting(name), tmp_path / "source")
    convert(source, f"{tmp_path}/mlx/", to="mlx")
    convert(source, tmp_path / "text.gguf")
    convert_tower(source, tmp_path / "mmproj.gguf")

    convert(tmp_path / "text.gguf", f"{tmp_path}/out/", to="mlx", mmproj=tmp_path / "mmproj.gguf")

    one, other = (read(tmp_path / folder, DRAFTS) for folder in ("mlx", "out"))
    assert one.keys() == other.keys()
    assert [key for key in one if not np.array_equal(one[key], other[key])] == []
    verify(tmp_path / "out", tmp_path / "text.gguf", mmproj=tmp_path / "mmproj.gguf")


def test_a_source_record_gives_the_directory_back(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    source = with_tokens(drafting("qwen3_5-f16"), tmp_path / "source")
    convert(source, f"{tmp_path}/mlx/", to="mlx")

    two = (tmp_path / "x.gguf", tmp_path / "m.gguf")
    done = ckconv("convert", tmp_path / "mlx", two[0], "--mmproj", two[1], "--source-record")
    back = ckconv("convert", *two, f"{tmp_path}/back/", "--to", "mlx")

    assert (done.code, back.code) == (0, 0), done.err + back.err
    assert contents(tmp_path / "back") == contents(tmp_path / "mlx")


@pytest.mark.parametrize("asked", ["affine:8:32", "mxfp4"])
@pytest.mark.parametrize("name", CASES)
def test_they_are_quantized_as_the_model_is(name: str, asked: str, tmp_path: Path) -> None:
    """Rows of 32 in one type are rows of 64 in another, which the configuration says by a product alone."""
    source = with_tokens(wide(name), tmp_path / "source")

    convert(source, f"{tmp_path}/mlx/", to="mlx", options=Options(quantize=asked))
    convert(tmp_path / "mlx", f"{tmp_path}/back/", to="hf", options=Options(dequantize=True))
    convert(tmp_path / "mlx", f"{tmp_path}/copy/", to="mlx")

    assert contents(tmp_path / "copy") == contents(tmp_path / "mlx")
    scaled = {name for name in names_in(tmp_path / "mlx" / DRAFTS) if name.endswith(".scales")}
    assert {"mtp.fc.scales", "mtp.layers.0.self_attn.q_proj.scales"} < scaled
    verify(tmp_path / "mlx", source, options=Options(quantize=asked))
    verify(tmp_path / "back", tmp_path / "mlx", options=Options(dequantize=True))


@pytest.mark.parametrize("asked", ["", "affine:8:32"])
def test_a_key_of_the_document_is_set_in_a_copy(asked: str, ckconv: Callable[..., Result], tmp_path: Path) -> None:
    """It was refused, as if it said which layers have which tensors: those of the tower were counted on one side."""
    source = with_tokens(wide("qwen3_5-f16"), tmp_path / "source")
    convert(source, f"{tmp_path}/mlx/", to="mlx", options=Options(quantize=asked))

    done = ckconv("convert", tmp_path / "mlx", f"{tmp_path}/copy/", "--to", "mlx", "--set-meta", "text_config.x=2")
    edited = ckconv("edit", tmp_path / "mlx", f"{tmp_path}/edited/", "--drop-meta", "tie_word_embeddings")

    assert (done.code, edited.code) == (0, 0), done.err + edited.err
    assert json.loads((tmp_path / "copy" / "config.json").read_text())["text_config"]["x"] == 2
    assert ckconv("verify", tmp_path / "copy", tmp_path / "mlx", "--set-meta", "text_config.x=2").code == 0


@pytest.mark.parametrize("flag", ["mtp", "tower"])
def test_a_flag_leaves_them_out_and_so_does_a_text_model_alone(
    flag: str, ckconv: Callable[..., Result], tmp_path: Path
) -> None:
    source = with_tokens(drafting("qwen3_5-f16"), tmp_path / "source")

    done = ckconv("convert", source, f"{tmp_path}/out/", "--to", "mlx", "--drop", flag)

    assert done.code == 0, done.err
    assert not (tmp_path / "out" / DRAFTS).exists()
    assert ("the target has no place for them" in done.out) == (flag == "tower")
    assert ckconv("verify", tmp_path / "out", source, "--drop", flag).code == 0


def test_a_tensor_of_theirs_that_is_gone_or_another_is_found(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    source = with_tokens(drafting("qwen3_5-f16"), tmp_path / "source")
    convert(source, f"{tmp_path}/mlx/", to="mlx")
    file = tmp_path / "mlx" / DRAFTS
    whole = load_file(file)

    for number, name in enumerate(whole):
        other = {name: whole[name] * 2 + 1} if number % 2 else {}
        save_file(file, {key: one for key, one in whole.items() if key != name} | other, {"format": "mlx"})
        assert ckconv("verify", tmp_path / "mlx", source).code in (3, 5), name
    file.unlink()
    assert ckconv("verify", tmp_path / "mlx", source).code in (3, 5)


@pytest.mark.live
@pytest.mark.parametrize("asked", ["", "affine:8:32"])
@pytest.mark.parametrize("name", CASES)
def test_mlx_vlm_drafts_what_a_layer_of_transformers_computes(name: str, asked: str, tmp_path: Path) -> None:
    mx, utils = pytest.importorskip("mlx.core"), pytest.importorskip("mlx_vlm.utils")
    loading = pytest.importorskip("mlx_vlm.speculative.drafters")
    recorded = wide(name) if asked else drafting(name)
    source = with_tokens(recorded, tmp_path / "source")
    convert(source, f"{tmp_path}/mlx/", to="mlx", options=Options(dtype="f32", quantize=asked))
    convert(tmp_path / "mlx", f"{tmp_path}/back/", to="hf", options=Options(dequantize=bool(asked)))
    text = recorded["config"]["text_config"]
    tokens = [(7 * i * i + 3 * i + 5) % 370 for i in range(12)]
    states = np.random.default_rng(0).normal(size=(12, text["hidden_size"]))

    target = utils.load_model(tmp_path / "mlx")
    draft, kind = loading.load_drafter(str(tmp_path / "mlx"))
    hidden = mx.array(states.astype(np.float32))[None]
    draft.reset(target)
    draft.prefill_from_target_hidden(mx.array([[0, *tokens[:-1]]]), hidden, tokens[-1], None, greedy=True)
    first = draft.draft_block(tokens[-1], hidden[:, -1:], None, 2, None, greedy=True).item()
    draft.reset(target)
    rows = np.array(draft._lm_head_fn(draft._forward_tokens(mx.array([tokens]), hidden, mx.int32)))[0]

    case = SimpleNamespace(family="", recorded={"config": text}, tokens=tokens)
    own = {key.replace("model.language_model.", "model."): one for key, one in read(tmp_path / "back").items()}
    text_alone = {key: one for key, one in own.items() if ".visual." not in key}
    expected = drafted(case, text_alone, states, tmp_path / "layer")
    assert (kind, first, np.abs(rows - expected).max() < 1e-4) == ("mtp", expected[-1].argmax(), True)


#: Text models whose layers mlx-vlm's drafters do not load as transformers 5 saves them -> what each stops at.
STOPS = {
    "qwen3_next": (ValueError, "mrope_section"),
    "glm_moe_dsa": (ValueError, "parameters not in model"),
    "glm4_moe_lite": (AttributeError, "no attribute 'Model'"),
}


@pytest.mark.live
@pytest.mark.parametrize("family", STOPS)
def test_what_mlx_vlm_stops_at_is_what_is_said_of_it(family: str, tmp_path: Path) -> None:
    loading = pytest.importorskip("mlx_vlm.speculative.drafters")
    case = next(case for case in cases(family) if case.name == "drafts")
    folder = checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    kind, said = STOPS[family]
    document = json.loads((folder / "config.json").read_text())
    released = {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1}  # which a class wants
    (folder / "config.json").write_text(json.dumps(released | document))

    with pytest.raises(kind, match=said):
        loading.load_drafter(str(folder))
    assert convert(folder, f"{tmp_path}/mlx/", to="mlx").plan.left_out


@pytest.mark.live
def test_mlx_vlm_loads_an_assistant_as_the_checkpoint_has_it(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    """Strictly; what is made for MLX is refused with that way out."""
    loading, utils = pytest.importorskip("mlx_vlm.speculative.drafters"), pytest.importorskip("mlx.utils")
    case = next(case for case in cases("gemma4_assistant") if case.name == "plain")
    source = checkpoint(case.recorded, tmp_path / "source", case.tokenizer)
    convert(source, tmp_path / "m.gguf")

    for made_of in (source, tmp_path / "m.gguf"):
        refused = ckconv("convert", made_of, f"{tmp_path}/mlx/", "--to", "mlx")
        assert (refused.code, "as it is (--to hf)" in refused.err) == (4, True), refused.err
        assert ckconv("convert", made_of, f"{tmp_path}/hf/", "--to", "hf", "--force").code == 0
        draft, kind = loading.load_drafter(f"{tmp_path}/hf")
        stored, loaded = read(tmp_path / "hf"), dict(utils.tree_flatten(draft.parameters()))
        assert (kind, loaded.keys()) == ("mtp", stored.keys())
        assert [key for key, one in loaded.items() if not np.array_equal(np.array(one), stored[key])] == []
