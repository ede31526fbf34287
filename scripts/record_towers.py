"""Record what llama.cpp's converter makes of towers: ``python scripts/record_towers.py`` writes fixtures/towers.json.

With names of cases behind it, those are recorded anew. The models are tiny ones of transformers; only names and shapes
of their tensors are kept, values follow from the names (``tests/family_cases.py``). LLAMA_CPP_SOURCES names the folder
of ``convert_hf_to_gguf.py``.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

import consumers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from family_directions import read_gguf  # noqa: E402
from safetensors import safe_open  # noqa: E402
from tower_cases import RECORDED, checkpoint, recordings  # noqa: E402

_TEXT = {"vocab_size": 384, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}  # fmt: skip
_GEMMA = {**_TEXT, "head_dim": 12, "sliding_window": 8, "query_pre_attn_scalar": 12}
_SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 1]}
_LINEAR = {**_TEXT, "num_hidden_layers": 4, "head_dim": 24, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
           "linear_key_head_dim": 8, "linear_value_head_dim": 8,
           "rope_parameters": {**_SECTIONS, "mrope_section": [1, 1, 1], "partial_rotary_factor": 0.25}}  # fmt: skip
_WORDS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_CLIP = {"model_type": "clip_vision_model", "hidden_size": 16, "num_attention_heads": 2, "patch_size": 4}
# The converter maps `linear_2` of a projector where there are three layers or more.
_PIXTRAL = {"model_type": "pixtral", "hidden_size": 16, "num_attention_heads": 2, "patch_size": 4}
_VISION = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 2}
_HEARING = {**_VISION, "num_mel_bins": 8, "max_source_positions": 12}
_HEARD = {"feature_size": 8}
_GLM = {"depth": 3, "hidden_size": 16, "intermediate_size": 20, "num_heads": 2, "patch_size": 4, "image_size": 16,
        "out_hidden_size": 24}  # fmt: skip
_GEMMA4 = {**_TEXT, "num_hidden_layers": 6, "head_dim": 8, "global_head_dim": 16, "hidden_size_per_layer_input": 12,
           "vocab_size_per_layer_input": 384, "sliding_window": 8, "use_bidirectional_attention": "vision",
           "layer_types": 2 * ["sliding_attention", "sliding_attention", "full_attention"]}  # fmt: skip
_UNIFIED = {"num_hidden_layers": 6, "head_dim": 8, "global_head_dim": 16, "sliding_window": 8}
_CONFORMER = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "output_proj_dims": 20,
              "subsampling_conv_channels": [128, 4]}  # fmt: skip
_OMNI: dict[str, dict[str, Any]] = {
    "vision_config": {"depth": 4, "hidden_size": 16, "intermediate_size": 20, "num_heads": 2, "patch_size": 14,
                      "out_hidden_size": 24, "fullatt_block_indexes": [1, 3]},
    "audio_config": {"d_model": 16, "encoder_ffn_dim": 20, "encoder_layers": 3, "encoder_attention_heads": 2,
                     "num_mel_bins": 8, "output_dim": 24},
}  # fmt: skip
_PREPARED = {"image_mean": [0.5, 0.25, 0.125], "image_std": [0.5, 0.4, 0.3]}
_NORMALIZED = {**_PREPARED, "do_normalize": True}  # which Gemma 4's class does not by itself

_INTERN = {"architectures": ["InternVisionModel"], "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 4,
           "num_attention_heads": 2}  # fmt: skip
#: What save_pretrained calls them as transformers 4.52 did -> what llama.cpp's converter knows.
_INTERN_NAMES = {"vision_tower.": "model.vision_tower.", "multi_modal": "model.multi_modal",
                 "language_model.model.": "model.language_model.", "language_model.lm_head": "lm_head"}  # fmt: skip

#: Name -> class, type of the stored values, configuration, how pictures are prepared, and parts of names that
#: save_pretrained writes -> what released checkpoints have there.
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], dict[str, str]]] = {
    "gemma3-f16": (
        "Gemma3", "F16",
        {"text_config": _GEMMA, "mm_tokens_per_image": 16,
         "vision_config": {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2,
                           "image_size": 56, "patch_size": 7, "vision_use_head": False}},
        {**_PREPARED, "image_seq_length": 16},
        {"vision_tower.": "vision_tower.vision_model."},
    ),
    "gemma3-bf16": (
        "Gemma3", "BF16",
        {"text_config": _GEMMA, "mm_tokens_per_image": 4,
         "vision_config": {"hidden_size": 20, "intermediate_size": 28, "num_hidden_layers": 3, "num_attention_heads": 2,
                           "image_size": 32, "patch_size": 4, "vision_use_head": False}},
        {**_PREPARED, "image_seq_length": 4},
        {"vision_tower.": "vision_tower.vision_model."},
    ),
    "qwen2_5_vl-f32": (
        "Qwen2_5_VL", "F32",
        {"text_config": {**_TEXT, "rope_parameters": _SECTIONS},
         "vision_config": {"depth": 4, "hidden_size": 16, "intermediate_size": 20, "num_heads": 2, "patch_size": 14,
                           "out_hidden_size": 24, "fullatt_block_indexes": [1, 3]}},
        _PREPARED, {},
    ),
    "qwen2_5_vl-bf16": (
        "Qwen2_5_VL", "BF16",
        {"text_config": {**_TEXT, "rope_parameters": _SECTIONS},
         "vision_config": {"depth": 3, "hidden_size": 16, "intermediate_size": 28, "num_heads": 2, "patch_size": 14,
                           "out_hidden_size": 24, "fullatt_block_indexes": [2]}},
        _PREPARED, {},
    ),
    "qwen2_vl-f16": (
        "Qwen2VL", "F16",
        {"text_config": {**_TEXT, "rope_parameters": _SECTIONS},
         "vision_config": {"depth": 3, "embed_dim": 16, "hidden_size": 24, "num_heads": 2, "patch_size": 14}},
        _PREPARED, {},
    ),
    "qwen2_vl-bf16": (
        "Qwen2VL", "BF16",
        {"text_config": {**_TEXT, "rope_parameters": _SECTIONS},
         "vision_config": {"depth": 3, "embed_dim": 20, "hidden_size": 24, "num_heads": 5, "patch_size": 7}},
        _PREPARED, {},
    ),
    "qwen3_vl-f16": (
        "Qwen3VL", "F16",
        {"text_config": {**_TEXT, "num_hidden_layers": 3, "head_dim": 12,
                         "rope_parameters": {**_SECTIONS, "mrope_section": [2, 2, 2], "mrope_interleaved": True}},
         "vision_config": {"depth": 4, "hidden_size": 16, "intermediate_size": 20, "num_heads": 2, "patch_size": 4,
                           "out_hidden_size": 24, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 2]}},
        _PREPARED, {},
    ),
    "qwen3_vl-bf16": (
        "Qwen3VL", "BF16",
        {"text_config": {**_TEXT, "num_hidden_layers": 3, "head_dim": 12,
                         "rope_parameters": {**_SECTIONS, "mrope_section": [2, 2, 2], "mrope_interleaved": True}},
         "vision_config": {"depth": 3, "hidden_size": 20, "intermediate_size": 28, "num_heads": 5, "patch_size": 4,
                           "out_hidden_size": 24, "num_position_embeddings": 36, "deepstack_visual_indexes": [1]}},
        _PREPARED, {},
    ),
    "qwen3_5-f16": (
        "Qwen3_5", "F16",
        {"text_config": _LINEAR,
         "vision_config": {"depth": 3, "hidden_size": 16, "intermediate_size": 20, "num_heads": 2, "patch_size": 4,
                           "out_hidden_size": 24, "num_position_embeddings": 16}},
        _PREPARED, {},
    ),
    "qwen3_5_moe-bf16": (
        "Qwen3_5Moe", "BF16",
        {"text_config": {**_LINEAR, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
                         "shared_expert_intermediate_size": 28},
         "vision_config": {"depth": 2, "hidden_size": 20, "intermediate_size": 28, "num_heads": 5, "patch_size": 4,
                           "out_hidden_size": 24, "num_position_embeddings": 36}},
        _PREPARED, {},
    ),
    "internvl-f16": (
        "InternVL", "F16",
        {"text_config": {**_TEXT, "model_type": "qwen2", "tie_word_embeddings": True}, "image_seq_length": 4,
         "downsample_ratio": 0.5,
         "vision_config": {**_INTERN, "image_size": [16, 16], "patch_size": [4, 4], "attention_bias": True}},
        {**_PREPARED, "size": {"height": 16, "width": 16}}, _INTERN_NAMES,
    ),
    "internvl-bf16": (
        "InternVL", "BF16",
        {"text_config": {**_TEXT, "model_type": "qwen3", "head_dim": 12}, "image_seq_length": 4,
         "downsample_ratio": 0.5, "tie_word_embeddings": False,
         "vision_config": {**_INTERN, "image_size": [24, 24], "patch_size": [6, 6], "num_hidden_layers": 5}},
        {**_PREPARED, "size": {"height": 24, "width": 24}}, _INTERN_NAMES,
    ),
    "smolvlm-f16": (
        "SmolVLM", "F16",
        {"text_config": {**_TEXT, "model_type": "llama"}, "scale_factor": 2,
         "vision_config": {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 2,
                           "image_size": 16, "patch_size": 4}},
        {**_PREPARED, "size": {"longest_edge": 64}}, {},
    ),
    "smolvlm-bf16": (
        "SmolVLM", "BF16",
        {"text_config": {**_TEXT, "model_type": "llama"}, "scale_factor": 3,
         "vision_config": {"hidden_size": 20, "intermediate_size": 28, "num_hidden_layers": 3, "num_attention_heads": 2,
                           "image_size": 24, "patch_size": 4}},
        {**_PREPARED, "size": {"longest_edge": 48}}, {},
    ),
    "llava-f16": (
        "Llava", "F16",
        {"text_config": {**_TEXT, "model_type": "llama"}, "image_token_index": 377,
         "vision_config": {**_CLIP, "intermediate_size": 20, "num_hidden_layers": 3, "image_size": 16}},
        _PREPARED, {"vision_tower.": "vision_tower.vision_model."},
    ),
    "llava-f32": (
        "Llava", "F32",
        {"text_config": {**_TEXT, "model_type": "mistral"}, "image_token_index": 377, "vision_feature_layer": -3,
         "vision_config": {**_CLIP, "intermediate_size": 28, "num_hidden_layers": 4, "image_size": 20,
                           "hidden_act": "gelu", "layer_norm_eps": 1e-6, "projection_dim": 24}},
        _PREPARED, {"vision_tower.": "vision_tower.vision_model."},
    ),
    "pixtral-f16": (
        "Llava", "F16",
        {"text_config": {**_TEXT, "model_type": "mistral"}, "image_token_index": 377, "vision_feature_layer": -1,
         "vision_feature_select_strategy": "full",
         "vision_config": {**_PIXTRAL, "intermediate_size": 20, "num_hidden_layers": 3, "image_size": 16}},
        _PREPARED, {},
    ),
    "pixtral-bf16": (
        "Llava", "BF16",
        {"text_config": {**_TEXT, "model_type": "mistral", "head_dim": 8}, "image_token_index": 377,
         "vision_feature_layer": -1, "vision_feature_select_strategy": "full", "multimodal_projector_bias": False,
         "vision_config": {**_PIXTRAL, "intermediate_size": 28, "num_hidden_layers": 3, "image_size": 20,
                           "hidden_act": "silu"}},
        _PREPARED, {},
    ),
    "mistral3-f16": (
        "Mistral3", "F16",
        {"text_config": {**_TEXT, "model_type": "mistral", "head_dim": 12, "rms_norm_eps": 1e-5},
         "image_token_index": 377,
         "vision_config": {**_PIXTRAL, "intermediate_size": 20, "num_hidden_layers": 3, "image_size": 16}},
        _PREPARED, {},
    ),
    "mistral3-mistral4": (
        "Mistral3", "F16",
        {"text_config": {**_TEXT, "model_type": "mistral4", "num_key_value_heads": 4, "moe_intermediate_size": 20,
                         "q_lora_rank": 18, "kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
                         "v_head_dim": 5, "n_routed_experts": 4, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5,
                         "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.0,
                                             "original_max_position_embeddings": 16, "mscale_all_dim": 1.0,
                                             "beta_fast": 32.0, "beta_slow": 1.0, "llama_4_scaling_beta": 0.1}},
         "image_token_index": 377,
         "vision_config": {**_PIXTRAL, "intermediate_size": 20, "num_hidden_layers": 3, "image_size": 16}},
        _PREPARED, {},
    ),
    "mistral3-bf16": (
        "Mistral3", "BF16",
        {"text_config": {**_TEXT, "model_type": "mistral", "rms_norm_eps": 1e-5}, "image_token_index": 377,
         "spatial_merge_size": 3, "multimodal_projector_bias": True,
         "vision_config": {**_PIXTRAL, "intermediate_size": 28, "num_hidden_layers": 3, "image_size": 24,
                           "hidden_act": "silu"}},
        _PREPARED, {},
    ),
    "lfm2_vl-f16": (
        "Lfm2Vl", "F16",
        {"text_config": {**_TEXT, "model_type": "lfm2", "layer_types": ["conv", "full_attention"],
                         "block_auto_adjust_ff_dim": False},
         "projector_hidden_size": 28,
         "vision_config": {**_VISION, "num_patches": 16, "patch_size": 16, "vision_use_head": False}},
        _PREPARED, {"model.vision_tower.": "model.vision_tower.vision_model."},
    ),
    "llama4-f16": (
        "Llama4", "F16",
        {"text_config": {**_TEXT, "num_hidden_layers": 4, "intermediate_size_mlp": 56, "num_local_experts": 4,
                         "head_dim": 16, "pad_token_id": None},
         "vision_config": {**_VISION, "intermediate_size": 64, "image_size": 16, "patch_size": 4,
                           "vision_output_dim": 20, "projector_input_dim": 20, "projector_output_dim": 20}},
        _PREPARED, {},
    ),
    "janus-f16": (
        "Janus", "F16",
        {"text_config": {**_TEXT, "model_type": "llama"},
         "vision_config": {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 16,
                           "patch_size": 4, "mlp_ratio": 1.25, "projection_dim": 24},
         "vq_config": {"embed_dim": 4, "num_embeddings": 16, "latent_channels": 32, "base_channels": 32,
                       "channel_multiplier": [1], "num_res_blocks": 1, "num_patches": 4, "projection_dim": 24,
                       "image_token_embed_dim": 24}},
        _PREPARED, {},
    ),
    "lighton_ocr-f16": (
        "LightOnOcr", "F16",
        {"text_config": {**_TEXT, "model_type": "qwen3", "head_dim": 8},
         "vision_config": {**_PIXTRAL, "intermediate_size": 20, "num_hidden_layers": 3, "image_size": 16}},
        _PREPARED, {},
    ),
    "idefics3-f16": (
        "Idefics3", "F16",
        {"text_config": {**_TEXT, "model_type": "llama"}, "scale_factor": 2,
         "vision_config": {**_VISION, "image_size": 16, "patch_size": 4}},
        {**_PREPARED, "size": {"longest_edge": 64}}, {},
    ),
    "glm4v-f16": (
        "Glm4v", "F16", {"text_config": {**_TEXT, "rope_parameters": _SECTIONS}, "vision_config": _GLM}, _PREPARED, {},
    ),
    "glm4v_moe-f16": (
        "Glm4vMoe", "F16",
        {"text_config": {**_TEXT, "head_dim": 24, "moe_intermediate_size": 20,
                         "n_routed_experts": 4, "num_experts_per_tok": 2,
                         "rope_parameters": {**_SECTIONS, "partial_rotary_factor": 0.25}},
         "vision_config": _GLM},
        _PREPARED, {},
    ),
    "glm_ocr-f16": (
        "GlmOcr", "F16", {"text_config": {**_TEXT, "rope_parameters": _SECTIONS}, "vision_config": _GLM}, _PREPARED, {},
    ),
    "exaone4_5-f16": (
        "Exaone4_5_", "F16",
        {"text_config": {**_TEXT, "model_type": "exaone4", "sliding_window": None,
                         "layer_types": 2 * ["full_attention"]},
         "vision_config": {"depth": 4, "hidden_size": 16, "intermediate_size": 20, "num_heads": 2, "patch_size": 14,
                           "num_key_value_heads": 1, "out_hidden_size": 24, "fullatt_block_indexes": [1, 3]}},
        {**_PREPARED, "min_pixels": 64, "max_pixels": 256}, {},
    ),
    "paddleocr_vl-f16": (
        "PaddleOCRVL", "F16",
        {"text_config": {**_TEXT, "head_dim": 8, "rope_parameters": {**_SECTIONS, "mrope_section": [2, 1, 1]}},
         "vision_config": {**_VISION, "patch_size": 4, "image_size": 16, "architectures": ["PaddleOCRVisionModel"]}},
        {**_PREPARED, "min_pixels": 64, "max_pixels": 256}, {},
    ),
    "gemma4-f16": (
        "Gemma4", "F16",
        {"text_config": _GEMMA4,
         "vision_config": {**_VISION, "num_key_value_heads": 2, "head_dim": 8, "patch_size": 4,
                           "position_embedding_size": 12, "standardize": True}},
        _NORMALIZED, {},
    ),
    "gemma4-bf16": (
        "Gemma4", "BF16",
        {"text_config": _GEMMA4,
         "vision_config": {**_VISION, "num_key_value_heads": 2, "head_dim": 8, "patch_size": 8,
                           "position_embedding_size": 20, "use_clipped_linears": True}},
        _NORMALIZED, {},
    ),
    "gemma4_hearing-bf16": (
        "Gemma4", "BF16",
        {"text_config": _GEMMA4, "audio_config": _CONFORMER,
         "vision_config": {**_VISION, "num_key_value_heads": 2, "head_dim": 8, "patch_size": 8,
                           "position_embedding_size": 20, "use_clipped_linears": True}},
        _NORMALIZED, {},
    ),
    "gemma4_hearing-f16": (
        "Gemma4", "F16",
        {"text_config": _GEMMA4,
         "audio_config": {**_CONFORMER, "hidden_size": 32, "num_attention_heads": 4, "use_clipped_linears": False},
         "vision_config": {**_VISION, "num_key_value_heads": 2, "head_dim": 8, "patch_size": 4,
                           "position_embedding_size": 12}},
        _NORMALIZED, {},
    ),
    "gemma4_unified-bf16": (
        "Gemma4Unified", "BF16",
        {"text_config": {**_TEXT, **_UNIFIED}, "audio_config": {},
         "vision_config": {"patch_size": 4, "mm_embed_dim": 16, "output_proj_dims": 16, "mm_posemb_size": 20}},
        _NORMALIZED, {},
    ),
    "gemma4_unified-f16": (
        "Gemma4Unified", "F16",
        {"text_config": {**_TEXT, **_UNIFIED}, "audio_config": {},
         "vision_config": {"patch_size": 2, "mm_embed_dim": 20, "output_proj_dims": 20, "mm_posemb_size": 12}},
        _NORMALIZED, {},
    ),
    "qwen2_5_omni-f32": (
        "Qwen2_5OmniThinker", "F32",
        {"text_config": {**_TEXT, "rope_parameters": _SECTIONS, "tie_word_embeddings": False}, **_OMNI},
        {**_PREPARED, **_HEARD}, {},
    ),
    "qwen2_5_omni-f16": (
        "Qwen2_5OmniThinker", "F16",
        {"text_config": {**_TEXT, "rope_parameters": _SECTIONS, "tie_word_embeddings": False},
         "vision_config": {**_OMNI["vision_config"], "depth": 3, "fullatt_block_indexes": [2]},
         "audio_config": {**_OMNI["audio_config"], "d_model": 20, "encoder_layers": 2, "encoder_attention_heads": 5}},
        {**_PREPARED, **_HEARD}, {},
    ),
    "minicpmv4_6-f16": (
        "MiniCPMV4_6", "F16",
        {"text_config": {**_LINEAR, "model_type": "qwen3_5_text"}, "insert_layer_id": 1,
         "vision_config": {**_VISION, "image_size": 280, "patch_size": 4, "insert_layer_id": 1}},
        {**_PREPARED, "scale_resolution": 32}, {},
    ),
    "qwen3_vl_moe-f16": (
        "Qwen3VLMoe", "F16",
        {"text_config": {**_TEXT, "num_hidden_layers": 3, "head_dim": 12, "num_experts": 4, "num_experts_per_tok": 2,
                         "moe_intermediate_size": 20,
                         "rope_parameters": {**_SECTIONS, "mrope_section": [2, 2, 2], "mrope_interleaved": True}},
         "vision_config": {"depth": 4, "hidden_size": 16, "intermediate_size": 20, "num_heads": 2, "patch_size": 4,
                           "out_hidden_size": 24, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 2]}},
        _PREPARED, {},
    ),
    "voxtral-bf16": (
        "Voxtral", "BF16",
        {"text_config": {**_TEXT, "model_type": "llama"}, "audio_config": {**_HEARING, "intermediate_size": 64}},
        _HEARD, {},
    ),
    "qwen2_audio-bf16": (
        "Qwen2Audio", "BF16",
        {"text_config": {**_TEXT, "model_type": "qwen2"},
         "audio_config": {"d_model": 16, "encoder_ffn_dim": 20, "encoder_layers": 3, "encoder_attention_heads": 2,
                          "num_mel_bins": 8, "max_source_positions": 12}},
        _HEARD, {},
    ),
    "audioflamingo3-bf16": (
        "AudioFlamingo3", "BF16",
        {"text_config": {**_TEXT, "model_type": "qwen2"}, "audio_config": _HEARING}, _HEARD, {},
    ),
}  # fmt: skip


def ultravox(dtype: str) -> dict[str, Any]:
    """A checkpoint of Ultravox, of version 0.5 on: Whisper's encoder, a Llama, and the projector."""
    from transformers import LlamaConfig, LlamaForCausalLM, WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    text = LlamaConfig(**_TEXT, architectures=["LlamaForCausalLM"], tie_word_embeddings=True)
    audio = WhisperConfig(
        d_model=16, encoder_ffn_dim=20, encoder_layers=3, encoder_attention_heads=2, num_mel_bins=8,
        max_source_positions=12,
    )  # fmt: skip
    parts = {"language_model.": LlamaForCausalLM(text), "audio_tower.": WhisperEncoder(audio)}
    shapes = {
        before + name: list(one.shape) for before, part in parts.items() for name, one in part.state_dict().items()
    }
    shapes.pop("language_model.lm_head.weight")
    own = {"ln_pre": [64], "linear_1": [28, 64], "ln_mid": [14], "linear_2": [24, 14]}
    shapes |= {f"multi_modal_projector.{name}.weight": shape for name, shape in own.items()}
    document = {
        "architectures": ["UltravoxModel"], "model_type": "ultravox", "hidden_size": 28, "stack_factor": 4,
        "projector_act": "swiglu", "projector_ln_mid": True, "text_config": text.to_diff_dict(),
        "audio_config": audio.to_dict(), "dtype": _WORDS[dtype],
    }  # fmt: skip
    return {"config": document, "tensors": {name: [dtype, shape] for name, shape in shapes.items()}, "prepared": {}}


