"""Pictures: what llama.cpp's libmtmd makes of them with ckconv's mmproj, and transformers with the checkpoint.

The library is the one within xllamacpp's wheel (``pip install xllamacpp``), which exports it.
"""

from __future__ import annotations

import importlib.util
import json
import re
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from consumers import Consumer
from tower_cases import recorded_tower, tokens_of, with_tokens

from ckconv import Options
from ckconv.api import convert, convert_tower

pytestmark = pytest.mark.usefixtures("unrefused")

_WHEEL = importlib.util.find_spec("xllamacpp")

#: Case -> height and width of a picture that nobody resizes or cuts.
PICTURES = {
    "gemma3-f16": (56, 56), "smolvlm-f16": (16, 16), "idefics3-f16": (16, 16), "pixtral-f16": (12, 16),
    "mistral3-f16": (24, 48), "qwen2_vl-f16": (112, 168), "qwen2_5_vl-f32": (112, 168), "qwen3_vl-f16": (32, 48),
    "qwen3_5-f16": (32, 48), "lfm2_vl-f16": (256, 352), "llama4-f16": (16, 16), "paddleocr_vl-f16": (8, 24),
    "gemma4-f16": (144, 192), "gemma4_unified-f16": (48, 66), "minicpmv4_6-f16": (32, 32), "internvl-f16": (16, 16),
    "internvl-bf16": (24, 24), "llava-f16": (16, 16), "llava-f32": (20, 20), "lighton_ocr-f16": (8, 16),
    "glm4v-f16": (32, 48), "glm4v_moe-f16": (32, 48), "glm_ocr-f16": (32, 48), "exaone4_5-f16": (112, 168),
    "qwen2_5_omni-f32": (112, 168), "qwen3_vl_moe-f16": (32, 48), "qwen3_5_moe-bf16": (32, 48), "janus-f16": (16, 16),
    "mistral3-mistral4": (24, 48),
}  # fmt: skip


#: What stands around a picture, in the prompt and of libmtmd itself, with {} for the picture's tokens.
BEFORE, BEHIND = "What is", " in this picture?"
_PARTS = "<fake_token_around_image><row_1_col_1>{}\n\n<fake_token_around_image><global-img>{}<fake_token_around_image>"
_QWEN = "<|vision_start|>{}<|vision_end|>"
_GLM = "<|begin_of_image|>{}<|end_of_image|>"
AROUND = {
    "gemma3": "<start_of_image>{}<end_of_image>", "smolvlm": _PARTS, "idefics3": _PARTS, "pixtral": "{}[IMG_END]",
    "mistral3": "{}[IMG_END]", "qwen2_vl": _QWEN, "qwen2_5_vl": _QWEN, "qwen3_vl": _QWEN, "qwen3_5": _QWEN,
    "lfm2_vl": "<|image_start|>{}<|image_end|>", "llama4": "<|image_start|>{}<|image_end|>",
    "paddleocr_vl": "<|IMAGE_START|>{}<|IMAGE_END|>", "gemma4": "<|image>{}<image|>",
    "gemma4_unified": "<|image>{}<image|>", "minicpmv4_6": "<image>{}</image>", "internvl": "<img>{}</img>",
    "llava": "{}", "lighton_ocr": "<|im_start|>{}<|im_end|>", "glm4v": _GLM, "glm4v_moe": _GLM, "glm_ocr": _GLM,
    "exaone4_5": "<vision>{}</vision>", "qwen2_5_omni": _QWEN, "qwen3_vl_moe": _QWEN, "qwen3_5_moe": _QWEN,
    "janus": "{}",
}  # fmt: skip


#: Of Janus: what draws, which is in no GGUF.
DRAWING = ("model.generation_*", "model.vqmodel.*")


