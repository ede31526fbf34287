"""Rows that families share: what every configuration of transformers may hold, and the common decoder."""

from __future__ import annotations

from ckconv.core.key_table import BOTH, MLX_LM, TRANSFORMERS, Rows, harmless, modifier, parameters

_BASE = "PreTrainedConfig of transformers 4.57 and 5.23"

#: What the base class knows. What is computed in evaluation mode, token by token, depends on the modifiers only.
PRETRAINED: Rows = (
    *harmless(
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_commit_hash",
        "_experts_implementation",
        "_name_or_path",
        "add_cross_attention",
        "architectures",
        "attn_implementation",
        "auto_map",
        "chunk_size_feed_forward",
        "cross_attention_hidden_size",
        "dtype",
        "experts_implementation",
        "finetuning_task",
        "id2label",
        "is_decoder",
        "is_encoder_decoder",
        "label2id",
        "model_type",
        "name_or_path",
        "num_labels",
        "output_attentions",
        "output_hidden_states",
        "prefix",
        "problem_type",
        "pruned_heads",
        "return_dict",
        "task_specific_params",
        "tf_legacy_loss",
        "tie_encoder_decoder",
        "tie_last_hidden_states",
        "tokenizer_class",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "unsloth_fixed",
        "unsloth_version",
        "use_bfloat16",
        "use_cache",
        source=_BASE,
    ),
    *harmless(
        "bos_token_id",
        "decoder_start_token_id",
        "eos_token_id",
        "pad_token_id",
        "sep_token_id",
        "unk_token_id",
        source="ids of tokens are the tokenizer's and generation's",
    ),
    *harmless(
        "bad_words_ids",
        "begin_suppress_tokens",
        "diversity_penalty",
        "do_sample",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "exponential_decay_length_penalty",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "length_penalty",
        "max_length",
        "min_length",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "output_scores",
        "remove_invalid_values",
        "repetition_penalty",
        "return_dict_in_generate",
        "suppress_tokens",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        source="generation settings, which the base class hands to GenerationConfig",
    ),
    *modifier("is_causal", True, source="create_causal_mask of masking_utils.py, 5.23: false attends in both ways"),
    *modifier("per_layer_config", {}, source="HeterogeneousConfigMixin of transformers 5"),
    *modifier("quantization_config", source="the loader quantises, or takes the weights for quantised ones"),
    *parameters("quantization", readers=(MLX_LM,), source="load_model of mlx_lm/utils.py"),
    *modifier("quantize_activations", False, readers=(MLX_LM,), source="load_model of mlx_lm/utils.py"),
    *modifier("model_file", readers=(MLX_LM,), source="load_model of mlx_lm/utils.py: code of its own"),
)

#: A decoder with RMSNorm, rotary positions and a gated feed-forward.
DECODER: Rows = (
    *PRETRAINED,
    *parameters(
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "rms_norm_eps",
        "rope_theta",
        "rope_scaling",
        "tie_word_embeddings",
        "vocab_size",
    ),
    *parameters("head_dim", "rope_parameters", readers=(TRANSFORMERS,)),
    *harmless("attention_dropout", source="dropout is for training"),
    *harmless("initializer_range", source="only where weights are made up"),
    *modifier("hidden_act", "silu", "swish", source="ACT2FN[config.hidden_act]; mlx-lm's classes have silu"),
)

#: mlx-lm's classes that turn neighbouring elements of a head where the key says so; transformers' never do.
TRADITIONAL: Rows = modifier(
    "rope_traditional", False, readers=(MLX_LM,), source="args.rope_traditional of mlx_lm/models"
)

#: The part of a head that RoPE turns. Where nothing scales RoPE the classes of these families turn all of it; what does
#: scale it is looked at with its own keys (:mod:`ckconv.families.key_tables.rope`).
WHOLE_HEAD: Rows = parameters("partial_rotary_factor", readers=(TRANSFORMERS,), source="modeling_rope_utils.py, 5.23")

#: Positions are learned.
NO_ROPE: Rows = harmless(
    "partial_rotary_factor", "rope_scaling", "rope_theta", source="the class does not turn heads by their position"
)

#: A mixture of experts.
EXPERTS: Rows = (
    *parameters("num_experts_per_tok"),
    *harmless("output_router_logits", "router_aux_loss_coef", source="a loss is for training"),
)

#: Layers of which some see a window only.
QWEN_WINDOWS: Rows = parameters(
    "layer_types", "max_window_layers", "sliding_window", "use_sliding_window", readers=(TRANSFORMERS,)
)

HEAD_DIM: Rows = parameters("head_dim", readers=BOTH)
