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
from tower_cases import recordings, tokens_of, with_tokens

from ckconv import Options
from ckconv.api import convert, convert_tower

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
    recorded = json.loads(json.dumps(recordings()[name]))
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


@pytest.mark.live
@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.skipif(not _WHEEL, reason="xllamacpp is not installed")
def test_libmtmd_sees_what_transformers_sees_and_says_what_it_says(name: str, tmp_path: Path) -> None:
    assert _WHEEL is not None
    assert _WHEEL.origin is not None
    source = made(name, tmp_path / "source")
    picture = np.random.default_rng(1).integers(0, 256, (*PICTURES[name], 3), dtype=np.uint8)
    files = {key: tmp_path / file for key, file in (("model", "t.gguf"), ("mmproj", "m.gguf"), ("picture", "p.npy"))}
    np.save(files["picture"], picture)
    convert(source, files["model"], options=Options(dtype="f32", drop=DRAWING if name.startswith("janus") else ()))
    convert_tower(source, files["mmproj"])

    library = next(Path(_WHEEL.origin).parent.glob("xllamacpp*.so"))
    answers = {key: tmp_path / f"{key}.npy" for key in ("rows", "ids", "logits")}
    with Consumer("llama_cpp_pictures.py", str(library)) as libmtmd:
        asked = {key: str(file) for key, file in (files | answers).items()}
        assert libmtmd.ask({**asked, "text": BEFORE + "{}" + BEHIND}) == ""
    rows, ids, logits = (np.load(file) for file in answers.values())

    model, inputs = looking(source, picture)
    found, wanted = tokens(name, rows, source, picture), seen(model, inputs)
    assert found.shape == wanted.shape
    close = 1e-2 if name == "qwen3_5_moe-bf16" else 2e-3  # what is multiplied with BF16 is rounded; GELU is a table
    assert np.abs(found - wanted).max() < close * np.abs(wanted).max()

    words, places = prompt(name, source, picture, len(wanted))
    assert ids.tolist() == np.where(places, -1, words).tolist()
    said_there = said(model, inputs, words, places)[~places]
    assert np.abs(logits - said_there).max() < close * np.abs(said_there).max()
