"""``ckconv learn``: known families as if they were not known, from one pair, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import consumers
import numpy as np
import pytest
from conftest import FIXTURES, NEEDS
from family_cases import Case, cases, checkpoint, without_null
from safetensors.numpy import load_file, save_file

import ckconv
from ckconv.core.options import Options
from ckconv.errors import CkconvError, InputError
from ckconv.families import catalog
from ckconv.families.catalog import FAMILIES, Index
from ckconv.families.merge import FOLDER, listed
from ckconv.formats.detect import open_index
from ckconv.learning.check import check
from ckconv.learning.learn import learn
from ckconv.learning.pair import Pair

#: Family -> what it extends.
SHIPPED = {
    name: listed(tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8")).get("extends")) for name in FAMILIES
}

SHIPPED_INDEX = catalog._index()

#: Families whose files come out right, held out with all that extend them -> what theirs then extends.
LEARNED = [
    "deepseek_v3",
    "ernie4_5_moe",
    "exaone4",
    "glm4_moe",
    "lfm2_moe",
    "mixtral",
    "nemotron",
    "olmo2",
    "phi",
    "qwen2_moe",
]


@cache
def types() -> dict[str, set[str]]:
    """What documents of the shipped families are called: there are more than stay compiled."""
    return {name: set(FAMILIES[name].in_huggingface.names) for name in SHIPPED}


def without(name: str) -> Index:
    """What the shipped families are called but this one, those of its type, and those that extend one of them."""
    hidden = {one for one, own in types().items() if one == name or types()[name] & own}
    while True:
        more = {n for n, parents in SHIPPED.items() if n not in hidden and hidden & {*parents}}
        if not more:
            kept = {key: {word: [n for n in names if n not in hidden] for word, names in words.items()}
                    for key, words in SHIPPED_INDEX.items()}  # fmt: skip
            return {key: {word: names for word, names in words.items() if names} for key, words in kept.items()}
        hidden |= more


def hide(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a family not be known, nor those that extend it."""
    index = without(name)
    monkeypatch.setattr(catalog, "_index", lambda: index)


def is_pair(case: Case) -> bool:
    """A model that goes to GGUF and back."""
    return bool(case.recorded) and case.expected("hf->gguf") == case.expected("gguf->hf") == "right"


#: Families that are held out; reading every case takes seconds.
PAIRED = {case.family for case in cases() if is_pair(case)} if NEEDS["learn"]() else set()


def pairs_of(name: str, folder: Path) -> Iterator[tuple[Path, Path]]:
    """Every case of a family that goes to GGUF and back: the checkpoint, and what llama.cpp's converter makes of it.

    Where it does not take the case, what ckconv makes of it, those cases last; without its sources, of every case.
    """
    made = []
    for case in cases(name):
        if is_pair(case):
            source = checkpoint(case.recorded, folder / case.name / "hf", case.tokenizer)
            model = folder / case.name / "m.gguf"
            asked = {"model": str(source), "out": str(model), "type": "f32" if case.dtype == "float32" else "auto"}
            asked |= {"document": {}, "plain": False, "arguments": [], "vocabulary": False, **case.converter}
            theirs = converter() if "wrong" not in asked else None
            if theirs is not None and theirs.ask(without_null(asked)):  # after many models there may be no room in it
                theirs.close()
                theirs = theirs if not theirs.ask(without_null(asked)) else None
            if theirs is not None:
                yield source, model
                continue
            ckconv.convert(source, model, options=Options(**case.options))
            if converter() is None:
                yield source, model
            else:
                made.append((source, model))
    yield from made


@cache
def converter() -> consumers.Consumer | None:
    """The converter of llama.cpp, for as long as the tests run."""
    sources = os.environ.get("LLAMA_CPP_SOURCES", "") if os.environ.get("CKCONV_LEARN") else ""
    return consumers.Consumer("../scripts/llama_cpp_converter.py", sources) if sources else None


