"""A text model and its tower, two GGUFs: one checkpoint of transformers again, and each compared with its own part."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import family_cases
import gguf
import numpy as np
import pytest
from checkpoints import save
from conftest import Result
from family_cases import checkpoint as plain_checkpoint, recording
from gguf_copies import gguf_copy
from safetensors import deserialize
from tower_cases import recorded_tower, recordings, with_tokens

from ckconv.api import convert, convert_tower, diff, verify
from ckconv.core.options import Options
from ckconv.errors import CkconvError, InputError
from ckconv.families.names import is_beside_text
from ckconv.families.towers import tower_of_document

pytestmark = pytest.mark.usefixtures("unrefused")

RECORDED = recordings()

#: Models that see, of which both halves are known.
HALF = (
    # code of repositories
    *("internvl_chat", "ultravox", "kimi_vl", "kimi_k25", "dots_ocr", "cogvlm", "deepseek_ocr", "minicpmv-"),
    "qwen3_vl_moe",  # a GGUF of its tower is read as that of the dense ones
    "janus",  # it draws, too
)
WHOLE = [name for name in RECORDED if not name.startswith(HALF)]

GLM = ("glm4v", "glm4v_moe", "glm_ocr")
#: Of whose text models llama.cpp has gate and up in one.
TWO = ("glm4v-", "glm_ocr", "mistral3-mistral4")

#: Layers behind the one that the text model sees, and the norm behind them: they are in no mmproj.
BEHIND = {"llava-f16": ("layers.2.", "post_layernorm."), "llava-f32": ("layers.2.", "layers.3.", "post_layernorm.")}

#: Keys of a document that a GGUF does not say: how weights were drawn and dropped, who wrote it, how values are stored,
#: and how many tokens a picture is, which only a processor reads.
UNSAID = {
    "_pad_token_id", "use_cache",  # of SmolVLM
    "activation_dropout", "dropout", "encoder_layerdrop", "layerdrop", "projector_dropout", "router_jitter_noise",
    "full_attn_idxs", "moe_layers", "multi_modal_projector_bias", "vision_use_head",
    "audio_token_id", "boa_token_id", "eoa_token_index",  # of Gemma 4 without ears
    "_sliding_window_pattern", "attention_dropout", "dtype", "hidden_dropout_prob", "image_seq_length",
    "initializer_range", "layer_scale_init_value", "layer_types", "max_window_layers", "mrope_interleaved",
    "projection_dropout", "router_aux_loss_coef", "transformers_version", "use_bidirectional_attention",
    "use_mask_token",
    "position_id_per_seconds", "seconds_per_chunk", "user_token_id",  # of Qwen's Omni
}  # fmt: skip

#: Those that a GGUF says in other words: a Mistral whose window is as wide as its context is a Llama there; a head that
#: is the embedding is said of the whole.
RESTATED = {
    "text_config.model_type", "text_config.pretraining_tp",
    "text_config.sliding_window", "text_config.tie_word_embeddings", "vision_config.initializer_factor",
    "vision_config.tokens_per_second",
    "audio_config.vocab_size", "hidden_size", "image_size", "patch_size", "vision_config.norm_eps",
}  # fmt: skip
#: Idefics 3 comes back as the SmolVLM that it is; of a Gemma 4 per_layer_config says what global_head_dim does.
_GEMMA4 = {f"text_config.{key}" for key in ("moe_intermediate_size", "num_experts", "top_k_experts")}
_GEMMA4 |= {"vision_config.max_position_embeddings"}  # which nothing reads
_GEMMA4 |= {f"text_config.per_layer_config.{n}.{key}" for n in (2, 5) for key in ("head_dim", "num_key_value_heads")}
ALIAS = {
    "idefics3-f16": {"architectures", "model_type", "vision_config.model_type"},
    "paddleocr_vl-f16": {"vision_config.architectures"},  # by which llama.cpp's converter finds its class
    # one number for all layers; Gemma3nModel pools nothing and classifies nothing
    "gemma3n-bf16": {
        "text_config.intermediate_size",
        *(f"vision_config.{key}" for key in ("do_pooling", "label_names", "model_args", "num_classes")),
    },
    "glm4v_moe-f16": {"text_config.rope_parameters.partial_rotary_factor"},  # beside it
    "mistral3-mistral4": {"text_config.head_dim", "text_config.qk_head_dim"},  # which the class makes of others
    "exaone4_5-f16": {"text_config.sliding_window_pattern"},  # of a model that does not slide
    **dict.fromkeys((name for name in RECORDED if name.startswith("gemma4")), _GEMMA4),
}
#: The tower ends with the layer that the text model sees.
LAYERS = {"vision_config.num_hidden_layers": 2, "vision_feature_layer": -1}

#: Those that the tokenizer of the fixture says otherwise than the configuration.
SPECIAL = {"bos_token_id", "eos_token_id", "pad_token_id"}


def halves(name: str, root: Path, **config: object) -> tuple[Path, Path, Path]:
    """A checkpoint, its text model and its tower."""
    recorded = recorded_tower(name)
    recorded["config"] |= config
    source = with_tokens(recorded, root / "source")
    convert(source, root / "text.gguf")
    convert_tower(source, root / "mmproj.gguf")
    return source, root / "text.gguf", root / "mmproj.gguf"


def whole(name: str, root: Path) -> tuple[Path, Path, Path, Path]:
    """The three, and what is made of the two files."""
    source, text, mmproj = halves(name, root)
    convert(text, f"{root}/out/", mmproj=mmproj)
    return source, text, mmproj, root / "out"


def arrays(root: Path) -> dict[str, np.ndarray]:
    """Every tensor as float32, read by the library of the format."""
    found = {}
    for name, tensor in deserialize((root / "model.safetensors").read_bytes()):
        if tensor["dtype"] == "BF16":
            array = (np.frombuffer(tensor["data"], "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            array = np.frombuffer(tensor["data"], {"F16": "<f2", "F32": "<f4"}[tensor["dtype"]]).astype(np.float32)
        found[name] = array.reshape(tensor["shape"])
    return found


def said(document: dict[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in document.items():
        found |= said(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value}
    return {key: value for key, value in found.items() if key.rpartition(".")[2] not in UNSAID | SPECIAL}


def assert_tensors_are_there(name: str, source: Path, out: Path) -> None:
    """Every one, under its own name."""
    wanted, made = arrays(source), arrays(out)
    parts = BEHIND.get(name, ())
    behind = {key for key in wanted if key.startswith("vision_tower.") and any(part in key for part in parts)}
    unread = {key for key in wanted if ".audio_bos_eos_token." in key}  # which the class has
    behind |= unread
    zeros = {key for key in behind if "post_layernorm" in key} | unread
    assert len(zeros) == 2 * (name in BEHIND) + name.startswith("qwen2_5_omni")
    assert [key for key in zeros if made.pop(key).any()] == []
    wanted = {key: array for key, array in wanted.items() if key not in behind}
    assert made.keys() == wanted.keys()
    assert [name for name, array in wanted.items() if not np.array_equal(array, made[name])] == []


def assert_configuration_is_the_same(name: str, source: Path, out: Path) -> None:
    """It says what the original's said."""
    wanted, made = (said(json.loads((root / "config.json").read_text())) for root in (source, out))
    axial = {key: value for key, value in wanted.items() if key.startswith("vision_config.rope_parameters.")}
    wanted |= LAYERS if name in BEHIND else {}
    for document in (wanted, made):
        for key in (RESTATED | ALIAS.get(name, set())) & document.keys() if not name.startswith("gemma3-") else ():
            del document[key]
    assert {**made, **axial} == {**made, **wanted}
    prepared = json.loads((out / "preprocessor_config.json").read_text())
    assert {**prepared, **RECORDED[name]["prepared"]} == prepared


