"""``--engine``: what each release of the engine computes right is written as it wants it, and the rest is refused.

Logits are computed by :mod:`bump_engine`, which knows nothing of ckconv; that of July takes no ``rope_layout`` of the
configuration.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import bump_engine
import gguf
import pytest
from bump5_expected import expected_bump5
from conftest import FIXTURES
from family_cases import cases, checkpoint
from gguf import GGMLQuantizationType as Q
from models import Model
from recorded import EXACT, PROMPT, off

import ckconv
from ckconv.errors import InputError
from ckconv.formats.bump.releases import _Reader, releases

ROOT = FIXTURES.parent
KQ = {"hidden": 256, "ffn": 256}


def convert(run: Any, model: Model, folder: Path, *flags: object) -> Any:
    return run("convert", model.write(folder / "m.gguf"), folder / "m.bump", *flags)


def manifest(folder: Path) -> Any:
    return json.loads((folder / "weights_manifest.json").read_text())


def types(folder: Path) -> dict[str, str]:
    return {entry["name"]: entry["dtype"] for entry in manifest(folder)["entries"]}


def test_july_keeps_bf16_and_april_widens_it(tmp_path: Path, ckconv) -> None:
    model = Model(matrix=Q.BF16, head="own")
    sizes = {}
    for release in ("april", "july"):
        assert convert(ckconv, model, tmp_path, "--engine", release, "--force").code == 0
        word = {"april": "fp32", "july": "bf16"}[release]
        assert {types(tmp_path)[name] for name in ("token_emb", "output.weight", "layer.1.w1")} == {word}
        assert set(manifest(tmp_path)["quant_summary"]["layer.0"].values()) == {word}
        assert types(tmp_path)["layer.0.ln1_gamma"] == "fp32"
        sizes[release] = (tmp_path / "m.bump").stat().st_size
    assert sizes["july"] < 0.55 * sizes["april"]
    expected, entries = expected_bump5(tmp_path / "m.gguf", kept=Q.BF16)
    assert (tmp_path / "m.bump").read_bytes()[: len(expected)] == expected
    assert manifest(tmp_path)["entries"] == entries
    assert ckconv("verify", tmp_path / "m.bump", tmp_path / "m.gguf").code == 0


def test_floats_of_two_types_in_one_entry_are_widened_together(tmp_path: Path, ckconv) -> None:
    model = Model(matrix=Q.BF16, types={"ffn_up.weight": Q.F32})
    assert convert(ckconv, model, tmp_path, "--engine", "july").code == 0
    assert (types(tmp_path)["layer.0.w1"], types(tmp_path)["layer.0.w2"]) == ("fp32", "bf16")


def test_july_computes_an_embedding_of_q5_0_and_april_is_hinted_at_it(tmp_path: Path, ckconv) -> None:
    model = Model(matrix=Q.Q5_0)
    refused = convert(ckconv, model, tmp_path, "--engine", "april")
    assert (refused.code, "the engine of April 2026 has no correct kernel for a Q5_0 token_emb" in refused.err) == (
        4,
        True,
    )
    assert "--engine july computes it" in refused.err
    assert convert(ckconv, model, tmp_path, "--engine", "july").code == 0
    assert types(tmp_path)["token_emb"] == "q5_0"
    assert manifest(tmp_path)["config"]["ckconv_engines"] == ["july"]


@pytest.mark.parametrize("matrix", [Q.F32, Q.BF16])
def test_july_adds_biases_beside_floats_twice(matrix: Q, tmp_path: Path, ckconv) -> None:
    refused = convert(ckconv, Model(arch="qwen2", qkv_bias=True, matrix=matrix), tmp_path, "--engine", "july")
    assert refused.code == 4
    assert "the engine of July 2026 adds a bias beside a float matrix twice: layer.0.bq and 5 more" in refused.err
    assert "--engine april computes it" in refused.err


def test_biases_beside_blocks_are_right_in_both(tmp_path: Path, ckconv) -> None:
    model = Model(arch="qwen2", qkv_bias=True, matrix=Q.Q8_0)
    assert convert(ckconv, model, tmp_path, "--engine", "july").code == 0
    assert manifest(tmp_path)["config"]["ckconv_engines"] == ["april", "july"]


def test_biases_of_zeros_are_none(tmp_path: Path, ckconv) -> None:
    """A builder that reads the bytes finds nothing to add."""
    source = Model(all_bias=True).write(tmp_path / "m.gguf")
    for tensor in gguf.GGUFReader(source, "r+").tensors:
        if tensor.name.endswith(".bias"):
            tensor.data[:] = 0
    assert ckconv("convert", source, tmp_path / "m.bump", "--engine", "july").code == 0
    assert manifest(tmp_path)["config"]["ckconv_engines"] == ["april", "july"]


def test_floats_with_biases_are_for_april_alone(tmp_path: Path, ckconv) -> None:
    result = convert(ckconv, Model(arch="qwen2", qkv_bias=True), tmp_path, "--bump-version", 5)
    assert "note: computed right by the engine of April 2026\n" in result.out
    assert manifest(tmp_path)["config"]["ckconv_engines"] == ["april"]
    assert "container\tengines\tapril\n" in ckconv("inspect", tmp_path / "m.bump").out


def test_a_type_that_was_asked_for_is_written_and_said_to_be_wrong(tmp_path: Path, ckconv) -> None:
    result = convert(ckconv, Model(matrix=Q.F16), tmp_path, "--bump-version", 5, "--dtype", "keep")
    assert "note: no engine that is known computes it right" in result.out
    assert manifest(tmp_path)["config"]["ckconv_engines"] == []


def test_bump_3_of_types_that_no_engine_of_it_loads_is_written_only_if_asked_for(tmp_path: Path, ckconv) -> None:
    """Such files were chosen by default, and a way out led to one; the engine's init ended with -6."""
    source = Model(matrix=Q.BF16).write(tmp_path / "m.gguf")
    chosen = ckconv("convert", source, f"{tmp_path}/5/", "--to", "bump", "--dtype", "keep")
    assert "bump 5 was chosen; bump 3 cannot hold the model: no engine of bump 3 loads BF16 matrices" in chosen.out
    assert manifest(tmp_path / "5")["config"]["ckconv_engines"] == ["july"]
    asked = ckconv("convert", source, f"{tmp_path}/3/", "--to", "bump", "--dtype", "keep", "--bump-version", 3)
    assert (asked.code, "  note: no engine of bump 3 loads BF16 matrices\n" in asked.out) == (0, True)
    assert "note\tno engine of bump 3 loads BF16 matrices\n" in ckconv("inspect", tmp_path / "3").out
    blocks = Model(matrix=Q.Q8_0).write(tmp_path / "8.gguf")
    refused = ckconv("convert", blocks, f"{tmp_path}/8/", "--to", "bump", "--bump-version", 3)
    assert (refused.code, "way out: --dequantize: " in refused.err, "bf16" in refused.err) == (4, True, False)