def internvl_chat(dtype: str) -> dict[str, Any]:
    """A checkpoint of InternVL as its own repositories have it, of the recorded one of transformers' class."""
    own = recordings()["internvl-f16"]
    names = {
        "model.vision_tower.": "vision_model.", "model.multi_modal_projector.layer_norm": "mlp1.0",
        "model.multi_modal_projector.linear_1": "mlp1.1", "model.multi_modal_projector.linear_2": "mlp1.3",
        "embeddings.cls_token": "embeddings.class_embedding", "patch_embeddings.projection": "patch_embedding",
        "position_embeddings": "position_embedding", "encoder.layer.": "encoder.layers.", "lambda_": "ls",
        "attention.projection_layer": "attn.proj", "layernorm_before": "norm1", "layernorm_after": "norm2",
        "attention.q_proj": "attn.qkv", "model.language_model.": "language_model.model.",
    }  # fmt: skip
    tensors = {}
    for stored, (_, shape) in own["tensors"].items():
        called, fused = stored, ".attention.q_proj." in stored
        for old, new in names.items():
            called = called.replace(old, new)
        if ".attention.k_proj." not in stored and ".attention.v_proj." not in stored:
            tensors[called] = [dtype, [3 * shape[0], *shape[1:]] if fused else shape]
    config, vision = own["config"], own["config"]["vision_config"]
    kept = (
        "architectures", "hidden_act", "hidden_size", "intermediate_size", "layer_norm_eps", "norm_type",
        "num_attention_heads", "num_hidden_layers",
    )  # fmt: skip
    seen = {key: vision[key] for key in kept}
    document = {
        "architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "downsample_ratio": 0.5,
        "ps_version": "v2", "select_layer": -1, "min_dynamic_patch": 1, "max_dynamic_patch": 6, "dtype": _WORDS[dtype],
        "llm_config": {**config["text_config"], "architectures": ["Qwen2ForCausalLM"]},
        "vision_config": {**seen, "image_size": 16, "patch_size": 4, "qkv_bias": True, "qk_normalization": False,
                          "model_type": "intern_vit_6b", "drop_path_rate": 0.0, "use_flash_attn": True},
    }  # fmt: skip
    return {"config": document, "tensors": tensors, "prepared": own["prepared"]}


