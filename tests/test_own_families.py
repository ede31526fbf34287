"""A user's own family files: what they may claim, for which calls they count, how they may be malformed."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import family_cases
import gguf
import pytest
from conftest import FIXTURES
from safetensors.numpy import load_file

import ckconv
from ckconv.core.options import Options
from ckconv.errors import CkconvError, InputError, UsageError
from ckconv.families.catalog import FAMILIES, check_family, family_of_gguf, own_families
from ckconv.families.merge import FOLDER, SECTIONS, files_of, merged, misformed, read_file

OLMO2 = (FOLDER / "olmo2.toml").read_text()
MINE = OLMO2.replace('"olmo2"', '"mylmo"').replace("Olmo2For", "MylmoFor")
NO_ROWS = "".join(line for line in MINE.splitlines(keepends=True) if not line.startswith('"bump{3,5}"'))


#: OLMo 3, whose layers slide or do not, under names of its own.
READ, WRITE = (
    """layer_types.gguf.read = "slides(layers, it)"\n""",
    """layer_types.gguf.write = "[kind == 'sliding_attention' for kind in it]"\n""",
)
KINDS = re.sub(r"gguf = \{.*", 'gguf = { arch = "mylmo" }', (FOLDER / "olmo3.toml").read_text(), count=1)
KINDS = KINDS.replace('"olmo3", class = "Olmo3', '"mylmo", class = "Mylmo')


def written(folder: Path, text: str, name: str = "mylmo") -> Path:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def checkpoint(folder: Path) -> Path:
    """OLMo 2 under another model_type, as somebody's fork of it is."""
    shutil.copytree(FIXTURES / "zoo" / "olmo2", folder / "hf")
    document = json.loads((folder / "hf/config.json").read_text())
    changed = {**document, "model_type": "mylmo", "architectures": ["MylmoForCausalLM"]}
    (folder / "hf/config.json").write_text(json.dumps(changed))
    return folder / "hf"


def said_of(*paths: Path) -> str:
    with pytest.raises(InputError) as caught, own_families(paths):
        pass
    assert caught.value.code == "family.file"
    assert caught.value.path == str(paths[-1])
    return caught.value.message


# What counts, and when


def test_a_family_that_ckconv_does_not_know_is_converted_by_a_file(tmp_path: Path) -> None:
    source, options = checkpoint(tmp_path), Options(families=(written(tmp_path, MINE),))
    with pytest.raises(CkconvError):
        ckconv.convert(source, tmp_path / "m.gguf")

    ckconv.convert(source, tmp_path / "m.gguf", options=options)

    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert reader.fields["general.architecture"].contents() == "mylmo"
    theirs = gguf.GGUFReader(FIXTURES / "zoo/olmo2.f32.gguf")
    assert {t.name: t.data.tobytes() for t in reader.tensors} == {t.name: t.data.tobytes() for t in theirs.tensors}
    ckconv.convert(tmp_path / "m.gguf", f"{tmp_path}/back/", to="safetensors", options=options)
    mine, meant = (load_file(folder / "model.safetensors") for folder in (tmp_path / "back", source))
    assert {name: array.tobytes() for name, array in mine.items()} == {n: a.tobytes() for n, a in meant.items()}


def test_a_fork_of_a_family_without_a_key_for_the_context_comes_back(tmp_path: Path) -> None:
    """No class is known of it, so what it reads is what its file says."""
    text = (FOLDER / "mamba2.toml").read_text()
    text = text.replace('arch = "mamba2"', 'arch = "mylmo"').replace(
        '"mamba2", class = "Mamba2', '"mylmo", class = "Mylmo'
    )
    options = Options(families=(written(tmp_path, text),))
    family_cases.checkpoint(next(family_cases.cases("mamba2")).recorded, tmp_path / "hf")
    document = json.loads((tmp_path / "hf/config.json").read_text())
    changed = {**document, "model_type": "mylmo", "architectures": ["MylmoForCausalLM"]}
    (tmp_path / "hf/config.json").write_text(json.dumps(changed))

    ckconv.convert(tmp_path / "hf", tmp_path / "m.gguf", options=options)
    ckconv.convert(tmp_path / "m.gguf", f"{tmp_path}/back/", to="safetensors", options=options)

    said = json.loads((tmp_path / "back/config.json").read_text())
    assert (said["model_type"], said.get("max_position_embeddings")) == ("mylmo", None)


