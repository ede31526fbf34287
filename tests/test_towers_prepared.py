"""Keys that say how pictures are prepared: carried, named in one note, or a reason to refuse; none goes unsaid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tower_cases import checkpoint, recorded_tower, recordings

from ckconv.api import convert_tower
from ckconv.errors import CkconvError

RECORDED = recordings()

#: What released checkpoints say of these, but for sizes, which are those of the recorded models.
RELEASED: dict[str, dict[str, Any]] = {
    "gemma3-f16": {
        "do_convert_rgb": None, "do_normalize": True, "do_pan_and_scan": None, "do_rescale": True, "do_resize": True,
        "image_processor_type": "Gemma3ImageProcessor", "image_seq_length": 16, "pan_and_scan_max_num_crops": None,
        "pan_and_scan_min_crop_size": None, "pan_and_scan_min_ratio_to_activate": None,
        "processor_class": "Gemma3Processor", "resample": 2, "rescale_factor": 1 / 255,
        "size": {"height": 56, "width": 56},
    },
    "qwen2_5_vl-f32": {
        "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
    },
    "qwen3_vl-f16": {
        "patch_size": 4, "temporal_patch_size": 2, "merge_size": 2, "processor_class": "Qwen3VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "size": {"longest_edge": 4096 * 8 ** 2, "shortest_edge": 8 * 8 ** 2},
    },
    "llava-f16": {
        "crop_size": {"height": 16, "width": 16}, "do_center_crop": False, "do_convert_rgb": True, "do_normalize": True,
        "do_rescale": True, "do_resize": True, "image_processor_type": "CLIPImageProcessor", "resample": 3,
        "processor_class": "LlavaProcessor", "rescale_factor": 0.00392156862745098, "size": {"shortest_edge": 16},
    },
    "pixtral-bf16": {
        "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True, "resample": 3,
        "image_processor_type": "PixtralImageProcessor", "patch_size": {"height": 4, "width": 4},
        "processor_class": "PixtralProcessor", "rescale_factor": 0.00392156862745098, "size": {"longest_edge": 20},
    },
    "ultravox-f16": {
        "chunk_length": 30, "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 8, "hop_length": 160,
        "n_fft": 400, "n_samples": 480000, "nb_max_frames": 3000, "padding_side": "right", "padding_value": 0.0,
        "processor_class": "UltravoxProcessor", "return_attention_mask": False, "sampling_rate": 16000,
    },
    "mistral3-f16": {
        "do_convert_rgb": True, "do_pad": True, "image_processor_type": "PixtralImageProcessor", "resample": 3,
        "patch_size": {"height": 4, "width": 4}, "processor_class": "PixtralProcessor", "size": {"longest_edge": 16},
    },
}  # fmt: skip


def notes(name: str, root: Path, **prepared: object) -> tuple[str, ...]:
    """Of the tower whose preprocessor says this, too."""
    recorded = recorded_tower(name)
    recorded["prepared"] |= prepared
    return convert_tower(checkpoint(recorded, root / "source"), root / "mmproj.gguf").plan.notes


#: What llama.cpp computes otherwise of every such tower.
ALWAYS = {
    "llava-f16": (
        "llama.cpp has the class token behind the patches and leaves the first of them out: each gets the position of "
        "the one before, and the class token stands for the last",
    ),
}


@pytest.mark.parametrize("name", RELEASED)
def test_what_llama_cpp_does_itself_needs_no_word(name: str, tmp_path: Path) -> None:
    assert notes(name, tmp_path, **RELEASED[name]) == ALWAYS.get(name, ())


def test_the_order_of_llama_4s_tokens_is_said(tmp_path: Path) -> None:
    said = "llama.cpp has the tokens of a picture column by column, and transformers row by row"
    assert said in notes("llama4-f16", tmp_path)


OTHERS = "llama.cpp takes what the model says, not preprocessor_config.json: "
NAMED: list[tuple[str, dict[str, Any], str]] = [
    ("gemma3-f16", {"do_pan_and_scan": True}, "llama.cpp cuts no parts out of a picture (do_pan_and_scan)"),
    ("gemma3-f16", {"resample": 3}, "llama.cpp resizes by bilinear interpolation (resample is 3)"),
    (
        "gemma3-f16",
        {"size": {"height": 56, "width": 28}, "image_seq_length": 16},
        OTHERS + "size.width = 28",
    ),
    (
        "qwen2_5_vl-bf16",
        {"min_pixels": 3136, "max_pixels": 12845056},
        "llama.cpp makes 8 to 4,096 parts of a picture (min_pixels is 3,136, max_pixels 12,845,056)",
    ),
    ("qwen3_vl-f16", {"merge_size": 4}, OTHERS + "merge_size = 4"),
    (
        "llava-f16",
        {"do_center_crop": True},
        "llama.cpp pads a picture to a square, and does not cut one out of it (do_center_crop)",
    ),
    ("llava-f16", {"size": {"shortest_edge": 24}}, OTHERS + "size.shortest_edge = 24"),
    ("ultravox-f16", {"feature_size": 80}, OTHERS + "feature_size = 80"),
    ("pixtral-f16", {"size": {"longest_edge": 64}}, OTHERS + "size.longest_edge = 64"),
    (
        "llava-f16",
        {"image_grid_pinpoints": [[16, 32]]},
        "no known class of llava reads these keys of preprocessor_config.json: image_grid_pinpoints",
    ),
]


@pytest.mark.parametrize(("name", "prepared", "note"), NAMED)
def test_what_llama_cpp_does_otherwise_is_one_note(
    name: str, prepared: dict[str, Any], note: str, tmp_path: Path
) -> None:
    assert sorted(notes(name, tmp_path, **prepared)) == sorted([note, *ALWAYS.get(name, ())])


@pytest.mark.product("values")
@pytest.mark.parametrize(
    ("key", "value"),
    [("do_normalize", False), ("do_rescale", False), ("rescale_factor", 1 / 127.5), ("do_resize", False)],
)
@pytest.mark.parametrize("name", ["gemma3-bf16", "mistral3-bf16"])
def test_other_values_of_pixels_are_refused(name: str, key: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(
        CkconvError, match=f"preprocessor.{key} = {value!r} of the tower changes the computation"
    ) as caught:
        notes(name, tmp_path, **{key: value})

    assert caught.value.exit_code == 4


@pytest.mark.parametrize(("key", "value"), [("hop_length", 80), ("n_fft", 512), ("sampling_rate", 8000)])
def test_other_values_of_sounds_are_refused(key: str, value: int, tmp_path: Path) -> None:
    with pytest.raises(CkconvError, match=f"preprocessor.{key} = {value} of the tower changes the computation"):
        notes("ultravox-f16", tmp_path, **{key: value})


def test_pictures_have_three_colors(tmp_path: Path) -> None:
    with pytest.raises(CkconvError, match=r"have \[3, 1\] numbers, and llama.cpp takes three of each") as caught:
        notes("llava-f16", tmp_path, image_std=[0.5])

    assert caught.value.exit_code == 4


def test_the_document_of_the_processor_counts_too(tmp_path: Path) -> None:
    source = checkpoint(RECORDED["gemma3-f16"], tmp_path / "source")
    said = {"image_processor": {"do_rescale": False}, "image_seq_length": 16, "processor_class": "Gemma3Processor"}
    (source / "processor_config.json").write_text(json.dumps(said))

    with pytest.raises(CkconvError, match=r"preprocessor\.do_rescale = False"):
        convert_tower(source, tmp_path / "mmproj.gguf")
