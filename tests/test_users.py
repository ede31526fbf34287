"""What people do first, and what they are told: each a command and its answer."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import family_cases
import pytest
import tower_cases
from conftest import FIXTURES, Result

from ckconv import open_model

Run = Callable[..., Result]
F32 = FIXTURES / "hf/llama-bias-f32"
TIED = FIXTURES / "gguf/llama-tied-bf16.auto.gguf"
LORA = FIXTURES / "lora/llama-r4-attn-mlp"


@pytest.mark.parametrize("name", ["token_embd.weight", "model.embed_tokens.weight", "token_embedding.weight"])
def test_globs_of_quantize_take_names_of_source_and_output(ckconv: Run, tmp_path: Path, name: str) -> None:
    assert ckconv("convert", F32, tmp_path / "m.gguf", "--quantize", f"q5_0,{name}=q8_0").code == 0
    types = {row["name"]: row["dtype"] for row in ckconv("inspect", tmp_path / "m.gguf", "--json").json["tensors"]}
    assert (types["token_embd.weight"], types["blk.0.ffn_up.weight"]) == ("Q8_0", "Q5_0")


def test_globs_of_quantize_to_mlx_take_names_of_the_output(ckconv: Run, tmp_path: Path) -> None:
    source = FIXTURES / "gguf/llama-bias-f32.f32.gguf"
    words = "affine:4:32,model.embed_tokens.weight=affine:8:32"
    done = ckconv("convert", source, f"{tmp_path}/m-mlx/", "--quantize", words)
    assert (done.code, "MLX 8-bit group 32" in done.out) == (0, True), done.err
    refused = ckconv("convert", source, f"{tmp_path}/n-mlx/", "--quantize", "affine:4:32,nothing.weight=affine:8:32")
    assert (refused.code, "nothing.weight names no tensor" in refused.err) == (2, True)


def test_vectors_beside_quantized_matrices_are_narrowed(ckconv: Run, tmp_path: Path) -> None:
    flags = ("--quantize", "affine:4:32", "--dtype", "bf16", "--allow-lossy")
    out = ckconv("convert", F32, f"{tmp_path}/m/", "--to", "mlx", *flags).out
    assert "narrowed 19 F32 -> BF16, quantized 16 F32 -> MLX 4-bit group 32 BF16, dropped 0" in out


def test_a_quiet_conversion_to_mlx_says_on_a_terminal_that_it_quantizes_nothing(
    ckconv: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ckconv("convert", F32, f"{tmp_path}/piped/", "--to", "mlx", "-q").err == ""
    monkeypatch.setattr("ckconv.cli.convert.sys.stderr.isatty", lambda: True)
    said = ckconv("convert", F32, f"{tmp_path}/a/", "--to", "mlx", "-q")
    assert (said.code, said.out) == (0, "")
    assert said.err == "ckconv: note: -q is --quiet here; --quantize affine:4:64 quantizes\n"
    assert ckconv("convert", F32, f"{tmp_path}/b/", "--to", "mlx", "--quiet").err == ""
    assert ckconv("convert", F32, f"{tmp_path}/c/", "--to", "mlx", "-q", "--quantize", "affine:4:32").err == ""


def test_an_adapter_is_not_compared_with_a_model(ckconv: Run, tmp_path: Path) -> None:
    model = FIXTURES / "hf/llama-tied-bf16"
    for pair in ((LORA, model), (model, LORA)):
        done = ckconv("diff", *pair)
        assert (done.code, "llama-r4-attn-mlp is an adapter, llama-tied-bf16 a model" in done.err) == (4, True)
    assert f"--adapter {LORA}" in done.err


def test_a_repository_that_is_not_in_the_cache_is_named_with_its_address(ckconv: Run) -> None:
    done = ckconv("inspect", "somebody/Tiny-1.5B")
    assert done.code == 3
    assert "hf download somebody/Tiny-1.5B, or hf://somebody/Tiny-1.5B" in done.err
    assert "hint" not in ckconv("inspect", "/somewhere/else/model").err


def test_a_directory_without_a_model_is_called_so(ckconv: Run, tmp_path: Path) -> None:
    done = ckconv("inspect", tmp_path)
    assert (done.code, "the directory holds no model" in done.err) == (3, True)


def test_versions_are_those_of_the_format_everywhere(ckconv: Run, tmp_path: Path) -> None:
    report = ckconv("convert", F32, tmp_path / "m.gguf", "--record", "--json").json
    record = json.loads((tmp_path / "m.gguf.ckconv.json").read_text())
    shown = ckconv("inspect", tmp_path / "m.gguf", "--json").json
    assert (report["version"], record["version"], shown["version"]) == (3, 3, 3)


def test_a_bump_file_has_its_name_and_where_it_can_go(ckconv: Run, tmp_path: Path) -> None:
    assert ckconv("edit", TIED, tmp_path / "m.gguf", "--set-meta", "general.name=My Own").code == 0
    assert ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/b/", "--to", "bump", "--bump-version", "5").code == 0
    shown = ckconv("inspect", tmp_path / "b", "--json", "-v").json
    assert shown["overview"]["name"] == "My Own"
    assert {"gguf", "safetensors", "mlx"} <= {target["target"] for target in shown["targets"] if target["converts"]}
    back = ckconv("convert", tmp_path / "b", tmp_path / "back.gguf", "--no-source-record")
    assert (back.code, "general.name\tstr\tMy Own\n" in ckconv("inspect", tmp_path / "back.gguf").out) == (0, True)


def test_a_name_comes_back_by_the_model_card(ckconv: Run, tmp_path: Path) -> None:
    said = {"name": "My Own", "organization": "Acme", "finetune": "Instruct", "basename": "Own", "author": "Me"}
    changes = [word for key, text in said.items() for word in ("--set-meta", f"general.{key}={text}")]
    assert ckconv("edit", TIED, tmp_path / "m.gguf", *changes).code == 0
    assert ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/elsewhere/", "--to", "hf").code == 0
    assert "model_name: My Own\n" in (tmp_path / "elsewhere/README.md").read_text()
    assert ckconv("convert", tmp_path / "elsewhere", tmp_path / "back.gguf").code == 0
    shown = ckconv("inspect", tmp_path / "back.gguf").out
    assert [key for key, text in said.items() if f"general.{key}\tstr\t{text}\n" not in shown] == []
    assert "of the source" not in ckconv("diff", tmp_path / "m.gguf", tmp_path / "elsewhere").out


def test_the_headline_names_the_types_that_the_bytes_are_of(ckconv: Run, tmp_path: Path) -> None:
    words = "q4_0,token_embd.weight=q8_0"
    assert ckconv("convert", F32, tmp_path / "m.gguf", "--quantize", words).code == 0
    types = ckconv("inspect", tmp_path / "m.gguf", "--json").json["overview"]["types"]
    assert re.fullmatch(r"Q8_0 \d\d %, Q4_0 \d\d %", types)


def test_two_spellings_of_one_tokenizer_are_one(ckconv: Run, tmp_path: Path) -> None:
    source = FIXTURES / "hf/qwen2-tied-bf16"
    other = tmp_path / "other"
    assert ckconv("convert", source, f"{other}/", "--to", "hf").code == 0
    document = json.loads((other / "tokenizer.json").read_text())
    merges = document["model"]["merges"]
    assert merges
    spelled = [" ".join(pair) if isinstance(pair, list) else pair.split(" ") for pair in merges]
    document["model"]["merges"] = spelled
    (other / "tokenizer.json").write_text(json.dumps(document))
    assert ckconv("diff", source, other).code == 0
    document["model"]["merges"] = spelled[1:]
    (other / "tokenizer.json").write_text(json.dumps(document))
    assert ckconv("diff", source, other).code == 5


def test_a_size_of_shards_without_its_unit_is_noted(ckconv: Run, tmp_path: Path) -> None:
    out = ckconv("convert", F32, f"{tmp_path}/m/", "--to", "hf", "--max-shard-size", "30").out
    assert "note: --max-shard-size 30 bytes is less than the largest tensor (98,304 bytes)" in out
    assert "less than" not in ckconv("convert", F32, f"{tmp_path}/n/", "--to", "hf", "--max-shard-size", "200KB").out


def test_a_run_that_goes_on_says_what_was_there(ckconv: Run, tmp_path: Path) -> None:
    flags = ("--to", "hf", "--max-shard-size", "100KB", "--resume")
    program = """