@pytest.mark.parametrize("bias", ["it", "n > 0"])
def test_a_bias_that_no_parameter_says_is_no_internal_error(bias: str, tmp_path: Path) -> None:
    text = MINE.replace("[tensors]\n", f'[tensors]\n"L.attention.{{q,k,v}}".bias = "{bias}"\n')
    options = Options(families=(written(tmp_path, text),))
    with pytest.raises(CkconvError) as caught:
        ckconv.convert(checkpoint(tmp_path), tmp_path / "m.gguf", options=options)
    assert caught.value.exit_code in (3, 4)


def test_a_file_counts_for_its_call_only(tmp_path: Path) -> None:
    source, mine = checkpoint(tmp_path), written(tmp_path, MINE)

    model = ckconv.open_model(source, families=[mine])

    assert model.config is not None
    assert (model.config.family, model.tensors["layers.0.attention.q_norm.weight"].shape) == ("mylmo", (32,))
    assert ckconv.open_model(source).config is None
    assert "mylmo" not in FAMILIES


def test_a_file_counts_in_its_own_thread_only(tmp_path: Path) -> None:
    seen: list[bool] = []
    with own_families([written(tmp_path, MINE)]):
        thread = threading.Thread(target=lambda: seen.append("mylmo" in FAMILIES))
        thread.start()
        thread.join()
        assert "mylmo" in FAMILIES
    assert seen == [False]


def test_two_calls_with_two_files_of_one_name_see_each_its_own(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"{number}").mkdir()
        path = written(tmp_path / f"{number}", MINE.replace("1e-5", f"{number}e-5"))
        with own_families([path]):
            assert str(FAMILIES["mylmo"].parameters["norm_eps"].defaults["transformers"]) == f"{number}e-05"


def test_a_file_that_is_changed_between_two_calls_is_read_again(tmp_path: Path) -> None:
    for number in (1, 2):
        with own_families([written(tmp_path, MINE.replace("1e-5", f"{number}e-5"))]):
            assert str(FAMILIES["mylmo"].parameters["norm_eps"].defaults["transformers"]) == f"{number}e-05"


@pytest.mark.parametrize("verb", ["inspect", "convert", "verify", "diff", "formats"])
def test_every_verb_takes_a_family(verb: str, tmp_path: Path, ckconv) -> None:
    source, mine = checkpoint(tmp_path), written(tmp_path, MINE)
    arguments: dict[str, list[Any]] = {
        "inspect": [source],
        "convert": [source, tmp_path / "m.gguf"],
        "verify": [tmp_path / "m.gguf", source],
        "diff": [tmp_path / "m.gguf", source],
        "formats": [],
    }
    if verb in ("verify", "diff"):
        assert ckconv("convert", *arguments["convert"], "--family", mine).code == 0

    result = ckconv(verb, *arguments[verb], "--family", mine)

    assert result.code == 0, result.err
    if verb in ("inspect", "formats"):
        assert "mylmo" in result.out


def test_a_file_extends_shipped_families_and_files_beside_it(tmp_path: Path) -> None:
    written(tmp_path, 'extends = "olmo2"\n[parameters]\nnorm_eps = { default = 3e-5 }\n', "common")
    own = 'extends = "common"\nhuggingface = { model_type = "mylmo", class = "MylmoForCausalLM" }\n'
    with own_families([written(tmp_path, own)]):
        family = FAMILIES["mylmo"]
    assert str(family.parameters["norm_eps"].defaults["transformers"]) == "3e-05"
    assert "L.attention.q_norm" in family.tensors