def of_repository(
    document: dict[str, Any], tower: dict[str, list[int]], text: dict[str, list[int]], prepared: dict[str, Any]
) -> Callable[[str], dict[str, Any]]:
    """A checkpoint of a class whose names and shapes are read off llama.cpp's tensor_mapping.py and clip.cpp."""
    return lambda dtype: {
        "config": {**document, "dtype": _WORDS[dtype]},
        "tensors": {name: [dtype, shape] for name, shape in {**text, **tower}.items()},
        "prepared": prepared,
    }


def module(name: str, rows: int, *columns: int) -> dict[str, list[int]]:
    """A weight and its bias."""
    return {f"{name}.weight": [rows, *columns], f"{name}.bias": [rows]}


def kimi(*joins: str) -> dict[str, list[int]]:
    """Moonshot's MoonViT, and the projector with its modules' names."""
    found = module("vision_tower.patch_embed.proj", 16, 3, 14, 14) | module("vision_tower.encoder.final_layernorm", 16)
    found["vision_tower.patch_embed.pos_emb.weight"] = [64, 64, 16]
    for n in range(3):
        block = f"vision_tower.encoder.blocks.{n}"
        found |= module(f"{block}.norm0", 16) | module(f"{block}.norm1", 16) | module(f"{block}.wqkv", 48, 16)
        found |= module(f"{block}.wo", 16, 16) | module(f"{block}.mlp.fc0", 20, 16) | module(f"{block}.mlp.fc1", 16, 20)
    norm, up, down = joins
    return found | module(norm, 16) | module(up, 64, 64) | module(down, 24, 64)