@pytest.mark.parametrize("name", WHOLE)
def test_the_two_files_are_the_checkpoints_two_halves(name: str, ckconv: Callable[..., Result], tmp_path: Path) -> None:
    source, text, mmproj = halves(name, tmp_path)

    done = ckconv("convert", text, mmproj, f"{tmp_path}/out/")

    assert done.code == 0, done.err
    assert "the class" in done.out
    assert_tensors_are_there(name, source, tmp_path / "out")
    assert_configuration_is_the_same(name, source, tmp_path / "out")
    checked = ckconv("verify", "--json", tmp_path / "out", text, mmproj)
    assert (checked.code, checked.json["mmproj"]) == (0, str(mmproj))
    # a row of the embedding is a tensor of the mmproj, too; what frequencies are divided by follows
    # and so do sines of positions
    within = name.startswith(("pixtral", "mistral3", "gemma4", "qwen2_5_omni"))
    # of three linear layers: q, k and v, and two of a convolution, in one; gate and up of two layers
    parts = 9 if name.startswith(("qwen3_5", "minicpmv4_6")) else 2 if name.startswith(TWO) else 0
    assert (
        checked.json["tensors"] == sum(len(gguf.GGUFReader(file).tensors) for file in (text, mmproj)) - within + parts
    )
    assert ckconv("verify", tmp_path / "out", mmproj, "--weights").code == 0
    assert verify(tmp_path / "out", text, mmproj=mmproj).compared


@pytest.mark.parametrize("name", RECORDED)
def test_a_tower_is_compared_with_the_tower_of_a_checkpoint(
    name: str, ckconv: Callable[..., Result], tmp_path: Path
) -> None:
    source = with_tokens(RECORDED[name], tmp_path / "source")
    convert_tower(source, tmp_path / "mmproj.gguf")

    for one, other in ((tmp_path / "mmproj.gguf", source), (source, tmp_path / "mmproj.gguf")):
        found = diff(one, other)
        most = 10 if name.startswith("gemma4_unified") else 30  # of no layers
        assert (found.same, found.equal > most, found.config, found.facts) == (True, True, {}, ())
        assert ckconv("diff", one, other).code == 0


