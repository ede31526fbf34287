"""Configurations of models that see as they were released, and what in them llama.cpp computes otherwise."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_copies import gguf_copy
from tower_cases import checkpoint, recorded_tower, recordings, with_tokens

from ckconv import Options
from ckconv.api import convert, convert_tower
from ckconv.errors import CkconvError
from ckconv.families.huggingface_config import huggingface_config, huggingface_family
from ckconv.families.towers import tower_of_document

RECORDED = recordings()

#: llava-hf/llava-1.5-7b-hf and mistral-community/pixtral-12b: what their config.json says of the text part.
TEXTS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "llava": (
        {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096, "model_type": "llama",
         "rms_norm_eps": 1e-05, "torch_dtype": "float16", "vocab_size": 32064},
        (4096, 32, 32, 32, 11008, 128),
    ),
    "pixtral": (
        {"head_dim": 128, "hidden_size": 5120, "intermediate_size": 14336, "is_composition": True,
         "max_position_embeddings": 1024000, "model_type": "mistral", "num_hidden_layers": 40, "num_key_value_heads": 8,
         "rms_norm_eps": 1e-05, "rope_theta": 1000000000.0, "sliding_window": None, "vocab_size": 131072},
        (5120, 40, 32, 8, 14336, 128),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_part_that_leaves_out_sizes_has_those_of_its_class(name: str) -> None:
    text, sizes = TEXTS[name]
    document = {"model_type": "llava", "text_config": text}
    family = huggingface_family(document)
    assert family is not None

    config = huggingface_config(document, family, (), Path(name))

    made = (config.hidden_size, config.num_layers, config.num_heads, config.num_kv_heads, config.ffn_size)
    assert (*made, config.head_dim) == sizes


#: What ``from_pretrained`` of transformers 5.24 does with a checkpoint without a head whose text part says true, false
#: and nothing of ``tie_word_embeddings``, for each of true, false and nothing in the whole: T ties it, - makes one up.
TIED = {
    "TTT------": ("qwen3_vl-f16", "qwen3_vl_moe-f16", "qwen3_5-f16", "qwen3_5_moe-bf16", "smolvlm-f16", "idefics3-f16",
                  "exaone4_5-f16", "minicpmv4_6-f16"),
    "TTT---TTT": ("gemma3-f16", "gemma4-f16", "gemma4_hearing-f16", "internvl-f16", "internvl-bf16", "janus-f16",
                  "gemma4_unified-f16", "lfm2_vl-f16", "lighton_ocr-f16", "mistral3-f16"),
    "TTTT--T--": ("llava-f16", "pixtral-f16", "qwen2_vl-f16", "qwen2_5_vl-f32"),
    "TTTT-TTTT": ("paddleocr_vl-f16",),
    "T--T--T--": ("llama4-f16",),
    "---------": ("audioflamingo3-bf16", "qwen2_audio-bf16", "voxtral-bf16"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "row"), [(name, row) for row, names in TIED.items() for name in names])
def test_a_head_is_tied_by_what_the_class_asks(name: str, row: str) -> None:
    made = ""
    for whole, text in product((True, False, None), repeat=2):
        document = recorded_tower(name)["config"]
        for table, said in ((document, whole), (document["text_config"], text)):
            table.pop("tie_word_embeddings", None)
            table.update({} if said is None else {"tie_word_embeddings": said})
        family = huggingface_family(document)
        assert family is not None
        made += "T" if huggingface_config(document, family, (), Path(name)).tied else "-"
    assert made == row


@pytest.mark.parametrize(
    ("name", "key"),
    [("qwen3_vl-f16", "tie_word_embeddings"), ("llama4-f16", "text_config.tie_word_embeddings"), ("voxtral-bf16", "")],
)
def test_a_lost_head_is_said_with_the_key_that_would_tie_it(name: str, key: str, tmp_path: Path) -> None:
    recorded = recorded_tower(name)
    recorded["tensors"] = {name: kind for name, kind in recorded["tensors"].items() if "lm_head" not in name}
    with pytest.raises(CkconvError, match="there is none") as info:
        convert(checkpoint(recorded, tmp_path / "hf"), tmp_path / "model.gguf")
    assert info.value.hint == (f'"{key}": true in config.json says that it is' if key else None)


def test_a_whole_that_does_not_tie_needs_a_head_whatever_the_text_part_says(tmp_path: Path) -> None:
    recorded = recorded_tower("gemma3-f16")
    recorded["config"]["tie_word_embeddings"] = False
    with pytest.raises(CkconvError, match="not tied to the embeddings"):
        convert(checkpoint(recorded, tmp_path / "hf"), tmp_path / "model.gguf")


def test_a_copy_without_a_head_says_no_more_than_its_source(tmp_path: Path) -> None:
    recorded = recorded_tower("qwen3_vl-f16")
    recorded["tensors"] = {name: kind for name, kind in recorded["tensors"].items() if "lm_head" not in name}
    recorded["config"].pop("tie_word_embeddings")
    convert(checkpoint(recorded, tmp_path / "hf"), f"{tmp_path}/copy/", to="safetensors")
    assert "tie_word_embeddings" not in json.loads((tmp_path / "copy" / "config.json").read_text())


@pytest.mark.parametrize(("whole", "text"), [(False, None), (None, False)])
def test_paddles_model_is_tied_unless_both_say_that_it_is_not(
    whole: bool | None, text: bool | None, tmp_path: Path
) -> None:
    recorded = recorded_tower("paddleocr_vl-f16")
    for table, said in ((recorded["config"], whole), (recorded["config"]["text_config"], text)):
        table.pop("tie_word_embeddings")
        table.update({} if said is None else {"tie_word_embeddings": said})
    convert(checkpoint(recorded, tmp_path / "hf"), tmp_path / "model.gguf")
    assert "output.weight" not in {tensor.name for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}


@pytest.mark.parametrize(
    ("vision", "name"),
    [
        ({"model_type": "clip_vision_model"}, "llava"),
        ({"model_type": "pixtral"}, "pixtral"),
        ({"model_type": "siglip_vision_model"}, ""),
    ],
)
def test_a_llava_sees_with_what_its_vision_config_names(vision: dict[str, Any], name: str) -> None:
    family = tower_of_document({"model_type": "llava", "vision_config": vision})
    assert (family.name if family else "") == name


def test_qwens_flat_document_is_the_same_model(tmp_path: Path) -> None:
    recorded = recorded_tower("qwen2_5_vl-bf16")
    convert(checkpoint(recorded, tmp_path / "nested"), tmp_path / "nested.gguf")
    convert_tower(tmp_path / "nested", tmp_path / "nested-mmproj.gguf")
    text = recorded["config"].pop("text_config")
    rope = text.pop("rope_parameters")
    scaling = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    recorded["config"] = {**text, **recorded["config"], "rope_theta": rope["rope_theta"], "rope_scaling": scaling}

    convert(checkpoint(recorded, tmp_path / "flat"), tmp_path / "flat.gguf")
    convert_tower(tmp_path / "flat", tmp_path / "flat-mmproj.gguf")

    for end in (".gguf", "-mmproj.gguf"):
        one, other = (gguf.GGUFReader(tmp_path / f"{name}{end}") for name in ("nested", "flat"))
        said = [
            {key: field.contents() for key, field in each.fields.items() if not key.startswith("general.")}
            for each in (one, other)
        ]
        assert said[0] == said[1]
        assert [t.data.tobytes() for t in one.tensors] == [t.data.tobytes() for t in other.tensors]


OTHERWISE: list[tuple[str, dict[str, Any], str]] = [
    ("llava-f16", {"vision_feature_select_strategy": "full"}, "leaves out what CLIP makes of the whole picture"),
    ("llava-f16", {"projector_hidden_act": "relu"}, "projector_act of the tower is 'relu'"),
    ("llava-f16", {"vision_config.hidden_act": "silu"}, "hidden_act of the tower is silu"),
    ("llava-f16", {"vision_feature_layer": [-2, -1]}, r"sees 2 layers of the tower \(vision_feature_layer\)"),
    ("pixtral-f16", {"vision_feature_layer": -2}, "what the last layer makes, and vision_feature_layer is -2"),
    ("pixtral-f16", {"vision_feature_select_strategy": "default"}, "vision_feature_select_strategy is default"),
    ("pixtral-bf16", {"vision_config.head_dim": 4}, "turns 4 elements of a head"),
    ("pixtral-bf16", {"vision_config.rope_parameters": {"rope_theta": 5e5}}, "500000.0.* changes the computation"),
    ("mistral3-f16", {"text_config.rms_norm_eps": 1e-6}, "rms_norm_eps of the text model, 1e-06"),
    ("gemma3-f16", {"vision_config.intermediate_size": 16}, "two matrices of an MLP for each other"),
    ("ultravox-f16", {"audio_latency_block_size": 100}, r"hears in blocks of 100 frames \(audio_latency_block_size\)"),
    ("internvl_chat-bf16", {"force_image_size": 32}, r"cut to 32 elements \(force_image_size\)"),
    ("pixtral-f16", {"multimodal_projector_bias": False}, r"there is a projector.up.bias, and the class has none"),
    ("gemma4-f16", {"text_config.use_bidirectional_attention": None}, "but for E2B and E4B, and .* is None"),
    ("gemma4_hearing-bf16", {"audio_config.attention_chunk_size": 24}, "attention_chunk_size of the tower is 24"),
    ("gemma4_hearing-bf16", {"audio_config.rms_norm_eps": 1e-5}, "llama.cpp computes with 1e-06"),
    ("gemma4_hearing-bf16", {"audio_config.hidden_act": "gelu"}, "ear_act of the tower is 'gelu', and .* 'silu'"),
    ("gemma4_unified-f16", {"audio_config.rms_norm_eps": 1e-5}, "llama.cpp computes with 1e-06"),
    ("gemma4_unified-f16", {"text_config.use_bidirectional_attention": None}, "use_bidirectional_attention is None"),
    ("gemma4_unified-f16", {"vision_config.output_proj_dims": 24}, "seen of the tower is 24"),
    *(
        (f"{name}-f16", {"prepared.do_normalize": None}, "do_normalize = False .* image_std .* are the same to both")
        for name in ("gemma4", "gemma4_unified")
    ),
    ("gemma3n-bf16", {"text_config.hidden_size": 24}, "the width of the tower, 128, for that of the text model, .* 24"),
    ("qwen3_vl-f16", {"vision_config.hidden_act": "{gelu}"}, r"act of the tower is '\{gelu\}'"),
]


@pytest.mark.parametrize(("name", "keys", "why"), OTHERWISE)
def test_what_llama_cpp_computes_otherwise_is_refused(
    name: str, keys: dict[str, Any], why: str, tmp_path: Path
) -> None:
    recorded = recorded_tower(name)
    for path, value in keys.items():
        table, _, key = path.rpartition(".")
        {**recorded["config"], "": recorded["config"], "prepared": recorded["prepared"]}[table][key] = value
    if keys.get("vision_feature_layer") == [-2, -1]:  # both beside each other
        recorded["tensors"]["multi_modal_projector.linear_1.weight"][1] = [24, 32]
    if "text_config.hidden_size" in keys:
        for part in ("vision", "audio"):
            recorded["tensors"][f"model.embed_{part}.embedding_projection.weight"][1][0] = 24
    if "vision_config.intermediate_size" in keys:
        for tensor, (_, shape) in recorded["tensors"].items():
            if tensor.startswith("vision_tower.") and ".mlp." in tensor:
                shape[:] = [min(size, 16) for size in shape]

    with pytest.raises(CkconvError, match=why) as caught:
        convert_tower(checkpoint(recorded, tmp_path / "source"), tmp_path / "mmproj.gguf")

    assert (caught.value.code, caught.value.exit_code) == ("plan.refused", 4)


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("gemma4-bf16", "vision_tower.encoder.layers.1.mlp.up_proj.output_min"),
        ("gemma4_hearing-bf16", "audio_tower.layers.0.lconv1d.linear_end.input_min"),
    ],
)
def test_what_is_kept_above_more_than_below_is_refused_where_ggml_is(name: str, limit: str, tmp_path: Path) -> None:
    """``torch.clamp`` and ``mx.clip`` give the most then, ggml's CPU the least."""
    recorded = recorded_tower(name)
    whole = checkpoint(recorded, tmp_path / "plain")
    convert(whole, tmp_path / "text.gguf")
    convert_tower(whole, tmp_path / "mmproj.gguf")
    recorded["tensors"][f"model.{limit}"][2] = 2.0
    source = with_tokens(recorded, tmp_path / "source")

    with pytest.raises(CkconvError, match=r"_min is .*, above the .* of its maximum: .* on a CPU the minimum") as info:
        convert_tower(source, tmp_path / "other.gguf")
    assert str(info.value.hint).endswith("for both every program computes the maximum")
    convert(source, f"{tmp_path}/mlx/", to="mlx")

    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "mmproj.gguf").tensors}
    least = next(name for name in tensors if name.endswith("_min"))
    gguf_copy(tmp_path / "mmproj.gguf", tmp_path / "two.gguf", tensors={least: tensors[least] + np.float32(4)})
    with pytest.raises(CkconvError, match=r"_min is .*, above the .* of its maximum"):
        convert(tmp_path / "text.gguf", f"{tmp_path}/out/", mmproj=tmp_path / "two.gguf")


