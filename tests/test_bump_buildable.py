"""``verify FILE.bump`` alone finds what the engine's builder would stumble over; one broken file a reason."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import change_document
from conftest import FIXTURES

QWEN3, LLAMA, UNTIED = (
    FIXTURES / "hf" / name for name in ("qwen3-tied-bf16", "llama-tied-bf16", "llama-untied-f16-sharded")
)


def called(family: str) -> Callable[[Path], None]:
    """All documents say that the model is of another family."""

    def change(folder: Path) -> None:
        change_document(
            folder / "config.json",
            lambda c: c.update(model_type=family, architectures=[f"{family.title()}ForCausalLM"]),
        )
        change_document(
            folder / "weights_manifest.json", lambda m: (m.update(model=family), m["config"].update(model=family))
        )

    return change


def tied(word: bool) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        change_document(folder / "config.json", lambda c: c.update(tie_word_embeddings=word))
        change_document(folder / "weights_manifest.json", lambda m: m["config"].update(tie_word_embeddings=word))

    return change


def summary(how: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    return lambda folder: change_document(folder / "weights_manifest.json", lambda m: how(m["quant_summary"]))


def size(folder: Path) -> None:
    change_document(
        folder / "weights_manifest.json", lambda m: m["entries"][-1].update(size=m["entries"][-1]["size"] - 4)
    )


def map_elsewhere(folder: Path) -> None:
    path = folder / "weights_manifest.map"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-1], lines[-1].replace("|fp32|", "|bf16|")]) + "\n")


#: What is wrong -> (source, how the files of version 4 are changed, exit, code, part of the sentence).
BROKEN: dict[str, tuple[Path, Callable[[Path], None], int, str, str]] = {
    "an entry of another family": (
        QWEN3,
        called("llama"),
        5,
        "verify.entry-unused",
        "layer.0.k_norm is used by no operation of the engine's llama",
    ),
    "an entry that the family needs": (
        LLAMA,
        called("qwen3"),
        5,
        "verify.entry-missing",
        "layers.{n}.attention.k_norm.weight is missing in 2 layers, and qwen3 has it",
    ),
    "a head beside a tied one": (UNTIED, tied(True), 5, "verify.entry-unused", "output.weight is used by no operation"),
    "no head": (
        LLAMA,
        tied(False),
        5,
        "verify.entry-missing",
        "output.weight is missing: tie_word_embeddings is false",
    ),
    "a type in the summary": (
        LLAMA,
        summary(lambda s: s["layer.1"].update(wq="q8_0")),
        5,
        "verify.quant-summary",
        "quant_summary: layer.1.wq is 'q8_0', in the file fp32",
    ),
    "a head's type in the summary": (
        LLAMA,
        summary(lambda s: s.update(lm_head="q6_k")),
        5,
        "verify.quant-summary",
        "quant_summary: lm_head is 'q6_k', in the file fp32",
    ),
    "a matrix that is not in the summary": (
        LLAMA,
        summary(lambda s: s["layer.0"].pop("w2")),
        5,
        "verify.quant-summary",
        "quant_summary has no layer.0.w2",
    ),
    "a size": (LLAMA, size, 3, "bump.metadata", "final_ln_bias has 252 bytes, its shape and type make it 256"),
    "a map of another type": (LLAMA, map_elsewhere, 5, "verify.map", "final_ln_bias is bf16"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_the_builder_stumbles_over(name: str, tmp_path: Path, ckconv) -> None:
    source, change, status, code, sentence = BROKEN[name]
    assert ckconv("convert", source, f"{tmp_path}/b/", "--to", "bump", "--bump-version", 4, "--map").code == 0
    assert ckconv("verify", tmp_path / "b/weights.bump").code == 0
    (tmp_path / "b/weights.bump.source.zip").unlink()
    change(tmp_path / "b")
    found = ckconv("verify", tmp_path / "b/weights.bump")
    assert (found.code, f"error[{code}]" in found.err, sentence in found.err) == (status, True, True), found.err


def test_a_template_with_another_hash(tmp_path: Path, ckconv) -> None:
    (tmp_path / "t.json").write_text('{"name": "llama"}')
    flags = ("--to", "bump", "--bump-version", 5, "--template", tmp_path / "t.json", "--no-source-record")
    assert ckconv("convert", LLAMA, f"{tmp_path}/b/", *flags).code == 0
    path = tmp_path / "b/weights.bump"
    data = path.read_bytes()
    (nbytes,) = struct.unpack("<Q", data[-40:-32])
    metadata = json.loads(data[-48 - nbytes : -48])
    metadata["template_hash"] = "0" * 64
    text = json.dumps(metadata, sort_keys=True, separators=(",", ":")).encode()
    path.write_bytes(
        data[: -48 - nbytes] + text + struct.pack("<8sQ32s", b"BUMPV5MD", len(text), hashlib.sha256(text).digest())
    )
    found = ckconv("verify", path)
    assert (found.code, "error[verify.hash]" in found.err) == (5, True), found.err