def dots_ocr() -> dict[str, list[int]]:
    """The tower of dots.ocr."""
    patches = "vision_tower.patch_embed.patchifier"
    found = module(f"{patches}.proj", 16, 3, 4, 4) | {f"{patches}.norm.weight": [16]}
    for n in range(3):
        block = f"vision_tower.blocks.{n}"
        shapes = {"norm1": [16], "norm2": [16], "attn.qkv": [48, 16], "attn.proj": [16, 16], "mlp.fc1": [20, 16],
                  "mlp.fc2": [16, 20], "mlp.fc3": [20, 16]}  # fmt: skip
        found |= {f"{block}.{name}.weight": shape for name, shape in shapes.items()}
    found |= {"vision_tower.post_trunk_norm.weight": [16]} | module("vision_tower.merger.ln_q", 16)
    return found | module("vision_tower.merger.mlp.0", 64, 64) | module("vision_tower.merger.mlp.2", 24, 64)


def cogvlm() -> dict[str, list[int]]:
    """The tower of CogVLM."""
    found = {"cls_embedding": [1, 16], "position_embedding.weight": [17, 16], **module("proj", 16, 3, 4, 4)}
    found = {f"patch_embedding.{name}": shape for name, shape in found.items()}
    for n in range(3):
        layer = f"transformer.layers.{n}"
        found |= module(f"{layer}.input_layernorm", 16) | module(f"{layer}.post_attention_layernorm", 16)
        found |= module(f"{layer}.attention.query_key_value", 48, 16) | module(f"{layer}.attention.dense", 16, 16)
        found |= module(f"{layer}.mlp.fc1", 20, 16) | module(f"{layer}.mlp.fc2", 16, 20)
    shapes = {"linear_proj": [24, 16], "gate_proj": [40, 24], "dense_h_to_4h": [40, 24], "dense_4h_to_h": [24, 40]}
    found |= {f"linear_proj.{name}.weight": shape for name, shape in shapes.items()} | module("linear_proj.norm1", 24)
    return {f"model.vision.{name}": shape for name, shape in {**found, "boi": [1, 1, 24], "eoi": [1, 1, 24]}.items()}


