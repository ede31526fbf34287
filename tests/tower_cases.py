"""Checkpoints of text and tower, made of what ``scripts/record_towers.py`` recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from family_cases import checkpoint as plain_checkpoint

RECORDED = Path(__file__).parents[1] / "fixtures" / "towers.json"
MLX_VLM = RECORDED.with_name("mlx_vlm.json")


def recordings() -> dict[str, Any]:
    """Name -> what was recorded."""
    found: dict[str, Any] = json.loads(RECORDED.read_text())
    return found


def checkpoint(recorded: Mapping[str, Any], root: Path) -> Path:
    """The checkpoint's directory."""
    if "[IMG_BREAK]" in tokens_of(recorded["config"]).values():  # the tower's file has its embedding
        return with_tokens(recorded, root)
    plain_checkpoint(recorded, root)
    (root / "preprocessor_config.json").write_text(json.dumps(recorded["prepared"]))
    return root


def with_tokens(recorded: Mapping[str, Any], root: Path) -> Path:
    """The same with a tokenizer that has the tokens of pictures, and their numbers in config.json."""
    recorded = json.loads(json.dumps(recorded))
    config = recorded["config"]
    tokens = tokens_of(config)
    plain_checkpoint(recorded, root)
    document = json.loads((root / "tokenizer.json").read_text())
    first = 1 + max([*document["model"]["vocab"].values(), *(added["id"] for added in document["added_tokens"])])
    shared = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    for number, (key, text) in enumerate(tokens.items(), first):
        document["added_tokens"].append({"id": number, "content": text, **shared})
        if key.startswith(("audio_", "image_", "video_", "vision_", "boi_", "eoi_")):
            config[key] = number
    (root / "tokenizer.json").write_text(json.dumps(document))
    (root / "config.json").write_text(json.dumps(config))
    (root / "preprocessor_config.json").write_text(json.dumps(recorded["prepared"]))
    return root


def tokens_of(config: Mapping[str, Any]) -> Mapping[str, str]:
    """Key of config.json -> the token of pictures that it names; other keys where it names none."""
    if config["model_type"].startswith(("qwen3", "qwen2_vl", "qwen2_5")):
        return _TOKENS["qwen"]
    vision = config.get("vision_config", {}).get("model_type")
    return _TOKENS.get("pixtral" if (vision, config["model_type"]) in _BREAKING else config["model_type"], {})


#: Those that see with a Pixtral and have a token between rows.
_BREAKING = {("pixtral", "llava"), ("pixtral", "mistral3")}


_TOKENS = {
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
    "gemma4": {
        "image_token_id": "<|image|>",
        "video_token_id": "<|video|>",
        "boi_token_id": "<|image>",
        "eoi_token_id": "<image|>",
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
    "qwen": {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    },
}