def held_out(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    """Learn a family from its first case: the file, and what it makes of the others."""
    pairs = list(pairs_of(name, folder))
    hide(name, monkeypatch)
    try:
        text = learn(pairs[:1], "new").text
    except CkconvError as error:
        if not error.code.startswith("learn."):
            raise
        return "", []
    (folder / "new.toml").write_text(text)
    outcomes = []
    for source, model in pairs[1:]:
        found = check(folder / "new.toml", Pair(open_index(source), open_index(model)))
        stopped = found.forth.error or found.back.error
        outcomes.append("right" if found.right else "refused" if stopped else f"wrong: {found}")
    return text, outcomes


@pytest.mark.parametrize("name", LEARNED)
def test_a_family_that_is_not_known_is_learned_from_one_pair(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right on its own pair; on models with other switches right, or refused."""
    text, others = held_out(name, tmp_path, monkeypatch)

    assert text
    assert set(others) <= {"right", "refused"}, others


@pytest.mark.needs("learn")
@pytest.mark.parametrize("name", sorted(PAIRED & SHIPPED.keys()))
def test_no_family_is_learned_wrong_in_silence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, others = held_out(name, tmp_path, monkeypatch)
    assert set(others) <= {"right", "refused"}, others


def test_two_pairs_open_what_one_leaves_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = list(islice(pairs_of("olmo2", tmp_path), 2))
    hide("olmo2", monkeypatch)

    one, both = (tomllib.loads(learn(pairs[:n], "new").text)["config"]["seen"] for n in (1, 2))

    assert one["tie_word_embeddings"] is False
    assert both["tie_word_embeddings"] == [False, True]


@pytest.mark.parametrize(
    ("name", "place", "said"),
    [
        ("gemma2", "parameters.layer_types.value", "every(layers, 2, 'sliding_attention', 'full_attention')"),
        ("glm4_moe", "parameters.use_qk_norm.gguf", [{"present": "blk.0.attn_k_norm.weight"}]),
        ("exaone4", "engines.llama_cpp.optional", ["rope_frequencies"]),
        ("lfm2_moe", "config.seen.intermediate_size", "any"),
        ("gpt2", "parameters.n_ctx.value", "context"),
        ("granite_swa", "parameters.layer_rope_theta.value", "spread(layers, 10000.0)"),
        pytest.param(
            *("xverse", "parameters.kv_heads.gguf"),
            [{"key": "attention.head_count_kv", "when": "'kv_heads' in stated"}],
            marks=pytest.mark.needs("learn"),
        ),
        pytest.param(
            *("olmo", "parameters.rope_type.gguf"),
            [{"key": "rope.scaling.type:str", "when": "rope_type in ['linear', 'yarn']"}],
            marks=pytest.mark.needs("learn"),
        ),
    ],
    ids=[
        "a rule of the layers",
        "a switch",
        "a scaled RoPE",
        "a size of tensors",
        "two keys of one number",
        "one value for all",
        "where stated",
        "where scaled",
    ],
)
def test_what_two_pairs_differ_in_is_one_file(
    name: str, place: str, said: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = list(islice(pairs_of(name, tmp_path), 2))
    hide(name, monkeypatch)
    found: Any = tomllib.loads(learn(pairs, "new").text)
    for word in place.split("."):
        found = found[word]
    assert found == said


@pytest.mark.needs("learn")
def test_what_no_metadata_tells_apart_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ckconv) -> None:
    pairs = [str(path) for pair in islice(pairs_of("gemma", tmp_path), 2) for path in pair]
    hide("gemma", monkeypatch)
    command = ("learn", *pairs, "-o", tmp_path / "new.toml", "--base", "nemotron")

    asked = ckconv(*command)

    assert "back: hidden_act is 'gelu', and 'gelu_pytorch_tanh' is made" in asked.err
    assert "hint: --confirm hidden_act=harmless makes a file, if nothing depends on it" in asked.err
    assert ckconv(*command, "--confirm", "hidden_act=harmless").code in (0, 7)


def test_what_a_gguf_has_no_place_for_is_named_and_not_missed_on_the_way_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, model = next(pairs_of("olmo2", tmp_path))
    hide("olmo2", monkeypatch)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    save_file(load_file(source / "model.safetensors") | {name: np.ones(3, np.float32)}, source / "model.safetensors")

    (found,) = learn([(source, model)], "new").checked

    assert found.right
    assert list(found.forth.left_out) == [name]


# Bad pairs: named with the numbers, and nothing is written


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    found = next(pairs_of("olmo2", tmp_path))
    hide("olmo2", monkeypatch)
    return found


def changed(source: Path, change: Any) -> None:
    tensors = load_file(source / "model.safetensors")
    save_file({name: change(name, array) for name, array in tensors.items()}, source / "model.safetensors")


def test_a_fine_tuned_checkpoint_is_no_pair(pair: tuple[Path, Path]) -> None:
    changed(pair[0], lambda name, array: array + np.float32(1e-3))
    with pytest.raises(InputError, match=r"are no pair: \d+ of \d+ kinds of tensors have their values in no tensor"):
        learn([pair], "new")


def test_one_other_tensor_is_named(pair: tuple[Path, Path]) -> None:
    changed(pair[0], lambda name, array: array * np.float32(1.01) if "down_proj" in name else array)
    with pytest.raises(InputError, match=r"1 of \d+ kinds of tensors .*blk.N.ffn_down.weight") as caught:
        learn([pair], "new")
    assert caught.value.code == "learn.untraced"


def test_a_merged_checkpoint_is_no_pair(pair: tuple[Path, Path]) -> None:
    """An adapter of all linear layers was added: norms and embeddings are as they were."""
    changed(pair[0], lambda name, array: array + np.float32(1e-3) if array.ndim > 1 and "layers" in name else array)
    with pytest.raises(InputError, match=r"7 of 14 kinds of tensors have their values in no tensor") as caught:
        learn([pair], "new")
    assert caught.value.code == "learn.values"


def test_halves_of_two_models_are_no_pair(pair: tuple[Path, Path], tmp_path: Path) -> None:
    other = next(pairs_of("qwen3", tmp_path / "other"))
    with pytest.raises(InputError, match=r"are no pair: \d+ of \d+ kinds of tensors"):
        learn([(pair[0], other[1])], "new")


def test_a_quantized_checkpoint_is_named_with_its_types(pair: tuple[Path, Path]) -> None:
    changed(pair[0], lambda name, array: array.astype(np.int8) if "proj" in name else array)
    with pytest.raises(CkconvError, match=r"21 tensors of \d+ are I8, not F32, F16 or BF16") as caught:
        learn([pair], "new")
    assert (caught.value.code, caught.value.exit_code) == ("learn.type", 4)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([f"model.odd{n}.weight" for n in range(500)], r"51\d kinds of tensors; 400 at most expected"),
        ([], r"1,000,000,000 layers, more than its tensors; \d\d at most expected"),
    ],
)
def test_a_hostile_pair_is_refused_before_anything_is_compared(
    pair: tuple[Path, Path], more: list[str], said: str
) -> None:
    source, model = pair
    if more:
        tensors = load_file(source / "model.safetensors")
        save_file(tensors | {name: np.ones(4, np.float32) for name in more}, source / "model.safetensors")
    else:
        data = model.read_bytes()
        name = b"blk.1.attn_k.weight"
        assert data.count(name) == 1
        model.write_bytes(data.replace(name, b"blk.999999999.k.we."))
    with pytest.raises(InputError, match=said) as caught:
        learn([pair], "new")
    assert caught.value.code == "learn.pair"


def test_what_samples_do_not_show_the_whole_comparison_does(pair: tuple[Path, Path]) -> None:
    def touch(name: str, array: np.ndarray) -> np.ndarray:
        if name != "model.embed_tokens.weight":
            return array
        flat = array.copy()
        flat[200, 3] += 1
        return flat

    changed(pair[0], touch)
    with pytest.raises(InputError) as caught:
        learn([pair], "new", rows=1)
    assert caught.value.code in ("learn.check", "learn.untraced")


def test_a_truncated_file_is_named_with_its_length(pair: tuple[Path, Path]) -> None:
    data = pair[1].read_bytes()
    pair[1].write_bytes(data[:-1000])
    with pytest.raises(InputError, match=r"ends at [\d,]+; the file has [\d,]+") as caught:
        learn([pair], "new")
    assert caught.value.exit_code == 3


def test_a_quantized_gguf_is_named_with_its_types(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(CkconvError, match=r"tensors? of \d+ are Q5_0, Q8_0, not F32, F16 or BF16") as caught:
        learn([(pair[0], FIXTURES / "kquants/llama64.Q4_K_M.gguf")], "new")
    assert caught.value.code == "learn.type"


# Quantized GGUFs, by values that are near


@pytest.fixture
def quantized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, Path]:
    """A checkpoint, its GGUF in Q4_0, and the GGUF that was quantized."""
    return pair_of_blocks(tmp_path, monkeypatch)


def pair_of_blocks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, Path]:
    source, model = next(pairs_of("nemotron", folder))
    ckconv.convert(model, folder / "small.gguf", options=Options(quantize="q4_0"))
    hide("nemotron", monkeypatch)
    return source, folder / "small.gguf", model


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file that is learned of that pair."""
    with pytest.MonkeyPatch.context() as patch:
        source, small, _ = pair_of_blocks(tmp_path_factory.mktemp("near"), patch)
        return learn([(source, small)], "new", approximate=True).text


def test_a_file_is_learned_from_values_that_are_near(quantized: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """It makes the GGUF that was quantized, byte for byte."""
    source, small, model = quantized

    found = learn([(source, small)], "new", approximate=True)

    assert {"Q4_0", "F32"} <= {tensor.dtype.name for tensor in open_index(small).stored}
    (of,) = found.checked
    assert 0.05 < of.forth.distance**0.5 < 0.2
    assert "learned from near values (F16, F32, Q4_0, Q8_0)" in found.questions[-1].text
    assert "open: learned from near values" in found.text
    (tmp_path / "new.toml").write_text(found.text)
    assert check(tmp_path / "new.toml", Pair(open_index(source), open_index(model))).right


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda name, array: array + np.float32(0.2) * np.sign(array) * ("q_proj" in name), "blk.N.attn_q.weight"),
        (lambda name, array: array[::-1].copy() if "up_proj" in name else array, "blk.N.ffn_up.weight"),
        (lambda name, array: array * np.float32(1.001) if "norm" in name else array, "blk.N.attn_norm"),
        (lambda name, array: array * np.float32(2) if "up_proj" in name else array, "blk.N.ffn_up.weight"),
    ],
    ids=["merged", "another order", "norms are equal", "another scale"],
)
def test_what_is_not_near_is_not_taken(change: Any, said: str, quantized: tuple[Path, Path, Path]) -> None:
    source, small, _ = quantized
    changed(source, change)
    with pytest.raises(InputError, match=said):
        learn([(source, small)], "new", approximate=True)


