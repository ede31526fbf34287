"""Files that other tools write, sound ones all of them, however unusual: they are read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from checkpoints import Decoder, save
from conftest import FIXTURES
from family_cases import checkpoint, recording
from gguf_builder import Tensor, gguf as built
from models import Model

import ckconv
from ckconv import Options
from ckconv.formats.detect import open_index

ARCH = ("general.architecture", "str", "frobnicator")


def name_of(path: Path) -> str:
    return str(gguf.GGUFReader(path).fields["general.name"].contents())


@pytest.mark.parametrize("alignment", [1, 2, 4, 8, 1 << 21])
def test_every_power_of_two_may_be_the_alignment(alignment: int, tmp_path: Path) -> None:
    data = built(
        [ARCH, ("general.alignment", "u32", alignment)], [Tensor("a", (3,)), Tensor("b", (5,))], alignment=alignment
    )
    (tmp_path / "m.gguf").write_bytes(data)

    ckconv.convert(tmp_path / "m.gguf", tmp_path / "copy.gguf")

    assert (tmp_path / "copy.gguf").read_bytes() == data


@pytest.mark.parametrize("zeros", [1, 31, 4096, 1 << 20])
def test_zeros_behind_the_last_tensor_are_padding(zeros: int, tmp_path: Path) -> None:
    data = built([ARCH], [Tensor("a", (3,))])
    (tmp_path / "m.gguf").write_bytes(data + bytes(zeros))

    ckconv.convert(tmp_path / "m.gguf", tmp_path / "copy.gguf")

    assert (tmp_path / "copy.gguf").read_bytes() == data
    assert ckconv.verify(tmp_path / "m.gguf").tensors == 1


def test_a_tensor_may_have_no_elements(tmp_path: Path) -> None:
    data = built([ARCH], [Tensor("a", (3,)), Tensor("none", (4, 0), data=b""), Tensor("b", (2,))])
    (tmp_path / "m.gguf").write_bytes(data)

    ckconv.convert(tmp_path / "m.gguf", tmp_path / "copy.gguf")

    assert (tmp_path / "copy.gguf").read_bytes() == data
    assert [stored.shape for stored in open_index(tmp_path / "m.gguf").stored] == [(3,), (0, 4), (2,)]


def test_a_vocabulary_may_have_fewer_words_than_the_embedding_has_rows(tmp_path: Path) -> None:
    words = tuple(f"w{n}" for n in range(90))
    source = Model(tokens=words, merges=()).write(tmp_path / "m.gguf")

    ckconv.convert(source, f"{tmp_path}/out/", to="safetensors")

    assert json.loads((tmp_path / "out/config.json").read_text())["vocab_size"] == 96


# What a model is called


def test_a_model_in_a_download_cache_has_the_repositorys_name(tmp_path: Path) -> None:
    repository = tmp_path / "models--owner--Tiny-Llama-1b"
    (repository / "blobs").mkdir(parents=True)
    snapshot = repository / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted((FIXTURES / "hf/llama-tied-bf16").iterdir())):
        shutil.copy(path, repository / "blobs" / f"{number:040x}")
        (snapshot / path.name).symlink_to(Path("../../blobs") / f"{number:040x}")

    ckconv.convert(snapshot, tmp_path / "a.gguf")
    ckconv.convert(snapshot / "model.safetensors", tmp_path / "b.gguf", to="gguf")

    assert name_of(tmp_path / "a.gguf") == "Tiny Llama 1b"
    assert name_of(tmp_path / "b.gguf") == "Tiny Llama 1b"


def test_a_repository_without_an_owner_has_its_name(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--gpt2" / "snapshots" / "main"
    shutil.copytree(FIXTURES / "hf/llama-tied-bf16", snapshot)
    ckconv.convert(snapshot, tmp_path / "a.gguf")
    assert name_of(tmp_path / "a.gguf") == "Gpt2"


# What is counted


def test_the_factors_of_llama_3_are_counted_on_both_sides(tmp_path: Path, ckconv) -> None:
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    decoder = Decoder()
    source = save(tmp_path / "hf", decoder.config(rope_scaling=scaling), decoder.tensors())

    result = ckconv("convert", source, tmp_path / "m.gguf")

    assert "  verified 22/22 " in result.out
    assert ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/back/", "--to", "safetensors").code == 0
    assert json.loads((tmp_path / "back/config.json").read_text())["rope_scaling"] == scaling


@pytest.mark.parametrize(("family", "case"), [("gemma4_text", "shared"), ("bert", "plain"), ("t5", "relu")])
def test_every_tensor_of_a_gguf_is_counted(family: str, case: str, tmp_path: Path, ckconv) -> None:
    """Those that a rule makes, too: a release job that looks for N/N goes on."""
    source = checkpoint(recording(family)[case], tmp_path / "hf")

    result = ckconv("convert", source, tmp_path / "m.gguf")
    count = len(gguf.GGUFReader(tmp_path / "m.gguf").tensors)
    assert f"  verified {count}/{count} " in result.out
    verified = ckconv("verify", tmp_path / "m.gguf", source, "--json")
    said = json.loads(verified.out)
    assert (said["tensors"], said["compared"]) == (count, True)


# Names


def bare(tensors: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The names of a model's class without its head, or under another prefix."""
    return {prefix + name.removeprefix("model."): array for name, array in tensors.items() if name != "lm_head.weight"}


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen3", "gemma3_text"])
def test_names_may_lack_the_prefix_of_the_class(model_type: str, tmp_path: Path) -> None:
    decoder = Decoder(qk_norm=model_type not in ("llama", "mistral"), layers=6)
    tensors = decoder.tensors()
    if model_type == "gemma3_text":
        for n in range(decoder.layers):
            for what in ("pre", "post"):
                tensors[f"model.layers.{n}.{what}_feedforward_layernorm.weight"] = np.zeros(decoder.hidden, np.float32)
    tied = {name: array for name, array in tensors.items() if name != "lm_head.weight"}
    window = 64 if model_type == "gemma3_text" else None
    config = decoder.config(model_type, tie_word_embeddings=True, sliding_window=window)
    save(tmp_path / "whole", {**config, "_name_or_path": "x"}, tied)
    save(tmp_path / "bare", {**config, "_name_or_path": "x"}, bare(tensors, ""))

    for target, options in (("gguf", Options()), ("mlx", Options())):
        for source in ("whole", "bare"):
            to = f"{tmp_path}/{source}.{target}" + ("" if target == "gguf" else "/")
            ckconv.convert(tmp_path / source, to, to=target, options=options)
    assert (tmp_path / "bare.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    made = [tmp_path / f"{source}.mlx/model.safetensors" for source in ("bare", "whole")]
    assert made[0].read_bytes() == made[1].read_bytes()


@pytest.mark.parametrize(
    ("model_type", "inner", "prefix", "head"),
    [
        ("llava", "llama", "language_model.model.", "language_model.lm_head.weight"),
        ("llava", "llama", "model.language_model.", "lm_head.weight"),
        ("mistral3", "mistral", "language_model.model.", "language_model.lm_head.weight"),
    ],
)
def test_the_language_model_of_several_modalities(
    model_type: str, inner: str, prefix: str, head: str, tmp_path: Path
) -> None:
    decoder = Decoder()
    tensors = decoder.tensors()
    text = decoder.config(inner, sliding_window=None)
    nested = {**bare(tensors, prefix), head: tensors["lm_head.weight"]}
    vision = {"vision_tower.patch.weight": np.ones((2, 2), np.float32)}
    save(tmp_path / "whole", {**text, "_name_or_path": "x"}, tensors)
    save(
        tmp_path / "nested", {"model_type": model_type, "text_config": text, "_name_or_path": "x"}, {**nested, **vision}
    )

    ckconv.convert(tmp_path / "whole", tmp_path / "whole.gguf")
    ckconv.convert(tmp_path / "nested", tmp_path / "nested.gguf", options=Options(drop=("vision_tower.*",)))

    assert (tmp_path / "nested.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()


def test_a_prefix_that_the_configuration_does_not_speak_of_is_not_taken_off(tmp_path: Path) -> None:
    decoder = Decoder()
    source = save(tmp_path / "hf", decoder.config(), bare(decoder.tensors(), "language_model.model."))

    index = open_index(source)

    assert len(index.unknown) == len(index.stored)
