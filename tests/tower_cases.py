"""Checkpoints of text and tower, made of what ``scripts/record_towers.py`` recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from family_cases import checkpoint as plain_checkpoint

RECORDED = Path(__file__).parents[1] / "fixtures" / "towers.json"
MLX_VLM = RECORDED.with_name("mlx_vlm.json")


def recordings() -> dict[str, Any]:
    """Name -> what was recorded."""
    found: dict[str, Any] = json.loads(RECORDED.read_text())
    return found


@cache
def _texts() -> dict[str, str]:
    return {name: json.dumps(recorded) for name, recorded in recordings().items()}


def recorded_tower(name: str) -> Any:
    """What was recorded of one, for a test to change."""
    return json.loads(_texts()[name])


def checkpoint(recorded: Mapping[str, Any], root: Path) -> Path:
    """The checkpoint's directory."""
    if "[IMG_BREAK]" in tokens_of(recorded["config"]).values():  # the tower's file has its embedding
        return with_tokens(recorded, root)
    plain_checkpoint(recorded, root)
    (root / "preprocessor_config.json").write_text(json.dumps(recorded["prepared"]))
    return root


def with_tokens(recorded: Mapping[str, Any], root: Path, *more: str) -> Path:
    """The same with a tokenizer that has the tokens of pictures, and more, and their numbers in config.json."""
    recorded = json.loads(json.dumps(recorded))
    config = recorded["config"]
    tokens = {**tokens_of(config), **{text: text for text in more}}
    plain_checkpoint(recorded, root)
    document = json.loads((root / "tokenizer.json").read_text())
    first = 1 + max([*document["model"]["vocab"].values(), *(added["id"] for added in document["added_tokens"])])
    shared = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    for number, (key, text) in enumerate(tokens.items(), first):
        document["added_tokens"].append({"id": number, "content": text, **shared})
        if key.endswith(("_token_id", "_token_index")):
            config[key] = number
    (root / "tokenizer.json").write_text(json.dumps(document))
    (root / "config.json").write_text(json.dumps(config))
    (root / "preprocessor_config.json").write_text(json.dumps(recorded["prepared"]))
    return root


def seen_by_mlx_vlm(name: str) -> Any:
    """What was recorded, in the numbers that mlx-vlm's classes compute.

    Six layers of a Gemma 3, a Pixtral's SiLU, experts as transformers' class of Qwen 3 VL MoE has them, a GLM-OCR's
    heads of a size of their own, of which a half turns, and the width of a PaddleOCR-VL's text model.
    """
    recorded = recorded_tower(name)
    config, tensors = recorded["config"], recorded["tensors"]
    if config["model_type"] == "gemma3":
        start = "language_model.model.layers."
        layer = {key.removeprefix(f"{start}0"): kind for key, kind in tensors.items() if key.startswith(f"{start}0.")}
        tensors |= {f"{start}{n}{key}": kind for n in range(6) for key, kind in layer.items()}
        types = [*["sliding_attention"] * 5, "full_attention"]
        config["text_config"] |= {"num_hidden_layers": 6, "layer_types": types}
    elif config["model_type"] == "qwen3_vl_moe":
        experts = {key: kind for key, kind in tensors.items() if ".experts." in key}
        tensors |= {key: [dtype, [count, *rest[::-1]]] for key, (dtype, (count, *rest)) in experts.items()}
    elif config["model_type"] == "paddleocr_vl":
        config["text_config"]["hidden_size"] = 1024
        for shape in (shape for _, shape in tensors.values() if 24 in shape):
            shape[shape.index(24)] = 1024
    elif config["model_type"] == "glm_ocr":
        config["text_config"] |= {"head_dim": 16, "partial_rotary_factor": 0.5}
        config["text_config"]["rope_parameters"]["mrope_section"] = [2, 1, 1]
        for key, (_, shape) in tensors.items():
            if ".self_attn." in key:
                shape[:] = [
                    16 * size // 6 if size in (12, 24) and at == key.endswith("o_proj.weight") else size
                    for at, size in enumerate(shape)
                ]
    elif config["vision_config"].get("model_type") == "pixtral":
        config["vision_config"]["hidden_act"] = "silu"
    return recorded