def made(name: str, root: Path) -> Path:
    """The checkpoint, with as many positions as libmtmd's smallest picture takes, and parts as large as a picture."""
    recorded = recorded_tower(name)
    vision = recorded["config"]["vision_config"]
    if name.startswith("gemma4-"):
        vision["position_embedding_size"] = 840
        recorded["tensors"]["model.vision_tower.patch_embedder.position_embedding_table"][1][1] = 840
    elif name.startswith(("smolvlm", "idefics3")):
        recorded["prepared"]["size"] = {"longest_edge": vision["image_size"]}
    elif name.startswith("exaone4_5"):
        recorded["prepared"] |= {"min_pixels": 28**2, "max_pixels": 280**2}
    known = tokens_of(recorded["config"]).values()
    around = re.findall(r"<[^<>]+>|\n\n", AROUND[name.rpartition("-")[0]])
    more = [text for text in dict.fromkeys(around) if text not in known and not name.startswith("qwen2_5_omni")]
    return with_tokens(recorded, root, *more)


def looking(root: Path, picture: np.ndarray) -> tuple[Any, dict[str, Any]]:
    """The model, of transformers, and what its class gets of the picture."""
    import torch
    import transformers

    document, prepared = (json.loads((root / f"{name}.json").read_text()) for name in ("config", "preprocessor_config"))
    kind, size = document["model_type"], np.ravel(document["vision_config"]["patch_size"]).tolist()[0]
    size *= document["vision_config"].get("pooling_kernel_size", 1) if kind == "gemma4_unified" else 1
    model = getattr(transformers, document["architectures"][0]).from_pretrained(root, dtype=torch.float32).eval()
    pixels = (picture / np.float32(255) - prepared["image_mean"]) / prepared["image_std"]
    rows, columns = pixels.shape[0] // size, pixels.shape[1] // size
    whole = torch.tensor(pixels.transpose(2, 0, 1)[None], dtype=torch.float32)
    patches = torch.tensor(pixels, dtype=torch.float32).reshape(rows, size, columns, size, 3)
    flat = patches.permute(0, 2, 1, 3, 4).reshape(1, rows * columns, -1)
    grid = {"image_grid_thw": torch.tensor([[1, rows, columns]])}
    if kind in ("smolvlm", "idefics3"):  # once as a part, and once as the whole
        inputs: dict[str, Any] = {"pixel_values": torch.stack([whole, whole], 1)}
    elif kind.startswith("gemma4"):
        places = [[n % columns, n // columns] for n in range(rows * columns)]
        inputs = {"pixel_values": flat, "image_position_ids": torch.tensor([places])}
    elif kind == "lfm2_vl":
        shapes, mask = torch.tensor([[rows, columns]]), torch.ones(1, rows * columns, dtype=torch.long)
        inputs = {"pixel_values": flat, "spatial_shapes": shapes, "pixel_attention_mask": mask}
    elif kind == "paddleocr_vl":
        inputs = {"pixel_values": patches.permute(0, 2, 4, 1, 3).reshape(-1, 3, size, size), **grid}
    elif kind == "minicpmv4_6":
        strip = patches.permute(4, 1, 0, 2, 3).reshape(1, 3, size, -1)
        inputs = {"pixel_values": strip, "target_sizes": torch.tensor([[rows, columns]])}
    elif kind.startswith(("qwen", "glm", "exaone")):
        squares = patches.reshape(rows // 2, 2, size, columns // 2, 2, size, 3).permute(0, 3, 1, 4, 6, 2, 5)
        twice = squares.reshape(rows * columns, 3, 1, -1).expand(-1, -1, 2, -1)
        inputs = {"pixel_values": twice.reshape(rows * columns, -1), **grid}
    else:
        sizes = {"image_sizes": torch.tensor([picture.shape[:2]])}
        inputs = {"pixel_values": whole, **(sizes if model.config.vision_config.model_type == "pixtral" else {})}
    if kind == "internvl" or (kind == "llava" and "image_sizes" not in inputs):
        class_token_behind(model.model.vision_tower)
    if kind == "llama4":  # libmtmd has the tokens of a picture column by column
        by_columns = lambda projector, read, found: found.unflatten(0, (rows // 2, -1)).transpose(0, 1).flatten(0, 1)  # noqa: E731
        model.multi_modal_projector.register_forward_hook(by_columns)
        model.language_model.register_forward_hook(lambda text, read, found: setattr(found, "image_outputs", None))
    return model, inputs


def class_token_behind(tower: Any) -> None:
    """Have the patches first, with positions of the one before, as libmtmd has them; a LLaVA loses the first."""

    def behind(part: Any, read: Any, found: Any) -> Any:
        places = part.position_embeddings if internvl else part.position_embedding.weight
        return (found - places).roll(-1, 1) + places

    internvl = hasattr(tower.embeddings, "cls_token")
    tower.embeddings.register_forward_hook(behind)
    if internvl:
        tower.layernorm.register_forward_hook(lambda norm, read, found: found.roll(1, 1))


def seen(model: Any, inputs: dict[str, Any]) -> np.ndarray:
    """Embeddings of the picture's tokens, as transformers computes them."""
    import torch

    with torch.no_grad():
        found = (model.model if model.config.model_type == "janus" else model).get_image_features(**inputs)
        if model.config.model_type == "llama4":  # the projector is behind it there
            found = model.multi_modal_projector(found.last_hidden_state.flatten(0, 1))
        found = getattr(found, "pooler_output", found)
        parts = found if isinstance(found, list | tuple) else [found]
        return np.concatenate([part.reshape(-1, part.shape[-1]).numpy() for part in parts])


def said(model: Any, inputs: dict[str, Any], ids: list[int], picture: np.ndarray) -> np.ndarray:
    """Logits of a prompt, as transformers computes them."""
    import torch

    kinds = torch.from_numpy(picture).long()[None]
    named = {
        key: kinds for key in ("mm_token_type_ids", "token_type_ids") if key in signature(model.forward).parameters
    }
    words = torch.tensor([ids])
    if model.config.model_type == "gemma4_unified":  # as generate() asks it; by itself every layer attends both ways
        shaped, places = torch.zeros(1, len(ids), 1), torch.arange(len(ids))[None]
        masks = model.create_masks_for_generate(model.config, shaped, None, None, places, kinds)
        named["attention_mask"] = masks
    if model.config.model_type == "qwen2_5_omni_thinker":  # which takes a picture for one behind this token alone
        before = words.clone()
        before[0, picture.argmax() - 1] = model.config.vision_start_token_id
        named["position_ids"] = model.get_rope_index(before, inputs["image_grid_thw"])[0]
    with torch.no_grad():
        found = model(input_ids=words, **inputs, **named, use_cache=False)
    return np.asarray(found.logits[0].numpy())


def prompt(name: str, root: Path, picture: np.ndarray, count: int) -> tuple[list[int], np.ndarray]:
    """Ids that transformers computes with, and which of them stand for the picture's tokens."""
    from tokenizers import Tokenizer

    document = json.loads((root / "config.json").read_text())
    words = Tokenizer.from_file(str(root / "tokenizer.json"))
    image = next(text for key, text in tokens_of(document).items() if key.startswith("image_token"))
    around = AROUND[name.rpartition("-")[0]]
    row = image * (count // around.count("{}"))
    if "[IMG_END]" in around:  # a token behind each row but the last
        size = document["vision_config"]["patch_size"] * document.get("spatial_merge_size", 1)
        row = "[IMG_BREAK]".join(picture.shape[0] // size * [picture.shape[1] // size * image])
    ids = words.encode(BEFORE + around.replace("{}", row) + BEHIND, add_special_tokens=False).ids
    return ids, np.isin(ids, [words.token_to_id(image), words.token_to_id("[IMG_BREAK]") or -1])


def tokens(name: str, found: np.ndarray, root: Path, picture: np.ndarray) -> np.ndarray:
    """Rows of the picture alone, in transformers' order."""
    document = json.loads((root / "config.json").read_text())
    if name.startswith(("pixtral", "mistral3")):  # a token behind each row of the picture but the last
        width = picture.shape[1] // document["vision_config"]["patch_size"] // document.get("spatial_merge_size", 1)
        return np.delete(found, np.s_[width :: width + 1], axis=0)
    return found[:, : document["text_config"]["hidden_size"]]  # what further layers get stands behind it


def computed(
    name: str, source: Path, media: np.ndarray, folder: Path, model: Path | None = None, dtype: str = "engine"
) -> list[np.ndarray]:
    """Embeddings, ids and logits of libmtmd and llama.cpp, with a file of the text model or another's."""
    assert _WHEEL is not None
    assert _WHEEL.origin is not None
    files = {key: folder / file for key, file in (("model", "t.gguf"), ("mmproj", "m.gguf"), ("picture", "p.npy"))}
    np.save(files["picture"], media)
    drop = DRAWING if name.startswith("janus") else ()
    convert(model or source, files["model"], options=Options(dtype="f32", drop=drop))
    convert_tower(source, files["mmproj"], options=Options(dtype=dtype, allow_lossy=True))
    library = next(Path(_WHEEL.origin).parent.glob("xllamacpp*.so"))
    answers = {key: folder / f"{key}.npy" for key in ("rows", "ids", "logits")}
    with Consumer("llama_cpp_pictures.py", str(library)) as libmtmd:
        asked = {key: str(file) for key, file in (files | answers).items()}
        assert libmtmd.ask({**asked, "text": BEFORE + "{}" + BEHIND}) == ""
    return [np.load(file) for file in answers.values()]


@pytest.mark.live
@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.skipif(not _WHEEL, reason="xllamacpp is not installed")
def test_libmtmd_sees_what_transformers_sees_and_says_what_it_says(name: str, tmp_path: Path) -> None:
    source = made(name, tmp_path / "source")
    picture = np.random.default_rng(1).integers(0, 256, (*PICTURES[name], 3), dtype=np.uint8)
    rows, ids, logits = computed(name, source, picture, tmp_path)

    model, inputs = looking(source, picture)
    found, wanted = tokens(name, rows, source, picture), seen(model, inputs)
    assert found.shape == wanted.shape
    close = 1e-2 if name == "qwen3_5_moe-bf16" else 2e-3  # what is multiplied with BF16 is rounded; GELU is a table
    assert np.abs(found - wanted).max() < close * np.abs(wanted).max()

    words, places = prompt(name, source, picture, len(wanted))
    assert ids.tolist() == np.where(places, -1, words).tolist()
    said_there = said(model, inputs, words, places)[~places]
    assert np.abs(logits - said_there).max() < close * np.abs(said_there).max()


#: Case -> samples of a sound; libmtmd has further silence behind thirty seconds. No release hears with a Gemma 3n.
SOUNDS = {
    "gemma4_hearing-f16": 16_000, "gemma4_unified-bf16": 16_000, "qwen2_audio-bf16": 480_000,
    "audioflamingo3-bf16": 480_000, "qwen2_5_omni-f16": 480_000, "ultravox-f16": 480_000, "ultravox-bf16": 480_000,
    "voxtral-bf16": 480_000,
}  # fmt: skip


def with_places(name: str, root: Path) -> Path:
    """The checkpoint, with as many positions as thirty seconds have."""
    recorded = recorded_tower(name)
    if recorded["config"]["audio_config"].get("max_source_positions", 1500) < 1500:
        recorded["config"]["audio_config"]["max_source_positions"] = 1500
        next(shape for key, (_, shape) in recorded["tensors"].items() if "embed_positions" in key)[0] = 1500
    return with_tokens(recorded, root)


def heard(root: Path, sound: np.ndarray) -> np.ndarray:
    """Embeddings of a sound, as transformers computes them."""
    import torch
    import transformers
    from safetensors.torch import load_file

    document = json.loads((root / "config.json").read_text())
    kind, audio = document["model_type"], document["audio_config"]
    if kind == "gemma4_unified":
        mel = sound.reshape(1, -1, 640)
    elif kind == "gemma4":
        mel = transformers.Gemma4AudioFeatureExtractor()([sound], sampling_rate=16_000)["input_features"]
        mel = np.log(np.maximum(np.exp(np.asarray(mel, np.float64)) - 1e-3, 1e-3))  # as libmtmd has the floor
    else:
        extractor = transformers.WhisperFeatureExtractor(feature_size=audio["num_mel_bins"])
        mel = extractor(sound, sampling_rate=16_000)["input_features"]
    features = torch.tensor(np.asarray(mel, np.float32))
    mask = torch.ones(1, features.shape[2 if kind not in ("gemma4", "gemma4_unified") else 1], dtype=torch.bool)
    if kind == "ultravox":  # whose class is code of its repository
        whisper = transformers.WhisperConfig(**audio)
        stored = {key: value.float() for key, value in load_file(root / "model.safetensors").items()}
        tower = transformers.models.whisper.modeling_whisper.WhisperEncoder(whisper).eval()
        tower.load_state_dict({key.removeprefix("audio_tower."): stored[key] for key in stored if "audio_tower" in key})
        norm_in, up, norm, down = (
            stored[f"multi_modal_projector.{part}.weight"] for part in ("ln_pre", "linear_1", "ln_mid", "linear_2")
        )
        with torch.no_grad():
            frames = tower(features).last_hidden_state.reshape(-1, len(norm_in))
            kept, gate = (rms(frames) * norm_in @ up.T).chunk(2, -1)
            return np.asarray((rms(torch.nn.functional.silu(gate) * kept) * norm @ down.T).numpy())
    if kind == "qwen2_5_omni_thinker":  # all at once, as libmtmd has it, not every two seconds by themselves
        (root / "config.json").write_text(json.dumps({**document, "audio_config": {**audio, "n_window": 1500}}))
    model = getattr(transformers, document["architectures"][0]).from_pretrained(root, dtype=torch.float32).eval()
    with torch.no_grad():
        if kind == "qwen2_audio":
            states = model.model.audio_tower(features, attention_mask=None).last_hidden_state
            found = model.model.multi_modal_projector(states)
        else:
            found = model.model.get_audio_features(features, *([] if kind == "voxtral" else [mask]))
            found = found.last_hidden_state if kind == "qwen2_5_omni_thinker" else found.pooler_output
    return np.asarray(found.reshape(-1, found.shape[-1]).numpy())


def rms(states: Any) -> Any:
    return states * (states.square().mean(-1, keepdim=True) + 1e-6) ** -0.5


@pytest.mark.live
@pytest.mark.parametrize("name", SOUNDS)
@pytest.mark.skipif(not _WHEEL, reason="xllamacpp is not installed")
def test_libmtmd_hears_what_transformers_hears(name: str, tmp_path: Path) -> None:
    source = with_places(name, tmp_path / "source")
    sound = (np.random.default_rng(1).standard_normal(SOUNDS[name]) * 0.1).astype(np.float32)
    other = made("lighton_ocr-f16", tmp_path / "other") if name.startswith("ultravox") else None
    if name.startswith("voxtral"):  # as the refusal says; a release that does not end may be right
        with pytest.raises(AssertionError, match="ended with status"):
            computed(name, source, sound, tmp_path)
        return
    rows, ids, _ = computed(name, source, sound, tmp_path, other)

    wanted = heard(source, sound)
    assert len(rows) == (ids == -1).sum() == len(wanted) * (2 if SOUNDS[name] == 480_000 else 1)
    found = rows[: len(wanted), : wanted.shape[1]]
    assert np.abs(found - wanted).max() < (1e-2 if name.endswith("bf16") else 2e-3) * np.abs(wanted).max()