import ckconv.conversion.run as run, sys
from ckconv.cli import run as main
made = []
one = run._Staged._write_one
def some(self, number, watcher):
    if len(made) == 2:
        import os; os._exit(9)
    made.append(number)
    return one(self, number, watcher)
run._Staged._write_one = some
main(sys.argv[1:])
"""
    command = [sys.executable, "-c", program, "convert", str(F32), f"{tmp_path}/m/", *flags, "--jobs", "1"]
    assert subprocess.run(command, cwd=Path(__file__).parent.parent, check=False).returncode == 9
    done = ckconv("convert", F32, f"{tmp_path}/m/", *flags, "--jobs", "1")
    assert done.code == 0, done.err
    assert re.search(r"note: [12] of \d files had been finished by an earlier run", done.out)


@pytest.mark.parametrize(
    ("default", "flag", "heads"),
    [("tie = true", "--untie", 1), ("untie = true", "--tie", 0), ("untie = true", "", 1)],
)
def test_a_flag_takes_the_place_of_its_opposite_in_a_file(
    ckconv: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default: str, flag: str, heads: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ckconv.toml").write_text(f"[convert]\n{default}\n")
    done = ckconv("convert", FIXTURES / "hf/qwen2-tied-bf16", "m.gguf", *([flag] if flag else []))
    assert done.code == 0, done.err
    assert sum(row["name"] == "output.weight" for row in ckconv("inspect", "m.gguf", "--json").json["tensors"]) == heads


def test_the_environment_takes_the_place_of_an_opposite_in_a_file(
    ckconv: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ckconv.toml").write_text("[convert]\ntie = true\n")
    monkeypatch.setenv("CKCONV_UNTIE", "1")
    done = ckconv("convert", FIXTURES / "hf/qwen2-tied-bf16", "m.gguf")
    assert (done.code, "--untie (CKCONV_UNTIE)" in done.out) == (0, True), done.err


def test_the_viewer_reads_front_matter_without_compiled_yaml() -> None:
    """The browser has the Python files of PyYAML only."""
    import yaml

    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for source in Path(yaml.__file__).parent.glob("*.py"):
            archive.write(source, f"yaml/{source.name}")
    program = """
