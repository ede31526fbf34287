"""Pictures: what llama.cpp's libmtmd makes of them with ckconv's mmproj, and transformers with the checkpoint.

The library is the one within xllamacpp's wheel (``pip install xllamacpp``), which exports it.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from consumers import Consumer
from tower_cases import recordings, with_tokens

from ckconv.api import convert, convert_tower

_WHEEL = importlib.util.find_spec("xllamacpp")

#: Case -> height and width of a picture that nobody resizes or cuts.
PICTURES = {
    "gemma3-f16": (56, 56), "smolvlm-f16": (16, 16), "idefics3-f16": (16, 16), "pixtral-f16": (12, 16),
    "mistral3-f16": (24, 48), "qwen2_vl-f16": (112, 168), "qwen2_5_vl-f32": (112, 168), "qwen3_vl-f16": (32, 48),
    "qwen3_5-f16": (32, 48), "lfm2_vl-f16": (256, 352), "llama4-f16": (16, 16), "paddleocr_vl-f16": (8, 24),
    "gemma4-f16": (144, 192), "gemma4_unified-f16": (48, 66), "minicpmv4_6-f16": (32, 32),
}  # fmt: skip


def made(name: str, root: Path) -> Path:
    """The checkpoint, with as many positions as libmtmd's smallest picture takes, and parts as large as a picture."""
    recorded = json.loads(json.dumps(recordings()[name]))
    vision = recorded["config"]["vision_config"]
    if name.startswith("gemma4-"):
        vision["position_embedding_size"] = 840
        recorded["tensors"]["model.vision_tower.patch_embedder.position_embedding_table"][1][1] = 840
    elif name.startswith(("smolvlm", "idefics3")):
        recorded["prepared"]["size"] = {"longest_edge": vision["image_size"]}
    return with_tokens(recorded, root)


def seen(root: Path, picture: np.ndarray) -> np.ndarray:
    """Embeddings of the picture's tokens, as transformers computes them."""
    import torch
    import transformers

    document, prepared = (json.loads((root / f"{name}.json").read_text()) for name in ("config", "preprocessor_config"))
    kind, size = document["model_type"], document["vision_config"]["patch_size"]
    size *= document["vision_config"].get("pooling_kernel_size", 1) if kind == "gemma4_unified" else 1
    model = getattr(transformers, document["architectures"][0]).from_pretrained(root, dtype=torch.float32).eval()
    pixels = (picture / np.float32(255) - prepared["image_mean"]) / prepared["image_std"]
    rows, columns = pixels.shape[0] // size, pixels.shape[1] // size
    whole = torch.tensor(pixels.transpose(2, 0, 1)[None], dtype=torch.float32)
    patches = torch.tensor(pixels, dtype=torch.float32).reshape(rows, size, columns, size, 3)
    flat = patches.permute(0, 2, 1, 3, 4).reshape(1, rows * columns, -1)
    grid = {"image_grid_thw": torch.tensor([[1, rows, columns]])}
    if kind in ("smolvlm", "idefics3"):
        inputs: dict[str, Any] = {"pixel_values": whole[None]}
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
    elif kind.startswith("qwen"):
        squares = patches.reshape(rows // 2, 2, size, columns // 2, 2, size, 3).permute(0, 3, 1, 4, 6, 2, 5)
        twice = squares.reshape(rows * columns, 3, 1, -1).expand(-1, -1, 2, -1)
        inputs = {"pixel_values": twice.reshape(rows * columns, -1), **grid}
    else:
        sizes = {"image_sizes": torch.tensor([picture.shape[:2]])}
        inputs = {"pixel_values": whole, **(sizes if kind in ("llava", "mistral3") else {})}
    with torch.no_grad():
        found = model.get_image_features(**inputs)
        if kind == "llama4":  # the projector is behind it there
            found = model.multi_modal_projector(found.last_hidden_state)
        found = getattr(found, "pooler_output", found)
        parts = found if isinstance(found, list | tuple) else [found]
        return np.concatenate([part.reshape(-1, part.shape[-1]).numpy() for part in parts])


def tokens(name: str, found: np.ndarray, root: Path, picture: np.ndarray) -> np.ndarray:
    """Rows of the picture alone, in transformers' order."""
    document = json.loads((root / "config.json").read_text())
    if name.startswith("llama4"):  # column by column
        side = int(len(found) ** 0.5)
        return found.reshape(side, side, -1).swapaxes(0, 1).reshape(len(found), -1)
    if name.startswith(("pixtral", "mistral3")):  # a token behind each row of the picture but the last
        width = picture.shape[1] // document["vision_config"]["patch_size"] // document.get("spatial_merge_size", 1)
        return np.delete(found, np.s_[width :: width + 1], axis=0)
    if name.startswith(("smolvlm", "idefics3")):  # once as a part, and once as the whole
        part, whole = np.split(found, 2)
        assert np.array_equal(part, whole)
        return part
    return found[:, : document["text_config"]["hidden_size"]]  # what further layers get stands behind it


@pytest.mark.live
@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.skipif(not _WHEEL, reason="xllamacpp is not installed")
def test_libmtmd_sees_what_transformers_sees(name: str, tmp_path: Path) -> None:
    assert _WHEEL is not None
    assert _WHEEL.origin is not None
    source = made(name, tmp_path / "source")
    picture = np.random.default_rng(1).integers(0, 256, (*PICTURES[name], 3), dtype=np.uint8)
    files = {key: tmp_path / file for key, file in (("model", "t.gguf"), ("mmproj", "m.gguf"), ("picture", "p.npy"))}
    np.save(files["picture"], picture)
    convert(source, files["model"])
    convert_tower(source, files["mmproj"])

    library = next(Path(_WHEEL.origin).parent.glob("xllamacpp*.so"))
    with Consumer("llama_cpp_pictures.py", str(library)) as libmtmd:
        asked = {key: str(file) for key, file in files.items()}
        assert libmtmd.ask({**asked, "rows": str(tmp_path / "rows.npy")}) == ""

    found, wanted = tokens(name, np.load(tmp_path / "rows.npy"), source, picture), seen(source, picture)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() < 2e-3 * np.abs(wanted).max()  # ggml's GELU is a table of 16-bit floats