def test_a_tower_of_other_values_is_another_one(tmp_path: Path) -> None:
    source = with_tokens(RECORDED["gemma3-f16"], tmp_path / "source")
    convert_tower(source, tmp_path / "mmproj.gguf")
    document = json.loads((source / "config.json").read_text())
    document["vision_config"]["layer_norm_eps"] = 1e-5
    (source / "config.json").write_text(json.dumps(document))

    found = diff(tmp_path / "mmproj.gguf", source)

    assert found.config == {"tower.norm_eps": (1e-6, 1e-5)}
    assert not found.same


def test_a_flipped_bit_of_the_tower_is_found(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    _, text, mmproj, out = whole("gemma3-f16", tmp_path)
    data = bytearray(mmproj.read_bytes())
    data[-40] ^= 1
    mmproj.write_bytes(data)

    done = ckconv("verify", out, text, mmproj)

    assert (done.code, "error[verify.tensor]" in done.err) == (5, True), done.err


TEXT, TOWER = "the text model of text.gguf", "the tower of mmproj.gguf"
REFUSED: list[tuple[str, str, str, str]] = [
    ("qwen3_vl-f16", "gemma3-f16", "plan.refused", f"{TOWER} is of a gemma3, and {TEXT} is a qwen3_vl"),
    ("qwen3_vl-f16", "qwen3_vl-bf16", "plan.refused", f"{TEXT} takes 2 layers of {TOWER}, which has 1"),
    ("gemma4_hearing-f16", "gemma4_unified-f16", "plan.refused", f"{TEXT} has layer_inputs.embedding.weight, which"),
]


@pytest.mark.parametrize(("text", "tower", "code", "why"), REFUSED)
def test_halves_of_two_models_are_refused(text: str, tower: str, code: str, why: str, tmp_path: Path) -> None:
    _, model, _ = halves(text, tmp_path / "text")
    _, _, mmproj = halves(tower, tmp_path / "tower")

    with pytest.raises(CkconvError) as caught:
        convert(model, f"{tmp_path}/out/", mmproj=mmproj)

    assert caught.value.code == code
    assert why in f"{caught.value.message} {caught.value.details}"
    assert not (tmp_path / "out").exists()


#: One of each tower whose file holds no row of the text model's embedding, and whose width is not the text model's.
_OTHERS = ("gemma3n", "minicpmv-", "glm4v_moe", "glm_ocr", "mistral3", "pixtral")
EACH = {name.partition("-")[0]: name for name in RECORDED if not name.startswith(_OTHERS)}


@pytest.mark.parametrize("name", EACH.values())
def test_a_tower_of_a_wider_text_model_is_refused(name: str, ckconv: Callable[..., Result], tmp_path: Path) -> None:
    """As a file beside the text model, and in a checkpoint whose configuration says the text model's width."""
    recorded = recorded_tower(name)
    config = recorded["config"]
    vlm = tower_of_document(config).engines.get("mlx_vlm")
    narrow = with_tokens(recorded, tmp_path / "narrow")
    for tensor, (_, shape, *_) in recorded["tensors"].items():
        shape[:] = [36 if size == 24 and is_beside_text(config, tensor) else size for size in shape]
    mixed = with_tokens(recorded, tmp_path / "mixed")
    for table in (config, *(value for value in config.values() if isinstance(value, dict))):
        table |= {key: 36 for key in ("hidden_size", "out_hidden_size", "projection_dim") if table.get(key) == 24}
    convert_tower(with_tokens(recorded, tmp_path / "wide"), tmp_path / "mmproj.gguf")

    with pytest.raises(InputError, match=r"has shape .* the configuration makes it"):
        convert_tower(mixed, tmp_path / "other.gguf")
    if name in WHOLE:
        convert(narrow, tmp_path / "text.gguf")
        for to in ("hf", *(["mlx"] if vlm is None or not vlm.absent else [])):
            done = ckconv("convert", tmp_path / "text.gguf", tmp_path / "mmproj.gguf", f"{tmp_path}/out/", "--to", to)
            assert (done.code, f"{TOWER} is of a text model of 36 elements, and {TEXT} has 24" in done.err) == (4, True)
        width = next(key for key in gguf.GGUFReader(tmp_path / "mmproj.gguf").fields if key.endswith(".projection_dim"))
        gguf_copy(tmp_path / "mmproj.gguf", tmp_path / "lying.gguf", keys={width: 24})
        done = ckconv("convert", tmp_path / "text.gguf", tmp_path / "lying.gguf", f"{tmp_path}/out/")
        assert done.code == (4 if name.startswith("llava") else 3), done.err  # of which nothing reads the key
    if vlm is not None and not vlm.absent:
        done = ckconv("convert", mixed, f"{tmp_path}/out/", "--to", "mlx")
        alone = not name.startswith(
            ("gemma3-", "gemma4_unified", "paddleocr_vl")
        )  # mlx-lm has no class of the text, or of two layers
        assert (done.code, "hint: --drop tower writes the text model alone" in done.err) == (3, alone), done.err


@pytest.mark.parametrize("sources", [["mmproj.gguf", "other.gguf"], ["text.gguf", "mmproj.gguf", "other.gguf"]])
def test_two_towers_are_refused_by_both_names(
    sources: list[str], ckconv: Callable[..., Result], tmp_path: Path
) -> None:
    halves("gemma3-f16", tmp_path)
    (tmp_path / "other.gguf").write_bytes((tmp_path / "mmproj.gguf").read_bytes())
    paths = [tmp_path / name for name in sources]

    done = ckconv("convert", *paths, f"{tmp_path}/out/")

    said = f"error[plan.refused]: {paths[-2]} and {paths[-1]} are 2 towers, and a checkpoint has one"
    assert (done.code, said in done.err) == (4, True), done.err
    text = paths[0] if "text.gguf" in sources else "MODEL.gguf"
    assert f"hint: ckconv convert {text} {paths[-2]} DST/ takes the first" in done.err
    assert not (tmp_path / "out").exists()


def test_a_text_model_that_the_class_would_not_find_is_refused(tmp_path: Path) -> None:
    _, _, mmproj = halves("llava-f16", tmp_path)
    case = next(case for case in recording("gpt2").values() if "config" in case and "tensors" in case)
    convert(plain_checkpoint(case, tmp_path / "gpt2"), tmp_path / "gpt2.gguf")

    with pytest.raises(CkconvError) as caught:
        convert(tmp_path / "gpt2.gguf", f"{tmp_path}/out/", mmproj=mmproj)

    assert caught.value.exit_code == 4
    assert "called model.*, and a gpt2 has other names" in f"{caught.value.message} {caught.value.details}"


#: What InternVL's own code calls tensors -> what transformers' class does.
OF_THE_CLASS = (
    *(("language_model.model.", "model.language_model."), ("language_model.lm_head", "lm_head")),
    *(("vision_model.", "model.vision_tower."), ("embeddings.class_embedding", "embeddings.cls_token")),
    *(("patch_embedding.", "patch_embeddings.projection."), ("position_embedding", "position_embeddings")),
    *(("encoder.layers.", "encoder.layer."), (".norm1.", ".layernorm_before."), (".norm2.", ".layernorm_after.")),
    *((".ls1", ".lambda_1"), (".ls2", ".lambda_2"), ("attn.proj", "attention.projection_layer")),
    *(
        (f"mlp1.{n}", f"model.multi_modal_projector.{name}")
        for n, name in ((0, "layer_norm"), (1, "linear_1"), (3, "linear_2"))
    ),
)


def test_internvls_own_checkpoint_becomes_that_of_transformers(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    source, _, _, out = whole("internvl_chat-bf16", tmp_path)

    wanted, made = arrays(source), arrays(out)
    renamed = {}
    for name, array in wanted.items():
        parts = dict(zip("qkv", np.split(array, 3), strict=True)) if ".qkv." in name else {"": array}
        for part, values in parts.items():
            called = name.replace("attn.qkv", f"attention.{part}_proj")
            for own, class_ in OF_THE_CLASS:
                called = called.replace(own, class_, 1)
            renamed[called] = values
    assert made.keys() == renamed.keys()
    assert [name for name, array in renamed.items() if not np.array_equal(array, made[name])] == []
    said = json.loads((out / "config.json").read_text())
    assert (said["model_type"], said["image_seq_length"], said["vision_config"]["image_size"]) == (
        "internvl",
        4,
        [16, 16],
    )
    assert ckconv("verify", tmp_path / "text.gguf", source).code == 0
    assert ckconv("verify", tmp_path / "mmproj.gguf", source).code == 0
    convert(source, f"{tmp_path}/mlx/", to="mlx")
    done = ckconv("convert", tmp_path / "mlx", f"{tmp_path}/hf/", "--to", "hf")
    assert (done.code, "writes two files, and of those ckconv makes an internvl" in done.err) == (4, True), done.err
    two = (tmp_path / "two.gguf", tmp_path / "seen.gguf")
    assert ckconv("convert", tmp_path / "mlx", two[0], "--mmproj", two[1]).code == 0
    assert ckconv("convert", *two, f"{tmp_path}/hf/").code == 0
    assert diff(tmp_path / "hf", out).same


def test_a_class_that_is_code_of_its_repository_is_not_made_up(tmp_path: Path) -> None:
    _, text, mmproj = halves("ultravox-f16", tmp_path)

    with pytest.raises(CkconvError, match=r"gets no ultravox \(model_type\): its class is code of its repository"):
        convert(text, f"{tmp_path}/out/", mmproj=mmproj)


def test_a_vocabulary_without_the_tokens_of_pictures_is_refused(tmp_path: Path) -> None:
    source, _, mmproj = halves("gemma3-f16", tmp_path)
    document = json.loads((source / "tokenizer.json").read_text())
    document["added_tokens"] = [one for one in document["added_tokens"] if "image" not in one["content"]]
    (source / "tokenizer.json").write_text(json.dumps(document))
    convert(source, tmp_path / "blind.gguf")

    with pytest.raises(
        CkconvError, match=r"the vocabulary has no <image_soft_token>, <start_of_image>, <end_of_image>"
    ):
        convert(tmp_path / "blind.gguf", f"{tmp_path}/out/", mmproj=mmproj)


@pytest.mark.parametrize(
    ("name", "key", "value", "why"),
    [
        ("gemma3-f16", "use_gelu", False, "gelu of the tower is False, and transformers computes with True"),
        ("qwen2_5_vl-f32", "use_silu", False, "silu of the tower is False, and transformers computes with True"),
        ("pixtral-f16", "vision.attention.layer_norm_epsilon", 0.5, "norm_eps of the tower is 0.5, and transformers"),
        ("qwen3_vl-f16", "vision.attention.layer_norm_epsilon", 0.5, "norm_eps of the tower is 0.5, and transformers"),
    ],
)
def test_what_the_class_computes_otherwise_is_refused(
    name: str, key: str, value: object, why: str, tmp_path: Path
) -> None:
    _, text, mmproj = halves(name, tmp_path)
    reader = gguf.GGUFReader(mmproj, "r+")
    reader.fields[f"clip.{key}"].parts[-1][0] = value
    reader.data.flush()

    with pytest.raises(CkconvError, match=why) as caught:
        convert(text, f"{tmp_path}/out/", mmproj=mmproj)

    assert (caught.value.code, caught.value.exit_code) == ("plan.refused", 4)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("clip.vision.block_count", None, "block_count"),
        ("clip.projector_type", "nobody's", "ckconv does not know clip.projector_type"),
    ],
)
def test_an_mmproj_that_is_not_known_says_why(key: str, value: object, why: str, tmp_path: Path) -> None:
    _, text, mmproj = halves("llava-f16", tmp_path)
    other = {"without": [key]} if value is None else {"keys": {key: value}}
    gguf_copy(mmproj, tmp_path / "two.gguf", **other)

    with pytest.raises(CkconvError, match=r"two.gguf is a tower that is not known") as caught:
        convert(text, f"{tmp_path}/out/", mmproj=tmp_path / "two.gguf")
    assert [why in sentence for sentence in caught.value.details] == ([True] if why else []), caught.value.details
    assert (caught.value.code, caught.value.exit_code) == ("tower.unknown", 4)


