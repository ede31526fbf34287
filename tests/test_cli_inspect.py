"""``ckconv inspect``: lines in a pipe, tables on a terminal, one JSON document."""

from __future__ import annotations

import json
import os
import re
import select
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import Decoder, save
from conftest import FIXTURES, Result
from gguf_builder import Tensor, gguf
from models import Model

import ckconv as package

pty = pytest.importorskip("pty")  # of POSIX

Run = Callable[..., Result]
ROOT = Path(package.__file__).parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

SPLIT = FIXTURES / "gguf-split" / "llama-untied-f32-00001-of-00003.gguf"
QWEN2, MLX = FIXTURES / "hf" / "qwen2-tied-bf16", FIXTURES / "mlx" / "llama-tied-bf16.q4g64"
GEMMA = FIXTURES / "gguf" / "gemma3-text-bf16.auto.gguf"


def fields(out: str, kind: str) -> list[list[str]]:
    """The lines of one kind, cut at their tabs."""
    return [cells[1:] for line in out.splitlines() if (cells := line.split("\t"))[0] == kind]


# lines


def test_lines_say_first_what_they_are(ckconv: Run) -> None:
    found = ckconv("inspect", QWEN2)

    assert (found.code, found.err) == (0, "")
    kinds = [line.split("\t")[0] for line in found.out.splitlines()]
    assert sorted(set(kinds), key=kinds.index) == [
        "model",
        "overview",
        "container",
        "config",
        "type",
        "tensor",
        "metadata",
        "target",
    ]
    (model,) = fields(found.out, "model")
    assert (model[0], model[2:]) == (str(QWEN2), ["qwen2", "98880", "197760"])
    assert fields(found.out, "type") == [["BF16", "26", "197760"]]
    assert ["hidden_size", "64"] in fields(found.out, "config")
    assert ["model_type", "str", "qwen2"] in fields(found.out, "metadata")
    assert [
        "model.embed_tokens.weight", "token_embedding.weight", "BF16", "384x64", "49152", "2672", "model.safetensors",
    ] in fields(found.out, "tensor")  # fmt: skip
    assert len(fields(found.out, "tensor")) == 26


@pytest.mark.parametrize("flags", [("--tensors", "--metadata"), ("--metadata", "--tensors")])
def test_both_sections_that_are_asked_for_are_shown(ckconv: Run, flags: tuple[str, ...]) -> None:
    found = ckconv("inspect", QWEN2, *flags)
    assert {line.split("\t")[0] for line in found.out.splitlines()} == {"tensor", "metadata"}
    shown = on_a_terminal("inspect", QWEN2, *flags)
    assert "model.norm.weight" in shown
    assert "num_hidden_layers" in shown


def test_a_split_set_is_one_model(ckconv: Run) -> None:
    found = ckconv("inspect", SPLIT)

    assert fields(found.out, "model")[0][1:] == ["gguf 3", "llama", "123200", "492800"]
    assert ["shards", "3"] in fields(found.out, "container")
    files = {cells[6] for cells in fields(found.out, "tensor")}
    assert files == {f"llama-untied-f32-0000{n}-of-00003.gguf" for n in (1, 2, 3)}


def test_parameters_of_quantized_matrices_are_elements_not_words(ckconv: Run) -> None:
    assert ckconv("inspect", "--json", MLX).json["parameters"] == 98_624
    twin = FIXTURES / "mlx-dequantized" / "llama-tied-bf16.q4g64.dequantized"
    assert ckconv("inspect", "--json", twin).json["parameters"] == 98_624


def test_tensors_are_chosen_by_either_name(ckconv: Run) -> None:
    found = ckconv("inspect", "--tensors", "*.q_proj.*", QWEN2)
    assert [cells[0] for cells in fields(found.out, "tensor")] == [
        f"model.layers.{n}.self_attn.q_proj.{kind}" for n in (0, 1) for kind in ("bias", "weight")
    ]
    assert len(found.out.splitlines()) == 4, "nothing else is printed"

    found = ckconv("inspect", "--tensors", "layers.?.attention.q.*", QWEN2)
    assert len(fields(found.out, "tensor")) == 4