@pytest.mark.parametrize(("kind", "by", "right"), [("q8_0", 1.005, True), ("q8_0", 1.04, False), ("q4_0", 1.04, True),
                                                   ("q4_0", 1.35, False), ("q5_1", 1.25, False)])  # fmt: skip
def test_rows_are_near_as_far_as_their_type_rounds_them(
    kind: str, by: float, right: bool, quantized: tuple[Path, Path, Path], near: str, tmp_path: Path
) -> None:
    """Scaled by 4 %, they are other rows in eight bits, and the same in four."""
    source, small, model = quantized
    (tmp_path / "new.toml").write_text(near)
    ckconv.convert(model, small, options=Options(quantize=kind, families=(tmp_path / "new.toml",)), force=True)
    changed(source, lambda name, array: array * np.float32(by) if "up_proj" in name else array)

    found = check(tmp_path / "new.toml", Pair(open_index(source), open_index(small), near=True))

    said = [] if right else ["blk.0.ffn_up.weight has other values"]
    assert [one for one in found.forth.different if "blk.0.ffn_up.weight" in one] == said


def test_floats_beside_blocks_are_held_to_equal_values(
    quantized: tuple[Path, Path, Path], near: str, tmp_path: Path
) -> None:
    source, small, _ = quantized
    (tmp_path / "new.toml").write_text(near)
    norm = next(one for one in open_index(small).stored if one.name == "output_norm.weight")
    with small.open("r+b") as file:
        file.seek(norm.extent.offset)
        file.write(np.float32(1.25).tobytes())

    found = check(tmp_path / "new.toml", Pair(open_index(source), open_index(small), near=True))

    said = ["output_norm.weight has other values"]
    assert (norm.dtype.name, found.forth.different, bool(found.back.different)) == ("F32", said, True)