@pytest.mark.parametrize(("key", "value"), [("clip.vision.feature_layer", [1, 2]), ("clip.vision.embedding_length", 7)])
def test_an_mmproj_of_other_sizes_than_its_keys_say_is_malformed(key: str, value: object, tmp_path: Path) -> None:
    _, text, mmproj = halves("llava-f16", tmp_path)
    gguf_copy(mmproj, tmp_path / "two.gguf", keys={key: value})

    with pytest.raises(InputError, match=r"tensor 'mm.0.weight' has shape \[24, 16\], the configuration makes it"):
        convert(text, f"{tmp_path}/out/", mmproj=tmp_path / "two.gguf")


def test_a_tower_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    from ckconv import Options

    _, text, mmproj = halves("gemma3-f16", tmp_path)
    options = Options(drop=("tower.projector.norm",))

    with pytest.raises(CkconvError, match=r"no tensor for tower\.projector\.norm, which --drop leaves out"):
        convert(text, f"{tmp_path}/out/", mmproj=mmproj, options=options)


@pytest.mark.parametrize(
    ("name", "flags", "hinted"),
    # of the last no class of transformers is known
    [("gemma3-f16", [], True), ("gemma3-f16", ["--to", "hf"], True), ("deepseek_ocr-f16", [], False)],
)
def test_a_tower_alone_is_told_what_it_is_converted_with(
    name: str, flags: list[str], hinted: bool, ckconv: Callable[..., Result], tmp_path: Path
) -> None:
    source, mmproj = with_tokens(RECORDED[name], tmp_path / "source"), tmp_path / "mmproj.gguf"
    convert_tower(source, mmproj)
    done = ckconv("convert", mmproj, f"{tmp_path}/out/", *flags)
    assert (done.code, "the source is no model but 'mmproj' (general.type)" in done.err) == (4, True), done.err
    hint = "hint: ckconv convert MODEL.gguf MMPROJ.gguf DST/ makes a checkpoint of it and its text model\n"
    assert (hint in done.err) == hinted, done.err


