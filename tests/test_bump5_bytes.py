"""Every byte of BUMPWGT5 and BUMPWGT4 files, against files computed without ckconv (bump5_expected.py)."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from bump5_expected import expected_bump5
from conftest import FIXTURES
from gguf import GGMLQuantizationType as Q
from models import Model

from ckconv import __version__

K = {"hidden": 256, "ffn": 512, "heads": 4, "kv_heads": 2}
TOKENS = ("<unk>", "a", "b", "ab", "Ġ", "Ġa", "", "é", "a", " x", " xa")
#: The last is taken to be there twice, one has parts that are no tokens, one begins with a space, one has no space.
MERGES = ("a b", "Ġ a", "z z", " x a", "ab")

MODELS = {
    "llama": Model(head="own"),
    "llama-tied-biases": Model(all_bias=True),
    "llama-odd-sizes": Model(hidden=36, heads=3, kv_heads=3, ffn=50, vocab=33, head="own"),
    "llama-f16": Model(matrix=Q.F16, norm=Q.F16, head="own"),
    "llama-q8_0": Model(matrix=Q.Q8_0, head="own"),
    "llama-q4_k_m": Model(
        **K, matrix=Q.Q4_K, types={"token_embd.weight": Q.Q6_K, "ffn_down.weight": Q.Q6_K}, head="own"
    ),
    "llama-q5": Model(
        matrix=Q.Q5_0,
        types={"token_embd.weight": Q.Q8_0, "output.weight": Q.F32, "ffn_down.weight": Q.Q5_1},
        head="own",
    ),
    "llama-tokens": Model(vocab=len(TOKENS), tokens=TOKENS, merges=MERGES, head="own"),
    "qwen2": Model(arch="qwen2", qkv_bias=True, matrix=Q.BF16),
    "qwen2-untied": Model(arch="qwen2", qkv_bias=True, head="own"),
    "qwen3": Model(arch="qwen3", head_dim=32, qk_norm=True),
    "qwen3-q8_0-untied": Model(arch="qwen3", head_dim=32, qk_norm=True, matrix=Q.Q8_0, head="own"),
    "gemma3": Model(arch="gemma3", head_dim=24, qk_norm=True, post_norms=True),
    "gemma3-window": Model(
        arch="gemma3",
        head_dim=32,
        qk_norm=True,
        post_norms=True,
        matrix=Q.Q8_0,
        head="own",
        extra_keys={"gemma3.attention.sliding_window": 8},
    ),
    "seven-layers": Model(layers=7, hidden=32, heads=2, kv_heads=2, ffn=16, head="own"),
}

FIXED = (
    "llama-tied-bf16",
    "llama-untied-f16-sharded",
    "llama-bias-f32",
    "qwen2-tied-bf16",
    "qwen3-tied-bf16",
)


def canonical(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def manifest_of(folder: Path) -> Any:
    return json.loads((folder / "weights_manifest.json").read_text())


def metadata_of(file: bytes, start: int) -> Any:
    """What stands behind the payload, which ends at ``start``."""
    magic, size, sha = struct.unpack("<8sQ32s", file[-48:])
    data = file[start:-48]
    assert (magic, size, sha) == (b"BUMPV5MD", len(data), hashlib.sha256(data).digest())
    document = json.loads(data)
    assert canonical(document) == data
    return document


@pytest.mark.parametrize("name", MODELS)
def test_version_5_is_the_computed_one(name: str, tmp_path: Path, ckconv) -> None:
    source = MODELS[name].write(tmp_path / "m.gguf")
    assert ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 5).code == 0

    expected, entries = expected_bump5(source)
    file = (tmp_path / "m.bump").read_bytes()
    assert file[: len(expected)] == expected
    manifest = manifest_of(tmp_path)
    assert manifest["entries"] == entries
    metadata = metadata_of(file, len(expected))
    assert metadata["config"] == manifest["config"]
    assert metadata["quant_summary"] == manifest["quant_summary"]
    assert metadata["manifest_hash"] == hashlib.sha256(canonical(manifest)).hexdigest()
    assert (metadata["schema_version"], metadata["format"]) == (1, "BUMPWGT5")
    assert metadata["created_by"] == f"ckconv {__version__}"
    assert "created_at" not in metadata
    assert not {"template", "template_hash"} & metadata.keys()


@pytest.mark.parametrize("name", MODELS)
def test_version_4_is_the_computed_one(name: str, tmp_path: Path, ckconv) -> None:
    source = MODELS[name].write(tmp_path / "m.gguf")
    assert ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 4).code == 0

    expected, entries = expected_bump5(source, version=4)
    assert (tmp_path / "m.bump").read_bytes() == expected
    manifest = manifest_of(tmp_path)
    assert manifest["entries"] == entries
    assert "template" not in manifest


@pytest.mark.parametrize("name", MODELS)
def test_the_builder_is_told_the_same_of_version_4_as_of_version_5(name: str, tmp_path: Path, ckconv) -> None:
    """What it takes head size, rotation and types from: left out, it computes other logits, or NaN."""
    source = MODELS[name].write(tmp_path / "m.gguf")
    for version in (4, 5):
        assert ckconv("convert", source, f"{tmp_path}/{version}/", "--to", "bump", "--bump-version", version).code == 0
    older, newer = manifest_of(tmp_path / "4"), manifest_of(tmp_path / "5")
    assert older["config"]["head_dim"] == gguf_head_size(source)
    assert {e["dtype"] for e in older["entries"]} >= set(older["quant_summary"]["layer.0"].values())
    assert older == newer


def gguf_head_size(path: Path) -> int:
    """Rows of attn_q over heads."""
    reader = gguf.GGUFReader(path)
    (heads,) = (f.parts[f.data[0]][0] for name, f in reader.fields.items() if name.endswith(".head_count"))
    (rows,) = (int(t.shape[1]) for t in reader.tensors if t.name == "blk.0.attn_q.weight")
    return rows // int(heads)


def test_version_4_is_said_to_be_for_v7_and_v8(tmp_path: Path, ckconv) -> None:
    """The engine of January loads it as its own layout: same magic, other order."""
    source = Model().write(tmp_path / "m.gguf")
    said = ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 4).out
    assert (
        "note: layout D, for v7 and v8 only: the v4 engine of January 2026 loads the file without a complaint" in said
    )
    assert "container\tnote\tlayout D, for v7 and v8 only" in ckconv("inspect", tmp_path / "m.bump").out


@pytest.mark.parametrize("name", FIXED)
def test_files_of_llama_cpp(name: str, tmp_path: Path, ckconv) -> None:
    (source,) = (FIXTURES / "gguf").glob(f"{name}.*.gguf")
    assert ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 5).code == 0
    expected, _ = expected_bump5(source)
    assert (tmp_path / "m.bump").read_bytes()[: len(expected)] == expected


@pytest.mark.parametrize("name", MODELS)
def test_entries_cover_the_payload(name: str, tmp_path: Path, ckconv) -> None:
    source = MODELS[name].write(tmp_path / "m.gguf")
    ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 4)
    file = (tmp_path / "m.bump").read_bytes()
    entries = manifest_of(tmp_path)["entries"]
    assert entries[0]["file_offset"] == 0x98 + 4 + struct.unpack_from("<I", file, 0x98)[0]
    assert all(one["file_offset"] + one["size"] == other["file_offset"] for one, other in pairwise(entries))
    assert entries[-1]["file_offset"] + entries[-1]["size"] == len(file)


def test_manifest_and_configuration(tmp_path: Path, ckconv) -> None:
    model = MODELS["gemma3-window"]
    source = model.write(tmp_path / "m.gguf")
    ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 5, "--context", 30)
    manifest = manifest_of(tmp_path)
    assert manifest["config"] == {
        "model": "gemma3",
        "embed_dim": 64,
        "attn_out_dim": 128,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 32,
        "intermediate_size": 128,
        "context_length": 30,
        "rope_theta": 10000.0,
        "rotary_dim": 32,
        "rope_scaling_type": "none",
        "rope_scaling_factor": 1.0,
        "rope_original_context_length": 30,
        "rope_beta_fast": 0.0,
        "rope_beta_slow": 0.0,
        "rope_attn_factor": 1.0,
        "vocab_size": 96,
        "rms_eps": 1e-05,
        "tie_word_embeddings": False,
        "sliding_window": 8,
        "ckconv_engines": ["april", "july"],
    }
    layer = dict.fromkeys(("wq", "wk", "wv", "wo", "w1", "w2"), "q8_0")
    assert manifest["quant_summary"] == {"token_emb": "q8_0", "lm_head": "q8_0", "layer.0": layer, "layer.1": layer}
    assert manifest["bump_layout"] == {
        "header_size": 128,
        "ext_metadata_size": 24,
        "data_start": 152,
        "description": "Offsets: [0..header_size) header, [header_size..data_start) ext_metadata, "
        "[data_start..] dtype_table + weights",
    }
    assert {key: manifest[key] for key in ("version", "model", "special_tokens", "has_qk_norm", "context_length")} == {
        "version": 5,
        "model": "gemma3",
        "special_tokens": None,
        "has_qk_norm": True,
        "context_length": 30,
    }
    assert json.loads((tmp_path / "config.json").read_text()) == {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 96,
        "max_position_embeddings": 30,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "attn_out_dim": 128,
        "tie_word_embeddings": False,
        "num_merges": 0,
        "total_vocab_bytes": 0,
        "sliding_window": 8,
    }


def test_tokenizer_facts_are_in_the_manifest(tmp_path: Path, ckconv) -> None:
    source = MODELS["llama-tokens"].write(tmp_path / "m.gguf")
    ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 5)
    manifest = manifest_of(tmp_path)
    assert manifest["special_tokens"] == {"eos_token_id": 2, "add_bos_token": False, "tokenizer_model": "gpt2"}
    assert manifest["config"]["chat_template"] == "{{ messages }}"
    assert manifest["num_merges"] == 3
    assert json.loads((tmp_path / "config.json").read_text())["chat_template"] == "{{ messages }}"


def test_map_lists_the_entries(tmp_path: Path, ckconv) -> None:
    source = MODELS["llama-tokens"].write(tmp_path / "m.gguf")
    assert ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 5, "--map").code == 0
    lines = (tmp_path / "weights_manifest.map").read_text().splitlines()
    assert lines[:2] == ["# ck-bumpwgt5-manifest-map v1", "# name|dtype|file_offset|size|runtime_offset"]
    rows = [line.split("|") for line in lines[2:]]
    assert all(len(cell) == 18 for row in rows for cell in row[2:])
    entries = manifest_of(tmp_path)["entries"]
    assert [(name, dtype, int(at, 0), int(size, 0), int(there, 0)) for name, dtype, at, size, there in rows] == [
        (e["name"], e["dtype"], e["file_offset"], e["size"], e["file_offset"]) for e in entries
    ]


def test_without_map_there_is_none(tmp_path: Path, ckconv) -> None:
    source = MODELS["llama"].write(tmp_path / "m.gguf")
    ckconv("convert", source, f"{tmp_path}/out/", "--to", "bump")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        "weights.bump",
        "weights.bump.source.zip",
        "weights_manifest.json",
    ]


def test_manifest_elsewhere(tmp_path: Path, ckconv) -> None:
    source = MODELS["llama"].write(tmp_path / "m.gguf")
    other = tmp_path / "elsewhere.json"
    assert ckconv("convert", source, tmp_path / "m.bump", "--manifest", other).code == 0
    assert json.loads(other.read_text())["entries"]
    assert not (tmp_path / "weights_manifest.json").exists()


@pytest.mark.parametrize("flags", [("--manifest", "x.json"), ("--map",)])
def test_version_3_has_no_manifest(flags: tuple[str, ...], tmp_path: Path, ckconv) -> None:
    source = Model().write(tmp_path / "m.gguf")
    result = ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 3, *flags)
    assert result.code == 2
    assert "error[usage.side-file]: bump 3 has no weights_manifest." in result.err
    assert not (tmp_path / "m.bump").exists()


def test_split_rows_are_hugging_faces_and_recorded_everywhere(tmp_path: Path, ckconv) -> None:
    source = MODELS["llama-tied-biases"].write(tmp_path / "m.gguf")
    path = tmp_path / "m.bump"
    assert ckconv("convert", source, path, "--bump-version", 5, "--rope-layout", "split").code == 0
    expected, _ = expected_bump5(source, split=True)
    file = path.read_bytes()
    assert file[: len(expected)] == expected
    assert manifest_of(tmp_path)["config"]["rope_layout"] == "split"
    assert json.loads((tmp_path / "config.json").read_text())["rope_layout"] == "split"
    assert metadata_of(file, len(expected))["config"]["rope_layout"] == "split"
    for gone in ("config.json", "weights_manifest.json", None):
        assert ckconv("verify", path, source, "--weights").code == 0
        if gone:
            (tmp_path / gone).unlink()


PAIRWISE = {"kernels": {"rope_qk": "rope_forward_qk_pairwise"}}


@pytest.mark.parametrize("version", [4, 5])
def test_interleaved_rows_need_a_template_that_rotates_them(version: int, tmp_path: Path, ckconv) -> None:
    """The builder takes ``split`` for an answer where a template says otherwise, and no other word."""
    source = MODELS["qwen2"].write(tmp_path / "m.gguf")
    flags = ("--bump-version", version, "--rope-layout", "interleaved")
    refused = ckconv("convert", source, tmp_path / "m.bump", *flags)
    assert refused.code == 4
    assert "Q and K rows would be interleaved, the template for qwen2 rotates split rows" in refused.err
    assert not (tmp_path / "m.bump").exists()
    (tmp_path / "t.json").write_text(json.dumps(PAIRWISE))
    assert ckconv("convert", source, tmp_path / "m.bump", *flags, "--template", tmp_path / "t.json").code == 0
    assert manifest_of(tmp_path)["template"]["kernels"] == PAIRWISE["kernels"]
    assert "rope_layout" not in manifest_of(tmp_path)["config"]
    assert ckconv("verify", tmp_path / "m.bump", source, "--weights").code == 0


def test_a_template_that_rotates_split_rows_gets_no_interleaved_ones(tmp_path: Path, ckconv) -> None:
    (tmp_path / "t.json").write_text(json.dumps({"kernels": {"rope_qk": "rope_forward_qk"}}))
    source = MODELS["llama"].write(tmp_path / "m.gguf")
    flags = ("--template", tmp_path / "t.json", "--rope-layout", "interleaved")
    assert ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 5, *flags).code == 4


def test_split_rows_of_a_llama_name_their_kernel(tmp_path: Path, ckconv) -> None:
    """July's builder does not look at ``rope_layout`` of the configuration, April's takes either."""
    source = MODELS["llama"].write(tmp_path / "m.gguf")
    said = ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 5, "--rope-layout", "split").out
    assert "note: computed right by the engine of April 2026 and of July 2026" in said
    manifest = manifest_of(tmp_path)
    assert manifest["template"] == {"kernels": {"rope_qk": "rope_forward_qk"}}
    assert manifest["config"]["rope_layout"] == "split"
    metadata = metadata_of((tmp_path / "m.bump").read_bytes(), len(expected_bump5(source, split=True)[0]))
    assert metadata["template"] == manifest["template"]
    assert metadata["template_hash"] == hashlib.sha256(canonical(manifest["template"])).hexdigest()


def test_norms_of_q_and_k_go_where_the_rows_of_their_heads_go(tmp_path: Path, ckconv) -> None:
    """Rows of a head and elements of its norm meet before RoPE, so an order of the one is an order of the other."""
    source = MODELS["qwen3"].write(tmp_path / "m.gguf")
    tensors = gguf.GGUFReader(source).tensors
    norms = {t.name: t.data for t in tensors if t.name.endswith(("q_norm.weight", "k_norm.weight"))}
    assert len(norms) == 4
    (tmp_path / "t.json").write_text(json.dumps(PAIRWISE))
    assert ckconv("convert", source, tmp_path / "m.bump", "--template", tmp_path / "t.json").code == 0
    file = (tmp_path / "m.bump").read_bytes()
    entries = {e["name"]: e for e in manifest_of(tmp_path)["entries"]}
    for name, data in norms.items():
        _, layer, which, _ = name.split(".")
        entry = entries[f"layer.{layer}.{which.removeprefix('attn_')}"]
        stored = np.frombuffer(file, "<f4", entry["size"] // 4, entry["file_offset"])
        assert stored[0::2].tolist() == data[: len(data) // 2].tolist()
        assert stored[1::2].tolist() == data[len(data) // 2 :].tolist()
    assert ckconv("verify", tmp_path / "m.bump", source, "--weights").code == 0


@pytest.mark.parametrize("asked", ["engine", "source", "interleaved"])
def test_rows_as_the_template_rotates_them_are_not_recorded(asked: str, tmp_path: Path, ckconv) -> None:
    source = MODELS["llama"].write(tmp_path / "m.gguf")
    ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 5, "--rope-layout", asked)
    assert "rope_layout" not in manifest_of(tmp_path)["config"]


TEMPLATE = {
    "name": "llama",
    "contract": {"logits_contract": {"lm_head": "weight_tying", "logits_layout": "auto"}},
    "kernels": {"rope_qk": "rope_forward_qk_pairwise"},
}


def test_template_is_embedded_with_its_hash(tmp_path: Path, ckconv) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates/llama.json").write_text(json.dumps(TEMPLATE))
    source = Model().write(tmp_path / "m.gguf")
    for place in (tmp_path / "templates", tmp_path / "templates/llama.json"):
        older = f"{tmp_path}/4/"
        flags = ("--to", "bump", "--bump-version", 4, "--template", place, "--force")
        assert ckconv("convert", source, older, *flags).code == 0
        assert manifest_of(tmp_path / "4")["template"] == TEMPLATE
        path = tmp_path / "m.bump"
        assert ckconv("convert", source, path, "--bump-version", 5, "--template", place, "--force").code == 0
        metadata = metadata_of(path.read_bytes(), len(expected_bump5(source)[0]))
        assert metadata["template"] == manifest_of(tmp_path)["template"] == TEMPLATE
        assert metadata["template_hash"] == hashlib.sha256(canonical(TEMPLATE)).hexdigest()


def test_template_says_that_the_head_is_a_weight(tmp_path: Path, ckconv) -> None:
    (tmp_path / "t.json").write_text(json.dumps(TEMPLATE))
    source = MODELS["llama"].write(tmp_path / "m.gguf")
    ckconv("convert", source, tmp_path / "m.bump", "--template", tmp_path / "t.json")
    contract = {"logits_contract": {"lm_head": "output_weight", "logits_layout": "auto"}}
    assert manifest_of(tmp_path)["template"] == {**TEMPLATE, "contract": contract}


def test_rows_follow_the_kernel_of_the_template(tmp_path: Path, ckconv) -> None:
    split = {**TEMPLATE, "kernels": {"rope_qk": "rope_forward_qk_split"}}
    (tmp_path / "t.json").write_text(json.dumps(split))
    source = MODELS["llama"].write(tmp_path / "m.gguf")
    ckconv("convert", source, tmp_path / "m.bump", "--template", tmp_path / "t.json")
    expected, _ = expected_bump5(source, split=True)
    assert (tmp_path / "m.bump").read_bytes()[: len(expected)] == expected
    assert "rope_layout" not in manifest_of(tmp_path)["config"]
    assert ckconv("verify", tmp_path / "m.bump", source, "--weights").code == 0


@pytest.mark.parametrize(
    ("content", "code", "fragment"),
    [
        ("[1]", "template.json", "template is not a JSON object"),
        ("{", "template.json", "column 2"),
        (None, "template.missing", "there is no llama.json in it"),
    ],
)
def test_broken_template(content: str | None, code: str, fragment: str, tmp_path: Path, ckconv) -> None:
    source = MODELS["llama"].write(tmp_path / "m.gguf")
    template = tmp_path
    if content is not None:
        template = tmp_path / "t.json"
        template.write_text(content)
    result = ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 5, "--template", template)
    assert result.code == 3
    assert f"error[{code}]" in result.err
    assert fragment in result.err


def test_date_only_from_source_date_epoch(tmp_path: Path, ckconv, monkeypatch: pytest.MonkeyPatch) -> None:
    source = MODELS["llama"].write(tmp_path / "m.gguf")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    ckconv("convert", source, tmp_path / "m.bump")
    start = len(expected_bump5(source)[0])
    assert metadata_of((tmp_path / "m.bump").read_bytes(), start)["created_at"] == "1970-01-02T00:00:00Z"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    result = ckconv("convert", source, tmp_path / "other.bump")
    assert (result.code, "SOURCE_DATE_EPOCH is 'yesterday'" in result.err) == (2, True)


def test_stdout_gets_the_same_bytes(tmp_path: Path, ckconv) -> None:
    source = MODELS["llama-tokens"].write(tmp_path / "m.gguf")
    ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 5)
    command = [sys.executable, "-m", "ckconv", "convert", "--to", "bump", "--bump-version", "5", str(source), "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stdout == (tmp_path / "m.bump").read_bytes()
    assert b"bump v5" in done.stderr


def test_dry_run_knows_the_size(tmp_path: Path, ckconv) -> None:
    source = MODELS["llama-tokens"].write(tmp_path / "m.gguf")
    dry = ckconv("--json", "convert", source, tmp_path / "m.bump", "--bump-version", 5, "--dry-run").json
    ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 5)
    assert dry["bytes"] == (tmp_path / "m.bump").stat().st_size
    assert dry["content"] == 5


@pytest.mark.parametrize("name", [*MODELS, *FIXED])
def test_gguf_and_bump_have_one_hash(name: str, tmp_path: Path, ckconv) -> None:
    if name in MODELS:
        source = MODELS[name].write(tmp_path / "m.gguf")
    else:
        (source,) = (FIXTURES / "gguf").glob(f"{name}.*.gguf")
    ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 5)
    hashes = {ckconv("--json", "inspect", "--hash", path).json["hash"] for path in (source, tmp_path / "m.bump")}
    assert len(hashes) == 1


@pytest.mark.parametrize("name", FIXED)
def test_checkpoint_and_gguf_make_the_same_weights(name: str, tmp_path: Path, ckconv) -> None:
    (twin,) = (FIXTURES / "gguf").glob(f"{name}.*.gguf")
    files = {}
    for kind, source, other in (("hf", FIXTURES / "hf" / name, twin), ("gguf", twin, FIXTURES / "hf" / name)):
        out = tmp_path / kind / "weights.bump"
        assert ckconv("convert", source, f"{tmp_path}/{kind}/", "--to", "bump", "--bump-version", 5).code == 0
        assert ckconv("verify", out, other, "--weights").code == 0
        file = out.read_bytes()
        entries = manifest_of(out.parent)["entries"]
        files[kind] = {
            e["name"]: file[e["file_offset"] : e["file_offset"] + e["size"]]
            for e in entries
            if not e["name"].startswith("vocab_")
        }
    assert files["hf"] == files["gguf"]


@pytest.mark.needs("posix")
def test_a_system_that_takes_a_byte_at_a_time_gets_the_whole_file(
    tmp_path: Path, ckconv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Header and metadata are written apart from the tensors, and a write may be short."""
    source = MODELS["llama"].write(tmp_path / "m.gguf")
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, memoryview(data)[: 1 + len(data) // 3], at))
    assert ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 5).code == 0
    expected, _ = expected_bump5(source)
    file = (tmp_path / "m.bump").read_bytes()
    assert file[: len(expected)] == expected
    assert metadata_of(file, len(expected))["format"] == "BUMPWGT5"