def test_one_row_that_is_another_is_seen(quantized: tuple[Path, Path, Path]) -> None:
    source, small, _ = quantized

    def swap(name: str, array: np.ndarray) -> np.ndarray:
        if "embed_tokens" not in name:
            return array
        array[[0, 1]] = array[[1, 0]]
        return array

    changed(source, swap)
    with pytest.raises(InputError, match=r"token_embd\.weight has other values"):
        learn([(source, small)], "new", approximate=True)


def test_scales_that_are_no_numbers_are_near_nothing(quantized: tuple[Path, Path, Path]) -> None:
    source, small, _ = quantized
    tensor = next(one for one in open_index(small).stored if one.name == "blk.0.ffn_up.weight")
    with small.open("r+b") as file:
        file.seek(tensor.extent.offset)
        file.write(np.float16(np.nan).tobytes())
    with pytest.raises(InputError, match=r"blk\.N\.ffn_up\.weight"):
        learn([(source, small)], "new", approximate=True)


@pytest.mark.follows
def test_the_way_to_a_quantized_gguf_is_said(quantized: tuple[Path, Path, Path], tmp_path: Path, ckconv) -> None:
    command = ("learn", *quantized[:2], "-o", tmp_path / "new.toml")

    plain = ckconv(*command)
    asked = ckconv(*command, "--approximate")
    both = ckconv(*command, "--force", "--approximate", "--check", "all")

    assert (plain.code, "hint: --approximate matches" in plain.err) == (4, True)
    assert (asked.code, "near the blocks' values: GGUF 24/24" in asked.err + asked.out) == (7, True)
    assert (both.code, "--check pair or none expected" in both.err) == (2, True)


