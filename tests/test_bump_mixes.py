"""Types that a release of the engine does not compute beside each other in a layer are refused, and the hint helps.

What is right was run: logits of the engines of both releases, by decoding and by prefill, against the entries' values.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Q
from models import Model
from quantized_models import MODELS

import ckconv as library
from ckconv.formats.bump.releases import table_of_mixes

FLAG = re.compile(r"(?:--(?:decode|quantize) '?[^' ]+'?|--dequantize|--engine \w+)")

#: Types of wq, wk and wv in the first layer -> whether April's engine computes them; July's computes all of them.
ATTENTION = {
    "Q8_0 Q8_0 Q6_K": False, "Q5_0 Q5_0 Q6_K": False, "Q4_K Q4_K Q8_0": False, "Q8_0 Q4_K Q4_K": False,
    "Q4_K Q8_0 Q5_K": False, "Q6_K Q5_0 Q8_0": False, "F32 Q6_K Q8_0": False, "Q4_K Q4_K Q6_K": True,
    "Q5_K Q5_K Q6_K": True, "Q5_K Q4_K Q4_K": True, "F32 Q6_K Q6_K": True, "Q6_K F32 F32": True, "Q5_1 Q4_K Q4_K": True,
    "Q4_K Q5_1 Q5_1": True, "Q5_0 Q8_0 Q5_1": True, "Q5_1 Q5_K Q6_K": True,
}  # fmt: skip


def mixed(arch: str, words: str) -> Model:
    """Three layers, types in the first; all else is Q8_0."""
    types = {f"blk.0.attn_{part}.weight": Q[word] for part, word in zip("qkv", words.split(), strict=True)}
    norms = {"head_dim": 64, "qk_norm": True} if arch == "qwen3" else {}
    return Model(arch=arch, layers=3, hidden=256, ffn=256, matrix=Q.Q8_0, types=types, **norms)


def hinted(err: str) -> list[list[str]]:
    """The flags of every way out that a message names."""
    hint = err.partition("hint: ")[2]
    ways = [FLAG.findall(way) for way in re.split("; ", hint)]
    return [[word for flag in way for word in shlex.split(flag)] for way in ways if way]


@pytest.mark.product("values")
@pytest.mark.parametrize("words", ATTENTION)
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_april_turns_what_q_k_and_v_read_into_blocks_once(arch: str, words: str, tmp_path: Path, ckconv) -> None:
    source = mixed(arch, words).write(tmp_path / "m.gguf")
    for flags in ((), ("--engine", "april"), ("--engine", "april", "--bump-version", 4)):
        made = ckconv("convert", source, tmp_path / "m.bump", "-n", *flags)
        assert made.code == (0 if ATTENTION[words] else 4), made.err
        assert ("April 2026 does not compute layer.0.w" in made.err) == (not ATTENTION[words])
    assert ckconv("convert", source, tmp_path / "m.bump", "--engine", "july").code == 0
    said = json.loads((tmp_path / "weights_manifest.json").read_text())["config"]["ckconv_engines"]
    assert said == (["april", "july"] if ATTENTION[words] else ["july"])


@pytest.mark.parametrize("words", [words for words, right in ATTENTION.items() if not right])
def test_every_way_out_that_a_mix_is_refused_with_works(words: str, tmp_path: Path, ckconv) -> None:
    source = mixed("qwen2", words).write(tmp_path / "m.gguf")
    refused = ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 5)
    ways = hinted(refused.err)
    assert [way[0] for way in ways] == ["--decode", "--engine"]
    for flags in ways:
        made = ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 5, "--force", *flags)
        assert (made.code, "computed right by" in made.out) == (0, True), made.err


def test_one_matrix_is_decoded_where_one_is_enough(tmp_path: Path, ckconv) -> None:
    source = mixed("llama", "Q8_0 Q8_0 Q6_K").write(tmp_path / "m.gguf")
    refused = ckconv("convert", source, tmp_path / "m.bump", "--engine", "april")
    assert "layer.0.wq of Q8_0 beside layer.0.wv of Q6_K" in refused.err
    assert "hint: --decode 'blk.0.attn_v.weight' decodes it to FP32; --engine july computes it" in refused.err


def test_a_recipe_with_globs_is_refused_and_repeated_with_another_glob(tmp_path: Path, ckconv) -> None:
    source = Model(arch="llama", hidden=256, ffn=256, head="own").write(tmp_path / "m.gguf")
    flags = ("--bump-version", 5, "--quantize", "q8_0,blk.*.attn_v.weight=q6_k")
    refused = ckconv("convert", source, tmp_path / "m.bump", *flags)
    assert (refused.code, "(2 layers)" in refused.err) == (4, True)
    (again, _) = hinted(refused.err)
    assert again == ["--quantize", "q8_0,blk.*.attn_v.weight=q6_k,blk.*.attn_v.weight=q8_0"]
    assert ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 5, *again).code == 0


@pytest.mark.parametrize(("head", "whose"), [("q4_k", " of July 2026"), ("q6_k", None), ("q8_0", None)])
def test_a_head_that_needs_all_logits_says_so(head: str, whose: str | None, tmp_path: Path, ckconv) -> None:
    """July's code for the last logits alone calls a function of Q4_K that is nowhere in its engine (run)."""
    source = Model(arch="qwen2", hidden=256, ffn=256, head="own").write(tmp_path / "m.gguf")
    made = ckconv(
        "convert", source, tmp_path / "m.bump", "--bump-version", 5, "--quantize", f"q8_0,output.weight={head}"
    )
    said = f"the output head is {head.upper()}: the engine{whose} is built with --logits-layout full"
    assert (made.code, "--logits-layout full" in made.out, said in made.out) == (0, bool(whose), bool(whose)), made.out


