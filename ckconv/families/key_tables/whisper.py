"""Whisper, of which only names and sizes are known here: no configuration is made for it, its own is copied."""

from __future__ import annotations

from ckconv.core.key_table import harmless, modifier, parameters, table
from ckconv.families.key_tables.shared import NO_ROPE, PRETRAINED

WHISPER = table(
    "whisper",
    PRETRAINED,
    NO_ROPE,
    parameters(
        "d_model",
        "decoder_attention_heads",
        "decoder_ffn_dim",
        "decoder_layers",
        "encoder_attention_heads",
        "encoder_ffn_dim",
        "encoder_layers",
        "max_source_positions",
        "max_target_positions",
        "num_mel_bins",
        "tie_word_embeddings",
        "vocab_size",
    ),
    harmless(
        "hidden_size",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        source="attribute_map of WhisperConfig: other names of d_model and of the encoder's sizes",
    ),
    modifier("activation_function", "gelu", source="WhisperEncoderLayer of modeling_whisper.py"),
    modifier("scale_embedding", False, source="WhisperEncoder of modeling_whisper.py"),
    harmless(
        "activation_dropout",
        "apply_spec_augment",
        "attention_dropout",
        "decoder_layerdrop",
        "dropout",
        "encoder_layerdrop",
        "init_std",
        "mask_feature_length",
        "mask_feature_min_masks",
        "mask_feature_prob",
        "mask_time_length",
        "mask_time_min_masks",
        "mask_time_prob",
        source="for training",
    ),
    harmless("classifier_proj_size", "use_weighted_layer_sum", source="WhisperForAudioClassification only"),
    harmless("median_filter_width", source="time stamps"),
)
