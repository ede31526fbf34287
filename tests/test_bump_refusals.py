"""Families that the engine computes wrong, does not build or does not convert: each is refused for a reason of its own.

The table is what was run, in the release where it is best; figures are of the logits' standard deviation.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import family_cases
import numpy as np
import pytest
from checkpoints import Decoder, save
from gemma3_checkpoint import gemma3

import ckconv
from ckconv.errors import CkconvError, UnsupportedError
from ckconv.families.catalog import FAMILIES

EXPERTS = "the engine has no template with experts of SwiGLU"
LATENT = "the engine's converter wants projections of Q, K and V, which latent attention does not have"


class Wrong(NamedTuple):
    """What became of a family in the engine, and what is said of it."""

    run: str
    said: str


FAMILIES_RUN = {
    "gemma": Wrong("not converted: missing attention.head_count", "that of gemma3 needs four more norms in a layer"),
    "gemma2": Wrong("not converted: missing attention.head_count", "that of gemma3 wants norms of Q and K"),
    "qwen3_next": Wrong("480 %", "its kernel of linear layers takes heads of keys for those of values"),
    "qwen3_5_moe": Wrong("no experts", EXPERTS),
    "gemma4_text": Wrong("124 %", "layers that use K and V of others with K and V of their own"),
    "deepseek_v2": Wrong("not converted: missing attention projection tensors", LATENT),
    "deepseek_v3": Wrong("not built, as kimi_vl: body weights not used: mla_kv_a_norm", "leaves a norm unused"),
    "ministral3": Wrong("not built: missing template for arch 'mistral3'", "no template for mistral3"),
    "smollm3": Wrong("not converted: missing attention.head_count", "no layers without RoPE"),
    "nemotron_h_moe": Wrong("142 %", "a nemotron_h with experts in blocks only, and computes something else"),
    "mixtral": Wrong("no template", EXPERTS),
    "qwen3moe": Wrong("no template", EXPERTS),
    "arcee": Wrong("no template", "the engine's MLP has a gate, and arcee's has none"),
    "granite": Wrong("no template", "no multipliers of embeddings, attention, residuals and logits (model_type)"),
    "stablelm": Wrong("no template", "no LayerNorm"),
    "olmo2": Wrong("no template", "before attention and MLP, and olmo2's after them"),
    "cohere": Wrong("no template", "attention and MLP one after the other, and cohere computes them side by side"),
    "exaone4": Wrong("no template", "before attention and MLP, and exaone4's after them"),
    "hunyuan_v1_dense": Wrong("no template", "normalizes Q and K before RoPE, and hunyuan_v1_dense after it"),
    "glm": Wrong("no template", "that of glm4 needs two more norms in a layer"),
}


#: Families with none of what the templates compute, of which nothing is to be said but that; others need a sentence.
WITHOUT_A_SENTENCE = {
    "afmoe", "bailing_hybrid", "bamba", "bert", "bert_classifier", "camembert", "chatglm", "dflash", "distilbert",
    "distilbert_classifier", "dspark", "eagle3", "exaone", "falcon_h1", "falcon_mamba", "gemma4_dspark",
    "gemma_embedding", "granite4", "granite_swa", "granitehybrid", "granitemoe_swa", "granitemoehybrid", "grovemoe",
    "internlm2", "iquestloopcoder", "jamba", "jina_bert", "jina_bert_classifier", "jina_bert_code", "kimi_linear",
    "kormo", "lfm2_bidirectional", "lille", "mamba", "mamba2", "mimo", "minimax_m2", "modernbert",
    "modernbert_classifier", "nanochat", "nomic_bert", "nomic_bert_moe", "pangu_embedded", "plamo", "qwen",
    "qwen3_classifier", "rnd1", "roberta", "roberta_classifier", "solar_open", "spark2_5", "t5", "t5_encoder",
    "telechat3", "umt5_encoder", "xlm_roberta", "xlm_roberta_classifier", "xverse",
}  # fmt: skip


def refusal(source: Path, folder: Path, **options: object) -> list[str]:
    """Every reason for which a checkpoint does not go to bump 5, for July's engine."""
    asked = ckconv.Options(bump_version=5, engine="july", **options)  # type: ignore[arg-type]
    with pytest.raises(CkconvError) as caught:
        ckconv.convert(source, f"{folder}/bump/", to="bump", options=asked)
    assert (caught.value.code, caught.value.exit_code) == ("plan.refused", 4)
    assert not (folder / "bump").exists()
    return [*caught.value.details] or [caught.value.message.partition("this model: ")[2]]