import sys, io
sys.modules["_yaml"] = sys.modules["yaml._yaml"] = None
sys.path.insert(0, sys.argv[1])
from ckconv.core.metadata import card_of_text
import yaml
assert yaml.__file__.startswith(sys.argv[1]), yaml.__file__
print(card_of_text("---\\nlicense: mit\\ntags: [a, b]\\n---\\n"))
"""
    place = Path(held.name) if hasattr(held, "name") else None
    assert place is None
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        wheel = Path(name) / "yaml.whl"
        wheel.write_bytes(held.getvalue())
        done = subprocess.run([sys.executable, "-c", program, str(wheel)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "license='mit'" in done.stdout


def test_ways_out_of_a_refusal_stand_in_the_order_of_what_is_lost(ckconv: Run, tmp_path: Path) -> None:
    source = FIXTURES / "kquants/llama64.Q4_K_M.gguf"
    refused = ckconv("convert", source, tmp_path / "m.bump")
    ways = re.findall(r"way out: (--.*?): ([\d.]+ .?B), ", refused.err)
    assert (refused.code, [flags for flags, _ in ways]) == (
        4,
        ["--engine july", "--dequantize", "--dequantize --dtype bf16 --allow-lossy", "--dequantize --quantize q8_0"],
    )
    for number, (flags, size) in enumerate(ways):
        done = ckconv("convert", source, tmp_path / f"{number}.bump", *flags.split())
        assert (done.code, f"  {size}" in done.out) == (0, True), done.err
    assert "way out" not in ckconv("convert", FIXTURES / "hf/gpt2-hub-f32", tmp_path / "n.bump").err


def test_a_layout_that_does_not_fit_leads_to_one_that_does_or_to_none(ckconv: Run, tmp_path: Path) -> None:
    source = FIXTURES / "quantised/awq-g32"
    refused = ckconv("convert", source, f"{tmp_path}/m/", "--to", "hf", "--pack", "modelopt")
    ways = re.findall(r"way out: (.*?): ([\d.]+ .?B), ", refused.err)
    expected = [
        "without --pack",
        "--pack compressed-tensors",
        "--dequantize",
        "--dequantize --dtype bf16 --allow-lossy",
    ]
    assert (refused.code, [flags for flags, _ in ways]) == (4, expected)
    for number, (flags, size) in enumerate(ways):
        done = ckconv(
            "convert", source, f"{tmp_path}/{number}/", "--to", "hf", *flags.replace("without --pack", "").split()
        )
        assert (done.code, f"  {size}" in done.out) == (0, True), done.err
    packed = ckconv("convert", FIXTURES / "kquants/llama64.Q4_K_M.gguf", f"{tmp_path}/n/", "--to", "hf")
    assert "without --pack" not in packed.err, "nobody asked for a layout"


def test_a_document_of_a_model_names_its_directory(ckconv: Run, tmp_path: Path) -> None:
    for source in ("hf/qwen2-tied-bf16", "hf/llama-untied-f16-sharded", "mlx/qwen3-tied-bf16.q4g64"):
        refused = ckconv("convert", FIXTURES / source / "config.json", tmp_path / "m.gguf")
        assert (refused.code, refused.err.splitlines()[-1]) == (
            3, f"hint: the model is its directory: name {FIXTURES / source}"
        )  # fmt: skip
        assert (
            ckconv("convert", FIXTURES / source, tmp_path / f"{source.replace('/', '-')}.gguf", "--dequantize").code
            == 0
        )
    alone = tmp_path / "alone" / "config.json"
    alone.parent.mkdir()
    alone.write_text("{}")
    assert "hint: --from FORMAT reads it" in ckconv("inspect", alone).err


def test_a_fork_that_renames_its_model_type_takes_six_lines(ckconv: Run, tmp_path: Path) -> None:
    fork, family = tmp_path / "fork", tmp_path / "smol.toml"
    shutil.copytree(FIXTURES / "hf/llama-tied-bf16", fork)
    config = json.loads((fork / "config.json").read_text())
    (fork / "config.json").write_text(json.dumps({**config, "model_type": "smol"}))
    lines = ['extends = "llama"', 'huggingface = { model_type = "smol", class = "LlamaForCausalLM" }']
    family.write_text("\n".join([*lines, 'gguf = { arch = "llama" }']))
    refused = ckconv("convert", fork, tmp_path / "m.gguf", "--family", family)
    found = re.search(r"(match = \".*?\") beside it", refused.err)
    assert (refused.code, found is not None) == (3, True), refused.err
    assert found is not None
    family.write_text("\n".join([*lines, f'gguf = {{ arch = "llama", {found[1]} }}']))
    refused = ckconv("convert", fork, tmp_path / "m.gguf", "--family", family)
    found = re.search(r"\[engines\] (llama_cpp = .*\})", refused.err)
    assert (refused.code, found is not None) == (4, True), refused.err
    assert found is not None
    family.write_text(
        "\n".join([*lines, 'gguf = { arch = "llama", match = "not has(\'expert_count\')" }', "[engines]", found[1]])
    )
    assert ckconv("convert", fork, tmp_path / "m.gguf", "--family", family).code == 0
    assert ckconv("inspect", tmp_path / "m.gguf", "--json").json["architecture"] == "llama"


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        ("lfm2", {"block_auto_adjust_ff_dim": False, "intermediate_size": 32}),
        ("modernbert", {"global_attn_every_n_layers": 3}),
        ("deepseek_v2", {"n_group": 1, "topk_group": 1}),
    ],
)
def test_configurations_that_make_the_same_model_are_the_same(ckconv: Run, tmp_path: Path, family: str, keys) -> None:
    recorded = next(iter(family_cases.cases(family))).recorded
    source = family_cases.checkpoint(recorded, tmp_path / "hf")
    other = Path(shutil.copytree(source, tmp_path / "other"))
    document = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(document | keys))
    found = ckconv("diff", source, other, "--json").json
    assert (found["config"], found["different"]) == ({}, [])


def test_a_default_of_the_class_stands_for_a_key(ckconv: Run, tmp_path: Path) -> None:
    source = family_cases.checkpoint(next(iter(family_cases.cases("falcon"))).recorded, tmp_path / "hf")
    other = Path(shutil.copytree(source, tmp_path / "other"))
    document = json.loads((other / "config.json").read_text())
    assert (document.pop("hidden_dropout"), document.pop("initializer_range")) == (0.0, 0.02)
    (other / "config.json").write_text(json.dumps(document))
    assert ckconv("diff", source, other).code == 0
    (other / "config.json").write_text(json.dumps(document | {"hidden_dropout": 0.1}))
    assert ckconv("diff", source, other).code == 5


def test_mlx_lm_has_no_default_of_transformers(ckconv: Run, tmp_path: Path, fixtures: Path) -> None:
    """It gives its tokenizer ``config.get("eos_token_id")`` (``mlx_lm/utils.py``), where transformers' class has 2."""
    source = fixtures / "mlx/llama-tied-bf16.q4g64"
    other = Path(shutil.copytree(source, tmp_path / "other"))
    document = json.loads((other / "config.json").read_text())
    assert document.pop("eos_token_id") == 2
    (other / "config.json").write_text(json.dumps(document))
    assert ckconv("diff", source, other).code == 5