def test_metadata_alone(ckconv: Run) -> None:
    found = ckconv("inspect", "--metadata", GEMMA)

    assert {line.split("\t")[0] for line in found.out.splitlines()} == {"metadata"}
    assert ["gemma3.block_count", "u32", "6"] in fields(found.out, "metadata")


def test_long_arrays_are_cut_and_counted(ckconv: Run) -> None:
    (tokens,) = (cells for cells in fields(ckconv("inspect", GEMMA).out, "metadata") if cells[0].endswith(".tokens"))
    assert tokens[2].startswith('["<pad>", ')
    assert tokens[2].endswith(", ... 384 in all]")
    assert tokens[2].count('", "') == 4

    head = ckconv("inspect", "--json", GEMMA).json["metadata"]["tokenizer.ggml.tokens"]
    assert (head["count"], len(head["head"])) == (384, 5)


def test_full_arrays_have_all_of_their_elements(ckconv: Run) -> None:
    tokens = ckconv("inspect", "--json", "--full", GEMMA).json["metadata"]["tokenizer.ggml.tokens"]
    assert (tokens["count"], len(tokens["value"]), tokens["value"][0]) == (384, 384, "<pad>")
    (row,) = (
        cells for cells in fields(ckconv("inspect", "--full", GEMMA).out, "metadata") if cells[0].endswith(".tokens")
    )
    assert json.loads(row[2]) == tokens["value"]


def test_booleans_and_objects_are_json_in_a_pipe(ckconv: Run) -> None:
    rows = {key: value for key, _, value in fields(ckconv("inspect", FIXTURES / "hf/qwen3-tied-bf16").out, "metadata")}
    assert rows["attention_bias"] == "false"
    assert json.loads(rows["architectures"]) == ["Qwen3ForCausalLM"]


def test_markdown_is_tables_for_a_model_card(ckconv: Run, tmp_path: Path) -> None:
    name = "a|b <img src=x>"
    assert ckconv("edit", GEMMA, tmp_path / "m.gguf", "--set-meta", f"general.name={name}").code == 0
    lines = ckconv("inspect", "--markdown", tmp_path / "m.gguf").out.splitlines()
    assert lines[2] == r"| Name | a\|b &lt;img src=x> |"
    assert "| gguf | yes |  |" in lines
    assert all(line.startswith("|") or not line for line in lines)