# What a file may claim


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("olmo2", MINE, "the file is called olmo2, as the shipped family olmo2 does"),
        (
            "mylmo",
            MINE.replace('model_type = "mylmo"', 'model_type = "olmo2"'),
            "huggingface.model_type: it claims 'olmo2', as the shipped family olmo2 does",
        ),
        (
            "mylmo",
            MINE.replace('arch = "mylmo"', 'arch = "olmo2"'),
            "gguf.arch: it claims 'olmo2' under a match that holds for the same files, "
            "as the shipped family olmo2 does",
        ),
    ],
)
def test_a_shipped_name_is_claimed_only_by_what_extends_it(name: str, text: str, message: str, tmp_path: Path) -> None:
    said = said_of(written(tmp_path, text, name))

    assert said == f'{message}: extends = "olmo2" changes that one'
    changing = 'extends = "olmo2"\n' + "\n".join(text.splitlines()[2:4])
    with own_families([written(tmp_path, changing, name)]):
        assert FAMILIES[name].path.parent == tmp_path


def test_a_model_type_of_several_families_is_claimed_by_the_one_of_the_same_class(tmp_path: Path) -> None:
    """``qwen3`` is the model_type of drafters and classifiers, too: each hint is followed until the file is read."""
    text = 'gguf = { arch = "mine" }\n[huggingface]\nmodel_type = "qwen3"\nclass = "Qwen3ForCausalLM"\n'
    assert said_of(written(tmp_path, f'extends = "decoder"\n{text}')).endswith('extends = "qwen3" changes that one')
    said = said_of(written(tmp_path, f'extends = "qwen3"\n{text}'))
    assert said.endswith(" beside it claims what qwen3 does, no more")
    match = said[said.index("match = ") :].removesuffix(" beside it claims what qwen3 does, no more")
    with own_families([written(tmp_path, f'extends = "qwen3"\n{text}{match}\n')]):
        assert FAMILIES["mylmo"].path.parent == tmp_path


def test_an_architecture_is_shared_where_no_file_matches_both(tmp_path: Path) -> None:
    text = MINE.replace('arch = "mylmo"', 'arch = "phi3"').replace(
        "not has('attention.sliding_window", "has('expert_count"
    )
    with own_families([written(tmp_path, text)]):
        assert FAMILIES["mylmo"].gguf == "phi3"


def test_two_files_may_not_claim_the_same(tmp_path: Path) -> None:
    first, second = written(tmp_path, MINE), written(tmp_path, MINE, "other")
    assert said_of(first, second) == f"huggingface.model_type: it claims 'mylmo', and so does {first}"


def test_a_file_that_changes_a_shipped_family_goes_first(tmp_path: Path) -> None:
    text = 'extends = "olmo2"\nhuggingface = { model_type = "olmo2", class = "OtherForCausalLM" }\n'
    text += 'gguf = { arch = "olmo2", match = "not has(\'attention.sliding_window\')" }\n[engines]\n'
    text += "transformers = {}\nllama_cpp = {}\n"
    options = Options(families=(written(tmp_path, text),))

    ckconv.convert(FIXTURES / "zoo/olmo2.f32.gguf", f"{tmp_path}/hf/", to="safetensors", options=options)

    assert json.loads((tmp_path / "hf/config.json").read_text())["architectures"] == ["OtherForCausalLM"]


def test_a_file_goes_before_families_whose_files_look_the_same(tmp_path: Path) -> None:
    text = MINE.replace('arch = "mylmo"', 'arch = "olmo2", over = ["olmo2"]')

    with own_families([written(tmp_path, text)]):
        found = family_of_gguf("olmo2", lambda key: False)

    assert found is not None
    assert found.name == "mylmo"


# Shipped families by name


def test_a_model_is_read_as_the_family_that_is_named(tmp_path: Path, ckconv) -> None:
    source = checkpoint(tmp_path)

    made = ckconv("convert", source, tmp_path / "m.gguf", "--family", "olmo2", "--record")

    assert made.code == 0, made.err
    theirs = gguf.GGUFReader(FIXTURES / "zoo/olmo2.f32.gguf")
    mine = gguf.GGUFReader(tmp_path / "m.gguf")
    assert mine.fields["general.architecture"].contents() == "olmo2"
    assert {t.name: t.data.tobytes() for t in mine.tensors} == {t.name: t.data.tobytes() for t in theirs.tensors}
    assert "the family file olmo2 was used: name it again" in ckconv("verify", tmp_path / "m.gguf", source).err
    assert ckconv("verify", tmp_path / "m.gguf", source, "--family", "olmo2").code == 0