# The command


def test_the_command_writes_a_file_that_converts(pair: tuple[Path, Path], tmp_path: Path, ckconv) -> None:
    result = ckconv("learn", *pair, "-o", tmp_path / "new.toml")

    assert result.code in (0, 7), result.err
    assert "byte for byte: GGUF" in result.out + result.err
    again = ckconv("learn", *pair, "-o", tmp_path / "new.toml")
    assert (again.code, "exists already" in again.err) == (6, True)
    made = ckconv("convert", pair[0], tmp_path / "made.gguf", "--family", tmp_path / "new.toml")
    assert made.code == 0, made.err
    assert "was not measured" in made.err + made.out


def test_a_renamed_fork_is_learned_from_two_checkpoints(tmp_path: Path, ckconv) -> None:
    known = next(pairs_of("llama", tmp_path / "known"))[0]
    fork = shutil.copytree(known, tmp_path / "fork")
    document = json.loads((fork / "config.json").read_text())
    own = {"model_type": "forky", "architectures": ["ForkyForCausalLM"]}
    (fork / "config.json").write_text(json.dumps(document | own))
    tensors = load_file(fork / "model.safetensors")
    renamed = {name.replace("model.layers.", "net.blocks.").replace("q_proj", "wq"): t for name, t in tensors.items()}
    save_file(renamed, fork / "model.safetensors")

    result = ckconv("learn", fork, known, "-o", tmp_path / "forky.toml")

    assert result.code in (0, 7), result.err
    assert sorted(path.name for path in tmp_path.glob(".ckconv-learn-*")) == []
    made = ckconv("convert", fork, tmp_path / "fork.gguf", "--family", tmp_path / "forky.toml")
    assert made.code == 0, made.err
    ckconv("convert", known, tmp_path / "known.gguf")
    (ours, theirs) = (open_index(tmp_path / f"{name}.gguf").stored for name in ("fork", "known"))
    assert {(t.name, t.dtype, t.shape) for t in ours} == {(t.name, t.dtype, t.shape) for t in theirs}


