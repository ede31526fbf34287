"""Logits of all positions, by transformers, of the stored weights in float32; answers :mod:`consumers`.

Of an encoder its last hidden states; an encoder with a decoder has the prompt in both. Of a classifier its outputs for
every beginning of the prompt.

An adapter is put on the model by peft.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers
from consumers import Request, serve

#: A configuration without its sizes describes a model of billions.
MOST_PARAMETERS = 20_000_000
#: Classes whose rows are logits; those of the others are hidden states.
LANGUAGE = (
    transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText, transformers.AutoModelForSeq2SeqLM,
)  # fmt: skip


#: What MiniMax's class makes of the number of a layer.
DECAYS = (".slope_rate", ".query_decay", ".key_decay", ".diagonal_decay")


def auto_class(config: transformers.PreTrainedConfig) -> type:
    """What loads such a model: of text, or of text and pictures."""
    text = type(config) in transformers.AutoModelForCausalLM._model_mapping
    return transformers.AutoModelForCausalLM if text else transformers.AutoModelForImageTextToText


def rows(request: Request) -> np.ndarray:
    """``[positions, vocabulary]``.

    Raises:
        ValueError: weights that the class has are not stored, so that it makes them up; biases begin at zero, so that
            they count only if the request is strict.
    """
    config = transformers.AutoConfig.from_pretrained(request.model)
    loader = class_of(config)
    with torch.device("meta"):
        outline = loader.from_config(config)
    if sum(parameter.numel() for parameter in outline.parameters()) > MOST_PARAMETERS:
        raise ValueError("the class is much larger than the stored model")
    model, found = loader.from_pretrained(
        request.model, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    made_up = [str(key) for key in found["missing_keys"] if request.strict or not str(key).endswith(".bias")]
    made_up = sorted(key for key in made_up if not key.startswith("pooler."))  # behind what is looked at
    made_up = [key for key in made_up if not key.endswith(DECAYS)]
    made_up += sorted(map(str, found["mismatched_keys"]))
    if made_up:
        raise ValueError(f"transformers makes up {', '.join(made_up[:3])}")
    if request.strict and found["unexpected_keys"]:
        raise ValueError(f"transformers does not know {', '.join(sorted(map(str, found['unexpected_keys']))[:3])}")
    if request.adapter:
        import peft

        model = peft.PeftModel.from_pretrained(model, request.adapter)
    asked = {"input_ids": torch.tensor([request.prompt])}
    embeds = loader not in LANGUAGE
    asked |= {"decoder_input_ids": asked["input_ids"]} if loader is transformers.AutoModelForSeq2SeqLM else {}
    asked |= {} if embeds else {"use_cache": False}
    if loader is transformers.AutoModelForSequenceClassification:
        beginnings = (asked["input_ids"][:, :stop] for stop in range(1, len(request.prompt) + 1))
        with torch.no_grad():
            return np.concatenate([model.eval()(input_ids=ids).logits.numpy() for ids in beginnings])
    with torch.no_grad():
        found = model.eval()(**asked, return_dict=True)
    return np.asarray((found.last_hidden_state if embeds else found.logits)[0].float().numpy())


def class_of(config: Any) -> Any:
    """Which of transformers' automatic classes computes a model."""
    name = str((config.architectures or [""])[0])
    if name.endswith("EncoderModel"):  # half of what the configuration describes
        return transformers.AutoModelForTextEncoding
    if name.endswith("ForSequenceClassification"):
        return transformers.AutoModelForSequenceClassification
    if config.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    encoder = name.endswith("Model") and not name.endswith("LMHeadModel")
    return transformers.AutoModel if encoder else auto_class(config)


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    serve(rows)