def said(folder: Path, source: Path, **keys: object) -> Path:
    """A copy of a checkpoint with other keys in config.json; ``None`` takes one away."""
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    for key, value in keys.items():
        outer, _, inner = key.rpartition("__")
        table = config.setdefault(outer, {}) if outer else config
        table[inner] = value
        table = {name: item for name, item in table.items() if item is not None}
        config = {**config, outer: table} if outer else table
    (folder / "config.json").write_text(json.dumps(config))
    return folder


UNTIED, QWEN = FIXTURES / "hf/llama-untied-f16-sharded", FIXTURES / "hf/qwen2-tied-bf16"
TWO = {"rope_parameters__rope_theta": 5e3, "rope_parameters__rope_type": "default"}

#: What the two documents say besides -> what is said of the models; "" for: they are the same.
SAME = {
    "a head that nobody has": (
        QWEN,
        {},
        {"tie_word_embeddings": False},
        "the embedding | random numbers: it is not tied",
    ),
    "a head that one ties, and transformers does not": (UNTIED, {}, {"tie_word_embeddings": True}, ""),
    "a base that only old releases read": (QWEN, TWO, {**TWO, "rope_theta": 777.0}, "'rope_theta': 10000.0 | 777.0"),
    "kinds that the class makes itself": (QWEN, {}, {"layer_types": None}, ""),
    "one number of two names": ("lfm2", {}, {"block_ff_dim": 44, "intermediate_size": None}, ""),
    "a window beyond the context": ("gemma2", {"sliding_window": 64}, {"sliding_window": 128}, ""),
    "a window within": ("gemma2", {"sliding_window": 64}, {"sliding_window": 9}, "config sliding_window: None | 9"),
    "a tower": (
        "gemma3-f16",
        {},
        {"vision_config__layer_norm_eps": 0.5},
        "'vision_config.layer_norm_eps': 1e-06 | 0.5",
    ),
    "kinds of a tower's layers": (
        "gemma3-f16",
        {},
        {"vision_config__layer_types": ["sliding_attention"] * 2},
        "'vision_config.layer_types'",
    ),
    "a number of a tower that a text model has two names for": (
        "lfm2_vl-f16",
        {},
        {"vision_config__intermediate_size": None},
        "'vision_config.intermediate_size'",
    ),
    "heads of a tower": ("gemma3-f16", {}, {"vision_config__num_attention_heads": 1}, "num_attention_heads': 2 | 1"),
}