@pytest.mark.parametrize(
    ("matrix", "flags", "hint"),
    [
        (Q.Q6_K, (), ("--decode", "blk.*.attn_output.weight")),
        (Q.F32, ("--quantize", "q6_k"), ("--quantize", "q6_k,blk.*.attn_output.weight=f32")),
    ],
)
def test_an_output_projection_of_padded_heads_has_floats(
    matrix: Q, flags: tuple[str, ...], hint: tuple[str, str], tmp_path: Path, ckconv
) -> None:
    source = Model(matrix=matrix, hidden=256, ffn=256, heads=32, kv_heads=8).write(tmp_path / "m.gguf")
    command = ("convert", source, f"{tmp_path}/b/", "--to", "bump", "--engine", "april", "--bump-version", 3)
    refused = ckconv(*command, *flags)
    assert "a quantized wo must have heads x padded head size = hidden, not 32 x 16\n" in refused.err
    assert f"hint: {hint[0]} '{hint[1]}' " in refused.err
    made = ckconv(*command, *hint)
    assert (made.code, "only the v1 runtime of April 2026 computes it" in made.out) == (0, True)


@pytest.mark.parametrize(("family", "written"), [("llama", {"fp32"}), ("phi3", {"fp32", "q8_0"})])
def test_rows_that_are_no_blocks_stay_floats(family: str, written: set[str], tmp_path: Path, ckconv) -> None:
    """llama-quantize makes them F16, which no release computes; such a file was written, and none loaded it."""
    source = checkpoint(next(cases(family)).recorded, tmp_path / "hf")
    quantize = ("--to", "bump", "--engine", "july", "--quantize", "q8_0")
    made = ckconv("convert", source, f"{tmp_path}/b/", *quantize)
    assert "rows of 40 are not whole blocks of 32 and stay floats: blk.0.ffn_down.weight" in made.out
    assert "note: computed right by the engine of April 2026 and of July 2026" in made.out
    assert set(types(tmp_path / "b").values()) - {"f32", "i32", "u8"} == written  # but of the vocabulary
    assert ckconv("verify", tmp_path / "b", source, "--quantize", "q8_0").code == 0

    asked = ckconv("convert", source, f"{tmp_path}/f16/", *quantize[:-1], "q8_0,*.ffn.down.*=f16")
    assert "note: no engine that is known computes it right" in asked.out