@pytest.mark.parametrize(("head", "name"), [("own", "output.weight"), ("tied", "token_embd.weight")])
def test_a_head_of_q5_0_needs_all_logits_in_july(head: str, name: str, tmp_path: Path, ckconv) -> None:
    """Of the last position alone July computes NaN or other logits after a prompt of two or more tokens (run)."""
    source = Model(arch="qwen2", hidden=256, ffn=256, head=head).write(tmp_path / "m.gguf")
    made = ckconv("convert", source, tmp_path / "m.bump", "--engine", "july", "--quantize", f"q8_0,{name}=q5_0")
    said = "the output head is Q5_0: the engine of July 2026 is built with --logits-layout full"
    assert (made.code, said in made.out) == (0, True), made.out


@pytest.mark.parametrize(("name", "needed"), [("qwen35-q8_0", True), ("qwen35-q5_k", False)])
def test_a_template_may_need_all_logits_for_another_head(name: str, needed: bool, tmp_path: Path, ckconv) -> None:
    """July's qwen35 with a head of Q8_0, by prefill: 7 of logits whose deviation is 1; with one of Q6_K 0 (run)."""
    source = MODELS[name].write(tmp_path / "m.gguf")
    made = ckconv("convert", source, tmp_path / "m.bump", "--engine", "july")
    said = "the output head is Q8_0: the engine of July 2026 is built with --logits-layout full"
    assert (made.code, said in made.out, "--logits-layout" in made.out) == (0, needed, needed), made.out


