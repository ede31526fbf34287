"""A quantized text model and its tower: what mlx-vlm's own conversion makes of the same model, and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from conftest import Result
from family_directions import quantized_otherwise
from test_mlx_vlm import raw
from test_towers_back import arrays
from tower_cases import recordings, seen_by_mlx_vlm, with_tokens

from ckconv.api import convert, verify
from ckconv.core.options import Options
from ckconv.errors import CkconvError
from ckconv.formats.mlx.plan import EIGHT, default_of, quantization_of

#: Sizes of the recorded models -> whole groups.
SIZES = {12: 32, 24: 64, 40: 96, 48: 128}

#: Those whose projector mlx-vlm quantizes, too, as its name is none of ``skip_multimodal_module``.
_CONNECTOR = {"connector.modality_projection.proj"}
PROJECTORS = {"smolvlm-f16": _CONNECTOR, "idefics3-f16": _CONNECTOR, "internvl_chat-bf16": {"mlp1.1", "mlp1.3"}}
NAMES = ["gemma3-f16", "internvl-bf16", "llava-f16", "mistral3-f16", "pixtral-f16", "qwen2_vl-f16", "qwen2_5_vl-f32",
         "qwen3_vl-f16", *PROJECTORS]  # fmt: skip

#: Parts of a tower whose sizes are those of the tower alone.
_OWN = ("vision_model", "visual.blocks", "vision_tower", "visual.merger.norm")


def wide(name: str, root: Path) -> Path:
    """The recorded model, with a text model of whole groups."""
    recorded = seen_by_mlx_vlm(name)
    config, vision = recorded["config"], recorded["config"]["vision_config"]
    text: dict[str, Any] = config.get("text_config") or config["llm_config"]
    for key, (dtype, shape) in recorded["tensors"].items():
        if not any(part in key for part in _OWN):
            recorded["tensors"][key] = [dtype, [SIZES.get(size, size) for size in shape]]
    head = SIZES.get(text.get("head_dim", 6), 16)
    text |= {"hidden_size": 64, "intermediate_size": 96, "head_dim": head}
    if "out_hidden_size" in vision:
        vision["out_hidden_size"] = 64
    if config["model_type"] == "qwen2_vl":
        vision["hidden_size"] = 64
    if "mrope_section" in text.get("rope_parameters", {}):
        text["rope_parameters"]["mrope_section"] = [head // 2 - 10, 5, 5] if head > 16 else [2, 3, 3]
    return with_tokens(recorded, root)


def two(name: str, root: Path) -> tuple[Path, Path]:
    """Directories of floats, and of a quantized text model; the second is verified."""
    source = wide(name, root / "hf")
    convert(source, f"{root}/plain/", to="mlx")
    convert(source, f"{root}/four/", to="mlx", options=Options(quantize="affine:4:32"))
    verify(root / "four", source, options=Options(quantize="affine:4:32"))
    return root / "plain", root / "four"


@pytest.mark.parametrize("name", NAMES)
def test_matrices_of_the_text_model_are_quantized_and_of_the_tower_those_of_mlx_vlm(name: str, tmp_path: Path) -> None:
    plain, four = map(raw, two(name, tmp_path))

    scaled = {key.removesuffix(".scales") for key in four if key.endswith(".scales")}
    assert plain.keys() == {key for key in four if not key.endswith((".scales", ".biases"))}
    dense = [key for key in plain if key.removesuffix(".weight") not in scaled]
    assert [key for key in dense if plain[key]["data"] != four[key]["data"]] == []
    matrices = {
        key.removesuffix(".weight") for key in plain if key.startswith("language") and len(plain[key]["shape"]) > 1
    }
    assert matrices | PROJECTORS.get(name, set()) == scaled


#: What a GGUF calls them.
IN_GGUF = {"connector.modality_projection.proj": "mm.model.fc", "mlp1.1": "mm.model.mlp.1", "mlp1.3": "mm.model.mlp.3"}


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """The nearest numbers of a type."""
    bits = array.view("u4")
    near: np.ndarray = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
    return {"F32": array, "F16": array.astype("f2").astype("f4"), "BF16": near.view("f4")}[dtype]


def values(stored: dict[str, Any], module: str, *, exact: bool = False) -> np.ndarray:
    """What 4-bit codes, and scales and biases of groups of 32, stand for: each step rounded, as MLX computes it."""
    weight, *numbers = (stored[f"{module}.{kind}"] for kind in ("weight", "scales", "biases"))
    words = np.frombuffer(weight["data"], "<u4").reshape(*weight["shape"], 1)
    codes = (words >> np.arange(0, 32, 4, dtype="u4") & 15).reshape(len(words), -1).astype("f4")
    scales, biases = (
        (np.frombuffer(one["data"], "<f2").astype("f4") if one["dtype"] == "F16" else wide_of(one["data"]))
        .repeat(32)
        .reshape(codes.shape)
        for one in numbers
    )
    to = "F32" if exact else numbers[0]["dtype"]
    return rounded(rounded(codes * scales, to) + biases, to)


def wide_of(data: bytes) -> np.ndarray:
    """Numbers of bfloat16."""
    return (np.frombuffer(data, "<u2").astype("u4") << 16).view("f4")


@pytest.mark.parametrize("name", PROJECTORS)
def test_a_quantized_projector_is_read(name: str, ckconv: Callable[..., Result], tmp_path: Path) -> None:
    _, four = two(name, tmp_path)
    stored = raw(four)
    wanted = {module: values(stored, module) for module in PROJECTORS[name]}

    for flags in ([], ["--dequantize"]):
        files = tmp_path / f"text{len(flags)}.gguf", tmp_path / f"mmproj{len(flags)}.gguf"
        assert ckconv("convert", four, files[0], "--mmproj", files[1], *flags).code == 0
        found = {one.name: one for one in gguf.GGUFReader(files[1]).tensors}
        for module, array in wanted.items():
            one = found[f"{IN_GGUF[module]}.weight"]
            assert one.tensor_type.name == ("F32" if flags else "Q4_1")
            assert np.array_equal(
                gguf.dequantize(one.data, one.tensor_type), array if flags else values(stored, module, exact=True)
            )
        assert ckconv("verify", files[1], four, *flags).code == 0
    assert ckconv("convert", four, f"{tmp_path}/copy/", "--to", "mlx").code == 0
    assert raw(tmp_path / "copy") == stored
    if not name.startswith("internvl_chat"):  # of which transformers has no class
        assert ckconv("convert", four, f"{tmp_path}/out/", "--to", "hf", "--dequantize").code == 0
        made = arrays(tmp_path / "out")
        assert [m for m, array in wanted.items() if not np.array_equal(made[f"model.{m}.weight"], array)] == []
        assert ckconv("verify", tmp_path / "out", four).code == 0


@pytest.mark.live
@pytest.mark.parametrize("name", NAMES)
def test_mlx_vlm_makes_the_same_bytes(name: str, tmp_path: Path) -> None:
    mx, utils = pytest.importorskip("mlx.core"), pytest.importorskip("mlx_vlm.utils")
    quant, trees = pytest.importorskip("mlx_vlm.quant_utils"), pytest.importorskip("mlx.utils")
    plain, four = two(name, tmp_path)
    model, said = utils.load_model(plain), json.loads((plain / "config.json").read_text())

    def chosen(path: str, module: Any) -> Any:
        """As in ``convert`` of mlx-vlm."""
        own = getattr(model, "quant_predicate", None)
        if utils.skip_multimodal_module(path):
            return False
        return own(path, module) if own else True

    made, document = quant.quantize_model(model, said, 32, 4, quant_predicate=chosen)

    wanted, found = dict(trees.tree_flatten(made.parameters())), mx.load(str(four / "model.safetensors"))
    assert found.keys() == wanted.keys()
    same = {
        key: (one.shape, one.dtype) == (found[key].shape, found[key].dtype)
        and np.array_equal(np.array(one.view(mx.uint8)), np.array(found[key].view(mx.uint8)))
        for key, one in wanted.items()
    }
    assert [key for key, alike in same.items() if not alike] == []
    assert json.loads((four / "config.json").read_text())["quantization"] == document["quantization"]
    loaded = dict(trees.tree_flatten(utils.load_model(four).parameters()))
    assert loaded.keys() == found.keys()


@pytest.mark.live
def test_single_modules_get_what_their_class_asks_for(tmp_path: Path) -> None:
    """Of every recorded model that mlx-vlm loads: matrices that are no ``nn.Linear``, and its ``quant_predicate``."""
    utils = pytest.importorskip("mlx_vlm.utils")
    wrong, seen = list[tuple[str, ...]](), set()
    for name in recordings():
        try:
            source = with_tokens(seen_by_mlx_vlm(name), tmp_path / name)
        except KeyError:  # ears
            continue
        try:
            convert(source, f"{source}-mlx/", to="mlx")
        except CkconvError:
            continue
        try:
            model = utils.load_model(Path(f"{source}-mlx"), lazy=True)
        except (KeyError, TypeError):  # a tower that mlx-vlm has not, or that was left out
            continue
        kind = json.loads(Path(f"{source}-mlx", "config.json").read_text())["model_type"]
        seen.add(kind)
        for path, *both in quantized_otherwise(model, f"mlx-vlm/{kind}"):
            if not utils.skip_multimodal_module(path):
                wrong.append((name, path, *both))
    assert len(seen) > 12
    assert wrong == []


def test_a_head_that_its_class_does_not_quantize_stays(tmp_path: Path) -> None:
    """``quant_predicate`` of mlx_vlm/models/mistral3/language.py."""
    source = wide("mistral3-f16", tmp_path / "hf")

    convert(source, f"{tmp_path}/out/", to="mlx", options=Options(quantize="affine:4:32", tie="untie"))

    made = raw(tmp_path / "out")
    heads = [name for name in made if "lm_head" in name]
    assert (heads, "language_model.model.embed_tokens.scales" in made) == (["language_model.lm_head.weight"], True)


@pytest.mark.live
def test_a_router_of_gemma_4_has_the_bits_that_its_class_asks_for() -> None:
    language, nn = pytest.importorskip("mlx_vlm.models.gemma4.language"), pytest.importorskip("mlx.nn")
    path, router = "language_model.model.layers.0.router.proj", nn.Linear(64, 4)

    asked = language.LanguageModel.quant_predicate.fget(None)(path, router)

    assert asked == {"group_size": EIGHT.group_size, "bits": EIGHT.bits}
    assert default_of(path, "mlx-vlm/gemma4", quantization_of("affine:4:32", ""), 64) == EIGHT
