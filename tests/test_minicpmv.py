"""MiniCPM-V 2.5 to 4.5: tower and resampler for libmtmd, and the text model of another family behind ``llm.``."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from test_libmtmd import BEFORE, BEHIND, computed
from tower_cases import checkpoint, recorded_tower, with_tokens

from ckconv import Options
from ckconv.api import convert, convert_tower
from ckconv.errors import CkconvError
from ckconv.plan.probe import sinusoids

RECORDED = recorded_tower("minicpmv-f16")


def released(**said: Any) -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(json.dumps(RECORDED))
    recorded["config"] |= said
    return recorded


#: Version -> architecture of the text model's GGUF, and llama.cpp's number.
VERSIONS = {"2.5": ("llama", 2), "2.6": ("qwen2", 3), "4.0": ("llama", 5), "4.5": ("qwen3", 6)}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_version_is_a_number_and_a_text_model(version: str, tmp_path: Path) -> None:
    family, number = VERSIONS[version]
    recorded = released(version=version, head_dim=32, auto_map={"AutoModel": "modeling_minicpmv.MiniCPMV"})
    for name in [name for name in recorded["tensors"] if family != "qwen2" and "_proj.bias" in name and "llm." in name]:
        del recorded["tensors"][name]
    norms = [f"llm.model.layers.{n}.self_attn.{one}_norm.weight" for n in range(2) for one in "qk"]
    recorded["tensors"] |= {name: ["F16", [32]] for name in norms if family == "qwen3"}
    if family == "qwen2":
        del recorded["config"]["head_dim"]
    source = checkpoint(recorded, tmp_path / "source")

    convert(source, tmp_path / "text.gguf")
    convert_tower(source, tmp_path / "mmproj.gguf")

    text, tower = (gguf.GGUFReader(tmp_path / f"{name}.gguf").fields for name in ("text", "mmproj"))
    assert text["general.architecture"].contents() == family
    assert tower["clip.minicpmv_version"].contents() == number


@pytest.mark.parametrize("to", ["safetensors", "mlx"])
def test_the_text_model_alone_is_one_of_its_own_class(to: str, tmp_path: Path) -> None:
    source = checkpoint(released(auto_map={"AutoModel": "modeling_minicpmv.MiniCPMV"}), tmp_path / "source")

    convert(source, f"{tmp_path}/text/", to=to, options=Options(drop=("tower",)))

    said = json.loads((tmp_path / "text" / "config.json").read_text())
    assert (said["model_type"], said["architectures"]) == ("qwen2", ["Qwen2ForCausalLM"])
    assert said.keys() & {"vision_config", "version", "query_num", "auto_map", "image_size"} == set()
    assert said["hidden_size"] == 128


def test_a_copy_is_the_whole(tmp_path: Path) -> None:
    source = checkpoint(RECORDED, tmp_path / "source")

    assert convert(source, f"{tmp_path}/copy/", to="safetensors").verified == len(RECORDED["tensors"])

    said, copied = (json.loads((root / "config.json").read_text()) for root in (source, tmp_path / "copy"))
    assert said == copied


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"version": "3.0"}, "no number for this version"),
        ({"drop_vision_last_layer": True}, "whole of the tower is True"),
        ({"drop_vision_last_layer": None}, "whole of the tower is True"),  # as the class has it by itself
        ({"architectures": ["MiniCPMO"]}, "knows no tower of a 'minicpmv'"),
        ({"vision_config": {**RECORDED["config"]["vision_config"], "layer_norm_eps": 1e-5}}, "layer_norm_eps .* 1e-05"),
    ],
)
def test_what_libmtmd_computes_otherwise_is_refused(said: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(CkconvError, match=why):
        convert_tower(checkpoint(released(**said), tmp_path / "source"), tmp_path / "mmproj.gguf")


def test_a_gguf_and_its_mmproj_make_no_checkpoint_of_a_class_that_is_code(tmp_path: Path) -> None:
    source = checkpoint(RECORDED, tmp_path / "source")
    convert(source, tmp_path / "text.gguf")
    convert_tower(source, tmp_path / "mmproj.gguf")

    with pytest.raises(CkconvError, match=r"gets no minicpmv \(model_type\): its class is code of its repository"):
        convert(tmp_path / "text.gguf", f"{tmp_path}/back/", mmproj=tmp_path / "mmproj.gguf")


def test_a_table_of_other_positions_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = "ckconv.formats.gguf.plan.sinusoids"
    monkeypatch.setattr(made, lambda rows, columns, deep: sinusoids(rows, columns, deep)[::-1])
    with pytest.raises(CkconvError, match="pos_embed_k"):
        convert_tower(checkpoint(RECORDED, tmp_path / "source"), tmp_path / "mmproj.gguf")
    assert not (tmp_path / "mmproj.gguf").exists()


def seen(root: Path, picture: np.ndarray) -> Any:
    """What the resampler of the repository makes of a picture that nobody cuts (resampler.py, modeling_minicpmv.py)."""
    import torch
    import transformers
    from safetensors.torch import load_file

    document = json.loads((root / "config.json").read_text())
    stored = {key: value.float() for key, value in load_file(root / "model.safetensors").items()}
    part = lambda start: {key[len(start) :]: stored[key] for key in stored if key.startswith(start)}  # noqa: E731
    table, width = document["vision_config"], document["hidden_size"]
    vision = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**table)).eval()
    vision.load_state_dict(part("vpm."), strict=False)
    side = len(picture) // table["patch_size"]
    bucket = torch.arange(side) * 70 // side
    places = (bucket[:, None] * 70 + bucket).ravel()
    pixels = torch.tensor((picture / 255 - [0.5, 0.25, 0.125]) / [0.5, 0.4, 0.3], dtype=torch.float32)
    with torch.no_grad():
        patches = vision.embeddings.patch_embedding(pixels.permute(2, 0, 1)[None]).flatten(2).transpose(1, 2)
        states = vision.encoder(patches + vision.embeddings.position_embedding(places)).last_hidden_state
        states = vision.post_layernorm(states)[0] @ stored["resampler.kv_proj.weight"].T
        norm = lambda name, one: torch.nn.functional.layer_norm(  # noqa: E731
            one, [width], *(stored[f"resampler.{name}.{kind}"] for kind in ("weight", "bias")), 1e-6
        )
        heard, asked = norm("ln_kv", states), norm("ln_q", stored["resampler.query"])
        turns = 10000 ** (-np.arange(width // 4) / (width // 4))
        spun = np.arange(side)[:, None] * turns
        axis = torch.tensor(np.concatenate([np.sin(spun), np.cos(spun)], 1), dtype=torch.float32)
        grid = torch.cat([axis.repeat(side, 1), axis.repeat_interleave(side, 0)], 1)  # along a row, then down
        attention = torch.nn.MultiheadAttention(width, width // 128).eval()
        attention.load_state_dict(part("resampler.attn."))
        found = attention(asked, heard + grid, heard)[0]
        return norm("ln_post", found) @ stored["resampler.proj"]


@pytest.mark.live
@pytest.mark.skipif(not importlib.util.find_spec("xllamacpp"), reason="xllamacpp is not installed")
def test_libmtmd_sees_what_the_class_computes_and_says_what_qwen_2_says(tmp_path: Path) -> None:
    import torch
    import transformers
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    source = with_tokens(RECORDED, tmp_path / "source", "<image>", "</image>", "<slice>", "</slice>")
    picture = np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    rows, ids, logits = computed("minicpmv-f16", source, picture, tmp_path)

    wanted = seen(source, picture)
    assert rows.shape == wanted.shape
    assert np.abs(rows - wanted.numpy()).max() < 2e-3 * wanted.abs().max()
    words = Tokenizer.from_file(str(source / "tokenizer.json"))
    before, behind = (words.encode(text).ids for text in (f"{BEFORE}<image>", f"</image>{BEHIND}"))
    assert ids.tolist() == [*before, *[-1] * len(wanted), *behind]
    document = json.loads((source / "config.json").read_text())
    text = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**{**document, "model_type": "qwen2"})).eval()
    stored = load_file(source / "model.safetensors").items()
    text.load_state_dict({key[4:]: value.float() for key, value in stored if key.startswith("llm.")})
    with torch.no_grad():
        embed = text.model.embed_tokens
        both = torch.cat([embed(torch.tensor(before)), wanted, embed(torch.tensor(behind))])
        said = text(inputs_embeds=both[None]).logits[0].numpy()[np.array(ids) != -1]
    assert np.abs(logits - said).max() < 2e-3 * np.abs(said).max()