@pytest.mark.parametrize(
    ("sources", "target", "code", "why"),
    [
        (["text.gguf", "mmproj.gguf"], "whole.gguf", "usage.target", "no place for a text model and a tower"),
        (["mmproj.gguf", "text.gguf"], "out/", "usage", "text.gguf is no tower"),
        (["source", "mmproj.gguf"], "out/", "usage", "source is not a text model of a format"),
        (["text.gguf", "mmproj.gguf", "text.gguf"], "out/", "usage", "3 sources: one model expected"),
        (["text.gguf", "mmproj.gguf"], "out/", "plan.refused", "--names and --fuse are for text models"),
    ],
)
def test_what_is_no_model_and_its_tower_is_refused(
    sources: list[str], target: str, code: str, why: str, ckconv: Callable[..., Result], tmp_path: Path
) -> None:
    halves("gemma3-f16", tmp_path)
    more = ["--names", "gguf"] if code == "plan.refused" else []

    done = ckconv("convert", *(tmp_path / name for name in sources), f"{tmp_path}/{target}", *more)

    assert (done.code, f"error[{code}]" in done.err, why in done.err) == (4 if more else 2, True, True), done.err
    assert not (tmp_path / target).exists()


@pytest.mark.parametrize("flags", [["--resume"], ["--side-files-only"], ["--mmproj", "x.gguf"], ["--html", "x.html"]])
def test_what_is_for_one_source_is_refused_for_two(
    flags: list[str], ckconv: Callable[..., Result], tmp_path: Path
) -> None:
    done = ckconv("convert", tmp_path / "text.gguf", tmp_path / "mmproj.gguf", f"{tmp_path}/out/", *flags)

    assert (done.code, f"{flags[0]} is for one source" in done.err) == (2, True), done.err