@pytest.mark.parametrize(("kind", "whose"), [("q5_k", "April 2026"), ("q5_1", "April 2026"), ("q5_0", "July 2026")])
@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_a_head_of_its_own_may_be_of_any_type_that_layers_have(
    arch: str, kind: str, whose: str, tmp_path: Path, ckconv
) -> None:
    """Run in both: 6 to 12 %; of the last position alone one of them computes something else after a prompt."""
    norms = {"head_dim": 64, "qk_norm": True} if arch == "qwen3" else {}
    source = Model(arch=arch, hidden=256, ffn=256, head="own", **norms).write(tmp_path / "m.gguf")
    made = ckconv("convert", source, tmp_path / "m.bump", "--quantize", f"q8_0,output.weight={kind}")
    said = f"the output head is {kind.upper()}: the engine of {whose} is built with --logits-layout full"
    assert (made.code, said in made.out) == (0, True), made.out + made.err
    assert "computed right by the engine of April 2026 and of July 2026" in made.out
    tied = ckconv("convert", source, tmp_path / "t.bump", "--quantize", f"q8_0,token_embd.weight={kind}")
    assert (tied.code, f"a {kind.upper()} token_emb" in tied.err) == (4, True), tied.out


def test_a_gemma3_needs_all_logits_in_april_whatever_its_head_is(tmp_path: Path, ckconv) -> None:
    own = {"head_dim": 64, "qk_norm": True, "post_norms": True}
    source = Model(arch="gemma3", hidden=256, ffn=256, matrix=Q.Q8_0, **own).write(tmp_path / "m.gguf")
    made = ckconv("convert", source, tmp_path / "m.bump", "--engine", "april")
    assert made.code == 0, made.err
    assert "the output head is Q8_0: the engine of April 2026 is built with --logits-layout full" in made.out


@pytest.mark.parametrize(
    ("head", "context", "said"),
    [("own", 1 << 26, 2 * 2 * 2 * 16 + 384), ("own", 4096, 0), ("q8_0", 1 << 26, 2 * 2 * 2 * 16), ("q8_0", 1 << 22, 0)],
)
def test_a_context_that_takes_much_memory_is_noted(head: str, context: int, said: int, tmp_path: Path, ckconv) -> None:
    """Keys and values of 2 layers, 2 heads of 16, and with a head of floats the logits: ``build_activation_specs``."""
    model = Model(
        context=1 << 26, vocab=384, **({"head": head} if head == "own" else {"matrix": Q.Q8_0, "head": "own"})
    )
    source = model.write(tmp_path / "m.gguf")
    made = ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 5, "--context", context)
    note = (
        f"the engine reserves at least {said * context * 4 / 1e9:,.0f} GB for the {context:,} positions that the file"
    )
    assert (made.code, note in made.out, "reserves" in made.out) == (0, bool(said), bool(said)), made.out + made.err


def test_gate_and_up_that_are_asked_to_be_of_two_types_say_which(tmp_path: Path, ckconv) -> None:
    source = Model(arch="llama", hidden=256, ffn=256, head="own").write(tmp_path / "m.gguf")
    flags = ("--bump-version", 5, "--quantize", "q8_0,blk.0.ffn_up.weight=q6_k")
    refused = ckconv("convert", source, tmp_path / "m.bump", *flags)
    assert "blk.0.ffn_gate.weight becomes Q8_0 and blk.0.ffn_up.weight becomes Q6_K" in refused.err
    assert ckconv("convert", source, tmp_path / "m.bump", *flags, *hinted(refused.err)[0]).code == 0