VERSIONS = {
    ("january",): (3, None),
    ("april",): (5, None),
    ("july",): (5, None),
    ("april", "--bump-version", 4): (4, None),
    ("january", "--bump-version", 5): (0, "the engine of January 2026 loads no bump 5"),
    ("july", "--bump-version", 3): (0, "the engine of July 2026 loads no bump 3"),
}


@pytest.mark.parametrize("flags", VERSIONS)
def test_the_version_follows_from_the_release(flags: tuple[object, ...], tmp_path: Path, ckconv) -> None:
    version, sentence = VERSIONS[flags]
    result = convert(ckconv, Model(), tmp_path, "--engine", *flags)
    if sentence is not None:
        assert (result.code, sentence in result.err) == (4, True)
        return
    assert (tmp_path / "m.bump").read_bytes()[:8] == f"BUMPWGT{version}".encode()


CODES = {"january": (Q.Q6_K, 7), "april": (Q.Q6_K, 8)}


@pytest.mark.parametrize("release", CODES)
def test_the_codes_of_bump_3_follow_from_the_release(release: str, tmp_path: Path, ckconv) -> None:
    matrix, code = CODES[release]
    result = convert(ckconv, Model(**KQ, matrix=matrix), tmp_path, "--engine", release, "--bump-version", 3)
    assert result.code == 0
    assert (tmp_path / "m.bump").read_bytes()[0x84] == code
    assert f"container\tengines\t{release}\n" in ckconv("inspect", tmp_path / "m.bump").out


def test_january_has_a_q4_k_of_its_own(tmp_path: Path, ckconv) -> None:
    refused = convert(ckconv, Model(**KQ, matrix=Q.Q4_K), tmp_path, "--engine", "january")
    assert "the engine of January 2026 has no correct kernel for Q4_K matrices" in refused.err
    assert refused.code == 4


def test_codes_of_another_release_are_refused(tmp_path: Path, ckconv) -> None:
    refused = convert(ckconv, Model(**KQ, matrix=Q.Q6_K), tmp_path, "--engine", "january", "--dtype-codes", "v4")
    assert (refused.code, "the engine of January 2026 uses other numbers for K-quants" in refused.err) == (4, True)
    assert "hint: --dtype-codes v3" in refused.err


@pytest.mark.parametrize("release", ["april", "july"])
@pytest.mark.parametrize("name", ["llama-tied-bf16", "qwen3-tied-bf16"])
def test_split_rows_are_right_in_every_release(name: str, release: str, tmp_path: Path) -> None:
    options = ckconv.Options(bump_version=5, rope_layout="split", source_record=False)
    ckconv.convert(FIXTURES / "hf" / name, f"{tmp_path}/", to="bump", options=options)
    assert off(bump_engine.logits(tmp_path / "weights.bump", PROMPT, release), name) < EXACT