#: Those that the class does not compute, of either checkpoint: one looks for what its own output has not (5.24), of the
#: other the tower is timm's, which has one size, and the recorded one is a sixteenth as wide.
FAILING = ("llama4-f16", "gemma3n-bf16")


@pytest.mark.live
@pytest.mark.parametrize("name", [name for name in WHOLE if name not in FAILING])
def test_transformers_sees_the_same_in_both(name: str, tmp_path: Path) -> None:
    source, _, _, out = whole(name, tmp_path)

    wanted, made = seen(source), seen(out)

    assert wanted.std() > 0.1
    assert np.abs(wanted - made).max() == 0


#: Kind of model -> the key with its token's number, how many of them a picture or a sound is, the shapes of what is
#: drawn at random, and what the class takes besides.
GIVEN: dict[str, tuple[str, int, dict[str, tuple[int, ...]], dict[str, Any]]] = {
    "idefics3": ("image_token_id", 4, {"pixel_values": (1, 1, 3, 16, 16)}, {}),
    "lfm2_vl": (
        "image_token_id",
        4,
        {"pixel_values": (1, 16, 768)},
        {"spatial_shapes": [[4, 4]], "pixel_attention_mask": [[1] * 16]},
    ),
    "llama4": ("image_token_index", 4, {"pixel_values": (1, 3, 16, 16)}, {}),
    "lighton_ocr": ("image_token_id", 4, {"pixel_values": (1, 3, 16, 16)}, {"image_sizes": [[16, 16]]}),
    "exaone4_5": ("image_token_id", 6, {"pixel_values": (24, 1176)}, {"image_grid_thw": [[1, 4, 6]]}),
    "qwen2_5_omni_thinker": ("image_token_index", 6, {"pixel_values": (24, 1176)}, {"image_grid_thw": [[1, 4, 6]]}),
    "minicpmv4_6": ("image_token_id", 1, {"pixel_values": (1, 3, 4, 64)}, {"target_sizes": [[4, 4]]}),
    "voxtral": ("audio_token_id", 3, {"input_features": (1, 8, 24)}, {}),
    "qwen2_audio": ("audio_token_index", 6, {"input_features": (1, 8, 24)}, {"feature_attention_mask": [[1] * 24]}),
    "audioflamingo3": ("audio_token_id", 6, {"input_features": (1, 8, 24)}, {"input_features_mask": [[1] * 24]}),
}


