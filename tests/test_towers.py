"""Towers: what llama.cpp's converter makes of a model that sees, with ``--mmproj``, is what ckconv makes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import jsonschema
import numpy as np
import pytest
from checkpoints import bf16
from conftest import Result
from family_cases import values
from family_directions import differing, digest, read_gguf
from tower_cases import checkpoint, recorded_tower, recordings

from ckconv import Options
from ckconv.api import convert, convert_tower, open_model
from ckconv.errors import CkconvError
from ckconv.families.merge import FOLDER, is_family
from ckconv.families.towers import _towers_called, tower_family, tower_of_document

pytestmark = pytest.mark.usefixtures("unrefused")

#: What llama.cpp's converter rounds and ckconv does not: it stores matrix and kernels as F16 in every file, and adds 1
#: to the norm in the type of the source. So are the kernel of a CLIP and the matrices behind it in the older script's.
ROUNDED = {
    "gemma3-bf16": ("mm.input_projection.weight",),
    "gemma3-f16": ("mm.soft_emb_norm.weight",),
    "llava-f32": ("v.patch_embd.weight", "mm.0.weight", "mm.2.weight"),
    **dict.fromkeys(("ultravox-bf16", "voxtral-bf16", "qwen2_audio-bf16"), ("a.conv1d.1.weight", "a.conv1d.2.weight")),
}
#: Sines and cosines, of which torch's float32 are off in the last place.
ROUNDED["qwen2_5_omni-f32"] = ("a.position_embd.weight", "a.conv1d.1.weight", "a.conv1d.2.weight")
ROUNDED["qwen2_5_omni-f16"] = ("a.position_embd.weight",)
#: A kernel that the script has in F16 in every file, and sines and cosines of numpy's float32.
ROUNDED |= {
    "minicpmv-f16": ("resampler.pos_embed_k",),
    "minicpmv-f32": ("resampler.pos_embed_k", "v.patch_embd.weight"),
}
#: The converter knows no place for these norms of Gemma 3n, and rounds a matrix that nothing reads.
ROUNDED["gemma3n-bf16"] = ("a.conv1d.0.norm.weight", "a.conv1d.1.norm.weight", "a.pre_encode.out.weight")
#: log(1 + exp(w)) in float16, where w is, or by torch's float32, which is off in the last place.
ROUNDED |= {
    name: tuple(f"a.blk.{n}.per_dim_scale.weight" for n in range(2))
    for name in ("gemma4_hearing-bf16", "gemma4_hearing-f16")
}
#: Of Llama 4 the converter names the norm before the MLP as that behind attention, which Gemma 4 has; clip.cpp computes
#: another model then. Released files have it as here.
RENAMED = {"llama4-f16": (".attn_post_norm.", ".ln2.")}
#: Of Gemma 3n the converter gives scales of channels one axis, and clip.cpp ends at the first of them.
SCALES = ".layer_scale.gamma"
#: Whose kernels the converter leaves in BF16, at which ggml ends.
KERNELS = ("gemma3n-bf16",)
#: clip.cpp loads no Pixtral without it; convert_hf_to_gguf.py leaves out whatever is called language_model, and so it.
LINE_BREAK = "v.token_embd.img_break"
RECORDED = recordings()


def edited(name: str, root: Path, **vision: object) -> Path:
    recorded = recorded_tower(name)
    recorded["config"]["vision_config"] |= vision
    return checkpoint(recorded, root)


def rounded_to_bf16(array: np.ndarray) -> np.ndarray:
    bits = np.frombuffer(bf16(array).data, "<u2").astype(np.uint32) << 16
    return bits.view(np.float32)


def test_a_tower_is_compiled_for_its_own_types_alone() -> None:
    """Lines of its file that name text models are many."""
    every = [tower_family(path.stem) for path in (FOLDER / "towers").glob("*.toml") if is_family(path.read_text())]
    assert [one.name for one in every for name in one.in_huggingface.names if one not in _towers_called(name)] == []

    for remembers in (tower_family, _towers_called):
        remembers.cache_clear()
    assert (tower_of_document({"model_type": "llama"}), tower_family.cache_info().currsize) == (None, 0)


@pytest.mark.parametrize("name", RECORDED)
def test_an_mmproj_is_the_one_that_llama_cpps_converter_makes(name: str, tmp_path: Path) -> None:
    source = checkpoint(RECORDED[name], tmp_path / "source")

    report = convert_tower(source, tmp_path / "mmproj.gguf")

    made, wanted = read_gguf(tmp_path / "mmproj.gguf"), RECORDED[name]["converter"]
    if name.startswith(("pixtral", "mistral3")):
        assert LINE_BREAK not in wanted["tensors"]
        wanted["tensors"][LINE_BREAK] = made["tensors"][LINE_BREAK]
    old, new = RENAMED.get(name, ("", ""))
    wanted["tensors"] = {key.replace(old, new) if old else key: tensor for key, tensor in wanted["tensors"].items()}
    for scale in (key for key in wanted["tensors"] if key.endswith(SCALES)):
        wanted["tensors"][scale][1] = [1, *wanted["tensors"][scale][1], 1, 1]
    for one in gguf.GGUFReader(tmp_path / "mmproj.gguf").tensors if name in KERNELS else ():
        if (wanted["tensors"].get(one.name, [""])[0], one.tensor_type.name) == ("BF16", "F32"):  # the same numbers
            assert digest(one.data.view("<u2").reshape(-1, 2)[:, 1].tobytes()) == wanted["tensors"][one.name][2]
            wanted["tensors"][one.name] = made["tensors"][one.name]
    for rounded in ROUNDED.get(name, ()):
        wanted["tensors"][rounded] = made["tensors"][rounded]
    assert differing(wanted["tensors"], made["tensors"]) == ""
    assert differing(wanted["keys"], made["keys"]) == ""
    table = name.startswith(("qwen2_5_omni", "minicpmv-"))  # of positions, which is no part of the checkpoint
    assert report.verified == len(open_model(tmp_path / "mmproj.gguf").tensors) + table


@pytest.mark.parametrize(
    ("name", "stored", "more"),
    [
        ("gemma3-bf16", "multi_modal_projector.mm_input_projection_weight", 0),
        ("gemma3-f16", "multi_modal_projector.mm_soft_emb_norm.weight", 1),
        ("ultravox-bf16", "audio_tower.conv1.weight", 0),
    ],
)
def test_what_the_converter_rounds_is_exact_in_float32(name: str, stored: str, more: int, tmp_path: Path) -> None:
    convert_tower(checkpoint(RECORDED[name], tmp_path / "source"), tmp_path / "mmproj.gguf")

    found = next(one for one in gguf.GGUFReader(tmp_path / "mmproj.gguf").tensors if one.name == ROUNDED[name][0])
    kind, shape = RECORDED[name]["tensors"][stored]
    assert found.tensor_type.name == "F32"
    drawn = values(stored, tuple(shape)).ravel()
    wanted = drawn.astype(np.float16).astype(np.float32) if kind == "F16" else rounded_to_bf16(drawn)
    assert np.array_equal(found.data.ravel(), wanted + np.float32(more))


def test_kernels_of_one_channel_are_never_of_32_bits(tmp_path: Path) -> None:
    source = checkpoint(RECORDED["gemma3n-bf16"], tmp_path / "source")

    with pytest.raises(CkconvError, match=r"kernels in F16 or BF16 alone, and stops at F32: v\.blk\.\S+dw_start"):
        convert_tower(source, tmp_path / "wide.gguf", options=Options(dtype="f32"))
    convert_tower(source, tmp_path / "mmproj.gguf", options=Options(dtype="f16", allow_lossy=True))

    kinds = {one.name: one.tensor_type.name for one in gguf.GGUFReader(tmp_path / "mmproj.gguf").tensors}
    assert {kind for name, kind in kinds.items() if ".dw_" in name and ".conv." in name} == {"F16"}


@pytest.mark.parametrize("name", ["gemma4_hearing-bf16", "gemma4_hearing-f16"])
def test_scales_of_a_conformer_are_what_its_class_multiplies_with(name: str, tmp_path: Path) -> None:
    convert_tower(checkpoint(RECORDED[name], tmp_path / "source"), tmp_path / "mmproj.gguf")

    found = next(one for one in gguf.GGUFReader(tmp_path / "mmproj.gguf").tensors if one.name == ROUNDED[name][1])
    stored = "model.audio_tower.layers.1.self_attn.per_dim_scale"
    drawn = values(stored, tuple(RECORDED[name]["tensors"][stored][1]))
    kept = drawn.astype(np.float16) if name.endswith("-f16") else rounded_to_bf16(drawn)
    wanted = np.log(1 + np.exp(kept.astype(np.float64))).astype(np.float32)
    assert found.tensor_type.name == "F32"
    assert np.array_equal(found.data, wanted)


#: What Gemma4AudioFeatureExtractor writes of itself; its constructor takes the first three for nothing.
HEARD: dict[str, Any] = {
    "frame_length": 320, "hop_length": 160, "fft_length": 512, "dither": 0.0, "feature_size": 128, "mel_floor": 0.001,
    "feature_extractor_type": "Gemma4AudioFeatureExtractor", "fft_overdrive": False, "input_scale_factor": 1.0,
    "max_frequency": 8000.0, "min_frequency": 0.0, "padding_side": "right", "padding_value": 0.0, "per_bin_mean": None,
    "per_bin_stddev": None, "preemphasis": 0.0, "preemphasis_htk_flavor": True, "return_attention_mask": True,
    "sampling_rate": 16000,
}  # fmt: skip


def hearing(root: Path, heard: dict[str, Any], *, flat: bool = False) -> Path:
    """A Gemma 4 whose processor says so, in the place of transformers 5, or in that of before (flat)."""
    source = checkpoint(RECORDED["gemma4_hearing-bf16"], root)
    if flat:
        path = source / "preprocessor_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **heard}))
    else:
        (source / "processor_config.json").write_text(
            json.dumps({"audio_ms_per_token": 40, "feature_extractor": heard})
        )
    return source


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("more", [{}, {"frame_length": 400, "fft_length": 1024, "preemphasis_htk_flavor": False}])
def test_what_a_second_of_sound_is_cut_into_is_known(flat: bool, more: dict[str, Any], tmp_path: Path) -> None:
    report = convert_tower(hearing(tmp_path / "source", HEARD | more, flat=flat), tmp_path / "mmproj.gguf")

    assert [note for note in report.plan.notes if "reads these keys" in note or "not preprocessor" in note] == []
    assert "llama.cpp hears log(max(mel, 0.001)), and transformers log(mel + 0.001)" in report.plan.notes


@pytest.mark.product("values")
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(
    ("key", "value", "computed"),
    [
        ("frame_length_ms", 25.0, "20.0"), ("hop_length_ms", 20.0, "10.0"), ("mel_floor", 1e-05, "0.001"),
        ("sampling_rate", 8000, "16000"), ("feature_size", 80, "128"), ("min_frequency", 20.0, "0.0"),
        ("max_frequency", 7600.0, "8000.0"), ("preemphasis", 0.97, "0.0"), ("input_scale_factor", 2.0, "1.0"),
        ("dither", 0.1, "0.0"), ("fft_overdrive", True, "false"), ("per_bin_mean", [1.0] * 128, ""),
        ("per_bin_stddev", [2.0] * 128, ""),
    ],
)  # fmt: skip
def test_a_sound_that_llama_cpp_cuts_otherwise_is_refused(
    key: str, value: object, computed: str, flat: bool, tmp_path: Path
) -> None:
    why = re.escape(f"{key} of the feature extractor is {value}, and llama.cpp computes with {computed}")
    if not computed:
        why = f"the feature extractor .* {key}.*, and llama.cpp does not"
    with pytest.raises(CkconvError, match=why):
        convert_tower(hearing(tmp_path / "source", HEARD | {key: value}, flat=flat), tmp_path / "mmproj.gguf")


@pytest.mark.parametrize("name", ["pixtral-bf16", "mistral3-f16"])
def test_between_rows_of_parts_is_a_word_of_the_text_model(name: str, tmp_path: Path) -> None:
    source = checkpoint(RECORDED[name], tmp_path / "source")
    convert_tower(source, tmp_path / "mmproj.gguf")
    convert(source, tmp_path / "text.gguf")
    tokens = json.loads((source / "tokenizer.json").read_text())["added_tokens"]
    number = next(token["id"] for token in tokens if token["content"] == "[IMG_BREAK]")

    word, words = (
        next(one for one in gguf.GGUFReader(tmp_path / file).tensors if one.name == tensor)
        for file, tensor in (("mmproj.gguf", LINE_BREAK), ("text.gguf", "token_embd.weight"))
    )

    assert word.tensor_type.name == "F32"
    assert np.array_equal(word.data.ravel(), gguf.dequantize(words.data, words.tensor_type)[number])


def test_a_vocabulary_without_that_word_is_refused(tmp_path: Path) -> None:
    source = checkpoint(RECORDED["pixtral-f16"], tmp_path / "source")
    document = json.loads((source / "tokenizer.json").read_text())
    document["added_tokens"] = [one for one in document["added_tokens"] if one["content"] != "[IMG_BREAK]"]
    (source / "tokenizer.json").write_text(json.dumps(document))

    with pytest.raises(CkconvError, match="no tensor for line_break"):
        convert_tower(source, tmp_path / "mmproj.gguf")


def test_a_file_says_that_it_is_an_mmproj(tmp_path: Path) -> None:
    convert_tower(checkpoint(RECORDED["qwen3_vl-f16"], tmp_path / "source"), tmp_path / "mmproj.gguf")

    fields = gguf.GGUFReader(tmp_path / "mmproj.gguf").fields
    said = {
        key: fields[key].contents() for key in ("general.type", "general.file_type", "general.quantization_version")
    }
    assert said == {"general.type": "mmproj", "general.file_type": 1, "general.quantization_version": 2}


def test_one_command_writes_the_text_model_and_the_file_beside_it(
    ckconv: Callable[..., Result], tmp_path: Path
) -> None:
    source = checkpoint(RECORDED["gemma3-f16"], tmp_path / "source")

    done = ckconv("convert", source, tmp_path / "model.gguf", "--mmproj", tmp_path / "mmproj.gguf")

    assert done.code == 0, done.err
    assert "without multi_modal_projector.* (2 tensors), vision_tower.* (37 tensors)\n" in done.out
    assert "--mmproj" not in done.out
    named = {
        path.name: gguf.GGUFReader(path).fields["general.architecture"].contents() for path in tmp_path.glob("*.gguf")
    }
    assert named == {"model.gguf": "gemma3", "mmproj.gguf": "clip"}


def test_globs_of_the_text_model_are_none_of_its_tower(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    """What is left out of a Janus, which draws, too, was looked for in the tower, and refused."""
    source = checkpoint(recorded_tower("janus-f16"), tmp_path / "hf")
    both = ("convert", source, tmp_path / "m.gguf", "--mmproj", tmp_path / "tower.gguf")
    drawing = ("vqmodel", "generation_head", "generation_embeddings", "generation_aligner")
    drops = [word for name in drawing for word in ("--drop", f"model.{name}.*")]
    assert all(f"hint: --drop '{glob}' leaves out" in ckconv(*both).err for glob in drops[1::2])
    wrong = ckconv(*both, *drops, "--drop", "model.nothing.*")
    assert (wrong.code, "--drop model.nothing.* names no tensor" in wrong.err) == (2, True)
    assert ckconv(*both, *drops).code == 0
    for given, code in (((), 0), (drops, 0), (("--drop", "model.nothing.*"), 2)):
        assert ckconv("verify", tmp_path / "tower.gguf", source, *given).code == code
    assert ckconv("verify", tmp_path / "m.gguf", source, *drops).code == 0


def test_the_text_model_alone_says_how_its_tower_is_written(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    source = checkpoint(RECORDED["gemma3-f16"], tmp_path / "source")

    done = ckconv("convert", source, tmp_path / "model.gguf")

    assert "(37 tensors); --mmproj FILE writes them for llama.cpp\n" in done.out


#: DST and what follows it, FILE, and why it cannot go there.
NO_PLACE: list[tuple[list[str], str, str]] = [
    (["m.gguf"], "m.gguf", "both a file of the tower and one of the text model"),
    (["m.gguf", "--checksums"], "m.gguf.sha256", "both a file of the tower and one of the text model"),
    (["m.gguf"], "link.gguf", "both a file of the tower and one of the text model"),
    (["m.gguf"], "sub/../m.gguf", "both a file of the tower and one of the text model"),
    (["m.gguf", "--max-shard-size", "20KB"], "m-00001-of-00003.gguf", "both a file of the tower and one of the text"),
    (["out/", "--to", "gguf"], "out/model.gguf", "both a file of the tower and one of the text model"),
    (["sub/", "--to", "gguf"], "sub", "both a file of the tower and one of the text model"),
    (["out/", "--to", "safetensors"], "out", "both a file of the tower and one of the text model"),
    (["out/", "--to", "safetensors"], "out/config.json", "both a file of the tower and one of the text model"),
    (
        ["out/", "--to", "safetensors", "--config-out", "c.json"],
        "c.json",
        "both a file of the tower and one of the text model",
    ),
    (["m.gguf"], "-", "not on stdout"),
    (["m.gguf"], "tower.safetensors", "ends in .safetensors, and a tower is a .gguf"),
    (["m.gguf"], "tower.BUMP", "ends in .bump, and a tower is a .gguf"),
    (["m.gguf"], "tower.bin", "ends in .bin, and a tower is a .gguf"),
]


@pytest.mark.parametrize(("target", "file", "why"), NO_PLACE)
def test_a_tower_has_a_file_of_its_own(
    target: list[str],
    file: str,
    why: str,
    ckconv: Callable[..., Result],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = checkpoint(RECORDED["gemma3-f16"], tmp_path / "source")
    place = tmp_path / "place"
    (place / "sub").mkdir(parents=True)
    (place / "link.gguf").symlink_to("m.gguf")
    monkeypatch.chdir(place)

    done = ckconv("convert", source, *target, "--mmproj", file, "--force")

    assert (done.code, why in done.err, "error[usage.target]" in done.err) == (2, True, True), done.err
    assert sorted(path.name for path in place.rglob("*")) == ["link.gguf", "sub"]


def test_a_file_that_is_there_is_refused_before_the_text_model_is_written(
    ckconv: Callable[..., Result], tmp_path: Path
) -> None:
    source = checkpoint(RECORDED["gemma3-f16"], tmp_path / "source")
    (tmp_path / "mmproj.gguf").write_text("mine")

    done = ckconv("convert", source, tmp_path / "model.gguf", "--mmproj", tmp_path / "mmproj.gguf")

    assert (done.code, "error[output.exists]" in done.err) == (6, True), done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mmproj.gguf", "source"]
    assert ckconv("convert", source, tmp_path / "m.gguf", "--mmproj", tmp_path / "mmproj.gguf", "--force").code == 0


def test_a_tower_goes_into_the_directory_that_the_text_model_makes(
    ckconv: Callable[..., Result], tmp_path: Path
) -> None:
    source = checkpoint(RECORDED["gemma3-f16"], tmp_path / "source")

    done = ckconv("convert", source, f"{tmp_path}/new/", "--to", "gguf", "--mmproj", tmp_path / "new" / "mmproj.gguf")

    assert done.code == 0, done.err
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["mmproj.gguf", "model.gguf"]


def test_a_tower_is_not_written_to_stdout_by_a_program(tmp_path: Path) -> None:
    with pytest.raises(CkconvError, match="not on stdout") as caught:
        convert_tower(checkpoint(RECORDED["gemma3-f16"], tmp_path / "source"), "-")
    assert caught.value.code == "usage.target"


@pytest.mark.parametrize(("schema", "flags"), [("convert", []), ("plan", ["--dry-run"])])
def test_text_model_and_tower_are_one_document(
    schema: str, flags: list[str], ckconv: Callable[..., Result], tmp_path: Path
) -> None:
    source = checkpoint(RECORDED["gemma3-f16"], tmp_path / "source")
    text, tower = str(tmp_path / "model.gguf"), str(tmp_path / "mmproj.gguf")

    document = ckconv("convert", source, text, "--mmproj", tower, "--json", *flags).json

    jsonschema.validate(document, json.loads(ckconv("formats", "--schema", schema).out))
    assert (document["target"], document["mmproj"]["target"], document["mmproj"]["mmproj"]) == (text, tower, None)


@pytest.mark.parametrize("name", RECORDED)
def test_a_tower_is_verified_against_its_checkpoint(name: str, ckconv: Callable[..., Result], tmp_path: Path) -> None:
    source = checkpoint(RECORDED[name], tmp_path / "source")
    report = convert_tower(source, tmp_path / "mmproj.gguf")

    done = ckconv("verify", "--json", tmp_path / "mmproj.gguf", source)

    assert done.code == 0, done.err
    assert (done.json["tensors"], done.json["compared"]) == (report.verified, True)


def test_a_tower_of_another_checkpoint_fails(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    source = checkpoint(RECORDED["gemma3-f16"], tmp_path / "source")
    convert_tower(source, tmp_path / "mmproj.gguf")
    data = bytearray((tmp_path / "mmproj.gguf").read_bytes())
    data[-40] ^= 1
    (tmp_path / "mmproj.gguf").write_bytes(data)

    done = ckconv("verify", tmp_path / "mmproj.gguf", source)

    assert (done.code, "error[verify." in done.err) == (5, True), done.err


def test_an_mmproj_is_copied_tensor_for_tensor(tmp_path: Path) -> None:
    convert_tower(checkpoint(RECORDED["qwen2_5_vl-bf16"], tmp_path / "source"), tmp_path / "mmproj.gguf")
    convert(tmp_path / "mmproj.gguf", tmp_path / "again.gguf")

    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "mmproj.gguf").read_bytes()


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("qwen2_5_vl-f32", {"fullatt_block_indexes": [0, 3]}, "full attention in every 1th layer"),
    ("qwen2_5_vl-f32", {"window_size": 56}, "window of the tower is 56, and llama.cpp computes with 112"),
    ("qwen3_vl-f16", {"hidden_act": "gelu"}, "act of the tower is 'gelu', and llama.cpp computes with 'gelu_pytorch"),
    ("gemma3-f16", {"hidden_act": "relu"}, "hidden_act of the tower is relu"),
    ("qwen3_vl-f16", {"rope_parameters": {"rope_theta": 5e5, "rope_type": "axial"}}, "rope_theta.: 500000.0.* changes"),
    ("qwen2_5_vl-f32", {"rope_theta": 5e5}, "vision_config.rope_theta = 500000.0 of the tower changes the computation"),
    ("internvl-f16", {"norm_type": "rms_norm"}, "RMS norms for a tower of 45 layers of 3200 elements and no other"),
    ("internvl-f16", {"use_qk_norm": True}, "Q and K of the tower have RMS norms"),
    ("internvl-f16", {"use_mean_pooling": False}, "the class has a norm behind the last layer then"),
    ("internvl-f16", {"patch_size": [4, 2]}, "patches of the tower are 2 elements wide and 4 high"),
    ("internvl-f16", {"image_size": [16, 20]}, "pictures of the tower are 20 elements wide and 16 high"),
    ("gemma3-f16", {"quantization_config": {"bits": 4}}, "vision_config.quantization_config = .* changes"),
]


@pytest.mark.parametrize(("name", "vision", "why"), REFUSED)
def test_a_tower_that_llama_cpp_computes_otherwise_is_refused(
    name: str, vision: dict[str, Any], why: str, tmp_path: Path
) -> None:
    source = edited(name, tmp_path / "source", **vision)

    with pytest.raises(CkconvError, match=why) as caught:
        convert_tower(source, tmp_path / "mmproj.gguf")

    assert (caught.value.code, caught.value.exit_code) == ("plan.refused", 4)
    assert not (tmp_path / "mmproj.gguf").exists()


def test_patches_that_llama_cpp_puts_together_otherwise_are_refused(tmp_path: Path) -> None:
    recorded = recorded_tower("internvl_chat-bf16")
    recorded["config"]["ps_version"] = "v1"

    with pytest.raises(CkconvError, match=r"ps_version is v1, and llama\.cpp puts patches together as v2 does"):
        convert_tower(checkpoint(recorded, tmp_path / "source"), tmp_path / "mmproj.gguf")


def test_a_repository_without_a_text_model_has_a_tower(tmp_path: Path) -> None:
    recorded = recorded_tower("ultravox-f16")
    recorded["tensors"] = {
        name: kind for name, kind in recorded["tensors"].items() if not name.startswith("language_model.")
    }
    source = checkpoint(recorded, tmp_path / "source")

    with pytest.raises(CkconvError, match="no tensor of the text model is there") as caught:
        convert(source, tmp_path / "text.gguf")

    assert "ckconv.convert_tower" in (caught.value.hint or "")
    assert convert_tower(source, tmp_path / "mmproj.gguf").verified == len(recorded["converter"]["tensors"])


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("projector_ln_mid", False, "the projector has its second norm behind the last matrix"),
        ("projector_act", "gelu", "act of the tower is 'gelu', and llama.cpp computes with 'swiglu'"),
    ],
)
def test_a_projector_of_ultravox_that_llama_cpp_does_not_compute_is_refused(
    key: str, value: object, why: str, tmp_path: Path
) -> None:
    recorded = recorded_tower("ultravox-f16")
    recorded["config"][key] = value

    with pytest.raises(CkconvError, match=why):
        convert_tower(checkpoint(recorded, tmp_path / "source"), tmp_path / "mmproj.gguf")


def test_a_tower_without_a_tensor_is_refused(tmp_path: Path) -> None:
    recorded = recorded_tower("qwen3_vl-f16")
    del recorded["tensors"]["model.visual.deepstack_merger_list.1.norm.weight"]

    with pytest.raises(CkconvError, match=r"no tensor for deepstack\.\{n\}\.norm\.weight in 1 layer"):
        convert_tower(checkpoint(recorded, tmp_path / "source"), tmp_path / "mmproj.gguf")


def test_the_norms_of_gemma_take_the_epsilon_of_the_configuration(tmp_path: Path) -> None:
    convert_tower(edited("gemma3-f16", tmp_path / "source", layer_norm_eps=1e-5), tmp_path / "mmproj.gguf")

    said = gguf.GGUFReader(tmp_path / "mmproj.gguf").fields["clip.vision.attention.layer_norm_epsilon"].contents()
    assert np.float32(said) == np.float32(1e-5)


@pytest.mark.parametrize("name", ["qwen2_5_vl-bf16", "qwen3_vl-f16"])
def test_the_norms_of_qwen_take_the_epsilon_of_their_class(name: str, tmp_path: Path) -> None:
    report = convert_tower(edited(name, tmp_path / "source", layer_norm_eps=1e-5), tmp_path / "mmproj.gguf")

    said = gguf.GGUFReader(tmp_path / "mmproj.gguf").fields["clip.vision.attention.layer_norm_epsilon"].contents()
    assert np.float32(said) == np.float32(1e-6)
    assert any("reads these keys of config.json: vision_config.layer_norm_eps" in note for note in report.plan.notes)


@pytest.mark.parametrize("name", RECORDED)
def test_every_key_of_a_vision_config_that_transformers_writes_is_known(name: str, tmp_path: Path) -> None:
    report = convert_tower(checkpoint(RECORDED[name], tmp_path / "source"), tmp_path / "mmproj.gguf")
    assert [note for note in report.plan.notes if "no known class" in note] == []


def test_a_key_of_a_vision_config_that_nobody_is_known_to_read_is_named(tmp_path: Path) -> None:
    report = convert_tower(edited("gemma3-f16", tmp_path / "source", logit_cap=30.0), tmp_path / "mmproj.gguf")
    assert report.plan.notes == ("no known class of gemma3 reads these keys of config.json: vision_config.logit_cap",)


#: Recording, and what stands at the beginning of its names -> what other releases of the classes have there.
SPELLED: list[tuple[str, dict[str, str]]] = [
    ("gemma3-f16", {"vision_tower.": "model.vision_tower.", "multi_modal": "model.multi_modal"}),
    ("gemma3-f16", {"vision_tower.vision_model.": "vision_tower."}),
    (
        "gemma3-bf16",
        {"vision_tower.vision_model.": "model.vision_tower.", "multi_modal": "model.multi_modal"},
    ),
    ("internvl-bf16", {"model.vision_tower.": "vision_tower.", "model.multi_modal": "multi_modal"}),
    ("qwen2_5_vl-f32", {"visual.": "model.visual."}),
    ("qwen3_vl-f16", {"model.visual.": "visual."}),
    (  # as transformers 5.24 saves what it loaded
        "kimi_k25-f16",
        {
            "vision_tower.patch_embed.proj": "vision_tower.encoder.patch_embed.proj",
            "mm_projector.pre": "model.mm_projector.pre",
        },
    ),
]


@pytest.mark.parametrize(("name", "spelled"), SPELLED)
def test_names_with_and_without_the_model_before_them_are_the_same_tower(
    name: str, spelled: dict[str, str], tmp_path: Path
) -> None:
    recorded = recorded_tower(name)
    tensors = recorded["tensors"]
    renamed = {}
    for stored, kind in tensors.items():
        known = next((old for old in spelled if stored.startswith(old)), "")
        renamed[spelled.get(known, "") + stored.removeprefix(known)] = kind
    assert renamed.keys() != tensors.keys()

    report = convert_tower(checkpoint({**recorded, "tensors": renamed}, tmp_path / "source"), tmp_path / "mmproj.gguf")

    found = {one.name: list(map(int, one.shape)) for one in gguf.GGUFReader(tmp_path / "mmproj.gguf").tensors}
    other = convert_tower(checkpoint(recorded, tmp_path / "other"), tmp_path / "other.gguf")
    wanted = {one.name: list(map(int, one.shape)) for one in gguf.GGUFReader(tmp_path / "other.gguf").tensors}
    assert (found, report.verified) == (wanted, other.verified)


def test_what_no_row_of_a_tower_has_is_refused_by_name(tmp_path: Path) -> None:
    recorded = recorded_tower("gemma3-f16")
    recorded["tensors"]["vision_tower.vision_model.head.probe"] = ["F16", [1, 1, 16]]

    with pytest.raises(CkconvError, match=r"no place for vision_tower\.vision_model\.head\.probe") as refused:
        convert_tower(checkpoint(recorded, tmp_path / "source"), tmp_path / "mmproj.gguf")
    assert refused.value.hint == "--drop 'vision_tower.vision_model.head.probe'"


def test_what_may_be_a_missing_tensor_by_another_name_is_not_to_be_dropped(tmp_path: Path) -> None:
    recorded = recorded_tower("gemma3-f16")
    recorded["tensors"]["vision_tower.patches"] = recorded["tensors"].pop(
        "vision_tower.vision_model.embeddings.patch_embedding.weight"
    )

    with pytest.raises(CkconvError, match=r"no place for vision_tower\.patches") as refused:
        convert_tower(checkpoint(recorded, tmp_path / "source"), tmp_path / "mmproj.gguf")
    assert "drop" not in str([refused.value.hint, *refused.value.details])


def test_a_model_of_text_alone_has_no_tower(tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "fixtures" / "hf" / "llama-tied-bf16"
    with pytest.raises(CkconvError, match="knows no tower of a 'llama'") as caught:
        convert_tower(source, tmp_path / "mmproj.gguf")
    assert caught.value.code == "tower.unknown"


def test_how_pictures_are_prepared_has_to_be_said(tmp_path: Path) -> None:
    source = checkpoint(RECORDED["gemma3-f16"], tmp_path / "source")
    (source / "preprocessor_config.json").unlink()

    with pytest.raises(CkconvError, match=r"preprocessor\.image_mean is missing"):
        convert_tower(source, tmp_path / "mmproj.gguf")


def test_inspect_counts_what_a_model_sees_with(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    source = checkpoint(RECORDED["llama4-f16"], tmp_path / "source")
    unknown = recorded_tower("llama4-f16")
    unknown["config"]["model_type"] = "llama9"
    convert_tower(source, tmp_path / "mmproj.gguf")

    for path in (source, tmp_path / "mmproj.gguf"):
        assert ckconv("inspect", "--json", path).json["overview"]["heads"] == ["the tower of a llama4: 58 tensors"]
    found = ckconv("inspect", "--json", checkpoint(unknown, tmp_path / "unknown")).json
    assert found["overview"]["heads"] == ["a tower that ckconv does not know: 58 tensors"]