def deepseek_ocr() -> dict[str, list[int]]:
    """The two towers of DeepSeek-OCR; its code has 256 channels between them, and 64 squares of pixels in a row."""
    found = {"vision_model.embeddings.class_embedding": [20], "image_newline": [24], "view_seperator": [24]}
    found |= {
        "vision_model.embeddings.patch_embedding.weight": [20, 3, 14, 14],
        "vision_model.embeddings.position_embedding.weight": [257, 20],
        "sam_model.pos_embed": [1, 64, 64, 16],
        "sam_model.neck.0.weight": [256, 16, 1, 1],
        "sam_model.neck.2.weight": [256, 256, 3, 3],
        "sam_model.net_2.weight": [8, 256, 3, 3],
        "sam_model.net_3.weight": [20, 8, 3, 3],
    }
    found |= module("sam_model.neck.1", 256) | module("sam_model.neck.3", 256) | module("projector.layers", 24, 40)
    found |= module("sam_model.patch_embed.proj", 16, 3, 16, 16) | module("vision_model.pre_layrnorm", 20)
    for n in range(3):  # the last one looks at all of a picture
        block, places = f"sam_model.blocks.{n}", [127 if n == 2 else 27, 8]
        found |= module(f"{block}.norm1", 16) | module(f"{block}.norm2", 16)
        found |= module(f"{block}.attn.qkv", 48, 16) | module(f"{block}.attn.proj", 16, 16)
        found |= module(f"{block}.mlp.lin1", 64, 16) | module(f"{block}.mlp.lin2", 16, 64)
        found |= {f"{block}.attn.rel_pos_h": places, f"{block}.attn.rel_pos_w": places}
    for n in range(4):
        layer = f"vision_model.transformer.layers.{n}"
        found |= module(f"{layer}.layer_norm1", 20) | module(f"{layer}.layer_norm2", 20)
        found |= module(f"{layer}.self_attn.qkv_proj", 60, 20) | module(f"{layer}.self_attn.out_proj", 20, 20)
        found |= module(f"{layer}.mlp.fc1", 80, 20) | module(f"{layer}.mlp.fc2", 20, 80)
    return {f"model.{name}": shape for name, shape in found.items()}


