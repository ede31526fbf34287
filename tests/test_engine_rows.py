"""What the rows of engines, parameters and keys in a family file do, and what faults of theirs are called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import FIXTURES
from gguf_copies import bytes_of
from test_families_of_one_file import changed, checkpoint

import ckconv
from ckconv.errors import InputError, UnsupportedError
from ckconv.families.catalog import FAMILIES
from ckconv.families.merge import FOLDER
from ckconv.families.schema import load

OLMO2 = (FOLDER / "olmo2.toml").read_text()


@pytest.fixture
def olmo2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """OLMo 2 with another file."""

    def put(old: str, new: str) -> None:
        assert old in OLMO2
        path = tmp_path / "olmo2.toml"
        path.write_text(OLMO2.replace(old, new))
        monkeypatch.setitem(FAMILIES._loaded, "olmo2", load(path))

    return put


def refusal(source: Path, to: str, tmp_path: Path) -> str:
    with pytest.raises(UnsupportedError) as caught:
        ckconv.convert(source, f"{tmp_path}/out/", to=to)
    return f"{caught.value.message} {' '.join(caught.value.details)}"


ROWS = {
    "gguf": ('llama_cpp = { head = "written", right_if = "head_dim * heads == hidden" }', "llama_cpp"),
    "mlx": ('mlx_lm = { scaling = ["linear", "llama3"] }', "mlx_lm"),
}
ENGINES = {"gguf": "llama.cpp", "mlx": "mlx-lm"}


@pytest.mark.parametrize("to", ROWS)
def test_an_engine_without_a_row_is_one_that_ckconv_does_not_know(to: str, olmo2: object, tmp_path: Path) -> None:
    olmo2(ROWS[to][0], "")  # type: ignore[operator]
    said = refusal(checkpoint("olmo2"), to, tmp_path)
    assert f"ckconv does not know what {ENGINES[to]} computes of an olmo2 (model_type)" in said


@pytest.mark.parametrize("to", ROWS)
def test_an_engine_whose_row_is_absent_does_not_know_the_family(to: str, olmo2: object, tmp_path: Path) -> None:
    olmo2(ROWS[to][0], f'{ROWS[to][1]} = "absent"')  # type: ignore[operator]
    what = "architecture" if to == "gguf" else "class"
    assert f"{ENGINES[to]} has no {what} for olmo2 (model_type)" in refusal(checkpoint("olmo2"), to, tmp_path)


def test_a_condition_that_does_not_hold_names_its_parameters_and_their_keys(olmo2: object, tmp_path: Path) -> None:
    olmo2('right_if = "head_dim * heads == hidden"', 'right_if = "heads > 4"')  # type: ignore[operator]
    said = refusal(checkpoint("olmo2"), "gguf", tmp_path)
    assert "llama.cpp does not compute olmo2 right with these numbers: heads is 4 (num_attention_heads)" in said


def test_a_head_that_llama_cpp_cannot_do_without_is_written_of_a_tied_model(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    source = changed("olmo2", tmp_path / "hf", tie_word_embeddings=True)
    tensors = load_file(source / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, source / "model.safetensors", {"format": "pt"})

    ckconv.convert(source, tmp_path / "m.gguf")

    found = bytes_of(tmp_path / "m.gguf")
    assert found["output.weight"] == found["token_embd.weight"]
    assert ckconv.verify(tmp_path / "m.gguf", source).compared


def test_what_mlx_lm_needs_and_the_document_does_not_say_is_added(tmp_path: Path) -> None:
    source = changed("granite", tmp_path / "hf")
    document = json.loads((source / "config.json").read_text())
    for key in ("residual_multiplier", "mlp_bias", "attention_multiplier"):
        del document[key]
    (source / "config.json").write_text(json.dumps(document))

    ckconv.convert(source, f"{tmp_path}/mlx/", to="mlx")

    made = json.loads((tmp_path / "mlx" / "config.json").read_text())
    assert (made["residual_multiplier"], made["attention_multiplier"], made["mlp_bias"]) == (1.0, 1.0, False)


def test_a_multiplier_that_a_gguf_does_not_say_is_what_llama_cpp_takes_for_it(tmp_path: Path) -> None:
    source = changed("granite", tmp_path / "hf")
    ckconv.convert(source, tmp_path / "m.gguf")
    with pytest.raises(ckconv.CkconvError, match=r"would drop granite\.attention\.scale"):
        ckconv.convert(
            tmp_path / "m.gguf", tmp_path / "n.gguf", options=ckconv.Options(drop_meta=("granite.attention.scale",))
        )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            'x = { hf = "x" }',
            "parameters.x: it has no place in gguf, and no default: add gguf = 'x', or gguf = { fixed = VALUE, ",
        ),
        ('x = { hf = "hidden_size", gguf = "x" }', "parameters.x: hidden_size is written by 'hidden' too"),
        ('x = { hf = "x", gguf = "x", scalar = true }', "parameters.x: there is no field 'scalar' (known: "),
        ('x = { hf = "x", gguf = "x", range = [0, 1] }', "parameters.x: there is no field 'range' (known: "),
        ('x = { hf = { key = "x", only = "torch" }, gguf = "x" }', "parameters.x: only is 'torch' (known: "),
        ('x = { hf = "x", gguf = "x", default = { jax = 1 } }', "parameters.x: there is no field 'jax' (known: "),
    ],
)
def test_a_fault_of_a_parameter_is_one_sentence(row: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    own = 'gguf = { arch = "own" }\nhuggingface = { model_type = "own", class = "Own" }'
    path.write_text(f'extends = "llama"\n{own}\n[parameters]\n{row}\n')
    with pytest.raises(InputError) as caught:
        load(path)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("[config.modifiers]\nhidden_size = 1", "config: hidden_size is given two meanings"),
        (
            '[config.modifiers]\nx = { neutral = "any", only = "jax" }',
            "config: only is 'jax' (known: transformers, mlx_lm, both)",
        ),
        (
            '[config]\nwindow = { mlx_lm = "all" }',
            "config: there is no field 'window' (parameters.layer_types says it now)",
        ),
        ('[engines]\nmlx_lm = { rope = "some" }', "engines.mlx_lm: rope is 'some' (known: top, "),
        (
            "[config]\nrope = { theta = 1 }",
            "config: there is no field 'rope' (parameters.rope_theta and rope_dim, and rope",
        ),
        ('[metadata.modifiers]\n"x" = "heads +"', "metadata: 'heads +' is not an expression"),
        ('[engines]\nmlx_lm = { right_if = [{ else = "x" }] }', "engines.mlx_lm: a condition without 'if'"),
    ],
)
def test_a_fault_of_what_keys_are_is_one_sentence(section: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(f'extends = "llama"\n{section}\n')
    with pytest.raises(InputError) as caught:
        load(path)
    assert caught.value.message.startswith(message)


def test_what_a_relative_says_of_a_key_takes_the_place_of_what_it_inherits(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('extends = "qwen3"\n[config]\nharmless = ["hidden_act", "quantization"]\n')
    own, inherited = load(path).document.keys, load(FOLDER / "qwen3.toml").document.keys

    document = {"hidden_act": "relu"}
    assert list(own.active(document, "transformers")) == []
    assert list(inherited.active(document, "transformers")) == ["hidden_act"]
    assert inherited.reads("quantization", "mlx-lm")
    assert not own.reads("quantization", "mlx-lm")


def test_the_fixtures_are_of_families_that_every_engine_has_a_row_for() -> None:
    assert {path.stem for path in (FIXTURES / "zoo").glob("*.gguf")} == {"olmo2.f32", "granite.f32"}
    for name in ("olmo2", "granite"):
        assert {"llama_cpp", "mlx_lm", "transformers"} <= FAMILIES[name].engines.keys()