_AS_IT_IS = {"image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0]}
#: What released documents say in words of transformers 4, or leave out (...) -> how a class of transformers 5 says it.
SAME: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("gemma4-f16", {"vision_config.rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}}, {}),
    ("mistral3-f16", {"vision_config.rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}, {}),
    ("qwen3_vl-f16", {"vision_config.rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}, {}),
    ("gemma4_unified-f16", {"text_config.use_bidirectional_attention": ...}, {}),
    ("gemma4-f16", {}, {"do_normalize": False, **_AS_IT_IS}),
    ("gemma4-f16", {}, {"do_normalize": ..., **_AS_IT_IS}),
    ("gemma4_unified-f16", {}, {"do_normalize": ..., **_AS_IT_IS}),
]


@pytest.mark.parametrize(("name", "keys", "prepared"), SAME)
def test_what_released_documents_say_is_no_other_model(
    name: str, keys: dict[str, Any], prepared: dict[str, Any], tmp_path: Path
) -> None:
    made = []
    for place, said, pixels in (("one", {}, {**prepared, "do_normalize": True}), ("other", keys, prepared)):
        recorded = recorded_tower(name)
        for path, value in said.items():
            table, _, key = path.rpartition(".")
            recorded["config"][table][key] = value
        recorded["prepared"] |= pixels
        for said in (*recorded["config"].values(), recorded["prepared"]):
            for key in [key for key, value in said.items() if value is ...] if isinstance(said, dict) else ():
                del said[key]
        (tmp_path / place).mkdir()
        convert_tower(with_tokens(recorded, tmp_path / place / "source"), tmp_path / f"{place}.gguf")
        made.append((tmp_path / f"{place}.gguf").read_bytes())
    assert made[0] == made[1]


@pytest.mark.parametrize("name", ["idefics3-f16", "smolvlm-bf16"])
def test_keys_of_a_text_model_where_its_class_does_not_look_are_said(name: str, tmp_path: Path) -> None:
    """The class takes a Llama of 4,096 elements for a text model of which nothing is said."""
    recorded = recorded_tower(name)
    recorded["config"] = {**recorded["config"].pop("text_config"), **recorded["config"]}
    source = with_tokens(recorded, tmp_path / "source")

    for target, to in (("text.gguf", None), ("mlx/", "mlx")):
        with pytest.raises(CkconvError, match=r"config.json has no text_config, where the class of an? .* alone"):
            convert(source, f"{tmp_path}/{target}", to=to)


def test_positions_that_llama_cpp_would_look_for_in_vain_are_refused(tmp_path: Path) -> None:
    """libmtmd ends with an assertion of ggml's at the first picture."""
    recorded = recorded_tower("minicpmv4_6-f16")
    recorded["config"]["vision_config"]["image_size"] = 16
    recorded["tensors"]["model.vision_tower.embeddings.position_embedding.weight"][1][0] = 16

    with pytest.raises(CkconvError, match=r"positions for 70 patches a side, and this tower is of 16 elements in .* 4"):
        convert_tower(checkpoint(recorded, tmp_path / "source"), tmp_path / "mmproj.gguf")


def test_a_voxtral_hears_in_no_llama_cpp(tmp_path: Path) -> None:
    """``tests/test_libmtmd.py`` runs it; without ``--mmproj``, as the hint says, the text model is written."""
    source = checkpoint(RECORDED["voxtral-bf16"], tmp_path / "source")

    with pytest.raises(CkconvError, match="halves the frames before it joins four") as info:
        convert_tower(source, tmp_path / "mmproj.gguf")
    assert (info.value.exit_code, info.value.hint) == (4, "without --mmproj the text model is written alone")
    assert all("--mmproj" not in note for note in convert(source, tmp_path / "m.gguf").plan.notes)


@pytest.mark.parametrize("name", ["idefics3-f16", "smolvlm-bf16"])
def test_heads_of_a_size_that_mlx_vlm_does_not_read_are_refused(name: str, tmp_path: Path) -> None:
    recorded = recorded_tower(name)
    recorded["config"]["text_config"]["head_dim"] = 8
    for tensor, (_, shape) in recorded["tensors"].items():
        if ".text_model." in tensor and ".self_attn." in tensor:
            axis = int(".o_proj." in tensor)
            shape[axis] = shape[axis] // 6 * 8

    with pytest.raises(CkconvError, match=r"takes hidden / heads of the text model for the size of a head, not 8"):
        convert(with_tokens(recorded, tmp_path / "source"), f"{tmp_path}/out/", to="mlx")


def test_a_checkpoint_of_a_gemma_4s_files_attends_as_llama_cpp_does_within_a_picture(tmp_path: Path) -> None:
    source = with_tokens(RECORDED["gemma4-f16"], tmp_path / "source")
    convert(source, tmp_path / "text.gguf")
    convert_tower(source, tmp_path / "mmproj.gguf")

    convert(tmp_path / "text.gguf", f"{tmp_path}/out/", mmproj=tmp_path / "mmproj.gguf")

    said = json.loads((tmp_path / "out" / "config.json").read_text())
    assert said["text_config"]["use_bidirectional_attention"] == "vision"


@pytest.mark.parametrize("stale", [None, 7])
def test_ids_of_a_text_config_are_not_those_of_the_whole(stale: int | None, tmp_path: Path) -> None:
    """Qwen 2.5 VL as transformers 4.52 and later saved it."""
    recorded = recorded_tower("qwen2_5_vl-f32")
    recorded["config"]["text_config"] |= {"image_token_id": stale, "video_token_id": stale}
    source = with_tokens(recorded, tmp_path / "source")

    convert(source, f"{tmp_path}/out/", to="mlx")

    made, wanted = (json.loads((root / "config.json").read_text()) for root in (tmp_path / "out", source))
    assert made["image_token_id"] == wanted["image_token_id"] is not None


def test_a_flat_document_is_known_to_have_a_tower(tmp_path: Path) -> None:
    recorded = recorded_tower("qwen2_5_vl-f32")
    recorded["config"] |= recorded["config"].pop("text_config") | {"model_type": "qwen2_5_vl"}

    report = convert(checkpoint(recorded, tmp_path / "source"), tmp_path / "text.gguf")

    assert [note for note in report.plan.notes if "no known class" in note] == []


@pytest.mark.parametrize("kind", ["yarn", "default"])
def test_a_ministral_3_turns_by_yarn_in_mlx_vlm(kind: str, tmp_path: Path) -> None:
    recorded = recorded_tower("mistral3-bf16")
    yarn = {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    yarn |= {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16, "type": "yarn"}
    more = yarn if kind == "yarn" else {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16}
    recorded["config"]["text_config"] |= {"model_type": "ministral3", "head_dim": 6}
    recorded["config"]["text_config"]["rope_parameters"] = {"rope_theta": 1e6, "rope_type": kind, **more}
    source = with_tokens(recorded, tmp_path / "source")

    if kind == "yarn":
        convert(source, f"{tmp_path}/out/", to="mlx")
        said = json.loads((tmp_path / "out" / "config.json").read_text())["text_config"]
        assert {**said["rope_parameters"], **yarn} == said["rope_parameters"]
    else:
        with pytest.raises(CkconvError, match="ckconv knows mlx-lm's ministral3 with YaRN only"):
            convert(source, f"{tmp_path}/out/", to="mlx")


@pytest.mark.parametrize(
    ("name", "table", "key", "value", "why"),
    [
        ("llava-f16", "vision_config", "hidden_size", [16, 16], r"hidden_size must be one number.*, got \[16, 16\]"),
        ("ultravox-f16", "audio_config", "encoder_attention_heads", -2, "must be one number that is not negative"),
        ("qwen2_5_vl-f32", "vision_config", "spatial_merge_size", "x", "no arithmetic with 14 and 'x'"),
        ("lfm2_vl-f16", "", "projector_use_layernorm", "x", "projector_use_layernorm must be true or false, got 'x'"),
        ("qwen3_vl-f16", "vision_config", "deepstack_visual_indexes", "x", "must be a list of numbers, got 'x'"),
        ("glm4v-f16", "vision_config", "attention_bias", 0, "attention_bias must be true or false, got 0"),
    ],
)
def test_what_is_no_number_is_malformed(
    name: str, table: str, key: str, value: object, why: str, tmp_path: Path
) -> None:
    recorded = recorded_tower(name)
    (recorded["config"][table] if table else recorded["config"])[key] = value

    with pytest.raises(CkconvError, match=why) as caught:
        convert_tower(checkpoint(recorded, tmp_path / "source"), tmp_path / "mmproj.gguf")

    assert (caught.value.code, caught.value.exit_code) == ("model.config", 3)
    assert not (tmp_path / "mmproj.gguf").exists()


def test_a_word_that_the_class_of_a_tower_does_not_read_is_none_of_its_file(tmp_path: Path) -> None:
    recorded = recorded_tower("dots_ocr-f16")
    convert_tower(checkpoint(recorded, tmp_path / "1" / "source"), tmp_path / "one.gguf")
    recorded["config"]["vision_config"]["model_type"] = "another"

    convert_tower(checkpoint(recorded, tmp_path / "2" / "source"), tmp_path / "other.gguf")

    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "other.gguf").read_bytes()


def test_a_layer_that_is_counted_from_the_first_one_is_the_same(tmp_path: Path) -> None:
    recorded = recorded_tower("llava-f16")
    convert_tower(checkpoint(recorded, tmp_path / "source"), tmp_path / "last.gguf")
    recorded["config"]["vision_feature_layer"] = 2

    convert_tower(checkpoint(recorded, tmp_path / "other"), tmp_path / "first.gguf")

    one, other = (gguf.GGUFReader(tmp_path / name) for name in ("last.gguf", "first.gguf"))
    assert [t.data.tobytes() for t in one.tensors] == [t.data.tobytes() for t in other.tensors]
    assert one.fields["clip.vision.feature_layer"].contents() == other.fields["clip.vision.feature_layer"].contents()


def test_halves_whose_projectors_norm_differs_are_refused(tmp_path: Path) -> None:
    recorded = recorded_tower("mistral3-f16")
    convert_tower(with_tokens(recorded, tmp_path / "source"), tmp_path / "mmproj.gguf")
    recorded["config"]["text_config"]["rms_norm_eps"] = 1e-6
    convert(with_tokens(recorded, tmp_path / "other"), tmp_path / "text.gguf")

    with pytest.raises(CkconvError, match=r"rms_norm_eps of the text model, 1e-06, for the projector's norm"):
        convert(tmp_path / "text.gguf", f"{tmp_path}/out/", mmproj=tmp_path / "mmproj.gguf")


def test_a_word_of_another_text_model_is_found(tmp_path: Path) -> None:
    recorded = recorded_tower("pixtral-f16")
    source = with_tokens(recorded, tmp_path / "source")
    convert(source, tmp_path / "text.gguf")
    convert_tower(source, tmp_path / "mmproj.gguf")
    reader = gguf.GGUFReader(tmp_path / "mmproj.gguf", "r+")
    word = next(tensor for tensor in reader.tensors if tensor.name == "v.token_embd.img_break")
    word.data[3] += 1
    reader.data.flush()

    with pytest.raises(CkconvError) as caught:
        convert(tmp_path / "text.gguf", f"{tmp_path}/out/", mmproj=tmp_path / "mmproj.gguf")

    assert (caught.value.code, caught.value.exit_code) == ("verify.tensor", 5)


def test_a_quantized_text_model_has_its_own_word(tmp_path: Path) -> None:
    recorded = recorded_tower("pixtral-f16")
    wider = {24: 32, 12: 16, 40: 64}
    recorded["config"]["text_config"] |= {"hidden_size": 32, "intermediate_size": 64, "head_dim": 8}
    for _, shape in recorded["tensors"].values():
        shape[:] = [wider.get(size, size) for size in shape]
    source = with_tokens(recorded, tmp_path / "source")
    convert(source, tmp_path / "text.gguf", options=Options(quantize="Q8_0"))
    convert_tower(source, tmp_path / "mmproj.gguf")

    report = convert(
        tmp_path / "text.gguf", f"{tmp_path}/out/", mmproj=tmp_path / "mmproj.gguf", options=Options(dequantize=True)
    )

    assert [left.name for left in report.plan.left_out] == ["tower.line_break"]
    assert report.verified