def decoder(start: str, width: int, narrow: int) -> dict[str, list[int]]:
    """Two layers of a Qwen 2."""
    found = {"model.embed_tokens": [384, width], "model.norm": [width], "lm_head": [384, width]}
    for n in range(2):
        layer = f"model.layers.{n}"
        found |= {f"{layer}.{name}_layernorm": [width] for name in ("input", "post_attention")}
        found |= {f"{layer}.mlp.{name}_proj": [40, width] for name in ("gate", "up")}
        found |= {f"{layer}.mlp.down_proj": [width, 40], f"{layer}.self_attn.o_proj": [width, width]}
        found |= {f"{layer}.self_attn.{name}_proj": [narrow, width] for name in ("k", "v")}
        found |= {f"{layer}.self_attn.q_proj": [width, width]}
    biases = {name: shape[:1] for name, shape in found.items() if name.endswith(("q_proj", "k_proj", "v_proj"))}
    whole = {f"{start}{name}.weight": shape for name, shape in found.items()}
    return whole | {f"{start}{name}.bias": shape for name, shape in biases.items()}


def minicpmv() -> dict[str, list[int]]:
    """The tower of a MiniCPM-V and its resampler, whose heads have 128 elements."""
    found = module("vpm.embeddings.patch_embedding", 16, 3, 4, 4) | module("vpm.post_layernorm", 16)
    found["vpm.embeddings.position_embedding.weight"] = [4900, 16]
    for n in range(3):
        layer = f"vpm.encoder.layers.{n}"
        found |= module(f"{layer}.layer_norm1", 16) | module(f"{layer}.layer_norm2", 16)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            found |= module(f"{layer}.self_attn.{name}", 16, 16)
        found |= module(f"{layer}.mlp.fc1", 20, 16) | module(f"{layer}.mlp.fc2", 16, 20)
    found |= {"resampler.query": [8, 128], "resampler.proj": [128, 128], "resampler.kv_proj.weight": [128, 16]}
    found |= {"resampler.attn.in_proj_weight": [384, 128], "resampler.attn.in_proj_bias": [384]}
    for name in ("ln_q", "ln_kv", "ln_post"):
        found |= module(f"resampler.{name}", 128)
    return found | module("resampler.attn.out_proj", 128, 128)