@pytest.mark.parametrize(
    ("name", "value", "tables"),
    [("FORCE_COLOR", "1", True), ("CLICOLOR_FORCE", "1", True), ("FORCE_COLOR", "0", False)],
)
def test_color_may_be_forced_into_a_pipe(
    ckconv: Run, monkeypatch: pytest.MonkeyPatch, name: str, value: str, tables: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv(name, value)
    out = ckconv("inspect", GEMMA).out
    assert (out.startswith("\x1b[1m"), out.startswith("model\t")) == (tables, not tables)


@pytest.mark.parametrize(
    "path", [QWEN2, GEMMA, MLX, SPLIT, FIXTURES / "kquants" / "llama64.Q4_K_M.gguf"], ids=lambda p: p.name
)
def test_hashes_stand_behind_every_tensor_and_the_model(ckconv: Run, path: Path) -> None:
    plain, found = ckconv("inspect", path), ckconv("inspect", "--hash", path)

    digest = re.compile(r"[0-9a-f]{64}( \+ [0-9a-f]{64})*\Z")
    assert all(digest.match(cells[-1]) for cells in fields(found.out, "tensor"))
    assert len(fields(found.out, "tensor")) == len(fields(plain.out, "tensor"))
    assert [len(cells) for cells in fields(found.out, "hash")] == [1]
    assert found.out.splitlines()[-1].startswith("hash\t")
    assert not fields(plain.out, "hash")
    document = ckconv("inspect", "--hash", "--json", path).json
    assert [document["hash"]] == fields(found.out, "hash")[0]
    assert [t["hash"] if isinstance(t["hash"], str) else " + ".join(t["hash"]) for t in document["tensors"]] == [
        cells[-1] for cells in fields(found.out, "tensor")
    ]


def test_hf_and_gguf_of_one_model_have_one_hash(ckconv: Run) -> None:
    one, other = (ckconv("inspect", "--hash", path).out.splitlines()[-1] for path in (
        FIXTURES / "hf" / "gemma3-text-bf16", GEMMA))  # fmt: skip
    assert one == other


# targets


def test_a_model_that_converts_says_so(ckconv: Run) -> None:
    found = ckconv("inspect", SPLIT)
    answers = dict(fields(found.out, "target"))
    assert answers
    assert set(answers.values()) <= {"yes", "no"}


def test_a_model_that_does_not_convert_says_why(ckconv: Run) -> None:
    found = ckconv("inspect", GEMMA)

    assert ["bump 3", "no"] in fields(found.out, "target")
    reasons = [cells for cells in fields(found.out, "reason") if cells[0] == "bump 3"]
    assert reasons
    assert all(len(cells) == 3 and cells[1] for cells in reasons)
    document = ckconv("inspect", "--json", GEMMA).json
    (target,) = (target for target in document["targets"] if target["target"] == "bump 3")
    assert not target["converts"]
    assert [reason["text"] for reason in target["reasons"]] == [cells[1] for cells in reasons]


# JSON

KEYS = {
    "schema", "overview", "path", "format", "version", "files", "architecture", "parameters", "bytes", "container",
    "config", "types", "tensors", "unknown_tensors", "metadata", "targets", "hazards",
}  # fmt: skip
TENSOR = {"name", "canonical", "dtype", "shape", "bytes", "offset", "file"}


@pytest.fixture
def bump(ckconv: Run, tmp_path: Path) -> Path:
    source = Model(context=5).write(tmp_path / "m.gguf")
    assert ckconv("convert", "-q", source, tmp_path / "m.bump").code == 0
    return tmp_path / "m.bump"


def check_document(document: dict[str, Any]) -> None:
    assert document.keys() == KEYS
    assert document["schema"] == 1
    for tensor in document["tensors"]:
        assert tensor.keys() == TENSOR
        assert tensor["file"] in document["files"]
        assert tensor["offset"] + tensor["bytes"] <= Path(tensor["file"]).stat().st_size
    assert document["bytes"] == sum(tensor["bytes"] for tensor in document["tensors"])
    assert sum(kind["tensors"] for kind in document["types"]) == len(document["tensors"])


@pytest.mark.parametrize(
    ("path", "format", "architecture", "tensors", "files"),
    [
        (SPLIT, "gguf", "llama", 21, 3),
        (GEMMA, "gguf", "gemma3", 80, 1),
        (QWEN2, "safetensors", "qwen2", 26, 1),
        (FIXTURES / "hf" / "llama-untied-f16-sharded", "safetensors", "llama", 21, 3),
        (FIXTURES / "hf" / "gpt2-hub-f32", "safetensors", "gpt2", 30, 1),
        (MLX, "mlx", "llama", 50, 1),
    ],
)
def test_the_document_has_one_shape_for_every_format(
    ckconv: Run, path: Path, format: str, architecture: str, tensors: int, files: int
) -> None:
    document = ckconv("inspect", "--json", path).json

    check_document(document)
    assert (document["path"], document["format"], document["architecture"]) == (str(path), format, architecture)
    assert (len(document["tensors"]), len(document["files"])) == (tensors, files)
    assert document["config"]["num_layers"] == (6 if "gemma" in path.name else 2)
    assert document["unknown_tensors"] == []


def test_the_document_of_a_bump_file(ckconv: Run, bump: Path) -> None:
    document = ckconv("inspect", "--json", bump).json

    check_document(document)
    assert (document["format"], document["version"], document["architecture"]) == ("bump", 3, "llama")
    assert [(target["target"], target["converts"]) for target in document["targets"]] == [
        ("bump 3", True),
        ("bump 5", True),
    ]
    assert {"layers.0.attention.q.weight", "output_norm.weight"} <= {str(t["canonical"]) for t in document["tensors"]}


def test_a_tensor_of_several_parts_has_several_canonical_names(ckconv: Run) -> None:
    tensors = {t["name"]: t for t in ckconv("inspect", "--json", FIXTURES / "hf" / "gpt2-hub-f32").json["tensors"]}

    assert tensors["h.1.attn.c_attn.bias"]["canonical"] == [f"layers.1.attention.{part}.bias" for part in "qkv"]
    assert tensors["h.1.attn.bias"]["canonical"] == []
    assert tensors["wte.weight"]["canonical"] == "token_embedding.weight"


def test_numbers_that_json_does_not_have_are_words(ckconv: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    pairs = [
        ("general.architecture", "str", "other"),
        ("a", "f32", float("nan")),
        ("b", "f64", float("-inf")),
        ("c", "arr[f32]", [1.0, float("inf")]),
    ]
    path.write_bytes(gguf(pairs, [Tensor("w")]))
    found = ckconv("inspect", "--json", path)

    metadata = json.loads(found.out, parse_constant=pytest.fail)["metadata"]
    assert [metadata["a"]["value"], metadata["b"]["value"], metadata["c"]["head"]] == ["nan", "-inf", [1.0, "inf"]]
    assert [cells[2] for cells in fields(ckconv("inspect", path).out, "metadata")][1:] == [
        "nan",
        "-inf",
        '[1.0, "inf"]',
    ]


def test_control_characters_are_escaped_everywhere(ckconv: Run, tmp_path: Path) -> None:
    """A name from a safetensors header or a configuration may hold any character."""
    evil = "w\x1b[2J\t\n\r\x00\u202e\x9b"
    path = save(tmp_path / "m", {"model_type": evil, evil: evil, "list": [evil]}, {evil: np.ones(1, np.float32)})
    for arguments in (("inspect",), ("inspect", "--hash"), ("inspect", "--metadata"), ("inspect", "--json")):
        found = ckconv(*arguments, path)
        assert found.code == 0
        assert not set(found.out) & set("\x1b\r\x00\u202e\x9b"), arguments
    assert [len(cells) for cells in fields(ckconv("inspect", path).out, "tensor")] == [7], "a tab is no new field"
    assert ckconv("inspect", "--json", path).json["tensors"][0]["name"] == evil


# a pipe


def piped(data: bytes, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ckconv", "inspect", *arguments, "-"]
    done = subprocess.run(command, input=data, capture_output=True, env=ENVIRONMENT, check=False)
    return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize("cut", [0, 40_000])
def test_a_gguf_is_read_from_a_pipe_as_far_as_its_header(cut: int) -> None:
    data = (FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf").read_bytes()
    done = piped(data[: len(data) - cut])

    assert (done.returncode, done.stderr) == (0, "")
    assert fields(done.stdout, "model")[0][1:3] == ["gguf 3", "llama"]
    assert len(fields(done.stdout, "tensor")) == 20


def test_a_safetensors_file_is_read_from_a_pipe() -> None:
    done = piped((QWEN2 / "model.safetensors").read_bytes()[:4000], "--json")

    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert (document["format"], len(document["tensors"]), document["config"]) == ("safetensors", 26, None)
    assert document["unknown_tensors"] == [tensor["name"] for tensor in document["tensors"]]


def test_what_a_pipe_does_not_tell_is_refused() -> None:
    done = piped(b"", "--hash")
    assert (done.returncode, done.stdout) == (2, "")
    assert "error[usage.hash]: --hash needs the tensors' data" in done.stderr

    done = piped(b"not a model at all")
    assert (done.returncode, done.stdout) == (3, "")
    assert "error[input.format]" in done.stderr
    done = piped(struct.pack("<Q", 50) + b"{")
    assert done.returncode == 3
    assert "Traceback" not in done.stderr


# a terminal


def on_a_terminal(*arguments: object, **environment: str) -> str:
    """What is shown on a terminal of 150 columns."""
    leader, follower = pty.openpty()
    settings = {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "150", "PAGER": "cat", **environment}
    settings = {key: value for key, value in settings.items() if key != "NO_COLOR" or "NO_COLOR" in environment}
    command = [sys.executable, "-m", "ckconv", *map(str, arguments)]
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=settings)
    os.close(follower)
    shown = b""
    try:
        while select.select([leader], [], [], 30)[0]:
            part = os.read(leader, 65536)
            if not part:
                break
            shown += part
    except OSError:  # Linux: the other end is closed
        pass
    finally:
        os.close(leader)
    assert process.wait(30) == 0
    return shown.decode().replace("\r\n", "\n")


def test_a_terminal_shows_tables() -> None:
    shown = on_a_terminal("inspect", QWEN2)

    assert "\x1b[" in shown
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert text.startswith("qwen2-tied-bf16  qwen2  98.9 K parameters  BF16, 16 bits per weight  198 kB\n")
    assert re.search(r"layers +2, hidden 64, heads 4/2 of 16\n", text)
    assert re.search(r"memory +198 kB of weights \+ KV cache in F16: 65\.5 kB at 256 tokens\n", text)
    assert re.search(r"^  Hugging Face  yes$", text, re.MULTILINE)
    assert re.search(r"^ffn\.down +BB$", text, re.MULTILINE)
    assert re.search(r"^layers\.0-1  2 x: 12 tensors  BF16", text, re.MULTILINE)
    assert "model.layers.0" not in text
    assert "metadata\t" not in text


def test_every_tensor_is_shown_where_it_is_asked_for() -> None:
    text = on_a_terminal("inspect", "-v", "--no-color", QWEN2)
    assert re.search(r"^tensor +canonical +type +shape +bytes +offset$", text, re.MULTILINE)
    assert re.search(r"token_embedding\.weight +BF16 +384 x 64 +49,152 +2,672$", text, re.MULTILINE)
    assert re.search(r"^key +type +value", text, re.MULTILINE)

    text = on_a_terminal("inspect", "--no-color", QWEN2, "--tensors")
    assert text.startswith("tensor ")
    assert text.count("\nmodel.") == 26


@pytest.mark.parametrize("width", [60, 80])
def test_a_table_fits_by_leaving_columns_out_and_folds_no_name(width: int) -> None:
    text = on_a_terminal("inspect", "-v", "--no-color", QWEN2, COLUMNS=str(width))
    (title,) = (line for line in text.splitlines() if line.startswith("tensor "))
    assert title.split()[:2] == ["tensor", "type"]
    assert max(len(line) for line in text.splitlines() if line.startswith("model.")) <= width
    assert "model.layers.1.post_attention_layernorm.weight" in text


@pytest.mark.parametrize("plain", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_who_wants_no_color_gets_no_escapes(plain: dict[str, str]) -> None:
    assert "\x1b" not in on_a_terminal("inspect", QWEN2, **plain)
    assert "\x1b" not in on_a_terminal("inspect", "--no-color", QWEN2)


def test_a_narrow_terminal_gets_a_table_that_can_be_read() -> None:
    text = on_a_terminal("inspect", "--no-color", "--tensors", "model.norm*", QWEN2, COLUMNS="30")
    assert re.search(r"^model\.norm\.weight +(output_norm\.weight +)?BF16 +64 +128", text, re.MULTILINE)


def test_a_terminal_shows_only_what_was_asked_for() -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal("inspect", "--tensors", "*norm*", MLX))
    assert "layers.0.attention_norm.weight" in text
    assert "model_type" not in text
    assert "embed_tokens" not in text

    text = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal("inspect", "--metadata", MLX))
    assert "model_type" in text
    assert "attention_norm" not in text


def test_a_terminal_shows_hashes_and_reasons() -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal("inspect", "--hash", GEMMA, COLUMNS="250"))
    assert re.search(r"model hash  [0-9a-f]{64}", text)
    assert re.search(r"^  bump 3 +no   this engine's MLP has SiLU, and gemma3's has GELU$", text, re.MULTILINE)


def test_nothing_that_acts_on_a_terminal_comes_out_of_a_file(tmp_path: Path) -> None:
    evil = "w\x1b[2J\x07\u202e"
    path = save(tmp_path / "m", {"model_type": evil, evil: evil}, {evil: np.ones(1, np.float32)})
    shown = on_a_terminal("inspect", path)

    assert r"w\x1b[2J\x07\u202e" in shown
    assert not {"\x07", "\u202e"} & set(shown)
    assert "\x1b[2J" not in shown


def test_markup_in_a_file_is_text(tmp_path: Path) -> None:
    path = save(tmp_path / "m", {"note": "[bold red]x[/]", "smile": ":smile:"}, {"[link=a]w": np.ones(1, np.float32)})
    shown = on_a_terminal("inspect", "-v", path)
    assert "[bold red]x[/]" in shown
    assert ":smile:" in shown
    assert "[link=a]w" in shown


def test_a_model_that_contradicts_itself_is_described_as_its_file_is(ckconv: Run, tmp_path: Path) -> None:
    path = save(tmp_path / "m", Decoder(layers=1).config(hidden_size=65), Decoder(layers=1).tensors())
    found = ckconv("inspect", "--json", path)

    assert (found.code, found.json["config"]) == (0, None)
    assert "has shape [40, 64], the configuration makes it [40, 65]" in found.json["container"]["note"]
    assert {target["converts"] for target in found.json["targets"]} == {False}


def test_a_format_without_versions_has_none(ckconv) -> None:
    root = FIXTURES / "hf" / "llama-tied-bf16"
    assert ckconv("inspect", root).out.splitlines()[0].split("\t")[2] == "safetensors"
    assert ckconv("inspect", root, "--json").json["version"] is None
    assert ckconv("verify", root, root).out.splitlines()[0] == (
        f"{root}  safetensors  verified 20/20 tensors against {root}"
    )


def test_a_directory_is_no_gguf(ckconv) -> None:
    found = ckconv("inspect", "--from", "gguf", FIXTURES / "hf" / "llama-tied-bf16")
    assert (found.code, found.out) == (3, "")
    assert "error[input.directory]" in found.err


@pytest.mark.parametrize("arguments", [("bogus", "--json"), ("--bogus", "--json"), ("inspect", "--bogus", "--json")])
def test_usage_errors_are_json_wherever_the_flag_stands(arguments: tuple[str, ...], ckconv) -> None:
    found = ckconv(*arguments)
    assert (found.code, found.out) == (2, "")
    assert json.loads(found.err)["error"]["code"] == "usage"


@pytest.mark.parametrize("verb", [("inspect", ""), ("convert", "", "x.bump"), ("verify", ""), ("diff", "", "")])
def test_an_empty_argument_is_not_the_working_directory(verb: tuple[str, ...], ckconv) -> None:
    found = ckconv(*verb)
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("ckconv: error[usage]: an argument is empty\n")


def test_a_glob_that_matches_no_tensor_is_a_mistake(ckconv) -> None:
    found = ckconv("inspect", FIXTURES / "hf" / "llama-tied-bf16", "--tensors", "nope*")
    assert (found.code, found.out) == (2, "")
    assert found.err == "ckconv: error[usage]: --tensors 'nope*' matches no tensor\n"


def test_quiet_prints_nothing_but_errors(ckconv) -> None:
    path = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
    found = ckconv("inspect", path, "-q")
    assert (found.code, found.out, found.err) == (0, "", "")
    assert ckconv("inspect", path, "-q", "--json").json["format"] == "gguf"
    assert ckconv("inspect", path.with_name("none"), "-q").err.startswith("ckconv: error[input.missing]")


def test_a_file_has_one_version_in_every_document(ckconv: Any, tmp_path: Path) -> None:
    source = FIXTURES / "hf" / "llama-bias-f32"
    converted = ckconv("convert", source, tmp_path / "m.gguf", "--json").json
    batch = ckconv("batch", source, "--to", "gguf", "--into", tmp_path / "all", "--json")
    said = [
        converted["version"],
        json.loads(batch.out.splitlines()[0])["version"],
        ckconv("inspect", tmp_path / "m.gguf", "--json").json["version"],
        ckconv("verify", tmp_path / "m.gguf", "--json").json["version"],
        ckconv("convert", tmp_path / "m.gguf", tmp_path / "hf/", "--to", "hf", "--json").json["source"]["version"],
    ]

    assert (said, converted["source"]["version"]) == ([3] * 5, None)