@pytest.mark.parametrize("name", SAME)
def test_two_models_are_the_same_where_what_is_loaded_is(ckconv: Run, tmp_path: Path, name: str) -> None:
    source, mine, theirs, words = SAME[name]
    if isinstance(source, str):
        towers = tower_cases.recordings()
        made = towers.get(source) or family_cases.recording(source)[{"lfm2": "as_said", "gemma2": "window"}[source]]
        place = tmp_path / "source"
        source = (tower_cases if source in towers else family_cases).checkpoint(made, place)
    one, other = said(tmp_path / "a", source, **mine), said(tmp_path / "b", source, **theirs)
    done = ckconv("diff", one, other)
    assert (done.code, words in done.out) == (5 if words else 0, True), done.out
    if not words:
        for folder in (one, other):
            assert ckconv("convert", folder, f"{folder}.gguf", "--set-meta", "general.name=One").code == 0
        assert ckconv("diff", f"{one}.gguf", f"{other}.gguf").code == ckconv("diff", one, f"{other}.gguf").code == 0


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_a_gguf_without_a_scaling_is_of_a_model_without_one(ckconv: Run, tmp_path: Path, kind: str) -> None:
    scaled = said(tmp_path / "scaled", QWEN, rope_scaling={"rope_type": kind, "factor": 8.0})
    for source, name in ((QWEN, "plain"), (scaled, "other")):
        words = ("--set-meta", "general.name=One")
        assert ckconv("convert", source, tmp_path / f"{name}.gguf", *words).code == 0
        assert ckconv("diff", tmp_path / f"{name}.gguf", source).code == 0
    for one, other in ((tmp_path / "plain.gguf", scaled), (tmp_path / "other.gguf", QWEN)):
        done = ckconv("diff", one, other)
        assert (done.code, "rope_scaling" in done.out) == (5, True), done.out
        assert ckconv("verify", one, other).code == 5


