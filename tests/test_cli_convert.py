"""``ckconv convert``: what it refuses and with which words, what it writes where, and what it says."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import gguf
import gguf.quants
import numpy as np
import pytest
from bump3_expected import expected_bump3
from checkpoints import Decoder, save
from conftest import FIXTURES
from gguf import GGMLQuantizationType as Q
from models import BLOCKS, Model
from outputs import names

SMALL = Model(vocab=40, context=6)
K = Model(hidden=256, ffn=512, vocab=10, context=4, matrix=Q.Q4_K)
PADDED = Model(hidden=48, ffn=72, vocab=20, context=5)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return SMALL.write(tmp_path / "m.gguf")


# --- refusals: before anything is written, every reason at once


def moe() -> Model:
    """Like a Mixtral: experts stacked, no dense feed-forward."""
    keys = {"llama.expert_count": 4, "llama.expert_used_count": 2}
    model = Model(layers=1, hidden=32, ffn=48, vocab=20, context=4, extra_keys=keys)

    class Experts(Model):
        def tensors(self) -> dict[str, tuple[int, ...]]:
            dense = {
                n: s
                for n, s in Model.tensors(self).items()
                if "ffn_g" not in n and "ffn_u" not in n and "ffn_d" not in n
            }
            return dense | {
                "blk.0.ffn_gate_inp.weight": (4, 32),
                "blk.0.ffn_gate_exps.weight": (4, 48, 32),
                "blk.0.ffn_up_exps.weight": (4, 48, 32),
                "blk.0.ffn_down_exps.weight": (4, 32, 48),
            }  # fmt: skip

    return Experts(**vars(model))


HEAD = "the output head is not tied to the embeddings and bump 3 has no slot for it"
SCALED = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}

#: model -> every reason and hint
REFUSED: dict[str, tuple[Model, list[str]]] = {
    "untied head": (Model(head="own"), [HEAD]),
    "QK-norm": (
        Model(
            arch="qwen3",
            extra_tensors={f"blk.{n}.attn_{x}_norm.weight": (16,) for n in (0, 1) for x in "qk"},
        ),
        [
            "no slot for layers.{n}.attention.q_norm.weight (2 tensors)",
            "no slot for layers.{n}.attention.k_norm.weight (2 tensors)",
        ],
    ),
    "other block types": (
        replace(K, matrix=Q.Q5_K, types={"attn_v.weight": Q.Q8_0}),
        [
            "the engine loads F32, Q4_K and Q6_K matrices, not Q5_K: token_embd.weight and 12 more",
            "the engine loads F32, Q4_K and Q6_K matrices, not Q8_0: blk.0.attn_v.weight and 1 more",
            "hint: --dequantize decodes them to FP32",
        ],
    ),
    "gate and up of two types": (
        replace(K, types={"ffn_up.weight": Q.Q6_K}),
        [
            "gate and up share one type in layer.{n}.w1: blk.0.ffn_gate.weight is Q4_K and blk.0.ffn_up.weight is Q6_K",
            "--decode 'blk.*.ffn_gate.weight' --decode 'blk.*.ffn_up.weight' decodes them to FP32",
        ],
    ),
    "quantized norm": (
        replace(K, types={"ffn_norm.weight": Q.Q8_0}),
        ["Q8_0 in an FP32 slot: blk.0.ffn_norm.weight and 1 more"],
    ),
    "experts": (
        moe(),
        ["bump 3 cannot hold this model: the format holds dense models, and mixtral has experts"],
    ),
    "part of a head rotates": (
        Model(extra_keys={"llama.rope.dimension_count": 8}),
        ["RoPE rotates 8 of 16 elements of a head; the engine rotates all (llama.rope.dimension_count)"],
    ),
    "rope scaling": (
        Model(extra_keys=SCALED),
        [
            "RoPE is scaled (linear by rope.scaling.type, rope.scaling.factor, rope.scale_linear)",
            "--drop rope_frequencies leaves the scaling out",
        ],
    ),
    "attention in both directions": (
        Model(extra_keys={"llama.attention.causal": False}),
        ["llama.attention.causal = False changes the computation"],
    ),
    "scaled frequencies": (
        Model(extra_tensors={"rope_freqs.weight": (8,)}),
        ["rope_freqs.weight scales RoPE", "--drop rope_frequencies leaves the scaling out"],
    ),
    "unknown tensors": (
        Model(extra_tensors={f"blk.{n}.odd.weight": (3,) for n in (0, 1)} | {"strange": (5,)}),
        ["no slot for blk.{n}.odd.weight (2 tensors)", "no slot for strange"],
    ),
    "unknown architecture": (
        Model(arch="frobnicator"),
        ["ckconv does not know the architecture 'frobnicator'; no engine here knows it"],
    ),
    "K-quants in sizes that are no multiple of 256": (
        replace(K, hidden=128, matrix=Q.F32, types={"ffn_down.weight": Q.Q4_K}),
        ["hidden size 128 is not a multiple of 256, which the loader wants of K-quants", "--dequantize"],
    ),
    "a quantized wo whose heads need padding": (
        replace(K, heads=32, kv_heads=32),
        ["a quantized wo must have heads x padded head size = hidden, not 32 x 16"],
    ),
    "everything at once": (
        replace(
            K,
            matrix=Q.Q5_K,
            head="own",
            extra_keys={"llama.attention.causal": False},
            extra_tensors={"rope_freqs.weight": (32,)},
        ),
        [
            "cannot hold this model, for 4 reasons",
            HEAD,
            "not Q5_K",
            "llama.attention.causal = False",
            "rope_freqs.weight scales RoPE",
        ],
    ),
}


@pytest.mark.parametrize(("model", "fragments"), REFUSED.values(), ids=REFUSED)
def test_refused(model: Model, fragments: list[str], tmp_path: Path, ckconv) -> None:
    source = model.write(tmp_path / "m.gguf")
    for flags in ((), ("--dry-run",), ("--force",)):
        result = ckconv("convert", source, tmp_path / "m.bump", "--bump-version", "3", *flags)
        assert (result.code, result.out) == (4, "")
        assert result.err.startswith(f"ckconv: error[plan.refused]: {source}: bump 3 cannot hold this model")
        for fragment in fragments:
            assert fragment in result.err
    assert names(tmp_path) == ["m.gguf"]
    targets = ckconv("inspect", source, "--json").json["targets"]
    reasons = [reason["text"] for target in targets if target["target"] == "bump 3" for reason in target["reasons"]]
    assert reasons
    assert all(reason in result.err for reason in reasons), "inspect says the same"


def test_missing_tensors_are_counted(tmp_path: Path, ckconv) -> None:
    class Holey(Model):
        def tensors(self) -> dict[str, tuple[int, ...]]:
            return {n: s for n, s in Model.tensors(self).items() if "attn_k." not in n and n != "output_norm.weight"}

    result = ckconv("convert", Holey().write(tmp_path / "m.gguf"), tmp_path / "m.bump", "--bump-version", "3")
    assert result.code == 4
    assert "no tensor for layers.{n}.attention.k.weight in 2 layers" in result.err
    assert "no tensor for output_norm.weight" in result.err


def test_layers_that_are_only_claimed_cost_no_time(tmp_path: Path, ckconv) -> None:
    class Claims(Model):
        def tensors(self) -> dict[str, tuple[int, ...]]:
            return Model(layers=1).tensors()

    source = Claims(layers=65_000).write(tmp_path / "m.gguf")
    started = time.monotonic()
    result = ckconv("convert", source, tmp_path / "m.bump", "--bump-version", "3")
    assert result.code == 4
    assert "64,999 of 65,000 layers (llama.block_count) have no tensors" in result.err
    assert ckconv("inspect", source).code == 0
    assert time.monotonic() - started < 1


def test_head_size_of_its_own(tmp_path: Path, ckconv) -> None:
    """Heads whose sizes do not add up to the hidden size (Qwen 3, Gemma): the bump 3 header cannot say so."""

    class Wide(Model):
        def tensors(self) -> dict[str, tuple[int, ...]]:
            wide = {
                "attn_q.weight": (128, 64),
                "attn_k.weight": (64, 64),
                "attn_v.weight": (64, 64),
                "attn_output.weight": (64, 128),
            }
            return {n: wide.get(n.partition(".")[2].partition(".")[2], s) for n, s in Model.tensors(self).items()}

    model = Wide(extra_keys={"llama.attention.key_length": 32, "llama.attention.value_length": 32})
    result = ckconv("convert", model.write(tmp_path / "m.gguf"), tmp_path / "m.bump", "--bump-version", "3")
    assert result.code == 4
    assert "head size 32 is not hidden / heads (64 / 4), as it must be" in result.err


@pytest.mark.parametrize("kind", ["adapter", "imatrix", "mmproj"])
def test_files_that_are_no_model(kind: str, tmp_path: Path, ckconv) -> None:
    model = Model(extra_keys={"general.type": kind})
    result = ckconv("convert", model.write(tmp_path / "m.gguf"), tmp_path / "m.bump")
    assert result.code == 4
    assert names(tmp_path) == ["m.gguf"]


def test_what_the_hints_say_works(tmp_path: Path, ckconv) -> None:
    tensors = {name: array for name, array in Decoder().tensors().items() if name != "lm_head.weight"}
    document = Decoder().config("mistral", sliding_window=32, tie_word_embeddings=True)
    window = save(tmp_path / "hf", document, tensors)
    three = ("--to", "bump", "--bump-version", "3")
    assert ckconv("convert", window, f"{tmp_path}/w/", *three).code == 4
    assert ckconv("convert", window, f"{tmp_path}/w/", *three, "--context", 32).code == 0
    assert json.loads((tmp_path / "w" / "config.json").read_text())["max_position_embeddings"] == 32
    scaled = replace(SMALL, extra_tensors={"rope_freqs.weight": (8,)}).write(tmp_path / "s.gguf")
    result = ckconv("convert", scaled, f"{tmp_path}/s/", *three, "--drop", "rope_frequencies")
    assert result.code == 0
    assert "left out rope_freqs.weight (rope_frequencies): asked for by --drop" in result.out
    mixed = replace(K, types={"ffn_up.weight": Q.Q6_K}).write(tmp_path / "k.gguf")
    assert ckconv("convert", mixed, f"{tmp_path}/k/", *three, "--dequantize").code == 0


def test_head_that_is_the_embedding_counts_as_tied(tmp_path: Path, ckconv) -> None:
    source = replace(SMALL, head="copy").write(tmp_path / "m.gguf")
    result = ckconv("convert", source, tmp_path / "m.bump")
    assert result.code == 0
    assert "note: the output head is byte for byte the embedding: written as tied" in result.out
    assert "left out output.weight: byte for byte the embedding: tied" in result.out
    assert (tmp_path / "m.bump").read_bytes() == expected_bump3(source)
    assert ckconv("verify", tmp_path / "m.bump", source).code == 0


# --- where the output goes


def test_dry_run_writes_nothing_and_knows_the_exact_size(tmp_path: Path, ckconv) -> None:
    for name, model in (("p", PADDED), ("k", K), ("b", replace(PADDED, matrix=Q.BF16, all_bias=True))):
        source = model.write(tmp_path / f"{name}.gguf")
        before = names(tmp_path)
        shown = ckconv("convert", source, tmp_path / "x.bump", "-n", "--bump-version", 3)
        assert shown.code == 0
        assert shown.out.endswith("nothing written\n")
        assert names(tmp_path) == before
        facts = ckconv("convert", source, tmp_path / "x.bump", "-n", "--json", "--bump-version", 3).json
        out = tmp_path / name
        done = ckconv("convert", source, f"{out}/", "--to", "bump", "--bump-version", 3)
        assert done.code == 0
        size = (out / "weights.bump").stat().st_size
        found = re.search(rf"\({size:,} bytes(?:, ([\d.]+) bits per weight)?\)", shown.out)
        assert found is not None, shown.out
        assert (f"({found[1]} bits per weight)" in done.out) == ("bits per weight" in done.out) == bool(found[1])
        assert facts["bytes"] == size
        steps = facts["steps"]
        assert steps[-1]["offset"] + steps[-1]["bytes"] == size
        assert all(a["offset"] + a["bytes"] == b["offset"] for a, b in itertools.pairwise(steps))


def test_nothing_is_overwritten_without_force(source: Path, tmp_path: Path, ckconv) -> None:
    out = tmp_path / "m.bump"
    out.write_text("precious")
    result = ckconv("convert", source, out)
    assert result.code == 6
    assert f"error[output.exists]: {out}: exists already" in result.err
    assert "hint: --force replaces it" in result.err
    assert out.read_text() == "precious"
    assert names(tmp_path) == ["m.bump", "m.gguf"]
    assert ckconv("convert", source, out, "-f").code == 0
    assert out.read_bytes() == expected_bump3(source)
    assert ckconv("convert", source, out).code == 6
    assert names(tmp_path) == ["config.json", "m.bump", "m.bump.source.zip", "m.gguf"]


def test_configuration_of_something_else_is_kept(source: Path, tmp_path: Path, ckconv) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"precious": true}')
    result = ckconv("convert", source, tmp_path / "m.bump")
    assert result.code == 6
    assert f"error[output.exists]: {config}: exists already" in result.err
    assert "--config-out" in result.err
    assert config.read_text() == '{"precious": true}'
    assert not (tmp_path / "m.bump").exists()
    assert ckconv("convert", source, tmp_path / "m.bump", "--config-out", tmp_path / "other.json").code == 0
    assert config.read_text() == '{"precious": true}'
    assert ckconv("verify", tmp_path / "m.bump", source, "--config", tmp_path / "other.json").code == 0


def test_configuration_that_is_the_same_is_left_alone(source: Path, tmp_path: Path, ckconv) -> None:
    assert ckconv("convert", source, tmp_path / "a.bump").code == 0
    before = (tmp_path / "config.json").stat()
    assert ckconv("convert", source, tmp_path / "b.bump").code == 0
    after = (tmp_path / "config.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_model_and_configuration_cannot_be_one_file(source: Path, tmp_path: Path, ckconv) -> None:
    for arguments in (("config.json", "--to", "bump"), ("m.bump", "--config-out", tmp_path / "m.bump")):
        result = ckconv("convert", source, tmp_path / arguments[0], *arguments[1:], "--force")
        assert result.code == 2
        assert "would be both the model and " in result.err
    assert names(tmp_path) == ["m.gguf"]


def test_directory_targets(source: Path, tmp_path: Path, ckconv, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ckconv("convert", source, f"{tmp_path}/new/", "--to", "bump").code == 0
    assert names(tmp_path / "new") == ["config.json", "weights.bump", "weights.bump.source.zip"]
    (tmp_path / "empty").mkdir()
    assert ckconv("convert", source, tmp_path / "empty", "--to", "bump").code == 0
    assert names(tmp_path / "empty") == ["config.json", "weights.bump", "weights.bump.source.zip"]
    result = ckconv("convert", source, tmp_path / "empty", "--to", "bump")
    assert result.code == 6
    assert "the directory exists and is not empty" in result.err
    (tmp_path / "empty" / "other").write_text("kept")
    assert ckconv("convert", source, tmp_path / "empty", "--to", "bump", "--force").code == 0
    assert names(tmp_path / "empty") == ["config.json", "other", "weights.bump", "weights.bump.source.zip"]
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    result = ckconv("convert", source, f"{tmp_path}/link/", "--to", "bump")
    assert (result.code, names(tmp_path / "real")) == (6, [])
    assert ckconv("convert", source, f"{tmp_path}/link/", "--to", "bump", "--force").code == 0
    assert names(tmp_path / "real") == ["config.json", "weights.bump", "weights.bump.source.zip"]
    assert (tmp_path / "link").is_symlink()
    monkeypatch.chdir(tmp_path)
    assert ckconv("convert", source, "here/", "--to", "bump", "--config-out", "c.json").code == 0
    assert names(tmp_path / "here") == ["weights.bump", "weights.bump.source.zip"]
    assert (tmp_path / "c.json").is_file()
    assert not [name for name in names(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize(
    ("target", "code", "error"),
    [
        ("nowhere/m.bump", 6, "output.parent"),
        ("m.gguf/m.bump", 6, "output.parent"),
        ("x" * 300 + ".bump", 6, "output.write"),
        ("folder.bump/m.txt", 2, "usage.target"),
        ("m.txt", 2, "usage.target"),
        ("m", 2, "usage.target"),
    ],
)
def test_impossible_targets(target: str, code: int, error: str, source: Path, tmp_path: Path, ckconv) -> None:
    result = ckconv("convert", source, tmp_path / target)
    assert result.code == code
    assert f"error[{error}]" in result.err
    assert names(tmp_path) == ["m.gguf"]


@pytest.mark.parametrize(
    ("verb", "target", "hint"),
    [
        (("edit", "--set-meta", "a.b=c"), "o.bump", "a name in .gguf makes a file, {}/ makes a directory"),
        (("convert", "--to", "hf"), "o.GGUF", "a name in .safetensors makes a file, {}/ makes a directory"),
        (("convert", "--to", "mlx"), "o.safetensors", "{}/ makes a directory"),
    ],
)
def test_a_name_that_says_another_format_is_refused(
    verb: tuple[str, ...], target: str, hint: str, source: Path, tmp_path: Path, ckconv
) -> None:
    command, *flags = verb
    result = ckconv(command, source, tmp_path / target, *flags)
    assert (result.code, names(tmp_path)) == (2, ["m.gguf"])
    assert f"error[usage.target]: '{target}' says " in result.err
    assert f"hint: {hint.format(tmp_path / target)}\n" in result.err
    assert ckconv(command, source, f"{tmp_path / target}/", *flags).code == 0
    assert (tmp_path / target).is_dir()


def test_of_what_is_there_already_the_output_is_named_first(source: Path, tmp_path: Path, ckconv) -> None:
    assert ckconv("convert", source, tmp_path / "a.bump", "--checksums").code == 0
    again = ckconv("convert", source, tmp_path / "a.bump", "--checksums")
    assert (again.code, f"error[output.exists]: {tmp_path / 'a.bump'}: exists already" in again.err) == (6, True)
    (tmp_path / "a.bump").unlink()
    assert f"{tmp_path / 'a.bump'}.source.zip: " in ckconv("convert", source, tmp_path / "a.bump").err


def test_longest_name_of_the_file_system(source: Path, tmp_path: Path, ckconv) -> None:
    name = "x" * 250 + ".bump"
    result = ckconv("convert", source, tmp_path / name)
    assert result.code == 0
    assert names(tmp_path) == ["config.json", "m.gguf", name]
    assert "note: no source record: its name would be too long for a file system" in result.out


def test_special_files_are_no_target(source: Path, tmp_path: Path, ckconv) -> None:
    os.mkfifo(tmp_path / "pipe.bump")
    for target in (tmp_path / "pipe.bump", "/dev/null"):
        result = ckconv("convert", source, target, "--to", "bump", "--force")
        assert result.code == 6
        assert "error[output.special]" in result.err
    assert not (tmp_path / "config.json").exists()


@pytest.mark.parametrize("way", ["same path", "hard link", "symbolic link", "config.json", "through a directory link"])
def test_output_that_is_the_input(way: str, source: Path, tmp_path: Path, ckconv) -> None:
    before = source.read_bytes()
    flags: tuple[object, ...] = ("--to", "bump", "--force")
    if way == "hard link":
        os.link(source, target := tmp_path / "other.bump")
    elif way == "symbolic link":
        (target := tmp_path / "other.bump").symlink_to(source)
    elif way == "through a directory link":
        (tmp_path / "d").symlink_to(tmp_path)
        target, flags = tmp_path / "d" / "m.gguf", ("--force",)
    elif way == "config.json":
        target, flags = tmp_path / "other.bump", (*flags, "--config-out", source)
    else:
        target, flags = source, ("--force",)
    result = ckconv("convert", source, target, *flags)
    assert result.code == 6
    assert "error[output.is-input]" in result.err
    assert source.read_bytes() == before


def test_link_to_nothing_is_written_through_only_with_force(source: Path, tmp_path: Path, ckconv) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "m.bump").symlink_to("there/real.bump")
    result = ckconv("convert", source, tmp_path / "m.bump")
    assert result.code == 6
    assert "is a link to there/real.bump, which is not there" in result.err
    assert list((tmp_path / "there").iterdir()) == []
    assert ckconv("convert", source, tmp_path / "m.bump", "--force").code == 0
    assert (tmp_path / "m.bump").is_symlink()
    assert (tmp_path / "there" / "real.bump").read_bytes() == expected_bump3(source)


def test_permissions_follow_the_umask(source: Path, tmp_path: Path, ckconv) -> None:
    old = os.umask(0o027)
    try:
        assert ckconv("convert", source, f"{tmp_path}/out/", "--to", "bump").code == 0
    finally:
        os.umask(old)
    for path, mode in (("out", 0o750), ("out/weights.bump", 0o640), ("out/config.json", 0o640)):
        assert stat.S_IMODE((tmp_path / path).stat().st_mode) == mode


# --- standard output


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "ckconv", *map(str, arguments)]


def test_stdout_holds_the_model_and_nothing_else(source: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        command("convert", source, "-", "--to", "bump", "--config-out", tmp_path / "c.json"), capture_output=True
    )
    assert done.returncode == 0
    assert done.stdout == expected_bump3(source)
    assert b"not verified" in done.stderr
    assert names(tmp_path) == ["c.json", "m.gguf"]
    (tmp_path / "o.bump").write_bytes(done.stdout)
    check = subprocess.run(
        command("verify", tmp_path / "o.bump", source, "--config", tmp_path / "c.json"), capture_output=True
    )
    assert check.returncode == 0


def test_stdout_needs_a_format(source: Path, ckconv) -> None:
    result = ckconv("convert", source, "-")
    assert result.code == 2
    assert "--to gguf, --to hf or --to mlx names one" in result.err


def test_full_stdout(source: Path) -> None:
    with open("/dev/full", "wb") as full:
        for arguments in (("inspect", source), ("convert", source, "-", "--to", "bump")):
            done = subprocess.run(command(*arguments), stdout=full, stderr=subprocess.PIPE)
            assert done.returncode == 6
            assert b"No space left on device" in done.stderr
            assert b"Traceback" not in done.stderr
            assert b"Exception" not in done.stderr


def test_closed_standard_streams(source: Path, tmp_path: Path) -> None:
    shell = f'{sys.executable} -m ckconv convert "$1" "$2"'
    done = subprocess.run(["sh", "-c", f"{shell} >&- 2>&-", "sh", source, tmp_path / "m.bump"], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (6, b"", b"")  # the report is lost, the output is not
    assert (tmp_path / "m.bump").read_bytes() == expected_bump3(source)
    done = subprocess.run(["sh", "-c", f"{shell} 2>&-", "sh", source, tmp_path / "m.bump"], capture_output=True)
    assert (done.returncode, done.stdout) == (6, b"")


def test_stdout_that_cannot_say_everything(tmp_path: Path) -> None:
    source = Model(extra_keys={"general.name": "naïve \u2713 \x1b[31m"}).write(tmp_path / "m.gguf")
    done = subprocess.run(
        command("inspect", source), capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert done.returncode == 0
    assert rb"na\xefve \u2713 \x1b[31m" in done.stdout


# --- what it says


@pytest.mark.parametrize(
    ("source", "to", "said", "planned"),
    [
        ("lora/llama-r4-attn-mlp", "mlx", "copied 0 byte for byte, transposed 28, dropped 0", "28 transposed"),
        ("gguf/gpt2-f32.f32.gguf", "hf", "copied 24 byte for byte, transposed 12, dropped 0", "12 transposed"),
    ],
)
def test_what_is_transposed_is_not_said_to_be_byte_for_byte(
    source: str, to: str, said: str, planned: str, tmp_path: Path, ckconv
) -> None:
    plan = ckconv("convert", FIXTURES / source, f"{tmp_path}/out/", "--to", to, "-n").out
    assert f"F32, values unchanged, {planned}\n" in plan
    assert f"  {said}\n" in ckconv("convert", FIXTURES / source, f"{tmp_path}/out/", "--to", to).out


@pytest.mark.parametrize(
    "flags",
    [
        ("--tensor-scales",), ("--decode", "blk.0.*"), ("--dequantize",), ("--resume",), ("--tie",),
        ("--source-record",), ("--no-source-record",),
    ],
)  # fmt: skip
def test_flags_that_a_model_gives_no_occasion_for_change_nothing(
    flags: tuple[str, ...], source: Path, tmp_path: Path, ckconv
) -> None:
    for name, given in (("plain.gguf", ()), ("flagged.gguf", flags)):
        assert ckconv("convert", source, tmp_path / name, *given).code == 0
    assert (tmp_path / "plain.gguf").read_bytes() == (tmp_path / "flagged.gguf").read_bytes()


def test_report(source: Path, tmp_path: Path, ckconv) -> None:
    result = ckconv("convert", source, tmp_path / "m.bump", "--bump-version", "3")
    first, second, releases, third, last = result.out.splitlines()
    assert result.err == ""
    assert first.startswith(f"{tmp_path / 'm.bump'}  bump v3  ")
    assert first.endswith(" 20 tensors from m.gguf (llama, 2 layers)")
    assert second.startswith("  copied 20 byte for byte (4 of them in split RoPE row order")
    assert second.endswith("dropped 0")
    assert releases == "  note: computed right by the engine of January 2026 and of April 2026"
    assert third == "  beside it: config.json, m.bump.source.zip"
    assert last.startswith("  verified 20/20   payload sha256 ")


def test_widening_and_no_verification_are_reported(tmp_path: Path, ckconv) -> None:
    source = replace(SMALL, matrix=Q.F16, norm=Q.BF16).write(tmp_path / "m.gguf")
    result = ckconv("convert", source, tmp_path / "m.bump", "--no-verify")
    assert "widened 20 BF16, F16 -> F32 (4 of them in split RoPE row order)" in result.out
    assert "  not verified   payload sha256 " in result.out


def test_quiet(source: Path, tmp_path: Path, ckconv) -> None:
    result = ckconv("convert", source, tmp_path / "m.bump", "-q")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert ckconv("-q", "convert", source, tmp_path / "m.bump").err.startswith("ckconv: error[output.exists]")


def test_verbose_lists_every_step(source: Path, tmp_path: Path, ckconv) -> None:
    out = ckconv("-v", "convert", source, tmp_path / "m.bump").out
    assert "  copy      F32             layer.0.wq  <- blk.0.attn_q.weight" in out
    assert "  zero      F32             layer.1.b2" in out
    digest = (tmp_path / "m.bump").read_bytes()[0x40:0x60].hex()
    assert f"payload sha256 {digest} " in out
    assert f"sha256 {hashlib.sha256((tmp_path / 'm.bump').read_bytes()).hexdigest()} " in out


def test_json_report(source: Path, tmp_path: Path, ckconv) -> None:
    shown = ckconv("convert", source, tmp_path / "m.bump", "--json").json
    assert next(iter(shown)) == "schema"
    data = (tmp_path / "m.bump").read_bytes()
    expected = {
        "schema": 2,
        "target": str(tmp_path / "m.bump"),
        "side_files": [str(tmp_path / "config.json"), str(tmp_path / "m.bump.source.zip")],
        "sha256": hashlib.sha256(data).hexdigest(),
        "payload_sha256": data[0x40:0x60].hex(),
        "verified": 20,
        "changed_values": {},
        "format": "bump",
        "version": 3,
        "bytes": len(data),
        "reordered": 4,
        "placeholders": 16,
        "left_out": [],
        "rope_layout": "split",
    }
    assert {key: shown[key] for key in expected} == expected
    assert {action: n for action, n in shown["tensors"].items() if n} == {"copy": 20}
    assert {"seconds", "peak_memory", "source", "notes"} <= set(shown)


def test_json_plan_and_error(source: Path, tmp_path: Path, ckconv) -> None:
    shown = ckconv("--json", "convert", source, tmp_path / "m.bump", "--dry-run").json
    assert (shown["schema"], shown["dry_run"]) == (1, True)
    assert len(shown["steps"]) == 2 + 2 * 16 + 2
    step = next(step for step in shown["steps"] if step["slot"] == "layer.1.wq")
    assert (step["tensor"], step["source"]) == ("layers.1.attention.q.weight", "blk.1.attn_q.weight")
    assert (step["action"], step["dtype"], step["reordered"]) == ("copy", "F32", True)
    result = ckconv("--json", "convert", tmp_path / "nowhere.gguf", tmp_path / "m.bump")
    assert (result.code, result.out) == (3, "")
    error = json.loads(result.err.splitlines()[-1])["error"]
    assert error["code"] == "input.missing"
    assert error["path"] == str(tmp_path / "nowhere.gguf")
    assert set(error) == {"code", "path", "tensor", "offset", "message", "details", "hint"}


USAGE = {
    "nothing": (),
    "no such verb": ("explode",),
    "no arguments": ("convert",),
    "one argument": ("convert", "m.gguf"),
    "three arguments": ("convert", "m.gguf", "a.bump", "b.bump"),
    "no such flag": ("convert", "m.gguf", "a.bump", "--explode"),
    "no such format": ("convert", "m.gguf", "a.bump", "--to", "onnx"),
    "no such dtype": ("convert", "m.gguf", "a.bump", "--dtype", "f8"),
    "context 0": ("convert", "m.gguf", "a.bump", "--context", "0"),
    "context as a word": ("convert", "m.gguf", "a.bump", "--context", "many"),
    "context beyond all": ("convert", "m.gguf", "a.bump", "--context", str(1 << 40)),
    "decode and keep": ("convert", "m.gguf", "a.bump", "--dequantize", "--dtype", "keep"),
    "flag without a value": ("convert", "m.gguf", "a.bump", "--drop"),
    "verify nothing": ("verify",),
    "hash of a pipe": ("inspect", "-", "--hash"),
    "no such shell": ("completion", "tcsh"),
    "no shell": ("completion",),
    "an empty name": ("convert", "", "a.bump"),
    "tie and untie": ("convert", "m.gguf", "a.gguf", "--tie", "--untie"),
}


@pytest.mark.parametrize("arguments", USAGE.values(), ids=USAGE)
def test_usage_errors(arguments: tuple[str, ...], ckconv) -> None:
    result = ckconv(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err
    assert "\\n" not in result.err, "one sentence"
    if arguments and arguments[-1] != "--drop":
        told = ckconv(*arguments, "--json")
        assert (told.code, told.out) == (2, "")
        assert json.loads(told.err.splitlines()[-1])["error"]["code"].startswith("usage")


def test_a_head_stored_twice_is_verified_for_itself(fixtures: Path, tmp_path: Path, ckconv) -> None:
    result = ckconv("convert", fixtures / "gguf" / "llama-tied-bf16.auto.gguf", tmp_path / "m.gguf", "--untie")
    assert "verified 21/21" in result.out


# --- element types


def rounded(values: np.ndarray, kind: str) -> np.ndarray:
    """To nearest, ties to even, as float32: an independent way for BF16 through float64."""
    if kind == "f16":
        return values.astype(np.float16).astype(np.float32)
    return gguf.quants.dequantize(gguf.quants.quantize(values, Q.BF16), Q.BF16)


def test_no_flag_makes_infinity_of_a_number(tmp_path: Path, ckconv) -> None:
    """100,000 is beyond float16, whose largest number is 65,504."""
    source = Model().write(tmp_path / "m.gguf")
    tensor = next(t for t in gguf.GGUFReader(source).tensors if t.name == "blk.0.ffn_up.weight")
    data = bytearray(source.read_bytes())
    data[tensor.data_offset : tensor.data_offset + 4] = np.float32(100_000).tobytes()
    source.write_bytes(data)

    result = ckconv("convert", source, tmp_path / "out.gguf", "--dtype", "f16", "--allow-lossy")
    assert (result.code, names(tmp_path)) == (4, ["m.gguf"])
    assert "error[plan.range]" in result.err
    assert "the value 100000 is beyond the range of F16 and would become infinite" in result.err
    assert "blk.0.ffn_up.weight" in result.err
    assert ckconv("convert", source, tmp_path / "out.gguf", "--dtype", "bf16", "--allow-lossy").code == 0


def embedding(path: Path, size: int) -> bytes:
    data = path.read_bytes()
    return data[0x84 + 32 :][:size]


@pytest.mark.parametrize(("kind", "code", "size"), [("f16", 2, 2), ("bf16", 1, 2)])
def test_narrowing_is_refused_with_counts_and_done_when_allowed(
    kind: str, code: int, size: int, source: Path, tmp_path: Path, ckconv
) -> None:
    command = ("convert", source, tmp_path / "m.bump", "--bump-version", "3", "--dtype", kind)
    result = ckconv(*command)
    values = next(t for t in gguf.GGUFReader(source).tensors if t.name == "token_embd.weight").data
    changed = int(np.count_nonzero(rounded(values, kind) != values))
    assert 0 < changed <= values.size
    assert result.code == 4
    assert f"error[plan.lossy]: {source}: {kind} cannot hold " in result.err
    assert f"token_embd.weight: {changed:,} values" in result.err
    assert "hint: --allow-lossy rounds them" in result.err
    assert names(tmp_path) == ["m.gguf"]
    result = ckconv("-v", *command, "--allow-lossy")
    assert result.code == 0
    assert f"note: no engine of bump 3 loads {kind.upper()} matrices\n" in result.out
    assert f"token_embd.weight: {changed:,} values rounded" in result.out
    data = embedding(tmp_path / "m.bump", values.size * size)
    got = np.frombuffer(data, np.float16).astype(np.float32) if kind == "f16" else (
        np.frombuffer(data, np.uint16).astype(np.uint32) << 16
    ).view(np.float32)  # fmt: skip
    assert np.array_equal(got, rounded(values, kind).reshape(-1))
    assert (tmp_path / "m.bump").read_bytes()[0x84] == code


@pytest.mark.parametrize(("kind", "source_type"), [("f16", Q.F16), ("bf16", Q.BF16)])
def test_narrowing_that_changes_nothing_needs_no_leave(kind: str, source_type: Q, tmp_path: Path, ckconv) -> None:
    source = replace(SMALL, matrix=source_type, norm=Q.F32).write(tmp_path / "m.gguf")
    assert ckconv("convert", source, tmp_path / "m.bump", "--bump-version", "3", "--dtype", kind).code == 0
    values = next(t for t in gguf.GGUFReader(source).tensors if t.name == "token_embd.weight").data
    assert embedding(tmp_path / "m.bump", values.nbytes) == values.tobytes()


def test_keep_keeps_types_and_bytes(tmp_path: Path, ckconv) -> None:
    model = replace(SMALL, matrix=Q.F16, types={"attn_v.weight": Q.BF16}, norm=Q.F32)
    source = model.write(tmp_path / "m.gguf")
    assert ckconv("convert", source, tmp_path / "m.bump", "--dtype", "keep", "--bump-version", "3").code == 0
    table = (tmp_path / "m.bump").read_bytes()[0x84:][:8]
    assert table == bytes([2, 0, 0, 0, 2, 0, 2, 0])
    assert ckconv("verify", tmp_path / "m.bump", source).code == 0
    blocks = replace(K, matrix=Q.Q8_0).write(tmp_path / "q.gguf")
    kept = ckconv("convert", blocks, f"{tmp_path}/q/", "--to", "bump", "--dtype", "keep")
    assert kept.code == 0
    assert "copied 20 byte for byte" in kept.out
    assert "bump 5 was chosen; bump 3 cannot hold the model: no engine of bump 3 loads Q8_0 matrices" in kept.out
    assert "computed right by the engine of April 2026 and of July 2026" in kept.out
    blocks = replace(K, matrix=Q.Q5_K).write(tmp_path / "5.gguf")
    result = ckconv("convert", blocks, tmp_path / "5.bump", "--dtype", "keep", "--bump-version", "3")
    assert result.code == 4
    assert "Q5_K has no code in the dtype table: token_embd.weight and 14 more" in result.err
    assert "--dequantize" not in result.err, "it excludes --dtype keep"


def test_f32_widens_everything_but_blocks(tmp_path: Path, ckconv) -> None:
    source = replace(SMALL, matrix=Q.BF16).write(tmp_path / "m.gguf")
    assert ckconv("convert", source, tmp_path / "m.bump", "--dtype", "f32").code == 0
    assert (tmp_path / "m.bump").read_bytes() == expected_bump3(source)


DECODED = {
    "Q4_0": Q.Q4_0, "Q4_1": Q.Q4_1, "Q5_0": Q.Q5_0, "Q5_1": Q.Q5_1, "Q8_0": Q.Q8_0, "Q2_K": Q.Q2_K, "Q3_K": Q.Q3_K,
    "Q4_K": Q.Q4_K, "Q5_K": Q.Q5_K, "Q6_K": Q.Q6_K, "IQ2_XXS": Q.IQ2_XXS, "IQ2_XS": Q.IQ2_XS, "IQ3_XXS": Q.IQ3_XXS,
    "IQ1_S": Q.IQ1_S, "IQ4_NL": Q.IQ4_NL, "IQ3_S": Q.IQ3_S, "IQ2_S": Q.IQ2_S, "IQ4_XS": Q.IQ4_XS, "IQ1_M": Q.IQ1_M,
    "TQ1_0": Q.TQ1_0, "TQ2_0": Q.TQ2_0, "MXFP4": Q.MXFP4,
}  # fmt: skip


@pytest.mark.parametrize("name", DECODED)
def test_dequantize_gives_the_blocks_own_values(
    name: str, tmp_path: Path, ckconv, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = DECODED[name]
    monkeypatch.setitem(BLOCKS, kind, gguf.GGML_QUANT_SIZES[kind])
    model = Model(layers=1, hidden=256, ffn=256, vocab=7, context=3, kv_heads=4, types={"token_embd.weight": kind})
    source = model.write(tmp_path / "m.gguf")
    three = ("--bump-version", "3")
    refused = ckconv("convert", source, tmp_path / "m.bump", *three)
    assert (refused.code == 4) == (name not in ("Q4_K", "Q6_K"))
    result = ckconv("convert", source, tmp_path / "m.bump", *three, "--dequantize", "--force")
    assert result.code == 0
    assert f"decoded 1 {name} -> F32" in result.out
    blocks = next(t for t in gguf.GGUFReader(source).tensors if t.name == "token_embd.weight").data
    with np.errstate(all="ignore"):
        values = gguf.quants.dequantize(np.array(blocks), kind).astype(np.float32)
    assert (tmp_path / "m.bump").read_bytes()[0x84 + 18 :][: values.nbytes] == values.tobytes()
    assert ckconv("verify", tmp_path / "m.bump", source).code == 0


def test_dequantize_to_half_counts_what_does_not_fit(tmp_path: Path, ckconv) -> None:
    source = replace(SMALL, types={"token_embd.weight": Q.Q8_0}).write(tmp_path / "m.gguf")
    result = ckconv("convert", source, tmp_path / "m.bump", "--dequantize", "--dtype", "bf16")
    assert result.code == 4
    assert "token_embd.weight: " in result.err
    assert ckconv("convert", source, tmp_path / "m.bump", "--dequantize", "--dtype", "bf16", "--allow-lossy").code == 0


@pytest.mark.parametrize(("size", "unit"), [("5", True), ("5KB", False), ("60KB", None)])
def test_a_shard_size_below_a_tensor_is_noted(size: str, unit: bool | None, tmp_path: Path, ckconv) -> None:
    source = FIXTURES / "hf" / "llama-tied-bf16"

    found = ckconv("convert", source, f"{tmp_path}/out/", "--to", "hf", "--max-shard-size", size, "--dry-run")

    assert found.code == 0, found.err
    said = found.out + found.err
    assert ("is less than the largest tensor" in said, "have a unit" in said) == (unit is not None, bool(unit))