def tokens_of(config: Mapping[str, Any]) -> Mapping[str, str]:
    """Key of config.json -> the token of pictures that it names; other keys where it names none."""
    if config["model_type"].startswith(("qwen3", "qwen2_vl", "qwen2_5_vl")):
        return _TOKENS["qwen"]
    if config.get("audio_config") and config["model_type"] in ("gemma4", "gemma4_unified"):
        return _TOKENS["gemma4_hearing"]
    vision = config.get("vision_config", {}).get("model_type")
    return _TOKENS.get("pixtral" if (vision, config["model_type"]) in _BREAKING else config["model_type"], {})


#: Those that see with a Pixtral and have a token between rows.
_BREAKING = {("pixtral", "llava"), ("pixtral", "mistral3")}


_GLM = {
    "image_token_id": "<|image|>",
    "video_token_id": "<|video|>",
    "image_start_token_id": "<|begin_of_image|>",
    "image_end_token_id": "<|end_of_image|>",
    "video_start_token_id": "<|begin_of_video|>",
    "video_end_token_id": "<|end_of_video|>",
}
_GEMMA4 = {
    "image_token_id": "<|image|>",
    "video_token_id": "<|video|>",
    "boi_token_id": "<|image>",
    "eoi_token_id": "<image|>",
}
_TOKENS = {
    "glm4v": _GLM,
    "glm4v_moe": _GLM,
    "glm_ocr": _GLM,
    "llava": {"image_token_index": "<image>"},
    "pixtral": {"image_token_index": "[IMG]", "break": "[IMG_BREAK]", "end": "[IMG_END]"},
    "gemma3": {
        "image_token_index": "<image_soft_token>",
        "boi_token_index": "<start_of_image>",
        "eoi_token_index": "<end_of_image>",
    },
    "internvl_chat": {"image_token_id": "<IMG_CONTEXT>"},
    "smolvlm": {"image_token_id": "<image>"},
    "idefics3": {"image_token_id": "<image>"},
    "lfm2_vl": {"image_token_id": "<image>"},
    "lighton_ocr": {"image_token_id": "<|image_pad|>"},
    "exaone4_5": {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"},
    "minicpmv4_6": {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"},
    "gemma4": _GEMMA4,
    "gemma4_hearing": {
        **_GEMMA4,
        "audio_token_id": "<|audio|>",
        "boa_token_id": "<|audio>",
        "eoa_token_index": "<audio|>",
    },
    "gemma3n": {
        "image_token_id": "<image_soft_token>",
        "boi_token_id": "<start_of_image>",
        "eoi_token_id": "<end_of_image>",
        "audio_token_id": "<audio_soft_token>",
        "boa_token_id": "<start_of_audio>",
        "eoa_token_id": "<end_of_audio>",
    },
    "llama4": {
        "image_token_index": "<|patch|>",
        "boi_token_index": "<|image_start|>",
        "eoi_token_index": "<|image_end|>",
    },
    "qwen2_audio": {"audio_token_index": "<|AUDIO|>"},
    "voxtral": {"audio_token_id": "[AUDIO]"},
    "audioflamingo3": {"audio_token_id": "<sound>"},
    "internvl": {"image_token_id": "<IMG_CONTEXT>"},
    "janus": {"image_token_id": "<image_placeholder>"},
    "paddleocr_vl": {
        "image_token_id": "<|IMAGE_PLACEHOLDER|>",
        "video_token_id": "<|VIDEO_PLACEHOLDER|>",
        "vision_start_token_id": "<|IMAGE_START|>",
        "vision_end_token_id": "<|IMAGE_END|>",
    },
    "qwen2_5_omni_thinker": {
        "image_token_index": "<|IMAGE|>",
        "video_token_index": "<|VIDEO|>",
        "audio_token_index": "<|AUDIO|>",
        "vision_start_token_id": "<|vision_bos|>",
        "vision_end_token_id": "<|vision_eos|>",
        "audio_start_token_id": "<|audio_bos|>",
        "audio_end_token_id": "<|audio_eos|>",
    },
    "qwen": {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    },
}