def test_a_gguf_of_a_shared_architecture_is_read_as_the_family_that_is_named() -> None:
    with own_families([Path("deepseek_v3")]):
        found = family_of_gguf("deepseek2", lambda key: False)
    assert found is not None
    assert found.name == "deepseek_v3"
    with own_families([Path("deepseek_v3"), Path("olmo2")]):
        other = family_of_gguf("llama", lambda key: False)
    assert other is not None
    assert other.name == "llama"


def test_a_gguf_without_what_its_family_has_names_one_that_has_it_not(tmp_path: Path, ckconv) -> None:
    source = family_cases.checkpoint(family_cases.recording("kormo")["plain"], tmp_path / "kormo")
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 0

    refused = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/back/", "--to", "safetensors")
    assert refused.code == 4
    assert "hint: --family kormo reads it as a model that has these tensors alone" in refused.err
    assert "--family" not in ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/mlx/", "--to", "mlx").err

    back = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/back/", "--to", "safetensors", "--family", "kormo")
    assert back.code == 0
    made, known = (load_file(folder / "model.safetensors") for folder in (tmp_path / "back", source))
    assert {name: array.tobytes() for name, array in made.items()} == {
        name: one.tobytes() for name, one in known.items()
    }


def test_of_a_named_family_what_it_does_not_list_is_refused(tmp_path: Path, ckconv) -> None:
    source = checkpoint(tmp_path)
    document = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**document, "my_gate_scale": 2.5}))

    result = ckconv("convert", source, tmp_path / "m.gguf", "--family", "olmo2")

    assert result.code == 4
    assert "my_gate_scale = 2.5, a key that ckconv does not know of" in result.err


def test_a_name_of_no_family_is_refused(ckconv) -> None:
    result = ckconv("convert", FIXTURES / "zoo/olmo2", "-", "--to", "gguf", "--family", "olmo9")
    assert result.code == 2
    assert "--family olmo9: neither one of the families that ckconv formats lists, nor a .toml file" in result.err


# Closed files

CLOSED = """[config.seen]
vocab_size = "any"
max_position_embeddings = "any"
hidden_size = "any"
intermediate_size = "any"
num_hidden_layers = "any"
num_attention_heads = "any"
num_key_value_heads = "any"
head_dim = ["any", "absent"]
hidden_act = "silu"
rms_norm_eps = "any"
rope_theta = ["any", "absent"]
"rope_parameters.rope_theta" = ["any", "absent"]
"rope_parameters.rope_type" = ["default", "absent"]
attention_bias = false
tie_word_embeddings = false
[metadata.seen]
block_count = "any"
context_length = "any"
embedding_length = "any"
feed_forward_length = "any"
"attention.head_count" = "any"
"attention.head_count_kv" = "any"
"attention.layer_norm_rms_epsilon" = "any"
"attention.key_length" = ["any", "absent"]
"attention.value_length" = ["any", "absent"]
vocab_size = "any"
"rope.dimension_count" = "any"
"rope.freq_base" = "any"
"""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu', where mylmo was seen with 'silu'"),
        ({"attention_bias": True}, "attention_bias = True, where mylmo was seen with False"),
        ({"attention_bias": None}, "attention_bias = nothing, where mylmo was seen with False"),
        ({"sliding_window": 7}, "sliding_window = 7, where mylmo was seen with nothing"),
        ({"use_cache": False}, ""),
    ],
)
def test_a_closed_file_takes_no_other_keys_and_values(change: Any, said: str, tmp_path: Path, ckconv) -> None:
    source, mine = checkpoint(tmp_path), written(tmp_path, MINE + CLOSED)
    document = {**json.loads((source / "config.json").read_text()), **change}
    (source / "config.json").write_text(json.dumps({k: v for k, v in document.items() if v is not None}))

    result = ckconv("convert", source, tmp_path / "m.gguf", "--family", mine)

    assert (result.code, said in result.err) == (4 if said else 0, True), result.err


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("mylmo.logit_scale", "mylmo.logit_scale, a key that ckconv does not know of mylmo"),
        ("mylmo.attention.causal", "attention.causal = True, where mylmo was seen with nothing"),
    ],
)
def test_a_closed_file_takes_no_other_metadata(key: str, said: str, tmp_path: Path, ckconv) -> None:
    source, mine = checkpoint(tmp_path), written(tmp_path, MINE + CLOSED)
    made = ckconv("convert", source, tmp_path / "m.gguf", "--family", mine)
    assert made.code == 0, made.err
    value = "true" if key.endswith("causal") else "2.5"
    assert ckconv("edit", tmp_path / "m.gguf", tmp_path / "o.gguf", "--set-meta", f"{key}={value}").code == 0

    result = ckconv("convert", tmp_path / "o.gguf", f"{tmp_path}/back/", "--to", "safetensors", "--family", mine)

    assert result.code == 4
    assert said in result.err