@pytest.mark.parametrize("name", ["afmoe", "chatglm", "cohere2_moe", "gpt_neox"])
def test_a_fork_is_learned_as_the_family_that_it_is_of(name: str, tmp_path: Path, ckconv) -> None:
    """Keys that its class reads beside others, and matrices that only some layers have: cousins were taken for it."""
    case = next(case for case in cases(name) if case.recorded)
    known = checkpoint(case.recorded, tmp_path / "known", case.tokenizer)
    fork = shutil.copytree(known, tmp_path / "fork")
    own = json.loads((fork / "config.json").read_text()) | {"model_type": "fork", "architectures": ["ForkForCausalLM"]}
    (fork / "config.json").write_text(json.dumps(own))
    family = ("--family", tmp_path / "fork.toml")
    learned = ckconv("learn", fork, known, "-o", family[1])
    assert (learned.code, f"extends {name}," in learned.out) == (0, True), learned.out + learned.err
    assert ckconv("convert", fork, tmp_path / "fork.gguf", *family).code == 0
    back = ckconv("convert", tmp_path / "fork.gguf", f"{tmp_path}/back/", "--to", "hf", *family)
    assert back.code == 0, back.err
    assert (
        json.loads((tmp_path / "back" / "config.json").read_text()).items()
        >= {
            key: value
            for key, value in own.items()
            if key.startswith(("rotary_", "global_", "padded_", "vocab_", "num_"))
        }.items()
    )


def test_a_fork_with_the_base_of_rope_in_the_older_style_comes_back(tmp_path: Path, ckconv) -> None:
    """What is made says it in both styles; the newer one was refused, as nothing that the pair had."""
    known = FIXTURES / "hf" / "qwen3-tied-bf16"
    fork = shutil.copytree(known, tmp_path / "fork")
    own = json.loads((fork / "config.json").read_text()) | {"model_type": "fork", "architectures": ["ForkForCausalLM"]}
    assert own.keys() & {"rope_theta", "rope_parameters"} == {"rope_theta"}
    (fork / "config.json").write_text(json.dumps(own))
    family = ("--family", tmp_path / "fork.toml")
    learned = ckconv("learn", fork, known, "-o", family[1])
    assert (learned.code, "extends qwen3," in learned.out) == (0, True), learned.out
    assert ckconv("convert", fork, tmp_path / "fork.gguf", *family).code == 0
    back = ckconv("convert", tmp_path / "fork.gguf", f"{tmp_path}/back/", "--to", "hf", *family)
    assert back.code == 0, back.err
    assert ckconv("verify", tmp_path / "fork.gguf", tmp_path / "back", *family).code == 0
    made = json.loads((tmp_path / "back" / "config.json").read_text())
    for table in ({"rope_theta": 5.0}, {"rope_type": "linear", "factor": 2.0}):
        (fork / "config.json").write_text(json.dumps(own | {"rope_parameters": made["rope_parameters"] | table}))
        assert ckconv("convert", fork, tmp_path / "other.gguf", *family).code == 4, table
    made["rope_parameters"]["extra"] = 3
    (tmp_path / "back" / "config.json").write_text(json.dumps(made))
    differs = ckconv("verify", tmp_path / "back", tmp_path / "fork.gguf", *family)
    assert "'rope_parameters.extra' is 3, where fork was seen with nothing; expected none" in differs.err


@pytest.fixture
def beside_mlx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, Path]:
    """A pair whose experts are stacked under other names in its MLX directory."""
    source, model = next(pairs_of("lfm2_moe", tmp_path))
    ckconv.convert(source, tmp_path / "mlx", to="mlx")
    hide("lfm2_moe", monkeypatch)
    return source, model, tmp_path / "mlx"


def test_names_of_an_mlx_directory_are_learned(
    beside_mlx: tuple[Path, Path, Path], tmp_path: Path, ckconv: Any
) -> None:
    *pair, directory = beside_mlx

    result = ckconv("learn", *pair, "--mlx", directory, "-o", tmp_path / "new.toml")

    assert result.code in (0, 7), result.err
    rows = tomllib.loads((tmp_path / "new.toml").read_text())["tensors"]
    assert rows["L.ffn.experts.gate"]["mlx"] == [{"name": "L.feed_forward.switch_mlp.gate_proj"}]
    made = ckconv("convert", pair[0], tmp_path / "made/", "--to", "mlx", "--family", tmp_path / "new.toml")
    assert made.code == 0, made.err
    assert load_file(tmp_path / "made/model.safetensors").keys() == load_file(directory / "model.safetensors").keys()