@pytest.mark.parametrize("family", FAMILIES_RUN)
def test_a_family_is_refused_for_one_reason_of_its_own(family: str, tmp_path: Path) -> None:
    case = next(family_cases.cases(family))
    reasons = refusal(family_cases.checkpoint(case.recorded, tmp_path / "source"), tmp_path)
    assert len(reasons) == 1
    assert FAMILIES_RUN[family].said in reasons[0]


def test_a_family_without_a_reason_of_its_own_is_one_of_a_list() -> None:
    rows = {name: family.engines["bump5"] for name, family in FAMILIES.items() if "bump5" in family.engines}
    assert {name for name, row in rows.items() if row.absent and not row.why} == WITHOUT_A_SENTENCE


def test_the_general_reason_names_the_family_and_those_with_a_template(tmp_path: Path) -> None:
    case = next(case for case in family_cases.cases("minimax_m2"))
    (reason,) = refusal(family_cases.checkpoint(case.recorded, tmp_path / "source"), tmp_path)
    assert reason.startswith("the engine has no template for minimax_m2 (ckconv knows those of ")


def test_the_text_of_kimi_vl_is_a_deepseek(tmp_path: Path) -> None:
    """Not built: of its template no operation uses ``mla_kv_a_norm``."""
    source = family_cases.checkpoint(next(family_cases.cases("deepseek_v3")).recorded, tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    document = {"model_type": "kimi_vl", "architectures": ["KimiVLForConditionalGeneration"], "text_config": config}
    (source / "config.json").write_text(json.dumps(document))
    assert "its template for the text of Kimi VL leaves a norm unused" in refusal(source, tmp_path)[0]


def test_gemma_3_has_two_bases_of_rope_and_layers_without_a_window(tmp_path: Path) -> None:
    """100 %: one base and one window for all layers."""
    bases, windows = refusal(gemma3(tmp_path, {}), tmp_path)
    assert bases == "RoPE's base is 10,000 in 5 of 6 layers; the engine rotates all layers of gemma3 by 1,000,000"
    assert windows == "1 of 6 layers attend to all 256 tokens; the engine slides over 32 in every layer of gemma3"


def test_qwen_3_5_has_more_heads_of_values_than_of_keys(tmp_path: Path) -> None:
    """480 %."""
    case = next(case for case in family_cases.cases("qwen3_5") if case.name == "grouped_value_heads")
    reasons = refusal(family_cases.checkpoint(case.recorded, tmp_path / "source"), tmp_path)
    assert reasons == ["the engine's kernel takes heads of keys for those of values, and these are 3 of 8 and 6 of 8"]


def test_the_tower_beside_a_text_is_left_out_and_a_note_says_so(tmp_path: Path) -> None:
    source = family_cases.checkpoint(next(family_cases.cases("qwen3_vl")).recorded, tmp_path / "source")
    options = ckconv.Options(bump_version=5, engine="july")
    notes = ckconv.convert(source, f"{tmp_path}/bump/", to="bump", options=options).plan.notes
    left = "only the text part is written, without model.visual.* (39 tensors)"
    assert [note for note in notes if note.startswith(left)]


def test_numbers_of_64_bits_lead_to_32(tmp_path: Path) -> None:
    decoder = Decoder()
    wide = {name: np.asarray(array, np.float64) for name, array in decoder.tensors().items()}
    source = save(tmp_path / "hf", decoder.config(), wide)

    with pytest.raises(UnsupportedError) as info:
        ckconv.convert(source, tmp_path / "m.bump")
    assert "--dtype f32" in str((info.value.hint, info.value.details))
    ckconv.convert(source, tmp_path / "m.bump", options=ckconv.Options(dtype="f32"))