def test_a_key_that_a_file_does_not_list_is_noted_where_it_says_so(tmp_path: Path, ckconv) -> None:
    source, mine = checkpoint(tmp_path), written(tmp_path, MINE + '[config]\nunknown = "noted"\n')
    document = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**document, "my_gate_scale": 2.5}))

    result = ckconv("convert", source, tmp_path / "m.gguf", "--family", mine)

    assert result.code == 0, result.err
    assert "my_gate_scale" in result.err + result.out


def test_what_was_not_measured_is_a_note(tmp_path: Path, ckconv) -> None:
    text = MINE.replace("llama_cpp = { ", 'llama_cpp = { unmeasured = "nobody has run one", ')
    source, mine = checkpoint(tmp_path), written(tmp_path, text)

    result = ckconv("convert", source, tmp_path / "m.gguf", "--family", mine, "--record")

    sentence = "that llama.cpp computes mylmo right was not measured: nobody has run one"
    assert sentence in result.err + result.out
    record = json.loads((tmp_path / "m.gguf.ckconv.json").read_text())
    assert record["families"][0]["unmeasured"] == {"llama_cpp": "nobody has run one"}
    assert ckconv("verify", tmp_path / "m.gguf", source, "--family", mine).code == 0


# What is taken away


def test_defaults_and_kinds_of_layers_are_taken_away(tmp_path: Path) -> None:
    text = 'extends = "dots1"\nhuggingface = { model_type = "mine", class = "MineForCausalLM" }\n'
    text += 'layers.dense = "absent"\n[tensors]\n"L.ffn.{gate,up,down}" = "absent"\n'
    text += '[parameters]\nnorm_eps = { default = "absent" }\ncontext = { value = "4096" }\n'
    table = merged(written(tmp_path, text, "mine"))

    assert "dense" not in table["layers"]
    assert "default" not in table["parameters"]["norm_eps"]
    assert "default" not in table["parameters"]["context"]


# Records


def test_a_record_says_which_family_files_were_used_and_verify_asks_for_them(tmp_path: Path) -> None:
    source, mine = checkpoint(tmp_path), written(tmp_path, MINE)
    options = Options(families=(mine,))
    ckconv.convert(source, tmp_path / "m.gguf", options=options, record=True)
    record = json.loads((tmp_path / "m.gguf.ckconv.json").read_text())
    digest = hashlib.sha256(mine.read_bytes()).hexdigest()
    assert record["families"] == [{"name": "mylmo.toml", "sha256": digest}]

    assert ckconv.verify(tmp_path / "m.gguf", source, options=options).tensors
    with pytest.raises(UsageError, match=r"says that the family file mylmo.toml was used: name it again"):
        ckconv.verify(tmp_path / "m.gguf", source)
    mine.write_text(f"{MINE}# changed\n")
    with pytest.raises(UsageError, match=r"the family file mylmo.toml was used: another file was given"):
        ckconv.verify(tmp_path / "m.gguf", source, options=options)


# Engines without a row


