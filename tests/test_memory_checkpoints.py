"""Opening, comparing and hashing a sharded checkpoint takes the same memory whatever its size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors_builder import BITS, header_of

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks /proc for its address space")

ROOT = Path(__file__).parent.parent

#: Everything is imported and numpy's threads are there; from now on only so many megabytes may be added.
LIMITED = """
import resource, sys
import numpy, gguf.quants
import ckconv.comparison.compare
import ckconv.cli.diff, ckconv.cli.inspect, ckconv.cli.describe, ckconv.formats.detect
from ckconv.cli import run
with open("/proc/self/status") as file:
    size = next(int(line.split()[1]) for line in file if line.startswith("VmSize")) * 1024
limit = size + int(sys.argv[1]) * 1024 * 1024
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
sys.exit(run(sys.argv[2:]))
"""

#: Threads of the C library reserve addresses that they never use: 64 MB each for what they might allocate.
LEAN = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}

CONFIG = {
    "model_type": "gpt2", "n_layer": 1, "n_embd": 1024, "n_head": 8, "n_positions": 16, "vocab_size": 40_000,
    "layer_norm_epsilon": 1e-5,
}  # fmt: skip

SHAPES = {
    "wte.weight": [40_000, 1024], "wpe.weight": [16, 1024], "ln_f.weight": [1024], "ln_f.bias": [1024],
    "h.0.ln_1.weight": [1024], "h.0.ln_1.bias": [1024], "h.0.ln_2.weight": [1024], "h.0.ln_2.bias": [1024],
    "h.0.attn.c_attn.weight": [1024, 3072], "h.0.attn.c_attn.bias": [3072],
    "h.0.attn.c_proj.weight": [1024, 1024], "h.0.attn.c_proj.bias": [1024],
    "h.0.mlp.c_fc.weight": [1024, 4096], "h.0.mlp.c_fc.bias": [4096],
    "h.0.mlp.c_proj.weight": [4096, 1024], "h.0.mlp.c_proj.bias": [1024],
}  # fmt: skip


def sparse_checkpoint(root: Path, dtype: str) -> Path:
    """Three shards of zeros, 214 MB as float32, that take no space on the disk."""
    root.mkdir()
    names = list(SHAPES)
    weight_map = {}
    for i in range(3):
        file = f"model-{i + 1:05}-of-00003.safetensors"
        header, size = header_of({name: (dtype, SHAPES[name]) for name in names[i::3]})
        text = json.dumps(header).encode()
        with open(root / file, "wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            out.truncate(8 + len(text) + size)
        weight_map |= dict.fromkeys(names[i::3], file)
    (root / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (root / "config.json").write_text(json.dumps(CONFIG))
    assert BITS[dtype] in (16, 32)
    return root


def limited(megabytes: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **LEAN}
    command = [sys.executable, "-c", LIMITED, str(megabytes), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_two_sharded_checkpoints_are_compared_within_64_megabytes(tmp_path: Path) -> None:
    a, b = sparse_checkpoint(tmp_path / "a", "F32"), sparse_checkpoint(tmp_path / "b", "F16")
    done = limited(64, "diff", a, b)

    assert (done.returncode, done.stderr) == (0, "")
    assert "  20 tensors equal (20 stored in another type)" in done.stdout


def test_a_sharded_checkpoint_is_hashed_within_64_megabytes(tmp_path: Path) -> None:
    done = limited(64, "inspect", "--hash", sparse_checkpoint(tmp_path / "a", "F32"))

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("hash\t")


@pytest.mark.parametrize("target", ["m.gguf", "mlx/", "hf/"])
def test_a_sharded_checkpoint_is_converted_within_96_megabytes(target: str, tmp_path: Path) -> None:
    """Transposed and fused matrices among them, and the output read again: 214 MB."""
    to = {"m.gguf": "gguf", "mlx/": "mlx", "hf/": "safetensors"}[target]
    source = sparse_checkpoint(tmp_path / "a", "F32")
    done = limited(96, "convert", source, f"{tmp_path}/{target}", "--to", to)

    assert (done.returncode, done.stderr) == (0, "")
    assert "verified 20/20" in done.stdout


def test_the_limit_holds(tmp_path: Path) -> None:
    """What reads one tensor whole does not fit: the tests above can fail."""
    program = LIMITED.replace("sys.exit(run(sys.argv[2:]))", "open(sys.argv[2], 'rb').read()")
    shard = sparse_checkpoint(tmp_path / "a", "F32") / "model-00001-of-00003.safetensors"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **LEAN}
    command = [sys.executable, "-c", program, "64", str(shard)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    assert shard.stat().st_size > 160_000_000
    assert "MemoryError" in done.stderr
