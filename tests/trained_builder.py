"""Models as the engine's own training leaves them, random from a seed: a manifest and float32 without a header.

Written with numpy and json alone from what the engine's scripts write; nothing of the package is used. Biases, norms
and projections are large, so that whatever is mapped wrongly shows in the logits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

INITIALIZED, CHECKPOINT = "weights_manifest_v7_tiny_init", "weights_manifest_v7_runtime_checkpoint"

#: Where the data of a wrapped file begins, by the release of the engine: April's v7, July's v8.
WRAPPED = {"april": 152, "july": 128}


@dataclass(frozen=True)
class Trained:
    """A random model.

    Attributes:
        zero: endings of entries that are all zeros, as biases are before training.
        initialized: as the initialization writes it: in its order, with the norms that every family gets there, and
            the state of the parity harness.
        layers, vocab, hidden, ffn, heads, kv: sizes.
    """

    model: str = "llama"
    zero: tuple[str, ...] = ()
    initialized: bool = False
    layers: int = 2
    vocab: int = 64
    hidden: int = 32
    ffn: int = 48
    heads: int = 4
    kv: int = 2
    context: int = 32
    theta: float = 1e6
    seed: int = 5

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    def shapes(self) -> dict[str, tuple[int, ...]]:
        e, f, kv, v = self.hidden, self.ffn, self.kv * self.head, self.vocab
        found: dict[str, tuple[int, ...]] = {"token_emb": (v, e), "final_ln_weight": (e,), "output.weight": (v, e)}
        if self.initialized:
            found |= {
                "tiny.embedding.weight": (v, e), "tiny.rms_gamma": (e,), "tiny.fc1.weight": (2 * f, e),
                "tiny.fc1.bias": (2 * f,), "tiny.fc2.weight": (v, f), "tiny.fc2.bias": (v,),
            }  # fmt: skip
        for n in range(self.layers):
            layer: dict[str, tuple[int, ...]] = {
                "ln1_gamma": (e,), "ln2_gamma": (e,), "wq": (e, e), "wk": (kv, e), "wv": (kv, e), "wo": (e, e),
                "bq": (e,), "bk": (kv,), "bv": (kv,), "bo": (e,), "q_norm": (self.head,), "k_norm": (self.head,),
                "w1": (2 * f, e), "w2": (e, f), "b1": (2 * f,), "b2": (e,),
            }  # fmt: skip
            if not self.initialized and self.model != "qwen3":
                del layer["q_norm"], layer["k_norm"]
            found |= {f"layer.{n}.{name}": shape for name, shape in layer.items()}
        return found if self.initialized else dict(sorted(found.items()))

    def arrays(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(self.seed)
        made = {}
        for name, shape in self.shapes().items():
            values = rng.standard_normal(shape)
            kind = name.rpartition(".")[2]
            if kind.endswith(("norm", "gamma", "ln_weight")):
                values = 1 + values * 0.2
            elif len(shape) > 1:
                values *= 0.5 if kind in ("wq", "wk") else 0.2
            else:
                values *= 0.3
            made[name] = np.zeros(shape, np.float32) if name.endswith(self.zero or ("\0",)) else values.astype("f4")
        return made

    def config(self) -> dict[str, Any]:
        return {
            "model": self.model, "num_layers": self.layers, "embed_dim": self.hidden, "hidden_size": self.ffn,
            "intermediate_size": self.ffn, "vocab_size": self.vocab, "num_heads": self.heads,
            "num_kv_heads": self.kv, "head_dim": self.head, "context_len": self.context, "rope_theta": self.theta,
            "dtype": "fp32", "training": {"enabled": True, "precision_policy": "fp32_only"},
        }  # fmt: skip

    def manifest(self, start: int = 0) -> tuple[bytes, dict[str, Any]]:
        """The data and what is said of it, ``start`` bytes into the file."""
        data, entries = b"", []
        for name, array in self.arrays().items():
            data += bytes(-len(data) % 64)
            entries.append(
                {"name": name, "offset": len(data) + start, "size": array.nbytes, "dtype": "fp32",
                 "shape": list(array.shape)}
            )  # fmt: skip
            data += array.tobytes()
        if self.initialized:
            return data, {"version": 1, "format": INITIALIZED, "config": self.config(), "entries": entries}
        where = {"source": "ck_runtime_snapshot", "step": 7, "reason": "interval"}
        return data, {
            "version": 1, "format": CHECKPOINT, **where, "entries": entries, "config": self.config()
        }  # fmt: skip

    def write(self, folder: Path, *, stem: str = "weights", wrapped: str = "") -> Path:
        """``STEM.bump`` and ``STEM_manifest.json``."""
        start = WRAPPED.get(wrapped, 0)
        data, manifest = self.manifest(start)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{stem}.bump"
        path.write_bytes((b"BUMPWGT4".ljust(start, b"\0") if start else b"") + data)
        write_manifest(path, manifest)
        return path


def write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    path.with_name(f"{path.stem}_manifest.json").write_text(json.dumps(manifest, indent=2))


def read_manifest(path: Path) -> Any:
    return json.loads(path.with_name(f"{path.stem}_manifest.json").read_text())