@pytest.mark.parametrize("name", ["llama-tied-bf16", "llama-untied-f16-sharded", "qwen3-tied-bf16"])
def test_what_july_gets_is_what_the_source_computes(name: str, tmp_path: Path) -> None:
    ckconv.convert(FIXTURES / "hf" / name, f"{tmp_path}/", to="bump", options=ckconv.Options(engine="july"))
    assert off(bump_engine.logits(tmp_path / "weights.bump", PROMPT, "july"), name) < EXACT


def test_a_template_that_contradicts_split_rows_is_refused(tmp_path: Path, ckconv) -> None:
    (tmp_path / "t.json").write_text(json.dumps({"kernels": {"rope_qk": "rope_forward_qk_pairwise"}}))
    flags = ("--bump-version", 5, "--rope-layout", "split", "--template", tmp_path / "t.json")
    refused = convert(ckconv, Model(), tmp_path, *flags, "--engine", "july")
    assert refused.code == 4
    said = "the template's kernels.rope_qk is 'rope_forward_qk_pairwise', and the file needs 'rope_forward_qk'"
    assert said in refused.err


def test_a_template_is_merged_over_what_the_file_needs(tmp_path: Path, ckconv) -> None:
    (tmp_path / "t.json").write_text(json.dumps({"name": "llama", "flags": {"x": 1}}))
    flags = ("--bump-version", 5, "--rope-layout", "split", "--template", tmp_path / "t.json")
    assert convert(ckconv, Model(), tmp_path, *flags).code == 0
    kernels = {"kernels": {"rope_qk": "rope_forward_qk"}}
    assert manifest(tmp_path)["template"] == {**kernels, "name": "llama", "flags": {"x": 1}}


def test_the_record_says_the_releases(tmp_path: Path, ckconv) -> None:
    convert(ckconv, Model(matrix=Q.BF16), tmp_path, "--engine", "july", "--record", "--no-source-record")
    record = json.loads((tmp_path / "m.bump.ckconv.json").read_text())
    assert (record["options"], record["engines"]) == ({"engine": "july"}, ["july"])
    assert ckconv("verify", tmp_path / "m.bump").code == 0


def test_formats_prints_where_each_release_computes_a_type(ckconv) -> None:
    found = {t["name"]: t["engines"] for t in ckconv("formats", "--json").json["types"]}
    assert found["BF16"] == {"january": "widened", "april": "widened", "july": "everywhere"}
    assert found["Q5_0"] == {"january": None, "april": "all but embeddings", "july": "everywhere"}
    assert found["Q4_K"] == {"january": None, "april": "everywhere", "july": "everywhere"}
    assert found["Q4_0"] == dict.fromkeys(releases())


BROKEN = {
    'title = "x"\nmonth = "y"\nversions = [5]\nspeed = 1': "there is no field 'speed'",
    'title = "x"\nmonth = "y"\nversions = [5]\n[bump5]\nanywhere = ["Q9"]': "there is no type 'Q9'",
    'title = "x"\nmonth = "y"\nversions = [3]\n[bump3]\ncodes = "v5"': "codes is 'v5'",
    'title = "x"\nmonth = "y"\nversions = [5]\n[bump5.templates.llama]\nright = "no"': "there is no field 'right'",
    'title = "x"\nmonth = "y"\nversions = [5]\n[[bump5.fragments]]\nif = "1 +"': "bump5",
}


@pytest.mark.parametrize("text", BROKEN)
def test_an_release_is_read_strictly(text: str, tmp_path: Path) -> None:
    path = tmp_path / "may.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=BROKEN[text].replace("[", ".")):
        _Reader(path).release()


def test_the_page_has_the_table_of_families_and_releases() -> None:
    specification = importlib.util.spec_from_file_location("releases_table", ROOT / "scripts" / "releases_table.py")
    assert specification is not None
    assert specification.loader is not None
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    assert script.mixes() in (ROOT / "docs" / "formats.md").read_text()
    assert script.types() in (ROOT / "docs" / "formats.md").read_text()
    assert script.families() in (ROOT / "docs" / "formats.md").read_text()