def test_a_head_that_mlx_lm_drops_makes_another_model(ckconv: Run, tmp_path: Path) -> None:
    """``sanitize`` of its classes pops it where the embedding is tied."""
    assert ckconv("convert", UNTIED, f"{tmp_path}/source/", "--to", "mlx").code == 0
    one, other = said(tmp_path / "a", tmp_path / "source"), said(tmp_path / "b", tmp_path / "source")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    done = ckconv("diff", one, other)
    assert (done.code, "head: a matrix of its own | the embedding" in done.out) == (5, True), done.out


def test_an_edit_that_no_reader_takes_is_refused_by_its_key_and_verify_says_why(ckconv: Run, tmp_path: Path) -> None:
    words = ("--set-meta", "llama.rope.freq_base=0")
    done = ckconv("edit", TIED, tmp_path / "m.gguf", *words)
    assert (done.code, "llama.rope.freq_base must be above 0, got 0.0" in done.err) == (2, True)
    changed = bytearray(TIED.read_bytes())
    at = changed.index(b"llama.rope.freq_base") + len("llama.rope.freq_base") + 4
    changed[at : at + 4] = bytes(4)
    (tmp_path / "m.gguf").write_bytes(changed)
    done = ckconv("verify", tmp_path / "m.gguf", TIED)
    assert (done.code, "is not read (llama.rope.freq_base is 0)" in done.err) == (5, True), done.err


def test_a_bump_file_has_the_parameters_of_its_source(ckconv: Run, tmp_path: Path) -> None:
    source = FIXTURES / "kquants/llama64.Q4_K_M.gguf"
    assert ckconv("convert", source, f"{tmp_path}/b/", "--to", "bump", "--dequantize", "--no-source-record").code == 0
    shown = ckconv("inspect", tmp_path / "b", "--json").json
    assert shown["parameters"] == ckconv("inspect", source, "--json").json["parameters"] == 123_200
    assert (shown["overview"]["bits"], shown["overview"]["tokenizer"]) == (32.0, "words in the file")
    assert shown["overview"]["template"] is False
    back = ckconv("convert", tmp_path / "b", tmp_path / "back.gguf")
    assert "the tokenizer is left out: a bump file holds its words, not how a text is cut into them" in back.out


def test_how_values_are_stored_makes_no_other_model(ckconv: Run, tmp_path: Path) -> None:
    source = FIXTURES / "kquants/llama64.Q4_K_M.gguf"
    assert ckconv("convert", source, tmp_path / "f32.gguf", "--dequantize").code == 0
    assert ckconv("diff", source, tmp_path / "f32.gguf").code == 0
    assert ckconv("convert", F32, tmp_path / "m.gguf", "--quantize", "q8_0").code == 0
    done = ckconv("diff", F32, tmp_path / "m.gguf", "--tolerance", "0.01")
    assert (done.code, "general." in done.out) == (0, False), done.out


@pytest.mark.parametrize(
    ("variables", "begins"),
    [
        ({}, "ckconv: error[input.missing]: "),
        ({"FORCE_COLOR": "1"}, "ckconv: \x1b[1;31merror[input.missing]\x1b[0m: "),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, "ckconv: error[input.missing]: "),
    ],
)
def test_the_code_of_an_error_is_red_where_color_is_asked_for(
    ckconv: Run, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], begins: str
) -> None:
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    said = ckconv("inspect", "nowhere.gguf").err
    assert said.startswith(begins)
    assert json.loads(ckconv("inspect", "nowhere.gguf", "--json").err)["error"]["code"] == "input.missing"


def test_a_tensor_is_one_short_line() -> None:
    tensor = open_model(TIED).tensors["token_embedding.weight"]
    assert repr(tensor) == "<ModelTensor token_embedding.weight: BF16, 384 x 64>"
