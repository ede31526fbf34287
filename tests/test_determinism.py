"""The same input gives the same bytes, whatever the environment: no clocks, hosts, paths, hash or directory order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from family_cases import cases, checkpoint
from gguf import GGMLQuantizationType as Q
from models import Model

from ckconv.api import convert

MODELS = {
    "f16-padded": Model(hidden=48, ffn=72, vocab=33, context=5, matrix=Q.F16, qkv_bias=True, arch="qwen2"),
    "q4_k_m": Model(
        hidden=256, ffn=256, vocab=9, context=3, matrix=Q.Q4_K, head="copy", types={"ffn_down.weight": Q.Q6_K}
    ),
}
ROOT = str(Path(__file__).parents[1])

ENVIRONMENTS = (
    ({"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C"}, 0o022, "."),
    ({"PYTHONHASHSEED": "2", "TZ": "Asia/Kathmandu", "LC_ALL": "C.UTF-8", "COLUMNS": "40"}, 0o077, ".."),
    (
        {"PYTHONHASHSEED": "random", "TZ": "EST5EDT", "LC_ALL": "de_DE.UTF-8", "TERM": "dumb", "PYTHONOPTIMIZE": "1"},
        0o000,
        "/",
    ),
)


RECORD = "weights.bump.source.zip"
VERSION = ("--bump-version", "3")


def ckconv(folder: Path, environment: dict[str, str], umask: int, cwd: str, *arguments: object) -> bytes:
    command = [sys.executable, "-m", "ckconv", *map(str, arguments)]
    path = os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])][::-1])
    done = subprocess.run(
        command,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path, **environment},
        cwd=folder / cwd,
        umask=umask,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", MODELS)
def test_same_bytes_in_every_environment(name: str, tmp_path: Path) -> None:
    source = MODELS[name].write(tmp_path / "m.gguf")
    made, plans, described = set(), set(), set()
    for number, (environment, umask, cwd) in enumerate(ENVIRONMENTS):
        out = tmp_path / f"out{number}"
        ckconv(tmp_path, environment, umask, cwd, "convert", source, f"{out}/", "--to", "bump", *VERSION)
        assert sorted(path.name for path in out.iterdir()) == ["config.json", "weights.bump", RECORD]
        made.add(tuple((out / name).read_bytes() for name in ("weights.bump", "config.json", RECORD)))
        dry = ("convert", source, tmp_path / "x.bump", *VERSION, "-n", "--json")
        plans.add(ckconv(tmp_path, environment, umask, cwd, *dry))
        described.add(ckconv(tmp_path, environment, umask, cwd, "inspect", source, "--json", "--hash"))
    assert (len(made), len(plans), len(described)) == (1, 1, 1)
    assert json.loads(plans.pop())["dry_run"]
    for content in made.pop():
        assert str(tmp_path).encode() not in content


def test_keys_of_a_document_that_another_library_said_otherwise_have_one_order(tmp_path: Path) -> None:
    """Those that transformers computes with and mlx-lm multiplied into the weights, which came out of a set."""
    case = next(case for case in cases("falcon_h1") if case.name == "plain")
    convert(checkpoint(case.recorded, tmp_path / "hf", case.tokenizer), f"{tmp_path}/mlx/", to="mlx")
    made = set()
    for number, (environment, umask, cwd) in enumerate(ENVIRONMENTS):
        out = tmp_path / f"back{number}"
        ckconv(tmp_path, environment, umask, cwd, "convert", tmp_path / "mlx", f"{out}/", "--to", "hf")
        made.add((out / "config.json").read_bytes())
    assert len(made) == 1


def test_name_and_place_of_the_source_are_in_no_output(tmp_path: Path) -> None:
    model = MODELS["f16-padded"]
    first = model.write(tmp_path / "first.gguf")
    (tmp_path / "deep").mkdir()
    second = model.write(tmp_path / "deep" / "another name.gguf")
    os.utime(second, (1, 1))
    for number, source in enumerate((first, second)):
        ckconv(tmp_path, {}, 0o022, ".", "convert", source, f"{tmp_path}/{number}/", "--to", "bump")
    for name in ("weights.bump", "config.json"):
        assert (tmp_path / "0" / name).read_bytes() == (tmp_path / "1" / name).read_bytes()
