"""What commands print with --json is what the JSON Schemas say."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from conftest import FIXTURES

GGUF, QWEN2 = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf", FIXTURES / "hf" / "qwen2-tied-bf16"
SOURCES = [
    *sorted((FIXTURES / "gguf").glob("*.gguf")),
    *sorted(path for path in (FIXTURES / "hf").iterdir() if path.is_dir() and any(path.glob("*.safetensors"))),
    *sorted(path.parent for path in (FIXTURES / "mlx").glob("*/config.json"))[:2],
    *sorted((FIXTURES / "gguf-lora").glob("*.gguf")),
    *sorted(path for path in (FIXTURES / "lora").iterdir() if path.is_dir())[:3],
    *sorted(path for path in (FIXTURES / "quantised").iterdir() if path.is_dir())[:3],
    FIXTURES / "kquants" / "llama64.Q4_K_M.gguf",
]


def check(ckconv, name: str, document: object) -> None:
    schema = json.loads(ckconv("formats", "--schema", name).out)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_inspect(path: Path, ckconv) -> None:
    check(ckconv, "inspect", ckconv("inspect", "--json", path).json)
    check(ckconv, "inspect", ckconv("inspect", "--json", "--hash", path).json)


@pytest.mark.parametrize(
    ("source", "target", "flags"),
    [
        (GGUF, "m.bump", ["--record"]),
        (GGUF, "m.gguf", ["--dtype", "f16", "--allow-lossy"]),
        (GGUF, "m.gguf", ["--quantize", "q8_0"]),
        (QWEN2, "m/", ["--to", "mlx", "--max-shard-size", "50KB"]),
        (QWEN2, "m.gguf", ["--no-verify"]),
    ],
)
def test_convert_its_plan_and_verify(source: Path, target: str, flags: list[str], tmp_path: Path, ckconv) -> None:
    out = f"{tmp_path}/{target}"
    check(ckconv, "plan", ckconv("convert", "--json", "-n", source, out, *flags).json)
    check(ckconv, "convert", ckconv("convert", "--json", source, out, *flags).json)
    check(ckconv, "verify", ckconv("verify", "--json", out).json)


def test_verify_against_a_source(tmp_path: Path, ckconv) -> None:
    assert ckconv("convert", GGUF, tmp_path / "m.bump").code == 0
    check(ckconv, "verify", ckconv("verify", "--json", tmp_path / "m.bump", GGUF).json)


def test_diff(ckconv) -> None:
    check(ckconv, "diff", json.loads(ckconv("diff", "--json", GGUF, QWEN2).out))
    check(ckconv, "diff", json.loads(ckconv("diff", "--json", GGUF, FIXTURES / "hf" / "llama-tied-bf16").out))


def test_formats_and_errors(ckconv) -> None:
    check(ckconv, "formats", ckconv("formats", "--json").json)
    check(ckconv, "error", json.loads(ckconv("inspect", "--json", "/no/such/file").err))
    check(ckconv, "error", json.loads(ckconv("convert", "--json").err))


def test_a_document_with_another_field_is_none() -> None:
    schema = json.loads((Path(__file__).parent.parent / "ckconv" / "cli" / "schemas" / "error.json").read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"error": {"code": 1}}, schema)