#: Types of a qwen35 with which July's engine is right or not: of query, key and value, or of gate and up.
HYBRID = {
    "attn_q attn_k attn_v": {
        "Q5_K Q5_K Q6_K": False, "Q8_0 Q8_0 Q6_K": False, "Q8_0 Q4_K Q4_K": False, "Q5_0 Q5_0 Q6_K": False,
        "Q6_K Q5_0 Q8_0": False, "F32 Q6_K Q6_K": False, "Q8_0 Q5_0 Q5_0": False, "Q5_1 Q4_K Q4_K": False,
        "Q4_K Q8_0 Q5_K": True, "Q6_K F32 F32": True, "Q4_K Q4_K Q8_0": True, "Q4_K Q4_K Q6_K": True,
        "Q5_0 Q8_0 Q8_0": True, "Q5_0 Q5_1 Q5_K": True, "F32 Q8_0 Q5_1": True, "Q6_K Q4_K Q6_K": True,
    },
    "ffn_gate ffn_up": {
        "Q8_0 Q4_K": False, "Q5_K Q6_K": False, "Q4_K Q6_K": False, "F32 Q8_0": False, "Q8_0 Q5_1": False,
        "Q5_K Q5_K": True, "Q6_K Q6_K": True,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("names", "words", "right"),
    [(names, words, right) for names, mixes in HYBRID.items() for words, right in mixes.items()],
)
def test_july_turns_what_attention_of_qwen35_reads_into_blocks_for_the_query(
    names: str, words: str, right: bool, tmp_path: Path, ckconv
) -> None:
    types = {f"{name}.weight": Q[word] for name, word in zip(names.split(), words.split(), strict=True)}
    model = MODELS["qwen35-q4_k"]
    source = model._replace(types={**types, **model.types}).write(tmp_path / "m.gguf")
    made = ckconv("convert", source, tmp_path / "m.bump", "--engine", "july")
    assert made.code == (0 if right else 4), made.err
    assert ("July 2026 does not compute layer." in made.err) == (not right)
    for flags in hinted(made.err):
        assert ckconv("convert", source, tmp_path / "m.bump", "--engine", "july", *flags, "--force").code == 0, flags


@pytest.mark.parametrize(
    ("words", "right"),
    [("Q8_0 Q8_0 Q6_K", False), ("Q8_0 Q4_K Q4_K", False), ("Q4_K Q4_K Q8_0", False), ("Q4_K Q4_K Q6_K", True),
     ("Q5_0 Q5_0 Q5_0", True), ("Q8_0 Q8_0 Q5_0", True), ("Q5_0 Q5_0 Q6_K", False), ("Q5_0 Q6_K Q6_K", False)],
)  # fmt: skip
def test_july_has_one_kind_of_blocks_in_attention_of_nemotron_h(
    words: str, right: bool, tmp_path: Path, ckconv
) -> None:
    types = {f"attn_{part}.weight": Q[word] for part, word in zip("qkv", words.split(), strict=True)}
    model = MODELS["nemotron_h-q4_k"]
    source = model._replace(types={**types, **model.types}).write(tmp_path / "m.gguf")
    made = ckconv("convert", source, tmp_path / "m.bump", "--engine", "july")
    assert made.code == (0 if right else 4), made.err
    if not right:
        assert hinted(made.err) == [["--dequantize", "--quantize", "Q8_0"]]  # it computes no floats there
        again = ckconv("convert", source, tmp_path / "m.bump", "--engine", "july", *hinted(made.err)[0])
        assert (again.code, "computed right by the engine of July 2026" in again.out) == (0, True)


def test_a_file_that_says_more_releases_than_are_right_is_inspected_as_what_it_is(tmp_path: Path, ckconv) -> None:
    """As 0.3.0 wrote it."""
    source = mixed("llama", "Q8_0 Q8_0 Q6_K").write(tmp_path / "m.gguf")
    asked = library.Options(engine="july", bump_version=4, source_record=False)
    library.convert(source, tmp_path / "m.bump", options=asked)
    path = tmp_path / "weights_manifest.json"
    document = json.loads(path.read_text())
    assert document["config"]["ckconv_engines"] == ["july"]
    document["config"]["ckconv_engines"] = ["april", "july"]
    path.write_text(json.dumps(document))
    assert "container\tengines\tjuly\n" in ckconv("inspect", tmp_path / "m.bump").out


def test_what_formats_lists_is_what_is_refused(ckconv) -> None:
    listed: list[Any] = ckconv("formats", "--json").json["bump5_mixes"]
    assert [(row["engine"], row["template"] or "", row["refused"]) for row in listed] == table_of_mixes()
    assert {(row["engine"], row["template"]) for row in listed} == {
        ("april", None), ("april", "gemma3"), ("july", "qwen35"), ("july", "nemotron_h"),
    }  # fmt: skip