def gemma3n(dtype: str) -> dict[str, Any]:
    """A Gemma 3n whose MobileNetV5 of timm, which has one size, is a sixteenth as wide."""
    text = {**_TEXT, "hidden_size": 128, "head_dim": 12, "hidden_size_per_layer_input": 256, "laurel_rank": 64,
            "num_kv_shared_layers": 0, "vocab_size_per_layer_input": 384, "sliding_window": 8,
            "activation_sparsity_pattern": [0.95, 0.95],
            "layer_types": ["sliding_attention", "full_attention"]}  # fmt: skip
    ears = {"vocab_size": 8, "hidden_size": 16, "conf_num_attention_heads": 2, "conf_num_hidden_layers": 2,
            "sscp_conv_channel_size": [8, 4], "input_feat_size": 32}  # fmt: skip
    vision = {"vocab_size": 8, "hidden_size": 128}
    config = transformers.Gemma3nConfig(text_config=text, vision_config=vision, audio_config=ears)
    modeling: Any = importlib.import_module("transformers.models.gemma3n.modeling_gemma3n")
    own = modeling.AutoModel.from_config
    unseen = patch.object(
        modeling.AutoModel, "from_config", lambda one: None if one is config.vision_config else own(one)
    )
    with torch.device("meta"):
        seen = importlib.import_module("timm").create_model(config.vision_config.architecture, num_classes=0)
        with unseen:
            whole = modeling.Gemma3nForConditionalGeneration(config)
    shapes = {name: list(one.shape) for name, one in whole.state_dict().items() if name != "lm_head.weight"}
    for name, one in seen.state_dict().items():
        shapes[f"model.vision_tower.timm_model.{name}"] = [size // 16 if size >= 32 else size for size in one.shape]
    document = {**config.to_diff_dict(), "architectures": ["Gemma3nForConditionalGeneration"], "dtype": _WORDS[dtype]}
    document["vision_config"] |= {"architecture": config.vision_config.architecture}
    return {
        "config": document,
        "tensors": {name: [dtype, shape] for name, shape in shapes.items()},
        "prepared": {"do_normalize": False, "size": {"height": 768, "width": 768}},
    }


_PIXELS = {**_PREPARED, "min_pixels": 64, "max_pixels": 256}
_MOONVIT = {**_VISION, "model_type": "moonvit", "patch_size": 14, "init_pos_emb_height": 64, "init_pos_emb_width": 64,
            "merge_kernel_size": [2, 2]}  # fmt: skip
_DOTS = {**_VISION, "embed_dim": 16, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 1,
         "rms_norm_eps": 1e-5, "use_bias": False, "post_norm": True, "num_channels": 3, "is_causal": False}  # fmt: skip
_EVA = {"dropout_prob": 0.0, "hidden_act": "gelu", "hidden_size": 16, "image_size": 16, "in_channels": 3,
        "intermediate_size": 20, "layer_norm_eps": 1e-6, "num_heads": 2, "num_hidden_layers": 3, "num_positions": 17,
        "patch_size": 4}  # fmt: skip
#: Of DeepSeek-OCR, whose document has keys of the text model twice.
_DEEPSEEK = {
    **_TEXT, "num_key_value_heads": 4, "first_k_dense_replace": 1, "kv_lora_rank": None, "lm_head": True,
    "moe_intermediate_size": 20, "n_group": 1, "n_routed_experts": 4, "n_shared_experts": 2, "num_experts_per_tok": 2,
    "q_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "rm_head": False, "topk_group": 1,
    "topk_method": "greedy", "use_mla": False, "v_head_dim": 0,
}  # fmt: skip
_DEEPLIP = {
    "image_size": 1024, "mlp_ratio": 3.7362, "model_name": "deeplip_b_l", "model_type": "vision",
    "width": {
        "clip-l-14-224": {"heads": 2, "image_size": 224, "layers": 4, "patch_size": 14, "width": 20},
        "sam_vit_b": {"downsample_channels": [8, 20], "global_attn_indexes": [2, 5, 8, 11], "heads": 2, "layers": 3,
                      "width": 16},
    },
}  # fmt: skip
_WORD = {"model.embed_tokens.weight": [384, 24]}

_OCR = of_repository(
    {
        **_DEEPSEEK,
        "architectures": ["DeepseekOCRForCausalLM"],
        "model_type": "deepseek_vl_v2",
        "candidate_resolutions": [[1024, 1024]],
        "global_view_pos": "head",
        "language_config": {**_DEEPSEEK, "architectures": ["DeepseekV2ForCausalLM"]},
        "projector_config": {
            "input_dim": 40,
            "model_type": "mlp_projector",
            "n_embed": 24,
            "projector_type": "linear",
        },
        "tile_tag": "2D",
        "vision_config": _DEEPLIP,
    },
    deepseek_ocr(),
    _WORD,
    _PREPARED,
)

_MINICPM = of_repository(
    {
        **_TEXT,
        "architectures": ["MiniCPMV"],
        "batch_vision_input": True,
        "drop_vision_last_layer": False,
        "hidden_size": 128,
        "image_size": 32,
        "model_type": "minicpmv",
        "num_attention_heads": 4,
        "patch_size": 4,
        "query_num": 8,
        "slice_config": {"max_slice_nums": 9, "model_type": "minicpmv", "patch_size": 4},
        "slice_mode": True,
        "use_image_id": True,
        "version": "2.6",
        "vision_config": {**_VISION, "image_size": 280, "model_type": "siglip", "patch_size": 4},
    },
    minicpmv(),
    decoder("llm.", 128, 64),
    {"norm_mean": [0.5, 0.25, 0.125], "norm_std": [0.5, 0.4, 0.3], "version": 2.6, "max_slice_nums": 9},
)

#: What released checkpoints say they are, by which llama.cpp's converter knows them -> transformers' class.
_CLASSES = {
    "LightOnOcrForConditionalGeneration": "LightOnOCRForConditionalGeneration",
    "Qwen2_5OmniThinkerForConditionalGeneration": "Qwen2_5OmniModel",
}

#: Of Gemma 3n: gguf-py's ``tensor_mapping.py`` has no place for them, and the converter stops.
_UNPLACED = tuple(f"model.audio_tower.subsample_conv_projection.conv_{n}.norm.weight" for n in (0, 1))

#: The same of classes that are code of their repositories, and of sizes that a configuration does not say.
OWN: dict[str, tuple[Callable[[str], dict[str, Any]], str]] = {
    "internvl_chat-bf16": (internvl_chat, "BF16"),
    "kimi_vl-f16": (
        of_repository(
            {
                "architectures": ["KimiVLForConditionalGeneration"],
                "model_type": "kimi_vl",
                "vision_config": _MOONVIT,
                "text_config": {**_TEXT, "model_type": "deepseek_v3"},
            },
            kimi(*(f"multi_modal_projector.{name}" for name in ("pre_norm", "linear_1", "linear_2"))),
            {f"language_model.{name}": shape for name, shape in _WORD.items()},
            _PREPARED,
        ),
        "F16",
    ),
    "kimi_k25-f16": (
        of_repository(
            {
                "architectures": ["KimiK25ForConditionalGeneration"],
                "model_type": "kimi_k25",
                "vision_config": {
                    **{f"vt_{key}": value for key, value in _VISION.items()},
                    "num_attention_heads": 2,
                    "patch_size": 14,
                    "init_pos_emb_height": 64,
                    "init_pos_emb_width": 64,
                    "init_pos_emb_time": 4,
                    "merge_kernel_size": [2, 2],
                    "projector_ln_eps": 1e-5,
                    "projector_hidden_act": "gelu",
                },
                "text_config": {**_TEXT, "model_type": "deepseek_v3"},
            },
            kimi(*(f"mm_projector.{name}" for name in ("pre_norm", "proj.0", "proj.2"))),
            {f"language_model.{name}": shape for name, shape in _WORD.items()},
            {**_PREPARED, "in_patch_limit": 4096},
        ),
        "F16",
    ),
    "dots_ocr-f16": (
        of_repository(
            {**_TEXT, "architectures": ["DotsOCRForCausalLM"], "model_type": "dots_ocr", "vision_config": _DOTS},
            dots_ocr(),
            _WORD,
            _PIXELS,
        ),
        "F16",
    ),
    "cogvlm-f16": (
        of_repository(
            {**_TEXT, "architectures": ["CogVLMForCausalLM"], "model_type": "cogvlm", "vision_config": _EVA},
            cogvlm(),
            _WORD,
            _PREPARED,
        ),
        "F16",
    ),
    "minicpmv-f16": (_MINICPM, "F16"),
    "minicpmv-f32": (_MINICPM, "F32"),
    "deepseek_ocr-f16": (_OCR, "F16"),
    "deepseek_ocr-bf16": (_OCR, "BF16"),
    "gemma3n-bf16": (gemma3n, "BF16"),
    "ultravox-bf16": (ultravox, "BF16"),
    "ultravox-f16": (ultravox, "F16"),
}

#: Around what limits of linear layers are drawn: what is to be above one is to be below more.
_LIMITS = {"put_min": -1.0, "put_max": 1.0}


def made(name: str, converter: consumers.Consumer, place: Path) -> dict[str, Any]:
    """The recording of one case."""
    if name in OWN:
        maker, kind = OWN[name]
        return converted(name, maker(kind), converter, place)
    kind, dtype, config, prepared, renamed = CASES[name]
    classes: Any = transformers
    model = getattr(classes, f"{kind}ForConditionalGeneration")(getattr(classes, f"{kind}Config")(**config))
    model.save_pretrained(place / "whole")
    document = json.loads((place / "whole" / "config.json").read_text())
    document["dtype"] = _WORDS[dtype]
    tensors = {}
    with safe_open(place / "whole" / "model.safetensors", "numpy") as file:
        for stored in file.keys():  # noqa: SIM118 - it is no mapping
            known = next((old for old in renamed if stored.startswith(old)), "")
            called = renamed[known] + stored.removeprefix(known) if known else stored
            means = [mean for ending, mean in _LIMITS.items() if called.endswith(ending)]
            tensors[called] = [dtype, list(file.get_slice(stored).get_shape()), *means]
    return converted(name, {"config": document, "tensors": tensors, "prepared": prepared}, converter, place)


def converted(name: str, recorded: dict[str, Any], converter: consumers.Consumer, place: Path) -> dict[str, Any]:
    """What describes a checkpoint, with what llama.cpp's converter makes of its tower."""
    dtype = next(iter(recorded["tensors"].values()))[0]
    placed = {key: tensor for key, tensor in recorded["tensors"].items() if key not in _UNPLACED}
    checkpoint({**recorded, "tensors": placed}, place / "source")
    for kind, script in (("llava", older), ("minicpmv-", resampler)):
        if name.startswith(kind):
            return {**recorded, "converter": read_gguf(script(place, recorded))}
    classes = [_CLASSES.get(one, one) for one in recorded["config"]["architectures"]]
    asked = {
        "model": str(place / "source"), "out": str(place / "theirs.gguf"), "type": dtype.lower(),
        "document": {"architectures": classes, **within(recorded["config"])},
        "plain": name in CASES or name.startswith(("kimi_k25", "gemma3n")), "arguments": ["--mmproj"],
        "vocabulary": False,
    }  # fmt: skip
    if said := converter.ask(asked):
        raise ValueError(f"llama.cpp's converter, of {name}: {said}")
    return {**recorded, "converter": read_gguf(place / "theirs.gguf")}


def within(document: dict[str, Any]) -> dict[str, Any]:
    """What the document of the whole says besides, of a part that thinks."""
    whole, _, part = document["model_type"].rpartition("_")
    return {"model_type": whole, "thinker_config": document} if part == "thinker" else {}


def older(place: Path, recorded: dict[str, Any]) -> Path:
    """What ``convert_image_encoder_to_gguf.py`` makes: convert_hf_to_gguf.py knows no CLIP in a LLaVA."""
    document, prepared = recorded["config"], recorded["prepared"]
    dtype = next(iter(recorded["tensors"].values()))[0]
    classes: Any = transformers
    model = classes.LlavaForConditionalGeneration.from_pretrained(place / "source", dtype=torch.float32).model
    model.vision_tower.save_pretrained(place / "clip")
    vision = {**document["vision_config"], "vision_feature_layer": document["vision_feature_layer"]}
    (place / "clip" / "config.json").write_text(json.dumps(vision))
    projector = model.multi_modal_projector.state_dict()
    torch.save({f"multi_modal_projector.{key}": value for key, value in projector.items()}, place / "projector.pt")

    class Clip(torch.nn.Module):  # type: ignore[misc]
        """A CLIP that is called as transformers 4 called it, for which the script was written."""

        @classmethod
        def from_pretrained(cls, folder: str) -> Clip:
            clip = cls()
            clip.vision_model = classes.CLIPVisionModel.from_pretrained(folder, dtype=torch.float32)
            return clip

    script = Path(os.environ["LLAMA_CPP_SOURCES"], "tools/mtmd/legacy-models/convert_image_encoder_to_gguf.py")
    sys.argv = [
        str(script), "-m", str(place / "clip"), "--clip-model-is-vision", "-o", str(place),
        "--llava-projector", str(place / "projector.pt"), *(["--use-f32"] if dtype == "F32" else []),
        *("--image-mean", *map(str, prepared["image_mean"])), *("--image-std", *map(str, prepared["image_std"])),
    ]  # fmt: skip
    named: Any = SimpleNamespace(CLIPVisionModel=Clip, CLIPModel=None, CLIPProcessor=None, SiglipVisionModel=None)
    with patch.dict(sys.modules, transformers=named):
        runpy.run_path(str(script), run_name="__main__")
    return place / f"mmproj-model-{dtype.lower()}.gguf"


def resampler(place: Path, recorded: dict[str, Any]) -> Path:
    """What ``minicpmv-convert-image-encoder-to-gguf.py`` makes of what ``minicpmv-surgery.py`` takes apart."""
    prepared, dtype = recorded["prepared"], next(iter(recorded["tensors"].values()))[0]
    with safe_open(place / "source" / "model.safetensors", "pt") as file:
        stored = {key: file.get_tensor(key).float() for key in file.keys()}  # noqa: SIM118 - it is no mapping
    for part, name in (("vpm.", "clip"), ("resampler.", "projector")):
        cut = "vpm." if part == "vpm." else ""
        torch.save(
            {key.removeprefix(cut): value for key, value in stored.items() if key.startswith(part)},
            place / "source" / f"minicpmv.{name}",
        )
    script = Path(os.environ["LLAMA_CPP_SOURCES"], "tools/mtmd/legacy-models/minicpmv-convert-image-encoder-to-gguf.py")
    sys.argv = [
        str(script), "-m", str(place / "source"), "-o", str(place), "--minicpmv_version", "3",
        *(["--use-f32"] if dtype == "F32" else []),
        *("--image-mean", *map(str, prepared["norm_mean"])), *("--image-std", *map(str, prepared["norm_std"])),
    ]  # fmt: skip
    runpy.run_path(str(script), run_name="__main__")
    return place / f"mmproj-model-{dtype.lower()}.gguf"


def main() -> None:
    """Record every case."""
    converter = consumers.Consumer("../scripts/llama_cpp_converter.py", os.environ["LLAMA_CPP_SOURCES"])
    with tempfile.TemporaryDirectory() as folder, converter:
        asked = sys.argv[1:] or (*CASES, *OWN)
        found = recordings() if sys.argv[1:] else {}
        found |= {name: made(name, converter, Path(folder) / name) for name in asked}
    RECORDED.write_text(json.dumps(found, indent=None, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