@pytest.mark.parametrize("version", [3, 5])
def test_a_family_without_a_row_is_refused_as_not_known_to_ckconv(version: int, tmp_path: Path) -> None:
    assert NO_ROWS != MINE
    options = Options(families=(written(tmp_path, NO_ROWS),), bump_version=version)
    with pytest.raises(CkconvError) as caught:
        ckconv.convert(checkpoint(tmp_path), tmp_path / "m.bump", options=options)
    sentence = (
        f"ckconv does not know whether the engine computes a mylmo (model_type) correctly: the family file has no row"
        f" bump{version}"
    )
    assert sentence in (caught.value.message, *caught.value.details)


# Malformed files


def test_the_shipped_files_are_right() -> None:
    for family in FAMILIES.values():
        check_family(family)
        for table in map(read_file, files_of(family.path)):
            assert (table.keys() - SECTIONS, misformed(table)) == (set(), None)


def row(key: str, text: str) -> str:
    """OLMo 2 with another row of tensors."""
    return MINE.replace("[tensors]\n", f'[tensors]\n"{key}" = {text}\n')


def parameter(text: str) -> str:
    return MINE.replace("[parameters]\n", f"[parameters]\n{text}\n")


MALFORMED = {
    "no text where one is wanted": (MINE.replace('extends = "decoder"', "extends = 3"), "extends: a text expected"),
    "a cell that is a number": (
        row("L.x", '{ axes = "H", hf = 3, gguf = "L.x" }'),
        "tensors.L.x.hf: a text expected",
    ),
    "a list where a table is wanted": (
        re.sub(r"\[parameters\](.|\n)*", "", MINE) + "[[parameters]]\nx = 1\n",
        "parameters: a table expected",
    ),
    "a date": (parameter("x = 1979-05-27"), "parameters.x: a text, a number, true or false expected"),
    "a number of more than 64 bits": (
        parameter("x = 0x1ffffffffffffffffff"),
        "parameters.x: a number of more than 64 bits",
    ),
    "braces that are not closed": (
        row("L.x", '{ axes = "H", hf = "L.{E", gguf = "L.x" }'),
        "tensors.L.x.hf: braces that are not closed",
    ),
    "no model_type": (
        MINE.replace('model_type = "mylmo", ', ""),
        "huggingface.model_type: missing: model_type = what ",
    ),
    "no class": (MINE.replace(', class = "MylmoForCausalLM"', ""), "huggingface.class: missing: class = what "),
    "a parameter that no model is read without": (
        MINE.replace("[tensors]\n", 'without = ["layers"]\n[tensors]\n'),
        "parameters.layers: there is none, and without it no model can be read",
    ),
    "a base of RoPE without a default": (
        parameter("rope_theta = { default = { mlx_lm = 500.0 } }"),
        "parameters.rope_theta: no default for transformers, which reads files that do not say it",
    ),
    "a base of RoPE that is a text": (
        parameter("rope_theta.default = \"'much'\""),
        "parameters.rope_theta: its default \"'much'\" is a text, and a number is expected",
    ),
    "layers that predict further tokens, and no number of them": (
        parameter('drafts = { hf = "draft", gguf = "draft" }'),
        "parameters.drafts: there is no parameter extra_layers, which says how many layers those are",
    ),
    "a required parameter that nothing writes": (
        parameter('x = { hf = "x" }'),
        "parameters.x: it has no place in gguf, and no default: add gguf = 'x', or gguf = { fixed = VALUE, ",
    ),
    "a parameter that is asked for and not there": (
        row("L.x", '{ axes = "H", when = "y", hf = "L.x", gguf = "L.x" }'),
        "tensors.L.x: 'y' asks for 'y', and there is no such parameter",
    ),
    "a sentence about a parameter that is not there": (
        MINE.replace("transformers = {}", 'transformers.right_if = { if = "tied", else = "not {y}" }'),
        "engines.transformers.right_if: its sentence or hint has {y}, and there is no such parameter",
    ),
    "a hint about a parameter that is not there": (
        MINE.replace("transformers = {}", 'transformers.right_if = { if = "tied", hint = "--context {y}" }'),
        "engines.transformers.right_if: its sentence or hint has {y}, and there is no such parameter",
    ),
    "a parameter that depends on itself": (
        parameter('a = "b"\nb = "a"'),
        "parameters.a: it depends on itself: a -> b -> a",
    ),
    "a cell whose axes are not the tensor's": (
        row("L.x", '{ axes = "H", hf = "L.x", gguf = { name = "L.x", axes = "I" } }'),
        "tensors.L.x: L.x: the stored shape has no axis 'H'",
    ),
    "two rows with one place": (
        row("L.x", '{ axes = "H", hf = "L.y", gguf = "L.attn_q_norm" }'),
        "tensors.L.attention.q_norm: L.x is blk.{n}.attn_q_norm.weight too (gguf)",
    ),
    "a segment without a row": (
        row("L.x", '{ axes = "H", hf = { name = "L.x", axes = "(H|I)" }, gguf = "L.x" }'),
        "tensors.L.x: segment 2 of model.layers.{n}.x.weight has no row (hf)",
    ),
    "one fused tensor described in two ways": (
        row("L.{x,y}", '{ axes = "(H|I)", hf = "L.f", gguf = "L.f" }').replace(
            "[tensors]\n", '[tensors]\n"L.z" = { axes = "V", hf = { name = "L.f", axes = "(V|I)" }, gguf = "L.z" }\n', 1
        ),
        "is described in two ways",
    ),
    "too many parentheses": (
        row("L.x", f'{{ axes = "{"(" * 40}H{")" * 40}", hf = "L.x", gguf = "L.x" }}'),
        "more than 32 parentheses",
    ),
    "a row for too many tensors": (
        row("L.{" + ",".join(f"x{n}" for n in range(80)) + "}", '"absent"'),
        "braces of 80 names; 64 are allowed",
    ),
    "kinds of layers that are read and not written": (
        KINDS.replace(WRITE, ""),
        "sliding_window_pattern is of bool[], not of kinds of layers, and lacks write",
    ),
    "kinds of layers that are written and not read": (
        KINDS.replace(READ, ""),
        "parameters.layer_types: attention.sliding_window_pattern is of bool[], not of kinds of layers, and lacks read",
    ),
    "an engine that there is not": (
        MINE.replace("transformers = {}", "transformers = {}\nvllm = {}"),
        "engines.vllm: there is no such engine (known: llama_cpp, ",
    ),
    "a match without an architecture": (MINE.replace('arch = "mylmo", ', ""), "gguf.arch: missing: arch = what "),
    "a condition over something else than keys": (
        MINE.replace("not has('attention.sliding_window')", "layers > 3").replace('arch = "mylmo"', 'arch = "olmo2"'),
        "gguf.match: it asks for 'layers', and a match asks for has('KEY') only",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_is_refused_with_its_key(case: str, tmp_path: Path) -> None:
    text, message = MALFORMED[case]
    assert message in said_of(written(tmp_path, text))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.toml").mkdir()
    assert said_of(tmp_path / "x.toml") == "is not a regular file"
    assert said_of(tmp_path / "y.toml") == "No such file or directory"
    assert said_of(written(tmp_path, MINE, "my lmo")).startswith("a family is called what its file is: ")


def test_kinds_of_layers_that_are_read_and_written_load(tmp_path: Path) -> None:
    assert READ in KINDS
    assert WRITE in KINDS
    with own_families([written(tmp_path, KINDS)]):
        assert "layer_types" in FAMILIES["mylmo"].parameters


def test_a_list_of_flags_holds_flags_only(tmp_path: Path) -> None:
    """Words were written as flags that are all set."""
    texts = WRITE.replace("[kind", "['x' if kind").replace(" for", " else 'y' for")
    options = Options(families=(written(tmp_path, KINDS.replace(WRITE, texts)),))
    family_cases.checkpoint(next(family_cases.cases("olmo3")).recorded, tmp_path / "hf")
    document = json.loads((tmp_path / "hf/config.json").read_text())
    changed = {**document, "model_type": "mylmo", "architectures": ["MylmoForCausalLM"]}
    (tmp_path / "hf/config.json").write_text(json.dumps(changed))
    with pytest.raises(InputError, match=r"which no bool\[\] holds") as caught:
        ckconv.convert(tmp_path / "hf", tmp_path / "m.gguf", options=options)
    assert caught.value.code == "family.file"


def test_a_value_that_a_model_gives_nothing_for_is_the_files_fault(tmp_path: Path) -> None:
    cell = 'hf = "L.self_attn.{q,k}_norm"'
    text = MINE.replace(cell, f'when = "1 / (layers - layers)", {cell}')
    options = Options(families=(written(tmp_path, text),))
    with pytest.raises(InputError) as caught:
        ckconv.convert(checkpoint(tmp_path), tmp_path / "m.gguf", options=options)
    assert caught.value.code == "family.file"


PIECES = (
    *("[tensors]", "[engines]", "[parameters]", '"absent"', "{", "}", "[", "]", '"', "=", "\n", ",", "(A 2 d)", "|"),
    *("1e999", "-1", "true", "nan", "9" * 40, "\\", "\0", "é", "L.", "{E}", "when", "axes", "gguf", "hf", "extends"),
    *('extends = "llama"', "[[x]]", "has('a')", "spread(9999999, 1)", "(" * 30, "2 ** 64 ** 64", "x = { y = 1 }"),
)


def mutated(text: str, chance: random.Random) -> str:
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(text) + 1)
        stop = min(len(text), start + chance.choice((0, 0, 1, 3, 20)))
        kind = chance.randrange(4)
        if kind == 0:
            text = text[:start] + chance.choice(PIECES) + text[stop:]
        elif kind == 1:
            text = text[:start] + text[stop:]
        elif kind == 2:
            text = text[:start] + chr(chance.randrange(128)) + text[stop:]
        else:
            words = re.findall(r"[\w.]+|\"[^\"]*\"", text)
            text = text.replace(chance.choice(words), chance.choice((*words, *PIECES)), 1) if words else text
    return text


def test_a_mutated_file_loads_or_is_refused(tmp_path: Path) -> None:
    chance = random.Random(11)
    texts = [path.read_text() for path in sorted(FOLDER.glob("*.toml"))]
    codes = set()
    for _ in range(600):
        path = tmp_path / "mylmo.toml"
        path.unlink(missing_ok=True)  # ext4 waits for the disk where a file is written again
        path.write_text(mutated(chance.choice([MINE, chance.choice(texts)]), chance))
        try:
            with own_families([path]):
                codes.add("")
        except InputError as error:
            codes.add(error.code)
    assert codes == {"", "family.file"}


CLASS = 'huggingface = { model_type = "mylmo", class = "MylmoForCausalLM" }\ngguf = { arch = "mylmo" }\n'


@pytest.mark.parametrize(
    ("text", "file", "line"),
    [
        (parameter('x = { hf = "x" }'), "mylmo.toml", 'x = { hf = "x" }'),
        (row("L.{x,y}", '{ axes = "(H|Z)", hf = "L.f", gguf = "L.f" }'), "mylmo.toml", '"L.{x,y}" = { axes = "(H|Z)"'),
        (parameter('layers = { gguf = "absent" }\nq = "heads + nothing"'), "mylmo.toml", 'q = "heads + nothing"'),
        (MINE.replace("[tensors]\n", 'axes.H = "nothing"\n[tensors]\n'), "mylmo.toml", 'axes.H = "nothing"'),
        ('extends = "olmo2"\n' + CLASS + 'defaults.mlx_lm.kv_heads = "x +"\n', "decoder.toml", "kv_heads = "),
    ],
)  # fmt: skip
def test_a_fault_says_the_line_of_the_file_or_of_one_that_it_extends(
    tmp_path: Path, text: str, file: str, line: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as caught, own_families((path,)):
        pass
    (place,) = caught.value.details
    found = re.fullmatch(r"(.*), line (\d+): (.*)", place)
    assert found
    assert found[1] == file
    assert found[3].startswith(line)
    there = (path if file == path.name else FOLDER / file).read_text().split("\n")
    assert there[int(found[2]) - 1].strip().startswith(found[3][:100].rstrip())