def test_an_mlx_directory_of_another_model_is_not_learned(
    beside_mlx: tuple[Path, Path, Path], tmp_path: Path, ckconv: Any
) -> None:
    *pair, directory = beside_mlx
    tensors = load_file(directory / "model.safetensors")
    tensors = {name: array + np.float32(1) if "conv" in name else array for name, array in tensors.items()}
    save_file(tensors, directory / "model.safetensors", {"format": "mlx"})

    result = ckconv("learn", *pair, "--mlx", directory, "-o", tmp_path / "new.toml")

    assert (result.code, (tmp_path / "new.toml").exists()) == (3, False)
    assert "to MLX: model.layers." in result.err
    assert "conv" in result.err
    assert ckconv("learn", *pair, "--mlx", pair[0], "-o", tmp_path / "new.toml").code == 3


def test_inspect_of_an_unknown_architecture_gives_the_command(pair: tuple[Path, Path], ckconv) -> None:
    source, model = pair
    document = json.loads((source / "config.json").read_text())
    own = {**document, "model_type": "mylmo", "architectures": ["MylmoForCausalLM"]}
    (source / "config.json").write_text(json.dumps(own))
    for path, wanted in ((source, f"{source} MODEL.gguf"), (model, f"CHECKPOINT {model}")):
        targets = ckconv("inspect", path, "--json").json["targets"]
        hints = {reason["hint"] for target in targets for reason in target["reasons"]}
        assert hints
        assert all(f"ckconv learn {wanted} -o FILE" in hint for hint in hints)


def test_questions_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ckconv) -> None:
    source, model = next(pairs_of("qwen3", tmp_path))
    hide("qwen3", monkeypatch)
    command = ("learn", source, model, "-o", tmp_path / "new.toml", "--json")

    asked = ckconv(*command)

    assert asked.code == 7, asked.err
    keys = [question["key"] for question in asked.json["questions"]]
    answers = [word for key in keys for word in ("--confirm", f"{key}=fixed")]
    assert ckconv(*command, "--force", *answers).code == 0


def test_an_output_of_learn_is_placed_as_every_other(pair: tuple[Path, Path], tmp_path: Path, ckconv) -> None:
    lost = ckconv("learn", *pair, "-o", tmp_path / "no/new.toml")
    assert (lost.code, "hint: mkdir -p" in lost.err) == (6, True), lost.err
    (tmp_path / "real").mkdir()
    (tmp_path / "new.toml").symlink_to("real/new.toml")
    linked = ckconv("learn", *pair, "-o", tmp_path / "new.toml")
    assert (linked.code, "is a link to real/new.toml" in linked.err) == (6, True), linked.err
    assert list((tmp_path / "real").iterdir()) == []
    unknown = ckconv("learn", *pair, "-o", tmp_path / "own.toml", "--confirm", "hiden_size=any")
    assert (unknown.code, "did you mean hidden_size?" in unknown.err) == (2, True), unknown.err


def test_nothing_is_written_where_nothing_is_learned(pair: tuple[Path, Path], tmp_path: Path, ckconv) -> None:
    changed(pair[0], lambda name, array: array + np.float32(1e-3))
    result = ckconv("learn", *pair, "-o", tmp_path / "new.toml")
    assert (result.code, (tmp_path / "new.toml").exists()) == (3, False)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["one"], 2, "learn takes pairs"),
        (["a", "b", "--base", "nosuch"], 2, "--base nosuch: no family"),
        (["a", "b", "--confirm", "x=y"], 2, "--confirm x=y: KEY=harmless|any|fixed expected"),
    ],
)
def test_a_wrong_command_says_what_is_expected(
    arguments: list[str], code: int, said: str, tmp_path: Path, ckconv
) -> None:
    result = ckconv("learn", *arguments, "-o", tmp_path / "new.toml")
    assert (result.code, said in result.err) == (code, True), result.err