def seen(root: Path) -> np.ndarray:
    """Logits of a text with a picture in it, as transformers computes them."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    loader = getattr(transformers, json.loads((root / "config.json").read_text())["architectures"][0])
    model = loader.from_pretrained(root, dtype=torch.float32).eval()
    with torch.no_grad():
        found: np.ndarray = model(**pictured(root)).logits.numpy()
    return found


def pictured(root: Path) -> dict[str, Any]:
    """A text with a picture in it, as the class of transformers takes it."""
    torch = pytest.importorskip("torch")
    document = json.loads((root / "config.json").read_text())
    vision, draw = document.get("vision_config", {}), torch.Generator().manual_seed(1)
    if document["model_type"] in GIVEN:
        key, count, shapes, more = GIVEN[document["model_type"]]
        inputs = {name: torch.randn(*shape, generator=draw) for name, shape in shapes.items()}
        inputs |= {name: torch.tensor(value) for name, value in more.items()}
        ids = torch.tensor([[5, 9, *[document[key]] * count, 8, 11]])
        if document["model_type"] in ("exaone4_5", "minicpmv4_6"):
            inputs["mm_token_type_ids"] = (ids == document[key]).long()
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **inputs}
    if document["model_type"] == "gemma3":
        token, count = document["image_token_index"], document["mm_tokens_per_image"]
        pixels = torch.randn(1, 3, vision["image_size"], vision["image_size"], generator=draw)
        more: dict[str, Any] = {}
    elif document["model_type"] == "gemma4":
        token, count = document["image_token_id"], 4
        pixels = torch.randn(1, 36, 3 * vision["patch_size"] ** 2, generator=draw)
        places = [[n % 6, n // 6] for n in range(36)]
        more = {"image_position_ids": torch.tensor([places])}
        if document.get("audio_config"):  # a second of sound
            sound = torch.randn(1, 100, 128, generator=draw)
            more |= {"input_features": sound, "input_features_mask": torch.ones(1, 100, dtype=torch.bool)}
    elif document["model_type"] == "gemma4_unified":
        token, count = document["image_token_id"], 4
        pixels = torch.randn(1, 4, 3 * (3 * vision["patch_size"]) ** 2, generator=draw)
        more = {"image_position_ids": torch.tensor([[[0, 0], [1, 0], [0, 1], [1, 1]]])}
        sound = torch.randn(1, 25, 640, generator=draw)
        more |= {"input_features": sound, "input_features_mask": torch.ones(1, 25, dtype=torch.bool)}
    elif document["model_type"] == "smolvlm":
        size = vision["image_size"]
        token, count = document["image_token_id"], (size // vision["patch_size"] // document["scale_factor"]) ** 2
        pixels, more = torch.randn(1, 1, 3, size, size, generator=draw), {}
    elif document["model_type"] == "internvl":
        token, count = document["image_token_id"], document["image_seq_length"]
        pixels, more = torch.randn(1, 3, *vision["image_size"], generator=draw), {}
    elif "image_token_index" in document:
        size, merged = vision["image_size"], vision["patch_size"] * document.get("spatial_merge_size", 1)
        token, count = document["image_token_index"], (size // merged) ** 2
        pixels = torch.randn(1, 3, size, size, generator=draw)
        more = {"image_sizes": torch.tensor([[size, size]])} if vision["model_type"] == "pixtral" else {}
    else:
        token, count = document["image_token_id"], 6
        size = vision["patch_size"]
        rows = (3, size, size) if document["model_type"] == "paddleocr_vl" else (3 * 2 * size**2,)
        pixels = torch.randn(4 * count, *rows, generator=draw)
        more = {"image_grid_thw": torch.tensor([[1, 4, count]])}
    around = [document[key] for key in ("vision_start_token_id", "vision_end_token_id") if key in document]
    heard = [document["audio_token_id"]] * 25 if "input_features" in more else []
    ids = torch.tensor([[5, 9, *around[:1], *[token] * count, *around[1:], 8, *heard, 11]])
    typed = {
        "gemma3": "token_type_ids",
        "gemma4": "mm_token_type_ids",
        "gemma4_unified": "mm_token_type_ids",
        **dict.fromkeys(
            ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "paddleocr_vl", *GLM),
            "mm_token_type_ids",
        ),
    }
    kinds = {typed[kind]: (ids == token).long() for kind in typed if kind == document["model_type"]}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels, **more, **kinds}


@pytest.mark.parametrize("name", [name for name in RECORDED if name.startswith(("qwen2_vl", "qwen3_vl", "paddleocr"))])
def test_a_text_model_of_a_class_that_sees_is_refused_with_the_command_that_takes_its_tower(
    name: str, ckconv: Callable[..., Result], tmp_path: Path
) -> None:
    _, text, mmproj = halves(name, tmp_path)

    done = ckconv("convert", text, f"{tmp_path}/hf/", "--to", "hf")

    assert (done.code, "the text part alone is no model of it" in done.err) == (4, True), done.err
    assert "hint: ckconv convert MODEL.gguf MMPROJ.gguf DST/ makes a checkpoint of it and its tower" in done.err
    assert ckconv("convert", text, mmproj, f"{tmp_path}/hf/").code == 0


def test_the_text_of_qwen3_omni_is_not_sent_for_a_tower_that_is_not_known(
    ckconv: Callable[..., Result], tmp_path: Path
) -> None:
    case = next(family_cases.cases("qwen3_omni_moe"))
    source = family_cases.checkpoint(case.recorded, tmp_path / "source", case.tokenizer)
    thinker = json.loads((source / "config.json").read_text())
    del thinker["architectures"]
    whole = {"architectures": ["Qwen3OmniMoeForConditionalGeneration"], "model_type": "qwen3_omni_moe"}
    named = {f"thinker.{name}": array for name, array in arrays(source).items()}
    save(source, {**whole, "thinker_config": thinker}, named)

    two = ckconv("convert", source, tmp_path / "t.gguf", "--mmproj", tmp_path / "m.gguf")
    assert ckconv("convert", source, tmp_path / "text.gguf").code == 0
    back = ckconv("convert", tmp_path / "text.gguf", f"{tmp_path}/hf/", "--to", "hf")

    assert (two.code, "knows no tower of a 'qwen3_omni_moe'; llama.cpp does" in two.err) == (4, True), two.err
    said = "transformers has no class for qwen3_vl_moe or qwen3_omni_moe, whose GGUFs are the same: "
    assert (back.code, said in back.err, "hint" in back.err) == (4, True, False), back.err


@pytest.mark.parametrize("name", sorted(BEHIND))
def test_layers_that_nothing_sees_go_along_in_the_same_format(name: str, tmp_path: Path) -> None:
    source = with_tokens(RECORDED[name], tmp_path / "hf")

    convert(source, tmp_path / "out", to="hf", options=Options(tie="untie"))

    before, after = (
        dict(deserialize((root / "model.safetensors").read_bytes())) for root in (source, tmp_path / "out")
    )
    assert {key: one["data"] for key, one in after.items()} == {key: one["data"] for key, one in before.items()}
    assert all(any(part in key for key in after) for part in BEHIND[name])
    verify(tmp_path / "out", source, options=Options(tie="untie"))


def test_positions_that_no_class_computes_are_seen(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    source, text, mmproj = halves("qwen2_5_omni-f16", tmp_path)
    reader = gguf.GGUFReader(mmproj, "r+")
    table = next(one for one in reader.tensors if one.name == "a.position_embd.weight").data
    moved = np.outer(np.arange(1500), 10000.0 ** (-np.arange(10) / 9))
    assert np.abs(table - np.hstack([np.sin(moved), np.cos(moved)])).max() < 1e-3
    table[7, 3] += 0.01
    reader.data.flush()

    done = ckconv("verify", mmproj, source)
    assert (done.code, "a.position_embd.weight is not the table of sines and cosines" in done.err) == (5, True), (
        done.err
    )
    done = ckconv("convert", text, mmproj, f"{tmp_path}/out/")
    assert (done.code, "is no table of sines and cosines of positions" in done.err) == (4, True), done.err


def test_a_part_that_thinks_is_read_within_the_whole(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    source, *made = halves("qwen2_5_omni-f16", tmp_path)
    raw = (source / "model.safetensors").read_bytes()
    size = 8 + int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8:size]), raw[size:]
    header = {name if name == "__metadata__" else f"thinker.{name}": said for name, said in header.items()}
    said = {"dtype": "F16", "shape": [1, 2], "data_offsets": [len(data), len(data) + 4]}
    header["talker.model.embed_tokens.weight"] = said  # rows of what speaks are no rows of the text part's table
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (source / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data + bytes(4))
    part = json.loads((source / "config.json").read_text())
    document = {"model_type": "qwen2_5_omni", "dtype": "float16", "talker_config": {"hidden_size": 2}}
    (source / "config.json").write_text(json.dumps({**document, "thinker_config": part}))

    done = ckconv("convert", source, tmp_path / "again.gguf", "--mmproj", tmp_path / "seen.gguf")

    left = "left out talker.model.embed_tokens.weight: of the parts that speak"
    assert (done.code, left in done.out) == (0, True), done.err
    for again, file in zip((tmp_path / "again.gguf", tmp_path / "seen.gguf"), made, strict=True):
        assert again.read_bytes() == file.read_bytes()
        assert ckconv("verify", again, source).code == 0
    assert ckconv("convert", source, f"{tmp_path}/copy/", "--to", "hf").code == 0
    copied, own = (dict(deserialize((root / "model.safetensors").read_bytes())) for root in (tmp_path / "copy", source))
    assert copied == own
    assert (tmp_path / "copy" / "config.json").read_bytes() == (source / "config.json").read_bytes()
    assert ckconv("convert", source, f"{tmp_path}/wide/", "--to", "hf", "--dtype", "f32").code == 0
    wide = json.loads((tmp_path / "wide" / "config.json").read_text())
    types = wide["dtype"], wide["thinker_config"]["dtype"]
    assert (types, wide["talker_config"]) == (("float32", "float32"), {"hidden_size": 2})
    assert ckconv("edit", source, f"{tmp_path}/edited/", "--set-meta", "thinker_config.seconds_per_chunk=3").code == 0
    edited = json.loads((tmp_path / "edited" / "config.json").read_text())
    assert edited == {**document, "thinker_config": {**part, "seconds_per_chunk": 3}}
    kept = tmp_path / "kept.gguf", tmp_path / "kept-seen.gguf"
    assert ckconv("convert", source, kept[0], "--mmproj", kept[1], "--source-record").code == 0
    assert ckconv("convert", *kept, f"{tmp_path}/back/").code == 0
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "back" / name).read_bytes() == (source / name).read_bytes()
